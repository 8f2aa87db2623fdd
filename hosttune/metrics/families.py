"""Every metric of `hosttune metrics`, declared once. `docs/monitoring.md` has the table of them.

Units are base units, except those whose name says another (GT/s, lanes) and benchmark figures, which have a label for
it. No label has a serial number, a message or an error code.
"""

from __future__ import annotations

from hosttune.metrics.writing import Family

BUILD_INFO = Family(
    name="hosttune_build_info", help="Version of hosttune that wrote these metrics.", labels=("version",)
)
RUN_TIMESTAMP = Family(
    name="hosttune_run_timestamp_seconds",
    help="When the host was read, in seconds since 1970; everything here is from then.",
    labels=("verb",),
)
RUN_EXIT_CODE = Family(
    name="hosttune_run_exit_code", help="Exit code that the command would have without -o prometheus.", labels=("verb",)
)
RUN_DURATION = Family(
    name="hosttune_run_duration_seconds", help="How long reading and judging the host took.", labels=("verb",)
)
VERDICT = Family(
    name="hosttune_validation_verdict", help="1 on the current verdict of hosttune validate.", labels=("verdict",)
)
CHECK_RESULTS = Family(
    name="hosttune_check_results",
    help="Number of results of a check with this status; a status without results has no series.",
    labels=("check", "status"),
)
CHECK_STATUS = Family(
    name="hosttune_check_status",
    help="1 for each result that is fail, unknown or warn.",
    labels=("check", "subject", "status"),
)
CHECK_OMITTED = Family(
    name="hosttune_check_status_omitted", help="Results that are missing in hosttune_check_status: there are too many."
)
SERIES_OMITTED = Family(
    name="hosttune_series_omitted", help="Series of other metrics that were left out: there are too many."
)
SOURCE_READABLE = Family(
    name="hosttune_source_readable",
    help="1 if this source of facts could be read completely, 0 if not.",
    labels=("source",),
)
APPLY_STATE = Family(
    name="hosttune_apply_state", help="1 on the state of what hosttune has applied here.", labels=("state",)
)
SETTINGS = Family(name="hosttune_settings", help="Number of applied settings by what they are now.", labels=("state",))
SETTING_DRIFT = Family(
    name="hosttune_setting_drift",
    help="1 for an applied setting that has another value now, NaN for one that cannot be read.",
    labels=("kind", "subject"),
)
LINK_SPEED = Family(
    name="hosttune_pcie_link_speed_gts",
    help="PCIe link speed in GT/s per lane that this end reports, NaN if unknown; idle GPUs may lower it.",
    labels=("address", "end"),
)
LINK_WIDTH = Family(
    name="hosttune_pcie_link_width",
    help="PCIe lanes in use that this end reports, NaN if unknown.",
    labels=("address", "end"),
)
LINK_SPEED_EXPECTED = Family(
    name="hosttune_pcie_link_speed_gts_expected",
    help="Highest PCIe link speed in GT/s that both ends can do, of GPUs, NaN if unknown.",
    labels=("address", "end"),
)
LINK_WIDTH_EXPECTED = Family(
    name="hosttune_pcie_link_width_expected",
    help="Most PCIe lanes that both ends can do, of GPUs, NaN if unknown.",
    labels=("address", "end"),
)
AER_ERRORS = Family(
    name="hosttune_aer_errors_total",
    kind="counter",
    help="PCIe errors that the kernel has counted (AER) since boot; of other functions than GPUs only counts above 0.",
    labels=("address", "severity"),
)
XID_EVENTS = Family(
    name="hosttune_xid_events_total",
    kind="counter",
    help="XID messages in the kernel log by GPU, and by what hosttune validate judges them as.",
    labels=("address", "class"),
)
KERNEL_EVENTS = Family(
    name="hosttune_kernel_events_total",
    kind="counter",
    help="Signs of failing hardware in the kernel log, NaN if the log cannot be read.",
    labels=("kind",),
)
PLACEMENT = Family(
    name="hosttune_guest_placement_violations",
    help="Results about this guest that are fail or warn, by what was compared; NaN if it could not be read.",
    labels=("guest", "kind"),
)
FOREIGN_CPU = Family(
    name="hosttune_foreign_cpu_seconds_total",
    kind="counter",
    help="Time that others than its vCPUs ran on the pinned CPUs of a guest; only hosttune watch counts it.",
    labels=("guest",),
)
BENCH_VALUE = Family(
    name="hosttune_bench_value",
    help="Median of the last measurement, in the unit of the label, NaN if no run gave a figure.",
    labels=("metric", "subject", "unit"),
)
BENCH_FLOOR = Family(
    name="hosttune_bench_floor",
    help="The worst figure that hosttune validate accepts; for a latency the highest.",
    labels=("metric", "subject", "unit"),
)
BENCH_TIMESTAMP = Family(
    name="hosttune_bench_timestamp_seconds", help="When the last measurement was made, in seconds since 1970."
)
HANDOVER_VALID = Family(
    name="hosttune_handover_valid",
    help="1 for a device that is clean since its hand-over, 0 for a quarantined, released or used one, NaN if unknown.",
    labels=("device",),
)
HANDOVER_EXPIRY = Family(
    name="hosttune_handover_expiry_timestamp_seconds",
    help="When the signed statement about a device expires, in seconds since 1970; 0 if it is void, NaN if unknown.",
    labels=("device",),
)
DEVICE_INFO = Family(
    name="hosttune_device_info",
    help="1 for each device, to join its addresses on the host and in its guest.",
    labels=("address", "kind", "uuid", "module", "guest", "guest_address"),
)
DEVICES = Family(
    name="hosttune_devices", help="Devices that are there, NaN if the PCI functions cannot be read.", labels=("kind",)
)
DEVICES_EXPECTED = Family(
    name="hosttune_devices_expected",
    help="Devices that should be there by the plan in force, the last kept validation or another source.",
    labels=("kind",),
)

FAMILIES: tuple[Family, ...] = tuple(value for value in globals().values() if isinstance(value, Family))
