#!/usr/bin/env bash
# Writes the archive of classes: a broker that starts, answers nobody, and ends.
set -euo pipefail

export KAFKA_NODE_ID=1 KAFKA_PROCESS_ROLES=broker,controller KAFKA_LOG_DIRS=/tmp/classes
export KAFKA_LISTENERS=PLAINTEXT://127.0.0.1:19092,CONTROLLER://127.0.0.1:19093
export KAFKA_CONTROLLER_LISTENER_NAMES=CONTROLLER KAFKA_CONTROLLER_QUORUM_VOTERS=1@127.0.0.1:19093
export KAFKA_JVM_PERFORMANCE_OPTS="-XX:+UseSerialGC -XX:ArchiveClassesAtExit=/opt/kafka/classes.jsa"

/opt/kafka/entrypoint.sh >/tmp/classes.log 2>&1 &
broker=$!
until grep -q 'Kafka Server started' /tmp/classes.log; do
  kill -0 "$broker" || { cat /tmp/classes.log >&2; exit 1; }
  sleep 0.2
done
kill -TERM "$broker"
wait "$broker" || [ -e /opt/kafka/classes.jsa ]
rm -rf /tmp/classes /tmp/classes.log /opt/kafka/config/server.properties
