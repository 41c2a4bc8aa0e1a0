# shellcheck shell=bash
# Sourced by the scripts here. Progress goes to stderr: standard output is for answers.

say() { echo "docker: $*" >&2; }
fail() {
  echo "docker: $*" >&2
  exit 1
}
answer() {
  echo "$1"
  exit
}
answers() { docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

# need COMMAND PACKAGE: install a Debian package for a command that is missing. False where that is not ours to do.
need() {
  command -v "$1" >/dev/null && return
  may_install || return 1
  say "installing $2"
  apt_get install "$2" || { apt_get update && apt_get install "$2"; }
}
may_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }
# One at a time: apt refuses a second one that runs meanwhile.
apt_get() {
  DEBIAN_FRONTEND=noninteractive flock "${TMPDIR:-/tmp}/windrow-apt.lock" \
    apt-get -o DPkg::Lock::Timeout=300 -qq -y --no-install-recommends "$@" </dev/null >/dev/null
}
reached() {
  local limit=()
  if command -v timeout >/dev/null; then limit=(timeout 30); fi
  ${limit[@]+"${limit[@]}"} docker manifest inspect "$1" >/dev/null 2>&1
}
have_image() { docker image inspect "$1" >/dev/null 2>&1; }

# hash_of FILES...: changes when their contents or names do.
hash_of() { cksum "$@" | cksum | cut -d' ' -f1; }

# quietly COMMAND...: its output shows where it fails.
quietly() {
  local log
  log=$(mktemp)
  "$@" >"$log" 2>&1 || {
    tail -n 30 "$log" >&2
    fail "failed, all of it in $log: $*"
  }
  rm -f "$log"
}
