"""The host document as a text tree, for an operator's terminal.

The header describes the machine. Then comes each NUMA node with its CPUs, memory, pages and devices, then guests and
problems. Pure functions build all texts; only `print_host` uses the console. The text is ASCII except for the tree's
lines and names that the machine itself gives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hosttune.model.host import Cpu, Host, NumaNode, RunningGuest
from hosttune.model.listing import short_list, some
from hosttune.model.text import count
from hosttune.model.values import CpuSet, format_size, grouped
from hosttune.report.branch import Branch, draw, draw_rows, say, wrap
from hosttune.report.devices import device_branches, listed, shown

if TYPE_CHECKING:
    from hosttune.report.branch import Page


def print_host(host: Host, console: Page) -> None:
    """Print the host for an operator: header, one tree per node, guests, problems.

    It needs about 100 columns for one line per device; narrower consoles wrap.
    """
    for line in wrap(title(host), console.width):
        say(line, console, "strong")
    draw_rows(header(host), console)
    draw(node_branches(host), console)
    guests = tuple(Branch(text=_guest(guest)) for guest in host.guests or ())
    if guests:
        draw((Branch(text="guests", style="strong", children=guests),), console)
    if host.problems:
        say("problems", console, "strong")
        draw_rows(tuple((f"{n}.", text) for n, text in enumerate(problem_lines(host), 1)), console)


def title(host: Host) -> str:
    """Return host name and product."""
    platform = host.platform
    vendor, product = (platform.vendor or "", platform.product or "") if platform else ("", "")
    machine = product if vendor and product.startswith(vendor) else f"{vendor} {product}".strip()
    return f"{host.hostname or 'unnamed host'}: {machine or 'product unknown'}"


def header(host: Host) -> tuple[tuple[str, str], ...]:
    """Return facts about the whole machine as (label, text): only what is known or doubtful."""
    where = {True: "this machine is itself a guest", False: "bare metal", None: "guest or bare metal unknown"}
    hypervisor = host.platform.virtualization if host.platform else None
    facts = [" ".join(word for word in (host.kernel, host.arch) if word), where[host.hypervisor]]
    if host.hypervisor and hypervisor:
        facts[-1] += f" (hypervisor: {hypervisor})"
    if host.hypervisor:
        facts.append("the topology it sees is not the hardware's")
    rows = (
        ("kernel", ", ".join(fact for fact in facts if fact)),
        ("CPUs", _cpus(host)),
        ("memory", _memory(host)),
        ("IOMMU", _iommu(host)),
        ("KVM", _virtualization(host)),
        ("devices", _devices(host)),
    )
    return tuple((label, text) for label, text in rows if text)


def node_branches(host: Host) -> tuple[Branch, ...]:
    """Return one branch per NUMA node, then one for devices whose node is unknown."""
    index = shown(host, problem_numbers(host))
    devices = ((address, index.pci.get(address)) for address in listed(index))
    places = grouped((device.numa_node if device else None, address) for address, device in devices)
    branches = [_node(host, node, device_branches(index, places.pop(node.id, []))) for node in host.numa_nodes]
    if not host.numa_nodes:
        cpus = tuple(cpu for cpu in host.cpus if cpu.online)
        branches.append(Branch(text="no NUMA nodes known", style="strong", children=_cpu_branch(cpus)))
    stray = device_branches(index, [address for rest in places.values() for address in rest])
    if stray:
        branches.append(Branch(text="affinity unknown: no node is known for these", style="warn", children=stray))
    return tuple(branches)


def problem_lines(host: Host) -> tuple[str, ...]:
    """Return the problems as text; those of one kind on one line."""
    kinds = grouped(((problem.what, problem.why), problem.where) for problem in host.problems)
    return tuple(f"{what}: {some(where)}: {why}" for (what, why), where in kinds.items())


def problem_numbers(host: Host) -> dict[str, int]:
    """Map place and reason of each problem to the number of its line in `problem_lines`, from 1.

    The key text has every address that the problem names, in its place or its reason.
    """
    order: dict[tuple[str, str], int] = {}
    numbers: dict[str, int] = {}
    for problem in host.problems:
        number = order.setdefault((problem.what, problem.why), len(order) + 1)
        numbers.setdefault(f"{problem.where} {problem.why}", number)
    return numbers


# --- header --------------------------------------------------------------------------------------------------


def _cpus(host: Host) -> str:
    online = tuple(cpu for cpu in host.cpus if cpu.online)
    if not online:
        return "unknown"
    packages, cores = {cpu.package for cpu in online}, {cpu.core for cpu in online}
    facts = [f"{len(online)} online"]
    if None not in packages and None not in cores:
        facts.append(f"{count(len(packages), 'package')}, {count(len(cores), 'core')}")
    model = host.cpu_model
    facts += [model.model or model.vendor or ""] if model else []
    if model and model.physical_address_bits is not None:
        facts.append(f"{model.physical_address_bits} address bits")
    offline = CpuSet(cpu.id for cpu in host.cpus if not cpu.online)
    hidden = CpuSet(cpu.id for cpu in online if cpu.allowed is False)
    facts.append(f"offline {short_list(offline)}" if offline else "")
    facts.append(f"hidden from guests by a cpuset {short_list(hidden)}" if hidden else "")
    driver = host.cpu_model.scaling_driver if host.cpu_model else None
    modes = sorted({"/".join(word for word in (cpu.governor, cpu.energy_preference) if word) for cpu in online} - {""})
    facts.append(" ".join(word for word in (driver, " and ".join(modes)) if word))
    return ", ".join(fact for fact in facts if fact)


def _memory(host: Host) -> str:
    sizes = [node.memory_bytes for node in host.numa_nodes if node.memory_bytes is not None]
    facts = [f"{format_size(sum(sizes))} in {count(len(host.numa_nodes), 'node')}" if sizes else "size unknown"]
    settings = host.memory_settings
    if settings:
        ksm = {0: "off", 1: "on", 2: "off, pages unmerged"}
        named = (
            ("THP", settings.thp),
            ("KSM", None if settings.ksm_run is None else ksm.get(settings.ksm_run, str(settings.ksm_run))),
            ("NUMA balancing", None if settings.numa_balancing is None else "on" if settings.numa_balancing else "off"),
        )
        facts += [f"{name} {value}" for name, value in named if value is not None]
    return ", ".join(facts)


def _iommu(host: Host) -> str:
    groups = {device.iommu_group for device in host.pci} - {None}
    iommu = host.iommu
    if iommu is None or iommu.present is None:
        return "unknown" if not groups else count(len(groups), "group")
    if not iommu.present:
        return "off: no groups, nothing can be passed to a guest"
    facts = (iommu.vendor, iommu.mode, count(len(groups), "group"))
    return ", ".join(fact for fact in facts if fact)


def _virtualization(host: Host) -> str:
    stack = host.virtualization
    if stack is None:
        return "unknown"
    usable = {True: "usable", False: "not usable", None: "unknown"}
    return (
        f"{usable[stack.kvm]}, libvirt {stack.libvirt_version or 'unknown'}, QEMU {stack.qemu_version or 'unknown'}, "
        + ("guests unknown" if host.guests is None else count(len(host.guests), "guest"))
    )


def _devices(host: Host) -> str:
    counts: dict[str, int] = {}
    for gpu in host.gpus:
        name = (gpu.model or f"{gpu.vendor} GPU") if gpu.is_accelerator else "other display"
        counts[name] = counts.get(name, 0) + 1
    facts = [f"{number} x {name}" for name, number in counts.items()]
    nics = sum(1 for nic in host.nics if not nic.physfn)
    for number, name in ((nics, "NIC"), (len(host.nvme), "NVMe drive"), (len(host.nvswitches), "NVSwitch")):
        facts += [count(number, name)] if number else []
    links = {gpu.nvlinks_active for gpu in host.gpus} - {None}
    fabric = {gpu.fabric_state for gpu in host.gpus} - {None}
    facts += [f"{links.pop()} NVLinks a GPU"] if len(links) == 1 else []
    facts += [f"fabric {' and '.join(sorted(str(state) for state in fabric)).lower()}"] if fabric else []
    facts += _partitions(host)
    return ", ".join((*facts, f"{count(len(host.pci), 'PCI function')} in all"))


def _partitions(host: Host) -> list[str]:
    """Return which partitions Fabric Manager can make, and which are active."""
    fabric = host.fabric
    facts = [f"Fabric Manager mode {fabric.mode}"] if fabric and fabric.mode is not None else []
    if fabric and fabric.partitions is not None:
        active = ", ".join(str(part.id) for part in fabric.partitions if part.active) or "none"
        facts.append(f"{count(len(fabric.partitions), 'fabric partition')} (active: {active})")
    return facts


# --- nodes and guests ----------------------------------------------------------------------------------------


def _node(host: Host, node: NumaNode, devices: tuple[Branch, ...]) -> Branch:
    cpus = tuple(cpu for cpu in host.cpus if cpu.numa_node == node.id and cpu.online)
    what = {"memory": ": memory only", "gpu": ": a GPU's own memory", "empty": ": empty"}.get(node.kind or "", "")
    children = (*_cpu_branch(cpus), *_memory_branch(node), *devices)
    return Branch(text=f"node {node.id}{what}", style="strong", children=children)


def _cpu_branch(cpus: tuple[Cpu, ...]) -> tuple[Branch, ...]:
    if not cpus:
        return ()
    cores, caches = {cpu.core for cpu in cpus}, {cpu.llc for cpu in cpus}
    facts = [f"CPUs {short_list(cpu.id for cpu in cpus)}"]
    if None not in cores:
        facts.append(count(len(cores), "core"))
        facts.append(_threads([cpu.core for cpu in cpus]))
    facts += [] if None in caches else [count(len(caches), "last-level cache")]
    isolated = CpuSet(cpu.id for cpu in cpus if cpu.isolated)
    facts += [f"isolated {short_list(isolated)}"] if isolated else []
    return (Branch(text=", ".join(fact for fact in facts if fact)),)


def _threads(cores: list[int | None]) -> str:
    """Return the threads per core if any core has more than one; hybrid processors have cores of both kinds."""
    sizes = [cores.count(core) for core in dict.fromkeys(cores)]
    most = max(sizes)
    if most == 1:
        return ""
    return f"{most} threads each" if min(sizes) == most else f"{sizes.count(most)} of them with {most} threads"


def _memory_branch(node: NumaNode) -> tuple[Branch, ...]:
    if node.memory_bytes is None and not node.hugepages:
        return ()
    facts = memory_facts(node)
    if node.distances:
        facts.append("distances " + " ".join(f"{other}:{far}" for other, far in node.distances.items()))
    return (Branch(text=", ".join(facts)),)


def memory_facts(node: NumaNode) -> list[str]:
    """Return what is known of a node's memory: its size, what is free, huge pages."""
    facts = ["memory unknown" if node.memory_bytes is None else f"memory {format_size(node.memory_bytes)}"]
    facts += [f"{format_size(node.free_bytes)} free"] if node.free_bytes is not None else []
    for pages in sorted(node.hugepages or (), key=lambda pages: pages.size_bytes):
        if pages.total == 0:
            facts.append(f"no {format_size(pages.size_bytes)} pages")
        else:
            free, total = ("?" if n is None else str(n) for n in (pages.free, pages.total))
            facts.append(f"{free} of {total} {format_size(pages.size_bytes)} pages free")
    return facts


def _guest(guest: RunningGuest) -> str:
    devices = [f"devices {some(guest.devices, 8)}"] if guest.devices else []
    vcpus = guest.vcpus if guest.vcpus is not None else len(guest.vcpu_pins) if guest.vcpu_pins else None
    facts = [guest.state or "state unknown"]
    facts += [f"{vcpus} vCPUs {'pinned' if guest.vcpu_pins else 'not pinned'}"] if vcpus is not None else []
    facts += [format_size(guest.memory_bytes)] if guest.memory_bytes is not None else []
    return f"{guest.name}: {', '.join(facts + devices)}"
