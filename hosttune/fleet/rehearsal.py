"""The results of `--check`: what would change on each host. Hosts with equal results are grouped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from hosttune.errors import BadInput
from hosttune.fleet.answers import read_answer
from hosttune.fleet.results import answer_path, read_file
from hosttune.model.result import Result


def rehearsals(results: str, verb: str, run: str, hosts: Sequence[str]) -> Iterator[tuple[tuple[str, ...], Result]]:
    """Yield (hosts, what would change on each of them), in the order of the first host of each group.

    Only one document is in memory at a time. Hosts without an answer of this run are left out; the report lists them.
    """
    alike: dict[bytes, list[str]] = {}
    for host in hosts:
        found = _result(results, verb, run, host)
        if found is not None:
            alike.setdefault(_key(found), []).append(host)
    for members in alike.values():
        found = _result(results, verb, run, members[0])
        if found is not None:
            yield tuple(members), found


def _result(results: str, verb: str, run: str, host: str) -> Result | None:
    if read_answer(results, host, verb, run, check=True).outcome != "ok":
        return None
    path = answer_path(results, host, verb, check=True)
    try:
        data = read_file(path)
        return Result.from_json(data, where=path) if data is not None else None
    except BadInput:
        return None  # the report shows the error


def _key(result: Result) -> bytes:
    """Return the key by which hosts are grouped: a hash of the result without the host's name."""
    import hashlib

    from hosttune.model.values import to_json

    return hashlib.sha256(to_json(msgspec.structs.replace(result, host=None)).encode()).digest()
