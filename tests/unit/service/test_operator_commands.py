"""Commands for operators and job users: job ids, explanations, and the live view, with text of others in them."""

import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from advisor.clock import SystemClock
from advisor.commands import watch
from advisor.commands.audit import affected
from advisor.commands.doctor_checks import State
from advisor.commands.doctor_service import (
    look_at_agents,
    look_at_modes,
    look_at_replicas,
    look_at_room,
    look_at_tick,
)
from advisor.commands.events import event_lines
from advisor.commands.history import attempt_lines
from advisor.commands.job_ids import job_id
from advisor.commands.mode import holding
from advisor.commands.output import CommandError, Format, print_json, whole_document
from advisor.commands.status import held_lines, status_lines
from advisor.config import load
from advisor.explaining import NO_PROGRESS_LINE, explain
from advisor.service.dashboard.views import now
from advisor.service.dashboard.views.jobs import listed_attempt
from advisor.service.dashboard.views.shown import Chip
from advisor.v1 import audit_pb2, common_pb2, operator_pb2

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
HOSTILE = "a\x1b[2J\x1b]0;owned\x07b\u202ec\nd"


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("123", {"job_id": "123"}),
        ("123_4", {"array_job_id": "123", "array_task": 4}),
        ("123_0", {"array_job_id": "123", "array_task": 0}),
        ("123+1", {"job_id": "124"}),
    ],
)
def test_job_ids_are_understood_as_slurm_prints_them(text: str, chosen: dict[str, Any]) -> None:
    """A job, a task of an array, a part of a heterogeneous job."""
    found = audit_pb2.Filter()
    job_id(text).choose(found)
    assert found == audit_pb2.Filter(**chosen)


@pytest.mark.parametrize("text", ["", "x", "12_", "12_[1-3]", "-1", "1;2", "1_2+3", "\x1b[2J"])
def test_what_slurm_would_not_print_is_refused(text: str) -> None:
    """With a hint, and exit code 2."""
    with pytest.raises(CommandError, match="123_4") as caught:
        job_id(text)
    assert caught.value.code == 2


def attempt(state: int = common_pb2.ATTEMPT_STATE_FAILED, number: int = 0, **changes: Any) -> audit_pb2.Attempt:
    made = audit_pb2.Attempt(
        attempt=common_pb2.AttemptRef(job_key="k", cluster="c", job_id="17", attempt=number, user="ada"),
        state=state,  # type: ignore[arg-type]  # a number of the contract
        in_scope=True,
        last_step=1200,
        **changes,
    )
    made.started_at.FromDatetime(NOW - timedelta(hours=2))
    if state == common_pb2.ATTEMPT_STATE_FAILED:
        made.ended_at.FromDatetime(NOW)
        made.remembered_until.FromDatetime(NOW + timedelta(minutes=10))
    return made


def decision(action: int, category: str, *, status: int = 0, mode: int = 2, **advice: Any) -> audit_pb2.Decision:
    attribution = {"category": category, "root_cause": f"it broke {HOSTILE}", "confidence": 0.97}
    attribution |= {"implicated": {"nodes": ["node2"]}, "sources": {"kernel": {"available": False}}}
    made = audit_pb2.Decision(
        advice=common_pb2.Advice(
            advice_id="e3a382e8-0000-7000-8000-000000000000",
            action=action,  # type: ignore[arg-type]  # a number of the contract
            mode=mode,  # type: ignore[arg-type]  # as above
            category=category,
            **advice,
        ),
        analysis_json=json.dumps({"attribution": attribution}),
        status=status,  # type: ignore[arg-type]  # as above
    )
    made.advice.attempt.CopyFrom(attempt().attempt)
    made.advice.created_at.FromDatetime(NOW)
    return made


def said(*about: Any) -> dict[str, str]:
    return {item.about: item.says for item in explain(*about)}


def test_a_running_job_whose_steps_nobody_can_read_is_told_so() -> None:
    """And what it can do about it; not of one that shows steps, or is over."""
    running = attempt(common_pb2.ATTEMPT_STATE_RUNNING)
    assert said(running, [], None)["think"] == "Nothing is known to be wrong with it."
    running.ClearField("last_step")
    assert said(running, [], None)["think"].endswith(NO_PROGRESS_LINE)
    running.state = common_pb2.ATTEMPT_STATE_COMPLETED
    assert said(running, [], None)["think"] == "Nothing is known to be wrong with it."


def test_a_restart_on_bad_hardware_is_explained() -> None:
    """What happened, whose fault it was and how sure, what was done, and that the user need do nothing."""
    done = decision(1, "gpu_hardware", status=3, exclude_nodes=["node2"], explanation="Restart without node2.")
    after = attempt(common_pb2.ATTEMPT_STATE_RUNNING, 1, nodes=["node3", "node4"])
    told = said(attempt(), [done], after)
    assert told["happened"] == "Attempt 0 of job 17 failed at 2026-05-01 12:00:00 UTC after 2.0 h, at step 1200."
    assert "a GPU is broken; it was not your program (node2)" in told["think"]
    assert told["sure"] == "Almost certain (97%). What kernel would say could not be read."
    assert "put back into the queue, and will not run on node2" in told["done"]
    assert "Attempt 1 is running on node3, node4" in told["done"]
    assert told["do"].startswith("You need not do anything")


@pytest.mark.parametrize("trusts", [["log"], ["log", "kernel"]])
def test_that_a_machine_is_to_blame_is_told_as_the_jobs_own_word_where_it_is(trusts: list[str]) -> None:
    """Any program can print that a GPU is broken: nothing is almost certain by that."""
    done = decision(1, "gpu_hardware", status=3, exclude_nodes=["node2"], explanation="Restart without node2.")
    analysis = json.loads(done.analysis_json)
    analysis["attribution"]["evidence"] = [{"trust": trust} for trust in trusts]
    done.analysis_json = json.dumps(analysis)
    told = said(attempt(), [done], None)
    alone = trusts == ["log"]
    assert ("if what the job itself printed is true, a GPU is broken" in told["think"]) is alone
    assert ("almost certain" in told["sure"].lower()) is not alone
    assert ("right in 97% of cases, but these the job itself printed" in told["sure"]) is alone


def test_an_attempt_after_a_restart_says_where_the_failure_is_told() -> None:
    """Who asks about a job that runs well again wants to know why it was restarted."""
    told = said(attempt(common_pb2.ATTEMPT_STATE_COMPLETED, 1), [], None, attempt())
    assert told["before"] == "Attempt 0 failed; why, and what was done: advisor explain 17 --attempt 0"
    assert "before" not in said(attempt(), [], None)


def test_a_requeue_that_the_scheduler_has_forgotten_is_told_in_a_line() -> None:
    """While it is, after it was asked for again, and of the attempt that never was; what was done then is not told."""
    done = decision(1, "gpu_hardware", status=3, exclude_nodes=["node2"], explanation="Restart without node2.")
    done.undone = True
    withdrawn = attempt(common_pb2.ATTEMPT_STATE_PENDING, 1, requeue_forgotten=True)
    never_was = "never was: the scheduler has forgotten the requeue that made it, as when it is killed."
    told = said(attempt(), [done], withdrawn)
    assert told["lost"] == f"Attempt 1 {never_was}"
    assert told["done"] == "Restart without node2. Nothing of what was done is left."
    assert said(withdrawn, [], None)["happened"] == f"Attempt 1 of job 17 {never_was}"
    again = decision(1, "gpu_hardware", status=3, exclude_nodes=["node2"], explanation="Restart without node2.")
    told = said(attempt(), [again, done], attempt(common_pb2.ATTEMPT_STATE_RUNNING, 1))
    assert told["lost"] == "The scheduler has forgotten an earlier requeue of it."
    assert "put back into the queue, and will not run on node2. Attempt 1 is running" in told["done"]
    assert "lost" not in said(attempt(), [again], None)
    assert list(attempt_lines(withdrawn))[1] == "state    requeue forgotten"
    assert listed_attempt(withdrawn, NOW).state == Chip(text="requeue forgotten", tone="warn")


def test_a_stop_says_what_to_correct_and_how_to_run_it_again() -> None:
    """A stop is not the last word: the user can requeue."""
    told = said(attempt(), [decision(2, "application", status=8, explanation="Stop: again.")], None)
    assert "correct the program" in told["do"]
    assert "scontrol requeue 17" in told["do"]


def ordered(*, reason: str, action: int = 2, status: int = 3) -> audit_pb2.Decision:
    """Of an operator who stopped an attempt that nothing was wrong with."""
    made = decision(action, "none", status=status, reason=reason, explanation="Stop: ordered by root (enough).")
    made.analysis_json = json.dumps({"attribution": {"category": "none"}, "advice": {"ordered_by": "root"}})
    return made


def test_a_stop_that_an_operator_ordered_is_told_as_his() -> None:
    """By whom and why, and never that somebody cancelled it, or that it would have failed the same way again."""
    ended = attempt(common_pb2.ATTEMPT_STATE_CANCELLED)
    for told in (
        said(ended, [ordered(reason="operator")], None),
        said(ended, [ordered(reason="stopped", action=3, status=8)], None, attempt()),
    ):
        assert told["happened"].startswith("Attempt 0 of job 17 was stopped by order of root")
        assert told["done"] == "Stop: ordered by root (enough). It was stopped by order of root."
        assert told["do"].startswith("To run it again all the same: scontrol requeue 17. An operator has decided")
        assert not any("cancelled" in text or "fail the same" in text for text in told.values())
        assert "nothing to do" not in told["do"]


def test_a_stop_of_ours_is_no_cancel() -> None:
    """A hung attempt that we ended was stopped, and why is told; one that its user cancelled was cancelled."""
    ended = attempt(common_pb2.ATTEMPT_STATE_CANCELLED)
    mine = said(ended, [decision(2, "unknown", status=3, reason="budget_exhausted", explanation="Stop: spent.")], None)
    assert mine["happened"].startswith("Attempt 0 of job 17 was stopped by the advisor")
    assert "so that it does not fail the same way again" in mine["done"]
    user = said(ended, [decision(3, "user_cancel", reason="user_cancelled", explanation="Nothing to do.")], None)
    assert user["happened"].startswith("Attempt 0 of job 17 was cancelled")
    assert "somebody cancelled it" in user["think"]
    assert user["do"] == "To run it again all the same: scontrol requeue 17."


def test_what_can_be_done_is_never_left_blank() -> None:
    """Also where a cancelled attempt is followed by another one already."""
    ended = attempt(common_pb2.ATTEMPT_STATE_CANCELLED)
    cancelled = decision(3, "user_cancel", reason="user_cancelled", explanation="Nothing to do.")
    assert said(ended, [cancelled], attempt(common_pb2.ATTEMPT_STATE_RUNNING, 1))["do"] == "There is nothing to do."


def test_a_guess_is_not_told_as_a_fact() -> None:
    """Of a cause that is little more than a guess, whose fault it was is one too."""
    made = decision(1, "host_out_of_memory", explanation="Restart: x.")
    attribution = {"category": "host_out_of_memory", "root_cause": "A task was killed", "confidence": 0.45}
    made.analysis_json = json.dumps({"attribution": attribution})
    told = said(attempt(), [made], None)
    assert told["think"] == "A task was killed: perhaps your program wanted more memory than the node, or the job, has."
    assert told["sure"] == "Little more than a guess (45%)."


def test_a_stop_that_nobody_reported_is_not_told_as_ours_or_anybodys() -> None:
    """How it ended, that our stop was out, and no word of who did it."""
    ended = attempt(common_pb2.ATTEMPT_STATE_CANCELLED)
    words = "Nothing to do: our stop was out, and not reported back: ended by it, or by somebody else."
    lost = decision(3, "none", status=8, reason="stop_unreported", explanation=words)
    stop = decision(2, "unknown", status=8, reason="budget_exhausted", explanation="Stop: spent.")
    told = said(ended, [lost, stop], None)
    assert told["happened"].startswith("Attempt 0 of job 17 was cancelled while our stop of it was out")
    assert told["done"] == f"{words} Who cancelled it, the scheduler's accounting may tell."
    assert told["do"].startswith("To run it again all the same: scontrol requeue 17.")
    assert not any("somebody cancelled" in text or "was stopped" in text for text in told.values())


def test_what_was_only_watched_and_what_did_not_ask_say_so() -> None:
    """Monitor mode touches nothing; a job out of scope is told how to opt in."""
    told = said(attempt(), [decision(1, "unknown", status=7, mode=1)], None)
    assert "only watches here" in told["done"]
    outside = attempt()
    outside.in_scope = False
    assert '"enabled": true' in said(outside, [], None)["do"]
    assert said(outside, [decision(1, "none", reason="completed")], None)["think"].startswith("Nothing is known")


def test_an_attempt_that_was_requeued_while_it_ran_is_over() -> None:
    """Slurm never shows more of its end than that it is ending; nothing of it is to come where another one followed."""
    ending = attempt(common_pb2.ATTEMPT_STATE_COMPLETING)
    assert "is ending: how is not visible yet" in said(ending, [], None)["happened"]
    followed = attempt(common_pb2.ATTEMPT_STATE_RUNNING, 1)
    assert "was ended when its job was put back into the queue" in said(ending, [], followed)["happened"]


def test_a_source_is_well_by_what_it_answered_and_when() -> None:
    """One that nobody has asked is not; one that fails for some says so."""
    kernel = operator_pb2.SourceStatus(name="kernel", kind="kernel, trusted", available=True)
    status = operator_pb2.Status(
        sources=[kernel, operator_pb2.SourceStatus(name="store", kind="store", available=True)]
    )
    assert status_lines(status, NOW)[1:] == [
        "source kernel (kernel, trusted): not asked yet: no job is watched that it could tell of",
        "source store (store): ok",
    ]
    status.sources[0].newest_at.FromDatetime(NOW)
    assert status_lines(status, NOW)[1].startswith("source kernel (kernel, trusted): ok, last answered 2026-")
    status.sources[0].reason, status.sources[0].detail = "missing", "1 of 2 attempts: n1.log"
    assert status_lines(status, NOW)[1].endswith(", but missing: 1 of 2 attempts: n1.log")


def test_whoever_is_not_restarted_by_us_is_told_to_do_it() -> None:
    """In monitor mode, and out of scope: "you need not do anything" would leave the job as it is."""
    watched = decision(1, "gpu_hardware", status=7, mode=1)
    watched.advice.exclude_nodes.extend(["node2", "node3"])
    told = said(attempt(), [watched], None)["do"]
    assert "You need not do anything" not in told
    assert (
        "To do so yourself: scontrol requeue 17, then at once, before it starts: scontrol update JobId=17 "
        "ExcNodeList=node2,node3 (that replaces the list: add the nodes that it avoids already, if any). "
        "Slurm remembers it until 2026-05-01 12:10:00 UTC (MinJobAge); "
    ) in told
    outside = attempt()
    outside.in_scope = False
    assert "scontrol requeue 17" in said(outside, [decision(1, "gpu_hardware")], None)["do"]
    followed = said(attempt(), [watched], attempt(common_pb2.ATTEMPT_STATE_RUNNING))["do"]
    assert "scontrol requeue" not in followed


def test_who_is_let_end_with_the_time_limit_is_told_how_to_go_on() -> None:
    """Where the site restarts nobody there it would be wrong that the user need not do anything."""
    over = attempt(common_pb2.ATTEMPT_STATE_TIME_LIMIT)
    left = decision(common_pb2.ACTION_NONE, "scheduler_event", reason="time_limit")
    do = said(over, [left], None)["do"]
    assert do.startswith("A checkpoint more often")
    assert "The advisor does not restart it. To do so yourself: scontrol requeue 17." in do
    again = decision(common_pb2.ACTION_RESTART, "scheduler_event", reason="scheduler_event")
    assert said(over, [again], None)["do"].startswith("You need not do anything.")


def test_a_failure_that_nothing_was_decided_about_is_not_called_well() -> None:
    """A moment after its end, or with an advisor that is away; not of one that is well without a decision."""
    told = said(attempt(), [], None)
    assert told["happened"].startswith("Attempt 0 of job 17 failed")
    assert told["think"] == "Nothing has been decided about it so far."
    assert told["do"].startswith("Ask again in a minute.")
    assert "nothing to do" not in told["do"]
    assert said(attempt(common_pb2.ATTEMPT_STATE_COMPLETED), [], None)["do"] == "There is nothing to do."


def screen(width: int, height: int | None, incidents: int = 3) -> str:
    """What the live view draws, with hostile text in every place that others write."""
    incident = audit_pb2.Incident(kind="crash", category="gpu_hardware", root_cause=HOSTILE, implicated_nodes=["node2"])
    incident.attempt.CopyFrom(attempt().attempt)
    incident.opened_at.FromDatetime(NOW - timedelta(minutes=5))
    status = operator_pb2.Status(version="1", watched_jobs=4, open_incidents=incidents)
    status.sources.add(name="files", kind="files", reason="permission", detail=HOSTILE)
    seen = watch.Look(
        at=NOW,
        status=status,
        incidents=(incident,) * incidents,
        decisions=tuple(
            decision(1, "gpu_hardware", reason="nodes_implicated", exclude_nodes=["node2"]) for _ in range(9)
        ),
        pauses=(operator_pb2.PauseInForce(set_by="bob", why=HOSTILE),),
        problem=HOSTILE,
    )
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=False).print(watch.drawn(seen, width, height))
    return out.getvalue()


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_live_view_fits_and_nothing_in_it_drives_the_terminal(width: int) -> None:
    """One line for each thing, none wider than the terminal, control characters shown and never obeyed."""
    lines = screen(width, None).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= width
    assert not set("\x1b\x07\u202e") & set("".join(lines))
    assert len(lines) <= 5 + 3 + 3 + 9


def test_the_live_view_of_eighty_columns_names_each_job_whole() -> None:
    """When, which job, whose and what was advised are there; only the reason and what came of it are cut."""
    long_ago = NOW - timedelta(minutes=5)
    done = decision(1, "gpu_hardware", status=3, reason="nodes_implicated", exclude_nodes=["node2"])
    done.advice.attempt.job_id = "1234567"
    done.advice.created_at.FromDatetime(long_ago)
    out = io.StringIO()
    status = operator_pb2.Status(version="1")
    seen = watch.Look(at=NOW, status=status, decisions=(done,))
    Console(file=out, width=80, force_terminal=False).print(watch.drawn(seen, 80, None))
    lines = out.getvalue().splitlines()
    assert "last tick" in "".join(lines[:2])
    assert all(text in lines[-1] for text in ("1234567#0", "ada", "restart without node2", "nodes_implicated"))


def test_the_live_view_leaves_out_what_has_no_room() -> None:
    """And says how much."""
    lines = screen(80, 20, incidents=30).splitlines()
    assert len(lines) <= 20
    assert any("… " in line and "more" in line for line in lines)


def test_events_are_folded_and_harmless() -> None:
    """A timeline on a narrow terminal."""
    event = audit_pb2.Event(kind="decision", text=f"{HOSTILE} {'long ' * 40}", who="ada")
    event.at.FromDatetime(NOW)
    lines = list(event_lines([event], 60))
    assert max(map(len, lines)) <= 60
    assert "\x1b" not in "".join(lines)
    assert len(list(event_lines([event], None))) == 1
    event.attempt.job_id, event.attempt.attempt = "17", 2
    assert "17#2 " in next(event_lines([event], None, of_node=True))


def test_json_lines_are_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    """A list gives as many lines as it has things, and nothing that a terminal would obey."""
    print_json([{"a": HOSTILE}, {"a": 2}], Format.JSONL)
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["a"] for line in lines] == [HOSTILE, 2]
    assert "\x1b" not in "".join(lines)


def acting(**fields: Any) -> operator_pb2.ModeSetting:
    return operator_pb2.ModeSetting(mode=common_pb2.MODE_AUTONOMOUS, **fields)


def watching(**fields: Any) -> operator_pb2.ModeSetting:
    return operator_pb2.ModeSetting(mode=common_pb2.MODE_MONITOR, **fields)


def standing(default: common_pb2.Mode.ValueType, *settings: operator_pb2.ModeSetting) -> operator_pb2.ListModesResponse:
    return operator_pb2.ListModesResponse(settings=settings, default_mode=default)


def test_status_says_what_holds_advice_up() -> None:
    """A pause and the modes: whether anything is acted on is the first thing that an operator asks."""
    pause = operator_pb2.PauseInForce(why="fabric work")
    pause.until.FromDatetime(NOW)
    both = standing(common_pb2.MODE_MONITOR, acting(), watching(partition="debug"))
    assert held_lines([pause], both) == [
        "mode: 1 setting autonomous (advisor mode get)",
        "paused everywhere until 2026-05-01 12:00:00 UTC: fabric work",
    ]
    watched = standing(common_pb2.MODE_MONITOR, watching(partition="debug"))
    assert held_lines([], watched) == ["mode: no setting is autonomous (advisor mode get)"]


def test_a_stop_file_is_told_wherever_people_look() -> None:
    """It stops all that the agent does: the status, the doctor and the first page say where it is and since when."""
    agent = operator_pb2.AgentStatus(cluster="c", host="ctl", mode="act")
    agent.last_seen_at.FromDatetime(SystemClock().now())
    status = operator_pb2.Status(version="1", agents=[agent])
    told = "the stop file on ctl keeps the agent of c from acting, since 2026-05-01 12:00:00 UTC: /etc/stop: fabric"

    def page() -> now.NowPage:
        return now.now_page(
            status=status,
            incidents=(),
            decisions=(),
            modes=operator_pb2.ListModesResponse(),
            pauses=(),
            nodes=operator_pb2.ListIsolationsResponse(),
            now=SystemClock().now(),
        )

    assert not any("stop file" in text for text in (*status_lines(status, NOW), *page().alarms))
    assert all(check.state is State.OK for check in look_at_agents(status, load(None, {}).config))
    status.agents[0].stop_file.why = "/etc/stop: fabric"
    status.agents[0].stop_file.since.FromDatetime(NOW)
    assert told in status_lines(status, NOW)
    warned = [check.found for check in look_at_agents(status, load(None, {}).config) if check.state is State.WARN]
    assert warned == [told]
    assert page().alarms == ("T" + told[1:] + ". Nothing is done there.",)
    assert page().agents[0].mode.text == "stopped"


@pytest.mark.parametrize(
    ("removed", "left", "earned", "said"),
    [
        ({}, [], [], "autonomous holds there now (default_mode)"),
        ({"partition": "train"}, [watching()], [], "monitor holds there now (the setting for everything)"),
        (
            {"partition": "train", "category": "loader"},
            [watching(), acting(partition="train"), watching(category="loader"), acting(partition="debug")],
            [],
            "monitor holds there now (the setting for category loader)",
        ),
        (
            {"partition": "train"},
            [watching(), acting(partition="train", account="physics"), watching(partition="train", account="art")],
            [],
            "monitor holds there now (the setting for everything); autonomous for partition train, account physics",
        ),
        (
            {"cluster": "c", "category": "gpu_hardware"},
            [],
            [acting(cluster="c", category="gpu_hardware", why="restarts only: 20 of 20 agreed")],
            "autonomous holds there now (earned; restarts only: 20 of 20 agreed)",
        ),
    ],
)
def test_who_removes_a_setting_is_told_what_holds_there_now(
    removed: dict[str, str],
    left: list[operator_pb2.ModeSetting],
    earned: list[operator_pb2.ModeSetting],
    said: str,
) -> None:
    """Of what is left the narrowest that covers the place, else what was earned, else the default."""
    modes = operator_pb2.ListModesResponse(settings=left, earned=earned, default_mode=common_pb2.MODE_AUTONOMOUS)
    assert holding(watching(**removed), modes).said == said


def test_an_older_service_does_not_tell_what_holds_by_default() -> None:
    """Then it is not guessed."""
    assert "too old to tell" in holding(watching(), operator_pb2.ListModesResponse()).said


@pytest.mark.parametrize(
    ("what", "subject", "detail", "said"),
    [
        (
            "mode_set",
            "*/train/*/*",
            {"mode": "autonomous", "percent": "10"},
            "mode=autonomous percent=10 for partition train",
        ),
        ("mode_removed", "*/*/*/*", {"mode": "monitor"}, "mode=monitor for everything"),
        (
            "mode_set",
            "c/*/17/loader/physics",
            {"mode": "monitor"},
            "mode=monitor for cluster c, job 17, category loader, account physics",
        ),
        ("paused", "alps", {"until": "2026"}, "alps: until=2026"),
        ("resumed", "*", {"until": "2026"}, "everything: until=2026"),
        ("agent_registered", "alps/ctl", {"mode": "act"}, "alps/ctl: mode=act"),
        ("isolation_opened", "01a2285d-d9dd-7aca-b195-2f157edd838d", {"node": "n1"}, "node=n1"),
        ("shadow_recorded", "01a2285d-d9dd-7aca-b195-2f157edd838d/0", {"job_id": "17"}, "job_id=17"),
        ("incarnation_began", "01a2285d-d9dd-7aca-b195-2f157edd838d", {}, "01a2285d-d9dd-7aca-b195-2f157edd838d"),
    ],
)
def test_the_audit_says_what_was_done_to_what(what: str, subject: str, detail: dict[str, str], said: str) -> None:
    """The scope of a mode and the cluster of a pause beside what was chosen; ids only where there is nothing else."""
    assert affected(audit_pb2.AuditRecord(what=what, subject=subject, detail=detail)) == said


def test_status_says_what_is_autonomous_by_default() -> None:
    """Where nothing was set default_mode holds, and beside narrower settings it holds for the rest."""
    autonomous, monitor = common_pb2.MODE_AUTONOMOUS, common_pb2.MODE_MONITOR
    narrow = watching(partition="debug")
    assert held_lines([], standing(autonomous)) == ["mode: autonomous everywhere (default_mode)"]
    assert held_lines([], standing(monitor)) == ["mode: monitor everywhere (default_mode)"]
    rest = "mode: everything else autonomous by default_mode (advisor mode get)"
    assert held_lines([], standing(autonomous, narrow)) == [rest]
    none = ["mode: no setting is autonomous (advisor mode get)"]
    assert held_lines([], standing(autonomous, narrow, watching())) == none
    canary = acting(percent=10)  # about everything too: monitor for the rest of it
    assert held_lines([], standing(autonomous, canary)) == ["mode: 1 setting autonomous (advisor mode get)"]


def test_a_service_that_is_too_old_to_tell_its_default_is_told_so() -> None:
    """Nothing is guessed of the configuration here: it need not be the service's own."""
    unset = common_pb2.MODE_UNSPECIFIED
    old = "which one, this version of the service is too old to tell: advisor config show, where it runs"
    assert held_lines([], standing(unset)) == [f"mode: default_mode everywhere; {old}"]
    (line,) = held_lines([], standing(unset, acting(partition="train")))
    assert line == f"mode: 1 setting autonomous (advisor mode get); everything else by default_mode; {old}"
    assert held_lines([], standing(unset, watching())) == ["mode: no setting is autonomous (advisor mode get)"]
    check = look_at_modes(standing(unset))
    assert (check.state, check.found) == (State.WARN, f"0 settings, and beside them default_mode; {old}")


def test_doctor_tells_the_modes_that_the_service_tells() -> None:
    """Its default where nothing is set, what acts by it beside narrower settings, and what was earned."""
    autonomous, monitor = common_pb2.MODE_AUTONOMOUS, common_pb2.MODE_MONITOR
    assert look_at_modes(standing(autonomous)).found == "no settings: autonomous everywhere"
    assert look_at_modes(standing(monitor)).found == "no settings: monitor everywhere"
    beside = look_at_modes(standing(autonomous, watching(partition="debug")))
    assert beside.found == "autonomous: everything else, by default_mode (advisor mode get)"
    earned = standing(monitor)
    earned.earned.append(acting(cluster="c", category="gpu_hardware"))
    assert look_at_modes(earned).found == "autonomous: cluster c, category gpu_hardware (advisor mode get)"


def test_what_one_replica_watches_is_not_told_as_all() -> None:
    """Of several replicas the one that answers knows its own attempts; a single one's are all there are."""
    status = operator_pb2.Status(version="1", watched_jobs=2, open_incidents=3)
    assert status_lines(status, NOW)[0].startswith("advisor 1: 2 attempts watched, 3 open incidents")
    status.replicas.extend([of_replica(1, answering=True), of_replica(2)])
    assert status_lines(status, NOW)[0].startswith("advisor 1: 2 attempts watched by this replica, 3 open incidents")
    assert look_at_tick(status).found.endswith(", 2 watched by this replica")


def test_the_last_tick_is_that_of_the_replica_that_answers() -> None:
    """As its own line says, also where it holds nothing; that jobs wait for another's is told beside it."""
    status = operator_pb2.Status(version="1", ticks=7)
    status.tick_age.FromTimedelta(timedelta(seconds=2.1))
    assert status_lines(status, NOW)[0].endswith("last tick 2.10 s ago"), "alone"
    status.replicas.extend([of_replica(1, age=0.4, answering=True, jobs=0), of_replica(2, age=2.1)])
    first, *rows = status_lines(status, NOW)
    assert first.endswith("last tick of this replica 0.40 s ago")
    assert [row.split(", ")[:2] for row in rows] == [
        ["replica h pid 1 (answers this): 0 jobs", "last tick 0.40 s ago"],
        ["replica h pid 2: 3 jobs", "last tick 2.10 s ago"],
    ]
    assert look_at_tick(status).found.startswith("7 ticks, the last 0.40 s ago")
    status.tick_age.FromTimedelta(timedelta(seconds=400))
    assert "a job has waited for a tick for 7 min" in status_lines(status, NOW)
    late = look_at_tick(status)
    assert (late.state, late.found.endswith("; a job has waited for a tick for 7 min")) == (State.FAIL, True)


def test_a_status_for_programs_has_every_field() -> None:
    """Also those that are zero or false: a replica without jobs that is dead and does not answer."""
    (found,) = whole_document(operator_pb2.Status(replicas=[operator_pb2.ReplicaStatus(host="h")]))["replicas"]
    assert (found["jobs"], found["alive"], found["answering"]) == (0, False, False)


def of_replica(pid: int, *, age: float = 0.5, jobs: int = 3, **changes: Any) -> operator_pb2.ReplicaStatus:
    made = operator_pb2.ReplicaStatus(host="h", pid=pid, alive=True, jobs=jobs, version="1", build="b", **changes)
    made.tick_age.FromTimedelta(timedelta(seconds=age))
    return made


def test_a_replica_that_is_silent_or_lost_is_told() -> None:
    """Within its lease how long it has said nothing, afterwards since when; one that is well is just listed."""
    lost = of_replica(3, age=4000)
    lost.alive, lost.jobs = False, 0
    lost.lost_since.FromDatetime(NOW)
    status = operator_pb2.Status(replicas=[of_replica(1, answering=True), of_replica(2, age=7.9), lost])
    lines = status_lines(status, NOW)[1:]
    assert "silent" not in lines[0]
    assert lines[1].endswith("silent for 7.90 s")
    assert lines[2] == "replica h pid 3: not heard since 2026-05-01 12:00:00 UTC, others have its jobs"
    found = [(check.state, check.found) for check in look_at_replicas(status)]
    assert found == [
        (State.WARN, "h pid 2 is silent for 7.90 s"),
        (State.WARN, "h pid 3 not heard since 2026-05-01 12:00:00Z"),
        (State.OK, "2 live: jobs h pid 1: 3, h pid 2: 3"),
    ]


def test_a_replica_is_named_with_where_it_answers() -> None:
    """Two of one host differ by their sockets; one of a build that does not say is named all the same."""
    lost = of_replica(3, age=4000, address="/run/c/advisor.sock, h:8443")
    lost.lost_since.FromDatetime(NOW)
    status = operator_pb2.Status(replicas=[of_replica(1, address="/run/a/advisor.sock"), of_replica(2), lost])
    assert [line.partition(": ")[0] for line in status_lines(status, NOW)[1:]] == [
        "replica h pid 1 at /run/a/advisor.sock",
        "replica h pid 2",
        "replica h pid 3 at /run/c/advisor.sock, h:8443",
    ]
    assert "h pid 3 at /run/c/advisor.sock, h:8443 not heard" in next(iter(look_at_replicas(status))).found


def test_attempts_that_nobody_has_room_for_are_told() -> None:
    """In a line of status, and as something to do by doctor; nothing where all are watched."""
    status = operator_pb2.Status(version="1", watched_jobs=5000, unwatched_jobs=3)
    assert "3 attempts not watched: no room (tick.attempts_max)" in status_lines(status, NOW)
    (check,) = look_at_room(status)
    assert (check.state, check.found) == (State.WARN, "3 attempts not watched: no replica has room")
    assert list(look_at_room(operator_pb2.Status(watched_jobs=5000))) == []
    assert len(status_lines(operator_pb2.Status(version="1"), NOW)) == 1
