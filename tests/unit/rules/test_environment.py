"""`hosttune lint-env`: forms in which guides set variables, verdicts with their sources, and what a host changes."""

from __future__ import annotations

import contextlib
import io
import json
import re
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hosttune.cli import run
from hosttune.errors import BadInput
from hosttune.model.devices import Nic
from hosttune.model.gpu import Gpu, Peer
from hosttune.model.host import Cpu, Host
from hosttune.model.lint import VERDICTS, EnvironmentLine
from hosttune.rules.environment import judge, rules
from hosttune.rules.environment.judging import FACTS, source_text

ROOT = Path(__file__).parents[2]
GUIDES = tomllib.loads((ROOT / "cases/environment/guides.toml").read_text())
Cli = Callable[..., tuple[int, str, str]]


def one(text: str, host: Host | None = None, where: str = "guide.sh") -> EnvironmentLine:
    """The single line of an environment."""
    (line,) = judge(text, where=where, host=host).lines
    return line


def set_by(text: str) -> list[tuple[int, str | None, str | None]]:
    return [(line.line, line.name, line.value) for line in judge(text, where="guide").lines]


# --- guides -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [(guide, *row) for guide, rows in GUIDES.items() for row in rows], ids=str)
def test_lines_of_guides(row: tuple[str, str, str, str]) -> None:
    _, text, name, verdict = row
    line = one(text)
    assert (line.name, line.verdict) == (name, verdict)
    assert line.why


def test_every_guide_has_its_provenance() -> None:
    readme = (ROOT / "cases/environment/README.md").read_text()
    assert set(re.findall(r"^\| `([a-z0-9-]+)`", readme, re.MULTILINE)) == set(GUIDES)


# --- the table ----------------------------------------------------------------------------------------------------


def test_every_rule_has_a_source_and_known_facts() -> None:
    assert len(rules()) > 90
    for name, rule in rules().items():
        assert re.fullmatch(r"[A-Z][A-Z0-9_]+|[A-Za-z0-9/].*", name)
        for case in rule.row.cases:
            assert case.verdict in VERDICTS
            assert len(source_text(case.source or rule.row.source)) > 15
            assert case.host is None or case.host in FACTS
            assert case.like is None or re.compile(case.like)


def test_a_name_without_a_rule_is_unknown() -> None:
    line = one("HABANA_ROCE_ANYTHING=1")
    assert (line.verdict, line.source) == ("unknown", None)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("NCCL_IB_DISABLE=1", "harmful"),
        ("NCCL_IB_DISABLE=0", "useless"),
        ("NCCL_IB_DISABLE=true", "useless"),  # strtoll: 0
        ("NCCL_IB_DISABLE=", "useless"),  # empty: as if it were not set (ncclLoadParam)
        ("NCCL_IB_DISABLE=' '", "useless"),  # strtoll: 0
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING=", "unknown"),  # another library's
        ("NCCL_P2P_DISABLE=0x1", "harmful"),
        ("NCCL_IB_GID_INDEX=-1", "useless"),
        ("NCCL_IB_TIMEOUT=0", "harmful"),
        ("NCCL_IB_TIMEOUT=32", "harmful"),
        ("NCCL_IB_TIMEOUT=20", "useless"),
        ("NCCL_NET_GDR_LEVEL=PHB", "unknown"),
        ("NCCL_NET_GDR_LEVEL=loc", "harmful"),
        ("NCCL_PROTO=^LL128", "unknown"),
        ("NCCL_PROTO=LL128", "harmful"),
        ("NCCL_BUFFSIZE=4194304", "useless"),
        ("NCCL_IB_HCA==mlx5_0,mlx5_1", "unknown"),
        ("NCCL_IB_HCA=mlx5_0:1,mlx5_1:1", "harmful"),
        ("NCCL_IB_HCA=mlx5_10", "harmful"),
        ("NCCL_IB_HCA=mlx5_0", "unknown"),  # no other name begins so
        ("NCCL_SOCKET_IFNAME=^lo,docker0", "useless"),
        ("NCCL_DEBUG=TRACE", "harmful"),
        ("NCCL_DEBUG_FILE=/tmp/nccl.%h.%p", "useless"),
        ("NCCL_DEBUG_FILE=/tmp/nccl.log", "harmful"),
        ("CUDA_LAUNCH_BLOCKING=1", "harmful"),
        ("CUDA_VISIBLE_DEVICES=", "harmful"),
        ("NCCL_ALGO=$ALGO", "harmful"),  # whatever the value is
        ("NCCL_BUFFSIZE=${SIZE:-4194304}", "unknown"),
        ("NCCL_NVLS_ENABLE=9", "unknown"),  # a value that the source does not name
        ("UCX_TLS=rc,cuda", "unknown"),
        ("UCX_TLS=rc", "harmful"),
        ("OMP_NUM_THREADS=1", "useless"),
        ("GLOO_SOCKET_IFNAME=^lo,docker0", "harmful"),  # NCCL's form: Gloo looks for an interface called ^lo
        ("GLOO_SOCKET_IFNAME==eth0", "harmful"),
        ("GLOO_SOCKET_IFNAME=eth0", "unknown"),
        ("FI_EFA_USE_DEVICE_RDMA=0", "harmful"),
        ("FI_EFA_USE_DEVICE_RDMA=1", "unknown"),
        ("FI_PROVIDER=efa", "unknown"),
        ("NCCL_CHECK_MODE=DEBUG_GLOBAL", "harmful"),
        ("NCCL_LEGACY_CUDA_REGISTER=1", "harmful"),
        ("NCCL_P2P_PXN_LEVEL=2", "useless"),
        ("NCCL_MNNVL_ENABLE=0", "unknown"),
        ("HIP_LAUNCH_BLOCKING=1", "harmful"),
        ("AMD_SERIALIZE_KERNEL=3", "harmful"),
        ("HSA_ENABLE_SDMA=0", "unknown"),
        ("TORCH_NCCL_AVOID_RECORD_STREAMS=1", "useless"),
        ("HABANA_VISIBLE_DEVICES=all", "unknown"),
    ],
)
def test_the_verdict_depends_on_the_value(text: str, verdict: str) -> None:
    assert one(text).verdict == verdict


# --- forms --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "A=b", "export A=b", "  export A='b'  # why", "ENV A=b", "ENV A b", "setenv A b", "A=b torchrun x.py",
        "docker run -e A=b img", "docker run --env=A=b img", "docker run --env A=b img", "mpirun -x A=b ./x",
        "mpirun -genv A b ./x", "A: b", '"A": "b",', "- A=b", "- name: A\n  value: b", '- name: "A"\n  value: "b"',
        'os.environ["A"] = "b"', 'if [ "$X" = 1 ]; then export A=b; fi', "declare -x A=b", "\ufeffA=b", "A=b\r\n",
        '- {name: A, value: "b"}', "srun --export=ALL,A=b ./x", "#SBATCH --export=A=b", "Environment=A=b",
        'Environment="A=b"',
    ],
)  # fmt: skip
def test_forms_that_guides_use(text: str) -> None:
    assert set_by(text) in ([(1, "A", "b")],)


def test_options_of_slurm_that_set_nothing_are_comments() -> None:
    assert set_by("#SBATCH --nodes=2\n#SBATCH --export=ALL\n#SBATCH --export=ALL,A=b,C=d\n") == [
        (3, "A", "b"),
        (3, "C", "d"),
    ]


def test_lines_keep_their_numbers() -> None:
    text = (
        "# a comment\n\ndocker run \\\n  -e A=1 \\\n  --gpus all \\\n  -e B=2 img\nexport C=3 D=4\necho E=5\nunset F\n"
    )
    found = [(4, "A", "1"), (6, "B", "2"), (7, "C", "3"), (7, "D", "4"), (8, None, "echo E=5"), (9, "F", None)]
    assert set_by(text) == found


def test_what_is_not_understood_is_said_by_line() -> None:
    lines = judge("A=1\nthis is prose\nexport B='open\n", where="guide").lines
    assert [(line.line, line.name, line.verdict) for line in lines[1:]] == [(2, None, "unknown"), (3, None, "unknown")]
    assert lines[1].value == "this is prose"


def test_blocks_of_yaml_say_nothing_by_themselves() -> None:
    assert set_by("env:\n  - name: A\n    value: 1\n  - name: B\n    valueFrom: {}\n")[:2] == [
        (2, "A", "1"),
        (4, "B", None),
    ]


# --- nccl.conf, as the library reads it (NVIDIA/nccl, src/misc/param.cc) --------------------------------------------


@pytest.mark.parametrize(
    ("line", "verdict", "why"),
    [
        ("NCCL_DEBUG=WARN", "right", "errors are said"),
        ("export NCCL_DEBUG=WARN", "harmful", "neither export"),
        (" NCCL_DEBUG=WARN", "harmful", "neither export"),
        ('NCCL_SOCKET_IFNAME="eth0"', "harmful", "quotes"),
        ("NCCL_DEBUG=WARN # why", "harmful", "blanks"),
        ("NCCL_DEBUG=WARN ", "harmful", "blanks"),
        (f"NCCL_IB_HCA=={'m' * 1023}", "harmful", "cut"),
    ],
)
def test_the_form_of_nccl_conf(line: str, verdict: str, why: str) -> None:
    found = one(f"# a comment\n{line}\n", where="/etc/nccl.conf")
    assert (found.line, found.verdict) == (2, verdict)
    assert why in found.why


@pytest.mark.parametrize(
    ("line", "verdict"),
    [("NCCL_DEBUG=WARN", "harmful"), ("NCCL_IB_HCA==mlx5_0,mlx5_1", "harmful"), ("NCCL_IB_DISABLE=0", "useless")],
)
def test_a_carriage_return_in_nccl_conf(line: str, verdict: str) -> None:
    """param.cc takes it away since 2.30; before, it is a part of a name, and a number ends there."""
    found = one(f"# a comment\r\n\r\n{line}\r\n", where="/etc/nccl.conf")
    assert (found.line, found.value, found.verdict) == (3, line.partition("=")[2], verdict)
    assert verdict != "harmful" or "before 2.30" in found.why
    assert "\r" not in str(one(f"{line}\r\n").value)


def test_the_first_line_of_nccl_conf_counts() -> None:
    lines = judge("NCCL_DEBUG=TRACE\nNCCL_ALGO=Ring\nNCCL_DEBUG=WARN\n", where="/etc/nccl.conf").lines
    assert [line.verdict for line in lines] == ["harmful", "harmful", "useless"]
    assert "line 1 sets it before" in lines[2].why
    assert [line.verdict for line in judge("NCCL_DEBUG=TRACE\nNCCL_DEBUG=WARN\n", where="a.sh").lines] == [
        "harmful",
        "right",
    ]


# --- forms that give a variable another value than they seem to -------------------------------------------------


def test_a_backslash_within_a_word_joins_its_two_parts() -> None:
    assert set_by("export NCCL_IB_DISABLE=\\\n1\n") == [(1, "NCCL_IB_DISABLE", "1")]
    assert one("export NCCL_IB_DISABLE=\\\n1\n").verdict == "harmful"
    assert set_by("A=b\\\nC=d\n") == [(1, "A", "bC=d")]  # a blank was forgotten: that is what the shell reads
    assert set_by("-x A=b\\\n  -x C=d \\\n") == [(1, "A", "b"), (2, "C", "d")]


@pytest.mark.parametrize("text", ["NCCL_IB_DISABLE= 1", "export NCCL_IB_DISABLE= 1", "NCCL_ALGO= RING"])
def test_a_blank_after_the_equals_sign_leaves_the_value_open(text: str) -> None:
    """A shell sets nothing and runs a command called 1; `docker run --env-file` sets " 1", which is 1."""
    found = one(text)
    assert (found.value, found.verdict) == ("", "unknown")
    assert "a blank stands after =" in found.why


def test_a_variable_that_is_emptied_for_a_command_is_empty() -> None:
    assert one("CUDA_VISIBLE_DEVICES= ./train").verdict == "harmful"
    assert one("CUDA_VISIBLE_DEVICES= python x.py").verdict == "harmful"


@pytest.mark.parametrize(
    "text",
    [
        "srun --export ALL,NCCL_ALGO=Ring,B=c x",
        "#PBS -v NCCL_ALGO=Ring,B=c",
        "apptainer exec --env NCCL_ALGO=Ring,B=c x.sif ./x",
        "/usr/bin/singularity run --env=NCCL_ALGO=Ring,B=c x.sif",
        'mpirun --mca mca_base_env_list "NCCL_ALGO=Ring;B=c" ./x',
        "(export NCCL_ALGO=Ring B=c; ./x)",
        "exec env NCCL_ALGO=Ring B=c ./x",
        "nohup env NCCL_ALGO=Ring B=c ./x &",
        "local NCCL_ALGO=Ring B=c",
    ],
)
def test_forms_of_schedulers_containers_and_shells(text: str) -> None:
    assert set_by(text) == [(1, "NCCL_ALGO", "Ring"), (1, "B", "c")]


@pytest.mark.parametrize(
    "text",
    [
        '{"NCCL_ALGO": "Ring", "B": "c"}',
        'runtime_env={"env_vars": {"NCCL_ALGO": "Ring", "B": "c"}}',
        "env_vars: {NCCL_ALGO: Ring, B: c}",
        "os.environ.update({'NCCL_ALGO': 'Ring', 'B': \"c\"})",
    ],
)
def test_mappings_on_one_line(text: str) -> None:
    assert set_by(text) == [(1, "NCCL_ALGO", "Ring"), (1, "B", "c")]


@pytest.mark.parametrize(
    "text", ['os.environ.setdefault("NCCL_ALGO", "Ring")', "os.putenv('NCCL_ALGO','Ring')  # why", "NCCL_ALGO: Ring"]
)
def test_calls_of_python(text: str) -> None:
    assert set_by(text) == [(1, "NCCL_ALGO", "Ring")]


def test_the_first_device_is_no_prefix_of_others() -> None:
    assert "this device alone" in one("NCCL_IB_HCA=mlx5_0").why
    assert "prefix takes every device" in one("NCCL_IB_HCA=mlx5").why


def test_a_list_of_slurm_has_no_comma_in_a_value() -> None:
    assert set_by("#SBATCH --export=ALL,NCCL_IB_HCA=mlx5_0,mlx5_1") == [(1, "NCCL_IB_HCA", "mlx5_0")]


def test_apptainers_prefix_is_the_variable_inside() -> None:
    found = one("export APPTAINERENV_NCCL_IB_DISABLE=1")
    assert (found.name, found.verdict) == ("APPTAINERENV_NCCL_IB_DISABLE", "harmful")


# --- a host ---------------------------------------------------------------------------------------------------------


def host_with(*nics: Nic, vendor: str = "nvidia", gpus: int = 2, **fields: Any) -> Host:
    peers = (Peer(address="0000:02:00.0", kind="pcie"),)
    found = tuple(Gpu(address=f"0000:0{n + 1}:00.0", vendor=vendor, peers=peers) for n in range(gpus))
    return Host(gpus=found, nics=nics, cpus=tuple(Cpu(id=n) for n in range(8)), **fields)


RDMA = Nic(address="0000:10:00.0", kind="infiniband", rdma="mlx5_0", interfaces=("ib0",))
SECOND = Nic(address="0000:20:00.0", kind="infiniband", rdma="mlx5_1", interfaces=("ib1",))
PLAIN = Nic(address="0000:11:00.0", kind="ethernet", interfaces=("eno1",))


@pytest.mark.parametrize(
    ("text", "host", "verdict"),
    [
        ("NCCL_IB_DISABLE=1", host_with(RDMA), "harmful"),
        ("NCCL_IB_DISABLE=1", host_with(PLAIN), "useless"),
        ("NCCL_IB_DISABLE=1", host_with(), "harmful"),  # no NIC is known: nothing is proven
        ("NCCL_IB_DISABLE=1", host_with(PLAIN, Nic(address="0000:12:00.0")), "harmful"),  # one shows no name
        ("NCCL_OOB_NET_IFNAME=eth0", host_with(PLAIN), "unknown"),  # or RDMA devices, by NCCL_NET
        ("NCCL_NET=Socket", host_with(PLAIN), "useless"),
        ("NCCL_NET=Socket", host_with(RDMA), "harmful"),
        ("NCCL_IB_HCA==mlx5_0", host_with(RDMA, PLAIN), "right"),
        ("NCCL_IB_HCA==mlx5_0,mlx5_9", host_with(RDMA), "harmful"),
        ("NCCL_IB_HCA==mlx5_0", host_with(RDMA, SECOND), "unknown"),  # one rail of two
        ("NCCL_IB_HCA==mlx5_0,mlx5_1", host_with(RDMA, SECOND), "right"),
        ("NCCL_IB_HCA==mlx5_0", host_with(RDMA, replace(SECOND, fabric_bridge=True)), "right"),
        ("NCCL_IB_HCA=mlx5_0,mlx5_1", host_with(RDMA, SECOND), "unknown"),  # each fits one device here
        ("NCCL_IB_HCA=mlx5_1", host_with(SECOND, replace(RDMA, rdma="mlx5_10")), "harmful"),
        ("UCX_NET_DEVICES=mlx5_0:1", host_with(RDMA, SECOND), "unknown"),
        ("UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1,eno1", host_with(RDMA, SECOND, PLAIN), "right"),
        ("NCCL_SOCKET_IFNAME=eno", host_with(PLAIN), "right"),
        ("NCCL_SOCKET_IFNAME==eno", host_with(PLAIN), "harmful"),
        ("NCCL_SOCKET_IFNAME=eth0", host_with(PLAIN), "harmful"),
        ("NCCL_SOCKET_IFNAME=bond0", host_with(PLAIN), "unknown"),  # a bond is not in the host document
        ("GLOO_SOCKET_IFNAME=eno1", host_with(PLAIN), "right"),
        ("GLOO_SOCKET_IFNAME=eno", host_with(PLAIN), "harmful"),  # no prefix
        ("GLOO_SOCKET_IFNAME=bond0", host_with(PLAIN), "unknown"),
        ("CUDA_VISIBLE_DEVICES=0,1", host_with(vendor="amd"), "unknown"),  # HIP reads it
        ("CUDA_VISIBLE_DEVICES=", host_with(), "harmful"),
        ("NCCL_P2P_DISABLE=1", host_with(gpus=1), "useless"),
        ("NCCL_ALGO=Ring", host_with(vendor="habana"), "useless"),
        ("HCCL_OVER_OFI=1", host_with(), "useless"),
        ("HCCL_OVER_OFI=1", host_with(vendor="habana"), "harmful"),
        ("HCCL_OVER_OFI=1", Host(), "harmful"),  # no GPU is known
        ("NCCL_MIN_NCHANNELS=64", host_with(vendor="amd"), "unknown"),
        ("NCCL_MIN_NCHANNELS=64", host_with(), "harmful"),
        ("OMP_NUM_THREADS=9", host_with(), "harmful"),
        ("OMP_NUM_THREADS=8", host_with(), "unknown"),
        ("GOMP_CPU_AFFINITY=0-63", host_with(), "harmful"),
        ("UCX_NET_DEVICES=mlx5_0:1", host_with(RDMA, PLAIN), "right"),
        ("UCX_NET_DEVICES=mlx5_7:1", host_with(RDMA, PLAIN), "harmful"),
    ],
)  # fmt: skip
def test_a_host_sharpens_the_verdict(text: str, host: Host, verdict: str) -> None:
    assert one(text, host).verdict == verdict


def test_an_empty_host_document_never_improves_a_verdict() -> None:
    rank = {"harmful": 0, "unknown": 1, "useless": 2, "right": 3}
    values = ("1", "0", "=mlx5_0", "eth0", "IB", "all", "112")
    for name in filter(str.isidentifier, rules()):
        for value in values:
            alone, empty = one(f"{name}={value}").verdict, one(f"{name}={value}", Host()).verdict
            assert rank[empty] <= rank[alone], (name, value)


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        code = run(["lint-env", *words])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_the_document_and_the_exit_code(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.env").write_text("NCCL_ALGO=Ring\nNCCL_DEBUG=WARN\n")
    code, out, err = cli("a.env", "-o", "json")
    assert (code, err) == (1, "")
    lines = json.loads(out)["lines"]
    assert [(line["name"], line["value"], line["verdict"]) for line in lines] == [
        ("NCCL_ALGO", "Ring", "harmful"),
        ("NCCL_DEBUG", "WARN", "right"),
    ]
    assert all(set(line) >= {"name", "value", "verdict", "why", "source"} for line in lines)
    (tmp_path / "b.env").write_text("NCCL_DEBUG=WARN\nFOO=1\n")
    code, out, _ = cli("b.env")
    assert code == 0
    assert out.splitlines()[0] == "b.env: 1 right, 1 unknown"


def test_standard_input_and_a_host_document(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "host.json").write_text(host_with(PLAIN).to_json())
    (tmp_path / "a.env").write_text("NCCL_IB_DISABLE=1\n")
    assert cli("a.env")[0] == 1
    assert cli("a.env", "--host", "host.json")[0] == 0
    (tmp_path / "empty").write_text("# nothing\n")
    assert cli("empty") == (0, "empty: no line sets anything\n", "")


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"\x7fELF\0\0", "not a text: it has NUL bytes"),
        (b"\xff\xfe", "not valid UTF-8 at byte 0"),
        (b"just prose\n", "no line sets a variable; the first is 'just prose'"),
        (b"A=1\n" * 400_000, "larger than 1 MiB"),
        (b"\n" * 30_000, "30,000 lines of an environment, more than 20,000"),
    ],
)
def test_bad_input(cli: Cli, tmp_path: Path, data: bytes, error: str) -> None:
    (tmp_path / "bad").write_bytes(data)
    code, out, err = cli("bad")
    assert (code, out) == (2, "")
    assert err.splitlines()[0] == f"error: {error}"
    assert cli("missing")[0] == 2


def test_any_bytes_are_read_or_refused() -> None:
    """No text is an internal error: odd quotes, lone options, endless continuations."""
    for text in ("-e", "export", "A=b \\", "ENV A", "-x -x -x", "'" * 50, "\\\n" * 50, "name: A", "a;b;;&&|| #", ": x"):
        try:
            judge(text, where="guide")
        except BadInput:
            continue


@pytest.mark.parametrize(
    "text",
    ["A=" + "," * 900_000, "A: " + " " * 900_000 + "x", " " * 900_000 + "x=1", "NCCL_IB_HCA=" + "a," * 400_000,
     "\n".join(["A" * 50 + " # "] * 19_000),
     ("b" * 50 + "\\\n") * 19_000,
     ("{A: " * 4_000 + "\n") * 60, ("{A:'" * 4_000 + "\n") * 60,
     "- " * 450_000, ("NCCL_IB_HCA=" + ",:" * 2000 + "\n") * 240],
)  # fmt: skip
def test_the_largest_texts_take_little_time(text: str) -> None:
    before = time.process_time()
    with contextlib.suppress(BadInput):
        judge(text, where="guide")
    assert time.process_time() - before < 10  # docs/limits.md


def test_a_printed_line_is_safe_for_a_terminal(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.env").write_text("A=\x1b[31mred\n")
    assert "\x1b" not in cli("a.env")[1]
    assert io.StringIO(cli("a.env")[1]).readline() == "a.env: 1 unknown\n"


def test_what_has_no_value_is_printed_without_one(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.env").write_text('blacklist nouveau\nGRUB_CMDLINE_LINUX="quiet iommu=pt"\nNCCL_DEBUG=\n')
    cells = {cell.strip() for cell in re.split("  |\n", cli("a.env")[1])}
    assert {"blacklist nouveau", "quiet", "iommu=pt", "NCCL_DEBUG="} <= cells


# --- commands of guides -------------------------------------------------------------------------------------------

COMMANDS = tomllib.loads((ROOT / "cases/environment/commands.toml").read_text())["lines"]


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: row[0])
def test_commands_of_guides(row: list[str]) -> None:
    line = one(row[0])
    assert [line.name, line.value, line.verdict] == row[1:]
    assert line.source or line.verdict == "unknown"


def test_a_line_sets_several_things_and_variables_beside_them() -> None:
    taken_out = "sed -i '/^GRUB_CMDLINE_LINUX=/s/ intel_iommu=off / /' /etc/default/grub"
    assert set_by(f"{taken_out}\nA=b\n") == [(1, None, taken_out), (2, "A", "b")]
    assert set_by('GRUB_CMDLINE_LINUX="intel_iommu=on iommu=pt vfio-pci.ids=10de:2330 nosmt"\n') == [
        (1, "intel_iommu", "on"), (1, "iommu", "pt"), (1, "vfio_pci.ids", "10de:2330"), (1, "nosmt", ""),
    ]  # fmt: skip
    assert set_by("BOOT_IMAGE=/vmlinuz root=/dev/sda ro\n") == [  # /proc/cmdline
        (1, "BOOT_IMAGE", "/vmlinuz"), (1, "root", "/dev/sda"), (1, "ro", ""),
    ]  # fmt: skip
    assert set_by("modprobe -a gdrdrv nvidia-peermem\n") == [
        (1, "modprobe gdrdrv", ""), (1, "modprobe nvidia_peermem", ""),
    ]  # fmt: skip
    assert set_by("NCCL_DEBUG=INFO numactl --membind=0 mpirun -x NCCL_ALGO=Ring a\n") == [
        (1, "NCCL_DEBUG", "INFO"), (1, "NCCL_ALGO", "Ring"), (1, "numactl --membind", "0"),
    ]  # fmt: skip
    assert set_by("sudo -E A=b docker run -e NCCL_ALGO=Ring image C=d\n") == [(1, "A", "b"), (1, "NCCL_ALGO", "Ring")]
    assert set_by("nvidia-smi -pm 1 && echo 0 > /proc/sys/kernel/numa_balancing\n") == [
        (1, "kernel.numa_balancing", "0"), (1, "nvidia-smi -pm", "1"),
    ]  # fmt: skip


def test_each_command_of_a_sentence_is_read() -> None:
    assert set_by("Run `echo 1 > /proc/sys/vm/overcommit_memory`, then `export NCCL_P2P_DISABLE=1`.") == [
        (1, "vm.overcommit_memory", "1"),
        (1, "NCCL_P2P_DISABLE", "1"),
    ]


def test_the_kernel_log_names_its_arguments() -> None:
    log = "[    0.000000] Kernel command line: BOOT_IMAGE=(hd0,gpt2)/vmlinuz-5.14.0 root=/dev/mapper/a-root ro iommu=pt"
    assert set_by(log)[2:] == [(1, "ro", ""), (1, "iommu", "pt")]


def test_loops_over_files_are_read_across_lines() -> None:
    text = 'for c in /sys/devices/system/cpu/cpu*/cpuidle/state*/; do\n    echo 1 > "${c}disable"\ndone\n'
    assert set_by(text)[1:] == [
        (2, "/sys/devices/system/cpu/cpu*/cpuidle/state*/disable", "1"),
        (3, None, "done"),
    ]
    assert set_by("for c in $(seq 0 7)\ndo\n  echo $c > /proc/irq/$c/smp_affinity_list\ndone\n")[2][1] == (
        "/proc/irq/$c/smp_affinity_list"
    )


@pytest.mark.parametrize(
    "text",
    ["nvidia-smi -q -d ECC", "nvidia-smi --query-gpu=clocks.max.sm --format=csv -l 1", "cpupower frequency-info -c all",
     "numactl --hardware", "rocm-smi --showtopo", "modprobe -c | grep vfio", "sysctl -a | grep numa",
     "hl-smi -Q name", "x86_energy_perf_policy -r", "systemctl status irqbalance",
     "systemctl is-active irqbalance", "service irqbalance status"],
)  # fmt: skip
def test_commands_that_only_show_set_nothing(text: str) -> None:
    assert set_by(f"{text}\nA=b\n") == [(1, None, text), (2, "A", "b")]


def test_what_is_not_understood_comes_last_and_is_counted_apart(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "guide.txt").write_text("First some prose.\nNCCL_DEBUG=WARN\nFOO=1\n")
    lines = cli("guide.txt")[1].splitlines()
    assert lines[0] == "guide.txt: 1 right, 1 unknown, 1 line not understood"
    assert lines[-1].split() == ["1", "First", "some", "prose."]


@pytest.mark.parametrize(
    ("text", "verdict"),
    [("A=${A:-0}", "unknown"), ("NCCL_IB_DISABLE=${NCCL_IB_DISABLE:-1}", "harmful"),
     ("NCCL_IB_DISABLE=${NCCL_IB_DISABLE-0}", "useless"), ("NCCL_IB_DISABLE=${OTHER:-1}", "unknown"),
     ("NCCL_IB_DISABLE=${NCCL_IB_DISABLE:-$X}", "unknown")],
)  # fmt: skip
def test_of_a_default_of_its_own_that_is_judged(text: str, verdict: str) -> None:
    assert one(text).verdict == verdict


def test_hosttunes_own_setting_is_named() -> None:
    assert one("nvidia-smi -pm 1").setting == "persistence: true"
    assert one("NCCL_IB_DISABLE=1").setting is None


@pytest.mark.parametrize(
    "part",
    [
        *("echo ", "echo a > ", "sysctl -w ", "--args=", "for a in b; ", "GRUB_CMDLINE_LINUX='"),
        *("sudo -E ", 'A==1 RUN+="', "`a`", "$(", "for a in /x; $a", "'\"", "a.b=c "),
    ],
)
def test_long_commands_take_bounded_time(part: str) -> None:
    start = time.process_time()
    with contextlib.suppress(BadInput):
        judge("\n".join([part * (16_000 // len(part))] * 60), where="guide")
    assert time.process_time() - start < 5
