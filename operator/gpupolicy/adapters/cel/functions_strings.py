"""The strings extension, version 2. Overload id -> function. Positions count code points."""

from typing import Any

from gpupolicy.adapters.cel import formatting
from gpupolicy.adapters.cel.functions_standard import Implementation
from gpupolicy.adapters.cel.syntax import UncertainError
from gpupolicy.adapters.cel.values import CelError, check_room

__all__ = ["IMPLEMENTATIONS", "UNTIL_36"]

_SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
_SPACES += "\u2028\u2029\u202f\u205f\u3000"
_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_UPPER = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}


def _char_at(text: str, position: int) -> str:
    if not 0 <= position <= len(text):
        raise CelError(f"index out of range: {position}")
    return text[position : position + 1]


def _index_of(text: str, part: str, offset: int = 0) -> int:
    if offset < 0:
        raise CelError(f"index out of range: {offset}")
    if not part:
        return min(offset, len(text))
    return text.find(part, offset)


def _last_index_of(text: str, part: str) -> int:
    return text.rfind(part)


def _last_index_of_offset(text: str, part: str, offset: int) -> int:
    if offset < 0:
        raise CelError(f"index out of range: {offset}")
    if not part:
        return min(offset, len(text))
    if offset >= len(text):
        return -1
    return text.rfind(part, 0, offset + len(part))


def _inside(search: Implementation) -> Implementation:
    def function(text: str, part: str, offset: int) -> int:
        if not part and not 0 <= offset <= len(text):
            raise UncertainError("releases differ on searching for nothing outside of the string")
        return int(search(text, part, offset))

    return function


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


UNTIL_36: dict[str, Implementation] = {
    "string_index_of_string_int": _inside(_index_of),
    "string_last_index_of_string_int": _inside(_last_index_of_offset),
}
"""What differs in releases before 1.37."""

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
    "string_format": formatting.format_values,
    "strings_quote": _quote,
    "list_join": _join,
    "list_join_string": _join,
}
