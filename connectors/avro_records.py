"""Deserializer of untrusted Avro records: no record ends the process, or fills its memory.

fastavro follows a record into itself until the stack is gone, and makes as many values of no bytes as a record says there are.
"""

from __future__ import annotations

from typing import Any

from confluent_kafka.schema_registry.avro import AvroDeserializer


class BoundedDeserializer(AvroDeserializer):
    """`AvroDeserializer` that raises `ValueError` for a record whose schema does not bound the size of its values."""

    def __init__(self, registry: Any) -> None:
        super().__init__(registry)
        #: The parsed schemas that were found to be bounded; the deserializer keeps each as one object.
        self._bounded: set[int] = set()

    def _get_parsed_schema(self, schema: Any) -> Any:
        parsed = super()._get_parsed_schema(schema)
        if id(parsed) not in self._bounded:
            _check(parsed, {}, ())
            self._bounded.add(id(parsed))
        return parsed


def _check(schema: Any, named: dict[str, Any], within: tuple[str, ...]) -> None:
    """Raise `ValueError` where a type contains itself, or is an array of values without bytes."""
    if isinstance(schema, str) and schema in within:
        raise ValueError(f"the Avro schema {schema!r} contains itself, which no column does")
    if isinstance(schema, list):
        for branch in schema:
            _check(branch, named, within)
    if not isinstance(schema, dict):
        return
    kind = schema["type"]
    if "name" in schema:
        named[schema["name"]] = schema
    if kind in ("record", "error"):
        for field in schema["fields"]:
            _check(field["type"], named, (*within, schema["name"]))
    elif kind in ("array", "map"):
        inner = schema["items" if kind == "array" else "values"]
        _check(inner, named, within)
        if kind == "array" and _is_empty(inner, named):
            raise ValueError(f"the Avro schema {schema!r:.200} has an array of values that take no bytes")
    elif not isinstance(kind, str):
        _check(kind, named, within)


def _is_empty(schema: Any, named: dict[str, Any]) -> bool:
    """True if a value takes no bytes."""
    schema = named.get(schema, schema) if isinstance(schema, str) else schema
    if not isinstance(schema, dict):
        return bool(schema == "null")
    if schema["type"] in ("record", "error"):
        return all(_is_empty(field["type"], named) for field in schema["fields"])
    return bool(schema["type"] == "null" or (schema["type"] == "fixed" and schema["size"] == 0))
