"""Output of the makers' tools that a diagnosis reads. Not in `Vendor`: discovery would import the documents for it."""

from __future__ import annotations

from hosttune.gpu.amd_logs import AMD_LOGS
from hosttune.gpu.nvidia_logs import NVIDIA_LOGS
from hosttune.gpu.vendor import LogReader

LOGS: tuple[LogReader, ...] = (*NVIDIA_LOGS, *AMD_LOGS)
# How lspci writes the maker whose cards have, since Vega, a switch of their own: the link to that is always whole.
OWN_SWITCH = "[AMD/ATI]"
