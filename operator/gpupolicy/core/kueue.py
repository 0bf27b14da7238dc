"""What Kueue needs to queue Jobs for a policy's classes, as text for the status.

Kueue counts devices under resource names of its own choosing: its configuration maps a class to a name, and a
ClusterQueue has a quota of that name. Here the name is the one that pods write anyway, the extended resource name of
the class or else its implicit one, so that a Job counts the same whether it asks by claim or by name. Classes that
select the same devices share a name, or their devices would be counted twice; a Job that writes the extended name of
another of them is held back, which `findings` foretells.

Kueue refuses claims that say more than class and count: opaque config, selectors, constraints, choices. Classes of
ours need none of it in the claim; what is shared and how stands in the policy.

Sources: Kueue v0.17, `apis/kueue/v1beta2` and `apis/config/v1beta2`; the limits are those of its validation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpupolicy.api.conditions import Reason
from gpupolicy.api.policy import Access, Example
from gpupolicy.core import render
from gpupolicy.core.access import IMPLICIT_PREFIX, LONGEST_NAME_PART
from gpupolicy.core.classes import DesiredClass
from gpupolicy.core.refusals import Refusal, listing

CLASSES_PER_NAME: Final = 8
"""Classes that Kueue maps to one name."""

_LONGEST_MANIFEST: Final = 8192
"""Characters that the schema allows for an example."""

_QUEUES_SHOWN: Final = 8
"""LocalQueues that are spelled out; a policy may name hundreds of namespaces."""

_QUEUES_HEAD: Final = """\
# Queues for Kueue (https://kueue.sigs.k8s.io). Its configuration must map the classes: see the example kueue-configuration.
# A Job joins with the label kueue.x-k8s.io/queue-name: {policy}. Claims may say class and count, nothing else.
# Jobs that also request cpu or memory: add those to coveredResources, or to resources.excludeResourcePrefixes in Kueue.
"""

_CONFIGURATION_HEAD: Final = """\
# Merge this into Kueue's Configuration (ConfigMap kueue-manager-config) and restart Kueue. Where the chart sets
# --feature-gates, name the gates there instead.
"""


@dataclass(frozen=True, slots=True)
class QuotaName:
    """The name under which Kueue counts devices, and the classes that select them."""

    name: str
    classes: tuple[str, ...]
    devices: int


def quota_names(wishes: Sequence[DesiredClass], devices: Mapping[str, int]) -> tuple[QuotaName, ...]:
    """Return one name for each kind of device that a policy offers, in the order of its classes.

    Args:
        wishes: the classes of one policy.
        devices: how many devices each class has, by name.
    """
    kinds: dict[str | None, list[DesiredClass]] = {}
    for wish in wishes:
        if len(wish.name) <= LONGEST_NAME_PART:
            kinds.setdefault(wish.profile, []).append(wish)
    return tuple(
        QuotaName(
            name=_resource_name(group),
            classes=tuple(wish.name for wish in group[:CLASSES_PER_NAME]),
            devices=devices.get(group[0].name, 0),
        )
        for group in kinds.values()
    )


def findings(wishes: Sequence[DesiredClass]) -> tuple[Refusal, ...]:
    """Return which devices no quota can count under one name, be it of Kueue or a ResourceQuota."""
    texts = [
        f"classes {listing(kind.classes)} select the same devices, so a quota on one of them limits none: offer one class, or "
        "set quotas on all of them together"
        for kind in quota_names(wishes, {})
        if len(kind.classes) > 1
    ]
    texts += [
        f"class {wish.name} is longer than {LONGEST_NAME_PART} characters, so that Kueue cannot count it and no pod can write "
        "its implicit name: set a shorter deviceClassName"
        for wish in wishes
        if len(wish.name) > LONGEST_NAME_PART
    ]
    return (Refusal(Reason.QUOTA_NAME, ". ".join(texts)),) if texts else ()


def examples(
    policy: str, access: Access | None, wishes: Sequence[DesiredClass], devices: Mapping[str, int]
) -> list[Example]:
    """Return the queues to apply and the part of Kueue's configuration; none where nothing can be mapped.

    Args:
        policy: name of the policy, and of the queues.
        access: who may claim; the queues are for the same namespaces.
        wishes: the classes of the policy.
        devices: how many devices each class has, by name.
    """
    counted = quota_names(wishes, devices)
    if not counted:
        return []
    queues = _QUEUES_HEAD.format(policy=policy)
    queues += "---\n".join(render.yaml(body) for body in _queues(policy, access, counted))
    configuration = _CONFIGURATION_HEAD + render.yaml(_configuration(counted))
    made = {"kueue": queues, "kueue-configuration": configuration}
    return [
        Example(name=name, manifest=text) for name, text in made.items() if len(text) <= _LONGEST_MANIFEST
    ]


def _queues(policy: str, access: Access | None, counted: Sequence[QuotaName]) -> list[dict[str, Any]]:
    api_version = "kueue.x-k8s.io/v1beta2"
    wanted = access.namespaces.to_wire() if access is not None and access.namespaces is not None else {}
    selector = {field: terms for field, terms in wanted.items() if terms}
    named = sorted({entry.namespace for entry in access.quotas}) if access is not None else []
    resources = [{"name": kind.name, "nominalQuota": kind.devices} for kind in counted]
    group = {
        "coveredResources": [kind.name for kind in counted],
        "flavors": [{"name": policy, "resources": resources}],
    }
    return [
        {"apiVersion": api_version, "kind": "ResourceFlavor", "metadata": {"name": policy}},
        {
            "apiVersion": api_version,
            "kind": "ClusterQueue",
            "metadata": {"name": policy},
            "spec": {"namespaceSelector": selector, "resourceGroups": [group]},
        },
        *(
            {
                "apiVersion": api_version,
                "kind": "LocalQueue",
                "metadata": {"name": policy, "namespace": namespace},
                "spec": {"clusterQueue": policy},
            }
            for namespace in (named or ["default"])[:_QUEUES_SHOWN]
        ),
    ]


def _configuration(counted: Sequence[QuotaName]) -> dict[str, Any]:
    mappings = [{"name": kind.name, "deviceClassNames": list(kind.classes)} for kind in counted]
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "featureGates": {"DynamicResourceAllocation": True},
        "resources": {"deviceClassMappings": mappings},
    }


def _resource_name(group: Sequence[DesiredClass]) -> str:
    """Return the first extended name of classes on the same devices, else the implicit name of the first."""
    extended = (wish.extended_resource_name for wish in group if wish.extended_resource_name is not None)
    return next(extended, f"{IMPLICIT_PREFIX}{group[0].name}")
