"""Whose is a drive, a part of which a guest has: as a block device, by whatever name, or through an interface.

One answer (`Host.index`) for plan, apply, adoption, lint and hand-over; the hook's own is in test_handover_hook.
Of the names that a drive has and the ways to have it `make test` takes a sample.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import applyroots
import pytest
from applyroots import STATE, Cli

import hosttune
from hosttune.discovery import discover
from hosttune.discovery.recording import write_capture
from hosttune.inventory.devices import identity, read_catalogue
from hosttune.journal.register import record_devices
from hosttune.machine.opening import open_system
from hosttune.model.clock import now_text
from hosttune.model.quarantine import DeviceRecord

root = applyroots.root
cli = applyroots.cli
plan = applyroots.plan

DRIVE, OTHER = "0000:1a:00.0", "0000:2b:00.0"
BLOCK = "sys/class/block"
GUEST = """<domain type='kvm'{ns}><name>{name}</name><uuid>5c2b0000-0000-4000-8000-0000000000{n}</uuid>
<memory unit='GiB'>8</memory><vcpu>2</vcpu><os><type arch='x86_64' machine='q35'>hvm</type></os>
<devices>{devices}</devices>{more}</domain>"""
NAMES = {
    "kernel": "/dev/nvme1n1",
    "partition": "/dev/nvme1n1p2",
    "by-id": "/dev/disk/by-id/nvme-Model_S6CKNE0T1",
    "by-path": "/dev/disk/by-path/pci-0000:1a:00.0-nvme-1-part2",
    "volume": "/dev/vg-0/home",
    "mapper": "/dev/mapper/vg--0-home",
    "array": "/dev/md/data",
    "any-link": "/srv/disks/guest",
    "not-normal": "/dev//disk/../nvme1n1",
}


def disk(path: str, kind: str = "block", attribute: str = "dev") -> str:
    return f"<disk type='{kind}' device='disk'><source {attribute}='{path}'/><target dev='vda' bus='virtio'/></disk>"


def domain(devices: str, name: str = "old", n: str = "aa", more: str = "", ns: str = "") -> str:
    return GUEST.format(devices=devices, name=name, n=n, more=more, ns=ns)


def define(cli: Cli, xml: str, name: str = "old") -> None:
    cli.root.put(f".hosttune/commands/virsh-dumpxml-{name}", xml)


@pytest.fixture
def named(cli: Cli) -> Cli:
    """The host with a partition, a volume and an array on one drive, and names for them as udev makes them."""
    top = cli.root.path
    real = "sys/devices/virtual/block"
    (top / f"{BLOCK}/nvme1n1").resolve().joinpath("nvme1n1p2").mkdir(parents=True)
    links = {
        f"{BLOCK}/nvme1n1p2": f"/{(top / f'{BLOCK}/nvme1n1').resolve().relative_to(top.resolve())}/nvme1n1p2",
        f"{BLOCK}/dm-3": f"/{real}/dm-3", f"{BLOCK}/md127": f"/{real}/md127", f"{BLOCK}/drbd0": f"/{real}/drbd0",
        "dev/disk/by-id/nvme-Model_S6CKNE0T1": "/dev/nvme1n1",
        "dev/disk/by-path/pci-0000:1a:00.0-nvme-1-part2": "/dev/nvme1n1p2",
        "dev/md/data": "/dev/md127", "srv/disks/guest": "/dev/disk/by-id/nvme-Model_S6CKNE0T1",
    }  # fmt: skip
    for name, target in links.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        depth = name.count("/")
        (top / name).symlink_to("../" * depth + target[1:])
    for below, above in (("nvme1n1p2", "md127"), ("md127", "dm-3")):
        (top / f"{real}/{above}/slaves/{below}").mkdir(parents=True)
    (top / f"{real}/drbd0").mkdir()
    cli.root.put(f"{real}/dm-3/dm/name", "vg--0-home\n")
    return cli


def quarantined(cli: Cli, address: str) -> None:
    host = discover(open_system(str(cli.root.path)))
    who = identity(read_catalogue(host), address, host)
    record = DeviceRecord(address=address, identity=who, state="quarantined", since=now_text(), why="hand-over 1")
    record_devices(str(cli.root.path / STATE), (record,))


def planned(cli: Cli, **guests: str) -> tuple[int, dict[str, Any]]:
    """The plan of an intent with these guests, each with the rest of its line."""
    intent = cli.root.path / "intent.yaml"
    lines = "".join(f"- {{name: {name}, gpus: 1, {text}}}\n" for name, text in guests.items())
    intent.write_text(f"version: 1\nprofile: none\nguests:\n{lines}")
    code, out, err = cli("plan", "-f", str(intent), "-o", "json")
    assert out, err
    return code, json.loads(out)


# --- a drive of a stopped guest ----------------------------------------------------------------------------------


@pytest.mark.sweep(most=10)
@pytest.mark.parametrize("path", NAMES.values(), ids=NAMES)
def test_no_other_guest_gets_a_drive_that_a_stopped_guest_has_as_a_disk(named: Cli, path: str) -> None:
    define(named, domain(disk(path)))
    assert "used by guest old, by /" in named("discover")[1]
    code, document = planned(named, a=f"nvme: ['{DRIVE}']")
    assert (code, document["guests"]) == (1, [])
    assert f"{DRIVE} is used by guest old, by /" in str(document["unplaced"][0]["why"])


def test_all_other_drives_are_given(named: Cli) -> None:
    assert planned(named, a=f"nvme: ['{DRIVE}']")[0] == 0
    define(named, domain(disk(NAMES["partition"])))
    _, document = planned(named, a="nvme: 7")
    given = [one["address"] for one in document["guests"][0]["devices"] if one["kind"] == "nvme"]
    assert (DRIVE in given, len(given)) == (False, 7)
    assert planned(named, a=f"nvme: ['{OTHER}']")[0] == 0


def test_another_partition_or_volume_of_the_drive_may_be_another_guests(named: Cli) -> None:
    """They share it, as on any host: neither plan nor lint says a word."""
    define(named, domain(disk(NAMES["volume"])))
    assert planned(named, a="disk: /dev/nvme1n1p3")[0] == 0
    path = named.root.path / "new.xml"
    path.write_text(domain(disk("/dev/nvme1n1p3"), "new", "bb"))
    _, out, _ = named("lint", str(path), "-o", "json")
    assert [one for one in json.loads(out)["findings"] if one["rule"] in ("device-shared", "device-quarantined")] == []


def test_guests_of_one_intent_do_not_get_each_others_drives(named: Cli) -> None:
    code, document = planned(named, a="disk: /dev/nvme1n1", b=f"nvme: ['{DRIVE}']")
    assert (code, [one["guest"] for one in document["unplaced"]]) == (1, ["b"])
    code, document = planned(named, a="disks: [/img/a, /dev/nvme1n1]", b=f"nvme: ['{DRIVE}']")
    assert (code, [one["guest"] for one in document["unplaced"]]) == (1, ["b"])
    _, document = planned(named, a=f"disk: {NAMES['volume']}", b="nvme: 7")
    assert DRIVE not in [one["address"] for guest in document["guests"] for one in guest["devices"]]


@pytest.mark.sweep(most=10)
@pytest.mark.parametrize("path", ["/dev/disk/by-id/nvme-gone", "/dev/drbd0", "/dev/nvme77n1"])
def test_a_disk_that_leads_nowhere_is_a_finding_and_refuses_an_erasure(named: Cli, path: str) -> None:
    define(named, domain(disk(path)))
    _, document = planned(named, a=f"nvme: ['{DRIVE}']")
    assert any(f"it may be {path} of guest old" in one["text"] for one in document["findings"])
    assert planned(named, a="nvme: 1")[0] == 1
    serial = named.root.get(f"sys/bus/pci/devices/{DRIVE}/nvme/nvme1/serial")
    code, _, err = named("handover", "--device", DRIVE, "--erase", serial, "--dry-run")
    assert (code, f"what these are on is unknown: {path} of guest old" in err.replace("\n", " ")) == (3, True)


def volume(name: str) -> str:
    return f"<disk type='volume'><source pool='vg' volume='{name}'/><target dev='vda' bus='virtio'/></disk>"


def test_a_volume_of_a_pool_may_be_on_any_drive(named: Cli) -> None:
    """Recorded by virsh alone, it leads to no path: nothing is planned onto the drives, erased or given away."""
    serial = named.root.get(f"sys/bus/pci/devices/{DRIVE}/nvme/nvme1/serial")
    erase = ("handover", "--device", DRIVE, "--erase", serial, "--dry-run")
    define(named, domain(volume("data")))
    _, document = planned(named, a=f"nvme: ['{DRIVE}']")
    assert any("it may be volume data of guest old" in one["text"] for one in document["findings"])
    code, _, err = named(*erase)
    assert (code, "what these are on is unknown: volume data of guest old" in err.replace("\n", " ")) == (3, True)
    define(named, domain(disk("/srv/data.img", "file", "file")))
    assert planned(named, a=f"nvme: ['{DRIVE}']")[0] == 0


def test_a_guest_with_a_volume_beside_a_quarantined_drive(named: Cli) -> None:
    quarantined(named, DRIVE)
    path = named.root.path / "new.xml"
    path.write_text(domain(volume("data"), "new", "bb"))
    _, out, _ = named("lint", str(path), "-o", "json")
    told = [one for one in json.loads(out)["findings"] if one["rule"] == "device-quarantined"]
    assert [(one["level"], "which device volume data is on" in str(one)) for one in told] == [("info", True)], told


# --- hand-over ---------------------------------------------------------------------------------------------------


def test_a_drive_is_erased_for_the_guest_that_is_named(named: Cli) -> None:
    serial = named.root.get(f"sys/bus/pci/devices/{DRIVE}/nvme/nvme1/serial")
    define(named, domain(disk(NAMES["by-id"])))
    words = ("handover", "--device", DRIVE, "--erase", serial, "--dry-run")
    code, _, err = named(*words)
    assert (code, "guest old has a part of it" in err, "--guest" in err) == (3, True, True)
    code, out, err = named(*words, "--guest", "old")  # the remedy that it names
    assert (code, f"erase serial number {serial}" in " ".join(out.split())) == (0, True), err
    define(named, domain(disk("/dev/nvme1n1p1"), "third", "cc"), "third")
    assert named(*words, "--guest", "old")[0] == 3, "the other guest's part would go with it"
    (named.root.path / ".hosttune/commands/virsh-dumpxml-third").unlink()
    define(
        named,
        domain(
            WAYS["nvme"],
            "fourth",
            "dd",
        ),
        "fourth",
    )
    assert named(*words, "--guest", "fourth")[0] == 3
    named.root.put(".hosttune/commands/virsh-domstate-old", "running\n")
    assert named(*words, "--guest", "old")[0] == 3


# --- quarantine --------------------------------------------------------------------------------------------------

WAYS = {
    "disk": disk(NAMES["by-id"]),
    "volume": disk(NAMES["volume"]),
    "as-a-file": disk("/dev/nvme1n1", "file", "file"),
    "nvme": "<disk type='nvme' device='disk'><source type='pci' namespace='1'><address domain='0x0000' bus='0x1a'"
    " slot='0x00' function='0x0'/></source><target dev='vda'/></disk>",
    "hostdev": "<hostdev mode='subsystem' type='pci'><source><address domain='0' bus='0x1A' slot='0' function='0'/>"
    "</source></hostdev>",
    "vfio-pci": "vfio-pci,host=1a:00.0",
    "vfio-pci-json": '{"driver":"vfio-pci","host":"0000:1A:00.0"}',
    "vfio-pci-sysfs": "vfio-pci,sysfsdev=/sys/bus/pci/devices/0000:1a:00.0",
    "drive": "file=/dev/nvme1n1,format=raw,if=none",
}


def written(way: str) -> str:
    if way.startswith("<"):
        return domain(way, "new", "bb")
    argument = way.replace('"', "&quot;")
    more = f"<qemu:commandline><qemu:arg value='-device'/><qemu:arg value='{argument}'/></qemu:commandline>"
    return domain("", "new", "bb", more, " xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'")


def lint(cli: Cli, xml: str, rule: str = "device-quarantined") -> list[dict[str, Any]]:
    path = cli.root.path / "new.xml"
    path.write_text(xml)
    _, out, _ = cli("lint", str(path), "-o", "json")
    return [one for one in json.loads(out)["findings"] if one["rule"] == rule]


@pytest.mark.sweep(most=10)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_lint_names_a_quarantined_device_however_the_guest_has_it(named: Cli, way: str) -> None:
    assert lint(named, written(way)) == []
    quarantined(named, DRIVE)
    (found,) = lint(named, written(way))
    assert (found["level"], f"{DRIVE} is quarantined since" in found["text"]) == ("error", True)


def test_lint_names_a_quarantined_nic_below_an_interface(named: Cli) -> None:
    host = discover(open_system(str(named.root.path)))
    nic = next(one for one in host.nics if one.interfaces)
    top = named.root.path
    (top / "sys/devices/virtual/net/bond9" / f"lower_{nic.interfaces[0]}").mkdir(parents=True)
    (top / "sys/class/net/bond9").symlink_to("../../devices/virtual/net/bond9")
    quarantined(named, nic.address)
    for interface in (nic.interfaces[0], "bond9"):
        (found,) = lint(
            named, written(f"<interface type='direct'><source dev='{interface}' mode='bridge'/></interface>")
        )
        assert (found["level"], f"is on {nic.address}" in found["text"]) == ("error", True)
    assert lint(named, written("<interface type='bridge'><source bridge='br0'/></interface>")) == []


def test_lint_does_not_pass_a_disk_of_which_it_cannot_be_told(named: Cli) -> None:
    assert lint(named, written(disk("/dev/drbd0"))) == []
    quarantined(named, DRIVE)
    (found,) = lint(named, written(disk("/dev/drbd0")))
    assert "cannot be judged: which device /dev/drbd0 is on" in found["text"]


def test_lint_sees_a_drive_that_two_guests_would_have(named: Cli) -> None:
    define(named, domain(disk(NAMES["array"])))
    (found,) = lint(named, written(WAYS["hostdev"]), "device-shared")
    assert f"{DRIVE} is below /dev/md/data of guest old" in found["text"]
    define(named, domain(WAYS["hostdev"]))
    (found,) = lint(named, written(disk(NAMES["by-id"])), "device-shared")
    assert f"is on {DRIVE}, which belongs to guest old" in found["text"]


@pytest.mark.sweep(most=10)
@pytest.mark.parametrize("path", [NAMES["kernel"], NAMES["by-id"], NAMES["volume"], NAMES["array"]])
def test_a_quarantined_drive_is_no_disk_of_a_planned_guest(named: Cli, path: str) -> None:
    code, document = planned(named, a=f"disks: [/img/a, {path}]")
    assert code == 0
    file = named.root.path / "plan.json"
    file.write_text(json.dumps(document))
    quarantined(named, DRIVE)
    code, document = planned(named, a=f"disks: [/img/a, {path}]")
    assert (
        code,
        f"{path} is on {DRIVE}: {DRIVE} is quarantined since" in str(document["unplaced"]),
    ) == (1, True)
    for words in (("--yes",), ("--dry-run",)):
        code, out, err = named("apply", str(file), *words)
        assert (code, out, f"{DRIVE} is quarantined since" in err) == (3, "", True)


def test_a_disk_that_cannot_be_told_is_a_finding_of_a_plan_and_stops_apply(named: Cli) -> None:
    code, document = planned(named, a="disk: /dev/drbd0")
    assert (
        code,
        any("which device /dev/drbd0 is on is unknown" in one["text"] for one in document["findings"]),
    ) == (0, True)
    file = named.root.path / "plan.json"
    file.write_text(json.dumps(document))
    quarantined(named, DRIVE)
    code, _, err = named("apply", str(file), "--dry-run")
    assert (code, "/dev/drbd0 may be on one" in err) == (3, True)


def test_a_definition_on_a_quarantined_drive_is_not_adopted(named: Cli) -> None:
    define(named, domain(disk(NAMES["volume"])))
    assert named("plan", "--adopt", "old")[0] == 0
    quarantined(named, DRIVE)
    code, out, _ = named("plan", "--adopt", "old", "-o", "json")
    assert (code, f"{DRIVE} is quarantined since" in out) == (1, True)


# --- the answer itself -------------------------------------------------------------------------------------------


def test_a_capture_answers_as_the_host_does_without_names_of_disks(named: Cli, tmp_path: Path) -> None:
    more = "<qemu:commandline><qemu:arg value='-device'/><qemu:arg value='vfio-pci,host=2b:00.0'/></qemu:commandline>"
    devices = disk(NAMES["by-id"]) + disk(NAMES["volume"]) + "<interface type='direct'><source dev='ens1'/></interface>"
    define(named, domain(devices, more=more, ns=" xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'"))
    here = discover(open_system(str(named.root.path)))
    path = tmp_path / "capture.tar.gz"
    write_capture(open_system(str(named.root.path)), str(path))
    there = hosttune.discover(path)
    assert there.index.users.keys() == here.index.users.keys() == {DRIVE}
    assert there.index.holders == here.index.holders == {OTHER: "old"}
    assert (there.index.untold, here.index.untold) == ({}, {})
    again = tmp_path / "again.tar.gz"
    write_capture(open_system(str(path)), str(again))
    assert hosttune.discover(again).nodes == there.nodes
    (guest,) = (one for one in there.guests or () if one.name == "old")
    assert "S6CKNE0T1" not in there.to_json()
    assert "home" not in str(guest.host_paths)
