"""What an uninstallation that cleans up asks of each node, and what it tells of the answer.

Every card that a policy has, or that we shaped and nobody claims for himself, is released: its agent withdraws its
devices and, where the card is idle, takes away what the ledger proves to be ours. A card in use, a sick one and one
on which somebody else made instances stay as they are and are named.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gpupolicy.api.conditions import Reason
from gpupolicy.api.node import GpuRelease
from gpupolicy.core.inventory import Ownership
from gpupolicy.core.observation import ObservedCard, ObservedNode
from gpupolicy.core.refusals import cards_text

_UNDER_WAY: Final = frozenset({Reason.ROLLOUT_PENDING, Reason.WAITING_FOR_SLICES, Reason.DEGRADED})
"""Reasons of a card that the agent goes on with; after any other one it is somebody else's turn."""


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """How far one node is.

    Attributes:
        node: name of the node.
        pending: why its answer is not complete yet, in words; empty where it is.
        whole: indexes of released cards that are whole.
        left: index -> why a released card is left as it is.
    """

    node: str
    pending: str = ""
    whole: tuple[int, ...] = ()
    left: Mapping[int, str] | None = None


def releases(node: ObservedNode) -> tuple[GpuRelease, ...]:
    """Return the cards of a node that are to be released, in order of their UUIDs."""
    ours = {uuid for uuid, card in node.cards.items() if card.gpu.ownership is not Ownership.FOREIGN}
    return tuple(GpuRelease(uuid=uuid) for uuid in sorted(ours | node.assignments.keys() | node.releases))


def outcome(node: ObservedNode) -> NodeOutcome:
    """Say how far a node is whose cards were released."""
    if node.observed_generation < node.generation:
        heard = f"last heard of at {node.last_observed_time}" if node.has_reported else "it never reported"
        return NodeOutcome(node.name, f"its agent did not answer ({heard})")
    cards = sorted((c for u, c in node.cards.items() if u in node.releases), key=lambda c: c.gpu.index)
    left = {c.gpu.index: text for c in cards if (text := _why_left(c))}
    busy = [c for c in cards if c.reason in _UNDER_WAY]
    return NodeOutcome(
        node=node.name,
        pending="; ".join(f"card {c.gpu.index} is {c.reason}: {c.message}" for c in busy),
        whole=tuple(c.gpu.index for c in cards if c.gpu.index not in left),
        left=left,
    )


def report(found: NodeOutcome) -> str:
    """Return one line on a node."""
    parts = [f"{cards_text(found.whole)} whole"] if found.whole else []
    parts += [f"card {index} is left: {text}" for index, text in sorted((found.left or {}).items())]
    if found.pending and not found.left:
        parts = [f"left as it is: {found.pending}"]
    return f"{found.node}: {'; '.join(parts) or 'no card of ours'}"


def _why_left(card: ObservedCard) -> str:
    if card.reason != Reason.IDLE:
        return f"{card.reason}: {card.message}" if card.message else card.reason
    if card.gpu.mig.enabled:
        return "its MIG mode was on before GpuPolicy had it, and stays on"
    return ""
