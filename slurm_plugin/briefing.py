"""What the guard and the acting process are told about one advice, from what the agent currently sees of Slurm."""

from dataclasses import dataclass

from slurm_plugin import capacity, guard, observe, sharing, stop_file
from slurm_plugin.applier import limit_seconds
from slurm_plugin.apply import Request
from slurm_plugin.config import AgentConfig
from slurm_plugin.hostlist import HostlistError, expand
from slurm_plugin.looks import Looks
from slurm_plugin.saving import Saving
from slurm_plugin.sharing import Companion
from slurm_plugin.squeue import JobDetails, JobRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Briefing:
    """Reads `looks`, changes nothing."""

    config: AgentConfig
    looks: Looks
    saving: Saving

    def limits(
        self, advice: guard.Advice, row: JobRow | None, *, requeues_left: int, missing_right: bool
    ) -> guard.Limits:
        nodes, settings, caps = self.looks.nodes, self.looks.settings, self.config.caps
        details = self.details(row) if row is not None else None
        leader = self.looks.leader(row) if row is not None else None
        judged = observe.judge_scope(self.config.scope, *leader) if leader is not None else None
        names = {node.name for node in nodes}
        components = self.looks.components(row) if row is not None else ()
        return guard.Limits(
            act=self.config.mode == "act" and not missing_right,
            in_scope=judged is not None and judged.inside,
            # Without the scheduler's settings nothing is done either; but that passes, and is no "observes".
            scope_known=settings is not None and leader is not None and leader[1] is not None,
            scope_reason=judged.reason if judged is not None else "",
            exclusions_per_job=caps.exclusions_per_job,
            requeues_left=requeues_left,
            lease_seconds_max=caps.lease_seconds_max,
            requeue_delay_seconds=settings.requeue_delay_seconds if settings is not None else 121,
            fitting=capacity.fitting(row, details, nodes) if row is not None else None,
            known=tuple(node for node in advice.exclude if node in names) if nodes else None,
            stopped=stop_file.engaged(self.config.stop_file),
            maintenance=self.looks.maintenance.reason(row) if row is not None else "",
            required=self._required(details),
            requeue_exit_hold=settings.requeue_exit_hold if settings is not None else (),
            nodes_together=sum(item.nodes_wanted for item in components),
            dead=self._dead(row) if row is not None and advice.dead_nodes else (),
            saving=self.saving.state(advice, self.looks.clock.monotonic()),
            signals=self.saving.signals,
            signal_batch=self.config.before_kill.target == "batch",
        )

    def _required(self, details: JobDetails | None) -> tuple[str, ...]:
        """What --nodelist names. An unreadable one names nobody: Slurm has accepted it, so it is our reading."""
        try:
            return expand(details.nodes_required) if details is not None else ()
        except HostlistError:
            return ()

    def _dead(self, row: JobRow) -> tuple[str, ...]:
        wanted = self.config.isolation
        if not wanted.down_dead_nodes:
            return ()
        return self.looks.silence.may_go_down(
            row,
            self.looks.rows,
            after_seconds=wanted.down_after_seconds,
            per_hour=wanted.downs_per_hour,
            now=self.looks.clock.monotonic(),
        )

    def around(self, advice: guard.Advice, row: JobRow | None) -> guard.Around:
        if row is None:
            return guard.ALONE
        waited = self.looks.chains.dependents(row, advice.attempt, self.looks.rows)
        return guard.Around(components=self.looks.components(row), released=sharing.released(row, waited))

    def companions(self, advice: guard.Advice, row: JobRow) -> tuple[Companion, ...]:
        """Components first, then whoever waited for the end of this attempt, whether it still does or not."""
        found = [(other, False) for other in self.looks.components(row) if other.job_id != row.job_id]
        found += [(other, True) for other in self.looks.chains.dependents(row, advice.attempt, self.looks.rows)]
        made = []
        for other, waited in found[: sharing.COMPANIONS_MAX]:
            details, leader = self.details(other), self.looks.leader(other)
            made.append(
                Companion(
                    job_id=other.job_id,
                    shown_id=other.shown_id,
                    user=other.user,
                    waited=waited,
                    in_scope=observe.judge_scope(self.config.scope, *leader).inside,
                    account=details.account if details is not None else "",
                    fitting=capacity.fitting(other, details, self.looks.nodes),
                )
            )
        return tuple(made)

    def lacking(self, advice: guard.Advice, row: JobRow) -> bool:
        """Whether a companion could be given something, as far as the last look tells."""
        return any(
            companion.in_scope
            and companion.user == advice.user
            and sharing.lacks(self.looks.rows[companion.job_id], advice.exclude)
            for companion in self.companions(advice, row)
        )

    def request(
        self, advice: guard.Advice, row: JobRow, limits: guard.Limits, *, shares_only: bool = False, tends: bool = False
    ) -> Request:
        details, slurm = self.details(row), self.config.slurm
        return Request(
            advice=advice,
            shown_id=row.shown_id,
            limits=limits,
            scope=self.config.scope,
            account=details.account if details is not None else "",
            conf=slurm.conf,
            bin_dir=slurm.bin,
            timeout_seconds=slurm.timeout_seconds,
            limit_seconds=limit_seconds(limits.requeue_delay_seconds),
            stop_file=self.config.stop_file,
            companions=() if tends else self.companions(advice, row),
            shares_only=shares_only,
            tends=tends,
            tells_user=self.config.tell.comment,
        )

    def details(self, row: JobRow) -> JobDetails | None:
        return observe.details_for(self.looks.details, row)
