"""Tools of one host: lines of theirs that say a fault, matrices that are cut, and copies that are fast."""

from __future__ import annotations

import pytest

from hosttune.errors import BadInput
from hosttune.model.measured import Measured
from hosttune.rules.causes import diagnose
from hosttune.rules.causes.logs import read_log
from hosttune.rules.causes.stated import lines_of

BUILD = "Available Tensor Operations:\n    [{}] NCCL\n    [ ] DDL\n    [ ] CCL\n    [{}] MPI\n    [X] Gloo"


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
        # Links, heat and supplies; open-gpu-kernel-modules kernel_nvlinkcorelibcallback.c, amdgpu_smu.c, ipmitool
        (
            "[   21.1] NVRM: GPU4 knvlinkCoreSetRxSublinkModeCallback_IMPL: Error setting RX sublink mode!",
            "do not train",
        ),
        ("[   21.1] NVRM: GPU2 knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!", "state"),
        ("[   21.1] NVRM: knvlinkCoreShutdownDeviceLinks_IMPL: Need to shutdown all links for GPU0", ""),
        ("[    9.1] amdgpu 0000:83:00.0: amdgpu: ERROR: GPU HW Critical Temperature Fault(aka CTF) detected!", "hot"),
        ("  1 | 06/14/2023 | 10:01:17 | Power Supply PS2 | Power Supply AC lost | Asserted", "power supply"),
        (
            "  1 | 06/14/2023 | 10:01:17 | Power Supply PS2 | Power Supply AC lost | Asserted\n"
            "  2 | 06/14/2023 | 10:09:40 | Power Supply PS2 | Power Supply AC lost | Deasserted",
            "",
        ),
        # Builds; horovod issues 2077 and 2686; Linux amdkfd/Kconfig
        (f"GPUs: 8\n{BUILD.format(' ', 'X')}", "without NCCL"),
        (f"GPUs: 8\n{BUILD.format('X', 'X')}", ""),
        (BUILD.format(" ", " "), ""),  # of a host without GPUs, for all that it says
        ("# CONFIG_HSA_AMD_P2P is not set\nhipDeviceCanAccessPeer 12/12", "CONFIG_HSA_AMD_P2P"),
        ("rocm-core 6.2\nCONFIG_HSA_AMD_P2P=y\n# CONFIG_PCI_P2PDMA is not set", "CONFIG_HSA_AMD_P2P"),
        ("# CONFIG_PCI_P2PDMA is not set\nGPU 0: NVIDIA H100", ""),
        # Tests: ROCmValidationSuite, intel/xpumanager issue 102; tables of nvidia-smi; PyTorch
        ("[RESULT] [ 12.1] [fp32] [GPU:: 48932] GFLOPS 45123 Target GFLOPS: 90000 met: FALSE", "slower than the test"),
        ("[RESULT] [ 12.1] [fp32] [GPU:: 48932] GFLOPS 95123 Target GFLOPS: 90000 met: TRUE", ""),
        ("|     |   410.609 GBPS.  Unconfigured or invalid threshold. Fail on copy  |", "no threshold"),
        ("|     | Message: Fail to check PCIe bandwidth. Its bandwidth is 6.104    |", "than the diagnostic asks"),
        ("r, remapped_rows.pending, remapped_rows.failure\n1:0, 0, 0, No, No\n2:0, 0, 2, Yes, No", "waits to be"),
        ("r, remapped_rows.pending, remapped_rows.failure\n1:0, 0, 0, No, No\n2:0, 0, 2, No, Yes", "not replace"),
        ("r, remapped_rows.pending, remapped_rows.failure\n1:0, 0, 0, No, No\n2:0, 1, 0, No, No", ""),
        ("| N/A   41C    P8    88W / 400W |  40000MiB / 81920MiB |    100%      Default |", "idle state"),
        ("| N/A   41C    P8    58W / 400W |      4MiB / 81920MiB |      0%      Default |", ""),
        ("    There is an imbalance between your GPUs. You may want to exclude GPU 1 which", "different size"),
        # Clocks of idle times; amd-smi monitor, rocm-smi --showclocks --showuse and --showperflevel
        ("  0  131 W   40 °C   42 °C    61 MHz  100 %   30 %    N/A    0 %    150.2/192.0 GB", "clock of idle times"),
        ("  0  171 W   50 °C   42 °C  2111 MHz  100 %   30 %    N/A    0 %    150.2/192.0 GB", ""),
        ("GPU[0]\t\t: sclk clock level: 1: (59Mhz)\nGPU[0]\t\t: GPU use (%): 100", "clock of idle times"),
        ("GPU[0]\t\t: sclk clock level: 1: (59Mhz)\nGPU[0]\t\t: GPU use (%): 0", ""),
        ("GPU[0]\t\t: Performance Level: low", "performance level"),
        ("GPU[0]\t\t: Performance Level: auto", ""),
        # Benchmarks and CPUs; forms of HPL, STREAM, HPCG, llama.cpp, onnxruntime, numactl, Open MPI and the kernel
        ("!!!! WARNING: RANK: 1 HOST: n33 GPU: 0000:c3:00.0 \tGPU_FP \t[GFLPS] @NB= 128\t 935 ", "HPL's own test"),
        ("      2 tests completed and failed residual checks,", "wrong result"),
        ("      0 tests completed and failed residual checks,", ""),
        ("HPCG result is INVALID.", "its own run invalid"),
        ("[    9.1] amdgpu: XGMI: Set topology failure on device 0, hive 1, ret -22", "XGMI"),
        ("load_tensors: offloaded 20/33 layers to GPU", "runs on the CPU"),
        ("load_tensors: offloaded 33/33 layers to GPU", ""),
        ("Failed to create CUDAExecutionProvider. Require cuDNN 9.* and CUDA 12.*.", "runs on the CPU"),
        ("setting membind: Operation not permitted", "node of its memory"),
        ("libnuma: Warning: node argument 3 is out of range", "may not use"),
        ("Read -1, expected 16384, errno = 1", "CMA"),
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
COMMAND = "$ nvidia-smi --query-gpu=index,{} --format=csv,noheader\n"
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
        (COMMAND.format("utilization.gpu,clocks.sm,clocks.max.sm") + "0, 100 %, 345 MHz, 1980 MHz\n", "its highest"),
        (COMMAND.format("utilization.gpu,clocks.sm,clocks.max.sm") + "0, 100 %, 1395 MHz, 1980 MHz\n", ""),
        (COMMAND.format("utilization.gpu,clocks.sm,clocks.max.sm") + "0, 0 %, 345 MHz, 1980 MHz\n", ""),
        (COMMAND.format("ecc.errors.uncorrected.volatile.total") + "0, 0\n1, 4\n", "uncorrectable errors"),
        (COMMAND.format("ecc.errors.uncorrected.volatile.total") + "0, 0\n1, [N/A]\n", ""),
        ("GPU 0: 712.3 TFLOPS\nGPU 1: 709.8 TFLOPS\nGPU 2: 402.6 TFLOPS\n", "GPU 2 gives far less"),
        ("gpu0: 55.3 GB/s\ngpu1: 55.1 GB/s\ngpu2: 12.6 GB/s\n", "GPU 2 gives far less"),
        ("GPU 0: 712.3 TFLOPS\nGPU 1: 709.8 TFLOPS\nGPU 2: 640.6 TFLOPS\n", ""),
        ("GPU 0 A100: 1320.2 images/sec\nGPU 1 A100: 1318.0 images/sec\nGPU 2 T4: 310.0 images/sec\n", ""),
        ("GPU 0 -> GPU 1: 50.1 GB/s\nGPU 1 -> GPU 2: 50.2 GB/s\nGPU 2 -> GPU 3: 20.2 GB/s\n", ""),
        ("Worker 0: 41.2 tokens/s\nWorker 1: 40.8 tokens/s\nWorker 2: 3.1 tokens/s\n", ""),
        ("Worker 0:0[1004]: T: (250362.2 gflops)\nWorker 1:0[1004]: T: (251917.0 gflops)\n"
         "Worker 2:0[1004]: T: (121917.0 gflops)\n", "Worker 2 gives far less"),
        ("| Warning                   | GPU 0 Unable to create CUDA context: 'CUDA-capable device(s) is/  |\n"
         "|                           | are busy or unavailable'.                      |\n", "take no new process"),
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


@pytest.mark.parametrize(
    "text",
    [
        "Module                  Size  Used by\nnvidia              56721408  121 nvidia_uvm\n",
        "[RESULT] [ 12.1] [fp32] [GPU:: 48932] GFLOPS 95123 Target GFLOPS: 90000 met: TRUE\n",
        "GPU  POWER   GPU_T   MEM_T   GFX_CLK   GFX%\n  0  171 W   50 °C   42 °C  2111 MHz  100 %\n",
        "PROCHOT_VIOLATION_STATUS: NOT ACTIVE\nPPT_VIOLATION_STATUS: NOT ACTIVE\n",  # no labels of ranks
        "Scenario : Offline\nResult is : VALID\n",
    ],
)
def test_outputs_that_say_nothing_are_not_refused(text: str) -> None:
    assert not diagnose(read_log(text, "a.log")[0]).causes


def test_a_gpu_with_a_slow_link_where_all_cpus_are_one_node() -> None:
    """The form of rocm_bandwidth_test 2.6; the name of the one CPU is in each figure."""
    rows = "0 N/A 28.4 28.5 6.9\n1 28.3 1310.1 N/A N/A\n2 28.2 N/A 1309.0 N/A\n3 6.8 N/A N/A 1309.0\n"
    log = (
        "RocmBandwidthTest Version: 2.6.0\nDevice: 0,  AMD EPYC 7763\n"
        + "".join(f"Device: {number},  AMD Instinct MI210,  GPU-{number},  {number}c:0.0\n" for number in (1, 2, 3))
        + f"Unidirectional copy peak bandwidth GB/s\n\nD/D 0 1 2 3\n{rows}"
    )
    assert "pcie-link-degraded" in {cause.cause for cause in diagnose(read_log(log, "a.log")[0]).causes}


def test_links_in_rows_that_only_the_command_names() -> None:
    fields = "pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max"
    link = read_log(COMMAND.format(fields) + "0, 4, 4, 16, 16\n1, 4, 4, 4, 16\n", "a.log")[0].observations.link
    assert link is not None
    assert (link.width, link.max_width) == (4, 16)


def test_pairs_that_rocms_suite_measured() -> None:
    """Forms of ROCmValidationSuite: issue 427, and newer ones with the bus address."""
    old = "[RESULT] [  3095.6] [a] p2p-bandwidth  [1/2] 453 15450  bidirectional: false  7.056 GBps  duration: 0.78 sec"
    new = old.replace("453 15450", "[GPU:: 2 - 453 - 03:00.0] [GPU:: 3 - 15450 - 26:00.0]").replace("false", "true")
    figures = read_log(f"{old}\n{new}\n", "a.log")[0].figures
    assert [(figure.subject, figure.value) for figure in figures] == [
        ("gpu453->gpu15450", 7.056), ("gpu2->gpu3, both directions", 7.056)
    ]  # fmt: skip


def test_consumer_gpus_without_peer_access_are_so() -> None:
    """NVIDIA/nccl issue 1309: the maintainer says that GeForce cards have none; where nothing is slow it is fine."""
    status = " \tGPU0\tGPU1\n GPU0\tX\tGNS\n GPU1\tGNS\tX\n"
    rows = "$ nvidia-smi --query-gpu=index,name,power.draw --format=csv,noheader\n"
    rows += "0, NVIDIA {0}, 17.4 W\n1, NVIDIA {0}, 16.4 W\n"
    for model, named in (("GeForce RTX 5090", []), ("RTX PRO 6000", ["p2p-disabled"])):
        found = diagnose(read_log(status + rows.format(model), "a.log")[0]).causes
        assert [cause.cause for cause in found] == named


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
