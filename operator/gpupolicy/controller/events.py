"""The events that the controller posts: one function each, so that wording and reasons stand in one place.

Events are posted when something changed or an attempt failed, never as the only sign of anything: what a person must
act on stands in a condition too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from gpupolicy.api import names
from gpupolicy.api.conditions import Condition, ConditionType
from gpupolicy.core.refusals import listing


class EventReason(StrEnum):
    """Reasons that events have beside those of conditions."""

    CLASS_CREATED = "ClassCreated"
    CLASS_CHANGED = "ClassChanged"
    CLASS_DELETED = "ClassDeleted"
    DRIFT = "Drift"
    """An object of ours was changed or deleted by somebody else, and was put right."""
    NAME_TAKEN = "NameTaken"
    """One of our classes took the extended resource name of another class."""
    NAME_RETURNED = "NameReturned"
    """The other class has its extended resource name again."""
    ASSIGNED = "Assigned"
    """Cards of a node go to other policies than before."""
    POLICY_GONE = "PolicyGone"
    """A policy is gone; claims still hold devices of it."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The object that an event is about."""

    kind: str
    name: str
    uid: str
    api_version: str = names.API_VERSION

    @classmethod
    def policy(cls, name: str, uid: str) -> "Subject":
        """Return a GpuPolicy as a subject."""
        return cls(names.POLICY_KIND, name, uid)

    @classmethod
    def node(cls, name: str, uid: str) -> "Subject":
        """Return a GpuNode as a subject."""
        return cls(names.NODE_KIND, name, uid)

    @classmethod
    def device_class(cls, name: str, uid: str) -> "Subject":
        """Return a DeviceClass as a subject."""
        return cls("DeviceClass", name, uid, "resource.k8s.io/v1")


@dataclass(frozen=True, slots=True)
class Event:
    """What is posted."""

    subject: Subject
    type: Literal["Normal", "Warning"]
    reason: str
    action: str
    note: str


def class_created(policy: Subject, name: str) -> Event:
    """Say that a class was made."""
    return Event(policy, "Normal", EventReason.CLASS_CREATED, "ApplyClass", f"DeviceClass {name} was made")


def class_changed(policy: Subject, name: str, fields: Sequence[str]) -> Event:
    """Say that a class follows a change of its policy."""
    note = f"DeviceClass {name} was changed to what the policy says: {', '.join(fields)}"
    return Event(policy, "Normal", EventReason.CLASS_CHANGED, "ApplyClass", note)


def class_healed(policy: Subject, name: str, fields: Sequence[str]) -> Event:
    """Say that somebody else had changed a class, or deleted it (no fields)."""
    return Event(policy, "Warning", EventReason.DRIFT, "HealClass", _put_right(f"DeviceClass {name}", fields))


def access_healed(policy: Subject, what: str, fields: Sequence[str]) -> Event:
    """Say that somebody else had changed what enforces `spec.access`, or deleted it (no fields)."""
    return Event(policy, "Warning", EventReason.DRIFT, "HealAccess", _put_right(what, fields))


def _put_right(what: str, fields: Sequence[str]) -> str:
    how = f"was changed by somebody else ({', '.join(fields)})" if fields else "was deleted by somebody else"
    return f"{what} {how} and was put right; change the policy instead"


def class_deleted(policy: Subject, name: str) -> Event:
    """Say that a class is offered no more."""
    note = f"DeviceClass {name} was deleted: the policy offers it no more"
    return Event(policy, "Normal", EventReason.CLASS_DELETED, "DeleteClass", note)


def name_taken(loser: Subject, resource: str, taker: str) -> Event:
    """Tell a foreign class that it lost its extended resource name."""
    note = f"{resource} now belongs to DeviceClass {taker}, which takes it over; deleting that class gives it back"
    return Event(loser, "Warning", EventReason.NAME_TAKEN, "MarkClass", note)


def name_returned(loser: Subject, resource: str) -> Event:
    """Tell a foreign class that it has its extended resource name again."""
    note = f"{resource} belongs to this class again"
    return Event(loser, "Normal", EventReason.NAME_RETURNED, "MarkClass", note)


def assigned(node: Subject, lines: Sequence[str]) -> Event:
    """Say which cards of a node changed hands."""
    return Event(node, "Normal", EventReason.ASSIGNED, "AssignCards", "; ".join(lines))


def policy_gone(node: Subject, policy: str, cards: int, claims: Sequence[str]) -> Event:
    """Say that the cards of a deleted policy are let go, and which claims still hold devices of it."""
    held = f"; still held by {listing(claims)}, which keep their devices until they end" if claims else ""
    note = f"policy {policy} is gone; {cards} card(s) are let go{held}"
    return Event(node, "Warning" if claims else "Normal", EventReason.POLICY_GONE, "ReleaseCards", note)


def worth_telling(before: Iterable[Condition], after: Iterable[Condition]) -> list[Condition]:
    """Return the conditions of a policy whose change is an event.

    That is every change of the summary in status or reason, and what deserves a second look. On the way to many nodes the
    reason goes back and forth between the stations of a rollout; that is told once.
    """
    known = {c.type: c for c in before}
    result = []
    for condition in after:
        old = known.get(condition.type)
        is_finding = condition.type == ConditionType.REVIEWED and condition.status == "False"
        if condition.type != ConditionType.READY and not is_finding:
            continue
        if old is None or old.status != condition.status or not _is_one_way(old.reason, condition.reason):
            result.append(condition)
    return result


def _is_one_way(old: str, new: str) -> bool:
    return old == new or {old, new} <= _STATIONS


def condition_changed(policy: Subject, condition: Condition) -> Event:
    """Say that a condition of a policy changed: its status or its reason."""
    bad = condition.status != "True" and condition.reason not in _UNDER_WAY
    text = condition.message or condition.reason
    return Event(policy, "Warning" if bad else "Normal", condition.reason, "Reconcile", text)


_STATIONS = frozenset({"RolloutPending", "WaitingForSlices", "WaitingForAgent"})
_UNDER_WAY = _STATIONS | {"Planned"}
