"""Semantic versions as device attributes carry them: strict parsing, order, and the lenient reading of short forms.

The selector compiler turns `minComputeCapability: "9.0"` into one, the CEL evaluator compares with them. Build
metadata never takes part in a comparison; a prerelease sorts before its release.
"""

import functools
import re
from dataclasses import dataclass

__all__ = ["InvalidVersionError", "Version", "normalize", "parse"]

_UINT64_MAX = 2**64 - 1
_PARTS = 3
_NUMBER = re.compile(r"[0-9]+")
_WORD = re.compile(r"[0-9A-Za-z-]+")


class InvalidVersionError(ValueError):
    """The text is not a semantic version; the message says which part is wrong."""


@functools.total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """A semantic version. Equality and order ignore `build`."""

    major: int
    minor: int
    patch: int
    prerelease: tuple[int | str, ...] = ()
    build: tuple[str, ...] = ()

    def _key(self) -> tuple[object, ...]:
        # A release sorts after its prereleases, numbers before words, a longer prerelease after its prefix.
        words = tuple((0, p, "") if isinstance(p, int) else (1, 0, p) for p in self.prerelease)
        return (self.major, self.minor, self.patch, not self.prerelease, words)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self._key() == other._key()

    def __lt__(self, other: "Version") -> bool:
        return self._key() < other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __str__(self) -> str:
        text = f"{self.major}.{self.minor}.{self.patch}"
        if self.prerelease:
            text += "-" + ".".join(str(p) for p in self.prerelease)
        if self.build:
            text += "+" + ".".join(self.build)
        return text


def parse(text: str) -> Version:
    """Return the version in `text`, which must have exactly three numbers and no leading "v" or zeros.

    Raises:
        InvalidVersionError: naming the part that is wrong.
    """
    if not text:
        raise InvalidVersionError("Version string empty")
    parts = text.split(".", _PARTS - 1)
    if len(parts) != _PARTS:
        raise InvalidVersionError("No Major.Minor.Patch elements found")
    major, minor = _number(parts[0], "major"), _number(parts[1], "minor")
    rest, plus, build = parts[2].partition("+")
    rest, minus, prerelease = rest.partition("-")
    patch = _number(rest, "patch")
    return Version(
        major,
        minor,
        patch,
        tuple(_prerelease(word) for word in prerelease.split(".")) if minus else (),
        tuple(_build(word) for word in build.split(".")) if plus else (),
    )


def normalize(text: str) -> Version:
    """Return the version in `text`, which may start with "v", be short ("9.0") and have leading zeros.

    Raises:
        InvalidVersionError: when it is not a version even so.
    """
    parts = [_without_leading_zeros(part) for part in text.removeprefix("v").split(".", _PARTS - 1)]
    if len(parts) < _PARTS:
        if "+" in parts[-1] or "-" in parts[-1]:
            raise InvalidVersionError("short version cannot contain PreRelease/Build meta data")
        parts += ["0"] * (_PARTS - len(parts))
    return parse(".".join(parts))


def _without_leading_zeros(part: str) -> str:
    if len(part) < 2:  # noqa: PLR2004
        return part
    stripped = part.lstrip("0")
    return stripped if stripped[:1] in set("0123456789") else "0" + stripped


def _number(text: str, name: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise InvalidVersionError(f'Invalid character(s) found in {name} number "{text}"')
    if len(text) > 1 and text[0] == "0":
        raise InvalidVersionError(f'{name.capitalize()} number must not contain leading zeroes "{text}"')
    if int(text) > _UINT64_MAX:
        raise InvalidVersionError(f'the {name} number "{text}" is out of range')
    return int(text)


def _prerelease(word: str) -> int | str:
    if not word:
        raise InvalidVersionError("Prerelease is empty")
    if _NUMBER.fullmatch(word):
        if len(word) > 1 and word[0] == "0":
            raise InvalidVersionError(f'Numeric PreRelease version must not contain leading zeroes "{word}"')
        if int(word) > _UINT64_MAX:
            raise InvalidVersionError(f'the prerelease number "{word}" is out of range')
        return int(word)
    if not _WORD.fullmatch(word):
        raise InvalidVersionError(f'Invalid character(s) found in prerelease "{word}"')
    return word


def _build(word: str) -> str:
    if not word:
        raise InvalidVersionError("Build meta data is empty")
    if not _WORD.fullmatch(word):
        raise InvalidVersionError(f'Invalid character(s) found in build meta data "{word}"')
    return word
