"""Which name was probably to be written."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable


def meant(given: str, known: Iterable[str]) -> str | None:
    """The one of `known` that was probably to be written; upper and lower case are one."""
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(given.lower(), by_lower, 1)
    return by_lower[near[0]] if near else None


#: What pandas, Polars, SQL, Flink and Spark call names of windrow.
_ELSEWHERE = {
    "approx_distinct": "approx_count_distinct",
    "arg_max": "max_by",
    "arg_min": "min_by",
    "average": "avg",
    "collect": "collect_list",
    "distinct": "count_distinct",
    "fixed_window": "tumbling",
    "fold": "reduce",
    "group_by": "Aggregate",
    "implode": "collect_list",
    "mean": "avg",
    "n_unique": "count_distinct",
    "nunique": "count_distinct",
    "quantile": "percentile",
    "rolling": "Over",
    "size": "count",
    "std": "stddev",
    "udaf": "aggregate_function",
    "var": "variance",
    "watermark": "bounded",
    "window": "tumbling",
}


def missing_name(name: str) -> object:
    """Raise `AttributeError` for a name that the module `windrow` has not, with the one that was probably meant."""
    if name.startswith("_"):
        raise AttributeError(f"module 'windrow' has no attribute {name!r}")
    known = [n for n in vars(sys.modules["windrow"]) if not n.startswith("_")]
    near = _ELSEWHERE.get(name.lower()) or meant(name, known)
    hint = f"did you mean wr.{near}?" if near else "help(windrow) lists what there is"
    raise AttributeError(f"module 'windrow' has no attribute {name!r}: {hint}")
