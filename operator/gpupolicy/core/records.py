"""What the agent's ledger remembers: what we made on each card, and which claim got which device.

Two kinds of record, one writer each:

- `GpuRecord`, one per card, key `gpu_uuid`. Written by the code that changes the card (the layout executor; later
  also Prepare, where instances are cut on demand), always under that card's lock. It is the proof of ownership: an
  instance on the hardware that no record names is foreign. Order of writes, so that every step may be the last one
  before a crash:

      create   record CREATING (profile, placement)  -> NVML creates  -> record CREATED (GI id, MIG UUID)
      destroy  record DESTROYING                     -> NVML destroys -> record entry removed
      mode     record `mode_before`, `mode_intent`   -> NVML sets     -> `mode_intent` removed

  After a crash a CREATING or DESTROYING entry is matched with the hardware by (card, profile id, placement): if the
  instance stands there, it is ours (and planned again like any other of ours); if not, the entry goes.

- `ClaimRecord`, one per claim, key claim UID. Written by the claims handler only, under the locks of the cards that
  the claim holds:

      prepare    PREPARE_STARTED -> (hardware) -> CDI file -> PREPARE_COMPLETED
      unprepare  UNPREPARING     -> CDI file removed -> (hardware) -> record removed

  A claim in any state pins its devices: the layout executor destroys no instance that a record names.

Records of another boot prove nothing about MIG instances (a reboot removes them) and nothing is prepared any more;
`GpuRecord.mode_before` alone survives, since it says what to restore.

Encoded records hold JSON types only. Decoding ignores fields that it does not know.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from pydantic import TypeAdapter

from gpupolicy.core.inventory import Placement
from gpupolicy.core.xids import Xid


class DeviceKind(StrEnum):
    """What a published device is; also its `type` attribute."""

    GPU = "gpu"
    """A whole card."""
    MIG = "mig"
    """One MIG instance."""
    SHARE = "share"
    """A share of a card or an instance."""


@dataclass(frozen=True, slots=True, order=True)
class InstanceKey:
    """Identity of an instance over crashes: its card, its profile and where it lies."""

    gpu_uuid: str
    profile_id: int
    placement: Placement


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """A device by the name that the slices give it, and the thing that it names."""

    name: str
    kind: DeviceKind
    policy: str
    gpu_uuid: str
    pci_bus_id: str = ""
    minor: int | None = None
    """Minor number of the card's device node."""
    profile: str = ""
    profile_id: int | None = None
    placement: Placement | None = None
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None
    mig_uuid: str = ""

    @property
    def uuid(self) -> str:
        """UUID that a container is given: that of the instance, or that of the card."""
        return self.mig_uuid or self.gpu_uuid

    @property
    def instance(self) -> InstanceKey | None:
        """The instance that the device is, None for a whole card."""
        if self.profile_id is None or self.placement is None:
            return None
        return InstanceKey(self.gpu_uuid, self.profile_id, self.placement)


class InstanceState(StrEnum):
    """How far an instance of ours is."""

    CREATING = "Creating"
    CREATED = "Created"
    DESTROYING = "Destroying"


@dataclass(frozen=True, slots=True)
class InstanceRecord:
    """One instance that we made, are about to make or are about to destroy."""

    profile_id: int
    profile: str
    placement: Placement
    state: InstanceState
    gpu_instance_id: int | None = None
    uuid: str = ""
    """MIG UUID, known once it is created."""


@dataclass(frozen=True, slots=True)
class GpuRecord:
    """What we did to one card."""

    gpu_uuid: str
    pci_bus_id: str = ""
    policy: str = ""
    """Policy whose layout we last applied; empty when we never did."""
    revision: str = ""
    """Revision of the assignment that we last applied completely."""
    instances: tuple[InstanceRecord, ...] = ()
    mode_before: bool | None = None
    """MIG mode that we found and changed; None where we never changed it, or where it is as we found it again."""
    mode_intent: bool | None = None
    """MIG mode that we are about to set; None outside a change."""
    xid: Xid | None = None
    """The XID for which the card counts as sick; an XID comes once, and a restart must not forget it."""


class ClaimState(StrEnum):
    """How far a claim is. There is no state for `gone`: its record is removed."""

    PREPARE_STARTED = "PrepareStarted"
    PREPARE_COMPLETED = "PrepareCompleted"
    UNPREPARING = "Unpreparing"


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One allocated device of a claim, as Prepare answers it."""

    device: DeviceRecord
    pool: str
    requests: tuple[str, ...] = ()
    """Names of the requests that it was allocated for, without subrequest."""
    cdi_ids: tuple[str, ...] = ()
    share_id: str = ""


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """What a claim holds on this node."""

    uid: str
    namespace: str
    name: str
    state: ClaimState
    devices: tuple[PreparedDevice, ...] = ()
    pods: tuple[str, ...] = ()
    """Names of the pods that it was reserved for when it was prepared; for messages only."""

    @property
    def gpu_uuids(self) -> tuple[str, ...]:
        """Cards that the claim touches, sorted: the order in which their locks are taken."""
        return tuple(sorted({d.device.gpu_uuid for d in self.devices}))


_GPU: Final = TypeAdapter(GpuRecord)
_CLAIM: Final = TypeAdapter(ClaimRecord)


def encode_gpu(record: GpuRecord) -> dict[str, Any]:
    """Return the record as JSON types."""
    content: dict[str, Any] = _GPU.dump_python(record, mode="json", exclude_defaults=True)
    return content


def encode_claim(record: ClaimRecord) -> dict[str, Any]:
    """Return the record as JSON types."""
    content: dict[str, Any] = _CLAIM.dump_python(record, mode="json", exclude_defaults=True)
    return content


def decode_gpu(content: Any) -> GpuRecord:
    """Read a record back.

    Raises:
        ValueError: it is no such record; the message names the field.
    """
    return _GPU.validate_python(content)


def decode_claim(content: Any) -> ClaimRecord:
    """Read a record back.

    Raises:
        ValueError: it is no such record; the message names the field.
    """
    return _CLAIM.validate_python(content)
