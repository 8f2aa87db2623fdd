"""Network functions in a hand-over: what their firmware keeps, what a physical function keeps for a virtual one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from applyroots import STATE
from coursekills import ASKED, HOSTS_NIC, NIC
from courses import handed, here, passing, states, steps
from cutshort import put
from networkroots import (
    CASES,
    LEFT,
    MAC,
    MSTCONFIG,
    NONE,
    SETTLED,
    TENANTS,
    VIRTUAL,
    NetworkOnly,
    Uplink,
    answer,
    function,
    link,
    passing_all,
    physical_root,
    row,
    virtual_root,
)

from hosttune.discovery import discover
from hosttune.handover import calls
from hosttune.handover.network import compare, first_look, put_back, settle, tools
from hosttune.handover.network.known import Before, FunctionFacts, KnownFunction, keep, known
from hosttune.handover.running import Handed, HandoverOptions, hand_over, lines_of
from hosttune.handover.targets import Asked, Target
from hosttune.handover.testing import tested as judged
from hosttune.machine.iplink import read_function
from hosttune.machine.opening import open_system
from hosttune.model.handover import HandoverStep
from hosttune.model.host import Host
from hosttune.model.starts import GUEST, start_line
from hosttune.model.validation import CheckResult
from hosttune.transaction.site import Site, site_of

PXE, NO_PXE = "PXE(1)               PXE(1)               PXE(1)", "PXE(1)               NONE(0)              NONE(0)"


ARRAY = "PCI_DOWNSTREAM_PORT_OWNER[0..15]"
VERSIONS = {"running": {"fw.version": "1"}, "stored": {"fw.version": "2"}}


def run(root: Path) -> Handed:
    return handed(root, ASKED, NetworkOnly(), passing_all)


def erased(found: Handed, address: str = NIC) -> HandoverStep:
    (device,) = (one for one in found.statement.predicate.devices if one.address == address)
    return next(one for one in device.steps if one.step == "erased")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return physical_root(tmp_path / "small")


# --- what the tools say ------------------------------------------------------------------------------------------


def test_a_recorded_answer_of_mstconfig() -> None:
    found = tools.parse_configuration(MSTCONFIG, "mstconfig")
    assert (len(found.values), found.hidden) == (156, (ARRAY,))
    assert found.pending == ("LEGACY_BOOT_PROTOCOL", "ROCE_CONTROL")
    assert found.changed_from_default == ("LEGACY_BOOT_PROTOCOL", "SRIOV_EN")
    assert (found.default["NUM_OF_VFS"], found.current["ROCE_CONTROL"]) == ("8", "DEVICE_DEFAULT(0)")


def test_other_tables_of_mstconfig() -> None:
    head = "Device #1:\n\nConfigurations:                                          Next Boot\n"
    row = "        NUM_OF_VFS                                  16                  \n"
    read_only = "*RO     NUM_PF_MSIX                                     63                  \n"
    remarks = (
        "The '*' shows parameters with next value different from default/current value.\n\n"
        "The 'RO' shows parameters which are for read only and cannot be changed\n"
        "Device Firmware does not support reading default and current configurations\n"
    )
    found = tools.parse_configuration(head + row + read_only + remarks, "mstconfig")
    assert (dict(found.values), dict(found.current), found.pending) == (
        {"NUM_OF_VFS": "16", "NUM_PF_MSIX": "63"},
        {},
        (),
    )
    wrong = (
        "",
        head,
        head + row + row,
        head + head + row,
        head + "-E- Failed to query\n",
        head.replace("Next Boot", "Default") + row,
        head.replace("Next Boot", "Next Boot New") + row,
        head + row.replace("16", "16 17"),
    )
    for text in wrong:
        with pytest.raises(ValueError, match=r"table|columns|line|no parameter"):
            tools.parse_configuration(text, "mstconfig")


def test_the_elements_of_an_array_are_asked_for(root: Path) -> None:
    head = "Configurations:                                     Default              Current              Next Boot\n"
    rows = "".join(
        f"        PCI_DOWNSTREAM_PORT_OWNER[{n}]    DEVICE_DEFAULT(0)  HOST_0(1)  HOST_0(1)\n" for n in range(16)
    )
    answer(root, f"mstconfig-arrays-{NIC}", head + rows)
    found, _ = tools.configuration(open_system(str(root)), NIC, "mlx5_core")
    assert found is not None
    assert (len(found.values), found.hidden, found.pending) == (156 + 16, (), ())
    assert found.values["PCI_DOWNSTREAM_PORT_OWNER[15]"] == "HOST_0(1)"
    for wrong in (head + "        OTHER[0]    0  0  0\n", head + rows.rpartition("        PCI")[0]):
        answer(root, f"mstconfig-arrays-{NIC}", wrong)
        found, why = tools.configuration(open_system(str(root)), NIC, "mlx5_core")
        assert (found, "other elements of arrays than those asked for" in why) == (None, True)


def test_a_recorded_answer_of_devlink(root: Path) -> None:
    text = (CASES / "devlink-info-bnxt.json").read_text().replace("0000:af:00.0", NIC)
    (root / f"sys/devices/pci0000:c0/{NIC}/infiniband/mlx5_0/fw_ver").unlink()
    answer(root, f"devlink-info-{NIC}", text)
    system = open_system(str(root))
    assert dict(tools.versions(system, NIC) or {}) == {
        "fw": "216.1.216.0", "fw.psid": "0.0.0", "fw.mgmt": "216.1.192.0", "fw.mgmt.api": "1.10.1",
        "fw.ncsi": "0.0.0.0", "fw.roce": "216.1.16.0",
    }  # fmt: skip
    assert tools.waiting(system, NIC) == {}
    document = json.loads(text)
    document["info"][f"pci/{NIC}"]["versions"]["stored"] = {"fw": "218.0.0.0", "fw.psid": "0.0.0", "fw.goldfw": "1"}
    answer(root, f"devlink-info-{NIC}", json.dumps(document))
    assert tools.waiting(open_system(str(root)), NIC) == {"fw": "218.0.0.0"}
    answer(root, f"devlink-info-{NIC}", None)
    answer(
        root,
        "ethtool-i-eth0",
        "driver: i40e\nversion: 6.1.0\nfirmware-version: 9.30 0x8000e5f3 1.3429.0\nbus-info: x\n",
    )
    assert dict(tools.versions(open_system(str(root)), NIC) or {}) == {"firmware-version": "9.30 0x8000e5f3 1.3429.0"}
    answer(root, "ethtool-i-eth0", "driver: veth\nfirmware-version: \n")
    assert tools.versions(open_system(str(root)), NIC) is None


def test_what_devlink_says_of_the_configuration(root: Path) -> None:
    answer(root, f"mstconfig-{NIC}", None)
    system = open_system(str(root))
    assert tools.configuration(system, NIC, "bnxt_en")[0] is None
    rows = [
        {"name": "enable_sriov", "type": "generic", "values": [{"cmode": "permanent", "value": True}]},
        {"name": "allow", "values": [{"cmode": "runtime", "value": 1}, {"cmode": "permanent", "value": 0}]},
        {"name": "flow_steering_mode", "type": "driver-specific", "values": [{"cmode": "runtime", "value": "smfs"}]},
    ]
    answer(root, f"devlink-param-{NIC}", json.dumps({"param": {f"pci/{NIC}": rows}}))
    found, _ = tools.configuration(open_system(str(root)), NIC, "bnxt_en")
    assert found is not None
    assert dict(found.values) == {"enable_sriov": "True", "allow": "0"}  # what the device itself keeps
    found, why = tools.configuration(open_system(str(root)), NIC, "mlx5_core")
    assert (found, "mstconfig cannot read it" in why) == (None, True)  # devlink shows a few of hundreds
    answer(root, f"devlink-param-{NIC}", "{")
    assert tools.configuration(open_system(str(root)), NIC, "bnxt_en")[0] is None


# --- a physical function -----------------------------------------------------------------------------------------


def test_a_physical_function_goes_the_whole_way(root: Path) -> None:
    found = run(root)
    assert (found.clean, states(root)[NIC]) == (True, "clean"), steps(found, NIC)
    evidence = erased(found).evidence
    assert evidence is not None
    (interface,) = evidence["interfaces"]
    assert (interface["name"], interface["address"], interface["permanent"], interface["xdp"]) == ("eth0", MAC, MAC, ())
    assert dict(evidence["addresses"]) == {"permanent address": MAC, "node_guid": "b859:9f03:00ce:2cea"}
    assert evidence["compared_with"] == "as hand-over 1 found it, after the tenant"
    configuration = evidence["configuration"]
    assert (configuration["parameters"], configuration["pending"]) == (156, ())
    assert configuration["not_shown"] == (ARRAY,)
    again = run(root)
    assert again.clean
    evidence = erased(again).evidence
    assert evidence is not None
    assert evidence["compared_with"] == "as of hand-over 1"


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        (f"mstconfig-{NIC}", SETTLED.replace(PXE, NO_PXE), "LEGACY_BOOT_PROTOCOL was PXE(1), and is NONE(0)"),
        (f"mstconfig-{NIC}", SETTLED.replace("WOL_MAGIC_EN  ", "WOL_MAGIC_XX  "), "WOL_MAGIC_EN was False(0)"),
        ("ip-link-eth0", link("eth0", permaddr="b8:59:9f:ce:2c:eb"), "permanent address was b8:59:9f:ce:2c:ea"),
        ("ip-link-eth0", link("eth0", xdp={"mode": 1, "prog": {"id": 12, "tag": "a"}}), "eth0 has an XDP program"),
        (
            f"devlink-info-{NIC}",
            json.dumps({"info": {f"pci/{NIC}": {"versions": VERSIONS}}}),
            "other firmware is stored in it, and will run after its next reset: fw.version 2",
        ),
    ],
)  # fmt: skip
def test_what_a_tenant_changed(root: Path, name: str, text: str, says: str) -> None:
    folder, target = str(root / STATE), Target(address=NIC, kind="nic", identity="i")
    first_look(open_system(str(root)), folder, target, 1)
    assert compare(open_system(str(root)), folder, target, "mlx5_core", 1).outcome == "done"
    settle(folder, NIC, "i", "clean", "as of hand-over 1")
    answer(root, name, text)
    for number in (2, 3):  # it is not forgotten by the next hand-over
        step = compare(open_system(str(root)), folder, target, "mlx5_core", number)
        assert (step.outcome, says in str(step.why)) == ("failed", True), step.why


def test_a_change_of_the_firmware_configuration_is_accepted_by_a_release(root: Path) -> None:
    assert run(root).clean
    answer(root, f"mstconfig-{NIC}", SETTLED.replace(PXE, NO_PXE))
    step = erased(run(root))
    assert (step.outcome, states(root)[NIC]) == ("failed", "quarantined")
    assert "as of hand-over 1" in str(step.why)
    assert "hosttune handover release" in str(step.why)
    calls.release(here(root), NIC, "the operator set it")
    accepted = run(root)
    assert accepted.clean, erased(accepted).why
    evidence = erased(accepted).evidence
    assert evidence is not None
    assert evidence["compared_with"] == "as a person released it: the operator set it"


def test_a_change_that_waits_for_the_next_boot_is_the_tenants_unless_it_was_there_before(root: Path) -> None:
    answer(root, f"mstconfig-{NIC}", MSTCONFIG)
    system, folder = open_system(str(root)), str(root / STATE)
    target = Target(address=NIC, kind="nic", identity="i")
    first_look(system, folder, target, 1)
    step = compare(system, folder, target, "mlx5_core", 1)
    assert (step.outcome, "about to change" in str(step.why)) == ("failed", True)
    assert "mstconfig -d 0000:c2:00.0 set LEGACY_BOOT_PROTOCOL=PXE ROCE_CONTROL=DEVICE_DEFAULT" in str(step.why)
    settle(folder, NIC, "i", "accepted", "always so on this card")
    assert compare(system, folder, target, "mlx5_core", 2).outcome == "done"


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda root: answer(root, f"mstconfig-{NIC}", None), "mstconfig cannot read it: install mstflint"),
        (
            lambda root: answer(root, f"mstconfig-{NIC}", "-E- No such device"),
            "the answer of mstconfig is not understood",
        ),
        (lambda root: answer(root, "ip-link-eth0", None), "ip cannot be asked about its interface"),
        (lambda root: answer(root, "ip-link-eth0", link("eth1")), "ip cannot be asked about its interface"),
        (
            lambda root: put(root, "/sys/class/net/eth0/addr_assign_type", "3\n"),
            "the permanent address of eth0 is unknown",
        ),
    ],
)
def test_what_cannot_be_read_is_unknown(root: Path, spoil: Callable[[Path], None], says: str) -> None:
    spoil(root)
    folder, target = str(root / STATE), Target(address=NIC, kind="nic", identity="i")
    first_look(open_system(str(root)), folder, target, 1)
    step = compare(open_system(str(root)), folder, target, "mlx5_core", 1)
    assert (step.outcome, says in str(step.why)) == ("unknown", True), step.why


def test_a_configuration_that_could_not_be_read_before_needs_a_second_hand_over(root: Path) -> None:
    """On vfio-pci devlink shows nothing: there is nothing to compare with the first time."""
    system, folder = open_system(str(root)), str(root / STATE)
    target = Target(address=NIC, kind="nic", identity="i")
    first = compare(system, folder, target, "mlx5_core", 1)
    assert (first.outcome, "it is recorded now" in str(first.why)) == ("unknown", True)
    assert compare(system, folder, target, "mlx5_core", 2).outcome == "done"
    other = Target(address=NIC, kind="nic", identity="another card")
    assert known(folder, NIC, "another card").before is None
    assert compare(system, folder, other, "mlx5_core", 3).outcome == "unknown"


# --- a virtual function ------------------------------------------------------------------------------------------


def hand(root: Path, asked: Asked = ASKED) -> tuple[Handed, Uplink]:
    system = Uplink(str(root))

    def look() -> Host:
        system.forget()
        return discover(system)

    place: tuple[Site, Callable[[], Host]] = (site_of(system), look)
    found = hand_over(
        place, asked, HandoverOptions(None, NetworkOnly(), passing_all), lambda lines: True, lambda text: None
    )
    return found, system


def test_the_settings_of_a_virtual_function_go_back_to_the_kernels(tmp_path: Path) -> None:
    root = virtual_root(tmp_path / "small")
    found, system = hand(root)
    step = erased(found, VIRTUAL)
    assert (found.clean, step.outcome, step.why) == (True, "done", None)
    assert step.evidence is not None
    assert (step.evidence["wanted_from"], step.evidence["physical_function"]) == (
        "the kernel's defaults: nothing was recorded before the tenant", HOSTS_NIC,
    )  # fmt: skip
    assert (step.evidence["left"]["address"], step.evidence["now"]["address"]) == (TENANTS, NONE)
    assert system.sent() == [
        ("vf", "0", "mac", NONE), ("vf", "0", "vlan", "0", "qos", "0"),
        ("vf", "0", "max_tx_rate", "0", "min_tx_rate", "0"), ("vf", "0", "spoofchk", "off"),
        ("vf", "0", "trust", "off"), ("vf", "0", "state", "auto"),
    ]  # fmt: skip
    assert row(root) == function(0, vlan_list=[{"vlan": 0, "qos": 0}])
    (device,) = (one for one in found.statement.predicate.devices if one.address == VIRTUAL)
    assert device.firmware == {}
    hosts = function(0, "b8:59:9f:00:00:01", vlan_list=[{"vlan": 100}])  # what it is given then is the host's own
    answer(root, "ip-link-up0", link("up0", vfinfo_list=[hosts, function(1)]))
    assert any("put its settings back (what they are now" in line for line in lines_of(here(root), ASKED))
    again, system = hand(root)
    step = erased(again, VIRTUAL)
    assert (again.clean, row(root), len(system.sent())) == (True, hosts, 6)  # no command more than before
    assert step.evidence is not None
    assert str(step.evidence["wanted_from"]).startswith("as the host had set it")
    put(
        root,
        f"/{STATE}/handover/starts",
        (root / STATE / "handover/starts").read_text() + start_line(VIRTUAL, GUEST, "now", "vm"),
    )
    answer(root, "ip-link-up0", link("up0", vfinfo_list=[LEFT, function(1)]))  # a tenant was there
    assert hand(root)[0].clean
    assert (row(root)["address"], row(root)["vlan_list"][0]["vlan"]) == (hosts["address"], 100)


def test_the_settings_of_a_virtual_function_go_back_to_what_they_were(tmp_path: Path) -> None:
    start = function(0, "b8:59:9f:00:00:01", vlan_list=[{"vlan": 100}], spoofchk=True)
    root = virtual_root(tmp_path / "small", start)
    folder, target = str(root / STATE), Target(address=VIRTUAL, kind="nic", identity="i")
    settings = read_function(open_system(str(root)), "up0", 0)
    before = Before(
        facts=FunctionFacts(settings=settings), origin="clean", text="as of hand-over 9", at="2026-01-01T00:00:00+00:00"
    )
    keep(folder, KnownFunction(address=VIRTUAL, identity="i", before=before))
    answer(root, "ip-link-up0", link("up0", vfinfo_list=[LEFT, function(1)]))
    step = put_back(Uplink(str(root)), folder, target, HOSTS_NIC)
    assert (step.outcome, step.why) == ("done", None)
    assert step.evidence is not None
    assert step.evidence["wanted_from"] == "as of hand-over 9"
    assert (row(root)["address"], row(root)["vlan_list"], row(root)["spoofchk"]) == (
        "b8:59:9f:00:00:01", [{"vlan": 100, "qos": 0}], True,
    )  # fmt: skip


def test_settings_that_do_not_go_back_or_cannot_be_read(tmp_path: Path) -> None:
    root = virtual_root(tmp_path / "small")
    target = Target(address=VIRTUAL, kind="nic", identity="i")
    system = Uplink(str(root))
    system.stubborn = ("trust", "mac")
    step = put_back(system, str(root / STATE), target, HOSTS_NIC)
    assert step.outcome == "failed"
    assert f"address is {TENANTS}, not {NONE}, trust is True, not False" in str(step.why)

    def outcome(**more: Any) -> tuple[str, str]:
        answer(root, "ip-link-up0", link("up0", **more))
        step = put_back(Uplink(str(root)), str(root / STATE), target, HOSTS_NIC)
        return step.outcome, str(step.why)

    assert outcome(vfinfo_list=[function(1)])[0] == "unknown"
    assert outcome()[0] == "unknown"
    infiniband = function(0, **{"link_type": "infiniband", "node guid": "00:11:22:33:44:55:66:77"})
    said = outcome(vfinfo_list=[infiniband])
    assert (said[0], "what node guid of it was is not recorded" in said[1]) == ("unknown", True)
    put(root, "/sys/class/net/up0/phys_switch_id", "52ac120003bd70c4\n")
    said = outcome(vfinfo_list=[function(0)])
    assert (said[0], "switchdev" in said[1]) == ("unknown", True)


@pytest.mark.parametrize(
    ("check", "subject", "outcome"),
    [
        ("port-state", HOSTS_NIC, "failed"),  # its port
        ("pcie-link", HOSTS_NIC, "failed"),
        ("leftover-vfs", HOSTS_NIC, "done"),  # of the physical function alone
        ("iommu-groups", VIRTUAL, "failed"),
        ("port-state", NIC, "done"),
    ],
)
def test_a_virtual_functions_port_is_that_of_its_physical_one(check: str, subject: str, outcome: str) -> None:
    target = Target(address=VIRTUAL, kind="nic", identity="i", physical=HOSTS_NIC)
    good = passing(1, VIRTUAL)
    bad = CheckResult(check=check, subject=subject, outcome="fail", actual="no link", source="sysfs")
    found = judged(target, msgspec.structs.replace(good, results=(*good.results, bad)), {}, True)
    assert found.outcome == outcome


def test_a_physical_function_loses_its_virtual_ones_before_its_reset(tmp_path: Path) -> None:
    root = virtual_root(tmp_path / "small")
    answer(root, "virsh-dumpxml-vm", "<domain type='kvm'><name>vm</name><vcpu>2</vcpu></domain>")

    def reset() -> HandoverStep:
        found, _ = hand(root, asked=Asked(devices=(HOSTS_NIC,)))
        return next(one for one in found.statement.predicate.devices[0].steps if one.step == "reset")

    (root / "sys/bus/pci/devices/0000:c3:00.2/driver").unlink()  # no other function of its model tells its driver
    (line,) = lines_of(here(root), Asked(devices=(VIRTUAL,)))
    assert ("bind mlx5_core" in line, "put its settings back" in line) == (True, True)
    lines = lines_of(here(root), Asked(devices=(HOSTS_NIC,)))
    assert f"{HOSTS_NIC}: its virtual functions are removed first: {VIRTUAL}, 0000:c3:00.2" in lines
    refused = reset()
    assert (refused.outcome, "is bound to vfio-pci" in str(refused.why)) == ("failed", True)  # kept for a guest
    driver = root / f"sys/devices/pci0000:c0/{VIRTUAL}/driver"
    driver.unlink()
    done = reset()
    assert done.outcome == "done", done.why
    assert (root / f"sys/devices/pci0000:c0/{HOSTS_NIC}/sriov_numvfs").read_text().strip() == "0"
    assert not (root / f"sys/devices/pci0000:c0/{HOSTS_NIC}/virtfn0").exists()
