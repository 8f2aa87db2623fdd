"""`handover`: devices between two tenants: the register, and the statement, its signature and its verification."""

from __future__ import annotations

import click

from hosttune.cli.commands import Command, Group, host_options
from hosttune.cli.output import emit, emit_page, exiting, shown, tell

OUTPUT = click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True,
                      help="What to print.")  # fmt: skip


@click.group(cls=Group, no_args_is_help=False)
def handover() -> None:
    """Take devices from the last tenant to the next, and prove it.

    \b
    hosttune handover status
    hosttune handover sign statement.json --key handover_key --expires 24h
    hosttune handover verify statement.json --signers allowed_signers --identity ops@example.com
    hosttune handover release 0000:41:00.0 --why "goes back to the maker"
    """


@handover.command(cls=Command)
@host_options
@OUTPUT
def status(root: str | None, document: str | None, output: str) -> None:
    """Show quarantined and returned devices, and whether starts are recorded."""
    from hosttune.cli.transaction import place
    from hosttune.handover import calls

    found = calls.status(place(root, document))
    if output == "json":
        emit(found.to_json())
        return
    from hosttune.report.handover_text import print_status

    emit_page(lambda page: print_status(found, page))


@handover.command(cls=Command)
@click.argument("file", metavar="FILE")
@click.option("--key", required=True, metavar="FILE",
              help="The SSH key that signs, or its public half if ssh-agent has it.")  # fmt: skip
@click.option("--expires", required=True, metavar="TIME", help="How long it is valid: 30m, 24h, 7d (at most 30d).")
@click.option("--dsse", is_flag=True, help="Also write FILE.dsse.json, a DSSE envelope (needs securesystemslib).")
def sign(file: str, key: str, expires: str, dsse: bool) -> None:
    """Sign a statement, on the controller.

    Writes the expiry into FILE, and the signature to FILE.sig. Refuses unless every device is clean. The key is never
    needed on a host: copy FILE and FILE.sig there for verify.
    """
    from hosttune.handover.signing import SUFFIX, parse_duration
    from hosttune.handover.signing import sign as sign_file

    signed = sign_file(file, key, parse_duration(expires), dsse=dsse)
    tell(shown(f"signed: {file}{SUFFIX}, valid until {signed.predicate.expires_at}"))


@handover.command(cls=Command)
@host_options
@click.argument("file", metavar="FILE")
@click.option("--signers", required=True, metavar="FILE", help="Who may sign: an allowed_signers file (ssh-keygen).")
@click.option("--identity", required=True, metavar="NAME", help="The signer: a principal of that file.")
@click.option("--revoked", metavar="FILE", help="Revoked keys: a KRL, or a file of public keys (ssh-keygen).")
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
    output: str,
) -> None:
    """Say whether a statement is valid on this host, now.

    Reads FILE.sig beside FILE. Exit code 0: valid; 1: void, with every reason. With --host the answer is about a
    document, and opens no gate.
    """
    from hosttune.cli.transaction import place
    from hosttune.handover import calls

    here = place(root, document)
    captured = here[0].store is None
    found = calls.verify(here, file, signers, calls.checked_identity(identity), revoked, document=captured)
    with exiting(context, 0 if found.verdict == "valid" else 1):
        if output == "json":
            emit(found.to_json())
        else:
            from hosttune.report.handover_text import print_verification

            emit_page(lambda page: print_verification(found, page))


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
