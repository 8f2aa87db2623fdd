"""`lint` and `lint-env`: what is wrong with existing domain XML on its host, or with the lines of an environment."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click
from msgspec.structs import replace

from hosttune.cli.commands import Command, completing, host_options, read_document, read_host
from hosttune.cli.output import FORMATS, emit_report, exiting
from hosttune.errors import BadInput
from hosttune.model.host import Host
from hosttune.model.lint import Linted
from hosttune.rules.lint import BY_HAND, LintedDefinition, Manager, rules
from hosttune.rules.lint import lint as find


@click.command("lint-env", cls=Command)
@host_options
@click.argument("path", metavar="FILE")
@click.option("-o", "--output", type=click.Choice(FORMATS), default="text", show_default=True,
              help="What to print.")  # fmt: skip
@click.pass_context
def lint_env(context: click.Context, /, root: str | None, document: str | None, path: str, output: str) -> None:
    """Judge an environment, or the commands of a guide: harmful, useless, right or unknown.

    FILE (- is standard input) is a shell script, a Dockerfile, nccl.conf, a YAML list, sysctl.conf, a file of
    modprobe.d, or a guide as pasted. Each line gets what it really does, its source, and hosttune's own setting for it;
    what has no source is unknown. Exits 1 if a line is harmful. Without --host or --root only the file is
    read; with them, the verdicts take into account what the host has.

    \b
    hosttune lint-env train.sh
    hosttune lint-env /etc/nccl.conf --host host.json
    env | hosttune lint-env - -o json
    hosttune lint-env guide.txt
    """
    from hosttune.journal.state import load_text
    from hosttune.report.lint import environment_report
    from hosttune.rules.environment import judge

    text = load_text(path, what="an environment: lines such as NAME=VALUE", size="environment")
    host = read_host(root, document) if root is not None or document is not None else None
    judged_environment = judge(text, where=path, host=host)
    with exiting(context, 1 if any(line.verdict == "harmful" for line in judged_environment.lines) else 0):
        emit_report(judged_environment, output, lambda environment: environment_report(environment, path))


LINT_FORMATS = (*FORMATS, "junit", "sarif")
WHAT = "a libvirt domain XML"


@click.command(cls=Command)
@host_options
@click.argument("guests", nargs=-1, metavar="[FILE|NAME]...", shell_complete=completing("files_or_guests"))
@click.option("--all", "every", is_flag=True, help="All guests that libvirt defines here.")
@click.option("--running", is_flag=True, help="Every QEMU that runs here, whoever started it.")
@click.option("--fail-on", type=click.Choice(["warn", "error"]), default="warn", show_default=True,
              help="The lowest level that causes exit code 1.")  # fmt: skip
@click.option("-o", "--output", type=click.Choice(LINT_FORMATS), default="text", show_default=True,
              help="What to print.")  # fmt: skip
@click.pass_context
def lint(
    context: click.Context,
    /,
    root: str | None,
    document: str | None,
    guests: tuple[str, ...],
    every: bool,
    running: bool,
    fail_on: str,
    output: str,
) -> None:
    """Find what is wrong with existing domain XML on its host. Changes nothing.

    FILE is a domain XML, NAME a guest that libvirt defines. Several are judged together: what one has, the others
    must not have. What is missing on the host only (pages, mounts, drivers) is info.

    \b
    hosttune lint guest.xml
    hosttune lint --all --fail-on error
    hosttune lint --running
    hosttune lint --root host.tar.gz web.xml db.xml -o sarif
    """
    asked = [name for name, given in (("guests", guests), ("--all", every), ("--running", running)) if given]
    if len(asked) != 1:
        hint = "give files, names of guests, --all, or --running" if not asked else "give only one of them"
        raise BadInput(" together with ".join(asked) or "nothing to judge", where="command line", hint=hint)
    host, definitions = of_processes(root, document) if running else gather(root, document, guests, every)
    judge(context, host, definitions, output, fail_on)


def check_files(
    context: click.Context, root: str | None, document: str | None, paths: Sequence[str], output: str
) -> None:
    """Judge domain XML for `plan --check-xml`, and exit as `lint` does. Raises BadInput."""
    from hosttune.cli.commands import read_host

    if output not in ("text", "json"):
        hint = f"use -o text or -o json; hosttune lint has {', '.join(LINT_FORMATS)}"
        raise BadInput(f"-o {output} together with --check-xml", where="command line", hint=hint)
    definitions = [of_file(path) for path in dict.fromkeys(paths)]
    judge(context, read_host(root, document), definitions, output, "warn")


def gather(
    root: str | None, document: str | None, guests: Sequence[str], every: bool
) -> tuple[Host, list[LintedDefinition]]:
    """Return the host, and the definitions that are asked for. Raises BadInput, Unreadable."""
    import hosttune

    # Everything else is a guest's name.
    files = {
        guest: of_file(guest)
        for guest in guests
        if (guest == "-" or "/" in guest or guest.endswith(".xml") or os.path.lexists(guest))
    }
    names = [guest for guest in guests if guest not in files]
    host = read_document(root, document)
    if document is not None and (names or every):
        hint = "give XML files, or --root with a capture"
        raise BadInput("a host document holds no definitions of guests", where="--host", hint=hint)
    host = host or hosttune.discover(root)
    wanted = dict.fromkeys(guests) if not every else dict.fromkeys(defined(host, root))
    return host, [files[named] if named in files else of_name(root, host, named) for named in wanted]


def of_file(path: str) -> LintedDefinition:
    """Return the definition in a file. Raises BadInput."""
    from hosttune.journal.state import load

    return LintedDefinition(path, load(path, what=WHAT, size="domain XML"))


def defined(host: Host, root: str | None) -> list[str]:
    """Return the names of the guests that libvirt knows. Raises BadInput if that is unknown."""
    if host.guests is None:
        captured = "give XML files: the capture does not hold what libvirt answered"
        hint = "start libvirt's daemon, or give XML files" if root is None else captured
        raise BadInput("which guests are defined is unknown: libvirt was not asked", where="libvirt", hint=hint)
    return [guest.name for guest in host.guests]


def of_name(root: str | None, host: Host, name: str) -> LintedDefinition:
    """Return the definition that libvirt keeps of a guest. Raises BadInput, Unreadable."""
    from hosttune.hypervisor.connection import read_definition
    from hosttune.machine.opening import open_system
    from hosttune.model.hints import did_you_mean

    known = defined(host, root)
    if name not in known:
        hint = f"libvirt has {', '.join(known) or 'no guests'}; a path of a file has a '/' or ends in .xml"
        raise BadInput(f"no file and no guest {name!r}", where="command line", hint=did_you_mean(name, known, hint))
    xml = read_definition(open_system(root), name)
    if xml is None:
        hint = "of a transient guest libvirt keeps none: give its XML as a file"
        raise BadInput(f"no definition of guest {name!r}", where=f"libvirt:{name}", hint=hint)
    return LintedDefinition(f"libvirt:{name}", xml)


def of_processes(root: str | None, document: str | None) -> tuple[Host, list[LintedDefinition]]:
    """Return the host, and the definition of each QEMU that runs on it. Raises BadInput."""
    import hosttune
    from hosttune.discovery.running import read_running
    from hosttune.domain.running import definition
    from hosttune.machine.opening import open_system
    from hosttune.machine.reader import Reader

    processes = None if document is not None else read_running(Reader(open_system(root)))
    if processes is None:
        hint = "run this on the host, or give --root with a capture that this version made"
        raise BadInput("which QEMU processes run is unknown", where=document or root or "/proc", hint=hint)
    host = hosttune.discover(root)
    # Every guest that runs is among the processes, whether libvirt could be asked or not.
    return replace(host, guests=host.guests or ()), [
        LintedDefinition(
            f"{process.name} (process {process.pid}, {process.manager or BY_HAND})",
            definition(running, host),
            Manager(process.manager or BY_HAND, process.manager_id),
        )
        for process, running in processes
    ]


def judge(
    context: click.Context, host: Host, definitions: Sequence[LintedDefinition], output: str, fail_on: str
) -> None:
    """Print the findings, then exit: with 1 if one has the level `fail_on` or a worse one, else with 0."""
    from hosttune.report.lint import lint_report, lint_sarif

    findings = find(host, definitions)
    failing = ("error", "warn") if fail_on == "warn" else ("error",)
    with exiting(context, 1 if any(finding.level in failing for finding in findings) else 0):
        files = [definition.file for definition in definitions]
        only = {"sarif": lambda: lint_sarif(findings, rules())}
        document = Linted(findings=tuple(findings))
        emit_report(document, output, lambda _: lint_report(findings, files, rules(), fail_on), only)
