"""Both parsers: the same tree for everything, faults with their place, and celpy's limits kept from doing harm."""

from random import Random
from typing import Any

import pytest

from gpupolicy.adapters.cel import celpy, engine, google, macros, regex, scan
from gpupolicy.adapters.cel.declarations import Environment
from gpupolicy.adapters.cel.syntax import (
    Call,
    Comprehension,
    ExpressionError,
    Ident,
    ListLiteral,
    Literal,
    MapLiteral,
    Node,
    Select,
    UncertainError,
)
from gpupolicy.core.selection import Device, Outcome
from tests.unit.cel import vectors
from tests.unit.cel.expressions import Generator

DEVICE = Device("a.example.com")


def shape(node: Node) -> Any:
    """Return a tree without ids, with chains of `&&` and `||` flat."""
    parts: tuple[Any, ...]
    match node:
        case Literal(value=value):
            parts = (type(value).__name__, repr(value))
        case Ident(name=name):
            parts = (name.replace("__result__", "@result"),)
        case Select():
            parts = (shape(node.operand), node.field, node.test_only)
        case Call(function="_&&_" | "_||_"):
            parts = (node.function, *_terms(node, node.function))
        case Call():
            parts = (node.function, node.target and shape(node.target), *map(shape, node.args))
        case ListLiteral():
            parts = (sorted(node.optional), *map(shape, node.elements))
        case MapLiteral():
            parts = tuple((shape(e.key), shape(e.value), e.optional) for e in node.entries)
        case Comprehension():
            inner = (node.range, node.initial, node.condition, node.step, node.result)
            names = (node.variable, node.variable2, node.accumulator.replace("__result__", "@result"))
            parts = (names, *map(shape, inner))
        case _:
            raise AssertionError(node)
    return type(node).__name__, *parts


def _terms(node: Node, operator: str) -> list[Any]:
    if isinstance(node, Call) and node.function == operator:
        return [term for arg in node.args for term in _terms(arg, operator)]
    return [shape(node)]


@pytest.mark.parametrize("seed", range(12))
def test_both_parsers_give_one_tree(seed: int) -> None:
    """cel-expr-python expands most macros itself and celpy none, yet the trees are equal to the node."""
    chance = Random(seed)
    uncertain = 0
    for _ in range(40):
        expression = Generator(chance.choice, Environment()).expression(chance.choice([1, 2, 3]))
        expected = shape(macros.expand(*google.parse(expression))[0])
        try:
            found = shape(macros.expand(*celpy.parse(expression))[0])
        except UncertainError:
            uncertain += 1
            continue
        assert found == expected, expression
    assert uncertain <= 2


@pytest.fixture
def only_celpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A platform for which cel-expr-python has no wheel."""
    monkeypatch.setattr(google, "available", lambda: False)
    engine.forget()


@pytest.mark.usefixtures("only_celpy")
def test_celpy_alone_gives_every_golden_verdict() -> None:
    for vector in vectors.read():
        verdict = vector.evaluated()
        assert verdict.outcome is vector.outcome, (vector.expression, verdict.reason)


@pytest.mark.usefixtures("only_celpy")
def test_without_re2_regular_expressions_are_not_guessed_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regex, "_re2", None)
    regex.forget()
    told = [(vector, vector.evaluated()) for vector in vectors.read()]
    regex.forget()
    engine.forget()
    assert all(verdict.outcome in (vector.outcome, Outcome.CANNOT_TELL) for vector, verdict in told)
    uncertain = {vector.name for vector, verdict in told if verdict.outcome is Outcome.CANNOT_TELL}
    assert uncertain == {"matches", "matches-lookahead", "find"}


FAULTS = [
    pytest.param("1 +", 1, 4, "Syntax error", id="unfinished"),
    pytest.param("true &&\n  (false", 2, 9, "Syntax error", id="second line"),
    pytest.param("device.driver = 'a'", 1, 15, "token recognition error", id="single equals sign"),
    pytest.param("'abc", 1, 1, "token recognition error", id="open string"),
    pytest.param("device.nope == 1", 1, 7, "undefined field 'nope'", id="field"),
    pytest.param("true && devices.driver == ''", 1, 9, "undeclared reference to 'devices'", id="name"),
    pytest.param("true\n&& nope(1)", 2, 8, "undeclared reference to 'nope'", id="function"),
    pytest.param("1 == 'a'", 1, 3, "found no matching overload for '_==_'", id="types"),
    pytest.param("device.driver", 1, 1, "must evaluate to bool", id="result"),
    pytest.param("[1, 'a'] == []", 1, 5, "expected type 'int' but found 'string'", id="mixed list"),
    pytest.param("device.driver.matches('(')", 1, 23, "invalid matches argument", id="regular expression"),
    pytest.param("[1].exists(1, true)", 1, 12, "simple", id="macro variable"),
    pytest.param("[1].all(i, i, true)", 1, 12, "duplicate variable name: i", id="two equal macro variables"),
    pytest.param("", 1, 0, "mismatched input '<EOF>'", id="nothing"),
]


@pytest.mark.parametrize(("expression", "line", "column", "words"), FAULTS)
def test_a_fault_has_a_place(expression: str, line: int, column: int, words: str) -> None:
    admission = engine.judge(expression)
    assert words in admission.reason
    assert (admission.line, admission.column) == (line, column)
    assert engine.evaluate(expression, [DEVICE])[0].outcome is Outcome.ERROR


def test_quoted_names_came_with_one_release() -> None:
    expression = "device.`driver` == 'a.example.com' && true"
    assert engine.evaluate(expression, [DEVICE], Environment(minor=37))[0].outcome is Outcome.MATCH
    admission = engine.judge(expression, Environment(minor=36, new=True))
    assert (admission.line, admission.column) == (1, 8)
    assert "unsupported syntax: '`'" in admission.reason


def test_every_fault_is_told_at_once() -> None:
    """Like the API server, which lists all type errors."""
    reason = engine.judge("nope == 1 && device.nada == 2").reason
    assert "'nope'" in reason
    assert "'nada'" in reason
    assert " | nope == 1 && device.nada == 2\n | ^" in reason


@pytest.mark.parametrize(
    "expression",
    [
        r"'\q' == ''",
        r"b'\u0041' == b''",
        "1. == 1.0",
        "- 1 == -1",
        "!-device.x",
        "device.?f(1)",
        "f(1, ?2)",
        r"r'\' == r'' || r'\' == ''",
    ],
)
def test_what_celpy_could_misread_is_not_read(expression: str) -> None:
    with pytest.raises((UncertainError, ExpressionError)):
        celpy.parse(expression)


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        (r"'\a\b\f\n\r\t\v\\\'\"\?\`'", "\a\b\f\n\r\t\v\\'\"?`"),
        (r"'\x41\u00e9\U0001F600\101'", "Aé😀A"),
        (r"r'\n\d'", r"\n\d"),
        ("'''two\r\nlines'''", "two\nlines"),
        ('"""a "quoted" word"""', 'a "quoted" word'),
        (r"b'\xff\101é'", b"\xffA\xc3\xa9"),
        ("0x1F", 31),
        ("-9223372036854775808", -(2**63)),
        ("2.5e3", 2500.0),
    ],
)
def test_literals(literal: str, value: object) -> None:
    """Of both parsers alike."""
    for parse in (celpy.parse, google.parse):
        node, _ = parse(literal)
        assert isinstance(node, Literal)
        assert (type(node.value), node.value) == (type(value), value)


def test_a_raw_string_may_end_with_a_backslash() -> None:
    """cel-expr-python cannot read it, so celpy does, where no later quote leads it astray."""
    assert engine.evaluate(r"size(r'a\') == 2", [DEVICE])[0].outcome is Outcome.MATCH
    assert engine.evaluate(r"size(r'a\') == size('b')", [DEVICE])[0].outcome is Outcome.CANNOT_TELL


@pytest.mark.parametrize("literal", ["9223372036854775808", "18446744073709551616u", "if", "f(while)"])
def test_what_the_grammar_reads_and_the_language_refuses(literal: str) -> None:
    for parse in (celpy.parse, google.parse):
        with pytest.raises(ExpressionError):
            parse(literal)


NESTINGS = {
    "brackets": lambda n: "(" * n + "true" + ")" * n,
    "negations": lambda n: "!" * (2 * n) + "true",
    "lists": lambda n: "size(" + "[" * n + "]" * n + ") == 1",
    "terms": lambda n: "||".join(["true"] * n),
    "sums": lambda n: "+".join(["1"] * n) + " > 0",
    "choices": lambda n: "true ? true : " * n + "false",
    "indexes": lambda n: "device.attributes" + '["a"]' * n + " == 1 || true",
    "fields": lambda n: "device.attributes" + ".a" * n + " == 1 || true",
    "optional fields": lambda n: "!device.attributes" + ".?a" * n + ".hasValue()",
    "folds": lambda n: "[1].all(x, " * n + "true" + ")" * n,
}


@pytest.mark.parametrize("kind", NESTINGS)
@pytest.mark.parametrize("levels", [10, 31, 32, 33, 100, 220])
def test_nesting_is_followed_as_deep_as_the_api_server_does(kind: str, levels: int) -> None:
    """Past 32 levels cel-expr-python gives up and celpy takes over."""
    verdict = engine.evaluate(NESTINGS[kind](levels), [DEVICE])[0]
    assert verdict.outcome is Outcome.MATCH, verdict.reason


@pytest.mark.parametrize("kind", [kind for kind in NESTINGS if kind not in ("terms", "negations")])
@pytest.mark.parametrize("levels", [300, 2000])
def test_deeper_nesting_is_refused_as_the_api_server_does(kind: str, levels: int) -> None:
    """No recursion crash; the parsers themselves give up on the deepest ones."""
    verdict = engine.evaluate(NESTINGS[kind](levels), [DEVICE])[0]
    assert verdict.outcome in (Outcome.ERROR, Outcome.CANNOT_TELL)
    assert "recursion limit exceeded" in verdict.reason or "nested" in verdict.reason


@pytest.mark.parametrize(
    ("levels", "expected"), [(33, Outcome.MATCH), (110, Outcome.MATCH), (140, Outcome.ERROR)]
)
@pytest.mark.parametrize("expression", ["1 + (", "1 == 1 || true == ("])
def test_an_operator_in_brackets_beside_one_of_its_kind_is_two_levels_down(
    expression: str, levels: int, expected: Outcome
) -> None:
    core, end = ("true", "") if "true" in expression else ("1", " < 999")
    nested = expression * levels + core + ")" * levels + end
    assert engine.evaluate(nested, [DEVICE])[0].outcome is expected


@pytest.mark.parametrize("kind", NESTINGS)
@pytest.mark.parametrize("levels", [100, 2000])
def test_clauses_of_what_is_nested_deeply(kind: str, levels: int) -> None:
    """What is too deep to be split is one clause; it must not end the program that only wants to explain it."""
    expression = NESTINGS[kind](levels)
    assert engine.clauses(f"{expression} && true") in ((expression, "true"), (f"{expression} && true",))


def test_long_chains_are_not_deep() -> None:
    for operator, expected in (("&&", Outcome.NO_MATCH), ("||", Outcome.MATCH)):
        expression = operator.join(["true", "false"] * 1000)
        assert engine.evaluate(expression, [DEVICE])[0].outcome is expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a", ["a"]),
        ("a && b", ["a", "b"]),
        ("a && (b && c) && d", ["a", "b", "c", "d"]),
        ("((a && b))", ["a", "b"]),
        ("a && (b || c && d)", ["a", "b || c && d"]),
        ("a || b && c", ["a || b && c"]),
        ("a ? b : c && d", ["a ? b : c && d"]),
        ("(a) == b && c", ["(a) == b", "c"]),
        ("a &&\n  b // why && not", ["a", "b"]),
        ("'x && y' == a && b", ["'x && y' == a", "b"]),
        ("has(a.?b.c) && a[?'x && y'].orValue(true)", ["has(a.?b.c)", "a[?'x && y'].orValue(true)"]),
        (
            "a.exists(x, x && true) && [?b] == [] && {?'k': c} == {}",
            ["a.exists(x, x && true)", "[?b] == []", "{?'k': c} == {}"],
        ),
        ("true && f([])", ["true", "f([])"]),
        ("a &&", ["a &&"]),
    ],
)
def test_clauses(expression: str, expected: list[str]) -> None:
    """Terms of the outermost `&&`, in their own words, also inside brackets; unreadable text is one clause."""
    found = celpy.clauses(expression)
    assert [clause.text for clause in found] == expected
    assert all(expression[c.start :].startswith(c.text) for c in found)


def test_scan_sees_only_what_is_code() -> None:
    found = scan.scan("a.?b['(' ] + [?c, ?d] // ((\n ? {?'}': e} : \"\\\"[\"")
    assert len(found.optional_marks) == 4
    assert found.depth == 1
    assert len(found.strings) == 3
