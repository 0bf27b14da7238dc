"""The selector compiler: what it writes is accepted, selects what the fields say, never raises, and keeps data data."""

import fnmatch
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupolicy.adapters.cel import engine
from gpupolicy.api.policy import GpuSelector
from gpupolicy.core import selectors
from gpupolicy.core.selection import Answer, Device, Outcome

H100 = "NVIDIA H100 80GB HBM3"
TARGETS = pytest.mark.parametrize(
    "target", [selectors.GPUPOLICY, selectors.NVIDIA], ids=lambda target: target.driver
)


def card(target: selectors.SelectorTarget, **changes: Any) -> Device:
    """Return a whole H100; a change of None removes the fact."""
    facts: dict[str, Any] = {
        "type": {"string": "gpu"},
        "productName": {"string": H100},
        "architecture": {"string": "Hopper"},
        "cudaComputeCapability": {"version": "9.0.0"},
        "memory": {"value": "81559Mi"},
    } | changes
    kept = {name: fact for name, fact in facts.items() if fact is not None}
    capacity = {name: kept.pop(name) for name in ("memory",) if name in kept}
    return Device(target.driver, kept, capacity)


def outcome(selector: GpuSelector, target: selectors.SelectorTarget, device: Device) -> Outcome:
    expression = selectors.compile_selector(selector, target)
    admission = engine.judge(expression)
    assert admission.answer is Answer.ACCEPTED, admission
    return engine.evaluate(expression, [device])[0].outcome


@TARGETS
@pytest.mark.parametrize(
    ("selector", "changes", "expected"),
    [
        pytest.param({}, {}, True, id="no field selects every card of the driver"),
        pytest.param({"products": [H100]}, {}, True, id="product"),
        pytest.param({"products": ["NVIDIA A100"]}, {}, False, id="other product"),
        pytest.param({"products": ["NVIDIA A100", H100]}, {}, True, id="one product of two"),
        pytest.param({"products": ["NVIDIA H100*"]}, {}, True, id="wildcard"),
        pytest.param({"products": ["NVIDIA H?00*"]}, {}, True, id="question mark"),
        pytest.param({"products": ["H100"]}, {}, False, id="no wildcard means the whole name"),
        pytest.param({"products": ["H100*"]}, {}, False, id="wildcards are anchored at the start"),
        pytest.param({"products": ["*H100"]}, {}, False, id="wildcards are anchored at the end"),
        pytest.param({"products": ["*"]}, {}, True, id="star"),
        pytest.param({"products": ["NVIDIA A100", "*HBM3"]}, {}, True, id="exact or wildcard"),
        pytest.param({"products": ["NVIDIA.H100*"]}, {}, False, id="a dot is a dot"),
        pytest.param({"products": ["nvidia h100*"]}, {}, False, id="case matters"),
        pytest.param({"products": ["*"]}, {"productName": None}, False, id="no product name"),
        pytest.param({"architectures": ["Hopper", "Blackwell"]}, {}, True, id="architecture"),
        pytest.param({"architectures": ["Ampere"]}, {}, False, id="other architecture"),
        pytest.param({"architectures": ["Hopper"]}, {"architecture": None}, False, id="no architecture"),
        pytest.param({"minMemory": "79Gi"}, {}, True, id="memory"),
        pytest.param({"minMemory": "81559Mi"}, {}, True, id="memory, just enough"),
        pytest.param({"minMemory": "80Gi"}, {}, False, id="memory, a little less"),
        pytest.param({"minMemory": "79Gi"}, {"memory": None}, False, id="no memory"),
        pytest.param({"minComputeCapability": "9.0"}, {}, True, id="capability"),
        pytest.param({"minComputeCapability": "8.9"}, {}, True, id="lower capability"),
        pytest.param({"minComputeCapability": "9.1"}, {}, False, id="higher minor"),
        pytest.param({"minComputeCapability": "10.0"}, {}, False, id="higher major, not as text"),
        pytest.param(
            {"minComputeCapability": "9.0"}, {"cudaComputeCapability": None}, False, id="no capability"
        ),
        pytest.param({"cel": "true"}, {}, True, id="expression"),
        pytest.param({"cel": "false || true // no end"}, {}, True, id="expression with a comment"),
        pytest.param({"cel": "false", "products": ["*"]}, {}, False, id="expression and fields are ANDed"),
        pytest.param({"cel": "false || true", "products": ["A"]}, {}, False, id="an or stays inside"),
    ],
)
def test_fields_select_what_they_say(
    target: selectors.SelectorTarget, selector: dict[str, Any], changes: dict[str, Any], expected: bool
) -> None:
    wanted = Outcome.MATCH if expected else Outcome.NO_MATCH
    assert outcome(GpuSelector.model_validate(selector), target, card(target, **changes)) is wanted


@TARGETS
def test_another_drivers_device_is_no_match(target: selectors.SelectorTarget) -> None:
    """The driver comes first, so that nothing of another driver's devices is read."""
    everything = GpuSelector(
        products=["*"],
        architectures=["Hopper"],
        min_memory="1Gi",
        min_compute_capability="1.0",
        cel="device.attributes.a.b",
    )
    other = Device("other.example.com", {"productName": {"int": 1}})
    assert outcome(everything, target, other) is Outcome.NO_MATCH


WRONG = [
    {"int": 7},
    {"bool": True},
    {"string": "text"},
    {"version": "1.2.3"},
    {"strings": ["a"]},
    {"versions": ["9.0.0"]},
    None,
]


@TARGETS
@pytest.mark.parametrize("fact", ["productName", "architecture", "cudaComputeCapability"])
@pytest.mark.parametrize("value", WRONG, ids=str)
def test_a_fact_of_an_unexpected_type_is_no_match_and_no_error(
    target: selectors.SelectorTarget, fact: str, value: Any
) -> None:
    """One error anywhere would abort the scheduling of every pod that uses the class."""
    selector = GpuSelector(products=["N*", H100], architectures=["Hopper"], min_compute_capability="9.0")
    assert outcome(selector, target, card(target, **{fact: value})) is Outcome.NO_MATCH


names = st.text(min_size=1, max_size=64).filter(lambda text: "\x00" not in text)


@given(product=names, pattern=names)
@settings(deadline=None)
def test_hostile_names_stay_data(product: str, pattern: str) -> None:
    """Whatever stands in a name, the expression says what a plain comparison says, and the API server would take it."""
    target = selectors.GPUPOLICY
    pattern = pattern.replace("[", "(")
    found = outcome(GpuSelector(products=[pattern]), target, card(target, productName={"string": product}))
    matches = re.fullmatch(fnmatch.translate(pattern), product) is not None
    assert found is (Outcome.MATCH if matches else Outcome.NO_MATCH)


@given(text=st.text(max_size=80))
def test_a_quoted_string_is_that_string(text: str) -> None:
    quoted = selectors.quote(text)
    assert quoted.isascii()
    assert "\n" not in quoted
    assert (
        engine.evaluate(f"{quoted} == {quoted} && size({quoted}) == {len(text)}", [Device("x")])[0].outcome
        is Outcome.MATCH
    )


@pytest.mark.parametrize(
    "expression",
    [
        "true) || (true",
        "true)",
        "(true",
        "]",
        "{",
        "(]",
        '"unclosed',
        "r'\\') || (true",
        "  ",
        "true // )\n)",
    ],
)
def test_an_expression_cannot_close_our_bracket(expression: str) -> None:
    """Else `true) || (true` would select the devices of every driver."""
    found = selectors.problems(GpuSelector(cel=expression), selectors.GPUPOLICY)
    assert [problem.field for problem in found] == ["cel"]
    with pytest.raises(ValueError, match="cel: "):
        selectors.compile_selector(GpuSelector(cel=expression), selectors.GPUPOLICY)


@pytest.mark.parametrize(
    "expression",
    [
        "')' == '('",
        '"\\")" == ""',
        "r'\\d)' == ')'",
        "'''it's )''' == ''",
        '"""a "quoted" )""" == ""',
        "b')' == b''",
        "[1].exists(x, x == 1) // )",
        "true // (\n",
    ],
)
def test_brackets_in_strings_and_comments_do_not_count(expression: str) -> None:
    selector = GpuSelector(cel=expression)
    assert selectors.problems(selector, selectors.GPUPOLICY) == ()
    assert engine.judge(selectors.compile_selector(selector, selectors.GPUPOLICY)).answer is Answer.ACCEPTED


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        pytest.param({"min_memory": "80GB"}, "minMemory", '"80GB"', id="memory"),
        pytest.param({"min_memory": "-1Gi"}, "minMemory", "negative", id="negative"),
        pytest.param({"min_memory": "1e9999"}, "minMemory", "1e9999", id="absurd"),
        pytest.param({"min_compute_capability": "nine"}, "minComputeCapability", '"nine"', id="capability"),
        pytest.param({"products": ["a", ""]}, "products[1]", "empty", id="empty name"),
        pytest.param({"products": ["\ud800"]}, "products[0]", "surrogate", id="surrogate"),
        pytest.param({"cel": "'\ud800' == ''"}, "cel", "surrogate", id="surrogate in an expression"),
        pytest.param({"cel": "true" + " " * 10240}, "cel", "10240", id="too long with the rest"),
        pytest.param(
            {"products": [f"{n}" * 700 for n in range(16)]}, "products", "10240", id="too many names"
        ),
    ],
)
def test_what_cannot_be_compiled_is_said_by_field(fields: dict[str, Any], field: str, words: str) -> None:
    selector = GpuSelector.model_construct(**({"products": [], "architectures": []} | fields))
    (problem,) = selectors.problems(selector, selectors.GPUPOLICY)
    assert problem.field == field
    assert words in problem.message


def test_the_expression_reads_as_a_person_would_write_it() -> None:
    selector = GpuSelector(products=["NVIDIA H100*"], min_memory="79Gi")
    domain = '["gpu.gpupolicy.dev"]'
    assert selectors.compile_selector(selector, selectors.GPUPOLICY).split(" && ") == [
        'device.driver == "gpu.gpupolicy.dev"',
        f'"productName" in device.attributes{domain}',
        f"type(device.attributes{domain}.productName) in [string]",
        f'device.attributes{domain}.productName.matches("^(?s:NVIDIA H100.*)$")',
        f'"memory" in device.capacity{domain}',
        f'device.capacity{domain}.memory.compareTo(quantity("79Gi")) >= 0',
    ]
