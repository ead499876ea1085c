"""The ledger: how many claims were compared with an independent reader, and how many were wrong.

A claim is one served value that one independent reading can refute:

- bound: the minimum or maximum of a column in a file or table, which encloses every live value, and is one of them if
  it says so. However many values there are, it is one claim. Of wide tables those that are PRUNING count, of random
  lakes those of complete rows.
- count: a number of rows, nulls or NaNs of a file, a column or a table, or of a table's files.
- distinct count: a number of distinct values that is called exact.
- distinct interval: the limits of a number of distinct values, which hold for 95 of 100.
- planned file: a decision about one file of one planned scan: it is skipped, so that no row may match, or every row of
  it matches. A file that is merely kept claims nothing, and does not count.
- answer: one value that statistics answer: a count, a minimum or a maximum.

Two readings of the same decision, as of NaN, are one claim. What was not served, such as an unknown bound, is none.
Peers are asked the same questions; what they say is counted apart.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Final, NamedTuple

KINDS: Final = ("bound", "count", "distinct count", "distinct interval", "planned file", "answer")
INTERVAL: Final = "distinct interval"
CONFIDENCE: Final = 0.95
DEVIATIONS: Final = 6.0
"""Standard deviations by which more intervals than one of twenty may miss before they are called wrong."""


class Source(NamedTuple):
    """The writer and the format of a table."""

    format: str
    writer: str


@dataclass
class Ledger:
    """Counts of claims, by kind and source.

    Attributes:
        claims: Kind and source → claims compared.
        missed: Intervals of distinct values without the true number; one of twenty may be.
        wrong: Each claim that was wrong: kind, table with its seed, and what was claimed.
        unjudged: What could not be judged, and why.
        peers: Name of a peer and what it was asked → answers compared, and those unlike the independent reading.
        unlike: Each answer of a peer that was unlike: table with its seed, and what was asked.
    """

    claims: Counter[tuple[str, Source]] = field(default_factory=Counter)
    tables: dict[str, Source] = field(default_factory=dict)
    missed: int = 0
    wrong: list[str] = field(default_factory=list)
    unjudged: list[str] = field(default_factory=list)
    peers: dict[str, tuple[int, int]] = field(default_factory=dict)
    unlike: list[str] = field(default_factory=list)

    def page(self, table: str, source: Source) -> Page:
        """The page of a table.

        Args:
            table: Its name, with the seed that makes it again.
        """
        return Page(self, table, source)

    def asked(self, peer: str, compared: int, unlike: int) -> None:
        """Counts answers of a peer."""
        before = self.peers.get(peer, (0, 0))
        self.peers[peer] = before[0] + compared, before[1] + unlike

    def total(self, kind: str | None = None) -> int:
        """The claims of a kind, or all."""
        return sum(count for (of, _), count in self.claims.items() if kind in (None, of))

    @property
    def intervals_hold(self) -> bool:
        """True unless more intervals miss than chance explains."""
        count, share = self.total(INTERVAL), 1 - CONFIDENCE
        return self.missed <= share * count + DEVIATIONS * math.sqrt(share * CONFIDENCE * count)

    @property
    def holds(self) -> bool:
        """True if claims were compared, all that was begun, and none was wrong."""
        return bool(self.total()) and not self.wrong and not self.unjudged and self.intervals_hold

    def report(self, seconds: float, seeds: str) -> str:
        """The figures as text, one line each."""
        sources = sorted(set(self.tables.values()))
        formats, writers = ({getattr(source, name) for source in sources} for name in Source._fields)
        lines = [f"{kind:18} {self.total(kind):>15,}" for kind in KINDS]
        lines.append(f"{'claims':18} {self.total():>15,}")
        lines.append(f"{'wrong':18} {len(self.wrong):>15,}")
        if self.unjudged:
            lines.append(f"{'not judged':18} {len(self.unjudged):>15,}")
        intervals = self.total(INTERVAL)
        lines.append(
            f"{self.missed:,} of {intervals:,} distinct intervals miss the number; {intervals / 20:,.0f} may at 95 %"
        )
        for source in sources:
            of_source = sum(count for (_, of), count in self.claims.items() if of == source)
            tables = sum(of == source for of in self.tables.values())
            lines.append(f"  {source.format}, by {source.writer}: {tables:,} tables, {of_source:,} claims")
        for peer, (compared, unlike) in sorted(self.peers.items()):
            lines.append(f"peer {peer}: {compared:,} compared, {unlike:,} unlike")
        lines += [f"  unlike: {answer}" for answer in self.unlike]
        lines.append(
            f"{self.total():,} claims about {len(self.tables):,} tables, {len(writers)} writers and {len(formats)} "
            f"formats in {seconds:,.0f} s: {len(self.wrong):,} wrong; seeds {seeds}"
        )
        return "\n".join(lines)


@dataclass
class Page:
    """The claims about one table."""

    ledger: Ledger
    table: str
    source: Source

    def count(self, kind: str, claims: int = 1) -> None:
        """Counts claims that were compared; it takes the table as one of those claimed about."""
        assert kind in KINDS, kind
        if claims:
            self.ledger.tables[self.table] = self.source
            self.ledger.claims[kind, self.source] += claims

    def wrong(self, kind: str, claim: str) -> None:
        """Notes a claim, counted by `count` too, that is wrong."""
        self.ledger.wrong.append(f"WRONG {kind}, {self.table} ({self.source.format}, by {self.source.writer}): {claim}")

    def interval(self, holds: bool) -> None:
        """Counts an interval of distinct values."""
        self.count(INTERVAL)
        self.ledger.missed += not holds
