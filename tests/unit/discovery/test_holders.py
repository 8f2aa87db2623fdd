"""Who uses a PCI function: trees of /proc and sysfs, and this machine's own /proc."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cutshort import put, put_link, scratch_root

from hosttune.discovery.holders import DeviceUser, device_nodes, holders
from hosttune.machine.capture import Capture
from hosttune.machine.live import LiveMachine
from hosttune.machine.reader import Reader
from hosttune.machine.scratch import Scratch

GPU, OTHER = "0000:41:00.0", "0000:42:00.0"
DEVICES = "/sys/bus/pci/devices"


def function(root: Path, address: str, driver: str | None, minor: int | None = None, **files: str) -> None:
    (root / f"{DEVICES}/{address}".lstrip("/")).mkdir(parents=True)
    if driver is not None:
        put_link(root, f"{DEVICES}/{address}/driver", f"/sys/bus/pci/drivers/{driver}")
    if minor is not None:
        text = f"Model: \t\t NVIDIA H200\nBus Location: \t {address}\nDevice Minor: \t {minor}\n"
        put(root, f"/proc/driver/nvidia/gpus/{address}/information", text)
    for name, text in files.items():
        put(root, f"{DEVICES}/{address}/{name}", text)


def process(root: Path, pid: int, *opened: str, comm: str = "python3", argv: str = "", group: str = "0::/") -> None:
    folder = f"/proc/{pid}"
    put(root, f"{folder}/comm", f"{comm}\n")
    put(root, f"{folder}/cmdline", argv.replace(" ", "\0") + "\0")
    put(root, f"{folder}/cgroup", f"{group}\n")
    (root / f"proc/{pid}/fd").mkdir()
    for number, target in enumerate(opened, 3):
        if target.startswith("/"):
            put(root, target, "")
        (root / f"proc/{pid}/fd/{number}").symlink_to(target)


def capture(root: Path) -> Capture:
    """A tree that is a whole machine, though not a scratch one."""
    (root / ".hosttune").mkdir(exist_ok=True)
    (root / ".hosttune/capture").touch()
    return Capture(str(root))


def texts(root: Path, *addresses: str) -> list[str]:
    return [holder.text for holder in holders(capture(root), addresses)]


def test_the_minor_number_tells_which_node(tmp_path: Path) -> None:
    function(tmp_path, GPU, "nvidia", minor=3)
    function(tmp_path, OTHER, "nvidia", minor=0)
    process(
        tmp_path, 812, "/dev/nvidiactl", "/dev/nvidia3", "/dev/nvidia-uvm", "socket:[55]", argv="/usr/bin/python3 x.py"
    )
    process(tmp_path, 813, "/dev/nvidiactl")  # holds no GPU
    assert holders(capture(tmp_path), [GPU, OTHER]) == (
        DeviceUser(GPU, "/dev/nvidia3", "end process 812", name="python3", pid=812),
    )
    assert texts(tmp_path, GPU) == [f"{GPU}: python3 (process 812) has /dev/nvidia3 open: end process 812"]
    assert texts(tmp_path, OTHER) == []


@pytest.mark.parametrize(
    ("comm", "argv", "group", "text"),
    [
        (
            "nvidia-persiste",
            "/usr/bin/nvidia-persistenced --verbose",
            "0::/system.slice/nvidia-persistenced.service",
            "nvidia-persistenced (process 9, nvidia-persistenced.service) has /dev/nvidia3 open:"
            " systemctl stop nvidia-persistenced",
        ),
        (
            "nvidia-persiste",
            "nvidia-persistenced",
            "0::/",
            "nvidia-persistenced (process 9) has /dev/nvidia3 open: systemctl stop nvidia-persistenced",
        ),
        (
            "nv-hostengine",
            "nv-hostengine -n",
            "1:name=systemd:/system.slice/nvidia-dcgm.service\n0::/",
            "nv-hostengine (process 9, nvidia-dcgm.service) has /dev/nvidia3 open: systemctl stop nvidia-dcgm",
        ),
        (
            "dcgm-exporter",
            "dcgm-exporter",
            "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-" + "ab12" * 16 + ".scope",
            "dcgm-exporter (process 9, container ab12ab12ab12) has /dev/nvidia3 open:"
            " stop container ab12ab12ab12, and what would start it again",
        ),
        (
            "python3",
            "",
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/run.scope",
            "python3 (process 9, run.scope) has /dev/nvidia3 open: end process 9",
        ),
        (
            "qemu-system-x86",
            "/usr/bin/qemu-system-x86_64 -name guest=train0,debug-threads=on -S",
            "0::/machine.slice/machine-qemu1.scope/libvirt/emulator",
            "guest train0, qemu-system-x86_64 (process 9, machine-qemu1.scope) has /dev/nvidia3 open:"
            " virsh shutdown train0",
        ),
    ],
)
def test_who_it_is_and_what_ends_it(tmp_path: Path, comm: str, argv: str, group: str, text: str) -> None:
    function(tmp_path, GPU, "nvidia", minor=3)
    process(tmp_path, 9, "/dev/nvidia3", comm=comm, argv=argv, group=group)
    assert texts(tmp_path, GPU) == [f"{GPU}: {text}"]


def test_a_guest_holds_the_group_of_its_device(tmp_path: Path) -> None:
    function(tmp_path, GPU, "vfio-pci")
    put_link(tmp_path, f"{DEVICES}/{GPU}/iommu_group", "/sys/kernel/iommu_groups/21")
    (tmp_path / "sys/bus/pci/devices" / GPU / "vfio-dev/vfio4").mkdir(parents=True)
    argv = "/usr/bin/qemu-system-x86_64 -name guest=a"
    process(
        tmp_path, 5, "/dev/vfio/vfio", "/dev/vfio/21", "anon_inode:[vfio-device]", comm="qemu-system-x86", argv=argv
    )
    process(tmp_path, 6, "/dev/vfio/devices/vfio4", comm="qemu-kvm", argv="/usr/libexec/qemu-kvm -name b")
    process(tmp_path, 7, "/dev/vfio/vfio", "/dev/vfio/22")
    found = holders(capture(tmp_path), [GPU])
    assert [(holder.pid, holder.guest, holder.what) for holder in found] == [
        (5, "a", "/dev/vfio/21"),
        (6, "b", "/dev/vfio/devices/vfio4"),
    ]
    assert found[1].hint == "virsh shutdown b"


@pytest.mark.parametrize(
    ("entry", "node"),
    [
        ("drm/card1", "/dev/dri/card1"),
        ("drm/renderD129", "/dev/dri/renderD129"),
        ("accel/accel0", "/dev/accel/accel0"),
        ("habanalabs/hl0", "/dev/hl0"),
        ("infiniband_verbs/uverbs2", "/dev/infiniband/uverbs2"),
        ("infiniband_mad/umad2", "/dev/infiniband/umad2"),
        ("nvme/nvme0", "/dev/nvme0"),
        ("nvme/nvme0/nvme0n1", "/dev/nvme0n1"),
        ("nvme/nvme0/ng0n1", "/dev/ng0n1"),
        ("nvme/nvme0/nvme0c0n1", "/dev/nvme0n1"),
        ("virtio3/block/vda", "/dev/vda"),
        ("virtio3/block/vda/vda2", "/dev/vda2"),
    ],
)
def test_nodes_of_every_class(tmp_path: Path, entry: str, node: str) -> None:
    function(tmp_path, GPU, None)
    (tmp_path / "sys/bus/pci/devices" / GPU / entry).mkdir(parents=True)
    process(tmp_path, 3, node)
    process(tmp_path, 4, "/dev/kfd", "/dev/infiniband/rdma_cm")
    put(tmp_path, "/proc/self/mounts", "")
    assert [(holder.pid, holder.what) for holder in holders(capture(tmp_path), [GPU])] == [(3, node)]


@pytest.mark.parametrize(
    ("entry", "node", "other"),
    [
        ("accel/accel3", "/dev/accel/accel_controlD3", "/dev/accel/accel_controlD0"),
        ("habanalabs/hl3", "/dev/hl_controlD3", "/dev/hl_controlD0"),
    ],
)
def test_a_process_that_controls_a_gaudi_uses_it(tmp_path: Path, entry: str, node: str, other: str) -> None:
    """Its control node is a virtual device; the maker's script looks there for users."""
    function(tmp_path, GPU, "habanalabs")
    (tmp_path / "sys/bus/pci/devices" / GPU / entry).mkdir(parents=True)
    process(tmp_path, 3, node)
    process(tmp_path, 4, other)
    put(tmp_path, "/proc/self/mounts", "")
    assert [(holder.pid, holder.what) for holder in holders(capture(tmp_path), [GPU])] == [(3, node)]


KFD = "/sys/class/kfd/kfd/topology/nodes"


def divided(root: Path, *minors: str) -> None:
    """A GPU of amdgpu in partitions, as the KFD topology has them (cases/gpu/kfd); only the first is in its folder."""
    function(root, GPU, "amdgpu")
    (root / "sys/bus/pci/devices" / GPU / "drm/renderD128").mkdir(parents=True)
    put(root, "/proc/self/mounts", "")
    place = int(GPU[5:7], 16) << 8
    for number, minor in enumerate(minors):
        text = f"simd_count 152\nlocation_id {place + number}\ndomain 0\nunique_id 77\n{minor}"
        put(root, f"{KFD}/{number}/properties", text)


def test_a_process_on_a_partition_of_a_divided_gpu_uses_the_gpu(tmp_path: Path) -> None:
    divided(tmp_path, *(f"drm_render_minor {minor}\n" for minor in (128, 129, 130)))
    process(tmp_path, 3, "/dev/kfd", "/dev/dri/renderD130")
    process(tmp_path, 4, "/dev/kfd", "/dev/dri/renderD136")
    assert [(holder.pid, holder.what) for holder in holders(capture(tmp_path), [GPU])] == [(3, "/dev/dri/renderD130")]


@pytest.mark.parametrize("line", ["", "drm_render_minor many\n"])
def test_a_partition_whose_render_node_is_unknown_leaves_the_use_unknown(tmp_path: Path, line: str) -> None:
    divided(tmp_path, "drm_render_minor 128\n", line)
    process(tmp_path, 3, "/dev/null")
    found = holders(capture(tmp_path), [GPU])
    assert {holder.unknown for holder in found} == {True}
    assert any("drm_render_minor" in holder.text for holder in found)


def test_a_partition_counts(tmp_path: Path) -> None:
    function(tmp_path, GPU, "nvme")
    (tmp_path / "sys/bus/pci/devices" / GPU / "nvme/nvme0/nvme0n1").mkdir(parents=True)
    (tmp_path / "sys/class/block/nvme0n1/nvme0n1p3").mkdir(parents=True)
    put(tmp_path, "/proc/self/mounts", "")
    nodes = device_nodes(Reader(capture(tmp_path)), GPU)
    assert nodes == ("/dev/nvme0", "/dev/nvme0n1", "/dev/nvme0n1p3")


def test_one_process_with_two_nodes_and_two_functions(tmp_path: Path) -> None:
    function(tmp_path, GPU, "nvidia", minor=1)
    function(tmp_path, OTHER, "nvidia", minor=0)
    (tmp_path / "sys/bus/pci/devices" / GPU / "drm/card0").mkdir(parents=True)
    process(tmp_path, 3, "/dev/nvidia0", "/dev/nvidia1", "/dev/dri/card0", "/dev/nvidia1")
    found = [(holder.address, holder.what) for holder in holders(capture(tmp_path), [OTHER, GPU])]
    assert found == [(OTHER, "/dev/nvidia0"), (GPU, "/dev/dri/card0, /dev/nvidia1")]


def test_a_node_that_was_removed_is_still_held(tmp_path: Path) -> None:
    function(tmp_path, GPU, "nvidia", minor=1)
    process(tmp_path, 3, "/dev/nvidia1 (deleted)")
    assert [holder.pid for holder in holders(capture(tmp_path), [GPU])] == [3]


def test_an_nvswitch_is_held_by_whoever_has_one_open(tmp_path: Path) -> None:
    function(tmp_path, GPU, "nvidia-nvswitch")
    process(tmp_path, 3, "/dev/nvidia-nvswitchctl", comm="other")
    process(tmp_path, 4, "/dev/nvidia-nvswitch2", comm="nv-fabricmanage", argv="/usr/bin/nv-fabricmanager -c x")
    assert texts(tmp_path, GPU) == [
        f"{GPU}: nv-fabricmanager (process 4) has /dev/nvidia-nvswitch* open: systemctl stop nvidia-fabricmanager"
    ]


# --- the host's own use --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "state", "up"),
    [("0x1003", "down", True), ("0x1002", "up", False), (None, "up", True), (None, "down", False)],
)
def test_an_interface_that_is_up(tmp_path: Path, flags: str | None, state: str, up: bool) -> None:
    function(tmp_path, GPU, "mlx5_core")
    process(tmp_path, 1)
    (tmp_path / "sys/bus/pci/devices" / GPU / "net/eth4").mkdir(parents=True)
    put(tmp_path, "/sys/class/net/eth4/operstate", f"{state}\n")
    if flags:
        put(tmp_path, "/sys/class/net/eth4/flags", f"{flags}\n")
    put(tmp_path, "/proc/net/route", "Iface\tDestination\neth4\t0000A8C0\n")
    said = f"{GPU}: network interface eth4 is up and has routes: take it down if nothing needs it: "
    assert texts(tmp_path, GPU) == ([f"{said}ip link set eth4 down"] if up else [])


@pytest.mark.parametrize(
    ("files", "use"),
    [
        ({}, "is up, and whether it has an address is unknown"),
        ({"/proc/net/route": "Iface\neth5\t00\n"}, None),
        ({"/proc/net/route": "Iface\n", "/proc/net/if_inet6": f"{'fe80':032} 02 40 20 80 eth4\n"}, None),
        (
            {"/proc/net/route": "Iface\n", "/proc/net/if_inet6": f"{'2001':032} 02 40 00 80 eth4\n"},
            "is up and has an address",
        ),
        ({"/proc/net/route": "Iface\n", "/sys/class/net/eth4/upper_br0/x": ""}, "is part of br0"),
    ],
)
def test_an_interface_that_is_merely_up_is_nobodys(tmp_path: Path, files: dict[str, str], use: str | None) -> None:
    function(tmp_path, GPU, "mlx5_core")
    process(tmp_path, 1)
    (tmp_path / "sys/bus/pci/devices" / GPU / "net/eth4").mkdir(parents=True)
    put(tmp_path, "/sys/class/net/eth4/flags", "0x1003\n")
    for path, text in files.items():
        put(tmp_path, path, text)
    assert [holder.what for holder in holders(capture(tmp_path), [GPU])] == (
        [f"network interface eth4 {use}"] if use else []
    )


def test_a_disk_that_is_mounted_swapped_to_or_part_of_an_array(tmp_path: Path) -> None:
    function(tmp_path, GPU, "nvme")
    process(tmp_path, 1)
    (tmp_path / "sys/bus/pci/devices" / GPU / "nvme/nvme0/nvme0n1").mkdir(parents=True)
    for part in ("nvme0n1p1", "nvme0n1p2", "nvme0n1p3"):
        (tmp_path / "sys/class/block/nvme0n1" / part).mkdir(parents=True)
    (tmp_path / "sys/class/block/nvme0n1p3/holders/md0").mkdir(parents=True)
    put(tmp_path, "/proc/self/mounts", "/dev/nvme0n1p1 /srv xfs rw 0 0\n")
    put(tmp_path, "/proc/swaps", "Filename\tType\tSize\n/dev/nvme0n1p2 partition 8\n")
    uses = [holder.what for holder in holders(capture(tmp_path), [GPU])]
    assert uses == ["nvme0n1p1 mounted on /srv", "nvme0n1p2 swap", "nvme0n1p3 held by md0"]


# --- what cannot be known ------------------------------------------------------------------------------------


def test_hidden_files_are_not_nobody(tmp_path: Path) -> None:
    function(tmp_path, GPU, "nvidia", minor=3)
    process(tmp_path, 1)
    process(tmp_path, 7, "/dev/nvidia3")
    put(tmp_path, ".hosttune/unreadable", "/proc/1/fd\tPermission denied\n")
    found = holders(capture(tmp_path), [GPU, OTHER])
    assert [(holder.pid, holder.unknown) for holder in found] == [(7, False), (None, True)]
    assert found[1].text == (
        f"{GPU}, {OTHER}: whether anything uses it is unknown: the open files of 1 process are hidden"
        " (1: Permission denied): run as root on the machine itself, or check the kernel log"
    )


def test_a_gpu_whose_node_is_unknown(tmp_path: Path) -> None:
    function(tmp_path, GPU, "nvidia")
    process(tmp_path, 1)
    (found,) = holders(capture(tmp_path), [GPU])
    assert found.unknown
    assert "which /dev/nvidiaN this is is unknown" in found.what


def test_a_disk_whose_mounts_are_not_known(tmp_path: Path) -> None:
    function(tmp_path, GPU, "nvme")
    process(tmp_path, 1)
    (tmp_path / "sys/bus/pci/devices" / GPU / "nvme/nvme0/nvme0n1").mkdir(parents=True)
    (found,) = holders(capture(tmp_path), [GPU])
    assert found.unknown
    assert found.what.startswith("/proc/self/mounts (absent")


def test_no_process_at_all_is_no_answer(tmp_path: Path) -> None:
    function(tmp_path, GPU, "nvidia", minor=3)
    (found,) = holders(capture(tmp_path), [GPU])
    assert (found.unknown, found.what) == (True, "no process is visible in /proc")


def test_a_scratch_root_has_no_processes(tmp_path: Path) -> None:
    function(tmp_path, GPU, "nvidia")
    assert holders(Scratch(str(scratch_root(tmp_path))), [GPU]) == ()


def test_no_functions_no_question(tmp_path: Path) -> None:
    assert holders(capture(tmp_path), []) == ()


def test_a_process_that_ends_meanwhile_is_none(tmp_path: Path) -> None:
    function(tmp_path, GPU, "nvidia", minor=3)
    process(tmp_path, 1)
    (tmp_path / "proc/77").mkdir()  # its files are gone already
    assert texts(tmp_path, GPU) == []


def test_this_machine(tmp_path: Path) -> None:
    """A walk over the real /proc finds who has a node open, but neither ourselves nor what we have started."""
    node = "/dev/null"
    (tmp_path / "sys/bus/pci/devices" / GPU / "block/null").mkdir(parents=True)

    class Mixed(LiveMachine):
        """This machine's processes, and a tree's devices."""

        def list(self, path: str) -> list[str]:
            return Capture(str(tmp_path)).list(path) if path.startswith("/sys/") else super().list(path)

        def link(self, path: str) -> str | None:
            return Capture(str(tmp_path)).link(path) if path.startswith("/sys/") else super().link(path)

        def read_bytes(self, path: str) -> bytes | None:
            return Capture(str(tmp_path)).read_bytes(path) if path.startswith("/sys/") else super().read_bytes(path)

    script = "sleep 60 3</dev/null >/dev/null 2>&1 & echo $!"  # its shell has ended: nobody's child
    orphan = int(subprocess.run(["sh", "-c", script], capture_output=True, check=True).stdout)
    child = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL)
    try:
        with open(node):
            found = {holder.pid: holder for holder in holders(Mixed(), [GPU])}
    finally:
        child.kill()
        child.wait()
        os.kill(orphan, signal.SIGKILL)
    assert (found[orphan].what, found[orphan].name) == (node, "sleep")
    assert not found.keys() & {os.getpid(), child.pid}


def test_device_files_that_were_handed_down_are_closed_at_the_start(tmp_path: Path) -> None:
    """A wrapper's open device would be ours too, and its driver would wait for us; locks and pipes stay."""
    lock, reader = (tmp_path / "lock").open("w"), os.pipe()
    program = "import os; from hosttune.machine.system import close_inherited_devices; close_inherited_devices();"
    program += "print(sorted(os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if int(n) > 2 and"
    program += " os.path.exists(f'/proc/self/fd/{n}')))"
    with open("/dev/null") as null, lock:
        handed = (null.fileno(), lock.fileno(), reader[0])
        done = subprocess.run([sys.executable, "-c", program], pass_fds=handed, capture_output=True, text=True)
    for end in reader:
        os.close(end)
    assert done.returncode == 0, done.stderr
    assert "/dev/null" not in done.stdout
    assert str(tmp_path / "lock") in done.stdout
    assert "pipe:" in done.stdout
