"""The agent's loop over simulated cards and a real ledger, without an API server.

What the API server does is as good as it can be here: it shows at once what was published, and claims are what the test
says. The real one is asked in the cluster tests.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Self

from gpupolicy.adapters import kube
from gpupolicy.adapters.ledger import Ledger
from gpupolicy.adapters.nvml.session import Nvml
from gpupolicy.agent.claimlist import ClaimList
from gpupolicy.agent.journal import Journal
from gpupolicy.agent.ports import Surroundings, Timing
from gpupolicy.agent.reconcile import Reconciler
from gpupolicy.agent.state import GPU_KIND, LEDGER_KINDS, VOLATILE_KINDS, NodeState
from gpupolicy.api.node import GpuAssignment, GpuNodeSpec, GpuNodeStatus, GpuStatus, MigLayout
from gpupolicy.api.policy import MigLayoutEntry, Strategy
from gpupolicy.core import ownership, records
from gpupolicy.core.devices import Device
from gpupolicy.core.records import ClaimRecord, ClaimState, PreparedDevice
from gpupolicy.core.refusals import Refusal
from tests.simulator import Simulator

NODE = "gpu-01"
FAST = Timing(poll=0.2, waiting=0.05, settle=0.0, withdraw=2.0, outage=0.5)
INFER = (("3g.40gb", 1), ("2g.20gb", 1), ("1g.10gb", 2))
SEVEN = (("1g.10gb", 7),)
INFER_PLACED = ["2g.20gb@0", "1g.10gb@2", "1g.10gb@3", "3g.40gb@4"]


class Slices:
    """Shows what is wished for, at once or only while `open` is set."""

    def __init__(self) -> None:
        self.devices: dict[str, Device] = {}
        self.history: list[frozenset[str]] = []
        self.visible: frozenset[str] = frozenset()
        self.open = True
        self.taints_served = True
        self.problem = ""

    @property
    def shown(self) -> frozenset[str]:
        return self.visible & frozenset(self.devices)

    def publish(self, devices: tuple[Device, ...]) -> None:
        self.devices = {d.name: d for d in devices}
        if self.open:
            self.visible = frozenset(self.devices)
        if not self.history or self.history[-1] != frozenset(self.devices):
            self.history.append(frozenset(self.devices))

    def may_be_shown(self, name: str, *, settle_seconds: float = 0.0) -> bool:
        return name in self.visible or name in self.devices


class Wish:
    """The GpuNode object."""

    def __init__(self) -> None:
        self.spec: GpuNodeSpec | None = GpuNodeSpec()
        self.generation = 1
        self.status: GpuNodeStatus | None = None

    def report(self, status: GpuNodeStatus) -> None:
        self.status = status


class Claims:
    """ResourceClaims, by name."""

    def __init__(self) -> None:
        self.objects: dict[str, kube.Object] = {}
        self.down = False
        self.lists = 0

    def allocate(self, name: str, device: str, *pods: str) -> None:
        result = {
            "driver": "gpu.gpupolicy.dev",
            "pool": f"{NODE}/gpupolicy",
            "device": device,
            "request": "r",
        }
        self.objects[name] = {
            "metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}"},
            "status": {
                "allocation": {"devices": {"results": [result]}},
                "reservedFor": [{"resource": "pods", "name": pod, "uid": pod} for pod in pods],
            },
        }

    async def list(self, _resource: kube.Resource, *, transform: Any = None) -> Any:
        self.lists += 1
        if self.down:
            raise kube.Unavailable(0, "Unreachable", "the API server does not answer")
        for item in self.objects.values():
            transform(item)

    async def get(self, _resource: kube.Resource, name: str, _namespace: str | None = None) -> kube.Object:
        if self.down:
            raise kube.Unavailable(0, "Unreachable", "the API server does not answer")
        if name not in self.objects:
            raise kube.NotFound(404, "NotFound", name)
        return self.objects[name]


class Told(Journal):
    """Keeps what the loop tells."""

    def __init__(self) -> None:
        self.passes = 0
        self.attempts: list[str] = []
        self.drifts = 0

    def looked(self, seconds: float) -> None:
        self.passes += seconds > 0

    def applied(self, seconds: float, failure: Refusal | None) -> None:
        assert seconds > 0
        self.attempts.append(failure.reason.value if failure else "success")

    def drifted(self) -> None:
        self.drifts += 1


class AgentNode:
    """One agent, from the ledger up, on the cards of a simulator. `restart` makes another one in its place."""

    def __init__(self, directory: Path, *, timing: Timing = FAST, nvml_seconds: float = 5.0) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.simulator = Simulator(directory / "gpusim")
        self.boot_id_path = directory / "boot_id"
        if not self.boot_id_path.exists():
            self.boot_id_path.write_text("boot-1\n")
        self.timing = timing
        self.nvml_seconds = nvml_seconds
        self.slices = Slices()
        self.wish = Wish()
        self.claims = Claims()
        self.around = Surroundings()
        self.told = Told()
        self.state: NodeState
        self.nvml: Nvml
        self.loop: Reconciler
        self.ledger: Ledger

    async def __aenter__(self) -> Self:
        os.environ["GPUSIM_DIR"] = str(self.simulator.directory)
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self.ledger = Ledger(
            self.directory / "ledger",
            kinds=LEDGER_KINDS,
            volatile=VOLATILE_KINDS,
            boot_id_path=self.boot_id_path,
        )
        self.wish.status = None
        contents = await self.ledger.load()
        assert contents.damaged == ()
        self.state = NodeState(NODE, self.ledger)
        for record in contents.records:
            if record.kind == GPU_KIND:
                known = records.decode_gpu(record.data)
                fresh = record.boot_id == self.ledger.boot_id
                self.state.gpus[record.key] = known if fresh else ownership.after_boot(known)
            else:
                self.state.claims[record.key] = records.decode_claim(record.data)
        self.nvml = Nvml(
            self.simulator.library_path,
            sysfs=self.simulator.root / "sys",
            call_seconds=self.nvml_seconds,
            heard=self.state.reconcile.set,
        )
        for uuid, record in self.state.gpus.items():
            if record.xid is not None:
                self.nvml.remember(uuid, record.xid)
        self.loop = Reconciler(
            self.state,
            self.nvml,
            self.slices,
            self.wish,
            ClaimList(self.claims, self.state.pool),
            surroundings=lambda: self.around,
            boot_id=self.ledger.boot_id,
            timing=self.timing,
            journal=self.told,
        )

    async def stop(self) -> None:
        self.simulator.clear_faults()
        await self.loop.drain()
        await self.nvml.close()
        await self.ledger.aclose()

    async def restart(self) -> None:
        await self.stop()
        self.slices = Slices()
        await self.start()

    def want(self, index: int, *layout: tuple[str, int], revision: str = "r1", **fields: Any) -> None:
        """Assign the card at an index; without a layout it is to be whole."""
        uuid = self.simulator.gpu(index)["uuid"]
        mig = MigLayout(layout=[MigLayoutEntry(profile=p, count=n) for p, n in layout]) if layout else None
        assignment = GpuAssignment(
            uuid=uuid,
            policy="p",
            strategy=Strategy.MIG if layout else Strategy.EXCLUSIVE,
            mig=mig,
            revision=revision,
            **fields,
        )
        assert self.wish.spec is not None
        others = [a for a in self.wish.spec.gpus if a.uuid != uuid]
        self.wish.spec = GpuNodeSpec(gpus=[*others, assignment])
        self.wish.generation += 1

    def want_all(self, *layout: tuple[str, int], revision: str = "r1") -> None:
        for index in range(len(self.simulator.dump()["gpus"])):
            self.want(index, *layout, revision=revision)

    def card(self, index: int) -> GpuStatus:
        """What the status says of the card at an index."""
        assert self.wish.status is not None
        return next(g for g in self.wish.status.gpus if g.uuid == self.simulator.gpu(index)["uuid"])

    async def until(self, condition: Callable[[], bool], *, seconds: float = 60.0) -> None:
        """Run the loop until something holds."""
        running = asyncio.create_task(self.loop.run())
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    await asyncio.sleep(0.01)
                    if running.done():
                        running.result()
        except TimeoutError:
            told = [
                (g.index, g.reason, g.message) for g in (self.wish.status.gpus if self.wish.status else ())
            ]
            raise AssertionError(
                f"not within {seconds} s: {told}, shown {sorted(self.slices.shown)}"
            ) from None
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            self.loop._stopping = False

    async def until_applied(self, *indices: int, revision: str = "r1") -> None:
        await self.until(lambda: self.are_applied(indices, revision))

    def are_applied(self, indices: Iterable[int], revision: str = "r1") -> bool:
        if self.wish.status is None:
            return False
        return all(
            (c := self.card(i)).reason == "Applied" and c.applied_revision == revision for i in indices
        )

    def has_seen_wish(self) -> bool:
        """Whether the status is about what is wanted now."""
        return self.wish.status is not None and self.wish.status.observed_generation == self.wish.generation

    def layout(self, index: int) -> list[str]:
        """What really stands on a card, as `profile@start`."""
        return [f"{profile}@{start}" for profile, start in self.simulator.layout(index)]


async def prepare(node: AgentNode, uid: str, device: str, *pods: str) -> None:
    """Do what the claims handler does to the state when a claim is prepared."""
    record = node.state.devices[device]
    held = PreparedDevice(record, node.state.pool)
    await node.state.save_claim(
        ClaimRecord(uid, "ns", uid, ClaimState.PREPARE_COMPLETED, (held,), pods or (f"{uid}-pod",))
    )


def held(node: AgentNode, index: int, profile: str) -> str:
    """Return the name of a published device of a card and profile."""
    uuid = node.simulator.gpu(index)["uuid"]
    return next(
        d.name
        for d in node.slices.devices.values()
        if d.record.gpu_uuid == uuid and d.record.profile == profile
    )


Eventually = Callable[[], Awaitable[bool]]
