"""The command line, run in this process."""

import io
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import pytest

from tests.console.small_jobs import Said
from windrow.console.main import main


@pytest.fixture
def windrow(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """Run the command line in this process, `answer` being what a person types."""

    def run(*arguments: Any, answer: str = "") -> Said:
        out, err = io.StringIO(), io.StringIO()
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        with redirect_stdout(out), redirect_stderr(err):
            try:
                code = main([str(a) for a in arguments])
            except SystemExit as ended:
                code = int(ended.code or 0)
        return Said(code, out.getvalue(), err.getvalue())

    return run
