"""Our engine before the verdicts of a real one."""

import pytest

from gpupolicy.core.selection import Answer, Outcome
from tests.unit.cel import vectors

VECTORS = [
    pytest.param(
        vector,
        id=f"{vector.name}-{'new' if vector.environment.new else 'stored'}"
        f"{'-lists' if vector.environment.list_attributes else ''}",
    )
    for vector in vectors.read()
]


@pytest.mark.parametrize("vector", VECTORS)
def test_evaluation(vector: vectors.Vector) -> None:
    """Match, no match and error are never confused, and an expression that does not compile says so."""
    verdict = vector.evaluated()
    assert verdict.outcome is vector.outcome, verdict.reason
    assert verdict.reason.startswith("compilation failed") == vector.is_refused


@pytest.mark.parametrize("vector", VECTORS)
def test_judgement_and_cost(vector: vectors.Vector) -> None:
    """What the API server refuses is refused, and the estimated cost is the API server's to the unit."""
    admission = vector.judged()
    assert admission.answer is vector.answer, admission.reason
    assert admission.estimated_cost == vector.cost


def test_a_refusal_reads_like_the_api_servers() -> None:
    """The first line names the place and the fault; only the empty expression has no column."""
    for vector in vectors.read():
        if vector.is_refused and "ERROR: <input>" in vector.expected["compileError"]:
            expected = vector.expected["compileError"].removeprefix("compilation failed: ")
            assert vector.judged().reason.split("\n")[0] == expected.split("\n")[0]


def test_the_vectors_hold_every_kind_of_verdict() -> None:
    """A file that was cut short would pass the tests above."""
    found = list(vectors.read())
    assert len(found) == 300
    assert {vector.outcome for vector in found} == {Outcome.MATCH, Outcome.NO_MATCH, Outcome.ERROR}
    assert {vector.answer for vector in found} == {Answer.ACCEPTED, Answer.REJECTED}
