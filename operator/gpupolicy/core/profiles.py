"""Names of MIG profiles: read, compare and find them on a card.

A name is made by the driver or by nvidia-smi from slices, memory and attributes, and it drifts: the same card
is `1g.23gb` under one driver and `1g.24gb` under the next. Ids and placements do not drift, so a name is only used
to find a profile of a card, once, and ids are compared from then on. The rule of `find_profile`:

1. the same name, after both are brought into one spelling;
2. else the same compute slices and the same attributes, with a memory label within 5 % of the card's label. That
   bridges every drift that is known between drivers (23/24, 186/189 GB), and no two sizes that are different
   products (5/6, 10/12, 20/23 GB);
3. more than one such profile on the card is ambiguous and refused.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from gpupolicy.api.conditions import Reason
from gpupolicy.core.inventory import MigProfile
from gpupolicy.core.refusals import Refusal

MEMORY_TOLERANCE = 0.05
"""Relative difference of memory labels up to which two names mean the same profile."""

_NAME = re.compile(
    r"(?:MIG )?(?:(?P<compute>[1-9]\d?)c\.)?(?P<slices>[1-9]\d?)g\.(?P<memory>[1-9]\d{0,3})gb"
    r"(?P<attributes>(?:[+-][a-z]+(?:\.[a-z]+)*(?:,[a-z]+(?:\.[a-z]+)*)*)*)",
    re.ASCII | re.IGNORECASE,
)
_ATTRIBUTES = re.compile(r"([+-])([a-z.,]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ProfileName:
    """A profile name taken apart: `1c.3g.40gb+me` is 1 of 3 compute slices, 40 GB, with media extensions."""

    slices: int
    """Compute slices of the GPU instance."""
    memory_gb: int
    """The memory label; it is rounded in ways of its own and is no amount to calculate with."""
    attributes: tuple[str, ...] = ()
    """Signed and sorted: `+me`, `+me.all`, `+gfx`, `-me`."""
    compute_slices: int | None = None
    """Slices of the compute instance, where it does not fill the GPU instance; None where it does."""

    def __str__(self) -> str:
        compute = f"{self.compute_slices}c." if self.compute_slices else ""
        return f"{compute}{self.slices}g.{self.memory_gb}gb{''.join(self.attributes)}"

    @property
    def slug(self) -> str:
        """The name as a DNS label, different for different names: `1g-10gb-me`, and `1g-24gb-no-me` for `-me`."""
        words = (("no-" if a[0] == "-" else "") + a[1:].replace(".", "-") for a in self.attributes)
        compute = f"{self.compute_slices}c-" if self.compute_slices else ""
        return "-".join((f"{compute}{self.slices}g-{self.memory_gb}gb", *words))

    def means(self, other: "ProfileName") -> bool:
        """Whether both are names of one profile under different drivers: rule 2 of the module."""
        larger = max(self.memory_gb, other.memory_gb)
        return (
            self.slices == other.slices
            and self.attributes == other.attributes
            and self.compute_slices == other.compute_slices
            and abs(self.memory_gb - other.memory_gb) <= MEMORY_TOLERANCE * larger
        )


@lru_cache(maxsize=1024)
def parse(text: str) -> ProfileName | None:
    """Read a profile name; None where it is none.

    A compute instance that fills its GPU instance (`3c.3g.40gb`) is the plain profile (`3g.40gb`).
    """
    match = _NAME.fullmatch(text.strip())
    if match is None:
        return None
    slices = int(match["slices"])
    compute = int(match["compute"]) if match["compute"] else None
    if compute is not None and compute > slices:
        return None
    attributes = {
        sign + name.lower()
        for sign, names in _ATTRIBUTES.findall(match["attributes"])
        for name in names.split(",")
    }
    return ProfileName(
        slices=slices,
        memory_gb=int(match["memory"]),
        attributes=tuple(sorted(attributes)),
        compute_slices=None if compute == slices else compute,
    )


def derive(
    slices: int, memory_mib: int, card_memory_mib: int, attributes: tuple[str, ...] = ()
) -> ProfileName:
    """Return the name that nvidia-smi makes, for a driver that gives none.

    The label is the instance's memory in eighths of the card, of the card's memory in whole GiB, rounded half up.

    Args:
        slices: Compute slices of the profile.
        memory_mib: Memory of an instance.
        card_memory_mib: Memory of the whole card; more than 0.
        attributes: Signed attributes, e.g. `("+me",)`.
    """
    card_gib = -(-card_memory_mib // 1024)
    eighths = (2 * 8 * memory_mib + card_memory_mib) // (2 * card_memory_mib)
    memory_gb = (2 * eighths * card_gib + 8) // 16
    return ProfileName(slices=slices, memory_gb=max(1, memory_gb), attributes=tuple(sorted(attributes)))


def offered(profiles: tuple[MigProfile, ...]) -> str:
    """Return the profiles of a card for a message, small ones first: `1g.10gb (up to 7), 1g.20gb (up to 4)`."""
    ordered = sorted(profiles, key=lambda p: (p.slices, p.memory_mib, p.name, p.id))
    return ", ".join(f"{p.name} (up to {p.max_instances})" for p in ordered)


def find_profile(
    wanted: str, profiles: tuple[MigProfile, ...], card: str = "this card"
) -> MigProfile | Refusal:
    """Find the profile of a card that a name means, by the rule in the module's header.

    Args:
        wanted: The name that somebody wrote.
        profiles: What the card offers.
        card: How a message names the card.

    Returns:
        The profile, or a refusal of reason InvalidLayout that lists what the card offers.
    """
    name = parse(wanted)
    if name is None:
        return _refuse(f'"{wanted}" is no MIG profile name (e.g. 1g.10gb or 1g.10gb+me)', profiles, card)
    if name.compute_slices is not None:
        whole = ProfileName(name.slices, name.memory_gb, name.attributes)
        return _refuse(
            f'profile "{wanted}" is a part of a GPU instance, which is not served; use {whole}',
            profiles,
            card,
        )
    parsed = [(parse(p.name), p) for p in profiles]
    exact = [p for n, p in parsed if n == name]
    found = exact or [p for n, p in parsed if n is not None and name.means(n)]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(f"{p.name} (id {p.id})" for p in found)
        return _refuse(f'profile "{wanted}" could mean {names}; write the exact name', profiles, card)
    return _refuse(f'there is no profile "{wanted}"', profiles, card)


def _refuse(problem: str, profiles: tuple[MigProfile, ...], card: str) -> Refusal:
    choice = f"{card} offers {offered(profiles)}" if profiles else f"{card} reports no MIG profiles"
    return Refusal(Reason.INVALID_LAYOUT, f"{problem}: {choice}")
