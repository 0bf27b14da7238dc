"""One card: what stays, what goes, what is made, what has to wait, and what is refused."""

from dataclasses import replace

import pytest

from gpupolicy.api.conditions import Reason
from gpupolicy.core.inventory import Gpu, Health, MigState, Ownership, Placement, Process
from gpupolicy.core.layouts import OnDemand, StaticLayout, WholeCard
from gpupolicy.core.placement import PlacedProfile
from gpupolicy.core.planner import CardPlan, Change, layout_refusal, plan_card
from gpupolicy.core.refusals import Refusal
from gpupolicy.core.steps import SetMigMode, inverse, steps_of, undo
from tests.unit.core.builders import H100, after, card, claim, instance, written

WHOLE = WholeCard()
AMPERE = {"capable": True, "mode_needs_reset": True, "profiles": H100}


def layout(text: str) -> StaticLayout:
    """Read `3g.40gb 1g.10gb*2`."""
    parts = (part.partition("*") for part in text.split())
    return StaticLayout.of((name, int(count or 1)) for name, _, count in parts)


def planned(*args, **kwargs) -> CardPlan:
    plan = plan_card(*args, **kwargs)
    assert isinstance(plan, CardPlan), plan
    return plan


def refused(*args, **kwargs) -> Refusal:
    refusal = plan_card(*args, **kwargs)
    assert isinstance(refusal, Refusal), refusal
    return refusal


@pytest.mark.parametrize(
    ("standing", "wanted", "steps"),
    [
        pytest.param((), "7g.80gb", ["create 7g.80gb@0:8"], id="whole"),
        pytest.param(
            (),
            "3g.40gb 2g.20gb 1g.10gb*2",
            ["create 3g.40gb@4:4", "create 2g.20gb@0:2", "create 1g.10gb@2:1", "create 1g.10gb@3:1"],
            id="the-stories-layout",
        ),
        pytest.param((), "1g.10gb", ["create 1g.10gb@6:1"], id="one-blocks-fewest"),
        pytest.param(("3g.40gb@0",), "3g.40gb*2", ["create 3g.40gb@4:4"], id="idle-part-is-kept"),
        pytest.param(
            ("3g.40gb@0",),
            "4g.40gb 3g.40gb",
            ["destroy 3g.40gb@0:4", "create 4g.40gb@0:4", "create 3g.40gb@4:4"],
            id="idle-at-the-wrong-place-moves",
        ),
        pytest.param(
            ("2g.20gb@0", "2g.20gb@2", "1g.10gb@4"),
            "3g.40gb 2g.20gb 1g.10gb",
            ["destroy 2g.20gb@2:2", "destroy 1g.10gb@4:1", "create 3g.40gb@4:4", "create 1g.10gb@2:1"],
            id="fewest-idle-destroyed-then-most-open",
        ),
        pytest.param(("7g.80gb@0",), "7g.80gb", [], id="equal-is-left-alone"),
        pytest.param(
            ("1g.10gb@0", "1g.10gb@1", "1g.10gb@2"),
            "1g.10gb*2",
            ["destroy 1g.10gb@2:1"],
            id="surplus-goes-where-it-opens-most",
        ),
    ],
)
def test_an_idle_card_gets_its_layout(standing: tuple[str, ...], wanted: str, steps: list[str]) -> None:
    gpu = card(*(instance(where) for where in standing))

    plan = planned(gpu, layout(wanted))

    assert written(plan) == steps
    assert plan.waiting is None
    assert plan.later.is_empty
    assert planned(after(gpu, plan), layout(wanted)).is_applied


@pytest.mark.parametrize(
    ("standing", "wanted", "steps", "in_the_way", "later"),
    [
        pytest.param(("1g.10gb@0",), "7g.80gb", [], ["1g.10gb"], ["7g.80gb"], id="nothing-fits-beside"),
        pytest.param(
            ("1g.10gb@0",),
            "3g.40gb*2",
            ["create 3g.40gb@4:4"],
            ["1g.10gb"],
            ["3g.40gb"],
            id="what-fits-beside-is-made-at-once",
        ),
        pytest.param(
            ("3g.40gb@0",),
            "4g.40gb 3g.40gb",
            ["create 3g.40gb@4:4"],
            ["3g.40gb"],
            ["4g.40gb"],
            id="wanted-profile-at-a-place-that-blocks",
        ),
        pytest.param(
            ("1g.10gb@2", "1g.10gb@5", "1g.10gb@6"),
            "4g.40gb 1g.10gb*3",
            ["create 1g.10gb@4:1"],
            ["1g.10gb"],
            ["4g.40gb"],
            id="smallest-set-in-the-way",
        ),
        pytest.param(
            ("1g.10gb+me@0",),
            "3g.40gb 2g.20gb 1g.10gb",
            ["create 3g.40gb@4:4", "create 2g.20gb@2:2", "create 1g.10gb@1:1"],
            ["1g.10gb+me"],
            [],
            id="placed-around-what-is-in-the-way",
        ),
        pytest.param(
            ("1g.10gb+me@6",),
            "3g.40gb*2",
            ["create 3g.40gb@0:4"],
            ["1g.10gb+me"],
            ["3g.40gb"],
            id="what-is-in-the-way-blocks-only-its-slices",
        ),
        pytest.param(
            ("1g.10gb+me@6",), "1g.10gb+me 7g.80gb", None, None, None, id="never-fits-is-not-waiting"
        ),
    ],
)
def test_what_is_in_use_stays(standing, wanted, steps, in_the_way, later) -> None:
    gpu = card(*(instance(where, used_by=f"job{n}") for n, where in enumerate(standing)))

    outcome = plan_card(gpu, layout(wanted))

    if steps is None:
        assert isinstance(outcome, Refusal)
        assert outcome.reason == Reason.INVALID_LAYOUT
        return
    assert isinstance(outcome, CardPlan)
    assert written(outcome) == steps
    assert [i.profile for i in outcome.in_the_way] == in_the_way
    assert [pair.profile for pair in outcome.later.create] == later
    assert outcome.waiting is not None
    assert outcome.waiting.reason == Reason.WAITING_FOR_CLAIMS
    assert not outcome.is_applied
    assert steps_of(planned(after(gpu, outcome), layout(wanted))) == ()


def test_the_message_names_instances_claims_pods_and_processes() -> None:
    busy = replace(instance("1g.10gb@0", used_by="train"), processes=(Process(4711, "python"),))

    waiting = planned(card(busy), layout("7g.80gb")).waiting

    assert waiting is not None
    assert waiting.message == (
        "waits for 1g.10gb@0:1 used by claim team-a/train (pod team-a/train-pod), process 4711 (python). "
        "Nothing in use is touched; delete those pods and stop those processes, or wait for their end"
    )
    assert waiting.pods == ("team-a/train-pod",)
    assert [c.name for c in waiting.claims] == ["train"]
    assert [p.pid for p in waiting.processes] == [4711]


def test_a_process_alone_pins_an_instance() -> None:
    plan = planned(card(instance("1g.10gb@0", pid=1)), WHOLE)

    assert steps_of(plan) == ()
    assert [i.profile for i in plan.in_the_way] == ["1g.10gb"]


def test_idle_instances_stay_while_destroying_them_wins_nothing() -> None:
    gpu = card(instance("1g.10gb@0", used_by="job"), instance("1g.10gb@4"))

    plan = planned(gpu, layout("7g.80gb"))

    assert steps_of(plan) == ()
    assert [i.placement.start for i in plan.later.destroy] == [0, 4]
    assert [i.placement.start for i in plan.in_the_way] == [0]


@pytest.mark.parametrize("adopt", [False, True], ids=["without-adopt", "with-adopt"])
def test_instances_of_others_are_left_alone_unless_adopted(adopt: bool) -> None:
    foreign = [instance(where, ownership=Ownership.FOREIGN) for where in ("3g.40gb@0", "1g.10gb@4")]

    outcome = plan_card(card(*foreign), layout("3g.40gb*2"), adopt=adopt)

    if not adopt:
        assert isinstance(outcome, Refusal)
        assert outcome.reason == Reason.OWNERSHIP_CONFLICT
        assert "3g.40gb@0:4, 1g.10gb@4:1" in outcome.message
        assert [i.profile for i in outcome.instances] == ["3g.40gb", "1g.10gb"]
        return
    assert isinstance(outcome, CardPlan)
    assert written(outcome) == ["destroy 1g.10gb@4:1", "create 3g.40gb@4:4"]
    assert [i.profile for i in outcome.adopt] == ["3g.40gb"]


def test_a_foreign_instance_forbids_the_whole_card_too() -> None:
    refusal = refused(card(instance("1g.10gb@0", ownership=Ownership.FOREIGN)), WHOLE)

    assert refusal.reason == Reason.OWNERSHIP_CONFLICT
    assert "nvidia-smi mig -dci" in refusal.message
    assert "adopt" not in refusal.message, "a policy with adopt is refused as NotImplemented"


def test_an_instance_without_compute_instance_is_made_again() -> None:
    gpu = card(instance("3g.40gb@0", broken=True), instance("3g.40gb@4"))

    plan = planned(gpu, layout("3g.40gb*2"))

    assert written(plan) == ["destroy 3g.40gb@0:4", "create 3g.40gb@0:4"]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        pytest.param(
            "3g.40gb*3",
            "3g.40gb x3 does not fit on NVIDIA H100 80GB HBM3: at most 2 of 3g.40gb",
            id="too-many-of-one",
        ),
        pytest.param(
            "3g.40gb*2 1g.10gb",
            "3g.40gb x2 + 1g.10gb x1 does not fit on NVIDIA H100 80GB HBM3; "
            "it would fit with 3g.40gb x1 or 1g.10gb x0",
            id="placements-not-slices",
        ),
        pytest.param(
            "1g.10gb+me*2",
            "1g.10gb+me x2 does not fit on NVIDIA H100 80GB HBM3: at most 1 of 1g.10gb+me",
            id="media-engines",
        ),
        pytest.param(
            "7g.80gb*3 4g.40gb*3",
            "7g.80gb x3 + 4g.40gb x3 does not fit on NVIDIA H100 80GB HBM3; "
            "each alone, at most 1 of 7g.80gb, 1 of 4g.40gb",
            id="no-single-reduction",
        ),
        pytest.param(
            "1g.10gb*1000000000",
            "1g.10gb x1000000000 does not fit on NVIDIA H100 80GB HBM3: at most 7 of 1g.10gb",
            id="absurd-count",
        ),
        pytest.param("1g.10gb*-1", "1g.10gb: count is -1 and must be at least 1", id="negative"),
        pytest.param("", "the layout is empty; name a profile, or use a whole-card strategy", id="empty"),
        pytest.param(
            "1g.5gb",
            'there is no profile "1g.5gb": NVIDIA H100 80GB HBM3 offers 1g.10gb (up to 7), '
            "1g.10gb+me (up to 1), 1g.20gb (up to 4), 2g.20gb (up to 3), 3g.40gb (up to 2), 4g.40gb (up to 1), "
            "7g.80gb (up to 1)",
            id="profile-of-another-card",
        ),
    ],
)
def test_a_layout_that_can_never_fit_says_what_would(wanted: str, message: str) -> None:
    refusal = refused(card(instance("1g.10gb@0", used_by="job")), layout(wanted))

    assert (refusal.reason, refusal.message) == (Reason.INVALID_LAYOUT, message)


def test_two_spellings_of_a_profile_are_one_wish() -> None:
    assert written(planned(card(), layout("3g.40gb 3g.39gb"))) == ["create 3g.40gb@0:4", "create 3g.40gb@4:4"]


@pytest.mark.parametrize(
    ("mig", "wanted", "steps", "waiting"),
    [
        pytest.param({}, WHOLE, [], None, id="no-mig-whole"),
        pytest.param(
            {"capable": True, "profiles": H100},
            layout("7g.80gb"),
            ["turn MIG mode on", "create 7g.80gb@0:8"],
            None,
            id="turn-on",
        ),
        pytest.param(
            {"capable": True, "enabled": True, "profiles": H100},
            WHOLE,
            ["turn MIG mode off"],
            None,
            id="turn-off",
        ),
        pytest.param(
            AMPERE | {"pending_enabled": True},
            layout("7g.80gb"),
            [],
            Reason.MIG_ACTIVATION_PENDING,
            id="on-is-pending",
        ),
        pytest.param(
            AMPERE | {"enabled": True, "pending_enabled": False},
            WHOLE,
            [],
            Reason.MIG_ACTIVATION_PENDING,
            id="off-is-pending",
        ),
        pytest.param(
            AMPERE | {"pending_enabled": True},
            WHOLE,
            ["turn MIG mode off"],
            None,
            id="pending-on-is-cancelled",
        ),
        pytest.param(
            AMPERE | {"enabled": True, "pending_enabled": False},
            layout("7g.80gb"),
            ["turn MIG mode on", "create 7g.80gb@0:8"],
            None,
            id="pending-off-is-cancelled",
        ),
    ],
)
def test_mig_mode_follows_the_layout(mig: dict, wanted, steps: list[str], waiting: Reason | None) -> None:
    plan = planned(card(mig=MigState(**mig)), wanted)

    assert written(plan) == steps
    assert (plan.waiting.reason if plan.waiting else None) == waiting


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        pytest.param(
            {"mig": MigState(**AMPERE, pending_enabled=True), "processes": (Process(1),)},
            WHOLE,
            id="pending-on-in-use-as-a-whole",
        ),
        pytest.param(
            {
                "mig": MigState(**AMPERE, enabled=True, pending_enabled=False),
                "instances": (instance("7g.80gb@0"),),
            },
            layout("7g.80gb"),
            id="pending-off-with-instances",
        ),
    ],
)
def test_a_pending_mode_does_not_disturb_what_stands(fields: dict, wanted) -> None:
    plan = planned(replace(card(mig=fields["mig"]), **fields), wanted)

    assert plan.is_applied
    assert steps_of(plan) == ()


def test_a_mode_that_is_on_and_stays_on_is_not_pending() -> None:
    mig = MigState(capable=True, enabled=True, pending_enabled=True, profiles=H100)

    assert written(planned(card(mig=mig), layout("7g.80gb"))) == ["create 7g.80gb@0:8"]


@pytest.mark.parametrize("used_by", [None, "job"], ids=["idle", "in-use"])
def test_an_instance_that_the_card_does_not_list_is_garbage(used_by: str | None) -> None:
    strange = replace(instance("3g.40gb@0", used_by=used_by), profile_id=99, profile="3g.40gb+x")

    plan = planned(card(strange), layout("3g.40gb*2"))

    if used_by:
        assert [i.profile for i in plan.in_the_way] == ["3g.40gb+x"]
        assert written(plan) == ["create 3g.40gb@4:4"]
    else:
        assert written(plan) == ["destroy 3g.40gb+x@0:4", "create 3g.40gb@0:4", "create 3g.40gb@4:4"]


@pytest.mark.parametrize(
    ("change", "empty"),
    [
        (Change(), True),
        (Change(mig_mode=False), False),
        (Change(destroy=(instance("7g.80gb@0"),)), False),
        (Change(create=(PlacedProfile(0, "7g.80gb", Placement(0, 8)),)), False),
    ],
    ids=["nothing", "mode", "destroy", "create"],
)
def test_a_plan_is_applied_when_nothing_is_left_to_write(change: Change, empty: bool) -> None:
    assert change.is_empty is empty
    assert CardPlan("GPU-0", WHOLE, now=change).is_applied is empty


def test_an_ampere_card_ends_pending_and_names_the_holders() -> None:
    gpu = card(mig=MigState(**AMPERE), pci_bus_id="0000:1a:00.0")
    asked = after(gpu, replace(planned(gpu, layout("7g.80gb"))))

    plan = planned(replace(asked, processes=(Process(17, "dcgm"),), instances=()), layout("7g.80gb"))

    assert steps_of(plan) == ()
    assert plan.waiting is not None
    assert plan.waiting.reason == Reason.MIG_ACTIVATION_PENDING
    assert "process 17 (dcgm)" in plan.waiting.message
    assert "nvidia-smi --gpu-reset -i 0000:1a:00.0" in plan.waiting.message


@pytest.mark.parametrize(
    "fields",
    [{"claims": (claim("whole"),)}, {"processes": (Process(9),)}],
    ids=["claim-on-the-card", "process-on-the-card"],
)
@pytest.mark.parametrize("enabled", [False, True], ids=["mig-off", "mig-on"])
def test_a_card_in_use_as_a_whole_is_not_partitioned(fields: dict, enabled: bool) -> None:
    plan = planned(card(enabled=enabled, **fields), layout("7g.80gb"))

    assert steps_of(plan) == ()
    assert plan.waiting is not None
    assert plan.waiting.reason == Reason.WAITING_FOR_CLAIMS
    assert "the whole card, used by" in plan.waiting.message
    assert [pair.profile for pair in plan.later.create] == ["7g.80gb"]


def test_a_process_on_the_card_does_not_hold_up_further_instances() -> None:
    gpu = card(instance("3g.40gb@0"), processes=(Process(9),))

    assert written(planned(gpu, layout("3g.40gb*2"))) == ["create 3g.40gb@4:4"]


@pytest.mark.parametrize("health", [Health.UNHEALTHY, Health.UNKNOWN])
def test_a_sick_card_is_not_changed(health: Health) -> None:
    sick = card(health=health, health_message="XID 79")

    refusal = refused(sick, layout("7g.80gb"))

    assert refusal.reason == Reason.GPU_UNHEALTHY
    assert "XID 79" in refusal.message
    assert refused(sick, layout("3g.40gb*3")).reason == Reason.GPU_UNHEALTHY
    assert planned(replace(sick, instances=(instance("7g.80gb@0"),)), layout("7g.80gb")).is_applied


def test_no_mig_and_not_served_are_said() -> None:
    no_mig = card(mig=MigState(), product_name="Tesla T4")

    assert refused(no_mig, layout("1g.10gb")).reason == Reason.MIG_UNSUPPORTED
    assert refused(no_mig, layout("1g.10gb")).message == "Tesla T4 cannot be partitioned (no MIG)"
    assert refused(card(), OnDemand()).reason == Reason.NOT_IMPLEMENTED


@pytest.mark.parametrize(
    ("gpu", "reason"),
    [
        pytest.param(card(), Reason.INVALID_LAYOUT, id="it-cannot"),
        pytest.param(card(health=Health.UNHEALTHY), Reason.INVALID_LAYOUT, id="sick-and-it-cannot"),
        pytest.param(card(health=Health.UNKNOWN, mig=MigState()), None, id="sick-and-silent"),
        pytest.param(card(mig=MigState()), Reason.MIG_UNSUPPORTED, id="well-and-without-mig"),
    ],
)
def test_what_can_never_stand_is_not_guessed_from_silence(gpu: Gpu, reason: Reason | None) -> None:
    refusal = layout_refusal(gpu, layout("3g.40gb*3"))

    assert (refusal.reason if refusal else None) == reason


def test_steps_undo_in_reverse() -> None:
    gpu = card(instance("1g.10gb@0"), instance("2g.20gb@4"))
    done = steps_of(planned(gpu, WHOLE))

    assert [str(step) for step in done] == [
        "destroy 1g.10gb@0:1",
        "destroy 2g.20gb@4:2",
        "turn MIG mode off",
    ]
    assert [str(step) for step in undo(done)] == [
        "turn MIG mode on",
        "create 2g.20gb@4:2",
        "create 1g.10gb@0:1",
    ]
    assert isinstance(inverse(done[2]), SetMigMode)
    assert [str(inverse(inverse(step))) for step in done] == [str(step) for step in done]
