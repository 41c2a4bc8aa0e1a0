"""Definitions of windows: what they hold, what they refuse, how they print."""

import pickle
from datetime import timedelta

import pytest

import windrow as wr
from windrow.core.errors import BadDuration, BadWindow
from windrow.core.time import HOUR_US, MINUTE_US, SECOND_US
from windrow.core.windows import Hopping, Tumbling, Tuples, WindowSpec, span_is_small

WINDOWS = {
    "wr.tumbling('1 hour')": wr.tumbling("1 hour"),
    "wr.tumbling('1 day', offset='6 hours')": wr.tumbling("1 day", offset="6 hours"),
    "wr.hopping('10 seconds', '2 seconds')": wr.hopping("10 seconds", "2 seconds"),
    "wr.hopping('10 seconds', '3 seconds', offset='1 second')": wr.hopping(
        timedelta(seconds=10), timedelta(seconds=3), offset=timedelta(seconds=1)
    ),
    "wr.hopping('1 second', '1 minute', gaps=True)": wr.hopping("1 second", "1 minute", gaps=True),
    "wr.calendar('month', time_zone='Europe/Berlin')": wr.calendar("month", time_zone="Europe/Berlin"),
    "wr.calendar('2 weeks', time_zone='UTC', week_start='sunday')": wr.calendar(
        "2 weeks", time_zone="UTC", week_start="sunday"
    ),
    "wr.tuples(3)": wr.tuples(3),
    "wr.tuples(3, step=1)": wr.tuples(3, step=1),
    "wr.global_window()": wr.global_window(),
}


@pytest.mark.parametrize("text", WINDOWS)
def test_a_window_prints_as_the_expression_that_builds_it(text: str) -> None:
    window = WINDOWS[text]
    assert repr(window) == text
    assert eval(text, {"wr": wr}) == window
    assert hash(eval(text, {"wr": wr})) == hash(window)


@pytest.mark.parametrize("text", WINDOWS)
def test_a_window_survives_pickle_and_is_frozen(text: str) -> None:
    window = WINDOWS[text]
    assert pickle.loads(pickle.dumps(window)) == window
    for name in window.__slots__:
        with pytest.raises(AttributeError):
            setattr(window, name, 1)


def test_all_windows_differ_from_each_other() -> None:
    assert len(set(WINDOWS.values())) == len(WINDOWS)


@pytest.mark.parametrize(
    ("offset", "kept_us"), [("0 seconds", 0), ("70 minutes", 10 * MINUTE_US), ("-1 minute", 59 * MINUTE_US)]
)
def test_an_offset_is_a_phase_modulo_the_size(offset: str, kept_us: int) -> None:
    assert wr.tumbling("1 hour", offset=offset) == Tumbling(HOUR_US, kept_us)


def test_the_offset_of_a_hopping_window_is_a_phase_modulo_the_hop() -> None:
    assert wr.hopping("1 hour", "20 seconds", offset="65 seconds") == Hopping(
        HOUR_US, 20 * SECOND_US, 5 * SECOND_US
    )


def test_tuple_windows_tumble_unless_a_step_is_given() -> None:
    assert wr.tuples(5) == Tuples(5, 5)
    assert wr.tuples(5, step=2) == Tuples(5, 2)


@pytest.mark.parametrize(
    "make", [lambda d: wr.tumbling(d), lambda d: wr.hopping(d, "1 s"), lambda d: wr.hopping("1 s", d)]
)
@pytest.mark.parametrize("size", ["0 seconds", "-1 second"])
def test_a_size_that_is_not_positive_is_refused(make: object, size: str) -> None:
    with pytest.raises(BadWindow, match="positive") as error:
        make(size)  # type: ignore[operator]
    assert repr(size) in str(error.value)


def test_a_hop_larger_than_the_size_is_refused_unless_gaps_are_asked_for() -> None:
    with pytest.raises(BadWindow) as error:
        wr.hopping("1 second", "1 minute")
    text = str(error.value)
    assert "'1 minute'" in text and "'1 second'" in text and "gaps=True" in text
    assert wr.hopping("1 second", "1 minute", gaps=True).hop_us == MINUTE_US


@pytest.mark.parametrize("size", ["fortnight", "0 days", "-1 day", "1.5 days", "", "3", "hour"])
def test_a_calendar_unit_that_is_none_is_refused(size: str) -> None:
    with pytest.raises(BadWindow) as error:
        wr.calendar(size, time_zone="UTC")
    assert repr(size) in str(error.value) and "day, week, month, quarter, year" in str(error.value)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../etc", ""])
def test_a_time_zone_that_is_none_is_refused(zone: str) -> None:
    with pytest.raises(BadWindow, match="IANA name") as error:
        wr.calendar("day", time_zone=zone)
    assert repr(zone) in str(error.value)


def test_a_first_day_of_the_week_that_is_none_is_refused() -> None:
    with pytest.raises(BadWindow, match=r"'Mon'.*monday, tuesday"):
        wr.calendar("week", time_zone="UTC", week_start="Mon")


@pytest.mark.parametrize(("size", "step"), [(0, None), (-1, None), (3, 0), (3, -1)])
def test_a_tuple_window_needs_positive_numbers(size: int, step: int | None) -> None:
    with pytest.raises(BadWindow, match="both must be positive") as error:
        wr.tuples(size, step=step)
    assert f"size {size}" in str(error.value)


def test_a_step_larger_than_the_size_is_refused() -> None:
    with pytest.raises(BadWindow, match="step 4 is larger than size 3"):
        wr.tuples(3, step=4)


def test_a_size_that_is_no_duration_is_named() -> None:
    with pytest.raises(BadDuration, match="window size 'an hour'"):
        wr.tumbling("an hour")


@pytest.mark.parametrize(
    ("window", "small"),
    [
        (wr.tumbling("1 minute"), True),
        (wr.tumbling("61 seconds"), False),
        (wr.hopping("60 seconds", "1 second"), True),
        (wr.hopping("2 minutes", "1 second"), False),
        (wr.tuples(1000), True),
        (wr.tuples(1001), False),
        (wr.calendar("day", time_zone="UTC"), False),
        (wr.global_window(), False),
    ],
)
def test_small_is_at_most_a_minute_or_a_thousand_messages(window: WindowSpec, small: bool) -> None:
    assert span_is_small(window) is small
