"""For users' tests: a clock moved by hand, a driver with crashes, faults on purpose, a Kafka broker, and an oracle."""

from windrow.operators.aggregate.oracle import AggregateOracle as AggregateOracle
from windrow.operators.deduplicate.oracle import DeduplicateOracle as DeduplicateOracle
from windrow.operators.graph.oracle import ChainOracle as ChainOracle
from windrow.operators.join.oracle import JoinOracle as JoinOracle
from windrow.operators.plain.watermark import WatermarkOracle as WatermarkOracle
from windrow.operators.process.oracle import ProcessOracle as ProcessOracle
from windrow.testing.broker import KafkaBroker as KafkaBroker
from windrow.testing.checker import Report as Report
from windrow.testing.checker import check_topics as check_topics
from windrow.testing.clock import ManualClock as ManualClock
from windrow.testing.driver import JoinDriver as JoinDriver
from windrow.testing.driver import TestDriver as TestDriver
from windrow.testing.faults import CommitPoint as CommitPoint
from windrow.testing.faults import CrashPoint as CrashPoint
from windrow.testing.faults import FaultyKV as FaultyKV
from windrow.testing.faults import SimulatedCrash as SimulatedCrash
from windrow.testing.faults import damage_file as damage_file
from windrow.testing.faults import die_at as die_at
from windrow.testing.faults import tear_file as tear_file
from windrow.testing.ledger import LedgerBroken as LedgerBroken
from windrow.testing.ledger import all_panes_equal as all_panes_equal
from windrow.testing.ledger import ledger as ledger
from windrow.testing.ledger import panes_equal as panes_equal
from windrow.testing.simulated_kafka import SimulatedKafka as SimulatedKafka
