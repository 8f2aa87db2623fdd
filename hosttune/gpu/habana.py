"""Intel Gaudi accelerators (Habana Labs, 1da3): facts from the driver's sysfs files, the rest from `hl-smi`."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from msgspec import structs

from hosttune.errors import BadInput, CommandFailed
from hosttune.gpu.inside import Inside
from hosttune.gpu.vendor import (
    Bench,
    Hints,
    Listing,
    LogRecords,
    MeasuredPart,
    Ports,
    Traces,
    Vendor,
    VendorAnswer,
    always,
    ask,
    awake,
    fill,
    without_conflicting_gpus,
)
from hosttune.linux.kernellines import KernelLine
from hosttune.machine.reader import Reader, number
from hosttune.model import sysfs
from hosttune.model.host import Gpu, GpuPort, PciDevice, Problem
from hosttune.model.values import MAX_ID, MAX_SIZE, grouped, is_address, parse_address

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
# Power classes in watts, by the name that hl-smi gives a card (docs.habana.ai: HL-325L, HL-338).
# The range is known of one. docs.habana.ai, "System Management Interface Tool", --power-max, Gaudi 3: 450 to 850. With
# drivers 1.18 and 1.20 hl-smi shows 900 (instructlab/instructlab @90ada92, docs/habana-gaudi.md: HL-325; the manual of
# IBM Cloud for Gaudi 3 in OpenShift clusters: HL-325L).
POWER_CLASSES = {"HL-325L": 850.0, "HL-338": 600.0}
LEAST_WATTS = {"HL-325L": 450.0}
MOST_WATTS = POWER_CLASSES | {"HL-325L": 900.0}
PORTS_QUERY = "hl-smi-ports"
PORTS_SECONDS = 10.0  # for one call; a card that hangs must not hold up the others for long


def parse_hl_smi(text: str) -> VendorAnswer:
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
            row = dict(zip(COLUMNS, cells, strict=True))
            module, (memory, _, unit) = row["module_id"], row["memory.total"].partition(" ")
            mebibytes = number(memory, MAX_SIZE >> 20) if unit in ("", "MiB") else None
            gpus.append(
                Gpu(
                    address=parse_address(row["bus_id"], where=QUERY),
                    power_default_watts=POWER_CLASSES.get(row["name"]),
                    power_max_watts=MOST_WATTS.get(row["name"]),
                    power_min_watts=LEAST_WATTS.get(row["name"]),
                    uuid=None if row["uuid"] in ("", "N/A") else row["uuid"],
                    module_id=number(module, MAX_ID),
                    memory_bytes=None if mebibytes is None else mebibytes << 20,
                )
            )
        except (ValueError, BadInput):
            problems.append(Problem(what="not a row of hl-smi", where=QUERY, why=f"reads {line[:60]!r}"))
    return without_conflicting_gpus(VendorAnswer(gpus=tuple(gpus), problems=tuple(problems)), "hl-smi")


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
        driver_version=reader.text(f"{folder}/driver_ver") or reader.text("/sys/module/habanalabs/version") or None,
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
    answer = parse_hl_smi(text) if text is not None else VendorAnswer()
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
    lists = [Listing(name="hl-smi", read="hl-smi -Q", gpus=listed)] if listed else []
    # the addresses that the driver's class devices name (Documentation/ABI/testing)
    addresses: set[str] = set()
    for kind in ("accel", "habanalabs"):
        for name in reader.names(f"/sys/class/{kind}"):
            for folder in (f"/sys/class/{kind}/{name}/device", f"/sys/class/{kind}/{name}"):
                with contextlib.suppress(BadInput):
                    addresses.add(parse_address(reader.text(f"{folder}/pci_addr") or "", where=folder))
    classed = tuple(Gpu(address=address, vendor="habana") for address in sorted(addresses))
    lists += [Listing(name="the accel class", read="/sys/class/accel", gpus=classed, whole=False)] if classed else []
    return tuple(lists)


def _nodes(reader: Reader, address: str, driver: str) -> list[str]:
    """Return the control node of an accelerator, which is a virtual device and so not in its folder of sysfs.

    Source: drivers/accel/habanalabs/common/device.c (cdev_sysfs_debugfs_add); older kernels: hl_controlD.
    """
    if driver != DRIVER:
        return []
    return [
        f"{place}_controlD{name.removeprefix(start)}"
        for kind, start, place in (("accel", "accel", "/dev/accel/accel"), ("habanalabs", "hl", "/dev/hl"))
        for name in reader.names(sysfs.function(address, kind))
        if re.fullmatch(rf"{start}[0-9]{{1,4}}", name)
    ]


# --- ports -------------------------------------------------------------------------------------------------------

# HabanaAI/Setup_and_Install @b0681c61, utils/intel_gaudi_health_screen/IGNodes.py (Apache-2.0): `-n ports` prints
# "port 0: internal" or "external" for each port; `-n link -P 0,1,…` prints "port 0: UP" or "DOWN" for those ports, and
# without -P for the internal ports alone.
_SECTION = r"\[(\S+) (ports|link)\]"
_PORT = r"port\s+([0-9]{1,3})\s*:\s*(\S+)"
_WORDS = {"ports": {"internal", "external"}, "link": {"up", "down"}}


def parse_ports(text: str) -> tuple[dict[str, tuple[GpuPort, ...]], tuple[Problem, ...]]:
    """Parse what `hl-smi -n ports` and `hl-smi -n link` printed, each below a line "[ADDRESS ports]", "[ADDRESS link]".

    Return the ports by address, and problems. A port that is listed with two kinds or two states has none of them.
    """
    told: dict[str, dict[int, dict[str, set[str]]]] = {}
    problems: list[Problem] = []
    ports: dict[int, dict[str, set[str]]] | None = None
    part = ""
    for line in filter(None, map(str.strip, text.splitlines())):
        section, row = re.fullmatch(_SECTION, line), re.fullmatch(_PORT, line)
        if section is not None and is_address(section[1]):
            ports, part = told.setdefault(section[1], {}), section[2]
        elif row is not None and ports is not None:
            ports.setdefault(int(row[1]), {}).setdefault(part, set()).add(row[2].casefold())
        else:
            problems.append(Problem(what="not a port of hl-smi", where=PORTS_QUERY, why=f"reads {line[:60]!r}"))
    found = {
        address: tuple(_port(number, ports[number]) for number in sorted(ports)) for address, ports in told.items()
    }
    return found, tuple(problems)


def _port(number: int, told: dict[str, set[str]]) -> GpuPort:
    kind, state = (_only(told.get(part, set()), part) for part in ("ports", "link"))
    return GpuPort(number=number, kind=kind, state=state)


def _only(words: set[str], part: str) -> str | None:
    return next(iter(words)) if len(words) == 1 and words <= _WORDS[part] else None


def _ports(reader: Reader, functions: tuple[PciDevice, ...]) -> dict[str, tuple[GpuPort, ...]]:
    """Return the ports of the accelerators that the driver holds. hl-smi is not asked beside a sleeping one."""
    held = [device.address for device in functions if device.driver == DRIVER]
    asleep = any(device.runtime_status == "suspended" for device in functions if device.driver == DRIVER)
    if not held:
        return {}
    text = ask(reader, PORTS_QUERY, lambda: None if asleep else "".join(_ask_ports(reader, held)))
    found, problems = parse_ports(text or "")
    reader.problems.extend(problems)
    return {address: _with_interfaces(reader, address, ports) for address, ports in found.items() if address in held}


def _with_interfaces(reader: Reader, address: str, ports: tuple[GpuPort, ...]) -> tuple[GpuPort, ...]:
    """Return the ports with the interfaces that the driver makes of external ones, and their rates.

    `dev_port` is the port's number (HabanaAI/Setup_and_Install @02f2f85, utils/manage_network_ifs.sh), `speed` is Mb/s
    (Documentation/ABI/testing/sysfs-class-net). A number that two interfaces have is that of none.
    """
    folder = sysfs.function(address, "net")
    names = grouped((reader.count(f"{folder}/{name}/dev_port"), name) for name in reader.names(folder))

    def whole(port: GpuPort) -> GpuPort:
        mine = names.get(port.number, []) if port.kind == "external" else []
        if len(mine) != 1:
            return port
        speed = reader.integer(f"{folder}/{mine[0]}/speed") if port.state == "up" else None
        rate = speed / 1000 if speed is not None and 0 < speed < 1 << 31 else None
        return structs.replace(port, interface=mine[0], rate_gbps=rate)

    return tuple(map(whole, ports))


def _ask_ports(reader: Reader, addresses: list[str]) -> Iterator[str]:
    """Yield what hl-smi prints about the ports of each card, below lines that name card and list."""
    for address in addresses:
        try:
            kinds = reader.system.run(("hl-smi", "-n", "ports", "-i", address), timeout=PORTS_SECONDS)
            yield f"[{address} ports]\n{kinds.strip()}\n"
            rows = (re.fullmatch(_PORT, row.strip()) for row in kinds.splitlines())
            numbers = ",".join(row[1] for row in rows if row)
            command = ("hl-smi", "-n", "link", "-i", address, *(("-P", numbers) if numbers else ()))
            yield f"[{address} link]\n{reader.system.run(command, timeout=PORTS_SECONDS).strip()}\n"
        except CommandFailed as error:
            reader.problem("hl-smi did not answer", address, f"{error.reason}: the state of its ports is unknown")


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


def _parts(gpu: Gpu) -> tuple[MeasuredPart, ...] | str:
    if gpu.module_id is None:
        return "its module id is not known, which PyTorch for Gaudi needs to select it: read hl-smi -Q module_id"
    environment = {"HABANA_VISIBLE_MODULES": str(gpu.module_id), "PT_HPU_LAZY_MODE": "0"}
    return (MeasuredPart(subject=gpu.address, address=gpu.address, environment=environment, without=WITHOUT),)


# docs.habana.ai, "System Management Interface Tool": -q, -i, -d, -r (--reset-aip, needs -i).
HINTS = Hints(
    tool="hl-smi",
    reporters="neither the driver's files in sysfs nor hl-smi",
    unreported="look for messages of habanalabs in the kernel log; install hl-smi, or run as root",
    show="hl-smi -q -i {gpu}",
    processes="hl-smi",
    set_power="hl-smi -i {gpu} --power-max",
    links="hl-smi -n link -i {gpu}",
    reset="hl-smi --reset-aip -i {gpu} once nothing uses it",
    lost="messages of habanalabs",
    diagnose="run hl_qual, which needs 29000 MiB of 2 MiB pages; in a guest ReportNCheck, because hl_qual's PCI test"
    " and RDMA PerfTest do not run there",
)
# Before the class `accel` the device was hlN. Neither name is an address: gpu-status says which it is.
_HEARTBEAT = KernelLine(
    "gpu-heartbeat", "Device heartbeat failed", r"(?:habanalabs hl|accel accel)[0-9]{1,4}: Device heartbeat failed!",
    "Linux drivers/accel/habanalabs/common/device.c, hl_device_heartbeat", outcome="fail",
    says="a Gaudi stopped answering its driver, which resets it then",
    remedy="read which in dmesg, and gpu-status; power-cycle the host if it is not operational",
)  # fmt: skip
HABANA = Vendor(
    name="habana",
    vendor_id="1da3",
    models=MODELS,
    makes=always,
    enrich=_enrich,
    queries=(QUERY, PORTS_QUERY),
    driver=DRIVER,
    tells=frozenset(("driver_version", "power_default_watts", "power_limit_watts", "status")),
    lists=_lists,
    tellers={DRIVER: "sysfs of habanalabs"},  # all of `tells`: hl-smi adds UUID and memory
    hints=HINTS,
    # Documentation/ABI/testing/sysfs-driver-habanalabs (max_power) and docs.habana.ai (hl-smi --power-max, Gaudi 3: 450
    # to 850 W; in older releases only with security disabled).
    unset={
        DRIVER: "no source says what resets a limit of hl-smi --power-max, or whether it lasts; nor of other settings"
    },
    inside=Inside(
        note="Gaudi: no persistence or power limit is known inside a guest, and no official sysctl list: only what the"
        " intent names. hl_qual's PCI test, RDMA PerfTest and hl-smi-async do not run in a guest; ReportNCheck does,"
        " and checks the ports. The health screen needs 29000 MiB of 2 MiB pages in the guest"
    ),
    # docs.habana.ai: scale-up 21 x 200 Gb/s, scale-out 3 x 200 Gb/s a card (525 and 75 GB/s). No source counts the
    # ports of other devices.
    ports=Ports(
        read=_ports,
        counts={"1060": (21, 3)},
        external_gbps=200.0,
        between=3,  # HabanaAI/HCL @2ba2428, port_mapping_autogen.cpp
        tool="hl-smi -n ports, hl-smi -n link",
        mend="look for messages of habanalabs about the port in the kernel log;"
        " /opt/habanalabs/qual/gaudi3/bin/manage_network_ifs.sh --status, --up",
    ),
    traces=Traces(
        modules=(DRIVER,), nodes=_nodes, node_classes={"habanalabs": "/dev/"}, log=LogRecords(lines=(_HEARTBEAT,))
    ),
    bench=Bench(
        backends=frozenset(("PyTorch for Gaudi",)),
        libraries=("torch", "habana_frameworks"),
        parts=_parts,
        unproven="unproven: not seen on a machine with Gaudi",
    ),
)
