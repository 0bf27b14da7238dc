"""What a call costs at run time, by the API server's rules. Close, not exact: see `evaluator`."""

import math
from typing import Any

from gpupolicy.adapters.cel.syntax import UncertainError
from gpupolicy.adapters.cel.values import MapValue, NamedFormat, size, type_name

__all__ = ["LIMIT", "QUADRATIC", "WHOLE_LISTS", "call_cost", "check_walk"]

LIMIT = 1_000_000
"""Cost at which the scheduler stops an evaluation, and the API server refuses an expression by its estimate."""

_TRAVERSAL = 0.1
_REGEX = 0.25
_ONE_PASS = frozenset(
    {"url", "lowerAscii", "upperAscii", "substring", "trim", "cidr", "isIP", "isCIDR", "startsWith"}
)
_ONE_PASS |= {"quantity", "isQuantity", "semver", "isSemver", "endsWith", "strings.quote", "format", "bytes"}
_TWO_PASSES = frozenset({"replace", "split", "ip.isCanonical"})
WHOLE_LISTS = frozenset({"isSorted", "sum", "max", "min", "indexOf", "lastIndexOf", "includes"})
_COMPARED = frozenset({"_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_"})
_SETS = frozenset({"sets.contains", "sets.intersects", "sets.equivalent"})
_FORMAT_REGEX_LENGTH = 60

QUADRATIC = _SETS | {"distinct", "sort", "@sortByAssociatedKeys", "matches", "find", "findAll"}
"""Functions that are charged before they run: they may take so long that nobody sees the end."""


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
    if function in WHOLE_LISTS:
        return _traversal(args[0])
    if overload_id in ("add_string", "add_bytes"):
        return _scaled(_size(args[0]) + _size(args[1]))
    if overload_id == "in_list":
        return _size(args[1])
    return _uncommon(function, args, result)


def check_walk(value: Any) -> None:
    """Allow one of `WHOLE_LISTS` to be called on a list of lists.

    The API server's estimate looks at the outer list only, the scheduler counts all that is in it.

    Raises:
        UncertainError: when that may be too much.
    """
    if type(value) is list and any(type(part) is list or isinstance(part, MapValue) for part in value):
        cost = _traversal(value)
        if cost > LIMIT // 2:
            raise UncertainError(f"going through a list costs about {cost}")


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


def _traversal(value: Any, known: dict[int, int] | None = None) -> int:
    # Parts may be shared, so that few bytes of expression are many parts.
    known = {} if known is None else known
    if type(value) in (str, bytes):
        return int(len(value) * _TRAVERSAL)
    if type(value) is list:
        if id(value) not in known:
            known[id(value)] = sum(_traversal(part, known) for part in value)
        return known[id(value)]
    if isinstance(value, MapValue):
        if id(value) not in known:
            known[id(value)] = sum(_traversal(k, known) + _traversal(v, known) for k, v in value.items())
        return known[id(value)]
    return 1
