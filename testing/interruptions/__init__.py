"""Errors and interrupts, instead of kills: a seed hits an operator in this process, which is then used on or opened again.

    python -m windrow.testing.interruptions                          # 1,000 seeds, each with a job of its own
    python -m windrow.testing.interruptions --job my.module:orders   # a job of yours: a windrow.testing.Scenario
    python -m windrow.testing.interruptions --seed 7                 # one, with its story
    python -m windrow.testing.interruptions --seed 7 --shrink        # with as few of its hits as it takes to fail

A reader feeds a job from topics that it can read again. Any of its calls may raise Ctrl-C or a lack of memory at any line,
or an error of the disk out of any call; sinks refuse; messages that the job keeps are lost. The reader then acts as people
do: it calls again, asks for `next_offsets()` and reads on from there, closes and opens again, or drops the operator. At
the end the faults stop, the rest is read, and the job's output is compared with the oracle: no message, pane or
dead letter may be lost, doubled or wrong. The simulation (`windrow.testing.simulation`) covers the rest: kills, lost
power, several drivers.
"""

from windrow.testing.interruptions.reader import Outlet as Outlet
from windrow.testing.interruptions.runner import interrupt as interrupt
from windrow.testing.interruptions.runner import play as play
from windrow.testing.interruptions.runner import shrink as shrink
