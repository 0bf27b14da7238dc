"""Judges the CEL expressions that policies carry: the API server says whether one is valid, our engine evaluates it.

Validity is asked once per expression, with the dry run of a DeviceClass: only the API server knows its own rules and
limits. Its verdict comes back in its own words, with line and column. Evaluation happens here, card by card, because
no card is published before a policy has it; cards with equal facts are evaluated once.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from gpupolicy.adapters import kube
from gpupolicy.api import names
from gpupolicy.core.inventory import Gpu, Inventory
from gpupolicy.core.matching import Judgement
from gpupolicy.core.selection import Reads

CACHE_SIZE: Final = 512
"""Verdicts that are remembered; an expression that was edited away is forgotten in time."""

Evaluate = Callable[[str, Inventory, Gpu], Judgement]
"""Evaluates an expression on one card of a node as if the card were published whole."""

FindReads = Callable[[str], Reads]
"""Returns what an expression reads of a device."""


class Expressions:
    """The verdicts on expressions, remembered."""

    def __init__(self, client: kube.Kube, evaluate: Evaluate, reads: FindReads) -> None:
        self._client = client
        self._evaluate = evaluate
        self.reads = reads
        self._verdicts: OrderedDict[str, str | None] = OrderedDict()
        self._judgements: OrderedDict[tuple[Any, ...], Judgement] = OrderedDict()

    async def problem(self, expression: str) -> str | None:
        """Return why the API server refuses an expression; None where it takes it.

        Raises:
            ApiError: it could not be asked.
        """
        if expression in self._verdicts:
            self._verdicts.move_to_end(expression)
            return self._verdicts[expression]
        digest = hashlib.sha256(expression.encode()).hexdigest()[:16]
        body = {
            "metadata": {"name": f"gpupolicy-dry-run-{digest}"},
            "spec": {"selectors": [{"cel": {"expression": expression}}]},
        }
        verdict = None
        try:
            await self._client.create(
                kube.DEVICE_CLASSES, body, dry_run=True, field_manager=names.CONTROLLER_FIELD_MANAGER
            )
        except kube.AlreadyExists:
            # Somebody made a class of that very name; it was validated before the name was looked at.
            verdict = None
        except kube.Invalid as error:
            verdict = "; ".join(c.message for c in error.causes if c.message) or error.message
        self._remember(self._verdicts, expression, verdict)
        return verdict

    def judge(self, expression: str, inventories: Iterable[Inventory]) -> Mapping[str, Judgement]:
        """Evaluate an expression on every card; return the judgements by card UUID."""
        result: dict[str, Judgement] = {}
        for inventory in inventories:
            for gpu in inventory.gpus:
                key = (expression, inventory.driver_version, inventory.cuda_version, _facts(gpu))
                judgement = self._judgements.get(key)
                if judgement is None:
                    judgement = self._evaluate(expression, inventory, gpu)
                    self._remember(self._judgements, key, judgement, limit=64 * CACHE_SIZE)
                result[gpu.uuid] = judgement
        return result

    @staticmethod
    def _remember(cache: OrderedDict[Any, Any], key: Any, value: Any, *, limit: int = CACHE_SIZE) -> None:
        cache[key] = value
        while len(cache) > limit:
            cache.popitem(last=False)


def _facts(gpu: Gpu) -> tuple[Any, ...]:
    """Return what an expression can see of a card. The UUID is among it: an expression may name a card."""
    return (
        gpu.uuid,
        gpu.pci_bus_id,
        gpu.product_name,
        gpu.architecture,
        gpu.brand,
        gpu.memory_bytes,
        gpu.compute_capability,
        gpu.numa_node,
        gpu.pcie_root,
        gpu.minor,
    )
