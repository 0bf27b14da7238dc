"""Every layout of every known card, and random states, against the oracle that tries everything."""

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupolicy.api.conditions import Reason
from gpupolicy.core.inventory import Gpu, Instance, MigProfile, Ownership
from gpupolicy.core.layouts import StaticLayout
from gpupolicy.core.placement import all_arrangements, counts_of, layouts
from gpupolicy.core.planner import CardPlan, plan_card
from gpupolicy.core.refusals import Refusal
from gpupolicy.core.steps import steps_of
from tests.unit.core.builders import after, card, claim
from tests.unit.core.known_cards import KNOWN_CARDS
from tests.unit.core.oracle import Oracle, Spots

GEOMETRIES = {"four-slice": "a30", "seven-slice": "a100-40gb", "twelve-unit": "rtx-pro-6000-96gb"}


@cache
def oracle(key: str) -> Oracle:
    return Oracle(KNOWN_CARDS[key])


@cache
def multisets(key: str) -> tuple[tuple[tuple[int, int], ...], ...]:
    return tuple(sorted(tuple(sorted(counts.items())) for counts in oracle(key).multisets()))


def spots_of(instances) -> Spots:
    return frozenset((i.profile_id, i.placement.start) for i in instances)


def layout_of(profiles: tuple[MigProfile, ...], counts) -> StaticLayout:
    names = {p.id: p.name for p in profiles}
    return StaticLayout.of((names[i], n) for i, n in dict(counts).items())


def standing(profiles: tuple[MigProfile, ...], spots: Spots, in_use: Spots, broken: Spots) -> list[Instance]:
    by_id = {p.id: p for p in profiles}
    return [
        Instance(
            profile_id=profile_id,
            profile=by_id[profile_id].name,
            placement=next(q for q in by_id[profile_id].placements if q.start == start),
            gpu_instance_id=0,
            compute_instance_id=None if (profile_id, start) in broken else 0,
            ownership=Ownership.OWNED,
            claims=(claim(f"c{profile_id}-{start}"),) if (profile_id, start) in in_use else (),
        )
        for profile_id, start in sorted(spots)
    ]


def test_the_anchor_of_the_a100() -> None:
    """19 maximal layouts over 1g, 2g, 3g, 4g, 7g, and 77 multisets with 1g of double memory, as published."""
    plain = tuple(p for p in KNOWN_CARDS["a100-40gb"] if p.id in {19, 14, 9, 5, 0})
    arrangements = [a.pairs for counts in layouts(plain) for a in all_arrangements(plain, counts)]
    maximal = [a for a in arrangements if not any(a & b == a and a != b for b in arrangements)]
    double = tuple(p for p in KNOWN_CARDS["a100-40gb"] if p.id != 20)

    assert len(maximal) == 19
    assert len(list(layouts(double))) == 77
    assert sum(len(all_arrangements(double, counts)) for counts in layouts(double)) == 722


@pytest.mark.parametrize("key", KNOWN_CARDS)
def test_the_layouts_that_fit_are_those_that_can_be_built(key: str) -> None:
    assert sorted(layouts(KNOWN_CARDS[key])) == list(multisets(key))


@pytest.mark.parametrize("key", GEOMETRIES.values(), ids=GEOMETRIES)
def test_every_arrangement_is_listed_once(key: str) -> None:
    profiles = KNOWN_CARDS[key]
    for counts in multisets(key):
        listed = all_arrangements(profiles, counts)

        assert len({a.pairs for a in listed}) == len(listed)
        assert len(listed) == sum(1 for _ in oracle(key).layouts(Counter(dict(counts))))


@pytest.mark.parametrize("key", KNOWN_CARDS)
def test_every_layout_is_planned_on_the_empty_card(key: str) -> None:
    profiles = KNOWN_CARDS[key]
    empty = card(profiles=profiles)
    for counts in multisets(key):
        plan = plan_card(empty, layout_of(profiles, counts))
        assert isinstance(plan, CardPlan)
        done = after(empty, plan)

        assert oracle(key).is_valid(spots_of(done.instances))
        assert counts_of(i.profile_id for i in done.instances) == counts
        assert plan_card(done, layout_of(profiles, counts)).is_applied


@pytest.mark.parametrize("key", GEOMETRIES.values(), ids=GEOMETRIES)
def test_a_layout_on_the_empty_card_leaves_most_open(key: str) -> None:
    profiles = KNOWN_CARDS[key]
    empty = card(profiles=profiles)
    for counts in multisets(key):
        chosen = spots_of(after(empty, plan_card(empty, layout_of(profiles, counts))).instances)

        others = oracle(key).layouts(Counter(dict(counts)))
        assert oracle(key).open_spots(chosen) == max(map(oracle(key).open_spots, others))


@st.composite
def situations(draw: st.DrawFn) -> tuple[str, Gpu, tuple[tuple[int, int], ...]]:
    """A known card, a legal set of instances (some in use, some broken), and a wanted multiset that fits."""
    key = draw(st.sampled_from(sorted(KNOWN_CARDS)))
    profiles = KNOWN_CARDS[key]
    present = draw(st.sampled_from(multisets(key)))
    ways = sorted(oracle(key).layouts(Counter(dict(present))), key=sorted)
    spots = draw(st.sampled_from(ways))
    in_use = draw(st.frozensets(st.sampled_from(sorted(spots))))
    broken = draw(st.frozensets(st.sampled_from(sorted(spots)), max_size=2)) - in_use
    gpu = card(*standing(profiles, spots, in_use, broken), profiles=profiles)
    return key, gpu, draw(st.sampled_from(multisets(key)))


@settings(max_examples=400)
@given(situations())
def test_a_plan_is_the_cheapest_there_is(situation) -> None:
    key, gpu, counts = situation
    layout = layout_of(gpu.mig.profiles, counts)
    in_use = spots_of(i for i in gpu.instances if i.in_use)
    broken = spots_of(i for i in gpu.instances if i.compute_instance_id is None)
    idle = spots_of(gpu.instances) - in_use - broken

    plan = plan_card(gpu, layout)

    cost, ways = oracle(key).best(Counter(dict(counts)), in_use, idle)
    made = (*plan.now.create, *plan.later.create)
    aim = spots_of(plan.keep) | {(p.profile_id, p.placement.start) for p in made}
    assert aim in ways
    assert len(plan.in_the_way) == cost.in_use_lost
    assert spots_of(plan.in_the_way) == in_use - aim
    assert spots_of((*plan.now.destroy, *plan.later.destroy)) == ((in_use | idle) - aim) | broken
    if plan.waiting is None:
        assert oracle(key).open_spots(aim) == max(map(oracle(key).open_spots, ways))
        assert plan.later.is_empty
    else:
        assert plan.waiting.reason == Reason.WAITING_FOR_CLAIMS


@settings(max_examples=400)
@given(situations())
def test_carrying_out_a_plan_is_safe_and_settles(situation) -> None:
    key, gpu, counts = situation
    layout = layout_of(gpu.mig.profiles, counts)

    plan = plan_card(gpu, layout)
    done = after(gpu, plan)

    assert repr(plan_card(gpu, layout)) == repr(plan)
    assert {i for i in gpu.instances if i.in_use} == {i for i in done.instances if i.in_use}
    assert oracle(key).is_valid(spots_of(done.instances))
    again = plan_card(done, layout)
    assert steps_of(again) == ()
    assert again.in_the_way == plan.in_the_way
    freed = replace(done, instances=tuple(replace(i, claims=()) for i in done.instances))
    final = after(freed, plan_card(freed, layout))
    assert counts_of(i.profile_id for i in final.instances) == counts
    assert plan_card(final, layout).is_applied


@settings(max_examples=300)
@given(st.sampled_from(sorted(KNOWN_CARDS)), st.data())
def test_a_layout_that_never_fits_names_a_remedy_that_does(key: str, data) -> None:
    profiles = KNOWN_CARDS[key]
    ids = [p.id for p in profiles]
    wanted = data.draw(st.dictionaries(st.sampled_from(ids), st.integers(1, 8), min_size=1, max_size=4))
    fits = any(True for _ in oracle(key).layouts(Counter(wanted)))

    outcome = plan_card(card(profiles=profiles), layout_of(profiles, wanted))

    assert isinstance(outcome, CardPlan) is fits
    if isinstance(outcome, Refusal):
        assert outcome.reason == Reason.INVALID_LAYOUT
        assert "at most" in outcome.message or "it would fit with" in outcome.message
