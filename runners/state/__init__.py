"""The state of a job, read from outside: windows, messages, panes, commits, dead letters, as of a commit."""

from windrow.runners.state.reader import State as State
from windrow.runners.state.reader import read_state as read_state
