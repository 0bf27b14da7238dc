"""Conditions, their types and their reasons.

A reason is CamelCase, known at write time and shared by conditions, events and metrics; the docstring of each
member is what the troubleshooting page says about it.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from gpupolicy.api.wire import Wire


class ConditionType(StrEnum):
    """What a condition speaks of."""

    ACCEPTED = "Accepted"
    """The policy is valid and no other policy stands in its way."""
    APPLIED = "Applied"
    """What is wanted stands on the hardware and in the cluster."""
    READY = "Ready"
    """The summary: what is wanted can be claimed now."""
    REVIEWED = "Reviewed"
    """Nothing in the policy deserves a second look. Whatever it says, the policy is served."""
    OBSERVED = "Observed"
    """The agent can see the node's cards."""
    HEALTHY = "Healthy"
    """No card of the node is sick."""


class Reason(StrEnum):
    """Why a condition has its status. Every member is documented; a test holds the docs to it."""

    # All is well.
    ACCEPTED = "Accepted"
    """The policy is valid, and every card it selects is its own."""
    APPLIED = "Applied"
    """What is wanted stands on the hardware."""
    READY = "Ready"
    """What is wanted stands, is published, and can be claimed."""
    OBSERVED = "Observed"
    """The agent sees the node's cards."""
    HEALTHY = "Healthy"
    """No card is sick."""
    REVIEWED = "Reviewed"
    """Nothing in the policy deserves a second look."""
    IDLE = "Idle"
    """No policy wants anything of this card or node."""
    PLANNED = "Planned"
    """`rollout.mode: Plan`: the plan is shown and nothing was touched."""

    # The policy itself.
    KUBERNETES_TOO_OLD = "KubernetesTooOld"
    """The API server does not serve kinds that GpuPolicy lives on: too old a release, or they are switched off.
    Upgrade it, or serve `resource.k8s.io/v1`."""
    NOT_IMPLEMENTED = "NotImplemented"
    """The field is part of the API, and this release does not serve it. It is refused, never ignored.
    The message says what to write instead."""
    INVALID_SELECTOR = "InvalidSelector"
    """The API server refuses the CEL expression, or it fails on every card. `kubectl gpupolicy select` tries one out."""
    INVALID_LAYOUT = "InvalidLayout"
    """The layout can never fit on a selected card. The message says what the card offers."""
    INVALID_POLICY = "InvalidPolicy"
    """A field has a value that the schema could not refuse."""
    NO_MATCHING_NODES = "NoMatchingNodes"
    """The node selector selects no node on which an agent reports. Label a node, or correct the selector; the message lists
    the values that exist."""
    NO_MATCHING_DEVICES = "NoMatchingDevices"
    """The card selector selects no card on the selected nodes. The message says which field drops them, and lists the values
    that exist."""
    DEVICE_CONFLICT = "DeviceConflict"
    """Another policy of the same priority is older and keeps the cards, or one of higher priority took them.
    Change a priority, narrow a selector, or set `gpusPerNode`."""
    RESOURCE_NAME_CONFLICT = "ResourceNameConflict"
    """Another DeviceClass already has the class name or the extended resource name: choose another, or take the extended
    name with `takeOver`. Or somebody else's object has the name of one that enforces `spec.access`: delete that object, or
    make it again under another name."""
    OWNERSHIP_CONFLICT = "OwnershipConflict"
    """Somebody else's instances, or a device plugin, own the card; nothing of theirs is destroyed. Delete the instances, or
    take the plugin off the node."""

    # What deserves a second look; nothing is refused for it.
    SELECTOR_TOO_BROAD = "SelectorTooBroad"
    """The policy's own CEL expression also matches cards of a shape that it does not mean; only the other selectors keep it off."""
    NO_PREEMPTION = "NoPreemption"
    """Policies of different priority want the same cards; pods that hold them are not preempted. The message suggests quotas."""
    QUOTA_NAME = "QuotaName"
    """Devices of the policy cannot be counted under one name: several classes select the same ones, or a name is too long."""

    # On the way.
    ROLLOUT_PENDING = "RolloutPending"
    """Some nodes have not applied it yet. Nothing to do."""
    WAITING_FOR_CLAIMS = "WaitingForClaims"
    """Instances or cards are in use by claims or processes; they are left alone until they are free. The message
    names the pods: end them, or wait."""
    WAITING_FOR_SLICES = "WaitingForSlices"
    """The hardware is right, and the API server does not show the devices yet. Normal for seconds; if it stays, look at the
    pod of the node's agent."""
    WAITING_FOR_AGENT = "WaitingForAgent"
    """The agent of a selected node has not reported. Look at its pod."""
    MIG_ACTIVATION_PENDING = "MigActivationPending"
    """The MIG mode changes at the next reset of the card, or a process holds the card. Stop what holds it and reset it, or reboot
    the node."""

    # Trouble on a node.
    DEGRADED = "Degraded"
    """A change failed half-way and could not be completed or rolled back; the message names the card. The log of the
    node's agent tells each step."""
    NVML_UNAVAILABLE = "NvmlUnavailable"
    """The NVML library is missing or does not initialise. Install or load the driver."""
    GPU_UNHEALTHY = "GpuUnhealthy"
    """A card is lost or reports errors. Reset it, or reboot the node; replace it if that does not help."""
    LEDGER_CORRUPT = "LedgerCorrupt"
    """A record of what was done on this node cannot be read, so what it guards is refused. The message
    names the file and what to do with it."""
    CDI_UNAVAILABLE = "CdiUnavailable"
    """The files of a claim (CDI spec or record) cannot be written; pods wait until they can. Make room, or correct the directory
    that the message names."""
    PLUGIN_NOT_REGISTERED = "PluginNotRegistered"
    """The kubelet has not accepted the driver's registration. Normal for seconds; then check `agent.hostPaths.kubelet`."""
    FIELDS_DROPPED = "FieldsDropped"
    """The API server dropped fields that it does not serve (release or feature gate). Upgrade it, switch the gate on, or leave
    the field out."""
    STALE = "Stale"
    """The agent has not reported for ten minutes. Look at its pod."""
    MIG_UNSUPPORTED = "MigUnsupported"
    """A MIG layout was wanted on a card that has no MIG. Narrow the selector."""


Status = Literal["True", "False", "Unknown"]


class Condition(Wire):
    """A condition as in every Kubernetes API."""

    type: Annotated[str, Field(max_length=64)] = Field(description="What the condition speaks of.")
    status: Status = Field(description="True, False or Unknown.")
    observed_generation: int = Field(
        default=0, ge=0, description="Generation of the object that this condition was computed from."
    )
    last_transition_time: str = Field(
        description="When the status last changed.", json_schema_extra={"format": "date-time"}
    )
    reason: Annotated[str, Field(pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$", max_length=128)] = (
        Field(description="Why, in one CamelCase word.")
    )
    message: Annotated[str, Field(max_length=4096)] = Field(
        default="", description="Why, for people; names objects and the remedy."
    )
