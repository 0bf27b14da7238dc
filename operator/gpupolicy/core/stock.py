"""What devices there are and what is left of them, device by device, for any driver.

Theory. The counts are those of `core.tally`: only the slices of a pool's highest generation count, and nothing of a
pool is free while not all of them are there; a claim holds what its allocation says, except with admin access; a
device with shares counts as many as it has. Tally keeps sums by policy and profile for the status; here every device
is kept, because classes and requests select by expressions, and a sum cannot be asked.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpupolicy.core import taints
from gpupolicy.core.selection import Device
from gpupolicy.core.tally import SHARES_CAPACITY

__all__ = ["Allocated", "Stock", "Unit", "allocated", "count", "units"]


@dataclass(frozen=True, slots=True)
class Allocated:
    """One device in the allocation of a claim."""

    request: str
    driver: str
    pool: str
    device: str
    shares: int = 1
    is_admin: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        """What names the device in the cluster."""
        return self.driver, self.pool, self.device


@dataclass(frozen=True, slots=True)
class Unit:
    """A published device, and how much of it is taken."""

    device: Device
    shares: int = 1
    held: int = 0
    """Shares that claims hold, at most `shares`."""
    taints: tuple[Mapping[str, Any], ...] = ()
    is_complete: bool = True
    """Whether all slices of its pool are there; the scheduler hands out nothing of one that is not."""

    @property
    def left(self) -> int:
        """Shares that nobody holds, whether or not they can be had."""
        return self.shares - self.held

    def free(self, tolerations: Sequence[Mapping[str, Any]] = ()) -> int:
        """Return how many shares a request with these tolerations can have."""
        return self.left if self.is_complete and not taints.keeping_off(self.taints, tolerations) else 0


@dataclass(frozen=True, slots=True)
class Stock:
    """The count of some devices: all that are not allocated are free, tainted or in an incomplete pool."""

    devices: int = 0
    allocated: int = 0
    free: int = 0
    tainted: Mapping[str, int] = field(default_factory=dict)
    """Key of the first taint that keeps new claims off -> devices that nobody holds."""
    incomplete: int = 0
    nodes: Mapping[str, int] = field(default_factory=dict)
    """Node -> free devices there, most first; "" for those that belong to no single node."""

    @property
    def most(self) -> tuple[str, int]:
        """The node with the most free devices and their number; ("", 0) where there is none."""
        return next(((node, free) for node, free in self.nodes.items() if node), ("", 0))

    def on(self, node: str) -> int:
        """Return how many devices are free for a pod on this node."""
        return self.nodes.get("", 0) + (self.nodes.get(node, 0) if node else 0)


def allocated(claim: Mapping[str, Any]) -> tuple[Allocated, ...]:
    """Read what a ResourceClaim holds, of any driver."""
    devices = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
    return tuple(
        Allocated(
            request=str(result.get("request", "")),
            driver=str(result.get("driver", "")),
            pool=str(result.get("pool", "")),
            device=str(result.get("device", "")),
            shares=_whole((result.get("consumedCapacity") or {}).get(SHARES_CAPACITY)),
            is_admin=bool(result.get("adminAccess")),
        )
        for result in devices.get("results") or ()
    )


def units(slices: Iterable[Mapping[str, Any]], claims: Iterable[Mapping[str, Any]]) -> tuple[Unit, ...]:
    """Return every published device, from ResourceSlices and ResourceClaims as they came over the wire."""
    held: Counter[tuple[str, str, str]] = Counter()
    for claim in claims:
        for result in allocated(claim):
            if not result.is_admin:
                held[result.key] += result.shares
    pools: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for body in slices:
        spec = body.get("spec") or {}
        pool = spec.get("pool") or {}
        pools.setdefault((spec.get("driver", ""), pool.get("name", "")), []).append(spec)
    return tuple(unit for specs in pools.values() for unit in _pool(specs, held))


def _pool(specs: list[Mapping[str, Any]], held: Mapping[tuple[str, str, str], int]) -> Iterable[Unit]:
    newest = max(spec["pool"].get("generation") or 0 for spec in specs)
    current = [spec for spec in specs if (spec["pool"].get("generation") or 0) == newest]
    is_complete = all(spec["pool"].get("resourceSliceCount") == len(current) for spec in current)
    for spec in current:
        for body in spec.get("devices") or ():
            device = Device(
                driver=spec["driver"],
                attributes=body.get("attributes") or {},
                capacity=body.get("capacity") or {},
                allow_multiple_allocations=body.get("allowMultipleAllocations") is True,
                name=body.get("name", ""),
                node=body.get("nodeName") or spec.get("nodeName") or "",
                pool=spec["pool"].get("name", ""),
            )
            shares = 1
            if device.allow_multiple_allocations:
                shares = _whole((device.capacity.get(SHARES_CAPACITY) or {}).get("value"))
            used = held.get((device.driver, device.pool, device.name), 0)
            yield Unit(device, shares, min(used, shares), tuple(body.get("taints") or ()), is_complete)


def count(chosen: Iterable[Unit], tolerations: Sequence[Mapping[str, Any]] = ()) -> Stock:
    """Count these devices for a request with these tolerations."""
    total = held = incomplete = 0
    tainted: Counter[str] = Counter()
    nodes: Counter[str] = Counter()
    for unit in chosen:
        total += unit.shares
        held += unit.held
        keys = taints.keeping_off(unit.taints, tolerations)
        if not unit.left:
            continue
        if not unit.is_complete:
            incomplete += unit.left
        elif keys:
            tainted[keys[0]] += unit.left
        else:
            nodes[unit.device.node] += unit.left
    ordered = sorted(nodes.items(), key=lambda item: (-item[1], item[0]))
    return Stock(total, held, sum(nodes.values()), dict(sorted(tainted.items())), incomplete, dict(ordered))


def _whole(quantity: Any) -> int:
    """Return a plain whole number, as quantities of shares are; anything else counts as one."""
    text = str(quantity)
    return int(text) if text.isascii() and text.isdigit() else 1
