#!/usr/bin/env bash
# Sees to it that Chromium and axe-core are there, which the tests of the page need. Nothing happens where they are.
set -euo pipefail
cd "$(dirname "$0")"
# shellcheck source-path=SCRIPTDIR source=lib.sh
. ./lib.sh

version=4.14.1
shared=${XDG_CACHE_HOME:-$HOME/.cache}/windrow
axe=$shared/axe-core-$version.js

need chromium chromium || fail "the tests of the page need chromium: install it (Debian: apt install chromium)"
[ -e "$axe" ] && exit
need npm npm || fail "the tests of the page need axe-core $version as $axe: install npm, or copy its axe.min.js there"
mkdir -p "$shared"
folder=$(mktemp -d "$shared/axe-XXXXXX")
trap 'rm -rf "$folder"' EXIT
say "fetching axe-core $version"
(cd "$folder" && npm pack --silent "axe-core@$version" >/dev/null && tar -xzf axe-core-*.tgz)
mv "$folder/package/axe.min.js" "$axe"
