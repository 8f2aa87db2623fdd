# ruff: noqa: N802  (the fake library has the real one's names)
"""Settings of GPUs: on scratch roots of recorded H200 hosts, on a made-up amdgpu tree, and against a fake NVML.

What NVML's functions do is nvml.h's; the ranges are those that the recorded boards told. No GPU is ever set here.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unpacking import unpack

import hosttune
from hosttune.errors import BadInput, CommandFailed, Unreadable, WriteFailed
from hosttune.gpu.nvidia_set import activation, call_nvml
from hosttune.gpu.nvidia_smi import QUERY_FIELDS
from hosttune.gpu.settings import (
    DRIVER_KNOBS,
    GpuComputeMode,
    GpuEcc,
    GpuMigMode,
    GpuPersistence,
    GpuPowerLimit,
    GpuSetting,
)
from hosttune.machine.live import LiveMachine
from hosttune.machine.scratch import Scratch
from hosttune.transaction.kinds import kind_class, kinds, setting_of

EXAMPLES = Path(__file__).parents[3] / "examples"
H200 = Path(__file__).parents[2] / "hosts" / "h200"
SXM = "0000:41:00.0"  # of the example host, which nvidia-smi described
VM = "0000:00:06.0"  # of the captured guest, which NVML described
CLASSES: tuple[type[GpuSetting], ...] = (GpuPersistence, GpuPowerLimit, GpuComputeMode, GpuEcc, GpuMigMode)
# kind, what the recorded boards have, another value
VALUES = (
    (GpuPersistence, True, False),
    (GpuPowerLimit, 700.0, 512.5),
    (GpuComputeMode, "default", "exclusive_process"),
    (GpuEcc, True, False),
    (GpuMigMode, "disabled", "enabled"),
)


class Noted(Scratch):
    """A scratch root that also lists what it was told."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.told: list[tuple[str, str]] = []

    def tell(self, name: str, value: str, live: Callable[[], None]) -> None:
        self.told.append((name, value))
        super().tell(name, value, live)


def scratch(root: Path, address: str, driver: str = "nvidia", **commands: str) -> Noted:
    """A root with one GPU under a driver, and recorded answers (`nvml_json` is the file nvml.json)."""
    device = root / f"sys/bus/pci/devices/{address}"
    device.mkdir(parents=True)
    folder = root / f"sys/bus/pci/drivers/{driver}"
    folder.mkdir(parents=True)
    (device / "driver").symlink_to(f"../../drivers/{driver}")
    answers = root / ".hosttune/commands"
    answers.mkdir(parents=True)
    for name, text in commands.items():
        (answers / {"nvml_json": "nvml.json"}.get(name, name.replace("_", "-"))).write_text(text)
    (root / ".hosttune/scratch").touch()
    return Noted(str(root))


def recorded(archive: Path, name: str) -> str:
    with tarfile.open(archive) as tar:
        member = next(one for one in tar.getmembers() if one.name.endswith(f".hosttune/commands/{name}"))
        data = tar.extractfile(member)
        assert data is not None
        return data.read().decode()


@pytest.fixture(scope="module")
def smi_xml() -> str:
    return recorded(EXAMPLES / "hgx-h200-8.tar.xz", "nvidia-smi-q-x")


@pytest.fixture(scope="module")
def nvml_json() -> str:
    return recorded(H200.parent / "older" / "vm-x1.tar.gz", "nvml.json")


@pytest.fixture(params=["nvidia-smi", "nvml"])
def board(request: pytest.FixtureRequest, tmp_path: Path, smi_xml: str, nvml_json: str) -> tuple[Noted, str]:
    """A scratch root and the GPU's address, for either kind of record."""
    if request.param == "nvml":
        return scratch(tmp_path, VM, nvml_json=nvml_json), VM
    return scratch(tmp_path, SXM, nvidia_smi_q_x=smi_xml), SXM


def altered(nvml_json: str, **facts: Any) -> str:
    document = json.loads(nvml_json)
    document["0"].update(facts)
    return json.dumps(document)


# --- round trips -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cls", "old", "new"), VALUES)
def test_there_and_back(cls: type[GpuSetting], old: Any, new: Any, board: tuple[Noted, str]) -> None:
    system, address = board
    setting = cls.of(address)
    assert (setting.read(system), setting.effective(system)) == (old, old)
    setting.check(new)
    setting.write(system, new)
    assert setting.read(system) == new
    setting.write(system, old)
    assert setting.read(system) == old
    assert [name.rpartition("-")[2] for name, _ in system.told] == [address] * 2


@pytest.mark.parametrize(
    ("cls", "value", "call"),
    [
        (GpuPersistence, False, ("nvmlDeviceSetPersistenceMode", "0")),
        (GpuPowerLimit, 512.5, ("nvmlDeviceSetPowerManagementLimit", "512500")),
        (GpuComputeMode, "exclusive_process", ("nvmlDeviceSetComputeMode", "3")),
        (GpuComputeMode, "exclusive_thread", ("nvmlDeviceSetComputeMode", "1")),  # what it was: undone to it
        (GpuEcc, False, ("nvmlDeviceSetEccMode", "0")),
        (GpuMigMode, "enabled", ("nvmlDeviceSetMigMode", "1")),
    ],
)
def test_each_write_is_one_call_of_nvml(
    cls: type[GpuSetting], value: Any, call: tuple[str, str], board: tuple[Noted, str]
) -> None:
    """Milliwatts, nvmlComputeMode_t and the numbers of modes are nvml.h's; the functions are in the real bindings."""
    system, address = board
    cls.of(address).write(system, value)
    assert system.told == [(f"{call[0]}-{address}", call[1])]
    assert callable(getattr(pynvml, call[0]))


def test_ecc_is_staged_not_done(board: tuple[Noted, str]) -> None:
    system, address = board
    setting = GpuEcc.of(address)
    note = setting.write(system, False)
    assert (setting.read(system), setting.effective(system), setting.scope) == (False, True, "boot")
    assert note is not None
    assert "next" in note


def test_nothing_is_asked_of_the_gpu_where_a_mode_that_may_reset_it_is_there_already(board: tuple[Noted, str]) -> None:
    system, address = board
    GpuEcc.of(address).write(system, True)
    GpuMigMode.of(address).write(system, "disabled")
    assert system.told == []


def test_a_pending_mig_mode_is_never_the_wanted_one(tmp_path: Path, nvml_json: str) -> None:
    system = scratch(tmp_path, VM, nvml_json=altered(nvml_json, nvmlDeviceGetMigMode=[0, 1]))
    setting = GpuMigMode.of(VM)
    pending = setting.read(system)
    assert pending == "disabled (enabled pending)"
    assert not any(setting.agrees(pending, want) for want in ("enabled", "disabled"))
    setting.write(system, "disabled")
    assert setting.read(system) == "disabled"
    setting.write(system, pending)  # taken back: the mode that was pending
    assert system.told[-1] == (f"nvmlDeviceSetMigMode-{VM}", "1")


def test_only_the_named_gpu_changes_and_discovery_sees_it(tmp_path: Path) -> None:
    root = tmp_path / "host"
    unpack(EXAMPLES / "hgx-h200-8.tar.xz", root)
    (root / ".hosttune/scratch").touch()
    system = Scratch(str(root))
    some = (SXM, "0000:18:00.0", "0000:04:00.0")  # the last is the board's console

    def seen() -> dict[tuple[str, str], Any]:
        """Each setting by the host document; what a plan would call current, and what the setting reads, are one."""
        host = hosttune.discover(str(root))
        found = {(cls.kind, gpu.address): cls.of_gpu(gpu) for gpu in host.gpus for cls in CLASSES}
        for cls in CLASSES:
            assert {at: found[cls.kind, at] for at in some} == {at: cls.of(at).effective(system) for at in some}
        return found

    before = seen()
    assert sum(value is not None for value in before.values()) == 8 * len(CLASSES)
    for cls, _, new in VALUES:
        cls.of(SXM).write(system, new)
    after = seen()
    assert {key for key, value in after.items() if value != before[key]} == {
        (cls.kind, SXM)
        for cls in CLASSES
        if cls is not GpuEcc  # current still
    }
    assert GpuEcc.of(SXM).read(system) is False
    for cls, old, _ in reversed(VALUES):
        cls.of(SXM).write(system, old)
    assert seen() == before


# --- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [GpuEcc, GpuMigMode])
@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"processes": 2}, "2 processes use the GPU"),
        ({"processes": "ERR GPU is lost"}, "whether processes use the GPU is unknown"),
        ({"nvmlDeviceGetMigMode": [1, 1], "migInstances": [{"id": 1, "profileId": 19}]}, "1 GPU instances exist"),
        (
            {"nvmlDeviceGetMigMode": [1, 1], "migInstances": "ERR Unknown Error"},
            "whether GPU instances exist is unknown",
        ),
    ],
)
def test_somebodys_work_is_not_reset_away(
    cls: type[GpuSetting], facts: dict[str, Any], why: str, tmp_path: Path, nvml_json: str
) -> None:
    system = scratch(tmp_path, VM, nvml_json=altered(nvml_json, **facts))
    setting = cls.of(VM)
    want: Any = False if cls is GpuEcc else {"enabled": "disabled", "disabled": "enabled"}[setting.read(system)]
    with pytest.raises(WriteFailed) as error:
        setting.write(system, want)
    assert why in error.value.reason
    assert VM in error.value.path
    assert system.told == []


def test_mig_can_be_disabled_where_no_instance_is_left(tmp_path: Path, nvml_json: str) -> None:
    system = scratch(tmp_path, VM, nvml_json=altered(nvml_json, nvmlDeviceGetMigMode=[1, 1], migInstances=[]))
    GpuMigMode.of(VM).write(system, "disabled")
    assert GpuMigMode.of(VM).read(system) == "disabled"


def test_under_mig_the_compute_mode_is_not_the_gpus(tmp_path: Path, nvml_json: str) -> None:
    system = scratch(tmp_path, VM, nvml_json=altered(nvml_json, nvmlDeviceGetMigMode=[1, 1]))
    with pytest.raises(WriteFailed, match="MIG is enabled"):
        GpuComputeMode.of(VM).write(system, "prohibited")
    assert system.told == []


@pytest.mark.parametrize("watts", [199.9, 700.1, 9999])
def test_a_limit_outside_the_boards_range_is_refused_with_the_range(watts: float, board: tuple[Noted, str]) -> None:
    system, address = board
    with pytest.raises(WriteFailed, match="outside the board's range of 200 to 700 W") as error:
        GpuPowerLimit.of(address).write(system, watts)
    assert address in error.value.path
    assert system.told == []


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("driver", ["vfio-pci", "nouveau", "habanalabs"])
def test_a_gpu_that_its_makers_driver_does_not_hold_has_none_of_these(
    cls: type[GpuSetting], driver: str, tmp_path: Path, smi_xml: str
) -> None:
    system = scratch(tmp_path, SXM, driver, nvidia_smi_q_x=smi_xml)
    setting = cls.of(SXM)
    assert setting.read(system) is None
    assert setting.effective(system) is None
    with pytest.raises(WriteFailed, match=f"held by {driver}"):
        setting.write(system, next(new for one, _, new in VALUES if one is cls))
    assert system.told == []


@pytest.mark.parametrize(("override", "waits"), [("vfio-pci\n", True), ("(null)\n", False), (None, False)])
def test_a_gpu_that_vfio_pci_is_to_take_is_its_guests_already(
    override: str | None, waits: bool, tmp_path: Path
) -> None:
    """A change of its driver was cut off. A GPU that merely has no driver lacks its settings, which is told."""
    system = scratch(tmp_path, SXM)
    device = tmp_path / f"sys/bus/pci/devices/{SXM}"
    (device / "driver").unlink()
    if override is not None:
        (device / "driver_override").write_text(override)
    assert (GpuPersistence(SXM).waits_for(system) is not None) is waits


def test_a_sleeping_gpu_is_unknown_and_stays_asleep(tmp_path: Path, smi_xml: str) -> None:
    system = scratch(tmp_path, SXM, nvidia_smi_q_x=smi_xml)
    (tmp_path / f"sys/bus/pci/devices/{SXM}/power").mkdir()
    (tmp_path / f"sys/bus/pci/devices/{SXM}/power/runtime_status").write_text("suspended\n")
    for cls in CLASSES:
        with pytest.raises(Unreadable, match="suspended"):
            cls.of(SXM).read(system)


@pytest.mark.parametrize("text", ["", "-1", "1\n2", "9" * 5000, "yes", "\u0663"])
def test_a_record_that_makes_no_sense_changes_nothing(text: str, board: tuple[Noted, str], tmp_path: Path) -> None:
    system, address = board
    before = [cls.of(address).read(system) for cls in CLASSES if cls is not GpuPowerLimit]
    for name in ("PersistenceMode", "ComputeMode", "EccMode", "MigMode"):
        (tmp_path / f".hosttune/commands/nvmlDeviceSet{name}-{address}").write_text(text)
    assert [cls.of(address).read(system) for cls in CLASSES if cls is not GpuPowerLimit] == before


# --- targets and values ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize(
    "target",
    [
        *("", "all", "0", "41:00.0", "0000:41:00.8", "0000:41:20.0", "0000:41:00.0 ", "0000:4A:00.0", "0000:41:00.0\n"),
        *("0000:41:00.0/../x", "../../etc/passwd", "0000:41:00.0,0000:18:00.0", "GPU-5c2b0000-0000-4000-8000-015bfd4e"),
    ],
)
def test_a_target_is_the_address_of_one_gpu(cls: type[GpuSetting], target: str) -> None:
    with pytest.raises(BadInput) as error:
        cls.of(target)
    assert error.value.where == f"action {cls.kind}:{target}"


@given(st.text(max_size=40))
def test_no_other_text_is_a_target(target: str) -> None:
    try:
        setting = GpuPersistence.of(target)
    except BadInput:
        return
    assert setting.target == target
    assert set(target) <= set("0123456789abcdef:.")


WRONG: dict[type[GpuSetting], list[Any]] = {
    GpuPersistence: [1, 0, "true", None, [True], 1.0],
    GpuPowerLimit: [0, -1, True, "700", None, float("nan"), float("inf"), 10_001, 1e300, 500.0001, [500]],
    GpuComputeMode: ["exclusive_thread", "Default", 0, None, True, ["default"]],
    GpuEcc: ["enabled", 1, 0, None],
    GpuMigMode: [True, 1, "on", "disabled (enabled pending)", None, {"mode": "enabled"}],
}


@pytest.mark.parametrize(("cls", "value"), [(cls, value) for cls, values in WRONG.items() for value in values])
def test_a_value_that_it_cannot_have_is_refused(cls: type[GpuSetting], value: Any) -> None:
    with pytest.raises(BadInput) as error:
        cls.of(SXM).check(value)
    assert error.value.where == f"action {cls.kind}:{SXM}"


def test_whole_and_decimal_watts_agree_and_nothing_else_does() -> None:
    setting = GpuPowerLimit.of(SXM)
    assert setting.agrees(700.0, 700)
    assert not setting.agrees(700.0, 700.5)
    assert not setting.agrees(1.0, True)
    assert not setting.agrees(None, 700)


def test_the_kinds_are_registered_and_disruptive_ones_say_so() -> None:
    for cls in CLASSES:
        assert kind_class(cls.kind, "test") is cls
        assert setting_of(cls.kind, SXM) == cls.of(SXM)
        assert cls.limit_seconds is not None
    assert [cls for cls in CLASSES if cls.disruptive] == [GpuEcc, GpuMigMode]
    assert {kind for kind in kinds() if kind.startswith("gpu-")} == set(DRIVER_KNOBS["nvidia"].writers)


# --- live --------------------------------------------------------------------------------------------------------


class Live(LiveMachine):
    """A machine with one GPU under `nvidia` whose nvidia-smi answers what it is given; nothing is run."""

    def __init__(self, answer: str | CommandFailed) -> None:
        self.answer = answer
        self.argv: list[tuple[str, ...]] = []

    def link(self, path: str) -> str | None:
        return "/sys/bus/pci/drivers/nvidia" if path == f"/sys/bus/pci/devices/{SXM}/driver" else None

    def read_bytes(self, path: str) -> bytes | None:
        assert path.startswith("/sys/bus/pci/devices/")
        return None

    def run(self, argv: tuple[str, ...], *, timeout: float = 20.0) -> str:
        self.argv.append(argv)
        if isinstance(self.answer, CommandFailed):
            raise self.answer
        return self.answer


# As an H200 answered (driver 580.159.04, nvidia-smi -i 0000:00:06.0).
ROW = "Enabled, 700.00, 700.00, 200.00, 700.00, Default, Enabled, Enabled, Disabled, Disabled\n"


def test_live_values_come_from_one_bounded_command_about_this_gpu_alone() -> None:
    system = Live(ROW)
    assert [cls.of(SXM).effective(system) for cls in CLASSES] == [old for _, old, _ in VALUES]
    fields = ",".join(QUERY_FIELDS)
    wanted = ("nvidia-smi", "-i", SXM, f"--query-gpu={fields}", "--format=csv,noheader,nounits")
    assert set(system.argv) == {wanted}


def test_what_a_board_does_not_have_is_none() -> None:
    row = "Disabled, [N/A], [N/A], [N/A], [N/A], Exclusive_Process, [N/A], [N/A], [N/A], [N/A]\n"
    values = [cls.of(SXM).effective(Live(row)) for cls in CLASSES]
    assert values == [False, None, "exclusive_process", None, None]


@pytest.mark.parametrize("answer", ["", "No devices were found\n", ROW + ROW, ROW.replace(", ", ";"), ROW + "x"])
def test_an_answer_of_another_shape_is_unknown(answer: str) -> None:
    with pytest.raises(Unreadable, match="not the row of one GPU"):
        GpuPersistence.of(SXM).read(Live(answer))


def test_a_tool_that_does_not_answer_is_unknown_with_its_reason() -> None:
    failed = CommandFailed(("nvidia-smi",), "exit status 6", "No devices were found\n")
    with pytest.raises(Unreadable, match="exit status 6: No devices were found") as error:
        GpuPersistence.of(SXM).read(Live(failed))
    assert SXM in error.value.path


class Failure(Exception):
    """The fake library's NVMLError."""


class FakeNvml:
    """A library that notes its calls; `fails` names functions that raise."""

    NVMLError = Failure

    def __init__(self, *fails: str, status: int = 0) -> None:
        self.fails, self.status = fails, status
        self.calls: list[tuple[Any, ...]] = []

    def _note(self, *call: Any) -> None:
        self.calls.append(call)
        if call[0] in self.fails:
            raise Failure(f"{call[0]} failed")

    def nvmlInit(self) -> None:
        self._note("nvmlInit")

    def nvmlShutdown(self) -> None:
        self._note("nvmlShutdown")

    def nvmlDeviceGetHandleByPciBusId(self, address: str) -> str:
        self._note("nvmlDeviceGetHandleByPciBusId", address)
        return f"handle of {address}"

    def nvmlDeviceSetMigMode(self, handle: str, mode: int) -> int:
        self._note("nvmlDeviceSetMigMode", handle, mode)
        return self.status


SET = ("nvmlDeviceSetMigMode", f"handle of {SXM}", 1)
OPENED = [("nvmlInit",), ("nvmlDeviceGetHandleByPciBusId", SXM)]


def test_a_call_opens_sets_and_lets_go() -> None:
    library = FakeNvml(status=16)
    assert call_nvml(library, "nvmlDeviceSetMigMode", SXM, 1) == 16
    assert library.calls == [*OPENED, SET, ("nvmlShutdown",)]


@pytest.mark.parametrize(
    ("fails", "calls"),
    [
        ("nvmlInit", OPENED[:1]),
        ("nvmlDeviceGetHandleByPciBusId", [*OPENED, ("nvmlShutdown",)]),
        ("nvmlDeviceSetMigMode", [*OPENED, SET, ("nvmlShutdown",)]),
    ],
)
def test_a_call_that_fails_is_named_and_lets_go(fails: str, calls: list[Any]) -> None:
    library = FakeNvml(fails)
    with pytest.raises(WriteFailed, match=f"{fails} failed") as error:
        call_nvml(library, "nvmlDeviceSetMigMode", SXM, 1)
    assert error.value.path == f"nvmlDeviceSetMigMode of {SXM}"
    assert library.calls == calls


def test_a_shutdown_that_fails_takes_nothing_back() -> None:
    assert call_nvml(FakeNvml("nvmlShutdown"), "nvmlDeviceSetMigMode", SXM, 1) == 0


def test_bindings_without_the_function_are_told_before_anything_is_opened() -> None:
    library = FakeNvml()
    with pytest.raises(WriteFailed, match="no such function"):
        call_nvml(library, "nvmlDeviceSetEccMode", SXM, 1)
    assert library.calls == []


def test_an_activation_that_failed_is_told() -> None:
    assert activation(pynvml.NVML_SUCCESS) is None
    assert activation(None) is None
    assert "cannot be reset" in str(activation(pynvml.NVML_ERROR_RESET_REQUIRED))
    assert "in use" in str(activation(pynvml.NVML_ERROR_IN_USE))
    assert "999" in str(activation(pynvml.NVML_ERROR_UNKNOWN))


# --- amdgpu ------------------------------------------------------------------------------------------------------

MI = "0000:05:00.0"


def amd(root: Path, **caps: str) -> tuple[Noted, Path]:
    """An MI300X under amdgpu; caps are the endings of power1_cap's files (microwatts), "now" the cap itself."""
    system = scratch(root, MI, "amdgpu")
    folder = root / f"sys/bus/pci/devices/{MI}/hwmon/hwmon7"
    folder.mkdir(parents=True)
    for ending, text in caps.items():
        (folder / ("power1_cap" if ending == "now" else f"power1_cap_{ending}")).write_text(f"{text}\n")
    return system, folder / "power1_cap"


MI300X = {"now": "600000000", "default": "750000000", "min": "0", "max": "750000000"}


def test_amdgpus_cap_is_written_in_microwatts(tmp_path: Path) -> None:
    system, cap = amd(tmp_path, **MI300X)
    setting = GpuPowerLimit.of(MI)
    assert setting.read(system) == 600.0
    setting.write(system, 750.0)
    assert (setting.read(system), cap.read_text()) == (750.0, "750000000\n")
    setting.write(system, 600.0)
    assert cap.read_text() == "600000000\n"
    assert system.told == []


def test_amdgpus_cap_has_a_range(tmp_path: Path) -> None:
    system, cap = amd(tmp_path, **MI300X)
    with pytest.raises(WriteFailed, match="751 W is outside the board's range of 0 to 750 W"):
        GpuPowerLimit.of(MI).write(system, 751)
    assert cap.read_text() == "600000000\n"


def test_amdgpu_without_a_cap_has_no_limit(tmp_path: Path) -> None:
    system = scratch(tmp_path, MI, "amdgpu")
    assert GpuPowerLimit.of(MI).read(system) is None
    with pytest.raises(WriteFailed, match="no power cap"):
        GpuPowerLimit.of(MI).write(system, 500)


def test_amdgpus_cap_that_is_no_number_is_unknown(tmp_path: Path) -> None:
    system, _ = amd(tmp_path, **{**MI300X, "now": "much"})
    with pytest.raises(Unreadable, match="not a number"):
        GpuPowerLimit.of(MI).read(system)


@pytest.mark.parametrize("cls", [cls for cls in CLASSES if cls is not GpuPowerLimit])
def test_amdgpu_has_no_other_setting(cls: type[GpuSetting], tmp_path: Path) -> None:
    system, _ = amd(tmp_path, **MI300X)
    assert cls.of(MI).read(system) is None
