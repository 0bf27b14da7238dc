"""What programs are made of: the frame of an evaluation, and the steps that several kinds of nodes share.

A step is a function of the frame. Steps raise `CelError` for what `&&`, `||` and folds may absorb, `AbortedError` and
`CostExceededError` for what ends the evaluation, and `UncertainError` where the outcome on a server is not known.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from gpupolicy.adapters.cel.declarations import Overload
from gpupolicy.adapters.cel.runtime_cost import LIMIT
from gpupolicy.adapters.cel.syntax import Uint, UncertainError
from gpupolicy.adapters.cel.values import (
    ABSENT,
    INT64_MAX,
    INT64_MIN,
    UINT64_MAX,
    UNHASHABLE,
    AbortedError,
    CelError,
    MapValue,
    Optional,
    Unknown,
    fits,
    index,
    no_overload,
    type_name,
    unhashable,
)

__all__ = [
    "COUNTED_BLINDLY",
    "HASHED",
    "ORDERS",
    "CostExceededError",
    "Frame",
    "Lazy",
    "Order",
    "Step",
    "attempt",
    "dispatched",
    "guarded",
    "indexed",
    "iterated",
    "list_or_abort",
    "member_test",
    "mismatch",
    "optionally_indexed",
    "present",
    "qualifier",
    "variable",
]


class CostExceededError(Exception):
    """The evaluation was stopped because it cost too much."""


@dataclass(slots=True)
class Frame:
    """What one evaluation knows: the device and the variables of the folds it is in."""

    device: MapValue
    variables: dict[str, Any] = field(default_factory=dict)
    cost: int = 0

    def charge(self, cost: int) -> None:
        """Add to the cost.

        Raises:
            CostExceededError: when it is certainly beyond what the scheduler allows.
        """
        self.cost += cost
        if self.cost > 2 * LIMIT:
            raise CostExceededError


Step = Callable[[Frame], Any]
Order = Callable[[list[tuple[Any, Any]]], list[tuple[Any, Any]]]


def _by_key(entries: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    return sorted(entries, key=lambda entry: (type(entry[0]).__name__, entry[0]))


ORDERS: tuple[Order, ...] = (
    lambda entries: entries[::-1],
    _by_key,
    lambda entries: _by_key(entries)[::-1],
)
"""Orders in which maps are gone through to see whether it matters."""


def guarded(overload: Overload, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function behind a check of its arguments."""
    kinds = overload.args
    if not kinds:
        return function

    def run(*args: Any) -> Any:
        for kind, arg in zip(kinds, args, strict=True):
            if not fits(kind, arg):
                raise mismatch(arg)
        return function(*args)

    return run


def dispatched(candidates: tuple[tuple[Overload, Callable[..., Any]], ...]) -> Callable[..., Any]:
    """Return the first function whose arguments fit, at the time of the call."""

    def run(*args: Any) -> Any:
        for overload, function in candidates:
            if all(fits(kind, arg) for kind, arg in zip(overload.args, args, strict=True)):
                return function(*args)
        raise mismatch(*args)

    return run


class Lazy:
    """A bound value, computed when it is first used, or never."""

    __slots__ = ("_outcome", "_step")

    def __init__(self, step: Step) -> None:
        self._step: Step | None = step
        self._outcome: Any = None

    def get(self, frame: Frame) -> Any:
        """Return the value; raise its error each time."""
        if self._step is not None:
            self._outcome = attempt(self._step, frame)
            self._step = None
        if isinstance(self._outcome, CelError):
            raise self._outcome
        return self._outcome


def variable(slot: str, kind: str) -> Step:
    """Return the step that reads a variable: `plain`, `lazy` (of a bind) or `fold` (may hold an error)."""
    if kind == "plain":
        return lambda frame: frame.variables[slot]
    if kind == "lazy":
        return lambda frame: frame.variables[slot].get(frame)

    def folded(frame: Frame) -> Any:
        value = frame.variables[slot]
        if isinstance(value, CelError):
            raise value
        return value

    return folded


# The cost of these is counted by looking into their last operand, whatever it is: what should be a list and is an
# error takes the whole evaluation down.
COUNTED_BLINDLY: Final = ("list_distinct", "_sort", "_sortByAssociatedKeys", "list_flatten_int")


def list_or_abort(step: Step, kind: type) -> Step:
    """Return the step, which ends the evaluation when it fails or gives anything else than a `kind`."""

    def run(frame: Frame) -> Any:
        try:
            value = step(frame)
        except CelError as error:
            raise AbortedError(f"internal error: {error}") from error
        if type(value) is not kind:
            raise AbortedError(f"internal error: {type_name(value)} is not a {kind.__name__}")
        return value

    return run


def qualifier(key: Any) -> Any:
    """Return the key if it can stand between index brackets."""
    if type(key) not in _QUALIFIERS:
        if type(key) is Unknown:
            raise UncertainError("the wording of a validation message")
        raise CelError(f"invalid qualifier type: {type_name(key)}")
    return key


def attempt(step: Step, frame: Frame) -> Any:
    """Return what the step gives, its error as a value."""
    try:
        return step(frame)
    except CelError as error:
        return error


def iterated(value: Any, *, two: bool, order: Order | None) -> Any:
    """Return what a fold goes through: elements or keys, or with two variables pairs."""
    if type(value) is list:
        return list(enumerate(value)) if two else value
    if isinstance(value, MapValue):
        entries = value.items() if order is None else order(value.items())
        return entries if two else [key for key, _ in entries]
    raise CelError(f"got '{type_name(value)}', expected iterable type")


def indexed(container: Any, key: Any) -> Any:
    """Return what is at a key; nothing there is an error."""
    if type(container) is Optional:
        return optionally_indexed(container, key)
    value = index(container, key)
    if value is ABSENT:
        if type(container) is list:
            raise CelError(f"index out of bounds: {key}")
        raise CelError(f"no such key: {key}")
    return value


def optionally_indexed(container: Any, key: Any) -> Optional:
    """Return what is at a key as an optional; of an absent container nothing."""
    if type(container) is Optional:
        if not container.present:
            return container
        container = container.value
    return Optional(index(container, key))


def present(container: Any, key: str) -> bool:
    """Return what `has(container.key)` is."""
    if type(container) is Optional:
        return container.present and present(container.value, key)
    if type(container) is list:
        raise CelError("unsupported index type 'string' in list")
    return index(container, key) is not ABSENT


def mismatch(*values: Any) -> Exception:
    """Return the error of an operation that these values do not have."""
    if any(type(value) is Unknown for value in values):
        return UncertainError("the wording of a validation message")
    return no_overload()


_QUALIFIERS = frozenset({str, bool, int, Uint, float})
HASHED: Final = frozenset({str, bool, int, Uint, float})


def _hash_tags(value: Any) -> list[tuple[type, object]]:
    """Return the value as each type under which the set knows it."""
    tags: list[tuple[type, object]] = [(type(value), value)]
    if type(value) is float:
        if math.isfinite(value) and value == int(value) and INT64_MIN < value < INT64_MAX:
            tags.append((int, int(value)))
        if math.isfinite(value) and value == int(value) and 0 <= value < UINT64_MAX:
            tags.append((Uint, Uint(int(value))))
    elif type(value) is int or type(value) is Uint:
        tags.append((float, float(value)))
        other = Uint if type(value) is int else int
        if 0 <= value <= (UINT64_MAX if other is Uint else INT64_MAX):
            tags.append((other, other(int(value))))
    return tags


def member_test(step: Step, values: list[Any]) -> Step:
    """Return `step in values` for a list of literals, of which upstream makes a hash set."""
    members = frozenset(tag for value in values for tag in _hash_tags(value))

    def run(frame: Frame) -> bool:
        value = step(frame)
        if type(value) in HASHED:
            return (type(value), value) in members
        if type(value) in UNHASHABLE:
            raise unhashable(value)
        return False

    return run
