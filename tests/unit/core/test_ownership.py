"""Proof of ownership: what the ledger says, laid over what stands, after every kind of interruption."""

from dataclasses import replace

import pytest

from gpupolicy.core import ownership
from gpupolicy.core.inventory import ClaimUse, Gpu, Instance, MigState, Ownership, Placement
from gpupolicy.core.records import (
    ClaimRecord,
    ClaimState,
    DeviceKind,
    DeviceRecord,
    GpuRecord,
    InstanceRecord,
    InstanceState,
    PreparedDevice,
)
from gpupolicy.core.xids import Xid
from tests.unit.core.builders import H100, card, instance


def entry(
    where: str, state: InstanceState = InstanceState.CREATED, *, uuid: str | None = None
) -> InstanceRecord:
    model = instance(where)
    return InstanceRecord(
        model.profile_id,
        model.profile,
        model.placement,
        state,
        gpu_instance_id=None if state is InstanceState.CREATING else 7,
        uuid=model.uuid if uuid is None else uuid,
    )


def record(*entries: InstanceRecord, **fields: object) -> GpuRecord:
    return GpuRecord("GPU-0", instances=entries, **fields)  # type: ignore[arg-type]


STANDS = instance("1g.10gb@6", ownership=Ownership.FOREIGN)
NO_COMPUTE = instance("1g.10gb@6", ownership=Ownership.FOREIGN, broken=True)


@pytest.mark.parametrize(
    ("known", "stands", "ours"),
    [
        pytest.param(entry("1g.10gb@6"), STANDS, True, id="created"),
        pytest.param(
            entry("1g.10gb@6", InstanceState.CREATING, uuid=""), STANDS, True, id="creation not confirmed"
        ),
        pytest.param(entry("1g.10gb@6", InstanceState.DESTROYING), STANDS, True, id="destruction not begun"),
        pytest.param(
            entry("1g.10gb@6", InstanceState.DESTROYING), NO_COMPUTE, True, id="destruction half done"
        ),
        pytest.param(entry("1g.10gb@6"), NO_COMPUTE, True, id="compute instance gone"),
        pytest.param(entry("1g.10gb@6", uuid="MIG-other"), STANDS, False, id="somebody made it again"),
        pytest.param(entry("1g.10gb@5"), STANDS, False, id="another place"),
        pytest.param(entry("1g.20gb@6"), STANDS, False, id="another profile in its place"),
        pytest.param(None, STANDS, False, id="no record"),
    ],
)
def test_an_instance_is_ours_where_the_record_proves_it(
    known: InstanceRecord | None, stands: Instance, ours: bool
) -> None:
    gpu = card(stands)
    ledger = record(*([known] if known else []))
    assert ownership.owned(gpu, ledger).instances[0].ownership is (
        Ownership.OWNED if ours else Ownership.FOREIGN
    )
    after = ownership.settled(ledger, gpu)
    assert bool(after.instances) is ours
    if ours:
        uuid = stands.uuid or (known.uuid if known else "")
        assert after.instances == (replace(ownership.made(gpu.instances[0]), uuid=uuid),)
        assert after.instances[0].state is InstanceState.CREATED


def test_an_instance_that_somebody_made_where_ours_lost_its_compute_instance_is_not_ours() -> None:
    """Ours was seen without one in between; that must not make anything ours that stands there later."""
    seen = ownership.settled(record(entry("1g.10gb@6", uuid="MIG-ours")), card(NO_COMPUTE))
    assert ownership.owned(card(NO_COMPUTE), seen).instances[0].ownership is Ownership.OWNED
    assert ownership.owned(card(STANDS), seen).instances[0].ownership is Ownership.FOREIGN


def test_what_did_not_come_about_is_forgotten() -> None:
    known = record(
        entry("1g.10gb@6", InstanceState.CREATING, uuid=""),
        entry("3g.40gb@0", InstanceState.DESTROYING),
        entry("1g.10gb@4"),
        mode_before=False,
        mode_intent=True,
        policy="infer",
        revision="r",
    )
    after = ownership.settled(known, card())
    assert after.instances == ()
    assert after.mode_intent is None
    assert (after.mode_before, after.policy, after.revision) == (False, "infer", "r")


@pytest.mark.parametrize(
    ("before", "gpu", "kept"),
    [
        pytest.param(False, card(), False, id="we switched it on"),
        pytest.param(False, card(enabled=False), None, id="it is off again"),
        pytest.param(True, card(), None, id="it is on again"),
        pytest.param(True, card(enabled=False), True, id="we switched it off"),
        pytest.param(None, card(), None, id="never changed"),
    ],
)
def test_the_mode_to_go_back_to(before: bool | None, gpu: Gpu, kept: bool | None) -> None:
    after = ownership.settled(record(mode_before=before), gpu)
    assert after.mode_before is kept
    assert ownership.mode_is_ours(after) is (kept is False)


@pytest.mark.parametrize("pending", [True, False])
def test_a_mode_that_waits_for_a_reset_is_not_there_yet(pending: bool) -> None:
    gpu = card(enabled=False)
    gpu = replace(gpu, mig=replace(gpu.mig, pending_enabled=pending))
    assert ownership.settled(record(mode_before=False), gpu).mode_before is (False if pending else None)


def test_a_card_that_says_it_has_no_mig_proves_nothing_wrong() -> None:
    """A wrong word of the driver for one moment must not make foreign what is ours."""
    known = record(entry("3g.40gb@0"), mode_before=False, mode_intent=True)
    assert ownership.settled(known, card(mig=MigState(capable=False))) == known


def test_what_the_card_says_nothing_of_is_proven_still() -> None:
    """A profile is not listed when the driver did not answer; its instances are not seen then, and are not gone."""
    known = record(entry("3g.40gb@0"), entry("1g.10gb@6"))
    seen = card(profiles=tuple(p for p in H100 if p.name != "3g.40gb"))
    assert ownership.settled(known, seen).instances == (entry("3g.40gb@0"),)


def test_a_card_without_a_record_is_not_ours() -> None:
    assert not ownership.mode_is_ours(None)


def test_settling_twice_changes_nothing() -> None:
    gpu = card(instance("1g.10gb@6"), instance("3g.40gb@0"))
    once = ownership.settled(record(entry("3g.40gb@0"), entry("1g.10gb@6")), gpu)
    assert ownership.settled(once, gpu) == once


def test_a_reboot_leaves_what_to_restore() -> None:
    known = record(entry("1g.10gb@6"), policy="infer", revision="r", mode_before=False, mode_intent=True)
    known = replace(known, xid=Xid(79, "2026-11-30T12:00:00Z"))
    assert ownership.after_boot(known) == record(policy="infer", mode_before=False)


@pytest.mark.parametrize(
    ("gpu", "known", "whole"),
    [
        pytest.param(card(), None, Ownership.OBSERVED, id="nothing known"),
        pytest.param(card(), record(), Ownership.OBSERVED, id="nothing wanted"),
        pytest.param(card(), record(policy="train"), Ownership.OWNED, id="shaped by a policy"),
        pytest.param(card(STANDS), record(entry("1g.10gb@6")), Ownership.OWNED, id="ours"),
        pytest.param(card(STANDS), None, Ownership.FOREIGN, id="foreign"),
        pytest.param(
            card(STANDS, instance("3g.40gb@0")), record(entry("3g.40gb@0")), Ownership.FOREIGN, id="both"
        ),
    ],
)
def test_a_card_is_whose_instances_stand_on_it(
    gpu: object, known: GpuRecord | None, whole: Ownership
) -> None:
    assert ownership.owned(gpu, known).ownership is whole  # type: ignore[arg-type]


def prepared(uid: str, *, start: int | None, gpu: str = "GPU-0", pods: tuple[str, ...] = ()) -> ClaimRecord:
    place = {} if start is None else {"profile_id": 19, "placement": Placement(start, 1)}
    device = DeviceRecord(
        "any",
        DeviceKind.MIG if place else DeviceKind.GPU,
        "p",
        gpu,
        **place,  # type: ignore[arg-type]
    )
    return ClaimRecord(
        uid, "ns", f"claim-{uid}", ClaimState.PREPARE_COMPLETED, (PreparedDevice(device, "pool"),), pods
    )


def test_claims_of_the_ledger_and_of_the_api_server_count_once() -> None:
    gpu = card(instance("1g.10gb@6"), instance("1g.10gb@5"), enabled=True)
    allocated = {
        "mig-0-19-6": (ClaimUse("ns", "claim-a", "a", ("pod-1", "pod-2")),),
        "mig-0-19-5": (ClaimUse("ns", "claim-b", "b", ("pod-3",)),),
        "mig-9-19-5": (ClaimUse("ns", "claim-z", "z"),),
    }
    held = ownership.held(gpu, [prepared("a", start=6, pods=("old",)), prepared("c", start=4)], allocated)
    six, five = held.instances
    assert six.claims == (ClaimUse("ns", "claim-a", "a", ("pod-1", "pod-2"), prepared=True),)
    assert five.claims == (ClaimUse("ns", "claim-b", "b", ("pod-3",), prepared=False),)
    assert held.claims == ()


def test_a_claim_holds_its_card_and_no_other() -> None:
    held = ownership.held(card(enabled=False), [prepared("a", start=None, pods=("p",))], {})
    assert held.claims == (ClaimUse("ns", "claim-a", "a", ("p",), prepared=True),)
    other = ownership.held(card(enabled=False), [prepared("a", start=None, gpu="GPU-1")], {})
    assert other.claims == ()
    assert not other.in_use


def test_a_claim_in_any_state_pins() -> None:
    for state in ClaimState:
        claim = replace(prepared("a", start=6), state=state)
        assert ownership.held(card(instance("1g.10gb@6")), [claim], {}).instances[0].in_use
