"""The texts of the host document's problems that checks look for.

They are not in `evidence`, so that discovery does not have to load the documents of a validation.
"""

from __future__ import annotations

LIST_UNREAD = "list of guests unknown"  # there may be more guests than the known ones
NO_DEFINITION = "no definition"  # of a guest: what it has is unknown
OUTSIDE = "a QEMU guest outside libvirt"  # beginning of the text: a process of a guest that libvirt does not list
