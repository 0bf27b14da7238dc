"""What an XID says of a card, and until when.

An XID is the driver's word that something went wrong; it comes once, and nobody can ask for it again. So it is remembered,
over a restart too, until there is a reason to believe that it is over:

    the node was rebooted, the driver loaded anew or the card reset      over: the state that it was about is gone
    the driver says that nothing needs to be done (recovery action)      over, after a minute in which it may think again
    a driver that says nothing of the kind, and an XID that passes       over after ten minutes
    anything else                                                        it stands

The driver's recovery action counts without an XID as well: then somebody else heard that. Each answer is a reason to keep
or to drop the XID for good, so a card does not flap.
"""

import datetime as dt
from dataclasses import dataclass
from typing import Final

from gpupolicy.core.render import parse_timestamp, timestamp

APPLICATION: Final = frozenset({13, 31, 43, 45, 68, 109})
"""XIDs that a faulty program causes on a healthy card."""
PASSING: Final = frozenset({63, 92, 94})
"""XIDs after which the card goes on: a row was remapped, a rate of corrected errors was high, an error was contained."""
PASSING_SECONDS: Final = 600.0
TRUST_SECONDS: Final = 60.0
"""How long after an XID the driver is not yet believed that nothing needs to be done."""

REFRESH_SECONDS: Final = 30.0
"""An XID that comes again sooner is no news: a storm of them must not become one of writes to disk and API server."""

NO_ACTION: Final = 0
_ACTIONS: Final = {
    1: "a reset of the card",
    2: "a reboot of the node",
    3: "its peers to be drained",
    4: "its peers to be drained and a reset of the card",
    5: "a recovery of the IMEX domain",
    6: "a reset of its PCI bus",
    7: "a reboot of the system",
}


@dataclass(frozen=True, slots=True)
class Xid:
    """An XID that is remembered of a card."""

    number: int
    heard_at: str
    """RFC 3339."""


def heard(before: Xid | None, number: int, now: dt.datetime) -> Xid | None:
    """Return what is to be remembered after an XID: the latest, but for one that passes beside one that does not."""
    if number in APPLICATION or (before is not None and number in PASSING and before.number not in PASSING):
        return before
    since = parse_timestamp(before.heard_at) if before is not None and before.number == number else None
    if since is not None and 0 <= (now - since).total_seconds() < REFRESH_SECONDS:
        return before
    return Xid(number, timestamp(now))


def standing(xid: Xid | None, recovery: int | None, now: dt.datetime) -> Xid | None:
    """Return the XID if it still says something of its card.

    Args:
        xid: what is remembered.
        recovery: the recovery action that the driver names; None where it says nothing.
        now: the present moment.
    """
    since = parse_timestamp(xid.heard_at) if xid is not None else None
    if xid is None or since is None:
        return xid
    age = (now - since).total_seconds()
    if recovery is None:
        return None if xid.number in PASSING and age > PASSING_SECONDS else xid
    return None if recovery == NO_ACTION and age > TRUST_SECONDS else xid


def sickness(xid: Xid | None, recovery: int | None) -> str:
    """Return why a card counts as sick, with the remedy; empty where it does not."""
    asks = ""
    if recovery is not None and recovery != NO_ACTION:
        asks = f"the driver asks for {_ACTIONS.get(recovery, f'recovery action {recovery}')}"
    if xid is None:
        return asks
    text = f"XID {xid.number} at {xid.heard_at}; see NVIDIA's XID catalogue"
    if asks:
        return f"{text}; {asks}"
    if xid.number in PASSING or recovery is not None:
        return text
    return f"{text}. It counts as sick until it is reset or the node is rebooted"
