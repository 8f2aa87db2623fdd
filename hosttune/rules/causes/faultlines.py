"""Lines in which libraries and tools say outright what failed: what it means, what to do, and who says so.

What the kernel writes is in `hosttune.linux.kernellines` and with the makers' drivers.
"""

from __future__ import annotations

from typing import NamedTuple


class FaultLine(NamedTuple):
    """`pattern`: from the line's first fixed letters on. `says`: what is wrong, `remedy` what to do against it."""

    pattern: str
    says: str
    remedy: str
    source: str


_GUIDE = "NCCL user guide, Troubleshooting"
_VARIABLES = "NCCL user guide, Environment Variables"
_VERBS = "rdma-core, libibverbs/man/ibv_poll_cq.3 and enum ibv_wc_status; NVIDIA/nccl src/transport/net_ib.cc"
_SMI = "nvidia-smi manual page"
# NVIDIA/nccl net_ib.cc, of old and new versions; perftest's perftest_communication.c; UCX's ib_mlx5_log.c has words.
_COMPLETION = (
    r"Got completion [^\n]{{0,160}}?with (?:error |status=\w{{1,40}}\(){0}\b|Failed status {0}: wr_id"
    r"|{1}(?: error)? on mlx5"
)


def _status(number: str, words: str) -> str:
    return _COMPLETION.format(number, words)


# The root first: where several match, those above are named first.
FAULT_LINES: tuple[FaultLine, ...] = (
    FaultLine(r"(?:posix_fallocate|shared memory segment|/dev/shm/nccl-)[^\n]{0,160}No space left on device"
              r"|unable to write to file </torch_|out of shared memory\. Please try to raise"
              r"|insufficient shared memory \(shm\)",
              "/dev/shm of the container is too small",
              "docker run --shm-size=8g (or --ipc=host); in Kubernetes mount an emptyDir with medium Memory there",
              f"{_GUIDE}, Shared memory: Docker gives 64 MB; NVIDIA/nccl src/misc/shmutils.cc"),
    FaultLine(r"Call to ibv_open_device failed|NET/IB : Unable to open device|[Uu]nable to open RDMA device"
              r"|Failed to open /dev/infiniband",
              "the process may not open the RDMA device",
              "give the container /dev/infiniband and locked memory (docker run --device=/dev/infiniband"
              " --cap-add=IPC_LOCK --ulimit memlock=-1; in Kubernetes the RDMA device plugin's resource)",
              "NVIDIA/nccl src/misc/ibvwrap.cc; NVIDIA/nccl issue 451"),
    FaultLine(r"(?:ibv_(?:reg_mr|reg_dmabuf_mr|create_cq|create_qp)\w{0,10}[^\n]{0,80}|register user memory[^\n]{0,40})"
              r"Cannot allocate memory|Please set max locked memory"
              r"|Couldn't allocate MR\b(?![\s\S]{0,400}Bad address)",
              "the limit of locked memory is too small for RDMA",
              "ulimit -l unlimited: LimitMEMLOCK=infinity in the service that starts the job, docker run --ulimit"
              " memlock=-1, or memlock in /etc/security/limits.conf",
              f"{_GUIDE}, Shared memory (ulimit memlock); rdma-core, ibv_reg_mr(3): ENOMEM"),
    FaultLine(r"ibv_reg_mr\w{0,10}[^\n]{0,80}Bad address|Couldn't allocate MR\b(?=[\s\S]{0,400}Bad address)",
              "GPU memory cannot be registered with the NIC",
              "load nvidia_peermem (built against the RDMA stack in use), or use DMA-BUF: open driver modules and"
              " Linux 5.12 or later",
              "NVIDIA GPUDirect RDMA documentation, nvidia-peermem"),
    FaultLine(r"could not insert '?nvidia[_-]peermem|nvidia[_-]peermem: (?:disagrees about|Unknown symbol)",
              "nvidia_peermem cannot be loaded: it was built without the RDMA stack that runs",
              "install the NIC's RDMA stack first, then the GPU's driver anew; or use DMA-BUF: open driver modules and"
              " Linux 5.12 or later",
              "NVIDIA driver README, GPUDirect RDMA Peer Memory Client"),
    FaultLine(r"NET/OFI [Ss]elected [Pp]rovider is (?:tcp|sockets|udp)",
              "libfabric took TCP and not the NIC's own provider",
              "install libfabric with that provider (`fi_info -p efa` must list it), give the container"
              " /dev/infiniband, and set FI_PROVIDER=efa",
              "NVIDIA/nccl issue 229; aws-ofi-nccl README"),
    FaultLine(r"ibv_modify_qp failed with (?:error )?(?:\d{1,3} )?(?:Connection timed out|No route to host|"
              r"Network is unreachable|Invalid argument|No data available)",
              "two ports cannot be connected: their GIDs do not reach each other",
              "show_gids: take a RoCE v2 GID of the same kind on all hosts (NCCL_IB_GID_INDEX), leave ports out that do"
              " not reach the peer (NCCL_IB_HCA), and give each port of a host a subnet of its own",
              f"{_VARIABLES} (NCCL_IB_GID_INDEX, NCCL_IB_HCA); rdma-core, ibv_modify_qp(3)"),
    FaultLine(_status("12", "Transport retry count exceeded"),
              "the peer's port did not answer: the retries of RDMA ran out (status 12)",
              "on both hosts compare GID (show_gids; RoCE: NCCL_IB_GID_INDEX), MTU, PFC and state of the ports, and run"
              " ib_write_bw between the same two; only then raise NCCL_IB_TIMEOUT",
              f"{_VERBS}; {_VARIABLES} (NCCL_IB_GID_INDEX, NCCL_IB_TIMEOUT); NVIDIA/nccl issue 426"),
    FaultLine(_status("13", "RNR retry count exceeded"),
              "the peer had no buffer ready (status 13): its process hangs or is gone",
              "read the log of the peer's rank: it failed first",
              _VERBS),
    FaultLine(_status("(?:4|8|10|11)", "(?:Local protection|Remote access|Remote operation)"),
              "an RDMA access was refused (protection or remote access error)",
              "check that all hosts have the same GPU driver, peer-memory module and library; try"
              " NCCL_NET_GDR_LEVEL=LOC: if that works, GPU memory is what cannot be reached (ACS, IOMMU)",
              _VERBS),
    FaultLine(_status("5", "Work Request Flushed"),
              "requests were flushed (status 5) after an earlier error of the same connection",
              "look for the first error, often on another host",
              _VERBS),
    FaultLine(r"TOO_MANY_PEERS|peer mapping resources exhausted",
              "CUDA lets a GPU have at most eight peers, and more GPUs are in one process",
              "show a process at most nine GPUs (CUDA_VISIBLE_DEVICES), or run a process for each GPU with NCCL",
              "CUDA programming guide, Peer-to-Peer Memory Access; CUDA_ERROR_TOO_MANY_PEERS"),
    FaultLine(r"peer access is not supported between these two devices|CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
              "two GPUs of the process have no peer access",
              "nvidia-smi topo -p2p r shows which; NCCL_P2P_DISABLE=1 lets NCCL go through host memory",
              "CUDA driver API, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"),
    FaultLine(r"cuMemImportFromShareableHandle[^\n]{0,120}(?:fail|error|not )|alloc\.h:\d{1,5} NCCL WARN Cuda failure"
              r" (?:\d{1,4} )?'(?:operation not|invalid (?:argument|device))",
              "memory cannot be shared between the processes by cuMem handles",
              "run all ranks of a host in one IPC and PID namespace; NCCL_CUMEM_ENABLE=0 and NCCL_CUMEM_HOST_ENABLE=0"
              " take the older way; with NVLink between hosts, IMEX must run (nvidia-imex)",
              f"{_VARIABLES} (NCCL_CUMEM_ENABLE, NCCL_CUMEM_HOST_ENABLE)"),
    FaultLine(r"Got async event : (?:port error|device fatal)[^\n]{0,40}",
              "a port lost its link or its device during the run",
              "read dmesg and the port's counters (link_downed); reseat or replace cable and module",
              "NVIDIA/nccl src/transport/net_ib.cc, ncclIbAsyncThreadMain; rdma-core, ibv_get_async_event(3)"),
    FaultLine(r"enqueue\.cc:\d{1,5} NCCL WARN Cuda failure (?:\d{1,4} )?'(?:invalid argument|invalid device function"
              r"|no kernel image)[^\n]{0,40}",
              "a kernel of NCCL cannot be started on this GPU",
              "take a newer NCCL, built for this GPU: NCCL INFO `ncclMaxSharedMem … exceeds` says that one asks for"
              " more shared memory than the GPU gives (RTX 50: 2.26.2 or later)",
              "NVIDIA/nccl src/enqueue.cc, ncclLaunchKernel; nccl-tests issue 287"),
    FaultLine(r"NCCL WARN Cuda failure (?:\d{1,4} )?'out of memory'[^\n]{0,40}|(?:CUDA|HIP) out of memory[^\n]{0,60}",
              "the GPU's memory is full",
              "see who holds it (nvidia-smi); leave room for the library's buffers (NCCL_BUFFSIZE, fewer channels)"
              " or stop the framework's own pool from taking all",
              f"{_GUIDE}, Errors; CUDA runtime, cudaErrorMemoryAllocation"),
    FaultLine(r"Duplicate GPU detected",
              "two ranks were given the same GPU",
              "set the device by the local rank, and give each host as many ranks as it has GPUs",
              "NVIDIA/nccl src/init.cc"),
    FaultLine(r"Bootstrap : no socket interface found|no socket interface found",
              "NCCL_SOCKET_IFNAME names no interface that is up",
              "correct or unset NCCL_SOCKET_IFNAME (ip -br addr shows the names)",
              f"{_VARIABLES} (NCCL_SOCKET_IFNAME)"),
    FaultLine(r"(?:Call to connect|[Cc]onnect to|socketStartConnect: Connect to)[^\n]{0,120}"
              r"(?:No route to host|Connection timed out|Connection refused|Network is unreachable"
              r"|Software caused connection abort|Connection reset by peer)",
              "the hosts do not reach each other over the interface that the library chose",
              "NCCL_SOCKET_IFNAME=the interface that reaches the other hosts (not docker0 or virbr0); open the firewall"
              " between them",
              f"{_GUIDE}, Networking issues (IP network interfaces, IP ports)"),
    FaultLine(r"transport '\w{1,20}' is not available, please use one or more of|no usable transports/devices",
              "UCX lacks a transport that UCX_TLS asks for: its library or device is missing",
              "ucx_info -d lists what is there; give the container /dev/infiniband, install UCX with that transport, or"
              " unset UCX_TLS",
              "UCX FAQ; openucx/ucx src/ucp/core/ucp_context.c"),
    FaultLine(r"Failed to initialize NVML: Driver/library version mismatch|API mismatch: the client has the version",
              "the driver's library is of another version than its module that is loaded",
              "reboot, or unload and load the module once nothing uses the GPUs",
              "NVIDIA driver README, common problems"),
    FaultLine(r"Failed to initialize NVML: Unknown Error",
              "the container has lost its right to the GPUs' device nodes",
              "start the container again; then cgroup driver cgroupfs, or name the nodes with --device",
              "NVIDIA container toolkit, Troubleshooting (systemctl daemon-reload)"),
    FaultLine(r"No devices were found",
              "the driver runs, and finds no GPU that it can start",
              "dmesg says why (NVRM: RmInitAdapter, BAR, GSP firmware; another driver such as nouveau or vfio-pci"
              " has it)",
              _SMI),
    FaultLine(r"couldn't communicate with the NVIDIA driver",
              "the GPU driver is not loaded",
              "dmesg says why (NVRM, nouveau, module signatures); after a new kernel build the module again (DKMS)",
              _SMI),
    FaultLine(r"Unable to determine the device handle for [Gg][Pp][Uu][^\n]{0,80}(?:lost|Unknown Error|Not Found)",
              "a GPU does not answer",
              "read its Xid in dmesg; power-cycle the host; if it comes back, reseat or replace the GPU",
              _SMI),
    FaultLine(r"Unable to retrieve NV[Ll]ink information as all links are in[Aa]ctive",
              "all links of a GPU to the others are down",
              "read its XIDs in dmesg and the fabric's log; restart the fabric's service, then reset the GPUs",
              _SMI),
    FaultLine(r"uncorrectable ECC error encountered|cudaErrorECCUncorrectable",
              "a GPU's memory had an uncorrectable error",
              "read its XIDs in dmesg; reset the GPU, then hosttune validate (ecc-errors, row-remap); replace it if"
              " they"
              " come back",
              "CUDA runtime API, cudaErrorECCUncorrectable"),
    FaultLine(r"HW Exception by GPU node-\d{1,4}[^\n]{0,100}",
              "a GPU hung, and its driver ended what ran on it",
              "read dmesg of that time (amdgpu: ring timeout, reset, RAS); power-cycle the host if the reset failed",
              "ROCm/ROCR-Runtime runtime.cpp, Runtime::HwExceptionHandler"),
    FaultLine(r"Memory access fault by GPU node-\d{1,4}[^\n]{0,120}",
              "a program used memory that its GPU does not have mapped",
              "most often the program's own fault; between GPUs also peer access that the IOMMU or BARs prevent: boot"
              " with iommu=pt, and run the same on one GPU",
              "ROCm/ROCR-Runtime runtime.cpp, Runtime::VMFaultHandler"),
    FaultLine(r"\|[ \t]{0,4}[A-Z][\w ]{1,30}\|[ \t]{0,4}Fail\b[^\n|]{0,60}",
              "a test of DCGM's diagnostic failed",
              "its Warning row names GPU and figure; read the GPU's XIDs, link and temperature, and run the test alone",
              "DCGM user guide, Diagnostics (dcgmi diag)"),
    FaultLine(r"Link \d{1,2}: (?:Recovery Errors: [1-9]|(?:Replay|CRC)[^:\n]{0,12}Errors: \d{4})\d{0,18}",
              "a link between GPUs has counted errors",
              "clear the counters (nvidia-smi nvlink -re), run, and read them again: where they grow, reseat the"
              " board or"
              " bridge, or replace it",
              f"{_SMI}, nvlink -e; Fabric Manager user guide"),
    FaultLine(r"detected (?:NVSwitch|NVLink)[^\n]{0,30}(?:fatal|recoverable) error[^\n]{0,80}"
              r"|failed to initialize all the NVLink[^\n]{0,60}",
              "Fabric Manager reports a fault of switches or links",
              "read the SXIDs in dmesg and its log; restart it with the driver's version; if links stay down, the board"
              " goes back",
              "Fabric Manager user guide, error handling"),
    FaultLine(r"Fabric[ \t]{0,20}\n[ \t]{0,40}State[ \t]{0,60}: (?:In Progress|Not Started)",
              "a GPU is not registered with the fabric: Fabric Manager does not run, or waits",
              "start nvidia-fabricmanager of the driver's version (boards with NVLink 5 also need nvlsm), and read"
              " its log; of a guest, activate its partition (hosttune plan, fabric_partition)",
              f"{_SMI}, Fabric; Fabric Manager user guide"),
    FaultLine(r"no (?:habanalabs network )?interfaces were detected",
              "the accelerators' own network ports are missing",
              "load the driver's network modules (habanalabs_cn, habanalabs_en) of the same version as habanalabs, and"
              " bring the ports up (manage_network_ifs.sh --up); hl-smi -Q shows the links",
              "Intel Gaudi documentation, manage_network_ifs.sh"),
    FaultLine(r"CUDA driver version is insufficient for CUDA runtime version",
              "the GPU driver is older than the CUDA runtime needs",
              "install a newer driver, or a program built for the older CUDA",
              "CUDA compatibility guide"),
    FaultLine(r"Remapping Failure Occurred[ \t]{0,40}: Yes",
              "a GPU could not replace a row of its memory",
              "replace the GPU (hosttune validate, row-remap)",
              "NVIDIA GPU memory error management guide, row remapping"),
    FaultLine(r"Remapped Rows[ \t]{0,40}\n(?:[ \t][^\n]{0,80}\n){0,3}?[ \t]{1,40}Pending[ \t]{0,40}: Yes"
              r"|Pending Page Blacklist[ \t]{0,40}: Yes",
              "a GPU has memory that waits to be replaced after uncorrectable errors",
              "reset the GPU once nothing uses it (nvidia-smi --gpu-reset), or reboot",
              "NVIDIA GPU memory error management guide, row remapping and page retirement"),
    FaultLine(r"Volatile[ \t]{0,40}\n(?:[ \t][^\n]{0,80}\n){0,3}?[ \t]{1,40}[SD]RAM Uncorrectable(?: \w{1,8})?"
              r"[ \t]{0,40}: [1-9]",
              "a GPU's memory had uncorrectable errors since its driver was loaded",
              "reset the GPU, then hosttune validate (ecc-errors, row-remap); replace it if they come back",
              "NVIDIA GPU memory error management guide"),
    FaultLine(r"GPU Recovery Action[ \t]{0,40}: (?:GPU )?(?:Reset|Reboot|Drain)",
              "the driver asks for a recovery of the GPU",
              "stop what uses it, and do what the line asks for: reset, reboot, or drain and reset",
              f"{_SMI}, GPU Recovery Action"),
    FaultLine(r"(?i:RX negotiated:?[ \t]{0,20}off[ \t]{0,20}\n[ \t]{0,20}TX negotiated:?[ \t]{0,20}off)",
              "pause frames are not in force: the other end of the link has them off",
              "turn flow control on at the switch port, or PFC at both ends (RoCE)",
              "ethtool(8), -a"),
    FaultLine(r"remote process exited or there was a network error|Connection closed by remote peer",
              "another rank ended first",
              "its log has the cause: the first error by time, on any host",
              f"{_GUIDE}, Errors (ncclRemoteError)"),
    FaultLine(r"Watchdog caught collective operation timeout",
              "a rank did not come to a collective in time",
              "find the rank that is behind (TORCH_NCCL_TRACE_BUFFER_SIZE, py-spy): it crashed, waits for data, or its"
              " network hangs (NCCL_DEBUG=INFO)",
              "PyTorch, torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp"),
    # QEMU and libvirt
    FaultLine(r"group \d{1,5} is not viable",
              "another device of the same IOMMU group is still with a driver of the host",
              "bind every device of the group to vfio-pci (`hosttune discover` lists the group; often the GPU's audio"
              " function), or use a slot whose group is smaller",
              "QEMU hw/vfio/container.c, vfio_container_connect; Linux Documentation/driver-api/vfio.rst"),
    FaultLine(r"no iommu_group found|host doesn't support (?:VFIO PCI interface|passthrough of host PCI devices)",
              "the device has no IOMMU group: the IOMMU is off",
              "switch VT-d or AMD-Vi on in the firmware, boot with intel_iommu=on where the kernel asks for it, and"
              " load vfio-pci",
              "QEMU hw/vfio/pci.c; libvirt src/hypervisor/domain_driver.c"),
    FaultLine(r"(?:VFIO_MAP_DMA failed|vfio_\w{0,20}dma_map\()[^\n]{0,120}(?:Cannot allocate memory|= -12\b)",
              "the guest's memory may not be locked",
              "give the guest <memtune><hard_limit> of its memory plus some GiB, or raise the limit of locked memory of"
              " what starts QEMU (LimitMEMLOCK=infinity, ulimit -l)",
              "QEMU hw/vfio/container.c; libvirt, formatdomain: memtune"),
    FaultLine(r"(?:VFIO_MAP_DMA failed|vfio_\w{0,20}dma_map\()[^\n]{0,120}(?:Invalid argument|= -22\b)",
              "the IOMMU cannot map an address of the guest",
              "keep memory and the PCI window of the guest within the IOMMU's address width (<maxphysaddr"
              " mode='emulate' bits='…'/>, or fewer bits of the window), and out of its reserved regions",
              "Linux drivers/vfio/vfio_iommu_type1.c, vfio_iommu_iova_dma_valid"),
    FaultLine(r"(?:failed to open |open error on )/dev/vfio/\w{1,8}: [^\n']{1,60}|/dev/vfio/\w{1,8}: (?:No such file"
              r"|Device or resource busy|Permission denied)",
              "QEMU could not open the device's VFIO group",
              "No such file: bind the device to vfio-pci; busy: another guest or process has the group (fuser -v"
              " /dev/vfio/*); denied: give QEMU's user the file, also in its cgroup and its security profile",
              "QEMU hw/vfio/container.c, vfio_group_get"),
    FaultLine(r"unable to map backing store for guest RAM[^\n]{0,60}|can't open backing store[^\n]{0,100}",
              "the huge pages that the guest's memory needs are not free",
              "reserve them at boot, on the guest's nodes (hosttune plan), and see what holds them:"
              " /sys/devices/system/node/node*/hugepages/*/free_hugepages",
              "QEMU system/physmem.c, file_ram_alloc"),
    FaultLine(r"PCI device [0-9a-f:.]{7,16} is in use by driver \w{1,20}, domain [^\n']{1,60}",
              "another guest has the device",
              "stop that guest, or give this one another device (hosttune plan knows which are free)",
              "libvirt src/hypervisor/virhostdev.c"),
    FaultLine(r"Unknown PCI header type '?(?:127|0x7f)",
              "the device no longer answers: its configuration space reads as ones",
              "power-cycle the host; if it comes back, keep the device out of D3cold (disable_idle_d3=1 of vfio-pci)"
              " and update its firmware",
              "libvirt src/util/virpci.c, virPCIDeviceGetHeaderType"),
    FaultLine(r"[Ff]ailed (?:moving device BAR|allocating new MMIO range)[^\n]{0,80}",
              "the guest's window for PCI memory is too small for the device",
              "give the guest a 64-bit window that holds its BARs (hosttune plan computes it)",
              "cloud-hypervisor pci/src/configuration.rs; issue 6147"),
)  # fmt: skip
# That a run failed, where no line above says why.
FAILURES: tuple[FaultLine, ...] = (
    FaultLine(r"NCCL WARN (?:Cuda|HIP) failure[^\n]{0,100}|(?:CUDA|HIP) error[:"
              r" ][^\n]{1,120}|cudaErrorDevicesUnavailable",
              "a call of the GPU's runtime failed, and the run ended there",
              "read dmesg for XIDs of the same time; compare versions of driver, runtime and library",
              f"{_GUIDE}, Errors (ncclUnhandledCudaError)"),
    FaultLine(r"NCCL WARN Call to (?!ibv_|\w{0,20}libibverbs)\w{1,40} failed[^\n]{0,100}",
              "a system call of the library failed, and the run ended there",
              "the error's words say why: a file, an address or a right that is missing",
              f"{_GUIDE}, Errors (ncclSystemError)"),
    FaultLine(r"UCX {1,4}(?:ERROR|FATAL) [^\n]{1,140}",
              "UCX ended with an error",
              "its words say why; ucx_info -d lists the devices that it sees, show_gids the GIDs of RoCE",
              "UCX FAQ; openucx/ucx"),
    FaultLine(r"Test (?:NCCL|CUDA|HIP) failure[^\n]{0,120}"
              r"|(?:NCCL|RCCL) [Ee]rror[^\n]{0,160}?(?:unhandled (?:cuda|hip|system) error|invalid usage|internal"
              r" error)",
              "the run ended with an error, and no line says why",
              "run it again with NCCL_DEBUG=INFO: the first WARN line of any rank has the cause",
              f"{_GUIDE}, Errors"),
)  # fmt: skip
