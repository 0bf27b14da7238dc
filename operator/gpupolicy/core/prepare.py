"""The life of a claim on this node, as one table.

Theory of operation. A claim is in one of four states: absent (no record), started, completed, unpreparing. The state
is what the ledger holds, so it survives a crash. An event asks for something; the table gives the effects that carry
it out, in order. Everything that decides what happens to a claim stands here; how an effect is done stands in the
agent. Three rules make every line of the table safe to stop at:

- Each effect is idempotent: done twice, it leaves what done once leaves.
- The record is written before the first effect that it speaks of and removed after the last one is undone, so
  whatever stands on the node is named by a record.
- The table says for every state how to go on for every event, so a process that died between any two effects finds
  its line when the kubelet asks again, which it does until it hears of success.

    absent ──PREPARE──▶ started ──(ready, CDI)──▶ completed
                          │                          │
                          └───────UNPREPARE──────────┤
                                                     ▼
    absent ◀──(CDI removed, hardware released)── unpreparing

REPLACE is a PREPARE whose allocation differs from what the record holds (the claim was deallocated and allocated
again under the same UID): what stands is undone first.
"""

from enum import StrEnum
from typing import Final

from gpupolicy.core.records import ClaimState


class Event(StrEnum):
    """What is asked for."""

    PREPARE = "Prepare"
    REPLACE = "Replace"
    UNPREPARE = "Unprepare"


class Effect(StrEnum):
    """One thing that is done, between two possible crashes."""

    RECORD_STARTED = "RecordStarted"
    MAKE_READY = "MakeReady"
    """Bring the hardware into the state that the claim needs; nothing to do for what stands already."""
    WRITE_CDI = "WriteCdi"
    RECORD_COMPLETED = "RecordCompleted"
    RECORD_UNPREPARING = "RecordUnpreparing"
    REMOVE_CDI = "RemoveCdi"
    RELEASE = "Release"
    """Undo MAKE_READY."""
    REMOVE_RECORD = "RemoveRecord"


_DO: Final = (Effect.RECORD_STARTED, Effect.MAKE_READY, Effect.WRITE_CDI, Effect.RECORD_COMPLETED)
_UNDO: Final = (Effect.REMOVE_CDI, Effect.RELEASE, Effect.REMOVE_RECORD)

TABLE: Final[dict[tuple[ClaimState | None, Event], tuple[Effect, ...]]] = {
    (None, Event.PREPARE): _DO,
    (None, Event.REPLACE): _DO,
    # Without a record nothing of ours can stand but a CDI file, if a record was removed by hand.
    (None, Event.UNPREPARE): (Effect.REMOVE_CDI,),
    (ClaimState.PREPARE_STARTED, Event.PREPARE): _DO[1:],
    (ClaimState.PREPARE_STARTED, Event.REPLACE): (Effect.RECORD_UNPREPARING, *_UNDO, *_DO),
    (ClaimState.PREPARE_STARTED, Event.UNPREPARE): (Effect.RECORD_UNPREPARING, *_UNDO),
    # The file is written again: somebody may have emptied the directory since.
    (ClaimState.PREPARE_COMPLETED, Event.PREPARE): (Effect.WRITE_CDI,),
    (ClaimState.PREPARE_COMPLETED, Event.REPLACE): (Effect.RECORD_UNPREPARING, *_UNDO, *_DO),
    (ClaimState.PREPARE_COMPLETED, Event.UNPREPARE): (Effect.RECORD_UNPREPARING, *_UNDO),
    (ClaimState.UNPREPARING, Event.PREPARE): (*_UNDO, *_DO),
    (ClaimState.UNPREPARING, Event.REPLACE): (*_UNDO, *_DO),
    (ClaimState.UNPREPARING, Event.UNPREPARE): _UNDO,
}

AFTER: Final[dict[Effect, ClaimState | None]] = {
    Effect.RECORD_STARTED: ClaimState.PREPARE_STARTED,
    Effect.RECORD_COMPLETED: ClaimState.PREPARE_COMPLETED,
    Effect.RECORD_UNPREPARING: ClaimState.UNPREPARING,
    Effect.REMOVE_RECORD: None,
}
"""The state that the ledger holds after an effect; effects that are not listed leave it as it is."""


def steps(state: ClaimState | None, event: Event) -> tuple[Effect, ...]:
    """Return the effects that carry an event out from a state, in order."""
    return TABLE[state, event]


def state_after(state: ClaimState | None, effect: Effect) -> ClaimState | None:
    """Return the state that the ledger holds once an effect is done."""
    return AFTER.get(effect, state)
