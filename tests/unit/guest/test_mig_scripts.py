"""MIG inside a guest: the seed's script makes the instances at their starts, again at every boot, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from domain_shapes import TWO_CELLS, changed, plan_of
from unit.guest.test_guest_scripts import GPUS, NVIDIA_SMI, SHELLS, Inside, executable, make

from hosttune.errors import BadInput
from hosttune.guest import guest_files
from hosttune.model.intent import GuestIntent, MigRequest
from hosttune.model.plan import MigAssignment, PlannedGuest
from hosttune.planning.host.inside import seed_path

# As the real tool: "mig -lgi" prints a table, "No MIG-enabled devices found." with MIG off (H200, driver 580).
MIG_SMI = r"""#!/bin/sh
if [ "$1" = mig ]; then
    gpu="$STUB/gpu/$3"
    case $4 in
    -lgi)
        [ "$(cat "$gpu/mig")" = Enabled ] || { echo "No MIG-enabled devices found."; exit 0; }
        [ -s "$gpu/instances" ] || { echo "No GPU instances found: Not Found"; exit 6; }
        echo "+-------------------------------------------------------+"
        echo "| GPU instances:                                        |"
        echo "| GPU   Name             Profile  Instance   Placement  |"
        echo "|=======================================================|"
        while read -r name start; do
            echo "|   0  MIG $name          19       1$start          $start:1     |"
        done <"$gpu/instances"
        ;;
    -cgi)
        echo "$*" >>"$STUB/writes"
        [ "$6" = -C ] || exit 9
        [ -f "$gpu/full" ] && { echo "Insufficient Resources"; exit 19; }
        [ -f "$gpu/lies" ] || echo "${5%%:*} ${5##*:}" >>"$gpu/instances"
        ;;
    -dci) echo "$*" >>"$STUB/writes" ;;
    -dgi) echo "$*" >>"$STUB/writes"; : >"$gpu/instances" ;;
    *) exit 9 ;;
    esac
    exit 0
fi
gpu="$STUB/gpu/$2"
case $3 in
--query-gpu=mig.mode.current) cat "$gpu/mig"; exit 0 ;;
-mig)
    echo "$2 $3 $4" >>"$STUB/writes"
    [ -f "$gpu/busy" ] && { echo "In use by another client"; exit 19; }
    [ -f "$gpu/waits" ] && exit 0
    [ "$4" = 1 ] && echo Enabled >"$gpu/mig" || echo Disabled >"$gpu/mig"
    exit 0 ;;
esac
""" + NVIDIA_SMI.removeprefix("#!/bin/sh\n")
FIRST, SECOND = GPUS


def guest_of(*instances: MigAssignment) -> PlannedGuest:
    return changed(TWO_CELLS, mig=instances, guest_settings={"persistence": True})


def on(gpu: str, profile: str, *starts: int) -> tuple[MigAssignment, ...]:
    return tuple(MigAssignment(gpu=gpu, profile=profile, start=start) for start in starts)


@pytest.fixture
def inside(tmp_path: Path) -> Inside:
    passed = [device.address for device in TWO_CELLS.devices if device.kind == "gpu"]
    made = make(tmp_path, guest_of(*on(passed[0], "1g.18gb+me", 0), *on(passed[0], "1g.18gb", 1, 6)))
    executable(made.stub / "bin/nvidia-smi", MIG_SMI)
    for address in GPUS:
        (made.stub / "gpu" / address / "mig").write_text("Disabled\n")
        (made.stub / "gpu" / address / "instances").write_text("")
    return made


def instances(inside: Inside, gpu: str = FIRST) -> list[str]:
    return (inside.stub / "gpu" / gpu / "instances").read_text().splitlines()


@pytest.mark.parametrize("shell", SHELLS)
def test_mode_then_instances_at_their_starts_and_a_second_run_changes_nothing(inside: Inside, shell: str) -> None:
    assert inside.install(shell=shell).returncode == 0
    done = inside.apply(shell=shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert instances(inside) == ["1g.18gb+me 0", "1g.18gb 1", "1g.18gb 6"]
    mig = [line for line in inside.writes() if "mig" in line]
    assert mig[0] == f"{FIRST} -mig 1"
    assert mig[1] == f"mig -i {FIRST} -cgi 1g.18gb+me:0 -C"
    assert not any(SECOND in line for line in mig)
    assert inside.writes().index(mig[0]) < inside.writes().index(f"{FIRST} -pm 1")
    before = inside.writes()
    again = inside.apply(shell=shell)
    assert again.returncode == 0
    assert inside.writes() == before
    assert f"already: {FIRST} MIG 1g.18gb@6" in again.stdout


def test_after_a_boot_without_instances_they_are_made_again(inside: Inside) -> None:
    inside.install()
    inside.apply()
    (inside.stub / "gpu" / FIRST / "instances").write_text("")
    assert inside.apply().returncode == 0
    assert len(instances(inside)) == 3


def test_only_what_is_missing_is_made(inside: Inside) -> None:
    inside.install()
    (inside.stub / "gpu" / FIRST / "mig").write_text("Enabled\n")
    (inside.stub / "gpu" / FIRST / "instances").write_text("1g.18gb 1\n1g.18gb 16\n")
    done = inside.apply()
    assert f"already: {FIRST} MIG 1g.18gb@1\n" in done.stdout
    assert f"done: {FIRST} MIG 1g.18gb@6" in done.stdout


def test_a_dry_run_writes_nothing(inside: Inside) -> None:
    done = inside.install("--dry-run")
    assert f"would run: nvidia-smi -i {FIRST} -mig 1, and create 1g.18gb+me@0,1g.18gb@1,1g.18gb@6" in done.stdout
    assert inside.writes() == []


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("busy", "MIG mode: In use by another client"),
        ("waits", "MIG mode waits for a reset: nvidia-smi -i 0000:41:00.0 --gpu-reset, or restart this guest"),
        ("full", "MIG 1g.18gb@6: Insufficient Resources"),
        ("lies", "MIG 1g.18gb@6: created, and not listed afterwards"),
    ],
)
def test_what_fails_is_told_and_fails_the_unit(inside: Inside, file: str, said: str) -> None:
    inside.install()
    (inside.stub / "gpu" / FIRST / file).touch()
    done = inside.apply()
    assert done.returncode == 1
    assert said in done.stderr


def test_the_way_back_takes_instances_and_mode_away(inside: Inside) -> None:
    inside.install()
    inside.apply()
    assert inside.apply("--restore").returncode == 0
    assert instances(inside) == []
    assert (inside.stub / "gpu" / FIRST / "mig").read_text() == "Disabled\n"


def test_the_unit_comes_before_what_uses_gpus() -> None:
    unit = guest_files(plan_of(TWO_CELLS), TWO_CELLS.name).bundle["hosttune-guest.service"]
    (line,) = [line for line in unit.splitlines() if line.startswith("Before=")]
    assert {"docker.service", "containerd.service", "kubelet.service", "slurmd.service"} <= set(line[7:].split())


def test_a_guest_that_makes_instances_has_a_seed() -> None:
    mig = MigRequest(profile="1g.18gb")
    assert seed_path(GuestIntent(name="a", gpus=1, mig=mig)) == "/var/lib/hosttune/guests/a/seed.iso"
    assert seed_path(GuestIntent(name="a", mig=mig)) is None


@pytest.mark.parametrize("profile", ["1g.18gb;reboot", "$(reboot)", "1g.18gb 1", "", "x@1"])
def test_a_profile_that_is_none_is_refused(profile: str) -> None:
    with pytest.raises(BadInput, match="is not a MIG profile") as caught:
        guest_files(plan_of(guest_of(*on(FIRST, profile, 0))), TWO_CELLS.name)
    assert caught.value.where == "plan: guests['two-cells'].mig[0].profile"


@pytest.mark.parametrize("start", [-1, 16])
def test_a_start_that_is_none_is_refused(start: int) -> None:
    with pytest.raises(BadInput, match="not a memory slice"):
        guest_files(plan_of(guest_of(*on(FIRST, "1g.18gb", start))), TWO_CELLS.name)
