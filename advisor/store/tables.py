"""The tables. Migrations in `migrations/` create them; a test holds both to each other.

Append-only (triggers refuse UPDATE, DELETE and TRUNCATE): `APPEND_ONLY`. What changes over a decision's life is in
`advice`, one row per decision, which also keeps apart what the parts of `decisions` cannot: generations of an attempt.

`SEALED` are append-only, have a serial number `seq`, and are covered by the chain in `seals`. `MONTHLY` lie in parts by
month (docs/decisions/0007), so that their unique columns hold the time and nothing refers to them by foreign key.

Lists are served newest first by (time, id) behind the filter's column, see `audit_queries`.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Sequence,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, TIMESTAMP
from sqlalchemy.types import TypeEngine

metadata = MetaData(
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "ck": "%(table_name)s_%(constraint_name)s_check",
    }
)

SEALED = (
    "incarnations",
    "attempt_states",
    "blobs",
    "decisions",
    "reconciliations",
    "milestones",
    "audit",
    "node_changes",
    "shadow_records",
    "corrections",
)
APPEND_ONLY = (*SEALED, "seals", "seal_leaves")
# Table → the time by which it is parted.
MONTHLY = {"decisions": "created_at", "reconciliations": "decided_at", "attempt_states": "recorded_at", "audit": "at"}

# Audit rows of what people do; the advisor and its agents write the others, some for every decision.
PEOPLE = "what NOT IN ('decision_committed', 'advice_reconciled', 'agent_registered')"

_ID: TypeEngine[str] = Uuid(as_uuid=False)
_TIME = TIMESTAMP(timezone=True)
_NAMES = ARRAY(Text())


def _id(name: str, *, nullable: bool = False) -> Column[str]:
    return Column(name, _ID, nullable=nullable)


def _text(name: str, *, nullable: bool = False) -> Column[str]:
    return Column(name, Text(), nullable=nullable)


def _time(name: str, *, nullable: bool = False) -> Column[object]:
    return Column(name, _TIME, nullable=nullable)


def _names(name: str, *, nullable: bool = False) -> Column[list[str]]:
    return Column(name, _NAMES, nullable=nullable)


def _whole(name: str, *, nullable: bool = False) -> Column[int]:
    return Column(name, Integer(), nullable=nullable)


def _account() -> Column[str]:
    return Column("account", Text(), nullable=False, server_default=text("''"))


def _sequence() -> Column[int]:
    return Column("seq", BigInteger(), Identity(always=True), primary_key=True)


def _numbered() -> Column[int]:
    """The order in which rows were written, for those whose key is another."""
    return Column("seq", BigInteger(), Identity(always=True), nullable=False)


def _time_key(name: str) -> Column[object]:
    """The time by which a table is parted."""
    return Column(name, _TIME, primary_key=True)


def _of_attempt() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["job_key", "number"], ["attempts.job_key", "attempts.number"])


# The newest row is the store's identity. `system_identifier`, `timeline` and both numbers (oid) are Postgres' own
# (advisor.store.lives): with others, something that was committed may have been forgotten.
incarnations = Table(
    "incarnations",
    metadata,
    _sequence(),
    _id("id"),
    _time("created_at"),
    _text("why"),
    _text("system_identifier"),
    Column("timeline", Integer(), nullable=False),
    Column("database_oid", BigInteger(), nullable=True),
    Column("table_oid", BigInteger(), nullable=True),
    UniqueConstraint("id"),
)

agents = Table(
    "agents",
    metadata,
    Column("cluster", Text(), primary_key=True),
    Column("host", Text(), primary_key=True),
    _id("session"),
    _text("version"),
    _text("mode"),
    _text("scheduler"),
    Column("requeue_delay_seconds", Double(), nullable=True),
    Column("job_memory_seconds", Double(), nullable=True),
    _names("missing_rights"),
    _time("registered_at"),
    _time("last_seen_at"),
    Column("unavailable", LargeBinary(), nullable=True),  # of its scheduler, by its last report: canonical JSON
    Column("stopped_why", Text(), nullable=True),  # by its stop file, by its last heartbeat; null: it is not there
    _time("stopped_since", nullable=True),
    UniqueConstraint("session"),
)

# One row per life of an advisor process, all times by the database's clock. What it holds is in force until `until`.
# `place`: the lock of its socket, which the next process there holds only when this one is gone. `address`: where it
# answers, for people.
replicas = Table(
    "replicas",
    metadata,
    Column("id", _ID, primary_key=True),
    _text("host"),
    Column("pid", BigInteger(), nullable=False),
    _text("place"),
    _text("version"),
    _text("build"),
    _text("schema"),
    _time("started_at"),
    _time("until"),
    _time("ticked_at"),
    _time("ended_at", nullable=True),
    _whole("jobs_max", nullable=True),  # how many it can tick
    _text("address", nullable=True),
)

# Which replica ticks a job; none: free for whoever has room. `epoch` is never used twice, for whatever job.
leases = Table(
    "leases",
    metadata,
    Column("job_key", _ID, primary_key=True),
    _id("replica_id", nullable=True),
    Column("epoch", BigInteger(), nullable=False),
    _time("changed_at"),
    Index(None, "replica_id"),
)
lease_epochs = Sequence("lease_epochs", metadata=metadata)

# The one row: the oldest schema whose code may still run on this one.
schema_support = Table(
    "schema_support",
    metadata,
    Column("one", Boolean(), primary_key=True),
    _text("oldest"),
    CheckConstraint("one", name="one"),
)

# `slot` is what the scheduler's restarts of one job share: the job id, or "array_task" for an array's task, whose
# own id appears only when it is split off.
jobs = Table(
    "jobs",
    metadata,
    Column("key", _ID, primary_key=True),
    _text("cluster"),
    _text("slot"),
    _text("job_id"),
    _text("user_name"),
    Column("user_id", BigInteger(), nullable=True),
    _text("name"),
    _text("partition"),
    _text("account"),
    Column("batch", Boolean(), nullable=True),
    Column("requeueable", Boolean(), nullable=True),
    Column("in_scope", Boolean(), nullable=False),
    _text("scope_reason"),
    _whole("restarts_max", nullable=True),
    _whole("nodes_requested", nullable=True),
    _text("array_job_id"),
    Column("array_task", BigInteger(), nullable=True),
    _text("het_job_id"),
    _whole("het_offset", nullable=True),
    Column("waits_for", _NAMES, nullable=False, server_default=text("'{}'::text[]")),
    Column("singleton", Boolean(), nullable=False, server_default=text("false")),
    _whole("last_number"),
    _time("first_seen_at"),
    _time("last_seen_at"),
    _time("forgotten_at", nullable=True),
    Index(None, "cluster", "slot"),
    Index(None, "cluster", "job_id", "first_seen_at"),
    Index(None, "cluster", "user_name", "first_seen_at"),
    Index(
        "jobs_dependent_idx",
        "cluster",
        postgresql_where=text("forgotten_at IS NULL AND (singleton OR waits_for <> '{}'::text[])"),
    ),
    Index("jobs_known_idx", "cluster", postgresql_where=text("forgotten_at IS NULL")),
    Index("jobs_array_idx", "array_job_id", "array_task", postgresql_where=text("array_job_id <> ''")),
)

attempts = Table(
    "attempts",
    metadata,
    Column("job_key", _ID, ForeignKey("jobs.key"), primary_key=True),
    Column("number", Integer(), primary_key=True),
    _text("cluster"),
    _text("job_id"),
    _text("user_name"),
    _account(),
    _text("partition"),
    _text("state"),
    _time("submitted_at"),
    _time("eligible_at", nullable=True),
    _time("started_at", nullable=True),
    _time("ended_at", nullable=True),
    _whole("exit_code", nullable=True),
    _whole("exit_signal", nullable=True),
    _names("nodes", nullable=True),
    Column("tasks", BigInteger(), nullable=True),
    _names("excluded_nodes"),
    _names("our_excluded_nodes"),
    Column("held", Boolean(), nullable=False),
    _text("pending_reason"),
    _text("stdout_path"),
    _text("stderr_path"),
    Column("job_rules", Text(), nullable=False, server_default=text("''")),
    _whole("nodes_fitting", nullable=True),
    _whole("gpus", nullable=True),
    Column("marked_generation", BigInteger(), nullable=False),
    _whole("marked_attempt"),
    # Not null: its scheduler has forgotten the requeue that made it, and it never ran. The generation that the attempt
    # before it had then, for builds before `advice.undone`.
    Column("withdrawn_generation", BigInteger(), nullable=True),
    _time("observed_at"),
    _time("first_seen_at"),
    _time("over_seen_at", nullable=True),
    Column("generation", BigInteger(), nullable=False),  # of the newest decision, 0 for none
    # How many orders of operators there were about it (given or lifted), and how many its newest decision has seen.
    Column("orders", BigInteger(), nullable=False, server_default=text("0")),
    Column("orders_decided", BigInteger(), nullable=False, server_default=text("0")),
    Column("open", Boolean(), nullable=False),  # False: nothing can change any more, never ticked again
    # progress, as the last tick left it
    Column("first_step", BigInteger(), nullable=True),
    Column("last_step", BigInteger(), nullable=True),
    Column("checkpoint_step", BigInteger(), nullable=True),
    Column("resumed_step", BigInteger(), nullable=True),  # what its first step followed
    _whole("in_job_restarts"),
    _time("first_progress_at", nullable=True),
    _time("last_progress_at", nullable=True),
    Column("save_seconds", ARRAY(Double()), nullable=True),  # what its checkpoints cost, the newest
    Column("foreign_count", BigInteger(), nullable=False),
    Column("progress", LargeBinary(), nullable=True),
    CheckConstraint("number >= 0", name="number"),
    Index("attempts_open_idx", "job_key", "number", postgresql_where=text("open")),
    Index(None, "submitted_at", "job_key", "number"),
    Index(None, "cluster", "submitted_at", "job_key", "number"),
    Index(None, "job_id", "submitted_at", "job_key", "number"),
    Index(None, "user_name", "submitted_at", "job_key", "number"),
    Index(None, "account", "submitted_at", "job_key", "number"),
    Index(None, "partition", "submitted_at", "job_key", "number"),
    Index(None, "nodes", postgresql_using="gin"),
)

# Every name under which the scheduler showed an attempt.
identities = Table(
    "identities",
    metadata,
    Column("cluster", Text(), primary_key=True),
    Column("slot", Text(), primary_key=True),
    Column("submitted_at", _TIME, primary_key=True),
    Column("restarts", Integer(), primary_key=True),
    Column("user_name", Text(), primary_key=True),
    _id("job_key"),
    _whole("number"),
    _time("first_seen_at"),
    _of_attempt(),
)

attempt_states = Table(
    "attempt_states",
    metadata,
    _sequence(),
    _id("job_key"),
    _whole("number"),
    _text("state"),
    _text("notice"),
    _time("observed_at"),
    _time_key("recorded_at"),
    Index(None, "job_key", "number", "seq"),
    postgresql_partition_by="RANGE (recorded_at)",
)

detector_states = Table(
    "detector_states",
    metadata,
    Column("job_key", _ID, primary_key=True),
    Column("number", Integer(), primary_key=True),
    Column("state", LargeBinary(), nullable=False),
    Column("signals", LargeBinary(), nullable=False),  # canonical JSON of the tuple
    _time("saved_at", nullable=True),  # nobody writes or reads it: the next contracting migration takes it away
    # A tick has looked at the attempt since its end, and what it decided is stored.
    Column("seen_over", Boolean(), nullable=False, server_default=text("false")),
    _of_attempt(),
)

blobs = Table(
    "blobs",
    metadata,
    Column("hash", Text(), primary_key=True),  # SHA-256 of the plain bytes
    Column("bytes", LargeBinary(), nullable=False),  # zlib
    Column("plain_bytes", BigInteger(), nullable=False),
    _time("created_at"),
    _numbered(),
    Index(None, "seq", unique=True),
)

incidents = Table(
    "incidents",
    metadata,
    Column("id", _ID, primary_key=True),
    _id("job_key"),
    _whole("number"),
    _text("cluster"),
    _text("job_id"),
    _text("user_name"),
    _account(),
    _text("partition"),
    _text("kind"),
    _text("category"),
    _text("root_cause"),
    _time("opened_at"),
    _time("closed_at", nullable=True),
    _names("implicated_nodes"),
    Column("signals", LargeBinary(), nullable=False),  # canonical JSON of the tuple, decisive first
    _id("decision_id"),
    UniqueConstraint("job_key", "number"),
    _of_attempt(),
    Index("incidents_open_idx", "id", postgresql_where=text("closed_at IS NULL")),
    Index(None, "opened_at", "id"),
    Index(None, "cluster", "opened_at", "id"),
    Index(None, "job_id", "opened_at", "id"),
    Index(None, "user_name", "opened_at", "id"),
    Index(None, "account", "opened_at", "id"),
    Index(None, "partition", "opened_at", "id"),
    Index(None, "category", "opened_at", "id"),
    Index(None, "implicated_nodes", postgresql_using="gin"),
)

decisions = Table(
    "decisions",
    metadata,
    Column("id", _ID, primary_key=True),
    _id("job_key"),
    _whole("number"),
    Column("generation", BigInteger(), nullable=False),
    _id("incarnation"),
    _text("cluster"),
    _text("job_id"),
    _text("user_name"),
    _account(),
    _text("partition"),
    _text("category"),
    _text("action"),
    _text("reason"),
    _text("mode"),
    _names("nodes"),  # implicated or excluded
    _text("fingerprint"),
    Column("settled", Boolean(), nullable=False),
    Column("trusted", Boolean(), nullable=False),
    _names("implicated_nodes"),
    _names("excluded_nodes"),
    _id("incident_id", nullable=True),
    Column("decision", LargeBinary(), nullable=False),  # canonical JSON
    _text("analysis"),  # JSON text, not jsonb: users' lines may hold \u0000
    _text("inputs_hash"),
    _text("rules_hash"),
    _text("policy_hash"),
    _text("build"),
    _time_key("created_at"),
    _time("expires_at"),
    _numbered(),
    UniqueConstraint("job_key", "number", "generation", "created_at"),
    Index(None, "seq"),
    Index(None, "created_at", "id"),
    Index(None, "cluster", "created_at", "id"),
    Index(None, "job_id", "created_at", "id"),
    Index(None, "job_key", "created_at", "id"),
    Index(None, "user_name", "created_at", "id"),
    Index(None, "account", "created_at", "id"),
    Index(None, "partition", "created_at", "id"),
    Index(None, "category", "created_at", "id"),
    Index(None, "action", "created_at", "id"),
    Index(None, "reason", "created_at", "id"),
    Index(None, "mode", "created_at", "id"),
    Index(None, "nodes", postgresql_using="gin"),
    postgresql_partition_by="RANGE (created_at)",
)

# The life of a decision as advice: the newest generation of an attempt is `open` until it is final.
advice = Table(
    "advice",
    metadata,
    Column("decision_id", _ID, primary_key=True),
    _text("cluster"),
    _id("job_key"),
    _whole("number"),
    Column("generation", BigInteger(), nullable=False),
    _text("action"),
    _time("created_at"),
    _time("expires_at"),
    _text("status"),
    Column("open", Boolean(), nullable=False),
    Column("applied", Boolean(), nullable=False),  # the scheduler accepted it
    # The scheduler has forgotten whatever came of it, with a requeue: it counts as neither accepted nor carried out.
    Column("undone", Boolean(), nullable=False, server_default=text("false")),
    UniqueConstraint("job_key", "number", "generation"),
    Index("advice_open_idx", "cluster", "expires_at", postgresql_where=text("open")),
    Index("advice_expiry_idx", "expires_at", postgresql_where=text("open")),
    Index(None, "status", "created_at", "decision_id"),
)

reconciliations = Table(
    "reconciliations",
    metadata,
    _sequence(),
    _id("decision_id"),
    _text("status"),
    _text("reason"),
    _text("detail"),
    _time("at"),
    _names("excluded_nodes"),
    _names("dropped_nodes"),
    _time_key("decided_at"),  # when its decision was made: lists are in that order
    Index(None, "decision_id", "seq"),
    Index(None, "status", "decided_at", "decision_id", "seq"),
    Index(None, "reason", "decided_at", "decision_id", "seq"),
    postgresql_partition_by="RANGE (decided_at)",
)

milestones = Table(
    "milestones",
    metadata,
    Column("job_key", _ID, primary_key=True),
    Column("number", Integer(), primary_key=True),
    Column("kind", Text(), primary_key=True),
    _time("at"),
    _text("detail"),
    _numbered(),
    _of_attempt(),
    Index(None, "seq", unique=True),
)

implications = Table(
    "implications",
    metadata,
    Column("incident_id", _ID, ForeignKey("incidents.id"), primary_key=True),
    Column("node", Text(), primary_key=True),
    _text("cluster"),
    _id("job_key"),
    _whole("number"),
    _text("job_id"),
    _text("user_name"),
    _text("partition"),
    Column("weight", Double(), nullable=False),
    _text("trust"),
    _text("role"),
    _text("category"),
    _text("rule"),
    Column("unit", Text(), server_default=text("''"), nullable=False),
    _time("at"),
    Index(None, "cluster", "node", "at", "incident_id"),
    Index(None, "at", "incident_id", "node"),
    Index(None, "cluster", "at", "incident_id", "node"),
    Index(None, "category", "at", "incident_id", "node"),
    Index(None, "job_id", "at", "incident_id", "node"),
    Index(None, "job_key", "at", "incident_id", "node"),
    Index(None, "user_name", "at", "incident_id", "node"),
    Index(None, "partition", "at", "incident_id", "node"),
)

node_states = Table(
    "node_states",
    metadata,
    Column("cluster", Text(), primary_key=True),
    Column("name", Text(), primary_key=True),
    _text("state"),
    _text("reason"),
    _names("partitions"),
    _time("since"),
    _time("observed_at"),
    _time("reinstated_at", nullable=True),  # last seen going from drained to up: somebody put it back
)

# Each change of a node's state, and of the reason while it is drained or down.
node_changes = Table(
    "node_changes",
    metadata,
    _sequence(),
    _text("cluster"),
    _text("name"),
    _text("before", nullable=True),
    _text("state"),
    _text("reason"),
    _time("at"),
    Index(None, "cluster", "at"),
    Index(None, "cluster", "name", "at"),
)

# What somebody says was really done about an attempt, where Slurm alone cannot tell.
shadow_records = Table(
    "shadow_records",
    metadata,
    Column("id", _ID, primary_key=True),
    _id("job_key"),
    _whole("number"),
    _text("cluster"),
    _text("did"),
    _names("nodes"),
    _time("did_at"),
    _text("who"),
    _text("why"),
    _text("origin"),
    _time("at"),
    _numbered(),
    _of_attempt(),
    Index(None, "seq", unique=True),
    Index(None, "job_key", "number", "at"),
)

# What an operator says is the right verdict. NULL: that part was right, or nothing is said about it; no nodes: none.
corrections = Table(
    "corrections",
    metadata,
    Column("id", _ID, primary_key=True),
    _id("decision_id"),
    _id("job_key"),
    _whole("number"),
    _text("cluster"),
    _text("category", nullable=True),
    _text("action", nullable=True),
    _names("nodes", nullable=True),
    _text("who"),
    _text("why"),
    _text("origin"),
    _time("at"),
    _numbered(),
    _of_attempt(),
    Index(None, "seq", unique=True),
    Index(None, "job_key", "number", "at"),
    Index(None, "at", "id"),
    Index(None, "decision_id", "at"),
)

# Categories that became autonomous by themselves: below what people set, above the configured default.
earned_autonomy = Table(
    "earned_autonomy",
    metadata,
    Column("cluster", Text(), primary_key=True),
    Column("category", Text(), primary_key=True),
    Column("held", Boolean(), nullable=False),
    Column("with_stop", Boolean(), nullable=False),
    _whole("agreed"),
    _whole("counted"),
    Column("lower", Double(), nullable=False),
    _text("why"),
    _time("since"),
)

mode_settings = Table(
    "mode_settings",
    metadata,
    Column("cluster", Text(), primary_key=True),
    Column("partition", Text(), primary_key=True),
    Column("job_id", Text(), primary_key=True),
    Column("category", Text(), primary_key=True),
    Column("account", Text(), primary_key=True),
    _text("mode"),
    _whole("percent", nullable=True),
    _text("set_by"),
    _text("why"),
    _time("set_at"),
)

# "" is every cluster.
pauses = Table(
    "pauses",
    metadata,
    Column("cluster", Text(), primary_key=True),
    _time("until"),
    _text("set_by"),
    _text("why"),
    _time("set_at"),
)

# `open`: an agent has something to do or to watch. At most one of a node is.
isolations = Table(
    "isolations",
    metadata,
    Column("id", _ID, primary_key=True),
    _text("cluster"),
    _text("node"),
    Column("generation", BigInteger(), nullable=False),
    Column("dry_run", Boolean(), nullable=False),
    _text("category"),
    _text("why"),
    # Those of a node that somebody isolated by hand are unset.
    _id("job_key", nullable=True),
    _whole("number", nullable=True),
    _text("job_id"),
    _time("opened_at"),
    _time("expires_at"),
    Column("open", Boolean(), nullable=False),
    _text("status"),
    _text("reason"),
    _text("detail"),
    _time("drained_at", nullable=True),
    _time("ended_at", nullable=True),
    _text("ended_by", nullable=True),
    _text("ended_why", nullable=True),
    _time("probed_at", nullable=True),
    Column("probe_passed", Boolean(), nullable=True),
    Column("opened_by", Text(), nullable=False, server_default=text("''")),
    _of_attempt(),
    Index("isolations_one_open_idx", "cluster", "node", unique=True, postgresql_where=text("open")),
    Index("isolations_expiry_idx", "expires_at", postgresql_where=text("open")),
    Index(None, "cluster", "opened_at", "id"),
    Index(None, "cluster", "node", "opened_at", "id"),
    Index(None, "opened_at", "id"),
)

# What operators order about jobs (advisor.store.orders). Of a job to come, `number` is the attempt it was said at.
orders = Table(
    "orders",
    metadata,
    Column("id", _ID, primary_key=True),
    _text("kind"),
    _text("cluster"),
    _id("job_key"),
    _whole("number"),
    _text("job_id"),
    _text("user_name"),
    _id("decision_id", nullable=True),  # the advice that it is about
    _text("action", nullable=True),
    _text("category", nullable=True),
    _text("node"),
    Column("ends_live", Boolean(), nullable=False, server_default=text("false")),
    Column("ceiling", Boolean(), nullable=False, server_default=text("false")),
    _text("set_by"),
    _text("why"),
    _text("origin"),
    _time("set_at"),
    _time("lifted_at", nullable=True),
    _text("lifted_by", nullable=True),
    _text("lifted_why", nullable=True),
    _of_attempt(),
    Index("orders_in_force_idx", "job_key", postgresql_where=text("lifted_at IS NULL")),
    Index(None, "set_at", "id"),
    Index(None, "cluster", "set_at", "id"),
    Index(None, "job_id", "set_at", "id"),
)

# A row: it has tripped. Resetting it removes the row; the audit keeps both.
isolation_breakers = Table(
    "isolation_breakers",
    metadata,
    Column("cluster", Text(), primary_key=True),
    _time("tripped_at"),
    _text("why"),
)

audit = Table(
    "audit",
    metadata,
    _sequence(),
    _id("id"),
    _time_key("at"),
    _text("who"),
    _text("what"),
    _text("why"),
    _text("origin"),
    _text("cluster"),
    _text("subject"),
    _text("detail"),  # JSON text
    UniqueConstraint("id", "at"),
    Index(None, "at", "id"),
    Index(None, "subject", "at", "id"),
    Index("audit_people_idx", "at", "id", postgresql_where=text(PEOPLE)),
    postgresql_partition_by="RANGE (at)",
)

# The outbox: one row for each decision and channel (advisor.store.notifications).
notifications = Table(
    "notifications",
    metadata,
    Column("channel", Text(), primary_key=True),
    Column("decision_id", _ID, primary_key=True),
    _id("job_key"),
    _whole("number"),
    _time("created_at"),
    _text("state"),
    _id("message_key", nullable=True),
    _time("claimed_at", nullable=True),
    _time("due_at", nullable=True),
    Column("tries", Integer(), nullable=False, server_default=text("0")),
    Column("uncertain", Boolean(), nullable=False, server_default=text("false")),
    _time("sent_at", nullable=True),
    Column("error", Text(), nullable=False, server_default=text("''")),
    Index(
        "notifications_open_idx",
        "channel",
        "created_at",
        postgresql_where=text("state IN ('waiting', 'sending')"),
    ),
    Index(None, "message_key"),
    Index(None, "channel", "job_key", "number"),
    Index(None, "channel", "claimed_at"),
)

# The chain over `SEALED` (advisor.seals): canonical JSON, and its signature when there is a key.
seals = Table(
    "seals",
    metadata,
    Column("number", BigInteger(), primary_key=True, autoincrement=False),
    Column("document", LargeBinary(), nullable=False),
    Column("signature", LargeBinary(), nullable=True),
)

# The digest of every sealed row, for as long as one of a seal's rows of that table is kept.
seal_leaves = Table(
    "seal_leaves",
    metadata,
    Column("number", BigInteger(), primary_key=True, autoincrement=False),
    Column("table_name", Text(), primary_key=True),
    Column("after", BigInteger(), nullable=False),
    Column("upto", BigInteger(), nullable=False),
    Column("leaves", LargeBinary(), nullable=False),
    Index(None, "table_name", "upto"),
)
