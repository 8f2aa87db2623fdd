#!/usr/bin/python
"""One phase of hosttune on one host: the installed command is run once, its document comes back as it was printed.

The controller's half is the action plugin of the same name, which reads variables and stores answers. This half runs
on the host with whatever Python that has (3.8 or newer), without hosttune's own packages.
"""

# Copyright: hosttune's authors. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import shutil
import tempfile
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.hosttune_answer import FULL, NoAnswer, difference, judged
from ansible.module_utils.hosttune_process import run

DOCUMENTATION = r"""
module: hosttune
short_description: One phase of hosttune on a host, in one remote execution
description:
  - Runs the installed C(hosttune) command once, as a list of arguments and never through a shell, and stores the
    document that it prints as RESULTS/HOST/RECORD.json on the controller, with one key C(fleet) more that says what
    became of the phase.
  - An answer that is missing, empty or cut is C(unknown), never C(ok). Such a file is there too; while a host is being
    asked it already says so.
  - Every option but O(phase), O(answer) and O(rescue) defaults to the variable C(hosttune_) and its name. These
    variables are read as data. C({{ name }}) with nothing but a variable's name in it is replaced by that variable,
    any other template is an error of that host (inside an intent it is plain text), unless C(hosttune_templates) is
    true. Options given in a task are templated by Ansible as usual.
version_added: "0.1.0"
author: hosttune's authors (@hosttune)
options:
  phase:
    description:
      - What to do. V(discover) and V(status) look; V(plan) decides and keeps the plan; V(apply) makes the host match
        its intent; V(revert) takes back what was applied; V(validate) checks and measures; V(handover) is a validation
        for the next tenant, at level 2.
    type: str
    required: true
    choices: [discover, plan, apply, status, validate, handover, revert]
  command:
    description:
      - The command on the host, a path or name, or a list whose further items are arguments. Without it,
        C(/opt/hosttune/bin/hosttune) where that exists (playbooks/bootstrap.yml puts it there), else C(hosttune) on
        PATH.
    type: raw
  root:
    description: Work on this captured host instead of the machine, a directory or tar on the host (C(--root)).
    type: str
  intent:
    description:
      - What is wanted of the host, a mapping or the path of a YAML or JSON file on the controller (also one that
        ansible-vault has encrypted). Needed by V(plan); without it V(apply) takes the plan that is saved.
    type: raw
  level:
    description: How deep to validate, 0 checklist to 3 burn-in. Default 0, for V(handover) 2. Always 0 in check mode.
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
  floors:
    description: The fleet's own floors, TOML on the controller (C(hosttune fleet floors) writes it). From level 1 on.
    type: path
  timeout:
    description:
      - Seconds that the command may take. After that it is asked to end (a transaction then takes itself back), and
        the outcome is C(slow). Default 300; 3600 to apply and revert; 1800, 7200 and 14400 for levels 1, 2 and 3.
    type: float
  version:
    description:
      - The hosttune version that hosts must have, told from the installed package before the command is run and from
        its document after. Default that of the hosttune installed with the controller's Ansible, if there is one.
    type: str
  start:
    description: V(apply) starts the guests as well (C(--start)).
    type: bool
    default: false
  no_guests:
    description: V(apply) leaves guests alone (C(--no-guests)).
    type: bool
    default: false
  disrupt:
    description: GPUs that V(apply) may reset and running guests that it may redefine, by name (C(--disrupt)).
    type: list
    elements: str
    default: []
  force:
    description: V(revert) takes back also what somebody else has changed since (C(--force)).
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
    description: Name of the run, so that an old answer is never taken for a new one. Default start time and process.
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
  carried:
    description: Texts that the action plugin brings along. Not for playbooks.
    type: dict
    default: {}
attributes:
  check_mode:
    description: Nothing is written on the host. V(apply) is rehearsed, V(revert) and V(validate) only look.
    support: full
  diff_mode:
    description: What V(plan) would change and V(apply) changes or would change, setting by setting.
    support: full
notes:
  - One remote execution a call, given pipelining (C(ansible_pipelining=true); hosttune's playbooks set it). The
    interpreter is C(/usr/bin/python3) where the inventory names none, for discovering one would be a second execution.
  - Intents and validations to compare with go through standard input and memory, never through a file on the host.
  - Nothing of the call is logged on the host.
seealso:
  - name: hosttune's playbooks
    description: Variables, hooks, waves and reboots are in docs/playbooks.md.
    link: https://github.com/hosttune/hosttune/blob/main/docs/playbooks.md
"""

EXAMPLES = r"""
- name: What is this host, and is it fit for a tenant
  hosttune:
    phase: "{{ item }}"
    results: /srv/fleet/results
  loop: [discover, validate]

- name: Show what an intent would change (ansible-playbook --check --diff)
  hosttune:
    phase: apply
    intent: "{{ inventory_dir }}/intents/h200.yml"

- name: Nothing may be worse than before
  hosttune:
    phase: validate
    level: 1
    against: before
    gate: worse

# ansible all -i inventories/lab-2 -M playbooks/library -m hosttune -a phase=status
"""

RETURN = r"""
outcome:
  description:
    - C(ok), the command's document is whole and it exited 0; C(no) (exit 1), C(bad-input) (2), C(refused) (3),
      C(needs-person) (4), C(internal) (70); C(unreachable), C(slow), C(died), C(disk-full), C(wrong-version),
      C(not-installed), or C(unknown) where none of these is known. Whatever is not C(ok) fails the task.
  type: str
  returned: always
  sample: "ok"
why:
  description: One line for whatever is not ok.
  type: str
  returned: always
  sample: "GPU 0000:41:00.0 is held by guest train (0000:41:00.0)"
exit_code:
  description: The command's exit code, null where it gave none.
  type: int
  returned: always
  sample: 0
seconds:
  description: How long the command took.
  type: float
  returned: always
  sample: 0.42
verdict:
  description: Of a validation, pass, warn, fail or unknown.
  type: str
  returned: phases validate and handover
  sample: "warn"
reboot_required:
  description: Whether what was applied waits for a reboot.
  type: bool
  returned: phases apply, status and revert
  sample: false
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


def installed(command: object, wanted: str | None) -> list[str]:
    """The command as arguments, its program as a path. Raises NoAnswer where there is none or another version."""
    words = [str(word) for word in command] if isinstance(command, list) else [str(command)] if command else []
    if not words:
        words = [INSTALLED if os.path.exists(INSTALLED) else "hosttune"]
    path = os.environ.get("PATH", os.defpath) + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    found = None if "\0" in words[0] else shutil.which(words[0], path=path)
    if found is None:
        raise NoAnswer(
            "not-installed", f"no command {words[0]} on this host; playbooks/bootstrap.yml installs hosttune"
        )
    version = package_version(found)
    if wanted and version and version != wanted:
        raise NoAnswer("wrong-version", f"hosttune {version} is installed, and {wanted} is asked for")
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
        for option, name in (("--against", "against"), ("--fleet", "floors")):
            if carried.get(name) is not None and (name == "against" or words[-1] != "0"):
                path, fd = in_memory(carried[name], stack)
                words[1:1] = [option, path]
                fds.append(fd)
        words += ["--gate", asked["gate"]] if asked["gate"] else []
    elif phase == "plan":
        words, text = ["plan", "-f", "-"], carried.get("intent", "")
        place = plan_place(asked, check, stack)
        words += ["--out", place] if place else []
    elif phase == "apply":
        text = carried.get("intent")
        words = ["apply", *(["--intent", "-"] if text is not None else []), "--dry-run" if check else "--yes"]
        words += ["--start"] * asked["start"] + ["--no-guests"] * asked["no_guests"]
        words += [word for name in asked["disrupt"] for word in ("--disrupt", name)]
    elif phase == "revert" and not check:
        words = ["revert"] + ["--force"] * asked["force"]
    else:
        words = ["status" if phase == "revert" else phase]
    words += ["--root", asked["root"]] if asked["root"] is not None else []
    return [*words, "-o", "json"], text, fds


def answered(asked: dict, check: bool, diff: bool) -> dict:
    """The phase, done: what the action plugin stores and says."""
    began = time.monotonic()
    answer, code, err = {}, None, ""
    try:
        with contextlib.ExitStack() as stack:
            command = installed(asked["command"], asked["version"])
            words, text, fds = words_of(asked, check, stack)
            code, out, errors = run([*command, *words], text, fds, asked["timeout"] or 300.0)
            err = errors.decode("utf-8", "replace")
            answer = judged(asked, check, code, out, err)
        if diff and answer["changed"]:
            answer["diff"] = difference(json.loads(answer["document"]))
    except NoAnswer as stop:
        answer = {"outcome": stop.outcome, "why": str(stop), "changed": False}
    except OSError as error:
        answer = {"outcome": "disk-full" if FULL.search(str(error)) else "unknown", "why": str(error), "changed": False}
    return {**answer, "exit_code": code, "stderr": err, "seconds": round(time.monotonic() - began, 3)}


def main() -> None:
    """Entry point."""
    texts = ("root", "against", "version", "record", "run")
    flags = ("start", "no_guests", "force", "keep", "rescue")
    phases = ["discover", "plan", "apply", "status", "validate", "handover", "revert"]
    spec = {
        "phase": {"type": "str", "required": True, "choices": phases},
        "command": {"type": "raw"},
        "intent": {"type": "raw"},
        "level": {"type": "int", "choices": [0, 1, 2, 3]},
        "gate": {"type": "str", "choices": ["verdict", "worse", "either"]},
        "floors": {"type": "path"},
        "timeout": {"type": "float"},
        "disrupt": {"type": "list", "elements": "str", "default": []},
        "results": {"type": "path"},
        "answer": {"type": "dict"},
        "carried": {"type": "dict", "default": {}},
        **{name: {"type": "str"} for name in texts},
        **{name: {"type": "bool", "default": False} for name in flags},
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    module.exit_json(invocation={}, **answered(module.params, module.check_mode, module._diff))


if __name__ == "__main__":
    main()
