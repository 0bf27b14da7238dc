"""Calls into the driver that must not be able to break what they are told about.

A listener that raises would otherwise end the task that called it: a prepared claim would be answered with an error,
or the slices would be kept no longer.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


def tell(listener: Callable[[_T], None] | None, news: _T) -> None:
    """Tell a listener, if there is one; what it raises is logged and goes no further."""
    if listener is None:
        return
    try:
        listener(news)
    except Exception:  # noqa: BLE001 - a bug of the driver must stay its own
        _log.exception("a listener failed on %s", type(news).__name__)
