"""Which functions are GPUs, whose they are, and what is asked of whom."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from hosttune.errors import CommandFailed
from hosttune.gpu import read_gpus
from hosttune.gpu.amd_topology import NODES, read_xgmi
from hosttune.gpu.habana import parse_hl_smi
from hosttune.machine.capture import Archive, Capture
from hosttune.machine.reader import Reader
from hosttune.machine.system import System
from hosttune.model.gpu import Gpu, Peer
from hosttune.model.host import PciDevice

H200 = Path(__file__).parents[2] / "hosts" / "h200"
CASES = Path(__file__).parents[2] / "cases" / "gpu"
A, B, C, D = (f"0000:00:0{n}.0" for n in range(6, 10))


def function(address: str = "0000:41:00.0", ids: str = "10de:2335", class_code: str = "030200") -> PciDevice:
    vendor, device = ids.split(":")
    return PciDevice(address=address, vendor_id=vendor, device_id=device, class_code=class_code)


def nvidia(address: str, driver: str | None = "nvidia", status: str | None = "active") -> PciDevice:
    return PciDevice(
        address=address, vendor_id="10de", device_id="2335", class_code="030200", driver=driver, runtime_status=status
    )


def write(root: Path, files: dict[str, str]) -> Reader:
    """A capture that holds these files."""
    for path, text in files.items():
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return Reader(Capture(str(root)))


def record(root: Path, **outputs: Path) -> Reader:
    """A capture of a live host that answered these commands (underscores for hyphens)."""
    commands = root / ".hosttune" / "commands"
    commands.mkdir(parents=True)
    for name, source in outputs.items():
        shutil.copy(source, commands / name.replace("_", "-"))
    return Reader(Capture(str(root)))


class Live(System):
    """A live machine without files, whose commands are not installed; it notes which were tried."""

    captured = False

    def __init__(self) -> None:
        self.tried: list[str] = []

    def read_bytes(self, path: str) -> bytes | None:
        return None

    def list(self, path: str) -> list[str]:
        return []

    def link(self, path: str) -> str | None:
        return None

    def exists(self, path: str) -> bool:
        return False

    def query(self, name: str, live: object) -> str | None:
        self.tried.append(name)
        return live() if callable(live) and name != "nvml.json" else None

    def run(self, argv: tuple[str, ...], *, timeout: float = 20.0) -> str:
        self.tried.append(" ".join(argv))
        raise CommandFailed(argv, "not installed")


# --- which are GPUs, and whose -----------------------------------------------------------------------------------

BRIDGE = "0000:40:00.0"


@pytest.mark.parametrize(
    ("ids", "class_code", "bridge", "vendor", "model"),
    [
        ("10de:2335", "030200", None, "nvidia", "NVIDIA H200"),
        ("10de:233b", "030200", None, "nvidia", "NVIDIA H200 NVL"),
        ("10de:2330", "030200", None, "nvidia", "NVIDIA H100 80GB HBM3"),
        ("10de:26b9", "030200", None, "nvidia", "NVIDIA L40S"),
        ("10de:2684", "030000", None, "nvidia", "from pci.ids"),
        ("1002:74a1", "120000", None, "amd", "AMD Instinct MI300X"),
        ("1002:74b5", "120000", None, "amd", "AMD Instinct MI300X VF"),
        ("1002:740f", "038000", None, "amd", "AMD Instinct MI210"),
        ("1002:744c", "030000", "1002:1479", "amd", "from pci.ids"),
        ("1002:164e", "030000", "1022:14dd", "other", "from pci.ids"),
        ("1002:515e", "030000", "8086:244e", "other", "from pci.ids"),
        ("1da3:1060", "120000", None, "habana", "Intel Gaudi3"),
        ("1da3:1020", "120000", None, "habana", "Habana Gaudi2"),
        ("8086:0bd5", "038000", "8086:0bd4", "intel", "Intel Data Center GPU Max 1550"),
        ("8086:e211", "030000", "8086:e2f0", "intel", "from pci.ids"),
        ("8086:4680", "030000", None, "other", "from pci.ids"),
        ("102b:0536", "030000", None, "other", "from pci.ids"),
        ("1a03:2000", "030000", None, "other", "from pci.ids"),
        ("1013:00b8", "030000", None, "other", "from pci.ids"),
        ("1234:1111", "030000", None, "other", "from pci.ids"),
    ],
)
def test_maker_and_model_follow_from_the_ids(
    tmp_path: Path, ids: str, class_code: str, bridge: str | None, vendor: str, model: str
) -> None:
    above = function(BRIDGE, bridge, "060400") if bridge else None
    device = PciDevice(
        address="0000:41:00.0",
        vendor_id=ids[:4],
        device_id=ids[5:],
        class_code=class_code,
        device_name="from pci.ids",
        parent=BRIDGE if above else None,
    )
    gpus = read_gpus(Reader(Capture(str(tmp_path))), (above, device) if above else (device,))
    assert gpus == (Gpu(address="0000:41:00.0", vendor=vendor, model=model, source="sysfs"),)


def test_other_functions_are_no_gpus(tmp_path: Path) -> None:
    pci = (function("0000:83:00.0", "10de:22a3", "068000"), function("0000:18:00.0", "15b3:1021", "020700"))
    assert read_gpus(Reader(Capture(str(tmp_path))), pci) == ()


def test_function_without_a_vendor_file_is_other(tmp_path: Path) -> None:
    gpus = read_gpus(Reader(Capture(str(tmp_path))), (PciDevice(address="0004:05:00.0", class_code="030000"),))
    assert gpus == (Gpu(address="0004:05:00.0", source="sysfs"),)


# --- NVIDIA ------------------------------------------------------------------------------------------------------


def test_four_h200_of_a_guest_from_recorded_commands(tmp_path: Path) -> None:
    reader = record(
        tmp_path,
        nvidia_smi_q_x=H200 / "nvidia-smi-q-x4.xml",
        nvidia_smi_topo_m=H200 / "topo-m-x4.txt",
        nvidia_smi_nvlink_s=H200 / "nvlink-s-x4.txt",
        mig_lgip=H200 / "mig-lgip.txt",
        mig_lgipp=H200 / "mig-lgipp.txt",
    )
    gpus = read_gpus(reader, tuple(map(nvidia, (A, B, C, D))))
    assert reader.problems == []
    assert {(gpu.vendor, gpu.model, gpu.source) for gpu in gpus} == {("nvidia", "NVIDIA H200", "nvidia-smi")}
    assert [gpu.module_id for gpu in gpus] == [2, 4, 1, 3]
    assert gpus[0].peers == tuple(Peer(address=other, kind="nvlink", links=18) for other in (B, C, D))
    assert {(gpu.nvlinks_active, gpu.nvlink_gb_per_s) for gpu in gpus} == {(18, 26.562)}
    assert gpus[0].mig is not None
    assert (gpus[0].mig.mode, gpus[0].mig.instances) == ("disabled", ())
    profiles = {profile.name: profile for profile in gpus[0].mig.profiles or ()}
    assert (profiles["3g.71gb"].starts, profiles["3g.71gb"].size) == ((0, 4), 4)
    assert (profiles["1g.35gb"].max_instances, profiles["7g.141gb"].size) == (4, 8)


def test_text_form_serves_where_the_xml_is_missing(tmp_path: Path) -> None:
    reader = record(tmp_path, nvidia_smi_q=H200 / "nvidia-smi-q-x4.txt")
    assert [gpu.module_id for gpu in read_gpus(reader, tuple(map(nvidia, (A, B, C, D))))] == [2, 4, 1, 3]


def test_old_nvml_record_is_completed_by_the_tool(tmp_path: Path) -> None:
    """The record of the one-GPU guest names no address and no placements; the tool's outputs have them."""
    outputs = {"nvml.json": "nvml.json", "nvidia-smi-q-x": "nvidia-smi-q-x1.xml", "mig-lgip": "mig-lgip.txt"}
    outputs["mig-lgipp"] = "mig-lgipp.txt"
    (gpu,) = read_gpus(record(tmp_path, **{name: H200 / source for name, source in outputs.items()}), (nvidia(A),))
    assert (gpu.source, gpu.uuid) == ("nvml", "GPU-e80253b6-4124-9309-9743-021fb441e2fb")
    assert (gpu.memory_bytes, gpu.peers) == (143771 << 20, ())
    assert gpu.mig is not None
    assert {profile.name: profile.starts for profile in gpu.mig.profiles or ()}["2g.35gb"] == (0, 2, 4)


def test_gpu_on_vfio_keeps_its_pci_facts_and_nobody_is_asked() -> None:
    live = Live()
    reader = Reader(live)
    assert read_gpus(reader, (nvidia(A, "vfio-pci"),))[0].model == "NVIDIA H200"
    assert (live.tried, reader.problems) == ([], [])


def test_only_those_that_the_driver_holds_are_told_of(tmp_path: Path) -> None:
    reader = record(tmp_path, nvidia_smi_q_x=H200 / "nvidia-smi-q-x4.xml")
    gpus = read_gpus(reader, (nvidia(A), nvidia(B, "vfio-pci")))
    assert [gpu.uuid is None for gpu in gpus] == [False, True]


def test_sleeping_gpu_is_not_woken() -> None:
    live = Live()
    reader = Reader(live)
    (gpu,) = read_gpus(reader, (nvidia(A, status="suspended"),))
    assert gpu.uuid is None
    assert live.tried == []
    assert [(doubt.what, doubt.where) for doubt in reader.problems] == [("GPU asleep", A)]


def test_tool_is_not_run_while_a_gpu_sleeps() -> None:
    live = Live()
    read_gpus(Reader(live), (nvidia(A), nvidia(B, status="suspended")))
    assert not [name for name in live.tried if name.startswith("nvidia-smi -")]


def test_missing_library_and_tool_is_said() -> None:
    reader = Reader(Live())
    (gpu,) = read_gpus(reader, (nvidia(A),))
    assert gpu.uuid is None
    assert ("GPU facts unknown", "nvidia") in [(doubt.what, doubt.where) for doubt in reader.problems]
    assert ("nvidia-smi did not answer", "nvidia-smi -q -x") in [(doubt.what, doubt.where) for doubt in reader.problems]


def test_gpu_that_the_tool_does_not_list_is_said(tmp_path: Path) -> None:
    reader = record(tmp_path, nvidia_smi_q_x=H200 / "nvidia-smi-q-x1.xml")
    read_gpus(reader, (nvidia(A), nvidia(B)))
    assert [(doubt.what, doubt.where) for doubt in reader.problems] == [("GPU facts unknown", B)]


def test_virtual_function_on_its_host_is_a_gpu_that_nvml_does_not_list() -> None:
    live = Live()
    virtual = PciDevice(address=B, vendor_id="10de", device_id="2335", class_code="030200", driver="nvidia", physfn=A)
    assert read_gpus(Reader(live), (virtual,))[0].vendor == "nvidia"
    assert live.tried == []


def test_broken_record_is_a_problem_not_a_crash(tmp_path: Path) -> None:
    reader = write(tmp_path, {".hosttune/commands/nvidia-smi-q-x": "<a", ".hosttune/commands/nvml.json": "{"})
    read_gpus(reader, (nvidia(A),))
    assert {doubt.where for doubt in reader.problems} == {"nvml.json", "nvidia-smi-q-x", "nvidia"}


def test_matrix_of_other_gpus_is_left_out(tmp_path: Path) -> None:
    reader = record(tmp_path, nvidia_smi_q_x=H200 / "nvidia-smi-q-x1.xml", nvidia_smi_topo_m=H200 / "topo-m-x4.txt")
    (gpu,) = read_gpus(reader, (nvidia(A),))
    assert gpu.peers is None
    assert [doubt.where for doubt in reader.problems] == ["nvidia-smi-topo-m"]


def test_gpu_off_the_fabric_is_named(tmp_path: Path) -> None:
    """The H100 listing under the B200 matrix: eight alike GPUs, the third without NVLink."""
    reader = record(
        tmp_path,
        nvidia_smi_q=CASES / "smi-text" / "h100-x8-535.txt",
        nvidia_smi_topo_m=CASES / "topo" / "b200-one-gpu-off-nvlink.txt",
    )
    read_gpus(reader, tuple(nvidia(f"0000:{bus}:00.0") for bus in ("19", "3b", "4c", "5d", "9b", "bb", "cb", "db")))
    assert [(doubt.what, doubt.where) for doubt in reader.problems] == [
        ("7 of 8 GPUs on the NVLink fabric", "0000:4c:00.0")
    ]


def test_bridged_pairs_are_no_broken_fabric(tmp_path: Path) -> None:
    reader = record(
        tmp_path,
        nvidia_smi_q=CASES / "smi-text" / "h100-x8-535.txt",
        nvidia_smi_topo_m=CASES / "topo" / "a100-pcie-8-bridge-pairs-cgroup.txt",
    )
    read_gpus(reader, tuple(nvidia(f"0000:{bus}:00.0") for bus in ("19", "3b", "4c", "5d", "9b", "bb", "cb", "db")))
    assert reader.problems == []


def test_module_ids_that_all_say_one_name_no_place(tmp_path: Path) -> None:
    reader = record(tmp_path, nvidia_smi_q=CASES / "smi-text" / "rtx4090-x8-535.txt")
    gpus = read_gpus(reader, tuple(nvidia(f"0000:{bus}1:00.0") for bus in "02468ace"))
    assert {gpu.module_id for gpu in gpus} == {None}
    assert [doubt.what for doubt in reader.problems] == ["module id not unique"]


# --- AMD, Habana -------------------------------------------------------------------------------------------------


def test_amdgpu_files_and_xgmi_peers(tmp_path: Path) -> None:
    one, two = "0000:05:00.0", "0001:26:00.0"
    folder = f"/sys/bus/pci/devices/{one}"
    reader = write(
        tmp_path,
        {
            f"{folder}/mem_info_vram_total": "206141652992\n",
            f"{folder}/unique_id": "6cf1f9cfa0d7a9ca\n",
            f"{folder}/vbios_version": "113-M3000100-102\n",
            f"{folder}/hwmon/hwmon3/power1_cap": "750000000\n",
            "/sys/module/amdgpu/version": "6.8.5\n",
            f"{NODES}/0/properties": "cpu_cores_count 96\nsimd_count 0\nlocation_id 0\n",
            f"{NODES}/1/properties": f"simd_count 1216\nlocation_id {5 << 8}\ndomain 0\n",
            f"{NODES}/1/io_links/0/properties": "type 2\nnode_from 1\nnode_to 0\n",
            f"{NODES}/1/io_links/1/properties": "type 11\nnode_from 1\nnode_to 2\n",
            f"{NODES}/2/properties": f"simd_count 1216\nlocation_id {0x26 << 8}\ndomain 1\n",
            f"{NODES}/2/io_links/0/properties": "type 2\nnode_from 2\nnode_to 0\n",
            f"{NODES}/2/io_links/1/properties": "type 11\nnode_from 2\nnode_to 1\n",
        },
    )
    pci = tuple(
        PciDevice(address=address, vendor_id="1002", device_id="74a1", class_code="120000", driver="amdgpu")
        for address in (one, two)
    )
    gpus = read_gpus(reader, pci)
    assert (gpus[0].memory_bytes, gpus[0].uuid) == (206141652992, "GPU-6cf1f9cfa0d7a9ca")
    assert (gpus[0].power_limit_watts, gpus[0].power_max_watts) == (750.0, None)
    assert (gpus[0].driver_version, gpus[0].firmware_version) == ("6.8.5", "113-M3000100-102")
    assert gpus[0].peers == (Peer(address=two, kind="xgmi"),)
    assert gpus[1].peers == (Peer(address=one, kind="xgmi"),)
    assert gpus[1].memory_bytes is None


def link(to: int, kind: str = "2") -> str:
    return f"type {kind}\nnode_to {to}\n"


def three_gpus(links: dict[str, str]) -> Reader:
    """A KFD topology of a CPU and three GPUs, joined by XGMI but for the first two; `links` replace or add files."""
    files = {f"{NODES}/0/properties": "simd_count 0\n"}
    for node in (1, 2, 3):
        files[f"{NODES}/{node}/properties"] = f"simd_count 304\nlocation_id {node << 8}\ndomain 0\n"
        for to in {0, 1, 2, 3} - {node}:
            kind = "11" if node + to > 3 and to else "2"
            files[f"{NODES}/{node}/io_links/{to}/properties"] = link(to, kind)
    files |= {f"{NODES}/{path}/properties": text for path, text in links.items()}
    return Reader(Archive({path: text.encode() for path, text in files.items()}, {}, "test"))


ONE, TWO, THREE = (f"0000:0{n}:00.0" for n in (1, 2, 3))
# What is changed, and the GPUs whose peers are then unknown.
XGMI = {
    "nothing": ({}, ()),
    "one end says XGMI": ({"1/io_links/2": link(2, "11")}, (ONE, TWO)),
    "a second link at one end": ({"1/io_links/99": link(2, "11")}, (ONE, TWO)),
    "a link among those over PCIe": ({"1/p2p_links/0": link(2, "11")}, (ONE, TWO)),
    "digits of another script": ({"1/io_links/2": link(2, "١١")}, (ONE, TWO)),
    "told twice at both ends": (
        {"1/io_links/2": link(2) + "type 11\n", "2/io_links/1": link(1) + "type 11\n"},
        (ONE, TWO),
    ),
    "a number without end": ({"1/io_links/2": link(2, "1" * 5000)}, (ONE, TWO)),
    "one end of an XGMI link is gone": ({"1/io_links/3": ""}, (ONE, THREE)),
    "a node of no number": ({"x": "simd_count 4\nlocation_id 1024\n", "x/io_links/0": link(1, "11")}, ()),
    "a node number of another script": ({"٤": "simd_count 4\nlocation_id 1024\n"}, ()),
    "a GPU of another's address": ({"2": f"simd_count 304\nlocation_id {1 << 8}\n"}, (TWO,)),
    "a GPU of no address": (
        {"2": f"simd_count 304\nlocation_id {1 << 8}\ndomain {10**20}\n"},
        (ONE, TWO, THREE),
    ),
    "a node that was not read": ({"2": ""}, (ONE, TWO, THREE)),
    "a GPU that has no SIMD": ({"2": "simd_count 0\n"}, (TWO,)),
}


@pytest.mark.parametrize(("links", "unknown"), XGMI.values(), ids=XGMI.keys())
def test_xgmi_is_what_both_ends_say(links: dict[str, str], unknown: tuple[str, ...]) -> None:
    peers, _ = read_xgmi(three_gpus(links))
    assert peers.keys() == {ONE, TWO, THREE} - {*unknown}
    joined = {(one, peer.address) for one, others in peers.items() for peer in others if peer.kind == "xgmi"}
    assert joined <= {(ONE, THREE), (THREE, ONE), (TWO, THREE), (THREE, TWO)}


def test_more_gpus_than_any_machine_has_are_not_paired() -> None:
    nodes = {str(n): f"simd_count 4\nlocation_id {n}\n" for n in range(300)}
    reader = three_gpus(nodes)
    peers, listed = read_xgmi(reader)
    assert (peers, len(listed)) == ({}, 300)
    assert "too many GPUs" in [problem.what for problem in reader.problems]


@pytest.mark.parametrize(("ids", "known"), [(("74a1", "74a1"), False), (("74a1", "66a0"), True)])
def test_where_the_topology_lacks_a_gpu_of_a_model_the_peers_of_the_others_are_unknown(
    ids: tuple[str, str], known: bool
) -> None:
    pci = tuple(
        PciDevice(address=address, vendor_id="1002", device_id=model, class_code="120000", driver="amdgpu")
        for address, model in ((ONE, ids[0]), ("0000:09:00.0", ids[1]))
    )
    there, lost = read_gpus(three_gpus({}), pci)
    assert ((there.peers is not None), lost.peers) == (known, None)


# Partitions of two MI300X in CPX, recorded; and what changes there. The peers that are then known, by GPU.
DIVIDED = (CASES / "kfd" / "mi300x-cpx.txt").read_text()
WHOLE = json.loads((CASES / "kfd" / "mi300x-cpx.expected.json").read_text())
PARTITIONS = {
    "as recorded": ("", "", WHOLE),
    "a newer kernel, which has the number in bits 31:28": ("location_id 1281", f"location_id {1 << 28 | 1280}", WHOLE),
    "one link to the other GPU is gone": ("node_from 3\nnode_to 10", "node_from 3\nnode_to 2", WHOLE),
    "one link to the other GPU is not XGMI": ("type 11\nversion_major 0\nversion_minor 0\nnode_from 3\nnode_to 10",
                                             "type 2\nversion_major 0\nversion_minor 0\nnode_from 3\nnode_to 10", {}),
    "a link of one partition was not read": ("node_from 3\nnode_to 10\n", "", {"0000:27:00.0": WHOLE["0000:27:00.0"]}),
}  # fmt: skip


def recorded(text: str) -> Reader:
    """A KFD topology from a case: below each line "[PATH]" the contents of this file."""
    parts = re.split(r"^\[(\S+)\]\n", text, flags=re.MULTILINE)[1:]
    files = {f"{NODES}/{path}": body.encode() for path, body in zip(parts[::2], parts[1::2], strict=True)}
    return Reader(Archive(files, {}, "test"))


@pytest.mark.parametrize(("old", "new", "known"), PARTITIONS.values(), ids=PARTITIONS.keys())
def test_partitions_of_a_divided_gpu_are_the_gpu(old: str, new: str, known: dict[str, dict[str, str]]) -> None:
    assert old in DIVIDED
    peers, listed = read_xgmi(recorded(DIVIDED.replace(old, new, 1) if old else DIVIDED))
    assert listed == set(WHOLE)
    assert {one: {peer.address: peer.kind for peer in others} for one, others in peers.items()} == known


@pytest.mark.parametrize("unique", ["3", "0"])
def test_functions_beside_a_gpu_that_are_not_its_partitions_stay_gpus(unique: str) -> None:
    """Virtual functions: each is a PCI function, and the driver gives each its own unique_id, or none."""
    text = DIVIDED.replace("unique_id 16000000000000000001", f"unique_id {unique}", 1)
    assert read_xgmi(recorded(text))[1] == {*WHOLE, "0000:05:00.1"}


SENSORS = {"power1_cap": "300000000", "power1_cap_default": "750000000", "temp1_input": "120000"}


@pytest.mark.parametrize(
    ("files", "watts", "celsius", "uncorrected"),
    [
        ({}, 300, 120, 0),
        ({"hwmon/hwmon2/power1_cap": "750000000"}, None, None, 0),
        *(({"hwmon/hwmon5/temp1_input": text}, 300, None, 0) for text in ("٤٥٠٠٠", "+45000", "1_2", "-45000")),
        ({"hwmon/hwmon5/temp1_crit": "130000", "hwmon/hwmon5/temp2_input": "٤"}, 300, None, 0),
        ({"ras/umc_err_count": "ue: 5\nce: 0"}, 300, 120, 5),
        ({"ras/umc_err_count": "ue: 5\nce: 0\nue: 0"}, 300, 120, None),
        ({"ras/umc_err_count": None}, 300, 120, None),  # the other GPU has this block
        ({"ras/umc_err_count": None, "ras/UMC_err_count": "ue: 0\nce: 0"}, 300, 120, None),
        ({"ras/umc_err_count": None, "ras/gfx_err_count": "ue: 2\nce: 0"}, 300, 120, 2),
    ],
)
def test_sensors_and_counters_of_amdgpu(
    files: dict[str, str | None], watts: float | None, celsius: float | None, uncorrected: int | None
) -> None:
    blocks = {f"ras/{block}_err_count": "ue: 0\nce: 0\n" for block in ("umc", "gfx")}
    own = {**{f"hwmon/hwmon5/{name}": text for name, text in SENSORS.items()}, **blocks, **files}
    texts = {f"{ONE}/{name}": text for name, text in own.items()}
    written = {f"/sys/bus/pci/devices/{name}": text.encode() for name, text in texts.items() if text is not None}
    written |= {f"/sys/bus/pci/devices/{TWO}/{name}": b"" for name in blocks}
    pci = tuple(
        PciDevice(address=address, vendor_id="1002", device_id="74a1", class_code="120000", driver="amdgpu")
        for address in (ONE, TWO)
    )
    gpu, _ = read_gpus(Reader(Archive(written, {}, "test")), pci)
    assert (gpu.power_limit_watts, gpu.temperature_c, gpu.ecc_uncorrected) == (watts, celsius, uncorrected)


class Proven(Archive):
    """A capture in which what is not there is proven to be absent."""

    def lacks(self, path: str) -> bool:
        return not self.exists(path)


@pytest.mark.parametrize(
    ("system", "own", "version"),
    [
        (Archive, b"6.8.5\n", "6.8.5"),
        (Proven, b"6.8.5\n", "6.8.5"),
        (Proven, None, "6.9.0-rc5+"),  # as amd-smi printed it on a host with the kernel's own driver
        (Archive, None, None),  # whether the module has a version was not recorded
        (Proven, b"", None),
    ],
)
def test_the_kernels_own_driver_has_the_version_of_the_kernel(
    system: type[Archive], own: bytes | None, version: str | None
) -> None:
    files = {"/proc/sys/kernel/osrelease": b"6.9.0-rc5+\n", f"/sys/bus/pci/devices/{ONE}/vendor": b"0x1002\n"}
    files |= {} if own is None else {"/sys/module/amdgpu/version": own}
    device = PciDevice(address=ONE, vendor_id="1002", device_id="74a0", class_code="120000", driver="amdgpu")
    (gpu,) = read_gpus(Reader(system(files, {}, "test")), (device,))
    assert gpu.driver_version == version


@pytest.mark.parametrize(
    ("sensors", "told"),
    [
        ({"temp2_input": 41, "temp2_crit": 100, "temp3_input": 38, "temp3_crit": 95}, (38, 95)),
        ({"temp2_input": 41, "temp2_crit": 100, "temp3_input": 99, "temp3_crit": 95}, (99, 95)),
        ({"temp1_input": 41, "temp1_crit": 100, "temp2_input": 101, "temp2_crit": 100, "temp3_input": 38}, (101, 100)),
        ({"temp2_input": 41, "temp2_crit": 100, "temp3_crit": 95}, (None, None)),
        ({"temp2_input": 41, "temp2_crit": 100, "temp3_input": 38}, (38, None)),
        ({"temp2_input": 41, "temp2_crit": 0}, (41, None)),
        ({}, (None, None)),
    ],
)
def test_the_sensor_nearest_to_its_limit_counts(
    sensors: dict[str, int], told: tuple[float | None, float | None]
) -> None:
    """MI300 has no edge sensor (temp1); without a value or a limit of one, no other proves that it is cool."""
    files = {f"/sys/bus/pci/devices/{ONE}/hwmon/hwmon5/{name}": f"{at}000".encode() for name, at in sensors.items()}
    device = PciDevice(address=ONE, vendor_id="1002", device_id="74a1", class_code="120000", driver="amdgpu")
    (gpu,) = read_gpus(Reader(Archive(files, {}, "test")), (device,))
    assert (gpu.temperature_c, gpu.temperature_slowdown_c) == told


def test_gaudi_from_sysfs_and_hl_smi(tmp_path: Path) -> None:
    address = "0000:19:00.0"
    reader = write(
        tmp_path,
        {
            "/sys/class/accel/accel0/device/pci_addr": f"{address}\n",
            "/sys/class/accel/accel0/device/max_power": "850000\n",
            "/sys/module/habanalabs/version": "1.18.0\n",
            ".hosttune/commands/hl-smi-q": (CASES / "hl-smi" / "gaudi3-x2.txt").read_text(),
        },
    )
    device = PciDevice(address=address, vendor_id="1da3", device_id="1060", class_code="120000", driver="habanalabs")
    (gpu,) = read_gpus(reader, (device,))
    assert (gpu.model, gpu.module_id, gpu.memory_bytes) == ("Intel Gaudi3", 3, 131072 << 20)
    assert (gpu.power_limit_watts, gpu.driver_version) == (850.0, "1.18.0")
    assert [doubt.what for doubt in reader.problems] == ["not a row of hl-smi"]


@pytest.mark.parametrize("digits", ["1" * 5000, "٣", "-3", "N/A"])
def test_a_number_of_hl_smi_that_is_none_is_unknown(digits: str) -> None:
    (gpu,) = parse_hl_smi(f"0, {digits}, 0000:19:00.0, HL-325L, N/A, {digits} MiB").gpus
    assert (gpu.module_id, gpu.memory_bytes) == (None, None)


@pytest.mark.parametrize(
    ("cell", "memory"), [("131072 MiB", 128 << 30), ("131072", 128 << 30), ("128 GiB", None), ("131072 MB", None)]
)
def test_memory_of_hl_smi_in_another_unit_is_unknown(cell: str, memory: int | None) -> None:
    (gpu,) = parse_hl_smi(f"0, 3, 0000:19:00.0, HL-325L, N/A, {cell}").gpus
    assert gpu.memory_bytes == memory


def test_what_nvml_lacks_is_taken_from_nvidia_smi_of_the_same_capture(tmp_path: Path) -> None:
    text = (H200 / "nvidia-smi-q-x4.xml").read_text()
    entry = {"busId": A, "nvmlDeviceGetUUID": "GPU-50fbefc9-a118-9bbb-62c7-6882a4176e36"}
    nvml = json.dumps({"0": {**entry, "nvmlDeviceGetRemappedRows": [0, 0, 1, 0], "nvmlDeviceGetMigMode": "error 999"}})
    reader = write(tmp_path, {".hosttune/commands/nvidia-smi-q-x": text, ".hosttune/commands/nvml.json": nvml})
    (gpu,) = read_gpus(reader, (nvidia(A),))
    assert (gpu.remapped_pending, gpu.remapped_failed) == (True, False)
    assert gpu.mig is not None
    assert gpu.mig.mode == "disabled"
    assert reader.problems == []


def test_a_list_of_other_gpus_in_the_text_leaves_tables_by_number_out(tmp_path: Path) -> None:
    xml, text = (H200 / "nvidia-smi-q-x4.xml").read_text(), (H200 / "nvidia-smi-q-x4.txt").read_text()
    first, *others = re.split(r"(?m)^(?=GPU )", text)
    files = {"nvidia-smi-q-x": xml, "nvidia-smi-q": "".join((first, *others[1:]))}
    files["nvidia-smi-topo-m"] = (H200 / "topo-m-x4.txt").read_text()
    reader = write(tmp_path, {f".hosttune/commands/{name}": content for name, content in files.items()})
    gpus = read_gpus(reader, tuple(map(nvidia, (A, B, C, D))))
    assert [gpu.peers for gpu in gpus] == [None] * 4
    assert "GPUs in two orders" in [one.what for one in reader.problems]


def test_a_path_is_over_nvlink_if_nvml_or_without_it_the_matrix_says_so(tmp_path: Path) -> None:
    xml, topo = (H200 / "nvidia-smi-q-x4.xml").read_text(), (H200 / "topo-m-x4.txt").read_text()
    links = [{"link": n, "state": 1} for n in range(18)]
    status = {A: 0, B: 0, C: 0, D: 0}
    entries: dict[str, Any] = {
        str(n): {"busId": one, "nvlinks": links, "p2pNvlink": {other: 0 for other in status if other != one}}
        for n, one in enumerate(status)
    }
    entries["0"]["p2pNvlink"][B] = entries["1"]["p2pNvlink"][A] = 1
    outputs = {"nvidia-smi-q-x": xml, "nvidia-smi-topo-m": topo, "nvml.json": json.dumps(entries)}
    reader = write(tmp_path, {f".hosttune/commands/{name}": text for name, text in outputs.items()})
    first, _, third, _ = read_gpus(reader, tuple(map(nvidia, (A, B, C, D))))
    assert [peer.kind for peer in first.peers or ()] == ["pcie", "nvlink", "nvlink"]
    assert [peer.kind for peer in third.peers or ()] == ["nvlink", "nvlink", "nvlink"]
    (tmp_path / ".hosttune/commands/nvml.json").unlink()
    reader = write(tmp_path, {".hosttune/commands/nvidia-smi-topo-m": topo.replace("NV18", "SYS ")})
    assert [[peer.kind for peer in gpu.peers or ()] for gpu in read_gpus(reader, tuple(map(nvidia, (A, B, C, D))))] == [
        ["pcie"] * 3
    ] * 4


def test_a_card_that_hl_smi_lists_with_two_modules_has_none() -> None:
    row = "0, 3, 0000:19:00.0, HL-325L, N/A, 131072 MiB\n"
    answer = parse_hl_smi(row + row.replace("0, 3,", "1, 4,"))
    assert answer.gpus == ()
    assert [problem.what for problem in answer.problems] == ["GPU listed twice"]
    assert [gpu.module_id for gpu in parse_hl_smi(row + row).gpus] == [3]
