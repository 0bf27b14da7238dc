"""Turn a checked expression into a Python function of a device, with the scheduler's semantics.

Every node becomes a closure once; evaluation is then nothing but calls. Errors are exceptions, which `&&`, `||` and
the folds of `all` and `exists` catch as upstream's error values are absorbed.

Two things upstream does at run time are done only when asked for, since they slow down the rest: counting the cost
(`counting`), and going through maps in another order (`order`), because upstream's order is random and a verdict
that depends on it is none.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpupolicy.adapters.cel import (
    functions_formats,
    functions_kubernetes,
    functions_lists,
    functions_standard,
    functions_strings,
    functions_urls,
    regex,
)
from gpupolicy.adapters.cel.checker import Checked, type_value_name
from gpupolicy.adapters.cel.declarations import DEVICE, Overload, functions
from gpupolicy.adapters.cel.runtime import (
    COUNTED_BLINDLY,
    HASHED,
    Frame,
    Lazy,
    Order,
    Step,
    attempt,
    dispatched,
    guarded,
    indexed,
    iterated,
    list_or_abort,
    member_test,
    mismatch,
    optionally_indexed,
    present,
    qualifier,
    variable,
)
from gpupolicy.adapters.cel.runtime_cost import QUADRATIC, WHOLE_LISTS, call_cost, check_walk
from gpupolicy.adapters.cel.syntax import (
    Call,
    Comprehension,
    Ident,
    ListLiteral,
    Literal,
    MapLiteral,
    Node,
    Select,
    UncertainError,
)
from gpupolicy.adapters.cel.types import Kind
from gpupolicy.adapters.cel.values import (
    ABSENT,
    UNHASHABLE,
    CelError,
    MapValue,
    Optional,
    TypeValue,
    equal,
    no_overload,
    type_name,
    unhashable,
)

__all__ = ["Program", "compile_program"]

_INCLUDES_LIMIT = 48


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled expression."""

    run: Step
    ordered: bool
    """Whether the result may depend on the order in which a map is gone through."""


_BASE = (
    functions_standard.IMPLEMENTATIONS
    | functions_lists.IMPLEMENTATIONS
    | functions_strings.IMPLEMENTATIONS
    | functions_kubernetes.IMPLEMENTATIONS
    | functions_formats.IMPLEMENTATIONS
    | functions_urls.IMPLEMENTATIONS
)


def compile_program(checked: Checked, *, counting: bool = False, order: Order | None = None) -> Program:
    """Return the program of an expression.

    Raises:
        CelError: when a conversion of a literal fails; upstream refuses the expression then.
        UncertainError: when it calls something that is not modelled.
    """
    compiler = _Compiler(checked, counting=counting, order=order)
    return Program(compiler.step(checked.root), compiler.ordered)


class _Compiler:
    def __init__(self, checked: Checked, *, counting: bool, order: Order | None) -> None:
        self.ordered = False
        self._checked = checked
        self._counting = counting
        self._order = order
        self._functions = functions(checked.environment)
        self._implementations = dict(_BASE)
        if checked.environment.minor < 37:
            self._implementations["list_includes_dyn_dyn"] = functions_lists.includes(_INCLUDES_LIMIT)
            self._implementations |= functions_strings.UNTIL_36
        # Variable name -> (slot in the frame, is it a fold's own variable); the innermost last.
        self._scopes: list[dict[str, tuple[str, str]]] = []
        # Before 1.37 a variable or a ternary gave out an optional by taking it apart and putting it together again, and
        # that failed for objects of Kubernetes' own types.
        self._rewraps = checked.environment.minor < 37
        self._slots = 0
        self._constants: dict[int, object] = {}

    def step(self, node: Node) -> Step:
        match node:
            case Literal():
                return self._constant(node, node.value)
            case Ident():
                return self._counted(self._ident(node), 1)
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
            case _:
                raise UncertainError("message literals are not modelled")

    def _constant(self, node: Node, value: object) -> Step:
        self._constants[node.id] = value
        return lambda _: value

    def _counted(self, step: Step, cost: int) -> Step:
        if not self._counting:
            return step

        def counted(frame: Frame) -> Any:
            frame.charge(cost)
            return step(frame)

        return counted

    def _ident(self, node: Ident) -> Step:
        if not node.name.startswith("."):
            for scope in reversed(self._scopes):
                if node.name in scope:
                    if self._checked.types[node.id].kind is Kind.TYPE:
                        raise CelError(f"reference to undefined type: {node.name}")
                    return self._rewrapped(variable(*scope[node.name]))
        if node.name.removeprefix(".") == "device":
            return lambda frame: frame.device
        name = type_value_name(node.name)
        if name is None:
            raise UncertainError(f"the name {node.name}")
        if name == DEVICE.name:
            raise CelError(f"reference to undefined type: {name}")
        return self._constant(node, TypeValue(name))

    def _select(self, node: Select) -> Step:
        operand = self.step(node.operand)
        key = node.field
        if node.test_only:
            return lambda frame: present(operand(frame), key)

        def select(frame: Frame) -> Any:
            container = operand(frame)
            if isinstance(container, MapValue):
                value = container.find(key)
                if value is ABSENT:
                    raise CelError(f"no such key: {key}")
                return value
            return indexed(container, key)

        return self._counted(select, 1)

    # Calls.

    def _call(self, node: Call) -> Step:
        special = _SPECIAL.get(node.function)
        if special is not None:
            return special(self, node)
        operands = node.args if node.target is None else (node.target, *node.args)
        steps = tuple(self.step(operand) for operand in operands)
        is_list = self._checked.overloads[node.id] == ("in_list",)
        if is_list and operands[1].id in self._constants:
            member = self._membership(node, steps[0], self._constants[operands[1].id])
            if member is not None:
                return member
        if node.function in _PATTERNED and len(operands) > 1:
            self._check_pattern(operands[1])
        apply = self._applied(node)
        if node.function in _CONVERSIONS and len(operands) == 1 and operands[0].id in self._constants:
            return self._constant(node, apply(self._constants[operands[0].id]))
        return self._invoked(node, steps, apply)

    def _invoked(self, node: Call, steps: tuple[Step, ...], apply: Callable[..., Any]) -> Step:
        overload_id = self._checked.overloads[node.id][0]
        if len(self._checked.overloads[node.id]) == 1 and overload_id.endswith(COUNTED_BLINDLY):
            kind = int if overload_id == "list_flatten_int" else list
            steps = (*steps[:-1], list_or_abort(steps[-1], kind))
        if self._counting:

            def counted(frame: Frame) -> Any:
                args = [step(frame) for step in steps]
                if node.function in QUADRATIC:
                    frame.charge(call_cost(node.function, overload_id, args, None))
                    return apply(*args)
                result = apply(*args)
                frame.charge(call_cost(node.function, overload_id, args, result))
                return result

            return counted
        if node.function in WHOLE_LISTS:
            return _walking(steps, apply)
        if len(steps) == 1:
            (only,) = steps
            return lambda frame: apply(only(frame))
        if len(steps) == 2:
            first, second = steps
            return lambda frame: apply(first(frame), second(frame))
        return lambda frame: apply(*[step(frame) for step in steps])

    def _check_pattern(self, pattern: Node) -> None:
        # A literal pattern is compiled when the program is made, and refused there.
        value = self._constants.get(pattern.id)
        if isinstance(value, str) and not regex.valid(value):
            raise CelError(f"error parsing regexp: {value}")

    def _membership(self, node: Call, step: Step, values: Any) -> Step | None:
        """Return the test for a literal list: upstream makes a hash set of it, and of an empty one nothing."""
        if type(values) is not list or any(type(value) not in HASHED for value in values):
            return None
        if not values:
            return self._constant(node, False)
        return member_test(step, values)

    def _applied(self, node: Call) -> Callable[..., Any]:
        """Return the function that picks the overload for the arguments and calls it."""
        declared = {overload.id: overload for overload in self._functions[node.function]}
        candidates: list[tuple[Overload, Callable[..., Any]]] = []
        for overload_id in self._checked.overloads[node.id]:
            implementation = self._implementations.get(overload_id)
            if implementation is None:
                raise UncertainError(f"the function {node.function} is not modelled")
            candidates.append((declared[overload_id], implementation))
        return guarded(*candidates[0]) if len(candidates) == 1 else dispatched(tuple(candidates))

    def logical(self, node: Call, *, decisive: bool) -> Step:
        """Return `&&` (decisive False) or `||` (decisive True) over all terms of a chain."""
        steps = tuple(self.step(term) for term in _terms(node))

        def run(frame: Frame) -> bool:
            failure: Exception | None = None
            for step in steps:
                try:
                    value = step(frame)
                except CelError as error:
                    failure = failure or error
                    continue
                if value is decisive:
                    return bool(decisive)
                if type(value) is not bool:
                    failure = failure or mismatch(value)
            if failure is not None:
                raise failure
            return not decisive

        return run

    def not_(self, node: Call) -> Step:
        operand = self.step(node.args[0])

        def run(frame: Frame) -> bool:
            value = operand(frame)
            if type(value) is not bool:
                raise mismatch(value)
            return not value

        return self._counted(run, 1)

    def conditional(self, node: Call) -> Step:
        condition, then, otherwise = (self.step(arg) for arg in node.args)

        def run(frame: Frame) -> Any:
            value = condition(frame)
            if type(value) is not bool:
                raise mismatch(value)
            return then(frame) if value else otherwise(frame)

        return self._rewrapped(run)

    def _rewrapped(self, step: Step) -> Step:
        if not self._rewraps:
            return step

        def run(frame: Frame) -> Any:
            value = step(frame)
            if type(value) is Optional and value.present and type_name(value.value) in _NOT_REWRAPPED:
                return Optional(CelError("unsupported conversion to ref.Val"))
            return value

        return run

    def not_strictly_false(self, node: Call) -> Step:
        operand = self.step(node.args[0])

        def run(frame: Frame) -> bool:
            try:
                value = operand(frame)
            except CelError:
                return True
            return value is not False

        return run

    def equality(self, node: Call, *, negated: bool) -> Step:
        left, right = (self.step(arg) for arg in node.args)

        def run(frame: Frame) -> bool:
            first, second = left(frame), right(frame)
            if self._counting:
                frame.charge(call_cost(node.function, "equals", [first, second], result=True))
            if not negated:
                return equal(first, second)
            try:
                return not equal(first, second)
            except CelError:
                # Upstream only asks whether the answer was "equal".
                return True

        return run

    def index(self, node: Call) -> Step:
        container, key = (self.step(arg) for arg in node.args)
        self._check_key(node.args[1])

        def run(frame: Frame) -> Any:
            target = container(frame)
            position = key(frame)
            if type(target) is Optional and not target.present:
                return target
            return indexed(target, qualifier(position))

        return self._counted(run, 1)

    def optional_index(self, node: Call) -> Step:
        container, key = (self.step(arg) for arg in node.args)
        self._check_key(node.args[1])

        def run(frame: Frame) -> Any:
            target = container(frame)
            position = key(frame)
            if type(target) is Optional and not target.present:
                return target
            return optionally_indexed(target, qualifier(position))

        return self._counted(run, 1)

    def _check_key(self, key: Node) -> None:
        # A literal key is looked at when the program is made, and refused there.
        if key.id in self._constants:
            qualifier(self._constants[key.id])

    def or_value(self, node: Call, *, unwrap: bool) -> Step:
        if node.target is None:  # pragma: no cover - the checker asks for it
            raise UncertainError(node.function)
        target, other = self.step(node.target), self.step(node.args[0])

        def run(frame: Frame) -> Any:
            optional = target(frame)
            if type(optional) is not Optional:
                raise no_overload()
            if not optional.present:
                return other(frame)
            return optional.value if unwrap else optional

        return run

    # Literals.

    def _list(self, node: ListLiteral) -> Step:
        steps = tuple(self.step(element) for element in node.elements)
        optional = node.optional
        if not optional and all(element.id in self._constants for element in node.elements):
            return self._constant(node, [self._constants[element.id] for element in node.elements])

        def run(frame: Frame) -> list[Any]:
            values = []
            for position, step in enumerate(steps):
                value = step(frame)
                if position in optional:
                    if type(value) is not Optional:
                        raise CelError(
                            f"cannot initialize optional list element from non-optional value {value}"
                        )
                    if not value.present:
                        continue
                    value = value.value
                values.append(value)
            return values

        return self._counted(run, 10)

    def _map(self, node: MapLiteral) -> Step:
        steps = tuple((self.step(e.key), self.step(e.value), e.optional) for e in node.entries)
        parts = [part.id for entry in node.entries for part in (entry.key, entry.value)]
        if all(part in self._constants for part in parts) and not any(
            entry.optional for entry in node.entries
        ):
            keys, values = ([self._constants[part] for part in half] for half in (parts[::2], parts[1::2]))
            if any(type(key) in UNHASHABLE for key in keys):
                # It is hashed while the program is made, and that ends the server's worker.
                raise CelError("hash of unhashable type")
            return self._constant(node, MapValue(zip(keys, values, strict=True)))

        def run(frame: Frame) -> MapValue:
            entries = []
            for key_step, value_step, optional in steps:
                key, value = key_step(frame), value_step(frame)
                if type(key) in UNHASHABLE:
                    raise unhashable(key)
                if optional:
                    if type(value) is not Optional:
                        raise CelError(f"cannot initialize optional entry '{key}' from non-optional value")
                    value = value.value
                entries.append((key, value))
            return MapValue(entries)

        return self._counted(run, 30)

    # Folds.

    def _comprehension(self, node: Comprehension) -> Step:
        if isinstance(node.range, ListLiteral) and not node.range.elements and node.variable == "#unused":
            return self._bind(node)
        over = self.step(node.range)
        initial = self.step(node.initial)
        accumulator = self._slot()
        names = [(node.variable, self._slot())]
        if node.variable2:
            names.append((node.variable2, self._slot()))
        self._scopes.append({node.accumulator: (accumulator, "fold")})
        self._scopes.append({name: (slot, "plain") for name, slot in names})
        condition, step = self.step(node.condition), self.step(node.step)
        self._scopes.pop()
        result = self.step(node.result)
        self._scopes.pop()
        slots = tuple(slot for _, slot in names)
        order = self._order
        if self._checked.types[node.range.id].kind is not Kind.LIST and not isinstance(node.initial, Literal):
            # `all`, `exists` and `exists_one` come to the same end in any order; what makes lists does not.
            self.ordered = True

        def run(frame: Frame) -> Any:
            values = iterated(over(frame), two=len(slots) > 1, order=order)
            variables = frame.variables
            variables[accumulator] = attempt(initial, frame)
            for value in values:
                if len(slots) > 1:
                    variables[slots[0]], variables[slots[1]] = value
                else:
                    variables[slots[0]] = value
                if not condition(frame):
                    break
                variables[accumulator] = attempt(step, frame)
            return result(frame)

        return run

    def _bind(self, node: Comprehension) -> Step:
        value = self.step(node.initial)
        slot = self._slot()
        self._scopes.append({node.accumulator: (slot, "lazy")})
        result = self.step(node.result)
        self._scopes.pop()

        def run(frame: Frame) -> Any:
            # Bound values are computed when they are first used, or never.
            frame.variables[slot] = Lazy(value)
            return result(frame)

        return self._counted(run, 10)

    def _slot(self) -> str:
        self._slots += 1
        return f"#{self._slots}"


def _terms(node: Call) -> list[Node]:
    """Return the operands of a chain of the same logical operator, from left to right."""
    terms: list[Node] = []
    stack: list[Node] = [node]
    while stack:
        current = stack.pop()
        if isinstance(current, Call) and current.function == node.function and current.target is None:
            stack.extend(reversed(current.args))
        else:
            terms.append(current)
    return terms


_NOT_REWRAPPED = frozenset(
    {
        "kubernetes.Semver",
        "kubernetes.Quantity",
        "kubernetes.URL",
        "kubernetes.NamedFormat",
        "net.IP",
        "net.CIDR",
    }
)
_PATTERNED = frozenset({"matches", "find", "findAll"})
_CONVERSIONS = frozenset(
    {"bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"}
)

_SPECIAL: dict[str, Callable[[_Compiler, Call], Step]] = {
    "_&&_": lambda compiler, node: compiler.logical(node, decisive=False),
    "_||_": lambda compiler, node: compiler.logical(node, decisive=True),
    "!_": _Compiler.not_,
    "_?_:_": _Compiler.conditional,
    "@not_strictly_false": _Compiler.not_strictly_false,
    "_==_": lambda compiler, node: compiler.equality(node, negated=False),
    "_!=_": lambda compiler, node: compiler.equality(node, negated=True),
    "_[_]": _Compiler.index,
    "_[?_]": _Compiler.optional_index,
    "_?._": _Compiler.optional_index,
    "or": lambda compiler, node: compiler.or_value(node, unwrap=False),
    "orValue": lambda compiler, node: compiler.or_value(node, unwrap=True),
}


def _walking(steps: tuple[Step, ...], apply: Callable[..., Any]) -> Step:
    def run(frame: Frame) -> Any:
        args = [step(frame) for step in steps]
        check_walk(args[0])
        return apply(*args)

    return run
