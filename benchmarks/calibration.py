"""How far confidence can be trusted: expected calibration error over labelled cases.

    python -m benchmarks.calibration [FOLDER...] [--json]

Without folders: the cases of this repository. Several folders are printed one by one and together.
"""

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path

from advisor.rules.loader import load_rules
from benchmarks.labelled import Judged, calibration_error, judge, share

OWN = Path(__file__).parent.parent / "tests" / "cases" / "attribution"
_NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, default=[OWN], metavar="FOLDER")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rules = load_rules()
    by_folder = {str(folder): judge(folder, rules, _NOW) for folder in options.folders}
    if len(by_folder) > 1:
        by_folder["together"] = tuple(item for judged in by_folder.values() for item in judged)
    figures = {name: _figures(judged) for name, judged in by_folder.items()}
    if options.json:
        print(json.dumps(figures))
        return
    for name, found in figures.items():
        print(name)
        for key, value in found.items():
            print(f"  {key}: {value}")


def _figures(judged: tuple[Judged, ...]) -> dict[str, float | int]:
    confidences = [item.decision.attribution.confidence for item in judged]
    return {
        "n": len(judged),
        "expected_calibration_error": round(calibration_error(judged), 4),
        "mean_confidence": round(sum(confidences) / max(1, len(confidences)), 4),
        "category_right": round(share(item.category_right for item in judged), 4),
    }


if __name__ == "__main__":
    main()
