"""Keeps what enforces `spec.access` in line: an admission policy with its binding, and quotas.

What stands is read from the copies that the watches keep, so nothing is asked at rest, and an edit by hand is put right as
soon as the watch tells of it. An object is written when it differs from what is wanted. What is not wanted any more is
deleted if the policy is its owner. An object of somebody else with the same name is neither deleted nor written; it refuses
the policy.

A controller may lack the right to watch one of these kinds, or to write it. That refuses the policies that need the kind,
and no other.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpupolicy.adapters import kube
from gpupolicy.api import names
from gpupolicy.api.conditions import Reason
from gpupolicy.controller import events, pacing
from gpupolicy.controller.world import PolicyEntry, World
from gpupolicy.core import access, access_objects
from gpupolicy.core.access_objects import LiveObject
from gpupolicy.core.classes import DesiredClass
from gpupolicy.core.refusals import Refusal, listing

RESOURCES: Final[Mapping[str, kube.Resource]] = {
    access_objects.POLICY_KIND: kube.VALIDATING_ADMISSION_POLICIES,
    access_objects.BINDING_KIND: kube.VALIDATING_ADMISSION_POLICY_BINDINGS,
    access_objects.QUOTA_KIND: kube.RESOURCE_QUOTAS,
}
"""The kinds that are watched and written for `spec.access`."""

_LONGEST_PAUSE_SECONDS: Final = 10.0
"""Between two repairs of one object: what somebody opens again and again is not left open for minutes."""

_MANAGER: Final = names.CONTROLLER_FIELD_MANAGER


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it.

    Attributes:
        refusal: why access cannot be as wanted; None where it is.
        posts: what to tell of objects that somebody else had changed.
        again_seconds: when to come back for what somebody undoes each time; None where there is no such thing.
    """

    refusal: Refusal | None = None
    posts: tuple[events.Event, ...] = ()
    again_seconds: float | None = None


class AccessWriter:
    """Brings the objects of policies in line; one instance per process.

    Args:
        client: the API server.
        world: the copies.
        unreadable: why the objects of a kind cannot be watched; empty where they can.
    """

    def __init__(self, client: kube.Kube, world: World, unreadable: Callable[[str], str]) -> None:
        self._client = client
        self._world = world
        self._unreadable = unreadable
        self._settled: dict[access_objects.Key, tuple[Mapping[str, Any], LiveObject]] = {}
        """What was wanted of an object when it was last seen to be right, and how it stood then."""
        self._repairs = pacing.Pacing(longest_seconds=_LONGEST_PAUSE_SECONDS)

    async def write(self, entry: PolicyEntry, wishes: Sequence[DesiredClass]) -> Outcome:
        """Write what a policy wants and what does not stand yet.

        Raises:
            ApiError: the API server refused or did not answer.
        """
        spec = entry.policy.spec.access
        problem = access.refusal(spec, wishes)
        if problem is not None:
            return Outcome(problem)
        wanted = access.objects(entry.name, entry.uid, spec, wishes)
        if problem := self._unwatched(wanted):
            return Outcome(problem)
        posts, missing, taken, pauses = [], [], [], []
        # A fence that is wider than before comes first, one that goes goes last: nobody is let in by the way.
        for body in wanted:
            live = self._world.access.get(access_objects.key_of(body))
            fields = self._differences(body, live)
            if live is not None and not fields:
                self._settled[live.key] = (body, live)
                continue
            is_repair = self._was_right(body)
            if is_repair and (pause := self._repairs.due_seconds(access_objects.key_of(body))):
                pauses.append(pause)
                continue
            standing = live or await self._read(body)
            if standing is not None and not standing.belongs_to(entry.name, entry.uid):
                taken.append(_title(standing))
                continue
            stored = await self._bring(body, standing)
            if stored is None:
                missing.append(body["metadata"]["namespace"])
                continue
            if is_repair:
                self._repairs.note(stored.key)
                posts.append(_healed(entry, stored, fields))
            self._settled[stored.key] = (body, stored)
            self._world.put_access(stored)
        for live in access_objects.obsolete(wanted, self._world.access.values(), entry.uid):
            await self._delete(live)
        return Outcome(_obstacle(missing, taken), tuple(posts), min(pauses, default=None))

    def forget(self, uid: str) -> None:
        """Forget a policy that is gone; its objects go with it."""
        self._settled = {
            key: (body, live) for key, (body, live) in self._settled.items() if uid not in live.owner_uids
        }

    def _unwatched(self, wanted: Sequence[Mapping[str, Any]]) -> Refusal | None:
        """Return that a kind of what is wanted cannot be watched, so that nobody would see it go."""
        for kind in sorted({body["kind"] for body in wanted}):
            if text := self._unreadable(kind):
                return _missing_right(text)
        return None

    def _differences(self, body: Mapping[str, Any], live: LiveObject | None) -> tuple[str, ...]:
        """Return in what an object is not as wanted; nothing where it stands as our last write left it."""
        if live is None:
            return ()
        known = self._settled.get(live.key)
        if known is not None and known[0] == body and known[1].spec == live.spec:
            # What a server newer than this program fills in is no drift, and would be written for ever.
            return tuple(f for f in access_objects.drift(body, live) if not f.startswith("spec."))
        return access_objects.drift(body, live)

    def _was_right(self, body: Mapping[str, Any]) -> bool:
        known = self._settled.get(access_objects.key_of(body))
        return known is not None and known[0] == body

    async def _read(self, body: Mapping[str, Any]) -> LiveObject | None:
        """Return what has the name of an object and not the labels by which the watches find ours; None: nothing."""
        kind, namespace, name = access_objects.key_of(body)
        try:
            return LiveObject.of(kind, await self._client.get(RESOURCES[kind], name, namespace or None))
        except kube.NotFound:
            return None

    async def _bring(self, body: Mapping[str, Any], standing: LiveObject | None) -> LiveObject | None:
        """Write an object; return it as stored, None where its namespace is not there.

        Args:
            body: the object.
            standing: ours as it stands. Without it nothing is forced: what has the name by now is somebody else's.
        """
        kind = body["kind"]
        resource = RESOURCES[kind]
        if standing is not None:
            body = {**body, "metadata": {**body["metadata"], "uid": standing.uid}}
        try:
            stored = await self._client.apply(
                resource, dict(body), field_manager=_MANAGER, force=standing is not None
            )
        except kube.NotFound:
            return None
        except kube.Forbidden as error:
            if any(cause.reason == "NamespaceTerminating" for cause in error.causes):
                return None
            raise
        if access_objects.drift(body, LiveObject.of(kind, stored)):
            # An apply leaves what others have added; here it must go.
            meta = {k: v for k, v in stored["metadata"].items() if k != "managedFields"}
            whole = {**stored, "metadata": meta, "spec": body["spec"]}
            stored = await self._client.replace(resource, whole, field_manager=_MANAGER)
        return LiveObject.of(kind, stored)

    async def _delete(self, live: LiveObject) -> None:
        with contextlib.suppress(kube.NotFound, kube.Conflict):
            await self._client.delete(RESOURCES[live.kind], live.name, live.namespace or None, uid=live.uid)
        self._settled.pop(live.key, None)
        self._world.drop_access(live.key, live.uid)


def _obstacle(missing: Sequence[str], taken: Sequence[str]) -> Refusal | None:
    """Return why not all could be written: namespaces that are not there, names that somebody else has."""
    if taken:
        text = f"{listing(taken)} exists and was not made by GpuPolicy; delete it, or make it again under another name"
        return Refusal(Reason.RESOURCE_NAME_CONFLICT, f"spec.access: {text}")
    if missing:
        text = f"there is no namespace {listing(missing)}; create it or remove the entry"
        return Refusal(Reason.INVALID_POLICY, f"spec.access.quotas: {text}")
    return None


def _missing_right(text: str) -> Refusal:
    return Refusal(
        Reason.DEGRADED,
        f"what enforces spec.access of this policy cannot be watched; add the right to the controller's ClusterRole: {text}",
    )


def _healed(entry: PolicyEntry, stored: LiveObject, fields: tuple[str, ...]) -> events.Event:
    return events.access_healed(events.Subject.policy(entry.name, entry.uid), _title(stored), fields)


def _title(live: LiveObject) -> str:
    return f"{live.kind} {live.name}" + (f" of namespace {live.namespace}" if live.namespace else "")
