"""The machine that a figure belongs to, as the formulas need it: from a written setup, or from a host document."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from hosttune.bench.baselines import Peaks, Standard
from hosttune.gpu import VENDORS, Generation, generation_of, model_names
from hosttune.inventory.pcielink import narrowest
from hosttune.model.host import Host
from hosttune.model.measured import Measured, Nics
from hosttune.model.pci import PCIE_GTS
from hosttune.predicting.formulas import SOCKET_LINKS, pcie_gb_per_s

_SLOT = re.compile(r"\s*(?:pcie\s*)?(?:gen\s*)?([1-6])(?:\.[0-9])?\s*[x×]\s*([0-9]{1,2})\s*", re.IGNORECASE)
_WIDTHS = (1, 2, 4, 8, 12, 16, 32)  # PCI Express Base Specification
_GTS_OF_16 = {15.75: 8.0, 31.5: 16.0, 63.0: 32.0}  # GB/s of 16 lanes, as in roofline.toml
_OF_EVERY_MODEL = frozenset(
    ("geforce", "tesla", "quadro", "radeon", "instinct", "generation", "workstation", "edition", "hl", "hbm3", "hbm3e")
).union(vendor.name for vendor in VENDORS)
_OTHER_FORMS = {"laptop", "mobile", "sff"}  # of the same name, with fewer units or slower memory
_LEAST_LANES = 8  # of GPUs for work of this kind; a slot with fewer is a cause
_BOARD = 8  # GPUs of a board with switches, the only form in which a host commonly has so many of them
_GB10, _QSFP = re.compile(r"(?i)\bgb10\b"), 200.0  # Gb/s; that port is two functions, each on four lanes (100 Gb/s)


class HostShape(msgspec.Struct, frozen=True):
    """Facts of one host and of how many there are. None is unknown, 0 is none.

    `peaks`: of a GPU, as in roofline.toml. `slot`: (GT/s, lanes) of a GPU. `pair_links`: links between any two GPUs;
    None: not known, or not the same. `nic_gb_per_s`: of one port; `nic_slot`: (GT/s, lanes) of its NIC. `slices`:
    (parts, of) of a GPU that is divided. `meshed`: each GPU has links of its own to every other of its board.
    """

    gpu: str | None = None
    generation: Generation | None = None
    peaks: Mapping[str, float] = msgspec.field(default_factory=dict)
    slot: tuple[float, int] | None = None
    links: int | None = None
    switched: bool | None = None
    per_host: int | None = None
    hosts: int | None = None
    nics: int | None = None
    nic_gb_per_s: float | None = None
    nic_slot: tuple[float, int] | None = None
    nic_kind: str | None = None
    cpu: str | None = None
    virtual: bool | None = None
    slices: tuple[int, int] | None = None
    meshed: bool = False

    @property
    def host_gb_per_s(self) -> float | None:
        """All ports of a host, one direction."""
        return self.nics * self.nic_gb_per_s if self.nics and self.nic_gb_per_s else None

    @property
    def links_gb_per_s(self) -> float | None:
        """All links of a GPU as collectives count them, one direction."""
        rate = self.generation.link_gb_per_s if self.generation else None
        return self.links * rate if self.links and rate else None

    @property
    def links_peak_gb_per_s(self) -> float | None:
        """All links of a GPU as its data sheet counts them, one direction."""
        rate = self.generation.link_peak_gb_per_s if self.generation else None
        return self.links * rate if self.links and rate else self.peaks.get("scale-up")

    @property
    def rack_gb_per_s(self) -> float:
        """All links of a GPU where they can join hosts, 0 elsewhere. Whether those of a run are joined is not known."""
        return self.links_peak_gb_per_s or 0.0 if self.generation and self.generation.joins_hosts else 0.0

    @property
    def linked(self) -> bool:
        """Whether links join the GPUs, as far as it is known."""
        return self.meshed if self.links is None else self.links > 0

    @property
    def without_peers(self) -> bool:
        """Whether these are consumer models without links, to which the driver gives no peer access over PCIe."""
        return not self.links and re.search(r"\b(?:TITAN RTX|RTX [2-5]0[5-9]0)\b", self.gpu or "") is not None

    def leaving_gb_per_s(self, ranks: int) -> float | None:
        """What can leave a GPU to so many others of its host, over links or its slot, one direction."""
        rate = self.slot_gb_per_s if self.links == 0 else self.links_peak_gb_per_s
        return rate * min(1.0, (ranks - 1) / (_BOARD - 1)) if rate and self.meshed else rate

    @property
    def staged(self) -> bool:
        """Whether NICs never reach the GPU's memory directly (DGX Spark user guide: no GPUDirect RDMA)."""
        return _GB10.search(self.gpu or "") is not None

    @property
    def slot_gb_per_s(self) -> float | None:
        """What the GPU's slot carries, one direction."""
        return pcie_gb_per_s(*self.slot) if self.slot else None

    @property
    def socket_gb_per_s(self) -> float | None:
        """What NCCL counts for the link between two sockets."""
        name = (self.cpu or "")[:200].lower()
        return next((rate for words, rate in SOCKET_LINKS if re.search(words, name)), None)


def shape_of(measured: Measured, standard: Standard) -> HostShape:
    """Return the shape of a written setup. Facts of the GPU's model fill in what the setup leaves out."""
    setup, link = measured.setup, measured.observations.link
    generation = generation_of(setup.gpu)
    rows = peaks_of(setup.gpu, setup.pci_id, standard)
    meshed = "pair" in agreed(rows)  # the links of such boards are no NVLinks: 0 says nothing
    if setup.nvlinks_per_gpu is not None:
        rows = [row for row in rows if row.nvlinks in (setup.nvlinks_per_gpu, None)] or rows
    elif setup.nvswitch or (setup.nvswitch is None and setup.gpus_per_host == _BOARD and not is_card(setup.gpu)):
        # Of a model in several forms: the board with all links.
        rows = [row for row in rows if row.nvlinks == max(other.nvlinks or 0 for other in rows)] or rows
    links = None if meshed and not setup.nvlinks_per_gpu else setup.nvlinks_per_gpu
    counts, peaks = {row.nvlinks for row in rows}, agreed(rows)
    most = counts.pop() if len(counts) == 1 else None
    most = generation.links if most is None and generation else most
    board = generation and generation.ring_part and (setup.gpus_per_host or 1) > 1 and not is_card(setup.gpu)
    if links is None or (most is not None and links < most and (links or board)):  # what is down is a cause
        links = most
    if links is None and measured.observations.p2p in ("pcie", "off") and "pair" not in peaks:
        links = 0
    slot = slot_of(setup.pcie)
    own = (generation.pcie_gts if generation else None) or _GTS_OF_16.get(peaks.get("pcie", 0))
    if own:  # what the GPU can do: a slot that cannot is a cause
        slot = (own, generation.pcie_lanes if generation else 16)
    elif slot is not None and slot[1] < _LEAST_LANES:
        slot = (slot[0], 16)
    elif slot is None and link is not None and link.max_speed_gts and link.max_width:
        slot = (link.max_speed_gts, link.max_width)
    ports, seen = setup.nics or Nics(), measured.observations.nic_link
    rate = ports.rate_gbps or (seen.max_rate_gbps if seen else None)
    if _GB10.search(setup.gpu or "") and rate == _QSFP:
        ports, rate = Nics(count=2, kind=ports.kind), _QSFP / 2
    return HostShape(
        gpu=setup.gpu,
        generation=generation,
        peaks=peaks,
        slot=slot,
        links=links,
        switched=_switched(setup.nvswitch, setup.gpu, generation, links),
        per_host=setup.gpus_per_host,
        hosts=setup.hosts,
        nics=ports.count if ports.count is not None else seen.ports if seen else None,
        nic_gb_per_s=rate / 8 if rate else None,
        nic_kind=ports.kind,
        cpu=setup.cpu,
        virtual=setup.virtual
        if setup.virtual is not None
        else any(re.search(r"(?i)\b(?:guests?|vms?)\b", figure.subject[:400]) for figure in measured.figures) or None,
        slices=slices_of(setup.gpu),
        meshed=links is None and "pair" in peaks,
    )


def _switched(known: bool | None, gpu: str | None, generation: Generation | None, links: int | None) -> bool | None:
    """Return whether switches join the GPUs. Boards of the generations that have a ring's part do, cards do not."""
    if known is not None or generation is None or generation.ring_part is None or not links:
        return known
    return None if is_card(gpu) else True


def is_card(gpu: str | None) -> bool:
    """Return whether the name is that of a card, not of a board with switches."""
    return re.search(r"pcie|nvl\b", (gpu or "")[:200].lower()) is not None


def slot_of(text: str | None) -> tuple[float, int] | None:
    """Return (GT/s, lanes) of a slot such as "5.0 x16" or "Gen4 x8"; None if there is none that is written so."""
    match = _SLOT.fullmatch((text or "")[:80])
    return (PCIE_GTS[int(match[1])], int(match[2])) if match and int(match[2]) in _WIDTHS else None


def slices_of(gpu: str | None) -> tuple[int, int] | None:
    """Return (compute slices, 7) of a name such as "H100 MIG 3g.40gb"; None for a whole GPU.

    Source: MIG user guide, "Supported MIG Profiles": a profile Ng.Mgb has N of 7 compute slices.
    """
    match = re.search(r"\b([1-7])g\.[0-9]{1,3}gb\b", (gpu or "")[:200].lower())
    return (int(match[1]), 7) if match else None


def peaks_of(gpu: str | None, pci_id: str | None, standard: Standard) -> list[Peaks]:
    """Return the rows of roofline.toml that a GPU can be: one by its id, else all whose name has the given words."""
    if pci_id and (row := standard.peaks.get(pci_id.lower())):
        return [row]
    named = {device: {_model_words(name)} for device, name in model_names().items()}
    for device, row in standard.peaks.items():
        named.setdefault(device, set()).add(_model_words(row.model))
    vocabulary = {word for texts in named.values() for words in texts for word in words} | _OTHER_FORMS
    wanted = _model_words((gpu or "")[:200]) & vocabulary
    exact = [device for device, texts in named.items() if wanted in texts]
    if len(wanted) > 1 and exact and not standard.peaks.keys() & exact:  # a form whose peaks have no source
        return []
    found = standard.peaks.keys() & exact
    # The size of the memory is left out where no model's name has it. "h200" tells a model, "80gb" does not.
    for words in (wanted, frozenset(word for word in wanted if not word.endswith("gb"))):
        telling = any(re.fullmatch(r"[a-z]+[0-9]+[a-z]?", word) for word in words)
        found = found or {
            device
            for device in standard.peaks
            if any(words == name or (telling and words <= name) for name in named[device])
        }
    return [row for device, row in standard.peaks.items() if device in found]


def _model_words(text: str) -> frozenset[str]:
    joined = re.sub(r"\b([0-9]+) ?gb\b", r"\1gb", re.sub(r"sxm[2-6]", "sxm", text.lower()))
    joined = re.sub(r"\b([a-z]{4,20}) ([0-9])\b", r"\1\2", joined.replace("rtx", "rtx "))
    return frozenset(re.findall(r"[a-z0-9]+", joined)) - _OF_EVERY_MODEL


def agreed(rows: Iterable[Peaks]) -> dict[str, float]:
    """Return the peaks in which all rows agree: of a model that comes in several forms, what they have in common."""
    rows_of = [dict(row.values) for row in rows]
    first, *others = rows_of or [{}]
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}


def of_host(host: Host, addresses: Iterable[str], standard: Standard) -> HostShape:
    """Return the shape of the GPUs at these addresses of a host, with the NICs of the host that have RDMA."""
    wanted = set(addresses)
    gpus = [gpu for gpu in host.index.accelerators if gpu.address in wanted]
    functions = [host.index.pci[gpu.address] for gpu in gpus if gpu.address in host.index.pci]
    ids, models = {function.ids for function in functions}, {gpu.model for gpu in gpus}
    model = models.pop() if len(models) == 1 else None
    device = ids.pop() if len(ids) == 1 else None
    row = standard.peaks.get(device) if device else None
    counts = {gpu.nvlinks_active for gpu in gpus}
    known = counts.pop() if len(counts) == 1 else None
    ports = [nic for nic in host.nics if nic.rdma and nic.kind == "infiniband" and nic.physfn is None]
    rates = {nic.rate_gbps for nic in ports}
    rate = rates.pop() if len(rates) == 1 else None
    generation = generation_of(model)
    links = known if known is not None else row.nvlinks if row else None
    return HostShape(
        gpu=model,
        generation=generation,
        peaks=dict(row.values) if row else {},
        slot=narrowest(host.index, [gpu.address for gpu in gpus]),
        links=links,
        switched=_switched(True if host.nvswitches or host.fabric is not None else None, model, generation, links),
        per_host=len(gpus),
        hosts=1,
        nics=len(ports) or None,
        nic_gb_per_s=rate / 8 if rate else None,
        cpu=host.cpu_model.model if host.cpu_model else None,
        virtual=host.hypervisor,
    )
