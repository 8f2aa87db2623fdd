"""`pairs` and `collective`: what this host has, or its part of a measurement between hosts.

`hosttune fleet pairs` and `hosttune fleet collective` ask for both.
"""

from __future__ import annotations

from typing import TypeVar

import click

from hosttune.cli.commands import Command, host_options, read_document
from hosttune.cli.output import emit_report, shown
from hosttune.discovery import discover
from hosttune.errors import BadInput, Refused
from hosttune.machine.system import System
from hosttune.model.collective import CollectiveJob, Member
from hosttune.model.pairs import Ends, Job
from hosttune.model.values import Value

J = TypeVar("J", bound=Value)

_AGAIN_SECONDS = 2.0


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

    emit_report(answer_pairs(root, document, read_job(job, Job, "pairs")), output, ends_report)


def answer_pairs(root: str | None, document: str | None, job: Job) -> Ends:
    """Return what this host is, and what it measured. Raises BadInput and Refused."""
    from msgspec.structs import replace

    from hosttune import __version__
    from hosttune.cluster.pairs.ends import check_job, look, measure
    from hosttune.cluster.pairs.ports import present, survey
    from hosttune.machine.opening import open_system
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

    emit_report(answer_collective(root, document, read_job(job, CollectiveJob, "collective")), output, member_report)


def answer_collective(root: str | None, document: str | None, job: CollectiveJob) -> Member:
    """Return what this host is, and what it measured. Raises BadInput and Refused."""
    import os

    from hosttune import __version__
    from hosttune.cluster.collective.listing import answering, listed
    from hosttune.cluster.collective.member import check_task, take_part
    from hosttune.machine.opening import open_system

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


def read_job(path: str | None, kind: type[J], verb: str) -> J:
    """Return the job in a file that `fleet VERB` wrote; the empty one without a path. Raises BadInput."""
    import msgspec
    from msgspec.structs import fields

    from hosttune.journal.state import load_text
    from hosttune.model.jsontext import plain_json

    if path is None:
        return kind()
    hint = f"`hosttune fleet {verb}` writes it"
    head = plain_json(load_text(path, what="a job (JSON)", size="intent"), where=path, hint=hint, once=True)
    if isinstance(head, dict) and (others := sorted(head.keys() - {field.encode_name for field in fields(kind)})):
        raise BadInput(f"not a job: it has {shown(others[0][:60])!r}", where=path, hint=hint)
    try:
        return msgspec.convert(head, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadInput(f"not a job: {error}", where=path, hint=hint) from error


def refuse_captured(*sources: str | None) -> None:
    """Refuse to measure on a host that is only a capture or a document. Raises Refused."""
    source = next((source for source in sources if source is not None), None)
    if source is not None:
        raise Refused("a captured host has no network", where=source, hint="ask the host itself")


def refuse_guests(guests: tuple[str, ...] | None, *, disrupt: bool) -> None:
    """Refuse to measure on a host with running guests, or unknown ones (None). Raises Refused."""
    if not disrupt and guests != ():
        what = "its guests are unknown" if guests is None else f"guests are running: {', '.join(guests)}"
        raise Refused(f"not measured: {what}", where="network", hint="name the host in --disrupt to load its network")
