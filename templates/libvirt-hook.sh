#!/bin/sh
# Written by hosttune, whole; do not edit: `hosttune revert` takes it away.
#
# libvirt calls this as: hosttune GUEST OPERATION SUB-OPERATION EXTRA, with the guest's definition on standard input
# (https://libvirt.org/hooks.html). "prepare" comes before every start, also a restore and an incoming migration, and
# before any device is touched. A failure here makes libvirt refuse the start: a start that is not recorded would leave a
# statement valid that is not. Which function an interface of a network has (a pool of virtual functions) libvirt decides
# after that: the definition has it at "start", before QEMU runs.
#
# Before the first start with a network function since it was last handed over, what it is like then is kept for its next
# hand-over. That only reads, takes 10 seconds at most, and never makes a start fail. `hosttune apply` calls this with the
# operation "look", for that alone, before it starts a guest. At "start" it is too late: libvirt has set the function.
#
# Before a start it also sets what apply has decided for the guest's devices: the partition of its GPUs, its vGPUs.
sys=/sys
pools=/run/libvirt/storage
folder=@STATE@/handover
starts=$folder/starts
quarantined=$folder/quarantined
test_guest=$folder/test-guest
at_start=@STATE@/at-start
looks=$folder/looks.$$
umask 077
set -f
definition=$(cat)
case $2 in
prepare | look) only= ;;
start) only=interface ;;
release)
    # What only this run of the guest held waits in hosttune's journal; the boot unit does it (docs/second-day.md). libvirt
    # waits for this script, and for the pipes of what it starts.
    if grep -qsxF -e "$1" "@STATE@/after-stop"; then
        systemctl --no-block restart hosttune-boot.service </dev/null >/dev/null 2>&1 &
    fi
    exit 0
    ;;
*) exit 0 ;;
esac

fail() {
    echo "hosttune: guest $guest: $1" >&2
    exit 1
}

# One word for each device of the host that the guest has: the address of a function; mdev: and a UUID; path: and a device
# node, or arg: if QEMU is told of it directly; volume: and a storage pool and its volume; net: and an interface; * for one
# that cannot be read. Only what is in <source>, or an argument to QEMU, is of the host. libvirt writes addresses as domain='0x0000' bus='0x41' and so on.
devices_of() {
    awk -v only="$only" '
        function written(name) {
            if (!match($0, "[ \t\n]" name "[ \t\n]*=[ \t\n]*(\"[^\"]*\"|\047[^\047]*\047)")) return ""
            found = substr($0, RSTART, RLENGTH - 1)
            sub(/^[^"\047]*["\047]/, "", found)
            return found
        }
        # A number as the kernel writes it, with at least `digits` digits; nothing for one that is not clearly one.
        function part(name, digits) {
            found = tolower(written(name))
            if (found !~ /^0x[0-9a-f]+$/ && found !~ /^[0-7]$/) return ""
            sub(/^0x/, "", found)
            sub(/^0+/, "", found)
            while (length(found) < digits) found = "0" found
            return found
        }
        function node(kind, place) {
            if (place ~ /[&*?[ \t\n]/) print (place ~ /^\/dev/ ? "*" : "")
            else print kind place
        }
        function argument(text) {
            gsub(/&quot;|&apos;/, "\"", text)
            rest = tolower(text)
            while (match(rest, /[0-9a-f]*:?[0-9a-f][0-9a-f]:[0-9a-f][0-9a-f]\.[0-7]/)) {
                found = substr(rest, RSTART, RLENGTH)
                rest = substr(rest, RSTART + RLENGTH)
                sub(/^:/, "", found)
                print (found ~ /:.*:/ ? found : "0000:" found)
            }
            rest = tolower(text)
            if (match(rest, /mdev\/devices\/[0-9a-f-]+/)) print "mdev:" substr(rest, RSTART + 13, RLENGTH - 13)
            while (match(text, /\/dev\/[^,"& \t]+/)) {
                print "arg:" substr(text, RSTART, RLENGTH)
                text = substr(text, RSTART + RLENGTH)
            }
        }
        BEGIN { RS = "<" }
        /^interface[ \t\n>]/ { within = "interface" }
        /^disk[ \t\n>]/ { within = "disk" }
        /^\/(interface|disk)[ \t\n]*>/ { within = "" }
        only != "" && within != only { next }
        /^[A-Za-z0-9_.-]+:arg[ \t\n]/ { argument(written("value")) }
        /^source[ \t\n>]/ {
            inside = ($0 !~ /\/>/)
            if (within != "" && written("dev") ~ /^\//) node("path:", written("dev"))
            else if (within == "interface" && written("dev") != "") node("net:", written("dev"))
            if (within == "disk" && written("file") != "") node("path:", written("file"))
            if (within == "disk" && written("volume") != "") {
                found = written("pool") ":" written("volume")
                print (found ~ /[&*?[ \t\n]|\/.*:/ ? "path:/dev/pool" : "volume:" found)
            }
        }
        /^\/source[ \t\n]*>/ { inside = 0 }
        inside && /^address[ \t\n]/ {
            if (written("uuid") != "") print "mdev:" tolower(written("uuid"))
            else if (written("slot") written("domain") written("function") != "") {
                domain = part("domain", 4); bus = part("bus", 2); slot = part("slot", 2); function_ = part("function", 1)
                print (domain == "" || bus == "" || slot == "" || function_ == "" ? "*" : domain ":" bus ":" slot "." function_)
            }
        }'
}

# The folders in sysfs of a block device, an interface or a vDPA device, and of all that it is made of; unknown for what
# cannot be told. A path of a multipath namespace is in the folder of its subsystem.
below() (
    place=$(readlink -f "$1") && [ -e "$place" ] || exit 0
    echo "$place"
    case $place in
    */nvme-subsystem/*)
        place=${place%%/nvme-subsystem/*}/nvme-subsystem/$(echo "${place#*/nvme-subsystem/}" | cut -d / -f 1)
        for name in $(ls "$place" | grep -x 'nvme[0-9]*'); do readlink -f "$place/$name"; done
        ;;
    */virtual/block/loop*) on "path:$(cat "$place/loop/backing_file" 2>/dev/null)" ;;
    */virtual/block/nbd* | */virtual/block/zd* | */virtual/block/*ram*) ;;
    */virtual/block/*) [ -n "$(ls "$place/slaves" 2>/dev/null)" ] || echo unknown ;;
    esac
    for name in $(ls "$place/slaves" 2>/dev/null); do below "$sys/class/block/$name"; done
    for name in $(ls "$place" | sed -n 's/^lower_//p'); do below "$sys/class/net/$name"; done
)

# What a device node, a volume or an interface is on: functions, and * for what cannot be told. A file is on nothing here:
# what the host has mounted is no tenant's. libvirt keeps the definition of each active pool, and must not be asked by a
# hook; a pool without a path is on a network.
on() {
    found=
    case $1 in volume:*)
        volume=${1#volume:}
        pool=$pools/${volume%%:*}.xml
        path=$(sed -n 's,.*<path>\(.*\)</path>.*,\1,p' "$pool" 2>/dev/null | head -n 1)
        [ -n "$path" ] || ! grep -qs "</pool>" "$pool" || return 0
        set -- "path:${path:-/dev/pool}/${volume#*:}"
        ;;
    esac
    node=$(readlink -f "${1#*:}") || node=${1#*:}
    [ ! -f "$node" ] || return 0
    case $1,$node in
    net:*) found=$(below "$sys/class/net/${1#net:}") ;;
    *,/dev/vhost-vdpa-*)
        for name in $(ls "$sys/bus/vdpa/devices"); do
            [ ! -e "$sys/bus/vdpa/devices/$name/${node##*/}" ] || found=$(below "$sys/bus/vdpa/devices/$name")
        done
        ;;
    *,/dev/*)
        found=$(below "$sys/class/block/${node#/dev/}")
        [ -n "$found" ] || [ "${1%%:*}" = arg ] || found=unknown
        ;;
    esac
    for place in $found; do
        [ "$place" != unknown ] || echo "*"
        echo "$place" | grep -oE '[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]' | tail -n 1
    done
}

# The function that a virtual function or a mediated device belongs to; nothing for any other function.
parent_of() {
    case $1 in
    mdev:*)
        place=$(readlink -f "$sys/bus/mdev/devices/${1#mdev:}") || place=
        place=${place%/*}
        ;;
    *) place=$(readlink "$sys/bus/pci/devices/$1/physfn") ;;
    esac
    echo "${place##*/}"
}

# The virtual functions of a function: who has it can reach what they have left.
functions_of() {
    for name in $(ls "$sys/bus/pci/devices/$1" 2>/dev/null); do
        case $name in
        virtfn*)
            place=$(readlink "$sys/bus/pci/devices/$1/$name")
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

# Whether there was a register that is not there any more: other files of a hand-over are. (hosttune.model.starts says which.)
is_lost() {
    [ ! -e "$folder/register.json" ] || return 1
    ! grep -qs ' hand-over ' "$starts" || return 0
    find "$folder" -path "$folder/transactions/*" -o -path "$folder/signed/*" -o -name 'statement-*' | grep -q .
}

# Read the list of the addresses that no guest may have. It counts only if it is whole, and says what the register says.
read_list() {
    held=$(awk '/"address":/ { split($0, part, "\""); address = part[4] } /"state": "quarantined"/ { print address }' \
        "$folder/register.json" 2>/dev/null | LC_ALL=C sort)
    listed=
    problem=
    if [ ! -e "$quarantined" ]; then
        if [ -e "$folder/register.json" ]; then problem="$quarantined is missing"; fi
    else
        text=$(cat "$quarantined") || fail "cannot read $quarantined"
        listed=$(printf '%s\n' "$text" | sed '$d')
        count=$(printf '%s\n' "$listed" | grep -cxE '[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]')
        if [ "$text" != "$(printf '%s' "${listed:+$listed
}end $count")" ] || [ "$(printf '%s' "$listed" | grep -c '')" != "$count" ]; then
            problem="$quarantined is not whole"
        elif [ "$listed" != "$held" ]; then
            problem="$quarantined is not what $folder/register.json says"
        fi
    fi
    if [ -z "$problem" ] && is_lost; then problem="$folder/register.json is lost"; fi
}

refuse_quarantined() {
    if [ "$1" = "*" ]; then
        [ -z "$listed" ] || fail "one of its devices cannot be told, and devices of this host are quarantined"
        return 0
    fi
    printf '%s\n' "$listed" | grep -qxF -e "$1" || return 0
    is_tested "$1" || fail "$1 is quarantined: see hosttune handover status"
}

# A short write to the end of a file is whole, so that starts at the same time need no lock.
record() {
    printf '%s %s %s %s\n' "$1" "$2" "$when" "$guest" >>"$starts" || fail "its start cannot be recorded in $starts"
}

# --- what network functions are like before the guest has them ---

# One part of a record: a path of the machine, or of a command's answer, then its lines, each after a space. A file that
# cannot be read and a command that fails have none.
part() {
    place=$1
    shift
    text=$("$@") || return 0
    printf ': %s\n' "$place"
    printf '%s\n' "$text" | sed 's/^/ /'
}

answer() {
    name=$1
    shift
    part "/.hosttune/commands/$name" timeout -k 1 5 "$@"
}

look_at_interface() {
    part "$1/net/$2/address" cat "$1/net/$2/address"
    for file in addr_assign_type phys_port_name phys_switch_id; do
        part "$sys/class/net/$2/$file" cat "$sys/class/net/$2/$file"
    done
    answer "ip-link-$2" ip -j -d link show dev "$2"
}

# A virtual function: its number, and what the interfaces of its physical function keep for it.
look_at_virtual() {
    for link in $(find "$2/" -maxdepth 1 -name 'virtfn*' -lname "*/$1" -printf '%f\n'); do
        echo "> $2/$link $sys/bus/pci/devices/$1"
    done
    for interface in $(ls "$2/net"); do
        look_at_interface "$2" "$interface"
    done
}

# A physical function: its addresses, and the configuration and the versions of its firmware. The elements of arrays are
# shown only if they are asked for by name.
look_at_physical() {
    at=$sys/bus/pci/devices/$1
    driver=$(readlink "$at/driver")
    [ -z "$driver" ] || echo "> $at/driver $sys/bus/pci/drivers/${driver##*/}"
    for interface in $(ls "$at/net"); do
        look_at_interface "$at" "$interface"
        answer "ethtool-P-$interface" ethtool -P "$interface"
        answer "ethtool-i-$interface" ethtool -i "$interface"
    done
    for rdma in $(ls "$at/infiniband"); do
        for file in node_guid sys_image_guid fw_ver; do
            part "$at/infiniband/$rdma/$file" cat "$at/infiniband/$rdma/$file"
        done
    done
    for program in mstconfig mlxconfig; do
        table=$(answer "$program-$1" "$program" -e -d "$1" q)
        [ -n "$table" ] || continue
        printf '%s\n' "$table"
        arrays=$(printf '%s\n' "$table" | awk '$NF ~ /^Array\[/ {
            at = 1
            while ($at ~ /^([*]|RO|[*]RO)$/) at++
            print $at substr($NF, 6)
        }')
        [ -z "$arrays" ] || answer "$program-arrays-$1" "$program" -e -d "$1" q $arrays
        break
    done
    answer "devlink-info-$1" devlink -j dev info "pci/$1"
    answer "devlink-param-$1" devlink -j dev param show "pci/$1"
}

look_at() {
    echo "hosttune-start 1"
    echo "at $when"
    echo "sizes $sizes"
    echo "guest $guest"
    for file in vendor device subsystem_vendor subsystem_device; do
        part "$sys/bus/pci/devices/$1/$file" cat "$sys/bus/pci/devices/$1/$file"
    done
    physical=$(readlink "$sys/bus/pci/devices/$1/physfn")
    if [ -n "$physical" ]; then
        look_at_virtual "$1" "$sys/bus/pci/devices/${physical##*/}"
    else
        look_at_physical "$1"
    fi
    echo end
}

# The VFIO nodes that processes have open, and a last line if that can be told.
opened() (
    set +f
    find --version >/dev/null || exit 0
    find /proc/[0-9]*/fd -lname '/dev/vfio/*' -printf '%l\n'
    echo looked
)

# Whether a guest may have a function now, by what was open before and after it was read.
is_taken() {
    [ "$(grep -csx looked "$2")" = 2 ] || return 0
    group=$(readlink "$sys/bus/pci/devices/$1/iommu_group")
    nodes=$(ls "$sys/bus/pci/devices/$1/vfio-dev" 2>/dev/null | sed 's,^,devices/,')
    for name in "${group##*/}" "noiommu-${group##*/}" $nodes; do
        grep -qsxF -e "/dev/vfio/$name" "$2" && return 0
    done
    return 1
}

# An empty record in place of one that is not whole, or was read too late: later starts are not looked at. What reads is
# another process, without libvirt's pipes, for which libvirt would wait: so this function must not be redirected either.
look_at_all() {
    wanted=
    for line in $lines; do
        case $(cat "$sys/bus/pci/devices/${line%,*}/class" 2>/dev/null),${line#*,} in 0x02*,guest) ;; *) continue ;; esac
        grep -qsxF -e "${line%,*}" "$quarantined" || [ -e "$folder/start-${line%,*}" ] || wanted="$wanted ${line%,*}"
    done
    [ -n "$wanted" ] && mkdir "$looks" 2>/dev/null || return 0
    sizes="$(cat "$starts" 2>/dev/null | wc -c) $(cat "$folder/own-starts" 2>/dev/null | wc -c)"
    {
        opened >"$looks/opened"
        for device in $wanted; do
            look_at "$device" >"$looks/$device" &
        done
        wait
        opened >>"$looks/opened"
        printf "" >"$looks/ended"
    } </dev/null >/dev/null 2>&1 &
    tenths=0
    while [ ! -e "$looks/ended" ] && [ $tenths -lt 100 ]; do
        sleep 0.1
        tenths=$((tenths + 1))
    done
    for device in $wanted; do
        if [ ! -e "$looks/ended" ] || is_taken "$device" "$looks/opened"; then
            rm -f "$looks/$device"
            printf "" >"$looks/$device" # not ":", whose failure would end a shell
        fi
        mv "$looks/$device" "$folder/start-$device" 2>/dev/null
    done
    rm -rf "$looks"
}

# --- what its devices need on the host ---

# The partitions of the Fabric Manager: id, whether it is active, its module ids. fmpm's writer sorts the names of an
# object, so a partition's id comes last.
partitions() {
    timeout -k 1 8 "$@" -l | tr -d ' \t\n' | awk '
        BEGIN { RS = "," }
        match($0, /"physicalId":[0-9]+/) {
            number = substr($0, RSTART + 13, RLENGTH - 13) + 0
            for (at = count++; at > 0 && modules[at - 1] > number; at--) modules[at] = modules[at - 1]
            modules[at] = number
        }
        match($0, /"isActive":[01]/) { active = substr($0, RSTART + 11, 1) }
        match($0, /"partitionId":[0-9]+/) {
            list = ""
            for (at = 0; at < count; at++) list = list (at ? "," : "") modules[at]
            print substr($0, RSTART + 14, RLENGTH - 14), active, list
            count = 0
        }'
}

did() {
    printf '%s %s %s\n' "$when" "$guest" "$1" >>"$at_start.log"
}

# ID MODULES GPUS OTHERS CLIENT...: the guest has exactly the GPUs of a partition, and it is active.
set_partition() {
    id=$1 members=$2 own=$3 others=$4
    shift 4
    for gpu in $(echo "$own" | tr , ' '); do
        case " $reached " in *" $gpu "*) ;; *) echo "it has not $gpu, which is of partition $id" && return 1 ;; esac
    done
    for gpu in $(echo "${others#-}" | tr , ' '); do
        case " $reached " in *" $gpu "*) echo "it has $gpu, which is not of partition $id" && return 1 ;; esac
    done
    asked=
    while [ -d "$work" ]; do # until the start is refused
        rows=$(partitions "$@")
        case $(printf '%s\n' "$rows" | grep "^$id ") in
        "$id 1 $members") return 0 ;;
        "$id 0 $members")
            if [ -z "$asked" ] && [ -d "$work" ]; then
                other=$(printf '%s\n' "$rows" | awk -v own="$members" '
                    BEGIN { split(own, part, ","); for (at in part) mine[part[at]] = 1 }
                    $2 == 1 { split($3, part, ","); for (at in part) if (part[at] in mine) { print $1; exit } }')
                [ -z "$other" ] || { echo "partition $other is active and has GPUs of partition $id" && return 1; }
                asked=yes
                timeout -k 1 10 "$@" -a "$id" >/dev/null || { echo "fmpm -a $id failed" && return 1; }
                did "partition $id activated"
            fi
            ;;
        "") ;; # the Fabric Manager does not answer yet
        *) echo "partition $id has not module ids $members now" && return 1 ;;
        esac
        sleep 1
    done
    return 1
}

# FUNCTION TYPE
set_type() {
    file=$sys/bus/pci/devices/$1/nvidia/current_vgpu_type
    now=$(cat "$file") || return 1
    if [ "$now" = 0 ] && [ -d "$work" ]; then
        printf '%s' "$2" >"$file" || { echo "$1 cannot get vGPU type $2" && return 1; }
        did "$1 got vGPU type $2"
        now=$(cat "$file")
    fi
    [ "$now" = "$2" ] || { echo "$1 has vGPU type $now, not $2" && return 1; }
}

# UUID FUNCTION TYPE
set_mediated() {
    if [ ! -e "$sys/bus/mdev/devices/$1" ]; then
        printf '%s' "$1" >"$sys/bus/pci/devices/$2/mdev_supported_types/$3/create" ||
            { echo "$1 cannot be made as $3 on $2" && return 1; }
        did "$1 made as $3 on $2"
    fi
    now=$(readlink "$sys/bus/mdev/devices/$1/mdev_type")
    [ "${now##*/}" = "$3" ] || { echo "$1 is of type ${now##*/}, not $3" && return 1; }
}

# apply has decided it, and written it down for the guests that it does not start itself just now; a reboot or a restart
# of a service may have undone it. What is not set is set; what is otherwise is not ours, and the start is refused.
set_up() {
    while read -r name kind words; do
        [ -d "$work" ] || return 1
        [ "$name" = "$guest" ] || continue
        case $kind in
        fabric-partition) set_partition $words ;;
        vgpu-type) set_type $words ;;
        vgpu-mdev) set_mediated $words ;;
        esac || return 1
    done <"$at_start"
}

# libvirt waits for this, so it ends within 20 seconds, whatever hangs. What was begun may still come to its end, and the next
# hosttune apply finds it done; nothing else is begun once the start is refused.
set_up_in_time() {
    work=$at_start.$$
    mkdir "$work" || fail "cannot write $work"
    {
        set_up >"$work/said" 2>&1 && printf "" >"$work/done"
        printf "" >"$work/ended"
    } </dev/null >/dev/null 2>&1 &
    if ! timeout 18 sh -c 'until [ -e "$0" ]; do sleep 0.1; done' "$work/ended"; then
        rm -rf "$work"
        fail "what its devices need is not ready within 20 seconds: hosttune apply, then start it"
    fi
    [ -e "$work/done" ] || why=$(grep -v '^$' "$work/said" | tail -n 1)
    [ -n "$why" ] || [ -e "$work/done" ] || why="what its devices need cannot be set"
    rm -rf "$work"
    [ -z "$why" ] || fail "$why: hosttune apply, then start it"
}

mkdir -p "$folder" # before the first hand-over there is none; a failure shows when the line is written
guest=$(printf '%s' "$1" | tr -s '[:space:]' ' ')
when=$(date -u +%Y-%m-%dT%H:%M:%SZ)
devices=$(printf '%s' "$definition" | devices_of) || fail "its devices cannot be read"
lines=
add() {
    case " $lines " in *" $1 "*) ;; *) lines="$lines $1" ;; esac
}
unknown=
reached=
for device in $devices; do
    how=guest
    case $device in
    path:* | arg:* | net:* | volume:*)
        how=function
        places=$(on "$device")
        ;;
    *) places=$device ;;
    esac
    for place in $places; do
        if [ "$place,$how" = "*,function" ]; then
            unknown=yes
            continue
        fi
        reached="$reached $place"
        parent=$(parent_of "$place")
        case $place in
        mdev:*) [ -n "$parent" ] || add "*,guest" ;;
        *) add "$place,$how" ;;
        esac
        # A mediated device may itself belong to a virtual function.
        while [ -n "$parent" ]; do
            add "$parent,function"
            parent=$(parent_of "$parent")
        done
    done
done
if [ "$2" != look ] && [ -n "$lines$unknown" ]; then
    read_list
    if [ -n "$problem" ]; then # hosttune may be writing the two just now
        sleep 1
        read_list
    fi
    [ -z "$problem" ] || fail "$problem: no guest with a device may start (docs/handover.md)"
    [ -z "$unknown" ] || refuse_quarantined "*"
    for line in $lines; do
        refuse_quarantined "${line%,*}"
    done
    for device in $reached; do
        for function in $(functions_of "$device"); do
            refuse_quarantined "$function"
        done
    done
fi
why=
if [ "$2" = prepare ] && [ -e "$at_start" ]; then set_up_in_time; fi
[ "$2" = start ] || look_at_all
[ "$2" = look ] && exit 0
for line in $lines; do
    record "${line%,*}" "${line#*,}"
done
exit 0
