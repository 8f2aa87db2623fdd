"""File systems of huge pages: read, planned, mounted by a unit of ours, known to libvirt, and taken away again."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from domain_shapes import SHAPES, changed
from faultkills import applying, lab_of, reverting
from faultkinds import EXAMPLES, Example
from faultlab import site_on
from hypothesis import given
from hypothesis import strategies as st
from planhosts import Card, build_host, intent_of

from hosttune.discovery.memory import read_memory_settings
from hosttune.errors import BadInput, CommandFailed, InUse, WriteFailed
from hosttune.hypervisor import unreachable
from hosttune.hypervisor.daemon import LibvirtRestart
from hosttune.hypervisor.hugemount import FOREIGN, Mount
from hosttune.linux.hugetlbfs import PLACES, Mounted, read_hugetlbfs, unit_link, unit_name, unit_path, unit_text
from hosttune.machine.capture import Capture
from hosttune.machine.reader import Reader
from hosttune.machine.scratch import Scratch
from hosttune.machine.system import COMPLETE
from hosttune.model.host import Host, Hugetlbfs
from hosttune.model.intent import Intent
from hosttune.model.plan import Plan
from hosttune.model.values import FrozenMap, to_json
from hosttune.planning import plan
from hosttune.transaction.kinds import setting_of

GIB, MIB = 1 << 30, 1 << 20
PLACE = "/dev/hugepages1G"
UNIT = unit_path(PLACE)
PLAIN = "proc /proc proc rw,nosuid 0 0\n"
TWO_MIB = "hugetlbfs /dev/hugepages hugetlbfs rw,relatime,pagesize=2M 0 0\n"
ONE_GIB = f"hugetlbfs {PLACE} hugetlbfs rw,relatime,pagesize=1024M 0 0\n"
FilesBelow = Mapping[str, str]


def root_of(path: Path, files: FilesBelow) -> Path:
    for name, text in {".hosttune/scratch": "", "proc/version": "", "dev/null": "", **files}.items():
        file = path / name.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return path


def scratch(path: Path, mounts: str = PLAIN, **files: str) -> Scratch:
    return Scratch(str(root_of(path, {"proc/mounts": mounts, **files})))


def names(root: Path) -> set[str]:
    """Every file and folder of a root but the scratch root's own notes."""
    found = (str(path.relative_to(root)) for path in root.rglob("*"))
    return {name for name in found if not name.startswith("var")}


# --- reading -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ()),
        (PLAIN, ()),
        (TWO_MIB + ONE_GIB, (Mounted("/dev/hugepages", 2 * MIB), Mounted(PLACE, GIB))),
        ("h /a hugetlbfs rw 0 0", (Mounted("/a", 2 * MIB),)),  # as /proc/meminfo says
        ("h /a hugetlbfs rw,pagesize=64K 0 0", (Mounted("/a", 64 << 10),)),
        ("h /a hugetlbfs rw,pagesize=16G 0 0", (Mounted("/a", 16 * GIB),)),
        ("h /a hugetlbfs rw,pagesize=2097152 0 0", (Mounted("/a", 2 * MIB),)),
        ("h /a hugetlbfs rw,pagesize=many 0 0", (Mounted("/a", None),)),
        ("h /a\\040b hugetlbfs rw,pagesize=2M 0 0", (Mounted("/a b", 2 * MIB),)),
        ("h /a hugetlbfs rw,pagesize=2M 0 0\nh /a hugetlbfs rw,pagesize=1024M 0 0", (Mounted("/a", GIB),)),
        ("h /a hugetlbfs rw,pagesize=2M 0 0\ntmpfs /a tmpfs rw 0 0", ()),
        ("hugetlbfs\nh /a\n\n", ()),
    ],
)
def test_mounts_of_huge_pages(text: str, found: tuple[Mounted, ...]) -> None:
    assert read_hugetlbfs(text, 2 * MIB) == found


@given(st.text())
def test_any_list_of_mounts_is_read(text: str) -> None:
    assert all(mount.size_bytes is None or mount.size_bytes >= 0 for mount in read_hugetlbfs(text, None))


def test_the_host_document_has_them_and_whether_libvirt_found_them(tmp_path: Path) -> None:
    files = {"proc/meminfo": "Hugepagesize:       2048 kB\n", "dev/hugepages/libvirt/qemu/x": "", COMPLETE[1:]: ""}
    found = read_memory_settings(Reader(scratch(tmp_path, TWO_MIB + ONE_GIB, **files))).hugetlbfs
    assert found == (
        Hugetlbfs(path="/dev/hugepages", size_bytes=2 * MIB, libvirt=True),
        Hugetlbfs(path=PLACE, size_bytes=GIB, libvirt=False),
    )


def test_what_nobody_recorded_is_unknown(tmp_path: Path) -> None:
    root_of(tmp_path, {"proc/mounts": ONE_GIB})
    (tmp_path / ".hosttune/scratch").unlink()
    capture = Capture(str(tmp_path))
    assert read_memory_settings(Reader(capture)).hugetlbfs == (Hugetlbfs(path=PLACE, size_bytes=GIB, libvirt=None),)
    (tmp_path / "proc/mounts").unlink()
    assert read_memory_settings(Reader(Capture(str(tmp_path)))).hugetlbfs is None


# --- planning ------------------------------------------------------------------------------------------------

KNOWN = {"path": "/mine", "size_bytes": GIB, "libvirt": True}


def planned(mounts: list[dict[str, Any]] | None, pages: str = "1GiB", **more: Any) -> Plan:
    host = build_host(cards=[Card("0000:41:00.0", 0, group=1)]) | {"memory_settings": {"hugetlbfs": mounts}}
    document = intent_of(gpus=1, vcpus=4, memory="4GiB", hugepages=pages, **more)
    return plan(Host.from_json(to_json(host)), Intent.from_json(to_json(document)))


def mounting(made: Plan) -> list[tuple[str, str, Any, Any, bool, str]]:
    found = (action for action in made.actions if action.kind in ("mount", "libvirt-restart"))
    return [(one.kind, one.target, one.current, one.want, one.needed, one.effect) for one in found]


RESTART = ("libvirt-restart", PLACE, "not found", "found", True, "now")


def test_a_size_without_a_mount_gets_one_and_libvirt_is_restarted() -> None:
    made = planned([KNOWN | {"size_bytes": 2 * MIB}])
    assert mounting(made) == [("mount", PLACE, None, GIB, True, "now"), RESTART]
    kinds = [action.kind for action in made.actions]
    assert kinds.index("hugepages") < kinds.index("mount") < kinds.index("libvirt-restart")
    (why,) = (action.why for action in made.actions if action.kind == "libvirt-restart")
    assert "its daemon is restarted" in why
    assert "running guests go on running" in why
    assert mounting(planned([], "2MiB"))[0] == ("mount", PLACES[2 * MIB], None, 2 * MIB, True, "now")


def test_ordinary_pages_need_no_mount() -> None:
    assert mounting(planned([], "none")) == []


def test_a_mount_that_is_there_is_used() -> None:
    assert mounting(planned([KNOWN])) == []
    assert mounting(planned([KNOWN | {"libvirt": None}])) == []
    assert mounting(planned([KNOWN | {"libvirt": False}])) == [("libvirt-restart", "/mine", *RESTART[2:])]
    assert mounting(planned([KNOWN | {"libvirt": False, "path": "/other"}, KNOWN])) == []


def test_unknown_mounts_are_a_finding_and_no_action() -> None:
    made = planned(None)
    assert mounting(made) == []
    assert [f.level for f in made.findings if f.where == "/proc/mounts"] == ["warn"]


def test_other_pages_in_our_place_are_a_finding() -> None:
    made = planned([KNOWN | {"path": PLACE, "size_bytes": 2 * MIB}])
    assert mounting(made) == []
    (finding,) = [f for f in made.findings if f.where == "/proc/mounts"]
    assert (finding.level, finding.text[: len(PLACE)]) == ("error", PLACE)


# --- the setting ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", [False, True])
def test_there_and_back(tmp_path: Path, folder: bool) -> None:
    system = scratch(tmp_path)
    if folder:
        (tmp_path / PLACE[1:]).mkdir()
    before, mounts = names(tmp_path), (tmp_path / "proc/mounts").read_text()
    setting = setting_of("mount", PLACE)
    setting.check(GIB)
    assert setting.read(system) is None
    setting.write(system, GIB)
    assert setting.read(system) == GIB
    assert (system.read("/proc/mounts") or "").endswith("hugetlbfs rw,nosuid,nodev,pagesize=1024M 0 0")
    assert system.read_bytes(UNIT) == unit_text(PLACE, folder_found=folder).encode()
    assert system.ran() == [
        ("systemctl", "daemon-reload"),
        ("systemctl", "enable", "dev-hugepages1G.mount"),
        ("systemctl", "start", "dev-hugepages1G.mount"),
    ]
    setting.write(system, None)
    assert setting.read(system) is None
    assert (names(tmp_path), (tmp_path / "proc/mounts").read_text()) == (before, mounts)
    ran = system.ran()[3:]
    assert [argv[1] for argv in ran if argv[0] == "systemctl"] == ["stop", "disable", "daemon-reload"]
    assert (("rmdir", PLACE) in ran) is not folder


def test_libvirt_is_restarted_again_when_what_it_knew_is_gone(tmp_path: Path) -> None:
    system = scratch(tmp_path)
    mount, restart = setting_of("mount", PLACE), setting_of("libvirt-restart", PLACE)
    mount.write(system, GIB)
    assert restart.read(system) == "not found"
    assert restart.write(system, "found") == "libvirtd.service was restarted: running guests went on"
    assert restart.read(system) == "found"
    assert mount.write(system, None) == "libvirtd.service was restarted: running guests went on"
    ran = [argv[1:] for argv in system.ran() if argv[0] == "systemctl"]
    assert ran.index(("stop", "dev-hugepages1G.mount")) < len(ran) - 1 - ran[::-1].index(
        ("restart", "libvirtd.service")
    )


def test_the_modular_daemon_is_the_one_that_is_restarted(tmp_path: Path) -> None:
    system = scratch(tmp_path, ONE_GIB, **{"run/libvirt/virtqemud-sock": "", "run/libvirt/libvirt-sock": ""})
    setting_of("libvirt-restart", PLACE).write(system, "found")
    assert system.ran() == [("systemctl", "restart", "virtqemud.service")]


def test_a_mount_of_somebody_elses_is_used_and_never_ours(tmp_path: Path) -> None:
    lab = EXAMPLES["mount"]
    files = {"proc/mounts": ONE_GIB}
    root = root_of(tmp_path / "root", {**files, ".hosttune/capture": ""})
    result, code = applying(Example("theirs", files, lab.wants))(site_on(root))
    outcomes = {entry.action: (entry.outcome, entry.why) for entry in result.entries}
    assert code == 0
    assert outcomes[f"mount:{PLACE}"] == ("already", "already mounted, not by hosttune: used as it is")
    result, code = reverting(lab)(site_on(root))
    assert (code, (root / "proc/mounts").read_text()) == (0, ONE_GIB)
    assert not (root / UNIT[1:]).exists()


def test_a_mount_in_use_is_left_and_told_as_a_conflict(tmp_path: Path) -> None:
    """A guest of somebody's: its file is unlinked, and in its memory alone."""
    lab = lab_of(EXAMPLES["mount"], tmp_path / "root")
    root_of(lab.root, {
        "proc/77/comm": "qemu-system-x86\n",
        "proc/77/maps": f"7f00-7f40 rw-s 00000000 00:2f 5 {PLACE}/libvirt/qemu/1-b/ram-node0 (deleted)\n",
    })  # fmt: skip
    result, code = reverting(lab.example)(site_on(lab.root))
    (entry,) = [entry for entry in result.entries if entry.action == f"mount:{PLACE}"]
    assert (code, entry.outcome) == (1, "conflict")
    assert "qemu-system-x86 (process 77)" in (entry.why or "")
    assert ONE_GIB.split()[1] in (lab.root / "proc/mounts").read_text()
    assert (lab.root / UNIT[1:]).exists()


def test_a_unit_or_a_mount_of_somebody_elses_is_not_replaced(tmp_path: Path) -> None:
    system = scratch(tmp_path, **{UNIT: "[Mount]\n"})
    setting = Mount.of(PLACE)
    assert setting.read(system) == FrozenMap({"now": None, "boot": FOREIGN})
    with pytest.raises(WriteFailed, match="there is a unit that hosttune did not write"):
        setting.write(system, GIB)
    system = scratch(tmp_path, ONE_GIB.replace("1024M", "2M"), **{UNIT: unit_text(PLACE, folder_found=False)})
    with pytest.raises(WriteFailed, match="pages of another size"):
        setting.write(system, GIB)


@pytest.mark.parametrize("target", ["", "/", "/dev/hugepages", "/dev/hugepages1G/", "/dev/hugepages1G\n", "../x"])
def test_places_of_somebody_elses(target: str) -> None:
    with pytest.raises(BadInput, match=r"not a mount point of hosttune"):
        setting_of("mount", target)


@pytest.mark.parametrize("value", [None, True, 0, -1, 2 * MIB, "1G", {"now": GIB}])
def test_values_that_no_mount_can_have(value: Any) -> None:
    with pytest.raises(BadInput, match="is not its page size"):
        setting_of("mount", PLACE).check(value)


@pytest.mark.parametrize("target", ["", "pages", "/a/../b", "/a\nb", "/" + "a" * 5000])
def test_targets_that_no_libvirt_restart_can_have(target: str) -> None:
    with pytest.raises(BadInput, match="not a place where a file system is mounted"):
        setting_of("libvirt-restart", target)


@pytest.mark.parametrize("place", PLACES.values())
def test_the_unit_is_one_that_systemd_takes(tmp_path: Path, place: str) -> None:
    """systemd-analyze verify, where it is installed; by its name systemd finds the unit of a path."""
    (tmp_path / unit_name(place)).write_text(unit_text(place, folder_found=False))
    assert unit_link(place).endswith(f"/sysinit.target.wants/{unit_name(place)}")
    try:
        escaped = subprocess.run(["systemd-escape", "-p", "--suffix=mount", place], capture_output=True, text=True)
        verified = subprocess.run(
            ["systemd-analyze", "verify", str(tmp_path / unit_name(place))], capture_output=True, text=True
        )
    except FileNotFoundError:
        pytest.skip("systemd is not installed here")
    assert escaped.stdout.strip() == unit_name(place)
    assert unit_name(place) not in verified.stderr, verified.stderr


# --- a live machine ------------------------------------------------------------------------------------------


class Answering(Scratch):
    """A scratch root that counts as live: questions are answered from a table, or fail as it says."""

    captured = False
    scratch = False

    def __init__(self, root: Path, answers: Mapping[tuple[str, ...], str | CommandFailed]) -> None:
        super().__init__(str(root))
        self.scratch = False
        self.answers = answers

    def run(self, argv: tuple[str, ...], *, timeout: float = 20.0) -> str:
        """See System. The longest end of the words that the table has counts."""
        for start in range(len(argv)):
            answer = self.answers.get(argv[start:])
            if isinstance(answer, CommandFailed):
                raise answer
            if answer is not None:
                return answer
        raise CommandFailed(argv, "not installed")


SOCKET = {"run/libvirt/libvirt-sock": "", "run/systemd/system/x": ""}
IDLE = {
    ("list", "--uuid", "--name"): "11111111-2222-4333-8444-555555555555 busy\n",
    ("list", "--uuid"): "",
    ("domstate", "--reason", "11111111-2222-4333-8444-555555555555"): "running (booted)\n",
    ("domjobinfo", "11111111-2222-4333-8444-555555555555"): "Job type:         None        \n\n",
}
MIGRATES = "Job type:         Unbounded\nOperation:        Outgoing migration\n"
DOMAIN = "11111111-2222-4333-8444-555555555555"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({("domjobinfo", DOMAIN): MIGRATES}, "guest busy: a job (Outgoing migration)"),
        ({("domstate", "--reason", DOMAIN): "paused (starting up)\n"}, "guest busy: starting up"),
        (
            {("list", "--uuid", "--name"): CommandFailed(("virsh",), "exit status 1", "no connection")},
            "unknown, it cannot be asked: exit status 1: no connection",
        ),
    ],
)
def test_libvirt_is_not_restarted_while_it_works(tmp_path: Path, answer: dict[Any, Any], why: str) -> None:
    root = root_of(tmp_path, {"proc/mounts": ONE_GIB, **SOCKET})
    setting = LibvirtRestart.of(PLACE)
    busy = Answering(root, {**IDLE, **answer})
    assert [text.endswith(why) for text in setting.disturbed(busy)] == [True]
    with pytest.raises(InUse, match=r"libvirtd\.service") as refused:
        setting.write(busy, "found")
    assert why in refused.value.reason
    assert busy.ran() == []
    idle = Answering(root, IDLE)
    assert list(setting.disturbed(idle)) == []
    setting.write(idle, "found")
    assert idle.ran() == [("systemctl", "restart", "libvirtd.service")]


def test_without_libvirt_or_systemd_nothing_is_restarted_or_mounted(tmp_path: Path) -> None:
    system = Answering(root_of(tmp_path, {"proc/mounts": ONE_GIB}), {})
    assert "no libvirt daemon" in (setting_of("libvirt-restart", PLACE).waits_for(system) or "")
    assert "systemd does not run here: mount -t hugetlbfs -o pagesize=1024M" in (
        setting_of("mount", PLACE).waits_for(system) or ""
    )


# --- what QEMU can read --------------------------------------------------------------------------------------

NO = CommandFailed(("setpriv",), "exit status 1")
CAPABILITIES = """<capabilities><host><secmodel><model>{}</model><doi>0</doi></secmodel><secmodel><model>dac</model>
<doi>0</doi><baselabel type='kvm'>+64055:+103</baselabel></secmodel></host></capabilities>"""
SEED = "/var/lib/hosttune/guests/one-gpu/seed.iso"
SEEDED = changed(SHAPES["one-gpu"], seed=SEED, disk=None, boot=None)


def reading(
    path: Path, *closed: str, model: str = "none", files: FilesBelow | None = None, path_of: str = SEED
) -> Answering:
    """A machine on which QEMU's user may not search or read these."""
    answers: dict[tuple[str, ...], str | CommandFailed] = {("capabilities",): CAPABILITIES.format(model)}
    parts = path_of.split("/")
    for folder in ("/".join(parts[:n]) or "/" for n in range(1, len(parts))):
        answers["--", "test", "-x", folder] = NO if folder in closed else ""
    for how in ("-r", "-w"):
        answers["--", "test", how, path_of] = NO if closed else ""
    answers["realpath", "--", path_of] = f"{path_of}\n"
    return Answering(
        root_of(path, {path_of: "", "proc/self/mounts": "/dev/sda1 / ext4 rw 0 0\n", **(files or {})}), answers
    )


def test_what_qemu_can_read_is_no_reason(tmp_path: Path) -> None:
    assert unreachable(reading(tmp_path), SEEDED) == ()
    assert unreachable(reading(tmp_path, model="apparmor"), SEEDED) == ()
    assert unreachable(Scratch(str(tmp_path)), SEEDED) == ()


@pytest.mark.parametrize("folder", ["/", "/var/lib/hosttune", "/var/lib/hosttune/guests/one-gpu"])
def test_the_folder_that_is_closed_is_named(tmp_path: Path, folder: str) -> None:
    (why,) = unreachable(reading(tmp_path, folder), SEEDED)
    assert why == (
        f"QEMU (user 64055, group 103) cannot reach the seed {SEED}: it may not search {folder}: chmod o+x {folder}"
    )


@pytest.mark.parametrize(
    ("files", "reasons"),
    [
        ({}, 0),  # libvirt makes it QEMU's
        ({"etc/libvirt/qemu.conf": "#dynamic_ownership = 0\n"}, 0),
        ({"etc/libvirt/qemu.conf": "dynamic_ownership = 0\n"}, 1),
        ({"proc/self/mounts": "/dev/sda1 / ext4 rw 0 0\nsrv:/x /var/lib nfs4 rw 0 0\n"}, 1),  # root is squashed there
    ],
)
def test_a_closed_file_is_libvirts_to_open(tmp_path: Path, files: dict[str, str], reasons: int) -> None:
    found = unreachable(reading(tmp_path, "the file alone", files=files), SEEDED)
    assert len(found) == reasons
    assert all(why.endswith(f"cannot read the seed {SEED}: chmod o+r {SEED}") for why in found)


@pytest.mark.parametrize(
    ("path", "denied"),
    [("/etc/vm.img", True), ("/usr/lib/x/vm.img", True), ("/boot/vm.img", True), ("/srv/vm.img", False)],
)
def test_paths_that_apparmor_keeps_from_guests(tmp_path: Path, path: str, denied: bool) -> None:
    guest = changed(SEEDED, seed=None, disk=path)
    for each in (guest, changed(guest, disk=None, further_disks=(path,))):
        found = unreachable(reading(tmp_path, model="apparmor", path_of=path), each)
        assert [f"AppArmor keeps QEMU from the disk {path}" in why for why in found] == [True] * denied
        assert unreachable(reading(tmp_path, path_of=path), each) == ()


def test_selinux_keeps_guests_from_nfs_without_its_boolean(tmp_path: Path) -> None:
    files = {"proc/self/mounts": "srv:/x /var nfs4 rw 0 0\n", "sys/fs/selinux/booleans/virt_use_nfs": "0 0"}
    (why,) = unreachable(reading(tmp_path, model="selinux", files=files), SEEDED)
    assert why.endswith("setsebool -P virt_use_nfs on")


def test_selinux_asks_no_boolean_of_nfs_that_holds_labels(tmp_path: Path) -> None:
    files = {"proc/self/mounts": "srv:/x /var nfs4 rw,seclabel 0 0\n", "sys/fs/selinux/booleans/virt_use_nfs": "0 0"}
    assert unreachable(reading(tmp_path, model="selinux", files=files), SEEDED) == ()


def test_a_libvirt_that_cannot_be_asked_is_a_reason(tmp_path: Path) -> None:
    root_of(tmp_path, {SEED: ""})
    (why,) = unreachable(Answering(tmp_path, {}), SEEDED)
    assert "whether QEMU can read its files is unknown" in why
