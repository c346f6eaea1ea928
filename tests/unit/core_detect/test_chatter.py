"""Lines that show life and no work: a hang behind them is found, and a job with news is left alone."""

from datetime import timedelta
from pathlib import Path

from advisor.bundle import read_bundle
from advisor.core.chatter import QUIET_SECONDS, quiet_seconds, voice
from advisor.core.decide import decide
from advisor.core.policy import Policy
from advisor.core.words import IncidentKind
from tests.unit.core_detect.logs import NOON, RULES, SCANNER
from tests.unit.core_detect.test_bundle import bundle

SCRAPED = '(Engine pid=7) INFO:     10.0.0.11:{port} - "GET /metrics HTTP/1.1" 200 OK'


def log(*parts: tuple[int, float, str]) -> bytes:
    """Parts of so many lines, so many seconds apart; `{n}` counts, `{port}` changes without counting."""
    at, lines = NOON - timedelta(days=1), []
    for count, seconds, text in parts:
        for number in range(count):
            at += timedelta(seconds=seconds)
            lines.append(f"[{at:%Y-%m-%d %H:%M:%S}] {text.format(n=number, port=40_000 + 7_919 * number % 9_001)}")
    return ("\n".join(lines) + "\n").encode()


def kind(folder: Path, text: bytes, **more: bytes) -> IncidentKind:
    files = {"logs__job.log": text, **more}
    path = bundle(folder, {"job_id": "7", "state": "RUNNING", "silent_seconds": 9}, **files)
    return decide(read_bundle(path, SCANNER, NOON), RULES, Policy(), NOON).incident.kind


def _folder(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    return folder


def test_a_hang_behind_a_scraped_endpoint_is_found(tmp_path: Path) -> None:
    """Half an hour of requests for metrics, each from another port, is no progress of training."""
    assert kind(tmp_path, log((1, 1, "rollout done, training begins"), (130, 15, SCRAPED))) is IncidentKind.HANG


def test_work_in_a_format_that_nobody_knows_counts(tmp_path: Path) -> None:
    """A counter that goes on is work, although no rule knows the line; the requests beside it change nothing."""
    work = log((200, 60, "Up. {n} : Sen. 31208448 : Cost 2.7"))
    assert kind(_folder(tmp_path, "a"), work) is IncidentKind.NONE
    assert kind(_folder(tmp_path, "b"), work, logs__metrics_log=log((900, 13, SCRAPED))) is IncidentKind.NONE


def test_a_long_pause_beside_a_heartbeat_is_no_hang(tmp_path: Path) -> None:
    """Until the chatter has been alone for longer than an announced save may take."""
    seconds = QUIET_SECONDS - 60
    assert kind(tmp_path, log((1, 1, "writing the model"), (int(seconds // 15), 15, SCRAPED))) is IncidentKind.NONE


def test_a_job_that_rarely_has_news_is_not_hurried(tmp_path: Path) -> None:
    """It was alone with its heartbeat as long before, and went on."""
    hour = (int(QUIET_SECONDS * 1.5 // 15), 15, SCRAPED)
    assert kind(tmp_path, log((1, 1, "epoch {n}"), hour, (1, 1, "epoch 1 done"), hour)) is IncidentKind.NONE


def test_a_log_without_lines_says_nothing() -> None:
    """Neither news nor chatter."""
    assert voice(()) is None
    assert quiet_seconds(()) == 0.0
