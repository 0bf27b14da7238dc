"""How long planning takes: one card, and a node of eight.

Each function returns samples in milliseconds. The caches of the planner are emptied before each sample, so a sample
is what the first plan for a kind of card costs.
"""

import random
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from bench.registry import Bench
from bench.result import against_limit
from gpupolicy.core import placement
from gpupolicy.core.inventory import ClaimUse, Gpu, Instance, MigProfile, MigState, Ownership
from gpupolicy.core.layouts import StaticLayout
from gpupolicy.core.nodes import NodeView, plan_node
from gpupolicy.core.planner import plan_card
from gpupolicy.core.policies import PolicyView
from tests.unit.core.known_cards import KNOWN_CARDS

CARD_SAMPLES = 1000
NODE_SAMPLES = 200


def measure_card(count: int = CARD_SAMPLES) -> list[float]:
    """Plan a random layout on a card of a random model, with random instances of which some are in use."""
    chance = random.Random(1)  # noqa: S311 - samples, no secrets.
    samples = []
    for _ in range(count):
        profiles = KNOWN_CARDS[chance.choice(sorted(KNOWN_CARDS))]
        gpu, layout = _random_card(chance, profiles), _random_layout(chance, profiles)
        samples.append(_milliseconds(partial(plan_card, gpu, layout)))
    return samples


def measure_node(count: int = NODE_SAMPLES) -> list[float]:
    """Plan eight random H100s for two policies."""
    chance = random.Random(2)  # noqa: S311 - samples, no secrets.
    profiles = KNOWN_CARDS["h100-80gb"]
    samples = []
    for _ in range(count):
        gpus = [replace(_random_card(chance, profiles), uuid=f"GPU-{n}", index=n) for n in range(8)]
        policies = [
            PolicyView(
                "old",
                created="2026-01-01T00:00:00Z",
                layout=_random_layout(chance, profiles),
                gpus_per_node=4,
            ),
            PolicyView("young", created="2026-01-02T00:00:00Z", layout=_random_layout(chance, profiles)),
        ]
        node = NodeView("node", gpus=tuple(gpus))
        samples.append(_milliseconds(partial(plan_node, node, policies)))
    return samples


BENCHES: Final = (
    Bench(
        "plan-card",
        "plan a random layout on one card of a random model with random instances, some in use",
        lambda session: [against_limit(measure_card(session.count(CARD_SAMPLES)), "ms", 5.0)],
    ),
    Bench(
        "plan-node",
        "plan eight random cards for two policies",
        lambda session: [against_limit(measure_node(session.count(NODE_SAMPLES)), "ms", 50.0)],
    ),
)


def _milliseconds(work: Callable[[], object]) -> float:
    placement.geometry.cache_clear()
    placement.all_arrangements.cache_clear()
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


def _random_layout(chance: random.Random, profiles: tuple[MigProfile, ...]) -> StaticLayout:
    names = {p.id: p.name for p in profiles}
    return StaticLayout.of((names[i], n) for i, n in chance.choice(list(placement.layouts(profiles))))


def _random_card(chance: random.Random, profiles: tuple[MigProfile, ...]) -> Gpu:
    counts = chance.choice(list(placement.layouts(profiles)))
    arrangement = chance.choice(placement.all_arrangements(profiles, counts))
    busy = (ClaimUse("team", "job", "uid", ("pod",)),)
    instances = tuple(
        Instance(
            profile_id=pair.profile_id,
            profile=pair.profile,
            placement=pair.placement,
            gpu_instance_id=n,
            compute_instance_id=0,
            ownership=Ownership.OWNED,
            claims=busy if chance.random() < 0.4 else (),  # noqa: PLR2004
        )
        for n, pair in enumerate(placement.geometry(profiles).pairs_in(arrangement.pairs))
    )
    return Gpu("GPU-0", 0, mig=MigState(capable=True, enabled=True, profiles=profiles), instances=instances)
