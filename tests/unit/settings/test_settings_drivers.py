"""Binding to vfio-pci, numbers of virtual functions, the rules for boot, and what is kept of a GPU."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cutshort import KilledError, Noted, put_link, scratch_root
from hypothesis import given
from hypothesis import strategies as st
from pcitrees import Tree
from unpacking import unpack

import hosttune
from hosttune.errors import BadInput, Unreadable, WriteFailed
from hosttune.machine.capture import Capture
from hosttune.machine.scratch import Scratch
from hosttune.model.gpu import Gpu
from hosttune.model.host import Host, PciDevice
from hosttune.model.values import parse_address
from hosttune.settings.drivers import UDEV_RULES, Driver, OfHolder, SriovVfs, merged_identities, udev_rules
from hosttune.settings.dropin import DropIn
from hosttune.transaction.kinds import setting_of

GPU = "0000:01:00.0"
CARD = f"pci0000:00/0000:00:01.0/{GPU}"
HERE = f"/sys/bus/pci/devices/{GPU}"
EXAMPLE = Path(__file__).parents[3] / "examples/hgx-h200-8.tar.xz"


def host(
    tmp_path: Path,
    driver: str | None = "nvidia",
    override: str | None = "(null)",
    *,
    loaded: bool = True,
    files: Mapping[str, str] | None = None,
) -> Path:
    """A scratch root with one GPU behind a port; nvidia is loaded, and vfio-pci where `loaded`."""
    tree = Tree(tmp_path)
    tree.port("pci0000:00/0000:00:01.0")
    folder = tree.add(CARD, **(files or {}))
    (tmp_path / "sys/kernel/iommu_groups/7").mkdir(parents=True)
    (folder / "iommu_group").symlink_to("../../../../kernel/iommu_groups/7")
    (tmp_path / "sys/bus/pci/drivers/nvidia").mkdir(parents=True)
    if loaded:
        (tmp_path / "sys/bus/pci/drivers/vfio-pci").mkdir()
    if driver is not None:
        (tmp_path / f"sys/bus/pci/drivers/{driver}").mkdir(exist_ok=True)
        (folder / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
    if override is not None:
        (folder / "driver_override").write_text(f"{override}\n")
    return scratch_root(tmp_path)


def state(root: Path) -> tuple[str | None, str | None]:
    system = Scratch(str(root))
    link = system.link(f"{HERE}/driver")
    return link and link.rpartition("/")[2], system.read(f"{HERE}/driver_override")


# --- the driver ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("driver", "override", "value"),
    [
        ("nvidia", "(null)", "nvidia"),
        ("nvidia", "", "nvidia"),
        ("nvidia", None, "nvidia"),
        (None, "(null)", None),
        ("vfio-pci", "vfio-pci", "vfio-pci"),
        ("vfio-pci", "(null)", "vfio-pci"),
        ("nvidia", "vfio-pci", {"driver": "nvidia", "override": "vfio-pci"}),
        (None, "vfio-pci", {"driver": None, "override": "vfio-pci"}),
        ("nvidia", "nvidia", {"driver": "nvidia", "override": "nvidia"}),
        ("vfio-pci", "nvidia", {"driver": "vfio-pci", "override": "nvidia"}),
    ],
)
def test_the_value_and_what_the_plan_sees(tmp_path: Path, driver: str | None, override: str | None, value: Any) -> None:
    system = Scratch(str(host(tmp_path, driver, override)))
    assert Driver.of(GPU).read(system) == value
    assert Driver.of(GPU).effective(system) == driver


@pytest.mark.parametrize(
    ("driver", "override"),
    [("nvidia", "(null)"), (None, "(null)"), ("nvidia", "nvidia"), (None, "nvidia"), ("nvidia", "vfio-pci")],
)
def test_bound_and_given_back_exactly(tmp_path: Path, driver: str | None, override: str) -> None:
    root = host(tmp_path, driver, override)
    before = state(root)
    old = Driver.of(GPU).read(Scratch(str(root)))
    assert Driver.of(GPU).write(Scratch(str(root)), "vfio-pci") is None
    assert Driver.of(GPU).read(Scratch(str(root))) == "vfio-pci"
    assert state(root) == ("vfio-pci", "vfio-pci")
    Driver.of(GPU).write(Scratch(str(root)), old)
    assert state(root) == before


def test_module_override_unbind_bind_in_this_order_with_udev_settled(tmp_path: Path) -> None:
    root = host(tmp_path, loaded=False)
    (root / "run/udev").mkdir(parents=True)
    (root / "run/udev/control").touch()
    settle = ("change", "udevadm", "settle", "--timeout=10")
    system = Noted(root)
    Driver.of(GPU).write(system, "vfio-pci")
    assert system.changes == [
        ("change", "modprobe", "vfio-pci"),
        ("write", f"{HERE}/driver_override", "vfio-pci\n"),
        ("write", "/sys/bus/pci/drivers/nvidia/unbind", GPU),
        settle,
        ("write", "/sys/bus/pci/drivers/vfio-pci/bind", GPU),
        settle,
    ]
    back = Noted(root)
    Driver.of(GPU).write(back, "nvidia")
    assert back.changes == [
        ("write", f"{HERE}/driver_override", "\n"),
        ("write", "/sys/bus/pci/drivers/vfio-pci/unbind", GPU),
        settle,
        ("write", "/sys/bus/pci/drivers/nvidia/bind", GPU),
        settle,
    ]


def test_a_rehearsal_says_what_a_real_write_does(tmp_path: Path) -> None:
    root = host(tmp_path, loaded=False)
    dry, real = Noted(root, dry=True), Noted(root)
    Driver.of(GPU).write(dry, "vfio-pci")
    Driver.of(GPU).write(real, "vfio-pci")
    assert dry.changes == real.changes != []


def test_a_bound_device_is_not_written_again(tmp_path: Path) -> None:
    system = Noted(host(tmp_path, "vfio-pci", "vfio-pci"))
    Driver.of(GPU).write(system, "vfio-pci")
    assert system.changes == []


@pytest.mark.parametrize("driver", ["nvidia", None])
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("cut", range(8))
def test_cut_off_anywhere_it_can_be_taken_back_and_carried_out(
    tmp_path: Path, driver: str | None, back: bool, cut: int
) -> None:
    root = host(tmp_path, driver, loaded=False)
    old = Driver.of(GPU).read(Scratch(str(root)))
    if back:
        Driver.of(GPU).write(Scratch(str(root)), "vfio-pci")
    try:
        Driver.of(GPU).write(Noted(root, cut=cut), old if back else "vfio-pci")
    except KilledError:
        between = Driver.of(GPU).read(Scratch(str(root)))
        assert between in (old, "vfio-pci", None) or between["override"] == "vfio-pci"
    Driver.of(GPU).write(Scratch(str(root)), old)
    assert Driver.of(GPU).read(Scratch(str(root))) == old
    Driver.of(GPU).write(Scratch(str(root)), "vfio-pci")
    assert Driver.of(GPU).read(Scratch(str(root))) == "vfio-pci"


def test_udev_that_does_not_settle_is_told_and_fails_nothing(tmp_path: Path) -> None:
    root = host(tmp_path)
    (root / "run/udev").mkdir(parents=True)
    (root / "run/udev/control").touch()
    system = Noted(root)
    system.failing["udevadm"] = "no answer within 15 s"
    assert Driver.of(GPU).write(system, "vfio-pci") == "udev has not finished: no answer within 15 s"
    assert state(root) == ("vfio-pci", "vfio-pci")


def test_the_old_driver_must_be_loaded_to_come_back(tmp_path: Path) -> None:
    root = host(tmp_path)
    Driver.of(GPU).write(Scratch(str(root)), "vfio-pci")
    (root / "sys/bus/pci/drivers/nvidia").rmdir()
    with pytest.raises(WriteFailed) as failed:
        Driver.of(GPU).write(Scratch(str(root)), "nvidia")
    assert failed.value.path == "/sys/bus/pci/drivers/nvidia"
    assert failed.value.reason == "driver nvidia is not loaded: load its module (modprobe)"
    (root / "sys/bus/pci/drivers/nvidia").mkdir()
    Driver.of(GPU).write(Scratch(str(root)), "nvidia")
    assert state(root) == ("nvidia", "(null)")


def refused(root: Path, said: str) -> None:
    system = Noted(root)
    with pytest.raises(WriteFailed) as failed:
        Driver.of(GPU).write(system, "vfio-pci")
    assert said in failed.value.reason
    assert failed.value.path == HERE
    assert system.changes == []


def test_a_vgpu_stays_with_its_driver(tmp_path: Path) -> None:
    root = host(tmp_path)
    put_link(root, f"/sys/devices/{CARD}/physfn", "/sys/devices/pci0000:00/0000:00:01.0")
    refused(root, "a vGPU's virtual function stays with nvidia")


def test_a_bridge_stays_with_the_host(tmp_path: Path) -> None:
    refused(host(tmp_path, "pcieport", files={"class": "0x060400"}), "a bridge stays with the host")


def test_a_physical_function_with_virtual_ones_keeps_its_driver(tmp_path: Path) -> None:
    root = host(tmp_path, "mlx5_core")
    put_link(root, f"/sys/devices/{CARD}/virtfn0", "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.1")
    refused(root, "its 1 virtual functions would go with its driver")


def test_without_an_iommu_group_it_waits_for_the_boot(tmp_path: Path) -> None:
    root = host(tmp_path)
    assert Driver.of(GPU).waits_for(Scratch(str(root))) is None
    (root / "sys/devices" / CARD / "iommu_group").unlink()
    waits = Driver.of(GPU).waits_for(Scratch(str(root)))
    assert waits == "it has no IOMMU group: VFIO can take it once the IOMMU is on, which needs a boot"
    (root / ".hosttune/capture").unlink()  # nobody recorded groups: unknown
    assert Driver.of(GPU).waits_for(Scratch(str(root))) is None


@pytest.mark.parametrize("kind", ["driver", "sriov-vfs"])
def test_a_device_that_is_gone_is_no_state(tmp_path: Path, kind: str) -> None:
    with pytest.raises(Unreadable) as failed:
        setting_of(kind, "0000:99:00.0").read(Scratch(str(host(tmp_path))))
    assert failed.value.path == "/sys/bus/pci/devices/0000:99:00.0"


@pytest.mark.parametrize("value", ["nvidia", None, 1, "vfio-pci\n", "../x", {"driver": "vfio-pci"}])
def test_a_plan_can_want_vfio_only(value: Any) -> None:
    with pytest.raises(BadInput) as failed:
        Driver.of(GPU).check(value)
    assert failed.value.where == f"action driver:{GPU}"
    Driver.of(GPU).check("vfio-pci")


@pytest.mark.parametrize("value", ["../../x", "a b", "", "x" * 65, {"driver": "a/b", "override": None}])
def test_no_path_comes_from_a_value(tmp_path: Path, value: Any) -> None:
    system = Noted(host(tmp_path))
    with pytest.raises(BadInput, match="is not the name of a driver"):
        Driver.of(GPU).write(system, value)
    assert system.changes == []


@pytest.mark.parametrize("kind", ["driver", "sriov-vfs", "irq-affinity"])
@given(target=st.text() | st.from_regex(r"\A[0-9a-f.:/]{1,16}\Z"))
def test_only_addresses_are_targets(kind: str, target: str) -> None:
    try:
        known = parse_address(target) == target
    except BadInput:
        known = False
    if known:
        assert setting_of(kind, target).target == target
    else:
        with pytest.raises(BadInput) as failed:
            setting_of(kind, target)
        assert failed.value.where == f"action {kind}:{target}"


@pytest.mark.parametrize("target", ["41:00.0", "0000:41:00.0 ", "0000:41:00.8", "0000:4A:00.0", "0000:41:00.0/../x"])
def test_an_address_is_written_as_the_kernel_does(target: str) -> None:
    with pytest.raises(BadInput, match="not a PCI address"):
        Driver.of(target)


def test_a_plan_s_values_are_those_that_the_settings_read(tmp_path: Path) -> None:
    unpack(EXAMPLE, tmp_path)
    system = Scratch(str(scratch_root(tmp_path)))
    plan = hosttune.plan(
        hosttune.discover(str(tmp_path)), hosttune.Intent.from_yaml("version: 1\nguests: [{name: g, gpus: 2}]")
    )
    checked = []
    for action in plan.actions:
        if action.kind in ("driver", "irqbalance-ban", "irq-affinity"):
            setting = setting_of(action.kind, action.target)
            setting.check(action.want)
            if action.kind != "irq-affinity":
                assert setting.effective(system) == action.current, action.id
            checked.append(action.kind)
    assert set(checked) == {"driver", "irqbalance-ban", "irq-affinity"}
    assert checked.count("driver") >= 2


# --- virtual functions ---------------------------------------------------------------------------------------


def with_functions(tmp_path: Path, now: int, **files: str) -> Path:
    card = {"vendor": "0x15b3", "device": "0x1021", "class": "0x020700"}
    functions = {"sriov_numvfs": str(now), "sriov_totalvfs": "8"}
    return host(tmp_path, "mlx5_core", files={**card, **functions, **files})


@pytest.mark.parametrize(
    ("now", "want", "writes"), [(0, 4, ["4"]), (4, 2, ["0", "2"]), (4, 0, ["0"]), (4, 4, []), (0, 0, [])]
)
def test_another_number_goes_by_0(tmp_path: Path, now: int, want: int, writes: list[str]) -> None:
    root = with_functions(tmp_path, now)
    system = Noted(root)
    SriovVfs.of(GPU).write(system, want)
    assert system.changes == [("write", f"{HERE}/sriov_numvfs", text) for text in writes]
    assert SriovVfs.of(GPU).read(Scratch(str(root))) == want
    SriovVfs.of(GPU).write(Scratch(str(root)), now)
    assert SriovVfs.of(GPU).read(Scratch(str(root))) == now


@pytest.mark.parametrize("cut", range(4))
def test_cut_off_it_is_0_and_goes_either_way(tmp_path: Path, cut: int) -> None:
    root = with_functions(tmp_path, 4)
    with pytest.raises(KilledError):
        SriovVfs.of(GPU).write(Noted(root, cut=cut), 2)
    assert SriovVfs.of(GPU).read(Scratch(str(root))) == (4, 0, 0, 2)[cut]
    SriovVfs.of(GPU).write(Scratch(str(root)), 4)
    assert SriovVfs.of(GPU).read(Scratch(str(root))) == 4


def test_more_than_the_device_has(tmp_path: Path) -> None:
    system = Noted(with_functions(tmp_path, 0))
    with pytest.raises(WriteFailed) as failed:
        SriovVfs.of(GPU).write(system, 9)
    assert (failed.value.errno, failed.value.reason) == (errno.ERANGE, "the device offers at most 8 virtual functions")
    assert system.changes == []


@pytest.mark.parametrize(("text", "number"), [("9", errno.ERANGE), ("2", errno.EBUSY), ("x", errno.EINVAL)])
def test_a_scratch_root_refuses_what_the_kernel_refuses(tmp_path: Path, text: str, number: int) -> None:
    system = Scratch(str(with_functions(tmp_path, 4)))
    with pytest.raises(WriteFailed) as failed:
        system.write(f"{HERE}/sriov_numvfs", text)
    assert failed.value.errno == number


def test_functions_of_guests_are_not_taken_away(tmp_path: Path) -> None:
    root = with_functions(tmp_path, 1)
    function = "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.1"
    put_link(root, "/sys/bus/pci/devices/0000:01:00.1", function)
    put_link(root, f"/sys/devices/{CARD}/virtfn0", function)
    put_link(root, f"{function}/driver", "/sys/bus/pci/drivers/mlx5_vfio_pci")
    for want in (0, 2):
        system = Noted(root)
        with pytest.raises(WriteFailed) as failed:
            SriovVfs.of(GPU).write(system, want)
        assert failed.value.errno == errno.EBUSY
        assert failed.value.reason == "0000:01:00.1 is bound to mlx5_vfio_pci: given to a guest, or kept for one"
        assert system.changes == []


def test_nvidia_takes_no_raw_number(tmp_path: Path) -> None:
    system = Noted(with_functions(tmp_path, 0, vendor="0x10de"))
    with pytest.raises(WriteFailed, match="sriov-manage"):
        SriovVfs.of(GPU).write(system, 4)
    assert system.changes == []


def test_a_device_without_virtual_functions_has_no_such_knob(tmp_path: Path) -> None:
    assert SriovVfs.of(GPU).read(Scratch(str(host(tmp_path)))) is None


@pytest.mark.parametrize("value", [-1, 65536, True, "4", None, 1.0])
def test_numbers_that_are_none(value: Any) -> None:
    with pytest.raises(BadInput) as failed:
        SriovVfs.of(GPU).check(value)
    assert failed.value.where == f"action sriov-vfs:{GPU}"


# --- at boot -------------------------------------------------------------------------------------------------


def test_the_rules_name_addresses_and_never_ids() -> None:
    text = udev_rules(["0000:42:00.0", "0000:41:00.0", "0000:42:00.0"])
    rules = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(rules) == 4
    assert rules[0] == (
        'ACTION=="add", SUBSYSTEM=="pci", TEST=="/sys/bus/pci/devices/0000:41:00.0/driver_override",'
        ' TEST!="/sys/bus/pci/devices/0000:41:00.0/driver", ATTR{[pci/0000:41:00.0]driver_override}="vfio-pci"'
    )
    assert rules[1] == (
        'ACTION=="add", SUBSYSTEM=="pci", KERNEL=="0000:41:00.0", ATTR{subsystem/drivers_probe}="$kernel",'
        ' RUN{builtin}+="kmod load vfio-pci"'
    )
    assert "0000:42:00.0" in rules[2]
    assert "ids" not in "".join(rules)
    assert text.endswith("\n")
    assert text == udev_rules(["0000:41:00.0", "0000:42:00.0"])


def test_rules_hold_for_the_card_that_was_planned() -> None:
    text = udev_rules(["0000:41:00.0", "0000:42:00.0"], {"0000:41:00.0": "10de:2335"})
    first, second, *others = (line for line in text.splitlines() if not line.startswith("#"))
    assert 'ATTR{[pci/0000:41:00.0]vendor}=="0x10de", ATTR{[pci/0000:41:00.0]device}=="0x2335",' in first
    assert 'KERNEL=="0000:41:00.0", ATTR{vendor}=="0x10de", ATTR{device}=="0x2335", ATTR{subsystem' in second
    assert "vendor" not in "".join(others)
    DropIn.of(UDEV_RULES).check(text)
    with pytest.raises(BadInput, match="not device ids"):
        udev_rules(["0000:41:00.0"], {"0000:41:00.0": '10de:2335", RUN+="x'})
    with pytest.raises(BadInput, match="not what hosttune writes"):
        DropIn.of(UDEV_RULES).check(text.replace("2335", "*"))


def test_no_addresses_no_rules() -> None:
    assert udev_rules([]) == ""


@pytest.mark.parametrize("address", ["*", '0000:41:00.0", RUN+="x', "0000:41:00.0\n"])
def test_a_rule_carries_addresses_only(address: str) -> None:
    with pytest.raises(BadInput):
        udev_rules([address])


# --- what is kept of a GPU -----------------------------------------------------------------------------------

FULL = {"device": "10de:2335:10de:18be", "model": "H200", "uuid": "GPU-1", "serial": "16", "dsn": "01", "module_id": 3}


def seen(address: str, **facts: Any) -> tuple[PciDevice, Gpu]:
    """The GPU of `FULL`, with other facts; None: not known."""
    known = {**FULL, **facts}
    names = ("vendor_id", "device_id", "subsystem_vendor_id", "subsystem_device_id")
    ids = dict(zip(names, known.pop("device").split(":"), strict=False))
    return PciDevice(address=address, dsn=known.pop("dsn"), **ids), Gpu(address=address, **known)


@pytest.mark.parametrize(
    ("found", "left"),
    [
        ({"uuid": None, "serial": None, "module_id": None, "dsn": None}, FULL),  # bound meanwhile
        ({"module_id": 5}, {**FULL, "module_id": 5}),
        ({"uuid": "GPU-2", "serial": None, "module_id": None}, "found"),  # another card
        ({"dsn": "02", "uuid": None, "serial": None, "module_id": None}, "found"),
        ({"device": "10de:2330", "uuid": None}, "found"),
    ],
)
def test_nothing_known_is_lost_and_another_card_inherits_nothing(found: Mapping[str, Any], left: Any) -> None:
    (other, its_gpu), (same, gpu) = seen("b", **found), seen("a")
    merged = merged_identities({"b": FULL, "c": FULL}, Host(pci=(other, same), gpus=(its_gpu, gpu)))
    own = {name: value for name, value in {**FULL, **found}.items() if value is not None}
    assert merged == {"a": FULL, "b": own if left == "found" else left, "c": FULL}
    assert list(merged) == ["a", "b", "c"]


def test_a_capture_is_not_written(tmp_path: Path) -> None:
    from hosttune.errors import Refused

    with pytest.raises(Refused):
        Driver.of(GPU).write(Capture(str(host(tmp_path))), "vfio-pci")


@pytest.mark.parametrize("kind", [Driver, SriovVfs])
def test_persistence_mode_keeps_a_function_open(kind: type[OfHolder]) -> None:
    def kept(persistence: bool | None, address: str = GPU) -> str | None:
        return kind.of(GPU).kept_open(Host(gpus=(Gpu(address=address, persistence=persistence),)))

    assert kept(True) == f"persistence mode holds it (nvidia-smi -i {GPU} -pm 0)"
    assert (kept(False), kept(None), kept(True, "0000:02:00.0")) == (None, None, None)
