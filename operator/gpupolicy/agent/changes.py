"""Carries out one card's change: intent to the ledger, hardware, then what came of it to the ledger.

The intent of all steps is one record, and so is the outcome, because fsync is slower than NVML at rest. A crash in
between leaves entries that `core.ownership.settled` matches with the hardware; a step that failed leaves the same. So
there is no undo: the next plan starts from what stands, and a failure is told until a plan succeeds.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

from gpupolicy.adapters import files, ledger
from gpupolicy.adapters.nvml.errors import Fault, NvmlError
from gpupolicy.adapters.nvml.instances import Mode
from gpupolicy.agent.state import NodeState
from gpupolicy.api.conditions import Reason
from gpupolicy.core import ownership
from gpupolicy.core.convergence import CardDecision
from gpupolicy.core.inventory import Gpu, Instance, Placement
from gpupolicy.core.records import GpuRecord, InstanceRecord, InstanceState
from gpupolicy.core.refusals import Refusal
from gpupolicy.core.steps import CreateInstance, DestroyInstance, SetMigMode, Step

_log = logging.getLogger(__name__)

_REASONS: Final = {
    Fault.UNAVAILABLE: Reason.NVML_UNAVAILABLE,
    Fault.IN_USE: Reason.WAITING_FOR_CLAIMS,
    Fault.LOST: Reason.GPU_UNHEALTHY,
    Fault.HANGS: Reason.GPU_UNHEALTHY,
    Fault.CHANGED: Reason.OWNERSHIP_CONFLICT,
}
"""What a fault during a change means for the card; any other leaves it degraded."""
_REMEDIES: Final = {
    Fault.IN_USE: "a process that NVML does not list holds it, often a monitoring agent (DCGM); it is tried again",
    Fault.DENIED: "run the agent as root, privileged",
    Fault.NOT_SUPPORTED: "the card or a vGPU guest does not allow it",
}
_STOPPING: Final = frozenset({Fault.UNAVAILABLE, Fault.LOST, Fault.HANGS})
"""After one of these there is no point in trying the next creation."""


class Cards(Protocol):
    """The part of `nvml.session.Nvml` that changes need."""

    async def read(self, gpu_uuid: str) -> Gpu:
        """Read one card."""
        ...

    async def set_mig_mode(self, gpu_uuid: str, *, enabled: bool) -> Mode:
        """Set the MIG mode."""
        ...

    async def create_instance(self, gpu_uuid: str, profile_id: int, placement: Placement) -> Instance:
        """Create an instance."""
        ...

    async def destroy_instance(
        self, gpu_uuid: str, profile_id: int, placement: Placement, *, uuid: str = ""
    ) -> bool:
        """Destroy an instance."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a change.

    Attributes:
        failure: why the card is not as it was meant to be; None where it is, or where there was nothing to do.
        shown: whether nothing was done because devices that have to go may still be allocated.
    """

    failure: Refusal | None = None
    shown: bool = False


@dataclass(slots=True)
class _Progress:
    failures: list[str]
    reason: Reason = Reason.DEGRADED
    taken: frozenset[tuple[int, Placement]] = frozenset()
    """Places where somebody else has made an instance meanwhile: the intent there is no proof of anything."""


async def change_card(
    state: NodeState,
    cards: Cards,
    gpu_uuid: str,
    decide: Callable[[Gpu], CardDecision],
    may_be_shown: Callable[[str], bool],
) -> Outcome:
    """Bring one card to what is wanted of it, as far as that is possible now. Holds the card's lock.

    Args:
        state: the node.
        cards: the hardware.
        gpu_uuid: the card.
        decide: decides on the card as it was read under the lock, with ownership filled in.
        may_be_shown: tells whether the API server may still show a device of this name.
    """
    async with state.hold([gpu_uuid]):
        try:
            gpu = await cards.read(gpu_uuid)
            record = await _settle(state, gpu)
            decision = decide(ownership.owned(gpu, record))
            if not decision.needs_change:
                return Outcome()
            if any(may_be_shown(name) for name in decision.doomed):
                return Outcome(shown=True)
            return Outcome(failure=await _carry_out(state, cards, record, decision))
        except NvmlError as error:
            return Outcome(failure=_refusal(f"card {gpu_uuid}", error))
        except (files.FileError, ledger.DamagedRecordError) as error:
            return Outcome(failure=Refusal(Reason.LEDGER_CORRUPT, f"card {gpu_uuid}: {error}"))


async def _settle(state: NodeState, gpu: Gpu) -> GpuRecord:
    """Return the card's record as the hardware bears it out, written where that is news."""
    known = state.gpus.get(gpu.uuid) or GpuRecord(gpu.uuid, pci_bus_id=gpu.pci_bus_id)
    record = ownership.settled(known, gpu)
    if record != known:
        await state.save_gpu(record)
    return record


async def _carry_out(
    state: NodeState, cards: Cards, record: GpuRecord, decision: CardDecision
) -> Refusal | None:
    gpu = decision.gpu
    intent = _intent(record, decision)
    await state.save_gpu(intent)
    for name in decision.doomed:
        state.devices.pop(name, None)
    await state.announce()
    _log.info("card %d (%s): %s", gpu.index, gpu.uuid, ", ".join(map(str, decision.steps)) or "adopt")
    progress = _Progress([])
    for step in decision.steps:
        taken = progress.taken
        goes_on = await _perform(cards, step, progress)
        if progress.taken != taken:
            # At once: whatever comes next may fail or never come, and what stands there must not be taken for ours.
            proven = tuple(e for e in intent.instances if (e.profile_id, e.placement) not in progress.taken)
            intent = replace(intent, instances=proven)
            await state.save_gpu(intent)
        if not goes_on:
            break
    after = await cards.read(gpu.uuid)
    await state.save_gpu(ownership.settled(intent, after))
    if not progress.failures:
        return None
    text = "; ".join(progress.failures)
    _log.warning("card %d (%s): %s", gpu.index, gpu.uuid, text)
    return Refusal(progress.reason, f"card {gpu.index} ({gpu.uuid}): {text}")


def _intent(record: GpuRecord, decision: CardDecision) -> GpuRecord:
    """Return the record that announces every step of a decision."""
    entries = {(e.profile_id, e.placement): e for e in record.instances}
    mode_before, mode_intent = record.mode_before, None
    for instance in decision.adopted:
        entries[instance.profile_id, instance.placement] = ownership.made(instance)
    for step in decision.steps:
        match step:
            case SetMigMode():
                mode_before = decision.gpu.mig.enabled if mode_before is None else mode_before
                mode_intent = step.enabled
            case DestroyInstance():
                # With `adopt` it may be an instance of somebody else; from now on it is ours to finish.
                entries[step.profile_id, step.placement] = _entry(
                    step, InstanceState.DESTROYING, step.mig_uuid
                )
            case CreateInstance():
                entries[step.profile_id, step.placement] = _entry(step, InstanceState.CREATING, "")
    return replace(
        record,
        pci_bus_id=decision.gpu.pci_bus_id,
        instances=tuple(entries.values()),
        mode_before=mode_before,
        mode_intent=mode_intent,
    )


def _entry(step: DestroyInstance | CreateInstance, state: InstanceState, uuid: str) -> InstanceRecord:
    return InstanceRecord(step.profile_id, step.profile, step.placement, state, uuid=uuid)


async def _perform(cards: Cards, step: Step, progress: _Progress) -> bool:
    """Carry out one step; return whether to go on with the next."""
    try:
        match step:
            case SetMigMode():
                mode = await cards.set_mig_mode(step.gpu_uuid, enabled=step.enabled)
                # A mode that waits for a reset is no failure, and no instance can be made before it.
                return mode.enabled is step.enabled
            case DestroyInstance():
                await cards.destroy_instance(
                    step.gpu_uuid, step.profile_id, step.placement, uuid=step.mig_uuid
                )
            case CreateInstance():
                await cards.create_instance(step.gpu_uuid, step.profile_id, step.placement)
    except NvmlError as error:
        refusal = _refusal(str(step), error)
        progress.reason = refusal.reason if not progress.failures else progress.reason
        progress.failures.append(refusal.message)
        if isinstance(step, CreateInstance) and error.fault is Fault.CHANGED:
            progress.taken |= {(step.profile_id, step.placement)}
        # What is destroyed makes room for what is created; of the creations each stands for itself.
        return isinstance(step, CreateInstance) and error.fault not in _STOPPING
    return True


def _refusal(subject: str, error: NvmlError) -> Refusal:
    remedy = f" ({_REMEDIES[error.fault]})" if error.fault in _REMEDIES else ""
    reason = _REASONS.get(error.fault, Reason.DEGRADED)
    return Refusal(reason, f"{subject}: {error}{remedy}")
