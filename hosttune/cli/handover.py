"""`handover`: devices between two tenants: the course, the register, the statement, its signature and verification."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import click
from click.core import ParameterSource

from hosttune.cli.commands import Command, CommandGroup, Whole, completing, host_options, progress
from hosttune.cli.output import agreed, emit, emit_report, exiting, shown, tell, waiting, write
from hosttune.errors import BadInput

if TYPE_CHECKING:
    from hosttune.handover.running import Handed, Here
    from hosttune.handover.targets import Asked
    from hosttune.handover.testguest import TestGuest
    from hosttune.model.validation import Validation
    from hosttune.transaction.site import Site

OUTPUT = click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True,
                      help="What to print.")  # fmt: skip


@click.group(cls=CommandGroup, no_args_is_help=False, invoke_without_command=True)
@host_options
@click.option("--device", "devices", multiple=True, metavar="BDF",
              help="Hand over this device (repeatable).")  # fmt: skip
@click.option("--guest", metavar="NAME", shell_complete=completing("guests"),
              help="Hand over the devices of this stopped guest.")  # fmt: skip
@click.option("--erase", multiple=True, metavar="SERIAL",
              help="Erase the drive with this serial number (repeatable); or BDF=SERIAL.")  # fmt: skip
@click.option(
    "--level", type=Whole(1, 2), metavar="N", default=1, show_default=True, help="The level of the validation."
)
@click.option("--to-vfio", is_flag=True, help="Return the devices to vfio-pci, whichever driver they were on.")
@click.option("--test-guest", metavar="IMAGE",
              help="Test GPUs for which the host has no driver, inside guests made from this image.")  # fmt: skip
@click.option("--test-firmware", type=click.Choice(["efi", "bios"]), default="efi", show_default=True,
              help="The firmware that boots this image.")  # fmt: skip
@click.option("--out", metavar="FILE", help="Write the statement there, besides the copy in the state directory.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation. Drives also need --erase.")
@click.option("--dry-run", is_flag=True, help="Print what would be done with each device; change nothing.")
@OUTPUT
@click.pass_context
def handover(
    context: click.Context,
    /,
    root: str | None,
    document: str | None,
    devices: tuple[str, ...],
    guest: str | None,
    erase: tuple[str, ...],
    level: int,
    to_vfio: bool,
    test_guest: str | None,
    test_firmware: Literal["efi", "bios"],
    out: str | None,
    yes: bool,
    dry_run: bool,
    output: str,
) -> None:
    """Take devices from the last tenant to the next, and prove it.

    Each device is quarantined, reset, taken back, erased, tested, reset and returned. Cut off at any point, it stays
    quarantined; the same command again ends it.

    \b
    hosttune handover --guest NAME --erase SERIAL --out statement.json
    hosttune handover --device 0000:41:00.0 --dry-run
    hosttune handover status
    hosttune handover sign statement.json --key handover_key --expires 24h
    hosttune handover verify statement.json --signers allowed_signers --identity ops@example.com
    hosttune handover release 0000:41:00.0 --why "goes back to the maker"
    """
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    from hosttune.cli.transaction import place
    from hosttune.handover.running import HandoverOptions, hand_over
    from hosttune.handover.targets import Asked
    from hosttune.model.values import parse_address

    asked = Asked(
        devices=tuple(parse_address(device, where="--device") for device in devices),
        guest=guest, erase=erase, level=level, to_vfio=to_vfio,
    )  # fmt: skip
    here = place(root, document)
    inside = _test_guest(here[0], test_guest, test_firmware)
    if dry_run:
        _tell_plan(here, asked, inside, output)
        return
    options = HandoverOptions(out, None, _validating(here[0]), waiting(yes, sys.stdin), inside)
    done = hand_over(here, asked, options, _asking(yes), progress())
    _finish(context, output, done)


def _refuse_options(context: click.Context) -> None:
    """Raise BadInput for an option that stands before a command of the group."""
    given = [name for name in context.params if context.get_parameter_source(name) is not ParameterSource.DEFAULT]
    if given:
        hint = f"write it after {context.invoked_subcommand}, or leave it out"
        raise BadInput(f"an option before {context.invoked_subcommand}", where="command line", hint=hint)


def _test_guest(site: Site, image: str | None, firmware: Literal["efi", "bios"]) -> TestGuest | None:
    if image is None:
        return None
    from hosttune.handover.testguest import TestGuest, read_image

    return TestGuest(image=read_image(site.system, image), firmware=firmware)


def _tell_plan(here: Here, asked: Asked, inside: TestGuest | None, output: str) -> None:
    """Print what would be done with each device."""
    from hosttune.handover.running import lines_of
    from hosttune.model.result import Result
    from hosttune.report.handover import intended_report

    lines = lines_of(here, asked, inside)
    result = Result(host=here[0].hostname, verb="handover", exit_code=0, notes=lines)
    emit_report(result, output, lambda _: intended_report(lines))


def _finish(context: click.Context, output: str, done: Handed) -> None:
    """Print the statement and exit: 0 clean, 1 not clean, 3 refused."""
    from hosttune.report.handover import handed_report

    with exiting(context, 3 if done.refused else 0 if done.clean else 1):
        emit_report(done.statement, output, lambda statement: handed_report(statement, done.path))


def _validating(site: Site) -> Callable[[int], Validation]:
    """Return the function that validates the host at a level."""
    from hosttune.validating import ValidationRequest, validate

    return lambda level: validate(site.system, ValidationRequest(level=level, accepting=False)).validation


def _asking(yes: bool) -> Callable[[Sequence[str]], bool]:
    """Return the function that shows what would be done, and asks unless `yes`."""

    def ask(lines: Sequence[str]) -> bool:
        if not yes:
            return agreed(lines, "hand over these devices?")
        for line in lines:
            write(shown(line))
        return True

    return ask


@handover.command(cls=Command)
@host_options
@OUTPUT
def status(root: str | None, document: str | None, output: str) -> None:
    """Show quarantined and returned devices, and whether starts are recorded."""
    from hosttune.cli.transaction import place
    from hosttune.handover import calls
    from hosttune.report.handover import status_report

    emit_report(calls.status(place(root, document)), output, status_report)


@handover.command(cls=Command)
@click.argument("order", metavar="ORDER")
def inside(order: str) -> None:
    """Run the tests of --test-guest; its seed starts this, inside the guest.

    ORDER is the file that the seed of `handover --test-guest` brings. Prints the answer as one line of JSON.
    """
    from hosttune.handover.testguest.inside import answer_of
    from hosttune.handover.testguest.order import GuestOrder
    from hosttune.journal.state import load
    from hosttune.machine.opening import open_system
    from hosttune.validating import ValidationRequest, validate

    system = open_system(None)

    def validated(level: int) -> Validation:
        return validate(system, ValidationRequest(level=level, guest=True, accepting=False, keep=False)).validation

    asked = GuestOrder.from_json(load(order, what="an order of a hand-over"), where=order)
    emit(answer_of(system, asked, validated).to_line().rstrip("\n"))


@handover.command(cls=Command)
@click.argument("file", metavar="FILE")
@click.option("--key", required=True, metavar="FILE",
              help="The SSH key that signs, or its public half if ssh-agent has it.")  # fmt: skip
@click.option("--expires", required=True, metavar="TIME", help="How long it is valid: 30m, 24h, 7d (at most 30d).")
def sign(file: str, key: str, expires: str) -> None:
    """Sign a statement, on the controller.

    Writes the expiry into FILE, and the signature to FILE.sig. Refuses unless every device is clean. The key is never
    needed on a host: copy FILE and FILE.sig there for verify.
    """
    from hosttune.handover.signing import SUFFIX, parse_duration
    from hosttune.handover.signing import sign as sign_file

    signed = sign_file(file, key, parse_duration(expires))
    tell(shown(f"signed: {file}{SUFFIX}, valid until {signed.predicate.expires_at}"))


@handover.command(cls=Command)
@host_options
@click.argument("file", metavar="FILE")
@click.option("--signers", required=True, metavar="FILE", help="Who may sign: an allowed_signers file (ssh-keygen).")
@click.option("--identity", required=True, metavar="NAME", help="The signer: a principal of that file.")
@click.option("--revoked", metavar="FILE", help="Revoked keys: a KRL, or a file of public keys (ssh-keygen).")
@click.option("--keep", is_flag=True,
              help="If it is valid, keep it on this host: status, validate and metrics then show it.")  # fmt: skip
@OUTPUT
@click.pass_context
def verify(
    context: click.Context,
    /,
    root: str | None,
    document: str | None,
    file: str,
    signers: str,
    identity: str,
    revoked: str | None,
    keep: bool,
    output: str,
) -> None:
    """Say whether a statement is valid on this host, now.

    Reads FILE.sig beside FILE. Exit code 0: valid; 1: void, with every reason. With --host the answer is about a
    document, not about the host as it is now: no reason to give a device to a tenant.
    """
    from hosttune.cli.transaction import place
    from hosttune.handover import calls
    from hosttune.report.handover import verification_report

    here = place(root, document)
    captured = here[0].store is None
    verification = calls.verify(
        here, file, signers, calls.checked_identity(identity), revoked, document=captured, keep=keep
    )
    with exiting(context, 0 if verification.verdict == "valid" else 1):
        emit_report(verification, output, verification_report)


@handover.command(cls=Command)
@host_options
@click.argument("address", metavar="BDF")
@click.option("--why", required=True, metavar="TEXT", help="The reason, for the record: one line.")
def release(root: str | None, document: str | None, address: str, why: str) -> None:
    """Free a quarantined device without proof.

    The device can be planned again; it never counts as clean, and every statement about it is void.
    """
    from hosttune.cli.transaction import place
    from hosttune.handover import calls
    from hosttune.model.values import parse_address

    freed = calls.release(place(root, document), parse_address(address, where="BDF"), why)
    tell(shown(f"released: {freed.address}, recorded for {freed.who}"))
