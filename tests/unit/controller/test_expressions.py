"""Own CEL expressions: evaluated on cards as published whole, once per card, and asked about once."""

from typing import Any

import pytest

from gpupolicy.adapters import kube
from gpupolicy.controller import expressions
from gpupolicy.controller.evaluation import evaluate, reads
from gpupolicy.core.inventory import Gpu, Inventory
from gpupolicy.core.matching import MATCH, Judgement
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


def test_a_card_is_evaluated_again_only_if_its_facts_change() -> None:
    counting = Counting()
    judges = expressions.Expressions(_Unused(), counting, reads)
    inventory = Inventory("n", (h100(index=0), h100(index=1)), driver_version="1")

    assert judges.judge("x", [inventory]) == {"GPU-0": MATCH, "GPU-1": MATCH}
    judges.judge("x", [inventory])
    assert counting.seen == ["x GPU-0 1", "x GPU-1 1"]

    judges.judge("x", [Inventory("n", inventory.gpus, driver_version="2")])
    judges.judge("y", [inventory])
    judges.judge("x", [Inventory("n", (h100(index=0, memory_bytes=1),), driver_version="1")])
    assert counting.seen[2:] == ["x GPU-0 2", "x GPU-1 2", "y GPU-0 1", "y GPU-1 1", "x GPU-0 1"]


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
