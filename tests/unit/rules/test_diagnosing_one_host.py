"""Tools of one host: lines of theirs that say a fault, matrices that are cut, and copies that are fast."""

from __future__ import annotations

import pytest

from hosttune.errors import BadInput
from hosttune.model.measured import Measured
from hosttune.rules.causes import diagnose
from hosttune.rules.causes.logs import read_log
from hosttune.rules.causes.stated import lines_of


@pytest.mark.parametrize(
    ("line", "says"),
    [
        # NVIDIA/DCGM dcgm_errors.h and its tests' plugins
        ("Detected more than 8 PCIe replays per minute for GPU 1 : 96", "repeats packets"),
        ("Detected clocks event due to power violation in GPU 0", "Power limits a GPU's clocks"),
        ("Detected XID 79 for GPU 2", "reported an XID"),
        ("Detected fatal errors on NvSwitch 1 link 12", "switch between the GPUs"),
        ("A corrupt InfoROM has been detected in GPU 3", "InfoROM is damaged"),
        ("Found driver on the denylist: nouveau", "Another driver"),
        # Frameworks
        ("CUDA error 98 at ggml-cuda.cu:6246: invalid device function", "not built for this GPU"),
        ("rocBLAS error: Cannot read /opt/rocm/lib/rocblas/library/TensileLibrary.dat: No such file", "not built for"),
        (
            "GeForce RTX 5070 with CUDA capability sm_120 is not compatible with the current PyTorch installation.",
            "not built",
        ),
        (
            "kernel version 384.90.0 does not match DSO version 384.111.0 -- cannot find working devices",
            "another version",
        ),
        ("cuda_driver.cc:300] failed call to cuInit: CUresult(-1)", "library is not where"),
        ("cuda_driver.cc:300] failed call to cuInit: UNKNOWN ERROR (303)", "library is not where"),
        (
            "dlerror: libcudart.so.11.0: cannot open shared object file: No such file or directory",
            "not found on a host",
        ),
        ("n1:1:1 [0] NCCL INFO NET/Plugin : dlerror=libnccl-net.so: cannot open shared object file", ""),
        ("The NVIDIA driver on your system is too old (found version 10000).", "older than the CUDA runtime"),
        ("cudaSetDevice err: 35", "older than the CUDA runtime"),
        ("cuInit err: 100", "does not see"),
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
            "memory is full",
        ),
        ("CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "memory is full"),
        ("FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::939524096 (896)MB", "memory is full"),
        ("RuntimeError: cuda runtime error (30) : unknown error at THCGeneral.c:66", "could not start"),
        ("NCCL operation ncclGroupEnd() failed: unhandled cuda error.", "no line says why"),
        ("Graph compile failed. synStatus=synStatus 26 [Generic failure].", "graph compiler"),
        ("Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:368 'invalid argument'", "own all-reduce"),
        ("CUDA error: peer access has not been enabled", "without peer access"),
        ("GPUDeviceStub::init zeInit error: 78000001", "Level Zero"),
        ("AssertionError: Torch not compiled with CUDA enabled", "without the GPU"),
        ("p2p.cc:273 NCCL WARN HIP failure 'invalid device pointer'", "cannot be shared"),
        ("init.cc:1501 NCCL WARN Cuda failure 'initialization error'", "could not start"),
        # Fabric Manager
        ("umad_init: can't read ABI version from abi_version (No such file): is ib_umad module loaded?", "ib_umad"),
        ("[ERROR] [tid 1789] failed to initialize the switch manager", "Fabric Manager reports an error"),
        # CUDA's and HIP's errors
        ("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "two versions"),
        ("CUDA_ERROR_MPS_SERVER_NOT_READY", "MPS"),
        ("hipErrorNoBinaryForGpu: Unable to find code object for all current devices!", "not built for this GPU"),
        ("terminate called: hipErrorLaunchFailure", "work of the program"),
        ("terminate called: hipErrorInvalidValue", "runtime or library failed"),
        ("RuntimeError: CUDA error: unknown error", "could not start"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "work of the program"),
        ("[    9.1] UBSAN: load of misaligned address 00000000c0ffee01 for type 'u64'", ""),
        ("ERROR: GPU 00000000:1A:00.0: In use by another client", "cannot be reset"),
        ("nvidia-container-cli: initialization error: cuda error: no cuda-capable device is detected", "not see"),
        ('code=205(cudaErrorMapBufferObjectFailed) "cudaDeviceEnablePeerAccess(gpuid[1], 0)', "mapped for another"),
        ("hwmc GPU2: unable to get fan speed - GPU is lost (15)", "does not answer"),
        ("Job for nvidia-fabricmanager.service failed because the control process exited", "did not start"),
        ('adding custom device "/dev/kfd": no such file or directory', "cannot open"),
        ("Failed to display compute instances: Insufficient Permissions", "MIG"),
        ("stderr: nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.6, please update", "older"),
        ("stderr: nvidia-container-cli: initialization error: driver rpc error: timed out", "container toolkit"),
        ("Failed to initialize NVML: No supported GPUs were found", "no GPU that it can start"),
        ("Failed to initialize NVML: RM has detected an NVML/RM version mismatch.", "another version"),
        ("modprobe: FATAL: Module nvidia not found in directory /lib/modules/6.8.0-40-generic", "has no such module"),
        ("modprobe: ERROR: could not insert 'nvidia': No such device", "no GPU that it can start"),
        ("Error! Bad return status for module build on kernel: 6.8.0-40-generic (x86_64)", "could not be built"),
        ("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.", "library is not where"),
        ("Error: unable to establish a connection to the specified host: localhost", "DCGM's service"),
        ("RuntimeError: synStatus=8 [Device not found] Device acquire failed.", "no accelerator is free"),
        ("synDeviceAcquire(&handle, nullptr) failed with synapse error: 20", "runtime or library failed"),
        ("# Out of bounds values : 50 FAILED", "do not arrive"),
        ("# Out of bounds values : 0 OK", ""),
        ("XID 79(GPU has fallen off the bus) detected on PCI:0000:ae:00", "reported an XID"),
        ("failed to get device remapped rows: ERROR_GPU_IS_LOST", "does not answer"),
        # nvidia-smi -q
        ("            SRAM Threshold Exceeded       : Yes", "more uncorrectable errors than"),
        ("        Channel Repair Pending            : Yes", "waits to be repaired"),
        ("        TPC Repair Pending                : No", ""),
        ("    Compute Mode                          : Prohibited", "Prohibited"),
        ("        Volatile\n            SRAM Uncorrectable SEC-DED    : 1", "uncorrectable errors"),
        ("        Volatile\n            SRAM Uncorrectable SEC-DED    : 0", ""),
        ("            HW Power Brake Slowdown       : Active", "power brake"),
        ("/sys/class/infiniband/mlx5_1/ports/1/hw_counters/out_of_sequence:481920", "lost and sent again"),
        ("ls: cannot access '/sys/kernel/mm/memory_peers/': No such file or directory", "no peer-memory module"),
        # kernel
        (
            "[    9.1] [Hardware Error]: event severity: fatal\n[    9.1] [Hardware Error]:  Error 0, type: fatal\n"
            "[    9.1] [Hardware Error]:   section_type: PCIe error",
            "a grave error of a PCIe link",
        ),
        (
            "[    9.1] amdgpu 0000:83:00.0: amdgpu: [gfxhub] page fault (src_id:0 ring:24 vmid:8 pasid:32775)",
            "does not have mapped",
        ),
        (
            "[    9.1] amdgpu 0000:83:00.0: amdgpu: [gfxhub] page fault (src_id:0 ring:153 vmid:0 pasid:0, for it)",
            "",
        ),
        (
            "[    9.1] NVRM: Xid (PCI:0000:cb:00): 13, pid=1, Graphics SM Warp Exception\n"
            "[    9.2] NVRM: Xid (PCI:0000:cb:00): 109, pid=1, errorString CTX SWITCH TIMEOUT",
            "XID 13",
        ),
        ("[    9.1] xe 0000:3d:00.0: [drm] Tile0: GT0: Timedout job: seqno=1523, lrc_seqno=1523", "hung"),
        (
            "[    9.1] i915 0000:03:00.0: GT0: GuC firmware i915/pvc_guc_70.26.4.bin: fetch failed -ENOENT",
            "firmware file",
        ),
        ("[    9.1] NVRM: GPU0 _kgspRpcRecvPoll: GSP RM heartbeat timed out", "system processor (GSP)"),
        (
            "[    9.1] amdgpu 0000:01:00.0: amdgpu: Fatal error during GPU init\namdgpu: Unable to locate a BIOS ROM",
            "found no ROM",
        ),
        ("[    9.1] NVRM: nvAssertOkFailedNoLog: Reset required [NV_ERR_RESET_REQUIRED]", "must be reset"),
        ("[    9.1] NVRM: GPU 0000:1a:00.0 is already bound to nouveau.", "Another driver"),
        ("[    9.1] NVRM: GPU 0000:1a:00.0 is already bound to vfio-pci.", ""),
        ("[    9.1] nvidia: probe of 0000:1a:00.0 failed with error -1", "could not take its device"),
        (
            "[    9.1] amdgpu 0000:83:00.0: uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
            "memory or",
        ),
        ("[    9.1] [drm:psp_hw_start [amdgpu]] *ERROR* PSP create ring failed!", "could not start it"),
        ("[    9.1] amdgpu 0000:08:00.0: Invalid PCI ROM header signature: expecting 0xaa55, got 0xffff", ""),
        ("[    9.1] vfio-pci 0000:08:00.0: Invalid PCI ROM header signature: expecting 0xaa55, got 0xffff", "ROM"),
        ("[    9.1] gdrdrv:nvidia_p2p_get_pages(va=704fe0000 len=327680 p2p_token=0) failed [ret = -22]", "GDRCopy"),
        ("modprobe: ERROR: could not insert 'nv_peer_mem': Invalid argument", "nvidia_peermem cannot"),
        ("        Kernel driver in use: nouveau", "Another driver"),
        ("        Kernel driver in use: vfio-pci", ""),
        # fine, or of no cause
        ("GPU 0: OK", ""),
        ("Only 18 NvLinks are up", ""),
        ("cudaErrorNotReady", ""),
        ("CUDA_ERROR_NOT_SUPPORTED", ""),
    ],
)
def test_a_line_that_says_a_fault(line: str, says: str) -> None:
    told = [stated.says for stated in lines_of(f"a line\n{line}\n").observations.stated]
    if says:
        assert says.lower() in told[0].lower()
    else:
        assert not told


def test_a_matrix_that_is_cut_is_left_out_and_refused_if_it_is_the_only_one() -> None:
    head = "[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]\nUnidirectional P2P=%s Bandwidth Matrix (GB/s)\n"
    whole = "   D\\D     0      1\n     0 1520.1   22.1\n     1   22.3 1520.0\n"
    title = "Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)\n"
    cut = "   D\\D     0      1\n     0 1520.1   50.2\n     1\n"
    figures = read_log(f"{head % 'Disabled'}{whole}{title}{cut}", "a.log")[0].figures
    assert {figure.value for figure in figures if figure.metric == "p2p"} == {22.1, 22.3}
    with pytest.raises(BadInput, match="a row has 0 cells of 2"):
        read_log(f"{head % 'Enabled'}{cut}", "a.log")


@pytest.mark.parametrize(("copy", "named"), [(390.0, False), (41.0, True)])
def test_gpus_that_copy_faster_than_pcie_have_peer_access(copy: float, named: bool) -> None:
    document = f"""
version: 1
setup: {{gpu: NVIDIA H100 80GB HBM3, gpus_per_host: 8, hosts: 1, nvlinks_per_gpu: 18, nvswitch: true}}
figures:
  - {{metric: all-reduce-busbw, subject: "8 GPUs, 8 GiB", value: 41, unit: GB/s}}
  - {{metric: p2p, subject: "gpu0->gpu1", value: {copy}, unit: GB/s}}
"""
    causes = {cause.cause for cause in diagnose(Measured.from_yaml(document)).causes}
    assert bool(causes & {"p2p-disabled", "fabric-manager-not-running"}) is named


# Forms: dmon, linux-surface issue 501 and vllm issue 14449; lspci, vllm issue 51513; -L and lspci -t, club-3090.
DMON = "# gpu    pwr  gtemp     sm    mem   mclk   pclk\n# Idx      W      C      %      %    MHz    MHz\n{}"
ROW = (
    "|   {0}  NVIDIA RTX A6000     Off | 00000000:{0}1:00.0 Off |      Off |\n"
    "| 30%   48C    P2   {1}W / 300W | 20713MiB / 49140MiB |   100%      Default |\n"
)
QUERY = "utilization.gpu [%], power.draw [W], power.limit [W]\n{}"
LISTED = "".join(f"GPU {number}: NVIDIA H100 80GB HBM3 (UUID: GPU-{number}111-2222)\n" for number in range(2))
BRIDGE = (
    "00:01.1 PCI bridge: AMD Starship/Matisse GPP Bridge\n\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir{} CmpltRedir{}\n"
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (DMON.format("0 650 60 100 52 2619 1755\n1 648 60 99 50 2619 1740\n" * 3), ""),
        (DMON.format("0 382 48 100 0 7600 1935\n1 384 49 100 0 7600 1920\n" * 3), ""),
        (DMON.format("0 12 33 0 0 405 210\n" * 3), ""),
        (ROW.format(0, 283) + ROW.format(1, 84), ""),
        (QUERY.format("100 %, 97.41 W, 350.00 W\n99 %, 97.00 W, 350.00 W\n"), ""),
        (LISTED, ""),
        ("-+-[0000:00]-+-00.0\n |           +-01.1-[01]--+-00.0\n |           |            \\-00.1\n", ""),
        ("\t\tLnkSta:\tSpeed 16GT/s, Width x1 (downgraded)\n# Out of bounds values : 50 FAILED\n", "has lost lanes"),
    ],
)  # fmt: skip
def test_tools_that_watch_and_list(text: str, says: str) -> None:
    told = [stated.says for stated in read_log(text, "a.log")[0].observations.stated]
    assert says in told[0] if says else not told


def test_lines_of_lspci_that_were_filtered() -> None:
    for sign in "+-":
        assert read_log(BRIDGE.format(sign, sign), "a.log")[0].observations.acs_redirect is (sign == "+")


def test_cells_that_touch() -> None:
    rows = "   D\\D     0      1\n     0 2495.31379.33\n     1 379.612502.12\n"
    figures = read_log(f"Unidirectional P2P=Enabled Bandwidth Matrix (GB/s)\n{rows}", "a.log")[0].figures
    assert {figure.subject: figure.value for figure in figures} == {"gpu0->gpu1": 379.33, "gpu1->gpu0": 379.61}


def test_gpus_of_two_cpus_without_access() -> None:
    """rocm_bandwidth_test has N/A for pairs over the link between sockets; the form is that of its version 2.6."""
    head = "Device: 0,  CPU\nDevice: 1,  CPU\nDevice: 2,  MI100,  GPU-1,  23:0.0\nDevice: 3,  MI100,  GPU-2,  a3:0.0\n"
    rows = ("0   0   32  20  52", "1   32  0   52  20", "2   20  52  0   N/A", "3   52  20  N/A 0")
    far = "Inter-Device Numa Distance\n\nD/D   0   1   2   3\n" + "\n".join(rows) + "\n\n"
    rates = "Unidirectional copy peak bandwidth GB/s\n\nD/D 0 1 2 3\n0 N/A N/A 26.1 12.1\n1 N/A N/A 12.0 26.1\n"
    rates += "2 26.0 12.2 900.1 N/A\n3 12.1 26.2 N/A 901.0\n"
    said = read_log(f"RocmBandwidthTest Version: 2.6.0\n{head}{far}{rates}", "a.log")[0].observations.said["p2p"]
    assert "their CPUs differ" in said
