"""Durations and instants: text and Python's own types to integers, and back."""

from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.core import time as t
from windrow.core.errors import BadDuration, BadInstant, NaiveDatetime


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("10 seconds", 10_000_000),
        ("1 second", 1_000_000),
        ("1h30m", 5_400_000_000),
        ("1 hour 30 minutes", 5_400_000_000),
        ("INTERVAL 2 DAYS", 172_800_000_000),
        ("interval 5 min", 300_000_000),
        ("  3 ms ", 3_000),
        ("7 us", 7),
        ("1 week", 604_800_000_000),
        ("0.5 seconds", 500_000),
        ("1.5h", 5_400_000_000),
        ("-2 seconds", -2_000_000),
        ("1 day -1 hour", 82_800_000_000),
        ("-3m30s", -210_000_000),
        ("-1 minute 30.5 seconds", -90_500_000),
        ("-1 hour +30 minutes", -1_800_000_000),
        ("0 seconds", 0),
        (timedelta(days=1, microseconds=3), 86_400_000_003),
        (timedelta(microseconds=-1), -1),
    ],
)
def test_a_duration_is_microseconds(text: t.Duration, us: int) -> None:
    assert t.duration_us(text) == us


@pytest.mark.parametrize(
    "text", ["", "  ", "ten seconds", "10", "10 fortnights", "1 month", "1 year", "5 s x", "1e3 s"]
)
def test_text_that_is_no_duration_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadDuration) as error:
        t.duration_us(text, "retention")
    assert "retention" in str(error.value) and "'10 seconds'" in str(error.value)


@pytest.mark.parametrize("text", ["1 month", "2 years"])
def test_months_and_years_are_sent_to_calendar_windows(text: str) -> None:
    with pytest.raises(BadDuration, match=r"wr\.calendar"):
        t.duration_us(text)


@pytest.mark.parametrize("value", [10, 10.0, None, b"10 s"])
def test_a_number_without_a_unit_is_refused(value: object) -> None:
    with pytest.raises(BadDuration, match="timedelta"):
        t.duration_us(value)  # type: ignore[arg-type]


@given(st.integers(-(10**18), 10**18))
def test_what_is_shown_reads_back_to_the_same_duration(us: int) -> None:
    assert t.duration_us(t.show_duration(us)) == us


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0 seconds"),
        (1_000_000, "1 second"),
        (90_000_000, "90 seconds"),
        (120_000_000, "2 minutes"),
        (t.DAY_US, "1 day"),
        (1_500, "1500 us"),
        (2_000, "2 ms"),
        (-t.HOUR_US, "-1 hour"),
    ],
)
def test_durations_are_shown_in_their_largest_whole_unit(us: int, text: str) -> None:
    assert t.show_duration(us) == text


def test_an_instant_is_microseconds_since_the_epoch_whatever_its_zone() -> None:
    noon = datetime(2013, 7, 1, 12, 0, 0, 5, tzinfo=UTC)
    elsewhere = noon.astimezone(timezone(timedelta(hours=-4)))
    assert t.instant_us(noon) == t.instant_us(elsewhere) == 1_372_680_000_000_005
    assert t.instant_us(datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)) == -1_000_000
    assert t.instant_us(17) == 17


def test_a_naive_datetime_is_refused_by_name() -> None:
    with pytest.raises(NaiveDatetime, match=r"start .* has no time zone: use an aware datetime"):
        t.instant_us(datetime(2013, 7, 1), "start")


@given(st.datetimes(timezones=st.just(UTC)))
def test_datetimes_survive_the_way_there_and_back(moment: datetime) -> None:
    assert t.to_datetime(t.instant_us(moment)) == moment


def test_instants_beyond_datetime_are_clipped() -> None:
    assert t.to_datetime(t.END_OF_TIME_US) == datetime.max.replace(tzinfo=UTC)
    assert t.to_datetime(t.START_OF_TIME_US) == datetime.min.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "1970-01-01 00:00"),
        (1_000_000, "1970-01-01 00:00:01"),
        (1, "1970-01-01 00:00:00.000001"),
        (t.instant_us(datetime(1, 1, 1, 0, 0, 10, tzinfo=UTC)), "0001-01-01 00:00:10"),
        (t.instant_us(datetime(999, 12, 31, tzinfo=UTC)), "0999-12-31 00:00"),
        (t.END_OF_TIME_US, "end of time"),
        (t.START_OF_TIME_US, "start of time"),
    ],
)
def test_instants_are_shown_no_finer_than_needed(us: int, text: str) -> None:
    assert t.show_instant(us) == text


@pytest.mark.parametrize("value", ["10", 1.5, 10.0, None, True, 2**63, -(2**63) - 1, b"1", 10**400])
def test_what_is_no_moment_is_refused_by_name(value: object) -> None:
    with pytest.raises(BadInstant, match=r"watermark .* is no time: .* an aware datetime, or microseconds"):
        t.instant_us(value, "watermark")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, -(2**63), 2**63 - 1, np.int64(7), np.int32(-7)])
def test_a_whole_number_is_a_moment(value: int) -> None:
    assert t.instant_us(value) == value and type(t.instant_us(value)) is int


TEXTS = ["1970-01-02T00:00:00Z", "1970-01-02 01:00+01:00", "1970-01-02 00:00:00.000000+00:00"]


@pytest.mark.parametrize("text", TEXTS)
def test_text_that_names_its_zone_is_a_moment(text: str) -> None:
    assert t.instant_us(text) == 86_400_000_000


def test_text_without_a_zone_is_refused_where_none_is_meant() -> None:
    with pytest.raises(NaiveDatetime, match=r"start datetime.datetime\(1970.*has no time zone"):
        t.instant_us("1970-01-02", "start")
    assert t.instant_us("1970-01-02", zone=UTC) == 86_400_000_000
