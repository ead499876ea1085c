"""Fields of audit events."""

from __future__ import annotations

import importlib.util
import sys

from flight_server.core import audit_log

BODY = b'{"table": "lake.s.t", "requests": [{}], "finishes": [{"job_id": "a"}]}'


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
