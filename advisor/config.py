"""Configuration: one TOML file, strictly decoded, every key also settable by environment variable.

`ADVISOR_SERVICE__SOCKET=/run/x.sock` sets `[service] socket`; `ADVISOR_KERNEL__0__PATH=…` the first `[[kernel]]`;
a list or table may be given as TOML (`ADVISOR_SERVICE__AGENT_USERS='["slurm"]'`). Without any file the service
listens on a Unix socket only and keeps its database in its data folder.

Errors: `ConfigError` carries every problem found, each with its key path and where the value came from.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from advisor.config_values import SHAPES, OptionalPath, Section, absolute, as_tuple
from advisor.core.leases import LEASE_SECONDS_MIN
from advisor.core.people import ShadowRules
from advisor.core.words import Category, Mode
from advisor.service_config import ServiceSection, problems_of
from connectors.kernel.stores import proof_of
from connectors.logs.more_files import check_pattern

ENVIRONMENT_PREFIX = "ADVISOR_"
SYSTEM_FILE = Path("/etc/recovery-advisor/advisor.toml")
FILE_BYTES_MAX = 1024 * 1024
Tree: TypeAlias = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    key: str
    message: str
    origin: str

    def __str__(self) -> str:
        return f"{self.key or 'file'}: {self.message} ({self.origin})"


class ConfigError(Exception):
    """The configuration cannot be used; `problems` is everything that is wrong with it."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        self.problems = problems
        super().__init__("; ".join(str(problem) for problem in problems))


def _paths(value: object) -> object:
    return tuple(absolute(item) for item in value) if isinstance(value, list) else value


def _mode(value: object) -> object:
    if not isinstance(value, str) or value not in list(Mode):
        raise ValueError(f"choose one of {', '.join(Mode)}")
    return Mode(value)


def _categories(value: object) -> object:
    if not isinstance(value, list):
        return value
    wrong = [item for item in value if item not in list(Category) or item in _NOTHING_TO_EARN]
    if wrong:
        raise ValueError(f"{wrong[0]!r} is no category that something is advised about")
    return tuple(Category(item) for item in value)


def _per_node(value: object) -> object:
    if not isinstance(value, str) or not value.startswith("/") or "%n" not in value:
        raise ValueError("give an absolute path that holds %n, the node's name")
    if any(ord(character) < 32 for character in value):
        raise ValueError("a path may not hold control characters")
    return value


_NOTHING_TO_EARN = (Category.NONE, Category.USER_CANCEL)
SOURCES = ("logs", "kernel", "metrics", "attribution")  # the sections that are sources; their names tell them apart

SourceName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
LabelName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,99}$")]
MailAddress = Annotated[str, Field(pattern=r"^([^\s<>,;@\x00-\x1f]{1,64}@[A-Za-z0-9.-]{1,253})?$")]
OptionalLabel = Annotated[str, Field(pattern=r"^([A-Za-z_][A-Za-z0-9_.-]{0,99})?$")]


class StoreSection(Section):
    """`dsn_file` names a file that holds the DSN; empty: our own Postgres in the data folder."""

    dsn_file: OptionalPath = None
    postgres_user: str = ""


class TickSection(Section):
    interval_seconds: Seconds = 1.0
    read_bytes_max: int = Field(default=1024 * 1024, ge=65_536)  # per attempt, source and read: one scan is not stopped
    attempts_max: int = Field(default=5_000, ge=1)  # watched at once


class ReplicasSection(Section):
    """Other processes like this one over the same database."""

    lease_seconds: float = Field(default=10.0, ge=LEASE_SECONDS_MIN, le=300, allow_inf_nan=False)


class _ServerSection(Section):
    """A server that is asked over HTTP: where it is, and what it must be shown."""

    url: Annotated[str, Field(pattern=r"^(https?://[^\s?#]+)?$", max_length=2_000)] = ""
    user: Annotated[str, Field(pattern=r"^[^:\x00-\x1f]{0,200}$")] = ""
    password_file: OptionalPath = None
    token_file: OptionalPath = None
    ca_file: OptionalPath = None
    certificate_file: OptionalPath = None
    key_file: OptionalPath = None


class StoreLimitsSection(_ServerSection):
    """A log store, and how it is asked."""

    selector: Annotated[str, Field(max_length=2_000)] = ""
    tenant: Annotated[str, Field(pattern=r"^[A-Za-z0-9!._*'():-]{0,150}$")] = ""
    questions_per_second: float = Field(default=5.0, gt=0, le=5.0, allow_inf_nan=False)
    timeout_seconds: float = Field(default=30.0, ge=1, le=300, allow_inf_nan=False)
    overlap_seconds: float = Field(default=120.0, ge=10, le=3600, allow_inf_nan=False)


class LogsSection(StoreLimitsSection):
    """Job output. Its lines are never trusted. Keys of servers: see docs/configuration.md."""

    kind: Literal["files", "loki", "victorialogs"] = "files"
    name: SourceName = "job-output"
    extra_files: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = ()
    root_reader: OptionalPath = None
    job_label: LabelName = "job_id"
    job_label_indexed: bool = True
    node_label: OptionalLabel = ""
    rank_label: OptionalLabel = ""
    sequence_label: OptionalLabel = ""
    push_down: bool = True
    settle_seconds: float = Field(default=10.0, ge=0, le=120, allow_inf_nan=False)


class KernelSection(StoreLimitsSection):
    """Kernel logs, trusted: a file per node, `%n` for the node's name, or lines of a store whose label `transport`
    proves that the kernel said them. Never by a syslog tag.
    """

    kind: Literal["files", "loki", "victorialogs"] = "files"
    name: SourceName = "kernel"
    path: Annotated[str, BeforeValidator(_per_node)] = ""
    transport: Annotated[str, Field(pattern=r"^([A-Za-z_][A-Za-z0-9_.-]{0,99}=[^\x00-\x1f]{1,200})?$")] = ""
    node_label: OptionalLabel = ""


class MetricsSection(_ServerSection):
    """Measurements of GPUs and nodes: trusted, so that only root may feed them. See docs/sources.md."""

    kind: Literal["prometheus", "dcgm"] = "prometheus"
    name: SourceName = "metrics"
    url: Annotated[str, Field(pattern=r"^(https?://[^\s?#]+( https?://[^\s?#]+)*)?$", max_length=2_000)] = ""
    selector: Annotated[str, Field(max_length=2_000)] = ""
    tenant: Annotated[str, Field(pattern=r"^[A-Za-z0-9!._*'():-]{0,150}$")] = ""
    node_label: OptionalLabel = ""
    interval_seconds: float = Field(default=15.0, ge=1, le=300, allow_inf_nan=False)
    collect_seconds: float = Field(default=30.0, ge=0, le=600, allow_inf_nan=False)
    questions_per_second: float = Field(default=5.0, gt=0, le=5.0, allow_inf_nan=False)
    timeout_seconds: float = Field(default=20.0, ge=1, le=300, allow_inf_nan=False)


class AttributionSection(_ServerSection):
    """An attribution service of others: asked about failed attempts, and one more opinion. See docs/sources.md."""

    kind: Literal["nvrx"] = "nvrx"
    name: SourceName = "nvrx"
    budget_seconds: float = Field(default=60.0, ge=1, le=600, allow_inf_nan=False)
    timeout_seconds: float = Field(default=10.0, ge=1, le=60, allow_inf_nan=False)


class NotifySection(Section):
    """A channel to people; keys by kind in docs/sources.md. `link`: address of a decision, `{decision}` for its id."""

    kind: Literal["slack", "webhook", "email"]
    name: SourceName
    actions: Annotated[tuple[Literal["restart", "stop", "none"], ...], BeforeValidator(as_tuple)] = ("restart", "stop")
    messages_per_minute: int = Field(default=10, ge=1, le=600)
    link: Annotated[str, Field(pattern=r"^(https?://[^\s]+)?$", max_length=1_000)] = ""
    timeout_seconds: float = Field(default=10.0, ge=1, le=25, allow_inf_nan=False)
    ca_file: OptionalPath = None
    url_file: OptionalPath = None
    token_file: OptionalPath = None
    host: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{0,253}$")] = ""
    port: int = Field(default=587, ge=1, le=65535)
    tls: Literal["starttls", "tls", "none"] = "starttls"
    sender: MailAddress = ""
    recipients: Annotated[tuple[MailAddress, ...], BeforeValidator(as_tuple)] = ()
    user: Annotated[str, Field(pattern=r"^[^\x00-\x1f]{0,200}$")] = ""
    password_file: OptionalPath = None


class ShadowSection(Section):
    """What people have time for, and whose tools drain nodes, for the shadow report."""

    window_hours: float = Field(default=24.0, ge=0.01, le=24 * 30, allow_inf_nan=False)
    tool_reasons: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = ShadowRules().tool_reasons


class AutonomySection(Section):
    """Categories that may become autonomous by themselves, when people did often enough what was advised."""

    enabled: bool = False
    categories: Annotated[tuple[Category, ...], BeforeValidator(_categories)] = ()
    agreement_min: float = Field(default=0.85, gt=0, lt=1, allow_inf_nan=False)
    count_min: int = Field(default=30, ge=5)
    fall_below: float = Field(default=0.75, gt=0, lt=1, allow_inf_nan=False)
    with_stop: bool = False
    window_days: float = Field(default=90.0, ge=1, le=365, allow_inf_nan=False)
    rest_days: float = Field(default=7.0, ge=0, le=365, allow_inf_nan=False)
    interval_seconds: float = Field(default=3600.0, ge=1, le=86_400, allow_inf_nan=False)


class SealSection(Section):
    """The chain over append-only rows. Without a key it is not signed."""

    key_file: OptionalPath = None
    interval_seconds: float = Field(default=30.0, ge=0.1, le=3600, allow_inf_nan=False)


class RetentionSection(Section):
    """Whole months of history before the current one that are kept; 0: all."""

    months: int = Field(default=0, ge=0, le=1200)


class TracesSection(Section):
    """OpenTelemetry traces of recoveries, to a collector that takes OTLP over gRPC; "" for none."""

    endpoint: Annotated[str, Field(pattern=r"^([A-Za-z0-9_.\[\]:-]{1,255}:[0-9]{1,5})?$")] = ""
    insecure: bool = False  # without TLS
    ca_file: OptionalPath = None


class SlurmSection(Section):
    """How commands on this host ask Slurm; the agent has its own file. `pyslurm`: a Python that has the right one."""

    conf: OptionalPath = None
    bin: OptionalPath = None
    timeout_seconds: Seconds = 10.0
    pyslurm: OptionalPath = None


class LogSection(Section):
    """Our own log, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "console", "json"] = "auto"


class Config(Section):
    service: ServiceSection = Field(default_factory=ServiceSection)
    store: StoreSection = Field(default_factory=StoreSection)
    tick: TickSection = Field(default_factory=TickSection)
    replicas: ReplicasSection = Field(default_factory=ReplicasSection)
    logs: Annotated[tuple[LogsSection, ...], BeforeValidator(as_tuple)] = (LogsSection(),)
    kernel: Annotated[tuple[KernelSection, ...], BeforeValidator(as_tuple)] = ()
    metrics: Annotated[tuple[MetricsSection, ...], BeforeValidator(as_tuple)] = ()
    attribution: Annotated[tuple[AttributionSection, ...], BeforeValidator(as_tuple)] = ()
    notify: Annotated[tuple[NotifySection, ...], BeforeValidator(as_tuple)] = ()
    policy_file: OptionalPath = None
    rules_files: Annotated[tuple[Path, ...], BeforeValidator(_paths)] = ()
    job_rules_file: OptionalPath = None
    default_mode: Annotated[Mode, BeforeValidator(_mode)] = Mode.MONITOR
    shadow: ShadowSection = Field(default_factory=ShadowSection)
    autonomy: AutonomySection = Field(default_factory=AutonomySection)
    seal: SealSection = Field(default_factory=SealSection)
    retention: RetentionSection = Field(default_factory=RetentionSection)
    traces: TracesSection = Field(default_factory=TracesSection)
    slurm: SlurmSection = Field(default_factory=SlurmSection)
    log: LogSection = Field(default_factory=LogSection)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A configuration and where it came from. `origins`: key path → "file" or the variable's name."""

    config: Config
    path: Path | None
    origins: Mapping[str, str] = field(default_factory=dict)


def find_file(given: Path | None, environment: Mapping[str, str]) -> Path | None:
    """The file to read: the one given, ADVISOR_CONFIG, or the system's when it exists."""
    if given is not None:
        return given
    named = environment.get("ADVISOR_CONFIG", "")
    if named:
        return Path(named)
    return SYSTEM_FILE if SYSTEM_FILE.exists() else None


def load(path: Path | None, environment: Mapping[str, str]) -> Loaded:
    """Read file and environment, check everything, raise one `ConfigError` with all problems."""
    problems: list[Problem] = []
    tree = _read(path, problems) if path is not None else {}
    origins = dict.fromkeys(_leaves(tree), "file")
    _override(tree, environment, origins, problems)
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        problems.extend(_located(error, path, origins))
        raise ConfigError(tuple(problems)) from None
    problems.extend(_cross_checks(config, path, origins))
    if problems:
        raise ConfigError(tuple(problems))
    return Loaded(config=config, path=path, origins=origins)


def _read(path: Path, problems: list[Problem]) -> Tree:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            problems.append(Problem(key="", message=f"larger than {FILE_BYTES_MAX} bytes", origin=str(path)))
            return {}
        tree = tomllib.loads(data.decode("utf-8"))
        _leaves(tree)  # what is nested too deeply shows here, and not halfway through
    except OSError as error:
        problems.append(Problem(key="", message=f"cannot be read: {error.strerror}", origin=str(path)))
    except RecursionError:
        problems.append(Problem(key="", message="is nested too deeply", origin=str(path)))
    except ValueError as error:  # not UTF-8, not TOML, or a number of thousands of digits
        problems.append(Problem(key="", message=f"is not TOML: {error}", origin=str(path)))
    else:
        return tree
    return {}


def _leaves(tree: object, prefix: str = "") -> list[str]:
    if isinstance(tree, dict):
        return [leaf for key, value in tree.items() for leaf in _leaves(value, f"{prefix}.{key}" if prefix else key)]
    if isinstance(tree, list) and tree and all(isinstance(item, dict) for item in tree):
        return [leaf for at, value in enumerate(tree) for leaf in _leaves(value, f"{prefix}[{at}]")]
    return [prefix]


def _override(tree: Tree, environment: Mapping[str, str], origins: dict[str, str], problems: list[Problem]) -> None:
    """Apply variables. A name with `__` that fits no key is an error; one without may belong to others."""
    tops = {f"{ENVIRONMENT_PREFIX}{name.upper()}" for name in Config.model_fields}
    for variable in sorted(environment):
        if not variable.startswith(ENVIRONMENT_PREFIX) or ("__" not in variable and variable not in tops):
            continue
        parts = variable[len(ENVIRONMENT_PREFIX) :].lower().split("__")
        key = _key_path(parts)
        problem = _assign(tree, parts, _decode(parts, environment[variable]))
        if problem:
            problems.append(Problem(key=key, message=problem, origin=variable))
        else:
            for leaf in [known for known in origins if known.startswith((f"{key}.", f"{key}["))]:
                del origins[leaf]
            origins[key] = variable


def _key_path(parts: list[str]) -> str:
    path = ""
    for part in parts:
        path += f"[{part}]" if part.isdigit() else f".{part}" if path else part
    return path


def _decode(parts: list[str], text: str) -> object:
    """Numbers, lists and tables are written as TOML; text keys take the value as it is."""
    if _is_text(parts):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"] if "\n" not in text else text
    except (ValueError, RecursionError):
        return text


def _is_text(parts: list[str]) -> bool:
    model: type[BaseModel] | None = Config
    names = [part for part in parts if not part.isdigit()]
    for name in names[:-1]:
        declared = model.model_fields.get(name) if model is not None else None
        model = _section_in(declared.annotation) if declared is not None else None
    declared = model.model_fields.get(names[-1]) if names and model is not None else None
    if declared is None or _section_in(declared.annotation) is not None:
        return False
    return not isinstance(declared.default, (int, float, tuple))


def _section_in(annotation: object) -> type[BaseModel] | None:
    """The section that a key holds, itself or in a list; None when it holds plain values."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for item in get_args(annotation) if (found := _section_in(item)) is not None), None)


def _assign(tree: Tree, parts: list[str], value: object) -> str:
    """Set one key in place; returns what is wrong with the path, "" when nothing is."""
    here: object = tree
    for at, part in enumerate(parts):
        last = at == len(parts) - 1
        if isinstance(here, list):
            if not part.isdigit() or int(part) > len(here) or int(part) > 99:
                return f"has {len(here)} entries: {part!r} is neither one of them nor the next"
            if int(part) == len(here):
                here.append(value if last else {})
            elif last:
                here[int(part)] = value
            here = here[int(part)]
        elif isinstance(here, dict):
            if last:
                here[part] = value
            else:
                here = here.setdefault(part, [] if parts[at + 1].isdigit() else {})
        else:
            return "lies below a value that is not a table"
    return ""


def _located(error: ValidationError, path: Path | None, origins: Mapping[str, str]) -> list[Problem]:
    found = []
    for item in error.errors(include_url=False):
        key = _key_path([str(part) for part in item["loc"]])
        message = _plain(item["type"], item["msg"], item.get("ctx", {}))
        if item["type"] == "extra_forbidden":
            message += _meant([str(part) for part in item["loc"] if isinstance(part, str)])
        found.append(Problem(key=key, message=message, origin=_origin(key, path, origins)))
    return found


def _meant(names: list[str]) -> str:
    """The nearest key beside one that is unknown, behind what is said of it; "" where none is near."""
    section: type[BaseModel] | None = Config
    for name in names[:-1]:
        declared = section.model_fields.get(name) if section is not None else None
        section = _section_in(declared.annotation) if declared is not None else None
    near = get_close_matches(names[-1], section.model_fields, 1, cutoff=0.7) if section is not None else []
    return f": did you mean {near[0]}?" if near else ""


# What pydantic found → what to write instead.
_PLAIN = {
    "extra_forbidden": "unknown key",
    "missing": "must be given",
    "float_type": "write a number",
    "float_parsing": "write a number",
    "finite_number": "write a finite number",
    "int_type": "write a whole number",
    "int_parsing": "write a whole number",
    "int_from_float": "write a whole number",
    "bool_type": "write true or false",
    "bool_parsing": "write true or false",
    "string_type": 'write text in quotes: "…"',
    "path_type": 'write a path in quotes: "/…"',
    "is_instance_of": 'write text in quotes: "…"',
    "tuple_type": 'write a list: ["…"]',
    "list_type": 'write a list: ["…"]',
    "dict_type": "write a table",
    "model_type": "write a table",
    "model_attributes_type": "write a table",
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "literal_error": "choose one of {expected}",
}


def _plain(kind: str, message: str, context: Mapping[str, object]) -> str:
    """Words for whoever writes the file, who does not know what checks it."""
    if kind == "string_pattern_mismatch":
        return f"write {SHAPES[str(context['pattern'])]}"
    if kind in _PLAIN:
        return _PLAIN[kind].format(**context)
    return message.removeprefix("Value error, ")


def _origin(key: str, path: Path | None, origins: Mapping[str, str]) -> str:
    for known, source in origins.items():
        if source != "file" and (known == key or key.startswith((f"{known}.", f"{known}["))):
            return source
    return str(path) if path is not None else "default"


def _cross_checks(config: Config, path: Path | None, origins: Mapping[str, str]) -> list[Problem]:
    """What no single key can show to be wrong."""
    found: list[tuple[str, str]] = []
    found.extend((f"service.{key}", message) for key, message in problems_of(config.service))
    named = [(section, source.name) for section in SOURCES for source in getattr(config, section)]
    names = [name for _, name in named]
    found.extend(
        (next(section for section, other in named if other == name), f"two sources are named {name!r}")
        for name in sorted({name for name in names if names.count(name) > 1})
    )
    for at, source in enumerate(config.logs):
        found.extend((f"logs[{at}].{key}", message) for key, message in _log_server_problems(source))
    for at, kernel in enumerate(config.kernel):
        found.extend((f"kernel[{at}].{key}", message) for key, message in _kernel_problems(kernel))
    for at, metrics in enumerate(config.metrics):
        found.extend((f"metrics[{at}].{key}", message) for key, message in _metrics_problems(metrics))
    for at, opinion in enumerate(config.attribution):
        found.extend((f"attribution[{at}].{key}", message) for key, message in _attribution_problems(opinion))
    for at, channel in enumerate(config.notify):
        found.extend((f"notify[{at}].{key}", message) for key, message in _notify_problems(channel))
        if channel.name in {other.name for other in config.notify[:at]}:
            found.append((f"notify[{at}].name", f"two channels are named {channel.name!r}"))
    found.extend((f"autonomy.{key}", message) for key, message in _autonomy_problems(config))
    if config.store.dsn_file is not None and config.store.postgres_user:
        found.append(("store.postgres_user", "has no meaning with dsn_file: it is for our own Postgres"))
    return [Problem(key=key, message=message, origin=_origin(key, path, origins)) for key, message in found]


def _autonomy_problems(config: Config) -> list[tuple[str, str]]:
    earning, found = config.autonomy, []
    if earning.fall_below >= earning.agreement_min:
        found.append(("fall_below", "must be less than agreement_min: otherwise a category flaps"))
    if earning.enabled and not earning.categories:
        found.append(("categories", "name those that may become autonomous by themselves"))
    if earning.enabled and config.default_mode is Mode.AUTONOMOUS:
        found.append(("enabled", "has no meaning with default_mode autonomous: nothing is left to be earned"))
    return found


_FOR_FILES = ("extra_files", "root_reader")
_FOR_KERNEL_FILES = {"kind", "name", "path"}
_VICTORIA_TENANT = re.compile(r"\d{1,10}:\d{1,10}")


def _log_server_problems(source: LogsSection) -> list[tuple[str, str]]:
    """Keys of a log source that do not go with each other."""
    given = source.model_fields_set
    if source.kind == "files":
        ours = {"kind", "name", *_FOR_FILES}
        found = [(key, "has no meaning for files: it is for a server") for key in sorted(given - ours)]
        wrong = [(pattern, check_pattern(pattern)) for pattern in source.extra_files]
        return found + [("extra_files", f"{pattern!r}: {text}") for pattern, text in wrong if text]
    found = [(key, f"has no meaning for {source.kind}: it is for files") for key in _FOR_FILES if key in given]
    if not source.url:
        found.append(("url", f"must be given for {source.kind}: http://host:port"))
    if source.kind == "loki" and not re.fullmatch(r"\{[^{}]+\}", source.selector.strip()):
        found.append(("selector", "write the streams with job output in braces: '{source=\"slurm\"}'"))
    if source.kind == "victorialogs" and "job_label_indexed" in given:
        found.append(("job_label_indexed", "has no meaning for victorialogs: all fields can be asked for"))
    if source.kind == "victorialogs" and source.tenant and not _VICTORIA_TENANT.fullmatch(source.tenant):
        found.append(("tenant", "write AccountID:ProjectID, both numbers"))
    return [*found, *_access_problems(source)]


def _kernel_problems(source: KernelSection) -> list[tuple[str, str]]:
    """Keys of a kernel source that do not go with each other."""
    given = source.model_fields_set
    if source.kind == "files":
        found = [(key, "has no meaning for files: it is for a server") for key in sorted(given - _FOR_KERNEL_FILES)]
        return found if source.path else [*found, ("path", "must be given: an absolute path that holds %n")]
    found = [("path", f"has no meaning for {source.kind}: it is for files")] if "path" in given else []
    found.extend((key, f"must be given for {source.kind}") for key in ("url", "node_label") if not getattr(source, key))
    if not re.fullmatch(r"\{[^{}]+\}", source.selector.strip()):
        found.append(("selector", "write the streams with kernel logs in braces: '{source=\"kernel\"}'"))
    try:
        proof_of(source.transport)
    except ValueError as error:
        found.append(("transport", str(error)))
    if source.kind == "victorialogs" and source.tenant and not _VICTORIA_TENANT.fullmatch(source.tenant):
        found.append(("tenant", "write AccountID:ProjectID, both numbers"))
    return [*found, *_access_problems(source)]


def _attribution_problems(source: AttributionSection) -> list[tuple[str, str]]:
    found = [] if source.url else [("url", "must be given: http://host:8000")]
    return [*found, *_access_problems(source)]


_NOTIFY_KEYS = {
    "slack": {"url_file"},
    "webhook": {"url_file", "token_file"},
    "email": {"host", "port", "tls", "sender", "recipients", "user", "password_file"},
}
_NOTIFY_NEEDED = {"slack": ("url_file",), "webhook": ("url_file",), "email": ("host", "sender", "recipients")}


def _notify_problems(channel: NotifySection) -> list[tuple[str, str]]:
    """Keys of a channel that do not go with its kind or with each other."""
    own = _NOTIFY_KEYS[channel.kind]
    others = set().union(*_NOTIFY_KEYS.values()) - own
    found = [(key, f"has no meaning for {channel.kind}") for key in sorted(channel.model_fields_set & others)]
    needed = [key for key in _NOTIFY_NEEDED[channel.kind] if not getattr(channel, key)]
    found.extend((key, f"must be given for {channel.kind}") for key in needed)
    if bool(channel.user) != (channel.password_file is not None):
        found.append(("user", "user and password_file go together"))
    if channel.user and channel.tls == "none":
        found.append(("tls", "a password is not sent without it"))
    if channel.link and "{decision}" not in channel.link:
        found.append(("link", "must hold {decision}, which stands for the decision's id"))
    if not channel.actions:
        found.append(("actions", "name one or more of restart, stop, none"))
    return found


def _metrics_problems(source: MetricsSection) -> list[tuple[str, str]]:
    """Keys of a metrics source that do not go with each other."""
    found = []
    if not source.url:
        found.append(("url", "must be given: http://host:9090, or for dcgm http://%n:9400/metrics"))
    if source.kind == "dcgm":
        only = source.model_fields_set & {"selector", "tenant"}
        found.extend((key, "has no meaning for dcgm: it is for a server of metrics") for key in sorted(only))
        if any("%n" not in url for url in source.url.split()):
            found.append(("url", "must hold %n, the node's name"))
    elif " " in source.url:
        found.append(("url", "one address; several are for dcgm"))
    elif not re.fullmatch(r"\{?[^{}]*\}?", source.selector.strip()):
        found.append(("selector", "write matchers: 'cluster=\"a\"'"))
    return [*found, *_access_problems(source)]


def _access_problems(source: _ServerSection) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if source.token_file is not None and (source.user or source.password_file is not None):
        found.append(("token_file", "give a token or user and password, not both"))
    if bool(source.user) != (source.password_file is not None):
        found.append(("user", "user and password_file go together"))
    if (source.certificate_file is None) != (source.key_file is None):
        found.append(("key_file", "certificate_file and key_file go together"))
    secret = source.token_file is not None or source.password_file is not None
    if secret and source.url.startswith("http://") and not re.match(r"http://(localhost|127\.|\[::1\])", source.url):
        found.append(("url", "a secret would be sent in the clear: use https"))
    return found


def read_dsn(path: Path) -> str:
    """The DSN in `path`: one line, not readable by others."""
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            (Problem(key="store.dsn_file", message=f"cannot be read: {error}", origin=str(path)),)
        ) from None
    if mode & 0o007:
        raise ConfigError(
            (Problem(key="store.dsn_file", message="is open to all users: chmod o= it", origin=str(path)),)
        )
    if not re.fullmatch(r"postgres(ql)?(\+psycopg)?://\S+", text):
        message = "must hold one line, postgresql://user:password@host/database"
        raise ConfigError((Problem(key="store.dsn_file", message=message, origin=str(path)),))
    return re.sub(r"^postgres(ql)?(\+psycopg)?://", "postgresql+psycopg://", text)


def as_tree(config: Config) -> Tree:
    """Plain JSON-ready values, for `config show`. Holds no secret: those live in files."""
    return config.model_dump(mode="json")


def flattened(config: Config) -> list[tuple[str, str]]:
    """Every key path with its value in force, as text."""
    return [(key, _value_at(as_tree(config), key)) for key in _leaves(as_tree(config))]


def _value_at(tree: object, key: str) -> str:
    for part in re.findall(r"[^.\[\]]+", key):
        if isinstance(tree, dict):
            tree = tree[part]
        elif isinstance(tree, list):
            tree = tree[int(part)]
    if tree is None:
        return ""
    if isinstance(tree, bool):
        return str(tree).lower()
    return ", ".join(map(str, tree)) if isinstance(tree, list) else str(tree)


def origin_of(key: str, loaded: Loaded) -> str:
    """Where the value of one key path comes from: a variable, the file, or the default."""
    for known, source in loaded.origins.items():
        if known == key or key.startswith((f"{known}.", f"{known}[")):
            return str(loaded.path) if source == "file" else source
    return "default"
