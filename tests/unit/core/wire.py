"""Short ways to write policies and the objects that a controller reads."""

from typing import Any

from gpupolicy.api.policy import GpuPolicy

DRIVER = "gpu.gpupolicy.dev"
LAYOUT = [
    {"profile": "3g.40gb", "count": 1},
    {"profile": "2g.20gb", "count": 1},
    {"profile": "1g.10gb", "count": 2},
]
MIG = {"strategy": "MIG", "mig": {"layout": LAYOUT}}


def policy(
    name: str = "p", *, uid: str = "", created: str = "2026-01-01T00:00:00Z", **spec: Any
) -> GpuPolicy:
    """Make a policy; keywords are fields of its spec in wire spelling."""
    meta = {"name": name, "uid": uid or f"uid-{name}", "creationTimestamp": created, "generation": 1}
    return GpuPolicy.model_validate({"metadata": meta, "spec": spec})


def device(name: str, **attributes: str) -> dict[str, Any]:
    """Make a device of a slice with string attributes."""
    return {"name": name, "attributes": {key: {"string": value} for key, value in attributes.items()}}


def gpu(name: str, policy: str, uuid: str) -> dict[str, Any]:
    """Make a whole card as a device."""
    return device(name, policy=policy, type="gpu", uuid=uuid)


def mig(name: str, policy: str, profile: str, card: str) -> dict[str, Any]:
    """Make a MIG instance as a device."""
    return device(name, policy=policy, type="mig", profile=profile, parentUUID=card, uuid=f"MIG-{name}")


def resource_slice(
    node: str,
    *devices: dict[str, Any],
    name: str = "",
    generation: int = 1,
    count: int = 1,
    driver: str = DRIVER,
) -> dict[str, Any]:
    """Make a ResourceSlice."""
    pool = {"name": f"{node}/gpupolicy", "generation": generation, "resourceSliceCount": count}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": list(devices)}
    return {"metadata": {"name": name or f"{node}-{generation}"}, "spec": spec}


def claim(
    name: str, *devices: tuple[str, str], class_name: str = "c", pods: tuple[str, ...] = (), **result: Any
) -> dict[str, Any]:
    """Make a ResourceClaim that holds (node, device) pairs; keywords go into every allocation result."""
    results = [
        {"request": "r", "driver": DRIVER, "pool": f"{node}/gpupolicy", "device": found, **result}
        for node, found in devices
    ]
    return {
        "metadata": {
            "namespace": "team",
            "name": name,
            "uid": f"uid-{name}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": class_name}}]}},
        "status": {
            "allocation": {"devices": {"results": results}} if results else None,
            "reservedFor": [{"resource": "pods", "name": pod, "uid": pod} for pod in pods],
        },
    }
