"""System → the guests that libvirt knows, the devices and resources of each, and the virtualization stack.

A capture may hold `.hosttune/commands/libvirt.json` (hosttune's own record) or plain output of virsh: `virsh-list`
(list --all), `virsh-dumpxml-NAME`, `virsh-domcapabilities`, `virsh-version` (version --daemon). If libvirt cannot be
asked, it may hold `virsh-client-version` and `qemu-version` (what the programs print for --version). On a scratch root,
`virsh-dumpxml-NAME` and `virsh-domstate-NAME` also record which guests were defined and started there since.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from hosttune.discovery.libvirtd import (
    STATES,
    LibvirtFacts,
    RawDomain,
    ask_client_version,
    ask_libvirt,
    ask_qemu_version,
    read_version,
    read_versions,
)
from hosttune.discovery.qemu import qemu_lines
from hosttune.domain.compare import differing, name_of
from hosttune.domain.defined import as_defined
from hosttune.domain.elements import in_schema
from hosttune.domain.guest import GuestCpu
from hosttune.domain.reader import domain_facts, read_domain, read_tree
from hosttune.domain.xml import attribute, parse, text
from hosttune.errors import BadInput, Unreadable
from hosttune.linux import apparmor
from hosttune.linux.hugetlbfs import default_page_bytes
from hosttune.machine.reader import Reader, number
from hosttune.machine.system import COMMANDS, System
from hosttune.model.host import DomainCapabilities, RunningGuest, Virtualization
from hosttune.model.hostfields import LIST_UNREAD, NO_DEFINITION, OUTSIDE
from hosttune.model.jsontext import recorded_json
from hosttune.model.limits import check_size

if TYPE_CHECKING:
    from lxml.etree import _Element

# --- one guest, from its definition --------------------------------------------------------------------------


_KNOWN_STATES = frozenset((*STATES, "blocked")) - {"no state"}  # older versions of virsh print blocked for idle


def read_guest(reader: Reader, domain: RawDomain, run: Collection[str]) -> RunningGuest:
    """Return one guest; only its name and state, with a problem, if its definition cannot be read or names another.

    `run`: names of guests that have a running QEMU process.
    """
    domain = _with_known_state(reader, domain, run)
    if domain.xml is None:
        reader.problem(NO_DEFINITION, domain.name, "what this guest holds is unknown")
        return RunningGuest(name=domain.name, state=domain.state)
    try:
        facts = read_domain(domain.xml, where=f"guest {domain.name}")
    except BadInput as error:
        reader.problem(NO_DEFINITION, error.where, f"{error.what}: what this guest holds is unknown")
        return RunningGuest(name=domain.name, state=domain.state)
    if facts.name != domain.name:
        why = f"its definition names {facts.name!r}: what this guest holds is unknown"
        reader.problem(NO_DEFINITION, domain.name, why)
        return RunningGuest(name=domain.name, state=domain.state)
    default = None
    if any(pages.size_bytes is None for pages in facts.backing.pages or ()):
        default = default_page_bytes(reader.text("/proc/meminfo") or "")
    return msgspec.structs.replace(
        as_defined(facts, default_page_bytes=default),
        state=domain.state,
        starting=domain.starting,
        next_start=_next_start(reader, domain),
    )


def _with_known_state(reader: Reader, domain: RawDomain, run: Collection[str]) -> RawDomain:
    """Return the domain, without a state if the state is not one of libvirt's words or is contradicted.

    The word can be unknown because of another language or damage. `run`: names of guests that have a running QEMU
    process. libvirt ends the process before it reports a guest as shut off.
    """
    if domain.state == "shut off" and domain.name in run:
        why = "libvirt says that it is shut off, and a QEMU of its name runs: it may run"
        reader.problem("state of a guest contradicted", domain.name, why)
        return msgspec.structs.replace(domain, state=None)
    if domain.state is None or domain.state in _KNOWN_STATES:
        return domain
    reader.problem("state of a guest not understood", domain.name, f"reads {domain.state[:40]!r}: it may run")
    return msgspec.structs.replace(domain, state=None)


# Differences of a running guest that no edit caused: what libvirt makes of the CPU's mode host-model, or custom
# (formatdomain, "CPU model and topology"), and the balloon's current memory.
_LIVE_CPU = ("cpu mode", "cpu model", "cpu check", "cpu features")
_LIVE_MEMORY = "current memory"


def _next_start(reader: Reader, domain: RawDomain) -> tuple[str, ...] | None:
    """Return the names of what differs between a running guest and its persistent definition (used at its next start).

    Empty for a guest that does not run. None if that is unknown.
    """
    if domain.state in (None, "shut off"):
        return None if domain.state is None else ()
    if domain.xml is None or domain.inactive_xml is None:
        return None
    where = f"guest {domain.name}, as kept"
    try:
        running, kept = (read_tree(xml, where=where) for xml in (domain.xml, domain.inactive_xml))
        cpus = (domain_facts(root, where=where).cpu for root in (running, kept))
        names = dict.fromkeys(name_of(path, whole=False) for path, _, _ in differing(running, kept))
        of_libvirt = (_LIVE_MEMORY, *_made_by_libvirt(*cpus))
    except BadInput as error:
        reader.problem("no kept definition", where, f"{error.what}: how its next start differs is unknown")
        return None
    return tuple(name for name in names if name not in of_libvirt)


def _made_by_libvirt(running: GuestCpu, kept: GuestCpu) -> tuple[str, ...]:
    """Return the names of what libvirt changes in the CPU's definition when it starts the guest.

    A custom model then has `check` full, and as features of its own whatever QEMU switched on or off besides. A feature
    that was taken out of the kept definition since cannot be told from one of these.
    """
    if kept.mode == "host-model":
        return _LIVE_CPU
    if kept.mode != "custom" or running.check != "full":
        return ()
    live = dict(running.features)
    same = all(name in live and policy in (live[name], "optional") for name, policy in kept.features)
    return ("cpu check", "cpu features") if same else ("cpu check",)


# --- what libvirt and QEMU can give to a guest (formatdomaincaps) --------------------------------------------


def read_capabilities(reader: Reader, xml: str) -> DomainCapabilities | None:
    """Return what `<domainCapabilities>` offers; None, with a problem of the reader, if it is not XML.

    `features` are the names of the supported elements.
    """
    try:
        root = parse(xml)
    except (SyntaxError, ValueError) as error:
        reader.problem("unreadable domain capabilities", "libvirt", str(error))
        return None
    vcpus = attribute(root.find("vcpu"), "max") or ""
    return DomainCapabilities(
        machine=text(root.find("machine")),
        max_vcpus=number(vcpus),
        firmwares=tuple(str(value.text) for value in root.iterfind("os/enum[@name='firmware']/value")),
        loaders=tuple(str(value.text) for value in root.iterfind("os/loader/value")),
        cpu_modes=tuple(str(mode.get("name")) for mode in root.iterfind("cpu/mode[@supported='yes']")),
        host_cpu_model=text(root.find("cpu/mode[@name='host-model']/model")),
        features=tuple(
            str(element.tag)
            for parent in (".", "features", "devices")
            for element in root.iterfind(f"{parent}/*[@supported='yes']")
        ),
        domain_type=text(root.find("domain")),
        iothreads=_supported(root.find("iothreads")),
        hostdev_vfio=_takes_vfio(root.find("devices/hostdev")),
    )


def _supported(element: _Element | None) -> bool | None:
    """Return the element's attribute `supported`; None if this libvirt does not list the element."""
    return None if element is None else {"yes": True, "no": False}.get(element.get("supported") or "")


def _takes_vfio(hostdev: _Element | None) -> bool | None:
    """Return whether host devices go through VFIO.

    If the kernel offers no VFIO, libvirt leaves the list of backends empty.
    """
    supported = _supported(hostdev)
    if hostdev is None or not supported:
        return supported
    backends = hostdev.find("enum[@name='pciBackend']")
    return None if backends is None else any(value.text == "vfio" for value in backends.iterfind("value"))


# --- the guests of libvirt -----------------------------------------------------------------------------------


QUERY = "libvirt.json"
DEFINITION = "virsh-dumpxml-"  # followed by the guest's name
STATE = "virsh-domstate-"
CLIENT_VERSION = "virsh-client-version"
QEMU_VERSION = "qemu-version"
SCHEMA_ELEMENTS = "libvirt-schema-elements"
NODE_CPUS = "apparmor-node-cpus"  # name of the query: may QEMU read which CPUs a node has? "yes" or "no"
_MAY_BE_MORE = "there may be others"
_ANSWERS = {"yes": True, "no": False}
SCHEMAS = "/usr/share/libvirt/schemas"


def read_guests(reader: Reader) -> tuple[tuple[RunningGuest, ...] | None, Virtualization]:
    """Return the guests by name, and the installed stack.

    Guests are None if libvirt cannot be asked (unknown), and empty if there are none. QEMU processes that libvirt does
    not own are problems, because it is unknown which devices they use.
    """
    guests, stack = _guests_and_stack(reader)
    names = reader.query(SCHEMA_ELEMENTS, lambda: _ask_schema(reader.system))
    reads = reader.query(NODE_CPUS, lambda: _ask_profile(reader.system))
    return guests, msgspec.structs.replace(
        stack,
        schema_elements=None if names is None else tuple(names.split()),
        reads_node_cpus=_ANSWERS.get((reads or "").strip()),
    )


def _ask_profile(system: System) -> str | None:
    """Return whether libvirt's AppArmor profile lets QEMU read the CPUs of nodes: "yes" or "no".

    None if no profile confines QEMU, or if a file cannot be read.
    """
    try:
        if system.read(apparmor.ENABLED) != "Y" or (profile := system.read(apparmor.PROFILE)) is None:
            return None
        return "yes" if apparmor.allows_node_cpus(profile, system.read(apparmor.LOCAL)) else "no"
    except Unreadable:
        return None


def _ask_schema(system: System) -> str | None:
    """Return the optional elements that libvirt's installed schema has; None if there is no schema."""
    texts = [text for name in ("domaincommon", "cputypes") if (text := system.read(f"{SCHEMAS}/{name}.rng"))]
    if not texts:
        return None
    return " ".join(in_schema(texts))


def _guests_and_stack(reader: Reader) -> tuple[tuple[RunningGuest, ...] | None, Virtualization]:
    facts = _facts(reader)
    kvm = _kvm(reader)
    processes = qemu_lines(reader)
    if facts is None:
        _report_unlisted_qemu(reader, processes, ())
        libvirt_version, qemu_version = _installed(reader)
        return None, Virtualization(kvm=kvm, libvirt_version=libvirt_version, qemu_version=qemu_version)
    libvirt_version, qemu_version = facts.libvirt_version, facts.qemu_version
    if facts.error:
        libvirt_version, qemu_version = _installed(reader)
        why = f"{facts.error}; its guests are unknown"
        if libvirt_version or qemu_version:
            why += ", and the versions are those of the installed programs"
        reader.problem("libvirt cannot be asked", facts.uri or "libvirt", why)
    if facts.capabilities_error:
        reader.problem("no domain capabilities", facts.uri or "libvirt", facts.capabilities_error)
    guests = None
    if facts.domains is not None:
        if reader.system.captured:
            texts = (text for domain in facts.domains for text in (domain.xml, domain.inactive_xml) if text)
            check_size(sum(map(len, texts)), "definitions of all guests", f"{reader.system.origin}: guests")
        # On a scratch root, guests are defined and started without a QEMU process.
        run = {line.partition(" ")[2] for line in processes if not reader.system.scratch}
        guests = tuple(read_guest(reader, domain, run) for domain in facts.domains)
    _report_unlisted_qemu(reader, processes, guests or ())
    offered = facts.domcapabilities
    return guests, Virtualization(
        kvm=kvm,
        libvirt_version=libvirt_version,
        qemu_version=qemu_version,
        uri=facts.uri,
        capabilities=read_capabilities(reader, offered) if offered is not None else None,
    )


def _facts(reader: Reader) -> LibvirtFacts | None:
    system = reader.system
    text = reader.query(QUERY, lambda: ask_libvirt(system))
    if text is None:
        return _recorded_virsh(reader)
    where = f"{system.origin}: {COMMANDS[1:]}{QUERY}"
    try:
        facts = msgspec.json.decode(text, type=LibvirtFacts)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadInput(f"not facts of libvirt: {error}", where=where, hint="capture the host again") from error
    recorded_json(text, where=where)
    names = [domain.name for domain in facts.domains or ()]
    if len(set(names)) != len(names):
        raise BadInput("a guest that is listed twice in libvirt's facts", where=where, hint="capture the host again")
    if facts.domains is None:
        return facts
    if not system.scratch:
        files = reader.names(COMMANDS.rstrip("/")) if reader.system.captured else []
        others = sorted(
            {name.removeprefix(DEFINITION) for name in files if name.startswith(DEFINITION)}.difference(names)
        )
        if others:
            reader.problem(
                LIST_UNREAD, f"{COMMANDS}{QUERY}", f"it lacks {others[0]!r}, which virsh defines: {_MAY_BE_MORE}"
            )
        return facts
    domains = tuple(_with_recorded_definitions(reader, {domain.name: domain for domain in facts.domains}))
    return msgspec.structs.replace(facts, domains=domains)


def recorded_domain(system: System, name: str) -> RawDomain | None:
    """Return the guest of that name in a capture; None if there is none. Raises Unreadable if the guests are unknown.

    A scratch root stands for a machine that has only the guests in it.
    """
    reader = Reader(system)
    facts = _facts(reader) if system.captured else None
    domains = facts.domains if facts else None
    for problem in reader.problems:
        raise Unreadable(problem.where, problem.why)
    if domains is None and not system.scratch:
        raise Unreadable("libvirt", facts.error or "not asked" if facts else "not recorded")
    return next((domain for domain in domains or () if domain.name == name), None)


def _installed(reader: Reader) -> tuple[str | None, str | None]:
    """Return the versions of the installed virsh and QEMU, for when libvirt does not report them."""
    system = reader.system
    virsh = reader.query(CLIENT_VERSION, lambda: ask_client_version(system))
    qemu = reader.query(QEMU_VERSION, lambda: ask_qemu_version(system))
    return read_version(virsh or ""), read_version(qemu or "")


def _recorded_virsh(reader: Reader) -> LibvirtFacts | None:
    """Return the facts in plain output of virsh that was added to a capture; None if there is no such output."""
    names = reader.names(COMMANDS.rstrip("/"))
    if not any(name.startswith("virsh-") and name != CLIENT_VERSION for name in names):
        return None
    text = reader.text(f"{COMMANDS}virsh-list")
    listed = None if text is None else _listed(text)
    if listed is None:
        why = "not recorded" if text is None else "its output is not that of virsh list --all, or a part of it"
        reader.problem(LIST_UNREAD, f"{COMMANDS}virsh-list", f"{why}: {_MAY_BE_MORE}")
    states = dict(listed or ())
    domains = tuple(
        _with_recorded_definitions(reader, {name: RawDomain(name=name, state=state) for name, state in states.items()})
    )
    libvirt_version, qemu_version = read_versions(reader.text(f"{COMMANDS}virsh-version") or "")
    return LibvirtFacts(
        uri="recorded",
        libvirt_version=libvirt_version,
        qemu_version=qemu_version,
        domains=domains if domains or listed is not None else None,
        domcapabilities=reader.text(f"{COMMANDS}virsh-domcapabilities"),
    )


def _with_recorded_definitions(reader: Reader, known: Mapping[str, RawDomain]) -> Iterator[RawDomain]:
    """Yield the guests, sorted by name, with the definitions and states that are in files of their own."""
    names = reader.names(COMMANDS.rstrip("/"))
    defined = {name.removeprefix(DEFINITION) for name in names if name.startswith(DEFINITION)}
    default_state = "shut off" if reader.system.scratch else None  # there, a guest is defined before it is started
    for name in sorted(known.keys() | defined):
        domain = known.get(name) or RawDomain(name=name, state=default_state)
        xml = reader.text(f"{COMMANDS}{DEFINITION}{name}") if name in defined else None
        if xml is not None:
            domain = msgspec.structs.replace(domain, xml=xml, inactive_xml=None)
        state = reader.text(f"{COMMANDS}{STATE}{name}") if f"{STATE}{name}" in names else None
        yield msgspec.structs.replace(domain, state=state) if state else domain


def _listed(text: str) -> list[tuple[str, str]] | None:
    """Return names and states from the output of `virsh list --all`, whose columns are separated by two or more blanks.

    None for any other text, and if a name occurs twice. virsh prints the heading and a rule even if there is no guest.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    below = [line for line in lines if line.split() != ["Id", "Name", "State"] and set(line.strip()) != {"-"}]
    rows = [re.fullmatch(r"\s*(?:-|[0-9]+)\s+(\S.*?)\s{2,}(\S.*?)\s*", line) for line in below]
    guests = [(row[1], row[2]) for row in rows if row]
    return guests if lines and all(rows) and len({name for name, _ in guests}) == len(guests) else None


def _kvm(reader: Reader) -> bool | None:
    """Return whether KVM works here: there is its device, and a module for this CPU. None if that cannot be seen."""
    exists = reader.exists("/dev/kvm")
    if exists:
        modules = reader.names("/sys/module")
        makers = [name for name in modules if name in ("kvm_intel", "kvm_amd")]
        # Other architectures build KVM into the kernel without a vendor module. x86 has such a module, loaded or built
        # in.
        return True if makers or "kvm" not in modules else None
    return False if exists is False and reader.system.complete else None


def _report_unlisted_qemu(reader: Reader, lines: Iterable[str], guests: tuple[RunningGuest, ...]) -> None:
    """Add a problem for each QEMU process whose guest libvirt does not list."""
    known = {guest.name for guest in guests}
    for line in lines:
        process, _, name = line.partition(" ")
        if name not in known:
            what = f"{OUTSIDE}{f' ({name})' if name else ''}"
            reader.problem(what, f"/proc/{process}", "the CPUs, memory and devices that it holds are unknown")
