"""One agent's claims side on a real ledger, real CDI files and real device nodes; the API server's claims are a dictionary."""

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpupolicy.adapters import cdi, devicefiles, kube, ledger
from gpupolicy.adapters.kubeletplugin.claims import ClaimError, ClaimRef, PreparedClaim
from gpupolicy.agent.claims import ClaimHandler
from gpupolicy.agent.state import LEDGER_KINDS, VOLATILE_KINDS, NodeState
from gpupolicy.core.inventory import Placement
from gpupolicy.core.records import DeviceKind, DeviceRecord, PreparedDevice

NODE = "gpu-01"
GPU = DeviceRecord(name="gpu-0", kind=DeviceKind.GPU, policy="train", gpu_uuid="GPU-0", minor=0)
GPU1 = DeviceRecord(name="gpu-1", kind=DeviceKind.GPU, policy="train", gpu_uuid="GPU-1", minor=1)
MIG = DeviceRecord(
    name="mig-2-0",
    kind=DeviceKind.MIG,
    policy="infer",
    gpu_uuid="GPU-2",
    minor=2,
    profile="1g.10gb",
    profile_id=19,
    placement=Placement(0, 1),
    gpu_instance_id=7,
    compute_instance_id=0,
    mig_uuid="MIG-a",
)
DEVICES = {d.name: d for d in (GPU, GPU1, MIG)}


def claim(uid: str, *devices: str, config: Any = ()) -> dict[str, Any]:
    results = [
        {"driver": "gpu.gpupolicy.dev", "pool": f"{NODE}/gpupolicy", "device": d, "request": f"r{i}"}
        for i, d in enumerate(devices)
    ]
    return {
        "metadata": {"uid": uid, "name": f"claim-{uid}", "namespace": "ns"},
        "status": {"allocation": {"devices": {"results": results, "config": list(config)}}},
    }


def ref(uid: str) -> ClaimRef:
    return ClaimRef(namespace="ns", name=f"claim-{uid}", uid=uid)


class Claims:
    """The claims of a cluster as one dictionary; the real API server is asked in the cluster tests."""

    def __init__(self, *objects: dict[str, Any]) -> None:
        self.objects = {o["metadata"]["name"]: o for o in objects}
        self.down = False

    async def get(
        self,
        _resource: kube.Resource,
        name: str,
        _namespace: str | None = None,
        *,
        timeout_seconds: float = 0,
    ) -> Mapping[str, Any]:
        if self.down:
            raise kube.Unavailable(0, "Unreachable", "the API server does not answer")
        if name not in self.objects:
            raise kube.NotFound(404, "NotFound", f"{name} not found")
        return self.objects[name]


def make_roots(directory: Path) -> devicefiles.Roots:
    """Make the device nodes and the proc files of a node with three cards."""
    dev = directory / "root/dev"
    dev.mkdir(parents=True, exist_ok=True)
    for name, minor in [("nvidiactl", 255), ("nvidia0", 0), ("nvidia1", 1), ("nvidia2", 2)]:
        if not (dev / name).exists():
            os.mknod(dev / name, 0o666 | stat.S_IFCHR, os.makedev(195, minor))
    proc = directory / "proc"
    instance = proc / "driver/nvidia/capabilities/gpu2/mig/gi7"
    (instance / "ci0").mkdir(parents=True, exist_ok=True)
    (instance / "access").write_text("DeviceFileMinor: 336\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
    (instance / "ci0/access").write_text("DeviceFileMinor: 337\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
    (proc / "devices").write_text(
        "Character devices:\n195 nvidia\n234 nvidia-caps\n\nBlock devices:\n  8 sd\n"
    )
    return devicefiles.Roots(driver=directory / "root", dev=directory / "root", proc=proc)


class Node:
    """One agent's claims side over a directory that outlives it."""

    def __init__(
        self, directory: Path, source: Claims, *, between: Callable[[str], None] = lambda _: None
    ) -> None:
        self.directory = directory
        self.cdi = directory / "cdi"
        self.cdi.mkdir(exist_ok=True)
        self.boot = directory / "boot_id"
        if not self.boot.exists():
            self.boot.write_text("boot-1\n")
        self.ledger = ledger.Ledger(
            directory / "ledger", kinds=LEDGER_KINDS, volatile=VOLATILE_KINDS, boot_id_path=self.boot
        )
        self.state = NodeState(NODE, self.ledger)
        self.busy_names: set[str] = set()

        async def busy(device: PreparedDevice) -> bool:
            return device.device.name in self.busy_names

        files = devicefiles.DeviceFiles(roots=make_roots(directory))
        self.handler = ClaimHandler(
            self.state, source, files, self.cdi, store=self.ledger, busy=busy, between=between
        )

    async def start(self, devices: Mapping[str, DeviceRecord] = DEVICES) -> "Node":
        # What stands is known before claims of before are taken up, as in the agent.
        self.state.devices.update(devices)
        await self.handler.recover(await self.ledger.load(), devices)
        self.state.loaded.set()
        return self

    async def prepare(self, uid: str) -> PreparedClaim | ClaimError:
        return (await self.handler.prepare([ref(uid)]))[uid]

    async def unprepare(self, uid: str) -> ClaimError | None:
        return (await self.handler.unprepare([ref(uid)]))[uid]

    def specs(self) -> set[str]:
        return set(cdi.list_specs(self.cdi, "gpu.gpupolicy.dev/claim"))


def edits_of(node: Node, uid: str) -> cdi.Spec:
    return cdi.read_spec(cdi.spec_path(node.cdi, "gpu.gpupolicy.dev/claim", uid))
