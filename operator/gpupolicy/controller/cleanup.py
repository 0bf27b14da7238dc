"""Makes cards whole again where they are idle, before an uninstallation: the job of the chart's `cleanup=true`.

    the Lease is seized ─> the leader before has stopped ─> cards are released ─> agents answer, or the time is over

Only the holder of the Lease writes the spec of GpuNodes, so no controller takes back what is written here. Nothing is
given back at the end: candidates leave the Lease alone for `REST_SECONDS` more, by which time Helm has removed them.
If it has not, one of them leads again and the policies count again; nothing has to be repaired by hand.

One that was interrupted leaves the Lease taken for as long as it might have needed. The next one does not wait that long:
whoever led before both of them has stopped after the time that leaders take, and two clean-ups write the same.

Nothing of this decides what may be destroyed. That is for the agents, which have the ledger and see who uses what.
"""

import asyncio
import math
import sys
import time
from collections.abc import Callable
from typing import Final

import pydantic

from gpupolicy.adapters import kube
from gpupolicy.api import names
from gpupolicy.api.node import GpuNode
from gpupolicy.core import cleanup, render
from gpupolicy.core.observation import ObservedNode, Reader

REST_SECONDS: Final = 30
"""How long no controller leads after the end."""

LEADER_SECONDS: Final = 30
"""For how long a leader takes the Lease at most; a longer time is that of a clean-up."""

_LOOK_SECONDS: Final = 1.0
_SLACK_SECONDS: Final = 60
"""For requests that take longer than they should: nobody else may take the Lease before the end."""


class Cleanup:
    """One run.

    Args:
        client: the API server.
        namespace: of the Lease.
        lease: name of the Lease.
        identity: who holds it meanwhile.
        seconds: how long to wait for agents.
        stale_after_seconds: an agent that has been silent for longer than this is not waited for.
        tell: takes a line for the admin.
    """

    def __init__(
        self,
        client: kube.Kube,
        namespace: str,
        lease: str,
        identity: str,
        *,
        seconds: float,
        stale_after_seconds: float,
        tell: Callable[[str], None],
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._lease = lease
        self._identity = identity
        self._seconds = seconds
        self._stale_after = stale_after_seconds
        self._tell = tell
        self._reader = Reader()
        self._unreadable: set[str] = set()

    async def run(self) -> None:
        """Release all cards and wait for the agents, but not for longer than agreed.

        Raises:
            ApiError: the API server refuses what has to be done.
        """
        if not await self._client.serves(kube.GPUNODES):
            self._tell("The CRDs are gone, so no agent can be told anything. Nothing was cleaned up.")
            return
        before = await self._seize(math.ceil(self._seconds) + _SLACK_SECONDS)
        if before:
            self._tell(f"Waiting {before:.0f} s for the controller to stop")
            await asyncio.sleep(before)
            await self._seize(math.ceil(self._seconds) + _SLACK_SECONDS)
        silent = await self._release()
        outcomes = await self._answers(silent)
        self._sum_up(outcomes)
        await self._seize(REST_SECONDS)

    async def _seize(self, seconds: int) -> float:
        """Take the Lease for so many seconds; return how long the leader before may still act."""
        held = await kube.seize(self._client, self._namespace, self._lease, self._identity, seconds=seconds)
        return min(held, LEADER_SECONDS)

    async def _nodes(self) -> list[ObservedNode]:
        nodes = []
        for body in (await self._client.list(kube.GPUNODES)).items:
            try:
                nodes.append(self._reader.read(GpuNode.model_validate(body)))
            except pydantic.ValidationError:
                name = body["metadata"]["name"]
                if name not in self._unreadable:
                    self._tell(
                        f"{name}: left as it is: its GpuNode cannot be read; is it of another release?"
                    )
                self._unreadable.add(name)
        return nodes

    async def _release(self) -> set[str]:
        """Release the cards of every node; return the nodes whose agents have been silent for too long."""
        silent = set()
        for node in await self._nodes():
            wanted = cleanup.releases(node)
            if not wanted and not node.assignments:
                continue
            patch = {
                "metadata": {"uid": node.uid},
                "spec": {"gpus": [], "releases": [release.to_wire() for release in wanted]},
            }
            try:
                await self._client.patch(
                    kube.GPUNODES, node.name, patch, field_manager=names.CONTROLLER_FIELD_MANAGER
                )
            except (kube.NotFound, kube.Conflict):
                continue
            moment = render.parse_timestamp(node.last_observed_time)
            if moment is None or time.time() - moment.timestamp() > self._stale_after:
                silent.add(node.name)
        return silent

    async def _answers(self, silent: set[str]) -> list[cleanup.NodeOutcome]:
        """Wait until every agent that is not silent has answered, or the time is over."""
        end = time.monotonic() + self._seconds
        while True:
            outcomes = [cleanup.outcome(node) for node in await self._nodes() if node.releases]
            awaited = [o for o in outcomes if o.pending and o.node not in silent]
            if not awaited or time.monotonic() >= end:
                return sorted(outcomes, key=lambda o: o.node)
            await asyncio.sleep(_LOOK_SECONDS)

    def _sum_up(self, outcomes: list[cleanup.NodeOutcome]) -> None:
        for found in outcomes:
            self._tell(cleanup.report(found))
        whole = sum(len(o.whole) for o in outcomes)
        left = sum(len(o.left or {}) for o in outcomes)
        unheard = sum(bool(o.pending) for o in outcomes)
        self._tell(
            f"{whole} cards are whole, {left} are left as they are, {unheard} nodes did not finish. "
            "Pods run on. What is left can be removed on the node (nvidia-smi mig -dci, -dgi; nvidia-smi -mig 0)."
        )


def print_line(line: str) -> None:
    """Print one line at once; Helm shows them."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
