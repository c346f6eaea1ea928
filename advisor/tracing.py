"""Traces of recoveries, for collectors that speak OpenTelemetry: from the fault's being visible to the job's progress.

One trace per attempt that failed, one span per stage. Ids are derived from the attempt, so that whichever process sees
a stage end adds it to the same trace, and the same stage told twice is the same span. Spans are made when a stage has
ended, with the times that are stored; nothing waits for a collector, and what it does not take is dropped by the
library's own bounded queue. Needs the extra `traces`.
"""

from hashlib import sha256
from typing import TYPE_CHECKING, Protocol

from advisor.core.model import Job
from advisor.recoveries import WHOLE, Passed, Stage
from advisor.store.records import AttemptKey

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

FLUSH_MILLISECONDS = 2000


class TracingError(Exception):
    """Traces are asked for and cannot be made; the text says what is missing."""


class Tracing(Protocol):
    def passed(self, job: Job, passed: Passed) -> None:
        """A stage of a recovery has ended."""
        ...

    def close(self) -> None: ...


class NoTracing:
    """Nobody asked for traces."""

    def passed(self, job: Job, passed: Passed) -> None:
        pass

    def close(self) -> None:
        pass


def trace_id(key: AttemptKey) -> int:
    return int.from_bytes(sha256(f"recovery {key.job_key} {key.number}".encode()).digest()[:16]) or 1


def span_id(key: AttemptKey, stage: Stage) -> int:
    return int.from_bytes(sha256(f"{stage.name} {key.job_key} {key.number}".encode()).digest()[:8]) or 1


def open_tracing(endpoint: str, *, version: str, insecure: bool = False, ca_file: bytes | None = None) -> Tracing:
    """Spans to the collector at `endpoint` (host:port, OTLP over gRPC). Raises `TracingError` without the extra."""
    if not endpoint:
        return NoTracing()
    try:
        from grpc import ssl_channel_credentials
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise TracingError(
            f"traces.endpoint: {error.name} is not installed; install recovery-advisor[traces]"
        ) from None
    credentials = None if insecure else ssl_channel_credentials(ca_file)
    exporter = OTLPSpanExporter(endpoint=endpoint, insecure=insecure, credentials=credentials)
    return _otlp(exporter, version)


def _otlp(exporter: "SpanExporter", version: str) -> Tracing:
    from opentelemetry import trace
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.id_generator import IdGenerator

    class Derived(IdGenerator):
        """The ids of the span that is being made: set by `Spans.passed`, which makes them one after the other."""

        trace, span = 1, 1

        def generate_trace_id(self) -> int:
            return self.trace

        def generate_span_id(self) -> int:
            return self.span

    class Spans:
        def __init__(self) -> None:
            self._ids = Derived()
            resource = Resource.create({"service.name": "recovery-advisor", "service.version": version})
            self._provider = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
            self._provider.add_span_processor(BatchSpanProcessor(exporter))
            self._tracer = self._provider.get_tracer("recovery_advisor")

        def passed(self, job: Job, passed: Passed) -> None:
            key, stage = passed.key, passed.stage
            self._ids.trace, self._ids.span = trace_id(key), span_id(key, stage)
            parent = None
            if stage is not WHOLE:
                flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
                root = trace.SpanContext(trace_id(key), span_id(key, WHOLE), is_remote=True, trace_flags=flags)
                parent = trace.set_span_in_context(trace.NonRecordingSpan(root))
            span = self._tracer.start_span(
                stage.name,
                context=parent,
                start_time=_nanoseconds(passed.began_at.timestamp()),
                attributes={
                    "slurm.cluster": job.cluster,
                    "slurm.job_id": job.job_id,
                    "slurm.partition": job.partition,
                    "recovery_advisor.job_key": key.job_key,
                    "recovery_advisor.attempt": key.number,
                },
            )
            span.end(_nanoseconds(max(passed.ended_at, passed.began_at).timestamp()))

        def close(self) -> None:
            self._provider.force_flush(FLUSH_MILLISECONDS)
            self._provider.shutdown()

    return Spans()


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1_000_000) * 1000
