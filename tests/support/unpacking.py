"""Captures unpacked by tar(1): Python's tarfile takes ten times as long, for it looks up the owner of each member."""

from __future__ import annotations

import subprocess
from pathlib import Path


def unpack(archive: Path, target: Path) -> Path:
    """Unpack our own archive into a folder, and return the root in it: the folder that holds sys/."""
    target.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-x", "--no-same-owner", "-C", target, "-f", archive], check=True)
    inner = [path for path in target.iterdir() if path.is_dir()]
    return inner[0] if not (target / "sys").is_dir() and len(inner) == 1 else target
