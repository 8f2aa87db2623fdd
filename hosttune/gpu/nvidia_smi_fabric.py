"""The health of a GPU's connection to the NVSwitch fabric, in the words of `nvidia-smi -q`, as text or as XML. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hosttune.gpu.nvidia_smi_rows import is_lacking, text_of

Flat = dict[str, list[str]]  # the texts at each path, in the order of the document

# The words of each element of the fabric's health: where there is no fault, and where there is one (nvml.h, in
# nvidia-smi's words: NVML_GPU_FABRIC_HEALTH_…). For "incorrect configuration", any other word is a fault too.
_FLAG = (("false",), ("true",))
_FABRIC_WORDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "summary": (("healthy",), ("unhealthy", "limited capacity")),
    "bandwidth": (("full",), ("degraded",)),
    "route recovery in progress": _FLAG,
    "route unhealthy": _FLAG,
    "access timeout recovery": _FLAG,
    "incorrect configuration": (("none",), ()),
    "partition assigned": (("false", "true"), ()),
}
# A driver that reports one of these reports all of them. Older drivers report only the bandwidth.
_FABRIC_CORE = frozenset(("bandwidth", "route recovery in progress", "route unhealthy", "access timeout recovery"))


class FabricHealth(NamedTuple):
    """The faults of the fabric's health, the elements that have a known word, and whether an element has none."""

    faults: tuple[str, ...]
    reported: frozenset[str]
    doubted: bool


def fabric_health(flat: Flat, folder: str) -> FabricHealth:
    """Return the faults of a GPU's connection to the fabric; `folder` is the path of its health in this form.

    "N/A" is not a doubt: most GPUs are on no such fabric.
    """
    faults: list[str] = []
    reported: set[str] = set()
    lacking: set[str] = set()
    doubted = False
    for path, values in flat.items():
        if not path.startswith(folder):
            continue
        name = path.removeprefix(folder).casefold().replace("_", " ")
        good, bad = _FABRIC_WORDS.get(name, ((), ("true",)))
        for value in dict.fromkeys(values):
            word = value.casefold()
            if is_lacking(value):
                lacking.add(name)
            elif word in good:
                reported.add(name)
            elif word in bad or (name == "incorrect configuration" and text_of(value)):
                reported.add(name)
                faults.append(name if word == "true" else f"{name} {word}" if bad else word)
            else:
                doubted = doubted or name in _FABRIC_WORDS
    core = reported & _FABRIC_CORE
    cut = bool(core) and core != {"bandwidth"} and not (reported | lacking).issuperset(_FABRIC_CORE)
    doubted = doubted or cut or bool(reported & lacking)
    return FabricHealth(tuple(faults), frozenset(reported & _FABRIC_WORDS.keys()), doubted)
