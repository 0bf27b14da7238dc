"""The objects that the stories apply, built in one place."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.cluster import image

H100_LAYOUT = {"3g.40gb": 1, "2g.20gb": 1, "1g.10gb": 2}
SLEEP = ["sh", "-c", "exec sleep 3600"]


def policy(name: str, **spec: Any) -> dict[str, Any]:
    """A policy; `pool=` selects nodes by the label gpu-pool."""
    pool = spec.pop("pool", None)
    if pool:
        spec["nodeSelector"] = {"matchLabels": {"gpu-pool": pool}}
    return {
        "apiVersion": "gpupolicy.dev/v1alpha1",
        "kind": "GpuPolicy",
        "metadata": {"name": name},
        "spec": spec,
    }


def mig(layout: Mapping[str, int]) -> dict[str, Any]:
    """The sharing of a static MIG layout."""
    entries = [{"profile": profile, "count": count} for profile, count in layout.items()]
    return {"strategy": "MIG", "mig": {"layout": entries}}


def pod(
    name: str,
    namespace: str,
    *,
    limits: Mapping[str, int] | None = None,
    template: str | None = None,
    claim: str | None = None,
    command: Sequence[str] = tuple(SLEEP),
    node: str | None = None,
) -> dict[str, Any]:
    """A pod of one container that asks by extended resource, by claim template or by claim."""
    container: dict[str, Any] = {
        "name": "main",
        "image": image.BUSYBOX,
        "imagePullPolicy": "Never",
        "command": list(command),
    }
    spec: dict[str, Any] = {
        "terminationGracePeriodSeconds": 0,
        "restartPolicy": "Never",
        "containers": [container],
    }
    if limits:
        container["resources"] = {"limits": {key: str(value) for key, value in limits.items()}}
    if template or claim:
        source = {"resourceClaimTemplateName": template} if template else {"resourceClaimName": claim}
        spec["resourceClaims"] = [{"name": "gpu", **source}]
        container["resources"] = {"claims": [{"name": "gpu"}]}
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def template(
    name: str, namespace: str, device_class: str, *, count: int = 1, config: Any = None
) -> dict[str, Any]:
    """A claim template for devices of one class."""
    devices: dict[str, Any] = {
        "requests": [{"name": "gpu", "exactly": {"deviceClassName": device_class, "count": count}}]
    }
    if config is not None:
        devices["config"] = [
            {"requests": ["gpu"], "opaque": {"driver": "gpu.gpupolicy.dev", "parameters": config}}
        ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"spec": {"devices": devices}},
    }
