"""Waiting for XIDs: the driver's word that something went wrong on a card.

One daemon thread waits; what it hears is handed to the event loop. It asks nothing of a card (a sick one might not
answer): the card is told from the handle that it was registered with. An event of an unknown card is dropped.
"""

import asyncio
import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pynvml

from gpupolicy.adapters.nvml.errors import NvmlError
from gpupolicy.adapters.nvml.library import Library

WAIT_SECONDS: Final = 1.0
"""How long the thread sleeps in NVML at a time; a stop is noticed then."""
_PAUSE_SECONDS: Final = 5.0
_TIMEOUT_CODE: Final = 10
_NO_INSTANCE: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Xid:
    """One event."""

    gpu_uuid: str
    number: int
    gpu_instance_id: int | None
    """None: the whole card."""


class Listener:
    """Hears the XIDs of a set of cards.

    Args:
        library: NVML, initialised.
        cards: handle by UUID.
        heard: called on the event loop with each event.
    """

    def __init__(self, library: Library, cards: dict[str, Any], heard: Callable[[Xid], None]) -> None:
        self._library = library
        self._heard = heard
        self._loop = asyncio.get_running_loop()
        self._stopping = threading.Event()
        self._uuids = {address(handle): uuid for uuid, handle in cards.items()}
        self._cards = cards
        self._thread = threading.Thread(target=self._listen, name="nvml-events", daemon=True)
        self.deaf: dict[str, NvmlError] = {}
        """Cards that could not be registered, and why. Complete once the thread waits."""

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    async def stop(self) -> None:
        """Stop listening, waiting a moment for the thread: NVML must not be shut down under it."""
        self._stopping.set()
        await asyncio.to_thread(self._thread.join, 2 * WAIT_SECONDS)

    def _listen(self) -> None:
        try:
            events = self._library.call("nvmlEventSetCreate")
        except NvmlError as error:
            self.deaf = dict.fromkeys(self._cards, error)
            return
        for uuid, handle in self._cards.items():
            answer = self._library.optional(
                "nvmlDeviceRegisterEvents", handle, pynvml.nvmlEventTypeXidCriticalError, events
            )
            if isinstance(answer, NvmlError):
                self.deaf[uuid] = answer
        while not self._stopping.is_set():
            self._wait(events)
        self._library.optional("nvmlEventSetFree", events)

    def _wait(self, events: Any) -> None:
        data = self._library.optional("nvmlEventSetWait", events, int(WAIT_SECONDS * 1000))
        if isinstance(data, NvmlError):
            if data.code != _TIMEOUT_CODE:
                # A lost card makes the wait fail at once, again and again.
                self._stopping.wait(_PAUSE_SECONDS)
            return
        uuid = self._uuids.get(address(data.device))
        if uuid is None:
            return
        instance = int(data.gpuInstanceId)
        xid = Xid(uuid, int(data.eventData), None if instance == _NO_INSTANCE else instance)
        try:
            self._loop.call_soon_threadsafe(self._heard, xid)
        except RuntimeError:
            # The loop is gone and with it whoever wanted to know.
            self._stopping.set()


def address(handle: Any) -> int | None:
    """Return what tells a handle from another one."""
    return ctypes.cast(handle, ctypes.c_void_p).value
