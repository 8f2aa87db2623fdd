"""What is kept of GPUs for the time when vfio-pci or a guest has them: who they are, and the last look at their health.

`gpus.json` in the state directory. Of two that write it at the same moment the last one counts: a look can be lost by
that, which makes the health of a GPU unknown, or that of the look before.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from hosttune.errors import BadInput, Refused
from hosttune.journal.state import load, mode_of, save
from hosttune.machine.system import KEPT_GPUS
from hosttune.model.evidence import Look
from hosttune.model.host import Host
from hosttune.model.jsontext import plain_json
from hosttune.model.values import FrozenMap, to_json
from hosttune.settings.drivers import merged_identities


def keep_gpus(folder: str, host: Host, looks: Mapping[str, Look] = FrozenMap({})) -> None:
    """Keep the identities of a host's GPUs, and these looks, in place of those at the same addresses.

    A look at a GPU that is known to have been replaced is dropped. Raises Refused for a file that cannot be read,
    BadInput for one that cannot be written.
    """
    path = os.path.join(folder, KEPT_GPUS)
    try:
        kept = plain_json(load(path, what="GPU identities"), where=path) if os.path.exists(path) else {}
        merged = merged_identities(kept, host)
        for address, look in looks.items():
            merged[address]["look"] = msgspec.to_builtins(look)
    except (BadInput, AttributeError, TypeError, ValueError) as error:
        what = f"the identities of GPUs that were kept cannot be read: {error}"
        raise Refused(what, where=path, hint="read it, then move it away") from error
    if merged != kept:
        save(path, to_json(merged), make_folder=True, mode=mode_of(KEPT_GPUS))
