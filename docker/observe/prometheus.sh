#!/usr/bin/env bash
# Sees to it that Prometheus and promtool are here, for the tests of metrics: from Debian's package where that can be installed.
set -euo pipefail
cd "$(dirname "$0")"
# shellcheck source-path=SCRIPTDIR source=../lib.sh
. ../lib.sh

{ need prometheus prometheus && need promtool prometheus; } ||
  fail "the tests of metrics need Prometheus: install it (Debian: apt install prometheus)"
