"""A store in memory that counts what is read and written: what an operator touches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from windrow.stores.kv import Batch, MemoryKV


class CountingKV(MemoryKV):
    """scanned: values that scans gave; read: bytes of values, by scans and by key. Both by column family. written: bytes."""

    def __init__(self, cfs: Sequence[str]) -> None:
        super().__init__(cfs)
        self.written = 0
        self.clear()

    def clear(self) -> None:
        """Begin to count what is read anew."""
        self.scanned, self.read = Counter[str](), Counter[str]()

    def get(self, cf: str, key: bytes) -> bytes | None:
        return self._counted(cf, super().get(cf, key))

    def multi_get(self, cf: str, keys: Sequence[bytes]) -> Any:
        return [self._counted(cf, value) for value in super().multi_get(cf, keys)]

    def scan(self, cf: str, *bounds: Any, **options: Any) -> Iterator[tuple[bytes, bytes]]:
        for pair in super().scan(cf, *bounds, **options):
            self.scanned[cf] += 1
            self._counted(cf, pair[1])
            yield pair

    def write(self, batch: Batch) -> None:
        self.written += batch.nbytes
        super().write(batch)

    def _counted(self, cf: str, value: Any) -> Any:
        self.read[cf] += len(value or b"")
        return value
