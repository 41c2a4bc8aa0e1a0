"""The picture of the sessions demo: what was told of one aircraft's days, commit by commit."""

from __future__ import annotations

import matplotlib
import pandas as pd

matplotlib.use("Agg")
from matplotlib import dates
from matplotlib import pyplot as plt

INK, GONE = "#333333", "#b9b9b9"
TIMINGS = {"EARLY": "#7a9cc6", "ON_TIME": "#d1495b", "LATE": "#edae49"}
STYLE = {"font.family": "DejaVu Sans", "font.size": 10, "axes.edgecolor": "#bbbbbb", "text.color": INK}


def draw(panes: pd.DataFrame, zone: str, path: str) -> None:
    """Save the picture of panes of one aircraft, in order of emission. A bar is a window; what was taken back is an outline."""
    commits = {commit: i for i, commit in enumerate(sorted(panes.commit.unique()))}
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(12, 1.6 + 0.62 * len(commits)))
        for pane in panes.itertuples():
            start, end = (
                dates.date2num(t.tz_convert(zone).tz_localize(None)) for t in (pane.start, pane.end)
            )
            row = commits[pane.commit]
            if pane.kind == "RETRACT":
                axes.barh(row - 0.22, end - start, 0.26, start, fill=False, ec=GONE, ls=(0, (3, 2)), lw=1.4)
                continue
            axes.barh(row + 0.14, end - start, 0.4, start, color=TIMINGS[pane.timing], ec="white", zorder=2)
            axes.text(
                start + (end - start) / 2,
                row + 0.14,
                f"{pane.flights} flight{'s' if pane.flights > 1 else ''}",
                ha="center",
                va="center",
                color="white",
                weight="bold",
                fontsize=8,
                zorder=3,
            )
        axes.set_yticks(range(len(commits)), [f"commit {commit}" for commit in commits])
        axes.invert_yaxis()
        axes.xaxis_date()
        axes.xaxis.set_major_locator(dates.HourLocator(byhour=(0, 6, 12, 18)))
        axes.xaxis.set_major_formatter(
            dates.ConciseDateFormatter(axes.xaxis.get_major_locator(), show_offset=False)
        )
        axes.grid(axis="x", color="#e4e4e4", lw=0.8, zorder=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(colors=INK, length=0)
        handles = [plt.Rectangle((0, 0), 1, 1, color=colour, label=t) for t, colour in TIMINGS.items()]
        handles.append(plt.Rectangle((0, 0), 1, 1, fill=False, ec=GONE, ls=(0, (3, 2)), label="taken back"))
        axes.legend(
            handles=handles, loc="lower right", frameon=False, ncols=4, bbox_to_anchor=(1, 1), fontsize=9
        )
        title = f"Working days of {panes.tailnum.iloc[0]}, as they became known"
        axes.set_title(title, loc="left", fontsize=14, weight="bold", pad=30)
        figure.savefig(path, dpi=130, bbox_inches="tight", facecolor="white")
        plt.close(figure)
