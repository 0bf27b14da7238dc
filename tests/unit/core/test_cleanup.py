"""What an uninstallation that cleans up releases, and what it tells."""

import pytest

from gpupolicy.api.conditions import Reason
from gpupolicy.api.node import GpuAssignment
from gpupolicy.core import cleanup
from gpupolicy.core.inventory import Ownership
from gpupolicy.core.observation import ObservedCard, ObservedNode
from tests.unit.core.builders import card, instance


def shown(index: int, reason: str = "Idle", message: str = "", **fields: object) -> ObservedCard:
    gpu = card(index=index, **{"enabled": False, **fields})  # type: ignore[arg-type]
    return ObservedCard(gpu, reason=reason, message=message)


def node(*cards: ObservedCard, generation: int = 2, **fields: object) -> ObservedNode:
    by_uuid = {c.gpu.uuid: c for c in cards}
    known: dict[str, object] = {"releases": frozenset(by_uuid), "observed_generation": 2, **fields}
    return ObservedNode("n", generation=generation, cards=by_uuid, **known)  # type: ignore[arg-type]


def test_what_is_released() -> None:
    """Cards that policies have, also those that are not seen now, and those on which nobody else made anything."""
    foreign = instance("1g.10gb@0", ownership=Ownership.FOREIGN)
    theirs = ObservedCard(card(foreign, index=1, ownership=Ownership.FOREIGN))
    found = node(
        shown(0, ownership=Ownership.OWNED),
        theirs,
        shown(2),
        releases=frozenset({"GPU-8"}),
        assignments={"GPU-9": GpuAssignment(uuid="GPU-9", policy="p")},
    )
    assert [r.uuid for r in cleanup.releases(found)] == ["GPU-0", "GPU-2", "GPU-8", "GPU-9"]
    assert cleanup.releases(node()) == ()


def test_an_agent_that_has_not_answered() -> None:
    found = cleanup.outcome(node(shown(0), generation=3, last_observed_time="2026-01-01T00:00:00Z"))
    assert found.pending == "its agent did not answer (last heard of at 2026-01-01T00:00:00Z)"
    assert (
        cleanup.report(found)
        == "n: left as it is: its agent did not answer (last heard of at 2026-01-01T00:00:00Z)"
    )
    assert "it never reported" in cleanup.outcome(node(generation=3)).pending


@pytest.mark.parametrize("reason", [Reason.ROLLOUT_PENDING, Reason.WAITING_FOR_SLICES, Reason.DEGRADED])
def test_a_card_that_is_on_its_way_is_waited_for(reason: Reason) -> None:
    found = cleanup.outcome(node(shown(0), shown(1, reason, "under way")))
    assert found.pending == f"card 1 is {reason}: under way"
    assert cleanup.report(found) == f"n: card 0 whole; card 1 is left: {reason}: under way"


@pytest.mark.parametrize(
    "reason",
    [
        Reason.WAITING_FOR_CLAIMS,
        Reason.GPU_UNHEALTHY,
        Reason.OWNERSHIP_CONFLICT,
        Reason.MIG_ACTIVATION_PENDING,
    ],
)
def test_a_card_that_needs_somebody_else_is_named_and_not_waited_for(reason: Reason) -> None:
    found = cleanup.outcome(node(shown(0), shown(3, reason, "used by pod a/b"), shown(4), shown(5)))
    assert found.pending == ""
    assert cleanup.report(found) == f"n: cards 0, 4-5 whole; card 3 is left: {reason}: used by pod a/b"


def test_a_mode_that_stays_on_is_told() -> None:
    found = cleanup.outcome(node(shown(0, enabled=True)))
    assert found.whole == ()
    assert "MIG mode was on before" in cleanup.report(found)


def test_a_node_without_cards_of_ours() -> None:
    assert cleanup.report(cleanup.outcome(node())) == "n: no card of ours"
