"""Parallel operators in one job: none takes the rows of another; they share inputs, steps and commits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from windrow.core import check
from windrow.core.errors import ConfigurationError
from windrow.operators.graph.definition import ChainDefinition, Feed, check_inputs, check_names
from windrow.operators.operator import Definition, Logic


@dataclass(frozen=True, repr=False)
class Parallel(ChainDefinition):
    """Definitions that run as one graph. The log records each by itself, so that this has no state, and no text, of its own."""

    definitions: tuple[Definition, ...] = ()

    def __post_init__(self) -> None:
        check_names(self.operators, "a job")
        self.check_begins()
        _check_ids(self.definitions)
        check_inputs(self)

    @property
    def apart(self) -> tuple[Definition, ...]:
        return self.definitions

    def of_apart(self, definitions: Sequence[Definition]) -> Definition:
        return in_parallel(definitions)

    @cached_property
    def _fed(self) -> tuple[tuple[tuple[Feed, ...], Definition], ...]:
        """The feeds of the operators, as in their own graphs."""
        found: list[tuple[tuple[Feed, ...], Definition]] = []
        for one in self.definitions:
            first = len(found)
            for feeds, part in one._fed if isinstance(one, ChainDefinition) else (((), one),):
                found.append((tuple(replace(feed, part=first + feed.part) for feed in feeds), part))
        return tuple(found)

    def logic(self, outputs: Collection[str] = ()) -> Logic:
        from windrow.operators.graph.logic import ChainOperator

        return ChainOperator(self, {*outputs, *(d.name for d in self.definitions)})


def several(definitions: Iterable[Definition]) -> list[Definition]:
    """Return the definitions of a job of several operators, as a list. Raises `ConfigurationError` if it is none."""
    if not isinstance(definitions, Iterable) or isinstance(definitions, str):
        raise ConfigurationError(
            f"definitions={definitions!r:.200}: give operators in a list, [first, second]; one alone has these verbs itself, "
            "such as definition.open(folder)"
        )
    remedy = "give operators, such as wr.Aggregate(...)"
    listed = [check.of_type(one, Definition, "an operator of a job", remedy) for one in definitions]
    if not listed:
        raise ConfigurationError("no operators: give one or several")
    return listed


def in_parallel(definitions: Sequence[Definition]) -> Definition:
    """Combine definitions into one: the only one, or all of them in parallel."""
    if len(definitions) == 1:
        return definitions[0]
    return Parallel(tuple(part for d in definitions for part in d.parts), tuple(definitions))


def _check_ids(definitions: Sequence[Definition]) -> None:
    """Reject operators of one unnamed input that know its messages by other ids."""
    first = definitions[0]
    for definition in definitions:
        if not definition.by_input and definition.ids != first.ids:
            raise ConfigurationError(
                f"{first.name!r} knows messages by {first.ids!r}, {definition.name!r} by {definition.ids!r}: which of them "
                "came before is asked once for all, make them equal"
            )
