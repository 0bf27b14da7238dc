"""Every name that stands in the cluster or on a node: group, kinds, driver, labels, taints, field managers.

One place, so that a rename is one edit and no two processes disagree on a string.
"""

import hashlib
from typing import Final

GROUP: Final = "gpupolicy.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
POLICY_KIND: Final = "GpuPolicy"
NODE_KIND: Final = "GpuNode"

DRIVER: Final = "gpu.gpupolicy.dev"
"""Name of our DRA driver, and the domain of the attributes that our devices carry."""

INTEROP_DRIVER: Final = "gpu.nvidia.com"
"""Name of NVIDIA's DRA driver, the second driver target."""

CDI_KIND: Final = f"{DRIVER}/claim"
"""CDI kind (vendor/class) of the spec file that one prepared claim gets."""

CONTROLLER_FIELD_MANAGER: Final = "gpupolicy-controller"
AGENT_FIELD_MANAGER: Final = "gpupolicy-agent"
CONTROLLER_COMPONENT: Final = "gpupolicy-controller"
AGENT_COMPONENT: Final = "gpupolicy-agent"

POLICY_LABEL: Final = f"{GROUP}/policy"
"""Label on every object that the controller makes: the name of the policy it was made for."""

MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "gpupolicy"
"""Value of that label on every object that controller or agents make."""

RETIRING_TAINT: Final = f"{GROUP}/retiring"
"""Taint key of a device that is in use and will be re-carved once its claim is gone."""

UNHEALTHY_TAINT: Final = f"{GROUP}/unhealthy"

DEVICE_PLUGIN_RESOURCES: Final = ("nvidia.com/gpu", "nvidia.com/mig-", "nvidia.com/vgpu")
"""How extended resources begin that device plugins make of NVIDIA's GPUs: whole, shared or virtual ones, MIG instances.
Network cards have names with the same domain, such as `nvidia.com/hostdev`, on most nodes with both."""

DEVICE_PLUGIN_RESOURCE: Final = "nvidia.com/gpu"


_POOL_SUFFIX: Final = "/gpupolicy"
_POOL_LIMIT: Final = 253
_HASH_LENGTH: Final = 10


def pool_name(node: str) -> str:
    """Return the name of the pool of one node's devices.

    It is driver-unique on purpose: the counter caches of kube-scheduler are keyed by pool name only, so two
    drivers that both use the bare node name corrupt each other's accounts. A name of a node may be as long as that of
    a pool, so the end of a very long one becomes a hash.
    """
    room = _POOL_LIMIT - len(_POOL_SUFFIX)
    if len(node) > room:
        digest = hashlib.sha256(node.encode()).hexdigest()[:_HASH_LENGTH]
        # What is cut must not end in a dot or dash, which a name of dotted parts does not allow.
        node = f"{node[: room - _HASH_LENGTH - 1].rstrip('.-')}-{digest}"
    return f"{node}{_POOL_SUFFIX}"


def node_of_pool(pool: str) -> str:
    """Return the node of a pool of ours; what `pool_name` did not make, or had to cut, is the name of no node."""
    return pool.removesuffix(_POOL_SUFFIX)
