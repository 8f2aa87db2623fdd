"""Parse the document of `hosttune.bench.gpu_child` and `hosttune.bench.memory_child`."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from typing import Any

from hosttune.bench.metrics import metric_of
from hosttune.bench.parse.answer import Lost, NotUnderstood, ParsedOutput, document, number, part
from hosttune.model.validation import CheckResult, Sample

TOOL = "hosttune's own benchmark"
_LONGEST_SIDE = 1 << 20


def parse(text: str, missing: str = "measurement") -> ParsedOutput:
    """Return the figures in the order of their runs. Raises NotUnderstood, also for a damaged document."""
    root = document(text, TOOL)
    records = part(root.get("records"), list, TOOL, "records")
    if zlib.crc32(json.dumps(records, sort_keys=True).encode()) != root.get("sum"):
        raise NotUnderstood(TOOL, "the checksum of the records is wrong")
    for record in records:
        part(record, dict, TOOL, "a record")
    samples = tuple(sample for record in records if "values" in record for sample in _samples(record))
    lost = tuple(row for record in records if "error" in record for row in _lost(record, missing))
    skips = tuple(_skip(record) for record in records if "skip" in record)
    sides = {}
    for record in records:
        if "values" in record and "n" in record:
            side = record["n"]
            if not isinstance(side, int) or isinstance(side, bool) or not 1 <= side <= _LONGEST_SIDE:
                raise NotUnderstood(TOOL, f"the side of a product cannot be {str(side)[:40]!r}")
            sides[f"{record['metric']}-side"] = str(side)
    versions = root.get("versions")
    known = versions.items() if isinstance(versions, dict) else ()
    facts = {str(name): str(value) for name, value in known if value is not None}
    return ParsedOutput(samples, skips, lost, facts | sides)


def _samples(record: dict[str, Any]) -> Iterator[Sample]:
    metric = part(record.get("metric"), str, TOOL, "metric")
    family = metric_of(metric)
    if family is None or record.get("unit") != family.unit:
        raise NotUnderstood(TOOL, f"{metric!r} in {record.get('unit')!r} is not a metric that hosttune knows")
    subject = part(record.get("subject"), str, TOOL, "subject")
    for value in part(record["values"], list, TOOL, "values"):
        yield Sample(metric=metric, subject=subject, value=number(value, TOOL, metric), unit=family.unit)


def _skip(record: dict[str, Any]) -> CheckResult:
    metric, subject, why = (part(record.get(name), str, TOOL, name) for name in ("metric", "subject", "skip"))
    return CheckResult(check=f"bench-{metric}", subject=subject, outcome="skip", actual=why)


def _lost(record: dict[str, Any], missing: str) -> Iterator[Lost]:
    why = part(record["error"], str, TOOL, "error")
    subject = part(record.get("subject"), str, TOOL, "subject")
    names = part(record.get("metrics"), list, TOOL, "metrics") or [missing]
    for name in names:
        for address in subject.split(","):
            yield Lost(part(name, str, TOOL, "metric"), address, why)
