"""The tools' outputs, parsed: a case is a file under cases/gpu and its expectation; h200's inputs lie in hosts/h200."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hosttune.errors import BadInput
from hosttune.gpu.amd_smi import parse_amd_smi
from hosttune.gpu.habana import parse_hl_smi
from hosttune.gpu.mig import parse_mig_placements, parse_mig_profiles
from hosttune.gpu.nvidia_links import (
    TopoMatrix,
    nvlinks_by_address,
    parse_nvlink_status,
    parse_topo_matrix,
    peers_from_matrix,
)
from hosttune.gpu.nvidia_smi import parse_smi_text, parse_smi_xml
from hosttune.gpu.nvidia_words import recovery
from hosttune.gpu.nvml_facts import parse_nvml
from hosttune.gpu.vendor import VendorAnswer
from hosttune.model.gpu import Gpu
from hosttune.model.values import to_builtins

CASES = Path(__file__).parents[2] / "cases" / "gpu"
H200 = Path(__file__).parents[2] / "hosts" / "h200"

GOLDEN: tuple[tuple[str, Path, Callable[[str], object]], ...] = (
    ("smi-xml/h200-x1", H200 / "nvidia-smi-q-x1.xml", parse_smi_xml),
    ("smi-xml/h200-x4", H200 / "nvidia-smi-q-x4.xml", parse_smi_xml),
    ("smi-text/h200-x4", H200 / "nvidia-smi-q-x4.txt", parse_smi_text),
    *((f"smi-text/{path.stem}", path, parse_smi_text) for path in sorted((CASES / "smi-text").glob("*.txt"))),
    ("nvlink/h200-x4", H200 / "nvlink-s-x4.txt", parse_nvlink_status),
    *((f"nvlink/{path.stem}", path, parse_nvlink_status) for path in sorted((CASES / "nvlink").glob("*.txt"))),
    ("mig/h200-lgip", H200 / "mig-lgip.txt", parse_mig_profiles),
    ("mig/h200-lgipp", H200 / "mig-lgipp.txt", parse_mig_placements),
    ("nvml/h200-x1", H200 / "nvml.json", lambda text: parse_nvml(text, only="0000:00:06.0")),
    ("nvml/h200-x1-health", CASES / "nvml" / "h200-x1-health.json", parse_nvml),
    *((f"hl-smi/{path.stem}", path, parse_hl_smi) for path in sorted((CASES / "hl-smi").glob("*.txt"))),
    *((f"amd-smi/{path.stem}", path, parse_amd_smi) for path in sorted((CASES / "amd-smi").glob("*.txt"))),
)


def without_unknown(value: Any) -> Any:
    """Plain values, unknown fields left out: an expectation lists what is known."""
    if isinstance(value, dict):
        return {str(key): without_unknown(entry) for key, entry in value.items() if entry is not None}
    return [without_unknown(entry) for entry in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize(("name", "source", "parse"), GOLDEN, ids=[name for name, *_ in GOLDEN])
def test_output_gives_the_expected_facts(
    name: str, source: Path, parse: Callable[[str], object], request: pytest.FixtureRequest
) -> None:
    facts = without_unknown(to_builtins(parse(source.read_text(encoding="utf-8"))))
    golden = CASES / f"{name}.expected.json"
    if request.config.getoption("--regenerate"):
        golden.write_bytes(msgspec.json.format(msgspec.json.encode(facts), indent=1) + b"\n")
    assert facts == msgspec.json.decode(golden.read_bytes())


@pytest.mark.parametrize("source", sorted((CASES / "topo").glob("*.txt")), ids=lambda path: path.stem)
def test_topology_matrix_gives_the_transcribed_facts(source: Path) -> None:
    expected = msgspec.json.decode(source.with_suffix(".expected.json").read_bytes())
    matrix = parse_topo_matrix(source.read_text(encoding="utf-8"))
    assert matrix is not None
    assert list(matrix.gpus) == expected["gpus"]
    assert list(matrix.nics) == expected["nics"]
    between = {gpu: {other: matrix.paths[gpu][other] for other in matrix.gpus if other != gpu} for gpu in matrix.gpus}
    assert between == expected["gpu_links"]
    assert {gpu: nearest(matrix, gpu) for gpu in matrix.gpus} == expected["gpu_best_nic"]
    assert to_builtins(matrix)["legend"] == expected["nic_legend"]


def nearest(matrix: TopoMatrix, gpu: str) -> list[str]:
    """The NICs behind the same switch as the GPU: PIX, else PXB, else none."""
    words = {nic: matrix.paths[gpu][nic] for nic in matrix.nics}
    best = next((word for word in ("PIX", "PXB") if word in words.values()), None)
    return [nic for nic, word in words.items() if word == best]


def test_xml_and_text_of_one_machine_tell_the_same() -> None:
    xml = parse_smi_xml((H200 / "nvidia-smi-q-x4.xml").read_text())
    text = parse_smi_text((H200 / "nvidia-smi-q-x4.txt").read_text())
    assert len(xml.gpus) == 4
    assert warm(xml) == warm(text)


def warm(answer: VendorAnswer) -> list[Gpu]:
    """The GPUs without what changed between the two runs of the tool."""
    moved = ("temperature_c", "temperature_margin_c")
    return [msgspec.structs.replace(gpu, **dict.fromkeys(moved)) for gpu in answer.gpus]


def test_hw_slowdown_of_all_eight_h100_is_told() -> None:
    gpus = parse_smi_text((CASES / "smi-text" / "h100-x8-535.txt").read_text()).gpus
    assert [gpu.clock_reasons for gpu in gpus] == [("hw_slowdown", "hw_power_brake_slowdown")] * 8
    assert [(gpu.address[5:7], gpu.module_id) for gpu in gpus] == [
        ("19", 2), ("3b", 4), ("4c", 1), ("5d", 3), ("9b", 7), ("bb", 5), ("cb", 6), ("db", 8),
    ]  # fmt: skip
    assert {(gpu.fabric_state, gpu.fabric_status, gpu.pcie_max_generation) for gpu in gpus} == {
        ("completed", "success", 5)
    }


def test_mig_hides_row_remaps_and_lists_instances_once() -> None:
    (gpu,) = parse_smi_text((CASES / "smi-text" / "h200-mig-590.txt").read_text()).gpus
    assert (gpu.remapped_pending, gpu.remapped_failed, gpu.remapped_uncorrectable) == (None, None, None)
    assert gpu.mig is not None
    assert gpu.mig.mode == "enabled"
    assert [instance.id for instance in gpu.mig.instances or ()] == [2, 3, 9, 10]  # two devices share instance 2
    assert gpu.memory_bytes == 143771 << 20  # the GPU's own, not a MIG device's


@pytest.mark.parametrize(
    ("word", "pending"), [("No", False), ("Yes", True), ("GPU requires reset", True), ("N/A", None), ("?", None)]
)
def test_a_repair_waits_where_the_driver_says_that_the_gpu_requires_a_reset(word: str, pending: bool | None) -> None:
    inner = f"<channel_repair_pending>{word}</channel_repair_pending><tpc_repair_pending>No</tpc_repair_pending>"
    (gpu,) = parse_smi_xml(smi(f"<ecc_errors>{inner}</ecc_errors>")).gpus
    assert (gpu.channel_repair_pending, gpu.tpc_repair_pending) == (pending, False)
    assert ("channel_repair_pending" in (gpu.lacks or ())) is (word == "N/A")


def test_module_id_zero_is_no_module() -> None:
    text = (H200 / "nvidia-smi-q-x1.xml").read_text().replace("<module_id>1<", "<module_id>0<")
    assert parse_smi_xml(text).gpus[0].module_id is None


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("<nvidia_smi_log><gpu", "not XML"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', "XML with its own DTD"),
        ("No devices were found", "not XML"),
        ("<nvidia_smi_log><!-- Yes --></nvidia_smi_log>", "XML with a comment"),
    ],
)
def test_hostile_or_broken_xml_is_refused(text: str, what: str) -> None:
    with pytest.raises(BadInput, match=what) as caught:
        parse_smi_xml(text)
    assert caught.value.where == "nvidia-smi-q-x"


def test_gpu_without_an_address_is_a_doubt_not_a_gpu() -> None:
    answer = parse_smi_xml('<nvidia_smi_log><gpu id="lost"><uuid>GPU-1</uuid></gpu></nvidia_smi_log>')
    assert answer.gpus == ()
    assert [(doubt.what, doubt.where) for doubt in answer.problems] == [("GPU without a PCI address", "nvidia-smi-q-x")]


@pytest.mark.parametrize("parse", [parse_topo_matrix, parse_nvlink_status, parse_mig_profiles, parse_mig_placements])
def test_other_text_holds_nothing(parse: Callable[[str], object]) -> None:
    assert not parse("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n\nNot Supported\n")


def test_gpu_off_the_fabric_has_pcie_peers_only() -> None:
    matrix = parse_topo_matrix((CASES / "topo" / "b200-one-gpu-off-nvlink.txt").read_text())
    assert matrix is not None
    peers = peers_from_matrix(matrix, tuple(f"0000:{n:02x}:00.0" for n in range(1, 9)))
    assert {peer.kind for peer in peers["0000:03:00.0"]} == {"pcie"}
    assert [peer.links for peer in peers["0000:01:00.0"]] == [18, None, 18, 18, 18, 18, 18]


@pytest.mark.parametrize("text", ["[]", "{", "[" * 100000, '{"error": "Driver Not Loaded"}'])
def test_nvml_record_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_nvml(text)
    assert caught.value.where == "nvml.json"


def test_a_row_of_the_matrix_that_is_not_itself_at_its_place_is_no_row() -> None:
    rows = ("GPU0", "X", "NV4"), ("GPU1", "X", "NV4")
    matrix = parse_topo_matrix("\n".join(("\tGPU0\tGPU1", *map("\t".join, rows))))
    assert matrix is not None
    assert matrix.paths == {"GPU0": {"GPU1": "NV4"}}


# --- what is told twice --------------------------------------------------------------------------------------

ROWS = "<remapped_rows><remapped_row_pending>{}</remapped_row_pending></remapped_rows>"
HARD = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")


def smi(*gpus: str, ids: tuple[str, ...] = ("0000:18:00.0", "0000:29:00.0")) -> str:
    inner = "".join(f'<gpu id="{one}"><uuid>GPU-{one}</uuid>{gpu}</gpu>' for one, gpu in zip(ids, gpus, strict=False))
    return f"<nvidia_smi_log>{inner}</nvidia_smi_log>"


def reasons(form: str, word: str) -> str:
    inner = "".join(f"<clocks_{form}_reason_{name}>{word}</clocks_{form}_reason_{name}>" for name in HARD)
    return f"<clocks_{form}_reasons>{inner}</clocks_{form}_reasons>"


@pytest.mark.parametrize("words", [("Yes", "No"), ("No", "Yes"), ("Yes", "N/A"), ("N/A", "No")])
def test_an_element_that_stands_twice_and_differs_tells_nothing(words: tuple[str, str]) -> None:
    (gpu,) = parse_smi_xml(smi("".join(map(ROWS.format, words)))).gpus
    assert gpu.remapped_pending is None
    assert "remapped_pending" not in (gpu.lacks or ())
    (alike,) = parse_smi_xml(smi(ROWS.format("Yes") * 2)).gpus
    assert alike.remapped_pending is True


@pytest.mark.parametrize("forms", [("event", "throttle"), ("throttle", "event"), ("event", "event")])
@pytest.mark.parametrize("words", [("Active", "Not Active"), ("Not Active", "Active")])
def test_a_clock_reason_is_active_if_any_copy_says_so(forms: tuple[str, str], words: tuple[str, str]) -> None:
    (gpu,) = parse_smi_xml(smi("".join(map(reasons, forms, words)))).gpus
    assert set(gpu.clock_reasons or ()) == set(HARD)


def test_a_gpu_that_stands_twice_and_differs_is_left_out() -> None:
    ids = ("0000:18:00.0", "0000:18:00.0")
    answer = parse_smi_xml(smi(ROWS.format("Yes"), ROWS.format("No"), ids=ids))
    assert answer.gpus == ()
    assert [(one.what, one.where) for one in answer.problems] == [("GPU listed twice", "0000:18:00.0")]
    assert len(parse_smi_xml(smi(ROWS.format("Yes"), ROWS.format("Yes"), ids=ids)).gpus) == 1


def test_a_gpu_whose_own_bus_id_is_another_joins_no_function() -> None:
    answer = parse_smi_xml(smi("<pci><pci_bus_id>00000000:29:00.0</pci_bus_id></pci>"))
    assert (answer.gpus, [one.what for one in answer.problems]) == ((), ["GPU without a PCI address"])


ENTRY = '{{"busId": "00000000:18:00.0", "nvmlDeviceGetRemappedRows": [0, 0, {}, 0]}}'


@pytest.mark.parametrize("key", ["9", "00"])
def test_two_nvml_entries_of_one_bus_id_are_a_contradiction(key: str) -> None:
    answer = parse_nvml(f'{{"0": {ENTRY.format(1)}, "{key}": {ENTRY.format(0)}}}')
    assert (answer.gpus, answer.problems[-1].what) == ((), "GPU listed twice")


def test_an_nvml_answer_with_a_key_twice_is_none() -> None:
    with pytest.raises(BadInput, match="is there twice"):
        parse_nvml(f'{{"0": {ENTRY.format(1)}, "0": {ENTRY.format(0)}}}')


LINKS = "GPU 0: NVIDIA H200 (UUID: GPU-a)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n"


@pytest.mark.parametrize(
    ("text", "links"),
    [
        (LINKS, (26.562, None)),
        (LINKS.replace("Link 1: <inactive>", "Link 0: 26.562 GB/s"), None),
        (LINKS.replace("Link 1:", "Link 2:"), None),
        (LINKS + "\t Link 1: 26.562 GB/s\n", None),
        (LINKS + "".join(f"\t Link {n}: 26.562 GB/s\n" for n in range(2, 19)), None),
    ],
)
def test_nvlinks_are_numbered(text: str, links: tuple[float | None, ...] | None) -> None:
    assert [status.links for status in parse_nvlink_status(text)] == [links]


def test_nvlinks_are_those_of_the_gpu_whose_uuid_and_place_agree() -> None:
    gpus = (Gpu(address="0000:01:00.0", uuid="GPU-a"), Gpu(address="0000:02:00.0", uuid="GPU-b"))
    two = (*parse_nvlink_status(LINKS), *parse_nvlink_status(LINKS.replace("GPU 0", "GPU 1").replace("GPU-a", "GPU-b")))
    assert nvlinks_by_address(two, gpus, numbered=True).keys() == {gpu.address for gpu in gpus}
    exchanged = tuple(msgspec.structs.replace(one, index=1 - one.index) for one in two)
    assert nvlinks_by_address(exchanged, gpus, numbered=True) == {}
    assert len(nvlinks_by_address(exchanged, gpus, numbered=False)) == 2, "only the UUID is known"
    assert nvlinks_by_address((*two, two[0]), gpus, numbered=True).keys() == {"0000:02:00.0"}
    shorter = (two[0], msgspec.structs.replace(two[1], links=(26.562,)))
    assert nvlinks_by_address(shorter, gpus, numbered=True).keys() == {"0000:01:00.0"}, "one link of the other is lost"


MATRIX = "\tGPU0\tGPU1\tGPU2\nGPU0\t X \tNV18\tNV18\nGPU1\tNV18\t X \tNV18\nGPU2\tNV18\tNV18\t X \n"


def test_a_matrix_is_told_once_and_reads_the_same_from_both_sides() -> None:
    order = tuple(f"0000:0{n}:00.0" for n in range(3))
    matrix = parse_topo_matrix(MATRIX)
    assert matrix is not None
    assert peers_from_matrix(matrix, order).keys() == set(order)
    odd = parse_topo_matrix(MATRIX.replace("GPU0\t X \tNV18", "GPU0\t X \tSYS"))
    assert odd is not None
    assert peers_from_matrix(odd, order).keys() == {order[2]}
    assert parse_topo_matrix(f"{MATRIX}\n{MATRIX}") is None
    assert parse_topo_matrix(MATRIX + "GPU2\tNV18\tNV18\t X \n") is None


# --- words and numbers that are none ---------------------------------------------------------------------------

CORE = ("bandwidth", "route_recovery_in_progress", "route_unhealthy", "access_timeout_recovery")
WELL = {**dict.fromkeys(CORE, "False"), "bandwidth": "Full"}


def fabric(**health: str | None) -> str:
    inner = "".join(f"<{name}>{word}</{name}>" for name, word in health.items() if word is not None)
    return f"<fabric><state>Completed</state><status>Success</status><health>{inner}</health></fabric>"


@pytest.mark.parametrize(
    ("health", "faults", "status"),
    [
        ({}, (), "success"),
        ({"bandwidth": "Degraded", "route_unhealthy": "[Unknown Error]"}, ("bandwidth degraded",), "success"),
        ({"route_unhealthy": "True"}, ("route unhealthy",), "success"),
        ({"incorrect_configuration": "No Partition"}, ("no partition",), "success"),
        ({"summary": "Limited Capacity"}, ("summary limited capacity",), "success"),
        ({"summary": "Healthy", "incorrect_configuration": "None", "partition_assigned": "True"}, (), "success"),
        ({"something_new": "Perhaps"}, (), "success"),
        *(({"route_unhealthy": word}, None, None) for word in (None, "", "[Unknown Error]", "None", "Full")),
        (dict.fromkeys(CORE, "N/A"), None, "success"),
        (dict.fromkeys(CORE), None, "success"),
        ({**dict.fromkeys(CORE, "N/A"), "bandwidth": "[GPU is lost]"}, None, None),
        ({**dict.fromkeys(CORE), "bandwidth": "Full"}, (), "success"),  # older drivers tell of no more
    ],
)
def test_health_of_the_fabric_is_told_by_known_words_of_each_element(
    health: dict[str, str | None], faults: tuple[str, ...] | None, status: str | None
) -> None:
    (gpu,) = parse_smi_xml(smi(fabric(**{**WELL, **health}))).gpus
    assert (gpu.fabric_state, gpu.fabric_health, gpu.fabric_status) == ("completed", faults, status)


@pytest.mark.parametrize("word", [None, "N/A", "", "[GPU is lost]"])
@pytest.mark.parametrize("name", [*CORE, "incorrect_configuration"])
def test_an_element_that_a_sister_tells_is_not_lost(name: str, word: str | None) -> None:
    well: dict[str, str | None] = {**WELL, "incorrect_configuration": "None"}
    one, other = parse_smi_xml(smi(fabric(**{**well, name: word}), fabric(**well))).gpus
    assert (one.fabric_health, one.fabric_status) == (None, None)
    assert (other.fabric_health, other.fabric_status) == ((), "success")


@pytest.mark.parametrize(
    ("element", "field", "known"),
    [
        ("<compute_mode>{}</compute_mode>", "compute_mode", {"Prohibited": "prohibited", "Exclusive_Process": ...}),
        ("<compute_mode>{}</compute_mode>", "compute_mode", {"Pr0hibited": None, "-7": None, "NaN": None, "N/A": None}),
        (
            "<gpu_power_readings><default_power_limit>{}</default_power_limit></gpu_power_readings>",
            "power_default_watts",
            {"700.00 W": 700.0, "400 %": None, "700.00": None, "0.70 kW": None, "-1 W": None, "1 2 W": None},
        ),
        (
            "<default_applications_clocks><graphics_clock>{}</graphics_clock></default_applications_clocks>",
            "default_application_clock_mhz",
            {"1980 MHz": 1980.0, "1.98 GHz": None, "1980": None, "1980 W": None},
        ),
    ],
)
def test_a_word_or_a_unit_that_is_none_tells_nothing(element: str, field: str, known: dict[str, Any]) -> None:
    for text, value in known.items():
        (gpu,) = parse_smi_xml(smi(element.format(text))).gpus
        assert getattr(gpu, field) == (text.casefold() if value is ... else value), text


@pytest.mark.parametrize(("requested", "limit"), [("700.00 W", 700.0), ("900.00 W", 700.0), ("400.00 W", None)])
def test_no_power_limit_is_above_the_one_asked_for(requested: str, limit: float | None) -> None:
    readings = f"<current_power_limit>700.00 W</current_power_limit><requested_power_limit>{requested}"
    text = f"<gpu_power_readings>{readings}</requested_power_limit></gpu_power_readings>"
    assert parse_smi_xml(smi(text)).gpus[0].power_limit_watts == limit


@pytest.mark.parametrize(
    ("status", "told"),
    [("Insufficient Resources", "insufficient resources"), ("[Insufficient Permissions]", None), ("N/A", None)],
)
def test_a_status_that_is_an_error_is_told(status: str, told: str | None) -> None:
    text = fabric(bandwidth="N/A").replace("Success", status)
    assert parse_smi_xml(smi(text)).gpus[0].fabric_status == told


@pytest.mark.parametrize("inner", ["No<x/>Yes", "No<x/>", "<x/>No"])
def test_text_around_another_element_is_no_value(inner: str) -> None:
    (gpu,) = parse_smi_xml(smi(ROWS.format(inner))).gpus
    assert (gpu.remapped_pending, gpu.lacks) == (None, None)


@pytest.mark.parametrize(
    ("inner", "count"),
    [
        ("\n\t", 0),
        ("None", 0),
        ("<process_info><pid>7</pid></process_info><process_info><pid>8</pid></process_info>", 2),
        ("<process_info><type>C</type></process_info>", 1),
        ("None<process_info/>", 1),
        ("[Unknown Error]", None),
        ("N0ne", None),
    ],
)
def test_a_listed_process_is_one_without_its_number_too(inner: str, count: int | None) -> None:
    assert parse_smi_xml(smi(f"<processes>{inner}</processes>")).gpus[0].processes == count


DEVICE = "<mig_devices><mig_device><gpu_instance_id>2</gpu_instance_id></mig_device></mig_devices>"


@pytest.mark.parametrize(("mode", "told"), [("Enabled", "enabled"), ("Disabled", None), ("N/A", None)])
def test_a_gpu_that_lists_mig_devices_is_not_out_of_mig_mode(mode: str, told: str | None) -> None:
    text = f"<mig_mode><current_mig>{mode}</current_mig><pending_mig>Enabled</pending_mig></mig_mode>{DEVICE}"
    (gpu,) = parse_smi_xml(smi(text)).gpus
    assert gpu.mig is not None
    assert (gpu.mig.mode, gpu.lacks) == (told, None)


def test_more_gpus_than_the_driver_has_numbers_for_are_refused() -> None:
    ids = tuple(f"{n:04x}:18:00.0" for n in range(249))
    with pytest.raises(BadInput, match=r"249 GPUs that .*, more than 248") as xml:
        parse_smi_xml(smi(*("",) * 249, ids=ids))
    with pytest.raises(BadInput, match=r"249 GPUs that .*, more than 248") as text:
        parse_smi_text("".join(f"GPU 0000{one}\n" for one in ids))
    assert (xml.value.where, text.value.where) == ("nvidia-smi-q-x", "nvidia-smi-q")


@pytest.mark.parametrize(
    ("action", "answers", "expected"),
    [
        (None, ("GPU requires reset", "45 C"), "reset"),
        ("none", ("ERR GPU is lost", "ERR GPU requires reset"), "reboot"),
        ("drain and reset", ("ERR GPU requires reset",), "drain and reset"),
        ("none", ("ERR Not Supported", 7, None), "none"),
        (None, (), None),
    ],
)
def test_an_error_in_place_of_a_value_says_what_recovers_the_gpu(
    action: str | None, answers: tuple[object, ...], expected: str | None
) -> None:
    assert recovery(action, answers) == expected
