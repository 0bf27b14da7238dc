"""Evaluates a policy's own CEL expression on a card, as if the card were published whole."""

from gpupolicy.core.inventory import Gpu, Inventory
from gpupolicy.core.matching import Judgement


def evaluate(expression: str, inventory: Inventory, gpu: Gpu) -> Judgement:
    """Return what an expression says of a card; None where that cannot be told."""
    del expression, inventory, gpu
    return Judgement(None, "CEL expressions are not evaluated yet")
