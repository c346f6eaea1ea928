"""Traces of recoveries, as a collector gets them over the wire."""

import threading
from concurrent import futures
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from advisor.core.model import Job
from advisor.core.words import Mode
from advisor.recoveries import RESTART, STEPS, WHOLE, Passed, Stage
from advisor.store.records import AttemptKey
from advisor.tracing import NoTracing, open_tracing

NOW = datetime(2026, 6, 1, tzinfo=UTC)
KEY = AttemptKey(job_key="j", number=2)
JOB = Job(key="j", cluster="alps", job_id="71", user="u", partition="gpu", mode=Mode.MONITOR)


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.came = threading.Event()

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 -- as the contract calls it
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)
        self.came.set()
        return trace_service_pb2.ExportTraceServiceResponse()


def passed(stage: Stage, key: AttemptKey = KEY) -> Passed:
    return Passed(key=key, stage=stage, began_at=NOW, ended_at=NOW + timedelta(seconds=1.5))


def test_stages_of_one_attempt_are_one_trace() -> None:
    """Each stage hangs below the recovery, whose span comes last; another attempt is another trace."""
    collector = Collector()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        tracing = open_tracing(f"127.0.0.1:{port}", version="1", insecure=True)
        for stage in (*STEPS, RESTART, WHOLE):
            tracing.passed(JOB, passed(stage))
        tracing.passed(JOB, passed(WHOLE, AttemptKey(job_key="j", number=3)))
        tracing.close()
    finally:
        server.stop(None)
    assert len(collector.spans) == len(STEPS) + 3
    ours = [span for span in collector.spans if span.trace_id == collector.spans[0].trace_id]
    (root,) = (span for span in ours if not span.parent_span_id)
    assert (root.name, len(ours)) == ("recovery", len(STEPS) + 2)
    assert {span.parent_span_id for span in ours if span is not root} == {root.span_id}
    assert root.end_time_unix_nano - root.start_time_unix_nano == 1_500_000_000
    known = {item.key: item.value.string_value or item.value.int_value for item in root.attributes}
    assert known["slurm.job_id"] == "71"
    assert known["recovery_advisor.attempt"] == 2


def test_another_process_tells_the_same_trace() -> None:
    """Ids come from the attempt alone: a replica that takes over adds to the trace that was begun."""
    collector = Collector()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        for stage in (STEPS[0], WHOLE):
            tracing = open_tracing(f"127.0.0.1:{port}", version="1", insecure=True)
            tracing.passed(JOB, passed(stage))
            tracing.close()
    finally:
        server.stop(None)
    first, second = collector.spans
    assert first.trace_id == second.trace_id
    assert first.parent_span_id == second.span_id


def test_without_an_endpoint_nothing_is_made() -> None:
    """The extra is not even loaded."""
    assert isinstance(open_tracing("", version="1"), NoTracing)
