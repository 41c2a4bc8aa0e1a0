"""Colours of pictures: CSS variables with a fallback, for light and dark.

A page sets `--windrow-accent` and its like to give pictures its own colours. `prefers-color-scheme` decides between light
and dark, unless the notebook around a picture has a theme of its own (JupyterLab, VS Code).
"""

from __future__ import annotations

#: Name -> (light, dark).
COLOURS = {
    "page": ("#ffffff", "#0f161d"),
    "band": ("#f3f6fa", "#18212a"),
    "edge": ("#c3ccd6", "#3b4854"),
    "axis": ("#8c9bab", "#6d7d8d"),
    "ink": ("#1c2733", "#e4ebf2"),
    "soft": ("#55636f", "#a9b7c4"),
    "accent": ("#2f6fbf", "#6ea8f0"),
    "window": ("#dbe7f5", "#22364b"),
    "early": ("#8a5a00", "#8a5a00"),
    "on-time": ("#1f7a43", "#1f7a43"),
    "late": ("#b0452a", "#b0452a"),
    "retracted": ("#5f6b76", "#6a7681"),
    "merged": ("#6b4fa0", "#7d62b3"),
    "dead": ("#b3261e", "#ff8a80"),
}
#: The class of every picture.
PICTURE = "windrow-picture"


def _variables(shade: int) -> str:
    return " ".join(f"--{n}: var(--windrow-{n}, {colours[shade]});" for n, colours in COLOURS.items())


def stylesheet() -> str:
    """Return the rules of all pictures, for a page that holds several without a style of their own."""
    light, dark = _variables(0), _variables(1)
    timings = " ".join(
        f".{PICTURE} .{name} {{ fill: var(--{name}); }}"
        for name in ("early", "on-time", "late", "retracted", "merged")
    )
    return f"""
.{PICTURE} {{ {light} max-width: 100%; height: auto; font-variant-numeric: tabular-nums; }}
@media (prefers-color-scheme: dark) {{ .{PICTURE} {{ {dark} }} }}
body[data-jp-theme-light="true"] .{PICTURE}, body.vscode-light .{PICTURE} {{ {light} }}
body[data-jp-theme-light="false"] .{PICTURE}, body.vscode-dark .{PICTURE} {{ {dark} }}
.{PICTURE} .page {{ fill: var(--page); }} .{PICTURE} .band {{ fill: var(--band); }}
.{PICTURE} .axis {{ stroke: var(--axis); fill: none; }} .{PICTURE} .grid {{ stroke: var(--edge); fill: none; }}
.{PICTURE} text {{ fill: var(--ink); }} .{PICTURE} .soft {{ fill: var(--soft); }}
.{PICTURE} .mark {{ fill: var(--accent); }} .{PICTURE} .chip {{ fill: #ffffff; font-weight: 600; }}
.{PICTURE} .line {{ stroke: var(--accent); stroke-width: 2; fill: none; }}
.{PICTURE} .window {{ fill: var(--window); stroke: var(--accent); }}
.{PICTURE} .closed {{ fill: var(--band); stroke: var(--edge); }}
.{PICTURE} .lateness {{ stroke: var(--late); stroke-dasharray: 3 3; fill: none; }}
.{PICTURE} .dot {{ fill: var(--ink); }} .{PICTURE} .dead {{ stroke: var(--dead); stroke-width: 2.5; fill: none; }}
.{PICTURE} .pane {{ stroke: var(--band); stroke-width: 1; }}
.{PICTURE} .strike {{ stroke: #ffffff; }}
{timings}
"""
