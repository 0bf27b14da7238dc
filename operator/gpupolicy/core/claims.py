"""What a claim asks of this node: from the API server's object to the devices to prepare, or why not.

The kubelet names a claim only; its content is fetched by the agent and judged here. Everything in it but the
allocation was written by a tenant. The checks run in an order in which the first that fails is the one to tell:
is it the claim that the kubelet means, is it allocated, is the configuration acceptable, does every device exist.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import ValidationError

from gpupolicy.api import names
from gpupolicy.api.claimconfig import ClaimConfig
from gpupolicy.core.records import ClaimRecord, DeviceKind, DeviceRecord, PreparedDevice

MESSAGE_LIMIT: Final = 400
"""Characters of a message that quotes a tenant's input."""


@dataclass(frozen=True, slots=True)
class ClaimRefusal:
    """Why a claim is not prepared; the text stands in the pod's event."""

    message: str
    waits: bool = False
    """Whether time may help: the device may appear. Anything else is final until somebody changes the claim."""


def resolve(
    claim: Mapping[str, Any], uid: str, pool: str, devices: Mapping[str, DeviceRecord]
) -> tuple[PreparedDevice, ...] | ClaimRefusal:
    """Return the devices of a claim on this node, without CDI ids, or why it cannot be prepared.

    Args:
        claim: the ResourceClaim as the API server has it.
        uid: the UID that the kubelet asked for.
        pool: the pool of this node; devices of other pools and drivers are not ours to prepare.
        devices: what stands on this node, by device name.
    """
    found = claim.get("metadata", {}).get("uid")
    if found != uid:
        return ClaimRefusal(
            f"the claim has UID {found} in the API server, and the kubelet asks for {uid}: "
            "it was deleted and made again; the pod has to be made again too"
        )
    allocation = (claim.get("status") or {}).get("allocation")
    if not allocation:
        return ClaimRefusal("the claim is not allocated")
    body = allocation.get("devices") or {}
    refusal = _judge_config(body.get("config") or ())
    if refusal is not None:
        return refusal
    ours = [r for r in body.get("results") or () if r.get("driver") == names.DRIVER and r.get("pool") == pool]
    if not ours:
        return ClaimRefusal(f"no device of pool {pool} of driver {names.DRIVER} is allocated to the claim")
    return _match(ours, pool, devices)


def _judge_config(entries: Iterable[Mapping[str, Any]]) -> ClaimRefusal | None:
    """Return why one of the configuration entries for our driver is not acceptable."""
    for index, entry in enumerate(entries):
        opaque = entry.get("opaque") or {}
        if opaque.get("driver") != names.DRIVER:
            continue
        where = f"config[{index}] ({entry.get('source', 'unknown source')}) for driver {names.DRIVER}"
        try:
            config = ClaimConfig.model_validate(opaque.get("parameters"))
        except ValidationError as error:
            return ClaimRefusal(f"{where} is not valid: {_first(error)}")
        given = config.model_dump(exclude_none=True, by_alias=True, exclude={"api_version", "kind"})
        if given:
            return ClaimRefusal(
                f"{where}: {', '.join(sorted(given))} is not served by this release for the device's strategy; "
                "leave it out"
            )
    return None


def _first(error: ValidationError) -> str:
    """Return the first problem with its field path; input is quoted in part only."""
    problem = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in problem["loc"]) or "parameters"
    return f"{path[:MESSAGE_LIMIT]}: {problem['msg']}"[:MESSAGE_LIMIT]


def _match(
    results: Iterable[Mapping[str, Any]], pool: str, devices: Mapping[str, DeviceRecord]
) -> tuple[PreparedDevice, ...] | ClaimRefusal:
    """Return the allocated devices, one entry a device and share, with all its requests."""
    requests: dict[tuple[str, str], list[str]] = {}
    for result in results:
        if result.get("adminAccess"):
            return ClaimRefusal("admin access is not served by this driver")
        key = (str(result.get("device")), str(result.get("shareID") or ""))
        requests.setdefault(key, []).append(str(result.get("request", "")).partition("/")[0])
    missing = sorted({name for name, _ in requests if name not in devices})
    if missing:
        return ClaimRefusal(
            f"device {', '.join(missing)} does not exist on this node now: the layout changed after the claim was "
            "allocated, or the card is gone; delete the pod to have it scheduled again",
            waits=True,
        )
    return tuple(
        PreparedDevice(device=devices[name], pool=pool, requests=tuple(sorted(set(wanted))), share_id=share)
        for (name, share), wanted in requests.items()
    )


def reserved_pods(claim: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the pods for which a claim is reserved; they live in its namespace."""
    reserved = (claim.get("status") or {}).get("reservedFor") or ()
    return tuple(r.get("name", "") for r in reserved if r.get("resource") == "pods")


def overlap(one: DeviceRecord, other: DeviceRecord) -> bool:
    """Return whether two devices are the same thing, or one lies inside the other."""
    if one.gpu_uuid != other.gpu_uuid:
        return False
    if DeviceKind.GPU in (one.kind, other.kind):
        return True
    if one.placement is None or other.placement is None:
        return one.name == other.name
    return bool(one.placement.mask & other.placement.mask)


def holders(
    uid: str, wanted: Iterable[PreparedDevice], records: Mapping[str, ClaimRecord]
) -> tuple[ClaimRecord, ...]:
    """Return the records of other claims that hold any of the devices, sorted by UID.

    Shares of one device may be held by several claims; a whole device by one.
    """
    wanted = tuple(wanted)

    def conflicts(held: PreparedDevice) -> bool:
        return any(
            overlap(held.device, mine.device)
            and not (held.share_id and mine.share_id and held.device.name == mine.device.name)
            for mine in wanted
        )

    return tuple(
        record
        for other, record in sorted(records.items())
        if other != uid and any(conflicts(held) for held in record.devices)
    )


def same_devices(record: ClaimRecord, devices: Iterable[PreparedDevice]) -> bool:
    """Return whether a record holds exactly these devices, on the same hardware, for the same requests."""

    def identity(device: PreparedDevice) -> tuple[object, ...]:
        return (device.pool, _thing(device.device), device.requests, device.share_id)

    return {identity(d) for d in record.devices} == {identity(d) for d in devices}


def stands(held: PreparedDevice, devices: Mapping[str, DeviceRecord]) -> bool:
    """Return whether what a claim holds is still what its name stands for on this node."""
    found = devices.get(held.device.name)
    return found is not None and _thing(found) == _thing(held.device)


def _thing(device: DeviceRecord) -> DeviceRecord:
    """Return a device without its policy: that may change, and is not known when an agent starts."""
    return replace(device, policy="")


def is_current(claim: Mapping[str, Any] | None, record: ClaimRecord) -> bool:
    """Return whether the API server still allocates a record's devices to its claim.

    Args:
        claim: the object of that namespace and name, None where there is none.
        record: what this node prepared.
    """
    if claim is None or claim.get("metadata", {}).get("uid") != record.uid:
        return False
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    allocated = {(r.get("driver"), r.get("pool"), r.get("device")) for r in results}
    return any((names.DRIVER, d.pool, d.device.name) in allocated for d in record.devices)
