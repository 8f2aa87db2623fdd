"""NVIDIA's generations of GPUs: what models of copies and collectives need of them.

Rates of a link, as NCCL counts them: NVIDIA/nccl@5067397 src/graph/topo.h, SM60_NVLINK_BW to SM100_NVLINK_BW. Slots:
the data sheets and product briefs of the models named. NVLink-C2C: 900 GB/s both ways (Grace Hopper data sheet). Links
of A800 and H800: 400 GB/s both ways, 50 GB/s a link (product pages). Peaks of a link, one direction: white papers of
P100, V100, A100, GA102, H100 and the data sheet of B200. Parts: derived from published bus bandwidths, see
docs/models.md.
"""

from __future__ import annotations

from hosttune.gpu.vendor import Generation

_GEN3, _GEN4, _GEN5 = 8.0, 16.0, 32.0
_A100_RING = 235 / 240  # 8 GPUs: 235 GB/s (stas00/ml-engineering), which is also the most in NCCL's tuning.cc for SM80
GENERATIONS = (
    Generation(names=r".*(?:laptop|mobile)", links=0),  # their lanes differ by laptop
    Generation(
        names=r"gb[23]00",
        link_gb_per_s=40.1,
        link_peak_gb_per_s=50.0,
        ring_part=0.94,
        switch_part=0.75,
        cpu_link_gb_per_s=450.0,
        links=18,
        joins_hosts=True,
    ),
    Generation(
        names=r"b200",
        pcie_gts=_GEN5,
        link_gb_per_s=40.1,
        link_peak_gb_per_s=50.0,
        ring_part=0.94,
        switch_part=0.75,
        links=18,
    ),
    Generation(names=r"b300", link_gb_per_s=40.1, link_peak_gb_per_s=50.0, ring_part=0.94, switch_part=0.75, links=18),
    Generation(
        names=r"gh200",
        link_gb_per_s=20.6,
        link_peak_gb_per_s=25.0,
        ring_part=0.97,
        switch_part=0.83,
        cpu_link_gb_per_s=450.0,
        links=18,
    ),
    Generation(
        names=r"h800",
        pcie_gts=_GEN5,
        link_gb_per_s=20.6,
        link_peak_gb_per_s=25.0,
        ring_part=0.97,
        switch_part=0.83,
        links=8,
    ),
    Generation(
        names=r"h20 3e",
        pcie_gts=_GEN5,
        link_gb_per_s=20.6,
        link_peak_gb_per_s=25.0,
        measured=True,
        ring_part=0.97,
        switch_part=0.83,
        links=18,
    ),
    Generation(
        names=r"h100|h200|h20",
        pcie_gts=_GEN5,
        link_gb_per_s=20.6,
        link_peak_gb_per_s=25.0,
        measured=True,
        ring_part=0.97,
        switch_part=0.83,
    ),
    Generation(
        names=r"a800", pcie_gts=_GEN4, link_gb_per_s=20.0, link_peak_gb_per_s=25.0, ring_part=_A100_RING, links=8
    ),
    Generation(names=r"a100|a30", pcie_gts=_GEN4, link_gb_per_s=20.0, link_peak_gb_per_s=25.0, ring_part=_A100_RING),
    Generation(names=r"v100 sxm[23]", pcie_gts=_GEN3, link_gb_per_s=20.0, link_peak_gb_per_s=25.0, links=6),
    Generation(names=r"p100 sxm2", pcie_gts=_GEN3, link_gb_per_s=18.0, link_peak_gb_per_s=20.0, links=4),
    Generation(names=r"v100s?", pcie_gts=_GEN3, link_gb_per_s=20.0, link_peak_gb_per_s=25.0),
    Generation(names=r"p100", pcie_gts=_GEN3, link_gb_per_s=18.0, link_peak_gb_per_s=20.0),
    Generation(names=r"50[56]0", pcie_gts=_GEN5, pcie_lanes=8, links=0),
    Generation(names=r"3050|40[56]0|2000 ada|a2", pcie_gts=_GEN4, pcie_lanes=8, links=0),
    Generation(names=r"rtx pro [456]\d00|50[789]0", pcie_gts=_GEN5, links=0),
    Generation(names=r"l4|l40s?|40[789]0|[456][05]00 (?:sff )?ada", pcie_gts=_GEN4, links=0),
    Generation(names=r"a10g?|a16", pcie_gts=_GEN4, links=0),
    Generation(names=r"a40|a[2456][05]00|30[6-9]0", pcie_gts=_GEN4, link_gb_per_s=12.0, link_peak_gb_per_s=14.0625),
    Generation(names=r"t4", pcie_gts=_GEN3, links=0),
    Generation(names=r"20[678]0|rtx [4568]000|titan rtx", pcie_gts=_GEN3),
)
