r"""Read a regular expression as Go does, and write it for the C++ engine.

Both engines come from one design and agree in almost everything. What they do not agree in is settled here, before the
C++ engine sees the pattern: Go reads names of character classes freely (`\p{uppercase letter}` is `\p{Lu}`) and has
classes that C++ lacks (unassigned, ASCII), but finds no script whose name has an underscore; it counts no repetition
beyond 1,000, takes only ASCII names of groups, gives up at 1,000 levels, and has no `\C`.

Source: Go's `regexp/syntax`, from 1.25 on (Kubernetes 1.35); before, class names were exact.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

__all__ = ["PatternError", "Rewritten", "rewrite"]

_MAX_REPEAT: Final = 1000
_MAX_LEVELS: Final = 1000
_SURE_LEVELS: Final = 200
"""Brackets within which the tree is surely no deeper than Go allows: a level of them is at most a few nodes."""

_FOLDING = re.compile(r"\(\?[a-zA-Z]*i")

_TOKEN = re.compile(
    r"""
    \\Q(?P<quoted>.*?)(?:\\E|\Z)
    | \\(?P<sign>[pP])(?:\{(?P<name>[^}]*)\}|(?P<letter>[^{]))
    | \\(?P<byte>C)
    | \\.
    | \(\?P?<(?P<group>[^>]*)>
    | (?P<capture>\()(?!\?)
    | (?P<open>\(\?)
    | (?P<close>\))
    | \{(?P<least>0|[1-9][0-9]*)(?:,(?P<most>0|[1-9][0-9]*)?)?\}
    | (?P<set>\[\^?\]?)
    | .
    """,
    re.VERBOSE | re.DOTALL,
)
_SET_TOKEN = re.compile(
    r"""
    \[:\^?[a-z]+:\]
    | \\(?P<sign>[pP])(?:\{(?P<name>[^}]*)\}|(?P<letter>[^{]))
    | \\(?P<byte>C)
    | \\.
    | (?P<end>\])
    | .
    """,
    re.VERBOSE | re.DOTALL,
)

_ALIASES: Final = {
    "Casedletter": "LC",
    "Closepunctuation": "Pe",
    "Combiningmark": "M",
    "Connectorpunctuation": "Pc",
    "Control": "Cc",
    "Currencysymbol": "Sc",
    "Dashpunctuation": "Pd",
    "Decimalnumber": "Nd",
    "Enclosingmark": "Me",
    "Finalpunctuation": "Pf",
    "Format": "Cf",
    "Initialpunctuation": "Pi",
    "Letter": "L",
    "Letternumber": "Nl",
    "Lineseparator": "Zl",
    "Lowercaseletter": "Ll",
    "Mark": "M",
    "Mathsymbol": "Sm",
    "Modifierletter": "Lm",
    "Modifiersymbol": "Sk",
    "Nonspacingmark": "Mn",
    "Number": "N",
    "Openpunctuation": "Ps",
    "Other": "C",
    "Otherletter": "Lo",
    "Othernumber": "No",
    "Otherpunctuation": "Po",
    "Othersymbol": "So",
    "Paragraphseparator": "Zp",
    "Privateuse": "Co",
    "Punctuation": "P",
    "Separator": "Z",
    "Spaceseparator": "Zs",
    "Spacingmark": "Mc",
    "Surrogate": "Cs",
    "Symbol": "S",
    "Titlecaseletter": "Lt",
    "Unassigned": "Cn",
    "Uppercaseletter": "Lu",
    "Cntrl": "Cc",
    "Digit": "Nd",
    "Punct": "P",
    "Lc": "LC",
    "Ascii": "ASCII",
}
_ASSIGNED: Final = r"\p{L}\p{M}\p{N}\p{P}\p{S}\p{Z}\p{Cc}\p{Cf}\p{Co}\p{Cs}"
_MADE_OF: Final = {
    "LC": (r"\p{Lu}\p{Ll}\p{Lt}", False),
    "Assigned": (_ASSIGNED, False),
    "Cn": (_ASSIGNED, True),
    "C": (r"\p{L}\p{M}\p{N}\p{P}\p{S}\p{Z}", True),
    "ASCII": (r"\x00-\x7f", False),
}
"""Classes that C++ does not have, or has without what is not assigned -> (content of a set, whether all but that)."""
_CASED: Final = frozenset({"LC", "ASCII"})
"""Those of them to which other characters belong where case does not matter."""

Ranges = tuple[tuple[int, int], ...]


class PatternError(Exception):
    """Go refuses the pattern; the message says why."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A pattern for the C++ engine."""

    text: str
    unsure: str = ""
    """Why Go may still see it otherwise, "" when it does not."""


def rewrite(pattern: str, characters: Callable[[str], Ranges]) -> Rewritten:
    """Return the pattern with everything written out that only Go knows.

    `characters` tells which characters a class of the C++ engine holds, as ranges of code points.

    Raises:
        PatternError: when Go refuses it for a reason that C++ does not have.
    """
    return _Rewriter(pattern, characters).result()


class _Rewriter:
    def __init__(self, pattern: str, characters: Callable[[str], Ranges]) -> None:
        self._pattern = pattern
        self._characters = characters
        self._unsure = ""
        # For each open bracket, whether it captures.
        self._levels: list[bool] = []
        self._captures = 0

    def result(self) -> Rewritten:
        text = "".join(self._parts())
        return Rewritten(text, self._unsure)

    def _parts(self) -> Iterator[str]:
        position = 0
        in_set = False
        while position < len(self._pattern):
            token = (_SET_TOKEN if in_set else _TOKEN).match(self._pattern, position)
            if token is None:
                # A backslash at the end: the engine refuses it itself.
                yield self._pattern[position:]
                return
            position = token.end()
            if token["byte"]:
                # One byte of a character: the C++ engine knows it, Go's does not.
                raise PatternError("invalid escape sequence: `\\C`")
            if token["sign"]:
                yield self._class(token, in_set=in_set)
            elif in_set:
                in_set = not token["end"]
                yield token.group()
            else:
                in_set = bool(token["set"])
                self._look_at(token)
                yield token.group()

    def _look_at(self, token: re.Match[str]) -> None:
        if token["group"] is not None and not re.fullmatch(r"[A-Za-z0-9_]+", token["group"]):
            raise PatternError(f"invalid named capture: `{token.group()}`")
        for number in (token["least"], token["most"]):
            if number is not None and (len(number) > len(str(_MAX_REPEAT)) or int(number) > _MAX_REPEAT):
                raise PatternError(f"invalid repeat count: `{token.group()}`")
        if token["close"]:
            self._captures -= bool(self._levels and self._levels.pop())
        elif token["capture"] or token["open"] or token["group"] is not None:
            self._levels.append(not token["open"])
            self._captures += not token["open"]
            if self._captures >= _MAX_LEVELS:
                raise PatternError("expression nests too deeply")
            if len(self._levels) > _SURE_LEVELS:
                self._unsure = "the regular expression is nested too deeply to tell"

    def _class(self, token: re.Match[str], *, in_set: bool) -> str:
        written = token["letter"] if token["name"] is None else token["name"]
        negated = (token["sign"] == "P") != written.startswith("^")
        name = _canonical(written.removeprefix("^"))
        name = _ALIASES.get(name, name)
        made_of = _MADE_OF.get(name)
        if made_of is None:
            return f"\\{'P' if negated else 'p'}{{{name}}}"
        content, inverted = made_of
        if not in_set:
            return f"[{'^' if negated != inverted else ''}{content}]"
        if negated == inverted:
            return content
        if name in _CASED and _FOLDING.search(self._pattern):
            self._unsure = f"a set that holds all but \\p{{{name}}} where case may not matter"
        return "".join(f"\\x{{{low:X}}}-\\x{{{high:X}}}" for low, high in self._characters(f"[^{content}]"))


def _canonical(name: str) -> str:
    plain = re.sub("[ _-]", "", name)
    return plain[:1].upper() + plain[1:].lower() if plain.isascii() else plain
