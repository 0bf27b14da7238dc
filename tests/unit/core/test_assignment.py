"""Which policy owns which card: precedence, stability, conflicts, cards that are not taken."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupolicy.api.conditions import Reason
from gpupolicy.core.assignment import Assignment, assign
from gpupolicy.core.inventory import Gpu, Health, MigState, Ownership
from gpupolicy.core.layouts import StaticLayout
from gpupolicy.core.matching import CardSelector, Judgement
from gpupolicy.core.planner import layout_refusal
from gpupolicy.core.policies import PolicyView
from tests.unit.core.builders import card, claim, instance

OLD, MIDDLE, YOUNG = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z"
SEVEN = StaticLayout.of([("1g.10gb", 7)])


def cards(count: int = 8, **changes: dict[str, object]) -> list[Gpu]:
    """Make cards; `c3={...}` changes card 3."""
    made = [card(index=n) for n in range(count)]
    for key, fields in changes.items():
        n = int(key[1:])
        made[n] = replace(made[n], **fields)
    return made


def policy(name: str, **fields: object) -> PolicyView:
    return PolicyView(name=name, **{"created": OLD, **fields})


def assigned(gpus, policies, owners=None, judgements=None) -> Assignment:
    return assign(
        gpus, policies, owners=owners or {}, judgements=judgements or {}, layout_check=layout_refusal
    )


def owned(assignment: Assignment) -> dict[str, list[int]]:
    """Return policy -> indexes of its cards."""
    found: dict[str, list[int]] = {}
    for owner in assignment.cards:
        if owner.policy:
            found.setdefault(owner.policy, []).append(owner.index)
    return found


def held(name: str, *indexes: int) -> dict[str, str]:
    return {f"GPU-{n}": name for n in indexes}


@pytest.mark.parametrize(
    ("policies", "owners", "expected"),
    [
        pytest.param([policy("a")], {}, {"a": [0, 1, 2, 3, 4, 5, 6, 7]}, id="one-takes-all"),
        pytest.param([policy("a", gpus_per_node=3)], {}, {"a": [0, 1, 2]}, id="as-many-as-asked-by-index"),
        pytest.param(
            [policy("a", gpus_per_node=3)], held("a", 5, 7), {"a": [0, 5, 7]}, id="keeps-what-it-has"
        ),
        pytest.param(
            [policy("a", gpus_per_node=2)], held("gone", 0, 1), {"a": [0, 1]}, id="owner-that-is-gone"
        ),
        pytest.param(
            [policy("a"), policy("b", created=YOUNG)],
            held("b", *range(8)),
            {"a": [0, 1, 2, 3, 4, 5, 6, 7]},
            id="older-wins-whoever-has-it",
        ),
        pytest.param(
            [policy("a"), policy("b", created=YOUNG, priority=1)],
            held("a", *range(8)),
            {"b": [0, 1, 2, 3, 4, 5, 6, 7]},
            id="priority-before-age",
        ),
        pytest.param(
            [policy("b"), policy("a")], {}, {"a": [0, 1, 2, 3, 4, 5, 6, 7]}, id="name-where-age-is-equal"
        ),
        pytest.param(
            [policy("a", gpus_per_node=4), policy("b", created=YOUNG, gpus_per_node=4)],
            {},
            {"a": [0, 1, 2, 3], "b": [4, 5, 6, 7]},
            id="both-fit",
        ),
        pytest.param(
            [policy("a", gpus_per_node=4), policy("b", created=YOUNG, priority=1, gpus_per_node=4)],
            held("a", 0, 1, 2, 3),
            {"a": [0, 1, 2, 3], "b": [4, 5, 6, 7]},
            id="higher-takes-free-cards-before-those-of-others",
        ),
        pytest.param(
            [
                policy("a", gpus_per_node=4),
                policy("b", created=YOUNG, cards=CardSelector(products=("NVIDIA H100 80GB HBM3",))),
            ],
            {},
            {"a": [0, 1, 2, 3], "b": [4, 5, 6, 7]},
            id="both-match-all",
        ),
    ],
)
def test_who_gets_which_cards(policies, owners, expected) -> None:
    result = assigned(cards(), policies, owners)

    assert owned(result) == expected
    assert result == assigned(cards(), reversed(policies), owners)


def test_cards_that_only_others_can_use_are_left_to_them() -> None:
    """The older policy could take card 0 and 1, which are all that the younger one matches."""
    gpus = cards(4, c0={"product_name": "A"}, c1={"product_name": "A"})
    young = policy("young", created=YOUNG, cards=CardSelector(products=("A",)))

    result = assigned(gpus, [policy("old", gpus_per_node=2), young])

    assert owned(result) == {"young": [0, 1], "old": [2, 3]}


def test_cards_are_not_left_to_those_who_have_chosen() -> None:
    """The first could have used card 1 as well, and took card 0; the second need not spare it."""
    gpus = cards(3, c0={"product_name": "A"}, c1={"product_name": "A"})
    first = policy("first", gpus_per_node=1, cards=CardSelector(products=("A",)))

    result = assigned(gpus, [first, policy("second", created=YOUNG, gpus_per_node=1)])

    assert owned(result) == {"first": [0], "second": [1]}


def test_shrinking_gives_up_idle_and_sick_cards_first() -> None:
    gpus = cards(
        4,
        c0={"health": Health.UNHEALTHY},
        c3={"claims": (claim(),)},
    )

    result = assigned(gpus, [policy("a", gpus_per_node=2)], held("a", 0, 1, 2, 3))

    assert owned(result) == {"a": [1, 3]}


def test_new_cards_are_idle_ones_first() -> None:
    gpus = cards(3, c0={"claims": (claim(),)})

    assert owned(assigned(gpus, [policy("a", gpus_per_node=2)])) == {"a": [1, 2]}


@pytest.mark.parametrize(
    ("fields", "reason", "words"),
    [
        pytest.param(
            {"health": Health.UNHEALTHY, "health_message": "XID 79"},
            Reason.GPU_UNHEALTHY,
            "XID 79",
            id="sick",
        ),
        pytest.param(
            {"instances": (instance("1g.10gb@0", ownership=Ownership.FOREIGN),)},
            Reason.OWNERSHIP_CONFLICT,
            "1g.10gb@0:1",
            id="foreign-instance",
        ),
        pytest.param(
            {"ownership": Ownership.FOREIGN},
            Reason.OWNERSHIP_CONFLICT,
            "nvidia-smi mig -dci",
            id="foreign-card",
        ),
        pytest.param({"mig": MigState()}, Reason.MIG_UNSUPPORTED, "no MIG", id="layout-never-fits"),
    ],
)
def test_a_card_that_is_not_newly_taken_is_kept_by_who_has_it(fields, reason: Reason, words: str) -> None:
    gpus = cards(2, c1=fields)

    new = assigned(gpus, [policy("a", layout=SEVEN)])
    kept = assigned(gpus, [policy("a", layout=SEVEN)], held("a", 1))

    assert owned(new) == {"a": [0]}
    assert [(m.index, m.refusal.reason) for m in new.share("a").missed] == [(1, reason)]
    assert new.cards[1].reason == reason
    assert words in new.cards[1].message
    assert "adopt" not in new.cards[1].message, "a policy with adopt is refused as NotImplemented"
    assert owned(kept) == {"a": [0, 1]}
    assert kept.share("a").missed == ()


def test_a_policy_that_adopts_takes_foreign_cards() -> None:
    gpus = cards(1, c0={"instances": (instance("1g.10gb@0", ownership=Ownership.FOREIGN),)})

    assert owned(assigned(gpus, [policy("a", adopt=True)])) == {"a": [0]}


def test_the_younger_of_two_equals_is_told_and_the_older_too() -> None:
    result = assigned(
        cards(4),
        [policy("old", priority=5, gpus_per_node=3), policy("young", priority=5, created=YOUNG)],
    )

    (conflict,) = result.share("young").lost
    assert owned(result) == {"old": [0, 1, 2], "young": [3]}
    assert conflict.cards == ("GPU-0", "GPU-1", "GPU-2")
    assert conflict.told_to_loser() == (
        "cards 0-2 belong to policy old, older and of the same priority 5; "
        "give one of them a higher priority, select other cards, or set gpusPerNode"
    )
    assert result.share("old").won == (conflict,)
    assert conflict.told_to_winner() == "keeps cards 0-2, which the younger policy young also selects"
    assert result.share("old").lost == ()


def test_policies_of_one_second_are_told_that_the_name_decided() -> None:
    """As when two are applied in one command; neither is the older one."""
    (conflict,) = assigned(cards(1), [policy("b"), policy("a")]).share("b").lost

    assert "policy a, first by name, equally old and of the same priority 0" in conflict.told_to_loser()
    assert conflict.told_to_winner() == "keeps card 0, which the equally old policy b also selects"


def test_the_higher_takes_the_cards_and_both_are_told() -> None:
    result = assigned(cards(1), [policy("low"), policy("high", created=YOUNG, priority=9)], held("low", 0))

    (conflict,) = result.share("low").lost
    assert owned(result) == {"high": [0]}
    assert conflict.told_to_loser().startswith(
        "card 0 belongs to policy high, with the higher priority 9 (this one has 0); raise the priority"
    )
    assert conflict.told_to_winner() == "takes card 0 from policy low of lower priority 0"
    assert result.share("high").won == (conflict,)


def test_a_policy_that_gets_its_number_elsewhere_has_no_conflict() -> None:
    result = assigned(
        cards(4), [policy("old", gpus_per_node=2), policy("young", created=YOUNG, gpus_per_node=2)]
    )

    assert [share.lost for share in result.shares] == [(), ()]


@pytest.mark.parametrize(
    ("judgement", "owners", "expected"),
    [
        pytest.param(Judgement(matches=True), {}, {"a": [0]}, id="yes"),
        pytest.param(Judgement(matches=False), held("a", 0), {}, id="no"),
        pytest.param(Judgement(None), {}, {}, id="cannot-tell-is-not-newly-taken"),
        pytest.param(Judgement(None), held("a", 0), {"a": [0]}, id="cannot-tell-is-kept"),
        pytest.param(None, {}, {}, id="not-judged"),
        pytest.param(None, held("a", 0), {"a": [0]}, id="not-judged-is-kept"),
    ],
)
def test_expressions_are_judged_elsewhere(judgement, owners, expected) -> None:
    judgements = {"a": {"GPU-0": judgement}} if judgement else {}

    result = assigned(cards(1), [policy("a", cel="true")], owners, judgements)

    assert owned(result) == expected
    assert result.share("a").matched == result.share("a").granted


def test_cards_that_nobody_has_say_why() -> None:
    assert assigned(cards(1), []).cards[0].message == "no policy selects this node"
    other = policy("a", cards=CardSelector(products=("Tesla*",)))
    assert assigned(cards(1), [other]).cards[0].message == "no policy selects it"
    spare = assigned(cards(2), [policy("a", gpus_per_node=1)]).cards[1]
    assert (spare.policy, spare.reason) == (None, Reason.IDLE)
    assert spare.message == "not needed: a has enough cards of this node (gpusPerNode)"


POLICIES = st.lists(
    st.builds(
        policy,
        name=st.sampled_from("abcd"),
        created=st.sampled_from([OLD, MIDDLE, YOUNG]),
        priority=st.integers(0, 2),
        gpus_per_node=st.none() | st.integers(1, 8),
        cards=st.builds(CardSelector, products=st.sampled_from([(), ("A",), ("B",), ("A", "B")])),
    ),
    max_size=4,
    unique_by=lambda p: p.name,
)
CARDS = st.lists(
    st.fixed_dictionaries(
        {
            "product_name": st.sampled_from(["A", "B", ""]),
            "health": st.sampled_from([Health.HEALTHY, Health.HEALTHY, Health.UNHEALTHY]),
            "claims": st.sampled_from([(), (claim(),)]),
        }
    ),
    min_size=1,
    max_size=6,
)


@given(
    CARDS,
    POLICIES,
    st.dictionaries(st.sampled_from([f"GPU-{n}" for n in range(6)]), st.sampled_from("abcd")),
    st.data(),
)
def test_the_result_is_a_fixed_point_and_order_does_not_matter(fields, policies, owners, data) -> None:
    """What a restart would read gives the same verdict, and lists may arrive in any order."""
    gpus = [replace(card(index=n), **f) for n, f in enumerate(fields)]

    result = assigned(gpus, policies, owners)

    shuffled = data.draw(st.permutations(policies)), data.draw(st.permutations(gpus))
    assert assigned(shuffled[1], shuffled[0], owners) == result
    again = {owner.uuid: owner.policy for owner in result.cards if owner.policy}
    assert owned(assigned(gpus, policies, again)) == owned(result)
    assert [s.lost for s in assigned(gpus, policies, again).shares] == [s.lost for s in result.shares]


@given(CARDS, POLICIES)
def test_nobody_of_lower_rank_has_a_card_that_a_higher_one_misses(fields, policies) -> None:
    gpus = [replace(card(index=n), **f) for n, f in enumerate(fields)]

    result = assigned(gpus, policies)

    rank = {share.policy: n for n, share in enumerate(result.shares)}
    for share in result.shares:
        assert len(share.granted) <= share.wanted
        assert set(share.granted) <= set(share.matched)
        assert all(rank[conflict.rival] < rank[share.policy] for conflict in share.lost)
        assert len(share.granted) + sum(len(c.cards) for c in share.lost) + len(share.missed) >= share.wanted


@given(CARDS, POLICIES, st.integers(0, 2), st.none() | st.integers(1, 8))
def test_a_younger_policy_changes_nothing_for_those_before_it(fields, policies, priority, limit) -> None:
    """R7: whatever the newcomer asks for, the older of the same or a higher priority keep their cards."""
    gpus = [replace(card(index=n), **f) for n, f in enumerate(fields)]
    before = assigned(gpus, policies)
    owners = {owner.uuid: owner.policy for owner in before.cards if owner.policy}
    newcomer = policy("newcomer", created="2026-12-31T00:00:00Z", priority=priority, gpus_per_node=limit)

    result = assigned(gpus, [*policies, newcomer], owners)

    for old in policies:
        if old.priority >= priority:
            assert result.share(old.name).granted == before.share(old.name).granted


@given(CARDS, POLICIES, st.integers(0, 5))
def test_a_card_that_falls_sick_keeps_its_owner(fields, policies, which) -> None:
    """No flapping: nobody gives it up, nobody else takes it, and no other card changes hands."""
    gpus = [replace(card(index=n), **f) for n, f in enumerate(fields)]
    before = assigned(gpus, policies)
    owners = {owner.uuid: owner.policy for owner in before.cards if owner.policy}
    sick = [replace(g, health=Health.UNKNOWN) if g.index == which else g for g in gpus]

    assert owned(assigned(sick, policies, owners)) == owned(before)


@given(CARDS, POLICIES)
def test_every_card_has_one_owner_that_selects_it_or_a_reason(fields, policies) -> None:
    gpus = [replace(card(index=n), **f) for n, f in enumerate(fields)]

    result = assigned(gpus, policies)

    assert [owner.index for owner in result.cards] == list(range(len(gpus)))
    for owner in result.cards:
        holders = [share.policy for share in result.shares if owner.uuid in share.granted]
        assert holders == ([owner.policy] if owner.policy else [])
        assert owner.policy or owner.message


def test_a_policy_that_asks_for_more_than_there_is_gets_what_there_is() -> None:
    share = assigned(cards(2), [policy("a", gpus_per_node=4)]).share("a")

    assert (share.wanted, share.granted) == (2, ("GPU-0", "GPU-1"))
    assert share.lost == share.missed == ()


def test_a_share_of_a_stranger_is_empty() -> None:
    assert assigned(cards(1), [policy("a")]).share("b").granted == ()


def test_three_policies_tell_each_loser_each_rival() -> None:
    """The loser of two learns both names, in order of precedence."""
    result = assigned(
        cards(3),
        [
            policy("high", priority=9, created=YOUNG, gpus_per_node=1),
            policy("old", gpus_per_node=2),
            policy("young", created=MIDDLE),
        ],
    )

    assert owned(result) == {"high": [0], "old": [1, 2]}
    assert [(c.rival, c.indexes, c.by_priority) for c in result.share("young").lost] == [
        ("high", (0,), True),
        ("old", (1, 2), False),
    ]
    assert [(c.policy, c.indexes) for c in result.share("high").won] == [("young", (0,))]
    assert result.share("old").lost == ()


def test_an_edit_of_the_selector_gives_up_cards_that_no_longer_match() -> None:
    gpus = cards(2, c1={"product_name": "A"})

    result = assigned(gpus, [policy("a", cards=CardSelector(products=("A",)))], held("a", 0, 1))

    assert owned(result) == {"a": [1]}
    assert result.cards[0].message == "no policy selects it"
