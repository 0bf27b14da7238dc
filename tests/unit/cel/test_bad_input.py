"""Expressions and devices that nobody should write, and somebody will."""

import sys
from typing import Any

import pytest

from gpupolicy.adapters.cel import engine
from gpupolicy.core.selection import Answer, Device, Outcome

DRIVER = "d.com"
A = f'device.attributes["{DRIVER}"]'


def gpu(**attributes: Any) -> Device:
    return Device(DRIVER, attributes=attributes)


def outcome(expression: str, device: Device | None = None) -> Outcome:
    return engine.evaluate(expression, [device or gpu()])[0].outcome


@pytest.mark.parametrize(
    ("expression", "line", "column"),
    [
        ("", 1, 0),
        ("(", 1, 2),
        ("true &&\n\n  )", 3, 3),
        ("'open", 1, 1),
        ("device.driver = 'x'", 1, 15),
        ("undeclared", 1, 1),
        ("true && nope.x", 1, 9),
        ("device.nope", 1, 7),
        ("size(1, 2) == 1", 1, 5),
        ("device.driver == 1", 1, 15),
        ("'é' == '日本' && nope", 1, 16),
        ("'a'.matches('(')", 1, 13),
        ("\0", 1, 1),
        ("true // no end of the line", 0, 0),
    ],
)
def test_faults_have_a_place(expression: str, line: int, column: int) -> None:
    admission = engine.judge(expression)
    assert (admission.line, admission.column) == (line, column), admission.reason
    assert (admission.answer is Answer.ACCEPTED) == (line == 0)


@pytest.mark.parametrize(
    "expression", ["1", "'x'", "null", "[true]", "{}", "device", f"{A}", "bool", "1.5", "b'x'"]
)
def test_results_that_are_no_bool(expression: str) -> None:
    admission = engine.judge(expression)
    assert admission.answer is Answer.REJECTED
    assert "must evaluate to bool or the unknown type, not " in admission.reason
    assert outcome(expression) is Outcome.ERROR


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ({"bool": True}, Outcome.MATCH),
        ({"bool": False}, Outcome.NO_MATCH),
        ({"int": 1}, Outcome.ERROR),
        ({"string": "true"}, Outcome.ERROR),
        ({"version": "1.0.0"}, Outcome.ERROR),
    ],
)
def test_attributes_decide_what_the_result_is(attribute: dict[str, Any], expected: Outcome) -> None:
    """Whether an attribute is a bool is known on the device only."""
    assert outcome(f"{A}.x", gpu(x=attribute)) is expected


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ({"int": 3}, Outcome.MATCH),
        ({"int": 2}, Outcome.NO_MATCH),
        ({"string": "3"}, Outcome.ERROR),
        ({"bool": True}, Outcome.ERROR),
        ({"version": "3.0.0"}, Outcome.ERROR),
    ],
)
def test_one_device_with_another_type_spoils_nothing_for_the_others(
    attribute: dict[str, Any], expected: Outcome
) -> None:
    verdicts = engine.evaluate(f"{A}.x >= 3", [gpu(x={"int": 5}), gpu(x=attribute), gpu(x={"int": 1})])
    assert [verdict.outcome for verdict in verdicts] == [Outcome.MATCH, expected, Outcome.NO_MATCH]


@pytest.mark.parametrize(
    "attribute",
    [
        {"int": "3"},
        {"int": True},
        {"string": None},
        {"version": "not a version"},
        {"version": "1.0"},
        {"someday": 1},
        {},
        None,
        "text",
        3,
        ["x"],
    ],
    ids=repr,
)
def test_a_device_that_cannot_be_read_fails_by_itself(attribute: Any) -> None:
    verdicts = engine.evaluate("true", [gpu(x=attribute), gpu()])
    assert [verdict.outcome for verdict in verdicts] == [Outcome.ERROR, Outcome.MATCH]
    assert verdicts[0].reason.startswith("attribute x: ")


@pytest.mark.parametrize("amount", [{"value": "much"}, {"value": ""}, "1Gi", 1, [], {"value": [1]}], ids=repr)
def test_a_capacity_that_cannot_be_read(amount: Any) -> None:
    verdict = engine.evaluate("true", [Device(DRIVER, capacity={"memory": amount})])[0]
    assert verdict.outcome is Outcome.ERROR
    assert verdict.reason.startswith("capacity memory: ")


@pytest.mark.parametrize("amount", [{"value": None}, {}, None], ids=repr)
def test_a_capacity_that_is_left_out_is_nought(amount: Any) -> None:
    """As Go reads it, and with it the scheduler."""
    device = Device(DRIVER, capacity={"memory": amount})
    assert outcome(f'sign(device.capacity["{DRIVER}"].memory) == 0', device) is Outcome.MATCH


def test_length() -> None:
    limit = 10 * 1024
    fits = "true || '" + "x" * (limit - 10) + "'"
    assert len(fits) == limit
    assert outcome(fits) is Outcome.ERROR
    for padding in ("x" * limit, "é" * (limit // 2), "\U0001f600" * (limit // 4)):
        admission = engine.judge(f"'{padding}' != ''")
        assert admission.answer is Answer.REJECTED
        assert admission.reason.startswith(f"Too long: may not be more than {limit} bytes")
    assert engine.judge(f"'{'x' * (limit - 10)}' != ''").answer is Answer.ACCEPTED


@pytest.mark.parametrize(
    ("opening", "core", "closing"),
    [
        ("(", "true", ")"),
        ("[", "true", "]"),
        ("{1: ", "true", "}"),
        ("!", "true", ""),
        ("-", "1", ""),
        ("[1].all(x, ", "true", ")"),
        ("cel.bind(x, 1, ", "true", ")"),
        ("true ? true : ", "true", ""),
        ("true && (", "true", ")"),
        ("size(", "''", ")"),
        ("", "true", " && true"),
        ("", "1", " + 1"),
        ("", "device", ".x"),
        ("", "device", "[0]"),
        ("", "''", ".trim()"),
    ],
)
@pytest.mark.parametrize("levels", [10, 40, 200, 260, 1_000, 100_000])
def test_depth(opening: str, core: str, closing: str, levels: int) -> None:
    """No depth ends the process, and each has an answer; what the API server takes is not refused here."""
    before = sys.getrecursionlimit()
    expression = opening * levels + core + closing * levels
    admission = engine.judge(expression)
    verdict = engine.evaluate(expression, [gpu()])[0]
    if admission.answer is Answer.ACCEPTED:
        assert verdict.outcome is Outcome.MATCH
    if levels == 100_000:
        assert admission.answer is Answer.REJECTED
    assert sys.getrecursionlimit() == before


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+$", "^(a|aa)*$", "^(a|a?)+$", "^(([a-z])+.)+[A-Z]([a-z])+$", "(x+x+)+y", "((a{1,100}){1,9})$"],
)
def test_no_pattern_explodes(pattern: str) -> None:
    """A backtracking engine would not return from these before the test is stopped."""
    text = "a" * 5_000 + "!"
    assert outcome(f"'{text}'.matches('{pattern}')") is Outcome.NO_MATCH
    assert outcome(f"!{A}.t.matches('{pattern}')", gpu(t={"string": text})) is Outcome.MATCH


@pytest.mark.parametrize(
    "expression",
    [
        "lists.range(1000000).exists(x, lists.range(1000000).exists(y, x + y < 0))",
        "lists.range(1000000).distinct().size() > 0",
        "sets.contains(lists.range(1000000), lists.range(999999).map(x, x + 1))",
        "lists.range(1000000).map(x, lists.range(1000000)).flatten().size() > 0",
        (
            "[1,2,3,4,5,6,7,8,9].all(a, [1,2,3,4,5,6,7,8,9].all(b, [1,2,3,4,5,6,7,8,9].all(c, "
            "[1,2,3,4,5,6,7,8,9].all(d, [1,2,3,4,5,6,7,8,9].all(e, [1,2,3,4,5,6,7,8,9].all(f, true))))))"
        ),
    ],
)
def test_work_without_end_is_given_up(expression: str) -> None:
    """The scheduler stops at a cost; nothing here eats the machine before that."""
    assert outcome(expression) in (Outcome.ERROR, Outcome.CANNOT_TELL)
    assert engine.judge(expression).answer is Answer.REJECTED


def doubled(step: str, start: str, last: str, times: int = 100) -> str:
    """Return `last`, about a value that was doubled so many times."""
    binds = "".join(f"cel.bind(v{i + 1}, {step.replace('v', f'v{i}')}, " for i in range(times))
    return f"cel.bind(v0, {start}, {binds}{last.replace('v', f'v{times}')}{')' * (times + 1)}"


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        pytest.param(doubled("v + v", "[1]", "size(v) > 0"), Outcome.CANNOT_TELL, id="lists"),
        pytest.param(doubled("v + v", "'a'", "size(v) > 0"), Outcome.CANNOT_TELL, id="strings"),
        pytest.param(doubled("[v, v]", "[1]", "v == v"), Outcome.MATCH, id="lists of lists"),
        pytest.param(doubled("{1: v, 2: v}", "{1: 2}", "v != v"), Outcome.NO_MATCH, id="maps of maps"),
        pytest.param(
            doubled("[v, v]", "[1]", "[[v]].flatten(300) == []"), Outcome.CANNOT_TELL, id="flattened"
        ),
        pytest.param(doubled("[v, v]", "[1]", "'%s'.format([v]) == ''"), Outcome.CANNOT_TELL, id="formatted"),
        pytest.param(doubled("[v, v]", "[1]", "[v].indexOf(v) == 0"), Outcome.CANNOT_TELL, id="counted"),
        pytest.param("'%.999999999f'.format([1.0]) == ''", Outcome.NO_MATCH, id="digits"),
        pytest.param(
            f"'{'x' * 999}'.replace('', '{'y' * 4000}').replace('', '{'z' * 4000}') == ''",
            Outcome.CANNOT_TELL,
            id="replaced",
        ),
    ],
)
def test_little_text_that_asks_for_much_memory(expression: str, expected: Outcome) -> None:
    """The API server takes some of these; what they come to is not found out here."""
    assert outcome(expression) is expected


def test_a_name_that_is_there_twice() -> None:
    """Go walks the map in random order: the last one stays."""
    twice = Device(
        DRIVER,
        attributes={"x": {"int": 1}, f"{DRIVER}/x": {"int": 2}, "y": {"int": 1}, f"{DRIVER}/y": {"int": 1}},
        capacity={"m": {"value": "1"}, f"{DRIVER}/m": {"value": "2"}},
    )
    assert outcome(f"{A}.x == 1", twice) is Outcome.CANNOT_TELL
    assert outcome(f'device.capacity["{DRIVER}"].m == quantity("1")', twice) is Outcome.CANNOT_TELL
    assert outcome(f"{A}.exists(k, k == 'x')", twice) is Outcome.CANNOT_TELL
    assert outcome(f"{A}.y == 1", twice) is Outcome.MATCH


def test_surrogates_and_odd_characters() -> None:
    for text in ("\ud800", "\u2028", "\ufeff", "\x7f", "\U0010ffff"):
        assert engine.judge(f"'{text}' == 'x'").answer in Answer
        assert engine.judge(text).answer is not Answer.ACCEPTED
        assert outcome(f"{A}.x == 'x'", gpu(x={"string": text})) in (Outcome.NO_MATCH, Outcome.CANNOT_TELL)
