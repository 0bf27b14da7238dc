"""What a call costs at run time, by the API server's rules. Close, not exact: see `evaluator`."""

import math
from typing import Any

from gpupolicy.adapters.cel.values import MapValue, NamedFormat, size, type_name

__all__ = ["LIMIT", "call_cost"]

LIMIT = 1_000_000
"""Cost at which the scheduler stops an evaluation, and the API server refuses an expression by its estimate."""

_TRAVERSAL = 0.1
_REGEX = 0.25
_ONE_PASS = frozenset(
    {"url", "lowerAscii", "upperAscii", "substring", "trim", "cidr", "isIP", "isCIDR", "startsWith"}
)
_ONE_PASS |= {"quantity", "isQuantity", "semver", "isSemver", "endsWith", "strings.quote", "format", "bytes"}
_TWO_PASSES = frozenset({"replace", "split", "ip.isCanonical"})
_WHOLE_LISTS = frozenset({"isSorted", "sum", "max", "min", "indexOf", "lastIndexOf", "includes"})
_COMPARED = frozenset({"_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_"})
_SETS = frozenset({"sets.contains", "sets.intersects", "sets.equivalent"})
_FORMAT_REGEX_LENGTH = 60


def call_cost(function: str, overload_id: str, args: list[Any], result: Any) -> int:
    """Return the cost of one call with these arguments."""
    if function in _COMPARED:
        if type_name(args[0]).startswith(("kubernetes.", "net.")):
            return 1
        return _scaled(min(_size(args[0]), _size(args[1])))
    if function in _ONE_PASS:
        return _scaled(_size(args[1] if function in ("startsWith", "endsWith") else args[0]))
    if function in _TWO_PASSES:
        return _scaled(2 * _size(args[0]))
    if function in _WHOLE_LISTS:
        return _traversal(args[0])
    if overload_id in ("add_string", "add_bytes"):
        return _scaled(_size(args[0]) + _size(args[1]))
    if overload_id == "in_list":
        return _size(args[1])
    return _uncommon(function, args, result)


def _uncommon(function: str, args: list[Any], result: Any) -> int:
    if function in ("matches", "find", "findAll"):
        return _scaled(1 + _size(args[0])) * math.ceil(_size(args[1]) * _REGEX)
    if function == "contains":
        return _scaled(_size(args[0])) * _scaled(_size(args[1]))
    if function == "join":
        return _scaled(2 * _size(result))
    if function == "validate" and isinstance(args[0], NamedFormat):
        return _scaled(1 + _size(args[1])) * math.ceil(_FORMAT_REGEX_LENGTH * _REGEX)
    if function in _SETS:
        return 1 + _size(args[0]) * _size(args[1]) * (2 if function == "sets.equivalent" else 1)
    if function in ("slice", "lists.range", "reverse"):
        return 11 + _size(result)
    if function in ("sort", "@sortByAssociatedKeys", "distinct"):
        return 11 + 2 * _size(args[-1]) ** 2
    if function == "flatten":
        depth = args[1] if len(args) > 1 else 1
        return 11 + _size(args[0]) * max(depth, 1)
    return 1


def _size(value: Any) -> int:
    found = size(value)
    return 1 if found is None else found


def _scaled(length: int) -> int:
    return math.ceil(length * _TRAVERSAL)


def _traversal(value: Any) -> int:
    if type(value) in (str, bytes):
        return int(len(value) * _TRAVERSAL)
    if type(value) is list:
        return sum(_traversal(part) for part in value)
    if isinstance(value, MapValue):
        return sum(_traversal(key) + _traversal(part) for key, part in value.items())
    return 1
