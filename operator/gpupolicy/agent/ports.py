"""What the loop over the cards needs of the parts around it, so that tests can put others in their place."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from gpupolicy.adapters.nvml.session import Observation
from gpupolicy.agent import changes
from gpupolicy.api.node import GpuNodeSpec, GpuNodeStatus
from gpupolicy.core.devices import Device
from gpupolicy.core.refusals import Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long things take, in seconds.

    Attributes:
        poll: between two passes when nothing happens.
        waiting: between two passes while a card waits for something that NVML or the API server will not tell of.
        settle: how long after its withdrawal a device may still be allocated from a scheduler's cache.
        withdraw: how long to wait for the API server to show a withdrawal before trying again.
        outage: how long NVML may be away before its cards count as unknown.
    """

    poll: float = 10.0
    waiting: float = 3.0
    settle: float = 1.0
    withdraw: float = 20.0
    outage: float = 60.0


class Hardware(changes.Cards, Protocol):
    """The part of `nvml.session.Nvml` that the loop needs."""

    async def observe(self, *, skip: frozenset[str] = ...) -> Observation:
        """Read every card."""
        ...

    def slow(self) -> Mapping[str, str]:
        """Say which cards do not answer, and since when."""
        ...


class Slices(Protocol):
    """The part of `publication.Publication` that the loop needs."""

    @property
    def shown(self) -> frozenset[str]:
        """Devices that the API server shows."""
        ...

    @property
    def taints_served(self) -> bool:
        """Whether taints are kept."""
        ...

    @property
    def problem(self) -> str:
        """Why not everything is published."""
        ...

    def publish(self, devices: tuple[Device, ...]) -> None:
        """Wish for these devices."""
        ...

    def may_be_shown(self, name: str, *, settle_seconds: float = ...) -> bool:
        """Return whether a scheduler may still allocate a device."""
        ...


class Wish(Protocol):
    """The part of `gpunode.GpuNodeObject` that the loop needs."""

    generation: int

    @property
    def spec(self) -> GpuNodeSpec | None:
        """What the cards are to be; None until it is known."""
        ...

    @property
    def status(self) -> GpuNodeStatus | None:
        """The last status."""
        ...

    def report(self, status: GpuNodeStatus) -> None:
        """Wish for this status."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What other parts of the agent know and the loop has to respect. Asked anew in every pass.

    Attributes:
        troubles: what keeps the node from being ready.
        device_plugin: what a device plugin advertises, in words; empty where none does.
        damaged: cards whose ledger record cannot be read, with the reason.
    """

    troubles: tuple[Refusal, ...] = ()
    device_plugin: str = ""
    damaged: Mapping[str, str] | None = None
