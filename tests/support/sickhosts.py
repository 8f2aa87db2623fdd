"""The example with faults that validation finds: in each GPU another one, in drives, links, CPUs and settings.

A healthy host shows only that lost evidence is never a pass; these show that it hides no fault either.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from damage import Files, load
from examplehosts import discovered

from hosttune import Intent, domain_xml, plan
from hosttune.machine.system import COMMANDS

EXAMPLE = Path(__file__).parents[2] / "examples" / "hgx-h200-8.tar.xz"
VM = Path(__file__).parents[1] / "hosts" / "older" / "vm-x4.tar.gz"
_SMI = COMMANDS + "nvidia-smi-q-x"
GIVEN = "0000:18:00.0"

# GPU n of nvidia-smi's order: the first element that reads so, and what it reads instead.
_GPU_FAULTS: tuple[tuple[str, str], ...] = (
    ("<remapped_row_pending>No", "<remapped_row_pending>Yes"),
    ("<dram_uncorrectable>0", "<dram_uncorrectable>3"),
    ("<clocks_event_reason_hw_slowdown>Not Active", "<clocks_event_reason_hw_slowdown>Active"),
    ("<pending_mig>Disabled", "<pending_mig>Enabled"),
    ("<gpu_recovery_action>None", "<gpu_recovery_action>Reset"),
    ("<state>In Progress", "<state>Not Started"),
    ("<current_power_limit>700.00 W", "<current_power_limit>400.00 W"),
    ("<pending_ecc>Enabled", "<pending_ecc>Disabled"),
)
_MORE_GPU_FAULTS: tuple[tuple[str, str], ...] = (
    ("<remapped_row_failure>No", "<remapped_row_failure>Yes"),
    ("<gpu_temp_tlimit>42 C", "<gpu_temp_tlimit>-2 C"),
    ("<persistence_mode>Enabled", "<persistence_mode>Disabled"),
    ("<compute_mode>Default", "<compute_mode>Prohibited"),
    ("<sram_uncorrectable_parity>0", "<sram_uncorrectable_parity>1"),
    ("<current_ecc>Enabled", "<current_ecc>Disabled"),
    (
        "<state>In Progress</state>\n\t\t\t<status>N/A",
        "<state>Completed</state>\n\t\t\t<status>Insufficient Resources",
    ),
    ("<clocks_event_reason_sw_thermal_slowdown>Not", "<clocks_event_reason_sw_thermal_slowdown>"),
)


def _smi(host: Files, faults: tuple[tuple[str, str], ...]) -> str:
    gpus = re.split(r"(?=<gpu id=)", host.files[_SMI].decode())
    for number, (now, then) in enumerate(faults):
        assert now in gpus[number + 1], now
        gpus[number + 1] = gpus[number + 1].replace(now, then, 1)
    return "".join(gpus)


def _real(host: Files, path: str) -> str:
    """The file behind a path through one link."""
    folder, _, name = path.rpartition("/")
    found = f"{host.links.get(folder, folder)}/{name}"
    assert found in host.files, found
    return found


def _edit(host: Files, path: str, now: str, then: str) -> tuple[str, str]:
    real = _real(host, path)
    text = host.files[real].decode()
    assert re.search(now, text), (path, text[:200])
    return real, re.sub(now, then, text, count=1)


_DEVICES = "/sys/bus/pci/devices"


@cache
def gpus_and_links() -> Files:
    """A fault in each GPU, on PCIe links and in a drive."""
    host = load(EXAMPLE)
    gpus = [found for found in sorted(host.links) if re.fullmatch(rf"{_DEVICES}/[0-9a-f:.]+", found)]
    names = [path.rpartition("/")[2] for path in gpus if host.files[_real(host, f"{path}/class")].startswith(b"0x0302")]
    edits = [
        _edit(host, f"{_DEVICES}/{names[1]}/aer_dev_fatal", r"TLP 0", "TLP 2"),
        _edit(host, f"{_DEVICES}/{names[2]}/current_link_width", r"16", "8"),
        _edit(host, f"{_DEVICES}/{names[3]}/aer_dev_correctable", r"TOTAL_ERR_COR 0", "TOTAL_ERR_COR 900000000"),
        _edit(host, COMMANDS + "nvidia-smi-nvlink-s", r"(?<=Link 5: )26\.562 GB/s", "<inactive>"),
        _edit(host, COMMANDS + "nvidia-smi-nvlink-e", r"(?<=Link 7: )Replay Errors: 0", "Replay Errors: 12"),
        _edit(host, COMMANDS + "nvme-smart-log-nvme0", r'"critical_warning": 0', '"critical_warning": 4'),
        _edit(host, COMMANDS + "nvme-smart-log-nvme1", r'"media_errors": 0', '"media_errors": 2'),
        _edit(host, COMMANDS + "nvme-smart-log-nvme2", r'"avail_spare": 100', '"avail_spare": 3'),
    ]
    return host.put({_SMI: _smi(host, _GPU_FAULTS), **dict(edits)})


_PORT_FAULTS = (
    ("infiniband/mlx5_0/ports/1/counters/link_downed", "3"),
    ("infiniband/mlx5_1/ports/1/counters/symbol_error", "65535"),
    ("infiniband/mlx5_2/ports/1/sm_lid", "0x0"),
    ("infiniband/mlx5_3/ports/1/rate", "200 Gb/sec (2X NDR)"),
    ("infiniband/mlx5_4/ports/1/state", "1: DOWN"),
    ("infiniband/mlx5_4/ports/1/phys_state", "2: Polling"),
    ("infiniband/mlx5_5/ports/1/state", "1: DOWN"),
    ("infiniband/mlx5_5/ports/1/phys_state", "3: Disabled"),
    ("net/ens2f0np0/statistics/rx_crc_errors", "5000"),
)


def _port(host: Files, path: str) -> str:
    """The real path of a file below a class folder."""
    kind, name, rest = path.split("/", 2)
    return f"{host.links[f'/sys/class/{kind}/{name}']}/{rest}"


@cache
def settings() -> Files:
    """Other faults of the GPUs, and of the host's settings, its network ports and its Fabric Manager."""
    host = load(EXAMPLE)
    edits = [
        _edit(host, "/sys/kernel/mm/transparent_hugepage/enabled", r".+", "[always] madvise never"),
        _edit(host, "/sys/kernel/mm/ksm/run", r".+", "1"),
        _edit(host, "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode", r"N", "Y"),
        _edit(host, "/sys/module/vfio_pci/parameters/disable_denylist", r"N", "Y"),
        _edit(host, "/proc/cmdline", r"$", " pci=noats mitigations=off"),
        _edit(host, "/sys/module/nvidia/version", r"\d+", "550"),
        _edit(host, COMMANDS + "fabric-manager-service", r"ActiveState=active", "ActiveState=failed"),
        _edit(host, COMMANDS + "adjtimex", r"status \d+", "status 64"),
        *(_edit(host, _port(host, path), r".+", then) for path, then in _PORT_FAULTS),
    ]
    return host.put({_SMI: _smi(host, _MORE_GPU_FAULTS), **dict(edits)})


@cache
def with_guest() -> Files:
    """The example with a GPU on vfio-pci and a running guest that has it."""
    host = load(EXAMPLE)
    found = discovered()
    made = plan(
        found, Intent.from_yaml(f"version: 1\nguests: [{{name: a, gpus: ['{GIVEN}'], vcpus: 8, memory: 8GiB}}]")
    )
    real = host.links[f"{_DEVICES}/{GIVEN}"]
    driver = "/sys/bus/pci/drivers/vfio-pci"
    with_list = host.put(
        {
            COMMANDS + "virsh-list": " Id   Name   State\n--------------------\n 1    a      running\n\n",
            COMMANDS + "virsh-dumpxml-a": domain_xml(made, "a"),
        }
    )
    links = {path: to for path, to in with_list.links.items() if path != f"/sys/bus/pci/drivers/nvidia/{GIVEN}"}
    return Files(
        {**with_list.files, f"{real}/driver_override": b"vfio-pci\n"},
        {**links, f"{real}/driver": driver, f"{driver}/{GIVEN}": real},
        with_list.dirs | {driver, "/sys/bus/pci/drivers"},
        "the example with a guest",
    )


@cache
def guest_on_the_far_node() -> Files:
    """The same, and the guest's memory comes from the node that its GPU is not on."""
    host = with_guest()
    path = COMMANDS + "virsh-dumpxml-a"
    return host.put({path: re.sub(r"nodeset='0'", "nodeset='1'", host.files[path].decode())})


@cache
def guest_that_has_to_remap() -> Files:
    """A guest with four H200, of which NVML says that a row of the first is to be remapped, and that links are down."""
    host = load(VM)
    document = json.loads(host.files[COMMANDS + "nvml.json"])
    document["0"]["nvmlDeviceGetRemappedRows"] = [0, 0, 1, 0]
    document["1"]["nvmlDeviceGetEccMode"] = [1, 0]
    return host.put({COMMANDS + "nvml.json": json.dumps(document, indent=1)})


SICK: Mapping[str, Callable[[], Files]] = {
    "example, faults of GPUs and links": gpus_and_links,
    "example, faults of settings": settings,
    "example with a guest": with_guest,
    "example with a guest on the far node": guest_on_the_far_node,
    "older-vm-x4, faults that NVML tells": guest_that_has_to_remap,
}

# The same without the faults.
HEALTHY: Mapping[str, Callable[[], Files]] = {
    "example, faults of GPUs and links": lambda: load(EXAMPLE),
    "example, faults of settings": lambda: load(EXAMPLE),
    "example with a guest on the far node": with_guest,
    "older-vm-x4, faults that NVML tells": lambda: load(VM),
}
