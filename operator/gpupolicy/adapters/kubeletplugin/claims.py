"""The vocabulary between a driver and the kubelet plugin: claims, prepared devices, health.

A driver implements `ClaimHandler`, and `HealthSource` if it watches its devices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRef:
    """A ResourceClaim as the kubelet names it. Its content is the driver's to fetch, and its uid to compare."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} ({self.uid})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDevice:
    """One allocated device, ready for containers.

    Attributes:
        requests: names of the requests that it serves, with or without `/subrequest`; none means all.
        pool: pool of the allocation result.
        device: device of the allocation result.
        cdi_ids: qualified CDI names that a container of these requests gets.
        share_id: share of a device that several claims hold; unknown to v1beta1.
    """

    pool: str
    device: str
    requests: tuple[str, ...] = ()
    cdi_ids: tuple[str, ...] = ()
    share_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedClaim:
    """All devices of one claim that belong to this driver."""

    devices: tuple[PreparedDevice, ...]


@dataclass(frozen=True, slots=True)
class ClaimError:
    """Why one claim could not be prepared or unprepared; the text stands in the pod's event."""

    message: str


class ClaimHandler(Protocol):
    """What a driver does. Both methods must be idempotent: the kubelet repeats calls after any doubt.

    Calls for different pods run at the same time. A call is cancelled (`asyncio.CancelledError`) when the kubelet
    hangs up or its deadline is near; what must not be left half done has to be shielded by the handler.
    """

    async def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, PreparedClaim | ClaimError]:
        """Prepare every claim; the answer is by claim uid."""
        ...

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, ClaimError | None]:
        """Undo every claim, also unknown ones and those whose prepare never succeeded; None means done."""
        ...


class HealthState(Enum):
    """Health of a device; the values are those of the protocol."""

    UNKNOWN = 0
    HEALTHY = 1
    UNHEALTHY = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHealth:
    """What a driver last saw of one device.

    Attributes:
        observed_at: when, in seconds since the epoch; None means now.
        timeout_seconds: how long the kubelet trusts it; None is the kubelet's default of 30 seconds.
        message: shown in the pod's status, cut at 1024 bytes.
    """

    pool: str
    device: str
    state: HealthState
    message: str = ""
    observed_at: float | None = None
    timeout_seconds: int | None = None


class HealthSource(Protocol):
    """Tells the health of every device of the driver on this node, prepared or not."""

    async def health(self) -> Sequence[DeviceHealth]:
        """Return the full list. When this raises, nothing is sent and the kubelet falls back to Unknown."""
        ...
