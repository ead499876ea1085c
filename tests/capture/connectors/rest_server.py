"""A small Iceberg REST catalog for tests, over pyiceberg's SqlCatalog, in a process of its own.

`python rest_server.py FOLDER` keeps its tables below FOLDER and prints its port. While there is `FOLDER/token`, callers
must send its text as bearer token; while there is `FOLDER/aws`, JSON of `access_key`, `secret`, `region` and `service`,
they must sign their requests (Signature Version 4), and the token of `session` with them, if there is one. While there
is `FOLDER/page`, a number, listings have pages of that size. `FOLDER/fault` is JSON about the next responses:
`{"status": 500, "times": 2}` or `{"seconds": 5, "times": 1}`, with `"about"` only for paths that end with it, with
`"method"` only for that method; with `"done": true` the request is carried out first. Completed requests are lines of
`FOLDER/log`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import sys
import threading
import time
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, parse_qsl, quote, unquote, urlsplit

SEPARATOR = "\x1f"
LOCK = threading.Lock()


class Refused(Exception):
    def __init__(self, status: int, kind: str, message: str):
        super().__init__(message)
        self.status, self.kind = status, kind


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path
    catalog: object

    def do_GET(self) -> None:
        self._serve("GET")

    do_HEAD = do_POST = do_DELETE = lambda self: self._serve(self.command)

    def log_message(self, *args) -> None:
        pass

    def _serve(self, method: str) -> None:
        url = urlsplit(self.path)
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.loads(sent) if sent else {}
        self._sent = sent
        try:
            self._fault()
            self._authorized()
            self._signed(sent)
            with LOCK:
                status, answer = self._route(method, url.path.strip("/").split("/"), parse_qs(url.query), body)
        except Refused as refused:
            status = refused.status
            answer = {"error": {"message": str(refused), "type": refused.kind, "code": status}}
        with (self.folder / "log").open("a") as log:
            log.write(f"{method} {url.path} {status}\n")
        content = b"" if answer is None or method == "HEAD" else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _fault(self) -> None:
        path = self.folder / "fault"
        with LOCK:
            if not path.exists():
                return
            fault = json.loads(path.read_text())
            if not urlsplit(self.path).path.endswith(fault.get("about", "")):
                return
            if fault.get("method", self.command) != self.command:
                return
            fault["times"] -= 1
            path.unlink() if fault["times"] <= 0 else path.write_text(json.dumps(fault))
        time.sleep(fault.get("seconds", 0))
        if fault.get("done"):  # only the response is lost
            sent = json.loads(self._sent)
            url = urlsplit(self.path)
            with LOCK:
                self._route(self.command, url.path.strip("/").split("/"), {}, sent)
        if "status" in fault:
            raise Refused(fault["status"], "ServiceUnavailable", "a fault set by the test")

    def _authorized(self) -> None:
        token = self.folder / "token"
        if token.exists() and self.headers.get("Authorization") != f"Bearer {token.read_text().strip()}":
            raise Refused(401, "NotAuthorizedException", "the token is not valid")

    def _signed(self, sent: bytes) -> None:
        """Checks Signature Version 4, computed from the received request and the secret alone."""
        settings = self.folder / "aws"
        if not settings.exists():
            return
        expected = json.loads(settings.read_text())
        credentials = re.fullmatch(
            r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/([^/]+)/aws4_request, "
            r"SignedHeaders=([^,]+), Signature=([0-9a-f]{64})",
            self.headers.get("Authorization") or "",
        )
        if credentials is None:
            raise Refused(403, "ForbiddenException", "the request is not signed")
        key, day, region, service, names, signature = credentials.groups()
        if (key, region, service) != (expected["access_key"], expected["region"], expected["service"]):
            raise Refused(403, "ForbiddenException", "the signature is by another key, or for another service")
        if expected.get("session") and (
            self.headers.get("x-amz-security-token") != expected["session"]
            or "x-amz-security-token" not in names.split(";")
        ):
            raise Refused(403, "ForbiddenException", "the session token is missing or not signed")
        digest, at = hashlib.sha256(sent).hexdigest(), self.headers.get("x-amz-date") or ""
        sent_digest = self.headers.get("x-amz-content-sha256", digest)
        if sent_digest != digest or not at.startswith(day) or not {"host", "x-amz-date"} <= set(names.split(";")):
            raise Refused(403, "ForbiddenException", "the signature leaves out what matters")
        canonical = hashlib.sha256(self._canonical(names, digest).encode()).hexdigest()
        text = "\n".join(["AWS4-HMAC-SHA256", at, f"{day}/{region}/{service}/aws4_request", canonical])
        derived = f"AWS4{expected['secret']}".encode()
        for part in (day, region, service, "aws4_request", text):
            derived = hmac.new(derived, part.encode(), hashlib.sha256).digest()
        if not hmac.compare_digest(derived.hex(), signature):
            raise Refused(403, "ForbiddenException", "the signature does not match")

    def _canonical(self, names: str, digest: str) -> str:
        """Canonical form of the request, which client and server sign."""
        url = urlsplit(self.path)
        query = sorted((quote(k, safe="-_.~"), quote(v, safe="-_.~")) for k, v in parse_qsl(url.query, True))
        headers = [f"{name}:{' '.join((self.headers.get(name) or '').split())}" for name in names.split(";")]
        lines = [self.command, quote(url.path, safe="/-_.~"), "&".join(f"{k}={v}" for k, v in query)]
        return "\n".join([*lines, *headers, "", names, digest])

    def _route(self, method: str, path: list[str], query: dict, body: dict) -> tuple[int, dict | None]:
        from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError, NoSuchTableError

        parts = [tuple(unquote(part).split(SEPARATOR)) for part in path[1:]]
        words = ["".join(part) for part in parts]
        try:
            match (method, words):
                case ("GET", ["config"]):
                    return 200, {"defaults": {}, "overrides": {}}
                case ("GET", ["namespaces"]):
                    parent = tuple(query["parent"][0].split(SEPARATOR)) if "parent" in query else ()
                    return 200, self._page("namespaces", map(list, self.catalog.list_namespaces(parent)), query)
                case ("POST", ["namespaces"]):
                    self.catalog.create_namespace(tuple(body["namespace"]))
                    return 200, {"namespace": body["namespace"], "properties": {}}
                case ("GET" | "HEAD", ["namespaces", _]):
                    return 200, {
                        "namespace": list(parts[1]),
                        "properties": self.catalog.load_namespace_properties(parts[1]),
                    }
                case ("GET", ["namespaces", _, "tables"]):
                    found = self.catalog.list_tables(parts[1])
                    listed = ({"namespace": list(t[:-1]), "name": t[-1]} for t in found)
                    return 200, self._page("identifiers", listed, query)
                case ("POST", ["namespaces", _, "tables"]):
                    return 200, self._create(parts[1], body)
                case ("GET" | "HEAD", ["namespaces", _, "tables", name]):
                    return 200, _loaded(self.catalog.load_table((*parts[1], name)))
                case ("POST", ["namespaces", _, "tables", name]):
                    return 200, self._commit((*parts[1], name), body)
                case ("DELETE", ["namespaces", _, "tables", name]):
                    self.catalog.drop_table((*parts[1], name))
                    return 204, None
                case ("POST", ["tables", "rename"]):
                    was, now = ((*body[side]["namespace"], body[side]["name"]) for side in ("source", "destination"))
                    self.catalog.rename_table(was, now)
                    return 204, None
        except NoSuchTableError as missing:
            raise Refused(404, "NoSuchTableException", str(missing)) from None
        except NoSuchNamespaceError as missing:
            raise Refused(404, "NoSuchNamespaceException", str(missing)) from None
        except CommitFailedException as late:
            raise Refused(409, "CommitFailedException", str(late)) from None
        raise Refused(404, "NotFound", f"{method} {'/'.join(path)}")

    def _page(self, name: str, listed: Iterable[object], query: dict) -> dict:
        """A listing, or a page of it and the token of the next page."""
        size, whole = self.folder / "page", list(listed)
        if not size.exists():
            return {name: whole}
        start = int(query.get("pageToken", ["0"])[0])
        stop = start + int(size.read_text())
        return {name: whole[start:stop]} | ({"next-page-token": str(stop)} if stop < len(whole) else {})

    def _create(self, namespace: tuple[str, ...], body: dict) -> dict:
        from pyiceberg.schema import Schema

        table = self.catalog.create_table(
            (*namespace, body["name"]), Schema.model_validate(body["schema"]), properties=body.get("properties") or {}
        )
        return _loaded(table)

    def _commit(self, identifier: tuple[str, ...], body: dict) -> dict:
        from pyiceberg.catalog.rest import CommitTableRequest

        body.setdefault("identifier", {"namespace": list(identifier[:-1]), "name": identifier[-1]})
        request = CommitTableRequest.model_validate(body)
        table = self.catalog.load_table(identifier)
        done = self.catalog.commit_table(table, tuple(request.requirements), tuple(request.updates))
        return {"metadata-location": done.metadata_location, "metadata": json.loads(done.metadata.model_dump_json())}


def _loaded(table) -> dict:
    return {
        "metadata-location": table.metadata_location,
        "metadata": json.loads(table.metadata.model_dump_json()),
        "config": {},
    }


def main(folder: str) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    Handler.folder = Path(folder)
    Handler.catalog = SqlCatalog("c", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/wh")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
