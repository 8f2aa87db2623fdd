"""What `plan` does alike with new guests and with existing ones: choose the guest to print, save the plan."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hosttune.cli.output import tell
from hosttune.errors import BadInput

if TYPE_CHECKING:
    from hosttune.model.plan import Plan

DEFINITIONS = ("xml",)  # formats where stdout is a definition, or empty


def chosen(name: str | None, names: Sequence[str]) -> str:
    """Return the name of the chosen guest of an intent or a plan, or of the only guest.

    Raises BadInput that lists the guests.
    """
    from hosttune.model.hints import did_you_mean

    if name is None and len(names) == 1:
        return names[0]
    if not names:
        raise BadInput("the intent asks for no guest", where="-f", hint="list one under `guests`")
    if name is None or name not in names:
        what = f"no guest {name!r}" if name is not None else f"{len(names)} guests, but -o xml prints one"
        raise BadInput(what, where="--name", hint=did_you_mean(name or "", names, f"name one of: {', '.join(names)}"))
    return name


def apply_command(root: str | None, path: str | None = None) -> str:
    """Return the command that applies a plan that was saved at `path` (None: where `apply` looks for it)."""
    return shlex.join(
        ["hosttune", "apply", *(("--root", root) if root is not None else ()), *((path,) if path else ())]
    )


def save_plan(decided: Plan, path: str | None, root: str | None = None, document: str | None = None) -> None:
    """Save a complete plan and print where. A plan with unplaced guests is not saved.

    `path`: None is where `apply` of this machine or scratch root looks for it; a captured host has no such place.
    """
    from hosttune.journal.state import holds, mode_of, save
    from hosttune.model.hostfields import UNTIL_THEN
    from hosttune.transaction.site import open_site, saved_plan_path

    target = path
    if target is None:
        site = None if document is not None else open_site(root)[0]
        if site is None or site.store is None:
            return
        target = saved_plan_path(site)
    if decided.unplaced:
        tell("plan not saved: not every guest is placed")
        return
    text = decided.to_json()
    if holds(target, text):
        tell(f"plan unchanged: {target}")
        return
    save(target, text, make_folder=path is None, mode=mode_of("plan.json") if path is None else None)
    tell(f"plan saved: {target}")
    if path is None and decided.host_digest and not any(f.text.endswith(UNTIL_THEN) for f in decided.findings):
        apply = apply_command(root)
        tell(f"next: {apply} --dry-run lists what would be written; {apply} shows what changes and asks")
