"""GpuNode: one per node that has an agent. The controller writes `spec`, that node's agent writes `status`.

`spec` says which card gets which layout; it holds no placements, because only the agent sees at the moment of
acting which instances are in use. `status` is the inventory, what stands on the hardware, and who uses it.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from gpupolicy.api.conditions import Condition
from gpupolicy.api.policy import (
    MigLayoutEntry,
    MigMode,
    MpsSpec,
    ObjectMeta,
    OnDelete,
    Strategy,
    TimeSlicingSpec,
)
from gpupolicy.api.wire import Wire, list_map


class Allocator(StrEnum):
    """Who hands out a node's cards to pods."""

    DEVICE_PLUGIN = "DevicePlugin"
    DRA = "DRA"
    BOTH = "Both"
    NONE = "None"


class MigLayout(Wire):
    """The MIG part of a wanted layout."""

    mode: MigMode = Field(default=MigMode.STATIC, description="When instances are cut.")
    layout: Annotated[list[MigLayoutEntry], Field(max_length=16)] = Field(
        default_factory=list, description="Instances wanted.", json_schema_extra=list_map("profile")
    )


class GpuAssignment(Wire):
    """What one card is to be."""

    uuid: Annotated[str, Field(min_length=1, max_length=96)] = Field(description="UUID of the card.")
    policy: Annotated[str, Field(min_length=1, max_length=253)] = Field(
        description="Policy that owns the card."
    )
    strategy: Strategy = Field(default=Strategy.EXCLUSIVE, description="How the card is shared.")
    mig: MigLayout | None = Field(default=None, description="The MIG layout wanted; left out: a whole card.")
    time_slicing: TimeSlicingSpec | None = Field(default=None, description="With strategy TimeSlicing.")
    mps: MpsSpec | None = Field(default=None, description="With strategy MPS.")
    adopt: bool = Field(
        default=False, description="Whether idle instances that we did not make may be destroyed."
    )
    revision: Annotated[str, Field(max_length=64)] = Field(
        default="",
        description="Hash of what is wanted of this card; the agent reports the revision that it applied.",
    )


class GpuRelease(Wire):
    """A card that no policy wants any more and that is to become whole again where idle (onDelete: Restore)."""

    uuid: Annotated[str, Field(min_length=1, max_length=96)] = Field(description="UUID of the card.")
    on_delete: OnDelete = Field(default=OnDelete.RESTORE, description="What the policy said about its end.")


class GpuNodeSpec(Wire):
    """Which card gets which layout. Cards that are not listed are left alone and are not published."""

    gpus: Annotated[list[GpuAssignment], Field(max_length=64)] = Field(
        default_factory=list, description="Cards that a policy owns.", json_schema_extra=list_map("uuid")
    )
    releases: Annotated[list[GpuRelease], Field(max_length=64)] = Field(
        default_factory=list,
        description="Cards to be made whole where idle.",
        json_schema_extra=list_map("uuid"),
    )


class PlacementStatus(Wire):
    """Where an instance lies, in memory slices."""

    start: int = Field(description="First memory slice.")
    size: int = Field(description="Memory slices.")


class ProfileStatus(Wire):
    """One MIG profile that the card offers."""

    id: int = Field(description="Numeric profile id.")
    name: str = Field(description="Name as the driver prints it.")
    slices: int = Field(default=0, description="Compute slices.")
    memory_mi_b: int = Field(default=0, alias="memoryMiB", description="Memory in MiB.")
    max_instances: int = Field(default=0, description="Most instances on one card.")
    placements: list[PlacementStatus] = Field(
        default_factory=list,
        description="Legal placements.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    multiprocessors: int = Field(default=0, description="Streaming multiprocessors.")
    copy_engines: int = Field(default=0, description="Copy engines.")
    decoders: int = Field(default=0, description="Video decoders.")
    encoders: int = Field(default=0, description="Video encoders.")
    jpeg_engines: int = Field(default=0, description="JPEG engines.")
    ofa_engines: int = Field(default=0, description="Optical flow engines.")


class ClaimReference(Wire):
    """A claim that holds a device."""

    namespace: str = Field(description="Namespace of the claim.")
    name: str = Field(description="Name of the claim.")
    uid: str = Field(description="UID of the claim.")
    pods: list[str] = Field(
        default_factory=list,
        description="Pods that the claim was reserved for when it was prepared or last looked at.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    prepared: bool = Field(default=False, description="Whether this node has prepared it.")


class ProcessStatus(Wire):
    """A process on a card or an instance."""

    pid: int = Field(description="Process id on the node.")
    name: str | None = Field(default=None, description="Name of the program, where it can be read.")


class InstanceStatus(Wire):
    """A MIG instance that stands on the card."""

    profile: str = Field(description="Profile name.")
    profile_id: int = Field(description="Numeric profile id.")
    placement: PlacementStatus = Field(description="Where it lies.")
    uuid: str = Field(default="", description="Current MIG UUID; changes when the instance is made again.")
    gpu_instance_id: int = Field(description="Id of the GPU instance.")
    compute_instance_id: int | None = Field(default=None, description="Id of the compute instance.")
    ownership: str = Field(
        default="Foreign", description="Owned: the ledger proves that we made it. Foreign otherwise."
    )
    claims: list[ClaimReference] = Field(
        default_factory=list,
        description="Claims that hold it.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    processes: list[ProcessStatus] = Field(
        default_factory=list,
        description="Processes on it.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )


class MigStatus(Wire):
    """What the card says about MIG."""

    capable: bool = Field(default=False, description="Whether the card can be partitioned.")
    enabled: bool = Field(default=False, description="Whether MIG mode is on.")
    pending_enabled: bool | None = Field(
        default=None, description="The mode after the next reset, where it differs."
    )
    mode_needs_reset: bool = Field(default=False, description="Whether a mode change waits for a reset.")
    profiles: list[ProfileStatus] = Field(
        default_factory=list,
        description="Profiles that the card offers.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )


class GpuStatus(Wire):
    """One card: what it is, what stands on it, who owns and who uses it."""

    uuid: str = Field(description="UUID of the card.")
    index: int = Field(description="Index that NVML gives it.")
    minor: int | None = Field(default=None, description="Minor number of its device node.")
    pci_bus_id: str | None = Field(default=None, description="PCI address.")
    product_name: str | None = Field(default=None, description="Product name.")
    architecture: str | None = Field(default=None, description="Architecture name.")
    brand: str | None = Field(default=None, description="Brand.")
    serial: str | None = Field(default=None, description="Serial number.")
    memory: str | None = Field(default=None, description="Memory, as a quantity.")
    compute_capability: str | None = Field(default=None, description="CUDA compute capability.")
    numa_node: int | None = Field(default=None, description="NUMA node of its slot.")
    pcie_root: str | None = Field(default=None, description="PCIe root complex of its slot.")
    mig: MigStatus = Field(default_factory=MigStatus, description="What it says about MIG.")
    instances: list[InstanceStatus] = Field(
        default_factory=list,
        description="MIG instances that stand on it.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    claims: list[ClaimReference] = Field(
        default_factory=list,
        description="Claims that hold the whole card.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    processes: list[ProcessStatus] = Field(
        default_factory=list,
        description="Processes on the whole card.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    health: str = Field(default="Healthy", description="Healthy, Unhealthy or Unknown.")
    health_message: str | None = Field(default=None, description="What is wrong.")
    ownership: str = Field(
        default="Observed",
        description="Owned: a policy of ours shaped it. Foreign: somebody else. Observed: nobody.",
    )
    policy: str | None = Field(default=None, description="Policy that owns the card.")
    layout: str | None = Field(
        default=None, description="What stands on it, in short: `whole` or `2x1g.10gb 1x3g.40gb`."
    )
    applied_revision: str = Field(
        default="", description="Revision of spec that stands on the card; empty: none."
    )
    devices: int = Field(default=0, description="Devices of the card that are published.")
    reason: str = Field(default="Idle", description="Applied, or why not, in one word.")
    message: Annotated[str, Field(max_length=2048)] | None = Field(
        default=None, description="Why not, for people; names claims and pods in the way."
    )


class GpuNodeStatus(Wire):
    """What the node's agent sees and did. Written by that agent only."""

    observed_generation: int = Field(default=0, description="Generation that this status was computed from.")
    conditions: Annotated[list[Condition], Field(max_length=16)] = Field(
        default_factory=list,
        description="Observed, Applied, Healthy and Ready (the summary).",
        json_schema_extra=list_map("type"),
    )
    driver_version: str | None = Field(default=None, description="Version of the NVIDIA driver.")
    cuda_version: str | None = Field(default=None, description="CUDA version of the driver.")
    boot_id: str | None = Field(default=None, description="Boot that this was observed in.")
    agent_version: str | None = Field(default=None, description="Version of the agent.")
    allocator: Allocator = Field(
        default=Allocator.NONE, description="Who hands out the node's cards: DevicePlugin, DRA, Both or None."
    )
    last_observed_time: str | None = Field(
        default=None,
        description="When the inventory last changed or was confirmed (every few minutes).",
        json_schema_extra={"format": "date-time"},
    )
    gpu_count: int = Field(default=0, description="Cards that the agent sees.")
    mig_gpus: int = Field(default=0, alias="migGPUs", description="Cards in MIG mode.")
    devices: int = Field(default=0, description="Devices published.")
    allocated: int = Field(default=0, description="Published devices that claims hold.")
    gpus: Annotated[list[GpuStatus], Field(max_length=64)] = Field(
        default_factory=list, description="Card by card.", json_schema_extra=list_map("uuid")
    )


class GpuNode(Wire):
    """A node's cards: what they are to be (spec, from the policies) and what they are (status, from its agent)."""

    metadata: ObjectMeta
    spec: GpuNodeSpec = Field(default_factory=GpuNodeSpec, description="Which card gets which layout.")
    status: GpuNodeStatus = Field(default_factory=GpuNodeStatus, description="What stands there.")
