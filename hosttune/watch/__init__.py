"""The agent (`hosttune watch`): re-checks a host after events and at intervals, and keeps its metrics fresh.

`core` decides when to look, and is pure. Sources yield events: `udev` devices, `kmsg` the kernel log,
`guests` libvirt, `replay` a file of a captured host. `looking` makes one look, in a child process, so that neither a
device nor a daemon that hangs can stop the agent. `foreign` counts the time that others ran on pinned CPUs, `footprint`
asks psutil who that was. `agent` has the one loop, in one thread. Nothing is written but the textfile, the lock, and,
with --keep, what `transaction.keeping` writes.
"""
