"""What a play says at its end: how many hosts are well, the worst one with its reason, and the page that was written.

Made from the stored answers, on the controller. The page is that of `hosttune fleet report`, so only where hosttune is
there. Read by the action plugin `hosttune`.
"""

# Copyright: hosttune's authors. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import collections
import contextlib
import json
import os
import subprocess
from collections.abc import Callable

# From the worst: what needs a person first, then what was not reached or not told, then a plain no.
_WORDS = (
    "needs-person died internal unknown slow disk-full unreachable not-installed wrong-version bad-input refused no ok"
)
OUTCOMES = {word: place for place, word in enumerate(_WORDS.split())}
VERDICTS = {word: place for place, word in enumerate(("fail", "unknown", "warn", "pass", None))}
PAGE_SECONDS = 600


def answers(paths: dict) -> dict:
    """Host → its stored answer as JSON, of those that have one."""
    stored = {}
    for host, path in paths.items():
        with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
            stored[host] = json.load(file)
    return stored


def said(phase: str, paths: dict, run: str, warned: Callable[[dict], str]) -> list[str]:
    """The lines about hosts that were asked in this run (host → path of its answer); `warned`: of a document.

    If none was asked (only the report was wanted), their last answers are told, and that they are earlier ones.
    """
    stored = answers(paths)
    asked = {host: one for host, one in stored.items() if one["fleet"].get("run") == run}
    seals = {host: one["fleet"] for host, one in (asked or stored).items()}
    if not seals:
        return [f"{phase}: no host has answered"]
    counts = collections.Counter(
        f"{seal['outcome']} ({seal['verdict']})" if seal.get("verdict") else seal["outcome"] for seal in seals.values()
    )
    told = ", ".join(f"{number} {words}" for words, number in counts.most_common())
    earlier = "" if asked else " (earlier answers)"
    worst = min(seals, key=lambda host: (OUTCOMES[seals[host]["outcome"]], VERDICTS[seals[host].get("verdict")]))
    why = seals[worst].get("why") or warned(stored[worst])
    lines = [f"{phase}: {len(seals)} host{'' if len(seals) == 1 else 's'}: {told}{earlier}"]
    return [*lines, f"worst: {worst}: {seals[worst]['outcome']}: {why}"] if why else lines


def page(program: str | None, phase: str, results: str) -> str:
    """Write RESULTS/PHASE.html; the line that says where it is, or why it is not."""
    if program is None:
        return "no page: there is no hosttune on this controller (pip install hosttune, or hosttune_controller_command)"
    path = os.path.abspath(os.path.join(os.path.expanduser(results), f"{phase}.html"))
    argv = [program, "fleet", "report", "--verb", phase, "--results", os.path.dirname(path), "-o", "html"]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PAGE_SECONDS, check=True
        )
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            file.write(done.stdout)
        os.replace(f"{path}.new", path)
    except (OSError, subprocess.SubprocessError) as error:
        lines = (getattr(error, "stderr", None) or str(error)).splitlines()
        return f"no page: {program} fleet report: {lines[0] if lines else error}"
    return f"page: {path}"
