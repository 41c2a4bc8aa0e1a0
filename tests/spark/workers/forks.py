"""A process that has imported what plans a source of Spark's in Python, and is forked for each query.

Spark starts a Python anew for each, which imports for more than a second of CPU, and gives it ten seconds to answer: too few
on a busy machine. `forking` serves for as long as a session lasts; as a program, this asks to be a fork, and ends with it.
"""

from __future__ import annotations

import marshal
import os
import socket
import sys

MODULE = "pyspark.sql.streaming.python_streaming_source_runner"
#: Where it is asked, and which Python it is.
PLACE, PYTHON = "WINDROW_FORKS", "WINDROW_PYTHON"


def ask() -> None:
    """Be a fork: with this process's environment, folder and streams. Where nobody serves yet, be what Spark has asked for."""
    asked = socket.socket(socket.AF_UNIX)
    try:
        asked.connect(os.environ[PLACE])
    except OSError:
        os.execv(os.environ[PYTHON], [os.environ[PYTHON], "-m", MODULE])
    body = marshal.dumps((dict(os.environ), os.getcwd()))
    socket.send_fds(asked, [len(body).to_bytes(4, "big")], [0, 1, 2])
    asked.sendall(body)
    asked.recv(1)  # until the fork has ended


def serve(place: str) -> None:
    """Until standard input ends, as it does with the process of the tests."""
    import select
    import signal

    import pyspark.sql.streaming.python_streaming_source_runner  # noqa: F401

    import windrow.runners.spark.kafka  # noqa: F401

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # which ends whoever started it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for forks
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(place)
        listening.listen(64)
        while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
            asked, _ = listening.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os._exit(be(asked))
            asked.close()


def be(asked: socket.socket) -> int:
    """The fork. Its exit code."""
    import threading
    import traceback

    from pyspark.sql.streaming.python_streaming_source_runner import main
    from pyspark.worker_util import get_sock_file_to_executor

    try:
        size, streams, _, _ = socket.recv_fds(asked, 4, 3)
        environment, folder = marshal.loads(asked.makefile("rb").read(int.from_bytes(size, "big")))
        threading.Thread(
            target=lambda: os._exit(len(asked.recv(1))), daemon=True
        ).start()  # Spark has ended who asked
        for n, stream in enumerate(streams):
            os.dup2(stream, n)
            os.close(stream)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        with get_sock_file_to_executor(timeout=None) as sock:
            main(sock, sock)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    serve(*sys.argv[1:]) if sys.argv[1:] else ask()
