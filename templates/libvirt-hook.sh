#!/bin/sh
# Written by hosttune, whole; do not edit: `hosttune revert` takes it away.
#
# libvirt calls this as: hosttune GUEST OPERATION SUB-OPERATION EXTRA, with the guest's definition on standard input
# (https://libvirt.org/hooks.html). "prepare" comes before every start, also a restore and an incoming migration, and
# before any device is touched. A failure here makes libvirt refuse the start: a start that is not recorded would leave a
# statement valid that is not. Which function an interface of a network has (a pool of virtual functions) libvirt decides
# after that: the definition has it at "start", before QEMU runs.
folder=@STATE@/handover
starts=$folder/starts
quarantined=$folder/quarantined
test_guest=$folder/test-guest
umask 077
set -f
definition=$(cat)
case "$2" in
prepare) only= ;;
start) only=interface ;;
*) exit 0 ;;
esac

fail() {
    echo "hosttune: guest $guest: $1" >&2
    exit 1
}

# One word for each host device: the address of a function, or mdev: and a UUID; * for an address that lacks a part.
# Only what is in <source> is of the host. libvirt writes addresses as domain='0x0000' bus='0x41' and so on.
devices_of() {
    awk -v only="$only" '
        function part(name) {
            if (!match($0, "[ \t\n]" name "=[\"\047](0x)?[0-9a-fA-F-]+")) return ""
            found = substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3)
            sub(/^0x/, "", found)
            return tolower(found)
        }
        BEGIN { RS = "<" }
        /^interface[ \t\n>]/ { within = "interface" }
        /^\/interface[ \t\n]*>/ { within = "" }
        only != "" && within != only { next }
        /^source[ \t\n>]/ { inside = ($0 !~ /\/>/) }
        /^\/source[ \t\n]*>/ { inside = 0 }
        inside && /^address[ \t\n]/ {
            if (part("uuid") != "") print "mdev:" part("uuid")
            else if (part("slot") != "" || part("domain") != "") {
                if (part("domain") == "" || part("bus") == "" || part("slot") == "" || part("function") == "") print "*"
                else print part("domain") ":" part("bus") ":" part("slot") "." part("function")
            }
        }'
}

# The function that a virtual function or a mediated device belongs to; nothing for any other function.
parent_of() {
    case $1 in
    mdev:*)
        place=$(readlink -f "/sys/bus/mdev/devices/${1#mdev:}") || place=
        place=${place%/*}
        ;;
    *) place=$(readlink "/sys/bus/pci/devices/$1/physfn") ;;
    esac
    echo "${place##*/}"
}

# The virtual functions of a function: who has it can reach what they have left.
functions_of() {
    for name in $(ls "/sys/bus/pci/devices/$1" 2>/dev/null); do
        case $name in
        virtfn*)
            place=$(readlink "/sys/bus/pci/devices/$1/$name")
            echo "${place##*/}"
            ;;
        esac
    done
}

# A hand-over's own test guest may have the quarantined devices that it is to test: its file has its name and UUID, then
# the devices. hosttune makes both for each start anew, and removes the file with the guest.
is_tested() {
    [ -e "$test_guest" ] || return 1
    read -r name uuid <"$test_guest" || return 1
    [ -n "$uuid" ] || return 1
    [ "$guest" = "$name" ] || return 1
    printf '%s' "$definition" | grep -qF "<uuid>$uuid</uuid>" || return 1
    grep -qxF -e "$1" "$test_guest"
}

refuse_quarantined() {
    [ -e "$quarantined" ] || return 0
    if [ "$1" = "*" ]; then
        [ -s "$quarantined" ] && fail "one of its devices cannot be read, and devices of this host are quarantined"
        return 0
    fi
    grep -qxF -e "$1" "$quarantined"
    case $? in
    0) is_tested "$1" || fail "$1 is quarantined: see hosttune handover status" ;;
    1) ;;
    *) fail "cannot read $quarantined" ;;
    esac
}

# A short write to the end of a file is whole, so that starts at the same time need no lock.
record() {
    printf '%s %s %s %s\n' "$1" "$2" "$when" "$guest" >>"$starts" || fail "its start cannot be recorded in $starts"
}

mkdir -p "$folder" # before the first hand-over there is none; a failure shows when the line is written
guest=$(printf '%s' "$1" | tr -s '[:space:]' ' ')
when=$(date -u +%Y-%m-%dT%H:%M:%SZ)
devices=$(printf '%s' "$definition" | devices_of) || fail "its devices cannot be read"
lines=
for device in $devices; do
    parent=$(parent_of "$device")
    case $device in
    mdev:*) [ -n "$parent" ] || lines="$lines *,guest" ;;
    *) lines="$lines $device,guest" ;;
    esac
    # A mediated device may itself belong to a virtual function.
    while [ -n "$parent" ]; do
        lines="$lines $parent,function"
        parent=$(parent_of "$parent")
    done
done
for line in $lines; do
    refuse_quarantined "${line%,*}"
done
for device in $devices; do
    for function in $(functions_of "$device"); do
        refuse_quarantined "$function"
    done
done
for line in $lines; do
    record "${line%,*}" "${line#*,}"
done
exit 0
