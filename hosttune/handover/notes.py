"""`hosttune status` with what the signed statements that are kept here are worth now."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

from hosttune.model.host import Host
from hosttune.model.result import Result
from hosttune.model.starts import SIGNED
from hosttune.transaction import calls
from hosttune.transaction.site import Site


def status(here: tuple[Site, Callable[[], Host]]) -> Result:
    """Return what `hosttune status` answers, with a note about each device of a statement."""
    site, discover = here
    result = calls.status(here)
    if site.store is None or not os.path.lexists(os.path.join(site.store.folder, SIGNED)):
        return result
    from hosttune.handover.kept import kept, lines_of  # few hosts need it

    known, problems = kept(site, discover())
    told = (*lines_of(known or ()), *(f"{problem.what}: {problem.where}: {problem.why}" for problem in problems))
    return msgspec.structs.replace(result, notes=(*result.notes, *told))
