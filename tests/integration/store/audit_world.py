"""A year of a large site in the store, made by SQL: for the test of plans (thousands of rows) and the benchmark.

What hangs together in life does here: partitions belong to clusters and users to accounts, GPUs fail in partitions that
have some, the category decides the action and the reason, what comes of advice depends on its mode, and the mode was
monitor until the last months. Users and nodes are as unequal as they are: a few have most.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from advisor.core.codec import encode
from advisor.store.documents import pack_signals
from advisor.store.months import make, missing
from tests.integration.store.worlds import decision, signal

YEAR = timedelta(days=365)
PEOPLE_SHARE = 50  # one action of a person for so many decisions

# `u(n, k)`: a number in 0..1 that depends on row and purpose only.
_HELPERS = """
CREATE FUNCTION pg_temp.u(n bigint, k bigint) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
  'SELECT (hashint8extended(n, k) & 1073741823) / 1073741824.0';
"""
_JOBS = """
INSERT INTO jobs (key, cluster, slot, job_id, user_name, name, partition, account, in_scope, scope_reason,
    array_job_id, array_task, het_job_id, last_number, first_seen_at, last_seen_at, waits_for, singleton)
SELECT md5('j' || i)::uuid, cluster, i::text, i::text, 'user' || who, 'train', cluster || part, 'account' || who % 40,
    true, '', CASE WHEN i % 10 = 0 THEN (i / 500 * 500)::text ELSE '' END,
    CASE WHEN i % 10 = 0 THEN i % 500 / 10 END, '', 1, at, at, '{{}}', false
FROM (
    SELECT i, (ARRAY['alps', 'alps', 'alps', 'jura', 'jura', 'tatra'])[1 + floor(6 * pg_temp.u(i, 1))::int] AS cluster,
        (ARRAY['-h100', '-h100', '-a100', '-cpu'])[1 + floor(4 * pg_temp.u(i, 2))::int] AS part,
        floor(300 * power(pg_temp.u(i, 3), 3))::int AS who,
        timestamptz '{first}' + i * interval '{step} seconds' AS at
    FROM generate_series(1, {jobs}) AS i
) AS drawn;
"""
_ATTEMPTS = """
INSERT INTO attempts (job_key, number, cluster, job_id, user_name, account, partition, state, submitted_at, nodes,
    excluded_nodes, our_excluded_nodes, held, pending_reason, stdout_path, stderr_path, marked_generation,
    marked_attempt, observed_at, first_seen_at, generation, open, in_job_restarts, foreign_count)
SELECT key, n, cluster, job_id, user_name, account, partition, 'failed', at,
    ARRAY(SELECT 'node' || (job_id::int * 7 + n * 13 + k) % 2000 FROM generate_series(1, 8) AS k), '{{}}', '{{}}',
    false, '', '', '', 0, 0, at, at, 2, false, 0, 0
FROM (SELECT *, first_seen_at + n * interval '1 hour' AS at FROM jobs, generate_series(0, 1) AS n) AS a;
"""
_DECISIONS = """
INSERT INTO decisions (id, job_key, number, generation, incarnation, cluster, job_id, user_name, account, partition,
    category, action, reason, mode, nodes, fingerprint, settled, trusted, implicated_nodes, excluded_nodes, incident_id,
    decision, analysis, inputs_hash, rules_hash, policy_hash, build, created_at, expires_at)
SELECT md5('d' || job_id || '/' || number || '/' || generation)::uuid, job_key, number, generation, md5('i')::uuid,
    cluster, job_id, user_name, account, partition, category, action,
    CASE action WHEN 'none' THEN (ARRAY['healthy', 'completed', 'cancelled_by_user'])[1 + seed % 3]
        WHEN 'stop' THEN (ARRAY['same_failure_again', 'budget_exhausted', 'startup_error'])[1 + seed % 3]
        ELSE (ARRAY['nodes_implicated', 'within_budget', 'scheduler_event', 'first_failure'])[1 + seed % 4] END,
    CASE WHEN cluster = 'alps' AND created_at > timestamptz '{first}' + interval '250 days'
        AND action <> 'stop' THEN 'autonomous' ELSE 'monitor' END,
    nodes, category || seed % 50, true, true, nodes, nodes,
    CASE WHEN category = 'none' THEN NULL ELSE md5('n' || job_id || '/' || number)::uuid END,
    (:decisions)[1 + seed % :kinds], :analysis, 'h', 'h', 'h', 'b1', created_at, created_at + interval '4 minutes'
FROM (
    SELECT *, CASE category WHEN 'none' THEN 'none'
            WHEN 'application' THEN CASE WHEN seed % 2 = 0 THEN 'stop' ELSE 'restart' END
            ELSE CASE WHEN seed % 25 = 0 THEN 'stop' ELSE 'restart' END END AS action,
        CASE WHEN category IN ('gpu_hardware', 'node_hardware', 'interconnect') THEN
            ARRAY['node' || floor(2000 * power(pg_temp.u(seed, 5), 2))::int, 'node' || seed % 2000]
            ELSE '{{}}' END AS nodes
    FROM (
        SELECT job_key, number, cluster, job_id, user_name, account, partition, which AS generation,
            (hashint8extended(job_id::bigint * 8 + number * 2, 4) & 1073741823)::int AS seed,
            submitted_at + interval '40 minutes' + which * interval '20 seconds' AS created_at,
            CASE WHEN partition LIKE '%cpu' THEN
                (ARRAY['none', 'none', 'none', 'application', 'application', 'host_out_of_memory', 'storage', 'unknown',
                    'node_hardware'])[1 + floor(9 * pg_temp.u(job_id::bigint * 2 + number, 6))::int]
            ELSE (ARRAY['none', 'none', 'none', 'none', 'gpu_hardware', 'gpu_hardware', 'interconnect', 'application',
                    'application', 'gpu_out_of_memory', 'numerics', 'storage', 'system_software', 'unknown',
                    'scheduler_event', 'user_cancel', 'node_hardware'])
                    [1 + floor(17 * pg_temp.u(job_id::bigint * 2 + number, 6))::int]
            END AS category
        FROM attempts, generate_series(1, 2) AS which
    ) AS drawn
) AS decided
ORDER BY created_at;
"""
_REST = """
INSERT INTO advice (decision_id, cluster, job_key, number, generation, action, created_at, expires_at, status, open,
    applied)
SELECT id, cluster, job_key, number, generation, action, created_at, expires_at,
    CASE WHEN generation = 1 THEN 'superseded' WHEN mode = 'monitor' THEN 'withheld' WHEN action = 'none' THEN
        'already_satisfied' WHEN pg_temp.u(job_id::bigint, 7) < 0.04 THEN 'expired'
        WHEN pg_temp.u(job_id::bigint, 7) < 0.1 THEN 'withheld'
        WHEN pg_temp.u(job_id::bigint, 7) < 0.11 THEN 'abandoned' ELSE 'verified' END,
    false, true FROM decisions;
INSERT INTO reconciliations (decision_id, status, reason, detail, at, excluded_nodes, dropped_nodes, decided_at)
SELECT decision_id, status, CASE status WHEN 'superseded' THEN 'newer_generation' WHEN 'verified' THEN 'observed'
    WHEN 'expired' THEN 'time_to_live' WHEN 'already_satisfied' THEN 'nothing_to_do' WHEN 'abandoned' THEN 'gone'
    ELSE 'monitor_mode' END, '', created_at + interval '9 seconds', '{{}}', '{{}}', created_at
FROM advice ORDER BY created_at;
INSERT INTO incidents (id, job_key, number, cluster, job_id, user_name, account, partition, kind, category, root_cause,
    opened_at, closed_at, implicated_nodes, signals, decision_id)
SELECT incident_id, job_key, number, cluster, job_id, user_name, account, partition, 'crash', category, 'root',
    created_at, created_at + interval '1 minute', implicated_nodes, :signals, id
FROM decisions WHERE generation = 2 AND incident_id IS NOT NULL ORDER BY created_at;
INSERT INTO implications (incident_id, node, cluster, job_key, number, job_id, user_name, partition, weight, trust,
    role, category, rule, at)
SELECT id, node, cluster, job_key, number, job_id, user_name, partition, 1, 'kernel', 'initiating', category,
    'nvidia.xid', opened_at
FROM incidents, unnest(implicated_nodes) AS node ON CONFLICT DO NOTHING;
INSERT INTO audit (id, at, who, what, why, origin, cluster, subject, detail)
SELECT gen_random_uuid(), created_at, 'advisor', 'decision_committed', reason, '', cluster, id::text, '{{}}'
FROM decisions ORDER BY created_at;
INSERT INTO audit (id, at, who, what, why, origin, cluster, subject, detail)
SELECT gen_random_uuid(), at, 'agent@ctl', 'advice_reconciled', reason, '', '', decision_id::text, '{{}}'
FROM reconciliations ORDER BY at;
INSERT INTO audit (id, at, who, what, why, origin, cluster, subject, detail)
SELECT gen_random_uuid(), created_at, 'operator' || job_id::bigint % 12,
    (ARRAY['mode_set', 'paused', 'resumed', 'vetoed', 'node_probed'])[1 + job_id::int % 5], 'because', 'unix socket',
    cluster, job_id, '{{}}'
FROM decisions WHERE job_id::bigint % :people = 0 ORDER BY created_at;
INSERT INTO milestones (job_key, number, kind, at, detail)
SELECT job_key, number, kind, submitted_at, '' FROM attempts, unnest(ARRAY['detected', 'advised']) AS kind;
"""


def _variants(count: int) -> list[bytes]:
    """Decisions as they are stored, of a few kilobytes, no two alike."""
    found = []
    for number in range(count):
        signals = tuple(
            signal(
                f"{number}-{place}", text=f"NVRM: Xid (PCI:0000:4e:00): 79, pid={number}, GPU {place} is off the bus"
            )
            for place in range(6)
        )
        made = decision()
        found.append(encode(replace(made, incident=replace(made.incident, signals=signals))))
    return found


def statements(rows: int, first: datetime) -> Iterator[tuple[str, dict[str, object]]]:
    """`rows` decisions over a year that begins at `first`: a quarter as many jobs, of two attempts each."""
    jobs = max(rows // 4, 1)
    names = {"first": first.isoformat(), "jobs": jobs, "step": f"{YEAR.total_seconds() / jobs:.6f}"}
    kinds = min(max(rows // 100, 1), 200)
    values: dict[str, object] = {
        "decisions": _variants(kinds),
        "kinds": kinds,
        "analysis": '{"schema":"advisor.analysis/1","told":"' + "what the analysis tells of it, " * 150 + '"}',
        "signals": pack_signals([signal(f"s{place}") for place in range(6)]),
        "people": PEOPLE_SHARE,
    }
    yield _HELPERS, {}
    yield "INSERT INTO blobs (hash, bytes, plain_bytes, created_at) VALUES ('h', '', 0, now())", {}
    for block in (_JOBS, _ATTEMPTS, _DECISIONS, _REST):
        for statement in block.format(**names).split(";\n"):
            if statement.strip():
                yield statement, {name: value for name, value in values.items() if f":{name}" in statement}


async def fill(connection: AsyncConnection, rows: int, first: datetime) -> None:
    """In the connection's transaction, with months of their own; statistics included."""
    for table, month in await missing(connection, first + YEAR):
        await make(connection, table, month)
    for statement, values in statements(rows, first):
        await connection.execute(text(statement), values)


async def analyse(connection: AsyncConnection, tables: Sequence[str]) -> None:
    for table in tables:
        await connection.execute(text(f"ANALYZE {table}"))  # parts included; autovacuum looks at parts only


BIG = ("jobs", "attempts", "decisions", "advice", "reconciliations", "incidents", "implications", "audit", "milestones")
