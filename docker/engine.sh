#!/usr/bin/env bash
# Sees to it that a container engine answers. Nothing happens where one does.
#
# Elsewhere, as root on Debian, docker.io is installed and dockerd started in the background; where the kernel lacks
# iptables, bridges or overlayfs it is started without them. DOCKER_HOST is somebody else's engine: never started.
set -euo pipefail
cd "$(dirname "$0")"
# shellcheck source-path=SCRIPTDIR source=lib.sh
. ./lib.sh

run=${WINDROW_ENGINE_RUN:-/var/run}
log=${WINDROW_ENGINE_LOG:-/var/log/dockerd.log}
wait_s=${WINDROW_ENGINE_WAIT:-60}

give_up() {
  {
    echo "docker: no container engine answers, and $1."
    echo "The Kafka tests need one. Either"
    echo "  - start Docker here, or name one that runs: export DOCKER_HOST=..."
    echo "  - run as root on Debian or Ubuntu: this script then installs and starts docker.io"
    echo "  - name a Kafka broker that runs: make test WINDROW_KAFKA=host:port"
    echo "  - leave the Kafka tests out, on purpose: make test KAFKA=none"
  } >&2
  exit 1
}

# A pid file outlives a reboot, and its number may be somebody else's by now: dockerd would take that for itself,
# and for its containerd it would even end that process.
forget_stale_pid() {
  local file=$1 name=$2 pid
  [ -e "$file" ] || return 0
  pid=$(cat "$file")
  if [ "$(cat "/proc/${pid:-none}/comm" 2>/dev/null)" != "$name" ]; then
    say "removing $file of a $name that no longer runs"
    rm -f "$file"
  fi
}

# start FLAGS...: true once it answers, false once it has ended or the wait is over.
start() {
  forget_stale_pid "$run/docker.pid" dockerd
  forget_stale_pid "$run/docker/containerd/containerd.pid" containerd
  echo "== dockerd $*" >>"$log"
  setsid dockerd "$@" </dev/null >>"$log" 2>&1 9>&- &
  local pid=$! waited=0
  while [ "$waited" -lt "$((wait_s * 5))" ]; do
    answers && return
    kill -0 "$pid" 2>/dev/null || { answers; return; } # it may have come and gone in between
    sleep 0.2
    waited=$((waited + 1))
  done
  kill "$pid"
  wait "$pid" || true
  return 1
}

answers && exit
[ -z "${DOCKER_HOST:-}" ] || give_up "DOCKER_HOST=$DOCKER_HOST is not ours to start"
[ "$(id -u)" = 0 ] || give_up "only root may start one"

exec 9>"$run/windrow-engine.lock"
flock 9 # two runs at once: the second finds what the first has started
answers && exit

need dockerd docker.io || give_up "docker.io cannot be installed here"
need docker docker-cli || give_up "docker-cli cannot be installed here"
answers && exit # the package started it

if [ -d "${WINDROW_SYSTEMD:-/run/systemd/system}" ]; then
  systemctl start docker || true
  answers && exit
fi

for storage in "" --storage-driver=vfs; do
  for network in "" "--iptables=false --ip6tables=false" "--bridge=none --iptables=false --ip6tables=false"; do
    # shellcheck disable=SC2086  # flags, none of which holds a space
    if start $storage $network; then
      say "started dockerd${storage:+ $storage}${network:+ $network}"
      exit
    fi
  done
done
tail -n 20 "$log" >&2
give_up "dockerd does not start: see $log"
