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
        # kernel
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
