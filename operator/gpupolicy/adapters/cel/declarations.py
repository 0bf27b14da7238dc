"""Which functions a selector may call, release by release, and with which types: one table.

Overload ids are the API server's, since its cost rules are keyed by them. The order inside a function is kept too:
it decides the type of a call that fits several overloads.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from gpupolicy.adapters.cel import types
from gpupolicy.adapters.cel.types import Type

__all__ = ["DEVICE", "OLDEST_MINOR", "Environment", "Overload", "device_field", "functions", "type_name"]

OLDEST_MINOR = 34
"""Oldest Kubernetes 1.x that this table describes."""

DEVICE = types.struct("kubernetes.DRADevice")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Which server compiles the expression, and for what.

    A new expression (`new`) is compiled with what the previous release knew as well, so that a rollback stays possible;
    a stored one, and the scheduler, with everything that the binary knows.
    """

    minor: int = 37
    """Kubernetes 1.x of the server."""
    new: bool = False
    list_attributes: bool = False
    """Feature gate DRAListTypeAttributes."""
    consumable_capacity: bool = True
    """Feature gate DRAConsumableCapacity."""

    @property
    def library_minor(self) -> int:
        """Release whose function libraries may be used."""
        return self.minor - 1 if self.new else self.minor

    @property
    def attribute_type(self) -> Type:
        """Static type of every attribute value."""
        # Releases that know list attributes show them to stored expressions whatever the gate says.
        dynamic = self.list_attributes or (not self.new and self.minor >= 37)
        return types.DYN if dynamic else types.ANY

    @property
    def exposes_list_values(self) -> bool:
        """Whether evaluation takes list-valued attributes; otherwise any expression fails on such a device."""
        return self.list_attributes or self.minor >= 37

    @property
    def has_includes(self) -> bool:
        """Whether `includes()` is declared."""
        if self.list_attributes or not self.new:
            return self.minor >= 36
        return self.library_minor >= 37

    @property
    def has_multiple_allocations(self) -> bool:
        """Whether `device.allowMultipleAllocations` is declared."""
        return self.consumable_capacity or not self.new


def device_field(environment: Environment, name: str) -> Type | None:
    """Return the type of a field of `device`, None if there is no such field."""
    inner = types.map_of(types.STRING, environment.attribute_type)
    fields = {
        "driver": types.STRING,
        "attributes": types.map_of(types.STRING, inner),
        "capacity": types.map_of(types.STRING, types.map_of(types.STRING, types.parse("quantity"))),
    }
    if environment.has_multiple_allocations:
        fields["allowMultipleAllocations"] = types.BOOL
    return fields.get(name)


@dataclass(frozen=True, slots=True)
class Overload:
    """One way to call a function. For a member call the receiver is the first of `args`."""

    id: str
    member: bool
    args: tuple[Type, ...]
    result: Type

    @property
    def type_params(self) -> frozenset[str]:
        """Names of the type parameters in the signature."""
        return frozenset(name for kind in (*self.args, self.result) for name in _params(kind))


def _params(kind: Type) -> Iterator[str]:
    if kind.kind is types.Kind.PARAM:
        yield kind.name
    for inner in kind.params:
        yield from _params(inner)


def functions(environment: Environment) -> dict[str, tuple[Overload, ...]]:
    """Return the functions that an expression may call in this environment."""
    return _functions(environment.minor, environment.library_minor, environment.has_includes)


@cache
def _functions(minor: int, library_minor: int, includes: bool) -> dict[str, tuple[Overload, ...]]:
    declared: dict[str, list[Overload]] = {}
    for function, overload in _overloads(minor, library_minor, includes):
        declared.setdefault(function, []).append(overload)
    return {function: tuple(overloads) for function, overloads in declared.items()}


def type_name(kind: Type) -> str:
    """Return the name by which overload ids call a type."""
    return {"duration": "google.protobuf.Duration", "timestamp": "google.protobuf.Timestamp"}.get(
        kind.name, kind.name
    )


def _overloads(minor: int, library_minor: int, includes: bool) -> Iterator[tuple[str, Overload]]:
    for function, overload_id, args, result in (*_comparisons(), *_STANDARD, *_conversions(), *_times()):
        yield function, _overload(overload_id, args, result)
    if minor < 37:
        # Declared, but the conversion always fails.
        yield "duration", _overload("int64_to_duration", "int", "duration")
    for function, overload_id, args, result in (*_kubernetes_lists(), *_KUBERNETES, *_EXTENSIONS):
        yield function, _overload(overload_id, args, result)
    for name in _NAMED_FORMATS:
        yield f"format.{name}", _overload(f"format.{name}", "", "namedFormat")
    if includes:
        yield "includes", _overload("list_includes_dyn_dyn", "dyn. dyn", "bool")
    if library_minor >= 34:
        for function, overload_id, args, result in (*_LISTS, *_sorts()):
            yield function, _overload(overload_id, args, result)


@cache
def _overload(overload_id: str, args: str, result: str) -> Overload:
    """Return the overload for arguments written as `receiver. arg arg`, or `arg arg` without a receiver."""
    words = args.split()
    member = bool(words) and words[0].endswith(".")
    parsed = tuple(types.parse(word.removesuffix(".")) for word in words)
    return Overload(overload_id, member, parsed, types.parse(result))


_Row = tuple[str, str, str, str]

_COMPARABLE = ("bool", "int", "uint", "double", "string", "bytes", "timestamp", "duration")
_ID_NAMES = {"int": "int64", "uint": "uint64"}


def _comparisons() -> Iterator[_Row]:
    numbers = ("int", "uint", "double")
    for function, prefix in (
        ("_<_", "less"),
        ("_<=_", "less_equals"),
        ("_>_", "greater"),
        ("_>=_", "greater_equals"),
    ):
        for name in _COMPARABLE:
            left = _ID_NAMES.get(name, name)
            yield function, f"{prefix}_{left}", f"{name} {name}", "bool"
            for other in numbers:
                if name in numbers and other != name:
                    yield (
                        function,
                        f"{prefix}_{left}_{_ID_NAMES.get(other, other)}",
                        f"{name} {other}",
                        "bool",
                    )


_STANDARD: tuple[_Row, ...] = (
    ("_?_:_", "conditional", "bool A A", "A"),
    ("_&&_", "logical_and", "bool bool", "bool"),
    ("_||_", "logical_or", "bool bool", "bool"),
    ("!_", "logical_not", "bool", "bool"),
    ("@not_strictly_false", "not_strictly_false", "bool", "bool"),
    ("_==_", "equals", "A A", "bool"),
    ("_!=_", "not_equals", "A A", "bool"),
    ("_+_", "add_bytes", "bytes bytes", "bytes"),
    ("_+_", "add_double", "double double", "double"),
    ("_+_", "add_duration_duration", "duration duration", "duration"),
    ("_+_", "add_duration_timestamp", "duration timestamp", "timestamp"),
    ("_+_", "add_timestamp_duration", "timestamp duration", "timestamp"),
    ("_+_", "add_int64", "int int", "int"),
    ("_+_", "add_list", "list<A> list<A>", "list<A>"),
    ("_+_", "add_string", "string string", "string"),
    ("_+_", "add_uint64", "uint uint", "uint"),
    ("_/_", "divide_double", "double double", "double"),
    ("_/_", "divide_int64", "int int", "int"),
    ("_/_", "divide_uint64", "uint uint", "uint"),
    ("_%_", "modulo_int64", "int int", "int"),
    ("_%_", "modulo_uint64", "uint uint", "uint"),
    ("_*_", "multiply_double", "double double", "double"),
    ("_*_", "multiply_int64", "int int", "int"),
    ("_*_", "multiply_uint64", "uint uint", "uint"),
    ("-_", "negate_double", "double", "double"),
    ("-_", "negate_int64", "int", "int"),
    ("_-_", "subtract_double", "double double", "double"),
    ("_-_", "subtract_duration_duration", "duration duration", "duration"),
    ("_-_", "subtract_int64", "int int", "int"),
    ("_-_", "subtract_timestamp_duration", "timestamp duration", "timestamp"),
    ("_-_", "subtract_timestamp_timestamp", "timestamp timestamp", "duration"),
    ("_-_", "subtract_uint64", "uint uint", "uint"),
    ("_[_]", "index_list", "list<A> int", "A"),
    ("_[_]", "index_map", "map<A,B> A", "B"),
    ("@in", "in_list", "A list<A>", "bool"),
    ("@in", "in_map", "A map<A,B>", "bool"),
    ("size", "size_bytes", "bytes", "int"),
    ("size", "bytes_size", "bytes.", "int"),
    ("size", "size_list", "list<A>", "int"),
    ("size", "list_size", "list<A>.", "int"),
    ("size", "size_map", "map<A,B>", "int"),
    ("size", "map_size", "map<A,B>.", "int"),
    ("size", "size_string", "string", "int"),
    ("size", "string_size", "string.", "int"),
    ("type", "type", "A", "type<A>"),
    ("dyn", "to_dyn", "A", "dyn"),
    ("contains", "contains_string", "string. string", "bool"),
    ("endsWith", "ends_with_string", "string. string", "bool"),
    ("startsWith", "starts_with_string", "string. string", "bool"),
    ("matches", "matches", "string string", "bool"),
    ("matches", "matches_string", "string. string", "bool"),
)


def _conversions() -> Iterator[_Row]:
    names = {"int": "int64", "uint": "uint64"}
    for result, sources in (
        ("bool", "bool string"),
        ("bytes", "bytes string"),
        ("double", "double int string uint"),
        ("duration", "duration string"),
        ("int", "int double duration string timestamp uint"),
        ("string", "string bool bytes double duration int timestamp uint"),
        ("timestamp", "timestamp int string"),
        ("uint", "uint double int string"),
    ):
        for source in sources.split():
            overload_id = f"{names.get(source, source)}_to_{names.get(result, result)}"
            yield result, overload_id, source, result


def _times() -> Iterator[_Row]:
    for function, overload_id, of_duration in (
        ("getFullYear", "timestamp_to_year", ""),
        ("getMonth", "timestamp_to_month", ""),
        ("getDayOfYear", "timestamp_to_day_of_year", ""),
        ("getDayOfMonth", "timestamp_to_day_of_month", ""),
        ("getDate", "timestamp_to_day_of_month_1_based", ""),
        ("getDayOfWeek", "timestamp_to_day_of_week", ""),
        ("getHours", "timestamp_to_hours", "duration_to_hours"),
        ("getMinutes", "timestamp_to_minutes", "duration_to_minutes"),
        ("getSeconds", "timestamp_to_seconds", "duration_to_seconds"),
        ("getMilliseconds", "timestamp_to_milliseconds", "duration_to_milliseconds"),
    ):
        yield function, overload_id, "timestamp.", "int"
        yield function, f"{overload_id}_with_tz", "timestamp. string", "int"
        if of_duration:
            yield function, of_duration, "duration.", "int"


def _kubernetes_lists() -> Iterator[_Row]:
    comparable = ("int", "uint", "double", "bool", "duration", "timestamp", "string", "bytes")
    for name in comparable:
        yield "isSorted", f"list_{name}_is_sorted_bool", f"list<{name}>.", "bool"
        yield "max", f"list_{name}_max_{name}", f"list<{name}>.", name
        yield "min", f"list_{name}_min_{name}", f"list<{name}>.", name
    for name in ("int", "uint", "double", "duration"):
        yield "sum", f"list_{name}_sum_{name}", f"list<{name}>.", name
    yield "indexOf", "list_a_index_of_int", "list<A>. A", "int"
    yield "lastIndexOf", "list_a_last_index_of_int", "list<A>. A", "int"


_KUBERNETES: tuple[_Row, ...] = (
    ("url", "string_to_url", "string", "url"),
    ("isURL", "is_url_string", "string", "bool"),
    ("getScheme", "url_get_scheme", "url.", "string"),
    ("getHost", "url_get_host", "url.", "string"),
    ("getHostname", "url_get_hostname", "url.", "string"),
    ("getPort", "url_get_port", "url.", "string"),
    ("getEscapedPath", "url_get_escaped_path", "url.", "string"),
    ("getQuery", "url_get_query", "url.", "map<string,list<string>>"),
    ("find", "string_find_string", "string. string", "string"),
    ("findAll", "string_find_all_string", "string. string", "list<string>"),
    ("findAll", "string_find_all_string_int", "string. string int", "list<string>"),
    ("quantity", "string_to_quantity", "string", "quantity"),
    ("isQuantity", "is_quantity_string", "string", "bool"),
    ("sign", "quantity_sign", "quantity", "int"),
    ("isGreaterThan", "quantity_is_greater_than", "quantity. quantity", "bool"),
    ("isLessThan", "quantity_is_less_than", "quantity. quantity", "bool"),
    ("compareTo", "quantity_compare_to", "quantity. quantity", "int"),
    ("asApproximateFloat", "quantity_get_float", "quantity.", "double"),
    ("asInteger", "quantity_get_int", "quantity.", "int"),
    ("isInteger", "quantity_is_integer", "quantity.", "bool"),
    ("add", "quantity_add", "quantity. quantity", "quantity"),
    ("add", "quantity_add_int", "quantity. int", "quantity"),
    ("sub", "quantity_sub", "quantity. quantity", "quantity"),
    ("sub", "quantity_sub_int", "quantity. int", "quantity"),
    ("semver", "string_to_semver", "string", "semver"),
    ("semver", "string_bool_to_semver", "string bool", "semver"),
    ("isSemver", "is_semver_string", "string", "bool"),
    ("isSemver", "is_semver_string_bool", "string bool", "bool"),
    ("isGreaterThan", "semver_is_greater_than", "semver. semver", "bool"),
    ("isLessThan", "semver_is_less_than", "semver. semver", "bool"),
    ("compareTo", "semver_compare_to", "semver. semver", "int"),
    ("major", "semver_major", "semver.", "int"),
    ("minor", "semver_minor", "semver.", "int"),
    ("patch", "semver_patch", "semver.", "int"),
    ("ip", "string_to_ip", "string", "ip"),
    ("ip", "cidr_ip", "cidr.", "ip"),
    ("isIP", "is_ip", "string", "bool"),
    ("ip.isCanonical", "ip_is_canonical", "string", "bool"),
    ("family", "ip_family", "ip.", "int"),
    ("isUnspecified", "ip_is_unspecified", "ip.", "bool"),
    ("isLoopback", "ip_is_loopback", "ip.", "bool"),
    ("isLinkLocalMulticast", "ip_is_link_local_multicast", "ip.", "bool"),
    ("isLinkLocalUnicast", "ip_is_link_local_unicast", "ip.", "bool"),
    ("isGlobalUnicast", "ip_is_global_unicast", "ip.", "bool"),
    ("string", "ip_to_string", "ip", "string"),
    ("cidr", "string_to_cidr", "string", "cidr"),
    ("isCIDR", "is_cidr", "string", "bool"),
    ("containsIP", "cidr_contains_ip_string", "cidr. string", "bool"),
    ("containsIP", "cidr_contains_ip_ip", "cidr. ip", "bool"),
    ("containsCIDR", "cidr_contains_cidr_string", "cidr. string", "bool"),
    ("containsCIDR", "cidr_contains_cidr", "cidr. cidr", "bool"),
    ("prefixLength", "cidr_prefix_length", "cidr.", "int"),
    ("masked", "cidr_masked", "cidr.", "cidr"),
    ("string", "cidr_to_string", "cidr", "string"),
    ("validate", "format-validate", "namedFormat. string", "optional<list<string>>"),
    ("format.named", "format-named", "string", "optional<namedFormat>"),
)

_NAMED_FORMATS = (
    "dns1123Label",
    "dns1123Subdomain",
    "dns1035Label",
    "qualifiedName",
    "dns1123LabelPrefix",
    "dns1123SubdomainPrefix",
    "dns1035LabelPrefix",
    "labelValue",
    "uri",
    "uuid",
    "byte",
    "date",
    "datetime",
)

_EXTENSIONS: tuple[_Row, ...] = (
    ("optional.of", "optional_of", "V", "optional<V>"),
    ("optional.ofNonZeroValue", "optional_ofNonZeroValue", "V", "optional<V>"),
    ("optional.none", "optional_none", "", "optional<V>"),
    ("value", "optional_value", "optional<V>.", "V"),
    ("hasValue", "optional_hasValue", "optional<V>.", "bool"),
    ("or", "optional_or_optional", "optional<V>. optional<V>", "optional<V>"),
    ("orValue", "optional_orValue_value", "optional<V>. V", "V"),
    ("_[?_]", "list_optindex_optional_int", "list<V> int", "optional<V>"),
    ("_[?_]", "optional_list_optindex_optional_int", "optional<list<V>> int", "optional<V>"),
    ("_[?_]", "map_optindex_optional_value", "map<K,V> K", "optional<V>"),
    ("_[?_]", "optional_map_optindex_optional_value", "optional<map<K,V>> K", "optional<V>"),
    ("_[_]", "optional_list_index_int", "optional<list<V>> int", "optional<V>"),
    ("_[_]", "optional_map_index_value", "optional<map<K,V>> K", "optional<V>"),
    ("last", "list_last", "list<V>.", "optional<V>"),
    ("first", "list_first", "list<V>.", "optional<V>"),
    ("optional.unwrap", "optional_unwrap", "list<optional<V>>", "list<V>"),
    ("unwrapOpt", "optional_unwrapOpt", "list<optional<V>>.", "list<V>"),
    ("charAt", "string_char_at_int", "string. int", "string"),
    ("indexOf", "string_index_of_string", "string. string", "int"),
    ("indexOf", "string_index_of_string_int", "string. string int", "int"),
    ("lastIndexOf", "string_last_index_of_string", "string. string", "int"),
    ("lastIndexOf", "string_last_index_of_string_int", "string. string int", "int"),
    ("lowerAscii", "string_lower_ascii", "string.", "string"),
    ("upperAscii", "string_upper_ascii", "string.", "string"),
    ("replace", "string_replace_string_string", "string. string string", "string"),
    ("replace", "string_replace_string_string_int", "string. string string int", "string"),
    ("split", "string_split_string", "string. string", "list<string>"),
    ("split", "string_split_string_int", "string. string int", "list<string>"),
    ("substring", "string_substring_int", "string. int", "string"),
    ("substring", "string_substring_int_int", "string. int int", "string"),
    ("trim", "string_trim", "string.", "string"),
    ("format", "string_format", "string. list<dyn>", "string"),
    ("strings.quote", "strings_quote", "string", "string"),
    ("join", "list_join", "list<string>.", "string"),
    ("join", "list_join_string", "list<string>. string", "string"),
    ("sets.contains", "list_sets_contains_list", "list<T> list<T>", "bool"),
    ("sets.equivalent", "list_sets_equivalent_list", "list<T> list<T>", "bool"),
    ("sets.intersects", "list_sets_intersects_list", "list<T> list<T>", "bool"),
    ("cel.@mapInsert", "@mapInsert_map_key_value", "map<K,V> K V", "map<K,V>"),
    ("cel.@mapInsert", "@mapInsert_map_map", "map<K,V> map<K,V>", "map<K,V>"),
)

_LISTS: tuple[_Row, ...] = (
    ("slice", "list_slice", "list<T>. int int", "list<T>"),
    ("flatten", "list_flatten", "list<list<T>>.", "list<T>"),
    ("flatten", "list_flatten_int", "list<dyn>. int", "list<dyn>"),
    ("lists.range", "lists_range", "int", "list<int>"),
    ("reverse", "list_reverse", "list<T>.", "list<T>"),
    ("distinct", "list_distinct", "list<T>.", "list<T>"),
)


def _sorts() -> Iterator[_Row]:
    for name in ("int", "uint", "double", "bool", "duration", "timestamp", "string", "bytes"):
        id_name = {"duration": "google.protobuf.Duration", "timestamp": "google.protobuf.Timestamp"}.get(
            name, name
        )
        yield "sort", f"list_{id_name}_sort", f"list<{name}>.", f"list<{name}>"
        yield (
            "@sortByAssociatedKeys",
            f"list_{id_name}_sortByAssociatedKeys",
            f"list<T>. list<{name}>",
            "list<T>",
        )
