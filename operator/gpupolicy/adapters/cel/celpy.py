"""cel-python (celpy) behind a small face: its parser gives our tree, and the clauses of an expression.

The engine asks it where cel-expr-python has no wheel and where that one gives up on depth; clauses always come from
here, because celpy knows where each part of an expression begins and ends. Its evaluator is not used: it differs
from the API server's in too many places (`docs/design/20261130-selectors.md` counts them).

celpy does not know the optional syntax. The question marks are blanked before it sees the text and put back into the
tree by their places. Where its grammar is known to differ from the API server's, nothing is said (`UncertainError`).
"""

import bisect
import itertools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from gpupolicy.adapters.cel import scan
from gpupolicy.adapters.cel.syntax import (
    Call,
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
    UncertainError,
)

__all__ = ["Clause", "available", "clauses", "parse"]

_INT64 = range(-(2**63), 2**63)
_UINT64 = range(2**64)
_TOO_DEEP = "the expression is nested too deeply to be read here"


@dataclass(frozen=True, slots=True)
class Clause:
    """One of the terms that an expression ANDs at its outermost level."""

    text: str
    start: int
    """Index of its first character in the expression."""


@cache
def _parser() -> Any:
    try:
        import lark
        from celpy import celparser
    except ImportError:  # pragma: no cover - tests switch it off instead
        return None

    class Parser(celparser.CELParser):
        """The library's parser, except that `true` and `false` keep their places in the text."""

        @staticmethod
        def ambiguous_literals(token: Any) -> Any:
            is_literal = token.value in ("true", "false")
            return lark.Token.new_borrow_pos("BOOL_LIT", token.value, token) if is_literal else token

    return Parser()


def available() -> bool:
    """Return whether the library is installed."""
    return _parser() is not None


def parse(text: str) -> tuple[Node, Source]:
    """Return the tree of an expression, macros unexpanded.

    Raises:
        ExpressionError: on a syntax error that is one for the API server too.
        UncertainError: when celpy cannot read it, or could misread it.
    """
    pieces = scan.scan(text)
    tree = _tree(text, pieces)
    reader = _Reader(text, pieces)
    try:
        node = reader.node(tree)
    except RecursionError as error:
        raise UncertainError(_TOO_DEEP) from error
    source = Source(text, reader.offsets)
    if reader.issues:
        raise source.error([source.issue(node_id, message) for node_id, message in reader.issues])
    return node, source


def clauses(text: str) -> tuple[Clause, ...]:
    """Return the clauses of an expression, from left to right; the whole expression where it cannot be split."""
    try:
        tree = _tree(text, scan.scan(text))
    except (ExpressionError, UncertainError):
        return (Clause(text.strip(), len(text) - len(text.lstrip())),)
    return tuple(_clauses(text, tree))


def _tree(text: str, pieces: scan.Scan) -> Any:
    parser = _parser()
    if parser is None:
        raise UncertainError("no parser is installed for this platform")
    if not text.strip():
        message = "Syntax error: mismatched input '<EOF>'"
        raise ExpressionError((Issue(message, 1, 0),), f"ERROR: <input>:1:0: {message}")
    try:
        tree = parser.parse(scan.without_optional_marks(text, pieces.optional_marks))
    except Exception as error:
        # Whatever goes wrong in there: the text was not understood.
        line, column = getattr(error, "line", None) or 1, getattr(error, "column", None) or 1
        raise UncertainError(f"<input>:{line}:{column}: cannot be read here") from error
    try:
        strings = {(token.start_pos, token.end_pos) for token in tree.scan_values(_is_string)}
    except RecursionError as error:
        raise UncertainError(_TOO_DEEP) from error
    if strings != set(pieces.strings):
        raise UncertainError("a string literal that is not read with certainty")
    return tree


def _is_string(token: Any) -> bool:
    return getattr(token, "type", "") in ("STRING_LIT", "MLSTRING_LIT", "BYTES_LIT")


# Rules of celpy's grammar that only hand on their one child.
_TRANSPARENT = frozenset(
    {"expr", "conditionalor", "conditionaland", "relation", "addition", "multiplication", "unary", "member"}
    | {"primary", "paren_expr"}
)


def _core(tree: Any) -> Any:
    """Return the tree below rules and brackets that add nothing."""
    while tree.data in _TRANSPARENT and len(tree.children) == 1:
        tree = tree.children[0]
    return tree


def _clauses(text: str, tree: Any) -> Iterator[Clause]:
    stack = [tree]
    while stack:
        current = _core(stack.pop())
        if current.data == "conditionaland":
            stack.extend(reversed(current.children))
        else:
            yield Clause(text[current.meta.start_pos : current.meta.end_pos], current.meta.start_pos)


_BINARY = {
    "relation_lt": "_<_",
    "relation_le": "_<=_",
    "relation_gt": "_>_",
    "relation_ge": "_>=_",
    "relation_eq": "_==_",
    "relation_ne": "_!=_",
    "relation_in": "@in",
    "addition_add": "_+_",
    "addition_sub": "_-_",
    "multiplication_mul": "_*_",
    "multiplication_div": "_/_",
    "multiplication_mod": "_%_",
}
_RESERVED = frozenset(
    [
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ]
)


class _Reader:
    """Turns celpy's tree into ours."""

    def __init__(self, text: str, pieces: scan.Scan) -> None:
        self.offsets: dict[int, int] = {}
        self.issues: list[tuple[int, str]] = []
        self._text = text
        self._marks = pieces.optional_marks

    def node(self, tree: Any) -> Node:
        tree = _core(tree)
        readers: dict[str, Callable[[Any], Node]] = {
            "expr": self._conditional,
            "conditionalor": lambda tree: self._chain(tree, "_||_"),
            "conditionaland": lambda tree: self._chain(tree, "_&&_"),
            "relation": self._binary,
            "addition": self._binary,
            "multiplication": self._binary,
            "unary": self._unary,
            "member_dot": self._select,
            "member_dot_arg": self._member_call,
            "member_index": self._index,
            "member_object": self._message,
            "ident": self._ident,
            "dot_ident": self._root_ident,
            "ident_arg": self._function_call,
            "dot_ident_arg": self._function_call,
            "list_lit": self._list,
            "map_lit": self._map,
            "literal": self._literal,
        }
        return readers[tree.data](tree)

    def _id(self, tree: Any) -> int:
        node_id = len(self.offsets) + 1
        self.offsets[node_id] = tree.meta.start_pos
        return node_id

    def _optional(self, start: int, end: int) -> bool:
        """Return whether a question mark was blanked between two places."""
        return bisect.bisect_left(self._marks, start) < bisect.bisect_left(self._marks, end)

    def _conditional(self, tree: Any) -> Node:
        return Call(self._id(tree), "_?_:_", None, tuple(self.node(child) for child in tree.children))

    def _chain(self, tree: Any, operator: str) -> Node:
        # A long chain is a deep tree to the left; it is taken apart without recursion and put together balanced.
        kind, terms = tree.data, []
        while tree.data == kind and len(tree.children) > 1:
            terms.append(tree.children[1])
            tree = tree.children[0]
        terms.append(tree)
        return self._balanced([self.node(term) for term in reversed(terms)], operator, tree)

    def _balanced(self, terms: list[Node], operator: str, tree: Any) -> Node:
        if len(terms) == 1:
            return terms[0]
        middle = (len(terms) + 1) // 2
        left, right = terms[:middle], terms[middle:]
        parts = (self._balanced(left, operator, tree), self._balanced(right, operator, tree))
        return Call(self._id(tree), operator, None, parts)

    def _binary(self, tree: Any) -> Node:
        operators: list[tuple[Any, Any]] = []
        while tree.data in ("relation", "addition", "multiplication") and len(tree.children) > 1:
            operators.append((tree.children[0], tree.children[1]))
            tree = tree.children[0].children[0]
        result = self.node(tree)
        for operator, right in reversed(operators):
            result = Call(self._id(operator), _BINARY[operator.data], None, (result, self.node(right)))
        return result

    def _unary(self, tree: Any) -> Node:
        marks = []
        start = tree
        while tree.data == "unary" and len(tree.children) > 1:
            marks.append(tree.children[0].data)
            tree = tree.children[1]
        operand = self.node(tree)
        if len(set(marks)) > 1 and not isinstance(operand, Literal):
            raise UncertainError("`!` and `-` in one row")
        apart = self._text[start.meta.start_pos : self.offsets[operand.id]]
        if marks[0] == "unary_neg" and isinstance(operand, Literal) and "(" not in apart:
            raise UncertainError("a sign apart from its number")
        if len(marks) % 2 == 0:
            return operand
        return Call(self._id(start), "!_" if marks[0] == "unary_not" else "-_", None, (operand,))

    def _select(self, tree: Any) -> Node:
        operand, field = tree.children
        node = self.node(operand)
        if self._optional(operand.meta.end_pos, field.start_pos):
            return Call(self._id(tree), "_?._", None, (node, Literal(self._id(tree), str(field))))
        return Select(self._id(tree), node, str(field))

    def _index(self, tree: Any) -> Node:
        operand, key = tree.children
        optional = self._optional(operand.meta.end_pos, key.meta.start_pos)
        return Call(
            self._id(tree), "_[?_]" if optional else "_[_]", None, (self.node(operand), self.node(key))
        )

    def _member_call(self, tree: Any) -> Node:
        operand, name = tree.children[:2]
        if self._optional(operand.meta.end_pos, name.start_pos):
            raise UncertainError("a question mark before a function")
        target = self.node(operand)
        return Call(self._id(tree), str(name), target, self._arguments(tree.children[2:]))

    def _function_call(self, tree: Any) -> Node:
        name = str(tree.children[0])
        node_id = self._id(tree)
        self._check_reserved(node_id, name)
        # With a leading dot it is no macro, whatever its name.
        name = f".{name}" if tree.data == "dot_ident_arg" else name
        return Call(node_id, name, None, self._arguments(tree.children[1:]))

    def _arguments(self, lists: list[Any]) -> tuple[Node, ...]:
        arguments = lists[0].children if lists else []
        if arguments and self._optional(lists[0].meta.start_pos - 1, lists[0].meta.end_pos):
            spans = [(a.meta.start_pos, a.meta.end_pos) for a in arguments]
            if any(self._optional(end, start) for (_, end), (start, _) in itertools.pairwise(spans)):
                raise UncertainError("a question mark before an argument")
        return tuple(self.node(argument) for argument in arguments)

    def _message(self, tree: Any) -> Node:
        return StructLiteral(self._id(tree), self._text[tree.meta.start_pos : tree.meta.end_pos], ())

    def _ident(self, tree: Any) -> Node:
        node_id, name = self._id(tree), str(tree.children[0])
        self._check_reserved(node_id, name)
        return Ident(node_id, name)

    def _root_ident(self, tree: Any) -> Node:
        return Ident(self._id(tree), f".{tree.children[0]}")

    def _check_reserved(self, node_id: int, name: str) -> None:
        if name in _RESERVED:
            self.issues.append((node_id, f"reserved identifier: {name}"))

    def _list(self, tree: Any) -> Node:
        elements = tree.children[0].children if tree.children else []
        nodes, optional = [], set()
        position = tree.meta.start_pos
        for number, element in enumerate(elements):
            if self._optional(position, element.meta.start_pos):
                optional.add(number)
            nodes.append(self.node(element))
            position = element.meta.end_pos
        return ListLiteral(self._id(tree), tuple(nodes), frozenset(optional))

    def _map(self, tree: Any) -> Node:
        parts = tree.children[0].children if tree.children else []
        entries = []
        position = tree.meta.start_pos
        for key, value in zip(parts[::2], parts[1::2], strict=True):
            optional = self._optional(position, key.meta.start_pos)
            entries.append(MapEntry(self._id(key), self.node(key), self.node(value), optional))
            position = value.meta.end_pos
        return MapLiteral(self._id(tree), tuple(entries))

    def _literal(self, tree: Any) -> Node:
        node_id = self._id(tree)
        token = tree.children[0]
        value = _literal_value(token.type, str(token))
        if isinstance(value, _LiteralError):
            self.issues.append((node_id, str(value)))
            value = None
        return Literal(node_id, value)


class _LiteralError(Exception):
    pass


def _literal_value(kind: str, text: str) -> object:
    if kind == "BOOL_LIT":
        return text == "true"
    if kind == "NULL_LIT":
        return None
    if kind == "INT_LIT":
        number = int(text, 16) if "x" in text.lower() else int(text)
        return number if number in _INT64 else _LiteralError("invalid int literal")
    if kind == "UINT_LIT":
        body = text[:-1]
        number = int(body, 16) if "x" in body.lower() else int(body)
        return Uint(number) if number in _UINT64 else _LiteralError("invalid uint literal")
    if kind == "FLOAT_LIT":
        if not re.fullmatch(
            r"-?([0-9]+\.[0-9]+([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+([eE][+-]?[0-9]+)?)", text
        ):
            raise UncertainError(f"the number {text}")
        value = float(text)
        return _LiteralError("invalid double literal") if math.isinf(value) else value
    return _string_value(text)


_ESCAPE = re.compile(
    r"\\(?:(?P<simple>[abfnrtv\\?\"'`])|[xX](?P<hex>[0-9a-fA-F]{2})|u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8})"
    r"|(?P<octal>[0-3][0-7]{2}))"
)
_SIMPLE = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def _string_value(literal: str) -> object:
    prefix = re.match(r"[bBrR]*", literal)
    flags = prefix.group().lower() if prefix is not None else ""
    body = literal[len(flags) :]
    quotes = 3 if body[:3] in ('"""', "'''") else 1
    body = body[quotes:-quotes].replace("\r\n", "\n").replace("\r", "\n")
    if "r" in flags:
        return body.encode() if "b" in flags else body
    parts: list[bytes] = []
    position = 0
    for match in _ESCAPE.finditer(body):
        plain = body[position : match.start()]
        if "\\" in plain:
            raise UncertainError("an escape that is not known here")
        parts += [plain.encode(), _escaped(match, as_bytes="b" in flags)]
        position = match.end()
    if "\\" in body[position:]:
        raise UncertainError("an escape that is not known here")
    value = b"".join([*parts, body[position:].encode()])
    return value if "b" in flags else value.decode()


def _escaped(match: re.Match[str], *, as_bytes: bool) -> bytes:
    simple = match["simple"]
    if simple is not None:
        return _SIMPLE.get(simple, simple).encode()
    digits = match["hex"] or match["short"] or match["long"]
    code = int(digits, 16) if digits is not None else int(match["octal"], 8)
    if as_bytes and (match["hex"] or match["octal"]):
        return bytes([code])
    if as_bytes or code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise UncertainError("an escape that stands for no character")
    return chr(code).encode()
