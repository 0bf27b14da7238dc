"""A GpuNode becomes values to decide on, also when its agent is of another release or half blind."""

from dataclasses import replace
from typing import Any

import pytest

from gpupolicy.api.conditions import Reason
from gpupolicy.api.node import GpuNode
from gpupolicy.core.inventory import ClaimUse, Gpu, Health, Inventory, MigState, Ownership, Placement, Process
from gpupolicy.core.node_status import NodeFacts, node_status
from gpupolicy.core.observation import ObservedNode, Reader
from gpupolicy.core.refusals import Refusal
from tests.unit.core import builders

PROFILE = {
    "id": 19,
    "name": "1g.10gb",
    "slices": 1,
    "memoryMiB": 9984,
    "maxInstances": 7,
    "placements": [{"start": 0, "size": 1}],
}
CARD = {
    "uuid": "GPU-0",
    "index": 0,
    "memory": "81559Mi",
    "productName": "NVIDIA H100 80GB HBM3",
    "mig": {"capable": True, "enabled": True, "profiles": [PROFILE]},
    "ownership": "Owned",
    "policy": "p",
    "appliedRevision": "r1",
    "reason": "Applied",
    "message": "m",
    "instances": [
        {
            "profile": "1g.10gb",
            "profileID": 19,
            "placement": {"start": 3, "size": 1},
            "uuid": "MIG-1",
            "gpuInstanceID": 9,
            "computeInstanceID": 0,
            "ownership": "Owned",
            "claims": [{"namespace": "a", "name": "c", "uid": "u", "pods": ["x"], "prepared": True}],
            "processes": [{"pid": 7, "name": "python"}],
        }
    ],
}


def read(*cards: dict[str, Any], reader: Reader | None = None, **status: Any) -> ObservedNode:
    body = {
        "metadata": {"name": "n", "uid": "u", "generation": 3, "resourceVersion": "5"},
        "spec": {"gpus": [{"uuid": "GPU-0", "policy": "p", "revision": "r1"}]},
        "status": {"gpus": list(cards), **status},
    }
    return (reader or Reader()).read(GpuNode.model_validate(body))


def test_a_card_is_read_whole() -> None:
    node = read(CARD, driverVersion="580.1", lastObservedTime="2026-01-01T00:00:00Z", observedGeneration=2)

    card = node.cards["GPU-0"]
    assert (card.policy, card.applied_revision, card.reason, card.message) == ("p", "r1", "Applied", "m")
    assert card.gpu.memory_bytes == 81559 * 2**20
    (instance,) = card.gpu.instances
    assert (instance.profile_id, instance.placement, instance.in_use) == (19, Placement(3, 1), True)
    assert instance.ownership is Ownership.OWNED
    assert (instance.claims[0].pods, instance.processes[0].pid) == (("x",), 7)
    assert (node.generation, node.observed_generation, node.has_reported) == (3, 2, True)
    assert (node.inventory.node, node.inventory.driver_version) == ("n", "580.1")
    assert node.assignments["GPU-0"].policy == "p"


def test_what_an_agent_writes_is_read_back_as_it_was_observed() -> None:
    """Agent and controller meet in the wire format only; nothing that planning reads gets lost in it."""
    used = replace(
        builders.instance("1g.10gb@6", used_by="job", pid=7),
        claims=(ClaimUse("a", "c", "u", ("x", "y"), prepared=True),),
        processes=(Process(7, "python"), Process(8)),
    )
    full = replace(
        builders.card(used, builders.instance("3g.40gb@0", ownership=Ownership.FOREIGN), index=1),
        minor=4,
        pci_bus_id="0000:1a:00.0",
        architecture="Hopper",
        brand="Nvidia",
        memory_bytes=81559 * 2**20,
        compute_capability="9.0",
        numa_node=1,
        pcie_root="pci0000:16",
        serial="1650",
        claims=(ClaimUse("a", "whole", "w"),),
        processes=(Process(9, "java"),),
        health=Health.UNHEALTHY,
        health_message="XID 79",
        ownership=Ownership.FOREIGN,
    )
    inventory = Inventory("n", (Gpu("GPU-bare", 0), full), driver_version="580.1", cuda_version="13.0")
    status = node_status(NodeFacts(inventory=inventory, generation=3), None, now="2026-01-01T00:00:00Z")
    body = {"metadata": {"name": "n"}, "status": status.to_wire()}

    node = Reader().read(GpuNode.model_validate(body))

    assert node.inventory == inventory
    assert (node.sees_all, node.observed_generation) == (True, 3)


def test_a_card_of_which_only_the_uuid_is_known() -> None:
    gpu = read({"uuid": "GPU-0", "index": 4}).cards["GPU-0"].gpu

    assert (gpu.memory_bytes, gpu.product_name, gpu.mig) == (None, "", MigState())


@pytest.mark.parametrize(
    ("field", "value", "read_as"),
    [
        pytest.param("health", "Healthy", Health.HEALTHY, id="healthy"),
        pytest.param("health", "Feverish", Health.UNKNOWN, id="health-of-the-future"),
        pytest.param("ownership", "Observed", Ownership.OBSERVED, id="observed"),
        pytest.param("ownership", "Shared", Ownership.FOREIGN, id="ownership-of-the-future"),
        pytest.param("memory_bytes", "many", None, id="memory-unreadable"),
        pytest.param("memory_bytes", "1e5000", None, id="memory-absurd"),
    ],
)
def test_words_of_another_release_are_read_with_care(field: str, value: str, read_as: object) -> None:
    wire = {"memory_bytes": "memory"}.get(field, field)

    assert getattr(read(CARD | {wire: value}).cards["GPU-0"].gpu, field) == read_as


@pytest.mark.parametrize(
    ("conditions", "sees_all"),
    [
        pytest.param([], False, id="no-condition"),
        pytest.param([("Observed", "True")], True, id="true"),
        pytest.param([("Observed", "Unknown")], False, id="unknown"),
        pytest.param([("Ready", "True")], False, id="another-condition"),
    ],
)
def test_only_an_agent_that_says_so_sees_all(conditions: list[tuple[str, str]], sees_all: bool) -> None:
    wire = [{"type": t, "status": s, "reason": "R", "lastTransitionTime": "t"} for t, s in conditions]

    assert read(conditions=wire).sees_all is sees_all


@pytest.mark.parametrize(
    ("status", "same"),
    [
        pytest.param({"lastObservedTime": "2026-01-02T00:00:00Z"}, True, id="later"),
        pytest.param({"observedGeneration": 9}, False, id="generation"),
        pytest.param({"driverVersion": "1"}, False, id="driver"),
    ],
)
def test_a_sign_of_life_says_the_same(status: dict[str, Any], same: bool) -> None:
    reader = Reader()

    assert read(CARD, reader=reader, **status).says_the_same_as(read(CARD, reader=reader)) is same


def test_an_agent_that_never_confirmed_has_not_reported() -> None:
    assert not read(CARD).has_reported


def test_cards_with_the_same_profiles_share_them() -> None:
    reader = Reader()

    first, second = (read(CARD, CARD | {"uuid": "GPU-1", "index": 1}, reader=reader).cards for _ in range(2))

    profiles = {id(card.gpu.mig.profiles) for cards in (first, second) for card in cards.values()}
    assert len(profiles) == 1


def test_the_inventory_is_in_order_of_the_indexes() -> None:
    cards = [{"uuid": f"GPU-{i}", "index": i} for i in (3, 1, 2)]

    assert [g.index for g in read(*cards).inventory.gpus] == [1, 2, 3]


def _conditions(**said: str) -> list[dict[str, Any]]:
    """Make conditions from `Ready="False/CdiUnavailable"`; those not given are True."""
    found = []
    for kind in ("Observed", "Applied", "Healthy", "Ready"):
        state, _, reason = said.get(kind, f"True/{kind}").partition("/")
        found.append(
            {
                "type": kind,
                "status": state,
                "reason": reason,
                "message": f"{kind} says why",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
        )
    return found


@pytest.mark.parametrize(
    ("said", "trouble"),
    [
        pytest.param({}, None, id="all-is-well"),
        pytest.param(
            {"Observed": "False/NvmlUnavailable", "Ready": "False/NvmlUnavailable"},
            Refusal(Reason.NVML_UNAVAILABLE, "Observed says why"),
            id="blind",
        ),
        pytest.param(
            {"Observed": "Unknown/NvmlUnavailable"},
            Refusal(Reason.NVML_UNAVAILABLE, "Observed says why"),
            id="blind-for-a-moment",
        ),
        pytest.param(
            {"Ready": "False/CdiUnavailable"},
            Refusal(Reason.CDI_UNAVAILABLE, "Ready says why"),
            id="cannot-serve",
        ),
        pytest.param({"Ready": "False/Applied"}, None, id="a-card-says-it-itself"),
        pytest.param(
            {"Healthy": "False/GpuUnhealthy", "Ready": "False/GpuUnhealthy"},
            None,
            id="a-card-that-nobody-wants-is-sick",
        ),
        pytest.param({"Observed": "Unknown/Observed"}, None, id="no-cause-is-told"),
        pytest.param(
            {"Ready": "False/OfTheFuture"},
            Refusal(Reason.DEGRADED, "Ready says why"),
            id="agent-of-the-future",
        ),
    ],
)
def test_the_trouble_of_a_node_is_what_no_card_of_it_says(
    said: dict[str, str], trouble: Refusal | None
) -> None:
    assert read(CARD, conditions=_conditions(**said)).trouble == trouble


def test_a_node_that_never_reported_has_no_trouble() -> None:
    assert read().trouble is None
