"""Names of the system columns next to the user's own. Users cannot name a column with two underscores first."""

from __future__ import annotations

import pyarrow as pa

# of a slice of input
SOURCE, PARTITION, OFFSET, ORDINAL = "__source", "__partition", "__offset", "__ordinal"
POSITION_COLUMNS = (SOURCE, PARTITION, OFFSET, ORDINAL)

#: of a message that is kept: its key in the message store
KEPT = "__kept"
#: of a row that could not be read: the error, and its payload as it came
MALFORMED_ROW, RAW = "__malformed", "__raw"
#: of a row of another operator: 1, or -1 for a retraction; missing without retractions
SIGN = "__sign"
#: of a row of a run of single messages: the index of its message
ARRIVED = "__arrived"
#: of a message that has a number among all messages, by which it is filed, and not by its time
NUMBER = "__number"
#: The detail of a row that is only passed over, without a dead letter.
PASSED_OVER = ""

# of state rows, one per (window, key)
START, END, UPSERT = "__start", "__end", "__upsert"
#: messages the window took; messages since its last pane; panes so far; the step of its last pane
MESSAGES, PENDING, PANES, EMIT_STEP = "__n", "__pending", "__panes", "__emit_step"
#: `now` of the step that took the first message since its last pane, under an emission that waits for a delay from there
SINCE = "__since"
#: Of a session that keeps its messages: earlier messages are not its own, even within its bounds; null: all are.
MESSAGES_FROM = "__messages_from"
#: encoded first and last position
FIRST, LAST = "__first", "__last"
ACCUMULATOR, EMITTED = "a.", "e."
#: True: the emitted columns are those of the last pane; False: unknown; null: not noted (see `output_rows.py`)
EMITTED_KNOWN = "__emitted_known"

STATE_FIELDS = (
    pa.field(START, pa.int64()),
    pa.field(END, pa.int64()),
    pa.field(MESSAGES, pa.int64()),
    pa.field(PENDING, pa.int64()),
    pa.field(PANES, pa.int64()),
    pa.field(EMIT_STEP, pa.int64()),
    pa.field(FIRST, pa.binary()),
    pa.field(LAST, pa.binary()),
)

# of panes
TIMING, INDEX, IS_LAST, KIND = "__timing", "__index", "__is_last", "__kind"
EARLY, ON_TIME, LATE = "EARLY", "ON_TIME", "LATE"
INSERT, RETRACT = "INSERT", "RETRACT"
#: As RETRACT, of a pane that the next one replaces; only a downstream operator receives it.
REPLACED = "REPLACED"
#: The step that ingested a replayed message.
STEP = "__step"

# of groups of rows: made by SQL of a slice of time and a key, before rows cross
SLICE, ROWS, TIME_MIN, TIME_MAX = "__slice", "__rows", "__time_min", "__time_max"
OFFSET_MIN, OFFSET_MAX = "__offset_min", "__offset_max"
#: The number of rows with a value that cannot be counted.
FAULTS = "__faults"
#: Why a row was set apart, as JSON: one that cannot be counted, or `REPLAYED`.
DEAD_LETTER, REPLAYED = "__dead_letter", "replayed"


def with_column(rows: pa.Table, name: str, column: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Return rows with a column, in the place of the one that has its name."""
    if name not in rows.column_names:
        return rows.append_column(name, column)
    return rows.set_column(rows.column_names.index(name), name, column)
