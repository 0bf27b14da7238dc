"""cel-expr-python behind a small face: parse an expression into our tree.

The library hands out a parsed expression only as a serialized `cel.expr.ParsedExpr`. It ships no Python classes for
it, and protobuf's own reader refuses messages as deep as expressions get, so the few fields we need are read from
the wire format here. Field numbers are those of google/cel-spec, `syntax.proto`.

Columns: the library counts as upstream does, from 1, except for an empty expression.
"""

import math
import re
import struct
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from gpupolicy.adapters.cel.syntax import (
    Call,
    Comprehension,
    ExpressionError,
    Ident,
    Issue,
    ListLiteral,
    Literal,
    MapEntry,
    MapLiteral,
    Node,
    Select,
    Source,
    StructLiteral,
    Uint,
)

try:
    from cel_expr_python import cel as _cel
except ImportError:  # No wheel for this platform: celpy parses alone.
    _cel = None

__all__ = ["UnreadableError", "available", "parse"]

_ENVIRONMENT = """
name: selectors
extensions:
- name: optional
- name: bindings
"""
_MESSAGE = re.compile(r"ERROR: <input>:(-?\d+):(\d+): (.*)")
_UNREADABLE = re.compile(r"recursion limit exceeded|max recursion depth|String must end with", re.IGNORECASE)
_TWICE_PRESENT = re.compile(r"\bhas\s*\([\s(]*has\s*\(")
_BAD_LINE = 2**31


class UnreadableError(Exception):
    """This library cannot read the expression though the API server might; another parser has to be asked.

    It gives up at 32 nested levels (the API server: 250), takes the closing quote of a raw string for escaped when a
    backslash stands before it, and does not take `has(has(a.b))`.
    """


def available() -> bool:
    """Return whether the library is installed."""
    return _cel is not None


def parse(text: str) -> tuple[Node, Source]:
    """Return the tree of an expression. One-variable macros, `cel.bind` and the optional macros are expanded.

    Raises:
        ExpressionError: on a syntax error, with line and column.
        UnreadableError: when another parser has to be asked.
    """
    try:
        serialized = _environment().compile(text, disable_check=True).serialize()
    except (RuntimeError, ValueError) as error:
        raise _refusal(text, str(error)) from error
    reader = _Reader(text)
    node, source = reader.parsed(serialized)
    if reader.infinite:
        raise source.error([source.issue(node_id, "invalid double literal") for node_id in reader.infinite])
    return node, source


@cache
def _environment() -> Any:
    if _cel is None:  # pragma: no cover - callers ask `available` first
        raise RuntimeError("cel-expr-python is not installed")
    return _cel.NewEnv(config=_cel.NewEnvConfigFromYaml(_ENVIRONMENT))


def _refusal(text: str, message: str) -> Exception:
    if _UNREADABLE.search(message) or ("has() argument must be" in message and _TWICE_PRESENT.search(text)):
        return UnreadableError(message)
    body = message.removeprefix("INVALID_ARGUMENT: ").removesuffix(" [INVALID_ARGUMENT]")
    issues = tuple(
        Issue(what, int(line), int(column))
        for line, column, what in _MESSAGE.findall(body)
        if 0 < int(line) < _BAD_LINE
    )
    if not text.strip():
        issues = tuple(Issue(issue.message, issue.line, 0) for issue in issues)
        body = body.replace("<input>:1:1:", "<input>:1:0:")
    return ExpressionError(issues or (Issue(body, 1, 1),), body)


class _Reader:
    """Reads one serialized expression."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.infinite: list[int] = []
        """Ids of double literals beyond the range of doubles, which the library takes for infinite."""

    def parsed(self, serialized: bytes) -> tuple[Node, Source]:
        # google.protobuf.Any { type_url = 1, value = 2 } around ParsedExpr { expr = 2, source_info = 3 }.
        message = _single(_single(serialized)[2])
        offsets = {}
        for number, value in _fields(message.get(3, b"")):
            if number == 4:
                entry = _single(value)
                offsets[entry.get(1, 0)] = _signed(entry.get(2, 0))
        source = Source(self._text, offsets)
        return self._expression(message[2]), source

    def _expression(self, data: bytes) -> Node:
        node_id = 0
        kind, body = 0, b""
        for number, value in _fields(data):
            if number == 2:
                node_id = value
            else:
                kind, body = number, value
        readers = {3: self._literal, 4: self._ident, 5: self._select, 6: self._call}
        readers |= {7: self._list, 8: self._struct, 9: self._comprehension}
        return readers[kind](node_id, body)

    def _literal(self, node_id: int, data: bytes) -> Node:
        number, value = next(iter(_fields(data)))
        readers: dict[int, Callable[[Any], object]] = {
            1: lambda _: None,
            2: bool,
            3: _signed,
            4: Uint,
            5: lambda raw: struct.unpack("<d", raw)[0],
            6: lambda raw: raw.decode(),
            7: bytes,
        }
        literal = readers[number](value)
        if isinstance(literal, float) and math.isinf(literal):
            self.infinite.append(node_id)
        return Literal(node_id, literal)

    def _ident(self, node_id: int, data: bytes) -> Node:
        return Ident(node_id, _single(data)[1].decode())

    def _select(self, node_id: int, data: bytes) -> Node:
        message = _single(data)
        field = message.get(2, b"").decode()
        return Select(node_id, self._expression(message[1]), field, bool(message.get(3, 0)))

    def _call(self, node_id: int, data: bytes) -> Node:
        target, function, args = None, "", []
        for number, value in _fields(data):
            if number == 1:
                target = self._expression(value)
            elif number == 2:
                function = value.decode()
            else:
                args.append(self._expression(value))
        return Call(node_id, function, target, tuple(args))

    def _list(self, node_id: int, data: bytes) -> Node:
        elements, optional = [], set()
        for number, value in _fields(data):
            if number == 1:
                elements.append(self._expression(value))
            else:
                optional |= {value} if isinstance(value, int) else set(_varints(value))
        return ListLiteral(node_id, tuple(elements), frozenset(optional))

    def _struct(self, node_id: int, data: bytes) -> Node:
        name = ""
        entries: list[dict[int, Any]] = []
        for number, value in _fields(data):
            if number == 1:
                name = value.decode()
            else:
                entries.append(_single(value))
        if name:
            return StructLiteral(node_id, name, tuple(self._expression(entry[4]) for entry in entries))
        return MapLiteral(
            node_id,
            tuple(
                MapEntry(
                    entry.get(1, 0),
                    self._expression(entry[3]),
                    self._expression(entry[4]),
                    bool(entry.get(5, 0)),
                )
                for entry in entries
            ),
        )

    def _comprehension(self, node_id: int, data: bytes) -> Node:
        message = _single(data)
        return Comprehension(
            node_id,
            message.get(1, b"").decode(),
            message.get(8, b"").decode(),
            self._expression(message[2]),
            message.get(3, b"").decode(),
            *(self._expression(message[number]) for number in (4, 5, 6, 7)),
        )


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield (field number, value) of a message: int for varints, bytes for everything else."""
    position, end = 0, len(data)
    while position < end:
        tag, position = _varint(data, position)
        wire = tag & 7
        if wire == 0:
            value, position = _varint(data, position)
            yield tag >> 3, value
            continue
        if wire == 2:
            size, position = _varint(data, position)
        else:
            size = 8 if wire == 1 else 4
        yield tag >> 3, data[position : position + size]
        position += size


def _single(data: bytes) -> dict[int, Any]:
    """Return the fields of a message that has none twice."""
    return dict(_fields(data))


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _varints(data: bytes) -> Iterator[int]:
    position = 0
    while position < len(data):
        value, position = _varint(data, position)
        yield value


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
