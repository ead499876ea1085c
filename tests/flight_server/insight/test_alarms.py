"""Alarms in the forms of their receivers, sent to local HTTP and SMTP servers; digests and silences."""

from __future__ import annotations

import asyncio
import email
import json
import threading
from datetime import UTC, datetime, timedelta
from email import policy

import pytest

from flight_server.core import config
from flight_server.core.alarm_address import alarm_address
from flight_server.insight import rules, webhook
from flight_server.insight.alarms import LINES, Alarms, bodies
from flight_server.insight.webhook import Webhook
from store.model.errors import InvalidArgument
from tests.http_receiver import receiving


def change(after, before="PASSED", column="id", rule="id: ndv > 5", value=3.0, detail="exact"):
    return {
        "column": column,
        "rule": rule,
        "level": "fail",
        "before": before,
        "after": after,
        "value": value,
        "detail": detail,
    }


def message(*changes, table="lake.s.<t>", owner=None):
    return {"table": table, "owner": owner, "snapshot_id": 1, "checked_at": "2026-01-01", "changes": list(changes)}


class Receiver(list):
    def post(self, *messages):
        self.append(messages)

    def stop(self):
        """Nothing to stop."""


class Time:
    now, today = 0.0, datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def gathering():
    time, receiver = Time(), Receiver()
    return time, receiver, Alarms([receiver], 60.0, lambda: time.now, lambda: time.today)


def told(receiver):
    return [[(one["table"], [c["after"] for c in one["changes"]]) for one in sent] for sent in receiver]


def test_digest_gathers_and_drops_what_recovered(gathering):
    time, receiver, alarms = gathering
    alarms.post(message(change("FAILED"), table="a"))
    alarms.post(message(change("FAILED"), change("LATE", rule="x"), table="b"))
    alarms.post(message(change("PASSED", "FAILED"), table="b"))
    alarms.post(message(change("WARNED"), table="c"))
    alarms.post(message(change("PASSED", "WARNED"), table="c"))
    assert receiver == []
    time.now = 60.0
    alarms.flush()
    assert told(receiver) == [[("a", ["FAILED"]), ("b", ["LATE"])]]
    alarms.flush()
    assert len(receiver) == 1


def test_silence_holds_alarms_until_its_end(gathering):
    time, receiver, alarms = gathering
    alarms.silences = [(("lake.*",), time.today + timedelta(hours=1))]
    alarms.post(message(change("FAILED"), table="lake.s.t"))
    alarms.post(message(change("FAILED"), table="other.s.t"))
    time.now = 61.0
    alarms.flush()
    assert told(receiver) == [[("other.s.t", ["FAILED"])]]
    time.today += timedelta(hours=2)
    alarms.flush()
    assert told(receiver)[1:] == [[("lake.s.t", ["FAILED"])]]


def test_without_a_digest_alarms_are_sent_at_once():
    receiver = Receiver()
    Alarms([receiver]).post(message(change("FAILED")))
    assert len(receiver) == 1


def test_silences_of_a_rules_file(tmp_path):
    path = tmp_path / "rules.toml"
    head = '[[rule]]\nexpect = "row_count > 0"\n[[silence]]\ntable = "lake.*"\n'
    path.write_text(head + "until = 2026-12-01T08:00:00Z\n")
    assert rules.load(path).silences == [(("lake.*",), datetime(2026, 12, 1, 8, tzinfo=UTC))]
    assert len(rules.load(path).rules) == 1
    path.write_text(head + 'until = "soon"\n')
    with pytest.raises(InvalidArgument, match="until"):
        rules.load(path)


# Forms.


def made(url, *messages):
    return [json.loads(body) for body in bodies(alarm_address(url), messages)]


def test_slack_shows_a_title_and_a_line_for_each_change():
    (body,) = made("slack+https://h/x", message(change("PASSED", "FAILED"), change("FAILED"), owner="ann"))
    assert body["text"] == "lake.s.&lt;t&gt;: 1 failed, 1 passed"
    text = body["blocks"][0]["text"]["text"].split("\n")
    assert text[1] == "FAILED lake.s.&lt;t&gt;: id: ndv &gt; 5 is 3; exact (owner ann)" and "PASSED" in text[2]
    (body,) = made("slack+https://h/x", message(*[change("FAILED")] * (LINES + 5)))
    assert body["blocks"][0]["text"]["text"].endswith("and 5 more")


@pytest.mark.parametrize(
    ("value", "detail", "told"),
    [
        (0.9999999, "", " is 0.9999999"),
        (1234567.0, "", " is 1,234,567"),
        (1 / 3, "a guess", " is 0.333333; a guess"),
        (None, "2025-12-31; inexact", ": 2025-12-31; inexact"),
        (None, "ndv is unknown", ": ndv is unknown"),
    ],
)
def test_value_is_neither_unknown_nor_whole_if_it_is_not(value, detail, told):
    (body,) = made("slack+https://h/x", message(change("FAILED", value=value, detail=detail)))
    assert body["blocks"][0]["text"]["text"].split("\n")[1] == f"FAILED lake.s.&lt;t&gt;: id: ndv &gt; 5{told}"


def test_teams_shows_a_card():
    (body,) = made("teams+https://h/x", message(change("FAILED"), table="a"), message(change("LATE"), table="b"))
    (attachment,) = body["attachments"]
    texts = [block["text"] for block in attachment["content"]["body"]]
    assert texts[0] == "2 tables: 1 failed, 1 late" and len(texts) == 3
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"


def test_pagerduty_triggers_and_resolves_an_incident_of_one_key():
    trigger, resolve = made(
        "pagerduty+https://KEY%2B@h/v2/enqueue", message(change("FAILED")), message(change("PASSED", "FAILED"))
    )
    assert (trigger["event_action"], resolve["event_action"]) == ("trigger", "resolve")
    assert trigger["dedup_key"] == resolve["dedup_key"] and trigger["routing_key"] == "KEY+"
    assert trigger["payload"]["severity"] == "error" and "payload" not in resolve


@pytest.mark.parametrize(
    "url",
    ["ftp://h/x", "slak+https://h", "pagerduty+https://h/v2", "smtp://h?from=a@b", "slack+https://", "smtp+http://h"],
)
def test_invalid_address_is_refused_with_an_example(url):
    with pytest.raises(InvalidArgument, match=r"://"):
        config.load(flags={"webhook": f"https://good/x {url}"}, environ={})


def test_addresses_are_secret():
    shown = {
        name: value for name, value, _ in config.effective(environ={"STATFLIGHT_WEBHOOK": "slack+https://h/secret"})
    }
    assert shown["webhook"] == "***"


# Deliveries.


@pytest.mark.parametrize("address", ["slack+http://", "teams+http://", "pagerduty+http://KEY@", "http://"])
def test_presets_are_delivered_without_key_and_preset_in_the_url(address):
    with receiving() as server:
        hook = Webhook(f"{address}127.0.0.1:{server.server_port}/v2/enqueue")
        (body,) = bodies(hook._parts, [message(change("FAILED"))])
        assert hook._deliver(body)
    ((method, path, _, given),) = server.requests
    assert (method, path) == ("POST", "/v2/enqueue") and json.loads(given) == json.loads(body)


@pytest.fixture
def mailbox():
    """A mail server that accepts everything: its port, and the mails that it was given."""
    mails: list[tuple[list[str], bytes]] = []

    async def talk(reader, writer):
        people: list[str] = []
        writer.write(b"220 here\r\n")
        while line := await reader.readline():
            word = line.split()[0].upper()
            if word == b"DATA":
                writer.write(b"354 go on\r\n")
                text = (await reader.readuntil(b"\r\n.\r\n"))[:-5]
                mails.append((people, text))
            elif word in (b"MAIL", b"RCPT"):
                people.append(line.decode().split("<")[1].split(">")[0])
            writer.write(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(talk, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield server.sockets[0].getsockname()[1], mails

    async def end():
        server.close()
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})  # else their sockets stay open
        loop.stop()

    asyncio.run_coroutine_threadsafe(end(), loop)
    thread.join()
    loop.close()


def test_mail_reaches_everybody(mailbox):
    port, mails = mailbox
    hook = Webhook(f"smtp://127.0.0.1:{port}?from=statflight@example.org&to=a@example.org&to=b@example.org")
    (body,) = bodies(hook._parts, [message(change("FAILED"), owner="Zoë")])
    assert hook._deliver(body)
    ((people, text),) = mails
    assert people == ["statflight@example.org", "a@example.org", "b@example.org"]
    mail = email.message_from_bytes(text, policy=policy.default)
    assert mail["Subject"] == "lake.s.<t>: 1 failed" and "(owner Zoë)" in mail.get_content()


def test_mail_server_that_is_gone_is_given_up(monkeypatch):
    monkeypatch.setattr(webhook, "PAUSES", ())
    hook = Webhook("smtp://127.0.0.1:1?from=a@b&to=c@d")
    assert not hook._deliver(next(bodies(hook._parts, [message(change("FAILED"))])))
