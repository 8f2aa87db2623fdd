"""The command line: parse, one call, render, exit code. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, TypeVar

import click

from hosttune import __version__
from hosttune.errors import BadInput, HosttuneError, Refused
from hosttune.state import drop

if TYPE_CHECKING:
    from rich.console import Console

    from hosttune.model.host import Host
    from hosttune.model.intent import Intent
    from hosttune.model.plan import Plan

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

INTERNAL_ERROR = 70
PIPE_WIDTH = 110  # columns of text that does not go to a terminal
MOST_TEXT = 4000  # characters of one part of an error block: an argument or a document may be of any length
DEFAULT_GUEST = "gpu-guest"
COUNT = click.IntRange(max=1 << 20)  # devices to ask for; the intent says more about what is too little
# Where the keys of an intent made from options come from, for error messages.
OPTION_OF = {"gpus": "--gpu", "nics": "--nics", "nvme": "--nvme", "vcpus": "--vcpus", "memory": "--memory",
             "name": "--name", "numa": "--numa", "disk": "--disk", "mig": "--mig"}  # fmt: skip
WITH_FILE = ("file", "name", "profile")  # options of `plan` that an intent in a file leaves to the command line


class ReaderGone(Exception):
    """Whoever read our output has seen enough (`| head`): no error, but nothing more may be written."""


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

        return Host.from_json(load(document, what="a host document"), where=document)
    import hosttune

    return hosttune.discover(root)


def console(output: TextIO) -> Console:
    """A console that draws for `output` (its encoding, width and colours) without writing there: see `emit_page`.

    rich respects NO_COLOR and COLUMNS, and sends no colours into a pipe.
    """
    from rich.console import Console

    width = None if output.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    sheet = io.TextIOWrapper(io.BytesIO(), encoding=output.encoding or "utf-8")
    terminal = True if output.isatty() else None
    return Console(file=sheet, force_terminal=terminal, width=width, highlight=False, markup=False, emoji=False)


def emit(text: str) -> None:
    """A document on stdout, at once. Raises ReaderGone, and BadInput for an output that cannot be written."""
    output = standard_output()
    try:
        output.write(text if text.endswith("\n") else text + "\n")
        output.flush()
    except BrokenPipeError as error:
        raise ReaderGone from error
    except OSError as error:
        drop(output)
        raise unwritable(error.strerror) from error


def emit_page(print_document: Callable[[Console], None]) -> None:
    """Text on stdout, styled as stdout takes it; put together first, so that one place meets a failing stdout."""
    page = console(standard_output())
    with page.capture() as captured:
        print_document(page)
    emit(captured.get())


def standard_output() -> TextIO:
    """stdout. Raises BadInput where it is closed (`>&-`), for which Python has None."""
    if sys.stdout is None:
        raise unwritable("standard output is closed")
    return sys.stdout


def unwritable(why: str | None) -> BadInput:
    """The error of an output that cannot be written."""
    return BadInput(f"cannot write the output: {why}", where="standard output", hint="write it to another place")


def show_help(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    """The help of a command, written as every other output."""
    if asked and not ctx.resilient_parsing:
        emit(ctx.get_help())
        ctx.exit()


def show_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    """The version."""
    if asked and not ctx.resilient_parsing:
        emit(f"hosttune, version {__version__}")
        ctx.exit()


class Command(click.Command):
    """A command that writes its help through `emit`."""

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """As click's, with a callback of ours."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.callback = show_help
        return option


class Commands(Command, click.Group):
    """The commands; an unknown one is told which exist."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, with an error that lists the commands."""
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            known = ", ".join(self.list_commands(ctx))
            raise BadInput(f"no command {args[0]!r}", where="command line", hint=f"give one of: {known}")
        return super().resolve_command(ctx, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=False)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=show_version, help="Show the version."
)
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an internal error (anywhere).")
def cli() -> None:
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

    emit_page(lambda page: print_host(host, page))


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
    tell(f"capture written: {file}")


@cli.command()
@host_options
@click.option("--gpu", "addresses", multiple=True, metavar="BDF", help="Give this GPU to the guest (repeatable).")
@click.option("--gpus", type=COUNT, metavar="N", help="Give the guest N GPUs of the planner's choice.")
@click.option("-f", "--file", "file", metavar="INTENT", help="Plan what this intent (YAML or JSON) asks for.")
@click.option("--name", help=f"Name of the guest (default {DEFAULT_GUEST}); with -o xml, which guest of several.")
@click.option("--vcpus", metavar="N|auto", help="vCPUs of the guest (default auto).")
@click.option("--memory", metavar="SIZE|auto", help="Memory of the guest, like 200GiB (default auto).")
@click.option("--numa", metavar="N|auto", help="NUMA cells of the guest (default auto).")
@click.option("--smt", type=click.Choice(["cores", "threads"]), help="Whole cores (default), or free threads too.")
@click.option("--hugepages", type=click.Choice(["auto", "1GiB", "2MiB", "none"]), help="Page size (default auto).")
@click.option("--nics", type=COUNT, metavar="N", help="Give the guest the N nearest NICs.")
@click.option("--nvme", type=COUNT, metavar="N", help="Give the guest the N nearest NVMe drives.")
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
    if out is not None or live:
        save_plan(decided, out)
    context.exit(1 if decided.unplaced else 0)


def read_intent(asked: dict[str, Any]) -> tuple[Intent, str]:
    """(the intent of a file or of the options, where it came from). Raises BadInput."""
    import msgspec

    from hosttune.model.intent import Intent

    if asked["file"] is not None:
        if any(asked[key] not in (None, ()) for key in asked if key not in WITH_FILE):
            raise BadInput(
                "-f together with options of a single guest", where="command line", hint="put them in the file"
            )
        intent, where = intent_of_file(asked["file"], asked["profile"])
        if asked["name"] is not None:
            chosen(asked["name"], [guest.name for guest in intent.guests])
        return intent, where
    if not asked["addresses"] and asked["gpus"] is None:
        raise BadInput("nothing to plan", where="command line", hint="give --gpu BDF, --gpus N or -f INTENT")
    if asked["addresses"] and asked["gpus"] is not None:
        raise BadInput("both --gpu and --gpus", where="command line", hint="name the GPUs or count them")
    document = {"version": 1, "profile": asked["profile"] or "guest", "guests": [guest_of_options(asked)]}
    try:
        text = encoded(lambda: msgspec.json.encode(document), "command line")
        return Intent.from_json(text, where="command line"), "command line"
    except BadInput as error:
        raise as_option(error) from error


def guest_of_options(asked: dict[str, Any]) -> dict[str, Any]:
    """The guest of an intent, from the command line's options."""
    guest: dict[str, Any] = {"name": asked["name"] or DEFAULT_GUEST}
    guest["gpus"] = list(asked["addresses"]) if asked["addresses"] else asked["gpus"]
    for key in ("vcpus", "numa"):
        if asked[key] is not None:
            guest[key] = number_or_auto(asked[key], OPTION_OF[key])
    for key in ("memory", "smt", "hugepages", "nics", "nvme", "disk", "firmware", "accelerator"):
        if asked[key] is not None:
            guest[key] = asked[key]
    networks = [{"network": name} for name in asked["networks"]] + [{"bridge": name} for name in asked["bridges"]]
    if networks:
        guest["networks"] = networks
    return guest


def number_or_auto(text: str, option: str) -> int | str:
    """The number in an option's text, or "auto". Raises BadInput."""
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        return int(text)
    if text != "auto":
        raise BadInput(f"{text!r} is neither a number nor auto", where=option, hint="give a number, or auto")
    return text


def intent_of_file(path: str, profile: str | None) -> tuple[Intent, str]:
    """The intent of a YAML or JSON file, its profile replaced by --profile."""
    from hosttune.model.intent import MAX_DOCUMENT_BYTES, Intent
    from hosttune.state import load

    data = load(path, what="an intent", limit_bytes=MAX_DOCUMENT_BYTES)
    intent = Intent.from_yaml(data, where=path)  # YAML reads JSON too
    encoded(intent.to_json, path)
    if profile:
        import msgspec

        intent = msgspec.structs.replace(intent, profile=profile)
    return intent, path


def encoded(encode: Callable[[], T], where: str) -> T:
    """A document as `encode` writes it. Raises BadInput for text that UTF-8 cannot hold.

    Python has such text (lone surrogates) for an argument in another encoding, and YAML for "\\ud800".
    """
    try:
        return encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"{error.object!r} cannot be written in UTF-8", where=where, hint="correct the text") from error


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

        emit_page(lambda page: print_plan(decided, host, page))


def xml_of(decided: Plan, name: str | None, annotate: bool) -> str:
    """One guest's XML: the named one, or the only one. Raises BadInput listing the guests."""
    from hosttune.domain import domain_xml

    name = chosen(name, [guest.name for guest in decided.guests])
    return domain_xml(decided, name, annotate=annotate)


def chosen(name: str | None, names: Sequence[str]) -> str:
    """The named guest of an intent or a plan, or the only one. Raises BadInput listing the guests."""
    if name is None and len(names) == 1:
        return names[0]
    if not names:
        raise BadInput("the intent asks for no guest", where="-f", hint="list one under `guests`")
    if name is None or name not in names:
        what = f"no guest {name!r}" if name is not None else f"{len(names)} guests, and XML is of one"
        raise BadInput(what, where="--name", hint=f"name one of: {', '.join(names)}")
    return name


def save_plan(decided: Plan, path: str | None) -> None:
    """Save a complete plan and say where; a plan with unplaced guests is not saved."""
    from hosttune.state import save, saved_plan

    if decided.unplaced:
        tell("plan not saved: not every guest is placed")
        return
    target = saved_plan() if path is None else path
    save(target, decided.to_json(), make_folder=path is None)
    tell(f"plan saved: {target}")


def check_domain(host: Host, path: str, output: str) -> int:
    """Criticise a domain XML; 1 when a fault is named."""
    from hosttune.domain import criticise
    from hosttune.state import load

    findings = criticise(host, load(path, what="a libvirt domain XML"), where=path)
    if output == "json":
        from hosttune.model.values import to_json

        emit(to_json(findings))
    else:
        lines = [f"{finding.level:5}  {finding.where}: {finding.text}" for finding in findings]
        emit("\n".join([*lines, f"{path}: {len(findings)} finding{'' if len(findings) == 1 else 's'}"]))
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


# --- the process ---------------------------------------------------------------------------------------------


def tell(text: str) -> None:
    """A line on stderr. Where stderr itself cannot be written nothing more can be told: the exit code remains."""
    try:
        click.echo(text, err=True)
    except OSError:
        drop(sys.stderr)


def say(error: HosttuneError) -> None:
    """One block: what, where, what to do."""
    tell(f"error: {shown(error.what)}\nwhere: {shown(error.where)}\n   do: {shown(error.hint)}")


def shown(text: str) -> str:
    """Text from anywhere, safe for a terminal and of bounded length: the middle goes, both ends say more."""
    half = MOST_TEXT // 2
    cut = text if len(text) <= MOST_TEXT else f"{text[:half]} ... {text[-half:]}"
    return "".join(character if character.isprintable() or character == "\n" else "?" for character in cut)


def main() -> None:
    """Entry point: every outcome becomes an exit code of the contract."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name that a narrow locale cannot write is escaped: the way JSON itself would, and no reason to fail.
        sys.stdout.reconfigure(errors="backslashreplace")
    gc.disable()  # one document, then the end: looking for cycles in it finds none
    leave(run(sys.argv[1:]))


def leave(code: int) -> NoReturn:
    """End the process at once. All is written by now, and taking a host document apart is a tenth of a whole run."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a stream that failed has been told already
            if stream is not None:
                stream.flush()
    os._exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command, return its exit code."""
    debug, words = split_debug(arguments)
    try:
        return invoke(words)
    except HosttuneError as error:
        say(error)
        return error.exit_code
    except ReaderGone:
        drop(sys.stdout)
        return 0
    except click.Abort:
        return 130
    except Exception as error:  # the one catch-all: whatever arrives here is a defect of ours
        if debug:
            import traceback

            tell(traceback.format_exc())
        what = f"internal error: {type(error).__name__}: {error}"
        hint = "report what it prints with --debug"
        say(Refused(what, where=" ".join(["hosttune", *arguments]), hint=hint))
        return INTERNAL_ERROR


def split_debug(arguments: Sequence[str]) -> tuple[bool, list[str]]:
    """(whether --debug stands anywhere before a lone "--", the other arguments)."""
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    words = [word for word in arguments[:end] if word != "--debug"]
    return len(words) < end, [*words, *arguments[end:]]


def invoke(arguments: list[str]) -> int:
    """Run one command through click, whose usage errors become ours."""
    if not arguments:
        tell(cli.get_help(click.Context(cli, info_name="hosttune", **cli.context_settings)))
        return BadInput.exit_code
    if any("\0" in word for word in arguments):
        raise BadInput("an argument with a NUL byte", where="command line", hint="take it out")
    try:
        result = cli.main(args=arguments, prog_name="hosttune", standalone_mode=False)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "hosttune"
        raise BadInput(error.format_message(), where="command line", hint=f"see {command} --help") from error
    return result if isinstance(result, int) else 0
