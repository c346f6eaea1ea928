"""The watchdog: nothing of the advisor's may keep a job from running, whichever of its processes is dead.

A separate process beside slurmctld, standard library only. Each look: read the tick file, look at pending jobs that
carry the advisor's mark, give back what keeps them, say so on stderr, one line each, with its time unless the journal
keeps that. It keeps no state; a small file tells others that it lives.
"""

import argparse
import os
import signal
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path

from watchdog import liveness, release
from watchdog.notice import ALIVE, READY, STOPPING, AliveFile, Notice, boot_seconds, kept_by_journal
from watchdog.slurm import Slurm, SlurmError, fitting, run_process

DEFAULT_CONFIG = "/etc/recovery-advisor/watchdog.toml"
RELEASES_PER_LOOK_MAX = 100
ALIVE_SECONDS = 10.0  # systemd, and readers of our file, hear from us at least this often between two looks
ONCE_PAUSE_SECONDS_MAX = 2.0  # between the two looks of one run by cron

_EXAMPLES = """\
examples:
  advisor-watchdog --config watchdog.toml          run until SIGTERM
  advisor-watchdog --config watchdog.toml --once   one look (or two), for cron
  advisor-watchdog --config watchdog.toml --check  file and arithmetic right?
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """`mode`: "observe" only says what it would do. `dead_after_seconds`: since the last completed tick.

    `alive_file`: where we tell that we live.
    """

    tick_file: str = "/run/recovery-advisor-agent/tick.json"
    alive_file: str = "/run/recovery-advisor-watchdog/alive.json"
    mode: str = "observe"
    poll_seconds: float = 2.0
    dead_after_seconds: float = 30.0
    pending_minutes: float = 30.0
    slurm_conf: str = ""
    slurm_bin: str = ""
    slurm_timeout_seconds: float = 5.0
    # What the advisor was set up with, for the arithmetic check only.
    arithmetic_decision_deadline_seconds: float = 90.0
    arithmetic_evidence_lag_seconds: float = 10.0
    arithmetic_settle_seconds: float = 2.0
    arithmetic_tick_seconds: float = 1.0
    arithmetic_take_over_seconds: float = 15.0
    arithmetic_agent_poll_seconds: float = 1.0


def load(path: Path) -> Config:
    """Raises ValueError with every problem, one per line."""
    try:
        tree = tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; --config names another") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from None
    return decode(tree, file=str(path))


def decode(tree: Mapping[str, object], *, file: str = "") -> Config:
    """A parsed TOML tree as configuration; unknown keys are errors. `file`: where it is from."""
    flat: dict[str, object] = {}
    for key, value in tree.items():
        if key in {"slurm", "arithmetic"} and isinstance(value, dict):
            flat |= {f"{key}.{inner}": item for inner, item in value.items()}
        else:
            flat[key] = value
    names = {_key(field.name): field for field in fields(Config)}
    problems = [f"{key}: no such key; {_meant(key, names)}" for key in flat if key not in names]
    values: dict[str, object] = {}
    for key, value in flat.items():
        if key not in names:
            continue
        problem = _problem(key, value, is_text=names[key].type is str)
        if problem:
            problems.append(f"{key}: {problem}")
        values[names[key].name] = value
    if problems:
        raise ValueError("\n".join(f"{problem} ({file})" if file else problem for problem in problems))
    return Config(**values)  # type: ignore[arg-type]  # checked key by key above


def _meant(key: str, names: Iterable[str]) -> str:
    """The nearest key, whatever section it was written in."""
    known = {name.rpartition(".")[2]: name for name in names} | {"slurm": "[slurm]", "arithmetic": "[arithmetic]"}
    near = get_close_matches(key.rpartition(".")[2], known, 1, cutoff=0.7)
    return f"did you mean {known[near[0]]}?" if near else "deploy/watchdog.toml shows all that there are"


def _key(name: str) -> str:
    section, _, rest = name.partition("_")
    return f"{section}.{rest}" if section in {"slurm", "arithmetic"} else name


def _problem(key: str, value: object, *, is_text: bool) -> str:
    if not is_text:
        good = isinstance(value, int | float) and not isinstance(value, bool) and 0.05 <= value <= 10_000_000
        return "" if good else "give a number of at least 0.05"
    if not isinstance(value, str) or any(ord(char) < 32 for char in value):
        return "give text without control characters"
    if key == "mode":
        return "" if value in {"observe", "act"} else 'choose "observe" or "act"'
    if value.startswith("/") or (not value and key not in {"tick_file", "alive_file"}):
        return ""
    return "give an absolute path"


def arithmetic(config: Config, *, requeue_delay_seconds: float, kill_wait_seconds: float) -> list[str]:
    """What does not add up. The deadline must leave room for everything that has to happen before it."""
    needed = (
        config.arithmetic_evidence_lag_seconds
        + config.arithmetic_settle_seconds
        + config.arithmetic_tick_seconds
        + config.arithmetic_take_over_seconds
        + config.arithmetic_agent_poll_seconds
        + kill_wait_seconds
    )
    deadline = config.arithmetic_decision_deadline_seconds
    problems = []
    if deadline <= needed:
        problems.append(
            f"the decision deadline of {deadline:g} s leaves no slack: evidence, settling, tick, take-over, poll and "
            f"completing take up to {needed:g} s"
        )
    if config.dead_after_seconds <= config.arithmetic_tick_seconds + config.arithmetic_take_over_seconds:
        problems.append(f"dead_after_seconds {config.dead_after_seconds:g} is shorter than a tick and a take-over")
    if config.poll_seconds >= config.dead_after_seconds:
        problems.append("poll_seconds is not shorter than dead_after_seconds")
    if requeue_delay_seconds < 2:
        problems.append(f"Slurm's requeue delay of {requeue_delay_seconds:g} s leaves no time to set exclusions")
    return problems


def say(text: str) -> None:
    print(f"watchdog: {text}", file=sys.stderr, flush=True)


def say_when(text: str) -> None:
    """With the time, for a file of our own."""
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} watchdog: {text}", file=sys.stderr, flush=True)


class Watchdog:
    """One look at a time. What is said twice in a row is said once."""

    def __init__(
        self,
        config: Config,
        slurm: Slurm,
        *,
        once: bool = False,
        wall: Callable[[], float] = time.time,  # noqa: TID251 - stdlib-only: no Clock port here
        boot: Callable[[], float] = boot_seconds,
        pause: Callable[[float], None] = time.sleep,
        say: Callable[[str], None] = say,
    ) -> None:
        self._config, self._slurm, self._once, self._print = config, slurm, once, say
        self._wall, self._boot, self._pause = wall, boot, pause
        self._said: dict[str, str] = {}
        self._seen_before: set[str] = set()  # shortages of the last look, by job
        self._delay: int | None = None

    def start(self) -> None:
        """Ask Slurm for its delay and check the arithmetic; what is wrong is said, and watching goes on."""
        try:
            self._delay, kill_wait = self._slurm.settings()
        except SlurmError as error:
            self._say("slurm", f"Slurm does not answer: {error}")
            return
        for problem in arithmetic(self._config, requeue_delay_seconds=self._delay, kill_wait_seconds=kill_wait):
            self._say(f"arithmetic {problem}", f"check the settings: {problem}")

    def look(self) -> bool:
        """One look at everything; with `once` another one where a job's shortage has to be seen twice.

        False when Slurm could not be read, or refused.
        """
        good = self._look()
        if self._once and self._seen_before:
            self._pause(min(self._config.poll_seconds, ONCE_PAUSE_SECONDS_MAX))
            good = self._look()
        return good

    def _look(self) -> bool:
        try:
            if self._delay is None:
                self._delay, _ = self._slurm.settings()
            advisor = self._advisor()
            if not (self._once and advisor.alive):
                self._say("advisor", f"advisor {'alive' if advisor.alive else 'DEAD'}: {advisor.reason}", once=True)
            marked = [job for job in self._slurm.pending() if release.marked(job) is not None]
            self._forget(marked)
        except SlurmError as error:
            self._say("slurm", f"Slurm does not answer: {error}")
            return False
        self._say("slurm", "", once=True)
        fits, good = self._fits(marked) if marked else ({}, True)
        seen: set[str] = set()
        given_back = 0
        for job in marked:
            facts = self._facts(advisor, fits.get(job.job_id))
            planned = release.plan(job, facts)
            if planned is None:
                continue
            if planned.confirm:
                seen.add(job.job_id)
                if job.job_id not in self._seen_before:
                    continue
            # The bound is on what is done: whoever needs nothing must not hide a job further down the listing.
            given_back += 1
            if given_back > RELEASES_PER_LOOK_MAX:
                self._say("bound", f"more than {RELEASES_PER_LOOK_MAX} jobs need something back: the rest comes next")
                break
            good &= self._give_back(job, planned, facts)
        else:
            self._say("bound", "")
        self._seen_before = seen
        return good

    def _fits(self, marked: Sequence[release.Job]) -> tuple[dict[str, tuple[str, ...] | None], bool]:
        """(which nodes fit each job, whether Slurm told). Not known is no reason to keep what the mark alone tells:
        a listing of wishes takes seconds where thousands of jobs wait, and a lease must not wait for it.
        """
        try:
            wishes, nodes = self._slurm.wishes(), self._slurm.up_nodes()
        except SlurmError as error:
            self._say("fitting", f"which nodes fit is not known: {error}")
            return {}, False
        self._say("fitting", "")
        return {job.job_id: fitting(job, wishes.get(job.job_id), nodes) for job in marked}, True

    def _facts(self, advisor: liveness.Liveness, fits: tuple[str, ...] | None) -> release.Facts:
        return release.Facts(
            advisor=advisor,
            now=self._wall(),
            requeue_delay_seconds=self._delay if self._delay is not None else 121,
            pending_seconds=self._config.pending_minutes * 60,
            fitting=fits,
        )

    def _give_back(self, job: release.Job, planned: release.Release, facts: release.Facts) -> bool:
        if self._config.mode != "act":
            self._say(f"job {job.shown_id}", f"job {job.shown_id}: would act: {planned.why}")
            return True
        try:
            # People edit their jobs too: decide on the job as it is at this moment.
            fresh = next(iter(self._slurm.pending(job.shown_id)), None)
            planned_now = release.plan(fresh, facts) if fresh is not None else None
            if planned_now is None:
                return True
            self._slurm.update(job.shown_id, planned_now)
        except SlurmError as error:
            self._say(f"job {job.shown_id}", f"job {job.shown_id}: Slurm refused: {error}; wanted: {planned.why}")
            return False
        self._say(f"job {job.shown_id}", f"job {job.shown_id}: {planned_now.why}")
        return True

    def _advisor(self) -> liveness.Liveness:
        try:
            with Path(self._config.tick_file).open("rb") as file:
                raw: bytes | None = file.read(liveness.FILE_BYTES_MAX + 1)
        except OSError:
            raw = None
        return liveness.judge(raw, boot_now=self._boot(), dead_after_seconds=self._config.dead_after_seconds)

    def _say(self, topic: str, text: str, *, once: bool = False) -> None:
        """Print unless this topic's last line was the same; with `once`, unless it begins the same."""
        before = self._said.get(topic, "")
        self._said[topic] = text
        same = before.partition(":")[0] == text.partition(":")[0] if once else before == text
        if text and not same:
            self._print(text)

    def _forget(self, marked: Sequence[release.Job]) -> None:
        held = {f"job {job.shown_id}" for job in marked}
        self._said = {key: value for key, value in self._said.items() if not key.startswith("job ") or key in held}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit 0: done. 1: with --once, Slurm could not be read or refused. 2: unusable arguments or configuration."""
    parser = argparse.ArgumentParser(
        prog="advisor-watchdog",
        description="Gives back what keeps a marked job from starting: advisor dead or in the way.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config", type=Path, default=Path(DEFAULT_CONFIG), metavar="FILE", help=f"default: {DEFAULT_CONFIG}"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--once", action="store_true", help="look once and exit, for cron")
    how.add_argument("--check", action="store_true", help="check configuration and arithmetic, and exit")
    options = parser.parse_args(arguments)
    try:
        config = load(options.config)
    except ValueError as error:
        for line in str(error).splitlines():
            print(f"advisor-watchdog: {line}", file=sys.stderr)
        return 2
    tell = say if kept_by_journal() else say_when
    notice = Notice() if options.check or options.once else Notice(file=_alive_file(config, tell))

    def run(argv: Sequence[str], environment: Mapping[str, str], seconds: float) -> tuple[int, bytes, bytes]:
        notice.tell(ALIVE)  # a look at a slow Slurm takes long, each of its questions does not
        return run_process(argv, environment, seconds)

    slurm = Slurm(
        conf=config.slurm_conf, bin_dir=config.slurm_bin, timeout_seconds=config.slurm_timeout_seconds, run=run
    )
    if options.check:
        return check(config, slurm)
    if options.once:
        return 0 if Watchdog(config, slurm, once=True).look() else 1
    return _stay(config, slurm, notice, tell)


def _alive_file(config: Config, tell: Callable[[str], None]) -> AliveFile:
    # Longer than any silence of ours: between two looks, or in one question to Slurm.
    within = ALIVE_SECONDS + config.slurm_timeout_seconds
    return AliveFile(config.alive_file, mode=config.mode, within_seconds=within, say=tell)


def check(config: Config, slurm: Slurm) -> int:
    """Says what the configuration means here. Exit 1 when something does not add up or Slurm does not answer."""
    try:
        delay, kill_wait = slurm.settings()
    except SlurmError as error:
        print(f"BAD  Slurm does not answer: {error}")
        return 1
    print(f"ok   mode {config.mode}, tick file {config.tick_file}, a look every {config.poll_seconds:g} s")
    print(f"ok   Slurm: a requeued job starts {delay} s later at the earliest, KillWait is {kill_wait} s")
    problems = arithmetic(config, requeue_delay_seconds=delay, kill_wait_seconds=kill_wait)
    for problem in problems:
        print(f"BAD  {problem}")
    if not problems:
        print(
            f"ok   the decision deadline of {config.arithmetic_decision_deadline_seconds:g} s leaves room for the rest"
        )
    return 1 if problems else 0


def _stay(config: Config, slurm: Slurm, notice: Notice, tell: Callable[[str], None]) -> int:
    watchdog = Watchdog(config, slurm, say=tell)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    tell(f"started, mode {config.mode}, pid {os.getpid()}")
    notice.tell(READY)
    watchdog.start()
    while not stop.is_set():
        watchdog.look()
        until = time.monotonic() + config.poll_seconds
        while not stop.is_set() and (left := until - time.monotonic()) > 0:
            notice.tell(ALIVE)
            stop.wait(min(left, ALIVE_SECONDS))
    notice.tell(STOPPING)
    tell("stopped")
    return 0
