"""Policy: every number that a decision depends on, with its default and its reason.

Loaded from TOML by `advisor.rules.policy`; stored content-addressed with each decision.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from advisor.core.words import Category


def _settle_seconds() -> Mapping[Category, float]:
    # How long after the first evidence slower facts may still change who is blamed: a scrape takes 15 s, a log
    # store 5-10 s, a file none. A STOP waits for its settle time in full.
    return dict.fromkeys(Category, 2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    # detection
    hang_seconds: float = 600.0  # the longest silence in steady state, whatever was learned
    hang_floor_seconds: float = 60.0  # the shortest: shared storage and collection pauses stall healthy jobs for less
    hang_factor: float = 3.0  # × the usual gap between progress lines
    hang_learning_seconds: float = 300.0  # from the first progress line: until then hang_seconds holds
    hang_phase_seconds: float = 1800.0  # announced checkpoint, evaluation, compilation, restart of ranks: none seen yet
    hang_startup_seconds: float = 3600.0  # before the first progress line
    clock_skew_seconds: float = 2.0  # events closer than this have no order between sources
    trusted_fatal_grace_seconds: float = 20.0  # live attempt, trusted fatal hardware, and no progress since
    offline_silence_seconds: float = 60.0  # bundles only: a crash followed by this much silence ended the attempt
    # settling
    settle_seconds: Mapping[Category, float] = field(default_factory=_settle_seconds)
    settle_margin_seconds: float = 1.0  # last refinement this long before the earliest start
    decision_deadline_seconds: float = 90.0  # after the attempt's end; then it may start whatever we think
    advice_time_to_live_seconds: float = 240.0  # below MinJobAge, 300 s by default
    # budgets
    restarts_per_root_cause: int = 3  # per root cause and place, reset by progress
    restarts_unexplained: int = 6  # instead, of failures that speak against nobody and come at the same point each time
    suspects_after: int = 3  # such failures in a row: then try without nodes that were there each time; 0: never
    restarts_ceiling: int = 20  # per job, never reset
    restarts_ceiling_per_1000_node_days: float = 20.0  # and so many more: above what any published cluster needed
    restart_at_time_limit: bool = True  # one that got further in it: as if it had been preempted; False: it ends there
    confirmation_retries: int = 1  # of a failure that looks deterministic
    storage_delay_seconds: float = 300.0
    # bounds
    exclusions_per_job_max: int = 8
    exclusions_per_incident_max: int = 4  # more nodes at once are not the nodes' fault
    implicated_fraction_max: float = 0.5  # of the allocation; never applied to allocations of one or two nodes
    isolations_max: int = 2
    isolations_percent_max: float = 2.0
    signals_max: int = 200  # kept per attempt
    evidence_max: int = 40  # published with advice
    # history
    history_half_life_days: float = 7.0
    history_window_days: float = 30.0
    suspect_score: float = 0.5
    isolate: bool = False  # cluster isolation is off until a site turns it on
    isolate_dry_run: bool = True  # and then only on paper, until a site says otherwise
    isolations_per_day_max: int = 4  # more within a day trip the breaker
    isolation_settle_seconds: float = 30.0  # a fabric event hits its nodes within seconds: wait for the others to show
    isolation_time_to_live_hours: float = 72.0  # a drain of ours that nobody looked at must not last for ever
    # dead nodes and saving
    node_down: bool = False  # a dead node may be set DOWN to free the job that it holds
    node_down_after_seconds: float = 30.0  # after the scheduler began to say that it does not respond
    save_wait_seconds: float = 0.0  # before a live attempt is ended it is asked to save; 0 asks nobody
    save_hung: bool = False  # also one that hangs, which most often cannot answer
