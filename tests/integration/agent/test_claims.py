"""Prepare and unprepare with a real ledger, real CDI files and real device nodes; kill -9 between every two effects."""

import asyncio
import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpupolicy.adapters import cdi, devicefiles, kube, ledger
from gpupolicy.adapters.kubeletplugin.claims import ClaimError, ClaimRef, PreparedClaim
from gpupolicy.agent import claims as agent_claims
from gpupolicy.agent.claims import ClaimHandler
from gpupolicy.agent.state import LEDGER_KINDS, VOLATILE_KINDS, NodeState
from gpupolicy.core.inventory import Placement
from gpupolicy.core.prepare import Effect, Event, steps
from gpupolicy.core.records import ClaimState, DeviceKind, DeviceRecord, PreparedDevice
from tests.paths import ROOT

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


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    source = Claims(
        claim("u1", "gpu-0"), claim("u2", "gpu-1", "mig-2-0"), claim("u3", "gpu-0"), claim("u4", "gpu-9")
    )
    made = await Node(tmp_path, source).start()
    made.source = source  # type: ignore[attr-defined]
    yield made
    await made.ledger.aclose()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits that end soon, for the paths that end in a refusal."""
    monkeypatch.setattr(agent_claims, "ABSENT_SECONDS", 0.3)
    monkeypatch.setattr(agent_claims, "HOLDER_GRACE_SECONDS", 0.2)
    monkeypatch.setattr(agent_claims, "CALL_SECONDS", 3.0)
    monkeypatch.setattr(agent_claims, "LOOK_AGAIN_SECONDS", 0.05)


def edits_of(node: Node, uid: str) -> cdi.Spec:
    return cdi.read_spec(cdi.spec_path(node.cdi, "gpu.gpupolicy.dev/claim", uid))


async def test_the_record_names_the_pods_that_wait_for_it(node: Node) -> None:
    """Who waits for the claim's end is to be told whose it is, also after a restart of the agent."""
    node.source.objects["claim-u1"]["status"]["reservedFor"] = [  # type: ignore[attr-defined]
        {"resource": "pods", "name": "web-0", "uid": "p0"},
        {"resource": "jobs", "apiGroup": "batch", "name": "other", "uid": "j0"},
    ]
    assert isinstance(await node.prepare("u1"), PreparedClaim)

    assert node.state.claims["u1"].pods == ("web-0",)
    again = await Node(node.directory, node.source).start()  # type: ignore[attr-defined]
    assert again.state.claims["u1"].pods == ("web-0",)
    await again.ledger.aclose()


async def test_a_card_is_prepared(node: Node) -> None:
    """The answer names pool, device, request and CDI id; the file brings exactly that card's node."""
    answer = await node.prepare("u1")
    assert isinstance(answer, PreparedClaim)
    (device,) = answer.devices
    assert (device.pool, device.device, device.requests) == ("gpu-01/gpupolicy", "gpu-0", ("r0",))
    assert device.cdi_ids == ("gpu.gpupolicy.dev/claim=u1-gpu-0",)
    spec = edits_of(node, "u1")
    assert [n.path for n in spec.devices["u1-gpu-0"].device_nodes] == ["/dev/nvidia0"]
    assert spec.devices["u1-gpu-0"].env == ("GPU_DEVICE_GPU_0=GPU-0",)
    assert [n.path for n in spec.common_edits.device_nodes] == ["/dev/nvidiactl"]
    assert spec.common_edits.env == ("NVIDIA_VISIBLE_DEVICES=void",)


async def test_a_slice_brings_its_capability_nodes(node: Node) -> None:
    """The parent's node and the two nodes that open the instance, with number and mode."""
    assert isinstance(await node.prepare("u2"), PreparedClaim)
    nodes = edits_of(node, "u2").devices["u2-mig-2-0"].device_nodes
    assert [(n.path, n.major, n.minor, n.file_mode) for n in nodes[1:]] == [
        ("/dev/nvidia-caps/nvidia-cap336", 234, 336, 292),
        ("/dev/nvidia-caps/nvidia-cap337", 234, 337, 292),
    ]
    assert nodes[0].path == "/dev/nvidia2"


async def test_prepare_and_unprepare_are_idempotent(node: Node) -> None:
    """The kubelet repeats itself after any doubt."""
    assert await node.prepare("u1") == await node.prepare("u1")
    assert [await node.unprepare("u1"), await node.unprepare("u1")] == [None, None]
    assert (node.specs(), node.state.claims) == (set(), {})


async def test_a_lost_cdi_file_is_written_again(node: Node) -> None:
    """Somebody emptied the directory; the next call heals it."""
    await node.prepare("u1")
    cdi.remove_spec(node.cdi, "gpu.gpupolicy.dev/claim", "u1")
    await node.prepare("u1")
    assert node.specs() == {"u1"}


async def test_unprepare_of_an_unknown_claim_is_done(node: Node) -> None:
    """Also for a claim that never was, and it needs no API server."""
    node.source.down = True  # type: ignore[attr-defined]
    assert await node.unprepare("never") is None


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("uid", "words"),
    [
        pytest.param("nobody", "does not exist in the API server", id="no-such-claim"),
        pytest.param("u4", "gpu-9 does not exist on this node", id="no-such-device"),
    ],
)
async def test_a_claim_that_cannot_be_prepared_is_told_why(node: Node, uid: str, words: str) -> None:
    """And nothing of it stays."""
    answer = await node.prepare(uid)
    assert isinstance(answer, ClaimError)
    assert words in answer.message
    assert (node.specs(), node.state.claims) == (set(), {})


async def test_one_bad_claim_does_not_spoil_the_batch(node: Node) -> None:
    """Errors are per claim."""
    answers = await node.handler.prepare([ref("u1"), ref("nobody"), ref("u2")])
    assert [isinstance(answers[uid], PreparedClaim) for uid in ("u1", "nobody", "u2")] == [True, False, True]


@pytest.mark.usefixtures("impatient")
async def test_an_api_server_that_is_away_is_told(node: Node) -> None:
    """The kubelet shows the reason and asks again."""
    node.source.down = True  # type: ignore[attr-defined]
    answer = await node.prepare("u1")
    assert isinstance(answer, ClaimError)
    assert "does not answer" in answer.message


async def test_a_device_that_appears_in_time_is_waited_for(node: Node) -> None:
    """After a reboot the pods are there before the layout is."""
    waiting = asyncio.ensure_future(node.prepare("u4"))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    node.state.devices["gpu-9"] = DeviceRecord(
        name="gpu-9", kind=DeviceKind.GPU, policy="train", gpu_uuid="GPU-1", minor=1
    )
    await node.state.announce()
    assert isinstance(await waiting, PreparedClaim)


async def test_a_device_of_an_ending_pod_is_waited_for(node: Node) -> None:
    """The old pod's unprepare comes a moment after the new pod's prepare."""
    await node.prepare("u1")
    waiting = asyncio.ensure_future(node.prepare("u3"))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await node.unprepare("u1")
    assert isinstance(await waiting, PreparedClaim)
    assert node.specs() == {"u3"}


@pytest.mark.usefixtures("impatient")
async def test_a_holder_that_is_gone_is_unprepared_here(node: Node) -> None:
    """The kubelet never says so; the API server does."""
    await node.prepare("u1")
    del node.source.objects["claim-u1"]  # type: ignore[attr-defined]
    assert isinstance(await node.prepare("u3"), PreparedClaim)
    assert set(node.state.claims) == {"u3"}


@pytest.mark.usefixtures("impatient")
async def test_a_holder_that_is_gone_but_runs_keeps_its_device(node: Node) -> None:
    """A container that still runs on the card is worse than a pod that waits."""
    await node.prepare("u1")
    del node.source.objects["claim-u1"]  # type: ignore[attr-defined]
    node.busy_names.add("gpu-0")
    answer = await node.prepare("u3")
    assert isinstance(answer, ClaimError)
    assert set(node.state.claims) == {"u1"}


@pytest.mark.usefixtures("impatient")
async def test_a_rightful_holder_is_named(node: Node) -> None:
    """The last line of defence against a double allocation."""
    await node.prepare("u1")
    answer = await node.prepare("u3")
    assert isinstance(answer, ClaimError)
    assert "claim ns/claim-u1" in answer.message


async def test_a_claim_whose_card_changed_hands_stays_prepared(node: Node) -> None:
    """Another policy, or none yet after a restart: the hardware is the same, and its pods run."""
    effects: list[str] = []
    await node.prepare("u1")
    node.handler._between = effects.append
    node.state.devices["gpu-0"] = replace(GPU, policy="")
    assert isinstance(await node.prepare("u1"), PreparedClaim)
    assert effects == [Effect.WRITE_CDI]


async def test_a_reallocated_claim_moves(node: Node) -> None:
    """Same UID, another device: what stood is undone first."""
    await node.prepare("u1")
    node.source.objects["claim-u1"] = claim("u1", "gpu-1")  # type: ignore[attr-defined]
    answer = await node.prepare("u1")
    assert isinstance(answer, PreparedClaim)
    assert [d.device for d in answer.devices] == ["gpu-1"]
    assert list(edits_of(node, "u1").devices) == ["u1-gpu-1"]


async def test_unprepare_does_not_overtake_a_prepare_that_waits(node: Node) -> None:
    """Else the claim would be prepared for a pod that is gone, and nobody would ever undo it."""
    waiting = asyncio.ensure_future(node.prepare("u4"))
    await asyncio.sleep(0.05)
    undoing = asyncio.ensure_future(node.unprepare("u4"))
    await asyncio.sleep(0.05)
    node.state.devices["gpu-9"] = GPU1
    await node.state.announce()
    assert isinstance(await waiting, PreparedClaim)
    assert await undoing is None
    assert (node.specs(), node.state.claims) == (set(), {})


async def test_the_kubelet_may_hang_up_twice_in_the_middle(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was begun runs to its end under the card's lock, so the unprepare that follows finds all of it."""
    began, may_end = threading.Event(), threading.Event()
    write = cdi.write_spec

    def slowly(*arguments: Any, **options: Any) -> dict[str, str]:
        began.set()
        may_end.wait(10)
        return write(*arguments, **options)

    monkeypatch.setattr(cdi, "write_spec", slowly)
    preparing = asyncio.ensure_future(node.prepare("u1"))
    await asyncio.to_thread(began.wait, 10)
    for _ in range(2):
        preparing.cancel()
        await asyncio.sleep(0.02)
    undoing = asyncio.ensure_future(node.unprepare("u1"))
    await asyncio.sleep(0.05)
    assert not undoing.done()
    may_end.set()
    assert await undoing is None
    await asyncio.gather(preparing, return_exceptions=True)
    assert (node.specs(), node.state.claims) == (set(), {})


async def test_a_claim_that_went_while_its_device_was_waited_for_is_not_prepared(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its content is as old as the wait; after a long one it is fetched again."""
    monkeypatch.setattr(agent_claims, "FRESH_SECONDS", 0.1)
    await node.prepare("u1")
    waiting = asyncio.ensure_future(node.prepare("u3"))
    await asyncio.sleep(0.3)
    del node.source.objects["claim-u3"]  # type: ignore[attr-defined]
    await node.unprepare("u1")
    answer = await waiting
    assert isinstance(answer, ClaimError)
    assert "does not exist in the API server" in answer.message
    assert (node.specs(), node.state.claims) == (set(), {})


async def test_a_claim_that_went_while_its_card_was_being_changed_is_not_prepared(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_claims, "FRESH_SECONDS", 0.3)
    async with node.state.hold(["GPU-0"]):
        waiting = asyncio.ensure_future(node.prepare("u1"))
        await asyncio.sleep(0.5)
        del node.source.objects["claim-u1"]  # type: ignore[attr-defined]
    answer = await waiting
    assert isinstance(answer, ClaimError)
    assert (node.specs(), node.state.claims) == (set(), {})


async def test_an_api_server_that_is_slow_is_believed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer is as fresh as it can be; to ask again would take as long again."""
    monkeypatch.setattr(agent_claims, "FRESH_SECONDS", 1.0)
    get = node.source.get  # type: ignore[attr-defined]
    asked: list[str] = []

    async def slowly(resource: Any, name: str, namespace: str | None = None, **_: float) -> Any:
        asked.append(name)
        await asyncio.sleep(1.2)
        return await get(resource, name, namespace)

    monkeypatch.setattr(node.source, "get", slowly)  # type: ignore[attr-defined]
    assert isinstance(await node.prepare("u1"), PreparedClaim)
    assert len(asked) == 1


async def test_a_claim_is_prepared_after_a_long_wait_also_while_the_api_server_is_away(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_claims, "FRESH_SECONDS", 0.1)
    await node.prepare("u1")
    waiting = asyncio.ensure_future(node.prepare("u3"))
    await asyncio.sleep(0.3)
    node.source.down = True  # type: ignore[attr-defined]
    await node.unprepare("u1")
    assert isinstance(await waiting, PreparedClaim)


async def test_a_sweep_outlives_what_it_cannot_undo(node: Node) -> None:
    """A disk in trouble must not end the agent; the claim is undone another time, its neighbours now."""
    await node.prepare("u1")
    await node.prepare("u2")
    path = cdi.spec_path(node.cdi, "gpu.gpupolicy.dev/claim", "u1")
    path.unlink()
    path.mkdir()
    node.source.objects.clear()  # type: ignore[attr-defined]
    await node.handler.sweep()
    assert set(node.state.claims) == {"u1"}
    path.rmdir()
    await node.handler.sweep()
    assert node.state.claims == {}


async def test_a_sweep_says_when_the_cdi_directory_is_gone(node: Node) -> None:
    node.cdi.rmdir()
    assert not await node.handler.sweep()
    assert str(node.cdi) in node.handler.disk_problem
    node.cdi.mkdir()
    assert await node.handler.sweep()


async def test_a_sweep_removes_cdi_files_that_belong_to_no_claim(node: Node) -> None:
    """At the start that may have been impossible, and it need not wait for the next one."""
    await node.prepare("u1")
    await node.prepare("u2")
    path = cdi.spec_path(node.cdi, "gpu.gpupolicy.dev/claim", "u1")
    for orphan in ("u8", "u9"):
        cdi.spec_path(node.cdi, "gpu.gpupolicy.dev/claim", orphan).write_bytes(path.read_bytes())
    async with node.handler._turn("u9"):
        sweeping = asyncio.ensure_future(node.handler.sweep())
        await asyncio.sleep(0.3)
        assert "u9" in node.specs(), "it may be being prepared just now"
    assert await sweeping
    assert node.specs() == {"u1", "u2"}


async def test_a_sweep_leaves_a_claim_that_somebody_works_on(node: Node) -> None:
    """It may have been allocated again in this very moment."""
    await node.prepare("u1")
    claim_1 = node.source.objects.pop("claim-u1")  # type: ignore[attr-defined]
    async with node.handler._turn("u1"):
        await node.handler.sweep()
    assert set(node.state.claims) == {"u1"}
    node.source.objects["claim-u1"] = claim_1  # type: ignore[attr-defined]


@pytest.mark.parametrize("by", ["sweep", "restart"])
async def test_the_cdi_file_of_a_running_pod_comes_back(node: Node, by: str) -> None:
    """Its containers may have to be started again, and the kubelet does not prepare what it has prepared."""
    await node.prepare("u1")
    await node.prepare("u2")
    before = edits_of(node, "u1")
    for uid in ("u1", "u2"):
        cdi.remove_spec(node.cdi, "gpu.gpupolicy.dev/claim", uid)
    # Of an instance that is another one by now no file is made.
    stands = {**DEVICES, MIG.name: replace(MIG, mig_uuid="MIG-b")}
    # Which policy a device is of is not known yet when an agent starts.
    stands[GPU.name] = replace(GPU, policy="")
    node.state.devices.update(stands)
    if by == "sweep":
        await node.handler.sweep()
        after = node
    else:
        after = await Node(node.directory, node.source).start(stands)  # type: ignore[attr-defined]
    assert after.specs() == {"u1"}
    assert edits_of(after, "u1") == before
    if after is not node:
        await after.ledger.aclose()


def test_nothing_is_kept_of_claims_that_are_over(tmp_path: Path) -> None:
    async def run() -> None:
        node = await Node(tmp_path, Claims(claim("u1", "gpu-0"))).start()
        await node.prepare("u1")
        await node.unprepare("u1")
        assert dict(node.handler._turns) == {}
        await node.ledger.aclose()

    asyncio.run(run())


@pytest.mark.usefixtures("impatient")
async def test_a_missing_device_node_is_an_error(node: Node) -> None:
    """A container that starts without its card is worse than one that does not start."""
    (node.directory / "root/dev/nvidia0").unlink()
    answer = await node.prepare("u1")
    assert isinstance(answer, ClaimError)
    assert "nvidia-modprobe" in answer.message
    assert node.specs() == set()


@pytest.mark.usefixtures("impatient")
async def test_a_cdi_directory_that_is_gone_is_an_error_and_heals(node: Node) -> None:
    """Intent stays in the ledger, and the next call completes it."""
    node.cdi.rmdir()
    answer = await node.prepare("u1")
    assert isinstance(answer, ClaimError)
    assert str(node.cdi) in answer.message
    assert str(node.cdi) in node.handler.disk_problem, "the node's status says so too"
    node.cdi.mkdir()
    assert isinstance(await node.prepare("u1"), PreparedClaim)
    assert node.handler.disk_problem == ""


async def test_claims_of_another_boot_are_forgotten(tmp_path: Path) -> None:
    """Their containers ended with the boot; their CDI files would name instances that are gone."""
    source = Claims(claim("u1", "gpu-0"))
    before = await Node(tmp_path, source).start()
    await before.prepare("u1")
    await before.ledger.aclose()
    (tmp_path / "boot_id").write_text("boot-2\n")
    after = await Node(tmp_path, source).start()
    assert (after.state.claims, after.specs()) == ({}, set())
    assert isinstance(await after.prepare("u1"), PreparedClaim)
    await after.ledger.aclose()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda text: text[: len(text) // 2], id="truncated"),
        pytest.param(lambda text: text.replace('"gpu-0"', '"gpu-1"'), id="altered"),
        pytest.param(lambda text: "", id="empty"),
        pytest.param(lambda text: text.replace('"version":1', '"version":99'), id="newer"),
    ],
)
async def test_a_damaged_record_pins_its_device_and_is_kept(
    tmp_path: Path, damage: Callable[[str], str]
) -> None:
    """Nobody else gets the device, the claim itself is refused, and the file survives the end of the claim."""
    source = Claims(claim("u1", "gpu-0"), claim("u3", "gpu-0"), claim("u2", "gpu-1", "mig-2-0"))
    before = await Node(tmp_path, source).start()
    await before.prepare("u1")
    await before.ledger.aclose()
    (path,) = (tmp_path / "ledger").glob("claim/boot-1/u1.json")
    damaged = damage(path.read_text())
    path.write_text(damaged)

    after = await Node(tmp_path, source).start()
    assert list(after.handler.damaged) == ["u1"]
    answers = await after.handler.prepare([ref("u1"), ref("u3"), ref("u2")])
    assert isinstance(answers["u1"], ClaimError)
    assert isinstance(answers["u3"], ClaimError)
    assert isinstance(answers["u2"], PreparedClaim), "the neighbours go on"
    assert path.read_text() == damaged

    assert await after.unprepare("u1") is None
    (kept,) = (tmp_path / "ledger/aside").iterdir()
    assert kept.read_text() == damaged
    assert isinstance(await after.prepare("u3"), PreparedClaim)
    await after.ledger.aclose()


@pytest.mark.usefixtures("impatient")
async def test_a_record_of_another_shape_pins_its_device_too(tmp_path: Path) -> None:
    """A later release wrote it: whole, and not to be understood."""
    source = Claims(claim("u1", "gpu-0"), claim("u3", "gpu-0"), claim("u2", "gpu-1"))
    before = await Node(tmp_path, source).start()
    await before.prepare("u1")
    data = {"uid": "u1", "namespace": "ns", "name": "claim-u1", "state": "HalfShared", "devices": []}
    await before.ledger.write("claim", "u1", data)
    await before.ledger.aclose()

    after = await Node(tmp_path, source).start()
    assert list(after.handler.damaged) == ["u1"]
    assert isinstance(await after.prepare("u3"), ClaimError)
    assert isinstance(await after.prepare("u2"), PreparedClaim)
    assert await after.unprepare("u1") is None
    assert isinstance(await after.prepare("u3"), PreparedClaim)
    await after.ledger.aclose()


CRASH = """
import asyncio, os, sys, pathlib
sys.path[:0] = {path!r}
from tests.integration.agent.test_claims import Claims, Node, claim, ref
left = [{index}]
def between(effect):
    if left[0] == 0:
        os.kill(os.getpid(), 9)
    left[0] -= 1
async def main():
    node = await Node(pathlib.Path({directory!r}), Claims(claim("u1", "gpu-0", "mig-2-0")), between=between).start()
    await getattr(node, {call!r})("u1")
asyncio.run(main())
"""


@pytest.mark.parametrize("then", ["prepare", "unprepare"])
@pytest.mark.parametrize(
    ("call", "index"),
    [("prepare", i) for i in range(len(steps(None, Event.PREPARE)))]
    + [("unprepare", i) for i in range(len(steps(ClaimState.PREPARE_COMPLETED, Event.UNPREPARE)))],
)
async def test_kill_between_every_two_effects(tmp_path: Path, call: str, index: int, then: str) -> None:
    """The process dies before effect number `index`; a new one converges on what the kubelet asks next."""
    source = Claims(claim("u1", "gpu-0", "mig-2-0"), claim("u3", "gpu-0"))
    if call == "unprepare":
        first = await Node(tmp_path, source).start()
        await first.prepare("u1")
        await first.ledger.aclose()
    script = CRASH.format(
        path=[str(ROOT), str(ROOT / "operator")], index=index, directory=str(tmp_path), call=call
    )
    died = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert died.returncode == -9, died.stderr

    after = await Node(tmp_path, source).start()
    answer = await getattr(after, then)("u1")
    if then == "prepare":
        assert isinstance(answer, PreparedClaim)
        assert {d.device for d in answer.devices} == {"gpu-0", "mig-2-0"}
        assert (after.specs(), after.state.claims["u1"].state) == ({"u1"}, ClaimState.PREPARE_COMPLETED)
    else:
        assert answer is None
        assert (after.specs(), after.state.claims, list((tmp_path / "ledger/claim/boot-1").iterdir())) == (
            set(),
            {},
            [],
        )
        assert isinstance(await after.prepare("u3"), PreparedClaim), "the device is free again"
    await after.ledger.aclose()


def test_the_crash_points_are_all_effects() -> None:
    """A new effect is a new crash point; the table above counts them from the same source."""
    assert {*steps(None, Event.PREPARE), *steps(ClaimState.PREPARE_COMPLETED, Event.UNPREPARE)} == set(Effect)


def test_specs_are_valid_json(tmp_path: Path) -> None:
    """The runtime reads them with a strict parser."""
    node = Node(tmp_path, Claims(claim("u1", "gpu-0")))

    async def run() -> None:
        await node.start()
        await node.prepare("u1")
        await node.ledger.aclose()

    asyncio.run(run())
    (path,) = node.cdi.iterdir()
    assert json.loads(path.read_text())["kind"] == "gpu.gpupolicy.dev/claim"
