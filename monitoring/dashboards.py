"""The dashboards for Grafana, built in Python: `dashboards/host.json` and `fleet.json` are what this returns.

After a change: pytest --regenerate -k monitoring_dashboards. Grafana 10.1 or newer reads them; each asks for
its data source of the type Prometheus. What is unknown (NaN) is shown as "unknown", never as 0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from grafana_foundation_sdk.builders import dashboard as db
from grafana_foundation_sdk.builders import prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import prometheus as queries

SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
HOST = 'instance="$instance"'
GOOD, MIDDLE, BAD, NEUTRAL = "green", "yellow", "red", "blue"
COLOURS = {
    **{"pass": GOOD, "warn": MIDDLE, "fail": BAD, "unknown": "purple", "old": "purple", "silent": "purple"},
    **{"none": NEUTRAL, "applied": GOOD, "pending-reboot": MIDDLE, "unfinished": BAD, "needs-person": BAD},
}

# What each panel shows, where unknown is, and where to go from there. A panel without one is not built.
DESCRIPTIONS = {
    "Verdict": "Of the last validation: fail and unknown are no host for a tenant. Next: hosttune validate --brief.",
    "Applied": "pending-reboot waits for a boot; unfinished needs hosttune recover.",
    "Age of the metrics": "Yellow from 5 minutes, red from 15: then nothing here is current.",
    "Devices missing": "What a plan or validation knew and that are gone; hosttune validate names them.",
    "Results that need attention": "Failed, unknown and warned checks with subjects; remedies: hosttune validate.",
    "Sources that can be read (1) or not (0)": "A source that cannot be read makes its checks unknown, never passed.",
    "Devices and guests": "Which guest has which device, by the addresses on the host and in the guest.",
    "Link speed (GT/s)": "Read at the device. Low at rest may be power saving; lasting is a fault.",
    "Lanes in use, part of what both ends can do (GPUs)": "Below 100 % lanes are lost: reseat the card or its riser.",
    "PCIe errors in an hour": "Growth by severity. Uncorrectable ones are a fault; counters start at boot.",
    "Signs of failing hardware since boot": "Lines of the kernel log by kind, since boot.",
    "XID messages": "Messages of the GPU's driver by class, since boot; hosttune validate says what each asks for.",
    "Applied settings": "How many settings are in force, drifted, or wait.",
    "Drift": "Settings that have another value than the applied one: another writer? hosttune plan, then apply.",
    "Guests: placement (1 is wrong)": "A guest that does not run as planned. hosttune status names what differs.",
    "Others on pinned CPUs (part of a CPU)": "CPU time that others take on CPUs that are pinned to a guest.",
    "Last measurement": "Figures of the last validation with benchmarks.",
    "Figures, part of their floor": "Below 100 % a figure is below its floor. hosttune diagnose says why.",
    "Clean since the hand-over (1) or not (0)": "0: started, changed or released since. See hosttune handover status.",
    "Seconds until the statement expires": "Negative: expired, so the device may not go to a tenant. Sign anew.",
    "Hosts by verdict": "old: older than 15 minutes. silent: scraped, without metrics of hosttune. Both are unknown.",
    "Hosts that cannot be scraped": "node_exporter does not answer: power, network or its service.",
    "Hosts that say nothing": "node_exporter answers, and hosttune has written no metrics: hosttune watch --install.",
    "GPUs that are there": "GPUs that hosts see; hosts of which that is unknown are left out.",
    "GPUs that are missing": "GPUs that a plan or validation knew and that are gone.",
    "Hosts whose GPUs nobody expects": "A GPU that gets lost there is noticed by nobody: validate once, or plan.",
    "Verdict of each host": "A host's name leads to its own dashboard. old, silent and unknown are never a pass.",
    "Oldest metrics": "The twenty hosts that have been silent longest.",
    "Fails by check": "Results that failed on all hosts. hosttune fleet report lists hosts, devices and remedies.",
    "Unknown by check": "Results that could not be read: never a pass.",
    "Drift by kind": "Settings with another value than the applied one, on all hosts.",
    "What is applied": "Hosts by state of what is applied.",
    "GPUs whose link has fewer lanes than both ends can": "By host; hosttune validate there names GPU and slot.",
    "PCIe errors in an hour, by host": "Growth in an hour of all devices. Compare hosts of one model.",
    "Versions": "Versions of hosttune that write metrics.",
}


def pages() -> Mapping[str, str]:
    """Return the dashboards as JSON, by the name of their file."""
    return {"host.json": _json(host()), "fleet.json": _json(fleet())}


def host() -> db.Dashboard:
    """Return the dashboard of one host."""
    page = _page("hosttune: a host", "hosttune-host").with_variable(_instance())
    for mark in _marks(f"{{{HOST}}}"):
        page = page.annotation(mark)
    page = page.with_row(db.Row("State"))
    page = page.with_panel(_names("Verdict", f"hosttune_validation_verdict{{{HOST}}} == 1", "{{verdict}}"))
    page = page.with_panel(_names("Applied", f"hosttune_apply_state{{{HOST}}} == 1", "{{state}}"))
    page = page.with_panel(_number("Age of the metrics", f"time() - hosttune_run_timestamp_seconds{{{HOST}}}",
                                   unit="s", steps=(300, 900)))  # fmt: skip
    page = page.with_panel(_number(
        "Devices missing", f"hosttune_devices_expected{{{HOST}}} - hosttune_devices{{{HOST}}}", "{{kind}}",
        steps=(1,)))  # fmt: skip
    page = page.with_panel(_table("Results that need attention", f"hosttune_check_status{{{HOST}}}",
                                  ("status", "check", "subject")))  # fmt: skip
    page = page.with_panel(_lines("Sources that can be read (1) or not (0)", f"hosttune_source_readable{{{HOST}}}",
                                  "{{source}}"))  # fmt: skip
    page = page.with_row(db.Row("Devices"))
    page = page.with_panel(_table("Devices and guests", f"hosttune_device_info{{{HOST}}}",
                                  ("kind", "address", "module", "guest", "guest_address", "uuid")))  # fmt: skip
    page = page.with_panel(_lines("Link speed (GT/s)", f'hosttune_pcie_link_speed_gts{{{HOST},end="device"}}',
                                  "{{address}}"))  # fmt: skip
    page = page.with_panel(_lines(
        "Lanes in use, part of what both ends can do (GPUs)",
        f"hosttune_pcie_link_width{{{HOST}}} / on (instance, address, end) hosttune_pcie_link_width_expected{{{HOST}}}",
        "{{address}}", unit="percentunit"))  # fmt: skip
    page = page.with_panel(_lines("PCIe errors in an hour", f"increase(hosttune_aer_errors_total{{{HOST}}}[1h])",
                                  "{{address}} {{severity}}"))  # fmt: skip
    page = page.with_panel(_lines("Signs of failing hardware since boot", f"hosttune_kernel_events_total{{{HOST}}}",
                                  "{{kind}}"))  # fmt: skip
    page = page.with_panel(_table("XID messages", f"hosttune_xid_events_total{{{HOST}}}",
                                  ("address", "class", "Value")))  # fmt: skip
    page = page.with_row(db.Row("Settings and guests"))
    page = page.with_panel(_lines("Applied settings", f"hosttune_settings{{{HOST}}}", "{{state}}"))
    page = page.with_panel(_table("Drift", f"hosttune_setting_drift{{{HOST}}}", ("kind", "subject", "Value")))
    page = page.with_panel(_table("Guests: placement (1 is wrong)", f"hosttune_guest_placement_violations{{{HOST}}}",
                                  ("guest", "kind", "Value")))  # fmt: skip
    page = page.with_panel(_lines(
        "Others on pinned CPUs (part of a CPU)", f"rate(hosttune_foreign_cpu_seconds_total{{{HOST}}}[5m])",
        "{{guest}}", unit="percentunit"))  # fmt: skip
    page = page.with_row(db.Row("Measurements and hand-overs"))
    page = page.with_panel(_table("Last measurement", f"hosttune_bench_value{{{HOST}}}",
                                  ("metric", "subject", "Value", "unit")))  # fmt: skip
    page = page.with_panel(_lines(
        "Figures, part of their floor", f"hosttune_bench_value{{{HOST}}} / hosttune_bench_floor{{{HOST}}}",
        "{{metric}} {{subject}}", unit="percentunit"))  # fmt: skip
    page = page.with_panel(_table("Clean since the hand-over (1) or not (0)", f"hosttune_handover_valid{{{HOST}}}",
                                  ("device", "Value")))  # fmt: skip
    return page.with_panel(_table("Seconds until the statement expires", "hosttune_handover_expiry_timestamp_seconds"
                                  f"{{{HOST}}} - time()", ("device", "Value")))  # fmt: skip


def fleet() -> db.Dashboard:
    """Return the dashboard of all hosts."""
    page = _page("hosttune: the fleet", "hosttune-fleet")
    for mark in _marks(""):
        page = page.annotation(mark)
    page = page.with_row(db.Row("Hosts"))
    page = page.with_panel(_names("Hosts by verdict", "hosttune:hosts_by_verdict", "{{verdict}}", values=True))
    silent = 'up{job="hosttune"} == 1 unless on (instance, job) hosttune_run_timestamp_seconds'
    page = page.with_panel(_number("Hosts that cannot be scraped", 'count(up{job="hosttune"} == 0) or vector(0)',
                                   steps=(1,)))  # fmt: skip
    page = page.with_panel(_number("Hosts that say nothing", f"count({silent}) or vector(0)", steps=(1,)))
    page = page.with_panel(_number("GPUs that are there", 'sum(hosttune_devices{kind="gpu"} >= 0)'))
    page = page.with_panel(_number(
        "GPUs that are missing", 'sum(hosttune_devices_expected{kind="gpu"} - hosttune_devices{kind="gpu"} >= 0)',
        steps=(1,)))  # fmt: skip
    page = page.with_panel(_number(
        "Hosts whose GPUs nobody expects",
        'count(hosttune_source_readable{source="expected-devices"} == 0) or vector(0)', steps=(1,)))  # fmt: skip
    page = page.with_panel(_table("Verdict of each host", "hosttune:host_verdict", ("instance", "verdict")))
    page = page.with_panel(_lines("Hosts by verdict", "hosttune:hosts_by_verdict", "{{verdict}}"))
    page = page.with_panel(_table("Oldest metrics", "topk(20, time() - hosttune_run_timestamp_seconds)",
                                  ("instance", "verb", "Value")))  # fmt: skip
    page = page.with_row(db.Row("What is wrong"))
    page = page.with_panel(_table("Fails by check", 'sum by (check) (hosttune_check_results{status="fail"})',
                                  ("check", "Value")))  # fmt: skip
    page = page.with_panel(_table("Unknown by check", 'sum by (check) (hosttune_check_results{status="unknown"})',
                                  ("check", "Value")))  # fmt: skip
    page = page.with_panel(_table("Devices missing", "hosttune_devices_expected - hosttune_devices",
                                  ("instance", "kind", "Value")))  # fmt: skip
    page = page.with_panel(_table("Drift by kind", "count by (kind) (hosttune_setting_drift)", ("kind", "Value")))
    page = page.with_panel(_table("What is applied", "count by (state) (hosttune_apply_state == 1)",
                                  ("state", "Value")))  # fmt: skip
    page = page.with_panel(_table(
        "GPUs whose link has fewer lanes than both ends can",
        "count by (instance) (hosttune_pcie_link_width < on (instance, address, end)"
        " hosttune_pcie_link_width_expected)", ("instance", "Value")))  # fmt: skip
    errors = "sum by (instance) (increase(hosttune_aer_errors_total[1h]))"
    page = page.with_panel(_lines("PCIe errors in an hour, by host", errors, "{{instance}}"))
    return page.with_panel(_table("Versions", "count by (version) (hosttune_build_info)", ("version", "Value")))


def expressions(page: Mapping[str, Any]) -> list[str]:
    """Return the queries of a dashboard's JSON, also those of its variables."""
    marks = [mark["expr"] for mark in page["annotations"]["list"] if "expr" in mark]
    found = marks + [target["expr"] for panel in page["panels"] for one in (panel, *panel.get("panels", ()))
             for target in one.get("targets", ())]  # fmt: skip
    return list(dict.fromkeys(found))


def _json(page: db.Dashboard) -> str:
    built = json.loads(json.dumps(page.build(), cls=JSONEncoder))
    # What the builder writes and Grafana's schema does not have.
    del built["style"]
    for variable in built["templating"]["list"]:
        for name in ("auto", "auto_count", "auto_min", "id"):
            del variable[name]
    for panel in built["panels"]:
        if panel.get("options", {}) is None:
            del panel["options"]
    return json.dumps(built, sort_keys=True, indent=1) + "\n"


def _page(title: str, uid: str) -> db.Dashboard:
    page = db.Dashboard(title).uid(uid).tags(["hosttune"]).refresh("1m").time("now-6h", "now").timezone("browser")
    page = page.with_variable(db.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    place = db.TextBoxVariable("runbooks").label("Runbooks").default_value("https://hosttune.dev/runbooks/")
    page = page.with_variable(place)
    for name, url in (("All hosts", "/d/hosttune-fleet"), ("A host", "/d/hosttune-host"), ("Runbooks", "${runbooks}")):
        if not url.endswith(uid):
            link = db.DashboardLink(name).type(model.DashboardLinkType.LINK).url(url)
            page = page.link(link.keep_time(url.startswith("/d/")))
    return page


def _annotation(name: str, colour: str, expression: str) -> db.AnnotationQuery:
    """Return marks on every time series, where an expression has a value."""
    mark = db.AnnotationQuery().name(name).expr(expression).icon_color(colour)
    return mark.datasource(SOURCE).enable(True).hide(False)


def _marks(of: str) -> tuple[db.AnnotationQuery, ...]:
    """Return when something was applied or taken back, when hosts booted, and when devices were handed over."""
    state, boot, signed = (f"{name}{of}" for name in (
        "hosttune_apply_state", "node_boot_time_seconds", "hosttune_handover_expiry_timestamp_seconds"))  # fmt: skip
    return (
        _annotation("Apply", NEUTRAL, f"({state} == 1) unless ({state} offset 2m == 1)"),
        _annotation("Reboot", "orange", f"changes({boot}[2m]) > 0"),
        _annotation("Hand-over", "purple", f"(changes({signed}[2m]) > 0) or ({signed} unless {signed} offset 2m)"),
    )


def _instance() -> db.QueryVariable:
    query = "label_values(hosttune_run_timestamp_seconds, instance)"
    refresh = model.VariableRefresh.ON_TIME_RANGE_CHANGED
    return db.QueryVariable("instance").label("Host").datasource(SOURCE).query(query).refresh(refresh)


def _query(expression: str, legend: str, *, instant: bool = False) -> prometheus.Dataquery:
    query = prometheus.Dataquery().expr(expression).legend_format(legend or "__auto").ref_id("A").datasource(SOURCE)
    return query.instant().format(queries.PromQueryFormat.TABLE) if instant else query


def _unknown() -> list[Any]:
    """Return the mapping that shows NaN as a word."""
    shown = model.ValueMappingResult(text="unknown", color=COLOURS["unknown"], index=0)
    special = model.DashboardSpecialValueMapOptions(match=model.SpecialValueMatch.NA_N, result=shown)
    return [model.SpecialValueMap(options=special)]


def _steps(limits: Sequence[float]) -> db.ThresholdsConfig:
    colours = (NEUTRAL,) if not limits else (GOOD, BAD) if len(limits) == 1 else (GOOD, MIDDLE, BAD)
    steps = [model.Threshold(value=None, color=colours[0])]
    steps += [model.Threshold(value=limit, color=one) for limit, one in zip(limits, colours[1:], strict=True)]
    return db.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps)


def _number(
    title: str, expression: str, legend: str = "", *, unit: str = "none", steps: Sequence[float] = ()
) -> stat.Panel:
    panel = (
        stat.Panel()
        .title(title)
        .description(DESCRIPTIONS[title])
        .datasource(SOURCE)
        .with_target(_query(expression, legend))
        .unit(unit)
    )
    panel = panel.height(5).span(6).mappings(_unknown()).thresholds(_steps(steps)).no_value("no data")
    return panel.graph_mode(common.BigValueGraphMode.NONE)


def _names(title: str, expression: str, legend: str, *, values: bool = False) -> stat.Panel:
    """Return a panel that shows the names of the series, each in its colour."""
    mode = common.BigValueTextMode.VALUE_AND_NAME if values else common.BigValueTextMode.NAME
    panel = _number(title, expression, legend).text_mode(mode).color_mode(common.BigValueColorMode.BACKGROUND)
    for name, colour in COLOURS.items():
        fixed = model.DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": colour})
        panel = panel.override_by_name(name, [fixed])
    return panel


def _lines(title: str, expression: str, legend: str, *, unit: str = "short") -> timeseries.Panel:
    panel = (
        timeseries.Panel()
        .title(title)
        .description(DESCRIPTIONS[title])
        .datasource(SOURCE)
        .with_target(_query(expression, legend))
        .unit(unit)
    )
    return panel.height(8).span(12).min(0).no_value("no data")


def _table(title: str, expression: str, columns: Sequence[str]) -> table.Panel:
    """Return a table of the newest values with these columns, in this order."""
    panel = (
        table.Panel()
        .title(title)
        .description(DESCRIPTIONS[title])
        .datasource(SOURCE)
        .with_target(_query(expression, "", instant=True))
    )
    order = {"include": {"names": list(columns)}}
    places = {"indexByName": {name: place for place, name in enumerate(columns)}}
    panel = panel.with_transformation(model.DataTransformerConfig(id_val="filterFieldsByName", options=order))
    panel = panel.with_transformation(model.DataTransformerConfig(id_val="organize", options=places))
    if "instance" in columns:
        link = {"title": "its dashboard", "url": "/d/hosttune-host?var-instance=${__value.text}&${__url_time_range}"}
        panel = panel.override_by_name("instance", [model.DynamicConfigValue(id_val="links", value=[link])])
    return panel.height(8).span(12).mappings(_unknown()).no_value("none")
