"""Google's and Azure's stores on loopback, as far as reads need them: the objects are the files of a folder.

`python cloud_servers.py google|azure FOLDER` prints its port. Google: the JSON API that pyarrow uses, the XML API of
object_store, and `/token` for keys of service accounts; while `FOLDER.tokens` exists, JSON of `key` (public, PEM) and
`token`, callers must send the token issued for the key. Azure: Blob, path style, every request signed with the
account's key.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import sys
import threading
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

ACCOUNT = "testaccount"
KEY = base64.b64encode(b"a key of thirty-two bytes, nearly").decode()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        self.query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        self.route(unquote(url.path).lstrip("/"))

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self.do_GET()

    def route(self, path: str) -> None:
        raise NotImplementedError

    def log_message(self, *args) -> None:
        pass

    def answer(self, status: int, body: bytes | str | dict = b"", **headers: str) -> None:
        text = json.dumps(body) if isinstance(body, dict) else body
        content = text.encode() if isinstance(text, str) else text
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def list_objects(self, bucket: str, prefix: str, delimiter: str) -> tuple[list[tuple[str, Path]], list[str]]:
        """Objects, and the common prefixes of the others."""
        objects, prefixes = [], set()
        home = self.folder / bucket
        for file in sorted(file for file in home.rglob("*") if file.is_file()):
            name = file.relative_to(home).as_posix()
            if name.startswith(prefix):
                inner, cut, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
                prefixes.add(f"{prefix}{inner}{cut}") if cut else objects.append((name, file))
        return objects, sorted(prefixes)

    def content(self, file: Path, **headers: str) -> None:
        whole = file.read_bytes()
        span = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("x-ms-range") or self.headers.get("Range") or "")
        headers |= {"Last_Modified": _at(file), "ETag": '"1"', "Accept_Ranges": "bytes"}
        if span is None or not whole:
            return self.answer(200, whole, **headers)
        first = int(span[1]) if span[1] else max(0, len(whole) - int(span[2]))
        last = min(int(span[2]), len(whole) - 1) if span[1] and span[2] else len(whole) - 1
        part = whole[first : last + 1]
        return self.answer(206, part, Content_Range=f"bytes {first}-{last}/{len(whole)}", **headers)


def _at(file: Path) -> str:
    return formatdate(file.stat().st_mtime, usegmt=True)


class Google(Handler):
    def route(self, path: str) -> None:
        if path == "token":
            return self.token()
        secrets = self.tokens()
        if secrets and self.headers.get("Authorization") != f"Bearer {secrets['token']}":
            return self.answer(401, {"error": {"code": 401, "message": "the token is not valid"}})
        found = re.fullmatch(r"(?:download/)?storage/v1/b/([^/]+)(?:/o(?:/(.+))?)?", path)
        if found is None:
            return self.xml(*path.partition("/")[::2])
        bucket, name = found.groups()
        if name is None:
            objects, prefixes = self.list_objects(bucket, self.query.get("prefix", ""), self.query.get("delimiter", ""))
            return self.answer(200, {"items": [self.metadata(bucket, n, f) for n, f in objects], "prefixes": prefixes})
        file = self.folder / bucket / name
        if not file.is_file():
            return self.answer(404, {"error": {"code": 404, "message": "Not Found"}})
        if self.query.get("alt") == "media":
            return self.content(file)
        return self.answer(200, self.metadata(bucket, name, file))

    def xml(self, bucket: str, name: str) -> None:
        if name:
            file = self.folder / bucket / name
            return self.content(file) if file.is_file() else self.answer(404)
        objects, prefixes = self.list_objects(bucket, self.query.get("prefix", ""), self.query.get("delimiter", ""))
        after = self.query.get("start-after", "")
        return self.answer(
            200,
            "<ListBucketResult>"
            + "".join(
                f"<Contents><Key>{escape(n)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                f"<Size>{f.stat().st_size}</Size><ETag>1</ETag></Contents>"
                for n, f in objects
                if n > after
            )
            + "".join(f"<CommonPrefixes><Prefix>{escape(p)}</Prefix></CommonPrefixes>" for p in prefixes)
            + "</ListBucketResult>",
        )

    def metadata(self, bucket: str, name: str, file: Path) -> dict:
        at = "2026-01-01T00:00:00.000Z"
        return {
            "kind": "storage#object",
            "bucket": bucket,
            "name": name,
            "size": str(file.stat().st_size),
            "generation": "1",
            "metageneration": "1",
            "timeCreated": at,
            "updated": at,
        }

    def tokens(self) -> dict:
        file = self.folder.with_name(f"{self.folder.name}.tokens")
        return json.loads(file.read_text()) if file.exists() else {}

    def token(self) -> None:
        import jwt

        sent = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        secrets = self.tokens()
        home = f"http://{self.headers['Host']}/token"
        try:
            claims = jwt.decode(sent["assertion"][0], secrets["key"], ["RS256"], audience=home)
        except (jwt.PyJWTError, KeyError):
            return self.answer(400, {"error": "invalid_grant"})
        fits = claims["iss"] and "devstorage" in claims["scope"]
        return self.answer(200, {"access_token": secrets["token"], "expires_in": 3600}) if fits else self.answer(400)


class Azure(Handler):
    def route(self, path: str) -> None:
        if not self.signed():
            return self.error(403, "AuthenticationFailed")
        account, _, rest = path.partition("/")
        container, _, name = rest.partition("/")
        if account != ACCOUNT or not (self.folder / container).is_dir():
            return self.error(404, "ContainerNotFound")
        if self.query.get("action") == "getAccessControl":
            return self.error(400, "HierarchicalNamespaceNotEnabled")
        if self.query.get("comp") == "list":
            return self.blobs(container)
        if not name:
            return self.answer(200, **self.common(), Last_Modified=formatdate(usegmt=True), ETag='"1"')
        file = self.folder / container / name
        if not file.is_file():
            return self.error(404, "BlobNotFound")
        kind = {
            "x_ms_blob_type": "BlockBlob",
            "x_ms_creation_time": formatdate(usegmt=True),
            "x_ms_server_encrypted": "true",
        }
        return self.content(file, **kind, **self.common())

    def error(self, status: int, code: str) -> None:
        if self.command == "HEAD":
            return self.answer(status, x_ms_error_code=code, **self.common())
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>"
        return self.answer(status, body, x_ms_error_code=code, Content_Type="application/xml", **self.common())

    def common(self) -> dict[str, str]:
        return {"x_ms_version": "2021-12-02", "x_ms_request_id": "1", "Date": formatdate(usegmt=True)}

    def blobs(self, container: str) -> None:
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter", "")
        objects, prefixes = self.list_objects(container, prefix, delimiter)
        inner = "".join(
            f"<Blob><Name>{escape(n)}</Name><Properties><Creation-Time>{_at(f)}</Creation-Time>"
            f"<Last-Modified>{_at(f)}</Last-Modified><Etag>1</Etag><Content-Length>{f.stat().st_size}</Content-Length>"
            "<Content-Type>application/octet-stream</Content-Type><BlobType>BlockBlob</BlobType></Properties></Blob>"
            for n, f in objects
        )
        inner += "".join(f"<BlobPrefix><Name>{escape(p)}</Name></BlobPrefix>" for p in prefixes)
        body = f"<Prefix>{escape(prefix)}</Prefix><Blobs>{inner}</Blobs><NextMarker/>"
        body = f"<EnumerationResults ContainerName='{container}'>{body}</EnumerationResults>"
        head = "<?xml version='1.0' encoding='utf-8'?>"
        self.answer(200, head + body, Content_Type="application/xml", **self.common())

    def signed(self) -> bool:
        """True if the Shared Key signature is that of the request and the account's key."""
        url = urlsplit(self.path)
        plain = [
            "Content-Encoding",
            "Content-Language",
            "Content-Length",
            "Content-MD5",
            "Content-Type",
            "Date",
            "If-Modified-Since",
            "If-Match",
            "If-None-Match",
            "If-Unmodified-Since",
            "Range",
        ]
        values = [self.headers.get(name) or "" for name in plain]
        values[2] = "" if values[2] == "0" else values[2]
        sent = sorted((name.lower(), value.strip()) for name, value in self.headers.items())
        ms_headers = [(name, value) for name, value in sent if name.startswith("x-ms-")]
        lines = [self.command, *values, *(f"{name}:{value}" for name, value in ms_headers), f"/{ACCOUNT}{url.path}"]
        lines += sorted(f"{name.lower()}:{value}" for name, value in parse_qsl(url.query, True))
        digest = hmac.new(base64.b64decode(KEY), "\n".join(lines).encode(), hashlib.sha256).digest()
        return hmac.compare_digest(
            self.headers.get("Authorization") or "", f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        )


def main(kind: str, folder: str) -> None:
    handler = {"google": Google, "azure": Azure}[kind]
    handler.folder = Path(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
