"""What outlives a claim, a call or the process: sweeps, lost CDI files, damaged records, kill -9 between every two effects."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpupolicy.adapters import cdi
from gpupolicy.adapters.kubeletplugin.claims import ClaimError, PreparedClaim
from gpupolicy.core.prepare import Effect, Event, steps
from gpupolicy.core.records import ClaimState
from tests.integration.agent.claims.claims_node import (
    DEVICES,
    GPU,
    MIG,
    Claims,
    Node,
    claim,
    edits_of,
    ref,
)
from tests.paths import ROOT


async def test_a_lost_cdi_file_is_written_again(node: Node) -> None:
    """Somebody emptied the directory; the next call heals it."""
    await node.prepare("u1")
    cdi.remove_spec(node.cdi, "gpu.gpupolicy.dev/claim", "u1")
    await node.prepare("u1")
    assert node.specs() == {"u1"}


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
from tests.integration.agent.claims.claims_node import Claims, Node, claim, ref
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
