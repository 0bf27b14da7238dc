"""DeviceClasses: which ones, what they select, whose names they take, and when they have drifted."""

from dataclasses import replace
from typing import Any

import pytest

from gpupolicy.api.conditions import Reason
from gpupolicy.core import classes
from gpupolicy.core.classes import DesiredClass, LiveClass
from tests.unit.core.wire import MIG, policy

UID = "uid-p"


def live(wish: DesiredClass, **fields: Any) -> LiveClass:
    """Return a wish as the API server shows it after it was applied."""
    body = classes.manifest(wish, policy_uid=UID, changed_at="2026-01-02T00:00:00Z")
    body["metadata"] |= {"uid": f"uid-{wish.name}", "creationTimestamp": "2026-01-02T00:00:00Z"}
    return replace(LiveClass.of(body), **fields)


def foreign(
    name: str, resource: str | None = None, created: str = "2026-01-01T00:00:00Z", **fields: Any
) -> LiveClass:
    return LiveClass(name=name, uid=f"uid-{name}", created=created, extended_resource_name=resource, **fields)


# Which classes.


def test_whole_cards_get_one_class_with_the_name_of_the_policy() -> None:
    assert [w.name for w in classes.desired(policy("train"))] == ["train"]


def test_a_layout_gets_one_class_per_profile() -> None:
    found = classes.desired(policy("infer", sharing=MIG))

    assert [(w.name, w.profile) for w in found] == [
        ("infer-3g-40gb", "3g.40gb"),
        ("infer-2g-20gb", "2g.20gb"),
        ("infer-1g-10gb", "1g.10gb"),
    ]


def test_profiles_that_differ_in_attributes_get_different_names() -> None:
    layout = [{"profile": p, "count": 1} for p in ("1g.10gb", "1g.10gb+me", "1g.10gb-me", "1g.10gb+gfx")]

    found = classes.desired(policy(sharing={"strategy": "MIG", "mig": {"layout": layout}}))

    names = [w.name for w in found]
    assert len(set(names)) == 4
    assert all(name.replace("-", "").isalnum() for name in names)


def test_offers_replace_the_default_classes() -> None:
    offers = [
        {
            "deviceClassName": "small",
            "profile": "1g.10gb",
            "extendedResourceName": "nvidia.com/mig-1g.10gb",
            "takeOver": True,
        }
    ]

    (found,) = classes.desired(policy(sharing=MIG, offers=offers))

    assert found == DesiredClass(
        name="small",
        policy="p",
        profile="1g.10gb",
        extended_resource_name="nvidia.com/mig-1g.10gb",
        take_over=True,
    )


# What they select.


def test_the_expression_asks_for_the_driver_first() -> None:
    (wish,) = classes.desired(policy("train"))

    domain = 'device.attributes["gpu.gpupolicy.dev"]'
    assert wish.expression == (
        'device.driver == "gpu.gpupolicy.dev"'
        f' && "policy" in {domain} && {domain}.policy == "train"'
        f' && "type" in {domain} && {domain}.type == "gpu"'
    )


def test_a_profile_is_selected_under_the_names_that_drivers_give_it() -> None:
    sharing = {"strategy": "MIG", "mig": {"layout": [{"profile": "1g.23gb", "count": 1}]}}

    (spelled,) = classes.desired(policy(sharing=sharing))
    (one,) = classes.desired(policy(sharing=sharing), {"1g.23gb": {"1g.24gb"}})
    (two,) = classes.desired(policy(sharing=sharing), {"1g.23gb": {"1g.24gb", "1g.23gb"}})

    assert '.profile == "1g.23gb"' in spelled.expression
    assert '.profile == "1g.24gb"' in one.expression
    assert '.profile in ["1g.23gb", "1g.24gb"]' in two.expression
    assert [w.selects("p", "mig", "1g.24gb") for w in (spelled, one, two)] == [False, True, True]


@pytest.mark.parametrize(
    ("device", "selected"),
    [
        pytest.param(("p", "mig", "1g.10gb"), True, id="its-own"),
        pytest.param(("q", "mig", "1g.10gb"), False, id="other-policy"),
        pytest.param(("p", "gpu", ""), False, id="whole-card"),
        pytest.param(("p", "share", "1g.10gb"), False, id="share"),
        pytest.param(("p", "mig", "2g.20gb"), False, id="other-profile"),
    ],
)
def test_what_a_profile_class_selects(device: tuple[str, str, str], selected: bool) -> None:
    assert DesiredClass(name="c", policy="p", profile="1g.10gb").selects(*device) is selected


@pytest.mark.parametrize(("kind", "selected"), [("gpu", True), ("mig", False), ("share", False)])
def test_a_class_of_whole_cards_yields_nothing_smaller(kind: str, selected: bool) -> None:
    assert DesiredClass(name="c", policy="p").selects("p", kind, "") is selected


# The object, and drift.


def test_the_manifest_carries_owner_and_labels() -> None:
    wish = DesiredClass(name="c", policy="p", extended_resource_name="nvidia.com/gpu")

    body = classes.manifest(wish, policy_uid=UID, changed_at="2026-01-02T00:00:00Z")

    assert body["metadata"]["labels"] == {
        "app.kubernetes.io/managed-by": "gpupolicy",
        "gpupolicy.dev/policy": "p",
    }
    (owner,) = body["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"], owner["controller"]) == ("GpuPolicy", "p", UID, True)
    assert body["spec"]["extendedResourceName"] == "nvidia.com/gpu"
    assert "config" not in body["spec"]


def test_a_revision_is_the_spec_that_was_applied() -> None:
    wish = DesiredClass(name="c", policy="p", extended_resource_name="nvidia.com/gpu")

    assert replace(wish, name="d", take_over=True).revision == wish.revision
    for edited in (replace(wish, extended_resource_name="a.b/c"), replace(wish, extended_resource_name=None)):
        assert edited.revision != wish.revision
    assert replace(wish, policy="q").revision != wish.revision


def test_a_class_is_read_as_it_came() -> None:
    body = {
        "metadata": {
            "name": "c",
            "uid": "u",
            "resourceVersion": "7",
            "creationTimestamp": "2026-01-02T00:00:00Z",
            "labels": {"app.kubernetes.io/managed-by": "gpupolicy", "gpupolicy.dev/policy": "p"},
            "annotations": {"gpupolicy.dev/name-taken-by": "other", "gpupolicy.dev/revision": "r"},
            "ownerReferences": [{"uid": "o"}],
        },
        "spec": {
            "selectors": [{"cel": {"expression": "true"}}],
            "config": [{"opaque": {}}],
            "extendedResourceName": "nvidia.com/gpu",
        },
    }

    assert LiveClass.of(body) == LiveClass(
        name="c",
        uid="u",
        resource_version="7",
        created="2026-01-02T00:00:00Z",
        policy="p",
        owner_uids=("o",),
        expressions=("true",),
        has_config=True,
        extended_resource_name="nvidia.com/gpu",
        revision="r",
        taken_by="other",
    )


def test_foreign_config_is_emptied_only_where_there_is_some() -> None:
    wish = DesiredClass(name="c", policy="p")

    assert classes.manifest(wish, policy_uid=UID, clear_config=True)["spec"]["config"] == []


def test_what_was_applied_has_not_drifted() -> None:
    wish = DesiredClass(name="c", policy="p", extended_resource_name="nvidia.com/gpu")

    assert classes.drift(wish, live(wish), UID) == ()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        pytest.param({"expressions": ("true",)}, "spec.selectors", id="selector"),
        pytest.param({"expressions": ()}, "spec.selectors", id="no-selector"),
        pytest.param({"has_config": True}, "spec.config", id="config"),
        pytest.param({"extended_resource_name": "a.b/c"}, "spec.extendedResourceName", id="name"),
        pytest.param({"extended_resource_name": None}, "spec.extendedResourceName", id="name-gone"),
        pytest.param({"policy": None}, "metadata.labels", id="labels"),
        pytest.param({"owner_uids": ()}, "metadata.ownerReferences", id="owner"),
        pytest.param({"revision": "x"}, "metadata.annotations", id="revision"),
        pytest.param({"changed_at": None}, "metadata.annotations", id="time"),
    ],
)
def test_every_field_of_ours_that_differs_is_named(change: dict[str, Any], field: str) -> None:
    wish = DesiredClass(name="c", policy="p", extended_resource_name="nvidia.com/gpu")

    assert classes.drift(wish, live(wish, **change), UID) == (field,)


def test_healing_is_no_change_of_revision() -> None:
    wish = DesiredClass(name="c", policy="p")
    edited = replace(wish, profile="1g.10gb")

    assert classes.changed_at(wish, live(wish, expressions=("true",)), "now") == "2026-01-02T00:00:00Z"
    assert classes.changed_at(edited, live(wish), "now") == "now"
    assert classes.changed_at(wish, None, "now") == "now"


# Names.


def test_free_names_are_taken() -> None:
    wish = DesiredClass(name="c", policy="p", extended_resource_name="nvidia.com/gpu")

    assert classes.judge_names([wish], {}, UID) == classes.NameVerdict(losers={})
    assert classes.judge_names([wish], {"c": live(wish)}, UID).refusal is None


@pytest.mark.parametrize(
    ("standing", "whose"),
    [
        pytest.param(foreign("c"), "was not made by GpuPolicy", id="foreign"),
        pytest.param(foreign("c", policy="q"), "belongs to policy q", id="another-policy"),
    ],
)
def test_a_class_name_that_is_taken_is_a_conflict_even_with_take_over(
    standing: LiveClass, whose: str
) -> None:
    wish = DesiredClass(name="c", policy="p", take_over=True)

    refusal = classes.judge_names([wish], {"c": standing}, UID).refusal

    assert refusal is not None
    assert refusal.reason is Reason.RESOURCE_NAME_CONFLICT
    assert "DeviceClass c exists" in refusal.message
    assert whose in refusal.message
    assert "deviceClassName" in refusal.message


@pytest.mark.parametrize(
    ("ours", "theirs", "text"),
    [
        pytest.param(None, "2026-01-01T00:00:00Z", "c would be the newest and win", id="not-made-yet"),
        pytest.param("2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z", "c is the newest and wins", id="newer"),
        pytest.param("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "other is the newest", id="older"),
        pytest.param(
            "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z", "c is the newest and wins", id="name-decides"
        ),
    ],
)
def test_who_has_an_extended_name_and_who_wins_it_is_told(ours: str | None, theirs: str, text: str) -> None:
    wish = DesiredClass(name="c", policy="p", extended_resource_name="nvidia.com/gpu")
    world = {"other": foreign("other", "nvidia.com/gpu", theirs)}
    if ours is not None:
        world["c"] = live(wish, created=ours)

    refusal = classes.judge_names([wish], world, UID).refusal

    assert refusal is not None
    assert refusal.reason is Reason.RESOURCE_NAME_CONFLICT
    assert "nvidia.com/gpu is the extendedResourceName of DeviceClass other" in refusal.message
    assert text in refusal.message
    assert "takeOver: true" in refusal.message


def test_take_over_makes_it_a_note_and_names_the_loser() -> None:
    wish = DesiredClass(name="c", policy="p", extended_resource_name="nvidia.com/gpu", take_over=True)

    verdict = classes.judge_names([wish], {"other": foreign("other", "nvidia.com/gpu")}, UID)

    assert verdict.refusal is None
    assert verdict.losers == {"other": "c"}
    assert "would be the newest and win" in verdict.notes[0]


def test_the_old_class_of_an_offer_that_was_renamed_is_no_rival() -> None:
    old = DesiredClass(name="old", policy="p", extended_resource_name="nvidia.com/gpu")
    new = replace(old, name="new")
    world = {"old": live(old)}

    assert classes.judge_names([new], world, UID).refusal is None
    assert [c.name for c in classes.obsolete([new], world, "p", UID)] == ["old"]


@pytest.mark.parametrize(
    ("fields", "ours"),
    [
        pytest.param({}, True, id="owner-and-labels"),
        pytest.param({"owner_uids": ()}, True, id="labels-only"),
        pytest.param({"policy": None}, True, id="owner-only"),
        pytest.param({"policy": None, "owner_uids": ("other",)}, False, id="neither"),
    ],
)
def test_only_what_is_provably_ours_is_deleted(fields: dict[str, Any], ours: bool) -> None:
    standing = live(DesiredClass(name="c", policy="p"), **fields)

    assert [c.name for c in classes.obsolete([], {"c": standing}, "p", UID)] == (["c"] if ours else [])


def test_labels_count_only_together() -> None:
    """Somebody who copies the policy label onto a class of theirs has not given it to us."""
    body = {"metadata": {"name": "c", "labels": {"gpupolicy.dev/policy": "p"}}, "spec": {}}

    assert not LiveClass.of(body).belongs_to("p", UID)


# Marks on foreign classes.

TAKER = DesiredClass(name="c", policy="p", extended_resource_name="nvidia.com/gpu", take_over=True)


@pytest.mark.parametrize(
    ("losers", "marked", "taker", "changes"),
    [
        pytest.param({"other": "c"}, None, TAKER, {"other": "c"}, id="taken"),
        pytest.param({"other": "c"}, "c", TAKER, {}, id="marked-already"),
        pytest.param({"other": "c"}, None, None, {}, id="taker-not-made-yet"),
        pytest.param({}, "c", None, {"other": None}, id="taker-gone"),
        pytest.param(
            {}, "c", replace(TAKER, extended_resource_name="a.b/c"), {"other": None}, id="name-given-up"
        ),
        pytest.param({}, "c", TAKER, {}, id="taker-frozen"),
        pytest.param({}, None, None, {}, id="nothing-to-do"),
    ],
)
def test_a_foreign_class_is_marked_while_its_name_is_taken(
    losers: dict[str, str], marked: str | None, taker: DesiredClass | None, changes: dict[str, str | None]
) -> None:
    world = {"other": foreign("other", "nvidia.com/gpu", taken_by=marked)}
    if taker is not None:
        world["c"] = live(taker)

    assert classes.marks(losers, world) == changes


# Several classes with one extended name.


@pytest.mark.parametrize(
    ("listed", "others", "change"),
    [
        pytest.param(None, {}, {}, id="alone"),
        pytest.param(None, {"x": "nvidia.com/gpu"}, {"c": "uid-x"}, id="one-came"),
        pytest.param("uid-x", {"x": "nvidia.com/gpu"}, {}, id="known"),
        pytest.param("uid-x", {}, {"c": None}, id="it-went"),
        pytest.param("uid-x", {"x": "a.b/c"}, {"c": None}, id="it-was-renamed"),
        pytest.param("uid-x,uid-y", {"y": "nvidia.com/gpu"}, {"c": "uid-y"}, id="one-of-two-went"),
        pytest.param("uid-z", {"y": "nvidia.com/gpu"}, {"c": "uid-y"}, id="made-anew"),
    ],
)
@pytest.mark.parametrize("proof", [{}, {"policy": None}, {"owner_uids": ()}], ids=["both", "owner", "labels"])
def test_our_classes_are_written_whenever_other_holders_of_their_name_change(
    listed: str | None, others: dict[str, str], change: dict[str, str | None], proof: dict[str, Any]
) -> None:
    world = {"c": live(TAKER, rivals=listed, **proof)} | {n: foreign(n, r) for n, r in others.items()}

    assert classes.rivals(world, {"p": UID}) == change


def test_classes_of_others_are_not_written_because_of_rivals() -> None:
    world = {n: foreign(n, "nvidia.com/gpu") for n in ("x", "y")}

    assert classes.rivals(world, {"p": UID}) == {}


def test_classes_without_an_extended_name_are_no_rivals() -> None:
    bare = [DesiredClass(name=n, policy="p") for n in ("c", "d")]

    assert classes.rivals({w.name: live(w) for w in bare}, {"p": UID}) == {}


@pytest.mark.parametrize(
    ("before", "after", "first"),
    [
        pytest.param({"a": "n/x", "b": "n/y"}, {"a": "n/y", "b": "n/x"}, ["a", "b"], id="swapped"),
        pytest.param({"b": "n/x"}, {"a": "n/x", "b": None}, ["b"], id="to-a-new-class"),
        pytest.param({"a": "n/x"}, {"a": "n/y"}, [], id="renamed-in-place"),
        pytest.param({"a": "n/x"}, {"a": "n/x"}, [], id="as-it-was"),
        pytest.param({"a": None, "b": None}, {"a": None, "b": "n/x"}, [], id="no-name-before"),
        pytest.param({"old": "n/x"}, {"a": "n/x"}, [], id="of-a-class-that-is-deleted-anyway"),
    ],
)
def test_a_name_is_given_up_before_another_class_has_it(
    before: dict[str, str | None], after: dict[str, str | None], first: list[str]
) -> None:
    def wanted(offers: dict[str, str | None]) -> list[DesiredClass]:
        return [DesiredClass(name=n, policy="p", extended_resource_name=r) for n, r in offers.items()]

    found = classes.handing_over(wanted(after), {w.name: live(w) for w in wanted(before)})

    assert [w.name for w in found] == first
    assert all(w.extended_resource_name is None for w in found)


def test_hostile_texts_stay_literals() -> None:
    wish = DesiredClass(name="c", policy='x" || true || "', profile="1g.10gb")

    assert '== "x\\" || true || \\""' in wish.expression
