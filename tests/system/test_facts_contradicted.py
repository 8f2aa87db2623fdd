"""Facts of the host that contradict each other, or cannot be: never a better result than the fault alone.

All of a kind are put into one host, since each concerns another check: a look at a host costs a second.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest
from damage import Damage, Files, Found, as_captured, improvements, load, read_by_discovery, validated, with_damage
from sickhosts import EXAMPLE, GIVEN, VM, contradicted, with_guest

from hosttune.linux.pciconfig import CAP_EXPRESS, capability_at
from hosttune.machine.system import COMMANDS, COMPLETE

DEVICES = "/sys/bus/pci/devices"
GPUS = (GIVEN, "0000:29:00.0", "0000:41:00.0", "0000:56:00.0", "0000:9a:00.0", "0000:aa:00.0")
POOL = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/"
MI300X = Path(__file__).parents[1] / "hosts" / "derived" / "amd-mi300x-8-vm.tar.xz"
FABRIC = COMMANDS + "fabric-manager-service"


def _real(host: Files, path: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{host.links.get(folder, folder)}/{name}"


def _put(host: Files, texts: dict[str, str]) -> Files:
    return host.put({_real(host, path): text for path, text in texts.items()})


def _without(host: Files, *paths: str) -> Files:
    gone = {_real(host, path) for path in paths}
    files = {path: data for path, data in host.files.items() if path not in gone}
    links = {path: target for path, target in host.links.items() if path not in gone}
    assert len(files) + len(links) == len(host.files) + len(host.links) - len(gone)
    return Files(files, links, host.dirs, host.origin)


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


def test_ids_of_a_gpu_that_its_configuration_space_does_not_confirm_are_doubtful() -> None:
    host = load(MI300X)
    before = validated(host)
    gpus = sorted(subject for check, subject in before.outcomes if check == "gpu-driver")
    ids = (("class", "0x068000"), ("class", "0x020000"), ("class", "-7"), ("vendor", "0x10de"), ("vendor", "0x8086"))
    put = {f"{DEVICES}/{gpu}/{name}": f"{text}\n" for gpu, (name, text) in zip(gpus, ids, strict=False)}
    damaged = _put(host, put | {f"{DEVICES}/{gpu}/config": "" for gpu in gpus[: len(ids)]})
    after = validated(damaged)
    assert list(improvements(before, after, gpus)) == []
    assert {after.outcomes[("device-present", gpu)] for gpu in gpus[: len(ids)]} == {"unknown"}


def test_a_node_whose_cpus_are_lost_agrees_with_no_local_cpu_list() -> None:
    host, before = _of_two_words(False)
    after = validated(_put(host, {"/sys/devices/system/node/node0/cpulist": "\n"}))
    assert [before.outcomes[("numa-affinity", gpu)] for gpu in (GPUS[1], GPUS[4])] == ["warn", "unknown"]
    assert list(improvements(before, after)) == []


def test_a_nic_without_a_driver_that_has_an_interface_is_doubtful() -> None:
    """Also where the class of its interface was lost: its own folder shows the interface."""
    whole = load(MI300X)
    host = as_captured(whole, read_by_discovery(whole))
    lost = {path for path in (*host.files, *host.links, *host.dirs) if path.startswith("/sys/class/infiniband")}
    files = {path: data for path, data in host.files.items() if path not in lost}
    links = {path: target for path, target in host.links.items() if path not in lost}
    after = validated(Files(files, links, host.dirs - lost, host.origin))
    assert lost
    assert after.outcomes[("device-present", "0010:00:00.0")] == "unknown"


@pytest.mark.parametrize("also", ["", "class", "config"])
def test_a_nic_whose_interface_was_lost_with_its_class_is_no_nic_without_a_driver(also: str) -> None:
    """The manifest of the capture says that the interface's folder was there; only a driver makes it."""
    nic = "0030:00:00.0"
    whole = load(MI300X)
    host = as_captured(whole, read_by_discovery(whole))
    before = validated(host)
    folder = host.links[f"{DEVICES}/{nic}"]
    gone = (f"{folder}/infiniband", "/sys/class", *([f"{folder}/{also}"] if also else []))
    lost = with_damage(host, *(Damage(path, path, path) for path in gone))
    after = validated(lost)
    assert [before.outcomes[(check, nic)] for check in ("device-present", "pcie-link")] == ["unknown", "unknown"]
    assert list(improvements(before, after, [nic])) == []
    assert after.outcomes[("device-present", nic)] == "unknown"
    emptied = Files(lost.files, lost.links, lost.dirs | {f"{folder}/infiniband"}, lost.origin)
    assert validated(emptied).outcomes[("device-present", nic)] == "unknown"


def test_kernel_arguments_that_name_no_parameter_are_not_believed() -> None:
    after = validated(_put(load(EXAMPLE), {"/proc/cmdline": "-7\n"}))
    assert after.outcomes[("kernel-arguments", "host")] == "unknown"


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


# --- a fault that one source still tells -----------------------------------------------------------------------

NEXT, MOVED, NARROW, FAR = GPUS[1], GPUS[2], GPUS[3], GPUS[4]
CPUS = "/sys/devices/system/cpu"
DRIVES = ("0000:01:00.0", "0000:1a:00.0")
EDAC = "/sys/devices/system/edac/mc"
THP = "/sys/kernel/mm/transparent_hugepage/enabled"
FATAL = "aer_dev_fatal"


def _lanes(host: Files, address: str, lanes: int, folder: str | None = None) -> dict[str, bytes]:
    """The file and the register of the lanes in use (PCI Express Base 5.0, 7.5.3.8)."""
    folder = folder or host.links[f"{DEVICES}/{address}"]
    config = bytearray(host.files[f"{folder}/config"])
    at = capability_at(bytes(config), CAP_EXPRESS)
    assert at is not None
    status = int.from_bytes(config[at + 0x12 : at + 0x14], "little") & ~0x3F0 | lanes << 4
    config[at + 0x12 : at + 0x14] = status.to_bytes(2, "little")
    return {f"{folder}/current_link_width": b"%d\n" % lanes, f"{folder}/config": bytes(config)}


def _above(host: Files, address: str) -> str:
    return host.links[f"{DEVICES}/{address}"].rpartition("/")[0]


def _relinked(host: Files, links: dict[str, str | None]) -> Files:
    """The host with these links, None for one that is gone."""
    kept = {path: to for path, to in host.links.items() if path not in links}
    return Files(host.files, kept | {path: to for path, to in links.items() if to}, host.dirs, host.origin)


def _alarm(host: Files, drive: int, word: str, number: int = 3) -> dict[str, str]:
    folder = f"{host.links[f'/sys/class/nvme/nvme{drive}']}/hwmon{number}/temp1_"
    return {f"{folder}input": "45000\n", f"{folder}alarm": word}


def _pages(name: re.Match[str]) -> str:
    return f"{name[1]}: {512 if name[1] == 'Total' else 100}"


@cache
def _faulty() -> Files:
    """One fault for each pair of sources below."""
    host = load(EXAMPLE)
    own, shared = (host.links[f"{host.links[f'{DEVICES}/{a}']}/iommu_group"] for a in (GIVEN, NEXT))
    links: dict[str, str | None] = {
        f"{host.links[f'{DEVICES}/{NEXT}']}/iommu_group": own,
        f"{shared}/devices/{NEXT}": None,
        f"{own}/devices/{NEXT}": host.links[f"{DEVICES}/{NEXT}"],
    }
    files: dict[str, str | bytes] = {
        **_lanes(host, NARROW, 8),
        **_lanes(host, "", 8, _above(host, NARROW)),
        f"{_above(host, MOVED)}/{FATAL}": "TLP 2\nTOTAL_ERR_FATAL 2\n",
        **{path: text for drive in range(3) for path, text in _alarm(host, drive, f"{int(not drive)}\n").items()},
        **{f"{EDAC}/mc{n}/{kind}_count": f"{2 * (not n)}\n" for n in range(3) for kind in ("ue", "ce")},
        THP: "[always] madvise never\n",
        POOL + "nr_hugepages": "512\n",
        POOL + "free_hugepages": "100\n",
        "/proc/meminfo": re.sub(r"(?<=HugePages_)(Total|Free).*", _pages, _text(host, "/proc/meminfo")),
        f"{CPUS}/online": "0-190\n",
        f"{CPUS}/cpu191/online": "0\n",
        **{f"{CPUS}/cpufreq/policy{cpu}/scaling_driver": "acpi-cpufreq\n" for cpu in range(192)},
        **{f"{CPUS}/cpufreq/policy{cpu}/scaling_governor": "powersave\n" for cpu in range(192)},
    }
    return _relinked(host, links).put(files)


@cache
def _faults() -> Found:
    return validated(_faulty())


def _moved(host: Files, address: str, sister: str) -> Files:
    """The folder of a function, below the port of another one."""
    old = host.links[f"{DEVICES}/{address}"]
    new = f"{_above(host, sister)}/{address}"

    def to(path: str) -> str:
        return new + path[len(old) :] if path == old or path.startswith(f"{old}/") else path

    files = {to(path): data for path, data in host.files.items()}
    return Files(files, {to(p): to(t) for p, t in host.links.items()}, frozenset(map(to, host.dirs)), host.origin)


FAULTS = {
    ("iommu-groups", GIVEN): "warn",
    ("pcie-link", NARROW): "fail",
    ("aer", MOVED): "fail",
    ("disk-health", DRIVES[0]): "fail",
    ("machine-check", "host"): "fail",
    ("thp", "host"): "warn",
    ("leftover-pages", "node 0, 2048 KiB"): "warn",
    ("smt", "host"): "warn",
    ("cpu-frequency", "host"): "fail",
}


def test_a_fault_is_healed_in_one_of_its_sources() -> None:
    host, before = _faulty(), _faults()
    assert {key: before.outcomes[key] for key in FAULTS} == FAULTS
    group = host.links[f"{host.links[f'{DEVICES}/{GIVEN}']}/iommu_group"]
    without = _relinked(host, {f"{group}/devices/{NEXT}": None})
    without = _without(without, f"{EDAC}/mc0/ue_count", f"{EDAC}/mc0/ce_count")
    healed = without.put(
        {
            **_lanes(host, NARROW, 16),
            **_alarm(host, 0, "01\n"),
            THP: "[madvise] [always] never\n",
            POOL + "free_hugepages": "512\n",
            f"{CPUS}/online": "0-191\n",
            **{f"{CPUS}/cpufreq/policy{cpu}/scaling_governor": "perf0rmance\n" for cpu in range(192)},
        }
    )
    after = validated(_moved(healed, MOVED, FAR))
    assert list(improvements(before, after)) == []
    assert {after.outcomes[key] for key in FAULTS} == {"unknown"}


def test_a_fault_is_healed_in_another_of_its_sources() -> None:
    """Without root, which sees no registers; the healthy copy stands before the true one."""
    host = _faulty()
    short = {path: data[:64] for path, data in host.files.items() if path.endswith("/config")}
    before = validated(host.put(short))
    folder = host.links[f"{DEVICES}/{NARROW}"]
    healed = host.put(
        {
            **short,
            f"{folder}/max_link_width": "8\n",
            **_alarm(host, 0, ""),
            **_alarm(host, 1, "1\n"),
            **_alarm(host, 1, "0\n", 1),
            THP: "always [madvise] never\n[always] madvise never\n",
            POOL + "nr_hugepages": "0\n",
            POOL + "free_hugepages": "0\n",
            f"{CPUS}/cpufreq/policy0/scaling_driver": "intel_pstate\n",
        }
    )
    after = validated(healed)
    assert list(improvements(before, after)) == []
    told = {
        ("pcie-link", NARROW): "unknown",
        ("disk-health", DRIVES[0]): "unknown",
        ("disk-health", DRIVES[1]): "fail",
        ("thp", "host"): "unknown",
        ("leftover-pages", "node 0, 2048 KiB"): "unknown",
        ("cpu-frequency", "host"): "fail",
    }
    assert {key: after.outcomes.get(key) for key in told} == told


@pytest.mark.parametrize("counters", [(FATAL,), (FATAL, "aer_dev_correctable", "aer_dev_nonfatal")])
def test_what_a_capture_of_our_own_says_is_not_there(counters: tuple[str, ...]) -> None:
    """A manifest that denies one or all AER counters, and the driver that the drivers' folders and the tool name."""
    host = _faulty()
    folder = host.links[f"{DEVICES}/{FAR}"]
    fatal = host.put({f"{folder}/{FATAL}": "TLP 2\nTOTAL_ERR_FATAL 2\n"})
    held = _relinked(fatal, {f"{folder}/driver": "/sys/bus/pci/drivers/nouveau"})
    before = validated(as_captured(held, read_by_discovery(held)))
    gone = _without(fatal, *(f"{folder}/{name}" for name in counters))
    lost = _relinked(gone, {f"{folder}/driver": None})
    after = validated(as_captured(lost, read_by_discovery(lost)))
    assert list(improvements(before, after)) == []
    assert [before.outcomes["aer", FAR], after.outcomes["aer", FAR]] == ["fail", "unknown"]
    assert after.outcomes["device-present", FAR] == "unknown"


def test_a_monitor_without_its_alarm_is_no_healthy_drive() -> None:
    host = load(EXAMPLE)
    calm = host.put(_alarm(host, 1, "0\n"))
    lost = next(path for path in _alarm(host, 1, "") if path.endswith("alarm"))
    found = [validated(one).outcomes["disk-health", DRIVES[1]] for one in (calm, _without(calm, lost))]
    assert found == ["pass", "unknown"]


def test_links_without_aer_counters_are_known_for_such() -> None:
    whole = load(EXAMPLE)
    files = {path: data for path, data in whole.files.items() if "/aer_dev_" not in path}
    host = Files(files, whole.links, whole.dirs, "a host whose firmware handles errors of links")
    found = validated(as_captured(host, read_by_discovery(host)))
    assert {outcome for (check, _), outcome in found.outcomes.items() if check == "aer"} == {"skip"}


PCIE = ("CurrPcieLinkGeneration", "CurrPcieLinkWidth", "MaxPcieLinkWidth")
SMI, NVML = COMMANDS + "nvidia-smi-q-x", COMMANDS + "nvml.json"


def _gpus_links(host: Files, value: int | None) -> Files:
    """A host with NVML's answer of today, and this width of the second GPU's link; None: it is not in the answer."""
    document = json.loads(host.files[NVML])
    for entry in (entry for key, entry in document.items() if key.isdecimal()):
        entry |= {f"nvmlDeviceGet{name}": 5 if "Gen" in name else 16 for name in PCIE}
    document["1"]["nvmlDeviceGetCurrPcieLinkWidth"] = value
    if value is None:
        del document["1"]["nvmlDeviceGetCurrPcieLinkWidth"]
    return host.put({NVML: json.dumps(document)})


def test_a_link_that_the_driver_contradicts_stays_unknown_without_its_answer() -> None:
    """A capture made by hosttune that lost NVML's answer, and one by another tool that lost nvidia-smi's."""
    vm, other = load(VM), load(EXAMPLE)
    (driver,) = (path for path in vm.links if path.endswith("0000:00:07.0/driver"))
    narrow = re.sub(r"(<current_link_width>)16x", r"\g<1>8x", other.files[SMI].decode(), count=1)
    hosts = {
        "as it is": (_gpus_links(vm, 16), "0000:00:07.0", "pass"),
        "NVML contradicts": (_gpus_links(vm, 8), "0000:00:07.0", "unknown"),
        "NVML lost one value": (_gpus_links(vm, None), "0000:00:07.0", "unknown"),
        "NVML lost": (_without(vm, NVML), "0000:00:07.0", "unknown"),
        "NVML lost, and who holds the GPU": (_without(vm, NVML, driver), "0000:00:07.0", "unknown"),
        "nvidia-smi contradicts": (other.put({SMI: narrow}), GIVEN, "unknown"),
        "nvidia-smi lost": (_without(other, SMI), GIVEN, "unknown"),
    }
    found = {name: validated(host).outcomes["pcie-link", gpu] for name, (host, gpu, _) in hosts.items()}
    assert found == {name: outcome for name, (_, _, outcome) in hosts.items()}


def test_the_matrix_alone_says_nothing_of_links() -> None:
    """A capture of another tool with the matrix: NVML's answer lost, beside it nvidia-smi's, and its list of links."""
    cases = VM.parent
    tools = {
        "nvidia-smi-topo-m": "topo-m-x4.txt",
        "nvidia-smi-q-x": "nvidia-smi-q-x4.xml",
        "nvidia-smi-nvlink-s": "nvlink-s-x4.txt",
    }
    whole = _without(load(VM), COMPLETE)
    whole = whole.put({COMMANDS + name: (cases / file).read_text() for name, file in tools.items()})
    gpu = ("nvlink", "0000:00:07.0")
    lost = [_without(whole, *(COMMANDS + name for name in names)) for names in ((), tuple(tools)[1:], tuple(tools)[2:])]
    assert [validated(host).outcomes[gpu] for host in lost] == ["pass"] * 3
    assert [validated(_without(host, NVML)).outcomes[gpu] for host in lost[1:]] == ["unknown"] * 2
