"""Our judgement of new expressions before a real API server, which is asked with dry runs of DeviceClasses."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupolicy.adapters.cel import engine
from gpupolicy.adapters.cel.declarations import Environment
from gpupolicy.api.policy import GpuSelector
from gpupolicy.core import selectors
from gpupolicy.core.selection import Answer
from tests.cluster.cluster import Cluster
from tests.cluster.control_plane import ControlPlaneOptions
from tests.cluster.rest import RestClient
from tests.unit.cel import vectors
from tests.unit.cel.strategies import damaged_expressions, expressions

pytestmark = pytest.mark.cluster

PATH = "/apis/resource.k8s.io/v1/deviceclasses"
Ask = Callable[[str], str]
_GRAMMAR = re.compile(r"<input>:(\d+):(\d+): Syntax error")


def refusal(admin: RestClient, expression: str) -> str:
    """Return the API server's words about an expression, "" when it takes it."""
    body: dict[str, Any] = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "candidate"},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }
    answer = admin.call("POST", PATH, body, query={"dryRun": "All"})
    if answer.status == 201:
        return ""
    assert answer.status == 422, answer
    return str(answer.body["details"]["causes"][0]["message"])


@pytest.fixture
def ask(cluster: Cluster) -> Ask:
    return lambda expression: refusal(cluster.control_plane.admin, expression)


def agrees(expression: str, words: str, environment: Environment) -> bool:
    """Return whether we say what the API server says; False where we do not know."""
    admission = engine.judge(expression, environment)
    if admission.answer is Answer.CANNOT_TELL:
        return False
    expected = Answer.REJECTED if words else Answer.ACCEPTED
    assert admission.answer is expected, (expression, admission, words)
    return True


@pytest.mark.parametrize(
    "vector",
    [
        pytest.param(v, id=v.name)
        for v in vectors.read()
        if v.environment.new and not v.environment.list_attributes
    ],
)
def test_golden_vectors_are_judged_alike_by_the_next_release(ask: Ask, vector: vectors.Vector) -> None:
    """They were made with the release before; what a server accepts from one of them, it accepts from both."""
    assert agrees(vector.expression, ask(vector.expression), engine.NEW)


@given(data=st.data())
@settings(max_examples=150)
def test_random_expressions(cluster: Cluster, data: st.DataObject) -> None:
    expression = data.draw(expressions(engine.NEW))
    agrees(expression, refusal(cluster.control_plane.admin, expression), engine.NEW)


@given(data=st.data())
@settings(max_examples=150)
def test_damaged_expressions(cluster: Cluster, data: st.DataObject) -> None:
    """What one parser takes the other takes, with the first fault of grammar at the same place."""
    expression = data.draw(damaged_expressions(engine.NEW))
    words = refusal(cluster.control_plane.admin, expression)
    if agrees(expression, words, engine.NEW) and "Syntax error" in words:
        # A macro's argument is no fault of grammar: for `has(a{b)` one parser points at the name, the other at the brace.
        admission = engine.judge(expression)
        found = _GRAMMAR.search(admission.reason)
        line, column = found.groups() if found else (admission.line, admission.column)
        assert f"<input>:{line}:{column}: Syntax error" in words, admission


EDGES = {
    "longest": "true" + " " * (10 * 1024 - 4),
    "too long": "true" + " " * (10 * 1024 - 3),
    "too long in bytes": "'" + "é" * 5120 + "' != ''",
    "three nested folds": "device.attributes.all(a, " * 3 + "true" + ")" * 3,
    "five nested folds": "device.attributes.all(a, " * 5 + "true" + ")" * 5,
    "type compared": "type(device.attributes['a'].b) == string",
    "type looked up": "type(device.attributes['a'].b) in [string]",
    "joined literals": "['a'.trim()].join('-') == 'a'",
    "number out of range": "int('0x10') == 16",
    "constant duration": "duration('1x') > duration('1s')",
    "includes without its gate": "device.attributes['a'].b.includes('c')",
    "look-ahead": "device.driver.matches('^(?!a)')",
    "exploding": "device.driver.matches('^(a+)+$')",
    "repeated too often": "device.driver.matches('a{1001}')",
    "global matches": "matches(device.driver, '(')",
    "global matches of a bad text": "matches('(', 'a')",
    "format": "'%s %d'.format(['a', 1]) == ''",
    "format of too much": "'%s'.format(['a', 1]) == ''",
    "format of another type": "'%d'.format(['a']) == ''",
    "device as a value": "cel.bind(d, device, d.driver == 'a')",
    "type variable": "cel.bind(t, type(1), t == int)",
    "mixed list": "1 in [1, device.attributes['a'].b]",
    "null": "device.attributes['a'].b != null",
    "optional list": "[?device.attributes['a'].?b].size() == 0",
    "message": "google.protobuf.Int64Value{value: 1} == 1",
    "authorizer": "authorizer.path('/').check('get').allowed()",
    "two variables": "device.attributes['a'].all(k, v, k != '' && v != 1)",
    "transformMap": "device.attributes['a'].transformMap(k, v, v == 1)['b']",
    "sortBy": "[3, 1].sortBy(x, -x) == [3, 1]",
    "math": "math.greatest(1, 2) == 2",
    "reversed string": "'ab'.reverse() == 'ba'",
    "quoted name": "device.`driver` == 'a'",
}


@pytest.mark.parametrize("name", EDGES)
def test_edges(ask: Ask, name: str) -> None:
    told = agrees(EDGES[name], ask(EDGES[name]), engine.NEW)
    assert told or name == "message"


@pytest.mark.parametrize("target", [selectors.GPUPOLICY, selectors.NVIDIA], ids=lambda t: t.driver)
def test_compiled_selectors_are_accepted(ask: Ask, target: selectors.SelectorTarget) -> None:
    """Also the most expensive one that the fields can describe."""
    names = [f"{n}*?" + "x" * 60 for n in range(16)]
    largest = GpuSelector(
        products=names,
        architectures=[f"A{'b' * 30}"],
        min_memory="79Gi",
        min_compute_capability="9.0",
        cel="true // end",
    )
    for selector in (GpuSelector(), GpuSelector(products=['"\\\n*?('], min_memory="1Ki"), largest):
        assert ask(selectors.compile_selector(selector, target)) == ""


@pytest.fixture(scope="module")
def older() -> Iterator[Cluster]:
    with Cluster.start(options=ControlPlaneOptions(emulated_version="1.35")) as started:
        yield started


def test_an_older_release_takes_less(older: Cluster) -> None:
    """What a release compiles new expressions with is what the release before it knew."""
    environment = Environment(minor=35, new=True, consumable_capacity=False)
    for expression, is_taken in (
        ("device.driver == 'a'", True),
        ("[1, 2].distinct() == [1, 2]", True),
        ("device.allowMultipleAllocations", False),
        ("device.attributes['a'].b.includes('c')", False),
    ):
        words = refusal(older.control_plane.admin, expression)
        assert (words == "") is is_taken, (expression, words)
        assert agrees(expression, words, environment)
