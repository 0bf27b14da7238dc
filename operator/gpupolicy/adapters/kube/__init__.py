"""The API server, as controller, agent and CLI see it: one client, copies of resources, leader election.

Import this package before kopf: it makes the import of kubernetes_asyncio lazy (see `lazyimport`).

    async with kube.Kube.connect() as client:
        slices = await client.list(kube.RESOURCE_SLICES, field_selector="spec.driver=gpu.gpupolicy.dev")
"""

from gpupolicy.adapters.kube import lazyimport
from gpupolicy.adapters.kube.client import Kube
from gpupolicy.adapters.kube.compare import dropped_fields, is_applied
from gpupolicy.adapters.kube.credentials import Credentials
from gpupolicy.adapters.kube.errors import (
    AlreadyExists,
    ApiError,
    Cause,
    ConfigurationError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    KubeError,
    NotFound,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from gpupolicy.adapters.kube.lease import LeaderElection, seize
from gpupolicy.adapters.kube.reflector import Change, Event, Key, Reflector
from gpupolicy.adapters.kube.resources import (
    CONFIG_MAPS,
    CRDS,
    DAEMONSETS,
    DEPLOYMENTS,
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    EVENTS,
    GPUNODES,
    GPUPOLICIES,
    LEASES,
    NAMESPACES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
    SERVICE_ACCOUNTS,
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_ADMISSION_POLICY_BINDINGS,
    Resource,
)
from gpupolicy.adapters.kube.statuses import apply_status
from gpupolicy.adapters.kube.wire import Object, ObjectList, ServerVersion, Transform, WatchEvent, micro_time

lazyimport.install()

__all__ = [
    "CONFIG_MAPS",
    "CRDS",
    "DAEMONSETS",
    "DEPLOYMENTS",
    "DEVICE_CLASSES",
    "DEVICE_TAINT_RULES",
    "EVENTS",
    "GPUNODES",
    "GPUPOLICIES",
    "LEASES",
    "NAMESPACES",
    "NODES",
    "PODS",
    "POD_DISRUPTION_BUDGETS",
    "RESOURCE_CLAIMS",
    "RESOURCE_CLAIM_TEMPLATES",
    "RESOURCE_QUOTAS",
    "RESOURCE_SLICES",
    "SERVICE_ACCOUNTS",
    "VALIDATING_ADMISSION_POLICIES",
    "VALIDATING_ADMISSION_POLICY_BINDINGS",
    "AlreadyExists",
    "ApiError",
    "Cause",
    "Change",
    "ConfigurationError",
    "Conflict",
    "Credentials",
    "Event",
    "Forbidden",
    "Gone",
    "Invalid",
    "Key",
    "Kube",
    "KubeError",
    "LeaderElection",
    "NotFound",
    "Object",
    "ObjectList",
    "Reflector",
    "Resource",
    "ServerVersion",
    "TooManyRequests",
    "Transform",
    "Unauthorized",
    "Unavailable",
    "WatchEvent",
    "apply_status",
    "dropped_fields",
    "is_applied",
    "micro_time",
    "seize",
]
