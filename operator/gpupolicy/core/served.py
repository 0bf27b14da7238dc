"""What the API lets one write and this release does not do yet, and what no schema can refuse.

A field that is not served is refused with `NotImplemented`, never ignored: the message names the field, its value
and what to write instead. One row a field; a row goes when its field is served.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpupolicy.api.conditions import Reason
from gpupolicy.api.policy import GpuPolicy, GpuPolicySpec, MigMode, OnBusy, OnDelete, Strategy
from gpupolicy.core.refusals import Refusal

LABEL_VALUE_LIMIT: Final = 63
"""Characters of a label value. Objects and devices carry the policy's name, so it has to fit."""


@dataclass(frozen=True, slots=True)
class Unserved:
    """One field that may have a value which is not served.

    Attributes:
        field: path below the object, as in the YAML.
        value: returns the value that is not served, as the message shows it; None where there is none.
        remedy: what to write instead.
    """

    field: str
    value: Callable[[GpuPolicySpec], str | None]
    remedy: str


def _strategy(spec: GpuPolicySpec) -> str | None:
    served = {Strategy.EXCLUSIVE, Strategy.MIG}
    return None if spec.sharing.strategy in served else spec.sharing.strategy


def _mig_mode(spec: GpuPolicySpec) -> str | None:
    mig = spec.sharing.mig
    return mig.mode if mig is not None and mig.mode is not MigMode.STATIC else None


def _window(spec: GpuPolicySpec) -> str | None:
    window = spec.rollout.window
    return None if window is None else f"{window.start} for {window.duration_minutes} minutes"


def _nodes(spec: GpuPolicySpec) -> str | None:
    count = spec.rollout.max_unavailable_nodes
    return None if count == 1 else str(count)


UNSERVED: Final = (
    Unserved("spec.sharing.strategy", _strategy, "use Exclusive or MIG"),
    Unserved("spec.sharing.mig.mode", _mig_mode, "use Static with a layout"),
    Unserved(
        "spec.rollout.onBusy",
        lambda spec: None if spec.rollout.on_busy is OnBusy.WAIT else spec.rollout.on_busy,
        "use Wait, and end the pods that the status names yourself",
    ),
    Unserved("spec.rollout.window", _window, "remove it, and apply changes when they suit you"),
    Unserved(
        "spec.rollout.maxUnavailableNodes",
        _nodes,
        "remove it; changes touch idle devices only and take no node out of service",
    ),
    Unserved(
        "spec.onDelete",
        lambda spec: None if spec.on_delete is OnDelete.RETAIN else spec.on_delete,
        "use Retain; to restore whole cards, apply an Exclusive policy to them",
    ),
    Unserved(
        "spec.adopt",
        lambda spec: "true" if spec.adopt else None,
        "remove it, and delete the foreign instances yourself (nvidia-smi mig -dci, then -dgi)",
    ),
)


def refusal(policy: GpuPolicy) -> Refusal | None:
    """Return why this policy cannot be served whatever the cluster looks like; None where it can.

    Returns:
        `InvalidPolicy` for a name or offers that cannot work, `NotImplemented` for fields that are not served.
    """
    problem = _invalid(policy)
    if problem is not None:
        return Refusal(Reason.INVALID_POLICY, problem)
    found = [(row, row.value(policy.spec)) for row in UNSERVED]
    texts = [
        f"{row.field}: {value} is not served yet; {row.remedy}" for row, value in found if value is not None
    ]
    return Refusal(Reason.NOT_IMPLEMENTED, ". ".join(texts)) if texts else None


def _invalid(policy: GpuPolicy) -> str | None:
    name = policy.metadata.name
    if len(name) > LABEL_VALUE_LIMIT:
        return (
            f"metadata.name: {name} has {len(name)} characters, and objects made for a policy carry its name as a label "
            f"of at most {LABEL_VALUE_LIMIT}; use a shorter name"
        )
    seen: dict[str, str] = {}
    for offer in policy.spec.offers:
        resource = offer.extended_resource_name
        if resource is None:
            continue
        if resource in seen:
            return (
                f"spec.offers: {resource} is the extendedResourceName of {seen[resource]} and of "
                f"{offer.device_class_name}; a name belongs to one class, remove one of them"
            )
        seen[resource] = offer.device_class_name
    return None
