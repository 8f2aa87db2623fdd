"""The course of a hand-over: quarantined, reset, taken back, erased, tested, reset, returned; then the statement.

The register is what counts: a device is quarantined there before anything else is done, and leaves only when the
statement is on the disk and would be valid once it is signed. So a hand-over that is cut off anywhere leaves each
device quarantined or returned. The next one begins the steps again; an erasure that was begun goes on. Nothing is
rolled back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from hosttune import __version__
from hosttune.discovery.holders import holders
from hosttune.errors import HosttuneError, Refused
from hosttune.handover import binding, cleaning, gpumemory, record, testing, timelimits
from hosttune.handover.cleaning import Cleaning, Work
from hosttune.handover.partitions import SET_SECONDS, Partitions
from hosttune.handover.statement import applied_values, handed_device, read_firmware, statement_of
from hosttune.handover.targets import Target, identity_now, joined, refuse_other
from hosttune.handover.testguest import GuestSteps, Session, TestGuest, guest_targets
from hosttune.handover.verify import Live, verification
from hosttune.inventory.devices import identity, read_catalogue, same_device
from hosttune.journal import Journal, JournalFailed, Store
from hosttune.journal.gpus import keep_gpus
from hosttune.journal.register import read_register, record_devices
from hosttune.journal.state import mode_of, save
from hosttune.machine.child import in_child
from hosttune.model.clock import now_text
from hosttune.model.handover import STEPS, HandedDevice, HandoverStep, Statement, StepName, StepOutcome
from hosttune.model.host import Host
from hosttune.model.quarantine import DeviceRecord
from hosttune.model.validation import Validation
from hosttune.rules.checks.looks import look_of
from hosttune.settings.setting import driver_of
from hosttune.transaction.guards import WAIT_SECONDS, Person
from hosttune.transaction.site import Site
from hosttune.transaction.writing import Say

_GOOD = ("done", "not-needed")
_FOUND = "validation "  # the beginning of a child's answer that has one


class Tools(msgspec.Struct, frozen=True):
    """What a course uses of the rest: how the host is discovered and validated, and how devices are erased.

    `confirm`: asks a person who is there to do a step; None: nobody is there.
    `test_guest`: the guest that tests devices which no driver of the host can take; None: such devices are not tested.
    """

    discover: Callable[[], Host]
    validate: Callable[[int], Validation]
    cleaning: Cleaning
    confirm: Person | None = None
    test_guest: TestGuest | None = None


@dataclass
class Course:
    """One hand-over that runs. `steps`: of each device so far. `stopped`: devices that go no further, and why.

    `places`: what tells each device from another one that is put in its place (`binding.place_of`).
    """

    site: Site
    store: Store
    journal: Journal
    number: int
    targets: Sequence[Target]
    tools: Tools
    level: int
    say: Say
    count: int = 0
    steps: dict[str, list[HandoverStep]] = field(default_factory=dict)
    stopped: dict[str, str] = field(default_factory=dict)
    firmware: dict[str, Mapping[str, str] | None] = field(default_factory=dict)
    validation: Validation | str | None = None
    refused: list[str] = field(default_factory=list)
    places: Mapping[str, str | None] = field(init=False)
    guest: GuestSteps | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.places = {target.address: binding.place_of(self.site.system, target.address) for target in self.targets}
        wanted = self.tools.test_guest
        inside = guest_targets(self.site.system, self.targets, wanted)
        if wanted is not None and inside:
            others = frozenset(target.address for target in self.targets)
            session = Session(self.site, self.store, self.tools.discover, wanted, others)
            self.guest = GuestSteps(session, inside, self.level)

    def run(self) -> Statement:
        """Carry out every step of every device, write the statement, and free what it covers. Raises HosttuneError."""
        self._quarantine()
        self._reset()
        for target in self._left():
            limit, estimate = timelimits.of_binding()
            self._step(target, "taken-back", limit + self._waiting(target), estimate, self._take_back(target))
        for target in self._left():
            back = self._is(target, "taken-back")
            work = Work(self.site, self.targets, self.number, self.tools.discover, partial(self._again, target))
            if self.guest is not None and self.guest.has(target):
                erasure = self.guest.erasure(target, partial(self._one_reset, target))
            else:
                erasure = self.tools.cleaning.erasure(work, target, back=back)
            self._step(target, "erased", erasure.limit_seconds, erasure.estimate_seconds, erasure.work)
        self._test()
        self._reset()
        for target in self._left():
            limit, estimate = timelimits.of_binding()
            self._step(target, "returned", limit + self._waiting(target), estimate, self._give_back(target))
        return self._finish()

    # --- steps -----------------------------------------------------------------------------------------------

    def _quarantine(self) -> None:
        """Put every device into the register, all in one write, before anything is done to one of them."""
        records = [
            DeviceRecord(
                address=wanted.address, identity=wanted.identity, state="quarantined", since=now_text(),
                guest=wanted.guest, why=f"hand-over {self.number}", step="quarantined",
                handover=wanted.handover or str(self.number),
                driver=wanted.back, firmware=wanted.firmware,
            )
            for wanted in self.targets
        ]  # fmt: skip
        with record.state_lock(self.store):
            for wanted in self.targets:
                if wanted.again:
                    self._held(wanted)
            record_devices(self.store.folder, records)
        host = self.tools.discover()
        with record.state_lock(self.store):
            keep_gpus(self.store.folder, host)  # only the host's driver tells the place of a GPU on its fabric
            records = [self._held(wanted) for wanted in self.targets]
            record_devices(
                self.store.folder,
                [host.handover.noted(device_record) if host.handover else device_record for device_record in records],
            )
        for target in self.targets:
            self._step(target, "quarantined", *timelimits.of_quarantine(target), partial(self._quarantined, target))

    def _quarantined(self, target: Target) -> HandoverStep:
        """Return the step of a device that is in the register, and what became of its guest's memory."""
        self.tools.cleaning.before_anything(self.site, target, self.number)
        facts = {"guest": target.guest, "owner": target.owner, "returns_to": target.back, "again": target.again}
        left = cleaning.memory_left(self.site.system, target.guest) if target.guest is not None else None
        facts["memory"] = None if left is None else cleaning.ZEROED if not left else f"kept in {', '.join(left)}"
        why = f"memory of guest {target.guest} may be kept in {', '.join(left)}: remove them" if left else None
        outcome: StepOutcome = "failed" if left else "done"
        return HandoverStep(step="quarantined", outcome=outcome, method="register", evidence=facts, why=why)

    def _reset(self) -> None:
        for target in self._left():
            times = timelimits.of_reset(self.site.system, target)
            step = self._step(target, "reset", *times, partial(self._one_reset, target))
            if step.outcome != "done":
                self.stopped[target.address] = f"its reset is {step.outcome}: {step.why}"
        if self.guest is not None:
            self.guest.only({target.address for target in self._left()})

    def _one_reset(self, target: Target) -> HandoverStep:
        before = driver_of(self.site.system, target.address)
        with record.state_lock(self.store):
            self.tools.cleaning.before_reset(self.site, target)
            binding.hold(self.site.system, target.address)
            binding.refuse_users(self.site.system, target.address)
            step = gpumemory.asked(self.site.system, target, cleaning.reset(self.site.system, target))
        return msgspec.structs.replace(step, evidence={**(step.evidence or {}), "driver_before": before})

    def _again(self, target: Target) -> HandoverStep:
        """Reset a device that the host's driver has, and give it back to that driver; its partition is active again."""
        step = self._one_reset(target)
        closed = self._partitions.close(target)
        with record.state_lock(self.store):
            binding.give(self.site.system, target.address, target.driver)
        if closed.evidence is not None:
            self._partitions.open(target)
        return step

    def _waiting(self, target: Target) -> float:
        """Return how long a step may wait for a GPU's partition, and a person who sets it, in seconds."""
        seconds = 2 * SET_SECONDS + (WAIT_SECONDS if self.tools.confirm is not None else 0.0)
        return seconds if target.kind == "gpu" else 0.0

    @property
    def _partitions(self) -> Partitions:
        return Partitions(self.site, self.store, self.tools.discover, self._left(), self.tools.confirm)

    def _take_back(self, target: Target) -> Callable[[], HandoverStep]:
        def work() -> HandoverStep:
            closed = self._partitions.close(target)
            if not closed.proven:
                return closed.step("taken-back")
            if self.guest is not None and self.guest.has(target):
                return closed.told(self.guest.taken_back())
            self.tools.cleaning.before_driver(self.site, target)
            with record.state_lock(self.store):
                handover_step = binding.take_back(self.site.system, target)
            if handover_step.outcome == "done":
                self._recognize(target)
            opened = self._partitions.open(target) if handover_step.outcome == "done" else None
            return closed.told(handover_step, for_the_test=opened)

        return work

    def _recognize(self, target: Target) -> None:
        """Record the UUID or the serial number that its driver shows: by it, it is known again at another address.

        Raises Refused if it is not the device that is quarantined: that one would be free, wherever it is now.
        """
        if target.kind not in ("gpu", "nvme"):
            return
        now = identity_now(self.site.system, self.tools.discover(), target.address)
        with record.state_lock(self.store):
            known = self._held(target)
            refuse_other(known, now)
            device_record = msgspec.structs.replace(known, identity=joined(known.identity, now))
            record_devices(self.store.folder, (device_record,))

    def _give_back(self, target: Target) -> Callable[[], HandoverStep]:
        def work() -> HandoverStep:
            closed = self._partitions.close(target)
            with record.state_lock(self.store):
                step = binding.give_back(self.site.system, target)
            self.tools.cleaning.after_driver(self.site, target, erased=self._is(target, "erased"))
            done = {address for address, steps in self.steps.items() if all(of.outcome in _GOOD for of in steps)}
            returned = {
                address for address in done if address == target.address or self.steps[address][-1].step == "returned"
            }
            again = self._partitions.as_in_force(target, returned) if closed.proven else None
            if again is not None:
                evidence = {**(step.evidence or {}), "in_force": again}
                step = msgspec.structs.replace(step, evidence=evidence, why=again["why"])
            return closed.told(step)

        return work

    def _test(self) -> None:
        """Validate the host once, while its drivers have the devices, and judge each device by what is about it."""
        left = self._left()
        back = any(self._is(target, "taken-back") for target in left)
        host = self.tools.discover() if back else None
        limit, estimate = testing.LIMIT_SECONDS[self.level], testing.ESTIMATE_SECONDS[self.level]
        for target in left:
            if self.guest is not None and self.guest.has(target):
                self._step(target, "tested", *self.guest.times(), partial(self.guest.tested, target))
                self.firmware[target.address] = self.guest.firmware(target)
                self._keep_look(target, self.guest.validation)
                continue
            known = read_firmware(self.site.system, host, target.address) if host is not None else None
            self.firmware[target.address] = known
            self._step(target, "tested", limit, estimate, partial(self._one_test, target))

    def _keep_look(self, target: Target, validation: Validation | None) -> None:
        """Keep what a test guest saw of a GPU's health. A validation on the host's driver has kept its own."""
        if validation is not None:
            host = self.tools.discover()
            with record.state_lock(self.store):
                keep_gpus(
                    self.store.folder,
                    host,
                    {target.address: look_of(host, target.address, validation.results, now_text())},
                )

    def _one_test(self, target: Target) -> HandoverStep:
        back = self._is(target, "taken-back")
        if back and self.validation is None:
            self.validation = self._validated()
        tested = self.validation if self.validation is not None else "no device is on the host's driver"
        return testing.tested(target, tested, self.firmware.get(target.address), back)

    def _validated(self) -> Validation | str:
        """Return the validation, or why there is none. It is made in a child, which ends at the time limit."""

        def work() -> str:
            try:
                return _FOUND + self.tools.validate(self.level).to_json()
            except (HosttuneError, OSError) as error:
                return cleaning.reason(error)

        try:
            text = in_child(work, testing.LIMIT_SECONDS[self.level], "validate") or ""
            return Validation.from_json(text.removeprefix(_FOUND)) if text.startswith(_FOUND) else text
        except (HosttuneError, RuntimeError) as error:
            return cleaning.reason(error) if isinstance(error, HosttuneError) else f"a defect of hosttune: {error}"

    def _step(
        self,
        target: Target,
        name: StepName,
        limit: float | None,
        estimate: float | None,
        work: Callable[[], HandoverStep],
    ) -> HandoverStep:
        """Carry out one step between its two lines in the journal. What it raises makes it failed."""
        self.count += 1
        # Record in the register which step begins. Raises Refused if the device is no longer quarantined.
        with record.state_lock(self.store):
            record_devices(self.store.folder, (msgspec.structs.replace(self._held(target), step=name),))
        record.begin_step(self.journal, self.count, target, name, limit, estimate)
        self.say(f"{target.address}: {name} (about {estimate:.0f} s)" if estimate else f"{target.address}: {name}")
        try:
            handover_step = work()
        except JournalFailed:
            raise
        except (HosttuneError, OSError) as error:
            if isinstance(error, Refused):
                self.refused.append(f"{target.address}: {cleaning.reason(error)}")
            handover_step = HandoverStep(step=name, outcome="failed", why=cleaning.reason(error))
        record.end_step(self.journal, self.count, handover_step)
        self.steps.setdefault(target.address, []).append(handover_step)
        self.say(
            f"{target.address}: {name}: {handover_step.outcome}{f' ({handover_step.why})' if handover_step.why else ''}"
        )
        return handover_step

    def _held(self, target: Target) -> DeviceRecord:
        """Return the register's record of a device. Raises Refused if it is no longer quarantined."""
        known = next(
            (device_record for device_record in self._records() if device_record.address == target.address), None
        )
        if known is None or known.state != "quarantined":
            hint = "somebody released it: name it in a hand-over again"
            raise Refused(f"{target.address} is not quarantined any more", where=self.journal.path, hint=hint)
        return known

    def _records(self) -> Sequence[DeviceRecord]:
        return read_register(self.store.folder).devices

    def _left(self) -> list[Target]:
        return [target for target in self.targets if target.address not in self.stopped]

    def _is(self, target: Target, name: StepName) -> bool:
        """Return whether a step of a device is done."""
        return any(
            handover_step.step == name and handover_step.outcome == "done"
            for handover_step in self.steps.get(target.address, ())
        )

    # --- the end ---------------------------------------------------------------------------------------------

    def _finish(self) -> Statement:
        """Write the statement, then free the devices that it covers, then end the journal. Raises BadInput, Refused."""
        host = self.tools.discover()
        devices = [self._handed(host, target) for target in self.targets]
        validation = self.validation if isinstance(self.validation, Validation) else None
        if validation is None and self.guest is not None:
            validation = self.guest.validation
        statement = statement_of(self.site, host, devices, validation)
        firmware = {target.address: self.firmware.get(target.address) for target in self.targets}
        # Why the device at an address is not the one that was quarantined, for each of which that holds.
        versions, catalogue = {}, read_catalogue(host)
        for target in self.targets:
            now = identity(catalogue, target.address, host)
            if not same_device(target.identity, now):
                versions[target.address] = f"another device is there: it was {target.identity!r}, and is {now!r}"
            elif binding.place_of(self.site.system, target.address) != self.places.get(target.address):
                versions[target.address] = "it was taken out meanwhile, and put in again or another one in its place"
        why = {**uncovered(self.site, host, statement, firmware), **versions}
        if why:
            kept = [
                msgspec.structs.replace(device, state="quarantined") if device.address in why else device
                for device in devices
            ]
            statement = Statement.of(msgspec.structs.replace(statement.predicate, devices=tuple(kept)))
        save(record.statement_path(self.store.folder, self.number), statement.to_json(), mode=mode_of("handover/NAME"))
        with record.state_lock(self.store):
            records = [self._ended(host, device, why) for device in statement.predicate.devices]
            record_devices(self.store.folder, [device_record for device_record in records if device_record is not None])
        free = {device.address for device in statement.predicate.devices if device.state == "clean"}
        for target in self.targets:
            self.tools.cleaning.finished(self.site, target, self.number, clean=target.address in free)
        clean = all(device.state == "clean" for device in statement.predicate.devices)
        self.journal.write("closed", state="applied" if clean else "kept")
        return statement

    def _handed(self, host: Host, target: Target) -> HandedDevice:
        done = list(self.steps.get(target.address, ()))
        why = self.stopped.get(target.address)
        known = {handover_step.step for handover_step in done}
        rest = [step for step in STEPS if step not in known] if why else []
        done += [HandoverStep(step=step, outcome="unknown", why=f"not begun: {why}") for step in rest]
        return handed_device(host, target.address, done, self.firmware.get(target.address), kind=target.kind)

    def _ended(self, host: Host, device: HandedDevice, why: Mapping[str, str]) -> DeviceRecord | None:
        """Return the register's record of a device at the end; None if somebody released it meanwhile."""
        known = next(
            (device_record for device_record in self._records() if device_record.address == device.address), None
        )
        if known is None or known.state != "quarantined":
            return None
        if device.state != "clean":
            text = why.get(device.address) or "; ".join(device.unclean)
            return msgspec.structs.replace(known, why=f"hand-over {self.number}: {text}"[:500])
        starts = (host.handover.starts or {}).get(device.address) if host.handover else None
        return msgspec.structs.replace(
            known, state="clean", since=now_text(), why=f"hand-over {self.number}", step=None, identity=device.identity,
            starts=starts, boot_id=host.boot_id, epoch=device.epoch, driver=device.driver, firmware=device.firmware,
            binding=binding.binding_of(self.site.system, device.address),
        )  # fmt: skip


@contextlib.contextmanager
def begun(site: Site, store: Store, number: int) -> Iterator[Journal]:
    """Begin the journal of a hand-over. Raises JournalFailed."""
    journal = record.courses(store).begin(
        number, verb=record.VERB, version=__version__, host=site.hostname, boot_id=site.boot_id, machine=site.machine
    )
    try:
        yield journal
    finally:
        journal.close()


# Whether a statement covers its devices: whether `verify` would find it valid now, once it is signed.
# A device that is clean, but about which no statement can hold, stays quarantined: nobody could tell later whether it
# was used since.


_COMES_WITH_THE_SIGNATURE = "no-expiry"
_ENDS_WITH_THE_COURSE = "quarantined"


def uncovered(
    site: Site, host: Host, statement: Statement, firmware: Mapping[str, Mapping[str, str] | None]
) -> Mapping[str, str]:
    """Return why a statement cannot hold, for each device of which it cannot; what is about the host is about each.

    `firmware`: as read during the hand-over. Raises Refused for a journal that cannot be read.
    """
    addresses = tuple(device.address for device in statement.predicate.devices)
    present = tuple(address for address in addresses if address in host.index.pci)
    live = Live(host=host, users=holders(site.system, present), applied=applied_values(site), firmware=firmware)
    why: dict[str, list[str]] = {}
    for reason in verification(statement, live, (), "").reasons:
        if reason.reason in (_COMES_WITH_THE_SIGNATURE, _ENDS_WITH_THE_COURSE):
            continue
        mine = [address for address in addresses if address in reason.addresses]  # users that are unknown name all
        for address in mine or ([] if reason.subject in host.index.pci else addresses):
            why.setdefault(address, []).append(reason.text)
    return {address: "; ".join(dict.fromkeys(texts)) for address, texts in why.items()}
