"""Semantic versions: strict and lenient reading, and order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupolicy.core.versions import InvalidVersionError, Version, normalize, parse


@pytest.mark.parametrize(
    "text", ["1.2.3", "0.0.0", "1.2.3-rc.1", "1.2.3+build.007", "1.2.3-a-b.0+x", "18446744073709551615.0.0"]
)
def test_read_and_written_back(text: str) -> None:
    assert str(parse(text)) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("1.2", "No Major.Minor.Patch"),
        ("v1.2.3", "major"),
        ("01.2.3", "leading zeroes"),
        ("1.2.3-", "Prerelease is empty"),
        ("1.2.3-01", "leading zeroes"),
        ("1.2.3-a_b", "prerelease"),
        ("1.2.3+", "Build meta data is empty"),
        ("1.2.3+é", "build meta data"),
        ("1.2.x", "patch"),
        ("18446744073709551616.0.0", "out of range"),
        ("1.2.3.4", "patch"),
    ],
)
def test_refused_with_the_part_that_is_wrong(text: str, words: str) -> None:
    with pytest.raises(InvalidVersionError, match=words):
        parse(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("9.0", "9.0.0"),
        ("v9", "9.0.0"),
        ("09.00.01", "9.0.1"),
        ("000.1", "0.1.0"),
        ("1.2.3-rc.1", "1.2.3-rc.1"),
    ],
)
def test_short_forms(text: str, expected: str) -> None:
    assert str(normalize(text)) == expected


@pytest.mark.parametrize("text", ["", "a", "1.2-rc", "1+b", "vv1", "1.2.3.4"])
def test_what_is_no_version_even_so(text: str) -> None:
    with pytest.raises(InvalidVersionError):
        normalize(text)


ORDERED = [
    "0.9.9",
    "1.0.0-1",
    "1.0.0-2",
    "1.0.0-10",
    "1.0.0-a",
    "1.0.0-a.1",
    "1.0.0-b",
    "1.0.0",
    "1.0.1",
    "1.1.0",
    "10.0.0",
]


def test_order() -> None:
    assert [str(v) for v in sorted(parse(text) for text in reversed(ORDERED))] == ORDERED


@given(st.tuples(*[st.integers(0, 99)] * 3), st.tuples(*[st.integers(0, 99)] * 3))
def test_numbers_are_compared_as_numbers(a: tuple[int, int, int], b: tuple[int, int, int]) -> None:
    assert (Version(*a) < Version(*b)) == (a < b)


def test_build_metadata_does_not_count() -> None:
    assert parse("1.0.0+a") == parse("1.0.0+b")
    assert hash(parse("1.0.0+a")) == hash(parse("1.0.0"))
    assert parse("1.0.0") != "1.0.0"
