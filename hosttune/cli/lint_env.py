"""`lint-env`: an environment or the commands of a guide, judged line by line."""

from __future__ import annotations

import click

from hosttune.cli.commands import Command, host_options, read_host
from hosttune.cli.output import FORMATS, emit_report, exiting


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
