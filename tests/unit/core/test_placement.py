"""Geometry of a card: what may lie where, which rules bind, and tables that no sane driver would send."""

from dataclasses import replace

import pytest

from gpupolicy.core.inventory import MigProfile, Placement
from gpupolicy.core.layouts import StaticLayout
from gpupolicy.core.placement import (
    MOST_ARRANGEMENTS,
    Geometry,
    all_arrangements,
    counts_of,
    fits,
    geometry,
    layouts,
    most,
)
from gpupolicy.core.planner import plan_card
from tests.unit.core.builders import H100, card
from tests.unit.core.known_cards import KNOWN_CARDS

RTX = KNOWN_CARDS["rtx-pro-6000-96gb"]
A30 = KNOWN_CARDS["a30"]


def ids(profiles: tuple[MigProfile, ...], text: str) -> tuple[tuple[int, int], ...]:
    """Read `1g.10gb*2 3g.40gb` as a multiset of profile ids."""
    by_name = {p.name: p.id for p in profiles}
    found = []
    for part in text.split():
        name, _, count = part.partition("*")
        found += [by_name[name]] * int(count or 1)
    return counts_of(found)


def starts(profiles: tuple[MigProfile, ...], text: str) -> list[list[str]]:
    """Return the arrangements of a multiset as `profile@start`, in the order in which they are listed."""
    known = geometry(profiles)
    return [
        [f"{pair.profile}@{pair.placement.start}" for pair in known.pairs_in(a.pairs)]
        for a in all_arrangements(profiles, ids(profiles, text))
    ]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        pytest.param("7g.80gb", [["7g.80gb@0"]], id="one-place"),
        pytest.param("3g.40gb*2", [["3g.40gb@0", "3g.40gb@4"]], id="equal-profiles-are-not-swapped"),
        pytest.param(
            "2g.20gb*2",
            [["2g.20gb@0", "2g.20gb@2"], ["2g.20gb@0", "2g.20gb@4"], ["2g.20gb@2", "2g.20gb@4"]],
            id="pairs",
        ),
        pytest.param("4g.40gb 3g.40gb", [["4g.40gb@0", "3g.40gb@4"]], id="four-and-three"),
        pytest.param(
            "3g.40gb 2g.20gb*2", [["3g.40gb@4", "2g.20gb@0", "2g.20gb@2"]], id="only-one-half-takes-two"
        ),
        pytest.param("3g.40gb*2 1g.10gb", [], id="three-three-and-one"),
        pytest.param("1g.20gb*4", [["1g.20gb@0", "1g.20gb@2", "1g.20gb@4", "1g.20gb@6"]], id="double-memory"),
        pytest.param("1g.10gb*7", [[f"1g.10gb@{n}" for n in range(7)]], id="seven"),
    ],
)
def test_arrangements(wanted: str, expected: list[list[str]]) -> None:
    assert starts(H100, wanted) == expected


def test_nothing_has_one_arrangement() -> None:
    assert [(a.pairs, a.slices) for a in all_arrangements(H100, ())] == [(0, 0)]


@pytest.mark.parametrize(
    ("profiles", "wanted", "permitted"),
    [
        pytest.param(H100, "1g.10gb*7", True, id="as-many-as-there-may-be"),
        pytest.param(H100, "1g.10gb*8", False, id="more-than-there-may-be"),
        pytest.param(H100, "1g.10gb+me 1g.10gb*6", True, id="one-with-media"),
        pytest.param(H100, "1g.10gb+me*2", False, id="two-with-media"),
        pytest.param(A30, "1g.6gb+me 2g.12gb", True, id="a30-one-with-media"),
        pytest.param(A30, "1g.6gb+me 2g.12gb+me", False, id="a30-two-sizes-with-media"),
        pytest.param(RTX, "1g.24gb+me.all 1g.24gb-me*3", True, id="all-media-beside-none"),
        pytest.param(RTX, "1g.24gb+me.all 1g.24gb", False, id="all-media-beside-some"),
        pytest.param(RTX, "1g.24gb+me.all 1g.24gb+gfx", False, id="all-media-beside-graphics"),
        pytest.param(RTX, "1g.24gb+me.all 1g.24gb+me", False, id="all-media-beside-media"),
        pytest.param(RTX, "2g.48gb+me.all 2g.48gb-me", True, id="all-media-in-half-a-card"),
        pytest.param(RTX, "1g.24gb+gfx*4", True, id="graphics-four-times"),
    ],
)
def test_rules_without_places(profiles: tuple[MigProfile, ...], wanted: str, permitted: bool) -> None:
    assert geometry(profiles).permits(ids(profiles, wanted)) is permitted


def test_a_profile_that_the_card_does_not_have_is_not_permitted() -> None:
    assert not geometry(H100).permits(((99, 1),))
    assert not fits(H100, ((99, 1),))


def test_engines_that_a_single_profile_overbooks_bind_nothing() -> None:
    """Seven instances with two decoders each and seven in all: the driver shares them, whatever it says."""
    shared = tuple(replace(p, decoders=2 if p.id == 19 else p.decoders) for p in H100)
    by_the_book = tuple(replace(p, decoders=2 if p.id == 15 else p.decoders) for p in H100)

    assert Geometry(shared).permits(ids(H100, "1g.10gb*7"))
    assert Geometry(shared).permits(ids(H100, "1g.10gb*4 3g.40gb"))
    assert not Geometry(shared).permits(ids(H100, "1g.10gb+me 7g.80gb")), "other engines still bind"
    assert Geometry(by_the_book).permits(ids(H100, "1g.20gb*2 3g.40gb"))


@pytest.mark.parametrize(
    ("present", "free"),
    [
        pytest.param("", {19: 7, 20: 7, 15: 4, 14: 3, 9: 2, 5: 1, 0: 1}, id="all"),
        pytest.param("4g.40gb", {19: 7, 20: 7, 15: 4, 14: 3, 9: 2}, id="a-second-4g-is-not-allowed"),
        pytest.param("1g.10gb+me", {19: 7, 15: 4, 14: 3, 9: 2, 5: 1}, id="media-are-taken"),
        pytest.param("7g.80gb", {}, id="full"),
    ],
)
def test_what_the_rules_still_allow_beside(present: str, free: dict[int, int]) -> None:
    """Open are the pairs of profiles that may be added at all; the places are for the caller to compare."""
    masks = geometry(H100).open_masks(ids(H100, present))

    expected = [q.mask for p in geometry(H100).profiles.values() for q in p.placements if p.id in free]
    assert sorted(masks) == sorted(expected)
    assert len(masks) == sum(free.values())


@pytest.mark.parametrize(
    ("wanted", "profile", "count"),
    [
        ("3g.40gb*3", "3g.40gb", 2),
        ("3g.40gb*2 1g.10gb*2", "1g.10gb", 0),
        ("3g.40gb*2 1g.10gb*2", "3g.40gb", 1),
        ("7g.80gb*2 4g.40gb*2", "7g.80gb", None),
        ("3g.40gb 1g.10gb*9", "1g.10gb", 4),
        ("1g.10gb*2", "1g.10gb", 2),
    ],
)
def test_most(wanted: str, profile: str, count: int | None) -> None:
    assert most(H100, ids(H100, wanted), next(p.id for p in H100 if p.name == profile)) == count


def test_pairs_are_found_by_profile_and_placement() -> None:
    known = geometry(H100)

    assert [known.index_of(p.profile_id, p.placement) for p in known.pairs] == list(range(len(known.pairs)))
    assert known.index_of(19, Placement(7, 1)) is None
    assert known.index_of(9, Placement(0, 2)) is None
    assert known.index_of(99, Placement(0, 1)) is None


def test_equal_cards_share_a_geometry_and_order_does_not_matter() -> None:
    assert geometry(H100) is geometry(tuple(replace(p) for p in H100))
    assert Geometry(H100).pairs == Geometry(tuple(reversed(H100))).pairs


@pytest.mark.parametrize(
    ("profile", "fit"),
    [
        pytest.param(MigProfile(1, "1g.1gb", 1, 1024, 4, ()), 0, id="without-placements"),
        pytest.param(MigProfile(1, "1g.1gb", 1, 1024, 0, (Placement(0, 1),)), 0, id="none-allowed"),
        pytest.param(
            MigProfile(1, "1g.1gb", 1, 1024, -1, (Placement(0, 1),)), 0, id="less-than-none-allowed"
        ),
        pytest.param(MigProfile(1, "1g.1gb", 1, 1024, 9, (Placement(0, 1),) * 3), 1, id="a-placement-thrice"),
        pytest.param(MigProfile(1, "1g.1gb", 1, 1024, 9, (Placement(0, 0),)), 1, id="of-no-size"),
        pytest.param(
            MigProfile(1, "1g.1gb", 1, 1024, 64, tuple(Placement(n, 1) for n in range(64))),
            64,
            id="a-huge-card",
        ),
    ],
)
def test_strange_tables_do_no_harm(profile: MigProfile, fit: int) -> None:
    most_that_fit = max((dict(counts)[1] for counts in layouts((profile,))), default=0)

    assert most_that_fit == fit
    assert not fits((profile,), ((1, fit + 1),))


def test_a_card_with_too_many_ways_is_planned_all_the_same() -> None:
    """32 of 64 places can be chosen in more ways than there are seconds since the beginning of the world."""
    huge = (MigProfile(1, "1g.1gb", 1, 1024, 64, tuple(Placement(n, 1) for n in range(64))),)
    gpu = card(profiles=huge)

    plan = plan_card(gpu, StaticLayout.of([("1g.1gb", 32)]))

    assert len(all_arrangements(huge, ((1, 32),))) == MOST_ARRANGEMENTS
    assert len({pair.placement for pair in plan.now.create}) == 32


def test_no_profiles_no_layouts() -> None:
    assert list(layouts(())) == []
    assert geometry(()).pairs == ()
