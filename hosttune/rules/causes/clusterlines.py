"""Lines of what gives GPUs to jobs: container runtimes, Kubernetes and its device plugins, Slurm, Ray.

They are rows as in `faultlines`, before which they come.
"""

from __future__ import annotations

from hosttune.rules.causes.faultlines import FaultLine

_TOOLKIT = "NVIDIA/libnvidia-container src; NVIDIA container toolkit, Troubleshooting"
_CDI = "NVIDIA container toolkit, Support for Container Device Interface; cncf-tags/container-device-interface"
_PLUGIN = "NVIDIA/k8s-device-plugin README, internal/plugin/manager/factory.go"
_SLURM = "Slurm, src/interfaces/gres.c; gres.conf(5)"
_BRIDGE = r"(?:docker|virbr|lxcbr|lxdbr|podman|cni|br-[0-9a-f]{4}|ip6tnl|tunl0)\w{0,12}"
# Programs whose faults are the lines below: a log of one of them without such a line is not decided.
PROGRAMS = (
    r"(?m:^)[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{6} |\btime=\"\d{4}-[^\"\n]{1,40}\" level=|\bslurm(?:d|ctld|stepd)\b"
    r"|(?m:^)NodeName=\S{1,80} |\bnvidia-(?:gridd|persistenced|fabricmanager|imex)\b|\bnhc: |License (?:Status"
    r"|acquired)"
    r"|\[INFO\] \[tid \d|(?m:^)(?:INFO|WARNING|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d \[\w{1,60}\.py:\d"
    r"|NVIDIA (?:driver kernel modules|Software Installer|Persistence Daemon)|\bDomain State: UP|(?m:^)Allocatable:$"
    r"|\| (?:Asserted|Deasserted)\b|nvidia-installer log file|(?m:^)Signing (?:key|module)\b|GDS release version"
    r"|(?m:^)Number of platforms {1,60}\d|Querying Mellanox devices firmware|(?m:^)[\w.+-]{1,40}[/,]"
    r" ?[\w.:+~-]{1,40}, \S{1,60},"
    r" (?:x86_64|aarch64): installed|(?m:^)critical_warning\b|\| [\dA-F]{2}h \| ok {1,4}\|"
    r"|(?m:^)(?:nvidia|amdgpu|mlx5_core|ib_core)\w{0,12} {1,24}\d{4,9} {1,8}\d"
)
# The root first.
CLUSTER_LINES: tuple[FaultLine, ...] = (
    # Container runtimes
    FaultLine(r"no runtime for \"[\w.-]{1,40}\" is configured|Unknown runtime specified [^\n]{1,40}"
              r"|unknown or invalid runtime name: [^\n]{1,40}|failed to find runtime handler [^\n]{1,40}"
              r"|exec: \\?\"(?:\S{0,60}/)?nvidia-container-runtime(?:-hook)?\\?\":[^\n]{1,80}"
              r"|(?:fork/exec|stat) /\S{1,80}nvidia-container-runtime(?:-hook)?: [^\n]{1,60}",
              "the container engine does not know the runtime that gives GPUs to containers",
              "install the maker's container toolkit and register its runtime (nvidia-ctk runtime configure"
              " --runtime=containerd, docker or crio; habana: habana-container-runtime in daemon.json) in the"
              " configuration that the engine really reads (k3s and RKE2 have their own), then restart the engine",
              "NVIDIA container toolkit, Installation; docs.habana.ai, Installation; NVIDIA/gpu-operator issue 730"),
    FaultLine(r"could not select device driver \"(?:cdi|nvidia|amd)\"[^\n]{0,40}",
              "docker has no driver of this kind for devices",
              "cdi: switch it on (features.cdi true in daemon.json, docker 25 or later) and make the description"
              " (nvidia-ctk cdi generate); nvidia: install the container toolkit; restart docker",
              _CDI),
    FaultLine(r"unresolvable CDI devices? [^\n]{1,100}|[Ff]ailed to (?:stat|find) CDI host device [^\n]{1,80}"
              r"|failed to (?:stat|find) CDI host device[^\n]{0,80}",
              "the description (CDI) by which the container gets its GPU is missing, or older than the machine",
              "make it anew (nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml; again after a change of driver, MIG"
              " or GPUs), where the engine looks for it; nvidia-ctk cdi list shows the names that exist",
              f"{_CDI}; NVIDIA/nvidia-container-toolkit issues 434 and 885"),
    FaultLine(r"nvidia-container-cli(?:\.real)?: device error: [^\n]{1,80}",
              "the container asks for a GPU that this host does not have",
              "compare NVIDIA_VISIBLE_DEVICES or --gpus with nvidia-smi -L: numbers and UUIDs change with the driver,"
              " MIG"
              " and the cards; make the container anew",
              f"{_TOOLKIT}; NVIDIA/nvidia-container-toolkit issue 29"),
    FaultLine(r"nvidia-container-cli(?:\.real)?: [\w ]{1,24}error: [^\n]{0,200}?(?:devices\.allow[^\n]{0,10}:"
              r" (?:operation not permitted"
              r"|permission denied)|cgroup subsystem devices not found|failed to add device rules|bpf_prog_query"
              r"|failed to get device cgroup)[^\n]{0,60}"
              r"|open failed: /sys/fs/cgroup/devices[^\n]{1,140}permission denied",
              "the container toolkit may not change the container's device rules (cgroup)",
              "of a container in a container (LXC, LXD) and without root: no-cgroups = true in"
              " /etc/nvidia-container-runtime/config.toml, and give the outer one the nodes /dev/nvidia*; with cgroup"
              " v2"
              " a toolkit of 1.8 or later",
              f"{_TOOLKIT}; NVIDIA/nvidia-container-runtime issue 78; NVIDIA/libnvidia-container issue 111"),
    FaultLine(r"nvidia-container-cli(?:\.real)?: [\w ]{1,24}error: [^\n]{0,200}?(?:file exists"
              r"|persistenced/socket: [^\n]{1,40}"
              r"|file lookup failed: [^\n]{1,160}|ldcache error[^\n]{0,80}|change root failed[^\n]{0,60})"
              r"|nvidia-container-cli(?:\.real)?: ldcache error: [^\n]{1,100}",
              "the container toolkit cannot put the driver's files into the container",
              "its words say why: file exists: an image with a driver of its own; permission denied: rights of the"
              " images' file system; ldconfig: its path in config.toml, or a newer toolkit, or its CDI mode;"
              " persistenced: a newer toolkit, or --no-persistenced; change root: the driver container is not ready",
              f"{_TOOLKIT}; NVIDIA/enroot issues 138 and 234; NVIDIA/k8s-device-plugin issue 1400"),
    FaultLine(r"Command not found: nvidia-container-cli[^\n]{0,20}|nvidia-container-cli: command not found"
              r"|Could not find any nv files on this host",
              "the container's runtime lacks the NVIDIA container toolkit or driver on this host",
              "install libnvidia-container-tools on each host (enroot, pyxis, Apptainer use it), and see that"
              " nvidia-smi"
              " runs there",
              "NVIDIA/enroot conf/hooks/98-nvidia.sh; NVIDIA/pyxis issue 110; apptainer pkg/util/gpu"),
    FaultLine(r"No help topic for \W{1,4}(?:prestart|create-symlinks|update-ldcache|chmod)",
              "parts of the container toolkit are of different versions",
              "install nvidia-container-toolkit, its base and libnvidia-container of one release (nvidia-ctk --version,"
              " nvidia-container-cli -V), then make the CDI description anew",
              "NVIDIA/nvidia-container-toolkit issue 14; Igalia/webkit-container-sdk issue 72"),
    FaultLine(r"Unable to find group (?:render|video|\d{1,6}): no matching entries in group file",
              "the container's image has no group of the name that it is to be added to",
              "give the number that the host's device has (stat -c %g /dev/kfd /dev/dri/renderD128; --group-add"
              " NUMBER)",
              "docker run --group-add; ROCm/ROCm-docker issue 90"),
    FaultLine(r"\d{1,7} hugepages of size \d{7,10} reserved, but no mounted hugetlbfs found for that size"
              r"(?=[\s\S]{0,4000}?Cannot get hugepage information)",
              "huge pages are reserved, and no file system gives them to the program (hugetlbfs)",
              "mount -t hugetlbfs nodev /dev/hugepages on the host, and give the container that path (docker -v; in"
              " Kubernetes a volume of medium HugePages with its limits)",
              "DPDK lib/eal/linux/eal_hugepage_info.c; opiproject/opi-poc issue 224"),
    FaultLine(r"No free (?:\d{4,8} kB )?hugepages reported[^\n]{0,60}"
              r"(?=[\s\S]{0,4000}?Cannot get hugepage information)",
              "no huge pages are free for the program",
              "reserve them (vm.nr_hugepages, hugepages= at boot), and remove files that ended programs left in"
              " /dev/hugepages",
              "DPDK lib/eal/linux/eal_hugepage_info.c; F-Stack/f-stack issue 274"),
    FaultLine(r"GPU driver auto installation is disabled",
              "the node's pool was made without a GPU driver",
              "apply Google's driver installer DaemonSet, or make the pool with gpu-driver-version=default",
              "Google Cloud, GKE: run GPUs in Standard node pools"),
    FaultLine(r"exposing interfaces: failed [^\n]{1,80}",
              "two containers were given the same accelerators, or their network ports are in use",
              "give each container other devices (HABANA_VISIBLE_DEVICES=0,1 instead of all)",
              "habana-container-runtime; opea-project/GenAIExamples issue 739"),
    FaultLine(r"avc: {1,2}denied[^\n]{1,300}container_t[^\n]{1,200}(?:xserver_misc_device_t|hsa_device_t|dri_device_t"
              r"|infiniband_device_t)|avc: {1,2}denied[^\n]{1,80}comm=\"(?:nvidia|rocm"
              r"|hl)-smi\"[^\n]{1,200}container_t",
              "SELinux keeps the container from its GPU or NIC",
              "setsebool -P container_use_devices on, or start it with --security-opt label=disable",
              "container-selinux, container_use_devices; podman-run(1)"),
    FaultLine(r"Device /dev/(?:nvidia|dri/|kfd|accel|infiniband)\S{0,30} does not exist|Failed to detect requested GPU"
              r" device|Missing source path /dev/(?:nvidia|dri|kfd)[^\n]{0,60}",
              "the device that the container is given is not on the host",
              "load the driver on the host before the container starts (nvidia-smi or modprobe nvidia_uvm makes the"
              " nodes; ls -l /dev/nvidia* /dev/dri /dev/kfd), and correct the container's list",
              "Proxmox LXC, dev entries; LXD and Incus documentation, type gpu"),
    FaultLine(r"enroot-\w{1,12}: failed to create user namespace[^\n]{0,60}|cannot clone: Operation not permitted"
              r"|[Ff]ailed to create user namespace[^\n]{0,60}",
              "the host does not let users make containers (user namespaces)",
              "sysctl user.max_user_namespaces above 0, and on Ubuntu 23.10 or later"
              " kernel.apparmor_restrict_unprivileged_userns=0 or a profile for the runtime",
              "NVIDIA/enroot doc/requirements.md; user_namespaces(7)"),
    # Kubernetes
    FaultLine(r"Allocate failed due to [^\n]{0,60}?(?:requested number of devices unavailable"
              r"|no healthy devices present"
              r"|unregistered device)[^\n]{0,80}",
              "the node's device plugin has no healthy device for the pod",
              "after a boot the plugin was not ready yet: delete the pod, so that it is made anew; else read the"
              " plugin's"
              " log (unhealthy devices, XIDs); a kubelet that counts devices of ended pods: restart it",
              "Kubernetes pkg/kubelet/cm/devicemanager/manager.go; kubernetes issues 125579 and 130145"),
    FaultLine(r"TopologyAffinityError|Resources cannot be allocated with Topology [Ll]ocality|Topology Affinity Error",
              "no NUMA node has CPUs, memory and devices for the pod together",
              "ask for no more than one node has free (CPUs, huge pages, GPUs, NICs), or set the kubelet's"
              " topologyManagerPolicy to restricted or best-effort",
              "Kubernetes documentation, Topology Manager"),
    FaultLine(r"Insufficient devices\.kubevirt\.io/(?:kvm|tun|vhost-net)",
              "the nodes offer no KVM to guests",
              "switch VT-x or SVM on in the firmware (of nested guests in the host's), load kvm_intel or kvm_amd, and"
              " see"
              " that virt-handler runs there",
              "KubeVirt user guide, Installation; virt-handler device manager"),
    FaultLine(r"Insufficient hugepages-\d{1,2}[GM]i",
              "no node has as many huge pages free as the pod asks for",
              "reserve them on the nodes (hugepages= at boot) and restart the kubelet, which counts them at its start",
              "Kubernetes documentation, Manage HugePages"),
    FaultLine(r"Could not resolve Linux kernel version|Unable to find a match: (?:kernel-|kmod-)[^\n]{1,120}"
              r"|(?:Unable to locate package|[Cc]ouldn't find any package by glob '?)[ ]?linux-(?:headers|modules"
              r"|image)"
              r"[^\n]{0,60}|linux-(?:headers|modules)-\S{1,60}' has no installation candidate"
              r"|Failed to download metadata for repo[^\n]{0,80}|failed to reach RHEL package repositories[^\n]{0,60}"
              r"|RHEL entitlement may be improperly deployed|Failed to update package cache[^\n]{0,60}",
              "the container that builds the driver does not get the packages of the running kernel",
              "boot a kernel whose headers the distribution's repositories still have, and let the node reach them"
              " (DNS,"
              " proxy, entitlement); or install the driver on the host (driver.enabled=false) or a precompiled one",
              "NVIDIA/gpu-driver-container nvidia-driver; NVIDIA/gpu-operator issues 85 and 234; network-operator issue"
              " 830"),
    FaultLine(r"error waiting for MPS daemon[^\n]{0,120}|failed to send command to MPS daemon[^\n]{0,40}"
              r"|using MPS requires --mps-root to be specified",
              "the device plugin shares GPUs by MPS, and the daemon that it needs does not answer",
              "install the plugin by its Helm chart with gfd.enabled (it brings the MPS daemon), label the node"
              " nvidia.com/mps.capable=true, and read the log of its pod; none is to be started by hand",
              "NVIDIA/k8s-device-plugin README, With CUDA MPS; its issues 634 and 679"),
    FaultLine(r"No valid EFA devices found",
              "the instance has no EFA interface",
              "take an instance type with EFA, and start it with EFA interfaces; the plugin belongs on those alone",
              "aws-efa-k8s-device-plugin; sagemaker-hyperpod-cli issue 367"),
    FaultLine(r"missing RDMA device spec for device [^\n]{1,100}",
              "the plugin of RDMA devices leaves a NIC out: a device file of it is missing",
              "load ib_umad, ib_uverbs and rdma_ucm on the host (ls /dev/infiniband: issm, umad, uverbs, rdma_cm), and"
              " name in its configuration only functions that do RDMA",
              "Mellanox/k8s-rdma-shared-dev-plugin issues 44 and 94"),
    FaultLine(r"Number of GPUs detected in the PCI tree \d{1,3} is not equal to[^\n]{0,80}"
              r"|NET/FasTrak[^\n]{0,80}connect\(\) error: 111[^\n]{0,40}",
              "the daemon that lets NICs reach GPU memory (RxDM of GPUDirect-TCPXO) does not run or lacks a NIC",
              "read its log first: each GPU needs a NIC network of its own in the node pool, and no further one takes"
              " their slots; its version and the plugin's belong together",
              "Google Cloud, GPUDirect-TCPXO; NVIDIA/aicr pull request 1662"),
    FaultLine(r"gpu count mismatch \([^)\n]{1,60}\)",
              "the host shows another number of GPUs than it should have",
              "lspci shows those that are there, dmesg (XID 79, AER, RmInitAdapter) why one is not started; power-cycle"
              " the host, then reseat or replace the GPU",
              "leptonai/gpud components/accelerator/nvidia/gpu-counts"),
    FaultLine(r"DRA driver \S{1,60} is not registered",
              "the node's kubelet does not know the driver that gives out these devices (DRA)",
              "kubectl get pods: its kubelet plugin must run on the node, with the container for this kind of device"
              " (gpus, compute-domains) on; read its log",
              "Kubernetes documentation, Dynamic Resource Allocation; dra-driver-nvidia-gpu issue 814"),
    FaultLine(r"current node not ready in ComputeDomain|NodePrepareResources: rpc error: [^\n]{1,120}",
              "the driver that gives out the devices (DRA) could not prepare them",
              "read its kubelet plugin's log: compute domain: the IMEX daemon's pod on each of the nodes; passthrough:"
              " a"
              " process of the host that still has the GPU (fuser -v /dev/nvidia*)",
              "kubernetes-sigs/dra-driver-nvidia-gpu issues 1162 and 1218"),
    # NVLink between hosts
    FaultLine(r"No matching network interface found for any IP addresses in the node configuration[^\n]{0,20}",
              "the list of nodes of IMEX does not have this host's address",
              "write the addresses that the hosts really have into /etc/nvidia-imex/nodes_config.cfg, the same on all,"
              " and restart nvidia-imex",
              "NVIDIA IMEX guide, nodes_config.cfg; kubernetes-sigs/dra-driver-nvidia-gpu issue 289"),
    FaultLine(r"in Multinode\w{0,40}Memory\w{0,40}::[^\n]{1,80}|Domain State: (?:DOWN|DEGRADED)",
              "memory cannot be shared over the NVLink between the hosts",
              "nvidia-imex must run on all hosts with one list of nodes and one version (nvidia-imex-ctl -N: READY),"
              " each"
              " job needs /dev/nvidia-caps-imex-channels/channel0, and all GPUs one fabric (ClusterUUID, CliqueId)",
              "NVIDIA IMEX guide; NVIDIA/nvbandwidth multinode_memcpy.cpp and issue 44"),
    # Slurm
    FaultLine(r"can't stat gres\.conf file [^\n]{1,60}",
              "Slurm's list of GPUs names a device file that is not there: the driver is not loaded, or a GPU is lost",
              "nvidia-smi must show the GPUs before slurmd starts (After=nvidia-persistenced.service), or correct"
              " gres.conf; lspci and dmesg show a GPU that is lost",
              f"{_SLURM}; BiBiServ/bibigrid issue 705"),
    FaultLine(r"configured to autodetect \w{2,8} functionality, but we weren't able to find that lib[^\n]{0,60}",
              "Slurm was built without the GPUs' management library",
              "install Slurm packages built with it (--with-nvml, --with-rsmi), or AutoDetect=nvidia (24.11 or later),"
              " or"
              " name the files in gres.conf",
              f"{_SLURM}; NVIDIA/deepops issue 1214"),
    FaultLine(r"gres\.conf duplicate records for \w{1,20}|invalid GRES core specification \([^\n]{1,80}"
              r"|Ignoring file-less GPU[^\n]{0,60}|Invalid GRES data[^\n]{0,60}",
              "Slurm's list of GPUs does not fit the machine",
              "correct gres.conf: one line for each device file, Cores= in Slurm's own numbers (slurmd -C: cores, not"
              " threads), or AutoDetect alone; slurmd -G shows what is found",
              f"{_SLURM}; NVIDIA/deepops issue 1195"),
    FaultLine(r"Invalid generic resource \(gres\) specification|Invalid Trackable RESource \(TRES\) specification",
              "the job asks Slurm for GPUs that it does not know, or its step for more than the job has",
              "sinfo -o '%N %G' shows names and types: write them so (--gres=gpu:TYPE:N), with GresTypes=gpu in"
              " slurm.conf"
              " and AccountingStorageTRES of sites that count them; within a job do not ask anew for other GPUs",
              f"{_SLURM}; awslabs/awsome-distributed-ai issue 196; mehta-lab/recOrder issue 482"),
    FaultLine(r"gres/\w{1,20} count reported lower than configured \(\d{1,4} < \d{1,4}\)",
              "a host has fewer GPUs than Slurm was told",
              "nvidia-smi -L and slurmd -G there: a GPU is lost (dmesg), the driver is not loaded, or MIG was changed;"
              " correct slurm.conf and gres.conf, restart slurmd, then scontrol update nodename=NAME state=resume",
              f"{_SLURM}; awslabs/awsome-distributed-ai issue 195"),
    FaultLine(r"CPU binding outside of job step allocation[^\n]{0,100}|Unable to satisfy cpu bind request",
              "the step asks for CPUs that its job was not given",
              "unset SLURM_CPU_BIND* before an srun within a job, or srun --cpu-bind=none; give the job all CPUs"
              " (--exclusive, --cpus-per-task)",
              "Slurm, srun(1) --cpu-bind; llnl/ATS issue 133"),
    FaultLine(r"Low (?:RealMemory|socket\*core\*thread count|CPUs)\b[^\n]{0,80}"
              r"|Node configuration differs from hardware:"
              r" [^\n]{1,120}",
              "a host has less memory or other CPUs than Slurm was told",
              "slurmd -C there prints what it has: a module or a CPU may be missing (firmware's log), or threads, NUMA"
              " settings or huge pages were changed; correct slurm.conf",
              "Slurm, src/slurmctld/node_mgr.c; slurm.conf(5)"),
    FaultLine(r"Kill task failed|Job termination timeout on node[^\n]{0,40}",
              "processes of an ended job cannot be killed: they hang in the kernel",
              "ps -eo pid,stat,wchan,cmd shows those in state D; dmesg has why (GPU, file system, NIC); reboot the"
              " host,"
              " then scontrol update nodename=NAME state=resume",
              "Slurm, slurm.conf(5), UnkillableStepTimeout"),
    FaultLine(r"Munge decode failed: (?![^\n]{1,80}retrying)[^\n]{1,60}|(?:Rewound|Expired|Invalid) credential\b",
              "hosts of the cluster do not trust each other's messages: their clocks or munge keys differ",
              "chronyc tracking on both; the same /etc/munge/munge.key everywhere, then restart munge and Slurm's"
              " daemons",
              "munge(7); Slurm troubleshooting guide"),
    FaultLine(r"Couldn't (?:load|find the) specified plugin name for cgroup/v\d[^\n]{0,40}|Unable to initialize cgroup"
              r" plugin|cannot create cgroup context for cgroup/v\d",
              "Slurm's daemon cannot use the host's cgroups",
              "cgroup/v2 needs a slurmd built with dbus and bpf, and systemd; in a container without systemd"
              " IgnoreSystemd=yes in cgroup.conf and a cgroup that it may write, or CgroupPlugin=disabled",
              "Slurm, cgroup.conf(5) and cgroup_v2.html; stackhpc/slurm-k8s-cluster issue 39"),
    FaultLine(r"write value '\d{1,9}' to '[^'\n]{0,160}cpuset[^'\n]{0,160}' failed: No space left on device",
              "the job's set of CPUs (cpuset) is empty: Slurm has other CPUs for the host than it has",
              "slurmd -C there and slurm.conf must agree (Sockets, CoresPerSocket, ThreadsPerCore); restart slurmd",
              "Linux cpuset(7): ENOSPC; Azure/cyclecloud-slurm issue 388"),
    FaultLine(r"unable to add task\[pid=\d{1,9}\] to memory cg|unable to instanciate \w{3,5} \d{1,9} memory cgroup"
              r"|unable to create cgroup '[^'\n]{1,160}' ?: No space left on device",
              "the kernel has no identities left for memory cgroups: ended jobs still hold them",
              "reboot the host; a kernel of 4.5 or later gives them back",
              "galaxyproject/galaxy pull request 6293; Linux mm/memcontrol.c"),
    FaultLine(r"error: execve\(\): [^\n]{1,160}: No such file or directory",
              "the job's program or script is not on the host that was to run it",
              "see that path there: a file system that is not mounted, SlurmdSpoolDir or /tmp that was emptied, or a"
              " program that only the submitting host has",
              "execve(2): ENOENT; Slurm, slurm.conf(5), SlurmdSpoolDir"),
    FaultLine(r"DUE TO NODE FAILURE|srun: error: Node failure on [^\n]{1,60}",
              "a host of the job failed or was not reached any more",
              "look at that host: does it run, dmesg and the BMC's log of that time, slurmd's log and its network",
              "Slurm, src/slurmctld/job_mgr.c"),
    FaultLine(r"CANCELLED AT \S{1,30} DUE TO TIME LIMIT",
              "the job was ended at its time limit",
              "ask for more (--time); a job that usually ends earlier hangs: look at its last lines",
              "Slurm, sbatch(1) --time"),
    # Frameworks
    FaultLine(r"No available node types can fulfill resource request[^\n]{0,80}'node:[^\n]{0,80}",
              "Ray does not know a host under the address that the program uses, or that host has no GPU free",
              "give both the same address on each host: VLLM_HOST_IP and ray start --node-ip-address (an interface that"
              " reaches the others); ray status shows addresses and GPUs",
              "vllm documentation, distributed serving; its issue 7815"),
    FaultLine(r"CUDA_VISIBLE_DEVICES[=:'\" ]{1,4}NoDevFiles|Total available GPUs \d{1,4} is less than total desired"
              r" GPUs[^\n]{0,20}|number of required \w{2,8} exceeds the total number of available[^\n]{0,60}"
              r"|No available node types can fulfill resource request(?![^\n]{0,80}'node:)[^\n]{0,80}"
              r"|Ray does not allocate any GPUs on the driver node|Current node has no GPU available[^\n]{0,60}",
              "the scheduler gave the job no GPU, or fewer than it asks for",
              "ask for them (Slurm --gpus or --gres=gpu:N, Kubernetes limits, Ray num_gpus); ray status, scontrol show"
              " node and nvidia-smi on the hosts show how many there are",
              "Slurm, gres.html; Ray documentation, Accelerator support; vllm ray_utils.py"),
    FaultLine(r"Free memory on device[^\n]{0,40}\([\d.]{1,9}/[\d.]{1,9} GiB\) on startup is less than[^\n]{0,60}"
              r"|No available memory for the cache blocks"
              r"|Not enough memory\. Please try to increase --mem-fraction-static",
              "the GPU's memory does not hold the model and its cache: something else has a part of it",
              "nvidia-smi shows who holds it: end what is left of an earlier run, and start one server a GPU; else more"
              " GPUs (tensor parallel) or another share (gpu_memory_utilization, mem-fraction-static)",
              "vllm v1/worker/gpu_worker.py; sglang srt/model_executor"),
    FaultLine(r"HAMI-core ERROR[^\n]{0,80}(?:Device \d{1,2} OOM \d{1,20} / \d{1,20}|cuMemoryAllocate failed res=2)",
              "the container used up the share of GPU memory that it was given (HAMi)",
              "ask for more (nvidia.com/gpumem) or load less; where far less is used than the line says, take a newer"
              " HAMi or CUDA_DISABLE_CONTROL=true",
              "Project-HAMi/HAMi-core src/allocator; HAMi issues 662 and 1181"),
    FaultLine(r"Installed CUDA version \S{1,12} does not match the version torch was compiled with(?![^\n]{0,40}APIs"
              r" are compatible)"
              r"|The detected CUDA version"
              r" \(\S{1,12}\) mismatches the version that was used to compile",
              "the CUDA toolkit that builds extensions is of another version than the one PyTorch was built with",
              "point CUDA_HOME and PATH to the toolkit of PyTorch's version (torch.version.cuda), or install the"
              " PyTorch"
              " of the toolkit's",
              "deepspeedai/DeepSpeed op_builder/builder.py; PyTorch torch/utils/cpp_extension.py"),
    FaultLine(r"(?:dest_addr=|[Cc]onnect to |remote=\[)172\.17\.0\.\d{1,3}\b[^\n]{0,60}"
              r"(?:refused|No route|[Tt]imed out|unreachable)"
              rf"|\btcp/(?:{_BRIDGE}|flannel\.\d)[^\n]{{0,20}} - Destination is unreachable"
              rf"|(?:Using|OOB) (?:\[\d\])?{_BRIDGE}[:/][^\n]{{0,60}}"
              r"(?=[\s\S]{0,40000}?(?:Connection refused|No route to host|[Tt]imed out|[Tt]imeout))",
              "the library took a bridge of this host's containers or guests, or a tunnel, which leads to no other"
              " host",
              "NCCL_SOCKET_IFNAME=the interface that reaches the other hosts (also GLOO_SOCKET_IFNAME, UCX_NET_DEVICES,"
              " and of Open MPI btl_tcp_if_include), not docker0, 172.17.0.1 on each host; UCX 1.17 leaves bridges out",
              "NCCL user guide, Troubleshooting, Networking issues; openucx/ucx issues 9383 and 9908"),
    FaultLine(r"could not insert '?(?:nvidia|amdgpu|habanalabs|mlx5)\w{0,16}'?: (?:Operation not permitted"
              r"|Permission denied)",
              "the kernel refuses the module: it is locked down (Secure Boot), or SELinux or the container's rights"
              " forbid it",
              "sign the module with a key that the kernel trusts (mokutil --import) or switch Secure Boot and lockdown"
              " off; dmesg and ausearch -m avc say which; a container must be privileged, better the host loads it",
              "kernel_lockdown(7); init_module(2): EPERM; bottlerocket issue 4218; NVIDIA/gpu-operator issue 553"),
)  # fmt: skip
# What is seen of a fault whose cause another line may say.
CLUSTER_SYMPTOMS: tuple[FaultLine, ...] = (
    FaultLine(r"Incompatible (?:platform|strategy) detected|Failed to initialize NVML: (?:could not load NVML library"
              r"|ERROR_\w{4,40})|NVML not detected: could not load NVML library",
              "the device plugin does not see the driver: its pod does not run with the runtime that gives GPUs",
              "of a node with GPUs: nvidia-smi there, the container toolkit, and its runtime as the engine's default or"
              " runtimeClassName: nvidia for the plugin; on a node without GPUs it is no fault",
              _PLUGIN),
    FaultLine(r"\w{2,30}: Unknown symbol \w{2,60} \(err -?\d{1,3}\)",
              "a kernel module needs another one, which is not loaded or of another version",
              "modprobe (not insmod) loads what it needs after depmod -a: of ib_… names ib_core and ib_uverbs; install"
              " modules that belong together from one release, and one that knows this kernel",
              "Linux kernel/module/main.c, resolve_symbol_wait; containers/ai-lab-recipes issue 483"),
    FaultLine(r"exec: \\?\"(?:nvidia|rocm|amd|hl)-smi\\?\": executable file not found",
              "the container has not the GPU driver's tools: its runtime did not give it the GPU",
              "start it with the GPUs (docker --gpus all; Kubernetes limits and runtimeClassName: nvidia) and"
              " NVIDIA_DRIVER_CAPABILITIES with utility; AMD and Gaudi: an image that has them",
              "NVIDIA container toolkit, driver capabilities; NVIDIA/k8s-device-plugin issue 346"),
    FaultLine(r"lib(?:cuda|nvidia-ml)\.so\.1: cannot open shared object file",
              "the container or program does not find the GPU driver's libraries",
              "start the container with the GPUs (docker --gpus all, podman --device nvidia.com/gpu=all, apptainer"
              " --nv,"
              " Kubernetes limits nvidia.com/gpu and runtimeClassName: nvidia); on a host run ldconfig",
              "NVIDIA container toolkit, Troubleshooting; ld.so(8)"),
    FaultLine(r"nvidia-container-cli(?:\.real)?: (?:initialization"
              r"|detection) error: (?:driver (?:rpc )?error: [^\n]{1,60}"
              r"|nvml error: unknown error)",
              "the driver did not answer the container toolkit",
              "nvidia-smi on the host: it must answer, and soon (nvidia-persistenced on, nvidia_uvm loaded); of snap's"
              " docker and rootless engines take the distribution's packages or no-cgroups",
              _TOOLKIT),
    FaultLine(r"/run/nvidia/validations/\.[\w-]{1,30}-ready[^\n]{0,40}No such file"
              r"(?=(?:[\s\S]{0,4000}?/run/nvidia/validations/){3})"
              r"|waiting for nvidia container stack to be setup(?=(?:[\s\S]{0,400}?waiting for nvidia container){3})",
              "a part of the GPU operator waits for another one, which does not become ready",
              "the first in the row fails: read the log of the driver's pod (nvidia-driver-ctr), then of the container"
              " toolkit's; host drivers and the operator's exclude each other (driver.enabled)",
              "NVIDIA/gpu-operator validator; its issues 378 and 531"),
    FaultLine(r"is serviced by a module of DCGM that is not currently loaded",
              "DCGM could not load the module for these figures: the GPU has no profiling, or another tool uses it",
              "dcgmi modules -l says which; leave DCGM_FI_PROF fields out on GPUs that are not of the data center; one"
              " host engine a host (the exporter's own, or -r HOST:5555)",
              "NVIDIA/dcgm-exporter issues 22 and 61"),
    FaultLine(r"Error starting nv-hostengine: [^\n]{1,60}|CacheManager Init Failed[^\n]{0,20}"
              r"|[Hh]ost engine already running with pid \d{1,9}",
              "DCGM's engine did not start",
              "it must see all GPUs of the host whole (with MIG, too), the driver, and be the only one: connect to the"
              " one that runs (-r HOST:5555), or stop it",
              "NVIDIA/dcgm-exporter issues 34 and 144"),
    FaultLine(r"IMEX daemon status is -\d{1,3}[^\n]{0,20}|DCGM_FR_IMEX_UNHEALTHY",
              "IMEX is not ready: only boards whose NVLink joins several hosts need it, on others that is no fault",
              "with NVLink between hosts: nvidia-imex-ctl -N on each, and its log; where a DRA driver starts it for"
              " each"
              " job, it is not there between jobs",
              "NVIDIA/DCGM issue 308; NVIDIA/NVSentinel issue 1471"),
    FaultLine(r"Failed loading kernel module mlx5_\w{2,8}|Loading HCA driver and Access Layer:[^\n]{0,12}FAILED",
              "the RDMA stack's own driver could not be loaded",
              "dmesg says why: modules of two stacks (distribution and DOCA) are mixed, or something uses the NIC:"
              " unload"
              " it (storage modules, ib_*), or reboot",
              "Mellanox/doca-driver-build issue 52"),
    FaultLine(r"Detected \d{1,6} oom[-_]kill event|exitcode {0,4}: -9\b|Signal 9 \(SIGKILL\) received by PID"
              r"|died with <Signals\.SIGKILL: 9>",
              "a process was killed: mostly the memory of its host or job ran out",
              "dmesg (oom-kill) and the job's or pod's limit say so: raise it (--mem, limits.memory), load fewer data"
              " at"
              " once, or fewer loader processes",
              "PyTorch, torchelastic error reports; Slurm, cgroup.conf(5)"),
    FaultLine(r"[Ff]ailed to initialize\. Check syslog|nvidia-persistenced\.service: (?:Main"
              r"|Control) process exited[^\n]{0,40}",
              "the service that keeps the GPU driver loaded did not start",
              "journalctl -u nvidia-persistenced and dmesg: mostly the driver's module is not loaded, or another driver"
              " has the GPU",
              "NVIDIA driver README, nvidia-persistenced"),
    FaultLine(r"pod group is not ready[^\n]{0,80}|queue resource quota insufficient",
              "the job waits until all its pods fit into the cluster at once",
              "kubectl describe podgroup and queue: free GPUs, the queue's capability of each resource, and labels and"
              " taints of the nodes",
              "Volcano documentation, gang and capacity plugins; its issue 3220"),
    FaultLine(r"dial unix /\S{1,60}(?:containerd|crio|docker)\.sock: connect: (?:connection refused"
              r"|permission denied)|Cannot connect to the Docker daemon at [^\n]{1,60}",
              "the container engine does not answer on its socket",
              "systemctl status containerd (docker, crio) and its journal: an error in its configuration, as of a"
              " runtime"
              " that was just registered, keeps it from starting; permission denied: the user is not of its group",
              "NVIDIA/gpu-operator issue 426; containerd and docker documentation"),
    FaultLine(r"error executing hook `[^`\n]{0,80}(?:nvidia|amd|habana)[^`\n]{1,60}` \(exit code: \d{1,3}\)",
              "the container's hook that gives it the GPU failed, and does not say why",
              "make the CDI description anew with the toolkit that is installed (nvidia-ctk cdi generate"
              " --output=/etc/cdi/nvidia.yaml; remove older ones of /etc/cdi and /var/run/cdi); rootless: no-cgroups ="
              " true"
              " in config.toml; or a newer crun",
              "Igalia/webkit-container-sdk issue 72; containers/crun issue 665; NVIDIA/gpu-operator issue 1598"),
    FaultLine(r"run_buffer:\d{1,5} - Script exited with status \d{1,3}|Failed to run mount hooks",
              "the container's hook that gives it the GPU failed",
              "run nvidia-container-cli -k -d /dev/tty info on the host: it says why; or set nvidia.runtime=false and"
              " give the device nodes and libraries",
              "LXC hooks/nvidia; canonical/lxd issues 4651 and 11427"),
)  # fmt: skip
# That something failed, where no line says why.
CLUSTER_FAILURES: tuple[FaultLine, ...] = (
    FaultLine(r"nhc: {1,4}Health check failed: {1,4}[^\n]{1,160}",
              "a health check of the host failed",
              "its words say which; run that test alone, and read dmesg of the host",
              "mej/nhc; Azure/azurehpc-health-checks"),
    FaultLine(r"Caught signal \d{1,2} \([^\n]{1,100}",
              "a process crashed",
              "the backtrace below it names the library: UCX and MPI of the image must fit the host's driver; signal 7"
              " (bus error) is a file, /dev/shm or huge pages that ran out",
              "openucx/ucx src/ucs/debug/debug.c"),
    FaultLine(r"pyxis: couldn't start container|pyxis: \[ERROR\] [^\n]{1,120}",
              "Slurm's container plugin could not start the container",
              "the lines above it say why; enroot start IMAGE on the host shows the same",
              "NVIDIA/pyxis, pyxis_slurmstepd.c"),
)  # fmt: skip
