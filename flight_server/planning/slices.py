"""Slices of the files of a listing, which are planned one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SLICE: Final = 100_000
"""Files of a listing that are planned at once by readers that take plans in pages: 30 MB of rows if all are kept."""


@dataclass(frozen=True)
class Slice:
    """One of several parts of the files of a listing, by the hash of their paths.

    Attributes:
        number: The part, from 0.
        of: Number of parts.
    """

    number: int = 0
    of: int = 1

    @property
    def condition(self) -> str:
        """SQL that is true for the rows `s` of the part's files."""
        return "TRUE" if self.of == 1 else f"hash(s.file_path) % {self.of} = {self.number}"


WHOLE: Final = Slice()


def slices(files: int) -> list[Slice]:
    """The slices in which a number of files are planned."""
    number = max(1, -(-files // SLICE))
    return [Slice(at, number) for at in range(number)]
