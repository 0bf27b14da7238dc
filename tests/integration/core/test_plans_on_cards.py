"""Plans carried out on the simulator, which enforces the rules of the hardware, and read back.

Our own model of a card (`steps.card_after`) has no part in this: what the planner believes about placements, engines
and the order of steps is held against NVML.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpupolicy.api.conditions import Reason
from gpupolicy.core.layouts import StaticLayout, WholeCard
from gpupolicy.core.placement import Counts, counts_of, layouts
from gpupolicy.core.planner import CardPlan, Change, plan_card
from gpupolicy.core.steps import steps_of, steps_of_change
from tests.integration.core.card_driver import CardDriver
from tests.simulator import Simulator

MODELS = (
    "a30", "a100-40gb", "a100-80gb", "h100-80gb", "h100-80gb-pcie", "h100-94gb-nvl", "h200-141gb", "gh200-96gb",
    "gh200-144gb", "b200-180gb", "gb200-186gb", "rtx-pro-6000-96gb",
)  # fmt: skip


@pytest.fixture
def node(model: str, tmp_path: Path) -> Simulator:
    """A node with two cards of one model."""
    return Simulator(tmp_path / "node").create(gpus=2, model=model, options=["--state-only"])


@pytest.fixture
def driver(node: Simulator) -> Iterator[CardDriver]:
    """The second card of the node, in MIG mode and empty."""
    with node.nvml() as nvml:
        nvml.nvmlDeviceSetMigMode(nvml.nvmlDeviceGetHandleByIndex(1), 1)
        node.reset(1)
        yield CardDriver(nvml, 1)


def named(driver: CardDriver, counts: Counts) -> StaticLayout:
    names = {p.id: p.name for p in driver.profiles}
    return StaticLayout.of((names[i], n) for i, n in counts)


def carry_out(driver: CardDriver, layout: StaticLayout | WholeCard) -> CardPlan:
    """Plan on what NVML shows, do every step, and return the plan."""
    plan = plan_card(driver.read(), layout)
    assert isinstance(plan, CardPlan), plan
    for step in steps_of(plan):
        driver.carry_out(step)
    return plan


def counts_on(driver: CardDriver) -> Counts:
    return counts_of(i.profile_id for i in driver.read().instances)


@pytest.mark.parametrize("model", MODELS)
def test_every_layout_is_made_on_the_empty_card(driver: CardDriver) -> None:
    for counts in layouts(driver.profiles):
        assert carry_out(driver, named(driver, counts)).waiting is None

        assert counts_on(driver) == counts
        assert plan_card(driver.read(), named(driver, counts)).is_applied
        for step in steps_of_change("", Change(destroy=driver.read().instances)):
            driver.carry_out(step)
        assert counts_on(driver) == ()


@pytest.mark.parametrize("model", MODELS)
def test_every_layout_is_made_on_what_another_left(driver: CardDriver) -> None:
    wanted = list(layouts(driver.profiles))
    random.Random(1).shuffle(wanted)
    for counts in wanted:
        before = {i.uuid: i for i in driver.read().instances}

        plan = carry_out(driver, named(driver, counts))

        assert counts_on(driver) == counts
        assert set(plan.keep) == {i for i in driver.read().instances if before.get(i.uuid) == i}


@pytest.mark.parametrize("model", MODELS)
def test_instances_in_use_survive_any_change(node: Simulator, driver: CardDriver) -> None:
    """A random walk through layouts with processes on random instances; a layout is reached once they end."""
    chance = random.Random(1)
    wanted = list(layouts(driver.profiles))
    waited = 0
    for _ in range(15):
        layout = named(driver, chance.choice(wanted))
        for instance in driver.read().instances:
            if chance.random() < 0.4:
                node.add_client(1, 4000 + instance.gpu_instance_id, gi=instance.gpu_instance_id, ci=0)
        busy = {i for i in driver.read().instances if i.in_use}

        plan = carry_out(driver, layout)

        assert busy <= set(driver.read().instances)
        assert steps_of(plan_card(driver.read(), layout)) == ()
        waited += plan.waiting is not None
        if busy:
            node.remove_client(gpu=1)
        assert carry_out(driver, layout).waiting is None
        assert plan_card(driver.read(), layout).is_applied
    assert waited


@pytest.mark.parametrize("model", ["h100-80gb"])
def test_the_mode_follows_the_layout(node: Simulator, driver: CardDriver) -> None:
    carry_out(driver, StaticLayout.of([("3g.40gb", 2)]))

    carry_out(driver, WholeCard())
    assert not driver.read().mig.enabled
    assert node.layout(1) == []

    carry_out(driver, StaticLayout.of([("3g.40gb", 2)]))
    assert node.layout(1) == [("3g.40gb", 0), ("3g.40gb", 4)]
    assert node.layout(0) == []


@pytest.mark.parametrize("model", ["a100-80gb"])
def test_a_mode_that_needs_a_reset_is_pending_until_then(node: Simulator, driver: CardDriver) -> None:
    whole = WholeCard()
    node.add_client(1, 17)
    for step in steps_of(CardPlan("", whole, now=Change(mig_mode=False))):
        with pytest.raises(AssertionError):
            driver.carry_out(step)

    plan = plan_card(driver.read(), whole)
    assert isinstance(plan, CardPlan)
    assert plan.waiting is not None
    assert plan.waiting.reason == Reason.MIG_ACTIVATION_PENDING
    assert steps_of(plan) == ()

    node.remove_client(gpu=1)
    node.reset(1)
    assert plan_card(CardDriver(driver.nvml, 1).read(), whole).is_applied
