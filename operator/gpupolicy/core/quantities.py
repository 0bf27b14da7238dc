"""Kubernetes quantities ("79Gi", "1500m", "1e3"): exact values, ordering and what the API server makes of them.

The selector compiler checks `minMemory` with it, the CEL evaluator computes with it. It never guesses: a string
that the API server would refuse raises `InvalidQuantityError`. Two things are kept because upstream code shows
them to users: whether a value lives in the small (64-bit) or the large (decimal) representation, and at which
power of ten, since "is it an integer" is answered from the representation and not from the value.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

__all__ = ["InvalidQuantityError", "Quantity", "UnsupportedQuantityError", "parse"]

_INT64_MAX = 2**63 - 1
_INT64_MIN = -(2**63)
_NANO_EXPONENT = -9
# Upstream takes the small representation only while the digits surely fit into 64 bits.
_MAX_EXPONENT = 999
_SMALL_DIGITS = 18
_SMALL_BINARY_DIGITS = 15

_DECIMAL_EXPONENTS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_EXPONENTS = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_SHAPE = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:(?P<point>\.)(?P<part>[0-9]*))?(?P<suffix>.*)", re.DOTALL
)
_SCIENTIFIC = re.compile(r"[eE](?P<exponent>[+-]?[0-9]+)")
_FORMAT_MESSAGE = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)


class InvalidQuantityError(ValueError):
    """The text is not a quantity; the message is the API server's."""


class UnsupportedQuantityError(ValueError):
    """The API server takes the text for a quantity, but nobody can mean it: its exponent has four digits or more."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """An exact amount: `value`, and how upstream stores it.

    `exponent` is the power of ten of the small representation (value = n * 10**exponent with a 64-bit n), None for
    the large one. Comparison and equality are by value; build with `parse` or `from_int`.
    """

    value: Fraction
    exponent: int | None
    scale: int = 0
    """Digits after the point that the large representation holds (value = n / 10**scale)."""

    @classmethod
    def from_int(cls, number: int) -> "Quantity":
        """Return the quantity of a 64-bit integer."""
        return cls(Fraction(number), 0)

    @property
    def sign(self) -> int:
        """Return -1, 0 or 1."""
        return (self.value > 0) - (self.value < 0)

    def compare(self, other: "Quantity") -> int:
        """Return -1, 0 or 1, by value."""
        return (self.value > other.value) - (self.value < other.value)

    def as_int64(self) -> int | None:
        """Return the value as a 64-bit integer where upstream's `asInteger` does, else None.

        "1000m" gives None although its value is 1: upstream decides by the representation.
        """
        if self.exponent is None or self.exponent < 0:
            return None
        number = int(self.value)
        return number if _INT64_MIN <= number <= _INT64_MAX else None

    def as_float(self) -> float:
        """Return a double near the value, in upstream's order of operations, with its roundings."""
        exponent = -self.places
        base = float(self.value / Fraction(10) ** exponent)
        return base if exponent == 0 else base * _power_of_ten(exponent)

    @property
    def places(self) -> int:
        """Return how many digits after the point the representation holds; negative when it counts tens or more."""
        return self.scale if self.exponent is None else -self.exponent

    def add(self, other: "Quantity") -> "Quantity":
        """Return the sum, stored as upstream stores it."""
        if other.exponent is not None:
            small = self._plus(int(other.value / Fraction(10) ** other.exponent), other.exponent)
            if small is not None:
                return small
        return Quantity(self.value + other.value, None, max(self.places, other.places))

    def sub(self, other: "Quantity") -> "Quantity":
        """Return the difference, stored as upstream stores it."""
        if other.exponent is not None:
            number = int(other.value / Fraction(10) ** other.exponent)
            # In 64 bits the least number is its own negative.
            small = self._plus(number if number == _INT64_MIN else -number, other.exponent)
            if small is not None:
                return small
        return Quantity(self.value - other.value, None, max(self.places, other.places))

    def _plus(self, number: int, exponent: int) -> "Quantity | None":
        """Return the sum with number * 10**exponent in the small representation, None where 64 bits do not do."""
        if self.exponent is None:
            return None
        mine = int(self.value / Fraction(10) ** self.exponent)
        if number == 0:
            return self
        if mine == 0:
            return Quantity(number * Fraction(10) ** exponent, exponent)
        finer = min(self.exponent, exponent)
        left, right = mine * 10 ** (self.exponent - finer), number * 10 ** (exponent - finer)
        if not all(_INT64_MIN <= n <= _INT64_MAX for n in (left, right, left + right)):
            return None
        return Quantity((left + right) * Fraction(10) ** finer, finer)


def parse(text: str) -> Quantity:
    """Return the quantity that the API server reads from `text`.

    Raises:
        InvalidQuantityError: with the API server's message.
        UnsupportedQuantityError: on an absurd exponent.
    """
    if not text:
        raise InvalidQuantityError(_FORMAT_MESSAGE)
    match = _SHAPE.fullmatch(text)
    if match is None:  # pragma: no cover - the pattern accepts every text
        raise InvalidQuantityError(_FORMAT_MESSAGE)
    whole, part, suffix = match["whole"].lstrip("0"), match["part"] or "", match["suffix"]
    # Upstream stops at the end of the leading zeros before it looks for a number at all: "+" is 0.
    if not whole and match["point"] is None and not suffix:
        return Quantity(Fraction(0), 0)
    exponent, binary = _suffix_exponent(suffix)
    if abs(exponent) > _MAX_EXPONENT:
        if (whole + part).strip("0"):
            raise UnsupportedQuantityError(f"{text} is a quantity, but of a size that is not computed with")
        exponent = 0
    sign = -1 if match["sign"] == "-" else 1
    digits = Fraction(int((whole or "0") + part), 10 ** len(part))
    value = sign * digits * (Fraction(2) if binary else Fraction(10)) ** exponent
    small = _small_exponent(whole or "0", part, exponent, binary=binary, value=value)
    if small is not None:
        return Quantity(value, small)
    if not match["whole"] and not part:
        # The large path reads the digits as they stand, and there are none.
        raise InvalidQuantityError("unable to parse numeric part of quantity")
    if not value:
        return Quantity(value, None, len(part) - (0 if binary else exponent))
    bounded = _bounded(value, binary=binary)
    # A number that was cut off is a whole one; all others are rounded to nanos, even where nothing is lost.
    is_cut = binary and abs(bounded) == _INT64_MAX
    return Quantity(bounded, None, 0 if is_cut else -_NANO_EXPONENT)


def _power_of_ten(exponent: int) -> float:
    """Return the power as Go's tables give it: from two factors, which is not always the nearest double."""
    coarse, fine = divmod(abs(exponent), 32)
    if exponent >= 0:
        return float(f"1e{32 * coarse}") * float(f"1e{fine}")
    return float(f"1e-{32 * coarse}") / float(f"1e{fine}")


def _suffix_exponent(suffix: str) -> tuple[int, bool]:
    if suffix in _DECIMAL_EXPONENTS:
        return _DECIMAL_EXPONENTS[suffix], False
    if suffix in _BINARY_EXPONENTS:
        return _BINARY_EXPONENTS[suffix], True
    scientific = _SCIENTIFIC.fullmatch(suffix)
    if scientific is not None:
        exponent = int(scientific["exponent"])
        if _INT64_MIN <= exponent <= _INT64_MAX:
            # Upstream keeps the lower 32 bits.
            return (exponent + 2**31) % 2**32 - 2**31, False
    if re.fullmatch(r"[eEinumkKMGTP]*[+-]?[0-9]*", suffix):
        raise InvalidQuantityError("unable to parse quantity's suffix")
    raise InvalidQuantityError(_FORMAT_MESSAGE)


def _small_exponent(whole: str, part: str, exponent: int, *, binary: bool, value: Fraction) -> int | None:
    if binary:
        if part:
            return None
        fits = _SMALL_BINARY_DIGITS - len(whole) - int(exponent * 3 / 10) - 1 >= 0
        return 0 if fits and _INT64_MIN <= value <= _INT64_MAX else None
    scale = exponent - len(part)
    if len(whole) + len(part) > _SMALL_DIGITS or scale < _NANO_EXPONENT:
        return None
    return scale


def _bounded(value: Fraction, *, binary: bool) -> Fraction:
    magnitude = abs(value)
    # What is finer than a nano is rounded away from zero, so that something asked for never becomes nothing.
    nanos = -((-magnitude * 10**-_NANO_EXPONENT).__floor__())
    magnitude = Fraction(nanos, 10**-_NANO_EXPONENT)
    if binary:
        magnitude = min(magnitude, Fraction(_INT64_MAX))
    return -magnitude if value < 0 else magnitude
