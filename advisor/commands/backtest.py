"""`advisor backtest`: another policy or other rules over the decisions of the past."""

import hashlib
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import IO, Annotated

import typer

from advisor.backtest import LIMITS, Case, Outcome, Tally, change_of, evaluate
from advisor.build import build_id
from advisor.client import Client
from advisor.clock import SystemClock
from advisor.commands.decisions import connected, moment_ago
from advisor.commands.instead import PolicyOption, RulesOption, instead_of
from advisor.commands.options import ConfigOption, FormatOption, SocketOption, given
from advisor.commands.output import CommandError, Format, harmless, print_json, print_table
from advisor.commands.progress import Bar
from advisor.core import codec
from advisor.core.amounts import many
from advisor.replay import Instead, Packed
from advisor.v1 import audit_pb2

app = typer.Typer(rich_markup_mode=None)

PAGE_SIZE = 50  # a page is lost when it is broken off
CHANGES_MAX = 100_000  # kept in memory for the report; all of them are in --resume's file
WINDOW = 64  # cases that are on their way to other processes at once


@app.command()
def backtest(
    policy: PolicyOption = None,
    rules: RulesOption = None,
    since: Annotated[str, typer.Option(help="How far back: 6h, 30d.")] = "30d",
    cluster: Annotated[str | None, typer.Option(help="Only this cluster.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Note what is done in this file, and go on from it when it is there.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Processes that decide.")] = 1,
    socket: SocketOption = None,
    configuration: ConfigOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """What another policy or other rules would have decided, over the decisions of the past. Nothing is changed.

    Exit 0 also when decisions differ: they are listed, newest first, with counts by category and action.

    \b
    Examples:
      advisor backtest --since 30d --policy stricter.toml
      advisor backtest --since 90d --rules ours.toml --resume /tmp/backtest.jsonl --format json
    """
    if policy is None and rules is None:
        raise CommandError("give --policy, --rules or both: without them every decision is the same", code=2)
    instead = instead_of(policy, rules)
    began = time.monotonic()
    with connected(socket, configuration) as client, open_journal(resume, instead, since, cluster) as journal:
        done_before = journal.tally.decisions
        with Bar("s of history") as bar, _evaluator(workers, instead) as evaluated:
            go_on(client, journal, evaluated, bar, given("--cluster", cluster))
    seconds = time.monotonic() - began
    speed = (journal.tally.decisions - done_before) / seconds if seconds else 0.0
    if form is not Format.TABLE:
        print_json(
            {
                **json.loads(journal.tally.write()),
                "changes": journal.changes,
                "limits": list(LIMITS),
                "seconds": round(seconds, 3),
                "decisions_per_second": round(speed, 1),
            },
            form,
        )
        return
    _print(journal, seconds, speed)


class Journal:
    """What is done so far: counts, changed decisions, and where to go on. With a file, a line after each page."""

    def __init__(self, since: datetime, file: IO[str] | None) -> None:
        self.since = since
        self.tally = Tally()
        self.changes: list[dict[str, object]] = []
        self.cursor = ""
        self.ended = False
        self._file = file

    def page(self, outcomes: list[Outcome], cursor: str) -> None:
        changes = [change_of(outcome) for outcome in outcomes if outcome.changed]
        for outcome in outcomes:
            self.tally.add(outcome)
        self._keep(changes, cursor)
        if self._file is not None:
            line = {"cursor": cursor, "tally": json.loads(self.tally.write()), "changes": changes}
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()

    def reread(self, line: str) -> None:
        """Raises KeyError, TypeError and ValueError for what `page` did not write."""
        item = json.loads(line)
        self.tally = Tally.read(item["tally"])
        self._keep(item["changes"], item["cursor"])

    def _keep(self, changes: list[dict[str, object]], cursor: str) -> None:
        self.changes.extend(changes[: CHANGES_MAX - len(self.changes)])
        self.cursor, self.ended = cursor, not cursor


@contextmanager
def open_journal(path: Path | None, instead: Instead, since: str, cluster: str | None) -> Iterator[Journal]:
    """A new one, or the one in the file when it is of the same question and build."""
    start = moment_ago(since)
    if path is None:
        yield Journal(start, None)
        return
    asked = hashlib.sha256(
        b"".join(codec.encode(item) for item in (instead.policy, *instead.rules) if item)
    ).hexdigest()
    head = {"asked": asked, "since": since, "cluster": cluster or "", "build": build_id()}
    try:
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="utf-8") as file:
            lines = file.read().splitlines(keepends=True)
            if not lines:
                file.write(json.dumps({**head, "from": start.isoformat()}) + "\n")
                yield Journal(start, file)
                return
            yield _resumed(path, lines, head, file)
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}", code=2) from None


def _resumed(path: Path, lines: list[str], head: dict[str, str], file: IO[str]) -> Journal:
    at = 1
    whole = lines if lines[-1].endswith("\n") else lines[:-1]  # the last line may have been broken off
    try:
        first = json.loads(lines[0])
        other = next((name for name, value in head.items() if first[name] != value), "")
        if other:
            raise CommandError(
                f"{path}:1: is of another question or build ({other} differs): name another file", code=2
            )
        journal = Journal(datetime.fromisoformat(first["from"]), file)
        for line in whole[1:]:
            at += 1
            journal.reread(line)
    except (ValueError, KeyError, TypeError):
        raise CommandError(f"{path}:{at}: not what `advisor backtest` writes", code=2) from None
    file.seek(0)
    file.truncate()
    file.writelines(whole)
    file.flush()
    return journal


def go_on(
    client: Client,
    journal: Journal,
    evaluated: Callable[[Iterator[Case]], Iterator[Outcome]],
    bar: Bar,
    cluster: str,
) -> None:
    """Page by page, newest first, to the beginning."""
    now = SystemClock().now()
    span = max(1, int((now - journal.since).total_seconds()))
    chosen = audit_pb2.Filter(cluster=cluster)
    chosen.since.FromDatetime(journal.since)
    while not journal.ended:
        page = audit_pb2.Page(page_size=PAGE_SIZE, cursor=journal.cursor)
        listed = client.call(client.audit.ListDecisions, audit_pb2.ListDecisionsRequest(filter=chosen, page=page))
        ids = [decision.advice.advice_id for decision in listed.decisions]
        journal.page(list(evaluated(_cases(client, ids))), listed.next_cursor)
        if listed.decisions:
            oldest = listed.decisions[-1].advice.created_at.ToDatetime(UTC)
            bar.show("backtest", min(span, int((now - oldest).total_seconds())), span)


def _cases(client: Client, ids: list[str]) -> Iterator[Case]:
    here = build_id()
    for decision_id in ids:
        stored = client.decision_inputs(decision_id)
        yield Case(
            decision_id=stored.decision_id,
            stored=stored.decision,
            packed=Packed(inputs=stored.inputs, rules=stored.rules, policy=stored.policy),
            same_build=stored.build == here,
        )


@contextmanager
def _evaluator(workers: int, instead: Instead) -> Iterator[Callable[[Iterator[Case]], Iterator[Outcome]]]:
    """In this process, or spread over others: in order either way, with a bounded number on the way."""
    if workers == 1:
        yield lambda cases: (evaluate(case, instead) for case in cases)
        return
    # Spawned: gRPC's threads do not survive a fork.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:

        def spread(cases: Iterator[Case]) -> Iterator[Outcome]:
            waiting: deque[Future[Outcome]] = deque()
            for case in cases:
                waiting.append(pool.submit(evaluate, case, instead))
                if len(waiting) >= WINDOW:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

        yield spread


def _print(journal: Journal, seconds: float, speed: float) -> None:
    tally = journal.tally
    moved = [(move, count) for move, count in tally.moves.most_common() if move[:2] != move[2:]]
    of = many(tally.decisions, "decision")
    print(f"{tally.changed} of {of} would be decided otherwise ({seconds:.1f} s, {speed:.0f} per second)")
    if moved:
        print()
        print_table(
            ("decisions", "category", "action", "would be category", "action"),
            [(str(count), *move) for move, count in moved],
            empty="",
        )
    rest = tally.changed - sum(count for _, count in moved)
    if moved and rest > 0:
        print(f"and {rest} differ in nodes or reason only")
    if journal.changes:
        print()
        for change in journal.changes:
            different = change["different"]
            parts = different.items() if isinstance(different, dict) else ()
            what = "; ".join(f"{name.replace('_', ' ')} {old or '-'} → {new or '-'}" for name, (old, new) in parts)
            print(harmless(f"{change['decision_id']}  job {change['job_id']}#{change['attempt']}  {what}"))
        if tally.changed > len(journal.changes):
            print(f"and {tally.changed - len(journal.changes)} more")
    print()
    if tally.drifted:
        drifted = many(tally.drifted, "decision")
        print(f"{drifted} would be decided otherwise by this build alone; compared is what this build decides.")
    if tally.unreadable:
        print(f"{many(tally.unreadable, 'decision')} of other builds left out: this one cannot read them.")
    for limit in LIMITS:
        print(f"* {limit}")
