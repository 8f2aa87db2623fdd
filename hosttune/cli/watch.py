"""`watch`: options → the agent, which runs until it is told to stop. `metrics`: the same metrics, once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import click

from hosttune.cli.commands import Command, Seconds, host_options, read_document
from hosttune.cli.output import emit, shown, tell
from hosttune.errors import BadInput, Refused

if TYPE_CHECKING:
    from hosttune.machine.system import System
    from hosttune.model.host import Host
    from hosttune.transaction.keeping import Keeping
    from hosttune.transaction.site import Site
    from hosttune.watch.core import Opener

SHORTEST, LONGEST, INTERVAL = 1, 3600, 60


@click.command(cls=Command)
@host_options
@click.option("--textfile", metavar="PATH", help="Write the metrics to this file, for node_exporter's textfile"
              " collector (a name that ends in .prom).")  # fmt: skip
@click.option("--interval", type=Seconds(min=SHORTEST, max=LONGEST), metavar="SECONDS", default=INTERVAL,
              show_default=True, help="How often everything is read again without an event.")  # fmt: skip
@click.option("--keep", is_flag=True, help="Set again what drifted, if its setting may be kept (docs/watch.md).")
@click.option("--install", "as_service", is_flag=True,
              help="Install, enable and start the unit that runs this, and say how to undo it.")  # fmt: skip
def watch(
    root: str | None, document: str | None, textfile: str | None, interval: float, keep: bool, as_service: bool
) -> None:  # fmt: skip
    """Watch this host: re-check it after events, keep its metrics fresh.

    Runs until SIGTERM. Events of devices, guests and the kernel log are looked at within 2 seconds, everything else
    at each interval. Opens no port and changes nothing, except settings with --keep. systemd runs it as
    hosttune-watch.service.

    \b
    hosttune watch --textfile /var/lib/prometheus/node-exporter/hosttune.prom
    hosttune watch --textfile /var/lib/prometheus/node-exporter/hosttune.prom --keep
    hosttune watch --install
    """
    from hosttune.cli.validate import accepted_of
    from hosttune.machine.opening import open_system
    from hosttune.transaction.site import site_of
    from hosttune.watch.agent import Agent
    from hosttune.watch.looking import Looker

    host = read_document(root, document)
    system = open_system(root) if host is None else None
    if as_service:
        install(system, textfile, interval, keep)
        return
    check_textfile_option(system, textfile, root or document)
    site = site_of(system) if system is not None else None
    live = system is not None and not system.captured
    with only_one(site):
        agent = Agent(
            looker=Looker(root, host, accepted=accepted_of(root or document)),
            textfile=textfile or "",
            interval=interval,
            openers=openers(live, root, host),
            say=lambda text: tell(shown(text)),
            keep=keeping(site, document) if keep else None,
            foreign=live,
            moves=live,
        )
        agent.run()


def install(system: System | None, textfile: str | None, interval: float, keep: bool) -> None:
    """Do --install. Raises Refused for a host that cannot be changed, BadInput."""
    from hosttune.metrics import check_textfile
    from hosttune.settings.dropin import own_command
    from hosttune.transaction.site import site_of, writable_store
    from hosttune.watch import service

    if system is None:
        raise Refused("a host document cannot be changed", where="--host", hint="run it on the host itself")
    writable_store(site_of(system))
    path = textfile or service.TEXTFILE
    if not system.captured:
        check_textfile(path)
    text = service.unit(own_command(), path, interval if interval != INTERVAL else None, keep=keep)
    for line in service.install(system, text):
        tell(shown(line))


def check_textfile_option(system: System | None, textfile: str | None, origin: str | None) -> None:
    """Check --textfile before anything is read. Raises BadInput, and Refused for a textfile of a captured host."""
    from hosttune.metrics import check_textfile

    if textfile is not None:
        refuse_captured(system, origin, else_="the agent then only says what it sees")
        check_textfile(textfile)
    elif system is not None and (not system.captured or system.scratch):
        hint = "add --textfile /var/lib/prometheus/node-exporter/hosttune.prom, in the folder that node_exporter reads"
        raise BadInput("no textfile", where="--textfile", hint=hint)


@contextlib.contextmanager
def only_one(site: Site | None) -> Iterator[None]:
    """Hold the lock of the agent; a captured host has none. Raises Refused: another agent runs here."""
    if site is None or site.store is None:
        yield
        return
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(site.store.locked("watch.lock", "watches this host"))
        except Refused as error:
            if "watches this host" in error.what:
                error.hint = "one agent is enough: systemctl status hosttune-watch"
            raise
        yield


def keeping(site: Site | None, document: str | None) -> Callable[[], Keeping]:
    """Return one turn of --keep. Raises Refused for a host that cannot be changed."""
    from hosttune.transaction.keeping import keep
    from hosttune.transaction.site import writable_store

    if site is None:
        hint = "leave out --keep, or run it on the host itself"
        raise Refused("a host document cannot be changed", where=document or "--host", hint=hint)
    writable_store(site)
    return lambda: keep(site, lambda text: None)


def openers(live: bool, root: str | None, host: Host | None) -> Mapping[str, Opener]:
    """Return the sources of events, each opened by the agent. A host document has none."""
    if host is not None:
        return {}
    if not live:
        from hosttune.machine.opening import open_system
        from hosttune.watch.replay import Replay

        return {Replay.name: lambda: Replay(lambda: open_system(root))}
    from hosttune.watch import guests, kmsg, udev

    return {udev.NAME: udev.Udev, kmsg.NAME: kmsg.KmsgSource, guests.NAME: guests.Guests}


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
