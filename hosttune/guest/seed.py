"""The NoCloud seed: meta-data and user-data that copy the bundle into a guest and install it.

Source: cloud-init, "NoCloud" (a filesystem labelled cidata with the files meta-data and user-data), "Instance ID".
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from hosttune.guest.bundle import EXECUTABLE, INSTALL

VOLUME = "cidata"
FOLDER = "/usr/local/share/hosttune-guest"  # the bundle's folder inside the guest
_HASH_DIGITS = 16


def meta_data(name: str, uuid: str | None, user: str, *, hostname: bool = False) -> str:
    """Return the meta-data. The instance id is the guest's UUID (or its name) and a hash of its user-data.

    `hostname`: the guest gets its name as host name.

    cloud-init runs its once-per-instance modules again when the id changes. So a changed seed is installed, and an
    unchanged seed is not installed again.
    """
    digest = hashlib.sha256(user.encode()).hexdigest()[:_HASH_DIGITS]
    host = {"local-hostname": name.replace("_", "-")} if hostname else {}
    return _yaml({"instance-id": f"hosttune-{(uuid or name).lower()}-{digest}", **host})


def user_data(bundle: Mapping[str, str], user: str | None = None, keys: Sequence[str] = ()) -> str:
    """Return a #cloud-config that writes the bundle and runs its installer. PyYAML quotes the values.

    `ssh_deletekeys: false`: the guest must keep its SSH host keys when its instance id changes (cloud-init, cc_ssh).
    `user`: whom `keys` let in, as any user by sudo; None: the image's own user. Without keys nobody.
    """
    return _config(bundle, [["sh", f"{FOLDER}/{INSTALL}"]], _login(user, keys) if keys else None)


def _login(user: str | None, keys: Sequence[str]) -> dict[str, Any]:
    """Return what lets a user in. Source: cloud-init, "Users and Groups" and "SSH"; passwords stay locked."""
    if user is None:
        return {"ssh_authorized_keys": [*keys]}
    sudo = "ALL=(ALL) NOPASSWD:ALL"
    return {"users": [{"name": user, "shell": "/bin/bash", "sudo": sudo, "ssh_authorized_keys": [*keys]}]}


def asking_user_data(bundle: Mapping[str, str], order: str, refusal: str, channel: str) -> str:
    """Return the user-data of a test guest: as `user_data`, then hosttune in the guest answers an order on a channel.

    `refusal`: what is said on the channel (the name of a virtio-serial port) if hosttune there fails. No value becomes
    part of a command but the channel, a constant.
    """
    files = {**bundle, "order.json": order, "refusal.json": refusal}
    answer = f"{FOLDER}/answer.json"
    command = (
        f"hosttune handover inside {FOLDER}/order.json >{answer} || cp {FOLDER}/refusal.json {answer};"
        f" cat {answer} >/dev/virtio-ports/{channel}"
    )
    return _config(files, [["sh", f"{FOLDER}/{INSTALL}"], ["sh", "-c", command]])


def _config(texts: Mapping[str, str], commands: list[list[str]], login: Mapping[str, Any] | None = None) -> str:
    files = [
        {
            "path": f"{FOLDER}/{name}",
            "owner": "root:root",
            "permissions": "0755" if name in EXECUTABLE else "0644",
            "content": text,
        }
        for name, text in texts.items()
    ]
    document = {**(login or {}), "ssh_deletekeys": False, "write_files": files, "runcmd": commands}
    return f"#cloud-config\n{_yaml(document)}"


def _yaml(document: object) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        """PyYAML's safe dumper, with texts of several lines in block style, which people can read."""

    def represent(dumper: Any, text: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Dumper.add_representer(str, represent)
    dumped: str = yaml.dump(document, Dumper=Dumper, sort_keys=False, width=10_000)
    return dumped
