"""Fields of audit events."""

from __future__ import annotations

import importlib.util
import logging
import sys

import pytest

from flight_server.core import audit_log
from flight_server.core.auth.principal import ALL_SCOPES, Principal

OWN = Principal("internal", ALL_SCOPES, is_own=True)
BODY = b'{"table": "lake.s.t", "requests": [{}], "finishes": [{"job_id": "a"}]}'


@pytest.mark.parametrize(("caller", "level"), [(Principal("a", ALL_SCOPES), "INFO"), (OWN, "DEBUG")])
def test_calls_of_own_workers_are_events_of_debug_with_counts(caplog, caller, level):
    with caplog.at_level(logging.DEBUG, "statflight.audit"):
        audit_log.action("finish_jobs", BODY, caller, "id")
    (record,) = caplog.records
    assert record.levelname == level
    assert record.statflight_fields["job_ids"] == (["a"] if level == "INFO" else 1)


def test_no_call_describes_types_which_two_threads_must_not_do_at_once():
    spec = importlib.util.spec_from_file_location("fresh_audit_log", audit_log.__file__)
    fresh = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = fresh
    called = set()
    try:
        spec.loader.exec_module(fresh)
        sys.setprofile(lambda frame, event, _: called.add((frame.f_globals.get("__name__"), event)))
        fields = fresh.of_body(BODY)
    finally:
        sys.setprofile(None)
        del sys.modules[spec.name]
    assert fields == {"table": "lake.s.t", "requests": 1, "job_ids": ["a"]}
    assert ("fresh_audit_log", "call") in called and ("msgspec._utils", "call") not in called
