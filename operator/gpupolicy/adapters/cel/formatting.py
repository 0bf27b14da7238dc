"""The function `format` of strings: its clauses, and how they print values.

Releases up to now use the first version of upstream's formatter, which hands doubles to a printer for people, with
commas in thousands and raised exponents.
"""

import math
import unicodedata
from decimal import Decimal
from typing import Any, Final

from gpupolicy.adapters.cel.functions_standard import duration_text, format_double
from gpupolicy.adapters.cel.functions_time import timestamp_text
from gpupolicy.adapters.cel.syntax import Uint, UncertainError
from gpupolicy.adapters.cel.values import (
    INT64_MAX,
    CelError,
    Duration,
    MapValue,
    Timestamp,
    TypeValue,
    check_room,
    type_name,
)

__all__ = ["format_clauses", "format_values"]


def _joined(parts: list[str], separator: str = "") -> str:
    check_room(sum(map(len, parts)) + len(separator) * (len(parts) - 1))
    return separator.join(parts)


def format_clauses(text: str) -> list[str | tuple[str, int | None]]:
    """Return the literal parts of a format string and its clauses, as (letter, precision).

    Raises:
        CelError: when a clause is not well-formed.
    """
    parts: list[str | tuple[str, int | None]] = []
    position = 0
    while position < len(text):
        if text[position] != "%":
            end = text.find("%", position)
            end = len(text) if end < 0 else end
            parts.append(text[position:end])
            position = end
        elif text.startswith("%%", position):
            parts.append("%")
            position += 2
        else:
            precision, position = _precision(text, position + 1)
            letter = text[position]
            if letter not in "sdfebxXo":
                raise CelError(f'unrecognized formatting clause "{letter}"')
            parts.append((letter, precision))
            position += 1
    return parts


def _precision(text: str, position: int) -> tuple[int | None, int]:
    """Return the precision of the clause that goes on at `position`, and the place of its letter."""
    if position >= len(text):
        raise CelError("unexpected end of string")
    if text[position] != ".":
        return None, position
    end = position + 1
    while end < len(text) and text[end] in "0123456789":
        end += 1
    if end >= len(text):
        raise CelError("could not find end of precision specifier")
    digits = text[position + 1 : end]
    if not digits or int(digits) > INT64_MAX:
        raise CelError("error while converting precision to integer")
    return int(digits), end


def format_values(text: str, args: list[Any]) -> str:
    """Return the text with its clauses replaced by the arguments.

    Raises:
        CelError: when a clause is not well-formed, or does not print what it was given.
        UncertainError: when the outcome is too long to be made.
    """
    result = []
    used = 0
    for part in format_clauses(text):
        if isinstance(part, str):
            result.append(part)
            continue
        if used >= len(args):
            raise CelError(f"index {used} out of range")
        result.append(_clause(part[0], part[1], args[used]))
        used += 1
    return _joined(result)


def _clause(letter: str, precision: int | None, value: Any) -> str:
    if letter == "s":
        return _text(value)
    if letter in "fe":
        return _floating(letter, precision, value)
    if letter in "xX":
        digits = _hexadecimal(value)
        return digits.upper() if letter == "X" else digits
    if letter == "b" and type(value) is bool:
        return "1" if value else "0"
    if type(value) not in (int, Uint):
        raise CelError(f"clause {letter} cannot be used on {type_name(value)}")
    return format(int(value), letter)


def _hexadecimal(value: Any) -> str:
    if type(value) in (int, Uint):
        return format(int(value), "x")
    if type(value) is str:
        return value.encode().hex()
    if type(value) is bytes:
        return value.hex()
    raise CelError(
        f"only integers, byte buffers, and strings can be formatted as hex, was given {type_name(value)}"
    )


_SPECIAL_DOUBLES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_DEFAULT_PRECISION = 6


def _floating(letter: str, precision: int | None, value: Any) -> str:
    if type(value) is str and value in _SPECIAL_DOUBLES:
        value = _SPECIAL_DOUBLES[value]
    if type(value) is not float:
        raise CelError(f"clause {letter} can only be used on doubles, was given {type_name(value)}")
    number = _DEFAULT_PRECISION if precision is None else precision
    if number // 10 > _LARGEST_NUMBER:
        # The printer that is given the clause does not read further.
        return "%!(NOVERB)"
    return _fixed(value, number) if letter == "f" else _scientific(value, number)


_LARGEST_NUMBER: Final = 1_000_000
_INT16_MAX: Final = 0x7FFF


def _fixed(value: float, precision: int) -> str:
    """Return what upstream's printer for people makes of a double: its precision is kept in a few bits.

    Only the lowest 8 bits count for zeros at the end, the lowest 16, with a sign, for rounding.
    """
    special = _infinite(value)
    if special:
        return special
    fewest, most = precision & 0xFF, precision & 0xFFFF
    digits = f"{value:,.{most}f}" if most <= _INT16_MAX else f"{Decimal(repr(value)):,f}"
    if value == 0:
        digits = digits.removeprefix("-")
    whole, _, fraction = digits.partition(".")
    fraction = fraction.rstrip("0").ljust(fewest, "0")
    return f"{whole}.{fraction}" if fraction else whole


def _scientific(value: float, width: int) -> str:
    """Return a double with six digits and a power of ten; upstream hands the precision on as the width."""
    text = _infinite(value)
    if not text:
        mantissa, _, exponent = f"{value or 0.0:.{_DEFAULT_PRECISION}e}".partition("e")
        sign = "⁻" if exponent.startswith("-") else ""
        text = f"{mantissa}×10{sign}{exponent[1:].translate(_SUPERSCRIPTS)}"
    width &= 0xFFFF
    check_room(width)
    return text.rjust(width)


_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def _infinite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return ("∞" if value > 0 else "-∞") if math.isinf(value) else ""


def _text(value: Any) -> str:
    simple: dict[type, Any] = {
        str: lambda v: v,
        bool: lambda v: "true" if v else "false",
        int: str,
        Uint: lambda v: str(int(v)),
        float: format_double,
        Timestamp: timestamp_text,
        Duration: duration_text,
        TypeValue: lambda v: v.name,
        type(None): lambda _: "null",
        list: _list_text,
    }
    if isinstance(value, MapValue):
        return _map_text(value)
    if type(value) is bytes:
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise CelError("could not convert argument to string") from error
    writer = simple.get(type(value))
    if writer is None:
        raise CelError(f"string clause cannot be used on {type_name(value)}")
    return str(writer(value))


def _list_text(values: list[Any]) -> str:
    return f"[{_joined([_nested(value) for value in values], ', ')}]"


def _map_text(values: MapValue) -> str:
    pairs = []
    for key, value in values.items():
        if type(key) not in (str, bool, int, Uint):
            raise CelError(f"no formatting function for map key of type {type_name(key)}")
        pairs.append((_nested(key), _nested(value)))
    return "{" + _joined([f"{key}:{value}" for key, value in sorted(pairs)], ", ") + "}"


def _nested(value: Any) -> str:
    if type(value) is float:
        if not math.isfinite(value):
            return f'"{format_double(value)}"'
        return f"{value:.6f}"
    if type(value) in (str, bytes):
        return _quoted_nested(value)
    if type(value) is Timestamp:
        return f'timestamp("{timestamp_text(value)}")'
    if type(value) is Duration:
        return f'duration("{duration_text(value)}")'
    return _text(value)


def _quoted_nested(value: Any) -> str:
    escaped = "".join(_quoted_character(char) for char in _text(value))
    return f'"{escaped}"' if type(value) is str else f'b"{escaped}"'


_ESCAPES = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}
_ESCAPES |= {"\\": "\\\\", '"': '\\"'}


def _quoted_character(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    category = unicodedata.category(char)
    if char == " " or category[0] in "LMNPS":
        return char
    code = ord(char)
    if category == "Cn" and not (code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF):
        # Newer tables than ours may know a character here.
        raise UncertainError("the quoted form of a character that is not assigned")
    if code < ord(" ") or code == 0x7F:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
