"""`plan --adopt`, `--adopt-all` and `--xml`: plan guests that have a definition, and print what of it changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import click
import msgspec

from hosttune.cli.commands import read_host
from hosttune.cli.output import emit, emit_report, exiting, tell
from hosttune.cli.planned import DEFINITIONS, chosen, save_plan
from hosttune.errors import BadInput, Unreadable
from hosttune.machine.system import System
from hosttune.model.host import Host
from hosttune.planning.adopting import Adoptions, Definition, adopt, saved_plan

_ALL = "--adopt-all"


class AdoptRequest(msgspec.Struct, frozen=True):
    """The guests to adopt and how to print and save their plan: options of `plan`.

    `printed`: the guest whose definition -o xml prints. `managed`: save also guests that another program manages.
    """

    root: str | None
    document: str | None
    files: Sequence[str]
    names: Sequence[str]
    every: bool
    output: str
    printed: str | None
    out: str | None
    managed: bool

    @property
    def option(self) -> str:
        """The option that asks for the first guest."""
        return _ALL if self.every else "--adopt" if self.names else "--xml"


def adopt_guests(context: click.Context, request: AdoptRequest, others: Mapping[str, object]) -> None:
    """Print the plan of existing guests and save it where a plan is saved. Exits with 1 if one has no place.

    `others`: the other options of the command, which must not be given. Raises BadInput, Unreadable.
    """
    _check(request, others)
    host = read_host(request.root, request.document)
    definitions = list(_definitions(host, request))

    adopted = adopt(host, definitions, tolerant=request.every)
    obstacle = _obstacle(adopted, request)
    if request.out is not None:
        if obstacle is not None and not adopted.plan.unplaced:
            raise BadInput(f"this plan is not saved: {obstacle[0]}", where="--out", hint=obstacle[1])
        _save(adopted, request, request.out)
    with exiting(context, 1 if adopted.plan.unplaced else 0):
        _print(adopted, host, request)
        if request.out is None and request.document is None:
            if obstacle is not None:
                tell(f"plan not saved: {obstacle[0]}: {obstacle[1]}")
            elif any(adoption.changes for adoption in adopted.guests) or adopted.plan.actions or adopted.plan.unplaced:
                _save(adopted, request, None)
            else:
                tell("nothing to change: no plan is saved")


def _save(adopted: Adoptions, request: AdoptRequest, path: str | None) -> None:

    save_plan(saved_plan(adopted, consent=request.managed), path, request.root, request.document)


def _check(request: AdoptRequest, others: Mapping[str, object]) -> None:
    """Check the options. Raises BadInput for two that exclude each other."""
    option = request.option

    def refuse(what: str, hint: str) -> BadInput:
        return BadInput(what, where="command line", hint=hint)

    if request.every and (request.names or request.files):
        raise refuse(f"{_ALL} together with guests", "leave one of the two out")
    if any(value not in (None, ()) for value in others.values()):
        hint = f"leave them out: {option} takes devices and sizes of a guest from its definition"
        raise refuse(f"{option} together with options of another plan", hint)
    twice = next((name for name in request.names if request.names.count(name) > 1), None)
    if twice is not None:
        raise refuse(f"guest {twice!r} is given twice", "give each guest once")
    if request.printed is not None and request.output != "xml":
        raise refuse(f"--name together with {option}", "it chooses the guest that -o xml prints")
    if request.document is not None and (request.names or request.every):
        hint = "a host document has no definitions: give the guest's XML with --xml FILE"
        raise refuse(f"{option} together with --host", hint)


# --- definitions ------------------------------------------------------------------------------------------------


def _definitions(host: Host, request: AdoptRequest) -> Iterator[Definition]:
    """Yield the definitions that are asked for. Raises BadInput, Unreadable."""
    from hosttune.journal.state import load
    from hosttune.machine.opening import open_system

    own = {guest.name for guest in (host.in_force.guests if host.in_force else ()) if guest.adopted is None}
    for path in request.files:
        yield Definition(load(path, what="a libvirt domain XML", size="domain XML"), path)
    if request.every:
        from hosttune.cli.lint import defined

        system = open_system(request.root)
        yield from (_each(system, name) for name in defined(host, request.root) if name not in own)
    elif request.names:
        if name := next((name for name in request.names if name in own), None):
            hint = "change its intent, then hosttune plan -f FILE"
            raise BadInput(f"guest {name!r} is in force here as hosttune defined it", where="--adopt", hint=hint)
        system = open_system(request.root)
        yield from (_definition_of(system, host, name) for name in request.names)


def _each(system: System, name: str) -> Definition:
    """Return the definition of one of all guests; if libvirt gives none, a refused one with the reason."""

    try:
        libvirt = _of_libvirt(system, name)
    except Unreadable as error:
        return Definition(b"", name, name, (f"its definition cannot be read: {error.reason}",))
    return libvirt or Definition(b"", name, name, ("it is transient: libvirt keeps no definition of it",))


def _definition_of(system: System, host: Host, name: str) -> Definition:
    """Return the definition of a guest of this name. Raises BadInput, Unreadable."""
    libvirt = _of_libvirt(system, name)
    if libvirt is None:
        from hosttune.model.hints import did_you_mean
        from hosttune.model.listing import some

        known = [guest.name for guest in host.guests or ()]
        hint = did_you_mean(name, known, f"defined: {some(known, 16) or 'none'}")
        if name in known:
            hint = "it is transient: give its XML with --xml FILE"
        raise BadInput(f"no guest {name!r} is defined on this host", where="--adopt", hint=hint)
    return libvirt


def _of_libvirt(system: System, name: str) -> Definition | None:
    """Return the inactive definition of a guest, refused if it has a managed save. Raises Unreadable."""
    from hosttune.hypervisor.connection import has_managed_save, read_definition

    xml = read_definition(system, name)
    if xml is None:
        return None
    saved = has_managed_save(system, name)
    why = f"it has a managed save, which is of its present definition: start it, or virsh managedsave-remove {name}"
    return Definition(xml.encode(), f"guest {name}", name, (why,) if saved else ())


# --- output -----------------------------------------------------------------------------------------------------


def _obstacle(adopted: Adoptions, request: AdoptRequest) -> tuple[str, str] | None:
    """Return why the plan must not be saved, and what to do; None if it may be."""
    if request.files:
        return "a definition of a file may differ from libvirt's", "virsh define FILE, then plan --adopt NAME"
    managed = next((adoption for adoption in adopted.guests if adoption.placement and adoption.managers), None)
    if managed is not None and not request.managed:
        hint = "make the change there, or give --yes to save the plan"
        return f"{' and '.join(managed.managers)} manages guest {managed.name}", hint
    return None


def _print(adopted: Adoptions, host: Host, request: AdoptRequest) -> None:
    """Print the plan in the format that is asked for. Raises BadInput."""
    from hosttune.report.adoption import adoption_report

    def svg() -> str:
        from hosttune.report.svg import adoption_svg

        return adoption_svg(host, (guest.before for guest in adopted.guests), adopted.plan)

    output = request.output
    if output in DEFINITIONS:
        name = chosen(request.printed, [adoption.name for adoption in adopted.guests])
        adoption = next(adoption for adoption in adopted.guests if adoption.name == name)
        if adoption.placement is not None:
            # A definition in another encoding is decoded by its own declaration.
            if not adoption.changes:
                tell("nothing to change")
            if not bool(request.files):
                tell("printed without secrets: before you define it, put passwords of graphics devices in again")
            write_bytes(adoption.after)
            return
        output = "text"  # why it has no place
    only = {"json": lambda: saved_plan(adopted, consent=request.managed).to_json(), "svg": svg}
    obstacle = _obstacle(adopted, request)
    following = obstacle[1] if obstacle else "hosttune apply, on the host itself"
    emit_report(adopted, output, lambda adopted: adoption_report(adopted, host, following), only)


def write_bytes(data: bytes) -> None:
    """Write bytes to stdout as they are. Raises BadInput if stdout cannot be written."""
    from hosttune.cli.output import standard_output, unwritable
    from hosttune.machine.files import drop

    output = standard_output()
    raw = getattr(output, "buffer", None)
    if raw is None:  # a text stream of a caller
        emit(data.decode("utf-8", "replace"))
        return
    try:
        output.flush()
        raw.write(data)
        raw.flush()
    except BrokenPipeError:
        drop(output)
    except OSError as error:
        drop(output)
        raise unwritable(error.strerror) from error
