"""Checks that the API server makes after types: literals of regular expressions, dates, formats and mixed lists."""

from collections.abc import Iterator

from gpupolicy.adapters.cel import regex, types
from gpupolicy.adapters.cel.checker import Checked
from gpupolicy.adapters.cel.formatting import format_clauses
from gpupolicy.adapters.cel.functions_standard import string_to_duration
from gpupolicy.adapters.cel.functions_time import string_to_timestamp
from gpupolicy.adapters.cel.syntax import (
    Call,
    Issue,
    ListLiteral,
    Literal,
    MapLiteral,
    Node,
    children,
)
from gpupolicy.adapters.cel.types import Kind, Type
from gpupolicy.adapters.cel.values import CelError

__all__ = ["validate"]


def validate(checked: Checked) -> None:
    """Check the literals of an expression.

    Raises:
        ExpressionError: with what the API server would find.
        UncertainError: when a regular expression cannot be judged here.
    """
    issues = list(_issues(checked))
    if issues:
        raise checked.source.error(issues)


def _issues(checked: Checked) -> Iterator[Issue]:
    # (node, is it somewhere inside the arguments of `format`)
    stack: list[tuple[Node, bool]] = [(checked.root, False)]
    while stack:
        node, exempt = stack.pop()
        if isinstance(node, Call):
            yield from _call_issues(checked, node)
        if not exempt and isinstance(node, ListLiteral | MapLiteral):
            yield from _mixed(checked, node)
        inside = exempt or (isinstance(node, Call) and node.function == "format")
        stack.extend((child, inside) for child in children(node))


def _call_issues(checked: Checked, node: Call) -> Iterator[Issue]:
    if node.function in _LITERALS and node.args:
        first = node.args[0]
        # With a receiver the first argument of `matches` is the pattern, without one it is the text: upstream
        # validates it either way.
        if isinstance(first, Literal) and not _LITERALS[node.function](first.value):
            yield checked.source.issue(first.id, f"invalid {node.function} argument")
    if (
        node.function == "format"
        and isinstance(node.target, Literal)
        and isinstance(node.target.value, str)
        and len(node.args) == 1
        and isinstance(node.args[0], ListLiteral)
    ):
        yield from _format_issues(checked, node, node.target.value, node.args[0])


def _is_duration(value: object) -> bool:
    try:
        return type(value) is not str or bool(string_to_duration(value))
    except CelError:
        return False


def _is_timestamp(value: object) -> bool:
    try:
        if type(value) is int:
            return -62135596800 <= value <= 253402300799
        return type(value) is not str or bool(string_to_timestamp(value))
    except CelError:
        return False


def _is_pattern(value: object) -> bool:
    return type(value) is not str or regex.valid(value)


_LITERALS = {"duration": _is_duration, "timestamp": _is_timestamp, "matches": _is_pattern}


def _mixed(checked: Checked, node: ListLiteral | MapLiteral) -> Iterator[Issue]:
    if isinstance(node, ListLiteral):
        columns = [[(e, i in node.optional) for i, e in enumerate(node.elements)]]
    else:
        columns = [[(e.key, False) for e in node.entries], [(e.value, e.optional) for e in node.entries]]
    for column in columns:
        for element, optional in column:
            if optional and not checked.types[element.id].params:
                # The server looks for the type inside of the optional one, and there is none: its worker ends.
                yield checked.source.issue(element.id, "an optional element whose type is not known")
                return
        kinds = [(element, _unwrapped(checked.types[element.id], optional)) for element, optional in column]
        for element, kind in kinds[1:]:
            if not _equivalent(kinds[0][1], kind):
                message = f"expected type '{kinds[0][1]}' but found '{kind}'"
                yield checked.source.issue(element.id, message)
                break


def _unwrapped(kind: Type, optional: bool) -> Type:
    return types.unwrap_optional(kind)[0] if optional else kind


def _equivalent(left: Type, right: Type) -> bool:
    if left.kind is not right.kind or len(left.params) != len(right.params):
        return False
    if left.kind is not Kind.PARAM and left.name != right.name:
        return False
    return all(_equivalent(a, b) for a, b in zip(left.params, right.params, strict=True))


_TEXTUAL = frozenset(
    {
        Kind.LIST,
        Kind.MAP,
        Kind.INT,
        Kind.UINT,
        Kind.DOUBLE,
        Kind.BOOL,
        Kind.STRING,
        Kind.TIMESTAMP,
        Kind.BYTES,
    }
    | {Kind.DURATION, Kind.TYPE, Kind.NULL}
)
_FORMATTED: dict[str, frozenset[Kind]] = {
    "d": frozenset({Kind.INT, Kind.UINT}),
    "f": frozenset({Kind.DOUBLE, Kind.STRING}),
    "e": frozenset({Kind.DOUBLE, Kind.STRING}),
    "b": frozenset({Kind.INT, Kind.UINT, Kind.BOOL}),
    "x": frozenset({Kind.INT, Kind.UINT, Kind.STRING, Kind.BYTES}),
    "X": frozenset({Kind.INT, Kind.UINT, Kind.STRING, Kind.BYTES}),
    "o": frozenset({Kind.INT, Kind.UINT}),
}


def _format_issues(checked: Checked, node: Call, text: str, args: ListLiteral) -> Iterator[Issue]:
    try:
        clauses = [part for part in format_clauses(text) if not isinstance(part, str)]
    except CelError as error:
        yield checked.source.issue(node.id, str(error))
        return
    if len(clauses) > len(args.elements):
        yield checked.source.issue(node.id, f"index {len(args.elements)} out of range")
        return
    for (letter, _), arg in zip(clauses, args.elements, strict=False):
        wrong = _unformattable(checked, letter, arg)
        if wrong is not None:
            kind = checked.types[wrong.id]
            yield checked.source.issue(
                wrong.id, f"error during formatting: clause %{letter} was given {kind}"
            )
            return
    if len(args.elements) > len(clauses):
        given = len(args.elements)
        message = f"too many arguments supplied to string.format (expected {len(clauses)}, got {given})"
        yield checked.source.issue(node.id, message)


def _unformattable(checked: Checked, letter: str, arg: Node) -> Node | None:
    """Return the node that the clause cannot print: the argument, or with %s something inside of it."""
    kind = checked.types[arg.id].kind
    if letter != "s":
        return None if kind is Kind.DYN or kind in _FORMATTED[letter] else arg
    stack = [arg]
    while stack:
        node = stack.pop()
        kind = checked.types[node.id].kind
        if kind is not Kind.DYN and kind not in _TEXTUAL:
            return node
        if isinstance(node, ListLiteral | MapLiteral):
            stack.extend(children(node))
    return None
