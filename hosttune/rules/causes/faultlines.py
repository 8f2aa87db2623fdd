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
    r"Got completion [^\n]{{0,160}}?with (?:error |status=(?:\w{{1,40}}\()?){0}\b|Failed status {0}: wr_id"
    r"|{1}(?: error)? on mlx5"
)


def _status(number: str, words: str) -> str:
    return _COMPLETION.format(number, words)


SOFTWARE_RDMA = FaultLine(
    r"(?:NET/IB : Using [^\n]{0,200}?\[\d{1,2}\]|CA ')(?:rxe|siw)_?\w{0,16}",
    "this RDMA device is software (Soft-RoCE, soft iWARP): the CPU does its work, and no NIC's RDMA is used",
    "use the NIC's own device (ibv_devinfo lists mlx5_0 and the like; pass a function of it to a guest); rdma link"
    " shows on which interface a device is",
    "Linux drivers/infiniband/sw/rxe, siw; rdma-link(8)",
)
# The root first: where several match, those above are named first.
FAULT_LINES: tuple[FaultLine, ...] = (
    FaultLine(r"(?:posix_fallocate|shared memory segment|/dev/shm/nccl-)[^\n]{0,160}No space left on device"
              r"|failed to extend /dev/shm/\S{1,40} to \d{1,20} bytes(?!, error: (?!No space))"
              r"|while creating shared memory segment(?![^\n]{0,160}error: (?!No space))|killed by signal: Bus error"
              r"|Please check that /dev/shm or the directory you specified has more available memory"
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
    FaultLine(r"NET/OFI [Ss]elected [Pp]rovider is (?:tcp|sockets|udp)|NET/OFI Only EFA provider is supported"
              r"|provider efa output empty list|NET/OFI [^\n]{0,40}fi_getinfo\(\) call failed[^\n]{0,60}",
              "libfabric did not take the NIC's own provider",
              "install libfabric with that provider (`fi_info -p efa` must list it), give the container"
              " /dev/infiniband, and set FI_PROVIDER=efa",
              "NVIDIA/nccl issue 229; aws-ofi-nccl README"),
    FaultLine(r"ibv_modify_qp failed with (?:error )?(?:\d{1,3} )?(?:Connection timed out|No route to host|"
              r"Network is unreachable|Invalid argument|No data available)|[Ff]ailed to modify QP (?:\d{1,8} )?to RTR"
              r"[^\n]{0,80}|Unable to Connect the HCA's through the link",
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
    FaultLine(_status("(?:[24689]|10|11)", "(?:Local (?:protection|QP operation)|Remote access|Remote operation|Remote"
                      " invalid request)") + r"|Got async event : (?:local access violation|invalid request "
                      "local)[^\n]{0,40}",
              "an RDMA access was refused (protection or remote access error)",
              "check that all hosts have the same GPU driver, peer-memory module and library; try"
              " NCCL_NET_GDR_LEVEL=LOC: if that works, GPU memory is what cannot be reached (ACS, IOMMU)",
              _VERBS),
    FaultLine(r"TOO_MANY_PEERS|peer mapping resources exhausted",
              "CUDA lets a GPU have at most eight peers, and more GPUs are in one process",
              "show a process at most nine GPUs (CUDA_VISIBLE_DEVICES), or run a process for each GPU with NCCL",
              "CUDA programming guide, Peer-to-Peer Memory Access; CUDA_ERROR_TOO_MANY_PEERS"),
    FaultLine(r"peer access is not supported between these two devices|CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
              "two GPUs of the process have no peer access",
              "nvidia-smi topo -p2p r shows which; NCCL_P2P_DISABLE=1 lets NCCL go through host memory",
              "CUDA driver API, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"),
    FaultLine(r"cuMemImportFromShareableHandle[^\n]{0,120}(?:fail|error|not )|(?:cuda|hip)Ipc(?:Get|Open)MemHandle "
              r"failed[^\n]{0,60}|alloc\.h:\d{1,5} NCCL WARN Cuda failure"
              r" (?:\d{1,4} )?'(?:operation not|invalid (?:argument|device))",
              "memory cannot be shared between the processes by handles",
              "run all ranks of a host in one IPC and PID namespace; NCCL_CUMEM_ENABLE=0 and NCCL_CUMEM_HOST_ENABLE=0"
              " take the older way; with NVLink between hosts, IMEX must run (nvidia-imex)",
              f"{_VARIABLES} (NCCL_CUMEM_ENABLE, NCCL_CUMEM_HOST_ENABLE)"),
    FaultLine(r"Got async event : (?:port error|device fatal|local catastrophic)[^\n]{0,40}",
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
    # The GPUs' drivers, of which a line says more than the one with which they give up
    FaultLine(r"GPU does not have the necessary power cables connected|RmInitAdapter failed! \(0x[0-9a-f]{1,4}:0x1c:",
              "a GPU's own power cables are not connected",
              "power the host off, and connect each power socket of the card to the supply; nothing is to be replaced",
              "NVIDIA/open-gpu-kernel-modules osinit.c, RmInitAdapter; nvstatuscodes.h: 0x1c, insufficient power"),
    FaultLine(r"unexpected WPR2 already up[^\n]{0,60}",
              "a GPU was not reset since it was last used: its system processor cannot start again",
              "reset it (nvidia-smi --gpu-reset, or echo 1 > /sys/bus/pci/devices/ADDRESS/reset while nothing uses it);"
              " if that does not help, power-cycle the host; a passed GPU: the host must be able to reset it (FLR)",
              "NVIDIA/open-gpu-kernel-modules kernel_gsp.c, _kgspBootGspRm; its issue 1230"),
    FaultLine(r"failed to wait for GFW[_ ]BOOT|failed to wait for GFW boot complete",
              "a GPU's own firmware did not start",
              "power-cycle the host (a reboot may not be enough); check the card's power; replace it if it comes back",
              "NVIDIA/open-gpu-kernel-modules kernel_gsp_tu102.c; its issue 789"),
    FaultLine(r"RmFetchGspRmImages: [^\n]{0,80}|Direct firmware load for nvidia/[^\n]{0,60}gsp[^\n]{0,40}failed"
              r"|RmInitAdapter failed! \(0x61:|version mismatch: got version [\w.]{1,20}, expected version",
              "the firmware file of the GPU's system processor is missing or of another version",
              "install the driver's firmware (/lib/firmware/nvidia/VERSION/gsp_*.bin) of the version of its module",
              "NVIDIA/open-gpu-kernel-modules osinit.c: 0x61, RM_INIT_FIRMWARE_FETCH_FAILED"),
    FaultLine(r"Key was rejected by service|Loading of unsigned module is rejected|Required key not available"
              r"|unsigned module loading is restricted",
              "Secure Boot refuses a kernel module that is not signed",
              "sign it and enroll the key (mokutil --import), install the distribution's signed build, or switch Secure"
              " Boot off",
              "Linux kernel/module/signing.c; Documentation/admin-guide/module-signing.rst"),
    FaultLine(r"version magic '[^'\n]{1,80}' should be '|disagrees about version of symbol (?!ib_)|Exec format error"
              r"(?=[^\n]{0,80}(?:modprobe|insmod))",
              "a kernel module was built for another kernel",
              "build it again for the kernel that runs (dkms autoinstall, with its headers installed)",
              "Linux kernel/module/version.c and main.c"),
    FaultLine(r"fabric manager NVIDIA GPU driver interface version \S{1,20} (?:don.?t|doesn.?t|does not) "
              r"match[^\n]{0,60}",
              "Fabric Manager and the driver have different versions: the switches are not set up",
              "install nvidia-fabricmanager of exactly the driver's version (pin both), then start it",
              "Fabric Manager user guide; NVIDIA/gpu-operator issue 544"),
    FaultLine(r"query NVSwitch device information from NVSwitch driver failed[^\n]{0,80}",
              "Fabric Manager sees no NVSwitch here",
              "without NVSwitches it is not needed: disable it; on a board with them see lspci and dmesg"
              " (nvidia-nvswitch), boards with NVLink 5 need nvlsm and ib_umad, and guests have none of their own",
              "NVIDIA/gpu-operator issues 610 and 2781"),
    FaultLine(r"forward compatibility was attempted on non supported HW",
              "the container's CUDA compatibility library does not fit this GPU or driver",
              "take the image's cuda-compat out of LD_LIBRARY_PATH, or update the host's driver",
              "CUDA compatibility guide; CUDA error 804"),
    FaultLine(r"no kernel image is available for execution",
              "the program was not built for this GPU",
              "take a build that has the GPU's compute capability (newer PyTorch, CUDA or NCCL)",
              "CUDA runtime API, cudaErrorNoKernelImageForDevice"),
    FaultLine(r"could not select device driver \"\"? ?\"? ?with capabilities: \[\[gpu\]\]|nvidia-container-cli: "
              r"[^\n]{1,120}"
              r"(?:driver not loaded|load library failed|no such file)[^\n]{0,60}",
              "the container runtime cannot give GPUs to containers",
              "install the NVIDIA container toolkit (nvidia-ctk runtime configure, restart docker), and see that"
              " nvidia-smi runs on the host",
              "NVIDIA container toolkit, Troubleshooting"),
    FaultLine(r"skipped device [0-9a-f:.]{4,16}, PCI rejects atomics[^\n]{0,40}",
              "the compute driver leaves a GPU out: its slot does not carry PCIe atomics",
              "use a slot at the CPU, or a switch that routes atomics; in a guest an emulated root port must offer "
              "them",
              "Linux drivers/gpu/drm/amd/amdkfd/kfd_device.c"),
    FaultLine(r"(?:Unable to open|open) /dev/kfd[^\n]{0,80}|ROCk module is NOT loaded",
              "the process cannot open the GPUs' compute driver (/dev/kfd)",
              "load amdgpu; add the user to the groups render and video; give a container --device=/dev/kfd"
              " --device=/dev/dri",
              "ROCm installation guide, group permissions; rocminfo.cc"),
    FaultLine(r"\bring \w[\w.]{0,24} timeout, (?:signaled|but soft)[^\n]{0,60}",
              "a GPU hung: one of its engines did not answer in time",
              "read the lines below it (reset, RAS, page faults); if the reset fails, power-cycle the host; update "
              "driver"
              " and firmware if it comes back",
              "Linux drivers/gpu/drm/amd/amdgpu/amdgpu_job.c, amdgpu_job_timedout"),
    FaultLine(r"Failed to initialize hl\d{1,3}\. Device is NOT usable|Failed to communicate with Device CPU[^\n]{0,40}",
              "an accelerator did not start: its own CPU does not answer",
              "power-cycle the host; install firmware and driver of one release (hl-fw-loader); replace it if it comes"
              " back",
              "Linux drivers/accel/habanalabs/common/device.c; HabanaAI/Setup_and_Install issue 1"),
    FaultLine(r"synStatus=\d{1,3} \[Device already acquired\][^\n]{0,40}",
              "no accelerator is free: other processes have them",
              "end them (hl-smi lists them), or give the container those that are free (HABANA_VISIBLE_DEVICES)",
              "huggingface/tgi-gaudi issue 93"),
    # NICs and networks
    FaultLine(r"CREATE_MKEY\(0x200\)[^\n]{0,40} failed, status (?:limits exceeded|no resources)[^\n]{0,40}"
              r"|create_mkey_\w{1,12}:[^\n]{0,40}async reg mr failed\. status -\d{1,4}",
              "the NIC has no memory keys left: memory cannot be registered with it",
              "end the processes that hold them (rdma resource show mr), register fewer and larger pieces, or raise the"
              " NIC's limit; keys of killed processes go with a reload of mlx5_ib",
              "Linux drivers/infiniband/hw/mlx5/mr.c, create_mkey_warn; openucx/ucx issue 6264"),
    FaultLine(r"\b(?!CREATE_MKEY)[A-Z]\w{3,40}\(0x[0-9a-f]{1,4}\)[^\n]{0,40} failed, status (?:limits exceeded|no "
              r"resources)\(0x[8f]\)[^\n]{0,40}",
              "a NIC's resources are used up",
              "rdma resource show says what holds them; use fewer queue pairs and registrations, or fewer functions",
              "Linux drivers/net/ethernet/mellanox/mlx5/core/cmd.c, mlx5_cmd_out_err"),
    FaultLine(r"synd 0x[0-9a-f]{1,2}: (?:unrecoverable hardware error|firmware internal error|irisc not responding|"
              r"firmware CRC error|ICM fetch PCI error|HW fatal)[^\n]{0,40}|handling bad device here",
              "a NIC's firmware stopped with an error",
              "reset the NIC (mlxfwreset -d ADDRESS reset) or power-cycle the host; update its firmware; replace it "
              "if it"
              " comes back",
              "Linux drivers/net/ethernet/mellanox/mlx5/core/health.c, hsynd_str"),
    FaultLine(r"IP truncated-ip - \d{1,6} bytes missing!|Frag(?:mentation)? needed and DF set[^\n]{0,40}"
              r"|[Mm]essage too long,? ?\(?mtu ?= ?\d{2,5}",
              "the path does not carry packets of this size: an MTU on the way is smaller than that of the hosts",
              "set one MTU on NICs, bridges, VFs and switch ports, and test it: ping -M do -s 8972 (for 9000)",
              "tcpdump print-ip.c; ping(8), -M do; RFC 1191"),
    FaultLine(r"Unable to find the Infiniband/RoCE device|No IB devices found|IB device \S{1,40} not found"
              r"|Failed to get IB devices list",
              "no RDMA device is there, or none of this name",
              "load the NIC's RDMA driver (mlx5_ib), give a guest the function and a container /dev/infiniband;"
              " ibv_devices lists the names",
              "rdma-core, ibv_devices(1); linux-rdma/perftest perftest_resources.c"),
    FaultLine(r"Couldn't listen to port \d{1,5}",
              "another process has the port of the test",
              "end the server that was left, or give both sides another port (-p)",
              "linux-rdma/perftest perftest_communication.c, ethernet_server_connect"),
    FaultLine(r"Couldn't connect to \S{1,80}:\d{1,5}",
              "the two sides of the test do not reach each other over TCP",
              "start the server first, with the same options; open port 18515 between the hosts; give the address of "
              "the"
              " server's own interface",
              "linux-rdma/perftest perftest_communication.c, ethernet_client_connect"),
    FaultLine(r"timed out after \d{1,7}m?s while trying to connect to[^\n]{0,60}|DistStoreError[^\n]{0,120}"
              r"|Timed out after \d{1,6} seconds waiting for clients",
              "ranks do not reach the first one, at which they meet",
              "MASTER_ADDR must be an address that all hosts reach, MASTER_PORT open between them, and as many ranks"
              " started as the job counts",
              "PyTorch, torch/csrc/distributed/c10d/socket.cpp, TCPStore.cpp"),
    FaultLine(r"Mismatched NCCL version detected[^\n]{0,80}|[Mm]essage truncated ?: received \d{1,12} bytes instead of",
              "the ranks do not agree: they run different versions, variables or collectives",
              "use one image and one environment on all hosts; no other program may use the ranks' ports",
              "NVIDIA/nccl src/transport/net_socket.cc, src/bootstrap.cc"),
    FaultLine(r"NET/OFI (?:Request [^\n]{0,80}completed with error|Couldn't open )[^\n]{0,80}",
              "a request of libfabric failed",
              "let all traffic pass between the hosts (the security group must allow itself, both ways), and use one"
              " version of libfabric and of the plugin on all",
              "aws-ofi-nccl; AWS, Get started with EFA: security group"),
    FaultLine(r"Failed to initialize NVML: Driver/library version mismatch|API mismatch: the client has the version",
              "the driver's library is of another version than its module that is loaded",
              "reboot, or unload and load the module once nothing uses the GPUs",
              "NVIDIA driver README, common problems"),
    FaultLine(r"Failed to initialize NVML: Unknown Error",
              "the container has lost its right to the GPUs' device nodes",
              "start the container again; then cgroup driver cgroupfs, or name the nodes with --device",
              "NVIDIA container toolkit, Troubleshooting (systemctl daemon-reload)"),
    FaultLine(r"HW Exception by GPU node-\d{1,4}[^\n]{0,100}",
              "a GPU hung, and its driver ended what ran on it",
              "read dmesg of that time (amdgpu: ring timeout, reset, RAS); power-cycle the host if the reset failed",
              "ROCm/ROCR-Runtime runtime.cpp, Runtime::HwExceptionHandler"),
    FaultLine(r"Memory access fault by GPU node-\d{1,4}[^\n]{0,120}",
              "a program used memory that its GPU does not have mapped",
              "most often the program's own fault; between GPUs also peer access that the IOMMU or BARs prevent: boot"
              " with iommu=pt, and run the same on one GPU",
              "ROCm/ROCR-Runtime runtime.cpp, Runtime::VMFaultHandler"),
    FaultLine(r"Link \d{1,2}: (?:Recovery Errors: [1-9]|(?:Replay|CRC)[^:\n]{0,12}Errors: \d{4})\d{0,18}",
              "a link between GPUs has counted errors",
              "clear the counters (nvidia-smi nvlink -re), run, and read them again: where they grow, reseat the"
              " board or"
              " bridge, or replace it",
              f"{_SMI}, nvlink -e; Fabric Manager user guide"),
    FaultLine(r"detected (?:NVSwitch|NVLink)[^\n]{0,30}(?:fatal|recoverable) error[^\n]{0,80}"
              r"|failed to (?:initialize|find|train|detect) all the NVLink[^\n]{0,60}",
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
    FaultLine(r"Volatile[ \t]{0,40}\n(?:[ \t](?![ \t]{0,40}Aggregate)[^\n]{0,80}\n){0,6}?[ \t]{1,40}[SD]RAM "
              r"Uncorrectable(?: \w{1,8})?"
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
    SOFTWARE_RDMA,
)  # fmt: skip
# What is seen of a fault whose cause another line may say: named where no line above says it, after the kernel's.
SYMPTOMS: tuple[FaultLine, ...] = (
    FaultLine(r"Verify all devices in group \d{1,5} are bound to vfio",
              "another device of the same IOMMU group is still with a driver of the host, or this one's driver"
              " refused it",
              "bind every device of the group to vfio-pci (`hosttune discover` lists the group; often the GPU's audio"
              " function); of a mediated device (mdev) the log of its driver says why, nvidia-vgpu-mgr's for a vGPU",
              "QEMU hw/vfio/container.c, vfio_device_get; Linux Documentation/driver-api/vfio.rst"),
    FaultLine(r"AMD_[A-Z0-9]{3,12}: (?:timed out waiting for PSP[^\n]{0,40}|[\w ]{1,20}reset failed)",
              "an AMD GPU does not come back from a reset: the next guest cannot start it",
              "power-cycle the host, or suspend and wake it; then keep the GPU with one guest, whose driver is unloaded"
              " before it stops; take the newest vendor-reset, or a model that resets (FLR)",
              "gnif/vendor-reset, src/amd"),
    FaultLine(r"gpuId \d{1,4}:\s{1,20}D(?: [DX_]){1,39}(?![ \t]*U)",
              "all links of a GPU to the others are down",
              "of cards that a bridge joins: seat it, without one that is no fault; of a board: read the XIDs in dmesg"
              " and the fabric's log, restart the fabric's service, then reset the GPUs",
              "DCGM user guide, dcgmi nvlink --link-status: D is down"),
    FaultLine(r"CUDA-capable device(?:\(s\))?s? (?:is/)?are busy or unavailable",
              "the GPUs take no new process: exclusive mode, MIG without an instance, or an MPS server of another user",
              "nvidia-smi shows who is on them and the compute mode (nvidia-smi -c DEFAULT); with MIG name an instance;"
              " a GPU that needs a reset is busy, too (its XIDs in dmesg)",
              "CUDA runtime API, cudaErrorDevicesUnavailable; NVIDIA/k8s-device-plugin issue 647"),
    FaultLine(r"invalid device ordinal|no (?:CUDA|ROCm)-capable device is detected|No HIP GPUs are available"
              r"|No CUDA GPUs are available",
              "the process asks for a GPU that it does not see",
              "compare what it asks for with CUDA_VISIBLE_DEVICES and what the container or job was given; nvidia-smi"
              " shows what the driver has",
              "CUDA runtime API, cudaErrorInvalidDevice, cudaErrorNoDevice"),
    FaultLine(r"hw_init of IP block <\w{1,24}> failed[^\n]{0,20}|PSP firmware loading failed",
              "a GPU's driver could not start it",
              "reset or power-cycle it; the firmware files (linux-firmware) must fit the driver; a passed GPU must have"
              " been reset by the host",
              "Linux drivers/gpu/drm/amd/amdgpu/amdgpu_device.c, amdgpu_psp.c"),
    FaultLine(r"Unable to locate a BIOS ROM",
              "the driver found no ROM of the GPU",
              "give the guest a dump of it (<rom file='…'/>), or make another GPU the boot display of the host",
              "Linux drivers/gpu/drm/amd/amdgpu/amdgpu_bios.c"),
    FaultLine(r"handle_hca_cap failed|mlx5_load_one(?::\d{1,5})?[^\n]{0,30} failed with error code -\d{1,4}",
              "the NIC's driver could not start it",
              "update its firmware, or the driver; in a guest see that the host has not kept the function",
              "Linux drivers/net/ethernet/mellanox/mlx5/core/main.c, mlx5_load_one"),
    FaultLine(r"RmInitAdapter: Cannot initialize GSP firmware RM",
              "a GPU's system processor (GSP) did not start",
              "the NVRM lines before it say why; reset the GPU or power-cycle the host; firmware and modules must be of"
              " one version",
              "NVIDIA/open-gpu-kernel-modules osinit.c: 0x62, RM_INIT_FIRMWARE_INIT_FAILED"),
    FaultLine(r"Invalid PCI ROM header signature: expecting 0xaa55, got 0xffff",
              "the device's option ROM cannot be read",
              "give the guest a dump of it (<rom file='…'/>) or none (<rom bar='off'/>); that of the boot display "
              "was used"
              " up by the firmware: make another GPU the boot display",
              "Linux drivers/pci/rom.c, pci_get_rom_size"),
    FaultLine(r"[\w-]{1,32} [0-9a-f:.]{7,16}: not ready (?:[4-9]\d{3}|\d{5,7})ms after [\w -]{1,32}; waiting"
              r"(?![\s\S]{0,4000}?: ready \d{4,6}ms after)",
              "does not answer after a reset",
              "power-cycle the host if it gives up; update the firmware of device and board",
              "Linux drivers/pci/pci.c, pci_dev_wait"),
    FaultLine(r"AER: (?:Multiple )?Uncorrect(?:ed|able) \((?:Non-)?Fatal\) error (?:message )?received[^\n]{0,40}",
              "PCIe errors",
              "reseat or replace the device below this port, its riser or cables, and check its power; the lines with"
              " severity and type say more",
              "Linux drivers/pci/pcie/aer.c"),
    FaultLine(r"Out of memory: Kill process \d[^\n]{0,60}|killed by the OOM killer|result 'oom-kill'|OOMKilled",
              "memory ran out",
              "see what grew (dmesg, systemctl status), give it a larger limit, or the guests less (hosttune plan,"
              " reserve)",
              "Linux mm/oom_kill.c; systemd.service(5), OOMPolicy"),
    FaultLine(r"nvidia-fabricmanager\.service: (?:Main|Control) process exited[^\n]{0,40}|Failed to start[^\n]{0,40}"
              r"[Ff]abric ?[Mm]anager",
              "Fabric Manager did not start",
              "journalctl -u nvidia-fabricmanager says why; its version must be the driver's",
              "Fabric Manager user guide"),
    FaultLine(r"failed to set ?up container for group \d{1,5}",
              "VFIO could not attach the device's group for the guest",
              "dmesg says why: lines of vfio, DMAR or AMD-Vi of that time",
              "QEMU hw/vfio/container.c, vfio_container_connect"),
    FaultLine(r"Found no NVIDIA driver on your system",
              "the process sees no GPU driver",
              "a container: start it with the GPUs (--gpus all); else nvidia-smi says whether the driver is loaded",
              "PyTorch, torch/csrc/cuda"),
    FaultLine(r"CUDA unknown error - this may be due to an incorrectly set up environment",
              "CUDA could not start",
              "load nvidia_uvm (modprobe nvidia_uvm; after a sleep unload it first); on boards with NVSwitches start"
              " Fabric Manager; a container needs /dev/nvidia-uvm",
              "CUDA runtime API, cudaErrorUnknown"),
    FaultLine(r"Call to (?:recv|send|read|write)\w{0,6} from [^\n]{1,80}(?:Connection reset by peer|Broken pipe)",
              "another rank ended first",
              "its log has the cause: the first error by time, on any host",
              f"{_GUIDE}, Errors (ncclRemoteError)"),
    FaultLine(r"No devices were found",
              "the driver runs, and finds no GPU that it can start",
              "dmesg says why (NVRM: RmInitAdapter, BAR, GSP firmware; another driver such as nouveau or vfio-pci"
              " has it)",
              _SMI),
    FaultLine(r"couldn't communicate with the NVIDIA driver|NVIDIA driver is not loaded",
              "the GPU driver is not loaded",
              "dmesg says why (NVRM, nouveau, module signatures); after a new kernel build the module again (DKMS)",
              _SMI),
    FaultLine(r"Unable to determine the device handle for [Gg][Pp][Uu][^\n]{0,80}(?:lost|Unknown Error|Not Found)",
              "a GPU does not answer",
              "read its Xid in dmesg; power-cycle the host; if it comes back, reseat or replace the GPU",
              _SMI),
    FaultLine(_status("5", "Work Request Flushed"),
              "requests were flushed (status 5) after an earlier error of the same connection",
              "look for the first error, often on another host",
              _VERBS),
    FaultLine(r"\|[ \t]{0,4}PCIe[ \t]{1,30}\|[ \t]{0,4}Fail[^\n]{0,80}\n\|[^\n]{0,60}Nv[Ll]ink link \d{1,2}",
              "DCGM's diagnostic counts links between GPUs as down: on a card without NVLink bridge that is no fault",
              "nvidia-smi nvlink -s shows the links that there should be; a newer DCGM leaves out those that are not"
              " there",
              "NVIDIA/DCGM issue 49"),
    FaultLine(r"\|[ \t]{0,4}[A-Z][\w ]{1,30}\|[ \t]{0,4}Fail\b[^\n|]{0,60}",
              "a test of DCGM's diagnostic failed",
              "its Warning row names GPU and figure; read the GPU's XIDs, link and temperature, and run the test alone",
              "DCGM user guide, Diagnostics (dcgmi diag)"),
    FaultLine(r"remote process exited or there was a network error|Connection closed by remote peer",
              "another rank ended first",
              "its log has the cause: the first error by time, on any host",
              f"{_GUIDE}, Errors (ncclRemoteError)"),
    FaultLine(r"Watchdog caught collective operation timeout",
              "a rank did not come to a collective in time",
              "find the rank that is behind (TORCH_NCCL_TRACE_BUFFER_SIZE, py-spy): it crashed, waits for data, or its"
              " network hangs (NCCL_DEBUG=INFO)",
              "PyTorch, torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp"),
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
