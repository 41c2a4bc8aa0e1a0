"""Times of rules over their inputs: the matrices of each rule, and how long the messages of each input are kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from windrow.core.frames import RangeBetween
from windrow.core.inputs import Input
from windrow.core.relations import INFINITE_US
from windrow.core.temporal import END, START, Link, Span, Timing
from windrow.operators.rules.patterns import Rule


def span_of(binding: str, input: Input) -> Span:
    """Give the span of a pattern over an input."""
    interval = input.interval
    if interval is None:
        return Span(binding)
    longest_us = INFINITE_US if interval.longest_us is None else interval.longest_us
    return Span(binding, longest_us, START if interval.start is None else END)


def timing_of(rule: Rule, inputs: Mapping[str, Input]) -> Timing:
    """Give the times of a rule, with the explicit expiries that are shorter than the inferred ones."""
    events = tuple(span_of(name, inputs[p.input]) for name, p in rule.events.items())
    subpatterns = tuple(
        span_of(name, inputs[p.input]) for name, p in rule.subpatterns.items() if p.frame is None
    )
    relations = {name: p.time for name, p in rule.when.items()}
    plain = Timing(events, relations, subpatterns, {}, rule.delay_us, tuple(_framed(rule, events)))
    shorter: dict[str, int] = {}
    for span in (*events, *subpatterns):
        expires = inputs[rule.when[span.binding].input].expires
        if expires is None or expires.us is None:
            continue
        inferred_us = plain.kept_us(span.binding)
        without_bound = expires.kind == "otherwise" and inferred_us >= INFINITE_US
        if without_bound or (expires.kind == "exactly" and expires.us < inferred_us):
            shorter[span.binding] = expires.us
    return replace(plain, expires_us=shorter)


def _framed(rule: Rule, events: tuple[Span, ...]) -> Iterator[Link]:
    """Give the constraints of time windows on patterns: the other events end within them."""
    for span in events:
        frame = rule.when[span.binding].frame
        if isinstance(frame, RangeBetween):
            words = f"{span.binding} within {frame!r}"
            for other in events:
                if other is not span:
                    yield Link(span.start, other.end, -INFINITE_US, -frame.low_us, words)


def kept_us(timings: Mapping[str, Timing], rules: Mapping[str, Rule], input: Input) -> int | None:
    """Return how long after their end an input's messages are kept; None: no rule needs them; `INFINITE_US`: no bound."""
    longest: int | None = None
    for name, timing in timings.items():
        for span in (*timing.events, *timing.subpatterns):
            if rules[name].when[span.binding].input == input.name:
                us = timing.kept_us(span.binding)
                if us > -INFINITE_US:
                    longest = us if longest is None else max(longest, us)
    if longest is None or input.expires is None or input.expires.kind == "otherwise":
        return longest
    return longest if input.expires.us is None else max(longest, input.expires.us)
