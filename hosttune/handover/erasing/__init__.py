"""Erasure of NVMe drives with evidence, and never of the wrong one.

- `hold_back`, `let_go`, `held_back`: before the host's nvme driver sees a drive, nothing of udev's may assemble or
  mount what the last tenant left on it (`holdback`).
- `survey`: may this drive be erased, how, and how long does it take; reads only (`nvme`).
- `erase`: the course of one drive, which can be cut off anywhere and is continued by the next call (`course`);
  `readback` compares what can be read.
- `erasing`, `forget_erasing`: the file in the state directory that says where an erasure stands (`progress`, which
  also decides, without a drive, whether a sanitize is ours, new and done).

Sources: NVM Express Base Specification 2.0 and 1.4 (Sanitize, Sanitize Status log page, Format NVM, Identify), nvme-cli
1.13 to 2.16 (forms of its JSON). docs/handover.md leads an operator through it.
"""

from __future__ import annotations

from hosttune.handover.erasing.course import SPARE_SECONDS, Clock, erase
from hosttune.handover.erasing.holdback import held_back, hold_back, let_go
from hosttune.handover.erasing.progress import EraseOrder, ErasureProgress, erasing, forget_erasing
from hosttune.handover.erasing.survey import Survey, survey

__all__ = [
    "SPARE_SECONDS",
    "Clock",
    "EraseOrder",
    "ErasureProgress",
    "Survey",
    "erase",
    "erasing",
    "forget_erasing",
    "held_back",
    "hold_back",
    "let_go",
    "survey",
]
