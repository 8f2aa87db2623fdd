"""Network ports that GPUs carry themselves: what hl-smi prints of them, and what the checks make of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from gpuevidence import A, B, evidence
from msgspec import structs

from hosttune.errors import CommandFailed
from hosttune.gpu.habana import HABANA, PORTS_QUERY, parse_ports
from hosttune.machine.capture import Archive
from hosttune.machine.reader import Reader
from hosttune.model.evidence import Evidence
from hosttune.model.gpu import Gpu, GpuPort
from hosttune.model.host import PciDevice
from hosttune.model.validation import CheckResult
from hosttune.rules.checks import judge

CASE = (Path(__file__).parents[2] / "cases/gpu/hl-smi-ports/gaudi3-x1.txt").read_text()
KINDS, STATES = (CASE.split("]\n")[n].split("[")[0] for n in (1, 2))
CARD = "0000:19:00.0"
UP = tuple(GpuPort(number=n, kind="external" if n in (5, 8, 9) else "internal", state="up") for n in range(24))
RATED = tuple(
    structs.replace(port, interface=f"acc0p{port.number}", rate_gbps=200.0) if port.kind == "external" else port
    for port in UP
)


def of(text: str) -> tuple[GpuPort, ...]:
    return parse_ports(text)[0].get(CARD, ())


def test_each_port_has_its_kind_and_its_state() -> None:
    found, problems = parse_ports(CASE)
    assert found == {CARD: UP}
    assert problems == ()


@pytest.mark.parametrize(
    ("text", "number", "kind", "state"),
    [
        (CASE.replace("port 3:\tUP", "port 3:\tDOWN"), 3, "internal", "down"),
        (CASE.replace("port 3:\tUP", "port  3:        UP"), 3, "internal", "up"),  # as Gaudi 2 prints it
        (CASE.replace("port 3:\tUP", "port 3:\tUNKNOWN"), 3, "internal", None),
        (CASE.replace("port 3:\tUP\n", ""), 3, "internal", None),
        (CASE + "port 3:\tDOWN\n", 3, "internal", None),
        (CASE.replace("port 8:\texternal", "port 8:\tsomething"), 8, None, "up"),
        (CASE.replace("port 8:\texternal\n", ""), 8, None, "up"),
        (CASE.replace("port 8:\texternal", "port 8:\texternal\nport 8:\tinternal"), 8, None, "up"),
    ],
)
def test_a_port_that_is_not_told_once_is_unknown(text: str, number: int, kind: str | None, state: str | None) -> None:
    assert text != CASE
    assert of(text)[number] == GpuPort(number=number, kind=kind, state=state)


@pytest.mark.parametrize("text", ["", "port 1: UP", f"[{CARD} link", "[x ports]\nport 1: internal", "\0\xff", "[]"])
def test_text_that_is_no_list_of_ports_gives_none(text: str) -> None:
    found, problems = parse_ports(text)
    assert found == {}
    assert {problem.what for problem in problems} == ({"not a port of hl-smi"} if text.strip() else set())


# --- live --------------------------------------------------------------------------------------------------------


class Tool(Archive):
    """A live machine with hl-smi; `fails` are addresses of cards whose ports it does not list."""

    captured = False

    def __init__(self, *fails: str) -> None:
        super().__init__({}, {}, "a machine")
        self.fails = fails
        self.ran: list[tuple[str, ...]] = []

    def query(self, name, live):  # type: ignore[no-untyped-def]
        return live()

    def run(self, argv: tuple[str, ...], *, timeout: float = 20.0) -> str:
        self.ran.append(argv)
        assert timeout <= 10
        if argv[4] in self.fails:
            raise CommandFailed(argv, "it hangs")
        return KINDS if argv[2] == "ports" else STATES


def card(
    address: str, driver: str = "habanalabs", status: str | None = None, device: str = "1060", vendor: str = "1da3"
) -> PciDevice:
    return PciDevice(
        address=address, vendor_id=vendor, device_id=device, class_code="120000", driver=driver, runtime_status=status
    )


def listed(system: Tool, *cards: PciDevice) -> tuple[dict[str, tuple[GpuPort, ...]], Reader]:
    reader = Reader(system)
    assert HABANA.ports is not None
    return dict(HABANA.ports.read(reader, cards)), reader


def test_hl_smi_is_asked_for_the_kinds_and_then_for_the_state_of_every_port() -> None:
    system = Tool()
    found, reader = listed(system, card(CARD))
    assert found == {CARD: UP}
    every = ",".join(map(str, range(24)))
    assert system.ran == [
        ("hl-smi", "-n", "ports", "-i", CARD),
        ("hl-smi", "-n", "link", "-i", CARD, "-P", every),
    ]
    assert reader.problems == []


def test_a_card_that_does_not_answer_leaves_the_others_known() -> None:
    found, reader = listed(Tool(B), card(B), card(CARD))
    assert found == {CARD: UP}
    assert [(problem.what, problem.where) for problem in reader.problems] == [("hl-smi did not answer", B)]


@pytest.mark.parametrize("other", [card(B, status="suspended"), card(B, driver="vfio-pci", status="suspended")])
def test_a_sleeping_card_is_not_woken(other: PciDevice) -> None:
    system = Tool()
    found, _ = listed(system, card(CARD), other)
    asleep = other.driver == "habanalabs"
    assert (found, bool(system.ran)) == (({}, False) if asleep else ({CARD: UP}, True))


# --- interfaces --------------------------------------------------------------------------------------------------


INTERFACES = {"acc0p8/dev_port": "8", "acc0p8/speed": "200000", "acc0p9/dev_port": "9", "acc0p9/speed": "100000"}


@pytest.mark.parametrize(
    ("files", "text", "told"),
    [
        ({}, CASE, {8: ("acc0p8", 200.0), 9: ("acc0p9", 100.0)}),
        ({"acc0p8/speed": "-1"}, CASE, {8: ("acc0p8", None), 9: ("acc0p9", 100.0)}),
        ({"acc0p8/speed": "fast"}, CASE, {8: ("acc0p8", None), 9: ("acc0p9", 100.0)}),
        ({}, CASE.replace("port 9:\tUP", "port 9:\tDOWN"), {8: ("acc0p8", 200.0), 9: ("acc0p9", None)}),
        ({"acc0p8/dev_port": "9"}, CASE, {}),
        ({"acc0p8/dev_port": "3"}, CASE, {9: ("acc0p9", 100.0)}),
        ({"acc0p8/dev_port": ""}, CASE, {9: ("acc0p9", 100.0)}),
    ],
)
def test_interfaces_and_rates_of_external_ports(
    files: dict[str, str], text: str, told: dict[int, tuple[str, float | None]]
) -> None:
    """`dev_port` is the port's number; two with one number are none, and an internal port has none."""
    here = {f"/sys/bus/pci/devices/{CARD}/net/{name}": v.encode() for name, v in (INTERFACES | files).items()}
    reader = Reader(Archive({**here, f"/.hosttune/commands/{PORTS_QUERY}": text.encode()}, {}, "test"))
    assert HABANA.ports is not None
    ports = HABANA.ports.read(reader, (card(CARD),))[CARD]
    assert {port.number: (port.interface, port.rate_gbps) for port in ports if port.interface} == told


# --- checks ------------------------------------------------------------------------------------------------------


def outcomes(found: Evidence) -> dict[str, dict[str, str]]:
    told: dict[str, dict[str, str]] = {"gpu-ports": {}, "scale-out-ports": {}}
    for result in judge(found):
        if result.check in told:
            told[result.check][result.subject] = result.outcome
    return told


def of_card(ports: tuple[GpuPort, ...] | None, device: str = "1060", driver: str = "habanalabs") -> tuple[str, str]:
    gpu = Gpu(address=A, vendor="habana", model="Intel Gaudi3", source="habanalabs")
    found = evidence(
        gpu,
        gpu_ports={} if ports is None else {A: ports},
        host={"pci": (card(A, driver, device=device),)},
    )
    told = outcomes(found)
    return told["gpu-ports"][A], told["scale-out-ports"][A]


def changed(number: int, **how: str | float | None) -> tuple[GpuPort, ...]:
    ports = list(RATED)
    ports[number] = structs.replace(ports[number], **how)
    return tuple(ports)


@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        (RATED, ("pass", "pass")),
        (changed(3, state="down"), ("fail", "pass")),
        (changed(8, state="down"), ("pass", "warn")),
        (changed(3, state=None), ("unknown", "pass")),
        (changed(8, state=None), ("pass", "unknown")),
        (changed(8, kind=None), ("unknown", "unknown")),
        (changed(8, rate_gbps=100.0), ("pass", "warn")),
        (changed(8, rate_gbps=400.0), ("pass", "pass")),
        (changed(8, rate_gbps=None), ("pass", "unknown")),
        (changed(8, interface=None, rate_gbps=None), ("pass", "unknown")),
        (changed(8, state="down", rate_gbps=None), ("pass", "warn")),
        (RATED[1:], ("unknown", "pass")),
        (RATED[:9] + RATED[10:], ("pass", "unknown")),
        ((*RATED, GpuPort(number=24, kind="internal", state="up")), ("unknown", "pass")),
        ((*changed(3, state="down"), GpuPort(number=24)), ("fail", "unknown")),
        ((), ("unknown", "unknown")),
        (None, ("unknown", "unknown")),
    ],
)
def test_ports(ports: tuple[GpuPort, ...] | None, expected: tuple[str, str]) -> None:
    assert of_card(ports) == expected


def test_where_no_source_counts_the_ports_none_passes() -> None:
    assert of_card(RATED, device="1063") == ("unknown", "unknown")
    assert of_card(changed(3, state="down"), device="1063") == ("fail", "unknown")


def test_ports_of_a_guests_card_are_its_guests_and_of_no_driver_unknown() -> None:
    assert of_card(None, driver="vfio-pci") == ("skip", "skip")
    assert of_card(RATED, driver="nouveau")[0] != "skip"


def board(drivers: list[str], down: int, hypervisor: bool | None = None) -> CheckResult:
    """The result of the first of several cards, of whose internal ports some are down."""
    addresses = [f"0000:{number:02x}:00.0" for number in range(0x19, 0x19 + len(drivers))]
    gpus = tuple(Gpu(address=one, vendor="habana", model="Intel Gaudi3", source="habanalabs") for one in addresses)
    inner = [port.number for port in RATED if port.kind == "internal"][:down]
    ports = tuple(structs.replace(port, state="down") if port.number in inner else port for port in RATED)
    pci = tuple(card(one, driver) for one, driver in zip(addresses, drivers, strict=True))
    found = evidence(*gpus, gpu_ports={addresses[0]: ports}, host={"pci": pci, "hypervisor": hypervisor})
    return next(one for one in judge(found) if (one.check, one.subject) == ("gpu-ports", addresses[0]))


@pytest.mark.parametrize(
    ("drivers", "down", "hypervisor", "expected"),
    [
        (["habanalabs"] * 8, 1, None, "fail"),
        (["habanalabs"] * 4 + ["vfio-pci"] * 4, 0, None, "pass"),
        (["habanalabs"] * 4 + ["vfio-pci"] * 4, 12, None, "unknown"),  # three to each card of a guest
        (["habanalabs"] * 4 + ["vfio-pci"] * 4, 13, None, "fail"),  # one more than lead there
        (["habanalabs"] * 4, 12, True, "unknown"),  # a guest with half of a board
        (["habanalabs"] * 4, 13, True, "fail"),
        (["habanalabs"] * 8, 1, True, "fail"),
        (["habanalabs"], 21, True, "unknown"),
        (["habanalabs"] * 4, 12, None, "fail"),  # cards that are lost are no cards of a guest
    ],
)
def test_ports_to_cards_that_another_machine_drives(
    drivers: list[str], down: int, hypervisor: bool | None, expected: str
) -> None:
    result = board(drivers, down, hypervisor)
    assert result.outcome == expected
    assert expected != "unknown" or "GPUs of its board are not driven here" in (result.actual or "")


def test_each_state_is_told_and_a_hint_says_what_to_do() -> None:
    gpu = Gpu(address=A, vendor="habana", model="Intel Gaudi3", source="habanalabs")
    ports = {A: changed(3, state="down")}
    found = evidence(gpu, gpu_ports=ports, host={"pci": (card(A),)})
    (result,) = (one for one in judge(found) if one.check == "gpu-ports")
    assert (result.expected, result.actual) == ("21 internal ports, each up", "0-2,4,6-7,10-23 up; 3 down")
    assert re.search("manage_network_ifs.sh --status", result.hint or "")


def test_a_slow_port_is_told_by_its_interface() -> None:
    gpu = Gpu(address=A, vendor="habana", model="Intel Gaudi3", source="habanalabs")
    found = evidence(gpu, gpu_ports={A: changed(8, rate_gbps=100.0)}, host={"pci": (card(A),)})
    (result,) = (one for one in judge(found) if one.check == "scale-out-ports")
    assert result.actual == "acc0p8 (8) at 100 Gb/s"
    assert "each has 200 Gb/s" in (result.hint or "")


def test_gpus_without_ports_of_their_own_have_no_such_result() -> None:
    found = evidence(
        Gpu(address=B, vendor="amd", source="amdgpu"), host={"pci": (card(B, "amdgpu", device="74a1", vendor="1002"),)}
    )
    assert set(outcomes(found)["gpu-ports"].values()) <= {"skip"}


def test_the_query_is_one_that_a_capture_holds() -> None:
    assert PORTS_QUERY in HABANA.queries
