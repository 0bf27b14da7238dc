"""Judges the CEL expressions that policies carry: the API server says whether one is valid, our engine evaluates it.

Validity is asked once per expression, with the dry run of a DeviceClass: only the API server knows its own rules and
limits. Its verdict comes back in its own words, with line and column. Evaluation happens here, because no card is
published before a policy has it: once for each shape, which is what an expression can tell cards apart by. What makes
a card the only one of its kind, such as its UUID, counts only where the expression reads it. An expression that does is
evaluated on every card there is, which takes seconds for thousands of them; other work goes on meanwhile.
"""

import asyncio
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
"""Expressions that are remembered; one that was edited away is forgotten in time."""

_Shape = tuple[Any, ...]

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
        self._judgements: OrderedDict[str, Mapping[_Shape, Judgement]] = OrderedDict()

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

    async def judge(
        self, expression: str, read: Reads, inventories: Callable[[], Iterable[Inventory]]
    ) -> Mapping[str, Judgement]:
        """Evaluate an expression on every card; return the judgements by card UUID.

        Args:
            expression: one that the API server takes.
            read: what it reads of a card.
            inventories: returns the cards as they are when it is called; they may change while some are evaluated.
        """
        individual = None if read.everything else frozenset(r.name for r in read.names)
        known = dict(self._judgements.get(expression, {}))
        while True:
            shapes: dict[str, _Shape] = {}
            missing: dict[_Shape, tuple[Inventory, Gpu]] = {}
            for inventory in inventories():
                for gpu in inventory.gpus:
                    shape = shapes[gpu.uuid] = _shape(inventory, gpu, individual)
                    if shape not in known:
                        missing[shape] = inventory, gpu
            if not missing:
                break
            for shape, (inventory, gpu) in missing.items():
                known[shape] = self._evaluate(expression, inventory, gpu)
                await asyncio.sleep(0)
        self._remember(self._judgements, expression, {shape: known[shape] for shape in shapes.values()})
        return {uuid: known[shape] for uuid, shape in shapes.items()}

    @staticmethod
    def _remember(cache: OrderedDict[Any, Any], key: Any, value: Any) -> None:
        cache[key] = value
        cache.move_to_end(key)
        while len(cache) > CACHE_SIZE:
            cache.popitem(last=False)


def _shape(inventory: Inventory, gpu: Gpu, individual: frozenset[str] | None) -> _Shape:
    """Return what an expression can see of a card.

    Args:
        inventory: the node's.
        gpu: the card.
        individual: the names of attributes that the expression reads; None where any may count.
    """
    own = (
        ("uuid", gpu.uuid),
        ("pciBusID", gpu.pci_bus_id),
        ("pcieRoot", gpu.pcie_root),
        ("numaNode", gpu.numa_node),
    )
    return (
        inventory.driver_version,
        inventory.cuda_version,
        gpu.product_name,
        gpu.architecture,
        gpu.brand,
        gpu.memory_bytes,
        gpu.compute_capability,
        *(value for name, value in own if individual is None or name in individual),
    )
