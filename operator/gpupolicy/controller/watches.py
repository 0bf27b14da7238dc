"""Keeps the copies up to date and says what a change concerns: one reflector per secondary kind, one router.

Policies are watched by kopf (`policy_watch`). The other kinds have a reflector each: there may be thousands of those
objects, of which only a few fields matter, and a reflector keeps the trimmed form, compares after a lost history, and
reports deletions that happened meanwhile.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpupolicy.adapters import kube
from gpupolicy.api import names
from gpupolicy.controller import reconcile
from gpupolicy.controller.access import RESOURCES
from gpupolicy.controller.queue import WorkQueue
from gpupolicy.controller.world import World
from gpupolicy.core import access, access_objects, tally
from gpupolicy.core.access_objects import LiveObject
from gpupolicy.core.classes import LiveClass

_KEPT: Final = "kept"
"""Where a reflector's object holds what the transform read."""


class Router:
    """Takes changes into the world and adds the keys that they concern."""

    def __init__(self, world: World, queue: WorkQueue[reconcile.Key]) -> None:
        self._world = world
        self._queue = queue

    def policy(self, body: Mapping[str, Any], *, deleted: bool) -> None:
        """Take a change of a policy."""
        meta = body.get("metadata") or {}
        name, uid = meta.get("name", ""), meta.get("uid", "")
        before = self._world.policies.get(name)
        changed = self._world.drop_policy(name, uid) if deleted else self._world.put_policy(body)
        # The status is ours, yet somebody may have edited it: then it is put right.
        if changed or self._world.policies.get(name) is not before:
            self._queue.add(reconcile.policy_key(name))

    def gpu_node(self, event: kube.Event) -> None:
        """Take a change of a GpuNode."""
        name = event.key[1]
        concerned = self._world.policies_of(name)
        if event.change is kube.Change.DELETED:
            changed = self._world.drop_node(name, event.object[_KEPT].uid)
        else:
            changed = self._world.put_node(event.object[_KEPT])
        if changed:
            self._queue.add(reconcile.node_key(name))
            self._add_policies(concerned | self._world.policies_of(name))

    def node(self, event: kube.Event) -> None:
        """Take a change of a node's labels."""
        name = event.key[1]
        concerned = self._world.policies_of(name)
        if event.change is kube.Change.DELETED:
            self._world.labels.pop(name, None)
        else:
            self._world.labels[name] = event.object[_KEPT]
        if name in self._world.nodes:
            self._queue.add(reconcile.node_key(name))
            self._add_policies(concerned | self._world.policies_of(name))

    def device_class(self, event: kube.Event) -> None:
        """Take a change of a DeviceClass. Any class may stand in the way of any policy, and classes are few."""
        name = event.key[1]
        if event.change is kube.Change.DELETED:
            changed = self._world.drop_class(name, event.object[_KEPT].uid)
        else:
            changed = self._world.put_class(event.object[_KEPT])
        if changed:
            self._add_policies(set(self._world.policies))
            self._queue.add(reconcile.NAMES_KEY)

    def access_object(self, event: kube.Event) -> None:
        """Take a change of an object that enforces `spec.access`: one that is not as its policy wants it is put right."""
        live: LiveObject = event.object[_KEPT]
        if event.change is kube.Change.DELETED:
            changed = self._world.drop_access(live.key, live.uid)
        else:
            changed = self._world.put_access(live)
        if changed:
            self._add_policies({access.policy_of(live.name)})

    def resource_slice(self, event: kube.Event) -> None:
        """Take a change of a slice of our driver."""
        old = event.previous[_KEPT] if event.previous is not None else None
        concerned = self._world.policies_in(old.pool) if old is not None else set()
        if event.change is kube.Change.DELETED:
            pools = self._world.drop_slice(event.key[1])
        else:
            pools = self._world.put_slice(event.object[_KEPT])
        for pool in pools:
            concerned |= self._world.policies_in(pool)
            concerned |= self._world.policies_of(names.node_of_pool(pool))
        self._add_policies(concerned)

    def claim(self, event: kube.Event) -> None:
        """Take a change of what a claim holds."""
        held = () if event.change is kube.Change.DELETED else event.object[_KEPT]
        for pool in self._world.put_claim(event.object["metadata"]["uid"], held):
            self._add_policies(self._world.policies_in(pool))

    def _add_policies(self, policies: set[str]) -> None:
        for name in policies:
            if name in self._world.policies:
                self._queue.add(reconcile.policy_key(name))


@dataclass(frozen=True, slots=True)
class _Watch:
    resource: kube.Resource
    read: Callable[[kube.Object], Any]
    """Returns what is kept of an object; None drops it."""
    take: Callable[[kube.Event], None]
    field_selector: str | None = None
    label_selector: str | None = None


def reflectors(client: kube.Kube, world: World, router: Router) -> list[kube.Reflector]:
    """Return the reflectors of the kinds that the controller cannot do without; the caller runs them."""
    watches = (
        _Watch(kube.GPUNODES, world.read_node, router.gpu_node),
        _Watch(kube.NODES, _labels, router.node),
        _Watch(kube.DEVICE_CLASSES, LiveClass.of, router.device_class),
        _Watch(
            kube.RESOURCE_SLICES,
            tally.PublishedSlice.of,
            router.resource_slice,
            field_selector=f"spec.driver={names.DRIVER}",
        ),
        # Claims cannot be selected by driver on the server; those that hold nothing of ours are dropped on arrival.
        _Watch(kube.RESOURCE_CLAIMS, lambda body: tally.holdings(body) or None, router.claim),
    )
    return _reflectors(client, watches, world)


def access_reflectors(client: kube.Kube, world: World, router: Router) -> list[kube.Reflector]:
    """Return the reflectors of what enforces `spec.access`; where one is refused, only policies that need it suffer."""
    return _reflectors(
        client,
        [
            _Watch(
                resource,
                functools.partial(LiveObject.of, kind),
                router.access_object,
                label_selector=access_objects.LABEL_SELECTOR,
            )
            for kind, resource in RESOURCES.items()
        ],
        world,
    )


def _reflectors(client: kube.Kube, watches: Iterable[_Watch], world: World) -> list[kube.Reflector]:
    return [
        kube.Reflector(
            client,
            watch.resource,
            field_selector=watch.field_selector,
            label_selector=watch.label_selector,
            on_event=watch.take,
            on_rewind=world.forget_versions,
            transform=_transform(watch.read),
        )
        for watch in watches
    ]


def _transform(read: Callable[[kube.Object], Any]) -> kube.Transform:
    def trim(body: kube.Object) -> kube.Object | None:
        kept = read(body)
        if kept is None:
            return None
        # Without the version: a change of nothing that is kept is no event.
        metadata = {key: body["metadata"].get(key, "") for key in ("namespace", "name", "uid")}
        return {"metadata": metadata, _KEPT: kept}

    return trim


def _labels(body: kube.Object) -> dict[str, str]:
    return dict(body["metadata"].get("labels") or {})
