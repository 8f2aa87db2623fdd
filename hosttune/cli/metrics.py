"""`metrics`: a validation without measurements → text for Prometheus, to stdout or into a textfile."""

from __future__ import annotations

import time

import click

from hosttune.cli.commands import Command, host_options, read_document
from hosttune.cli.output import emit, tell
from hosttune.errors import Refused


@click.command(cls=Command)
@host_options
@click.option("--guest", is_flag=True, help="This machine is a guest.")
@click.option(
    "--expect",
    metavar="FILE",
    help="What must be here: a host document, plan, validation, or fabric.roce of an intent.",
)
@click.option("--textfile", metavar="PATH", help="Write this file, whole or not at all, for node_exporter's textfile"
              " collector (a name that ends in .prom).")  # fmt: skip
def metrics(root: str | None, document: str | None, guest: bool, expect: str | None, textfile: str | None) -> None:
    """Write this host's state as metrics for Prometheus.

    At most 300 series. Unknown is NaN, or a label value of its own. Exits 0 whenever the metrics were written, whatever
    they say. Keeps nothing, and writes nothing but PATH.

    \b
    hosttune metrics
    hosttune metrics --textfile /var/lib/prometheus/node-exporter/hosttune.prom
    """
    from hosttune.cli.validate import accepted_of, metrics_of, read_expectation
    from hosttune.machine.opening import open_system
    from hosttune.metrics import check_textfile, write_textfile
    from hosttune.validating import ValidationRequest, validate

    expected = read_expectation(expect)
    place = read_document(root, document) or open_system(root)
    if textfile is not None:
        refuse_captured(place, root or document)
        check_textfile(textfile)  # before anything is read
    begun = time.time()
    request = ValidationRequest(guest=guest, expect=expected, accepted=accepted_of(root or document), keep=False)
    validated = validate(place, request, tell=tell)
    text = metrics_of(validated, "metrics", begun, 0)
    if textfile is None:
        emit(text)
    else:
        write_textfile(textfile, text)


def refuse_captured(place: object, origin: str | None, *, else_: str = "the metrics go to stdout") -> None:
    """Refuse a captured host: its metrics in the folder of this machine's collector would be taken for this machine's.

    `else_`: what happens without a textfile. Raises Refused.
    """
    if getattr(place, "captured", True) and not getattr(place, "scratch", False):
        what = "a captured host cannot be written to a textfile: its metrics would count as this machine's"
        raise Refused(what, where=origin or "--textfile", hint=f"leave out --textfile: {else_}")
