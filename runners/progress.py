"""A bar for bounded runs."""

from __future__ import annotations

from typing import Any


class ProgressBar:
    """A listener of progress that moves a bar by rows. `close()` it at the end, or use it in a `with`.

    total: the number of rows expected, where it is known
    description: the text before the bar

    query.addListener(bar := wr.progress_bar(total=336_776)); query.awaitTermination(); bar.close()
    """

    def __init__(self, total: int | None = None, description: str = "windrow") -> None:
        from tqdm import tqdm  # takes a fifteenth of what windrow takes to import, and few want a bar

        self._bar = tqdm(total=total, desc=description, unit=" rows", unit_scale=True)

    def __call__(self, progress: dict[str, Any]) -> None:
        self._bar.set_postfix(commit=progress["commit"], panes=progress["panes"], refresh=False)
        self._bar.update(progress["numInputRows"])

    def close(self) -> None:
        self._bar.close()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def progress_bar(total: int | None = None, description: str = "windrow") -> ProgressBar:
    """Return a progress bar for `query.addListener`.

    total: how many rows are expected, where that is known
    description: the text before the bar

    >>> import io, contextlib
    >>> with contextlib.redirect_stderr(io.StringIO()), progress_bar(total=10) as bar:
    ...     bar({"commit": 1, "panes": 2, "numInputRows": 10})
    """
    return ProgressBar(total, description)
