"""Completion in shells: the scripts, and values that are not fixed: addresses of GPUs and names of guests.

They are of this machine or of --root. A person waits, so this is fast: PCI classes from sysfs, and libvirt's list of
names with a limit of 2 s. Where a host cannot be read nothing is offered: a shell must not show errors here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from hosttune.errors import HosttuneError
from hosttune.machine.opening import EXAMPLE

if TYPE_CHECKING:
    from hosttune.machine.system import System

_SECONDS = 2.0
# click's script for bash, with one difference: bash divides words at colons, and an address has colons. Here these
# parts are joined again, and of each answer only the part after the last typed colon replaces what was typed there.
_BASH = r"""_hosttune_completion() {
    local IFS=$'\n' response type value i typed
    local -a words=()
    for ((i = 0; i <= COMP_CWORD; i++)); do
        if ((i)) && [[ ${COMP_WORDS[i]} == : || ${words[-1]} == *: ]]; then
            words[-1]+=${COMP_WORDS[i]}
        else
            words+=("${COMP_WORDS[i]}")
        fi
    done
    typed=${words[-1]%"${words[-1]##*:}"}
    COMPREPLY=()
    response=$(env COMP_WORDS="${words[*]}" COMP_CWORD=$((${#words[@]} - 1)) _HOSTTUNE_COMPLETE=bash_complete "$1")
    for value in $response; do
        type=${value%%,*}
        value=${value#*,}
        if [[ $type == dir ]]; then
            compopt -o dirnames
        elif [[ $type == file ]]; then
            compopt -o default
        elif [[ $type == plain ]]; then
            COMPREPLY+=("${value#"$typed"}")
        fi
    done
}

complete -o nosort -F _hosttune_completion hosttune
"""


def script(shell: str, command: click.Command, variable: str) -> str:
    """Return the completion script of a shell: bash, zsh or fish. `variable`: the one in which it asks the command."""
    if shell == "bash":
        return _BASH
    completion_class = get_completion_class(shell)
    assert completion_class is not None
    return ShellComplete.source(completion_class(command, {}, "hosttune", variable))


def gpus(context: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the addresses of GPUs that begin with `begun`, those of domain 0000 without it if it was left out."""
    addresses: list[str] = []
    with contextlib.suppress(HosttuneError, OSError):
        addresses = list(_gpus(_system(context)))
    short = [address.removeprefix("0000:") for address in addresses]
    near = [address for address in addresses if address.startswith(begun)]
    return [CompletionItem(address) for address in near or (one for one in short if one.startswith(begun))]


def guests(context: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the names of guests that begin with `begun`."""
    names: list[str] = []
    with contextlib.suppress(HosttuneError, OSError):
        names = _guests(context)
    return [CompletionItem(name) for name in names if name.startswith(begun)]


def gpus_or_guests(context: click.Context, param: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the addresses of GPUs and the names of guests that begin with `begun`."""
    return [*gpus(context, param, begun), *guests(context, param, begun)]


def files_or_guests(context: click.Context, param: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the names of guests that begin with `begun`; the shell adds those of files."""
    return [CompletionItem(begun, type="file"), *guests(context, param, begun)]


def hosts(_context: click.Context, _param: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the name of the shipped host if it begins with `begun`; the shell adds the names of files."""
    return [CompletionItem(begun, type="file"), *([CompletionItem(EXAMPLE)] if EXAMPLE.startswith(begun) else [])]


def _system(context: click.Context) -> System:
    from hosttune.machine.opening import open_system

    return open_system(context.params.get("root"))


def _gpus(system: System) -> Iterator[str]:
    from hosttune.model.pciclass import GPUS, in_sysfs
    from hosttune.model.sysfs import PCI_DEVICES, function

    classes = in_sysfs(*GPUS)
    for address in sorted(system.list(PCI_DEVICES)):
        is_gpu = (system.read(function(address, "class")) or "").startswith(classes)
        if is_gpu and system.read(function(address, "boot_vga")) != "1":  # the boot display is given to no guest
            yield address


def _guests(context: click.Context) -> list[str]:
    root = context.params.get("root")
    if root is not None:
        import hosttune

        return [guest.name for guest in hosttune.discover(root).guests or ()]
    from hosttune.hypervisor.connection import virsh

    listed = _system(context).run(virsh("--readonly", "list", "--all", "--name"), timeout=_SECONDS)
    return [name for line in listed.splitlines() if (name := line.strip())]
