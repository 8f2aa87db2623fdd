"""The metrics of a fleet's hosts, as Prometheus has them (`/federate`) → one result for each host of a report.

They are newer than the answers of a run: a host that passed when it was validated may have failed since.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, get_args

import msgspec

from hosttune.errors import BadInput
from hosttune.journal.state import load_text
from hosttune.metrics import families as f
from hosttune.model.limits import limit
from hosttune.model.listing import some
from hosttune.model.validation import CheckResult, Outcome, Verdict, severity

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

CHECK = "monitored"
_FRESH_MINUTES = 15  # as the alert HosttuneStale (monitoring/rules/hosttune.yml)
_USED = (f.RUN_TIMESTAMP.name, f.VERDICT.name, f.CHECK_STATUS.name, f.SETTING_DRIFT.name)
# All series of 2,000 hosts would be more than the limit of the file, and work for Prometheus: only these are read.
QUERY = f'{{__name__=~"{"|".join(_USED)}"}}'
_ASK = f"curl -G http://PROMETHEUS:9090/federate --data-urlencode 'match[]={QUERY}' > FILE (docs/report.md)"
_VERDICTS = get_args(Verdict)
_EXPECTED = "metrics of this host, at most 15 minutes old, with the verdict pass"


class HostMetrics(msgspec.Struct):
    """What is known of a host. Times are seconds since 1970; `scraped`: of the newest sample.

    `read_at` has each distinct time that the host was read, `verdicts` each verdict that is 1: one of each, if nothing
    is wrong. `statuses` are the results that are neither pass nor skip: ("warn", "pcie-link 0000:18:00.0: warn").
    """

    scraped: float | None = None
    read_at: set[float] = msgspec.field(default_factory=set)
    verdicts: list[Verdict] = msgspec.field(default_factory=list)
    statuses: list[tuple[Verdict, str]] = msgspec.field(default_factory=list)
    drifted: int = 0

    @property
    def worst(self) -> Verdict:
        """The worst status; pass if there is none."""
        return min((status for status, _ in self.statuses), key=severity, default="pass")

    def worst_first(self) -> list[str]:
        """Return the texts of the statuses, those that are fail first."""
        return [text for _, text in sorted(self.statuses, key=lambda one: severity(one[0]))]


class Monitored:
    """The metrics of all hosts in a file. `of` judges one host; a host without metrics is unknown."""

    def __init__(self, hosts: Mapping[str, HostMetrics], where: str) -> None:
        self._hosts, self._where = hosts, where
        self._newest = max((metrics.scraped for metrics in hosts.values() if metrics.scraped is not None), default=None)

    def of(self, host: str) -> CheckResult:
        """Return the result of a host, by the inventory's name (the label `instance`)."""
        metrics = self._hosts.get(host)
        if metrics is None:
            return self._result(
                "unknown",
                "none",
                "docs/runbooks/HosttuneSilent.md; the label instance must be the name in the inventory",
            )
        doubt = self._doubt(metrics)
        if doubt is not None:
            return self._result("unknown", doubt, "systemctl status hosttune-watch on the host")
        (outcome,) = metrics.verdicts
        words = [f"verdict {outcome}"]
        if metrics.statuses:
            words.append(some(metrics.worst_first(), between="; "))
        if metrics.drifted:
            words.append(f"{metrics.drifted} applied settings have another value, or cannot be read")
        if outcome == "pass" and metrics.drifted:
            outcome = "warn"
        return self._result(outcome, "; ".join(words), "hosttune status and hosttune validate on the host")

    def strangers(self, hosts: Collection[str]) -> Iterator[str]:
        """Yield a note on the hosts that have metrics and are not in the report."""
        others = sorted(self._hosts.keys() - set(hosts))
        if others:
            yield f"metrics of {len(others)} hosts that are not in this report: {some(others, 5)}"

    def _doubt(self, metrics: HostMetrics) -> str | None:
        """Return why nothing can be said of a host."""
        if metrics.scraped is None:
            return "the samples have no times: the file is not of Prometheus' /federate"
        if len(metrics.verdicts) != 1:
            return f"{len(metrics.verdicts)} verdicts" + (f": {some(metrics.verdicts)}" if metrics.verdicts else "")
        if severity(metrics.worst) < severity(metrics.verdicts[0]):
            results = some(metrics.worst_first(), between="; ")
            return f"the verdict is {metrics.verdicts[0]}, and a result is {metrics.worst}: {results}"
        if len(metrics.read_at) != 1 or not all(map(math.isfinite, metrics.read_at)):
            return f"when the host was read is not known ({len(metrics.read_at)} times)"
        minutes = (max(metrics.scraped, self._newest or metrics.scraped) - min(metrics.read_at)) / 60
        if minutes > _FRESH_MINUTES:
            return f"the host was last read {minutes:.0f} minutes before the newest sample of the file"
        if minutes < -_FRESH_MINUTES:
            return f"the host was read {-minutes:.0f} minutes after the newest sample: a clock is wrong"
        return None

    def _result(self, outcome: Outcome, actual: str, hint: str) -> CheckResult:
        return CheckResult(
            check=CHECK, subject="host", outcome=outcome, expected=_EXPECTED, actual=actual, source=self._where,
            hint=None if outcome == "pass" else hint,
        )  # fmt: skip


def read_metrics(path: str) -> Monitored:
    """Read the answer of Prometheus' `/federate`. Raises BadInput for anything else."""
    text = load_text(path, what="the answer of Prometheus' /federate", size="metrics of a fleet")
    hosts: dict[str, HostMetrics] = {}
    for sample in _samples(text, path):
        name = sample.labels.get("instance")
        if not name:
            what = f"{sample.name} without the label instance: this is the file of one host, not of Prometheus"
            raise BadInput(what, where=path, hint=_ASK)
        if sample.timestamp is not None and not math.isfinite(sample.timestamp):
            raise BadInput(f"{sample.name} of {name} has no time: {sample.timestamp}", where=path, hint=_ASK)
        host = hosts.setdefault(name, HostMetrics())
        labels = sample.labels
        if sample.timestamp is not None:
            host.scraped = max(float(sample.timestamp), host.scraped or 0.0)
        if sample.name == f.RUN_TIMESTAMP.name:
            host.read_at.add(sample.value)
        elif sample.name == f.VERDICT.name and sample.value == 1:
            host.verdicts.append(_verdict(labels.get("verdict")))
        elif sample.name == f.CHECK_STATUS.name and sample.value != 0:
            status = f"{labels.get('check')} {labels.get('subject')}: {labels.get('status')}"
            host.statuses.append((_verdict(labels.get("status")), status))
        elif sample.name == f.SETTING_DRIFT.name and sample.value != 0:
            host.drifted += 1
    if not hosts:
        raise BadInput("no metrics of hosttune", where=path, hint=_ASK)
    return Monitored(hosts, path)


def _samples(text: str, path: str) -> Iterator[Sample]:
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError as error:
        what = "prometheus-client is not installed beside this hosttune"
        raise BadInput(what, where="--metrics", hint="pip install 'hosttune[fleet]'") from error
    lines = [line for line in text.split("\n") if line.startswith(_USED)]
    if len(lines) > (most := limit("samples of a fleet")):
        raise BadInput(f"{len(lines):,} samples, more than {most:,}", where=path, hint="ask for fewer hosts at a time")
    try:
        for family in text_string_to_metric_families("\n".join((*lines, ""))):
            yield from family.samples
    except (ValueError, IndexError, KeyError, ArithmeticError) as error:
        raise BadInput(f"not in Prometheus' text format: {error}", where=path, hint=_ASK) from error


def _verdict(word: str | None) -> Verdict:
    return next((verdict for verdict in _VERDICTS if verdict == word), "unknown")
