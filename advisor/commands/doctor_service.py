"""`advisor doctor`: what the service answers about itself, its agents, its replicas and what it may do."""

from collections.abc import Iterator, Sequence
from datetime import UTC

from advisor.client import Client, mode_name
from advisor.client.errors import Unreachable
from advisor.clock import SystemClock
from advisor.commands import doctor_metrics
from advisor.commands.doctor_checks import Check, State
from advisor.commands.mode import NOT_TOLD, acts_by_default, where
from advisor.commands.output import short_time
from advisor.commands.status import REPLICA_SILENT_SECONDS, replica_name, waiting_text
from advisor.config import Config, ConfigError
from advisor.configured import load_rulebook
from advisor.core.amounts import many
from advisor.core.words import UnavailableReason
from advisor.plain_text import seconds_text
from advisor.rules.policy import check_timing
from advisor.service.operator_servicer import SCHEMA_ABSENT
from advisor.v1 import common_pb2, operator_pb2
from advisor.wording import TO_DO_ABOUT, drain_withheld, isolation_state, own_tick_age, settled, stop_file_text

TICK_SLOW_SECONDS = 3.0
AGENT_SILENT_SECONDS = 10.0
REQUEUE_DELAY_LONG_SECONDS = 60.0
MODES_SHOWN = 8
# Of what one user chose for one job; the site is well, and other jobs are read.
_OF_ONE_JOB = frozenset({UnavailableReason.NOT_REGULAR.value})


def look_at_service(client: Client, chosen: Config) -> Iterator[Check]:
    """All that the service itself answers. Raises what the client raises."""
    status = client.status()
    yield Check(name="service", state=State.OK, found=f"version {status.version} answers")
    absent = next((source for source in status.sources if source.name == "store" and not source.available), None)
    if absent is None:
        yield Check(name="store", state=State.OK, found=f"answers, incarnation {status.incarnation}")
    else:
        to_do = "is its disk full, is it down, is it the primary? docs/runbook.md, store_absent"
        if absent.reason == SCHEMA_ABSENT:
            to_do = "do that, or put the right address into store.dsn_file; docs/runbook.md, schema_absent"
        yield Check(name="store", state=State.FAIL, found=absent.detail, to_do=to_do)
    yield look_at_tick(status)
    yield from look_at_room(status)
    yield from look_at_sources(status, chosen)
    yield from look_at_replicas(status)
    if absent is None or status.agents:
        yield from look_at_agents(status, chosen)
    try:
        yield look_at_modes(client.modes())
        yield from look_at_pauses(client.pauses())
        yield from look_at_isolations(client.isolations(operator_pb2.ListIsolationsRequest()))
    except Unreachable:
        if absent is None:
            raise
        # Both are the store's, of which all has been said.


def look_at_pauses(pauses: Sequence[operator_pb2.PauseInForce]) -> Iterator[Check]:
    """What keeps us from acting on purpose, and how that ends."""
    for item in pauses:
        text = f"{item.cluster or 'all clusters'} until {short_time(item.until.ToDatetime(UTC))}: {item.why}"
        named = f"--cluster {item.cluster} " if item.cluster else ""
        to_do = f"advisor resume {named}--why TEXT ends it before"
        yield Check(name="pause", state=State.WARN, found=f"paused by {item.set_by}: {text}", to_do=to_do)


def look_at_isolations(nodes: operator_pb2.ListIsolationsResponse) -> Iterator[Check]:
    """Whether what is wanted of nodes is done; well is only what is, or what a site chose to have on paper."""
    for tripped in nodes.tripped:
        to_do = f"look at the nodes named, then: advisor nodes reset-breaker --cluster {tripped.cluster} --why …"
        yield Check(
            name="isolation",
            state=State.FAIL,
            found=f"the breaker of {tripped.cluster} tripped: {tripped.why}",
            to_do=to_do,
        )
    if nodes.orphaned:
        names = " ".join(item.node for item in nodes.orphaned[:MODES_SHOWN])
        to_do = "nobody will undo them: scontrol update NodeName=… State=UNDRAIN when the node is well"
        found = f"{many(len(nodes.orphaned), 'node')} with a drain of ours that is not known any more: {names}"
        yield Check(name="isolation", state=State.WARN, found=found, to_do=to_do)
    by_state: dict[str, list[operator_pb2.NodeIsolation]] = {}
    for item in nodes.isolations:
        by_state.setdefault(isolation_state(item), []).append(item)
    if drained := by_state.get("drained"):
        found = f"{many(len(drained), 'node')} drained: {_names(drained)} (advisor nodes isolations)"
        yield Check(name="isolation", state=State.OK, found=found)
    if paper := by_state.get("on paper"):
        found = f"{many(len(paper), 'node')} on paper only, not drained: {_names(paper)}"
        why = "monitor mode, or isolate_dry_run of the policy"
        yield Check(name="isolation", state=State.OK, found=f"{found} ({why})")
    wanted = by_state.get("wanted", [])
    withheld = [text for item in wanted if (text := drain_withheld(item))]
    to_do = "jobs may start there: correct what keeps it, drain the node yourself, or advisor nodes reinstate"
    for text in withheld[:MODES_SHOWN]:
        yield Check(name="isolation", state=State.WARN, found=text, to_do=to_do)
    if (more := len(withheld) - MODES_SHOWN) > 0:
        yield Check(name="isolation", state=State.WARN, found=f"{more} more", to_do="advisor nodes isolations")
    if unanswered := [item for item in wanted if not drain_withheld(item)]:
        names = f"{many(len(unanswered), 'node')} to be drained: {_names(unanswered)}"
        found = f"the agent has not answered yet about {names}"
        to_do = "look again in some seconds; does the agent live? advisor nodes isolations"
        yield Check(name="isolation", state=State.WARN, found=found, to_do=to_do)


def _names(isolations: Sequence[operator_pb2.NodeIsolation]) -> str:
    more = f" and {len(isolations) - MODES_SHOWN} more" if len(isolations) > MODES_SHOWN else ""
    return " ".join(item.node for item in isolations[:MODES_SHOWN]) + more


def look_at_room(status: operator_pb2.Status) -> Iterator[Check]:
    """Attempts that nobody looks at."""
    if status.unwatched_jobs:
        found = f"{many(status.unwatched_jobs, 'attempt')} not watched: no replica has room"
        to_do = "raise tick.attempts_max, start another replica, or narrow the agents' scope: nothing is done for them"
        yield Check(name="room", state=State.WARN, found=found, to_do=to_do)


def look_at_replicas(status: operator_pb2.Status) -> Iterator[Check]:
    """Several processes over one database; a single one is what all other checks are about."""
    if len(status.replicas) < 2:
        return
    for item in status.replicas:
        if item.HasField("lost_since"):
            found = f"{replica_name(item)} not heard since {short_time(item.lost_since.ToDatetime(UTC))}"
            to_do = "others have its jobs: start it again; it died, or its host did, and was not replaced"
            yield Check(name="replicas", state=State.WARN, found=found, to_do=to_do)
        elif item.alive and item.tick_age.ToTimedelta().total_seconds() > REPLICA_SILENT_SECONDS:
            silent = seconds_text(item.tick_age.ToTimedelta().total_seconds())
            found = f"{replica_name(item)} is silent for {silent}"
            to_do = "others take its jobs when its lease has run out: see its log, or start it again"
            yield Check(name="replicas", state=State.WARN, found=found, to_do=to_do)
        if not item.alive and item.jobs:
            found = f"{replica_name(item)} is dead or frozen, its {many(item.jobs, 'job')} not taken over yet"
            to_do = "others take them with their next tick: if not, see their logs"
            yield Check(name="replicas", state=State.WARN, found=found, to_do=to_do)
    alive = [item for item in status.replicas if item.alive]
    builds = {(item.version, item.build) for item in alive}
    shares = ", ".join(f"{item.host} pid {item.pid}: {item.jobs}" for item in alive)
    if len(builds) > 1:
        to_do = "finish the upgrade: docs/upgrade.md"
        yield Check(name="replicas", state=State.WARN, found=f"{len(builds)} builds run: jobs {shares}", to_do=to_do)
    elif len(alive) > 1:
        yield Check(name="replicas", state=State.OK, found=f"{len(alive)} live: jobs {shares}")


def look_at_tick(status: operator_pb2.Status) -> Check:
    age = status.tick_age.ToTimedelta().total_seconds()
    took = status.tick_took.ToTimedelta().total_seconds()
    whose = " by this replica" if len(status.replicas) > 1 else ""
    own = seconds_text(own_tick_age(status).total_seconds())
    ticks = f"{many(status.ticks, 'tick')}, the last {own} ago in {seconds_text(took)}"
    waits = f"; {waiting}" if (waiting := waiting_text(status)) else ""
    text = f"{ticks}, {status.watched_jobs} watched{whose}{waits}"
    if age > TICK_SLOW_SECONDS:
        to_do = "see the service's log: a tick that fails or hangs advises nobody, and the watchdog releases jobs"
        return Check(name="tick", state=State.FAIL, found=text, to_do=to_do)
    return Check(name="tick", state=State.OK, found=text)


def look_at_sources(status: operator_pb2.Status, chosen: Config) -> Iterator[Check]:
    measured = {source.name for source in chosen.metrics}
    for source in status.sources:
        if source.name == "store":
            continue  # told already
        if source.available and not source.reason:
            seen = f", answered {source.newest_at.ToDatetime(UTC):%H:%M:%S}" if source.HasField("newest_at") else ""
            yield Check(
                name="source", state=State.OK, found=f"{source.name} ({source.kind}){seen or ': not asked yet'}"
            )
        else:
            yield Check(
                name="source",
                state=State.WARN if source.available or source.reason in _OF_ONE_JOB else State.FAIL,
                found=f"{source.name} ({source.kind}): {source.reason}: {source.detail}",
                to_do=(doctor_metrics.TO_DO_ABOUT if source.name in measured else TO_DO_ABOUT).get(
                    source.reason, "see the service's log"
                ),
            )
    if not chosen.kernel:
        to_do = (
            'add [[kernel]] name="kernel" path="/var/log/kernel/%n.log": without it node faults rest on job logs alone'
        )
        yield Check(name="source", state=State.WARN, found="no trusted source is configured", to_do=to_do)


def look_at_agents(status: operator_pb2.Status, chosen: Config) -> Iterator[Check]:
    if not status.agents:
        to_do = "start advisor-agent beside slurmctld, as SlurmUser; its user must be in service.agent_users"
        yield Check(name="agent", state=State.WARN, found="none has registered", to_do=to_do)
    now = SystemClock().now()
    for agent in status.agents:
        silent = (now - agent.last_seen_at.ToDatetime(UTC)).total_seconds()
        who = f"{agent.cluster} on {agent.host} ({agent.scheduler})"
        if silent > AGENT_SILENT_SECONDS:
            text = f"{who}: silent for {seconds_text(silent)}"
            yield Check(name="agent", state=State.FAIL, found=text, to_do="start it again, and see its log")
        else:
            yield Check(
                name="agent", state=State.OK, found=f"{who}: seen {seconds_text(silent)} ago, {agent.mode} mode"
            )
        yield from _agent_details(agent, chosen)


def _agent_details(agent: operator_pb2.AgentStatus, chosen: Config) -> Iterator[Check]:
    if agent.missing_rights:
        text = f"{agent.cluster}: lacks {'; '.join(agent.missing_rights)}"
        to_do = "run it as SlurmUser or with AdminLevel=Administrator: with less it only observes"
        yield Check(name="agent rights", state=State.FAIL, found=text, to_do=to_do)
    if stopped := stop_file_text(agent):
        to_do = "remove it when the agent may act again: docs/nodes.md"
        yield Check(name="stop file", state=State.WARN, found=stopped, to_do=to_do)
    if not agent.HasField("requeue_delay"):
        return
    delay = agent.requeue_delay.ToTimedelta().total_seconds()
    for problem in _timing(chosen, delay):
        yield Check(name="timing", state=State.FAIL, found=f"{agent.cluster}: {problem}", to_do="correct the policy")
    text = f"{agent.cluster}: a requeued job starts {delay:g} s later at the earliest"
    if delay > REQUEUE_DELAY_LONG_SECONDS:
        to_do = "AuthInfo=cred_expire=N (or SchedulerParameters=requeue_delay=N) in slurm.conf shortens it"
        yield Check(name="requeue delay", state=State.WARN, found=text, to_do=to_do)
    else:
        yield Check(name="requeue delay", state=State.OK, found=text)


def _timing(chosen: Config, delay: float) -> tuple[str, ...]:
    try:
        policy = load_rulebook(chosen).policy
    except ConfigError:
        return ()  # told already
    return check_timing(policy, tick_seconds=chosen.tick.interval_seconds, requeue_delay_seconds=delay)


def look_at_modes(modes: operator_pb2.ListModesResponse) -> Check:
    """What is acted on, as the service that was asked says: the configuration here need not be its own."""
    settings, default = [*modes.settings, *modes.earned], mode_name(modes.default_mode)
    if not default and not settled(modes):
        found = f"{many(len(settings), 'setting')}, and beside them default_mode; {NOT_TOLD}"
        return Check(name="modes", state=State.WARN, found=found, to_do="upgrade the service: docs/upgrade.md")
    if not settings:
        return Check(name="modes", state=State.OK, found=f"no settings: {default} everywhere")
    acting = [where(setting) for setting in settings if setting.mode == common_pb2.MODE_AUTONOMOUS]
    if acts_by_default(modes):
        acting.append("everything else, by default_mode")
    more = [f"{len(acting) - MODES_SHOWN} more"] if len(acting) > MODES_SHOWN else []
    shown = "; ".join([*acting[:MODES_SHOWN], *more])
    return Check(name="modes", state=State.OK, found=f"autonomous: {shown or 'nothing'} (advisor mode get)")
