"""Where a transaction takes place: the machine (or a scratch root), its state directory and its identity."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import structs
from msgspec.structs import replace

from hosttune import __version__
from hosttune.errors import BadInput, Refused, Unreadable, WriteFailed
from hosttune.gpu import fmpm
from hosttune.gpu.fmpm import client
from hosttune.gpu.nvswitches import MANAGER_CONFIG
from hosttune.gpu.vgpu_set import MediatedDevice
from hosttune.journal import Record, Store, Transaction
from hosttune.journal.force import (
    AGAIN,
    KEPT,
    MEASURED,
    Standings,
    fold,
    newest_plan,
    plan_in_force,
    standings,
    waiting,
    without_retired,
)
from hosttune.journal.state import AT_START, HOLDERS, mode_of, save, unseen_journals
from hosttune.linux.hugetlbfs import PLACES, unit_path
from hosttune.linux.irqbalance import IRQBALANCE_OURS
from hosttune.machine.capture import Archive
from hosttune.machine.opening import open_system
from hosttune.machine.scratch import Scratch
from hosttune.machine.system import KEPT_GPUS, STATE_INSIDE, System, state_directory
from hosttune.model import sysfs
from hosttune.model.force import InForce
from hosttune.model.history import Caller
from hosttune.model.host import Host
from hosttune.model.hostfields import FORCE_UNKNOWN, Problem
from hosttune.model.plan import Action, Plan, PlannedGuest
from hosttune.model.result import OpenTransaction, Result
from hosttune.settings import bootloader, hook, sysctl
from hosttune.settings.bootloader import STATE as STAGED
from hosttune.settings.drivers import UDEV_RULES
from hosttune.settings.dropin import BOOT_UNIT, OURS, ruled
from hosttune.settings.irqs import SLICES, slice_file
from hosttune.settings.virtual import VgpuTypeSetting
from hosttune.transaction.steps import setting_of_record

# Files that hosttune writes whole: the kind or the target of the setting that has it.
_FILES = {
    UDEV_RULES: UDEV_RULES, BOOT_UNIT: BOOT_UNIT, bootloader.DROP_IN: "kernel-argument", STAGED: "kernel-argument",
    hook.PLACE: "libvirt-hook", **{slice_file(name): name for name in SLICES},
    **{unit_path(place): place for place in PLACES.values()},
}  # fmt: skip
_BESIDE = {sysctl.DROP_IN: "sysctl", IRQBALANCE_OURS: "irqbalance-ban"}  # others may have made these


class Site(msgspec.Struct, frozen=True):
    """A System with its state directory. `store` is None for a capture, which has no state directory.

    `boots`: no guest runs yet, and libvirt's daemon waits for us, so it is not asked.
    """

    system: System
    store: Store | None
    boot_id: str | None
    hostname: str | None
    machine: str | None = None
    boots: bool = False

    def transactions(self) -> tuple[Transaction, ...]:
        """Return all transactions of this machine, oldest first. Raises Refused for a journal that cannot be read.

        Also raises Refused for another machine's journal (a copied disk, a shared state directory) and for a setting
        that this version does not know. Both are found here, before a rollback begins.
        """
        journals = self.store.transactions() if self.store else ()
        for transaction in journals:
            if None not in (transaction.header.machine, self.machine) and transaction.header.machine != self.machine:
                raise Refused(
                    f"a journal of another machine ({transaction.header.host or 'unnamed'})",
                    where=transaction.path,
                    hint="move it out of the folder: its values are not this machine's",
                )
            for record in transaction.records:
                if record.to_undo:
                    setting_of_record(record, transaction.path)
        return journals

    def plan_of(self, transaction: Transaction) -> Plan | None:
        """Return the plan kept with a transaction; None if there is none. Raises BadInput."""
        text = self.store.plan_of(transaction) if self.store is not None else None
        return None if text is None else without_retired(Plan.from_json(text, where=transaction.path))

    def standings(self, transactions: Iterable[Transaction]) -> Standings:
        """Return the settings as these transactions leave them."""
        return standings(transactions, setting_of_record)

    def lost(self, transactions: Iterable[Transaction]) -> Refused | None:
        """Return what is to be done where the host has what hosttune wrote and no journal knows: the state was lost.

        Or it is that of an older backup: of the udev rules each device counts.
        """
        known = tuple(transactions)
        rows = self.standings(known)
        records = [setting.record for setting in (*rows.in_force, *rows.dropped, *rows.left_alone)]
        records += (record for transaction in known for record in transaction.records if record.change == "given-up")
        names = {name for record in records for name in (record.kind, record.target)}
        ours = [
            p
            for p, name in {**_FILES, **_BESIDE}.items()
            if name not in names and (OURS in _text(self.system, p)[:100] or (p == STAGED and self.system.exists(p)))
        ]
        paths = [path for path in ours if path in _FILES]
        rules = "".join(record.after or "" for record in records if record.target == UDEV_RULES)
        newer = sorted(ruled(_text(self.system, UDEV_RULES)).keys() - ruled(rules)) if UDEV_RULES in names else []
        own = [transaction for transaction in known if transaction.header.verb not in (AGAIN, KEPT, MEASURED)]
        whole = not own or own[-1].state == "applied" or own[-1].goes_on  # else its apply was cut off
        if self.store is None or not whole or not (paths or newer):
            return None
        unknown = [*paths, *(f"{address} in {UDEV_RULES}" for address in newer)]
        what = f"what is in force here is unknown: no journal knows {', '.join(unknown)}, which hosttune wrote"
        first = f"take the arguments in {STAGED} out of the boot loader, " if STAGED in paths else ""
        more = " && update-grub" if bootloader.DROP_IN in paths else ""
        gone = " ".join((*ours, *([UDEV_RULES] if newer else ())))
        hint = f"restore {self.store.folder} from its newest backup; without one: {first}rm {gone}{more},"
        return Refused(what, where=self.store.folder, hint=f"{hint} then reboot, which undoes what was set")

    def refuse_lost(self, transactions: Iterable[Transaction]) -> None:
        """Raise Refused where the state was lost."""
        if error := self.lost(transactions):
            raise error

    def in_force(self) -> InForce | None:
        """Return what is in force here; None if that is unknown: a capture, or journals that are lost or unreadable."""
        try:
            return self._folded()
        except (BadInput, Refused):
            return None

    def _folded(self) -> InForce | None:
        if self.store is None or (not self.system.captured and unseen_journals(self.store.folder) is not None):
            return None
        transactions = self.transactions()
        self.refuse_lost(transactions)
        return fold(transactions, self.plan_of, setting_of_record)

    def plan_in_force(self) -> Plan | None:
        """Return what is in force as one plan; None for nothing. Raises BadInput for a plan that cannot be read."""
        return plan_in_force(self.transactions(), self.plan_of, setting_of_record)

    def waiting(self, transactions: Iterable[Transaction]) -> tuple[tuple[Action, bool], ...]:
        """Return what waits for the end of guests' runs, and of each whether a guest that holds it may still run.

        Raises BadInput for a plan that cannot be read.
        """
        known = tuple(transactions)
        newest = newest_plan(known, self.plan_of)
        if newest is None:
            return ()
        header, left = newest[0].header, tuple(waiting(known, *newest))
        names = {name for action in left for name in action.holders}
        boots, before, now = {header.boot_id, self.boot_id}, dict(header.runs or ()), dict(self.runs(names))
        held = {
            name: (len(boots) == 1 or None in boots) and self._may_run(name)
            and len({before.get(name), now.get(name)} - {None}) < 2  # else it was restarted
            for name in names
        }  # fmt: skip
        return tuple((action, any(held[name] for name in action.holders)) for action in left)

    def runs(self, names: Iterable[str]) -> tuple[tuple[str, str], ...]:
        """Return these guests with the process that each is now, those of which it is known."""
        from hosttune.hypervisor.connection import identity_of, process_of

        pids = {name: process_of(self.system, name) for name in sorted(set(names))}
        identities = ((name, identity_of(self.system, pid)) for name, pid in pids.items() if pid is not None)
        return tuple((name, process) for name, process in identities if not process.endswith("?"))

    def keep_holders(self, transactions: Iterable[Transaction]) -> None:
        """Write the list of guests at whose end libvirt's hook starts the boot unit, which else finds none."""
        with contextlib.suppress(BadInput):
            held = {name for action, runs in self.waiting(transactions) if runs for name in action.holders}
            path = os.path.join(self.store.folder if self.store else "", HOLDERS)
            if held or os.path.exists(path):
                save(path, "".join(f"{name}\n" for name in sorted(held)), mode=mode_of(HOLDERS))

    def keep_at_start(self, transactions: Iterable[Transaction], without: Collection[str] = ()) -> None:
        """Write the list by which libvirt's hook sets what guests need at starts by others.

        `without`: guests that are changed and started just now.
        """
        with contextlib.suppress(BadInput, Unreadable):
            known = tuple(transactions)
            plan = plan_in_force(known, self.plan_of, setting_of_record)
            guests = [guest for guest in (plan.guests if plan else ()) if guest.name not in without]
            records = [row.record for row in self.standings(known).in_force]
            text = list_at_start(guests, records, client(self.system.read(MANAGER_CONFIG)))
            path = os.path.join(self.store.folder if self.store else "", AT_START)
            if text or os.path.exists(path):
                save(path, text, mode=mode_of(AT_START))

    def pages_of_runs(self, pool: str) -> int:
        """Return how many pages of a pool (the path of its nr_hugepages) the guests in force that may run have."""
        force = InForce() if self.boots else self.in_force() or InForce()
        places = (guest.places for guest in force.guests if guest.places.page_bytes and self._may_run(guest.name))
        return sum(
            cell.memory_bytes // size
            for guest in places
            for size in (guest.page_bytes or 0,)
            for cell in guest.cells
            if sysfs.pool_total(cell.host_nodes, size) == pool
        )

    def _may_run(self, name: str) -> bool:
        from hosttune.hypervisor.connection import is_active, read_state

        try:
            return is_active(read_state(self.system, name))
        except Unreadable:
            return True

    def discover(self) -> Host:
        """Discover the host, with what is in force on it. Raises BadInput."""
        from hosttune.discovery import discover as read

        return self.with_force(read(self.system))

    def with_force(self, host: Host) -> Host:
        """Return the host document with what is in force."""
        try:
            host = structs.replace(host, in_force=self._folded())
            if host.in_force is not None:
                refuse_open(self.transactions())
        except BadInput:
            pass
        except Refused as error:
            doubt = Problem(what=FORCE_UNKNOWN, where=error.where, why=f"{error.what}; {error.hint}")
            return structs.replace(host, problems=(*host.problems, doubt))
        return host

    def retired(self, transactions: Iterable[Transaction]) -> tuple[Record, ...]:
        """Return the steps that this version cannot undo (`journal.RETIRED`). A reboot has undone those before it.

        After a revert they are not counted any more.
        """
        records: tuple[Record, ...] = ()
        for transaction in transactions:
            if transaction.goes_on and not transaction.is_open:
                records = ()
            elif transaction.header.boot_id in (None, self.boot_id) and transaction.state != "reverted":
                records += transaction.retired
        return records


def _text(system: System, path: str) -> str:
    try:
        return system.read(path) or ""
    except Unreadable:
        return ""


def open_site(
    root: str | None, host: Host | None = None, where: str = "host document"
) -> tuple[Site, Callable[[], Host]]:
    """Return where to work, and a function that discovers the host there.

    The place is this machine, a capture (`root`), or a host document (`host`, named `where` in errors), which is
    read-only. Raises BadInput.
    """
    if host is not None:
        return replace(site_of(Archive({}, {}, where)), hostname=host.hostname), lambda: host
    site = site_of(open_system(root))
    return site, site.discover


def site_of(system: System) -> Site:
    """Return the site of a System."""
    # An identifier of this machine: a digest of its machine id, which itself must not leave the machine.
    machine_id = (system.read("/etc/machine-id") or "").strip()
    return Site(
        system=system,
        store=_store(system),
        boot_id=(system.read("/proc/sys/kernel/random/boot_id") or "").strip() or None,
        hostname=(system.read("/proc/sys/kernel/hostname") or "").strip() or None,
        machine=hashlib.sha256(f"hosttune {machine_id}".encode()).hexdigest()
        if machine_id and machine_id != "uninitialized"
        else None,
    )


def _store(system: System) -> Store | None:
    if isinstance(system, Scratch):
        try:
            folder = os.path.dirname(system.inside(f"{STATE_INSIDE}/lock"))
            for name in ("transactions/lock", KEPT_GPUS, "plan.json"):
                if system.inside(f"{STATE_INSIDE}/{name}") != os.path.join(folder, name):
                    raise BadInput(
                        "a link in the state of a scratch root", where=f"{folder}/{name}", hint="remove the link"
                    )
        except WriteFailed as error:
            what = f"no state can be kept here: {error.reason}"
            raise BadInput(what, where=f"{system.origin}: {error.path}", hint="correct what is at this path") from error
        return Store(folder, ready=system.restore_cut_off)
    return None if system.captured else Store(state_directory())


def writable_store(site: Site) -> Store:
    """Return the site's store, for a command that changes the machine.

    Raises Refused for a capture, if not root, and for a state directory that another user can change.
    """
    if site.store is None:
        raise Refused(
            "a captured host cannot be changed",
            where=site.system.origin,
            hint="run it on the host itself; here only `hosttune apply --dry-run` works",
        )
    if not site.system.captured and os.geteuid() != 0:
        raise Refused("not root", where="this machine", hint="run it as root")
    if not site.system.captured:
        refuse_others(site.store.folder)
    return site.store


def refuse_others(folder: str) -> None:
    """Refuse a state directory in which another user can change the journals: their values are written to the machine.

    Raises Refused.
    """
    for path in (folder, os.path.join(folder, "transactions")):
        try:
            status = os.stat(path)
        except OSError:
            continue  # it is made later, or refused where it is used
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            what = f"another user can change this folder (owner {status.st_uid}, mode {status.st_mode & 0o7777:04o})"
            hint = f"if its journals are right: chown root {path} && chmod go-w {path}"
            raise Refused(what, where=path, hint=hint)


def saved_plan_path(site: Site) -> str:
    """Return where this site keeps its saved plan. Raises BadInput for a capture, which has none."""
    if site.store is None:
        raise BadInput("no plan was named, and a capture keeps none", where="PLAN", hint="name a plan document")
    return os.path.join(site.store.folder, "plan.json")


def caller() -> Caller:
    """Return who makes a transaction. Ansible and systemd name themselves in the environment."""
    number = os.getuid()
    try:
        login = pwd.getpwuid(number).pw_name
    except KeyError:
        login = str(number)
    asked = os.environ.get("SUDO_USER", "")
    unit = "INVOCATION_ID" in os.environ and os.getppid() == 1
    via: Any = "unit" if unit else "ansible" if os.environ.get("HOSTTUNE_VIA") == "ansible" else "shell"
    return Caller(login=login, sudo_user=asked if asked.isprintable() and asked else None, via=via)


def log(site: Site, result: Result, code: int) -> None:
    """Write one line about a transaction to the system's log; for a scratch root nothing."""
    if site.system.captured:
        return
    import syslog

    syslog.syslog(syslog.LOG_NOTICE if code == 0 else syslog.LOG_WARNING, log_line(result, code))


def log_line(result: Result, code: int) -> str:
    """Return that line: who did what in which way, and how it ended."""
    by = caller()
    who = f"{by.login} ({by.sudo_user})" if by.sudo_user else by.login
    changed = sum(entry.before != entry.after for entry in result.entries)
    return f"hosttune {result.verb} by {who} via {by.via}: exit code {code}, {changed} settings and guests changed"


def next_number(transactions: Iterable[Transaction]) -> int:
    """Return the number of the next transaction."""
    return 1 + max((transaction.header.number for transaction in transactions), default=0)


def facts_of(site: Site, verb: str, **more: Any) -> dict[str, Any]:
    """Return what the first line of a journal says besides its number and time."""
    more = {name: value for name, value in more.items() if value is not None}
    return {
        "by": caller(), "verb": verb, "version": __version__, "host": site.hostname, "boot_id": site.boot_id,
        "machine": site.machine,
        **more,
    }  # fmt: skip


def described(transaction: Transaction) -> OpenTransaction:
    """Return an unfinished transaction as it is shown in a result."""
    return OpenTransaction(
        number=transaction.header.number,
        verb=transaction.header.verb,
        state=transaction.state,
        journal=transaction.path,
    )


def refuse_open(transactions: tuple[Transaction, ...]) -> None:
    """Refuse to go on while a transaction is unfinished. Raises Refused."""
    for transaction in transactions:
        if transaction.is_open:
            raise Refused(
                f"transaction {transaction.header.number} was not finished",
                where=transaction.path,
                hint="run hosttune recover first",
            )


# The list by which libvirt's hook sets what a guest's devices need, at starts by others. Pure.
# One line each: the guest, the kind of the setting, and what the hook needs (`templates/libvirt-hook.sh`).


def list_at_start(guests: Iterable[PlannedGuest], records: Sequence[Record], client: Sequence[str]) -> str:
    """Return the list for guests in force. `records`: of the settings in force; `client`: see `fmpm.client`."""
    partitions = [record for record in records if record.kind == fmpm.KIND]
    every = {gpu for record in partitions for gpu in fmpm.parts_of(record.target)[1]}
    lines = []
    for guest in guests:
        devices = {device.address for device in guest.devices}
        lines += [f"{guest.name} {line}" for line in _partitions(devices, partitions, every, client)]
        for record in records:
            words = record.target.split()
            if words[0] in devices and record.kind in (VgpuTypeSetting.kind, MediatedDevice.kind):
                lines.append(f"{guest.name} {record.kind} {record.target} {record.new}")
    return "".join(f"{line}\n" for line in lines)


def _partitions(
    devices: Collection[str], partitions: Iterable[Record], every: Collection[str], client: Sequence[str]
) -> Iterator[str]:
    for record in partitions:
        number, gpus = fmpm.parts_of(record.target)
        if {*gpus} <= {*devices}:
            modules = ",".join(map(str, fmpm.modules_of(record.new)))
            others = ",".join(sorted({*every} - {*gpus})) or "-"
            yield f"{record.kind} {number} {modules} {','.join(gpus)} {others} {' '.join(client)}"
