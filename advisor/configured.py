"""What a configuration names, made: rules and keys are read, sources and channels opened. Else `ConfigError`."""

from advisor.brought_rules import Checked, check
from advisor.build import build_id, version
from advisor.config import Config, ConfigError, NotifySection, Problem
from advisor.log_stores import access_of, open_kernel_store, open_log_store, open_whole_store
from advisor.notifying import Channel
from advisor.pipeline import Rulebook
from advisor.ports import Clock, LogSource, Notifier, OpinionSource
from advisor.rules.job_rules import CONFIGURATION_BYTES_MAX
from advisor.rules.loader import RulesError, load_rules
from advisor.rules.policy import PolicyError, check_timing, load_policy
from advisor.seals.keys import SealKey, SealKeyError, load_key
from advisor.tracing import Tracing, TracingError, open_tracing
from connectors.attribution.nvrx import NvrxAttribution
from connectors.kernel.files import KernelFileLogs
from connectors.logs.files import JobFileLogs
from connectors.logs.root_reader import RootReader
from connectors.notify.mail import USER, Mail
from connectors.notify.webhook import Webhook
from connectors.web.server import Server


def load_rulebook(config: Config) -> Rulebook:
    """Rules and policy as configured, with the timing rules checked. Raises `ConfigError` with all problems."""
    problems: list[Problem] = []
    rules, policy = None, None
    try:
        rules = load_rules(config.rules_files)
    except RulesError as error:
        problems.extend(Problem(key="rules_files", message=text, origin="rules") for text in error.problems)
    try:
        policy = load_policy(config.policy_file)
    except PolicyError as error:
        problems.extend(Problem(key="policy_file", message=text, origin=error.origin) for text in error.problems)
    if policy is not None:
        origin = str(config.policy_file or "default policy")
        timing = check_timing(
            policy,
            tick_seconds=config.tick.interval_seconds,
            requeue_delay_seconds=None,
            lease_takeover_seconds=config.replicas.lease_seconds,
        )
        problems.extend(Problem(key="policy_file", message=text, origin=origin) for text in timing)
    if rules is None or policy is None or problems:
        raise ConfigError(tuple(problems))
    return Rulebook(rules=rules, policy=policy, build=build_id())


def load_seal_key(config: Config) -> SealKey | None:
    """What signs the seals, None when no key is configured. Raises `ConfigError`."""
    path = config.seal.key_file
    if path is None:
        return None
    try:
        return load_key(path)
    except SealKeyError as error:
        raise ConfigError((Problem(key="seal.key_file", message=str(error), origin=str(path)),)) from None


def load_site_rules(config: Config) -> Checked | None:
    """The log rules that the site gives for all jobs. Raises `ConfigError` when they cannot be read at all."""
    path = config.job_rules_file
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            data = file.read(CONFIGURATION_BYTES_MAX + 1)
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
        raise ConfigError((Problem(key="job_rules_file", message=message, origin=str(path)),)) from None
    return check(data, str(path), of_job=False)


def open_sources(config: Config, clock: Clock, *, by_hand: bool = False) -> tuple[LogSource, ...]:
    """The configured connectors. `by_hand`: a person waits for one answer."""
    sources: list[LogSource] = []
    for log in config.logs:
        if log.kind == "files":
            handing = RootReader(str(log.root_reader)) if log.root_reader is not None else None
            more = log.extra_files
            sources.append(JobFileLogs(log.name, clock=clock, extra_files=more, root_reader=handing))
        elif by_hand:
            sources.append(open_whole_store(log, clock))
        else:
            sources.append(open_log_store(log, config.rules_files, clock))
    for kernel in config.kernel:
        if kernel.kind != "files":
            sources.append(open_kernel_store(kernel, clock, by_hand=by_hand))
            continue
        try:
            sources.append(KernelFileLogs(kernel.name, clock=clock, path=kernel.path))
        except ValueError as error:
            raise ConfigError((Problem(key="kernel", message=str(error), origin=kernel.name),)) from None
    return tuple(sources)


def open_opinions(config: Config, clock: Clock) -> tuple[OpinionSource, ...]:
    """The configured attribution services of others."""
    return tuple(
        NvrxAttribution(
            section.name,
            Server(access_of(section), clock=clock),
            clock=clock,
            budget_seconds=section.budget_seconds,
        )
        for section in config.attribution
    )


def open_channels(config: Config, clock: Clock) -> tuple[Channel, ...]:
    """The configured notifications."""
    return tuple(
        Channel(
            notifier=open_notifier(section, clock),
            actions=section.actions,
            messages_per_minute=section.messages_per_minute,
            link=section.link,
            to_users=any(USER in address for address in section.recipients),
        )
        for section in config.notify
    )


def open_traces(config: Config) -> Tracing:
    """Raises `ConfigError` where traces are asked for and cannot be made."""
    section = config.traces
    try:
        authority = section.ca_file.read_bytes() if section.ca_file is not None else None
        return open_tracing(section.endpoint, version=version(), insecure=section.insecure, ca_file=authority)
    except (TracingError, OSError) as error:
        raise ConfigError((Problem(key="traces", message=str(error), origin="traces"),)) from None


def decision_link(config: Config) -> str:
    """The address of a decision, `{decision}` for its id, as notifications name it; "" where nobody configured one."""
    return next((section.link for section in config.notify if section.link), "")


def open_notifier(section: NotifySection, clock: Clock) -> Notifier:
    """`config` has seen to it that what the kind needs is given."""
    if section.kind == "email":
        return Mail(
            section.name,
            host=section.host,
            port=section.port,
            sender=section.sender,
            recipients=section.recipients,
            clock=clock,
            tls=section.tls,
            user=section.user,
            password_file=section.password_file,
            ca_file=section.ca_file,
            timeout_seconds=section.timeout_seconds,
        )
    if section.url_file is None:
        raise ConfigError((Problem(key="notify.url_file", message="must be given", origin=section.name),))
    return Webhook(
        section.name,
        url_file=section.url_file,
        clock=clock,
        slack=section.kind == "slack",
        token_file=section.token_file,
        ca_file=section.ca_file,
        timeout_seconds=section.timeout_seconds,
    )
