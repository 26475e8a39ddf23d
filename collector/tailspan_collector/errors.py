"""Why an insert into ClickHouse failed; what to do is part of the type.

InsertError
├── DataError        ClickHouse cannot decode the data: trying again cannot help, isolate the request
├── TransientError   not reachable, no room, no grant, no table, a broken view: try again until it works
├── TooLargeError    out of memory: try again a few times, then less at once
└── UnclearError     anything else: try again a few times, then treat it as a DataError
"""

from __future__ import annotations

import re

_CODE = re.compile(r"Code: (\d+)")
_OUT_OF_MEMORY = 241

# Names: system.errors. Decoding and conversion errors that depend on nothing but the bytes.
_DATA_CODES = frozenset({6, 25, 26, 27, 32, 33, 53, 69, 70, 72, 117, 128, 131, 321, 349, 434, 436, 443, 444, 523, 698})
_TRANSIENT_CODES = frozenset(
    {
        *(74, 75, 76, 243, 359),  # disks
        *(3, 198, 209, 210, 279, 425, 473),  # network, locks
        *(159, 173, 201, 202, 203, 236, 252, 394),  # quotas, limits, too many parts, shutdown
        *(225, 242, 285, 286, 319, 999),  # replicas, quorum, Keeper
        *(16, 60, 81),  # a column, table or database that an operator has to create
        *(115, 164, 192, 193, 194, 452, 497, 516),  # grants, passwords, profiles
    }
)


class InsertError(Exception):
    """An insert failed; `code` is ClickHouse's error code, 0 if there is none."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class DataError(InsertError):
    """ClickHouse cannot decode the data."""


class TransientError(InsertError):
    """The target cannot take data now."""


class TooLargeError(InsertError):
    """The target has not the memory for so much at once."""


class UnclearError(InsertError):
    """Neither known to be the data's fault nor known to pass."""


# A damaged length makes ClickHouse ask for as much memory at once as no honest batch (16 MB) needs, or go beyond the
# limit of one insert; a machine that is short of memory fails at small sizes.
_ASKS_TOO_MUCH = re.compile(
    r"allocate chunk of [\d.]+ (GiB|TiB|PiB|EiB)|Too large size|limit exceeded for query|Query memory limit"
)


_SIGNS_OF_DATA = ("Invalid protobuf data", "Too many partitions for single INSERT block")

# A view behind a stored table: by then its source may hold the rows, so only the same token may follow. Such a view
# reads columns that are known, so that its failing is never the fault of the data.
_BEHIND_SPANS = re.compile(r"while pushing to view \S+: while pushing to view \S*\bspans_mv\b")


def classify(text: str, code: int | None = None) -> InsertError:
    """Turn ClickHouse's error text into the error that says what to do."""
    found = _CODE.search(text)
    number = code if code is not None else int(found[1]) if found else 0
    if _BEHIND_SPANS.search(text):
        return TransientError(number, text)
    if number in _DATA_CODES or any(sign in text for sign in _SIGNS_OF_DATA) or _ASKS_TOO_MUCH.search(text):
        return DataError(number, text)
    if number == _OUT_OF_MEMORY:
        return TooLargeError(number, text)
    if number in _TRANSIENT_CODES:
        return TransientError(number, text)
    return UnclearError(number, text)
