#!/usr/bin/env bash
# Prints the name of an image with a Kafka broker: WINDROW_KAFKA_IMAGE, else apache/kafka where a registry is reached,
# else one of the same shape that is built here from Debian's packages and Maven's. What is there is taken as it is.
set -euo pipefail
cd "$(dirname "$0")"
# shellcheck source-path=SCRIPTDIR source=lib.sh
. ./lib.sh

[ -z "${WINDROW_KAFKA_IMAGE:-}" ] || answer "$WINDROW_KAFKA_IMAGE"
answers || fail "no container engine answers: run docker/engine.sh first"

version=$(sed -n 's|.*<kafka.version>\(.*\)</kafka.version>.*|\1|p' kafka/pom.xml)
official=apache/kafka:$version
ours=windrow/kafka:$version-$(hash_of debian.sh kafka/*)

have_image "$official" && answer "$official"
have_image "$ours" && answer "$ours"

exec 9>"${WINDROW_ENGINE_RUN:-/tmp}/windrow-image-$(id -u).lock"
flock 9 # two runs at once: the second finds what the first has pulled or built
have_image "$official" && answer "$official"
have_image "$ours" && answer "$ours"

if reached "$official"; then
  say "pulling $official"
  docker pull --quiet "$official" >&2
  answer "$official"
fi

say "no registry has $official: building $ours"
base=$(./debian.sh)
need mvn maven || fail "Kafka's jars are fetched by Maven: install it"
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
cp kafka/* "$context"
say "fetching Kafka $version and what it needs, by Maven"
quietly mvn --batch-mode -f kafka/pom.xml dependency:copy-dependencies "-Djars=$context/jars"
say "building the image"
quietly docker build --network=host --build-arg "BASE=$base" --tag "$ours" "$context" # apt sees the network as we do
answer "$ours"
