"""`advisor-agent check`: what `run`, started by this user with this configuration, will meet.

One finding per line. A bad one states the problem and, where there is one, the way out; exit status 1 is for what
would keep the agent from its work, a warning is for what makes it slower or leaves something unguarded.
"""

import grp
import os
import pwd
import stat
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import grpc

from advisor.v1 import agent_pb2, agent_pb2_grpc
from slurm_plugin import consequences, stop_file, watchdog_alive
from slurm_plugin.applier import limit_seconds
from slurm_plugin.backlog import restartable
from slurm_plugin.clock import SystemClock
from slurm_plugin.config import TICK_FILE, AgentConfig
from slurm_plugin.reach import ReachError
from slurm_plugin.scope import OPT_IN
from slurm_plugin.squeue import Slurm, SlurmConfig, SlurmError

ANSWER_SECONDS = 5.0
WATCHDOG_FILE_BYTES_MAX = 1024 * 1024


class Verdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    BAD = "BAD"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    verdict: Verdict
    text: str

    def __str__(self) -> str:
        return f"{self.verdict:<4} {self.text}"


def _ok(text: str) -> Finding:
    return Finding(verdict=Verdict.OK, text=text)


def _warn(text: str) -> Finding:
    return Finding(verdict=Verdict.WARN, text=text)


def _bad(text: str) -> Finding:
    return Finding(verdict=Verdict.BAD, text=text)


def examine(config: AgentConfig, slurm: Slurm, watchdog_file: Path) -> Iterator[Finding]:
    """Everything, each on its own: one thing that is wrong does not hide the others. Changes nothing."""
    settings: SlurmConfig | None = None
    try:
        settings = slurm.config()
        yield _ok(f"Slurm {settings.version}, cluster {settings.cluster}")
    except SlurmError as error:
        yield _bad(f"scontrol: {error}")
    for name, look in (("squeue", slurm.jobs), ("squeue --json", slurm.details), ("sinfo", slurm.nodes)):
        try:
            yield _ok(f"{name}: {len(look())} records")
        except SlurmError as error:
            yield _bad(f"{name}: {error}")
    if settings is not None:
        yield from _settings(config, settings, slurm)
    yield from _writable(config)
    yield from _permitted(config)
    yield from _advisor(config)
    yield from _watchdog(config, watchdog_file)
    yield from _reach(config)


def _settings(config: AgentConfig, settings: SlurmConfig, slurm: Slurm) -> Iterator[Finding]:
    if settings.cluster and settings.cluster != config.cluster:
        yield _bad(f'cluster: configured as "{config.cluster}", but Slurm\'s ClusterName is "{settings.cluster}"')
    delay = settings.requeue_delay_seconds
    for found in consequences.of(settings):
        text = f"{found.setting}: {found.text}"
        yield _warn(f"{text}: {found.to_do}") if found.to_do else _ok(text)
    limit = limit_seconds(delay)
    if limit < 1.0:
        yield _bad(f"an action would have only {limit:g} s before the requeued job may start: raise cred_expire")
    else:
        yield _ok(
            f"an action that takes longer than {limit:g} s is ended: its job may start {delay:g} s after its requeue"
        )
    if 0 < settings.min_job_age_seconds <= config.poll_seconds * 5:
        yield _bad(f"MinJobAge is too short for a look every {config.poll_seconds:g} s: raise it or lower poll_seconds")
    yield _event(config, settings)
    yield _rights(config, settings, slurm)
    yield from _hook(config, settings.epilog_slurmctld)


def _event(config: AgentConfig, settings: SlurmConfig) -> Finding:
    """How many jobs of one fabric event the cap lets be restarted in time."""
    cap, memory = config.caps.requeues_per_minute, settings.min_job_age_seconds
    if not memory:
        return _ok(f"caps.requeues_per_minute: {cap}; Slurm forgets no job meanwhile")
    most = restartable(per_minute=cap, memory_seconds=memory)
    return _ok(
        f"caps.requeues_per_minute: {cap}: of jobs that fail together {most} are restarted within MinJobAge, {memory}"
        " s, the largest first; where more run at once, raise the cap: the others are lost"
    )


def _permitted(config: AgentConfig) -> Iterator[Finding]:
    """What this agent may do to nodes, and whether it may do anything."""
    stopped = stop_file.engaged(config.stop_file)
    yield _warn(f"stop file: {stopped}: nothing is done") if stopped else _ok(f"stop file: no {config.stop_file}")
    nodes = config.isolation
    share = f", at most {nodes.nodes_max} nodes and {nodes.percent_max:g} % at once"
    yield _ok(f"isolation of nodes: {nodes.mode}{'' if nodes.mode == 'off' else share}")
    if nodes.mode == "act" and config.mode != "act":
        yield _warn('isolation of nodes: "act", but the agent\'s own mode is "observe": no node is drained')
    if nodes.down_dead_nodes:
        yield _ok(f"dead nodes: may be set DOWN after {nodes.down_after_seconds:g} s, {nodes.downs_per_hour} an hour")


def _rights(config: AgentConfig, settings: SlurmConfig, slurm: Slurm) -> Finding:
    if settings.slurm_user_id is not None and os.geteuid() == settings.slurm_user_id:
        return _ok(f"this user, {_own_name()}, is SlurmUser; mode is {config.mode}")
    if os.geteuid() == 0:
        return _warn("this is root: the agent needs no more than SlurmUser; run it, and this check, as SlurmUser")
    text = f"this user, {_own_name()}, is neither SlurmUser nor root"
    if config.mode == "observe":
        return _ok(f"{text}; enough for mode observe")
    if _admin_level(slurm) == "Administrator":
        return _ok(f"{text}, but has AdminLevel=Administrator; mode is {config.mode}")
    return _bad(f"{text}: Slurm refuses its updates unless it has AdminLevel=Administrator in accounting")


def _admin_level(slurm: Slurm) -> str:
    """What accounting says of this user; "" where there is no accounting, or no answer."""
    try:
        out = slurm.tool("sacctmgr", "-n", "-P", "show", "user", _own_name(), "format=AdminLevel")
    except SlurmError:
        return ""
    return out.stdout.decode("ascii", "replace").strip() if out.returncode == 0 else ""


def _hook(config: AgentConfig, hook: str) -> Iterator[Finding]:
    """The hook as slurmctld would run it. It may be a script of the site's that calls ours."""
    if not hook or hook == "(null)":
        return  # said already
    path = Path(hook)
    if not path.exists():
        yield _bad(f"EpilogSlurmctld: there is no {hook} here: ends of jobs are noticed by polling only")
        return
    if not os.access(path, os.X_OK):
        yield _bad(f"EpilogSlurmctld: {hook} is not executable by {_own_name()} ({_owner_and_mode(path)})")
        return
    yield _ok(f"EpilogSlurmctld: {hook} can be run by {_own_name()}")
    sends_to = _sends_to(path)
    if sends_to and sends_to != config.hook_socket:
        yield _bad(
            f"EpilogSlurmctld: {hook} sends to {sends_to}, but hook_socket is {config.hook_socket}: "
            "advisor slurm install-hooks --apply makes them agree"
        )


def _sends_to(hook: Path) -> str:
    """Where the hook sends its notices; "" when that is not told beside it."""
    for beside in (hook.with_name("notify.socket"), hook.with_name(hook.name + ".socket")):
        try:
            return beside.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            continue
    return ""


def _writable(config: AgentConfig) -> Iterator[Finding]:
    for key, given in (("tick_file", config.tick_file), ("hook_socket", config.hook_socket)):
        folder = Path(given).parent
        if not folder.is_dir():
            yield _bad(f"{key}: there is no folder {folder}: make it, writable by {_own_name()}")
        elif not os.access(folder, os.W_OK | os.X_OK):
            yield _bad(f"{key}: {folder} is not writable by {_own_name()} ({_owner_and_mode(folder)})")
        else:
            yield _ok(f"{key}: {folder} is writable by {_own_name()}")
    lock = Path(config.hook_socket + ".lock")
    if lock.exists() and not os.access(lock, os.R_OK | os.W_OK):
        yield _bad(f"hook_socket: {lock} belongs to another user ({_owner_and_mode(lock)}): stop that agent, remove it")


def _advisor(config: AgentConfig) -> Iterator[Finding]:
    """Whether each advisor takes this user for an agent. Asked with a session that cannot exist: nothing changes."""
    key = "server" if config.server else "socket"
    for address in (config.server or config.socket, *config.others):
        yield from _one_advisor(replace(config, **{key: address}))  # type: ignore[arg-type]  # both are texts


def _one_advisor(config: AgentConfig) -> Iterator[Finding]:
    if config.server:
        yield from _asked(config, "server", config.server, "this agent's credentials")
        return
    try:
        there = stat.S_ISSOCK(Path(config.socket).stat().st_mode)
    except PermissionError:
        yield _bad(f"socket: {config.socket} cannot be reached by {_own_name()}: its folder is closed to this user")
        return
    except OSError:
        there = False
    if not there:
        yield _bad(f"socket: {config.socket} is not there: start the advisor, or correct socket= here or there")
        return
    open_to = _open_to_others(Path(config.socket))
    if open_to is not None:
        yield _warn(
            f"socket: others may put a socket of theirs at {config.socket}, since {open_to} is writable by them "
            f"({_owner_and_mode(open_to)}): they could give this agent advice, within its own caps"
        )
    yield from _asked(config, "socket", config.socket, _own_name())


def _open_to_others(socket: Path) -> Path | None:
    """The folder in which others than its owner may put, or replace, what leads to the socket."""
    folders = [folder for folder in socket.absolute().parents if folder.is_dir()]
    for place, folder in enumerate(folders):
        mode = folder.stat().st_mode
        # With the sticky bit a folder that is there stays its owner's; a socket that is gone for a moment does not.
        if mode & (stat.S_IWGRP | stat.S_IWOTH) and (place == 0 or not mode & stat.S_ISVTX):
            return folder
    return None


def _asked(config: AgentConfig, key: str, place: str, who: str) -> Iterator[Finding]:
    request = agent_pb2.HeartbeatRequest(cluster=config.cluster, session="check", mode=agent_pb2.AGENT_MODE_OBSERVE)
    try:
        with config.reach.blocking_channel() as channel:
            agent_pb2_grpc.AgentServiceStub(channel).Heartbeat(request, timeout=ANSWER_SECONDS)
    except ReachError as error:
        yield _bad(f"{key}: {error}")
        return
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.NOT_FOUND:
            yield _bad(f"{key}: {place}: {error.details() or error.code().name}")
            return
    yield _ok(f"{key}: the advisor at {place} takes {who} for an agent")


def _watchdog(config: AgentConfig, file: Path) -> Iterator[Finding]:
    try:
        with file.open("rb") as opened:
            tree = tomllib.loads(opened.read(WATCHDOG_FILE_BYTES_MAX).decode("utf-8"))
    except FileNotFoundError:
        if config.mode == "act":
            yield _warn(f"watchdog: there is no {file} here: mode act needs a watchdog in mode act (--watchdog-config)")
        return
    except (OSError, ValueError, RecursionError) as error:
        yield _bad(f"watchdog: {file} cannot be read: {error}")
        return
    mode, tick_file = tree.get("mode", "observe"), tree.get("tick_file", TICK_FILE)
    if tick_file != config.tick_file:
        yield _bad(f"watchdog: {file} reads {tick_file}, but the agent writes {config.tick_file}")
    if config.mode == "act" and mode != "act":
        yield _warn(f'watchdog: its mode is "{mode}" while the agent acts: nothing gives back what it leaves behind')
    seen = watchdog_alive.look(
        Path(str(tree.get("alive_file", watchdog_alive.ALIVE_FILE))), boot_now=SystemClock().boot()
    )
    if not seen.alive:
        yield _warn(f'watchdog: {seen.said}: {seen.to_do} (mode "{mode}" in {file})')
    elif seen.mode != mode:
        yield _warn(f'watchdog: it runs in mode "{seen.mode}", but {file} says "{mode}": restart it')
    else:
        yield _ok(f"watchdog: {seen.said}, as {file} says")


def _reach(config: AgentConfig) -> Iterator[Finding]:
    scope = config.scope
    chosen = [
        f"{what} {', '.join(names)}"
        for what, names in (("partitions", scope.partitions), ("users", scope.users), ("accounts", scope.accounts))
        if names
    ]
    if scope.opt_in:
        chosen.insert(0, f"jobs with --comment '{OPT_IN}'")
    if chosen:
        yield _ok(f"scope: {'; '.join(chosen)}")
    else:
        yield _warn("scope: opt_in is off and nothing is selected: no job can ever be acted on")


def _own_name() -> str:
    return _name_of(os.geteuid())


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _owner_and_mode(path: Path) -> str:
    seen = path.stat()
    try:
        group = grp.getgrgid(seen.st_gid).gr_name
    except KeyError:
        group = str(seen.st_gid)
    return f"{_name_of(seen.st_uid)}:{group} {stat.S_IMODE(seen.st_mode):04o}"
