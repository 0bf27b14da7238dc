"""Functions and operators of the CEL standard: arithmetic, conversions, strings, time. Overload id -> function."""

import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from gpupolicy.adapters.cel import functions_time, regex
from gpupolicy.adapters.cel.syntax import Uint
from gpupolicy.adapters.cel.values import (
    INT64_MAX,
    INT64_MIN,
    UINT64_MAX,
    CelError,
    Duration,
    MapValue,
    TypeValue,
    check_room,
    compare,
    contains,
    no_overload,
    type_name,
)

__all__ = ["IMPLEMENTATIONS", "Implementation", "duration_text", "format_double"]

Implementation = Callable[..., Any]

_SECOND = 10**9


def int64(value: int) -> int:
    """Return the value if it is a 64-bit integer."""
    if INT64_MIN <= value <= INT64_MAX:
        return value
    raise CelError("integer overflow")


def uint64(value: int) -> Uint:
    """Return the value if it is an unsigned 64-bit integer."""
    if 0 <= value <= UINT64_MAX:
        return Uint(value)
    raise CelError("unsigned integer overflow")


def _duration(nanoseconds: int) -> Duration:
    return Duration(int64(nanoseconds))


def _divide_int(left: int, right: int) -> int:
    if right == 0:
        raise CelError("division by zero")
    quotient = abs(left) // abs(right)
    return int64(quotient if (left < 0) == (right < 0) else -quotient)


def _modulo_int(left: int, right: int) -> int:
    if right == 0:
        raise CelError("modulus by zero")
    if left == INT64_MIN and right == -1:
        raise CelError("integer overflow")
    remainder = abs(left) % abs(right)
    return -remainder if left < 0 else remainder


def _divide_uint(left: int, right: int) -> Uint:
    if right == 0:
        raise CelError("division by zero")
    return Uint(left // right)


def _modulo_uint(left: int, right: int) -> Uint:
    if right == 0:
        raise CelError("modulus by zero")
    return Uint(left % right)


def _divide_double(left: float, right: float) -> float:
    if right == 0:
        if left == 0 or math.isnan(left):
            return math.nan
        return math.copysign(math.inf, left) * math.copysign(1, right)
    return left / right


def _multiply_double(left: float, right: float) -> float:
    return left * right


def _int_to_duration(_: int) -> Duration:
    raise CelError("type conversion error from 'int' to 'google.protobuf.Duration'")


def _double_to_int(value: float) -> int:
    if not math.isfinite(value) or value <= float(INT64_MIN) or value >= float(INT64_MAX):
        raise CelError("integer overflow")
    return int(value)


def _double_to_uint(value: float) -> Uint:
    if not math.isfinite(value) or value < 0 or value >= float(2**64):
        raise CelError("unsigned integer overflow")
    return Uint(int(value))


def _string_to_int(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]+", text, re.ASCII) or not INT64_MIN <= int(text) <= INT64_MAX:
        raise CelError("type conversion error from 'string' to 'int'")
    return int(text)


def _string_to_uint(text: str) -> Uint:
    if not re.fullmatch(r"[0-9]+", text, re.ASCII) or int(text) > UINT64_MAX:
        raise CelError("type conversion error from 'string' to 'uint'")
    return Uint(text)


_DECIMAL = re.compile(
    r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(inf|infinity)|nan", re.IGNORECASE | re.ASCII
)
_HEXADECIMAL = re.compile(
    r"[+-]?0x([0-9a-f]+(\.[0-9a-f]*)?|\.[0-9a-f]+)p[+-]?[0-9]+", re.IGNORECASE | re.ASCII
)


def _string_to_double(text: str) -> float:
    if "_" in text:
        # Underscores may stand between digits; the prefix 0x counts as one.
        separated = r"(?<=[0-9a-fx])_(?=[0-9a-f])" if "x" in text.lower() else r"(?<=[0-9])_(?=[0-9])"
        text = re.sub(separated, "", text, flags=re.IGNORECASE | re.ASCII)
    if _DECIMAL.fullmatch(text):
        value = float(text)
        if math.isinf(value) and "i" not in text.lower():
            raise CelError("type conversion error from 'string' to 'double'")
        return value
    if _HEXADECIMAL.fullmatch(text):
        try:
            return float.fromhex(text)
        except OverflowError as error:
            raise CelError("type conversion error from 'string' to 'double'") from error
    raise CelError("type conversion error from 'string' to 'double'")


_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})


def _string_to_bool(text: str) -> bool:
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise CelError("type conversion error from 'string' to 'bool'")


def _bytes_to_string(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise CelError("invalid UTF-8 in bytes, cannot convert to string") from error


def format_double(value: float) -> str:
    """Return the shortest form of a double in Go's %g."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    text = "".join(map(str, digits))
    power = len(text) + int(exponent) - 1
    if power < -4 or power >= 6:
        mantissa = text[0] + ("." + text[1:] if len(text) > 1 else "")
        number = f"{mantissa}e{'+' if power >= 0 else '-'}{abs(power):02d}"
    else:
        number = format(abs(Decimal(repr(value))), "f")
        number = number.rstrip("0").rstrip(".") if "." in number else number
    return f"-{number}" if sign else number


_UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6}
_UNITS |= {"s": _SECOND, "m": 60 * _SECOND, "h": 3600 * _SECOND}
_DURATION = re.compile(r"([0-9]*)(?:(\.)([0-9]*))?(ns|us|µs|μs|ms|s|m|h)", re.ASCII)


def string_to_duration(text: str) -> Duration:
    """Return the duration in Go's notation, e.g. `1h30m` or `-1.5s`."""
    body = text.removeprefix("-") if text.startswith("-") else text.removeprefix("+")
    if body == "0":
        return Duration(0)
    total = position = 0
    while position < len(body):
        match = _DURATION.match(body, position)
        if match is None or not (match[1] or match[3]):
            raise CelError("type conversion error from 'string' to 'google.protobuf.Duration'")
        unit = _UNITS[match[4]]
        total += int(match[1] or "0") * unit + _fraction(match[3] or "", unit)
        position = match.end()
    if not body or total > INT64_MAX + text.startswith("-"):
        raise CelError("type conversion error from 'string' to 'google.protobuf.Duration'")
    return Duration(-total if text.startswith("-") else total)


def _fraction(digits: str, unit: int) -> int:
    """Return the nanoseconds of what stands after the point, in upstream's order of operations and precision."""
    number, scale = 0, 1.0
    for digit in digits:
        longer = 10 * number + int(digit)
        if number > INT64_MAX // 10 or longer > INT64_MAX + 1:
            # What does not fit into 64 bits is passed over.
            break
        number, scale = longer, scale * 10
    return int(number * (unit / scale))


def duration_text(value: Duration) -> str:
    """Return the duration in seconds, as `string()` does."""
    number = format(abs(Decimal(repr(value.nanoseconds / _SECOND))), "f")
    number = number.rstrip("0").rstrip(".") if "." in number else number
    return f"-{number}s" if value.nanoseconds < 0 else f"{number}s"


def _duration_parts() -> dict[str, Implementation]:
    units = {"hours": 3600 * _SECOND, "minutes": 60 * _SECOND, "seconds": _SECOND, "milliseconds": 10**6}
    return {
        f"duration_to_{name}": lambda value, unit=unit: _truncated(value, unit)
        for name, unit in units.items()
    }


def _truncated(value: Duration, unit: int) -> int:
    whole = abs(value.nanoseconds) // unit
    return -whole if value.nanoseconds < 0 else whole


def _size(value: object) -> int:
    if type(value) in (str, bytes, list) or isinstance(value, MapValue):
        return len(value)  # type: ignore[arg-type]
    raise no_overload()


def _orders() -> dict[str, Implementation]:
    tests: dict[str, Callable[[int], bool]] = {
        "less": lambda order: order < 0,
        "less_equals": lambda order: order <= 0,
        "greater": lambda order: order > 0,
        "greater_equals": lambda order: order >= 0,
    }
    kinds = ["bool", "string", "bytes", "timestamp", "duration", "int64", "uint64", "double"]
    numbers = ("int64", "uint64", "double")
    kinds += [f"{left}_{right}" for left in numbers for right in numbers if left != right]
    return {
        f"{prefix}_{kind}": lambda left, right, test=test: test(compare(left, right))
        for prefix, test in tests.items()
        for kind in kinds
    }


def _identity(value: object) -> object:
    return value


def _joined(left: Any, right: Any) -> Any:
    check_room(len(left) + len(right))
    return left + right


IMPLEMENTATIONS: dict[str, Implementation] = {
    "add_bytes": _joined,
    "add_double": lambda a, b: a + b,
    "add_duration_duration": lambda a, b: _duration(a.nanoseconds + b.nanoseconds),
    "add_duration_timestamp": lambda a, b: functions_time.moved(b, a.nanoseconds),
    "add_timestamp_duration": lambda a, b: functions_time.moved(a, b.nanoseconds),
    "add_int64": lambda a, b: int64(a + b),
    "add_list": _joined,
    "add_string": _joined,
    "add_uint64": lambda a, b: uint64(int(a) + int(b)),
    "divide_double": _divide_double,
    "divide_int64": _divide_int,
    "divide_uint64": _divide_uint,
    "modulo_int64": _modulo_int,
    "modulo_uint64": _modulo_uint,
    "multiply_double": _multiply_double,
    "multiply_int64": lambda a, b: int64(a * b),
    "multiply_uint64": lambda a, b: uint64(int(a) * int(b)),
    "negate_double": lambda a: -a,
    "negate_int64": lambda a: int64(-a),
    "subtract_double": lambda a, b: a - b,
    "subtract_duration_duration": lambda a, b: _duration(a.nanoseconds - b.nanoseconds),
    "subtract_int64": lambda a, b: int64(a - b),
    "subtract_timestamp_duration": lambda a, b: functions_time.moved(a, int64(-b.nanoseconds)),
    "subtract_timestamp_timestamp": lambda a, b: _duration(a.nanoseconds - b.nanoseconds),
    "subtract_uint64": lambda a, b: uint64(int(a) - int(b)),
    "in_list": lambda value, container: contains(container, value),
    "in_map": lambda value, container: contains(container, value),
    **{f"size_{kind}": _size for kind in ("bytes", "list", "map", "string")},
    **{f"{kind}_size": _size for kind in ("bytes", "list", "map", "string")},
    "type": lambda value: TypeValue(type_name(value)),
    "to_dyn": _identity,
    "contains_string": lambda text, part: part in text,
    "ends_with_string": lambda text, part: text.endswith(part),
    "starts_with_string": lambda text, part: text.startswith(part),
    "matches": lambda text, pattern: regex.search(pattern, text),
    "matches_string": lambda text, pattern: regex.search(pattern, text),
    **_orders(),
    **_duration_parts(),
    **functions_time.IMPLEMENTATIONS,
    "bool_to_bool": _identity,
    "string_to_bool": _string_to_bool,
    "bytes_to_bytes": _identity,
    "string_to_bytes": lambda text: text.encode(),
    "double_to_double": _identity,
    "int64_to_double": float,
    "string_to_double": _string_to_double,
    "uint64_to_double": float,
    "duration_to_duration": _identity,
    "int64_to_duration": _int_to_duration,
    "string_to_duration": string_to_duration,
    "int64_to_int64": _identity,
    "double_to_int64": _double_to_int,
    "duration_to_int64": lambda value: value.nanoseconds,
    "string_to_int64": _string_to_int,
    "uint64_to_int64": lambda value: int64(int(value)),
    "string_to_string": _identity,
    "bool_to_string": lambda value: "true" if value else "false",
    "bytes_to_string": _bytes_to_string,
    "double_to_string": format_double,
    "duration_to_string": duration_text,
    "int64_to_string": str,
    "uint64_to_string": lambda value: str(int(value)),
    "uint64_to_uint64": _identity,
    "double_to_uint64": _double_to_uint,
    "int64_to_uint64": uint64,
    "string_to_uint64": _string_to_uint,
}
