"""Recorded outputs of the maker's read-only commands, in the shape that real H200 machines gave (tests/hosts/h200)."""

from __future__ import annotations

from hgx_h200.pci import Function, functions
from hgx_h200.tree import Tree, cpulist

# Module ids in bus order, as an HGX H100 board of the same mechanical design reports them: not in bus order.
MODULE_IDS = (2, 4, 1, 3, 7, 5, 6, 8)
NVLINKS = 18

MIG_PROFILES = (  # name, id, instances, GiB, SMs, decoders, copy engines, JPEG, OFA, placements
    ("1g.18gb", 19, 7, "16.00", 16, 1, 1, 1, 0, "Placements: {0,1,2,3,4,5,6}:1"),
    ("1g.18gb+me", 20, 1, "16.00", 16, 1, 1, 1, 1, "Placements: {0,1,2,3,4,5,6}:1"),
    ("1g.35gb", 15, 4, "32.50", 26, 1, 1, 1, 0, "Placements: {0,2,4,6}:2"),
    ("2g.35gb", 14, 3, "32.50", 32, 2, 2, 2, 0, "Placements: {0,2,4}:2"),
    ("3g.71gb", 9, 2, "69.75", 60, 3, 3, 3, 0, "Placements: {0,4}:4"),
    ("4g.71gb", 5, 1, "69.75", 64, 4, 4, 4, 0, "Placement : {0}:4"),
    ("7g.141gb", 0, 1, "140.00", 132, 7, 8, 7, 1, "Placement : {0}:8"),
)

_GPU = """\t<gpu id="00000000:{bus}:00.0">
\t\t<product_name>NVIDIA H200</product_name>
\t\t<product_brand>NVIDIA</product_brand>
\t\t<product_architecture>Hopper</product_architecture>
\t\t<persistence_mode>Enabled</persistence_mode>
\t\t<mig_mode>
\t\t\t<current_mig>Disabled</current_mig>
\t\t\t<pending_mig>Disabled</pending_mig>
\t\t</mig_mode>
\t\t<mig_devices>
\t\t\tNone
\t\t</mig_devices>
\t\t<serial>16500000000{n:02d}</serial>
\t\t<uuid>GPU-00000000-0000-4000-8000-0000000000{bus}</uuid>
\t\t<minor_number>{n}</minor_number>
\t\t<vbios_version>96.00.A5.00.1A</vbios_version>
\t\t<gpu_part_number>2335-895-A1</gpu_part_number>
\t\t<platformInfo>
\t\t\t<module_id>{module}</module_id>
\t\t</platformInfo>
\t\t<gpu_virtualization_mode>
\t\t\t<virtualization_mode>None</virtualization_mode>
\t\t\t<host_vgpu_mode>N/A</host_vgpu_mode>
\t\t</gpu_virtualization_mode>
\t\t<pci>
\t\t\t<pci_bus>{bus}</pci_bus>
\t\t\t<pci_device>00</pci_device>
\t\t\t<pci_domain>0000</pci_domain>
\t\t\t<pci_device_id>233510DE</pci_device_id>
\t\t\t<pci_bus_id>00000000:{bus}:00.0</pci_bus_id>
\t\t\t<pci_sub_system_id>18BE10DE</pci_sub_system_id>
\t\t\t<pci_gpu_link_info>
\t\t\t\t<pcie_gen>
\t\t\t\t\t<max_link_gen>5</max_link_gen>
\t\t\t\t\t<current_link_gen>5</current_link_gen>
\t\t\t\t\t<device_current_link_gen>5</device_current_link_gen>
\t\t\t\t\t<max_device_link_gen>5</max_device_link_gen>
\t\t\t\t\t<max_host_link_gen>5</max_host_link_gen>
\t\t\t\t</pcie_gen>
\t\t\t\t<link_widths>
\t\t\t\t\t<max_link_width>16x</max_link_width>
\t\t\t\t\t<current_link_width>16x</current_link_width>
\t\t\t\t</link_widths>
\t\t\t</pci_gpu_link_info>
\t\t\t<replay_counter>0</replay_counter>
\t\t</pci>
\t\t<clocks_event_reasons>
\t\t\t<clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle>
\t\t\t<clocks_event_reason_sw_power_cap>Not Active</clocks_event_reason_sw_power_cap>
\t\t\t<clocks_event_reason_hw_slowdown>Not Active</clocks_event_reason_hw_slowdown>
\t\t\t<clocks_event_reason_hw_thermal_slowdown>Not Active</clocks_event_reason_hw_thermal_slowdown>
\t\t\t<clocks_event_reason_hw_power_brake_slowdown>Not Active</clocks_event_reason_hw_power_brake_slowdown>
\t\t\t<clocks_event_reason_sw_thermal_slowdown>Not Active</clocks_event_reason_sw_thermal_slowdown>
\t\t</clocks_event_reasons>
\t\t<fb_memory_usage>
\t\t\t<total>143771 MiB</total>
\t\t\t<reserved>616 MiB</reserved>
\t\t\t<used>0 MiB</used>
\t\t\t<free>143156 MiB</free>
\t\t</fb_memory_usage>
\t\t<bar1_memory_usage>
\t\t\t<total>262144 MiB</total>
\t\t\t<used>1 MiB</used>
\t\t\t<free>262143 MiB</free>
\t\t</bar1_memory_usage>
\t\t<compute_mode>Default</compute_mode>
\t\t<ecc_mode>
\t\t\t<current_ecc>Enabled</current_ecc>
\t\t\t<pending_ecc>Enabled</pending_ecc>
\t\t</ecc_mode>
\t\t<ecc_errors>
\t\t\t<volatile>
\t\t\t\t<sram_correctable>0</sram_correctable>
\t\t\t\t<sram_uncorrectable_parity>0</sram_uncorrectable_parity>
\t\t\t\t<sram_uncorrectable_secded>0</sram_uncorrectable_secded>
\t\t\t\t<dram_correctable>0</dram_correctable>
\t\t\t\t<dram_uncorrectable>0</dram_uncorrectable>
\t\t\t</volatile>
\t\t\t<aggregate>
\t\t\t\t<sram_correctable>0</sram_correctable>
\t\t\t\t<sram_uncorrectable_parity>0</sram_uncorrectable_parity>
\t\t\t\t<sram_uncorrectable_secded>0</sram_uncorrectable_secded>
\t\t\t\t<dram_correctable>0</dram_correctable>
\t\t\t\t<dram_uncorrectable>0</dram_uncorrectable>
\t\t\t</aggregate>
\t\t</ecc_errors>
\t\t<remapped_rows>
\t\t\t<remapped_row_corr>0</remapped_row_corr>
\t\t\t<remapped_row_unc>0</remapped_row_unc>
\t\t\t<remapped_row_pending>No</remapped_row_pending>
\t\t\t<remapped_row_failure>No</remapped_row_failure>
\t\t</remapped_rows>
\t\t<gpu_power_readings>
\t\t\t<power_state>P0</power_state>
\t\t\t<current_power_limit>700.00 W</current_power_limit>
\t\t\t<requested_power_limit>700.00 W</requested_power_limit>
\t\t\t<default_power_limit>700.00 W</default_power_limit>
\t\t\t<min_power_limit>200.00 W</min_power_limit>
\t\t\t<max_power_limit>700.00 W</max_power_limit>
\t\t</gpu_power_readings>
\t\t<gpu_recovery_action>None</gpu_recovery_action>
\t\t<temperature>
\t\t\t<gpu_temp>46 C</gpu_temp>
\t\t\t<gpu_temp_tlimit>42 C</gpu_temp_tlimit>
\t\t\t<memory_temp>46 C</memory_temp>
\t\t</temperature>
\t\t<clocks>
\t\t\t<graphics_clock>345 MHz</graphics_clock>
\t\t\t<sm_clock>345 MHz</sm_clock>
\t\t</clocks>
\t\t<applications_clocks>
\t\t\t<graphics_clock>1980 MHz</graphics_clock>
\t\t</applications_clocks>
\t\t<default_applications_clocks>
\t\t\t<graphics_clock>1980 MHz</graphics_clock>
\t\t</default_applications_clocks>
\t\t<max_clocks>
\t\t\t<sm_clock>1980 MHz</sm_clock>
\t\t</max_clocks>
\t\t<fabric>
\t\t\t<state>In Progress</state>
\t\t\t<status>N/A</status>
\t\t</fabric>
\t\t<processes>
\t\t</processes>
\t</gpu>

"""


def write_commands(tree: Tree) -> None:
    """Everything under `.hosttune/commands` that a capture of such a host would hold."""
    gpus = [function for function in functions() if function.driver == "nvidia"]
    base = ".hosttune/commands"
    tree.files[f"{base}/nvidia-smi-q-x"] = _query(gpus).encode()
    tree.files[f"{base}/nvidia-smi-topo-m"] = _matrix(gpus).encode()
    tree.files[f"{base}/nvidia-smi-nvlink-s"] = _nvlink(gpus).encode()
    tree.files[f"{base}/nvidia-smi-nvlink-e"] = _nvlink_errors(gpus).encode()
    tree.files[f"{base}/mig-lgip"] = _mig_profiles(len(gpus)).encode()
    tree.files[f"{base}/mig-lgipp"] = _mig_placements(len(gpus)).encode()


def _bus(function: Function) -> str:
    return function.address[5:7].upper()


def _query(gpus: list[Function]) -> str:
    parts = [_GPU.format(bus=_bus(gpu), n=n, module=MODULE_IDS[n]) for n, gpu in enumerate(gpus)]
    head = (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n<nvidia_smi_log>\n'
        "\t<driver_version>580.159.04</driver_version>\n\t<cuda_version>13.0</cuda_version>\n"
        f"\t<attached_gpus>{len(gpus)}</attached_gpus>\n"
    )
    return head + "".join(parts) + "</nvidia_smi_log>\n"


def _matrix(gpus: list[Function]) -> str:
    """`topo -m`: NVLink between GPUs; a GPU and the NIC on its switch are PIX, others of the node NODE, else SYS."""
    nics = [function for function in functions() if function.driver == "mlx5_core"]
    names = [f"GPU{n}" for n in range(len(gpus))] + [f"NIC{n}" for n in range(len(nics))]
    everyone = [*gpus, *nics]
    lines = ["\t" + "\t".join((*names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"))]
    for i, here in enumerate(everyone):
        row = [_cell(i, j, here, there, len(gpus)) for j, there in enumerate(everyone)]
        tail = [cpulist(here.node), str(here.node), "", "N/A"] if i < len(gpus) else []
        lines.append("\t".join((names[i], *row, *tail)))
    legend = "\n".join(f"  NIC{n}: mlx5_{n}" for n in range(len(nics)))
    return "\n".join(lines) + f"\n\nLegend:\n\n  X    = Self\n\nNIC Legend:\n\n{legend}\n"


def _cell(i: int, j: int, here: Function, there: Function, gpus: int) -> str:
    if i == j:
        return " X "
    if i < gpus and j < gpus:
        return f"NV{NVLINKS}"
    if here.path.split("/")[:3] == there.path.split("/")[:3]:
        return "PIX"
    return "NODE" if here.node == there.node else "SYS"


def _nvlink(gpus: list[Function]) -> str:
    lines: list[str] = []
    for n, gpu in enumerate(gpus):
        lines.append(f"GPU {n}: NVIDIA H200 (UUID: GPU-00000000-0000-4000-8000-0000000000{_bus(gpu)})")
        lines += [f"\t Link {link}: 26.562 GB/s" for link in range(NVLINKS)]
    return "\n".join(lines) + "\n"


def _nvlink_errors(gpus: list[Function]) -> str:
    """No error on any link."""
    lines: list[str] = []
    for n, gpu in enumerate(gpus):
        lines.append(f"GPU {n}: NVIDIA H200 (UUID: GPU-00000000-0000-4000-8000-0000000000{_bus(gpu)})")
        for link in range(NVLINKS):
            lines += [f"\t Link {link}: {counter} Errors: 0" for counter in ("Replay", "Recovery", "CRC")]
            lines.append("")
    return "\n".join(lines) + "\n"


def _mig_profiles(count: int) -> str:
    rule = "+" + "-" * 79 + "+\n"
    head = "".join(
        f"| {line:78}|\n"
        for line in (
            "GPU instance profiles:",
            "GPU   Name               ID    Instances   Memory     P2P    SM    DEC   ENC",
            "                               Free/Total   GiB              CE    JPEG  OFA",
        )
    )
    rows = []
    for gpu in range(count):
        for name, number, instances, memory, processors, decoders, copies, jpeg, ofa, _ in MIG_PROFILES:
            first = f"{gpu:3}  MIG {name:<15}{number:3}     {instances}/{instances}        {memory:<10} No     "
            first += f"{processors:<7}{decoders:<6}0"
            second = f"{copies:63}{jpeg:6}{ofa:6}"
            rows.append(f"| {first:<78}|\n| {second:<78}|\n{rule}")
    return rule + head + "|" + "=" * 79 + "|\n" + "".join(rows)


def _mig_placements(count: int) -> str:
    return "".join(
        f"GPU {gpu:2} Profile ID {number:2} {placements}\n"
        for gpu in range(count)
        for _, number, *_, placements in MIG_PROFILES
    )
