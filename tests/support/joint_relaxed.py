"""Relaxations that a plan suggests for a guest without a place, followed as a person would follow them."""

from __future__ import annotations

import re

from plan_facts import Json

_WHOLE = re.compile(r"the whole GPU with MIG inside the guest: gpus: (\d+), mig: (\{.*\})")
_MIG = re.compile(r"\{profile: (\S+), count: (\d+)\}")
_KEY = re.compile(r"(gpus|vcpus|memory|nics|nvme|numa|smt|hugepages): ([\w.]+)(?: \((\d+) fewer\))?")


def followed(host: Json, intent: Json, guest: str, text: str) -> tuple[Json, Json] | None:
    """Host and intent after one suggestion was followed; None for one that changes neither (an advice in words)."""
    if release := re.fullmatch(r"release guest (\S+)", text):
        return _without(host, intent, release[1])
    if change := _change(text):
        guests = [_changed(row, change) if row["name"] == guest else row for row in intent["guests"]]
        return host, {**intent, "guests": guests}
    return None


def _without(host: Json, intent: Json, name: str) -> tuple[Json, Json]:
    """Without a guest, whether it is on the host or in the intent; a name that is neither fails."""
    here = [row for row in host["guests"] if row["name"] != name]
    asked = [row for row in intent["guests"] if row["name"] != name]
    assert (len(here), len(asked)) != (len(host["guests"]), len(intent["guests"])), name
    return {**host, "guests": here}, {**intent, "guests": asked}


def _change(text: str) -> Json | None:
    if whole := _WHOLE.fullmatch(text):
        return {"gpus": int(whole[1]), "mig": _mig(whole[2])}
    if text.startswith("mig: "):
        return {"mig": _mig(text.removeprefix("mig: "))}
    if found := _KEY.fullmatch(text):
        return {found[1]: int(found[2]) if found[2].isdecimal() else found[2]}
    return None


def _mig(text: str) -> Json:
    found = _MIG.fullmatch(text)
    assert found, text
    return {"profile": found[1], "count": int(found[2])}


def _changed(guest: Json, change: Json) -> Json:
    """The guest with a key changed; where listed cells go, what they add up to must be said."""
    cells = guest.get("numa")
    if isinstance(cells, list) and change.keys() & {"numa", "vcpus", "memory"}:
        vcpus = sum(cell["vcpus"] for cell in cells)
        gib = sum(_mib(cell["memory"]) for cell in cells)
        return {**guest, "vcpus": vcpus, "memory": f"{gib}MiB", "numa": "auto", **change}
    return {**guest, **change}


def _mib(text: str) -> int:
    number, unit = text[:-3], text[-3:]
    return int(number) * {"MiB": 1, "GiB": 1024}[unit]
