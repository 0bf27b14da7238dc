"""What a write is bound to: the version of the GpuNode that was decided on."""

from typing import Any

import pytest

from gpupolicy.adapters import kube
from gpupolicy.api.node import GpuAssignment
from gpupolicy.controller import apply
from gpupolicy.controller.world import World

ASSIGNMENT = GpuAssignment(uuid="GPU-0", policy="p", revision="r")


def gpu_node(version: int, policy: str) -> dict[str, Any]:
    gpus = [{"uuid": "GPU-0", "policy": policy, "revision": "r"}]
    metadata = {"name": "n", "uid": "u", "resourceVersion": str(version), "generation": version}
    return {"metadata": metadata, "spec": {"gpus": gpus}}


class Api:
    """One GpuNode that refuses a patch of another version, as an API server does."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.object = found

    async def patch(self, _: kube.Resource, name: str, patch: dict[str, Any], **__: object) -> Any:
        asked, have = patch["metadata"], self.object["metadata"]
        assert name == have["name"]
        if (asked["uid"], asked["resourceVersion"]) != (have["uid"], have["resourceVersion"]):
            raise kube.Conflict(409, "Conflict", "the object has been modified")
        version = int(have["resourceVersion"]) + 1
        self.object = {"metadata": {**have, "resourceVersion": str(version)}, "spec": patch["spec"]}
        return self.object


async def test_a_spec_that_another_leader_wrote_is_not_undone() -> None:
    """A controller that was stopped for a while goes on with what it knew."""
    world = World()
    known = world.read_node(gpu_node(1, "old"))
    api = Api(gpu_node(2, "new"))
    with pytest.raises(kube.Conflict):
        await apply.node_spec(api, known, [ASSIGNMENT])  # type: ignore[arg-type]
    assert api.object == gpu_node(2, "new")


async def test_the_version_that_is_known_is_replaced() -> None:
    world = World()
    api = Api(gpu_node(2, "old"))
    stored = await apply.node_spec(api, world.read_node(api.object), [ASSIGNMENT])  # type: ignore[arg-type]
    assert [a.policy for a in world.read_node(stored).assignments.values()] == ["p"]
    assert world.read_node(stored).resource_version == "3"
