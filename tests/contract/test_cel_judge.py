"""Our CEL engine before the scheduler's own: verdict, refusal and estimated cost of random expressions.

The functions of the API server's evaluator are many and their corners more; this is what found most of them.
"""

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupolicy.adapters.cel import engine
from gpupolicy.adapters.cel.declarations import Environment
from gpupolicy.core.selection import Device, Outcome
from tests.contract import go_program
from tests.paths import ROOT
from tests.unit.cel import corners
from tests.unit.cel import expressions as samples
from tests.unit.cel.strategies import expressions
from tests.unit.cel.tables import FAILING, REFUSED, TRUE, rows

pytestmark = pytest.mark.timeout(600)  # The first test builds the program.

Judge = Callable[[str, Environment, dict[str, Any]], "Answer"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the scheduler's evaluator says."""

    outcome: Outcome
    refused: bool
    cost: int
    text: str


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    program = go_program.build(ROOT / "tests/contract/celjudge")
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def ask(expression: str, environment: Environment, device: dict[str, Any]) -> Answer:
            body = {key: value for key, value in device.items() if key != "driver"}
            query = {
                "expression": expression,
                "driver": device["driver"],
                "device": {"name": "device", **body},
                "listAttributes": environment.list_attributes,
                "new": environment.new,
            }
            stdin.write(json.dumps(query).encode() + b"\n")
            stdin.flush()
            return _answer(json.loads(stdout.readline()))

        yield ask
        stdin.close()
        assert process.wait(timeout=60) == 0


def _answer(body: dict[str, Any]) -> Answer:
    outcome = Outcome.ERROR
    if "match" in body:
        outcome = Outcome.MATCH if body["match"] else Outcome.NO_MATCH
    text = body.get("compileError") or body.get("evalError") or ""
    # A check that panics ends before the cost is told: the server refuses such an expression, though not in so many words.
    is_refused = "compileError" in body or (text.startswith("panic:") and not body["maxCost"])
    return Answer(outcome, is_refused, body["maxCost"], text)


def compared(judge: Judge, expression: str, environment: Environment, device: dict[str, Any]) -> bool:
    """Return whether we gave the verdict; a wrong one fails the test."""
    expected = judge(expression, environment, device)
    subject = Device(
        device["driver"],
        device["attributes"],
        device["capacity"],
        device.get("allowMultipleAllocations", False),
    )
    verdict = engine.evaluate(expression, [subject], environment)[0]
    if verdict.outcome is Outcome.CANNOT_TELL:
        return False
    context = (expression, environment, verdict, expected)
    assert verdict.outcome is expected.outcome, context
    assert verdict.reason.startswith("compilation failed") == expected.refused, context
    if not expected.refused:
        assert engine.judge(expression, environment).estimated_cost == expected.cost, context
    return True


ENVIRONMENTS = {
    "stored": Environment(),
    "new": Environment(new=True),
    "new with lists": Environment(new=True, list_attributes=True),
}


@pytest.mark.parametrize("environment", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
@given(data=st.data())
@settings(max_examples=300)
def test_random_expressions(judge: Judge, environment: Environment, data: st.DataObject) -> None:
    compared(judge, data.draw(expressions(environment)), environment, samples.DEVICE)


@given(data=st.data())
@settings(max_examples=150)
def test_list_attributes(judge: Judge, data: st.DataObject) -> None:
    environment = ENVIRONMENTS["stored"]
    compared(judge, data.draw(expressions(environment)), environment, samples.LIST_DEVICE)


def test_hardly_anything_is_left_open(judge: Judge) -> None:
    """Of expressions that call everything there is, on everything they could be called on."""
    chance = Random(7)
    environment = ENVIRONMENTS["stored"]
    told = [
        compared(
            judge,
            samples.Generator(chance.choice, environment, wrong=10_000).expression(2),
            environment,
            samples.DEVICE,
        )
        for _ in range(500)
    ]
    assert told.count(False) <= 5


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        pytest.param(TRUE, Outcome.MATCH, id="true"),
        pytest.param(FAILING, Outcome.ERROR, id="failing"),
        pytest.param(REFUSED, None, id="refused"),
        pytest.param(corners.TRUE, Outcome.MATCH, id="true in a corner"),
        pytest.param(corners.FAILING, Outcome.ERROR, id="failing in a corner"),
        pytest.param(corners.REFUSED, None, id="refused in a corner"),
    ],
)
def test_the_tables_of_the_unit_tests_are_true(
    judge: Judge, table: dict[str, str], expected: Outcome | None
) -> None:
    """They say what functions do; here the scheduler says the same."""
    for _, expression in rows(table):
        answer = judge(expression, Environment(new=expected is None), samples.DEVICE)
        assert answer.refused is (expected is None), (expression, answer)
        assert expected is None or answer.outcome is expected, (expression, answer)


@pytest.mark.parametrize(
    ("opening", "core", "closing"),
    [
        pytest.param("(", "true", ")", id="brackets"),
        pytest.param("true == (", "true", ")", id="comparisons to the right"),
        pytest.param("(", "true", " == true)", id="comparisons to the left"),
        pytest.param("[1].all(x, ", "true", ")", id="folds"),
        pytest.param("(true ? ", "true", " : false)", id="choices"),
        pytest.param("0 < 1 + size([", "true", "])", id="operators in calls"),
        pytest.param("true == (2 * (1 - ", "1", ") < 9)", id="two kinds of operators"),
    ],
)
@pytest.mark.parametrize(
    "levels", [31, 33, 80, 82, 84, 100, 122, 124, 125, 126, 128, 140, 244, 249, 250, 251, 256]
)
def test_nesting(judge: Judge, opening: str, core: str, closing: str, levels: int) -> None:
    """Near the limit, or where brackets may or may not count, nothing may be said; of less something must be."""
    told = compared(judge, opening * levels + core + closing * levels, ENVIRONMENTS["new"], samples.DEVICE)
    assert told or levels > 80


FOLDS = "device.attributes.all({0}, " * 7 + "true" + ")" * 7


@pytest.mark.parametrize(
    ("domains", "expected"),
    [
        pytest.param(2, Outcome.MATCH, id="cheap on a small device"),
        pytest.param(12, Outcome.ERROR, id="too expensive on a large one"),
    ],
)
def test_the_run_time_limit(judge: Judge, domains: int, expected: Outcome) -> None:
    """An expression that is refused when it is new may still be stored, and then the device decides."""
    device = {
        "driver": samples.DRIVER,
        "attributes": {f"d{n}.example.com/a": {"int": n} for n in range(domains)},
        "capacity": {},
    }
    expression = FOLDS.format("x")
    assert judge(expression, Environment(), device).outcome is expected
    assert compared(judge, expression, Environment(), device)
