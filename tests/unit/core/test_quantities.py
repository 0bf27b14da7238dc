"""Quantities: what the API server reads, keeps and computes."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupolicy.core import quantities
from gpupolicy.core.quantities import InvalidQuantityError, Quantity, UnsupportedQuantityError, parse


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("80Gi", 80 * 2**30),
        ("79.5Gi", Fraction(159, 2) * 2**30),
        ("1500m", Fraction(3, 2)),
        ("1k", 1000),
        ("1Ki", 1024),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("1e-3", Fraction(1, 1000)),
        ("-5", -5),
        ("+5", 5),
        ("+", 0),
        ("Gi", 0),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("007", 7),
        ("0.1n", Fraction(1, 10**9)),
        ("-0.1n", Fraction(-1, 10**9)),
        ("9999Ei", 2**63 - 1),
        ("0e99999", 0),
    ],
)
def test_values(text: str, value: Fraction | int) -> None:
    assert parse(text).value == value


@pytest.mark.parametrize(
    "text",
    ["", " 5", "5 ", "10GB", "1K", "1.2.3", "1e", "0x10", "five", "1,5", "1e99999999999999999999"],
)
def test_refused(text: str) -> None:
    with pytest.raises(InvalidQuantityError):
        parse(text)


def test_an_absurd_exponent_is_neither_taken_nor_refused() -> None:
    """The API server takes it; computing with it would need gigabytes."""
    with pytest.raises(UnsupportedQuantityError):
        parse("1e123456789")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5", 5),
        ("1k", 1000),
        ("80Gi", 80 * 2**30),
        ("1000m", None),
        ("1.5", None),
        ("1.5Gi", None),
        ("1e18", 10**18),
    ],
)
def test_integers_are_told_from_the_form(text: str, number: int | None) -> None:
    """Not from the value: 1000m is no integer to the API server."""
    assert parse(text).as_int64() == number


small = st.integers(-(2**62), 2**62).map(Quantity.from_int)


@given(a=small, b=small)
def test_sums_are_exact(a: Quantity, b: Quantity) -> None:
    assert a.add(b).value == a.value + b.value
    assert a.sub(b).value == a.value - b.value
    assert a.compare(b) == (a.value > b.value) - (a.value < b.value)


def test_what_does_not_fit_becomes_large() -> None:
    """The large form is no integer any more, whatever its value."""
    most = Quantity.from_int(2**63 - 1)
    assert most.add(Quantity.from_int(1)) == Quantity(Fraction(2**63), None)
    assert most.add(Quantity.from_int(1)).as_int64() is None
    assert most.add(Quantity.from_int(0)) == most


def test_the_least_number_is_its_own_negative() -> None:
    """A fault of the API server's arithmetic that expressions can see."""
    least = Quantity.from_int(-(2**63))
    assert Quantity.from_int(5).sub(least).value == 5 - 2**63


@given(st.text(alphabet="0123456789.+-eEkKMGi numn", max_size=8))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parsed = parse(text)
    except (InvalidQuantityError, UnsupportedQuantityError):
        return
    assert parsed.sign == (parsed.value > 0) - (parsed.value < 0)
    if parsed.exponent is not None and abs(parsed.exponent) < 300:
        # Beyond, upstream multiplies with infinity, and so does this.
        assert parsed.as_float() == pytest.approx(float(parsed.value))


def test_the_module_exports_what_it_says() -> None:
    assert all(hasattr(quantities, name) for name in quantities.__all__)
