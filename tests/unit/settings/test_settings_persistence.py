"""Files of our own that make settings last: which follow from what is in force, and how they are put and taken away."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hosttune.errors import BadInput, CommandFailed, WriteFailed
from hosttune.machine.scratch import Scratch
from hosttune.settings.drivers import UDEV_RULES, udev_rules
from hosttune.settings.dropin import BOOT_UNIT, FILES, OURS, DropIn, boot_unit, own_command, own_state
from hosttune.transaction.kinds import setting_of
from hosttune.transaction.persistence import Wanted, persistence

RULES = udev_rules(["0000:41:00.0"])
UNIT = boot_unit(own_command(), own_state()) or ""
TEXTS = {UDEV_RULES: RULES, BOOT_UNIT: UNIT}
OTHER = {UDEV_RULES: udev_rules(["0000:c1:00.0"]), BOOT_UNIT: boot_unit("/opt/old/bin/hosttune", "/srv/state") or ""}


def scratch(tmp_path: Path, files: Mapping[str, str], kind: type[Scratch] = Scratch) -> Scratch:
    for name, text in {".hosttune/scratch": "", **files}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return kind(str(tmp_path))


def following(*wanted_settings: Wanted) -> dict[str, str]:
    """Path -> text of the files that follow."""
    actions = persistence(wanted_settings, own_state())
    for action in actions:
        assert action.kind == "drop-in"
        assert action.id == f"drop-in:{action.target}"
        assert not action.needed
        assert action.current is None  # never stale: an earlier apply may have written it
        setting_of(action.kind, action.target).check(action.want)
    return {action.target: action.want for action in actions}


# --- what follows from what ----------------------------------------------------------------------------------


def test_nothing_follows_from_nothing() -> None:
    assert following() == {}


def test_devices_of_earlier_applies_keep_their_rule() -> None:
    earlier: Wanted = ("driver", "0000:41:00.0", "vfio-pci")
    found = following(earlier, ("driver", "0000:c1:00.0", "vfio-pci"))
    assert found[UDEV_RULES] == udev_rules(["0000:41:00.0", "0000:c1:00.0"])
    assert set(found) == {UDEV_RULES, BOOT_UNIT}


def test_the_last_word_on_a_device_counts() -> None:
    found = following(("driver", "0000:41:00.0", "vfio-pci"), ("driver", "0000:41:00.0", "nvidia"))
    assert UDEV_RULES not in found


@pytest.mark.parametrize(
    ("kind", "target", "unit"),
    [
        ("governor", "cpus 2-3", True),
        ("thp", "/sys/kernel/mm/transparent_hugepage/enabled", True),
        ("numa-balancing", "kernel.numa_balancing", True),
        ("irq-affinity", "0000:41:00.0", True),
        ("sysctl", "vm.swappiness", False),
        ("irqbalance-ban", "irqbalance", False),
        ("kernel-argument", "iommu", False),
        ("guest", "g", False),
        ("guest-state", "g", False),
    ],
)
def test_the_unit_follows_from_what_a_reboot_undoes(kind: str, target: str, unit: bool) -> None:
    assert following((kind, target, "x")) == ({BOOT_UNIT: UNIT} if unit else {})


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(BadInput, match="unknown setting kind 'x'"):
        persistence([("x", "y", 1)], None)


def test_settings_of_one_kind_and_target_are_equal() -> None:
    one, other = setting_of("read-request", "0000:41:00.0"), setting_of("read-request", "0000:c1:00.0")
    again, another_kind = type(one).of("0000:41:00.0"), setting_of("relaxed-ordering", "0000:41:00.0")
    assert one == again
    assert len({one, again, other, another_kind}) == 3


# --- the unit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/a b/hosttune", "relative/hosttune", "/a%h/hosttune", "/a\n/hosttune", "/a$x", "", "/"]
)
def test_a_path_that_a_unit_cannot_name_gives_no_unit(path: str) -> None:
    assert boot_unit(path, None) is None
    assert boot_unit("/usr/bin/hosttune", path) is None or path == ""


def test_the_unit_runs_the_hosttune_that_applied_with_its_state() -> None:
    text = boot_unit("/opt/h/bin/hosttune", "/srv/state") or ""
    assert "\nExecStart=/opt/h/bin/hosttune apply --boot\n" in text
    assert "\nEnvironment=HOSTTUNE_STATE=/srv/state\n" in text
    assert "\nRequiresMountsFor=/opt/h/bin/hosttune /srv/state\n" in text
    assert "HOSTTUNE_STATE" not in (boot_unit("/usr/bin/hosttune", None) or "")
    assert os.path.isabs(own_command())


def test_the_unit_comes_before_whoever_takes_the_devices() -> None:
    before = " ".join(line.removeprefix("Before=") for line in UNIT.splitlines() if line.startswith("Before="))
    assert {"libvirtd.service", "virtqemud.service"} <= set(before.split())
    assert {"nvidia-persistenced.service", "nvidia-fabricmanager.service"} <= set(before.split())
    assert ".socket" not in before  # sockets come before the basic system, a service after it: a cycle


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    command = tmp_path / "hosttune"
    command.write_text(f"#!{sys.executable}\n")
    command.chmod(0o755)
    text = boot_unit(str(command), str(tmp_path / "state"))
    assert text is not None
    path = tmp_path / "hosttune-boot.service"
    path.write_text(text)
    found = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(path)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert [line for line in found.stderr.splitlines() if "hosttune" in line] == []
    broken = tmp_path / "broken.service"
    broken.write_text(text.replace("Type=oneshot", "Type=onceshot").replace("ExecStart=/", "ExecStart=no/"))
    told = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(broken)], capture_output=True, text=True, check=False, timeout=60
    )
    assert "onceshot" in told.stderr  # it would have said so


# --- the setting ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(FILES))
def test_forth_and_back(tmp_path: Path, path: str) -> None:
    system = scratch(tmp_path, {})
    setting = DropIn.of(path)
    for value in (None, OTHER[path], TEXTS[path], OTHER[path], None):
        setting.write(system, value)
        assert setting.read(system) == value
    assert not system.exists(path)


def test_the_unit_is_enabled_and_disabled(tmp_path: Path) -> None:
    system = scratch(tmp_path, {})
    DropIn.of(BOOT_UNIT).write(system, UNIT)
    DropIn.of(BOOT_UNIT).write(system, None)
    DropIn.of(BOOT_UNIT).write(system, None)
    name = "hosttune-boot.service"
    assert system.ran() == [
        ("systemctl", "daemon-reload"),
        ("systemctl", "enable", name),
        ("systemctl", "disable", name),
        ("systemctl", "daemon-reload"),
    ]


def test_udev_is_told_where_it_runs(tmp_path: Path) -> None:
    system = scratch(tmp_path, {"run/udev/control": ""})
    DropIn.of(UDEV_RULES).write(system, RULES)
    assert system.ran() == [("udevadm", "control", "--reload")]


class Deaf(Scratch):
    """A scratch root where every command fails."""

    def change(self, argv: tuple[str, ...], *, timeout: float = 60.0, stdin: str | None = None) -> str:
        raise CommandFailed(argv, "exit status 1")


def test_udev_that_cannot_be_told_fails_nothing(tmp_path: Path) -> None:
    system = scratch(tmp_path, {"run/udev/control": ""}, Deaf)
    assert DropIn.of(UDEV_RULES).write(system, RULES) == "udev was not notified: exit status 1"
    assert DropIn.of(UDEV_RULES).read(system) == RULES


class Live(Scratch):
    """A scratch root that is taken for a machine whose systemd makes the links."""

    captured = False

    def change(self, argv: tuple[str, ...], *, timeout: float = 60.0, stdin: str | None = None) -> str:
        wants = Path(self.root) / "etc/systemd/system/multi-user.target.wants/hosttune-boot.service"
        if argv[1] == "enable":
            wants.parent.mkdir(parents=True, exist_ok=True)
            wants.unlink(missing_ok=True)
            wants.symlink_to("../hosttune-boot.service")
        if argv[1] == "disable":
            wants.unlink(missing_ok=True)
        return super().change(argv, timeout=timeout, stdin=stdin)


def test_on_a_machine_a_unit_that_nothing_wants_is_seen(tmp_path: Path) -> None:
    system = scratch(tmp_path, {"run/systemd/system/x": ""}, Live)
    setting = DropIn.of(BOOT_UNIT)
    system.replace(BOOT_UNIT, UNIT.encode())  # where a crash has left it
    found = setting.read(system)
    assert found == "# not enabled\n" + UNIT
    setting.write(system, UNIT)
    assert setting.read(system) == UNIT
    setting.write(system, found)  # an undo may write back what was read
    assert setting.read(system) == found
    setting.write(system, None)
    assert setting.read(system) is None


def test_without_systemd_the_unit_waits(tmp_path: Path) -> None:
    system = scratch(tmp_path, {}, Live)
    assert "systemd does not run here" in (DropIn.of(BOOT_UNIT).waits_for(system) or "")
    assert DropIn.of(UDEV_RULES).waits_for(system) is None
    assert DropIn.of(BOOT_UNIT).waits_for(scratch(tmp_path, {})) is None


@pytest.mark.parametrize("path", sorted(FILES))
def test_somebody_elses_file_is_left_alone(tmp_path: Path, path: str) -> None:
    system = scratch(tmp_path, {path[1:]: "mine\n"})
    for value in (TEXTS[path], None):
        with pytest.raises(WriteFailed, match="there is a file that hosttune did not write") as error:
            DropIn.of(path).write(system, value)
        assert error.value.where == path
    assert system.read(path) == "mine"
    assert system.ran() == []


@pytest.mark.parametrize("target", ["", "/etc/passwd", "/etc/udev/rules.d/../../passwd", BOOT_UNIT + "/", "x"])
def test_only_files_of_ours_are_targets(target: str) -> None:
    with pytest.raises(BadInput, match="not a file of hosttune"):
        DropIn.of(target)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (UDEV_RULES, ""),
        (UDEV_RULES, 1),
        (UDEV_RULES, {"": RULES}),
        (UDEV_RULES, f"{OURS}\n"),
        (UDEV_RULES, RULES + 'RUN+="/bin/sh"\n'),
        (UDEV_RULES, RULES.replace("0000:41:00.0", "0000:zz:00.0")),
        (UDEV_RULES, UNIT),
        (BOOT_UNIT, OTHER[BOOT_UNIT]),
        (BOOT_UNIT, UNIT + "ExecStart=/bin/sh\n"),
        (BOOT_UNIT, UNIT.replace("\n", "\r\n")),
    ],
)
def test_only_what_hosttune_writes_is_wanted(path: str, value: Any) -> None:
    with pytest.raises(BadInput) as error:
        DropIn.of(path).check(value)
    assert path in error.value.where or "driver" in error.value.where
