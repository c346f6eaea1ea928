"""One table says who may call what."""

import pytest
from google.protobuf.descriptor import FileDescriptor

from advisor.service.access import NEEDED, may, require
from advisor.service.callers import NOBODY, Caller, Proof, Role, granted
from advisor.service.errors import ForbiddenError, UnauthenticatedError
from advisor.v1 import agent_pb2, audit_pb2, common_pb2, operator_pb2, report_pb2

FILES: tuple[FileDescriptor, ...] = (
    agent_pb2.DESCRIPTOR,
    audit_pb2.DESCRIPTOR,
    operator_pb2.DESCRIPTOR,
    report_pb2.DESCRIPTOR,
)
METHODS = {
    f"{service.name}/{method.name}"
    for file in FILES
    for service in file.services_by_name.values()
    for method in service.methods
}
OTHERS = {"Health/Check", "Health/Watch", "Health/List", "ServerReflection/ServerReflectionInfo"}


def _caller(role: Role, proof: Proof = Proof.KERNEL) -> Caller:
    return Caller(name="eve", roles=granted(role), proof=proof, credential="laptop")


def test_every_method_of_the_contract_has_an_entry_and_no_other_is_named() -> None:
    """A method that is added to the contract can be called by nobody until the table says by whom."""
    assert {what for what in NEEDED if " " not in what} == METHODS | OTHERS


def test_what_is_not_in_the_table_nobody_may() -> None:
    """An unknown method is refused to an admin, too."""
    with pytest.raises(ForbiddenError, match="nobody may call"):
        require(_caller(Role.ADMIN), "AuditService/DropEverything")


def test_greater_roles_include_lesser_ones_and_the_agent_stands_alone() -> None:
    """An admin may do all that people may, an agent only what agents do."""
    people = {what for what in METHODS if not what.startswith("AgentService/")}
    assert all(may(_caller(Role.ADMIN), what) for what in people)
    assert not any(may(_caller(Role.AGENT), what) for what in people)
    assert all(may(_caller(Role.AGENT), what) for what in METHODS - people)
    assert not any(may(_caller(Role.ADMIN), what) for what in METHODS - people)


def test_no_viewer_changes_anything() -> None:
    """What a viewer or a user may call only reads."""
    reads = ("Get", "List")
    for role in (Role.USER, Role.VIEWER):
        allowed = {what.partition("/")[2] for what in METHODS if may(_caller(role), what)}
        assert allowed
        assert all(name.startswith(reads) for name in allowed)


def test_an_operator_may_stop_but_only_an_admin_may_let_the_advisor_act() -> None:
    """Monitor can be set by an operator; autonomous, and taking a setting away, needs an admin."""
    monitor = operator_pb2.SetModeRequest(setting=operator_pb2.ModeSetting(mode=common_pb2.MODE_MONITOR))
    autonomous = operator_pb2.SetModeRequest(setting=operator_pb2.ModeSetting(mode=common_pb2.MODE_AUTONOMOUS))
    operator, admin = _caller(Role.OPERATOR), _caller(Role.ADMIN)
    assert may(operator, "OperatorService/SetMode", monitor)
    assert not may(operator, "OperatorService/SetMode", autonomous)
    assert not may(operator, "OperatorService/SetMode", operator_pb2.SetModeRequest())
    assert not may(operator, "OperatorService/UnsetMode", operator_pb2.UnsetModeRequest())
    assert may(admin, "OperatorService/SetMode", autonomous)


def test_a_refusal_says_what_to_do() -> None:
    """On the Unix socket it names the setting, from afar the role, and without any proof what to show."""
    with pytest.raises(ForbiddenError, match=r"user eve may not .* needs the role operator; .*service\.operator_users"):
        require(_caller(Role.VIEWER), "OperatorService/Pause")
    with pytest.raises(ForbiddenError, match=r"eve \(token laptop\) may not .* needs the role operator"):
        require(_caller(Role.VIEWER, Proof.TOKEN), "OperatorService/Pause")
    with pytest.raises(UnauthenticatedError, match="show a token"):
        require(NOBODY, "OperatorService/Pause")
