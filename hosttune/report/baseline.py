"""The report of a run against a declared baseline: which hosts are not as declared, and in what."""

from __future__ import annotations

from hosttune.model.declared import Checked
from hosttune.report.blocks import Entries, Report, TitledFacts
from hosttune.report.outcomes import SIGNS, Mark

MOST_RESULTS = 12  # of a host; JSON has every one


def checked_report(checked: Checked) -> Report:
    """Return the hosts that are not as declared."""
    entries = []
    for host in checked.hosts:
        if host.verdict == "pass":
            continue
        facts = []
        for result in host.results[:MOST_RESULTS]:
            place = "" if result.subject == "host" else f" {result.subject}"
            what = f"{result.check.removeprefix('declared-')}{place}: {result.actual}, declared {result.expected}"
            facts.append(("", f"{SIGNS[result.outcome]} {what}"))
        more = len(host.results) - MOST_RESULTS
        facts += [("", f"and {more} more")] if more > 0 else []
        entries.append(TitledFacts(title=host.host, mark=Mark(host.verdict, host.verdict), facts=tuple(facts)))
    return Report(
        kind="A fleet against its declared baseline",
        verdict=checked.verdict,
        word=checked.verdict.upper(),
        headline=checked.headline,
        blocks=(Entries(heading="Not as declared", parts=tuple(entries), numbered=False),),
    )
