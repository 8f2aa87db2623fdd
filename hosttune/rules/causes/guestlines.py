"""Lines of QEMU, libvirt and what starts guests with them, of vGPUs, and of drivers that do not load.

They are rows as in `faultlines`, after which they come. What the kernel writes of resets, BARs and the IOMMU is in
`hosttune.linux.kernellines`.
"""

from __future__ import annotations

from hosttune.gpu import VENDORS
from hosttune.rules.causes.faultlines import FaultLine

_SEV = "Linux arch/x86/virt/svm/sev.c, drivers/crypto/ccp/sev-dev.c, drivers/iommu/amd/init.c"
_TDX = "Linux arch/x86/virt/vmx/tdx/tdx.c"
_VFIO = "QEMU hw/vfio/pci.c"
_NVRM = "NVIDIA/open-gpu-kernel-modules kernel-open/nvidia/nv-pci.c, nv.c"
_OSINIT = "NVIDIA/open-gpu-kernel-modules osinit.c, RM_INIT_STATUS; nvstatuscodes.h"
_IN_USE = (
    "stop it first (lsof /dev/nvidia* /dev/dri/* /dev/kfd: desktop, nvidia-persistenced, DCGM, containers), then unbind"
)
_DRIVERS = "|".join(vendor.driver for vendor in VENDORS if vendor.driver)
_MODULES = rf"(?:{_DRIVERS}|nouveau|i915|vfio|kvm|mlx5|ib)[\w-]{{0,24}}"
# The last: what CUDA says in a confidential guest, where nothing says that the state is set.
NOT_READY = (
    r"GPUs? Ready [Ss]tate\s{0,40}: {0,2}[Nn]ot[ -][Rr]eady"
    r"|CC [Ss]tat(?:us|e)\s{0,40}: ON\b(?![\s\S]{0,20000}GPUs? Ready [Ss]tate\s{0,40}: {0,2}[Rr]eady)"
    r"(?=[\s\S]{0,20000}?(?:not yet initialized|[Ee]rror:? 802|returned 802|SYSTEM_NOT_READY))"
)
_NICS = "mlx[45]_core|i915|xe|ice|iavf|i40e|ixgbe(?:vf)?|igb|bnxt_en|qede?|efa|ena|hfi1|irdma|nvme"
# The root first.
GUEST_LINES: tuple[FaultLine, ...] = (
    # Confidential guests
    FaultLine(r"SNP: IOMMU (?:is )?(?:disabled|either disabled|configured"
              r"|is configured)[^\n]{1,80}SNP cannot be supported",
              "SEV-SNP is off: it needs the IOMMU in use, and not in passthrough mode",
              "boot without iommu=pt, iommu.passthrough=1, amd_iommu=off and amd_iommu=pgtbl_v2",
              _SEV),
    FaultLine(r"Memory for the RMP table has not been reserved|RMP configuration not valid|Memory reserved for the RMP"
              r" table does not cover|RMP initialization failed",
              "SEV-SNP is off: the firmware reserved no memory for its table (RMP), or not enough",
              "firmware: SEV-SNP on, SNP memory coverage on for all memory; then power-cycle the host",
              _SEV),
    FaultLine(r"SEV(?:-SNP)?: failed to INIT(?:_EX)? error 0x[0-9a-f]{1,8}[^\n]{0,40}"
              r"|sev command 0x[0-9a-f]{1,4} timed out, disabling PSP",
              "the host's SEV firmware did not start",
              "update the firmware of the board (it brings SEV's own) and /lib/firmware/amd; in it SMEE, SEV-SNP and"
              " the ASIDs on, and no CPU taken off (nosmt, maxcpus)",
              f"{_SEV}; include/uapi/linux/psp-sev.h has the codes (0x1 platform state, 0x3 configuration)"),
    FaultLine(r"SNP_LAUNCH_START ret=-25|KVM_TDX_CAPABILITIES failed: (?:Inappropriate ioctl|Argument list too long)"
              r"[^\n]{0,40}|KVM_(?:SEV|TDX)_\w{2,30}[^\n]{0,40}(?:ret=-25|Inappropriate ioctl)[^\n]{0,20}",
              "QEMU and the kernel speak different versions of the interface for confidential guests",
              "take QEMU and kernel of one release: both from the distribution, or both from the vendor's tree",
              "Linux Documentation/virt/kvm/x86/{amd-memory-encryption,intel-tdx}.rst: ENOTTY; AMDESE/AMDSEV issue"
              " 216"),
    FaultLine(r"SNP_LAUNCH_START ret=-22 fw_error=0",
              "KVM refuses the start of the SEV-SNP guest: QEMU's options do not fit it",
              "give the firmware with -bios (libvirt: a stateless loader, type rom), not as pflash; policy 0x30000;"
              " cbitpos and reduced-phys-bits as the host's; guest memory from memfd",
              "AMDESE/AMDSEV issue 223; QEMU docs/system/i386/amd-memory-encryption.rst"),
    FaultLine(r"sev_(?:common_)?kvm_init: failed to initialize ret=-\d{1,3}[^\n]{0,40}",
              "KVM refuses to start a guest with SEV: the host has not this kind of it on, or QEMU is of another age",
              "dmesg | grep -iE 'sev|ccp' on the host names what is on (kvm_amd sev_snp=1); take QEMU and kernel of one"
              " release",
              "QEMU target/i386/sev.c; kata-containers issue 9672"),
    FaultLine(r"Assertion `sev_\w{2,8}->kernel_hashes_data' failed",
              "the guest's firmware has no place for the hashes of the kernel that QEMU is to measure",
              "give the guest the OVMF that is built for it (AmdSev), or leave kernel-hashes off",
              "QEMU target/i386/sev.c; kata-containers issue 11785"),
    FaultLine(NOT_READY,
              "the GPU's confidential mode is on, and its ready state is not set: CUDA refuses work (802)",
              "after the attestation set it in the guest (nvidia-smi conf-compute -srs 1; -grs shows it), at each boot:"
              " a service after nvidia-persistenced with --uvm-persistence-mode",
              "NVIDIA confidential computing deployment guide; NVIDIA/nvtrust issue 56"),
    FaultLine(r"because ?the NVLink fabric is no[^\n]{0,20}"
              r"|Fabric\s{1,40}State\s{1,40}: \w[\w ]{1,20}\s{1,40}Status\s{1,40}: Insufficient Permissions",
              "the GPUs' NVLink fabric is not set up, which CUDA waits for",
              "start Fabric Manager where the NVSwitches are (host or guest; with vGPUs FABRIC_MODE=2), and let the"
              " host activate the guest's partition before it starts",
              "NVIDIA/nvrc issue 159; NVIDIA Fabric Manager user guide, virtualization models"),
    FaultLine(r"Cannot set discarding of RAM broken: [^\n'\"]{1,40}",
              "QEMU cannot pass a device to this guest: something of it gives memory back (a confidential guest in QEMU"
              " 9.1, virtio-mem)",
              "QEMU 9.2 or later for confidential guests; of others leave virtio-mem out",
              "QEMU system/physmem.c, ram_block_discard_disable; QEMU ChangeLog 9.2, VFIO; kubevirt issue 16407"),
    FaultLine(r"SEV-SNP: (?:CPUID validation failed for function|failed update CPUID page)[^\n]{0,60}",
              "the SEV firmware refuses the CPU that QEMU describes to the guest",
              "take a CPU model of the host's generation (-cpu EPYC-v4 or later) without what the line shows as"
              " different",
              "QEMU target/i386/sev.c, sev_snp_cpuid_report_mismatches; NVIDIA/nvtrust issue 91"),
    FaultLine(r"(?:SNP|SEV|LAUNCH)_\w{2,30}[^\n]{0,20} ret=-\d{1,3},? fw_error=(?:0x)?0{0,7}[1-9a-f][^\n]{0,60}",
              "the SEV firmware refuses the guest",
              "the error's words say why; dmesg of the host (ccp, SEV) shows whether its SEV firmware started: update"
              " the board's firmware",
              "QEMU target/i386/sev.c; Linux include/uapi/linux/psp-sev.h"),
    FaultLine(r"tdx: not enabled by BIOS|tdx: module initialization failed[^\n]{0,60}"
              r"|tdx: initialization failed[^\n]{0,60}|SEAMCALL failed: CPU \d{1,5}: leaf \d{1,4}[^\n]{0,40}"
              r"|SEAMCALL failed: TDX (?:[Mm]odule not loaded|disabled by BIOS)"
              r"|TDX not enabled by BIOS|SEAMCALL \(0x[0-9a-f]{1,16}\) failed: 0x[0-9a-f]{1,16}",
              "TDX did not start on the host",
              "firmware: TME, TME-MT (bypass off), SGX, TDX and its SEAM loader on, keys for TDX split off; update it"
              " (the TDX module is part of it), and boot with kvm_intel.tdx=1",
              f"{_TDX}; canonical/tdx issue 102"),
    FaultLine(r"(?:vm|kvm)-type \w{0,8}(?:tdx|TDX)\w{0,8} not supported by KVM|KVM doesn.?t support TDX"
              r"|TDX is not supported by KVM",
              "this host's KVM has no TDX: not in its CPU, its firmware, its kernel or kvm_intel's parameter",
              "dmesg | grep -i tdx says where it ended (BIOS enabled, module initialized); boot with kvm_intel.tdx=1;"
              " TDX needs Linux 6.16 or a vendor's kernel",
              "QEMU target/i386/kvm; Linux Documentation/arch/x86/tdx.rst"),
    FaultLine(r"GPU confidential compute capability is not enabled|GPU does not support confidential compute",
              "the guest is confidential, and the GPU's confidential mode is off, or it has none",
              "set it on the host before the guest starts (nvidia_gpu_tools.py --set-cc-mode=on"
              " --reset-after-cc-mode-switch; of several GPUs with switches the protected PCIe mode on all), or start"
              " an ordinary guest",
              "NVIDIA/open-gpu-kernel-modules conf_compute.c; NVIDIA/nvtrust issue 124"),
    FaultLine(r"ConfCompute: Fatal error hit|Fatal error detected in GSP-DMA (?:de|en)crypt[^\n]{0,20}"
              r"|SPDM[^\n]{0,60}(?:failed|[Ee]rror)[^\n]{0,40}|spdm[^\n]{0,60}(?:failed|[Ee]rror)[^\n]{0,40}"
              r"|Failed to establish session with SPDM Responder",
              "the encrypted channel between the confidential guest's driver and the GPU failed",
              "load ecdsa_generic and ecdh before the driver (softdep), take a driver release that NVIDIA names for"
              " confidential computing, update the GPU's VBIOS, and reset the GPU on the host",
              "NVIDIA/open-gpu-kernel-modules conf_compute.c, spdm.c; NVIDIA/nvtrust issue 54"),
    # Drivers of the host and the guest that do not load, or do not let go
    FaultLine(r"returned from kgspWaitForRmInitDone\([^\n]{0,120}(?=[\s\S]{0,20000}?WPR2 already up)",
              "a GPU's system processor (GSP) failed at its first start; what follows (WPR2) is the consequence",
              "reset it (nvidia-smi --gpu-reset) or power-cycle the host; if it comes back take another release of the"
              " driver, older or newer, and update the VBIOS",
              "NVIDIA/open-gpu-kernel-modules kernel_gsp.c; its issues 876 and 1058"),
    FaultLine(r"\[NV_ERR_RESET_REQUIRED\]|GPU is likely in a bad state and may need to be reset"
              r"|RmInitAdapter failed! \(0x\w{1,2}:0x62:",
              "a GPU must be reset before it works again",
              "stop what uses it and reset it (nvidia-smi --gpu-reset), or restart the guest or host; if it comes back,"
              " read its XIDs",
              f"{_OSINIT}: 0x62, reset required; kubernetes-sigs/dra-driver-nvidia-gpu issue 982"),
    FaultLine(r"No interrupts of any type are available|Can't find an IRQ for your NVIDIA card"
              r"|Tried to get IRQ \d{1,5}, but another driver|NVRM: [^\n]{0,40}request_irq\(\) failed",
              "a GPU has no interrupt, so its driver does not start it",
              "a guest needs MSI: keep its interrupt remapping and x2APIC as the host's; on the host see whether"
              " vectors ran out (/proc/interrupts), and leave out pci=nomsi",
              f"{_NVRM}, nvidia_open_device"),
    FaultLine(r"Aborting probe for VF [0-9a-f:.]{7,16} since IOMMU is not present",
              "the driver takes no virtual function, because the IOMMU is off",
              "switch VT-d or AMD-Vi on in the firmware (intel_iommu=on where the kernel asks for it)",
              _NVRM),
    FaultLine(r"not enough MMIO resources for SR-IOV",
              "the firmware left no room for the BARs of the virtual functions",
              "Above 4G Decoding and SR-IOV on in the firmware with a larger window (MMIO High), or boot with"
              " pci=realloc, or make fewer of them",
              "Linux drivers/pci/iov.c, sriov_enable"),
    FaultLine(r"(?i:attempting to resize bar|BAR \d \[mem [^\n]{1,60}: releasing)[^\n]{0,60}"
              r"(?=[\s\S]{0,4000}?cannot fit 0x[0-9a-f]{1,16} required)"
              r"|WARNING: Resizable BAR not detected for device[^\n]{0,20}|Problem resizing BAR\d \(-\d{1,3}\)"
              r"|Not enough PCI address space for a large BAR|xe \S{8,16}: \[drm\] Small BAR device",
              "the GPU's BAR stays small: the larger one (Resizable BAR) does not fit into the window of the"
              " bridges above",
              "firmware: Above 4G Decoding and Resizable BAR on, its newest version; else boot with pci=realloc, or a"
              " newer kernel; xe's runtime takes no GPU with a small BAR, and others are slow",
              "Linux drivers/pci/setup-bus.c, drivers/gpu/drm/xe/xe_pci_rebar.c, amdgpu_device.c;"
              " intel/compute-runtime drm_neo.cpp"),
    FaultLine(r"FATAL: Failed to re-allocate BAR1|No address space to allocate resized BAR1"
              r"|Fatal Error while attempting to resize PCIe BARs|Failed to resize BAR\d to \d{1,7}M[^\n]{0,20}",
              "the GPU's driver found no address for the larger BAR that it wanted",
              "firmware: Above 4G Decoding and Resizable BAR on, or boot with pci=realloc; or leave"
              " NVreg_EnableResizableBar off",
              f"{_NVRM}; Linux drivers/gpu/drm/xe/xe_pci_rebar.c"),
    FaultLine(r"Lockdown: [^\n]{1,40}: direct PCI access is restricted",
              "Secure Boot keeps programs from writing to PCI devices (kernel lockdown)",
              "what sets a GPU's mode (nvidia_gpu_tools.py, setpci) needs Secure Boot off, or lockdown=none where the"
              " kernel takes it",
              "man kernel_lockdown.7; NVIDIA/nvtrust issue 48"),
    FaultLine(r"IOV: Unable to confirm version|(?i:guc): mmio request 0x[0-9a-f]{1,8}: (?:failure|no reply)[^\n]{0,30}"
              r"|GuC mmio request 0x[0-9a-f]{1,8}: (?:failure|no reply)[^\n]{0,40}|Unable to query runtime",
              "a GPU's firmware (GuC) refuses or does not answer the driver, as of a virtual function whose host runs"
              " another release",
              "take drivers of one release on host and guest (of i915-sriov-dkms the same version), and GuC firmware"
              " that they know; make the virtual functions anew",
              "Linux drivers/gpu/drm/xe/xe_guc.c; strongtz/i915-sriov-dkms issues 26 and 122"),
    FaultLine(r"Device is non-operational; MMIO access returns 0xFFFFFFFF",
              "the GPU's registers read as ones: it does not answer its driver",
              "of a virtual function see that the host's driver has made it, and load the guest's driver anew; else"
              " power-cycle the host",
              "Linux drivers/gpu/drm/i915/intel_uncore.c, sanity_check_mmio_access; i915-sriov-dkms issue 133"),
    FaultLine(r"Open nvidia\.ko is only ready for use on Data Center GPUs",
              "the open driver of this release does not take this GPU",
              "take a newer release (560 or later), or the proprietary modules",
              _NVRM),
    FaultLine(r"Doesn't get (?:msg|ack|event)[^\n]{0,40}from pf[^\n]{0,30}",
              "a virtual function gets no answer from the GPU's driver on the host",
              "on the host look at the driver of the physical function (GIM) and its log; its release must fit the"
              " guest's",
              "Linux drivers/gpu/drm/amd/amdgpu/mxgpu_nv.c, xgpu_nv_poll_msg"),
    FaultLine(r"habanalabs [^\n]{1,30}: (?:CPU boot ready timeout|failed to load boot fit"
              r"|[Ff]ailed to load firmware file)"
              r"[^\n]{0,80}|Device boot error - [^\n]{1,80}|Device boot progress - Stuck in[^\n]{0,30}",
              "an accelerator did not start: its own boot says where it ended",
              "power-cycle the host; install firmware and driver of one release; replace it if it comes back",
              "Linux drivers/accel/habanalabs/common/firmware_if.c"),
    FaultLine(r"Your BIOS is broken; DMAR reported[^\n]{0,80}|\(XEN\) AMD-Vi: Error initialization"
              r"|I/O virtualisation disabled",
              "the firmware's table of the IOMMU is broken, so the kernel leaves it off",
              "update the firmware; load its defaults, then switch VT-d on",
              "Linux drivers/iommu/intel/dmar.c, warn_invalid_dmar"),
    FaultLine(r"NVRM: Attempting to remove device [0-9a-f:.]{7,16} with non-zero usage count"
              r"|failed to clear page tables on GEM object close|amdgpu: leaking bo va"
              r"|Could not unload NVIDIA driver kernel modules, driver is in use"
              r"|failed to unload driver: resource temporarily unavailable"
              rf"|Module {_MODULES} is in use[^\n]{{0,60}}",
              "something on the host still uses the GPU or NIC that its driver is to give up",
              _IN_USE,
              f"{_NVRM}; kmod modprobe(8), rmmod(8)"),
    FaultLine(r"NVRM: GPU [0-9a-f:.]{7,16} is already bound to (?:nouveau|nvidiafb|rivafb|rivatv)"
              r"|NVRM: request_mem_region failed for[^\n]{0,60}",
              "another driver of the host has the GPU",
              "keep it from loading (blacklist nouveau and nvidiafb, options nouveau modeset=0, then update-initramfs"
              " -u or dracut -f), and reboot",
              _NVRM),
    FaultLine(r"AMD_[A-Z0-9]{3,12}: failed to reset device|AMD_[A-Z0-9]{3,12}: could not get enabled SMU features"
              r"|AMD_[A-Z0-9]{3,12}: (?:Could not reset w/|PSP did not acknowledge|timed out waiting for PSP"
              r" bootloader to respond after reset)[^\n]{0,60}"
              r"|SMU error 0x[0-9a-f]{1,8}(?=\n[^\n]{0,80}Failed to send message)(?![\s\S]{0,4000}?reset result = 0\b)",
              "the GPU does not come back from a reset: its model has no reset that works",
              "power the host off and on; give it to one guest for good, start that guest once a boot, or try another"
              " reset (vendor-reset's newest version, reset_method)",
              "gnif/vendor-reset README and src/amd"),
    FaultLine(r"IOMMU_IOAS_MAP failed: Bad address, PCI BAR\?",
              "a device's BAR cannot be mapped for the guest's devices",
              "a GPU that the guest lacks lies beyond its address width: host-phys-bits=on (libvirt: <maxphysaddr"
              " mode='passthrough'/>) and a window that holds its BARs; else it only means no peer-to-peer (iommufd)",
              "QEMU backends/iommufd.c, iommufd_backend_map_dma"),
    FaultLine(rf"Module {_MODULES} not found in directory /lib/modules/\S{{1,60}}|Module {_MODULES} not found\."
              rf"|ould not load module {_MODULES}: No such file",
              "the kernel that runs has no such module",
              "build or install it for this kernel (dkms autoinstall with its headers; the distribution's package for"
              " this kernel), or boot the kernel that has it",
              "kmod, modprobe(8)"),
    FaultLine(r"Bad return status for module build on kernel[^\n]{0,60}|DKMS: build failed"
              r"|Your kernel headers for kernel \S{1,60} cannot be found|Unable to find the (?:kernel source tree"
              r"|development tool)[^\n]{0,60}|(?:CC version check failed|Failed CC version check)"
              r"|/(?:var/lib/dkms|usr/src)/[^\n:]{1,120}:\d{1,6}:\d{1,4}: error: [^\n]{1,80}"
              r"|Failed to build the NVIDIA kernel module|kernel module was not created"
              r"|modpost: [^\n]{1,40}(?:uses GPL-only symbol|undefined!)[^\n]{0,60}"
              r"|/var/lib/dkms/[^\n]{1,160}\.o\] Error \d|Building rpms failed; see [^\n]{1,120}"
              r"|Compiler version check failed|gcc-version-check failed|Failed CC version check",
              "a kernel module could not be built for this kernel",
              "its make.log has the first error: take a driver release that knows this kernel, or an older kernel;"
              " headers and compiler must be those of the kernel",
              "dkms(8); NVIDIA driver README, installing"),
    FaultLine(r"swiotlb buffer is full \(sz: [^\n]{1,80}|DMA: Out of SW-IOMMU space for \d{1,12} bytes[^\n]{0,40}",
              "the kernel's bounce buffer (swiotlb) is full: a driver's transfer was refused",
              "boot with swiotlb=524288 (1 GiB) or more, where all DMA goes through it, as in a confidential guest;"
              " else"
              " find why the device bounces (iommu=off, a mask of 32 bits)",
              "Linux kernel/dma/swiotlb.c; Documentation/core-api/swiotlb.rst"),
    FaultLine(r"wait_fw_init:\d{1,4}:[^\n]{0,24} timeout waiting for FW[^\n]{0,60}",
              "a ConnectX does not start: its firmware is not ready in time",
              "of a virtual function look at the physical one on the host; else power-cycle the host, then burn its"
              " firmware (mstflint)",
              "Linux drivers/net/ethernet/mellanox/mlx5/core/main.c, wait_fw_init"),
    FaultLine(r"Failed setting eswitch to offloads|E-Switch: Failed to create (?:slow path|offloads|legacy)[^\n]{0,60}",
              "the NIC did not take the other mode of its switch for virtual functions (switchdev)",
              "write 0 to sriov_numvfs, then devlink dev eswitch set pci/ADDRESS mode switchdev, and only then make the"
              " virtual functions; update its firmware",
              "Linux drivers/net/ethernet/mellanox/mlx5/core/eswitch_offloads.c; sriov-network-operator issue 1015"),
    FaultLine(r"no matching virtual function found|[Nn]o (?:free|available) (?:VFs?|virtual functions?)\b[^\n]{0,40}"
              r"|[Aa]ll virtual functions of [^\n]{1,60} in use",
              "no virtual function of the device is free",
              "make more of them (sriov_numvfs; mlx4_core num_vfs), or take them from guests that are stopped; those"
              " with a driver of the host are not free",
              "canonical/lxd lxd/network; its pull request 10710"),
    FaultLine(r"E-Switch: Failed to enable SRIOV[^\n]{0,40}|Failed to allocate VF resources[^\n]{0,40}"
              r"|Not enough VFs? (?:resources|available)[^\n]{0,40}",
              "the NIC has not the resources for that number of virtual functions",
              "ask for fewer, or give it more in its firmware (mlxconfig NUM_OF_VFS, SRIOV_EN=1; the board's setup),"
              " with SR-IOV and ARI on in the board's firmware; then power-cycle",
              "Linux drivers/net/ethernet/mellanox/mlx5/core/sriov.c, drivers/net/ethernet/intel/ice/ice_sriov.c"),
    FaultLine(r"Failed to load (?:\w{1,12} )?firmware \"[^\"\n]{1,60}(?<!_ta\.bin)\"|Failed to load \w{1,8} firmware!"
              r"|[Ff]irmware \S{1,60}: fetch failed|failed to load ucode \w{1,24}",
              "a firmware file that the GPU's driver needs is missing",
              "install linux-firmware (or the driver's firmware package) of the driver's age, and update the initramfs",
              "Linux drivers/gpu/drm/amd/amdgpu/gfx_v9_0.c and its like; ROCm/amdgpu pull request 113"),
    FaultLine(r"RmInitAdapter failed! \(0x3[01]:|failed to (?:extract VBIOS image from ROM"
              r"|parse FWSEC ucode from VBIOS image)",
              "a GPU's driver cannot read or run the GPU's VBIOS",
              "give the guest a dump of it (<rom file='…'/>) and UEFI firmware; on the host power-cycle it, and reseat"
              " or replace it if that does not help",
              f"{_OSINIT}: 0x30 VBIOS, 0x31 VBIOS POST"),
    FaultLine(r"RmInitAdapter failed! \(0x\w{1,2}:0x(?:1|b|47):",
              "a GPU's memory does not work (broken, ECC error or not trained)",
              "power-cycle the host; if it comes back, replace the GPU",
              f"{_OSINIT}: 0x1 broken memory, 0xb ECC error, 0x47 memory training"),
    FaultLine(r"RmInitAdapter failed! \(0x\w{1,2}:0xf:",
              "a GPU does not answer over PCIe",
              "power-cycle the host; if it comes back, reseat it, check its power and riser, or replace it; a passed"
              " GPU: see the host's dmesg (reset, AER)",
              f"{_OSINIT}: 0xf, GPU is lost"),
    # vGPU, MIG, virtual functions
    FaultLine(r"vGPU is supported only on VGX capable boards|vGPU validation of the GPU failed",
              "this GPU has no vGPU: its driver gives that to data-center and some workstation models alone",
              "pass the whole GPU through (vfio-pci), or take a model of NVIDIA's list of GPUs with vGPU",
              "NVIDIA vGPU documentation, supported products"),
    FaultLine(r"Incompatible Guest/Host drivers[^\n]{0,120}|Guest VGX version is (?:older|newer)[^\n]{0,80}",
              "the guest's vGPU driver and the host's are of releases that do not go together",
              "install in the guest the driver of the same vGPU release as the host's (of its branch, or the one"
              " before)",
              "NVIDIA vGPU documentation, Compatibility of vGPU manager and guest driver"),
    FaultLine(r"Failed to acquire license from[^\n]{0,100}|Valid GRID license not found"
              r"|License Status[ \t]{0,40}: Unlicensed(?:(?= *\n)| \(Restricted\))",
              "the vGPU has no license: it is slow, or stops",
              "put a client token of the license server into /etc/nvidia/ClientConfigToken, restart nvidia-gridd, and"
              " let the guest reach the server (port 443); nvidia-smi -q shows the status",
              "NVIDIA license system, client configuration"),
    FaultLine(r"Failed to allocate vGPU FB|error allocating framebuffer|graphics resource available in the parent"
              r" resource pool is insufficient|No graphics device is available for vGPU[^\n]{0,40}",
              "no GPU of the host has room for a vGPU of this type",
              "see what has the GPUs' memory (nvidia-smi vgpu, processes of the host): all vGPUs of one GPU have one"
              " type, unless it is in mixed mode; VMware: host graphics Shared Direct, then restart its Xorg service",
              "NVIDIA vGPU documentation, troubleshooting; mbilker/vgpu_unlock-rs issue 30"),
    FaultLine(r"Failed to get VM UUID from QEMU command-line",
              "QEMU was started without the guest's UUID, which the vGPU manager needs",
              "give QEMU -uuid (Proxmox: args: -uuid UUID; libvirt does it by itself)",
              "NVIDIA vGPU documentation; DualCoder/vgpu_unlock issue 71"),
    FaultLine(r"mdev_supported_types/[^\n]{1,60}/create[\s\S]{0,300}?(?:write error|tee): [^\n]{1,60}"
              r"|current_vgpu_type[\s\S]{0,300}?(?:write error|tee): [^\n]{1,60}"
              r"|write error: (?:No space left on device|Input/output error)(?=[\s\S]{0,200}(?:mdev_supported_types"
              r"|current_vgpu_type))|ailed to (?:create|start) mdev[^\n]{0,80}|error creating mdev[^\n]{0,80}"
              r"|pci device '[^'\n]{1,40}' (?:does not support mediated|has no (?:available instances|type))[^\n]{0,60}"
              r"|could not create '[^'\n]{1,40}' for pci devices[^\n]{0,60}",
              "the host makes no further vGPU (mediated device) of this type",
              "available_instances of the type says how many are left; all of one GPU have one size unless it is in"
              " mixed mode; of a GPU with SR-IOV make the virtual functions first (sriov-manage -e)",
              "Linux Documentation/driver-api/vfio-mediated-device.rst; NVIDIA vGPU documentation"),
    FaultLine(r"MIG mode is in pending (?:en|dis)able state for GPU [0-9A-Fa-f:.]{7,16}: ?(?:In use by another client"
              r"|Not Suppor ?ted)|Resetting GPU [0-9A-Fa-f:.]{7,16} is not supported"
              r"|[0-9A-Fa-f:.]{7,16} is currently being used by one or more other processes",
              "the change (MIG, reset) waits: the GPU is in use, or may not be reset from here",
              "stop what uses the GPU (nvidia-smi, lsof /dev/nvidia*; DCGM, nvidia-persistenced, the device plugin),"
              " then nvidia-smi --gpu-reset; in a guest that may not reset it reboot the guest",
              "NVIDIA MIG user guide, Enable MIG mode"),
    FaultLine(r"Unable to create a (?:GPU|compute) instance on GPU[^\n]{1,80}: (?:In use|Insufficient|Invalid|Not"
              r"|No)[^\n]{0,40}|all orderings failed|MIG profile \S{1,40} not found on this GPU"
              r"|cannot set MIG (?:config|mode) on non MIG-capable GPU",
              "a MIG instance could not be made: its place is taken, or the GPU does not have this profile",
              "nvidia-smi mig -lgip lists profiles with what is free, -lgipp their places: make the largest first, or"
              " destroy instances (-dci, then -dgi)",
              "NVIDIA MIG user guide, Creating GPU instances"),
    FaultLine(r"Failed to display (?:compute|GPU) instances[^\n]{0,40}: Insufficient Permissions"
              r"|mig[^\n]{0,80}\n[^\n]{0,80}: Insufficient Permissions"
              r"|Unable to (?:en|dis)able MIG [Mm]ode for GPU [^\n]{1,40}: ?Insufficient Permissions",
              "the command may not manage MIG here",
              "run it as root on the host; a container needs NVIDIA_MIG_CONFIG_DEVICES=all and the capability file of"
              " MIG",
              "NVIDIA MIG user guide, Device nodes and capabilities"),
    FaultLine(r"apply MIG config with MIG mode disabled",
              "MIG mode is not on, so no instances can be made",
              "nvidia-smi -mig 1 and reset the GPU (nothing may use it); a guest reboots",
              "NVIDIA/mig-parted; MIG user guide"),
    FaultLine(r"Fail to enable sriov[^\n]{0,40}|asic does not support SRIOV|Failed to properly enable SRIOV",
              "the GPU's driver on the host could not make its virtual functions",
              "firmware: SR-IOV, ARI and Above 4G Decoding on; the GPU must have SR-IOV; load the driver (GIM) once"
              " after a cold boot",
              "GPUOpen-LibrariesAndSDKs/MxGPU-Virtualization issues 3 and 18"),
    FaultLine(r"mediated device '[^'\n]{1,60}' not found|/sys/class/mdev_bus/[0-9a-f:.]{7,16}' does not exist"
              r"|(?<!\"reason\":\"open )/sys/(?:bus/mdev/devices|class/mdev_bus): no such file",
              "the mediated device (vGPU) that the guest asks for is not there",
              "they are gone after a boot: let libvirt make it (virsh nodedev-define, nodedev-autostart), or mdevctl;"
              " the host needs the vGPU driver (from Linux 6.8 on vGPUs with SR-IOV are no"
              " mediated devices: nvidia/current_vgpu_type); a whole GPU is a hostdev of type pci",
              "libvirt src/util/virmdev.c; OpenNebula/one issue 5968"),
    FaultLine(r"Only \d{1,5} MSI-X interrupts available for SR-IOV[^\n]{0,100}",
              "the NIC has no interrupt vectors left for virtual functions: its own driver took them",
              "fewer queues or no RDMA on the physical function (blacklist irdma, ethtool -L, devlink"
              " msix_vec_per_pf_max), then make the virtual functions",
              "Linux drivers/net/ethernet/intel/ice/ice_sriov.c; openshift/sriov-network-operator pull request 1185"),
    FaultLine(r"SR-IOV: bus number out of range|can.?t enable \d{1,5} VFs \(bus [0-9a-f]{2} out of range[^\n]{0,40}"
              r"|pci_enable_sriov failed ?: -12|sriov_numvfs: cannot allocate memory"
              r"|sriov_numvfs[^\n]{0,40}\n[^\n]{0,60}(?:write error|tee: [^\n]{1,80}): Cannot allocate memory",
              "the virtual functions found no addresses or bus numbers",
              "firmware: SR-IOV, Above 4G Decoding and ARI on; or boot with pci=realloc, of bus numbers"
              " pci=assign-busses; dmesg says which",
              "Linux drivers/pci/iov.c, sriov_enable; openshift-docs pull request 32619"),
    FaultLine(r"sriov_numvfs[^\n]{0,40}\n[^\n]{0,60}(?:write error|tee: [^\n]{1,80}): Numerical result out of range",
              "more virtual functions were asked for than the device has",
              "sriov_totalvfs says how many; a NIC's firmware setting raises it (mlxconfig NUM_OF_VFS, SRIOV_EN), of a"
              " GPU its driver's",
              "Linux drivers/pci/pci-sysfs.c, sriov_numvfs_store"),
    FaultLine(r"sriov_numvfs[^\n]{0,40}\n[^\n]{0,60}(?:write error|tee: [^\n]{1,80}): Device or resource busy"
              r"|\d{1,5} VFs already enabled\. Disable before enabling|VFs (?:are )?(?:still )?assigned",
              "the number of virtual functions cannot be changed while there are some, or a guest has one",
              "stop the guests that have them, write 0 to sriov_numvfs, then the new number",
              "Linux drivers/pci/pci-sysfs.c, sriov_numvfs_store"),
    FaultLine(r"[Dd]river (?:\w{1,32} )?does not support SR-IOV configuration via sysfs"
              r"|No driver bound to device; cannot configure SR-IOV|device/sriov_numvfs: no such file[^\n]{0,20}",
              "the device has no driver that makes virtual functions",
              "bind it to the driver that does (NVIDIA's vGPU driver, the NIC's own; of vfio-pci enable_sriov=1)",
              "Linux drivers/pci/pci-sysfs.c, sriov_numvfs_store"),
    # The guest's memory
    FaultLine(r"host NUMA node\d{1,3} doesn't exist|need(?:s)? to be (?:enabled|defined) to use hugepages"
              r"|total memory for NUMA nodes must be equal[^\n]{0,40}|missing NUMA node\d{1,3} (?:cpus|memory value)"
              r"|cannot be? ?use(?:d)? for hugepages|your system doesn't support hugepages[^\n]{0,30}",
              "Proxmox refuses what the guest's configuration says of NUMA or huge pages",
              "numa: 1, and numa0, numa1 … with cpus, hostnodes, policy=bind and memory that adds up to the guest's,"
              " each"
              " a multiple of the page's size",
              "Proxmox qemu-server QemuServer/Memory.pm"),
    FaultLine(r"[Hh]uge[Tt][Ll][Bb]: allocating \d{1,9} of page size [^\n]{1,20} failed[^\n]{0,60}"
              r"|hugepage allocation failed at /usr/share/perl5/PVE",
              "the kernel could not reserve all the huge pages that were asked for",
              "ask for fewer, or for each node (hugepages=NODE:COUNT,…); 1 GiB pages only at boot; take other uses of"
              " memory away (crashkernel, other page sizes)",
              "Linux mm/hugetlb.c; Documentation/admin-guide/kernel-parameters.txt, hugepages="),
    FaultLine(r"unable to map backing store for guest RAM[^\n]{0,60}|can't open backing store[^\n]{0,80}for guest RAM:"
              r" (?!Permission)[^\n]{1,40}|Insufficient free host memory pages available to allocate guest RAM"
              r"|Unable to find any usable hugetlbfs mount[^\n]{0,40}|hugetlbfs filesystem is not mounted"
              r"|hugepages: node \d{1,4} not found|Page size \d{1,9} is not supported by the host",
              "the huge pages that the guest's memory needs are not free",
              "reserve them at boot, on the guest's nodes (hosttune plan), and see what holds them:"
              " /sys/devices/system/node/node*/hugepages/*/free_hugepages",
              "QEMU system/physmem.c, file_ram_alloc; libvirt src/qemu/qemu_conf.c"),
    FaultLine(r"cannot set up guest memory '[^'\n]{1,40}': Cannot allocate memory|ioctl\(KVM_CREATE_VM\) failed: 12\b",
              "the host has not enough free memory for the guest",
              "free memory or make the guest smaller: huge pages that are reserved are not free for it (hosttune plan)",
              "QEMU system/physmem.c, ram_block_add"),
    FaultLine(r"RLIMIT_MEMLOCK \(\d{1,20}\) exceeded|cannot limit locked memory of process[^\n]{0,60}"
              r"|(?:VFIO_MAP_DMA failed|vfio_\w{0,20}dma_map\()[^\n]{0,120}(?:Cannot allocate memory|= -12\b)"
              r"|IommuDmaMap\([^\n]{0,60}\b12\)",
              "the guest's memory may not be locked",
              "give the guest <memtune><hard_limit> of its memory plus some GiB, or raise the limit of locked memory"
              " of what starts QEMU (LimitMEMLOCK=infinity, ulimit -l; of a container its runtime's, and SYS_RESOURCE"
              " to raise it)",
              "QEMU hw/vfio/container.c; libvirt, formatdomain: memtune; Linux drivers/vfio/vfio_iommu_type1.c;"
              " kubevirt issue 8472"),
    FaultLine(r"(?:VFIO_MAP_DMA failed|vfio_\w{0,20}dma_map\()[^\n]{0,120}(?:No space left on device|= -28\b)"
              r"|IommuDmaMap\([^\n]{0,60}\b28\)",
              "the guest has more mappings than VFIO allows",
              "raise dma_entry_limit of vfio_iommu_type1, or back the guest's memory with huge pages",
              "Linux drivers/vfio/vfio_iommu_type1.c, dma_entry_limit"),
    FaultLine(r"(?:VFIO_MAP_DMA failed|vfio_\w{0,20}dma_map\()[^\n]{0,120}(?:Bad address|= -14\b)"
              r"(?![^\n]{0,40}\n[^\n]{0,60}PCI peer-to-peer trans)"
              r"|IommuDmaMap\([^\n]{0,60}\b14\)",
              "memory of the guest cannot be pinned for the device: what backs it cannot",
              "back the guest's memory with memfd or huge pages; see whether a file, a pool or virtiofs backs it",
              "Linux drivers/vfio/vfio_iommu_type1.c, vaddr_get_pfns: EFAULT"),
    FaultLine(r"(?:VFIO_MAP_DMA failed|vfio_\w{0,20}dma_map\()[^\n]{0,120}(?:Invalid argument|= -22\b)"
              r"(?![^\n]{0,40}\n[^\n]{0,60}PCI peer-to-peer trans(?![\s\S]{0,4000}?USER_MEMORY_REGION2? failed))"
              r"|IommuDmaMap\([^\n]{0,60}\b22\)",
              "the IOMMU cannot map an address of the guest",
              "keep memory and the PCI window of the guest within the IOMMU's address width (<maxphysaddr"
              " mode='emulate' bits='…'/>, or fewer bits of the window), and out of its reserved regions",
              "Linux drivers/vfio/vfio_iommu_type1.c, vfio_iommu_iova_dma_valid"),
    FaultLine(r"aw-bits \d{1,3} > host aw-bits (?:0x)?\w{1,4}",
              "the guest's IOMMU has wider addresses than the host's",
              "give the guest's IOMMU fewer bits (<driver aw_bits='39'/>), or none",
              "QEMU hw/i386/intel_iommu.c, vtd_check_hdev"),
    FaultLine(r"set caching-mode=on for intel-iommu|requires (?:iommu notifier"
              r"|iommu MAP notifier) which is not[^\n]{0,40}",
              "the guest's IOMMU cannot serve passed devices as it is set",
              "<iommu model='intel'><driver intremap='on' caching_mode='on'/></iommu>, or no IOMMU in the guest",
              "QEMU hw/i386/{intel_iommu,amd_iommu}.c"),
    # The device
    FaultLine(r"group (?:\w{1,5} )?is not viable|\bGroupViable\b",
              "another device of the same IOMMU group is still with a driver of the host",
              "bind every device of the group to vfio-pci (`hosttune discover` lists the group; often the GPU's audio"
              " function), or use a slot whose group is smaller",
              "QEMU hw/vfio/container.c, vfio_container_connect; Linux Documentation/driver-api/vfio.rst"),
    FaultLine(r"group \d{1,5} used in multiple address spaces",
              "functions of one IOMMU group are apart behind the guest's own IOMMU",
              "leave the guest's IOMMU out, put the functions behind one pcie-pci-bridge, or give the guest only one of"
              " them (the others stay with vfio-pci)",
              "QEMU hw/vfio/container.c, vfio_group_get; kata-containers issue 10622"),
    FaultLine(r"behind a switch lacking ACS and cannot be assigned|PCI device \S{4,20} is not assignable",
              "libvirt refuses the device: a bridge above it does not keep devices apart (no ACS)",
              "use a slot at the CPU or below a switch with ACS; relaxed_acs_check = 1 in /etc/libvirt/qemu.conf takes"
              " the separation away",
              "libvirt src/util/virpci.c, virPCIDeviceIsAssignable"),
    FaultLine(r"VF token (?:required to access device|incorrectly provided)[^\n]{0,40}|Incorrect VF token provided",
              "a virtual function of a device that vfio-pci has needs that one's token",
              "give both the same token (QEMU vf-token=UUID, DPDK --vfio-vf-token), or bind the physical function to"
              " its"
              " own driver",
              "Linux drivers/vfio/pci/vfio_pci_core.c, vfio_pci_validate_vf_token"),
    FaultLine(r"Failed to open /dev/vfio/devices/vfio\d{1,4}[^\n]{0,40}"
              r"|failed to load \"[^\"\n]{1,120}/vfio-dev/[^\n]{1,40}"
              r"|(?:open(?:ing)?|access) \"?/dev/iommu\b[^\n]{0,40}|IOMMUFD not supported on this node[^\n]{0,40}",
              "QEMU could not open the device through iommufd",
              "the kernel needs CONFIG_IOMMUFD and CONFIG_VFIO_DEVICE_CDEV (/dev/iommu, /dev/vfio/devices), and QEMU's"
              " user, cgroup or container the right to both; else leave iommufd out",
              "QEMU backends/iommufd.c, hw/vfio/iommufd.c; canonical/tdx issue 367; intel/tdx-linux issue 8"),
    FaultLine(r"no iommu_group found|missing group for address: [0-9a-f:.]{7,16}"
              r"|cannot access '/sys/kernel/iommu_groups|IOMMU not present|Cannot open iommu_group: No such file"
              r"|host doesn't support (?:VFIO PCI (?:interface|passthrough)|passthrough of host PCI devices)"
              r"|VFIO device assignment is currently not supported",
              "the device has no IOMMU group: the IOMMU is off, or VFIO is not there",
              "switch VT-d or AMD-Vi on in the firmware, boot with intel_iommu=on where the kernel asks for it, and"
              " load vfio-pci (in a container also /dev/vfio/vfio must be there)",
              "QEMU hw/vfio/pci.c; libvirt src/hypervisor/domain_driver.c"),
    FaultLine(r"probe of [0-9a-f:.]{7,16} with driver vfio-pci failed with error -22"
              r"|vfio-pci: probe of [0-9a-f:.]{7,16} failed with error -22"
              r"|vfio-pci [0-9a-f:.]{7,16}: probe with driver vfio-pci failed with error -22|No available IOMMU models"
              r"|drivers/vfio-pci/(?:bind|new_id)\b[^\n]{0,20}(?:\n[^\n]{0,60})?[Ii]nvalid argument",
              "VFIO refuses the device: it has no IOMMU group, or the IOMMU's part of VFIO is not loaded",
              "switch VT-d or AMD-Vi on in the firmware, load vfio_iommu_type1; a bridge cannot be passed",
              "Linux drivers/vfio/pci/vfio_pci_core.c; QEMU hw/vfio/container.c"),
    FaultLine(r"drivers/(?:vfio-pci|[\w-]{1,16}vfio[\w-]{0,6})(?:/\w{2,14})?'?: [Nn]o such file[^\n]{0,20}"
              r"|bind failed for [0-9a-f:.]{7,16} - Cannot open /sys/bus/pci/drivers/vfio[-_]pci/bind",
              "the driver vfio-pci is not loaded, or has another name here",
              "modprobe vfio-pci (GPUs of Grace: nvgrace_gpu_vfio_pci), and at each boot (/etc/modules-load.d,"
              " initramfs); hosttune plan binds the devices",
              "Linux drivers/vfio/pci/vfio_pci.c"),
    FaultLine(r"error (?:bind device fd=\d{1,6} to iommufd=|attach [0-9a-f:.]{7,40} \(\d{1,6}\) to )[^\n]{1,60}",
              "iommufd refuses the device: something else has it or its group, or its IOMMU does not take it",
              "bind all devices of its group to vfio-pci and give them to one guest; dmesg of that time says why else"
              " (no remapping of interrupts)",
              "QEMU hw/vfio/iommufd.c; Linux drivers/iommu/iommufd/device.c"),
    FaultLine(r"DMAR: (?:Failed to enable IOMMU|IOMMU initialization failed|Can't reserve memory)",
              "the kernel could not switch the IOMMU on: what the firmware says of it is wrong",
              "update the board's firmware, switch VT-d off and on in it; the DMAR lines before it name the unit",
              "Linux drivers/iommu/intel/iommu.c, intel_iommu_init"),
    FaultLine(r"unable to locate usable image|bios: ctor failed, -22",
              "the driver (nouveau) finds no VBIOS of the GPU, as in a guest that is not given it",
              "give the guest the ROM (<rom file=.../>) of this very card, or take NVIDIA's driver; a GPU of a notebook"
              " keeps it in ACPI tables",
              "Linux drivers/gpu/drm/nouveau/nvkm/subdev/bios/shadow.c; jscinoz/optimus-vfio-docs issue 2"),
    FaultLine(r"Cannot bind to PF with SRIOV enabled",
              "the physical function has virtual functions: it cannot be given to a guest itself",
              "echo 0 > /sys/bus/pci/devices/ADDRESS/sriov_numvfs with its own driver, then bind it; or give the guest"
              " a virtual function",
              "Linux drivers/vfio/pci/vfio_pci_core.c, vfio_pci_core_register_device"),
    FaultLine(r"No interrupt remapping (?:support|for this platform)[^\n]{0,80}|Interrupt Remapping hardware not found"
              r"|AMD-Vi: Disabling interrupt remapping|DMAR-IR: (?:Failed to enable irq remapping"
              r"|This system BIOS has enabled interrupt remapping)[^\n]{0,60}"
              r"|[Ff]ailed to set iommu for container: Operation not permitted",
              "the IOMMU does not remap interrupts, without which devices are not given to guests",
              "switch interrupt remapping (x2APIC, VT-d) on in the firmware and update it;"
              " allow_unsafe_interrupts takes the guests' separation away",
              "Linux drivers/vfio/vfio_iommu_type1.c, vfio_iommu_type1_attach_group"),
    FaultLine(r"Flags mismatch irq \d{1,5}\.[^\n]{0,40}vfio[^\n]{0,60}",
              "the device's interrupt line is shared with a driver of the host that does not share it",
              "let the guest's driver use MSI, or take the other device's driver away (/proc/interrupts shows it), or"
              " use another slot",
              "Linux kernel/irq/manage.c; drivers/vfio/pci/vfio_pci_intrs.c"),
    FaultLine(r"vfio_err_notifier_handler\([0-9a-f:.]{7,16}\) Unrecoverable error detected",
              "a passed device had an uncorrected PCIe error, and QEMU stopped the guest",
              "dmesg of the host has the error (AER): reseat the device or its riser, check its power, update its"
              " firmware",
              f"{_VFIO}, vfio_err_notifier_handler"),
    FaultLine(r"Unable to power on device, stuck in D\d",
              "the device does not wake: it stays in a sleep state",
              "power-cycle the host, then keep it awake (disable_idle_d3=1 of vfio-pci); if it comes back, its reset "
              "does"
              " not work: update its firmware",
              "QEMU hw/vfio/pci.c, vfio_pci_pre_reset"),
    # Once is a guest that reset its device; the kernel has then put all back.
    FaultLine(r"vfio_bar_restore: (?:[0-9a-f:.]{7,16} )?reset recovery[^\n]{0,30}"
              r"(?=(?:[\s\S]{0,4000}?reset recovery){2})",
              "a passed device loses its settings again and again: it does not come back from a reset",
              "read the lines before it (AER, link down, not ready after FLR); power-cycle the host if it stays so",
              "Linux drivers/vfio/pci/vfio_pci_config.c, vfio_bar_restore"),
    FaultLine(r"doesn't support reset from sysfs for PCI device \S{7,16}(?=[\s\S]{0,8000}?(?:refused to add device"
              r"|pci_add {1,2}failed|unable to add pci))"
              r"|no FLR, PM reset or bus reset available|Active [0-9a-f:.]{7,16} devices on bus with [0-9a-f:.]{7,16},"
              r" not doing bus reset",
              "the device cannot be reset alone: it has no reset of its own, or others on its bus are in use",
              "give the guest all functions of its bus, or none; cat /sys/bus/pci/devices/ADDRESS/reset_method shows"
              " what it has; a newer kernel or firmware may add one",
              "libvirt src/util/virpci.c, virPCIDeviceReset"),
    FaultLine(r"Unknown PCI header type '?(?:127|0x7f)|unknown header type 7f, ignoring device"
              r"|hiding cap 0xff@0xff|BAR \d{1,2}: error updating \([^\n]{0,16}0x\w{1,16} != 0xffffffff\)",
              "the device no longer answers: its configuration space reads as ones",
              "power-cycle the host; if it comes back, keep the device out of D3cold (disable_idle_d3=1 of vfio-pci)"
              " and update its firmware",
              "libvirt src/util/virpci.c, virPCIDeviceGetHeaderType"),
    FaultLine(r"no such host device: No such file or directory|Device [0-9a-f:.]{7,16} not found: could not "
              r"access[^\n]{0,80}|Could not open '/sys/bus/pci/devices/[0-9a-f:.]{7,16}/config': No such file"
              r"|Failed to allocate PCI device list: Device [0-9a-f:.]{7,16} not found"
              r"|PCI device mapping (?:invalid|not found)[^\n]{0,80}|could not find a free device for 'hostpci"
              r"|no PCI device found for '[^'\n]{1,40}'",
              "the device that the guest asks for is not on the host",
              "lspci -D shows the addresses that are there: they change with slots and firmware; a device that is gone"
              " is lost (dmesg)",
              "QEMU hw/vfio/pci.c, vfio_realize; libvirt src/util/virpci.c"),
    FaultLine(r"Non-endpoint PCI devices cannot be assigned",
              "a bridge was given to the guest, and only devices can be",
              "give it the functions below the bridge; the bridge stays with the host",
              "libvirt src/hypervisor/virhostdev.c"),
    FaultLine(r"PCI device [0-9a-f:.]{7,16} is in use by driver \w{1,20}, domain [^\n']{1,60}"
              r"|PCI device '?[0-9a-f:.]{7,16}'? (?:is )?already in use by VMID '?\d{1,9}"
              r"|blocked until (?:device is released"
              r"|released by user)",
              "another guest has the device",
              "stop that guest, or give this one another device (hosttune plan knows which are free)",
              "libvirt src/hypervisor/virhostdev.c; Proxmox qemu-server PCI.pm"),
    FaultLine(r"vfio [0-9a-f:.]{7,16}: device is already attached",
              "the device is given to the same guest twice",
              "name it once: of a container /dev/vfio/N or /dev/vfio/devices/vfioN, as the device plugin's and the"
              " runtime's releases agree",
              "QEMU hw/vfio/container.c, vfio_device_attach; kubevirt-gpu-device-plugin issue 147"),
    FaultLine(r"Failed to bind PCI device '?[0-9a-f:.]{7,16}'? to vfio-pci[^\n]{0,60}|PciDevicePrepareFailed[^\n]{0,80}"
              r"|Failed to prepare PCI device \S{4,60}|can't unbind/bind PCI group to VFIO '[^'\n]{1,40}"
              r"|error writing '[^'\n]{1,40}' to '/sys/bus/pci/drivers/[\w-]{1,20}/(?:un)?bind'[^\n]{0,40}",
              "the device could not be bound to vfio-pci",
              "dmesg says why: the host's driver does not let it go, it has no IOMMU group, or vfio-pci is not loaded;"
              " bind it at boot (hosttune plan)",
              "libvirt src/util/virpci.c, virPCIDeviceBindToStub; OpenStack Nova libvirt driver"),
    FaultLine(r"(?:Unable to write to '|Failed to add PCI device ID [^\n]{0,60})[^\n]{0,80}Read-only file system"
              r"|/sys/bus/pci/devices/[0-9a-f:.]{7,16}/config': Permission denied",
              "libvirt in a container may not write to the host's devices, so it cannot bind one",
              "bind it to vfio-pci on the host before, and let a device plugin offer it (managed='no')",
              "libvirt src/util/virpci.c; kubevirt issue 3309"),
    FaultLine(r"only root can set '(?:hostpci|args)\w{0,4}'[^\n]{0,60}",
              "Proxmox lets only root@pam name a raw PCI device",
              "make a resource mapping of it (Datacenter, Resource Mappings), give the user Mapping.Use and name the"
              " mapping; or log in as root@pam with its password, not with a token",
              "Proxmox qemu-server API2/Qemu.pm; bpg/terraform-provider-proxmox issue 495"),
    FaultLine(r"Insufficient compute resources: Claim pci failed|PCI device request [^\n]{1,80}failed"
              r"|PciDeviceRequestFailed|PCI alias \S{1,60} is not defined|Invalid PCI (?:alias definition"
              r"|devices Whitelist)"
              r"[^\n]{0,60}",
              "Nova has no free PCI device that fits the request",
              "compare [pci] device_spec and alias with lspci -nn (vendor, product, device_type, numa_policy), and what"
              " other instances have",
              "OpenStack Nova documentation, PCI passthrough"),
    FaultLine(r"PCI_RESOURCE_[\w-]{1,80} not set for resource [^\s\"]{1,80}|(?:GPU"
              r"|HostDevice) \S{1,80} is not permitted in permittedHostDevices"
              r"|the number of \S{1,12} do not match the number of devices",
              "KubeVirt does not know the device that the guest asks for",
              "name it in permittedHostDevices of the KubeVirt resource exactly as kubectl describe node shows it"
              " (externalResourceProvider with a device plugin of its own), and see that the plugin has it",
              "KubeVirt user guide, Host devices; kubevirt issue 11135"),
    FaultLine(r"(?:hot|cold)_plug_vfio= port is not set|cold_plug_vfio= or hot_plug_vfio="
              r"|_plug_vfio port is not configured"
              r"|because cold_plug_vfio is disabled|QMP command failed: Device '[\w-]{1,60}' not found"
              r"|Number of PCIe (?:Root|Switch) Ports exceeed",
              "Kata has no port for the device",
              "set cold_plug_vfio = \"root-port\" (hot_plug_vfio then \"no-port\") and pcie_root_port in the"
              " configuration.toml that the runtime class really uses",
              "Kata containers documentation, VFIO; its issue 9014"),
    FaultLine(r"Resetting GPU [0-9A-Fa-f:.]{7,16} is not supported|GPU [0-9A-Fa-f:.]{7,16}: Not Supported\b",
              "the GPU cannot be reset from here: the hypervisor does not let the guest, or its model has no reset",
              "in a guest stop and start it from its host (a cloud: stop the instance); a pending MIG or ECC mode waits"
              " for that",
              "nvidia-smi documentation, --gpu-reset; kubernetes-sigs/dra-driver-nvidia-gpu issue 883"),
    # What the guest's definition asks for
    FaultLine(r"Need to enable igd-passthru[^\n\"]{0,60}",
              "the guest gets an Intel GPU of the CPU without the hypervisor's support for it",
              "Xen: gfx_passthru=\"igd\" (QEMU -machine igd-passthru=on); else pass a GPU of its own",
              "QEMU hw/xen/xen_pt.c, xen_pt_realize"),
    FaultLine(r"vhost-user-fs-pci[^\n]{0,80}Failed to read msg header\. Read 0 instead of 12",
              "the guest's file server (virtiofsd) ended, so QEMU did not start",
              "its own log says why: memory of the guest must be shared (memfd or huge pages), shm large enough, and"
              " virtiofsd of QEMU's age",
              "QEMU hw/virtio/vhost-user.c; kata-containers issue 3541"),
    FaultLine(r"KVM_SET_USER_MEMORY_REGION2? failed, slot=[^\n]{1,160}",
              "KVM refuses a part of the guest's memory",
              "take QEMU, kernel and firmware of one release; Invalid argument: a confidential guest's memory must be"
              " memfd and fit its flags; File exists: two devices lie at one address",
              "QEMU accel/kvm/kvm-all.c, kvm_set_user_memory_region; amd/sev-utils issue 17"),
    FaultLine(r"PLACEHOLDER_FOR_DISTRO_QEMU\w{0,40} does not exist[^\n]{0,20}"
              r"|configuration[\w-]{0,40}\.toml: file \S{1,200} does not exist",
              "Kata's configuration names a program or file that is not on this host",
              "install what it names (of TDX the distribution's QEMU), or write the right path; take the newest"
              " kata-deploy, which brings its own",
              "kata-containers src/runtime/pkg/katautils; confidential-containers/operator issue 496"),
    FaultLine(r"no CDI annotations, no devices to inject",
              "Kata's runtime was given no device for this container",
              "the pod must ask for the plugin's resource (nvidia.com/pgpu: 1), and the plugin for GPUs of guests must"
              " run and have written its CDI file (/var/run/cdi)",
              "kata-containers src/runtime; its issue 12186"),
    FaultLine(r"Unknown device type vfio-\w{2,8}\b",
              "Kata's agent in the guest does not know the device's type: image and runtime are of different releases",
              "take image, kernel and runtime of one Kata release (kata-deploy)",
              "kata-containers src/agent/src/device; its issue 7612"),
    FaultLine(r"discoverDevices\(\) error adding new device[^\n]{0,120}",
              "the plugin for virtual functions finds no network interface of a NIC: it is bound to vfio-pci itself",
              "leave the physical function with its own driver; bind only its virtual functions to vfio-pci",
              "k8snetworkplumbingwg/sriov-network-device-plugin issue 153"),
    FaultLine(r"Unsupported reset method '\w{2,24}'",
              "the device has not the reset that was set for it",
              "cat /sys/bus/pci/devices/ADDRESS/reset_method shows those it has; device_specific of AMD GPUs needs"
              " vendor-reset loaded, of a version that knows the model",
              "Linux drivers/pci/pci.c, reset_method_store; gnif/vendor-reset issue 82"),
    FaultLine(r"GPU [0-9a-f:.]{7,16} \[broken, cfg space (?:not )?working[^\n]{0,60}",
              "NVIDIA's tool for confidential mode cannot reach the GPU's registers",
              "run it as root with the GPU awake and bound to vfio-pci or no driver, with --mmio-access-type=sysfs"
              " where"
              " the kernel is locked down; if its configuration space fails too, power-cycle the host",
              "NVIDIA/gpu-admin-tools; NVIDIA/nvtrust issue 51"),
    FaultLine(r"Address space limit 0x[0-9a-f]{1,16} < 0x[0-9a-f]{1,16} phys-bits too low \(\d{1,3}\)"
              r"|phys-bits should be between \d{1,3} and \d{1,3}[^\n]{0,40}"
              r"|Hotplug memory \[0x[0-9a-fx-]{1,40}\] exceeds maximum addressable range[^\n]{0,40}"
              r"|has less physical address bits than[^\n]{0,60}",
              "the guest's address width does not fit its memory and its window for BARs",
              "host-phys-bits=on (libvirt: <maxphysaddr mode='passthrough'/>), a smaller window (pci-hole64-size) or"
              " less maxmem; reduced-phys-bits of SEV takes bits away",
              "QEMU hw/i386/pc.c, pc_memory_init; target/i386/host-cpu.c"),
    FaultLine(r"combined size of system firmware exceeds[^\n]{0,60}",
              "the guest's firmware images are larger than QEMU takes",
              "-machine max-fw-size=16M, or the distribution's own pair of OVMF_CODE and OVMF_VARS (4M or 2M, alike)",
              "QEMU hw/i386/pc_sysfw.c, pc_system_flash_map"),
    FaultLine(r"could not (?:open|configure) /dev/net/tun[^\n]{1,80}|Unable to open /dev/net/tun[^\n]{1,80}",
              "QEMU or libvirt could not make the guest's network interface (tap)",
              "modprobe tun; give QEMU's user or container /dev/net/tun and NET_ADMIN; busy: the tap's name is in use",
              "QEMU net/tap-linux.c; libvirt src/util/virnetdevtap.c"),
    FaultLine(r"Child process \([^\n]{0,80}swtpm_setup[^\n]{0,160}unexpected exit status \d{1,3}[^\n]{0,80}",
              "the guest's TPM could not be made: swtpm_setup failed",
              "read /var/log/swtpm/libvirt/qemu/GUEST-swtpm.log; its folders belong to the user tss, and"
              " /var/lib/swtpm-localca must be writable",
              "libvirt src/qemu/qemu_tpm.c"),
    FaultLine(r"device does not support requested feature x-[a-z]{2,4}[\w-]{0,20}|this isn't a PCI device"
              r"|unexpected number of (?:io|irq) regions \d{1,4}|failed getting region info for VGA region[^\n]{0,60}",
              "VFIO's driver does not offer what the guest's definition asks of the device",
              "leave x-vga, x-igd-opregion and the like out unless it is a GPU for display bound to vfio-pci itself;"
              " lspci -k shows its driver",
              "QEMU hw/vfio/pci.c, vfio_populate_device"),
    FaultLine(r"Could not open VFIO Container|VfioCreate\(Open(?:Group|Container)[^\n]{0,60}|(?:failed to open "
              r"|open error on )/dev/vfio/\w{1,8}: [^\n']{1,60}|/dev/vfio/\w{1,8}: (?:[Nn]o such file"
              r"|Device or resource busy|Permission denied)"
              r"|unable to set user and group to '[\w:]{1,40}' on '/dev/vfio/\w{1,8}': [^\n]{1,60}",
              "QEMU could not open the device's VFIO group",
              "No such file: bind the device to vfio-pci; busy: another guest or process has the group (fuser -v"
              " /dev/vfio/*); denied: give QEMU's user the file, also in its cgroup and its security profile",
              "QEMU hw/vfio/container.c, vfio_group_get"),
    FaultLine(r"apparmor=\"DENIED\"[^\n]{1,80}profile=\"libvirt-[^\"\n]{1,60}\" name=\"(?:/dev/(?:vfio|hugepages|kvm"
              r"|iommu|infiniband|shm)|[^\"\n]{1,200}\.(?:rom|bin|qcow2|img|fd)\")[^\n]{0,40}"
              r"|avc: {1,2}denied[^\n]{1,300}svirt[^\n]{1,120}(?:vfio_device_t|hugetlbfs_t|sysfs_t)[^\n]{0,40}"
              r"|backing store[^\n]{0,100}: Permission denied|cannot load AppArmor profile[^\n]{0,80}",
              "the guest's security profile or the file's rights keep QEMU from a file that it needs",
              "name the file in the guest's XML, so that libvirt allows it; of others a rule in"
              " /etc/apparmor.d/abstractions/libvirt-qemu, or the label (ls -Z, restorecon) and the owner of QEMU's"
              " user",
              "libvirt documentation, AppArmor and SELinux drivers"),
    FaultLine(r"failed to find romfile[^\n]{0,100}|Cannot read device rom at[^\n]{0,60}"
              r"|romfile[^\n]{0,100}: Permission denied",
              "QEMU cannot read the ROM that the guest is given",
              "the file must be there and readable by QEMU's user, in every folder above it; put it under"
              " /usr/share/qemu or /usr/share/vgabios (AppArmor), or leave it out",
              "QEMU hw/pci/pci.c, pci_add_option_rom; hw/vfio/pci.c"),
    FaultLine(r"Could not open '/[^'\n]{1,200}': (?:Permission denied|No such file or directory)"
              r"|Cannot access storage file '[^'\n]{1,200}'[^\n]{0,80}|Failed to create file '[^'\n]{1,200}':"
              r" [^\n]{1,60}",
              "a file of the guest cannot be opened or written",
              "Permission denied: QEMU's user must be able to enter each folder and read the file; Input/output error,"
              " No space: the file system (dmesg, df)",
              "QEMU block/file-posix.c; libvirt src/storage_file"),
    FaultLine(r"Failed to get (?:shared )?\"(?:write|consistent read)\" lock",
              "another process has the guest's disk image open",
              "stop the other guest or the tool (lsof on the image); one image is for one guest, unless it is"
              " shareable",
              "QEMU block/file-posix.c, image locking"),
    FaultLine(r"(?:Unable to write to|[Cc]annot write)[^\n]{0,140}cpuset\.(?:cpus|mems)[^\n]{0,80}"
              r"|Invalid value '[^'\n]{1,80}' for 'cpuset\.(?:cpus|mems)'|NUMA node \d{1,4} is unavailable"
              r"|cannot set CPU affinity on process \d{1,10}[^\n]{0,40}|cannot bind memory to host NUMA nodes:"
              r" (?:Invalid|Operation)[^\n]{0,30}",
              "the guest is pinned to CPUs or to a node's memory that QEMU may not use",
              "compare the pins with lscpu and with cpuset.cpus.effective and cpuset.mems.effective of the slice or"
              " container that starts QEMU (in a container it needs SYS_NICE); a node without memory is none; offline"
              " CPUs"
              " count as missing",
              "libvirt src/util/vircgroup*.c, virnuma.c; Linux Documentation/admin-guide/cgroup-v2.rst, cpuset"),
    FaultLine(r"more than 255 v[Cc][Pp][Uu]s (?:require|are only)[^\n]{0,80}"
              r"|current -smp configuration requires[^\n]{0,60}|Number of SMP cpus requested \(\d{1,5}\)"
              r" exceeds[^\n]{0,80}|Invalid SMP CPUs \d{1,5}[^\n]{0,80}|MAX \d{1,4} vcpus allowed",
              "the guest has more CPUs than its machine type allows as it is set",
              "above 255: machine type q35, <iommu model='intel'><driver intremap='on' eim='on'/></iommu>, IOAPIC"
              " split; at most as many as the machine type's limit (newer types have more)",
              "QEMU hw/i386/x86.c; libvirt src/qemu/qemu_validate.c"),
    FaultLine(r"unsupported machine type '[^'\n]{1,60}'|does not support machine type[^\n]{0,60}",
              "this QEMU does not have the guest's machine type: it comes from a newer or another QEMU",
              "take one that -machine help lists (virsh edit), or update QEMU",
              "QEMU system/vl.c; libvirt src/qemu/qemu_capabilities.c"),
    FaultLine(r"does not accept value '(?:tdx|sev|sev-snp|snp)-guest'|(?:launch security|is|are) not supported (?:with"
              r"|by) this QEMU(?: binary)?|unsupported configuration: [^\n]{1,100}not supported (?:with"
              r"|by) this QEMU[^\n]{0,20}"
              r"|is not a valid (?:device model|object type) name|[Pp]roperty '[\w.-]{1,60}' not found",
              "this QEMU lacks something that the guest's definition asks for",
              "install the QEMU that has it (a distribution's own build for TDX or SEV-SNP; an update may have replaced"
              " it), or leave it out of the definition",
              "QEMU qom/object_interfaces.c; libvirt src/qemu/qemu_validate.c; canonical/tdx issue 46"),
    FaultLine(r"guest and host CPU are not compatible[^\n]{0,120}|Host doesn't support requested features"
              r"|error: failed to set MSR 0x[0-9a-f]{1,8}",
              "the guest's CPU asks for something that the host's CPU does not have",
              "<cpu mode='host-passthrough'/> or host-model; after a migration the model of the older host",
              "libvirt src/qemu/qemu_process.c; QEMU target/i386"),
    FaultLine(r"No '[\w.-]{1,20}' bus found for device|Bus '[\w.-]{1,40}' not found|Invalid PCI address [^\n]{1,60}"
              r"|Single function device addresses with function=0 expected"
              r"|Attempted double use of PCI Address[^\n]{0,60}|No more available PCI (?:slots|addresses)"
              r"|PCI: no slot/function available for[^\n]{0,60}|PCI: slot \d{1,3} function \d (?:not available"
              r"|already occupied)[^\n]{0,60}|PCI: [0-9a-f.]{1,6} indicates single function[^\n]{0,60}",
              "the place on the guest's PCI bus is not there or taken",
              "leave the addresses to libvirt (delete <address type='pci'…/> of the new device), and add pcie-root-port"
              " controllers; of Kata pcie_root_port",
              "QEMU hw/pci/pci.c; libvirt src/conf/domain_addr.c"),
    FaultLine(r"Unable to find (?:'efi'|any (?:master var store|firmware))[^\n]{0,80}"
              r"|unable to find any master var store[^\n]{0,60}",
              "libvirt finds no UEFI firmware that fits the guest's definition",
              "install the firmware (ovmf, edk2-ovmf); compare what <firmware> and <loader> ask for (secure boot,"
              " stateless) with /usr/share/qemu/firmware/*.json",
              "libvirt src/qemu/qemu_firmware.c"),
    FaultLine(r"Hook script execution failed[^\n]{0,160}",
              "a hook script of libvirt failed, so the guest was not started",
              "run /etc/libvirt/hooks/qemu GUEST prepare begin - by hand and mend what it reports; it must be"
              " executable",
              "libvirt documentation, Hooks for specific system management"),
    FaultLine(r"network '[^'\n]{1,60}' is not active|Cannot get interface MTU on '[^'\n]{1,20}'[^\n]{0,30}"
              r"|Unable to get index for interface [^\n]{1,40}",
              "the guest's network or bridge is not there",
              "virsh net-start NAME and net-autostart, or make the bridge (ip -br link)",
              "libvirt src/network/bridge_driver.c, src/util/virnetdev.c"),
    FaultLine(r"Could not access KVM kernel module: [^\n]{1,40}|KVM: (?:disabled by BIOS|VMX not (?:enabled|supported))"
              r"|hardware emulation device '/dev/kvm' not present|failed to initialize kvm: No such (?:device"
              r"|file)[^\n]{0,20}"
              r"|kvm: (?:disabled by bios|no hardware support)|Domain requires KVM, but it is not available"
              r"|kvm_(?:intel: VMX|amd: SVM) (?:not supported|not enabled|disabled)[^\n]{0,40}"
              r"|VMX \(outside TXT\) disabled by"
              r" BIOS|kvm: support for '\w{2,10}' disabled by BIOS",
              "KVM cannot be used: virtualization is off, or its module is not loaded",
              "switch VT-x or SVM on in the firmware, load kvm_intel or kvm_amd, and give QEMU /dev/kvm",
              "QEMU accel/kvm/kvm-all.c; Linux arch/x86/kvm/x86.c"),
    FaultLine(r"failed to initialize kvm: Device or resource busy|ioctl\(KVM_CREATE_VM\) failed: 16\b"
              r"|kvm: enabling virtualization on CPU\d{1,5} failed",
              "another hypervisor of this host has the CPU's virtualization",
              "stop it (VirtualBox, VMware, a debugger), then start the guest",
              "Linux virt/kvm/kvm_main.c; QEMU accel/kvm/kvm-all.c"),
    FaultLine(r"start failed: command '[^'\n]{0,4000}[^\n]{0,4000}failed: got timeout"
              r"|qmp command 'query-\w{1,20}[^\n]{0,80}timeout after \d{1,4} retries",
              "starting the guest takes longer than Proxmox waits: all its memory is pinned for the passed device",
              "back it with 1 GiB huge pages (hugepages: 1024), or start it with qm start VMID --timeout 600; it often"
              " runs in the end",
              "Proxmox qemu-server QemuServer/Helpers.pm, config_aware_timeout; bpg/terraform-provider-proxmox issue"
              " 1353"),
    FaultLine(r"BAR \d{1,2}(?:: no space for \[mem size [^\n]{1,40}|"
              r" \[mem size [^\n]{1,40}: can't assign; no space)(?=[\s\S]{0,40000}?failed with error -12\b)"
              r"|BAR [0-5]: failed to assign \[mem size 0x[0-9a-f]{9,16} 64bit pref\]"
              r"|BAR [0-5] \[mem size 0x[0-9a-f]{9,16} 64bit pref\]: failed to assign"
              r"|can't enable device: BAR \d [^\n]{1,60} not (?:assigned|claimed)"
              r"|can't handle BAR larger than 4GB",
              "a BAR found no address: the window for PCI memory is too small",
              "host: Above 4G Decoding, Resizable BAR and SR-IOV in the firmware, or pci=realloc; guest: UEFI "
              "firmware and"
              " a 64-bit window that holds its BARs (hosttune plan computes it)",
              "Linux drivers/pci/setup-res.c, pci_assign_resource; drivers/pci/iov.c"),
    FaultLine(r"[Ff]ailed (?:moving device BAR|allocating new MMIO range)[^\n]{0,80}"
              r"|PCIPassthru: total number of pages needed \(\d{1,12}\) exceeds limit[^\n]{0,30}"
              r"|dxgk: [^\n]{0,40}Unable to allocate mmio memory[^\n]{0,8}"
              r"|Virtual P[Cc][Ii] Express Port[^\n]{0,120}Insufficient system resources[^\n]{0,60}"
              r"|Need 0x[0-9a-f]{1,16} of (?:low|high) MMIO space[^\n]{0,40}"
              r"|cannot find enough free resources that it can use|CM_PROB_NORMAL_CONFLICT",
              "the guest's window for PCI memory is too small for the device",
              "give the guest a 64-bit window that holds its BARs (hosttune plan computes it; Hyper-V: Set-VM"
              " -HighMemoryMappedIoSpace; VMware: pciPassthru.use64bitMMIO=TRUE and 64bitMMIOSizeGB), and UEFI"
              " firmware",
              "cloud-hypervisor pci/src/configuration.rs; issue 6147; Linux drivers/pci/controller/pci-hyperv.c; Dell"
              " article 000199172"),
    FaultLine(r"memory reservation \(sched\.mem\.min\) should be equal to memsize[^\n]{0,12}",
              "VMware starts a guest with a passed device only if all of its memory is reserved",
              "Reserve all guest memory (sched.mem.min as large as memSize, sched.mem.pin = TRUE)",
              "VMware KB 2002779"),
    FaultLine(r"Device insertion detected while prior device \S{7,16} removal is still pending"
              r"|[Dd]evice \d{1,5}:\d{1,3}\.\d is not a passthrough device",
              "ESXi no longer has the device as one to pass: it was unplugged and plugged again, or is not marked",
              "esxcli system settings kernel set -s enablePCIEHotplug -v FALSE and reboot the host, where the reset of"
              " the device looks like hot-plug; else mark it under Host, PCI Devices again",
              "HPE a00121002en_us; Broadcom, GPU in passthrough mode fails to start"),
    FaultLine(r"vendorId does not match the device currently at [\w:.]{3,16}",
              "the passed device is no longer at the address that the guest's definition names",
              "take the PCI device out of the guest and add it again: addresses change with slots and firmware",
              "VMware PowerCLI forum, the systemId does not match"),
    FaultLine(r"does not allow for OS control of the PCI Express bus|must be updated to allow Windows to control PCI"
              r" Express|does not do (?:interrupt|DMA) remapping, without which|configured to disable the use of I/O"
              r" remapping|I/O virtualization is enabled in the BIOS|does not support Access Control Services \(ACS\)"
              r" at any root port|BIOS must be updated because it contains incorrect information",
              "Hyper-V gives no device away: the firmware keeps PCI Express, or its IOMMU or ACS is off or lacks",
              "firmware: VT-d or AMD-Vi, SR-IOV, ACS and native control of PCI Express on, newest version, cold boot;"
              " Get-VMHost | fl IovSupport* says what is left",
              "Microsoft KB 2762297"),
    FaultLine(r"manufacturer of this device has not supplied any directives for securing this device",
              "Hyper-V takes the device from the host only when forced: its maker gives no directives for securing it",
              "Dismount-VMHostAssignableDevice -Force -LocationPath PATH, for guests that are trusted; a partitioning"
              " driver of the maker brings the directives",
              "Microsoft, Deploy graphics devices by using Discrete Device Assignment"),
    FaultLine(r"Virtual P[Cc][Ii] Express Port[^\n]{0,120}(?:hypervisor feature is not available"
              r"|0xC035001E)[^\n]{0,40}",
              "this Windows does not give devices to guests: it is no server, or the IOMMU is off",
              "take Windows Server (2016 or later) or its Hyper-V; there see that Get-VMHost's IovSupport is true",
              "Microsoft, Plan for deploying devices by using Discrete Device Assignment"),
    FaultLine(r"(?:GPU|GeForce|Tesla|Quadro|RTX|GRID|Radeon|Instinct)[^\n]{0,40}\n[^\n]{0,8}(?:Traffic from this"
              r" device may be redirected|BIOS requires that this device|BIOS kept control of PCI Express|All of the"
              r" interrupts are line-based)[^\n]{0,80}"
              r"|Generating a list of PCI[^\n]{0,30}\n{1,3}[^\n]{1,80}\n(?:Traffic from this device may be"
              r"|BIOS requires that this)[^\n]{0,80}(?![\s\S]{0,20000}can work)",
              "Hyper-V cannot give the device to a guest",
              "redirected: a bridge above it has no ACS, use a slot at the CPU; BIOS: the firmware keeps memory for it"
              " or control of it, switch off there what uses it (shared memory of the BMC), or update it",
              "MicrosoftDocs/Virtualization-Documentation, SurveyDDA.ps1"),
    FaultLine(r"It's disallowed to assign \S{7,16} with shared RMRR[^\n]{0,60}",
              "the IOMMU refused the device to a guest: the firmware keeps memory for it",
              "switch off in the firmware what uses it (shared memory of the BMC, legacy USB), or update it;"
              " rdm_policy=relaxed of its pci entry only if nothing uses that memory",
              "Xen xen/drivers/passthrough/vtd/iommu.c; xl-pci-configuration(5)"),
    FaultLine(r"xen_pciback: Error parsing pci_devs_to_hide at[^\n]{0,60}",
              "the kernel argument that hides devices from dom0 has an address that is none, so none is hidden",
              "xen-pciback.hide=(0000:BUS:DEVICE.FUNCTION) as lspci -D shows them, then reboot",
              "Linux drivers/xen/xen-pciback/pci_stub.c, pcistub_init; xcp-ng/xcp issue 412"),
    FaultLine(r"Looks like pciback driver (?:is )?not loaded",
              "dom0 has no driver that gives devices to guests (xen-pciback)",
              "modprobe xen-pciback, or hide the devices at boot (xen-pciback.hide=, dmesg says whether it was"
              " understood)",
              "Xen tools/libs/light/libxl_pci.c; xcp-ng/xcp issue 320"),
    FaultLine(r"Device\.PCI\.Cannot_add|xc_assign_device failed[^\n]{0,60}"
              r"|assign \([0-9a-f:.]{7,16}\) failed \(-\d{1,3}\)",
              "Xen's IOMMU did not take the device for the guest",
              "VT-d or AMD-Vi on in the firmware (xl info must list hvm_directio); xl dmesg says why else",
              "docs.xcp-ng.org, PCI passthrough; Xen tools/libs/light/libxl_pci.c"),
    FaultLine(r"Failed to get contiguous memory for DMA from Xen[^\n]{0,4}|pcifront pci-\d: Could not setup SWIOTLB",
              "a guest of Xen found no memory in one piece for its devices (swiotlb)",
              "give that guest (of a device model the stub domain) more memory, or a smaller swiotlb=; free memory"
              " below 4 GiB, after a boot there is most",
              "Linux drivers/xen/swiotlb-xen.c; QubesOS/qubes-issues issue 9971"),
    FaultLine(r"attach to a device that was already attached to another device",
              "another program in the guest has Looking Glass's shared memory open",
              "one host application only: the service runs it already; end the other one",
              "gnif/LookingGlass issue 547"),
    FaultLine(r"Maximum frame size of \d{1,12} bytes exc{1,2}ee?ds max[^\n]{0,30}",
              "Looking Glass's shared memory is too small for the guest's resolution",
              "width × height × 8 bytes and 10 MiB, rounded up to a power of two: the size of <shmem> (kvmfr:"
              " static_size_mb)",
              "Looking Glass documentation, Determining memory"),
    FaultLine(r"ivshmemOpenDev[^\n]{0,40}Failed to open: \S{1,80}[^\n]{0,4}(?:\n[^\n]{1,160})?",
              "Looking Glass's client cannot open the shared memory",
              "No such file: start the guest first, or load kvmfr; Permission denied: give the user the file"
              " (tmpfiles.d, udev: 0660, owner the user, group kvm)",
              "gnif/LookingGlass common/src/platform/linux/ivshmem.c"),
    FaultLine(r"Unable to enumerate the device, (?:it is|is it) attached[^\n]{0,60}"
              r"|ivshmem(?:Init|Open)[^\n]{0,30}SetupDi\w{4,40} failed[^\n]{0,60}",
              "the guest has no shared memory device for Looking Glass (IVSHMEM), or no driver for it",
              "<shmem name='looking-glass'><model type='ivshmem-plain'/>…; in the guest its driver (virtio-win)",
              "gnif/LookingGlass common/src/platform/windows/ivshmem.c; its issue 236"),
    FaultLine(r"Expected KVMFR version \d{1,4}, got \d{1,4}|KVMFR version missmatch[^\n]{0,40}|host application is not"
              r" compatible with this client|LGMP_ERR_INVALID_VERSION",
              "Looking Glass's client and the application in the guest are of different releases",
              "install the same release on both sides, and its kvmfr module",
              "gnif/LookingGlass client/src/main.c, reportBadVersion"),
    FaultLine(r"PCI Pass-through VSP failed D0 Entry with status [0-9a-f]{1,8}",
              "Hyper-V does not bring the passed device up for the guest",
              "stop and start the guest (Azure: deallocate it), so that the host resets the device; its event log says"
              " why; in Azure report it if it stays so",
              "Linux drivers/pci/controller/pci-hyperv.c, hv_pci_enter_d0"),
    FaultLine(r"%Cpu\(s\):[^\n]{0,90}[ ,](?:[1-9]\d|100)\.\d ?%?st\b",
              "the host gives the guest's CPUs to others (steal time)",
              "pin the guest's CPUs to CPUs of their own (hosttune plan), and see what else runs there",
              "top(1): st; Linux Documentation/virt/kvm/x86/msr.rst, MSR_KVM_STEAL_TIME"),
    FaultLine(r"failed to (?:load|start) Boot[0-9A-F]{4} \"[^\n]{1,160}: Access Denied",
              "the guest's Secure Boot refuses what it is to boot",
              "sign it, or give the guest firmware and variables without Secure Boot (<firmware><feature enabled='no'"
              " name='secure-boot'/>)",
              "edk2 MdeModulePkg BdsDxe"),
    FaultLine(r"Cannot find '[\w.-]{2,30}' in path: No such file",
              "a program that libvirt calls is not installed",
              "install it where libvirt runs, also in its container (mdevctl for vGPUs, swtpm for a TPM)",
              "libvirt src/util/vircommand.c; vexxhost/atmosphere pull request 3313"),
    FaultLine(r"module 'libvirt' has no attribute '\w{1,60}'",
              "the Python binding of libvirt is older than the program needs",
              "install python3-libvirt of the distribution's libvirt, not one built for another version",
              "libvirt-python; vexxhost/atmosphere issue 741"),
    FaultLine(r"failed to connect to the hypervisor[^\n]{0,160}",
              "libvirt's service is not reached",
              "systemctl start libvirtd (or virtqemud.socket); the user must be in the group libvirt, and a container"
              " have its socket",
              "libvirt src/rpc/virnetsocket.c"),
    FaultLine(r"Checking (?:for device assignment IOMMU support|if IOMMU is enabled by kernel"
              r"|for hardware virtualization|if device /dev/kvm)[^\n]{0,60}: (?:FAIL|WARN) \([^\n]{1,160}",
              "the IOMMU or the CPU's virtualization is off, or not seen from here",
              "switch VT-x and VT-d or SVM and AMD-Vi on in the firmware; a container sees the host's tables only if it"
              " is given them: run virt-host-validate on the host",
              "libvirt tools/virt-host-validate-qemu.c"),
    FaultLine(r"Parameter '[\w.-]{1,40}' (?:expects|is missing|does not accept)[^\n]{0,60}"
              r"|Invalid parameter '[^'\n]{1,40}'",
              "QEMU refuses a value of the guest's definition",
              "correct it (virsh edit GUEST, also <qemu:commandline> and <qemu:override>), in the form that the error"
              " names",
              "QEMU qapi/qmp/qerror.h; qapi/qobject-input-visitor.c"),
    # Of libvirt what no row above knows
    FaultLine(r"XML error: [^\n]{1,160}|unsupported configuration: [^\n]{1,160}",
              "libvirt refuses the guest's definition, and says what does not fit",
              "correct it (virsh edit GUEST), or let hosttune plan write it; virt-xml-validate finds misplaced"
              " elements",
              "libvirt, virErrorNumber: VIR_ERR_XML_ERROR, VIR_ERR_CONFIG_UNSUPPORTED"),
    FaultLine(r"vfio (?:error: )?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}: (?:error getting device from group \d{1,5}"
              r"|failed to read device config space): [^\n]{1,40}",
              "a vGPU (mediated device) did not start: its driver refused it",
              "journalctl -u nvidia-vgpu-mgr says why; its UUID must be of this guest alone (a cloned guest has the"
              " same), and all vGPUs of a GPU of one type unless it is in mixed mode",
              "Linux Documentation/driver-api/vfio-mediated-device.rst; anomixer/proxmox-vgpu-installer issue 22"),
)  # fmt: skip
# What is seen of a fault whose cause another line may say.
GUEST_SYMPTOMS: tuple[FaultLine, ...] = (
    FaultLine(r"vfio_region_write\([^\n]{1,80}failed: Device or resource busy",
              "something else holds a BAR that VFIO needs",
              "see what holds it in /proc/iomem; a console of the firmware (BOOTFB, simple-framebuffer) goes with"
              " initcall_blacklist=sysfb_init, or by making another GPU the boot display",
              "QEMU hw/vfio/region.c; Linux drivers/vfio/pci/vfio_pci_rdwr.c"),
    FaultLine(r"error: vmiop_log: (?:\(0x\w{1,4}\): )?XID \d{1,3} detected on[^\n]{0,80}",
              "work of a vGPU failed (an XID of its guest)",
              "the XID's number says what: 43, 31 and 13 come from the guest's program or driver (its release must fit"
              " the host's); others are of the GPU: dmesg of the host",
              "NVIDIA vGPU documentation, troubleshooting; NVIDIA XID catalogue"),
    FaultLine(r"error: vmiop_(?:env_)?log: (?!(?:\(0x\w{1,4}\): )?XID )[^\n]{1,140}"
              r"|\[nvidia-vgpu-vfio\][^\n]{1,80}start failed[^\n]{0,60}"
              r"|error: Failed to initialize RM client[^\n]{0,40}",
              "the host's vGPU manager could not start the vGPU",
              "its first error line says why: journalctl -u nvidia-vgpu-mgr; the host needs the vGPU driver of the"
              " hypervisor's kernel, a GPU of its list, and ECC or MIG as the type wants",
              "NVIDIA vGPU documentation, troubleshooting"),
    FaultLine(r"Cannot reset device [0-9a-f:.]{7,16}, (?:no available reset mechanism"
              r"|depends on group \d{1,5} which is not owned)",
              "QEMU cannot reset the device: its next start in a guest may fail",
              "give the guest all functions of the device (group and bus); cat"
              " /sys/bus/pci/devices/ADDRESS/reset_method; of AMD GPUs without FLR vendor-reset",
              f"{_VFIO}, vfio_pci_reset; gnif/vendor-reset issue 29"),
    FaultLine(r"Failed to (?:setup MSI fds|enable (?:\d{1,4} )?MSI)[^\n]{0,60}"
              r"|Failed to set up \w{4,12} eventfd signaling for interrupt[^\n]{0,100}",
              "VFIO could not set up the device's interrupts",
              "dmesg of the host says why (genirq, vectors, a device that no longer answers); reset the device or"
              " power-cycle the host",
              f"{_VFIO}, vfio_enable_vectors, vfio_set_irq_signaling"),
    FaultLine(r"pci_irq_handler: Assertion [^\n]{1,80}",
              "QEMU ended: the device answered with ones instead of its settings",
              "the device did not come back from a reset: power-cycle the host; then keep it awake (disable_idle_d3=1"
              " of vfio-pci)",
              "QEMU hw/pci/pci.c, pci_irq_handler; gnif/vendor-reset issue 76"),
    FaultLine(r"KVM internal error\. Suberror: \d{1,3}|error: kvm run failed [A-Z][^\n]{1,40}"
              r"|entry failed, hardware error 0x[0-9a-f]{1,8}|KVM_TDX_INIT_MEM_REGION failed[^\n]{0,40}"
              r"|hardware error: vfio: DMA mapping failed[^\n]{0,40}|unknown exit, hardware reason [0-9a-f]{1,16}",
              "KVM stopped the guest",
              "dmesg of the host at that time; QEMU, firmware (OVMF) and kernel of one release; a confidential guest"
              " needs a firmware built for it",
              "QEMU accel/kvm/kvm-all.c, kvm_cpu_exec; Linux Documentation/virt/kvm/api.rst, KVM_RUN"),
    FaultLine(r"Convert non guest_memfd backed memory region[^\n]{0,60}",
              "a confidential guest asked for private memory where QEMU has none",
              "take QEMU, kernel and OVMF of one release; the guest's memory from memory-backend-memfd, the firmware"
              " with -bios",
              "QEMU accel/kvm/kvm-all.c, kvm_convert_memory; AMDESE/AMDSEV issue 236"),
    FaultLine(r"cannot acquire state change lock[^\n]{0,80}|monitor socket did not show up[^\n]{0,60}",
              "libvirt still waits for an earlier operation on this guest",
              "see whether QEMU hangs in the kernel (state D: dmesg, a device that does not come back from a reset);"
              " then restart libvirtd, or the host",
              "libvirt src/conf/virdomainjob.c"),
    FaultLine(rf"could not insert '?{_MODULES}'?: [^\n]{{1,60}}|NVRM: No NVIDIA (?:graphics adapter|GPU"
              rf"|(?:PCI )?devices?)"
              r"(?: \w{1,8})? (?:probed|found)|Unable to load the (?:kernel module '[\w.-]{1,40}'"
              r"|'[\w-]{1,40}' kernel module)",
              "the driver could not be loaded, or finds no GPU that it may take",
              "lspci -nnk shows who has the GPU (nouveau, vfio-pci) and whether it is there; dmesg says why",
              f"{_NVRM}; kmod, modprobe(8)"),
    FaultLine(r"cannot create duplicate filename '/devices/pci[^\n]{1,160}",
              "a driver left something of the last time behind, and cannot take the device again",
              "reboot the host; keep the device with one driver, or update the driver",
              "Linux fs/sysfs/dir.c; gnif/vendor-reset issue 21"),
    FaultLine(r"amdgpu_device_ip_init failed|amdgpu_discovery_init failed|get invalid ip discovery binary signature"
              r"|SMU is in hanged state|PSP tmr init failed|atombios stuck in loop|gpu post error",
              "a GPU's driver could not start it",
              "reset or power-cycle it; the firmware files (linux-firmware) must fit the driver; a passed GPU must have"
              " been reset by the host",
              "Linux drivers/gpu/drm/amd/amdgpu/{amdgpu_device,amdgpu_discovery,amdgpu_psp}.c"),
    FaultLine(r"is already in the process of unplug|Failed to detach device from [^\n]{1,120}",
              "the guest does not give the device back",
              "unload its driver in the guest, or shut the guest down; a guest must see to PCIe hot-plug"
              " (pcie-root-port)",
              "QEMU system/qdev-monitor.c, qmp_device_del; libvirt src/qemu/qemu_hotplug.c"),
    FaultLine(r"Firmware flash required, Please[^\n]{0,60}|In Survivability Mode"
              r"|Survivability Mode: [^\n]{1,80}",
              "the Intel GPU's own firmware is broken: the driver runs it only to flash it",
              "flash it (fwupdmgr, or xpu-smi updatefw), then power-cycle the host",
              "Linux Documentation/gpu/xe/xe_pcode.rst, drivers/gpu/drm/xe/xe_survivability_mode.c"),
    FaultLine(r"GPU Recovery Failed: -?\d{1,4}",
              "a GPU hung, and its reset failed",
              "power-cycle the host; the lines before it say what hung; update driver and firmware",
              "Linux drivers/gpu/drm/amd/amdgpu/amdgpu_device.c, amdgpu_device_gpu_recover"),
    FaultLine(r"uvm encountered global fatal error 0x[0-9a-f]{1,8}[^\n]{0,60}",
              "the GPU's memory driver (nvidia-uvm) met a fatal error: no program can use the GPUs any more",
              "restart the host; the Xid before it says what happened",
              "NVIDIA/open-gpu-kernel-modules nv_gpu_ops.c, nvGpuOpsReportFatalError"),
    FaultLine(r"GPU HANG: ecode [0-9a-f:]{3,24}[^\n]{0,40}|timed out waiting for forcewake[^\n]{0,40}"
              r"|TLB invalidation fence timeout[^\n]{0,40}"
              r"|GT\d: (?:Timedout job: |Engine reset: engine_class=)[^\n]{0,40}",
              "an Intel GPU hung: it does not answer its driver",
              "cat /sys/class/drm/card*/error (devcoredump of xe) names the ring; update kernel, firmware and Mesa or"
              " the compute runtime",
              "Linux drivers/gpu/drm/i915/i915_gpu_error.c; drivers/gpu/drm/xe/xe_tlb_inval.c"),
    FaultLine(r"GuC init(?:ialization)? failed[^\n]{0,20}|declaring it wedged|has declared device \S{7,16} as wedged"
              r"|device wedged(?!, but)[^\n]{0,40}",
              "a GPU's driver gave it up (wedged)",
              "the lines before it say why: firmware that does not load, a hang, a reset that failed; reload the"
              " driver or"
              " reboot, and update firmware and kernel",
              "Linux drivers/gpu/drm/i915/gt/intel_reset.c, drivers/gpu/drm/xe/xe_device.c"),
    FaultLine(r"timed out connecting to (?:hybrid )?vsock[^\n]{0,40}|Failed to Check if grpc server is working"
              r"|CreateContainerRequest timed out",
              "the guest of Kata did not start in time, or its agent does not answer",
              "its console says where it ended (enable_debug in configuration.toml); GPUs with large BARs take longer:"
              " raise create_container_timeout and dial_timeout, plug them cold, and give the guest enough memory",
              "kata-containers src/runtime; its issues 10470 and 10891"),
    FaultLine(r"failed to convert guest address 0x[0-9a-f]{1,16} into host[^\n]{0,40}",
              "a guest of the guest maps a device's BAR, which Cloud Hypervisor's IOMMU for guests does not take",
              "give the inner guest no passed device, or run the outer one with QEMU and its own IOMMU",
              "cloud-hypervisor vm-virtio, virtio-devices/src/iommu.rs; its issue 6110"),
    FaultLine(r"VfioMapRegion\([^\n]{1,160}",
              "Cloud Hypervisor could not map a part of the device into the guest",
              "take a newer Cloud Hypervisor; parts smaller than a page of the host (64 KiB on some Arm kernels) need a"
              " kernel with pages of 4 KiB; QEMU emulates them",
              "cloud-hypervisor pci/src/vfio.rs; its issues 5292 and 7205"),
    FaultLine(r"gim error[^\n]{0,16}: ?[^\n]{1,80}VF number \d{1,3} to be enabled exceeds[^\n]{0,30}",
              "more virtual functions of a GPU were asked for than this release of GIM gives",
              "modprobe gim without vf_num, or with the limit that the line names; more in other partitions (CPX) need"
              " a newer release of GIM",
              "amd/MxGPU-Virtualization issue 13; its libgv, amdgv_parse_config_opt"),
    FaultLine(r"ASIC has no SRIOV support|asic does not support SRIOV|No GPU_IOV caps found",
              "the GPU shows no SR-IOV to its driver for virtual functions (GIM)",
              "SR-IOV and ARI on in the firmware, and its newest release; lspci -vvv of the GPU must list SR-IOV; take"
              " a model that GIM lists",
              "amd/MxGPU-Virtualization libgv/core/amdgv_error_subcode.c, IOV; its forerunner's issue 3"),
    FaultLine(r"gim error[^\n]{1,120}(?:Failed to (?:resize VF BAR|map (?:FB|DOORBELL)|properly enable SRIOV)"
              r"|Cannot (?:access PCI region|map (?:MMIO|ROM) BAR))",
              "the GPU's driver for virtual functions (GIM) got no addresses for its BARs",
              "no other driver may have the GPU (lspci -k: amdgpu, vfio-pci); SR-IOV and Above 4G Decoding on in the"
              " firmware, or pci=realloc: dmesg shows BARs without space",
              "amd/MxGPU-Virtualization gim_shim/gim_drv.c, gim_map_pci_res; amdgv_error_subcode.c"),
    FaultLine(r"Timeout waiting for PSP Bootloader|Firmware boot failed, (?:socket|MP0)|hbm: -?\d{1,3}, (?:memory"
              r" training|hbm (?:memory|bist) test) failed|(?:wafl|xgmi|usr [cd]p) link training failed"
              r"|firmware load failed at boot time",
              "a GPU's own firmware did not boot: its memory, a link or the firmware failed",
              "power-cycle the host; install the GPU's firmware (IFWI) of the server's maker; replace it if it comes"
              " back",
              "amd/MxGPU-Virtualization libgv/core/amdgv_error_subcode.c, FW"),
    FaultLine(r"please (?:follow AMD Service Action Guide|RMA this GPU)|connected devices are in RMA state",
              "a GPU's memory has more bad pages than it may have, or bad ones where it needs them",
              "take the GPU out of use and replace it",
              "amd/MxGPU-Virtualization libgv/core/amdgv_error_subcode.c, ECC"),
    FaultLine(r"Whole GPU reset failed!|FLR failed on vf ?: ?\d{1,3}",
              "a GPU, or a virtual function of it, could not be reset",
              "power-cycle the host; see the errors of its memory (amd-smi metric --ecc), and replace it if it comes"
              " back",
              "amd/MxGPU-Virtualization libgv/core/amdgv_error_subcode.c, RESET"),
    FaultLine(r"gim error[^\n]{0,16}: ?[(\[][^\n]{4,160}",
              "the GPU's driver for virtual functions (GIM) reports an error",
              "its words say why; the host needs SR-IOV, the IOMMU on (iommu=pt), and a kernel that the release names;"
              " load it after a cold boot, with amdgpu not loaded",
              "amd/MxGPU-Virtualization README and issue 8"),
    FaultLine(r"Error (?:applying MIG configuration|checking MIG capable|getting MIG)[^\n]{0,160}",
              "the tool for MIG (mig-parted) could not do its work",
              "nvidia-mig-parted -d … shows where it ends, and its hooks; with virtual functions made (sriov-manage)"
              " it does"
              " not work: use nvidia-smi mig",
              "NVIDIA/mig-parted, its issue 14; NVIDIA/deepops issue 1304"),
    FaultLine(r"cannot verify the digital signature for the drivers required for this device[^\n]{0,12}"
              r"|CM_PROB_UNSIGNED_DRIVER",
              "Windows in the guest refuses the driver: it is not signed, or was changed (code 52)",
              "install the maker's signed driver; a patched one needs test signing on and Secure Boot off",
              "Microsoft, Code 52"),
    FaultLine(r"because Windows cannot load the drivers required for this device[^\n]{0,12}|CM_PROB_FAILED_ADD\b"
              r"|This device cannot start\.[^\n]{0,4}\(Code 10\)|CM_PROB_FAILED_START\b",
              "the driver in a Windows guest did not load, or could not start the device (code 31, 10)",
              "take the driver that fits: of a vGPU the one of the host's release, of Intel's virtual functions the one"
              " that knows them; remove older ones, restart the guest, and read the host's log of that time",
              "Microsoft, Code 31, Code 10"),
    FaultLine(r"Unsupported MSI delivery mode \d for Dom\d{1,6}",
              "Xen drops interrupts of a passed device: its MSI is not as the guest's driver set it",
              "update Xen, the stub domain's QEMU and the guest's kernel; as a test pci=nomsi in the guest",
              "Xen xen/arch/x86/hvm/vmsi.c; QubesOS/qubes-issues issue 7971"),
    FaultLine(r"Windows has stopped this device because it has reported problems|\bCode 43\b|CM_PROB_FAILED_POST_START",
              "the driver in a Windows guest gave the device up (code 43)",
              "take a newer driver (NVIDIA's from 465 on works in guests; older: <kvm><hidden state='on'/></kvm>); give"
              " the GPU its ROM, do not let the host's display use it, and start it after a reset that works",
              "Microsoft, Code 43; NVIDIA, GeForce GPU passthrough for Windows virtual machines"),
    FaultLine(r"probe of PCI device [0-9a-f:.]{7,16} aborted|EAL: Requested device \S{7,16} cannot be used"
              r"|EAL: +\S{4,16} VFIO group is not viable",
              "DPDK could not take the device",
              "mlx5 stays with its kernel driver, and the container needs its network interface, /dev/infiniband and"
              " rdma-core; others go to vfio-pci with their whole IOMMU group",
              "DPDK, Linux drivers guide; sriov-network-device-plugin issue 123"),
    FaultLine(r"BUG: unable to handle (?:page fault|kernel)[^\n]{0,60}"
              r"|Unable to handle kernel (?:NULL pointer|paging request)[^\n]{0,60}|kernel BUG at [^\n]{1,80}",
              "the kernel itself failed (oops)",
              "reboot before the next tenant; the stack below it names the driver: update it or the kernel",
              "Linux arch/x86/mm/fault.c, lib/bug.c"),
    FaultLine(r"irq \d{1,5}: nobody cared",
              "an interrupt line was switched off: no driver took its interrupts",
              "/proc/interrupts shows who shares it: a passed device that uses INTx (let it use MSI), or a device that"
              " hangs; update the firmware",
              "Linux kernel/irq/spurious.c, __report_bad_irq"),
    FaultLine(r"Marking clocksource 'tsc(?:-early)?' as unstable[^\n]{0,60}|Marking TSC unstable due to "
              r"(?!running on Hyper-V|TSC halts in idle)[^\n]{1,60}"
              r"|Clocksource tsc unstable|current_clocksource\s{1,4}(?:hpet|acpi_pm|jiffies)\b",
              "the kernel does not trust the CPU's time stamp counter (TSC): reading the time is slow now",
              "update the firmware; on a host look for SMIs and stalls; a guest: <timer name='kvmclock'/> or kvm-clock"
              " as its clock source, and host CPUs of its own (cat /sys/devices/system/clocksource/clocksource0/current"
              "_clocksource)",
              "Linux kernel/time/clocksource.c, arch/x86/kernel/tsc.c"),
    FaultLine(r"(?:arm-smmu-v3|arm-smmu) [\w.:-]{1,40}: (?:event: [A-Z]_\w{3,30}|event 0x[0-9a-f]{2} received"
              r"|Unhandled context fault|CMD_SYNC timeout|(?:CMDQ error|EVTQ overflow))[^\n]{0,80}",
              "the IOMMU (SMMU) refused a device's memory access",
              "of a passed device: its guest's driver used memory that it does not have; else update driver and"
              " firmware",
              "Linux drivers/iommu/arm/arm-smmu-v3/arm-smmu-v3.c, arm-smmu/arm-smmu.c"),
    FaultLine(r"AMD-Vi: Event logged \[(?:ILLEGAL_\w{3,20}|\w{3,10}_HARDWARE_ERROR|INVALID_PPR_REQUEST)[^\n]{0,80}"
              r"|\bIOMMU [Ff]ault detected for [^\n]{4,80}|\[VT-D\]DMAR:\[[^\n]{4,80}"
              r"|DMAR: VT-d detected (?:Invalidation Queue|Completion) Error[^\n]{0,40}",
              "the IOMMU refused a device's access, or reports a fault of its own",
              "see which device it is and what its driver did (a reset, another guest); update firmware and kernel; an"
              " Intel iGPU under Xen: iommu=no-igfx",
              "AMD I/O Virtualization Technology Specification, Event Logging; Linux drivers/iommu/amd/iommu.c"),
    FaultLine(r"kfd kfd:[^\n]{0,20} (?:error getting iommu info|Failed to initialize iommu"
              r"|device [0-9a-f:]{4,12} NOT added)"
              r"[^\n]{0,60}",
              "the compute driver (kfd) did not take a GPU",
              "the lines before it say why: an APU needs the IOMMU on, other GPUs PCIe atomics, their VBIOS and"
              " firmware",
              "Linux drivers/gpu/drm/amd/amdkfd/kfd_device.c"),
    FaultLine(r"timed out waiting for pending transaction; \w{4,12} [\w ]{4,30} reset anyway"
              r"|timed out waiting for pending transaction:[^\n]{0,60}",
              "a device did not finish its transfers before a reset",
              "if it does not work afterwards, power-cycle the host; end what uses it before it is given away",
              "Linux drivers/pci/pci.c, pcie_flr"),
    FaultLine(r"Kernel panic - not syncing: [^\n]{1,100}",
              "the kernel stopped (panic)",
              "the lines before it say why: machine check, no root file system, an oops, out of memory",
              "Linux kernel/panic.c"),
    FaultLine(r"PCI system error \(SERR\) for reason[^\n]{0,40}|NMI: IOCK error[^\n]{0,60}"
              r"|Uhhuh\. NMI received for unknown reason[^\n]{0,40}",
              "the hardware reported an error to the CPU (NMI)",
              "the BMC's event log names the part; PCIe: AER lines in dmesg",
              "Linux arch/x86/kernel/nmi.c"),
    FaultLine(r"\w[\w/:.-]{0,30}: page allocation failure: order:\d{1,2}[^\n]{0,60}",
              "the kernel found no free memory in one piece",
              "leave the host more memory (fewer huge pages), raise vm.min_free_kbytes; see which driver asked, below"
              " it",
              "Linux mm/page_alloc.c, warn_alloc"),
    FaultLine(r"FSP boot cmds failed|FSP secure boot (?:GSP prechecks failed|partition timed out)"
              r"|FSP (?:async )?command timed out|GSP-FMC reported an error[^\n]{0,60}"
              r"|failed to wait for bar firewall to lower|GSP-RM boot attempts exceeded|FSP (?:queuing failed"
              r"|response reported)"
              r"[^\n]{0,60}|Timeout waiting for GSP target mask release|Fatal GSP-FMC Error[^\n]{0,40}"
              r"|Booter failed with non-zero error code[^\n]{0,20}|FSP Fuse Check Failure",
              "a GPU's own processor does not start the driver's firmware",
              "reset it or power-cycle the host; its confidential mode must fit the guest; update its VBIOS; an"
              " external box or a riser may be too slow",
              "NVIDIA/open-gpu-kernel-modules kern_fsp_gh100.c, kernel_gsp.c; its issue 974"),
    FaultLine(r"device model did not start: -?\d{1,3}|Device Model not ready|Stubdom \d{1,6} for \d{1,6} startup:"
              r" startup timed out",
              "the guest's device model (QEMU) did not start under Xen",
              "its own log says why: /var/log/xen/qemu-dm-GUEST.log, of a stub domain console/guest-GUEST-dm.log",
              "Xen tools/libs/light/libxl_dm.c"),
    FaultLine(r"GUC: CT: Sending action 0x[0-9a-f]{1,6} failed[^\n]{0,60}"
              r"|IOV: Failed to save VF\d{1,3} state[^\n]{0,20}",
              "a GPU's firmware (GuC) refuses a request about its virtual functions",
              "take GuC firmware and driver of one age (linux-firmware; of i915-sriov-dkms the newest, alike in the"
              " guest), and make the virtual functions anew",
              "strongtz/i915-sriov-dkms issues 210 and 314"),
    FaultLine(r"Failed to allocate MSI-?X? (?:interrupts|vectors)[^\n]{0,40}",
              "a driver got no MSI-X vectors for its device: one queue, and no virtual functions",
              "a guest of Xen: permissive=1 for the device, a newer Xen; a host: see whether vectors ran out"
              " (/proc/interrupts), and leave out pci=nomsi",
              "Linux drivers/net/ethernet/intel/ixgbe/ixgbe_lib.c; QubesOS/qubes-issues issue 4799"),
    FaultLine(r"CORB reset timeout#\d, CORBRP = 65535",
              "a GPU's audio function answers with ones: the GPU sleeps, is off or lost",
              "dmesg says what became of the GPU (D3cold, AER, reset); bind both functions to vfio-pci if they go to a"
              " guest",
              "Linux sound/hda/hdac_controller.c"),
    FaultLine(r"(?:enable hca|mlx5_init_one|init_one|mlx5_function_setup|mlx5_function_enable)[^\n]{0,60}"
              r" failed[^\n]{0,40}",
              "the NIC's driver could not start it",
              "update its firmware, or the driver; in a guest see that the host has not kept the function",
              "Linux drivers/net/ethernet/mellanox/mlx5/core/main.c"),
    FaultLine(r"Process \d{1,10} \((?:qemu|kvm)[^)\n]{0,20}\) of user \d{1,10} dumped core|(?:qemu-system|qemu-kvm"
              r"|kvm)[\w-]{0,12}\[\d{1,10}\]: segfault at [^\n]{1,80}",
              "QEMU crashed or was killed",
              "coredumpctl info and the guest's log (/var/log/libvirt/qemu) say where; dmesg whether memory ran out;"
              " update QEMU",
              "systemd-coredump(8)"),
    FaultLine(r"No valid host was found[^\n]{0,80}",
              "no host has what the guest asks for free",
              "see what the hosts offer and what is taken (openstack allocation candidate list)",
              "OpenStack Nova scheduler"),
)  # fmt: skip
_REFUSED = (
    r"-(?:device|object|machine|M|cpu|smp|m|numa|drive|blockdev|netdev|accel|global) (?![^\n]{0,2000}(?:: warning: "
    r"|: info: |redirected to|Performance may be slow))[^\n]{1,2000}: [^\n]{1,160}"
)
# That a guest or a driver did not start, where no line above says why: the program's own words.
GUEST_FAILURES: tuple[FaultLine, ...] = (
    FaultLine(r"(?:closed the monitor|connecting to monitor)[^\n]{0,60}?: [^\n]{1,200}",
              "QEMU ended when the guest was to start; its words say why",
              "read the rest in /var/log/libvirt/qemu/GUEST.log, and dmesg of that time",
              "libvirt src/qemu/qemu_process.c"),
    FaultLine(r"Failed to start domain[^\n]{0,200}(?:\nerror: [^\n]{1,200})?"
              r"|Failed to create domain[^\n]{0,200}(?:\nerror: [^\n]{1,200})?|Error starting domain[^\n]{0,200}"
              r"|libvirtd quit during handshake[^\n]{0,40}"
              r"|virDomainCreate[^\n]{0,200}|ibvirtError\W[^\n]{1,200}|ibvirtException\W[^\n]{1,200}"
              r"|virError\W(?!Code=38\b)[^\n]{1,200}",
              "libvirt could not start the guest; its words say why",
              "read journalctl -u libvirtd (virtqemud) and /var/log/libvirt/qemu/GUEST.log of that time",
              "libvirt, virDomainCreate"),
    FaultLine(rf"qemu-system-\w{{1,16}}: {_REFUSED}|qemu-kvm: {_REFUSED}|(?m:^)kvm: {_REFUSED}",
              "QEMU refused an option of the guest; its words say why",
              "correct what the option names in the guest's definition; an option that is unknown needs another QEMU",
              "QEMU util/error-report.c, loc_push_restore: an option in front of an error is what was being read"),
    FaultLine(r"Failed to (?:start|set ?up|add) device(?: \"[\w.-]{1,40}\"|:)[^\n]{0,160}",
              "LXD or Incus could not give the guest a device; its words say why",
              "lxc info --show-log GUEST (incus info --show-log) has QEMU's own words, dmesg the kernel's",
              "canonical/lxd lxd/instance/drivers; lxc/incus"),
    FaultLine(r"Exhausted all hosts available for retrying build failures[^\n]{0,60}",
              "Nova tried every host that fits, and the guest started on none",
              "nova-compute.log of each of them says why",
              "OpenStack Nova, MaxRetriesExceeded"),
    FaultLine(r"\bVmBoot\([^\n]{1,200}",
              "Cloud Hypervisor could not start the guest; its words say why",
              "run it with -v, and read dmesg of that time",
              "cloud-hypervisor vmm/src/vm.rs"),
    FaultLine(r"CR2: [0-9a-f]{16}\n[^\n]{0,60}---\[ end trace [0-9a-f]{16} \]---",
              "the kernel itself failed (oops), and what it said first is missing",
              "read dmesg above it; the RIP line below it names the function and, in brackets, the module: update that",
              "Linux arch/x86/mm/fault.c, page_fault_oops; kernel/panic.c, print_oops_end_marker"),
    FaultLine(r"Virtual P[Cc][Ii] Express Port[^\n]{0,120}Failed to [Pp]ower on with [Ee]rror[^\n]{1,120}",
              "Hyper-V could not give the guest the device; its words say why",
              "Dismount-VMHostAssignableDevice first, AutomaticStopAction TurnOff, memory without dynamic; the event"
              " log (Hyper-V-Worker) says more",
              "Microsoft, Deploy graphics devices by using Discrete Device Assignment"),
    FaultLine(r"(?<![\w'])Module '?\w{4,24}'? power on failed",
              "ESXi could not start the guest",
              "vmware.log in the guest's folder says why, in the lines before",
              "VMware ESXi, vmware.log"),
    FaultLine(r"unable to add pci devices|libxl__device_pci_add {1,2}failed for[^\n]{1,60}",
              "Xen could not give the guest a device",
              "the lines of libxl before it and xl dmesg say why; the device must be assignable (xl"
              " pci-assignable-list)",
              "Xen tools/libs/light/libxl_pci.c"),
    FaultLine(r"TASK ERROR: [^\n]{1,160}",
              "Proxmox could not start the guest",
              "the lines above it say why; qm showcmd VMID --pretty prints the command, which can be run by hand",
              "Proxmox qemu-server"),
    FaultLine(rf"\b(?:{_DRIVERS}|nouveau|{_NICS}|amd_hsmp)[^\n]{{0,30}}: probe (?:of [0-9a-f:.]{{7,16}}"
              rf"|with driver \w{{2,20}}) failed with error -\d{{1,3}}",
              "a driver could not take its device",
              "the lines before it say why: -12 no memory or no address for a BAR, -5 and -110 the device does not"
              " answer, -22 and -95 the driver does not know it",
              "Linux drivers/base/dd.c, really_probe"),
)  # fmt: skip
