"""What is worth an event on a GpuNode: the differences between two statuses that a person would want to read.

Cards are told apart by their UUID, slots by their PCI address: another card in a known slot is a replacement. The
first status of an object tells only what is wrong.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpupolicy.api.conditions import Reason
from gpupolicy.api.node import GpuNodeStatus, GpuStatus
from gpupolicy.core.inventory import Health
from gpupolicy.core.refusals import cards_text

_QUIET = frozenset({Reason.APPLIED, Reason.IDLE, Reason.ROLLOUT_PENDING, Reason.WAITING_FOR_SLICES})
"""Reasons of a card on its ordinary way."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One event."""

    reason: str
    message: str
    action: str = "Observe"
    is_warning: bool = False


def changes(before: GpuNodeStatus | None, after: GpuNodeStatus) -> tuple[Notice, ...]:
    """Return the events that lead from one status to the next, in the order of the cards."""
    known = {g.uuid: g for g in before.gpus} if before else {}
    slots = {g.pci_bus_id: g for g in known.values() if g.pci_bus_id}
    seen = {g.uuid for g in after.gpus}
    notices: list[Notice] = []
    for gpu in after.gpus:
        old = known.get(gpu.uuid)
        if old is None and before is not None:
            notices.append(_new(gpu, slots.get(gpu.pci_bus_id) if gpu.pci_bus_id else None))
        notices += _health(old, gpu)
        notices += _trouble(old, gpu)
    taken = {g.pci_bus_id for g in after.gpus}
    notices += [
        Notice("CardRemoved", f"card {g.index} ({g.uuid}) at {g.pci_bus_id} is gone", is_warning=True)
        for g in known.values()
        if g.uuid not in seen and g.pci_bus_id not in taken
    ]
    return (*_applied(known, after), *notices)


def _new(gpu: GpuStatus, replaced: GpuStatus | None) -> Notice:
    if replaced is None:
        return Notice("CardAdded", f"card {gpu.index} ({gpu.uuid}) at {gpu.pci_bus_id}")
    return Notice(
        "CardReplaced",
        f"card {gpu.index} at {gpu.pci_bus_id} is now {gpu.uuid}, it was {replaced.uuid}",
        is_warning=True,
    )


def _health(old: GpuStatus | None, gpu: GpuStatus) -> Iterator[Notice]:
    if gpu.health == (old.health if old else Health.HEALTHY):
        return
    if gpu.health == Health.HEALTHY:
        yield Notice("CardRecovered", f"card {gpu.index} ({gpu.uuid}) is healthy again")
    else:
        yield Notice(
            Reason.GPU_UNHEALTHY,
            f"card {gpu.index} ({gpu.uuid}): {gpu.health_message or gpu.health}",
            is_warning=True,
        )


def _applied(known: Mapping[str, GpuStatus], after: GpuNodeStatus) -> Iterator[Notice]:
    """Tell of layouts that stand now, once for all cards that became the same."""
    groups: dict[tuple[str, str], list[int]] = {}
    for gpu in after.gpus:
        old = known.get(gpu.uuid)
        became = old is not None and (old.reason, old.applied_revision) != (gpu.reason, gpu.applied_revision)
        if gpu.reason == Reason.APPLIED and became:
            groups.setdefault((gpu.layout or "", gpu.policy or ""), []).append(gpu.index)
    for (layout, policy), indexes in sorted(groups.items()):
        yield Notice(Reason.APPLIED, f"{cards_text(indexes)}: {layout} for policy {policy}", "Apply")


def _trouble(old: GpuStatus | None, gpu: GpuStatus) -> Iterator[Notice]:
    """Tell of a card that got stuck."""
    if gpu.reason in _QUIET or gpu.reason == Reason.GPU_UNHEALTHY:
        return
    if old is None or old.reason != gpu.reason:
        yield Notice(
            gpu.reason, f"card {gpu.index} ({gpu.uuid}): {gpu.message or ''}", "Apply", is_warning=True
        )
