"""The options that a user may pass to ansible-playbook after `--`.

Only the options listed here are allowed, so that no option changes which hosts are contacted or which playbook is run.
Secrets come from Ansible's own files (vault, become and connection passwords). An option that makes ansible ask for a
password on the terminal is refused, because the user cannot answer while a run is in progress.
"""

from __future__ import annotations

from collections.abc import Sequence

from hosttune.errors import BadInput
from hosttune.journal.state import load_text

_FLAGS = frozenset(("-b", "--become", "-D", "--diff", "--force-handlers", "--flush-cache", "--verbose"))
_VAULT = ("--vault-id", "--vault-password-file", "--vault-pass-file")
_VALUES = frozenset(
    (
        *_VAULT, "-e", "--extra-vars", "-u", "--user", "-c", "--connection", "-T", "--timeout", "-t", "--tags",
        "--skip-tags", "-M", "--module-path", "--private-key", "--key-file", "--ssh-common-args", "--ssh-extra-args",
        "--sftp-extra-args", "--scp-extra-args", "--become-method", "--become-user", "--become-password-file",
        "--become-pass-file", "--connection-password-file", "--conn-pass-file",
    )
)  # fmt: skip
_OURS = {
    "-i": "-i", "--inventory": "-i", "--inventory-file": "-i", "-l": "--limit", "--limit": "--limit",
    "-f": "--forks", "--forks": "--forks", "-C": "--check", "--check": "--check",
}  # fmt: skip
_ASKING = frozenset(("-K", "--ask-become-pass", "-k", "--ask-pass", "-J", "--ask-vault-pass", "--ask-vault-password"))
RESERVED = (
    "hosttune_hosts",
    "hosttune_results",
    "hosttune_run",
    "hosttune_waves",
    "hosttune_gate",
    "hosttune_course",
    "hosttune_keep_course",
)
PER_HOST = ("hosttune_handover", "hosttune_erase")  # never one value for every host of a run


def checked(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words after `--` if all of them are allowed. Raises BadInput that names the first that is not."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, given, value = word.partition("=")
        if name in _VALUES:
            if not given and not rest:
                raise _refused(f"{word} needs a value", "give one")
            value = value if given else rest.pop(0)
            if name == "--vault-id" and value.endswith("@prompt"):
                raise _refused("a vault password cannot be asked for here", "name a file: --vault-id LABEL@FILE")
            if name in ("-e", "--extra-vars"):
                check_variable(value, where="behind --")
        elif word not in _FLAGS and not (word.startswith("-v") and set(word[1:]) == {"v"}):
            raise _unknown(word, name)
    return tuple(words)


def _unknown(word: str, name: str) -> BadInput:
    if name in _OURS:
        return _refused(f"{word} is an option of hosttune fleet itself", f"give {_OURS[name]} before the --")
    if name in _ASKING:
        return _refused(f"{word} would ask for a password", "give a file, as with --become-password-file")
    if not word.startswith("-"):
        return BadInput(f"unexpected argument {word[:80]!r}", where="command line", hint="see hosttune fleet --help")
    return _refused(f"{word} is not handed on to ansible-playbook", "put it into ansible.cfg or a variable")


def _refused(what: str, hint: str) -> BadInput:
    return BadInput(what, where="options behind --", hint=hint)


def check_variable(text: str, *, where: str = "-e") -> None:
    """Check extra variables: KEY=VALUE words, a mapping (YAML or JSON), or @FILE of one. Raises BadInput.

    Those that hosttune fleet itself sets are refused, and devices, which are never the same for every host. A file that
    ansible-vault has encrypted is not read here; the playbook refuses devices in it.
    """
    for name in _names(text, where):
        if name in PER_HOST:
            hint = "write it for each host in the inventory"
            raise BadInput("devices to be handed over cannot be given as a variable of the run", where=where, hint=hint)
        if name in RESERVED:
            option = name.removeprefix("hosttune_").replace("hosts", "limit")
            hint = "it is the command's own" if option in ("run", "course", "keep_course") else f"use --{option}"
            raise BadInput(f"{name} cannot be given as a variable", where=where, hint=hint)


def _names(text: str, where: str) -> Sequence[str]:
    """Return the names of extra variables, as Ansible reads them (ansible.utils.vars.load_extra_vars)."""
    if text.startswith("@"):
        text = load_text(text[1:], what="a file of variables (YAML or JSON)")
        if text.startswith("$ANSIBLE_VAULT;"):
            return ()
    elif text.lstrip()[:1] not in ("{", "["):
        return [word.partition("=")[0].strip("\"'") for word in text.split() if "=" in word]
    import yaml

    try:  # only the names: values may have tags of Ansible's own
        document = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"variables that are not YAML: {reason}", where=where, hint="write KEY=VALUE") from error
    return [str(name.value) for name, _ in document.value] if isinstance(document, yaml.MappingNode) else ()


def vault(words: Sequence[str]) -> tuple[str, ...]:
    """Return the vault options among these words: they are needed to read an inventory with vaulted files."""
    options: list[str] = []
    for index, word in enumerate(words):
        name, given, _ = word.partition("=")
        if name in _VAULT:
            options += [word] if given else [word, words[index + 1]]
    return tuple(options)
