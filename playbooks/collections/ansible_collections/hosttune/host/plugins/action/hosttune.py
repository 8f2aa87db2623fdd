"""The controller's half of the module `hosttune`: variables are read as data, the host is asked once, answers are kept.

RESULTS/HOST/RECORD.json is written whole or not at all: before the host is asked (then it says `unknown`) and after.
It does not need hosttune's own package; where that is there, hosts must have the same version.
"""

# Copyright: hosttune's authors. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import random
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping

import yaml
from ansible import constants as C  # noqa: N812 (what Ansible calls it)
from ansible import context
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure, AnsibleError
from ansible.inventory.helpers import sort_groups
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible.utils.vars import load_extra_vars
from ansible.vars.plugins import get_vars_from_inventory_sources, get_vars_from_path

try:
    from hosttune import __version__ as CONTROLLER_VERSION  # noqa: N812 (a constant here)
except ImportError:
    CONTROLLER_VERSION = None

PHASES = (
    *("discover", "plan", "apply", "status", "validate", "handover", "revert", "recover", "pairs", "collective"),
    *("course", "sign", "verify"),  # of a hand-over of named devices
    "report",
)
OF_COURSE = ("course", "sign", "verify")
VALIDATIONS = ("validate", "handover")
SECONDS = {
    "apply": 3600.0,
    "revert": 3600.0,
    "recover": 3600.0,
}  # a hand-over: by its drives; else by level
LEVEL_SECONDS = (300.0, 1800.0, 7200.0, 14400.0)
TEXTS = ("root", "against", "gate", "floors", "version")
SIGNING = ("key", "expires", "signers", "identity", "revoked", "controller_command")
FLAGS = ("start", "no_guests", "prune", "force", "keep", "to_vfio")
OPTIONS = (
    *TEXTS,
    *FLAGS,
    *SIGNING,
    "accept",
    "erase",
    "test_guest",
    "handover",
    "phase",
    "results",
    "record",
    "run",
    "command",
    "intent",
    "level",
    "timeout",
    "disrupt",
)
ASKED = "asked; no answer yet"
LATE_SECONDS = 120.0  # after a command's own time is over, the host is given up
RUN = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}"  # imported once, before hosts are asked

# What ssh says of a connection that never was, and of one that is not any more: the command may have begun.
NEVER = re.compile(
    r"connect to host|refused|[Nn]o route to host|resolve hostname|Permission denied|Host key verification|kex_exchange"
    r"|banner exchange|Too many authentication failures"
)
# sshd of a jump host drops new connections while ten others log in (MaxStartups 10:30:100): nothing has begun, so that
# asking again is safe. Ansible's own retries are not: they would repeat a command whose connection broke.
DROPPED = re.compile(r"(?:kex|ssh)_exchange_identification")
RETRIES = 3
LOGINS = 8  # at a time through one jump host, so that its sshd drops none
LOST = re.compile(
    r"closed by remote host|client_loop|Broken pipe|Timeout, server|Read from remote host|Shared connection"
    r"|mux_client|packet_write|Connection to .* closed|Data could not be sent|[Cc]onnection reset"
)


def sibling(name: str) -> object:
    """A file of module_utils: pull mode runs one on the host, and Ansible does not let its plugins import them."""
    path = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "module_utils", f"{name}.py")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ANSWER, VARIABLES, HANDOVER, REPORT = (
    sibling(f"hosttune_{name}") for name in ("answer", "variables", "handover", "report")
)
BadInput, resolved = VARIABLES.BadInput, VARIABLES.resolved


class TooLate(BaseException):
    """The host did not answer even after its command's time; not an Exception, so that no library swallows it."""


class ActionModule(ActionBase):
    """See the module."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset((*OPTIONS, "answer", "rescue", "job"))

    def run(self, tmp: object = None, task_vars: dict | None = None) -> dict:
        """Ask one host in one phase; the result says what became of it."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        answer = {"host": str(variables["inventory_hostname"]), "check": bool(self._task.check_mode)}
        began, answer["started"] = time.monotonic(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        asked: dict = {}
        path = None
        try:
            read = reader(self._task.args, variables, self._templar)
            asked.update(read_place(read))
            if asked["phase"] == "report":
                return self._report(asked, variables, text_of("controller_command", read("controller_command")))
            answer.update(phase=asked["record"], run=asked["run"])
            path = place(asked, answer)
            if (
                asked["record"] == "undrain" and path is not None
            ):  # first: an option that is refused is stored there too
                HANDOVER.mark_drained(asked["phase"], self._task.args.get("answer"), answer, path)
            for_this = "level" in self._task.args or "hosttune_level" in load_extra_vars(self._loader)
            asked.update(read_options(read, asked["phase"], level_for_this=for_this))
            asked["intent"] = self._of_all_levels(asked["intent"], variables)
            if asked["phase"] in OF_COURSE and "answer" not in self._task.args:
                self._prepare(asked, read, path)
            if asked["phase"] == "sign" and "answer" not in self._task.args:
                found = HANDOVER.sign(os.path.dirname(path), asked["signing"], asked["named"])
            else:
                found = dict(self._task.args.get("answer") or self._ask(asked, variables, answer, path))
        except (BadInput, HANDOVER.Unfit) as error:
            found = {"outcome": "bad-input", "why": str(error)}
        answer["seconds"] = round(time.monotonic() - began, 3)
        return self._finish(asked, answer, found, path)

    def _report(self, asked: dict, variables: dict, program: str | None) -> dict:
        """The lines of a play's end, shown at any -v. Of a rehearsal there is no page: it has changed nothing."""
        phase, check = asked["record"], bool(self._task.check_mode)
        if asked["results"] is None:
            raise BadInput("hosttune_results is not set: there are no answers to report on")
        hosts = {
            str(host): place(asked, {"host": str(host), "check": check}) for host in variables["ansible_play_hosts_all"]
        }
        lines = REPORT.said(phase, hosts, asked["run"], ANSWER.warned)
        if not check:
            lines.append(REPORT.page(HANDOVER.own_command(program), phase, asked["results"]))
        return {"changed": False, "msg": lines, "_ansible_verbose_always": True}

    def _prepare(self, asked: dict, read: object, path: str | None) -> None:
        """What the phases of a hand-over need besides. Raises BadInput, Unfit, before anything is asked of the host."""
        asked["signing"] = {name: text_of(name, read(name)) for name in SIGNING}
        asked["named"] = HANDOVER.named(read("handover"), "handover")
        HANDOVER.refuse_incomplete(asked, asked["signing"])
        HANDOVER.refuse_shared(load_extra_vars(self._loader))
        if self._task.check_mode and asked["phase"] == "sign":
            raise BadInput("nothing is signed in check mode")
        erase = HANDOVER.named(read("erase"), "erase")
        inside = text_of("test_guest", read("test_guest"))
        asked["words"] = HANDOVER.words(asked["named"], erase, asked["to_vfio"], asked["level"], inside)
        if asked["phase"] == "course" and not self._task.check_mode:
            if read("timeout") is None:
                asked["timeout"] = HANDOVER.seconds(erase)
            try:
                HANDOVER.begin(os.path.dirname(path))
            except OSError as error:
                raise BadInput(f"cannot remove the earlier statement beside {path}: {error.strerror}") from error

    def _ask(self, asked: dict, variables: dict, answer: dict, path: str | None) -> dict:
        """What the host answers, or why it does not. Raises BadInput."""
        here = ("results", "record", "run", "keep", "intent", "floors", "signing", "named")
        arguments = {name: value for name, value in asked.items() if name not in here and value is not None}
        arguments["carried"] = self._carried(asked, path, variables.get("inventory_dir"))
        if not asked["against"] and asked["gate"] != "verdict":
            arguments.pop("gate", None)  # of a whole wave, and this validation has nothing to be compared with
        elif asked["gate"] is None:
            arguments["gate"] = "either"
        store(path, asked, {**answer, "outcome": "unknown", "why": ASKED}, None)
        seconds = asked["timeout"] + LATE_SECONDS
        Display().vv(f"{answer['host']}: {asked['phase']}: may take {asked['timeout']:g} s", host=answer["host"])
        try:
            found = self._execute_patiently(arguments, self._known(variables), seconds)
        except AnsibleConnectionFailure as error:
            said = str(error)
            lost = LOST.search(said) and not NEVER.search(said)
            return {"outcome": "died" if lost else "unreachable", "why": one_line(said)}
        except AnsibleError as error:
            return {"outcome": "unknown", "why": one_line(str(error))}
        except TooLate:
            found = {"outcome": "slow", "why": f"the host gave no answer within {seconds:g} s"}
        if asked["phase"] == "course" and found.get("outcome") == "slow" and not answer["check"]:
            found["why"] = f"{found['why']}: {HANDOVER.LATER}"
        if "out" in found:
            told = ANSWER.meant(arguments, found, check=answer["check"], diff=self._task.diff)
            return HANDOVER.of_this(os.path.dirname(path), told) if asked["phase"] == "verify" else told
        return found if "outcome" in found else broken(found)

    def _execute_patiently(self, arguments: dict, variables: dict, seconds: float) -> dict:
        """Run the module; again after a pause if the connection was dropped before it began, unless Ansible did so.

        Raises what `_execute_module` raises, and TooLate.
        """
        own = self._connection.transport == "ssh" and self._connection.get_option("reconnection_retries")
        for attempt in range(0 if own else RETRIES):
            try:
                with late(seconds):
                    self._log_in()
                    return self._execute_module("hosttune.host.hosttune", dict(arguments), task_vars=variables)
            except AnsibleConnectionFailure as error:
                if not DROPPED.search(str(error)):
                    raise
                time.sleep(random.uniform(0.5, 1.5) * 2**attempt)  # apart from the other hosts that were dropped
        with late(seconds):
            self._log_in()
            return self._execute_module("hosttune.host.hosttune", arguments, task_vars=variables)

    def _log_in(self) -> None:
        """Open the connection of a host behind a jump host, at most LOGINS at a time of this run; later ones use it.

        Which jump host that is, ssh says: by options of the inventory or by its own configuration.
        """
        if self._connection.transport != "ssh":
            return
        option = self._connection.get_option
        given = " ".join(option(name) or "" for name in ("ssh_args", "ssh_common_args", "ssh_extra_args"))
        try:
            argv = [option("ssh_executable"), "-G", *shlex.split(given), option("host")]
            told = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL).stdout
        except (OSError, ValueError):
            return  # the task says why
        jump = re.search(r"^proxy(?:jump|command) (?!none$).+", told, re.MULTILINE)
        if jump is None:
            return
        name = f"jump-{hashlib.sha256(jump[0].encode()).hexdigest()[:16]}-{random.randrange(LOGINS)}"
        with open(os.path.join(C.DEFAULT_LOCAL_TMP, name), "w", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._connection.exec_command(":", sudoable=False)

    def _known(self, variables: dict) -> dict:
        """Variables with an interpreter (finding one out would be a second execution) and without a log on the host."""
        known = {**variables, "ansible_no_target_syslog": True}
        named = C.config.get_config_value("INTERPRETER_PYTHON", variables=variables)
        if not named or str(named).startswith("auto"):
            local = self._connection.transport == "local"
            known["ansible_python_interpreter"] = variables["ansible_playbook_python"] if local else "/usr/bin/python3"
        return known

    def _of_all_levels(self, intent: object, variables: dict) -> object:
        """The intents of a host and its groups as one; the given one where it is not the inventory's, or the only one.

        Raises BadInput.
        """
        raw = variables.get("hosttune_intent")
        layers = [] if "intent" in self._task.args else inventory_layers(self._task, variables, self._loader)
        if len(layers) < 2 or layers[-1][2] != raw:
            return intent
        found = []
        for level, whose, value in layers:
            one = reader({}, {**variables, "hosttune_intent": value}, self._templar)("intent")
            if isinstance(one, str):
                text = self._text(f"hosttune_intent of {whose}", one, variables.get("inventory_dir"))
                try:
                    one = yaml.safe_load(text)
                except (yaml.YAMLError, RecursionError) as error:
                    raise BadInput(f"hosttune_intent of {whose} is not YAML: {one_line(str(error))}") from error
            found.append((level, whose, one))
        return VARIABLES.merged(found)

    def _carried(self, asked: dict, path: str | None, beside: object) -> dict:
        """The texts that go along: intent, floors, the validation to compare with. Raises BadInput."""
        carried = {}
        intent = asked["intent"] if asked["phase"] in ("plan", "apply") else None
        if isinstance(intent, Mapping):
            carried["intent"] = VARIABLES.as_json(intent)
        elif intent is not None:
            carried["intent"] = self._text("hosttune_intent", intent, beside)
        elif asked["phase"] == "plan":
            raise BadInput("hosttune_intent is not set: nothing to plan")
        if asked["phase"] in ("pairs", "collective"):
            job = self._task.args.get("job")
            if not isinstance(job, Mapping):
                raise BadInput(f"job is not a mapping: {job!r:.80}")
            carried["job"] = VARIABLES.as_json(job)
        if asked["phase"] in VALIDATIONS:
            if asked["floors"] is not None:
                carried["floors"] = self._text("hosttune_floors", asked["floors"], beside)
            if asked["against"] is not None:
                carried["against"] = earlier(path, asked["against"])
            if asked["accept"] is not None and asked["phase"] == "validate":
                carried["accept"] = VARIABLES.as_json(asked["accept"])
            carried.update(self._declared(asked["intent"], beside))
        if asked["phase"] == "verify":
            carried.update(HANDOVER.carried(os.path.dirname(path), asked["signing"]))
        return carried

    def _declared(self, intent: object, beside: object) -> dict:
        """What the host's intent declares of its network, for `--expect`; {} if nothing. Raises BadInput.

        Of a file the host reads the text itself, as it does for a plan: YAML has more than one meaning.
        """
        if intent is None or isinstance(intent, Mapping):
            fabric = intent.get("fabric") if intent is not None else None
            declared = {"version": intent.get("version"), "fabric": fabric} if fabric else None
            return {"expect": VARIABLES.as_json(declared)} if declared else {}
        text = self._text("hosttune_intent", intent, beside)
        try:
            found = yaml.load(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))
        except (yaml.YAMLError, RecursionError) as error:
            raise BadInput(f"hosttune_intent: {intent} is not YAML: {one_line(str(error))}") from error
        if not isinstance(found, dict):
            raise BadInput(f"hosttune_intent: {intent} is not a mapping")
        nothing = found.get("fabric") in (None, {}, "", "~", "null", "Null", "NULL")
        return {} if nothing else {"expect": text}

    def _text(self, where: str, path: object, beside: object) -> str:
        """A file of the controller, decrypted where ansible-vault has encrypted it. Raises BadInput.

        A relative path is one of the working directory; where there is no such file, one beside the inventory.
        """
        if not isinstance(path, str) or not path or "\0" in path:
            raise BadInput(f"{where} is neither a mapping nor a path")
        real = os.path.abspath(os.path.expanduser(path))
        if isinstance(beside, str) and not os.path.exists(real):
            real = os.path.abspath(os.path.join(beside, os.path.expanduser(path)))
        try:
            if os.path.getsize(real) > VARIABLES.INTENT_BYTES:
                raise BadInput(f"{where}: {path} is larger than {VARIABLES.INTENT_BYTES >> 20} MiB")
            return self._loader._get_file_contents(real)[0].decode("utf-8")
        except (OSError, AnsibleError, UnicodeDecodeError) as error:
            raise BadInput(f"{where}: cannot read {path}: {one_line(str(error))}") from error

    def _finish(self, asked: dict, answer: dict, found: dict, path: str | None) -> dict:
        """Store the answer; the task's result, without the document where it is stored."""
        answer.setdefault("phase", str(self._task.args.get("phase")))
        document = found.pop("document", None)
        stated = asked.get("phase") == "course" and not answer["check"]
        if stated and document is not None:  # a file of its own, and not the answer's document
            try:
                HANDOVER.keep(os.path.dirname(path), document)
            except OSError as error:
                found, document = (
                    {"outcome": "unknown", "why": f"the statement cannot be stored: {error.strerror}"},
                    None,
                )
            document = None
        for name in ("outcome", "why", "exit_code", "reboot_required", "verdict", "pending"):
            answer[name] = found.get(name)
        answer["changed"] = bool(found.get("changed"))
        store(path, asked, answer, document, sealed=found.get("sealed", False))
        ok = answer["outcome"] == "ok"
        told = ("outcome", "why", "exit_code", "seconds", "changed")
        result = {name: value for name, value in answer.items() if name in told or value is not None}
        waits = [f"update pending: {', '.join(answer['pending'])}"] if answer["pending"] else []
        apart = "; ".join([*([answer["why"]] if ok and answer["why"] else []), *waits])
        result.update(failed=not ok, msg=(apart or "ok") if ok else f"{answer['outcome']}: {answer['why']}")
        if answer["outcome"] == "unreachable" and not boolean(self._task.args.get("rescue", False), strict=False):
            result.update(unreachable=True, failed=False)
        # Ansible shows no message of a task that succeeded, but it shows warnings. `hosttune fleet` names its runs, and
        # its report has them.
        warns = document and found.get("verdict") == "warn" and asked.get("run") == RUN
        warned = ANSWER.warned(json.loads(document)) if warns else ""
        warned = warned or (apart if asked.get("run") == RUN else "")
        if warned:
            result["warnings"] = [f"{answer['host']}: {answer['phase']}: {warned}"]
        if found.get("diff"):
            result["diff"] = found["diff"]
        if asked.get("phase") == "discover":
            result["running_guests"] = found.get("running_guests")
        if asked.get("phase") == "validate":
            result["quarantined"] = found.get("quarantined")
        if path is not None:
            result["file"] = path
        if document is not None and (path is None or asked["keep"]):
            result["document"] = json.loads(document)
        if not ok and found.get("stderr"):
            result["stderr"] = found["stderr"][-4096:]
        return result


def inventory_layers(task: object, variables: Mapping, loader: object) -> list:
    """(level, whose, raw hosttune_intent) of each group of a host, the most general first, and of the host itself.

    Levels are Ansible's: a group's depth, then ansible_group_priority. What a play or -e sets is not among them.
    """
    inventory = task.get_variable_manager()._inventory
    host = inventory.get_host(variables["inventory_hostname"])
    found = []
    for one in (*sort_groups(host.get_groups()), host):
        is_host = one is host
        own = host.vars if is_host else one.get_vars()  # get_vars() of a host has those of its groups
        beside = get_vars_from_inventory_sources(loader, inventory._sources, [one], "task")
        play = (
            get_vars_from_path(loader, variables["playbook_dir"], [one], "task") if "playbook_dir" in variables else {}
        )
        said = {**own, **beside, **play}
        if said.get("hosttune_intent") is not None:
            level = ("host",) if is_host else (one.depth, one.priority)
            found.append((level, f"host {one.name}" if is_host else f"group {one.name}", said["hosttune_intent"]))
    return found


# --- options -------------------------------------------------------------------------------------------------


def reader(arguments: Mapping, variables: Mapping, templar: object) -> object:
    """name -> an option's value: the task's, else that of the host's variable."""
    templates = flag("templates", resolved(variables.get("hosttune_templates"), "hosttune_templates", variables))

    def read(name: str) -> object:
        if name in arguments:
            return arguments[name]
        raw = variables.get(f"hosttune_{name}")
        if raw is not None and templates:
            return templar.template(raw)
        found = resolved(raw, f"hosttune_{name}", variables, strict=name != "intent")
        # An intent's own text stays as it is; the path of one is a path as any other.
        return resolved(raw, f"hosttune_{name}", variables) if name == "intent" and isinstance(found, str) else found

    return read


def read_place(read: object) -> dict:
    """What is asked, and where the answer goes: phase, results, record, run. Raises BadInput."""
    asked = {name: text_of(name, read(name)) for name in ("phase", "results", "record", "run")}
    if asked["phase"] not in PHASES:
        raise BadInput(f"no phase {asked['phase']!r}; there are {', '.join(PHASES)}")
    if asked["results"] is None and context.CLIARGS.get("module_name") is None:
        asked["results"] = "hosttune-results"
    return {**asked, "record": asked["record"] or asked["phase"], "run": asked["run"] or RUN}


def read_options(read: object, phase: str, *, level_for_this: bool) -> dict:
    """Every other option, typed; `level_for_this`: the level was said for this run.

    Raises BadInput naming the first bad one.
    """
    asked = {name: text_of(name, read(name)) for name in TEXTS}
    asked.update({name: flag(name, read(name)) for name in FLAGS})
    asked["version"] = asked["version"] or CONTROLLER_VERSION
    asked["intent"] = read("intent")
    asked["accept"] = read("accept")
    asked["command"] = command_of(read("command"))
    asked["level"] = level_of(read("level"), phase, for_this=level_for_this)
    asked["timeout"] = seconds_of(read("timeout"), phase, asked["level"])
    asked["disrupt"] = names_of(read("disrupt"))
    if asked["gate"] not in (None, "verdict", "worse", "either"):
        raise BadInput(f"hosttune_gate is {asked['gate']!r}; there are verdict, worse and either")
    if phase == "handover":  # a tenant gets the host as it is: no better for having been as bad before
        asked.update(against=None, gate=None)
    return asked


def text_of(name: str, value: object) -> str | None:
    """A text, a number as its text; an empty one is none. Raises BadInput."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if value is not None and (not isinstance(value, str) or "\0" in value):
        raise BadInput(f"hosttune_{name} is not a text: {value!r:.80}")
    if value == "" and name == "root":
        raise BadInput("hosttune_root is empty: leave it out for the machine itself")
    return value or None


def flag(name: str, value: object) -> bool:
    """A yes or no. Raises BadInput."""
    try:
        return False if value is None else boolean(value)
    except TypeError as error:
        raise BadInput(f"hosttune_{name} is neither true nor false: {value!r:.80}") from error


def level_of(value: object, phase: str, *, for_this: bool) -> int:
    """How deep to validate, a number also as text. Raises BadInput.

    An inventory's level, for nightly validations say, lowers no handover; one that was said for this run does.
    """
    if value is None:
        return 2 if phase in ("handover", "course") else 0
    if isinstance(value, bool) or str(value) not in ("0", "1", "2", "3"):
        raise BadInput(f"hosttune_level is {value!r:.80}; there are 0, 1, 2 and 3")
    if phase == "handover" and int(value) < 2:
        if not for_this:
            return 2
        Display().warning(f"a handover at level {value}: hosttune_level is set, without it the level is 2")
    return int(value)


def seconds_of(value: object, phase: str, level: int) -> float:
    """The time that the command may take. Raises BadInput."""
    if value is None:
        return SECONDS.get(phase, LEVEL_SECONDS[level if phase in VALIDATIONS else 0])
    try:
        seconds = float(value)
    except (TypeError, ValueError) as error:
        raise BadInput(f"hosttune_timeout is not a number of seconds: {value!r:.80}") from error
    if not 0 < seconds < 7 * 86400:
        raise BadInput(f"hosttune_timeout is {seconds:g} s; more than 0 and less than a week is possible")
    return seconds


def names_of(value: object) -> list[str]:
    """Names of GPUs and guests. Raises BadInput."""
    found = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(name, str) and "\0" not in name for name in found):
        raise BadInput(f"hosttune_disrupt is not a list of names: {value!r:.80}")
    return list(found)


def command_of(value: object) -> list[str] | None:
    """The command as arguments. A text is a path or a name, never words for a shell. Raises BadInput."""
    if value is None or value == "":
        return None
    words = [value] if isinstance(value, str) else value
    if (
        not isinstance(words, list)
        or not words
        or not all(isinstance(word, str) and "\0" not in word for word in words)
    ):
        raise BadInput(f"hosttune_command is neither a path nor a list of arguments: {value!r:.80}")
    return list(words)


# --- answers ---------------------------------------------------------------------------------------------------


def safe_name(name: str) -> str:
    """A host's or record's name as one of a file: other bytes than [A-Za-z0-9._-], and a leading ".", as %XX."""
    coded = re.sub(rb"[^A-Za-z0-9._-]", lambda m: b"%%%02X" % m[0][0], name.encode("utf-8", "surrogateescape"))
    return ("%2E" + coded[1:].decode()) if coded.startswith(b".") else coded.decode()


def place(asked: Mapping, answer: Mapping) -> str | None:
    """Where the answer is stored, None for nowhere."""
    if asked["results"] is None:
        return None
    name = safe_name(asked["record"]) + (".check" if answer["check"] else "") + ".json"
    return os.path.join(os.path.expanduser(asked["results"]), safe_name(answer["host"]), name)


def store(path: str | None, asked: Mapping, answer: Mapping, document: str | None, *, sealed: bool = False) -> None:
    """Write RESULTS/HOST/RECORD.json whole or not at all: the document as it was printed, and the key `fleet`."""
    if path is None:
        return
    if document is None or sealed:
        body = json.loads(document) if document else stand_in(asked, answer)
        document = json.dumps({key: value for key, value in body.items() if key != "fleet"}, indent=2)
    fleet = json.dumps({key: value for key, value in answer.items() if value is not None})
    text = f'{document.rstrip()[:-1].rstrip()},\n  "fleet": {fleet}\n}}\n'  # an object with a schema: never empty
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{os.getpid()}")
    try:
        os.makedirs(folder, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
        with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise AnsibleActionFail(f"cannot store the answer of {answer['host']} in {path}: {error.strerror}") from error


def stand_in(asked: Mapping, answer: Mapping) -> dict:
    """The document of a host that gave none: of a validation one that is unknown, for whoever reads validations."""
    if asked.get("phase") not in VALIDATIONS:
        return {"schema": "hosttune.answer/v1"}
    result = {"check": "host-answers", "subject": "host", "outcome": "unknown", "expected": "a whole validation"}
    hint = "ask it again; docs/playbooks.md says what each outcome means"
    why = f"{answer['outcome']}: {answer.get('why')}"
    level = 0 if answer["check"] else asked.get("level")
    head = {"schema": "hosttune.validation/v1", "host": answer["host"], "level": level, "verdict": "unknown"}
    return {**head, "results": [{**result, "actual": why, "hint": hint}], "samples": []}


def earlier(path: str | None, record: str) -> str:
    """The text of an earlier validation of this host. Raises BadInput where there is none, or none to compare with."""
    if path is None:
        raise BadInput(f"hosttune_against is {record!r}, and no results are kept (hosttune_results)")
    where = os.path.join(os.path.dirname(path), f"{safe_name(record)}.json")
    try:
        with open(where, encoding="utf-8") as file:
            text = file.read()
        outcome = json.loads(text)["fleet"]["outcome"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"no record {record!r} to compare with: {where}: {one_line(str(error))}") from error
    if outcome not in ("ok", "no"):
        raise BadInput(f"the record {record!r} is not a validation to compare with: {outcome}")
    return text


def broken(found: Mapping) -> dict:
    """The outcome where the module itself gave no answer: its Python was killed, could not start, or had no room."""
    said = f"{found.get('module_stderr') or ''}{found.get('module_stdout') or ''}"
    why = one_line(said or str(found.get("msg") or "empty")) or "empty"
    code = found.get("rc")
    if re.search(r"No space left on device|ENOSPC|[Qq]uota exceeded", said):
        return {"outcome": "disk-full", "why": why}
    if isinstance(code, int) and (code < 0 or code > 128):
        return {"outcome": "died", "why": f"the module was ended on the host (exit code {code})"}
    return {"outcome": "unknown", "why": f"no answer of the module: {why}"}


def one_line(text: str) -> str:
    """The last line of a message that says something, cut."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:500] if lines else ""


@contextlib.contextmanager
def late(seconds: float) -> object:
    """Raise TooLate after so many seconds, unless the task has a `timeout` of its own."""

    def give_up(number: int, frame: object) -> None:
        raise TooLate

    if signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return
    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
