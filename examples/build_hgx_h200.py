"""Write `hgx-h200-8.tar.xz`: a synthetic 8x H200 SXM host, for `make demo`, the documentation and tests.

The host does not exist. Its shape is that of real machines: host bridge, root port, switch, GPU, NIC and NVMe as
in a Dell PowerEdge XE9680; one host bridge per GPU, four GPUs per package and NUMA node, CPU numbering as in a
Lenovo ThinkSystem SR680a; GPU ids, BAR sizes, memory, power limits, clocks, MIG tables and NVLink counts as measured
on H200 SXM boards (tests/hosts/h200); address widths as measured on the Xeon below them. Serial numbers, UUIDs, MACs
and the host's name are made up, and so is its good health: no error in any counter, a kernel log without faults, drives
that are hardly worn. The same source gives the same archive. Run it to write the archive again:

    python3 examples/build_hgx_h200.py [FILE]
"""

from __future__ import annotations

import io
import lzma
import sys
import tarfile
from pathlib import Path

from hgx_h200.commands import write_commands
from hgx_h200.devices import write_devices
from hgx_h200.health import write_health
from hgx_h200.libvirt import write_libvirt
from hgx_h200.machine import write_cpus, write_memory_settings, write_nodes, write_platform, write_proc
from hgx_h200.pci import write_pci
from hgx_h200.tree import Tree

NOTE = """SYNTHETIC HOST, built from facts by examples/build_hgx_h200.py; not a capture of a machine.
Device ids, BAR sizes, link speeds, MIG tables, power limits: as measured or published for HGX H200.
Serial numbers, UUIDs, MAC addresses, host name: made up. So is its good health (error counters, kernel log, drives,
clock, Fabric Manager): a validation of it shows what the page looks like, and proves nothing about any machine.
"""


def build() -> Tree:
    """The whole root."""
    tree = Tree()
    tree.files[".hosttune/SYNTHETIC"] = NOTE.encode()
    for write in (write_cpus, write_nodes, write_memory_settings, write_proc, write_platform, write_pci):
        write(tree)
    write_devices(tree)
    write_commands(tree)
    write_health(tree)
    write_libvirt(tree)
    return tree


def archive(tree: Tree) -> bytes:
    """The root as a tar.xz: sorted names, owner root, time 0."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted((*tree.files, *tree.links, *tree.folders)):
            member = tarfile.TarInfo(name)
            member.mode = 0o644
            if name in tree.folders:
                member.type, member.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(member)
            elif name in tree.links:
                member.type, member.linkname = tarfile.SYMTYPE, tree.links[name]
                tar.addfile(member)
            else:
                member.size = len(tree.files[name])
                tar.addfile(member, io.BytesIO(tree.files[name]))
    return lzma.compress(buffer.getvalue(), preset=9)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("hgx-h200-8.tar.xz")
    target.write_bytes(archive(build()))
