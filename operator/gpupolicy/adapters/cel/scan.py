"""Look at the characters of an expression: what is inside strings and comments, brackets, optional question marks.

For what has to be known before parsing, or where a parser cannot be asked.
"""

import bisect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

__all__ = ["MAX_DEPTH", "Scan", "scan", "without_optional_marks"]

MAX_DEPTH: Final = 250
"""Nested brackets that the API server's parser gives up at."""

# Raw strings know no escapes; of the others every escape is two characters. Longest first.
_OPAQUE = re.compile(
    r"""
    (?P<string>
        (?:[bB]?[rR]|[rR][bB]) (?: \"{3}.*?\"{3} | '{3}.*?'{3} | "[^"\r\n]*" | '[^'\r\n]*' )
      | [bB]? (?: \"{3}(?:\\.|[^\\])*?\"{3} | '{3}(?:\\.|[^\\])*?'{3} | "(?:\\.|[^"\\\r\n])*" | '(?:\\.|[^'\\\r\n])*' )
    )
    | (?P<comment> //[^\r\n]* )
    | (?P<word> [_a-zA-Z0-9]+ )
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Scan:
    """Pieces of an expression."""

    strings: tuple[tuple[int, int], ...]
    """(start, end) of string literals."""
    optional_marks: tuple[int, ...]
    """Places of question marks that make an access, an index or an entry optional."""
    depth: int
    """Deepest nesting of brackets."""
    quoted_name: int | None
    """Place of the first backtick."""
    brackets: tuple[tuple[int, int], ...] = ()
    """(place of a bracket, how many are open after it)."""

    def depth_at(self, position: int) -> int:
        """Return how many brackets are open around what begins at a place."""
        index = bisect.bisect_right(self.brackets, position, key=lambda bracket: bracket[0])
        return self.brackets[index - 1][1] if index else 0


def scan(text: str) -> Scan:
    """Return the pieces of an expression. Unclosed strings and brackets are taken as they are."""
    strings, marks, brackets = [], [], []
    open_brackets = deepest = 0
    previous = ""
    quoted_name = None
    for start, end, kind in _tokens(text):
        if kind == "comment":
            continue
        char = text[start]
        if kind == "string":
            strings.append((start, end))
        elif char in "([{":
            open_brackets += 1
            deepest = max(deepest, open_brackets)
            brackets.append((start, open_brackets))
        elif char in ")]}":
            open_brackets -= 1
            brackets.append((start, open_brackets))
        elif char == "`" and quoted_name is None:
            quoted_name = start
        elif char == "?" and previous in (".", "[", ",", "{"):
            marks.append(start)
            continue
        previous = char
    return Scan(tuple(strings), tuple(marks), deepest, quoted_name, tuple(brackets))


def without_optional_marks(text: str, marks: tuple[int, ...]) -> str:
    """Return the text with blanks for the question marks, so that everything else keeps its place."""
    characters = list(text)
    for mark in marks:
        characters[mark] = " "
    return "".join(characters)


def _tokens(text: str) -> Iterator[tuple[int, int, str]]:
    position = 0
    while position < len(text):
        match = _OPAQUE.match(text, position)
        if match is not None:
            yield position, match.end(), match.lastgroup or ""
            position = match.end()
        else:
            if not text[position].isspace():
                yield position, position + 1, "mark"
            position += 1
