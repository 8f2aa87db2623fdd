"""Output of NVIDIA's tools that an operator saved, for a diagnosis: nvidia-smi, and the tests of the CUDA samples."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from hosttune.errors import BadInput
from hosttune.gpu.matrices import between, matrices, named_pairs
from hosttune.gpu.nvidia_links import TopoMatrix, parse_nvlink_status, parse_topo_matrix
from hosttune.gpu.nvidia_smi import parse_smi_text, parse_smi_xml
from hosttune.gpu.vendor import LogReader
from hosttune.model.gpu import Gpu
from hosttune.model.measured import Figure, LinkSeen, Measured, Nics, Observations, Setup, Stated
from hosttune.model.pci import PCIE_GTS

# Nearest first (nvidia-smi topo -m, legend).
_PATHS: tuple[Literal["PIX", "PXB", "PHB", "NODE", "SYS"], ...] = ("PIX", "PXB", "PHB", "NODE", "SYS")
_NUMBER = r"\d{1,5}(?:\.\d{1,3})?"
_MESHED = 4  # links to each peer: boards with switches have more (V100: 6)
_MOST_LINKS = 18  # of one GPU (nvml.h, NVML_NVLINK_MAX_LINKS)


def _query(text: str) -> tuple[Gpu, ...]:
    answer = parse_smi_xml(text) if text.lstrip().startswith("<") else parse_smi_text(text)
    if not answer.gpus:
        raise BadInput("no GPU in it", where="nvidia-smi -q", hint="save its whole output")
    return answer.gpus


def _topology(text: str) -> Measured:
    matrix = parse_topo_matrix(re.sub(r"\bSOC\b", "SYS", text))  # its name before driver 384
    if matrix is None or any(len(row) < len(matrix.gpus) + len(matrix.nics) - 1 for row in matrix.paths.values()):
        raise BadInput("no whole matrix in it", where="nvidia-smi topo -m", hint="save its whole output")
    shown = [name for name in matrix.gpus if name in matrix.paths]
    if not shown:
        raise BadInput("no row of a GPU in it", where="nvidia-smi topo -m", hint="save its whole output")
    whole = len(shown) == len(matrix.gpus)
    words = [matrix.paths[one][other] for one in shown for other in matrix.gpus if one != other]
    links = {int(word[2:]) for word in words if word.startswith("NV")}
    linked = [word.startswith("NV") for word in words]
    # As many links to each peer, and more than a GPU has if they led to one peer each: they lead to switches.
    peers = len(matrix.gpus) - 1
    count = links.pop() if len(links) == 1 and all(linked) else None
    switched = count is not None and count * peers > _MOST_LINKS
    meshed = whole and count is not None and count <= _MESHED and peers > 1 and not switched
    p2p: Literal["nvlink", "pcie"] | None = None
    if linked and (whole or switched):  # one GPU that reaches all over switches is as the others
        p2p = "nvlink" if all(linked) else None if any(linked) else "pcie"
    return Measured(
        version=1,
        setup=Setup(
            gpus_per_host=len(matrix.gpus) or None,
            nvlinks_per_gpu=count if switched else 0 if whole and linked and not any(linked) else None,
            # Such boards have PCIe switches: a guest that was given no bridges shows none.
            virtual=True
            if switched and {matrix.paths[gpu][nic] for gpu in shown for nic in matrix.nics} == {"PHB"}
            else None,
            nvswitch=True if switched else False if meshed else None,
            nics=Nics(count=len(matrix.nics)) if matrix.nics else None,
        ),
        observations=Observations(p2p=p2p, gpu_nic_path=_worst_path(matrix) if whole else None),
    )


def _worst_path(matrix: TopoMatrix) -> Literal["PIX", "PXB", "PHB", "NODE", "SYS"] | None:
    """Return the path to its nearest NIC of the GPU that has the worst one; None without NICs."""
    best = []
    for gpu in matrix.gpus:
        words = [matrix.paths[gpu][nic] for nic in matrix.nics if matrix.paths[gpu].get(nic) in _PATHS]
        if not words:
            return None
        best.append(min(_PATHS.index(word) for word in words))
    return _PATHS[max(best)] if best else None


_DCGM_LINKS = r"(?m)^[ \t]*gpuId (\d{1,4}):[ \t]*\n[ \t]+([UDX_](?: [UDX_]){0,39})[ \t]*$"


def _links(text: str) -> Measured:
    """Read `nvidia-smi nvlink -s` or `dcgmi nvlink -s`: the GPU with the fewest active links. Raises BadInput."""
    rows = [(row.index, row.links) for row in parse_nvlink_status(text) if row.links]
    if rows and len(rows[-1][1]) < len(rows[0][1]):  # an inactive link has a line, too: the text was cut
        rows.pop()
    for index, letters in re.findall(_DCGM_LINKS, text):  # up, down, disabled; one that the GPU lacks is no link
        rows.append((int(index), tuple(1.0 if letter == "U" else None for letter in letters.split() if letter != "_")))
    if not rows:
        raise BadInput("no links in it", where="nvidia-smi nvlink -s", hint="save its whole output")
    models = set(re.findall(r"(?m)^GPU \d{1,4}: (\S[^\n(]{0,80}?)[ \t]*\(UUID", text))
    active, index, of = min((sum(link is not None for link in links), index, len(links)) for index, links in rows)
    said = {"nvlinks": f"GPU {index}: {active} of its {of} links are active"} if active < of else {}
    whole = [index for index, _ in rows] == list(range(len(rows)))
    return Measured(
        version=1,
        setup=Setup(
            gpu=models.pop() if len(models) == 1 else None,
            gpus_per_host=len(rows) if whole else None,
            nvlinks_per_gpu=active,
        ),
        observations=Observations(said=said),
    )


_STATUS = {"CNS": "chipset not supported", "GNS": "GPU not supported", "TNS": "topology not supported",
           "NS": "not supported", "DR": "disabled by regkey"}  # fmt: skip
_STATUS_ROW = r"[ \t]*GPU\d{1,3}[ \t]+(?:(?:X|OK|CNS|GNS|TNS|NS|DR|U)[ \t]*)+\r?$"


def _peer_status(text: str) -> Measured:
    """Read `nvidia-smi topo -p2p`: only r and w are of peer access.

    Of links, atomics and the proprietary protocol the driver says OK or NS alone (NVIDIA/open-gpu-kernel-modules,
    client_resource.c): the other words are of r or w, whatever was asked.
    """
    rows = [line.split() for line in re.findall(rf"(?m)^{_STATUS_ROW}", text)]
    names = list(dict.fromkeys(row[0].lower() for row in rows))
    pairs = {
        (row[0].lower(), peer): word for row in rows for peer, word in zip(names, row[1:], strict=False) if word != "X"
    }
    of_access = re.search(r"topo -p2p [rw]", text)
    off = {pair: word for pair, word in pairs.items() if word in _STATUS and (word != "NS" or of_access)}
    whole = len(off) == len(pairs)
    words = "; ".join(f"{word}, {_STATUS[word]}" for word in dict.fromkeys(off.values()))
    return Measured(
        version=1,
        setup=Setup(gpus_per_host=len(names)),
        observations=Observations(
            p2p=("off" if whole else "partly") if off else None,
            said={"p2p": words if whole else f"{named_pairs(off)}: {words}"} if off else {},
        ),
    )


# Percent; parts of the next GPU's clock, of the power limit, and of the highest clock.
_BUSY, _SLOW_CLOCK, _WAITING, _HELD = 90, 0.6, 0.4, 0.35
_WORK = ("index", "utilization.gpu", "clocks.sm", "power.draw", "power.limit", "clocks.max.sm", "name")


def _at_work(rows: Iterable[Sequence[str]]) -> dict[str, Any]:
    """Return what busy GPUs show against each other: of each the fields of `_WORK`, "" for what is not there.

    A kernel that waits for another GPU keeps its own busy and draws little.
    """
    busy = [row for row in rows if float(row[1] or 0) >= _BUSY]
    known = [(float(mhz), index) for index, _, mhz, *_ in busy if mhz]
    clocks = sorted((max(mhz for mhz, other in known if other == index), index) for index in {row[1] for row in known})
    slow = len(clocks) > 1 and len({row[-1] for row in busy}) == 1 and clocks[0][0] < clocks[1][0] * _SLOW_CLOCK
    held = next((row for row in busy if row[2] and float(row[2]) < float(row[5] or 0) * _HELD), None)
    stated = Stated(
        says=f"GPU {held[0]} is busy at a clock far below its highest",
        line=f"{held[2]} of {held[5]} MHz",
        remedy="its clocks' reasons say why (nvidia-smi -q -d PERFORMANCE): reset locked clocks (nvidia-smi -rgc),"
        " then see its power cables and limits, and heat",
        source="nvml.h, clocks event reasons; nvidia-smi manual page, --reset-gpu-clocks",
    ) if held else None  # fmt: skip
    stated = Stated(
        says=f"GPU {clocks[0][1]} runs at a far lower clock than the others, and all are busy",
        line=f"GPU {clocks[0][1]}: {clocks[0][0]:g} MHz, the others {clocks[1][0]:g} and more",
        remedy="read its clocks' reasons, temperature and power limit (nvidia-smi -q -d PERFORMANCE); if nothing limits"
        " it, reseat its power cables and the GPU, and then replace it",
        source="nvidia-smi manual page, Clocks Event Reasons",
    ) if slow else stated  # fmt: skip
    parts = [(float(watts), float(most)) for *_, watts, most, _, _ in busy if watts and most]
    said = (
        {"waiting": f"{len(parts)} GPUs are busy with {max(parts)[0]:g} W of {max(parts)[1]:g} W"}
        if (len(parts) > 1 and all(watts < most * _WAITING for watts, most in parts))
        else {}
    )
    return {"stated": (stated,) if stated else (), "said": said}


_SMI_LINK = re.compile(
    r"Gen(?:eration)?\s+Max\s*: (\d)\s+Current\s*: (\d)\b[\s\S]{0,400}?"
    r"Width\s+Max\s*: (\d{1,2})x\s+Current\s*: (\d{1,2})x"
)
_FIELDS = ("pcie.link.gen.max", "pcie.link.gen.current", "pcie.link.width.max", "pcie.link.width.current")
# Columns of `dmon`, and an older or a longer name of those of --query-gpu. The clock of its memory tells a GPU's kind.
_ALSO = {"gpu": "index", "sm": "utilization.gpu", "pclk": "clocks.sm", "mclk": "name", "clocks.current.sm": "clocks.sm"}
_UNCORRECTED = Stated(
    says="a GPU's memory had uncorrectable errors since its driver was loaded", line="",
    remedy="reset the GPU, then hosttune validate (ecc-errors, row-remap); replace it if they come back",
    source="nvidia-smi manual page, Volatile Uncorr. ECC",
)  # fmt: skip
_BRAKE = Stated(
    says="something outside the GPU slows it: the power brake is on", line="power brake slowdown: Active",
    remedy="check the host's power supplies and the BMC's power limits", source="nvml.h, clocks event reasons",
)  # fmt: skip


def _tables(text: str) -> Iterator[dict[str, str]]:
    """Yield each row of `--query-gpu` as CSV and of `dmon` by its column's name, the numbers without their units."""
    head: list[str] = []
    for line in text.split("\n"):
        if asked := re.search(r"--query-gpu[= ]([a-z][\w.,]{2,2000})", line):  # with `noheader` it alone names them
            head = [_ALSO.get(name, name) for name in asked[1].split(",")]
            continue
        apart = line.split(",") if "," in line or "." in line else line.lstrip("# \t").split()
        cells = [cell.strip().partition(" [")[0] for cell in apart]
        if cells[:1] == ["gpu"] or any(
            re.match(r"(?:pcie\.link|power|utilization|clocks\w*|ecc\.errors)\.[a-z]", cell) for cell in cells
        ):
            head = [_ALSO.get(cell, cell) for cell in cells]
        elif len(cells) == len(head):
            yield {
                name: re.sub(r"^([\d.]{1,9}) (?:W|%|MHz)$|^-$", r"\1", cell)
                for name, cell in zip(head, cells, strict=True)
            }


def _pcie_links(text: str) -> Measured:
    """Read links, limits, clocks and use of GPUs: `nvidia-smi -q`, `dmon`, and `--query-gpu` with `--format=csv`."""
    rows = list(_tables(text))
    links = [("", row) for row in _SMI_LINK.findall(text)]
    links += [(row.get("index", ""), tuple(row.get(name, "") for name in _FIELDS)) for row in rows]
    limits = [
        (float(row["power.limit"]), float(row["power.default_limit"]))
        for row in rows
        if all(re.fullmatch(_NUMBER, row.get(name, "")) for name in ("power.limit", "power.default_limit"))
    ]
    active = " ".join(name for row in rows for name, cell in row.items() if cell == "Active")
    # nvml.h: two reasons of heat, and the power brake
    masks = [int(cell, 16) for row in rows for name, cell in row.items() if name.endswith("_reasons.active")
             and re.fullmatch(r"0x[0-9a-fA-F]{1,16}", cell)]  # fmt: skip
    known = [
        (width / lanes, now / top, gpu, LinkSeen(
            speed_gts=PCIE_GTS[now], width=width, max_speed_gts=PCIE_GTS[top], max_width=lanes))
        for gpu, values in links
        if all(re.fullmatch(r"[1-9]\d?", value) for value in values)
        for top, now, lanes, width in [map(int, values)]
        if top in PCIE_GTS and now in PCIE_GTS
    ]  # fmt: skip
    if not known and not limits and not rows:
        raise BadInput("no PCIe link, limit or use in it", where="nvidia-smi", hint="save the line with the names, too")
    # An idle link is slow, and has all its lanes.
    *_, gpu, link = min(known, key=lambda row: row[:2], default=(1.0, 1.0, "", None))
    limit = min(limits, key=lambda pair: pair[0] / max(1.0, pair[1]), default=(None, None))
    hot = "thermal_slowdown" in active or any(mask & 0x60 for mask in masks)
    braked = "power_brake" in active or any(mask & 0x80 for mask in masks)
    errors = [(row.get("index", ""), row.get("ecc.errors.uncorrected.volatile.total", "")) for row in rows]
    models = {row["name"] for row in rows if re.search(r"[A-Za-z]", row.get("name", ""))}
    shown = _at_work(
        [row.get(name, "") if name == "name" or re.fullmatch(_NUMBER, row.get(name, "")) else "" for name in _WORK]
        for row in rows
    )
    return Measured(
        version=1,
        setup=Setup(gpu=models.pop() if len(models) == 1 else None),
        observations=Observations(
            link=link,
            power_limit_watts=limit[0],
            default_power_limit_watts=limit[1],
            thermal_slowdown=hot or None,
            stated=(
                *((_BRAKE,) if braked else () if hot else shown["stated"]),
                *(
                    msgspec.structs.replace(_UNCORRECTED, line=f"GPU {index}: {count}")
                    for index, count in errors
                    if count.isdecimal() and int(count)
                ),
            ),
            said={**shown["said"], **({"link": f"GPU {gpu}"} if gpu else {})},
        ),
    )


_PEER_DEVICE = re.compile(r"(?m)^Device: (\d{1,3}), ([^,\n]{1,120}), pciBusID")
_PEER_ACCESS = re.compile(r"(?m)^Device=\d{1,3} (CAN|CANNOT) Access Peer Device=\d{1,3}")
_SLOWER = 1.3  # copies with peer access are faster on every machine where it works
_SAME = 0.05  # two runs of a copy differ by less
_PEER_TITLE = re.compile(
    r"(?:P2P Bandwidth Matrix \(GB/s\) - )?(Uni|Bi)directional,? P2P=(Enabled|Disabled)"  # the first: busGrind
    r"(?: Bandwidth(?: \(P2P (Writes|Reads)\))? Matrix \(GB/s\))?"
)


def _peers(text: str) -> Measured:
    """Read p2pBandwidthLatencyTest: copies with peer access where GPUs have it (CUDA samples). Raises BadInput."""
    devices = dict(_PEER_DEVICE.findall(text))
    access = set(_PEER_ACCESS.findall(text))
    peers = {(match[1], match[2], match[3] or "Writes"): cells for match, cells in matrices(text, _PEER_TITLE)}
    order = [(way, state, "Writes") for state in ("Enabled", "Disabled") for way in ("Uni", "Bi")]
    best = next((kind for kind in order if kind in peers), None)
    if best is None and not access:
        raise BadInput("no whole matrix in it", where="p2pBandwidthLatencyTest", hint="save its whole output")
    cells = peers[best] if best else {}
    names = {row: f"gpu{row}" for row, _ in cells}
    # Without peer access the copies of P2P=Enabled go through the host's memory, as those of P2P=Disabled do.
    off = peers.get((best[0], "Disabled", "Writes"), {}) if best and best[1] == "Enabled" else {}
    pairs = [(value, off.get(pair)) for pair, value in cells.items() if value and pair[0] != pair[1]]
    same = bool(pairs) and all(other and abs(value / other - 1) < _SAME for value, other in pairs)
    slow = bool(pairs) and all(other and value * _SLOWER < other for value, other in pairs)
    # A link that is narrow for both makes them the same, too.
    said = "P2P=Enabled gives what P2P=Disabled gives" if same and access != {"CAN"} else ""
    said = "CANNOT Access Peer Device" if access == {"CANNOT"} else said
    return Measured(
        version=1,
        setup=Setup(
            gpu=set(devices.values()).pop() if len(set(devices.values())) == 1 else None,
            gpus_per_host=len(devices) or len(names) or None,
            hosts=1,
        ),
        # Its copies within a GPU are no measure of the memory: of H100 in order they reach 0.75 of the peak.
        figures=tuple(between(cells, names, best is not None and best[0] == "Bi")),
        observations=Observations(
            p2p="off" if said else None,
            peer_copies_slow=slow or (False if same and access == {"CAN"} else None),
            said={"p2p": said} if said else {},
        ),
    )


_COPY = re.compile(r"(Host to Device|Device to Host|Device to Device) Bandwidth, \d{1,3} Device\(s\)")
_COPIES = {"Host to Device": "h2d", "Device to Host": "d2h", "Device to Device": "device-copy"}
_COPY_ROW = (
    r"bandwidthTest-(H2D|D2H|D2D)(?:-\w{1,12})?, Bandwidth = (\d{1,7}(?:\.\d{1,3})?) GB/s, "
    r"Time = \S+ s, Size = (\d{1,12}) bytes"
)
_COPIES_CSV = {"H2D": "h2d", "D2H": "d2h", "D2D": "device-copy"}
_COPY_UNIT = re.compile(r"Bandwidth ?\(([GM]B/s)\)")


def _copies(text: str) -> Measured:
    """Read bandwidthTest of the CUDA samples: the largest transfer of each direction. Raises BadInput."""
    devices = dict(re.findall(r"(?m)^[ \t]*Device (\d{1,3}): (\S[^\n]{0,120}?)[ \t]*$", text))
    bound = re.search(r"\bnumactl\b[^\n]{0,200}?(?:-N|-m|--cpunodebind|--membind)[ =]?(\d{1,4})\b", text)
    subject = (f"gpu{next(iter(devices))}" if len(devices) == 1 else "GPU") + (f", node {bound[1]}" if bound else "")
    figures: dict[str, Figure] = {}
    metric, unit, pageable = None, "", False
    for line in text.split("\n"):
        if row := re.match(_COPY_ROW, line):  # --csv
            copy, size = _COPIES_CSV[row[1]], float(row[3])
            if size >= (figures[copy].size_bytes or 0 if copy in figures else 0):
                figures[copy] = Figure(metric=copy, subject=subject, value=float(row[2]), unit="GB/s", size_bytes=size)
            pageable = pageable or "Paged" in line
        elif title := _COPY.search(line):
            metric, unit = _COPIES[title[1]], ""
        elif heading := _COPY_UNIT.search(line):
            unit = heading[1]
        elif re.match(r"\s*PAGEABLE Memory Transfers", line):
            pageable = True
        elif metric and unit and (row := re.fullmatch(r"\s*(\d{4,12})\s+(\d{1,7}(?:\.\d{1,3})?)\s*", line)):
            size = float(row[1])
            if size >= (figures[metric].size_bytes or 0 if metric in figures else 0):
                figures[metric] = Figure(
                    metric=metric, subject=subject, value=float(row[2]), unit=unit, size_bytes=size
                )
    if not figures:
        raise BadInput("no line of figures", where="bandwidthTest", hint="save its whole output")
    return Measured(
        version=1,
        setup=Setup(gpu=next(iter(devices.values())) if len(devices) == 1 else None, hosts=1),
        figures=tuple(figures.values()),
        observations=Observations(pageable_memory=True if pageable else None),
    )


_SECTION = re.compile(r"(?m)^(?=GPU [0-9A-Fa-f]{4,8}:|[ \t]{1,8}Temperature[ \t]*$)")
_DEGREES = r"(?m)^[ \t]*{}[ \t]*: (-?\d{{1,3}}) C\b"
_NEAR = 1  # degrees: it is held there


_SET_CLOCK = r"(?m)^[ \t]*{}Applications Clocks[ \t]*\n[ \t]*Graphics +: (\d{{1,5}}) MHz"


def _readings(text: str) -> Measured:
    """Read temperatures and power limits of `nvidia-smi -q`, also of a part of it (nvidia-smi manual page)."""
    stated = []
    for part in _SECTION.split(text):
        degrees = {
            name: int(match[1])
            for name in ("GPU Current Temp", "GPU Slowdown Temp", "GPU Max Operating Temp", "GPU T.Limit Temp",
                         "GPU Max Operating T.Limit Temp", "Memory Current Temp", "Memory Max Operating Temp")
            if (match := re.search(_DEGREES.format(re.escape(name)), part))
        }  # fmt: skip
        for own, limit in (("GPU Current Temp", "GPU Max Operating Temp"), ("GPU Current Temp", "GPU Slowdown Temp"),
                          ("GPU Max Operating T.Limit Temp", "GPU T.Limit Temp"),
                          ("Memory Current Temp", "Memory Max Operating Temp")):  # fmt: skip
            if own in degrees and limit in degrees and degrees[own] >= degrees[limit] - _NEAR:
                stated.append(Stated(
                    says="a GPU is as hot as it may be: its clocks are lowered there",
                    line=f"{own}: {degrees[own]} C, {limit}: {degrees[limit]} C",
                    remedy="check fans, air flow and water; a limit far below that of such a model was set by firmware",
                    source="nvidia-smi manual page, Temperature",
                ))  # fmt: skip
                break
    now, default = (
        [float(watts) for watts in re.findall(rf"(?m)^[ \t]*{name}[ \t]*: (\d{{1,5}}\.\d\d) W", text)]
        for name in ("(?:Current )?Power Limit", "Default Power Limit")
    )
    pairs = zip(now, default, strict=True) if len(now) == len(default) else ()
    clock, usual = ([float(mhz) for mhz in re.findall(_SET_CLOCK.format(name), text)] for name in ("", "Default "))
    clocks = min(zip(clock, usual, strict=False), default=(None, None), key=lambda pair: pair[0] / max(1.0, pair[1]))
    lowest = min(pairs, default=(None, None), key=lambda pair: pair[0] / max(1.0, pair[1]))
    return Measured(
        version=1,
        observations=Observations(
            power_limit_watts=lowest[0],
            default_power_limit_watts=lowest[1],
            sm_clock_mhz=clocks[0],
            max_sm_clock_mhz=max(clocks) if clocks[0] else None,
            stated=tuple(dict.fromkeys(stated)),
        ),
    )


_TABLE_ROW = (
    r"\|[ \t]+(\d{1,3})[ \t]+([A-Za-z][^|\n]{2,40}?)[ \t]+(?:(?:On|Off|N/A)[ \t]*)?\|["
    r" \t]*([0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]{7})"
    r"[ \t]+\S{2,3}[ \t]+\|[ \t]+(\S{1,20})[ \t]+\|[ \t]*\n"
    r"\|([^|\n]{10,60}?)[ \t](\S{1,8})[ \t]*/[ \t]*([^\s|]{1,8})[ \t]*\|"
)


def _table(text: str) -> Measured:
    """Read the table of `nvidia-smi`: uncorrected errors, values that cannot be read, the lowest power limit.

    The limit of a GPU is compared with the highest of its model.
    """
    rows = re.findall(_TABLE_ROW, text)
    if not rows and not re.search(r"\|[ \t]+vGPU ID[ \t]", text):  # of vGPUs it shows their use
        raise BadInput("no whole row of a GPU in it", where="nvidia-smi", hint="save its whole output")
    models = {model for _, model, *_ in rows}
    stated, limits = [], []
    for index, model, _, errors, state, _, most in rows:
        if errors.isdecimal() and int(errors):
            stated.append(msgspec.structs.replace(_UNCORRECTED, line=f"GPU {index}: {errors}"))
        # That of the power drawn alone passes (Azure/azhpc-diagnostics issue 77).
        if "ERR!" in (errors, most) or "ERR!" in state:
            stated.append(Stated(
                says="a GPU does not give all of its values", line=f"GPU {index}: ERR!",
                remedy="read its XIDs in dmesg; power-cycle the host; reseat or replace it if it comes back",
                source="nvidia-smi manual page: a sensor or the GPU itself does not answer",
            ))  # fmt: skip
        if re.fullmatch(r"\d{1,5}W", most) and not model.endswith("..."):  # two models can be cut alike
            limits.append((model, int(most[:-1]), index))
    low = [(limit / top, limit, top, index) for model, limit, index in limits
           for top in [max(other for name, other, _ in limits if name == model)] if limit < top]  # fmt: skip
    _, limit, top, index = min(low, default=(1.0, None, None, ""))
    used = re.findall(r"[ \t](\d{1,4})W[ \t]*/[ \t]*(\d{1,4})W[ \t]*\|[^|\n]{5,60}\|[ \t]*(\d{1,3})%", text)
    work = _at_work(("", use, "", watts, most, "", "") for watts, most, use in used)
    return Measured(
        version=1,
        setup=Setup(gpu=models.pop() if len(models) == 1 else None, gpus_per_host=len(rows)),
        observations=Observations(
            power_limit_watts=limit,
            default_power_limit_watts=top,
            said=work["said"]
            | ({"power_limit_watts": f"GPU {index}; {top:g} W is the limit of the others"} if index else {}),
            stated=tuple(stated),
        ),
    )


_GPU_LINE = r"^GPU (\d{1,4}): (\S[^\n(]{2,80}?)[ \t]*\(UUID: GPU-[^)\n]{1,60}\)[ \t\r]*(?:$|\n(?![ \t]+Link))"


def _listed(text: str) -> Measured:
    """Read `nvidia-smi -L`: the GPUs that the driver has."""
    gpus = dict(re.findall(rf"(?m){_GPU_LINE}", text))
    models = set(gpus.values())
    return Measured(version=1, setup=Setup(gpu=models.pop() if len(models) == 1 else None, gpus_per_host=len(gpus)))


_FAR_BELOW = 1.25  # runs of equal GPUs are nearer to each other
_HOT = 85  # degrees, near where boards slow down


def _burn(text: str) -> Measured:
    """Read gpu-burn and DCGM's ubergemm: GPUs of one model against each other. Raises BadInput."""
    models = set(re.findall(r"(?m)^[ \t]*GPU \d{1,3}: (\S[^\n(]{0,80}?)[ \t]*\(UUID", text))
    lines = re.findall(r"proc'd: ([^\n]*Gflop/s\))[^\n]*?(?:temps: ([^\n]*))?$", text, re.MULTILINE)
    series = [[int(rate) for rate in re.findall(r"\((\d{1,12}) Gflop/s\)", row)] for row, _ in lines]
    heats = [int(degrees) for degrees in re.findall(r"(\d{1,3}) C\b", lines[-1][1] if lines else "")]
    adapters = re.findall(r"ADAPTER#(\d{1,3})\)[^\n]{1,40}? ([\d.]{1,15}) GF", text)
    rates = [(float(rate), int(index)) for index, rate in adapters]
    rates += [(float(rate), index) for index, rate in enumerate(series[-1] if series else ())]
    if not rates:
        raise BadInput("no figures in it", where="gpu-burn", hint="save its whole output")
    for number, (now, degrees) in enumerate(zip(series[-1] if series else (), heats, strict=False)):
        before = max(row[number] for row in series if len(row) > number)
        if degrees >= _HOT and 0 < now * _FAR_BELOW < before:
            hot = Stated(
                says=f"GPU {number} becomes slower while it is hot",
                line=f"{before} Gflop/s, then {now} at {degrees} C",
                remedy="cool it: fans and the way of the air (a passive card needs a server's), heat sink and paste;"
                " nvidia-smi -q -d PERFORMANCE names the slowdown",
                source="wilicc/gpu-burn gpu_burn-drv.cpp; nvml.h, clocks event reasons",
            )
            return Measured(version=1, observations=Observations(stated=(hot,)))
    (least, index), *rest = sorted(rates)
    if len(models) > 1 or not rest or not 0 < least * _FAR_BELOW < rest[0][0]:
        return Measured(version=1)
    at = "".join(f" at {degrees} C" for degrees in heats[index : index + 1])
    slow = Stated(
        says=f"GPU {index} computes far less than the others of its model",
        line=f"{least:g} GFLOP/s{at}, the others {rest[0][0]:g} and more",
        remedy="under load read its clocks' reasons, temperature, power limit and ECC errors (nvidia-smi -q); if"
        " nothing limits it, reseat it, and then replace it",
        source="NVIDIA/DCGM issue 122; wilicc/gpu-burn",
    )
    return Measured(version=1, observations=Observations(stated=(slow,)))


NVIDIA_LOGS = (
    LogReader(name="gpu-burn", machine=_burn, sign=r"proc'd: -?\d{1,12} \(|ADAPTER#\d{1,3}\)[^\n]{1,40} GFlops"),
    LogReader(name="p2pBandwidthLatencyTest",
              sign=rf"(?m)P2P \(Peer-to-Peer\) GPU Bandwidth|{_PEER_TITLE.pattern}|{_PEER_ACCESS.pattern[4:]}",
              machine=_peers, begin=r"^\[P2P \(Peer-to-Peer\) GPU"),
    LogReader(name="bandwidthTest", sign=rf"(?m)^\[CUDA Bandwidth Test|{_COPY.pattern}", machine=_copies,
              begin=r"^(?:.*\bnumactl\b.*\n)?\[?CUDA Bandwidth Test"),
    LogReader(name="nvidia-smi topo -m", machine=_topology, begin=r"^[ \t]+(?:\x1b\[\w+)?GPU0\b",
              sign=r"(?m)^[ \t]*GPU0[ \t].*\b(?:NV\d{1,2}|PIX|PXB|PHB|NODE|SYS|SOC)\b"
              r"|^[ \t]+(?:\x1b\[\w+)?GPU0\b.*\bCPU Affinity\b"),
    LogReader(name="nvidia-smi topo -p2p", machine=_peer_status, begin=r"^.*\btopo -p2p\b",
              sign=rf"(?m)^(?:[ \t]*(?:GPU\d{{1,3}}[ \t]*)+\n)?{_STATUS_ROW}"),
    LogReader(name="nvidia-smi nvlink -s", machine=_links,
              sign=rf"(?m)^GPU \d{{1,4}}: .*\n[ \t]+Link 0: |{_DCGM_LINKS[4:]}",
              begin=r"^.*\bnvlink -s"),
    LogReader(name="nvidia-smi --query-gpu", machine=_pcie_links,
              sign=r"(?m)(?:pcie\.link|power|utilization|clocks\w{0,20}|ecc\.errors)\.[a-z_.]{1,60}"
              r"(?: \[(?:W|%|MHz)\])?(?:, ?| -|\r?$)"
              rf"|^# gpu[ \t]+[a-z]{{2,6}}[ \t]|{_SMI_LINK.pattern}"),
    LogReader(name="nvidia-smi -L", sign=rf"(?m){_GPU_LINE}", machine=_listed),
    LogReader(name="nvidia-smi -q -d", sign=r"(?m)^[ \t]*(?:GPU Current Temp|Default Power Limit)[ \t]*: \d"
              r"|^[ \t]*[HS]W (?:Power Cap|(?:Thermal |Power Brake )?Slowdown)[ \t]*: (?:Not )?Active"
              r"|^[ \t]*(?:ECC Errors|Remapped Rows|FB Memory Usage|Applications Clocks|"
              r"Clocks (?:Throttle|Event) Reasons)[ \t]*$",
              machine=_readings),
    LogReader(name="nvidia-smi", sign=rf"(?m)^\|[ \t]+(?:NVIDIA|HL)-SMI\b|^{_TABLE_ROW}", machine=_table),
    LogReader(name="nvidia-smi -q", sign=r"=NVSMI LOG=|<nvidia_smi_log>", gpus=_query),
)  # fmt: skip
