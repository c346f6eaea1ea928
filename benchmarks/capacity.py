"""How many jobs one advisor carries, and what a job costs it: `python -m benchmarks.capacity [options]`.

Real: the service as a process (`--replicas` of them over one Postgres), every report of the agent through gRPC, rules
as shipped, the log-store connector over HTTP. Emulated: the agent (a script that reports what the real one would, as
often), and the log store (a process that makes up its lines, see `_capacity_store`). Parts:

    steady   all jobs run; one rank of each prints progress every `--print-seconds`. Seconds per tick (p50, p99),
             where they go by stage, statements per tick, CPU per job, memory.
    event    all jobs fail at once with what NCCL says of a dead port: until when each has its advice.
    mass     instead of both, with `--mass one|node|each`: one job of `--ranks` ranks whose ranks all print a traceback
             within a second, into one file, one for each node or one each. Until its advice, and memory.

Beside them, in the same run: what a core of this machine gives (`spin`), rows committed one by one, load. Targets
(DESIGN section 11): 2,000 jobs of 100 ranks on 2 cores, tick p99 below 1 s, 1.5 GB.
"""

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from advisor.store.embedded import EmbeddedPostgres
from advisor.store.migrate import migrate
from benchmarks import _capacity_world as world
from benchmarks._capacity_mass import write_ranks
from benchmarks._processes import children_of, cpu_seconds_of_living, memory_mb
from benchmarks._progress import now_at, telling

REFERENCE_SECONDS = 2.0
EVENT_SECONDS_MAX = 300.0
WARM_SECONDS_MAX = 180.0
STILL_SECONDS = 8.0  # nothing was read for so long: what will be read is
LOOK_SECONDS = 0.2
SLOWEST = 4  # ticks that are told one by one
LOCK_LOOK_SECONDS = 0.05
STEP = " [{at}] iteration {step:>8}/ 100000 | elapsed time per iteration (ms): 100.0 | loss: 1.0\n"


async def bare_commits(url: str) -> float:
    """Transactions of one small row each, per second: what the disk and the database give at best, one by one."""
    engine = create_async_engine(url)
    count, began = 0, time.monotonic()
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE IF NOT EXISTS bench_reference (n bigint)"))
    while time.monotonic() - began < REFERENCE_SECONDS:
        async with engine.begin() as connection:
            await connection.execute(text("INSERT INTO bench_reference VALUES (1)"))
        count += 1
    await engine.dispose()
    return count / (time.monotonic() - began)


async def steady(
    options: argparse.Namespace, replicas: Sequence[world.Replica], url: str, store_pid: int, postmaster: int
) -> dict[str, Any]:
    """Until every job is watched and its past is read; then a while of nothing but progress."""
    now_at(f"until {options.jobs} jobs are watched")
    deadline, calm = time.monotonic() + WARM_SECONDS_MAX, 0
    while calm < 3 and time.monotonic() < deadline:
        await asyncio.sleep(1.0)
        newest = [tick for replica in replicas for tick in replica.ticks(world.now() - 3.0, world.now())[-1:]]
        settled = sum(tick["watched"] for tick in newest) >= options.jobs
        calm = calm + 1 if settled else 0
    now_at(f"{options.warm_seconds:g} s to get warm, then {options.seconds:g} s that are measured")
    await asyncio.sleep(options.warm_seconds)
    before = [await stages(replica) for replica in replicas]
    began, began_at = time.monotonic(), world.now()
    cpu = [cpu_seconds_of_living([replica.process.pid]) for replica in replicas]
    others = cpu_seconds_of_living([store_pid]), cpu_seconds_of_living(children_of(postmaster))
    locks = asyncio.create_task(lock_waits(url))
    await asyncio.sleep(options.seconds)
    took = time.monotonic() - began
    locks.cancel()
    waits = (await asyncio.gather(locks, return_exceptions=True))[0]
    cpu = [cpu_seconds_of_living([r.process.pid]) - was for r, was in zip(replicas, cpu, strict=True)]
    spent_store = cpu_seconds_of_living([store_pid]) - others[0]
    spent_postgres = cpu_seconds_of_living(children_of(postmaster)) - others[1]
    after = [await stages(replica) for replica in replicas]
    ticks = [tick for replica in replicas for tick in replica.ticks(began_at, world.now())]
    times = [tick["took"] for tick in ticks]
    count = max(1, len(ticks))
    return {
        "tick_seconds": {"p50": share(times, 0.5), "p99": share(times, 0.99), "max": max(times, default=None)},
        "slowest": [
            {"seconds": round(tick["took"], 3), "at": round(tick["at"] - began_at, 1)} | tick["stages"]
            for tick in sorted(ticks, key=lambda tick: -float(tick["took"]))[:SLOWEST]
        ],
        "ticks": len(ticks),
        "watched": [replica_ticks[-1]["watched"] for r in replicas if (replica_ticks := r.ticks(0, 1e12))],
        "failed": max((tick["failed"] for tick in ticks), default=0),
        "stage_seconds_per_tick": {
            name: round(sum(b.get(name, 0) - a.get(name, 0) for a, b in zip(before, after, strict=True)) / count, 4)
            for name in sorted({name for item in after for name in item})
        },
        "statements_per_tick": round(sum(tick["sql"] for tick in ticks) / count, 1),
        "garbage_seconds_per_tick": round(sum(tick["gc"] for tick in ticks) / count, 4),
        "statements_other_per_second": round(sum(tick["sql_other"] for tick in ticks) / took, 1),
        "cpu_ms_per_job_second": {
            "service": 1000 * sum(cpu) / took / options.jobs,
            "postgres": 1000 * spent_postgres / took / options.jobs,
            "store": 1000 * spent_store / took / options.jobs,
        },
        "cores": {"service": sum(cpu) / took, "postgres": spent_postgres / took, "store": spent_store / took},
        "rss_mb": [round(memory_mb(replica.process.pid)) for replica in replicas],
        "lock_wait_share": waits if not isinstance(waits, BaseException) else str(waits),
    }


async def stages(replica: world.Replica) -> Mapping[str, float]:
    """Seconds spent in each stage so far."""
    wanted = "recovery_advisor_tick_stage_duration_seconds_sum"
    return {sample.labels["stage"]: sample.value for sample in await samples(replica, wanted)}


async def value_of(replica: world.Replica, name: str) -> float:
    return float(sum(sample.value for sample in await samples(replica, name)))


async def samples(replica: world.Replica, name: str) -> list[Sample]:
    transport = httpx.AsyncHTTPTransport(uds=str(replica.socket.with_name("a-http.sock")))
    async with httpx.AsyncClient(transport=transport, base_url="http://advisor", timeout=60) as client:
        answer = await client.get("/metrics")
    families = text_string_to_metric_families(answer.text) if answer.status_code == 200 else ()
    return [sample for family in families for sample in family.samples if sample.name == name]


async def lock_waits(url: str) -> dict[str, float]:
    """Of the looks at connections that are in a transaction, the share that waited for a lock, by kind of lock."""
    seen, waiting = 0, dict[str, int]()
    connection = await psycopg.AsyncConnection.connect(conninfo(url), autocommit=True)
    query = (
        "SELECT wait_event_type, wait_event FROM pg_stat_activity"
        " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND state <> 'idle'"
    )
    try:
        while True:
            for kind, name in await (await connection.execute(query)).fetchall():
                seen += 1
                if kind in {"Lock", "LWLock"}:
                    waiting[f"{kind}:{name}"] = waiting.get(f"{kind}:{name}", 0) + 1
            await asyncio.sleep(LOCK_LOOK_SECONDS)
    except asyncio.CancelledError:
        return {"looks": seen, **{name: round(count / max(1, seen), 4) for name, count in waiting.items()}}
    finally:
        await connection.close()


def conninfo(url: str) -> str:
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


async def event(options: argparse.Namespace, agent: world.Agent, store_url: str) -> dict[str, Any]:
    """Everything fails at once."""
    now_at(f"{options.jobs} jobs fail at once, until all have advice")
    agent.heard.clear()
    agent.tick_age_max = 0.0
    async with httpx.AsyncClient(base_url=store_url, timeout=30) as client:
        await client.post("/bench/fail")
    began = time.monotonic()
    agent.site.fail()
    await agent.tell()
    told = time.monotonic() - began
    while len(agent.heard) < options.jobs and time.monotonic() - began < EVENT_SECONDS_MAX:  # noqa: ASYNC110 - a look
        await asyncio.sleep(0.05)
    delays = sorted(at - began for at in agent.heard.values())
    words = [f"{item.action} {item.reason}" for item in agent.open.values()]
    return {
        "advised": len(delays),
        "report_seconds": told,
        "seconds": {
            "first": delays[0] if delays else None,
            "p50": share(delays, 0.5),
            "last": max(delays, default=None),
        },
        "tick_age_seconds_max": agent.tick_age_max,
        "actions": {word: words.count(word) for word in sorted(set(words))},
    }


def share(values: Sequence[float], part: float) -> float | None:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)] if ordered else None


async def many(options: argparse.Namespace, folder: Path, server: EmbeddedPostgres) -> dict[str, Any]:
    started = world.now() - options.age_seconds
    made = {
        "jobs": options.jobs,
        "ranks": options.ranks,
        "ranks_per_node": options.ranks_per_node,
        "print_seconds": options.print_seconds,
        "chatter_seconds": options.chatter_seconds,
        "began_ns": int((started + 5) * 1e9),
    }
    result: dict[str, Any] = {}
    with ExitStack() as stack:
        store_pid, store_url = stack.enter_context(world.store(made))
        logs = (
            f'[[logs]]\nkind = "victorialogs"\nurl = "{store_url}"\nselector = "*"\nnode_label = "host"\n'
            f'rank_label = "rank"\npush_down = {str(options.push_down == "on").lower()}\n'
        )
        replicas = [
            stack.enter_context(world.replica(folder, number, server.url, logs, options.python.split()))
            for number in range(options.replicas)
        ]
        site = world.Site.of(options.jobs, options.ranks, options.ranks_per_node, started)
        async with world.Agent(site=site, socket=replicas[0].socket) as agent:
            result["steady"] = await steady(options, replicas, server.url, store_pid, postmaster_of(server))
            result["steady"]["report_seconds"] = {"p50": share(agent.report_seconds[1:], 0.5)}
            if not options.no_event:
                result["event"] = await event(options, agent, store_url)
            result["rss_mb_max"] = [round(memory_mb(r.process.pid, "VmHWM")) for r in replicas]
            if options.keep:
                await asyncio.sleep(options.keep)
        result["log"] = [(folder / f"replica-{n}.log").read_text()[-1500:] for n in range(options.replicas)]
    return result


def postmaster_of(server: EmbeddedPostgres) -> int:
    with psycopg.connect(conninfo(server.url)) as connection:
        row = connection.execute("SELECT pg_read_file('postmaster.pid')").fetchone()
    assert row is not None
    return int(row[0].split()[0])


async def mass(options: argparse.Namespace, folder: Path, server: EmbeddedPostgres) -> dict[str, Any]:
    """One job whose ranks all fail within a second."""
    output = folder / "out"
    output.mkdir()
    stdout = output / "job.out"
    stdout.write_text("".join(STEP.format(at=f"2026-11-29 10:00:{n:02d}", step=n) for n in range(30)))
    more = 'extra_files = ["ranks/rank-*.log"]\n' if options.mass != "one" else ""
    site = world.Site.of(1, options.ranks, options.ranks_per_node, world.now() - 60, {0: str(stdout)})
    with world.replica(folder, 0, server.url, f'[[logs]]\nkind = "files"\n{more}', options.python.split()) as replica:
        async with world.Agent(site=site, socket=replica.socket) as agent:
            now_at(f"one job of {options.ranks} ranks fails everywhere")
            await asyncio.sleep(4.0)
            quiet = memory_mb(replica.process.pid)
            size = await asyncio.to_thread(write_ranks, output, options.ranks, options.ranks_per_node, options.mass)
            began, spent = time.monotonic(), cpu_seconds_of_living([replica.process.pid])
            site.fail()
            await agent.tell()
            while not agent.open and time.monotonic() - began < EVENT_SECONDS_MAX:  # noqa: ASYNC110 - a look
                await asyncio.sleep(0.02)
            first = time.monotonic() - began
            read, digested = await settled(replica, size, began)
            await asyncio.sleep(3.0)  # refined
            said = next(iter(agent.open.values()), None)
            return {
                "bytes": size,
                "bytes_read": read,
                "advice_seconds": first,
                "digested_seconds": digested,
                "cpu_seconds": cpu_seconds_of_living([replica.process.pid]) - spent,
                "tick_seconds_max": max((t["took"] for t in replica.ticks(0, 1e12)), default=None),
                "rss_mb_quiet": quiet,
                "rss_mb_max": memory_mb(replica.process.pid, "VmHWM"),
                "said": None if said is None else [said.reason, said.category, list(said.exclude_nodes)[:4]],
                "log": (folder / "replica-0.log").read_text()[-1500:],
            }


async def settled(replica: world.Replica, size: int, began: float) -> tuple[float, float]:
    """Until as many bytes of logs were read, or none more for a while: how many were, and seconds until the last."""
    read, now, last = 0.0, 0.0, 0.0
    while read < size and now < min(last + STILL_SECONDS, EVENT_SECONDS_MAX):
        await asyncio.sleep(LOOK_SECONDS)
        before, read = read, await value_of(replica, "recovery_advisor_source_read_bytes_total")
        now = time.monotonic() - began
        last = last if read == before else now
    return read, last


@contextmanager
def _folder() -> Iterator[Path]:
    """Short and passable for the database's own user."""
    folder = Path(tempfile.mkdtemp(prefix="cap-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.capacity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--ranks", type=int, default=100, help="of each job")
    parser.add_argument("--ranks-per-node", type=int, default=8)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--print-seconds", type=float, default=5.0, help="between a job's progress lines")
    parser.add_argument("--chatter-seconds", type=float, default=0.0, help="between other lines of each rank; 0: none")
    parser.add_argument("--push-down", choices=("on", "off"), default="on")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the steady part")
    parser.add_argument("--warm-seconds", type=float, default=20.0)
    parser.add_argument("--age-seconds", type=float, default=60.0, help="how long the jobs run already")
    parser.add_argument("--no-event", action="store_true")
    parser.add_argument("--mass", choices=("one", "node", "each"), help="one job of --ranks that fails everywhere")
    parser.add_argument("--python", default="", help="what runs the service instead of this Python, a profiler say")
    parser.add_argument("--keep", type=float, default=0.0, help="seconds to go on for afterwards")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    result: dict[str, Any] = {
        key: value for key, value in vars(options).items() if key not in {"json", "python", "keep", "no_event"}
    }
    result["load_before"], result["spin_before"] = os.getloadavg()[0], world.spin()
    with telling(), _folder() as folder, EmbeddedPostgres(folder / "data") as server:
        asyncio.run(migrate(server.url))
        result["bare_commits_per_second"] = asyncio.run(bare_commits(server.url))
        result |= asyncio.run(mass(options, folder, server) if options.mass else many(options, folder, server))
    result["load_after"], result["spin_after"] = os.getloadavg()[0], world.spin()
    if options.json:
        print(json.dumps(result))
    else:
        for key, value in result.items():
            print(f"{key:<26} {json.dumps(value)}")
    advised = result.get("event", {}).get("advised", options.jobs)
    return 0 if options.mass or advised >= options.jobs else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
