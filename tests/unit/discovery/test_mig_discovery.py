"""vGPU frameworks by sysfs: what is there, what is taken, and whether the manager runs. Trees are synthetic."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from mighosts import A, field_of, functions_of, guest_of, mig_host, parts_of, planned, vgpu_row

from hosttune.gpu.vgpu import read_vgpu
from hosttune.hypervisor.checks import startable
from hosttune.machine.capture import Archive
from hosttune.machine.reader import Reader
from hosttune.machine.system import COMMANDS, COMPLETE
from hosttune.model.gpu import Gpu
from hosttune.model.host import Host, PciDevice
from hosttune.model.values import to_json
from hosttune.model.vgpu import Vgpu, VgpuFunction, VgpuGpu, VgpuType

VFS = tuple(functions_of(A, 2))
PF = PciDevice(address=A, vendor_id="10de", device_id="2335", driver="nvidia", virtfns=VFS)
DEVICES = "/sys/bus/pci/devices"
UUID = "aa618089-8b16-4d01-a136-25a0f3c73123"
SERVICE = f"{COMMANDS}nvidia-vgpu-mgr-service"
VENDOR = {
    f"{DEVICES}/{VFS[0]}/nvidia/current_vgpu_type": "1414\n",
    f"{DEVICES}/{VFS[1]}/nvidia/current_vgpu_type": "0\n",
    f"{DEVICES}/{VFS[0]}/nvidia/creatable_vgpu_types": "",
    f"{DEVICES}/{VFS[1]}/nvidia/creatable_vgpu_types": (
        "ID   : vGPU Name\n1414 : NVIDIA H200X-1-18C\n1420 : NVIDIA H200X-7-141C\n"
    ),
}
MDEV = {
    f"{DEVICES}/{VFS[0]}/mdev_supported_types/nvidia-474/name": "NVIDIA A100X-1-5C\n",
    f"{DEVICES}/{VFS[0]}/mdev_supported_types/nvidia-474/available_instances": "0\n",
    f"{DEVICES}/{VFS[0]}/{UUID}/mdev_type/name": "NVIDIA A100X-1-5C\n",
    f"{DEVICES}/{VFS[1]}/mdev_supported_types/nvidia-474/name": "NVIDIA A100X-1-5C\n",
    f"{DEVICES}/{VFS[1]}/mdev_supported_types/nvidia-474/available_instances": "1\n",
}


def read(files: Mapping[str, str], pf: PciDevice = PF) -> tuple[Vgpu | None, Reader]:
    files = {COMPLETE: "", "/sys/x": "", **files}
    reader = Reader(Archive({path: text.encode() for path, text in files.items()}, {}, "test"))
    return read_vgpu(reader, (pf,), (Gpu(address=A, vendor="nvidia"),)), reader


def test_the_vendors_own_functions() -> None:
    found, reader = read({**VENDOR, SERVICE: "LoadState=loaded\nActiveState=active\n"})
    types = (VgpuType(id="1414", name="NVIDIA H200X-1-18C"), VgpuType(id="1420", name="NVIDIA H200X-7-141C"))
    functions = (VgpuFunction(address=VFS[0], current_type="1414"), VgpuFunction(address=VFS[1], current_type="0"))
    gpu = VgpuGpu(address=A, framework="vfio", functions=functions, types=types)
    assert found == Vgpu(manager=True, sriov_manage=False, gpus=(gpu,))
    assert reader.problems == []


def test_mediated_devices() -> None:
    found, _ = read({**MDEV, "/usr/lib/nvidia/sriov-manage": "#!/bin/bash\n"})
    functions = (VgpuFunction(address=VFS[0], mdevs=(UUID,)), VgpuFunction(address=VFS[1]))
    types = (VgpuType(id="nvidia-474", name="NVIDIA A100X-1-5C", available=1),)
    gpu = VgpuGpu(address=A, framework="mdev", functions=functions, types=types)
    assert found == Vgpu(manager=None, sriov_manage=True, gpus=(gpu,))


@pytest.mark.parametrize(
    ("said", "files", "manager"),
    [
        ("LoadState=loaded\nActiveState=active\n", {}, True),
        ("LoadState=loaded\nActiveState=inactive\n", VENDOR, False),
        ("LoadState=not-found\nActiveState=inactive\n", {}, False),
        ("LoadState=not-found\nActiveState=inactive\n", VENDOR, None),  # a container may run it
        ("", {}, None),
    ],
)
def test_whether_the_manager_runs(said: str, files: Mapping[str, str], manager: bool | None) -> None:
    found, _ = read({**files, SERVICE: said})
    assert found is not None
    assert found.manager is manager


def test_a_gpu_without_a_framework_is_listed_without_one() -> None:
    found, _ = read({})
    assert found == Vgpu(manager=None, sriov_manage=False, gpus=(VgpuGpu(address=A),))


@pytest.mark.parametrize("driver", ["vfio-pci", None])
def test_gpus_that_the_driver_does_not_hold_are_not_probed(driver: str | None) -> None:
    found, _ = read(VENDOR, PciDevice(address=A, vendor_id="10de", driver=driver, virtfns=VFS))
    assert found is None


def test_what_is_no_number_is_a_problem() -> None:
    found, reader = read({**VENDOR, f"{DEVICES}/{VFS[1]}/nvidia/current_vgpu_type": "busy\n"})
    assert found is not None
    assert found.gpus[0].functions[1].current_type is None
    assert [problem.what for problem in reader.problems] == ["not a vGPU type"]


# --- a guest with vGPUs is started when they are there -------------------------------------------------------------


def reasons(current: str) -> list[str]:
    host = mig_host(A)
    guest = planned(parts_of(field_of(host), guest_of()))
    vgpu_row(host, A)["functions"][0]["current_type"] = current
    return [line for line in startable(Host.from_json(to_json(host)), guest) if guest.devices[0].address in line]


def test_a_guest_waits_for_the_type_of_its_function() -> None:
    (none,) = reasons("0")
    assert none.startswith(
        "0000:41:00.4 carries no vGPU yet, it wants NVIDIA H200X-1-18C: hosttune apply --start again"
    )
    assert reasons("1418") == ["0000:41:00.4 carries NVIDIA H200X-3-71C, not NVIDIA H200X-1-18C"]
    assert reasons("1414") == []
