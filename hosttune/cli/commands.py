"""The list of commands and what they share: help through `emit`, and the options that choose the host.

To add a command, add a row to `COMMANDS`, and to the module in that row a function with the command's name, decorated
with `@click.command(cls=Command)`. Listing the commands imports none of these modules.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hosttune import __version__
from hosttune.cli.output import VERBOSE, Amount, detail, emit, shown, tell
from hosttune.errors import BadInput

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from hosttune.model.host import Host

F = TypeVar("F", bound=Callable[..., Any])

# Command: (its module in this package, its line in `hosttune --help`, which is also the first line of its own help).
COMMANDS = {
    "apply": ("transaction", "Configure the host as a plan says; roll back on failure."),
    "capture": ("documents", "Record this host, without serial numbers, for use with --root."),
    "collective": ("between", "List what this host has for collectives; take part in one."),
    "completion": ("documents", "Print the completion script of a shell."),
    "diagnose": ("predicting", "Say why a measured figure falls short, and what to do."),
    "discover": ("documents", "Show the host: NUMA nodes, PCIe tree, GPUs, NICs, guests."),
    "docs": ("docs", "Print a page of the documentation, or the index of its pages."),
    "fleet": ("fleet", "Run hosttune on many hosts, through Ansible."),
    "forget-guest": ("transaction", "Delete what was kept of a guest that was taken away."),
    "handover": ("handover", "Take devices from the last tenant to the next, and prove it."),
    "history": ("transaction", "List every transaction; print one, or the intent of that day."),
    "lint": ("lint", "Find what is wrong with existing domain XML on its host."),
    "lint-env": ("lint", "Judge an environment, or the commands of a guide: harmful, useless, right or unknown."),
    "metrics": ("watch", "Write this host's state as metrics for Prometheus."),
    "pairs": ("between", "List this host's ports; take part in measuring between hosts."),
    "plan": ("plan", "Decide where guests run and which settings the host needs."),
    "predict": ("predicting", "Say what a host, a plan or a guest can reach, and why."),
    "recover": ("transaction", "Roll back an interrupted apply or revert."),
    "revert": ("transaction", "Restore the values from before hosttune, or take guests away."),
    "schema": ("schema", "Print the JSON Schema of a document."),
    "status": (
        "transaction",
        "Show what is applied, what drifted, what waits for a reboot.",
    ),
    "validate": ("validate", "Check that a host is fit for a tenant, and measure it."),
    "watch": ("watch", "Watch this host: re-check it after events, keep its metrics fresh."),
}


def with_options(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return a decorator that adds these options to a command, in this order."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def host_options(command: F) -> F:
    """Add --root and --host: use a captured host or a host document instead of this machine."""
    command = click.option("--host", "document", metavar="FILE", help="Use this host document (JSON).")(command)
    text = "Use a captured host instead of this machine (@example: the shipped one)."
    return click.option("--root", metavar="DIR|TAR", shell_complete=completing("hosts"), help=text)(command)


def read_document(root: str | None, document: str | None) -> Host | None:
    """Return the host document of --host; None if not given. Raises BadInput, also if --root is given too."""
    if document is None:
        return None
    if root is not None:
        raise BadInput("both --root and --host", where="command line", hint="give one of the two")
    from hosttune.journal.state import load
    from hosttune.model.host import Host

    return Host.from_json(load(document, what="a host document"), where=document)


def read_host(root: str | None, document: str | None) -> Host:
    """Return the host that a command works on. Raises BadInput."""
    import hosttune

    detail(f"reading the host: {document or root or 'this machine'}")
    return read_document(root, document) or hosttune.discover(root)


def progress() -> Callable[[str], None]:
    """Return a function that writes each step to stderr if stderr is a terminal or --verbose is given.

    On a terminal each has the time since the command began, so that a person sees what runs and for how long.
    """
    begun = time.monotonic()
    if sys.stderr is not None and sys.stderr.isatty():
        return lambda text: tell(f"{time.monotonic() - begun:5.0f} s  {shown(text)}")
    return (lambda text: tell(shown(text))) if Amount.now == VERBOSE else lambda text: None


def show_help(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    """Print the help of a command through `emit`."""
    if asked and not ctx.resilient_parsing:
        emit(ctx.get_help())
        ctx.exit()


def show_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    """Print the version."""
    if asked and not ctx.resilient_parsing:
        emit(f"hosttune, version {__version__}")
        ctx.exit()


class Whole(click.IntRange):
    """A whole number within limits."""

    name = "whole number"


_DIGITS = 100  # of a number that is shown with the reason of its limit


class DevicesOption(Whole):
    """A number of devices of a guest, with the limit of an intent and its reason. The intent checks the minimum."""

    def __init__(self, kind: str) -> None:
        from hosttune.model.limits import limit

        super().__init__(max=limit(kind))
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See click.ParamType. Raises BadInput above the limit."""
        from hosttune.model.limits import check_count

        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            text = str(value)
            if text.isascii() and text.isdecimal() and len(text) <= _DIGITS:
                check_count(int(text), self._kind, f"--{self._kind}")
            raise


class Seconds(click.FloatRange):
    """A number of seconds within limits. "nan" is within all limits for click."""

    name = "number of seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See click.ParamType."""
        converted = super().convert(value, param, ctx)
        return converted if converted == converted else self.fail(f"{value!r} is not a {self.name}.", param, ctx)


class Number(Seconds):
    """A number within limits."""

    name = "number"


class FileName(click.types.StringParamType):
    """A path. It is not checked here; shells complete it as the name of a file or a directory."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """See click.ParamType."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file")]


CONFIGURED = ("hosttune plan", "hosttune fleet ")  # the commands that have a table in the configuration file
FILES = (
    "FILE",
    "FILE.tar.gz",
    "DIR",
    "DIR|TAR",
    "PATH",
    "INTENT",
    "[PLAN]",
    "INVENTORY",
    "[FILE|NAME]...",
)  # metavars of file names


def completing(name: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return the function of `hosttune.cli.complete` with this name, which is imported when a shell asks."""

    def complete(context: click.Context, param: click.Parameter, begun: str) -> list[CompletionItem]:
        items: list[CompletionItem] = getattr(import_module("hosttune.cli.complete"), name)(context, param, begun)
        return items

    return complete


class Command(click.Command):
    """A command that writes its help through `emit`, and refuses options and arguments that are empty.

    An empty one is usually a variable of a script that is not set: `--limit "$RACK"` must not mean all hosts.
    `groups`: heading in the help: long names of its options. Options without a group are listed last.
    """

    def __init__(self, *words: Any, groups: Mapping[str, Sequence[str]] | None = None, **attributes: Any) -> None:
        super().__init__(*words, **attributes)
        self.groups = groups or {}
        for param in self.params:
            if param.metavar in FILES:
                param.type = FileName()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click.Command. Options are listed under the headings of `groups`."""
        if not self.groups:
            super().format_options(ctx, formatter)
            return
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        rows = {max(option.opts, key=len): option.get_help_record(ctx) for option in options}
        left = [name for name in rows if not any(name in names for names in self.groups.values())]
        for heading, names in (*self.groups.items(), ("Other options", left)):
            listed = [row for name in names if (row := rows.get(name)) is not None]
            if listed:
                with formatter.section(heading):
                    formatter.write_dl(listed)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See click.Command. Raises BadInput for an empty value, and for a configuration file that is not valid."""
        if ctx.command_path.startswith(CONFIGURED) and not isinstance(self, click.Group) and not ctx.resilient_parsing:
            from hosttune.cli.config import defaults

            ctx.default_map = defaults(ctx, args)
        rest = super().parse_args(ctx, args)
        if ctx.resilient_parsing:  # a shell asks for completions
            return rest
        for param in self.params:
            value = ctx.params.get(param.name or "")
            if (value == "" or (isinstance(value, tuple) and "" in value)) and param.type is not click.UNPROCESSED:
                where = param.human_readable_name if isinstance(param, click.Argument) else max(param.opts, key=len)
                raise BadInput("an empty value", where=where, hint="give a value, or leave it out")
        return rest

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """Return click's help option, with `show_help` as its callback."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.callback = show_help
        return option


class CommandGroup(Command, click.Group):
    """A group whose help shows the line of each command in full. click cuts it off at the width of the terminal."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click.Group."""
        subcommands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [
            (name, one.get_short_help_str(limit=1000))
            for name, one in subcommands
            if one is not None and not one.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See click.Group. Raises BadInput for an unknown command, with the commands that there are."""
        if not ctx.resilient_parsing and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            from hosttune.model.hints import did_you_mean

            known = self.list_commands(ctx)
            hint = did_you_mean(args[0], known, f"give one of: {', '.join(known)}")
            raise BadInput(f"no command {args[0]!r}", where="command line", hint=hint)
        return super().resolve_command(ctx, args)


class Commands(CommandGroup):
    """The group of commands, with one line of help each. A command is imported when it is called.

    This is a lazy group in the sense of click, with one
    difference: a listed command is a click.Command without options.
    """

    def __init__(self, **attributes: Any) -> None:
        listed = {name: click.Command(name, help=line) for name, (_, line) in COMMANDS.items()}
        super().__init__(commands=listed, **attributes)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Do the same as Group, but return the imported command. Raises BadInput that lists the commands."""
        name, listed, rest = super().resolve_command(ctx, args)
        return name, command(name) if name is not None else listed, rest


def command(name: str) -> click.Command:
    """Import and return a command of the table."""
    module, _ = COMMANDS[name]
    loaded: click.Command = getattr(import_module(f"hosttune.cli.{module}"), name.replace("-", "_"))
    return loaded


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=False)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=show_version, help="Show the version."
)
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an internal error.")
@click.option("-q", "--quiet", is_flag=True, expose_value=False, help="Write only the document and errors.")
@click.option("-v", "--verbose", is_flag=True, expose_value=False, help="Write also each step, and what is read.")
def cli() -> None:
    """Discover, plan, tune and validate KVM hosts for GPU guests.

    \b
    hosttune plan --root @example --gpu 0000:41:00.0 --network default
    hosttune COMMAND --help

    The options below can also follow the command.
    """
