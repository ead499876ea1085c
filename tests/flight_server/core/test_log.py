"""The log: its two formats, its levels, and relayed output of workers."""

from __future__ import annotations

import io
import json
import logging
import os
import threading
import warnings
from collections.abc import Iterator

import pytest

from flight_server.core import audit_log
from flight_server.core.auth.principal import ALL_SCOPES, Principal
from flight_server.core.log import configure, relay

ME, WORKER = Principal("me", ALL_SCOPES), Principal("w", ALL_SCOPES)


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    own = logging.getLogger("statflight")
    handlers, level, own_level = root.handlers[:], root.level, own.level
    yield
    root.handlers[:], root.level, own.level = handlers, level, own_level
    logging.captureWarnings(False)


def configured_stream(form: str, level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    configure(level, form, stream)
    return stream


def events(stream: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_lines_have_time_level_logger_and_event_first():
    stream = configured_stream("json")
    logging.getLogger("statflight.server").warning("the lake %s is away", "l")
    audit_log.write("DoPut", ME, "c-1", flight="stats.tables", received=3)
    audit_log.refusal("DoGet", "me", "c-2", "UNKNOWN_TABLE", "no table" * 500, "ipv4:1")
    first, write, refusal = events(stream)
    assert list(first)[:4] == ["at", "level", "logger", "event"]
    assert (first["level"], first["logger"], first["event"]) == ("warning", "statflight.server", "the lake l is away")
    assert (write["event"], write["flight"], write["received"]) == ("write", "stats.tables", 3)
    assert (refusal["level"], refusal["code"], len(refusal["message"])) == ("warning", "UNKNOWN_TABLE", 500)


def test_exception_is_one_line_of_json_or_text_with_its_traceback():
    def fail(form: str) -> str:
        stream = configured_stream(form)
        try:
            raise ValueError("why")
        except ValueError:
            logging.getLogger("x").exception("it failed")
        return stream.getvalue()

    (line,) = fail("json").splitlines()
    assert "ValueError: why" in json.loads(line)["exception"]
    text = fail("text").splitlines()
    assert "it failed" in text[0] and "error" in text[0] and text[-1] == "ValueError: why"


def test_text_has_one_line_per_event():
    stream = configured_stream("text")
    audit_log.write("DoPut", ME, "c-1", received=3)
    (line,) = stream.getvalue().splitlines()
    assert all(part in line for part in ("write", "[statflight.audit]", "method=DoPut", "received=3"))
    assert "\x1b" not in line


def test_events_below_the_level_are_left_out():
    stream = configured_stream("json", "warning")
    audit_log.write("DoPut", ME, "c-1")
    logging.getLogger("statflight.server").info("quiet")
    logging.getLogger("statflight.server").error("loud")
    assert [event["event"] for event in events(stream)] == ["loud"]


def test_libraries_log_warnings_and_at_debug_everything():
    for level, expected in (("info", ["trouble"]), ("debug", ["detail", "trouble"])):
        stream = configured_stream("json", level)
        logging.getLogger("pyiceberg.io").info("detail")
        logging.getLogger("pyiceberg.io").warning("trouble")
        assert [event["event"] for event in events(stream)] == expected


def test_warnings_of_libraries_are_events():
    stream = configured_stream("json")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    (event,) = events(stream)
    assert event["logger"] == "py.warnings" and "DeprecationWarning: old" in event["event"]


def relayed_events(written: bytes) -> list[dict]:
    stream = configured_stream("json")
    reading, writing = os.pipe()
    thread = threading.Thread(target=relay, args=(reading,), kwargs={"worker": 7})
    thread.start()
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(written)
    thread.join(60)
    return events(stream)


def test_worker_events_keep_their_time_level_and_fields():
    event = {
        "at": "2024-01-01T00:00:00.000+00:00",
        "level": "error",
        "logger": "statflight.worker",
        "event": "x",
        "a": 1,
    }
    assert relayed_events(json.dumps(event).encode() + b"\n") == [event | {"worker": 7}]


def test_other_lines_of_a_worker_are_grouped_into_output_events():
    ours = json.dumps({"at": "t", "level": "info", "logger": "statflight.worker", "event": "mine"}).encode()
    trace = b"Traceback (most recent call last):\n  File ...\nZeroDivisionError: x\n"
    found = relayed_events(
        trace + ours + b"\n26/11/22 WARN TaskSetManager: Lost task\n\nlast words without an end \xff"
    )
    assert [event["event"] for event in found] == ["output", "mine", "output", "output"]
    assert found[0]["text"] == trace.decode().rstrip() and found[0]["worker"] == 7
    assert found[3]["text"].startswith("last words")


def test_malformed_event_line_is_relayed_as_output():
    (found,) = relayed_events(b'{"at": broken\n{"at": 1}\n')
    assert found["event"] == "output" and found["text"] == '{"at": broken\n{"at": 1}'


def test_audit_log_of_a_publication_names_columns_version_and_orphans():
    stream = configured_stream("json")
    published = {"columns": ["a", "b"], "snapshot_id": 7, "removed_orphans": ["old.puffin"]}
    audit_log.action(
        "publish",
        json.dumps({"table": "l.s.t", "to": "iceberg"}).encode(),
        ME,
        "c-1",
        [published],
    )
    (line,) = events(stream)
    assert (line["columns"], line["version"], line["removed_orphans"]) == (["a", "b"], 7, ["old.puffin"])
    assert (line["table"], line["to"]) == ("l.s.t", "iceberg")


def test_audit_log_omits_inspections_and_reads():
    stream = configured_stream("json")
    for job_id in ("look-1", "task-2", "3"):
        audit_log.action("finish_job", json.dumps({"job_id": job_id}).encode(), WORKER, "c")
        audit_log.action("finish_jobs", json.dumps({"finishes": [{"job_id": job_id}]}).encode(), WORKER, "c")
    audit_log.action("read", b"{}", WORKER, "c")
    assert [event.get("job_id") or event["job_ids"] for event in events(stream)] == ["task-2", ["task-2"], "3", ["3"]]
