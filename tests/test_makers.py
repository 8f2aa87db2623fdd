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

from hosttune.gpu import VENDORS

ROOT = Path(__file__).resolve().parent.parent
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
    "checks/cpus.py": {"amd": "the beginning of amd_pstate, a driver of CPUs"},
    "discovery/cpuinfo.py": {"NVIDIA": "a maker of Arm CPUs (MIDR_EL1, implementer 0x4e)"},
    "discovery/platform.py": {"intel": "Iommu.vendor, a field of the host document", "amd": "likewise"},
    "domain/proof.py": {"intel": "libvirt's model of a guest's IOMMU"},
    "knobs/pcie.py": {"intel": "root ports of CPUs", "amd": "likewise", "8086": "likewise"},
    "linting/cpus.py": {"intel": "libvirt's model of a guest's IOMMU"},
    "planning/pcie/window.py": {"amd": "AMD's CPUs, whose address map has a hole"},
    "bench/measuring.py": {"habana_frameworks": "the Python library that a backend is made for"},
    "bench/gpu_backends.py": {"habana_frameworks": "likewise", "GAUDI": "likewise", "_GAUDI": "likewise"},
    "bench/gpu_hpu.py": {"habana_frameworks.torch.core": "likewise"},
    "checks/xids.py": {"docs.nvidia.com/deploy/xid-errors": "the address of a document"},
    # `settings` lies below `gpu`; these are the last guards of a write, on what the kernel shows then.
    "settings/drivers.py": {"nvidia": "a driver", "0x10de": "a vendor", "_NVIDIA": "its name"},
    "settings/irqs.py": {"nvidia": "a driver"},
    "settings/vgpu.py": {"/nvidia/current_vgpu_type": "a file of that driver, which this kind of setting is about"},
}


def words(path: Path) -> Iterator[str]:
    """Names, imports and texts of a module.

    Not comments, docstrings, and texts of several words: they cite a maker's documents and tools to people.
    """
    tree = ast.parse(path.read_text())
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in documentation and not re.search(r"\s", node.value):
                yield node.value
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.arg | ast.keyword | ast.alias):
            yield (node.name if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.alias) else node.arg) or ""
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def maker_words(path: Path) -> set[str]:
    """Those words that name a maker."""
    return {word for word in words(path) if NAMES.search(OF_CPUS.sub("", word))}


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
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hosttune.gpu."):
            yield (node.module or "").removeprefix("hosttune.gpu.")
        elif isinstance(node, ast.ImportFrom) and node.module == "hosttune.gpu":
            yield from (alias.name for alias in node.names)


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
from hosttune.checks import judge
from hosttune.gpu import inside, read_gpus
from hosttune.holders import device_nodes
from hosttune.model.evidence import Evidence
from hosttune.reader import Reader
from hosttune.recorded import Capture

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
