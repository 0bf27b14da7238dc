"""The table of a claim's life: complete, and safe to stop at any line."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupolicy.core.prepare import AFTER, TABLE, Effect, Event, state_after, steps
from gpupolicy.core.records import ClaimState

STATES = [None, *ClaimState]


@pytest.mark.parametrize(("state", "event"), list(itertools.product(STATES, Event)))
def test_every_event_has_a_line_in_every_state(state: ClaimState | None, event: Event) -> None:
    """The kubelet may ask for anything at any time."""
    assert steps(state, event)


@pytest.mark.parametrize(("state", "event"), list(TABLE))
def test_a_line_ends_where_its_event_leads(state: ClaimState | None, event: Event) -> None:
    """Prepare ends completed, unprepare ends absent, whatever stood before."""
    for effect in steps(state, event):
        state = state_after(state, effect)
    assert state is (None if event is Event.UNPREPARE else ClaimState.PREPARE_COMPLETED)


@pytest.mark.parametrize(("state", "event"), list(TABLE))
def test_the_record_covers_what_stands(state: ClaimState | None, event: Event) -> None:
    """Hardware and CDI change only while a record names the claim; a stray CDI file alone goes without one."""
    for effect in steps(state, event):
        if effect in (Effect.MAKE_READY, Effect.WRITE_CDI, Effect.RELEASE):
            assert state is not None
        state = state_after(state, effect)


def test_only_ledger_effects_change_the_state() -> None:
    """The state is what the ledger holds, nothing else."""
    assert {effect for effect in Effect if "Record" in effect.value} == set(AFTER)


class World:
    """What stands on a node for one claim, as the effects leave it."""

    def __init__(self) -> None:
        self.state: ClaimState | None = None
        self.cdi = False
        self.ready = False

    def perform(self, effect: Effect) -> None:
        self.state = state_after(self.state, effect)
        match effect:
            case Effect.WRITE_CDI:
                self.cdi = True
            case Effect.REMOVE_CDI:
                self.cdi = False
            case Effect.MAKE_READY:
                self.ready = True
            case Effect.RELEASE:
                self.ready = False


@given(
    st.lists(st.tuples(st.sampled_from(list(Event)), st.integers(0, 8)), max_size=12),
    st.sampled_from(list(Event)),
)
def test_any_history_of_crashes_converges(history: list[tuple[Event, int]], last: Event) -> None:
    """After any sequence of calls that each died after some effects, one call that lives puts all right."""
    world = World()
    for event, survived in history:
        for effect in steps(world.state, event)[:survived]:
            world.perform(effect)
        assert world.state is not None or not world.ready, "hardware that no record names"
    for effect in steps(world.state, last):
        world.perform(effect)
    stands = last is not Event.UNPREPARE
    assert (world.cdi, world.ready, world.state) == (
        stands,
        stands,
        ClaimState.PREPARE_COMPLETED if stands else None,
    )
