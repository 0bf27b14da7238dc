"""The slice publisher on a real API server: limits, wipes, fields that older servers drop.

The node is an object without a kubelet, so nothing but the test touches its slices.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpupolicy.adapters import kube
from gpupolicy.adapters.kubeletplugin import publisher, slices
from gpupolicy.adapters.slice_store import KubeSliceStore
from tests.cluster.cluster import Cluster
from tests.cluster.control_plane import ControlPlaneOptions
from tests.unit.adapters.kubeletplugin.kubelet import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

DRIVER = "slices.example.com"
NODE = "slices-node"
POOL = f"{NODE}/slices"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
TAINT = {"key": "example.com/sick", "effect": "NoSchedule"}
MEMORY = {"memory": {"value": "10Gi"}}
ESSENTIAL = frozenset({"spec.devices[].consumesCounters", "spec.sharedCounters"})


@pytest.fixture(scope="module")
def old_cluster() -> Iterator[Cluster]:
    """An API server that behaves like 1.34: it drops counters and taints without a word."""
    with Cluster.start(options=ControlPlaneOptions(emulated_version="1.34")) as started:
        yield started


def partitions(cards: int, each: int) -> slices.Pool:
    """Cards with a counter set each, and devices that draw on it."""
    return slices.Pool(
        name=POOL,
        devices=tuple(
            {
                "name": f"gpu-{card}-{n}",
                "attributes": {"type": {"string": "mig"}, "driverVersion": {"version": "580.95.5"}},
                "capacity": MEMORY,
                "consumesCounters": [{"counterSet": f"gpu-{card}", "counters": MEMORY}],
            }
            for card in range(cards)
            for n in range(each)
        ),
        counter_sets=tuple(
            {"name": f"gpu-{card}", "counters": {"memory": {"value": "80Gi"}}} for card in range(cards)
        ),
        partitionable=True,
        essential=ESSENTIAL,
    )


def plain(count: int, **fields: Any) -> slices.Pool:
    return slices.Pool(name=POOL, devices=tuple({"name": f"gpu-{n}", **fields} for n in range(count)))


class Running:
    """A publisher at work for the node of one cluster."""

    def __init__(self, cluster: Cluster, started: publisher.SlicePublisher, owner: slices.Owner) -> None:
        self.admin = cluster.control_plane.admin
        self.publisher = started
        self.owner = owner

    def publish(self, pool: slices.Pool) -> None:
        self.publisher.publish(pool, self.owner)

    def live(self) -> list[dict[str, Any]]:
        items = self.admin.get(SLICES, fieldSelector=f"spec.nodeName={NODE},spec.driver={DRIVER}")["items"]
        return sorted(items, key=lambda item: item["metadata"]["name"])

    def devices(self) -> list[str]:
        return [device["name"] for item in self.live() for device in item["spec"].get("devices") or ()]

    async def complete(self, devices: int) -> publisher.Publication:
        await eventually(
            lambda: self.publisher.publication.complete and self.publisher.publication.devices == devices
        )
        return self.publisher.publication


@asynccontextmanager
async def publishing(cluster: Cluster) -> AsyncIterator[Running]:
    admin = cluster.control_plane.admin
    node = admin.create("/api/v1/nodes", {"metadata": {"name": NODE}})
    owner = slices.Owner(driver=DRIVER, node_name=NODE, node_uid=node["metadata"]["uid"])
    async with kube.Kube.connect(str(cluster.kubeconfig("publisher", ("system:masters",)))) as client:
        store = KubeSliceStore(client, DRIVER, NODE, "test")
        started = publisher.SlicePublisher(
            store, kube.dropped_fields, first_pause_seconds=0.05, resync_seconds=2
        )
        reflector = store.reflector(started)
        tasks = [asyncio.create_task(reflector.run()), asyncio.create_task(started.run())]
        await reflector.synced.wait()
        try:
            yield Running(cluster, started, owner)
        finally:
            for task in tasks:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            admin.delete(SLICES, fieldSelector=f"spec.nodeName={NODE}")
            admin.delete(f"/api/v1/nodes/{NODE}")


async def test_a_node_full_of_partitions_is_published_and_left_alone(cluster: Cluster) -> None:
    """Sixteen cards: more counter sets than one slice holds, more devices than three hold."""
    async with publishing(cluster) as running:
        pool = partitions(16, 25)
        running.publish(pool)
        publication = await running.complete(400)
        assert publication == publisher.Publication(
            complete=True, generation=1, slices=9, devices=400, pool=pool
        )
        live = running.live()
        assert [len(item["spec"].get("devices") or item["spec"]["sharedCounters"]) for item in live] == [
            *[64] * 6,
            16,
            8,
            8,
        ]
        assert running.devices() == [device["name"] for device in pool.devices]
        assert {item["metadata"]["ownerReferences"][0]["uid"] for item in live} == {running.owner.node_uid}
        running.publisher.wake()
        await asyncio.sleep(0.5)
        assert running.live() == live


async def test_a_wipe_is_repaired_and_a_change_costs_one_generation(cluster: Cluster) -> None:
    """A deletion of the whole collection is what a starting kubelet does."""
    async with publishing(cluster) as running:
        running.publish(plain(200))
        await running.complete(200)
        running.publish(plain(201, attributes={"a": {"int": 1}}))
        assert (await running.complete(201)).generation == 2
        for _ in range(3):
            before = {item["metadata"]["uid"] for item in running.live()}
            running.admin.delete(SLICES, fieldSelector=f"spec.nodeName={NODE}")
            await eventually(lambda: len(running.devices()) == 201)
            after = running.live()
            assert before.isdisjoint(item["metadata"]["uid"] for item in after)
            assert {item["spec"]["pool"]["generation"] for item in after} == {2}
        running.publish(slices.Pool(name=POOL, devices=()))
        await eventually(lambda: not running.live())


async def test_a_taint_keeps_the_time_that_the_server_gave_it(cluster: Cluster) -> None:
    """It is stamped once; later changes of the slice carry the stamp on."""
    async with publishing(cluster) as running:
        running.publish(plain(3, taints=[TAINT]))
        await running.complete(3)
        (first,) = running.live()
        stamp = first["spec"]["devices"][0]["taints"][0]["timeAdded"]
        # The stamps have whole seconds.
        await asyncio.sleep(1.1)
        running.publish(plain(2, taints=[TAINT]))
        await running.complete(2)
        (second,) = running.live()
        assert second["metadata"]["resourceVersion"] != first["metadata"]["resourceVersion"]
        assert second["spec"]["devices"][0]["taints"] == [{**TAINT, "timeAdded": stamp}]


async def test_an_invalid_device_is_told_with_the_servers_words(cluster: Cluster) -> None:
    async with publishing(cluster) as running:
        running.publish(plain(1, attributes={"driverVersion": {"version": "v1"}}))
        await eventually(lambda: running.publisher.publication.problem)
        assert "semver" in running.publisher.publication.problem
        running.publish(plain(1))
        await running.complete(1)


async def test_an_old_server_drops_taints_and_gets_the_devices(old_cluster: Cluster) -> None:
    """The loss is reported, and the slices are not written again and again for it."""
    async with publishing(old_cluster) as running:
        running.publish(plain(100, taints=[TAINT]))
        publication = await running.complete(100)
        assert publication.dropped == ("spec.devices[].taints",)
        live = running.live()
        running.publisher.wake()
        await asyncio.sleep(0.5)
        assert running.live() == live


async def test_an_old_server_gets_no_partitions(old_cluster: Cluster) -> None:
    """Without counters its scheduler would hand out every partition of a card at once."""
    async with publishing(old_cluster) as running:
        running.publish(partitions(1, 3))
        await eventually(lambda: running.publisher.publication.problem)
        assert "consumesCounters" in running.publisher.publication.problem
        await asyncio.sleep(0.5)
        assert running.live() == []
        assert not running.publisher.publication.complete
