"""The merge of staged rows with stored ones, as values: which rows to insert, and what becomes of the stored ones.

Records, listings of files, and listings that are stored in pieces or as segments differ in the query of their stored
rows and in how spans are written. What becomes of each row is decided here, once:

| the stored row is | and the put has | it |
|---|---|---|
| of the put's own snapshot or listing (`OWN`) | the same content | stays (`leave`) |
| | other content, or (`is_absent`) nothing about its target | leaves this listing only (`split`) |
| of the listing before, which a new one continues (`EARLIER`) | the same content | stays: its span covers both |
| | other content, or nothing | ends where the new listing begins (`close`) |
| one that ended where the listing begins (`ENDED`) | the same content, and nothing stayed for it | goes on (`extend`) |
| by an earlier piece of this put (`ASKED`, `FILLED`) | the same content | stays, and counts as received only |
| | other content | leaves: it began here, so nothing is left of it (`split`) |
| of the listing before, had by an earlier piece (`CARRIED`) | as of `EARLIER`, but counts as those of this put | |

Rows of the put for which nothing stays and nothing goes on are inserted. A put in mode FILL leaves whatever its own
snapshot has, unless the engine of both doubts the one and not the other (`relabelled`). In mode CREATE other content
for an own row is a conflict; other content for a row that this put has already stored is two rows for one target.

A new listing lacks all rows of the one before that do not stay, which may be millions. They are not handed over:
SQL ends them as the complement of `leave`, in one statement (`SpanMerge`) or in pieces (`StagedListing`), and
a listing of segments ends whole segments (`SegmentListing`). Only what leaves a listing that is stored already comes by
its ids.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store.model.puts import Counts, PutMode

Mask: TypeAlias = npt.NDArray[np.bool_]
Ids: TypeAlias = npt.NDArray[np.int64]


class Standing(IntEnum):
    """Relation of a stored row to the snapshot, or the listing of files, that is put."""

    OWN = 0  # a row of it
    EARLIER = 1  # of the listing before, if this one is new
    ENDED = 2  # it ended where the listing begins
    ASKED = 3  # stored by an earlier piece of this put
    FILLED = 4  # the same, in mode FILL
    CARRIED = 5  # of the listing before; an earlier piece of this put had it too


_REPEATED: Final = (Standing.ASKED, Standing.FILLED, Standing.CARRIED)
_BEGUN_EARLIER: Final = (Standing.EARLIER, Standing.CARRIED)


@dataclass(frozen=True, slots=True)
class Stored:
    """Stored rows beside the staged rows about their targets; arrays of one length, an entry for each pair.

    Attributes:
        row: Number of the staged row; -1 for a stored row whose target the put lacks (mode REPLACE_SNAPSHOT).
        standing: `Standing` of the stored row.
        same: The content of both is equal.
        relabelled: The engine of both doubts the one and not the other; only for mode FILL.
    """

    row: Ids
    standing: npt.NDArray[np.int8]
    same: Mask
    relabelled: Mask

    @classmethod
    def of(cls, found: pa.Table, standing: npt.ArrayLike) -> Stored:
        """Stored rows as `Staged.matches` returns them.

        Args:
            standing: `Standing` of each row, or of all.
        """
        standings = np.broadcast_to(np.asarray(standing, np.int8), found.num_rows)
        same, relabelled = (found[name].fill_null(False).to_numpy() for name in ("same", "relabelled"))
        return cls(found["row_no"].fill_null(-1).to_numpy(), standings, same, relabelled)


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of a merge: masks over the pairs of `Stored`, of which each pair has one at most, and one over rows.

    Attributes:
        insert: The staged rows to insert.
        close: Rows that end where the listing begins.
        split: Rows that leave the listing, or snapshot, and no other one.
        extend: Rows that go on for the listing.
        leave: Rows that stay as they are.
        is_absent: Stored rows about whose targets nothing was put; they are in `close` or `split`.
        conflict: The first pair that mode CREATE refuses; None if there is none.
        repeated: The first pair of two different rows of this put for one target; None if there is none.
        unchanged: Number of rows of the snapshot that were put again.
        replaced: Number of rows of the snapshot that others replace.
        again: Number of rows that an earlier piece of this put had.
    """

    insert: Mask
    close: Mask
    split: Mask
    extend: Mask
    leave: Mask
    is_absent: Mask
    conflict: int | None
    repeated: int | None
    unchanged: int
    replaced: int
    again: int

    def counts(self, received: int) -> Counts:
        """The effect of the put.

        Args:
            received: Number of its rows, with duplicates.
        """
        created = len(self.insert) - self.unchanged - self.replaced - self.again
        return Counts(received, created, self.unchanged, self.replaced)


def merge(staged_rows: int, stored: Stored, mode: PutMode) -> Merged:
    """Merges a put into what is stored.

    Args:
        staged_rows: Number of the put's rows, one at most for each target.
        stored: The stored rows about their targets; those about others only if they have to leave.
        mode: The rule for targets that are stored already.
    """
    is_absent = stored.row < 0
    is_own = stored.standing == Standing.OWN
    is_ended = stored.standing == Standing.ENDED
    is_repeated = _is_in(stored.standing, _REPEATED)

    stays = stored.same
    if mode is PutMode.FILL:
        stays = stays | is_repeated | (is_own & ~stored.relabelled)
    leave = stays & ~is_ended & ~is_absent
    is_done: Mask = np.zeros(staged_rows, np.bool_)
    is_done[stored.row[leave]] = True
    extend = stored.same & is_ended & ~is_absent
    extend[extend] = ~is_done[stored.row[extend]]
    is_done[stored.row[extend]] = True

    goes = ~leave & ~is_ended
    begins_earlier = _is_in(stored.standing, _BEGUN_EARLIER)
    is_other = goes & ~is_absent
    # what a capture was asked for replaces what it was not asked for
    refused = (Standing.ASKED,) if mode is PutMode.CAPTURE else (Standing.ASKED, Standing.CARRIED)
    return Merged(
        insert=~is_done,
        close=goes & begins_earlier,
        split=goes & ~begins_earlier,
        extend=extend,
        leave=leave,
        is_absent=is_absent,
        conflict=_first(is_other & is_own) if mode is PutMode.CREATE else None,
        repeated=_first(is_other & _is_in(stored.standing, refused)),
        unchanged=int((leave & is_own).sum()),
        replaced=int((is_other & is_own).sum()),
        again=int((leave & is_repeated).sum()),
    )


def _is_in(standing: npt.NDArray[np.int8], some: Collection[Standing]) -> Mask:
    return np.isin(standing, [*some])


def _first(mask: Mask) -> int | None:
    """The first place where a mask is true."""
    return int(mask.argmax()) if mask.any() else None
