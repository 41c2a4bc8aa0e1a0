#!/usr/bin/env bash
# All of compose.yaml until the job has ended, as the job has. KILL=worker-2 kills that worker in the middle, and starts it again.
set -euo pipefail
cd "$(dirname "$0")"
# shellcheck source-path=SCRIPTDIR source=lib.sh
. ./lib.sh

worker=${KILL:-}
records=${KILL_AFTER:-6} # of the job's log: two a commit
trap './compose.sh down --volumes' EXIT
./compose.sh up --detach
job=$(./compose.sh ps -q job)
docker logs --follow "$job" &

running() { [ "$(docker inspect --format '{{.State.Running}}' "$job")" = true ]; }
written() {
  local number
  number=$(docker exec "$job" sh -c 'find /job -path "*/log/*" -type f | wc -l' 2>/dev/null) || number=0
  echo "${number:-0}"
}
if [ -n "$worker" ]; then
  while running && [ "$(written)" -lt "$records" ]; do sleep 0.2; done
  running || fail "the job ended before $worker could be killed: it wrote fewer than $records records (KILL_AFTER)"
  killed=$(./compose.sh ps -q "$worker")
  docker kill "$killed" >/dev/null
  say "killed $worker after $(written) records of the job's log"
  sleep 5
  docker start "$killed" >/dev/null
fi
exit "$(docker wait "$job")"
