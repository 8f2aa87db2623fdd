"""A metric of a machine → its formula with the machine's numbers. `because` names what is missing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

import msgspec

from hosttune.bench.baselines import ABOVE_PEAK, Standard
from hosttune.errors import BadInput
from hosttune.gpu import Generation, maker_of_model
from hosttune.model.devicepath import GpuRoof
from hosttune.model.host import Host
from hosttune.model.measured import COLLECTIVES, RINGS
from hosttune.predicting import formulas
from hosttune.predicting.formulas import Estimate
from hosttune.predicting.shape import HostShape, is_card, of_host

# A figure below this part of the typical one is low. Collectives of large messages repeat within 5 %; GEMM depends on
# clocks and on the shape of the matrices; copies over PCIe are 0.76 to 0.88 of the link by its generation.
_STEADY, _LOOSE, _COPIES = 0.9, 0.85, 0.8
# Of the bound, where no typical figure has a source: copies over PCIe 3.0 and 4.0 reach 0.76 to 0.8 of the link, and
# the part of a peak that H200 reaches is 0.72 to 0.885.
# Products of other makers' GPUs: MI300X 0.58 (stas00/ml-engineering, maximum achievable matmul FLOPS), of FP8 0.44
# (Azure's guide for ND MI300X v5: 1159 TFLOP/s).
# In guests T4 and V100 give 9.6 and 9.7 of 15.75 GB/s (router-gao/cuda-demo).
_LEAST_IN_A_GUEST = 0.6
_LEAST_COPY, _LEAST_PEAK, _LEAST_PRODUCTS = 0.65, 0.6, {"bf16": 0.5, "fp8": 0.4}
# The library takes the switch only where it is clearly better: H200 from 5 GPUs on (1.13 times the ring), not with 4
# (1.01); B200 from 6 on (1.14), not with 5 (1.06). Source: stas00/ml-engineering@744d01e network/README.md.
_SWITCH_TAKEN = 1.1
_OF_MANY = 0.8  # 4 x 8 H100 with 8 ports of 400 Gb/s: 308 of 400 (nscc.sg, NCCL notes), read as good
_SWITCH_SECONDS = formulas.BASE_SECONDS + 2 * formulas.STEP_SECONDS["nvlink"]  # up to the switch and back
_LEAST_WITHOUT_PEERS = 0.4  # 8 RTX 5090 without peer access: 28 of 63 GB/s, found good (NVIDIA/nccl issue 1639)
_THROUGH_OLD_CPU = 8.0, 0.35  # GT/s, part of the slot: 6 GB/s of 15.8 is usual through a CPU (NVIDIA/nccl issue 766)
# Two healthy H200 give 0.34 of the bound in an all-to-all of 32 MiB, 0.61 of 256 MiB (tests/cases/models/healthy.json).
_LARGE = 256 << 20
_LEAST_PART = 4 << 20  # bytes that each sends each in an all-to-all: of less the time is mostly latency
# Of the bound of a flat ring, which the library can also take between two hosts; in a guest 0.9 was low (nccl-tests
# issue 380).
# Of a slot in an all-to-all: 4 RTX 4090 give 18 GB/s through host memory; 2 of 31.5 was low (nccl issue 1603).
_AS_RING, _ALL_OVER_PCIE = 0.93, 0.1
_NOTHING = Estimate("", "", "no model of this metric has a source")


class Question(msgspec.Struct, frozen=True):
    """What is asked: how many GPUs take part and on how many hosts, and the size of the message; None is unknown.

    `far`: host memory of another node. `flat`: one ring over all GPUs. `tcp`: between hosts, over TCP
    and not RDMA. `shared`: of `rdma-write`, what a GPU has of the ports of its host.
    """

    metric: str
    ranks: int | None = None
    hosts: int | None = None
    size_bytes: float | None = None
    far: bool = False
    flat: bool = False
    tcp: bool = False
    shared: bool = False


def estimate(question: Question, shape: HostShape) -> Estimate:
    """Return bound and typical figure in the metric's own unit (GB/s, TFLOP/s, …)."""
    model = _MODELS.get(question.metric)
    return model(question, shape) if model else _NOTHING


def _copy(question: Question, shape: HostShape) -> Estimate:
    chip = shape.generation.cpu_link_gb_per_s if shape.generation else None
    if chip:
        # On boards of a rack two GPUs share it: GB300 193 and 212 (NVIDIA/Megatron-LM issue 6491).
        least = _LEAST_PEAK / (2 if shape.generation and shape.generation.joins_hosts else 1)
        return Estimate(
            "GB/s", "link to the CPU, one direction", "data sheet of the CPU link (900 GB/s both ways)", chip, None,
            (f"link to the CPU {chip:g} GB/s",), at_least=least,
        )  # fmt: skip
    rate = shape.slot_gb_per_s
    if rate is None or shape.slot is None:
        return _missing("GB/s", "R · W · encoding ÷ 8; 0.88 of it", formulas.COPY_SOURCE, "the GPU's slot")
    speed, width = shape.slot
    because: tuple[str, ...] = (f"slot of {speed:g} GT/s x{width}: {rate:.1f} GB/s",)
    other = _of_other_gpus(shape)
    known = speed == formulas.COPY_GTS and other is None
    typical = rate * formulas.COPY_PART if known and not question.far else None
    if speed != formulas.COPY_GTS:
        because += ("the known points are of PCIe 5.0 slots",)
    if other is not None:
        because += (other,)
    if question.far:
        because += ("memory of the far node: no source says how much such hosts reach",)
    formula, source = "bound R · W · encoding ÷ 8", formulas.PCIE_SOURCE
    if typical is not None:
        formula, source = f"{formula}; typical 0.88 of it", formulas.COPY_SOURCE
    return Estimate("GB/s", formula, source, rate, typical, because, _COPIES, 0.02,
                    _LEAST_IN_A_GUEST if shape.virtual else _LEAST_COPY)  # fmt: skip


def _of_other_gpus(shape: HostShape) -> str | None:
    """Return why the known points of copies are not of GPUs like this one; None if they are."""
    if shape.generation is not None:
        return None
    if shape.gpu is None:
        return "not known: the model of the GPU; the known points are not of every maker's"
    maker = maker_of_model(shape.gpu)
    other = maker is not None and not maker.generations
    return f"the known points are of {'GPUs of another maker' if other else 'other models of GPUs'}"


def _pair(question: Question, shape: HostShape) -> Estimate:
    # All links of a GPU go to any other; cards may have no bridge.
    whole = shape.switched or not (shape.per_host != 2 or shape.peaks.get("pair") or is_card(shape.gpu))
    if (shape.links and (whole or shape.switched is None)) or shape.meshed:
        peak = shape.peaks.get("pair") or shape.links_peak_gb_per_s
        if peak is None:
            return _missing("GB/s", "links × rate", formulas.ON_GPU_SOURCE, "the rate of a link")
        typical = peak * formulas.PAIR_PART if shape.switched and _measured(shape) else None
        least = _LEAST_PEAK if whole or shape.meshed else None  # otherwise a pair can be joined by few of the links
        because: tuple[str, ...] = (f"{shape.links or 'its'} links, {peak:g} GB/s one direction",)
        formula, source = "bound links × rate", formulas.PEAK_SOURCE
        if typical is not None:
            formula, source = f"{formula}; typical 0.877 of it", formulas.ON_GPU_SOURCE
        # A board of four has no switch: a third of the links joins each pair (HGX H100 and A100, four GPUs).
        part = 1 / 3 if shape.per_host == 4 and not shape.meshed else 1.0
        return Estimate("GB/s", formula, source, peak, typical, because, _LOOSE * part, at_least=least and least * part)
    if shape.links == 0 and shape.slot_gb_per_s:
        because = (f"no links between GPUs; slot {shape.slot_gb_per_s:.1f} GB/s",)
        return Estimate("GB/s", "bound R · W · encoding ÷ 8", formulas.PCIE_SOURCE, shape.slot_gb_per_s, None, because)
    return _missing("GB/s", "links × rate", formulas.ON_GPU_SOURCE, "how two GPUs are connected")


def _on_gpu(
    peak: str, part: float, unit: str, words: str, whole: str, source: str = formulas.ON_GPU_SOURCE
) -> Callable[[Question, HostShape], Estimate]:
    formula = f"{words} of {whole}"

    def model(question: Question, shape: HostShape) -> Estimate:
        rate = shape.peaks.get(peak)
        if rate is None:
            return _missing(unit, formula, source, f"the peak of this GPU ({peak})")
        because: tuple[str, ...] = (f"peak {rate:g} {unit}, dense" if unit != "GB/s" else f"memory {rate:g} GB/s",)
        typical = rate * part if _measured(shape) else None
        if typical is None:
            because += ("the known points are of Hopper",)
        elif unit != "GB/s" and is_card(shape.gpu):  # products take all the power that the board has
            typical = None
            because += ("the known points are of boards of 700 W, not of cards",)
        shown = (formula, source) if typical is not None else (f"bound: {whole}", formulas.PEAK_SOURCE)
        return Estimate(
            unit, *shown, rate, typical, because, _LOOSE,
            at_least=_LEAST_PEAK if shape.generation or unit == "GB/s" else _LEAST_PRODUCTS[peak],
        )  # fmt: skip

    return model


def _measured(shape: HostShape) -> bool:
    return shape.generation is not None and shape.generation.measured


def _collective(question: Question, shape: HostShape) -> Estimate:
    hosts = question.hosts or shape.hosts
    if hosts is None:
        return _missing("GB/s", "ring, NVLS or network bound", formulas.RING_SOURCE, "the number of hosts")
    if hosts == 1:
        return _within(question, shape)
    return _over_tcp(shape) if question.tcp else _between(question, shape, hosts)


def _over_tcp(shape: HostShape) -> Estimate:
    host = shape.host_gb_per_s
    because: tuple[str, ...] = (
        "the known point is of one machine's loopback: expect this order of magnitude, not this figure",
    )
    if host is None:
        because += (f"not known: {_missing_of_ports(shape)}, so there is no bound",)
    return Estimate(
        "GB/s", "about 3.5 GB/s whatever the ports can do", formulas.TCP_SOURCE, host,
        min(formulas.TCP_GB_PER_S, host) if host else formulas.TCP_GB_PER_S, because, 1 - formulas.TCP_WIDTH,
        formulas.TCP_WIDTH,
    )  # fmt: skip


def _within(question: Question, shape: HostShape) -> Estimate:
    ranks = question.ranks or shape.per_host
    if ranks == 1:
        return _missing("GB/s", "none", formulas.RING_SOURCE, "a second GPU: bus bandwidth of one GPU is 0")
    generation, links_rate = shape.generation, shape.links_gb_per_s
    peak = shape.links_peak_gb_per_s
    if (shape.links == 0 or _in_pairs(ranks, shape)) and shape.slot_gb_per_s:
        because: tuple[str, ...] = (f"no links between all GPUs; slot {shape.slot_gb_per_s:.1f} GB/s",)
        if shape.without_peers:
            because += ("its copies go through host memory",)
        return Estimate(
            "GB/s", "bound R · W · encoding ÷ 8", formulas.PCIE_SOURCE, shape.slot_gb_per_s, None, because,
            at_least=_least_over_pcie(ranks, shape),
        )  # fmt: skip
    if ranks and shape.meshed:
        return _over_mesh(question, shape, ranks)
    if not ranks or generation is None or links_rate is None or peak is None:
        return _missing("GB/s", "r · B", formulas.RING_SOURCE, _missing_of_ring(ranks, shape))
    reducing = generation.switch_part is not None and shape.switched is True
    reduces = reducing and question.metric == "all-reduce-busbw" and not question.flat
    bound = max(1.0, 2 * (ranks - 1) / (ranks + 1)) * peak if reduces else peak
    because = (f"{ranks} GPUs, B = {shape.links} links × {generation.link_gb_per_s:g} = {links_rate:.1f} GB/s",)
    part = _ring_part(generation, ranks)
    if part is None or shape.switched is not True:
        because += ("no source for what a ring of this many such GPUs reaches",)
        # What a slot carries needs no links; cards have them only where a bridge joins two.
        least = 0.5 if shape.switched else 0.0 if is_card(shape.gpu) else (shape.slot_gb_per_s or 0) / bound
        return Estimate("GB/s", "bound: all links of a GPU", formulas.RING_SOURCE, bound, None, because, at_least=least)
    large, typical, formula, source = _ring_or_switch(question.size_bytes, ranks, links_rate, part, generation, reduces)
    low_below = _least(question, _least_gather(question.size_bytes, ranks))
    return Estimate("GB/s", formula, source, bound, typical, because, low_below, 0.05, large=large)


def _over_mesh(question: Question, shape: HostShape, ranks: int) -> Estimate:
    """8 MI355X give 407 of 537.6 GB/s (Oracle's guide for them), 8 Gaudi3 513 of 525 (docs.habana.ai)."""
    if question.size_bytes and question.size_bytes < formulas.SMALL_BYTES:
        return _missing("GB/s", "bound: large messages", formulas.PEAK_SOURCE, "what so small a message reaches")
    because = (f"{ranks} GPUs, each with links to every other",)
    bound = shape.leaving_gb_per_s(ranks)
    least = 0.5 if bound == shape.links_peak_gb_per_s else None  # of fewer GPUs than the board has: no source
    return Estimate("GB/s", "bound: the links from a GPU to the others", formulas.PEAK_SOURCE, bound, None, because,
                    at_least=least)  # fmt: skip


def _in_pairs(ranks: int | None, shape: HostShape) -> bool:
    """Return whether bridges join pairs of these cards, so that a ring over more crosses PCIe (data sheets)."""
    pairs = shape.links is None or (is_card(shape.gpu) and "H200" not in (shape.gpu or "").upper())  # four H200
    return pairs and ranks is not None and ranks > 2 and not shape.switched and shape.generation is not None


def _least_over_pcie(ranks: int | None, shape: HostShape) -> float:
    """Return the part of a slot below which a ring is low. The link between two sockets limits one that crosses it.

    Of AMD's the library counts less than they carry (local-inference-lab/rtx6kpro, dual Turin).
    """
    old = shape.slot is not None and shape.slot[0] <= _THROUGH_OLD_CPU[0] and (ranks or 0) > 2  # two have a slot each
    least = _THROUGH_OLD_CPU[1] if old else _LEAST_WITHOUT_PEERS if shape.without_peers else 0.5
    two = re.match(r"(?i)(?:2 ?[x×]|two|dual) (?!.*(?:amd|epyc))", shape.cpu or "")
    between = shape.socket_gb_per_s if two and (ranks or 0) * 2 > (shape.per_host or 0) else None
    return min(least, between / (shape.slot_gb_per_s or between)) if between else least


def _missing_of_ring(ranks: int | None, shape: HostShape) -> str:
    """Return which inputs of a collective within a host are not known."""
    links, generation = shape.links, shape.generation
    rates = (generation.link_gb_per_s, generation.link_peak_gb_per_s) if generation else (None, None)
    lacking = {
        "the number of GPUs": not ranks,
        "how many links a GPU has": links is None,
        "the rate of a link, as collectives count it": links != 0 and rates[0] is None,
        "the rate of a link, by its data sheet": links != 0 and rates[0] is not None and rates[1] is None,
        "the GPU's slot": links == 0,
    }
    return _both(word for word, lacks in lacking.items() if lacks)


def _missing_of_ports(shape: HostShape) -> str:
    """Return which facts of a host's ports are not known."""
    lacking = {"the number of NICs": not shape.nics, "the rate of a NIC": not shape.nic_gb_per_s}
    return _both(word for word, lacks in lacking.items() if lacks)


def _both(words: Iterable[str]) -> str:
    return " and ".join(words)


def _ring_part(generation: Generation, ranks: int) -> float | None:
    """Return the part of links × rate that a ring of so many GPUs reaches; None without a source."""
    if ranks > 2:
        return generation.ring_part
    return formulas.PAIR_RING_PART if generation.measured else None


def _least(question: Question, gathers: float) -> float:
    """Return the part of the typical figure below which a collective is low. `gathers`: that of a large all-gather.

    The time of a small message depends on the version of the library: 8 A100 of nccl-tests give 0.73 of the formula at
    8 MiB and 0.82 at 32 MiB.
    """
    size = question.size_bytes
    if size and size < formulas.SMALL_BYTES:
        return 0.0  # outside of the formula's range: no figure is called low
    if size and size <= 128 << 20:
        return min(0.7, gathers)
    return _STEADY if question.metric == "all-reduce-busbw" else gathers


def _least_gather(size_bytes: float | None, ranks: int) -> float:
    """Return that part for an all-gather within a host. The formulas were fitted to all-reduces.

    Healthy H200 and H100 in guests (NCCL 2.28.9, tests/cases/models/healthy.json) reach of it: four 0.86 of 256 MiB
    and 0.91 to 0.96 of more; two 0.71 to 0.77 of 32 MiB, 0.80 of 512 MiB and 0.84 to 0.89 of 4 GiB.
    """
    if ranks == 2:
        return 0.6 if size_bytes and size_bytes <= 128 << 20 else 0.7
    return 0.8 if size_bytes and size_bytes <= 512 << 20 else _LOOSE


def _ring_or_switch(
    size: float | None, ranks: int, rate: float, part: float, generation: Generation, reduces: bool
) -> tuple[float, float, str, str]:
    """Return (typical of large messages, of this size, formula, source) of what the library takes."""
    large, typical = (formulas.ring(rate, part, ranks, message) for message in (None, size))
    if reduces and generation.switch_part is not None and ranks > 2:
        by_switch = formulas.in_switch(rate, generation.switch_part, ranks)
        if by_switch > large * _SWITCH_TAKEN:
            typical = formulas.at_size(by_switch, 2 * (ranks - 1) / ranks, _SWITCH_SECONDS, size)
            return by_switch, typical, "NVLS: f · 2(n-1)/(n+1) · B", formulas.SWITCH_SOURCE
    return large, typical, "r · B", formulas.RING_SOURCE


def _between(question: Question, shape: HostShape, hosts: int) -> Estimate:
    host = shape.host_gb_per_s
    per_host = shape.per_host or (question.ranks // hosts if question.ranks and question.ranks % hosts == 0 else None)
    formula = "flat ring g·b; most g·b·k(n-1) ÷ (n(k-1))"
    if host is None:
        return _missing("GB/s", formula, formulas.NETWORK_SOURCE, _missing_of_ports(shape))
    ports = "port" if shape.nics == 1 else "ports"
    because: tuple[str, ...] = (
        f"{shape.nics} {ports} × {shape.nic_gb_per_s:g} GB/s = {host:g} GB/s a host, {hosts} hosts",
    )
    bound = (
        formulas.flat(host)
        if question.flat and shape.nic_kind != "ethernet"
        else formulas.hierarchical(host, hosts, per_host)
    )
    if shape.links == 0:  # what enters a GPU goes over its slot
        bound = min(bound, shape.slot_gb_per_s * (per_host or 1)) if shape.slot_gb_per_s and per_host else bound
    reduces = shape.generation is not None and shape.generation.switch_part is not None and shape.switched
    # Some of the GPUs may use only the ports that are near them.
    part = min(1.0, question.ranks / (hosts * per_host)) if question.ranks and per_host else 1.0
    if shape.nic_kind == "ethernet":
        because += ("the known points are of RDMA; none is of other Ethernet",)
        return Estimate(
            "GB/s",
            "bound g·b·k(n-1) ÷ (n(k-1))",
            formulas.PORTS_SOURCE,
            bound,
            None,
            because,
            at_least=0.5 * part * min(1.0, formulas.flat(host) / bound),  # of a ring: it is what sockets give
        )
    low_below = min(_least(question, _STEADY), formulas.GB10_LEAST if shape.staged else 1.0)
    low_below = part * min(low_below, _OF_MANY if hosts > 2 else 1.0)
    if hosts == 2 and reduces and per_host and per_host > 2 and not question.flat:
        typical = bound * formulas.HIERARCHICAL_PART
        if shape.generation and shape.generation.switch_part and shape.links_gb_per_s:  # no more than in one host
            typical = min(typical, formulas.in_switch(shape.links_gb_per_s, shape.generation.switch_part, per_host))
        because += ("two hosts with a switch that reduces: hierarchical, which gives more than a flat ring can",)
        ring = _AS_RING if shape.virtual else _STEADY * formulas.FLAT_PART  # as of boards whose switches do not reduce
        low_below = min(low_below, formulas.flat(host) * ring / typical)
    else:
        typical = min(formulas.flat(host) * formulas.FLAT_PART, bound)
    bound = max(bound, 2 * shape.rack_gb_per_s)
    large = typical
    size = question.size_bytes
    if size:
        ranks = hosts * (per_host or 1)
        seconds = 2 * (hosts - 1) * formulas.STEP_SECONDS["network"]  # steps within a host overlap with these
        typical = formulas.at_size(typical, 2 * (ranks - 1) / ranks, seconds, size)
    return Estimate("GB/s", formula, formulas.NETWORK_SOURCE, bound, typical, because, low_below, 0.05, large=large)


def _other_collective(question: Question, shape: HostShape) -> Estimate:
    """Return the bound of an all-to-all, send-recv, broadcast or reduce; no source has a typical figure.

    All-to-all on 2 × 8 H100 over 16 EFA of 200 Gb/s gives 0.91 of it, 4 GB10 over one port of 200 Gb/s 0.66.
    """
    hosts, each_to_each = question.hosts or shape.hosts, question.metric == "all-to-all-busbw"
    each = shape.per_host or (question.ranks // hosts if question.ranks and hosts else None)
    ranks = question.ranks or (each * hosts if each and hosts else None)
    lacking = [word for word, many in (("hosts", hosts), ("GPUs", ranks)) if many is None]
    if lacking or hosts is None or ranks is None or not each or ranks < 2:
        return _missing("GB/s", "bound: bytes that must leave a GPU, or a host", formulas.PORTS_SOURCE,
                        f"the number of {_both(lacking) or 'GPUs that take part'}")  # fmt: skip
    least = _LARGE if hosts == 1 and shape.links != 0 else ranks * _LEAST_PART if each_to_each else formulas.SMALL_BYTES
    if question.size_bytes and question.size_bytes < least:
        return _missing("GB/s", "bound: large messages", formulas.PORTS_SOURCE, "what so small a message reaches")
    if hosts == 1:
        links = shape.leaving_gb_per_s(ranks)
        if links is None:
            return _missing("GB/s", "bound: all links of a GPU", formulas.RING_SOURCE, _missing_of_ring(ranks, shape))
        part = 0.5 if shape.switched else (_ALL_OVER_PCIE if each_to_each else 0.5) if shape.links == 0 else None
        because = (f"{ranks} GPUs, {links:g} GB/s leave each",)
        return Estimate(
            "GB/s", "bound: all links of a GPU", formulas.RING_SOURCE, links, at_least=part, because=because
        )
    rate = shape.host_gb_per_s
    if rate is None:
        return _missing("GB/s", "bound: a host's ports", formulas.PORTS_SOURCE, _missing_of_ports(shape))
    because = (f"{shape.nics} ports of {rate:g} GB/s in all on each of {hosts} hosts",)
    if each_to_each and ranks > each:
        bound, part, formula = rate / each * (ranks - 1) / (ranks - each), 1 / 3, "bound b·(n-1) ÷ (n-g)"
    else:  # a ring crosses each host's ports once, and the library gives a pair of GPUs one or two ports
        one = question.metric == "send-recv-busbw"
        bound, part, formula = rate, 0.5 / (shape.nics or 1) if one else 0.5, "bound: a host's ports"
    bound = max(bound, shape.rack_gb_per_s)
    return Estimate("GB/s", formula, formulas.PORTS_SOURCE, bound, at_least=part, because=because)


def _port(question: Question, shape: HostShape) -> Estimate:
    if question.shared and shape.host_gb_per_s and shape.per_host:
        part = shape.host_gb_per_s * 8 / shape.per_host
        because: tuple[str, ...] = (f"{shape.nics} ports × {shape.nic_gb_per_s:g} GB/s for {shape.per_host} GPUs",)
        return Estimate("Gb/s", "bound: a host's ports ÷ its GPUs", formulas.PORTS_SOURCE, part, because=because)
    if shape.nic_gb_per_s is None:
        return _missing("Gb/s", "0.96 of the port's rate", formulas.RDMA_SOURCE, "the rate of a port")
    rate = shape.nic_gb_per_s * 8
    because = (f"port of {rate:g} Gb/s",)
    if shape.staged:  # its two functions share a port of twice the rate
        most = (formulas.pcie_gb_per_s(32.0, 4) or 0) * 8
        return Estimate(
            "Gb/s", "bound: 4 lanes", formulas.PCIE_SOURCE, most, rate * formulas.RDMA_PART, because, _STEADY
        )
    slot = formulas.pcie_gb_per_s(*shape.nic_slot) if shape.nic_slot else None
    if slot is not None and shape.nic_slot is not None and slot * 8 < rate:
        speed, width = shape.nic_slot
        because += (f"slot of {speed:g} GT/s x{width}: {slot * 8:.0f} Gb/s, less than the port; no source for that",)
        return Estimate("Gb/s", "the slot, R · W · encoding", formulas.RDMA_SOURCE, slot * 8, None, because)
    return Estimate(
        "Gb/s", "0.96 of the port's rate", formulas.RDMA_SOURCE, rate, rate * formulas.RDMA_PART, because, _STEADY
    )


def _missing(unit: str, formula: str, source: str, what: str) -> Estimate:
    return Estimate(unit, formula, source, because=(f"not known: {what}",))


_MODELS: Mapping[str, Callable[[Question, HostShape], Estimate]] = {
    "h2d": _copy,
    "d2h": _copy,
    "p2p": _pair,
    "device-copy": _on_gpu("memory", formulas.DEVICE_COPY_PART, "GB/s", "0.885", formulas.MEMORY),
    "gemm-bf16": _on_gpu("bf16", formulas.BF16_PART, "TFLOP/s", "0.81", formulas.DENSE),
    "gemm-fp8": _on_gpu("fp8", formulas.FP8_PART, "TFLOP/s", "0.76", formulas.DENSE, formulas.FP8_SOURCE),
    **dict.fromkeys(COLLECTIVES, _other_collective),
    **dict.fromkeys(RINGS, _collective),
    "rdma-write": _port,
}


# --- roofs ----------------------------------------------------------------------------------------------------

OWN_METRICS: Mapping[str, str] = {"memory": "device-copy", "bf16": "gemm-bf16", "fp8": "gemm-fp8"}
KINDS = ("bf16", "fp16", "fp8", "tf32", "fp32", "fp64")
SOURCE = "peaks: data sheets (baselines/roofline.toml); the host's own: measured, or docs/models.md"


def roofs_of(
    host: Host, gpus: Iterable[str], standard: Standard, measured: Mapping[str, float] | None = None
) -> tuple[GpuRoof, ...]:
    """Return a roof for each GPU model among these, if its peaks are known.

    `measured`: of a host with one model of GPU: "memory" in GB/s, number types in TFLOP/s. Raises BadInput for figures
    above the peaks, and where the GPUs are of several models.
    """
    models: dict[str, str] = {}
    for address in gpus:
        models.setdefault(host.index.ids(address) or address, address)
    if measured and len(models) > 1:
        raise BadInput("the GPUs are of several models", where="measured peaks", hint="choose one guest or plan")
    roofs = (roof_of(of_host(host, (address,), standard), measured) for address in models.values())
    return tuple(roof for roof in roofs if roof is not None)


def roof_of(shape: HostShape, measured: Mapping[str, float] | None = None) -> GpuRoof | None:
    """Return the roof of a machine's GPUs; None if nothing is known of them. Raises BadInput for impossible figures."""
    peaks = {name: value for name, value in shape.peaks.items() if name == "memory" or name in KINDS}
    if not peaks or shape.gpu is None:
        return None
    own = {name: value for name, value in (measured or {}).items() if value > 0}
    for name, value in own.items():
        if value > peaks.get(name, float("inf")) * ABOVE_PEAK:
            unit = "GB/s" if name == "memory" else "TFLOP/s"
            what = f"{OWN_METRICS.get(name, name)}: {value:g} {unit} is above the peak of {shape.gpu}, {peaks[name]:g}"
            raise BadInput(
                what, where="measured peaks", hint="measure again; products are dense, copies read + written"
            )
    if own:
        return GpuRoof(gpu=shape.gpu, peaks=peaks, own=own, own_is="measured", source=SOURCE)
    typical = {name: estimate(Question(metric), shape).typical for name, metric in OWN_METRICS.items()}
    known = {name: round(value, 1) for name, value in typical.items() if value is not None}
    return GpuRoof(gpu=shape.gpu, peaks=peaks, own=known, own_is="model" if known else None, source=SOURCE)
