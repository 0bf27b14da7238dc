"""Estimate what an expression costs at most, as the API server does before it stores a selector.

Theory: every node has a cost range. What a call costs depends on the sizes of its arguments; sizes come from literals,
from the limits that the API puts on devices (`_PATH_SIZES`), or are unknown, which multiplies into an absurd cost.
Folds cost their body times the size of what they go through. Numbers are unsigned 64-bit and stick at the maximum.

Sizes and costs are pairs (least, most). `cost_rules` holds what single functions cost.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from gpupolicy.adapters.cel import cost_rules, types
from gpupolicy.adapters.cel.checker import Checked
from gpupolicy.adapters.cel.cost_rules import Operand, Range, plus, scaled, times, union
from gpupolicy.adapters.cel.macros import ACCUMULATOR
from gpupolicy.adapters.cel.syntax import (
    Call,
    Comprehension,
    Ident,
    ListLiteral,
    Literal,
    MapLiteral,
    Node,
    Select,
    StructLiteral,
)
from gpupolicy.adapters.cel.types import Kind, Type

__all__ = ["LIMIT", "estimate"]

LIMIT = 1_000_000
"""Most that the API server accepts for a selector."""


@dataclass(frozen=True, slots=True)
class Path:
    """Steps from `device` to a value, e.g. device, attributes, @values, type.

    Upstream keeps paths in slices and appends to shared ones in place, so that two paths that grow from the same one may
    overwrite each other's last step: in `m.all(k, v, ...)` the key then has the size of the value. The estimate decides
    what is admitted, so this does the same: `room` is the storage behind the first `length` steps.
    """

    room: list[str] = field(default_factory=list)
    length: int = 0

    @classmethod
    def root(cls, name: str) -> "Path":
        """Return a path of one step."""
        return cls([name], 1)

    def then(self, step: str) -> "Path":
        """Return the path with one more step, in the same storage if there is room."""
        if self.length < len(self.room):
            self.room[self.length] = step
            return Path(self.room, self.length + 1)
        capacity = max(2 * self.length, 1)
        room = [*self.room, step]
        return Path(room + [""] * (capacity - len(room)), self.length + 1)

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps as they stand now."""
        return tuple(self.room[: self.length])


_NOWHERE = Path()


_DRIVER = 63
_DOMAIN = 63
_IDENTIFIER = 32
_ENTRIES = 32
_ATTRIBUTE = 64
_ACCUMULATORS = frozenset({ACCUMULATOR, "__result__"})


def estimate(checked: Checked) -> int:
    """Return the most that the expression can cost, in the API server's units."""
    return _Estimator(checked).cost(checked.root)[1]


@dataclass(frozen=True, slots=True)
class _Entries:
    """Sizes of the keys and values of a container."""

    kind: Kind
    key: Range
    value: Range


@dataclass(frozen=True, slots=True)
class _Variable:
    path: Path
    size: Range | None
    entries: _Entries | None


@dataclass(slots=True)
class _Estimator:
    checked: Checked
    _paths: dict[int, Path] = field(default_factory=dict)
    _sizes: dict[int, Range] = field(default_factory=dict)
    _entries: dict[int, _Entries] = field(default_factory=dict)
    _variables: dict[str, list[_Variable]] = field(default_factory=dict)

    def cost(self, node: Node) -> Range:
        match node:
            case Literal():
                return cost_rules.FREE
            case Ident():
                variable = self._variable(node.name)
                self._paths[node.id] = (
                    variable.path if variable is not None else Path.root(node.name.removeprefix("."))
                )
                return cost_rules.ONE
            case Select():
                return self._select(node)
            case Call():
                return self._call(node)
            case ListLiteral():
                return self._list(node)
            case MapLiteral():
                return self._map(node)
            case StructLiteral():
                return plus((40, 40), *(self.cost(value) for value in node.values))
            case Comprehension():
                return self._bind(node) if _is_bind(node) else self._comprehension(node)

    def _type(self, node: Node) -> Type:
        return self.checked.types[node.id]

    def _variable(self, name: str) -> _Variable | None:
        stack = self._variables.get(name)
        return stack[-1] if stack else None

    def _path(self, node: Node) -> Path:
        if isinstance(node, Ident):
            variable = self._variable(node.name)
            if variable is not None:
                return variable.path
        return self._paths.get(node.id, _NOWHERE)

    def _select(self, node: Select) -> Range:
        operand = self.cost(node.operand)
        if node.test_only:
            return operand
        self._paths[node.id] = self._path(node.operand).then(node.field)
        selectable = self._type(node.operand).kind in (Kind.MAP, Kind.STRUCT, Kind.PARAM)
        return plus(operand, cost_rules.ONE) if selectable else operand

    # Sizes.

    def size(self, node: Node) -> Range | None:
        known = self._sizes.get(node.id)
        if known is not None:
            return known
        literal = _literal_size(node)
        if literal is not None:
            return literal
        limited = path_size(self._path(node).steps)
        if limited is not None:
            self._sizes[node.id] = limited
            return limited
        if _is_scalar(self._type(node)):
            return cost_rules.ONE
        if isinstance(node, Ident):
            variable = self._variable(node.name)
            if variable is not None:
                return variable.size
        return None

    def _size_or_unknown(self, node: Node) -> Range:
        return self.size(node) or cost_rules.UNKNOWN

    def _entry_sizes(self, node: Node) -> _Entries | None:
        known = self._entries.get(node.id)
        if known is None and isinstance(node, Ident):
            variable = self._variable(node.name)
            return variable.entries if variable is not None else None
        return known

    def _operand(self, node: Node) -> Operand:
        steps = self._path(node).steps
        if steps and steps[0] in _ACCUMULATORS:
            steps = ()
        return Operand(
            node, self._type(node), self.size(node), path_size((*steps, "@items")) if steps else None
        )

    # Literals.

    def _list(self, node: ListLiteral) -> Range:
        total = plus((10, 10), *(self.cost(element) for element in node.elements))
        value = _joined(self._size_or_unknown(element) for element in node.elements)
        self._entries[node.id] = _Entries(Kind.LIST, cost_rules.ONE, value)
        return total

    def _map(self, node: MapLiteral) -> Range:
        total: Range = (30, 30)
        for entry in node.entries:
            total = plus(total, self.cost(entry.key), self.cost(entry.value))
        key = _joined(self._size_or_unknown(entry.key) for entry in node.entries)
        value = _joined(self._size_or_unknown(entry.value) for entry in node.entries)
        self._entries[node.id] = _Entries(Kind.MAP, key, value)
        return total

    # Folds.

    def _push(self, name: str, variable: _Variable) -> None:
        self._variables.setdefault(name, []).append(variable)

    def _push_bound(self, name: str, node: Node) -> None:
        self._push(name, _Variable(self._path(node), self.size(node), self._entry_sizes(node)))

    def _push_iterated(self, node: Comprehension) -> None:
        entries = self._entry_sizes(node.range)
        kind = entries.kind if entries is not None else self._type(node.range).kind
        path = self._path(node.range)
        is_list = kind is Kind.LIST
        key = entries.key if entries is not None else None
        value = entries.value if entries is not None else None
        if node.variable2:
            self._push(node.variable, _Variable(path.then("@indices" if is_list else "@keys"), key, None))
            self._push(node.variable2, _Variable(path.then("@items" if is_list else "@values"), value, None))
        elif is_list:
            self._push(node.variable, _Variable(path.then("@items"), value, None))
        else:
            self._push(node.variable, _Variable(path.then("@keys"), key, None))

    def _comprehension(self, node: Comprehension) -> Range:
        total = plus(self.cost(node.range), self.cost(node.initial))
        self._push_bound(node.accumulator, node.initial)
        self._push_iterated(node)
        condition = self.cost(node.condition)
        step = self.cost(node.step)
        self._variables[node.variable].pop()
        if node.variable2:
            self._variables[node.variable2].pop()
        total = plus(total, self.cost(node.result))
        self._variables[node.accumulator].pop()
        count = self._size_or_unknown(node.range)
        total = plus(total, times(count, plus(step, condition)))
        if isinstance(node.initial, Literal):
            initial = self.size(node.initial)
            if initial is not None:
                self._sizes[node.id] = initial
        elif isinstance(node.initial, ListLiteral | MapLiteral):
            self._sizes[node.id] = count
            entries = self._entry_sizes(node.step)
            if entries is not None:
                self._entries[node.id] = entries
        return total

    def _bind(self, node: Comprehension) -> Range:
        total = plus(self.cost(node.range), self.cost(node.initial))
        self._push_bound(node.accumulator, node.initial)
        total = plus(total, self.cost(node.result))
        self._variables[node.accumulator].pop()
        self._copy_sizes(node, node.result)
        return total

    def _copy_sizes(self, target: Node, source: Node) -> None:
        size, entries = self.size(source), self._entry_sizes(source)
        if size is not None:
            self._sizes[target.id] = size
        if entries is not None:
            self._entries[target.id] = entries

    # Calls.

    def _call(self, node: Call) -> Range:
        if node.function == "dyn":
            total = plus(cost_rules.ONE, self.cost(node.args[0]))
            self._copy_sizes(node, node.args[0])
            return total
        costs = [self.cost(arg) for arg in node.args]
        operands = [self._operand(arg) for arg in node.args]
        target: Operand | None = None
        total = cost_rules.FREE
        if node.target is not None:
            total = self.cost(node.target)
            target = self._operand(node.target)
        spread: Range | None = None
        result_size: Range | None = None
        for overload_id in self.checked.overloads[node.id]:
            cost, size = self._overload(node, overload_id, target, operands, costs)
            spread = cost if spread is None else union(spread, cost)
            if size is not None:
                result_size = size if result_size is None else union(result_size, size)
            if overload_id in _INDEX_PATHS:
                # An element's size replaces whatever the overloads before it said.
                entries = self._entry_sizes(node.args[0])
                result_size = entries.value if entries is not None else None
                self._paths[node.id] = self._path(node.args[0]).then(_INDEX_PATHS[overload_id])
            if result_size is None:
                result_size = self.size(node)
        if result_size is not None:
            self._sizes[node.id] = result_size
        return plus(total, spread or cost_rules.FREE)

    def _overload(
        self,
        node: Call,
        overload_id: str,
        target: Operand | None,
        operands: list[Operand],
        costs: list[Range],
    ) -> tuple[Range, Range | None]:
        """Return the cost of a call including its arguments, and the size of its result if it is known."""
        if overload_id in ("logical_and", "logical_or"):
            return (costs[0][0], plus(*costs)[1]), None
        if overload_id == "conditional":
            first, second = (self._size_or_unknown(arg) for arg in node.args[1:])
            self._join_entries(node, node.args[1], node.args[2])
            return plus(costs[0], union(costs[1], costs[2])), union(first, second)
        if overload_id in ("add_string", "add_bytes", "add_list"):
            size = plus(*(self._size_or_unknown(arg) for arg in node.args))
            self._join_entries(node, node.args[0], node.args[1])
            cost = cost_rules.ONE if overload_id == "add_list" else scaled(size, cost_rules.TRAVERSAL)
            return plus(cost, *costs), size
        cost, size_or_none = cost_rules.call(
            node.function, overload_id, target, operands, minor=self.checked.environment.minor
        )
        return plus(cost, *costs), size_or_none

    def _join_entries(self, node: Node, left: Node, right: Node) -> None:
        first, second = self._entry_sizes(left), self._entry_sizes(right)
        if first is not None and second is not None:
            joined = _Entries(first.kind, union(first.key, second.key), union(first.value, second.value))
            self._entries[node.id] = joined


_INDEX_PATHS = {"index_list": "@items", "index_map": "@values"}


def _is_bind(node: Comprehension) -> bool:
    return (
        isinstance(node.range, ListLiteral)
        and not node.range.elements
        and isinstance(node.condition, Literal)
        and node.condition.value is False
        and node.accumulator != "__result__"
    )


def _joined(sizes: Iterable[Range]) -> Range:
    result: Range | None = None
    for size in sizes:
        result = size if result is None else union(result, size)
    return result or cost_rules.FREE


def _literal_size(node: Node) -> Range | None:
    match node:
        case Literal(value=str() | bytes() as text):
            return len(text), len(text)
        case Literal():
            return cost_rules.ONE
        case ListLiteral():
            return len(node.elements), len(node.elements)
        case MapLiteral():
            return len(node.entries), len(node.entries)
        case _:
            return None


_SCALARS = frozenset({Kind.BOOL, Kind.DOUBLE, Kind.DURATION, Kind.INT, Kind.TIMESTAMP, Kind.UINT})


def _is_scalar(kind: Type) -> bool:
    inner, wrapped = types.unwrap_optional(kind)
    return _is_scalar(inner) if wrapped else kind.kind in _SCALARS


def path_size(path: tuple[str, ...]) -> Range | None:
    """Return the size that the API allows for what a path from `device` leads to, None if it says nothing."""
    if not path or path[0] != "device":
        return None
    # Each level: what its items and keys are called, and how large it may be.
    level = "device"
    for name in path[1:]:
        level = _child(level, name)
        if level == "none":
            return None
    return 0, _LEVEL_SIZES[level]


_LEVEL_SIZES = {
    "device": 0,
    "driver": _DRIVER,
    "flag": 1,
    "attributes": _ENTRIES,
    "inner": _ENTRIES,
    "capacity": _ENTRIES,
    "amounts": _ENTRIES,
    "value": _ATTRIBUTE,
    "quantity": 0,
    "domain": _DOMAIN,
    "identifier": _IDENTIFIER,
}
_CHILDREN: dict[str, dict[str, str]] = {
    "device": {
        "driver": "driver",
        "attributes": "attributes",
        "capacity": "capacity",
        "allowMultipleAllocations": "flag",
    },
    "attributes": {"@items": "inner", "@values": "inner", "@keys": "domain"},
    "inner": {"@items": "value", "@values": "value", "@keys": "identifier"},
    "capacity": {"@items": "amounts", "@values": "amounts", "@keys": "domain"},
    "amounts": {"@items": "quantity", "@values": "quantity", "@keys": "identifier"},
}


def _child(level: str, name: str) -> str:
    found = _CHILDREN.get(level, {}).get(name)
    if found is not None:
        return found
    # Any name selects an attribute; nothing is known of named capacities or domains.
    return "value" if level == "inner" and not name.startswith("@") else "none"
