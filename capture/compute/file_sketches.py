"""Sketches of files: how precise they are kept, so that their size stays in proportion to the data.

A file's sketch is kept as it was computed if it takes at most `SHARE` of the bytes of its column. Others, those of
small files, are cut to the precision that a table of so many files needs of each: many files together have the table's
precision from few values of each. Sets of at most `FEW` values stay exact.

Cut theta sketches are together as precise as whole ones where files have values of their own, but less so where they
share them. `is_sufficient` tells; if they are not, the files are read again.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from capture.compute.partial import Partial
from capture.spec import FileSketches
from store.model import sketches
from store.model.sketches import KLL_K, THETA_K

SHARE: Final = 0.04
"""Share of a column's bytes in a file that each of its sketches may take uncut."""
HEAD_BYTES: Final = 20
WIDE: Final = 1000
"""Columns of a table beyond which a file keeps no sketches that are larger than the data they are of."""
FEW: Final = 64
"""Distinct values of a column in a file that are kept whatever their size."""
_UNION: Final = 3 * THETA_K  # hashes in all files: their common theta is the least, well below the mean
_SIGMAS: Final = 2  # 95 %


class Keeping(NamedTuple):
    """The sketches of files that later captures reuse.

    Attributes:
        wanted: What is kept as a rule.
        uncut: Ids of columns of which whole sketches are kept.
        files: Live files of the table.
        columns: Columns of the table.
    """

    wanted: FileSketches
    uncut: frozenset[int]
    files: int
    columns: int

    def of(self, column_id: int, part: Partial, size_bytes: int, path: str) -> Partial | None:
        """The statistics of a column of a file with what is kept; None if nothing is.

        Args:
            part: The same with whole sketches.
            size_bytes: Bytes of the column in the file.
            path: The file's path.
        """
        if self.wanted is FileSketches.NONE:
            return None
        if self.wanted is FileSketches.FULL or column_id in self.uncut:
            return part
        return kept(part, size_bytes, self.files, path, self.columns)


def kept(part: Partial, size_bytes: int, files: int, path: str, columns: int) -> Partial | None:
    """The sketches of a file's column that later captures reuse, cut to what they need; None if reading the column
    again costs no more than reading its sketches, of which a wide table would have a lot.

    Args:
        part: Statistics of the column.
        size_bytes: Bytes of the column in the file.
        files: Live files of the table.
        path: The file's path.
        columns: Columns of the table.
    """
    small = cut(part, size_bytes, files, path)
    size = sum(len(data) for data in (small.theta, small.kll, small.mcv) if data is not None)
    return None if columns > WIDE and size > size_bytes else small


def cut(part: Partial, size_bytes: int, files: int, path: str) -> Partial:
    """Cuts the sketches of a file's column to the precision that a table needs of each of its files.

    Args:
        files: Live files of the table.
        path: The file's path. It decides which values stand for their neighbours, so that errors of files cancel out.
    """
    theta, kll, most = part.theta, part.kll, SHARE * size_bytes
    hashes = max(FEW, math.ceil(_UNION / files))
    if theta is not None and len(theta) > most and hashes < THETA_K:
        theta = sketches.union([theta], hashes)
    k = max(8, math.ceil(_SIGMAS * KLL_K / math.sqrt(files)))
    if kll is not None and len(kll) > most and k < KLL_K:
        kll = min(kll, sketches.merge_kll([kll], k, zlib.crc32(path.encode())), key=len)
    return part if (theta, kll) == (part.theta, part.kll) else replace(part, theta=theta, kll=kll)


def cut_k(role: str, head: bytes) -> int | None:
    """The k of a cut sketch: hashes of NDV, accuracy of QUANTILES; None for one as precise as that of a scan.

    Args:
        head: Its first `HEAD_BYTES` bytes, or more.
    """
    if role == "NDV" and head[0] & 0x3F == 3:  # with a theta
        return k if (k := int.from_bytes(head[8:12], "little")) < THETA_K else None
    return k if role == "QUANTILES" and (k := sketches.kll_step(head)[0]) < KLL_K else None


def is_sufficient(union: bytes | None, quantiles: Sequence[tuple[bytes, int]]) -> bool:
    """True if the sketches of files give the precision that a scan of the files gives.

    The rank error of a cut sketch has a mean of 0 and a standard deviation of at most half a step. That of all of them,
    at 95 %, may be as much as that of a whole sketch of their values.

    Args:
        union: Union of the theta sketches; None if there is one of whole sketches.
        quantiles: KLL sketch of each file and the number of its values; empty if there are none.
    """
    if union is not None:
        state = sketches.read_theta(union)
        if not state.exact and len(state.hashes) < THETA_K:
            return False
    steps = [step for k, step in (sketches.kll_step(data) for data, _ in quantiles) if k < KLL_K]
    error = _SIGMAS * math.sqrt(sum(step * step for step in steps)) / 2
    return not steps or error * KLL_K <= sum(count for _, count in quantiles)
