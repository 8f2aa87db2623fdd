"""Settings of the host as a whole: NVMe queues, sysctl, mitigations; and that plan and settings read alike.

Hosts are synthetic (`planhosts`); the last test carries a plan out on the example host, as a scratch root.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from planhosts import Card, build_host, intent_of
from unpacking import unpack

import hosttune
from hosttune.knobs.registry import all_knobs
from hosttune.linux.pciconfig import CAP_EXPRESS, capability_at
from hosttune.machine.scratch import Scratch
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.plan import Action, Plan
from hosttune.model.values import FrozenMap, freeze, to_json
from hosttune.planning import plan
from hosttune.settings.sysctl import NAMES, sysctl_path
from hosttune.transaction.kinds import setting_of

Json = dict[str, Any]
DRIVE = "0000:c1:00.0"
QUEUE = {"scheduler": "mq-deadline", "nr_requests": 256, "rq_affinity": 1}
EXAMPLE = Path(__file__).parents[3] / "examples" / "hgx-h200-8.tar.xz"


def with_drive(queue: Json | None = None, driver: str = "nvme", disk: str = "nvme3n1", **nvme: Any) -> Json:
    host = build_host(cards=[Card(DRIVE, 0, "nvme", group=9, driver=driver)])
    host["nvme"] = [{"address": DRIVE, "controller": "nvme3", "namespaces": ["nvme3n1"], **nvme}]
    host["settings"] = {f"/sys/block/{disk}/queue/{name}": str(part) for name, part in (queue or {}).items()}
    host["memory_settings"] = {"thp": "madvise", "numa_balancing": 0}
    host["settings"] |= {sysctl_path(name): "0" for name in ("vm.zone_reclaim_mode", "vm.compaction_proactiveness")}
    return host


def planned(host: Json, profile: str = "host", settings: Json | None = None, **guest: Any) -> Plan:
    wanted_setting = {"vcpus": 4, "memory": "4GiB", **guest}
    document = intent_of(profile=profile, settings=settings or {}, **wanted_setting)
    return plan(Host.from_json(to_json(host)), Intent.from_json(to_json(document)))


def actions(made: Plan, kind: str) -> list[tuple[str, Any, Any]]:
    return [(a.target, a.current, a.want) for a in made.actions if a.kind == kind]


# --- NVMe ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queue", "settings", "want"),
    [
        (QUEUE, {}, {"scheduler": "none", "nr_requests": 1023, "rq_affinity": 2}),
        ({**QUEUE, "scheduler": "none"}, {}, {"scheduler": "none", "nr_requests": 1023, "rq_affinity": 2}),
        ({"scheduler": "none", "nr_requests": 1023, "rq_affinity": 2}, {}, None),
        ({"scheduler": "none", "nr_requests": 1023}, {}, None),  # it has no more than these
        (QUEUE, {"nvme_requests": "keep", "nvme_affinity": False}, {**QUEUE, "scheduler": "none"}),
        (QUEUE, {"nvme_affinity": 0}, {"scheduler": "none", "nr_requests": 1023, "rq_affinity": 0}),
        ({}, {}, {"scheduler": "none", "nr_requests": 1023, "rq_affinity": 2}),  # unknown
    ],
)
def test_a_queue_is_one_setting(queue: Json, settings: Json, want: Json | None) -> None:
    made = planned(with_drive(queue), "host", settings)
    current = FrozenMap(queue) if queue else None
    assert actions(made, "nvme-queue") == ([(f"{DRIVE} n1", current, want)] if want else [])
    for target, _, wanted_setting in actions(made, "nvme-queue"):
        setting_of("nvme-queue", target).check(wanted_setting)


def test_a_value_by_name_says_so() -> None:
    (action,) = [a for a in planned(with_drive(QUEUE), "host", {"nvme_affinity": 0}).actions if a.kind == "nvme-queue"]
    assert action.why == "asked for by name: settings.nvme_affinity"
    made = planned(with_drive(QUEUE), "none", {"nvme_scheduler": True})
    (action,) = [a for a in made.actions if a.kind == "nvme-queue"]
    assert "settings" not in action.why
    assert action.want == {**QUEUE, "scheduler": "none"}


@pytest.mark.parametrize(
    ("host", "profile", "guest"),
    [
        (with_drive(QUEUE), "guest", {}),
        (with_drive(QUEUE), "none", {}),
        (with_drive(QUEUE), "host", {"nvme": [DRIVE]}),
        (with_drive(QUEUE, driver="vfio-pci"), "host", {}),
        (with_drive(QUEUE) | {"guests": [{"name": "old", "state": "shut off", "devices": [DRIVE]}]}, "host", {}),
        (with_drive(QUEUE, namespaces=[]), "host", {}),
    ],
)
def test_drives_that_the_host_does_not_keep_are_left_alone(host: Json, profile: str, guest: Json) -> None:
    assert actions(planned(host, profile, **guest), "nvme-queue") == []


def test_of_a_namespace_with_several_paths_this_drive_s_own_counts() -> None:
    host = with_drive(QUEUE, disk="nvme0c3n7", namespaces=["nvme0n7"])
    host["settings"]["/sys/block/nvme0n7/queue/scheduler"] = "none"
    ((target, current, _),) = actions(planned(host), "nvme-queue")
    assert (target, current) == (f"{DRIVE} n7", FrozenMap(QUEUE))


# --- sysctl and arguments ------------------------------------------------------------------------------------


def test_only_sysctls_with_a_reason_come_with_the_profile() -> None:
    assert {name for name in NAMES if all_knobs()[name].profiles} == {
        "vm.zone_reclaim_mode",
        "vm.compaction_proactiveness",
    }
    host = with_drive()
    host["settings"] |= {sysctl_path("vm.zone_reclaim_mode"): "1", sysctl_path("vm.swappiness"): "60"}
    assert actions(planned(host), "sysctl") == [("vm.zone_reclaim_mode", "1", "0")]
    assert actions(planned(host, "guest"), "sysctl") == []
    named = planned(host, "guest", {"vm.swappiness": 10, "kernel.nmi_watchdog": 0})
    assert actions(named, "sysctl") == [("vm.swappiness", "60", "10"), ("kernel.nmi_watchdog", None, "0")]
    for action in named.actions:
        if action.kind == "sysctl":
            setting_of("sysctl", action.target).check(action.want)
            assert action.why == f"asked for by name: settings.{action.target}"


@pytest.mark.parametrize("name", list(NAMES))
def test_an_intent_takes_what_the_setting_takes(name: str) -> None:
    setting = setting_of("sysctl", name)
    for number in (NAMES[name][0], NAMES[name][-1]):
        assert all_knobs()[name].accepts(number)
        setting.check(str(number))
    assert not all_knobs()[name].accepts(NAMES[name][-1] + 1)


@pytest.mark.parametrize(
    ("line", "value", "change", "warned"),
    [
        ([], "off", (None, "mitigations=off"), True),
        (["mitigations=auto"], "auto,nosmt", ("mitigations=auto", "mitigations=auto,nosmt"), False),
        (["mitigations=off"], "off", None, True),
        (["mitigations=off"], "auto", ("mitigations=off", "mitigations=auto"), False),
        (["mitigations=off"], "keep", None, False),
    ],
)
def test_mitigations_are_as_given(line: list[str], value: str, change: tuple[str, str] | None, warned: bool) -> None:
    made = planned(build_host() | {"kernel_args": line}, "none", {"mitigations": value})
    assert actions(made, "kernel-argument") == ([("mitigations", *change)] if change else [])
    assert [f.level for f in made.findings if f.where == "settings.mitigations"] == (["warn"] if warned else [])
    assert all(action.effect == "reboot" for action in made.actions if action.kind == "kernel-argument")
    for profile in ("none", "guest", "host"):
        assert "mitigations" not in [t for t, *_ in actions(planned(build_host(), profile), "kernel-argument")]


# --- plan and settings read alike ----------------------------------------------------------------------------

OURS = ("aspm", "read-request", "relaxed-ordering", "acs", "nvme-queue", "sysctl")
INTENT = """
version: 1
profile: host
settings: {acs: "SrcValid ReqRedir CmpltRedir UpstreamFwd DirectTrans", vm.swappiness: 10, nvme_affinity: 1}
guests: [{name: g, gpus: ["0000:41:00.0"], nics: ["0000:42:00.0"], vcpus: 8, memory: 16GiB}]
"""


def detuned(root: Path) -> Scratch:
    """The example host with some things as firmware may leave them."""
    unpack(EXAMPLE, root)
    (root / ".hosttune").mkdir(exist_ok=True)
    (root / ".hosttune/scratch").touch()
    devices = root / "sys/bus/pci/devices"
    for address, register, clear, put in (
        ("0000:40:00.0", 0x10, 0x03, 0x02),
        ("0000:41:00.0", 0x10, 0x03, 0x03),
        ("0000:40:01.0", 0x10, 0x03, 0x02),
        ("0000:19:00.0", 0x08, 0x10, 0x00),
        ("0000:19:00.0", 0x09, 0x70, 0x20),
    ):
        path = devices / address / "config"
        config = bytearray(path.read_bytes())
        at = (capability_at(bytes(config), CAP_EXPRESS) or 0) + register
        config[at] = config[at] & ~clear | put
        path.write_bytes(config)
    (root / "sys/block/nvme1n1/queue/scheduler").write_text("none [mq-deadline] kyber\n")
    for name, text in (("vm.zone_reclaim_mode", "1"), ("vm.compaction_proactiveness", "20"), ("vm.swappiness", "60")):
        path = root / sysctl_path(name)[1:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return Scratch(str(root))


def wished(root: Path) -> list[Action]:
    made = hosttune.plan(hosttune.discover(str(root)), Intent.from_yaml(INTENT))
    assert made.guests
    return [action for action in made.actions if action.kind in OURS]


def test_what_a_plan_takes_for_current_is_what_its_settings_read_and_what_it_wants_is_what_they_take(
    tmp_path: Path,
) -> None:
    system = detuned(tmp_path)
    todo = wished(tmp_path)
    assert {action.kind for action in todo} == set(OURS)
    assert ("aspm", "0000:40:00.0", FrozenMap({"0000:40:00.0": "L1", "0000:41:00.0": "L0s L1"})) in [
        (action.kind, action.target, action.current) for action in todo
    ]
    olds = []
    for action in todo:
        setting = setting_of(action.kind, action.target)
        assert freeze(setting.effective(system)) == freeze(action.current), action.id
        setting.check(action.want)
        olds.append((setting, setting.read(system)))
        setting.write(system, action.want)
        assert setting.agrees(setting.read(system), action.want), action.id
    assert wished(tmp_path) == []
    for setting, old in reversed(olds):
        setting.write(system, old)
        assert setting.read(system) == old
    assert wished(tmp_path) == todo
