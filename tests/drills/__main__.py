"""`python -m tests.drills [names] --seeds 20`: drills, one after the other, and a table of what they found."""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import windrow as wr
from tests.drills.drills import DRILLS, Outcome, run
from windrow.testing import KafkaBroker

IMAGE_SCRIPT = Path(__file__).parents[2] / "docker" / "kafka-image.sh"
HEAD = ("drill", "seeds", "faults", "records in", "panes out", "lost", "twice", "wrong", "seconds", "verdict")


def table(outcomes: Sequence[Outcome]) -> str:
    """As Markdown."""
    lines = [" | ".join(("", *HEAD, "")).strip(), "|" + "---|" * len(HEAD)]
    rows: list[tuple[str, ...]] = []
    for o in outcomes:
        r = o.report
        counts = ("-",) * 5
        if r is not None:
            wrong = len(r.wrong) + len(r.unknown) + len(r.broken)
            counts = (str(r.records_in), str(r.panes_out), str(len(r.lost)), str(len(r.twice)), str(wrong))
        verdict = "right" if o.ok else "WRONG" if r is not None else "FAILED"
        cells = (o.drill.name, str(o.seeds), str(o.faults), *counts, f"{o.seconds:.0f}", verdict)
        rows.append(cells)
    if len(rows) > 1:
        sums = (
            str(sum(int(c) for c in column if c.isdigit())) for column in list(zip(*rows, strict=True))[1:-1]
        )
        rows.append(("all", *sums, "right" if all(o.ok for o in outcomes) else "WRONG"))
    lines += ["| " + " | ".join(cells) + " |" for cells in rows]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.drills", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(DRILLS)}; all by default")
    parser.add_argument("--seeds", type=int, default=20, help="how many, default 20")
    parser.add_argument("--first", type=int, default=1, help="the first of them, default 1")
    arguments = parser.parse_args()
    unknown = [n for n in arguments.names if n not in DRILLS]
    if unknown:
        parser.error(f"no drill is called {unknown[0]!r}; there are {', '.join(DRILLS)}")
    drills = [DRILLS[n] for n in arguments.names or DRILLS]
    running = os.environ.get("WINDROW_KAFKA")
    image = None
    if running is None or any(d.own_broker for d in drills):
        image = subprocess.run([IMAGE_SCRIPT], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    outcomes = []
    with contextlib.ExitStack() as stack:
        kafka = None
        if running is not None:
            kafka = wr.Kafka(running)
        elif any(not d.own_broker for d in drills):
            assert image is not None
            kafka = stack.enter_context(KafkaBroker(image)).kafka
        for drill in drills:
            outcomes.append(
                run(drill, range(arguments.first, arguments.first + arguments.seeds), kafka, image)
            )
            print(outcomes[-1], flush=True)
    print()
    print(table(outcomes))
    return 0 if all(o.ok for o in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
