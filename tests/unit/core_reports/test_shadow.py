"""Advice against people: agreement, both kinds of disagreement, nodes proved bad and good, hours saved."""

from dataclasses import replace
from typing import Any

import pytest

from advisor.core.people import Correction, Did, Said
from advisor.core.shadow import (
    Avoided,
    Case,
    NodeAftermath,
    NodeProof,
    Outcome,
    Proof,
    compare,
    evidence_for_autonomy,
    prove,
    tally,
)
from advisor.core.words import Action, AttemptState, Category, NodeState, Reason
from tests.unit.core_reports.shadow_cases import (
    RULES,
    advised,
    at,
    change,
    follower,
    namesake,
    run,
    stop,
    watched,
)

LATER = at(100_000)


def case(**changes: Any) -> Case:
    return compare(watched(**changes), LATER, RULES)


def test_a_restart_that_people_did_as_well_agrees() -> None:
    """595 s after our advice, on 32 GPUs: the delay is what would have been saved."""
    found = case(followers=(follower(),))
    assert (found.outcome, found.delay_seconds, found.held) == (Outcome.AGREED, 595.0, False)
    (row,) = tally([found], []).rows
    assert row.gpu_hours_waited == pytest.approx(595 / 3600 * 32)
    assert (row.gpu_hours_held, row.agreement.value, row.agreement.count) == (0.0, 1.0, 1)


def test_the_gpus_of_a_hung_job_were_held_until_people_acted() -> None:
    """It ended only when they did."""
    hung = run(state=AttemptState.CANCELLED, ended_at=at(3600))
    found = case(run=hung, fault_at=at(-10), namesakes=(namesake(submitted_at=at(3700)),))
    assert (found.outcome, found.held, found.delay_seconds) == (Outcome.AGREED, True, 3695.0)
    assert tally([found], []).rows[0].gpu_hours_held > 32.8


@pytest.mark.parametrize(
    "changes", [{"run": run(state=AttemptState.CANCELLED, ended_at=at(300))}, {}], ids=["cancelled", "left as it was"]
)
def test_a_restart_that_people_did_not_want_is_one_kind_of_disagreement(changes: dict[str, Any]) -> None:
    """We would have restarted it."""
    assert case(**changes).outcome is Outcome.WE_RESTART


def test_how_much_later_is_told_of_disagreements_too_and_saves_nothing() -> None:
    """Cancelled 295 s after our advice to restart: told, and in no sum of hours."""
    found = case(run=run(state=AttemptState.CANCELLED, ended_at=at(300)))
    assert found.delay_seconds == 295.0
    assert tally([found], []).rows[0].gpu_hours_held == 0.0


def test_a_stop_agrees_with_a_cancel_and_with_a_job_left_as_it_was() -> None:
    """Nobody ran it again."""
    assert case(advised=(stop(),)).outcome is Outcome.AGREED
    cancelled = run(state=AttemptState.CANCELLED, ended_at=at(300))
    assert case(advised=(stop(),), run=cancelled).outcome is Outcome.AGREED


def test_a_stop_that_people_restarted_is_the_other_kind() -> None:
    """They requeued what we would have stopped, and it did not fail the same way."""
    assert case(advised=(stop(),), followers=(follower(),)).outcome is Outcome.THEY_RESTART


def test_a_restart_that_failed_the_same_way_shows_that_stopping_was_right() -> None:
    """And its GPU-hours were wasted: two hours on 32 GPUs."""
    again = follower(state=AttemptState.FAILED, ended_at=at(720 + 7200), fingerprint="keyerror")
    found = case(advised=(stop(),), followers=(again,))
    assert (found.outcome, [item.gpu_hours for item in found.wasted]) == (Outcome.AGREED, [64.0])


def test_an_attempt_that_several_stops_had_foretold_wasted_its_hours_once() -> None:
    """Stopped by advice and requeued by people three times over: each attempt is in the sum once."""
    runs = [
        follower(number=n, state=AttemptState.FAILED, ended_at=at(720 + 7200), fingerprint="keyerror") for n in (1, 2)
    ]
    first = case(advised=(stop(),), followers=tuple(runs))
    second = case(advised=(stop(),), run=runs[0], followers=(runs[1],))
    (row,) = tally([first, second], []).rows
    assert row.gpu_hours_wasted == 128.0
    unknown = follower(state=AttemptState.FAILED, fingerprint="keyerror", gpus=None)
    (row,) = tally([case(advised=(stop(),), followers=(unknown,))], []).rows
    assert (row.gpu_hours_wasted, row.without_gpus) == (0.0, 1)


def test_a_late_resubmission_after_a_stop_says_nothing() -> None:
    """The program may have been repaired in between; a quick one that completed was no other program."""
    late = namesake(submitted_at=at(7200), state=AttemptState.COMPLETED, ended_at=at(9000))
    assert case(advised=(stop(),), namesakes=(late,)).outcome is Outcome.UNCLEAR
    quick = namesake(submitted_at=at(120), state=AttemptState.COMPLETED, ended_at=at(9000))
    assert case(advised=(stop(),), namesakes=(quick,)).outcome is Outcome.THEY_RESTART


def test_people_who_avoid_other_nodes_disagree() -> None:
    """The same action without any of our nodes; one node in common is enough, and none of theirs says nothing."""
    assert case(followers=(follower(excluded=("node4",)),)).outcome is Outcome.OTHER_NODES
    assert case(followers=(follower(excluded=("node2", "node4")),)).outcome is Outcome.AGREED
    drained = (change("node3", 100, NodeState.DRAINED, "bob: broken"),)
    assert case(changes=drained, followers=(follower(),)).outcome is Outcome.OTHER_NODES


def test_agreed_restarts_tell_whether_people_avoided_our_nodes() -> None:
    """Agreement about the restart alone hides it: in common, or none of theirs where we had some."""
    common = case(followers=(follower(excluded=("node2", "node4")),))
    none = case(followers=(follower(),))
    neither = case(advised=(advised(nodes=()),), followers=(follower(),))
    others = case(followers=(follower(excluded=("node4",)),))
    prompted = (change("node2", 100, NodeState.DRAINED, "bob: broken"),)
    repeated = case(advised=(advised(at=at(101)),), changes=prompted, followers=(follower(),))
    stopped = case(advised=(stop(),))
    cases = (common, none, neither, others, repeated, stopped)
    assert [item.nodes for item in cases] == [Avoided.SAME, Avoided.OURS_ALONE, None, None, None, None]
    (row,) = [row for row in tally(cases, []).rows if row.category is common.category]
    assert (row.agreed_same_nodes, row.agreed_ours_alone, row.count(Outcome.OTHER_NODES)) == (1, 1, 1)


def test_nodes_that_we_named_after_people_drained_them_are_no_agreement() -> None:
    """A drained node is evidence that we read, too: what we said before it counts, and without that nothing does."""
    drained = (change("node3", 100, NodeState.DRAINED, "bob: broken"),)
    copied = advised(at=at(101), nodes=("node3",), decision_id="d2")
    found = case(advised=(advised(nodes=()), copied), changes=drained, followers=(follower(),))
    assert found.outcome is Outcome.OTHER_NODES
    assert case(advised=(copied,), changes=drained, followers=(follower(),)).outcome is Outcome.AGREED
    own = advised(nodes=("node3",))
    assert case(advised=(own, copied), changes=drained, followers=(follower(),)).outcome is Outcome.AGREED


def test_the_delay_counts_from_the_first_of_the_same_advice() -> None:
    """Later decisions refined its nodes; one that took the advice back begins anew."""
    refined = (advised(nodes=()), advised(at=at(30), decision_id="d2"))
    found = case(advised=refined, followers=(follower(),))
    assert (found.delay_seconds, found.advice) == (595.0, refined[1])
    none = advised(at=at(20), action=Action.NONE, reason=Reason.AWAITING_EXIT)
    broken = (refined[0], none, refined[1])
    assert case(advised=broken, followers=(follower(),)).delay_seconds == 570.0


def test_advice_from_after_people_acted_is_not_judged() -> None:
    """They were faster; and what follows from what they did is no advice."""
    assert case(advised=(advised(at=at(700)),), followers=(follower(),)).outcome is Outcome.NO_ADVICE
    after = advised(at=at(601), reason=Reason.ALREADY_REQUEUED, decision_id="d2")
    assert case(advised=(advised(), after), followers=(follower(),)).advice == advised()
    none = advised(action=Action.NONE, reason=Reason.AWAITING_EXIT)
    assert case(advised=(none,), followers=(follower(),)).outcome is Outcome.NO_ADVICE


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        (Correction(who="bob", at=at(9), why="it was the switch", category=Category.INTERCONNECT), Outcome.CORRECTED),
        (Correction(who="bob", at=at(9), why="fix the code", action=Action.STOP), Outcome.CORRECTED),
        (Correction(who="bob", at=at(9), why="node3 was it", nodes=("node3",)), Outcome.CORRECTED),
        (Correction(who="bob", at=at(9), why="yes", nodes=("node2",), action=Action.RESTART), Outcome.AGREED),
    ],
)
def test_an_operators_word_about_the_verdict_wins(said: Correction, outcome: Outcome) -> None:
    """Over the requeue that agreed with us; a correction that says the same is a confirmation."""
    assert case(correction=said, followers=(follower(),)).outcome is outcome


def test_a_record_counts_like_what_it_says() -> None:
    """Somebody says that the new job takes the old one's place, whatever its name."""
    said = Said(did=Did.RESUBMITTED, did_at=at(300), who="ada", why="as llama-v2")
    assert case(said=said).outcome is Outcome.AGREED
    assert case(said=Said(did=Did.OTHER, did_at=at(300), who="ada")).outcome is Outcome.NOBODYS


def test_what_we_did_ourselves_is_judged_by_whether_it_stood() -> None:
    """It is no agreement of people's in the figure, and speaks for or against going on."""
    ours = (advised(autonomous=True, applied=True),)
    stood = case(advised=ours, followers=(follower(ours=True),))
    undone = case(
        advised=ours,
        followers=(follower(ours=True, state=AttemptState.CANCELLED, started_at=None, ended_at=at(640)),),
    )
    assert (stood.outcome, undone.outcome) == (Outcome.AGREED, Outcome.WE_RESTART)
    (row,) = tally([stood, undone], []).rows
    assert (row.agreement.count, row.stood, row.undone) == (0, 1, 1)
    assert evidence_for_autonomy([stood, undone], with_stop=False) == (1, 2)


def test_a_stop_of_our_own_undoes_no_restart_of_ours() -> None:
    """What we cancelled ourselves, as an operator ordered, says nothing of people's against the restart before it."""
    ours = (advised(autonomous=True, applied=True),)
    ended = follower(ours=True, state=AttemptState.CANCELLED, ended_at=at(640))
    assert case(advised=ours, followers=(ended,)).outcome is Outcome.WE_RESTART
    assert case(advised=ours, followers=(replace(ended, stopped=True),)).outcome is Outcome.AGREED


def test_a_cancel_that_may_be_our_own_stop_is_held_against_nobody() -> None:
    """Our stop was out and nobody reported it: no agreement of people's with it, and no restart of ours undone."""
    mine = (stop(autonomous=True), advised(action=Action.NONE, reason=Reason.STOP_UNREPORTED, at=at(60)))
    cancelled = run(state=AttemptState.CANCELLED, ended_at=at(10))
    assert case(run=cancelled, advised=mine[:1]).outcome is Outcome.AGREED
    lost = case(run=replace(cancelled, unreported=True), advised=mine)
    assert (lost.outcome, lost.why) == (
        Outcome.UNCLEAR,
        "our stop was out, and not reported back: ended by it, or by somebody else",
    )
    again = case(run=replace(cancelled, unreported=True), advised=mine, followers=(follower(),))
    assert again.outcome is Outcome.THEY_RESTART
    ours = (advised(autonomous=True, applied=True),)
    ended = follower(ours=True, state=AttemptState.CANCELLED, ended_at=at(640), unreported=True)
    assert case(advised=ours, followers=(ended,)).outcome is Outcome.UNCLEAR


def test_stops_speak_for_autonomy_only_where_stopping_is_included() -> None:
    """A category that is to restart by itself is judged by restarts."""
    cases = [case(followers=(follower(),)), case(advised=(stop(),))]
    assert evidence_for_autonomy(cases, with_stop=False) == (1, 1)
    assert evidence_for_autonomy(cases, with_stop=True) == (2, 2)


def test_what_we_did_and_may_still_be_undone_is_told_as_waiting() -> None:
    """The table adds up to the list of cases: each is in one of its figures."""
    ours = (advised(autonomous=True, applied=True),)
    open_ = compare(watched(advised=ours, followers=(follower(ours=True),)), at(700), RULES)
    assert open_.outcome is Outcome.WAITING
    (row,) = tally([open_], []).rows
    assert (row.agreement.count, row.stood, row.undone, row.outcomes) == (0, 0, 0, {Outcome.WAITING: 1})


def test_every_outcome_is_in_its_categorys_row() -> None:
    """The most counted category first; what is not counted is told beside."""
    cases = [
        case(followers=(follower(),)),
        case(),
        case(run=run(state=AttemptState.NODE_FAILURE), followers=(follower(),)),
        case(advised=(stop(),), followers=(follower(),)),
    ]
    hardware, application = tally(cases, []).rows
    assert (hardware.category, hardware.agreement.count) == (Category.GPU_HARDWARE, 2)
    assert hardware.outcomes == {Outcome.AGREED: 1, Outcome.WE_RESTART: 1, Outcome.NOBODYS: 1}
    assert application.outcomes == {Outcome.THEY_RESTART: 1}


def test_hours_of_jobs_without_known_gpus_are_left_out_and_counted() -> None:
    """Never a figure from nothing."""
    (row,) = tally([case(run=run(gpus=None), followers=(follower(),))], []).rows
    assert (row.gpu_hours_waited, row.without_gpus) == (0.0, 1)


@pytest.mark.parametrize(
    ("history", "proof"),
    [
        ({"failures": (at(3600),)}, Proof.BAD),
        ({"failures": (at(-3600), at(8 * 86_400))}, Proof.OPEN),
        ({"changes": (change("node2", 60, NodeState.DOWN),)}, Proof.BAD),
        ({"changes": (change("node2", 60, NodeState.DRAINED, "bob: dead"),)}, Proof.BAD),
        ({"changes": (change("node2", 60, NodeState.DRAINED, "advisor: 01 gpu_hardware"),)}, Proof.OPEN),
        ({"good_hours": 30.0}, Proof.GOOD),
        ({"good_hours": 30.0, "failures": (at(60),)}, Proof.BAD),
        ({"good_hours": 3.0}, Proof.OPEN),
    ],
)
def test_a_node_is_proved_by_what_became_of_it(history: dict[str, Any], proof: Proof) -> None:
    """Within seven days; our own drain proves nothing, and neither does a node that nobody used."""
    assert prove(NodeAftermath(node="node2", **history), at(0), at(8 * 86_400), RULES)[0] is proof


def test_a_node_is_not_good_before_its_time_is_over() -> None:
    """It may still fail."""
    assert prove(NodeAftermath(node="node2", good_hours=30.0), at(0), at(86_400), RULES)[0] is Proof.OPEN


def test_proofs_are_counted_per_category() -> None:
    """Beside the category's agreement."""
    proofs = [
        NodeProof(
            node=f"node{n}",
            cluster="alps",
            category=Category.GPU_HARDWARE,
            decision_id="d1",
            at=at(0),
            proof=proof,
            why="",
        )
        for n, proof in enumerate((Proof.BAD, Proof.BAD, Proof.GOOD, Proof.OPEN))
    ]
    (row,) = tally([], proofs).rows
    assert (row.nodes_bad, row.nodes_good, row.nodes_open) == (2, 1, 1)
