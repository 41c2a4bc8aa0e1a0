"""The operators that there are."""

from __future__ import annotations

from pathlib import Path

#: By their folders. A graph is of operators, and is none.
FOLDERS = {file.parent.name for file in Path(__file__).parents[2].glob("operators/*/definition.py")} - {
    "graph"
}
