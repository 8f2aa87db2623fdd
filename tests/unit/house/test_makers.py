"""Makers of GPUs are known in `hosttune/gpu` alone, and a new one is a module there and a line in `VENDORS`."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gpuevidence import A, B, C, evidence, function
from trees import nodes_of, texts_of

from hosttune.gpu import VENDORS
from hosttune.gpu.amd import AMD
from hosttune.gpu.habana import HABANA
from hosttune.gpu.vendor import Vendor
from hosttune.model.devices import DeviceSource, SeenDevice
from hosttune.model.gpu import Gpu, Peer
from hosttune.model.validation import CheckResult
from hosttune.rules.checks import judge

ROOT = Path(__file__).resolve().parents[3]
PRODUCT = ROOT / "hosttune"
MAKERS = ROOT / "hosttune" / "gpu"

# --- no maker's name and no vendor id outside of `gpu` -----------------------------------------------------------

NAMES = re.compile(
    "|".join(
        (
            "gaudi",
            *(rf"(?<![a-z]){vendor.name}" for vendor in VENDORS),
            *(rf"(?<![0-9a-f]){vendor.vendor_id}(?![0-9a-f])" for vendor in VENDORS),
        )
    ),
    re.IGNORECASE,
)
# Two makers of GPUs make CPUs, chipsets and IOMMUs too. Words of those:
OF_CPUS = re.compile(
    r"intel_pstate|amd[-_]pstate(?:[-_]epp)?|intel_idle|kvm_(?:intel|amd)|(?:intel|amd)_iommu(?:_intr)?|intel-iommu"
    r"|AMD-Vi|AuthenticAMD|amd64|AMD_HT_(?:START|END)|_intel_capabilities|is_intel|_AMD"
)
# What else there is, by module, and why it may stand there.
MAY = {
    "rules/checks/cpus.py": {"intel_cpufreq": "a driver of CPUs"},
    "discovery/cpuinfo.py": {"NVIDIA": "a maker of Arm CPUs (MIDR_EL1, implementer 0x4e)"},
    "discovery/platform.py": {"intel": "Iommu.vendor, a field of the host document", "amd": "likewise"},
    "domain/planned.py": {"intel": "libvirt's model of a guest's IOMMU"},
    "knobs/pcie.py": {"intel": "root ports of CPUs", "amd": "likewise", "8086": "likewise"},
    "rules/lint/cpus.py": {"intel": "libvirt's model of a guest's IOMMU"},
    "inventory/window.py": {"amd": "AMD's CPUs, whose address map has a hole"},
    "bench/gpu_hpu.py": {"habana_frameworks.torch.core": "the Python library that this backend is made for"},
    "rules/checks/xids.py": {"docs.nvidia.com/deploy/xid-errors": "the address of a document"},
    # `settings` lies below `gpu`; these are the last guards of a write, on what the kernel shows then.
    "settings/drivers.py": {"nvidia": "a driver", "0x10de": "a vendor", "_NVIDIA": "its name"},
    "settings/irqs.py": {"nvidia": "a driver"},
    "settings/virtual.py": {"/nvidia/current_vgpu_type": "a file of that driver, which this kind of setting is about"},
}


def words(path: Path) -> Iterator[str]:
    """Names, imports and texts of a module.

    Not comments, docstrings, and texts of several words: they cite a maker's documents and tools to people.
    """
    yield from (text for text in texts_of(path) if not re.search(r"\s", text))
    yield from (node.id for node in nodes_of(path, ast.Name))
    yield from (node.attr for node in nodes_of(path, ast.Attribute))
    yield from (node.name for node in nodes_of(path, ast.FunctionDef))
    yield from (node.name for node in nodes_of(path, ast.ClassDef))
    yield from (node.name for node in nodes_of(path, ast.alias))
    yield from (node.arg for node in nodes_of(path, ast.arg))
    yield from (node.arg or "" for node in nodes_of(path, ast.keyword))
    yield from (node.module or "" for node in nodes_of(path, ast.ImportFrom))


def maker_words(path: Path) -> set[str]:
    """Those words that name a maker."""
    return {word for word in set(words(path)) if NAMES.search(OF_CPUS.sub("", word))}


def test_no_room_but_gpu_names_a_maker() -> None:
    modules = [path for path in PRODUCT.rglob("*.py") if MAKERS not in path.parents]
    found = {str(path.relative_to(PRODUCT)): named for path in modules if (named := maker_words(path))}
    assert found == {module: set(allowed) for module, allowed in MAY.items()}


def test_the_search_finds_what_it_looks_for(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""NVIDIA in a docstring."""\nfrom hosttune.gpu.nvidia import NVML\n'
        'if gpu.vendor == "habana" or ids == "10de:2335" or driver == "amdgpu":\n'
        '    amd = "AMD, a guide" if flag == "intel_iommu" else None'
    )
    assert maker_words(module) == {"hosttune.gpu.nvidia", "habana", "10de:2335", "amdgpu", "amd"}


def test_the_makers_know_nothing_of_each_other() -> None:
    modules = {path.stem: set(imports(path)) for path in MAKERS.glob("*.py")}
    makers = {path.stem for path in MAKERS.glob("*.py") if re.search(r"^[A-Z]+ = Vendor\(", path.read_text(), re.M)}
    assert len(makers) == len(VENDORS)
    for maker in makers:
        reached, todo = set[str](), {maker}
        while todo:
            reached |= todo
            todo = {inner for name in todo for inner in modules.get(name, ())} - reached
        assert reached & makers == {maker}


def imports(path: Path) -> Iterator[str]:
    """The modules of `hosttune.gpu` that a module there imports, anywhere in it."""
    for node in nodes_of(path, ast.ImportFrom):
        if (node.module or "").startswith("hosttune.gpu."):
            yield (node.module or "").removeprefix("hosttune.gpu.")
        elif node.module == "hosttune.gpu":
            yield from (alias.name for alias in node.names)


# --- each maker's own tools in messages --------------------------------------------------------------------------

TOOLS = {
    "nvidia": re.compile(
        r"nvidia|nv-|NVML|nvml|dcgm|Fabric Manager|fabricmanager|X[Ii][Dd]|NVLink|NVSwitch|sriov-manage"
    ),
    "amd": re.compile(r"amd-smi|rocm-smi|amdgpu|XGMI|kfd"),
    "habana": re.compile(r"hl-smi|habana"),
}
# Modules outside of `gpu` whose texts name a command or a log of one maker. All but those noted are about something
# that only this maker has.
NAME_TOOLS = {
    "bench/gpu_backends.py",  # DCGM
    "bench/judge.py",  # a floor for a number of NVLinks
    "bench/parse/dcgm.py",
    "rules/causes/faultlines.py",  # lines of the makers' libraries and tools
    "rules/causes/clusterlines.py",
    "rules/causes/driverlines.py",
    "rules/causes/guestlines.py",
    "rules/checks/fabric.py",  # fabric registration, NVSwitches
    "rules/checks/gpumemory.py",  # to switch ECC on
    "rules/checks/gpumodes.py",  # persistence and compute mode, MIG
    "rules/checks/gpus.py",  # clock reasons, application clocks
    "rules/checks/guests.py",  # the source of a check
    "rules/checks/kernelevents.py",  # SXids
    "rules/checks/pcie.py",  # the source of a check
    "rules/checks/xids.py",
    "model/limits.py",  # the reason of a limit
    "planning/fabric/guest.py",
    "settings/drivers.py",  # persistence mode; a driver that refuses raw writes
    "settings/dropin.py",  # units that start after the boot unit, if they exist
    "settings/virtual.py",
}
COMMANDS = re.compile(
    r"nvidia-(?:smi|fabricmanager|persistenced|dcgm|bug-report)|dcgmi|fabricmanager\.log|sriov-manage"
    r"|(?:amd|rocm|hl)-smi"
)


def test_commands_of_a_maker_are_in_gpu_or_in_rooms_about_that_maker_alone() -> None:
    modules = [path for path in PRODUCT.rglob("*.py") if MAKERS not in path.parents]
    found = {
        str(path.relative_to(PRODUCT)) for path in modules if any(COMMANDS.search(text) for text in texts_of(path))
    }
    assert found == NAME_TOOLS


GOOD: dict[str, Any] = {
    "driver_version": "1.2.3", "ecc_corrected": 0, "ecc_uncorrected": 0, "pcie_replays": 0,
    "power_default_watts": 750.0, "power_limit_watts": 750.0,
    "temperature_c": 40.0, "temperature_slowdown_c": 100.0, "status": "operational",
}  # fmt: skip
BAD: tuple[dict[str, Any], ...] = (
    {"ecc_uncorrected": 3, "ecc_corrected": 5},
    {"pcie_replays": 10**6},
    {"power_limit_watts": 500.0},
    {"power_limit_watts": 900.0, "power_max_watts": 750.0},
    {"power_default_watts": 700.0},  # below that of the other GPU
    {"temperature_c": 101.0},
    {"temperature_slowdown_c": None},
    {"status": "malfunctioning"},
    {"processes": 2, "sram_threshold_exceeded": None},
    *({name: None} for name in GOOD),
)


def judged(maker: Vendor, driver: str | None, source: str, **facts: Any) -> list[CheckResult]:
    """All results for two GPUs of a maker: one as it should be, and one with other facts."""

    def gpu(address: str, other: str, kind: str, **changes: Any) -> Gpu:
        known = {name: value for name, value in {**GOOD, **changes}.items() if name in maker.tells or name in changes}
        peers = (Peer(address=other, kind=kind),) if "peers" in maker.tells else None
        return Gpu(address=address, vendor=maker.name, model="One", **{"peers": peers, "source": source, **known})

    link = maker.link or "pcie"
    gpus = (gpu(A, B, link), gpu(B, A, "pcie" if facts else link, **facts))
    ids = {"vendor_id": maker.vendor_id, "device_id": next(iter(maker.models))}
    pci = tuple(msgspec.structs.replace(function(one.address, driver), **ids) for one in gpus)
    lost = SeenDevice(address=C, kind="gpu", vendor=maker.name)
    sources = (DeviceSource(name="the last boot", read="/proc/x", shows=3, could=2, beyond=(lost,)),)
    found = evidence(*gpus, host={"pci": pci, "sources": sources, "hypervisor": False})
    of_others = {vendor.link for vendor in VENDORS if vendor.link and vendor is not maker}  # checks named by a link
    return [result for result in judge(found) if result.outcome != "skip" and result.check not in of_others]


@pytest.mark.parametrize(
    "maker", [vendor for vendor in VENDORS if vendor.name != "nvidia"], ids=lambda maker: maker.name
)
def test_messages_name_only_the_tools_of_the_gpus_maker(maker: Vendor) -> None:
    """Whatever is wrong with a GPU: what to read and to run is its own maker's."""
    others = [words for name, words in TOOLS.items() if name != maker.name]
    own = maker.driver or None
    reporters = {*maker.tellers, *(["hl-smi"] if maker.name == "habana" else []), "sysfs"}
    named = set()
    for driver, source in (*((own, source) for source in reporters), (None, "sysfs"), ("vfio-pci", "sysfs")):
        for facts in ({}, *BAD):
            for result in judged(maker, driver, source, **facts):
                text = " ".join(filter(None, (result.expected, result.actual, result.source, result.hint)))
                named |= {(result.check, word[0], text) for words in others if (word := words.search(text))}
    assert named == set()


def test_what_to_run_is_known_of_each_maker_that_has_a_tool() -> None:
    found = judged(AMD, "amdgpu", "amdgpu", ecc_uncorrected=1, power_limit_watts=500.0)
    hints = {result.check: result.hint or "" for result in found if result.subject == B}
    assert "amd-smi reset --gpureset -g 0000:3b:00.0" in hints["ecc-errors"]
    assert hints["power-limit"] == "plan with settings.power_limit_watts"
    assert "amd-smi topology" in hints["xgmi"]
    found = judged(HABANA, "habanalabs", "hl-smi", status="malfunctioning")
    (status,) = (result for result in found if result.check == "gpu-status" and result.subject == B)
    assert (status.hint, status.source) == (
        "hl-smi --reset-aip -i 0000:3b:00.0 once nothing uses it, or power-cycle the host", "sysfs of habanalabs",
    )  # fmt: skip


# --- a new maker -------------------------------------------------------------------------------------------------

TOY = '''
"""Toy GPUs (1ced)."""

from hosttune.gpu.inside import Inside
from hosttune.gpu.vendor import Traces, Vendor, always


def _enrich(reader, devices, gpus):
    return gpus


TOY = Vendor(
    name="toy",
    vendor_id="1ced",
    models={"0001": "Toy One"},
    makes=always,
    enrich=_enrich,
    driver="toydrv",
    tells=frozenset(("driver_version",)),
    unset={"toydrv": "no source names a setting of it"},
    inside=Inside(note="Toy: nothing is known"),
    traces=Traces(modules=("toydrv",), node_classes={"toys": "/dev/toys/"}, daemons={"toyd": "systemctl stop toyd"}),
)
'''
ASK = """
import json, sys
import msgspec
import hosttune
from hosttune.rules.checks import judge
from hosttune.gpu import inside, read_gpus
from hosttune.discovery.holders import device_nodes
from hosttune.model.evidence import Evidence
from hosttune.machine.reader import Reader
from hosttune.machine.capture import Capture

host = hosttune.discover(sys.argv[1])
toy = {"vendor_id": "1ced", "device_id": "0001", "driver": "toydrv"}
ours = {one.address for one in host.index.accelerators}
pci = tuple(msgspec.structs.replace(one, **toy) if one.address in ours else one for one in host.pci)
gpus = read_gpus(Reader(Capture(sys.argv[2])), pci)
host = msgspec.structs.replace(host, pci=pci, gpus=gpus, sources=None, nvswitches=(), fabric=None, problems=())
intent = hosttune.Intent.from_yaml("{version: 1, profile: host, guests: [{name: a, gpus: 2}]}")
plan = hosttune.plan(host, intent)
results = [one for one in judge(Evidence(host=host)) if one.check == "gpu-driver"]
print(json.dumps({
    "gpus": [(gpu.vendor, gpu.model) for gpu in host.index.accelerators],
    "given": [device.kind for guest in plan.guests for device in guest.devices],
    "findings": [finding.text for finding in plan.findings],
    "checked": sorted({one.actual or one.why or "" for one in results}),
    "inside": inside("1ced").note,
    "nodes": device_nodes(Reader(Capture(sys.argv[2])), "0000:41:00.0"),
}))
"""


def test_a_new_maker_is_one_module_and_one_line(tmp_path: Path) -> None:
    """Of the whole product a copy of `gpu/` is changed: a module more, and its value in `VENDORS`."""
    package = tmp_path / "hosttune"
    package.mkdir()
    for entry in PRODUCT.iterdir():
        if entry.name not in ("gpu", "__pycache__"):
            (package / entry.name).symlink_to(entry)
    shutil.copytree(MAKERS, package / "gpu")
    for name in ("baselines", "templates"):
        (tmp_path / name).symlink_to(ROOT / name)
    (package / "gpu" / "toy.py").write_text(TOY)
    registry = package / "gpu" / "__init__.py"
    line = "VENDORS: tuple[Vendor, ...] = (NVIDIA, "
    assert registry.read_text().count(line) == 1
    registry.write_text(registry.read_text().replace(line, f"from hosttune.gpu.toy import TOY\n{line}TOY, "))
    root = tmp_path / "root"
    (root / "sys/bus/pci/devices/0000:41:00.0/toys/toy0").mkdir(parents=True)
    example = ROOT / "examples" / "hgx-h200-8.tar.xz"
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(example), str(root)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["gpus"] == [["toy", "Toy One"]] * 8
    assert told["given"].count("gpu") == 2
    assert any("left alone: no source names a setting of it" in text for text in told["findings"])
    assert told["checked"]
    assert told["inside"] == "Toy: nothing is known"
    assert told["nodes"] == ["/dev/toys/toy0"]
