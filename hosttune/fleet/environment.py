"""The environment variables that hosttune sets for ansible. The user's own ansible.cfg and variables take precedence.

A default of hosttune is used only if neither an environment variable nor the ansible.cfg that ansible would read sets
the option. The rest of the environment is passed on unchanged.
"""

from __future__ import annotations

import configparser
import os
import stat
import sys
from collections.abc import Mapping

from hosttune.errors import BadInput
from hosttune.journal.state import load

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
