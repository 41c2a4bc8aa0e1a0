"""Parser of a definition's `repr`, the text that the log keeps of it.

Anyone with write access to a log chooses that text. So a grammar reads it that allows nothing else, and Python never evaluates
it: calls of the names in `BUILDERS`, each with values by place or by name; tuples, lists, maps with text keys; text,
numbers, None, True, False. No name is looked up anywhere but in that table.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from windrow.core import (
    aggregations,
    between,
    deliver,
    emit,
    expressions,
    frames,
    inputs,
    policy,
    positions,
    relations,
    windows,
)
from windrow.core.aggregation import Aggregation
from windrow.core.emit import Emit
from windrow.core.expression_text import expression_of
from windrow.operators.alert.actions import Action
from windrow.operators.rules import patterns
from windrow.runners.definition import (
    Aggregate,
    Alert,
    CoGroup,
    Deduplicate,
    Delivery,
    Input,
    Join,
    JoinWindow,
    Over,
    Rules,
    Table,
)
from windrow.runners.facade import chain

#: Limits of text; a longer or deeper one was not written by windrow.
MOST_CHARACTERS, DEEPEST = 1_000_000, 30

_ESCAPE = r"""\\(?:[\\'"nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})"""
_TOKEN = re.compile(
    r"""\s*(?:(?P<name>(?:-(?=wr\.))?[A-Za-z_][A-Za-z0-9_]{0,63}(?:\.[A-Za-z_][A-Za-z0-9_]{0,63}){0,2})
    |(?P<number>-?\d{1,20}(?:\.\d{0,20})?(?:e[+-]?\d{1,3})?)
    |(?P<text>'(?:[^'\\\n]|ESCAPE)*'|"(?:[^"\\\n]|ESCAPE)*")
    |(?P<mark>[(){}\[\],:=.~]))""".replace("ESCAPE", _ESCAPE),
    re.VERBOSE | re.ASCII,
)


_ESCAPED = re.compile(_ESCAPE)
_SHORT = {"n": "\n", "r": "\r", "t": "\t"}


def _character(escape: re.Match[str]) -> str:
    """Return the character that `repr` wrote as this; ValueError if there is none."""
    kind, code = escape[0][1], escape[0][2:]
    return chr(int(code, 16)) if code else _SHORT.get(kind, kind)


def _custom(*, name: str) -> policy.Watermark:
    """Return a placeholder for a user's watermark: its function is not in the text, and reading needs none."""
    return policy.bounded()


#: The names that text may call, and no others.
BUILDERS: dict[str, Callable[..., Any]] = {
    "wr.any_value": aggregations.any_value,
    "wr.approx_count_distinct": aggregations.approx_count_distinct,
    "wr.approx_percentile": aggregations.approx_percentile,
    "wr.avg": aggregations.avg,
    "wr.collect_list": aggregations.collect_list,
    "wr.collect_set": aggregations.collect_set,
    "wr.count": aggregations.count,
    "wr.count_distinct": aggregations.count_distinct,
    "wr.earliest": aggregations.earliest,
    "wr.first": aggregations.first,
    "wr.last": aggregations.last,
    "wr.latest": aggregations.latest,
    "wr.max": aggregations.max,
    "wr.max_by": aggregations.max_by,
    "wr.median": aggregations.median,
    "wr.min": aggregations.min,
    "wr.min_by": aggregations.min_by,
    "wr.percentile": aggregations.percentile,
    "wr.sort_list": aggregations.sort_list,
    "wr.stddev": aggregations.stddev,
    "wr.sum": aggregations.sum,
    "wr.top_k": aggregations.top_k,
    "wr.top_k_by": aggregations.top_k_by,
    "wr.variance": aggregations.variance,
    "wr.weighted_avg": aggregations.weighted_avg,
    "wr.Aggregate": Aggregate,
    "wr.Action": Action,
    "wr.Alert": Alert,
    "wr.CoGroup": CoGroup,
    "wr.Deduplicate": Deduplicate,
    "wr.Delivery": Delivery,
    "wr.deliver.all": deliver.all,
    "wr.deliver.latest": deliver.latest,
    "wr.deliver.newest": deliver.newest,
    "wr.deliver.synchronous": deliver.synchronous,
    "wr.deliver.throttle": deliver.throttle,
    "wr.deliver.within": deliver.within,
    "wr.Join": Join,
    "wr.JoinWindow": JoinWindow,
    "wr.Over": Over,
    "wr.Rules": Rules,
    "wr.Rule": patterns.Rule,
    "wr.event": patterns.event,
    "wr.fact": patterns.fact,
    "wr.absent": patterns.absent,
    "wr.accumulate": patterns.accumulate,
    **{f"wr.{name}": getattr(relations, name) for name in relations.THIRTEEN},
    "wr.Table": Table,
    "wr.at_least": inputs.at_least,
    "wr.otherwise": inputs.otherwise,
    "wr.col": expressions.col,
    "wr.lit": expressions.lit,
    "wr.Input": Input,
    "wr.chain": chain,
    "wr.Emit": Emit,
    "wr.Emit.append": Emit.append,
    "wr.Emit.update": Emit.update,
    "wr.Emit.final": Emit.final,
    "wr.every": emit.every,
    "wr.delay": emit.delay,
    "wr.any_of": emit.any_of,
    "wr.all_of": emit.all_of,
    "wr.Retain": policy.Retain,
    "wr.bounded": policy.bounded,
    "wr.fixed": policy.fixed,
    "wr.explicit": policy.explicit,
    "wr.custom": _custom,
    "wr.positions": positions.positions,
    "wr.ids": positions.ids,
    "wr.tumbling": windows.tumbling,
    "wr.hopping": windows.hopping,
    "wr.calendar": windows.calendar,
    "wr.session": windows.session,
    "wr.tuples": windows.tuples,
    "wr.global_window": windows.global_window,
    "wr.inherited": windows.inherited,
    "wr.rows_between": frames.rows_between,
    "wr.range_between": frames.range_between,
    "wr.between": between.between,
    "wr.sources.clock": between.clock,
    "wr.sliding": windows.sliding,
    "wr.rows": windows.rows,
    "datetime.timedelta": timedelta,
}
#: The names that text may use.
VALUES: dict[str, Any] = {
    "wr.forever": policy.forever,
    "-wr.forever": -policy.forever,
    "wr.never": emit.never,
    "wr.every_batch": emit.every_batch,
    "wr.past_end": emit.past_end,
    "None": None,
    "True": True,
    "False": False,
}


def _expression_end(text: str, begin: int) -> int | None:
    """Return the end of an expression: its first comma, or closing bracket, outside of its own brackets."""
    depth, quoted, at = 0, False, begin
    while at < len(text):
        character = text[at]
        if quoted:
            at += character == "\\"
            quoted = character != '"'
        elif character == '"':
            quoted = True
        elif character in "({[":
            depth += 1
        elif character in ")}]":
            if depth == 0:
                return at
            depth -= 1
        elif character == "," and depth == 0:
            return at
        at += 1
    return None


def evaluate(text: str) -> Any:
    """Build the value of a definition's repr. ValueError where it holds anything that no definition holds."""
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"{len(text)} characters are no definition's text")
    reading = _Reading(text)
    value = reading.value(0)
    reading.end()
    return value


class _Reading:
    """A recursive-descent parser, one token ahead."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._kind, self._token = "", ""
        self._step()

    def _step(self) -> str:
        """Return the current token and move to the next."""
        was = self._token
        token = _TOKEN.match(self._text, self._at)
        if token is None:
            self._kind = self._token = ""
            if self._text[self._at :].strip():
                raise self._refusal()
        else:
            self._kind, self._at = str(token.lastgroup), token.end()
            self._token = token[self._kind]
        return was

    def _refusal(self) -> ValueError:
        begin = max(self._at - len(self._token), 0)
        return ValueError(
            f"{self._text[begin : begin + 40]!r} is no wr. name of a definition, call or literal"
        )

    def _skip(self, mark: str) -> bool:
        """True if we were at `mark`."""
        if (self._kind, self._token) != ("mark", mark):
            return False
        self._step()
        return True

    def end(self) -> None:
        if self._kind:
            raise self._refusal()

    def value(self, depth: int) -> Any:
        if depth > DEEPEST:
            raise ValueError(f"a definition's text is never {depth} levels deep")
        expression = self._expression()
        if expression is not None:
            return expression
        if self._kind == "name":
            return self._named(depth)
        if self._kind == "number":
            number = self._step()
            return int(number) if number.lstrip("-").isdigit() else float(number)
        if self._kind == "text":
            return self._literal()
        if self._skip("~"):
            return self._complement(depth)
        if self._skip("("):
            return tuple(self._items(")", lambda: self.value(depth + 1)))
        if self._skip("["):
            return self._items("]", lambda: self.value(depth + 1))
        if self._skip("{"):
            return dict(self._items("}", lambda: self._entry(depth)))
        raise self._refusal()

    def _expression(self) -> Any:
        """Parse an expression of columns, up to the comma or bracket after it; None where there is none."""
        bare = self._kind == "name" and self._token not in VALUES and not self._token.startswith("wr.")
        if not bare and (self._kind, self._token) != ("mark", "("):
            return None
        begin = self._at - len(self._token)
        end = _expression_end(self._text, begin)
        expression = None if end is None else expression_of(self._text[begin:end])
        if expression is not None and end is not None:
            self._at = end
            self._step()
        return expression

    def _complement(self, depth: int) -> Any:
        value = self.value(depth + 1)
        if not isinstance(value, relations.Relation):
            raise self._refusal()
        return ~value

    def _literal(self) -> str:
        return _ESCAPED.sub(_character, self._step()[1:-1])

    def _named(self, depth: int) -> Any:
        if self._token not in VALUES and self._token not in BUILDERS:
            raise self._refusal()
        name = self._step()
        if name in VALUES:
            return VALUES[name]
        if not self._skip("("):
            raise self._refusal()
        by_place: list[Any] = []
        by_name: dict[str, Any] = {}
        for key, value in self._items(")", lambda: self._argument(depth)):
            if key is None and not by_name:
                by_place.append(value)
            elif key is None or key in by_name:
                raise ValueError(f"{name}(...) has an argument twice, or one by place after one by name")
            else:
                by_name[key] = value
        return self._narrowed(BUILDERS[name](*by_place, **by_name), depth)

    def _narrowed(self, built: Any, depth: int) -> Any:
        """Return an aggregation with the frame, the input, or the condition that follows it."""
        while isinstance(built, Aggregation) and self._skip("."):
            if self._kind != "name" or self._token not in ("over", "of", "where"):
                raise self._refusal()
            method = self._step()
            if not self._skip("("):
                raise self._refusal()
            [what] = self._items(")", lambda: self.value(depth + 1))
            built = getattr(built, method)(what)
        return built

    def _argument(self, depth: int) -> tuple[str | None, Any]:
        if self._kind == "name" and re.match(r"\s*=", self._text[self._at :]):
            key = self._step()
            self._step()
            return key, self.value(depth + 1)
        return None, self.value(depth + 1)

    def _entry(self, depth: int) -> tuple[str, Any]:
        if self._kind != "text":
            raise self._refusal()
        key = self._literal()
        if not self._skip(":"):
            raise self._refusal()
        return key, self.value(depth + 1)

    def _items(self, close: str, read: Callable[[], Any]) -> list[Any]:
        """Parse comma-separated items up to `close`; a trailing comma is allowed."""
        items = []
        while not self._skip(close):
            items.append(read())
            if not self._skip(",") and (self._kind, self._token) != ("mark", close):
                raise self._refusal()
        return items
