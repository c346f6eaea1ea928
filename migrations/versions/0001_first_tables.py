"""The first tables, and triggers that keep the append-only ones so."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0001"
down_revision: str | None = None
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

APPEND_ONLY = (
    "incarnations",
    "attempt_states",
    "blobs",
    "decisions",
    "reconciliations",
    "milestones",
    "audit",
)


def upgrade() -> None:
    op.create_table(
        "agents",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("session", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("scheduler", sa.Text(), nullable=False),
        sa.Column("requeue_delay_seconds", sa.Double(), nullable=True),
        sa.Column("job_memory_seconds", sa.Double(), nullable=True),
        sa.Column("missing_rights", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("registered_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("last_seen_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "host", name=op.f("agents_pkey")),
        sa.UniqueConstraint("session", name=op.f("agents_session_key")),
    )
    op.create_table(
        "attempt_states",
        sa.Column("seq", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("job_key", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("notice", sa.Text(), nullable=False),
        sa.Column("observed_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("recorded_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("attempt_states_pkey")),
    )
    op.create_index(
        op.f("attempt_states_job_key_number_seq_idx"), "attempt_states", ["job_key", "number", "seq"], unique=False
    )
    op.create_table(
        "audit",
        sa.Column("seq", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("what", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("audit_pkey")),
        sa.UniqueConstraint("id", name=op.f("audit_id_key")),
    )
    op.create_index(op.f("audit_at_id_idx"), "audit", ["at", "id"], unique=False)
    op.create_index(op.f("audit_subject_at_id_idx"), "audit", ["subject", "at", "id"], unique=False)
    op.create_table(
        "blobs",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("bytes", sa.LargeBinary(), nullable=False),
        sa.Column("plain_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("hash", name=op.f("blobs_pkey")),
    )
    op.create_table(
        "incarnations",
        sa.Column("seq", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("system_identifier", sa.Text(), nullable=False),
        sa.Column("timeline", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("incarnations_pkey")),
        sa.UniqueConstraint("id", name=op.f("incarnations_id_key")),
    )
    op.create_table(
        "jobs",
        sa.Column("key", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("slot", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("user_name", sa.Text(), nullable=False),
        sa.Column("user_id", sa.BigInteger(), nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("partition", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("batch", sa.Boolean(), nullable=True),
        sa.Column("requeueable", sa.Boolean(), nullable=True),
        sa.Column("in_scope", sa.Boolean(), nullable=False),
        sa.Column("scope_reason", sa.Text(), nullable=False),
        sa.Column("restarts_max", sa.Integer(), nullable=True),
        sa.Column("nodes_requested", sa.Integer(), nullable=True),
        sa.Column("array_job_id", sa.Text(), nullable=False),
        sa.Column("array_task", sa.BigInteger(), nullable=True),
        sa.Column("het_job_id", sa.Text(), nullable=False),
        sa.Column("het_offset", sa.Integer(), nullable=True),
        sa.Column("last_number", sa.Integer(), nullable=False),
        sa.Column("first_seen_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("last_seen_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("forgotten_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("key", name=op.f("jobs_pkey")),
    )
    op.create_index(
        op.f("jobs_cluster_job_id_first_seen_at_idx"), "jobs", ["cluster", "job_id", "first_seen_at"], unique=False
    )
    op.create_index(op.f("jobs_cluster_slot_idx"), "jobs", ["cluster", "slot"], unique=False)
    op.create_index(
        "jobs_known_idx", "jobs", ["cluster"], unique=False, postgresql_where=sa.text("forgotten_at IS NULL")
    )
    op.create_table(
        "mode_settings",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("partition", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("category", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("set_by", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("set_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "partition", "job_id", "category", name=op.f("mode_settings_pkey")),
    )
    op.create_table(
        "node_states",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("partitions", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("since", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("observed_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "name", name=op.f("node_states_pkey")),
    )
    op.create_table(
        "attempts",
        sa.Column("job_key", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("user_name", sa.Text(), nullable=False),
        sa.Column("partition", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("submitted_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("eligible_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("started_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("ended_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("exit_signal", sa.Integer(), nullable=True),
        sa.Column("nodes", postgresql.ARRAY(sa.Text()), nullable=True),
        sa.Column("tasks", sa.BigInteger(), nullable=True),
        sa.Column("excluded_nodes", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("our_excluded_nodes", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("held", sa.Boolean(), nullable=False),
        sa.Column("pending_reason", sa.Text(), nullable=False),
        sa.Column("stdout_path", sa.Text(), nullable=False),
        sa.Column("stderr_path", sa.Text(), nullable=False),
        sa.Column("nodes_fitting", sa.Integer(), nullable=True),
        sa.Column("marked_generation", sa.BigInteger(), nullable=False),
        sa.Column("marked_attempt", sa.Integer(), nullable=False),
        sa.Column("observed_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("first_seen_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("over_seen_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("open", sa.Boolean(), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=True),
        sa.Column("last_step", sa.BigInteger(), nullable=True),
        sa.Column("checkpoint_step", sa.BigInteger(), nullable=True),
        sa.Column("in_job_restarts", sa.Integer(), nullable=False),
        sa.Column("foreign_count", sa.BigInteger(), nullable=False),
        sa.Column("progress", sa.LargeBinary(), nullable=True),
        sa.CheckConstraint("number >= 0", name=op.f("attempts_number_check")),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.key"], name=op.f("attempts_job_key_fkey")),
        sa.PrimaryKeyConstraint("job_key", "number", name=op.f("attempts_pkey")),
    )
    op.create_index(
        op.f("attempts_cluster_submitted_at_job_key_number_idx"),
        "attempts",
        ["cluster", "submitted_at", "job_key", "number"],
        unique=False,
    )
    op.create_index(
        op.f("attempts_job_id_submitted_at_job_key_number_idx"),
        "attempts",
        ["job_id", "submitted_at", "job_key", "number"],
        unique=False,
    )
    op.create_index(op.f("attempts_nodes_idx"), "attempts", ["nodes"], unique=False, postgresql_using="gin")
    op.create_index(
        "attempts_open_idx", "attempts", ["job_key", "number"], unique=False, postgresql_where=sa.text("open")
    )
    op.create_index(
        op.f("attempts_partition_submitted_at_job_key_number_idx"),
        "attempts",
        ["partition", "submitted_at", "job_key", "number"],
        unique=False,
    )
    op.create_index(
        op.f("attempts_submitted_at_job_key_number_idx"),
        "attempts",
        ["submitted_at", "job_key", "number"],
        unique=False,
    )
    op.create_index(
        op.f("attempts_user_name_submitted_at_job_key_number_idx"),
        "attempts",
        ["user_name", "submitted_at", "job_key", "number"],
        unique=False,
    )
    op.create_table(
        "decisions",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("job_key", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("incarnation", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("user_name", sa.Text(), nullable=False),
        sa.Column("partition", sa.Text(), nullable=False),
        sa.Column("category", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("nodes", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("settled", sa.Boolean(), nullable=False),
        sa.Column("trusted", sa.Boolean(), nullable=False),
        sa.Column("implicated_nodes", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("excluded_nodes", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("incident_id", sa.Uuid(as_uuid=False), nullable=True),
        sa.Column("decision", sa.LargeBinary(), nullable=False),
        sa.Column("analysis", sa.Text(), nullable=False),
        sa.Column("inputs_hash", sa.Text(), nullable=False),
        sa.Column("rules_hash", sa.Text(), nullable=False),
        sa.Column("policy_hash", sa.Text(), nullable=False),
        sa.Column("build", sa.Text(), nullable=False),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("expires_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["inputs_hash"], ["blobs.hash"], name=op.f("decisions_inputs_hash_fkey")),
        sa.ForeignKeyConstraint(
            ["job_key", "number"], ["attempts.job_key", "attempts.number"], name=op.f("decisions_job_key_number_fkey")
        ),
        sa.ForeignKeyConstraint(["policy_hash"], ["blobs.hash"], name=op.f("decisions_policy_hash_fkey")),
        sa.ForeignKeyConstraint(["rules_hash"], ["blobs.hash"], name=op.f("decisions_rules_hash_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("decisions_pkey")),
        sa.UniqueConstraint("job_key", "number", "generation", name=op.f("decisions_job_key_number_generation_key")),
    )
    op.create_index(
        op.f("decisions_action_created_at_id_idx"), "decisions", ["action", "created_at", "id"], unique=False
    )
    op.create_index(
        op.f("decisions_category_created_at_id_idx"), "decisions", ["category", "created_at", "id"], unique=False
    )
    op.create_index(
        op.f("decisions_cluster_created_at_id_idx"), "decisions", ["cluster", "created_at", "id"], unique=False
    )
    op.create_index(op.f("decisions_created_at_id_idx"), "decisions", ["created_at", "id"], unique=False)
    op.create_index(
        op.f("decisions_job_id_created_at_id_idx"), "decisions", ["job_id", "created_at", "id"], unique=False
    )
    op.create_index(
        op.f("decisions_job_key_created_at_id_idx"), "decisions", ["job_key", "created_at", "id"], unique=False
    )
    op.create_index(op.f("decisions_mode_created_at_id_idx"), "decisions", ["mode", "created_at", "id"], unique=False)
    op.create_index(op.f("decisions_nodes_idx"), "decisions", ["nodes"], unique=False, postgresql_using="gin")
    op.create_index(
        op.f("decisions_partition_created_at_id_idx"), "decisions", ["partition", "created_at", "id"], unique=False
    )
    op.create_index(
        op.f("decisions_reason_created_at_id_idx"), "decisions", ["reason", "created_at", "id"], unique=False
    )
    op.create_index(
        op.f("decisions_user_name_created_at_id_idx"), "decisions", ["user_name", "created_at", "id"], unique=False
    )
    op.create_table(
        "detector_states",
        sa.Column("job_key", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.LargeBinary(), nullable=False),
        sa.Column("signals", sa.LargeBinary(), nullable=False),
        sa.Column("saved_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_key", "number"],
            ["attempts.job_key", "attempts.number"],
            name=op.f("detector_states_job_key_number_fkey"),
        ),
        sa.PrimaryKeyConstraint("job_key", "number", name=op.f("detector_states_pkey")),
    )
    op.create_table(
        "identities",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("slot", sa.Text(), nullable=False),
        sa.Column("submitted_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("restarts", sa.Integer(), nullable=False),
        sa.Column("user_name", sa.Text(), nullable=False),
        sa.Column("job_key", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("first_seen_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_key", "number"], ["attempts.job_key", "attempts.number"], name=op.f("identities_job_key_number_fkey")
        ),
        sa.PrimaryKeyConstraint(
            "cluster", "slot", "submitted_at", "restarts", "user_name", name=op.f("identities_pkey")
        ),
    )
    op.create_table(
        "incidents",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("job_key", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("user_name", sa.Text(), nullable=False),
        sa.Column("partition", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("category", sa.Text(), nullable=False),
        sa.Column("root_cause", sa.Text(), nullable=False),
        sa.Column("opened_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("closed_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("implicated_nodes", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("signals", sa.LargeBinary(), nullable=False),
        sa.Column("decision_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_key", "number"], ["attempts.job_key", "attempts.number"], name=op.f("incidents_job_key_number_fkey")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("incidents_pkey")),
        sa.UniqueConstraint("job_key", "number", name=op.f("incidents_job_key_number_key")),
    )
    op.create_index(
        op.f("incidents_category_opened_at_id_idx"), "incidents", ["category", "opened_at", "id"], unique=False
    )
    op.create_index(
        op.f("incidents_cluster_opened_at_id_idx"), "incidents", ["cluster", "opened_at", "id"], unique=False
    )
    op.create_index(
        op.f("incidents_implicated_nodes_idx"), "incidents", ["implicated_nodes"], unique=False, postgresql_using="gin"
    )
    op.create_index(op.f("incidents_job_id_opened_at_id_idx"), "incidents", ["job_id", "opened_at", "id"], unique=False)
    op.create_index(
        "incidents_open_idx", "incidents", ["id"], unique=False, postgresql_where=sa.text("closed_at IS NULL")
    )
    op.create_index(op.f("incidents_opened_at_id_idx"), "incidents", ["opened_at", "id"], unique=False)
    op.create_index(
        op.f("incidents_partition_opened_at_id_idx"), "incidents", ["partition", "opened_at", "id"], unique=False
    )
    op.create_index(
        op.f("incidents_user_name_opened_at_id_idx"), "incidents", ["user_name", "opened_at", "id"], unique=False
    )
    op.create_table(
        "milestones",
        sa.Column("job_key", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_key", "number"], ["attempts.job_key", "attempts.number"], name=op.f("milestones_job_key_number_fkey")
        ),
        sa.PrimaryKeyConstraint("job_key", "number", "kind", name=op.f("milestones_pkey")),
    )
    op.create_table(
        "advice",
        sa.Column("decision_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("job_key", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("created_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("expires_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("open", sa.Boolean(), nullable=False),
        sa.Column("applied", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["decision_id"], ["decisions.id"], name=op.f("advice_decision_id_fkey")),
        sa.PrimaryKeyConstraint("decision_id", name=op.f("advice_pkey")),
        sa.UniqueConstraint("job_key", "number", "generation", name=op.f("advice_job_key_number_generation_key")),
    )
    op.create_index("advice_expiry_idx", "advice", ["expires_at"], unique=False, postgresql_where=sa.text("open"))
    op.create_index(
        "advice_open_idx", "advice", ["cluster", "expires_at"], unique=False, postgresql_where=sa.text("open")
    )
    op.create_index(
        op.f("advice_status_created_at_decision_id_idx"),
        "advice",
        ["status", "created_at", "decision_id"],
        unique=False,
    )
    op.create_table(
        "implications",
        sa.Column("incident_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("job_key", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("user_name", sa.Text(), nullable=False),
        sa.Column("partition", sa.Text(), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("trust", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("category", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"], name=op.f("implications_incident_id_fkey")),
        sa.PrimaryKeyConstraint("incident_id", "node", name=op.f("implications_pkey")),
    )
    op.create_index(
        op.f("implications_at_incident_id_node_idx"), "implications", ["at", "incident_id", "node"], unique=False
    )
    op.create_index(
        op.f("implications_category_at_incident_id_node_idx"),
        "implications",
        ["category", "at", "incident_id", "node"],
        unique=False,
    )
    op.create_index(
        op.f("implications_cluster_at_incident_id_node_idx"),
        "implications",
        ["cluster", "at", "incident_id", "node"],
        unique=False,
    )
    op.create_index(
        op.f("implications_cluster_node_at_incident_id_idx"),
        "implications",
        ["cluster", "node", "at", "incident_id"],
        unique=False,
    )
    op.create_index(
        op.f("implications_job_id_at_incident_id_node_idx"),
        "implications",
        ["job_id", "at", "incident_id", "node"],
        unique=False,
    )
    op.create_index(
        op.f("implications_job_key_at_incident_id_node_idx"),
        "implications",
        ["job_key", "at", "incident_id", "node"],
        unique=False,
    )
    op.create_index(
        op.f("implications_partition_at_incident_id_node_idx"),
        "implications",
        ["partition", "at", "incident_id", "node"],
        unique=False,
    )
    op.create_index(
        op.f("implications_user_name_at_incident_id_node_idx"),
        "implications",
        ["user_name", "at", "incident_id", "node"],
        unique=False,
    )
    op.create_table(
        "reconciliations",
        sa.Column("seq", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("decision_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("excluded_nodes", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("dropped_nodes", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.ForeignKeyConstraint(["decision_id"], ["decisions.id"], name=op.f("reconciliations_decision_id_fkey")),
        sa.PrimaryKeyConstraint("seq", name=op.f("reconciliations_pkey")),
    )
    op.create_index(
        op.f("reconciliations_decision_id_seq_idx"), "reconciliations", ["decision_id", "seq"], unique=False
    )
    op.execute(
        """
        CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            RAISE EXCEPTION 'table % is append-only: % refused', TG_TABLE_NAME, TG_OP
                USING ERRCODE = 'integrity_constraint_violation';
        END
        $$
        """
    )
    for table in APPEND_ONLY:
        op.execute(
            f"CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )


def downgrade() -> None:
    op.drop_index(op.f("reconciliations_decision_id_seq_idx"), table_name="reconciliations")
    op.drop_table("reconciliations")
    op.drop_index(op.f("implications_user_name_at_incident_id_node_idx"), table_name="implications")
    op.drop_index(op.f("implications_partition_at_incident_id_node_idx"), table_name="implications")
    op.drop_index(op.f("implications_job_key_at_incident_id_node_idx"), table_name="implications")
    op.drop_index(op.f("implications_job_id_at_incident_id_node_idx"), table_name="implications")
    op.drop_index(op.f("implications_cluster_node_at_incident_id_idx"), table_name="implications")
    op.drop_index(op.f("implications_cluster_at_incident_id_node_idx"), table_name="implications")
    op.drop_index(op.f("implications_category_at_incident_id_node_idx"), table_name="implications")
    op.drop_index(op.f("implications_at_incident_id_node_idx"), table_name="implications")
    op.drop_table("implications")
    op.drop_index(op.f("advice_status_created_at_decision_id_idx"), table_name="advice")
    op.drop_index("advice_open_idx", table_name="advice", postgresql_where=sa.text("open"))
    op.drop_index("advice_expiry_idx", table_name="advice", postgresql_where=sa.text("open"))
    op.drop_table("advice")
    op.drop_table("milestones")
    op.drop_index(op.f("incidents_user_name_opened_at_id_idx"), table_name="incidents")
    op.drop_index(op.f("incidents_partition_opened_at_id_idx"), table_name="incidents")
    op.drop_index(op.f("incidents_opened_at_id_idx"), table_name="incidents")
    op.drop_index("incidents_open_idx", table_name="incidents", postgresql_where=sa.text("closed_at IS NULL"))
    op.drop_index(op.f("incidents_job_id_opened_at_id_idx"), table_name="incidents")
    op.drop_index(op.f("incidents_implicated_nodes_idx"), table_name="incidents", postgresql_using="gin")
    op.drop_index(op.f("incidents_cluster_opened_at_id_idx"), table_name="incidents")
    op.drop_index(op.f("incidents_category_opened_at_id_idx"), table_name="incidents")
    op.drop_table("incidents")
    op.drop_table("identities")
    op.drop_table("detector_states")
    op.drop_index(op.f("decisions_user_name_created_at_id_idx"), table_name="decisions")
    op.drop_index(op.f("decisions_reason_created_at_id_idx"), table_name="decisions")
    op.drop_index(op.f("decisions_partition_created_at_id_idx"), table_name="decisions")
    op.drop_index(op.f("decisions_nodes_idx"), table_name="decisions", postgresql_using="gin")
    op.drop_index(op.f("decisions_mode_created_at_id_idx"), table_name="decisions")
    op.drop_index(op.f("decisions_job_key_created_at_id_idx"), table_name="decisions")
    op.drop_index(op.f("decisions_job_id_created_at_id_idx"), table_name="decisions")
    op.drop_index(op.f("decisions_created_at_id_idx"), table_name="decisions")
    op.drop_index(op.f("decisions_cluster_created_at_id_idx"), table_name="decisions")
    op.drop_index(op.f("decisions_category_created_at_id_idx"), table_name="decisions")
    op.drop_index(op.f("decisions_action_created_at_id_idx"), table_name="decisions")
    op.drop_table("decisions")
    op.drop_index(op.f("attempts_user_name_submitted_at_job_key_number_idx"), table_name="attempts")
    op.drop_index(op.f("attempts_submitted_at_job_key_number_idx"), table_name="attempts")
    op.drop_index(op.f("attempts_partition_submitted_at_job_key_number_idx"), table_name="attempts")
    op.drop_index("attempts_open_idx", table_name="attempts", postgresql_where=sa.text("open"))
    op.drop_index(op.f("attempts_nodes_idx"), table_name="attempts", postgresql_using="gin")
    op.drop_index(op.f("attempts_job_id_submitted_at_job_key_number_idx"), table_name="attempts")
    op.drop_index(op.f("attempts_cluster_submitted_at_job_key_number_idx"), table_name="attempts")
    op.drop_table("attempts")
    op.drop_table("node_states")
    op.drop_table("mode_settings")
    op.drop_index("jobs_known_idx", table_name="jobs", postgresql_where=sa.text("forgotten_at IS NULL"))
    op.drop_index(op.f("jobs_cluster_slot_idx"), table_name="jobs")
    op.drop_index(op.f("jobs_cluster_job_id_first_seen_at_idx"), table_name="jobs")
    op.drop_table("jobs")
    op.drop_table("incarnations")
    op.drop_table("blobs")
    op.drop_index(op.f("audit_subject_at_id_idx"), table_name="audit")
    op.drop_index(op.f("audit_at_id_idx"), table_name="audit")
    op.drop_table("audit")
    op.drop_index(op.f("attempt_states_job_key_number_seq_idx"), table_name="attempt_states")
    op.drop_table("attempt_states")
    op.drop_table("agents")
    op.execute("DROP FUNCTION refuse_change()")
