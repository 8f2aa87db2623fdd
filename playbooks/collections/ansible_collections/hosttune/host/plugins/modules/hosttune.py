#!/usr/bin/python
"""One phase of hosttune on one host: the installed command is run once, its document comes back as it was printed.

The controller's half is the action plugin of the same name, which reads variables, judges and stores answers. This half
runs on the host with whatever Python that has (3.8 or newer), without hosttune's own packages. It is what Ansible calls
a jsonargs module: plain source through the interpreter's standard input. AnsibleModule would cost each host-phase five
times as much CPU (`make bench-fleet`), and bring nothing: the action plugin has checked every option.
"""

# Copyright: hosttune's authors. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import base64
import contextlib
import errno
import glob
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time

DOCUMENTATION = r"""
module: hosttune
short_description: One phase of hosttune on a host, in one remote execution
description:
  - Runs the installed C(hosttune) command once, as a list of arguments and never through a shell, and stores the
    document that it prints as RESULTS/HOST/RECORD.json on the controller, with an extra key C(fleet) for the
    outcome of the phase.
  - An answer that is missing, empty or incomplete is C(unknown), never C(ok). A file is written then, too; while a
    host is being asked, its file already says C(unknown).
  - Every option but O(phase), O(answer) and O(rescue) defaults to the variable C(hosttune_) and its name. These
    variables are read literally. A C({{ name }}) that contains only a variable's name is replaced by its value.
    Outside an intent, expressions without side effects are evaluated too (C({{ inventory_dir | dirname }}), C(default),
    see docs/playbooks.md); any other template there is an error of that host, and inside an intent plain text, unless
    C(hosttune_templates) is true. Options given in a task are templated by Ansible as usual.
version_added: "0.1.0"
author: hosttune's authors (@hosttune)
options:
  phase:
    description:
      - What to do. V(discover) and V(status) read; V(plan) decides and saves the plan; V(apply) makes the host match
        its intent; V(revert) restores the original values; V(recover) rolls back an interrupted apply or
        revert; V(validate) checks and measures; V(handover) is a validation for the next tenant, at level 2;
        V(pairs) lists the host's ports, or measures its ends of O(job); V(collective) lists what the host has for
        collectives, or takes part in the one of O(job).
      - For a hand-over of named devices, V(course) carries it out, and stores what the host states as
        RESULTS/HOST/statement.json; V(sign) signs that file on the controller, without asking the host; V(verify)
        verifies it on the host, and keeps it there.
      - V(report) asks no host. It says how the hosts of the play fared in the phase of O(record), which is worst and
        why, and writes RESULTS/RECORD.html.
    type: str
    required: true
    choices:
      - discover
      - plan
      - apply
      - status
      - validate
      - handover
      - revert
      - recover
      - pairs
      - collective
      - course
      - sign
      - verify
      - report
  command:
    description:
      - The command on the host, a path or name, or a list whose further items are arguments. Without it,
        C(/opt/hosttune/bin/hosttune) where that exists (playbooks/bootstrap.yml puts it there), else C(hosttune)
        beside the interpreter or on PATH.
    type: raw
  root:
    description: Work on this captured host instead of the machine, a directory or tar on the host (C(--root)).
    type: str
  intent:
    description:
      - What is wanted of the host, a mapping or the path of a YAML or JSON file on the controller (also one that
        ansible-vault has encrypted). Needed by V(plan); without it V(apply) takes the plan that is saved. Of a mapping,
        V(validate) compares the RoCE ports with its C(fabric).
    type: raw
  level:
    description: Level of validation, 0 checklist to 3 burn-in. Default 0, for V(handover) 2. Always 0 in check mode.
    type: int
    choices: [0, 1, 2, 3]
  against:
    description: Compare the validation with this earlier record of the host, such as V(before).
    type: str
  gate:
    description:
      - What makes a validation C(no). V(verdict) is a verdict of fail or unknown, V(worse) anything that is worse
        than in O(against), V(either) both. Default V(either) where O(against) is given, else V(verdict).
    type: str
    choices: [verdict, worse, either]
  accept:
    description:
      - Results that somebody answers for, a list of C(check), C(subject), C(by), C(why) and C(until), all needed.
        An unknown or a warning in it does not move the verdict of V(validate) through that day. A hand-over takes none.
    type: raw
  floors:
    description: The fleet's own floors, TOML on the controller (C(hosttune fleet floors) writes it). From level 1 on.
    type: path
  timeout:
    description:
      - Seconds that the command may take. After that it is stopped (a transaction is then rolled back), and
        the outcome is C(slow). Default 300; 3600 to apply, revert and recover; 1800, 7200 and 14400 for
        levels 1, 2 and 3; 43200 for a hand-over of named devices, and 174600 more for each drive of I(erase) (561600
        at most). A hand-over that is stopped leaves what was not returned quarantined.
    type: float
  version:
    description:
      - The hosttune version that hosts must have, read from the installed package before the command is run and from
        its document after. Default that of the hosttune installed with the controller's Ansible, if there is one.
    type: str
  start:
    description: V(apply) starts the guests as well (C(--start)).
    type: bool
    default: false
  prune:
    description: Take away the guests and settings in force that came from an intent and that O(intent) does not name.
    type: bool
    default: false
  no_guests:
    description: V(apply) leaves guests alone (C(--no-guests)).
    type: bool
    default: false
  disrupt:
    description:
      - GPUs that V(apply) may reset, and running guests that it may redefine, by name (C(--disrupt)).
    type: list
    elements: str
    default: []
  handover:
    description: For V(course), the devices (addresses) that are handed over, and at most one stopped guest, by name.
    type: list
    elements: str
    default: []
  erase:
    description: For V(course), serial numbers of the drives that may be erased, each alone or as ADDRESS=SERIAL.
    type: list
    elements: str
    default: []
  to_vfio:
    description: V(course) returns the devices to vfio-pci, whichever driver they were on (C(--to-vfio)).
    type: bool
    default: false
  test_guest:
    description: For V(course), the image on the host whose guests test GPUs that no driver there can take.
    type: path
  key:
    description: For V(sign), the SSH key on the controller, or its public half if ssh-agent has it.
    type: path
  expires:
    description: For V(sign), how long the statement is valid, as C(24h). Default 24h.
    type: str
  signers:
    description: For V(verify), the file of allowed signers on the controller.
    type: path
  identity:
    description: For V(verify), the name of the signer in that file.
    type: str
  revoked:
    description: For V(verify), revoked keys, on the controller.
    type: path
  controller_command:
    description: For V(sign), the hosttune of the controller. Default the one beside Ansible's interpreter, or on PATH.
    type: path
  force:
    description: V(revert) and V(recover) also revert settings that something else has changed since (C(--force)).
    type: bool
    default: false
  results:
    description:
      - The folder on the controller that answers are stored in. Default C(hosttune-results) in the working directory;
        with the C(ansible) command nothing is stored unless this is given.
    type: path
  record:
    description: Name of the stored answer. Default the phase. In check mode C(.check) is added.
    type: str
  run:
    description: Name of the run, so that an old answer is never used for a new one. Default start time and process.
    type: str
  keep:
    description: Return the parsed document as well. Always so where nothing is stored.
    type: bool
    default: false
  rescue:
    description: An unreachable host fails the task, so that a C(rescue) section can take it.
    type: bool
    default: false
  answer:
    description:
      - Do not ask the host; store this answer for it, a mapping of C(outcome) and C(why). For playbooks that decide
        against asking.
    type: dict
  job:
    description:
      - For V(pairs) and V(collective), what the host is to do, as C(hosttune fleet pairs) and C(hosttune fleet
        collective) write it. In check mode only a list.
    type: dict
  carried:
    description: Texts from the action plugin. Not for playbooks.
    type: dict
    default: {}
attributes:
  check_mode:
    description: >-
      Nothing is written on the host. V(apply) and V(course) are dry runs; V(revert), V(recover) and V(validate) only
      read.
    support: full
  diff_mode:
    description: What V(plan) would change and V(apply) changes or would change, setting by setting.
    support: full
notes:
  - One remote execution per call, with pipelining (C(ansible_pipelining=true); hosttune's playbooks set it). The
    interpreter is C(/usr/bin/python3) unless the inventory names one; discovering one would be a second execution.
  - Intents and validations to compare with go through standard input and memory, never through a file on the host.
  - Nothing of the call is logged on the host.
  - The playbooks' variables, hooks, waves and reboots are in docs/playbooks.md.
"""

EXAMPLES = r"""
- name: Discover and validate the host
  hosttune.host.hosttune:
    phase: "{{ item }}"
    results: /srv/fleet/results
  loop: [discover, validate]

- name: Show what an intent would change (ansible-playbook --check --diff)
  hosttune.host.hosttune:
    phase: apply
    intent: "{{ inventory_dir }}/../intents/h200.yml"

- name: Nothing may be worse than before
  hosttune.host.hosttune:
    phase: validate
    level: 1
    against: before
    gate: worse

# ansible all -i inventories/lab-2 --playbook-dir playbooks -m hosttune.host.hosttune -a phase=status
"""

RETURN = r"""
outcome:
  description:
    - C(ok), the command's document is whole and it exited 0; C(no) (exit 1), C(bad-input) (2), C(refused) (3),
      C(needs-person) (4), C(internal) (70); C(unreachable), C(slow), C(died), C(disk-full), C(wrong-version),
      C(not-installed), or C(unknown) where none of these is known. Whatever is not C(ok) fails the task.
  type: str
  returned: always
why:
  description: The reason in one line, if the outcome is not ok.
  type: str
  returned: always
  sample: "GPU 0000:41:00.0 is held by guest train (0000:41:00.0)"
exit_code:
  description: The command's exit code, null where it gave none.
  type: int
  returned: always
seconds:
  description: How long the command took.
  type: float
  returned: always
verdict:
  description: Of a validation, pass, warn, fail or unknown.
  type: str
  returned: phases validate and handover
  sample: "warn"
reboot_required:
  description: Whether what was applied waits for a reboot.
  type: bool
  returned: phases apply, status, revert and recover
  sample: false
quarantined:
  description: Addresses of the devices between two tenants, "host" where that is unknown. Null without a document.
  type: list
  elements: str
  returned: phase validate
running_guests:
  description: Names of the guests that are not shut off. Null where that is unknown.
  type: list
  elements: str
  returned: phase discover
  sample: ["train"]
file:
  description: Where the answer is stored on the controller.
  type: str
  returned: where answers are stored
  sample: "hosttune-results/gpu-01/apply.json"
document:
  description: The command's document, see C(hosttune schema).
  type: dict
  returned: with O(keep), or where nothing is stored
"""

INSTALLED = "/opt/hosttune/bin/hosttune"
STATE = "var/lib/hosttune"
DOCUMENT_BYTES = 64 << 20
STDERR_BYTES = 16 << 10
GRACE_SECONDS = 30.0  # for a transaction to take itself back when its time is over
FULL = (errno.ENOSPC, errno.EDQUOT)
UNSAID = {
    **dict.fromkeys(("command", "root", "level", "gate", "timeout", "version")),
    **{"start": False, "no_guests": False, "prune": False, "force": False, "disrupt": [], "carried": {}, "words": []},
}


class NoAnswer(Exception):
    """The command gave nothing to judge: the outcome's word, and why."""

    def __init__(self, outcome: str, why: str) -> None:
        super().__init__(why)
        self.outcome = outcome


def installed(command: list[str] | None, wanted: str | None) -> list[str]:
    """The command as arguments, its program as a path. Raises NoAnswer where there is none or another version."""
    beside = os.path.join(os.path.dirname(sys.executable or ""), "hosttune")
    words = list(command or [next(filter(os.path.exists, (INSTALLED, beside)), "hosttune")])
    path = os.environ.get("PATH", os.defpath) + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    found = None if "\0" in words[0] else shutil.which(words[0], path=path)
    if found is None:
        raise NoAnswer(
            "not-installed", f"no command {words[0]} on this host; playbooks/bootstrap.yml installs hosttune"
        )
    version = package_version(found)
    if wanted and version and version != wanted:
        raise NoAnswer("wrong-version", f"hosttune {version} is installed, and {wanted} is required")
    return [found, *words[1:]]


def package_version(program: str) -> str | None:
    """The version of the hosttune package that a console script belongs to, None where that cannot be told."""
    try:
        with open(os.path.realpath(program), "rb") as script:
            python = re.search(rb"(/[^\s'\"]*)/bin/python", script.read(1024))
    except OSError:
        return None  # the command itself will say what is wrong with it
    if python is None:
        return None
    prefix = glob.escape(os.fsdecode(python[1]))
    found = glob.glob(f"{prefix}/lib*/python3*/site-packages/hosttune-*.dist-info")
    versions = {os.path.basename(path)[len("hosttune-") : -len(".dist-info")] for path in found}
    return versions.pop() if len(versions) == 1 else None


def in_memory(text: str, stack: contextlib.ExitStack) -> tuple[str, int]:
    """(path that the command opens, descriptor to pass on) of a text that stands on no disk."""
    fd = os.memfd_create("hosttune")
    stack.callback(os.close, fd)
    data = text.encode("utf-8")
    while data:
        data = data[os.write(fd, data) :]
    return f"/proc/self/fd/{fd}", fd


def plan_place(asked: dict, check: bool, stack: contextlib.ExitStack) -> str | None:
    """Where the plan goes, None for the command's own place or none. In check mode a folder that is then removed."""
    root = asked["root"]
    scratch = root is not None and os.path.exists(os.path.join(root, ".hosttune", "scratch"))
    if root is not None and not scratch:
        return None
    folder = os.path.join(root, STATE) if scratch else os.environ.get("HOSTTUNE_STATE") or home_of_state()
    kept = os.path.join(folder, "plan.json")
    if check:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hosttune-"))
        if os.path.isfile(kept) and os.access(kept, os.R_OK):
            shutil.copyfile(kept, os.path.join(folder, "plan.json"))  # so that the command can tell a plan from it
        return os.path.join(folder, "plan.json")
    if not scratch:
        return None
    inside = os.path.realpath(root)
    if os.path.commonpath([inside, os.path.realpath(folder)]) != inside:
        raise NoAnswer("refused", f"{folder} leads out of the scratch root")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return kept


def home_of_state() -> str:
    """Where hosttune keeps its state without HOSTTUNE_STATE."""
    if os.geteuid() == 0:
        return "/var/lib/hosttune"
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(base, "hosttune")


def words_of(asked: dict, check: bool, stack: contextlib.ExitStack) -> tuple[list[str], str | None, list[int]]:
    """(arguments, standard input, descriptors to pass on) of a phase."""
    phase, carried = asked["phase"], asked["carried"]
    text, fds = None, []
    if phase in ("validate", "handover"):
        words = ["validate", "--level", str(0 if check else asked["level"] or 0)]
        files = ("--against", "against"), ("--expect", "expect"), ("--fleet", "floors"), ("--accepted", "accept")
        for option, name in files:
            if carried.get(name) is not None and (name != "floors" or words[-1] != "0"):
                path, fd = in_memory(carried[name], stack)
                words[1:1] = [option, path]
                fds.append(fd)
        words += ["--gate", asked["gate"]] if asked["gate"] else []
    elif phase == "plan":
        words, text = ["plan", "-f", "-"], carried.get("intent", "")
        place = plan_place(asked, check, stack)
        words += ["--out", place] if place else []
        words += ["--prune"] * asked["prune"]
    elif phase == "apply":
        text = carried.get("intent")
        words = ["apply", *(["--intent", "-"] if text is not None else []), "--dry-run" if check else "--yes"]
        words += ["--start"] * asked["start"] + ["--no-guests"] * asked["no_guests"]
        words += ["--prune"] * (asked["prune"] and text is not None)  # a saved plan knows itself
        words += [word for name in asked["disrupt"] for word in ("--disrupt", name)]
    elif phase in ("pairs", "collective"):
        words, text = [phase, "-f", "-"], "{}" if check else carried.get("job", "{}")
    elif phase == "course":
        words = ["handover", *asked["words"], *(["--dry-run"] if check else ["--yes"])]
    elif phase == "verify":
        words = verify_words(carried, check, stack)
    elif phase == "revert" and not check:
        words = ["revert", "--yes"] + ["--force"] * asked["force"]
    elif phase == "recover" and not check:
        words = ["recover"] + ["--force"] * asked["force"]
        words += [word for name in asked["disrupt"] for word in ("--disrupt", name)]
    else:
        words = ["status" if phase in ("revert", "recover") else phase]
    words += ["--root", asked["root"]] if asked["root"] is not None else []
    return [*words, "-o", "json"], text, fds


def verify_words(carried: dict, check: bool, stack: contextlib.ExitStack) -> list[str]:
    """The arguments that verify a statement. Signature and statement lie in a folder that is then removed."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hosttune-"))
    names = {"statement": "statement.json", "signature": "statement.json.sig", "signers": "signers", "revoked": "krl"}
    paths = {name: os.path.join(folder, file) for name, file in names.items() if carried.get(name) is not None}
    for name, path in paths.items():
        with open(path, "wb") as file:
            file.write(base64.b64decode(carried[name]))
    words = ["handover", "verify", paths["statement"], "--signers", paths["signers"], "--identity", carried["identity"]]
    return words + (["--revoked", paths["revoked"]] if "revoked" in paths else []) + ["--keep"] * (not check)


def ended(asked: dict, check: bool) -> dict:
    """How the phase's command ended, for the controller to judge; where it did not end, `outcome` and `why`."""
    began = time.monotonic()
    try:
        with contextlib.ExitStack() as stack:
            command = installed(asked["command"], asked["version"])
            words, text, fds = words_of(asked, check, stack)
            code, out, err = run([*command, *words], text, fds, asked["timeout"] or 300.0)
        found = {"exit_code": code, "out": out.decode("utf-8"), "err": err.decode("utf-8", "replace")}
    except UnicodeDecodeError:
        found = {"outcome": "unknown", "why": "the document is not UTF-8", "exit_code": code}
    except NoAnswer as stop:
        found = {"outcome": stop.outcome, "why": str(stop)}
    except OSError as error:
        found = {"outcome": "disk-full" if error.errno in FULL else "unknown", "why": str(error)}
    return {**found, "changed": False, "seconds": round(time.monotonic() - began, 3)}


def run(argv: list[str], text: str | None, fds: list[int], seconds: float) -> tuple[int, bytes, bytes]:
    """(exit code, negative for a signal; standard output; the end of standard error). Raises NoAnswer."""
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL if text is None else subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, pass_fds=fds, start_new_session=True, close_fds=True,
            env={**os.environ, "HOSTTUNE_VIA": "ansible"},
        )  # fmt: skip
    except (OSError, ValueError) as error:
        word = "disk-full" if getattr(error, "errno", None) in FULL else "not-installed"
        raise NoAnswer(word, f"{argv[0]} does not start: {error}") from error
    with process:
        out, err, over = talk(process, (text or "").encode("utf-8"), seconds)
        if over:
            end(process)
            raise NoAnswer(*over)
        return process.wait(), out, err[-STDERR_BYTES:]


def talk(process: subprocess.Popen, data: bytes, seconds: float) -> tuple[bytes, bytes, tuple[str, str] | None]:
    """(output, errors, why it is no answer) of a process that is fed and heard until it ends or its time is over."""
    heard = {process.stdout: bytearray(), process.stderr: bytearray()}
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for stream in heard:
            selector.register(stream, selectors.EVENT_READ)
        if process.stdin:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
        while any(stream in heard for stream in (key.fileobj for key in selector.get_map().values())):
            ready = selector.select(0.5)
            for key, _ in ready:
                if key.fileobj is process.stdin:
                    data = feed(selector, process, data)
                    continue
                chunk = os.read(key.fd, 1 << 16)
                heard[key.fileobj] += chunk
                if not chunk:
                    selector.unregister(key.fileobj)
            if len(heard[process.stdout]) > DOCUMENT_BYTES:
                return b"", b"", ("unknown", f"more than {DOCUMENT_BYTES >> 20} MiB on standard output")
            del heard[process.stderr][: -2 * STDERR_BYTES]
            if not ready and process.poll() is not None:
                break  # it has ended; what it left behind still holds its output
            if time.monotonic() > deadline:
                return b"", b"", ("slow", f"no answer within {seconds:g} s")
    return bytes(heard[process.stdout]), bytes(heard[process.stderr]), None


def feed(selector: selectors.BaseSelector, process: subprocess.Popen, data: bytes) -> bytes:
    """Write what the pipe takes; what is left. The pipe is closed at the end, or where nobody reads it."""
    try:
        data = data[os.write(process.stdin.fileno(), data[: 1 << 16]) :]
    except BlockingIOError:
        return data
    except BrokenPipeError:
        data = b""
    if not data:
        selector.unregister(process.stdin)
        process.stdin.close()
    return data


def end(process: subprocess.Popen) -> None:
    """Ask a command and its children to end, then make them. A write stuck in the kernel outlives even that."""
    for sent, patience in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sent)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream:
            with contextlib.suppress(BrokenPipeError):
                stream.close()
    process.returncode = process.returncode or -signal.SIGKILL  # so that leaving `with` does not wait for it


def main() -> None:
    """Entry point. Ansible puts the arguments in as JSON, whose text cannot end a raw string of three quotes: there
    a quote within a value has a backslash before it, and three bare ones never stand side by side."""
    given = json.loads(r"""<<INCLUDE_ANSIBLE_MODULE_JSON_ARGS>>""")
    print(json.dumps(ended({**UNSAID, **given}, bool(given.get("_ansible_check_mode")))))


if __name__ == "__main__":
    main()
