"""`pairs`: this host's ports, or its end of measurements between hosts. `hosttune fleet pairs` asks for both."""

from __future__ import annotations

import click

from hosttune.cli.between import read_job, refuse_captured, refuse_guests
from hosttune.cli.commands import Command, host_options
from hosttune.cli.output import emit_report
from hosttune.model.pairs import Ends, Job


@click.command(cls=Command)
@host_options
@click.option("-f", "--file", "job", metavar="FILE", help="What to measure: a job of `hosttune fleet pairs` (JSON; - is"
              " standard input). Without it the ports are listed.")  # fmt: skip
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True,
              help="What to print.")  # fmt: skip
def pairs(root: str | None, document: str | None, job: str | None, output: str) -> None:
    """List this host's ports; take part in measuring between hosts.

    Without -f nothing is measured. A host with running guests measures only if the job says so (exit 3): it loads the
    network. The programs bind to one address, take one connection, and end after a time limit of their own.

    \b
    hosttune pairs
    """
    from hosttune.report.pairs import ends_report

    ends = answer(root, document, read_job(job, Job, "pairs"))
    emit_report(ends, output, ends_report)


def answer(root: str | None, document: str | None, job: Job) -> Ends:
    """Return what this host is, and what it measured. Raises BadInput and Refused."""
    from msgspec.structs import replace

    from hosttune import __version__
    from hosttune.cli.commands import read_document
    from hosttune.cluster.pairs.ends import check_job, look, measure
    from hosttune.cluster.pairs.ports import present, survey
    from hosttune.discovery import discover
    from hosttune.machine.archive import open_system
    from hosttune.machine.reader import Reader

    if job.ends:
        check_job(job)
        refuse_captured(root, document)
    system = open_system(root)
    if not job.ends:
        return survey(system, read_document(root, document) or discover(system), job.ports, version=__version__)
    ends = present(system, version=__version__)
    refuse_guests(ends.guests, disrupt=job.disrupt)
    done = measure(
        job.ends,
        lambda argv, limit: system.run(argv, timeout=limit),
        together=job.together,
        look=lambda end: look(Reader(system), end),
    )
    return replace(ends, ends=done)
