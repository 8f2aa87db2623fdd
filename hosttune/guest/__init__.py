"""The guest's own side: the files that a planned guest needs inside, as frozen values. Plan → GuestFiles → bytes.

Below domain, above the GPU makers. Pure: nothing here reads or writes a machine; the applier writes what `write_plan`
gives, whole files, under the state directory. A plan is untrusted: every value of it is checked before it becomes
part of a file, and none ever becomes shell text (the scripts are constant and read a table).
"""

from hosttune.guest.files import GuestFiles, guest_files, seed_image, write_plan

__all__ = ["GuestFiles", "guest_files", "seed_image", "write_plan"]
