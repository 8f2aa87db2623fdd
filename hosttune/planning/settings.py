"""The host settings that hosttune knows: which profile brings each, and which values an intent may give.

Pure. Which profile brings which setting is the contract's; `settings` of the intent adds to it or overrides it by
name: `true` asks for the profile's value, `keep` and `false` leave the setting alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hosttune.errors import BadInput
from hosttune.gpu.knobs import MOST_WATTS
from hosttune.model.intent import Intent
from hosttune.model.values import CpuSet
from hosttune.settings.block import AFFINITIES, FEWEST_REQUESTS, MOST_REQUESTS
from hosttune.settings.pcie import READ_REQUEST_BYTES
from hosttune.settings.sysctl import NAMES

KEEP = "keep"
# The list of isolcpus may begin with these words (admin-guide/kernel-parameters, "isolcpus=").
ISOLATION_FLAGS = frozenset(("nohz", "domain", "managed_irq"))
AMBIGUOUS = {
    "aspm": "off",
    "mitigations": "off",
    "ecc": "disabled",
    "mig_mode": "disabled",
}  # what `false` could be meant for
LONGEST_LATENCY_US = (1 << 31) - 1  # the kernel keeps it as a signed 32-bit number (pm_qos_resume_latency_us)


@dataclass(frozen=True)
class Setting:
    """One setting. `value` is what its profiles and `true` want; True = worked out from the plan.

    None = there is no value of ours: true is refused. `values` may be given besides true, false and keep. `numbers` is
    a range of whole numbers that may be, `cpus` lets a CPU list be given, `names` are words of which several may be.
    """

    profiles: tuple[str, ...]
    value: Any
    values: tuple[str | int, ...] = ()
    numbers: range | None = None
    cpus: bool = False
    names: tuple[str, ...] = ()

    def accepts(self, value: object) -> bool:
        """Whether an intent may give this value. A number is never a switch: 1 and true differ."""
        if isinstance(value, bool) or value == KEEP:
            return value is not True or self.value is not None
        if isinstance(value, int):
            return (
                value in self.values
                or (self.numbers is not None and value in self.numbers)
                or (self.cpus and value >= 0)
            )
        if not isinstance(value, str):
            return False
        words = value.split()
        return (
            value in self.values or (self.cpus and _is_cpu_list(value)) or (bool(words) and {*words} <= {*self.names})
        )

    @property
    def allowed(self) -> str:
        """The values that may be given, for people."""
        words = [str(value) for value in self.values]
        if self.numbers is not None:
            words.append(f"a whole number from {self.numbers[0]} to {self.numbers[-1]}")
        if self.cpus:
            words.append('a CPU list such as "2-7,16"')
        if self.names:
            words.append(f"one or several of {' '.join(self.names)}")
        return ", ".join((*words, *(("true",) if self.value is not None else ()), "false", KEEP))


def _is_cpu_list(text: str) -> bool:
    """A non-empty CPU list, after isolation flags or not."""
    parts = text.split(",")
    while parts and parts[0] in ISOLATION_FLAGS:
        parts.pop(0)
    try:
        return bool(CpuSet.parse(",".join(parts)))
    except ValueError:
        return False


GUEST, HOST, BY_NAME = ("guest", "host"), ("host",), ()
# What keeps devices apart without taking anything from one that translates its addresses itself (PCIe 5.0, 6.12).
ACS_ISOLATION = ("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd")
# Those that admin-guide/sysctl/vm.rst gives a reason for here; the others are there to be named.
SYSCTLS: Mapping[str, int] = {"vm.zone_reclaim_mode": 0, "vm.compaction_proactiveness": 0}
# Values: cpufreq governors (admin-guide/pm/cpufreq), preferences (admin-guide/pm/intel_pstate and amd-pstate),
# enabled words of admin-guide/mm/transhuge, kernel.numa_balancing (a bit mask since Linux 5.18), ksm/run.
SETTINGS: Mapping[str, Setting] = {
    "governor": Setting(
        GUEST,
        "performance",
        ("performance", "powersave", "schedutil", "ondemand", "conservative", "userspace"),
    ),
    "energy_preference": Setting(
        GUEST, "performance", ("performance", "balance_performance", "default", "balance_power", "power")
    ),
    "irqbalance_ban": Setting(GUEST, True),
    "irq_affinity": Setting(GUEST, True),
    "aspm": Setting(GUEST, "off", ("off",)),
    # 0 is left out: to the kernel it means no limit, the opposite of what it looks like.
    "resume_latency_us": Setting(HOST, 10, ("n/a",), numbers=range(1, LONGEST_LATENCY_US + 1)),
    "thp": Setting(HOST, "madvise", ("always", "madvise", "never")),
    "numa_balancing": Setting(HOST, 0, (0, 1, 2, 3)),
    "ksm": Setting(HOST, 2, (0, 2)),
    "iommu_passthrough": Setting(HOST, True),
    "boot_pages": Setting(HOST, True),
    "isolcpus": Setting(BY_NAME, True, cpus=True),
    "nohz_full": Setting(BY_NAME, True, cpus=True),
    "hugetlb_free_vmemmap": Setting(BY_NAME, "on", ("on", "off")),
    "mitigations": Setting(BY_NAME, None, ("auto", "auto,nosmt", "off")),
    # Endpoints that stay with the host; those of guests are set inside. `false` leaves the bit alone, as everywhere.
    "read_request_bytes": Setting(HOST, 4096, READ_REQUEST_BYTES),
    "relaxed_ordering": Setting(HOST, True),
    # Not translation blocking, which takes ATS away, nor egress control, which is nothing without its vector.
    "acs": Setting(BY_NAME, " ".join(ACS_ISOLATION), names=(*ACS_ISOLATION, "DirectTrans")),
    "nvme_scheduler": Setting(HOST, "none", ("none", "mq-deadline", "kyber", "bfq")),
    "nvme_requests": Setting(HOST, 1023, numbers=range(FEWEST_REQUESTS, MOST_REQUESTS + 1)),
    "nvme_affinity": Setting(HOST, 2, AFFINITIES),
    **{name: Setting(HOST if name in SYSCTLS else BY_NAME, SYSCTLS.get(name), numbers=NAMES[name]) for name in NAMES},
    # Of the GPUs that stay with the host. True as a power limit is the board's own; modes are nvmlComputeMode_t's.
    "persistence": Setting(HOST, True),
    "power_limit_watts": Setting(HOST, True, numbers=range(1, MOST_WATTS + 1)),
    "compute_mode": Setting(BY_NAME, "default", ("default", "exclusive_process", "prohibited")),
    "ecc": Setting(BY_NAME, "enabled", ("enabled", "disabled")),
    "mig_mode": Setting(BY_NAME, "enabled", ("enabled", "disabled")),
}


def check_settings(intent: Intent, where: str = "intent") -> None:
    """Refuse (BadInput) a name under `settings` that hosttune does not know, or a value that it cannot have."""
    for name, value in (intent.settings or {}).items():
        at = f"{where}: settings.{name}"
        if name not in SETTINGS:
            raise BadInput(f"no setting {name!r}", where=at, hint=f"known: {', '.join(SETTINGS)}")
        if name in AMBIGUOUS and value is False:  # what YAML 1.1 makes of `off`; `keep` would be the opposite
            word = AMBIGUOUS[name]
            raise BadInput(f"false can mean {word} or keep", where=at, hint=f'write "{word}" in quotes, or keep')
        if not SETTINGS[name].accepts(value):
            raise BadInput(f"invalid value {value!r}", where=at, hint=f"allowed: {SETTINGS[name].allowed}")


def wanted(intent: Intent, name: str) -> Any:
    """The value an intent wants of a setting, None where it is left alone (`NAME: keep`, or not in the profile)."""
    setting = SETTINGS[name]
    value = (intent.settings or {}).get(name, intent.profile in setting.profiles)
    if value is False or value == KEEP:
        return None
    return setting.value if value is True else value


def may_boot_pages(intent: Intent) -> bool | None:
    """Whether a reboot may reserve 1 GiB pages: as the profile or the intent says, None where neither does.

    None: where a guest of a size that was asked for by number cannot be had without (the contract: kernel arguments
    only if something planned cannot work without them).
    """
    if wanted(intent, "boot_pages"):
        return True
    return False if "boot_pages" in (intent.settings or {}) else None


def reason(intent: Intent, name: str, why: str) -> str:
    """Why a setting gets its value: `why` holds for the profile's value only, another one was asked for."""
    return why if wanted(intent, name) == SETTINGS[name].value else f"asked for by name: settings.{name}"
