"""The GpuNode object: made when it is missing, and with what was wanted last when somebody deleted it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpupolicy.adapters import kube
from gpupolicy.agent import gpunode
from gpupolicy.agent.gpunode import GpuNodeObject
from gpupolicy.api.node import GpuNodeStatus, GpuStatus, InstanceStatus, PlacementStatus, ProcessStatus

SPEC = {"gpus": [{"uuid": "GPU-0", "policy": "p", "strategy": "Exclusive", "revision": "r1"}]}


class Api:
    """One GpuNode, and the events about it."""

    def __init__(self) -> None:
        self.object: dict[str, Any] | None = None
        self.made: list[dict[str, Any]] = []
        self.changed = asyncio.Event()

    def standing(self) -> dict[str, Any]:
        return self.object or {}

    def delete(self) -> dict[str, Any]:
        gone, self.object = self.standing(), None
        return gone

    async def create(self, _: kube.Resource, body: dict[str, Any]) -> None:
        if self.object is not None:
            raise kube.AlreadyExists(409, "AlreadyExists", "exists")
        self.made.append(body)
        metadata = {**body["metadata"], "uid": f"uid-{len(self.made)}", "generation": 1}
        self.object = {**body, "metadata": metadata}

    async def apply(self, _: kube.Resource, body: dict[str, Any], **__: object) -> dict[str, Any]:
        if self.object is None:
            raise kube.NotFound(404, "NotFound", "gone")
        self.object["status"] = body["status"]
        return self.object

    async def create_event(self, *_: object, **__: object) -> bool:
        return True

    async def list(self, *_: object, transform: Any = None, **__: object) -> kube.ObjectList:
        return kube.ObjectList([], "1")

    async def watch(self, *_: object, **__: object) -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield None


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpunode, "_PAUSE_SECONDS", 0.0)


def event(change: kube.Change, found: dict[str, Any]) -> kube.Event:
    return kube.Event(change, ("", "gpu-01"), found, None)


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the object tells nobody when it was written
            await asyncio.sleep(0.005)


async def test_an_object_that_was_deleted_comes_back_with_its_spec() -> None:
    """An empty one would withdraw every device, and the controller would divide the cards anew."""
    api, woken = Api(), []
    made = GpuNodeObject(api, "gpu-01", "node-uid", on_spec=lambda: woken.append(1))  # type: ignore[arg-type]
    running = asyncio.create_task(made.run())
    made.report(GpuNodeStatus(gpu_count=1))
    await until(lambda: "status" in api.standing())
    assert api.made[0]["spec"] == {}
    api.standing()["spec"] = SPEC
    made._observed(event(kube.Change.ADDED, api.standing()))
    assert made.spec is not None
    before = made.spec

    made._observed(event(kube.Change.DELETED, api.delete()))
    await until(lambda: "status" in api.standing())
    made._observed(event(kube.Change.ADDED, api.standing()))
    assert made.spec == before
    assert api.made[1]["metadata"]["ownerReferences"][0]["uid"] == "node-uid"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def status(*pids: int, instance: tuple[int, ...] = (), reason: str = "Applied") -> GpuNodeStatus:
    placed = InstanceStatus(
        profile="1g.10gb",
        profile_id=19,
        placement=PlacementStatus(start=0, size=1),
        gpu_instance_id=7,
        processes=[ProcessStatus(pid=pid) for pid in instance],
    )
    processes = [ProcessStatus(pid=pid) for pid in pids]
    card = GpuStatus(uuid="GPU-0", index=0, reason=reason, processes=processes, instances=[placed])
    return GpuNodeStatus(gpu_count=1, gpus=[card])


@pytest.mark.parametrize(
    ("before", "after", "is_news"),
    [
        pytest.param(status(), status(), False, id="nothing"),
        pytest.param(status(1), status(2), False, id="another process"),
        pytest.param(status(1), status(1, 2), False, id="one more"),
        pytest.param(status(instance=(1,)), status(instance=(2,)), False, id="another in an instance"),
        pytest.param(status(), status(1), True, id="the first"),
        pytest.param(status(1), status(), True, id="the last is gone"),
        pytest.param(status(instance=(1,)), status(), True, id="the last in an instance"),
        pytest.param(status(1), status(2, reason="Degraded"), True, id="something else too"),
    ],
)
async def test_short_processes_are_not_written_at_every_look(
    before: GpuNodeStatus, after: GpuNodeStatus, is_news: bool
) -> None:
    """A thousand nodes would write, and the controller read, a hundred statuses a second."""
    made = GpuNodeObject(Api(), "gpu-01", "node-uid", on_spec=lambda: None)  # type: ignore[arg-type]
    made.report(before)
    assert await made._wakeup.wait(0.0)
    made.report(after)
    assert made.status == after
    assert await made._wakeup.wait(0.0) is is_news


async def test_other_processes_are_written_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpunode, "PROCESS_SECONDS", 0.05)
    made = GpuNodeObject(Api(), "gpu-01", "node-uid", on_spec=lambda: None)  # type: ignore[arg-type]
    made.report(status(1))
    await made._wakeup.wait()
    made.report(status(2))
    assert await made._wakeup.wait(60.0)
