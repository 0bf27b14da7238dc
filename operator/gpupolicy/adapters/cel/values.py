"""Run-time values of CEL and what all of them can do: have a type, be equal, be ordered, be looked up.

bool, int, float, str, bytes and None are Python's own, `Uint` is apart from int, lists are Python lists. The rest is
here. Equality is the API server's, with its corners: objects of Kubernetes' own types refuse to be compared with
anything else, a string compared with one of them is merely different, and inside a list such a refusal counts
as equal.
"""

import ipaddress
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from gpupolicy.adapters.cel.syntax import Uint, UncertainError
from gpupolicy.adapters.cel.types import Kind, Type
from gpupolicy.core.quantities import Quantity
from gpupolicy.core.versions import Version

__all__ = [
    "ABSENT",
    "INT64_MAX",
    "INT64_MIN",
    "UINT64_MAX",
    "UNHASHABLE",
    "AbortedError",
    "CelError",
    "DefaultMap",
    "Duration",
    "MapValue",
    "NamedFormat",
    "Optional",
    "QuantityValue",
    "Timestamp",
    "TypeValue",
    "Unknown",
    "Url",
    "check_room",
    "compare",
    "contains",
    "equal",
    "fits",
    "index",
    "is_zero",
    "list_position",
    "no_overload",
    "size",
    "type_name",
    "unhashable",
]

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
UINT64_MAX: Final = 2**64 - 1


class CelError(Exception):
    """Evaluation of this part failed; `&&` and `||` may still make up for it."""


_MAX_PARTS = 1_000_000


def check_room(parts: int) -> None:
    """Allow a string or list of so many characters, bytes or elements to be made.

    Raises:
        UncertainError: when that is more than any selector has use for; few bytes of expression can ask for terabytes.
    """
    if parts > _MAX_PARTS:
        raise UncertainError(f"it makes something of {parts} parts, and here at most {_MAX_PARTS} are made")


class AbortedError(Exception):
    """The evaluation ended in a way that nothing in the expression can make up for."""


_NUMBERS = frozenset({int, Uint, float})

ABSENT: Final = object()
"""What a lookup returns for a key that is not there."""


def no_overload() -> CelError:
    """Return the error of an operation that its operands do not have."""
    return CelError("no such overload")


@dataclass(frozen=True, slots=True)
class TypeValue:
    """A type, as a value."""

    name: str


@dataclass(frozen=True, slots=True)
class QuantityValue:
    """A quantity. Upstream hands out sums and differences by reference, and refuses to compare with those."""

    quantity: Quantity
    computed: bool = False


@dataclass(frozen=True, slots=True)
class Duration:
    """A span of time."""

    nanoseconds: int


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A point in time, in nanoseconds since 1970 UTC, and the offset it was written with, which only `string()` shows."""

    nanoseconds: int
    offset_minutes: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Url:
    """A parsed URL."""

    text: str
    scheme: str
    host: str
    path: str
    query: str


@dataclass(frozen=True, slots=True)
class NamedFormat:
    """A format that strings can be validated against."""

    name: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """A string that exists but whose wording is not modelled."""


@dataclass(frozen=True, slots=True, eq=False)
class Optional:
    """A value or nothing (`ABSENT`), or the error of making that value."""

    content: object = ABSENT

    @property
    def present(self) -> bool:
        """Whether there is a value."""
        return self.content is not ABSENT

    @property
    def value(self) -> Any:
        """The value.

        Raises:
            CelError: when making it failed.
        """
        if isinstance(self.content, CelError):
            raise self.content
        return self.content


class MapValue:
    """A map. Keys of different types are different, but a number is also found as another type of number.

    An entry whose value is `ABSENT` takes away what an entry before it has put there. `native` marks the maps that come with the device: asked for a key that cannot be hashed, they do not hold it, while
    a map that the expression made fails.
    """

    __slots__ = ("_entries", "native")

    def __init__(self, entries: "Iterable[tuple[object, object]]" = (), *, native: bool = False) -> None:
        self.native = native
        self._entries: dict[object, tuple[object, object]] = {}
        for key, value in entries:
            if value is ABSENT:
                self._entries.pop(_slot(key), None)
            else:
                self._entries[_slot(key)] = (key, value)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return self._found(key) is not None

    def find(self, key: object) -> object:
        """Return the value at `key`, or `ABSENT`."""
        found = self._found(key)
        return ABSENT if found is None else found[1]

    def _found(self, key: Any) -> tuple[object, object] | None:
        found = self._entries.get(_slot(key))
        if found is None and type(key) in _NUMBERS:
            for alias in _aliases(key):
                found = self._entries.get(_slot(alias))
                if found is not None:
                    break
        return found

    def keys(self) -> list[object]:
        """Return the keys in the order of insertion; upstream's is random."""
        return [key for key, _ in self._entries.values()]

    def items(self) -> list[tuple[object, object]]:
        """Return (key, value) pairs in the order of insertion."""
        return list(self._entries.values())

    def inserted(self, key: object, value: object) -> "MapValue":
        """Return a map with one more entry; a key that is there already is an error."""
        if key in self:
            raise CelError(f"insert failed: key {key} already exists")
        return MapValue((*self.items(), (key, value)))


class DefaultMap(MapValue):
    """A map by domain. Looking up a domain that is not there gives an empty map, but it is still not there."""

    __slots__ = ()

    def find(self, key: object) -> object:
        """Return the value at `key`; an empty map where there is none."""
        found = super().find(key)
        return _EMPTY if found is ABSENT else found


_EMPTY = MapValue()


def _slot(key: Any) -> object:
    if type(key) is str:
        return key
    # Lists and maps are keys by identity, so that no other is ever found.
    return object() if type(key) in (list, MapValue, DefaultMap, Optional) else (type(key), key)


def _aliases(number: Any) -> Iterator[object]:
    if type(number) is float:
        if not math.isfinite(number) or number != int(number):
            return
        number = int(number)
        if INT64_MIN <= number <= INT64_MAX:
            yield number
        if 0 <= number <= UINT64_MAX:
            yield Uint(number)
    elif type(number) is int and number >= 0:
        yield Uint(number)
    elif type(number) is Uint and number <= INT64_MAX:
        yield int(number)


_TYPE_NAMES: dict[type, str] = {
    type(None): "null_type",
    bool: "bool",
    int: "int",
    Uint: "uint",
    float: "double",
    str: "string",
    bytes: "bytes",
    Unknown: "string",
    list: "list",
    MapValue: "map",
    DefaultMap: "map",
    Optional: "optional_type",
    TypeValue: "type",
    Duration: "google.protobuf.Duration",
    Timestamp: "google.protobuf.Timestamp",
    Version: "kubernetes.Semver",
    QuantityValue: "kubernetes.Quantity",
    Url: "kubernetes.URL",
    NamedFormat: "kubernetes.NamedFormat",
    ipaddress.IPv4Address: "net.IP",
    ipaddress.IPv6Address: "net.IP",
    ipaddress.IPv4Interface: "net.CIDR",
    ipaddress.IPv6Interface: "net.CIDR",
}

_RUNTIME_KINDS: dict[Kind, tuple[type, ...]] = {
    Kind.BOOL: (bool,),
    Kind.INT: (int,),
    Kind.UINT: (Uint,),
    Kind.DOUBLE: (float,),
    Kind.STRING: (str,),
    Kind.BYTES: (bytes,),
    Kind.NULL: (type(None),),
    Kind.DURATION: (Duration,),
    Kind.TIMESTAMP: (Timestamp,),
    Kind.TYPE: (TypeValue,),
}


def type_name(value: object) -> str:
    """Return the name of the value's type at run time."""
    return _TYPE_NAMES[type(value)]


def fits(kind: Type, value: Any) -> bool:
    """Return whether a value may be passed where `kind` is declared; of a container only the first entry is seen."""
    accepted = _RUNTIME_KINDS.get(kind.kind)
    if accepted is not None:
        return type(value) in accepted
    if kind.kind is Kind.LIST:
        # Of lists of lists there is only `flatten`, which upstream calls without looking into the list.
        is_nested = kind.params[0].kind is Kind.LIST
        return type(value) is list and (not value or is_nested or fits(kind.params[0], value[0]))
    if kind.kind is Kind.MAP:
        if not isinstance(value, MapValue):
            return False
        items = value.items()
        return not items or (fits(kind.params[0], items[0][0]) and fits(kind.params[1], items[0][1]))
    if kind.kind in (Kind.OPAQUE, Kind.STRUCT):
        return _TYPE_NAMES.get(type(value)) == kind.name
    return True


UNHASHABLE: Final = frozenset({bytes, Version, NamedFormat})
"""Types that upstream cannot put into a hash table: looking one up there fails."""
_KUBERNETES = frozenset(
    {"kubernetes.Semver", "kubernetes.Quantity", "kubernetes.URL", "kubernetes.NamedFormat"}
)
_STRICT = _KUBERNETES | {"net.IP", "net.CIDR"}


Seen = dict[tuple[int, int], bool]
"""Pairs of containers that were compared already, by identity: parts may be shared, and doubling them is cheap."""


def equal(left: Any, right: Any, seen: Seen | None = None) -> bool:
    """Return whether two values are equal. `seen` is for containers comparing their parts.

    Raises:
        CelError: when the left one refuses to be compared with the right one.
    """
    if left is None or right is None:
        return left is right
    kind, other = type(left), type(right)
    if kind is Unknown or other is Unknown:
        raise UncertainError("the wording of a validation message")
    if kind in _NUMBERS:
        return other in _NUMBERS and _numbers(left, right) == 0
    container = _CONTAINER_EQUALITY.get(kind)
    if container is not None:
        if not isinstance(right, MapValue if kind is DefaultMap else kind):
            return False
        seen = {} if seen is None else seen
        pair = id(left), id(right)
        if pair not in seen:
            seen[pair] = container(left, right, seen)
        return seen[pair]
    if _TYPE_NAMES[kind] in _STRICT:
        return _equal_objects(left, right)
    return kind is other and bool(left == right)


def _equal_objects(left: Any, right: Any) -> bool:
    if _TYPE_NAMES[type(left)] != _TYPE_NAMES[type(right)]:
        raise no_overload()
    if type(left) is QuantityValue:
        if right.computed:
            raise no_overload()
        return left.quantity.compare(right.quantity) == 0
    if type(left) is Url:
        return bool(left.text == right.text)
    return type(left) is type(right) and bool(left == right)


def _not_different(left: Any, right: Any, seen: Seen) -> bool:
    try:
        return equal(left, right, seen)
    except CelError:
        return True


def _equal_lists(left: list[Any], right: list[Any], seen: Seen) -> bool:
    return len(left) == len(right) and all(
        _not_different(a, b, seen) for a, b in zip(left, right, strict=True)
    )


def _equal_maps(left: MapValue, right: MapValue, seen: Seen) -> bool:
    if len(left) != len(right):
        return False
    for key, value in left.items():
        other = right.find(key)
        if other is ABSENT or not _not_different(value, other, seen):
            return False
    return True


def _equal_optionals(left: Optional, right: Optional, seen: Seen) -> bool:
    if not left.present or not right.present:
        return left.present == right.present
    return equal(left.value, right.value, seen)


_CONTAINER_EQUALITY: dict[type, Callable[[Any, Any, Seen], bool]] = {
    list: _equal_lists,
    MapValue: _equal_maps,
    DefaultMap: _equal_maps,
    Optional: _equal_optionals,
}


def unhashable(value: Any) -> AbortedError:
    """Return the error of using a value as a key that upstream cannot hash."""
    return AbortedError(f"internal error: hash of unhashable type {type_name(value)}")


def contains(container: Any, value: Any) -> bool:
    """Return whether a list holds the value, or a map the key."""
    if type(container) is list:
        return any(_certainly_equal(value, element) for element in container)
    if isinstance(container, MapValue):
        if type(value) in UNHASHABLE and len(container) and not container.native:
            raise unhashable(value)
        return value in container
    raise no_overload()


def _certainly_equal(left: Any, right: Any) -> bool:
    # A list asks the value that is looked for, and takes a refusal for "different".
    if left is None:
        return right is None
    try:
        return equal(left, right)
    except CelError:
        return False


def _numbers(left: Any, right: Any) -> int | None:
    """Return -1, 0 or 1; None when one of them is not a number at all (NaN)."""
    if type(left) is float or type(right) is float:
        if math.isnan(left) or math.isnan(right):
            return None
        left, right = _as_double(left, right), _as_double(right, left)
    return int(left > right) - int(left < right)


def _as_double(number: Any, other: Any) -> float | int:
    # An integer is rounded to a double before the two are compared, unless the double is out of its range, the end of
    # which is a rounded double too.
    if type(number) is float:
        return number
    low, high = (0, UINT64_MAX) if type(number) is Uint else (INT64_MIN, INT64_MAX)
    if other < low or other > float(high):
        return int(number)
    return float(number)


def compare(left: Any, right: Any) -> int:
    """Return -1, 0 or 1.

    Raises:
        CelError: when the two cannot be ordered.
    """
    kind, other = type(left), type(right)
    if kind in _NUMBERS and other in _NUMBERS:
        order = _numbers(left, right)
        if order is None:
            raise CelError("NaN values cannot be ordered")
        return order
    if kind is Unknown or other is Unknown:
        raise UncertainError("the wording of a validation message")
    if kind is not other:
        raise no_overload()
    if kind is str:
        # Upstream compares bytes, not code points: the same for UTF-8.
        return int(left > right) - int(left < right)
    if kind is bytes or kind is bool:
        return int(left > right) - int(left < right)
    if kind is Duration or kind is Timestamp:
        return _numbers(left.nanoseconds, right.nanoseconds) or 0
    raise no_overload()


def list_position(key: Any) -> int:
    """Return the position that an index means.

    Raises:
        CelError: when it is no whole number.
    """
    if type(key) is int:
        return key
    if type(key) is Uint and key <= INT64_MAX:
        return int(key)
    if type(key) is float and math.isfinite(key) and key == int(key):
        return int(key)
    if type(key) in _NUMBERS:
        raise CelError(f"unsupported index value {key} in list")
    raise CelError(f"unsupported index type '{type_name(key)}' in list")


def index(container: Any, key: Any) -> Any:
    """Return what is at `key` of a map or a list, `ABSENT` if nothing is; anything else holds nothing.

    Raises:
        CelError: when a list is asked for something that is no position.
    """
    if isinstance(container, MapValue):
        return container.find(key)
    if type(container) is list:
        position = list_position(key)
        return container[position] if 0 <= position < len(container) else ABSENT
    if type(container) is Unknown:
        raise UncertainError("the wording of a validation message")
    return ABSENT


def size(value: Any) -> int | None:
    """Return the size that costs are reckoned with, None for what has none."""
    if type(value) in (str, bytes, list):
        return len(value)
    if isinstance(value, MapValue):
        return len(value)
    if isinstance(value, ipaddress.IPv4Interface | ipaddress.IPv6Interface):
        return math.ceil(value.network.prefixlen / 8)
    if isinstance(value, ipaddress.IPv4Address | ipaddress.IPv6Address):
        return value.max_prefixlen // 8
    return None


def is_zero(value: Any) -> bool:
    """Return whether `optional.ofNonZeroValue` takes the value for nothing."""
    if value is None or (type(value) in _ZEROED and not value):
        return True
    if isinstance(value, MapValue):
        return not len(value)
    if type(value) is Duration:
        return value.nanoseconds == 0
    return type(value) is Timestamp and value.nanoseconds == _FIRST_NANOSECOND


_ZEROED = frozenset({bool, int, Uint, float, str, bytes, list})
_FIRST_NANOSECOND = -62135596800 * 10**9
"""Of year 1, where Go's time begins."""
