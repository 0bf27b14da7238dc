"""Type-check an expression as the API server does: names, overloads, types of literals, type of the result.

Google's C++ checker would do most of it, but it knows neither two-variable macros nor `device` as a value of its own, and
refuses calls on values of unknown type that upstream accepts.
"""

from dataclasses import dataclass

from gpupolicy.adapters.cel import types
from gpupolicy.adapters.cel.declarations import DEVICE, Environment, Overload, device_field, functions
from gpupolicy.adapters.cel.syntax import (
    Call,
    Comprehension,
    Ident,
    Issue,
    ListLiteral,
    Literal,
    MapLiteral,
    Node,
    Select,
    Source,
    StructLiteral,
    Uint,
    UncertainError,
)
from gpupolicy.adapters.cel.types import Kind, Type

__all__ = ["Checked", "check", "type_value_name"]


@dataclass(frozen=True, slots=True)
class Checked:
    """An expression that type-checks."""

    root: Node
    source: Source
    environment: Environment
    types: dict[int, Type]
    """Node id -> static type."""
    overloads: dict[int, tuple[str, ...]]
    """Id of a call -> the overloads that it may be at run time."""

    @property
    def result(self) -> Type:
        """Static type of the whole expression."""
        return self.types[self.root.id]


def check(root: Node, source: Source, environment: Environment) -> Checked:
    """Return the checked expression. Calls of namespaced functions (`sets.contains`) lose their target.

    Raises:
        ExpressionError: with every type error that the API server reports.
        UncertainError: when the expression uses something that is not modelled here.
    """
    checker = _Checker(source, environment)
    root = checker.check(root)
    if checker.issues:
        raise source.error(checker.issues)
    resolved = {
        node_id: types.substitute(checker.bindings, kind, free_to_dyn=True)
        for node_id, kind in checker.types.items()
    }
    return Checked(root, source, environment, resolved, checker.overloads)


_TYPE_VALUES = {
    "bool": types.BOOL,
    "bytes": types.BYTES,
    "double": types.DOUBLE,
    "google.protobuf.Duration": types.DURATION,
    "google.protobuf.Timestamp": types.TIMESTAMP,
    "int": types.INT,
    "list": types.list_of(types.param("A")),
    "map": types.map_of(types.param("A"), types.param("B")),
    "null_type": types.NULL,
    "string": types.STRING,
    "type": types.TYPE,
    "uint": types.UINT,
    "optional_type": types.optional_of(types.param("V")),
    "kubernetes.DRADevice": DEVICE,
    "net.IP": types.parse("ip"),
    "net.CIDR": types.parse("cidr"),
}
_UNMODELLED_PREFIX = "google."


def type_value_name(name: str) -> str | None:
    """Return the run-time name of the type that an identifier means, None if it is no type."""
    return name.removeprefix(".") if name.removeprefix(".") in _TYPE_VALUES else None


class _Checker:
    def __init__(self, source: Source, environment: Environment) -> None:
        self.types: dict[int, Type] = {}
        self.overloads: dict[int, tuple[str, ...]] = {}
        self.issues: list[Issue] = []
        self.bindings: types.Bindings = {}
        self._source = source
        self._environment = environment
        self._functions = functions(environment)
        self._scopes: list[dict[str, Type]] = []
        self._free = 0

    def check(self, node: Node) -> Node:
        match node:
            case Literal():
                return self._set(node, _literal_type(node.value))
            case Ident():
                return self._ident(node)
            case Select():
                return self._select(node)
            case Call():
                return self._call(node)
            case ListLiteral():
                return self._list(node)
            case MapLiteral():
                return self._map(node)
            case Comprehension():
                return self._comprehension(node)
            case StructLiteral():
                return self._message(node)

    def _message(self, node: StructLiteral) -> Node:
        name = node.name.removeprefix(".")
        if name.startswith(_UNMODELLED_PREFIX) or name == DEVICE.name:
            raise UncertainError(f"message literals such as {name}{{}} are not modelled")
        self._report(node, f"undeclared reference to '{name}' (in container '')")
        return self._set(node, types.ERROR)

    def _set(self, node: Node, kind: Type) -> Node:
        self.types[node.id] = kind
        return node

    def _report(self, node: Node, message: str) -> None:
        self.issues.append(self._source.issue(node.id, message))

    def _type(self, node: Node) -> Type:
        return types.substitute(self.bindings, self.types[node.id])

    def _fresh(self) -> Type:
        self._free += 1
        return types.param(f"_var{self._free}")

    def _unify(self, left: Type, right: Type) -> bool:
        bindings = types.unify(self.bindings, left, right)
        if bindings is None:
            return False
        self.bindings = bindings
        return True

    def _variable(self, name: str) -> Type | None:
        if not name.startswith("."):
            for scope in reversed(self._scopes):
                if name in scope:
                    return scope[name]
        name = name.removeprefix(".")
        if name == "device":
            return DEVICE
        kind = _TYPE_VALUES.get(name)
        if kind is not None:
            return types.type_of(kind)
        if name.startswith(_UNMODELLED_PREFIX):
            raise UncertainError(f"the type {name} is not modelled")
        return None

    def _ident(self, node: Ident) -> Node:
        kind = self._variable(node.name)
        if kind is None:
            self._report(node, f"undeclared reference to '{node.name.removeprefix('.')}' (in container '')")
            kind = types.ERROR
        return self._set(node, kind)

    def _select(self, node: Select) -> Node:
        qualified = _qualified_name(node)
        if qualified is not None and qualified.partition(".")[0] not in self._locals():
            kind = self._variable(qualified) if "." in qualified.removeprefix(".") else None
            if kind is not None:
                return self._set(Ident(node.id, qualified), kind)
        operand = self.check(node.operand)
        kind = self._field_type(node, operand, node.field, optional=False)
        node = Select(node.id, operand, node.field, node.test_only)
        return self._set(node, types.BOOL if node.test_only else kind)

    def _locals(self) -> frozenset[str]:
        return frozenset(name for scope in self._scopes for name in scope)

    def _field_type(self, node: Node, operand: Node, field: str, *, optional: bool) -> Type:
        target, wrapped = types.unwrap_optional(self._type(operand))
        if target.kind is Kind.MAP:
            kind = target.params[1]
        elif target.kind is Kind.STRUCT:
            found = device_field(self._environment, field) if target == DEVICE else None
            if found is None:
                self._report(node, f"undefined field '{field}'")
            kind = found or types.ERROR
        else:
            if target.kind is Kind.PARAM:
                self._unify(types.DYN, target)
            elif not (target.is_dyn or target.kind is Kind.ERROR):
                self._report(node, f"type '{target}' does not support field selection")
            kind = types.DYN
        kind = types.substitute(self.bindings, kind)
        return types.optional_of(kind) if wrapped or optional else kind

    def _call(self, node: Call) -> Node:
        if node.function == "_?._":
            return self._optional_select(node)
        args = tuple(self.check(arg) for arg in node.args)
        if node.target is None:
            return self._resolved(Call(node.id, node.function.removeprefix("."), None, args), node)
        prefix = _qualified_name(node.target)
        if prefix is not None and f"{prefix.removeprefix('.')}.{node.function}" in self._functions:
            name = f"{prefix.removeprefix('.')}.{node.function}"
            return self._resolved(Call(node.id, name, None, args), node)
        target = self.check(node.target)
        return self._resolved(Call(node.id, node.function, target, args), node)

    def _optional_select(self, node: Call) -> Node:
        operand, field = node.args
        if not isinstance(field, Literal) or not isinstance(
            field.value, str
        ):  # pragma: no cover - the parsers do not
            raise UncertainError("an optional selection without a field name")
        operand = self.check(operand)
        self.check(field)
        kind = self._field_type(node, operand, field.value, optional=True)
        self.overloads[node.id] = ("select_optional_field",)
        return self._set(Call(node.id, node.function, None, (operand, field)), kind)

    def _resolved(self, node: Call, original: Call) -> Node:
        overloads = self._functions.get(node.function)
        if overloads is None:
            self._report(original, f"undeclared reference to '{node.function}' (in container '')")
            return self._set(node, types.ERROR)
        operands = node.args if node.target is None else (node.target, *node.args)
        if node.function in ("_&&_", "_||_"):
            return self._logical(node, operands)
        result = self._overload(node, overloads, operands)
        if result is None:
            described = [
                str(types.substitute(self.bindings, self.types[o.id], free_to_dyn=True)) for o in operands
            ]
            signature = f"({', '.join(described)})"
            if node.target is not None:
                signature = f"{described[0]}.({', '.join(described[1:])})"
            self._report(
                original, f"found no matching overload for '{node.function}' applied to '{signature}'"
            )
        return self._set(node, result or types.ERROR)

    def _logical(self, node: Call, operands: tuple[Node, ...]) -> Node:
        matching = True
        for operand in operands:
            kind = self.types[operand.id]
            if not self._unify(kind, types.BOOL):
                self._report(
                    operand, f"expected type 'bool' but found '{types.substitute(self.bindings, kind)}'"
                )
                matching = False
        self.overloads[node.id] = ("logical_and" if node.function == "_&&_" else "logical_or",)
        return self._set(node, types.BOOL if matching else types.ERROR)

    def _overload(
        self, node: Call, overloads: tuple[Overload, ...], operands: tuple[Node, ...]
    ) -> Type | None:
        given = tuple(self.types[operand.id] for operand in operands)
        result: Type | None = None
        matched: list[str] = []
        for overload in overloads:
            if overload.member != (node.target is not None):
                continue
            fresh: types.Bindings = {name: self._fresh() for name in sorted(overload.type_params)}
            wanted = tuple(types.substitute(fresh, kind) for kind in overload.args)
            bindings = types.unify_all(self.bindings, given, wanted)
            if bindings is None:
                continue
            self.bindings = bindings
            matched.append(overload.id)
            kind = types.substitute(self.bindings, types.substitute(fresh, overload.result))
            if result is None:
                result = kind
            elif not result.is_dyn and kind != result:
                result = types.DYN
        self.overloads[node.id] = tuple(matched)
        return result

    def _list(self, node: ListLiteral) -> Node:
        elements = tuple(self.check(element) for element in node.elements)
        joined: Type | None = None
        for index, element in enumerate(elements):
            kind = self._unwrapped(element) if index in node.optional else self.types[element.id]
            joined = self._joined(joined, kind)
        return self._set(
            ListLiteral(node.id, elements, node.optional),
            types.list_of(self._fresh() if joined is None else joined),
        )

    def _map(self, node: MapLiteral) -> Node:
        key_type: Type | None = None
        value_type: Type | None = None
        entries = []
        for entry in node.entries:
            key = self.check(entry.key)
            key_type = self._joined(key_type, self.types[key.id])
            value = self.check(entry.value)
            kind = self._unwrapped(value) if entry.optional else self.types[value.id]
            value_type = self._joined(value_type, kind)
            entries.append(type(entry)(entry.id, key, value, entry.optional))
        if key_type is None or value_type is None:
            key_type, value_type = self._fresh(), self._fresh()
        return self._set(MapLiteral(node.id, tuple(entries)), types.map_of(key_type, value_type))

    def _unwrapped(self, node: Node) -> Type:
        kind, wrapped = types.unwrap_optional(self.types[node.id])
        if not wrapped and not kind.is_dyn:
            self._report(node, f"expected type '{types.optional_of(kind)}' but found '{kind}'")
        return kind

    def _joined(self, previous: Type | None, current: Type) -> Type:
        if previous is None:
            return current
        if self._unify(previous, current):
            return types.most_general(previous, current)
        # Mixed literals are refused later, by a validator, which lets the arguments of `format` pass.
        return types.DYN

    def _comprehension(self, node: Comprehension) -> Node:
        over = self.check(node.range)
        initial = self.check(node.initial)
        accumulated = self.types[initial.id]
        first, second = self._iteration_types(over, two=bool(node.variable2))
        self._scopes.append({node.accumulator: accumulated})
        variables = {node.variable: first}
        if node.variable2:
            variables[node.variable2] = second
        self._scopes.append(variables)
        condition = self.check(node.condition)
        self._assert(condition, types.BOOL)
        step = self.check(node.step)
        self._assert(step, accumulated)
        self._scopes.pop()
        result = self.check(node.result)
        self._scopes.pop()
        checked = Comprehension(
            node.id, node.variable, node.variable2, over, node.accumulator, initial, condition, step, result
        )
        return self._set(checked, self._type(result))

    def _iteration_types(self, over: Node, *, two: bool) -> tuple[Type, Type]:
        kind = self._type(over)
        if kind.kind is Kind.LIST:
            return (types.INT, kind.params[0]) if two else (kind.params[0], types.ERROR)
        if kind.kind is Kind.MAP:
            return kind.params[0], kind.params[1]
        if kind.kind in (Kind.DYN, Kind.ERROR, Kind.PARAM):
            # Nothing more specific may be assumed of it later.
            self._unify(types.DYN, kind)
            return types.DYN, types.DYN
        message = (
            f"expression of type '{kind}' cannot be range of a comprehension (must be list, map, or dynamic)"
        )
        self._report(over, message)
        return types.ERROR, types.ERROR

    def _assert(self, node: Node, wanted: Type) -> None:
        if not self._unify(wanted, self.types[node.id]):
            found = [types.substitute(self.bindings, kind) for kind in (wanted, self.types[node.id])]
            self._report(node, f"expected type '{found[0]}' but found '{found[1]}'")


def _literal_type(value: object) -> Type:
    if value is None:
        return types.NULL
    return {
        bool: types.BOOL,
        int: types.INT,
        Uint: types.UINT,
        float: types.DOUBLE,
        str: types.STRING,
        bytes: types.BYTES,
    }[type(value)]


def _qualified_name(node: Node) -> str | None:
    """Return `a.b.c` of a chain of plain selections that starts with a name, else None."""
    parts: list[str] = []
    while isinstance(node, Select) and not node.test_only:
        parts.append(node.field)
        node = node.operand
    if not isinstance(node, Ident):
        return None
    parts.append(node.name)
    return ".".join(reversed(parts))
