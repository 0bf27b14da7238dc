"""Expand macros: calls that stand for folds, such as `all`, `map`, `cel.bind` and their two-variable forms.

cel-expr-python expands the ones it knows while parsing, celpy none; what is still a call when it comes here is
expanded. The shapes are those of the API server's implementation, because its cost estimate reads them.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from gpupolicy.adapters.cel.syntax import (
    Call,
    Comprehension,
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
    walk,
)

__all__ = ["ACCUMULATOR", "expand"]

ACCUMULATOR = "@result"
"""Name of a fold's own variable; no expression can write it."""

_RESERVED = frozenset({ACCUMULATOR, "__result__"})
_NOT_STRICTLY_FALSE = "@not_strictly_false"
_SORT_INPUT = "@__sortBy_input__"


class _MacroError(Exception):
    def __init__(self, node: Node, message: str) -> None:
        super().__init__(message)
        self.node = node


def expand(root: Node, source: Source) -> tuple[Node, Source]:
    """Return the tree without macros, and the source that knows the places of the nodes that were added.

    Raises:
        ExpressionError: when a macro is used in a way it does not take.
    """
    expander = _Expander(root, source)
    node = expander.expanded(root)
    result = replace(source, offsets=expander.offsets)
    if expander.issues:
        raise result.error(expander.issues)
    return node, result


class _Expander:
    def __init__(self, root: Node, source: Source) -> None:
        self.offsets = dict(source.offsets)
        self.issues: list[Issue] = []
        self._source = source
        self._next_id = 1 + max(
            max((node.id for node in walk(root)), default=0), max(self.offsets, default=0)
        )
        self._call_offset = 0

    def expanded(self, node: Node) -> Node:
        match node:
            case Select():
                return replace(node, operand=self.expanded(node.operand))
            case ListLiteral():
                return replace(node, elements=tuple(self.expanded(element) for element in node.elements))
            case MapLiteral():
                return replace(node, entries=tuple(self._entry(entry) for entry in node.entries))
            case StructLiteral():
                return replace(node, values=tuple(self.expanded(value) for value in node.values))
            case Comprehension():
                return self._comprehension(node)
            case Call():
                return self._call(node)
            case _:
                return node

    def _entry(self, entry: MapEntry) -> MapEntry:
        return replace(entry, key=self.expanded(entry.key), value=self.expanded(entry.value))

    def _comprehension(self, node: Comprehension) -> Node:
        return replace(
            node,
            range=self.expanded(node.range),
            initial=self.expanded(node.initial),
            condition=self.expanded(node.condition),
            step=self.expanded(node.step),
            result=self.expanded(node.result),
        )

    def _call(self, node: Call) -> Node:
        target = None if node.target is None else self.expanded(node.target)
        call = replace(node, target=target, args=tuple(self.expanded(arg) for arg in node.args))
        macro = _MACROS.get((call.function, len(call.args), target is not None))
        if macro is None:
            return call
        self._call_offset = self.offsets.get(call.id, 0)
        try:
            return macro(self, call) or call
        except _MacroError as error:
            self.issues.append(self._source.issue(error.node.id, str(error)))
            return call

    # What the macros build with.

    def new_id(self) -> int:
        self._next_id += 1
        self.offsets[self._next_id] = self._call_offset
        return self._next_id

    def literal(self, value: object) -> Node:
        return Literal(self.new_id(), value)

    def ident(self, name: str = ACCUMULATOR) -> Node:
        return Ident(self.new_id(), name)

    def list(self, *elements: Node) -> Node:
        return ListLiteral(self.new_id(), elements)

    def call(self, function: str, *args: Node, target: Node | None = None) -> Node:
        return Call(self.new_id(), function, target, args)

    def copied(self, node: Node) -> Node:
        """Return a copy of the tree with ids of its own, as an expression that stands in two places needs."""
        fresh = self.new_id()
        self.offsets[fresh] = self.offsets.get(node.id, self._call_offset)
        match node:
            case Select():
                return replace(node, id=fresh, operand=self.copied(node.operand))
            case ListLiteral():
                return replace(node, id=fresh, elements=tuple(self.copied(part) for part in node.elements))
            case MapLiteral():
                entries = tuple(
                    replace(
                        entry, id=self.new_id(), key=self.copied(entry.key), value=self.copied(entry.value)
                    )
                    for entry in node.entries
                )
                return replace(node, id=fresh, entries=entries)
            case StructLiteral():
                return replace(node, id=fresh, values=tuple(self.copied(part) for part in node.values))
            case Call():
                target = None if node.target is None else self.copied(node.target)
                return replace(
                    node, id=fresh, target=target, args=tuple(self.copied(arg) for arg in node.args)
                )
            case Comprehension():
                parts = (node.range, node.initial, node.condition, node.step, node.result)
                range_, initial, condition, step, result = (self.copied(part) for part in parts)
                return replace(
                    node,
                    id=fresh,
                    range=range_,
                    initial=initial,
                    condition=condition,
                    step=step,
                    result=result,
                )
            case _:
                return replace(node, id=fresh)

    def fold(self, over: Node, names: tuple[str, ...], *parts: Node) -> Node:
        """Return the fold with these parts: initial value, condition, step, result."""
        initial, condition, step, result = parts
        second = names[1] if len(names) > 1 else ""
        return Comprehension(
            self.new_id(), names[0], second, over, ACCUMULATOR, initial, condition, step, result
        )

    def bind(self, name: str, value: Node, body: Node) -> Node:
        return Comprehension(
            self.new_id(),
            "#unused",
            "",
            self.list(),
            name,
            value,
            self.literal(False),
            self.ident(name),
            body,
        )


_Macro = Callable[[_Expander, Call], Node | None]


def _names(args: tuple[Node, ...]) -> tuple[str, ...]:
    names: list[str] = []
    for arg in args:
        if not isinstance(arg, Ident):
            raise _MacroError(arg, "argument must be a simple name")
        if arg.name in names:
            raise _MacroError(arg, f"duplicate variable name: {arg.name}")
        if arg.name in _RESERVED:
            raise _MacroError(arg, "iteration variable overwrites accumulator variable")
        names.append(arg.name)
    return tuple(names)


def _target(call: Call) -> Node:
    if call.target is None:  # pragma: no cover - the table asks for it
        raise ValueError(call.function)
    return call.target


def _has(expander: _Expander, call: Call) -> Node:
    (arg,) = call.args
    # Of a presence test, `has(has(a.b))`, the selection is in it taken again.
    if not isinstance(arg, Select):
        raise _MacroError(arg, "invalid argument to has() macro")
    return Select(expander.new_id(), arg.operand, arg.field, test_only=True)


def _all(expander: _Expander, call: Call) -> Node:
    names = _names(call.args[:-1])
    return expander.fold(
        _target(call),
        names,
        expander.literal(True),
        expander.call(_NOT_STRICTLY_FALSE, expander.ident()),
        expander.call("_&&_", expander.ident(), call.args[-1]),
        expander.ident(),
    )


def _exists(expander: _Expander, call: Call) -> Node:
    names = _names(call.args[:-1])
    return expander.fold(
        _target(call),
        names,
        expander.literal(False),
        expander.call(_NOT_STRICTLY_FALSE, expander.call("!_", expander.ident())),
        expander.call("_||_", expander.ident(), call.args[-1]),
        expander.ident(),
    )


def _exists_one(expander: _Expander, call: Call) -> Node:
    names = _names(call.args[:-1])
    counted = expander.call("_+_", expander.ident(), expander.literal(1))
    return expander.fold(
        _target(call),
        names,
        expander.literal(0),
        expander.literal(True),
        expander.call("_?_:_", call.args[-1], counted, expander.ident()),
        expander.call("_==_", expander.ident(), expander.literal(1)),
    )


def _collected(expander: _Expander, call: Call, names: tuple[str, ...], initial: Node, step: Node) -> Node:
    predicates = call.args[len(names) : -1]
    if predicates:
        step = expander.call("_?_:_", predicates[0], step, expander.ident())
    return expander.fold(_target(call), names, initial, expander.literal(True), step, expander.ident())


def _map(expander: _Expander, call: Call) -> Node:
    names = _names(call.args[:1])
    step = expander.call("_+_", expander.ident(), expander.list(call.args[-1]))
    return _collected(expander, call, names, expander.list(), step)


def _filter(expander: _Expander, call: Call) -> Node:
    names = _names(call.args[:1])
    step = expander.call("_+_", expander.ident(), expander.list(call.args[0]))
    step = expander.call("_?_:_", call.args[1], step, expander.ident())
    return expander.fold(
        _target(call), names, expander.list(), expander.literal(True), step, expander.ident()
    )


def _transform_list(expander: _Expander, call: Call) -> Node:
    names = _names(call.args[:2])
    step = expander.call("_+_", expander.ident(), expander.list(call.args[-1]))
    return _collected(expander, call, names, expander.list(), step)


def _transform_map(expander: _Expander, call: Call) -> Node:
    names = _names(call.args[:2])
    step = expander.call("cel.@mapInsert", expander.ident(), expander.ident(names[0]), call.args[-1])
    return _collected(expander, call, names, MapLiteral(expander.new_id(), ()), step)


def _transform_map_entry(expander: _Expander, call: Call) -> Node:
    names = _names(call.args[:2])
    step = expander.call("cel.@mapInsert", expander.ident(), call.args[-1])
    return _collected(expander, call, names, MapLiteral(expander.new_id(), ()), step)


def _bind(expander: _Expander, call: Call) -> Node | None:
    if not isinstance(call.target, Ident) or call.target.name != "cel":
        return None
    name, value, body = call.args
    if not isinstance(name, Ident):
        raise _MacroError(name, "cel.bind() variable names must be simple identifiers")
    return expander.bind(name.name, value, body)


def _optional_bind(expander: _Expander, call: Call) -> Node:
    name, body = call.args
    if not isinstance(name, Ident):
        raise _MacroError(name, f"{call.function}() variable name must be a simple identifier")
    value = expander.call("value", target=expander.copied(_target(call)))
    return expander.bind(name.name, value, body)


def _when_present(expander: _Expander, call: Call, mapped: Node) -> Node:
    present = expander.call("hasValue", target=call.target)
    return expander.call("_?_:_", present, mapped, expander.call("optional.none"))


def _opt_map(expander: _Expander, call: Call) -> Node:
    mapped = expander.call("optional.of", _optional_bind(expander, call))
    return _when_present(expander, call, mapped)


def _opt_flat_map(expander: _Expander, call: Call) -> Node:
    return _when_present(expander, call, _optional_bind(expander, call))


def _sort_by(expander: _Expander, call: Call) -> Node:
    target = _target(call)
    if isinstance(target, Literal | MapLiteral | StructLiteral):
        message = "sortBy can only be applied to a list, identifier, comprehension, call or select expression"
        raise _MacroError(target, message)
    mapped = _map(expander, replace(call, target=expander.ident(_SORT_INPUT)))
    ordered = expander.call("@sortByAssociatedKeys", mapped, target=expander.ident(_SORT_INPUT))
    return expander.bind(_SORT_INPUT, target, ordered)


def _table() -> Iterator[tuple[tuple[str, int, bool], _Macro]]:
    yield ("has", 1, False), _has
    for variables in (2, 3):
        yield ("all", variables, True), _all
        yield ("exists", variables, True), _exists
        yield ("exists_one", variables, True), _exists_one
        yield ("map", variables, True), _map
    # This spelling came with the two-variable forms and was never added to the older ones.
    yield ("existsOne", 3, True), _exists_one
    yield ("filter", 2, True), _filter
    for arguments in (3, 4):
        yield ("transformList", arguments, True), _transform_list
        yield ("transformMap", arguments, True), _transform_map
        yield ("transformMapEntry", arguments, True), _transform_map_entry
    yield ("bind", 3, True), _bind
    yield ("optMap", 2, True), _opt_map
    yield ("optFlatMap", 2, True), _opt_flat_map
    yield ("sortBy", 2, True), _sort_by


_MACROS: dict[tuple[str, int, bool], _Macro] = dict(_table())
