"""What Slurm's settings mean for restarts, in sentences an operator can act on. Pure.

Both `advisor doctor` and `advisor-agent check` say them. The facts behind them are measured: docs/slurm.md.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from slurm_plugin.squeue import SlurmConfig

DELAY_LONG_SECONDS = 60
MEMORY_SHORT_SECONDS = 120
KILL_WAIT_LONG_SECONDS = 60
NODE_TIMEOUT_LONG_SECONDS = 600
_REQUEUE_DELAY_SINCE = (25, 11)
# What was run with the whole Slurm tier of the tests, and what reading from golden output only.
_RUN_ON, _READ_FROM = ((22, 5), (24, 11)), ((26, 5),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Consequence:
    """`setting` as Slurm spells it, `text` what follows from it, `to_do` what to change, "" when it is well."""

    setting: str
    text: str
    to_do: str = ""


def of(settings: SlurmConfig) -> Iterator[Consequence]:
    """One for each setting that matters, in the order in which a restart meets them."""
    yield _release(settings)
    yield _epilog(settings)
    yield _memory(settings)
    yield _requeue(settings)
    yield _delay(settings)
    yield _kill_wait(settings)
    yield _node_timeout(settings)
    yield _job_submit(settings)


def _release(settings: SlurmConfig) -> Consequence:
    """Which release it is, how far it was tried, and what is different in it."""
    release = _version(settings.version)
    if release < _RUN_ON[0]:
        to_do = "a later Slurm, or mode observe until restarts have been watched here"
        text = f"{settings.version}: older than 22.05, with which nothing was tried"
        return Consequence(setting="Slurm", text=text, to_do=to_do)
    if release in _RUN_ON:
        tried = "tested"
    elif release in _READ_FROM:
        tried = "tested in part"
    else:
        tried = "not tried itself (22.05, 24.11 and 26.05 were); what it prints is checked as strictly"
    ways = [
        "shorter requeue delay by requeue_delay" if release >= _REQUEUE_DELAY_SINCE else "requeue delay by cred_expire",
        "output paths as Slurm expands them" if release >= (23, 2) else "output paths expanded by us",
    ]
    return Consequence(setting="Slurm", text=f"{settings.version}: {tried}; {', '.join(ways)}; listings by columns")


def _epilog(settings: SlurmConfig) -> Consequence:
    if settings.epilog_slurmctld:
        return Consequence(
            setting="EpilogSlurmctld", text=f"{settings.epilog_slurmctld} runs at the end of each attempt"
        )
    return Consequence(
        setting="EpilogSlurmctld",
        text="not set: the end of an attempt is noticed at the agent's next look instead of at once",
        to_do="advisor slurm install-hooks --dry-run shows what it takes",
    )


def _memory(settings: SlurmConfig) -> Consequence:
    seconds = settings.min_job_age_seconds
    text = (
        f"{seconds} s: for so long after its end a failed job can be restarted; then Slurm has forgotten it. Times the "
        "agent's caps.requeues_per_minute, that is how many jobs that fail together are restarted"
    )
    if 0 < seconds < MEMORY_SHORT_SECONDS:
        to_do = "MinJobAge=300 (Slurm's default) in slurm.conf lets advice wait for slow evidence and survive a restart"
        return Consequence(setting="MinJobAge", text=text, to_do=to_do)
    return Consequence(setting="MinJobAge", text=text if seconds else "0: ended jobs are not forgotten")


def _requeue(settings: SlurmConfig) -> Consequence:
    if settings.job_requeue:
        return Consequence(setting="JobRequeue", text="1: batch jobs may be restarted unless they say --no-requeue")
    return Consequence(
        setting="JobRequeue",
        text="0: Slurm refuses to restart a job that was not submitted with --requeue",
        to_do="JobRequeue=1 in slurm.conf, or tell users to submit with --requeue",
    )


def _delay(settings: SlurmConfig) -> Consequence:
    seconds = settings.requeue_delay_seconds
    why = f"{settings.delay_setting}={seconds - 1}" if settings.delay_setting else "Slurm's default"
    text = f"a restarted job starts {seconds} s after its requeue at the earliest ({why}, plus 1 s)"
    if seconds <= DELAY_LONG_SECONDS:
        return Consequence(setting="requeue delay", text=text)
    if _version(settings.version) >= _REQUEUE_DELAY_SINCE:
        to_do = "SchedulerParameters=requeue_delay=30 in slurm.conf shortens it, and nothing else"
    else:
        to_do = (
            "AuthInfo=cred_expire=30 in slurm.conf shortens it; it is also how long a job's start may take until its "
            "credential is refused, so keep it above the slowest prolog"
        )
    return Consequence(setting="requeue delay", text=text, to_do=to_do)


def _kill_wait(settings: SlurmConfig) -> Consequence:
    seconds = settings.kill_wait_seconds
    text = f"{seconds} s: a live attempt whose ranks ignore SIGTERM ends that much later"
    to_do = "a shorter KillWait in slurm.conf ends hung jobs sooner" if seconds > KILL_WAIT_LONG_SECONDS else ""
    return Consequence(setting="KillWait", text=text, to_do=to_do)


def _node_timeout(settings: SlurmConfig) -> Consequence:
    seconds = settings.slurmd_timeout_seconds
    if seconds == 0:
        text = "0: a node that does not answer is never declared DOWN, and a job on it stays COMPLETING for ever"
        return Consequence(setting="SlurmdTimeout", text=text, to_do="SlurmdTimeout=300 (the default) in slurm.conf")
    text = f"{seconds} s: for so long a job waits for a node that no longer answers before it can start elsewhere"
    to_do = "a shorter SlurmdTimeout in slurm.conf" if seconds > NODE_TIMEOUT_LONG_SECONDS else ""
    return Consequence(setting="SlurmdTimeout", text=text, to_do=to_do)


def _job_submit(settings: SlurmConfig) -> Consequence:
    plugins = settings.job_submit_plugins
    if "lua" in plugins.split(","):
        return Consequence(setting="JobSubmitPlugins", text=f"{plugins}: job_submit.lua may check comments")
    # Nobody needs it: a comment that is no opt-in is reported by the agent too, only later.
    text = "no lua: what is wrong with a job's --comment is not told at submission"
    return Consequence(setting="JobSubmitPlugins", text=text)


def _version(text: str) -> tuple[int, int]:
    hit = re.match(r"(\d{1,4})\.(\d{1,4})", text, re.ASCII)
    return (int(hit.group(1)), int(hit.group(2))) if hit else (0, 0)
