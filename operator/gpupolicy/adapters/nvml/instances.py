"""MIG mode, instances and processes of one card: reading them, and the three writes.

All functions block and run on the card's lane. An instance of ours is one GPU instance with one compute instance that
fills it. A write looks before it acts, and reads back afterwards: what counts is what stands on the card, not what
a call returned.
"""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pynvml

from gpupolicy.adapters.nvml.errors import NO_CODE, Fault, NvmlError
from gpupolicy.adapters.nvml.library import Library
from gpupolicy.core.inventory import Instance, MigProfile, Placement, Process

_COMPUTE_PROFILES: Final = 9
"""Compute instance profile constants, `NVML_COMPUTE_INSTANCE_PROFILE_COUNT`."""
_NO_INSTANCE: Final = 0xFFFFFFFF
_PROCESS_LISTS: Final = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)


@dataclass(frozen=True, slots=True)
class Mode:
    """MIG mode of a card, now and after its next reset."""

    enabled: bool
    pending_enabled: bool


@dataclass(frozen=True, slots=True)
class _ComputeProfile:
    id: int
    slices: int
    count: int
    multiprocessors: int


ComputeProfiles = dict[int, tuple[_ComputeProfile, ...]]
"""Compute instance profiles by GPU instance profile id; filled as they are met, the same for a card's whole life."""


def read_mode(library: Library, handle: Any) -> Mode | None:
    """Return the MIG mode, None for a card without MIG.

    Raises:
        NvmlError: it cannot be told.
    """
    try:
        current, pending = library.call("nvmlDeviceGetMigMode", handle)
    except NvmlError as error:
        if error.fault is Fault.NOT_SUPPORTED:
            return None
        raise
    return Mode(enabled=current == 1, pending_enabled=pending == 1)


def read_instances(
    library: Library, handle: Any, profiles: tuple[MigProfile, ...], known: ComputeProfiles
) -> tuple[Instance, ...]:
    """Return everything that stands on a card in MIG mode, whoever made it, also what has no compute instance.

    Raises:
        NvmlError: it cannot be told; half an answer would make room where there is none.
    """
    found = [
        _read_instance(library, gpu_instance, profile, known)
        for profile in profiles
        for gpu_instance in _gpu_instances(library, handle, profile)
    ]
    return tuple(sorted(found, key=lambda i: (i.placement, i.profile_id)))


def read_processes(library: Library, handle: Any) -> dict[int | None, tuple[Process, ...]]:
    """Return the processes on a card by GPU instance id, None standing for the whole card.

    A list that the card does not keep is empty.

    Raises:
        NvmlError: the card or the driver is gone.
    """
    found: dict[int | None, dict[int, Process]] = {}
    for name in _PROCESS_LISTS:
        listed = library.optional(name, handle)
        if isinstance(listed, NvmlError):
            if listed.fault in (Fault.LOST, Fault.UNAVAILABLE):
                raise listed
            continue
        for process in listed:
            number = getattr(process, "gpuInstanceId", _NO_INSTANCE)
            where = None if number is None or number == _NO_INSTANCE else int(number)
            pid = int(process.pid)
            found.setdefault(where, {})[pid] = Process(pid, _process_name(library, pid))
    return {where: tuple(p for _, p in sorted(listed.items())) for where, listed in found.items()}


def set_mode(library: Library, handle: Any, *, enabled: bool) -> Mode:
    """Set the MIG mode and return what the card says then; pending where it waits for a reset.

    Raises:
        NvmlError: the mode is what it was. IN_USE where a client holds the card.
    """
    # pynvml returns the activation status as a value; only the mode itself tells what became of it.
    status = library.call("nvmlDeviceSetMigMode", handle, 1 if enabled else 0)
    mode = read_mode(library, handle)
    if mode is None or (mode.enabled is not enabled and mode.pending_enabled is not enabled):
        state = "on" if enabled else "off"
        if status:
            raise NvmlError("nvmlDeviceSetMigMode", int(status), f"MIG mode cannot be turned {state}")
        raise NvmlError(
            "nvmlDeviceSetMigMode",
            NO_CODE,
            f"the driver reports success and MIG mode is still not {state}",
            fault=Fault.FAILED,
        )
    return mode


def create(
    library: Library, handle: Any, profile: MigProfile, placement: Placement, known: ComputeProfiles
) -> Instance:
    """Create one instance at this placement.

    Raises:
        NvmlError: CHANGED when somebody else has made one there meanwhile; anything else the driver may say. What a
            failed creation left behind has been removed where the driver let us; read the card again.
    """
    occupied = _find(library, handle, profile, placement)
    if occupied is not None:
        raise NvmlError(
            "create instance",
            NO_CODE,
            f"{profile.name} at {placement.start} stands there already, and not by us",
            fault=Fault.CHANGED,
        )
    place = pynvml.c_nvmlGpuInstancePlacement_t(start=placement.start, size=placement.size)
    # By reference: pynvml passes the argument on unchanged, and a structure by value crashes the process.
    gpu_instance = library.call(
        "nvmlDeviceCreateGpuInstanceWithPlacement", handle, profile.id, ctypes.byref(place)
    )
    try:
        fitting = _full_compute_profile(library, gpu_instance, profile, known)
        library.call("nvmlGpuInstanceCreateComputeInstance", gpu_instance, fitting.id)
        instance = _read_instance(library, gpu_instance, profile, known)
        _check_made(instance, profile, placement)
    except NvmlError:
        _clear(library, gpu_instance, profile, known)
        raise
    return instance


def _check_made(instance: Instance, profile: MigProfile, placement: Placement) -> None:
    """Raise where the driver made something else than it was asked for."""
    if (instance.profile_id, instance.placement) == (profile.id, placement) and instance.uuid:
        return
    made = f"{instance.profile} at {instance.placement.start}:{instance.placement.size}"
    made += "" if instance.uuid else " without a usable compute instance"
    raise NvmlError(
        "create instance",
        NO_CODE,
        f"the driver made {made} instead of {profile.name} at {placement.start}:{placement.size}",
        fault=Fault.FAILED,
    )


def destroy(
    library: Library,
    handle: Any,
    profile: MigProfile,
    placement: Placement,
    known: ComputeProfiles,
    *,
    uuid: str = "",
) -> bool:
    """Destroy the instance at this placement, compute instance first; False when there was none.

    With `uuid`, only the instance that has this MIG UUID, or has none.

    Raises:
        NvmlError: IN_USE when a process holds it, then nothing was destroyed or the compute instance only; CHANGED
            when its UUID is another.
    """
    gpu_instance = _find(library, handle, profile, placement)
    if gpu_instance is None:
        return False
    standing = _read_instance(library, gpu_instance, profile, known)
    if uuid and standing.uuid and standing.uuid != uuid:
        raise NvmlError(
            "destroy instance",
            NO_CODE,
            f"{profile.name} at {placement.start} is {standing.uuid} and no longer {uuid}",
            fault=Fault.CHANGED,
        )
    _destroy(library, gpu_instance, profile, known)
    if _find(library, handle, profile, placement) is not None:
        raise NvmlError(
            "nvmlGpuInstanceDestroy",
            NO_CODE,
            f"the driver reports success and {profile.name} at {placement.start} still stands",
            fault=Fault.FAILED,
        )
    return True


def _destroy(library: Library, gpu_instance: Any, profile: MigProfile, known: ComputeProfiles) -> None:
    for compute_instance in _compute_instances(library, gpu_instance, profile, known):
        library.call("nvmlComputeInstanceDestroy", compute_instance)
    library.call("nvmlGpuInstanceDestroy", gpu_instance)


def _clear(library: Library, gpu_instance: Any, profile: MigProfile, known: ComputeProfiles) -> None:
    """Remove what a failed creation left, as far as the driver lets us; the ledger remembers the rest.

    By the handle that the creation returned: that proves that it is ours, wherever the driver has put it.
    """
    try:
        _destroy(library, gpu_instance, profile, known)
    except NvmlError:
        return


def _gpu_instances(library: Library, handle: Any, profile: MigProfile) -> list[Any]:
    # The driver writes as many as exist, and never more than the profile allows.
    count = ctypes.c_uint(max(profile.max_instances, 1))
    handles = (pynvml.c_nvmlGpuInstance_t * count.value)()
    try:
        library.call("nvmlDeviceGetGpuInstances", handle, profile.id, handles, ctypes.byref(count))
    except NvmlError as error:
        # The mode was turned off since it was read, or the profile cannot be asked for in this state: none of it.
        if error.fault is Fault.NOT_SUPPORTED:
            return []
        raise
    return list(handles[: min(count.value, len(handles))])


def _find(library: Library, handle: Any, profile: MigProfile, placement: Placement) -> Any | None:
    for gpu_instance in _gpu_instances(library, handle, profile):
        info = library.call("nvmlGpuInstanceGetInfo", gpu_instance)
        if (int(info.placement.start), int(info.placement.size)) == (placement.start, placement.size):
            return gpu_instance
    return None


def _compute_profiles(
    library: Library, gpu_instance: Any, profile: MigProfile, known: ComputeProfiles
) -> tuple[_ComputeProfile, ...]:
    """Return the compute instance profiles of a GPU instance, each id once, in the order of their constants."""
    if profile.id in known:
        return known[profile.id]
    found: dict[int, _ComputeProfile] = {}
    for number in range(_COMPUTE_PROFILES):
        info = library.optional("nvmlGpuInstanceGetComputeInstanceProfileInfo", gpu_instance, number, 0)
        if isinstance(info, NvmlError):
            if info.fault in (Fault.NOT_SUPPORTED, Fault.INVALID):
                continue
            raise info
        found.setdefault(
            int(info.id),
            _ComputeProfile(
                int(info.id), int(info.sliceCount), int(info.instanceCount), int(info.multiprocessorCount)
            ),
        )
    # None at all is what a GPU instance answers that somebody destroyed meanwhile; that says nothing of the card.
    if found:
        known[profile.id] = tuple(found.values())
    return tuple(found.values())


def _full_compute_profile(
    library: Library, gpu_instance: Any, profile: MigProfile, known: ComputeProfiles
) -> _ComputeProfile:
    """Return the compute instance profile that uses the whole GPU instance.

    Several may span all its slices, and not all of them use every multiprocessor; of equals it is the first.
    """
    candidates = [
        candidate
        for candidate in _compute_profiles(library, gpu_instance, profile, known)
        if candidate.slices == profile.slices
    ]
    if candidates:
        return max(candidates, key=lambda candidate: candidate.multiprocessors)
    raise NvmlError(
        "nvmlGpuInstanceGetComputeInstanceProfileInfo",
        NO_CODE,
        f"no compute instance profile fills {profile.name}",
        fault=Fault.NOT_SUPPORTED,
    )


def _compute_instances(
    library: Library, gpu_instance: Any, profile: MigProfile, known: ComputeProfiles
) -> Iterator[Any]:
    for candidate in _compute_profiles(library, gpu_instance, profile, known):
        count = ctypes.c_uint(max(candidate.count, 1))
        handles = (pynvml.c_nvmlComputeInstance_t * count.value)()
        library.call(
            "nvmlGpuInstanceGetComputeInstances", gpu_instance, candidate.id, handles, ctypes.byref(count)
        )
        yield from handles[: min(count.value, len(handles))]


def _read_instance(
    library: Library, gpu_instance: Any, profile: MigProfile, known: ComputeProfiles
) -> Instance:
    info = library.call("nvmlGpuInstanceGetInfo", gpu_instance)
    compute = list(_compute_instances(library, gpu_instance, profile, known))
    number, uuid = None, ""
    if len(compute) == 1:
        inner = library.call("nvmlComputeInstanceGetInfo", compute[0])
        slices = {c.id: c.slices for c in _compute_profiles(library, gpu_instance, profile, known)}
        # A compute instance that leaves slices of its GPU instance unused is no device of ours.
        if slices.get(int(inner.profileId)) == profile.slices:
            number, uuid = int(inner.id), str(library.call("nvmlDeviceGetUUID", inner.device))
    return Instance(
        profile_id=int(info.profileId),
        profile=profile.name,
        placement=Placement(int(info.placement.start), int(info.placement.size)),
        gpu_instance_id=int(info.id),
        compute_instance_id=number,
        uuid=uuid,
    )


def _process_name(library: Library, pid: int) -> str:
    name = library.optional("nvmlSystemGetProcessName", pid)
    if isinstance(name, NvmlError):
        return ""
    text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
    return text[:64]
