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
# Of a node's description: up to the number of its GPUs.
_GPUS = r"[ \t]{1,20}(?:nvidia|amd)\.com/gpu: {1,40}"
_BEFORE_GPUS = rf"(?:(?!{_GPUS})[ \t]{{0,20}}\w[^\n]{{0,100}}\n){{0,24}}{_GPUS}\"?"
# Programs whose faults are the lines below: a log of one of them without such a line is not decided.
PROGRAMS = (
    r"(?m:^)[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{6} |\btime=\"\d{4}-[^\"\n]{1,40}\" level=|\bslurm(?:d|ctld|stepd)\b"
    r"|(?m:^)NodeName=\S{1,80} |\bnvidia-(?:gridd|persistenced|fabricmanager|imex)\b|\bnhc: |License (?:Status"
    r"|acquired)"
    r"|\[INFO\] \[tid \d|(?m:^)(?:INFO|WARNING|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d \[\w{1,60}\.py:\d"
    r"|NVIDIA (?:driver kernel modules|Software Installer|Persistence Daemon)|\bDomain State: UP|(?m:^Allocatable:\s)"
    r"|(?m:^)\d{4}/\d\d/\d\d \d\d:\d\d:\d\d [A-Z][\w ]{3,40}|Available Tensor Operations:|Autoscaler status: "
    r"|MIG Mode for GPU|\bGPU instances: {6}"
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
    FaultLine(r"invalid plugin config: [^\n]{1,120}|unknown service runtime\.v1(?:alpha2)?\.(?:Runtime|Image)Service",
              "the container engine's part for Kubernetes (CRI) is off: its configuration is wrong",
              "journalctl -u containerd names the entry; write config.toml anew (containerd config default), without"
              " cri"
              " in disabled_plugins, register the GPU's runtime again (nvidia-ctk runtime configure), restart it",
              "containerd documentation, CRI plugin; k3d-io/k3d issue 1108"),
    FaultLine(r"invoking the NVIDIA Container Runtime Hook directly[^\n]{0,80}",
              "the container was started by the toolkit's hook (--gpus), and the toolkit's mode does not allow that",
              "docker run --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=all; or mode = \"auto\" in"
              " /etc/nvidia-container-runtime/config.toml (cdi and csv, as on Jetson, need the runtime)",
              "NVIDIA/nvidia-container-toolkit cmd/nvidia-container-runtime-hook/hook_config.go"),
    FaultLine(r"create nvidia_driver_[\d.]{3,12}: [^\n]{1,80}",
              "the container asks for the volume of nvidia-docker 1, which nothing serves any more",
              "remove such containers and volumes (docker volume ls -f driver=nvidia-docker), install the NVIDIA"
              " container toolkit, and start with --gpus all",
              "NVIDIA/nvidia-docker wiki, version 1 and its removal"),
    FaultLine(r"WSL environment detected but no adapters were found",
              "WSL has no GPU: Windows gives it none",
              "a current Windows driver of the GPU, wsl --update, version 2 (wsl -l -v); nvidia-smi.exe in Windows must"
              " show"
              " it; install no Linux driver in WSL",
              "NVIDIA/libnvidia-container src/dxcore.c; CUDA on WSL user guide"),
    FaultLine(r"seccomp filter failed: Function not implemented",
              "the kernel is too old for Slurm's container plugin (pyxis): it has no seccomp(2), which came with 3.17",
              "a newer kernel or distribution (CentOS 7: not supported by newer pyxis)",
              "NVIDIA/pyxis seccomp_filter.c; its issue 42; seccomp(2)"),
    FaultLine(r"find runc path: exec: [^\n]{1,80}|error locating runtime: [^\n]{1,80}"
              r"|no runtime binary found from candidate list[^\n]{0,60}",
              "the toolkit's runtime finds no runtime below it (runc or crun)",
              "install runc, or name the one that is there (runtimes = [\"crun\"] in"
              " /etc/nvidia-container-runtime/config.toml); podman: --device nvidia.com/gpu=all (CDI) instead",
              "NVIDIA/nvidia-container-toolkit internal/oci; containers/podman issue 5711"),
    FaultLine(r"enroot-\w{1,16}: failed to set capabilities[^\n]{0,40}",
              "enroot's helper programs lack the rights (capabilities) with which they unpack images",
              "install enroot+caps (or setcap on enroot-aufs2ovlfs and enroot-mksquashovlfs), on a file system that"
              " keeps"
              " them (not NFS)",
              "NVIDIA/enroot doc/installation.md"),
    FaultLine(r"CDI container edits did not apply[^\n]{0,60}",
              "the container engine does not read descriptions of devices (CDI)",
              "containerd 1.7: enable_cdi = true and cdi_spec_dirs in config.toml, or version 2; CRI-O 1.23 or later;"
              " docker: features.cdi true in daemon.json; then restart it",
              "kubernetes-sigs/dra-driver-nvidia-gpu cmd; containerd documentation, CRI plugin"),
    FaultLine(r"could not select device driver \"(?:cdi|nvidia|amd)\"[^\n]{0,40}",
              "docker has no driver of this kind for devices",
              "cdi: switch it on (features.cdi true in daemon.json, docker 25 or later) and make the description"
              " (nvidia-ctk cdi generate); nvidia: install the container toolkit; restart docker",
              _CDI),
    FaultLine(r"unresolvable CDI devices?[^\n]{0,100}"
              r"|[Ff]ailed to (?:stat|find|inject) CDI (?:host )?devices?[^\n]{0,80}"
              r"|unable to create cdi spec file: [^\n]{1,120}"
              r"|failed to (?:generate|create) (?:device )?CDI specs?\b[^\n]{0,120}|invalid device, empty device edits",
              "the description (CDI) by which the container gets its GPU is missing, or older than the machine",
              "make it anew (nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml, AMD: amd-ctk; again after a change"
              " of driver, MIG or GPUs), where the engine looks for it; nvidia-ctk cdi list shows the names that exist;"
              " a guest of Kata needs driver and toolkit in its image",
              f"{_CDI}; NVIDIA/nvidia-container-toolkit issues 434, 885 and 1239"),
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
              r"|no such device or address"
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
              r" device|Missing source path /dev/(?:nvidia|dri|kfd)[^\n]{0,60}"
              r"|stat [`'\"]?/dev/(?:nvidia|dri|accel|infiniband)\S{0,30}: (?i:no such file)[^\n]{0,20}"
              r"|error gathering device information while adding custom device [^\n]{1,80}"
              r"|hostPath type check failed: /dev/[^\n]{1,60}",
              "the device that the container is given is not on the host",
              "load the driver on the host before the container starts (nvidia-smi or modprobe nvidia_uvm makes the"
              " nodes; ls -l /dev/nvidia* /dev/dri /dev/kfd), and correct the container's list",
              "Proxmox LXC, dev entries; LXD and Incus documentation, type gpu"),
    FaultLine(r"SPANK plugin \"pyxis\" option \"[\w-]{1,40}\" not found"
              r"|unrecognized option '--container-image[^\n]{0,40}",
              "Slurm's container plugin (pyxis) is not loaded on a host",
              "spank_pyxis.so of one version and its line in plugstack.conf on the submitting and all computing hosts,"
              " then restart slurmd",
              "NVIDIA/pyxis README, Installation; its issue 84"),
    FaultLine(r"cannot create directory '[^'\n]{0,80}enroot[^'\n]{0,80}': [^\n]{1,40}"
              r"|pyxis: couldn't mkdir [^\n]{1,100}|enroot-\w{1,12}: failed to create user runtime path[^\n]{0,60}",
              "the folders in which enroot and pyxis keep containers cannot be made by the user",
              "ENROOT_RUNTIME_PATH, ENROOT_CACHE_PATH and ENROOT_DATA_PATH in enroot.conf with $(id -u) in them, made"
              " by"
              " Slurm's prolog or in a folder with mode 1777; pyxis: runtime_path in plugstack.conf",
              "NVIDIA/enroot doc/configuration.md; NVIDIA/pyxis issues 4, 12 and 123"),
    FaultLine(r"enroot-switchroot: failed to execute: [^\n]{1,80}",
              "the program or shell that is to start is not in the container's image",
              "import the image anew (enroot import; a full disk or another architecture leaves parts out), start it by"
              " enroot start on the host, or --no-container-entrypoint",
              "NVIDIA/enroot bin/enroot-switchroot.c; NVIDIA/pyxis issue 61"),
    FaultLine(r"Not enough space left in [^\n]{1,80}|enroot-\w{1,16}: [^\n]{1,80}No space left on device"
              r"|(?:failed to extract layer|(?:write|mkdir) /var/lib/(?:docker"
              r"|container)) ?\S[^\n]{1,300}no space left on"
              r" device"
              r"|While making image from oci registry: [^\n]{1,300}no space left on device",
              "there is no space for the container's image where it is unpacked",
              "df -h of that folder (often /run, /tmp or a home directory): ENROOT_CACHE_PATH, ENROOT_DATA_PATH and"
              " ENROOT_TEMP_PATH, APPTAINER_CACHEDIR and APPTAINER_TMPDIR, containerd's root; remove old images",
              "NVIDIA/enroot src/docker.sh; apptainer documentation, Build environment"),
    FaultLine(r"\bURL https?://\S{1,200} returned error code: \d{3}[^\n]{0,40}",
              "the registry did not give the container's image",
              "401, 403: credentials for it (~/.config/enroot/.credentials) and its agreement; 404: the name, written"
              " with # after the registry (nvcr.io#nvidia/pytorch:TAG); 429: its limit of downloads",
              "NVIDIA/enroot src/docker.sh"),
    FaultLine(r"enroot-\w{1,12}: failed to create user namespace[^\n]{0,60}|cannot clone: Operation not permitted"
              r"|[Ff]ailed to create user namespace[^\n]{0,60}",
              "the host does not let users make containers (user namespaces)",
              "sysctl user.max_user_namespaces above 0, and on Ubuntu 23.10 or later"
              " kernel.apparmor_restrict_unprivileged_userns=0 or a profile for the runtime",
              "NVIDIA/enroot doc/requirements.md; user_namespaces(7)"),
    # Kubernetes
    FaultLine(r"maximum request size for shared resources is 1[^\n]{0,20}",
              "the pod asks for several replicas of a shared GPU: they give no more of it than one",
              "ask for 1 (time slices and MPS share a GPU's time; memory is not added up), or"
              " failRequestsGreaterThanOne: false in the plugin's configuration",
              "NVIDIA/k8s-device-plugin README, With CUDA Time-Slicing; internal/rm/rm.go"),
    FaultLine(r"error visiting device[^\n]{0,200}: Insufficient Permissions|MIG[^\n]{0,100}: Insufficient Permissions"
              r"|cannot set MIG_(?:CONFIG|MONITOR)_DEVICES in non privileged container",
              "with MIG the container may not read the whole GPU: it lacks the right to",
              "NVIDIA_MIG_MONITOR_DEVICES=all and a privileged container (CAP_SYS_ADMIN) for plugin, exporter or"
              " manager; other containers must not set it",
              "NVIDIA/k8s-device-plugin issues 229 and 399; nvidia-container-toolkit, hook_config.go"),
    FaultLine(r"migEnabled=true was not configured correctly[^\n]{0,120}"
              r"|No MIG devices (?:associated with|found on|present on)[^\n]{0,80}"
              r"|device \d{1,3} has (?:an invalid MIG configuration|no MIG devices configured)",
              "MIG is on, and a GPU has no instance: the device plugin has nothing to give",
              "create GPU and compute instances (nvidia-smi mig -cgi PROFILE -C, or nvidia-mig-parted apply), or switch"
              " MIG off (nvidia-smi -mig 0); then restart the plugin",
              "NVIDIA/k8s-device-plugin internal/rm/device_map.go, old mig-strategy.go; its issue 253"),
    FaultLine(r"[Aa]ll devices on the node must be configured with the same migEnabled value"
              r"|[Mm]ore than one MIG device type present on node",
              "the strategy single of the device plugin needs all GPUs of the node cut alike, and they are not",
              "migStrategy mixed for the plugin (resources nvidia.com/mig-…), or one profile on all GPUs (nvidia.com/"
              "mig.config=all-…)",
              "NVIDIA/k8s-device-plugin internal/rm/device_map.go; its issue 397"),
    FaultLine(r"Could not register device plugin: [^\n]{1,80}|unable (?:to )?(?:connect|register) (?:to|with)"
              r" Kubelet[^\n]{0,80}|failed to be registered at Kubelet: [^\n]{1,80}",
              "the device plugin could not register with the kubelet, so the node offers no device",
              "its pod must have the kubelet's own folder (/var/lib/kubelet/device-plugins; k0s and microk8s have"
              " another) and a version that this kubelet knows; restart the kubelet, then the plugin",
              "Kubernetes documentation, Device Plugins; hustcat/k8s-rdma-device-plugin issue 10"),
    FaultLine(r"LoadConf\(\): VF pci addr is required",
              "the pod was given no virtual function: the network's definition and the pod do not name its resource",
              "annotation k8s.v1.cni.cncf.io/resourceName in the NetworkAttachmentDefinition, the same resource in the"
              " pod's limits; kubectl describe node must list it above 0",
              "k8snetworkplumbingwg/sriov-cni pkg/config; sriov-network-device-plugin issues 258 and 490"),
    FaultLine(r"lstat /sys/bus/pci/devices/[^\n]{4,80}: no such file[^\n]{0,20}",
              "the virtual function that the pod was given is not on the host any more, or with another driver",
              "delete the pod, so that it gets another one; restart the device plugin after each change of sriov_numvfs"
              " or of a driver, so that it lists the functions anew",
              "k8snetworkplumbingwg/sriov-cni pkg/utils; sriov-network-device-plugin issue 693"),
    FaultLine(r"excluding interface \S{1,20}: {1,3}default route found[^\n]{0,60}"
              r"(?=[\s\S]{0,20000}?no devices in device pool)",
              "the plugin of network devices leaves functions out that carry a default route of the host",
              "take the addresses from the virtual functions (NetworkManager and DHCP must leave them alone), restart"
              " the plugin; or bind them to vfio-pci",
              "k8snetworkplumbingwg/sriov-network-device-plugin pkg/netdevice; its issue 386"),
    FaultLine(r"exceeded quota: [^\n]{1,160}",
              "the namespace's quota does not allow more of it",
              "kubectl describe quota -n NAMESPACE: end what is left there, or have requests.nvidia.com/gpu raised",
              "Kubernetes documentation, Resource Quotas"),
    FaultLine(r"The node was low on resource: [\w-]{4,24}",
              "the node ran out of this resource and ended the pod",
              "kubectl describe node (conditions, Allocated): requests and limits of the pods, emptyDir volumes with"
              " Medium Memory count as memory; for ephemeral-storage images and logs",
              "Kubernetes documentation, Node-pressure Eviction"),
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
    FaultLine(r"Could not resolve Linux kernel version|Unable to find a match: [^\n]{1,120}"
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
    FaultLine(r"current node not ready in ComputeDomain|NodePrepareResources: rpc error: [^\n]{1,120}"
              r"|GPU \"[0-9A-Fa-f:.]{7,16}\" is bound to \"[\w-]{1,24}\" driver, expected[^\n]{0,40}"
              r"|IMEX daemon (?:not ready|check failed): [^\n]{1,80}|is nvidia-imex installed on this node[^\n]{0,4}",
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
    FaultLine(r"Detected \d{1,6} oom[-_]kill event[^\n]{0,60}|\btasks? [\d,-]{1,40}: Out Of Memory"
              r"|exceeded (?:job |virtual )?memory limit \(\d[^\n]{0,60}|TERM_MEMLIMIT[^\n]{0,60}"
              r"|job killed: \w{0,2}mem [^\n]{1,60} exceeded limit [^\n]{1,30}|container init was OOM-killed[^\n]{0,40}"
              r"|Workers \(tasks / actors\) killed due to memory pressure \(OOM\)",
              "a process was killed: the memory of its job ran out",
              "ask for more (--mem, --mem-per-cpu; LSF -M, PBS -l mem), start fewer ranks or loader processes a host;"
              " errors of the network on other hosts follow from it",
              "Slurm, src/plugins/task/cgroup and src/srun/launch.c; LSF and PBS documentation, memory limits"),
    FaultLine(r"can't stat gres\.conf file [^\n]{1,60}"
              r"|Waiting for gres\.conf file /dev/[^\n]{1,40}(?![\s\S]{0,8000}?slurmd version \S{1,20} started)",
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
    FaultLine(r"Step requested GRES but job doesn't have GRES|Invalid generic resource \(gres\) specification"
              r"|Invalid Trackable RESource \(TRES\) specification",
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
    FaultLine(r"has low (?:real_memory size|socket\*core\*thread count|cpu count)[^\n]{0,40}|Low (?:RealMemory"
              r"|socket\*core\*thread count|CPUs)\b[^\n]{0,80}"
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
    FaultLine(r"Parsing error at unrecognized key: [^\n]{1,40}|fatal: Unable to process configuration file"
              r"|Invalid user for SlurmUser [^\n]{1,40}",
              "Slurm's configuration has a key or a user that this host does not know",
              "the line before names it: keys of cgroup.conf and gres.conf do not belong into slurm.conf, newer ones"
              " need a"
              " newer Slurm; SlurmUser must exist with one number on all hosts (id slurm)",
              "Slurm, slurm.conf(5), src/common/parse_config.c"),
    FaultLine(r"Hybrid mode is not supported\. Mounted cgroups are[^\n]{0,40}|systemd scope for slurmstepd could not be"
              r" set|cannot create (?:jobacct_gather|task) context[^\n]{0,40}"
              r"|cgroup namespace '\w{2,12}' not mounted[^\n]{0,20}|unable to create \w{2,12} cgroup namespace"
              r"|BPF load error \([^)\n]{1,60}\)|Could not apply device constrain to \w{3,4}"
              r"|Couldn't (?:load|find the) specified plugin name for (?:cgroup/v\d|proctrack/cgroup)[^\n]{0,40}"
              r"|Unable to initialize cgroup"
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
    FaultLine(r"error: execve\(\): (?!(?:nvidia|rocm|amd|hl)-smi)[^\n]{1,160}: No such file or directory"
              r"|unable to find the specified executable file|(?:as it could not|execute an executable:)\s{1,20}"
              r"(?:find an executable|access\s{1,20}or execute|change to the\s{1,20}specified working directory)"
              r"|execvp error on file [^\n]{1,80}",
              "the job's program or script is not on the host that was to run it",
              "see that path there: a file system that is not mounted, SlurmdSpoolDir or /tmp that was emptied, or a"
              " program that only the submitting host has",
              "execve(2): ENOENT; Slurm, slurm.conf(5), SlurmdSpoolDir"),
    FaultLine(r"DUE TO NODE FAILURE|srun: error: Node failure on [^\n]{1,60}",
              "a host of the job failed or was not reached any more",
              "look at that host: does it run, dmesg and the BMC's log of that time, slurmd's log and its network",
              "Slurm, src/slurmctld/job_mgr.c"),
    FaultLine(r"Gres=\(null\)(?=[\s\S]{0,8000}?\b(?:gres|gpus?)[=:-][\s\S]{0,400}?(?:Requested node configuration"
              r"|Invalid"
              r" generic resource))",
              "Slurm knows no GPU of the host",
              "slurm.conf: GresTypes=gpu and Gres=gpu:TYPE:N at the host's NodeName (a dynamic one: slurmd --conf"
              " \"Gres=gpu:N\"), gres.conf there with File= or AutoDetect; then restart slurmctld and slurmd",
              "Slurm, gres.html; SlinkyProject/slurm-operator issue 101"),
    FaultLine(r"Munge encode failed: Failed to access [^\n]{1,120}(?=[\s\S]{0,20000}?(?:Zero Bytes"
              r"|[Aa]uthentication error|Unable"
              r" to register))",
              "munge does not run on this host, so Slurm's daemons do not trust it",
              "systemctl enable --now munge, before slurmd; the same munge.key as the others, owned by munge with mode"
              " 400",
              "MUNGE installation guide; Azure/az-hop issue 656"),
    FaultLine(r"SLURM_MEM_PER_CPU, SLURM_MEM_PER_GPU, and SLURM_MEM_PER_NODE are mutually exclusive",
              "a job was started within another one, whose variables contradict its own options",
              "unset SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_MEM_PER_NODE before srun or sbatch there, or submit from"
              " a"
              " login host",
              "Slurm, srun(1) --mem; mehta-lab/recOrder issue 482"),
    FaultLine(r"Memory (?:specification can not be satisfied|required by task is not available)"
              r"|Requested node configuration is not available|More processors requested than permitted"
              r"|Node count specification invalid",
              "the job or step asks for more than a host of the partition, or its job, has",
              "sinfo -o '%P %D %c %m %G' shows what hosts have: CPUs, memory and GPUs that one of them has together; an"
              " srun within a job no more than the job has (--overlap, --mem=0)",
              "Slurm, src/common/slurm_errno.c"),
    FaultLine(r"Reason=(?:Prolog|Epilog)[ /]\w{4,16}(?: failure)?"
              r"|(?:Prolog|Epilog) failure on (?:nodes?|host) [^\n]{1,60}"
              r"|Reason=batch job complete failure",
              "a script that Slurm runs before or after each job failed on the host, which is taken out of use",
              "slurmd's log there has its words; run it by hand as root; then scontrol update nodename=NAME"
              " state=resume",
              "Slurm, prolog_epilog.html; src/slurmctld"),
    FaultLine(r"Incompatible versions of client and server code|Incompatible RPC version[^\n]{0,60}",
              "Slurm's commands and daemons are of versions too far apart",
              "slurmdbd the newest, then slurmctld, slurmd and commands within two (25.05: three) releases; also in"
              " images",
              "Slurm, upgrades.html"),
    FaultLine(r"Unable to contact slurm controller \([^)\n]{1,40}\)|Reason=(?:Not responding"
              r"|Node unexpectedly rebooted)"
              r"|fetch_config: DNS SRV lookup failed",
              "Slurm's controller and the host do not reach each other, or one of them was down",
              "scontrol ping; systemctl status slurmctld and slurmd; ports 6817 and 6818 open both ways, the same"
              " slurm.conf and names; a host that rebooted: its log, then state=resume",
              "Slurm, troubleshoot.html"),
    FaultLine(r"CANCELLED AT \S{1,30} DUE TO TIME LIMIT|TERM_RUNLIMIT[^\n]{0,60}|job killed: walltime [^\n]{1,60}",
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
              r" GPUs[^\n]{0,20}|[Ww]orld size \(\d{1,5}\) is larger than the number of available GPUs"
              r"|number of required \w{2,8} exceeds the total number of available[^\n]{0,60}"
              r"|No available node types can fulfill resource request(?![^\n]{0,80}'node:)[^\n]{0,80}"
              r"|Ray does not allocate any GPUs on the driver node|Current node has no GPU available[^\n]{0,60}",
              "the scheduler gave the job no GPU, or fewer than it asks for",
              "ask for them (Slurm --gpus or --gres=gpu:N, Kubernetes limits, Ray num_gpus); ray status, scontrol show"
              " node and nvidia-smi on the hosts show how many there are",
              "Slurm, gres.html; Ray documentation, Accelerator support; vllm ray_utils.py"),
    FaultLine(r"Free memory on device[^\n]{0,40}\([\d.]{1,9}/[\d.]{1,9} GiB\) on startup is less than[^\n]{0,60}"
              r"|No available memory for the cache blocks"
              r"|Not enough memory\. Please try to increase --mem-fraction-static|The memory capacity is unbalanced\."
              r"[^\n]{0,80}",
              "the GPU's memory does not hold the model and its cache: something else has a part of it",
              "nvidia-smi shows who holds it: end what is left of an earlier run, and start one server a GPU; else more"
              " GPUs (tensor parallel) or another share (gpu_memory_utilization, mem-fraction-static)",
              "vllm v1/worker/gpu_worker.py; sglang srt/model_executor"),
    FaultLine(r"HSA Agents\s{1,40}==========\s{1,40}\*\*\* Done \*\*\*",
              "the ROCm runtime lists no agent at all, not even the CPU: it may not open all GPUs that the driver"
              " shows",
              "before ROCm 4.3 a container needs all of /dev/dri (then choose by ROCR_VISIBLE_DEVICES), or update; give"
              " it /dev/kfd and the groups of both (--group-add video, render), --security-opt seccomp=unconfined",
              "ROCm/ROCm issue 1482; rocminfo.cc"),
    FaultLine(r"Horovod was not built with \w{3,8}|(?:MPI|Gloo) support has not been built|has not been built with MPI"
              r" support|Neither MPI nor Gloo support has been built",
              "Horovod was built without the controller that it is to use",
              "horovodrun --check-build lists them: take the other (--gloo, --mpi), or build it with HOROVOD_WITH_MPI=1"
              " (mpicxx in PATH) or HOROVOD_WITH_GLOO=1 (CMake)",
              "horovod/runner/launch.py and common/basics.py"),
    FaultLine(r"Unable to find a set of common task-to-task communication interfaces[^\n]{0,80}"
              r"|Unable to connect to any of the addresses[^\n]{0,80}|No common network interfaces? (?:were )?found",
              "Horovod's processes found no interface over which all hosts reach each other",
              "horovodrun --network-interfaces NAME, that of the hosts' common network; open the firewall between them",
              "horovod/runner/driver/driver_service.py"),
    FaultLine(r"(?:[Cc]onnect to |dest_addr=|remote=\[)169\.254\.\d{1,3}\.\d{1,3}\b[^\n]{0,60}"
              r"(?:refused|No route|[Tt]imed out|unreachable|connection abort)",
              "the library took an interface with a link-local address (169.254), as the BMC's USB port has one, which"
              " leads to no other host",
              "NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME=the interface that reaches the other hosts, the same on all;"
              " take that address off an interface that does not need it",
              "NCCL user guide, Networking issues; RFC 3927; sgl-project/sglang issue 6017"),
    FaultLine(r"Assertion failed: mpiSize == tp \* pp[^\n]{0,40}|mpiSize == tp \* pp \* cp[^\n]{0,40}",
              "the engine was built for another number of processes than are started",
              "mpirun -n as many as tensor times pipeline parallel, by one MPI (mpirun of the image, srun --mpi=pmix),"
              " so"
              " that each rank sees the others",
              "NVIDIA/TensorRT-LLM cpp/tensorrt_llm/runtime/worldConfig.cpp"),
    FaultLine(r"kubexec\.sh: (?:line )?\d{1,4}: [^\n]{1,80}not found",
              "mpirun starts its daemons from worker to worker, and the workers' pods lack kubectl",
              "mpirun --mca plm_rsh_no_tree_spawn 1 (the launcher then starts all), or the operator's version 2, which"
              " uses"
              " ssh",
              "kubeflow/mpi-operator issue 501"),
    FaultLine(r"\b(?:orted|prted): Error: unknown option[^\n]{0,40}"
              r"|Error: unknown option \"--(?:tree-spawn|hnp-topo-sig)",
              "the hosts have different releases of Open MPI: one starts a daemon that does not know its options",
              "the same Open MPI, first in PATH and LD_LIBRARY_PATH of a login without terminal on all hosts (ssh HOST"
              " orted --version), or mpirun --prefix DIR; in containers the same image",
              "Open MPI documentation, Launching with SSH; orte/tools/orted"),
    FaultLine(r"unable to create shared memory BTL coordinating structure"
              r"|error occurred while determining whether or not"
              r" \S{1,200} could be created",
              "Open MPI cannot make its files of shared memory in its session folder",
              "df -h /tmp and the owner of /tmp/ompi.*: remove what another user or run left, or set TMPDIR"
              " (orte_tmpdir_base,"
              " Open MPI 5: prte_tmpdir_base) to a local folder with space",
              "open-mpi/ompi opal/mca/shmem/mmap; NVIDIA/TensorRT-LLM issue 2405"),
    FaultLine(r"bind(?: to)? that would (?:result in binding more\s{1,20}processes than cpus on a resource"
              r"|require binding\s{1,20}processes to more cpus than are available)",
              "mpirun is to bind more processes than the job has CPUs",
              "ask the scheduler for a CPU for each process (--cpus-per-task, a container's cpuset), or mpirun"
              " --bind-to"
              " none; --use-hwthread-cpus counts threads",
              "openpmix/prrte src/mca/rmaps/base/help-prte-rmaps-base.txt"),
    FaultLine(r"failed to alloc \d{3,20} bytes on host: CUDA_ERROR_OUT_OF_MEMORY[^\n]{0,20}"
              r"|cudaHostAlloc failed: out of memory",
              "the host's memory for the GPU (pinned) could not be had: it is not the GPU's memory that is full",
              "free memory of the host and the job's or container's limit (docker --memory, limits.memory, --mem),"
              " ulimit -l; let the program pin less",
              "CUDA runtime API, cudaHostAlloc; tensorflow stream_executor/cuda/cuda_driver.cc"),
    FaultLine(r"world[ _]size \(\d{1,6}\) is not (?:divisible by|equal to) tensor_model_parallel_size[^\n]{0,80}"
              r"|Total number of attention heads \(\d{1,5}\) must be divisible by tensor parallel size[^\n]{0,10}",
              "the model cannot be cut over this number of GPUs",
              "a tensor parallel size that divides its heads (mostly 1, 2, 4, 8), the rest by pipeline parallel",
              "vllm config.py, verify_with_parallel_config"),
    FaultLine(r"CUDA Hook Library: Failed to find symbol[^\n]{0,100}",
              "Spectrum MPI's hooks for GPUs were loaded into a program without MPI, or before its MPI_Init",
              "jsrun --smpiargs=off (or \"-disable_gpu_hooks\") for it; a program with MPI: MPI_Init before the first"
              " call of CUDA",
              "olcf/olcf-user-docs issue 78, CUDA hook error when program uses CUDA without first calling MPI_Init()"),
    FaultLine(r"CUDA_HOME does not exist, unable to compile CUDA op"
              r"|CUDA_HOME environment variable is not set[^\n]{0,40}",
              "no CUDA toolkit (nvcc) is there, with which the program builds its extensions",
              "install the toolkit of PyTorch's version (torch.version.cuda) and set CUDA_HOME, take an image with it"
              " (-devel), or a build of the program that has them (DS_BUILD_OPS=1)",
              "deepspeedai/DeepSpeed op_builder/builder.py; PyTorch torch/utils/cpp_extension.py"),
    FaultLine(r"nvshmem_bootstrap_\w{2,12}\.so[.\d]{0,6}: cannot open shared object file|Bootstrap unable to load"
              r" '[^'\n]{1,80}'",
              "NVSHMEM does not find the library by which its processes meet",
              "its lib folder into LD_LIBRARY_PATH on all hosts (mpirun -x), NVSHMEM_BOOTSTRAP=MPI, PMI or UID as the"
              " program is started; for MPI build it for the MPI in use (nvshmem_bootstrap_mpi)",
              "NVSHMEM documentation, NVSHMEM_BOOTSTRAP"),
    FaultLine(r"Ray is trying to start at [^\n]{1,60}but is already running[^\n]{0,60}"
              r"|Failed to start GCS\b[^\n]{0,60}",
              "Ray's head could not start: another one runs, or its port is taken",
              "ray stop --force on the host, then start it anew; or ray start --port with a free one (ss -ltnp)",
              "ray-project/ray python/ray/_private/node.py"),
    FaultLine(r"[Vv]ersion mismatch: The cluster was started with:",
              "hosts of the Ray cluster have different versions of Ray or Python",
              "one image, or one environment with the same versions of both, on all hosts",
              "ray-project/ray python/ray/_private/utils.py"),
    FaultLine(r"pthread_create failed[^\n]{0,80}|can't start new thread|fork: retry: [^\n]{1,60}",
              "the limit of processes and threads is reached",
              "raise it where the job starts (ulimit -u, TasksMax of its service, docker run --pids-limit=-1; in"
              " Kubernetes the kubelet's podPidsLimit), or start fewer threads (OMP_NUM_THREADS)",
              "pthread_create(3), fork(2): EAGAIN"),
    FaultLine(r"Getting local topologies timed out[^\n]{0,100}",
              "a process of the JAX job did not list its GPUs in time: the others wait for it",
              "the task that the line names: its log first (a GPU that hangs, another jaxlib, fewer processes than"
              " num_processes)",
              "openxla/xla xla/pjrt/distributed/topology_util.cc"),
    FaultLine(r"has been marked dead because the detector has missed too many heartbeats[^\n]{0,40}",
              "Ray lost a host: it did not answer in time",
              "look at that host: memory that ran out (dmesg, ray memory), its network, or a reboot; raylet.out there",
              "Ray documentation, Node failures; src/ray/gcs/gcs_server"),
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
    FaultLine(r"could not insert '?(?:nvidia|amdgpu|habanalabs|mlx5)\w{0,16}'?: Operation not permitted",
              "the kernel refuses the module: it is locked down (Secure Boot), or the container's rights forbid it",
              "sign the module with a key that the kernel trusts (mokutil --import) or switch Secure Boot and lockdown"
              " off; dmesg says which; a container must be privileged, better the host loads it",
              "kernel_lockdown(7); init_module(2): EPERM; bottlerocket issue 4218"),
    FaultLine(r"could not insert '?(?:nvidia|amdgpu|habanalabs|mlx5)\w{0,16}'?: Permission denied"
              r"|avc: {1,2}denied {1,2}\{ module_load \}[^\n]{0,160}",
              "SELinux forbids to load the module: EACCES, and not the EPERM of a locked kernel",
              "ausearch -m avc shows it; restorecon -R the module's folder, or give its file the type"
              " modules_object_t; a container that loads it must be privileged with the type spc_t; to see it pass"
              " once: setenforce 0",
              "Linux security/selinux/hooks.c, selinux_kernel_module_from_file; NVIDIA/gpu-operator issue 553"),
    FaultLine(r"\b(?:inf[12]|trn[12]n?)\.\w{1,12}\b(?=[\s\S]{0,8000}?(?:driver (?:is )?not loaded|could not load NVML"
              r"|couldn't communicate with the NVIDIA|[Nn]o devices found))",
              "this kind of instance has no GPU of NVIDIA: its accelerators are AWS's own (Inferentia, Trainium)",
              "an instance of a kind with GPUs (g, p); or keep NVIDIA's pods off these nodes and use the Neuron device"
              " plugin",
              "AWS, EC2 instance types: accelerated computing; awslabs/amazon-eks-ami issue 1470"),
    FaultLine(r"device cold plug failed[^\n]{0,160}|PodResources API Get method disabled",
              "Kata may not ask the kubelet which GPU its pod was given",
              "kubelet's feature gate KubeletPodResourcesGet: true on this node, then restart the kubelet",
              "NVIDIA cloud-native-docs, Confidential Containers: Troubleshooting"),
    FaultLine(r"chmod: cannot access '[^'\n]{0,200}/dev/(?:dri|nvidia-caps)'",
              "the container toolkit's hook looks for device files that this GPU does not have",
              "container toolkit 1.12.1 or later; or leave graphics and display out of NVIDIA_DRIVER_CAPABILITIES",
              "NVIDIA container toolkit, Release notes: 1.12.0, Known issues"),
    FaultLine(r"remote hostengine at \S{1,80}\s{1,4}[^\n]{0,80}Encountered a failure",
              "dcgm-exporter does not reach DCGM's pod",
              "a network policy or firewall between the two: let it pass TCP port 5555; or switch DCGM's own pod off",
              "NVIDIA GPU Operator, Troubleshooting: DCGM Exporter"),
    FaultLine(r"cc\.mode\.state\"?[:=] {0,4}\"?failed",
              "the GPU's confidential mode could not be changed",
              "end what uses the GPU and set the label anew; virtualization and ACS on in the firmware; the GPU's model"
              " must have the mode",
              "NVIDIA cloud-native-docs, Confidential Containers: Troubleshooting"),
    FaultLine(r"SELinux is preventing [^\n]{0,80}(?:docker|podman|containerd|nvidia|qemu|vfio"
              r"|/dev/(?:kfd|dri))[^\n]{0,60}",
              "SELinux refuses an access",
              "sealert -l with the number of its line says what to change: a label (restorecon), a boolean, or a rule"
              " (audit2allow)",
              "setroubleshoot; NVIDIA container toolkit, Troubleshooting"),
)  # fmt: skip
# What is seen of a fault whose cause another line may say.
CLUSTER_SYMPTOMS: tuple[FaultLine, ...] = (
    FaultLine(r"Incompatible (?:platform|strategy) detected"
              r"|[Ff]ailed to initialize NVML: (?:could not load NVML library"
              r"|ERROR_\w{4,40})|NVML not detected: could not load NVML library"
              r"|Detected non-NVML platform: [^\n]{1,60}(?![\s\S]{0,400}?Detected Tegra platform)"
              r"|did you (?:set the docker default runtime to|configure the NVIDIA Container Toolkit)[^\n]{0,12}",
              "the device plugin does not see the driver: its pod does not run with the runtime that gives GPUs",
              "of a node with GPUs: nvidia-smi there, the container toolkit, and its runtime as the engine's default or"
              " runtimeClassName: nvidia for the plugin; on a node without GPUs it is no fault",
              _PLUGIN),
    FaultLine(r"no devices in device pool, [^\n]{1,100}(?![\s\S]{0,20000}?(?:resource server is created|registered"
              r" successfully))|no Rdma Devices were found for resource[^\n]{0,60}",
              "the plugin of network devices finds none that fits its list, so the node offers none",
              "its selectors (vendors, devices, drivers, pfNames, ifNames, isRdma) against lspci -nnk and rdma link;"
              " make"
              " virtual functions and bind their driver before it starts, then restart it",
              "k8snetworkplumbingwg/sriov-network-device-plugin README; its issue 340; k8s-rdma-shared-dev-plugin"),
    FaultLine(rf"\bCapacity:\s{{1,2}}{_BEFORE_GPUS}[1-9][^\n]{{0,40}}\n{_BEFORE_GPUS}0\"?\s"
              rf"|\ballocatable:\s{{1,2}}{_BEFORE_GPUS}0\"?\s{{1,2}}{_BEFORE_GPUS}[1-9]",
              "the device plugin counts the node's GPUs and gives none: it holds all for unhealthy, or does not run any"
              " more",
              "its log (XIDs, an error of NVML) and nvidia-smi on the node; then start the plugin anew",
              "Kubernetes documentation, Device Plugins; NVIDIA/k8s-device-plugin issue 58"),
    FaultLine(r"device marked unhealthy: [^\n]{1,60}|[Mm]arking (?:it|all devices|device \S{1,50}) as unhealthy",
              "the device plugin took a GPU out: its driver reported a grave event, or did not answer",
              "its XID in the plugin's log and in dmesg says what to do; it stays out until the plugin is started"
              " again",
              "NVIDIA/k8s-device-plugin internal/rm/health.go"),
    FaultLine(r"GPU resources are not discovered by the node|unable to find any allocatable GPU resource",
              "the node offers no GPU: no device plugin has registered one",
              "read the log of its device plugin, then those before it: driver, container toolkit (kubectl describe"
              " node: Allocatable)",
              "NVIDIA/gpu-operator cmd/nvidia-validator; its issue 1190"),
    FaultLine(r"MIG devices found that aren't prepared to any claim",
              "the driver for DRA finds MIG devices that were made by hand: it makes its own",
              "take them away (nvidia-smi mig -dci, then -dgi) and restart its pod; claims then make theirs",
              "NVIDIA/k8s-dra-driver-gpu, device_state.go"),
    FaultLine(r"device \S{1,40} is not enumerated as an mlx5 device(?![\s\S]{0,20000}?\bmlx5_\d)",
              "NVSHMEM leaves out the NICs, for their names do not begin with mlx5",
              "keep the kernel's names (rdma-core's rule 60-rdma-persistent-naming with NAME_KERNEL), then reboot",
              "NVSHMEM, transports ibrc and ibgda; deepseek-ai/DeepEP"),
    FaultLine(r"No suitable GID found on \S{1,40}|Failed to query GID \d{1,3} on \S{1,40}: No data available",
              "no GID of the RoCE port fits: its interface has no address",
              "give the interface an IPv4 address, and name the GID's index (show_gids; MC_GID_INDEX,"
              " NCCL_IB_GID_INDEX)",
              "kvcache-ai/Mooncake rdma_context.cpp"),
    FaultLine(r"NCCL_IB_HCA=[\"']?\^=?[\w:.-]{1,40},\^",
              "NCCL_IB_HCA is written wrongly: ^ stands once, before the whole list",
              "NCCL_IB_HCA=^=mlx5_8,mlx5_14 leaves both out",
              "NCCL user guide, NCCL_IB_HCA; NVIDIA/nccl-tests issue 150"),
    FaultLine(r"nvidia-device-plugin-daemonset {1,40}0 {1,20}0 {1,20}0 [^\n]{0,80}nvidia\.com/gpu\.deploy",
              "no node is one for the device plugin: none has the labels of a GPU",
              "kubectl get nodes --show-labels: feature.node.kubernetes.io/pci-10de.present comes from node feature"
              " discovery, which must run there and see the GPU (lspci); then nvidia.com/gpu.deploy.device-plugin",
              "NVIDIA GPU operator documentation, Troubleshooting"),
    FaultLine(r"amdgpu driver unavailable[^\n]{0,80}|No GPU nodes found via properties",
              "AMD's device plugin sees no driver or no GPU on the node",
              "lsmod and dmesg of the node (amdgpu, kfd), rocminfo there; the plugin needs /sys and /dev; on a node"
              " without"
              " GPUs it is no fault",
              "ROCm/k8s-device-plugin internal/pkg/amdgpu"),
    FaultLine(r"rocpclient\.go:\d{1,4}: exec error ?: ?[^\n]{1,60}",
              "AMD's exporter cannot ask the GPU: its reader crashes or gets no answer",
              "rocm-smi on the host: where it hangs, dmesg (amdgpu) says why, and a reboot mends a driver that was"
              " loaded again",
              "ROCm/gpu-operator issue 227"),
    FaultLine(r"Unable to register worker with raylet[^\n]{0,60}|[Ff]ailed to register worker[^\n]{0,100}[Rr]aylet"
              r"[^\n]{0,40}",
              "Ray's own process on the host (raylet) ended or does not answer",
              "raylet.out and gcs_server.out there (/tmp/ray/session_latest/logs) say why: memory, /dev/shm, open files"
              " (ulimit -n), another Ray version; name the resources (--num-gpus, --num-cpus) where it counts wrong",
              "Ray documentation, Debugging failures; ray issue 45440"),
    FaultLine(r"selected configuration not currently applied",
              "the GPUs' MIG mode or instances are not those that the configuration names",
              "read the lines before it: a GPU in use is not reset (end what uses it, or reboot), a profile can be of"
              " another model; nvidia-smi mig -lgi shows what there is",
              "NVIDIA/mig-parted cmd/nvidia-mig-parted/assert"),
    FaultLine(r"submitted to be reduced, gathered or broadcasted by\s{1,20}subset of ranks[^\n]{0,80}",
              "ranks wait for others that do not come to the same collective",
              "Missing ranks below it (older: those not among the ready ranks) are behind: their log and host first;"
              " else"
              " ranks with other tensors or another number of steps",
              "horovod/common/stall_inspector.cc; its issue 2107"),
    FaultLine(r"\w{2,30}: Unknown symbol \w{2,60} \(err -?\d{1,3}\)",
              "a kernel module needs another one, which is not loaded or of another version",
              "modprobe (not insmod) loads what it needs after depmod -a: of ib_… names ib_core and ib_uverbs; install"
              " modules that belong together from one release, and one that knows this kernel",
              "Linux kernel/module/main.c, resolve_symbol_wait; containers/ai-lab-recipes issue 483"),
    FaultLine(r"exec: \\?\"?(?:nvidia|rocm|amd|hl)-smi\\?\"?: (?:executable file )?not found"
              r"|non existent bind point \(file\) in container: '[^'\n]{0,40}nvidia-smi'"
              r"|execve\(\): (?:nvidia|rocm|amd|hl)-smi: No such file[^\n]{0,20}"
              r"|Skipping mount [^\n]{0,80}nvidia-smi[^\n]{0,80}doesn't exist in container",
              "the container has not the GPU driver's tools: its runtime did not give it the GPU",
              "start it with the GPUs (docker --gpus all; Kubernetes limits and runtimeClassName: nvidia) and"
              " NVIDIA_DRIVER_CAPABILITIES with utility; AMD and Gaudi: an image that has them",
              "NVIDIA container toolkit, driver capabilities; NVIDIA/k8s-device-plugin issue 346"),
    FaultLine(r"(?<!non-NVML platform: could not load NVML library: )lib(?:cuda"
              r"|nvidia-ml)\.so\.1: cannot open shared object"
              r" file",
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
    FaultLine(r"openibd restart\"? failed[^\n]{0,40}|Unloading \w{2,20} {4,60}\[FAILED\]"
              r"|Failed loading kernel module mlx5_\w{2,8}|Loading HCA driver and Access Layer:[^\n]{0,12}FAILED",
              "the RDMA stack's own driver could not be loaded",
              "dmesg says why: modules of two stacks (distribution and DOCA) are mixed, or something uses the NIC:"
              " unload"
              " it (storage modules, ib_*), or reboot",
              "Mellanox/doca-driver-build issue 52"),
    FaultLine(r"exitcode {0,4}: -9\b|Signal 9 \(SIGKILL\) received by PID"
              r"|died with <Signals\.SIGKILL: 9>|exited on\s{1,20}signal 9 \(Killed\)|exits with return code = -9\b"
              r"|terminated with -9\b|signaled to shutdown with signal 9|KILLED BY SIGNAL: 9 \("
              r"|EXIT STRING: Killed \(signal 9\)"
              r"|DataLoader worker \(pid \d{1,9}\) is killed by signal: Killed",
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
              r"|permission denied)|permission denied while trying to connect to the Docker daemon socket"
              r"|Cannot connect to the Docker daemon at [^\n]{1,60}",
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
    FaultLine(r"error: tasks? [\d,-]{1,40} launch failed: [^\n]{1,80}"
              r"|Task launch for [^\n]{1,60} failed on node [^\n]{1,120}"
              r"|error: Unable to (?:create step for job \d{1,12}"
              r"|allocate resources): [^\n]{1,80}|error: Batch job submission failed: [^\n]{1,80}",
              "Slurm refused the job, or could not start its step",
              "its words say why; slurmd's log of the host, slurmctld's, and scontrol show job",
              "Slurm, src/common/slurm_errno.c"),
    FaultLine(r"FATAL ERROR :: MODULE:\w{2,16} [^\n]{1,120}|RuntimeError: Collective call returned error",
              "Gaudi's bridge to PyTorch, or its collectives, ended with an error",
              "the lines before it and $HABANA_LOGS (hcl.log, synapse_runtime.log) of each rank; dmesg (habanalabs),"
              " and"
              " hl-smi -Q or manage_network_ifs.sh --status for the ports",
              "docs.habana.ai, Runtime Environment Variables and Troubleshooting"),
    FaultLine(r"RuntimeError: Unable to initialize backend '(?:cuda|rocm)': [^\n]{1,160}",
              "JAX could not use the GPUs",
              "its words say why: driver, a jaxlib with the plugin of the GPU (pip list), devices in the container",
              "jax-ml/jax jax/_src/xla_bridge.py"),
    FaultLine(r"An error occurred in MPI_\w{3,30}|Fatal error in P?MPI_\w{3,30}[^\n]{0,80}",
              "a call of MPI failed",
              "the lines around it say why; the first rank that ended, by time, has the cause",
              "open-mpi/ompi ompi/errhandler; pmodels/mpich"),
    FaultLine(r"Engine core (?:initialization failed|process \S{1,40} died)[^\n]{0,60}|Scheduler hit an exception"
              r"|scheduler died, please check[^\n]{0,40}|EngineDeadError",
              "the server's engine ended with an error",
              "the first traceback above it, of any rank, has the cause",
              "vllm v1/engine/core_client.py; sglang srt/managers"),
    FaultLine(r"nhc: {1,4}Health check failed: {1,4}[^\n]{1,160}",
              "a health check of the host failed",
              "its words say which; run that test alone, and read dmesg of the host",
              "mej/nhc; Azure/azurehpc-health-checks"),
    FaultLine(r"Caught signal \d{1,2} \([^\n]{1,100}|exitcode {0,4}: -(?:6|11)\b|exits with return code = -(?:6|11)\b"
              r"|KILLED BY SIGNAL: (?:6|11) \([^)\n]{1,30}\)|EXIT STRING: (?:Aborted|Segmentation fault)[^\n]{0,20}"
              r"|Signal (?:6|11) \(SIG\w{3,4}\) received"
              r" by PID \d{1,9}|exited on\s{1,20}signal (?:6|11) \([^)\n]{1,30}\)",
              "a process crashed",
              "the backtrace below it names the library: UCX and MPI of the image must fit the host's driver; signal 7"
              " (bus error) is a file, /dev/shm or huge pages that ran out",
              "openucx/ucx src/ucs/debug/debug.c"),
    FaultLine(r"(?:runc|crun) create failed: [^\n]{1,160}|OCI runtime (?:create|exec) failed: [^\n]{1,160}"
              r"|container creation failed: [^\n]{1,160}",
              "the container could not be made",
              "the last words of the line say why; the same command without the GPU shows whether the GPU is the"
              " reason",
              "opencontainers/runc; apptainer"),
    FaultLine(r"pyxis: couldn't start container|pyxis: \[ERROR\] [^\n]{1,120}",
              "Slurm's container plugin could not start the container",
              "the lines above it say why; enroot start IMAGE on the host shows the same",
              "NVIDIA/pyxis, pyxis_slurmstepd.c"),
)  # fmt: skip
