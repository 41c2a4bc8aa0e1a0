"""Dead letters go out as panes do: retried, under the commit's token, in order, whatever became of the panes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from windrow.core import errors as e
from windrow.testing.clock import ManualClock

SECOND = 1_000_000
DEFINITION = wr.Aggregate(
    by="k",
    event_time="t",
    window=wr.tumbling("10 seconds"),
    agg={"n": wr.count()},
    retention="1 hour",
    emit=wr.Emit(early=wr.every_batch),
)


def message(second: int | None, key: str = "a") -> wr.Message:
    return wr.Message({"k": key, "t": None if second is None else second * SECOND})


class DeadLetterSink:
    """Takes dead letters, or refuses them while it is told to."""

    def __init__(self, refuses: bool = False) -> None:
        self.refuses, self.got = refuses, list[tuple[int, str, int]]()

    def publish(self, token: wr.Token, panes: Any) -> None:
        if self.refuses:
            raise ConnectionError("full")
        self.got.append((token.commit, panes.operator, panes.rows))

    def last_commit(self, job: str, operator: str) -> int | None:
        return max((commit for commit, _, _ in self.got), default=None)


class Dies(BaseException):
    """The process ends here."""


def test_letters_that_were_refused_after_the_panes_were_out_are_asked_for_again(tmp_path: Path) -> None:
    panes, letters = wr.sinks.parquet(str(tmp_path / "out")), DeadLetterSink(refuses=True)
    with DEFINITION.open(str(tmp_path / "job"), clock=ManualClock(), sink=panes, dead_letters=letters) as op:
        op.add_message(message(1))
        op.add_message(message(None))
        op.timeout()
        assert wr.read_panes(panes.path).num_rows == 1 and letters.got == []
        with pytest.raises(e.OperatorPaused):
            op.add_message(message(2))
        letters.refuses = False
        op.timeout()
        assert letters.got == [(1, "dead_letters", 1)]


@pytest.mark.parametrize("dies", [True, False])
def test_a_life_that_ends_between_panes_and_letters_leaves_the_letters_to_the_next(
    tmp_path: Path, dies: bool
) -> None:
    panes, letters = wr.sinks.parquet(str(tmp_path / "out")), DeadLetterSink()

    class Ends(DeadLetterSink):
        def publish(self, token: wr.Token, panes: Any) -> None:
            raise Dies if dies else ConnectionError("full")

    op = DEFINITION.open(str(tmp_path / "job"), clock=ManualClock(), sink=panes, dead_letters=Ends())
    op.add_message(message(1))
    op.add_message(message(None))
    with pytest.raises(Dies if dies else e.SinkFailed):
        op.close()
    op.abandon()
    assert wr.read_panes(panes.path).num_rows == 1
    for _ in range(2):  # once is enough
        DEFINITION.open(str(tmp_path / "job"), clock=ManualClock(), sink=panes, dead_letters=letters).close()
        assert letters.got == [(1, "dead_letters", 1)]
    assert wr.read_panes(panes.path).num_rows == 1


def test_flush_does_not_acknowledge_what_a_sink_refuses(tmp_path: Path) -> None:
    sink = DeadLetterSink(refuses=True)
    with DEFINITION.open(str(tmp_path / "job"), clock=ManualClock(), sink=sink) as op:
        op.add_message(message(1))
        op.flush()
        assert op.paused
        sink.refuses = False
        op.timeout()
        assert sink.got == [(1, "aggregate", 1)]


def test_letters_need_no_sink_of_panes(tmp_path: Path) -> None:
    letters = DeadLetterSink()
    with DEFINITION.open(str(tmp_path / "job"), clock=ManualClock(), dead_letters=letters) as op:
        for second in (1, None, 2, None):
            op.add_message(message(second))
            op.timeout()
        assert letters.got == [(2, "dead_letters", 1), (4, "dead_letters", 1)]
        assert [p.values["n"] for p in op.get_result()] == [1, 2]
    assert len(letters.got) == 2
    with DEFINITION.open(str(tmp_path / "job"), clock=ManualClock(), dead_letters=letters) as op:
        assert [p.values["n"] for p in op.get_result()] == [1, 2], "nobody has acknowledged them"
        assert len(letters.got) == 2
        letters.refuses = True
        op.add_message(message(None))
        op.flush()
        assert op.paused
        letters.refuses = False
        op.timeout()
        assert letters.got[2:] == [(5, "dead_letters", 1)]


def test_an_operator_of_the_letters_name_would_swallow_them(tmp_path: Path) -> None:
    named = wr.Aggregate(
        event_time="t",
        window=wr.tumbling("10 seconds"),
        agg={"n": wr.count()},
        retention="1 hour",
        name="dead_letters",
    )
    out = wr.sinks.parquet(str(tmp_path / "out"))
    with pytest.raises(e.ConfigurationError, match=r"'dead_letters' .* give the operator another name"):
        named.open(str(tmp_path / "job"), sink=out, dead_letters=out)
    named.open(str(tmp_path / "job"), sink=out).close()


@pytest.mark.parametrize("bad", ["out/x", 42, Path("out")])
def test_what_is_no_sink_is_refused_before_anything_is_made(tmp_path: Path, bad: Any) -> None:
    for options in ({"sink": bad}, {"dead_letters": bad}):
        with pytest.raises(e.ConfigurationError, match=r"is no sink: .*wr\.sinks\.parquet"):
            DEFINITION.open(str(tmp_path / "job"), **options)
    with pytest.raises(e.ConfigurationError, match=r"'delays'.*'aggregate'"):
        DEFINITION.open(str(tmp_path / "job"), sink={"delays": wr.sinks.memory()})
    assert not (tmp_path / "job").exists()


def test_flush_acknowledges_nothing_that_an_interrupted_call_has_not_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = DeadLetterSink()
    options = {"sink": wr.sinks.memory(), "dead_letters": letters}
    with DEFINITION.open(str(tmp_path), clock=ManualClock(), **options) as op:
        op.add_message(message(None))
        with monkeypatch.context() as patch:
            patch.setattr(letters, "publish", lambda token, panes: (_ for _ in ()).throw(KeyboardInterrupt()))
            with pytest.raises(KeyboardInterrupt):
                op.get_result()
        op.get_result()
        op.flush()
    assert letters.got == [(1, "dead_letters", 1)]


def test_a_sink_that_has_taken_its_own_is_not_given_it_again_because_another_refuses(tmp_path: Path) -> None:
    letters, tokens = DeadLetterSink(refuses=True), list[int]()
    with DEFINITION.open(
        str(tmp_path / "job"),
        clock=ManualClock(),
        sink=lambda panes, token: tokens.append(token.commit),
        dead_letters=letters,
    ) as op:
        op.add_message(message(1))
        op.add_message(message(None))
        op.timeout()
        for _ in range(3):
            with pytest.raises(e.OperatorPaused):
                op.timeout()
        letters.refuses = False
        op.timeout()
        assert tokens == [1] and letters.got == [(1, "dead_letters", 1)]


def test_any_sink_takes_letters_also_a_function(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    got: list[Any] = []
    memory = wr.sinks.memory()
    for i, sink in enumerate((lambda dead, token: got.extend(dead), memory, wr.sinks.console())):
        with DEFINITION.open(str(tmp_path / f"job{i}"), clock=ManualClock(), dead_letters=sink) as op:
            op.add_message(message(None))
            op.timeout()
            assert not op.paused
            kept = op.dead_letters()
    assert got == memory.panes == kept and kept[0].reason == "malformed"
    assert "-- commit 1 of dead_letters: 1 letters" in capsys.readouterr().out
