"""Durable windowed operators for Python streams, embedded or on Spark Structured Streaming.

A definition is a value: `definition.open(folder)` runs it in this process, `definition.writeStream(stream)` on Spark, and
`definition.run(folder, source)` from topic to topic. `help(wr.Aggregate)`, and so on, tells the rest, with an example.

Operators: Aggregate, CoGroup, Join, JoinWindow, Over, Deduplicate, Process, Delivery, Rules, Alert; Input and pairs for several
    inputs
Several as one job: chain, which gives a Chain; open, foreach_batch, writeStream, together
Rules: Rule of patterns event, fact, absent, accumulate; Table of facts; expiry by at_least, otherwise
Temporal operators: after, before, coincides, during, includes, finishes, finished_by, meets, met_by, overlaps, overlapped_by,
    starts, started_by
Alerts: Action
Windows: tumbling, hopping, calendar, session, tuples, global_window, inherited; of a join's inputs sliding, rows, unbounded
Frames around messages: rows_between, range_between, between
Aggregations: count, sum, avg, min, max, variance, stddev, weighted_avg, median, percentile, approx_percentile, count_distinct,
    approx_count_distinct, first, last, earliest, latest, any_value, max_by, min_by, top_k, top_k_by, collect_list, collect_set,
    sort_list, skipped; your own: aggregate_function, reduce; of columns by col, lit
Emission: Emit, every, every_batch, delay, when, any_of, all_of, past_end, never
Watermarks and retention: bounded, fixed, explicit, custom; Retain, forever
Which message is which: positions, ids
What comes and goes: Message, Position; Pane, JoinedRow, Window, TupleWindow, DeadLetter, Token
Reading: read_state, read_panes, latest, progress_bar
Kafka: Kafka, KafkaSource, kafka_log, kafka_offsets
Errors: WindrowError, ConfigurationError
Modules: wr.sources, wr.sinks, wr.decoders, wr.deliver, and windrow.testing

>>> import windrow as wr
>>> delays = wr.Aggregate(
...     by="origin", event_time="departure", window=wr.tumbling("1 hour"), retention="7 days",
...     agg={"flights": wr.count(), "delay": wr.avg("dep_delay")},
... )
>>> delays.full_state
False
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from windrow.connectors import decoders as decoders
from windrow.connectors import sinks as sinks
from windrow.connectors import sources as sources
from windrow.connectors.kafka.cluster import Kafka as Kafka
from windrow.connectors.kafka.log import kafka_log as kafka_log
from windrow.connectors.kafka.source import KafkaSource as KafkaSource
from windrow.connectors.kafka.start_offsets import kafka_offsets as kafka_offsets
from windrow.connectors.sinks import read_panes as read_panes
from windrow.core import deliver as deliver
from windrow.core.aggregations import any_value as any_value
from windrow.core.aggregations import approx_count_distinct as approx_count_distinct
from windrow.core.aggregations import approx_percentile as approx_percentile
from windrow.core.aggregations import avg as avg
from windrow.core.aggregations import collect_list as collect_list
from windrow.core.aggregations import collect_set as collect_set
from windrow.core.aggregations import count as count
from windrow.core.aggregations import count_distinct as count_distinct
from windrow.core.aggregations import earliest as earliest
from windrow.core.aggregations import first as first
from windrow.core.aggregations import last as last
from windrow.core.aggregations import max as max
from windrow.core.aggregations import max_by as max_by
from windrow.core.aggregations import median as median
from windrow.core.aggregations import min as min
from windrow.core.aggregations import min_by as min_by
from windrow.core.aggregations import percentile as percentile
from windrow.core.aggregations import skipped as skipped
from windrow.core.aggregations import sort_list as sort_list
from windrow.core.aggregations import stddev as stddev
from windrow.core.aggregations import sum as sum
from windrow.core.aggregations import top_k as top_k
from windrow.core.aggregations import top_k_by as top_k_by
from windrow.core.aggregations import variance as variance
from windrow.core.aggregations import weighted_avg as weighted_avg
from windrow.core.between import between as between
from windrow.core.emit import Emit as Emit
from windrow.core.emit import all_of as all_of
from windrow.core.emit import any_of as any_of
from windrow.core.emit import delay as delay
from windrow.core.emit import every as every
from windrow.core.emit import every_batch as every_batch
from windrow.core.emit import never as never
from windrow.core.emit import past_end as past_end
from windrow.core.emit import when as when
from windrow.core.errors import ConfigurationError as ConfigurationError
from windrow.core.errors import WindrowError as WindrowError
from windrow.core.expressions import col as col
from windrow.core.expressions import lit as lit
from windrow.core.frames import range_between as range_between
from windrow.core.frames import rows_between as rows_between
from windrow.core.functions import aggregate_function as aggregate_function
from windrow.core.functions import reduce as reduce
from windrow.core.inputs import at_least as at_least
from windrow.core.inputs import otherwise as otherwise
from windrow.core.messages import DeadLetter as DeadLetter
from windrow.core.messages import JoinedRow as JoinedRow
from windrow.core.messages import Message as Message
from windrow.core.messages import Pane as Pane
from windrow.core.messages import Position as Position
from windrow.core.messages import Token as Token
from windrow.core.messages import TupleWindow as TupleWindow
from windrow.core.messages import Window as Window
from windrow.core.policy import Retain as Retain
from windrow.core.policy import bounded as bounded
from windrow.core.policy import custom as custom
from windrow.core.policy import explicit as explicit
from windrow.core.policy import fixed as fixed
from windrow.core.policy import forever as forever
from windrow.core.positions import ids as ids
from windrow.core.positions import positions as positions
from windrow.core.relations import after as after
from windrow.core.relations import before as before
from windrow.core.relations import coincides as coincides
from windrow.core.relations import during as during
from windrow.core.relations import finished_by as finished_by
from windrow.core.relations import finishes as finishes
from windrow.core.relations import includes as includes
from windrow.core.relations import meets as meets
from windrow.core.relations import met_by as met_by
from windrow.core.relations import overlapped_by as overlapped_by
from windrow.core.relations import overlaps as overlaps
from windrow.core.relations import started_by as started_by
from windrow.core.relations import starts as starts
from windrow.core.windows import calendar as calendar
from windrow.core.windows import global_window as global_window
from windrow.core.windows import hopping as hopping
from windrow.core.windows import inherited as inherited
from windrow.core.windows import rows as rows
from windrow.core.windows import session as session
from windrow.core.windows import sliding as sliding
from windrow.core.windows import tumbling as tumbling
from windrow.core.windows import tuples as tuples
from windrow.core.windows import unbounded as unbounded
from windrow.operators.alert.actions import Action as Action
from windrow.operators.join.definition import pairs as pairs
from windrow.operators.rules.patterns import Rule as Rule
from windrow.operators.rules.patterns import absent as absent
from windrow.operators.rules.patterns import accumulate as accumulate
from windrow.operators.rules.patterns import event as event
from windrow.operators.rules.patterns import fact as fact
from windrow.runners.definition import Aggregate as Aggregate
from windrow.runners.definition import Alert as Alert
from windrow.runners.definition import CoGroup as CoGroup
from windrow.runners.definition import Deduplicate as Deduplicate
from windrow.runners.definition import Delivery as Delivery
from windrow.runners.definition import Input as Input
from windrow.runners.definition import Join as Join
from windrow.runners.definition import JoinWindow as JoinWindow
from windrow.runners.definition import Over as Over
from windrow.runners.definition import Process as Process
from windrow.runners.definition import Rules as Rules
from windrow.runners.definition import Table as Table
from windrow.runners.definition import foreach_batch as foreach_batch
from windrow.runners.definition import open as open
from windrow.runners.definition import together as together
from windrow.runners.definition import writeStream as writeStream
from windrow.runners.facade import Chain as Chain
from windrow.runners.facade import chain as chain
from windrow.runners.panes import latest as latest
from windrow.runners.progress import progress_bar as progress_bar
from windrow.runners.state import read_state as read_state

__version__ = "0.1.0"

if not _TYPE_CHECKING:
    from windrow.core import suggestions as _meant

    __getattr__ = _meant.missing_name
