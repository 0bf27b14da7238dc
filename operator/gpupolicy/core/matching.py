"""Which cards a policy means: the typed fields of its selector, judged on what is known of a card.

A judgement has three values. A card that lacks the fact that a field asks for is neither in nor out: the fact may
be missing because one NVML query failed a moment ago. Such a card is never newly taken, and a policy that has it
keeps it.

The fields mean the same as in the CEL expression that `core/selectors.py` makes of them; only the free expression
(`cel`) is judged elsewhere and handed in.
"""

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache, reduce

from gpupolicy.core.inventory import Gpu
from gpupolicy.core.refusals import listing


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether a card is meant; None where that cannot be told."""

    matches: bool | None
    message: str = ""
    """Why not, or why it cannot be told."""


MATCH = Judgement(matches=True)

_WEIGHT = (False, None, True)
"""Verdicts, the one that decides first."""


@dataclass(frozen=True, slots=True)
class CardSelector:
    """The typed fields of a selector, ANDed. Empty means every card."""

    products: tuple[str, ...] = ()
    """Names; `*` and `?` are wildcards and the whole name must match. One must match."""
    architectures: tuple[str, ...] = ()
    min_memory_bytes: int | None = None
    min_compute_capability: str | None = None
    """Dotted, e.g. `9.0`."""

    def judge(self, gpu: Gpu) -> Judgement:
        """Judge a card. A field that excludes it outweighs one that cannot be told."""
        return reduce(
            combine,
            (
                _judge_name("product", gpu.product_name, self.products),
                _judge_name("architecture", gpu.architecture, self.architectures, literal=True),
                self._judge_memory(gpu.memory_bytes),
                self._judge_capability(gpu.compute_capability),
            ),
        )

    def _judge_memory(self, memory_bytes: int | None) -> Judgement:
        if self.min_memory_bytes is None:
            return MATCH
        if memory_bytes is None:
            return Judgement(None, "the card's memory is not known")
        if memory_bytes >= self.min_memory_bytes:
            return MATCH
        return Judgement(
            matches=False,
            message=f"memory {_size(memory_bytes)} is less than {_size(self.min_memory_bytes)}",
        )

    def _judge_capability(self, capability: str) -> Judgement:
        if self.min_compute_capability is None:
            return MATCH
        has, wanted = _version(capability), _version(self.min_compute_capability)
        if wanted is None:
            return Judgement(None, f'"{self.min_compute_capability}" is no compute capability such as 9.0')
        if has is None:
            return Judgement(None, "the card's compute capability is not known")
        if has >= wanted:
            return MATCH
        return Judgement(
            matches=False,
            message=f"compute capability {capability} is less than {self.min_compute_capability}",
        )


def combine(first: Judgement, second: Judgement) -> Judgement:
    """Return the judgement of both: no outweighs cannot-tell, and that outweighs yes."""
    return min(first, second, key=lambda judgement: _WEIGHT.index(judgement.matches))


def existing_values(gpus: Iterable[Gpu]) -> str:
    """Return what could be selected, for the message of a selector that matches nothing."""
    gpus = list(gpus)
    if not gpus:
        return "the selected nodes report no cards"
    facts = (
        ("products", {g.product_name for g in gpus if g.product_name}),
        ("architectures", {g.architecture for g in gpus if g.architecture}),
        ("memory", {_size(g.memory_bytes) for g in gpus if g.memory_bytes is not None}),
        ("compute capabilities", {g.compute_capability for g in gpus if g.compute_capability}),
    )
    return "; ".join(f"{name}: {listing(sorted(values))}" for name, values in facts if values)


def _judge_name(field: str, name: str, wanted: tuple[str, ...], *, literal: bool = False) -> Judgement:
    if not wanted:
        return MATCH
    if not name:
        return Judgement(None, f"the card's {field} is not known")
    if any(name == w if literal else _pattern(w).fullmatch(name) for w in wanted):
        return MATCH
    return Judgement(matches=False, message=f'{field} "{name}" is none of {listing(wanted)}')


@lru_cache(maxsize=256)
def _pattern(text: str) -> re.Pattern[str]:
    # Brackets are no wildcards here. fnmatch writes an expression that does not backtrack across stars.
    return re.compile(fnmatch.translate(text.replace("[", "[[]")))


def _version(text: str) -> tuple[int, ...] | None:
    if not re.fullmatch(r"\d+(\.\d+)*", text, re.ASCII):
        return None
    numbers = [int(part) for part in text.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _size(memory_bytes: int) -> str:
    return f"{memory_bytes // 2**20}Mi" if memory_bytes % 2**20 == 0 else str(memory_bytes)
