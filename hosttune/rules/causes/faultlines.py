"""Lines in which libraries and tools say outright what failed: what it means, what to do, and who says so.

What the kernel writes is in `hosttune.linux.kernellines` and with the makers' drivers.
"""

from __future__ import annotations

from typing import NamedTuple


class FaultLine(NamedTuple):
    """`pattern`: from the line's first fixed letters on. `says`: what is wrong, `remedy` what to do against it.

    `follows`: what the kernel says of the same time comes before it: it can be a consequence on another host.
    `beside`: what must be in the text, too, before it or after it.
    """

    pattern: str
    says: str
    remedy: str
    source: str
    follows: bool = False
    beside: str = ""


_GUIDE = "NCCL user guide, Troubleshooting"
_VARIABLES = "NCCL user guide, Environment Variables"
_VERBS = "rdma-core, libibverbs/man/ibv_poll_cq.3 and enum ibv_wc_status; NVIDIA/nccl src/transport/net_ib.cc"
_SMI = "nvidia-smi manual page"
_DCGM = "NVIDIA/DCGM dcgmlib/dcgm_errors.h"
_MPS = "CUDA runtime API, cudaErrorMps…; CUDA MPS documentation"
# NVIDIA/nccl net_ib.cc, of old and new versions; perftest's perftest_communication.c; UCX's ib_mlx5_log.c has words.
_COMPLETION = (
    r"Got completion [^\n]{{0,160}}?with (?:error |status=(?:\w{{1,40}}\()?){0}\b|Failed status {0}: wr_id"
    r"|{1}(?: error)? on mlx5"
)
_EVENTS = (r"Got async (?:error )?event ?: ", r"async fatal event(?: on QP [^\n]{0,200})?: ", "non-fatal async event: ")


def _status(number: str, words: str) -> str:
    return _COMPLETION.format(number, words)


SOFTWARE_RDMA = FaultLine(
    r"(?:NET/IB : Using [^\n]{0,200}?\[\d{1,2}\]|CA ')(?:rxe|siw)_?\w{0,16}",
    "this RDMA device is software (Soft-RoCE, soft iWARP): the CPU does its work, and no NIC's RDMA is used",
    "use the NIC's own device (ibv_devinfo lists mlx5_0 and the like; pass a function of it to a guest); rdma link"
    " shows on which interface a device is",
    "Linux drivers/infiniband/sw/rxe, siw; rdma-link(8)",
)
# Where no port is active: unused functions of a host look like this, too.
NO_LID = FaultLine(
    r"State: Down\s{1,40}Physical state: LinkUp\s{1,40}(?:[^\n]{0,80}\s{1,40}){0,2}Base lid: (?:65535|0xffff)"
    r"|base lid:\s{1,20}0xffff\s{1,40}(?:[^\n]{0,80}\s{1,40}){0,1}state:\s{1,20}1: DOWN\s{1,40}"
    r"phys state:\s{1,20}5: LinkUp"
    r"|lid 65535 sm_lid [1-9]\d{0,5} lmc \d state DOWN physical_state LINK_UP",
    "a virtual function of InfiniBand has no LID, though its wire is up: the subnet manager does not know it",
    "a subnet manager with virtualization (opensm of the NIC's maker, virt_enabled 2, or UFM); on the host"
    " give it GUIDs and a link (ip link set PF vf N node_guid G, port_guid G, state auto; ib-kubernetes does it),"
    " then bind its driver anew",
    "NVIDIA, SR-IOV with InfiniBand; sriov-network-device-plugin issue 269",
)
EACH_ALONE = FaultLine(
    r"#? {0,4}Rank {1,4}0 (?:Group {1,4}\d{1,4} )?Pid[^\n]{1,160}\n#? {0,4}Rank {1,4}0 [^\n]{1,160}",
    "each process ran alone: of one rank the bus bandwidth is 0 by its definition",
    "build nccl-tests with MPI=1 and start it by mpirun, or give one process several GPUs (-g); its lines must name all"
    " ranks",
    "NVIDIA/nccl-tests README.md and doc/PERFORMANCE.md; its issue 294",
)
_CLOSED = r"NVRM version: NVIDIA UNIX (?:x86_64 |aarch64 )?Kernel Module"
_BLACKWELL = r"\b(?:GB[123]0\d?|B[23]00|RTX PRO [456]\d{3}|RTX 50[5-9]0)\b"
# The root first: where several match, those above are named first.
FAULT_LINES: tuple[FaultLine, ...] = (
    FaultLine(r"(?:posix_fallocate|shared memory segment|/dev/shm/nccl-)[^\n]{0,160}No space left on device"
              r"|failed to extend /dev/shm/\S{1,40} to \d{1,20} bytes(?!, error: (?!No space))"
              r"|while creating shared memory segment(?![^\n]{0,160}error: (?!No space))|killed by signal: Bus error"
              r"|Please check that /dev/shm or the directory you specified has more available memory"
              r"|unable to write to file </torch_|out of shared memory\. Please try to raise"
              r"|insufficient shared memory \(shm\)|Signal 7 \(SIGBUS\) received|exitcode {0,4}: -7\b"
              r"|exited on\s{1,20}signal 7 \(Bus error\)|exits with return code = -7\b",
              "/dev/shm of the container is too small",
              "docker run --shm-size=8g (or --ipc=host); in Kubernetes mount an emptyDir with medium Memory there",
              f"{_GUIDE}, Shared memory: Docker gives 64 MB; NVIDIA/nccl src/misc/shmutils.cc"),
    FaultLine(r"NCCL WARN unlink shared memory /dev/shm/nccl-[^\n]{1,40}No such file or directory",
              "the login manager removed the library's files in /dev/shm: to it the job's user is not logged in",
              "RemoveIPC=no in /etc/systemd/logind.conf, then restart systemd-logind",
              f"{_GUIDE}, Shared memory: Systemd"),
    # Copies of a test that mpirun started: each lists its own rank 0, on another host, and no row is between.
    FaultLine(r"Rank {1,4}0 (?:Group {1,4}\d{1,4} {1,4})?Pid {1,8}\d{1,9} on {1,24}(\S{1,64}) {1,4}device[^\n]{1,120}\n"
              r"(?:#[^\n]{0,200}\n| {2,8}Rank[^\n]{1,200}\n"
              r"|[^\n]{1,80} NCCL INFO[^\n]{0,600}\n){0,64}?#? {0,4}Rank {1,4}0 "
              r"(?:Group {1,4}\d{1,4} {1,4})?Pid {1,8}\d{1,9} on {1,24}(?!\1 )\S{1,64} {1,4}device[^\n]{1,120}",
              "each process ran alone, a test of its own: rank 0 is there once for each host, and the hosts do not talk"
              " with each other",
              "build nccl-tests with make MPI=1 MPI_HOME=DIR (a variable of the run does not do it); its lines must"
              " name"
              " all ranks once",
              "NVIDIA/nccl-tests README.md; its issues 182 and 213"),
    FaultLine(r"Call to ibv_open_device failed|NET/IB : Unable to open device|[Uu]nable to open RDMA device"
              r"|Failed to open /dev/infiniband"
              r"|NET/IB : No device found(?=[\s\S]{0,40000}?cannot access '?/dev/infiniband)"
              r"|cannot access '?/dev/infiniband'?: No such file(?=[\s\S]{0,40000}?NET/IB : No device found)",
              "the process may not open the RDMA device",
              "give the container /dev/infiniband and locked memory (docker run --device=/dev/infiniband"
              " --cap-add=IPC_LOCK --ulimit memlock=-1; in Kubernetes the RDMA device plugin's resource)",
              "NVIDIA/nccl src/misc/ibvwrap.cc; NVIDIA/nccl issue 451"),
    FaultLine(r"does not support the kernel ABI of \d{1,3}[^\n]{0,60}|version .?IBVERBS_PRIVATE_\d{1,3}.? not found"
              r"|no userspace device-specific driver found for[^\n]{0,80}"
              r"(?=[\s\S]{0,2000}?(?i:No (?:IB )?devices? (?:were )?found|\b0 HCAs found))",
              "the RDMA library of this system or image does not fit the kernel's driver of the NIC",
              "install in the image the libraries of the RDMA stack that the host runs (rdma-core, or the NIC maker's"
              " package of the same release)",
              "rdma-core, libibverbs/init.c, match_device and try_driver"),
    FaultLine(r"couldn't stat '/sys/class/infiniband/\w{1,24}'(?=[\s\S]{0,20000}?NET/IB : No device found)",
              "the RDMA devices that the container was given are in another network namespace",
              "give the container the host's network (hostNetwork), or move device and interface into it (RDMA CNI,"
              " with rdma system show: exclusive)",
              "rdma-core, libibverbs/init.c; rdma-system(8)"),
    FaultLine(r"ibv_reg_(?:dmabuf_)?mr\w{0,10}[^\n]{0,80}(?:Bad address|Invalid argument|(?:Operation|Protocol) not"
              r" supported)|GPU buffer address at [^\n]{0,120}\n(?:[^\n]{0,160}\n){0,6}?Couldn't allocate MR\b"
              r"|Couldn't allocate MR\b(?: with error=(?:14|22|93|95)\b|(?=[\s\S]{0,400}Bad address))"
              r"|Failed to register memory 0x[0-9a-f]{1,16}: Bad address|DMA BUF supported required for GPU RDMA"
              r"|neither nv_peer_mem, or nvidia_peermem detected|cannot allocate buffer on the specified memory type"
              r"|Peermem is not supported, and device \d{1,3} does not support DMA-BUF",
              "GPU memory cannot be registered with the NIC",
              "load nvidia_peermem (built against the RDMA stack in use), or use DMA-BUF: open driver modules,"
              " Linux 5.12 or later and a NIC driver that has it (else NCCL_DMABUF_ENABLE=0)",
              "NVIDIA GPUDirect RDMA documentation, nvidia-peermem; ibv_reg_dmabuf_mr(3); NVIDIA/nccl issue 778;"
              " linux-rdma/perftest issues 31 and 280"),
    FaultLine(r"(?m:^)unlimited\s(?=[\s\S]{0,40000}?ibv_(?:exp_)?(?:reg|create)_\w{1,20}[^\n]{0,80}Cannot allocate"
              r" memory)",
              "memory cannot be registered for RDMA, and the limit of locked memory is not the reason",
              "dmesg of that time; the NIC's own limits (fewer processes and registrations), the limit in the job or"
              " the"
              " container itself (ulimit -l there), or a kernel without CMA (CmaTotal: 0 kB on a DGX Spark)",
              "rdma-core, ibv_reg_mr(3): ENOMEM; luxingcom/aicad-nccl-optimization issue 1"),
    FaultLine(r"(?:(?:ibv|mlx5dv)_(?:exp_)?(?:reg_mr|reg_dmabuf_mr|create_)\w{0,20}[^\n]{0,80}|register user"
              r" memory[^\n]{0,40})Cannot allocate memory|Please set max locked memory"
              r"|RLIMIT_MEMLOCK is \d{1,20} bytes|memlock limits are set too low"
              r"|(?:map_hfi_mem|hfi_userinit\w{0,12}): mmap of [^\n]{1,80} failed: Resource temporarily unavailable"
              r"|EFA internal error: \(\d{1,6}\) Failure to post internal receive buffers"
              r"|NET/OFI Couldn't enable endpoint\. RC: -12[^\n]{0,40}"
              r"|Missing or unavailable event queue\. err: [^\n]{0,40}\(-12\)"
              r"|Unable to register MR: Cannot allocate memory"
              r"|Failed to create a completion queue \(CQ\)(?=[\s\S]{0,300}?Cannot allocate memory)"
              r"|Couldn't allocate MR\b(?![\s\S]{0,400}Bad address)",
              "the limit of locked memory is too small for RDMA",
              "ulimit -l unlimited: LimitMEMLOCK=infinity in the service that starts the job, docker run --ulimit"
              " memlock=-1, or memlock in /etc/security/limits.conf",
              f"{_GUIDE}, Shared memory (ulimit memlock); rdma-core, ibv_reg_mr(3): ENOMEM; libibverbs/init.c;"
              " awsome-distributed-ai issue 647"),
    FaultLine(r"(?:mlx5dv_create_qp|mlx5dv_devx_obj_create)\(\w{1,8}\) failed[^\n]{0,60}(?:Invalid argument|Remote I/O"
              r" error|not supported)|failed to create \w{1,4} QP\b[^\n]{0,80}: (?:Invalid argument|Remote I/O error"
              r"|Operation not supported)|ibv_cmd_create_qp with 22",
              "the NIC refused a queue of the kind that the library asked for",
              "bring the NIC's firmware, driver and rdma-core to one release; UCX: UCX_IB_MLX5_DEVX_OBJECTS= (empty),"
              " or UCX_TLS without dc and ud; NICs of other makers: MPI over libfabric or TCP",
              "openucx/ucx src/uct/ib; its issues 5148, 5749 and 10451"),
    FaultLine(r"mlx5dv_devx_\w{1,20}\([^)\n]{0,40}\)[^\n]{0,60}Cannot allocate memory|Call to ibv_create_(?:qp|cq)"
              r" failed[^\n]{0,80}|failed to create \w{0,4} ?(?:qp|QP)\b[^\n]{0,80}",
              "the NIC gave no further queue: the limit of locked memory or its own resources are used up",
              "ulimit -l unlimited; start fewer processes a host, or let UCX share queues (UCX_TLS with dc or ud);"
              " irdma: a larger limits_sel",
              "openucx/ucx src/uct/ib; its issue 7978; NVIDIA/nccl issue 622"),
    FaultLine(r"ibv_exp_(?:query|open|get|create)_\w{2,24}\([^\n]{0,40}\) (?:returned|failed)[^\n]{0,80}"
              r"|symbol lookup error: [^\n]{1,160}undefined symbol: (?:ibv|mlx5dv|uct_ib)_\w{2,40}"  # not NCCL's dlvsym
              r"|version .?MLX5_1\.\d{1,2}.? not found[^\n]{0,80}"
              r"|symbol (?:ibv|mlx5dv)_\w{2,40}, version [A-Z5]{4,8}_[\d.]{1,5} not defined in file[^\n]{0,30}",
              "the program or its UCX was built for another RDMA library than the one installed (ibv_exp: the NIC"
              " maker's old one): RDMA is not used, and data goes over TCP",
              "take the build for rdma-core (HPC-X: inbox; UCX: build it here --with-verbs), or install the NIC maker's"
              " libraries for which it was built, alike on all hosts",
              "openucx/ucx src/uct/ib/base; its issue 4770"),
    FaultLine(r"component 0 {1,4}: {1,4}\w{2,12}(?![\s\S]{0,4000}?component \d{1,2} {1,4}: {1,4}ib\b)"
              r"(?=[\s\S]{0,8000}?(?:tcp/ib\w{1,12}|mlx5_\d))"
              r"|[Cc]omponent: (?:posix|sysv|self|tcp)\b(?![\s\S]{0,40000}?(?:Memory domain: (?:ib|mlx|irdma|bnxt|efa)"
              r"|[Cc]omponent: ib\b))(?=[\s\S]{0,20000}?(?:Device: ib\w{1,12}|\n[ \t]{0,8}mlx[45]_\d{1,2}[ \t]))",
              "UCX has no transport for InfiniBand or RoCE here: it goes over TCP",
              "its module libuct_ib is missing or does not load (ldd lib/ucx/libuct_ib.so): install libibverbs and the"
              " NIC's library, or take the build that fits the RDMA stack (HPC-X: inbox or MOFED; UCX: --with-verbs);"
              " ucx_info -d must list rc_mlx5",
              "openucx/ucx src/uct/ib; its issue 7245"),
    FaultLine(r"GPU cannot map UAR of device|ibgda_nic_mem_gpu_map failed|cudaHostRegister with IoMemory failed",
              "the GPU cannot reach the NIC's own registers: NVSHMEM goes without IBGDA",
              "options nvidia NVreg_EnableStreamMemOPs=1 NVreg_RegistryDwords=\"PeerMappingOverride=1;\" in"
              " /etc/modprobe.d, then reboot; the container needs the same right",
              "NVSHMEM installation guide, IBGDA; deepseek-ai/DeepEP issue 163"),
    FaultLine(r"Couldn't enable GPUDirect RDMA",
              "UCX cannot register GPU memory with the NIC: no peer-memory module is loaded",
              "load nvidia_peermem (AMD: the amdgpu driver of ROCm), or use DMA-BUF: Linux 5.12 or later",
              "openucx/ucx src/uct/ib/base/ib_md.c"),
    FaultLine(r"could not insert '?nv(?:idia)?[_-]peer_?mem\b"
              r"|nv(?:idia)?[_-]peer_?mem: (?:disagrees about|Unknown symbol)|failed to load nvidia-peermem module",
              "nvidia_peermem cannot be loaded: it was built without the RDMA stack that runs",
              "install the NIC's RDMA stack first, then the GPU's driver anew; or use DMA-BUF: open driver modules and"
              " Linux 5.12 or later",
              "NVIDIA driver README, GPUDirect RDMA Peer Memory Client"),
    FaultLine(r"Unresponsive receiver[^\n]{0,80}|Unreachable remote[^\n]{0,60}|Unresponsive remote[^\n]{0,60}",
              "an EFA peer does not answer",
              "let all traffic pass between the hosts (the security group must allow itself, in and out), put them into"
              " one subnet, and see whether the peer's process ended: its log comes first",
              "ofiwg/libfabric prov/efa/src/efa_errno.h and efa_strerror.c, efa_show_help"),
    FaultLine(r"GDR disabled on GDR-supported instance type [\w.-]{2,24}",
              "the NICs do not reach GPU memory here (EFA), so that the plugin does not start: NCCL goes over TCP",
              "install EFA's driver and libfabric of one release with the installer, load efa_nv_peermem (or use"
              " DMA-BUF),"
              " and give the container all of /dev/infiniband; fi_info -p efa must list it",
              "aws/aws-ofi-nccl src/platform-aws.c, platform_config_endpoint; its issue 889"),
    FaultLine(r"cxi\w{0,4}: ?Failed to find valid default rgroup[^\n]{0,60}|Failed to find valid default rgroup and vni"
              r"[^\n]{0,40}|NET/OFI Couldn't open a fabric access domain[^\n]{0,80}Function not implemented",
              "the process has no network identity (VNI) of Slingshot, so that libfabric (cxi) does not open the NIC",
              "start it as a step of the job (srun --network=single_node_vni,job_vni, or the site's default), hand on"
              " SLINGSHOT_VNIS, and take the libfabric of the system in the container",
              "ofiwg/libfabric prov/cxi/src/cxip_nic.c; aws-ofi-nccl issue 801"),
    FaultLine(r"due to completion queue exhaustion[^\n]{0,80}|H/W Event Queue overflow detected",
              "the queue of completions of the NIC is full (cxi)",
              "FI_CXI_DEFAULT_CQ_SIZE=131072, with FI_CXI_RX_MATCH_MODE=hybrid; post fewer receives at once",
              "ofiwg/libfabric fi_cxi(7), FI_CXI_DEFAULT_CQ_SIZE; its issue 9286"),
    FaultLine(r"\bPTLTE_NOT_FOUND\b|\bLE_NOT_FOUND\b|\bC_RC_PTLTE_NOT_FOUND\b|\bNO_MATCH_ENTRY\b[^\n]{0,20}",
              "the other side's endpoint or buffer was gone (cxi): its process ended, or its matching lists were full",
              "look for the rank that ended first; FI_CXI_RX_MATCH_MODE=hybrid (or software) takes the lists out of the"
              " NIC",
              "ofiwg/libfabric fi_cxi(7), FI_CXI_RX_MATCH_MODE; its issue 10072"),
    FaultLine(r"assign_context command failed: (?:Device or resource busy|No such device or address)",
              "the Omni-Path adapter has no context left for another process",
              "one context a rank: mpirun --mca btl ^ofi (it takes a second one), fewer ranks,"
              " PSM2_MAX_CONTEXTS_PER_JOB"
              " for jobs that share a host, or num_user_contexts of the module hfi1 (twice the CPUs)",
              "cornelisnetworks/opa-psm2; Linux drivers/infiniband/hw/hfi1; open-mpi/ompi issue 9575"),
    FaultLine(r"hfi1 units: total -1, active 0[^\n]{0,60}",
              "PSM2 does not find the Omni-Path adapter: it was renamed",
              "give it back its name hfi1_0: rdma-core's rule 60-rdma-persistent-naming with NAME_KERNEL (a copy in"
              " /etc/udev/rules.d), then reboot",
              "rdma-core, kernel-boot/rdma-persistent-naming.rules; cornelisnetworks/opa-psm2 issue 43",
              beside="PortState: {1,8}Active"),
    FaultLine(r"PSM2? and driver version mismatch[^\n]{0,30}|OPX and driver version mismatch",
              "the Omni-Path library and the driver hfi1 do not fit each other",
              "install libpsm2 (or libfabric with opx) and the driver of one release, also in the container",
              "cornelisnetworks/opa-psm2 opa_proto.c; ofiwg/libfabric prov/opx"),
    FaultLine(r"gdrdrv:nvidia_p2p_get_pages\([^\n]{1,90}\) failed|could not load module \S{0,80}gdrdrv\.ko",
              "GDRCopy's module does not work with the GPU's driver that runs",
              "build and install gdrdrv anew for this kernel and driver (DKMS package), and load it",
              "NVIDIA/gdrcopy README and issue 30"),
    FaultLine(r"(?:provider efa output empty|fi_getinfo: -61|fi_getinfo\(\) call failed: No data)[^\n]{0,40}",
              "the container does not have the NIC's devices (EFA): libfabric sees none",
              "give it /dev/infiniband (docker run --device=/dev/infiniband/uverbs0 of each, or --privileged; in"
              " Kubernetes vpc.amazonaws.com/efa); fi_info -p efa must list them in it as on the host",
              "aws-ofi-nccl issue 1020",
              beside=r"nvcr\.io/|\bdocker (?:run|exec)|[Cc]ontainer\b|root@\S{1,64}:/workspace"),
    FaultLine(r"NET/OFI [Ss]elected [Pp]rovider is (?:tcp|sockets|udp)|NET/OFI Only EFA provider is supported"
              r"|NET/OFI Couldn't find any optimal provider|NET/OFI Unable to find a protocol that worked"
              r"|provider efa output empty list|fi_getinfo: -61 \([^)\n]{1,40}\)"
              r"|NET/OFI [^\n]{0,40}fi_getinfo\(\) call failed[^\n]{0,60}",
              "libfabric did not take the NIC's own provider",
              "install libfabric with that provider (`fi_info -p efa` must list it), give the container"
              " /dev/infiniband, and set FI_PROVIDER=efa",
              "NVIDIA/nccl issue 229; aws-ofi-nccl README"),
    FaultLine(r"Couldn't set FI_OPT_EFA_\w{4,60}[^\n]{0,60}|NET/OFI Disabling shared memory failed[^\n]{0,60}"
              r"|EFA provider requires at least libfabric version[^\n]{0,20}",
              "the libfabric that is loaded is older than the one for which the plugin was built",
              "one release of the EFA installer on hosts and in images (fi_info --version), and its lib first in"
              " LD_LIBRARY_PATH",
              "aws-ofi-nccl issue 241"),
    FaultLine(r"NET/IB : Using (?=[^\n]{0,800}?:\d/IB\b)(?=[^\n]{0,800}?:\d/RoCE\b)[^\n]{1,1200}"
              r"(?=[\s\S]{0,60000}?(?:with (?:error |status=\w{1,40}\()12\b|\b(?:hangs?|stuck)\b))",
              "the run uses ports of InfiniBand and of Ethernet together, and some do not answer",
              "name those of one link layer in NCCL_IB_HCA, the same on all hosts (ibv_devinfo shows link_layer)",
              "NVIDIA/nccl issues 1412 and 302; NCCL user guide, NCCL_IB_HCA"),
    FaultLine(r"default subnet GID prefix was detected on more than one"
              r"(?=[\s\S]{0,40000}?(?:error modif|RETRY|EXCEEDED|[Tt]imed out|unable to reach|UNREACHABLE))",
              "two separate InfiniBand fabrics have the same subnet prefix: MPI takes their ports for one network",
              "give each fabric's subnet manager a prefix of its own (opensm.conf, subnet_prefix), or name the ports"
              " of one"
              " (btl_openib_if_include, UCX_NET_DEVICES, NCCL_IB_HCA)",
              "open-mpi/ompi, help-mpi-btl-openib.txt: default subnet prefix; Open MPI FAQ, ofa-default-subnet-gid"),
    FaultLine(r"pkey_index[= ][1-9]\d?\b(?=[\s\S]{0,40000}?with (?:error |status=\w{0,40}?\(?)12\b)",
              "the fabric's partition is another one than the port's first key, which the library takes",
              "NCCL_IB_PKEY=its index (MPI: UCX_IB_PKEY=its value); /sys/class/infiniband/DEV/ports/1/pkeys lists them",
              "NCCL user guide, NCCL_IB_PKEY; NVIDIA/nccl issue 1323"),
    FaultLine(r"Device {1,12}: roceP?\d?p\d{1,2}s0f\d\b[\s\S]{0,1500}?BW average\[Gb/sec\][^\n]{0,40}\n {1,4}\d{5,9}"
              r" {1,12}"
              r"\d{1,9} {1,16}[\d.]{1,8} {1,16}(?:[89]|1\d|2[0-5])\.\d{1,3}\b",
              "the port of a DGX Spark (ConnectX-7 by two x4 links) carries a tenth of its rate: it did not start"
              " right",
              "shut down, take the power off for a minute, boot with the cable plugged at both ends, and test again;"
              " update"
              " the firmware (fwupdmgr)",
              "NVIDIA/dgx-spark-playbooks pull request 108"),
    FaultLine(r"Attempted to (?:connect|merge) incompatible devices[^\n]{0,120}|NET/IB : Remote \w{1,12} device is"
              r" incompatible[^\n]{0,80}",
              "ports of InfiniBand and of Ethernet are mixed: they cannot be connected with each other",
              "name those of one link layer in NCCL_IB_HCA, the same on all hosts (ibv_devinfo shows link_layer)",
              "NVIDIA/nccl src/transport/net_ib/connect.cc and init.cc"),
    FaultLine("|".join(rf"{event}(?:port error|device fatal|local catastrophic)[^\n]{{0,40}}" for event in _EVENTS)
              + r"|NET/IB: Device \d{1,2} marked as failed|Detected \d{1,2} failed devices out of \d{1,2} devices",
              "a port lost its link or its device during the run",
              "read dmesg and the port's counters (link_downed); reseat or replace cable and module",
              "NVIDIA/nccl src/transport/net_ib.cc, ncclIbAsyncThreadMain; NVIDIA/nccl issue"
              " 905; rdma-core, ibv_get_async_event(3)"),
    FaultLine(r"ibv_modify_qp\b[^\n]{0,40}(?:(?:Connection|Operation) timed out|No route to host|Network is unreachable"
              r"|Invalid argument|No data available|No such device|Remote I/O error)"
              r"|Failed to create AH\b|[Ff]ailed to modify (?:\w{2,3} )?QP [^\n]{0,30}to RTR|error modif(?:y)?ing QP"
              r" to RTR"
              r"[^\n]{0,80}|(?<!to RTS\n )Unable to Connect the HCA's through the link"
              r"|ibv_create_ah\([^\n]{0,240}failed: (?:Connection timed out|No route|Network is unreach|Invalid arg)"
              r"|non-zero status: (?:19|22|101|110|113) ibv_modify_qp failed"
              r"|Found Incompatibility issue with GID types"
              r"|[Ii]nvalid (?:gid|GID)\[\d{1,4}\][^\n]{0,40}",
              "two ports cannot be connected: their GIDs do not reach each other",
              "show_gids: take a RoCE v2 GID of the same kind on all hosts (NCCL_IB_GID_INDEX), leave ports out that do"
              " not reach the peer (NCCL_IB_HCA), and give each port of a host a subnet of its own",
              f"{_VARIABLES} (NCCL_IB_GID_INDEX, NCCL_IB_HCA); rdma-core, ibv_modify_qp(3)"),
    FaultLine(r"(?:read|open) failed in ncclIbRoceGetVersionNum: [^\n]{4,40}",
              "a GID index of the port is not there, so its version of RoCE cannot be read",
              "set NCCL_IB_GID_INDEX to a RoCE v2 GID that show_gids lists on this host or in this container",
              f"NVIDIA/nccl issue 1573; {_VARIABLES} (NCCL_IB_GID_INDEX)"),
    FaultLine(r"Failed to modify QP (?:\d{1,8} )?to (?:RTS|INIT)\b",
              "the NIC did not start the queue pair of the test",
              "ip neigh must have the address of the other side; dmesg has the driver's words; try it without -R",
              "linux-rdma/perftest perftest_resources.c; its issue 132"),
    FaultLine(r"Trying to connect from \S{1,40} port \d{1,3} \(subnet [^\n]{1,200} on a different subnet [^\n]{1,60}",
              "the ranks' NICs are on different subnets, which libfabric's PSM3 does not connect",
              "PSM3_ALLOW_ROUTERS=1 where a router connects them; else take TCP (mpirun --mca pml ob1 --mca btl"
              " tcp,self)",
              "ofiwg/libfabric prov/psm3, PSM3_ALLOW_ROUTERS; open-mpi/ompi issue 12520"),
    FaultLine(r"failed to create macvlan: invalid argument",
              "macvlan does not fit this interface: it is InfiniBand, or its MTU is smaller than the one asked for",
              "on InfiniBand use the IPoIB CNI plugin; else lower the network's mtu to that of the interface below",
              "Linux drivers/net/macvlan.c, macvlan_port_create and macvlan_common_newlink"),
    FaultLine(r"no valid pkey (?:with full membership |to use )?on[^\n]{0,40}|nable to find specified pkey[^\n]{0,40}"
              r"|multicast join failed for ff12:401b:[^\n]{0,60}",
              "the port is not a full member of its InfiniBand partition, or its group is set up otherwise",
              "cat /sys/class/infiniband/*/ports/*/pkeys/0: full members have 0x8000 set; correct the subnet manager's"
              " partitions.conf (membership, rate and MTU of the group), or choose the key (UCX_IB_PKEY, NCCL_IB_PKEY)",
              "openucx/ucx uct/ib/base/ib_iface.c; Linux drivers/infiniband/ulp/ipoib/ipoib_multicast.c"),
    FaultLine(_status("1", "Local length") + r"|bad completion with status: 0x1\b|\blocal length error",
              "a message is longer than the receiver takes (status 1): the two ports have different MTUs",
              "give the ports of all hosts one MTU (ibv_devinfo, active_mtu: of the interface with RoCE, of the switch"
              " too) and all hosts one version of the library",
              f"{_VERBS}; NVIDIA/nccl pull request 2135 and issue 1524"),
    FaultLine("|".join(rf"{event}(?:local access violation|invalid request local)[^\n]{{0,40}}" for event in _EVENTS),
              "a port refused a request of its peer",
              "compare the ports' MTU on all hosts (ibv_devinfo, active_mtu): NCCL from 2.20 does not take the smaller"
              " one; then versions of driver, peer-memory module and library",
              "rdma-core, ibv_get_async_event(3); NVIDIA/nccl issue 1524"),
    FaultLine(r"Got completion [^\n]{0,160}?with (?:error |status=\w{1,40}\()12\b[^\n]{0,200}?localGid fe80:"
              r"[^\n]{0,40}",
              "the hosts use link-local addresses (GID fe80::), which do not reach each other through a router",
              "set NCCL_IB_GID_INDEX to a GID of RoCE v2 with an IPv4 address (show_gids), mostly 3; newer NCCL chooses"
              " it by itself",
              f"{_VARIABLES} (NCCL_IB_GID_INDEX); rdma-core, show_gids"),
    FaultLine(r"iperf 3\.(?:\d|1[0-5])(?:\.\d)?\b"
              r"(?=[\s\S]{0,20000}?CPU Utilization: local/sender (?:9[5-9]|100)[.\d]{0,4}%)",
              "one CPU is the limit: before 3.16 iperf3 sends all streams with one thread",
              "update iperf3 to 3.16 or newer, or run several at once on ports of their own; then MTU 9000",
              "esnet/iperf release notes 3.16"),
    FaultLine(r"GPU over temperature range[^\n]{0,40}|GPU HW Critical Temperature Fault[^\n]{0,20}"
              r"|System is going to shutdown due to GPU \w{2} CTF",
              "a GPU became too hot: its driver stops the host",
              "fans and the way of the air (a passive card needs a server's), heat sink and paste; until then a lower"
              " power limit",
              "Linux drivers/gpu/drm/amd/pm/swsmu/amdgpu_smu.c"),
    FaultLine(r"TCP STREAM TEST[^\n]{1,160}\n"
              r"(?:[^\n]{0,120}\n){4,7}?[ \t]{0,8}\d{1,9} {1,9}\d{1,9} {1,9}\d{1,9} {1,9}[\d.]{2,9}"
              r" {1,9}9[3-5]\.\d{1,2}\b",
              "the rate is that of Fast Ethernet: a link on the way runs at 100 Mb/s",
              "ethtool at both ends and the switch ports between: Speed; reseat or exchange the cable (all four"
              " pairs), and"
              " leave autonegotiation on",
              "IEEE 802.3, 100BASE-TX: 94.9 Mb/s of TCP with frames of 1500 bytes"),
    FaultLine(r"numactl [^\n]{0,60}?(?:-N|--cpunodebind)[= ]?(\d{1,2})\b[^\n]{0,160}? -d (\w{2,24})\b[^\n]{0,120}"
              r"(?=[\s\S]{0,20000}?is less than)(?=[\s\S]{0,20000}?(?:\b\2 numa(?:_node)?:? |/\2/device/numa_node\n)"
              r"(?!\1\b)\d)",
              "the test runs on the CPUs of another NUMA node than that of its NIC",
              "numactl -N and -m with the node of the NIC (cat /sys/class/infiniband/DEV/device/numa_node)",
              "numactl(8); Azure/azurehpc-health-checks issue 46"),
    FaultLine(r"HW Power Brake Slowdown[ \t]{0,40}: Active\b",
              "something outside the GPU slows it: the power brake is on",
              "look at power supplies, their cables and the chassis' or rack's power limit (BMC): the board's own limit"
              " is another reason (SW Power Cap)",
              "nvml.h, nvmlClocksEventReasonHwPowerBrakeSlowdown"),
    FaultLine(r"out_of_sequence[: \t\n]{1,20}[1-9]\d{4,18}\b|(?:packet_seq_err|local_ack_timeout_err|rx_roce_discards"
              r"|oos_drop_count|to_retransmits|seq_err_naks_rcvd)[: \t\n]{1,20}[1-9]\d{3,18}\b",
              "RDMA packets were lost and sent again, many times",
              "RoCE: PFC or ECN alike on NIC and switch (mlnx_qos, ethtool -S: discards); InfiniBand: perfquery names"
              " the port whose errors grow",
              "Linux Documentation/ABI/stable/sysfs-class-infiniband, hw_counters; drivers/infiniband/hw/bnxt_re"),
    FaultLine(r"tx_pause_storm_(?:warning|error)_events: [1-9]\d{0,18}",
              "a NIC paused its sender for so long that it counts as a storm: the host does not take the data",
              "look at this host, not at the network: the NIC's PCIe link (LnkSta, MaxReadReq), its IOMMU, a GPU or"
              " process that hangs; then the NIC's firmware",
              "Linux Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst"),
    FaultLine(r"cannot access '/sys/kernel/mm/memory_peers[^\n]{0,60}",
              "no peer-memory module is loaded on a host: its NICs do not reach GPU memory directly",
              "load nvidia_peermem there, and at each boot, or use DMA-BUF",
              "NVIDIA GPUDirect RDMA documentation, nvidia-peermem"),
    FaultLine(_status("12", "[Tt]ransport retry count(?:er)? exceeded") + r"|transport retry counter exceeded"
              r"|bad completion with status: 0xc\b"
              r"|IBV_WC_RETRY_EXC_ERR|EXCEEDED ERROR status number 12|InfiniBand retry count between two MPI processes"
              r"|Timed out RDMA with \S{1,40}@o2ib"
              r"|unhandled timeout error|ucp_ep_create\(proc=\d{1,8}\) failed: Endpoint timeout",
              "the peer's port did not answer: the retries of RDMA ran out (status 12)",
              "on both hosts compare GID (show_gids; RoCE: NCCL_IB_GID_INDEX), MTU, PFC and state of the ports, and run"
              " ib_write_bw between the same two; only then raise NCCL_IB_TIMEOUT",
              f"{_VERBS}; {_VARIABLES} (NCCL_IB_GID_INDEX, NCCL_IB_TIMEOUT); NVIDIA/nccl issue 426", follows=True),
    FaultLine(_status("13", "(?:RNR|Receive-no-ready) retry count(?:er)? exceeded")
              + r"|bad completion with status: 0xd\b|RNR retry counter exceeded"
              r"|IBV_WC_RNR_RETRY_EXC_ERR|EXCEEDED ERROR status number 13",
              "the peer had no buffer ready (status 13): its process hangs or is gone",
              "read the log of the peer's rank: it failed first",
              _VERBS, follows=True),
    FaultLine(r"(?:via NET/IB\w{0,8}/\d{1,2}/GDRDMA|\bosu_\w{2,20}[^\n]{0,80} (?:-d (?:cuda|rocm)|D D)\b"
              r"|Buffer on DEVICE \(D\)|--use_(?:cuda|rocm)\w{0,8}[= ]\S{1,12}|memory type: (?:cuda|rocm)"
              r"|-m (?:cuda|rocm)\b|MV2_USE_(?:CUDA|GDR|ROCM)\w{0,8}=1|/mvapich2[\w./+-]{0,60}/(?:cuda|rocm)\b)"
              r"(?=[\s\S]{0,40000}?(?:with (?:error |status=\w{1,40}\()(?:4|10)\b|local protection error"
              r"|remote access error"
              r"|Failed status (?:4|10): |(?:Local protection|Remote access)(?: error)? on ))",
              "the NIC did not reach GPU memory (a protection error, with buffers on GPUs): ACS or the IOMMU is in the"
              " way, or the peer-memory module does not fit",
              "switch ACS off in the firmware, or take its redirection from the bridges between GPU and NIC; boot with"
              " iommu=pt; load the peer-memory module of this driver on all hosts. As a test keep GPU memory out"
              " (NCCL_NET_GDR_LEVEL=LOC, UCX_IB_GPU_DIRECT_RDMA=no), or take a GPU of the NIC's socket",
              f"{_VERBS}; NCCL user guide, Troubleshooting, GPU Direct; openucx/ucx issue 3564"),
    FaultLine(_status("(?:[24689]|10|11)", "(?:Local (?:protection|access|QP operation)|Remote access|Remote operation"
                      "|(?:Remote i|I)nvalid request)")
              + r"|CQ with status [A-Z -]{4,40} status number (?:[24689]|10|11)\b"
              r"|\bremote (?:access|operation|invalid request) error|\blocal protection error"
              r"|bad completion with status: 0x[24689ab]\b",
              "an RDMA access was refused (protection or remote access error)",
              "check that all hosts have the same GPU driver, peer-memory module and library; try"
              " NCCL_NET_GDR_LEVEL=LOC: if that works, GPU memory is what cannot be reached (ACS, IOMMU)",
              _VERBS),
    FaultLine(r"allow registering part of your physical memory[^\n]{0,40}|help-mpi-btl-openib\.txt / reg mem limit low",
              "the NIC's driver (mlx4_core) lets only a part of the memory be registered",
              "options mlx4_core log_num_mtt=24 log_mtts_per_seg=3 in /etc/modprobe.d, for twice the memory (2^num x"
              " 2^seg x"
              " 4 KiB), then load it anew",
              "open-mpi/ompi opal/mca/btl/openib/help-mpi-btl-openib.txt; Open MPI FAQ, registered memory"),
    FaultLine(r"(?m:^)(\S{1,60}?):\d{1,9}:\d{1,9} \[\d{1,3}\] [^\n]{0,40}WARN Failed to open libibverbs[^\n]{0,20}"
              r"(?=[\s\S]{0,20000}?\n(?!\1:)\S{1,60}?:\d{1,9}:\d{1,9} \[\d{1,3}\] INFO Using internal Network Socket)"
              r"|(?:Infiniband controller|-H \S{1,60}:\d{1,3},\S)[^\n]{0,200}"
              r"(?=[\s\S]{0,20000}?Failed to open libibverbs[\s\S]{0,20000}?INFO Using internal Network Socket)",
              "the process has no RDMA library (libibverbs): the hosts talk over TCP",
              "install rdma-core, or the NIC maker's libraries, in the image, and give the container /dev/infiniband;"
              " the"
              " log must then say NET/IB",
              "NVIDIA/nccl src/misc/ibvwrap.cc; horovod issue 476"),
    FaultLine(r"(?m:^)(\S{1,60}?):\d{1,9}:\d{1,9} \[\d{1,3}\] NCCL INFO (?:Bootstrap|NET/Socket) : Using (?:\[0\])?"
              r"((?:docker|virbr|lo)\d{0,2}:[\d.]{7,15})<[^\n]{0,20}"
              r"(?=[\s\S]{0,40000}?\n(?!\1:)\S{1,60}?:\d{1,9}:\d{1,9} \[\d{1,3}\] NCCL INFO (?:Bootstrap"
              r"|NET/Socket) : Using"
              r" (?:\[0\])?\2<)",
              "the hosts chose an interface with the same address on all of them (a loopback address, or a bridge of"
              " containers): they do not reach each other",
              "NCCL_SOCKET_IFNAME=the interface that reaches the other hosts; a list with ^ must name lo and docker0,"
              " too"
              " (NCCL_SOCKET_IFNAME=^lo,docker0)",
              "NCCL user guide, NCCL_SOCKET_IFNAME; horovod issue 584"),
    FaultLine(r"No active HCAs found on the system",
              "MPI found no InfiniBand port that is active",
              "ibstat: the port must be Active (driver, cable, subnet manager); a container needs /dev/infiniband",
              "MVAPICH2 src/mpid/ch3/channels/mrail, rdma_open_hca"),
    FaultLine(r"are you sure there is a netserver listening on[^\n]{0,60}"
              r"|could not establish the control connection from"
              r"[^\n]{0,60}|(?m:^)connect failed: (?:Connection refused|No route to host|Connection timed out"
              r"|Operation timed out)",
              "the test does not reach its server on the other host",
              "start it there (netserver, iperf -s), take the address of the interface that is meant, and open its port"
              " (12865, 5001) in the firewall",
              "netperf manual; iperf2 documentation"),
    FaultLine(r"custom_all_reduce\.cuh:\d{1,5} '[^'\n]{1,60}'",
              "vLLM's own all-reduce cannot share memory between the GPUs",
              "--disable-custom-all-reduce; without expandable_segments in PYTORCH_CUDA_ALLOC_CONF, and all ranks in"
              " one IPC"
              " and PID namespace",
              "vllm-project/vllm csrc/custom_all_reduce.cuh and vllm/distributed"),
    FaultLine(r"Cannot re-initialize CUDA in forked subprocess",
              "the program used CUDA before it started its workers by fork",
              "start them by spawn (VLLM_WORKER_MULTIPROC_METHOD=spawn), or touch no GPU before",
              "PyTorch torch/cuda/__init__.py, _lazy_init"),
    FaultLine(r"TOO_MANY_PEERS|peer mapping resources exhausted",
              "CUDA lets a GPU have at most eight peers, and more GPUs are in one process",
              "show a process at most nine GPUs (CUDA_VISIBLE_DEVICES), or run a process for each GPU with NCCL",
              "CUDA programming guide, Peer-to-Peer Memory Access; CUDA_ERROR_TOO_MANY_PEERS"),
    FaultLine(r"peer access is not supported between these two devices|CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"
              r"|(?:cuda|hip)ErrorPeerAccessUnsupported|doesn't support faster communication broadband via P2P",
              "two GPUs of the process have no peer access",
              "nvidia-smi topo -p2p r shows which; NCCL_P2P_DISABLE=1 lets NCCL go through host memory",
              "CUDA driver API, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"),
    FaultLine(r"cudaErrorMapBufferObjectFailed[^\n]{0,40}PeerAccess"
              r"|PeerAccess[^\n]{0,60}mapping of buffer object failed",
              "the memory of a GPU could not be mapped for another one",
              "make BAR1 hold the whole memory (Resizable BAR; nvidia-smi -q -d MEMORY), and boot with iommu=pt or the"
              " IOMMU off; until then NCCL_P2P_DISABLE=1",
              "CUDA runtime API, cudaErrorMapBufferObjectFailed (205); tinygrad/open-gpu-kernel-modules issue 44"),
    FaultLine(r"MNNVL \(cliqueSize \d{1,4}\) is available but not (?:working|supported)[^\n]{0,90}",
              "hosts are joined by NVLink, and IMEX, through which they share memory, does not work",
              "run nvidia-imex on all of them with the same list of nodes (nvidia-imex-ctl -N); a container needs a"
              " channel (/dev/nvidia-caps-imex-channels); NCCL_MNNVL_ENABLE=0 goes over the NICs",
              "NVIDIA/nccl src/mnnvl.cc; IMEX user guide"),
    FaultLine(r"failed to (?:open|get) (?:CUDA|HIP) IPC handle[^\n]{0,60}"
              r"|cuMemImportFromShareableHandle[^\n]{0,120}(?:fail|error|not )|(?:cuda|hip)Ipc(?:Get|Open)MemHandle "
              r"failed[^\n]{0,60}|alloc\.h:\d{1,5} NCCL WARN Cuda failure"
              r" (?:\d{1,4} )?'(?:operation not|invalid (?:argument|device))"
              r"|p2p\.cc:\d{1,5} NCCL WARN (?:HIP|Cuda) failure (?:\d{1,4} )?'invalid (?:device pointer|argument"
              r"|resource)",
              "memory cannot be shared between the processes by handles",
              "run all ranks of a host in one IPC and PID namespace; NCCL_CUMEM_ENABLE=0 and NCCL_CUMEM_HOST_ENABLE=0"
              " take the older way; with NVLink between hosts, IMEX must run (nvidia-imex); ROCm: unset"
              " HSA_ENABLE_IPC_MODE_LEGACY",
              f"{_VARIABLES} (NCCL_CUMEM_ENABLE, NCCL_CUMEM_HOST_ENABLE)"),
    FaultLine(r"enqueue\.cc:\d{1,5} NCCL WARN Cuda failure (?:\d{1,4} )?'(?:invalid argument|invalid device function"
              r"|no kernel image)[^\n]{0,40}",
              "a kernel of NCCL cannot be started on this GPU",
              "take a newer NCCL, built for this GPU: NCCL INFO `ncclMaxSharedMem … exceeds` says that one asks for"
              " more shared memory than the GPU gives (RTX 50: 2.26.2 or later)",
              "NVIDIA/nccl src/enqueue.cc, ncclLaunchKernel; nccl-tests issue 287"),
    FaultLine(r"NCCL WARN Cuda failure (?:\d{1,4} )?'out of memory'[^\n]{0,40}|(?:CUDA|HIP) out of memory[^\n]{0,60}"
              r"|(?:CUDA|HIP) error:? (?:2:? )?out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
              r"|hipErrorOutOfMemory|(?:cuda|hip)Malloc failed: out of memory|RESOURCE_EXHAUSTED: [^\n]{0,40}[Oo]ut"
              r" of memory"
              r"|OOM when allocating tensor|MODULE:PT_DEVMEM Allocation failed|CU(?:BLAS|DNN"
              r"|SPARSE)_STATUS_ALLOC_FAILED"
              r"|CUFFT_ALLOC_FAILED|(?:UR|ZE)_RESULT_ERROR_OUT_OF_DEVICE_MEMORY|tokens that can be stored in KV cache"
              r"|No available memory for the cache"
              r" blocks|is needed, which is larger than the available"
              r" KV cache memory|Free memory on device [^\n]{0,60}is less than desired",
              "the GPU's memory is full",
              "see who holds it (nvidia-smi); leave room for the library's buffers (NCCL_BUFFSIZE, fewer channels)"
              " or stop the framework's own pool from taking all",
              f"{_GUIDE}, Errors; CUDA runtime, cudaErrorMemoryAllocation; vllm-project/vllm vllm/v1; Gaudi PyTorch"
              " bridge"),
    FaultLine(r"Duplicate GPU detected|Multiple Ranks are using the same GPU",
              "two ranks were given the same GPU",
              "set the device by the local rank, and give each host as many ranks as it has GPUs",
              "NVIDIA/nccl src/init.cc"),
    FaultLine(r"No interface found in the same subnet as remote address[^\n]{0,60}",
              "NCCL_COMM_ID has an address in a subnet where this host has no interface",
              "give the first rank's address in a network of both hosts, or unset NCCL_COMM_ID (the launcher then hands"
              " on the id)",
              f"{_VARIABLES} (NCCL_COMM_ID); NVIDIA/nccl issue 474"),
    FaultLine(r"Bootstrap : no socket interface found|no socket interface found|NET/IB : No IP interface found"
              r"|NET/Socket : no interface found|No usable listening interface found"
              r"|No interface found in the same subnet"
              r"|no device found (?:matching|after excluding)[^\n]{0,60}NCCL_OOB_NET_IFNAME",
              "NCCL_SOCKET_IFNAME names no interface that is up",
              "correct or unset NCCL_SOCKET_IFNAME (ip -br addr shows the names)",
              f"{_VARIABLES} (NCCL_SOCKET_IFNAME)"),
    FaultLine(r"Socket creation failed : Address family[^\n]{0,40}",
              "the process has no network interface that the library can use",
              "give the container the host's network (docker run --network=host), or bring an interface up",
              "NVIDIA/nccl-tests issue 14"),
    FaultLine(r"unable to connect to server[^\n]{0,100}: Connection refused|client failed\. connect\(\) failed:"
              r" Connection refused|failed to connect: Connection refused",
              "no server of the test listens at that address and port",
              "start it there first (iperf3 -s, ucx_perftest without a host), with the same port (-p), and open it in"
              " the firewall",
              "esnet/iperf src/iperf_error.c; openucx/ucx src/tools/perf; connect(2): ECONNREFUSED"),
    FaultLine(r"Host key verification failed|Permission denied \(publickey[^\n]{0,60}|was not reachable via ssh"
              r"|ssh exited with exit code 255|unable to run (?:bstrap_)?proxy on \S{1,80}"
              r"|connect to host \S{1,80} port \d{1,5}: |launcher '\w{1,20}' not installed"
              r"|\bssh: (?:command )?not found|\bmpi(?:run|exec): command not found"
              r"|kex_exchange_identification: [^\n]{0,60}|MCA parameter \"plm_rsh_agent\""
              r"|\borted: (?:command not found|No such file)|\bprted: (?:command not found|No such file)",
              "the launcher cannot log in on a host, or start its daemon there",
              "ssh HOST true must work without a question from the first host, in a container with its own keys and"
              " port; mpirun: ssh HOST orted --version (Open MPI 5: prted), PATH and LD_LIBRARY_PATH (--prefix DIR)",
              "Open MPI documentation, Launching with SSH; deepspeedai/DeepSpeed issue 4907"),
    FaultLine(r"unable to connect to server[^\n]{0,100}: (?:No route to host|Connection timed out|Operation timed out"
              r"|Network is unreachable)",
              "the other host is not reached over the network",
              "ip route get ADDRESS shows the interface that is used; see that it is up at both ends, and open the port"
              " in the firewall (one that rejects answers: No route to host)",
              "esnet/iperf src/iperf_error.c; connect(2)"),
    FaultLine(r"Invalid job credential|Job credential (?:expired|replayed|revoked)"
              r"|Zero Bytes were transmitted or received"
              r"|Munge decode failed: [^\n]{1,60}|Protocol authentication error|Invalid authentication credential",
              "Slurm's daemons do not accept what the others sign",
              "munge -n | ssh HOST unmunge must work both ways: the same munge.key, clocks within minutes (chronyc"
              " tracking), the same users; then slurm.conf and versions alike on all hosts",
              "Slurm slurm/slurm_errno.h; MUNGE installation guide; NVIDIA/deepops issue 1179"),
    FaultLine(r"pmixp_\w{1,20}\.[ch]:\d{1,5}: (?:send failed, rc=\d{1,5}|Cannot establish the connection)[^\n]{0,60}",
              "Slurm's daemons on the hosts of the job do not reach each other",
              "open the firewall between the hosts that compute; SLURM_PMIX_DIRECT_CONN=false sends over slurmd's port",
              "Slurm, MPI Users Guide, PMIx (SLURM_PMIX_DIRECT_CONN); openpmix issues 3098 and 3559"),
    FaultLine(r"the server is busy running a test",
              "the server of iperf3 runs another test",
              "wait until it ends, or give each test a server and a port of its own (iperf3 -s -p PORT)",
              "esnet/iperf src/iperf_error.c"),
    FaultLine(r"BTLs attempted: (?:self|vader|smcuda|sm)(?:,? (?:self|vader|smcuda|sm)){0,3}(?=\s)",
              "Open MPI had only transports within a host: none of the network was there, or the options leave it out",
              "ompi_info lists them (btl: tcp, pml: ucx); mpirun --mca pml ucx, or --mca btl tcp,self,vader; a"
              " container needs /dev/infiniband",
              "open-mpi/ompi opal/mca/btl, help-mca-bml-r2.txt: unreachable proc; its issue 3573"),
    FaultLine(r"mca_btl_tcp_endpoint_\w{1,40}\] (?:\S{1,60} )?(?:connect\(\) to |received unexpected process)"
              r"[^\n]{0,100}|accepted a TCP connection (?:from what appears to be|but did not receive)[^\n]{0,20}"
              r"|failed to handshake with a connecting peer|inbound MPI TCP connection request from a peer"
              r"[^\n]{0,100}|Message: {1,8}connect\(\) to [^\n]{1,60} failed|failed to TCP connect to a peer MPI"
              r"|HYDU_sock_connect[^\n]{0,80}unable to connect from[^\n]{0,80}|unable to complete a TCP connection"
              r"|MPI process(?:es)? (?:is|are) un(?:able to reach|reachable)|MPI requires .--mca btl_tcp_if_include",
              "MPI's processes do not reach each other over the interface that MPI chose",
              "mpirun --mca btl_tcp_if_include NET --mca oob_tcp_if_include NET, where NET is the network of the hosts"
              " (10.0.0.0/24 or a name): docker0 and virbr0 have one address on all hosts; open the firewall",
              "open-mpi/ompi opal/mca/btl/tcp/help-mpi-btl-tcp.txt; horovod issue 310"),
    FaultLine(r"Using (?:interface |\[\d\])lo:127\.0\.0\.1<0>(?=[\s\S]{0,40000}?(?:Connection refused|[Tt]imed out))"
              r"|[Cc]onnect to 127(?:\.\d{1,3}){3}<\d{1,5}> failed[^\n]{0,60}"
              r"|dest_addr=127(?:\.\d{1,3}){3}:\d{1,5}\) failed[^\n]{0,60}|\btcp/lo - Destination is unreachable",
              "a rank gave the others its loopback address",
              "NCCL_SOCKET_IFNAME (UCX: UCX_NET_DEVICES)=the interface that reaches the other hosts, on each"
              " host its own name, up and with an address (a list that excludes, ^docker0, must exclude lo, too)",
              f"{_GUIDE}, Networking issues (IP network interfaces)"),
    FaultLine(r"(?:Call to connect|(?<!failed to )[Cc]onnect to|socketStartConnect: Connect to)[^\n]{0,120}"
              r"(?:No route to host|Connection timed out|Connection refused|Network is unreachable"
              r"|Software caused connection abort|Connection reset by peer)"
              r"|socket(?:Start|Poll)Connect[^\n]{0,80}exceeded (?:retries|timeouts|error retry count)",
              "the hosts do not reach each other over the interface that the library chose",
              "NCCL_SOCKET_IFNAME=the interface that reaches the other hosts (not docker0 or virbr0); open the firewall"
              " between them",
              f"{_GUIDE}, Networking issues (IP network interfaces, IP ports)"),
    FaultLine(r"Could not resolve hostname \S{1,120}|[Uu]nable to get host (?:address|entry)\b[^\n]{0,80}"
              r"|ping: \S{1,80}: (?:Name or service not known|Temporary failure in name resolution)"
              r"|unable to connect to server[^\n]{0,100}: (?:Name or service|Temporary failure)"
              r"|Name or service not known for \S{1,80}:\d|The IPv4 network addresses of \([^\n]{1,120}? cannot be"
              r" retrieved[^\n]{0,60}(?=[\s\S]{0,9000}?(?:timed out after|DistStoreError|failed to connect to))"
              r"|Can't find address for host \S{1,80}, check slurm\.conf"
              r"|Unable to resolve \"[\w.-]{1,80}\": Unknown host"
              r"|error encountered when getting address info",
              "the name of a host is not resolved",
              "getent hosts NAME on the host that asks; correct the list of hosts or /etc/hosts; in Kubernetes wait"
              " until the workers run, and give them a headless service",
              "getaddrinfo(3): EAI_NONAME, EAI_AGAIN; awsome-distributed-ai issue 868"),
    FaultLine(r"[Tt]oo many open files",
              "the limit of open files is too small",
              "raise it where the job starts (ulimit -n 65536; LimitNOFILE of its service, docker run --ulimit nofile)",
              "accept(2), open(2): EMFILE"),
    FaultLine(r"Address already in use|EADDRINUSE",
              "the port that the job wants is taken: most often an earlier run still holds it",
              "end it (ss -ltnp shows who), or give another one (MASTER_PORT, -p)",
              "bind(2): EADDRINUSE"),
    FaultLine(r"error while loading shared libraries: \S{1,80}|lib(?:cu(?:dart|blas|blasLt|dnn|fft|rand|solver|sparse)"
              r"|nvrtc|nvinfer\w{0,30}|nccl|rccl|amdhip64|rocblas|hipblas|hsa-runtime64"
              r"|MIOpen)\.so[.\d]{0,16}: cannot open shared"
              r" object"
              r"|Unable to load NCCL library",
              "a library of the program is not found on a host",
              "install it there, or hand on the path: mpirun -x LD_LIBRARY_PATH; ldd PROGRAM shows which are missing",
              "ld.so(8); dlerror(3); openxla/xla"),
    FaultLine(r"has detected an attempt to run as root",
              "mpirun refuses to run as root",
              "mpirun --allow-run-as-root in a container, or another user",
              "Open MPI documentation, mpirun(1)"),
    FaultLine(r"There are not enough slots available in the system",
              "mpirun was asked for more processes than its list of hosts has slots",
              "name the hosts with their slots (-H host1:8,host2:8, or slots=8 in the hostfile)",
              "Open MPI documentation, Scheduling processes across hosts"),
    FaultLine(r"pmix_psec_base_open failed|Framework: psec\nComponent: \w{1,20}",
              "PMIx of launcher and program do not have the same security component",
              "PMIX_MCA_psec=native for both, or install the one that is named (munge) in the image; best the same"
              " release of PMIx",
              "openpmix, src/mca/psec; NVIDIA/pyxis issue 88"),
    FaultLine(r"nspace \"[^\"\n]{1,60}\" has only \d{1,7} ranks, asked for -1",
              "Slurm's PMIx plugin does not know a request of the program's PMIx",
              "build both with the same release of PMIx (srun --mpi=list), and update Slurm",
              "openpmix issues 1484 and 3320"),
    FaultLine(r"not built with SLURM's PMI|No PMIx server was reachable, but a PMI1/2 was detected|PMI2?_Init failed"
              r"|OPAL ERROR: Unreachable in file \S{0,20}pmix|PMI2 init failed|mpi/pmix\w{0,4}: ERROR: Bad request",
              "the launcher and the MPI library speak different versions of PMI: each process is alone",
              "srun --mpi=pmix (srun --mpi=list shows what there is), or an MPI built with Slurm's PMI; mpirun within"
              " the allocation works too",
              "open-mpi/ompi ompi/runtime/help-mpi-runtime.txt; Slurm MPI guide"),
    FaultLine(r"Unable to resolve hostname to a \(local\) address"
              r"(?=[\s\S]{0,20000}?(?:connectFullMesh|[Tt]ime ?d? ?out|refused|Error))|unsupported gloo device"
              r"|Unable to find address for: \S{1,20}",
              "gloo found no address of this host: its own name leads to none of its interfaces",
              "GLOO_SOCKET_IFNAME=the interface that reaches the other hosts, or the host's address in /etc/hosts (not"
              " 127.0.1.1)",
              "PyTorch, torch/csrc/distributed/c10d/ProcessGroupGloo.cpp"),
    FaultLine(r"Gloo connectFullMesh failed with[^\n]{0,160}",
              "the hosts do not reach each other over the interface that gloo chose",
              "GLOO_SOCKET_IFNAME=the interface that reaches the other hosts (ip -br addr), on each host its own name;"
              " no 127.0.1.1 for the host's name in /etc/hosts; open the firewall",
              "PyTorch, torch/csrc/distributed/c10d/ProcessGroupGloo.cpp"),
    FaultLine(r"Every node should have a unique IP address[^\n]{0,80}",
              "the nodes of the Ray cluster and vLLM see different addresses of the same host",
              "on each host VLLM_HOST_IP=its own address, the one that ray start --node-ip-address has",
              "vllm-project/vllm, its Ray executor"),
    FaultLine(r"Ray does not allocate any GPUs on the driver node|Current node has no GPU available"
              r"|Cannot provide a placement group of|No available node types can fulfill resource request",
              "the Ray cluster has not the GPUs where the job asks for them",
              "ray status on the head: as many GPUs as tensor times pipeline parallel, some on the host that starts"
              " the job; join missing hosts (ray start --address), end jobs that hold GPUs",
              "vllm-project/vllm, its Ray executor; Ray documentation, placement groups"),
    FaultLine(r"Invalid NCCL_COMM_ID[^\n]{0,80}|Net : No valid <IPv4_or_hostname>:<port> pair found",
              "NCCL_COMM_ID is no address and port",
              "unset it, or set the first rank's address and port (192.0.2.1:12345), the same for all",
              f"{_VARIABLES} (NCCL_COMM_ID)"),
    FaultLine(r"TOPO/NET : (?:Could not force merge NICs|Only matched)[^\n]{0,80}|Specified fused NIC \S{1,60}"
              r"|Fusing NET devices from different NUMA domains",
              "NCCL_NET_FORCE_MERGE names ports that NCCL cannot join",
              "unset it: NCCL joins the ports of one card by itself (NCCL_NET_MERGE_LEVEL)",
              f"{_VARIABLES} (NCCL_NET_FORCE_MERGE); NVIDIA/nccl src/graph/topo.cc"),
    FaultLine(r"GLIBC(?:XX)?_[\d.]{1,8}.? not found \(required by [^\n)]{0,100}(?:nccl|rccl)-net[^\n]{0,20}",
              "NCCL's network plugin was built for a newer system than this image, and is not loaded",
              "take the plugin that was built for the image's distribution, or build it there",
              "ld.so(8); NVIDIA/nccl src/plugin/plugin_open.cc"),
    FaultLine(r"network \S{1,40} not found\.|Failed to initialize any NET plugin",
              "NCCL has no network of the name that NCCL_NET or NCCL_NET_PLUGIN asks for",
              "unset them, or install the plugin and put its folder into LD_LIBRARY_PATH (NCCL_DEBUG=INFO: NET/Plugin)",
              f"{_VARIABLES} (NCCL_NET, NCCL_NET_PLUGIN)"),
    FaultLine(r"Detected mixed local (?:Net|CollNet) device counts across ranks[^\n]{0,60}",
              "hosts of the run have different numbers of network devices",
              "compare ibv_devinfo on all hosts: bring the missing ports up, or name the same in NCCL_IB_HCA",
              "NVIDIA/nccl src/init.cc"),
    FaultLine(r"PML ucx cannot be selected",
              "Open MPI was told to use UCX, and cannot",
              "ompi_info must list pml: ucx, and ucx_info -d a device: give the container /dev/infiniband, or take"
              " another way (mpirun --mca pml ob1)",
              "open-mpi/ompi ompi/mca/pml/base; its issue 11669"),
    FaultLine(r"(?:SHARP coll init error: |Cannot connect to SHARPD)[^\n]{0,60}"
              r"|sharp_get_job_data_len failed[^\n]{0,60}",
              "the switches' reductions (SHARP) were asked for, and their manager does not answer",
              "NCCL_COLLNET_ENABLE=0 goes without; else start sharp_am at the subnet manager (test: sharp_hello)",
              "Mellanox/nccl-rdma-sharp-plugins; NVIDIA SHARP documentation"),
    FaultLine(r"No transport found for rank \d{1,6}|Rank \d{1,6} has no transport for \w{4} peer",
              "two ranks have no way to each other: transports are switched off",
              "unset NCCL_P2P_DISABLE, NCCL_SHM_DISABLE, NCCL_IB_DISABLE and NCCL_NET; processes of a host need one IPC"
              " namespace",
              "NVIDIA/nccl src/transport.cc"),
    FaultLine(r"MPI startup\(\): libfabric provider: (?:sockets|tcp|udp)\b[^\n]{0,20}"
              r"(?=[\s\S]{0,20000}?(?:returned -61|\bmlx[45]_\d|\bhfi1_\d|\bib\d\b))",
              "MPI runs over libfabric's TCP, not over the NIC's own provider",
              "FI_PROVIDER=mlx (UCX), verbs, psm2, psm3 or efa: fi_info -l lists those that are there,"
              " FI_LOG_LEVEL=info says why one is not; the NIC's library must be on all hosts",
              "Intel MPI Library developer reference, I_MPI_OFI_PROVIDER; ofiwg/libfabric fi_provider(7)"),
    FaultLine(r"device [\w.-]{1,24} is not enabled, enable it in UCX_NET_DEVICES[^\n]{0,60}",
              "the address that was given is of an interface that UCX_NET_DEVICES leaves out",
              "name that interface in UCX_NET_DEVICES, too (of RoCE the RDMA device above it), or give an"
              " address of one"
              " that it names",
              "openucx/ucx src/uct, rdmacm and tcp; its issue 10651"),
    FaultLine(r"network devices? '[^\n]{1,80}' (?:is|are) not available[^\n]{0,80}",
              "UCX_NET_DEVICES names a device that is not on this host",
              "ucx_info -d lists the names (mlx5_0:1), which can differ from host to host; unset UCX_NET_DEVICES",
              "openucx/ucx src/ucp/core/ucp_context.c"),
    FaultLine(r"UCX {1,4}ERROR Cannot use \w{1,20}/\S{1,24}|transport '\w{1,20}' is not available, please use one or"
              r" more of|no usable transports/devices",
              "UCX lacks a transport that UCX_TLS asks for: its library or device is missing",
              "ucx_info -d lists what is there; give the container /dev/infiniband, install UCX with that transport, or"
              " unset UCX_TLS",
              "UCX FAQ; openucx/ucx src/ucp/core/ucp_context.c"),
    FaultLine(r"no auxiliary transport to [^\n]{1,160}",
              "UCX_TLS leaves out the transport by which UCX makes its connections",
              "add ud to rc (UCX_TLS=rc,ud,sm,self; or ib), where the NIC has none tcp, or unset UCX_TLS",
              "openucx/ucx src/ucp/wireup/select.c; ai-dynamo/nixl pull request 1647"),
    FaultLine(r"Assertion `local_gid_u16\[5\] == 0xffff' failed",
              "the GID of RoCE that UCX took is of no IPv4 address",
              "UCX_IB_GID_INDEX=the index that show_gids has with an IPv4 address and v2, on each host",
              "openucx/ucx src/uct/ib/base/ib_iface.c; its issue 5045"),
    FaultLine(r"UCX_TLS=(?:(?:self|sm|shm|mm|posix|sysv|cma|knem|xpmem|gdr_copy|(?:cuda|rocm)(?:_copy"
              r"|_ipc)?)\b,?){1,12}"
              r"(?![\w,])(?=[\s\S]{0,20000}?(?:Destination is unreachable|no [\w /]{1,40} transport to))"
              r"|no [\w /]{1,40} transport to [^\n:]{1,80}: (?:(?:self|posix|sysv|cma|knem|xpmem|sockcm|rdmacm|gdr_copy"
              r"|(?:cuda|rocm)_?\w{0,8})/\w{1,16} - [\w ]{1,40}(?:, )?){2,16}(?![\w/])",
              "UCX has only transports within a host: its processes do not reach those of other hosts",
              "UCX_TLS must hold one for between hosts (rc, or all of ib; tcp where there is no RDMA), and ucx_info -d"
              " must list it: a container needs /dev/infiniband, UCX its ib module",
              "openucx/ucx src/ucp/wireup/select.c; UCX FAQ"),
    FaultLine(r"UCP doesn't support RMA/AMO for [^\n]{1,60}|UCX {1,4}ERROR Unsupported memory type: [^\n]{1,30}",
              "this UCX does not do the test with GPU memory",
              "ucx_info -d must list cuda_copy or rocm_copy (a UCX built with the GPU's toolkit; its package for it);"
              " put and get of GPU memory need UCX 1.12 or later; tag_bw works with older ones",
              "openucx/ucx src/tools/perf; its issues 6571 and 7102"),
    FaultLine(r"no [\w /]{1,40} transport to [^\n]{1,80}: (?:Unsupported|Destination|Endpoint|Unreachable)[^\n]{0,40}"
              r"|ucp_ep_create\(proc=\d{1,8}\) failed: Destination is unreachable"
              r"|invoked with status -6 \(Destination is unreachable\)",
              "two processes have no transport of UCX in common",
              "UCX_TLS must hold one for between hosts (rc, dc, ud or tcp) and UCX_NET_DEVICES ports that reach each"
              " other: compare ucx_info -d of both hosts",
              "openucx/ucx src/ucp/wireup/select.c"),
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
    FaultLine(rf"{_CLOSED}[^\n]{{0,60}}(?=[\s\S]{{0,4000}}?{_BLACKWELL})|{_BLACKWELL}(?=[\s\S]{{0,4000}}?{_CLOSED})",
              "the closed kernel modules run, and this GPU works with the open ones alone",
              "install the open kernel modules of the same release (nvidia-open, or -m=kernel-open), and reboot",
              "NVIDIA driver README, Open Linux Kernel Modules: from Blackwell on"),
    FaultLine(r"not signed by a key that is trusted|[Kk]ey was rejected by service"
              r"|Loading of (?:unsigned module|module with unavailable key) is rejected"
              r"|Required key not available"
              r"|unsigned module loading is restricted"
              r"|UEFI Secure Boot ena[^\n]{0,400}\n(?=[\s\S]{0,4000}?module load error: Operation not permitted)",
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
    FaultLine(r"is ib_umad module loaded\?|can't read ABI version from /sys/class/infiniband_mad[^\n]{0,40}",
              "the module ib_umad is not loaded, through which NVLink's and InfiniBand's subnet managers and tools"
              " talk",
              "modprobe ib_umad (and mlx5_ib), and load both at boot; a container needs /dev/infiniband",
              "rdma-core libibumad, umad_init; NVIDIA/gpu-operator issue 2781"),
    FaultLine(r"fabric manager config file item: \w{1,60} has an invalid value",
              "Fabric Manager's configuration has a value that it does not take",
              "correct fabricmanager.cfg, or take the one of the installed package and its topology files",
              "Fabric Manager user guide, Config File; siderolabs/extensions issue 511"),
    FaultLine(r"query NVSwitch device information from NVSwitch driver failed[^\n]{0,80}",
              "Fabric Manager sees no NVSwitch here",
              "without NVSwitches it is not needed: disable it; on a board with them see lspci and dmesg"
              " (nvidia-nvswitch), boards with NVLink 5 need nvlsm and ib_umad, and guests have none of their own",
              "NVIDIA/gpu-operator issues 610 and 2781"),
    FaultLine(r"(?:forward compatibility was attempted on non supported HW|CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE)"
              r"(?![\s\S]{0,4000}?does not match DSO version)",
              "the container's CUDA compatibility library does not fit this GPU or driver",
              "take the image's cuda-compat out of LD_LIBRARY_PATH, or update the host's driver",
              "CUDA compatibility guide; CUDA error 804"),
    FaultLine(r"no kernel image is available for execution|is not compatible with the current PyTorch installation"
              r"|CU(?:BLAS|DNN|SOLVER)_STATUS_(?:NOT_SUPPORTED_)?ARCH_MISMATCH"
              r"|only supported on GPUs with compute capability[^\n]{0,80}|FlashAttention only supports \w{1,12} GPUs",
              "the program was not built for this GPU",
              "take a build that has the GPU's compute capability (newer PyTorch, CUDA or NCCL)",
              "CUDA runtime API, cudaErrorNoKernelImageForDevice"),
    FaultLine(r"Available Tensor Operations:\s{1,20}\[ \] NCCL\s{1,20}\[ \] DDL\s{1,20}\[ \] CCL\b",
              "Horovod was built without NCCL: the gradients of the GPUs go through the CPU",
              "build it anew where NCCL's headers are: HOROVOD_GPU_OPERATIONS=NCCL pip install --no-cache-dir horovod;"
              " horovodrun --check-build must show [X] NCCL",
              "horovod docs/gpus.rst; horovod issue 2077", beside=r"\bGPUs?\b|\bCUDA"),
    FaultLine(r"# CONFIG_(?:HSA_AMD_P2P|PCI_P2PDMA) is not set",
              "the kernel has no copies between AMD's GPUs over PCIe: CONFIG_HSA_AMD_P2P or PCI_P2PDMA is not set",
              "boot a kernel with CONFIG_PCI_P2PDMA and CONFIG_HSA_AMD_P2P (Linux 6.0 and later; zgrep P2P"
              " /proc/config.gz), or install ROCm's own amdgpu (DKMS); then iommu=pt",
              "Linux drivers/gpu/drm/amd/amdkfd/Kconfig, HSA_AMD_P2P; AMD, IOMMU and PCIe P2P",
              beside=r"\bhip[A-Z]\w|ROCm|\brocm|\b[Rr][Cc][Cc][Ll]\b|access_peer|\bgfx\d{3}"),
    FaultLine(r"row remapping failed|Found \d{1,9} (?:faulty|NaN-value) memory elements on GPU"
              r"|A memory mismatch was detected on GPU|Detected a miscompare failure in the L1 cache",
              "a GPU's memory gives wrong data, or could not be repaired",
              "take the GPU out of use, run its field diagnostic, and replace it",
              _DCGM),
    FaultLine(r"Detected \d{1,9} volatile double-bit ECC error|a double-bit ECC error has occurr?ed on GPU"
              r"|GPU had an uncontained error \(XID 95\)",
              "a GPU's memory had uncorrectable errors",
              "drain and reset the GPU, then hosttune validate (ecc-errors, row-remap); replace it if they come back",
              _DCGM),
    FaultLine(r"had memory errors and row remappings are pending|[Pp]ending (?:retired page|page retirement)[^\n]{0,60}"
              r"detected",
              "a GPU has memory that waits to be replaced after errors",
              "reset the GPU once nothing uses it (nvidia-smi --gpu-reset), or reboot",
              _DCGM),
    FaultLine(r"[Ii]nfo[Rr][Oo][Mm] is corrupted at gpu[^\n]{0,20}|A corrupt InfoROM has been detected in GPU \d{1,3}",
              "a GPU's InfoROM is damaged: its counters and its identity are not reliable",
              "power-cycle the host; if it stays, have the maker restore the InfoROM or replace the GPU",
              f"{_SMI}; {_DCGM}"),
    FaultLine(r"GPU \d{1,3} is running at PCI link width \d{1,2}X, which is below[^\n]{0,60}",
              "a GPU's PCIe link has fewer lanes than the test asks for",
              "reseat the card or riser, and see how many lanes the slot has; where fewer are by design lower the"
              " test's min_pci_width",
              _DCGM),
    FaultLine(r"GPU \d{1,3} is running at PCI link generation \d, which is below[^\n]{0,60}",
              "a GPU's PCIe link is slower than the test asks for",
              "reseat the card or riser, and set the slot's speed in the firmware to Auto; where it is by design"
              " lower the test's min_pci_generation",
              _DCGM),
    FaultLine(r"Bandwidth of GPU \d{1,3} in direction \S{1,20} of [\d.]{1,12} did not exceed minimum",
              "copies of a GPU are slower than the test asks for",
              "compare with the other GPUs; lspci -vv (LnkSta) under load shows its link, nvidia-smi nvlink -s the"
              " links",
              _DCGM),
    FaultLine(r"Detected more than \d{1,6} PCIe replays per minute|host-side PCIe replay violation"
              r"|Detected \d{1,9} \w{0,20}pcie_replay\w{0,20} for GPU",
              "a GPU's PCIe link repeats packets: its signal is bad",
              "reseat the card, its riser and cables; the AER lines in dmesg say which port counts",
              _DCGM),
    FaultLine(r"(?:clock throttling|clocks event) due to thermal violation|[Tt]hermal violations totaling [\d.]{1,9}"
              r" seconds",
              "heat lowered a GPU's clocks during the test",
              "check fans, air flow and water, and the GPU's temperature against its neighbours'",
              _DCGM),
    FaultLine(r"Clocks are being (?:throttled|optimized) for GPU \d{1,3} because of[^\n]{0,80}",
              "a GPU's clocks were lowered by its hardware during the test",
              "nvidia-smi -q -d PERFORMANCE under load says why: power brake (supply, cables) or heat",
              _DCGM),
    FaultLine(r"(?:clock throttling|clocks event) due to power violation[^\n]{0,20}",
              "power limits a GPU's clocks",
              "under load at the board's own limit that is its design; else set the board's default limit, and check"
              " its supply and cables (nvidia-smi -q -d POWER,PERFORMANCE)",
              _DCGM),
    FaultLine(r"Enforced power limit on GPU \d{1,3} set to [\d.]{1,9}, which is too low",
              "a GPU's power limit is lower than the test needs",
              "set the board's default limit (hosttune plan, settings.power_limit_watts), or leave this test out",
              _DCGM),
    FaultLine(r"memory copy utilization for the GPU: \d{1,3} is greater than 10%",
              "other work uses the GPU: the test's figures would be too low",
              "end what runs on it (nvidia-smi shows it), wait until it is idle, and run this test alone; after another"
              " test DCGM 4.5.0 says it of idle GPUs, too",
              "NVIDIA/DCGM issue 272, NVBandwidthPlugin.cpp"),
    FaultLine(r"Detected [\d.]{1,12} \w{1,12} for GPU \d{1,3} which is below the threshold|Max stress level of "
              r"[\d.]{1,12} did not reach desired stress level|Max power of [\d.]{1,9} did not reach desired power "
              r"minimum|only achieved a memory bandwidth of [\d.]{1,12} GB/s"
              r"|GFLOPS [\d.]{1,16} Target GFLOPS: [\d.]{1,16} met: FALSE|\[GPU:: \d{1,6}\] pass: FALSE",
              "a GPU is slower than the test asks for",
              "compare with the other GPUs; read its clocks' reasons, temperature and power limit under load"
              " (nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE); if nothing limits it, replace it",
              f"{_DCGM}; NVIDIA/DCGM issue 122; ROCmValidationSuite, gst and iet"),
    FaultLine(r"Unconfigured or invalid thr",
              "the diagnostic has no threshold for this model: its Fail says nothing of the GPU",
              "compare the figure with the model's data sheet and with the other GPUs, or set the threshold in its"
              " diagnostics.conf",
              "intel/xpumanager diagnostic_manager.cpp; its issue 102"),
    FaultLine(r"Fail to check (?:PCIe|memory) bandwidth\.[^\n]{0,80}",
              "a GPU is slower than the diagnostic asks for",
              "PCIe: LnkSta in lspci -vv under load, slot, riser and Resizable BAR; memory: clocks, heat and ECC;"
              " compare with the other GPUs, on an idle host",
              "intel/xpumanager diagnostic_manager.cpp"),
    FaultLine(r"!!!! WARNING: (?:RANK|Rank): ?\d{1,6} [^\n]{1,140}",
              "HPL's own test before the run found a host or a GPU slower than the others",
              "the line names GPU and figure: CPU_BW and BID_BW its PCIe link and the CPUs that its rank is bound to"
              " (--cpu-affinity, --mem-affinity), GPU_FP and GPU_BW its clocks, heat and power, NET_BW its NIC",
              "NVIDIA HPC benchmarks, HPL: HPL_TEST_ variables"),
    FaultLine(r"[1-9]\d{0,6} tests completed and failed residual checks|Failed Validation on array[^\n]{0,40}",
              "the benchmark computed a wrong result: memory, a CPU or a GPU is not reliable, or clocks are too high",
              "dmesg (mce, EDAC, XIDs); run it on each GPU and each host alone; clocks, limits and memory's timings"
              " of the board; else another build of the libraries",
              "HPL, HPL_pdtest.c; STREAM, checkSTREAMresults"),
    FaultLine(r"(?:Verification error @ element|Out of bounds values : [1-9]|Data Path Validation)[^\n]{0,80}",
              "the way to a GPU is bad: its link has lost lanes, and copies do not arrive as they were sent",
              "reseat or replace the card, its riser and cables, and try another slot; see CorrErr+ and AER in dmesg",
              "pciutils ls-caps.c, cap_express_link: downgraded; NVIDIA/cuda-samples issue 48",
              beside=r"Width x[124] \(downgraded\)"),
    FaultLine(r"(?i:selected provider is cxi)[^\n]{0,60}"
              r"(?=[\s\S]{0,200000}?Out of bounds values : [1-9]\d{0,9} FAILED)",
              "sums between hosts are wrong with libfabric's cxi: on Grace Hopper its use of GDRCopy is the known"
              " cause",
              "keep GDRCopy out (FI_CXI_DISABLE_HMEM_DEV_REGISTER=1 and the site's list of variables), or"
              " NCCL_PROTO=^LL128; report it to the maker",
              "NVIDIA/nccl issue 2001; HewlettPackard/shs-ccl-docs ccl_env.sh"),
    FaultLine(r"GPU \d{1,3} (?:was unsuccessfully written to|unsuccessfully wrote data) in a peer-to-peer test"
              r"|Invalid value when checking the pattern at \S{1,30}|Out of bounds values : [1-9]\d{0,9} FAILED"
              r"|Verification error @ element \d{1,9}: val = \S{1,20}, ref = \S{1,20}"
              r"|Data Path Validation\s(?:[^\n]{0,200}\n){1,40}?[^\n]{0,200}\bFAIL\b",
              "copies to or between GPUs do not arrive as they were sent",
              "boot with iommu=pt, or with the IOMMU off (dmesg shows IO_PAGE_FAULT or DMAR); see that BARs hold the"
              " whole memory (Resizable BAR), that no riser is bad, and that a guest's GPUs are of one NVSwitch"
              " partition; until then NCCL_P2P_DISABLE=1",
              "NVIDIA/cuda-samples simpleP2P.cu and issue 48; NVIDIA/nvbandwidth issue 34; NVIDIA/nccl-tests common.cu;"
              f" rocm_bandwidth_test; {_DCGM}"),
    FaultLine(r"Found driver on the denylist: \w{1,20}",
              "another driver than NVIDIA's has the GPU",
              "blacklist it (nouveau), rebuild the initramfs and reboot",
              _DCGM),
    FaultLine(r"number of devices NVML returns is different than the number of devices in /dev",
              "the driver and /dev do not show the same GPUs",
              "lspci shows those that are there; dmesg says why one did not start; a container has those that it was"
              " given",
              _DCGM),
    FaultLine(r"Detected fatal NvSwitch SXID \d{1,6}|Detected fatal errors on NvSwitch \d{1,3} link \d{1,3}",
              "a switch between the GPUs reports a fatal error",
              "read the SXIDs in dmesg and Fabric Manager's log; reset GPUs and switches or reboot; if it comes back,"
              " the board goes back",
              _DCGM),
    FaultLine(r"Detected XID \d{1,4} for GPU \d{1,3}|XidCriticalError: Xid=\d{1,4} on Device[^\n]{0,80}",
              "a GPU reported an XID",
              "read its line in dmesg: NVIDIA's catalogue of XIDs says what to do",
              _DCGM),
    FaultLine(r"AMDSMI_STATUS_AMDGPU_RESTART_ERR[^\n]{0,60}|Could not successfully restart\s{1,40}driver after applying"
              r" NPS\d",
              "the memory's partitions were set, and the driver could not be loaded anew: something uses the GPUs",
              "end what uses them (containers, monitoring, the desktop; lsof /dev/kfd /dev/dri/*), set the first"
              " partition"
              " mode back (SPX), then modprobe -r amdgpu and modprobe amdgpu, or reboot",
              "ROCm/amdsmi amdsmi.h, amdsmi_status_t; ROCm issue 4439"),
    FaultLine(r"AMDSMI_STATUS_(?:SETTING_UNAVAILABLE|NOT_SUPPORTED|BUSY|NO_PERM)\][^\n]{0,80}(?:\s{1,40}[^\n]{0,80})?"
              r" partition to [^\n]{0,60}",
              "the GPU does not take this mode of partitions now",
              "as root, with nothing on the GPU, and of its first partition (function .0); amd-smi partition lists what"
              " goes together (NPS4 with CPX or QPX), and a guest cannot set it",
              "ROCm/amdsmi amdsmi.h, amdsmi_status_t; AMD, GPU partitioning"),
    FaultLine(r"(?m:^)GPU: 6[0-2](?=\s)(?![\s\S]{0,60000}\nGPU: 63\s)(?=[\s\S]{0,60000}?\b(?:mgag200|ast|Matrox|ASPEED"
              r"|AST2\d00)\b)",
              "the kernel has no number left for another DRM device: 64 in all, of which the board's own graphics take"
              " one",
              "blacklist the driver of that graphics (mgag200, ast) and reboot, or a kernel that has more numbers; or"
              " make fewer partitions (DPX, QPX)",
              "Linux drivers/gpu/drm/drm_drv.c, drm_minor_alloc; ROCm/amdsmi issue 99"),
    # gpu-burn
    FaultLine(r"(?:temps: (?:\d{1,3} C - ){0,15}|running [^\n]{0,20}hot, at |\|[^|\n]{1,12} "
              r"|GPU Current Temp\s{1,40}: )"
              r"(?:9\d|1[01]\d) ?C\b(?=[\s\S]{0,40000}?(?:fallen off the bus|GPU is lost))",
              "a GPU was too hot just before it was lost",
              "cool it: fans and the way of the air (a passive card needs a server's), its heat sink and paste; until"
              " then a lower power limit (nvidia-smi -pl)",
              "wilicc/gpu-burn issue 1; NVIDIA, Xid catalogue, 79"),
    FaultLine(r"GPU \d{1,3}: FAULTY|errors: [^\n]{0,200}?-?\d{1,12} {1,2}\(WARNING!\)",
              "a GPU computed wrong results under load",
              "run gpu-burn on it alone, at the clocks and limits of the board; check power and heat; replace it if it"
              " comes back",
              "wilicc/gpu-burn gpu_burn-drv.cpp, compare"),
    FaultLine(r"Couldn't init a GPU test: Error in \"load module\"",
              "gpu-burn was not built for this GPU",
              "build it with the GPU's compute capability (make COMPUTE=75)",
              "wilicc/gpu-burn README.md"),
    # CUDA's and HIP's errors
    FaultLine(r"unsupported display driver / cuda driver combination|cudaErrorSystemDriverMismatch"
              r"|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
              "CUDA's driver library (libcuda) and the kernel's module are of two versions",
              "after an update of the driver reboot; in a container take cuda-compat and copies of libcuda out of"
              " LD_LIBRARY_PATH, so that the host's library is used",
              "CUDA runtime API, cudaErrorSystemDriverMismatch (803)"),
    FaultLine(r"MPS client failed to connect|Cannot find MPS control daemon process"
              r"|(?:cudaErrorMps|CUDA_ERROR_MPS_)\w{4,40}"
              r"|remote procedural call between the MPS server and the MPS client failed"
              r"|Server encountered a fatal exception\. Shutting down"
              r"|MPS server is not ready to accept new MPS client requests|required to (?:create MPS client|support"
              r" device connections) have been exhausted",
              "the process cannot use the MPS server",
              "start nvidia-cuda-mps-control as the same user, and give client and container its pipe directory"
              " (CUDA_MPS_PIPE_DIRECTORY) and the host's IPC; without MPS unset that variable",
              _MPS),
    FaultLine(r"CUDA_ERROR_CONTAINED|Invalid access of peer GPU memory over nvlink or a hardware error"
              r"|cudaErrorNvlinkUncorrectable|CUDA_ERROR_NVLINK_UNCORRECTABLE|uncorrectable NVLink error detected",
              "an access to another GPU over NVLink failed",
              "read the XIDs (74, 144 to 150) and SXIDs in dmesg on each host of the links; nvidia-smi nvlink -e; reset"
              " the GPUs",
              "CUDA runtime API, cudaErrorContained (721), cudaErrorNvlinkUncorrectable (220)"),
    FaultLine(r"the launch timed out and was terminated|cudaErrorLaunchTimeout|CUDA_ERROR_LAUNCH_TIMEOUT",
              "a kernel ran longer than the display's watchdog allows",
              "run it on a GPU without a display, or stop the desktop on this one",
              "CUDA runtime API, cudaErrorLaunchTimeout (702)"),
    FaultLine(r"PTX was compiled with an unsupported toolchain",
              "the driver is older than the tools that built the program",
              "install a newer driver, or a build for the driver's CUDA (nvidia-smi shows it)",
              "CUDA runtime API, cudaErrorUnsupportedPtxVersion (222)"),
    FaultLine(r"Unable to find code object for all current devices|hipErrorNoBinaryForGpu|HSA_STATUS_ERROR_INVALID_ISA"
              r"|(?:CUDA|HIP|ROCm) error[^\n]{1,120}invalid device function|Tensile\w{0,20}[^\n]{0,120} for GPU arch"
              r"|device"
              r" kernel image is invalid|(?:cuda|hip)ErrorInvalidDeviceFunction|Cannot read [^\n]{0,200}TensileLibrary",
              "the program was not built for this GPU",
              "take a build that has the GPU's architecture (rocminfo shows its gfx name, nvidia-smi the model)",
              "HIP documentation, hipErrorNoBinaryForGpu; CUDA runtime API, cudaErrorInvalidKernelImage"),
    FaultLine(r"nvidia-container-cli: container error: (?:cgroup subsystem|failed to (?:get|add) device)[^\n]{0,80}",
              "the container toolkit does not know this host's cgroups: it is older than cgroup v2",
              "update libnvidia-container (1.8 or later); until then no-cgroups = true in its config.toml and the"
              " device"
              " nodes by --device",
              "NVIDIA/nvidia-docker issue 1660"),
    FaultLine(r"Allocate failed due to [^\n]{1,160}|NodePrepareResources: [^\n]{1,160}",
              "the device plugin gave the pod no device: none is healthy or free, or it could not be prepared",
              "read the plugin's log and the node's Allocatable; what holds the GPU on the host keeps it from vfio-pci"
              " (fuser -v /dev/nvidia*); start the pod again once the plugin runs",
              "Kubernetes pkg/kubelet/cm/devicemanager, Allocate"),
    FaultLine(r"could not select device driver \"(?:nvidia)?\"? ?\"? ?with capabilities: \[\[gpu\]\]"
              r"|nvidia-container-cli: "
              r"[^\n]{1,120}"
              r"(?:load library failed|no such file)[^\n]{0,60}"
              r"|[Uu]nknown (?:or invalid )?runtime(?: name)?:? \\?\"?nvidia"
              r"|no runtime for \\?\"nvidia\\?\" is configured",
              "the container runtime cannot give GPUs to containers",
              "install the NVIDIA container toolkit (nvidia-ctk runtime configure, restart docker), and see that"
              " nvidia-smi runs on the host",
              "NVIDIA container toolkit, Troubleshooting"),
    FaultLine(r"event severity: (?:fatal|recoverable)\s(?:[^\n]{0,200}\n){1,4}?[^\n]{0,120}section_type: PCIe error"
              r"(?:\s(?:[^\n]{0,200}\n){1,6}?[^\n]{0,120}device_id: [0-9a-f:.]{7,12})?",
              "the firmware reports a grave error of a PCIe link (BERT: of the boot before)",
              "reseat or replace the device below that port, its riser or cables, and check its power; update the"
              " board's"
              " firmware; where it comes when idle, boot with pcie_aspm=off",
              "Linux drivers/firmware/efi/cper.c, cper_print_pcie"),
    FaultLine(r"AER: can't recover \(no error_detected callback\)"
              r"(?=[\s\S]{0,4000}?Xid \([^)\n]{1,40}\): (?:13|31|45|109)\b)",
              "a PCIe error that was not corrected came first, from which the GPU's driver does not recover; the XID"
              " follows",
              "reseat the card, its riser, cable or external box, and compare with another slot; a link that fails"
              " when the GPU idles: pcie_aspm=off; power-cycle the host",
              "Linux drivers/pci/pcie/err.c, report_error_detected; NVIDIA/open-gpu-kernel-modules issue 1229"),
    FaultLine(r"section_type: PCIe error(?=(?:[\s\S]{1,20000}?section_type: PCIe error){2})",
              "the firmware reports errors of a PCIe link again and again",
              "device_id and secondary_bus below it say which; reseat the card, its riser or cables; try the slot at a"
              " lower speed; where they come when idle, boot with pcie_aspm=off",
              "Linux drivers/firmware/efi/cper.c, cper_print_pcie"),
    FaultLine(r"skipped device [0-9a-f:.]{4,16}, PCI rejects atomics[^\n]{0,40}",
              "the compute driver leaves a GPU out: its slot does not carry PCIe atomics",
              "use a slot at the CPU, or a switch that routes atomics; CPUs before Intel's 4th generation (Xeon E5 v3)"
              " and AMD's Ryzen and EPYC have none: another host, or a GPU of gfx9 or later; in a guest an emulated"
              " root port must offer them",
              "Linux drivers/gpu/drm/amd/amdkfd/kfd_device.c"),
    FaultLine(r"supported through the NVIDIA [\d.x]{3,12} [Ll]egacy drivers?",
              "the driver is too new for a GPU: it ignores it",
              "install the legacy driver that the line names",
              "NVIDIA/open-gpu-kernel-modules; NVIDIA driver README, Supported GPUs"),
    FaultLine(r"Call returned (?:HSA_STATUS_ERROR_OUT_OF_RESOURCES|4104\b)"
              r"(?=[\s\S]{0,8000}?(?:kfd not supported on this ASIC|not supported in kfd))",
              "the GPUs' compute driver does not support a GPU of this model",
              "take a model of ROCm's list, or a ROCm release that had it (ROCm documentation, system requirements)",
              "ROCm/rocminfo issue 27; Linux drivers/gpu/drm/amd/amdkfd/kfd_device.c"),
    FaultLine(r"amdgpu [0-9a-f:.]{7,16}: (?:amdgpu: )?device lost from bus!",
              "a GPU was lost from the PCIe bus",
              "read the lines before it (AER, link down, heat); power-cycle the host; reseat the card, its riser and"
              " its power cables, and replace it if it comes back",
              "Linux drivers/gpu/drm/amd/amdgpu/amdgpu_device.c"),
    FaultLine(r"uncorrectable hardware error\(ERREVENT_ATHUB_INTERRUPT\) detected|RAS records:\d{1,9} exceed threshold"
              r"|GPU will not be initialized\. Replace this GPU|[Ee]xceed(?:s|ing) the bad_page_threshold",
              "a GPU's memory or engines had uncorrectable errors",
              "power-cycle the host and see amd-smi bad-pages; replace the GPU if they come back, or if too many"
              " pages are bad",
              "Linux drivers/gpu/drm/amd/amdgpu/amdgpu_ras.c, amdgpu_ras_eeprom.c"),
    FaultLine(r"(?m:^)\d{1,3}[ \t][^\n]{0,120}?[ \t](?:[1-9]?\d|1\d\d)M[Hh]z[ \t]{1,16}\d{2,4}M[Hh]z[^\n]{0,20}"
              r"[ \t](?:auto|manual|high|perf_\w{2,16})[ \t][^\n]{0,40}[ \t](?:9\d|100)%[ \t\r]*(?m:$)"
              r"|(?m:^)[ \t]*\d{1,3}[ \t][^\n]{0,80}?[ \t](?:[1-9]?\d|1\d\d) MHz[ \t]{1,12}(?:9\d|100) %"
              r"|sclk clock level: \d{1,2}:? \((?:[1-9]?\d|1\d\d)M[Hh]z\)(?=[\s\S]{0,8000}?GPU use \(%\): (?:9\d"
              r"|100)\b)",
              "a GPU that is busy runs at a clock of idle times",
              "rocm-smi --showperflevel: auto or high, and --resetclocks; read its power and heat limits; else"
              " power-cycle"
              " the host, and install the GPU's firmware anew",
              "ROCm/rocm_smi_lib rocm_smi.py, showAllConcise; ROCm/legacy-rocm-build issue 4414"),
    FaultLine(r"\|[^|\n]{4,24}[ \t]P(?:8|1[0-2])[ \t][^|\n]{6,40}\|[^|\n]{8,40}\|[ \t]{0,6}(?:9\d|100)%"
              r"|Performance State[ \t]{0,40}: P(?:8|1[0-2])\s(?:[^\n]{0,100}\n){1,60}?[ \t]{4,12}G[Pp][Uu][ \t]{0,40}:"
              r" (?:9\d|100) %",
              "a GPU that is busy stays in its idle state: its clocks are those of idle times",
              "nvidia-smi -q -d PERFORMANCE,CLOCK says why: reset locked clocks (nvidia-smi -rgc; -rac), look at power"
              " cables and limits and at heat; load the driver anew or power-cycle the host",
              f"{_SMI}, Performance State"),
    FaultLine(r"Performance Level: low\b|power_dpm_force_performance_level\s{1,4}low\b",
              "a GPU's performance level was set to low: its clocks stay at their lowest",
              "rocm-smi --setperflevel auto (or echo auto into power_dpm_force_performance_level of its card)",
              "Linux Documentation/gpu/amdgpu/thermal.rst, power_dpm_force_performance_level"),
    FaultLine(r"MES failed to respon(?:d to|se) msg=\w{1,24}|MES might be in unrecoverable state[^\n]{0,40}",
              "a GPU hung: its scheduler's firmware does not answer",
              "read whether the reset below it worked, else power-cycle the host; update firmware (linux-firmware) and"
              " driver if it comes back",
              "Linux drivers/gpu/drm/amd/amdgpu/mes_v11_0.c; ROCm/legacy-rocm-build issue 5724"),
    FaultLine(r"\bring \w[\w.]{0,24} timeout, (?:signaled|but soft)[^\n]{0,60}"
              r"|amdgpu_job_timedout \[amdgpu\]\] \*ERROR\*|Ring \w[\w.]{0,24} reset failure",
              "a GPU hung: one of its engines did not answer in time",
              "read the lines around it (reset, RAS, page faults); if the reset fails, power-cycle the host; where it"
              " is always the same of several GPUs, run without it, try it in another slot, then replace it; else"
              " update driver and firmware",
              "Linux drivers/gpu/drm/amd/amdgpu/amdgpu_job.c, amdgpu_job_timedout"),
    FaultLine(r"Failed to initialize hl\d{1,3}\. Device is NOT usable|Failed to communicate with Device CPU[^\n]{0,40}",
              "an accelerator did not start: its own CPU does not answer",
              "power-cycle the host; install firmware and driver of one release (hl-fw-loader); replace it if it comes"
              " back",
              "Linux drivers/accel/habanalabs/common/device.c; HabanaAI/Setup_and_Install issue 1"),
    FaultLine(r"Invalid server type \([^\n)]{1,20}\)? requested",
              "the collectives' library does not know the kind of server that the driver reports",
              "install driver, firmware and libraries of one release (hl-smi shows the driver's), or the cloud's image",
              "HabanaAI/hccl_demo issue 44"),
    FaultLine(r"failed to find matching Habana IB device[^\n]{0,20}|habanalabs_(?:ib|cn"
              r"|en) module is not found[^\n]{0,60}"
              r"|hcl_ibverbs_t::init[^\n]{0,80}fail[^\n]{0,80}",
              "the accelerators' own RDMA devices (hlib_N, hbl_N) are missing: habanalabs_ib is not loaded, or is of"
              " another version",
              "modprobe ib_uverbs (of linux-modules-extra) and habanalabs_ib; dmesg says if it cannot. All"
              " habanalabs modules and the maker's"
              " rdma-core of one release, also in the image; rdma dev must list them",
              "containers/ai-lab-recipes issue 483; docs.habana.ai, Installation"),
    FaultLine(r"synStatus=\d{1,3} \[Device (?:already acquired|not found)\][^\n]{0,40}|Device acquire failed",
              "no accelerator is free: other processes have them, or a container was not given them",
              "end them (hl-smi lists them), or give the container those that are free (HABANA_VISIBLE_DEVICES);"
              " where none"
              " has them, dmesg (habanalabs) says why they do not start",
              "huggingface/tgi-gaudi issue 93"),
    # NICs and networks
    FaultLine(r"CREATE_MKEY\(0x200\)[^\n]{0,40} failed, status (?:limits exceeded|no resources)[^\n]{0,40}"
              r"|create_mkey_\w{1,12}:[^\n]{0,40}async reg mr failed\. status -\d{1,4}",
              "the NIC has no memory keys left: memory cannot be registered with it",
              "end the processes that hold them (rdma resource show mr), register fewer and larger pieces, or raise the"
              " NIC's limit; keys of killed processes go with a reload of mlx5_ib",
              "Linux drivers/infiniband/hw/mlx5/mr.c, create_mkey_warn; openucx/ucx issue 6264"),
    FaultLine(r"ALLOC_UAR\(0x802\)[^\n]{0,40} failed, status (?:limits exceeded|no resources)[^\n]{0,40}",
              "the NIC has no UAR pages left: too many processes or queues have it open",
              "enlarge them (mlxconfig -d ADDRESS set PF_LOG_BAR_SIZE=N, UAR BAR; then a cold reboot), or start fewer"
              " processes a host; it is neither the host's memory nor ulimit -l",
              "openucx/ucx issue 6049; open-mpi/ompi issue 6854; Linux mlx5/core/cmd.c"),
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
    FaultLine(r"bnxt_en [0-9a-f:.]{7,16} \S{1,16}: (?:Error \(timeout: |Firmware (?:(?:non-)?fatal reset event|not"
              r" responding)|TX timeout detected)[^\n]{0,80}|bnxt_re\w{0,4}[^\n]{0,40}FW STALL Detected"
              r"|infiniband efa_\d{1,3}: Failed to (?:process command|allocate|submit)[^\n]{0,80}",
              "a NIC's firmware refused a command, did not answer it or reset itself",
              "read the lines around it in dmesg; update the NIC's firmware and driver; of EFA fewer processes can be"
              " the answer (its limits are those of the instance)",
              "Linux drivers/net/ethernet/broadcom/bnxt/bnxt.c and bnxt_hwrm.c; drivers/infiniband/hw/efa/efa_com.c"),
    FaultLine(r"==\([^\n]{0,80}\)==>[^\n]{0,160}\([^\n]{0,24}Could be [^\n)]{1,40}",
              "a link of the fabric runs narrower or slower than both of its ends can",
              "reseat or replace its cable and modules; ibportstate LID PORT reset trains it again",
              "rdma-core, iblinkinfo(8); infiniband-diags/ibdiag_common.c, get_max_msg"),
    FaultLine(r"LinkState:\.{3,60}Active\s{1,8}PhysLinkState:\.{3,60}LinkUp[^\n]{0,20}\n"
              r"(?:Link\w{5,20}:[^\n]{1,100}\n){0,5}?"
              r"(?:LinkWidthEnabled:\.{3,60}[^\n]{0,40}\b4X[^\n]{0,40}\nLinkWidthActive:\.{3,60}[12]X"
              r"|LinkSpeedEnabled:\.{3,60}[^\n]{0,60}\b10\.0 Gbps[^\n]{0,40}\nLinkSpeedActive:\.{3,60}(?:2\.5"
              r"|5\.0) Gbps)",
              "a link of the fabric runs narrower or slower than its port can",
              "compare with the port at its other end; reseat or replace cable and modules; ibportstate LID PORT reset"
              " trains it again",
              "rdma-core, ibportstate(8)"),
    FaultLine(r"LinkState:\.{3,60}(?:Down|Initialize)\s{1,8}PhysLinkState:\.{3,60}\w{1,30}",
              "a port of the fabric is not up",
              "Disabled: somebody or the switch's error policy switched it off (ibportstate LID PORT enable); Polling:"
              " no signal, cable or its other end; LinkUp and Initialize: no subnet manager has set it up",
              "rdma-core, ibportstate(8)"),
    FaultLine(r"Status Opcode[ \t]{0,40}: [1-9]\d{0,4}\s[\s\S]{0,200}?Recommendation[ \t]{0,40}: (?!No issue)"
              r"[^\n]{1,100}",
              "the port's own firmware reports a fault of the link",
              "unplugged or closed: plug the cable or switch the port on; signal or negotiation: the same speed, FEC"
              " and kind of cable at both ends, then reseat or replace cable and module",
              "mlxlink (Mellanox/mstflint), Troubleshooting Info"),
    FaultLine(r"Is an SM running\?|Local lid 0x0 detected|Couldn't get local LID",
              "the port has no address in the fabric: no subnet manager has set it up",
              "run opensm on one host, or the switch's own; ibstat must then show Active and an SM lid",
              "linux-rdma/perftest perftest_resources.c; rdma-core, opensm"),
    NO_LID._replace(beside=r"Port number \d{1,3} state is Down"),
    FaultLine(r"Port number \d{1,3} state is (?!Active)\w{1,16}|Link layer on port \d{1,3} is Unknown",
              "the port of the test is not up",
              "ibstat: Polling is no signal (cable, its other end), Initializing no subnet manager; give another device"
              " (-d) or port (-i)",
              "linux-rdma/perftest perftest_resources.c"),
    FaultLine(r"n_gids_found=0\b",
              "the RDMA ports have no GID here: no network interface of theirs is in this container or has an address",
              "give the container the NIC's interface too (host network, or SR-IOV with the RDMA CNI), and see the mode"
              " of namespaces: rdma system show",
              "Mellanox/mlnx-tools show_gids; rdma-system(8); k8s-rdma-sriov-dev-plugin issue 33"),
    FaultLine(r"times ADDR_ERROR|rdma_resolve_(?:addr|route)(?:\(\))? [^\n]{0,60}failed|rdma_resolve_addr failed"
              r"|rdma_resolve_route failed|rdma_create_ep: No such device"
              r"|RDMA_CM_EVENT_(?:ADDR_ERROR|ROUTE_ERROR|UNREACHABLE|CONNECT_ERROR)[^\n]{0,60}",
              "no RDMA device leads to that address",
              "give the addresses of the RDMA interfaces of both sides (rdma link shows netdev, ip -br addr the"
              " address); on InfiniBand bring up IPoIB on both hosts",
              "rdma-core, rdma_resolve_addr(3), rdma_get_cm_event(3)"),
    FaultLine(r"RDMA_CM_EVENT_REJECTED[^\n]{0,60}|nvme nvme\d{1,3}: Connect rejected: status [^\n]{1,60}",
              "the other side refused the RDMA connection",
              "see that its server listens with RDMA at that address and port, and read its log; names, sizes and"
              " security must be alike",
              "rdma-core, rdma_get_cm_event(3)"),
    FaultLine(r"Laser rx power low alarm[^:\n]{0,40}: On\b|Module temperature high alarm[^:\n]{0,40}: On\b",
              "the module of a port reports an alarm: no light arrives, or it is too hot",
              "no light: see the other end, clean and reseat fiber and module; too hot: the air flow; else exchange it",
              "ethtool(8), -m; SFF-8472, alarm flags"),
    FaultLine(r"can't open UMAD port|umad_init[^\n]{0,40}failed|Failed to open '/dev/infiniband/umad",
              "the management device of InfiniBand is missing",
              "modprobe ib_umad, and run the tool as root; a container needs /dev/infiniband/umad*",
              "rdma-core, libibumad/umad.c"),
    FaultLine(r"PSM[23]? (?:no (?:hfi|nic) units are active|can't open (?:hfi|nic) unit)[^\n]{0,60}"
              r"|PSM2 was unable to open an endpoint|Initialization of PSM2 library failed",
              "no Omni-Path port is up, or none that PSM3 can use",
              "opainfo must show Active: load hfi1, check the cable, start the fabric manager (opafm); PSM3:"
              " ibv_devinfo, or FI_PROVIDER=tcp",
              "cornelisnetworks/opa-psm2 psm_ep.c; ofiwg/libfabric prov/psm3"),
    FaultLine(r"OFI (?:addrinfo|get_info|fi_getinfo)\(?\)? failed[^\n]{0,80}|OFI endpoint open failed[^\n]{0,80}"
              r"|failed an OFI Libfabric library call \(fi_(?:getinfo|fabric|domain|endpoint)\)",
              "MPI found no provider of libfabric that it can use",
              "fi_info lists those that are there; FI_PROVIDER (Intel MPI: I_MPI_OFI_PROVIDER) names one, and the"
              " container needs its device",
              "ofiwg/libfabric fi_getinfo(3); pmodels/mpich src/mpid/ch4/netmod/ofi"),
    FaultLine(r"\bSM port is down|Duplicate GUID found by link",
              "the subnet manager cannot set up the fabric",
              "its own port must be LinkUp (ibstat; opensm -g GUID names it); two devices with one GUID: change one",
              "linux-rdma/opensm osm_sm_state_mgr.c, osm_node_info_rcv.c"),
    FaultLine(r"\[(?:SymbolErrorCounter|LinkErrorRecoveryCounter|PortRcvErrors|LocalLinkIntegrityErrors) =="
              r" (?:255|65535|\d{5,20})\][^\n]{0,60}",
              "a port of the fabric counts errors of its link",
              "clear the counters (ibqueryerrors -k), run, and read them again: where they grow, clean, reseat or"
              " replace cable and module",
              "rdma-core, ibqueryerrors(8); 255 and 65535 are the largest that the counters hold"),
    FaultLine(r"sriov_numvfs[^\n]{0,80}(?:\n[^\n]{0,120})?write error: [^\n]{1,60}|can't enable \d{1,4} VFs[^\n]{0,60}"
              r"|Failed to (?:enable|auto provision) \d{1,3} VFs\b[^\n]{0,40}",
              "the kernel refused this number of virtual functions",
              "busy: write 0 first; out of range: the firmware's limit is lower (sriov_totalvfs; mlxconfig NUM_OF_VFS,"
              " SRIOV_EN); no memory or bus: SR-IOV and Above 4G Decoding in the firmware, or boot with pci=realloc",
              "Linux drivers/pci/iov.c and pci-sysfs.c, sriov_numvfs_store"),
    FaultLine(r"(?:-M do\b|-s (?:[89]\d{3}|4\d{3}|1472)\b)[\s\S]{0,900}?, 0 (?:packets )?received|IP truncated-ip -"
              r" \d{1,6} bytes missing!|Frag(?:mentation)? needed and DF set[^\n]{0,40}"
              r"|[Mm]essage too long,? ?\(?mtu ?= ?\d{2,5}",
              "the path does not carry packets of this size: an MTU on the way is smaller than that of the hosts",
              "set one MTU on NICs, bridges, VFs and switch ports, and test it: ping -M do -s 8972 (for 9000)",
              "tcpdump print-ip.c; ping(8), -M do; RFC 1191"),
    FaultLine(r"Unable to find the Infiniband/RoCE device|No IB devices found|IB device \S{1,40} not found"
              r"|Failed to get IB devices list|Did not detect devices|: sys files not found \(/sys/class/infiniband"
              r"|Fatal error: {1,3}No devices|RdmaTransport: No available RNIC|stat of IB device '\S{1,40}' failed",
              "no RDMA device is there, or none of this name",
              "load the NIC's RDMA driver (mlx5_ib), give a guest the function and a container /dev/infiniband;"
              " ibv_devices lists the names",
              "rdma-core, ibv_devices(1); linux-rdma/perftest perftest_resources.c"),
    FaultLine(r"Latency Test\s[\s\S]{0,2400}?\n[ \t]{0,8}\d{1,2}(?:[ \t]{1,20}\d{2,7})(?:[ \t]{1,20}\d{1,6}\.\d{2}){2}"
              r"[ \t]{1,20}(?:[3-9]\d|\d{3,6})\.\d{2}\b",
              "RDMA's latency is many times what it is within a site (1 to 10 us)",
              "idle states of CPUs (tuned-adm profile latency-performance) and the NIC's interrupts; a software RDMA"
              " device; a switch or router that is congested, or a long way between the hosts",
              "linux-rdma/perftest README, latency tests"),
    FaultLine(r"Requested mtu is higher than active mtu",
              "the port's MTU is smaller than the one that the test asks for",
              "RoCE: the interface's and the switch's MTU (9000 gives 4096); InfiniBand: the subnet manager's",
              "linux-rdma/perftest perftest_resources.c, set_mtu"),
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
    FaultLine(r"\+ PCI\[0\.[0-3]\d?\] - PCI/[^\n]{1,40}(?![\s\S]{0,60000}?/GDRDMA)"
              r"(?=[\s\S]{0,60000}?Pattern \d, [^\n]{0,60}(?:bw|speed) 0\.[0-3]\d*/)",
              "NCCL counts a bridge as slower than 0.4 GB/s and plans with that: virtual bridges of a guest, or its"
              " topology file, say 2.5 GT/s x1",
              "give the guest a topology file with the links' real speed and width (NCCL_TOPO_FILE; hosttune plan"
              " writes"
              " it), and let the NICs reach GPU memory (nvidia_peermem or DMA-BUF)",
              "NVIDIA/nccl src/graph/topo.cc; its issue 749"),
    FaultLine(r"numa_balancing(?: ?= ?|\s{1,4})1\b(?=[\s\S]{0,40000}?(?:MI[23]\d\d|mi[23]\d\d|RCCL|rccl|Hyper-V)"
              r"[\s\S]{0,40000}?GPU Direct RDMA Disabled for)",
              "NUMA balancing is on: RCCL then keeps NICs from GPU memory in a guest of Hyper-V",
              "sysctl kernel.numa_balancing=0, at each boot; or NCCL_IB_PCI_RELAXED_ORDERING=1",
              "ROCm/rccl src/transport/net_ib.cc, ncclIbGdrSupport; its issue 1377"),
    FaultLine(r"XML Import Channel : dev \S{1,20} not found|Could not open XML (?:graph|topology) file[^\n]{0,100}"
              r"|NCCL WARN XML (?:Parse|Mismatch|Format|Import|Graph has wrong version)[^\n]{0,80}"
              r"|NCCL WARN Attribute \w{1,40} of node \w{1,40} not found",
              "a graph or topology file of NCCL does not fit this machine",
              "unset NCCL_GRAPH_FILE and NCCL_TOPO_FILE, also in /etc/nccl.conf and ~/.nccl.conf (aws-ofi-nccl sets"
              " one: install its newest release); in a guest give it the file that hosttune plan writes",
              f"{_VARIABLES} (NCCL_TOPO_FILE, NCCL_GRAPH_FILE); NVIDIA/nccl src/graph/xml.h; its issue 1240"),
    FaultLine(r"Failed to find reverse path from remNode[^\n]{0,80}",
              "the library sees a link (NVLink, XGMI) from one GPU to another, and not the way back: it is older than"
              " this GPU, or links are down",
              "take NCCL of the GPU's generation (H100: 2.18 and later; the framework brings its own) and another"
              " driver; nvidia-smi nvlink -s must show all links of each GPU; a container or job must see all GPUs of"
              " its links",
              "NVIDIA/nccl src/graph/paths.cc; its issue 1253; ROCm/rccl issue 1728"),
    FaultLine(r"failed to connect to all addresses[^\n]{0,160}|DEADLINE_EXCEEDED[^\n]{0,80}(?:[Bb]arrier|coordination)"
              r"[^\n]{0,60}|(?:Failed|Unable) to connect to GCS[^\n]{0,100}",
              "processes do not reach the one that coordinates them",
              "its address must be one that all hosts reach, its port open between them (JAX coordinator_address, Ray"
              " --address and --node-ip-address), and it must run: read its log",
              "gRPC status codes, UNAVAILABLE, DEADLINE_EXCEEDED; Ray documentation, Launching an on-premise cluster"),
    FaultLine(r"timed out after \d{1,7}m?s while trying to connect to[^\n]{0,60}|DistStoreError[^\n]{0,120}"
              r"|Timed out after \d{1,6} seconds waiting for clients|Rendezvous(?:Connection|Timeout)Error[^\n]{0,100}",
              "ranks do not reach the first one, at which they meet",
              "MASTER_ADDR must be an address that all hosts reach, MASTER_PORT open between them, and as many ranks"
              " started as the job counts",
              "PyTorch, torch/csrc/distributed/c10d/socket.cpp, TCPStore.cpp"),
    FaultLine(r"Mismatched NCCL version detected[^\n]{0,80}|[Mm]essage truncated ?: receiv(?:ed|ing) \d{1,12} bytes"
              r"|socketFinalizeAccept: wrong (?:type|magic)[^\n]{0,40}|collective mismatch error[^\n]{0,60}"
              r"|posted incorrect receive info[^\n]{0,40}"
              r"|NCCL version mismatch with remote peer[^\n]{0,60}"
              r"|Bootstrap Root : (?:mismatch in info|rank \d)[^\n]{0,80}",
              "the ranks do not agree: they run different versions, variables or collectives",
              "use one image and one environment on all hosts; no other program may use the ranks' ports",
              "NVIDIA/nccl src/transport/net_socket.cc, src/bootstrap.cc"),
    FaultLine(r"NET/OFI (?:Request [^\n]{0,80}completed with error|Couldn't open |Operation with NULL context completed"
              r" with error|Unable to insert remote address into address vector)[^\n]{0,80}",
              "a request of libfabric failed",
              "let all traffic pass between the hosts (the security group must allow itself, both ways), and use one"
              " version of libfabric and of the plugin on all",
              "aws-ofi-nccl; AWS, Get started with EFA: security group"),
    FaultLine(r"GPU [0-9A-Fa-f:.]{7,16}(?:: ?In use by another client| is currently in use by another process)",
              "a GPU cannot be reset: something uses it",
              "fuser -v /dev/nvidia*: end jobs, DCGM, Fabric Manager and nvidia-persistenced (nvidia-smi -pm 0), and"
              " unload nvidia_drm; then reset it",
              f"{_SMI}, --gpu-reset; NVIDIA/NVSentinel issue 1690"),
    FaultLine(r"nvml error: driver/library version mismatch"
              r"|Failed to initialize NVML: (?:Driver/library version mismatch|RM has detected an NVML/RM version"
              r" mismatch|Function Not Found)|API mismatch: the client has the version"
              r"|kernel version [\d.]{3,20} does not match DSO version [\d.]{3,20}",
              "the driver's library is of another version than its module that is loaded",
              "reboot, or unload and load the module once nothing uses the GPUs",
              "NVIDIA driver README, common problems"),
    FaultLine(r"Failed to display (?:compute|GPU) instances: Insufficient Permissions",
              "instances of MIG cannot be listed: the user is not root, or MIG is on for no GPU",
              "run it as root; nvidia-smi -mig 1, then reset the GPU once nothing uses it",
              f"{_SMI}, mig; Project-HAMi/HAMi issue 1044"),
    FaultLine(r"Failed to initialize NVML: (?:GPU access blocked by the operating system|Insufficient Permissions)",
              "the process may not use the GPUs' device nodes",
              "give the user, or the container's cgroup, /dev/nvidiactl and /dev/nvidiaN (--gpus, or --device); podman"
              " without root: --group-add keep-groups; SELinux: setsebool -P container_use_devices on",
              "nvml.h, nvmlReturn_t"),
    FaultLine(r"Failed to initialize NVML: Unknown Error",
              "the container has lost its right to the GPUs' device nodes",
              "start the container again; a reload of systemd takes it: nvidia-ctk system create-dev-char-symlinks"
              " --create-all at boot, CDI, the nodes by --device, or the cgroup driver cgroupfs",
              "NVIDIA container toolkit, Troubleshooting (systemctl daemon-reload)"),
    FaultLine(r"HW Exception by GPU node-\d{1,4}[^\n]{0,100}",
              "a GPU hung, and its driver ended what ran on it",
              "read dmesg of that time (amdgpu: ring timeout, reset, RAS); power-cycle the host if the reset failed",
              "ROCm/ROCR-Runtime runtime.cpp, Runtime::HwExceptionHandler"),
    FaultLine(r"Memory access fault by GPU node-\d{1,4}[^\n]{0,120}"
              r"|\[(?:gfx|mm)hub\d?\] (?:no-retry |retry )?page fault \((?![^\n]{0,60}pasid:0\b)[^\n]{0,100}",
              "a program used memory that its GPU does not have mapped",
              "most often the program's own fault; between GPUs also peer access that the IOMMU or BARs prevent: boot"
              " with iommu=pt, and run the same on one GPU",
              "ROCm/ROCR-Runtime runtime.cpp, Runtime::VMFaultHandler; Linux drivers/gpu/drm/amd/amdgpu/gmc_v9_0.c"),
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
    FaultLine(r"NVLink fabric (?:registration error|not attached) \([^\n]{1,100}"
              r"|Fabric[ \t]{0,20}\n[ \t]{0,40}State[ \t]{0,60}: \w[\w ]{0,20}\n[ \t]{0,40}Status[ \t]{0,60}:"
              r" (?!Success|N/A)[A-Z][\w ]{2,40}",
              "a GPU's registration with the fabric failed",
              "read Fabric Manager's log of that time (with NVLink between hosts also the switches' and IMEX),"
              " restart it, and reset the GPUs",
              f"{_SMI}, Fabric; Azure/azhpc-images pull request 506"),
    FaultLine(r"Health[ \t]{0,20}\n[ \t]{0,40}Summary[ \t]{0,60}: (?:Unhealthy|Limited Capacity)"
              r"|Health[ \t]{0,20}\n(?:[ \t]{1,40}[A-Z][^\n]{0,80}\n){0,4}?[ \t]{1,40}(?:Bandwidth[ \t]{0,60}: Degraded"
              r"|Route Unhealthy[ \t]{0,60}: True|Access Timeout Recovery[ \t]{0,60}: True)",
              "the fabric of a GPU is not healthy",
              "read Fabric Manager's log and the SXIDs; links that are down take bandwidth: reset the GPUs, and send"
              " the board or tray back if it stays so",
              f"{_SMI}, Fabric, Health; nvml.h, NVML_GPU_FABRIC_HEALTH_MASK"),
    FaultLine(r"detected number of NVSwitches don't match with any supported system topology"
              r"|failed to find the GPU handle \d{1,24} in the multicast team",
              "Fabric Manager does not find all switches, or a GPU of a team: one is missing or failed",
              "lspci and dmesg (nvidia-nvswitch, SXid) show which; power-cycle the host; if it stays away, the board"
              " goes back",
              "Fabric Manager's log, as in leptonai/gpud components/accelerator/nvidia/fabric-manager"),
    FaultLine(r"Failed to initialize ofi_plugin|Error loading OFI wrapper|Libfabric init failed"
              r"|No available OFI devices"
              r"|ofi_t::init[^\n]{0,80}(?:fail|-61\b)[^\n]{0,40}",
              "the accelerators' collectives do not reach the host's NICs over libfabric (OFI)",
              "build hccl_ofi_wrapper for the libfabric in use (LIBFABRIC_ROOT, LD_LIBRARY_PATH, the same in the"
              " image);"
              " fi_info -p verbs or efa must list the NIC, and the container needs /dev/infiniband",
              "HabanaAI, hccl_ofi_wrapper README; HCL src, ofi_plugin.cpp"),
    FaultLine(r"no (?:habanalabs network )?interfaces were detected",
              "the accelerators' own network ports are missing",
              "load the driver's network modules (habanalabs_cn, habanalabs_en) of the same version as habanalabs, and"
              " bring the ports up (manage_network_ifs.sh --up); hl-smi -Q shows the links",
              "Intel Gaudi documentation, manage_network_ifs.sh"),
    FaultLine(r"NVIDIA driver on your system is too old|unsupported CUDA version: driver [\d.]{1,6} < image|"
              r"CUDA driver version is insufficient for CUDA runtime version|(?:cuda|hip)ErrorInsufficientDriver"
              r"|API call is not supported in the installed CUDA driver|requirement error: unsatisfied condition: cuda"
              r" ?>= ?\d{1,3}|[Nn][Vv][Ii][Dd][Ii][Aa] driver (?:on your system )?is too old|cudart init failure: 35"
              r"|cudaSetDevice err: 35|libcuda\.so[.\d]{1,16}: undefined symbol: cu\w{2,40}",
              "the GPU driver is older than the CUDA runtime needs, or is not seen",
              "install a newer driver, or a program built for the older CUDA; a container needs the GPUs (--gpus all)",
              "CUDA compatibility guide"),
    FaultLine(r"Remapping Failure Occurred[ \t]{0,40}: Yes|remapped_rows\.pending, remapped_rows\.failure[\r\n]{1,2}"
              r"(?:[^\n]{1,120}, (?:Yes|No), No[\r\n]{1,2}){0,15}[^\n]{1,120}, (?:Yes|No), Yes\b",
              "a GPU could not replace a row of its memory",
              "replace the GPU (hosttune validate, row-remap)",
              "NVIDIA GPU memory error management guide, row remapping"),
    FaultLine(r"Remapped Rows[ \t]{0,40}\n(?:[ \t][^\n]{0,80}\n){0,3}?[ \t]{1,40}Pending[ \t]{0,40}: Yes"
              r"|Pending Page Blacklist[ \t]{0,40}: Yes|remapped_rows\.pending, remapped_rows\.failure[\r\n]{1,2}"
              r"(?:[^\n]{1,120}, No, No[\r\n]{1,2}){0,15}[^\n]{1,120}, Yes, No\b",
              "a GPU has memory that waits to be replaced after errors",
              "reset the GPU once nothing uses it (nvidia-smi --gpu-reset), or reboot",
              "NVIDIA GPU memory error management guide, row remapping and page retirement"),
    FaultLine(r"Volatile[ \t]{0,40}\n(?:[ \t](?![ \t]{0,40}Aggregate)[^\n]{0,80}\n){0,6}?[ \t]{1,40}[SD]RAM "
              r"Uncorrectable(?: [\w-]{1,8})?"
              r"[ \t]{0,40}: [1-9]",
              "a GPU's memory had uncorrectable errors since its driver was loaded",
              "reset the GPU, then hosttune validate (ecc-errors, row-remap); replace it if they come back",
              "NVIDIA GPU memory error management guide"),
    FaultLine(r"SRAM Threshold Exceeded[ \t]{0,40}: Yes",
              "a GPU's on-chip memory had more uncorrectable errors than its maker allows",
              "replace the GPU (hosttune validate, ecc-errors)",
              f"{_SMI}, SRAM Threshold Exceeded"),
    FaultLine(r"(?:Channel|TPC) Repair Pending[ \t]{0,40}: Yes",
              "a part of a GPU waits to be repaired",
              "reset the GPU once nothing uses it (nvidia-smi --gpu-reset), or reboot",
              f"{_SMI}, Channel Repair Pending and TPC Repair Pending"),
    FaultLine(r"Compute Mode[ \t]{0,40}: Prohibited",
              "no program may compute on a GPU: its compute mode is Prohibited",
              "nvidia-smi -c DEFAULT",
              f"{_SMI}, Compute Mode"),
    FaultLine(r"None[ \t]{1,40}: [1-9]\d{0,5} bank",
              "banks of a GPU's memory have no spare rows left",
              "replace the GPU before the next error in them (hosttune validate, row-remap)",
              "NVIDIA GPU memory error management guide, row remapping availability"),
    FaultLine(r"GPU Recovery Action[ \t]{0,40}: (?:GPU )?(?:Reset|Reboot|Drain)|\[?GPU requires reset\]?"
              r"|NV(?:ML)?_ERR(?:OR)?_RESET_REQUIRED"
              r"|(?:Reset Required|Drain and Reset Recommended)[ \t]{0,40}: Yes",
              "the driver asks for a recovery of the GPU",
              "stop what uses it, and do what the line asks for: reset, reboot, or drain and reset",
              f"{_SMI}, GPU Recovery Action"),
    FaultLine(r"(?:RX negotiated|rx negotiated):?[ \t]{0,20}"
              r"(?i:off[ \t]{0,20}\n[ \t]{0,20}TX negotiated:?[ \t]{0,20}off)",
              "pause frames are not in force: the other end of the link has them off",
              "turn flow control on at the switch port, or PFC at both ends (RoCE)",
              "ethtool(8), -a"),
    SOFTWARE_RDMA,
    FaultLine(r"Region [0-5]: Memory at <(?:unassigned|ignored)>[^\n]{0,60}",
              "a BAR of a device has no address",
              "host: Above 4G Decoding and Resizable BAR in the firmware, or pci=realloc; guest: UEFI firmware and a"
              " 64-bit window that holds its BARs (hosttune plan computes it)",
              "pciutils lspci.c, show_bases; Linux drivers/pci/setup-res.c"),
)  # fmt: skip
# What is seen of a fault whose cause another line may say: named where no line above says it, after the kernel's.
SYMPTOMS: tuple[FaultLine, ...] = (
    FaultLine(r"NCCL_P2P_LEVEL=(?:SYS|5)\b[^\n]{0,200}\b(?:alltoall|sendrecv|gather|scatter)_perf\b"
              r"(?=[\s\S]{0,200000}?# Avg bus bandwidth {1,4}: [0-7]\.\d)"
              r"(?=[\s\S]{0,200000}?\nGPU\d[^\n]{0,200}\bSYS\b)(?![\s\S]{0,200000}?\bNV\d{1,2}\b)",
              "copies between GPUs of two sockets are forced to go from GPU to GPU (NCCL_P2P_LEVEL=SYS), which is"
              " slower there than through host memory",
              "unset NCCL_P2P_LEVEL, and compare the two runs size by size",
              "NCCL user guide, NCCL_P2P_LEVEL; NVIDIA/nccl issue 1817"),
    FaultLine(r"CPU Affinity(?=[^\n]{0,80}\n(?:[^\n]{1,400}\n){0,16}?[ \t]{0,8}GPU\d{1,2}\b[^\n]{1,300}?\d-\d"
              r"[^\n]{1,80}\n(?:[^\n]{1,400}\n){0,16}?[ \t]{0,8}GPU\d{1,2}\b[ \t A-Z0-9]{1,300}[XSEBK\d][ \t]{3,40}"
              r"\d{1,2}[ \t]{1,20}N/A[ \t\r]{0,4}(?:\n|\Z))",
              "the job may not use the CPUs next to one of its GPUs: its CPU Affinity is empty, that of others is not",
              "ask for cores of both sockets (Slurm: --ntasks-per-socket, --gres-flags=enforce-binding, --exclusive; a"
              " container: --cpuset-cpus), or for GPUs of one NUMA node",
              "nvidia-smi topo -m: CPU Affinity within the process's cpuset; Slurm, gres.conf Cores;"
              " rapidsai/dask-cuda issue 1381"),
    FaultLine(r"had (?:untolerated )?taint \{nvidia\.com/gpu[^}\n]{0,40}\}[^\n]{0,60}",
              "the nodes with GPUs are closed to pods that do not name their taint",
              "tolerations in the pod (key nvidia.com/gpu, operator Exists), with the GPU among its limits",
              "Kubernetes documentation, Taints and Tolerations"),
    FaultLine(r"Insufficient (?:rdma|[a-z][\w-]{1,30}(?:\.[\w-]{1,30}){0,3}\.(?:com|io|ai|org))/\w[\w.-]{0,59}"
              r"|cannot allocate all claims",
              "no node of the cluster has the resource free that the pod asks for",
              "kubectl describe node: Allocatable and Allocated; none there: read the device plugin's log (driver,"
              " runtime, MIG), and see that the name of the resource is its own",
              "Kubernetes documentation, Device Plugins"),
    FaultLine(r"Failed to open device(?=\r?\n(?:Failed to open device|hca_id:))",
              "RDMA devices are listed that the process may not open: the container was given others, or none",
              "name those that it has (ibv_devinfo shows them whole) in NCCL_IB_HCA, UCX_NET_DEVICES or"
              " btl_openib_if_include; else give it /dev/infiniband/uverbs* of the others",
              "rdma-core, ibv_devinfo(1); hustcat/k8s-rdma-device-plugin issue 8"),
    FaultLine(r"UCX_NET_DEVICES=ib\w{1,12}(?![\w:,])(?=[\s\S]{0,8000}?[Bb]andwidth \(MB/s\))",
              "UCX_NET_DEVICES names the IP interface of an InfiniBand port: UCX sends over TCP, and not by RDMA",
              "name the RDMA device and port (UCX_NET_DEVICES=mlx5_0:1; ucx_info -d lists them)",
              "UCX FAQ; openucx/ucx issue 5252"),
    FaultLine(r"NVRM: GPU \S{1,20} is already bound to (?!vfio-pci)[\w-]{1,40}|Kernel driver in use: nouveau"
              r"|NVRM: This can occur when a driver such as:?\s{1,60}(?:NVRM: )?nouveau\b",
              "another driver than NVIDIA's has a GPU",
              "blacklist it (nouveau, nova_core), rebuild the initramfs and reboot; vfio-pci is right for guests",
              "NVIDIA/open-gpu-kernel-modules kernel-open/nvidia/nv-pci.c and nv.c; NVIDIA driver README, nouveau"),
    FaultLine(r"/dev/kfd[^\n]{0,24}: Permission denied(?=\s{1,8}root is not member)",
              "root of this container may not open the GPUs' compute driver: to the host it is a user outside the"
              " group of /dev/kfd",
              "give the container the group: --group-add with the number of the host's (stat -c %g /dev/kfd), of"
              " rootless Podman --group-add keep-groups; in rootless Docker or LXC map it (lxc.idmap, subgid), or give"
              " the device to the user that the container's root is",
              "ROCm installation guide, Docker; rocminfo.cc; user_namespaces(7); podman-run(1), --group-add"),
    FaultLine(r"/dev/kfd[^\n]{0,24}: Permission denied",
              "the process may not open the GPUs' compute driver (/dev/kfd): it is not in its group",
              "id must list render and video: usermod -aG render,video USER, then log in anew; give a container"
              " --group-add with the number of the host's group (stat -c %g /dev/kfd), of rootless Podman keep-groups",
              "ROCm installation guide, group permissions; rocminfo.cc"),
    FaultLine(r"(?:Unable to open|open) /dev/kfd[^\n]{0,80}|ROCk module is NOT loaded|amdgpu not found in modules"
              r"|RSMI_STATUS_INIT_ERROR|AMDSMI_STATUS_(?:NO_DRV|DRIVER_NOT_LOADED)|Unable to detect any GPU devices"
              r"|/dev/kfd\"?: [Nn]o such file|/sys/class/kfd[\w/]{0,30}: no such file",
              "the process cannot open the GPUs' compute driver (/dev/kfd)",
              "load amdgpu; add the user to the groups render and video; give a container --device=/dev/kfd"
              " --device=/dev/dri",
              "ROCm installation guide, group permissions; rocminfo.cc"),
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
    FaultLine(r"(?:CUDA|Cuda|cuda)[^\n]{0,60}(?:\b801\b[^\n]{0,40}|operation not supported)",
              "this GPU or its driver lacks an operation that the program uses",
              "in a guest with a vGPU or a MIG slice unified memory, peer access and IPC can be missing: switch them"
              " on in the vGPU's settings, or off in the program; else update the driver",
              "CUDA runtime API, cudaErrorNotSupported (801)"),
    FaultLine(r"CUDA-capable device(?:\(s\))?s? (?:is/)?are busy or unavailable",
              "the GPUs take no new process: exclusive mode, MIG without an instance, or an MPS server of another user",
              "nvidia-smi shows who is on them and the compute mode (nvidia-smi -c DEFAULT); with MIG name an instance;"
              " a GPU that needs a reset is busy, too (its XIDs in dmesg), and so is a vGPU without a license",
              "CUDA runtime API, cudaErrorDevicesUnavailable; k8s-device-plugin issue 647; Azure/AKS issue 4870"),
    FaultLine(r"invalid device ordinal|no (?:CUDA|cuda|ROCm)-capable device is detected|No HIP GPUs are available"
              r"|No CUDA GPUs are available|No visible GPU devices|(?:cuda|hip)ErrorNoDevice\b"
              r"|(?:cuInit|cudaSetDevice) err: 100\b"
              r"|(?:cudart|nvcuda) init failure: 100\b|Failed to infer device type|cuInit: CUDA_ERROR_NO_DEVICE\b"
              r"|cuInit failed: ?100\b",
              "the process asks for a GPU that it does not see",
              "compare what it asks for with CUDA_VISIBLE_DEVICES and what the container or job was given; nvidia-smi"
              " shows what the driver has",
              "CUDA runtime API, cudaErrorInvalidDevice, cudaErrorNoDevice"),
    FaultLine(r"hw_init of IP block <\w{1,24}> failed[^\n]{0,20}|PSP firmware loading failed"
              r"|PSP (?:load [\w ]{2,12}|create ring|tmr init|resume) failed",
              "a GPU's driver could not start it",
              "reset or power-cycle it; the firmware files (linux-firmware) must fit the driver; a passed GPU must have"
              " been reset by the host; a bridge between GPUs can be defective: start it without",
              "Linux drivers/gpu/drm/amd/amdgpu/amdgpu_device.c, amdgpu_psp.c; ROCm/legacy-rocm-build issue 2747"),
    FaultLine(r"mca pml ucx\b",
              "MPI goes over UCX, which has no way of its own for Omni-Path: verbs are slow there",
              "mpirun --mca pml cm --mca mtl psm2 (or mtl ofi with FI_PROVIDER=psm2 or opx)",
              "Intel Omni-Path, Performance Tuning; openucx/ucx issue 3196", beside=r"\bhfi1_\d"),
    FaultLine(r"UCX_TLS=(?![^\s,]{0,40}(?:all|ib)\b)(?=\S{0,80}gdr_copy)(?!\S{0,80}cuda(?:_copy)?(?:,|\s|$))[\w,]{4,80}"
              r"(?=[\s\S]{0,20000}?(?:Buffer on DEVICE \(D\)|-m cuda| D [DH]\b))",
              "UCX_TLS has gdr_copy alone for GPU memory: it reads from a GPU at a few hundred MB/s",
              "add cuda_copy (UCX_TLS=rc,sm,cuda_copy,gdr_copy,cuda_ipc), or unset UCX_TLS; load nvidia_peermem for the"
              " direct way",
              "UCX FAQ, GPU; openucx/ucx issues 3984 and 3776"),
    FaultLine(r"MPICH Device:[ \t]{1,24}ch3:(?:nemesis|sock)(?!:(?:ofi|mxm|mlx))(?=[\s\S]{0,20000}?(?:Rate: [1-9]\d"
              r"|mlx[45]_\d|InfiniBand|HDR|EDR|NDR))",
              "this MPICH has no way for InfiniBand (ch3): it goes over TCP",
              "an MPICH built --with-device=ch4:ucx (or ch4:ofi), or another MPI",
              "MPICH installation guide; pmodels/mpich issue 6157"),
    FaultLine(r"GPU and IB selected are not on the same socket",
              "the GPU and the NIC that MPI took are on different sockets",
              "take a NIC of the GPU's socket (MV2_IBA_HCA, CUDA_VISIBLE_DEVICES; nvidia-smi topo -m)",
              "MVAPICH2-GDR user guide; reframe issue 265"),
    FaultLine(r"(?:dapl|ofa|tmi|ofi) fabric is not available and fallback fabric is enabled"
              r"|MPI startup\(\): (?:shm and )?tcp data transfer modes?"
              r"(?=[\s\S]{0,20000}?(?:mlx[45]|InfiniBand|Mbytes/sec))",
              "Intel MPI runs over TCP: the fabric that it was to use is not there",
              "I_MPI_FALLBACK=0 shows why; ibstat must be Active, and the library of that fabric there (DAPL of the"
              " NIC's maker; newer MPI: I_MPI_FABRICS=shm:ofi with FI_PROVIDER=mlx)",
              "Intel MPI Library reference, I_MPI_FABRICS and I_MPI_FALLBACK"),
    FaultLine(r"messaging module\s{1,4}was unable to find any relevant network interfaces:\s{1,8}Module: (?:OpenFabrics"
              r"|uDAPL|mVAPI)[^\n]{0,20}(?![\s\S]{0,40000}?(?:NCCL|RCCL|busbw|pml ucx))"
              r"(?=[\s\S]{0,40000}?(?:MB/s|Mbytes/sec|mlx[45]_|InfiniBand|\bib\d))",
              "Open MPI found no InfiniBand port that it can use: MPI goes over TCP",
              "ibv_devinfo on that host: the driver (mlx5_ib) loaded and the port ACTIVE; ulimit -l unlimited; then"
              " mpirun"
              " --mca pml ucx where Open MPI has it",
              "open-mpi/ompi opal/mca/btl/base/help-mpi-btl-base.txt: btl:no-nics"),
    FaultLine(r"(?m:^)(\S{1,60}?):\d{1,9}:\d{1,9} \[\d{1,3}\] [^\n]{0,20}NET(?:/Socket)? : Using (?:interface )?"
              r"(?:[^\n]{0,400}? \[\d\])?[\w.@-]{1,24}:fe80:[^\n]{0,60}"
              r"(?=[\s\S]{0,40000}?\n(?!\1:)\S{1,60}?:\d{1,9}:\d{1,9} \[\d)"
              r"(?=[\s\S]{0,40000}?\b(?:[Hh]angs?|[Hh]ung|[Ss]tuck|[Tt]imed out)\b)",
              "the library also takes interfaces that have only a link-local address (fe80::), which hosts do not"
              " reach",
              "NCCL_SOCKET_IFNAME=the one interface that reaches the other hosts, on each host its own name (ip -br"
              " addr)",
              "NCCL user guide, NCCL_SOCKET_IFNAME; horovod issue 636"),
    FaultLine(r"OFI driver detected multiple NICs on the system but cannot select(?=[\s\S]{0,40000}?(?:MB/s"
              r"|Mbytes/sec))",
              "the ranks are not bound, so that MPI does not take the NIC that is near each",
              "mpirun --bind-to core (or numa) --map-by numa",
              "open-mpi/ompi opal/mca/common/ofi/help-common-ofi.txt: unbound_process"),
    FaultLine(r"/mode\n(?:\S{0,40}:)?datagram\b(?=[\s\S]{0,8000}?\bib\d{1,2}:? [^\n]{0,80}?mtu (?:2044|4092|1500)\b"
              r"[\s\S]{0,8000}?[ \t][1-9]\.\d{1,2} Gbits/sec)",
              "IPoIB runs with small packets (datagram, MTU 2044): TCP over it costs much CPU",
              "connected mode, where the driver has it: echo connected > /sys/class/net/ib0/mode and MTU 65520 on all"
              " hosts; else MTU 4092 (subnet manager too); RDMA does not need IPoIB",
              "Linux Documentation/infiniband/ipoib.rst"),
    FaultLine(r"Unable to locate a BIOS ROM",
              "the driver found no ROM of the GPU",
              "give the guest a dump of it (<rom file='…'/>), or make another GPU the boot display of the host",
              "Linux drivers/gpu/drm/amd/amdgpu/amdgpu_bios.c"),
    FaultLine(r"handle_hca_cap failed|mlx5_load_one(?::\d{1,5})?[^\n]{0,30} failed with error code -\d{1,4}",
              "the NIC's driver could not start it",
              "update its firmware, or the driver; in a guest see that the host has not kept the function",
              "Linux drivers/net/ethernet/mellanox/mlx5/core/main.c, mlx5_load_one"),
    FaultLine(r"RmInitAdapter failed! \(0x22:0x56:",
              "the driver does not take a GPU: it is of another generation, or its registers do not answer",
              "Blackwell needs the open modules, with Above 4G Decoding and Resizable BAR in the firmware, old models a"
              " legacy driver; where it ran before, power-cycle the host and read the lines before (XID 79)",
              "NVIDIA/open-gpu-kernel-modules osinit.c: 0x22, attach; nvstatuscodes.h: 0x56, not supported"),
    FaultLine(r"missing NVDEC0 engine, cannot initialize GSP-RM",
              "the open kernel modules of this release cannot run this GPU",
              "install the closed modules, or a newer release of the driver",
              "NVIDIA/open-gpu-kernel-modules kernel_gsp.c, kgspInitRm; its issue 116"),
    FaultLine(r"NCCL_P2P_DISABLE=1[^\n]{0,60}\b(?:completes|passes|works|succeeds|runs fine)\b[^\n]{0,40}",
              "copies between the GPUs do not arrive: without them the run works",
              "a host without guests: boot with iommu=pt, or turn IOMMU and ACS off in the firmware; in a guest ask the"
              " host's operator (lspci -vvv: ACSCtl ReqRedir+ on the bridges); GPUs without peer access: leave it set",
              f"{_GUIDE}, PCI Access Control Services"),
    EACH_ALONE,
    FaultLine(r"RmInitAdapter: Cannot initialize GSP firmware RM",
              "a GPU's system processor (GSP) did not start",
              "the NVRM lines before it say why; reset the GPU or power-cycle the host; firmware and modules must be of"
              " one version",
              "NVIDIA/open-gpu-kernel-modules osinit.c: 0x62, RM_INIT_FIRMWARE_INIT_FAILED"),
    FaultLine(r"(?<!amdgpu \S{12}: )Invalid PCI ROM header signature: expecting 0xaa55, got 0xffff",  # it tries others
              "the device's option ROM cannot be read",
              "give the guest a dump of it (<rom file='…'/>) or none (<rom bar='off'/>); that of the boot display "
              "was used"
              " up by the firmware: make another GPU the boot display",
              "Linux drivers/pci/rom.c, pci_get_rom_size"),
    FaultLine(r"[\w-]{1,32} [0-9a-f:.]{7,16}: not ready (?:[4-9]\d{3}|\d{5,7})ms after resume; waiting"
              r"(?![\s\S]{0,4000}?: ready \d{4,6}ms after)",
              "it cannot be woken",
              "keep the device out of D3cold: d3cold_allowed 0 and power/control on in its folder of sysfs, also of the"
              " bridge above it (vfio-pci: disable_idle_d3=1); power-cycle the host if it gives up",
              "Linux drivers/pci/pci.c, pci_dev_wait"),
    FaultLine(r"[\w-]{1,32} [0-9a-f:.]{7,16}: not ready (?:[4-9]\d{3}|\d{5,7})ms after (?!resume)[\w -]{1,32}; waiting"
              r"(?![\s\S]{0,4000}?: ready \d{4,6}ms after)",
              "does not answer after a reset",
              "power-cycle the host if it gives up; update the firmware of device and board",
              "Linux drivers/pci/pci.c, pci_dev_wait"),
    FaultLine(r"AER: (?:Multiple )?Uncorrect(?:ed|able) \((?:Non-)?Fatal\) error (?:message )?received[^\n]{0,40}"
              r"|AER: device recovery failed",
              "PCIe errors",
              "reseat or replace the device below this port, its riser or cables, and check its power; the lines with"
              " severity and type say more",
              "Linux drivers/pci/pcie/aer.c"),
    FaultLine(r"Out of memory: Kill process \d[^\n]{0,60}|killed by the OOM killer"
              r"|due to the node running low on memory|result 'oom-kill'|OOMKilled",
              "memory ran out",
              "see what grew (dmesg, systemctl status), give it a larger limit, or the guests less (hosttune plan,"
              " reserve)",
              "Linux mm/oom_kill.c; systemd.service(5), OOMPolicy"),
    FaultLine(r"nvidia-fabricmanager\.service: (?:Main|Control) process exited[^\n]{0,40}|Failed to start[^\n]{0,40}"
              r"[Ff]abric ?[Mm]anager|Job for nvidia-fabricmanager\.service failed"
              r"|nvidia-fabricmanager\.service: Start request repeated too quickly"
              r"|Unknown option: \S{0,80}fabricmanager\.cfg|fabric manager found but not active",
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
    FaultLine(r"No MIG devices found",
              "MIG is on, and the GPU has no instance: no program can use it",
              "create instances (nvidia-smi mig -cgi PROFILE -C), or switch MIG off (nvidia-smi -mig 0)",
              "MIG user guide, Creating GPU Instances"),
    FaultLine(r"No AMD GPUs specified",
              "the driver shows no GPU",
              "lspci shows whether it is there, and its driver (amdgpu, not vfio-pci); dmesg | grep amdgpu says why"
              " it did not start",
              "ROCm/rocm_smi_lib rocm_smi.py"),
    FaultLine(r"SMU: I'm not done with your previous command|SMU: (?:bus error|response:0xFFFFFFFF)",
              "a GPU's own controller (SMU) does not answer",
              "read the lines before it; power-cycle the host; update the firmware if it comes back",
              "Linux drivers/gpu/drm/amd/pm/swsmu/smu_cmn.c"),
    FaultLine(r"(?:habanalabs|accel) \w{0,12}\d{1,4}: (?:[^\n]{0,60}is unusable|Going to (?:hard-|compute-)?reset"
              r" (?:the )?devices?)[^\n]{0,40}",
              "an accelerator's driver resets it, or gave it up",
              "read the lines before it in dmesg (ECC, heartbeat, timeout); hl-smi shows its state; power-cycle the"
              " host if it stays so",
              "Linux drivers/accel/habanalabs/common/device.c"),
    FaultLine(r"Call returned (?:HSA_STATUS_ERROR_OUT_OF_RESOURCES|4104\b)",
              "the runtime cannot use the GPUs' compute driver (/dev/kfd)",
              "run rocminfo as root: if that works, add the user to the groups render and video; else dmesg (amdgpu,"
              " kfd) says why, or the GPU sleeps (echo on to its power/control), or the model is not supported",
              "ROCm/legacy-rocm-build issues 1088 and 4878; rocminfo.cc"),
    FaultLine(r"Expected integer value from monitor, but got \"\"|GPU\[\d{1,3}\][^\n]{0,40}Data \(usually from"
              r" reading a file\) was not of the type that was expected",
              "a GPU gives no readings: it is asleep, or its driver has lost it",
              "cat /sys/class/drm/card*/device/power/runtime_status; echo on to power/control of its PCI device wakes"
              " it; if it stays so, dmesg (amdgpu) says why",
              "ROCm/rocm_smi_lib issue 217; ROCm/legacy-rocm-build issue 4878"),
    FaultLine(r"(?:3D|VGA|Display|Infiniband|Ethernet|Processing|Non-Volatile|Network)[^\n]{4,160}\(rev ff\)",
              "a device does not answer: its configuration space reads as ones",
              "read dmesg (fallen off the bus, AER); power-cycle the host; reseat or replace it if it comes back",
              "pciutils lspci.c; Linux drivers/pci/pci.h, PCI_POSSIBLE_ERROR"),
    FaultLine(r"an illegal (?:memory access|instruction) was encountered|(?:CUDA|Cuda) [^\n]{0,60}misaligned address"
              r"|invalid program counter|hardware stack error|unspecified launch failure|device-side assert triggered"
              r"|HSA_STATUS_ERROR_(?:EXCEPTION|MEMORY_APERTURE_VIOLATION)\b"
              r"|CUBLAS_STATUS_EXECUTION_FAILED|CUDNN_STATUS_EXECUTION_FAILED"
              r"|(?:cudaError|hipError|CUDA_ERROR_|ERROR_)(?:IllegalAddress|ILLEGAL_ADDRESS|LaunchFailure"
              r"|LAUNCH_FAILED)",
              "work of the program on the GPU ended with an error",
              "most often the program's own fault (compute-sanitizer shows where; CUDA_LAUNCH_BLOCKING=1 the call); the"
              " XIDs of that time in dmesg say whether it was the GPU; run the same on another one",
              "CUDA runtime API, cudaErrorIllegalAddress (700), cudaErrorLaunchFailure (719)"),
    FaultLine(r"CU(?:BLAS|DNN|SOLVER|SPARSE)_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR)|rocblas_status_(?:internal"
              r"|memory)"
              r"_error|MIOpen Error: [^\n]{1,120}",
              "a library of the GPU's runtime could not start on it: most often its memory is full",
              "see who holds the memory (nvidia-smi, rocm-smi) and take a smaller batch; else one release of driver,"
              " runtime and library must fit the others (CUDA_LAUNCH_BLOCKING=1 shows an earlier error)",
              "cuBLAS and cuDNN documentation, status codes; pytorch/pytorch issue 81620"),
    FaultLine(r"Graph compile failed[^\n]{0,60}",
              "the graph compiler of the accelerator refused the program",
              "$HABANA_LOGS (graph_compiler.log) has the node; take driver, firmware, PyTorch bridge and model"
              " library of"
              " one release, or smaller shapes",
              "docs.habana.ai, Release Notes and Runtime Flags; huggingface/optimum-habana issue 1426"),
    FaultLine(r"zeInit error|ZE_RESULT_ERROR_UNINITIALIZED|ZE_RESULT_ERROR_DEPENDENCY_UNAVAILABLE",
              "the Level Zero runtime finds no GPU that it can use",
              "load i915 or xe, install libze-intel-gpu1 of the driver's age, and put the user into the groups render"
              " and"
              " video; a container needs /dev/dri",
              "oneAPI Level Zero specification, zeInit; intel/xpumanager issue 2"),
    FaultLine(r"GSP RM heartbeat timed out|_kgspIsHeartbeatTimedOut: [^\n]{0,60}",
              "a GPU's system processor (GSP) does not answer",
              "power-cycle the host; take a newer driver; where the GPU sleeps, keep it awake (its power/control: on)",
              "NVIDIA/open-gpu-kernel-modules kernel_gsp.c, _kgspIsHeartbeatTimedOut; its issue 1064"),
    FaultLine(r"peer access has not been enabled|(?:cuda|hip)ErrorPeerAccessNotEnabled",
              "the program copies between GPUs without peer access",
              "take a newer release of it, or let it not split over the GPUs (llama.cpp: --split-mode layer);"
              " nvidia-smi topo"
              " -p2p r shows which pairs have access",
              "CUDA runtime API, cudaErrorPeerAccessNotEnabled (705); ggml-org/llama.cpp issue 10152"),
    FaultLine(r"Torch not compiled with CUDA enabled|not compiled with (?:GPU offload|CUDA|ROCm) support"
              r"|Skipping registering GPU devices|CUDA-enabled jaxlib is not installed"
              r"|No GPU/TPU found, falling back to CPU",
              "the program was built without the GPU, or lacks a library for it",
              "install its build for the GPU (pip: the cuXXX or rocmX.Y wheel); the lines before it name libraries that"
              " were not found",
              "PyTorch torch/cuda/__init__.py; tensorflow gpu_device.cc; ggml-org/llama.cpp common/arg.cpp"),
    FaultLine(r"CUDA unknown error - this may be due to an incorrectly set up environment"
              r"|Cuda failure (?:\d{1,4} )?'initialization error"
              r"|CUDA error(?: 999\b|: unknown error)|cuda runtime error \((?:30|999)\)|CUDA driver initialization"
              r" failed"
              r"|failed call to cuInit: (?:CUDA_ERROR_UNKNOWN|UNKNOWN ERROR(?! \(303))|failed to initialize CUDA:"
              r" unknown"
              r" error|-> CUDA_ERROR_UNKNOWN"
              r"|cuInit[^\n]{0,60}\b999\b|-> (?:unknown|initialization) error|vram init failure:"
              r" 999|code=(?:30|999)\(cudaErrorUnknown\)",
              "CUDA could not start",
              "load nvidia_uvm (modprobe nvidia_uvm; after a sleep unload it first); on boards with NVSwitches start"
              " Fabric Manager; a container needs /dev/nvidia-uvm",
              "CUDA runtime API, cudaErrorUnknown"),
    FaultLine(r"Call to (?:recv|send|read|write)\w{0,6} from [^\n]{1,80}(?:Connection reset by peer|Broken pipe)",
              "another rank ended first",
              "its log has the cause: the first error by time, on any host",
              f"{_GUIDE}, Errors (ncclRemoteError)"),
    FaultLine(r"No devices were found|Failed to initialize NVML: No supported GPUs were found"
              r"|could not insert '(?:nvidia|amdgpu|habanalabs)': No such device",
              "the driver runs, and finds no GPU that it can start",
              "dmesg says why (NVRM: RmInitAdapter, BAR, GSP firmware; another driver such as nouveau or vfio-pci"
              " has it)",
              _SMI),
    FaultLine(r"couldn't communicate with the NVIDIA driver|Failed to initialize NVML: (?:Driver Not Loaded|Not Found)"
              r"|Please ensure that the NVIDIA device files \(/dev/nvidia\*\) exist|HLML_ERROR_DRIVER_NOT_LOADED"
              r"|nvml error: driver not loaded|NVIDIA driver is not loaded",
              "the GPU driver is not loaded",
              "dmesg says why (NVRM, nouveau, module signatures); after a new kernel build the module again (DKMS)",
              _SMI),
    FaultLine(r"could not insert '(?:nvidia|amdgpu|habanalabs)\w{0,12}': (?:Unknown symbol|Exec format error"
              r"|Invalid argument)|Unable to load the kernel module '\w{1,24}\.ko'|dkms autoinstall on \S{1,60}"
              r" failed for",
              "a driver's kernel module is not built for the kernel that runs",
              "install the kernel's headers and build it again (dkms autoinstall; its make.log says what failed), or"
              " install the distribution's signed build; dmesg names symbols that do not fit, Secure Boot or nouveau",
              "dkms(8); modprobe(8); NVIDIA driver README, Common Problems"),
    FaultLine(r"couldn't find libnvidia-ml\.so|libcuda\.so[.\d]{0,4}: cannot open shared object|unable to find"
              r" libcuda\.so"
              r"|failed call to cuInit: (?:CUresult\(-1\)|UNKNOWN ERROR \(303)"
              r"|(?<!non-NVML platform: )could not load NVML library"
              r"|(?<!non-NVML platform: could not load NVML library: )libnvidia-ml\.so\.1: cannot open shared",
              "the driver's library is not where programs look for it",
              "install the driver's libraries of the module's version, and run ldconfig; in a container give it the GPU"
              " through the container toolkit",
              "nvidia-smi; NVIDIA container toolkit, Troubleshooting"),
    FaultLine(r"unable to establish a connection to the specified host: \S{1,80}",
              "DCGM's service does not run, or is not reachable",
              "systemctl enable --now nvidia-dcgm (nv-hostengine); from a container name its host and port 5555",
              "NVIDIA/DCGM dcgmi, Command.cpp"),
    FaultLine(r"The third-party Profiling module returned an unrecoverable error",
              "DCGM cannot read the GPUs' profiling counters",
              "let one tool at a time use them (Nsight, CUPTI, a second exporter), run it as root or permit it to all"
              " (NVreg_RestrictProfilingToAdminUsers=0), and see that DCGM knows the GPU",
              "NVIDIA/dcgm-exporter README; DCGM user guide, Profiling Metrics"),
    FaultLine(r"Unable to determine the device handle for [Gg][Pp][Uu][^\n]{0,80}(?:lost|Unknown Error|Not Found)"
              r"|\bGPU is lost\b|\bGPUIsLost\b|ERROR_GPU_IS_LOST",
              "a GPU does not answer",
              "read its Xid in dmesg; power-cycle the host; if it comes back, reseat or replace the GPU",
              _SMI),
    FaultLine(_status("5", "Work Request Flushed")
              + r"|CQ with status [A-Z -]{4,40} status number 5\b|bad completion with status: 0x5\b",
              "requests were flushed (status 5) after an earlier error of the same connection",
              "look for the first error, often on another host",
              _VERBS),
    FaultLine(r"Nv[Ll]ink link \d{1,2} is currently down|Only \d{1,3} Nv[Ll]inks are up out of the expected \d{1,3}"
              r"|N[Vv]Switch (?:physical ID )?\d{1,3}'s Nv[Ll]ink (?:port )?\d{1,3} is (?:currently )?down",
              "DCGM counts links between GPUs as down: on a card without NVLink bridge that is no fault",
              "nvidia-smi nvlink -s shows the links that there should be: where one of those is down read the XIDs and"
              " Fabric Manager's log, and reset the GPU",
              f"NVIDIA/DCGM issue 49; {_DCGM}"),
    FaultLine(r"errors: [^\n]{0,200}?-?\d{1,12} {1,2}\(DIED!\)|No clients are alive!  Aborting",
              "gpu-burn's process on a GPU ended with an error",
              "read dmesg of that time (XIDs): without one it is the program (memory, its build)",
              "wilicc/gpu-burn gpu_burn-drv.cpp; its issue 69"),
    FaultLine(r"\|[ \t]{0,4}[A-Z][\w ]{1,30}\|[ \t]{0,4}Fail\b[^\n|]{0,60}",
              "a test of DCGM's diagnostic failed",
              "its Warning row names GPU and figure; read the GPU's XIDs, link and temperature, and run the test alone",
              "DCGM user guide, Diagnostics (dcgmi diag)"),
    FaultLine(r"Couldn't read remote address|Failed to exchange data between server and clients"
              r"|Unable to (?:read|write) (?:to|from) socket/rdma_cm",
              "the other side of the test ended first",
              "read its output: the error there is the cause; both sides need the same options and version",
              "linux-rdma/perftest perftest_communication.c"),
    FaultLine(r"\[c10d\] The IPv[46] network addresses of \([^\n]{1,120}? cannot be retrieved[^\n]{0,80}"
              r"(?![\s\S]{0,9000}?(?:Init COMPLETE|has connected to))",
              "the name of the host at which the ranks meet is not resolved (of IPv6 alone that is harmless)",
              "MASTER_ADDR as an address, or the name in /etc/hosts of all hosts; getent hosts NAME shows what it"
              " gives",
              "PyTorch, torch/csrc/distributed/c10d/socket.cpp; meta-pytorch/monarch pull request 1571"),
    FaultLine(r"client socket has failed to connect to [^\n]{1,120}"
              r"(?![\s\S]{0,9000}?(?:Init COMPLETE|has connected to|busbw))",
              "ranks do not reach the first one, at which they meet",
              "MASTER_ADDR must be an address that all hosts reach, MASTER_PORT open between them, and the first rank"
              " must run",
              "PyTorch, torch/csrc/distributed/c10d/socket.cpp"),
    FaultLine(r"retrieving ncclUniqueId from \[0\][^\n]{0,160}got error: [^\n]{1,60}",
              "the first rank did not give the others NCCL's id: it has not come so far, or ended",
              "read its log first; then MASTER_ADDR and MASTER_PORT",
              "PyTorch, torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, broadcastUniqueNCCLID"),
    FaultLine(r"(?:control_cb|control_cmd_cb) \([^)\n]{1,80}\): assert \(!closed\) failed"
              r"|(?:ORTE|PRR?TE) does not know how to route a message"
              r"|ORTE was unable to reliably start one or more daemons|(?:ORTE|PRR?TE) daemon has unexpectedly failed"
              r"|has lost communication with a remote daemon|A daemon \(pid[^\n]{1,60} died unexpectedly"
              r"|timeout waiting for task launch|mpi/pmix\w{0,4}: [^\n]{0,100}collective timeout",
              "the launcher could not start its daemons on all hosts, or lost them",
              "name resolution, login without a question (ssh HOST true) and TCP between all hosts, not only from the"
              " first; oob_tcp_if_include names the interface (Slurm: the logs of slurmd)",
              "open-mpi/ompi orte/mca/plm/base/help-plm-base.txt; openpmix issue 2031"),
    FaultLine(r"init failed for (?:remote )?transport: \w{1,12}|Unable to initialize any transports",
              "NVSHMEM cannot use its way to other hosts",
              "NVSHMEM_DEBUG=INFO says why; IBGDA and IBRC need ConnectX NICs that the container sees, nvidia_peermem"
              " or DMA-BUF, and NVSHMEM_HCA_LIST with ports that are up; within one host NVSHMEM_REMOTE_TRANSPORT=none",
              "NVSHMEM documentation, environment variables; deepseek-ai/DeepEP issues 55, 128 and 202"),
    # Those that start NCCL print them too, and go well.
    FaultLine(r"there are no active ports detected \(or Open MPI was unable(?![\s\S]{0,40000}?(?:NCCL|RCCL|busbw))",
              "Open MPI found an RDMA device, and no port of it that is active or that it can use: MPI goes over TCP",
              "ibstat: the port must be Active; RoCE and iWARP: an Open MPI built with UCX or libfabric (mpirun --mca"
              " pml ucx, or cm); where TCP is wanted --mca btl ^openib",
              "open-mpi/ompi opal/mca/btl/openib/help-mpi-btl-openib.txt"),
    FaultLine(r"(?:No OpenFabrics connection schemes reported|infiniband ports on a device\s{1,4}are not used by"
              r" default|There was an error initializing an OpenFabrics device)"
              r"(?![\s\S]{0,40000}?(?:NCCL|RCCL|busbw|pml ucx))",
              "Open MPI's old path for InfiniBand (openib) does not use the port: without UCX MPI goes over TCP",
              "mpirun --mca pml ucx with an Open MPI that has it (ompi_info must list pml: ucx); Omni-Path: --mca pml"
              " cm (psm2 or libfabric); then --mca btl ^openib takes the warning away",
              "open-mpi/ompi opal/mca/btl/openib/help-mpi-btl-openib.txt; its issues 5789 and 12779"),
    FaultLine(r"packets transmitted, 0 (?:packets )?received[^\n]{0,40}|Destination Host Unreachable",
              "the other host does not answer",
              "ip route get ADDRESS and ip neigh: interface, VLAN and address; see whether it is up, and the firewall",
              "ping(8)"),
    FaultLine(r"ibwarn: \[\d{1,10}\] (?:_do_madrpc|mad_rpc)[^\n]{0,80}",
              "a port of the fabric did not answer the subnet's requests",
              "ibstat at both ends: Active, and the same SM lid; ibtracert shows where the way ends",
              "rdma-core, libibmad/rpc.c"),
    FaultLine(r"PF still in reset state\.[^\n]{0,40}|[Ii]s the PF interface up\?",
              "the physical function's interface on the host is down, so its virtual functions do not work",
              "ip link set PF up on the host, at each boot; then load the guest's driver again",
              "Linux drivers/net/ethernet/intel/ixgbevf/ixgbevf_main.c; canonical/lxd issue 5041"),
    FaultLine(r"iavf [0-9a-f:.]{7,16}[^\n]{0,20}: (?:PF returned error -\d{1,3} [^\n]{1,80}"
              r"|Unable to get VF config[^\n]{0,60}|Failed to communicate with PF[^\n]{0,40}"
              r"|Reset indication received from the PF(?=(?:[\s\S]{0,4000}?Reset indication){2}))"
              r"|VF is not trusted[^\n]{0,40}|attempting to override administratively set[^\n]{0,20}"
              r"|Unprivileged VF \d{1,4} [^\n]{4,60}|Failed to add MAC filter[^\n]{0,40}"
              r"|Malicious Driver Detection event"
              r"[^\n]{0,60}|\d{1,9} Spoofed packets detected",
              "the host's physical function refuses requests of the virtual function, or resets it again and again",
              "dmesg of the host says why (ice, i40e); ip link set PF vf N trust on, its MAC and VLAN; drivers of host"
              " and guest of one release",
              "Linux drivers/net/ethernet/intel/iavf/iavf_virtchnl.c"),
    FaultLine(r"DEV[ \t]+PORT[ \t]+INDEX[ \t]+GID[^\n]{0,80}\n[- \t]{9,120}\n(?=(?:[^\n]{1,160}\n){0,99}?[^\n]{1,140}"
              r"\bv2\b)(?:\w\S{0,20}[ \t]+\d+[ \t]+\d+[ \t]+fe80:[^\n]{1,120}\n){1,99}n_gids_found",
              "the RoCE ports have no address: all GIDs are link-local, which reach no other subnet",
              "give each RDMA interface an IP address (ip addr add); its GIDs of kind v2 come with it",
              "Linux Documentation/infiniband; NVIDIA/nccl issue 426"),
    FaultLine(r"(?m:^)[ \t]*\d{1,3}: en\w{2,16}np\d\S{0,4}: <[A-Z_,-]{4,80}LOWER_UP[^>\n]{0,20}> mtu 1500\b"
              r"(?=[\s\S]{0,40000}?Rank +0 [^\n]{0,80}? on +(\S{1,60}) +device(?:[^\n]{0,200}\n){1,9}?"
              r"[#\t ]{0,8}Rank +\d{1,4} [^\n]{0,80}? on +(?!\1 )\S{1,60} +device[^\n]{0,40} NVIDIA GB10"
              r"(?:[^\n]{0,200}\n){1,40}?[ \t]*\d{9,12}[ \t]+\d{6,12}(?:[ \t]+[\w.-]{1,12}){2,5}[ \t]+"
              r"(?:\d|1\d|2[01])\.\d\d[ \t]+0[ \t])",
              "the interface of the RoCE port has an MTU of 1500: RDMA's packets carry 1024 bytes, and the run stays"
              " below the port's rate",
              "ip link set dev NAME mtu 9000 on all hosts (active_mtu becomes 4096), also on a switch between them;"
              " then compare: of one cable both halves of the port are to be in NCCL_IB_HCA",
              "NVIDIA/dgx-spark-playbooks issues 25 and 102; rdma-core, ibv_devinfo(1), active_mtu"),
    FaultLine(r"NET/IB : \S{1,40} GID table changed",
              "an address of an RDMA port changed during the run",
              "keep DHCP and NetworkManager from changing the addresses of the RDMA interfaces",
              "NVIDIA/nccl src/transport/net_ib/common.cc; rdma-core, ibv_get_async_event(3): GID_CHANGE"),
    FaultLine(r"\bnode_guid:\s{1,40}0000:0000:0000:0000",
              "a virtual function has no GUID",
              "ip link set PF vf N node_guid GUID port_guid GUID on the host, then bind it again; with InfiniBand the"
              " subnet manager needs virt_enabled 2",
              "Linux Documentation/networking/devlink; ip-link(8), vf node_guid"),
    FaultLine(r"reached maximum number of connection retries|try to increase \"net\.core\.somaxconn\"",
              "a host did not take all connections of UCX: too many came at once, or it is not reached",
              "raise net.core.somaxconn on all hosts; UCX_NET_DEVICES with an interface that reaches the others",
              "openucx/ucx src/uct/tcp/tcp_ep.c"),
    FaultLine(r"mlx5: \S{1,80}: got completion with error|Error cqe on cqn 0x[0-9a-f]{1,8}[^\n]{0,120}"
              r"|dump_cqe:\d{1,5}:\(pid \d{1,10}\): dump error cqe"
              r"|mlx5_poll_one:\d{1,5}:\(pid \d{1,10}\): \w{1,12} error cqe[^\n]{0,40}",
              "an RDMA request ended with an error",
              "the first one and its syndrome in dmesg: 0x5 only follows another, 0x15 is a peer that does not answer",
              "Linux drivers/infiniband/hw/mlx5/cq.c, mlx5_handle_error_cqe"),
    FaultLine(r"watchdog got stuck for \d{1,6} ?seconds without making progress",
              "a rank hangs in a call of the GPU's runtime or of NCCL",
              "its stack (py-spy dump, gdb) shows where; dmesg of its host for XIDs; NCCL_DEBUG=INFO for the network",
              "PyTorch, torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp"),
    FaultLine(r"cannot find a network-attachment-definition \([^\n]{1,80}|failed to find plugin \"[\w-]{1,30}\" in path"
              r"[^\n]{0,60}|Could not allocate IP in range[^\n]{0,60}|failed to assign an IP address to container"
              r"|no IP addresses available in (?:range set|network)[^\n]{0,60}",
              "the cluster's network could not give the pod its second interface",
              "kubectl get net-attach-def -A: name and namespace of the annotation; the plugin in /opt/cni/bin of each"
              " node; a range of addresses that is large enough (whereabouts, where several nodes share it)",
              "k8snetworkplumbingwg/multus-cni; CNI plugins, host-local"),
    FaultLine(r"failed to set vf \d{1,4} vlan: operation not supported"
              r"|ip link set ib\w{1,12} vf \d{1,4} vlan[^\n]{1,40}\n[^\n]{0,40}Operation not supported",
              "the NIC's driver sets no VLAN for a virtual function: InfiniBand has none",
              "of InfiniBand use the CNI for it (SriovIBNetwork, ib-sriov-cni), and a PKey instead of the VLAN",
              "k8snetworkplumbingwg/sriov-cni issue 208"),
    FaultLine(r"SRIOV-CNI failed to [^\n]{1,120}|failed to (?:move|set) RDMA (?:device|subsystem)[^\n]{1,100}"
              r"|RDMA subsystem namespace awareness mode is set to \w{2,12}, expected[^\n]{0,40}",
              "the cluster's network could not give the pod its virtual function",
              "its words say why; the function must be free and, for RDMA, the host in exclusive mode (rdma system"
              " show)",
              "k8snetworkplumbingwg/sriov-cni; rdma-cni"),
    FaultLine(r"remote process exited or there was a network error|NIXL_ERR_REMOTE_DISCONNECT"
              r"|Connection closed by remote peer"
              r"|gloo/transport/tcp/\w{1,20}\.cc:\d{1,5}\] (?:(?:Read|Write) error|Connection closed by peer)"
              r"|Horovod has been shut down\. This was caused by an exception"
              r"|unexpectedly tried to connect with a different incarnation"
              r"|JAX distributed service detected fatal errors|UNAVAILABLE: Task /job:[^\n]{1,80} heartbeat timeout",
              "another rank ended first",
              "its log has the cause: the first error by time, on any host",
              f"{_GUIDE}, Errors (ncclRemoteError)"),
    FaultLine(r"A worker died or was killed while executing a task"
              r"|The actor died unexpectedly before finishing this task",
              "a worker of Ray ended",
              "its own log (ray logs worker-*) and dmesg of that host (out of memory, XIDs) say why",
              "Ray documentation, Debugging failures"),
    FaultLine(r"\bRendezvousClosedError\b",
              "the job at which this host wanted to meet the others has ended",
              "the log of the first host says why; start all again, with a new --rdzv-id",
              "PyTorch, torch/distributed/elastic/rendezvous"),
    FaultLine(r"Watchdog caught collective operation timeout|dump signal due to a collective timeout from[^\n]{0,40}",
              "a rank did not come to a collective in time",
              "find the rank that is behind (TORCH_NCCL_TRACE_BUFFER_SIZE, py-spy): it crashed, waits for data, or its"
              " network hangs (NCCL_DEBUG=INFO)",
              "PyTorch, torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp"),
    FaultLine(r"knvlink(?:UpdatePostRxDetectLinkMask|DiscoverPostRxDetLinks)\w{0,12}: [^\n]{0,60}[Ff]ailed[^\n]{0,40}",
              "the driver cannot read the state of a GPU's links: it may leave them out",
              "read XIDs and RPC errors before it; reset that GPU once nothing uses it, then load the driver anew",
              "NVIDIA/open-gpu-kernel-modules kernel_nvlink.c"),
    FaultLine(r"offloaded (\d{1,3})/(?!\1 )\d{1,3} layers to GPU|because they were offloaded to the (?:cpu|disk)"
              r"|Some modules are dispatched on the CPU or the disk",
              "a part of the model runs on the CPU: the GPU has no room for it, or was not asked",
              "free the GPU's memory, take a smaller quantization or context, or more GPUs; llama.cpp: -ngl 999",
              "ggml-org/llama.cpp src/llama-model.cpp; huggingface/accelerate big_modeling.py"),
    FaultLine(r"Failed to create (?:CUDA|TensorRT|ROCM|MIGraphX)ExecutionProvider[^\n]{0,80}"
              r"|Specified provider '(?:CUDA|Tensorrt|ROCM|MIGraphX)ExecutionProvider' is not in available provider"
              r"|no compatible GPUs were discovered",
              "the program runs on the CPU: it did not find the GPU's libraries or the GPU",
              "install its build for the GPU (onnxruntime-gpu alone, without onnxruntime) with CUDA and cuDNN of the"
              " releases that the line names; a container needs the GPUs (--gpus all)",
              "microsoft/onnxruntime onnxruntime_pybind_state.cc; ollama discover/gpu.go"),
    FaultLine(r"(?:[gs]et_mempolicy|mbind|setting membind): Operation not permitted",
              "a container may not choose the node of its memory: the binding was refused",
              "docker run --cap-add SYS_NICE (Kubernetes: securityContext, capabilities), or bind the CPUs alone",
              "set_mempolicy(2); Docker's seccomp profile; bytedance/byteps issue 17"),
    FaultLine(r"libnuma: Warning: [^\n]{1,80}out of range|sched_setaffinity: Invalid argument"
              r"|taskset: failed to set pid \d{1,10}'s affinity: Invalid argument",
              "the command asks for CPUs or a node that the process may not use, or that are not there",
              "numactl --show in the same place (the container's or the job's cpuset); lscpu shows nodes and CPUs that"
              " are online",
              "sched_setaffinity(2): EINVAL; numactl(8)"),
    FaultLine(r"Read -1, expected \d{1,12}, errno = 1\b",
              "MPI's processes may not copy from each other's memory (CMA): the container forbids it",
              "docker run --cap-add SYS_PTRACE, or mpirun --mca btl_vader_single_copy_mechanism none (Open MPI 5:"
              " btl_sm_single_copy_mechanism)",
              "process_vm_readv(2): EPERM; open-mpi/ompi issue 4948"),
    FaultLine(r"Result is : INVALID|HPCG result is INVALID[^\n]{0,60}",
              "the benchmark calls its own run invalid",
              "its lines below say which condition was not met: too short, too few queries, latency, or a wrong result",
              "mlcommons/inference loadgen/results.cc; HPCG, ReportResults.cpp"),
    FaultLine(r"There is an imbalance between your GPUs",
              "the process uses GPUs of different size: the weaker one sets the pace of all",
              "name only the strong ones (CUDA_VISIBLE_DEVICES, device_ids); a process for each GPU"
              " (DistributedDataParallel) instead of DataParallel",
              "PyTorch torch/nn/parallel/data_parallel.py"),
    FaultLine(r"uncorrectable ECC error encountered|cudaErrorECCUncorrectable",
              "a GPU's memory had an uncorrectable error",
              "read its XIDs in dmesg; reset the GPU, then hosttune validate (ecc-errors, row-remap); replace it if"
              " they"
              " come back",
              "CUDA runtime API, cudaErrorECCUncorrectable"),
    FaultLine(r"\*ERROR\* \[nvidia-drm\] \[GPU ID 0x[0-9a-f]{8}\] Failed to (?:allocate NvKmsKapiDevice|register"
              r" device)",
              "the GPU's driver could not start a GPU for display",
              "the NVRM lines before it say why (GSP firmware, RmInitAdapter, another driver); without a display leave"
              " nvidia_drm's modeset off",
              "NVIDIA/open-gpu-kernel-modules nvidia-drm-drv.c"),
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
    FaultLine(r"Couldn't get device attributes|(?:Unable|Failed) to create QP\.",
              "the test could not make its queue pair on this device",
              "dmesg has the driver's words; ulimit -l must be unlimited (a container: IPC_LOCK), and ibv_devinfo -v"
              " must show the device there",
              "linux-rdma/perftest perftest_resources.c; Mellanox/k8s-rdma-sriov-dev-plugin issue 29"),
    FaultLine(r"Parser function exited with Error",
              "the test refused its options",
              "the line before it says which; --use_cuda comes before --use_cuda_dmabuf",
              "linux-rdma/perftest perftest_parameters.c; its issue 336"),
    FaultLine(r"NCCL WARN NET/OFI [^\n]{4,140}",
              "the libfabric plugin ended with an error",
              "its words say why; FI_LOG_LEVEL=warn shows what libfabric says itself",
              "aws/aws-ofi-nccl src"),
    FaultLine(r"NCCL WARN Call to ibv_(?:alloc_pd|post_\w{4}|poll_cq|(?:reg|create|modify)_\w{1,20}) failed"
              r"[^\n]{0,80}",
              "a call of the RDMA library failed, and the run ended there",
              "the error's words say why; dmesg of the same time, ibv_devinfo and ulimit -l on that host",
              "NVIDIA/nccl src/misc/ibvwrap.cc"),
    FaultLine(r"(?m:^)-E- [^\n]{4,140}",
              "a tool of the NIC's maker reports an error",
              "its words say which; of ibdiagnet the lines with -E- in its log name port and counter",
              "ibdiagnet, mlxlink, mlxconfig: -E- begins an error"),
    FaultLine(r"iperf3: error - [^\n]{1,120}",
              "iperf3 ended with an error",
              "its words say why; the output of the other side, too",
              "esnet/iperf src/iperf_error.c"),
    FaultLine(r"\[ERROR\] \[tid \d{1,10}\] [^\n]{1,140}",
              "Fabric Manager reports an error",
              "its words say what; read the lines before it, dmesg (SXid, XID) and nvidia-smi -q (Fabric)",
              "Fabric Manager user guide"),
    FaultLine(r"\b(?:Xid |XID |xid )\d{1,4} ?(?:\(|- )[A-Z][\w ]{4,60}",
              "a GPU reported an XID",
              "read its line in dmesg: NVIDIA's catalogue of XIDs says what to do",
              "NVIDIA XID Errors; leptonai/gpud, NVIDIA/NVSentinel"),
    FaultLine(r"(?:CUDA_ERROR_|HSA_STATUS_ERROR_|(?:UR|ZE)_RESULT_ERROR_|NVML_ERROR_|[A-Z]{1,4}SMI_STATUS_)(?!SUCCESS"
              r"|NOT_SUPPORTED)[A-Z_]{4,40}|(?:cudaError|hipError)(?!NotReady|PeerAccessAlready)[A-Z]\w{3,40}",
              "a call of the GPU's runtime or library failed",
              "its code says why in the maker's list of errors; read dmesg for XIDs or amdgpu's lines of the same time",
              "CUDA runtime API, HIP and ROCr documentation: error codes"),
    FaultLine(r"Failed to initialize NVML: [A-Z][^\n]{2,60}|nvidia-container-cli: \w{1,20} error: [^\n]{1,120}",
              "the GPUs' management library, or the container toolkit, could not use the driver",
              "its words say why; nvidia-smi on the host, and dmesg of the time, show whether the driver runs",
              "nvml.h, nvmlReturn_t; NVIDIA/libnvidia-container"),
    FaultLine(r"syn[A-Z]\w{2,40}\([^\n]{0,80}\) failed with synapse error: \d{1,4}|synStatus=\d{1,3} \[[^\]\n]{1,60}\]",
              "a call of the GPU's runtime or library failed",
              "the lines before it say why; hl-smi shows whether a process has the device, dmesg whether it started",
              "HabanaAI/hccl_demo, its check of calls; docs.habana.ai, SynapseAI"),
    FaultLine(r"MPI communication peer process has unexpectedly disconnected",
              "another rank ended first",
              "its log has the cause: the first error by time, on any host",
              "open-mpi/ompi opal/mca/btl/tcp/help-mpi-btl-tcp.txt: peer hung up"),
    FaultLine(r"\|CCL_ERROR\|[^\n]{1,140}",
              "oneCCL reports an error",
              "its words say why; CCL_LOG_LEVEL=info shows transport and provider (CCL_ATL_TRANSPORT, FI_PROVIDER)",
              "uxlfoundation/oneCCL, environment variables"),
    FaultLine(r"UCX {1,4}(?:ERROR|FATAL) [^\n]{1,140}",
              "UCX reports an error",
              "its words say why; ucx_info -d lists the devices that it sees, show_gids the GIDs of RoCE",
              "UCX FAQ; openucx/ucx"),
    FaultLine(r"nccl\w{4,16}(?:Error|Usage)\b[^\n]{0,120}\n[^\n]{0,60}Last error: ?\r?\n"
              r"(?:[^\n]{0,40}\[std(?:err|out)\] |\S{0,80}: )?(?!Cuda failure)[^\n]{8,160}",
              "the library ended with an error that no rule knows",
              "its words say why; NCCL_DEBUG=INFO shows what stands before it",
              "NVIDIA/nccl src/init.cc, ncclGetLastError; PyTorch torch/csrc/distributed/c10d/NCCLUtils.cpp"),
    FaultLine(r"NCCL WARN (?!Cuda failure|HIP failure)[^\n]{8,160}(?=[\s\S]{0,20000}?(?:Test (?:NCCL|CUDA|HIP) failure"
              r"|(?:NCCL|RCCL) [Ee]rror|NCCL failure|nccl\w{4,20}Error\b))",
              "the run ended after a warning of the library that no rule knows",
              "its words say why: look for them in the library's issues and sources",
              f"{_GUIDE}, Errors"),
    FaultLine(r"NCCL operation [^\n]{1,160}? failed: [^\n]{1,60}|Test (?:NCCL|CUDA|HIP) failure[^\n]{0,120}|(?:NCCL"
              r"|CUDA|HIP) failure \S{1,80}:\d{1,6} '[^'\n]{1,80}'"
              r"|(?:NCCL|RCCL) [Ee]rror[^\n]{0,160}?(?:unhandled (?:cuda|hip|system) error|invalid usage|internal"
              r" error)",
              "the run ended with an error, and no line says why",
              "run it again with NCCL_DEBUG=INFO: the first WARN line of any rank has the cause",
              f"{_GUIDE}, Errors"),
    FaultLine(r"Rank {1,4}0 (?=(?:uses device[^\n]{1,80}\n(?:[ #]{1,6}Rank {1,4}\d{1,2} uses[^\n]{1,80}\n){1,15}"
              r"|(?:Group {1,4}\d {1,4})?Pid {1,8}(\d{1,9}) [^\n]{1,120}\n"
              r"(?:[ #]{1,6}Rank {1,4}\d{1,2} [^\n]{0,16}Pid {1,8}\1 [^\n]{1,120}\n){1,15})(?![ #]{1,6}Rank)"
              r"(?:[#> ][^\n]{0,200}\n|>?\s{1,4}){0,8}?[^\n]{0,80}"
              r"\b(?:[Hh]angs?|[Hh]ung|[Ss]tuck|[Ss]talle?[ds]?|[Ff]reezes?)\b)[^\n]{1,60}",
              "the first collective of one process hangs: copies between GPUs of this host do not arrive (IOMMU, ACS)",
              "a host without guests: iommu=pt, or IOMMU and ACS off in the firmware (setpci takes ACS off for a boot);"
              " to see it: NCCL_P2P_DISABLE=1 passes",
              f"{_GUIDE}, PCI Access Control Services; ROCm/rccl issue 1129"),
    FaultLine(r"(?m:^)[^\n]{0,40}(?:# {1,12}\(B\) {1,16}\(elements\)|\bbytes {1,16}N {1,8}type)[^\n]{0,160}\s{1,20}"
              r"(?![^\n]{0,60}NCCL)[^\n]{0,120}(?:\^C|\b(?:[Hh]angs?|[Hh]ung|[Ss]tuck|[Ss]talle?[ds]?|[Ff]reezes?"
              r"|nothing more)\b)",
              "the test printed its head and no row: its first collective hangs or ended the run",
              "once with NCCL_P2P_DISABLE=1: if that passes, copies between GPUs do not arrive (a host without guests:"
              " iommu=pt, or IOMMU and ACS off in the firmware); else NCCL_DEBUG=INFO shows where each rank waits",
              f"{_GUIDE}, PCI Access Control Services; ROCm/rccl issue 1129"),
)  # fmt: skip
