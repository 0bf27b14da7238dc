"""The resources that this project speaks of, and the paths under which the API server serves them.

A resource is a constant here and not looked up in discovery: discovery costs requests at every start, and what
is not served answers 404, which callers must handle anyway.
"""

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from gpupolicy.api import names


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object as the API server serves it.

    Attributes:
        group: API group; empty for the core group.
        version: version of the group.
        plural: the name in paths and in RBAC rules.
        kind: the name in objects.
        namespaced: whether objects live in namespaces.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        """The `apiVersion` of objects of this resource."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def group_path(self) -> str:
        """The path at which the API server lists the resources of this group and version."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def collection_path(self, namespace: str | None = None) -> str:
        """Return the path of all objects, or of those of one namespace.

        Raises:
            ValueError: a namespace for a cluster-scoped resource, or one that is no single path segment.
        """
        if namespace is None:
            return f"{self.group_path}/{self.plural}"
        if not self.namespaced:
            raise ValueError(f"{self.plural} are cluster-scoped, got namespace {namespace!r}")
        return f"{self.group_path}/namespaces/{_segment(namespace, 'namespace')}/{self.plural}"

    def object_path(self, name: str, namespace: str | None = None, subresource: str | None = None) -> str:
        """Return the path of one object or of one of its subresources.

        Raises:
            ValueError: no namespace where one is needed or the reverse, or a name that is no single path segment.
                An empty name would otherwise address the whole collection, which matters most in a delete.
        """
        if self.namespaced and namespace is None:
            raise ValueError(f"{self.plural} are namespaced: {name!r} needs a namespace")
        path = f"{self.collection_path(namespace)}/{_segment(name, 'name')}"
        return path if subresource is None else f"{path}/{_segment(subresource, 'subresource')}"

    def __str__(self) -> str:
        """Return `plural.group`, as in RBAC rules and messages."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


def _segment(value: str, what: str) -> str:
    if not value or value in {".", ".."} or "/" in value:
        raise ValueError(f"{what} {value!r} is not the name of an object")
    return quote(value, safe="")


GPUPOLICIES: Final = Resource(names.GROUP, names.VERSION, "gpupolicies", names.POLICY_KIND, namespaced=False)
GPUNODES: Final = Resource(names.GROUP, names.VERSION, "gpunodes", names.NODE_KIND, namespaced=False)

DEVICE_CLASSES: Final = Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False)
DEVICE_TAINT_RULES: Final = Resource(
    "resource.k8s.io", "v1", "devicetaintrules", "DeviceTaintRule", namespaced=False
)
RESOURCE_CLAIMS: Final = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", namespaced=True)
RESOURCE_CLAIM_TEMPLATES: Final = Resource(
    "resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", namespaced=True
)
RESOURCE_SLICES: Final = Resource(
    "resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False
)

NODES: Final = Resource("", "v1", "nodes", "Node", namespaced=False)
PODS: Final = Resource("", "v1", "pods", "Pod", namespaced=True)
NAMESPACES: Final = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
CONFIG_MAPS: Final = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True)
SERVICE_ACCOUNTS: Final = Resource("", "v1", "serviceaccounts", "ServiceAccount", namespaced=True)
RESOURCE_QUOTAS: Final = Resource("", "v1", "resourcequotas", "ResourceQuota", namespaced=True)
EVENTS: Final = Resource("events.k8s.io", "v1", "events", "Event", namespaced=True)
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", "Lease", namespaced=True)
DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", "Deployment", namespaced=True)
DAEMONSETS: Final = Resource("apps", "v1", "daemonsets", "DaemonSet", namespaced=True)
POD_DISRUPTION_BUDGETS: Final = Resource(
    "policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", namespaced=True
)
CRDS: Final = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
VALIDATING_ADMISSION_POLICIES: Final = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicies",
    "ValidatingAdmissionPolicy",
    namespaced=False,
)
VALIDATING_ADMISSION_POLICY_BINDINGS: Final = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicyBinding",
    namespaced=False,
)
