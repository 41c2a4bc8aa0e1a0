"""One folder for driver and executors: found before the first commit, or that commit would be lost."""

from __future__ import annotations

import contextlib
import os
import uuid

NONCE = "nonce-"


class Nonce:
    """A file that the tasks of the first action have to see. `name` is "" if there is no check."""

    def __init__(self) -> None:
        self.name = self._path = ""

    def make(self, location: str) -> None:
        for left in os.listdir(location):
            if left.startswith(NONCE):
                os.unlink(os.path.join(location, left))
        self.name = NONCE + uuid.uuid4().hex
        self._path = os.path.join(location, self.name)
        with open(self._path, "x"):
            pass

    def forget(self) -> None:
        if self.name:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            self.name = ""
