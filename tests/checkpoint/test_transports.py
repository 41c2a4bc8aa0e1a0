"""Transports: the job's folder, and the SQLite database of docs/howto/adding-a-transport.md. Kafka's is in tests/kafka."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.checkpoint.log_contract import LogContract
from tests.checkpoint.log_truncation_contract import TruncationContract
from tests.checkpoint.transport_contract import CarrierContract, TransportContract
from windrow.checkpoint.log import RecordLog
from windrow.checkpoint.transport import FILES, FileTransport, Transport
from windrow.core.errors import ConfigurationError
from windrow.runners.state.definitions import location_and_log

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "adding-a-transport.md"


@cache
def example() -> Any:
    """Import the first block of the page as a module: its classes can be pickled."""
    [code, *_] = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    module = sys.modules.setdefault("sqlite_transport", ModuleType("sqlite_transport"))
    exec(compile(code, str(PAGE), "exec"), vars(module))
    return module


class TestFiles(TransportContract):
    @pytest.fixture
    def log(self) -> FileTransport:
        return FILES


class TestSqlite(CarrierContract):
    @pytest.fixture
    def log(self, tmp_path: Path) -> Transport:
        made: Transport = example().SqliteLog(str(tmp_path / "jobs.db"), "job")
        return made


class SqlitePlace:
    def __init__(self, path: str) -> None:
        self.records = example().SqliteRecords(path, "job")

    def open(self) -> RecordLog:
        return RecordLog(self.records)

    def put(self, seq: int, data: bytes) -> None:
        with example().transaction(self.records.path) as database:
            database.execute("REPLACE INTO records VALUES (?, ?, ?)", [self.records.name, seq, data])

    def get(self, seq: int) -> bytes | None:
        data: bytes | None = self.records.read(seq)
        return data

    def remove(self, seq: int) -> None:
        self.records.remove(seq)

    def numbers(self) -> list[int]:
        numbers: list[int] = self.records.numbers()
        return numbers


class TestSqliteLog(LogContract, TruncationContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> SqlitePlace:
        return SqlitePlace(str(tmp_path / "jobs.db"))


def test_the_command_line_accepts_any_transport_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    module = example()
    monkeypatch.setattr(module, "log", module.SqliteLog("jobs.db", "job"), raising=False)
    assert location_and_log("log:sqlite_transport:log") == (None, module.log)
    with pytest.raises(ConfigurationError, match="name a transport"):
        location_and_log("log:sqlite_transport:TABLES")
