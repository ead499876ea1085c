"""Sessions of browsers."""

from flight_server.faces.web import sessions


def test_session_has_its_token_until_it_ends(monkeypatch):
    kept = sessions.Sessions()
    first, second = kept.start("a"), kept.start("b")
    assert [kept.token(cookie) for cookie in (first, second, "other", "", None)] == ["a", "b", None, None, None]
    kept.end(first)
    assert (kept.token(first), kept.token(second)) == (None, "b")
    monkeypatch.setattr(sessions, "SECONDS", 0)
    assert kept.token(kept.start("c")) is None
