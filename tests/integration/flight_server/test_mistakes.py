"""Mistakes people make on the command line: each is answered in one line that says what was looked for and what to do,
with the exit status of the documentation, and nothing on standard output."""

from __future__ import annotations

import hashlib
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from flight_server import cli
from tests.flight_server import certificates
from tests.flight_server.live_server import STATFLIGHT, eventually, serving
from tests.store.empty_store import empty_store

LOOKED_FOR: Final = "looked for a table of Delta, Hudi, Iceberg, Lance, Paimon or Parquet"
NOBODY: Final = "grpc://127.0.0.1:9"
UNPRIVILEGED: Final = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")  # root without its right to read all
MANY: Final = 3000  # directories


@dataclass
class World:
    """What the mistakes are made with: a directory, and two servers.

    Attributes:
        uri: A server without TLS and tokens; it has the lake in `lake/`.
        pages: Host and port of its pages.
        secure: A server that requires TLS and a token.
        roots: The file of its certificate.
    """

    folder: Path
    uri: str
    pages: str
    secure: str
    roots: Path

    def run(self, *arguments: object, **more: Any) -> subprocess.CompletedProcess[str]:
        """Runs a command line in a process of its own."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("STATFLIGHT_", "AWS_"))}
        env = clean | {"STATFLIGHT_SERVER": self.uri} | more.pop("env", {})
        command = [*more.pop("before", ()), STATFLIGHT, *map(str, arguments)]
        given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8", "errors": "replace"} | more
        return subprocess.run(command, cwd=self.folder, env=env, timeout=60, check=False, **given)


@dataclass
class Mistake:
    """A command line, and what is said about it.

    Attributes:
        arguments: Of the command; `{uri}` and the like stand for the attributes of the world.
        said: What the line has, in this order.
        status: The exit status.
        make: Prepares the directory.
        before: What the command is run by.
    """

    arguments: str
    said: Sequence[str]
    status: int = 1
    make: Callable[[Path], object] = lambda _: None
    env: dict[str, str] = field(default_factory=dict)
    before: Sequence[str] = ()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder, plain, secured = (tmp_path_factory.mktemp(name) for name in ("work", "plain", "secured"))
    orders = pa.table({"id": list(range(20)), "amount": [each / 4 for each in range(20)]})
    write_deltalake(folder / "lake/orders", orders)
    write_deltalake(folder / "lake/lines", orders)
    pq.write_table(orders, folder / "x.parquet")
    pair = certificates.make("server")
    cert, key = pair.write(secured)
    tokens = secured / "tokens.toml"
    digest = hashlib.sha256(b"right").hexdigest()
    tokens.write_text(f'[[token]]\nname = "t"\nsha256 = "{digest}"\nscopes = ["stats.read"]\n')
    lake = (folder / "lake", "--http-port", 0, "--workers", 1)
    tls = ("--tls-cert", cert, "--tls-key", key, "--auth", tokens)
    with serving(plain, *lake) as one, serving(secured, *tls) as other:
        (pages,) = eventually(lambda: re.findall(r"pages on http://([\d.:]+)", one.log.read_text()))
        yield World(folder, one.uri, pages, other.uri, cert)


def texts(folder: Path) -> None:
    (folder / "notes").mkdir(exist_ok=True)
    (folder / "notes/readme.txt").write_text("no data")


def many(folder: Path) -> None:
    """A directory with more directories than are looked through."""
    for number in range(MANY):
        (folder / f"huge/{number}").mkdir(parents=True, exist_ok=True)


def shut(folder: Path) -> None:
    shutil.copy(folder / "x.parquet", folder / "shut.parquet")
    (folder / "shut.parquet").chmod(0)


def cut(folder: Path) -> None:
    (folder / "cut.parquet").write_bytes((folder / "x.parquet").read_bytes()[:300])


def encrypted(folder: Path) -> None:
    (folder / "secret.parquet").write_bytes(b"PARE" + bytes(100) + (60).to_bytes(4, "little") + b"PARE")


def vanished(folder: Path) -> None:
    write_deltalake(folder / "gone", pa.table({"id": [1]}), mode="overwrite")
    for file in (folder / "gone").glob("*.parquet"):
        file.unlink()


def unsupported(folder: Path) -> None:
    write_deltalake(folder / "later", pa.table({"id": [1]}), mode="overwrite")
    log = folder / "later/_delta_log/00000000000000000000.json"
    features = '"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["quantum"],"writerFeatures":["quantum"]'
    log.write_text(re.sub(r'"protocol":\{[^}]*\}', f'"protocol":{{{features}}}', log.read_text()))


def newer(folder: Path) -> None:
    with duckdb.connect(str(empty_store(folder / "newer.duckdb"))) as connection:
        connection.execute("UPDATE settings SET value = '99' WHERE name = 'schema_version'")


MISTAKES: Final = {
    # Paths.
    "nothing there": Mistake("show ./lake/ordrs", ["./lake/ordrs: no such file", LOOKED_FOR, "mean ./lake/orders?"]),
    "no table": Mistake(
        "show ./notes", ["./notes: no table there, nor in the directories below", LOOKED_FOR], make=texts
    ),
    "empty directory": Mistake(
        "show ./empty", ["./empty: no table there", LOOKED_FOR], make=lambda at: (at / "empty").mkdir(exist_ok=True)
    ),
    "a file of no format": Mistake("show ./notes/readme.txt", ["readme.txt: is a file", LOOKED_FOR], make=texts),
    "a directory of tables": Mistake(
        "show ./lake",
        ["./lake: a directory of tables, not a table; it has lines, orders; name one, such as ./lake/lines"],
    ),
    "a directory below a file": Mistake("show ./x.parquet/y", ["./x.parquet/y: no such file", LOOKED_FOR]),
    "huge directory": Mistake("show ./huge", ["./huge: no table there", LOOKED_FOR], make=many),
    "no rights": Mistake(
        "show shut.parquet", ["shut.parquet: ", '"shut.parquet" may not be read'], make=shut, before=UNPRIVILEGED
    ),
    "damaged file": Mistake("show cut.parquet", ["cut.parquet: ", "cannot be read as Parquet"], make=cut),
    "encrypted file": Mistake("show secret.parquet", ["secret.parquet: ", "encrypted"], make=encrypted),
    "unsupported feature": Mistake(
        "show ./later", ["./later: ", "feature quantum", "drop it with ALTER"], make=unsupported
    ),
    "scheme unknown": Mistake("show ftp://h/t", ['ftp://h/t: scheme "ftp" is not one of', "file://, s3://"]),
    "scheme of the web": Mistake("show https://h/t.parquet", ["https://h/t.parquet: scheme", "download the file"]),
    "credentials missing": Mistake(
        "show s3://bucket/t",
        ["s3://bucket/t: cannot be reached", "credentials come from AWS_PROFILE, or AWS_ACCESS_KEY_ID"],
        env={
            "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
            "AWS_ACCESS_KEY_ID": "",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_MAX_ATTEMPTS": "1",
        },
    ),
    "a path and a name": Mistake("show x.parquet lake.default.orders", ["x.parquet is a path and", "one after the"], 2),
    "a path where names are": Mistake(
        "capture ./lake/orders",
        ["./lake/orders: a path, and this command takes names", "`statflight serve ./lake/orders`"],
        2,
    ),
    "no path, but a name like it": Mistake("show x.paruqet", ["no table 'x.paruqet'", "did you mean ./x.parquet?"]),
    # Names.
    "misspelt table": Mistake("show ordrs", ["no table 'ordrs'; did you mean lake.default.orders?"]),
    "misspelt column": Mistake(
        "history orders amuont", ["[UNKNOWN_COLUMN]", 'no column "amuont"; did you mean "amount"?']
    ),
    "misspelt column of a rule": Mistake(
        "check orders --rule amuont:ndv>1", ["amuont:ndv>1", 'no column amuont; did you mean "amount"?'], 2
    ),
    "misspelt rule": Mistake(
        "check orders --rule amount:null_frction<1",
        ['unknown measure "null_frction"; did you mean "null_fraction"?'],
        2,
    ),
    "unknown snapshot": Mistake("show ./lake/orders --snapshot 9", ["no snapshot 9; the latest are: 0"]),
    "a word for a snapshot": Mistake(
        "diff orders last first", ["snapshot 'last': must be current, previous, first or"], 2
    ),
    "misspelt home": Mistake("publish orders --to trnio", ["[UNKNOWN_HOME]", 'did you mean "trino"?']),
    "interval without a unit": Mistake("capture orders --every 15", ["--every '15': has no unit; write 15s, 15m"], 2),
    # Servers.
    "port of pages": Mistake("ls --server grpc://{pages}", ["cannot connect to grpc://{pages}", "perhaps its pages"]),
    "address of pages": Mistake(
        "ls --server http://{pages}", ["'http://{pages}'", "the address of pages; must be grpc://"], 2
    ),
    "a port alone": Mistake("ls --server 8815", ["it names no host; for this machine say 127.0.0.1:8815"], 2),
    "a port that is none": Mistake("ls --server grpc://h:88150", ["its port is not a number from 1 to 65535"], 2),
    "no port": Mistake("ls --server 127.0.0.1", ["no server at grpc://127.0.0.1 ", "write grpc://127.0.0.1:8815 if"]),
    "no server": Mistake(f"ls --server {NOBODY}", [f"no server at {NOBODY} ", "start one with `statflight serve`"]),
    "TLS where none is": Mistake(
        "ls --server grpc+tls://{plain}", ["cannot connect", "the server speaks none; its address begins with grpc://"]
    ),
    "no TLS where it is": Mistake("ls --server grpc://{secured}", ["cannot connect", "begins with grpc+tls://"]),
    "certificate not trusted": Mistake(
        "ls --server {secure}", ["certificate is not trusted; name a file", "--tls-roots"]
    ),
    "no token": Mistake("ls --server {secure} --tls-roots {roots}", ["[UNAUTHENTICATED]", "give --token, or set"]),
    "wrong token": Mistake(
        "ls --server {secure} --tls-roots {roots} --token wrong", ["[UNAUTHENTICATED]", "--token", "STATFLIGHT_TOKEN"]
    ),
    # Databases and files that are written.
    "another kind of file": Mistake(
        "serve --db x.parquet", ['database "x.parquet": ', "another kind; name a new file"]
    ),
    "a directory for a file": Mistake("show x.parquet --db lake", ['database "lake": it is a directory; name a file']),
    "newer layout": Mistake(
        "serve --db newer.duckdb", ["newer.duckdb", "99", "install the version that wrote"], make=newer
    ),
    "database in use": Mistake("serve --db {database}", ["another process holds it; stop that one first"]),
    "port in use": Mistake("serve --db new.duckdb --port {port}", ["already in use; --port 0 picks a free port"]),
    "nowhere to write": Mistake("report x.parquet -o no/such/r.html", ["cannot write no/such/r.html: No such file"]),
    "a place not to write": Mistake(
        "show x.parquet --db closed/k.duckdb",
        ["its directory", "cannot be used: Permission denied; name a place that can be written"],
        make=lambda at: (at / "closed").mkdir(mode=0o500, exist_ok=True),
        before=UNPRIVILEGED,
    ),
    "no rules file": Mistake("check orders --rules ruels.toml", ["rules file ruels.toml: No such file"], 2),
}


@pytest.fixture
def run_here(world, monkeypatch, capsys):
    """Function that runs a command line in this process, which takes a tenth of the time."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(world.folder)
        monkeypatch.setenv("STATFLIGHT_SERVER", world.uri)
        monkeypatch.setenv("STATFLIGHT_KEEP", "pandas,numpy,crashes")  # of what is set for a whole process
        monkeypatch.setattr(sys, "argv", ["statflight", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return subprocess.CompletedProcess(arguments, ended.value.code or 0, *capsys.readouterr())

    return run


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_answered_in_a_line(world: World, run_here, mistake: Mistake):
    if mistake.before and shutil.which("setpriv") is None:
        pytest.skip("setpriv is needed to take rights from root")
    before = mistake.before if os.geteuid() == 0 else ()
    mistake.make(world.folder)
    place = world.uri.partition("://")[2]
    words = vars(world) | {
        "plain": place,
        "secured": world.secure.partition("://")[2],
        "port": place.rpartition(":")[2],
        "database": world.folder.parent / "plain0/stats.duckdb",
    }
    arguments = [word.format(**words) for word in mistake.arguments.split()]
    if before or mistake.env or arguments[0] == "serve":
        done = world.run(*arguments, env=mistake.env, before=before)
    else:
        done = run_here(*arguments)
    assert (done.returncode, done.stdout) == (mistake.status, ""), done.stderr
    lines = [line for line in done.stderr.splitlines() if "[warning " not in line]
    assert len(lines) == 1 and lines[0].startswith("statflight: "), done.stderr
    said = [re.escape(text.format(**words)) for text in mistake.said]
    assert re.search(".*".join(said), lines[0]), lines[0]


def test_a_data_file_that_vanished_is_named_and_the_rest_is_shown(world):
    vanished(world.folder)
    done = world.run("show", "./gone")
    assert done.returncode == 1 and re.search(r"\./gone: file .*\.parquet\": no such file", done.stderr), done.stderr
    assert "INT" in done.stdout and "Traceback" not in done.stderr


def test_both_a_name_and_a_path_are_the_path(world):
    """The full name stays the name of the server's table."""
    shutil.copytree(world.folder / "lake/orders", world.folder / "orders")
    done = world.run("show", "orders", "--verbose", env={"STATFLIGHT_SERVER": NOBODY})
    shutil.rmtree(world.folder / "orders")
    assert done.returncode == 0 and "amount" in done.stdout
    assert "orders: the one in this directory; a table of a server goes by its full name" in done.stderr


# Where the output goes.


@pytest.mark.parametrize(
    "command", [("show", "x.parquet"), ("ls",), ("query", "stats.columns", "x.parquet", "-f", "csv")]
)
def test_a_reader_that_leaves_is_no_failure(world, command):
    reading, writing = os.pipe()
    os.close(reading)
    done = world.run(*command, stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_disk_is_told(world):
    with Path("/dev/full").open("w") as full:
        done = world.run("show", "x.parquet", stdout=full)
    assert done.returncode == 1
    assert (
        done.stderr == "statflight: the output cannot be written: No space left on device; free space where it goes\n"
    )


@pytest.mark.parametrize(
    "env",
    [{"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}, {"PYTHONIOENCODING": "latin-1"}],
)
def test_every_locale_gets_the_same_bytes(world, env):
    pq.write_table(pa.table({"Größe": ["ä", "€", "日本"]}), world.folder / "wörter.parquet")
    done = world.run("show", "wörter.parquet", env=env)
    assert done.returncode == 0 and "Größe" in done.stdout and "日本" in done.stdout and "█" not in done.stderr
    missing = world.run("show", "./nörgends", env=env)
    assert missing.returncode == 1 and "no such file or directory" in missing.stderr


@pytest.mark.parametrize("columns", [60, 40, 10])
def test_a_narrow_terminal_has_whole_lines(world, columns):
    main, side = pty.openpty()
    env = {"COLUMNS": str(columns), "TERM": "dumb", "STATFLIGHT_PAGER": "cat"}
    process = subprocess.Popen(
        [STATFLIGHT, "show", "x.parquet"],
        cwd=world.folder,
        env=os.environ | env,
        stdout=side,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    os.close(side)
    shown = bytearray()
    while True:
        try:
            chunk = os.read(main, 65536)
        except OSError:  # the other side is closed
            break
        if not chunk:
            break
        shown += chunk
    os.close(main)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 0 and b"Traceback" not in told
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).splitlines()
    table = [line for line in plain if line.startswith(("column", "id", "amount"))]
    assert table and (columns < 60 or all(len(line) <= columns for line in table))
    assert columns > 40 or b"no room for" in told or len(plain) > 4
