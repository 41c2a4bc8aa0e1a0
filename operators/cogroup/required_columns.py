"""Required columns of one input of an aggregate over several inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from windrow.core.column_types import compared
from windrow.core.inputs import Input
from windrow.operators.cogroup.tagged_union import United
from windrow.operators.steps.schema_inference import Needs


class InputNeeds(Needs):
    """The columns that an aggregate of that input alone would require; shared columns must have one type in all inputs.

    others: the known columns of the other inputs
    """

    def __init__(self, united: United, input: Input, others: Mapping[str, pa.Schema]) -> None:
        self._united, self._input, self._others = united, input, others
        self._own = united.needs[input.name]
        self.whole = united.takes_whole(input)

    def check(self, known: pa.Schema | None, names: Iterable[str]) -> None:
        self._own.check(known, names)

    def named(self, names: Iterable[str]) -> set[str]:
        return self._own.named(names)

    def refused(self, names: Iterable[str]) -> dict[str, str]:
        return {}

    def refusal(self, name: str, kind: pa.DataType, known: Mapping[str, pa.DataType]) -> str | None:
        own = self._own.refusal(name, kind, known)
        if own is not None:
            return own
        for other, theirs in self._partners(name):
            if compared(theirs, pa.field(name, kind)) is None:
                return (
                    f"column {name!r} is {kind}, and {theirs.name!r} of input {other!r} is {theirs.type}, which "
                    "do not go together: cast one of them"
                )
        return None

    def compared_with(self, name: str) -> Sequence[pa.Field]:
        return [field for _, field in self._partners(name)]

    def _partners(self, name: str) -> Iterator[tuple[str, pa.Field]]:
        """Yield (input, column) of the others that share a column of the united rows with this one."""
        shared = {
            called for called, column in self._united.places(self._input, [name]).items() if column == name
        }
        for other, schema in self._others.items():
            places = self._united.places(self._united.definition.input(other), schema.names)
            for called in shared & places.keys():
                if places[called] in schema.names:
                    yield other, schema.field(places[called])
