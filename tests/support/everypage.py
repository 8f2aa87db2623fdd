"""Every kind of page, each from a document that has what is hard to show: faults, changes, long names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from certified import certificate, full_page, measured, statement
from msgspec.structs import replace
from unit.report.test_judged_pages import low, slow_host
from unit.report.test_report_plan_picture import INTENT, example

import hosttune
from hosttune.model.history import Caller, ChangedGuests, History, PastTransaction
from hosttune.model.intent import Intent
from hosttune.model.plan import GuestChange, PlanFinding, Source
from hosttune.model.quarantine import DeviceRecord, StartRecording
from hosttune.model.result import Entry
from hosttune.model.verification import DeviceStatus, HandoverStatus
from hosttune.planning.adopting import Definition, adopt
from hosttune.predicting import Scope, predict
from hosttune.report.adoption import adoption_report
from hosttune.report.blocks import Report
from hosttune.report.draw.html import page
from hosttune.report.handover import status_report
from hosttune.report.lint import environment_report, lint_report
from hosttune.report.plan import plan_report
from hosttune.report.prediction import diagnosis_report, prediction_report
from hosttune.report.result import history_report
from hosttune.rules.environment import judge
from hosttune.rules.lint import LintedDefinition, lint, rules

TESTS = Path(__file__).parents[1]
DEFINITIONS = TESTS / "cases" / "lint"


def every_page() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each page."""
    yield "certificate", certificate(measured(), statement())
    yield "no certificate", certificate(replace(measured(), verdict="unknown"))
    yield "validation", full_page(measured())
    for name in ("fleet-sample", "validation-4xh200"):
        yield name, (TESTS.parent / "docs" / f"{name}.html").read_text(encoding="utf-8")
    for name, report in _reports():
        yield name, page(report)


def _reports() -> Iterator[tuple[str, Report]]:
    host = example()
    plan = hosttune.plan(host, Intent.from_yaml(INTENT.read_text()))
    yield "plan", plan_report(plan, host)
    change = GuestChange(element="memory", was="512 GiB", becomes="1016 GiB", when="next-start")
    first, second, third = plan.guests
    guests = (replace(first, change="update", changes=(change,)), replace(second, change="keep"), third)
    error = PlanFinding(level="error", text="no IOMMU groups", where="/sys/kernel/iommu_groups")
    yield "update", plan_report(replace(plan, based_on=3, guests=guests, findings=(error, *plan.findings)), host)
    tuned = (DEFINITIONS / "virt-install-tuned.xml").read_bytes()
    yield "adoption", adoption_report(adopt(host, [Definition(tuned, "tuned")]), host, "hosttune apply --adopt tuned")
    yield "diagnosis", diagnosis_report(low(), slow_host())
    yield "prediction", prediction_report([predict(host, Scope("example", None, 2))], host)
    definitions = [LintedDefinition(path.name, path.read_bytes()) for path in sorted(DEFINITIONS.glob("*-gpu.xml"))]
    files = [definition.file for definition in definitions]
    yield "lint", lint_report(lint(host, definitions), files, rules(), "warn")
    text = "export NCCL_P2P_DISABLE=1\nexport NCCL_IB_HCA=mlx5_0\nsysctl -w kernel.numa_balancing=0\n"
    yield "environment", environment_report(judge(text, where="train.sh", host=host), "train.sh")
    quarantined = DeviceRecord(
        address="0000:41:00.0", identity="10de:2335", state="quarantined", since="2026-11-28T10:00:00+00:00",
        why="the hand-over was cut off", guest="team-blue-training-1", step="reset", handover="3",
    )  # fmt: skip
    devices = (DeviceStatus(record=quarantined, epoch=4),)
    recording = StartRecording(active=False, why="the hook of libvirt is another program's")
    yield "handover", status_report(HandoverStatus(host=host.hostname, devices=devices, recording=recording))
    entry = Entry(action="driver:0000:41:00.0", outcome="failed", before="nvidia", want="vfio-pci", why="it is held")
    past = PastTransaction(
        number=3, at="2026-11-28T10:00:00+00:00", verb="apply", by=Caller(login="root", sudo_user="jana.novak"),
        source=Source(kind="file", name="three-guests.yaml"), outcome="reverted", settings=41, entries=(entry,),
        guests=ChangedGuests(created=("train-a", "train-b"), updated=("tenant-c",)),
    )  # fmt: skip
    yield "history", history_report(History(transactions=(past,)))
