"""The oracle's window arithmetic."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.core.messages import TupleWindow, Window
from windrow.core.time import DAY_US, END_OF_TIME_US, HOUR_US, START_OF_TIME_US, instant_us
from windrow.core.windows import calendar, global_window, hopping, tumbling, tuples
from windrow.operators.oracle.windows import tuple_windows_of, windows_of

SPAN = 10**9
TIMES = st.integers(-SPAN, SPAN)
SIZES = st.integers(1, 10**6)


def us(n: int) -> timedelta:
    return timedelta(microseconds=n)


def at(text: str) -> int:
    return instant_us(datetime.fromisoformat(text))


@given(time=TIMES, size=SIZES, offset=TIMES)
def test_a_tumbling_window_covers_its_time_and_is_aligned(time: int, size: int, offset: int) -> None:
    (window,) = windows_of(tumbling(us(size), offset=us(offset)), time)
    assert time in window
    assert window.end_us - window.start_us == size
    assert (window.start_us - offset) % size == 0


@given(time=TIMES, size=st.integers(1, 200), hop=st.integers(1, 200), offset=TIMES)
def test_hopping_windows_are_all_that_cover_the_time(time: int, size: int, hop: int, offset: int) -> None:
    windows = windows_of(hopping(us(size), us(hop), offset=us(offset), gaps=True), time)
    starts = [start for start in range(time - size + 1, time + 1) if (start - offset) % hop == 0]
    assert windows == [Window(start, start + size) for start in starts]


@given(number=st.integers(1, 300), size=st.integers(1, 40), step=st.integers(1, 40))
def test_tuple_windows_are_all_that_hold_the_number(number: int, size: int, step: int) -> None:
    step = min(size, step)
    firsts = [first for first in range(1, number + 1, step) if first + size > number]
    assert tuple_windows_of(tuples(size, step=step), number) == [
        TupleWindow(first, first + size - 1) for first in firsts
    ]


def test_the_global_window_is_one() -> None:
    assert windows_of(global_window(), 5) == [Window(START_OF_TIME_US, END_OF_TIME_US)]


def test_tuple_windows_are_none_of_event_time() -> None:
    with pytest.raises(ValueError, match="use tuple_windows_of"):
        windows_of(tuples(2), 5)


ZONES = ["UTC", "America/New_York", "America/St_Johns", "America/Sao_Paulo", "Pacific/Apia", "Asia/Kathmandu"]


@given(
    time=st.integers(at("1985-01-01T00:00:00Z"), at("2030-01-01T00:00:00Z")),
    unit=st.sampled_from(["day", "3 days", "week", "2 weeks", "month", "quarter", "year"]),
    zone=st.sampled_from(ZONES),
    week_start=st.sampled_from(["monday", "sunday", "wednesday"]),
)
def test_a_calendar_window_covers_its_time_and_meets_its_neighbours(
    time: int, unit: str, zone: str, week_start: str
) -> None:
    spec = calendar(unit, time_zone=zone, week_start=week_start)
    (window,) = windows_of(spec, time)
    assert time in window
    assert windows_of(spec, window.start_us) == windows_of(spec, window.end_us - 1) == [window]
    assert windows_of(spec, window.end_us)[0].start_us == window.end_us
    assert windows_of(spec, window.start_us - 1)[0].end_us == window.start_us


@pytest.mark.parametrize(
    ("unit", "zone", "time", "start", "hours"),
    [
        ("day", "America/New_York", "2020-03-08T12:00:00Z", "2020-03-08T05:00:00Z", 23),
        ("day", "America/New_York", "2020-11-01T12:00:00Z", "2020-11-01T04:00:00Z", 25),
        ("day", "America/Sao_Paulo", "2018-11-04T03:00:00Z", "2018-11-04T03:00:00Z", 23),
        ("day", "Pacific/Apia", "2011-12-30T10:00:00Z", "2011-12-30T10:00:00Z", 24),
        ("week", "UTC", "2020-01-01T00:00:00Z", "2019-12-30T00:00:00Z", 168),
        ("2 weeks", "UTC", "1970-01-05T00:00:00Z", "1969-12-29T00:00:00Z", 336),
        ("month", "Europe/Berlin", "2020-03-01T00:00:00Z", "2020-02-29T23:00:00Z", 743),
        ("quarter", "UTC", "2020-06-30T23:00:00Z", "2020-04-01T00:00:00Z", 91 * 24),
        ("year", "UTC", "1969-12-31T23:59:59Z", "1969-01-01T00:00:00Z", 365 * 24),
        ("3 days", "UTC", "1969-12-31T00:00:00Z", "1969-12-29T00:00:00Z", 72),
    ],
)
def test_calendar_windows_of_known_days(unit: str, zone: str, time: str, start: str, hours: int) -> None:
    (window,) = windows_of(calendar(unit, time_zone=zone), at(time))
    assert window == Window(at(start), at(start) + hours * HOUR_US)


def test_the_hour_that_moves_back_over_midnight_belongs_to_the_new_day() -> None:
    """St John's, 2006-10-29: at 00:01 clocks went back to 23:01. Days are cut at the first midnight."""
    spec = calendar("day", time_zone="America/St_Johns")
    midnight = at("2006-10-29T02:30:00Z")
    assert windows_of(spec, midnight - 1) == [Window(midnight - DAY_US, midnight)]
    for minutes in (0, 1, 30, 60):
        assert windows_of(spec, midnight + minutes * 60_000_000)[0].start_us == midnight


def test_a_gap_that_swallows_midnight_starts_the_day_at_its_end() -> None:
    """Toronto, 1919-03-30: at 23:30 clocks went forward to 00:30 of the 31st."""
    spec = calendar("day", time_zone="America/Toronto")
    (window,) = windows_of(spec, at("1919-03-31T12:00:00Z"))
    assert datetime.fromtimestamp(window.start_us / 1e6, UTC) == datetime(1919, 3, 31, 4, 30, tzinfo=UTC)
