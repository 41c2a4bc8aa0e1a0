"""The plot of the features: one day at Kennedy, as it was known live and as it was in the end."""

from __future__ import annotations

import matplotlib
import pandas as pd

matplotlib.use("Agg")
from flights_plot import INK, STYLE
from matplotlib import dates
from matplotlib import pyplot as plt

ZONE, ORIGIN = "America/New_York", "JFK"
DAY = pd.Timestamp("2013-02-11", tz=ZONE)
FIRST, IN_THE_END, WIND = "#edae49", "#00798c", "#8d96a3"


def draw(features: dict[str, pd.DataFrame], truth: pd.DataFrame, path: str) -> None:
    """Save the plot. told: all rows of each operator, live; truth: the features of each flight, with `origin` and `at`."""
    day = truth[(truth.origin == ORIGIN) & (truth["at"] >= DAY) & (truth["at"] < DAY + pd.Timedelta(days=1))]
    day = day.sort_values("at")
    times = day["at"].dt.tz_convert(ZONE)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(3, 1, figsize=(12, 8), sharex=True, gridspec_kw={"hspace": 0.12})
        panels = (
            ("airports", "two_hours", "delay at Kennedy,\nlast two hours (min)"),
            ("carriers", "last_ten", "delay of the carrier's\nlast ten departures (min)"),
            ("airports", "wind", "wind, an hour before\nto an hour after (mph)"),
        )
        for axis, (operator, column, label) in zip(axes, panels, strict=True):
            rows = features[operator]
            first = rows[rows.kind == "INSERT"].drop_duplicates("id").astype({"id": "int64"}).set_index("id")
            dots = first[column].reindex(day.index)
            colour = WIND if column == "wind" else IN_THE_END
            axis.scatter(times, dots, s=22, color=FIRST, label="told first", zorder=2)
            axis.scatter(times, day[column], s=7, color=colour, label="in the end", zorder=3)
            axis.set_ylabel(label, color=INK)
            axis.grid(axis="y", color="#e4e4e4", lw=0.8, zorder=1)
            axis.spines[["top", "right"]].set_visible(False)
            axis.tick_params(colors=INK, length=0)
        axes[0].legend(frameon=False, ncols=2, loc="upper left")
        ticks = dates.HourLocator(byhour=range(0, 24, 3), tz=ZONE)
        axes[-1].xaxis.set_major_locator(ticks)
        axes[-1].xaxis.set_major_formatter(dates.DateFormatter("%H:%M", tz=ZONE))
        axes[-1].set_xlabel("departure (New York time)")
        figure.text(0.125, 0.93, "Features of each flight from Kennedy", fontsize=15, weight="bold")
        figure.text(
            0.125, 0.9, f"{DAY.day} {DAY:%B %Y}: as they were told first, and when late flights were in"
        )
        figure.savefig(path, dpi=110, bbox_inches="tight", facecolor="white")
        plt.close(figure)
