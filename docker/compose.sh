#!/usr/bin/env bash
# docker compose, v2 or v1, on compose.yaml with the images that are there or are built here.
set -euo pipefail
cd "$(dirname "$0")"
# shellcheck source-path=SCRIPTDIR source=lib.sh
. ./lib.sh

./engine.sh
if docker compose version >/dev/null 2>&1; then
  compose=(docker compose)
else
  need docker-compose docker-compose || fail "neither 'docker compose' nor docker-compose is here: install one"
  compose=(docker-compose)
fi

case ${1:-} in
  up | run | create | start)
    WINDROW_KAFKA_IMAGE=$(./kafka-image.sh)
    WINDROW_JOB_IMAGE=$(./job-image.sh)
    export WINDROW_KAFKA_IMAGE WINDROW_JOB_IMAGE
    ;;
esac
exec "${compose[@]}" --project-name windrow --file compose.yaml "$@"
