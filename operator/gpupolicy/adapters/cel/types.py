"""CEL's static types, and the unification that overload resolution rests on.

Rules follow the API server's checker: `dyn` and `any` fit everything, `null` fits objects and opaque types, type
parameters are bound as calls are resolved and become `dyn` when nothing binds them.
"""

from dataclasses import dataclass
from enum import Enum
from functools import cache

__all__ = [
    "ANY",
    "BOOL",
    "BYTES",
    "DOUBLE",
    "DURATION",
    "DYN",
    "ERROR",
    "INT",
    "NULL",
    "STRING",
    "TIMESTAMP",
    "TYPE",
    "UINT",
    "Bindings",
    "Kind",
    "Type",
    "list_of",
    "map_of",
    "most_general",
    "opaque",
    "optional_of",
    "param",
    "parse",
    "struct",
    "substitute",
    "type_of",
    "unify",
    "unify_all",
    "unwrap_optional",
]


class Kind(Enum):
    """What a type is, apart from its name and parameters."""

    ANY = "any"
    BOOL = "bool"
    BYTES = "bytes"
    DOUBLE = "double"
    DURATION = "duration"
    DYN = "dyn"
    ERROR = "error"
    INT = "int"
    LIST = "list"
    MAP = "map"
    NULL = "null"
    OPAQUE = "opaque"
    PARAM = "param"
    STRING = "string"
    STRUCT = "struct"
    TIMESTAMP = "timestamp"
    TYPE = "type"
    UINT = "uint"

    __hash__ = object.__hash__


@dataclass(frozen=True, slots=True)
class Type:
    """A static type. `str()` is the form that stands in messages."""

    kind: Kind
    name: str
    params: "tuple[Type, ...]" = ()

    def __str__(self) -> str:
        if not self.params:
            return self.name
        return f"{self.name}({', '.join(str(p) for p in self.params)})"

    @property
    def is_dyn(self) -> bool:
        """Whether anything may stand here as far as the checker can tell."""
        return self.kind in _DYNAMIC


_DYNAMIC = frozenset({Kind.DYN, Kind.ANY})
_NULLABLE = frozenset({Kind.OPAQUE, Kind.STRUCT, Kind.ANY, Kind.DURATION, Kind.TIMESTAMP})
_OPTIONAL = "optional_type"

ANY = Type(Kind.ANY, "any")
BOOL = Type(Kind.BOOL, "bool")
BYTES = Type(Kind.BYTES, "bytes")
DOUBLE = Type(Kind.DOUBLE, "double")
DURATION = Type(Kind.DURATION, "duration")
DYN = Type(Kind.DYN, "dyn")
ERROR = Type(Kind.ERROR, "!error!")
INT = Type(Kind.INT, "int")
NULL = Type(Kind.NULL, "null")
STRING = Type(Kind.STRING, "string")
TIMESTAMP = Type(Kind.TIMESTAMP, "timestamp")
TYPE = Type(Kind.TYPE, "type")
UINT = Type(Kind.UINT, "uint")


def list_of(element: Type) -> Type:
    """Return list(element)."""
    return Type(Kind.LIST, "list", (element,))


def map_of(key: Type, value: Type) -> Type:
    """Return map(key, value)."""
    return Type(Kind.MAP, "map", (key, value))


def type_of(inner: Type) -> Type:
    """Return the type of a type value."""
    return Type(Kind.TYPE, "type", (inner,))


def opaque(name: str, *params: Type) -> Type:
    """Return an abstract type."""
    return Type(Kind.OPAQUE, name, params)


def optional_of(inner: Type) -> Type:
    """Return optional_type(inner)."""
    return opaque(_OPTIONAL, inner)


def struct(name: str) -> Type:
    """Return an object type."""
    return Type(Kind.STRUCT, name)


def param(name: str) -> Type:
    """Return a type parameter."""
    return Type(Kind.PARAM, name)


def unwrap_optional(kind: Type) -> tuple[Type, bool]:
    """Return (inner type, True) of an optional, else (the type itself, False)."""
    if kind.kind is Kind.OPAQUE and kind.name == _OPTIONAL:
        return kind.params[0], True
    return kind, False


_NAMED = {
    "bool": BOOL,
    "bytes": BYTES,
    "double": DOUBLE,
    "duration": DURATION,
    "dyn": DYN,
    "int": INT,
    "null": NULL,
    "string": STRING,
    "timestamp": TIMESTAMP,
    "uint": UINT,
    "quantity": struct("kubernetes.Quantity"),
    "semver": struct("kubernetes.Semver"),
    "url": struct("kubernetes.URL"),
    "namedFormat": struct("kubernetes.NamedFormat"),
    "ip": opaque("net.IP"),
    "cidr": opaque("net.CIDR"),
}


@cache
def parse(text: str) -> Type:
    """Return the type that a declaration names: `int`, `list<T>`, `map<K, optional<V>>`; capitals are parameters."""
    head, _, rest = text.strip().partition("<")
    if not rest:
        return param(head) if head.isupper() else _NAMED[head]
    inner = [parse(part) for part in _split(rest.rstrip()[:-1])]
    match head:
        case "list":
            return list_of(inner[0])
        case "map":
            return map_of(inner[0], inner[1])
        case "optional":
            return optional_of(inner[0])
        case "type":
            return type_of(inner[0])
        case _:
            raise ValueError(text)


def _split(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for index, char in enumerate(text):
        depth += (char == "<") - (char == ">")
        if char == "," and not depth:
            parts.append(text[start:index])
            start = index + 1
    return [*parts, text[start:]]


Bindings = dict[str, Type]
"""Type parameter name -> what it stands for."""


def substitute(bindings: Bindings, kind: Type, *, free_to_dyn: bool = False) -> Type:
    """Return the type with bound parameters replaced, and free ones by `dyn` when asked to."""
    if kind.kind is Kind.PARAM:
        bound = bindings.get(kind.name)
        if bound is not None:
            return substitute(bindings, bound, free_to_dyn=free_to_dyn)
        return DYN if free_to_dyn else kind
    if not kind.params:
        return kind
    return Type(
        kind.kind, kind.name, tuple(substitute(bindings, p, free_to_dyn=free_to_dyn) for p in kind.params)
    )


def unify(bindings: Bindings, left: Type, right: Type) -> Bindings | None:
    """Return the bindings under which `left` can stand where `right` is asked for, or None."""
    copy = dict(bindings)
    return copy if _assignable(copy, left, right) else None


def unify_all(bindings: Bindings, left: tuple[Type, ...], right: tuple[Type, ...]) -> Bindings | None:
    """Return the bindings under which all arguments fit, or None."""
    if len(left) != len(right):
        return None
    copy = dict(bindings)
    return copy if all(_assignable(copy, a, b) for a, b in zip(left, right, strict=True)) else None


def most_general(left: Type, right: Type) -> Type:
    """Return the wider of two types that unify."""
    return left if _less_specific(left, right) else right


def _assignable(bindings: Bindings, left: Type, right: Type) -> bool:
    if right.kind is Kind.PARAM:
        valid, bound = _binds(bindings, left, right)
        if valid or bound:
            return valid
    if left.kind is Kind.PARAM:
        return _binds(bindings, right, left)[0]
    if left.is_dyn or right.is_dyn or Kind.ERROR in (left.kind, right.kind):
        return True
    if left.kind is Kind.NULL or right.kind is Kind.NULL:
        other = right if left.kind is Kind.NULL else left
        return other.kind is Kind.NULL or other.kind in _NULLABLE
    if left.kind is not right.kind:
        return False
    if left.kind is Kind.TYPE:
        return True
    return (
        left.name == right.name
        and len(left.params) == len(right.params)
        and all(_assignable(bindings, a, b) for a, b in zip(left.params, right.params, strict=True))
    )


def _binds(bindings: Bindings, kind: Type, parameter: Type) -> tuple[bool, bool]:
    """Return whether `parameter` can stand for `kind`, and whether it was bound already."""
    if kind == parameter:
        return True, True
    bound = bindings.get(parameter.name)
    if bound is not None:
        if kind == bound:
            return True, True
        if not _assignable(bindings, kind, bound):
            return False, True
        wider = most_general(kind, bound)
        if not _occurs(bindings, parameter, wider):
            bindings[parameter.name] = wider
        return True, True
    if _occurs(bindings, parameter, kind):
        return False, False
    bindings[parameter.name] = kind
    return True, False


def _occurs(bindings: Bindings, parameter: Type, within: Type) -> bool:
    if parameter == within:
        return True
    if within.kind is Kind.PARAM:
        bound = bindings.get(within.name)
        return bound is not None and _occurs(bindings, parameter, bound)
    return any(_occurs(bindings, parameter, p) for p in within.params)


def _less_specific(left: Type, right: Type) -> bool:
    if left.is_dyn or left.kind is Kind.PARAM:
        return True
    if right.is_dyn or right.kind is Kind.PARAM or left.kind is not right.kind:
        return False
    if left.kind is Kind.TYPE:
        return True
    if not left.params:
        return left == right
    return (
        left.name == right.name
        and len(left.params) == len(right.params)
        and all(_less_specific(a, b) for a, b in zip(left.params, right.params, strict=True))
    )
