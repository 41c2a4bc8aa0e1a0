"""Suggestions of the name that a user probably meant."""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Iterable, Sequence


def meant(value: str, known: Iterable[str]) -> str | None:
    """Return the one of `known` that was probably meant, in any case of letters."""
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(value.lower(), by_lower, 1)
    return by_lower[near[0]] if near else None


#: Names of pandas, Polars, SQL, Flink and Spark for those of windrow.
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
    "hop": "hopping",
    "implode": "collect_list",
    "mean": "avg",
    "n_unique": "count_distinct",
    "nunique": "count_distinct",
    "quantile": "percentile",
    "rolling": "Over",
    "size": "count",
    "std": "stddev",
    "tumble": "tumbling",
    "udaf": "aggregate_function",
    "var": "variance",
    "watermark": "bounded",
    "window": "tumbling",
}


#: Names that pandas, Polars, SQL, Flink, Kafka Streams, Spark or another operator have for options: without underscores and in
#: lower case, each with the names here.
_OPTIONS_ELSEWHERE = {
    **dict.fromkeys(("groupby", "key", "keys", "keyby", "partitionby"), ("by", "on")),
    **dict.fromkeys(("timestamp", "timestampcolumn", "time", "timecolumn", "orderby"), ("event_time",)),
    **dict.fromkeys(("grace", "graceperiod", "lateness"), ("allowed_lateness",)),
    "by": ("on",),
    "frame": ("window",),
    "on": ("by",),
    "retention": ("within", "ttl"),
    "source": ("input",),
    "subset": ("ids",),
    "ttl": ("retention", "within"),
    "window": ("frame",),
}


def meant_option(value: str, known: Sequence[str]) -> str | None:
    """Return the one of the options `known` that was probably to be written."""
    elsewhere = _OPTIONS_ELSEWHERE.get(value.lower().replace("_", ""), ())
    return next((name for name in elsewhere if name in known), None) or meant(value, known)


def meant_aggregation(value: object, column: str) -> str | None:
    """Return the call that was probably to be written for 'sum', ("v", "sum") or `wr.sum`; of `column` by default."""
    if isinstance(value, (tuple, list)) and len(value) == 2 and isinstance(value[0], str):
        column, value = value
    name = str(getattr(value, "__name__", value)).lower()
    name = _ELSEWHERE.get(name, name)
    function = vars(sys.modules["windrow.core.aggregations"]).get(name)
    if not callable(function) or getattr(sys.modules["windrow"], name, None) is not function:
        return None
    signature = inspect.signature(function)  # type: ignore[arg-type]
    needed = [p for p in signature.parameters.values() if p.default is p.empty]
    if len(needed) > 1 or [p.name for p in needed] not in ([], ["column"]):
        return None
    return f"wr.{name}({column!r})" if needed else f"wr.{name}()"


def missing_name(name: str) -> object:
    """Raise `AttributeError` for a name that the module `windrow` has not, with the one that was probably meant."""
    if name.startswith("_"):
        raise AttributeError(f"module 'windrow' has no attribute {name!r}")
    known = [n for n in vars(sys.modules["windrow"]) if not n.startswith("_")]
    near = _ELSEWHERE.get(name.lower()) or meant(name, known)
    hint = f"did you mean wr.{near}?" if near else "help(windrow) lists what there is"
    raise AttributeError(f"module 'windrow' has no attribute {name!r}: {hint}")
