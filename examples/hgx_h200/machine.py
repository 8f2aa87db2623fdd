"""CPU, memory, kernel and firmware of the example host."""

from __future__ import annotations

from hgx_h200.tree import CORES_PER_NODE, CPUS, GIB, NODE_BYTES, Tree, cpulist, cpumask, node_cpus, node_of

# --- CPU and memory ------------------------------------------------------------------------------------------


def write_cpus(tree: Tree) -> None:
    """sysfs of the CPUs: two packages of 48 cores, two threads each."""
    base = "sys/devices/system/cpu"
    everyone = f"0-{CPUS - 1}"
    tree.put_all(base, online=everyone, possible=everyone, present=everyone, offline="", isolated="", nohz_full="")
    tree.put_all(f"{base}/smt", active=1, control="on")
    tree.put_all(f"{base}/cpuidle", current_driver="intel_idle", current_governor="menu")
    tree.put_all(f"{base}/intel_pstate", status="active", no_turbo=0, max_perf_pct=100)
    for cpu in range(CPUS):
        _write_topology(tree, f"{base}/cpu{cpu}", cpu)
        _write_frequency(tree, base, cpu)
        tree.link(f"{base}/cpu{cpu}/node{node_of(cpu)}", f"sys/devices/system/node/node{node_of(cpu)}")
        tree.link(f"sys/bus/cpu/devices/cpu{cpu}", f"{base}/cpu{cpu}")
        if cpu:
            tree.put(f"{base}/cpu{cpu}/online", 1)


def _write_topology(tree: Tree, base: str, cpu: int) -> None:
    node = node_of(cpu)
    core = cpu % (2 * CORES_PER_NODE)
    siblings = (core, core + 2 * CORES_PER_NODE)
    pair = f"{siblings[0]},{siblings[1]}"
    whole, mask = cpulist(node), cpumask(node_cpus(node))
    at = f"{base}/topology"
    tree.put_all(at, physical_package_id=node, die_id=0, core_id=core % CORES_PER_NODE, cluster_id=0)
    for name in ("thread_siblings", "core_cpus"):
        tree.put_all(at, **{f"{name}_list": pair, name: cpumask(siblings)})
    for name in ("core_siblings", "package_cpus", "die_cpus"):
        tree.put_all(at, **{f"{name}_list": whole, name: mask})
    caches = (
        (1, "Data", "48K", pair, core),
        (1, "Instruction", "32K", pair, core),
        (2, "Unified", "2048K", pair, core),
    )
    for index, (level, kind, size, shared, number) in enumerate((*caches, (3, "Unified", "266240K", whole, node))):
        tree.put_all(f"{base}/cache/index{index}", level=level, type=kind, size=size, id=number)
        tree.put_all(f"{base}/cache/index{index}", shared_cpu_list=shared, coherency_line_size=64)


def _write_frequency(tree: Tree, base: str, cpu: int) -> None:
    policy = f"{base}/cpufreq/policy{cpu}"
    tree.put_all(policy, scaling_driver="intel_pstate", scaling_governor="powersave", affected_cpus=cpu)
    tree.put_all(
        policy,
        scaling_available_governors="performance powersave",
        energy_performance_preference="balance_performance",
        energy_performance_available_preferences="default performance balance_performance balance_power power",
        cpuinfo_min_freq=800000,
        cpuinfo_max_freq=4000000,
        scaling_min_freq=800000,
        scaling_max_freq=4000000,
    )
    tree.link(f"{base}/cpu{cpu}/cpufreq", policy)
    tree.put(f"{base}/cpu{cpu}/power/pm_qos_resume_latency_us", 0)
    for state, (name, latency) in enumerate((("POLL", 0), ("C1", 1), ("C1E", 2), ("C6", 290))):
        tree.put_all(f"{base}/cpu{cpu}/cpuidle/state{state}", name=name, latency=latency, disable=0)


CACHES = {"Active(file)": 2 * GIB >> 10, "Inactive(file)": 5 * GIB >> 10, "SReclaimable": GIB >> 10}  # of a node, in kB


def write_nodes(tree: Tree) -> None:
    """sysfs of two nodes with 1 TiB each, no huge page reserved."""
    base = "sys/devices/system/node"
    for name in ("online", "possible", "has_cpu", "has_memory", "has_normal_memory"):
        tree.put(f"{base}/{name}", "0-1")
    for node in (0, 1):
        at = f"{base}/node{node}"
        tree.put_all(
            at, cpulist=cpulist(node), cpumap=cpumask(node_cpus(node)), distance="10 21" if not node else "21 10"
        )
        total, free = NODE_BYTES >> 10, (NODE_BYTES - 12 * GIB) >> 10
        pages = "".join(f"Node {node} HugePages_{word + ':':8}{0:6}\n" for word in ("Total", "Free", "Surp"))
        sizes = {"MemTotal": total, "MemFree": free, "MemUsed": total - free, **CACHES}
        text = "".join(f"Node {node} {name + ':':16}{size:10} kB\n" for name, size in sizes.items())
        tree.files[f"{at}/meminfo"] = (text + pages).encode()
        for cpu in node_cpus(node):
            tree.link(f"{at}/cpu{cpu}", f"sys/devices/system/cpu/cpu{cpu}")
        for size in ("2048kB", "1048576kB"):
            tree.put_all(f"{at}/hugepages/hugepages-{size}", nr_hugepages=0, free_hugepages=0, surplus_hugepages=0)


def write_memory_settings(tree: Tree) -> None:
    """Transparent huge pages, KSM and the pools of both page sizes."""
    mm = "sys/kernel/mm"
    tree.put_all(f"{mm}/transparent_hugepage", enabled="always [madvise] never", defrag="always defer [madvise] never")
    tree.put_all(f"{mm}/ksm", run=0, merge_across_nodes=1, pages_shared=0)
    for size in ("2048kB", "1048576kB"):
        zero = dict.fromkeys(("nr_hugepages", "free_hugepages", "resv_hugepages", "surplus_hugepages"), 0)
        tree.put_all(f"{mm}/hugepages/hugepages-{size}", nr_overcommit_hugepages=0, **zero)
    total = 2 * NODE_BYTES >> 10
    free = total - (2 * 12 * GIB >> 10)
    available = free + 2 * sum(CACHES.values())
    tree.files["proc/meminfo"] = (
        f"MemTotal:       {total} kB\nMemFree:        {free} kB\nMemAvailable:   {available} kB\n"
        "SwapTotal:             0 kB\nHugePages_Total:       0\nHugePages_Free:        0\nHugepagesize:       2048 kB\n"
    ).encode()


# --- the rest of the machine ---------------------------------------------------------------------------------

FLAGS = (
    "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush dts acpi mmx fxsr sse sse2 ss "
    "ht tm pbe syscall nx pdpe1gb rdtscp lm constant_tsc arch_perfmon rep_good nopl xtopology nonstop_tsc cpuid "
    "aperfmperf pni pclmulqdq monitor vmx smx est tm2 ssse3 fma cx16 pcid dca sse4_1 sse4_2 x2apic movbe popcnt aes "
    "xsave avx f16c rdrand lahf_lm abm 3dnowprefetch ssbd ibrs ibpb stibp ibrs_enhanced tpr_shadow flexpriority ept "
    "vpid ept_ad fsgsbase tsc_adjust bmi1 avx2 smep bmi2 erms invpcid avx512f avx512dq rdseed adx smap clflushopt "
    "clwb intel_pt avx512cd sha_ni avx512bw avx512vl xsaveopt xsavec xgetbv1 xsaves avx_vnni avx512_bf16 wbnoinvd "
    "arat hwp hwp_act_window hwp_epp hwp_pkg_req umip pku ospke waitpkg gfni vaes la57 rdpid movdiri movdir64b "
    "md_clear serialize amx_bf16 avx512_fp16 amx_tile amx_int8 flush_l1d arch_capabilities"
)


def write_proc(tree: Tree) -> None:
    """Kernel, boot arguments, cpuinfo, modules, mounts."""
    blocks = (
        f"processor\t: {cpu}\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 207\n"
        f"model name\t: INTEL(R) XEON(R) PLATINUM 8558\nstepping\t: 2\nphysical id\t: {node_of(cpu)}\n"
        f"siblings\t: 96\ncore id\t\t: {cpu % CORES_PER_NODE}\ncpu cores\t: 48\nflags\t\t: {FLAGS}\n"
        "address sizes\t: 46 bits physical, 57 bits virtual\n\n"
        for cpu in range(CPUS)
    )
    tree.files["proc/cpuinfo"] = "".join(blocks).encode()
    release = "6.8.0-60-generic"
    tree.put("proc/cmdline", f"BOOT_IMAGE=/vmlinuz-{release} root=/dev/nvme0n1p2 ro intel_iommu=on")
    tree.put("proc/version", f"Linux version {release} (synthetic) #63-Ubuntu SMP PREEMPT_DYNAMIC")
    kernel = "proc/sys/kernel"
    tree.put_all(
        kernel, ostype="Linux", osrelease=release, arch="x86_64", hostname="example-hgx-h200", numa_balancing=1
    )
    tree.put(f"{kernel}/random/boot_id", "5e4c0de0-0000-4000-8000-00000000d3f0")
    loaded = (
        "nvidia",
        "mlx5_core",
        "mlx5_ib",
        "nvme",
        "bnxt_en",
        "ast",
        "kvm",
        "kvm_intel",
        "vfio",
        "vfio_iommu_type1",
    )
    tree.files["proc/modules"] = "".join(f"{name} 1 0 - Live 0x0000000000000000\n" for name in loaded).encode()
    mount = "/dev/nvme0n1p2 / ext4 rw,relatime 0 0\n/dev/nvme0n1p1 /boot/efi vfat rw,relatime 0 0\n"
    tree.files["proc/mounts"] = tree.files["proc/self/mounts"] = mount.encode()
    tree.files["proc/self/mountinfo"] = (
        b"30 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw\n"
        b"40 30 259:1 / /boot/efi rw,relatime shared:2 - vfat /dev/nvme0n1p1 rw\n"
    )
    write_routes(tree)
    tree.put("proc/swaps", "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority")


def write_routes(tree: Tree) -> None:
    """Routes as proc_net(5) has them: the first Ethernet port carries the default route of IPv4; IPv6 is link-local."""
    port, nowhere = "ens2f0np0", "0" * 32
    heading = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"
    rows = (
        heading,
        f"{port}\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0",
        f"{port}\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0",
    )
    tree.put("proc/net/route", "\n".join(f"{row:<127}" for row in rows))
    local, loopback = f"fe80{'0' * 28}", f"{'0' * 31}1"
    tree.put(
        "proc/net/ipv6_route",
        f"{loopback} 80 {nowhere} 00 {nowhere} 00000100 00000001 00000000 00000001       lo\n"
        f"{local} 40 {nowhere} 00 {nowhere} 00000100 00000001 00000000 00000001 {port}\n"
        f"{nowhere} 00 {nowhere} 00 {nowhere} ffffffff 00000001 00000000 00200200       lo",
    )
    tree.put("proc/net/if_inet6", f"fe80{'0' * 26}01 02 40 20 80 {port}\n{loopback} 01 80 10 80       lo")


def write_platform(tree: Tree) -> None:
    """Firmware names, modules, KVM, the IOMMU unit."""
    dmi = "sys/devices/virtual/dmi/id"
    tree.put_all(
        dmi,
        sys_vendor="hosttune",
        product_name="SYNTHETIC HGX H200 (built from facts, not a capture)",
        bios_vendor="hosttune",
        bios_version="0",
        board_name="SYNTHETIC",
        chassis_type=23,
    )
    tree.link("sys/class/dmi/id", dmi)
    tree.files["etc/os-release"] = (
        b'PRETTY_NAME="Ubuntu 24.04.2 LTS"\nNAME="Ubuntu"\nVERSION_ID="24.04"\nID=ubuntu\nID_LIKE=debian\n'
    )
    tree.files["etc/default/grub"] = b'GRUB_CMDLINE_LINUX_DEFAULT="intel_iommu=on"\nGRUB_CMDLINE_LINUX=""\n'
    tree.files["boot/grub/grub.cfg"] = (
        b"# the real one is written by grub-mkconfig; this one only says that GRUB boots\n"
    )
    tree.put("etc/hostname", "example-hgx-h200")
    tree.put("sys/firmware/efi/fw_platform_size", 64)
    tree.put("sys/module/nvidia/version", "580.159.04")
    for name in ("kvm", "kvm_intel", "vfio_iommu_type1", "vfio_pci"):
        tree.put(f"sys/module/{name}/initstate", "live")
    tree.put_all("sys/module/kvm/parameters", halt_poll_ns=200000)
    tree.put_all("sys/module/kvm_intel/parameters", nested="Y", ept="Y", enable_apicv="Y")
    tree.put_all(
        "sys/module/vfio_iommu_type1/parameters",
        allow_unsafe_interrupts="N",
        disable_hugepages="N",
        dma_entry_limit=65535,
    )
    tree.put_all("sys/module/vfio/parameters", enable_unsafe_noiommu_mode="N")
    no = dict.fromkeys(("disable_idle_d3", "disable_vga", "disable_denylist", "enable_sriov", "nointxmask"), "N")
    tree.put_all("sys/module/vfio_pci/parameters", **no)
    tree.put("sys/devices/virtual/misc/kvm/dev", "10:232")
    tree.link("sys/class/misc/kvm", "sys/devices/virtual/misc/kvm")
    tree.files["dev/kvm"] = b""  # an archive holds no device files; that the name is there is the fact
    unit = "sys/devices/virtual/iommu/dmar0"
    tree.put_all(f"{unit}/intel-iommu", address="cfffc000", cap="9ed008c40780c66", ecap="3ee9e86f050df", version="6:0")
    tree.link("sys/class/iommu/dmar0", unit)
