"""Odd text in any file that discovery reads: a document comes out, or BadInput, and never an impossible number."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from sweeps import sample

from hosttune.discovery import discover
from hosttune.discovery.recording import Recording
from hosttune.errors import BadInput
from hosttune.machine.capture import Archive
from hosttune.machine.opening import open_root
from hosttune.model.host import Host
from hosttune.report.text import print_host

HOSTS = Path(__file__).parents[1] / "hosts"
TEXTS = (b"", b"-1", b"(null)", b"9" * 5000, b"18446744073709551615", b"\xff\xfe", b"\0", b"0-99999999")
CASES = 150  # of each capture, evenly spread over its files
MOST = 30  # in a sample
# Read by every host; a sample could miss them.
ALWAYS = (
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/sys/devices/system/cpu/online",
    "/sys/devices/system/cpu/present",
    "/sys/devices/system/cpu/possible",
    "/sys/devices/system/node/online",
    "/sys/devices/system/node/node0/cpulist",
    "/sys/devices/system/node/node0/distance",
    "/sys/devices/system/node/node0/meminfo",
    "/sys/devices/system/cpu/cpu0/topology/physical_package_id",
    "/sys/devices/system/cpu/cpu0/topology/die_id",
    "/sys/devices/system/cpu/cpu0/cache/index3/shared_cpu_list",
)


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for part in value.values() for number in numbers(part)]
    if isinstance(value, list):
        return [number for part in value for number in numbers(part)]
    return [] if isinstance(value, str | bool) or value is None else [value]


@pytest.mark.parametrize("name", ["ghw/linux-amd64-accel-nvidia", "h200/vm-h200x1", "older/vm-x1"])
def test_odd_text_never_breaks_discovery(name: str) -> None:
    recording = Recording(open_root(str(HOSTS / f"{name}.tar.gz")))
    discover(recording)
    files = recording.files
    cases = [(path, text) for path in sorted(files) for text in TEXTS]
    chosen = cases[:: len(cases) // CASES | 1]  # an odd step meets every text
    chosen += [(path, text) for path in ALWAYS if path in files for text in TEXTS]
    for path, text in sample(name, chosen, MOST):
        try:
            host = discover(Archive({**files, path: text}, recording.links, name, recording.present))
        except BadInput:
            continue
        except Exception as error:
            raise AssertionError(f"{path} reads {text[:20]!r}") from error
        wrong = [number for number in numbers(json.loads(host.to_json())) if not 0 <= number < 1 << 63]
        assert wrong == [], f"{path} reads {text[:20]!r}"
        assert Host.from_json(host.to_json()) == host, f"{path} reads {text[:20]!r}"
        print_host(host, Console(file=io.StringIO(), width=100))
