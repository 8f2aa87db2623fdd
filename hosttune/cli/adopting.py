"""`plan --xml` and `plan --adopt`: plan a guest that has a definition, and print what of the definition changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hosttune.cli.commands import read_host
from hosttune.cli.output import emit, page_text, tell
from hosttune.errors import BadInput

if TYPE_CHECKING:
    from hosttune.model.host import Host
    from hosttune.planning.adopting import Adoption

_SAVED = "/var/lib/libvirt/qemu/save/{name}.save"  # libvirt's qemuDomainManagedSavePath, of the system's daemon


def adopt_guest(
    root: str | None,
    document: str | None,
    paths: Sequence[str],
    names: Sequence[str],
    output: str,
    others: Mapping[str, object],
) -> int:
    """Print the plan of a definition from a file (`paths`) or from libvirt (`names`). Returns the exit code.

    `others`: the other options of the command, which must not be given. Raises BadInput, Unreadable.
    """
    if len(paths) + len(names) > 1:
        raise BadInput("more than one guest with --xml or --adopt", where="command line", hint="plan one at a time")
    option = "--xml" if paths else "--adopt"
    if any(value not in (None, ()) for value in others.values()):
        hint = f"leave them out: {option} takes the guest's devices and sizes from its definition"
        raise BadInput(f"{option} together with options of another plan", where="command line", hint=hint)
    if output not in ("text", "xml", "svg"):
        raise BadInput(f"-o {output} together with {option}", where="command line", hint="use -o text, xml or svg")
    host = read_host(root, document)
    adoption = _of_file(host, paths[0]) if paths else _of_libvirt(host, root, document, names[0])
    if output == "xml" and not adoption.unplaced:
        _emit_definition(adoption, from_file=bool(paths))
    elif output == "svg":
        from hosttune.report.svg import adoption_svg

        emit(adoption_svg(host, adoption.before, adoption.plan))
    else:
        from hosttune.report.adoption_text import print_adoption

        emit(page_text(lambda page: print_adoption(adoption, host, page)))
    return 1 if adoption.unplaced else 0


def _of_file(host: Host, path: str) -> Adoption:
    from hosttune.planning.adopting import adopt
    from hosttune.state import load

    return adopt(host, load(path, what="a libvirt domain XML", size="domain XML"), where=path)


def _of_libvirt(host: Host, root: str | None, document: str | None, name: str) -> Adoption:
    """Return the adoption of a guest that libvirt has. Raises BadInput, Unreadable."""
    from dataclasses import replace

    from hosttune.archive import open_system
    from hosttune.hypervisor.connection import read_definition
    from hosttune.model.hints import did_you_mean
    from hosttune.planning.adopting import adopt

    if document is not None:
        hint = "a host document has no definitions: give the guest's XML with --xml FILE"
        raise BadInput("--adopt together with --host", where="command line", hint=hint)
    system = open_system(root)
    xml = read_definition(system, name)
    if xml is None:
        known = [guest.name for guest in host.guests or ()]
        hint = did_you_mean(name, known, f"defined: {', '.join(known) or 'none'}")
        raise BadInput(f"no guest {name!r} is defined on this host", where="--adopt", hint=hint)
    adoption = adopt(host, xml.encode(), where=f"guest {name}")
    if system.exists(_SAVED.format(name=name)):
        why = f"it has a managed save, which is of its present definition: start it, or virsh managedsave-remove {name}"
        return replace(adoption, unplaced=(why,), relaxation=(), changes=(), after=adoption.before)
    return adoption


def _emit_definition(adoption: Adoption, *, from_file: bool) -> None:
    """Write the whole definition. A definition in another encoding is decoded by its own declaration."""
    if not adoption.changes:
        tell("nothing to change")
    if not from_file:
        tell("printed without secrets: before you define it, put passwords of graphics devices in again")
    write_bytes(adoption.after)


def write_bytes(data: bytes) -> None:
    """Write bytes to stdout as they are. Raises BadInput if stdout cannot be written."""
    from hosttune.cli.output import standard_output, unwritable
    from hosttune.state import drop

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
