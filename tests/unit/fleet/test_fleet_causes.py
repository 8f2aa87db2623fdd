"""`fleet report`: which host is low, and why, grouped by cause. It explains, and never changes a verdict."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fleetresults import example, html, markdown, printed, validation, write, write_validation

from hosttune.fleet.overview import RunContext, report_of
from hosttune.fleet.results import host_folder
from hosttune.model.fleet import Answer, CauseGroup, FleetReport
from hosttune.model.host import Host, LinkEnd
from hosttune.model.limits import limit
from hosttune.model.validation import Machine, MeasuredGpu, Sample, Validation

RUN = "20260301T093000Z-1"
HOST = example()[0]
SLOW = HOST.gpus[2].address  # `fleetresults.figures` makes this one slow
replace = msgspec.structs.replace
GPUS = tuple(
    MeasuredGpu(address=gpu.address, model=gpu.model or "", id=HOST.index.ids(gpu.address))
    for gpu in HOST.index.accelerators
)


def measured(*, slow: bool = False, digest: str | None = None, **values: float) -> Validation:
    """A validation of the example; `values` replace all figures of a metric."""
    found = validation("host", random.Random(3), slow=slow)
    named = {name.replace("_", "-"): value for name, value in values.items()}
    display = {gpu.address for gpu in HOST.gpus} - {gpu.address for gpu in HOST.index.accelerators}
    samples = tuple(
        replace(one, value=named.get(one.metric, one.value)) for one in found.samples if one.subject not in display
    )
    return replace(found, samples=samples, machine=Machine(digest=digest, gpus=GPUS))


def x8(host: Host) -> Host:
    """The slow GPU's link has lost half of its lanes."""
    end = LinkEnd(address="0000:40:00.0", speed_gts=32.0, width=8, max_speed_gts=32.0, max_width=16)
    pci = tuple(
        replace(one, link=replace(one.link, width=8, state="degraded", upstream=end))
        if one.address == SLOW and one.link is not None
        else one
        for one in host.pci
    )
    return replace(host, pci=pci)


def capped(host: Host) -> Host:
    return replace(
        host, gpus=tuple(replace(one, power_limit_watts=400.0, power_default_watts=700.0) for one in host.gpus)
    )


def discovered(folder: Path, name: str, change: Callable[[Host], Host] = lambda host: host) -> None:
    document = change(replace(HOST, hostname=name))
    write(folder, Answer(host=name, phase="discover", run=RUN, outcome="ok", exit_code=0), document)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("results")
    for name in ("gpu-1", "gpu-2"):
        write_validation(place, name, measured(slow=True))
        discovered(place, name, x8)
    write_validation(place, "gpu-3", measured(gemm_bf16=520.0))
    discovered(place, "gpu-3", capped)
    write_validation(place, "gpu-4", measured())
    discovered(place, "gpu-4")
    return place


def reported(folder: Path, *names: str) -> FleetReport:
    return report_of(str(folder), names or ("gpu-1", "gpu-2", "gpu-3", "gpu-4"), RunContext(verb="validate", run=RUN))


def test_hosts_that_are_low_are_grouped_by_their_first_cause(folder: Path) -> None:
    report = reported(folder)
    assert [(one.cause, one.hosts, one.figures) for one in report.causes] == [
        ("pcie-link-degraded", ("gpu-1", "gpu-2"), 2),
        ("power-cap", ("gpu-3",), 8),
    ]
    link, power = report.causes
    assert link.grade == "proven"
    assert link.remedy is not None
    assert "reseat" in link.remedy
    assert (link.example or "").startswith(f"gpu-1: h2d {SLOW} 27.")
    assert "typical 55.5" in (link.example or "")
    assert "400" in " ".join(power.evidence)
    assert [len(line.low) for line in report.hosts] == [1, 1, 8, 0]
    assert report.hosts[3].causes == ()
    assert FleetReport.from_json(report.to_json()) == report


def test_the_formats_name_host_figure_cause_and_remedy(folder: Path) -> None:
    report = reported(folder)
    text = printed(report)
    text = " ".join(text.split())
    assert "Hosts that are low, by cause: 3 of 4" in text
    assert "pcie-link-degraded: 2 low figures of 2 hosts hosts: gpu-1, gpu-2 grade: proven: " in text
    page, table = html(report), markdown(report)
    for found in (text, page, table):
        for words in ("pcie-link-degraded", "power-cap", "reseat the card or riser", f"h2d {SLOW} 27."):
            assert words in found


def test_a_healthy_fleet_has_no_such_section(folder: Path) -> None:
    report = reported(folder, "gpu-4")
    text = printed(report)
    assert report.causes == ()
    for found in (text, html(report), markdown(report)):
        assert "by cause" not in found


def test_no_verdict_depends_on_it(folder: Path) -> None:
    for line in reported(folder).hosts:
        kept = json.loads((folder / host_folder(line.host) / "validate.json").read_text())["verdict"]
        assert line.verdict == kept


def low_of(folder: Path, tmp_path: Path, document: Any) -> CauseGroup:
    """The only group of a slow host whose host document is this."""
    write_validation(tmp_path, "gpu-1", measured(slow=True, digest="a" * 64))
    place = tmp_path / host_folder("gpu-1") / "discover.json"
    if isinstance(document, bytes):
        place.write_bytes(document)
    elif document is not None:
        write(tmp_path, Answer(host="gpu-1", phase="discover", run=RUN, outcome="ok", exit_code=0), document)
    (found,) = reported(tmp_path, "gpu-1").causes
    return found


@pytest.mark.parametrize(
    "document",
    [
        None,
        b"",
        b'{"schema": "hosttune.host/v1", "pci": [',
        b'{"schema": "hosttune.plan/v1"}',
        replace(x8(HOST), digest="b" * 64),
    ],
    ids=["none", "empty", "cut", "of another kind", "of another machine"],
)
def test_without_the_host_document_a_figure_is_low_and_the_link_is_not_called_seen(
    folder: Path, tmp_path: Path, document: Any
) -> None:
    found = low_of(folder, tmp_path, document)
    assert found.figures == 1
    assert not (found.cause == "pcie-link-degraded" and found.grade in ("proven", "observed"))


def test_the_host_document_of_the_same_machine_is_used(folder: Path, tmp_path: Path) -> None:
    found = low_of(folder, tmp_path, replace(x8(HOST), digest="a" * 64))
    assert (found.cause, found.grade) == ("pcie-link-degraded", "proven")


def test_a_low_figure_without_a_cause_says_what_to_measure(tmp_path: Path) -> None:
    samples = tuple(Sample(metric="rdma-write", subject="mlx5_0", value=200.0, unit="Gb/s") for _ in range(5))
    write_validation(tmp_path, "gpu-1", replace(measured(), samples=samples))
    discovered(tmp_path, "gpu-1")
    report = reported(tmp_path, "gpu-1")
    for one in report.causes:
        assert one.confirm


def test_figures_that_cannot_be_diagnosed_are_said(tmp_path: Path) -> None:
    most = limit("figures of a diagnosis")
    one = Sample(metric="h2d-ce", subject="gpu", value=1.0, unit="GB/s")
    many = tuple(replace(one, subject=f"gpu {n}") for n in range(most + 1))
    write_validation(tmp_path, "gpu-1", replace(measured(), samples=many))
    report = reported(tmp_path, "gpu-1")
    assert report.causes == ()
    assert any("are not diagnosed" in note for note in report.notes)


def test_names_of_a_hostile_host_stay_text(tmp_path: Path) -> None:
    bad = "<script>window.hacked=1</script>| [x](http://x)\n# heading"
    samples = tuple(Sample(metric="h2d-ce", subject=bad, value=9.0, unit="GB/s") for _ in range(5))
    write_validation(tmp_path, "gpu-1", replace(measured(), samples=samples))
    report = reported(tmp_path, "gpu-1")
    assert report.hosts[0].low
    assert "<script>window.hacked" not in html(report)
    table = markdown(report)
    assert "<script>" not in table
    assert "\n# heading" not in table
    text = printed(report)
    assert "\n# heading" not in text


def test_an_older_report_has_no_causes(folder: Path) -> None:
    document = json.loads(reported(folder).to_json())
    del document["causes"]
    for line in document["hosts"]:
        for name in ("low", "low_untold", "causes"):
            del line[name]
    assert FleetReport.from_json(json.dumps(document)).causes == ()
