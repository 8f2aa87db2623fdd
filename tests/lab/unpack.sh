#!/usr/bin/env bash
# Unpack packages of a Debian release, with what they depend on, into a directory, and install none of them.
#
#   tests/lab/unpack.sh SUITE PACKAGE...      prints the directory as its last line
#
# It lies in $HOSTTUNE_LAB (default: .lab beside the Makefile), so that a second run finds it. Needs root and mmdebstrap;
# packages come from the machine's own apt sources, those of another release from the same places.
set -euo pipefail
export LC_ALL=C

cache=${HOSTTUNE_LAB:-$(cd "$(dirname "$0")/../.." && pwd)/.lab}
suite=$1
shift
key=$({ cat "$0"; echo "$suite" "$@"; } | sha256sum | cut -c1-16)
root=$cache/unpacked-$suite-$key
mkdir -p "$cache"
exec 9>"$cache/unpacking"
flock -w 1500 9
if [ -d "$root" ]; then echo "$root"; exit 0; fi

# shellcheck source=/dev/null
own=$(. /etc/os-release && echo "${VERSION_CODENAME:?}")
work=$(mktemp -d "$cache/unpacking-XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
sources() {
  apt-get indextargets --no-release-info --format '$(REPO_URI) $(CODENAME) $(RELEASE) $(COMPONENT)' \
    'Created-By: Packages' | awk -v own="$own" -v suite="$suite" '$3 ~ "^" own { sub(own, suite, $3); print "deb", $1, $3, $4 }' |
    sort -u
}
sources >"$work/sources"
[ -s "$work/sources" ] || { apt-get update -qq; sources >"$work/sources"; }
apt-config dump | grep '^Acquire' | grep -v IndexTargets >"$work/acquire"
mmdebstrap --quiet --mode=root --variant=extract --include="base-files,base-passwd,coreutils,util-linux,$(IFS=,; echo "$*")" --aptopt="$work/acquire" \
  "$suite" "$work/root" "$work/sources"
chmod 755 "$work/root"
# What its programs look users up in, and what a package makes when it is installed.
cp "$work/root/usr/share/base-passwd/passwd.master" "$work/root/etc/passwd"
cp "$work/root/usr/share/base-passwd/group.master" "$work/root/etc/group"
mv "$work/root" "$root"
echo "$root"
