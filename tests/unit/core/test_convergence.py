"""One card decided: what is done to it, what is offered meanwhile, and what dooms what."""

from dataclasses import replace
from typing import Any

import pytest

from gpupolicy.api import names
from gpupolicy.api.conditions import Reason
from gpupolicy.api.node import GpuAssignment, GpuNodeSpec, GpuRelease, MigLayout
from gpupolicy.api.policy import MigLayoutEntry, Strategy
from gpupolicy.core.convergence import CardDecision, Circumstances, decide_card
from gpupolicy.core.devices import DriverFacts
from gpupolicy.core.inventory import Gpu, Health, MigState, Ownership, Placement
from gpupolicy.core.refusals import Refusal
from gpupolicy.core.steps import CreateInstance
from tests.unit.core.builders import H100, card, claim, instance

AROUND = Circumstances(DriverFacts("550.54.15", "12.4"))
PAIR = (("3g.40gb", 1), ("1g.10gb", 2))


def spec(*layout: tuple[str, int], **fields: Any) -> GpuNodeSpec:
    mig = MigLayout(layout=[MigLayoutEntry(profile=p, count=n) for p, n in layout]) if layout else None
    assignment = GpuAssignment(
        uuid="GPU-0",
        policy="infer",
        strategy=fields.pop("strategy", Strategy.MIG if layout else Strategy.EXCLUSIVE),
        mig=mig,
        revision="r1",
        **fields,
    )
    return GpuNodeSpec(gpus=[assignment])


def decide(gpu: Gpu, wanted: GpuNodeSpec, around: Circumstances = AROUND, **options: Any) -> CardDecision:
    return decide_card(gpu, wanted, around, **options)


def offered(decision: CardDecision) -> dict[str, tuple[str, ...]]:
    return {d.name: tuple(t.key for t in d.taints) for d in decision.published.offered}


def test_a_card_of_no_policy_is_left_alone_and_not_offered() -> None:
    decision = decide(card(instance("1g.10gb@6")), GpuNodeSpec())
    assert decision.plan is None
    assert not decision.needs_change
    assert offered(decision) == {}
    assert [d.name for d in decision.published.standing] == ["mig-0-19-6"]


def test_a_whole_card_that_is_to_be_cut_is_withdrawn_and_doomed() -> None:
    decision = decide(card(enabled=False), spec(*PAIR))
    assert str(decision.steps[0]) == "turn MIG mode on"
    assert offered(decision) == {}
    assert decision.doomed == {"gpu-0"}
    assert not decision.is_applied


def test_idle_instances_that_go_are_withdrawn_and_doomed_and_those_that_stay_are_offered() -> None:
    gpu = card(instance("7g.80gb@0"))
    assert decide(gpu, spec(*PAIR)).doomed == {"mig-0-0-0"}
    gpu = card(instance("1g.10gb@6"), instance("1g.20gb@0"))
    decision = decide(gpu, spec(("1g.10gb", 1), ("4g.40gb", 1)))
    assert decision.doomed == {"mig-0-15-0"}
    assert offered(decision) == {"mig-0-19-6": ()}


def test_nothing_offered_is_ever_doomed() -> None:
    """What a step destroys must not be in the slices at that moment; the decision itself keeps to that."""
    layouts = [(), PAIR, (("7g.80gb", 1),), (("1g.20gb", 2), ("2g.20gb", 1)), (("1g.10gb", 7),)]
    cards = [
        card(enabled=False),
        card(),
        card(instance("7g.80gb@0")),
        card(instance("7g.80gb@0", used_by="c")),
        card(instance("1g.10gb@0", used_by="c"), instance("1g.10gb@1"), instance("2g.20gb@4")),
        card(enabled=False, claims=(claim(),)),
        card(enabled=False, mig=MigState(capable=True, profiles=H100, pending_enabled=True)),
        card(instance("1g.10gb@0", broken=True)),
        card(instance("1g.10gb@0", ownership=Ownership.FOREIGN), instance("1g.10gb@1")),
    ]
    for gpu in cards:
        for layout in layouts:
            for adopt in (False, True):
                decision = decide(gpu, spec(*layout, adopt=adopt))
                assert not decision.doomed & set(offered(decision)), (gpu, layout, adopt)


def test_cancelling_a_pending_mode_does_not_doom_the_whole_card() -> None:
    gpu = card(enabled=False, mig=MigState(capable=True, profiles=H100, pending_enabled=True))
    decision = decide(gpu, spec())
    assert [str(s) for s in decision.steps] == ["turn MIG mode off"]
    assert offered(decision) == {"gpu-0": ()}
    assert decision.doomed == frozenset()


def test_what_is_in_use_and_not_wanted_stays_with_a_taint_while_the_rest_goes_on() -> None:
    gpu = card(instance("1g.10gb@0", used_by="c"), instance("1g.10gb@1"))
    decision = decide(gpu, spec(("3g.40gb", 1)))
    assert offered(decision) == {"mig-0-19-0": (names.RETIRING_TAINT,)}
    assert [str(s) for s in decision.steps] == ["destroy 1g.10gb@1:1", "create 3g.40gb@4:4"]
    assert decision.doomed == {"mig-0-19-1"}


@pytest.mark.parametrize("health", [Health.UNHEALTHY, Health.UNKNOWN])
def test_a_sick_card_keeps_what_is_right_tainted_and_is_not_touched(health: Health) -> None:
    gpu = replace(card(instance("1g.10gb@0"), instance("3g.40gb@4")), health=health)
    decision = decide(gpu, spec(*PAIR))
    assert isinstance(decision.plan, Refusal)
    assert decision.plan.reason is Reason.GPU_UNHEALTHY
    assert decision.steps == ()
    assert offered(decision) == {
        "mig-0-19-0": (names.UNHEALTHY_TAINT,),
        "mig-0-9-4": (names.UNHEALTHY_TAINT,),
    }


def test_a_foreign_instance_in_a_corner_withdraws_nothing_of_ours() -> None:
    gpu = card(instance("3g.40gb@4"), instance("1g.10gb@0", ownership=Ownership.FOREIGN))
    decision = decide(gpu, spec(*PAIR))
    assert isinstance(decision.plan, Refusal)
    assert decision.plan.reason is Reason.OWNERSHIP_CONFLICT
    assert decision.steps == ()
    assert offered(decision) == {"mig-0-9-4": ()}


def test_a_foreign_instance_makes_no_whole_card() -> None:
    gpu = card(instance("1g.10gb@0", ownership=Ownership.FOREIGN))
    assert offered(decide(gpu, spec())) == {}


def test_what_is_adopted_is_not_offered_before_it_is_recorded() -> None:
    gpu = card(instance("3g.40gb@4", ownership=Ownership.FOREIGN))
    decision = decide(gpu, spec(("3g.40gb", 1), adopt=True))
    assert decision.steps == ()
    assert [i.placement for i in decision.adopted] == [Placement(4, 4)]
    assert decision.needs_change
    assert not decision.is_applied
    assert offered(decision) == {}
    ours = card(instance("3g.40gb@4"))
    decision = decide(ours, spec(("3g.40gb", 1), adopt=True))
    assert decision.is_applied
    assert offered(decision) == {"mig-0-9-4": ()}


def test_hands_off_means_no_step_but_still_a_plan() -> None:
    around = replace(AROUND, hands_off=Refusal(Reason.NVML_UNAVAILABLE, "away"))
    decision = decide(card(enabled=False), spec(*PAIR), around)
    assert decision.steps == ()
    assert not decision.needs_change
    assert not decision.is_applied
    gpu = card(instance("3g.40gb@4", ownership=Ownership.FOREIGN))
    assert decide(gpu, spec(("3g.40gb", 1), adopt=True), around).adopted == ()


@pytest.mark.parametrize(
    ("hands_off", "told"),
    [
        pytest.param(Refusal(Reason.LEDGER_CORRUPT, "torn"), Reason.LEDGER_CORRUPT, id="damaged-record"),
        pytest.param(Refusal(Reason.NVML_UNAVAILABLE, "away"), Reason.OWNERSHIP_CONFLICT, id="else"),
    ],
)
def test_instances_of_a_card_without_a_readable_record_are_not_called_foreign(
    hands_off: Refusal, told: Reason
) -> None:
    # Nothing proves whose they are; the remedy of a conflict is to delete them, and pods may be using them.
    gpu = card(instance("3g.40gb@4", ownership=Ownership.FOREIGN))
    decision = decide(gpu, spec(*PAIR), replace(AROUND, hands_off=hands_off))
    assert decision.waiting is not None
    assert decision.waiting.reason is told
    assert decision.steps == ()


def test_nothing_is_offered_beside_a_device_plugin() -> None:
    around = replace(AROUND, offers_nothing=True, hands_off=Refusal(Reason.OWNERSHIP_CONFLICT, "plugin"))
    decision = decide(card(enabled=False), spec(), around)
    assert offered(decision) == {}
    assert [d.name for d in decision.published.standing] == ["gpu-0"]


@pytest.mark.parametrize("strategy", [Strategy.TIME_SLICING, Strategy.MPS])
def test_a_strategy_of_a_newer_controller_is_refused_and_not_ignored(strategy: Strategy) -> None:
    decision = decide(card(enabled=False), spec(strategy=strategy))
    assert isinstance(decision.plan, Refusal)
    assert decision.plan.reason is Reason.NOT_IMPLEMENTED
    assert strategy in decision.plan.message
    assert offered(decision) == {}
    held = decide(card(enabled=False, claims=(claim(),)), spec(strategy=strategy))
    assert offered(held) == {"gpu-0": (names.RETIRING_TAINT,)}


def test_a_released_card_becomes_whole_and_is_not_offered() -> None:
    wanted = GpuNodeSpec(releases=[GpuRelease(uuid="GPU-0")])
    decision = decide(card(instance("1g.10gb@6")), wanted, mode_is_ours=True)
    assert [str(s) for s in decision.steps] == ["destroy 1g.10gb@6:1", "turn MIG mode off"]
    assert decision.doomed == {"mig-0-19-6"}
    assert offered(decision) == {}
    busy = decide(card(instance("1g.10gb@6", used_by="c")), wanted)
    assert busy.steps == ()
    assert busy.waiting is not None
    foreign = decide(card(instance("1g.10gb@6", ownership=Ownership.FOREIGN)), wanted, mode_is_ours=True)
    assert foreign.steps == ()


def test_a_mode_that_was_on_before_us_stays_on() -> None:
    """Our instances go all the same; a card that is only in that mode has nothing to wait for."""
    wanted = GpuNodeSpec(releases=[GpuRelease(uuid="GPU-0")])
    decision = decide(card(instance("1g.10gb@6")), wanted)
    assert [str(s) for s in decision.steps] == ["destroy 1g.10gb@6:1"]
    empty = decide(card(), wanted)
    assert empty.is_applied
    assert not empty.needs_change
    held = decide(card(claims=(claim(),)), wanted)
    assert held.waiting is None
    busy = decide(card(instance("1g.10gb@6", used_by="c")), wanted)
    assert busy.waiting is not None
    assert busy.waiting.reason is Reason.WAITING_FOR_CLAIMS


@pytest.mark.parametrize("start", [0, 2, 4])
def test_places_that_claims_name_are_made_where_there_is_a_choice(start: int) -> None:
    """After a reboot the pods of allocated claims can only start if their very instance comes back."""
    decision = decide(card(), spec(("2g.20gb", 1)), named={f"mig-0-14-{start}", "mig-7-14-0"})
    made = [s.placement for s in decision.steps if isinstance(s, CreateInstance)]
    assert made == [Placement(start, 2)]


@pytest.mark.parametrize("adopt", [False, True])
def test_a_card_whose_record_is_damaged_is_left_alone(adopt: bool) -> None:
    unproven = Refusal(Reason.LEDGER_CORRUPT, "its record is torn")
    foreign = card(instance("3g.40gb@4", ownership=Ownership.FOREIGN))
    decision = decide(foreign, spec(*PAIR, adopt=adopt), unproven=unproven)
    assert decision.plan == unproven
    assert not decision.needs_change
    assert offered(decision) == {}
    whole = decide(card(enabled=False), spec(adopt=adopt), unproven=unproven)
    assert offered(whole) == {"gpu-0": ()}, "where nothing stands, nothing has to be proven"
    assert decide(card(enabled=False), spec(*PAIR, adopt=adopt), unproven=unproven).steps == ()
    released = decide(
        card(instance("1g.10gb@6")), GpuNodeSpec(releases=[GpuRelease(uuid="GPU-0")]), unproven=unproven
    )
    assert not released.needs_change
