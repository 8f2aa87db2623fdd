"""A QEMU that runs, as the definition that libvirt would have of it: from its options, its threads and its memory.

So whoever started it, the reader makes the same `Guest` of it, and the linter asks the same rules. What neither the
options nor /proc say (managed, metadata, a limit of locked memory) is not in the definition. What could not be read is
an element <unread> in its metadata, of which the linter says that it is not judged.

Sources: QEMU's qemu-options.hx and libvirt's qemu_command.c, which writes options from the same elements.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice, product
from math import prod
from typing import TYPE_CHECKING

from hosttune.domain.arguments import CLIQUE
from hosttune.domain.xml import QEMU
from hosttune.errors import BadInput
from hosttune.linux.qemuline import Option, size_of
from hosttune.model.evidence import GuestThread
from hosttune.model.host import Host
from hosttune.model.pci import for_vfio
from hosttune.model.values import CpuSet, Value, parse_cpus

if TYPE_CHECKING:
    from lxml.etree import _Element

UNREAD = "{urn:hosttune:running}unread"  # in <metadata>
_NO_XML = re.compile(r"[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, Char
_MOST_CELLS, _MOST_VCPUS = 129, 4096  # QEMU has at most 128 nodes
_LEVELS = ("sockets", "dies", "clusters", "cores", "threads")
_MODES = {"bind": "strict", "preferred": "preferred", "prefer": "preferred", "interleave": "interleave"}
_CPU_MODES = {"host": "host-passthrough", "max": "maximum"}
_CONTROLLERS = {
    **{"pcie-root-port": "pcie-root-port", "ioh3420": "pcie-root-port", "pxb-pcie": "pcie-expander-bus"},
    **{"x3130-upstream": "pcie-switch-upstream-port", "xio3130-downstream": "pcie-switch-downstream-port"},
    **{"pcie-pci-bridge": "pcie-to-pci-bridge", "pci-bridge": "pci-bridge", "i82801b11-bridge": "dmi-to-pci-bridge"},
}
_CONFIDENTIAL = {"sev-snp-guest": "sev-snp", "tdx-guest": "tdx", "sev-guest": "sev"}
_FUNCTION = re.compile(r"(?:.*/)?(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([01][0-9a-f])\.([0-7])/?", re.IGNORECASE)
_NO_FEATURE = re.compile(
    r"model|migratable|.*phys-bits.*|kvm|(?:kvm|hv)[-_].*|(?:l3|host)-cache.*|check|enforce|level|x-.*"
)
_DEVICES = "/domain/devices/hostdev"
Notes = list[tuple[str, str]]  # what was not read, and the path of the elements that are not judged therefore
_SLEEP = {"disable_s3": "suspend-to-mem", "disable_s4": "suspend-to-disk"}


class Running(Value, frozen=True, kw_only=True):
    """A QEMU process: its options, and what /proc shows of it.

    `title`: what the kernel calls it, and its threads without a name of their own. `groups`: the IOMMU groups that it
    has open. `threads` None: unknown. `policy`: the kernel's memory policy of most of its memory ("bind:0"). `nodes`:
    those that its memory may come from. `page_bytes`: the sizes of its huge pages.
    """

    name: str
    program: str
    options: tuple[Option, ...]
    unread: tuple[str, ...] = ()
    title: str = "qemu-system-x86"
    groups: tuple[str, ...] = ()
    threads: tuple[GuestThread, ...] | None = None
    policy: str | None = None
    nodes: str | None = None
    page_bytes: tuple[int, ...] | None = None

    def every(self, name: str, kind: str = "") -> Iterator[Option]:
        """Yield the options of a name whose type, driver or class begins with `kind`."""
        for option in self.options:
            if option.name == name and (
                option.get("type") or option.get("driver") or option.get("qom-type")
            ).startswith(kind):
                yield option

    def all_of(self, name: str) -> Option:
        """Return all values of an option that may be there several times; of a key the last."""
        return Option(name, {key: value for option in self.every(name) for key, value in option.values.items()})


def put(parent: _Element, tag: str, text: object = None, **attributes: object) -> _Element:
    """Append an element with those of the attributes that are not None or empty."""
    from lxml.etree import SubElement

    element = SubElement(parent, tag)
    for name, value in attributes.items():
        if value not in (None, ""):
            element.set(name, words if (words := str(value)).isprintable() else _NO_XML.sub("?", words))
    if text is not None:
        element.text = words if (words := str(text)).isprintable() else _NO_XML.sub("?", words)
    return element


def definition(running: Running, host: Host) -> str:
    """Return the domain XML of a process on its host, with what was not read."""
    from lxml import etree

    root = etree.Element("domain", nsmap={"qemu": QEMU[1:-1]})
    unread = [(what, "/domain") for what in running.unread]
    put(root, "name", running.name)
    _machine(root, running, host)
    try:
        _vcpus(root, running, host, unread)
        _memory(root, running, host, unread)
        _devices(root, running, host, unread)
    except (BadInput, ValueError) as error:
        not_judged(root, error)
    else:
        _note(root, unread)
    return str(etree.tostring(root, encoding="unicode"))


def not_judged(root: _Element, error: Exception) -> None:
    """Leave of a definition its name only, and that its options make none."""
    for child in list(root)[1:]:
        root.remove(child)
    _note(root, [(f"its options: {error}", "/domain")])


def _note(root: _Element, unread: Notes) -> None:
    metadata = put(root, "metadata")
    for what, path in unread:
        put(metadata, UNREAD, what, path=path)


def _machine(root: _Element, running: Running, host: Host) -> None:
    """Write what surrounds CPUs, memory and devices: type, firmware, features, sleep, timers, arguments."""
    machine, cpu = running.all_of("machine"), running.all_of("cpu")
    accelerators = [option.get("accel") for option in running.every("accel")] + [machine.get("accel")]
    threads = running.threads or ()
    kvm = (
        any(accelerator.startswith("kvm") for accelerator in accelerators)
        or any(option.name == "enable-kvm" for option in running.options)
        or any(thread.name.endswith("/KVM") for thread in threads)
        or (running.program.endswith("kvm") and not any(accelerators))  # system/vl.c: configure_accelerators
    )
    root.set("type", "kvm" if kvm else "qemu")
    arch = re.search(r"qemu-system-([a-z0-9_]{2,20})", running.program)
    system = put(root, "os")
    put(system, "type", "hvm", arch={"i386": "i686"}.get(arch[1], arch[1]) if arch else host.arch,
        machine=machine.get("type") or "pc")  # fmt: skip
    flash = next((option.get("file") for option in running.every("drive") if option.get("if") == "pflash"), "")
    flash = flash or running.all_of("pflash").get("") or machine.get("pflash0")
    if file := flash or running.all_of("bios").get(""):
        put(system, "loader", file, type="pflash" if flash else "rom")
    features = put(root, "features")
    if machine.on("acpi") is not False and not any(option.name == "no-acpi" for option in running.options):
        put(features, "acpi")
    if _irqchip(running) in ("split", "off"):
        put(features, "ioapic", driver="qemu")
    hints = [name for name in ("hint-dedicated", "poll-control") if cpu.on(f"kvm-{name}")]
    hints += ["hidden"] if cpu.on("kvm") is False else []
    kvm_features = put(features, "kvm") if hints else features
    for name in hints:
        put(kvm_features, name, state="on")
    sleep, clock = put(root, "pm"), put(root, "clock")
    for option in running.every("global"):
        text = option.get("") or "{}.{}={}".format(*(option.get(key) for key in ("driver", "property", "value")))
        name, _, value = text.partition("=")
        if (state := _SLEEP.get(name.rpartition(".")[2])) and value in ("1", "on", "true"):
            put(sleep, state, enabled="no")
        elif name == "kvm-pit.lost_tick_policy":
            put(clock, "timer", name="pit", tickpolicy=value)
    put(root, "uuid", text) if (text := running.all_of("uuid").get("")) else None
    arguments = put(root, f"{QEMU}commandline")
    for option in running.options:
        if option.name in ("global", "fw_cfg"):
            text = option.get("") or ",".join(f"{key}={value}" for key, value in option.values.items())
            put(arguments, f"{QEMU}arg", value=f"-{option.name}")
            put(arguments, f"{QEMU}arg", value=text)
    if protection := machine.get("confidential-guest-support", machine.get("memory-encryption")):
        kinds = (one.get("qom-type") for one in running.every("object") if one.get("id") == protection)
        put(root, "launchSecurity", type=_CONFIDENTIAL.get(next(kinds, "")))


def _irqchip(running: Running) -> str:
    machine = running.all_of("machine")
    own = machine.get("kernel-irqchip", machine.get("kernel_irqchip"))
    return own or running.all_of("accel").get("kernel-irqchip")


def _topology(running: Running) -> tuple[int, int, dict[str, int]]:
    """Return the vCPUs at the start, all vCPUs, and the topology that QEMU makes of them (hw/core/machine-smp.c)."""
    smp = running.all_of("smp")
    given = {key: int(text) for key in (*_LEVELS, "cpus", "maxcpus") if (text := smp.get(key)).isdecimal()}
    shape = {level: given.get(level, 0) for level in _LEVELS}
    made = prod(filter(None, shape.values()))
    most = given.get("maxcpus") or given.get("cpus") or made
    now = given.get("cpus") or most
    old = re.search(r"-(?:[0-5]\.|6\.[01](?![0-9]))", running.all_of("machine").get("type"))  # they prefer sockets
    for level in ("sockets", "cores", "threads") if old else ("cores", "sockets", "threads"):
        if not shape[level]:
            shape[level] = most // made or 1
            made *= shape[level]
    return now, most, {level: count or 1 for level, count in shape.items()}


def _vcpus(root: _Element, running: Running, host: Host, unread: Notes) -> None:
    now, most, _ = _topology(running)
    online = CpuSet(cpu.id for cpu in host.cpus if cpu.online is not False)
    iothreads = [option.get("id") for option in running.every("object", "iothread")]
    vcpu = put(root, "vcpu", most, current=now if now != most else None)
    put(root, "iothreads", len(iothreads))
    if running.threads is None or any(thread.cpus is None for thread in running.threads):
        unread.append(("on which CPUs its threads may run (/proc)", "/domain/cputune"))
    tune = put(root, "cputune")
    # libvirt has no element for what may run on every CPU
    masks = [
        (t.name, t.cpus) for t in running.threads or () if t.cpus and (not online or not parse_cpus(t.cpus) >= online)
    ]
    emulator = CpuSet(CpuSet().union(*(parse_cpus(cpus) for name, cpus in masks if name == running.title)))
    names = [thread.name for thread in running.threads or ()]
    if any(re.match("CPU [0-9]+/", name) for name in names):
        for name, cpus in masks:
            if match := re.match("CPU ([0-9]{1,5})/", name):
                put(tune, "vcpupin", vcpu=match[1], cpuset=cpus)
    elif len({thread.cpus for thread in running.threads or ()}) == 1:
        vcpu.attrib.update({"cpuset": str(emulator)} if emulator else {})
    elif running.threads:
        unread.append(("which thread is which vCPU: it has no -name …,debug-threads=on", "/domain/cputune"))
        emulator = CpuSet()
    if emulator and running.title not in set(names) - {name for name, _ in masks}:
        put(tune, "emulatorpin", cpuset=emulator)
    for number, name in enumerate(iothreads, 1):
        for cpus in (cpus for thread, cpus in masks if thread == f"IO {name}"[:15]):
            put(tune, "iothreadpin", iothread=number, cpuset=cpus)


def _memory(root: _Element, running: Running, host: Host, unread: Notes) -> None:
    machine, memory = running.all_of("machine"), running.all_of("m")
    size = size_of(memory.get("size") or "128")
    if size is None:
        unread.append((f"-m {memory.get('size')[:40]}", "/domain"))
    put(root, "memory", size, unit="b")
    put(root, "maxMemory", size_of(memory.get("maxmem")), unit="b") if memory.get("maxmem") else None
    objects = {option.get("id"): option for option in running.every("object", "memory-backend")}
    cells = [option for option in running.every("numa") if option.get("type") == "node"]
    path = running.all_of("mem-path").get("")
    main = objects.get(machine.get("memory-backend")) or Option("object", {"mem-path": path} if path else {})
    used = {n: objects.get(option.get("memdev"), main) for n, option in enumerate(cells)} if cells else {None: main}
    backing, tune = put(root, "memoryBacking"), put(root, "numatune")
    huge = put(backing, "hugepages")
    for cell, one in used.items():
        pages = _page_bytes(one, running, host)
        if pages is not None:
            put(huge, "page", size=pages or None, unit="b" if pages else None, nodeset=cell)
        nodes, mode = one.get("host-nodes"), _MODES.get(one.get("policy"))
        if nodes and mode and cell is not None:
            put(tune, "memnode", cellid=cell, mode=mode, nodeset=nodes)
        elif nodes and mode:
            put(tune, "memory", mode=mode, nodeset=nodes)
    if not len(huge):
        backing.remove(huge)
    if not len(tune):
        _process_policy(tune, running, host)
    if running.page_bytes is None:
        what = "which memory it has (/proc/PID/numa_maps)"
        unread += [(what, "/domain/memoryBacking/hugepages"), (what, "/domain/numatune")]
    overcommit = running.all_of("overcommit")
    put(backing, "locked") if overcommit.on("mem-lock") else None
    if machine.on("mem-merge") is False or all(option.on("merge") is False for option in used.values()):
        put(backing, "nosharepages")
    touched = all(option.on("prealloc") for option in used.values())
    if touched or any(option.name == "mem-prealloc" for option in running.options):
        put(backing, "allocation", mode="immediate")
    _cells(root, running, objects, unread)


def _process_policy(tune: _Element, running: Running, host: Host) -> None:
    """Write what holds for the whole process: its own policy, or the nodes that its cpuset leaves it."""
    kind, _, nodes = (running.policy or "").partition(":")
    mode = _MODES.get(kind.partition("=")[0])
    every = CpuSet(node.id for node in host.numa_nodes)
    if mode and nodes:
        put(tune, "memory", mode=mode, nodeset=nodes)
    elif (allowed := parse_cpus(running.nodes)) and every - allowed:
        put(tune, "memory", mode="strict", nodeset=CpuSet(allowed & every) or allowed)


def _page_bytes(backend: Option, running: Running, host: Host) -> int | None:
    """Return the size of the huge pages of a backend; 0: of a size that is not known; None: ordinary pages."""
    mounts = (host.memory_settings.hugetlbfs if host.memory_settings else None) or ()
    path = backend.get("mem-path")
    own = running.page_bytes[0] if running.page_bytes and len(running.page_bytes) == 1 else 0
    if backend.on("hugetlb"):
        return size_of(backend.get("hugetlbsize"), "b") or own
    for mount in sorted(mounts, key=lambda mount: -len(mount.path)):
        if f"{path}/".startswith(f"{mount.path}/"):
            return mount.size_bytes or own
    return own if path and running.page_bytes else None


def _cells(root: _Element, running: Running, objects: Mapping[str, Option], unread: Notes) -> None:
    """Write the CPU with its cells."""
    cpu = put(root, "cpu")
    _cpu(cpu, running)
    numa = put(cpu, "numa")
    _, most, shape = _topology(running)
    options = list(running.every("numa"))
    nodes = [option for option in options if option.get("type") == "node"]
    placed: dict[str, list[int]] = {}
    places = [one for one in options if one.get("type") == "cpu"]
    at = ((one.get("node-id"), vcpu) for one in places for vcpu in _vcpus_at(one, shape))
    for node_id, vcpu in islice(at, _MOST_VCPUS):  # each vCPU has one place: more are no guest's
        placed.setdefault(node_id, []).append(vcpu)
    for place, node in enumerate(nodes[:_MOST_CELLS]):
        number = node.get("nodeid") or str(place)
        size = size_of(objects[node.get("memdev")].get("size"), "b") if node.get("memdev") in objects else None
        vcpus = node.get("cpus") or str(CpuSet(placed.get(number, ())))
        if not vcpus and len(nodes) > 1 and not placed and not any(option.get("cpus") for option in nodes):
            unread.append((f"-numa node {number[:9]}: QEMU chooses its vCPUs", "/domain/cpu/numa"))
        cell = put(numa, "cell", id=number, cpus=vcpus or (f"0-{most - 1}" if len(nodes) == 1 else None),
                   memory=size or size_of(node.get("mem")), unit="b")  # fmt: skip
        distances = put(cell, "distances")
        for one in options:
            if one.get("type") == "dist" and one.get("src") == number:
                put(distances, "sibling", id=one.get("dst"), value=one.get("val"))


def _vcpus_at(place: Option, shape: Mapping[str, int]) -> Iterator[int]:
    """Yield the vCPUs at a place in the topology ("socket-id", "core-id", …), in QEMU's order."""
    counts = [min(shape.get(level, 1), _MOST_VCPUS) for level in _LEVELS]
    given = [place.get(f"{level[:-1]}-id") for level in _LEVELS]
    ids = ([int(text)] if text.isdecimal() else range(count) for text, count in zip(given, counts, strict=True))
    for where in product(*ids):
        vcpu = 0
        for count, number in zip(counts, where, strict=True):
            vcpu = vcpu * count + number
        yield vcpu


def _cpu(cpu: _Element, running: Running) -> None:
    option = running.all_of("cpu")
    model, shape = option.get("model"), _topology(running)[2]
    if model:
        cpu.set("mode", _CPU_MODES.get(model, "custom"))
        put(cpu, "model", model) if model not in _CPU_MODES else None
    put(cpu, "topology", **shape)
    if (migratable := option.on("migratable")) is not None:
        cpu.set("migratable", "on" if migratable else "off")
    if option.on("host-cache-info") or option.on("l3-cache"):
        put(cpu, "cache", mode="passthrough" if option.on("host-cache-info") else "emulate")
    if option.get("phys-bits") or option.get("host-phys-bits-limit"):
        put(cpu, "maxphysaddr", mode="passthrough" if option.get("host-phys-bits-limit") else "emulate",
            bits=option.get("phys-bits"), limit=option.get("host-phys-bits-limit"))  # fmt: skip
    elif option.on("host-phys-bits"):
        put(cpu, "maxphysaddr", mode="passthrough")
    for key, value in option.values.items():
        if not _NO_FEATURE.fullmatch(key):
            off = key.startswith("-") or value == "off"
            put(cpu, "feature", name=key.lstrip("+-"), policy="disable" if off else "require")


# --- devices -------------------------------------------------------------------------------------------------


def _devices(root: _Element, running: Running, host: Host, unread: Notes) -> None:
    devices = put(root, "devices")
    buses = _controllers(devices, running)
    _passed(root, running, host, buses, unread)
    _disks(devices, running)
    _interfaces(devices, running)
    for option in running.every("device"):
        driver = option.get("driver")
        if driver.startswith("virtio-balloon"):
            put(devices, "memballoon", model="virtio")
        elif driver.startswith("virtio-rng"):
            put(put(devices, "rng", model="virtio"), "backend", "/dev/urandom", model="random")
        elif driver == "virtserialport":
            put(put(devices, "channel", type="unix"), "target", type="virtio", name=option.get("name"))
        elif driver.startswith("virtio-iommu"):
            put(devices, "iommu", model="virtio")
        elif driver.endswith("-iommu"):
            names = {"iotlb": "device-iotlb", "dma_translation": "dma-translation"}
            words = {name: option.get(names.get(name, name)) for name in ("intremap", "eim", "aw_bits", *names)}
            # hw/i386/x86-iommu.c, x86_iommu_realize; intel_iommu.c, vtd_decide_config
            if words["intremap"] in ("", "auto"):
                words["intremap"] = "on" if _irqchip(running) in ("split", "off") else ""
            if words["eim"] in ("", "auto"):
                words["eim"] = words["intremap"] if _irqchip(running) == "split" else "off"
            words["caching_mode"] = "on"  # or another way: without one QEMU takes no passed device
            put(
                put(devices, "iommu", model=driver.partition("-")[0]),
                "driver",
                **{**words, "aw_bits": option.get("aw-bits")},
            )
    if devices.find("memballoon") is None:
        put(devices, "memballoon", model="none")


def _controllers(devices: _Element, running: Running) -> dict[str, int]:
    """Write the PCI controllers; return the index of each bus by its name in QEMU."""
    made = [option for option in running.every("device") if option.get("driver") in _CONTROLLERS]
    buses = {"pcie.0": 0, "pci.0": 0, "pci": 0}
    own = {
        option.get("id"): int(match[1])
        for option in made
        if (match := re.fullmatch("pci\\.([0-9]{1,3})", option.get("id")))
    }
    free = iter(set(range(1, len(made) + len(own) + 2)) - set(own.values()))
    for option in made:
        buses[option.get("id")] = own.get(option.get("id")) or next(free)
    q35 = "q35" in running.all_of("machine").get("type")
    put(devices, "controller", type="pci", index="0", model="pcie-root" if q35 else "pci-root")
    for option in made:
        element = put(devices, "controller", type="pci", index=buses[option.get("id")],
                      model=_CONTROLLERS[option.get("driver")])  # fmt: skip
        hotplug = option.on("hotplug")
        words = {"chassis": option.get("chassis"), "port": option.get("port"), "busNr": option.get("bus_nr")}
        target = put(element, "target", **words, hotplug=None if hotplug is None else "on" if hotplug else "off")
        put(target, "node", option.get("numa_node")) if option.get("numa_node") else None
        _address(element, option, buses)
    return buses


def _address(element: _Element, option: Option, buses: Mapping[str, int]) -> None:
    """Write the place of a device in the guest, unless QEMU chooses it."""
    bus, text = option.get("bus"), option.get("addr")
    if bus not in buses and (bus or not text):
        return
    index = buses.get(bus, 0)
    slot, _, function = (text or "0").partition(".")
    if (text or index) and all(re.fullmatch("(?:0x)?[0-9a-fA-F]{1,2}", word) for word in (slot, function or "0")):
        place = {"bus": index, "slot": int(slot, 16), "function": int(function or "0", 16)}
        put(element, "address", type="pci", **place, multifunction="on" if option.on("multifunction") else None)


def _host_address(element: _Element, match: re.Match[str]) -> None:
    domain, bus, slot, function = (int(part or "0", 16) for part in match.groups())
    put(put(element, "source"), "address", domain=domain, bus=bus, slot=slot, function=function)


def _passed(root: _Element, running: Running, host: Host, buses: Mapping[str, int], unread: Notes) -> None:
    """Write the functions and mediated devices of the options, and those of open groups that no option names."""
    named: set[str] = set()
    devices = root[-1]
    for option in running.every("device", "vfio-pci"):
        source = option.get("host") or option.get("sysfsdev")
        match = _FUNCTION.fullmatch(source)
        uuid = source.rstrip("/").rpartition("/")[2]
        if not match and not re.fullmatch("[0-9a-fA-F-]{36}", uuid):
            unread.append((f"which device -device vfio-pci,id={option.get('id')[:60]} passes", _DEVICES))
            continue
        element = put(devices, "hostdev", mode="subsystem", type="pci" if match else "mdev")
        if match:
            named.add(f"{match[1] or '0000'}:{match[2]}:{match[3]}.{match[4]}".lower())
            _host_address(element, match)
        else:
            put(put(element, "source"), "address", uuid=uuid)
        if option.get("rombar") in ("0", "off"):
            put(element, "rom", bar="off")
        if clique := option.get(CLIQUE):
            alias = f"hostdev{len(devices.findall('hostdev')) - 1}"
            override = put(put(root, f"{QEMU}override"), f"{QEMU}device", alias=alias)
            put(put(override, f"{QEMU}frontend"), f"{QEMU}property", name=CLIQUE, type="unsigned", value=clique)
        _address(element, option, buses)
    for group in running.groups:
        held = [function for function in host.pci if str(function.iommu_group) == group and for_vfio(function.driver)]
        if named.isdisjoint(function.address for function in held):
            if len(held) == 1 and (match := _FUNCTION.fullmatch(held[0].address)):
                _host_address(put(devices, "hostdev", mode="subsystem", type="pci"), match)
            else:
                unread.append((f"which device of IOMMU group {group} it has: no option names one", _DEVICES))


_BUSES = {"virtio-blk": "virtio", "scsi-": "scsi", "ide-": "sata", "usb-storage": "usb", "nvme": "nvme"}


def _disks(devices: _Element, running: Running) -> None:
    """Write the disks: of devices with a drive, and of -drive that makes a device itself."""
    iothreads = {option.get("id"): n for n, option in enumerate(running.every("object", "iothread"), 1)}
    nodes = {option.get("node-name"): option for option in running.every("blockdev")}
    drives = {option.get("id"): option for option in running.every("drive")}
    sata = "q35" in running.all_of("machine").get("type")
    for option in running.every("device"):
        bus = next((bus for start, bus in _BUSES.items() if option.get("driver").startswith(start)), None)
        backend = option.get("drive")
        if bus and backend in (drives if backend in drives else nodes):
            chain = [drives[backend]] if backend in drives else _chain(nodes, backend)
            cdrom = option.get("driver").endswith("-cd") or chain[0].get("media") == "cdrom"
            bus = "ide" if bus == "sata" and not sata else bus
            _disk(devices, chain, option.get("id") or backend, bus, cdrom, iothreads.get(option.get("iothread")))
    for drive in running.every("drive"):
        if (kind := drive.get("if") or "ide") in ("ide", "virtio", "scsi"):
            bus = "sata" if kind == "ide" and sata else kind
            _disk(devices, [drive], drive.get("id") or drive.get("file"), bus, drive.get("media") == "cdrom", None)
    for option in running.options:
        if option.name in ("hda", "hdb", "cdrom"):
            plain = Option("drive", {"file": option.get("")})
            _disk(devices, [plain], option.name, "sata" if sata else "ide", option.name == "cdrom", None)


def _chain(nodes: Mapping[str, Option], name: str) -> list[Option]:
    """Return a node and the nodes below it; a ring ends where it began."""
    chain: list[Option] = []
    while name in nodes and nodes[name] not in chain:
        chain.append(nodes[name])
        name = nodes[name].get("file")
    return chain


def _disk(devices: _Element, chain: list[Option], name: str, bus: str, cdrom: bool, iothread: int | None) -> None:
    def last(*ends: str) -> str:
        """Return the value of the innermost key with such an end: nodes may be in each other."""
        return next(
            (v for option in reversed(chain) for k, v in reversed(option.values.items()) if k.endswith(ends)), ""
        )

    file = last("filename") or chain[-1].get("file")
    remote = bool(re.match("[a-z0-9+]{2,12}:", file)) or chain[-1].get("driver") in ("rbd", "nbd", "iscsi")
    kind = "network" if remote else "block" if file.startswith("/dev/") else "file"
    direct = last("cache.direct") in ("on", "true") or chain[0].get("cache") in ("none", "directsync")
    element = put(devices, "disk", type=kind, device="cdrom" if cdrom else "disk")
    put(element, "driver", name="qemu", type=chain[0].get("format") or chain[0].get("driver"), iothread=iothread,
        cache="none" if direct else chain[0].get("cache"), io=last("aio"))  # fmt: skip
    put(element, "source", **{"dev" if kind == "block" else "name" if remote else "file": file})
    put(element, "target", dev=name, bus=bus)


def _interfaces(devices: _Element, running: Running) -> None:
    kinds = {"tap": "ethernet", "bridge": "bridge", "user": "user", "vhost-user": "vhostuser", "vhost-vdpa": "vdpa"}
    backends = {netdev.get("id"): netdev for netdev in running.every("netdev")}
    pairs = [
        (device, backends[device.get("netdev")])
        for device in running.every("device")
        if device.get("netdev") in backends
    ]
    pairs += [(Option("device", {"driver": nic.get("model")}), nic) for nic in running.every("nic")]
    plain = [net for net in running.every("net") if net.get("type") in kinds]
    pairs += [
        (Option("device", {"driver": net.get("model")}), (plain or [net])[0]) for net in running.every("net", "nic")
    ]
    for device, backend in pairs:
        if (kind := kinds.get(backend.get("type"))) is None:
            continue
        element = put(devices, "interface", type=kind)
        source = backend.get("vhostdev") or backend.get("br") or backend.get("ifname") or backend.get("id")
        put(element, "source", **{"bridge" if kind == "bridge" else "dev": source})
        driver = device.get("driver")
        put(element, "model", type="virtio" if driver.startswith("virtio") else driver)
        queues = backend.get("queues") or len(re.findall("[^:,]+", backend.get("fds"))) or None
        put(element, "driver", queues=queues)
