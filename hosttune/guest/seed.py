"""The NoCloud seed: meta-data and user-data that put the bundle into a guest and install it.

Source: cloud-init, "NoCloud" (a filesystem labelled cidata with the files meta-data and user-data), "Instance ID".
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from hosttune.guest.bundle import EXECUTABLE, INSTALL

VOLUME = "cidata"
FOLDER = "/usr/local/share/hosttune-guest"  # where the bundle lies inside the guest
_HASH_DIGITS = 16


def meta_data(name: str, uuid: str | None, user: str) -> str:
    """The guest's instance id: its UUID (its name where it has none) and a hash of what it is to do.

    cloud-init runs its once-per-instance modules again when the id changes: so a changed seed is carried out, and
    an unchanged one is not.
    """
    digest = hashlib.sha256(user.encode()).hexdigest()[:_HASH_DIGITS]
    return _yaml({"instance-id": f"hosttune-{(uuid or name).lower()}-{digest}"})


def user_data(bundle: Mapping[str, str]) -> str:
    """A #cloud-config that writes the bundle and runs its installer; the values are quoted by PyYAML.

    `ssh_deletekeys: false`: a new instance id must not cost the guest its host keys (cloud-init, cc_ssh).
    """
    files = [
        {
            "path": f"{FOLDER}/{name}",
            "owner": "root:root",
            "permissions": "0755" if name in EXECUTABLE else "0644",
            "content": text,
        }
        for name, text in bundle.items()
    ]
    document = {"ssh_deletekeys": False, "write_files": files, "runcmd": [["sh", f"{FOLDER}/{INSTALL}"]]}
    return f"#cloud-config\n{_yaml(document)}"


def _yaml(document: object) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        """The safe dumper with text of several lines in block style, which people can read."""

    def represent(dumper: Any, text: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Dumper.add_representer(str, represent)
    dumped: str = yaml.dump(document, Dumper=Dumper, sort_keys=False, width=10_000)
    return dumped
