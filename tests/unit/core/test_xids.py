"""Until when an XID counts, and what is told of it."""

import datetime as dt
from typing import Any

import pytest

from gpupolicy.core import xids
from gpupolicy.core.records import GpuRecord, decode_gpu, encode_gpu
from gpupolicy.core.xids import Xid

NOW = dt.datetime(2026, 11, 30, 12, 0, 0, tzinfo=dt.UTC)


def at(seconds_ago: float, number: int = 79) -> Xid:
    moment = NOW - dt.timedelta(seconds=seconds_ago)
    return Xid(number, moment.strftime("%Y-%m-%dT%H:%M:%SZ"))


HEARD: list[Any] = [
    pytest.param(None, 79, at(0, 79), id="first"),
    pytest.param(None, 31, None, id="a-faulty-program"),
    pytest.param(at(50, 79), 31, at(50, 79), id="a-faulty-program-on-a-sick-card"),
    pytest.param(at(50, 79), 48, at(0, 48), id="the-latest"),
    pytest.param(at(50, 79), 94, at(50, 79), id="one-that-passes-hides-none-that-stays"),
    pytest.param(at(50, 94), 94, at(0, 94), id="one-that-passes-again"),
    pytest.param(at(29, 79), 79, at(29, 79), id="a-storm"),
    pytest.param(at(30, 79), 79, at(0, 79), id="again-after-a-while"),
    pytest.param(at(-9, 79), 79, at(0, 79), id="the-clock-was-set-back"),
    pytest.param(Xid(79, "whenever"), 79, at(0, 79), id="unreadable-time"),
    pytest.param(at(50, 94), 79, at(0, 79), id="worse"),
]


@pytest.mark.parametrize(("before", "number", "after"), HEARD)
def test_what_is_remembered(before: Xid | None, number: int, after: Xid | None) -> None:
    assert xids.heard(before, number, NOW) == after


STANDING: list[Any] = [
    pytest.param(None, None, False, id="none"),
    pytest.param(at(5), None, True, id="young"),
    pytest.param(at(10**8), None, True, id="for-ever"),
    pytest.param(at(599, 94), None, True, id="passing-young"),
    pytest.param(at(601, 94), None, False, id="passing-old"),
    pytest.param(at(59), 0, True, id="not-believed-yet"),
    pytest.param(at(61), 0, False, id="nothing-to-do"),
    pytest.param(at(61, 94), 0, False, id="passing-and-nothing-to-do"),
    pytest.param(at(10**6), 1, True, id="reset-asked-for"),
    pytest.param(at(10**6, 94), 1, True, id="passing-and-reset-asked-for"),
    pytest.param(at(-3600), 0, True, id="the-clock-was-set-back"),
    pytest.param(Xid(79, "whenever"), 0, True, id="unreadable-time"),
]


@pytest.mark.parametrize(("xid", "recovery", "stands"), STANDING)
def test_until_when_it_stands(xid: Xid | None, recovery: int | None, stands: bool) -> None:
    assert xids.standing(xid, recovery, NOW) == (xid if stands else None)


TOLD: list[Any] = [
    pytest.param(None, None, (), id="nothing-is-known"),
    pytest.param(None, 0, (), id="well"),
    pytest.param(None, 2, ("the driver asks for a reboot of the node",), id="asked-without-xid"),
    pytest.param(None, 99, ("recovery action 99",), id="an-action-of-a-newer-driver"),
    pytest.param(at(0), 1, ("XID 79", "12:00:00Z", "asks for a reset of the card"), id="both"),
    pytest.param(at(0), None, ("XID 79", "until it is reset or the node is rebooted"), id="remedy"),
    pytest.param(at(0, 94), None, ("XID 94",), id="passes"),
]


@pytest.mark.parametrize(("xid", "recovery", "words"), TOLD)
def test_what_is_told(xid: Xid | None, recovery: int | None, words: tuple[str, ...]) -> None:
    text = xids.sickness(xid, recovery)
    assert bool(text) is bool(words)
    assert all(word in text for word in words)


def test_the_ledger_keeps_it() -> None:
    record = GpuRecord("GPU-1", xid=at(5))
    assert decode_gpu(encode_gpu(record)) == record
    assert decode_gpu(encode_gpu(GpuRecord("GPU-1"))).xid is None
