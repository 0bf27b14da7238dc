"""NVML's codes as one small vocabulary of faults that the agent can act on.

Codes are compared by number; NVML's texts are for people and change between drivers.
"""

from enum import StrEnum
from typing import Final


class Fault(StrEnum):
    """What kind of failure it was, and so what can be done."""

    UNAVAILABLE = "Unavailable"
    """No NVML at all: library missing, driver not loaded or of another version. Try again later."""
    NOT_SUPPORTED = "NotSupported"
    """The card or the driver cannot do it, now or ever."""
    NOT_FOUND = "NotFound"
    DENIED = "NoPermission"
    IN_USE = "InUse"
    """A client holds it. Try again when it is gone."""
    NO_ROOM = "InsufficientResources"
    """The placement is taken, or engines are; NVML cannot say which."""
    INVALID = "InvalidArgument"
    """The call does not make sense to the driver, also where the state forbids it."""
    LOST = "GpuLost"
    """The card does not answer any more (fallen off the bus, or needs a reset)."""
    HANGS = "Hangs"
    """A call has not returned within its deadline. Nothing is asked of that card until it has."""
    CHANGED = "Changed"
    """The hardware is not what it was taken for: another card in the slot, an instance that somebody made or removed."""
    FAILED = "Failed"
    """Anything else."""


_FAULTS: Final = {
    1: Fault.UNAVAILABLE,  # Uninitialized: the library was shut down under us, or the driver was reloaded.
    2: Fault.INVALID,
    3: Fault.NOT_SUPPORTED,
    4: Fault.DENIED,
    6: Fault.NOT_FOUND,
    9: Fault.UNAVAILABLE,  # Driver not loaded.
    12: Fault.UNAVAILABLE,  # Library not found.
    13: Fault.NOT_SUPPORTED,  # Function not found: an older driver.
    15: Fault.LOST,
    16: Fault.LOST,  # Reset required.
    18: Fault.UNAVAILABLE,  # Library and kernel module are of different versions.
    19: Fault.IN_USE,
    23: Fault.NO_ROOM,
    25: Fault.NOT_SUPPORTED,  # Version of the argument: an older driver.
    26: Fault.NOT_SUPPORTED,  # Deprecated.
    28: Fault.LOST,  # GPU not found.
    29: Fault.INVALID,
}

_REMEDIES: Final = {
    9: "load the NVIDIA kernel driver",
    12: "install the NVIDIA driver, or name its library with --nvml-library or --driver-root",
    15: "reset the card or reboot the node; one that is lost again is to be replaced",
    16: "reset the card or reboot the node",
    18: "the driver was updated under the agent: reboot the node, or reload the driver and restart the agent",
}

NO_CODE: Final = -1


def fault_of(code: int) -> Fault:
    """Return the fault that a code of NVML stands for."""
    return _FAULTS.get(code, Fault.FAILED)


class NvmlError(Exception):
    """An NVML call that did not do what was asked.

    Attributes:
        call: name of the NVML function, or what was tried with several.
        code: NVML's return code, `NO_CODE` where it is our own judgement.
        fault: what kind of failure it is.
    """

    def __init__(self, call: str, code: int, text: str, *, fault: Fault | None = None) -> None:
        self.call = call
        self.code = code
        self.fault = fault or fault_of(code)
        where = f" (NVML code {code})" if code != NO_CODE else ""
        remedy = f": {_REMEDIES[code]}" if code in _REMEDIES else ""
        super().__init__(f"{call}: {text}{where}{remedy}")
