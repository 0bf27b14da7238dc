"""Prepare and unprepare: what a claim gets, what it waits for, and why it is refused."""

import asyncio
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpupolicy.adapters import cdi
from gpupolicy.adapters.kubeletplugin.claims import ClaimError, PreparedClaim
from gpupolicy.agent import claims as agent_claims
from gpupolicy.core.prepare import Effect
from gpupolicy.core.records import DeviceKind, DeviceRecord
from tests.integration.agent.claims.claims_node import (
    GPU,
    GPU1,
    Claims,
    Node,
    claim,
    edits_of,
    ref,
)


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
