"""The hook of libvirt: what the script records and refuses, how epochs are counted, and whether libvirt calls it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xmledits import edited

from hosttune.errors import CommandFailed, Refused, Unreadable
from hosttune.journal.register import read_register, record_devices
from hosttune.machine.system import System
from hosttune.model.clock import now_text
from hosttune.model.quarantine import DeviceRecord, Register
from hosttune.model.starts import QUARANTINED, REGISTER, STARTS, count_starts, quarantine_list, start_line
from hosttune.model.values import to_json
from hosttune.settings.dropin import UNIT_NAME
from hosttune.settings.hook import PLACE, hook_text, recording_of

GPU, VF, OTHER = "0000:41:00.0", "0000:41:00.4", "10000:c1:1f.7"
XML = """<domain type='kvm'><name>vm</name><devices>
  <disk type='file'><source file='/x'/>
    <address type='pci' domain='0x0000' bus='0x09' slot='0x00' function='0x0'/></disk>
  <hostdev mode='subsystem' type='pci' managed='yes'><driver name='vfio'/>
    <source><address domain='0x0000' bus='0x41' slot='0x00' function='0x0'/></source>
    <address type='pci' domain='0x0000' bus='0x07' slot='0x02' function='0x0'/></hostdev>
  <hostdev mode='subsystem' type='usb'><source><address bus='1' device='3'/></source></hostdev>
  <interface type='hostdev'>
    <source>
      <address type="pci" domain="0x10000" bus="0xC1" slot="0x1f" function="0x7"/>
    </source>
  </interface></devices></domain>"""
PLAIN = XML[: XML.index("  <hostdev")] + "</devices></domain>"
UNCLEAR = (
    "<domain><devices><hostdev><source><address domain='0x0000' bus='0x41'/></source></hostdev></devices></domain>"
)
MDEV = "<domain><hostdev><source><address uuid='c2177883-f1bb-47f0-914d-32a22e3a8804'/></source></hostdev></domain>"

Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "handover").mkdir()
    return tmp_path


@pytest.fixture
def call(state: Path) -> Call:
    """The hook, as libvirt calls it."""
    script = state / "hook"
    script.write_text(hook_text(str(state)) or "")

    def run(xml: str, operation: str = "prepare", guest: str = "vm") -> subprocess.CompletedProcess[str]:
        argv = ["sh", str(script), guest, operation, "begin", "-"]
        return subprocess.run(argv, input=xml, capture_output=True, text=True, check=False)

    return run


def quarantine(state: Path, addresses: list[str]) -> None:
    """The list and the register, as hosttune leaves them."""
    (state / QUARANTINED).write_text(quarantine_list(addresses))
    records = [
        DeviceRecord(address=one, identity=f"{one} 10de:2335", state="quarantined", since=now_text(), why="x")
        for one in addresses
    ]
    clean = DeviceRecord(address="0000:00:01.0", identity="i", state="clean", since=now_text(), why="y")
    (state / REGISTER).write_text(to_json(Register(devices=(*records, clean))))


def recorded(state: Path) -> list[list[str]]:
    path = state / STARTS
    return [line.split(" ") for line in path.read_text().splitlines()] if path.exists() else []


def test_every_start_is_recorded(state: Path, call: Call) -> None:
    done = call(XML, guest="a  guest\nof two lines")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [row[:2] + row[3:] for row in recorded(state)] == [
        [GPU, "guest", "a", "guest", "of", "two", "lines"],
        [OTHER, "guest", "a", "guest", "of", "two", "lines"],
    ]
    assert (state / STARTS).stat().st_mode & 0o777 == 0o600
    text = (state / STARTS).read_text()
    assert [count_starts(text, address) for address in (GPU, OTHER, "0000:07:02.0")] == [1, 1, 0]


def test_the_first_start_makes_the_folder(state: Path, call: Call) -> None:
    """The hook is installed before the first hand-over: no guest may fail for that."""
    (state / "handover").rmdir()
    assert call(XML).returncode == 0
    assert len(recorded(state)) == 2
    assert (state / "handover").stat().st_mode & 0o777 == 0o700


def test_a_function_of_a_pool_is_known_at_the_start(state: Path, call: Call) -> None:
    """libvirt chooses it after "prepare"; the definition then has it, as one of an interface of the type hostdev."""
    pool = edited(PLAIN, "devices", "<interface type='network'><source network='vfs'/></interface>")
    assert (call(pool).returncode, call(pool, "start").returncode, recorded(state)) == (0, 0, [])
    assert call(XML, "start").returncode == 0
    assert [row[:2] for row in recorded(state)] == [[OTHER, "guest"]]
    quarantine(state, [OTHER])
    done = call(XML, "start")
    assert (done.returncode, f"{OTHER} is quarantined" in done.stderr, len(recorded(state))) == (1, True, 1)


@pytest.mark.parametrize("operation", ["started", "stopped", "release", "migrate", "restore"])
def test_only_a_start_counts(operation: str, state: Path, call: Call) -> None:
    assert call(XML, operation).returncode == 0
    assert recorded(state) == []


@pytest.mark.parametrize(("then", "guests"), [("sleep 60", "vm\n"), ("exit 1", "other\nvm\n")])
def test_the_end_of_a_run_starts_the_boot_unit(
    then: str, guests: str, state: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only for a guest for whose end a change waits. libvirt waits for the script, so the script waits for nothing."""
    told = state / "told"
    os.mkfifo(told)
    program = state / "systemctl"
    program.write_text(f'#!/bin/sh\necho "$@" >{told}\n{then}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{state}:{os.environ['PATH']}")
    for before in ("", "v\nvm2\n"):
        (state / "after-stop").write_text(before)
        assert call(XML, "release").returncode == 0
    (state / "after-stop").write_text(guests)
    done = call(XML, "release")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert told.read_text() == f"--no-block restart {UNIT_NAME}\n"


def test_a_guest_without_host_devices_leaves_no_line(state: Path, call: Call) -> None:
    assert call(PLAIN).returncode == 0
    assert recorded(state) == []


@pytest.mark.parametrize("xml", [UNCLEAR, MDEV])
def test_a_device_that_cannot_be_told_counts_for_all(xml: str, state: Path, call: Call) -> None:
    assert call(xml).returncode == 0
    assert [row[0] for row in recorded(state)] == ["*"]
    assert count_starts((state / STARTS).read_text(), OTHER) == 1
    quarantine(state, [GPU])
    assert call(xml).returncode == 1


def test_a_quarantined_device_does_not_start(state: Path, call: Call) -> None:
    quarantine(state, ["0000:41:00.1", OTHER])
    done = call(XML)
    assert done.returncode == 1
    assert done.stderr == f"hosttune: guest vm: {OTHER} is quarantined: see hosttune handover status\n"
    assert recorded(state) == []
    quarantine(state, ["0000:41:00.1"])
    assert call(XML).returncode == 0


def test_a_list_that_was_lost_frees_nothing(state: Path, call: Call) -> None:
    """The register is there, so the list was: it is written first."""
    record = DeviceRecord(address=OTHER, identity=OTHER, state="quarantined", since=now_text(), why="hand-over 1")
    record_devices(str(state), (record,))
    (state / QUARANTINED).unlink()
    done = call(XML)
    assert (done.returncode, f"{state / QUARANTINED} is missing" in done.stderr) == (1, True)
    assert call(PLAIN).returncode == 0
    record_devices(str(state), ())
    assert f"{OTHER} is quarantined" in call(XML).stderr


def test_a_function_does_not_start_while_a_virtual_one_of_it_is_quarantined(
    state: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in planning: they belong together."""
    for name, text in {
        "ls": f'[ "$1" = /sys/bus/pci/devices/{GPU} ] && echo "class virtfn0"',
        "readlink": f"case $1 in */{GPU}/virtfn0) echo ../{VF} ;; esac",
    }.items():
        (state / name).write_text(f"#!/bin/sh\n{text}\n")
        (state / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{state}:{os.environ['PATH']}")
    quarantine(state, [VF])
    done = call(XML)
    assert (done.returncode, f"{VF} is quarantined" in done.stderr, recorded(state)) == (1, True, [])
    quarantine(state, ["0000:41:00.5"])
    assert (call(XML).returncode, len(recorded(state))) == (0, 2)


def test_a_start_that_cannot_be_recorded_is_refused(state: Path, call: Call) -> None:
    (state / STARTS).mkdir()
    done = call(XML)
    assert done.returncode == 1
    assert "cannot be recorded" in done.stderr
    assert call(PLAIN).returncode == 0


def test_a_list_that_cannot_be_read_refuses(state: Path, call: Call) -> None:
    (state / QUARANTINED).mkdir()
    done = call(XML)
    assert (done.returncode, recorded(state)) == (1, [])
    assert "cannot read" in done.stderr


# --- lists that cannot be trusted --------------------------------------------------------------------------------

LIST = quarantine_list([VF, OTHER])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not whole"),
        (LIST.replace("end 2\n", ""), "is not whole"),  # cut at a line
        (LIST[: LIST.index("10000") + 5], "is not whole"),  # cut in a line
        (LIST.replace(f"{VF}\n", ""), "is not whole"),
        (LIST.replace("end 2", "end 3"), "is not whole"),
        (LIST.replace("c1:", "C1:"), "is not whole"),
        (LIST.replace("0000:41", "41"), "is not whole"),
        (LIST + "\n\nx", "is not whole"),
        (quarantine_list([VF]), "is not what"),
        (quarantine_list([VF, OTHER, GPU]), "is not what"),
        (quarantine_list([]), "is not what"),
    ],
)
def test_a_list_that_is_cut_or_differs_from_the_register_refuses(text: str, why: str, state: Path, call: Call) -> None:
    quarantine(state, [VF, OTHER])
    (state / QUARANTINED).write_text(text)
    free = edited(UNCLEAR, ".//address", {"bus": "0x55", "slot": "0x00", "function": "0x0"})
    done = call(free)
    assert (done.returncode, why in done.stderr, recorded(state)) == (1, True, [])
    assert call(PLAIN).returncode == 0
    quarantine(state, [VF, OTHER])
    assert call(free).returncode == 0


@pytest.mark.parametrize("left", ["list", "starts", "journal", "statement"])
def test_a_register_that_is_lost_frees_nothing(left: str, state: Path, call: Call) -> None:
    """Its absence is believed only if nothing else of a hand-over is there."""
    assert (call(XML).returncode, read_register(str(state))) == (0, Register())
    if left == "list":
        (state / QUARANTINED).write_text(quarantine_list([VF]))
    elif left == "starts":
        (state / STARTS).write_text(start_line(VF, "hand-over", now_text(), ""))
    else:
        place = (
            state
            / {"journal": "handover/transactions/000001.jsonl", "statement": "handover/statement-000001.json"}[left]
        )
        place.parent.mkdir(exist_ok=True)
        place.write_text("")
    done = call(XML)
    assert (done.returncode, "no guest with a device may start" in done.stderr) == (1, True), done.stderr
    with pytest.raises(Refused, match="register of quarantined devices is lost"):
        read_register(str(state))


@pytest.mark.parametrize(
    "written",
    [
        "domain='0X10000' bus='0XC1' slot='0X1F' function='0x7'",
        "domain='0x00010000' bus='0xc1' slot='0x1f' function='7'",
        "bus='0xc1' slot='0x1f' function='0x7'",
        "domain='65536' bus='193' slot='31' function='7'",
        "domain = '0x10000' bus = '0xc1' slot = '0x1f' function = '0x7'",
    ],
)
def test_an_address_in_another_form_is_not_missed(written: str, state: Path, call: Call) -> None:
    quarantine(state, [OTHER])
    xml = f"<domain><devices><hostdev><source><address {written}/></source></hostdev></devices></domain>"
    assert call(xml).returncode == 1


# --- devices of the host that a guest has without their function -------------------------------------------------

DRIVE, SECOND, NIC, PORT = "0000:01:00.0", "0000:02:00.0", "0000:c1:00.0", "0000:c1:00.2"


def disk(path: str, kind: str = "block", attribute: str = "dev") -> str:
    source = f"<source {attribute}='{path}' index='1'/>"
    return f"<disk type='{kind}' device='disk'><driver name='qemu'/>{source}<target dev='vda'/></disk>"


def argument(text: str) -> str:
    return f"<qemu:commandline><qemu:arg value='-device'/><qemu:arg value='{text}'/></qemu:commandline>"


def plant(tmp_path: Path) -> Path:
    """The sysfs of a host with two drives, a volume group, an array, a multipath namespace and a NIC."""
    sys = tmp_path / "sys"
    first, second = (f"devices/pci0000:00/0000:00:01.{n}/{one}" for n, one in enumerate((DRIVE, SECOND)))
    nic = "devices/pci0000:c0/0000:c0:01.0"
    folders = {
        "nvme0n1": f"{first}/nvme/nvme0/nvme0n1", "nvme0n1p2": f"{first}/nvme/nvme0/nvme0n1/nvme0n1p2",
        "nvme1n1": f"{second}/nvme/nvme1/nvme1n1", "dm-0": "devices/virtual/block/dm-0",
        "dm-1": "devices/virtual/block/dm-1", "md127": "devices/virtual/block/md127",
        "nvme2n1": "devices/virtual/nvme-subsystem/nvme-subsys2/nvme2n1", "drbd0": "devices/virtual/block/drbd0",
        "nbd0": "devices/virtual/block/nbd0", "sdb": "devices/platform/host5/session1/target5:0:0/5:0:0:1/block/sdb",
    }  # fmt: skip
    links = {f"class/block/{name}": place for name, place in folders.items()}
    links |= {f"class/net/{name}": f"{nic}/{NIC}/net/{name}" for name in ("eth0",)} | {
        "class/net/bond0": "devices/virtual/net/bond0"
    }
    links |= {"bus/vdpa/devices/vdpa0": f"{nic}/{PORT}/vdpa0"}
    for name, place in links.items():
        (sys / place).mkdir(parents=True, exist_ok=True)
        (sys / name).parent.mkdir(parents=True, exist_ok=True)
        (sys / name).symlink_to(sys / place)
    for above, below in (("dm-0", "dm-1"), ("dm-1", "md127"), ("md127", "nvme0n1p2"), ("md127", "nvme1n1")):
        (sys / folders[above] / "slaves" / below).mkdir(parents=True)
    (sys / "devices/virtual/nvme-subsystem/nvme-subsys2/nvme9").symlink_to(sys / f"{second}/nvme/nvme1")
    (sys / f"{nic}/{PORT}/vdpa0/vhost-vdpa-0").mkdir()
    (sys / "devices/virtual/net/bond0/lower_eth0").mkdir()
    (tmp_path / "by-id").symlink_to("/dev/nvme1n1")
    paths = {"disks": "/dev", "files": str(tmp_path), "images": "/srv/images"}
    for name, path in {**{one: f"<path>{path}</path>" for one, path in paths.items()}, "rbd": ""}.items():
        (tmp_path / f"{name}.xml").write_text(pool(path))
    (tmp_path / "image.qcow2").write_text("")
    return sys


def pooled(pool: str, volume: str) -> str:
    return f"<disk type='volume' device='disk'><source pool='{pool}' volume='{volume}'/><target dev='vda'/></disk>"


def pool(path: str) -> str:
    return f"<poolstate>\n  <pool type='x'>\n    <name>p</name>\n    {path}\n  </pool>\n</poolstate>\n"


HELD = [
    ("volume-of-a-disk", pooled("disks", "nvme0n1p2"), {DRIVE}),
    ("volume-in-a-folder", pooled("files", "image.qcow2"), set()),
    ("volume-that-is-gone", pooled("images", "gone.qcow2"), set()),
    ("volume-on-a-network", pooled("rbd", "data"), set()),
    ("nvme0n1p2", disk("/dev/nvme0n1p2"), {DRIVE}),
    ("as-a-file", disk("/dev/nvme0n1", "file", "file"), {DRIVE}),
    ("link", disk("{here}/by-id"), {SECOND}),
    ("mapper", disk("/dev/dm-0"), {DRIVE, SECOND}),
    ("multipath", disk("/dev/nvme2n1"), {SECOND}),
    ("iscsi", disk("/dev/sdb"), set()),
    ("nbd", disk("/dev/nbd0"), set()),
    ("image", disk("{here}/image.qcow2", "file", "file"), set()),
    ("image-with-a-blank", disk("/srv/my image.qcow2", "file", "file"), set()),
    ("macvtap", "<interface type='direct'><source dev='eth0' mode='bridge'/></interface>", {NIC}),
    ("macvtap-on-a-bond", "<interface type='direct'><source dev='bond0'/></interface>", {NIC}),
    ("vdpa", "<interface type='vdpa'><source dev='/dev/vhost-vdpa-0'/></interface>", {PORT}),
    ("vdpa-disk", disk("/dev/vhost-vdpa-0", "vhostvdpa"), {PORT}),
    ("vfio-pci", argument(f"vfio-pci,host={NIC},id=x"), {NIC}),
    ("vfio-pci-without-domain", argument("vfio-pci,host=C1:00.0"), {NIC}),
    (
        "vfio-pci-json",
        argument("{{&quot;driver&quot;:&quot;vfio-pci&quot;,&quot;host&quot;:&quot;0000:c1:00.0&quot;}}"),
        {NIC},
    ),
    ("vfio-pci-sysfs", argument(f"vfio-pci,sysfsdev=/sys/bus/pci/devices/{NIC}"), {NIC}),
    ("drive", argument("file=/dev/nvme0n1,format=raw,if=none"), {DRIVE}),
    ("keyboard", argument("input-linux,evdev=/dev/input/by-id/usb-kbd"), set()),
    ("port", argument("ioh3420,id=root.1,addr=1c.0"), set()),
]


@pytest.mark.parametrize(("xml", "on"), [row[1:] for row in HELD], ids=[row[0] for row in HELD])
def test_what_a_guest_has_of_a_function_counts_as_the_function(xml: str, on: set[str], state: Path, call: Call) -> None:
    sys = plant(state)
    script = state / "hook"
    script.write_text(
        script.read_text().replace("sys=/sys\npools=/run/libvirt/storage\n", f"sys={sys}\npools={state}\n")
    )
    guest = f"<domain><name>vm</name><devices>{xml.format(here=state)}</devices></domain>"
    done = call(guest)
    assert (done.returncode, done.stderr, {row[0] for row in recorded(state)}) == (0, "", on)
    for address in sorted(on):
        quarantine(state, [address])
        done = call(guest)
        assert (done.returncode, f"{address} is quarantined" in done.stderr) == (1, True), done.stderr
    quarantine(state, ["0000:77:00.0"])
    assert call(guest).returncode == 0


UNTOLD = (
    *map(disk, ("/dev/disk/by-id/nvme-gone", "/dev/drbd0", "/dev/a b", "/dev/x&amp;y")),
    *(pooled(*one) for one in (("disks", "gone"), ("none", "a"), ("files", "a b"), ("../files", "a"))),
)


@pytest.mark.parametrize("xml", UNTOLD)
def test_a_disk_that_cannot_be_told_is_refused_while_devices_are_quarantined(xml: str, state: Path, call: Call) -> None:
    sys, script = plant(state), state / "hook"
    script.write_text(
        script.read_text().replace("sys=/sys\npools=/run/libvirt/storage\n", f"sys={sys}\npools={state}\n")
    )
    guest = f"<domain><devices>{xml}</devices></domain>"
    assert call(guest).returncode == 0
    quarantine(state, [DRIVE])
    assert (call(guest).returncode, "cannot be told" in call(guest).stderr) == (1, True)


@pytest.mark.parametrize("path", ["/a b", "/a'b", "/$(x)", "/a\nb", "relative", "/a//b", ""])
def test_a_path_that_a_shell_would_interpret_is_not_written(path: str) -> None:
    assert hook_text(path) is None


# --- epochs ------------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from([GPU, VF, OTHER]), max_size=8), st.text(st.characters(codec="utf-8"), max_size=20))
def test_no_later_line_hides_a_start(addresses: list[str], rest: str) -> None:
    """Whatever follows, even a torn or strange line: the count only grows."""
    lines = "".join(start_line(address, "guest", "2026-01-01T00:00:00Z", "vm") for address in addresses)
    for address in (GPU, VF, OTHER):
        assert count_starts(lines, address) == addresses.count(address)
        assert count_starts(lines + rest, address) >= addresses.count(address)
    more = lines + start_line(GPU, "guest", "2026-01-01T00:00:00Z", rest)
    assert count_starts(more, GPU) == addresses.count(GPU) + 1


def test_functions_count_for_what_they_belong_to() -> None:
    one = start_line(VF, "guest", "t", "vm") + start_line(GPU, "function", "t", "vm")
    assert [count_starts(one, GPU), count_starts(one, VF, GPU), count_starts(one, "0000:41:00.5", GPU)] == [1, 1, 0]
    whole = start_line(GPU, "guest", "t", "vm")
    assert [count_starts(whole, GPU), count_starts(whole, VF, GPU), count_starts(whole, VF)] == [1, 1, 0]


# --- whether libvirt calls it ------------------------------------------------------------------------------------


class Host(System):
    """A live host with these files, and the answers of stat."""

    captured = False

    def __init__(self, files: Mapping[str, str], stats: Mapping[str, str]) -> None:
        self.files, self.stats = files, stats

    def read_bytes(self, path: str) -> bytes | None:
        if self.files.get(path) == "EIO":
            raise Unreadable(path, "EIO")
        return self.files[path].encode() if path in self.files else None

    def list(self, path: str) -> list[str]:
        raise NotImplementedError

    def link(self, path: str) -> str | None:
        raise NotImplementedError

    def exists(self, path: str) -> bool:
        return path in self.files

    def run(self, argv: tuple[str, ...], *, timeout: float = 20.0) -> str:
        if argv[-1] not in self.stats:
            raise CommandFailed(argv, "exit status 1")
        return self.stats[argv[-1]]


STATE = "/var/lib/hosttune"
FILE = {PLACE: hook_text(STATE) or ""}
STARTED = "42 (a) b) S" + " 0" * 18 + " {ticks} 0\n"


def daemon(seconds: int = 1700000010) -> dict[str, str]:
    """virtqemud, that was started then by the clock as it is set now."""
    ticks = STARTED.format(ticks=1000 * os.sysconf("SC_CLK_TCK"))
    return {
        "/run/virtqemud.pid": "42\n", "/proc/42/comm": "virtqemud\n", "/proc/42/stat": ticks,
        "/proc/stat": f"cpu 1 2\nbtime {seconds - 1000}\n",
    }  # fmt: skip


DAEMON = daemon()
HOOK = {PLACE: "1700000000.500000000 755\n"}


@pytest.mark.parametrize(
    ("files", "stats", "active", "why"),
    [
        ({}, {}, False, "is not installed"),
        ({PLACE: FILE[PLACE] + "exit 0\n"}, HOOK, False, "is not what this hosttune writes there"),
        ({PLACE: hook_text("/elsewhere") or ""}, HOOK, False, "is not what this hosttune writes there"),
        (FILE, {PLACE: "1700000000.5 644"}, False, "is not executable"),
        (FILE, HOOK, True, None),  # no daemon runs: it finds the hook when it starts
        ({**FILE, **DAEMON}, {**HOOK, "/run/virtqemud.pid": "1700000000.4"}, False, "virtqemud has run since before"),
        ({**FILE, **DAEMON}, {**HOOK, "/run/virtqemud.pid": "1700000000.5"}, False, "virtqemud has run since before"),
        ({**FILE, **DAEMON}, {**HOOK, "/run/virtqemud.pid": "1700000000.6"}, True, None),
        # The clock was set after the daemon or the hook was there: one of the two times tells.
        ({**FILE, **daemon(1699990000)}, {**HOOK, "/run/virtqemud.pid": "1700000000.6"}, False, "has run since before"),
        ({**FILE, **daemon(1700090000)}, {**HOOK, "/run/virtqemud.pid": "1700000000.4"}, False, "has run since before"),
        ({**FILE, **DAEMON, "/proc/42/stat": "42 (a)"}, {**HOOK, "/run/virtqemud.pid": "1700000000.6"}, None, None),
        ({**FILE, **DAEMON, "/proc/42/comm": "bash\n"}, HOOK, True, None),  # a stale file of a daemon that ended
        ({**FILE, **DAEMON}, HOOK, None, None),
        (FILE, {}, None, None),
        ({PLACE: "EIO"}, HOOK, None, None),
    ],
)
def test_recording(files: Mapping[str, str], stats: Mapping[str, str], active: bool | None, why: str | None) -> None:
    found = recording_of(Host(files, stats), STATE)
    assert (found.active if found else None) == active
    assert (why or "") in ((found.why if found else None) or "")
    assert (found is None or found.why is None) == (why is None)
    assert (found.since if found else None) == ("1700000000.500000000" if active else None)
