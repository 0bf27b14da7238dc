"""What exists on a node: cards, profiles, placements, instances and who uses them.

These are the values that the agent observes through NVML, that `GpuNode.status` carries over the wire, and that
the planner decides on. Identity of an instance is (card UUID, profile id, placement) plus its current MIG UUID:
profile names drift between drivers, ids and placements do not.
"""

from dataclasses import dataclass, field
from enum import StrEnum


class Ownership(StrEnum):
    """Who made what stands on a card."""

    OWNED = "Owned"
    """Our ledger proves that we created it."""
    OBSERVED = "Observed"
    """Nothing of anybody's stands there; free to be assigned."""
    FOREIGN = "Foreign"
    """Something stands there that our ledger does not know. Never destroyed without `adopt`."""


class Health(StrEnum):
    """What is known of a card's health."""

    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True, order=True)
class Placement:
    """Where an instance lies on a card, in memory slices: `start` inclusive, `size` slices long."""

    start: int
    size: int

    @property
    def mask(self) -> int:
        """The occupied memory slices as a bit set."""
        return ((1 << self.size) - 1) << self.start


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One GPU instance profile that a card offers, as its driver describes it."""

    id: int
    """Numeric profile id as nvidia-smi shows it and NVML takes it."""
    name: str
    """Name as the driver or nvidia-smi prints it, e.g. `1g.10gb` or `1g.10gb+me`."""
    slices: int
    """Compute slices."""
    memory_mib: int
    max_instances: int
    placements: tuple[Placement, ...]
    multiprocessors: int = 0
    copy_engines: int = 0
    decoders: int = 0
    encoders: int = 0
    jpeg_engines: int = 0
    ofa_engines: int = 0
    enum: int = -1
    """NVML's enumeration constant of the profile, -1 where it is not known."""


@dataclass(frozen=True, slots=True)
class ClaimUse:
    """A claim that holds a device, and the pods that it is reserved for."""

    namespace: str
    name: str
    uid: str
    pods: tuple[str, ...] = ()
    prepared: bool = False
    """Whether this node has prepared it; False means allocated by the scheduler only."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process that NVML reports on a card or an instance."""

    pid: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class Instance:
    """A live MIG device: one GPU instance with the one compute instance that fills it."""

    profile_id: int
    profile: str
    placement: Placement
    gpu_instance_id: int
    compute_instance_id: int | None = None
    """None where the GPU instance has no (or more than one) compute instance: it is no usable device."""
    uuid: str = ""
    """MIG UUID; neither stable nor unique over time. Empty without a compute instance."""
    ownership: Ownership = Ownership.FOREIGN
    claims: tuple[ClaimUse, ...] = ()
    processes: tuple[Process, ...] = ()

    @property
    def in_use(self) -> bool:
        """Whether a claim or a process holds it. An instance in use is never moved or destroyed."""
        return bool(self.claims or self.processes)


@dataclass(frozen=True, slots=True)
class MigState:
    """What a card says about MIG."""

    capable: bool = False
    enabled: bool = False
    pending_enabled: bool | None = None
    """The mode after the next reset, where it differs from the current one; None where nothing is pending."""
    mode_needs_reset: bool = False
    """Ampere: a mode change stays pending until the card is reset. Hopper and later change at once."""
    profiles: tuple[MigProfile, ...] = ()


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card of a node. Only `uuid` and `index` are certain; every other query may have failed."""

    uuid: str
    index: int
    minor: int | None = None
    pci_bus_id: str = ""
    """Lower case, 4-digit domain, e.g. `0000:1a:00.0`."""
    product_name: str = ""
    architecture: str = ""
    brand: str = ""
    memory_bytes: int | None = None
    compute_capability: str = ""
    """Dotted, e.g. `9.0`."""
    numa_node: int | None = None
    pcie_root: str = ""
    serial: str = ""
    mig: MigState = field(default_factory=MigState)
    instances: tuple[Instance, ...] = ()
    claims: tuple[ClaimUse, ...] = ()
    """Claims on the whole card."""
    processes: tuple[Process, ...] = ()
    """Processes on the whole card (not those inside MIG instances)."""
    health: Health = Health.HEALTHY
    health_message: str = ""
    ownership: Ownership = Ownership.OBSERVED

    @property
    def in_use(self) -> bool:
        """Whether anything on the card is held by a claim or a process."""
        return bool(self.claims or self.processes) or any(i.in_use for i in self.instances)


@dataclass(frozen=True, slots=True)
class Inventory:
    """All cards of one node, as one observation."""

    node: str
    gpus: tuple[Gpu, ...] = ()
    driver_version: str = ""
    cuda_version: str = ""
    """Dotted, e.g. `12.4`."""
    boot_id: str = ""
    message: str = ""
    """Why cards may be missing (library absent, initialisation failed); empty when all is well."""
