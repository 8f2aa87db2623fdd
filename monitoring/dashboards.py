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


def pages() -> Mapping[str, str]:
    """Return the dashboards as JSON, by the name of their file."""
    return {"host.json": _json(host()), "fleet.json": _json(fleet())}


def host() -> db.Dashboard:
    """Return the dashboard of one host."""
    page = _page("hosttune: a host", "hosttune-host").with_variable(_instance())
    page = page.with_row(db.Row("State"))
    page = page.with_panel(_names("Verdict", f"hosttune_validation_verdict{{{HOST}}} == 1", "{{verdict}}"))
    page = page.with_panel(_names("Applied", f"hosttune_apply_state{{{HOST}}} == 1", "{{state}}"))
    page = page.with_panel(_number("Age of the metrics", f"time() - hosttune_run_timestamp_seconds{{{HOST}}}",
                                   unit="s", steps=(300, 900)))  # fmt: skip
    page = page.with_panel(_number(
        "Devices missing", f"hosttune_devices_expected{{{HOST}}} - hosttune_devices{{{HOST}}}", "{{kind}}",
        steps=(1, 1)))  # fmt: skip
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
    page = _page("hosttune: the fleet", "hosttune-fleet").with_row(db.Row("Hosts"))
    page = page.with_panel(_names("Hosts by verdict", "hosttune:hosts_by_verdict", "{{verdict}}", values=True))
    silent = 'up{job="hosttune"} == 1 unless on (instance, job) hosttune_run_timestamp_seconds'
    page = page.with_panel(_number("Hosts that cannot be scraped", 'count(up{job="hosttune"} == 0) or vector(0)',
                                   steps=(1, 1)))  # fmt: skip
    page = page.with_panel(_number("Hosts that say nothing", f"count({silent}) or vector(0)", steps=(1, 1)))
    page = page.with_panel(_number("GPUs that are there", 'sum(hosttune_devices{kind="gpu"} >= 0)'))
    page = page.with_panel(_number(
        "GPUs that are missing", 'sum(hosttune_devices_expected{kind="gpu"} - hosttune_devices{kind="gpu"} >= 0)',
        steps=(1, 1)))  # fmt: skip
    page = page.with_panel(_number(
        "Hosts whose GPUs nobody expects",
        'count(hosttune_source_readable{source="expected-devices"} == 0) or vector(0)', steps=(1, 1)))  # fmt: skip
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
    found = [target["expr"] for panel in page["panels"] for one in (panel, *panel.get("panels", ()))
             for target in one.get("targets", ())]  # fmt: skip
    return list(dict.fromkeys(found))


def _json(page: db.Dashboard) -> str:
    return json.dumps(page.build(), cls=JSONEncoder, sort_keys=True, indent=1) + "\n"


def _page(title: str, uid: str) -> db.Dashboard:
    page = db.Dashboard(title).uid(uid).tags(["hosttune"]).refresh("1m").time("now-6h", "now").timezone("browser")
    return page.with_variable(db.DatasourceVariable("datasource").label("Data source").type("prometheus"))


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
    colours = (NEUTRAL,) if not limits else (GOOD, MIDDLE, BAD)
    steps = [model.Threshold(value=None, color=colours[0])]
    steps += [model.Threshold(value=limit, color=one) for limit, one in zip(limits, colours[1:], strict=False)]
    return db.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps)


def _number(
    title: str, expression: str, legend: str = "", *, unit: str = "none", steps: Sequence[float] = ()
) -> stat.Panel:
    panel = stat.Panel().title(title).datasource(SOURCE).with_target(_query(expression, legend)).unit(unit)
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
    panel = timeseries.Panel().title(title).datasource(SOURCE).with_target(_query(expression, legend)).unit(unit)
    return panel.height(8).span(12).min(0).no_value("no data")


def _table(title: str, expression: str, columns: Sequence[str]) -> table.Panel:
    """Return a table of the newest values with these columns, in this order."""
    panel = table.Panel().title(title).datasource(SOURCE).with_target(_query(expression, "", instant=True))
    order = {"include": {"names": list(columns)}}
    places = {"indexByName": {name: place for place, name in enumerate(columns)}}
    panel = panel.with_transformation(model.DataTransformerConfig(id_val="filterFieldsByName", options=order))
    panel = panel.with_transformation(model.DataTransformerConfig(id_val="organize", options=places))
    return panel.height(8).span(12).mappings(_unknown()).no_value("none")
