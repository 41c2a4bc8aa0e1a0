"""Plan of rules, as text: kept messages, times that are read, moments of decision, and the order of joins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from windrow.core.inputs import Input
from windrow.core.relations import INFINITE_US
from windrow.core.temporal import END, Matrix, Point, Span, Timing, show_distance
from windrow.core.time import show_duration
from windrow.operators.rules.chains import Chain, Hop, chains_of
from windrow.operators.rules.patterns import Pattern, Rule
from windrow.operators.rules.timings import kept_us, timing_of


class Planning(Protocol):
    """The input of a plan: a definition of rules."""

    @property
    def by(self) -> tuple[str, ...]: ...

    @property
    def user_inputs(self) -> tuple[Input, ...]: ...

    @property
    def rules(self) -> Mapping[str, Rule]: ...

    @property
    def mode(self) -> str: ...

    @property
    def late_us(self) -> int: ...


def plan_of(definition: Planning) -> str:
    """Write the plan of all rules, and how long each input is kept."""
    inputs = {input.name: input for input in definition.user_inputs}
    timings = {name: timing_of(rule, inputs) for name, rule in definition.rules.items()}
    lines: list[str] = []
    for name, rule in definition.rules.items():
        lines += _rule(definition, name, rule, timings[name], inputs)
    expiry = [
        f"{input.name} {_kept(definition, kept_us(timings, definition.rules, input))}"
        for input in definition.user_inputs
        if input.facts is None
    ]
    late = show_duration(definition.late_us)
    lines.append(f"expiry  {', '.join(expiry)}; allowed lateness {late} is added to each")
    return "\n".join(lines)


def _kept(definition: Planning, us: int | None) -> str:
    if us is None:
        return "not kept"
    return "for good" if us >= INFINITE_US or definition.mode == "cloud" else show_duration(max(us, 0))


def _rule(
    definition: Planning, name: str, rule: Rule, timing: Timing, inputs: Mapping[str, Input]
) -> Iterator[str]:
    """Write one rule: a line for its partition, one for each pattern, its matrix, its joins."""
    spread = f"by {', '.join(definition.by)}" if definition.by else "in one shard: by=()"
    yield f"{name}  {spread}"
    spans = {span.binding: span for span in (*timing.events, *timing.subpatterns)}
    names = _Names(spans)
    wide = max(map(len, rule.when)), max(len(p.input) for p in rule.when.values())
    for binding, pattern in rule.when.items():
        text = _pattern(definition, binding, pattern, rule, timing, names)
        yield f"  {binding:<{wide[0]}}  {pattern.input:<{wide[1]}}  {text}"
    if definition.mode == "cloud":
        return
    for line in _matrix(timing.bound, names):
        yield f"  times {line}"
    for chain in chains_of(rule, timing) if len(rule.events) > 1 else ():
        yield f"  joins {_chain(chain, names)}"


def _pattern(
    definition: Planning, binding: str, pattern: Pattern, rule: Rule, timing: Timing, names: _Names
) -> str:
    """Write the kept messages of a pattern, and how it is decided."""
    if pattern.kind == "fact":
        waits = f", waited for {show_duration(pattern.wait_us)}" if pattern.wait_us else ""
        return f"current rows{waits}"
    if pattern.frame is not None and pattern.kind == "accumulate":
        return f"over {pattern.frame!r}"
    us = timing.kept_us(binding)
    kept = "not kept" if us <= -INFINITE_US else f"kept {_kept(definition, us)}"
    if pattern.binds:
        return kept
    if definition.mode == "cloud":
        return f"{kept}; decided at the end of the step"
    matrix = timing.matrices[binding]
    known = [point for point in matrix.points if point.binding != binding]
    spans = _ranges(matrix.range(known, Point(binding, END)), names)
    deadlines = [f"{names.of(point)}{_plus(us)}" for point, us in timing.deadline_of(binding)]
    if rule.delay_us is not None:
        deadlines = [f"the last event{_plus(rule.delay_us)}"]
    decided = " or ".join(deadlines) if deadlines else "the end of the step"
    return f"{kept}    range {spans or 'all'}; decided at {decided}"


class _Names:
    """The names of points in a plan: of a message without a length the binding alone."""

    def __init__(self, spans: Mapping[str, Span]) -> None:
        self._points = {name for name, span in spans.items() if span.longest_us == 0}

    def of(self, point: Point) -> str:
        return point.binding if point.binding in self._points and point.place.startswith("<") else str(point)


def _plus(us: int) -> str:
    if us == 0:
        return ""
    return f" {'+' if us > 0 else '-'} {show_distance(abs(us))}"


def _ranges(ranges: Sequence[tuple[Point, int, int]], names: _Names) -> str:
    """Write where messages may end, each range once."""
    texts = []
    for point, low, high in ranges:
        name = names.of(point)
        begin = "start of time" if low <= -INFINITE_US else f"{name}{_plus(low)}"
        end = "end of time" if high >= INFINITE_US else f"{name}{_plus(high)}"
        texts.append(f"[{begin}, {end}]")
    return " and ".join(dict.fromkeys(texts))


def _matrix(matrix: Matrix, names: _Names) -> Iterator[str]:
    """Write the distances of the points of different patterns, where they have a bound."""
    written = set()
    for i, x in enumerate(matrix.points):
        for y in matrix.points[i + 1 :]:
            low, high = -matrix.most(y, x), matrix.most(x, y)
            if x.binding != y.binding and (low > -INFINITE_US or high < INFINITE_US):
                line = f"{names.of(y)} - {names.of(x)} in [{show_distance(low)}, {show_distance(high)}]"
                if line not in written:
                    written.add(line)
                    yield line


def _chain(chain: Chain, names: _Names) -> str:
    return f"new {chain.first}: " + ", then ".join(_hop(hop, names) for hop in chain.hops)


def _hop(hop: Hop, names: _Names) -> str:
    equal = "".join(f" on {own}={other}.{column}" for own, other, column in hop.on)
    return f"{hop.binding} in {_ranges(hop.ranges, names) or 'all'}{equal}"
