"""Host documents with something wrong in each: refused, or judged; never an error, never a bare result."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

from evidences import GIB, GPU, NIC, gpu, guest, host, nic, rdma, switch
from sweeps import examples

from hosttune.errors import BadInput
from hosttune.model.evidence import Evidence
from hosttune.model.host import GuestMemory, Host
from hosttune.rules.checks import judge

GARBAGE: tuple[Any, ...] = (
    None, 0, 1, -1, 3, 7.5, 1e308, "", "x", "0-3", "Y", "off", True, False, [], {}, GPU, 1 << 62, "\0", "ü" * 50, ["a"],
    {"a": 1},
)  # fmt: skip
DOCUMENTS = examples(300, full=1000)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every path in a document."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(value[key], (*path, key))


def spoil(document: Any, path: tuple[Any, ...], chance: random.Random) -> None:
    """Take one thing away, or put garbage in its place; a path that is gone meanwhile is left."""
    try:
        for key in path[:-1]:
            document = document[key]
        if chance.random() < 0.3:
            del document[path[-1]]
        else:
            document[path[-1]] = copy.deepcopy(chance.choice(GARBAGE))
    except (KeyError, IndexError, TypeError):
        return


def test_spoilt_documents_are_refused_or_judged() -> None:
    waiting = guest("b", (3, 7), (), state="shut off", memory=(GuestMemory(node=0, memory_bytes=GIB, page_bytes=GIB),))
    whole = host(pci=(*switch(), gpu(), nic()), guests=(guest(devices=(GPU, NIC)), waiting), nics=(rdma(),))
    document = json.loads(whole.to_json())
    paths = list(places(document))
    chance = random.Random(4)
    judged = 0
    for number in range(DOCUMENTS):
        spoilt = copy.deepcopy(document)
        for _ in range(chance.randint(1, 3)):
            spoil(spoilt, chance.choice(paths), chance)
        try:
            found = Host.from_json(json.dumps(spoilt))
        except BadInput:
            continue
        judged += 1
        complete = chance.choice((None, True))
        results = list(judge(Evidence(host=found, complete=complete, absent=chance.choice(((), ("/",))))))
        names = [(result.check, result.subject) for result in results]
        assert len(set(names)) == len(names), number
        for result in results:
            assert result.actual, result
            assert result.hint or result.outcome not in ("fail", "unknown"), result
            assert result.source or result.outcome not in ("pass", "warn", "fail"), result
    assert judged > DOCUMENTS // 5, "most were refused: nothing was proven"
