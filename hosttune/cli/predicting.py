"""`predict` and `diagnose`: what a placement can reach, and why a figure falls short."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from hosttune.cli.commands import Command, Whole, host_options, read_host
from hosttune.cli.output import FORMATS, detail, emit_report, exiting
from hosttune.errors import BadInput
from hosttune.journal.state import load
from hosttune.model.diagnosis import Diagnosis
from hosttune.model.host import Host
from hosttune.model.measured import Measured
from hosttune.model.plan import PlannedGuest
from hosttune.model.prediction import Prediction
from hosttune.model.validation import Validation
from hosttune.predicting import Scope
from hosttune.predicting import predict as predicted
from hosttune.predicting.training import check_same_gpu, predict_training

if TYPE_CHECKING:
    from hosttune.report.blocks import Report


class OwnPeaks(NamedTuple):
    """What was measured: "memory" in GB/s and number types in TFLOP/s, and the model of the GPU, None if not known."""

    peaks: dict[str, float]
    gpu: str | None


@click.command(cls=Command)
@host_options
@click.option("-f", "--file", "intent", metavar="INTENT", help="The guests that this intent asks for, as planned here.")
@click.option("--plan", "plan", metavar="FILE", help="The guests of this plan (JSON).")
@click.option("--guest", "name", metavar="NAME", help="This guest only: of the plan, or one that libvirt has here.")
@click.option("--training", metavar="FILE", help="A training run instead (YAML or JSON): MFU, gradients, scaling.")
@click.option("--hosts", type=Whole(1, 65536), metavar="N", default=1, show_default=True,
              help="How many hosts of this kind work together.")  # fmt: skip
@click.option("--between", metavar="A,B", multiple=True,
              help="Show the path between these devices: GPU, NIC or 'node N' (repeatable).")  # fmt: skip
@click.option("--measured", metavar="FILE", help="The roof as measured: figures of this host (YAML or JSON).")
@click.option("--validation", metavar="FILE", help="The roof as measured: a validation of this host (JSON).")
@click.option("-o", "--output", type=click.Choice(FORMATS), default="text", show_default=True, help="What to print.")
def predict(
    root: str | None,
    document: str | None,
    intent: str | None,
    plan: str | None,
    name: str | None,
    training: str | None,
    hosts: int,
    between: tuple[str, ...],
    measured: str | None,
    validation: str | None,
    output: str,
) -> None:
    """Say what a host, a plan or a guest can reach, and why. Measures nothing.

    Each figure has a bound, a typical value, its formula, the inputs from this host and a source; what has no source
    is unknown. -o html draws roofline, figures and the slowest paths between devices.

    \b
    hosttune predict
    hosttune predict --root host.tar.gz --hosts 2 -o html > expect.html
    hosttune predict -f intent.yaml
    hosttune predict --between 0000:18:00.0,0000:9a:00.0
    hosttune predict --training run.yaml --validation today.json
    """

    own = peaks_of_host(measured, validation)
    if training is not None:
        show([of_training(training, (root, document, intent, plan, name, *between), own)], output)
        return

    if intent is not None and plan is not None:
        raise BadInput("both --file and --plan", where="command line", hint="give one of the two")
    host = read_host(root, document)
    if own is not None:
        for model in {gpu.model for gpu in host.index.accelerators}:
            check_same_gpu(model, own.gpu, host.hostname or "the host")
    measured_here = own.peaks if own is not None else None
    asked = replace_all(scopes(host, intent, plan, name, hosts), between=pairs(between), measured=measured_here)
    show([predicted(host, scope) for scope in asked], output, host)


def replace_all(found: Sequence[Scope], **changes: Any) -> list[Scope]:
    """Return the scopes with these fields changed."""
    from msgspec.structs import replace

    return [replace(scope, **changes) for scope in found]


def pairs(between: Sequence[str]) -> list[tuple[str, str]]:
    """Return the ends of each --between. Raises BadInput."""
    ends_of_paths = []
    for text in between:
        ends = [part.strip() for part in text.split(",")]
        if len(ends) != 2 or not all(ends):
            raise BadInput(f"{text!r} is not two devices", where="--between", hint="write 0000:18:00.0,0000:9a:00.0")
        ends_of_paths.append((ends[0], ends[1]))
    return ends_of_paths


def peaks_of_host(measured: str | None, validation: str | None) -> OwnPeaks | None:
    """Return the peaks that a file shows, None if no file is given. Raises BadInput."""
    if measured is None and validation is None:
        return None
    if measured is not None and validation is not None:
        raise BadInput("both --measured and --validation", where="command line", hint="give one of the two")
    from hosttune.rules.causes.gathering import of_validation
    from hosttune.rules.causes.judge import measured_peaks

    if measured is not None:
        figures = Measured.from_yaml(load(measured, what="measured figures", size="intent"), where=measured)
        return OwnPeaks(measured_peaks(figures, measured), figures.setup.gpu)
    assert validation is not None
    text = load(validation, what="a validation (hosttune validate -o json prints one)")
    figures = of_validation(Validation.from_json(text, where=validation), None)
    return OwnPeaks(measured_peaks(figures, validation), figures.setup.gpu)


def of_training(path: str, others: Sequence[str | None], own: OwnPeaks | None) -> Prediction:
    """Return what the file of --training can be. Raises BadInput, also beside options that choose a host or guest."""
    from hosttune.model.training import Training

    if any(other is not None for other in others):
        hint = "give --training alone, or with --measured or --validation"
        raise BadInput("--training beside a host or guest", where="command line", hint=hint)
    training = Training.from_yaml(load(path, what="a training run", size="intent"), where=path)
    if own is not None:
        check_same_gpu(training.gpu, own.gpu, path)
    return predict_training(training, path, own=own.peaks if own is not None else None)


def show(predictions: Sequence[Prediction], output: str, host: Host | None = None) -> None:
    """Print predictions: one document, or a list of them."""
    document = predictions[0] if len(predictions) == 1 else list(predictions)

    def report(_: object) -> Report:
        from hosttune.report.prediction import prediction_report  # here: JSON needs no report

        return prediction_report(predictions, host)

    emit_report(document, output, report)


def scopes(host: Host, intent: str | None, plan: str | None, name: str | None, hosts: int) -> list[Scope]:
    """Return what is asked about: the host, or the guests of an intent, a plan or this machine. Raises BadInput."""

    by_name: dict[str, Scope] = {}
    if intent is not None or plan is not None:
        from hosttune.predicting.expecting import scope_of

        by_name = {guest.name: scope_of(guest, hosts) for guest in planned(host, intent, plan)}
    elif name is not None:
        by_name = {
            guest.name: Scope(guest.name, guest.devices, hosts, cliques=dict(guest.cliques))
            for guest in host.guests or ()
        }
    else:
        return [Scope(host.hostname or "unnamed host", None, hosts)]
    if name is not None:
        if name not in by_name:
            hint = (
                f"give one of: {', '.join(by_name)}"
                if by_name
                else "no guest is known here: name a plan by --plan FILE"
            )
            raise BadInput(f"no guest {name!r}", where="--guest", hint=hint)
        by_name = {name: by_name[name]}
    if not by_name:
        raise BadInput("no guest is placed", where=intent or plan or "plan", hint="hosttune plan says why")
    return list(by_name.values())


def planned(host: Host, intent: str | None, plan: str | None) -> tuple[PlannedGuest, ...]:
    """Return the guests of a plan, read or made from an intent. Raises BadInput."""
    import hosttune

    if plan is not None:
        return hosttune.Plan.from_json(load(plan, what="a plan"), where=plan).guests
    assert intent is not None
    text = load(intent, what="an intent", size="intent")
    return hosttune.plan(host, hosttune.Intent.from_yaml(text, where=intent)).guests


@click.command(cls=Command)
@host_options
@click.option("--measured", metavar="FILE", help="Figures and observations (YAML or JSON).")
@click.option(
    "--validation", metavar="FILE", help="The figures of this validation (JSON), with --host or --root its host."
)
@click.option("--log", "logs", metavar="FILE", multiple=True, help="Output of a tool, as it is (repeatable).")
@click.argument("files", metavar="[FILE]...", nargs=-1)
@click.option("-o", "--output", type=click.Choice(FORMATS), default="text", show_default=True, help="What to print.")
@click.pass_context
def diagnose(
    context: click.Context,
    /,
    root: str | None,
    document: str | None,
    measured: str | None,
    validation: str | None,
    logs: tuple[str, ...],
    files: tuple[str, ...],
    output: str,
) -> None:
    """Say why a measured figure falls short, and what to do. Exits 1 if a figure is low or a cause is named.

    FILE is output of a tool, as with --log; - is what is piped in.

    Several sources are read together; a fact in which two of them differ is not used. Logs are taken as they are
    pasted, also of several tools and with labels: nccl-tests, NCCL_DEBUG=INFO, the GPU tool's topology matrix and
    query, p2pBandwidthLatencyTest, bandwidthTest, rocm_bandwidth_test, TransferBench, lspci -vvv, perftest, osu_bw,
    nvbandwidth, fio (JSON).

    \b
    hosttune diagnose --measured figures.yaml
    hosttune diagnose --validation today.json --host host.json
    hosttune diagnose --validation today.json -o html > why.html
    hosttune diagnose all_reduce.log lspci.txt
    """
    import hosttune

    logs += files
    host = read_host(root, document) if root is not None or document is not None else None
    if host is not None and validation is None:
        raise BadInput("a host without its validation", where="command line", hint="give --validation FILE")
    if not (measured or validation or logs):
        raise BadInput("nothing to diagnose", where="command line", hint="give FILE, --measured or --validation")
    diagnosis = hosttune.diagnose(measured, validation, logs, host, say=detail)
    bad = bool(diagnosis.causes) or any(figure.verdict in ("low", "impossible") for figure in diagnosis.figures)
    with exiting(context, 1 if bad else 0):
        name = ", ".join(map(os.path.basename, logs)) if logs and not (measured or validation) else None

        def report(diagnosis: Diagnosis) -> Report:
            from hosttune.report.prediction import diagnosis_report  # here: JSON needs no report

            return diagnosis_report(diagnosis, host, name)

        emit_report(diagnosis, output, report)
