"""Own CEL expressions: evaluated on cards as published whole, once per card, and asked about once."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpupolicy.adapters import kube
from gpupolicy.controller import expressions
from gpupolicy.controller.evaluation import evaluate, reads
from gpupolicy.core.inventory import Gpu, Inventory
from gpupolicy.core.matching import MATCH, Judgement
from gpupolicy.core.selection import Read, Reads
from tests.unit.core.builders import card

DOMAIN = 'device.attributes["gpu.gpupolicy.dev"]'


def h100(**fields: Any) -> Gpu:
    known = {"memory_bytes": 80 * 2**30, "compute_capability": "9.0", "architecture": "Hopper"}
    return card(enabled=False, **known | fields)


@pytest.mark.parametrize(
    ("expression", "matches"),
    [
        pytest.param("true", True, id="true"),
        pytest.param(f'{DOMAIN}.productName.startsWith("NVIDIA H100")', True, id="product"),
        pytest.param(f'{DOMAIN}.driverVersion.isGreaterThan(semver("550.0.0"))', True, id="driver-version"),
        pytest.param(
            f'{DOMAIN}.driverVersion.isGreaterThan(semver("600.0.0"))', False, id="newer-driver-version"
        ),
        pytest.param(
            'device.capacity["gpu.gpupolicy.dev"].memory.compareTo(quantity("79Gi")) >= 0', True, id="memory"
        ),
        pytest.param(f'{DOMAIN}.type == "gpu"', True, id="type"),
        pytest.param(f"{DOMAIN}.nope == 1", None, id="fact-that-is-missing"),
        pytest.param(f'"policy" in {DOMAIN}', False, id="no-policy-yet"),
        pytest.param("device.nope", None, id="does-not-compile"),
    ],
)
def test_what_an_expression_says_of_a_card(expression: str, matches: bool | None) -> None:
    judgement = evaluate(expression, Inventory("n", driver_version="580.82.07"), h100())

    assert judgement.matches is matches
    assert bool(judgement.message) is (matches is not True)


class Counting:
    """Counts evaluations."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, expression: str, inventory: Inventory, gpu: Gpu) -> Judgement:
        self.seen.append(f"{expression} {gpu.uuid} {inventory.driver_version}")
        return MATCH


EVERYTHING = Reads((), everything=True)
PRODUCT = Reads((Read("attributes", "gpu.gpupolicy.dev", "productName"),))
UUID = Reads((Read("attributes", "gpu.gpupolicy.dev", "uuid"),))
BUS = Reads((Read("attributes", "resource.kubernetes.io", "pciBusID"),))


async def test_a_card_is_evaluated_again_only_if_its_facts_change() -> None:
    counting = Counting()
    judges = expressions.Expressions(_Unused(), counting, reads)
    inventory = Inventory("n", (h100(index=0), h100(index=1)), driver_version="1")

    async def judge(expression: str, found: Inventory) -> Mapping[str, Judgement]:
        return await judges.judge(expression, EVERYTHING, lambda: [found])

    assert await judge("x", inventory) == {"GPU-0": MATCH, "GPU-1": MATCH}
    await judge("x", inventory)
    assert counting.seen == ["x GPU-0 1", "x GPU-1 1"]

    await judge("x", Inventory("n", inventory.gpus, driver_version="2"))
    await judge("y", inventory)
    await judge("x", Inventory("n", (h100(index=0, memory_bytes=1),), driver_version="1"))
    assert counting.seen[2:] == ["x GPU-0 2", "x GPU-1 2", "y GPU-0 1", "y GPU-1 1", "x GPU-0 1"]


@pytest.mark.parametrize(
    ("read", "differing", "evaluations"),
    [
        pytest.param(PRODUCT, {}, 1, id="equal-cards"),
        pytest.param(PRODUCT, {"product_name": "NVIDIA A100"}, 2, id="another-product"),
        pytest.param(Reads(()), {"memory_bytes": 1}, 2, id="whatever-many-cards-have"),
        pytest.param(UUID, {}, 2, id="uuid"),
        pytest.param(BUS, {}, 1, id="equal-address"),
        pytest.param(BUS, {"pci_bus_id": "0000:ff:00.0"}, 2, id="another-address"),
        pytest.param(PRODUCT, {"pci_bus_id": "0000:ff:00.0"}, 1, id="address-that-is-not-read"),
        pytest.param(EVERYTHING, {}, 2, id="everything"),
    ],
)
async def test_cards_that_the_expression_cannot_tell_apart_are_evaluated_once(
    read: Reads, differing: dict[str, Any], evaluations: int
) -> None:
    counting = Counting()
    judges = expressions.Expressions(_Unused(), counting, reads)
    first = h100(index=0)
    cards = (first, replace(first, **{"uuid": "GPU-1", "index": 1} | differing))

    found = await judges.judge("x", read, lambda: [Inventory("n", cards)])

    assert found.keys() == {"GPU-0", "GPU-1"}
    assert len(counting.seen) == evaluations


async def test_more_cards_than_any_cache_has_room_for_are_evaluated_once() -> None:
    """Forty thousand cards told apart one by one, as in a cluster of five thousand nodes."""
    counting = Counting()
    judges = expressions.Expressions(_Unused(), counting, reads)
    first = h100(index=0)
    inventory = Inventory("n", tuple(replace(first, uuid=f"GPU-{i}") for i in range(40_000)))

    for _ in range(2):
        found = await judges.judge("x", UUID, lambda: [inventory])

    assert len(found) == len(counting.seen) == 40_000


async def test_other_work_goes_on_while_cards_are_evaluated() -> None:
    """A card that comes meanwhile is judged as well, and one that goes is not told of."""
    inventories = [Inventory("n", (h100(index=0), h100(index=1)))]
    judges = expressions.Expressions(_Unused(), Counting(), reads)

    async def change() -> None:
        inventories[0] = Inventory("n", (h100(index=1), h100(index=2)))

    other = asyncio.create_task(change())
    found = await judges.judge("x", UUID, lambda: inventories)

    assert other.done()
    assert found == {"GPU-1": MATCH, "GPU-2": MATCH}


class _Unused(kube.Kube):
    """A client that is never called."""

    def __init__(self) -> None:
        pass


def test_what_an_expression_reads_is_told() -> None:
    """The driver is no attribute; whoever reads nothing else tells no card from another."""
    own = 'device.attributes["gpu.gpupolicy.dev"]'
    judges = expressions.Expressions(_Unused(), evaluate, reads)

    assert judges.reads('device.driver == "gpu.gpupolicy.dev"').names == ()
    assert [r.name for r in judges.reads(f'{own}.productName == "x" && {own}.type == "gpu"').names] == [
        "productName",
        "type",
    ]
