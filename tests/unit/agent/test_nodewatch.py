"""What a device plugin advertises, and that a plugin which restarts is not taken for gone."""

import asyncio
from typing import Any

import pytest

from gpupolicy.agent import nodewatch
from gpupolicy.agent.nodewatch import NodeWatch, advertised


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({"allocatable": {"cpu": "8", "nvidia.com/gpu": "8"}}, "nvidia.com/gpu: 8"),
        (
            {"allocatable": {"nvidia.com/mig-1g.10gb": "7", "nvidia.com/gpu": "4"}},
            "nvidia.com/gpu: 4, nvidia.com/mig-1g.10gb: 7",
        ),
        ({"allocatable": {"nvidia.com/gpu": "0"}, "capacity": {"nvidia.com/gpu": "8"}}, ""),
        ({"capacity": {"nvidia.com/gpu": "8"}}, ""),
        ({"allocatable": {"nvidia.com/gpu.shared": "80"}}, "nvidia.com/gpu.shared: 80"),
        ({"allocatable": {"nvidia.com/hostdev": "8", "nvidia.com/sriov_rdma": "4"}}, ""),
        ({"allocatable": {"amd.com/gpu": "8"}}, ""),
        ({}, ""),
        (None, ""),
    ],
    ids=[
        "whole cards",
        "slices",
        "stale capacity",
        "capacity only",
        "shares",
        "network cards",
        "another vendor",
        "nothing",
        "no status",
    ],
)
def test_only_what_is_allocatable_is_advertised(status: dict[str, Any] | None, words: str) -> None:
    assert advertised({"status": status}) == words


def test_a_plugin_is_gone_when_it_was_gone_twice() -> None:
    told: list[str] = []
    watch = NodeWatch(None, "n")  # type: ignore[arg-type]
    watch.on_change = lambda: told.append(watch.device_plugin)
    for found in ["nvidia.com/gpu: 8", "", "nvidia.com/gpu: 8", "", "", "", "nvidia.com/gpu: 8"]:
        watch._judge(found)
    assert told == ["nvidia.com/gpu: 8", "", "nvidia.com/gpu: 8"]


@pytest.mark.parametrize("is_asked", [True, False], ids=["its UID was given out", "nobody knows its UID"])
async def test_a_node_that_was_made_again_is_noticed(
    monkeypatch: pytest.MonkeyPatch, *, is_asked: bool
) -> None:
    """What belongs to the Node of before is collected as often as it is made."""
    uids = iter(["a", "a", "a", "b"])
    last = asyncio.Event()

    class Api:
        async def get(self, *_: object) -> dict[str, Any]:
            uid = next(uids, None)
            if uid is None:
                last.set()
                await asyncio.Event().wait()
            return {"metadata": {"name": "n", "uid": uid}}

    monkeypatch.setattr(nodewatch, "LOOK_SECONDS", 0.0)
    watch = NodeWatch(Api(), "n")  # type: ignore[arg-type]
    told: list[str] = []
    watch.on_replaced = lambda: told.append("replaced")
    if is_asked:
        assert await watch.uid() == "a"
    running = asyncio.create_task(watch.run())
    async with asyncio.timeout(60):
        await last.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert told == (["replaced"] if is_asked else [])
