"""Lines of kernel drivers, their installers and firmware, of boards and their logs (BMC): what failed, and what to do.

They are rows as in `faultlines`, before which they come. Of faults that discovery knows the rows are in
`hosttune.linux.kernellines` and with the makers' drivers.
"""

from __future__ import annotations

from hosttune.rules.causes.faultlines import FaultLine

_OPEN = "NVIDIA/open-gpu-kernel-modules, src:"
_NVRM = "NVIDIA/open-gpu-kernel-modules kernel-open/nvidia/nv.c, nv_start_device"
_SEL = "ipmitool sel list; IPMI specification 2.0, table 42-3"
_RESET_REASON = r"Previous system reset reason \[0x[0-9a-f]{1,8}\]: "
_LATER = r"(?![\s\S]{0,2000}?(?:Deasserted|Fully Redundant))"
# The root first.
DRIVER_LINES: tuple[FaultLine, ...] = (
    # The board and its parts
    FaultLine(rf"{_RESET_REASON}(?:thermal pin|internal CPU thermal)[^\n]{{0,60}}"
              r"|Processor[^|\n]{0,40}\| Thermal Trip\b[^\n]{0,30}"
              r"|thermal thermal_zone\d{1,2}: (?:\w{1,16}: )?critical temperature reached[^\n]{0,40}",
              "heat switched the host off",
              "check fans, air flow, heat sinks of the CPUs and the inlet temperature; the BMC's log has the sensor",
              f"Linux arch/x86/kernel/cpu/amd.c, drivers/thermal/thermal_core.c; {_SEL}"),
    FaultLine(rf"{_RESET_REASON}(?:an uncorrected error|a parity error|internal CPU shutdown)[^\n]{{0,60}}"
              r"|Kernel panic - not syncing: (?:Fatal (?:local )?machine check"
              r"|Fatal hardware error)[^\n]{0,60}"
              r"|Uncorrectable Machine Check Exception \([^\n]{1,80}"
              r"|Processor[^|\n]{0,40}\| (?:IERR|Machine Check Exception|Uncorrectable machine check)[^\n]{0,30}",
              "an uncorrected error of the hardware stopped the host",
              "the BMC's event log and ras-mc-ctl --errors name the part (memory module, CPU, PCIe slot); update the"
              " board's firmware, and replace the part if it comes back",
              f"Linux arch/x86/kernel/cpu/amd.c and mce/core.c; {_SEL}"),
    FaultLine(rf"{_RESET_REASON}hardware watchdog[^\n]{{0,40}}|Watchdog ?\d?[^|\n]{{0,40}}\| Hard reset[^\n]{{0,30}}",
              "the watchdog reset the host: it hung",
              "the last lines before it (journalctl -b -1, the BMC's console) say what hung",
              f"Linux arch/x86/kernel/cpu/amd.c; {_SEL}"),
    FaultLine(r"Memory[^|\n]{0,40}\|[^|\n]{0,20}Uncorrectable ECC[^\n]{0,80}|Uncorrectable Memory Error \([^\n]{1,60}"
              r"|Multi-bit memory errors detected on[^\n]{1,80}",
              "a memory module had an uncorrected error",
              "replace the module that the line names; a bank that is taken out after a boot leaves less memory",
              f"{_SEL}; HPE IML and Dell SEL wordings"),
    FaultLine(r"Memory[^|\n]{0,40}\|[^|\n]{0,20}Correctable ECC[^|\n]{0,30}(?:logging )?limit[^\n]{0,60}",
              "a memory module corrects more errors than its limit",
              "replace the module that the line names before its errors are no longer corrected",
              _SEL),
    FaultLine(r"Power Supply[^|\n]{0,40}\|[^|\n]{0,24}(?:AC lost|Failure detected|[Ii]nput lost|Predictive failure)"
              rf"[^|\n]{{0,40}}\| Asserted{_LATER}"
              rf"|Power Unit[^|\n]{{0,40}}\| (?:Redundancy Lost|Soft-power control failure)"
              rf"[^|\n]{{0,30}}\| Asserted(?=[\s\S]{{0,4000}}?Power Supply){_LATER}"
              r"|Presence detected, (?:[\w ]{1,30}, )?(?:Failure detected|Power Supply AC lost)[^\n]{0,40}"
              r"|\|[ \t]{0,4}(?:Power Supply AC lost|Failure detected|AC lost or out-of-range)[ \t]{0,4}\|"
              r"[ \t]{0,4}Asserted(?![\s\S]{0,40000}?(?:AC lost|Failure detected|out-of-range)[ \t]{0,4}\| Deasserted)",
              "a power supply of the host failed, or has no input",
              "plug or replace it, and see its circuit: with fewer supplies the board brakes or resets GPUs under load",
              _SEL),
    FaultLine(r"Temperature[^|\n]{0,40}\| Upper (?:Critical|Non-recoverable) going high[^|\n]{0,20}\| Asserted"
              rf"{_LATER}",
              "a sensor of the host is too hot",
              "check fans, air flow and the inlet temperature at the place that the sensor names",
              _SEL),
    FaultLine(r"Fan[^|\n]{0,40}\| Lower (?:Critical|Non-recoverable) going low[^|\n]{0,20}\| Asserted" + _LATER
              + r"|\b[\d.]{1,9} {1,8}\| RPM {1,20}\| (?:cr|nr)\b[^\n]{0,30}|\b\d{1,5} RPM {1,20}\| (?:cr|nr)\b",
              "a fan of the host stands still or is too slow",
              "replace it; until then lower the load of the GPUs behind it",
              _SEL),
    FaultLine(r"Critical Interrupt[^|\n]{0,40}\|[^|\n]{0,4}(?:PCI (?:SERR|PERR)|Bus (?:Uncorrectable|Fatal) [Ee]rror"
              r"|Bus Degraded)[^\n]{0,60}"
              r"|Uncorrectable PCI Express Error Detected\. [^\n]{1,80}",
              "the board saw an uncorrected error of a PCIe device",
              "reseat or replace the device in the slot that the event names, its riser and cables; AER lines in dmesg"
              " of that time",
              _SEL),
    # Drivers that are not built, not taken, or of another age
    FaultLine(r"Nouveau kernel driver\s{1,20}is\s{1,20}currently\s{1,20}in use by your system",
              "another driver of the host (nouveau) has the GPU: the installer cannot go on",
              "blacklist nouveau (options nouveau modeset=0), update-initramfs -u or dracut -f, reboot, then install",
              "NVIDIA/nvidia-installer misc.c, check_for_nouveau"),
    FaultLine(r"(?:An NVIDIA kernel module '[\w-]{1,20}' appears to (?:be )?already (?:be )?loaded"
              r"|You appear to be running an X\s{1,20}server)[^\n]{0,60}",
              "the driver that is to be replaced is in use",
              "end what uses the GPUs (desktop, nvidia-persistenced, DCGM, containers) and unload it (modprobe -r"
              " nvidia_drm nvidia_uvm nvidia), or reboot; then install",
              "NVIDIA/nvidia-installer kernel.c, check_for_loaded_kernel_module"),
    FaultLine(r"The installation was canceled due to the availability or presence of an alternate driver[^\n]{0,20}",
              "the distribution has its own package of the driver, and the installer leaves it the way",
              "install that package, or remove it first; never both",
              "NVIDIA/nvidia-installer misc.c"),
    FaultLine(r"/lib/modules/[^\s:]{1,80}/(?:build|source): No such file[^\n]{0,20}"
              r"|include/generated/autoconf\.h or include/config/auto\.conf are missing"
              r"|The kernel header file '[^'\n]{1,120}' does not exist|Kernel source path '[^'\n]{1,120}' does not"
              r" exist"
              r"|do not appear to have libc header files",
              "a kernel module cannot be built: the headers of the kernel that runs are missing or not complete",
              "install the headers of exactly this kernel (linux-headers-$(uname -r), kernel-devel-$(uname -r)), with"
              " compiler and make; then dkms autoinstall",
              "NVIDIA/nvidia-installer kernel.c; Linux Makefile"),
    FaultLine(r"does not exactly match the current compiler[^\n]{0,30}",
              "a kernel module is built with another compiler than the kernel",
              "install the compiler that /proc/version names and build with it (CC=gcc-12)",
              "NVIDIA/nvidia-installer conftest.sh, cc_version_check"),
    FaultLine(r"BUILD_EXCLUSIVE directive which does not match[^\n]{0,40}",
              "the module's package does not take this kernel",
              "take a release of the driver that knows this kernel, or boot a kernel that it knows (dkms status)",
              "dkms(8), BUILD_EXCLUSIVE_KERNEL"),
    FaultLine(r"uname -r\s{1,4}(\d\.\d{1,2}[\w.+-]{1,40})\n(?=[\s\S]{0,8000}?(?m:^)nvidia\S{0,20}[/,] ?\S{1,30},"
              r" [\w.+-]{5,60}, \w{3,8}: installed)(?![\s\S]{0,8000}?, \1, \w{3,8}: installed)"
              r"(?=[\s\S]{0,8000}?(?:couldn't communicate with the|Module nvidia not found))",
              "the driver's module is built for another kernel than the one that runs",
              "install this kernel's headers and build it (dkms autoinstall -k $(uname -r)), or boot the kernel that"
              " dkms status names",
              "dkms(8)"),
    FaultLine(r"couldn't communicate with the NVIDIA driver",
              "another driver of the host (nouveau) has the GPU",
              "blacklist nouveau (options nouveau modeset=0), update-initramfs -u or dracut -f, and reboot",
              "NVIDIA driver README, nouveau", beside=r"(?m:^)nouveau {1,24}\d{5,9} {1,8}\d"),
    FaultLine(r"Failed to install the kernel module through DKMS"
              r"|make\[\d\]: \*\*\* \[(?:/usr/src/linux-|/usr/lib/modules/|/lib/modules/|scripts/Makefile\.build)"
              r"[^]\n]{1,160}\] Error \d{1,3}|Failed to run `[^`\n]{0,20}dkms (?:build|install)"
              r"[^`\n]{0,60}|DKMS: install failed",
              "a kernel module could not be built for this kernel",
              "its make.log has the first error: take a driver release that knows this kernel, or an older kernel;"
              " headers and compiler must be those of the kernel",
              "NVIDIA/nvidia-installer misc.c, dkms_install_module"),
    FaultLine(r"kernel modules are incompatible with the GPU\(s\) detected on this system"
              r"|This system requires the open GPU kernel modules",
              "the kind of the driver's modules, open or closed, does not fit the GPUs",
              "from Blackwell on the open modules (-m=kernel-open, nvidia-open), before Turing the closed ones",
              "NVIDIA/nvidia-installer kernel.c; NVIDIA driver README, Open Linux Kernel Modules"),
    FaultLine(r"You do not appear to have an NVIDIA GPU\s{1,20}supported by[^\n]{0,60}",
              "the driver's installer sees no GPU that this release supports",
              "lspci -nn | grep 10de: without a line the GPU is not there (or not given to this guest); else take the"
              " branch that supports it",
              "NVIDIA/nvidia-installer misc.c"),
    FaultLine(r"Your graphics device [0-9a-f]{4} is not (?:officially|properly) supported[^\n]{0,60}",
              "this kernel's driver does not know the Intel GPU yet",
              "take a newer kernel, or boot with xe.force_probe=ID (i915.force_probe=ID) of the line",
              "Linux drivers/gpu/drm/xe/xe_pci.c, i915/i915_pci.c"),
    FaultLine(r"Unsupported GuC v[\d.]{3,12}! v[\d.]{3,12} or newer is required"
              r"|GuC firmware \S{1,60} unexpected version: [^\n]{1,60}",
              "the GPU's firmware file (GuC) is older than the kernel's driver needs",
              "install a newer linux-firmware and update the initramfs",
              "Linux drivers/gpu/drm/xe/xe_uc_fw.c"),
    FaultLine(r"G[Uu]C:? (?:firmware )?load failed[:, ][^\n]{0,80}",
              "the GPU's firmware (GuC) did not start",
              "take another release of it (linux-firmware) and of the kernel; power-cycle the host; where it began with"
              " a resized BAR, switch Resizable BAR off in the firmware to compare",
              "Linux drivers/gpu/drm/i915/gt/uc/intel_guc_fw.c, xe/xe_guc.c; ipex-llm issue 12122"),
    FaultLine(r"DDP package (?:file was not found|could not be (?:read|loaded))[^\n]{0,60}"
              r"|(?:The|An error occurred while loading the) DDP package[^\n]{0,80}Entering Safe Mode",
              "the NIC's driver (ice) runs in safe mode: its DDP package is missing or does not fit",
              "install linux-firmware with intel/ice/ddp/ice.pkg (firmware-intel-misc), also in the initramfs, and"
              " load ice anew: until then no RDMA, one queue and no SR-IOV",
              "Linux drivers/net/ethernet/intel/ice/ice_main.c, ice_log_pkg_init; lxc/incus-os issue 1305"),
    FaultLine(r"\b([a-z]\w{1,19}) [0-9a-f]{4}:[0-9a-f:.]{7}: Direct firmware load for \S{4,90} failed with error -2"
              r"(?![\s\S]{0,2000}?(?:Failed to load (?:\w{1,12} )?firmware|: fetch failed))"
              r"(?=[\s\S]{0,4000}?(?:\b\1(?: [0-9a-f:.]{12})?: probe (?:of \S{7,16}|with driver \w{2,20}) failed with"
              r" error -(?:2|11)\b"
              r"|Fatal error during GPU init|Failed to initialize uC))"
              r"|nouveau [0-9a-f:.]{7,16}: (?:gsp ctor failed: -2|acr: failed to load firmware)",
              "a firmware file that a driver needs is missing",
              "install linux-firmware (or the maker's firmware package) that has the file, update the initramfs, and"
              " load the driver again",
              "Linux drivers/base/firmware_loader/main.c; sof linux pull request 5196"),
    # GPUs
    FaultLine(r"[Ff]ailed to copy vbios to system memory",
              "a GPU's driver cannot read the GPU's VBIOS",
              "give the guest a dump of it (<rom file='…'/>) and UEFI firmware; on the host power-cycle it, and keep"
              " a GPU"
              " that sleeps awake; of a notebook it lies in ACPI tables",
              "Bumblebee issue 204; NVIDIA/open-gpu-kernel-modules osinit.c: 0x30 VBIOS"),
    FaultLine(r"IB test failed on \w[\w.]{1,20} \(-\d{1,3}\)",
              "a GPU's engines do not answer: its driver's test at start failed",
              "boot with iommu=pt; update the board's firmware, linux-firmware and the kernel together; power-cycle the"
              " host; compare with another slot",
              "Linux drivers/gpu/drm/amd/amdgpu/amdgpu_ib.c, amdgpu_ib_ring_tests; ROCm_Documentation issue 107"),
    FaultLine(r"kfd not supported on this ASIC(?=[\s\S]{0,8000}?(?:Call returned|HSA_STATUS_ERROR|No HIP|no ROCm))",
              "the GPUs' compute driver does not support a GPU: its model, or a CPU or slot without PCIe atomics",
              "take a model of ROCm's list (system requirements) and a CPU of Intel's 4th generation or Ryzen on, in a"
              " slot at the CPU",
              "Linux drivers/gpu/drm/amd/amdkfd/kfd_device.c; ROCm/amdgpu issue 57"),
    FaultLine(r"(?:LMEM|VRAM) not initialized by firmware",
              "an Intel GPU's memory was not set up by its firmware",
              "power-cycle the host (a reboot is not enough); update the card's firmware and the board's; replace it"
              " if it"
              " comes back",
              "Linux drivers/gpu/drm/i915/intel_uncore.c, xe/xe_device.c"),
    FaultLine(r"knvlinkCoreSet[TR]xSublinkModeCallback\w{0,8}: Error setting[^\n]{0,60}"
              r"|knvlink(?:Train|CoreSet)\w{4,48}: [^\n]{0,60}(?:[Ff]ailed|[Ee]rror)[^\n]{0,60}"
              r"|nvlink_\w{4,48}: [^\n]{0,60}[Tt]raining [^\n]{0,20}failed[^\n]{0,60}"
              r"|Unable to train an intranode connection"
              r"|Failed to change ALI Links to active|Unable to set (?:sub)?link state to (?:ACTIVE|HIGH"
              r" SPEED)[^\n]{0,40}"
              r"|ALI Error for GPU \d{1,2}::linkId \d{1,2}",
              "links between GPUs do not train: NVLink does not come up",
              "power the host off, reseat the bridge (of the right width) or exchange it, and try the other pair of"
              " cards; on a board with switches read SXIDs and Fabric Manager's log, and power-cycle it",
              f"{_OPEN} kernel_nvlinkcorelibcallback.c, nvlink_training.c"),
    FaultLine(r"Failed to recover from uncontained NVLINK error[^\n]{0,40}",
              "an NVLink error was not contained: the GPU's links are off until it is reset",
              "end what uses the GPUs and reset them; read the XIDs (144 to 150) of that time",
              f"{_OPEN} kernel_nvlink.c"),
    FaultLine(r"no NVSwitch connectivity to the GPU[^\n]{0,20}",
              "a GPU is not joined to the NVSwitches",
              "start Fabric Manager of the driver's version and read its log; a switch or link that is missing: SXIDs",
              f"{_OPEN} kernel_nvlink_gv100.c"),
    FaultLine(r"not all local fabric manager instances finished their configuration",
              "Fabric Manager waited in vain for the GPUs' part: it was started before they were ready, or one failed",
              "start it after the driver has set the GPUs up (systemctl restart nvidia-fabricmanager); if it fails"
              " again, nvidia-smi -q (Fabric) and dmesg show the GPU",
              "NVIDIA Fabric Manager's log, as in pytorch/ci-infra pull request 552"),
    FaultLine(r"numa memblock size of zero found during device start",
              "the kernel cannot add the GPU's memory: it lacks memory hotplug",
              "boot a kernel with CONFIG_MEMORY_HOTPLUG and pages as NVIDIA names for this superchip (64K)",
              _NVRM),
    FaultLine(r"XGMI: (?:Get topology failure|Set topology failure|Failed to (?:get|set|initialize))[^\n]{0,80}"
              r"|Failed to (?:get|update) xgmi topology[^\n]{0,40}",
              "the links between AMD GPUs (XGMI) were not set up",
              "see whether a GPU of the set did not start; power-cycle the host; update the boards' firmware; a bridge"
              " can be defective",
              "Linux drivers/gpu/drm/amd/amdgpu/amdgpu_xgmi.c"),
    FaultLine(r"Fan RPM: 0\b(?=[\s\S]{0,600}?Temperature \(Sensor \w{1,12}\) \(C\): 1\d\d\b)",
              "a GPU is too hot, and its fan stands still",
              "power the host off: see the fan and its plug; where the driver's and the card's firmware do not fit (SMU"
              " driver if version not matched) update both",
              "ROCm/rocm_smi_lib rocm_smi.py; ROCm/legacy-rocm-build issue 5908"),
    FaultLine(r"RAS poison consumption[^\n]{0,80}|RAS poison is consumed[^\n]{0,40}",
              "a program used memory of a GPU that had an uncorrected error",
              "see amd-smi bad-pages and the lines below it (reset); reset the GPU before the next tenant, and"
              " replace it"
              " if it comes back",
              "Linux drivers/gpu/drm/amd/amdkfd/kfd_int_process_v9.c, event_interrupt_poison_consumption_v9"),
    FaultLine(r"Received H/W interrupt \d{1,5} \[\"[A-Z0-9_]{0,30}(?:SEVERE|DERR|FATAL|UNCORRECT)[A-Z0-9_]{0,30}\"\]",
              "an accelerator reports an uncorrected error of its hardware",
              "read the lines below it; reset or power-cycle it, and replace it if it comes back",
              "Linux drivers/accel/habanalabs/gaudi2/gaudi2.c, gaudi2_print_event"),
    # NICs and drives
    FaultLine(r"unsupported SFP\+? ?(?:or QSFP )?module type was detected|module type is not supported on this device"
              r"|Rx/Tx is disabled on this device because (?:an unsupported|the module)[^\n]{0,60}",
              "the NIC's driver refuses the module in its port",
              "take a module or cable of the maker's list; ixgbe takes others with allow_unsupported_sfp=1 (of Intel's"
              " own driver 1,1: one a port)",
              "Linux drivers/net/ethernet/intel/ixgbe/ixgbe_main.c, i40e/i40e_main.c"),
    FaultLine(r"The (?:NVM|EEPROM) Checksum Is Not Valid",
              "the NIC's own memory (NVM) is damaged",
              "write its NVM anew with the maker's tool (nvmupdate, eeupdate), or replace the NIC; of a passed one try"
              " a power cycle first",
              "Linux drivers/net/ethernet/intel/igb/igb_main.c, e1000e, ixgbe"),
    FaultLine(r"Firmware recovery mode detected[^\n]{0,60}",
              "the NIC's firmware is damaged: it is in recovery mode",
              "power-cycle the host, then write its firmware anew (nvmupdate)",
              "Linux drivers/net/ethernet/intel/{i40e,ice,ixgbe}"),
    FaultLine(r"driver for the device stopped because (?:the NVM image|the device firmware)[^\n]{0,60}"
              r"|device has a newer (?:major )?version of the NVM[^\n]{0,40}than expected"
              r"|requires? a newer (?:version of the )?driver[^\n]{0,40}",
              "the NIC's firmware is newer than its driver takes",
              "install a newer driver (or kernel), or an older firmware of the NIC",
              "Linux drivers/net/ethernet/intel/i40e/i40e_main.c, ice/ice_controlq.c"),
    FaultLine(r"ixgbe [0-9a-f:.]{7,16}[^\n]{0,40}: Adapter removed|PCIe link lost, device now detached"
              r"|(?:igb|igc|e1000e) [0-9a-f:.]{7,16}[^\n]{0,20}: PCIe link lost|mlx4_core [0-9a-f:.]{7,16}: (?:PCI"
              r" device"
              r" did not come back|Missing DCS, aborting|Internal error detected)[^\n]{0,40}",
              "the NIC does not answer over PCIe",
              "power-cycle the host; reseat it or try another slot; update its firmware (and pcie_aspm=off where it is"
              " lost when idle); replace it if it comes back",
              "Linux drivers/net/ethernet/intel/ixgbe/ixgbe_main.c, igb/igb_main.c; mellanox/mlx4/{reset,catas}.c"),
    FaultLine(r"i40e [0-9a-f:.]{7,16}[^\n]{0,8}: (?:PF reset polling failed|[Ii]nit?ial pf_reset failed|capability"
              r" discovery failed|init_adminq failed)[^\n]{0,60}|ice [0-9a-f:.]{7,16}: (?:ice_init_\w{2,12} failed"
              r"|probe failed|HMC Error|PE Critical Error)[^\n]{0,60}|irdma[^\n]{0,30}: (?:HMC Error|CQP? (?:timeout"
              r"|timed out)|PCI_ERR)[^\n]{0,40}",
              "the NIC's firmware did not answer its driver, or reported an error of its RDMA part",
              "power-cycle the host; bring NVM and driver (ice, i40e, irdma) to one release of the maker; where no RDMA"
              " is used, blacklist irdma",
              "Linux drivers/net/ethernet/intel/{i40e,ice}, drivers/infiniband/hw/irdma; ethernet-linux-ice issue 12"),
    FaultLine(r"ena [0-9a-f:.]{7,16}[^\n]{0,12}: (?:Keep alive watchdog timeout|Trigger reset is on)",
              "the cloud's network interface (ENA) did not answer and was reset",
              "if its CPU was fully loaded spread its interrupts; else stop and start the instance, and update the"
              " driver",
              "Linux drivers/net/ethernet/amazon/ena/ena_netdev.c"),
    FaultLine(r"mlx4_core [0-9a-f:.]{7,16}: (?:QUERY_FW command failed|Failed to init fw|Failed to map"
              r" outbox)[^\n]{0,30}",
              "the NIC's firmware did not answer its driver",
              "power-cycle the host; burn the card's firmware (mstflint), and replace it if it comes back",
              "Linux drivers/net/ethernet/mellanox/mlx4/{main,fw}.c"),
    FaultLine(r"Disk failure on nvme\w{1,12}, disabling device|critical_warning\s{1,12}: (?:0x)?[1-9a-f][0-9a-f]?\b",
              "a drive has errors, or says itself that it fails",
              "nvme smart-log and error-log of it; copy what is on it, and replace it; where it comes back after a"
              " power"
              " cycle see its slot, cable and heat, and nvme_core.default_ps_max_latency_us=0",
              "Linux block/blk-core.c, drivers/md; NVM Express base specification, SMART log: critical warning"),
    FaultLine(r"pciehp [0-9a-f:.]{12}:pcie\w{2,4}: [^\n]{0,24}(?:Link Down|Card not present|Power fault)[^\n]{0,30}",
              "a slot lost its device or its power",
              "if nobody pulled or powered it off: reseat the device, its riser or cables, and check its power",
              "Linux before 4.20, drivers/pci/hotplug/pciehp_ctrl.c"),
    FaultLine(r"AMD-Vi: Event logged \[\s{0,4}\n[^\n]{0,60}?(?:IO_PAGE_FAULT|INVALID_DEVICE_REQUEST) device="
              r"[^\n]{1,60}",
              "the IOMMU refused a device's access",
              "of a GPU or NIC that the host uses: boot with iommu=pt; of device 00:00.x the board's firmware: update"
              " it",
              "Linux before 4.20, drivers/iommu/amd_iommu.c"),
    FaultLine(r"-E- [^\n]{0,60}PSID[^\n]{0,40}(?:mismatch|differs|does not match)[^\n]{0,60}|-E- PSID"
              r" mismatch[^\n]{0,80}",
              "the firmware image is not for this card: its PSID is another one",
              "take the image of the card's own PSID (mlxfwmanager shows it; of an OEM's card the OEM's); only on"
              " purpose -allow_psid_change",
              "Mellanox/mstflint flint; its pull request 1719"),
)  # fmt: skip
# What is seen of a fault whose cause another line may say.
DRIVER_SYMPTOMS: tuple[FaultLine, ...] = (
    FaultLine(r"GPU \d{1,2}: (?!NVIDIA RTX|[^\n]{0,30}(?:Quadro|GeForce|PCI|NVL|A10\b|A16|A30|A40|L4|L2\b|TITAN|Ada\b))"
              r"[^\n]{4,80}\n[ \t]{0,12}NVML: ?Unable to retrieve N[Vv][Ll]ink information as all links are in[Aa]ctive"
              r"|nvlink [^\n]{0,40}-i \d{1,2}\s{1,4}NVML: ?Unable to retrieve N[Vv][Ll]ink information as all links are"
              r" in[Aa]ctive",
              "all links of a GPU to the others are down",
              "of cards that a bridge joins: seat it, without one that is no fault; of a board: read the XIDs in dmesg"
              " and the fabric's log, restart the fabric's service, then reset the GPUs",
              "nvidia-smi nvlink -s; NVIDIA/open-gpu-kernel-modules issue 1150"),
    FaultLine(r"\bnvidia\w{0,8}: Unknown symbol (?!ib_)\w{2,60} \(err -\d{1,3}\)",
              "the driver's module does not fit the kernel that runs",
              "build it anew for this kernel (dkms autoinstall with its headers), take a release that knows it, or load"
              " the modules that it needs (drm, video, backlight)",
              "Linux kernel/module/main.c, resolve_symbol"),
    FaultLine(r"Fatal error during GPU init(?=[\s\S]{0,2000}?amdgpu[^\n]{0,20} failed with error -12\b)"
              r"|amdgpu: probe of \S{1,16} failed with error -12\b",
              "the GPU's driver found no room for the GPU's memory (-12, ENOMEM)",
              "firmware: Above 4G Decoding on, newest version; else boot with pci=realloc (lspci -v: BARs without an"
              " address)",
              "Linux drivers/gpu/drm/amd/amdgpu/amdgpu_device.c, ioremap of BARs; lamikr/rocm_sdk_builder, MI50"),
    FaultLine(r"i915: unknown parameter 'max_vfs' ignored|Incompatible option enable_guc=7 - undocumented flag",
              "the kernel's own i915 is loaded, and not the one with SR-IOV: it does not know the options",
              "depmod -a, build the initramfs anew (it has the old module) and reboot; dkms status must name the kernel"
              " that runs (uname -r)",
              "strongtz/i915-sriov-dkms issues 53 and 334"),
    FaultLine(r"crw-(?:rw-)?------? {1,4}\d{1,3} root {1,4}root {1,4}\d{1,4}, {1,6}\d{1,4} [^\n]{1,40}\bkfd\b",
              "only root may open the GPUs' compute driver: /dev/kfd has no group",
              "a rule of udev, SUBSYSTEM==\"kfd\", KERNEL==\"kfd\", GROUP=\"render\", MODE=\"0660\"; then udevadm"
              " trigger, and the user in that group",
              "ROCm documentation, Configuring permissions for GPU access; ROCm/ROCT-Thunk-Interface issue 36"),
    FaultLine(r"GPU not supported by vGPU at PCI Id: [^\n]{1,60}(?=[\s\S]{0,400}?failed to send vGPU configuration)",
              "the host's vGPU manager does not know this GPU",
              "take a GPU of NVIDIA's list for vGPU, or pass it through whole (vgpu_unlock: its library must be loaded"
              " into nvidia-vgpud and nvidia-vgpu-mgr, and the profile fit)",
              "NVIDIA vGPU software, supported GPUs; mbilker/vgpu_unlock-rs"),
    FaultLine(r"(?:reset request timed out|TLB invalidation time'd out)[^\n]{0,60}",
              "an Intel GPU hung: it does not answer its driver",
              "cat /sys/class/drm/card*/error (devcoredump of xe) names the ring; power-cycle the host; update kernel"
              " and"
              " firmware",
              "Linux drivers/gpu/drm/i915/gt/intel_reset.c, drivers/gpu/drm/xe"),
    FaultLine(r"The GPU likely needs to be reset|PMU has halted|from GSP to trigger bugcheck",
              "a GPU must be reset before it works again",
              "stop what uses it and reset it (nvidia-smi --gpu-reset), or restart the guest or host; if it comes back,"
              " read its XIDs",
              f"{_OPEN} kernel_gsp.c"),
    FaultLine(r"Fence fallback timer expired on ring \w{2,16}(?=[\s\S]{0,8000}?Fence fallback timer)",
              "interrupts of a GPU get lost: its driver waits for each in vain",
              "MSI must work: leave out pci=nomsi, and see interrupt remapping, the slot and the board's firmware; in a"
              " guest that of its host; power-cycle the host",
              "Linux drivers/gpu/drm/amd/amdgpu/amdgpu_fence.c, amdgpu_fence_fallback"),
    FaultLine(r"Could not load UVM kernel module[^\n]{0,40}",
              "the GPU's memory driver (nvidia-uvm) is not loaded: CUDA cannot start",
              "nvidia-modprobe -u -c=0 (or modprobe nvidia_uvm) as root, and at each boot; if it fails, dmesg says why",
              "NVIDIA/nvidia-docker issue 423; nvidia-modprobe(1)"),
    FaultLine(r"nouveau [0-9a-f:.]{7,16}: (?:secboot: error|gr: init failed|gsp: [^\n]{0,40}failed|DRM: failed to"
              r"|[\w.: ]{2,30}timed? ?out)[^\n]{0,40}|probe with driver nouveau failed[^\n]{0,20}",
              "nouveau cannot start the GPU",
              "take NVIDIA's driver (blacklist nouveau, dracut -f, reboot), or a newer kernel with linux-firmware",
              "Linux drivers/gpu/drm/nouveau"),
    FaultLine(r"nvidia-modeset: ERROR: GPU:\d{1,2}: (?:Error while waiting for GPU progress|Idling display engine timed"
              r" out)[^\n]{0,60}",
              "a GPU hung: its display engine does not answer the driver",
              "read the XIDs of that time; restart the host; without a display leave nvidia_drm's modeset off",
              f"{_OPEN} nvidia-modeset"),
    FaultLine(r"Failed to query NVIDIA devices[^\n]{0,40}",
              "the GPU driver is not loaded: its persistence daemon finds no device files",
              "dmesg says why (NVRM, nouveau, module signatures); where nvidia-smi works as root, the daemon's user may"
              " not open /dev/nvidia*",
              "NVIDIA/nvidia-persistenced nvpd_daemon.c; ansible-role-nvidia-driver issue 3"),
    FaultLine(r"nvidia-persistenced(?:\[\d{1,10}\])?: device \S{10,20} - failed to (?:open|enable)[^\n]{0,20}",
              "the driver's persistence daemon could not open a GPU",
              "dmesg says why (NVRM: RmInitAdapter, XIDs); the others go on",
              "NVIDIA/nvidia-persistenced nvpd_daemon.c"),
    FaultLine(r"GDS release version[\s\S]{0,600}?NVMe {1,30}: Unsupported(?![\s\S]{0,900}?: Supported)",
              "GPUDirect Storage reaches no drive directly: NVMe's driver is not registered with nvidia-fs",
              "install the NIC maker's stack with its NVMe modules (mlnxofedinstall --with-nvmf --enable-gds), or a"
              " kernel and driver with PCI P2PDMA (use_pci_p2pdma); IOMMU off; until then cuFile copies through the"
              " host",
              "NVIDIA/gds-nvidia-fs issues 31 and 75; NVIDIA GPUDirect Storage installation guide"),
    FaultLine(r"Number of platforms {1,60}0\b|CL_PLATFORM_NOT_FOUND_KHR|clGetPlatformIDs[^\n]{0,30}-1001\b",
              "OpenCL finds no platform: the maker's runtime is missing, or the user may not open the GPU",
              "as root it works: add the user to the groups render and video; else install the runtime"
              " (intel-opencl-icd, rocm-opencl) so that /etc/OpenCL/vendors has its file",
              "intel/compute-runtime issues 350 and 478; clinfo(1)"),
)  # fmt: skip
