#!/usr/bin/env bash
# Starts a broker as apache/kafka does: KAFKA_NODE_ID=1 becomes node.id=1; "__" stands for "_", "___" for "-".
# Storage that is new is formatted for CLUSTER_ID.
set -euo pipefail

properties=/opt/kafka/config/server.properties
: "${KAFKA_LOG_DIRS:=/var/lib/kafka/data}"
export KAFKA_LOG_DIRS
env -0 | while IFS= read -r -d '' entry; do
  name=${entry%%=*}
  case $name in
    KAFKA_HEAP_OPTS | KAFKA_OPTS | KAFKA_JVM_PERFORMANCE_OPTS | KAFKA_VERSION | KAFKA_LOG4J_*) continue ;;
    KAFKA_*) ;;
    *) continue ;;
  esac
  key=${name#KAFKA_}
  key=$(tr '[:upper:]' '[:lower:]' <<<"$key" | sed 's/___/-/g; s/__/\x01/g; s/_/./g; s/\x01/_/g')
  printf '%s=%s\n' "$key" "${entry#*=}"
done >"$properties"

libs=(/opt/kafka/libs/*.jar) # in one order always: an archive of classes (classes.sh) is good for the jars it was made of
# shellcheck disable=SC2206  # options, taken apart at their spaces
options=(${KAFKA_HEAP_OPTS:--Xmx1g -Xms256m} ${KAFKA_JVM_PERFORMANCE_OPTS:-} ${KAFKA_OPTS:-})
options+=(-cp "$(IFS=: && echo "${libs[*]}")" -Dlog4j2.configurationFile=/opt/kafka/config/log4j2.properties)
if [ -e /opt/kafka/classes.jsa ]; then options+=(-XX:SharedArchiveFile=/opt/kafka/classes.jsa -Xshare:auto); fi

# A broker that comes back has formatted its storage: the file is written last.
if [ ! -e "${KAFKA_LOG_DIRS%%,*}/meta.properties" ]; then
  java "${options[@]}" kafka.tools.StorageTool format --ignore-formatted \
    --cluster-id "${CLUSTER_ID:-5L6g3nShT-eMCtK--X86sw}" --config "$properties"
fi
exec java "${options[@]}" kafka.Kafka "$properties" # exec: SIGTERM is for the broker
