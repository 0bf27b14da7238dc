"""Evaluates a policy's own CEL expression on a card, as if the card were published whole, and says what it reads."""

from gpupolicy.api import names
from gpupolicy.core import devices
from gpupolicy.core.inventory import Gpu, Inventory
from gpupolicy.core.matching import MATCH, Judgement
from gpupolicy.core.selection import Device, Outcome, Reads


def evaluate(expression: str, inventory: Inventory, gpu: Gpu) -> Judgement:
    """Return what an expression says of a card; neither yes nor no where it fails or cannot be evaluated here.

    An expression that fails on a card (it reads a fact that the card lacks) does not take it, and does not give it
    away either: the fact may be missing because one query of the driver failed a moment ago.
    """
    # Most policies have no expression of their own, and the engine costs megabytes.
    from gpupolicy.adapters.cel import engine

    facts = devices.DriverFacts(inventory.driver_version, inventory.cuda_version)
    wire = devices.gpu_device(gpu, "", facts).to_wire()
    device = Device(driver=names.DRIVER, attributes=wire["attributes"], capacity=wire["capacity"])
    (verdict,) = engine.evaluate(expression, [device])
    match verdict.outcome:
        case Outcome.MATCH:
            return MATCH
        case Outcome.NO_MATCH:
            return Judgement(matches=False, message="the CEL expression is false")
        case Outcome.ERROR:
            return Judgement(matches=None, message=f"the CEL expression fails: {verdict.reason}")
        case Outcome.CANNOT_TELL:
            return Judgement(
                matches=None, message=f"the CEL expression cannot be evaluated: {verdict.reason}"
            )


def reads(expression: str) -> Reads:
    """Return what an expression reads of a device."""
    from gpupolicy.adapters.cel import engine

    return engine.reads(expression)
