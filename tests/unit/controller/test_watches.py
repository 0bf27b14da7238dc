"""What a change concerns: which keys are added, and which changes are none."""

from typing import Any

import pytest

from gpupolicy.adapters import kube
from gpupolicy.controller import watches
from gpupolicy.controller.queue import WorkQueue
from gpupolicy.controller.reconcile import NAMES_KEY, Key, node_key, policy_key
from gpupolicy.controller.world import World
from gpupolicy.core import tally
from gpupolicy.core.access_objects import LiveObject
from gpupolicy.core.classes import LiveClass
from tests.unit.core.wire import claim, gpu, resource_slice


class Desk:
    """A router with its world, and the keys that came out of it."""

    def __init__(self) -> None:
        self.world = World()
        self.queue: WorkQueue[Key] = WorkQueue()
        self.router = watches.Router(self.world, self.queue)

    async def keys(self) -> set[Key]:
        """Return the keys that were added, and forget them."""
        found = set()
        while len(self.queue):
            key = await self.queue.get()
            self.queue.done(key)
            found.add(key)
        return found


@pytest.fixture
async def desk() -> Desk:
    """Two policies, one node that the first selects."""
    made = Desk()
    made.router.policy(policy("a", nodeSelector={"matchLabels": {"pool": "a"}}), deleted=False)
    made.router.policy(policy("b", nodeSelector={"matchLabels": {"pool": "b"}}), deleted=False)
    made.world.labels["n"] = {"pool": "a"}
    await made.keys()
    return made


def policy(name: str, version: int = 1, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}, "spec": spec}


def event(
    kept: Any, name: str, *, change: kube.Change = kube.Change.ADDED, previous: Any = None
) -> kube.Event:
    def body(value: Any) -> dict[str, Any]:
        return {"metadata": {"namespace": "", "name": name, "uid": f"uid-{name}"}, "kept": value}

    return kube.Event(change, ("", name), body(kept), None if previous is None else body(previous))


def gpu_node(desk: Desk, version: int = 1, policies: tuple[str, ...] = ()) -> Any:
    spec = {"gpus": [{"uuid": f"GPU-{i}", "policy": p} for i, p in enumerate(policies)]}
    return desk.world.read_node(
        {"metadata": {"name": "n", "uid": "uid-n", "resourceVersion": str(version)}, "spec": spec}
    )


async def test_a_policy_concerns_itself(desk: Desk) -> None:
    desk.router.policy(policy("a", 2, priority=4), deleted=False)

    assert await desk.keys() == {policy_key("a")}


async def test_somebody_who_edits_a_status_is_put_right(desk: Desk) -> None:
    edited = policy("a", 2, nodeSelector={"matchLabels": {"pool": "a"}}) | {"status": {"devices": 99}}

    desk.router.policy(edited, deleted=False)

    assert await desk.keys() == {policy_key("a")}


async def test_an_old_copy_concerns_nobody(desk: Desk) -> None:
    desk.router.policy(policy("a", 0), deleted=False)

    assert await desk.keys() == set()


async def test_a_deleted_policy_concerns_itself_once(desk: Desk) -> None:
    desk.router.policy(policy("a"), deleted=True)
    desk.router.policy(policy("a"), deleted=True)

    assert await desk.keys() == {policy_key("a")}
    assert "a" not in desk.world.policies


async def test_a_gpu_node_concerns_itself_and_the_policies_that_select_or_have_it(desk: Desk) -> None:
    desk.router.gpu_node(event(gpu_node(desk, 1), "n"))
    assert await desk.keys() == {node_key("n"), policy_key("a")}

    desk.router.gpu_node(event(gpu_node(desk, 2, ("b", "gone")), "n", change=kube.Change.MODIFIED))
    assert await desk.keys() == {node_key("n"), policy_key("a"), policy_key("b")}

    desk.router.gpu_node(event(gpu_node(desk, 3), "n", change=kube.Change.MODIFIED))
    assert await desk.keys() == {node_key("n"), policy_key("a"), policy_key("b")}


async def test_a_mere_sign_of_life_concerns_nobody_unless_the_node_was_silent(desk: Desk) -> None:
    desk.router.gpu_node(event(gpu_node(desk, 1), "n"))
    await desk.keys()

    desk.router.gpu_node(event(gpu_node(desk, 2), "n", change=kube.Change.MODIFIED))
    assert await desk.keys() == set()

    desk.world.note_staleness("n", is_stale=True)
    desk.router.gpu_node(event(gpu_node(desk, 3), "n", change=kube.Change.MODIFIED))
    assert await desk.keys() == {node_key("n"), policy_key("a")}
    desk.world.note_staleness("n", is_stale=False)
    desk.router.gpu_node(event(gpu_node(desk, 4), "n", change=kube.Change.MODIFIED))
    assert await desk.keys() == set()
    assert desk.world.nodes["n"].resource_version == "4"


async def test_a_gpu_node_that_goes_concerns_those_that_had_it(desk: Desk) -> None:
    desk.router.gpu_node(event(gpu_node(desk, 1, ("b",)), "n"))
    await desk.keys()

    desk.router.gpu_node(event(gpu_node(desk, 1), "n", change=kube.Change.DELETED))

    assert await desk.keys() == {node_key("n"), policy_key("a"), policy_key("b")}
    assert desk.world.nodes == {}


async def test_labels_concern_those_that_selected_the_node_and_those_that_do_now(desk: Desk) -> None:
    desk.router.gpu_node(event(gpu_node(desk), "n"))
    await desk.keys()

    desk.router.node(event({"pool": "b"}, "n", change=kube.Change.MODIFIED))

    assert await desk.keys() == {node_key("n"), policy_key("a"), policy_key("b")}


async def test_a_node_without_cards_concerns_nobody(desk: Desk) -> None:
    desk.router.node(event({"pool": "a"}, "cpu-only"))

    assert await desk.keys() == set()


async def test_a_class_concerns_every_policy_and_the_names(desk: Desk) -> None:
    live = LiveClass(name="c", uid="uid-c", resource_version="1")
    desk.router.device_class(event(live, "c"))
    assert await desk.keys() == {policy_key("a"), policy_key("b"), NAMES_KEY}

    desk.router.device_class(event(live, "c", change=kube.Change.MODIFIED))
    assert await desk.keys() == set()

    desk.router.device_class(event(live, "c", change=kube.Change.DELETED))
    assert await desk.keys() == {policy_key("a"), policy_key("b"), NAMES_KEY}


def published(*devices: dict[str, Any]) -> tally.PublishedSlice:
    found = tally.PublishedSlice.of(resource_slice("n", *devices, name="s"))
    assert found is not None
    return found


async def test_a_slice_concerns_the_policies_of_its_devices_and_of_its_node(desk: Desk) -> None:
    desk.router.resource_slice(event(published(gpu("d", "b", "1")), "s"))

    assert await desk.keys() == {policy_key("a"), policy_key("b")}


async def test_a_slice_that_changes_or_goes_concerns_those_it_showed_before(desk: Desk) -> None:
    first, second = published(gpu("d", "b", "1")), published(gpu("d", "a", "1"))
    desk.router.resource_slice(event(first, "s"))
    await desk.keys()

    desk.router.resource_slice(event(second, "s", change=kube.Change.MODIFIED, previous=first))
    assert await desk.keys() == {policy_key("a"), policy_key("b")}

    desk.world.labels.clear()
    desk.router.resource_slice(event(second, "s", change=kube.Change.DELETED, previous=second))
    assert await desk.keys() == {policy_key("a")}


async def test_a_claim_concerns_the_policy_of_the_device_that_it_holds_or_held(desk: Desk) -> None:
    desk.router.resource_slice(event(published(gpu("d", "b", "1")), "s"))
    await desk.keys()
    held = tally.holdings(claim("c", ("n", "d")))

    desk.router.claim(event(held, "c"))
    assert await desk.keys() == {policy_key("b")}
    desk.router.claim(event(held, "c", change=kube.Change.DELETED))
    assert await desk.keys() == {policy_key("b")}
    desk.router.claim(event(held, "c", change=kube.Change.DELETED))
    assert await desk.keys() == set()


async def test_names_of_policies_that_do_not_exist_make_no_keys(desk: Desk) -> None:
    desk.router.resource_slice(event(published(gpu("d", "gone", "1")), "s"))

    assert await desk.keys() == {policy_key("a")}


def guard(version: int, *, uid: str = "u", name: str = "gpupolicy-access-a", **spec: Any) -> LiveObject:
    return LiveObject("ResourceQuota", name, "ns", uid=uid, resource_version=str(version), spec=spec)


async def test_an_access_object_concerns_its_policy(desk: Desk) -> None:
    """By its name, since somebody may have taken the labels off; an old copy and a mere echo concern nobody."""
    desk.router.access_object(event(guard(1), "x"))
    assert await desk.keys() == {policy_key("a")}
    assert desk.world.put_access(guard(3, hard={}))
    desk.router.access_object(event(guard(2, hard={"pods": "1"}), "x", change=kube.Change.MODIFIED))
    desk.router.access_object(event(guard(3, hard={}), "x", change=kube.Change.MODIFIED))
    assert await desk.keys() == set()
    desk.router.access_object(event(guard(3, hard={}), "x", change=kube.Change.DELETED))
    assert await desk.keys() == {policy_key("a")}
    assert desk.world.access == {}
    desk.router.access_object(event(guard(1, name="gpupolicy-access-nobody"), "y"))
    assert await desk.keys() == set()


async def test_an_access_object_that_went_comes_back_only_with_a_later_version(desk: Desk) -> None:
    """The answer to a write may come after the word of the deletion; labels put on again make the same object show."""
    desk.router.access_object(event(guard(4), "x"))
    desk.router.access_object(event(guard(4), "x", change=kube.Change.DELETED))
    assert not desk.world.put_access(guard(4))
    assert desk.world.access == {}
    assert desk.world.put_access(guard(5))
    # Another object took the name: the end of the first is old news.
    assert desk.world.put_access(guard(6, uid="v"))
    desk.router.access_object(event(guard(5), "x", change=kube.Change.DELETED))
    assert [o.uid for o in desk.world.access.values()] == ["v"]
