"""Coverage-guided fuzzing (Atheris, libFuzzer): `python -m tests.fuzz.run TARGET [--seconds N] [--keep FOLDER]`.

Ends with 0 when nothing was found; otherwise the input is in FOLDER and becomes a file in `tests/fuzz/found/`.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import atheris  # type: ignore[import-untyped]  # it ships no types

with atheris.instrument_imports(include=["advisor"]):
    from tests.fuzz.targets import TARGETS

from tests.fuzz.seeds import seeds

INPUT_BYTES_MAX = 16_384
RSS_MB_MAX = 1_024
SECONDS_EACH_MAX = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--keep", type=Path, help="folder for findings and for inputs that reached new code")
    options = parser.parse_args()
    keep = options.keep or Path(tempfile.mkdtemp(prefix=f"fuzz-{options.target}-"))
    corpus = keep / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds()[options.target]):
        (corpus / f"seed-{number}").write_bytes(seed[:INPUT_BYTES_MAX])
    print(f"findings go to {keep}", flush=True)
    arguments = [
        sys.argv[0],
        f"-max_total_time={options.seconds}",
        f"-max_len={INPUT_BYTES_MAX}",
        f"-rss_limit_mb={RSS_MB_MAX}",
        f"-timeout={SECONDS_EACH_MAX}",
        f"-artifact_prefix={keep}/",
        "-print_final_stats=1",
        str(corpus),
    ]
    atheris.Setup(arguments, TARGETS[options.target])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
