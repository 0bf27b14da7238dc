"""When a device may still be allocated: in the wish, shown, or hidden for too short a time."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpupolicy.adapters import kube
from gpupolicy.agent.publication import Publication
from gpupolicy.core.devices import Device
from gpupolicy.core.records import DeviceKind, DeviceRecord


class Api:
    """The ResourceSlices of an API server that answers when it is let."""

    def __init__(self) -> None:
        self.slices: dict[str, dict[str, Any]] = {}
        self.version = 0
        self.drop_taints = False
        self.up = asyncio.Event()
        self.up.set()

    async def list(self, *_: object, **__: object) -> kube.ObjectList:
        await self.up.wait()
        return kube.ObjectList(list(self.slices.values()), str(self.version))

    def _store(self, item: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        metadata = {**item["metadata"], "resourceVersion": str(self.version)}
        metadata.setdefault("uid", f"uid-{item['metadata']['name']}")
        spec = item["spec"]
        if self.drop_taints:
            devices = [{k: v for k, v in d.items() if k != "taints"} for d in spec["devices"]]
            spec = {**spec, "devices": devices}
        stored = {**item, "metadata": metadata, "spec": spec}
        self.slices[metadata["name"]] = stored
        return stored

    async def create(self, _: object, item: dict[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        await self.up.wait()
        return self._store(item)

    async def replace(self, _: object, item: dict[str, Any]) -> dict[str, Any]:
        await self.up.wait()
        return self._store(item)

    async def delete(self, _: object, name: str, **__: object) -> None:
        await self.up.wait()
        self.slices.pop(name, None)

    async def watch(self, *_: object, **__: object) -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield None

    def names(self) -> set[str]:
        return {d["name"] for s in self.slices.values() for d in s["spec"].get("devices", [])}


def device(name: str, **fields: Any) -> Device:
    return Device(DeviceRecord(name, DeviceKind.GPU, "p", "GPU-0"), {"type": "gpu"}, {}, **fields)


@pytest.fixture
async def api() -> Api:
    return Api()


@pytest.fixture
async def publication(api: Api) -> AsyncIterator[Publication]:
    made = Publication(api, "gpu-01", "node-uid")  # type: ignore[arg-type]
    task = asyncio.create_task(made.run())
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def settled(publication: Publication) -> None:
    async with asyncio.timeout(60):
        await publication.settled()


async def test_what_is_wished_for_is_shown(api: Api, publication: Publication) -> None:
    assert publication.shown == frozenset()
    publication.publish([device("a"), device("b")])
    assert publication.shown == frozenset(), "not before the API server has it"
    assert not publication.is_settled
    await settled(publication)
    assert publication.shown == api.names() == {"a", "b"}


async def test_before_the_first_confirmation_anything_may_be_shown(publication: Publication) -> None:
    """A predecessor may have published whatever it liked."""
    assert publication.may_be_shown("anything")
    publication.publish([device("a")])
    assert publication.may_be_shown("anything")
    await settled(publication)
    assert not publication.may_be_shown("anything")
    assert publication.may_be_shown("anything", settle_seconds=60)


async def test_a_withdrawn_device_may_be_shown_until_the_api_server_says_otherwise(
    api: Api, publication: Publication
) -> None:
    publication.publish([device("a"), device("b")])
    await settled(publication)
    api.up.clear()
    publication.publish([device("b")])
    await asyncio.sleep(0.05)
    assert publication.may_be_shown("a")
    assert publication.shown == {"b"}, "a is not wished for any more"
    api.up.set()
    await settled(publication)
    assert not publication.may_be_shown("a")
    assert publication.may_be_shown("a", settle_seconds=60), "a scheduler's cache may be a moment behind"
    assert publication.may_be_shown("b")


async def test_a_wish_that_was_overtaken_may_have_been_written(api: Api, publication: Publication) -> None:
    publication.publish([device("a")])
    await settled(publication)
    api.up.clear()
    publication.publish([device("a"), device("late")])
    await asyncio.sleep(0.05)
    publication.publish([device("a")])
    assert publication.may_be_shown("late"), "the write of it is under way"
    api.up.set()
    async with asyncio.timeout(60):
        while api.names() != {"a"} or publication.may_be_shown("late"):  # noqa: ASYNC110 - as a layout change waits
            await asyncio.sleep(0.01)
    assert publication.is_settled


async def test_a_wish_that_was_taken_back_before_anybody_looked_is_forgotten(
    publication: Publication,
) -> None:
    """Nothing had to be written for it; else the card of that device could never be changed again."""
    publication.publish([device("a")])
    await settled(publication)
    publication.publish([device("a"), device("late")])
    publication.publish([device("a")])
    assert publication.may_be_shown("late")
    async with asyncio.timeout(60):
        while publication.may_be_shown("late"):  # noqa: ASYNC110 - as a layout change waits
            await asyncio.sleep(0.01)


async def test_a_device_that_comes_back_is_shown_again(publication: Publication) -> None:
    publication.publish([device("a")])
    await settled(publication)
    publication.publish([])
    await settled(publication)
    assert not publication.may_be_shown("a")
    publication.publish([device("a")])
    assert publication.may_be_shown("a")


async def test_an_api_server_that_drops_taints_is_noticed(api: Api, publication: Publication) -> None:
    from gpupolicy.core.devices import Taint

    assert publication.taints_served
    api.drop_taints = True
    publication.publish([device("a", taints=(Taint("gpupolicy.dev/unhealthy"),))])
    await settled(publication)
    assert not publication.taints_served
    assert publication.dropped == ("spec.devices[].taints",)


async def test_slices_of_others_are_none_of_ours(api: Api, publication: Publication) -> None:
    publication.publish([device("a")])
    await settled(publication)
    (own,) = api.slices.values()
    assert own["spec"]["pool"]["name"] == "gpu-01/gpupolicy"
    assert own["metadata"]["ownerReferences"][0]["uid"] == "node-uid"
