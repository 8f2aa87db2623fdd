"""Intel Gaudi accelerators (Habana Labs, 1da3): facts from the driver's sysfs files, the rest from `hl-smi`."""

from __future__ import annotations

import contextlib

from hosttune.errors import BadInput, CommandFailed
from hosttune.gpu.inside import Inside
from hosttune.gpu.vendor import Answer, Bench, Hints, Listing, Part, Traces, Vendor, always, ask, awake, fill
from hosttune.model.gpu import Gpu
from hosttune.model.host import PciDevice, Problem
from hosttune.model.values import MAX_ID, MAX_SIZE, parse_address
from hosttune.reader import Reader, number

# pci.ids (pciutils/pciids 2026.08.22), vendor 1da3. Gaudi2B shares 1020 and differs by PCI revision.
MODELS = {
    "1000": "Habana Gaudi",
    "1010": "Habana Gaudi (secured)",
    "1020": "Habana Gaudi2",
    "1021": "Habana Gaudi2 HL-288",
    "1060": "Intel Gaudi3",
    "1063": "Intel Gaudi3 HL-338",
}
QUERY = "hl-smi-q"
COLUMNS = ("index", "module_id", "bus_id", "name", "uuid", "memory.total")
COMMAND = ("hl-smi", "-Q", ",".join(COLUMNS), "-f", "csv,noheader")
DRIVER = "habanalabs"


def parse_hl_smi(text: str) -> Answer:
    """Parse `hl-smi -Q index,module_id,bus_id,name,uuid,memory.total -f csv,noheader`: one GPU a row, memory in MiB.

    A header row is skipped. A row of another form, or without a PCI address, is a problem.
    """
    gpus: list[Gpu] = []
    problems: list[Problem] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        cells = [cell.strip() for cell in line.split(",")]
        if cells[0] == "index":
            continue
        try:
            gpus.append(_row(dict(zip(COLUMNS, cells, strict=True))))
        except (ValueError, BadInput):
            problems.append(Problem(what="not a row of hl-smi", where=QUERY, why=f"reads {line[:60]!r}"))
    return Answer(gpus=tuple(gpus), problems=tuple(problems))


def _row(row: dict[str, str]) -> Gpu:
    module, memory = row["module_id"], row["memory.total"].partition(" ")[0]
    mebibytes = number(memory, MAX_SIZE >> 20)
    return Gpu(
        address=parse_address(row["bus_id"], where=QUERY),
        uuid=None if row["uuid"] in ("", "N/A") else row["uuid"],
        module_id=number(module, MAX_ID),
        memory_bytes=None if mebibytes is None else mebibytes << 20,
    )


def _sysfs(reader: Reader, address: str) -> Gpu:
    """Return the facts in the driver's own files. max_power is in milliwatts.

    Source: Documentation/ABI/testing/sysfs-driver-habanalabs. The files are in the accel device's directory, which is
    found from the PCI device; on older kernels in class habanalabs.
    """
    folder = _class_folder(reader, address)
    if folder is None:
        return Gpu(address=address)
    milliwatts = reader.count(f"{folder}/max_power")
    return Gpu(
        address=address,
        module_id=reader.identifier(f"{folder}/module_id"),
        driver_version=reader.text("/sys/module/habanalabs/version") or None,
        firmware_version=reader.text(f"{folder}/cpucp_ver") or reader.text(f"{folder}/armcp_ver") or None,
        power_limit_watts=None if milliwatts is None else milliwatts / 1e3,
        status=(reader.text(f"{folder}/status") or "").casefold() or None,
    )


def _class_folder(reader: Reader, address: str) -> str | None:
    for kind in ("accel", "habanalabs"):
        for name in reader.names(f"/sys/class/{kind}"):
            for folder in (f"/sys/class/{kind}/{name}/device", f"/sys/class/{kind}/{name}"):
                if reader.text(f"{folder}/pci_addr") == address:
                    return folder
    return None


def _enrich(reader: Reader, devices: tuple[PciDevice, ...], gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    held = {device.address for device in awake(reader, devices, DRIVER)}
    if not held:
        return gpus
    asleep = any(device.driver == DRIVER and device.address not in held for device in devices)
    text = ask(reader, QUERY, lambda: None if asleep else _run(reader))  # hl-smi opens every device
    answer = parse_hl_smi(text) if text is not None else Answer()
    reader.problems.extend(answer.problems)
    reported = answer.by_address()
    enriched = []
    for gpu in gpus:
        if gpu.address in held:
            gpu = fill(gpu, _sysfs(reader, gpu.address), source=DRIVER)
            gpu = fill(gpu, reported.get(gpu.address, Gpu(address=gpu.address)), source="hl-smi")
        enriched.append(gpu)
    return tuple(enriched)


def _run(reader: Reader) -> str | None:
    try:
        return reader.system.run(COMMAND, timeout=30.0)
    except CommandFailed as error:
        reader.problem("hl-smi did not answer", QUERY, f"{error.reason}: UUID and memory of the accelerators unknown")
        return None


def _lists(reader: Reader) -> tuple[Listing, ...]:
    """Return the accelerators that hl-smi listed (in a capture), and those in the driver's device class."""
    gpus = parse_hl_smi(ask(reader, QUERY, lambda: None) or "").gpus
    listed = tuple(Gpu(address=gpu.address, vendor="habana", uuid=gpu.uuid) for gpu in gpus)
    found = [Listing(name="hl-smi", read="hl-smi -Q", gpus=listed)] if listed else []
    classed = tuple(Gpu(address=address, vendor="habana") for address in _classed(reader))
    found += [Listing(name="the accel class", read="/sys/class/accel", gpus=classed, whole=False)] if classed else []
    return tuple(found)


def _classed(reader: Reader) -> list[str]:
    """Return the PCI addresses that the driver's class devices name (`pci_addr`, Documentation/ABI/testing)."""
    found: set[str] = set()
    for kind in ("accel", "habanalabs"):
        for name in reader.names(f"/sys/class/{kind}"):
            for folder in (f"/sys/class/{kind}/{name}/device", f"/sys/class/{kind}/{name}"):
                with contextlib.suppress(BadInput):
                    found.add(parse_address(reader.text(f"{folder}/pci_addr") or "", where=folder))
    return sorted(found)


# Each accelerator is measured by a process that sees only this one, selected by its module id: HABANA_VISIBLE_MODULES
# (docs.habana.ai, Orchestration, "Multiple Workloads on a Single Docker"). PT_HPU_LAZY_MODE=0: each operation runs as
# soon as it is queued (docs.habana.ai, "PyTorch Gaudi Theory of Operations", Eager mode).
_NO_JOB = "not measured: no source was found for how {} is measured with PyTorch for Gaudi"
WITHOUT = {
    "gemm-fp8": _NO_JOB.format("an FP8 product"),
    "p2p-write-ce": _NO_JOB.format("a copy from one Gaudi to another"),
    "gemm-bf16-sustained": _NO_JOB.format("a long load"),
    "all-reduce": _NO_JOB.format("a collective by ranks that each see one Gaudi"),
}


def _parts(gpu: Gpu) -> tuple[Part, ...] | str:
    if gpu.module_id is None:
        return "its module id is not known, which PyTorch for Gaudi needs to select it: read hl-smi -Q module_id"
    environment = {"HABANA_VISIBLE_MODULES": str(gpu.module_id), "PT_HPU_LAZY_MODE": "0"}
    return (Part(subject=gpu.address, address=gpu.address, environment=environment, without=WITHOUT),)


# docs.habana.ai, "System Management Interface Tool": -q, -i, -d, -r (--reset-aip, needs -i).
HINTS = Hints(
    tool="hl-smi",
    reporters="neither the driver's files in sysfs nor hl-smi",
    unreported="look for messages of habanalabs in the kernel log; install hl-smi, or run as root",
    show="hl-smi -q -i {gpu}",
    processes="hl-smi",
    reset="hl-smi --reset-aip -i {gpu} once nothing uses it",
    lost="messages of habanalabs",
)
HABANA = Vendor(
    name="habana",
    vendor_id="1da3",
    models=MODELS,
    makes=always,
    enrich=_enrich,
    queries=(QUERY,),
    driver=DRIVER,
    tells=frozenset(("driver_version", "power_limit_watts", "status")),
    lists=_lists,
    tellers={DRIVER: "sysfs of habanalabs"},  # all of `tells`: hl-smi adds UUID and memory
    hints=HINTS,
    # Documentation/ABI/testing/sysfs-driver-habanalabs has max_power, but no range, no default and no way to reset it.
    unset={
        DRIVER: "no source gives Gaudi's power limits a range or a default, and hl-smi sets none that is documented"
    },
    inside=Inside(
        note="Gaudi: no persistence or power limit is known, and no official sysctl list: only what the intent names"
    ),
    traces=Traces(node_classes={"habanalabs": "/dev/"}),
    bench=Bench(
        backends=frozenset(("PyTorch for Gaudi",)),
        libraries=("torch", "habana_frameworks"),
        parts=_parts,
        unproven="unproven: not seen on a machine with Gaudi",
    ),
)
