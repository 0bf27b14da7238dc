"""RE2, the regular expressions of CEL: linear in the text, so that no pattern can explode.

google-re2 is the same engine in C++. Where it has no wheel, patterns of literals, `.` and `.*` are matched here
(that is all the selector compiler writes) and about all others nothing is said.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from gpupolicy.adapters.cel import patterns
from gpupolicy.adapters.cel.syntax import UncertainError
from gpupolicy.adapters.cel.values import CelError

try:
    import re2 as _re2
except ImportError:  # pragma: no cover - tests switch it off instead
    _re2 = None

__all__ = ["available", "find", "find_all", "forget", "search", "valid"]

_MAX_MEMORY_BYTES = 8 << 20


def available() -> bool:
    """Return whether the full engine is installed."""
    return _re2 is not None


def forget() -> None:
    """Drop the compiled patterns, for tests that change what is installed."""
    _compiled.cache_clear()


def valid(pattern: str) -> bool:
    """Return whether the API server takes the pattern.

    Raises:
        UncertainError: when that cannot be told.
    """
    try:
        _compiled(pattern)
    except CelError:
        return False
    return True


def search(pattern: str, text: str) -> bool:
    """Return whether the pattern matches anywhere in the text."""
    return bool(_compiled(pattern).search(text))


def find(pattern: str, text: str) -> str:
    """Return the first match, "" when there is none."""
    found = _compiled(pattern).first(text)
    return "" if found is None else found


def find_all(pattern: str, text: str, limit: int) -> list[object]:
    """Return the matches, at most `limit` of them when it is not negative."""
    return _compiled(pattern).all(text, limit)


@dataclass(frozen=True, slots=True)
class _Matcher:
    search: Callable[[str], bool]
    first: Callable[[str], str | None]
    all: Callable[[str, int], list[object]]


@lru_cache(maxsize=512)
def _compiled(pattern: str) -> _Matcher:
    return _glob_matcher(pattern) if _re2 is None else _re2_matcher(_re2, pattern)


def _re2_matcher(re2: Any, pattern: str) -> _Matcher:
    try:
        rewritten = patterns.rewrite(pattern, _characters)
    except patterns.PatternError as error:
        raise CelError(f"error parsing regexp: {error}") from error
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_MEMORY_BYTES
    try:
        compiled = re2.compile(rewritten.text, options)
    except re2.error as error:
        text = error.args[0].decode() if isinstance(error.args[0], bytes) else str(error)
        if "too large" in text:
            # Go counts instructions where C++ counts bytes.
            raise UncertainError("the regular expression is too large to tell") from error
        raise CelError(f"error parsing regexp: {text}") from error
    if rewritten.unsure:
        raise UncertainError(rewritten.unsure)

    def first(text: str) -> str | None:
        match = compiled.search(text)
        return None if match is None else match.group()

    def all_(text: str, limit: int) -> list[object]:
        found: list[object] = []
        # Go skips an empty match that touches the end of the match before it.
        previous_end = -1
        for match in compiled.finditer(text):
            if 0 <= limit <= len(found):
                break
            if match.start() == match.end() == previous_end:
                continue
            previous_end = match.end()
            found.append(match.group())
        return found

    return _Matcher(lambda text: compiled.search(text) is not None, first, all_)


@cache
def _characters(characters: str) -> patterns.Ranges:
    """Return the characters of a class, found out by trying all there are: rarely asked, and a second's work."""
    every = "".join(map(chr, (*range(0xD800), *range(0xE000, 0x110000))))
    return tuple((ord(run[0]), ord(run[-1])) for run in _re2.findall(f"{characters}+", every))


_PLAIN = re.compile(r"\^(?:\(\?s:(?P<inner>.*)\)|(?P<bare>[^()|]*))\$", re.DOTALL)


def _glob_matcher(pattern: str) -> _Matcher:
    match = _PLAIN.fullmatch(pattern)
    alternatives = None
    if match is not None:
        alternatives = _alternatives(match["inner"] if match["inner"] is not None else match["bare"])
    if alternatives is None:
        raise UncertainError("no RE2 engine is installed for this platform")
    globs = alternatives

    def unsupported(*_: object) -> Any:
        raise UncertainError("no RE2 engine is installed for this platform")

    return _Matcher(lambda text: any(_glob(glob, text) for glob in globs), unsupported, unsupported)


def _alternatives(body: str) -> list[list[str]] | None:
    """Return lists of one-character literals, "any" and "many"; None when there is more in the pattern than that."""
    globs: list[list[str]] = [[]]
    tokens = re.compile(
        r"\\(?P<escaped>[^\w\s])|(?P<many>\.\*)|(?P<any>\.)|(?P<bar>\|)|(?P<plain>[^\\.+*?()|\[\]{}^$])"
    )
    position = 0
    while position < len(body):
        token = tokens.match(body, position)
        if token is None:
            return None
        position = token.end()
        if token.lastgroup == "bar":
            globs.append([])
        elif token.lastgroup in ("many", "any"):
            globs[-1].append(token.lastgroup)
        else:
            globs[-1].append(token[token.lastgroup or 0])
    return globs


def _glob(glob: list[str], text: str) -> bool:
    """Match in one pass with one point to come back to: linear in practice, quadratic at worst."""
    at = star = -1
    position = token = 0
    while position < len(text):
        if token < len(glob) and glob[token] == "many":
            star, at = token, position
            token += 1
        elif token < len(glob) and glob[token] in (text[position], "any"):
            token += 1
            position += 1
        elif star >= 0:
            at += 1
            token, position = star + 1, at
        else:
            return False
    return all(left == "many" for left in glob[token:])
