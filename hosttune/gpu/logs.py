"""Output of the makers' tools that a diagnosis reads. Not in `Vendor`: discovery would import the documents for it."""

from __future__ import annotations

from hosttune.gpu.nvidia_logs import NVIDIA_LOGS
from hosttune.gpu.vendor import LogReader

LOGS: tuple[LogReader, ...] = NVIDIA_LOGS
