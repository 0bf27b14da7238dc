"""The node's GpuNode object: its spec is read, its status is written, and what changed is told in events.

The object is made if it is missing, with the spec that was read last: whoever deletes it by hand must not withdraw
devices, nor have the controller forget who has which card. Its status is applied when it changed, and every few
minutes so that its reader can tell a quiet agent from a dead one. Writing is a task of its own: an API server that
is away delays nothing else, and of several statuses that came meanwhile only the last is written.
"""

import asyncio
import datetime as dt
import logging
from collections.abc import Callable
from typing import Final

from pydantic import ValidationError

from gpupolicy.adapters import kube, logs
from gpupolicy.agent.state import Wakeup
from gpupolicy.api import names
from gpupolicy.api.node import GpuNode, GpuNodeSpec, GpuNodeStatus, ProcessStatus
from gpupolicy.core.node_events import Notice, changes

_log = logging.getLogger(__name__)

CONFIRM_SECONDS: Final = 180.0
"""How often an unchanged status is written again."""
PROCESS_SECONDS: Final = 60.0
"""How soon it is written when only other processes run than before: with short ones that is so at every look, and each
write goes to the controller too."""
_PAUSE_SECONDS: Final = 0.3
"""Least time between two writes, so that the steps of one change become one write."""
_RETRY_SECONDS: Final = (1.0, 30.0)


class GpuNodeObject:
    """The one GpuNode of this node.

    Args:
        client: the API server.
        node: name of the node, and of the object.
        node_uid: UID of the Node, which owns the object.
        on_spec: called when the spec changed; must not block.
    """

    def __init__(self, client: kube.Kube, node: str, node_uid: str, *, on_spec: Callable[[], None]) -> None:
        self._client = client
        self._node = node
        self._node_uid = node_uid
        self._on_spec = on_spec
        self._spec: GpuNodeSpec | None = None
        self._uid = ""
        self._wish: GpuNodeStatus | None = None
        self._written: GpuNodeStatus | None = None
        self._wakeup = Wakeup()
        self._trouble = logs.Trouble(_log)
        self.generation = 0
        self.problem = ""
        """Why the spec cannot be read; empty when it can."""
        self._reflector = kube.Reflector(
            client, kube.GPUNODES, field_selector=f"metadata.name={node}", on_event=self._observed
        )

    @property
    def spec(self) -> GpuNodeSpec | None:
        """What the node's cards are to be; None until it was read once."""
        return self._spec

    @property
    def status(self) -> GpuNodeStatus | None:
        """The status that was wished for last, or else found."""
        return self._wish or self._written

    def report(self, status: GpuNodeStatus) -> None:
        """Wish for this status."""
        if status == self._wish:
            return
        is_news = self._wish is None or _essence(status) != _essence(self._wish)
        self._wish = status
        if is_news:
            self._wakeup.set()
        else:
            self._wakeup.set_within(PROCESS_SECONDS)

    async def run(self) -> None:
        """Read and write the object until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reflector.run())
            group.create_task(self._keep())

    def _observed(self, event: kube.Event) -> None:
        if event.change is kube.Change.DELETED:
            _log.warning(
                "GpuNode %s was deleted; it is made again, and its last spec holds meanwhile", self._node
            )
            self._uid = ""
            self._written = None
            self._wakeup.set()
            return
        try:
            found = GpuNode.model_validate(event.object)
        except ValidationError as error:
            # Written past the schema, or by a controller that is newer than we can read: what holds goes on holding.
            self.problem = (
                f"GpuNode {self._node} cannot be read: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}"
            )
            _log.error("%s", self.problem)
            self._on_spec()
            return
        self.problem = ""
        if self._written is None:
            self._written = found.status if found.status.conditions else None
        if self._uid != found.metadata.uid or (found.spec, found.metadata.generation) != (
            self._spec,
            self.generation,
        ):
            self._uid = found.metadata.uid
            self._spec, self.generation = found.spec, found.metadata.generation
            self._on_spec()

    async def _keep(self) -> None:
        pause = _RETRY_SECONDS[0]
        await self._ensure()
        while True:
            await self._wakeup.wait(CONFIRM_SECONDS)
            try:
                await self._write()
            except kube.NotFound:
                await self._ensure()
                self._wakeup.set()
            except kube.KubeError as error:
                self._trouble.tell(
                    _kind(error), "the status of GpuNode %s was not written: %s", self._node, error
                )
                self._wakeup.set()
                await asyncio.sleep(pause)
                pause = min(2 * pause, _RETRY_SECONDS[1])
                continue
            pause = _RETRY_SECONDS[0]
            self._trouble.over("the status of GpuNode %s is written again", self._node)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _ensure(self) -> None:
        """Make the object unless it exists, trying until the API server lets us."""
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": self._node_uid}
        metadata = {
            "name": self._node,
            "labels": {names.MANAGED_BY_LABEL: names.MANAGED_BY},
            "ownerReferences": [owner],
        }
        pause = _RETRY_SECONDS[0]
        while True:
            body = {"metadata": metadata, "spec": {} if self._spec is None else self._spec.to_wire()}
            try:
                await self._client.create(kube.GPUNODES, body)
            except kube.AlreadyExists:
                return
            except kube.KubeError as error:
                self._trouble.tell(_kind(error), "GpuNode %s was not made: %s", self._node, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _RETRY_SECONDS[1])
            else:
                return

    async def _write(self) -> None:
        wish = self._wish
        if wish is None:
            return
        now = dt.datetime.now(dt.UTC)
        status = wish.model_copy(
            update={"last_observed_time": now.isoformat(timespec="seconds").replace("+00:00", "Z")}
        )
        body = {"metadata": {"name": self._node}, "status": status.to_wire()}
        stored = await kube.apply_status(
            self._client, kube.GPUNODES, body, field_manager=names.AGENT_FIELD_MANAGER
        )
        told, self._written = self._written, status
        for notice in changes(told, status):
            await self._post(stored, notice, now)

    async def _post(self, about: kube.Object, notice: Notice, now: dt.datetime) -> None:
        await self._client.create_event(
            about,
            type_="Warning" if notice.is_warning else "Normal",
            reason=notice.reason,
            note=notice.message,
            action=notice.action,
            controller=names.AGENT_COMPONENT,
            instance=self._node,
            now=now,
        )


def _essence(status: GpuNodeStatus) -> GpuNodeStatus:
    """Return a status that tells whether processes run, and not which."""
    gpus = [
        gpu.model_copy(
            update={
                "processes": gpu.processes and [_SOME],
                "instances": [
                    instance.model_copy(update={"processes": instance.processes and [_SOME]})
                    for instance in gpu.instances
                ],
            }
        )
        for gpu in status.gpus
    ]
    return status.model_copy(update={"gpus": gpus})


_SOME: Final = ProcessStatus(pid=0)


def _kind(error: kube.KubeError) -> str:
    return error.reason if isinstance(error, kube.ApiError) else type(error).__name__
