"""Transactions: apply a plan, read back every setting, keep a journal and revert.

1. Take the lock (flock), refuse if a transaction is unfinished, discover the host.
2. Refuse another machine, other devices, a plan older than the newest transaction, and devices in use.
3. For each setting: write the intent to the journal, read the old value again, write, read back, record the outcome. A
   write that can hang in the kernel runs in a child process.
4. On failure, interrupt or crash: roll back from the journal. A `revert` is a transaction of its own, from what is in
   force to the originals; one that was cut off is finished.

A setting whose write changed nothing has the outcome `ignored` and is not reverted. What a reboot undoes is set again
by the boot unit, from the journal.

Names are imported on first use. So `validate`, which only needs the applied plans, does not import the code that
applies plans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hosttune.transaction.applied import status
    from hosttune.transaction.applying import ApplyOptions
    from hosttune.transaction.applying import apply as apply_plan
    from hosttune.transaction.booting import reapply
    from hosttune.transaction.dryrun import rehearse_apply
    from hosttune.transaction.undoing import recover, revert

__all__ = [
    "ApplyOptions",
    "apply_plan",
    "reapply",
    "recover",
    "rehearse_apply",
    "revert",
    "status",
]

_HOMES = {
    **dict.fromkeys(("ApplyOptions", "apply_plan"), "applying"),
    **dict.fromkeys(("recover", "revert"), "undoing"),
    "status": "applied",
    "reapply": "booting",
    "rehearse_apply": "dryrun",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'hosttune.transaction' has no attribute {name!r}")
    from importlib import import_module

    home = import_module(f"hosttune.transaction.{_HOMES[name]}")
    return getattr(home, "apply" if name == "apply_plan" else name)
