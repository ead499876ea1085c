"""Publishes and withdraws statistics, with retries after lost races against other writers."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, TypeVar

from capture.publishers.spi import CURRENT, DRY_RUN, Draft, LostRace, Publication, Publisher
from store.model.errors import InvalidArgument, StatflightError, UpstreamError, first_line, may_pass

T = TypeVar("T")

ATTEMPTS: Final = 8
FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 2.0


def publish(publisher: Publisher, *, dry_run: bool = False, pause: Callable[[float], None] = time.sleep) -> Publication:
    """Publishes the statistics of a publisher.

    Args:
        pause: Sleeps for a number of seconds between attempts.

    Raises:
        Conflict: The table has a newer snapshot than the statistics.
        InvalidArgument: The home cannot store the table, or none of its columns.
        LostRace: Other writers won every attempt.
        UpstreamError: The home cannot be read or written.
    """

    def attempt_once() -> Publication:
        draft = publisher.prepare()
        if not draft.distinct:
            raise InvalidArgument(
                f'{publisher.home} can store none of the columns of "{publisher.statistics.full_name}"'
                + (f": {_reasons(draft.left_out)}" if draft.left_out else ""),
            )
        if dry_run or draft.is_current:
            return _publication(publisher, draft, draft.made_snapshot_id, DRY_RUN if dry_run else CURRENT)
        made_snapshot_id = publisher.write(draft)
        location = publisher.verify(draft)
        published = _publication(publisher, draft, made_snapshot_id, CURRENT)
        return replace(published, location=location, removed_orphans=tuple(publisher.removed_orphans))

    return _with_retries(_translated(publisher)(attempt_once), pause)


def withdraw(publisher: Publisher, *, pause: Callable[[float], None] = time.sleep) -> bool:
    """Removes published statistics from a home; False if it had none.

    Raises:
        InvalidArgument: The home may not be written.
        LostRace: Other writers won every attempt.
        UpstreamError: The home cannot be read or written.
    """
    return _with_retries(_translated(publisher)(publisher.withdraw), pause)


def _with_retries(attempt_once: Callable[[], T], pause: Callable[[float], None]) -> T:
    """Repeats an attempt after each lost race, with growing random pauses."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return attempt_once()
        except LostRace as race:
            if attempt == ATTEMPTS:
                raise LostRace(f"{race}; gave up after {ATTEMPTS} attempts", hint="try again") from None
        longest = min(FIRST_PAUSE_SECONDS * 2**attempt, LONGEST_PAUSE_SECONDS)
        pause(random.uniform(longest / 2, longest))  # noqa: S311  spreads writers, no secret
    raise AssertionError("the last attempt returns or raises")


@contextmanager
def _translated(publisher: Publisher) -> Iterator[None]:
    """Translates errors of a home and of its library; messages have the table's name."""
    try:
        yield
    except StatflightError:
        raise
    except Exception as error:  # libraries pass errors of JSON and Avro on
        statistics = publisher.statistics
        table, number = f'{publisher.home}: table "{statistics.full_name}"', getattr(error, "errno", None)
        if isinstance(error, PermissionError) or number in (13, 30):  # EACCES, EROFS
            raise InvalidArgument(
                f"{table} may not be written: permission denied",
                code="READ_ONLY",
                hint="give the worker's user or credentials the permission to write there",
            ) from None
        publisher.destination.connector.describe(statistics.namespace, statistics.name)  # it may be gone
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {first_line(error)}"
        failed = UpstreamError(f"{table} cannot be read or written ({reason})")
        failed.retryable = may_pass(error)
        raise failed from error


def _publication(publisher: Publisher, draft: Draft, made_snapshot_id: int | None, state: str) -> Publication:
    detail = [draft.detail] if draft.detail else []
    if draft.is_current and state == CURRENT:
        detail.append("already published")
    detail += dict.fromkeys(publisher.remarks)
    if draft.left_out:
        detail.append(f"left out: {_reasons(draft.left_out)}")
    return Publication(
        draft.snapshot_id,
        publisher.home,
        state,
        draft.location,
        tuple(draft.distinct),
        "; ".join(detail),
        made_snapshot_id,
        draft.left_out,
    )


def _reasons(left_out: Mapping[str, str], most: int = 8) -> str:
    """The first columns with their reasons."""
    shown = [f"{column} ({why})" for column, why in list(left_out.items())[:most]]
    return ", ".join(shown) + (f" and {len(left_out) - most} more" if len(left_out) > most else "")
