"""Evidence built for tests of the checks: a GPU below a switch, changed one fact at a time. All of it is synthetic."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hosttune.model.evidence import ClockLimit, Clocks, Evidence, Security
from hosttune.model.gpu import Gpu
from hosttune.model.host import (
    Acs,
    Bar,
    Cpu,
    CpuModel,
    Host,
    HugePages,
    Hugetlbfs,
    Iommu,
    Irq,
    Link,
    LinkEnd,
    MemorySettings,
    Nic,
    NumaNode,
    PciDevice,
    Platform,
    RunningGuest,
    VcpuPin,
)
from hosttune.model.validation import CheckResult
from hosttune.model.values import CpuSet
from hosttune.rules.checks import checks, results_of

GIB = 1 << 30
ROOT_PORT, UP, DOWN, DOWN_2 = "0000:15:01.0", "0000:16:00.0", "0000:17:00.0", "0000:17:01.0"
GPU, NIC = "0000:18:00.0", "0000:19:00.0"
ISOLATING = ("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd")
MOUNTED = (Hugetlbfs(path="/dev/hugepages1G", size_bytes=GIB, libvirt=True),)
EVERY_ACS = Acs(capable=(*ISOLATING, "DirectTrans"), enabled=ISOLATING)


def link(speed: float | None = 32.0, width: int | None = 16, most: float = 32.0, lanes: int = 16, **more: Any) -> Link:
    """A link as a document of the contract has it: four figures; discovery's own words in `more`."""
    return Link(speed_gts=speed, width=width, max_speed_gts=most, max_width=lanes, **more)


def end(address: str, most: float = 32.0, lanes: int = 16) -> LinkEnd:
    return LinkEnd(address=address, max_speed_gts=most, max_width=lanes)


def bridge(address: str, parent: str | None, kind: str, **more: Any) -> PciDevice:
    facts: dict[str, Any] = {
        "class_code": "060400", "vendor_id": "1000", "port_type": kind, "acs": EVERY_ACS, "link": link(),
        "max_payload_bytes": 256, "aspm": "off", "numa_node": 0, "numa_source": "device",
    }  # fmt: skip
    return PciDevice(address=address, parent=parent, **(facts | more))


def gpu(address: str = GPU, parent: str | None = DOWN, **more: Any) -> PciDevice:
    facts: dict[str, Any] = {
        "class_code": "030200", "vendor_id": "10de", "device_id": "2335", "driver": "vfio-pci", "iommu_group": 40,
        "link": link(), "bars": (Bar(index=2, size_bytes=256 * GIB, prefetchable=True),), "max_payload_bytes": 256,
        "aspm": "off", "numa_node": 0, "numa_source": "device", "acs": Acs(),
    }  # fmt: skip
    return PciDevice(address=address, parent=parent, **(facts | more))


def nic(address: str = NIC, parent: str | None = DOWN_2, **more: Any) -> PciDevice:
    facts: dict[str, Any] = {
        "class_code": "020700", "vendor_id": "15b3", "device_id": "1021", "driver": "vfio-pci", "iommu_group": 41,
        "link": link(), "max_payload_bytes": 256, "aspm": "off", "numa_node": 0, "ats_enabled": True, "acs": Acs(),
    }  # fmt: skip
    return PciDevice(address=address, parent=parent, **(facts | more))


def switch(**more: Any) -> list[PciDevice]:
    """Root port, upstream port, two downstream ports; `more` are facts of all of them."""
    return [
        bridge(ROOT_PORT, None, "root-port", **more),
        bridge(UP, ROOT_PORT, "upstream-port", **more),
        bridge(DOWN, UP, "downstream-port", **more),
        bridge(DOWN_2, UP, "downstream-port", **more),
    ]


def cpus(count: int = 8, **more: Any) -> tuple[Cpu, ...]:
    """CPUs of two nodes; n and n + count/2 are siblings, as Linux numbers them mostly."""
    cores = count // 2
    facts = {"governor": "performance", "energy_preference": "performance", "resume_latency_us": "0"} | more
    return tuple(Cpu(id=n, core=n % cores, **{"numa_node": (n % cores) * 2 // cores, **facts}) for n in range(count))


def clocks(of: Iterable[Cpu], limit: int | None = 4_000_000, highest: int | None = 4_000_000) -> Clocks:
    """The same limit of the clock of all these CPUs, in kHz."""
    listed = str(CpuSet(cpu.id for cpu in of))
    return Clocks(limits=(ClockLimit(cpus=listed, limit_khz=limit, highest_khz=highest),), percent=100)


def guest(
    name: str = "a", pins: Iterable[int] = (2, 6), devices: tuple[str, ...] = (GPU,), **more: Any
) -> RunningGuest:
    return RunningGuest(
        name=name,
        state=more.pop("state", "running"),
        vcpu_pins=tuple(VcpuPin(vcpu=n, cpus=str(cpu)) for n, cpu in enumerate(pins)),
        devices=devices,
        **more,
    )


def host(**changes: Any) -> Host:
    """A host with nothing wrong: one GPU on vfio-pci below a switch, one guest that has it."""
    facts: dict[str, Any] = {
        "hostname": "h", "arch": "x86_64", "hypervisor": False, "kernel_args": ("quiet", "intel_iommu=on"),
        "cpus": cpus(), "cpu_model": CpuModel(vendor="GenuineIntel", smt_control="on", scaling_driver="intel_pstate",
                                              idle_driver="intel_idle"),
        "numa_nodes": tuple(
            NumaNode(id=n, cpus=c, kind="cpu", hugepages=(HugePages(size_bytes=GIB, total=4, free=0),))
            for n, c in enumerate(("0-1,4-5", "2-3,6-7"))
        ),
        "memory_settings": MemorySettings(thp="madvise", ksm_run=0, numa_balancing=0, hugetlbfs=MOUNTED),
        "iommu": Iommu(present=True, mode="DMA-FQ", interrupt_remapping=True, interrupt_posting=True),
        "platform": Platform(),
        "pci": (*switch(), gpu(irqs=(Irq(irq=50, affinity="0", effective="0"),))),
        "gpus": (Gpu(address=GPU, vendor="nvidia"),),
        "guests": (guest(),),
        "settings": {"/etc/default/irqbalance": "2,6"},
    }  # fmt: skip
    return Host(**(facts | changes))


# The words of a Xeon of 2023 with SMT (Linux 6.8), of which nothing is open.
SECURITY = Security(
    vulnerabilities={
        "gather_data_sampling": "Not affected",
        "itlb_multihit": "KVM: Mitigation: Split huge pages",
        "l1tf": "Not affected",
        "mds": "Mitigation: Clear CPU buffers; SMT disabled",
        "spectre_v2": "Mitigation: Enhanced / Automatic IBRS; IBPB: conditional; RSB filling; PBRSB-eIBRS: SW sequence;"
        " BHI: Vulnerable, KVM: SW loop",
    },
    microcode={"0x2b000590": "0-7"},
    secure_boot=True,
    tpm="2",
    clocksource="tsc",
)


def evidence(found: Host | None = None, **more: Any) -> Evidence:
    """Evidence of a live machine, which has nothing but what is in it; unless `complete` or `absent` says otherwise."""
    of = found if found is not None else host()
    live: dict[str, Any] = {
        "complete": True,
        "absent": ("/",) if more.get("complete", True) else (),
        "irqbalance": True,
        "ksm_pages_shared": 0,
        "bar_limits": {one.address: 0 for one in of.gpus},
        "clocks": clocks(of.cpus),
        "security": SECURITY,
    }
    return Evidence(host=of, **(live | more))


def with_pci(*devices: PciDevice, **changes: Any) -> Evidence:
    """Evidence of a host with the switch and these functions below it."""
    return evidence(host(pci=(*switch(), *devices), **changes))


def judged(check: str, of: Evidence) -> dict[str, CheckResult]:
    """The results of one check, by subject."""
    row = next(one for one in checks() if one.id == check)
    results = list(results_of(row, of))
    assert results, f"{check} says nothing"
    assert {result.check for result in results} == {check}
    assert len({result.subject for result in results}) == len(results), f"{check}: a subject stands twice"
    return {result.subject: result for result in results}


def outcome(check: str, of: Evidence, subject: str = "host") -> tuple[str, str]:
    """(outcome, actual) of one check and subject."""
    result = judged(check, of)[subject]
    return result.outcome, result.actual or ""


def rdma(address: str = NIC) -> Nic:
    return Nic(address=address, kind="infiniband", rdma="mlx5_0")
