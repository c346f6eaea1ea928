"""A fuzzer reads the served OpenAPI document and asks everything in it: no 5xx, every answer as described, no leak."""

import asyncio
from collections.abc import Sequence

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from advisor.store.store import Store
from tests.integration.api.world import SECRET, served, two_users

pytestmark = pytest.mark.postgres

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
# Whoever may not read ada's log must not see what is in it.
STRANGERS = ("vera", "bob")


def fuzz(address: str, caller: str, examples: int) -> list[str]:
    """Asks each operation so many things as this caller; what was answered with a 200."""
    api = schemathesis.openapi.from_url(f"{address}/openapi.json")
    answered: list[str] = []
    for found in api.get_all_operations():
        operation = found.ok()

        @settings(
            max_examples=examples,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def ask(case: schemathesis.Case) -> None:
            answer = case.call(headers={"X-Test-Caller": caller}, timeout=30)
            assert caller not in STRANGERS or SECRET not in answer.text, f"{case.method} {case.path} leaks"
            case.validate_response(answer, checks=CHECKS)
            if answer.status_code == 200:
                answered.append(f"{case.method} {case.path}")

        ask()
    return answered


async def fuzzed(store: Store, callers: Sequence[str], examples: int) -> dict[str, list[str]]:
    await two_users(store)
    async with served(store) as address:
        # The fuzzer waits for answers: in a thread of its own.
        return {caller: await asyncio.to_thread(fuzz, address, caller, examples) for caller in callers}


async def test_every_operation_answers_as_described(store: Store) -> None:
    """A few requests for each operation, as an administrator and as a viewer."""
    answered = await fuzzed(store, ("root", "vera"), examples=4)
    assert len(set(answered["root"])) >= 10
    assert answered["vera"]


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_every_operation_answers_as_described_to_whatever_is_asked(store: Store) -> None:
    """The same with many requests, and as a user of the cluster and as nobody, too."""
    answered = await fuzzed(store, ("root", "olga", "vera", "bob", "nobody"), examples=100)
    assert answered["nobody"] == []
    assert answered["bob"]
