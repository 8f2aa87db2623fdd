#!/bin/sh
# Installs what hosttune wants of this guest: a script, its table and a unit that runs it at every boot. Writes whole
# files of its own and nobody else's; a second run changes nothing.
#
#   sh install.sh [--dry-run | --remove]
#
# --dry-run says what would be written; --remove puts back what was changed and removes the files.
# HOSTTUNE_GUEST_ROOT is a prefix for every path: to install into an image that is not running (and for tests).
set -u

root=${HOSTTUNE_GUEST_ROOT:-}
here=$(cd "$(dirname "$0")" && pwd) || exit 1
unit=hosttune-guest.service
mode=install
case ${1:-} in
'') ;;
--dry-run) mode=dry ;;
--remove) mode=remove ;;
*)
    echo "usage: install.sh [--dry-run | --remove]" >&2
    exit 2
    ;;
esac

# systemd runs here, and on this root.
with_systemd() { [ -z "$root" ] && [ -d /run/systemd/system ]; }

# put FILE DESTINATION MODE: a whole file, by way of a new one beside it, so that no half of it is ever read.
put() {
    if [ -f "$2" ] && cmp -s "$here/$1" "$2"; then
        printf 'already: %s\n' "$2"
        return 0
    fi
    if [ "$mode" = dry ]; then
        printf 'would write: %s\n' "$2"
        return 0
    fi
    mkdir -p "${2%/*}" && cp "$here/$1" "$2.new" && chmod "$3" "$2.new" && mv "$2.new" "$2" || {
        printf 'failed: %s\n' "$2" >&2
        rm -f "$2.new"
        return 1
    }
    printf 'done: %s\n' "$2"
}

take_away() {
    [ -e "$1" ] || [ -L "$1" ] || return 0
    rm -f "$1" && printf 'removed: %s\n' "$1"
}

# put_or_drop FILE DESTINATION MODE: as put; where this bundle has no such file, what an earlier one left goes.
put_or_drop() {
    if [ -f "$here/$1" ]; then
        put "$1" "$2" "$3"
    elif [ "$mode" = dry ]; then
        [ ! -e "$2" ] || printf 'would remove: %s\n' "$2"
    else
        take_away "$2"
    fi
}

tmpfiles=$root/etc/tmpfiles.d/hosttune-guest.conf
topology=$root/etc/hosttune-guest/virtualTopology.xml
shown=$root/run/nvidia-topologyd/virtualTopology.xml

# NCCL's file where NCCL looks for it: now, and by systemd-tmpfiles after every start. Only a link of ours is taken
# away again.
show_topology() {
    if [ -f "$topology" ] && [ "$mode" = install ]; then
        with_systemd && command -v systemd-tmpfiles >/dev/null 2>&1 && systemd-tmpfiles --create "$tmpfiles"
        if [ ! -e "$shown" ] && [ ! -L "$shown" ]; then
            mkdir -p "${shown%/*}" && ln -s ../../etc/hosttune-guest/virtualTopology.xml "$shown" || return 1
        fi
        [ "$(readlink "$shown")" = ../../etc/hosttune-guest/virtualTopology.xml ] ||
            printf 'left alone: %s is not of our making\n' "$shown"
    elif [ "$mode" != dry ] && [ "$(readlink "$shown" 2>/dev/null)" = ../../etc/hosttune-guest/virtualTopology.xml ]; then
        take_away "$shown"
    fi
}

if [ "$mode" = remove ]; then
    code=0
    if [ -f "$root/usr/local/sbin/hosttune-guest-apply" ]; then
        sh "$root/usr/local/sbin/hosttune-guest-apply" --restore || code=1
    fi
    if with_systemd && [ -f "/etc/systemd/system/$unit" ]; then
        systemctl disable --now "$unit" || code=1
    fi
    # A value that could not be put back stays recorded, and the script stays to try again.
    if [ "$code" -eq 0 ]; then
        take_away "$root/etc/systemd/system/$unit" || code=1
        take_away "$root/etc/hosttune-guest.conf" || code=1
        show_topology || code=1
        take_away "$tmpfiles" || code=1
        take_away "$topology" || code=1
        take_away "$root/etc/hosttune-guest/expected.json" || code=1
        take_away "$root/usr/local/sbin/hosttune-guest-apply" || code=1
        with_systemd && systemctl daemon-reload
    fi
    exit "$code"
fi

put hosttune-guest-apply "$root/usr/local/sbin/hosttune-guest-apply" 0755 || exit 1
put hosttune-guest.conf "$root/etc/hosttune-guest.conf" 0644 || exit 1
put hosttune-guest.service "$root/etc/systemd/system/$unit" 0644 || exit 1
put_or_drop expected.json "$root/etc/hosttune-guest/expected.json" 0644 || exit 1
put_or_drop virtualTopology.xml "$topology" 0644 || exit 1
put_or_drop hosttune-guest.tmpfiles "$tmpfiles" 0644 || exit 1
show_topology || exit 1
if [ "$mode" = dry ]; then
    sh "$here/hosttune-guest-apply" --dry-run --conf "$here/hosttune-guest.conf"
    exit
fi
if with_systemd; then
    systemctl daemon-reload && systemctl enable "$unit" && systemctl restart "$unit"
fi
