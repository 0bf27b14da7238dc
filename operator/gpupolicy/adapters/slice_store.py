"""Gives the slice publisher its API server: the ResourceSlices of one driver on one node, through our client.

The publisher is part of a library that knows no client; this module joins the two.
"""

from collections.abc import Sequence

from gpupolicy.adapters import kube
from gpupolicy.adapters.kubeletplugin import publisher


class KubeSliceStore:
    """Implements `publisher.SliceStore`.

    Args:
        client: the API server.
        driver: name of the driver.
        node_name: name of the node.
        field_manager: in whose name slices are written.
    """

    def __init__(self, client: kube.Kube, driver: str, node_name: str, field_manager: str) -> None:
        self._client = client
        self._selector = f"spec.nodeName={node_name},spec.driver={driver}"
        self._field_manager = field_manager

    async def list(self) -> Sequence[kube.Object]:
        """Return the live slices of the driver on the node."""
        found = await self._client.list(kube.RESOURCE_SLICES, field_selector=self._selector)
        return found.items

    async def create(self, item: kube.Object, *, dry_run: bool = False) -> kube.Object:
        """Create a slice; return it as stored, or as it would be."""
        return await self._client.create(
            kube.RESOURCE_SLICES, item, field_manager=self._field_manager, dry_run=dry_run
        )

    async def replace(self, item: kube.Object) -> kube.Object:
        """Replace a slice if it is still the version that the metadata names; return it as stored."""
        return await self._client.replace(kube.RESOURCE_SLICES, item, field_manager=self._field_manager)

    async def delete(self, item: kube.Object) -> None:
        """Delete this very slice; one that is gone, or whose name another took, is fine."""
        metadata = item["metadata"]
        try:
            await self._client.delete(kube.RESOURCE_SLICES, metadata["name"], uid=metadata["uid"])
        except (kube.NotFound, kube.Conflict):
            return

    def reflector(self, target: publisher.SlicePublisher) -> kube.Reflector:
        """Return a copy of the same slices that tells the publisher of every change; run it next to the publisher."""
        return kube.Reflector(
            self._client,
            kube.RESOURCE_SLICES,
            field_selector=self._selector,
            on_event=lambda event: target.observe(event.change, event.object),
        )
