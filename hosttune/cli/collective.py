"""`collective`: what this host has for collectives, or its part of one. `hosttune fleet collective` asks for both."""

from __future__ import annotations

import click

from hosttune.cli.between import read_job, refuse_captured, refuse_guests
from hosttune.cli.commands import Command, host_options
from hosttune.cli.output import emit_report
from hosttune.discovery import discover
from hosttune.errors import Refused
from hosttune.machine.system import System
from hosttune.model.collective import CollectiveJob, Member

_AGAIN_SECONDS = 2.0


@click.command(cls=Command)
@host_options
@click.option("-f", "--file", "job", metavar="FILE", help="What to do: a job of `hosttune fleet collective` (JSON; - is"
              " standard input). Without it the host is listed.")  # fmt: skip
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True,
              help="What to print.")  # fmt: skip
def collective(root: str | None, document: str | None, job: str | None, output: str) -> None:
    """List what this host has for collectives; take part in one.

    Without -f nothing is measured. A host with running guests takes part only if the job says so (exit 3): it loads the
    network and the GPUs. GPUs that are in use are refused. The measurement ends after a time limit of
    its own, and as soon as another host of its group is gone.

    \b
    hosttune collective
    """
    from hosttune.report.collective import member_report

    member = answer(root, document, read_job(job, CollectiveJob, "collective"))
    emit_report(member, output, member_report)


def answer(root: str | None, document: str | None, job: CollectiveJob) -> Member:
    """Return what this host is, and what it measured. Raises BadInput and Refused."""
    import os

    from hosttune import __version__
    from hosttune.cli.commands import read_document
    from hosttune.cluster.collective.listing import answering, listed
    from hosttune.cluster.collective.member import check_task, take_part
    from hosttune.machine.archive import open_system

    if job.task is not None:
        check_task(job.task)
        refuse_captured(root, document)
    system = open_system(root)
    if job.task is None:
        there = {} if root is not None or document is not None else os.environ
        host = read_document(root, document) or discover(system)
        return listed(system, host, job, version=__version__, variables=there)
    member = answering(system, version=__version__)
    refuse_guests(member.guests, disrupt=job.disrupt)
    if job.task.device == "gpu":
        refuse_used_gpus(system)
    return take_part(
        job.task, member, lambda argv, limit: system.run(argv, timeout=limit), python=job.python
    )  # fmt: skip


def refuse_used_gpus(system: System) -> None:
    """Refuse if a process or guest uses a GPU here, or if that is unknown. Raises Refused.

    Ranks of the group before may still be ending: it is looked again twice.
    """
    import time

    from hosttune.bench.guard import choose

    for last in (False, False, True):
        try:
            chosen = choose(system, discover(system))
            break
        except Refused:
            if last:
                raise
        time.sleep(_AGAIN_SECONDS)
    if not chosen.gpus and not chosen.parts:
        what = "no GPU is known here that may be loaded"
        raise Refused(what, where="GPUs", hint="hosttune discover shows them, and the driver of each")
