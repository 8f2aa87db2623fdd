"""What a guest should find in itself (`hosttune.guest/v1`): the part of its plan that its tenant may know.

It is part of the guest's seed and is stored at PLACE inside the guest. `hosttune validate --guest` compares the guest
with it. It names nothing of the host: no address, serial number or node.
"""

from __future__ import annotations

from hosttune.errors import BadInput
from hosttune.model.networkintent import NetworkIntent, Roce, check_fabric
from hosttune.model.values import Closed, CpuSet, Document, Value, from_json, parse_address

GUEST_SCHEMA = "hosttune.guest/v1"
UNREADABLE = "the guest's own plan is unreadable"  # a problem of the evidence
PLACE = "/etc/hosttune-guest/expected.json"
LIBRARY_FILES = ("/etc/nccl.conf", "/etc/rccl.conf")  # those that a plan can name
# What the library reads before them, of the user root; a setting in it counts, and not the plan's (src/misc/param.cc).
OWN_FILES = {"/etc/nccl.conf": "/root/.nccl.conf", "/etc/rccl.conf": "/root/.rccl.conf"}
UCX_FILE = "/etc/hosttune-guest/ucx.env"


class ExpectedCell(Value, frozen=True, kw_only=True):
    """A NUMA node of the guest: its CPUs, and its memory before firmware and kernel reserve their part."""

    id: int
    cpus: str
    memory_bytes: int


class ExpectedDevice(Value, frozen=True, kw_only=True):
    """A passed function at its address in the guest. `ids`: "vendor:device", None if unknown; `node` None: no node."""

    address: str
    kind: str
    ids: str | None = None
    node: int | None = None


class ExpectedPair(Value, frozen=True, kw_only=True):
    """How near a GPU and a NIC are to each other: PIX, PXB, PHB, NODE or SYS."""

    gpu: str
    nic: str
    grade: str


class ExpectedLibrary(Closed, frozen=True, kw_only=True):
    """The settings file of the collectives library: its path, the topology file that it names, and the guest's NICs.

    `hosttune-guest-apply` writes the file at boot: only then do the NICs have names. `own_network`: the guest has one
    network of its own, bridged to the host's, for the library's sockets. `traffic_class`: what the intent declares for
    all its RoCE ports; None: nothing.
    """

    path: str
    topology: str
    nics: tuple[str, ...] = ()
    own_network: bool = False
    traffic_class: int | None = None


class GuestPlan(Document, frozen=True, kw_only=True):
    """A planned guest, as seen from inside."""

    schema: str = GUEST_SCHEMA
    name: str
    cells: tuple[ExpectedCell, ...] = ()
    devices: tuple[ExpectedDevice, ...] = ()
    pairs: tuple[ExpectedPair, ...] = ()
    library: ExpectedLibrary | None = None
    roce: Roce | None = None  # what must hold at its RoCE ports; addresses are the guest's

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str = PLACE) -> GuestPlan:
        """Read the document. Raises BadInput with the offending field or version."""
        plan = from_json(cls, text, schema=GUEST_SCHEMA, where=where)
        for n, cell in enumerate(plan.cells):
            try:
                CpuSet.parse(cell.cpus)
            except ValueError as error:
                raise BadInput(str(error), where=f"{where}: cells[{n}].cpus", hint="give a list as 0-3,8") from error
        for n, device in enumerate(plan.devices):
            parse_address(device.address, where=f"{where}: devices[{n}].address")
        check_fabric(NetworkIntent(roce=plan.roce), where)
        for n, nic in enumerate(plan.library.nics if plan.library is not None else ()):
            parse_address(nic, where=f"{where}: library.nics[{n}]")
        return plan
