"""Devices that no driver of the host can take are searched and tested in a guest of the operator's image.

- `planned`: the guest, by the ordinary planner and writer of XML.
- `order`: what the guest is asked through its seed, and what it answers: untrusted. `inside`: the work in the guest.
- `session`: one guest, from its overlay to its removal. `listening`: the program that takes its answer.
- `steps`: the steps of a hand-over that are made so.
"""

from hosttune.handover.testguest.planned import TestGuest
from hosttune.handover.testguest.session import Session, remove_left
from hosttune.handover.testguest.steps import GuestSteps, goes_in, guest_targets
from hosttune.hypervisor.disk import read_image

__all__ = ["GuestSteps", "Session", "TestGuest", "goes_in", "guest_targets", "read_image", "remove_left"]
