"""Counts from what the API server shows: devices in ResourceSlices, and the claims that hold them.

Theory. Only the slices of a pool's highest generation count, and only while there are as many of them as each of
them says: until then the scheduler hands out nothing of that pool, and neither is anything free here. A claim
holds the devices in `status.allocation`, from the moment of allocation until that is taken away; a device that is
looked at with admin access is held by nobody. A device is free when no claim holds it and no taint keeps new claims
off it. Devices with shares count as many as they have shares.

The objects are read into the small values below as they arrive, because a controller keeps them all; a count of one
pool is redone only when that pool or a claim on it changed.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpupolicy.api import names
from gpupolicy.core.claims import reserved_pods
from gpupolicy.core.inventory import ClaimUse
from gpupolicy.core.records import DeviceKind

SHARES_CAPACITY: Final = "shares"
"""Capacity of a device that several claims may hold: how many."""

_KEEPS_OFF: Final = frozenset({"NoSchedule", "NoExecute"})


@dataclass(frozen=True, slots=True, order=True)
class DeviceGroup:
    """What classes tell apart: devices of one group are as good as each other to a class."""

    policy: str
    kind: str
    profile: str = ""
    """As the driver spells it; empty for whole cards."""


@dataclass(frozen=True, slots=True)
class PublishedDevice:
    """A device in a slice."""

    name: str
    group: DeviceGroup
    card: str = ""
    """UUID of the card that it is or is part of."""
    shares: int = 1
    is_tainted: bool = False


@dataclass(frozen=True, slots=True)
class PublishedSlice:
    """A ResourceSlice of our driver."""

    name: str
    pool: str
    node: str
    generation: int
    slice_count: int
    devices: tuple[PublishedDevice, ...] = ()

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> "PublishedSlice | None":
        """Read the object as it came over the wire; None where it is not of our driver."""
        spec = body.get("spec") or {}
        if spec.get("driver") != names.DRIVER:
            return None
        pool = spec.get("pool") or {}
        return cls(
            name=(body.get("metadata") or {}).get("name", ""),
            pool=pool.get("name", ""),
            node=spec.get("nodeName") or "",
            generation=int(pool.get("generation") or 0),
            slice_count=int(pool.get("resourceSliceCount") or 0),
            devices=tuple(_device(d) for d in spec.get("devices") or ()),
        )


@dataclass(frozen=True, slots=True)
class Holding:
    """A device that a claim holds."""

    pool: str
    device: str
    claim: ClaimUse
    class_name: str = ""
    """Class of the request that got the device."""
    shares: int = 1
    since: str = ""
    """RFC 3339 time of the allocation; that of the claim where the API server does not record it."""


def holdings(claim: Mapping[str, Any]) -> tuple[Holding, ...]:
    """Read which devices of our driver a ResourceClaim holds, from the object as it came over the wire."""
    status = claim.get("status") or {}
    allocation = status.get("allocation") or {}
    results = [
        r
        for r in (allocation.get("devices") or {}).get("results") or ()
        if r.get("driver") == names.DRIVER and not r.get("adminAccess")
    ]
    if not results:
        return ()
    meta = claim.get("metadata") or {}
    use = ClaimUse(meta.get("namespace", ""), meta.get("name", ""), meta.get("uid", ""), reserved_pods(claim))
    since = allocation.get("allocationTimestamp") or meta.get("creationTimestamp") or ""
    classes = _request_classes(claim)
    return tuple(
        Holding(
            pool=result.get("pool", ""),
            device=result.get("device", ""),
            claim=use,
            class_name=classes.get(result.get("request", ""), ""),
            shares=_whole((result.get("consumedCapacity") or {}).get(SHARES_CAPACITY), 1),
            since=since,
        )
        for result in results
    )


@dataclass(frozen=True, slots=True)
class GroupCount:
    """How much of one group there is."""

    devices: int = 0
    allocated: int = 0
    free: int = 0

    def __add__(self, other: "GroupCount") -> "GroupCount":
        return GroupCount(
            self.devices + other.devices, self.allocated + other.allocated, self.free + other.free
        )


NOTHING: Final = GroupCount()


@dataclass(frozen=True, slots=True)
class PoolTally:
    """The count of one pool, that is, of one node.

    Attributes:
        is_complete: whether the API server shows all slices of the newest generation.
        groups: group to its count.
        cards: card UUID to the devices that are published for it, by group, shares not multiplied out.
        holders: policy to the claims that hold devices of it, by (class, time of allocation).
    """

    is_complete: bool = True
    groups: Mapping[DeviceGroup, GroupCount] = field(default_factory=dict)
    cards: Mapping[str, Mapping[DeviceGroup, int]] = field(default_factory=dict)
    holders: Mapping[str, tuple[Holding, ...]] = field(default_factory=dict)


def count_pool(slices: Iterable[PublishedSlice], held: Iterable[Holding]) -> PoolTally:
    """Count one pool.

    Args:
        slices: every slice that names the pool, of any generation.
        held: what claims hold of it; devices that are no longer published are ignored.
    """
    slices = list(slices)
    newest = max((s.generation for s in slices), default=0)
    current = [s for s in slices if s.generation == newest]
    complete = all(s.slice_count == len(current) for s in current)
    by_name = {device.name: device for s in current for device in s.devices}
    used: Counter[str] = Counter()
    holders: dict[str, list[Holding]] = {}
    for holding in held:
        device = by_name.get(holding.device)
        if device is not None:
            used[device.name] += holding.shares
            holders.setdefault(device.group.policy, []).append(holding)
    groups: dict[DeviceGroup, GroupCount] = {}
    cards: dict[str, Counter[DeviceGroup]] = {}
    for device in by_name.values():
        allocated = min(used[device.name], device.shares)
        free = device.shares - allocated if complete and not device.is_tainted else 0
        groups[device.group] = groups.get(device.group, NOTHING) + GroupCount(device.shares, allocated, free)
        cards.setdefault(device.card, Counter())[device.group] += 1
    return PoolTally(complete, groups, cards, {policy: tuple(found) for policy, found in holders.items()})


def _device(body: Mapping[str, Any]) -> PublishedDevice:
    attributes = body.get("attributes") or {}
    kind = _text(attributes, "type")
    taints = body.get("taints") or ()
    shares = 1
    if body.get("allowMultipleAllocations"):
        capacity = body.get("capacity") or {}
        shares = _whole((capacity.get(SHARES_CAPACITY) or {}).get("value"), 1)
    return PublishedDevice(
        name=body.get("name", ""),
        group=DeviceGroup(_text(attributes, "policy"), kind, _text(attributes, "profile")),
        card=_text(attributes, "parentUUID") or (_text(attributes, "uuid") if kind != DeviceKind.MIG else ""),
        shares=shares,
        is_tainted=any(taint.get("effect") in _KEEPS_OFF for taint in taints),
    )


def _text(attributes: Mapping[str, Any], name: str) -> str:
    """Return a string attribute of our driver, written with its domain or without."""
    value = attributes.get(name) or attributes.get(f"{names.DRIVER}/{name}") or {}
    text = value.get("string")
    return text if isinstance(text, str) else ""


def _whole(quantity: Any, default: int) -> int:
    """Return a quantity that is a plain whole number, as ours of shares are; anything else is the default."""
    text = str(quantity)
    return int(text) if text.isascii() and text.isdigit() else default


def _request_classes(claim: Mapping[str, Any]) -> dict[str, str]:
    """Return the class of every request, keyed as allocation results name them (`request` or `request/sub`)."""
    found: dict[str, str] = {}
    for request in ((claim.get("spec") or {}).get("devices") or {}).get("requests") or ():
        name = request.get("name", "")
        if request.get("exactly"):
            found[name] = request["exactly"].get("deviceClassName", "")
        for sub in request.get("firstAvailable") or ():
            found[f"{name}/{sub.get('name', '')}"] = sub.get("deviceClassName", "")
    return found
