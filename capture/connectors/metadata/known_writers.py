"""Writers whose bounds were shown to be right: of Parquet files, Delta logs and Iceberg manifests.

A bound from metadata allows to skip data only if its writer, in that version, is known to write bounds of its type
right. Bounds of any other are stored with a doubt, the reason for people, until the data was read.
`tests/capture/connectors/metadata/test_known_writers.py` writes with those that are installed, and compares their
bounds with the values; the others are compared in files of the test lakes. The guide `skip_files.md` has the same
table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final, TypeAlias

from store.model.logical_types import Kind

Version: TypeAlias = tuple[int, ...]

NUMBERS: Final = frozenset(
    {"BOOLEAN", "INT", "FLOAT", "DOUBLE", "DATE", "TIME", "TIMESTAMP", "TIMESTAMPTZ"}
    | {"DECIMAL in INT32", "DECIMAL in INT64"}
)
FLOATS: Final = frozenset({"FLOAT", "DOUBLE"})
UNSIGNED: Final = frozenset({"INT unsigned"})
TEXTS: Final = frozenset({"STRING", "BINARY", "BINARY in FIXED_LEN_BYTE_ARRAY"})
UUIDS: Final = frozenset({"UUID in FIXED_LEN_BYTE_ARRAY"})
HALVES: Final = frozenset({"FLOAT in FIXED_LEN_BYTE_ARRAY"})
WIDE_DECIMALS: Final = frozenset({"DECIMAL in FIXED_LEN_BYTE_ARRAY"})
_LOGGED: Final = frozenset(
    {"BOOLEAN", "INT", "FLOAT", "DOUBLE", "DECIMAL", "STRING", "DATE", "TIMESTAMP", "TIMESTAMPTZ"}
)
_IN_MANIFESTS: Final = _LOGGED | {"TIME", "UUID", "BINARY"}


@dataclass(frozen=True, slots=True, eq=False)  # hashed by identity, for the cache of doubts
class Known:
    """A writer, some of its versions, and types of which it writes bounds right.

    Attributes:
        name: Name in lower case, as metadata has it.
        since: First version; empty for a writer that names none.
        until: First version that was not shown; empty for none.
        types: Output of `bound_type`, in logs and manifests the logical type without parameters.
        shown: How it was shown, for people.
    """

    name: str
    since: Version
    until: Version
    types: frozenset[str]
    shown: str

    def has(self, name: str, version: Version) -> bool:
        """True for a version of this writer."""
        return self.name == name and self.since <= version and (not self.until or version < self.until)


_WRITTEN: Final = "written and compared by the tests"
_LAKES: Final = "compared in files of the test lakes"
_OF_ARROW: Final = "what parquet-cpp-arrow was before; compared in files of the test lakes"
_OF_RUST: Final = "the library of delta-rs and DataFusion; compared in files of the test lakes"

PARQUET: Final = (
    Known("parquet-cpp-arrow", (1,), (27,), NUMBERS | UNSIGNED | TEXTS | UUIDS, _WRITTEN),
    Known("parquet-cpp-arrow", (4,), (27,), WIDE_DECIMALS, _WRITTEN),
    Known("parquet-cpp-arrow", (15,), (27,), HALVES, _WRITTEN),
    Known("parquet-cpp", (1,), (2,), NUMBERS, _OF_ARROW),
    Known("parquet-cpp", (1, 3), (2,), UNSIGNED | TEXTS, _OF_ARROW),
    Known("parquet-mr", (1,), (2,), NUMBERS - {"TIME"}, _WRITTEN),
    Known("parquet-mr", (1, 10), (2,), WIDE_DECIMALS | {"STRING", "BINARY"}, _WRITTEN),
    Known("parquet-mr", (1, 10), (2,), UUIDS, _LAKES),
    Known("duckdb", (1,), (3,), NUMBERS | UNSIGNED | TEXTS | UUIDS | WIDE_DECIMALS, _WRITTEN),
    Known("parquet-rs", (53,), (60,), NUMBERS | UNSIGNED | TEXTS | HALVES | WIDE_DECIMALS, _OF_RUST),
    Known("delta-rs", (1,), (2,), NUMBERS | UNSIGNED | TEXTS | HALVES | WIDE_DECIMALS, _WRITTEN),
    Known("datafusion", (55,), (56,), NUMBERS | UNSIGNED | TEXTS | HALVES | WIDE_DECIMALS, _WRITTEN),
    Known("polars", (), (), (NUMBERS - FLOATS) | UNSIGNED | TEXTS, _WRITTEN),
)
"""By `created_by` of a footer. A version is taken for known up to the next major one after the newest that was shown;
Polars names none."""

UNNAMED: Final = "(none named)"
"""Name of the writer of a log or manifest that names none."""

DELTA: Final = (
    Known("apache-spark", (3,), (5,), _LOGGED, _LAKES),
    Known("databricks-runtime", (), (), _LOGGED, _LAKES),
    Known("delta-rs", (), (2,), _LOGGED, _WRITTEN),
    Known(UNNAMED, (), (), _LOGGED, _LAKES),
)
"""By `engineInfo` of a commit. Checkpoints name no writer, nor do old commits: their statistics are taken for known
unless a commit since names a writer that is not, which may have written the others too."""

ICEBERG: Final = (
    Known("apache iceberg", (1,), (2,), _IN_MANIFESTS, _LAKES),
    Known(UNNAMED, (), (), _IN_MANIFESTS, "written by pyiceberg, which names none, and compared by the tests"),
)
"""By `iceberg-version`, else `engine-name`, of the summary of the snapshot that added a file. Summaries of expired
snapshots are gone, and name none."""


def bound_type(kind: Kind, physical: str = "", *, unsigned: bool = False) -> str:
    """The words for the type of a bound: its logical type, and the physical one where writers differ by that."""
    if kind is Kind.DECIMAL or physical == "FIXED_LEN_BYTE_ARRAY":
        return f"{kind} in {physical}" if physical else str(kind)
    return f"{kind} unsigned" if unsigned else str(kind)


@dataclass(frozen=True, slots=True)
class WriterName:
    """The name that a writer gave itself.

    Attributes:
        text: The whole, for patterns.
        name: Name in lower case, without the version.
        label: Name and version for people.
    """

    text: str = ""
    name: str = ""
    version: Version = ()
    label: str = ""

    @classmethod
    def of(cls, text: str | None, pattern: re.Pattern[str]) -> WriterName:
        """Splits a name into what the groups `name` and `version` of a pattern match; the whole is the name of one
        that it does not match."""
        text = (text or "").strip()
        match = pattern.match(text)
        if match is None:
            return cls(text, text.lower(), (), text)
        version = match["version"] or ""
        numbers = tuple(int(part) for part in version.split("-")[0].split(".")[:3] if part.isdigit())
        return cls(text, match["name"].lower(), numbers, f"{match['name']} {version}".strip())


CREATED_BY: Final = re.compile(r"(?P<name>\S.*?)\s+version\s+(?:v|py-|rust-)?(?P<version>\d+(?:\.\d+)*)")
ENGINE_INFO: Final = re.compile(r"(?P<name>[^/:\s]+)[/:](?:py-|rust-)?(?P<version>\d+(?:\.\d+)*)?")
ICEBERG_VERSION: Final = re.compile(r"(?P<name>\S.*?)\s+(?P<version>\d+(?:\.\d+)*)")

NOT_NAMED: Final = WriterName()

_patterns: tuple[str, ...] = ()


def trust(patterns: Iterable[str]) -> None:
    """Sets the patterns of writers that are taken as known by this process.

    Args:
        patterns: Shell patterns (`*`, `?`, `[…]`), compared without case with a writer's name, its name and version,
            and the whole of what metadata says of it.
    """
    global _patterns
    _patterns = tuple(pattern.lower() for pattern in patterns)
    doubt.cache_clear()


@lru_cache(4096)
def doubt(known: Sequence[Known], writer: WriterName, type: str) -> str:
    """The reason why bounds of a type may be wrong, for people; empty if their writer is known to write them right.

    Args:
        known: PARQUET, DELTA or ICEBERG.
        type: Output of `bound_type`.
    """
    if any(type in of.types and of.has(writer.name, writer.version) for of in known):
        return ""
    names = {writer.name, writer.label.lower(), writer.text.lower()}
    if any(fnmatchcase(name, pattern) for name in names for pattern in _patterns):
        return ""
    return f"writer {writer.label or '(not named)'} is not known for {type}"


def table() -> str:
    """The known writers as a table in Markdown, for the guide."""
    rows = ["| metadata | writer | versions | types | how it was shown |", "|---|---|---|---|---|"]
    for metadata, known in (("Parquet footer", PARQUET), ("Delta log", DELTA), ("Iceberg manifest", ICEBERG)):
        for of in known:
            since, until = (".".join(map(str, version)) for version in (of.since, of.until))
            versions = " ".join([*([f"from {since}"] if since else []), *([f"before {until}"] if until else [])])
            types = ", ".join(sorted(of.types))
            rows.append(f"| {metadata} | {of.name} | {versions or 'any'} | {types} | {of.shown} |")
    return "\n".join(rows)
