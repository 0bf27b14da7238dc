"""What the Node object says: its UID, and whether a device plugin hands out its cards.

A Node that was deleted and made again has another UID. What we own belongs to the Node of before then, and is
collected as often as we make it; so the agent has to begin anew.

A device plugin and DRA do not count each other's pods, so we offer nothing while a plugin advertises anything. A
plugin that restarts disappears for a moment; only when it has been gone at two looks in a row is it gone. Resources
of capacity without allocatable are what a removed plugin leaves behind, and mean nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from gpupolicy.adapters import kube, logs
from gpupolicy.api import names

_log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 30.0
_RETRY_SECONDS: Final = 2.0


def advertised(node: Mapping[str, Any]) -> str:
    """Return what a device plugin advertises on a node, in words; empty where nothing is allocatable."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    found = {
        name: amount
        for name, amount in allocatable.items()
        if name.startswith(names.DEVICE_PLUGIN_RESOURCES) and amount not in ("0", 0)
    }
    return ", ".join(f"{name}: {amount}" for name, amount in sorted(found.items()))


class NodeWatch:
    """Looks at the Node now and then.

    Args:
        client: the API server.
        node: name of the node.
        on_change: called when what a device plugin advertises changed.
    """

    def __init__(self, client: kube.Kube, node: str, *, on_change: Callable[[], None] = lambda: None) -> None:
        self._client = client
        self._node = node
        self.on_change = on_change
        self.on_replaced: Callable[[], None] = lambda: None
        """Called when the Node is another one than the one whose UID was given out."""
        self._uid = ""
        self._absent = 0
        self._trouble = logs.Trouble(_log)
        self.device_plugin = ""
        """What a device plugin advertises, in words; empty where none does."""

    async def uid(self) -> str:
        """Return the UID of the Node, waiting until it exists and can be read."""
        while True:
            try:
                node = await self._client.get(kube.NODES, self._node)
            except kube.KubeError as error:
                self._trouble.tell(str(error), "Node %s cannot be read, trying again: %s", self._node, error)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            # What it says at the start is believed at once: nothing has been offered yet.
            self.device_plugin = advertised(node)
            self._uid = str(node["metadata"]["uid"])
            return self._uid

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                node = await self._client.get(kube.NODES, self._node)
            except kube.KubeError as error:
                self._trouble.tell(str(error), "Node %s cannot be read, trying again: %s", self._node, error)
                continue
            self._trouble.over("Node %s can be read again", self._node)
            if self._uid and str(node["metadata"]["uid"]) != self._uid:
                _log.warning("Node %s was deleted and made again; the agent begins anew", self._node)
                self.on_replaced()
            self._judge(advertised(node))

    def _judge(self, found: str) -> None:
        self._absent = 0 if found else self._absent + 1
        if found == self.device_plugin or (not found and self._absent < 2):  # noqa: PLR2004 - see the module
            return
        _log.warning("the device plugin of node %s advertises: %s", self._node, found or "nothing any more")
        self.device_plugin = found
        self.on_change()
