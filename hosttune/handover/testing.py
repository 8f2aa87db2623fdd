"""The test of a device while the host's own driver has it: what a validation of the host says about this device.

Only results whose subject names the device count for it: another device of the host may be at fault. It is tested if
nothing about it failed or is unknown, and something was read or measured and found good. A GPU must also have been
measured: that its links are right says nothing of its memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from hosttune.handover.targets import Target
from hosttune.model.evidence import OF_REGISTER
from hosttune.model.handover import HandoverStep, StepOutcome
from hosttune.model.validation import CheckResult, Validation

LIMIT_SECONDS: Mapping[int, float] = {1: 1800.0, 2: 14400.0}  # by level
ESTIMATE_SECONDS: Mapping[int, float] = {1: 120.0, 2: 1800.0}
_MOST_NAMED = 6
_OF_PORT = ("port-", "pcie-", "aer")  # the beginnings of checks of a function's port and link


def tested(
    target: Target, validation: Validation | str, firmware: Mapping[str, str] | None, back: bool
) -> HandoverStep:
    """Return the step of one device. `validation`: or why there is none; `back`: the host's driver has the device."""
    if not back:
        return _step("unknown", why="the host's driver does not have the device, so that nothing could be tested")
    if isinstance(validation, str):
        return _step("unknown", why=f"no validation: {validation}")
    method = f"validate --level {validation.level}"
    results = [result for result in validation.results if result.check not in OF_REGISTER and _counts(result, target)]
    evidence = {
        "results": {
            outcome: sorted({result.check for result in results if result.outcome == outcome})
            for outcome in ("pass", "warn", "fail", "unknown", "skip")
        },
        "firmware": None if firmware is None else dict(firmware),
        "firmware_before": None if target.firmware is None else dict(target.firmware),
    }
    bad = [result for result in results if result.outcome in ("fail", "unknown")]
    if bad:
        outcome: StepOutcome = "failed" if any(result.outcome == "fail" for result in bad) else "unknown"
        named = "; ".join(f"{result.check} is {result.outcome}: {result.actual}" for result in bad[:_MOST_NAMED])
        return _step(outcome, method, evidence, named)
    changed = _changed(target, firmware)
    if changed:
        return _step("failed", method, evidence, changed)
    good = [result for result in results if result.outcome in ("pass", "warn")]
    if not good:
        return _step("unknown", method, evidence, "the validation has nothing about this device")
    if target.kind == "gpu" and not any(result.check.startswith("bench-") for result in good):
        return _step("unknown", method, evidence, "nothing was measured on this GPU")
    return _step("done", method, evidence)


def _changed(target: Target, now: Mapping[str, str] | None) -> str | None:
    """Return what of the firmware is not as it was after the last hand-over; None if that is unknown or the same.

    What was not known then is not compared: it is recorded now. What was, and cannot be read now, has changed.
    """
    before = target.firmware
    if before is None or now is None or dict(before) == dict(now):
        return None
    names = sorted(name for name in before if before[name] != now.get(name))
    if not names:
        return None
    changes = "; ".join(f"{name} was {before.get(name)!r}, and is {now.get(name)!r}" for name in names)
    hint = "if that was the operator: hosttune handover release, then hand it over again"
    return f"its firmware changed since its last hand-over: {changes} ({hint})"


def _counts(result: CheckResult, target: Target) -> bool:
    """Return whether a result is about a device. A virtual function's port and link are those of its physical one."""
    if target.physical is not None and result.check.startswith(_OF_PORT) and _is_about(result, target.physical):
        return True
    return _is_about(result, target.address)


def _is_about(result: CheckResult, address: str) -> bool:
    return re.search(rf"(?<![0-9a-f:.]){re.escape(address)}(?![0-9a-f:.])", result.subject) is not None


def _step(
    outcome: StepOutcome,
    method: str | None = None,
    evidence: Mapping[str, object] | None = None,
    why: str | None = None,
) -> HandoverStep:
    return HandoverStep(step="tested", outcome=outcome, method=method, evidence=evidence, why=why)
