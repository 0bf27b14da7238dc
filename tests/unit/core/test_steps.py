"""Steps: their order, their inverses, and the card as they leave it."""

import pytest

from gpupolicy.core.inventory import MigState, Ownership
from gpupolicy.core.planner import Change
from gpupolicy.core.steps import CreateInstance, SetMigMode, card_after, inverse, steps_of_change, undo
from tests.unit.core.builders import H100, card, instance

ONE = instance("1g.10gb@0")
PLACED = CreateInstance("GPU-0", 9, "3g.40gb", instance("3g.40gb@4").placement)


@pytest.mark.parametrize(
    ("needs_reset", "before", "pending", "step", "after"),
    [
        pytest.param(False, False, None, True, (True, None), id="hopper-on"),
        pytest.param(False, True, None, False, (False, None), id="hopper-off"),
        pytest.param(True, False, None, True, (False, True), id="ampere-on-is-pending"),
        pytest.param(True, True, None, False, (True, False), id="ampere-off-is-pending"),
        pytest.param(True, False, True, False, (False, None), id="ampere-pending-is-cancelled"),
    ],
)
def test_the_mode_after_a_step(
    needs_reset: bool, before: bool, pending: bool | None, step: bool, after
) -> None:
    mig = MigState(
        capable=True, enabled=before, pending_enabled=pending, mode_needs_reset=needs_reset, profiles=H100
    )

    changed = card_after(card(mig=mig), SetMigMode("GPU-0", step)).mig

    assert (changed.enabled, changed.pending_enabled) == after


def test_a_new_instance_is_ours_and_has_free_ids() -> None:
    gpu = card(ONE)

    made = card_after(gpu, PLACED)

    assert [(i.profile, i.placement.start, i.gpu_instance_id) for i in made.instances] == [
        ("1g.10gb", 0, 7),
        ("3g.40gb", 4, 0),
    ]
    assert made.instances[1].ownership is Ownership.OWNED
    assert made.instances[1].compute_instance_id == 0
    again = card_after(made, CreateInstance("GPU-0", 19, "1g.10gb", instance("1g.10gb@1").placement))
    assert sorted(i.gpu_instance_id for i in again.instances) == [0, 1, 7]


def test_only_the_instance_that_is_meant_is_destroyed() -> None:
    gpu = card(ONE, instance("1g.10gb@1"), instance("3g.40gb@4"))
    (step,) = steps_of_change("GPU-0", Change(destroy=(gpu.instances[1],)))

    assert [i.placement.start for i in card_after(gpu, step).instances] == [0, 4]


def test_a_step_and_its_inverse_leave_the_card_as_it_was() -> None:
    gpu = card(ONE)
    change = Change(mig_mode=False, destroy=gpu.instances, create=())
    done = steps_of_change("GPU-0", change, "because")

    changed = gpu
    for step in (*done, *undo(done)):
        changed = card_after(changed, step)

    assert [(i.profile, i.placement) for i in changed.instances] == [(ONE.profile, ONE.placement)]
    assert changed.mig == gpu.mig
    assert [step.reason for step in done] == ["because"] * 2
    assert inverse(done[1]).reason == "undo: turn MIG mode off"
    assert str(inverse(PLACED)) == "destroy 3g.40gb@4:4"


def test_destruction_carries_the_ids_that_prove_what_is_meant() -> None:
    gpu = card(ONE)
    (step,) = steps_of_change("GPU-0", Change(destroy=gpu.instances))

    assert (step.gpu_instance_id, step.compute_instance_id, step.mig_uuid) == (7, 0, "MIG-1g.10gb@0")
