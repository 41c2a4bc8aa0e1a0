#!/usr/bin/env bash
# Prints the name of a Debian base image: debian where a registry is reached, else one that is built here from this
# machine's own apt source. A base that is there already is taken as it is.
set -euo pipefail
cd "$(dirname "$0")"
# shellcheck source-path=SCRIPTDIR source=lib.sh
. ./lib.sh

official=debian:bookworm-slim
name="windrow/debian:$(hash_of debian.sh /etc/os-release)"
have_image "$official" && answer "$official"
have_image "$name" && answer "$name"
if reached "$official"; then
  docker pull --quiet "$official" >&2
  answer "$official"
fi

# shellcheck source=/dev/null
. /etc/os-release
codename=${VERSION_CODENAME:?no VERSION_CODENAME in /etc/os-release}
need debootstrap debootstrap || fail "no registry has $official, and building one takes root and debootstrap, on Debian"
apt_get update || say "apt-get update failed: going on with the lists that are there"

# apt reads its own configuration, in whichever format it is.
sources() {
  # shellcheck disable=SC2016  # apt's own variables
  apt-get indextargets --format '$(ORIGIN)|$(CODENAME)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)' 'Created-By: Packages' |
    awk -F'|' -v code="$codename" '$1 == "Debian" && ($2 == code || index($2, code "-") == 1)'
}
mirror=$(sources | awk -F'|' -v code="$codename" '$2 == code { print $3; exit }')
[ -n "$mirror" ] || fail "apt knows no Debian source of $codename: see apt-get indextargets"

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
say "debootstrap of $codename from this machine's apt source"
quietly debootstrap --variant=minbase --include=ca-certificates \
  --keyring=/usr/share/keyrings/debian-archive-keyring.gpg "$codename" "$root" "$mirror"

# How this machine's apt reaches its sources: proxy, authorities.
sources | awk -F'|' '{ print "deb", $3, $4, $5 }' | sort -u >"$root/etc/apt/sources.list"
apt-config dump --format '%F "%v";%n' Acquire::http Acquire::https |
  grep -i '::proxy' >"$root/etc/apt/apt.conf.d/90machine" || true
if sources | grep -q '|https:'; then
  cp "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" "$root/etc/ssl/machine.pem"
  echo 'Acquire::https::CaInfo "/etc/ssl/machine.pem";' >>"$root/etc/apt/apt.conf.d/90machine"
fi

rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
tar -C "$root" --numeric-owner -c . | docker import - "$name" >/dev/null
answer "$name"
