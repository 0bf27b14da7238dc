"""Waiting times grow, are bounded, differ, and begin again."""

import pytest

from gpupolicy.adapters.kube import backoff


def test_waiting_times_double_within_their_jitter():
    pause = backoff.Backoff(1.0, 1000.0)
    for full in (1.0, 2.0, 4.0, 8.0, 16.0):
        assert full / 2 <= pause.next_seconds() <= full


def test_waiting_times_are_capped_for_ever():
    pause = backoff.Backoff(0.5, 30.0)
    times = [pause.next_seconds() for _ in range(2000)]
    assert max(times) <= 30.0
    assert min(times[10:]) >= 15.0


def test_two_clients_do_not_return_in_step():
    assert len({backoff.Backoff(1.0, 30.0).next_seconds() for _ in range(50)}) > 1


def test_success_begins_again():
    pause = backoff.Backoff(1.0, 30.0)
    for _ in range(10):
        pause.next_seconds()
    pause.reset()
    assert pause.next_seconds() <= 1.0


@pytest.mark.parametrize("bounds", [(1.0, 2.0), (0.0, 0.0), (300, 600)])
def test_between_keeps_its_bounds(bounds):
    low, high = bounds
    assert all(low <= backoff.between(low, high) <= high for _ in range(200))
