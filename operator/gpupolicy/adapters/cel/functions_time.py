"""Points in time: reading them, printing them, and what a calendar says of them. Overload id -> function.

Calendars repeat after 400 years, so that moments beyond what Python's dates reach are looked at that much earlier or later.
"""

import datetime as dt
import functools
import re
import zoneinfo
from collections.abc import Callable
from typing import Any, Final

from gpupolicy.adapters.cel.syntax import UncertainError
from gpupolicy.adapters.cel.values import CelError, Timestamp

__all__ = ["IMPLEMENTATIONS", "moved", "string_to_timestamp", "timestamp", "timestamp_text"]

_SECOND: Final = 10**9
_MINUTE_SECONDS: Final = 60
_DAY_SECONDS: Final = 86400
_FIRST_SECOND: Final = -62135596800
_LAST_SECOND: Final = 253402300799
_CYCLE_YEARS: Final = 400
_CYCLE_SECONDS: Final = 146097 * _DAY_SECONDS
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_BASE = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
_BASE_SECOND: Final = (_BASE - _EPOCH) // dt.timedelta(seconds=1)


def timestamp(nanoseconds: int) -> Timestamp:
    """Return the point in time so long after 1970.

    Raises:
        CelError: outside of the years 1 to 9999.
    """
    if _FIRST_SECOND <= nanoseconds // _SECOND <= _LAST_SECOND:
        return Timestamp(nanoseconds)
    raise CelError("timestamp overflow")


def moved(value: Timestamp, nanoseconds: int) -> Timestamp:
    """Return the point in time so much later, with the same offset."""
    return Timestamp(timestamp(value.nanoseconds + nanoseconds).nanoseconds, value.offset_minutes)


# Of the hour alone Go takes one digit, too.
_TIMESTAMP = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d?):(\d\d):(\d\d)(?:[.,](\d+))?(Z|([+-])(\d\d):(\d\d))", re.ASCII
)
_MOST_OFFSET_HOURS: Final = 24
_MOST_OFFSET_MINUTES: Final = 60


def string_to_timestamp(text: str) -> Timestamp:
    """Return the point in time of an RFC 3339 text.

    Raises:
        CelError: when it is none.
    """
    match = _TIMESTAMP.fullmatch(text)
    error = CelError("type conversion error from 'string' to 'google.protobuf.Timestamp'")
    if match is None:
        raise error
    year, *rest = (int(match[i]) for i in range(1, 7))
    try:
        # Year 0 is a leap year to Go and does not exist here.
        moment = dt.datetime(year or _CYCLE_YEARS, *rest, tzinfo=dt.UTC)  # type: ignore[misc,arg-type]
    except ValueError as cause:
        raise error from cause
    offset = 0
    if match[8] != "Z":
        hours, minutes = int(match[10]), int(match[11])
        if hours > _MOST_OFFSET_HOURS or minutes > _MOST_OFFSET_MINUTES:
            raise error
        offset = (hours * 60 + minutes) * (-1 if match[9] == "-" else 1)
    fraction = (match[7] or "")[:9].ljust(9, "0")
    seconds = (moment - _EPOCH) // dt.timedelta(seconds=1) - offset * _MINUTE_SECONDS
    if not year:
        seconds -= _CYCLE_SECONDS
    return Timestamp(timestamp(seconds * _SECOND + int(fraction)).nanoseconds, offset)


def timestamp_text(value: Timestamp) -> str:
    """Return the timestamp in RFC 3339, with the offset it came with and as many digits as it needs."""
    seconds, nanoseconds = divmod(value.nanoseconds, _SECOND)
    date = _Date.of(seconds + value.offset_minutes * _MINUTE_SECONDS)
    fraction = f".{nanoseconds:09d}".rstrip("0").rstrip(".")
    hours, minutes = divmod(abs(value.offset_minutes), 60)
    zone = (
        f"{'-' if value.offset_minutes < 0 else '+'}{hours:02d}:{minutes:02d}"
        if value.offset_minutes
        else "Z"
    )
    return f"{date.year:04d}{date.moment.strftime('-%m-%dT%H:%M:%S')}{fraction}{zone}"


class _Date:
    """A date and time of day, `years` later than `moment`."""

    __slots__ = ("moment", "years")

    def __init__(self, moment: dt.datetime, years: int) -> None:
        self.moment = moment
        self.years = years

    @classmethod
    def of(cls, seconds: int) -> "_Date":
        """Return what a clock shows so many seconds after 1970 there."""
        cycles, rest = divmod(seconds - _BASE_SECOND, _CYCLE_SECONDS)
        return cls(_BASE + dt.timedelta(seconds=rest), cycles * _CYCLE_YEARS)

    @property
    def year(self) -> int:
        return self.moment.year + self.years


def _local(value: Timestamp, zone: str) -> _Date:
    seconds = value.nanoseconds // _SECOND
    if ":" in zone:
        return _Date.of(seconds + _offset_seconds(zone))
    place = _zone(zone)
    if place is dt.UTC:
        return _Date.of(seconds)
    cycles = (seconds < _FIRST_SECOND + 2 * _DAY_SECONDS) - (seconds > _LAST_SECOND - 2 * _DAY_SECONDS)
    moment = _EPOCH + dt.timedelta(seconds=seconds + cycles * _CYCLE_SECONDS)
    return _Date(moment.astimezone(place), -cycles * _CYCLE_YEARS)


_INT64_RANGE: Final = 2**64
_INT64_HALF: Final = 2**63
_HOUR_MINUTES: Final = 60


def _offset_seconds(zone: str) -> int:
    hours, _, minutes = zone.partition(":")
    if not all(_is_int64(part) for part in (hours, minutes)):
        raise CelError(f'invalid time zone "{zone}"')
    offset = int(hours) * _HOUR_MINUTES + (-int(minutes) if zone.startswith("-") else int(minutes))
    # Kept in nanoseconds of 64 bits, and cut off to seconds.
    nanoseconds = (offset * _MINUTE_SECONDS * _SECOND + _INT64_HALF) % _INT64_RANGE - _INT64_HALF
    seconds = abs(nanoseconds) // _SECOND
    return -seconds if nanoseconds < 0 else seconds


def _is_int64(text: str) -> bool:
    return (
        re.fullmatch(r"[+-]?[0-9]+", text, re.ASCII) is not None and -_INT64_HALF <= int(text) < _INT64_HALF
    )


def _zone(name: str) -> dt.tzinfo:
    if name in ("", "UTC"):
        return dt.UTC
    if name == "Local" or not _time_zones_known():
        raise UncertainError(f'the time zone "{name}"')
    try:
        return zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError) as error:
        raise CelError(f"unknown time zone {name}") from error


@functools.cache
def _time_zones_known() -> bool:
    try:
        zoneinfo.ZoneInfo("Europe/Berlin")
    except zoneinfo.ZoneInfoNotFoundError:
        return False
    return True


_PARTS: dict[str, Callable[[_Date], int]] = {
    "year": lambda date: date.year,
    "month": lambda date: date.moment.month - 1,
    "day_of_year": lambda date: date.moment.timetuple().tm_yday - 1,
    "day_of_month": lambda date: date.moment.day - 1,
    "day_of_month_1_based": lambda date: date.moment.day,
    "day_of_week": lambda date: date.moment.isoweekday() % 7,
    "hours": lambda date: date.moment.hour,
    "minutes": lambda date: date.moment.minute,
    "seconds": lambda date: date.moment.second,
}


def _milliseconds(value: Timestamp) -> int:
    return value.nanoseconds % _SECOND // 10**6


IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {
    **{
        f"timestamp_to_{name}": lambda value, part=part: part(_local(value, "UTC"))
        for name, part in _PARTS.items()
    },
    **{
        f"timestamp_to_{name}_with_tz": lambda value, zone, part=part: part(_local(value, zone))
        for name, part in _PARTS.items()
    },
    "timestamp_to_milliseconds": _milliseconds,
    "timestamp_to_milliseconds_with_tz": lambda value, zone: _local(value, zone) and _milliseconds(value),
    "timestamp_to_int64": lambda value: value.nanoseconds // _SECOND,
    "timestamp_to_string": timestamp_text,
    "timestamp_to_timestamp": lambda value: value,
    "int64_to_timestamp": lambda value: timestamp(value * _SECOND),
    "string_to_timestamp": string_to_timestamp,
}
