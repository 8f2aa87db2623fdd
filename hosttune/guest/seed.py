"""The NoCloud seed: meta-data and user-data that put the bundle into a guest and install it, and their image.

Source: cloud-init, "NoCloud" (a filesystem labelled cidata with the files meta-data and user-data), "Instance ID".
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hosttune.guest.iso import without_dates

if TYPE_CHECKING:
    from hosttune.guest.bundle import GuestFiles

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
    from hosttune.guest.bundle import EXECUTABLE, INSTALL

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


def seed_image(files: GuestFiles) -> bytes:
    """The seed as an ISO 9660 image labelled `cidata`, with Rock Ridge and Joliet names; same files, same bytes.

    The dates in it are constant: a plan holds none.
    """
    import pycdlib

    image = pycdlib.PyCdlib()
    image.new(interchange_level=3, vol_ident=VOLUME, joliet=3, rock_ridge="1.09")
    texts = {"meta-data": files.meta_data, "user-data": files.user_data}
    for name, text in texts.items():
        data = text.encode()
        plain = f"/{name.replace('-', '_').upper()}.;1"
        image.add_fp(io.BytesIO(data), len(data), plain, rr_name=name, joliet_path=f"/{name}", file_mode=0o100444)
    out = io.BytesIO()
    image.write_fp(out)
    image.close()
    return without_dates(out.getvalue())


def write_plan(files: GuestFiles) -> Mapping[str, bytes]:
    """Every file of a guest by its path relative to the guest's own folder: the seed, its two texts, the bundle.

    Whole files, for the applier to write; the paths are constant.
    """
    bundle = {f"bundle/{name}": text.encode() for name, text in files.bundle.items()}
    texts = {"meta-data": files.meta_data.encode(), "user-data": files.user_data.encode()}
    return {"seed.iso": seed_image(files), **texts, **bundle}
