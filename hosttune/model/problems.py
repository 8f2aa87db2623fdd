"""Problems of a host document that checks look for, by the words that discovery gives them.

Apart from `evidence`, so that discovery does not load the documents of a validation.
"""

from __future__ import annotations

PAGES_UNSURE = "number of huge pages in doubt"  # of its default size, else of all sizes
LIST_UNREAD = "list of guests unknown"  # there may be more guests than are known
OUTSIDE = "a QEMU guest outside libvirt"  # how it begins: a process of a guest that libvirt does not list
