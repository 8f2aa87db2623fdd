"""Floors and peaks: what ships loads, and what cannot be right does not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosttune.assets import shipped_text
from hosttune.bench.baselines import Baseline, read_baselines, read_peaks, shipped, shipped_peaks
from hosttune.bench.metrics import METRICS, converted, metric_of
from hosttune.errors import BadInput
from hosttune.gpu.habana import HABANA

ROW = {
    "metric": '"device-copy"',
    "device": '"10de:2335"',
    "expected": "4247.0",
    "tolerance": "0.05",
    "direction": '"higher"',
    "unit": '"GB/s"',
    "source": '"measured"',
}


def read(**changes: str | None) -> tuple[Baseline, ...]:
    rows = {**ROW, **changes}
    text = "[[baseline]]\n" + "".join(f"{name} = {value}\n" for name, value in rows.items() if value is not None)
    return read_baselines(text, shipped().peaks, "mine.toml")


def refused(**changes: str | None) -> BadInput:
    with pytest.raises(BadInput) as caught:
        read(**changes)
    assert caught.value.where.startswith("mine.toml: baseline 1")
    return caught.value


def test_what_ships_loads_and_every_row_names_its_source() -> None:
    standard = shipped()
    assert len(standard.baselines) > 20
    for row in standard.baselines:
        assert len(row.source) > 15, row
        assert row.kind == "floor" or row.tolerance > 0, row
        most = standard.most(row.metric, row.device)
        assert most is not None, row
        assert 0 < row.limit <= row.expected <= most, row
    assert all(len(peaks.source) > 15 for peaks in standard.peaks.values())


def test_the_ceiling_of_bus_bandwidth_is_one_direction_of_the_links() -> None:
    """nccl-tests, doc/PERFORMANCE.md. With reduction in the switch all-reduce passes it, all-gather cannot."""
    standard = shipped()
    assert [standard.peak(name, "10de:2335") for name in ("all-reduce-4gib", "all-gather-4gib")] == [450.0, 450.0]
    assert [standard.most(name, "10de:2335") for name in ("all-reduce-4gib", "all-gather-4gib")] == [900.0, 450.0]
    assert standard.most("all-reduce-4gib", "10de:ffff") is None


def test_a_floor_of_2333_mb_for_hbm_does_not_load() -> None:
    """What DCGM ships for the H200: read as GB/s it is plausible and wrong, as MB/s it can never fail."""
    error = refused(expected="2333.0", tolerance="0.0", unit='"MB/s"')
    assert "could not fail" in error.what
    assert "MB/s are not GB/s" in error.hint


def test_a_floor_above_what_the_links_carry_does_not_load() -> None:
    """800 GB/s of all-gather bus bandwidth, over links of 450."""
    error = refused(metric='"all-gather-16gib"', expected="800.0")
    assert "above the physical peak of 450" in error.what


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"source": None}, "no source"),
        ({"source": '""'}, "source is missing"),
        ({"unit": '"TFLOP/s"'}, "TFLOP/s measures operations per second"),
        ({"unit": '"Gb/s"'}, "Gb/s measures bits per second"),
        ({"unit": '"GiB/s"'}, "unknown unit"),
        ({"metric": '"device-speed"'}, "unknown metric"),
        ({"device": '"H200"'}, "is not a PCI id"),
        ({"device": '"10de:ffff"'}, "no peak"),
        ({"direction": '"lower"'}, "is better higher"),
        ({"tolerance": "1.5"}, "tolerance is a fraction"),
        ({"tolerance": "true"}, "tolerance is a fraction"),
        ({"expected": "nan"}, "not a positive number"),
        ({"expected": "-4.0"}, "not a positive number"),
        ({"gpus": "0"}, "gpus is a number"),
        ({"kind": '"wanted_setting"'}, "unknown kind"),
        ({"tolerence": "0.05"}, "unknown key 'tolerence'"),
        ({"nvlinks": "18"}, "is not measured between two GPUs"),
        ({"metric": '"p2p-read-ce"', "expected": "335.0", "nvlinks": "0"}, "nvlinks is a number"),
        ({"metric": '"p2p-read-ce"', "expected": "335.0", "nvlinks": "true"}, "nvlinks is a number"),
    ],
)
def test_a_row_that_cannot_be_right_is_refused_by_name(changes: dict[str, str | None], said: str) -> None:
    assert said in refused(**changes).what


# Azure/azurehpc-health-checks @0e0a1ac, conf/: what was looked at, and whether it can be.
PUBLISHED = {
    ("nc80adis_h100_v5.conf, line 36", "h2d-ce", "10de:2321", 48.0): True,
    ("nc80adis_h100_v5.conf, line 36", "p2p-read-ce", "10de:2321", 335.0): False,  # its bridges carry 300
    ("nc80adis_h100_v5.conf, line 40", "all-reduce-16gib", "10de:2321", 208.0): True,
    ("nd96asr_v4.conf, line 54", "h2d-ce", "10de:20b0", 21.0): True,
    ("nd96asr_v4.conf, line 54", "p2p-read-ce", "10de:20b0", 235.0): True,
    ("nd96asr_v4.conf, line 57", "all-reduce-8gib", "10de:20b0", 228.0): True,
    ("nc48ads_a100_v4.conf, line 42", "all-reduce-16gib", "10de:20b5", 193.0): True,
    ("nc96ads_a100_v4.conf, line 42", "all-reduce-8gib", "10de:20b5", 25.0): False,  # below a fifth of the peak
}


@pytest.mark.parametrize(("published", "right"), PUBLISHED.items())
def test_published_floors_are_held_against_the_peak_first(published: tuple[str, str, str, float], right: bool) -> None:
    where, metric, device, expected = published
    row = {"metric": f'"{metric}"', "device": f'"{device}"', "expected": str(expected), "tolerance": "0.0"}
    if right:
        assert read(**row)[0].limit == expected
    else:
        assert refused(**row)
    taken = [one for one in shipped().baselines if (one.metric, one.device) == (metric, device) and where in one.source]
    assert [one.expected for one in taken] == ([expected] if right else [])


def test_no_row_is_of_a_device_that_is_not_measured() -> None:
    assert {row.device.partition(":")[0] for row in shipped().baselines} == {"10de", "1002"}


@pytest.mark.parametrize("device", ["1002:74a1", "1002:74b5"])
def test_floors_of_mi300x_are_those_that_azure_reads_into_its_two_numbers(device: str) -> None:
    """48 both ways between host and device, 44 between two GPUs: customTests/azure_gpu_bandwidth.nhc."""
    standard = shipped()
    rows = {row.metric: (row.expected, row.gpus) for row in standard.baselines if row.device == device}
    assert rows == {
        "h2d-ce": (48.0, None),
        "d2h-ce": (48.0, None),
        "p2p-write-ce": (44.0, 8),
        "all-reduce-16gib": (314.0, 8),
    }
    assert [standard.peak(metric, device) for metric in rows] == [63.0, 63.0, 64.0, 448.0]
    assert standard.peak("p2p-write-ce", device, 0) == 63.0
    assert standard.of("p2p-write-ce", device, 4) == standard.of("p2p-write-ce", device, 8, 0) == ()


def test_every_floor_between_gpus_says_for_how_many_links_it_is() -> None:
    standard = shipped()
    for row in standard.baselines:
        family = metric_of(row.metric)
        assert family is not None
        if family.pair:
            peaks = standard.peaks[row.device]
            assert row.nvlinks == peaks.nvlinks, row
            assert (row.nvlinks is None) == ("pair" in peaks.values), row


def test_the_parts_that_are_known_by_their_data_sheets() -> None:
    models = {peaks.model for peaks in shipped().peaks.values()}
    assert models >= {
        *("H100 NVL", "H200 NVL", "H20", "L40S", "RTX PRO 6000 Blackwell Server Edition", "B300 SXM", "GB200"),
        *("MI325X", "MI355X", "A100 SXM 40 GB"),
    }
    for peaks in shipped().peaks.values():
        assert peaks.nvlinks is None or peaks.values["scale-up"] / peaks.nvlinks in (25.0, 50.0), peaks.model
        if {"bf16", "fp8"} <= peaks.values.keys():
            assert 0.99 < peaks.values["fp8"] / peaks.values["bf16"] / 2 < 1.02 or peaks.model == "Gaudi3", peaks.model


@pytest.mark.parametrize("text", ["[[baseline]\n", "baseline = 3\n", "[[floor]]\n", "a = " + "[" * 5000])
def test_what_is_no_table_of_baselines_is_bad_input(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        read_baselines(text, {}, "mine.toml")
    assert caught.value.where.startswith("mine.toml")


def test_a_device_twice_in_the_roofline_is_refused() -> None:
    row = '[[device]]\nid = "10de:2335"\nmodel = "x"\nsource = "y"\n'
    with pytest.raises(BadInput) as caught:
        read_peaks(row + row, "roofline.toml")
    assert caught.value.where == "roofline.toml: device 2"


@given(value=st.floats(1e-3, 1e6), tolerance=st.floats(0, 0.99))
def test_whatever_loads_lies_between_a_part_of_the_peak_and_the_peak(value: float, tolerance: float) -> None:
    try:
        rows = read(expected=f"{value!r}", tolerance=f"{tolerance!r}")
    except BadInput:
        assert value > 4800 or value * (1 - tolerance) < 0.2 * 4800
        return
    assert 0.2 * 4800 <= rows[0].limit <= rows[0].expected <= 4800


@given(st.floats(0.001, 1e6), st.sampled_from(("MB/s", "TB/s", "GB/s")))
def test_units_are_converted_and_back(value: float, unit: str) -> None:
    there = converted(value, unit, "GB/s", "here")
    assert converted(there, "GB/s", unit, "here") == pytest.approx(value)


def test_a_floor_in_tb_per_second_is_the_same_floor() -> None:
    assert read(expected="4.247", unit='"TB/s"')[0].expected == pytest.approx(4247)


def test_a_size_belongs_to_the_figure_and_not_to_the_family() -> None:
    family = metric_of("all-reduce-16gib")
    assert family is not None
    assert family.name == "all-reduce"
    assert metric_of("h2d-ce-fast") is None
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_every_metric_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    names = {
        "p2p-read-sm": "p2p-*-sm",
        "p2p-write-sm": "p2p-*-sm",
        "all-reduce": "all-reduce-SIZE",
        "all-gather": "all-gather-SIZE",
    }
    assert [metric.name for metric in METRICS if f"`{names.get(metric.name, metric.name)}`" not in text] == []


def test_a_damaged_file_of_baselines_is_refused_by_name_or_still_plausible() -> None:
    standard = shipped()
    text = shipped_text("baselines", "gpus.toml")
    source = random.Random(2333)
    places: list[str] = []
    for _ in range(400):
        start = source.randrange(len(text))
        stop = start + source.choice((1, 1, 3, 40))
        damage = "".join(source.choice('0123456789.-="[]\nex') for _ in range(source.choice((0, 1, 3))))
        try:
            rows = read_baselines(text[:start] + damage + text[stop:], standard.peaks, "mine.toml")
        except BadInput as error:
            places.append(error.where)
            continue
        for row in rows:
            peak, most = standard.peak(row.metric, row.device), standard.most(row.metric, row.device)
            assert peak is not None
            assert most is not None
            assert 0.1 * peak <= row.limit <= row.expected <= most, row
    assert len(places) > 100
    assert all(place.startswith("mine.toml") for place in places)


def test_gaudis_peak_between_cards_is_that_of_its_internal_ports() -> None:
    """Of 24 ports 21 lead to the other cards of the board (docs.habana.ai); the others lead out of the host."""
    assert HABANA.ports is not None
    peaks = shipped_peaks().peaks
    for device, (internal, _) in HABANA.ports.counts.items():
        assert (
            dict(peaks[f"{HABANA.vendor_id}:{device}"].values)["scale-up"] == internal * HABANA.ports.external_gbps / 8
        )
