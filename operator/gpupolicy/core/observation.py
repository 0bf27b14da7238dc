"""What a GpuNode says, as values to decide on.

The wire model of one eight-card node holds some hundred objects, and a controller keeps every node: so a GpuNode is
read once, when it arrives, into the inventory's own types, and cards that offer the same MIG profiles share them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from gpupolicy.api.conditions import ConditionType, Reason
from gpupolicy.api.node import (
    ClaimReference,
    GpuAssignment,
    GpuNode,
    GpuNodeStatus,
    GpuStatus,
    InstanceStatus,
    MigStatus,
    ProcessStatus,
)
from gpupolicy.core import quantities
from gpupolicy.core.inventory import (
    ClaimUse,
    Gpu,
    Health,
    Instance,
    Inventory,
    MigProfile,
    MigState,
    Ownership,
    Placement,
    Process,
)
from gpupolicy.core.refusals import Refusal

_NO_TROUBLE: Final = frozenset({Reason.OBSERVED, Reason.APPLIED, Reason.HEALTHY, Reason.READY, Reason.IDLE})
"""Reasons of conditions that are True; no cause of anything, whoever wrote them beside a False."""


@dataclass(frozen=True, slots=True)
class ObservedCard:
    """A card as its agent reports it, and how far the agent is with it."""

    gpu: Gpu
    policy: str = ""
    """Policy whose layout stands on it."""
    applied_revision: str = ""
    reason: str = "Idle"
    message: str = ""


@dataclass(frozen=True, slots=True)
class ObservedNode:
    """A GpuNode: what was asked of the node, and what its agent says.

    Attributes:
        name: name of the node.
        uid: UID of the GpuNode.
        resource_version: which version of it this is.
        generation: generation of its spec.
        observed_generation: generation that the agent's status was computed from.
        last_observed_time: when the agent last confirmed its inventory; empty before it ever did.
        sees_all: whether the agent says that `cards` are all cards of the node.
        assignments: the spec, by card UUID.
        releases: cards that the spec releases, by UUID.
        cards: the cards, by UUID.
        driver_version: version of the NVIDIA driver.
        cuda_version: CUDA version of the driver.
        trouble: what is wrong with the node as a whole, as its agent says; None where cards alone are in trouble.
    """

    name: str
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    observed_generation: int = 0
    last_observed_time: str = ""
    sees_all: bool = False
    assignments: Mapping[str, GpuAssignment] = field(default_factory=dict)
    releases: frozenset[str] = frozenset()
    cards: Mapping[str, ObservedCard] = field(default_factory=dict)
    driver_version: str = ""
    cuda_version: str = ""
    trouble: Refusal | None = None

    @property
    def has_reported(self) -> bool:
        """Whether the node's agent ever reported."""
        return bool(self.last_observed_time)

    def says_the_same_as(self, other: "ObservedNode") -> bool:
        """Return whether nothing differs but when it was said."""
        return self == replace(
            other, resource_version=self.resource_version, last_observed_time=self.last_observed_time
        )

    @property
    def inventory(self) -> Inventory:
        """The cards, as the planner takes them."""
        cards = sorted(self.cards.values(), key=lambda c: c.gpu.index)
        return Inventory(
            node=self.name,
            gpus=tuple(c.gpu for c in cards),
            driver_version=self.driver_version,
            cuda_version=self.cuda_version,
        )


class Reader:
    """Reads GpuNodes; equal sets of MIG profiles become one object however many cards have them."""

    def __init__(self) -> None:
        self._profiles: dict[tuple[MigProfile, ...], tuple[MigProfile, ...]] = {}

    def read(self, node: GpuNode) -> ObservedNode:
        """Return the node as values to decide on."""
        status = node.status
        return ObservedNode(
            name=node.metadata.name,
            uid=node.metadata.uid,
            resource_version=node.metadata.resource_version,
            generation=node.metadata.generation,
            observed_generation=status.observed_generation,
            last_observed_time=status.last_observed_time or "",
            sees_all=any(c.type == ConditionType.OBSERVED and c.status == "True" for c in status.conditions),
            assignments={a.uuid: a for a in node.spec.gpus},
            releases=frozenset(r.uuid for r in node.spec.releases),
            cards={g.uuid: self._card(g) for g in status.gpus},
            driver_version=status.driver_version or "",
            cuda_version=status.cuda_version or "",
            trouble=_trouble(status),
        )

    def _card(self, status: GpuStatus) -> ObservedCard:
        return ObservedCard(
            gpu=Gpu(
                uuid=status.uuid,
                index=status.index,
                minor=status.minor,
                pci_bus_id=status.pci_bus_id or "",
                product_name=status.product_name or "",
                architecture=status.architecture or "",
                brand=status.brand or "",
                memory_bytes=_bytes(status.memory),
                compute_capability=status.compute_capability or "",
                numa_node=status.numa_node,
                pcie_root=status.pcie_root or "",
                serial=status.serial or "",
                mig=self._mig(status.mig),
                instances=tuple(_instance(i) for i in status.instances),
                claims=tuple(_claim(c) for c in status.claims),
                processes=tuple(_process(p) for p in status.processes),
                health=Health(status.health) if status.health in set(Health) else Health.UNKNOWN,
                health_message=status.health_message or "",
                ownership=_ownership(status.ownership),
            ),
            policy=status.policy or "",
            applied_revision=status.applied_revision,
            reason=status.reason,
            message=status.message or "",
        )

    def _mig(self, status: MigStatus) -> MigState:
        found = tuple(
            MigProfile(
                id=p.id,
                name=p.name,
                slices=p.slices,
                memory_mib=p.memory_mi_b,
                max_instances=p.max_instances,
                placements=tuple(Placement(x.start, x.size) for x in p.placements),
                multiprocessors=p.multiprocessors,
                copy_engines=p.copy_engines,
                decoders=p.decoders,
                encoders=p.encoders,
                jpeg_engines=p.jpeg_engines,
                ofa_engines=p.ofa_engines,
            )
            for p in status.profiles
        )
        return MigState(
            capable=status.capable,
            enabled=status.enabled,
            pending_enabled=status.pending_enabled,
            mode_needs_reset=status.mode_needs_reset,
            profiles=self._profiles.setdefault(found, found),
        )


def _trouble(status: GpuNodeStatus) -> Refusal | None:
    """Return why the agent cannot see or serve the cards of its node, whatever they say themselves."""
    found = {c.type: c for c in status.conditions}
    observed, ready = found.get(ConditionType.OBSERVED), found.get(ConditionType.READY)
    if observed is not None and observed.status != "True":
        told = observed
    elif (
        ready is None
        or ready.status == "True"
        or ready.reason in {g.reason for g in status.gpus}
        or any(c.status != "True" for c in status.conditions if c.type != ConditionType.READY)
    ):
        return None
    else:
        told = ready
    reason = Reason(told.reason) if told.reason in set(Reason) else Reason.DEGRADED
    return None if reason in _NO_TROUBLE else Refusal(reason, told.message)


def _instance(status: InstanceStatus) -> Instance:
    return Instance(
        profile_id=status.profile_id,
        profile=status.profile,
        placement=Placement(status.placement.start, status.placement.size),
        gpu_instance_id=status.gpu_instance_id,
        compute_instance_id=status.compute_instance_id,
        uuid=status.uuid,
        ownership=_ownership(status.ownership),
        claims=tuple(_claim(c) for c in status.claims),
        processes=tuple(_process(p) for p in status.processes),
    )


def _claim(reference: ClaimReference) -> ClaimUse:
    return ClaimUse(
        reference.namespace, reference.name, reference.uid, tuple(reference.pods), prepared=reference.prepared
    )


def _process(status: ProcessStatus) -> Process:
    return Process(status.pid, status.name or "")


def _ownership(text: str) -> Ownership:
    """Return who made it; what a newer agent calls it is nothing of ours."""
    return Ownership(text) if text in set(Ownership) else Ownership.FOREIGN


def _bytes(quantity: str | None) -> int | None:
    """Return an amount of memory; None where it is absent or unreadable, which makes a card no match."""
    if quantity is None:
        return None
    try:
        return int(quantities.parse(quantity).value)
    except (quantities.InvalidQuantityError, quantities.UnsupportedQuantityError):
        return None
