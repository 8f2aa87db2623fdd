"""`plan`: make a plan from an intent (a file or options), print it and save it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
import msgspec
from msgspec.structs import replace

from hosttune.cli.commands import Command, DevicesOption, completing, host_options, read_host
from hosttune.cli.output import emit, exiting, report_text, shown, tell, write
from hosttune.cli.planned import DEFINITIONS, apply_command, chosen, save_plan
from hosttune.domain.writer import domain_xml
from hosttune.errors import BadInput, HosttuneError, Unreadable
from hosttune.machine.system import System
from hosttune.model.host import Host
from hosttune.model.intent import Intent, check_prunable
from hosttune.model.plan import Plan, PlanFinding, PlannedGuest, Source
from hosttune.report.blocks import Report

T = TypeVar("T")

DEFAULT_GUEST = "gpu-guest"
# The options that the keys of an intent come from, for error messages.
OPTION_OF = {"gpus": "--gpus", "nics": "--nics", "nvme": "--nvme", "vcpus": "--vcpus",
             "memory": "--memory", "name": "--name", "numa": "--numa", "disk": "--disk", "disks": "--disk",
             "mig": "--mig", "networks": "--network or --bridge"}  # fmt: skip
NAME_HELP = (
    f"Name of the guest (default {DEFAULT_GUEST}); with -o xml, which guest of several: with --mig PROFILE:N, NAME-K"
    " plans NAME-0 ... and prints the K-th."
)
OUTPUTS = ["text", "json", "xml", "svg", "md", "html"]
DRAWN = ("xml", "svg")  # outputs that have no figures
GROUPS = {  # of the help
    "What to plan": ("--file", "--gpu", "--gpus", "--mig", "--name", "--profile"),
    "What is in force": ("--prune", "--replan", "--check"),
    "Size of the guest": ("--vcpus", "--memory", "--numa", "--smt", "--hugepages", "--nics", "--nvme"),
    "Its definition": ("--disk", "--network", "--bridge", "--firmware", "--accelerator"),
    "Existing guests": ("--adopt", "--adopt-all", "--xml", "--check-xml", "--yes"),
    "Where": ("--root", "--host"),
    "Output": ("--output", "--out", "--annotate"),
}
WITH_FILE = ("file", "name", "profile")  # options of `plan` that can be given together with -f


@click.command(cls=Command, groups=GROUPS)
@host_options
@click.option("--gpu", "addresses", multiple=True, metavar="BDF", shell_complete=completing("gpus"),
              help="Give this GPU to the guest (repeatable).")  # fmt: skip
@click.option("--gpus", type=DevicesOption("gpus"), metavar="N", help="Give the guest N GPUs, chosen by the planner.")
@click.option("--mig", metavar="PROFILE[:N]", help="Plan N guests (default 1), NAME-0 ..., each with one MIG instance.")
@click.option("-f", "--file", "file", metavar="INTENT", help="Plan what this intent (YAML or JSON) asks for.")
@click.option("--name", help=NAME_HELP)
@click.option("--vcpus", metavar="N|auto", help="vCPUs of the guest (default auto).")
@click.option("--memory", metavar="SIZE|auto", help="Memory of the guest, for example 200GiB (default auto).")
@click.option("--numa", metavar="N|auto", help="NUMA cells of the guest (default auto).")
@click.option("--smt", type=click.Choice(["cores", "threads"]), help="Whole cores (default) or also single threads.")
@click.option("--hugepages", type=click.Choice(["auto", "1GiB", "2MiB", "none"]), help="Page size (default auto).")
@click.option("--nics", type=DevicesOption("nics"), metavar="N", help="Give the guest the N nearest NICs.")
@click.option("--nvme", type=DevicesOption("nvme"), metavar="N", help="Give the guest the N nearest NVMe drives.")
@click.option("--disk", "disks", multiple=True, metavar="PATH", help="Disk of the guest (repeatable, first boots).")
@click.option("--network", "networks", multiple=True, metavar="NAME", help="libvirt network (repeatable).")
@click.option("--bridge", "bridges", multiple=True, metavar="NAME", help="Host bridge (repeatable).")
@click.option("--firmware", type=click.Choice(["efi", "bios"]), help="Firmware of the guest (default efi).")
@click.option("--accelerator", type=click.Choice(["kvm", "tcg"]), help="tcg is slow: for tests without KVM.")
@click.option("--profile", type=click.Choice(["guest", "host", "none"]),
              help="Host settings to plan: what the guests need (guest), all that GPU work profits from (host), or the"
              " least (none). By default the file's, without a file the one in force, else guest.")  # fmt: skip
@click.option("--prune", is_flag=True,
              help="Take away guests and settings of intent files that this file (-f) does not name.")  # fmt: skip
@click.option("--replan", multiple=True, metavar="NAME", shell_complete=completing("guests"),
              help="Let this guest, which is unchanged, have other places (repeatable).")  # fmt: skip
@click.option("--check", is_flag=True, help="Exit with 1 if apply would change anything.")
@click.option("--out", metavar="FILE", help="Save the plan (JSON) here as well.")
@click.option("--annotate", is_flag=True, help="With -o xml: a comment with the reason at each pin.")
@click.option("--check-xml", "check_xml", multiple=True, metavar="FILE",
              help="Judge existing domain XML, as hosttune lint does, instead of planning.")  # fmt: skip
@click.option("--adopt", multiple=True, metavar="NAME", shell_complete=completing("guests"),
              help="Plan this guest that libvirt has; change only what must (repeatable).")  # fmt: skip
@click.option("--adopt-all", is_flag=True, help="The same for all guests that libvirt defines here.")
@click.option("--xml", "definition", multiple=True, metavar="FILE",
              help="The same for the guest of a domain XML; its plan is not saved.")  # fmt: skip
@click.option("--yes", is_flag=True,
              help="Save also a plan of guests that OpenStack, oVirt, KubeVirt or OpenNebula manages.")  # fmt: skip
@click.option("-o", "--output", type=click.Choice(OUTPUTS), default="text", show_default=True, help="What to print.")
@click.pass_context
def plan(
    context: click.Context,
    /,
    root: str | None,
    document: str | None,
    out: str | None,
    output: str,
    annotate: bool,
    check_xml: tuple[str, ...],
    definition: tuple[str, ...],
    adopt: tuple[str, ...],
    adopt_all: bool,
    yes: bool,
    prune: bool,
    replan: tuple[str, ...],
    check: bool,
    **asked: Any,
) -> None:
    """Decide where guests run and which settings the host needs. Changes nothing.

    \b
    hosttune plan --gpu 0000:41:00.0 --disk /images/guest.qcow2 --network default
    hosttune plan --gpus 2 --vcpus 64 --memory 512GiB --network default -o xml
    hosttune plan --mig 1g.18gb:7 --name small --network default
    hosttune plan -f intent.yaml --out plan.json
    hosttune plan -f intent.yaml -o html > plan.html
    hosttune plan --adopt web --adopt db
    hosttune plan --adopt-all -o html > plan.html
    """
    if definition or adopt or adopt_all:
        from hosttune.cli.adopting import AdoptRequest, adopt_guests

        name = asked.pop("name")
        request = AdoptRequest(root, document, definition, adopt, adopt_all, output, name, out, yes)
        others = {"--check-xml": check_xml, "--annotate": annotate or None, "--prune": prune or None}
        adopt_guests(context, request, {**asked, **others, "--replan": replan, "--check": check or None})
        return
    if yes:
        hint = "it is for guests of other managers, with --adopt or --adopt-all"
        raise BadInput("--yes without guests to adopt", where="command line", hint=hint)
    if check_xml:
        from hosttune.cli.lint import check_files

        check_files(context, root, document, check_xml, output)
    asked, chosen_guest = asked_of_mig(asked, output)
    intent, source = read_intent(asked, prune=prune)
    where = source.name or "command line"
    host = read_host(root, document)
    if source.kind == "options":
        intent = beside_in_force(intent, asked, host)
    decided = decide(host, intent, where, source=source, prune=prune, replan=replan)
    decided = with_system(decided, host, root) if document is None else decided
    if output not in DRAWN or out is not None or document is None:
        decided = with_expectations(decided, host)
    following = apply_command(root, out)
    text = plan_text(decided, host, output, chosen_guest, annotate, mig=asked["mig"], following=following)
    if out is not None:
        save_plan(decided, out)
    with exiting(context, decided.unplaced_code or int(check and changes_something(decided, host, root, document))):
        print_plan(decided, text, output)
        if out is None:
            save_plan(decided, None, root, document)


def print_plan(decided: Plan, text: str, output: str) -> None:
    """Print a plan; beside a definition, stdout is it or empty, and what the plan says against it goes to stderr."""
    defined = output in DEFINITIONS
    (write if defined and decided.unplaced else emit)(text)
    for finding in decided.findings if defined and not decided.unplaced else ():
        if finding.level != "info":
            tell(shown(f"{finding.level}: {finding.text} ({finding.where})"))


def beside_in_force(intent: Intent, asked: dict[str, Any], host: Host) -> Intent:
    """Return what options ask for, with the profile in force if they name none. Raises BadInput for a name in use."""
    if asked["name"] is None:
        from hosttune.planning.standing import same_request

        wanted = {guest.name: guest for guest in intent.guests}
        for guest in host.in_force.guests if host.in_force else ():
            if guest.name in wanted and not same_request(host, guest, wanted[guest.name], intent.reserve):
                what = f"guest {guest.name!r} is in force, and these options ask for another one"
                hint = f"--name {guest.name} changes that guest; --name OTHER plans one besides it"
                raise BadInput(what, where="--name", hint=hint)
    if asked["profile"] is None and host.in_force is not None:
        return replace(intent, profile=host.in_force.profile or "guest")
    return intent


def read_intent(asked: dict[str, Any], *, prune: bool) -> tuple[Intent, Source]:
    """Return the intent from a file or from options, and where it came from. Raises BadInput."""

    if asked["file"] is not None:
        if any(asked[key] not in (None, ()) for key in asked if key not in WITH_FILE):
            raise BadInput(
                "-f together with options of a single guest", where="command line", hint="put them in the file"
            )
        intent, source = intent_of_file(asked["file"], asked["profile"], prune=prune)
        if asked["name"] is not None:
            chosen(asked["name"], [guest.name for guest in intent.guests])
        return intent, source
    if not asked["addresses"] and asked["gpus"] is None and asked["mig"] is None:
        hint = "give --gpu BDF, --gpus N, --mig PROFILE[:N] or -f INTENT"
        raise BadInput("nothing to plan", where="command line", hint=hint)
    if asked["addresses"] and asked["gpus"] is not None:
        raise BadInput("both --gpu and --gpus", where="command line", hint="name the GPUs or give their number")
    if asked["mig"] is not None and (asked["addresses"] or asked["gpus"] is not None):
        hint = (
            "for instances that a guest makes on its own GPUs write an intent: gpus: 1, mig: {profile: ..., count: ...}"
        )
        raise BadInput("--mig together with whole GPUs", where="--mig", hint=hint)
    guests = [guest_of_options(asked)] if asked["mig"] is None else guests_of_mig(asked)
    document = {"version": 1, "profile": asked["profile"] or "guest", "guests": guests}
    try:
        text = encoded(lambda: msgspec.json.encode(document), "command line")
        return Intent.from_json(text, where="command line"), Source(kind="options")
    except BadInput as error:
        raise as_option(error, named=bool(asked["addresses"])) from error


def asked_of_mig(asked: dict[str, Any], output: str) -> tuple[dict[str, Any], str | None]:
    """Return (the options with the base name of the guests, the guest whose XML is printed). Raises BadInput.

    With -o xml and --mig PROFILE:N for several guests, --name BASE-K (K below N) gives both the base name and the guest
    to print.
    """
    if asked["mig"] is None:
        return asked, asked["name"]
    _, count = profile_and_count(asked["mig"])
    named = re.fullmatch(r"(.+)-(0|[1-9][0-9]{0,3})", asked["name"] or "")
    if output in DEFINITIONS and named is not None and int(named[2]) < count and count > 1:
        return {**asked, "name": named[1]}, asked["name"]
    return asked, None


def profile_and_count(text: str) -> tuple[str, int]:
    """Return the profile and the number of guests of --mig PROFILE[:N]. Raises BadInput."""
    profile, colon, number = text.partition(":")
    if colon and not profile:
        raise BadInput(f"{text!r} names no profile", where="--mig", hint="write it like 1g.18gb:7")
    if colon and not re.fullmatch(r"[1-9][0-9]{0,3}", number):
        raise BadInput(f"{number!r} is not a number of guests", where="--mig", hint=f"write it like {profile}:7")
    return profile, int(number) if colon else 1


def guests_of_mig(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the guests of --mig PROFILE[:N]: NAME-0, NAME-1, …, with one instance each. Raises BadInput."""
    profile, count = profile_and_count(asked["mig"])
    if count > 1 and asked["disks"]:
        raise BadInput(f"one disk for {count} guests", where="--disk", hint="write an intent, with a disk for each")
    guest = {**guest_of_options(asked), "gpus": None, "mig": {"profile": profile}}
    return [{**guest, "name": f"{guest['name']}-{n}"} for n in range(count)]


def guest_of_options(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the guest of an intent, as a dict, from the options of the command line."""
    guest: dict[str, Any] = {"name": asked["name"] or DEFAULT_GUEST}
    guest["gpus"] = list(asked["addresses"]) if asked["addresses"] else asked["gpus"]
    for key in ("vcpus", "numa"):
        if asked[key] is not None:
            guest[key] = number_or_auto(asked[key], OPTION_OF[key])
    for key in ("memory", "smt", "hugepages", "nics", "nvme", "firmware", "accelerator"):
        if asked[key] is not None:
            guest[key] = asked[key]
    if asked["disks"]:
        guest |= {"disks": [*asked["disks"]]} if asked["disks"][1:] else {"disk": asked["disks"][0]}
    networks = [{"network": name} for name in asked["networks"]] + [{"bridge": name} for name in asked["bridges"]]
    if networks:
        guest["networks"] = networks
    return guest


def number_or_auto(text: str, option: str) -> int | str:
    """Return the number in an option's text, or "auto". Raises BadInput."""
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        return int(text)
    if text != "auto":
        what = f"{text!r} is neither a whole number of at most 18 digits nor auto"
        raise BadInput(what, where=option, hint="give a number, or auto")
    return text


def intent_of_file(path: str, profile: str | None, *, prune: bool) -> tuple[Intent, Source]:
    """Return the intent in a YAML or JSON file, and its source. --profile replaces the profile in the file.

    Raises BadInput, with `prune` also for an intent that does not say which guests it wants.
    """
    import hashlib

    from hosttune.journal.state import load

    data = load(path, what="an intent", size="intent")
    intent = Intent.from_yaml(data, where=path)  # YAML reads JSON too
    encoded(intent.to_json, path)
    if prune:
        check_prunable(data, path)
    if profile:
        intent = msgspec.structs.replace(intent, profile=profile)
    return intent, Source(kind="file", name=path, sha256=hashlib.sha256(data).hexdigest())


def encoded(encode: Callable[[], T], where: str) -> T:
    """Return a document encoded by `encode`. Raises BadInput for text that cannot be encoded as UTF-8.

    Such text has lone surrogates: Python makes them from arguments in another encoding, YAML from "\\ud800".
    """
    try:
        return encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"{error.object!r} cannot be written in UTF-8", where=where, hint="correct the text") from error


def changes_something(decided: Plan, host: Host, root: str | None, document: str | None) -> bool:
    """Return whether applying a plan would change anything, as a dry run of it says; what it cannot say counts."""
    from hosttune.transaction.applying import ApplyOptions
    from hosttune.transaction.dryrun import rehearse_apply
    from hosttune.transaction.site import open_site

    try:
        site, _ = open_site(root, host if document else None, document or "")
        result, _ = rehearse_apply(site, decided, ApplyOptions(), lambda: host)
    except HosttuneError:
        return True
    return any(entry.outcome in ("planned", "failed") for entry in result.entries)


def decide(
    host: Host, intent: Intent, where: str, *, source: Source, prune: bool = False, replan: Sequence[str] = ()
) -> Plan:
    """Make a plan. If the intent came from options, errors name the option. Raises BadInput."""
    from hosttune.planning import plan as decide_plan

    try:
        return decide_plan(host, intent, where=where, source=source, prune=prune, replan=replan)
    except BadInput as error:
        raise as_option(error, named=any(isinstance(guest.gpus, tuple) for guest in intent.guests)) from error


def with_system(decided: Plan, host: Host, root: str | None) -> Plan:
    """Return the plan with what only this machine, or a scratch root, shows.

    An error finding for each disk, and TPM's program, that is not there; what apply changes of a definition that has
    drifted.
    """
    if not decided.guests:
        return decided

    from hosttune.hypervisor import no_system
    from hosttune.machine.opening import open_system

    system = open_system(root)
    booting = [guest for guest in decided.guests if guest.disk or (guest.tpm and guest.boots_from)]
    absent = [(guest.name, why) for guest in booting if (why := no_system(system, guest)) is not None]
    added = (PlanFinding(level="error", text=why, where=f"guest {name}") for name, why in absent)
    guests = tuple(with_drift(decided, guest, host, system) for guest in decided.guests)
    return replace(decided, guests=guests, findings=(*decided.findings, *added))


def with_drift(decided: Plan, guest: PlannedGuest, host: Host, system: System) -> PlannedGuest:
    """Return a guest of a plan; its `changes` have also what libvirt's definition needs, from what it has now."""
    old = next(
        (
            guest_in_force
            for guest_in_force in (host.in_force.guests if host.in_force else ())
            if guest_in_force.name == guest.name
        ),
        None,
    )
    if old is None or guest.change == "create":
        return guest

    from hosttune.domain.compare import as_changes
    from hosttune.domain.update import updated
    from hosttune.hypervisor.connection import read_definition
    from hosttune.hypervisor.state import Autostart
    from hosttune.inventory.bare import runs

    try:
        now = read_definition(system, guest.name)
        live = Autostart.of(guest.name).read(system)
    except Unreadable:
        return guest
    want = domain_xml(decided, guest.name)
    then = domain_xml(replace(decided, guests=(old.places,)), guest.name)
    active = any(running_guest.name == guest.name and runs(running_guest) for running_guest in host.guests or ())
    needed = updated(then, now, want).changes if now else ()
    found = [replace(guest_change, when="next-start" if active else "now") for guest_change in needed]
    if guest.autostart not in (None, live) and guest.autostart == old.places.autostart:
        found += as_changes([("autostart", guest.autostart, live)])
    changes = {guest_change.element: guest_change for guest_change in (*guest.changes, *found)}
    return replace(guest, change="update" if changes else "keep", changes=tuple(changes.values()))


def with_expectations(decided: Plan, host: Host) -> Plan:
    """Return the plan with what its guests can expect. Loads the models only if a guest has a device."""
    if not any(guest.devices for guest in decided.guests):
        return decided
    from hosttune.predicting.expecting import with_expectations as expected

    return expected(decided, host)


def as_option(error: BadInput, *, named: bool) -> BadInput:
    """Return an error that names the option, if the original error names a key of an intent made from options.

    `named`: the GPUs are given by --gpu, not by --gpus.
    """
    key = re.match(r"command line: guests\[[0-9]+\]\.(\w+)", error.where)
    option = OPTION_OF.get(key[1]) if key else None
    if option == "--gpus" and named:
        option = "--gpu"
    return BadInput(error.what, where=option, hint=error.hint) if option else error


def plan_text(
    decided: Plan,
    host: Host,
    output: str,
    name: str | None,
    annotate: bool,
    mig: str | None = None,
    following: str = "hosttune apply",
) -> str:
    """Return a plan as it is printed. If a guest is unplaced there is no XML, but text with the reason (for stderr).

    `following`: the command that applies it.

    Raises BadInput.
    """
    from hosttune.report.plan import plan_report

    def svg() -> str:
        from hosttune.report.svg import plan_svg

        return plan_svg(host, decided)

    def xml() -> str:
        if decided.unplaced:
            return report_text(decided, "text", report)
        if mig is not None and name is None and len(decided.guests) > 1:
            names = [guest.name for guest in decided.guests]
            base, last = names[0].removesuffix("-0"), len(names) - 1
            hint = f"--name {base}-K with --mig {mig} prints the XML of {base}-K, K from 0 to {last}"
            raise BadInput(f"{len(names)} guests, but -o xml prints one", where="--name", hint=hint)
        return xml_of(decided, name, annotate)

    def report(decided: Plan) -> Report:
        return plan_report(decided, host, following)

    return report_text(decided, output, report, {"svg": svg, "xml": xml})


def xml_of(decided: Plan, name: str | None, annotate: bool) -> str:
    """Return the XML of the named guest, or of the only guest. Raises BadInput that lists the guests."""

    name = chosen(name, [guest.name for guest in decided.guests])
    return domain_xml(decided, name, annotate=annotate)
