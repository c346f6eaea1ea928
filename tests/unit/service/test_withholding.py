"""Text of logs is for the job's owner and for operators."""

import json
from collections.abc import Iterator

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from advisor.service.access import NEEDED
from advisor.service.callers import Caller, Proof, Role, granted
from advisor.service.errors import ForbiddenError, NotFoundError
from advisor.service.withholding import SHOWN, TEXTS, WITHHELD, full_name, is_shown, narrow, withhold
from advisor.v1 import audit_pb2, common_pb2, operator_pb2, report_pb2

SECRET = "password=hunter2"


def _caller(role: Role, name: str = "eve") -> Caller:
    return Caller(name=name, roles=granted(role), proof=Proof.TOKEN)


def _decision(user: str = "alice") -> audit_pb2.Decision:
    analysis = {
        "schema": "advisor.analysis/1",
        "job": {"id": "17", "user": user, "nodes": ["n1"]},
        "attribution": {"category": "application", "root_cause": SECRET, "evidence": [{"rule": "r", "text": SECRET}]},
        "something_new": SECRET,
        "lines": 3,
    }
    return audit_pb2.Decision(
        advice=common_pb2.Advice(
            attempt=common_pb2.AttemptRef(user=user, job_id="17"),
            category="application",
            explanation=f"Stop: {SECRET}",
            evidence=[common_pb2.Evidence(rule="r", text=SECRET, file=f"/home/{SECRET}", line=3)],
        ),
        analysis_json=json.dumps(analysis),
        reconciliations=[audit_pb2.Reconciliation(detail=SECRET, excluded_nodes=["n1"])],
    )


@pytest.mark.parametrize(
    ("role", "name"), [(Role.OPERATOR, "eve"), (Role.ADMIN, "eve"), (Role.USER, "alice"), (Role.VIEWER, "alice")]
)
def test_owner_and_operators_read_everything(role: Role, name: str) -> None:
    """Nothing is taken out for the job's own user, nor for whoever operates the advisor."""
    message = _decision()
    withhold(_caller(role, name), message)
    assert message == _decision()


def test_a_viewer_sees_what_was_decided_but_not_the_text() -> None:
    """Category, rule, nodes and numbers stay; every text is replaced, also in keys of the analysis that are new."""
    message = _decision()
    withhold(_caller(Role.VIEWER), message)
    assert SECRET not in str(message)
    assert message.advice.explanation == WITHHELD
    assert (message.advice.category, message.advice.evidence[0].rule, message.advice.evidence[0].line) == (
        "application",
        "r",
        3,
    )
    analysis = json.loads(message.analysis_json)
    assert analysis["attribution"]["category"] == "application"
    assert analysis["job"] == {"id": "17", "user": "alice", "nodes": ["n1"]}
    assert (analysis["something_new"], analysis["lines"]) == (WITHHELD, 3)


def test_a_user_does_not_learn_that_others_have_jobs() -> None:
    """Somebody else's decision is not there for him, wherever in an answer it stands."""
    for answer in (
        _decision(),
        audit_pb2.ListDecisionsResponse(decisions=[_decision("eve"), _decision("alice")]),
        audit_pb2.JobTimeline(attempts=[audit_pb2.Attempt(attempt=common_pb2.AttemptRef(user="alice"))]),
        audit_pb2.ListSignalsResponse(signals=[audit_pb2.Signal(attempt=common_pb2.AttemptRef(user="alice"))]),
        _decision(""),
        audit_pb2.Attempt(attempt=common_pb2.AttemptRef(job_id="17")),
    ):
        with pytest.raises(NotFoundError):
            withhold(_caller(Role.USER), answer)


def test_a_users_lists_are_narrowed_to_his_own_jobs() -> None:
    """Without a user the list is of his own jobs; asking for another one is refused; a viewer's list stays."""
    request = audit_pb2.ListDecisionsRequest()
    narrow(_caller(Role.USER), request)
    assert request.filter.user == "eve"
    with pytest.raises(ForbiddenError, match="own jobs only"):
        narrow(_caller(Role.USER), audit_pb2.ListDecisionsRequest(filter=audit_pb2.Filter(user="alice")))
    request = audit_pb2.ListDecisionsRequest()
    narrow(_caller(Role.VIEWER), request)
    assert not request.filter.user


def test_an_event_without_an_attempt_is_of_the_timelines_job() -> None:
    """Whose text it is comes from around it; in a node's history, where nothing tells, it is withheld."""
    event = audit_pb2.Event(kind="operator", text=SECRET)
    attempts = [audit_pb2.Attempt(attempt=common_pb2.AttemptRef(user="eve"))]
    timeline = audit_pb2.JobTimeline(attempts=attempts, events=[event])
    withhold(_caller(Role.VIEWER), timeline)
    assert timeline.events[0].text == SECRET
    history = audit_pb2.NodeHistory(events=[event])
    withhold(_caller(Role.VIEWER), history)
    assert history.events[0].text == WITHHELD


def test_an_account_without_a_name_owns_no_job_without_a_user() -> None:
    """An attempt whose user is not known is nobody's."""
    message = _decision("")
    withhold(_caller(Role.VIEWER, ""), message)
    assert SECRET not in str(message)


def _answers_below_operator() -> Iterator[Descriptor]:
    for file in (audit_pb2.DESCRIPTOR, operator_pb2.DESCRIPTOR, report_pb2.DESCRIPTOR):
        for service in file.services_by_name.values():
            for method in service.methods:
                if NEEDED[f"{service.name}/{method.name}"] & (Role.USER | Role.VIEWER):
                    yield method.output_type


def _fields(message: Descriptor, seen: set[str]) -> Iterator[FieldDescriptor]:
    if message.full_name in seen or message.full_name.startswith("google."):
        return
    seen.add(message.full_name)
    for field in message.fields:
        if not message.GetOptions().map_entry or field.name == "value":
            yield field
        if field.message_type is not None:
            yield from _fields(field.message_type, seen)


def test_somebody_has_thought_about_every_text_field_that_others_may_be_shown() -> None:
    """Each string field is known to hold no text of a log, or listed as one that may; no map has such values."""
    seen: set[str] = set()
    fields = [field for answer in _answers_below_operator() for field in _fields(answer, seen)]
    texts = [field for field in fields if field.type in {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}]
    named = {full_name(field) for field in texts if not is_shown(field)}
    assert named == TEXTS
    assert not TEXTS & SHOWN
