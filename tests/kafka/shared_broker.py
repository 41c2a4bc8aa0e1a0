"""One broker for all processes of a run: `python -m tests.kafka.shared_broker image file pid`.

It writes to the file where it is, and is there until the process of that pid has ended: the one that shares the tests out,
which none of the others outlives.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from windrow.testing import KafkaBroker

ROOT = Path(__file__).parents[2]
#: It outlives this process, and a process that is let go of while it runs is warned of.
STARTED: list[subprocess.Popen[bytes]] = []


class Shared(NamedTuple):
    """Address and kind of the broker."""

    servers: str
    emitted: str


def describe(broker: KafkaBroker) -> str:
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
                    command, cwd=ROOT, stdout=subprocess.PIPE, stderr=out, start_new_session=True
                )
            STARTED.append(process)
            assert process.stdout is not None
            process.stdout.readline()  # until it is there, or has ended
            assert file.exists(), said.read_text()
    return Shared(*json.loads(file.read_text()))


def main(image: str, file: str, pid: str) -> None:
    with KafkaBroker(image) as broker:
        written = Path(file + ".tmp")
        written.write_text(json.dumps([broker.kafka.servers, describe(broker)]))
        written.rename(file)
        print("ready", flush=True)
        with contextlib.suppress(ProcessLookupError):
            wait_for_end(int(pid))


def wait_for_end(pid: int) -> None:
    """Wait for a process that is nobody's child here."""
    if hasattr(os, "pidfd_open"):  # Linux
        select.select([os.pidfd_open(pid)], [], [])
    else:
        ends = select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)
        select.kqueue().control([ends], 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
