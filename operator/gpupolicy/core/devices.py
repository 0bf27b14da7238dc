"""The devices of a node: what is published of each card, under which name, with which attributes, in which order.

A card is published only where a policy owns it, and then what stands on it and is wanted: the whole card, or one
device per MIG instance that our ledger owns and the plan keeps. What is in use and no longer wanted stays published
with a taint, so that counts are true and nobody new gets it; where the API server drops taints it is left out. A
sick card's devices carry a taint too. Nothing foreign is published, and nothing that is about to be destroyed.

The scheduler takes the first device that fits, so order is policy: cards by PCI address fill one after the other,
and on a card those instances come first whose placement blocks the fewest others.

Names come from the PCI address and the placement, never from an index: they survive reboots and swapped neighbours.
An attribute that is not known is left out; a selector has to cope with that anyway.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from gpupolicy.api import names
from gpupolicy.core.inventory import Gpu, Health, Instance, MigProfile, Ownership, Placement
from gpupolicy.core.layouts import WholeCard
from gpupolicy.core.planner import CardPlan
from gpupolicy.core.records import DeviceKind, DeviceRecord
from gpupolicy.core.refusals import Refusal

STRING_LIMIT_BYTES: Final = 64
"""Bytes of an attribute's value that the API server accepts."""

_NUMBER: Final = re.compile(r"\d+", re.ASCII)
_UNITS: Final = ((4, "Ti"), (3, "Gi"), (2, "Mi"), (1, "Ki"))
_STANDARD: Final = "resource.kubernetes.io"


@dataclass(frozen=True, slots=True)
class DriverFacts:
    """What all devices of a node have in common."""

    driver_version: str = ""
    cuda_version: str = ""


@dataclass(frozen=True, slots=True, order=True)
class Taint:
    """Keeps new claims off a device."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, slots=True)
class Device:
    """One device as it is published.

    `attributes` hold strings, integers, and versions as `Version`; `capacity` holds quantities.
    """

    record: DeviceRecord
    attributes: Mapping[str, "str | int | Version"]
    capacity: Mapping[str, str]
    taints: tuple[Taint, ...] = ()
    health: Health = Health.HEALTHY
    health_message: str = ""

    @property
    def name(self) -> str:
        """The name in the slice."""
        return self.record.name

    def to_wire(self) -> dict[str, Any]:
        """Return the device as an entry of `spec.devices` of a ResourceSlice."""
        body: dict[str, Any] = {
            "name": self.name,
            "attributes": {key: _wire_value(value) for key, value in self.attributes.items()},
            "capacity": {key: {"value": value} for key, value in self.capacity.items()},
        }
        if self.taints:
            body["taints"] = [
                {"key": t.key, "effect": t.effect} | ({"value": t.value} if t.value else {})
                for t in self.taints
            ]
        return body


@dataclass(frozen=True, slots=True)
class Version:
    """A version attribute: three numbers without leading zeros, as semantic versioning wants them."""

    text: str


@dataclass(frozen=True, slots=True)
class Published:
    """What a card has: devices to be published, and all that stand, also those that are withdrawn."""

    offered: tuple[Device, ...] = ()
    """To be published, in order."""
    standing: tuple[Device, ...] = field(default=())
    """Everything of ours on the card that a claim may still hold, published or not."""


def card_devices(
    gpu: Gpu, policy: str, plan: CardPlan | Refusal, facts: DriverFacts, *, taints_served: bool = True
) -> Published:
    """Return the devices of one card.

    Args:
        gpu: the card as observed, with ownership and claims filled in.
        policy: the policy that owns it.
        plan: what `publication_plan` says about it.
        facts: what the whole node has in common.
        taints_served: whether the API server keeps taints; without them what is tainted is not published.
    """
    wanted = {_key(i) for i in plan.keep} if isinstance(plan, CardPlan) else set()
    is_whole = not gpu.mig.enabled and not gpu.instances
    standing = [gpu_device(gpu, policy, facts)] if is_whole else []
    keep_whole = is_whole and isinstance(plan, CardPlan) and isinstance(plan.layout, WholeCard)
    offered = list(standing) if keep_whole else []
    if is_whole and not keep_whole and gpu.claims:
        offered = [_retiring(device) for device in standing]
    for instance in _by_openness(gpu):
        if instance.ownership is not Ownership.OWNED or instance.compute_instance_id is None:
            continue
        device = mig_device(gpu, instance, policy, facts)
        standing.append(device)
        if _key(instance) in wanted:
            offered.append(device)
        elif instance.in_use:
            offered.append(_retiring(device))
    kept = tuple(d for d in offered if taints_served or not d.taints)
    return Published(offered=kept, standing=tuple(standing))


def in_order(gpus: Iterable[tuple[Gpu, Published]]) -> tuple[Device, ...]:
    """Return the devices of a node in the order in which they are to be handed out: cards by PCI address."""
    cards = sorted(gpus, key=lambda entry: (entry[0].pci_bus_id, entry[0].uuid))
    return tuple(device for _, published in cards for device in published.offered)


def gpu_device(gpu: Gpu, policy: str, facts: DriverFacts) -> Device:
    """Return the device that is a whole card."""
    record = DeviceRecord(
        name=gpu_name(gpu),
        kind=DeviceKind.GPU,
        policy=policy,
        gpu_uuid=gpu.uuid,
        pci_bus_id=gpu.pci_bus_id,
        minor=gpu.minor,
    )
    capacity = {} if gpu.memory_bytes is None else {"memory": quantity(gpu.memory_bytes)}
    return _healthy_or_not(gpu, Device(record, _attributes(gpu, record, facts, {"uuid": gpu.uuid}), capacity))


def mig_device(gpu: Gpu, instance: Instance, policy: str, facts: DriverFacts) -> Device:
    """Return the device that is one MIG instance."""
    record = DeviceRecord(
        name=mig_name(gpu, instance.profile_id, instance.placement),
        kind=DeviceKind.MIG,
        policy=policy,
        gpu_uuid=gpu.uuid,
        pci_bus_id=gpu.pci_bus_id,
        minor=gpu.minor,
        profile=instance.profile,
        profile_id=instance.profile_id,
        placement=instance.placement,
        gpu_instance_id=instance.gpu_instance_id,
        compute_instance_id=instance.compute_instance_id,
        mig_uuid=instance.uuid,
    )
    own = {"uuid": instance.uuid, "parentUUID": gpu.uuid, "profile": instance.profile}
    profile = next((p for p in gpu.mig.profiles if p.id == instance.profile_id), None)
    capacity = {} if profile is None else _instance_capacity(profile)
    return _healthy_or_not(gpu, Device(record, _attributes(gpu, record, facts, own), capacity))


def gpu_name(gpu: Gpu) -> str:
    """Return the name of the device that is this card: `gpu-0000-1a-00-0`."""
    return f"gpu-{_slot(gpu)}"


def mig_name(gpu: Gpu, profile_id: int, placement: Placement) -> str:
    """Return the name of an instance's device, from profile id and start: `mig-0000-1a-00-0-19-6`."""
    return f"mig-{_slot(gpu)}-{profile_id}-{placement.start}"


def places_named(gpu: Gpu, device_names: Collection[str]) -> frozenset[tuple[int, Placement]]:
    """Return the places of a card (profile id and placement) whose instances would have one of these names."""
    if not device_names:
        return frozenset()
    places = ((profile.id, placement) for profile in gpu.mig.profiles for placement in profile.placements)
    return frozenset(place for place in places if mig_name(gpu, *place) in device_names)


def semantic_version(text: str) -> Version | None:
    """Return a driver's version as a semantic one: `550.054.15` is 550.54.15, `12.4` is 12.4.0; None for none."""
    parts = text.strip().split(".")[:3]
    numbers = [match[0] for part in parts if (match := _NUMBER.match(part))]
    if not numbers or len(numbers) != len(parts):
        return None
    return Version(".".join(str(int(number)) for number in (*numbers, "0", "0")[:3]))


def quantity(amount_bytes: int) -> str:
    """Return an amount as the API server itself would write it, so that what comes back is what was sent."""
    for power, unit in _UNITS:
        if amount_bytes and amount_bytes % 1024**power == 0:
            return f"{amount_bytes // 1024**power}{unit}"
    return str(amount_bytes)


def _slot(gpu: Gpu) -> str:
    """Return the part of names that tells cards apart; a card whose address is unknown goes by its UUID."""
    return re.sub(r"[^a-z0-9]", "-", (gpu.pci_bus_id or gpu.uuid.removeprefix("GPU-")).lower())


def _key(instance: Instance) -> tuple[int, Placement]:
    return instance.profile_id, instance.placement


def _by_openness(gpu: Gpu) -> list[Instance]:
    places = [placement.mask for profile in gpu.mig.profiles for placement in profile.placements]

    def blocked(instance: Instance) -> int:
        return sum(1 for mask in places if mask & instance.placement.mask)

    return sorted(gpu.instances, key=lambda i: (blocked(i), i.placement, i.profile_id))


def _attributes(
    gpu: Gpu, record: DeviceRecord, facts: DriverFacts, own: Mapping[str, str]
) -> dict[str, str | int | Version]:
    candidates: dict[str, str | int | Version | None] = {
        "policy": record.policy,
        "type": record.kind.value,
        **own,
        "productName": gpu.product_name,
        "architecture": gpu.architecture,
        "brand": gpu.brand,
        "cudaComputeCapability": semantic_version(gpu.compute_capability),
        "driverVersion": semantic_version(facts.driver_version),
        "cudaDriverVersion": semantic_version(facts.cuda_version),
        f"{_STANDARD}/pciBusID": gpu.pci_bus_id,
        f"{_STANDARD}/pcieRoot": gpu.pcie_root,
        f"{_STANDARD}/numaNode": gpu.numa_node,
    }
    return {
        key: _cut(value) if isinstance(value, str) else value
        for key, value in candidates.items()
        if value is not None and value != ""
    }


def _instance_capacity(profile: MigProfile) -> dict[str, str]:
    return {
        "memory": quantity(profile.memory_mib * 1024**2),
        "multiprocessors": str(profile.multiprocessors),
        "copyEngines": str(profile.copy_engines),
        "decoders": str(profile.decoders),
        "encoders": str(profile.encoders),
        "jpegEngines": str(profile.jpeg_engines),
        "ofaEngines": str(profile.ofa_engines),
    }


def _retiring(device: Device) -> Device:
    return replace(device, taints=(*device.taints, Taint(names.RETIRING_TAINT)))


def _healthy_or_not(gpu: Gpu, device: Device) -> Device:
    if gpu.health is Health.HEALTHY:
        return device
    taint = Taint(names.UNHEALTHY_TAINT, gpu.health.value)
    return replace(device, taints=(taint,), health=gpu.health, health_message=gpu.health_message)


def _cut(text: str) -> str:
    """Return as many whole characters as fit into a value."""
    return text.encode()[:STRING_LIMIT_BYTES].decode(errors="ignore")


def _wire_value(value: str | int | Version) -> dict[str, Any]:
    if isinstance(value, Version):
        return {"version": value.text}
    return {"int": value} if isinstance(value, int) else {"string": value}
