"""The dashboard of Grafana, as JSON: `python docker/observe/dashboard.py` writes docker/observe/grafana/windrow.json."""

from pathlib import Path

from grafana_foundation_sdk.builders import common, dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef

#: Title, unit, and (expression, legend) of each panel.
PANELS = (
    ("Messages a second", "short", (("sum by (job) (rate(windrow_rows_total[1m]))", "{{job}}"),)),
    ("Commits a second", "short", (("sum by (job) (rate(windrow_commits_total[1m]))", "{{job}}"),)),
    (
        "Panes a second",
        "short",
        (("sum by (job, operator) (rate(windrow_panes_total[1m]))", "{{job}} {{operator}}"),),
    ),
    ("Watermark behind now", "s", (("windrow_watermark_lag_seconds", "{{job}} {{operator}}"),)),
    (
        "Duration of a commit",
        "s",
        tuple(
            (
                f"histogram_quantile({q}, sum by (job, le) (rate(windrow_commit_duration_seconds_bucket[1m])))",
                f"{{{{job}}}} p{q * 100:.0f}",
            )
            for q in (0.5, 0.99)
        ),
    ),
    (
        "Duration of publishing, p99",
        "s",
        (
            (
                "histogram_quantile(0.99, sum by (job, le) (rate(windrow_publish_duration_seconds_bucket[1m])))",
                "{{job}}",
            ),
        ),
    ),
    (
        "Dead letters a second",
        "short",
        (("sum by (job, reason) (rate(windrow_dead_letters_total[1m]))", "{{job}} {{reason}}"),),
    ),
    ("Too late, a second", "short", (("sum by (job) (rate(windrow_late_total[1m]))", "{{job}}"),)),
    ("Commits not published", "short", (("windrow_unpublished", "{{job}}"),)),
    ("Unread records of Kafka", "short", (("sum by (job, source) (windrow_lag)", "{{job}} {{source}}"),)),
    ("Size of the state", "bytes", (("windrow_state_size_bytes", "{{job}}"),)),
    ("Commits since the snapshot", "short", (("windrow_snapshot_commits", "{{job}}"),)),
    ("Time since the snapshot", "s", (("windrow_snapshot_age_seconds", "{{job}}"),)),
)
FILE = Path(__file__).parent / "grafana" / "windrow.json"


def panel(number: int, title: str, unit: str, queries: tuple[tuple[str, str], ...]) -> timeseries.Panel:
    """Return one panel over time."""
    source = DataSourceRef(type_val="prometheus", uid="prometheus")
    drawn = timeseries.Panel().id(number).title(title).unit(unit).min(0).span(8).height(8).datasource(source)
    drawn = drawn.legend(common.VizLegendOptions().show_legend(True))
    for letter, (expression, legend) in zip("ABC", queries, strict=False):
        drawn = drawn.with_target(
            prometheus.Dataquery().ref_id(letter).expr(expression).legend_format(legend)
        )
    return drawn


def text() -> str:
    """Return the dashboard as JSON."""
    board = (
        dashboard.Dashboard("windrow").uid("windrow").tags(["windrow"]).refresh("5s").time("now-15m", "now")
    )
    for number, (title, unit, queries) in enumerate(PANELS, 1):
        board = board.with_panel(panel(number, title, unit, queries))
    return JSONEncoder(sort_keys=True, indent=2).encode(board.build()) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
