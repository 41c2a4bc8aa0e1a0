"""Pictures: their geometry follows the values, all text is escaped, large ones are cut, and each has a name to read aloud."""

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from windrow.drawing.axis import Axis, axis_over
from windrow.drawing.charts import stem_picture
from windrow.drawing.steps import EmittedWindow, Step, steps_picture
from windrow.drawing.theme import COLOURS, stylesheet
from windrow.drawing.timeline import (
    MOST,
    SHAPES,
    Dot,
    Emission,
    Span,
    timeline_picture,
    windows_picture,
)

HOUR = 3_600_000_000
NS = "{http://www.w3.org/2000/svg}"
EVIL = '<script>alert("1")</script>&\x00\ud800'
SPANS = [Span(n * HOUR, (n + 1) * HOUR, label=f"n={n}", name="AA", open=n > 1) for n in range(3)]


def rectangles(svg: str, shade: str) -> list[tuple[float, float]]:
    """Return left and right of the rectangles of a class."""
    shapes = [r for r in ET.fromstring(svg).iter(f"{NS}rect") if r.get("class") == shade]
    return [(float(r.get("x", 0)), float(r.get("x", 0)) + float(r.get("width", 0))) for r in shapes]


def test_windows_have_lengths_as_their_durations_and_overlap_in_lanes_only() -> None:
    spans = [Span(0, HOUR), Span(HOUR // 2, HOUR + HOUR // 2), Span(HOUR, 3 * HOUR)]
    svg = windows_picture(spans, title="three")
    (a, b), (c, d), (e, f) = rectangles(svg, "window")
    assert (b - a) == pytest.approx(d - c, abs=0.2)
    assert (f - e + 1) == pytest.approx(2 * (b - a + 1), abs=0.2)
    tops = [r.get("y") for r in ET.fromstring(svg).iter(f"{NS}rect") if r.get("class") == "window"]
    assert tops[0] == tops[2] != tops[1]


def test_a_pane_lies_where_the_watermark_was() -> None:
    panes = [Emission(HOUR // 2, "early"), Emission(HOUR, "on-time"), Emission(2 * HOUR, "late", "n=3")]
    svg = timeline_picture([(Span(0, HOUR, until=2 * HOUR), panes)], title="one", watermark=2 * HOUR)
    (left, right) = rectangles(svg, "window")[0]
    marks = re.findall(r'class="pane ([a-z-]+)" d="[^"]+" transform="translate\(([\d.]+) ', svg)
    early, on_time, late = (float(x) for _, x in marks[:3])
    assert [timing for timing, _ in marks[:3]] == ["early", "on-time", "late"]
    assert early == pytest.approx((left + right) / 2, abs=1)
    assert on_time == pytest.approx(right, abs=1)
    assert late == pytest.approx(right + (right - left), abs=2)
    assert "late: n=3" in svg


def test_steps_go_down_with_the_watermark_and_their_panes_span_their_windows() -> None:
    steps = [
        Step("AA", Dot(HOUR // 2), 0),
        Step("AA", Dot(HOUR + 1), HOUR, [EmittedWindow(0, HOUR, "on-time", "n=1")]),
        Step("AA", Dot(1, dead=True), HOUR),
    ]
    svg = steps_picture(steps, title="steps")
    dots = [float(c.get("cy", 0)) for c in ET.fromstring(svg).iter(f"{NS}circle")][:2]
    assert dots == sorted(dots)
    [line] = re.findall(r'<path class="line" d="(M[^"]+V[^"]+)"><title>watermark', svg)
    heights = [float(y) for y in re.findall(r"V([\d.]+)", line)]
    assert heights == sorted(heights)
    bar = rectangles(svg, "on-time")[0]
    assert bar[1] - bar[0] == pytest.approx(float(re.findall(r"H([\d.]+)", line)[1]) - bar[0], abs=0.2)
    assert 'class="dead"' in svg


@pytest.mark.parametrize("numbers", [True, False])
def test_the_ends_of_time_have_no_place_on_the_axis(numbers: bool) -> None:
    ends = Span(-(2**62), 2**62, "global")
    svg = (
        windows_picture([ends, *SPANS], title="t")
        if not numbers
        else windows_picture([Span(1, 4)], title="n", numbers=True)
    )
    ET.fromstring(svg)
    axis = axis_over([0, HOUR, 2**63 - 1, -(2**63)], 0, 100)
    assert -HOUR < axis.start < 0 and HOUR < axis.end < 2 * HOUR
    assert (axis.x(2**62), axis.x(-(2**62))) == (100, 0)


@pytest.mark.parametrize("power", range(1, 18))
def test_ticks_are_apart_and_at_multiples_of_their_step(power: int) -> None:
    for numbers in (False, True):
        axis = Axis(7, 7 + 10**power, 0, 800, numbers)
        step, ticks = axis.ticks()
        assert all(tick % step == 0 for tick in ticks)
        assert all(axis.x(b) - axis.x(a) >= 50 for a, b in pairwise(ticks))
        assert len(ticks) <= 10


@pytest.mark.parametrize("most", [1, MOST])
def test_more_windows_than_a_picture_holds_are_counted(most: int) -> None:
    spans = [Span(n * HOUR, (n + 1) * HOUR) for n in range(1_000)]
    for svg in (
        windows_picture(spans, title="t", most=most),
        timeline_picture([(s, ()) for s in spans], title="t", most=most),
    ):
        assert len(rectangles(svg, "window")) == most
        assert f"{1_000 - most} more are not drawn" in svg
        assert f"{1_000 - most} more are not drawn.</desc>" in svg
    assert "940 more steps" in steps_picture([Step("s", None, n) for n in range(1_000)], title="t")


def pictures() -> list[str]:
    span = Span(0, HOUR, EVIL, EVIL, EVIL)
    return [
        windows_picture([span], title=EVIL, description=EVIL, dots=[Dot(1, EVIL)], watermark=3),
        timeline_picture([(span, [Emission(1, t, EVIL) for t in SHAPES])], title=EVIL),
        steps_picture([Step(EVIL, Dot(1, EVIL), 1, [EmittedWindow(0, 9, "late", EVIL, EVIL)])], title=EVIL),
        stem_picture([(0, 1.0), (HOUR, float("nan")), (2 * HOUR, -3.0)], title=EVIL),
        windows_picture([], title=EVIL),
        timeline_picture([], title=EVIL),
        steps_picture([], title=EVIL),
        stem_picture([], title=EVIL),
    ]


@pytest.mark.parametrize("svg", pictures(), ids=range(len(pictures())))
def test_a_picture_is_named_and_its_text_is_text(svg: str) -> None:
    root = ET.fromstring(svg)
    known = {e.get("id"): e.text for e in root.iter() if e.get("id")}
    names = (root.get("aria-labelledby") or "").split()
    assert root.get("role") == "img" and names and all(known.get(name) for name in names)
    assert "script>" in (known[names[0]] or "")
    tags = {e.tag.removeprefix(NS) for e in root.iter()}
    assert tags <= {"svg", "title", "desc", "style", "rect", "text", "path", "circle", "g"}
    assert not any(
        name.startswith("on") or name == "style" or "href" in name for e in root.iter() for name in e.attrib
    )
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    for text in root.iter(f"{NS}text"):
        assert 0 <= float(text.get("x", 0)) <= width and 0 <= float(text.get("y", 0)) <= height


def test_two_pictures_of_a_page_have_ids_of_their_own() -> None:
    ids = [re.findall(r' id="([^"]+)"', windows_picture([s], title="t", style=False))[0] for s in SPANS]
    assert len(set(ids)) == 3
    assert "<style" not in windows_picture(SPANS, title="t", style=False)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("shade", [0, 1], ids=["light", "dark"])
def test_text_and_marks_can_be_seen(shade: int) -> None:
    colour = {name: pair[shade] for name, pair in COLOURS.items()}
    for ground in ("page", "band", "window"):
        assert contrast(colour["ink"], colour[ground]) >= 7
        assert contrast(colour["accent"], colour[ground]) >= 3
    assert contrast(colour["soft"], colour["page"]) >= 4.5
    for timing in SHAPES:
        assert contrast("#ffffff", colour[timing]) >= 4.5, "labels of bars are white"
    assert contrast(colour["dead"], colour["page"]) >= 3
    for name in COLOURS:
        assert f"var(--windrow-{name}, {colour[name]})" in stylesheet()
