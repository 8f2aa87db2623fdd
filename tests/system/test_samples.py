"""The sample pages of the documentation are what the reports print now; `pytest --regenerate` writes them anew."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from fleetresults import LOST, RUN, html, names, validation, write_discovered, write_lost, write_validation

from hosttune.cli.validate import report_of as validation_of
from hosttune.discovery.evidence import gather
from hosttune.fleet.overview import RunContext, report_of
from hosttune.machine.opening import open_root
from hosttune.model.validation import Validation
from hosttune.report.draw.html import page
from hosttune.validating import Validated

DOCS = Path(__file__).parents[2] / "docs"
H200 = Path(__file__).parents[1] / "hosts" / "h200"


def four_gpus(_: Path) -> str:
    """The measured validation of four H200 as it was printed, over a capture of such a machine.

    What only names devices is left out: it comes from the pci.ids of the machine that makes the page.
    """
    measured = Validation.from_json((H200 / "vm-x4-level1.json").read_text())
    evidence = gather(open_root(str(H200.parent / "older" / "vm-x4.tar.gz")), inside=True)
    host = evidence.host
    nameless = tuple(msgspec.structs.replace(one, vendor_name=None, device_name=None) for one in host.pci)
    host = msgspec.structs.replace(host, hostname=measured.host, pci=nameless)
    return page(validation_of(Validated(measured, msgspec.structs.replace(evidence, host=host)), None))


def sick_fleet(folder: Path) -> str:
    """24 hosts made from the bundled example: one failed, one unknown, one slow, six without an answer."""
    draw = random.Random(7)
    hosts = names(24)
    for n, name in enumerate(hosts, start=1):
        write_discovered(folder, name)
        if n % 4 == 1 and n // 4 in range(1, 1 + 6):
            write_lost(folder, name, *LOST[n // 4 - 1])
        else:
            faults = {3: 3, 23: 1}.get(n, 0)
            write_validation(folder, name, validation(name, draw, faults=faults, slow=n == 8))
    groups = {name: (f"rack-{1 + n // 8}",) for n, name in enumerate(hosts)}
    asked = RunContext("validate", run=RUN, groups=groups, at="2026-03-01T10:00:00Z", version="0.1.0")
    return html(report_of(str(folder), hosts, asked))


SAMPLES: dict[str, Callable[[Path], str]] = {
    "validation-4xh200.html": four_gpus,
    "fleet-sample.html": sick_fleet,
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_page_is_as_it_is_printed_now(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    made = SAMPLES[name](tmp_path)
    if request.config.getoption("--regenerate"):
        (DOCS / name).write_text(made, encoding="utf-8")
    assert (DOCS / name).read_text(encoding="utf-8") == made
