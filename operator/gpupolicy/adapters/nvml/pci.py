"""What sysfs knows of a PCI function: its NUMA node and the root of its tree."""

import re
from pathlib import Path
from typing import Final

_ADDRESS: Final = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
_ROOT: Final = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


def normalise(bus_id: str) -> str:
    """Return a bus id as sysfs writes it (`0000:1a:00.0`); empty where it is none.

    NVML writes eight digits for the domain, in capitals. Domains beyond four digits keep them.
    """
    match = _ADDRESS.fullmatch(bus_id.strip().lower())
    if match is None:
        return ""
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}.{function}"


def numa_node(sysfs: Path, address: str) -> int | None:
    """Return the NUMA node of a function; None where the machine does not say."""
    try:
        node = int((sysfs / "bus/pci/devices" / address / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def root(sysfs: Path, address: str) -> str:
    """Return the root of a function's PCI tree, such as `pci0000:16`; empty where it cannot be told."""
    try:
        target = (sysfs / "bus/pci/devices" / address).readlink()
    except OSError:
        return ""
    return next((part for part in target.parts if _ROOT.fullmatch(part)), "")
