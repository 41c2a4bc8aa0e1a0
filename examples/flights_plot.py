"""The plot of the demo: the panes of one window over time."""

from __future__ import annotations

import matplotlib
import pandas as pd

matplotlib.use("Agg")
from matplotlib import dates
from matplotlib import pyplot as plt

INK = "#333333"
TIMINGS = {"EARLY": "#7a9cc6", "ON_TIME": "#d1495b", "LATE": "#edae49"}
MARKERS = {"EARLY": ("o", 26), "ON_TIME": ("D", 62), "LATE": ("s", 34)}
LINES = {
    "p95": ("95th percentile", "#30638e"),
    "delay": ("average", "#00798c"),
    "median": ("median", "#8d96a3"),
}
STYLE = {"font.family": "DejaVu Sans", "font.size": 10, "axes.edgecolor": "#bbbbbb", "text.color": INK}


def draw(panes: pd.DataFrame, start: pd.Timestamp, path: str) -> None:
    """Save the plot of the panes of the 24-hour window from `start`.

    panes: in order of emission, with `known_until` (New York's time), `timing`, `flights`, `delay`, `median` and `p95`.
    """
    with plt.rc_context(STYLE):
        grid = {"hspace": 0.08}
        figure, (top, bottom) = plt.subplots(
            2, 1, figsize=(12, 7), sharex=True, height_ratios=(3, 1), gridspec_kw=grid
        )
        for column in LINES:
            _line(top, panes, column)
        colours = [TIMINGS[t] for t in panes.timing]
        bottom.bar(panes.known_until, panes.flights, width=pd.Timedelta(minutes=27), color=colours, zorder=2)
        for axes in (top, bottom):
            _frame(axes, panes, start)
        ceiling = float(panes.p95.max()) * 1.15
        top.set_ylim(min(0.0, float(panes["median"].min())) - 8, ceiling)
        note, grey = "the window: departures of these 24 hours", "#8a7f68"
        top.annotate(note, (start, ceiling), (8, -8), textcoords="offset points", va="top", color=grey)
        top.set_ylabel("departure delay, minutes")
        bottom.set_ylabel("flights in window")
        bottom.set_xlabel("landing of the last flight that was known (New York time)")
        ticks = dates.HourLocator(byhour=range(0, 24, 4))
        bottom.xaxis.set_major_locator(ticks)
        bottom.xaxis.set_major_formatter(dates.ConciseDateFormatter(ticks, show_offset=False))
        bottom.set_xlim(start - pd.Timedelta(minutes=30), panes.known_until.max() + pd.Timedelta(hours=7))
        _legend(figure, panes)
        figure.text(0.125, 0.955, "One window and its panes", fontsize=15, weight="bold")
        noon = f"{start:%H:%M on} {start.day} {start:%B %Y}"
        figure.text(0.125, 0.92, f"JetBlue at Kennedy, 24 hours from {noon}: delays as they became known")
        figure.savefig(path, dpi=130, bbox_inches="tight", facecolor="white")
        plt.close(figure)


def _line(axes: plt.Axes, panes: pd.DataFrame, column: str) -> None:
    label, colour = LINES[column]
    axes.plot(panes.known_until, panes[column], color=colour, lw=1.6, zorder=2, drawstyle="steps-post")
    for timing, (marker, size) in MARKERS.items():
        part = panes[panes.timing == timing]
        axes.scatter(
            part.known_until,
            part[column],
            s=size,
            marker=marker,
            c=TIMINGS[timing],
            ec="white",
            lw=0.8,
            zorder=3,
        )
    last = panes.iloc[-1]
    axes.annotate(
        f"{label}  {last[column]:.1f}",
        (last.known_until, last[column]),
        (10, 0),
        textcoords="offset points",
        va="center",
        color=colour,
        weight="bold",
    )


def _frame(axes: plt.Axes, panes: pd.DataFrame, start: pd.Timestamp) -> None:
    axes.axvspan(start, start + pd.Timedelta(hours=24), color="#f4f1ea", zorder=0, lw=0)
    axes.grid(axis="y", color="#e4e4e4", lw=0.8, zorder=1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, length=0)
    for at in panes.known_until[panes.timing == "ON_TIME"]:
        axes.axvline(at, color=TIMINGS["ON_TIME"], lw=1, ls=(0, (4, 3)), zorder=1)


def _legend(figure: plt.Figure, panes: pd.DataFrame) -> None:
    counts = panes.timing.value_counts()
    handles = [
        plt.Line2D(
            [],
            [],
            ls="",
            marker=marker,
            ms=1.25 * size**0.5,
            mfc=TIMINGS[timing],
            mec="white",
            label=f"{timing} ({counts.get(timing, 0)})",
        )
        for timing, (marker, size) in MARKERS.items()
    ]
    figure.legend(handles=handles, loc="upper right", frameon=False, ncols=3, bbox_to_anchor=(0.9, 0.985))
