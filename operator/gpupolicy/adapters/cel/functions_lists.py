"""Functions on lists, sets and optional values. Overload id -> function."""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

from gpupolicy.adapters.cel.functions_standard import IMPLEMENTATIONS as STANDARD
from gpupolicy.adapters.cel.functions_standard import Implementation
from gpupolicy.adapters.cel.syntax import Uint, UncertainError
from gpupolicy.adapters.cel.values import (
    CelError,
    Duration,
    MapValue,
    Optional,
    check_room,
    compare,
    contains,
    equal,
    is_zero,
    no_overload,
)

__all__ = ["IMPLEMENTATIONS"]

_MAX_RANGE = 1_000_000
_COMPARABLE = ("int", "uint", "double", "bool", "duration", "timestamp", "string", "bytes")
_SORTABLE = (
    *("int", "uint", "double", "bool", "string", "bytes"),
    *("google.protobuf.Duration", "google.protobuf.Timestamp"),
)


def _same(left: object, right: object) -> bool:
    try:
        return equal(left, right)
    except CelError:
        return False


def _check_comparable(value: Any) -> None:
    # What is not a number is of a type that has an order, though it has none itself.
    if type(value) is not float:
        compare(value, value)


def _is_sorted(values: list[Any]) -> bool:
    previous: list[Any] = []
    for value in values:
        _check_comparable(value)
        if previous:
            try:
                if compare(previous[0], value) > 0:
                    return False
            except CelError:
                # Upstream only looks whether the comparison said "greater".
                pass
        previous = [value]
    return True


def _extreme(name: str, sign: int) -> Implementation:
    def pick(values: list[Any]) -> Any:
        if not values:
            raise CelError(f"{name} called on empty list")
        best = values[0]
        _check_comparable(best)
        for value in values[1:]:
            _check_comparable(value)
            try:
                if compare(best, value) == sign:
                    best = value
            except CelError:
                continue
        return best

    return pick


def _sum(zero: Any, add: Implementation) -> Implementation:
    def total(values: list[Any]) -> Any:
        result = zero
        for value in values:
            if type(value) is not type(zero):
                raise no_overload()
            result = add(result, value)
        return result

    return total


def _index_of(values: list[Any], wanted: Any) -> int:
    return next((i for i, value in enumerate(values) if _same(value, wanted)), -1)


def _last_index_of(values: list[Any], wanted: Any) -> int:
    return next((i for i in reversed(range(len(values))) if _same(values[i], wanted)), -1)


def includes(limit: int | None) -> Implementation:
    """Return `includes` for a release that looks at `limit` list entries only (None: at all)."""

    def function(target: Any, wanted: Any) -> bool:
        if type(target) is not list:
            return _same(target, wanted)
        for position, value in enumerate(target):
            if limit is not None and position >= limit:
                raise CelError(f"'includes' function cannot be applied to lists longer than {limit} values")
            if _same(value, wanted):
                return True
        return False

    return function


def _slice(values: list[Any], start: int, end: int) -> list[Any]:
    if start < 0 or end < 0:
        raise CelError(f"cannot slice({start}, {end}), negative indexes not supported")
    if start > end:
        raise CelError(f"cannot slice({start}, {end}), start index must be less than or equal to end index")
    if len(values) < end:
        raise CelError(f"cannot slice({start}, {end}), list is length {len(values)}")
    return values[start:end]


def _flatten(values: Any, depth: int = 1) -> list[Any]:
    if type(values) is not list:
        raise no_overload()
    if depth < 0:
        raise CelError("level must be non-negative")
    # One level at a time, so that a deep list does not become a deep stack.
    for _ in range(depth):
        if not any(type(value) is list for value in values):
            break
        check_room(sum(len(value) if type(value) is list else 1 for value in values))
        values = [part for value in values for part in (value if type(value) is list else (value,))]
    return list(values)


def _range(count: int) -> list[Any]:
    if count < 0:
        raise CelError(f"lists.range: size must be non-negative, got {count}")
    if count > _MAX_RANGE:
        raise CelError(f"lists.range: size {count} exceeds maximum allowed ({_MAX_RANGE})")
    return list(range(count))


def _distinct(values: list[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if not any(_same(value, other) for other in found):
            found.append(value)
    return found


def _sorted_by(values: Any, keys: Any) -> list[Any]:
    if type(values) is not list or type(keys) is not list:
        raise no_overload()
    if not values:
        return []
    try:
        _check_comparable(keys[0])
    except CelError as error:
        raise CelError("list elements must be comparable") from error
    if any(type(key) is not type(keys[0]) for key in keys):
        raise CelError("list elements must have the same type")

    def before(left: int, right: int) -> int:
        return compare(keys[left], keys[right])

    if any(type(key) is float and math.isnan(key) for key in keys):
        return [values[i] for i in _inserted(keys)]
    order = sorted(range(len(values)), key=functools.cmp_to_key(before))
    if len(values) > _INSERTION_SORTED and values is not keys:
        for left, right in itertools.pairwise(order):
            if before(left, right) == 0 and not _same(values[left], values[right]):
                raise UncertainError("the order of elements whose keys are equal")
    return [values[i] for i in order]


_INSERTION_SORTED = 12
"""Up to so many elements upstream sorts by insertion, which keeps the order of what is equal."""


def _inserted(keys: list[Any]) -> list[int]:
    """Return the order into which insertion brings keys of which some have no order."""
    if len(keys) > _INSERTION_SORTED:
        raise UncertainError("the order of many numbers of which some are none")
    order: list[int] = []
    for place in range(len(keys)):
        position = place
        while position > 0 and keys[place] < keys[order[position - 1]]:
            position -= 1
        order.insert(position, place)
    return order


def _sets_contains(values: list[Any], part: list[Any]) -> bool:
    return all(contains(values, value) for value in part)


def _sets_intersects(left: list[Any], right: list[Any]) -> bool:
    return any(contains(right, value) for value in left)


def _of_non_zero(value: object) -> Optional:
    return Optional() if is_zero(value) else Optional(value)


def _value(optional: Any) -> Any:
    if type(optional) is not Optional:
        raise no_overload()
    if not optional.present:
        raise CelError("optional.none() dereference")
    return optional.value


def _unwrap(values: list[Any]) -> list[Any]:
    if any(type(value) is not Optional for value in values):
        raise CelError("value is not optional")
    return [value.value for value in values if value.present]


def _insert_all(target: MapValue, entries: MapValue) -> MapValue:
    for key, value in entries.items():
        target = target.inserted(key, value)
    return target


def _per_type(
    pattern: str, names: tuple[str, ...], make: Callable[[str], Implementation]
) -> dict[str, Implementation]:
    return {pattern.format(name): make(name) for name in names}


IMPLEMENTATIONS: dict[str, Implementation] = {
    **_per_type("list_{0}_is_sorted_bool", _COMPARABLE, lambda _: _is_sorted),
    **_per_type("list_{0}_max_{0}", _COMPARABLE, lambda _: _extreme("max", -1)),
    **_per_type("list_{0}_min_{0}", _COMPARABLE, lambda _: _extreme("min", 1)),
    "list_int_sum_int": _sum(0, STANDARD["add_int64"]),
    "list_uint_sum_uint": _sum(Uint(0), STANDARD["add_uint64"]),
    "list_double_sum_double": _sum(0.0, STANDARD["add_double"]),
    "list_duration_sum_duration": _sum(Duration(0), STANDARD["add_duration_duration"]),
    "list_a_index_of_int": _index_of,
    "list_a_last_index_of_int": _last_index_of,
    "list_includes_dyn_dyn": includes(None),
    "list_slice": _slice,
    "list_flatten": _flatten,
    "list_flatten_int": _flatten,
    "lists_range": _range,
    "list_reverse": lambda values: values[::-1],
    "list_distinct": _distinct,
    **_per_type("list_{0}_sort", _SORTABLE, lambda _: lambda values: _sorted_by(values, values)),
    **_per_type("list_{0}_sortByAssociatedKeys", _SORTABLE, lambda _: _sorted_by),
    "list_sets_contains_list": _sets_contains,
    "list_sets_equivalent_list": lambda a, b: _sets_contains(a, b) and _sets_contains(b, a),
    "list_sets_intersects_list": _sets_intersects,
    "optional_of": Optional,
    "optional_ofNonZeroValue": _of_non_zero,
    "optional_none": Optional,
    "optional_value": _value,
    "optional_hasValue": lambda optional: optional.present,
    "list_last": lambda values: Optional(values[-1]) if values else Optional(),
    "list_first": lambda values: Optional(values[0]) if values else Optional(),
    "optional_unwrap": _unwrap,
    "optional_unwrapOpt": _unwrap,
    "@mapInsert_map_key_value": lambda target, key, value: target.inserted(key, value),
    "@mapInsert_map_map": _insert_all,
}
