"""Reports as messages of the contract, with the sentences that belong to their figures."""

from collections.abc import Mapping

from advisor.core.autonomy import Earned
from advisor.core.intervals import Estimate
from advisor.core.people import ShadowRules
from advisor.core.reliability import Figures, Interval, SizeRow, Spread, Window
from advisor.core.shadow import DISAGREED, Case, CategoryRow, NodeProof, Outcome
from advisor.core.words import Action
from advisor.reporting import Reliability, Shadow
from advisor.service import wire
from advisor.store.records import LemonRow
from advisor.v1 import common_pb2, report_pb2


def assumptions(rules: ShadowRules) -> list[str]:
    """What the shadow report's figures rest on."""
    hours = rules.window_seconds / 3600
    return [
        "Counted are attempts that we advised to restart or to stop before people acted, where it is at least "
        f"{rules.sure_min:.0%} sure what they did. A restart agrees with a requeue or a resubmission, a stop with a "
        f"cancel or a job left as it was for {hours:g} h.",
        "A restart that was to avoid nodes agrees where people avoided one of them, or none: which, is told beside. "
        "Where they avoided others only, it does not.",
        "The interval is Wilson's, of 95 %.",
        "A resubmission is a new job of the same user and name; how sure that is follows from nodes, partition, output "
        "file, time, and how many of that name ran beside it. After an advice to stop it counts against us only when "
        f"it came within {rules.quick_seconds / 60:g} min and completed; when it failed the same way it counts for us.",
        "A node proved bad: within "
        f"{rules.proof_days:g} days its own hardware failed again as a trusted source tells, it went down, or somebody "
        f"but us drained it. Proved good: jobs ran on it for {rules.good_hours:g} h without that, and the time is "
        "over. Anything else is open.",
        "GPU-hours saved: from our advice until people restarted the job, × its GPUs, for restarts that people agreed "
        "with. Slurm's own delay and the queue are taken to be the same. 'held': the job still held its GPUs; "
        "'waited': it had let them go, and others may have used them.",
        "GPU-hours wasted: of later attempts that failed in the way for which we had advised to stop.",
        "Drains are told apart by their reasons: ours begin with 'advisor:', Slurm's and known tools' by theirs, all "
        "others are people's.",
    ]


DEFINITIONS = (
    "Failures are attempts that ended by a fault; cancels, preemptions and time limits are none. Infrastructure: "
    "attributed to hardware, interconnect, storage or system software, or ended by a node's failure.",
    "Without a whole node-day there is no rate per 1,000 of them.",
    "MTTF by job size: hours that attempts ran ÷ failures, under the exponential law; attempts that ended otherwise "
    "or run still count with their time (censored). Bounds: chi-square, 95 %.",
    "ETTR: time with new progress ÷ time from the first start to the last end, queues between attempts included, "
    "weighted by GPUs; of jobs whose progress could be read. 'half of': where the middle half of them lies, no "
    "interval of the figure.",
    "RTO: from the fault's first evidence until the job was back at the step where it had failed. RPO: steps, and the "
    "time that they had taken, that were done again, from the checkpoint that was loaded on. Median with an interval "
    "of 95 % from six values on, below the smallest and largest.",
    "Restart success: got beyond the step at which the attempt before it failed, by more than a tenth of what it did "
    "again, or completed; progress not readable: ran for an hour and did not fail after as long as the one before. "
    "Back there and failed again: no success.",
    "False alarms: of attempts that we advised to restart or stop and nobody touched, those that completed.",
    "Checkpoint interval: Young and Daly, from the time to failure of jobs that save and what their saves were seen "
    "to cost.",
)


def shadow_message(
    shadow: Shadow, window: Window, *, rules: ShadowRules, cases_max: int, link: str
) -> report_pb2.ShadowReport:
    """`link`: address of a decision with `{decision}` for its id, "" for none."""
    report = shadow.report
    # Disagreements first: they are what a person looks at.
    ordered = sorted(report.cases, key=lambda case: case.outcome not in DISAGREED)
    return report_pb2.ShadowReport(
        since=wire.stamp(window.since),
        until=wire.stamp(window.until),
        categories=[_category(row) for row in report.rows],
        cases=[_case(case, link) for case in ordered[:cases_max]],
        nodes=[_node(item, link) for item in report.nodes],
        assumptions=assumptions(rules),
        capped=shadow.capped,
        cases_left_out=max(0, len(ordered) - cases_max),
        earned=[earned_message(item) for item in shadow.earned],
    )


def _category(row: CategoryRow) -> report_pb2.ShadowCategory:
    return report_pb2.ShadowCategory(
        category=row.category,
        agreement=estimate(row.agreement),
        **{outcome.value: row.count(outcome) for outcome in Outcome},
        agreed_same_nodes=row.agreed_same_nodes,
        agreed_ours_alone=row.agreed_ours_alone,
        stood=row.stood,
        undone=row.undone,
        gpu_hours_held=row.gpu_hours_held,
        gpu_hours_waited=row.gpu_hours_waited,
        gpu_hours_wasted=row.gpu_hours_wasted,
        without_gpus=row.without_gpus,
        nodes_bad=row.nodes_bad,
        nodes_good=row.nodes_good,
        nodes_open=row.nodes_open,
    )


def _case(case: Case, link: str) -> report_pb2.ShadowCase:
    advice, act = case.advice, case.act
    return report_pb2.ShadowCase(
        attempt=common_pb2.AttemptRef(
            job_key=case.job_key, cluster=case.cluster, job_id=case.job_id, attempt=case.number, user=case.user
        ),
        partition=case.partition,
        category=case.category,
        outcome=case.outcome,
        why=wire.clean(case.why),
        did=act.did,
        did_at=wire.stamp(act.at),
        sure=act.sure,
        recorded_by=act.by,
        resubmitted_as=act.job_id,
        their_nodes=act.nodes,
        decision_id=advice.decision_id if advice is not None else "",
        url=_url(link, advice.decision_id) if advice is not None else "",
        advised=wire.to_wire(advice.action if advice is not None else Action.NONE),
        reason=advice.reason if advice is not None else "",
        advised_at=wire.stamp(case.advised_at),
        our_nodes=advice.nodes if advice is not None else (),
        delay_seconds=case.delay_seconds,
        gpus=case.gpus,
        held_gpus=case.held,
        autonomous=case.autonomous,
    )


def _node(item: NodeProof, link: str) -> report_pb2.ShadowNode:
    return report_pb2.ShadowNode(
        node=item.node,
        cluster=item.cluster,
        category=item.category,
        decision_id=item.decision_id,
        url=_url(link, item.decision_id),
        at=wire.stamp(item.at),
        proof=item.proof,
        why=item.why,
    )


def _url(link: str, decision_id: str) -> str:
    return link.replace("{decision}", decision_id)


def earned_message(item: Earned) -> report_pb2.EarnedAutonomy:
    return report_pb2.EarnedAutonomy(
        cluster=item.cluster,
        category=item.category,
        held=item.held,
        with_stop=item.with_stop,
        agreed=item.agreed,
        counted=item.counted,
        lower_bound=item.lower,
        why=item.why,
        since=wire.stamp(item.since),
    )


def reliability_message(found: Reliability, window: Window, *, nodes: bool) -> report_pb2.ReliabilityReport:
    """`nodes`: whether nodes are named, with their histories."""
    return report_pb2.ReliabilityReport(
        since=wire.stamp(window.since),
        until=wire.stamp(window.until),
        all=_figures(found.everything),
        groups=[_figures(item) for item in found.groups],
        groups_left_out=found.groups_left_out,
        lemons=[_lemon(row) for row in found.lemons] if nodes else [],
        capped=found.capped,
        definitions=DEFINITIONS,
    )


def _figures(item: Figures) -> report_pb2.Figures:
    low, high = item.ettr_range or (None, None)
    return report_pb2.Figures(
        group=item.group,
        attempts=item.attempts,
        node_days=item.node_days,
        gpu_hours=item.gpu_hours,
        without_gpus=item.without_gpus,
        failures=item.failures,
        failures_per_1000_node_days=estimate(item.failure_rate),
        infrastructure_failures_per_1000_node_days=estimate(item.infrastructure_rate),
        sizes=[_size(row) for row in item.sizes],
        ettr=item.ettr,
        ettr_jobs=item.ettr_runs,
        ettr_low_quartile=low,
        ettr_high_quartile=high,
        rto_seconds=_spread(item.rto),
        rto_parts_seconds=_spreads(item.rto_parts),
        rpo_steps=_spread(item.rpo_steps),
        rpo_seconds=_spread(item.rpo_seconds),
        restart_success=estimate(item.restart_success),
        false_alarms=estimate(item.false_alarms),
        checkpoint_interval=_interval(item.interval),
    )


def estimate(item: Estimate) -> report_pb2.Estimate:
    return report_pb2.Estimate(value=item.value, low=item.low, high=item.high, count=item.count)


def _spread(item: Spread) -> report_pb2.Spread:
    return report_pb2.Spread(median=estimate(item.median), p90=item.p90)


def _spreads(items: Mapping[str, Spread]) -> Mapping[str, report_pb2.Spread]:
    return {name: _spread(item) for name, item in items.items()}


def _size(row: SizeRow) -> report_pb2.SizeFigures:
    low, high = row.gpus or (None, None)
    return report_pb2.SizeFigures(
        gpus_from=low, gpus_to=high, hours=row.hours, failures=row.failures, mttf_hours=estimate(row.mttf_hours)
    )


def _interval(item: Interval) -> report_pb2.CheckpointInterval:
    return report_pb2.CheckpointInterval(
        young_seconds=item.young_seconds,
        daly_seconds=item.daly_seconds,
        low_seconds=item.low_seconds,
        high_seconds=item.high_seconds,
        cost_seconds=item.cost_seconds,
        saves=item.saves,
        mttf_hours=estimate(item.mttf_hours),
        why_not=item.why_not,
    )


def _lemon(row: LemonRow) -> report_pb2.LemonNode:
    return report_pb2.LemonNode(
        cluster=row.cluster,
        node=row.name,
        score=row.score,
        failures=len(row.failures),
        jobs=row.jobs,
        fails_within_week=row.fails_within_week,
    )
