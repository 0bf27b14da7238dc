"""Profile names: read, written, compared, found on a card."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupolicy.api.conditions import Reason
from gpupolicy.core.inventory import MigProfile
from gpupolicy.core.profiles import ProfileName, derive, find_profile, offered, parse
from gpupolicy.core.refusals import Refusal
from tests.unit.core.builders import H100


@pytest.mark.parametrize(
    ("text", "name", "written", "slug"),
    [
        ("1g.10gb", ProfileName(1, 10), "1g.10gb", "1g-10gb"),
        ("7g.141gb", ProfileName(7, 141), "7g.141gb", "7g-141gb"),
        ("1g.10gb+me", ProfileName(1, 10, ("+me",)), "1g.10gb+me", "1g-10gb-me"),
        ("1g.24gb-me", ProfileName(1, 24, ("-me",)), "1g.24gb-me", "1g-24gb-no-me"),
        ("1g.24gb+me.all", ProfileName(1, 24, ("+me.all",)), "1g.24gb+me.all", "1g-24gb-me-all"),
        ("1g.24gb+gfx", ProfileName(1, 24, ("+gfx",)), "1g.24gb+gfx", "1g-24gb-gfx"),
        ("4g.96gb+me,gfx", ProfileName(4, 96, ("+gfx", "+me")), "4g.96gb+gfx+me", "4g-96gb-gfx-me"),
        ("1c.3g.40gb", ProfileName(3, 40, (), 1), "1c.3g.40gb", "1c-3g-40gb"),
        ("3c.3g.40gb", ProfileName(3, 40), "3g.40gb", "3g-40gb"),
        ("MIG 1g.10gb", ProfileName(1, 10), "1g.10gb", "1g-10gb"),
        (" 1G.10GB+ME ", ProfileName(1, 10, ("+me",)), "1g.10gb+me", "1g-10gb-me"),
    ],
)
def test_parse(text: str, name: ProfileName, written: str, slug: str) -> None:
    assert parse(text) == name
    assert str(name) == written
    assert name.slug == slug


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1g",
        "10gb",
        "0g.10gb",
        "1g.0gb",
        "1g.10gib",
        "g.10gb",
        "4c.3g.40gb",
        "1g.10gb+",
        "1g.10gb me",
        "١g.10gb",
    ],
)
def test_what_is_no_name(text: str) -> None:
    assert parse(text) is None


@given(
    st.builds(
        ProfileName,
        st.integers(1, 12),
        st.integers(1, 999),
        st.sets(st.sampled_from(["+me", "-me", "+me.all", "+gfx"])).map(lambda a: tuple(sorted(a))),
        st.none(),
    )
)
def test_names_survive_writing_and_reading(name: ProfileName) -> None:
    assert parse(str(name)) == name


def named(*names: str) -> tuple[MigProfile, ...]:
    return tuple(MigProfile(n, name, 1, 1024, 1, ()) for n, name in enumerate(names))


@pytest.mark.parametrize(
    ("wanted", "names", "found"),
    [
        pytest.param("1g.10gb", ("1g.10gb", "1g.10gb+me", "1g.20gb"), "1g.10gb", id="exact"),
        pytest.param("1g.10gb+me", ("1g.10gb", "1g.10gb+me"), "1g.10gb+me", id="attributes-count"),
        pytest.param("1g.24gb-me", ("1g.24gb", "1g.24gb+me", "1g.24gb-me"), "1g.24gb-me", id="minus-me"),
        pytest.param("1g.24gb", ("1g.23gb", "1g.23gb+me", "1g.47gb"), "1g.23gb", id="drift-23-24"),
        pytest.param("7g.189gb", ("7g.186gb",), "7g.186gb", id="drift-186-189"),
        pytest.param("1g.23gb", ("1g.23gb", "1g.24gb"), "1g.23gb", id="exact-before-near"),
        pytest.param("3c.3g.40gb", ("3g.40gb",), "3g.40gb", id="full-compute-instance"),
    ],
)
def test_find(wanted: str, names: tuple[str, ...], found: str) -> None:
    profile = find_profile(wanted, named(*names))

    assert isinstance(profile, MigProfile)
    assert profile.name == found


@pytest.mark.parametrize(
    ("wanted", "names", "words"),
    [
        pytest.param("1g.5gb", ("1g.6gb",), 'no profile "1g.5gb"', id="5-is-not-6"),
        pytest.param("1g.10gb", ("1g.12gb",), 'no profile "1g.10gb"', id="10-is-not-12"),
        pytest.param("1g.20gb", ("1g.23gb",), 'no profile "1g.20gb"', id="20-is-not-23"),
        pytest.param("2g.10gb", ("1g.10gb",), 'no profile "2g.10gb"', id="slices-count"),
        pytest.param("1g.10gb+me", ("1g.10gb",), 'no profile "1g.10gb+me"', id="me-is-not-there"),
        pytest.param(
            "1g.23gb",
            ("1g.24gb", "1g.22gb"),
            "could mean 1g.24gb (id 0), 1g.22gb (id 1)",
            id="ambiguous-by-memory",
        ),
        pytest.param(
            "1g.10gb",
            ("1g.10gb", "1g.10gb"),
            "could mean 1g.10gb (id 0), 1g.10gb (id 1)",
            id="ambiguous-by-name",
        ),
        pytest.param("1c.3g.40gb", ("3g.40gb",), "use 3g.40gb", id="part-of-an-instance"),
        pytest.param("one slice", ("1g.10gb",), "no MIG profile name", id="no-name-at-all"),
        pytest.param("1g.10gb", (), "this card reports no MIG profiles", id="nothing-there"),
        pytest.param("1g.10gb", ("weird",), "this card offers weird (up to 1)", id="strange-driver"),
    ],
)
def test_what_is_not_found_is_refused_with_the_choice(
    wanted: str, names: tuple[str, ...], words: str
) -> None:
    refusal = find_profile(wanted, named(*names))

    assert isinstance(refusal, Refusal)
    assert refusal.reason == Reason.INVALID_LAYOUT
    assert words in refusal.message


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("1g.23gb", "1g.24gb", True),
        ("1g.19gb", "1g.20gb", True),
        ("1g.18gb", "1g.19gb", False),
        ("1g.24gb", "2g.24gb", False),
        ("1g.24gb", "1g.24gb+me", False),
        ("1c.3g.40gb", "3g.40gb", False),
        ("1c.3g.40gb", "1c.3g.39gb", True),
    ],
)
def test_names_that_mean_the_same(one: str, other: str, same: bool) -> None:
    first, second = parse(one), parse(other)
    assert first
    assert second

    assert first.means(second) is second.means(first) is same


def test_offered_lists_small_profiles_first() -> None:
    assert offered(tuple(reversed(H100))).startswith(
        "1g.10gb (up to 7), 1g.10gb+me (up to 1), 1g.20gb (up to 4)"
    )


@pytest.mark.parametrize(
    ("slices", "memory", "card", "name"),
    [
        (1, 9984, 81559, "1g.10gb"),
        (3, 40448, 81559, "3g.40gb"),
        (7, 81152, 81559, "7g.80gb"),
        (1, 16384, 143771, "1g.18gb"),
        (3, 71424, 143771, "3g.71gb"),
        (1, 20992, 183359, "1g.23gb"),
        (1, 24192, 97887, "1g.24gb"),
        (1, 1, 81559, "1g.1gb"),
    ],
)
def test_derive_names_as_nvidia_smi_does(slices: int, memory: int, card: int, name: str) -> None:
    assert str(derive(slices, memory, card)) == name
