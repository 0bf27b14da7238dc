"""The publisher against a store in memory: what it repairs, what it refuses, and that it never runs hot.

What a real API server does with the same writes is shown in tests/integration/adapters.
"""

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpupolicy.adapters import kube
from gpupolicy.adapters.kubeletplugin import publisher, slices
from tests.unit.adapters.kubeletplugin.kubelet import eventually
from tests.unit.adapters.kubeletplugin.test_slices import (
    OWNER,
    POOL,
    Server,
    counter_sets,
    device,
    devices,
    pool,
)

NOT_FOUND = "not there any more"


class Store:
    """A store that can fail, drop fields and be meddled with; it tells the publisher of every change, as a watch does."""

    def __init__(self) -> None:
        self.server = Server()
        self.calls: list[str] = []
        self.failures: list[Exception] = []
        self.failing: str | None = None
        self.drop: Callable[[slices.Object], None] = lambda item: None
        self.drop_stored: Callable[[slices.Object], None] = lambda item: None
        self.listener: publisher.SlicePublisher | None = None
        self.in_flight = 0
        self.most_in_flight = 0

    def _called(self, verb: str) -> None:
        self.calls.append(verb)
        if self.failures:
            raise self.failures.pop(0)
        if self.failing == verb:
            raise ConnectionError("the API server is away")

    def tell(self, change: str, item: slices.Object) -> None:
        if self.listener is not None:
            self.listener.observe(change, copy.deepcopy(item))

    async def list(self) -> Sequence[slices.Object]:
        self._called("list")
        return copy.deepcopy([*self.server.items.values()])

    async def create(self, item: slices.Object, *, dry_run: bool = False) -> slices.Object:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await asyncio.sleep(0)
        self.in_flight -= 1
        self._called("probe" if dry_run else "create")
        stored = copy.deepcopy(item)
        self.drop(stored)
        if dry_run:
            assert "ownerReferences" not in item["metadata"]
            return stored
        self.drop_stored(stored)
        self.server.create(stored)
        return self._stored(item, "ADDED")

    async def replace(self, item: slices.Object) -> slices.Object:
        self._called("replace")
        stored = copy.deepcopy(item)
        self.drop(stored)
        self.drop_stored(stored)
        self.server.replace(stored)
        return self._stored(item, "MODIFIED")

    async def delete(self, item: slices.Object) -> None:
        self._called("delete")
        live = self.server.items.get(item["metadata"]["name"])
        if live is not None and live["metadata"]["uid"] == item["metadata"]["uid"]:
            self.wipe(item["metadata"]["name"])

    def wipe(self, *names: str) -> None:
        for name in names or list(self.server.items):
            self.tell("DELETED", self.server.items.pop(name))

    def _stored(self, item: slices.Object, change: str) -> slices.Object:
        stored = self.server.items[item["metadata"]["name"]]
        self.tell(change, stored)
        return copy.deepcopy(stored)


@asynccontextmanager
async def running(store: Store, **options: Any) -> AsyncIterator[publisher.SlicePublisher]:
    options = {"first_pause_seconds": 0.01, **options}
    started = publisher.SlicePublisher(store, kube.dropped_fields, **options)
    store.listener = started
    task = asyncio.create_task(started.run())
    yield started
    store.listener = None
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def shown(store: Store) -> list[str]:
    return store.server.visible().get(POOL, [])


def names(wanted: slices.Pool) -> list[str]:
    return [each["name"] for each in wanted.devices]


async def settle() -> None:
    """Let everything that is about to happen happen."""
    await asyncio.sleep(0.05)


WANTED = pool(*devices(150))


async def test_nothing_is_touched_before_the_first_wish() -> None:
    """A driver that does not know its devices yet must not withdraw those of its predecessor."""
    store = Store()
    store.server.converge(WANTED)
    async with running(store, resync_seconds=0.01) as started:
        started.wake()
        await settle()
        assert store.calls == []
        assert started.publication == publisher.Publication()


async def test_a_wish_is_published_once() -> None:
    """And the echo of our own writes is no reason to look again."""
    store = Store()
    heard: list[publisher.Publication] = []
    async with running(store, on_change=heard.append) as started:
        started.publish(WANTED, OWNER)
        await eventually(lambda: started.publication.complete)
        await settle()
        started.publish(WANTED, OWNER)
        await settle()
        assert shown(store) == names(WANTED)
        assert store.calls.count("create") == 2
        assert store.calls.count("list") <= 2
        assert heard == [
            publisher.Publication(pool=WANTED, complete=True, generation=1, slices=2, devices=150)
        ]
        assert started.publication == heard[-1]


async def test_slices_that_are_right_already_are_not_written() -> None:
    """A restart of the driver is invisible to the scheduler."""
    store = Store()
    store.server.converge(WANTED)
    async with running(store) as started:
        started.publish(WANTED, OWNER)
        await eventually(lambda: started.publication.complete)
        assert store.calls == ["list"]
        # They are known from now on, so their loss is noticed.
        store.wipe()
        await eventually(lambda: shown(store) == names(WANTED))


async def test_slices_stay_when_the_publisher_stops() -> None:
    store = Store()
    async with running(store) as started:
        started.publish(WANTED, OWNER)
        await eventually(lambda: started.publication.complete)
    assert shown(store) == names(WANTED)


@pytest.mark.parametrize("lost", ["all", "first", "second"])
async def test_a_wipe_is_repaired_at_once(lost: str) -> None:
    """At the generation that it had, so that nobody sees it go back."""
    store = Store()
    async with running(store) as started:
        for wanted in (pool(*devices(3)), WANTED):
            started.publish(wanted, OWNER)
            await eventually(lambda wanted=wanted: shown(store) == names(wanted))
        await eventually(lambda: started.publication.generation == 2)
        ordered = sorted(store.server.items)
        store.wipe(*{"all": ordered, "first": ordered[:1], "second": ordered[1:]}[lost])
        assert shown(store) == []
        await eventually(lambda: shown(store) == names(WANTED))
        assert {item["spec"]["pool"]["generation"] for item in store.server.items.values()} == {2}


async def test_a_wipe_at_the_moment_of_the_repair_is_repaired_too() -> None:
    """The kubelet registers the driver and wipes its slices at the same time."""
    store = Store()
    wipes = 3
    async with running(store) as started:
        started.publish(WANTED, OWNER)
        await eventually(lambda: started.publication.complete)
        stored = store._stored

        def wiped_as_soon_as_stored(item: slices.Object, change: str) -> slices.Object:
            nonlocal wipes
            answer = stored(item, change)
            if wipes:
                wipes -= 1
                store.wipe()
            return answer

        store._stored = wiped_as_soon_as_stored  # type: ignore[method-assign]
        store.wipe()
        started.wake()
        await eventually(lambda: not wipes and shown(store) == names(WANTED))
        await eventually(lambda: started.publication.complete)


async def test_meddling_is_undone() -> None:
    store = Store()
    async with running(store) as started:
        started.publish(pool(*devices(3)), OWNER)
        await eventually(lambda: started.publication.complete)
        (item,) = store.server.items.values()
        item["spec"]["devices"].pop()
        item["metadata"]["resourceVersion"] = "9999"
        store.tell("MODIFIED", item)
        await eventually(lambda: len(shown(store)) == 3)


async def test_a_foreign_pool_of_ours_is_removed_when_it_appears() -> None:
    store = Store()
    async with running(store) as started:
        started.publish(pool(*devices(3)), OWNER)
        await eventually(lambda: started.publication.complete)
        other = Server()
        other.converge(pool(*devices(3), name="old"))
        store.server.items.update(other.items)
        store.tell("ADDED", next(iter(other.items.values())))
        await eventually(lambda: list(store.server.visible()) == [POOL])


async def test_a_fight_does_not_run_hot() -> None:
    """Whoever deletes every slice as soon as it appears gets slower answers each time."""
    store = Store()
    async with running(store, first_pause_seconds=0.02) as started:
        started.publish(pool(*devices(3)), OWNER)
        await eventually(lambda: started.publication.complete)
        stored = store._stored

        def wiped(item: slices.Object, change: str) -> slices.Object:
            answer = stored(item, change)
            store.wipe()
            return answer

        store._stored = wiped  # type: ignore[method-assign]
        store.wipe()
        await asyncio.sleep(0.5)
        # 0.02 + 0.04 + ... + 0.32 s fit into half a second.
        assert store.calls.count("create") <= 7


async def test_a_new_wish_does_not_wait_for_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "_LONGEST_PAUSE_SECONDS", 3600.0)
    store = Store()
    store.failing = "create"
    async with running(store, first_pause_seconds=3600) as started:
        started.publish(pool(*devices(3)), OWNER)
        await eventually(lambda: started.publication.problem)
        store.failing = None
        started.publish(pool(*devices(4)), OWNER)
        # The pause is an hour.
        await eventually(lambda: len(shown(store)) == 4)


@pytest.mark.parametrize("verb", ["list", "create", "replace", "delete"])
async def test_a_failure_is_told_and_tried_again(verb: str) -> None:
    """Whatever failed, and however often."""
    store = Store()
    heard: list[publisher.Publication] = []
    async with running(store, on_change=heard.append) as started:
        started.publish(pool(*devices(200)), OWNER)
        await eventually(lambda: started.publication.complete)
        store.failing = verb
        calls = store.calls.count(verb)
        wanted = pool(*devices(500)) if verb == "create" else pool(*changed_devices(100))
        started.publish(wanted, OWNER)
        await eventually(lambda: store.calls.count(verb) > calls + 3)
        assert not started.publication.complete
        assert "ConnectionError: the API server is away" in started.publication.problem
        store.failing = None
        await eventually(lambda: started.publication.complete)
        assert shown(store) == names(wanted)
        # The same trouble is told once, not at every attempt.
        assert [publication.complete for publication in heard] == [True, False, True]


def changed_devices(count: int) -> Sequence[dict[str, Any]]:
    return [{"name": f"other-{n}"} for n in range(count)]


async def test_one_failed_write_does_not_keep_the_others_waiting() -> None:
    """The pool is incomplete until all are there: what can be written is."""
    store = Store()
    async with running(store, first_pause_seconds=3600) as started:
        store.failures = [ConnectionError("first create")]
        store.failures.insert(0, RuntimeError("list"))
        started.publish(pool(*devices(300)), OWNER)
        await eventually(lambda: started.publication.problem)
        assert store.calls == ["list"]
        store.failures.pop(0)
        store.failures = []
        real, first = store.create, True

        async def create(item: slices.Object, *, dry_run: bool = False) -> slices.Object:
            nonlocal first
            if first:
                first = False
                raise ConnectionError("lost")
            return await real(item, dry_run=dry_run)

        store.create = create  # type: ignore[method-assign]
        started.publish(pool(*devices(299)), OWNER)
        await eventually(lambda: "lost" in started.publication.problem)
        assert len(store.server.items) == 2


async def test_writes_are_made_side_by_side() -> None:
    """The shorter the time in which the pool is incomplete, the fewer pods miss it."""
    store = Store()
    async with running(store) as started:
        started.publish(pool(*devices(640), partitionable=True), OWNER)
        await eventually(lambda: started.publication.complete)
        assert store.most_in_flight == 8


async def test_a_pool_without_devices_withdraws_everything() -> None:
    store = Store()
    async with running(store) as started:
        started.publish(WANTED, OWNER)
        await eventually(lambda: started.publication.complete)
        started.publish(pool(), OWNER)
        await eventually(lambda: not store.server.items)
        await eventually(lambda: started.publication.slices == 0)
        assert started.publication.complete


async def test_an_invalid_pool_is_refused_and_the_old_one_stays() -> None:
    store = Store()
    async with running(store) as started:
        started.publish(WANTED, OWNER)
        await eventually(lambda: started.publication.complete)
        started.publish(pool(device("a"), device("a")), OWNER)
        await eventually(lambda: started.publication.problem)
        assert started.publication.problem == "the pool would be invalid: device 'a' stands twice"
        assert shown(store) == names(WANTED)


TAINT = {"key": "k", "effect": "NoSchedule"}
CONSUMES = [{"counterSet": "set-0", "counters": {"memory": {"value": "1"}}}]
PARTITIONS = pool(
    device("a", consumesCounters=CONSUMES),
    device("b", consumesCounters=CONSUMES, taints=[TAINT]),
    counter_sets=counter_sets(1),
    partitionable=True,
    essential=frozenset({"spec.devices[].consumesCounters", "spec.sharedCounters"}),
)


def drop(field: str) -> Callable[[slices.Object], None]:
    def dropping(item: slices.Object) -> None:
        item["spec"].pop(field, None)
        for each in item["spec"].get("devices", []):
            each.pop(field, None)

    return dropping


async def test_dropped_fields_are_told_and_not_sent_again() -> None:
    """A server without device taints still gets the devices."""
    store = Store()
    store.drop = drop("taints")
    async with running(store) as started:
        started.publish(PARTITIONS, OWNER)
        await eventually(lambda: started.publication.complete)
        assert started.publication.dropped == ("spec.devices[].taints",)
        calls = len(store.calls)
        started.wake()
        await eventually(lambda: len(store.calls) > calls)
        await settle()
        assert store.calls[calls:] in (["list"], ["list", "list"])
        started.publish(pool(device("a")), OWNER)
        await eventually(lambda: shown(store) == ["a"])
        await eventually(lambda: started.publication.dropped == ())


@pytest.mark.parametrize("field", ["consumesCounters", "sharedCounters"])
async def test_devices_are_not_offered_without_their_essential_fields(field: str) -> None:
    """Without counters every partition would be handed out at once: not one write happens."""
    store = Store()
    store.drop = drop(field)
    async with running(store, resync_seconds=0.02) as started:
        started.publish(PARTITIONS, OWNER)
        await eventually(lambda: started.publication.problem)
        assert field in started.publication.problem
        assert "turn on its feature gate" in started.publication.problem
        assert any(field in path for path in started.publication.dropped)
        assert store.server.items == {}
        assert set(store.calls) == {"list", "probe"}
        # An upgrade of the API server heals it without a restart of ours.
        store.drop = lambda item: None
        await eventually(lambda: shown(store) == ["a", "b"])
        await eventually(lambda: started.publication.problem == "")


async def test_essential_fields_are_probed_once() -> None:
    store = Store()
    async with running(store) as started:
        started.publish(PARTITIONS, OWNER)
        await eventually(lambda: started.publication.complete)
        assert store.calls.count("probe") == 2
        more = (*PARTITIONS.devices, device("c", consumesCounters=CONSUMES))
        started.publish(
            slices.Pool(
                name=POOL, devices=more, counter_sets=counter_sets(1), essential=PARTITIONS.essential
            ),
            OWNER,
        )
        await eventually(lambda: len(shown(store)) == 3)
        assert store.calls.count("probe") == 2


async def test_what_lost_an_essential_field_after_all_is_withdrawn() -> None:
    """One replica of the API server was probed, an older one answered the write."""
    store = Store()
    store.drop_stored = drop("consumesCounters")
    async with running(store, resync_seconds=0.02) as started:
        started.publish(PARTITIONS, OWNER)
        await eventually(lambda: "consumesCounters" in started.publication.problem)
        assert shown(store) == []
        assert not started.publication.complete
        # From here on a probe tells, so that nothing is stored only to be withdrawn again.
        store.drop = drop("consumesCounters")
        await eventually(lambda: store.calls[-1] == "probe")
        creates, probes = store.calls.count("create"), store.calls.count("probe")
        await eventually(lambda: store.calls.count("probe") > probes + 2)
        assert store.calls.count("create") == creates
        store.drop = store.drop_stored = lambda item: None
        await eventually(lambda: shown(store) == ["a", "b"])


async def test_a_listener_that_raises_spoils_nothing() -> None:
    def broken(_: publisher.Publication) -> None:
        raise RuntimeError("a bug in the driver's metrics")

    store = Store()
    async with running(store, on_change=broken) as started:
        for count in (3, 4):
            started.publish(pool(*devices(count)), OWNER)
            await eventually(lambda count=count: len(shown(store)) == count)
        await eventually(lambda: started.publication.complete)
        assert started.publication.problem == ""


async def test_a_missed_event_is_made_good_by_the_slow_clock() -> None:
    store = Store()
    async with running(store, resync_seconds=0.05) as started:
        started.publish(WANTED, OWNER)
        await eventually(lambda: started.publication.complete)
        store.listener = None
        store.wipe()
        await eventually(lambda: shown(store) == names(WANTED))


PACING = [
    pytest.param([0], 0.0, 1.0, id="first trouble"),
    pytest.param([0, 1], 1.0, 2.0, id="again at once"),
    pytest.param([0, 1, 3, 7], 7.0, 8.0, id="doubling"),
    pytest.param([0, 1, 3, 7, 15, 31], 31.0, 10.0, id="at most the longest"),
    pytest.param([0, 1, 3], 4.0, 3.0, id="part of the pause is over"),
    pytest.param([0, 1, 3], 9.0, 0.0, id="the pause is over"),
    pytest.param([0, 1, 3, 100], 100.0, 1.0, id="forgotten after a quiet while"),
]


@pytest.mark.parametrize(("strikes", "now", "due"), PACING)
def test_pauses(strikes: list[float], now: float, due: float) -> None:
    pacer = publisher.Pacer(1.0, 10.0)
    assert pacer.due_seconds(0.0) == 0.0
    for at in strikes:
        pacer.strike(at)
    assert pacer.due_seconds(now) == due


COVERS = [
    ("spec.devices[].consumesCounters", True),
    ("spec.devices[]", True),
    ("spec.devices[].consumesCounters[].counters", True),
    ("spec.devices[].consumesCountersToo", False),
    ("spec.devices[].taints", False),
    ("spec", True),
]


@pytest.mark.parametrize(("dropped", "expected"), COVERS)
def test_an_essential_field_is_lost_with_what_is_above_or_inside(dropped: str, expected: bool) -> None:
    assert publisher._covers(dropped, "spec.devices[].consumesCounters") is expected
