"""Storms: many things at once, in an order that a seed decides, on simulated cards and a real ledger.

Other tests ask what comes of one event; these look for what nobody thought of. At every moment what a claim holds
stands as it was prepared. When the storm is over every card becomes what is wanted of it, nothing of ours has turned
foreign, and nothing is left.

`GPUPOLICY_STORMS=100` tries that many seeds instead of the few that judge a change.
"""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pynvml
import pytest

from gpupolicy.adapters.nvml import events
from gpupolicy.agent import claimlist, reconcile
from gpupolicy.core.records import ClaimRecord, ClaimState, PreparedDevice
from tests.integration.agent.agent_node import AgentNode

STORMS = int(os.environ.get("GPUPOLICY_STORMS", "4"))
STEPS = 40
CARDS = 2
LAYOUTS: tuple[tuple[tuple[str, int], ...], ...] = (
    (),
    (("7g.80gb", 1),),
    (("3g.40gb", 2),),
    (("1g.10gb", 7),),
    (("1g.20gb", 4),),
    (("4g.40gb", 1), ("3g.40gb", 1)),
    (("2g.20gb", 3), ("1g.10gb", 1)),
    (("3g.40gb", 1), ("2g.20gb", 1), ("1g.10gb", 2)),
    (("1g.10gb+me", 1), ("1g.10gb", 3)),
)
SYMBOLS = (
    "*",
    "writes",
    "nvmlComputeInstanceDestroy",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGpuInstancePossiblePlacements",
    "nvmlDeviceGetGpuInstanceProfileInfoV",
    "nvmlDeviceGetGpuInstances",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetUUID",
    "nvmlDeviceSetMigMode",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlGpuInstanceDestroy",
    "nvmlGpuInstanceGetComputeInstances",
)
CODES = (1, 4, 9, 10, 15, 17, 19, 999)


class Storm:
    """What happens to one agent, and what may never be."""

    def __init__(self, node: AgentNode, seed: int) -> None:
        self.node = node
        self.dice = Random(seed)
        self.wanted: dict[int, tuple[tuple[str, int], ...]] = {}
        self.claims = 0
        self.told: list[str] = []
        self.running = asyncio.create_task(node.loop.run())

    def step(self) -> str:
        """Choose what happens next."""
        weights = {
            "claim": 8,
            "release": 6,
            "want": 5,
            "fault": 5,
            "recover": 2,
            "lose": 1,
            "restart": 2,
            "end_faults": 2,
        }
        (chosen,) = self.dice.choices(list(weights), list(weights.values()))
        return chosen

    async def rage(self) -> None:
        for index in range(CARDS):
            await self.want(index)
        for _ in range(STEPS):
            name = self.step()
            self.told.append(name)
            await getattr(self, name)()
            await asyncio.sleep(self.dice.choice((0.0, 0.01, 0.05, 0.2)))
            self.check_what_is_held()

    async def calm(self) -> None:
        """End everything that disturbs, but for the claims."""
        await self.end_faults()
        for index in range(CARDS):
            self.node.simulator.recover(index)

    async def want(self, index: int | None = None) -> None:
        index = self.dice.randrange(CARDS) if index is None else index
        layout = self.wanted[index] = self.dice.choice(LAYOUTS)
        self.told.append(f"card {index}: {layout}")
        self.node.want(index, *layout, revision=str(layout))
        self.node.state.reconcile.set()

    async def claim(self) -> None:
        """Allocate and prepare a device in one moment: the API server and the kubelet are others' business."""
        held = {d.device.name for c in self.node.state.claims.values() for d in c.devices}
        free = [
            name
            for name, device in sorted(self.node.slices.devices.items())
            if not device.taints and name not in held and name in self.node.state.devices
        ]
        if not free:
            return
        device = self.node.state.devices[self.dice.choice(free)]
        self.claims += 1
        uid = f"uid-{self.claims}"
        self.told.append(f"{uid} gets {device.name}")
        self.node.claims.allocate(uid.removeprefix("uid-"), device.name, f"pod-{self.claims}")
        async with self.node.state.hold([device.gpu_uuid]):
            if self.node.state.devices.get(device.name) != device:
                # A change of the card came first; a prepare would wait and be refused.
                del self.node.claims.objects[uid.removeprefix("uid-")]
                return
            prepared = PreparedDevice(device, self.node.state.pool)
            await self.node.state.save_claim(
                ClaimRecord(uid, "ns", uid, ClaimState.PREPARE_COMPLETED, (prepared,))
            )

    async def release(self) -> None:
        claims = sorted(self.node.state.claims)
        if claims:
            uid = self.dice.choice(claims)
            self.told.append(uid)
            await self.node.state.drop_claim(uid)
            self.node.claims.objects.pop(uid.removeprefix("uid-"), None)

    async def fault(self) -> None:
        fault: dict[str, Any] = {
            "symbol": self.dice.choice(SYMBOLS),
            "code": self.dice.choice(CODES),
            "gpu": self.dice.choice((None, 0, 1)),
            "skip": self.dice.randrange(4),
            "count": self.dice.choice((1, 1, 2, 5)),
            "mode": self.dice.choice(("before", "before", "after")),
        }
        self.told.append(str(fault))
        self.node.simulator.add_fault(**fault)

    async def end_faults(self) -> None:
        self.node.simulator.clear_faults()

    async def lose(self) -> None:
        self.node.simulator.lose(self.dice.randrange(CARDS), quiet=True)

    async def recover(self) -> None:
        self.node.simulator.recover(self.dice.randrange(CARDS))

    async def restart(self) -> None:
        await self.end()
        await self.node.loop.drain()
        await self.node.nvml.close()
        await self.node.ledger.aclose()
        await self.node.start()
        self.running = asyncio.create_task(self.node.loop.run())

    async def end(self) -> None:
        """End the loop; what ended it before fails the test."""
        self.running.cancel()
        with suppress(asyncio.CancelledError):
            await self.running

    def check_what_is_held(self) -> None:
        """What a claim holds stands, and is what was prepared."""
        cards = {gpu["uuid"]: gpu for gpu in self.node.simulator.dump()["gpus"]}
        for claim in self.node.state.claims.values():
            for held in claim.devices:
                card = cards[held.device.gpu_uuid]
                if held.device.placement is None:
                    assert not card["mig_current"], f"{held.device.name} of {claim.uid}: {self.told}"
                    continue
                standing = {
                    (i["profile_id"], i["start"]): [c["uuid"] for c in i["compute_instances"]]
                    for i in card["gpu_instances"]
                }
                place = (held.device.profile_id, held.device.placement.start)
                assert standing.get(place) == [held.device.mig_uuid], (
                    f"{held.device.name} of {claim.uid}: {self.told}"
                )

    def is_settled(self) -> bool:
        """Whether every card is what is wanted, or waits for claims and for nothing else; and says so."""
        status = self.node.wish.status
        # A card that never answered the agent has no entry yet.
        if (
            status is None
            or status.observed_generation != self.node.wish.generation
            or len(status.gpus) != CARDS
        ):
            return False
        return all(
            self.is_as_wanted(i) or self.node.card(i).reason == "WaitingForClaims" for i in range(CARDS)
        )

    def is_as_wanted(self, index: int) -> bool:
        told, layout = self.node.card(index), self.wanted[index]
        stands = Counter(profile for profile, _ in self.node.simulator.layout(index))
        published = Counter(
            d.record.profile for d in self.node.slices.devices.values() if d.record.gpu_uuid == told.uuid
        )
        return (
            (told.reason, told.applied_revision) == ("Applied", str(layout))
            and stands == Counter(dict(layout))
            and published == Counter(dict(layout) or {"": 1})
        )


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AgentNode]:
    monkeypatch.setattr(events, "WAIT_SECONDS", 0.05)
    monkeypatch.setattr(reconcile, "_RETRY_SECONDS", (0.05, 0.2))
    monkeypatch.setattr(claimlist, "_LOOK_SECONDS", (0.05, 0.2))
    made = AgentNode(tmp_path)
    made.simulator.create(gpus=CARDS)
    async with made:
        yield made
    # After some faults the agent starts NVML again without having ended it, which counts in this process.
    with suppress(pynvml.NVMLError):
        while True:
            pynvml.nvmlShutdown()


@pytest.mark.parametrize("seed", range(STORMS))
async def test_a_storm_breaks_nothing_and_ends(node: AgentNode, seed: int) -> None:
    storm = Storm(node, seed)
    try:
        await storm.rage()
        await storm.calm()
        await until(storm, storm.is_settled)
        storm.check_what_is_held()
        owners = {i.ownership for index in range(CARDS) for i in node.card(index).instances}
        assert owners <= {"Owned"}, storm.told
        while node.state.claims:
            await storm.release()
        await until(storm, lambda: all(storm.is_as_wanted(index) for index in range(CARDS)))
    finally:
        await storm.end()


async def until(storm: Storm, condition: Any) -> None:
    """Wait until something holds; else tell what the storm was."""
    try:
        async with asyncio.timeout(120):
            while not condition():
                await asyncio.sleep(0.02)
                if storm.running.done():
                    storm.running.result()
    except TimeoutError:
        cards = storm.node.wish.status.gpus if storm.node.wish.status else ()
        told = [(g.index, g.reason, g.message, g.layout) for g in cards]
        pytest.fail(f"not within two minutes: {told}, wanted {storm.wanted}, after {storm.told}")
