"""The files that a planned guest needs inside, as frozen values. Plan → GuestFiles → bytes.

The package is below `domain` and above the GPU makers. Pure: nothing here reads or writes a machine. The applier writes
the files that `write_plan` returns, as whole files, into the state directory. A plan is untrusted: every value of it is
checked before it becomes part of a file, and no value becomes shell text (the scripts are constant and read a table).
"""

from hosttune.guest.files import GuestFiles, guest_files, seed_image, write_plan

__all__ = ["GuestFiles", "guest_files", "seed_image", "write_plan"]
