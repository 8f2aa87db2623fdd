"""Facts of the host that contradict each other, or cannot be: never a better result than the fault alone.

All of a kind are put into one host, since each concerns another check: a look at a host costs a second.
"""

from __future__ import annotations

from functools import cache

import pytest
from damage import Files, Found, as_captured, improvements, load, read_by_discovery, validated
from sickhosts import EXAMPLE, GIVEN, contradicted, with_guest

from hosttune.system import COMMANDS

DEVICES = "/sys/bus/pci/devices"
GPUS = (GIVEN, "0000:29:00.0", "0000:41:00.0", "0000:56:00.0", "0000:9a:00.0", "0000:aa:00.0")
POOL = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/"
FABRIC = COMMANDS + "fabric-manager-service"


def _real(host: Files, path: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{host.links.get(folder, folder)}/{name}"


def _put(host: Files, texts: dict[str, str]) -> Files:
    return host.put({_real(host, path): text for path, text in texts.items()})


def _without(host: Files, *paths: str) -> Files:
    gone = {_real(host, path) for path in paths}
    files = {path: data for path, data in host.files.items() if path not in gone}
    assert len(files) == len(host.files) - len(gone)
    return Files(files, host.links, host.dirs, host.origin)


def _text(host: Files, path: str) -> str:
    return host.files[_real(host, path)].decode()


@cache
def _of_two_words(own: bool) -> tuple[Files, Found]:
    host = contradicted()
    host = as_captured(host, read_by_discovery(host)) if own else host
    return host, validated(host)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("which", [0, 1])
def test_one_of_two_sources_that_differ_is_lost(own: bool, which: int) -> None:
    host, before = _of_two_words(own)
    lost = (
        (f"{DEVICES}/{GPUS[0]}/numa_node", f"{DEVICES}/{GPUS[0]}/local_cpulist"),
        (f"{DEVICES}/{GPUS[1]}/local_cpulist", f"{DEVICES}/{GPUS[1]}/numa_node"),
        (f"{DEVICES}/{GPUS[2]}/current_link_width", f"{DEVICES}/{GPUS[2]}/config"),
        (f"{DEVICES}/{GPUS[3]}/max_link_speed", f"{DEVICES}/{GPUS[3]}/config"),
        (f"{DEVICES}/{GPUS[4]}/local_cpulist", f"{DEVICES}/{GPUS[4]}/numa_node"),
        ("/sys/class/dmi/id/product_name", "/proc/cpuinfo"),
        (POOL + "nr_hugepages", POOL + "free_hugepages"),
    )
    after = validated(_without(host, *(pair[which] for pair in lost)))
    assert list(improvements(before, after)) == []


def test_a_bridge_that_contradicts_its_gpu_loses_its_node() -> None:
    host, before = _of_two_words(False)
    above = host.links[f"{DEVICES}/{GIVEN}"].rpartition("/")[0]
    after = validated(_without(_without(host, f"{above}/numa_node"), f"{DEVICES}/{GIVEN}/local_cpulist"))
    assert before.outcomes[("numa-affinity", GIVEN)] == "warn"
    assert after.outcomes[("numa-affinity", GIVEN)] == "unknown"


@cache
def _sick() -> tuple[Files, Found]:
    """A fault in what each contradiction below is about."""
    host = load(EXAMPLE)
    fatal, some = f"{DEVICES}/{GPUS[1]}/aer_dev_fatal", f"{DEVICES}/{GPUS[3]}/aer_dev_correctable"
    spare = COMMANDS + "nvme-smart-log-nvme2"
    interrupts = "/proc/interrupts"
    found = _put(
        host,
        {
            fatal: _text(host, fatal).replace("TLP 0", "TLP 2"),
            some: _text(host, some).replace("TOTAL_ERR_COR 0", "TOTAL_ERR_COR 900000000"),
            spare: _text(host, spare).replace('"avail_spare": 100', '"avail_spare": 3'),
            POOL + "nr_hugepages": "512\n",
            POOL + "free_hugepages": "100\n",
            COMMANDS + "adjtimex": "status 64 maxerror 16000000\n",
            "/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts": "Y\n",
            "/sys/module/kvm_intel/parameters/enable_apicv": "N\n",
            interrupts: _text(host, interrupts).replace("IR-", ""),
            FABRIC: "LoadState=loaded\nActiveState=failed\n",
            COMMANDS + "fabric-manager-version": "Fabric Manager version is : 550.54.15\n",
        },
    )
    return found, validated(found)


def test_facts_that_contradict_a_fault_or_cannot_be() -> None:
    sick, before = _sick()
    cpuinfo = _text(sick, "/proc/cpuinfo")
    one_flagged = cpuinfo.replace("flags\t\t: ", "flags\t\t: hypervisor ", 1)
    correctable = _text(sick, f"{DEVICES}/{GPUS[0]}/aer_dev_correctable")
    spare = COMMANDS + "nvme-smart-log-nvme2"
    host = _put(
        sick,
        {
            "/proc/cpuinfo": one_flagged.replace("GenuineIntel", "AuthenticAMD"),
            "/sys/class/dmi/id/product_name": "KVM\n",
            "/proc/sys/kernel/arch": "aarch64\n",
            "/proc/uptime": "999999999999.00 1.00\n",
            f"{DEVICES}/{GPUS[1]}/aer_dev_fatal": correctable,
            spare: _text(sick, spare).replace('"avail_spare": 3', '"avail_spare": 255'),
            POOL + "free_hugepages": "9999\n",
            COMMANDS + "adjtimex": "status 1 maxerror 16000000\n",
            FABRIC: "LoadState=not-found\nActiveState=active\n",
            "/sys/module/nvidia/version": "550.54.15\n",
        },
    )
    after = validated(host)
    assert list(improvements(before, after)) == []
    told = {
        ("aer", GPUS[1]): ("fail", "unknown"),
        ("aer", GPUS[3]): ("warn", "unknown"),
        ("disk-health", "0000:2b:00.0"): ("fail", "unknown"),
        ("leftover-pages", "node 0, 2048 KiB"): ("warn", "unknown"),
        ("time-sync", "host"): ("warn", "unknown"),
        ("interrupt-virtualisation", "host"): ("warn", "unknown"),
        ("vfio-unsafe-interrupts", "host"): ("fail", "fail"),
        ("interrupt-remapping", "host"): ("fail", "fail"),
        ("fabric-manager", "host"): ("fail", "unknown"),
        ("driver-fm-version", "host"): ("fail", "unknown"),
    }
    assert {key: (before.outcomes[key], after.outcomes[key]) for key in told} == told


@pytest.mark.parametrize(
    "row", [" 1    a      laufend", " -    a      running", " 1    a      shut off", " 1    a      no state"]
)
def test_a_state_that_is_not_understood_is_no_guest_that_rests(row: str) -> None:
    host = with_guest()
    listed = _text(host, COMMANDS + "virsh-list")
    before = _guests(host)
    after = _guests(_put(host, {COMMANDS + "virsh-list": listed.replace(" 1    a      running", row)}))
    assert list(improvements(before, after)) == []
    assert {after.outcomes[(check, "a")] for check in ("guest-pins", "guest-memory", "guest-definition")} == {"unknown"}


@cache
def _guests_before() -> Found:
    return validated(with_guest())


def _guests(host: Files) -> Found:
    return _guests_before() if host is with_guest() else validated(host)
