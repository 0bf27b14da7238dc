"""Who may use a policy's classes, and how many devices: the objects that make the API server enforce `spec.access`.

`access.namespaces` becomes a ValidatingAdmissionPolicy with its binding. It refuses claims, claim templates and pods in
namespaces that the selector does not select, by every name under which a class can be asked for: the class, its extended
resource name, and the implicit name that every class has. What was admitted before stays as it is.

`access.quotas` becomes one ResourceQuota per namespace, with every key under which the API server counts the devices
of a class. The one on the class's devices counts claims, also those that the scheduler makes for pods with extended
names; but those only when the pod is scheduled, so that over the limit it would be created and stay Pending. The keys on
the names that a pod can write, the class's own extended name and the implicit one, refuse such a pod at once. A
device counts once in each key, whichever way it was asked for.

All objects have the policy as owner, so they go with it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpupolicy.api import names
from gpupolicy.api.conditions import Reason
from gpupolicy.api.policy import Access
from gpupolicy.core.classes import DesiredClass
from gpupolicy.core.labels import LabelRequirement, LabelSelector
from gpupolicy.core.refusals import Refusal

IMPLICIT_PREFIX: Final = "deviceclass.resource.kubernetes.io/"
"""The extended resource name that every class has: this and its name."""

LONGEST_NAME_PART: Final = 63
"""Characters after the slash of a resource name; the implicit name of a longer class cannot be written."""

_COUNTED_DOMAIN: Final = "deviceclass.resource.k8s.io"

_LONGEST_PREFIX: Final = 253
"""Characters before the slash of a key of a ResourceQuota."""

LONGEST_COUNTED_CLASS: Final = _LONGEST_PREFIX - len(f".{_COUNTED_DOMAIN}")
"""Characters of the longest class name that a ResourceQuota can have in a key."""

_OBJECT_PREFIX: Final = "gpupolicy-access-"
_RESOURCES: Final = (
    {
        "apiGroups": ["resource.k8s.io"],
        # Whoever writes another served version is converted to this one first, by matchPolicy Equivalent. With all versions
        # here the expressions would see each as it was written, and v1beta1 has the class elsewhere.
        "apiVersions": ["v1"],
        "resources": ["resourceclaims", "resourceclaimtemplates"],
        "operations": ["CREATE"],
    },
    {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]},
)


@dataclass(frozen=True, slots=True)
class Fence:
    """The admission policy and its binding, as they are to be applied."""

    policy: Mapping[str, Any]
    binding: Mapping[str, Any]


def object_name(policy: str) -> str:
    """Return the name of the admission policy, its binding, and the quotas of a policy."""
    return f"{_OBJECT_PREFIX}{policy}"


def fence(policy: str, uid: str, access: Access | None, wishes: Sequence[DesiredClass]) -> Fence | None:
    """Return what keeps other namespaces out; None where everybody may claim."""
    if access is None or access.namespaces is None or not wishes:
        return None
    selector = LabelSelector.of(access.namespaces)
    metadata = _metadata(policy, uid)
    message = (
        f"{_text(f'the classes of GpuPolicy {policy} (')} + variables.asked.join(', ') + "
        f"{_text(f') are for namespaces with {describe(selector)}; ask the admin of GpuPolicy {policy} to admit namespace ')}"
        " + request.namespace"
    )
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [dict(rule) for rule in _RESOURCES]},
        "variables": _variables(wishes),
        "validations": [
            {
                "expression": f"variables.asked.size() == 0 || ({selector_expression(selector)})",
                "messageExpression": message,
                "reason": "Forbidden",
            }
        ],
    }
    api_version = "admissionregistration.k8s.io/v1"
    return Fence(
        {"apiVersion": api_version, "kind": "ValidatingAdmissionPolicy", "metadata": metadata, "spec": spec},
        {
            "apiVersion": api_version,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": metadata,
            "spec": {"policyName": object_name(policy), "validationActions": ["Deny"]},
        },
    )


def quotas(
    policy: str, uid: str, access: Access | None, wishes: Sequence[DesiredClass]
) -> dict[str, Mapping[str, Any]]:
    """Return the ResourceQuota of each namespace that has one."""
    extended = {wish.name: wish.extended_resource_name for wish in wishes}
    hard: dict[str, dict[str, str]] = {}
    for entry in access.quotas if access is not None else ():
        if entry.device_class_name in extended:
            keys = quota_keys(entry.device_class_name, extended[entry.device_class_name])
            hard.setdefault(entry.namespace, {}).update(dict.fromkeys(keys, str(entry.devices)))
    return {
        namespace: {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {**_metadata(policy, uid), "namespace": namespace},
            "spec": {"hard": limits},
        }
        for namespace, limits in hard.items()
    }


def objects(
    policy: str, uid: str, access: Access | None, wishes: Sequence[DesiredClass]
) -> tuple[Mapping[str, Any], ...]:
    """Return all objects that a policy's access needs, in the order in which they are written."""
    wall = fence(policy, uid, access, wishes)
    guards = () if wall is None else (wall.policy, wall.binding)
    return (*guards, *(quota for _, quota in sorted(quotas(policy, uid, access, wishes).items())))


def policy_of(name: str) -> str:
    """Return the policy whose object has this name; empty where it is no name of ours."""
    return name.removeprefix(_OBJECT_PREFIX) if name.startswith(_OBJECT_PREFIX) else ""


def quota_keys(device_class: str, extended_resource_name: str | None) -> tuple[str, ...]:
    """Return the keys under which a ResourceQuota counts the devices of a class; none that is too long to be written."""
    keys = []
    if len(device_class) <= LONGEST_COUNTED_CLASS:
        keys.append(f"{device_class}.{_COUNTED_DOMAIN}/devices")
    requested = f"requests.{extended_resource_name}" if extended_resource_name is not None else ""
    if requested and len(requested.partition("/")[0]) <= _LONGEST_PREFIX:
        keys.append(requested)
    if len(device_class) <= LONGEST_NAME_PART:
        keys.append(f"requests.{IMPLICIT_PREFIX}{device_class}")
    return tuple(keys)


def refusal(access: Access | None, wishes: Sequence[DesiredClass]) -> Refusal | None:
    """Return what no schema can refuse: a selector that means nothing, a quota on a class that is not offered."""
    if access is None:
        return None
    problem = LabelSelector.of(access.namespaces).problem if access.namespaces is not None else None
    if problem is not None:
        return Refusal(Reason.INVALID_POLICY, f"spec.access.namespaces: {problem}")
    offered = [wish.name for wish in wishes]
    unknown = sorted({entry.device_class_name for entry in access.quotas} - set(offered))
    if unknown:
        return Refusal(
            Reason.INVALID_POLICY,
            f"spec.access.quotas: the policy offers no class {', '.join(unknown)}; "
            f"it offers {', '.join(offered) or 'none'}",
        )
    for entry in access.quotas:
        if len(entry.device_class_name) > LONGEST_COUNTED_CLASS:
            return Refusal(
                Reason.INVALID_POLICY,
                f"spec.access.quotas: no quota can count a class whose name has more than {LONGEST_COUNTED_CLASS} characters: "
                f"set a shorter deviceClassName than {entry.device_class_name}",
            )
    return None


def selector_expression(selector: LabelSelector) -> str:
    """Return a CEL expression that holds where a namespace is selected; one that cannot be seen is not."""
    terms = [_requirement_expression(requirement) for requirement in selector.requirements]
    return " && ".join(["namespaceObject != null", *terms])


def describe(selector: LabelSelector) -> str:
    """Return a selector in the words of kubectl."""
    words = {"In": "in", "NotIn": "notin"}
    parts = []
    for r in selector.requirements:
        match r.operator:
            case "Exists":
                parts.append(r.key)
            case "DoesNotExist":
                parts.append(f"!{r.key}")
            case "In" if len(r.values) == 1:
                parts.append(f"{r.key}={r.values[0]}")
            case _:
                parts.append(f"{r.key} {words[r.operator]} ({', '.join(r.values)})")
    return ",".join(parts) or "any labels"


def _requirement_expression(requirement: LabelRequirement) -> str:
    value = f"namespaceObject.metadata.?labels[?{_text(requirement.key)}]"
    values = "[" + ", ".join(map(_text, requirement.values)) + "]"
    match requirement.operator:
        case "Exists":
            return f"{value}.hasValue()"
        case "DoesNotExist":
            return f"!{value}.hasValue()"
        case "In":
            return f"({value}.hasValue() && {value}.value() in {values})"
        case _:
            return f"!({value}.hasValue() && {value}.value() in {values})"


def _variables(wishes: Sequence[DesiredClass]) -> list[dict[str, str]]:
    """Return the CEL variables that end in `asked`: the names of ours that an object asks for."""
    classes = [wish.name for wish in wishes]
    extended = [wish.extended_resource_name for wish in wishes if wish.extended_resource_name is not None]
    resources = [*extended, *(f"{IMPLICIT_PREFIX}{name}" for name in classes)]
    devices = (
        "request.resource.resource == 'resourceclaims' ? object.spec.?devices.?requests.orValue([]) : "
        "request.resource.resource == 'resourceclaimtemplates' "
        "? object.spec.spec.?devices.?requests.orValue([]) : []"
    )
    containers = (
        "request.resource.resource == 'pods' "
        "? object.spec.containers + object.spec.?initContainers.orValue([]) : []"
    )
    used = (
        f"{_list(classes)}.filter(c, variables.requests.exists(r, "
        "r.?exactly.?deviceClassName.orValue('') == c || "
        "r.?firstAvailable.orValue([]).exists(s, s.deviceClassName == c)))"
        f" + {_list(resources)}.filter(n, variables.containers.exists(k, "
        "n in k.?resources.?requests.orValue({}) || n in k.?resources.?limits.orValue({})))"
    )
    return [
        {"name": "requests", "expression": devices},
        {"name": "containers", "expression": containers},
        {"name": "asked", "expression": used},
    ]


def _metadata(policy: str, uid: str) -> dict[str, Any]:
    owner = {
        "apiVersion": names.API_VERSION,
        "kind": names.POLICY_KIND,
        "name": policy,
        "uid": uid,
        "controller": True,
    }
    return {
        "name": object_name(policy),
        "labels": {names.MANAGED_BY_LABEL: names.MANAGED_BY, names.POLICY_LABEL: policy},
        "ownerReferences": [owner],
    }


def _text(value: str) -> str:
    """Return a CEL string literal; JSON's escapes are CEL's."""
    return json.dumps(value)


def _list(values: Iterable[str]) -> str:
    return "[" + ", ".join(map(_text, values)) + "]"
