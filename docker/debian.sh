#!/usr/bin/env bash
# Builds a Debian base image from this machine's own apt source, for where no image registry is reached.
# Prints the image's name. A base that is there already is taken as it is.
set -euo pipefail
cd "$(dirname "$0")"
# shellcheck source-path=SCRIPTDIR source=lib.sh
. ./lib.sh

name="windrow/debian:$(hash_of debian.sh /etc/os-release)"
if have_image "$name"; then
  echo "$name"
  exit
fi

# shellcheck source=/dev/null
. /etc/os-release
codename=${VERSION_CODENAME:?no VERSION_CODENAME in /etc/os-release}
need debootstrap debootstrap || fail "a base image is built with debootstrap: as root, on Debian"
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

# How this machine's apt reaches its sources: proxy, further authorities.
sources | awk -F'|' '{ print "deb", $3, $4, $5 }' | sort -u >"$root/etc/apt/sources.list"
apt-config dump --format '%F "%v";%n' Acquire::http Acquire::https |
  grep -iE '::(proxy|cainfo|verify-peer)' >"$root/etc/apt/apt.conf.d/90machine" || true
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt" 2>/dev/null || true

rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
tar -C "$root" --numeric-owner -c . | docker import - "$name" >/dev/null
echo "$name"
