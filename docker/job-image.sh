#!/usr/bin/env bash
# Builds the image of a Spark job from this tree and prints its name. What has not changed is taken from the last build.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source-path=SCRIPTDIR source=lib.sh
. docker/lib.sh

image=windrow/job:latest
python=${WINDROW_PYTHON:-$PWD/.venv/bin/python}
answers || fail "no container engine answers: run docker/engine.sh first"
command -v "$python" >/dev/null || fail "no $python: run make .venv first"

base=$(docker/debian.sh)
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
cp -r docker/job/Dockerfile pyproject.toml requirements.lock examples "$context"
# One time for all files of the wheel: the same tree makes the same wheel.
SOURCE_DATE_EPOCH=315532800 quietly "$python" -m build --wheel --no-isolation --outdir "$context" .
rm -rf build

# Where this machine's pip gets its packages, and whom it trusts.
settings=$("$python" -m pip config list)
setting() { sed -n "s|^[^.]*\.$1='\(.*\)'\$|\1|p" <<<"$settings" | tail -n 1; }
{
  echo "[global]"
  for option in index-url extra-index-url trusted-host proxy timeout; do
    value=$(setting "$option")
    [ -z "$value" ] || echo "$option = $value"
  done
  authorities=$(setting cert)
  if [ -n "$authorities" ]; then
    cp "$authorities" "$context/authorities.pem"
    echo "cert = /authorities.pem"
  fi
} >"$context/pip.conf"
say "building $image: the first time fetches Spark"
quietly docker build --network=host --build-arg "BASE=$base" --tag "$image" "$context"
echo "$image"
