"""Events tell what changed between two statuses, once, and nothing on a quiet day."""

import pytest

from gpupolicy.api.node import GpuNodeStatus, GpuStatus
from gpupolicy.core.node_events import changes


def gpu(index: int = 0, **fields: object) -> GpuStatus:
    values = {
        "uuid": f"GPU-{index}",
        "index": index,
        "pci_bus_id": f"0000:{index:02x}:00.0",
        "policy": "infer",
        "layout": "whole",
        "reason": "Applied",
        "applied_revision": "r1",
    }
    return GpuStatus.model_validate(values | fields)


def node(*gpus: GpuStatus) -> GpuNodeStatus:
    return GpuNodeStatus(gpus=list(gpus))


def told(before: GpuNodeStatus | None, after: GpuNodeStatus) -> list[tuple[str, bool]]:
    return [(notice.reason, notice.is_warning) for notice in changes(before, after)]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(node(gpu()), node(gpu()), [], id="nothing"),
        pytest.param(None, node(gpu()), [], id="first look at a healthy node"),
        pytest.param(None, node(gpu(health="Unhealthy")), [("GpuUnhealthy", True)], id="first look, sick"),
        pytest.param(None, node(gpu(reason="Degraded")), [("Degraded", True)], id="first look, degraded"),
        pytest.param(node(gpu()), node(gpu(), gpu(1)), [("CardAdded", False)], id="another card"),
        pytest.param(node(gpu(), gpu(1)), node(gpu()), [("CardRemoved", True)], id="a card gone"),
        pytest.param(
            node(gpu(5)), node(gpu(5, uuid="GPU-new")), [("CardReplaced", True)], id="a card swapped"
        ),
        pytest.param(node(gpu()), node(gpu(health="Unknown")), [("GpuUnhealthy", True)], id="sick"),
        pytest.param(
            node(gpu(health="Unknown")), node(gpu()), [("CardRecovered", False)], id="healthy again"
        ),
        pytest.param(
            node(gpu(reason="RolloutPending", applied_revision="r0")),
            node(gpu()),
            [("Applied", False)],
            id="applied",
        ),
        pytest.param(node(gpu(reason="WaitingForSlices")), node(gpu()), [("Applied", False)], id="shown"),
        pytest.param(
            node(gpu()),
            node(gpu(reason="WaitingForClaims", message="pod a/b")),
            [("WaitingForClaims", True)],
            id="waits",
        ),
        pytest.param(
            node(gpu(reason="WaitingForClaims")),
            node(gpu(reason="WaitingForClaims")),
            [],
            id="goes on waiting",
        ),
        pytest.param(node(gpu()), node(gpu(reason="RolloutPending")), [], id="under way"),
        pytest.param(node(gpu()), node(gpu(processes=[{"pid": 1}])), [], id="a process came"),
    ],
)
def test_what_is_told(
    before: GpuNodeStatus | None, after: GpuNodeStatus, expected: list[tuple[str, bool]]
) -> None:
    assert told(before, after) == expected


def test_cards_that_became_the_same_are_told_of_once() -> None:
    before = node(*(gpu(i, reason="RolloutPending") for i in range(8)))
    after = node(*(gpu(i, layout="7x1g.10gb") for i in range(7)), gpu(7))
    notes = [n.message for n in changes(before, after)]
    assert notes == ["cards 0-6: 7x1g.10gb for policy infer", "card 7: whole for policy infer"]


def test_a_replacement_names_both_cards() -> None:
    (notice,) = changes(node(gpu(5)), node(gpu(5, uuid="GPU-new")))
    assert "GPU-5" in notice.message
    assert "GPU-new" in notice.message
    assert "0000:05:00.0" in notice.message
