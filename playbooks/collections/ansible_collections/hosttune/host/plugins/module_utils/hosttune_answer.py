"""What the end of a hosttune command means: an exit code, a document and a few lines on standard error → one answer.

Read by the action plugin `hosttune` on the controller, and in pull mode by the host itself, with whatever Python that
has (3.8 or newer).
"""

# Copyright: hosttune's authors. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import re

SCHEMAS = {  # others: result
    **{"discover": "host", "plan": "plan", "validate": "validation", "handover": "validation", "pairs": "ends"},
    "collective": "member",
    **{"course": "handover", "verify": "handover-verification"},
}
STATEMENT = {"_type": "https://in-toto.io/Statement/v1", "predicateType": "https://hosttune.dev/handover/v1"}
# Exit codes of the command (`docs/`, "Exit codes"); 126 and 127 are what env and shells give for a missing program.
WORDS = {
    1: "no",
    2: "bad-input",
    3: "refused",
    4: "needs-person",
    70: "internal",
    126: "not-installed",
    127: "not-installed",
}
OUTSIDE = "a QEMU guest outside libvirt"  # as hosttune's discovery names the problem
BAD = ("failed", "stuck", "conflict", "clamped", "ignored", "fail", "unknown")  # outcomes, worst first
NEEDS_PERSON = 4  # nothing else that is wrong may hide it
KERNEL_FILES = re.compile(r"/(sys|proc)/")
FULL = re.compile(r"No space left on device|ENOSPC|[Qq]uota exceeded|EDQUOT")


class NoAnswer(Exception):
    """There is no document to trust: the outcome's word, and why."""

    def __init__(self, outcome: str, why: str) -> None:
        super().__init__(why)
        self.outcome = outcome


def meant(asked: dict, found: dict, *, check: bool, diff: bool) -> dict:
    """The answer of a host on which the command ended, as the module found it: `exit_code`, `out` and `err`."""
    asked, code, err = {"gate": None, "version": None, **asked}, found["exit_code"], found["err"]
    try:
        answer = judged(asked, check, code, found["out"].encode("utf-8"), err)
    except NoAnswer as stop:
        answer = {"outcome": stop.outcome, "why": str(stop), "changed": False}
    except (AttributeError, KeyError, TypeError) as error:  # a host can answer anything
        why = f"the document is not of its schema's form: {error}"
        answer = {"outcome": "unknown", "why": why[:300], "changed": False}
    if diff and answer["changed"]:
        answer["diff"] = difference(json.loads(answer["document"]))
    return {**answer, "exit_code": code, "stderr": err}


def judged(asked: dict, check: bool, code: int, out: bytes, err: str) -> dict:
    """What a command's end means. Raises NoAnswer where there is no document to trust."""
    if code < 0 or 128 < code <= 128 + 64:
        number = -code if code < 0 else code - 128
        raise NoAnswer("died", f"the command was ended by signal {number}")
    why = reason(err)
    document = read(asked, out, check) if out.strip() else None
    if document is None:
        if FULL.search(err) and code != NEEDS_PERSON:
            raise NoAnswer("disk-full", why)
        if code in WORDS and (code != 1 or re.search("^error: ", err, re.M)):
            raise NoAnswer(WORDS[code], why)
        raise NoAnswer("unknown", f"no document, exit code {code}" + (f": {why}" if why else ""))
    answer = facts(asked, check, document, err)
    outcome, why = outcome_of(asked, check, code, document, why)
    if outcome == "unknown":
        raise NoAnswer("unknown", f"exit code {code}: {why}")
    if outcome != "ok" and code != NEEDS_PERSON and (FULL.search(err) or filled(document)):
        outcome = "disk-full"  # a plan that could not be saved, say: it is printed all the same
    said = "" if document.get("unplaced") else why  # "not every guest is placed": the document says why
    why = (bad_entries(document) or [None])[0] if outcome == "ok" else said or no(document)
    answer.update(outcome=outcome, why=why, document=out.decode("utf-8"))
    return answer


def filled(document: dict) -> bool:
    """Whether a step failed for want of room on a disk. The kernel's own files say the same of other things."""
    said = [entry.get("why") or "" for entry in document.get("entries") or [] if entry.get("outcome") == "failed"]
    return any(FULL.search(why) and not KERNEL_FILES.search(why) for why in said)


def outcome_of(asked: dict, check: bool, code: int, document: dict, why: str) -> tuple[str, str]:
    """(the outcome's word, why) of a command that printed a whole document. Raises NoAnswer where the two disagree."""
    phase, verdict = asked["phase"], document.get("verdict")
    if phase == "revert" and check and code == 1:
        return "ok", ""  # it was `status`: drift is no reason against taking back
    if code == 0 and phase == "status" and document.get("reboot_required"):
        return "no", "a reboot is pending"
    if code == 0 and phase == "status" and document.get("open_transaction"):
        return "no", "a transaction is unfinished: run hosttune recover"
    if phase == "verify" and (code == 0) != (verdict == "valid" and not document.get("reasons")):
        raise NoAnswer("unknown", f"exit code {code} beside the verdict {verdict}")
    if phase == "verify" and code == 0 and document.get("about") != "host":
        raise NoAnswer("unknown", "it was verified about a document, not about the host")
    if phase == "course" and not check and (code == 0) != (bool(devices(document)) and not unclean(document)):
        raise NoAnswer("unknown", f"exit code {code} beside a statement with {len(unclean(document))} faults")
    if code == 0 and verdict in ("fail", "unknown") and asked["gate"] != "worse":
        raise NoAnswer("unknown", f"exit code 0 beside the verdict {verdict}")
    if code == 0 and asked["gate"] in ("worse", "either") and document.get("worse"):
        raise NoAnswer("unknown", f"exit code 0, and {len(document['worse'])} things are worse than before")
    if code == 0 and phase == "plan" and document.get("unplaced"):
        raise NoAnswer("unknown", f"exit code 0, and {len(document['unplaced'])} guests are not placed")
    if code == 1 and verdict in ("pass", "warn") and not document.get("worse"):
        raise NoAnswer("unknown", f"exit code 1 beside the verdict {verdict}")
    return WORDS.get(code, "unknown") if code else "ok", why


def read(asked: dict, out: bytes, check: bool) -> dict:
    """The document. Raises NoAnswer where it is not whole, not of this version, or says nothing."""
    try:
        document = json.loads(out)
    except (ValueError, RecursionError) as error:
        word = "disk-full" if FULL.search(out[-4096:].decode("utf-8", "replace")) else "unknown"
        raise NoAnswer(word, f"the document is cut or no JSON: {error}") from error
    name = "result" if check and asked["phase"] == "course" else SCHEMAS.get(asked["phase"], "result")
    schema = document.get("schema") if isinstance(document, dict) else None
    if name == "handover" and isinstance(document, dict) and STATEMENT.items() <= document.items():
        schema = "hosttune.handover/v1"
    if schema != f"hosttune.{name}/v1":
        word = "wrong-version" if str(schema).startswith(f"hosttune.{name}/") else "unknown"
        raise NoAnswer(word, f"the document's schema is {schema!r}, not hosttune.{name}/v1")
    version = document.get("version")
    if asked["version"] and version and version != asked["version"]:
        raise NoAnswer("wrong-version", f"hosttune {version} answered, and {asked['version']} is required")
    if name == "validation" and not (
        document.get("results") and document.get("verdict") in ("pass", "warn", "fail", "unknown")
    ):
        raise NoAnswer("unknown", "a validation without results or verdict")
    return document


def facts(asked: dict, check: bool, document: dict, err: str) -> dict:
    """What playbooks go by: changed, verdict, pending reboot, running guests, quarantined devices."""
    phase, entries = asked["phase"], document.get("entries") or []
    answer = {"changed": False, "sealed": "fleet" in document}
    if phase == "discover":
        answer["running_guests"] = running(document)
    elif phase == "plan":
        answer["changed"] = any(line.startswith("plan saved: ") for line in err.splitlines())
    elif phase in ("validate", "handover"):
        answer["verdict"] = document["verdict"]
        answer["quarantined"] = quarantined(document)
    elif phase in ("course", "verify"):
        answer["changed"] = phase == "course"
    else:
        planned = any(entry.get("outcome") == "planned" for entry in entries) or bool(document.get("writes"))
        ours = any(entry.get("outcome") not in ("ignored", "conflict") for entry in entries)  # a revert leaves those
        answer["changed"] = (ours if phase == "revert" else planned) if check else bool(document.get("changed"))
        answer["reboot_required"] = document.get("reboot_required")
        answer["pending"] = document.get("pending")
    return answer


def quarantined(document: dict) -> list[str]:
    """The devices that a validation found between two tenants; the host itself, if that is unknown."""
    rows = [row for row in document["results"] if row.get("check") == "device-quarantined"]
    return [str(row.get("subject")) for row in rows if row.get("outcome") not in ("pass", "skip")]


def devices(document: dict) -> list[dict]:
    """The devices of a statement."""
    predicate = document.get("predicate")
    return [one for one in (predicate.get("devices") if isinstance(predicate, dict) else None) or [] if one]


def unclean(document: dict) -> list[str]:
    """What keeps the devices of a statement from being clean, a line each."""
    told = []
    for one in devices(document):
        steps = [step for step in one.get("steps") or [] if step.get("outcome") not in ("done", "not-needed")]
        told += [
            f"{one.get('address')}: {step.get('step')} is {step.get('outcome')}: {step.get('why')}" for step in steps
        ]
        if not steps and one.get("state") != "clean":
            told.append(f"{one.get('address')} is {one.get('state')}: its statement would not hold")
    return told


def running(document: dict) -> list[str] | None:
    """The guests of a host document that may be running: all but those shut off, and QEMU's that libvirt does not know
    of, which are problems there. None where libvirt could not be asked.
    """
    guests, problems = document.get("guests"), document.get("problems") or []
    if guests is None:
        return None
    told = [guest["name"] for guest in guests if guest.get("state") != "shut off"]
    return told + [problem["what"] for problem in problems if str(problem.get("what")).startswith(OUTSIDE)]


def reason(err: str) -> str:
    """One line of what a command said on standard error: what and where of hosttune's block, else the last line.

    What the command read from its standard input, "-", is the intent. Of a text of several lines the first is told; of
    a list, which begins with a colon, its first three.
    """
    block = re.search(r"^error: (.*)\n((?:.*\n)*?)where: (.*)$", err, re.M)
    lines = [line for line in err.splitlines() if line.strip()]
    if block:
        told = block[2].splitlines() if block[1].endswith(":") else []
        more = f" and {len(told) - 3} more" if len(told) > 3 else ""
        what = " ".join([block[1], "; ".join(line.strip() for line in told[:3])]).strip()
        return f"{what}{more} ({re.sub('^-(?=:|$)', 'hosttune_intent', block[3])})"
    return lines[-1].strip() if lines else ""


def bad_entries(document: dict) -> list[str]:
    """The entries of a result that are not as wanted, the worst first, each with its reason."""
    entries = [entry for entry in document.get("entries") or [] if entry.get("outcome") in BAD]
    entries.sort(key=lambda entry: BAD.index(entry["outcome"]))
    return [f"{entry.get('action')}: {entry.get('why') or entry['outcome']}" for entry in entries]


def no(document: dict) -> str:
    """Why a document without a word on standard error is a no: its first three bad lines, the worst first.

    What got worse comes first: beside the faults that a host had before it would not be seen. What was taken back is
    told only where nothing else is: it is what went well.
    """
    told = [f"worse than before: {line}" for line in document.get("worse") or []]
    told += bad_entries(document)
    told += unclean(document)
    told += [f"{one.get('subject')}: {one.get('text')}" for one in document.get("reasons") or []]
    told += [
        f"guest {guest.get('guest')} is not placed: {'; '.join(guest.get('why') or ['no reason given'])}"
        for guest in document.get("unplaced") or []
    ]
    results = [result for result in document.get("results") or [] if result.get("outcome") in BAD]
    told += [
        f"{result['check']} {result.get('subject')}: {result['outcome']}"
        for result in sorted(results, key=lambda result: BAD.index(result["outcome"]))
    ]
    told += [
        f"{drift.get('action')}: "
        + (drift.get("why") or f"was {shown(drift.get('expected'))}, now {shown(drift.get('actual'))}")
        for drift in document.get("drift") or []
    ]
    opened = document.get("open_transaction")
    told += [f"transaction {opened.get('number')} is unfinished: run hosttune recover"] if opened else []
    if document.get("state_known") is False:
        told.append("what is applied is unknown: ask as root, on the host itself")
    told = told or [str(note) for note in document.get("notes") or []] or ["no reason given"]
    return "; ".join(told[:3]) + (f" and {len(told) - 3} more" if len(told) > 3 else "")


def warned(document: dict) -> str:
    """The checks of a validation that warned: how many, and the first three by name; "" if none did."""
    bad = [one for one in document.get("results") or [] if one.get("outcome") == "warn"]
    names = list(dict.fromkeys(str(one.get("check")) for one in bad))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{len(bad)} warning{'' if len(bad) == 1 else 's'}: {', '.join(names[:3])}{more}" if bad else ""


def difference(document: dict) -> list[dict] | None:
    """What a plan or a result changes, a setting after the other, and how texts change; None if nothing does.

    A status is what a revert is rehearsed by: it says how each setting came to be, and the revert goes the other way.
    """
    back = document.get("verb") == "status"
    rows = []
    for entry in document.get("entries") or []:
        if entry.get("outcome") in ("planned", "done", "reverted", "pending"):
            after = entry.get("want") if entry["outcome"] in ("planned", "pending") else entry.get("after")
            then = (after, entry.get("before")) if back else (entry.get("before"), after)
            rows.append((entry.get("action"), *then))
    rows += [(action.get("id"), action.get("current"), action.get("want")) for action in document.get("actions") or []]
    for guest in document.get("guests") or []:
        if guest.get("change") == "keep":
            continue
        cells, addresses = guest.get("cells") or [], [one.get("address") for one in guest.get("devices") or []]
        nodes = ", ".join(str(cell.get("host_nodes")) for cell in cells)
        vcpus = f"{len(guest.get('vcpu_pins') or [])} vCPUs, nodes {nodes}"
        rows.append((f"guest {guest.get('name')}", None, ", ".join([vcpus, *map(str, addresses)])))
    rows += [(f"guest {one.get('name')}", "in force", None) for one in document.get("removals") or []]
    prepared = [folded(rows), *(document.get("differences") or [])]
    return [{"prepared": text} for text in prepared if text] or None


def folded(rows: list) -> str:
    """The lines - and + of rows (target, before, after): alike targets of a kind are one, a text is how long it is."""
    alike: dict = {}
    for name, before, after in rows:
        if isinstance(before, dict) and isinstance(after, dict):
            keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
            before, after = ({key: side[key] for key in keys if key in side} for side in (before, after))
        if before != after:
            kind, _, target = str(name).partition(":")
            alike.setdefault((kind, shown(before), shown(after)), []).append(target)
    lines = []
    for (kind, before, after), targets in alike.items():
        more = f" and {len(targets) - 3} more" if len(targets) > 3 else ""
        name = f"{kind}:{', '.join(targets[:3])}{more}" if targets[0] else kind
        lines += [f"-{name} = {before}"] if before != "null" else []
        lines += [f"+{name} = {after}{' (other ones)' if after == before else ''}"] if after != "null" else []
    return "".join(f"{line}\n" for line in lines)


def shown(value: object) -> str:
    """A value of a setting as a line: of a text of many lines their number, of files their names."""
    if isinstance(value, dict) and any(isinstance(text, str) and "\n" in text for text in value.values()):
        return f"{len(value)} file{'' if len(value) == 1 else 's'}: {', '.join(sorted(value))}"
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return f"{text.count(chr(10)) + 1} lines" if "\n" in text.strip() else text.strip()
