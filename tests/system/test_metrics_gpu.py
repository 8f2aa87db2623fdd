"""The metrics of a machine with NVIDIA GPUs say what nvidia-smi says: skipped where there is none."""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
import sys

import pytest
from exposed import Values, of, value, values

SMI = shutil.which("nvidia-smi")
ASKED = "pci.bus_id,uuid,pcie.link.gen.gpucurrent,pcie.link.gen.gpumax,pcie.link.width.current,pcie.link.width.max"
GTS = {"1": 2.5, "2": 5.0, "3": 8.0, "4": 16.0, "5": 32.0, "6": 64.0}  # GT/s of a lane, by generation


def asked() -> list[list[str]]:
    """What nvidia-smi says of each GPU, in the order of ASKED; the address as the kernel writes it."""
    assert SMI is not None
    words = [SMI, f"--query-gpu={ASKED}", "--format=csv,noheader,nounits"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    rows = list(csv.reader(io.StringIO(done.stdout), skipinitialspace=True)) if done.returncode == 0 else []
    return [[row[0].lower()[-12:], *row[1:]] for row in rows]


def told() -> Values:
    done = subprocess.run(
        [sys.executable, "-m", "hosttune", "metrics"], capture_output=True, text=True, check=True, timeout=300
    )
    return values(done.stdout)


@pytest.mark.skipif(SMI is None or not asked(), reason="no NVIDIA GPU that nvidia-smi can ask")
def test_metrics_say_what_nvidia_smi_says() -> None:
    before, found, after = asked(), told(), asked()
    assert value(found, "hosttune_devices", kind="gpu") == len(before)
    infos = {(one.label("address"), one.label("uuid")) for one in of(found, "hosttune_device_info", kind="gpu")}
    assert infos == {(row[0], row[1]) for row in before}
    for row, later in zip(before, after, strict=True):
        here = {"address": row[0], "end": "device"}
        assert value(found, "hosttune_pcie_link_width", **here) == int(row[4])
        # An idle GPU may change its generation at any time: it had one of the two.
        assert value(found, "hosttune_pcie_link_speed_gts", **here) in {GTS[row[2]], GTS[later[2]]}
        widest, fastest = (
            value(found, f"hosttune_pcie_link_{name}_expected", **here) for name in ("width", "speed_gts")
        )
        assert widest is None or widest == int(row[5])  # None: the port above it is not seen (a guest)
        assert fastest is None or fastest <= GTS[row[3]]
    for series, number in of(found, "hosttune_xid_events_total").items():
        assert number == 0, series
