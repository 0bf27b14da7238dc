"""The node's devices in the API server: wished, shown, and hidden for long enough.

A thin layer over `kubeletplugin.SlicePublisher`: devices instead of wire objects, and the two questions that a layout
change asks. May the scheduler still see this device? And since when not? Between a wish and its fulfilment the API
server may show the old devices or the new ones, so a device may be shown when it is in either.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gpupolicy.adapters import kube
from gpupolicy.adapters.kubeletplugin import publisher, slices
from gpupolicy.api import names
from gpupolicy.core.devices import Device

_TAINTS: Final = "spec.devices[].taints"


class Publication:
    """What of the node is published.

    Args:
        client: the API server.
        node: name of the node.
        node_uid: its UID; the slices go with the node.
        on_change: called after something was written, dropped or failed; must not block.
    """

    def __init__(
        self, client: kube.Kube, node: str, node_uid: str, *, on_change: Callable[[], None] = lambda: None
    ) -> None:
        self._owner = slices.Owner(
            driver=names.DRIVER,
            node_name=node,
            node_uid=node_uid,
            labels={names.MANAGED_BY_LABEL: names.MANAGED_BY},
        )
        self._on_change = on_change
        self._publisher = publisher.SlicePublisher(
            _Store(client, node), kube.dropped_fields, on_change=self._changed
        )
        self._pool: slices.Pool | None = None
        self._wished: frozenset[str] = frozenset()
        self._confirmed: frozenset[str] = frozenset()
        # Wished for at any time since the last confirmation of a wish, so possibly written.
        self._possible: frozenset[str] = frozenset()
        self._confirmed_pool: slices.Pool | None = None
        self._first_confirmed_at: float | None = None
        self._hidden_since: dict[str, float] = {}
        self._settled = asyncio.Condition()
        self._news: set[asyncio.Task[None]] = set()
        self._reflector = kube.Reflector(
            client,
            kube.RESOURCE_SLICES,
            field_selector=f"spec.nodeName={node}",
            on_event=self._observed,
            transform=_trimmed,
        )

    @property
    def shown(self) -> frozenset[str]:
        """Names of the devices that the API server shows and is to show."""
        return self._wished & self._confirmed

    @property
    def is_settled(self) -> bool:
        """Whether the API server shows exactly what was wished for last."""
        return self._pool is not None and self._pool == self._confirmed_pool

    @property
    def taints_served(self) -> bool:
        """Whether the API server keeps taints, as far as is known."""
        return _TAINTS not in self._publisher.publication.dropped

    @property
    def dropped(self) -> tuple[str, ...]:
        """Fields that the API server did not keep."""
        return self._publisher.publication.dropped

    @property
    def problem(self) -> str:
        """Why the devices are not all published; empty when they are, or are being."""
        return self._publisher.publication.problem

    def publish(self, devices: Sequence[Device]) -> None:
        """Wish for exactly these devices, in this order."""
        pool = slices.Pool(
            name=names.pool_name(self._owner.node_name),
            devices=tuple(device.to_wire() for device in devices),
            # The first taint must not move devices from slice to slice.
            partitionable=True,
        )
        if pool == self._pool:
            return
        self._pool = pool
        self._wished = frozenset(device.name for device in devices)
        self._possible |= self._wished
        for name in self._wished:
            self._hidden_since.pop(name, None)
        self._publisher.publish(pool, self._owner)

    def may_be_shown(self, name: str, *, settle_seconds: float = 0.0) -> bool:
        """Return whether a scheduler may still allocate a device.

        Args:
            name: of the device.
            settle_seconds: how long an allocation from a cache may come after the device was hidden.
        """
        if self._first_confirmed_at is None or name in self._possible or name in self._confirmed:
            return True
        hidden_since = self._hidden_since.get(name, self._first_confirmed_at)
        return time.monotonic() - hidden_since < settle_seconds

    def wake(self) -> None:
        """Look at the live slices now: the kubelet has just registered us, and wiped them if it was restarted."""
        self._publisher.wake()

    async def settled(self) -> None:
        """Wait until the API server shows exactly what was wished for last."""
        async with self._settled:
            await self._settled.wait_for(lambda: self.is_settled)

    async def run(self) -> None:
        """Keep the slices until cancelled; they stay afterwards."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reflector.run())
            group.create_task(self._publisher.run())

    def _observed(self, event: kube.Event) -> None:
        self._publisher.observe(event.change, event.object)

    def _changed(self, publication: publisher.Publication) -> None:
        if publication.complete and publication.pool is not None:
            self._confirmed_pool = publication.pool
            confirmed = frozenset(str(device["name"]) for device in publication.pool.devices)
            now = time.monotonic()
            if self._first_confirmed_at is None:
                self._first_confirmed_at = now
            if self.is_settled:
                for name in (self._possible | self._confirmed) - confirmed:
                    self._hidden_since[name] = now
                self._possible = self._wished
            self._confirmed = confirmed if self.is_settled else self._confirmed | confirmed
            task = asyncio.ensure_future(self._tell())
            self._news.add(task)
            task.add_done_callback(self._news.discard)
        self._on_change()

    async def _tell(self) -> None:
        async with self._settled:
            self._settled.notify_all()


class _Store:
    """The slices of our driver on this node."""

    def __init__(self, client: kube.Kube, node: str) -> None:
        self._client = client
        self._node = node

    async def list(self) -> Sequence[slices.Object]:
        selector = f"spec.nodeName={self._node},spec.driver={names.DRIVER}"
        try:
            found = await self._client.list(kube.RESOURCE_SLICES, field_selector=selector)
        except kube.NotFound as error:
            # A list finds nothing only where the kind itself is missing, which the server's words do not say.
            text = f"the API server does not serve {kube.RESOURCE_SLICES}; GpuPolicy needs Kubernetes 1.34 or later"
            raise kube.NotFound(error.status, error.reason, text) from error
        return found.items

    async def create(self, item: slices.Object, *, dry_run: bool = False) -> slices.Object:
        return await self._client.create(kube.RESOURCE_SLICES, item, dry_run=dry_run)

    async def replace(self, item: slices.Object) -> slices.Object:
        return await self._client.replace(kube.RESOURCE_SLICES, item)

    async def delete(self, item: slices.Object) -> None:
        metadata = item["metadata"]
        try:
            await self._client.delete(kube.RESOURCE_SLICES, metadata["name"], uid=metadata.get("uid"))
        except kube.NotFound:
            return


def _trimmed(item: Mapping[str, Any]) -> kube.Object | None:
    """Keep of a slice only what tells whose it is: the publisher reads the content when it needs it."""
    spec = item.get("spec") or {}
    if spec.get("driver") != names.DRIVER:
        return None
    metadata = item["metadata"]
    return {
        "metadata": {key: metadata[key] for key in ("name", "uid", "resourceVersion") if key in metadata},
        "spec": {"driver": spec["driver"]},
    }
