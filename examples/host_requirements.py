#!/usr/bin/env python3
"""What a host answers of NVIDIA's Requirements for AI Clouds, as a provider script of their validation suite.

The form: github.com/NVIDIA/ai-cloud-validation, isvctl/configs/providers/my-isv/scripts (one JSON object on the
standard output; exit code 0 if it says success, else 1). A provider's configuration names it as the command of a step.

Options: --root CAPTURE (in place of this machine), --report FILE (a stored `hosttune validate -o json`), --host NAME
(over ssh). A requirement has passed if one of its checks passed and none of them says anything but passed or not
applicable: what is unknown, warned of, not asked or not in the capture has not. See docs/requirements.md.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from typing import Any

# By requirement: what of it a host can answer, and the checks that do.
REQUIREMENTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "CAP05": (
        "per-host health: GPU state, thermal status, memory health",
        ("device-present", "gpu-status", "gpu-temperature", "clock-reasons", "ecc-errors", "machine-check"),
    ),
    "SEC11": (
        "isolation of compute: nothing joins two tenants",
        (
            *("iommu-mode", "interrupt-remapping", "iommu-groups", "vfio-no-iommu", "vfio-unsafe-interrupts", "acs"),
            *("cpu-vulnerabilities", "microcode", "kernel-arguments", "smt", "fabric-manager-mode", "fabric-partition"),
        ),
    ),
    "SEC21": ("what the last tenant left was erased, as a signed hand-over says", ("handover-statement",)),
    "SEC22": ("Secure Boot with a TPM 2.0", ("secure-boot",)),
}
FIRMWARE = ("bios-version", "microcode", "vbios", "nic-firmware", "drive-firmware")  # BFX03: facts, not judged


def main() -> int:
    """Print the result; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--host", help="a name of ssh; without it: this machine")
    parser.add_argument("--root", help="a capture")
    parser.add_argument("--report", help="a stored validation")
    arguments = parser.parse_args()
    result: dict[str, Any] = {"success": False, "platform": "bm", "test_name": "host_requirements", "tests": {}}
    try:
        validation = json.loads(_validation(arguments))
        result["tests"] = {name: _answer(validation, *row) for name, row in REQUIREMENTS.items()}
        result["tests"]["BFX03"] = _firmware(validation)
        result["success"] = all(test["passed"] for test in result["tests"].values())
        result["verdict"], result["machine_id"] = validation["verdict"], validation["host"]
    except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        result["error"] = f"no validation: {error}"
    print(json.dumps(result, indent=2))
    return 0 if result["success"] else 1


def _validation(arguments: argparse.Namespace) -> str:
    if arguments.report:
        with open(arguments.report, encoding="utf-8") as file:
            return file.read()
    command = ["hosttune", "validate", "-o", "json", *(["--root", arguments.root] if arguments.root else [])]
    if arguments.host:
        command = ["ssh", "--", arguments.host, f"sudo {shlex.join(command)}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False).stdout


def _answer(validation: dict[str, Any], what: str, checks: tuple[str, ...]) -> dict[str, Any]:
    """Return the answer of one requirement, with what stands against it."""
    found = [one for check in checks for one in validation["results"] if one["check"] == check]
    bad = [one for one in found if one["outcome"] not in ("pass", "skip") or one["actual"] == "not in this capture"]
    bad = bad or ([] if any(one["outcome"] == "pass" for one in found) else found)
    against = [f"{one['check']} ({one['subject']}): {one['outcome']}, {one['actual']}" for one in bad]
    against += [f"{check}: not asked" for check in checks if check not in {one["check"] for one in found}]
    return {"passed": not against, "message": what, **({"error": "; ".join(against)} if against else {})}


def _firmware(validation: dict[str, Any]) -> dict[str, Any]:
    facts = [one for one in validation.get("configuration") or [] if one["name"] in FIRMWARE]
    values = {name: [one["value"] for one in facts if one["name"] == name] for name in FIRMWARE}
    missing = [name for name in FIRMWARE if not values[name] or not all(values[name])]
    versions = [{key: one[key] for key in ("name", "value", "model", "subjects")} for one in facts]
    text = {"error": f"not known: {', '.join(missing)}"} if missing else {}
    return {"passed": not missing, "message": "firmware versions of the host's parts", "versions": versions, **text}


if __name__ == "__main__":
    sys.exit(main())
