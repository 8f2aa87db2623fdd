"""The guest's scripts run: on a root of their own, with stand-ins for setpci, nvidia-smi and systemctl.

Only those stand-ins and plain file tools are on the path: nothing here can reach this machine's devices or units.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from domain_shapes import ONE_GPU, TWO_CELLS, changed, plan_of

from hosttune.guest import guest_files
from hosttune.model.plan import PlannedGuest

TOOLS = ("sh", "cat", "chmod", "cmp", "cp", "dirname", "grep", "ln", "mkdir", "mv", "readlink", "rm", "timeout", "tr")
SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]

# Registers are files NAME below $STUB; `keep` drops writes, as vfio does with link control.
SETPCI = """#!/bin/sh
[ "$1" = -s ] || exit 9
name=${3%%=*}
file="$STUB/pci/$2/$name"
[ -f "$file" ] || { echo "setpci: no such device $2" >&2; exit 1; }
old=$(cat "$file")
[ "$name" = "$3" ] && { echo "$old"; exit 0; }
echo "$2 $3" >>"$STUB/writes"
bits=${3#*=}
value=$((0x${bits%:*})) mask=$((0x${bits#*:}))
[ -f "$STUB/pci/$2/keep" ] && exit 0
printf '%04x\\n' $(((0x$old & ~mask) | (value & mask))) >"$file"
"""
NVIDIA_SMI = """#!/bin/sh
[ "$1" = -i ] || exit 9
gpu="$STUB/gpu/$2"
[ -d "$gpu" ] || { echo "No devices were found"; exit 6; }
case $3 in
--query-gpu=persistence_mode) cat "$gpu/persistence" ;;
--query-gpu=power.limit) cat "$gpu/power" ;;
-pm)
    echo "$2 $3 $4" >>"$STUB/writes"
    [ "$4" = 1 ] && echo Enabled >"$gpu/persistence" || echo Disabled >"$gpu/persistence" ;;
-pl)
    echo "$2 $3 $4" >>"$STUB/writes"
    [ "${4%%.*}" -gt 700 ] && { echo "Provided power limit $4 W is not a valid power limit"; exit 4; }
    [ -f "$STUB/clamp" ] && set -- "$1" "$2" "$3" 650
    echo "${4%%.*}.00" >"$gpu/power" ;;
*) exit 9 ;;
esac
"""
SYSTEMCTL = """#!/bin/sh
echo "$*" >>"$STUB/systemctl"
case $1 in
cat) [ -f "$STUB/daemon" ] ;;
is-active) [ -f "$STUB/active" ] ;;
is-enabled) [ -f "$STUB/enabled" ] ;;
enable) : >"$STUB/enabled" ;;
start) : >"$STUB/active" ;;
disable) rm -f "$STUB/enabled" "$STUB/active" ;;
esac
"""
ALL: Mapping[str, Any] = {
    "persistence": True,
    "power_limit_watts": 600,
    "aspm": "off",
    "read_request_bytes": 4096,
    "relaxed_ordering": True,
    "sysctl": {"vm.nr_hugepages": 4},
}
# ASPM L1 and common clock; read requests of 512, payload of 256, relaxed ordering off, no-snoop on.
LINK, DEVICE = "CAP_EXP+10.w", "CAP_EXP+8.w"
AT_BOOT = {LINK: "0142", DEVICE: "2820"}
# As the guest's firmware numbers the buses: below the expanders, not as in the XML.
WHERE = {"0000:41:00.0": "pci0000:40/0000:40:00.0", "0000:42:00.0": "pci0000:40/0000:40:01.0"}
WHERE |= {"0000:81:00.0": "pci0000:80/0000:80:00.0"}
GPUS = ("0000:41:00.0", "0000:81:00.0")
NIC = "0000:42:00.0"


@dataclass(frozen=True)
class Inside:
    """A guest's root, the stand-ins' values, and the bundle as it was unpacked."""

    root: Path
    stub: Path
    bundle: Path

    def run(self, script: str, *arguments: str, shell: str = "dash") -> subprocess.CompletedProcess[str]:
        program = [str(self.stub / "bin" / shell), *(["sh"] if shell == "busybox" else [])]
        environment = {
            "PATH": str(self.stub / "bin"),
            "STUB": str(self.stub),
            "HOSTTUNE_GUEST_ROOT": str(self.root),
        }
        return subprocess.run(
            [*program, script, *arguments], capture_output=True, text=True, check=False, env=environment, timeout=60
        )

    def install(self, *arguments: str, shell: str = "dash") -> subprocess.CompletedProcess[str]:
        return self.run(str(self.bundle / "install.sh"), *arguments, shell=shell)

    def apply(self, *arguments: str, shell: str = "dash") -> subprocess.CompletedProcess[str]:
        return self.run(str(self.root / "usr/local/sbin/hosttune-guest-apply"), *arguments, shell=shell)

    def register(self, address: str, name: str) -> str:
        return (self.stub / "pci" / address / name).read_text().strip()

    def writes(self) -> list[str]:
        path = self.stub / "writes"
        return path.read_text().splitlines() if path.exists() else []

    def values(self) -> dict[str, str]:
        """Every value that a tenant would notice: registers, GPUs, sysctls."""
        places = (*self.stub.glob("pci/*/CAP*"), *self.stub.glob("gpu/*/*"), *self.root.glob("proc/sys/**/*"))
        return {str(path): path.read_text() for path in places if path.is_file()}


def executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def make(tmp_path: Path, guest: PlannedGuest) -> Inside:
    files = guest_files(plan_of(guest), guest.name)
    made = Inside(tmp_path / "root", tmp_path / "stub", tmp_path / "bundle")
    for folder in (made.root / "proc/sys/vm", made.stub / "bin", made.stub / "pci", made.stub / "gpu", made.bundle):
        folder.mkdir(parents=True)
    for name, text in files.bundle.items():
        (made.bundle / name).write_text(text)
    for tool in (*TOOLS, *SHELLS):
        (made.stub / "bin" / tool).symlink_to(shutil.which(tool) or tool)
    for name, text in (("setpci", SETPCI), ("nvidia-smi", NVIDIA_SMI), ("systemctl", SYSTEMCTL)):
        executable(made.stub / "bin" / name, text)
    (made.root / "proc/sys/vm/nr_hugepages").write_text("0\n")
    (made.stub / "daemon").touch()
    for address, port in WHERE.items():
        device = made.root / "sys/devices" / port / address
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "device").write_text("0x2335\n")
        if address == NIC:
            (device / "infiniband/mlx5_4").mkdir(parents=True)
            (made.root / "sys/class/infiniband/mlx5_4/ports/1").mkdir(parents=True)
        (made.stub / "pci" / address).mkdir()
        for register, value in AT_BOOT.items():
            (made.stub / "pci" / address / register).write_text(f"{value}\n")
    for address in GPUS:
        (made.stub / "gpu" / address).mkdir()
        (made.stub / "gpu" / address / "persistence").write_text("Disabled\n")
        (made.stub / "gpu" / address / "power").write_text("700.00\n")
    return made


@pytest.fixture
def inside(tmp_path: Path) -> Inside:
    return make(tmp_path, changed(TWO_CELLS, guest_settings=ALL))


def installed(inside: Inside) -> Inside:
    done = inside.install()
    assert (done.returncode, done.stderr) == (0, "")
    return inside


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("script", ["install.sh", "hosttune-guest-apply"])
def test_the_scripts_are_posix_shell(inside: Inside, script: str, shell: str) -> None:
    done = inside.run("-n", str(inside.bundle / script), shell=shell)
    assert (done.returncode, done.stderr) == (0, "")


def test_shellcheck_has_nothing_to_say(inside: Inside) -> None:
    tool = shutil.which("shellcheck")
    if tool is None:
        pytest.skip("no shellcheck here")
    scripts = [str(inside.bundle / name) for name in ("install.sh", "hosttune-guest-apply")]
    done = subprocess.run([tool, "-s", "sh", *scripts], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == ""


@pytest.mark.parametrize("shell", SHELLS)
def test_every_setting_is_made_where_it_belongs_and_a_second_run_writes_nothing(inside: Inside, shell: str) -> None:
    installed(inside)
    done = inside.apply(shell=shell)
    assert (done.returncode, done.stderr) == (0, "")
    for address in WHERE:
        # Only the masked bits: common clock (0x40), bit 8, payload, no-snoop are as they were.
        assert inside.register(address, LINK) == "0140"
        assert inside.register(address, DEVICE) == "5830"
    for address in GPUS:
        assert (inside.stub / "gpu" / address / "persistence").read_text() == "Enabled\n"
        assert (inside.stub / "gpu" / address / "power").read_text() == "600.00\n"
    assert (inside.root / "proc/sys/vm/nr_hugepages").read_text() == "4\n"
    assert (inside.stub / "enabled").exists()
    assert len(inside.writes()) == 3 * len(WHERE) + 2 * len(GPUS)
    before = inside.writes(), inside.values()
    again = inside.apply(shell=shell)
    assert again.returncode == 0
    assert {line.partition(":")[0] for line in again.stdout.splitlines()} == {"already"}
    assert (inside.writes(), inside.values()) == before


def test_no_write_names_all_or_a_whole_register_or_bit_15(inside: Inside) -> None:
    installed(inside).apply()
    for line in inside.writes():
        address, _, rest = line.partition(" ")
        assert address in WHERE
        if rest.startswith("CAP"):
            value, mask = rest.partition("=")[2].split(":")
            assert int(mask, 16) in (0x0003, 0x7000, 0x0010)
            assert int(value, 16) & ~int(mask, 16) == 0
    assert not any("nvidia-persistenced" not in line for line in (inside.stub / "systemctl").read_text().splitlines())


def test_remove_puts_back_every_value_and_takes_every_file(inside: Inside) -> None:
    before = inside.values()
    installed(inside).apply()
    assert inside.values() != before
    done = inside.install("--remove")
    assert (done.returncode, done.stderr) == (0, "")
    assert inside.values() == before
    assert not (inside.stub / "enabled").exists()
    left = [path for path in inside.root.rglob("*hosttune*") if path.is_file()]
    assert left == []
    assert inside.install("--remove").returncode == 0  # and again: nothing to do


def test_remove_leaves_alone_what_someone_else_has_changed(inside: Inside) -> None:
    installed(inside).apply()
    (inside.stub / "gpu/0000:41:00.0/power").write_text("500.00\n")
    (inside.stub / "pci/0000:42:00.0" / LINK).write_text("0141\n")
    (inside.root / "proc/sys/vm/nr_hugepages").write_text("9\n")
    done = inside.install("--remove")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("left alone: ") == 3
    assert (inside.stub / "gpu/0000:41:00.0/power").read_text() == "500.00\n"
    assert (inside.stub / "gpu/0000:81:00.0/power").read_text() == "700.00\n"
    assert inside.register("0000:42:00.0", LINK) == "0141"
    assert inside.register("0000:42:00.0", DEVICE) == AT_BOOT[DEVICE]
    assert (inside.root / "proc/sys/vm/nr_hugepages").read_text() == "9\n"


def test_after_another_bundle_remove_still_goes_back_to_the_first_values(inside: Inside) -> None:
    before = inside.values()
    installed(inside).apply()
    table = inside.bundle / "hosttune-guest.conf"
    table.write_text(table.read_text().replace("power_limit_watts 600", "power_limit_watts 550"))
    assert installed(inside).apply().returncode == 0
    assert (inside.stub / "gpu/0000:41:00.0/power").read_text() == "550.00\n"
    assert inside.install("--remove").returncode == 0
    assert inside.values() == before


def test_a_power_limit_that_is_clamped_is_told_and_put_back(inside: Inside) -> None:
    (inside.stub / "clamp").touch()
    done = installed(inside).apply()
    assert done.returncode == 0
    assert "clamped: 0000:41:00.0 power limit: asked for 600 W, it is 650.00 W" in done.stdout
    (inside.stub / "clamp").unlink()
    assert inside.install("--remove").returncode == 0
    assert (inside.stub / "gpu/0000:41:00.0/power").read_text() == "700.00\n"


def test_what_cannot_be_put_back_keeps_the_script_and_its_record(inside: Inside) -> None:
    installed(inside).apply()
    (inside.stub / "bin" / "setpci").unlink()
    done = inside.install("--remove")
    assert done.returncode == 1
    assert "failed: bits 0000:41:00.0 CAP_EXP+10.w 0003" in done.stderr
    assert (inside.root / "usr/local/sbin/hosttune-guest-apply").exists()
    executable(inside.stub / "bin" / "setpci", SETPCI)
    assert inside.install("--remove").returncode == 0
    assert inside.register("0000:41:00.0", LINK) == AT_BOOT[LINK]


def test_a_dry_run_writes_nothing_and_says_what_it_would(inside: Inside) -> None:
    files = sorted(inside.root.rglob("*"))
    before = inside.values()
    done = inside.install("--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"would write: {inside.root}/etc/hosttune-guest.conf" in done.stdout
    assert "would write: setpci -s 0000:41:00.0 CAP_EXP+10.w=0000:0003 (ASPM off)" in done.stdout
    assert "would run: nvidia-smi -i 0000:81:00.0 -pl 600 (now 700.00 W)" in done.stdout
    assert (sorted(inside.root.rglob("*")), inside.values(), inside.writes()) == (files, before, [])
    assert not (inside.stub / "active").exists()


def test_a_second_install_writes_nothing(inside: Inside) -> None:
    installed(inside)
    again = inside.install()
    assert {line.partition(":")[0] for line in again.stdout.splitlines()} == {"already"}


def test_a_register_that_the_hypervisor_keeps_is_told_and_no_failure(inside: Inside) -> None:
    for address in WHERE:
        (inside.stub / "pci" / address / "keep").touch()
    done = installed(inside).apply()
    assert done.returncode == 0
    ignored = [line for line in done.stdout.splitlines() if line.startswith("ignored: ")]
    assert len(ignored) == 3 * len(WHERE)
    assert "ignored: 0000:41:00.0 ASPM off: written, and unchanged" in done.stdout


def test_another_device_at_the_place_is_left_alone(inside: Inside) -> None:
    (inside.root / "sys/devices" / WHERE["0000:41:00.0"] / "0000:41:00.0" / "device").write_text("0x2330\n")
    done = installed(inside).apply()
    assert done.returncode == 1
    assert "failed: device 0000:03:00.0 of the plan" in done.stderr
    assert "is 0x10de:0x2330, not 10de:2335: left alone" in done.stderr
    assert inside.register("0000:41:00.0", LINK) == AT_BOOT[LINK]
    assert inside.register("0000:81:00.0", LINK) == "0140"  # the others are done


def test_a_device_that_is_gone_is_a_failure(inside: Inside) -> None:
    shutil.rmtree(inside.root / "sys/devices" / WHERE["0000:81:00.0"])
    done = installed(inside).apply()
    assert done.returncode == 1
    assert done.stderr.startswith("failed: device 0000:05:00.0 of the plan: nothing at")


@pytest.mark.parametrize("value", ["ffff", "a820", "28", "zz20", "2820 0000"])
def test_a_register_that_makes_no_sense_is_left_alone(inside: Inside, value: str) -> None:
    (inside.stub / "pci/0000:42:00.0" / DEVICE).write_text(f"{value}\n")
    done = installed(inside).apply()
    assert done.returncode == 1
    assert done.stderr.count("failed: 0000:42:00.0 ") == 2
    assert not [line for line in inside.writes() if line.startswith(f"0000:42:00.0 {DEVICE}")]


def test_a_power_limit_that_the_driver_refuses_is_a_failure(tmp_path: Path) -> None:
    made = make(tmp_path, changed(TWO_CELLS, guest_settings={"power_limit_watts": 900}))
    done = installed(made).apply()
    assert done.returncode == 1
    assert "failed: 0000:41:00.0 power limit: Provided power limit 900 W is not a valid power limit" in done.stderr


@pytest.mark.parametrize(
    ("tool", "said"), [("nvidia-smi", "no nvidia-smi here: install the driver"), ("setpci", "no setpci here")]
)
def test_a_tool_that_is_missing_is_named(inside: Inside, tool: str, said: str) -> None:
    (inside.stub / "bin" / tool).unlink()
    done = installed(inside).apply()
    assert done.returncode == 1
    assert said in done.stderr


def test_a_daemon_that_runs_already_is_not_taken_away(inside: Inside) -> None:
    (inside.stub / "enabled").touch()
    (inside.stub / "active").touch()
    assert "already: nvidia-persistenced.service" in installed(inside).apply().stdout
    assert inside.install("--remove").returncode == 0
    assert (inside.stub / "enabled").exists()


def test_without_the_daemon_persistence_mode_is_set_all_the_same(inside: Inside) -> None:
    (inside.stub / "daemon").unlink()
    done = installed(inside).apply()
    assert done.returncode == 0
    assert "no nvidia-persistenced here: persistence mode alone" in done.stdout
    assert (inside.stub / "gpu/0000:41:00.0/persistence").read_text() == "Enabled\n"


def test_a_sysctl_that_does_not_exist_is_a_failure_and_the_rest_goes_on(tmp_path: Path) -> None:
    made = make(tmp_path, changed(TWO_CELLS, guest_settings={"sysctl": {"vm.no_such": 1, "vm.nr_hugepages": 7}}))
    done = installed(made).apply()
    assert done.returncode == 1
    assert done.stderr.startswith("failed: sysctl vm.no_such: no ")
    assert (made.root / "proc/sys/vm/nr_hugepages").read_text() == "7\n"


def test_an_unknown_word_of_the_table_is_refused(inside: Inside) -> None:
    installed(inside)
    with (inside.root / "etc/hosttune-guest.conf").open("a") as table:
        table.write("reboot now\n")
    done = inside.apply()
    assert done.returncode == 1
    assert "reboot is not known" in done.stderr


def test_nothing_wanted_touches_nothing(tmp_path: Path) -> None:
    made = make(tmp_path, TWO_CELLS)
    before = made.values()
    done = installed(made).apply()
    assert (done.returncode, done.stderr) == (0, "")
    assert {line.rpartition("/")[2] for line in done.stdout.splitlines()} == {"nccl.conf", "ucx.env"}
    assert (made.values(), made.writes()) == (before, [])


def test_a_guest_without_a_known_port_is_found_by_its_bus_address(tmp_path: Path) -> None:
    made = make(tmp_path, changed(ONE_GPU, controllers=(), guest_settings={"aspm": "off"}))
    bus = made.root / "sys/bus/pci/devices/0000:01:00.0"
    bus.mkdir(parents=True)
    (bus / "vendor").write_text("0x10de\n")
    (bus / "device").write_text("0x2335\n")
    (made.stub / "pci/0000:01:00.0").mkdir()
    (made.stub / "pci/0000:01:00.0" / LINK).write_text("0042\n")
    assert installed(made).apply().stdout.splitlines()[0] == "done: 0000:01:00.0 ASPM off"
    assert made.register("0000:01:00.0", LINK) == "0040"


@pytest.mark.parametrize("arguments", [("--all",), ("--conf",), ("now",)])
def test_other_arguments_are_refused(inside: Inside, arguments: tuple[str, ...]) -> None:
    assert installed(inside).apply(*arguments).returncode == 2
    assert inside.install("--force").returncode == 2
