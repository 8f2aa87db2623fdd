"""The interface to a GPU maker: `Vendor` is a frozen value of functions, one in each maker's module.

sysfs shows which devices exist (a GPU on vfio-pci is invisible to its maker's tools). A maker's library or tool adds
facts about the devices that its driver holds. Its answer is a partial `Gpu`, joined to the PCI function by address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from hosttune.errors import Unreadable
from hosttune.gpu.inside import Inside
from hosttune.gpu.knobs import Knobs
from hosttune.gpu.memory_tests import MemoryTest
from hosttune.linux.kernellines import KernelLine
from hosttune.machine.reader import Reader
from hosttune.model.host import Gpu, GpuPort, Mig, PciDevice, Problem
from hosttune.model.values import Value

if TYPE_CHECKING:  # it needs the parser of YAML
    from hosttune.model.measured import Measured

MAX_ANSWER = 4 << 20  # characters; nvidia-smi -q -x prints about 30 KB per GPU


class VendorAnswer(Value, frozen=True, kw_only=True):
    """What a library or tool reported: partial GPUs in its own order, and problems.

    `count`: how many GPUs it says there are, apart from those that it lists; None: it does not say.
    """

    gpus: tuple[Gpu, ...] = ()
    count: int | None = None
    problems: tuple[Problem, ...] = ()

    def by_address(self) -> dict[str, Gpu]:
        """Return the GPUs by PCI address."""
        return {gpu.address: gpu for gpu in self.gpus}


NO_ADDRESS = "GPU without a PCI address"  # a GPU that cannot be joined to a PCI function


def without_conflicting_gpus(answer: VendorAnswer, where: str) -> VendorAnswer:
    """Return the answer without GPUs that it lists more than once with different facts.

    It is unknown which of the facts are true.
    """
    alike = {gpu.address: gpu for gpu in answer.gpus}
    doubted = {gpu.address for gpu in answer.gpus if gpu != alike[gpu.address]}
    problems = tuple(
        Problem(what="GPU listed twice", where=address, why=f"{where} has it twice, and they differ: neither is used")
        for address in sorted(doubted)
    )
    kept = tuple(gpu for address, gpu in alike.items() if address not in doubted)
    return msgspec.structs.replace(answer, gpus=kept, problems=(*answer.problems, *problems))


class Listing(Value, frozen=True, kw_only=True):
    """The GPUs that a tool or a driver of this maker lists, independently of the PCI tree.

    `read` is the file, folder or call. `count` is set if the source only counts GPUs and gives no addresses. `whole`:
    it lists all GPUs that the maker's driver holds, so that a GPU which is missing from it is a contradiction.
    """

    name: str
    read: str
    gpus: tuple[Gpu, ...] = ()
    count: int | None = None
    whole: bool = True


class MeasuredPart(Value, frozen=True, kw_only=True):
    """A device that is measured by a process of its own, which sees only this device because of `environment`.

    `subject` names its figures; `address` is the GPU that it is, or is a part of. `whole`: it is that GPU and not a
    part of it. `multiprocessors`: how many a library must count in it, None if unknown. `without`: metrics that are not
    measured on it, with the reason. `unproven` is shown with every figure; "" if `Bench` has the text, or if such
    figures were seen on such a machine.
    """

    subject: str
    address: str
    environment: Mapping[str, str]
    whole: bool = True
    multiprocessors: int | None = None
    without: Mapping[str, str] = {}
    unproven: str = ""


class Bench(msgspec.Struct, frozen=True, kw_only=True):
    """How benchmarks load a maker's GPUs.

    `backends`: names of those that can (`hosttune.bench`). `libraries`: the Python packages that its measurements in
    Python import. `parts` returns the devices of a GPU that are measured by
    processes of their own (empty if it has none), or the reason why they are unknown. None: a GPU is measured together
    with the others, by its PCI address. `watch`: the tool that reports clocks and power under load, "" if none is used.
    `unproven` is shown with every figure; "" if the figures were seen on such a machine.
    """

    backends: frozenset[str]
    libraries: tuple[str, ...] = ("torch",)
    parts: Callable[[Gpu], tuple[MeasuredPart, ...] | str | None] = lambda _: None
    watch: str = ""
    unproven: str = ""


def _no_nodes(reader: Reader, address: str, driver: str) -> list[str]:
    return []


class LogRecords(msgspec.Struct, frozen=True, kw_only=True):
    """Events that a maker's driver writes to the kernel log, as regular expressions.

    `wanted` finds lines that may be an event (without groups, because journalctl searches with it). `begins` matches
    the beginning of an event. `shapes` are the forms of records by kind, with the groups address, code, severity and
    rest where a form has them (kinds: "xid", "sxid" and "lost", see `hosttune.discovery.kernellog`). `lines`: other
    records, each with what it means.
    """

    wanted: str = ""
    begins: str = ""
    shapes: tuple[tuple[str, str], ...] = ()
    lines: tuple[KernelLine, ...] = ()


class Traces(msgspec.Struct, frozen=True, kw_only=True):
    """Traces of a maker's driver on a host, besides the facts of its GPUs.

    `modules`: beginnings of the names of kernel modules that the host document lists (`Platform.modules`). `proc`: a
    folder of /proc with a folder for each GPU that the driver holds, named by address; "": there is none.
    `nodes(reader, address, driver)`: device nodes of a function that its folder in sysfs does not show. `node_classes`:
    folders of sysfs below a function -> where their entries have their device nodes. `daemons`: processes that keep
    GPUs open but do not compute -> how to stop one, "" if systemd shows it. `log`: its events in the kernel log; None
    if none is known.
    """

    modules: tuple[str, ...] = ()
    proc: str = ""
    nodes: Callable[[Reader, str, str], list[str]] = _no_nodes
    node_classes: Mapping[str, str] = {}
    daemons: Mapping[str, str] = {}
    log: LogRecords | None = None


class LogReader(msgspec.Struct, frozen=True, kw_only=True):
    """Reads the output of one of a maker's tools, as it is: facts of GPUs, or of the machine (one of the two).

    `sign`: a regular expression that finds this tool's output, `begin` one with which each of several runs begins. The
    readers raise BadInput, with the reason.
    """

    name: str
    sign: str
    begin: str = ""
    gpus: Callable[[str], tuple[Gpu, ...]] | None = None
    machine: Callable[[str], Measured] | None = None


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """What models of copies and collectives need of one generation of a maker's GPUs. None: no source, or none exists.

    - `names`: a regular expression of whole words in the model's name, in lower case.
    - `pcie_gts`: the PCIe speed that it supports, in GT/s, of `pcie_lanes` lanes.
    - `cpu_link_gb_per_s`: one direction of a link to its CPU that is used instead of PCIe.
    - `link_gb_per_s`: a link to other GPUs, one direction, as collectives count it; `link_peak_gb_per_s`: as the data
      sheet has it. `links`: how many a GPU has, None if models differ; `joins_hosts`: they can join those of a rack.
    - `measured`: the parts of peaks that were measured on H200 hold for this generation.
    - `ring_part`: the part of links × rate that a ring reaches. `switch_part`: likewise of the bound of a reduction in
      the switch; None: its switches do not reduce.
    """

    names: str
    pcie_gts: float | None = None
    pcie_lanes: int = 16
    cpu_link_gb_per_s: float | None = None
    link_gb_per_s: float | None = None
    link_peak_gb_per_s: float | None = None
    links: int | None = None
    joins_hosts: bool = False
    measured: bool = False
    ring_part: float | None = None
    switch_part: float | None = None


class Ports(msgspec.Struct, frozen=True, kw_only=True):
    """The network ports that a maker's GPUs carry themselves.

    `read(reader, functions)` returns the ports that were listed, by address. `counts`: by device id, how many internal
    and external ports a GPU has; a GPU without an entry has ports, and no source says how many. `external_gbps`: the
    rate of an external one, in Gb/s. `between`: how many internal ports join two GPUs of a board with such counts, each
    of which is joined with every other.
    `tool`: the command that lists them; `mend`: what to do about a port that is down.
    """

    read: Callable[[Reader, tuple[PciDevice, ...]], Mapping[str, tuple[GpuPort, ...]]]
    counts: Mapping[str, tuple[int, int]]
    external_gbps: float
    between: int
    tool: str
    mend: str


class Partitioning(msgspec.Struct, frozen=True, kw_only=True):
    """Modes in which a GPU is several devices to its users (`Gpu.compute_partition`, `Gpu.memory_partition`).

    `devices`: the device ids that have modes. `whole`: the mode in which the GPU is one device.
    """

    devices: frozenset[str]
    whole: str


class MemoryClear(msgspec.Struct, frozen=True, kw_only=True):
    """A maker's tool that says, without a driver, whether a GPU has cleared its memory since a reset.

    - `probe`: a command that touches no device; `version` reads the tool's version from its answer, None: another tool.
    - `command` asks a GPU, by its address. `heard(output, address)`: "finished", "not supported", or None if the output
      of a command that succeeded is not understood. `failure`: what the output of one that failed says, on one line.
    - `after`: the reset methods of the kernel after which it can be asked.
    """

    tool: str
    probe: tuple[str, ...]
    version: Callable[[str], str | None]
    command: Callable[[str], tuple[str, ...]]
    heard: Callable[[str, str], str | None]
    failure: Callable[[str], str]
    after: frozenset[str]
    limit_seconds: float
    estimate_seconds: float


class Hints(msgspec.Struct, frozen=True, kw_only=True):
    """Words of one maker for messages: what an operator reads or runs. "{gpu}" stands for the GPU's PCI address.

    - `tool`: the maker's command-line tool. `reporters`: where facts of a GPU come from, as the subject of "reported".
      `unreported`: what to do if none of these reported a GPU that the driver holds.
    - `show` prints what the driver knows about a GPU; `heat` its temperature limits; `processes` the processes on it;
      `links` its links to other GPUs; `partition` its partition modes.
    - `set_power`: a command that sets a power limit, without its last word, the watts; "": the plan sets it.
    - `reset`: how and when to reset a GPU. `repaired`: what tells whether memory errors were repaired.
    - `lost`: what the kernel log has of a GPU that its driver lost. `diagnose`: a thorough test of a GPU.
    - `retakers`: what else takes a GPU again when it is back on the host's driver.
    """

    tool: str = "its maker's tool"
    reporters: str = "neither its library nor its tool"
    unreported: str = "install the driver's library or tool, or run as root"
    show: str = "its maker's tool"
    heat: str = "its maker's tool"
    processes: str = "its maker's tool"
    links: str = "what its maker's tool shows of its links"
    partition: str = "its maker's tool"
    set_power: str = ""
    reset: str = "reset the GPU once nothing uses it (or reboot)"
    repaired: str = ""
    lost: str = "messages of its driver"
    diagnose: str = "run its maker's diagnostics"
    retakers: str = ""


class Vendor(msgspec.Struct, frozen=True, kw_only=True):
    """One maker of accelerators.

    - `models` names devices by PCI device id (sources in the maker's module).
    - `makes` returns whether a display or accelerator function of this maker is one of its accelerators, given the
      bridge above it: graphics built into a CPU is not.
    - `enrich` adds what the maker's driver knows. It gets this maker's functions and GPUs in one order and returns the
      GPUs in the same order.
    - `queries` names what a capture must hold so that it can be replayed.
    - `driver` is the kernel driver that reports these facts, and `tells` the fields of `Gpu` that it can report. If one
      of these is None, it is unknown; any other field does not exist for this maker.
    - `fabric`: its boards can have a switched fabric that a daemon on the host must set up. `link`: what connects its
      GPUs besides PCIe, as in `Peer.kind`.
    - `lists` reads what is recorded, or is in a file, about the GPUs that the maker's driver holds. It runs no tool,
      because a tool could wake a GPU. `must_list`: a driver that holds GPUs always has such a list, so if there is
      none, it was lost.
    - `tellers`: names of `Gpu.source` for users, the usual one first; "{call}" stands for the library's function.
    - `hints`: words for messages about its GPUs.
    - `reset_doubts`: by device id, what is known about a reset between two guests after which the GPU does not come
      back. `reset_reports`: what single reports say of that.
    - `weak_resets`: reset methods of the kernel that are known to leave state in its GPUs, with the reason.
    - `memory_search`: the program (a Python module) that searches a GPU's memory, and writes a pattern; "": none.
      `memory_clear`: the tool that says whether a GPU has cleared it; None: none is known.
    - `bench` is how benchmarks load its GPUs; None: none can.
    - `serves_vfio`: its driver is also the VFIO driver of its virtual functions, so these stay with it (vGPUs).
    - `mig`: its GPUs can be divided into instances. `knobs`: what its driver lets hosttune set; `unset` says by
      driver why nothing is set there.
    - `inside`: what is known about its GPUs in a guest. `traces`: traces of its driver on a host.
    - `peer_memory`: kernel modules that let NICs reach its GPUs' memory. `memory_test`: how bandwidth between hosts is
      measured with this memory; None: no source says.
    - `begin`: starts what takes long, so that the rest of discovery goes on meanwhile; `enrich` collects the answer.
    - `generations`: what models of copies and collectives need; the first whose names match counts.
    - `ports`: the network ports that its GPUs carry themselves; None: they carry none.
    - `partitioning`: modes in which a GPU is several devices; None: it has none.
    - `resets_peers`: by device id, what a reset of one GPU can do to those that `link` joins with it.
    """

    name: str
    vendor_id: str
    models: Mapping[str, str]
    makes: Callable[[PciDevice, PciDevice | None], bool]
    enrich: Callable[[Reader, tuple[PciDevice, ...], tuple[Gpu, ...]], tuple[Gpu, ...]]
    begin: Callable[[Reader], None] | None = None
    queries: tuple[str, ...] = ()
    driver: str = ""
    module_version: bool = True  # the driver has a version of its own; one that is part of the kernel may have none
    tells: frozenset[str] = frozenset()
    fabric: bool = False
    link: str = ""
    lists: Callable[[Reader], tuple[Listing, ...]] = lambda _: ()
    must_list: bool = False
    tellers: Mapping[str, str] = {}
    reset_doubts: Mapping[str, str] = {}
    reset_reports: Mapping[str, str] = {}
    weak_resets: Mapping[str, str] = {}
    memory_search: str = ""
    memory_clear: MemoryClear | None = None
    bench: Bench | None = None
    serves_vfio: bool = False
    mig: bool = False
    knobs: Knobs | None = None
    unset: Mapping[str, str] = {}
    inside: Inside = Inside()
    traces: Traces = Traces()
    hints: Hints = Hints()
    generations: tuple[Generation, ...] = ()
    peer_memory: tuple[str, ...] = ()
    memory_test: MemoryTest | None = None
    ports: Ports | None = None
    partitioning: Partitioning | None = None
    resets_peers: Mapping[str, str] = {}


def always(device: PciDevice, bridge: PciDevice | None) -> bool:
    """Return True: every display or accelerator function of this maker is an accelerator."""
    return True


def awake(reader: Reader, devices: Iterable[PciDevice], driver: str) -> tuple[PciDevice, ...]:
    """Return the devices that `driver` holds and that may be asked. A suspended one is not woken, and is a problem.

    Source: Documentation/ABI/testing/sysfs-devices-power (runtime_status).
    """
    held = [device for device in devices if device.driver == driver]
    for device in held:
        if device.runtime_status == "suspended":
            reader.problem(
                "GPU asleep",
                device.address,
                f"its runtime power state is suspended and asking {driver} would wake it: its facts stay unknown",
            )
    return tuple(device for device in held if device.runtime_status != "suspended")


def ask(reader: Reader, name: str, live: Callable[[], str | None]) -> str | None:
    """Return the answer to a query, recorded or live; None if there is none.

    Also None, with a problem, if the record cannot be read or is longer than MAX_ANSWER.
    """
    try:
        text = reader.system.query(name, live)
    except Unreadable as error:
        reader.problem("unreadable", name, error.reason)
        return None
    if text is not None and len(text) > MAX_ANSWER:
        reader.problem("unreadable", name, f"longer than {MAX_ANSWER >> 20} MiB: no tool prints that much")
        return None
    return text


def fill(gpu: Gpu, more: Gpu, *, source: str | None = None) -> Gpu:
    """Return `gpu` with its missing facts taken from `more`, which came from `source`. Known facts stay."""
    changes: dict[str, object] = {}
    for name in gpu.__struct_fields__:
        own, other = getattr(gpu, name), getattr(more, name)
        if own is None and other is not None:
            changes[name] = other
        elif isinstance(own, Mig) and isinstance(other, Mig):
            changes[name] = _fill_mig(own, other)
    if source and changes:
        changes["source"] = source
    return msgspec.structs.replace(gpu, **changes)


def _fill_mig(mig: Mig, more: Mig) -> Mig:
    lacking = {name: getattr(more, name) for name in mig.__struct_fields__ if getattr(mig, name) is None}
    known = {profile.name: profile for profile in more.profiles or ()}
    if mig.profiles is not None:
        lacking["profiles"] = tuple(
            msgspec.structs.replace(profile, starts=known[profile.name].starts, size=known[profile.name].size)
            if profile.starts is None and profile.name in known
            else profile
            for profile in mig.profiles
        )
    return msgspec.structs.replace(mig, **lacking)


# --- idle GPUs ------------------------------------------------------------------------------------------------

# NVIDIA says that generation and width "may be reduced" while idle (nvidia-smi documentation). The others use runtime
# power management or dynamic link speeds (amdgpu's pcie_gen_cap; i915 and xe suspend the device).
IDLING_DRIVERS = frozenset(("nvidia", "nouveau", "amdgpu", "radeon", "i915", "xe"))

# Those drivers whose GPUs a level 1 validation loads; it reads their link speed under load (hosttune.bench.guard).
LOADED_DRIVERS = frozenset(("nvidia",))
