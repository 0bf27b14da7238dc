"""The shared memory of the agent: signals coalesce, locks have one order, the ledger comes first."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from gpupolicy.agent.state import NodeState, Wakeup
from gpupolicy.core import records
from gpupolicy.core.inventory import Placement


class Memory:
    """A ledger that keeps records in a dict, or refuses."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], dict[str, Any]] = {}
        self.full = False

    async def write(self, kind: str, key: str, data: Mapping[str, Any]) -> object:
        if self.full:
            raise OSError("no space left")
        self.records[kind, key] = dict(data)
        return None

    async def remove(self, kind: str, key: str) -> bool:
        if self.full:
            raise OSError("no space left")
        return self.records.pop((kind, key), None) is not None


def claim(uid: str, gpu: str, *, start: int | None = None) -> records.ClaimRecord:
    place = {} if start is None else {"profile_id": 19, "placement": Placement(start, 1)}
    kind = records.DeviceKind.GPU if start is None else records.DeviceKind.MIG
    device = records.DeviceRecord("d", kind, "p", gpu, **place)
    return records.ClaimRecord(
        uid, "ns", uid, records.ClaimState.PREPARE_STARTED, (records.PreparedDevice(device, "pool"),)
    )


async def test_a_wakeup_coalesces() -> None:
    wakeup = Wakeup()
    wakeup.set()
    wakeup.set()
    assert await wakeup.wait(0)
    assert not await wakeup.wait(0)


async def test_a_wakeup_wakes_who_waits() -> None:
    wakeup = Wakeup()
    waiter = asyncio.create_task(wakeup.wait())
    await asyncio.sleep(0)
    wakeup.set()
    assert await waiter


async def test_a_late_wakeup_comes_once_and_not_at_once() -> None:
    """Whatever asks again meanwhile; and something urgent takes its place."""
    wakeup = Wakeup()
    wakeup.set_within(1.0)
    wakeup.set_within(600)
    assert not await wakeup.wait(0)
    assert await wakeup.wait(60)
    assert not await wakeup.wait(0.05)
    wakeup.set_within(0.02)
    wakeup.set()
    assert await wakeup.wait(0)
    assert not await wakeup.wait(0.05)
    wakeup.set()
    wakeup.set_within(0.02)
    assert await wakeup.wait(0)
    assert not await wakeup.wait(0.05), "what was asked for before the look is seen by it"


async def test_cards_are_held_apart_and_without_deadlock() -> None:
    state = NodeState("n", Memory())
    order: list[str] = []

    async def work(name: str, *gpus: str) -> None:
        async with state.hold(gpus):
            order.append(f"+{name}")
            await asyncio.sleep(0)
            order.append(f"-{name}")

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(work("ab", "a", "b"))
        group.create_task(work("ba", "b", "a"))
        group.create_task(work("c", "c"))
    assert order.index("-ab") < order.index("+ba")
    assert order.index("+c") < order.index("-ab")


async def test_a_claim_that_could_not_be_written_is_not_known() -> None:
    ledger = Memory()
    state = NodeState("n", ledger)
    ledger.full = True
    with pytest.raises(OSError, match="space"):
        await state.save_claim(claim("u", "GPU-1"))
    assert state.claims == {}
    ledger.full = False
    await state.save_claim(claim("u", "GPU-1"))
    ledger.full = True
    with pytest.raises(OSError, match="space"):
        await state.drop_claim("u")
    assert set(state.claims) == {"u"}


async def test_a_dropped_claim_wakes_the_loop_and_who_waits() -> None:
    state = NodeState("n", Memory())
    await state.save_claim(claim("u", "GPU-1"))

    async def freed() -> None:
        async with state.changed:
            await state.changed.wait_for(lambda: not state.claims)

    waiter = asyncio.create_task(freed())
    await asyncio.sleep(0)
    await state.drop_claim("u")
    await asyncio.wait_for(waiter, 60)
    assert await state.reconcile.wait(60)


async def test_a_card_record_is_in_the_ledger_and_in_memory() -> None:
    ledger = Memory()
    state = NodeState("n", ledger)
    record = records.GpuRecord("GPU-1", policy="infer")
    await state.save_gpu(record)
    assert state.gpus == {"GPU-1": record}
    assert records.decode_gpu(ledger.records["gpu", "GPU-1"]) == record


async def test_holders_tell_a_card_from_its_instances() -> None:
    state = NodeState("n", Memory())
    for record in (claim("b", "GPU-1", start=0), claim("a", "GPU-1"), claim("c", "GPU-2")):
        await state.save_claim(record)
    key = records.InstanceKey("GPU-1", 19, Placement(0, 1))
    assert [c.uid for c in state.holders("GPU-1")] == ["a"]
    assert [c.uid for c in state.holders("GPU-1", key)] == ["b"]
    assert state.holders("GPU-1", records.InstanceKey("GPU-1", 19, Placement(1, 1))) == ()
