"""Interrupts of passed devices, and irqbalance's ban."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cutshort import EIO, ENOSPC, EPERM, KilledError, Noted, put, put_link, scratch_root
from hypothesis import given
from hypothesis import strategies as st
from planhosts import Card, build_host, intent_of

from hosttune.discovery.settings import read_settings
from hosttune.errors import BadInput, WriteFailed
from hosttune.linux.irqbalance import IRQBALANCE_OURS, parse_ban
from hosttune.machine.reader import Reader
from hosttune.machine.scratch import Scratch
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.plan import Action
from hosttune.model.values import CpuSet, freeze, to_json
from hosttune.planning import plan
from hosttune.settings.irqs import IrqAffinity, IrqbalanceBan

DEVICE = "0000:41:00.0"
HERE = f"/sys/bus/pci/devices/{DEVICE}"


def host(tmp_path: Path, irqs: Mapping[int, str], driver: str = "vfio-pci", wired: int = 0, actions: str = "") -> Path:
    """A scratch root with one device and its interrupts (number: CPUs)."""
    put(tmp_path, f"{HERE}/irq", f"{wired}\n")
    put_link(tmp_path, f"{HERE}/driver", f"/sys/bus/pci/drivers/{driver}")
    for irq, cpus in irqs.items():
        put(tmp_path, f"/proc/irq/{irq}/smp_affinity_list", f"{cpus}\n")
        if irq != wired:
            put(tmp_path, f"{HERE}/msi_irqs/{irq}", "msix\n")
    if wired:
        put(tmp_path, f"/sys/kernel/irq/{wired}/actions", f"{actions}\n")
    return scratch_root(tmp_path)


def affinity(root: Path, irq: int) -> str:
    return (root / f"proc/irq/{irq}/smp_affinity_list").read_text().strip()


# --- interrupts of a device ----------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [{45: "0-3", 46: "0-3"}, {45: "0-3", 46: "2"}])
def test_set_and_given_back(tmp_path: Path, before: Mapping[int, str]) -> None:
    root = host(tmp_path, before)
    setting = IrqAffinity.of(DEVICE)
    old = setting.read(Scratch(str(root)))
    assert old == {str(irq): cpus for irq, cpus in before.items()}
    assert setting.waits_for(Scratch(str(root))) is None
    assert setting.write(Scratch(str(root)), "0-1,8") is None
    assert setting.agrees(setting.read(Scratch(str(root))), "0,1,8")
    assert not setting.agrees(setting.read(Scratch(str(root))), old)
    setting.write(Scratch(str(root)), old)
    assert setting.read(Scratch(str(root))) == old


def test_only_what_differs_is_written(tmp_path: Path) -> None:
    system = Noted(host(tmp_path, {45: "0-1", 46: "2"}))
    IrqAffinity.of(DEVICE).write(system, "0,1")
    assert system.changes == [("write", "/proc/irq/46/smp_affinity_list", "0,1")]


def test_without_its_guest_it_waits(tmp_path: Path) -> None:
    system = Scratch(str(host(tmp_path, {})))
    setting = IrqAffinity.of(DEVICE)
    assert setting.waits_for(system) == "its guest does not run, or has not switched the device's interrupts on yet"
    assert setting.read(system) == {}
    assert not setting.agrees(setting.read(system), "0-1")


def test_before_it_is_bound_its_interrupts_are_another_driver_s(tmp_path: Path) -> None:
    root = host(tmp_path, {45: "0-3"}, driver="nvidia")
    said = "its interrupts are its present driver's: they change when vfio-pci takes it"
    assert IrqAffinity.of(DEVICE).waits_for(Scratch(str(root))) == said
    put_link(root, f"{HERE}/physfn", "/sys/bus/pci/devices/0000:40:00.0")  # a vGPU stays with nvidia
    assert IrqAffinity.of(DEVICE).waits_for(Scratch(str(root))) is None


@pytest.mark.parametrize("driver", ["vfio-pci", "mlx5_vfio_pci"])
def test_with_its_guest_it_need_not_wait(tmp_path: Path, driver: str) -> None:
    assert IrqAffinity.of(DEVICE).waits_for(Scratch(str(host(tmp_path, {45: "0-3"}, driver)))) is None


def test_a_guest_that_ended_leaves_nothing_to_take_back(tmp_path: Path) -> None:
    setting = IrqAffinity.of(DEVICE)
    live = setting.read(Scratch(str(host(tmp_path, {}))))
    assert setting.parts(live) == {}
    assert setting.agrees(live, freeze({"45": "0-3"}))
    assert setting.joined(setting.parts(live)) == live


def test_other_numbers_after_another_start(tmp_path: Path) -> None:
    """All had the same: so have the new ones. They differed: the new ones have had nothing that we know of."""
    setting = IrqAffinity.of(DEVICE)
    root = host(tmp_path, {60: "0-1", 61: "0-1"})
    alike, mixed = freeze({"45": "0-3", "46": "0-3"}), freeze({"45": "0-3", "46": "2"})
    assert not setting.agrees(setting.read(Scratch(str(root))), alike)
    assert setting.agrees(setting.read(Scratch(str(root))), mixed)
    system = Noted(root)
    setting.write(system, mixed)
    assert system.changes == []
    setting.write(system, alike)
    assert (affinity(root, 60), affinity(root, 61)) == ("0-3", "0-3")


def test_another_device_s_interrupt_of_that_number_is_left_alone(tmp_path: Path) -> None:
    root = host(tmp_path, {60: "0-1"})
    put(root, "/proc/irq/45/smp_affinity_list", "7\n")  # ours once
    IrqAffinity.of(DEVICE).write(Scratch(str(root)), freeze({"45": "0-3", "60": "0-3"}))
    assert (affinity(root, 45), affinity(root, 60)) == ("7", "0-3")


@pytest.mark.parametrize("number", [EIO, EPERM])
def test_managed_interrupts_are_told_and_fail_nothing(tmp_path: Path, number: int) -> None:
    root = host(tmp_path, {40: "0-3", 41: "0", 42: "1", 43: "2"}, driver="nvme")
    system = Noted(root)
    system.refused = {f"/proc/irq/{irq}/smp_affinity_list": number for irq in (41, 42, 43)}
    system.refused["/proc/irq/43/smp_affinity_list"] = ENOSPC
    note = IrqAffinity.of(DEVICE).write(system, "0-1")
    assert note == (
        "2 interrupts (41-42) left alone: managed by the kernel;"
        " interrupt 43 left alone: no vector is left on these CPUs"
    )
    assert affinity(root, 40) == "0-1"
    assert not IrqAffinity.of(DEVICE).agrees(IrqAffinity.of(DEVICE).read(system), "0-1")


def test_cpus_that_are_offline_are_an_error(tmp_path: Path) -> None:
    system = Noted(host(tmp_path, {40: "0-3"}))
    system.refused = {"/proc/irq/40/smp_affinity_list": errno.EINVAL}
    with pytest.raises(WriteFailed) as failed:
        IrqAffinity.of(DEVICE).write(system, "99")
    assert (failed.value.path, failed.value.errno) == ("/proc/irq/40/smp_affinity_list", errno.EINVAL)


@pytest.mark.parametrize(
    ("driver", "actions", "found"),
    [
        ("vfio-pci", f"vfio-intx({DEVICE})", True),
        ("vfio-pci", "", False),  # nobody has asked for it: no guest
        ("vfio-pci", f"vfio-intx({DEVICE}),ehci_hcd:usb1", False),  # shared: not its alone
        ("vfio-pci", "vfio-intx(0000:42:00.0)", False),
        ("nvme", "nvme0q0", True),
        ("nvme", "(null)", False),
    ],
)
def test_the_wired_interrupt(tmp_path: Path, driver: str, actions: str, found: bool) -> None:
    system = Scratch(str(host(tmp_path, {16: "0-3"}, driver, 16, actions)))
    assert IrqAffinity.of(DEVICE).read(system) == ({"16": "0-3"} if found else {})


def test_message_interrupts_go_before_the_wired_one(tmp_path: Path) -> None:
    system = Scratch(str(host(tmp_path, {16: "0-3", 45: "1"}, "vfio-pci", 16, f"vfio-intx({DEVICE})")))
    assert IrqAffinity.of(DEVICE).read(system) == {"45": "1"}


def test_a_device_that_is_gone(tmp_path: Path) -> None:
    """A virtual function may be yet to be made, by the same transaction."""
    system, gone = Scratch(str(host(tmp_path, {}))), IrqAffinity.of("0000:99:00.0")
    assert (gone.read(system), gone.waits_for(system)) == ({}, "there is no such device now")


@pytest.mark.parametrize("cut", range(4))
def test_cut_off_it_goes_either_way(tmp_path: Path, cut: int) -> None:
    root = host(tmp_path, {45: "0-3", 46: "2"})
    setting = IrqAffinity.of(DEVICE)
    old = setting.read(Scratch(str(root)))
    with pytest.raises(KilledError):
        setting.write(Noted(root, cut=cut), "0-1")
    setting.write(Scratch(str(root)), "0-1")
    assert setting.agrees(setting.read(Scratch(str(root))), "0-1")
    setting.write(Scratch(str(root)), old)
    assert setting.read(Scratch(str(root))) == old


@pytest.mark.parametrize("value", ["", "x", "3-1", None, 3, "0-1048575", ["0"], "0;1"])
def test_what_is_no_list_of_cpus(value: Any) -> None:
    with pytest.raises(BadInput) as failed:
        IrqAffinity.of(DEVICE).check(value)
    assert failed.value.where == f"action irq-affinity:{DEVICE}"


# --- irqbalance ----------------------------------------------------------------------------------------------

BAN = IrqbalanceBan.of("irqbalance")
FOLDER = "etc/systemd/system/irqbalance.service.d"
OURS = (
    "# Written by hosttune: the CPUs that irqbalance leaves alone. irqbalance(1), 1.8 or later.\n"
    "IRQBALANCE_BANNED_CPUS=\nIRQBALANCE_BANNED_CPULIST=2-7\n"
)


def machine(tmp_path: Path, theirs: str | None, *, installed: bool = True, systemd: bool = True) -> Path:
    if theirs is not None:
        put(tmp_path, "/etc/default/irqbalance", theirs)
    if installed:
        put(tmp_path, "/usr/lib/systemd/system/irqbalance.service", "[Service]\n")
    if systemd:
        (tmp_path / "run/systemd/system").mkdir(parents=True)
    return scratch_root(tmp_path)


def files(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.glob("etc/**/*")) if path.is_file()}


THEIRS = [
    (None, None),
    ("# nothing\n", ""),
    ("IRQBALANCE_BANNED_CPULIST=0-1\n", "0-1"),
    ("IRQBALANCE_BANNED_CPUS=f0\n", "4-7"),
]


@pytest.mark.parametrize(("theirs", "old"), THEIRS)
def test_banned_and_all_files_gone_again(tmp_path: Path, theirs: str | None, old: str | None) -> None:
    root = machine(tmp_path, theirs)
    before = files(root)
    assert BAN.read(Scratch(str(root))) == old
    assert BAN.write(Scratch(str(root)), "2-7") is None
    assert BAN.read(Scratch(str(root))) == "2-7"
    conf = f"[Service]\nEnvironmentFile=-/{FOLDER}/hosttune.env\n"
    assert files(root) == {**before, f"{FOLDER}/hosttune.conf": conf, f"{FOLDER}/hosttune.env": OURS}
    BAN.write(Scratch(str(root)), old)
    assert files(root) == before
    assert not (root / FOLDER).exists()
    assert BAN.read(Scratch(str(root))) == old


def test_from_one_list_of_ours_to_another_and_back(tmp_path: Path) -> None:
    root = machine(tmp_path, None)
    for cpus in ("2-7", "2-9", "2-7"):
        BAN.write(Scratch(str(root)), cpus)
        assert BAN.read(Scratch(str(root))) == cpus
    assert files(root)[f"{FOLDER}/hosttune.env"] == OURS


def test_irqbalance_restarts_before_the_mark_goes(tmp_path: Path) -> None:
    system = Noted(machine(tmp_path, None))
    BAN.write(system, "2-7")
    assert [change[:2] for change in system.changes] == [
        ("replace", IRQBALANCE_OURS),
        ("replace", f"/{FOLDER}/hosttune.conf"),
        ("change", "systemctl"),
        ("change", "systemctl"),
        ("replace", IRQBALANCE_OURS),
    ]
    assert system.changes[2:4] == [
        ("change", "systemctl", "daemon-reload"),
        ("change", "systemctl", "try-restart", "irqbalance.service"),
    ]
    back = Noted(Path(system.root))
    BAN.write(back, None)
    assert [change[:2] for change in back.changes] == [
        ("replace", IRQBALANCE_OURS),
        ("remove", f"/{FOLDER}/hosttune.conf"),
        ("change", "systemctl"),
        ("change", "systemctl"),
        ("remove", IRQBALANCE_OURS),
    ]


def test_a_rehearsal_says_what_a_real_write_does(tmp_path: Path) -> None:
    root = machine(tmp_path, None)
    dry, real = Noted(root, dry=True), Noted(root)
    BAN.write(dry, "2-7")
    BAN.write(real, "2-7")
    assert dry.changes == real.changes != []


@pytest.mark.parametrize(("theirs", "old"), THEIRS)
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("cut", range(10))
def test_cut_off_anywhere_it_is_old_new_or_owed(
    tmp_path: Path, theirs: str | None, old: str | None, back: bool, cut: int
) -> None:
    root = machine(tmp_path, theirs)
    if back:
        BAN.write(Scratch(str(root)), "2-7")
    system = Noted(root, cut=cut)
    with pytest.raises(KilledError):
        BAN.write(system, old if back else "2-7")
    between = BAN.read(Scratch(str(root)))
    restarted = ("change", "systemctl", "try-restart", "irqbalance.service") in system.changes
    assert between in (old, "2-7") or str(between).endswith(" (irqbalance not restarted)")
    if system.changes and not restarted:
        assert str(between).endswith(" (irqbalance not restarted)")
    BAN.write(Scratch(str(root)), between)
    BAN.write(Scratch(str(root)), old)
    assert BAN.read(Scratch(str(root))) == old
    assert not (root / FOLDER).exists()


@pytest.mark.parametrize(
    ("installed", "systemd", "said"),
    [
        (False, True, "irqbalance is not installed: there is nothing to ban now"),
        (True, False, "systemd does not run here"),
    ],
)
def test_nothing_to_restart_is_told(tmp_path: Path, installed: bool, systemd: bool, said: str) -> None:
    system = Noted(machine(tmp_path, None, installed=installed, systemd=systemd))
    note = BAN.write(system, "2-7")
    assert note is not None
    assert note.startswith(said)
    assert BAN.read(system) == "2-7"
    assert [change for change in system.changes if change[0] == "change"] == []


def test_a_masked_irqbalance_is_not_restarted(tmp_path: Path) -> None:
    root = machine(tmp_path, None)
    put(root, "/dev/null", "")
    (root / "etc/systemd/system").mkdir(parents=True)
    (root / "etc/systemd/system/irqbalance.service").symlink_to("/dev/null")
    note = BAN.write(Scratch(str(root)), "2-7")
    assert note is not None
    assert note.startswith("irqbalance is masked")


def test_a_restart_that_fails_is_told_and_stays_owed(tmp_path: Path) -> None:
    root = machine(tmp_path, None)
    system = Noted(root)
    system.failing["systemctl"] = "exit status 1"
    note = BAN.write(system, "2-7")
    assert note == "irqbalance was not restarted, it finds the ban when it starts: exit status 1"
    assert BAN.read(system) == "2-7 (irqbalance not restarted)"
    assert BAN.write(Scratch(str(root)), "2-7") is None
    assert BAN.read(Scratch(str(root))) == "2-7"
    failing = Noted(root)
    failing.failing["systemctl"] = "exit status 1"
    BAN.write(failing, None)
    assert not (root / FOLDER).exists()


def test_our_file_without_its_drop_in_says_nothing(tmp_path: Path) -> None:
    root = machine(tmp_path, "IRQBALANCE_BANNED_CPULIST=0\n")
    put(root, IRQBALANCE_OURS, OURS)
    system = Scratch(str(root))
    assert (BAN.effective(system), BAN.read(system)) == ("0", "2-7 (its drop-in is missing)")


def irqbalance_action(root: Path, settings: Mapping[str, str] | None = None) -> Action | None:
    known = read_settings(Reader(Scratch(str(root))), ()) if settings is None else settings
    document = {**build_host(cards=[Card("0000:41:00.0", 0, group=1)]), "settings": dict(known)}
    intent = intent_of(vcpus=4, memory="4GiB")
    made = plan(Host.from_json(to_json(document)), Intent.from_json(to_json(intent)))
    return next((action for action in made.actions if action.kind == "irqbalance-ban"), None)


def test_a_second_plan_finds_it_done_and_the_administrator_s_ban_kept(tmp_path: Path) -> None:
    root = machine(tmp_path, "IRQBALANCE_BANNED_CPULIST=15\n")
    first = irqbalance_action(root)
    assert first is not None
    assert first.current == BAN.effective(Scratch(str(root))) == "15"
    assert CpuSet([15]) < CpuSet.parse(first.want)
    BAN.check(first.want)
    BAN.write(Scratch(str(root)), first.want)
    assert irqbalance_action(root) is None


@pytest.mark.parametrize("text", ["isolated", "0-1048575", "1-"])
def test_a_host_document_may_say_anything(tmp_path: Path, text: str) -> None:
    assert irqbalance_action(tmp_path, {"/etc/default/irqbalance": text}) is not None


@pytest.mark.parametrize(
    ("text", "banned"),
    [
        ("IRQBALANCE_BANNED_CPUS=f0\nIRQBALANCE_BANNED_CPULIST=1\n", "4-7"),  # irqbalance looks at the mask first
        ("IRQBALANCE_BANNED_CPUS=\nIRQBALANCE_BANNED_CPULIST=1\n", "1"),
        ("IRQBALANCE_BANNED_CPULIST='1-2'\n", "1-2"),
        ("IRQBALANCE_BANNED_CPUS=xyz\n", None),
        ("IRQBALANCE_ARGS=-j\n", ""),
    ],
)
def test_which_variable_counts(text: str, banned: str | None) -> None:
    assert parse_ban(text) == banned


@given(st.text())
def test_any_environment_file_reads(text: str) -> None:
    banned = parse_ban(text)
    assert banned is None or isinstance(banned, str)


@pytest.mark.parametrize("value", ["x", None, 3, "1,0", "0-1048575", "2-7 (irqbalance not restarted)", "1\nX=2"])
def test_what_no_plan_can_want(value: Any) -> None:
    with pytest.raises(BadInput) as failed:
        BAN.check(value)
    assert failed.value.where == "action irqbalance-ban:irqbalance"


@pytest.mark.parametrize("target", ["", "irqbalance ", "../irqbalance", "irqbalance.service"])
def test_it_exists_once(target: str) -> None:
    with pytest.raises(BadInput):
        IrqbalanceBan.of(target)
