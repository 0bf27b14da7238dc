"""The tree of a CEL expression, after macros: the form that the checker, the cost estimate and the evaluator read.

Both parsers produce it. Nodes carry an id; `Source` knows the place of each id in the text, so that a message
can point at it the way the API server does.
"""

import bisect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

__all__ = [
    "Call",
    "Comprehension",
    "ExpressionError",
    "Ident",
    "Issue",
    "ListLiteral",
    "Literal",
    "MapEntry",
    "MapLiteral",
    "Node",
    "Select",
    "Source",
    "StructLiteral",
    "Uint",
    "UncertainError",
    "children",
    "depth",
    "walk",
]


class Uint(int):
    """An unsigned 64-bit number, apart from `int` by its type."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    """A constant: None, bool, int, Uint, float, str or bytes."""

    id: int
    value: object


@dataclass(frozen=True, slots=True, eq=False)
class Ident:
    """A name; a leading dot means the outermost scope."""

    id: int
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Select:
    """`operand.field`, or `has(operand.field)` when `test_only`."""

    id: int
    operand: "Node"
    field: str
    test_only: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A function or operator; `target` is set for `target.function(...)`. Operators have names such as `_&&_`."""

    id: int
    function: str
    target: "Node | None"
    args: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True, eq=False)
class ListLiteral:
    """`[a, ?b]`; `optional` holds the positions of elements that came with a question mark."""

    id: int
    elements: "tuple[Node, ...]"
    optional: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class MapEntry:
    """`key: value` of a map literal."""

    id: int
    key: "Node"
    value: "Node"
    optional: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class MapLiteral:
    """`{key: value}`."""

    id: int
    entries: tuple[MapEntry, ...]


@dataclass(frozen=True, slots=True, eq=False)
class StructLiteral:
    """`Name{field: value}`: a message. Type-checked only as far as selectors can use them, which is not at all."""

    id: int
    name: str
    values: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True, eq=False)
class Comprehension:
    """A fold: what the macros `all`, `exists`, `map`, `cel.bind` ... stand for."""

    id: int
    variable: str
    variable2: str
    range: "Node"
    accumulator: str
    initial: "Node"
    condition: "Node"
    step: "Node"
    result: "Node"


Node = Literal | Ident | Select | Call | ListLiteral | MapLiteral | StructLiteral | Comprehension


@dataclass(frozen=True, slots=True)
class Issue:
    """Something wrong with an expression, and where: line and column count from 1, as in the API server's messages."""

    message: str
    line: int
    column: int


class UncertainError(Exception):
    """What a real server would do is not known here. Nothing in the expression makes up for it."""


class ExpressionError(Exception):
    """The expression is refused. The text of the exception is what the API server would write."""

    def __init__(self, issues: "tuple[Issue, ...]", text: str) -> None:
        super().__init__(text)
        self.issues = issues


@dataclass(frozen=True, slots=True)
class Source:
    """The text of an expression and the place of each node in it."""

    text: str
    offsets: Mapping[int, int]
    """Node id -> index of the character where the API server would point."""
    line_starts: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        starts = (0, *(index + 1 for index, char in enumerate(self.text) if char == "\n"))
        object.__setattr__(self, "line_starts", starts)

    def issue(self, node_id: int, message: str) -> Issue:
        """Return an issue that points at the node."""
        offset = self.offsets.get(node_id, 0)
        line = bisect.bisect_right(self.line_starts, offset)
        return Issue(message, line, offset - self.line_starts[line - 1] + 1)

    def error(self, issues: "list[Issue]") -> ExpressionError:
        """Return the refusal for these issues, sorted by place."""
        ordered = sorted(dict.fromkeys(issues), key=lambda issue: (issue.line, issue.column))
        lines = self.text.split("\n")
        blocks = [
            f"ERROR: <input>:{issue.line}:{issue.column}: {issue.message}\n"
            f" | {lines[issue.line - 1].replace(chr(9), ' ')}\n | {'.' * (issue.column - 1)}^"
            for issue in ordered
        ]
        return ExpressionError(tuple(ordered), "\n".join(blocks))


def children(node: Node) -> tuple[Node, ...]:
    """Return the nodes directly below `node`, in the order of the text."""
    match node:
        case Select():
            return (node.operand,)
        case Call():
            return node.args if node.target is None else (node.target, *node.args)
        case ListLiteral():
            return node.elements
        case MapLiteral():
            return tuple(part for entry in node.entries for part in (entry.key, entry.value))
        case StructLiteral():
            return node.values
        case Comprehension():
            return (node.range, node.initial, node.condition, node.step, node.result)
        case _:
            return ()


def walk(root: Node) -> Iterator[Node]:
    """Yield `root` and everything below it, without recursion."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(children(node)))


_RELATIONS = frozenset({"_<_", "_<=_", "_>_", "_>=_", "_==_", "_!=_", "@in"})
_ARITHMETIC = frozenset({"_+_", "_-_", "_*_", "_/_", "_%_"})
_MEMBERS = frozenset({"_[_]", "_[?_]", "_?._"})


def depth(root: Node, brackets: Callable[[Node], int]) -> int:
    """Return how deep the API server's parser sees the tree, before macros; it looks twice, and the deeper view counts.

    First, for each rule of its grammar, how often the rule stands in itself: whatever stands in brackets, and the last
    part of a choice, is an expression of its own, which counts for every rule; the right side of a comparison or of an
    operator of arithmetic counts for that rule besides. Then, how many choices, comparisons, operators of arithmetic and
    steps to members are around a node. `brackets` tells how many brackets are open around a node.
    """
    deepest = 0
    stack = [(root, 1, 0, 0, 0)]
    while stack:
        node, expressions, relations, operators, visits = stack.pop()
        below = children(node)
        if not below:
            deepest = max(deepest, brackets(node) + expressions + max(relations, operators), visits)
        function = node.function if isinstance(node, Call) and node.target is None else ""
        is_choice, is_relation, is_operator = (
            function == "_?_:_",
            function in _RELATIONS,
            function in _ARITHMETIC,
        )
        is_member = isinstance(node, Select | Call) and (not function or function in _MEMBERS)
        visits += is_choice or is_relation or is_operator or is_member
        for place, child in enumerate(below):
            stack.append(
                (
                    child,
                    expressions + (is_choice and place == 2),
                    relations + (is_relation and place == 1),
                    operators + (is_operator and place == 1),
                    visits,
                )
            )
    return deepest
