"""Evidence of the example that is lost, by name: what each check says then. The sweep is in test_evidence_lost."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from damage import Damage, Files, load, with_damage
from sickhosts import EXAMPLE

from hosttune.discovery.evidence import gather
from hosttune.machine.system import COMMANDS
from hosttune.model.validation import CheckResult, verdict_of
from hosttune.rules.checks import judge

SMI, GPU = COMMANDS + "nvidia-smi-q-x", "0000:18:00.0"
DEVICES = "/sys/bus/pci/devices"


def results(host: Files, *damages: Damage) -> list[CheckResult]:
    return list(judge(gather(with_damage(host, *damages).system())))


def lost(*paths: str) -> list[Damage]:
    return [Damage(f"{path} lost", path, path) for path in paths]


def smi(now: str, then: str) -> list[Damage]:
    """The first of the GPUs: a part of its entry reads otherwise."""

    def change(data: bytes) -> bytes:
        text = data.decode()
        assert re.search(now, text, re.DOTALL)
        return re.sub(now, then, text, count=1, flags=re.DOTALL).encode()

    return [Damage(f"{now} -> {then}", now, SMI, change)]


def real(name: str) -> str:
    return f"{load(EXAMPLE).links[f'{DEVICES}/{GPU}']}/{name}"


def all_groups() -> list[Damage]:
    return lost(*(path for path in load(EXAMPLE).links if path.endswith("/iommu_group")), "/sys/kernel/iommu_groups")


ALL = "every GPU"
CASES: dict[str, tuple[Callable[[], list[Damage]], str, str]] = {
    "no list of PCI functions": (lambda: lost(DEVICES), "gpu-driver", ALL),
    "no sysfs": (lambda: lost("/sys"), "pcie-link", ALL),
    "mig mode failed": (lambda: smi("<current_mig>Disabled", "<current_mig>[Unknown Error]"), "mig-mode", GPU),
    "mig mode of a lost GPU": (lambda: smi("<current_mig>Disabled", "<current_mig>[GPU is lost]"), "mig-mode", GPU),
    "mig mode gone": (lambda: smi("<mig_mode>.*?</mig_mode>", ""), "mig-mode", GPU),
    "mig of one GPU alone N/A": (
        lambda: smi(
            "<current_mig>Disabled</current_mig>\\s*<pending_mig>Disabled",
            "<current_mig>N/A</current_mig><pending_mig>N/A",
        ),
        "mig-instances",
        GPU,
    ),
    "one ECC counter gone": (lambda: smi("<dram_uncorrectable>0</dram_uncorrectable>", ""), "ecc-errors", GPU),
    "one clock reason gone": (
        lambda: smi("<clocks_event_reason_hw_slowdown>.*?</clocks_event_reason_hw_slowdown>", ""),
        "clock-reasons",
        GPU,
    ),
    "no matrix": (lambda: lost(COMMANDS + "nvidia-smi-topo-m"), "nvlink", ALL),
    "no list of links": (lambda: lost(COMMANDS + "nvidia-smi-nvlink-s"), "nvlink", ALL),
    "AER of the device gone": (
        lambda: lost(*(real(f"aer_dev_{k}") for k in ("correctable", "nonfatal", "fatal"))),
        "aer",
        GPU,
    ),
    "no IOMMU groups, with an IOMMU": (all_groups, "iommu-groups", ALL),
    "no driver link": (lambda: lost(real("driver")), "gpu-driver", GPU),
}


@pytest.mark.parametrize(("damages", "check", "subject"), CASES.values(), ids=CASES.keys())
def test_what_is_missing_is_unknown(damages: Callable[[], list[Damage]], check: str, subject: str) -> None:
    found = results(load(EXAMPLE), *damages())
    assert verdict_of(found) == "unknown"
    told = {result.subject: result for result in found if result.check == check}
    wanted = [s for s in told if s != "host"] if subject == ALL else [subject]
    assert len(wanted) == (8 if subject == ALL else 1)
    assert {told[one].outcome for one in wanted} == {"unknown"}
    assert all(told[one].hint and told[one].actual for one in wanted)


def test_a_link_names_what_it_was_read_from() -> None:
    files = [real(f"{when}_link_{what}") for when in ("current", "max") for what in ("speed", "width")]
    of = {}
    for count in (0, 2, 4):
        found = results(load(EXAMPLE), *lost(*files[:count]))
        of[count] = next(r.source or "" for r in found if (r.check, r.subject) == ("pcie-link", GPU))
    folder = f"{DEVICES}/{GPU}"
    assert of[0].startswith(f"{folder}/{{current,max}}_link_{{speed,width}}, {folder}/config")
    assert of[2].startswith(f"{folder}/{{max_link_speed,max_link_width}}, {folder}/config")
    assert of[4].startswith(f"{folder}/config")
