"""What ethtool tells of Ethernet ports: modules judged by their own limits, and how it is read.

The texts are real (tests/cases/ports/PROVENANCE.md); faults are made by changing one line of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from unit.rules.test_checks_ports import A, B, ethernet, infiniband, interface, one
from unit.rules.test_checks_ports import evidence as ports_evidence

from hosttune.discovery.portdetails import parse_link_modes, parse_module, read_port_details
from hosttune.errors import CommandFailed
from hosttune.machine.capture import Capture
from hosttune.machine.reader import Reader
from hosttune.machine.system import System
from hosttune.model.evidence import Evidence
from hosttune.model.host import Host, Nic
from hosttune.model.ports import NicPorts, PortDetail

CASES = Path(__file__).parents[2] / "cases" / "ports" / "ethtool"
SFP, CMIS, NONSENSE, QSFP = (
    CASES.joinpath(f"m-{name}.txt").read_text() for name in ("sfp", "cmis-400g", "sfp-nonsense", "qsfp28")
)
SLOW, FAST, NO_LINK = (
    CASES.joinpath(name).read_text() for name in ("i40e-25g-at-10g.txt", "bnxt-10g.txt", "igb-no-link.txt")
)
NAME = "ens1np0"


def changed(text: str, name: str, value: str | None) -> str:
    """The text with another value of one name; None: without its line."""
    lines = text.splitlines()
    [at] = [n for n, line in enumerate(lines) if line.partition(":")[0].strip() == name]
    lines[at : at + 1] = [] if value is None else [f"{lines[at].partition(':')[0]}: {value}"]
    return "\n".join(lines) + "\n"


def told(text: str | None = None, *, modes: str | None = None, **more: Any) -> PortDetail:
    module = parse_module(text) if text is not None else None
    return PortDetail(module=module, modes=parse_link_modes(modes) if modes is not None else None, **more)


def outcome(check: str, detail: PortDetail | None, ports: NicPorts | None = None, **more: Any) -> str:
    return judged(check, detail, ports, **more)[0]


def judged(check: str, detail: PortDetail | None, ports: NicPorts | None = None, **more: Any) -> tuple[str, str]:
    details = {NAME: detail} if detail is not None else {}
    found = ports_evidence({A: ports or ethernet(speed_gbps=10.0)}, port_details=details, **more)
    result = one(found, check)
    return result.outcome, result.actual or ""


# --- modules -----------------------------------------------------------------------------------------------------


def test_a_healthy_module_passes_and_is_named() -> None:
    got, said = judged("port-module", told(SFP))
    assert got == "pass"
    assert "SFP FS SFP-10GSR-85: bias 6.09 mA, tx-power 0.6367 mW, rx-power 0.6486 mW, temperature 39.18 °C" in said


def test_a_real_hot_module_warns_and_lanes_that_it_does_not_use_are_no_fault() -> None:
    got, said = judged("port-module", told(CMIS))
    assert (got, said) == ("warn", f"{NAME}: temperature 70.49 °C, beyond the module's warning limit 70")


def test_limits_that_contradict_each_other_judge_nothing() -> None:
    """The real output of a driver that reads the wrong bytes: 0 °C, and a low alarm above the high one."""
    got, said = judged("port-module", told(NONSENSE))
    assert got == "unknown"
    assert "contradict each other" in said


def test_a_qsfp_module_tells_each_lane_and_without_its_limits_it_is_unknown() -> None:
    module = parse_module(QSFP)
    assert (module.kind, module.vendor, module.part, module.copper) == ("QSFP28", "FINISAR CORP", "FTLC9551REPM", False)
    values = {(reading.quantity, reading.lane): reading.value for reading in module.readings}
    lanes = {
        "bias": (8.162, 7.56, 7.796, 7.708),
        "tx-power": (1.0391, 1.0704, 1.0704, 0.9449),
        "rx-power": (0.9603, 0.921, 1.0281, 1.022),
    }
    expected: dict[tuple[str, int | None], float] = {("temperature", None): 45.22, ("voltage", None): 3.3359}
    expected |= {(name, lane): value for name, row in lanes.items() for lane, value in enumerate(row, 1)}
    assert values == expected
    assert outcome("port-module", told(QSFP)) == "unknown"


UNPLUGGED = ethernet(carrier=False, speed_gbps=None)
RX = "Receiver signal average optical power"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (changed(SFP, "Module temperature", "81.00 degrees C / 177.80 degrees F"), "fail"),
        (changed(SFP, "Module temperature", "-11.00 degrees C / 12.20 degrees F"), "fail"),
        (changed(SFP, "Module temperature", "75.00 degrees C / 167.00 degrees F"), "warn"),
        (changed(SFP, "Module voltage", "3.6400 V"), "fail"),
        (changed(SFP, RX, "0.0001 mW / -40.00 dBm"), "fail"),
        (changed(SFP, RX, "0.0500 mW / -13.01 dBm"), "warn"),
        (changed(SFP, "Laser bias current", "16.000 mA"), "fail"),
        (changed(SFP, "Laser rx power low alarm", "On"), "warn"),  # since the flags were last read
        (changed(SFP, "Laser rx power low alarm", "Maybe"), "unknown"),
        (changed(SFP, "Laser rx power low alarm", None), "unknown"),
        (changed(SFP, "Module temperature", "hot"), "unknown"),
        (changed(SFP, "Module temperature", None), "unknown"),
        (changed(SFP, RX, None), "unknown"),
        (changed(SFP, "Module temperature high alarm threshold", None), "unknown"),
        (changed(SFP, "Module temperature high alarm threshold", "-20.00 degrees C / -4.00 degrees F"), "unknown"),
        (changed(SFP, "Identifier", None), "unknown"),
        (SFP + "\tModule temperature                        : 20.00 degrees C / 68.00 degrees F\n", "unknown"),
        (changed(CMIS, "Rcvr signal avg optical power (Channel 2)", "0.0000 mW / -inf dBm"), "fail"),
        (changed(CMIS, "Rcvr signal avg optical power (Channel 2)", None), "unknown"),
        (changed(CMIS, "Laser bias current low alarm    (Chan 5)", "On"), "fail"),  # a lane that should be on
        ("", "unknown"),
        ("\tIdentifier : 0x03 (SFP)\n", "unknown"),
        ("\tIdentifier : 0x03 (SFP)\n\tOptical diagnostics support : No\n", "skip"),
        ("\tIdentifier : 0x11 (QSFP28)\n\tTransmitter technology : 0xa0 (Copper cable unequalized)\n", "skip"),
    ],
)
def test_a_module_is_judged_by_its_own_limits(text: str, expected: str) -> None:
    assert outcome("port-module", told(text)) == expected


def test_without_a_link_its_laser_may_be_off_but_not_its_temperature_high() -> None:
    dark = changed(changed(SFP, RX, "0.0000 mW / -inf dBm"), "Laser bias current", "0.000 mA")
    hot = changed(dark, "Module temperature", "90.00 degrees C / 194.00 degrees F")
    assert outcome("port-module", told(dark)) == "fail"
    assert outcome("port-module", told(dark), UNPLUGGED) == "pass"
    assert outcome("port-module", told(hot), UNPLUGGED) == "fail"
    assert outcome("port-module", told(dark), ethernet(carrier=None)) == "unknown"


@pytest.mark.parametrize(
    ("detail", "ports", "expected"),
    [
        (None, None, "unknown"),
        (told(), None, "unknown"),
        (told(module_error="not installed"), None, "skip"),
        (told(module_error="netlink error: Operation not supported"), None, "skip"),
        (told(module_error="netlink error: Operation not permitted"), None, "unknown"),
        (told(module_error="netlink error: Input/output error"), None, "unknown"),
        (told(module_error="netlink error: Invalid argument"), UNPLUGGED, "skip"),
        (told(module_error="netlink error: Invalid argument"), ethernet(carrier=None), "unknown"),
        (told(SFP), infiniband(), "skip"),
    ],
)
def test_a_module_that_does_not_answer(detail: PortDetail | None, ports: NicPorts | None, expected: str) -> None:
    assert outcome("port-module", detail, ports) == expected


# --- both -----------------------------------------------------------------------------------------------------------


def test_a_virtual_device_has_neither() -> None:
    found = ports_evidence({A: ethernet()}, device={"vendor_id": "1af4"}, port_details={})
    assert {one(found, check).outcome for check in ("port-capability", "port-module")} == {"skip"}


def test_each_interface_of_a_nic_is_judged() -> None:
    two = NicPorts(rdma=(), interfaces=(interface(speed_gbps=10.0), interface("ens1np1", speed_gbps=10.0)))
    details = {NAME: told(SFP, modes=FAST), "ens1np1": told(CMIS, modes=SLOW)}
    found: Evidence = ports_evidence({A: two, B: ethernet()}, port_details=details)
    assert [one(found, check).outcome for check in ("port-capability", "port-module")] == ["warn", "warn"]


# --- reading -----------------------------------------------------------------------------------------------------


class Asked(Capture):
    """A host on which ethtool answers, as a live one does."""

    def __init__(self, root: Path, answers: dict[str, str | CommandFailed]) -> None:
        super().__init__(str(root))
        self.answers = answers
        self.asked: list[tuple[str, ...]] = []

    def query(self, name: str, live: Any) -> str | None:
        return live()  # type: ignore[no-any-return]

    def run(self, argv: tuple[str, ...], *, timeout: float = 20.0) -> str:
        self.asked.append(argv)
        answer = self.answers[" ".join(argv)]
        if isinstance(answer, CommandFailed):
            raise answer
        return answer


def host_with(root: Path, *names: str) -> Host:
    for name in names:
        folder = root / "sys/class/net" / name
        folder.mkdir(parents=True)
        (folder / "type").write_text("32\n" if name.startswith("ib") else "1\n")
    return Host(nics=(Nic(address=A, interfaces=names),))


def test_ethernet_ports_are_asked_and_a_serial_number_is_left_out(tmp_path: Path) -> None:
    host = host_with(tmp_path, "eth0", "ib0", "-x")
    serial = SFP + "\tVendor SN                                 : F2020533679\n"
    no = CommandFailed(("ethtool", "eth0"), "not installed")
    system = Asked(tmp_path, {"ethtool eth0": no, "ethtool -m eth0": serial})
    found = read_port_details(Reader(system), host)
    assert found == {"eth0": told(SFP, modes_error="not installed")}
    assert system.asked == [("ethtool", "eth0"), ("ethtool", "-m", "eth0")]
    failed = CommandFailed(("ethtool",), "exit status 95", "netlink error: Operation not supported\n")
    found = read_port_details(Reader(Asked(tmp_path, {"ethtool eth0": FAST, "ethtool -m eth0": failed})), host)
    assert found["eth0"] == told(modes=FAST, module_error="netlink error: Operation not supported")


def test_a_capture_answers_as_the_machine_did(tmp_path: Path) -> None:
    host = host_with(tmp_path, "eth0")
    commands = tmp_path / ".hosttune/commands"
    commands.mkdir(parents=True)
    (commands / "ethtool-eth0").write_text(FAST)
    (commands / "ethtool-m-eth0").write_text(json.dumps({"error": "not installed"}))
    system: System = Capture(str(tmp_path))
    assert read_port_details(Reader(system), host)["eth0"] == told(modes=FAST, module_error="not installed")
    (commands / "ethtool-m-eth0").write_text("{")
    assert read_port_details(Reader(system), host)["eth0"] == told(modes=FAST)
