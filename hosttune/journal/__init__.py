"""The journal: what a transaction is about to do and has done, on disk before and after each change.

One file for each transaction under STATE/transactions, one JSON object on each line. Each line is synced before the
next step. The first line identifies the transaction. People can read the file; `recover` and `revert` depend on it.

    intent   this setting is about to change from `old` to `new`
    done     the result
    undo     it is about to be reverted
    undone   the result of that
    closed   the end: `applied`, `reverted`, or `kept` if the revert left something that others had changed

A revert is a transaction of its own: its intents put values back (`change: back`). `force` folds all journals to what
is in force.

After a crash the last line may be incomplete. No step depended on it yet, so it is dropped. Any other line that cannot
be read is an error that names the line: hosttune never guesses. Times are for people; the order is by number.
"""

from __future__ import annotations

from hosttune.journal.records import (
    JOURNAL_SCHEMA,
    OPEN_STATES,
    RETIRED,
    Header,
    Line,
    Record,
    Transaction,
    read_transaction,
)
from hosttune.journal.store import Journal, JournalFailed, Store

__all__ = [
    "JOURNAL_SCHEMA",
    "OPEN_STATES",
    "RETIRED",
    "Header",
    "Journal",
    "JournalFailed",
    "Line",
    "Record",
    "Store",
    "Transaction",
    "read_transaction",
]
