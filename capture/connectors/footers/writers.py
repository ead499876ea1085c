"""Writers of Parquet files whose statistics or calendar differ from what the file says.

Which writers are known to be right is declared in `known_writers`. Bounds that were shown to be wrong are not even
estimates:

| writer | bounds that are wrong, and so ignored |
|---|---|
| parquet-cpp before 1.3 | all but those of signed numbers: compared as signed bytes |
| parquet-mr before 1.8 (PARQUET-251) | of byte arrays |
| parquet-cpp(-arrow) before 4.0 (PARQUET-1655, PARQUET-2003), parquet-rs before 10 | of decimals in byte arrays |
| Polars, of any version: it names none | of decimals in byte arrays; of floats: without pages that have a NaN |
| parquet-go up to 0.32 | of decimals in byte arrays of varying length |
| parquet-rs before 5.2 | of byte arrays: shorter ones counted as lesser |
| Spark before 3.0 (INT96: 3.1), and later in its legacy mode | of dates before 1582-10-15, of timestamps before 1900 |

parquet-java and Arrow ignore the first three, too. In Spark's legacy mode, which it marks in the footer, days before
1582-10-15 are those of the Julian calendar, and timestamps before 1900 depend on the local mean time of a zone: scans
rebase the former, and refuse the latter except in UTC. Timestamps without a zone, other than INT96, are Spark's
TIMESTAMP_NTZ, which it always writes in the Gregorian calendar.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from capture.connectors.metadata.known_writers import CREATED_BY, NOT_NAMED, PARQUET, WriterName, doubt

SPARK: Final = b"org.apache.spark."
"""Prefix of the footer's metadata that Spark writes."""

GREGORIAN_DAY: Final = -141_427  # 1582-10-15, the first day of the Gregorian calendar, in days since 1970
ZONED_US: Final = -2_208_988_800_000_000  # 1900-01-01T00:00:00Z; before, zones had local mean times
DAY_US: Final = 86_400_000_000

Metadata: TypeAlias = Mapping[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Writer:
    """The application that wrote a file, and the calendar it used.

    Attributes:
        application: Name and version of the application.
        legacy: True if dates and timestamps are in Spark's legacy calendar.
        legacy_int96: The same of INT96 timestamps.
        is_spark: True if Spark wrote the file; its INT96 timestamps have microseconds.
        zone: The session's time zone, as Spark recorded it.
    """

    application: WriterName = NOT_NAMED
    legacy: bool = False
    legacy_int96: bool = False
    is_spark: bool = False
    zone: str = ""

    @classmethod
    def of(cls, created_by: str | None, metadata: Metadata) -> Writer:
        """The writer of a file, by `created_by` and the key-value metadata of its footer."""
        spark = metadata.get(SPARK + b"version")
        since = _version((spark or b"").decode(errors="replace"))
        return cls(
            WriterName.of(created_by, CREATED_BY),
            legacy=SPARK + b"legacyDateTime" in metadata or (spark is not None and since < (3,)),
            legacy_int96=SPARK + b"legacyINT96" in metadata or (spark is not None and since < (3, 1)),
            is_spark=spark is not None,
            zone=metadata.get(SPARK + b"timeZone", b"").decode(errors="replace"),
        )

    @property
    def name(self) -> str:
        """Name of the application, in lower case; empty if unknown."""
        return self.application.name

    @property
    def version(self) -> tuple[int, ...]:
        """Version of the application; empty if unknown."""
        return self.application.version

    def doubt(self, type: str) -> str:
        """The reason why this writer's bounds of a type (`known_writers.bound_type`) may be wrong; empty if they are
        known to be right."""
        return doubt(PARQUET, self.application, type)

    @property
    def miscounts_nulls(self) -> bool:
        """True for a writer whose null counts above 0 may be wrong: Polars counts those of a chunk once for each page,
        as seen in version 1.44."""
        return self.name == "polars"

    @property
    def keeps_bytes_whole(self) -> bool | None:
        """True for a writer that never truncates bounds of byte arrays (though it does not flag them); None if
        unknown. parquet-cpp omits long bounds; parquet-mr may be configured to truncate since 1.11."""
        if self.name in ("parquet-cpp", "parquet-cpp-arrow"):
            return True
        return True if self.name == "parquet-mr" and self.version[:2] == (1, 10) else None

    def has_wrong_bounds(self, physical: str, is_decimal: bool, is_signed: bool) -> bool:
        """True if this writer's bounds of a column may exclude values.

        Args:
            is_signed: True for signed numbers, dates and times.
        """
        in_bytes = physical in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
        match self.name:
            case "parquet-cpp" | "parquet-cpp-arrow":
                if self.name == "parquet-cpp" and self.version < (1, 3):
                    return in_bytes or not is_signed
                return in_bytes and is_decimal and (self.name == "parquet-cpp" or self.version < (4,))
            case "parquet-mr":
                return in_bytes and self.version < (1, 8)
            case "parquet-rs":
                return in_bytes and (self.version < (5, 2) or (is_decimal and self.version < (10,)))
            case "polars":
                return (in_bytes and is_decimal) or physical in ("FLOAT", "DOUBLE")
            case "github.com/parquet-go/parquet-go" | "github.com/segmentio/parquet-go":
                return physical == "BYTE_ARRAY" and is_decimal and self.version < (0, 33)
        return False


UNKNOWN: Final = Writer()


def rebased_days(days: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Days of Spark's legacy calendar as days of the Gregorian one, of the same year, month and day, as Spark reads.

    Args:
        days: Days since 1970, shape (n,).

    Returns:
        Days since 1970, shape (n,).
    """
    old = days < GREGORIAN_DAY
    if not old.any():
        return days
    # a year that begins in March ends with the leap day; both calendars then count days in the same way within it
    since = days[old] + 719_470  # days since 0000-03-01 of the Julian calendar
    years = (4 * since + 3) // 1461
    within = since - 365 * years - years // 4
    centuries, of = years // 100, years % 100
    # 0000-03-01 of the Gregorian calendar is day -719,468
    gregorian = centuries // 4 * 146_097 + centuries % 4 * 36_524 + of * 365 + of // 4 + within - 719_468
    rebased = days.copy()
    rebased[old] = gregorian
    return rebased


def rebased_micros(micros: npt.NDArray[np.int64], zone: str) -> npt.NDArray[np.int64]:
    """Timestamps of Spark's legacy calendar, as `rebased_days` does.

    Args:
        micros: Microseconds since 1970 in UTC, shape (n,).
        zone: Time zone of the session that wrote them.

    Raises:
        ValueError: One is before 1900, and the zone may have had another offset from UTC then.
    """
    if not len(micros) or micros.min() >= ZONED_US:
        return micros
    if zone not in ("UTC", "Etc/UTC", "GMT", "Z"):
        raise ValueError(
            f"it has timestamps before 1900 in Spark's legacy calendar, of the zone {zone or '(not recorded)'}"
        )
    days, rest = np.divmod(micros, DAY_US)
    return rebased_days(days) * DAY_US + rest


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text.split("-")[0])[:3])
