"""The strings extension, version 2. Overload id -> function. Positions count code points."""

import math
from typing import Any

from gpupolicy.adapters.cel.functions_standard import (
    Implementation,
    duration_text,
    format_double,
    timestamp_text,
)
from gpupolicy.adapters.cel.syntax import Uint, UncertainError
from gpupolicy.adapters.cel.values import (
    CelError,
    Duration,
    MapValue,
    Timestamp,
    TypeValue,
    check_room,
    type_name,
)

__all__ = ["IMPLEMENTATIONS", "format_clauses"]

_SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
_SPACES += "\u2028\u2029\u202f\u205f\u3000"
_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_UPPER = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}


def _char_at(text: str, position: int) -> str:
    if not 0 <= position <= len(text):
        raise CelError(f"index out of range: {position}")
    return text[position : position + 1]


def _index_of(text: str, part: str, offset: int = 0) -> int:
    if not part and not 0 <= offset <= len(text):
        raise UncertainError("releases differ on searching for nothing outside of the string")
    if offset < 0:
        raise CelError(f"index out of range: {offset}")
    if offset >= len(text) and part:
        return -1
    return text.find(part, offset)


def _last_index_of(text: str, part: str) -> int:
    return text.rfind(part)


def _last_index_of_offset(text: str, part: str, offset: int) -> int:
    if not part:
        if not 0 <= offset <= len(text):
            raise UncertainError("releases differ on searching for nothing outside of the string")
        return offset
    if offset < 0:
        raise CelError(f"index out of range: {offset}")
    if offset >= len(text):
        return -1
    return text.rfind(part, 0, offset + len(part))


def _replace(text: str, old: str, new: str, count: int = -1) -> str:
    times = text.count(old) if count < 0 else min(text.count(old), count)
    check_room(len(text) + times * (len(new) - len(old)))
    return text.replace(old, new, max(count, -1))


def _split(text: str, separator: str, count: int = -1) -> list[Any]:
    if count == 0:
        return []
    if not separator:
        if count < 0 or count >= len(text):
            return list(text)
        return [*text[: count - 1], text[count - 1 :]]
    return list(text.split(separator, count - 1 if count > 0 else -1))


def _substring(text: str, start: int, end: int | None = None) -> str:
    stop = len(text) if end is None else end
    if end is not None and start > end:
        raise CelError(f"invalid substring range. start: {start}, end: {end}")
    for position in (start, stop):
        if not 0 <= position <= len(text):
            raise CelError(f"index out of range: {position}")
    return text[start:stop]


def _join(parts: list[Any], separator: str = "") -> str:
    if any(type(part) is not str for part in parts):
        raise CelError("join: invalid input")
    check_room(sum(map(len, parts)) + len(separator) * (len(parts) - 1))
    return separator.join(parts)


_ESCAPES = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}
_ESCAPES |= {"\\": "\\\\", '"': '\\"'}


def _quote(text: str) -> str:
    return '"' + "".join(_ESCAPES.get(char, char) for char in text) + '"'


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
            continue
        if text.startswith("%%", position):
            parts.append("%")
            position += 2
            continue
        position += 1
        if position >= len(text):
            raise CelError("unexpected end of string")
        precision = None
        if text[position] == ".":
            end = position + 1
            while end < len(text) and text[end] in "0123456789":
                end += 1
            if end >= len(text):
                raise CelError("could not find end of precision specifier")
            if end == position + 1:
                raise CelError("error while converting precision to integer")
            precision, position = int(text[position + 1 : end]), end
        letter = text[position]
        if letter not in "sdfebxXo":
            raise CelError(f'unrecognized formatting clause "{letter}"')
        parts.append((letter, precision))
        position += 1
    return parts


def _format(text: str, args: list[Any]) -> str:
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
    return _join(result)


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


def _floating(letter: str, precision: int | None, value: Any) -> str:
    if type(value) is str and value in ("NaN", "Infinity", "-Infinity"):
        raise UncertainError("the printed form of infinity")
    if type(value) is not float:
        raise CelError(f"clause {letter} can only be used on doubles, was given {type_name(value)}")
    if letter == "e" or not math.isfinite(value):
        # Printed by a localised printer whose form is not modelled.
        raise UncertainError("the scientific notation of a double")
    precision = 6 if precision is None else precision
    check_room(precision)
    return format(value, f",.{precision}f")


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
    return f"[{_join([_nested(value) for value in values], ', ')}]"


def _map_text(values: MapValue) -> str:
    pairs = []
    for key, value in values.items():
        if type(key) not in (str, bool, int, Uint):
            raise CelError(f"no formatting function for map key of type {type_name(key)}")
        pairs.append((_nested(key), _nested(value)))
    return "{" + _join([f"{key}:{value}" for key, value in sorted(pairs)], ", ") + "}"


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
    text = _text(value)
    if any(not (char == " " or (char.isascii() and char.isprintable())) for char in text):
        raise UncertainError("the quoted form of unusual characters")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"' if type(value) is str else f'b"{escaped}"'


IMPLEMENTATIONS: dict[str, Implementation] = {
    "string_char_at_int": _char_at,
    "string_index_of_string": _index_of,
    "string_index_of_string_int": _index_of,
    "string_last_index_of_string": _last_index_of,
    "string_last_index_of_string_int": _last_index_of_offset,
    "string_lower_ascii": lambda text: text.translate(_LOWER),
    "string_upper_ascii": lambda text: text.translate(_UPPER),
    "string_replace_string_string": _replace,
    "string_replace_string_string_int": _replace,
    "string_split_string": _split,
    "string_split_string_int": _split,
    "string_substring_int": _substring,
    "string_substring_int_int": _substring,
    "string_trim": lambda text: text.strip(_SPACES),
    "string_format": _format,
    "strings_quote": _quote,
    "list_join": _join,
    "list_join_string": _join,
}
