"""Records of the kernel log that tell of a fault, one row each: their form, what they mean, and what to do.

Discovery makes events of them, checks judge these, and the agent looks at the host again. Only makers' drivers have
their own (`gpu`). Sources are files of Linux 6.12 unless said; older words are beside the newer ones.
"""

from __future__ import annotations

from typing import NamedTuple

DRIVER_LOAD = "driver-load"  # kind of the record that a GPU driver was loaded: no fault
FULL = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_OF = rf"[\w-]{{1,32}} (?P<address>{FULL}): "  # dev_err and its like: driver, device
_IOMMU_OF = r"\[(?:0x)?(?P<address>[0-9a-f]{2}:(?:0x)?[0-9a-f]{2}\.[0-7])\]"
_MLX5 = rf"mlx5_core (?P<address>{FULL}): [a-z0-9_]{{1,40}}:[0-9]{{1,5}}:(?:\(pid [0-9]{{1,10}}\):)? ?"
_NVME = r"nvme nvme(?P<code>[0-9]{1,4}): "


class KernelLine(NamedTuple):
    """One form of record. `pattern`: from its start to the last word that is kept, with the groups address, code (a
    controller's number), severity, count where it has them. `wanted`: what finds it in a journal, without groups.

    `outcome`: of the check that judges it, fail or warn, with the event in words (`says`) and the `remedy`; "": another
    check judges its kind. `begins`: how such a record begins: one that begins so and does not match is damaged.
    """

    kind: str
    wanted: str
    pattern: str
    source: str
    severity: str | None = None
    begins: str = ""
    outcome: str = ""
    says: str = ""
    remedy: str = ""


_SEVERITY = r"(?P<severity>Correct(?:ed|able)|Uncorrect(?:ed|able) \((?:Non-Fatal|Fatal)\))"
# An address as records have it. The domain and the function may be missing.
LOGGED_ADDRESS = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_ANY = LOGGED_ADDRESS
_POWER = "power-cycle the host (a reboot may not be enough); if it comes back, update the firmware of device and board"
_SEAT = "if nobody pulled or powered it off: reseat the device, its riser or cables, and check its power"
_LOOKED = (
    # Judged by checks of their own.
    KernelLine("aer", "AER: |PCIe Bus Error",
               rf"(?i:\S{{1,64}} (?P<address>{_ANY}): (?:AER: )?PCIe Bus Error: severity={_SEVERITY})",
               "drivers/pci/pcie/aer.c; Linux 6.10 changed its words",
               begins=r"\S{1,40} [0-9a-fA-F:.]{7,16}: (?:AER: )?PCIe Bus Error: "),
    KernelLine("link-down", "[Ll]ink (is )?[Dd]own",
               rf"(?i:[\w-]{{1,32}} (?P<address>{_ANY}) [\w.-]{{1,16}}: (?:igb: [\w.-]{{1,16}} )?(?:NIC )?"
               r"Link (?:is )?down\b)",
               "netdev_info of network drivers: mlx5 (Link down), ixgbe, i40e, ice, igb (NIC Link is Down)"),
    KernelLine("dpc", "DPC: containment", rf"pcieport (?P<address>{_ANY}): (?:pciehp: )?DPC: containment event",
               "drivers/pci/pcie/dpc.c", severity="fatal"),
    KernelLine("mce", "mce: ",
               r"mce: (?:\[Hardware Error\]: CPU [0-9]{1,5}: Machine Check(?: Exception)?: [0-9a-f]{1,16} "
               r"Bank [0-9]{1,3}: [2367abef][0-9a-f]{15}|Uncorrected hardware memory error in user-access)",
               "arch/x86/kernel/cpu/mce/core.c; Intel SDM 3B 16.3.2.2: bit 61 of the bank's status is UC",
               severity="nonfatal"),
    KernelLine("mce", "mce: ", r"mce: \[Hardware Error\]: (?:CPU|Machine check)",  # also of corrected errors
               "arch/x86/kernel/cpu/mce/core.c"),
    KernelLine("mce", "Memory failure: ", r"Memory failure: 0x[0-9a-f]{1,16}: recovery action for ",
               "mm/memory-failure.c, action_result", severity="nonfatal"),
    KernelLine("mce", r"\[Hardware Error\]",
               r"\[Hardware Error\]: (?:Uncorrected, software|Deferred error|System Fatal error)",
               "drivers/edac/mce_amd.c, decode_error_status", severity="nonfatal"),
    KernelLine("mce", r"\[Hardware Error\]",
               r"\{[0-9]+\}\[Hardware Error\]: *event severity: (?P<severity>fatal|recoverable|corrected)",
               "drivers/firmware/efi/cper.c", begins=r"\{[0-9]{1,9}\}\[Hardware Error\]: *event severity: (?!info\b)"),
    KernelLine("edac-mc", "EDAC (MC|DEVICE)[0-9]", r"EDAC MC(?P<code>[0-9]{1,4}): Giving out device ",
               "drivers/edac/edac_mc.c"),
    KernelLine("edac", "EDAC (MC|DEVICE)[0-9]",
               r"EDAC (?:MC|DEVICE)(?P<code>[0-9]{1,4}): (?:(?P<count>[0-9]{1,9}) )?(?P<severity>[CU]E)\b",
               "drivers/edac/{edac_mc,edac_device}.c", begins=r"EDAC (?:MC|DEVICE)[0-9]{1,4}: [0-9]"),
)  # fmt: skip
_JUDGED = (
    KernelLine("reset-failed", "; giving up", rf"{_OF}not ready [0-9]{{1,7}}ms after [\w -]{{1,32}}; giving up",
               "drivers/pci/pci.c, pci_dev_wait", outcome="fail",
               says="does not answer after a reset", remedy=f"{_POWER}; a model that has no reset that works: another"
               " reset_method, vendor-reset for the GPUs that it knows, or one guest for good"),
    KernelLine("reset-failed", "device inaccessible",
               rf"{_OF}Unable to change power state from [\w-]{{1,8}} to D0, device inaccessible",
               "drivers/pci/pci.c, pci_power_up", outcome="fail",
               says="cannot be woken", remedy=_POWER),
    KernelLine("reset-failed", "config space inaccessible|[Rr]efused to change power",
               rf"{_OF}(?:can't change power state from [\w-]{{1,8}} to D0 \(config space inaccessible\)|"
               r"[Rr]efused to change power state(?:, currently in D3| from D3[a-z]{3,4} to D0))",
               "drivers/pci/pci.c; the first before 5.19, `currently` before 5.6", outcome="fail",
               says="cannot be woken", remedy=_POWER),
    KernelLine("bar-unassigned", "no space", rf"{_OF}BAR [0-5](?: \[mem [^\]]{{1,64}}\]: can't assign; no space|"
               r": no space for \[mem )", "drivers/pci/setup-res.c, pci_assign_resource; before 6.9: no space for",
               outcome="fail", says="a BAR found no address",
               remedy="host: Above 4G Decoding and Resizable BAR in the firmware, or boot with pci=realloc; guest: UEFI"
               " firmware and a 64-bit window that holds its BARs (hosttune plan computes it)"),
    KernelLine("bar-busy", "can't reserve", rf"vfio-pci (?P<address>{FULL}): BAR [0-6]: can't reserve \[",
               "drivers/pci/pci.c, __pci_request_region", outcome="fail",
               says="something else holds a BAR that VFIO needs",
               remedy="see what holds it in /proc/iomem; a console of the firmware (BOOTFB, vesafb, efifb) goes"
               " with initcall_blacklist=sysfb_init, or by making another GPU the boot display"),
    KernelLine("iommu-refused", "platform RMRR requirement|1:1 IOMMU mapping",
               rf"{_OF}(?:DMAR: )?(?:Device is ineligible for IOMMU domain attach due to platform RMRR requirement|"
               r"Firmware has requested this device have a 1:1 IOMMU mapping, rejecting)",
               "drivers/iommu/intel/iommu.c; drivers/iommu/iommu.c, iommu_create_device_direct_mappings",
               outcome="fail", says="the IOMMU refused it to a guest: the firmware keeps memory for it",
               remedy="switch off in the firmware what uses the device (shared memory of the BMC, option ROM), update"
               " it, or use the device on the host"),
    KernelLine("iommu-fault", "Request device ",
               rf"DMAR: ?\[(?:DMA (?:Read|Write)(?: NO_PASID| PASID 0x[0-9a-f]{{1,8}})?|INTR-REMAP)\] Request device "
               rf"{_IOMMU_OF}", "drivers/iommu/intel/dmar.c, dmar_fault_do_one", outcome="warn",
               says="its memory access or interrupt was refused by the IOMMU",
               remedy="of a passed device: its guest's driver used memory that it does not have (look in the guest);"
               " of a GPU or NIC that the host uses: boot with iommu=pt (copies between GPUs: or with the IOMMU off),"
               " and update its driver and firmware"),
    KernelLine("iommu-fault", "IO_PAGE_FAULT", rf"(?:{_OF})?AMD-Vi: Event logged \[IO_PAGE_FAULT domain=",
               "drivers/iommu/amd/iommu.c, amd_iommu_report_page_fault", outcome="warn"),
    KernelLine("iommu-fault", "IO_PAGE_FAULT|INVALID_DEVICE_REQUEST",
               r"(?:iommu ivhd[0-9]{1,3}: )?AMD-Vi: Event logged \[(?:IO_PAGE_FAULT|INVALID_DEVICE_REQUEST) "
               rf"device=(?P<address>{_ANY}) ", "the same", outcome="warn"),
    KernelLine("iommu-timeout", "IOTLB_INV_TIMEOUT|Completion-Wait loop|Invalidation Time-out Error: ",
               rf"(?:iommu ivhd[0-9]{{1,3}}: )?AMD-Vi: Event logged \[IOTLB_INV_TIMEOUT device=(?P<address>{_ANY}) |"
               r"AMD-Vi: Completion-Wait loop timed out|DMAR: VT-d detected Invalidation Time-out Error: ",
               "drivers/iommu/amd/iommu.c; drivers/iommu/intel/dmar.c, qi_check_fault", outcome="fail",
               says="the IOMMU waited in vain for a device that hangs", remedy=_POWER),
    KernelLine("nic-health", "device's health compromised|Fatal error [0-9]+ detected|initializing state, aborting",
               rf"{_MLX5}(?:device's health compromised - reached miss count|Fatal error [0-9]{{1,5}} detected|"
               r"Firmware over [0-9]{1,10} MS in (?:pre-)?initializing state, aborting)",
               "drivers/net/ethernet/mellanox/mlx5/core/{health,main}.c, poll_health, mlx5_function_enable",
               outcome="fail",
               says="its firmware stopped answering",
               remedy="reset the NIC (mlxfwreset -d ADDRESS reset) or power-cycle the host; update its firmware if it"
               " comes back"),
    KernelLine("nic-issue", "Health issue observed|Will cause a leak of a command resource",
               rf"{_MLX5}(?:Health issue observed, [^,\n]{{1,80}}, severity\([0-4]\)|(?:cmd\[[0-9]{{1,4}}\]: )?"
               r"[A-Z0-9_]{1,40}\(0x[0-9a-f]{1,4}\)[^\n]{0,40} timeout\. Will cause a leak of a command resource)",
               "drivers/net/ethernet/mellanox/mlx5/core/{health,cmd}.c, print_health_info, wait_func", outcome="warn",
               says="its firmware reports an issue, or did not answer a command",
               remedy="read the lines below it in dmesg; update the NIC's firmware"),
    KernelLine("nic-hot", "High temperature on sensors",
               rf"{_MLX5}High temperature on sensors with bit set (?:0x)?[0-9a-f]{{1,16}} ",
               "drivers/net/ethernet/mellanox/mlx5/core/events.c, temp_warn", outcome="warn",
               says="it was too hot", remedy="check fans, air flow and the inlet temperature"),
    KernelLine("nic-module", r"Port module event\[error\]",
               rf"mlx5_core (?P<address>{FULL}): (?:[a-z0-9_]{{1,40}}:[0-9]{{1,5}}:(?:\(pid [0-9]{{1,10}}\):)? ?)?"
               r"Port module event\[error\]: module [0-9]{1,3}, [^,\n]{1,60}, [^\n]{1,60}",
               "drivers/net/ethernet/mellanox/mlx5/core/events.c, port_module", outcome="warn",
               says="a module or cable of a port reports an error",
               remedy="read which in dmesg: where it is too hot check the air flow, else reseat or replace it"),
    KernelLine("nic-power", "Detected insufficient power", rf"{_MLX5}Detected insufficient power on the PCIe slot",
               "drivers/net/ethernet/mellanox/mlx5/core/events.c, mlx5_pcie_event", outcome="warn",
               says="its slot gives too little power",
               remedy="put it into a slot that gives the power it needs, or connect its power cable"),
    KernelLine("nic-timeout", "TX timeout detected|NETDEV WATCHDOG: ",
               rf"[\w-]{{1,32}} (?P<address>{FULL}) [\w.-]{{1,16}}: (?:TX timeout detected|NETDEV WATCHDOG: )|"
               r"NETDEV WATCHDOG: [\w.-]{1,16} \([\w-]{0,32}\): transmit queue ",
               "net/sched/sch_generic.c, dev_watchdog, other words since 6.9; mlx5/core/en_main.c", outcome="warn",
               says="a network port could not send for seconds",
               remedy="read the lines below it in dmesg; update the NIC's driver and firmware"),
    KernelLine("nvme-dead", "after probe failure|after reset failure|Device not ready; aborting",
               rf"{_NVME}(?:Removing after probe failure|Disabling device after reset failure|"
               r"Device not ready; aborting (?:reset|initialisation))",
               "drivers/nvme/host/{core,pci}.c; Linux 6.2 changed Removing to Disabling", outcome="fail",
               says="the drive stopped answering and was given up",
               remedy="power-cycle the host; if it comes back, replace the drive"),
    KernelLine("nvme-timeout",
               "timeout, (aborting|(reset|disable) controller|completion polled)|controller is down; will reset",
               rf"{_NVME}(?:I/O (?:tag )?[0-9]{{1,6}} [^\n]{{0,90}}?timeout, (?:aborting|reset|disable|completion p)|"
               r"controller is down; will reset)", "drivers/nvme/host/pci.c, nvme_timeout", outcome="warn",
               says="the drive timed out", remedy="nvme smart-log /dev/nvmeN; update the drive's firmware, or boot with"
               " nvme_core.default_ps_max_latency_us=0 if it fails when it wakes; `completion polled`: its interrupts"
               " get lost"
               " (of a guest see the host's interrupt remapping)"),
    KernelLine("nvme-media", "critical medium error",
               r"(?:blk_update_request: )?critical medium error, dev nvme(?P<code>[0-9]{1,4})n",
               "block/blk-core.c; before 5.16 with the function's name", outcome="warn",
               says="the drive could not read its medium",
               remedy="nvme smart-log /dev/nvmeN; copy what is on it, and replace the drive"),
    KernelLine("link-lost", "retraining failed|Link Layer Link Active not set",
               rf"pcieport (?P<address>{FULL}): (?:retraining failed|"
               r"Data Link Layer Link Active not set in [0-9]{1,6} msec)",
               "drivers/pci/{quirks,pci}.c, pcie_failed_link_retrain, pci_bridge_wait_for_secondary_bus",
               outcome="warn", says="the link below it did not come up", remedy=_SEAT),
    KernelLine("slot-event", r"pciehp: Slot\(",
               rf"pcieport (?P<address>{FULL}): pciehp: Slot\([^)\n]{{1,20}}\): "
               r"(?:Link Down|Card not present|Power fault)",
               "drivers/pci/hotplug/{pciehp_ctrl,pciehp_hpc}.c", outcome="warn",
               says="the slot below it lost its device or its power", remedy=_SEAT),
    KernelLine("cpu-stall", "soft lockup|hard LOCKUP|INFO: rcu_",
               r"(?:NMI )?(?:watchdog: )?(?:BUG: soft lockup - CPU#[0-9]{1,5} stuck for [0-9]{1,7}s!|"
               r"(?:CPU[0-9]{1,5}: )?Watchdog detected hard LOCKUP on cpu [0-9]{1,5})|"
               r"(?:rcu: )?INFO: rcu_[a-z]{1,16} (?:self-detected stall on CPU|"
               r"detected (?:expedited )?stalls on CPUs/tasks)",
               "kernel/watchdog.c, kernel/rcu/tree_stall.h", outcome="warn", says="a CPU did nothing else for seconds",
               remedy="read the stack below it in dmesg; keep host tasks off the CPUs of guests; update the kernel"),
    KernelLine("task-hung", "blocked .*for more than [0-9]+ seconds",  # what is kept has no name of a process
               r"INFO: task (?:(?=[^\n]{1,24}:[0-9]{1,10} blocked [^\n]{0,40}for more than [0-9])|$)",
               "kernel/hung_task.c, check_hung_task", outcome="warn", says="a task hung for minutes in the kernel",
               remedy="read its name and stack in dmesg: a driver or a drive that does not answer keeps it"),
    KernelLine("kernel-oops", r"\[#[0-9]+\]",
               r"(?:Internal error: )?(?:Oops|int3|[a-z][a-z ,-]{3,60})[^\n]{0,90}: [0-9a-f]{1,16} \[#[0-9]{1,4}\]",
               "arch/x86/kernel/dumpstack.c, __die_header; arch/arm64/kernel/traps.c, __die", outcome="fail",
               says="the kernel itself failed (oops)",
               remedy="reboot before the next tenant: its state is unknown now; read the stack in dmesg and update the"
               " kernel or the driver that it names"),
    KernelLine("oom-guest", "Killed process",
               r"(?:Memory cgroup o|O)ut of memory: Killed process [0-9]{1,10} \((?:qemu|kvm\))",
               "mm/oom_kill.c, __oom_kill_process", outcome="fail", says="the kernel killed a QEMU: memory ran out",
               remedy="plan again with a larger reserve (reserve: {memory_per_node: SIZE}), or with smaller guests"),
    KernelLine("oom", "Out of memory", r"Out of memory: Killed process [0-9]{1,10} ",
               "mm/oom_kill.c, __oom_kill_process", outcome="warn", says="the kernel killed a process: memory ran out",
               remedy="see which one in dmesg; plan again with a larger reserve (reserve: {memory_per_node: SIZE})"),
    KernelLine("cpu-hot", "above threshold, cpu clock",
               r"(?:mce: )?CPU[0-9]{1,5}: (?:Core|Package) temperature (?:is )?above threshold, "
               r"cpu clock (?:is )?throttled",
               "therm_throt.c of drivers/thermal", outcome="warn", says="a CPU was too hot and ran slower",
               remedy="check fans, air flow, heat sinks and the power profile of the BMC"),
)  # fmt: skip
LINES = (*_LOOKED, *_JUDGED)
