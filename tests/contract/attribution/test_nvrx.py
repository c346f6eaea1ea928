"""The adapter to NVRx's attribution service, on a small server that answers in the service's own shapes."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from advisor.clock import SystemClock
from advisor.core.model import Unavailable
from advisor.core.words import Trust, UnavailableReason
from advisor.ports import Opinion, OpinionRequest
from connectors.attribution.nvrx import NvrxAttribution
from connectors.web.access import Access
from connectors.web.pacing import Breaker, Pace
from connectors.web.server import Server
from tests.contract.stores.front import Asked, Behind, Fault, Front, Told, cuts, garbles, hangs_up, never_answers, says

LOG = "/logs/train_17.log"
REQUEST = OpinionRequest(key="k/2", job_id="17", attempt=2, user="alice", path=LOG)
SUBMITTED = {
    "submitted": True,
    "normalized_path": LOG,
    "mode": "PENDING",
    "logs_dir": None,
    "sched_restarts": 0,
    "files_analyzed": None,
}
# As LogSage's back end answers (`RawAnalysisResultItem`).
LOGSAGE = {
    "result": {
        "module": "log_analyzer",
        "state": "",
        "result_id": "r-1",
        "result": [
            {
                "raw_text": "...",
                "auto_resume": "RESTART IMMEDIATE",
                "auto_resume_explanation": "A transient hardware error.",
                "attribution_text": "GPU 3 of node2 reported an uncorrectable ECC error.",
                "checkpoint_saved_flag": 1,
                "action": "RESTART",
                "primary_issues": ["CUDA error: uncorrectable ECC error encountered"],
                "secondary_issues": ["NCCL timeout on the other ranks"],
            }
        ],
        "recommendation": {"action": "RESTART", "source": "log_analyzer"},
    },
    "status": "completed",
    "recommendation": {"action": "RESTART", "source": "log_analyzer"},
    "wl_restart": 0,
    "wl_restart_count": 1,
}
# As the Restart Agent's does (recorded from the service itself, main of 2026-08-07, shortened).
AGENT = {
    "result": {
        "decision": "STOP",
        "decision_basis": "general_retry_available",
        "failure_domain": None,
        "result_provenance": {"evidence_source": "l0_deterministic", "nvrx_use": "eligible_degraded"},
        "primary_failure": {"failure_class": "observed_exception", "signature": "KeyError:", "line": 5, "rank": "9"},
        "root_cause_assessment": None,
        "evidence": [{"line": 5, "quote": "[rank9]: KeyError: 'tokens'", "supports": ["primary_failure"]}],
        "justification": "KeyError: 'tokens' in the job's own code",
        "schema_version": "restart_agent_response.v1",
    },
    "fr_dump_path": None,
    "fr_analysis": None,
    "llm_merged_summary": None,
    "wl_restart_count": None,
    "status": "completed",
    "wl_restart": 2,
    "recommendation": {
        "action": "STOP",
        "reason": "KeyError: 'tokens' in the job's own code",
        "source": "nvrx-default",
    },
    "candidate_recommendation": {"action": "STOP", "reason": "", "source": "deterministic"},
}
WAITING = {"result": {}, "status": "pending", "recommendation": {"action": "UNKNOWN", "reason": "", "source": ""}}
TIMED_OUT = {
    "result": {"module": "log_analyzer", "state": "timeout", "result": [], "error": "analysis timed out after 60 s"},
    "status": "completed",
    "recommendation": {"action": "TIMEOUT", "source": "log_analyzer"},
}
FAILED = {"result": {"error": "OSError: gone"}, "status": "failed", "recommendation": {"action": "UNKNOWN"}}


@dataclass
class Service:
    """`answers`: of `GET /logs`, in order; the last one holds."""

    answers: list[Mapping[str, Any]] = field(default_factory=lambda: [LOGSAGE])
    submitted: list[Any] = field(default_factory=list)

    async def __call__(self, asked: Asked) -> Told:
        if asked.path == "/healthz":
            return Told(body=b'{"status":"ok"}')
        assert asked.path == "/logs"
        if asked.raw:
            self.submitted.append(json.loads(asked.raw))
            return Told(body=json.dumps(SUBMITTED).encode())
        assert dict(asked.form) == {"log_path": LOG, "wait": "false"}
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return Told(body=json.dumps(answer).encode())


@dataclass
class World:
    service: Service
    front: Front
    sources: list[NvrxAttribution] = field(default_factory=list)

    def make(self, **access: Any) -> NvrxAttribution:
        clock = SystemClock()
        values: dict[str, Any] = {"url": self.front.url, "timeout_seconds": 5.0}
        server = Server(
            Access(**(values | access)),
            clock=clock,
            pace=Pace(clock, per_second=1e6, burst=1e6),
            breaker=Breaker(clock, first_seconds=0.02, max_seconds=0.1),
        )
        source = NvrxAttribution("nvrx", server, clock=clock, budget_seconds=5.0, poll_seconds=0.01)
        self.sources.append(source)
        return source


@pytest.fixture
async def world() -> AsyncIterator[World]:
    service = Service()
    front = Front(service)
    await front.start()
    made = World(service, front)
    yield made
    for source in made.sources:
        await source.close()
    await front.stop()


def error(code: str, message: str) -> str:
    return json.dumps({"error_code": code, "message": message, "details": None})


async def test_the_log_is_named_and_never_sent(world: World) -> None:
    """Path, user, job and attempt; that the attempt is over is the intent."""
    source = world.make()
    await source.ask(REQUEST)
    assert source.trust is Trust.EXTERNAL
    assert not source.trust.trusted
    assert world.service.submitted == [
        {"log_path": LOG, "user": "alice", "job_id": "17", "cycle_id": 2, "analysis_intent": "terminal"}
    ]


@pytest.mark.parametrize(
    ("answer", "opinion"),
    [
        (
            LOGSAGE,
            Opinion(
                action="RESTART",
                told_by="log_analyzer",
                texts=(
                    "CUDA error: uncorrectable ECC error encountered",
                    "GPU 3 of node2 reported an uncorrectable ECC error.",
                    "A transient hardware error.",
                    "NCCL timeout on the other ranks",
                ),
            ),
        ),
        (
            AGENT,
            Opinion(
                action="STOP",
                told_by="nvrx-default",
                texts=("[rank9]: KeyError: 'tokens'", "KeyError: 'tokens' in the job's own code"),
            ),
        ),
    ],
    ids=["logsage", "restart agent"],
)
async def test_the_shapes_of_both_back_ends_are_read(world: World, answer: Mapping[str, Any], opinion: Opinion) -> None:
    """What it would do, and everything that it says about the cause, once."""
    world.service.answers = [answer]
    assert await world.make().ask(REQUEST) == opinion


async def test_it_is_asked_again_until_it_has_come_to_a_result(world: World) -> None:
    """Pending and in flight are no answers; it is never told to let us wait."""
    world.service.answers = [WAITING, WAITING | {"status": "in_flight"}, AGENT]
    answer = await world.make().ask(REQUEST)
    assert isinstance(answer, Opinion)
    assert answer.action == "STOP"
    assert len(world.service.submitted) == 1


@pytest.mark.parametrize(
    ("answer", "reason", "said"),
    [
        (TIMED_OUT, UnavailableReason.TIMEOUT, "timed out after 60 s"),
        (FAILED, UnavailableReason.REFUSED, "OSError: gone"),
        ({"status": "completed", "result": {}}, UnavailableReason.GARBLED, "no recommendation"),
        (AGENT | {"recommendation": {"action": "EXPLODE"}}, UnavailableReason.GARBLED, "no recommendation"),
        (AGENT | {"status": ["completed"], "recommendation": "STOP"}, UnavailableReason.GARBLED, "no recommendation"),
        (AGENT | {"recommendation": "STOP"}, UnavailableReason.GARBLED, "no recommendation"),
    ],
)
async def test_no_result_is_absence(
    world: World, answer: Mapping[str, Any], reason: UnavailableReason, said: str
) -> None:
    """A time-out of its own, a failure, and what is no recommendation are not opinions."""
    world.service.answers = [answer]
    found = await world.make().ask(REQUEST)
    assert isinstance(found, Unavailable)
    assert (found.reason, said in found.detail) == (reason, True), found


FAULTS: list[tuple[Fault, UnavailableReason]] = [
    (says(403, error("outside_root", "access outside allowed root is not permitted")), UnavailableReason.PERMISSION),
    (says(404, error("not_found", "path not found")), UnavailableReason.MISSING),
    (says(400, error("empty_file", "file is empty")), UnavailableReason.REFUSED),
    (says(401, "no"), UnavailableReason.PERMISSION),
    (says(429, '{"error":"Rate limit exceeded: 60 per 1 minute"}'), UnavailableReason.LIMIT),
    (says(503, error("job_limit_reached", "maximum jobs reached")), UnavailableReason.REFUSED),
    (says(500, error("internal_error", "internal server error")), UnavailableReason.REFUSED),
    (hangs_up, UnavailableReason.GARBLED),
    (cuts(0.5), UnavailableReason.GARBLED),
    (garbles(b"<html>hello</html>"), UnavailableReason.GARBLED),
    (garbles(b"[1]"), UnavailableReason.GARBLED),
]


@pytest.mark.parametrize(("fault", "reason"), FAULTS)
async def test_what_the_service_can_do_wrong_is_a_reason(world: World, fault: Fault, reason: UnavailableReason) -> None:
    """Each refusal and each broken answer, at the submission and at the question."""
    for before in ([], [_passes]):
        world.front.faults = [*before, fault, fault]  # a connection that was closed is tried once more
        found = await world.make().ask(REQUEST)
        assert isinstance(found, Unavailable)
        assert found.reason is reason, found
        world.front.faults = []


async def _passes(asked: Asked, behind: Behind) -> Told:
    return await behind(asked)


async def test_one_log_that_it_cannot_read_is_not_the_services_fault(world: World) -> None:
    """Other attempts are asked about at once; a service that is overloaded is left alone for a while."""
    source = world.make()
    world.front.faults = [says(404, error("not_found", "path not found"))]
    assert isinstance(await source.ask(REQUEST), Unavailable)
    assert isinstance(await source.ask(REQUEST), Opinion)
    world.front.faults = [says(503, "busy", Retry_After="1")]
    assert isinstance(await source.ask(REQUEST), Unavailable)
    again = await source.ask(REQUEST)
    assert isinstance(again, Unavailable)
    assert "not asked again" in again.detail


async def test_asking_can_be_given_up_at_any_moment(world: World) -> None:
    """The budget is its caller's: nothing stays open behind."""
    source = world.make()
    asked = asyncio.Event()

    async def silent(question: Asked, behind: Behind) -> Told | None:
        asked.set()
        return await never_answers(question, behind)

    world.front.always = silent
    task = asyncio.create_task(source.ask(REQUEST))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    world.front.always = None
    assert isinstance(await source.ask(REQUEST), Opinion)


async def test_a_token_is_read_again_when_it_changes(world: World, tmp_path: Path) -> None:
    """And it goes with each question."""
    token = tmp_path / "token"
    token.write_text("first")
    source = world.make(token_file=token)
    await source.ask(REQUEST)
    token.write_text("the second")
    await source.ask(REQUEST)
    seen = [asked.headers["authorization"] for asked in world.front.asked]
    assert seen == ["Bearer first"] * 2 + ["Bearer the second"] * 2


async def test_whether_it_is_there(world: World) -> None:
    """By its own health check."""
    source = world.make()
    assert await source.check() is None
    world.front.always = says(503)
    assert isinstance(await source.check(), Unavailable)
