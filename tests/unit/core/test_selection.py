"""Previews: equal devices are evaluated once, nothing that differs is taken for equal, and clauses are blamed rightly."""

from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpupolicy.adapters.cel import engine
from gpupolicy.core import selection
from gpupolicy.core.selection import Device, Outcome, Read, Reads, Verdict

DRIVER = "gpu.example.com"
ATTRIBUTES = f'device.attributes["{DRIVER}"]'


def card(node: int, number: int, **attributes: Any) -> Device:
    facts: dict[str, Any] = {
        "type": {"string": "gpu"},
        "uuid": {"string": f"GPU-{node}-{number}"},
        "productName": {"string": "H100" if node % 2 else "A100"},
        "driverVersion": {"version": "580.1.2"},
    } | attributes
    kept = {name: value for name, value in facts.items() if value is not None}
    return Device(DRIVER, kept, {"memory": {"value": "80Gi"}}, name=f"gpu-{number}", node=f"node-{node}")


CARDS = [card(node, number) for node in range(10) for number in range(8)]
ENGINE = engine.Engine()


class Counting:
    """An evaluator that counts."""

    def __init__(self) -> None:
        self.evaluated = 0

    def problem(self, expression: str) -> str:
        return ENGINE.problem(expression)

    def evaluate(self, expression: str, devices: Iterable[Device]) -> list[Verdict]:
        devices = list(devices)
        self.evaluated += len(devices)
        return ENGINE.evaluate(expression, devices)

    def reads(self, expression: str) -> Reads:
        return ENGINE.reads(expression)

    def clauses(self, expression: str) -> tuple[str, ...]:
        return ENGINE.clauses(expression)


def test_equal_devices_are_evaluated_once() -> None:
    evaluator = Counting()
    expression = f'device.driver == "{DRIVER}" && {ATTRIBUTES}.productName == "H100"'
    found = selection.preview(expression, CARDS, evaluator)
    assert (found.count(Outcome.MATCH), found.shapes) == (40, 2)
    assert found.nodes == {f"node-{n}": 8 for n in (1, 3, 5, 7, 9)}
    # Two shapes, and two clauses of the one that does not match.
    assert evaluator.evaluated == 4


def test_a_clause_is_blamed_only_for_what_reaches_it() -> None:
    others = [Device("other.example.com", name=f"x{n}") for n in range(5)]
    expression = f'device.driver == "{DRIVER}" && {ATTRIBUTES}.productName == "H100" && {ATTRIBUTES}.uuid.endsWith("-0")'
    found = selection.preview(expression, [*CARDS, *others], ENGINE)
    assert [(drop.clause.split(" ")[0], drop.devices) for drop in found.drops] == [
        ("device.driver", 5),
        (f"{ATTRIBUTES}.productName", 40),
        (f'{ATTRIBUTES}.uuid.endsWith("-0")', 35),
    ]
    assert found.message.startswith("5 of 85 devices match, on 5 nodes; `device.driver == ")


def test_a_later_clause_makes_up_for_one_that_fails() -> None:
    """As for the scheduler, `error && false` is false: the clause that is false is to blame."""
    found = selection.preview(f"{ATTRIBUTES}.missing == 1 && device.driver == 'x'", CARDS[:1], ENGINE)
    assert found.verdicts[0].outcome is Outcome.NO_MATCH
    assert [drop.clause for drop in found.drops] == ["device.driver == 'x'"]


def test_errors_and_open_verdicts_are_counted_with_their_reason() -> None:
    devices = [*CARDS[:2], card(1, 9, type=None)]
    found = selection.preview(f'{ATTRIBUTES}.type == "gpu"', devices, ENGINE)
    assert (found.count(Outcome.MATCH), found.count(Outcome.ERROR)) == (2, 1)
    assert found.reasons == {"no such key: type": 1}
    assert "it fails on 1 device: no such key: type" in found.message


def test_no_devices() -> None:
    found = selection.preview("true", [], ENGINE)
    assert found.message == "0 of 0 devices match"
    assert found.shapes == 0


UNUSUAL = [
    card(1, 0, type={}),
    card(1, 0, type={"string": 7}),
    card(1, 0, type={"string": "gpu", "int": 1}),
    card(1, 0, type={"future": "gpu"}),
    card(1, 0, type={"strings": ["gpu"]}),
    card(1, 0, type="gpu"),
    card(1, 0, driverVersion={"version": "580.01.2"}),
    Device(DRIVER, {"type": {"string": "gpu"}}, {"memory": {"value": "80GB"}}),
    Device(DRIVER, {"type": {"string": "gpu"}}, {"memory": {"value": []}}),
    Device(DRIVER, {"type": {"string": "gpu"}}, {"memory": 8}),
]


def test_an_unreadable_device_is_never_taken_for_a_usual_one() -> None:
    """It fails every expression, also one that does not read what is wrong with it."""
    expression = f'{ATTRIBUTES}.type == "gpu" || true'
    devices = [card(1, 0), *UNUSUAL]
    found = selection.preview(expression, devices, ENGINE)
    assert list(found.verdicts) == ENGINE.evaluate(expression, devices)
    assert found.verdicts[0].outcome is Outcome.MATCH
    assert found.count(Outcome.ERROR) >= 8


values = st.one_of(
    st.builds(lambda v: {"string": v}, st.sampled_from(["gpu", "mig", ""])),
    st.builds(lambda v: {"int": v}, st.integers(0, 1)),
    st.builds(lambda v: {"bool": v}, st.booleans()),
    st.builds(lambda v: {"version": v}, st.sampled_from(["1.0.0", "2.0.0", "bad"])),
    st.just({}),
)
keys = st.sampled_from(["a", "b", f"{DRIVER}/c", "other.example.com/a", "other.example.com/b"])
devices = st.builds(
    Device,
    driver=st.sampled_from([DRIVER, "other.example.com"]),
    attributes=st.dictionaries(keys, values, max_size=3),
    capacity=st.dictionaries(keys, st.sampled_from([{"value": "1"}, {"value": "2Gi"}, {}]), max_size=2),
    allow_multiple_allocations=st.booleans(),
)
PREVIEWED = [
    f'{ATTRIBUTES}.a == "gpu"',
    f'"a" in {ATTRIBUTES} && {ATTRIBUTES}.a == 1',
    f'has({ATTRIBUTES}.c) || device.attributes["other.example.com"].?b.orValue(false)',
    f"cel.bind(x, {ATTRIBUTES}, x.a == x.b)",
    f'{ATTRIBUTES}.exists(k, k == "a")',
    "device.attributes.exists(d, d.startsWith('other'))",
    f'"{DRIVER}" in device.attributes',
    "device.allowMultipleAllocations",
    f'device.capacity["{DRIVER}"].?a.orValue(quantity("0")).isGreaterThan(quantity("1"))',
    f"{ATTRIBUTES}[device.driver == '{DRIVER}' ? 'a' : 'b'] == 1",
    "device == device && size(device.capacity) == 1",
]


@given(st.lists(devices, max_size=12), st.sampled_from(PREVIEWED))
def test_a_preview_says_what_evaluating_each_device_says(found: list[Device], expression: str) -> None:
    assert list(selection.preview(expression, found, ENGINE).verdicts) == ENGINE.evaluate(expression, found)


def test_explain_gives_every_clause_its_own_verdict() -> None:
    expression = f'device.driver == "{DRIVER}" && ({ATTRIBUTES}.type == "mig" && {ATTRIBUTES}.missing == 1)'
    assert [(clause, v.outcome) for clause, v in selection.explain(expression, card(1, 0), ENGINE)] == [
        (f'device.driver == "{DRIVER}"', Outcome.MATCH),
        (f'{ATTRIBUTES}.type == "mig"', Outcome.NO_MATCH),
        (f"{ATTRIBUTES}.missing == 1", Outcome.ERROR),
    ]


def test_group_numbers_shapes_in_their_order() -> None:
    reads = Reads((Read("attributes", DRIVER, "productName"),))
    firsts, members = selection.group([CARDS[8], CARDS[0], CARDS[9], CARDS[1]], reads)
    assert (firsts, members) == ([0, 1], [0, 1, 0, 1])
