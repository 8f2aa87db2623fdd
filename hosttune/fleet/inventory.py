"""Read the hosts of an inventory by calling ansible, because only ansible can read every kind of inventory."""

from __future__ import annotations

import configparser
import os
import re
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from hosttune.errors import BadInput, CommandFailed
from hosttune.fleet.results import refuse_names
from hosttune.journal.state import load
from hosttune.machine.live import LiveMachine
from hosttune.model.jsontext import typed_json
from hosttune.model.listing import some
from hosttune.model.values import Value

GPU_HOSTS = "gpu_hosts"
_SECONDS = 600.0  # dynamic inventories query a cloud or a database
_COUNT = re.compile(r"  hosts \(([0-9]+)\):")
_INDENT = "    "
_ORIGIN = re.compile(r"Origin: (\S.{0,1000}:[0-9]{1,9}:[0-9]{1,9})")
_CAUSE = re.compile(r"Failed to parse \S+ with '?(\w+)'? plugin: (?:Failed to parse inventory: )?(.+)")
_YAML = (".yml", ".yaml", ".json")
_ERROR = re.compile(r"(?:\[ERROR\]|ERROR!?): ?(.*)")


class _AnsibleGroup(Value, frozen=True, kw_only=True):
    """A group as ansible-inventory prints it; variables of hosts are skipped, not decoded."""

    hosts: tuple[str, ...] = ()
    children: tuple[str, ...] = ()


class _Meta(Value, frozen=True, kw_only=True):
    hostvars: dict[str, dict[str, msgspec.Raw]] = msgspec.field(default_factory=dict)


class _Listed(Value, frozen=True, kw_only=True):
    meta: _Meta = msgspec.field(default_factory=_Meta, name="_meta")


class Inventory(msgspec.Struct, frozen=True):
    """The hosts, in the inventory's order, and the groups of each (without `all` and `ungrouped`), sorted by name.

    `between`: the hosts that name devices or a guest to be handed over (`hosttune_handover`). `left_out`: machines of
    the inventory that are none of hosttune's.
    """

    hosts: tuple[str, ...]
    groups: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    between: frozenset[str] = frozenset()
    left_out: tuple[str, ...] = ()

    def told_left_out(self) -> str:
        """Return the line about the hosts that were left out."""
        group = (
            f"in the group {GPU_HOSTS}"
            if any(GPU_HOSTS in names for names in self.groups.values())
            else "with hosttune_*"
        )
        return f"note: left out, since not {group}: {some(self.left_out, 10)}; --limit PATTERN (all) names hosts"


def read_inventory(sources: Sequence[str], limit: str | None, vault: Sequence[str] = ()) -> Inventory:
    """Return the hosts of these inventories that match `limit`; without one the GPU hosts (see `chosen`).

    Raises BadInput if a file is missing, cannot be read or is none (a pipe, a device), if a pattern matches no host or
    group, or if no host is left. Does not raise CommandFailed.
    """
    for source in sources:
        _check_source(source)
    given = [word for source in sources for word in ("-i", source)]
    limited = ["--limit", limit] if limit is not None else []
    output = _ask("ansible", ["all", "--list-hosts", *given, *limited, *vault], sources, limit)
    head, _, rest = output.partition("\n")
    match = _COUNT.fullmatch(head)
    lines = rest.splitlines()
    hosts = tuple(line.removeprefix(_INDENT) for line in lines)
    whole = match is not None and len(lines) == int(match[1]) and all(line.startswith(_INDENT) for line in lines)
    strange = next((host for host in hosts if host != host.strip() or not host or host[0] in "!&@"), None)
    if not whole or strange is not None or len(set(hosts)) != len(hosts):
        raise BadInput(
            f"a host's name cannot be used: {(strange or 'one with a line break')[:80]!r}",
            where=", ".join(sources),
            hint="give it a name without spaces at its ends, line breaks, or a leading !, & or @",
        )
    if not hosts:
        raise BadInput("it has no host", where=_sources_text(sources, limit), hint="check for an empty group or file")
    refuse_names(hosts)
    listed = _ask("ansible-inventory", ["--list", *given, *vault], sources, limit)
    groups, variables = groups_of(listed, hosts), variables_of(listed)
    asked = hosts if limit is not None else chosen(hosts, groups, variables, sources)
    if not asked:
        hint = f"put the GPU hosts into a group {GPU_HOSTS}, or name hosts or groups: --limit PATTERN (all: every host)"
        what = f"it has no group {GPU_HOSTS}, and no host has a hosttune_* variable"
        raise BadInput(what, where=_sources_text(sources, limit), hint=hint)
    return Inventory(asked, groups, between_tenants(variables), tuple(host for host in hosts if host not in set(asked)))


def chosen(
    hosts: Sequence[str], groups: Mapping[str, Sequence[str]], variables: Mapping[str, Iterable[str]],
    sources: Sequence[str],
) -> tuple[str, ...]:  # fmt: skip
    """Return the hosts that are meant where no --limit says which.

    Those of the group gpu_hosts; without it those with a hosttune_* variable, and those that `HOST,` names.
    """
    if any(GPU_HOSTS in names for names in groups.values()):
        return tuple(host for host in hosts if GPU_HOSTS in groups.get(host, ()))
    named = {host for source in sources if "," in source for host in source.split(",")}
    ours = {host for host, known in variables.items() if any(name.startswith("hosttune_") for name in known)}
    return tuple(host for host in hosts if host in named or host in ours)


def _check_source(source: str) -> None:
    """Raise BadInput for a path that is not there, or that ansible would wait for or never stop reading."""
    if "," in source:
        return
    if not os.path.exists(source):
        raise BadInput(f"no such inventory: {source}", where="-i", hint="give a file, a directory, or HOST,")
    if not os.path.isfile(source) and not os.path.isdir(source):
        hint = "write it to a file: ansible reads an inventory more than once"
        raise BadInput(f"neither a file nor a directory: {source}", where="-i", hint=hint)


def groups_of(listed: str, hosts: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """Return the groups of each host from the output of `ansible-inventory --list`; empty if it cannot be decoded."""
    try:
        groups = typed_json(listed, dict[str, _AnsibleGroup])
    except BadInput:
        return {}
    found: dict[str, list[str]] = {host: [] for host in hosts}
    for name in groups:
        if name in ("all", "ungrouped", "_meta"):
            continue
        # Ansible refuses cyclic groups; this function also ends if there is a cycle.
        seen: set[str] = set()
        todo = [name]
        members: set[str] = set()
        while todo:
            group = todo.pop()
            if group in seen or group not in groups:
                continue
            seen.add(group)
            members.update(groups[group].hosts)
            todo += groups[group].children
        for host in members:
            if host in found:
                found[host].append(name)
    return {host: tuple(sorted(names)) for host, names in found.items() if names}


def variables_of(listed: str) -> Mapping[str, Mapping[str, msgspec.Raw]]:
    """Return the variables of each host, from `ansible-inventory --list`. Raises BadInput.

    A list that cannot be decoded is refused: hosts that name devices would be taken for hosts that name none.
    """
    try:
        return typed_json(listed, _Listed).meta.hostvars
    except BadInput as error:
        hint = "see ansible-inventory --list"
        raise BadInput(f"its variables cannot be read: {error.what}", where="inventory", hint=hint) from error


def between_tenants(variables: Mapping[str, Mapping[str, msgspec.Raw]]) -> frozenset[str]:
    """Return the hosts with a value of `hosttune_handover`."""
    given = {host: known["hosttune_handover"] for host, known in variables.items() if "hosttune_handover" in known}
    return frozenset(host for host, value in given.items() if msgspec.json.decode(value))


def tool(name: str) -> str:
    """Return the path of an ansible command, in the directory of this Python. Raises BadInput if it is not there."""
    path = os.path.join(os.path.dirname(os.path.abspath(sys.executable)), name)
    if not os.access(path, os.X_OK):
        raise not_installed()
    return path


def not_installed() -> BadInput:
    """Return the error for an installation without the extra `fleet`."""
    hint = "pip install 'hosttune[fleet]' in a virtual environment; or hosttune fleet files, for an Ansible of your own"
    return BadInput("ansible is not installed beside this hosttune", where="hosttune fleet", hint=hint)


def _ask(name: str, arguments: Sequence[str], sources: Sequence[str], limit: str | None) -> str:
    added = {**environment(os.environ, options_in_config(os.environ)), "ANSIBLE_HOST_PATTERN_MISMATCH": "error"}
    given = [f"{variable}={value}" for variable, value in added.items()]
    try:
        return LiveMachine().run(("/usr/bin/env", *given, tool(name), *arguments), timeout=_SECONDS)
    except CommandFailed as error:
        raise BadInput(
            _reason(error, sources), where=_sources_text(sources, limit), hint="correct the inventory, or --limit"
        ) from error


def _sources_text(sources: Sequence[str], limit: str | None) -> str:
    return f"inventory {', '.join(sources)}" + (f", --limit {limit}" if limit is not None else "")


def _reason(error: CommandFailed, sources: Sequence[str]) -> str:
    """Return ansible's error message as one line: its error, the cause, and the place in the file.

    Ansible tries one inventory plugin after another and reports an error for each. The cause is taken from the plugin
    that fits the names of the files.
    """
    output = error.output
    errors = [match[1] for line in output.splitlines() if (match := _ERROR.match(line))] or output.split("\n")[-2:-1]
    causes = dict(_CAUSE.findall(output))
    meant = ("script", "yaml") if all(source.endswith(_YAML) for source in sources) else ("script", "ini", "yaml")
    cause = next((causes[kind] for kind in meant if kind in causes), None)
    origin = _ORIGIN.search(output)
    parts = (errors[-1] if errors else None, cause, f"at {origin[1]}" if origin else None)
    return ": ".join(part for part in parts if part) or error.reason


# --- ansible's environment -------------------------------------------------------------------------------------
# The environment variables that hosttune sets for ansible. The user's own ansible.cfg and variables take precedence.
# A default of hosttune is used only if neither an environment variable nor the ansible.cfg that ansible would read
# sets the option. The rest of the environment is passed on unchanged.

DEFAULT_FORKS = 50

# Variable: (hosttune's value, the options of ansible.cfg that set the same).
# The ssh arguments detect a host that stops answering after one minute (4 × 15 s).
_DEFAULTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "ANSIBLE_FORKS": (str(DEFAULT_FORKS), ("defaults.forks",)),
    "ANSIBLE_PIPELINING": ("True", ("defaults.pipelining", "connection.pipelining", "ssh_connection.pipelining")),
    "ANSIBLE_SSH_ARGS": (
        "-C -o ControlMaster=auto -o ControlPersist=60s -o ServerAliveInterval=15 -o ServerAliveCountMax=4",
        ("ssh_connection.ssh_args",),
    ),
    # ansible-runner disables the check of host keys if the option is not set.
    "ANSIBLE_HOST_KEY_CHECKING": ("True", ("defaults.host_key_checking",)),
}
_FIXED: Mapping[str, str] = {
    "LC_ALL": "C.UTF-8",  # ansible does not start in a locale without UTF-8
    "ANSIBLE_INVENTORY_UNPARSED_FAILED": "True",
    "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "True",
    "ANSIBLE_STDOUT_CALLBACK": "default",  # ansible-runner gets its events from this callback
    "ANSIBLE_NOCOLOR": "True",
    "ANSIBLE_NOCOWS": "True",
    "MAX_EVENT_RES": "8000",  # characters of a result in an event; the complete result is in the host's file
}


def environment(own: Mapping[str, str], options: frozenset[str]) -> dict[str, str]:
    """Return the variables to add to the environment `own` for ansible.

    `options`: the options that its ansible.cfg sets, as "section.key" (see `options_in_config`).
    """
    added = dict(_FIXED)
    for variable, (value, places) in _DEFAULTS.items():
        if variable not in own and not options.intersection(places):
            added[variable] = value
    folder = os.path.dirname(os.path.abspath(sys.executable))
    added["PATH"] = os.pathsep.join([folder, own.get("PATH", os.defpath)])
    if "defaults.host_key_checking" in options and "ANSIBLE_HOST_KEY_CHECKING" not in own:
        added["ANSIBLE_HOST_KEY_CHECKING"] = _config(own)["defaults"]["host_key_checking"]
    return added


def options_in_config(own: Mapping[str, str]) -> frozenset[str]:
    """Return the options, as "section.key", that are set in the ansible.cfg that ansible would read here.

    Empty if there is no such file.
    """
    config = _config(own)
    return frozenset(f"{section}.{key}" for section in config.sections() for key in config[section])


def _config(own: Mapping[str, str]) -> configparser.ConfigParser:
    """Return the parsed ansible.cfg; empty if there is none, or if it is invalid (ansible reports that itself)."""
    config = configparser.ConfigParser(strict=False, interpolation=None, inline_comment_prefixes=(";",))
    path = config_path(own)
    if path is None:
        return config
    try:
        config.read_string(load(path, what="an ansible.cfg").decode("utf-8", "replace"))
    except (BadInput, configparser.Error):
        return configparser.ConfigParser()
    return config


def config_path(own: Mapping[str, str]) -> str | None:
    """Return the path of the ansible.cfg that ansible uses, or None.

    The first that exists of $ANSIBLE_CONFIG, the current directory, ~/.ansible.cfg and /etc/ansible (ansible's docs,
    "Ansible Configuration Settings"). The current directory is skipped if it is world-writable.
    """
    named = own.get("ANSIBLE_CONFIG")
    places = [named and (os.path.join(named, "ansible.cfg") if os.path.isdir(named) else named)]
    if not os.stat(".").st_mode & stat.S_IWOTH:
        places.append(os.path.abspath("ansible.cfg"))
    places += [os.path.expanduser("~/.ansible.cfg"), "/etc/ansible/ansible.cfg"]
    return next((place for place in places if place and os.path.isfile(place)), None)
