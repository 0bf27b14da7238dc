"""A layout change that is interrupted at every point: by an error of any NVML call, by kill -9 between two effects.

Each time the same agent, or the next one, ends at the wanted layout and touches nothing foreign.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpupolicy.adapters.nvml import events
from gpupolicy.adapters.nvml.errors import NvmlError
from gpupolicy.agent import reconcile
from gpupolicy.core.inventory import Gpu, Instance, Placement
from tests.integration.agent.agent_node import AgentNode
from tests.paths import ROOT

BEFORE = (("2g.20gb", 2), ("1g.10gb", 1))
AFTER = (("3g.40gb", 1), ("1g.10gb", 3))
FOREIGN = Placement(6, 1)
WRITES = (
    "nvmlDeviceSetMigMode",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
)


@pytest.fixture(autouse=True)
def quick_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "WAIT_SECONDS", 0.02)
    monkeypatch.setattr(reconcile, "_RETRY_SECONDS", (0.05, 1.0))


def profiles(node: AgentNode, index: int) -> list[str]:
    return sorted(profile for profile, _ in node.simulator.layout(index))


def expected(layout: Sequence[tuple[str, int]]) -> list[str]:
    return sorted(profile for profile, count in layout for _ in range(count))


async def calls_of_a_change(directory: Path) -> tuple[int, int]:
    """Return how many calls were made before the change, and until it was done; a fault at any of them hits."""
    node = AgentNode(directory)
    node.simulator.create()
    async with node:
        node.want(0, *BEFORE)
        await node.until_applied(0)
        node.simulator.reset_counters()
        node.want(0, *AFTER, revision="r2")
        await node.until_applied(0, revision="r2")
        return sum(node.simulator.calls().values()), node.simulator.writes()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["before", "after"], ids=["no effect", "effect, then error"])
async def test_an_error_at_every_call_of_a_change(tmp_path: Path, mode: str) -> None:
    """An injected error delays the change and does nothing else; the neighbour never notices."""
    total, _ = await calls_of_a_change(tmp_path / "count")
    assert total > 50
    node = AgentNode(tmp_path / "node")
    node.simulator.create(gpus=2)
    async with node:
        node.want(0, *BEFORE)
        node.want(1, *BEFORE)
        await node.until_applied(0, 1)
        neighbour = node.simulator.gpu(1)
        hits = 0
        for call in range(total):
            layout, revision = (AFTER, BEFORE)[call % 2], f"r-{call}"
            # Calls that are made in another order next time do not matter: over the loop all of them are hit.
            fault = node.simulator.add_fault("*", gpu=0, skip=call, count=1, mode=mode)
            node.want(0, *layout, revision=revision)
            await node.until_applied(0, revision=revision)
            assert profiles(node, 0) == expected(layout), f"after an error at call {call}"
            hits += next((f["hits"] for f in node.simulator.dump()["faults"] if f["id"] == fault), 1)
            node.simulator.clear_faults()
            await node.until(lambda: node.card(0).health == "Healthy")
        assert hits > total // 2
        assert node.simulator.gpu(1) == neighbour


@pytest.mark.parametrize("mode", ["before", "after"], ids=["no effect", "effect, then error"])
@pytest.mark.parametrize("symbol", WRITES)
async def test_an_error_of_every_kind_of_write(tmp_path: Path, symbol: str, mode: str) -> None:
    node = AgentNode(tmp_path)
    node.simulator.create()
    async with node:
        node.simulator.add_fault(symbol, mode=mode, count=1)
        node.want(0, *BEFORE)
        await node.until_applied(0)
        node.want(0, *AFTER, revision="r2")
        await node.until_applied(0, revision="r2")
        node.want(0, revision="r3")
        await node.until_applied(0, revision="r3")
        assert node.layout(0) == []
        assert not node.simulator.gpu(0)["mig_current"]


@pytest.mark.parametrize("symbol", WRITES)
async def test_a_write_that_never_works_degrades_the_card_and_destroys_nothing_more(
    tmp_path: Path, symbol: str
) -> None:
    node = AgentNode(tmp_path)
    node.simulator.create(gpus=2)
    async with node:
        node.want_all(("7g.80gb", 1))
        await node.until_applied(0, 1)
        node.simulator.add_fault(symbol, gpu=0, count=-1)
        node.want_all(revision="r2")
        if symbol in WRITES[1:3]:
            node.want_all(*AFTER, revision="r2")
        await node.until(lambda: node.are_applied([1], "r2") and node.card(0).reason == "Degraded")
        assert "card 0" in (node.card(0).message or "")
        node.simulator.clear_faults()
        await node.until_applied(0, 1, revision="r2")


CHILD = """
import asyncio, json, os, signal, sys
from pathlib import Path
from gpupolicy.adapters.ledger import Ledger
from gpupolicy.adapters.nvml import events, library
from tests.integration.agent.agent_node import AgentNode

directory, point, layout = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
events.WAIT_SECONDS = 0.02
seen = 0


def effect(name):
    global seen
    if seen == point:
        os.kill(os.getpid(), signal.SIGKILL)
    seen += 1


def around(name, call):
    effect(f"before {name}")
    result = call()
    effect(f"after {name}")
    return result


call = library.Library.call


def counted(self, name, *arguments):
    if name in WRITES:
        return around(name, lambda: call(self, name, *arguments))
    return call(self, name, *arguments)


write = Ledger.write


async def recorded(self, kind, key, data, **options):
    effect("before ledger")
    result = await write(self, kind, key, data, **options)
    effect("after ledger")
    return result


library.Library.call = counted
Ledger.write = recorded


async def main():
    node = AgentNode(directory)
    async with node:
        node.want(0, *[tuple(entry) for entry in layout], revision="r2", adopt=False)
        await node.until_applied(0, revision="r2")


asyncio.run(main())
print(json.dumps(seen))
"""


def run_child(
    directory: Path, point: int, layout: Sequence[tuple[str, int]]
) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, PYTHONPATH=f"{ROOT / 'operator'}:{ROOT}")
    return subprocess.run(
        [
            sys.executable,
            "-c",
            f"WRITES = {WRITES!r}\n{CHILD}",
            str(directory),
            str(point),
            json.dumps(layout),
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(BEFORE, AFTER, id="another layout"),
        pytest.param((), AFTER, id="whole to cut"),
        pytest.param(BEFORE, (), id="cut to whole"),
    ],
)
async def test_kill_between_every_two_effects(
    tmp_path: Path, before: tuple[tuple[str, int], ...], after: tuple[tuple[str, int], ...]
) -> None:
    """The agent dies at each point of the change; the next one knows what is ours and ends at the wanted layout."""
    points = 0
    while True:
        directory = tmp_path / str(points)
        directory.mkdir()
        node = AgentNode(directory)
        node.simulator.create(seed=f"node-{points}")
        async with node:
            node.want(0, *before)
            await node.until_applied(0)
        done = await asyncio.to_thread(run_child, directory, points, after)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        async with node:
            node.want(0, *after, revision="r2")
            await node.until_applied(0, revision="r2")
            assert profiles(node, 0) == expected(after), f"after a kill at point {points}"
            assert {i.ownership for i in node.card(0).instances} <= {"Owned"}
            assert len(node.slices.shown) == (len(expected(after)) or 1)
        points += 1
    assert points == json.loads(done.stdout)
    assert points >= 8


async def test_a_foreign_instance_survives_every_interruption(tmp_path: Path) -> None:
    """What we did not make is never destroyed, whatever we left half done beside it."""
    node = AgentNode(tmp_path)
    node.simulator.create()
    async with node:
        node.want(0, ("2g.20gb", 2))
        await node.until_applied(0)
        uuid = node.card(0).uuid
        foreign = await node.nvml.create_instance(uuid, 19, FOREIGN)
        for symbol in WRITES:
            node.simulator.add_fault(symbol, count=1, mode="after")
            node.want(0, ("2g.20gb", 3), revision=symbol)
            await node.until(lambda: node.card(0).reason == "OwnershipConflict" and node.has_seen_wish())
            node.simulator.clear_faults()
        await node.restart()
        await node.until(lambda: node.wish.status is not None and node.card(0).reason == "OwnershipConflict")
        assert foreign.uuid in {i.uuid for i in node.card(0).instances}


async def test_an_instance_that_somebody_made_in_our_place_is_never_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came between the look and the deed, and then the card could not be read: the intent alone proves nothing."""
    node = AgentNode(tmp_path)
    node.simulator.create()
    async with node:
        node.want(0, ("1g.10gb", 1))
        await node.until_applied(0)
        create, read = node.nvml.create_instance, node.nvml.read
        beaten: list[Instance] = []
        unreadable = [False]

        async def create_after_somebody_else(uuid: str, profile_id: int, placement: Placement) -> Instance:
            if not beaten:
                beaten.append(await create(uuid, profile_id, placement))
                unreadable[0] = True
            return await create(uuid, profile_id, placement)

        async def read_once_more(uuid: str) -> Gpu:
            if unreadable[0]:
                unreadable[0] = False
                raise NvmlError("nvmlDeviceGetUUID", 999, "unknown error")
            return await read(uuid)

        monkeypatch.setattr(node.nvml, "create_instance", create_after_somebody_else)
        monkeypatch.setattr(node.nvml, "read", read_once_more)
        node.want(0, ("1g.10gb", 2), revision="r2")
        await node.until(lambda: node.card(0).reason == "OwnershipConflict")
        node.want(0, ("7g.80gb", 1), revision="r3")
        await node.until(lambda: node.card(0).reason == "OwnershipConflict" and node.has_seen_wish())
        await node.restart()
        await node.until(lambda: node.wish.status is not None and node.card(0).reason == "OwnershipConflict")
        standing = {i.uuid: i.ownership for i in node.card(0).instances}
        assert standing[beaten[0].uuid] == "Foreign"
