"""One broker for all processes of a run: `python -m tests.kafka.shared_broker image file pid`.

It writes to the file where it is, and is there until the process of that pid has ended: the one that shares the tests out,
which none of the others outlives.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from windrow.testing import KafkaBroker

ROOT = Path(__file__).parents[2]
#: It outlives this process, and a process that is let go of while it runs is warned of.
STARTED: list[subprocess.Popen[bytes]] = []


class Shared(NamedTuple):
    """Where the broker listens, and what it is."""

    servers: str
    told: str


def told(broker: KafkaBroker) -> str:
    return f"Kafka {broker.version} in container {broker.name} of {broker.image}"


def shared_broker(image: str, folder: Path) -> Shared:
    """The broker of the run with this folder; whoever asks first has it started."""
    file, said = folder / "broker.json", folder / "broker.log"
    with open(folder / "broker.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            command = [sys.executable, "-m", __name__, image, str(file), str(os.getppid())]
            with open(said, "wb") as out:
                process = subprocess.Popen(
                    command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
                )
            STARTED.append(process)
            while not file.exists():
                assert process.poll() is None, said.read_text()
                time.sleep(0.05)
    return Shared(*json.loads(file.read_text()))


def main(image: str, file: str, pid: str) -> None:
    with KafkaBroker(image) as broker:
        written = Path(file + ".tmp")
        written.write_text(json.dumps([broker.kafka.servers, told(broker)]))
        written.rename(file)
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.kill(int(pid), 0)
                time.sleep(0.5)


if __name__ == "__main__":
    main(*sys.argv[1:])
