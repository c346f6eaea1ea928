"""Right verdicts that operators record beside wrong ones: for the shadow report, and as bundles to test against."""

import structlog

from advisor.core.people import Correction
from advisor.core.words import Action, Category
from advisor.ports import Clock
from advisor.service import wire
from advisor.service.callers import Caller
from advisor.service.errors import BadRequestError, NotFoundError
from advisor.service.node_operations import why_of
from advisor.store import errors as store_errors
from advisor.store.corrections import StoredCorrection
from advisor.store.store import Store
from advisor.v1 import common_pb2, operator_pb2

log = structlog.get_logger(__name__)

NODES_MAX = 64


class CorrectionOperations:
    """One per caller."""

    def __init__(self, store: Store, clock: Clock, caller: Caller) -> None:
        self._store, self._clock, self._caller = store, clock, caller

    async def correct(self, request: operator_pb2.CorrectVerdictRequest) -> operator_pb2.Correction:
        category = _category(request.category) if request.HasField("category") else None
        action = wire.from_wire(Action, request.action, "action") if request.action else None
        nodes = wire.node_names(request.nodes.names, "nodes") if request.HasField("nodes") else None
        if category is None and action is None and nodes is None:
            raise BadRequestError("say what was wrong: category, action or nodes")
        if nodes is not None and len(nodes) > NODES_MAX:
            raise BadRequestError(f"nodes: more than {NODES_MAX}")
        wanted = Correction(
            who=self._caller.name,
            at=self._clock.now(),
            why=why_of(request.why),
            category=category,
            action=action,
            nodes=nodes,
        )
        try:
            row = await self._store.audit.decision(wire.text_of(request.decision_id, "decision_id", most=wire.NAME_MAX))
            if row is None:
                raise NotFoundError(f"there is no decision {request.decision_id[:64]!r}")
            made, changed = await self._store.correct(row.decision_id, wanted, origin=self._caller.origin)
        except store_errors.Ambiguous as error:
            raise BadRequestError(f"decision_id: {error}") from None
        except store_errors.NotFound as error:
            raise NotFoundError(f"there is {error}") from None
        if changed:
            log.info("verdict_corrected", decision=made.decision_id, who=self._caller.name)
        return correction_message(made)

    async def list(self, request: operator_pb2.ListCorrectionsRequest) -> operator_pb2.ListCorrectionsResponse:
        found = await self._store.corrections(
            cluster=wire.cluster_of(request.cluster) if request.HasField("cluster") else "",
            decision_id=wire.text_of(request.decision_id, "decision_id", most=wire.NAME_MAX),
            since=wire.moment_of(request, "since", "request"),
        )
        return operator_pb2.ListCorrectionsResponse(corrections=[correction_message(item) for item in found])


def _category(given: str) -> Category:
    if given not in list(Category):
        raise BadRequestError(f"category: {given[:64]!r} is not one of {', '.join(Category)}")
    return Category(given)


def correction_message(item: StoredCorrection) -> operator_pb2.Correction:
    said = item.correction
    message = operator_pb2.Correction(
        correction_id=item.correction_id,
        decision_id=item.decision_id,
        attempt=wire.ref_message(item.attempt),
        category=said.category,
        action=wire.to_wire(said.action) if said.action is not None else common_pb2.ACTION_UNSPECIFIED,
        why=wire.clean(said.why),
        who=said.who,
        at=wire.stamp(said.at),
        was_category=item.was_category,
        was_nodes=item.was_nodes,
    )
    if item.was_action in list(Action):
        message.was_action = wire.to_wire(Action(item.was_action))
    if said.nodes is not None:
        message.nodes.names.extend(said.nodes)
        message.nodes.SetInParent()
    return message
