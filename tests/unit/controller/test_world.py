"""The copies: what is older is ignored, what went stays gone, what cannot be read is still there."""

from typing import Any

import pytest

from gpupolicy.controller.world import World
from gpupolicy.core import tally
from gpupolicy.core.classes import LiveClass
from gpupolicy.core.tally import DeviceGroup, GroupCount, PublishedSlice
from tests.unit.core.wire import claim, gpu, resource_slice

P = DeviceGroup("p", "gpu")


def policy(
    version: int = 1, uid: str = "u", spec: dict[str, Any] | None = None, **meta: Any
) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "uid": uid, "resourceVersion": str(version), "generation": 1, **meta},
        "spec": spec or {},
    }


def gpu_node(version: int = 1, uid: str = "u", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "n", "uid": uid, "resourceVersion": str(version)}, "spec": spec}


def test_only_a_new_spec_is_news() -> None:
    world = World()

    assert world.put_policy(policy(1))
    assert not world.put_policy(policy(2))
    assert world.put_policy(policy(3, spec={"priority": 4}))


def test_an_older_copy_is_ignored() -> None:
    world = World()
    world.put_policy(policy(10, spec={"priority": 4}))

    assert not world.put_policy(policy(9))
    assert world.policies["p"].policy.spec.priority == 4


def test_a_server_that_was_restored_from_a_backup_is_believed() -> None:
    """Its versions went back, and what was deleted since lives again under its old UID."""
    world = World()
    world.put_policy(policy(10, spec={"priority": 4}))
    world.put_node(world.read_node(gpu_node(10, gpus=[{"uuid": "GPU-0", "policy": "p"}])))
    world.put_class(LiveClass(name="c", uid="c1", resource_version="10", revision="new"))
    world.put_class(LiveClass(name="gone", uid="c2", resource_version="9"))
    assert world.drop_class("gone", "c2")

    world.forget_versions()
    assert world.policies["p"].policy.spec.priority == 4
    assert world.put_policy(policy(3))
    assert world.put_node(world.read_node(gpu_node(4)))
    assert world.put_class(LiveClass(name="c", uid="c1", resource_version="5", revision="old"))
    assert world.put_class(LiveClass(name="gone", uid="c2", resource_version="5"))
    assert world.policies["p"].policy.spec.priority == 0
    assert world.nodes["n"].assignments == {}
    assert world.classes["c"].revision == "old"
    assert not world.put_policy(policy(2, spec={"priority": 1})), "from here on versions count again"


def test_versions_are_numbers() -> None:
    world = World()
    world.put_policy(policy(9))

    assert world.put_policy(policy(10, spec={"priority": 4}))


def test_what_went_stays_gone_whatever_arrives_late() -> None:
    world = World()
    world.put_policy(policy(1))
    assert world.drop_policy("p", "u")

    assert not world.put_policy(policy(2))
    assert world.policies == {}
    assert world.put_policy(policy(3, uid="another"))


def test_the_end_of_an_earlier_object_does_not_take_its_successor_away() -> None:
    world = World()
    world.put_policy(policy(1, uid="first"))
    world.put_policy(policy(5, uid="second"))

    assert not world.drop_policy("p", "first")
    assert world.policies["p"].uid == "second"


def test_a_late_copy_of_an_earlier_object_does_not_replace_its_successor() -> None:
    world = World()
    world.put_policy(policy(5, uid="second"))

    assert not world.put_policy(policy(3, uid="first"))
    assert world.policies["p"].uid == "second"


def test_a_policy_that_is_being_deleted_counts_as_gone() -> None:
    world = World()
    world.put_policy(policy(1))

    assert world.put_policy(policy(2, deletionTimestamp="2026-01-01T00:00:00Z"))
    assert world.policies == {}


def test_a_policy_that_cannot_be_read_is_there_with_its_problem_and_its_status() -> None:
    body = policy(1, spec={"priority": 7, "sharing": {"strategy": "Quantum"}})
    body["status"] = {"nodes": "3/4"}
    world = World()

    world.put_policy(body)

    entry = world.policies["p"]
    assert entry.problem is not None
    assert "sharing.strategy" in entry.problem
    assert entry.policy.status.nodes == "3/4"


@pytest.mark.parametrize("status", [{"gpus": [{"index": 0}]}, {"gpus": "many"}], ids=["card", "type"])
def test_a_node_that_cannot_be_read_has_not_reported(status: dict[str, Any]) -> None:
    world = World()

    node = world.read_node(gpu_node() | {"status": status})

    assert (node.name, node.has_reported) == ("n", False)


def test_nodes_and_classes_are_ordered_like_policies() -> None:
    world = World()
    assert world.put_node(world.read_node(gpu_node(5)))
    assert not world.put_node(world.read_node(gpu_node(4)))
    assert world.drop_node("n", "u")
    assert not world.put_node(world.read_node(gpu_node(6)))

    assert world.put_class(LiveClass(name="c", uid="class", resource_version="5"))
    assert not world.put_class(LiveClass(name="c", uid="class", resource_version="4"))
    assert not world.drop_class("c", "other")
    assert world.drop_class("c", "class")
    assert not world.put_class(LiveClass(name="c", uid="class", resource_version="6"))


def test_a_node_concerns_those_that_select_it_and_those_that_have_cards_there() -> None:
    world = World()
    world.put_policy(policy(1, spec={"nodeSelector": {"matchLabels": {"pool": "a"}}}))
    world.put_node(world.read_node(gpu_node(1, gpus=[{"uuid": "GPU-0", "policy": "other"}])))

    assert world.policies_of("n") == {"other"}
    world.labels["n"] = {"pool": "a"}
    assert world.policies_of("n") == {"p", "other"}
    assert world.policies_of("unknown") == set()


def take(world: World, body: dict[str, Any]) -> set[str]:
    found = PublishedSlice.of(body)
    assert found is not None
    return world.put_slice(found)


def test_counts_follow_slices_and_claims() -> None:
    world = World()

    assert take(world, resource_slice("n", gpu("a", "p", "1"), gpu("b", "p", "2"))) == {"n/gpupolicy"}
    assert world.pool("n").groups == {P: GroupCount(2, 0, 2)}
    assert world.put_claim("uid-c", tally.holdings(claim("c", ("n", "a")))) == {"n/gpupolicy"}
    assert world.pool("n").groups == {P: GroupCount(2, 1, 1)}
    assert world.put_claim("uid-c", ()) == {"n/gpupolicy"}
    assert world.pool("n").groups == {P: GroupCount(2, 0, 2)}
    assert len(list(world.all_pools())) == 1
    assert world.drop_slice("n-1") == {"n/gpupolicy"}
    assert list(world.all_pools()) == []
    assert world.pool("n") == tally.PoolTally()


def test_a_claim_may_hold_devices_of_several_pools_and_move() -> None:
    world = World()
    for node in ("n", "m"):
        take(world, resource_slice(node, gpu("a", "p", node)))

    assert world.put_claim("uid-c", tally.holdings(claim("c", ("n", "a"), ("m", "a")))) == {
        "n/gpupolicy",
        "m/gpupolicy",
    }
    assert [pool.groups[P].allocated for pool in world.all_pools()] == [1, 1]
    assert world.put_claim("uid-c", tally.holdings(claim("c", ("m", "a")))) == {"n/gpupolicy", "m/gpupolicy"}
    assert (world.pool("n").groups[P].allocated, world.pool("m").groups[P].allocated) == (0, 1)


def test_a_pool_without_a_gpu_node_counts_too() -> None:
    """The agent's object may be deleted while its slices are still there: the scheduler goes on with them."""
    world = World()
    take(world, resource_slice("n", gpu("a", "p", "1")))

    assert [pool.groups for pool in world.all_pools()] == [{P: GroupCount(1, 0, 1)}]
    assert world.policies_in("n/gpupolicy") == {"p"}


def test_a_slice_that_moves_to_another_pool_leaves_the_old_one() -> None:
    world = World()
    take(world, resource_slice("n", gpu("a", "p", "1"), name="s"))

    assert take(world, resource_slice("m", gpu("a", "p", "1"), name="s")) == {"n/gpupolicy", "m/gpupolicy"}
    assert world.pool("n") == tally.PoolTally()
