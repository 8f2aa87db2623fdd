"""The command line: parse, one call, render, exit code. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hosttune import __version__
from hosttune.errors import BadInput, HosttuneError, Refused

if TYPE_CHECKING:
    from rich.console import Console

    from hosttune.model.host import Host
    from hosttune.model.intent import Intent
    from hosttune.model.plan import Plan

F = TypeVar("F", bound=Callable[..., Any])

INTERNAL_ERROR = 70
PIPE_WIDTH = 110  # columns of text that does not go to a terminal
DEFAULT_GUEST = "gpu-guest"
# Where the keys of an intent made from options come from, for error messages.
OPTION_OF = {"gpus": "--gpu", "nics": "--nics", "nvme": "--nvme", "vcpus": "--vcpus", "memory": "--memory",
             "name": "--name", "numa": "--numa", "disk": "--disk", "mig": "--mig"}  # fmt: skip


def host_options(command: F) -> F:
    """--root and --host: a captured host, or a host document, in place of this machine."""
    command = click.option("--host", "document", metavar="FILE", help="Use this host document (JSON).")(command)
    return click.option("--root", metavar="DIR|TAR", help="Use a captured host instead of this machine.")(command)


def read_host(root: str | None, document: str | None) -> Host:
    """The host a command works on. Raises BadInput."""
    from hosttune.model.host import Host

    if root is not None and document is not None:
        raise BadInput("both --root and --host", where="command line", hint="give one of the two")
    if document is not None:
        from hosttune.state import load

        return Host.from_json(load(document, what="host document"), where=document)
    import hosttune

    return hosttune.discover(root)


def console() -> Console:
    """A console for documents on stdout; rich respects NO_COLOR and COLUMNS, and sends no colours into a pipe."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    return Console(width=width, highlight=False, markup=False, emoji=False)


def emit(text: str) -> None:
    """A document on stdout."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=False)
@click.version_option(__version__, prog_name="hosttune")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def cli(debug: bool) -> None:
    """Discover, plan, tune and validate KVM hosts for GPU guests."""


@cli.command()
@host_options
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def discover(root: str | None, document: str | None, output: str) -> None:
    """Show the host: NUMA nodes, PCIe tree, GPUs, NICs, guests, and what is doubtful."""
    host = read_host(root, document)
    if output == "json":
        emit(host.to_json())
        return
    from hosttune.report.text import print_host

    print_host(host, console())


@cli.command()
@host_options
@click.argument("file", metavar="FILE.tar.gz")
def capture(root: str | None, document: str | None, file: str) -> None:
    """Write a scrubbed capture of this host that --root replays."""
    if document is not None:
        raise BadInput("a host document cannot be captured", where="--host", hint="capture a machine, or use --root")
    from hosttune.archive import open_root
    from hosttune.capture import write_capture
    from hosttune.system import Machine

    write_capture(Machine() if root is None else open_root(root), file)
    click.echo(f"capture written: {file}", err=True)


@cli.command()
@host_options
@click.option("--gpu", "addresses", multiple=True, metavar="BDF", help="Give this GPU to the guest (repeatable).")
@click.option("--gpus", type=int, metavar="N", help="Give the guest N GPUs of the planner's choice.")
@click.option("-f", "--file", "file", metavar="INTENT", help="Plan what this intent (YAML or JSON) asks for.")
@click.option("--name", help=f"Name of the guest (default {DEFAULT_GUEST}); with -o xml, which guest of several.")
@click.option("--vcpus", metavar="N|auto", help="vCPUs of the guest (default auto).")
@click.option("--memory", metavar="SIZE|auto", help="Memory of the guest, like 200GiB (default auto).")
@click.option("--numa", metavar="N|auto", help="NUMA cells of the guest (default auto).")
@click.option("--smt", type=click.Choice(["cores", "threads"]), help="Whole cores (default), or free threads too.")
@click.option("--hugepages", type=click.Choice(["auto", "1GiB", "2MiB", "none"]), help="Page size (default auto).")
@click.option("--nics", type=int, metavar="N", help="Give the guest the N nearest NICs.")
@click.option("--nvme", type=int, metavar="N", help="Give the guest the N nearest NVMe drives.")
@click.option("--disk", metavar="PATH", help="Disk image of the guest.")
@click.option("--network", "networks", multiple=True, metavar="NAME", help="libvirt network (repeatable).")
@click.option("--bridge", "bridges", multiple=True, metavar="NAME", help="Host bridge (repeatable).")
@click.option("--firmware", type=click.Choice(["efi", "bios"]))
@click.option("--accelerator", type=click.Choice(["kvm", "tcg"]), help="tcg only for tests without KVM.")
@click.option("--profile", type=click.Choice(["guest", "host", "none"]), help="Which host settings to plan.")
@click.option("--out", metavar="FILE", help="Save the JSON plan here besides what -o prints.")
@click.option("--annotate", is_flag=True, help="With -o xml: a comment with the reason at each pin.")
@click.option("--check-xml", "check_xml", metavar="FILE", help="Criticise an existing domain XML instead of planning.")
@click.option("-o", "--output", type=click.Choice(["text", "json", "xml"]), default="text", show_default=True)
@click.pass_context
def plan(
    context: click.Context,
    /,
    root: str | None,
    document: str | None,
    out: str | None,
    output: str,
    annotate: bool,
    check_xml: str | None,
    **asked: Any,
) -> None:
    """Decide a guest and the host settings it wants. Changes nothing.

    \b
    hosttune plan --gpu 0000:41:00.0
    hosttune plan --gpus 2 --vcpus 64 --memory 512GiB -o xml
    hosttune plan -f intent.yaml --out plan.json
    """
    if check_xml is not None:
        context.exit(check_domain(read_host(root, document), check_xml, output))
    intent, where = read_intent(asked)
    host = read_host(root, document)
    decided = decide(host, intent, where)
    show_plan(decided, host, output, asked["name"], annotate)
    live = root is None and document is None
    for path in [out] if out else [None] if live else []:
        save_plan(decided, path)
    context.exit(1 if decided.unplaced else 0)


def read_intent(asked: dict[str, Any]) -> tuple[Intent, str]:
    """(the intent of a file or of the options, where it came from). Raises BadInput."""
    from hosttune.model.intent import Intent

    if asked["file"]:
        clash = [k for k in ("addresses", "gpus", "vcpus", "memory", "numa", "nics", "nvme", "disk") if asked[k]]
        if clash:
            raise BadInput(
                "-f together with options of a single guest", where="command line", hint="put them in the file"
            )
        return intent_of_file(asked["file"], asked["profile"])
    if not asked["addresses"] and asked["gpus"] is None:
        raise BadInput("nothing to plan", where="command line", hint="give --gpu BDF, --gpus N or -f INTENT")
    if asked["addresses"] and asked["gpus"] is not None:
        raise BadInput("both --gpu and --gpus", where="command line", hint="name the GPUs or count them")
    document = {"version": 1, "profile": asked["profile"] or "guest", "guests": [guest_of_options(asked)]}
    try:
        return Intent.from_json(json_text(document), where="command line"), "command line"
    except BadInput as error:
        raise as_option(error) from error


def guest_of_options(asked: dict[str, Any]) -> dict[str, Any]:
    """The guest of an intent, from the command line's options."""
    guest: dict[str, Any] = {"name": asked["name"] or DEFAULT_GUEST}
    guest["gpus"] = list(asked["addresses"]) if asked["addresses"] else asked["gpus"]
    for key in ("vcpus", "numa"):
        if asked[key] is not None:
            guest[key] = int(asked[key]) if asked[key].lstrip("-").isdecimal() else asked[key]
    for key in ("memory", "smt", "hugepages", "nics", "nvme", "disk", "firmware", "accelerator"):
        if asked[key] is not None:
            guest[key] = asked[key]
    networks = [{"network": name} for name in asked["networks"]] + [{"bridge": name} for name in asked["bridges"]]
    if networks:
        guest["networks"] = networks
    return guest


def intent_of_file(path: str, profile: str | None) -> tuple[Intent, str]:
    """The intent of a YAML or JSON file, its profile replaced by --profile."""
    from hosttune.model.intent import MAX_DOCUMENT_BYTES, Intent
    from hosttune.state import load

    data = load(path, what="intent", limit_bytes=MAX_DOCUMENT_BYTES)
    intent = Intent.from_yaml(data, where=path)  # YAML reads JSON too
    if profile:
        import msgspec

        intent = msgspec.structs.replace(intent, profile=profile)
    return intent, path


def json_text(document: object) -> bytes:
    """A plain document as JSON."""
    import msgspec

    return msgspec.json.encode(document)


def decide(host: Host, intent: Intent, where: str) -> Plan:
    """Plan, with errors that name the option where the intent came from options."""
    from hosttune.planning import plan as decide_plan

    try:
        return decide_plan(host, intent, where=where)
    except BadInput as error:
        raise as_option(error) from error


def as_option(error: BadInput) -> BadInput:
    """Name the option instead of the key of an intent that options made."""
    head, _, key = error.where.partition("command line: guests[0].")
    option = OPTION_OF.get(key.partition("[")[0]) if not head else None
    return BadInput(error.what, where=option, hint=error.hint) if option else error


def show_plan(decided: Plan, host: Host, output: str, name: str | None, annotate: bool) -> None:
    """Print a plan. With unplaced guests the XML cannot be had: the plan's text says why."""
    if output == "json":
        emit(decided.to_json())
    elif output == "xml" and not decided.unplaced:
        emit(xml_of(decided, name, annotate))
    else:
        from hosttune.report.plan_text import print_plan

        print_plan(decided, host, console())


def xml_of(decided: Plan, name: str | None, annotate: bool) -> str:
    """One guest's XML: the named one, or the only one. Raises BadInput listing the guests."""
    from hosttune.domain import domain_xml

    names = [guest.name for guest in decided.guests]
    if name is None and len(names) == 1:
        name = names[0]
    if name not in names:
        what = f"no guest {name!r} in the plan" if name else f"{len(names)} guests in the plan"
        raise BadInput(what, where="--name", hint=f"name one of: {', '.join(names) or 'none'}")
    return domain_xml(decided, name, annotate=annotate)


def save_plan(decided: Plan, path: str | None) -> None:
    """Save a complete plan and say where; a plan with unplaced guests is not saved."""
    from hosttune.state import save, saved_plan

    if decided.unplaced:
        click.echo("plan not saved: not every guest is placed", err=True)
        return
    target = path or saved_plan()
    save(target, decided.to_json())
    click.echo(f"plan saved: {target}", err=True)


def check_domain(host: Host, path: str, output: str) -> int:
    """Criticise a domain XML; 1 when a fault is named."""
    from hosttune.domain import criticise
    from hosttune.state import load

    findings = criticise(host, load(path, what="libvirt domain XML"), where=path)
    if output == "json":
        from hosttune.model.values import to_json

        emit(to_json(findings))
    else:
        for finding in findings:
            emit(f"{finding.level:5}  {finding.where}: {finding.text}")
        emit(f"{path}: {len(findings)} finding{'' if len(findings) == 1 else 's'}")
    return 1 if any(finding.level != "info" for finding in findings) else 0


@cli.command()
@click.argument("name", type=click.Choice(["host", "plan", "intent"]))
def schema(name: str) -> None:
    """Print the JSON Schema of a document."""
    import msgspec

    from hosttune.model.host import Host
    from hosttune.model.intent import Intent
    from hosttune.model.plan import Plan
    from hosttune.model.values import to_json

    kinds: dict[str, type[msgspec.Struct]] = {"host": Host, "plan": Plan, "intent": Intent}
    emit(to_json(msgspec.json.schema(kinds[name])))


def say(error: HosttuneError) -> None:
    """One block: what, where, what to do."""
    click.echo(f"error: {error.what}\nwhere: {error.where}\n   do: {error.hint}", err=True)


def main() -> None:
    """Entry point: every outcome becomes an exit code of the contract."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command, return its exit code."""
    try:
        result = cli.main(args=arguments, prog_name="hosttune", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except HosttuneError as error:
        say(error)
        return error.exit_code
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "hosttune"
        say(BadInput(error.format_message(), where="command line", hint=f"see {command} --help"))
        return BadInput.exit_code
    except click.Abort:
        return 130
    except BrokenPipeError:
        # The reader has seen enough (`| head`): not an error, but nothing more may be flushed.
        sys.stderr.close()
        return 0
    except Exception as error:  # the one catch-all: whatever arrives here is a defect of ours
        if "--debug" in arguments:
            raise
        say(
            Refused(
                f"internal error: {type(error).__name__}: {error}",
                where=" ".join(["hosttune", *arguments]),
                hint="run it again with --debug before the command, and report what it prints",
            )
        )
        return INTERNAL_ERROR
