"""A policy on a real API server: classes, assignments, status."""

from __future__ import annotations

import pytest

from tests.integration.controller.conftest import World

pytestmark = pytest.mark.cluster


def test_a_policy_becomes_classes_assignments_and_a_true_status(world: World) -> None:
    world.add_node("gpu-01", gpu_pool="train")
    world.start_controller()

    world.policy(
        "train",
        {
            "nodeSelector": {"matchLabels": {"gpu-pool": "train"}},
            "offers": [{"deviceClassName": "h100", "extendedResourceName": "nvidia.com/gpu"}],
        },
    )

    world.assigned("gpu-01", "train", 8)
    world.wait_reason("train", "RolloutPending")
    assert world.status("train")["gpus"] == "0/8"
    world.nodes["gpu-01"].converge()
    world.wait_reason("train", "Ready")
    status = world.status("train")
    assert (status["nodes"], status["gpus"], status["devices"], status["free"]) == ("1/1", "8/8", 8, 8)
    spec = world.classes()["h100"]["spec"]
    assert spec["extendedResourceName"] == "nvidia.com/gpu"
