#!/usr/bin/python
"""Ansible module: hosttune from an archive of the wheelhouse into a folder of its own, without a package index.

It runs under the host's own /usr/bin/python3, which may be older than what hosttune needs (3.9 on RHEL 9), so it
keeps to that language; the environment is made by, and for, the Python that `bootstrap_python` found.
"""

# Copyright: hosttune's authors. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import re
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: bootstrap_hosttune
short_description: Install hosttune offline, once a version
description:
  - Makes a virtual environment in a temporary folder without C(ensurepip), has pip install from its own wheel with
    every hash checked, tries what came of it, and only then renames it to O(prefix)/HASH and points
    O(prefix)/bin/hosttune to it.
  - HASH is the beginning of O(sha256). A version that is there and works is not made again; where the archive is
    needed and O(archive) is left out, nothing is installed and C(needs) is true.
  - What a run that was cut off has left in O(prefix) is taken away by the next one. Older versions are for
    C(bootstrap_prune).
options:
  prefix:
    description: Where versions and the link lie. Made where it is absent; must belong to the user who runs this.
    type: path
    default: /opt/hosttune
  sha256:
    description: SHA-256 of the archive, from the C(index.json) of the wheelhouse.
    type: str
    required: true
  version:
    description: The version that the installed C(hosttune --version) has to name.
    type: str
    required: true
  python:
    description: Path of the interpreter to run on, as C(bootstrap_python) gives it.
    type: path
    required: true
  libvirt:
    description: The files of the distribution's libvirt binding for this Python; hosttune sees these and no others.
    type: list
    elements: path
    default: []
  archive:
    description: The archive on the host. It is taken away when its version is there.
    type: path
  limit_seconds:
    description: The time that each command may take.
    type: int
    default: 300
attributes:
  check_mode:
    support: full
    description: Says whether it would install or switch; writes nothing.
version_added: "0.1.0"
author: hosttune's authors (@hosttune)
"""

EXAMPLES = r"""
- name: Is the version of this wheelhouse there, and in use
  hosttune.host.bootstrap_hosttune:
    sha256: "{{ hosttune_index.archives[hosttune_python.tag].sha256 }}"
    version: "{{ hosttune_index.version }}"
    python: "{{ hosttune_python.python }}"
  register: hosttune_found
"""

RETURN = r"""
needs:
  description: Whether the archive has to be brought, to C(incoming).
  returned: success
  type: bool
incoming:
  description: Where on the host the archive is to be put.
  returned: success
  type: str
home:
  description: Folder of the version.
  returned: success
  type: str
command:
  description: The link that everybody calls.
  returned: success
  type: str
"""

SEARCHED = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# A shebang takes no blank and, before Linux 5.1, 127 bytes in all; systemd's own characters are kept out as well.
PREFIX = re.compile(r"(/[A-Za-z0-9_+-][A-Za-z0-9_.+-]*)+")
LONGEST_PREFIX = 90
MEMBER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
BINDING = re.compile(r"libvirt\.py|libvirtmod\.[A-Za-z0-9_.-]+\.so")  # of libvirt-python; the rest of it is not used
LEFTOVERS = (".new-", ".old-", ".incoming-")

# As ensurepip does it: pip from its wheel, which is a zip that Python imports from.
PIP = "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); runpy.run_module('pip', run_name='__main__')"
# `--version` loads next to nothing: the compiled libraries are what a file system or a wrong wheel would stop.
LOADS = "import jinja2, lxml.etree, markupsafe, msgspec, yaml"


class Refused(Exception):
    """What cannot be done here, and what to do about it: the task's message."""


@dataclasses.dataclass(frozen=True)
class Ask:
    """The module's options, named as there."""

    prefix: str
    sha256: str
    version: str
    python: str
    libvirt: list[str]
    archive: str | None
    limit_seconds: int

    @property
    def home(self) -> str:
        """Where the version lives."""
        return os.path.join(self.prefix, self.sha256[:16])

    @property
    def link(self) -> str:
        """The command that everybody calls."""
        return os.path.join(self.prefix, "bin", "hosttune")

    @property
    def target(self) -> str:
        """What that link says when it leads to this version."""
        return f"../{self.sha256[:16]}/bin/hosttune"


# --- the folder -----------------------------------------------------------------------------------------------------


def check_ask(ask: Ask) -> None:
    """Raises Refused for a hash that is none, a path that cannot stand in a script, a folder that others may write."""
    if not re.fullmatch(r"[0-9a-f]{64}", ask.sha256):
        raise Refused(f"{ask.sha256!r} is not a SHA-256: make the wheelhouse again")
    prefix = ask.prefix
    if not PREFIX.fullmatch(prefix) or len(prefix) > LONGEST_PREFIX:
        raise Refused(f"{prefix!r} cannot be the prefix: an absolute path of letters, digits and _ . + -, not too long")
    if os.path.lexists(prefix):
        facts = os.stat(prefix)
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
            raise Refused(f"{prefix} is no folder that only its owner, who installs, may write: a command of root's")


@contextlib.contextmanager
def locked(prefix: str) -> Iterator[None]:
    """Only one bootstrap works in the prefix; the kernel lets go when its process ends. Raises Refused."""
    descriptor = os.open(prefix, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise Refused(f"another bootstrap is at work in {prefix}: let it end, then run this again") from None
    try:
        yield
    finally:
        os.close(descriptor)


def clear(ask: Ask) -> None:
    """Take away what earlier runs have left, but not the archive that this one is to use."""
    for name in sorted(os.listdir(ask.prefix)):
        path = os.path.join(ask.prefix, name)
        if path == ask.archive or not name.startswith(LEFTOVERS):
            continue
        if os.path.isdir(path) and not os.path.islink(path):
            discard(ask.prefix, path)
        else:
            os.unlink(path)


def discard(prefix: str, folder: str) -> None:
    """Take a folder away: out of its place at once, then piece by piece."""
    grave = tempfile.mkdtemp(prefix=".old-", dir=prefix)
    os.rename(folder, grave)
    shutil.rmtree(grave)


# --- one version ----------------------------------------------------------------------------------------------------


def command(argv: list[str], ask: Ask, scratch: str, what: str) -> str:
    """Run it with nothing of the caller's environment; its output. Raises Refused with the end of what it said."""
    clean = {"PATH": SEARCHED, "LC_ALL": "C.UTF-8", "HOME": scratch, "TMPDIR": scratch, "PIP_CONFIG_FILE": os.devnull}
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", env=clean, timeout=ask.limit_seconds,
            check=False, cwd="/", stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Refused(f"{what} ({argv[0]}) did not end within {ask.limit_seconds} s") from None
    if done.returncode != 0:
        said = (done.stderr + done.stdout).strip()[-2000:]
        raise Refused(f"{what} ({argv[0]}) ended with {done.returncode}: {said}")
    return done.stdout


def unpack(archive: str, sha256: str, into: str) -> None:
    """The archive's files, after its SHA-256 was found right. Raises Refused for another one, and for odd members."""
    os.mkdir(into)
    with open(archive, "rb") as file:
        digest = hashlib.sha256()
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
        if digest.hexdigest() != sha256:
            raise Refused(
                f"the archive that came has SHA-256 {digest.hexdigest()}, the wheelhouse's index says {sha256}: "
                "nothing was installed; make the wheelhouse again"
            )
        file.seek(0)
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isreg() else None
                if content is None or not MEMBER.fullmatch(member.name):
                    raise Refused(f"the archive holds {member.name!r}, which is not a plain file of a wheelhouse")
                with open(os.path.join(into, member.name), "xb") as out:
                    shutil.copyfileobj(content, out)


def fill(ask: Ask, archive: str, new: str) -> str:
    """A virtual environment under `new` that is to live at `home`, with hosttune and what it needs; its folder."""
    wheels, tree = os.path.join(new, "wheels"), os.path.join(new, "tree")
    unpack(archive, ask.sha256, wheels)
    pips = [name for name in os.listdir(wheels) if name.startswith("pip-") and name.endswith(".whl")]
    if len(pips) != 1:
        raise Refused(f"the archive holds {len(pips)} wheels of pip: make the wheelhouse again")
    own = os.path.join(tree, "bin", "python")
    command([ask.python, "-I", "-m", "venv", "--without-pip", tree], ask, new, "venv")
    command(
        [
            *(own, "-I", "-c", PIP, os.path.join(wheels, pips[0]), "install", "--isolated", "--no-index"),
            *("--find-links", wheels, "--require-hashes", "--no-compile", "--no-cache-dir", "--quiet"),
            *("--disable-pip-version-check", "--root-user-action", "ignore"),
            *("--requirement", os.path.join(wheels, "requirements.txt")),
        ],
        ask,
        new,
        "pip install",
    )
    move_paths(tree, ask.home)
    # Byte code names the files where they will be. It is made now: nobody but the owner may write there later.
    command(
        [own, "-I", "-m", "compileall", "-q", "-s", tree, "-p", ask.home, os.path.join(tree, "lib")],
        ask,
        new,
        "compileall",
    )
    return tree


def move_paths(tree: str, home: str) -> None:
    """Make the environment one that lives at `home`: of its scripts only hosttune's stays. Raises Refused."""
    folder = os.path.join(tree, "bin")
    for name in os.listdir(folder):
        if name != "hosttune" and not name.startswith("python"):
            os.unlink(os.path.join(folder, name))
    script = os.path.join(folder, "hosttune")
    for path in (script, os.path.join(tree, "pyvenv.cfg")):
        with open(path, encoding="utf-8") as file:
            text = file.read()
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace(tree, home))
    with open(script, encoding="utf-8") as file:
        first = file.readline()
    if not first.startswith(f"#!{home}/bin/python"):
        raise Refused(f"pip wrote a script that begins with {first.strip()!r}: make the wheelhouse with another pip")


def prove(ask: Ask, python: str, script: list[str], scratch: str) -> None:
    """Raises Refused unless hosttune there says its version and its compiled libraries load."""
    said = command([*script, "--version"], ask, scratch, "hosttune --version").split()
    if not said or said[-1] != ask.version:
        raise Refused(f"{script[-1]} --version says {' '.join(said)!r}, the wheelhouse has {ask.version}")
    command([python, "-I", "-c", LOADS], ask, scratch, LOADS)


def works(ask: Ask) -> bool:
    """Whether the version is there, and runs."""
    if not os.path.isdir(ask.home):
        return False
    try:
        prove(ask, f"{ask.home}/bin/python", [f"{ask.home}/bin/hosttune"], ask.prefix)
    except (Refused, OSError):
        return False  # it is made anew
    return True


def install(ask: Ask, archive: str) -> None:
    """Make the version and put it in its place: whole, on disk, or not at all. Raises Refused, OSError."""
    new = tempfile.mkdtemp(prefix=".new-", dir=ask.prefix)
    try:
        tree = fill(ask, archive, new)
        own = os.path.join(tree, "bin", "python")
        prove(ask, own, [own, "-I", os.path.join(tree, "bin", "hosttune")], new)
        label(ask, tree, new)
        # A rename that outlives a power cut must not lead to files that did not. This file system only (syncfs(2)):
        # elsewhere guests may have gigabytes to write.
        command([shutil.which("sync", path=SEARCHED) or "sync", "-f", tree], ask, new, "sync")
        if os.path.lexists(ask.home):
            discard(ask.prefix, ask.home)
        os.rename(tree, ask.home)
    finally:
        shutil.rmtree(new, ignore_errors=True)  # what stays is the next run's to clear
    prove(ask, f"{ask.home}/bin/python", [f"{ask.home}/bin/hosttune"], ask.prefix)


def label(ask: Ask, tree: str, scratch: str) -> None:
    """SELinux: the labels that the policy has for these paths (bin_t below /opt/*/bin), where it is in force."""
    tool = shutil.which("restorecon", path=SEARCHED)
    if tool and os.path.isdir("/sys/fs/selinux/booleans"):
        command([tool, "-R", tree], ask, scratch, "restorecon")


# --- in use ----------------------------------------------------------------------------------------------------------


def in_use(ask: Ask) -> bool:
    """Whether the command is this version. Raises Refused where somebody has put something else in its place."""
    if not os.path.lexists(ask.link):
        return False
    if not os.path.islink(ask.link):
        raise Refused(f"{ask.link} is not a link of the bootstrap's: remove it, or choose another hosttune_prefix")
    return os.readlink(ask.link) == ask.target


def switch(ask: Ask) -> None:
    """Point the command to this version: at every moment it is the old one or the new one."""
    os.makedirs(os.path.dirname(ask.link), exist_ok=True)
    fresh = os.path.join(os.path.dirname(ask.link), ".hosttune.new")
    if os.path.lexists(fresh):
        os.unlink(fresh)
    os.symlink(ask.target, fresh)
    os.replace(fresh, ask.link)
    os.utime(ask.home)  # the versions used last are those that stay


def site_of(home: str) -> str:
    """site-packages of a version. Raises Refused where there is not exactly one."""
    library = os.path.join(home, "lib")
    names = [name for name in os.listdir(library) if name.startswith("python3")]
    if len(names) != 1:
        raise Refused(f"{library} is not the library of one Python")
    return os.path.join(library, names[0], "site-packages")


def bind(ask: Ask, check: bool) -> bool:
    """Have hosttune see these two files of the distribution, and none beside them; whether that changes anything."""
    wanted = {os.path.basename(path): path for path in ask.libvirt}
    if wanted and (len(wanted) != 2 or not all(BINDING.fullmatch(name) for name in wanted)):
        raise Refused(f"{' '.join(ask.libvirt)}: a libvirt binding is libvirt.py and one libvirtmod.*.so")
    site = site_of(ask.home)
    paths = [os.path.join(site, name) for name in sorted(os.listdir(site)) if BINDING.fullmatch(name)]
    there = {os.path.basename(path): os.readlink(path) for path in paths if os.path.islink(path)}
    if there == wanted:
        return False
    if not check:
        for name in there:
            os.unlink(os.path.join(site, name))
        for name, path in wanted.items():
            os.symlink(path, os.path.join(site, name))
    return True


# --- all of it ------------------------------------------------------------------------------------------------------


def settle(ask: Ask, check: bool) -> dict[str, object]:
    """Bring the host to this version, as far as it goes without an archive: RETURN. Raises Refused, OSError."""
    check_ask(ask)
    incoming = os.path.join(ask.prefix, f".incoming-{ask.sha256[:16]}.tar")
    result = {"changed": False, "needs": False, "incoming": incoming, "home": ask.home, "command": ask.link}
    there = works(ask)
    if not there and (check or ask.archive is None):
        if not check:
            os.makedirs(ask.prefix, mode=0o755, exist_ok=True)
        return {**result, "needs": True, "changed": check}
    with locked(ask.prefix):
        return {**result, "changed": bring_about(ask, there, check)}


def bring_about(ask: Ask, there: bool, check: bool) -> bool:
    """Install, bind, switch: what of it is still to do; whether anything was. Raises Refused, OSError."""
    switched = not in_use(ask)
    if not check:
        clear(ask)
    if not there and ask.archive is not None:
        install(ask, ask.archive)
    bound = bind(ask, check)
    if switched and not check:
        switch(ask)
    if not check and ask.archive is not None and os.path.lexists(ask.archive):
        os.unlink(ask.archive)
    return bool(not there or bound or switched)


def main() -> None:
    """See DOCUMENTATION."""
    module = AnsibleModule(
        argument_spec={
            "prefix": {"type": "path", "default": "/opt/hosttune"},
            "sha256": {"type": "str", "required": True},
            "version": {"type": "str", "required": True},
            "python": {"type": "path", "required": True},
            "libvirt": {"type": "list", "elements": "path", "default": []},
            "archive": {"type": "path"},
            "limit_seconds": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    os.umask(0o022)
    try:
        result = settle(Ask(**module.params), module.check_mode)
    except (Refused, OSError, tarfile.TarError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
