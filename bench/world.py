"""One node with eight simulated H100s on a real control plane: what the benchmarks of agent and claims share.

Kubelet, agent and controller run as processes with the identities and rights of the chart. The benchmark is the admin
who applies policies and allocates claims, and it is the kubelet on the agent's socket.
"""

import asyncio
import contextlib
import itertools
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from grpclib.client import Channel, UnaryUnaryMethod

from gpupolicy.adapters import kube
from gpupolicy.adapters.kubeletplugin import messages
from gpupolicy.api import names
from tests.cluster.cluster import Cluster
from tests.cluster.node import Node
from tests.cluster.process import Daemon
from tests.stack import NAMESPACE, GpuNodeOptions, Stack

NODE: Final = "bench-01"
POLICY: Final = "bench"
CARDS: Final = 8
LAYOUT: Final = {"1g.10gb": 7}
"""The layout of the benchmarks of MIG claims: as many slices as a card can have."""

_SERVICE: Final = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
_READY_SECONDS: Final = 90.0
_CALL_SECONDS: Final = 45.0


def exclusive() -> dict[str, Any]:
    """Return the sharing of whole cards."""
    return {"strategy": "Exclusive"}


def mig(layout: Mapping[str, int] = LAYOUT) -> dict[str, Any]:
    """Return the sharing of a static layout."""
    entries = [{"profile": profile, "count": count} for profile, count in layout.items()]
    return {"strategy": "MIG", "mig": {"layout": entries}}


class World:
    """The running node. `start` makes it."""

    def __init__(self, stack: Stack, node: Node) -> None:
        self.stack = stack
        self.node = node
        self._names = itertools.count()

    @classmethod
    @contextlib.contextmanager
    def start(cls) -> Iterator[Self]:
        """Start everything, and stop it at the end."""
        with Cluster.start() as cluster:
            stack = Stack(cluster)
            stack.install()
            stack.start_controller()
            cards = GpuNodeOptions(name=NODE, pool=POLICY, gpus=CARDS)
            (node,) = stack.add_nodes(cards, agents=False)
            stack.make_cards(cards, node)
            _start_agent(stack, node)
            yield cls(stack, node)

    @property
    def agent(self) -> Daemon:
        """The agent's process."""
        return self.stack.agent(NODE)

    @property
    def ledger_disk(self) -> Path:
        """A directory on the file system of the agent's ledger."""
        return self.node.plugins_dir / names.DRIVER

    def client(self) -> kube.Kube:
        """Return the project's own client with the identity of the agent, as the agent has it."""
        access = self.stack.cluster.service_account_kubeconfig(
            NAMESPACE, "gpupolicy-agent", node=NODE, expiration_seconds=24 * 3600
        )
        return kube.Kube.connect(str(access.kubeconfig), user_agent="gpupolicy-bench")

    def admin(self) -> kube.Kube:
        """Return a client with the rights of an admin."""
        path = self.stack.cluster.control_plane.admin_kubeconfig
        return kube.Kube.connect(str(path), user_agent="gpupolicy-bench-admin")

    @contextlib.asynccontextmanager
    async def kubelet(self) -> AsyncIterator["Kubelet"]:
        """Yield a connection to the agent's socket."""
        channel = Channel(path=str(self.node.plugins_dir / names.DRIVER / "dra.sock"))
        try:
            yield Kubelet(channel)
        finally:
            channel.close()

    async def offer(self, admin: kube.Kube, sharing: Mapping[str, Any], count: int) -> list[str]:
        """Give the node's cards a sharing, and return the names of the devices once all are published.

        Args:
            admin: a client that may write policies.
            sharing: `spec.sharing` of the policy.
            count: how many devices come of it.

        Raises:
            TimeoutError: they are not.
        """
        await self.apply(admin, sharing)
        kind = "mig" if sharing["strategy"] == "MIG" else "gpu"
        deadline = time.monotonic() + _READY_SECONDS
        while time.monotonic() < deadline:
            found = await self.devices(admin)
            if len(found) == count and all(
                d["attributes"]["type"]["string"] == kind and not d.get("taints") for d in found
            ):
                return [device["name"] for device in found]
            await asyncio.sleep(0.2)
        raise TimeoutError(f"not {count} {kind} devices in {_READY_SECONDS:.0f} s\n{self.stack.report()}")

    async def apply(self, admin: kube.Kube, sharing: Mapping[str, Any]) -> None:
        """Apply the policy of the node with a sharing, as `kubectl apply --server-side` does."""
        body = {
            "metadata": {"name": POLICY},
            "spec": {"nodeSelector": {"matchLabels": {"gpu-pool": POLICY}}, "sharing": dict(sharing)},
        }
        await admin.apply(kube.GPUPOLICIES, body, field_manager="kubectl", force=True)

    async def devices(self, admin: kube.Kube) -> list[dict[str, Any]]:
        """Return the published devices in the order of the pool."""
        found = await admin.list(kube.RESOURCE_SLICES, field_selector=f"spec.driver={names.DRIVER}")
        pieces = sorted(found.items, key=lambda item: str(item["metadata"]["name"]))
        return [device for piece in pieces for device in piece["spec"].get("devices") or ()]

    async def claim(self, admin: kube.Kube, device: str) -> "Claim":
        """Create a claim and allocate a device to it, as the scheduler would write it."""
        name = f"bench-{next(self._names)}-{secrets.token_hex(3)}"
        request = {"name": "gpu", "exactly": {"deviceClassName": POLICY}}
        body = {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": {"requests": [request]}},
        }
        made = await admin.create(kube.RESOURCE_CLAIMS, body)
        result = {
            "request": "gpu",
            "driver": names.DRIVER,
            "pool": names.pool_name(NODE),
            "device": device,
        }
        made["status"] = {"allocation": {"devices": {"results": [result]}}}
        await admin.replace(kube.RESOURCE_CLAIMS, made, subresource="status")
        return Claim(name, made["metadata"]["uid"])


def _start_agent(stack: Stack, node: Node) -> None:
    """Start the agent as the chart and the image do: probes, service account, bytecode without docstrings."""
    environment = {
        "PYTHONOPTIMIZE": "2",
        "PYTHONPYCACHEPREFIX": str(stack.cluster.run.directory / "bytecode"),
        "PYTHONDONTWRITEBYTECODE": "",
    }
    agent = stack.start_agent(node, "--health-port=0", in_cluster=True, environment=environment)
    # The image brings all bytecode. Who compiles it keeps some MiB of that, so the first process does and is not measured.
    socket = node.plugins_dir / names.DRIVER / "dra.sock"
    agent.wait_until(socket.exists, "the agent serves", timeout_seconds=_READY_SECONDS)
    agent.restart()


class Claim:
    """An allocated claim of the namespace `default`."""

    def __init__(self, name: str, uid: str) -> None:
        self.name = name
        self.uid = uid


class Kubelet:
    """Calls the agent as the kubelet does: one call a pod, so one claim a call."""

    def __init__(self, channel: Channel) -> None:
        types = messages.DRA_V1
        self._types = types
        self._prepare = UnaryUnaryMethod(
            channel,
            f"{_SERVICE}/NodePrepareResources",
            types.NodePrepareResourcesRequest,
            types.NodePrepareResourcesResponse,
        )
        self._unprepare = UnaryUnaryMethod(
            channel,
            f"{_SERVICE}/NodeUnprepareResources",
            types.NodeUnprepareResourcesRequest,
            types.NodeUnprepareResourcesResponse,
        )

    async def prepare(self, claim: Claim) -> None:
        """Have one claim prepared.

        Raises:
            RuntimeError: the agent refused it.
        """
        asked = self._types.NodePrepareResourcesRequest(claims=[self._named(claim)])
        answer = await self._prepare(asked, timeout=_CALL_SECONDS)
        entry = answer.claims[claim.uid]
        if entry.error or len(entry.devices) != 1:
            raise RuntimeError(f"claim {claim.name} was not prepared: {entry.error or 'no device'}")

    async def unprepare(self, claim: Claim) -> None:
        """Have one claim unprepared.

        Raises:
            RuntimeError: the agent could not.
        """
        asked = self._types.NodeUnprepareResourcesRequest(claims=[self._named(claim)])
        answer = await self._unprepare(asked, timeout=_CALL_SECONDS)
        if claim.uid not in answer.claims or answer.claims[claim.uid].error:
            raise RuntimeError(f"claim {claim.name} was not unprepared: {answer}")

    def _named(self, claim: Claim) -> Any:
        return self._types.Claim(namespace="default", uid=claim.uid, name=claim.name)


async def remove(admin: kube.Kube, claims: Sequence[Claim]) -> None:
    """Delete claims."""
    for claim in claims:
        with contextlib.suppress(kube.NotFound):
            await admin.delete(kube.RESOURCE_CLAIMS, claim.name, "default")
