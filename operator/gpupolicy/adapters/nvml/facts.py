"""What stays the same about a card: what it is, where it sits, which MIG profiles it offers.

Only the handle and the UUID must be readable. Every other question that fails leaves a gap, never a missing card; a
gap that may close by itself (anything but NotSupported) makes the facts incomplete, and they are asked again later.
"""

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pynvml

from gpupolicy.adapters.nvml import pci
from gpupolicy.adapters.nvml.errors import Fault, NvmlError
from gpupolicy.adapters.nvml.library import Library
from gpupolicy.core.inventory import MigProfile, Placement
from gpupolicy.core.profiles import derive

_ARCHITECTURES: Final = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada Lovelace",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}
_AMPERE: Final = 7
_BRANDS: Final = {
    1: "Quadro",
    2: "Tesla",
    3: "NVS",
    4: "Grid",
    5: "GeForce",
    6: "Titan",
    7: "NvidiaVApps",
    8: "NvidiaVPC",
    9: "NvidiaVCS",
    10: "NvidiaVWS",
    11: "NvidiaCloudGaming",
    12: "QuadroRTX",
    13: "NvidiaRTX",
    14: "Nvidia",
    15: "GeForceRTX",
    16: "TitanRTX",
}
_ATTRIBUTES: Final = {
    7: ("+me",),
    8: ("+me",),
    10: ("+gfx",),
    11: ("+gfx",),
    12: ("+gfx",),
    13: ("-me",),
    14: ("-me",),
    15: ("+me.all",),
    16: ("+me.all",),
    17: ("+gfx",),
}
"""What a profile constant says beside slices: media engines and graphics."""
_LAST_PROFILE: Final = 63
"""Profile constants are asked for until the driver says that there are no more; this is where we stop regardless."""
_ENGINES: Final = {
    "multiprocessors": "multiprocessorCount",
    "copy_engines": "copyEngineCount",
    "decoders": "decoderCount",
    "encoders": "encoderCount",
    "jpeg_engines": "jpegCount",
    "ofa_engines": "ofaCount",
}


@dataclass(frozen=True, slots=True)
class CardFacts:
    """The facts of one card. `complete` is False where a question failed that may be answered another time."""

    uuid: str
    minor: int | None
    pci_bus_id: str
    product_name: str
    architecture: str
    brand: str
    memory_bytes: int | None
    compute_capability: str
    numa_node: int | None
    pcie_root: str
    serial: str
    mig_capable: bool
    mode_needs_reset: bool
    profiles: tuple[MigProfile, ...]
    profiles_gap: NvmlError | None
    """Why there may be profiles that are not in `profiles`: instances of those cannot be seen."""
    complete: bool


class _Questions:
    """Asks optional questions of one card and remembers whether a gap may close.

    Raises `NvmlError` for a lost card only: then every further question is a waste of time.
    """

    def __init__(self, library: Library, handle: Any) -> None:
        self._library = library
        self._handle = handle
        self.gap: NvmlError | None = None
        """The first failure of a question that may be answered another time."""

    def ask(self, name: str, *arguments: Any) -> Any:
        answer = self._library.optional(name, self._handle, *arguments)
        if not isinstance(answer, NvmlError):
            return answer
        if answer.fault in (Fault.LOST, Fault.UNAVAILABLE):
            raise answer
        if answer.fault is not Fault.NOT_SUPPORTED:
            self.gap = self.gap or answer
        return None

    def text(self, name: str) -> str:
        answer = self.ask(name)
        if isinstance(answer, bytes):
            return answer.decode(errors="replace")
        return str(answer) if answer is not None else ""


def read_facts(library: Library, handle: Any, uuid: str, *, sysfs: Path, mig_capable: bool) -> CardFacts:
    """Read everything that does not change.

    Raises:
        NvmlError: the card or the driver is gone.
    """
    questions, of_profiles = _Questions(library, handle), _Questions(library, handle)
    info = questions.ask("nvmlDeviceGetPciInfo")
    bus_id = getattr(info, "busId", "")
    address = pci.normalise(bus_id.decode() if isinstance(bus_id, bytes) else bus_id)
    architecture = questions.ask("nvmlDeviceGetArchitecture")
    memory = questions.ask("nvmlDeviceGetMemoryInfo")
    capability = questions.ask("nvmlDeviceGetCudaComputeCapability")
    memory_bytes = int(memory.total) if memory is not None and memory.total else None
    return CardFacts(
        uuid=uuid,
        minor=questions.ask("nvmlDeviceGetMinorNumber"),
        pci_bus_id=address,
        product_name=questions.text("nvmlDeviceGetName"),
        # A card newer than this table has no architecture name; it works all the same.
        architecture=_ARCHITECTURES.get(architecture, ""),
        brand=_BRANDS.get(questions.ask("nvmlDeviceGetBrand"), ""),
        memory_bytes=memory_bytes,
        compute_capability=".".join(map(str, capability)) if capability else "",
        numa_node=pci.numa_node(sysfs, address) if address else None,
        pcie_root=pci.root(sysfs, address) if address else "",
        serial=questions.text("nvmlDeviceGetSerial"),
        mig_capable=mig_capable,
        mode_needs_reset=mig_capable and architecture is not None and architecture <= _AMPERE,
        profiles=_read_profiles(of_profiles, memory_bytes) if mig_capable else (),
        profiles_gap=of_profiles.gap,
        complete=questions.gap is None and of_profiles.gap is None,
    )


def _read_profiles(questions: _Questions, card_memory_bytes: int | None) -> tuple[MigProfile, ...]:
    profiles: dict[int, MigProfile] = {}
    for number in range(_LAST_PROFILE + 1):
        info = _ask_profile(questions, number)
        if info is None:
            continue
        if isinstance(info, NvmlError):
            break
        placements = _read_placements(questions, int(info.id))
        # A profile without placements cannot be used, and go-nvml's tables show that such rows exist.
        if placements:
            profiles.setdefault(int(info.id), _profile(info, number, placements, card_memory_bytes))
    return tuple(profiles.values())


def _ask_profile(questions: _Questions, number: int) -> Any:
    """Return the profile of a constant, None where the card has none, the error where constants end."""
    library, handle = questions._library, questions._handle  # noqa: SLF001 - one module, two classes.
    answer = library.optional("nvmlDeviceGetGpuInstanceProfileInfo", handle, number)
    if isinstance(answer, NvmlError) and answer.code in (13, 25):
        # The versioned call is younger than MIG itself.
        answer = library.optional("nvmlDeviceGetGpuInstanceProfileInfo", handle, number, 1)
    if not isinstance(answer, NvmlError):
        return answer
    if answer.fault in (Fault.LOST, Fault.UNAVAILABLE):
        raise answer
    if answer.fault is Fault.INVALID:
        return answer
    if answer.fault is not Fault.NOT_SUPPORTED:
        questions.gap = questions.gap or answer
    return None


def _read_placements(questions: _Questions, profile_id: int) -> tuple[Placement, ...]:
    count = ctypes.c_uint(0)
    name = "nvmlDeviceGetGpuInstancePossiblePlacements"
    if questions.ask(name, profile_id, None, ctypes.byref(count)) is None or not count.value:
        return ()
    places = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    if questions.ask(name, profile_id, places, ctypes.byref(count)) is None:
        return ()
    return tuple(sorted(Placement(int(p.start), int(p.size)) for p in places[: count.value]))


def _profile(
    info: Any, number: int, placements: tuple[Placement, ...], card_memory_bytes: int | None
) -> MigProfile:
    raw = getattr(info, "name", b"")
    name = (raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)).removeprefix("MIG ").strip()
    slices, memory_mib = int(info.sliceCount), int(info.memorySizeMB)
    if not name and card_memory_bytes:
        name = str(derive(slices, memory_mib, card_memory_bytes // 1024**2, _ATTRIBUTES.get(number, ())))
    return MigProfile(
        id=int(info.id),
        name=name,
        slices=slices,
        memory_mib=memory_mib,
        max_instances=int(info.instanceCount),
        placements=placements,
        enum=number,
        **{ours: int(getattr(info, theirs)) for ours, theirs in _ENGINES.items()},
    )
