"""The agent's own configuration: one TOML file, strictly decoded, every key also settable by environment variable.

`RECOVERY_AGENT_MODE=act` sets `mode`, `RECOVERY_AGENT_SLURM__BIN=/opt/slurm/bin` sets `[slurm] bin`; lists are given as
TOML. These are the last caps: no advisor can exceed them. Errors: `ConfigError` carries every problem at once.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from slurm_plugin.reach import Reach
from slurm_plugin.scope import ScopeConfig
from slurm_plugin.stop_file import STOP_FILE

ENVIRONMENT_PREFIX = "RECOVERY_AGENT_"
FILE_BYTES_MAX = 1024 * 1024
TICK_FILE = "/run/recovery-advisor-agent/tick.json"  # the watchdog has the same default
SOCKET_BYTES_MAX = 107  # what sun_path holds


class ConfigError(Exception):
    """`problems`: one line each, with the key path and where it was given."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSection:
    """`conf`: slurm.conf, "" for Slurm's own default. `bin`: folder of its tools, "" for PATH. `calls_per_second`: how
    many RPCs slurmctld may be sent, by all of the agent's calls of its tools together. `history_hours`: how far back
    accounting is asked, after a silence, for what ended in it; 0 never. `listing`: "columns" or "json" (docs/slurm.md).
    """

    conf: str = ""
    bin: str = ""
    timeout_seconds: float = 5.0
    calls_per_second: float = 60.0
    history_hours: int = 24
    listing: str = "columns"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapsSection:
    exclusions_per_job: int = 8
    requeues_per_minute: int = 30
    lease_seconds_max: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationSection:
    """What may be done to nodes. `mode`: "off", "dry_run", or "act". The smaller of the two bounds holds.

    `down_dead_nodes`: a node that has not responded for `down_after_seconds` may be set DOWN to let a job of ours go.
    """

    mode: str = "off"
    nodes_max: int = 2
    percent_max: float = 2.0
    down_dead_nodes: bool = False
    down_after_seconds: float = 30.0
    downs_per_hour: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeKillSection:
    """What a live attempt is sent before it is ended: names of signals, "" for none. `target`: "batch" or "steps"."""

    dump_signal: str = ""
    save_signal: str = ""
    target: str = "steps"
    wait_seconds_max: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TellSection:
    """What a job's user is told by the job itself. `comment`: a line in its Comment, beside what is there."""

    comment: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """`mode`: "observe" touches nothing, "act" applies autonomous advice to jobs in scope.

    `others`: more addresses of the same kind as the first, of other replicas of the advisor.
    """

    cluster: str
    socket: str
    tick_file: str
    hook_socket: str
    server: str = ""
    others: tuple[str, ...] = ()
    token_file: str = ""
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    isolated_file: str = ""
    mode: str = "observe"
    poll_seconds: float = 1.0
    stop_file: str = STOP_FILE
    slurm: SlurmSection = field(default_factory=SlurmSection)
    scope: ScopeConfig = field(default_factory=ScopeConfig)
    caps: CapsSection = field(default_factory=CapsSection)
    isolation: IsolationSection = field(default_factory=IsolationSection)
    before_kill: BeforeKillSection = field(default_factory=BeforeKillSection)
    tell: TellSection = field(default_factory=TellSection)

    @property
    def reach(self) -> Reach:
        """`server` over TLS when it is given, else the socket on this host."""
        return self._reach(self.server or self.socket)

    @property
    def reaches(self) -> tuple[Reach, ...]:
        """Every replica of the advisor that may be asked, the first one first."""
        return (self.reach, *(self._reach(address) for address in self.others))

    def _reach(self, address: str) -> Reach:
        if not self.server:
            return Reach(target=f"unix:{address}")
        return Reach(
            target=address,
            secured=True,
            token_file=self.token_file,
            ca_file=self.ca_file,
            certificate_file=self.certificate_file,
            key_file=self.key_file,
        )

    @property
    def isolated_path(self) -> Path:
        """`isolated_file`, beside the tick file when it is not given."""
        return Path(self.isolated_file) if self.isolated_file else Path(self.tick_file).with_name("isolated.json")


# key path → (kind, default); None: must be given. Kinds: text, path, seconds, count, flag, names, mode.
_KEYS: dict[str, tuple[str, object]] = {
    "cluster": ("text", None),
    "socket": ("sockets", "/run/recovery-advisor/advisor.sock"),
    "server": ("addresses", ""),
    "token_file": ("optional_path", ""),
    "ca_file": ("optional_path", ""),
    "certificate_file": ("optional_path", ""),
    "key_file": ("optional_path", ""),
    "mode": ("mode", "observe"),
    "tick_file": ("path", TICK_FILE),
    "hook_socket": ("socket", "/run/recovery-advisor-agent/hook.sock"),
    "isolated_file": ("optional_path", ""),  # beside the tick file
    "poll_seconds": ("seconds", 1.0),
    "stop_file": ("path", STOP_FILE),
    "slurm.conf": ("optional_path", ""),
    "slurm.bin": ("optional_path", ""),
    "slurm.timeout_seconds": ("seconds", 5.0),
    "slurm.calls_per_second": ("rate", 60.0),
    "slurm.history_hours": ("count", 24),
    "slurm.listing": ("listing", "columns"),
    "scope.opt_in": ("flag", True),
    "scope.partitions": ("names", ()),
    "scope.users": ("names", ()),
    "scope.accounts": ("names", ()),
    "caps.exclusions_per_job": ("count", 8),
    "caps.requeues_per_minute": ("count", 30),
    "caps.lease_seconds_max": ("seconds", 600.0),
    "isolation.mode": ("isolation_mode", "off"),
    "isolation.nodes_max": ("count", 2),
    "isolation.percent_max": ("percent", 2.0),
    "isolation.down_dead_nodes": ("flag", False),
    "isolation.down_after_seconds": ("seconds", 30.0),
    "isolation.downs_per_hour": ("count", 2),
    "before_kill.dump_signal": ("signal", ""),
    "before_kill.save_signal": ("signal", ""),
    "before_kill.target": ("target", "steps"),
    "before_kill.wait_seconds_max": ("seconds", 120.0),
    "tell.comment": ("flag", True),
}


ADDRESSES_MAX = 16
_SEVERAL = {"sockets": "socket", "addresses": "address"}  # one, or a list of them
_TEXTS = frozenset({"text", "socket", "path", "optional_path", "mode", "isolation_mode", "signal", "target", "listing"})
_CHOICES = {
    "mode": ("observe", "act"),
    "isolation_mode": ("off", "dry_run", "act"),
    "target": ("batch", "steps"),
    "listing": ("columns", "json"),
    # Those that a program may be written to save or dump on. None that stops or kills it at once.
    "signal": ("", "USR1", "USR2", "HUP", "INT", "TERM", "QUIT", "URG", "WINCH"),
}


def load(path: Path, environment: Mapping[str, str]) -> AgentConfig:
    """Read file and environment and check everything. Raises ConfigError with all problems."""
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError((f"{path}: {error.strerror}; --config names another",)) from None
    if len(raw) > FILE_BYTES_MAX:
        raise ConfigError((f"{path}: larger than {FILE_BYTES_MAX} bytes",))
    try:
        tree = tomllib.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError((f"{path}: {error}",)) from None
    return decode(tree, environment, file=str(path))


def decode(tree: Mapping[str, object], environment: Mapping[str, str], *, file: str = "") -> AgentConfig:
    """A parsed tree and an environment as a configuration. `file`: where the tree is from, "" for no file."""
    problems: list[str] = []
    given = _flatten(tree, problems)
    variables = _from_environment(environment, problems)
    given |= variables
    values: dict[str, object] = {}
    for key, (kind, default) in _KEYS.items():
        value = given.get(key, default)
        if value is None:
            problems.append(f"{key}: must be set")
            continue
        try:
            values[key] = _checked(kind, value)
        except ValueError as error:
            problems.append(f"{key}: {error}{_variable(key) if key in variables else ''}")
    problems.extend(_reach_problems(values))
    if problems:
        raise ConfigError(tuple(_located(problem, file) for problem in problems))
    return _build(values)


def _variable(key: str) -> str:
    return f" (environment variable {ENVIRONMENT_PREFIX}{key.replace('.', '__').upper()})"


def _located(problem: str, file: str) -> str:
    return problem if not file or "(environment variable " in problem else f"{problem} ({file})"


def _reach_problems(values: Mapping[str, object]) -> Iterator[str]:
    """From afar the agent must show who it is; on this host the kernel says so."""
    certificate, key = values.get("certificate_file"), values.get("key_file")
    if bool(certificate) != bool(key):
        yield "key_file: certificate_file and key_file go together"
    if values.get("server", ("",)) != ("",):
        if not certificate and not values.get("token_file"):
            yield "server: give token_file, or certificate_file and key_file, by which the advisor knows this agent"
        return
    for name in ("token_file", "ca_file", "certificate_file"):
        if values.get(name):
            yield f"{name}: has no meaning without server"


def _flatten(tree: Mapping[str, object], problems: list[str]) -> dict[str, object]:
    flat: dict[str, object] = {}
    sections = {key.split(".")[0] for key in _KEYS if "." in key}
    for key, value in tree.items():
        if key in sections and isinstance(value, dict):
            flat |= {f"{key}.{inner}": item for inner, item in value.items()}
        elif key in sections:
            problems.append(f"{key}: is a table, write [{key}]")
        else:
            flat[key] = value
    problems.extend(f"{key}: no such key; {_meant(key, sections)}" for key in flat if key not in _KEYS)
    return flat


def _meant(key: str, sections: set[str]) -> str:
    """The nearest key, or section, whatever section it was written in."""
    section, _, name = key.rpartition(".")
    names = {known.rpartition(".")[2]: known for known in _KEYS} | {known: known for known in _KEYS if "." not in known}
    if not section:
        names |= {known: f"[{known}]" for known in sections}
    beside = {known.rpartition(".")[2]: known for known in _KEYS if section and known.startswith(f"{section}.")}
    for among in (beside, names):
        near = get_close_matches(name, among, 1, cutoff=0.7)
        if near:
            return f"did you mean {among[near[0]]}?"
    return "deploy/agent.toml shows all that there are"


def _from_environment(environment: Mapping[str, str], problems: list[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, text in environment.items():
        if not name.startswith(ENVIRONMENT_PREFIX):
            continue
        key = name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
        if key not in _KEYS:
            sections = {known.split(".")[0] for known in _KEYS if "." in known}
            problems.append(f"{key}: no such key; {_meant(key, sections)} (environment variable {name})")
        elif _KEYS[key][0] in _TEXTS or (_KEYS[key][0] in _SEVERAL and not text.startswith("[")):
            found[key] = text
        else:
            try:
                found[key] = tomllib.loads(f"v = {text}")["v"]
            except (ValueError, RecursionError):
                problems.append(f"{key}: not a TOML value (environment variable {name})")
    return found


def _checked(kind: str, value: object) -> object:
    if kind in _SEVERAL:
        given = value if isinstance(value, list | tuple) else [value]
        if not 1 <= len(given) <= ADDRESSES_MAX:
            raise ValueError(f"give one address, or a list of 1 to {ADDRESSES_MAX}")
        checked = tuple(_checked_text(_SEVERAL[kind], item) for item in given)
        if len(checked) > 1 and len(set(checked) - {""}) < len(checked):
            raise ValueError("an address is empty or named twice")
        return checked
    if kind == "flag":
        if not isinstance(value, bool):
            raise ValueError("choose true or false")
        return value
    if kind == "names":
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) and item for item in value):
            raise ValueError("give a list of names")
        return tuple(value)
    if kind == "count":
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 100_000:
            raise ValueError("give a whole number from 0 to 100000")
        return value
    if kind == "percent":
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 100:
            raise ValueError("give a share from 0 to 100")
        return float(value)
    if kind == "seconds":
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0.05 <= value <= 86_400:
            raise ValueError("give seconds from 0.05 to 86400")
        return float(value)
    if kind == "rate":
        if not isinstance(value, int | float) or isinstance(value, bool) or not 1 <= value <= 10_000:
            raise ValueError("give a number per second from 1 to 10000")
        return float(value)
    return _checked_text(kind, value)


def _checked_text(kind: str, value: object) -> str:
    if not isinstance(value, str) or any(ord(char) < 32 for char in value):
        raise ValueError("give text without control characters")
    if kind in _CHOICES and value not in _CHOICES[kind]:
        raise ValueError(f"choose one of {', '.join(repr(choice) for choice in _CHOICES[kind])}")
    if kind == "text" and not 0 < len(value) <= 200:
        raise ValueError("give 1 to 200 characters")
    if kind in {"path", "socket"} and not value.startswith("/"):
        raise ValueError("give an absolute path")
    if kind == "optional_path" and value and not value.startswith("/"):
        raise ValueError("give an absolute path, or nothing")
    if kind == "address" and value and not re.fullmatch(r"([A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]+\]):\d{1,5}", value):
        raise ValueError("give host:port, or nothing for the socket on this host")
    if kind == "socket" and len(value.encode()) > SOCKET_BYTES_MAX:
        raise ValueError(f"longer than the {SOCKET_BYTES_MAX} bytes that a socket's path may have")
    return value


def _build(values: Mapping[str, object]) -> AgentConfig:
    def section(name: str) -> dict[str, object]:
        return {key.partition(".")[2]: value for key, value in values.items() if key.startswith(f"{name}.")}

    plain = {key: value for key, value in values.items() if "." not in key}
    places = {key: plain.pop(key) for key in ("socket", "server")}
    for key, given in places.items():
        plain[key] = given[0]  # type: ignore[index]  # checked: a tuple of one or more
    plain["others"] = (places["server"] if plain["server"] else places["socket"])[1:]  # type: ignore[index]
    parts = {
        "slurm": SlurmSection(**section("slurm")),  # type: ignore[arg-type]  # checked key by key above
        "scope": ScopeConfig(**section("scope")),  # type: ignore[arg-type]
        "caps": CapsSection(**section("caps")),  # type: ignore[arg-type]
        "isolation": IsolationSection(**section("isolation")),  # type: ignore[arg-type]
        "tell": TellSection(**section("tell")),  # type: ignore[arg-type]  # as below
        "before_kill": BeforeKillSection(**section("before_kill")),  # type: ignore[arg-type]
    }
    return AgentConfig(**plain, **parts)  # type: ignore[arg-type]
