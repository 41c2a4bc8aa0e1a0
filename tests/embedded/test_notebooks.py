"""Notebooks: HTML of definitions, jobs and results, and `plot`, whose picture holds what an open operator emits."""

import html
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import windrow as wr
from tests.operators.contract import Drawn
from tests.operators.test_contract import OPERATORS
from windrow.core.notebook import MOST, timing_of
from windrow.drawing import steps
from windrow.testing import ManualClock

DELAYS = wr.Aggregate(
    by="carrier",
    event_time="departure",
    window=wr.tumbling("1 hour"),
    agg={"flights": wr.count(), "delay": wr.avg("delay")},
    watermark="5 minutes",
    retention="7 days",
    emit=wr.Emit(late=wr.every_batch, mode="retracting"),
)
EVIL = "<script>alert(1)</script>"


def flights(*minutes: int, carrier: str = "AA") -> list[dict[str, Any]]:
    return [{"carrier": carrier, "departure": minute * 60_000_000, "delay": 5} for minute in minutes]


def bars(picture: str) -> list[tuple[str, str]]:
    """Return timing and tooltip of each pane of a picture, downwards."""
    texts = re.findall(
        r'<rect class="(early|on-time|late|retracted)"[^>]* height="18"[^>]*><title>(.*?)</title>',
        picture,
        re.S,
    )
    return [(timing, html.unescape(text)) for timing, text in texts]


def emitted(definition: Any, messages: list[Any], folder: Path) -> list[Any]:
    """Return what an open job emits for messages one by one, with their times as its clock."""
    clock = ManualClock(0)
    with definition.open(str(folder), clock=clock, store="memory") as op:
        rows: list[Any] = []
        for message in messages:
            clock.set(max(clock.now_us(), message["departure"]))
            op.add_message(message)
            rows += op.get_result()
            op.flush()
        op.drain()
        rows += op.get_result()
        op.flush()
    return rows


@pytest.mark.parametrize("mode", ["accumulating", "retracting", "discarding"])
def test_a_plot_holds_the_panes_that_an_open_operator_emits(mode: Any, tmp_path: Path) -> None:
    definition = wr.Aggregate(
        by="carrier",
        event_time="departure",
        window=wr.tumbling("1 hour"),
        agg={"flights": wr.count()},
        watermark="5 minutes",
        retention="7 days",
        emit=wr.Emit(early=wr.every(2), late=wr.every_batch, mode=mode),
    )
    messages = flights(10, 40, 75, 55, 130, 50) + flights(140, 20, carrier=EVIL)
    panes = emitted(definition, messages, tmp_path)
    picture = definition.plot(messages)
    assert [(timing_of(p.timing, p.kind), str(p)) for p in panes] == bars(picture)
    assert EVIL not in picture
    ET.fromstring(picture)


def test_a_message_that_cannot_be_counted_is_a_cross_with_its_reason() -> None:
    late = wr.Aggregate(
        event_time="departure", window=wr.tumbling("1 hour"), agg={"n": wr.count()}, emit=wr.Emit.append()
    )
    picture = late.plot([*flights(10, 70, 20), {"departure": "yesterday"}])
    assert re.findall(r'class="dead" d="[^"]+"><title>[^<]*dead letter: out_of_retention', picture)
    assert "n=2" not in picture


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_has_a_plot_and_html(name: str) -> None:
    operator = OPERATORS[name]
    definition = operator.definition
    by_input: dict[str, list[Any]] = {i.name: [] for i in definition.inputs}
    for message in operator.messages:
        assert isinstance(message, Drawn)
        by_input[message.input or definition.inputs[0].name].append(dict(message.payload))
    picture = definition.plot(by_input if definition.by_input else next(iter(by_input.values())))
    ET.fromstring(picture)
    assert bars(picture), "nothing is emitted"
    ET.fromstring(definition._repr_html_().replace("<br>", "<br/>"))


@pytest.mark.parametrize(
    "window",
    [
        wr.tumbling("1 hour"),
        wr.hopping("1 hour", "20 minutes"),
        wr.hopping("20 minutes", "1 hour", gaps=True),
        wr.calendar("month", time_zone="Europe/Berlin"),
        wr.calendar("day", time_zone="Asia/Tokyo"),
        wr.session("10 minutes"),
        wr.session(messages=3),
        wr.tuples(3, step=2),
        wr.global_window(),
    ],
    ids=repr,
)
def test_windows_of_every_kind_are_shown_with_what_they_emit(window: Any) -> None:
    emit = wr.Emit(early=wr.every("15 minutes")) if not isinstance(window, type(wr.tuples(3))) else None
    definition = wr.Aggregate(
        by="carrier",
        event_time="departure",
        window=window,
        agg={"n": wr.count()},
        retention=wr.forever,
        emit=emit,
    )
    shown = definition._repr_html_()
    ET.fromstring(shown.replace("<br>", "<br/>"))
    by_time = not re.search("global|messages|tuples", repr(window))
    assert ('class="on-time"' in shown) == by_time
    assert f"window={window!r}" in html.unescape(shown)
    ET.fromstring(definition.plot(flights(10, 40, 75, 55, 130)))


def test_large_things_are_cut_and_say_so(tmp_path: Path) -> None:
    messages = [m for key in range(500) for m in flights(10, carrier=f"{key}" + "x" * 10_000)]
    with DELAYS.open(str(tmp_path)) as op:
        op.add_messages(messages + flights(75))
        panes, windows = op.get_result(), op.get_windows()
        assert len(panes) == 500
        for shown, noun in ((panes._repr_html_(), "panes"), (windows._repr_html_(), "windows")):
            assert f"{len(panes) - MOST + (noun == 'windows'):,} more {noun} are not listed" in shown
            assert len(shown) < 1_500_000
        assert f"the newest {MOST} of 501" in op._repr_html_()
    picture = DELAYS.plot(flights(*range(1_000)))
    assert f"{1_000 - steps.MOST} more steps are not drawn" in picture
    with wr.read_state(str(tmp_path)) as state:
        assert f"the newest {MOST} of 501" in state._repr_html_()
    for closed in (state, op):
        assert "AA" not in closed._repr_html_()


def test_a_plot_of_an_input_that_is_not_there_says_which_there_are() -> None:
    join = OPERATORS["join"].definition
    with pytest.raises(wr.ConfigurationError, match="has no input 'lefft': its inputs are"):
        join.plot({"lefft": []})
    with pytest.raises(wr.ConfigurationError, match=r"give \{input: messages\}"):
        join.plot([])


def test_a_kernel_shows_definitions_jobs_and_results(tmp_path: Path) -> None:
    cells = [
        f"import windrow as wr\ndelays = {DELAYS!r}\ndelays",
        f"delays.plot({flights(10, 40, 75, 55)!r})",
        f"op = delays.open('job')\nop.add_messages({flights(10, 40, 75, 55)!r})\nop.get_result()",
        "op.get_result()[0]",
        "op.flush()\nop",
        "wr.read_state('job')",
        "op.get_windows()",
        "op.close()\nimport sys\nprint(sorted({'matplotlib.pyplot', 'pyspark'} & set(sys.modules)))",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = NotebookClient(
        notebook, timeout=240, startup_timeout=240, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    *shown, last = [cell.outputs for cell in notebook.cells]
    for outputs in shown:
        [data] = [output.data for output in outputs if "data" in output]
        assert "<svg" in data["text/html"], outputs
    assert last[0].text == "[]\n"
