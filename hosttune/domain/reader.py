"""Read any libvirt domain XML, written by hand or dumped from a live guest, as facts. The input is not trusted.

Element and attribute meanings: libvirt's formatdomain reference. Used by the proof, the linter, and for guests that
libvirt already has. Parsed with lxml.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hosttune.domain.arguments import CLIQUE, values_of
from hosttune.domain.guest import (
    AddressWidth,
    Controller,
    CpuTopology,
    Disk,
    Guest,
    GuestCell,
    GuestCpu,
    GuestInterface,
    HostDevice,
    Memnode,
    MemoryBacking,
    Pages,
    Pin,
    VirtualIommu,
)
from hosttune.domain.xml import (
    QEMU,
    UNLIMITED_KIB,
    Malformed,
    attribute,
    cpu_list,
    element_size,
    number,
    parse,
    pci_address,
    size,
    switch,
    text,
)
from hosttune.errors import BadInput
from hosttune.model.limits import check_count, check_size

if TYPE_CHECKING:
    from lxml.etree import _Element

# --- devices -------------------------------------------------------------------------------------------------


_SOURCES = ("file", "dev", "dir", "volume", "name")
_SET = r"device\.([\w-]+)\.([\w-]+)=(.+)"
_OFF = ("0", "off", "false", "no")  # QEMU's words, and libvirt's in an override
_NETWORKS = ("network", "bridge", "dev", "path", "name")


def read_controllers(root: _Element) -> tuple[Controller, ...]:
    """Return PCI controllers by index. One without an index gets the lowest free one, as libvirt does."""
    elements = [c for c in root.iterfind("devices/controller") if c.get("type") == "pci"]
    written = [number(c, attribute(c, "index")) for c in elements]
    free = iter(sorted(set(range(len(elements) + len(written))) - {index for index in written if index is not None}))
    controllers = (
        _controller(element, next(free) if index is None else index)
        for element, index in zip(elements, written, strict=True)
    )
    return tuple(sorted(controllers, key=lambda controller: controller.index))


def _controller(element: _Element, index: int) -> Controller:
    target = element.find("target")
    node = element.find("target/node")

    def of_target(name: str) -> int | None:
        return None if target is None else number(target, attribute(target, name))

    return Controller(
        index=index,
        model=attribute(element, "model"),
        address=pci_address(element.find("address")),
        chassis=of_target("chassis"),
        port=of_target("port"),
        bus_nr=of_target("busNr"),
        node=None if node is None else number(node, text(node)),
        pcihole64_bytes=element_size(element.find("pcihole64")),
        hotplug=None if target is None else switch(target, "hotplug"),
    )


def read_hostdevs(root: _Element) -> tuple[HostDevice, ...]:
    """Return host devices in the order of the XML; those given as network interfaces come last."""
    overrides = _overrides(root)
    given = [e for e in root.iterfind("devices/hostdev") if e.get("mode", "subsystem") == "subsystem"]
    # libvirt numbers devices without an alias
    names = (attribute(e.find("alias"), "name") or f"hostdev{n}" for n, e in enumerate(given))
    subsystem = (_hostdev(e, overrides.get(name, {})) for e, name in zip(given, names, strict=True))
    interfaces = (_hostdev(e, {}) for e in root.iterfind("devices/interface") if e.get("type") == "hostdev")
    return (*subsystem, *interfaces)


def _overrides(root: _Element) -> dict[str, dict[str, str]]:
    """Return the properties of devices, by alias, that `<qemu:override>` sets, or before libvirt 8.2 `-set`."""
    overrides: dict[str, dict[str, str]] = {}
    for device in root.iterfind(f"{QEMU}override/{QEMU}device"):
        for element in device.iterfind(f"{QEMU}frontend/{QEMU}property"):
            overrides.setdefault(str(device.get("alias")), {})[str(element.get("name"))] = str(element.get("value", ""))
    for argument in root.iterfind(f"{QEMU}commandline/{QEMU}arg"):
        if written := re.fullmatch(_SET, str(argument.get("value", ""))):
            overrides.setdefault(written[1], {})[written[2]] = written[3]
    return overrides


def _hostdev(element: _Element, overrides: Mapping[str, str]) -> HostDevice:
    interface = element.tag == "interface"
    kind = "pci" if interface else attribute(element, "type") or "unknown"
    source = element.find("source/address")
    driver = element.find("driver")
    return HostDevice(
        kind=kind,
        source=pci_address(source) if kind == "pci" else attribute(source, "uuid") if kind == "mdev" else None,
        managed=switch(element, "managed"),
        guest_address=pci_address(element.find("address")),
        rom_bar=overrides["rombar"] not in _OFF if "rombar" in overrides else switch(element.find("rom"), "bar"),
        clique=int(clique) if re.fullmatch("[0-9]{1,2}", clique := overrides.get(CLIQUE, "")) else None,
        driver=attribute(driver, "name"),
        model=attribute(driver, "model") or (None if interface else attribute(element, "model")),
        interface=interface,
        mac=attribute(element.find("mac"), "address") if interface else None,
        vlan=number(tag, attribute(tag, "id")) if (tag := element.find("vlan/tag")) is not None else None,
    )


def _disk(element: _Element) -> Disk:
    driver = element.find("driver")
    order = element.find("boot")
    target = element.find("target")
    nvme = attribute(element, "type") == "nvme"
    return Disk(
        source=_first(element.find("source"), _SOURCES),
        target=attribute(target, "dev"),
        bus=attribute(target, "bus"),
        type=attribute(element, "type"),
        format=attribute(driver, "type"),
        cache=attribute(driver, "cache"),
        io=attribute(driver, "io"),
        iothread=None if driver is None else number(driver, attribute(driver, "iothread")),
        boot_order=None if order is None else number(order, attribute(order, "order")),
        guest_address=pci_address(element.find("address")),
        device=attribute(element, "device"),
        readonly=element.find("readonly") is not None,
        discard=attribute(driver, "discard"),
        function=pci_address(element.find("source/address")) if nvme else None,
    )


def _interface(element: _Element) -> GuestInterface:
    driver = element.find("driver")
    return GuestInterface(
        type=attribute(element, "type"),
        source=_first(element.find("source"), _NETWORKS),
        model=attribute(element.find("model"), "type"),
        mac=attribute(element.find("mac"), "address"),
        guest_address=pci_address(element.find("address")),
        queues=None if driver is None else number(driver, attribute(driver, "queues")),
    )


def _first(element: _Element | None, names: tuple[str, ...]) -> str | None:
    return next((value for name in names if (value := attribute(element, name)) is not None), None)


# --- the whole guest -----------------------------------------------------------------------------------------


_X86 = ("x86_64", "i686")
_PFLASH = r"^--?pflash$|\b(?:if=pflash\b|pflash0=)"  # arguments to QEMU
_ENCRYPTED = (
    "tdx",
    "sev-snp",
    "sev",
)  # launchSecurity: only UEFI starts such a guest (libvirt kbase, launch_security_sev)
# Names that distributions and QEMU give to their firmware files.
_SEABIOS = r"(?i)bios(-256k|-microvm)?\.bin|.*seabios.*"
_UEFI = "(?i)ovmf|edk2|tdvf|uefi"


def read_domain(xml: str | bytes, *, where: str = "domain XML") -> Guest:
    """Return the facts of one `<domain>`. Raises BadInput, naming `where` and the line, for anything else."""
    return domain_facts(read_tree(xml, where=where), where=where)


def read_tree(xml: str | bytes, *, where: str) -> _Element:
    """Return the `<domain>` element of a document, with the line of each element. Raises BadInput, naming `where`."""
    from lxml import etree

    check_size(len(xml), "domain XML", where)
    try:
        root: _Element = parse(xml)
    except (etree.XMLSyntaxError, ValueError) as error:
        said = getattr(error, "msg", None) or str(error)  # the text of a syntax error ends in the place a second time
        hint = "give what `virsh dumpxml GUEST` prints"
        raise BadInput(f"not an XML document: {' '.join(said.split())}", where=where, hint=hint) from error
    if root.getroottree().docinfo.internalDTD is not None:
        raise BadInput("holds a document type", where=where, hint="a domain XML has none: take it out")
    if root.tag != "domain":
        raise BadInput(f"a <{root.tag}>, not a <domain>", where=where, hint="give what `virsh dumpxml GUEST` prints")
    # Each id in a list costs time later.
    elements = named = 0
    for element in root.iter():
        elements += 1
        for name in _CPU_LISTS:
            for low, high in _SPAN.findall(element.get(name) or ""):
                named += max(0, int(high or low) - int(low)) + 1
    check_count(elements, "elements of a domain XML", where)
    check_count(named, "CPUs named in a domain XML", where)
    return root


def domain_facts(root: _Element, *, where: str) -> Guest:
    """Return the facts of a `<domain>` element. Raises BadInput, naming `where` and the line, for an invalid value."""
    try:
        _check_once(root)
        return _domain(root)
    except Malformed as error:
        raise BadInput(
            error.what, where=f"{where}: line {error.line}, <{error.tag}>", hint="correct the value"
        ) from error


_CPU_LISTS = ("cpuset", "cpus", "nodeset")
_SPAN = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")


# Elements that libvirt writes once: of these a domain has one, and each element with an id below has one per id
# (formatdomain).
_ONCE = (
    *("name", "uuid", "memory", "currentMemory", "maxMemory", "vcpu", "iothreads", "cputune", "numatune", "memtune"),
    *("memoryBacking", "os", "cpu", "features", "devices", "numatune/memory", "cputune/emulatorpin", "cpu/numa"),
)
# libvirt refuses a second element with the same id ("duplicate vcpupin", "Multiple memnode elements", "Duplicate NUMA
# cell").
_ONCE_AN_ID = (
    *(("cputune/vcpupin", "vcpu"), ("cputune/iothreadpin", "iothread")),
    *(("numatune/memnode", "cellid"), ("cpu/numa/cell", "id")),
)


def _check_once(root: _Element) -> None:
    """Raise Malformed for an element that occurs twice: readers could use either of the two."""
    for path in _ONCE:
        elements = root.findall(path)
        if len(elements) > 1:
            raise Malformed(elements[1], "is there more than once")
    for path, of in _ONCE_AN_ID:
        seen: set[int] = set()
        for element in root.iterfind(path):
            named = number(element, attribute(element, of))
            if named is not None and named in seen:
                raise Malformed(element, f"{of} {named} is there more than once")
            seen.update(() if named is None else (named,))


def _domain(root: _Element) -> Guest:
    kind = root.find("os/type")
    arch = attribute(kind, "arch")
    arguments = tuple(str(e.get("value", "")) for e in root.iterfind(f"{QEMU}commandline/{QEMU}arg"))
    return Guest(
        type=attribute(root, "type"),
        name=text(root.find("name")),
        uuid=(text(root.find("uuid")) or "").lower() or None,
        arch=arch,
        machine=attribute(kind, "machine"),
        firmware=_firmware(root, arch, arguments),
        secure_boot=_secure_boot(root),
        kernel=text(root.find("os/kernel")),
        initrd=text(root.find("os/initrd")),
        cmdline=text(root.find("os/cmdline")),
        **_threads(root),
        **_memory(root),
        cpu=_cpu(root.find("cpu")),
        cells=tuple(_cells(root)),
        features=tuple(str(feature.tag) for feature in root.iterfind("features/*")),
        kvm_features=tuple(str(e.tag) for e in root.iterfind("features/kvm/*") if e.get("state") == "on"),
        ioapic=attribute(root.find("features/ioapic"), "driver"),
        controllers=read_controllers(root),
        hostdevs=read_hostdevs(root),
        disks=tuple(_disk(element) for element in root.iterfind("devices/disk")),
        interfaces=tuple(_interface(e) for e in root.iterfind("devices/interface") if e.get("type") != "hostdev"),
        serial=root.find("devices/serial") is not None or root.find("devices/console") is not None,
        channels=tuple(
            name
            for target in root.iterfind("devices/channel/target[@type='virtio']")
            if (name := attribute(target, "name")) is not None
        ),
        random=text(root.find("devices/rng/backend")),
        watchdog=attribute(root.find("devices/watchdog"), "model"),
        tpm=attribute(root.find("devices/tpm/backend[@type='emulator']"), "version"),
        panic=attribute(root.find("devices/panic"), "model"),
        on_crash=text(root.find("on_crash")),
        pit=attribute(root.find("clock/timer[@name='pit']"), "tickpolicy"),
        balloon=attribute(root.find("devices/memballoon"), "model"),
        iommu=_iommu(root.find("devices/iommu"), _overrides(root).get("iommu0", {})),
        qemu_arguments=arguments,
    )


def _threads(root: _Element) -> dict[str, Any]:
    vcpu = root.find("vcpu")
    pin = root.find("cputune/emulatorpin")
    return {
        "vcpus": _count(vcpu, 1, least=1),
        "vcpus_current": number(vcpu, attribute(vcpu, "current")) if vcpu is not None else None,
        "vcpu_cpus": cpu_list(vcpu, attribute(vcpu, "cpuset")),
        "vcpu_placement": attribute(vcpu, "placement"),
        "vcpu_pins": _pins(root, "vcpupin", "vcpu"),
        "emulator_cpus": cpu_list(pin, attribute(pin, "cpuset")),
        "iothreads": max(_count(root.find("iothreads"), 0), len(root.findall("iothreadids/iothread"))),
        "iothread_pins": _pins(root, "iothreadpin", "iothread"),
    }


def _memory(root: _Element) -> dict[str, Any]:
    limit, policies = element_size(root.find("memtune/hard_limit")), _policies(root)
    return {
        "memory_bytes": element_size(root.find("memory")),
        "current_memory_bytes": element_size(root.find("currentMemory")),
        "max_memory_bytes": element_size(root.find("maxMemory")),
        "hard_limit_bytes": None if limit is None or limit >= UNLIMITED_KIB * 1024 else limit,
        "backing": _backing(root.find("memoryBacking")),
        "numatune": next((policy for policy in policies if policy.cell is None), None),
        "memnodes": tuple(policy for policy in policies if policy.cell is not None),
    }


def _count(element: _Element | None, default: int, least: int = 0) -> int:
    if element is None or text(element) is None:
        return default
    value = number(element, text(element)) or 0
    if not least <= value <= 1 << 16:
        raise Malformed(element, f"{value} is out of range")
    return value


def _required(element: _Element, name: str) -> int:
    value = number(element, attribute(element, name))
    if value is None or value < 0:
        raise Malformed(element, f"has no {name}")
    return value


def _firmware(root: _Element, arch: str | None, arguments: tuple[str, ...]) -> str | None:
    """Return the firmware: auto-selected by name; else, on x86, flash and encrypted guests have UEFI, a ROM is what its
    name says (OVMF as a ROM is UEFI), and without one it is QEMU's own SeaBIOS.
    """
    named = attribute(root.find("os"), "firmware")
    if named is not None:
        return named
    if (arch or _X86[0]) not in _X86:
        return None
    loader = root.find("os/loader")
    if (
        attribute(loader, "type") == "pflash"
        or attribute(root.find("launchSecurity"), "type") in _ENCRYPTED
        or any(re.search(_PFLASH, argument) for argument in arguments)
    ):
        return "efi"
    file = next(reversed(values_of(arguments, "bios")), text(loader))
    if not file or re.fullmatch(_SEABIOS, file.rpartition("/")[2]):
        return "bios"
    return "efi" if re.search(_UEFI, file) else None


def _secure_boot(root: _Element) -> bool | None:
    for feature in root.iterfind("os/firmware/feature"):
        if feature.get("name") == "secure-boot":
            return switch(feature, "enabled")
    return None


def _pins(root: _Element, tag: str, of: str) -> tuple[Pin, ...]:
    pins = (
        Pin(id=_required(pin, of), cpus=cpu_list(pin, attribute(pin, "cpuset")) or "")
        for pin in root.iterfind(f"cputune/{tag}")
    )
    return tuple(sorted(pins, key=lambda pin: pin.id))


def _backing(backing: _Element | None) -> MemoryBacking:
    if backing is None:
        return MemoryBacking()
    hugepages = backing.find("hugepages")
    allocation = backing.find("allocation")
    return MemoryBacking(
        pages=None if hugepages is None else tuple(_pages(hugepages)) or (Pages(size_bytes=None),),
        locked=backing.find("locked") is not None,
        nosharepages=backing.find("nosharepages") is not None,
        allocation=attribute(allocation, "mode"),
        allocation_threads=number(allocation, attribute(allocation, "threads")) if allocation is not None else None,
        source=attribute(backing.find("source"), "type"),
        access=attribute(backing.find("access"), "mode"),
    )


def _pages(hugepages: _Element) -> Iterator[Pages]:
    for page in hugepages.iterfind("page"):
        yield Pages(
            size_bytes=size(page, attribute(page, "size"), attribute(page, "unit")),
            cells=cpu_list(page, attribute(page, "nodeset")),
        )


def _policies(root: _Element) -> tuple[Memnode, ...]:
    """Return the policy for all memory, if there is one, and those of cells."""
    return tuple(
        Memnode(
            cell=_required(element, "cellid") if element.tag == "memnode" else None,
            mode=attribute(element, "mode") or "strict",  # libvirt's default
            nodes=cpu_list(element, attribute(element, "nodeset")),
            placement=attribute(element, "placement"),
        )
        for path in ("numatune/memory", "numatune/memnode")
        for element in root.iterfind(path)
    )


def _cpu(cpu: _Element | None) -> GuestCpu:
    if cpu is None:
        return GuestCpu()
    return GuestCpu(
        mode=attribute(cpu, "mode"),
        model=text(cpu.find("model")),
        check=attribute(cpu, "check"),
        migratable=switch(cpu, "migratable"),
        topology=_topology(cpu.find("topology")),
        cache=attribute(cpu.find("cache"), "mode"),
        address_width=_address_width(cpu.find("maxphysaddr")),
        features=tuple((str(f.get("name", "")), str(f.get("policy", "require"))) for f in cpu.iterfind("feature")),
    )


def _topology(topology: _Element | None) -> CpuTopology | None:
    if topology is None:
        return None

    def level(name: str) -> int:
        count = number(topology, attribute(topology, name))
        if count is not None and count < 1:
            raise Malformed(topology, f"{name} is {count}")
        return count or 1

    return CpuTopology(
        sockets=level("sockets"),
        dies=level("dies"),
        clusters=level("clusters"),
        cores=level("cores"),
        threads=level("threads"),
    )


def _address_width(element: _Element | None) -> AddressWidth | None:
    if element is None:
        return None
    return AddressWidth(
        mode=attribute(element, "mode"),
        bits=number(element, attribute(element, "bits")),
        limit=number(element, attribute(element, "limit")),
    )


def _cells(root: _Element) -> Iterator[GuestCell]:
    """Yield guest cells; a cell without an id gets its position, as in libvirt."""
    for position, cell in enumerate(root.iterfind("cpu/numa/cell")):
        written = number(cell, attribute(cell, "id"))
        yield GuestCell(
            id=position if written is None else written,
            vcpus=cpu_list(cell, attribute(cell, "cpus")) or "",
            memory_bytes=size(cell, attribute(cell, "memory"), attribute(cell, "unit")),
            distances=tuple(
                (_required(sibling, "id"), _required(sibling, "value"))
                for sibling in cell.iterfind("distances/sibling")
            ),
            access=attribute(cell, "memAccess"),
            discard=switch(cell, "discard"),
        )


def _iommu(iommu: _Element | None, overrides: Mapping[str, str]) -> VirtualIommu | None:
    if iommu is None:
        return None
    driver = iommu.find("driver")
    return VirtualIommu(
        model=attribute(iommu, "model"),
        intremap=switch(driver, "intremap"),
        caching_mode=switch(driver, "caching_mode"),
        eim=switch(driver, "eim"),
        iotlb=switch(driver, "iotlb"),
        dma_translation=off not in _OFF
        if (off := overrides.get("dma-translation"))
        else switch(driver, "dma_translation"),
        aw_bits=number(driver, attribute(driver, "aw_bits")) if driver is not None else None,
    )
