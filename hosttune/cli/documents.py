"""`discover`, `capture`, `completion`: host documents, captures, scripts for shells."""

from __future__ import annotations

import click

from hosttune.cli.commands import Command, host_options, read_host
from hosttune.cli.output import emit, shown, standard_output, tell
from hosttune.errors import BadInput
from hosttune.model.text import count


@click.command(cls=Command)
@host_options
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json", "svg"]),
    default="text",
    show_default=True,
    help="What to print.",
)
def discover(root: str | None, document: str | None, output: str) -> None:
    """Show the host: NUMA nodes, PCIe tree, GPUs, NICs, guests."""
    host = read_host(root, document)

    def svg() -> str:
        from hosttune.report.svg import host_svg

        return host_svg(host)

    def text() -> str:
        from hosttune.report.branch import page_text
        from hosttune.report.text import print_host

        return page_text(standard_output(), lambda page: print_host(host, page))

    emit({"json": host.to_json, "svg": svg, "text": text}[output]())


@click.command(cls=Command)
@host_options
@click.argument("file", metavar="FILE.tar.gz", required=False)
@click.option("--seal", "folder", metavar="DIR", help="Write the digests of a capture that was changed on purpose.")
def capture(root: str | None, document: str | None, file: str | None, folder: str | None) -> None:
    """Record this host, without serial numbers, for use with --root."""
    if document is not None:
        raise BadInput("a host document cannot be captured", where="--host", hint="capture a machine, or use --root")
    if folder is not None:
        if file is not None or root is not None:
            raise BadInput("--seal takes its folder and nothing else", where="--seal", hint="give only --seal DIR")
        from hosttune.machine.sealing import seal

        files = seal(folder)
        tell(f"sealed: {folder}, {count(files, 'file')}")
        return
    if file is None:
        hint = "give a file to write, or --seal with a capture's folder"
        raise BadInput("no FILE.tar.gz", where="command line", hint=hint)
    import hosttune

    hosttune.capture(file, root, say=write_plain_text)
    tell(f"capture written: {file}")


def write_plain_text(text: str) -> None:
    """Write a line to stderr, made safe for a terminal, because its text can come from a capture."""
    tell(shown(text))


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    The package has the scripts under share/. If your shell does not look there (a virtual environment), add a line to
    its start file:

    \b
    eval "$(hosttune completion bash)"       in ~/.bashrc
    eval "$(hosttune completion zsh)"        in ~/.zshrc, after compinit
    hosttune completion fish | source        in ~/.config/fish/config.fish
    """
    from hosttune.cli.commands import cli
    from hosttune.cli.complete import script
    from hosttune.cli.process import COMPLETE

    emit(script(shell, cli, COMPLETE))
