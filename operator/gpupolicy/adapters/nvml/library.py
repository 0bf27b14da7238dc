"""Loading NVML and calling it. The only module that touches pynvml's loader and its exceptions.

pynvml caches the loaded library and its functions for the whole process, so there is one `Library` per process.
"""

import ctypes
from pathlib import Path
from typing import Any, Final

import pynvml

from gpupolicy.adapters.nvml import lanes
from gpupolicy.adapters.nvml.errors import NO_CODE, Fault, NvmlError

SONAME: Final = "libnvidia-ml.so.1"

_LIBRARY_NOT_FOUND: Final = 12
_DIRECTORIES: Final = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib",
)


def find(driver_root: Path) -> Path | None:
    """Return the library below a driver root; None where the loader's own search is to decide."""
    if driver_root == Path("/"):
        return None
    for directory in _DIRECTORIES:
        path = driver_root / directory / SONAME
        if path.exists():
            return path
    return None


class Library:
    """NVML in this process.

    Args:
        path: the library to load; None leaves it to the loader.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._loaded: ctypes.CDLL | None = None

    def start(self) -> None:
        """Load the library if need be, and initialise it.

        Raises:
            NvmlError: UNAVAILABLE in most cases; it can be tried again.
        """
        if self._path is not None and self._loaded is None:
            try:
                # The loader knows a library by its SONAME once it is there, so pynvml finds this one.
                self._loaded = ctypes.CDLL(str(self._path), mode=ctypes.RTLD_GLOBAL)
            except OSError as error:
                raise NvmlError("load library", _LIBRARY_NOT_FOUND, str(error)) from error
        self.call("nvmlInit")

    def stop(self) -> None:
        """Shut the library down; a failure to do so is of no interest to anybody."""
        try:
            self.call("nvmlShutdown")
        except NvmlError:
            return

    def call(self, name: str, *arguments: Any) -> Any:
        """Call one function of pynvml.

        Raises:
            NvmlError: whatever the driver answered other than success, or what pynvml could not make sense of.
        """
        lanes.entering(name)
        try:
            return getattr(pynvml, name)(*arguments)
        except pynvml.NVMLError as error:
            raise NvmlError(name, int(error.value), str(error)) from None
        except Exception as error:
            # A name in no known encoding, say: a trouble of that card, which must not end the agent of all others.
            raise NvmlError(name, NO_CODE, f"{type(error).__name__}: {error}", fault=Fault.FAILED) from error

    def optional(self, name: str, *arguments: Any) -> Any:
        """Call one function whose answer one can do without.

        Returns:
            The answer, or the `NvmlError` as a value.
        """
        try:
            return self.call(name, *arguments)
        except NvmlError as error:
            return error
