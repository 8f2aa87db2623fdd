"""`apply --boot` beside guests, other settings and power cuts; and a way back that takes nothing from its users."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from configspace import space
from domain_shapes import changed
from faultkinds import EXAMPLES, GPU, PORT, VM, Content, Example, host, together
from faultlab import Faults, fresh_root, kill, quiet, run_forked, send, site_on, transactions

from hosttune.errors import BadInput, Refused
from hosttune.machine.scratch import Scratch
from hosttune.machine.system import STATE_INSIDE
from hosttune.model.plan import Device
from hosttune.model.result import Result
from hosttune.model.values import to_json
from hosttune.transaction import ApplyOptions, apply_plan, reapply, recover, revert, status
from hosttune.transaction.site import Site
from hosttune.transaction.writing import interruptible

ANOTHER_BOOT = "22222222-0000-4000-8000-000000000000"
LATENCY = "sys/devices/system/cpu/cpu{}/power/pm_qos_resume_latency_us"
POOL = "sys/devices/system/node/node0/hugepages/hugepages-2048kB"
PAGES = f"hugepages:/{POOL}/nr_hugepages"
ACS = "SrcValid ReqRedir CmpltRedir UpstreamFwd"


def apply(root: Path, example: Example) -> dict[str, str]:
    options = ApplyOptions(start=example.start, disrupt=frozenset(target for _, target, _ in example.wants))
    result, code = apply_plan(site_on(root), example.plan, options, host, lambda todo: True, quiet)
    assert code == 0, result
    return outcomes(result)


def applied(tmp_path: Path, example: Example) -> Path:
    root = fresh_root(tmp_path / "root", example.files, example.links)
    apply(root, example)
    return root


def outcomes(result: Result) -> dict[str, str]:
    return {entry.action: entry.outcome for entry in result.entries}


def put(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def booted(root: Path) -> Site:
    return site_on(root, boot_id=ANOTHER_BOOT)


def again(root: Path) -> tuple[dict[str, str], int]:
    result, code = reapply(booted(root), quiet)
    return outcomes(result), code


def latencies(*wants: tuple[str, str]) -> Example:
    files: dict[str, Content] = {LATENCY.format(cpu): "0\n" for cpu in range(8)}
    return Example("latencies", files, tuple(("resume-latency", f"cpus {cpus}", want) for cpus, want in wants))


def user_of_the_device(root: Path) -> None:
    """A guest that hosttune knows nothing of has the device's group open."""
    put(root, {"proc/4321/comm": "qemu-system-x86\n", "proc/4321/cmdline": "qemu-system-x86_64\0-name\0guest=theirs\0"})
    put(root, {"dev/vfio/7": ""})
    (root / "proc/4321/fd").mkdir()
    os.symlink("/dev/vfio/7", root / "proc/4321/fd/9")


# --- the boot unit -------------------------------------------------------------------------------------------


def test_a_guest_that_was_shut_down_stays_so(tmp_path: Path) -> None:
    root = applied(tmp_path, EXAMPLES["guest-state"])
    (root / ".hosttune/commands/virsh-domstate-vm").unlink()
    assert again(root) == ({}, 0)
    assert not (root / ".hosttune/commands/virsh-domstate-vm").exists()


class Deaf(Scratch):
    """A scratch root whose libvirt must not be asked."""

    def query(self, name: str, live: Any) -> str | None:
        assert not name.startswith("virsh"), name
        return super().query(name, live)


def test_libvirt_is_not_asked_for_it_waits_for_the_unit(tmp_path: Path) -> None:
    root = applied(tmp_path, EXAMPLES["guest-state"])
    result, code = reapply(msgspec.structs.replace(booted(root), system=Deaf(str(root))), quiet)
    assert (outcomes(result), result.drift, code) == ({}, (), 0)


def test_lists_of_cpus_that_overlap_are_set_one_after_the_other(tmp_path: Path) -> None:
    root = applied(tmp_path, latencies(("0-3", "10")))
    apply(root, latencies(("2-7", "20")))
    assert status(site_on(root))[1] == 0  # the first list has lost two CPUs to the second: that is no drift
    put(root, {LATENCY.format(cpu): "0\n" for cpu in range(8)})
    assert again(root) == ({"resume-latency:cpus 0-3": "done", "resume-latency:cpus 2-7": "done"}, 0)
    assert [(root / LATENCY.format(cpu)).read_text() for cpu in range(8)] == ["10\n"] * 2 + ["20\n"] * 6
    put(root, {LATENCY.format(1): "30\n"})
    (drift,) = status(site_on(root))[0].drift
    assert drift.action == "resume-latency:cpus 0-1"
    put(root, {LATENCY.format(1): "10\n"})
    assert set(outcomes(revert(booted(root), quiet)[0]).values()) == {"reverted"}
    assert {(root / LATENCY.format(cpu)).read_text() for cpu in range(8)} == {"0\n"}


@pytest.mark.parametrize("at", range(1, 12))
def test_a_power_cut_in_one_boot_does_not_hold_up_the_next(at: int, tmp_path: Path) -> None:
    example = latencies(("0-3", "10"))
    root = applied(tmp_path, example)
    put(root, {LATENCY.format(cpu): "0\n" for cpu in range(4)})
    ended = run_forked(
        root, lambda site: reapply(msgspec.structs.replace(site, boot_id="33"), quiet), Faults(at=at, act=kill)
    )
    assert ended.code is None
    assert again(root)[1] == 0
    assert {(root / LATENCY.format(cpu)).read_text() for cpu in range(4)} == {"10\n"}
    assert revert(booted(root), quiet)[1] == 0
    assert {(root / LATENCY.format(cpu)).read_text() for cpu in range(4)} == {"0\n"}


def test_told_to_stop_it_stops_and_says_so(tmp_path: Path) -> None:
    """systemd's TimeoutStartSec ends in SIGTERM: what it was at is taken back, the next one is not begun."""
    root = applied(tmp_path, latencies(("0-3", "10"), ("4-7", "20")))
    codes = []
    for at in range(1, 60):
        put(root, {LATENCY.format(cpu): "0\n" for cpu in range(8)})
        ended = run_forked(root, lambda site: reapply(site, quiet), Faults(at=at, act=send(signal.SIGTERM)))
        if not ended.fired:
            break
        codes.append(ended.code)
        assert not any(one.is_open for one in transactions(root)), ended.fired
    assert ended.code == 0
    assert set(codes) <= {0, 1, 130, None}
    assert codes.count(1) > 10


def test_a_device_in_use_is_left_with_its_users(tmp_path: Path) -> None:
    root = applied(tmp_path, EXAMPLES["driver"])
    folder = next(root.glob(f"sys/devices/*/*/{GPU}"))
    (folder / "driver").unlink()
    (root / "sys/bus/pci/drivers/nvidia").mkdir(exist_ok=True)
    (folder / "driver").symlink_to(os.path.relpath(root / "sys/bus/pci/drivers/nvidia", folder))
    put(root, {f"proc/driver/nvidia/gpus/{GPU}/information": "Device Minor: \t 3\n", "proc/77/comm": "python3\n"})
    put(root, {"dev/nvidia3": ""})
    (root / "proc/77/fd").mkdir()
    os.symlink("/dev/nvidia3", root / "proc/77/fd/5")
    result, code = reapply(booted(root), quiet)
    (entry,) = result.entries
    assert (entry.outcome, code) == ("failed", 1)
    assert "python3 (process 77) has /dev/nvidia3 open" in (entry.why or "")
    assert os.readlink(folder / "driver").endswith("/nvidia")


def test_another_card_in_the_place_of_a_guests_is_left_alone(tmp_path: Path) -> None:
    """A card more or less, and buses get other numbers: what is there now may be what the host boots from."""
    driver = EXAMPLES["driver"]
    device = Device(address=GPU, kind="gpu", guest_cell=0, guest_address="0000:01:00.0", identity=f"{GPU} 10de:2335")
    files = {**driver.files, **EXAMPLES["guest"].files}
    root = fresh_root(tmp_path / "root", files, driver.links)
    folder = next(root.glob(f"sys/devices/*/*/{GPU}"))
    put(root, {f"{folder.relative_to(root)}/device": "0x2335\n"})
    apply(root, Example("driver", files, driver.wants, driver.links))
    plan = json.loads((kept := next(root.glob(f"{STATE_INSIDE[1:]}/transactions/*.plan.json"))).read_text())
    guest = json.loads(to_json(changed(VM, devices=(device,))))
    kept.write_text(json.dumps({**plan, "guests": [guest]}))
    (folder / "driver").unlink()
    put(root, {f"{folder.relative_to(root)}/device": "0x1021\n"})
    result, code = reapply(booted(root), quiet)
    assert (outcomes(result), code) == ({f"driver:{GPU}": "failed"}, 1)
    assert "is 10de:1021 now, and 10de:2335 was given to a guest" in (result.entries[0].why or "")
    put(root, {f"{folder.relative_to(root)}/device": "0x2335\n"})
    assert again(root) == ({f"driver:{GPU}": "done"}, 0)


def test_pages_that_others_have_added_stay(tmp_path: Path) -> None:
    root = applied(tmp_path, EXAMPLES["hugepages"])
    put(root, {f"{POOL}/nr_hugepages": "100\n"})
    assert again(root) == ({PAGES: "already"}, 0)
    assert (root / POOL / "nr_hugepages").read_text() == "100\n"


class Short(Scratch):
    """A scratch root that has no more than 40 pages to give."""

    def write(self, path: str, text: str) -> None:
        super().write(path, str(min(40, int(text))) if path.endswith("nr_hugepages") else text)


def test_what_a_boot_gave_less_of_is_told_and_taken_back(tmp_path: Path) -> None:
    root = applied(tmp_path, EXAMPLES["hugepages"])
    put(root, {f"{POOL}/nr_hugepages": "0\n", f"{POOL}/free_hugepages": "0\n"})
    result, code = reapply(msgspec.structs.replace(booted(root), system=Short(str(root))), quiet)
    assert (outcomes(result), code) == ({PAGES: "clamped"}, 1)
    assert outcomes(revert(booted(root), quiet)[0])[PAGES] == "reverted"
    assert (root / POOL / "nr_hugepages").read_text() == "3\n"


def test_what_others_change_after_the_boot_set_it_is_a_conflict(tmp_path: Path) -> None:
    root = applied(tmp_path, EXAMPLES["thp"])
    path = "sys/kernel/mm/transparent_hugepage/enabled"
    put(root, {path: "[always] madvise never\n"})
    assert again(root)[1] == 0
    assert len(transactions(root)) == 2
    assert again(root)[1] == 0  # once more, with nothing to do: it is still known who set it
    put(root, {path: "always [madvise] never\n"})
    assert "conflict" in outcomes(revert(booted(root), quiet)[0]).values()
    assert (root / path).read_text() == "always [madvise] never\n"


def test_set_again_and_again_there_is_one_journal_of_it(tmp_path: Path) -> None:
    root = applied(tmp_path, EXAMPLES["ksm"])
    for _ in range(4):
        put(root, {"sys/kernel/mm/ksm/run": "1\n"})
        assert again(root)[1] == 0
    assert [one.header.verb for one in transactions(root)] == ["apply", "boot"]
    assert set(outcomes(revert(booted(root), quiet)[0]).values()) == {"reverted"}
    assert [one.header.verb for one in transactions(root)] == ["apply", "revert"]


@pytest.mark.parametrize("extra", [["--dry-run"], ["--start"], ["--no-guests"], ["--disrupt", GPU], ["plan.json"]])
def test_the_boot_units_option_stands_alone(extra: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A rehearsal above all: `--boot --dry-run` must not write."""
    from hosttune.cli import run

    assert run(["apply", "--boot", *extra]) == BadInput.exit_code
    assert "give --boot alone" in capsys.readouterr().err


# --- the way back --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [revert, recover])
def test_a_device_that_somebody_elses_guest_has_is_not_pulled_from_it(way: Any, tmp_path: Path) -> None:
    root = applied(tmp_path, EXAMPLES["driver"])
    if way is recover:
        journal = Path(transactions(root)[0].path)
        journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:3]))
    user_of_the_device(root)
    with pytest.raises(Refused, match=r"(?s)in use:.*guest theirs.*process 4321") as refused:
        way(site_on(root), quiet)
    assert "virsh shutdown theirs" in refused.value.what
    assert (root / f"sys/bus/pci/devices/{GPU}/driver_override").read_text() == "vfio-pci\n"
    os.unlink(root / "proc/4321/fd/9")
    assert way(site_on(root), quiet)[1] == 0


def test_pages_of_running_guests_are_not_taken(tmp_path: Path) -> None:
    root = applied(tmp_path, EXAMPLES["hugepages"])
    put(root, {f"{POOL}/free_hugepages": "10\n"})
    with pytest.raises(Refused, match=r"54 pages of .* are used, and the way back would leave 3"):
        revert(site_on(root), quiet)
    assert (root / POOL / "nr_hugepages").read_text() == "64\n"
    put(root, {f"{POOL}/free_hugepages": "61\n"})  # no more in use than were there before
    assert revert(site_on(root), quiet)[1] == 0


def test_isolation_comes_before_devices_change_hands_and_goes_after_them(tmp_path: Path) -> None:
    """Its bits may not be cleared while vfio-pci has a device below: the other order could never be reverted."""
    acs, driver = EXAMPLES["acs"], EXAMPLES["driver"]
    gpu = {name: text for name, text in driver.files.items() if not name.endswith("/config")}
    bridge = next(target for name, target in acs.links.items() if name.endswith(f"/{PORT}"))
    both = Example(
        "both",
        {**acs.files, **gpu, f"{bridge}/{GPU}/config": space(aspm=3), "sys/kernel/iommu_groups/7/.keep": ""},
        (("driver", GPU, "vfio-pci"), ("acs", PORT, ACS)),
        {**acs.links, **driver.links},
    )
    root = applied(tmp_path, both)
    kinds = [record.kind for record in transactions(root)[0].records]
    assert kinds.index("acs") < kinds.index("driver")
    result, code = revert(site_on(root), quiet)
    assert (set(outcomes(result).values()), code) == ({"reverted"}, 0)


def test_an_argument_that_a_later_apply_changes_has_not_drifted(tmp_path: Path) -> None:
    grub = EXAMPLES["kernel-argument by GRUB"]
    pages = "hugepagesz=1G hugepages=0:{}"
    first = replace(
        grub, wants=(("kernel-argument", "hugepages", pages.format(8)), ("kernel-argument", "iommu", "iommu=pt"))
    )
    root = applied(tmp_path, first)
    put(root, {"proc/cmdline": f"ro quiet iommu=pt {pages.format(8)}\n"})
    apply(root, replace(grub, wants=(("kernel-argument", "hugepages", pages.format(16)),)))
    result, code = status(site_on(root))
    assert (code, outcomes(result)["kernel-argument:hugepages"]) == (0, "pending")
    put(root, {"proc/cmdline": f"ro quiet iommu=pt {pages.format(16)}\n"})
    result, code = status(site_on(root))
    assert (code, result.reboot_required, result.drift) == (0, False, ())
    assert [entry.action for entry in result.entries].count("kernel-argument:hugepages") == 1
    assert set(outcomes(revert(site_on(root), quiet)[0]).values()) == {"reverted"}
    assert not (root / "etc/default/grub.d/zz-hosttune.cfg").exists()


# --- the engine ----------------------------------------------------------------------------------------------


class Resetting(Scratch):
    """A scratch root where the first setting, written, makes the second one what is wanted (or `other`)."""

    other: ClassVar[str] = "never"

    def write(self, path: str, text: str) -> None:
        super().write(path, text)
        if path == "/sys/kernel/mm/ksm/run":
            put(Path(self.root), {"sys/kernel/mm/transparent_hugepage/enabled": f"always madvise [{self.other}]\n"})
            self.forget()


def test_what_an_earlier_step_has_brought_needs_no_write_and_is_no_conflict(tmp_path: Path) -> None:
    both = together(EXAMPLES["ksm"], EXAMPLES["thp"])
    root = fresh_root(tmp_path / "root", both.files, both.links)
    site = msgspec.structs.replace(site_on(root), system=Resetting(str(root)))
    result, code = apply_plan(site, both.plan, ApplyOptions(), host, lambda todo: True, quiet)
    assert code == 0
    assert outcomes(result)["thp:/sys/kernel/mm/transparent_hugepage/enabled"] == "done"
    assert revert(site_on(root), quiet)[1] == 0
    assert (root / "sys/kernel/mm/transparent_hugepage/enabled").read_text().startswith("[always]")


def test_needed_and_not_to_be_read_fails_before_the_first_write(tmp_path: Path) -> None:
    """Arguments of the kernel, too: their file is not as hosttune writes it."""
    both = together(EXAMPLES["kernel-argument by GRUB"], EXAMPLES["ksm"])
    root = fresh_root(tmp_path / "root", both.files, both.links)
    put(root, {"etc/default/grub.d/zz-hosttune.cfg": "GRUB_TIMEOUT=5\n"})
    result, code = apply_plan(site_on(root), both.plan, ApplyOptions(), host, lambda todo: True, quiet)
    assert (code, result.changed) == (1, False)
    assert (root / "sys/kernel/mm/ksm/run").read_text() == "1\n"


def test_identities_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    driver = EXAMPLES["driver"]
    root = fresh_root(tmp_path / "root", driver.files, driver.links)
    put(root, {f"{STATE_INSIDE[1:]}/gpus.json": "{"})
    with pytest.raises(Refused, match="identities of GPUs") as refused:
        apply(root, driver)
    assert refused.value.where.endswith("gpus.json")


def test_what_is_to_be_ignored_stays_ignored() -> None:
    """nohup ignores SIGHUP so that a lost connection ends nothing."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert callable(signal.getsignal(signal.SIGTERM))
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
