"""Definitions of a job, from its reader, or from the text in its log.

The last claim keeps each definition as the expression that builds it. That text is never executed (`definition_parser.py`
reads it), and its
result counts only if it has the name and the fingerprint that the state was written under.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from windrow.checkpoint.definition_check import grown_until
from windrow.checkpoint.records import Epoch
from windrow.checkpoint.transport import FILES, Transport
from windrow.connectors.kafka.log import kafka_log
from windrow.core.errors import ConfigurationError, DefinitionChanged, JobMismatch
from windrow.operators.operator import Definition
from windrow.runners.state.definition_parser import evaluate

#: The prefix of a job whose log is in Kafka, in text.
IN_KAFKA = "log:"


class Definitions:
    """The definitions of one job by operator name. A missing one raises only when it is needed.

    Operators of a chain are found by their own names; `chains` has the chain of each.
    """

    def __init__(self, epoch: Epoch, location: str, value: Any = None) -> None:
        self.location, self._epoch = location, epoch
        self.found: dict[str, Definition] = {}
        self.chains: dict[str, Definition] = {}
        self.missing: dict[str, ConfigurationError] = {}
        self._opened = tuple(epoch.fingerprints)
        for definition in _listed(value):
            self._add(epoch, definition)
        texts = epoch.meta.get("definitions", {})
        for name, fingerprint in epoch.fingerprints.items():
            if name not in self.found:
                self._evaluate(name, fingerprint, texts.get(name))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted({*self.found, *self.missing}))

    def of(self, name: str | None, input: str | None = None, table: str = "windows") -> Definition:
        """Return the definition of an operator. `name` may be None where one was opened: of a chain then the operator that has
        that `input`, or else the last with that `table`.
        """
        names = self.names
        if name is None and input is not None and len(self._opened) > 1:
            having = (d for d in self.found.values() if d.by_input)
            name = next((d.name for d in having if input in [i.name for i in d.inputs]), None)
        if name is None:
            if len(self._opened) != 1:
                raise ConfigurationError(
                    f"{self.location} has the operators {list(names)}: say which, with operator="
                    if names
                    else f"{self.location} has no operator: nothing was opened there since it was reset"
                )
            name = self._opened[0]
            if name in self.found:
                name = self.whole(name).asked(table, None, input).name
        if name in self.missing:
            raise self.missing[name]
        if name not in self.found:
            raise ConfigurationError(f"operator {name!r} is none of {list(names)} at {self.location}")
        return self.found[name]

    def whole(self, name: str) -> Definition:
        """Return the definition that was opened with that operator: the operator itself, or its chain."""
        return self.chains.get(name, self.found[name])

    def _find(self, definition: Definition) -> None:
        definition = definition.grown(grown_until(self._epoch, definition.name))
        for part in definition.parts:
            self.found[part.name] = part
            if part is not definition:
                self.chains[part.name] = definition

    def _add(self, epoch: Epoch, definition: Definition) -> None:
        name = definition.name
        if name not in epoch.fingerprints:
            raise JobMismatch(
                f"definition= has the operator {name!r}, {self.location} has {sorted(epoch.fingerprints)}: pass the "
                "definitions that the job was opened with"
            )
        if definition.fingerprint != epoch.fingerprints[name]:
            before = epoch.meta.get("definitions", {}).get(name, epoch.fingerprints[name])
            raise DefinitionChanged(
                f"the state at {self.location} was written by\n  {before}\nand would be misread by\n  {definition!r}\n"
                "Pass the former as definition="
            )
        self._find(definition)

    def _evaluate(self, name: str, fingerprint: str, text: str | None) -> None:
        try:
            definition = None if text is None else evaluate(text)
            why = "gives something else" if text is not None else "is not kept"
        except Exception as error:
            definition, why = None, f"cannot be built again ({error})"
        if (
            isinstance(definition, Definition)
            and definition.fingerprint == fingerprint
            and definition.name == name
        ):
            self._find(definition)
            return
        self.missing[name] = ConfigurationError(
            f"the definition of {name!r} that {self.location} names\n  {text}\n{why}: pass definition= (on the command line "
            "--definition MODULE:NAME), the one that the job was opened with"
        )


def _listed(value: Any) -> tuple[Definition, ...]:
    """Return the user's definition= as a tuple: one, or several."""
    if value is None or isinstance(value, Definition):
        return () if value is None else (value,)
    definitions = tuple(value) if isinstance(value, Iterable) else (None,)
    if all(isinstance(part, Definition) for part in definitions):
        return definitions
    raise ConfigurationError(
        f"definition={value!r:.200} is none: give the wr.Aggregate, wr.Join or chain that the job was opened with, or a list"
    )


def imported(text: str) -> Any:
    """Import the definition, or definitions, that `module:name` names."""
    return _imported(text, "definition", "module:name, as in flights.jobs:delays")


def location_and_log(text: str) -> tuple[str | None, Transport]:
    """Parse (location, log) of a job: a folder; `log:servers/name`; or `log:module:name` of a `wr.kafka_log(...)`."""
    if not text.startswith(IN_KAFKA):
        return text, FILES
    text = text.removeprefix(IN_KAFKA)
    servers, slash, name = text.rpartition("/")
    if slash:
        return None, kafka_log(servers, name)
    log = _imported(text, "log", "log:servers/name, as in log:localhost:9092/delays, or log:module:name")
    if not isinstance(log, Transport):
        raise ConfigurationError(f"log {text!r} is {log!r}: name a transport, such as a wr.kafka_log(...)")
    return None, log


def _imported(text: str, what: str, form: str) -> Any:
    module, colon, name = text.partition(":")
    if not colon:
        raise ConfigurationError(f"{what} {text!r}: write {form}")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"{what} {text!r} cannot be imported: {error}. Write {form}") from error
