"""What single functions do, refuse and fail at."""

import pytest

from gpupolicy.adapters.cel import engine
from gpupolicy.core.selection import Answer, Device, Outcome
from tests.unit.cel import corners
from tests.unit.cel.expressions import DEVICE
from tests.unit.cel.tables import FAILING, REFUSED, TRUE, rows

SUBJECT = Device(
    DEVICE["driver"], DEVICE["attributes"], DEVICE["capacity"], DEVICE["allowMultipleAllocations"], name="gpu"
)


@pytest.mark.parametrize(("group", "expression"), rows(TRUE) + rows(corners.TRUE))
def test_true(group: str, expression: str) -> None:
    del group
    verdict = engine.evaluate(expression, [SUBJECT])[0]
    assert verdict.outcome is Outcome.MATCH, verdict.reason


@pytest.mark.parametrize(("group", "expression"), rows(FAILING) + rows(corners.FAILING))
def test_failing(group: str, expression: str) -> None:
    """It compiles, and fails on this device with words about why."""
    del group
    verdict = engine.evaluate(expression, [SUBJECT])[0]
    assert verdict.outcome is Outcome.ERROR
    assert verdict.reason
    assert not verdict.reason.startswith(("compilation failed", "program instantiation"))


@pytest.mark.parametrize(("group", "expression"), rows(REFUSED) + rows(corners.REFUSED))
def test_refused(group: str, expression: str) -> None:
    del group
    admission = engine.judge(expression)
    assert admission.answer is Answer.REJECTED
    assert admission.reason
    assert admission.line == 1
