"""What each function costs, by the sizes of its operands: the API server's rules, release by release.

A rule returns (cost of the call, size of its result or None). Functions without a rule cost 1.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from gpupolicy.adapters.cel.syntax import Literal, Node
from gpupolicy.adapters.cel.types import Kind, Type

__all__ = [
    "FREE",
    "ONE",
    "TRAVERSAL",
    "UNKNOWN",
    "Operand",
    "Range",
    "call",
    "plus",
    "scaled",
    "times",
    "union",
]

Range = tuple[int, int]
"""(least, most) of a size or a cost."""

MAX = 2**64 - 1
FREE: Range = (0, 0)
ONE: Range = (1, 1)
UNKNOWN: Range = (0, MAX)
TRAVERSAL = 0.1
_REGEX = 0.25
_LIST = 10
_LONGEST_FORMAT_REGEX = 128
_LONGEST_FORMAT = 64


def plus(*ranges: Range) -> Range:
    """Return the sum."""
    return min(sum(r[0] for r in ranges), MAX), min(sum(r[1] for r in ranges), MAX)


def times(left: Range, right: Range) -> Range:
    """Return the product."""
    return min(left[0] * right[0], MAX), min(left[1] * right[1], MAX)


def union(left: Range, right: Range) -> Range:
    """Return the range that holds both."""
    return min(left[0], right[0]), max(left[1], right[1])


def scaled(size: Range, factor: float) -> Range:
    """Return size * factor, rounded up, in the arithmetic of doubles."""
    return _scaled(size[0], factor), _scaled(size[1], factor)


def _scaled(size: int, factor: float) -> int:
    if size > 0 and factor > 0 and float(size) > float(MAX) / factor:
        return MAX
    return min(math.ceil(float(size) * factor), MAX)


@dataclass(frozen=True, slots=True)
class Operand:
    """An argument or receiver, as far as costs depend on it."""

    node: Node
    type: Type
    size_or_none: Range | None
    element_size: Range | None
    """Size of the elements, if the API limits it."""

    @property
    def size(self) -> Range:
        """Its size, (0, most) when nothing is known."""
        return self.size_or_none or UNKNOWN


Rule = tuple[Range, Range | None]


def call(function: str, overload_id: str, target: Operand | None, args: list[Operand], *, minor: int) -> Rule:
    """Return the cost of a call without that of its arguments, and the size of its result."""
    extension = _EXTENSION_RULES.get(overload_id)
    if extension is not None:
        return extension(target, args)
    if function in _LIST_FUNCTIONS and target is not None:
        return _list_function(function, target, minor), None
    kubernetes = _KUBERNETES_RULES.get(function)
    if kubernetes is not None:
        found = kubernetes(overload_id, target, args)
        if found is not None:
            return found
    return _standard(function, overload_id, target, args, minor)


# Kubernetes' library.

_LIST_FUNCTIONS = frozenset({"isSorted", "sum", "max", "min", "indexOf", "lastIndexOf", "includes"})
_INCLUDES_LIMIT = 48


def _list_function(function: str, target: Operand, minor: int) -> Range:
    if function == "includes" and minor < 37:
        return 0, _INCLUDES_LIMIT
    if target.type.params:
        element: Range = ONE
        if target.type.params[0].kind in (Kind.STRING, Kind.BYTES):
            element = plus(element, scaled(target.element_size or UNKNOWN, TRAVERSAL))
        return times(target.size, element)
    if function == "includes":
        return target.size
    return scaled(target.size, TRAVERSAL)


_KubernetesRule = Callable[[str, Operand | None, list[Operand]], Rule | None]


def _first_pass(keeps_size: bool, passes: int = 1) -> _KubernetesRule:
    def rule(_: str, __: Operand | None, args: list[Operand]) -> Rule | None:
        if not args:
            return None
        return scaled(args[0].size, passes * TRAVERSAL), args[0].size if keeps_size else None

    return rule


def _target_pass(_: str, target: Operand | None, __: list[Operand]) -> Rule | None:
    return None if target is None else (scaled(target.size, TRAVERSAL), target.size)


def _replace(_: str, target: Operand | None, args: list[Operand]) -> Rule | None:
    if target is None or len(args) < 2:
        return None
    size, old, new = target.size, args[0].size, args[1].size
    most_count, most_kept = _replaced(size[1], shortest=old[0], longer=new[1] > old[0])
    least_count, least_kept = _replaced(size[0], shortest=old[1], longer=old[1] > new[0])
    result = plus(times((least_count, most_count), new), (least_kept, most_kept))
    return scaled(size, 2 * TRAVERSAL), result


def _replaced(size: int, *, shortest: int, longer: bool) -> tuple[int, int]:
    """Return how often something is replaced, and how many characters are kept."""
    if shortest == 0:
        return min(size + 1, MAX), size
    if not longer:
        return 0, size
    return math.ceil(float(size) / float(shortest)), 0


def _split(_: str, target: Operand | None, args: list[Operand]) -> Rule | None:
    if target is None:
        return None
    most = target.size[1]
    if len(args) > 1 and isinstance(args[1].node, Literal) and type(args[1].node.value) is int:
        most = args[1].node.value % 2**64
    return scaled(target.size, 2 * TRAVERSAL), (0, most)


def _join(_: str, target: Operand | None, args: list[Operand]) -> Rule | None:
    if target is None:
        return None
    size: Range = FREE
    if target.type.params:
        size = times(target.size, target.element_size or UNKNOWN)
    if args:
        separators = (max(target.size[0] - 1, 0), max(target.size[1] - 1, 0))
        size = plus(size, times(args[0].size, separators))
    return scaled(size, TRAVERSAL), size


def _find(_: str, target: Operand | None, args: list[Operand]) -> Rule | None:
    if target is None or not args:
        return None
    return _regex(target.size, args[0].size), (0, target.size[1])


def _regex(text: Range, pattern: Range) -> Range:
    return times(scaled(plus(text, ONE), TRAVERSAL), scaled(pattern, _REGEX))


def _ip(overload_id: str, target: Operand | None, args: list[Operand]) -> Rule | None:
    return (
        (ONE, None) if overload_id == "cidr_ip" else _first_pass(keeps_size=False)(overload_id, target, args)
    )


_ADDRESS: Range = (4, 16)


def _contains_ip(overload_id: str, _: Operand | None, args: list[Operand]) -> Rule | None:
    cost = scaled(plus(_ADDRESS, _ADDRESS), TRAVERSAL)
    if overload_id == "cidr_contains_ip_string":
        cost = plus(cost, scaled(args[0].size, TRAVERSAL))
    return cost, None


def _contains_cidr(overload_id: str, _: Operand | None, args: list[Operand]) -> Rule | None:
    cost = plus(scaled(plus(_ADDRESS, _ADDRESS), TRAVERSAL), scaled(_ADDRESS, TRAVERSAL), ONE)
    if overload_id == "cidr_contains_cidr_string":
        cost = plus(cost, scaled(args[0].size, TRAVERSAL))
    return cost, None


def _validate(_: str, __: Operand | None, args: list[Operand]) -> Rule | None:
    return scaled(scaled(args[0].size, TRAVERSAL), _LONGEST_FORMAT_REGEX * _REGEX), None


def _equal(_: str, __: Operand | None, args: list[Operand]) -> Rule | None:
    left, right = args
    if left.type != right.type:
        return None
    if left.type.name in _CHEAP_EQUALITY:
        return ONE, None
    if left.type.name == "kubernetes.NamedFormat":
        return scaled((1, _LONGEST_FORMAT), TRAVERSAL), None
    if left.type.name == "kubernetes.URL":
        return scaled((1, right.size[1] if right.size_or_none is not None else 1), TRAVERSAL), None
    return None


_CHEAP_EQUALITY = frozenset({"net.IP", "net.CIDR", "kubernetes.Quantity", "kubernetes.Semver"})

_KUBERNETES_RULES: dict[str, _KubernetesRule] = {
    "url": _first_pass(keeps_size=True),
    **dict.fromkeys(("lowerAscii", "upperAscii", "substring", "trim"), _target_pass),
    "replace": _replace,
    "split": _split,
    "join": _join,
    "find": _find,
    "findAll": _find,
    **dict.fromkeys(
        ("cidr", "isIP", "isCIDR", "quantity", "isQuantity", "semver", "isSemver"),
        _first_pass(keeps_size=False),
    ),
    "ip": _ip,
    "ip.isCanonical": _first_pass(keeps_size=False, passes=2),
    "containsIP": _contains_ip,
    "containsCIDR": _contains_cidr,
    "validate": _validate,
    "_==_": _equal,
}

# Extensions of CEL that bring rules of their own.

_ExtensionRule = Callable[[Operand | None, list[Operand]], Rule]


def _allocated(factor: float, size: Range) -> Rule:
    return plus(scaled(size, factor), ONE, (_LIST, _LIST)), size


def _literal_number(operand: Operand, default: int) -> int:
    if isinstance(operand.node, Literal) and type(operand.node.value) is int:
        return max(operand.node.value, 0)
    return default


def _slice(target: Operand | None, args: list[Operand]) -> Rule:
    most = target.size[1] if target is not None else MAX
    length = (_literal_number(args[1], most) - _literal_number(args[0], 0)) % 2**64
    return _allocated(1, (length, length))


def _range(_: Operand | None, args: list[Operand]) -> Rule:
    length = _literal_number(args[0], MAX)
    return _allocated(1, (length, length))


def _reverse(target: Operand | None, _: list[Operand]) -> Rule:
    return _allocated(1, target.size if target is not None else UNKNOWN)


def _flatten(target: Operand | None, args: list[Operand]) -> Rule:
    depth = _literal_number(args[0], MAX) if args else 1
    return _allocated(float(depth), target.size if target is not None else UNKNOWN)


def _squared(factor: float) -> _ExtensionRule:
    def rule(target: Operand | None, args: list[Operand]) -> Rule:
        size = args[0].size if args else (target.size if target is not None else UNKNOWN)
        return _allocated(factor, times(size, size))

    return rule


def _sets(factor: float) -> _ExtensionRule:
    def rule(_: Operand | None, args: list[Operand]) -> Rule:
        return plus(scaled(times(args[0].size, args[1].size), factor), ONE), None

    return rule


_SORTED_TYPES = {
    "int": 2.0,
    "uint": 2.0,
    "double": 2.0,
    "bool": 2.0,
    "google.protobuf.Duration": 2.0,
    "google.protobuf.Timestamp": 2.0,
    "string": 2.1,
    "bytes": 2.1,
}

_EXTENSION_RULES: dict[str, _ExtensionRule] = {
    "list_slice": _slice,
    "lists_range": _range,
    "list_reverse": _reverse,
    "list_flatten": _flatten,
    "list_flatten_int": _flatten,
    "list_distinct": _squared(2.0),
    **{f"list_{name}_sort": _squared(factor) for name, factor in _SORTED_TYPES.items()},
    **{f"list_{name}_sortByAssociatedKeys": _squared(factor) for name, factor in _SORTED_TYPES.items()},
    "list_sets_contains_list": _sets(1),
    "list_sets_intersects_list": _sets(1),
    "list_sets_equivalent_list": _sets(2),
}

# CEL's own functions.

_COMPARED = frozenset(
    f"{name}_{kind}"
    for name in ("less", "less_equals", "greater", "greater_equals")
    for kind in ("string", "bytes")
) | {"equals", "not_equals"}


def _standard(
    function: str, overload_id: str, target: Operand | None, args: list[Operand], minor: int
) -> Rule:
    if overload_id in _COMPARED:
        most = min(args[0].size[1], args[1].size[1])
        return scaled((1 if most > 0 else 0, most), TRAVERSAL), None
    if function == "matches":
        return _matches(target, args, minor), None
    if function == "contains" and target is not None:
        return times(scaled(target.size, TRAVERSAL), scaled(args[0].size, TRAVERSAL)), None
    if overload_id == "in_list":
        return args[1].size, None
    if overload_id in ("starts_with_string", "ends_with_string"):
        return scaled(args[0].size, TRAVERSAL), None
    if overload_id == "string_format" and target is not None:
        return scaled(target.size, TRAVERSAL), None
    if overload_id in _RESIZED:
        size = args[0].size
        return scaled(size, TRAVERSAL), _RESIZED[overload_id](size)
    return ONE, None


def _matches(target: Operand | None, args: list[Operand], minor: int) -> Range:
    if target is not None:
        return _regex(target.size, args[0].size)
    # The plain form was not reckoned with before 1.37.
    return _regex(args[0].size, args[1].size) if minor >= 37 else ONE


_RESIZED: dict[str, Callable[[Range], Range]] = {
    "string_to_bytes": lambda size: (size[0], size[1] * 4 % 2**64),
    "bytes_to_string": lambda size: (size[0] // 4, size[1]),
    "strings_quote": lambda size: ((size[0] + 2) % 2**64, (size[1] * 2 + 2) % 2**64),
}
