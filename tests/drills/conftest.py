"""The brokers of the Kafka tests."""

from tests.kafka.conftest import kafka as kafka
from tests.kafka.conftest import kafka_image as kafka_image
