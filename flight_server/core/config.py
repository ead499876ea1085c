"""Settings: defaults < TOML file < environment `STATFLIGHT_*` < flags. One dataclass, small readers, no library.

TOML keys are named like the flags (`tls-cert` and `tls_cert` are one key), variables like the fields in upper case.
Values of all three are read by `setting_readers`.
"""

from __future__ import annotations

import ipaddress
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, get_type_hints

from flight_server.core.setting_readers import (
    ZonedTimestamps,
    as_auto_analyze,
    as_flight_addresses,
    as_path,
    as_path_or_url,
    as_patterns,
    as_receivers,
    as_seconds,
    as_seconds_or_never,
    as_spark,
    as_text,
    as_truth,
    as_whole,
    as_word,
    as_zone,
    as_zoned_timestamps,
)
from store.model.addresses import without_token
from store.model.errors import InvalidArgument, InvalidField, Words, nearest

if TYPE_CHECKING:
    from store.model.bounds import ZonePolicy

DEFAULT_FILE: Final = Path("statflight.toml")
PREFIX: Final = "STATFLIGHT_"
CHILD_VARIABLE: Final = "STATFLIGHT_CHILD"  # passes arguments to the server's own workers, hidden from the process list
DEFAULT_PORT: Final = 8815


class Setting(NamedTuple):
    """A setting that a part of the server declares.

    Attributes:
        read: Makes its value of a TOML value or a text; ValueError says what was expected.
        default: Its value where it is not given.
        meaning: What it is, for the documentation.
    """

    read: Callable[[Any], Any]
    default: Any
    meaning: str


@dataclass(frozen=True)
class Settings:
    """Settings of a server, worker or client, each with its reader.

    Attributes:
        store: The store of statistics: `duckdb`, the address of one that several servers share, such as
            `postgresql://user:password@host/database`, or the name of one of another package (`store.write_through`).
        store_lag_ms: Within how many milliseconds a write of another server of the store is read here.
        store_uri: Path or address of a store of another package.
        db: The DuckDB file.
        segments: Directory or bucket (`s3://`, `gs://`, `abfss://`) of the rows of files of large tables; None means
            beside the database, `<db>.segments`.
        segment_cells: Rows of files of a listing (files × columns) above which they lie there, outside of the database.
        host: Address to listen on.
        port: Port to listen on; 0 picks a free one.
        workers: Capture workers that the server starts; 0 for none.
        tls_cert: PEM certificate of the server, with `tls_key`.
        tls_key: PEM private key of that certificate.
        tls_client_ca: PEM certificate that has to have signed those of clients.
        auth: Token file; without one, every caller may do everything.
        insecure: Allows a server without tokens on other addresses than the loopback.
        metrics_port: Port of the Prometheus metrics; None means none.
        health_port: Port of gRPC health checks; None means none.
        log_level: Lowest level of the log: debug, info, warning or error.
        log_format: Form of the log: text or json.
        watch_seconds: Seconds between two inspections of each connected lake; 0 means never.
        http_port: Port of the pages, metrics and health; None means none.
        lease_seconds: How long a worker holds a job without renewing it.
        sync_enabled: Allows `resolve` to capture while its caller waits; else it queues nothing either.
        sync_budget_ms: Latency budget of a `resolve` without one, in milliseconds.
        max_sync_budget_ms: Largest latency budget, in milliseconds.
        require_registered_tables: Refuses puts for tables that no connector has.
        timestamp_no_tz_policy: Treatment of a zoned bound of a TIMESTAMP.
        session_timezone: The zone that such a bound is converted to.
        engine: Where workers read data: `auto`, `spark` or `local`; None: see `scan_engine`.
        spark_master: Spark master of the capture workers; None means local mode.
        spark: Spark settings of the workers' session, from the TOML table `[spark]`.
        inline_max_cells: Largest capture, in cells, that a worker computes without Spark; None leaves it to the
            thresholds of `capture.engines.compute.choice`.
        file_sketches: Which sketches of files captures keep: `auto`, `full` or `none` (`capture.spec.FileSketches`).
        trust_writers: Patterns of writers whose bounds are taken as known to be right, separated by commas
            (`capture.connectors.metadata.known_writers`).
        cache_bytes: Memory for the cache of statistics (Arrow, and records of `resolve`); 0 turns it off.
        arrow_memory_bytes: Most memory for Arrow data, such as batches of puts once they are decompressed; None means
            half of the machine's, 0 no limit.
        max_streams: Maximum number of concurrent large answers.
        max_stream_bytes: Maximum memory of one answer.
        stream_seconds: Maximum duration of one answer, pauses of its reader included.
        stream_stall_seconds: Maximum pause of its reader between two batches.
        auto_analyze: Default policy of connectors (see `capture.policy`).
        auto_analyze_seconds: Seconds between two inspections of lakes with a policy.
        checks: File of rules that are checked after each capture.
        check_late_seconds: How long a rule waits for statistics of the current snapshot until it is late.
        webhook: Addresses to which changes of the rules' states are sent, separated by spaces (see `control.alarms`).
        webhook_digest_seconds: For how long changes are gathered into one message; 0 sends each at once.
        webhook_secret: Signs the posts.
        replicate_to: Place to which the database's log is shipped: a directory, s3://, gs:// or abfss://.
        replicate_seconds: Seconds between two shipments, and between two looks of a follower.
        durability: When a write is acknowledged: once it is on the disk (local), or shipped (replicated).
        follow: Place of the replica that this server serves, read-only.
        followers: Addresses of followers, which GetFlightInfo names after this server, separated by commas.
        standby: Follow the replica of `replicate_to`, and take over once its writer's lease has ended.
        writer_lease_seconds: How long the writer of a replica may write without renewing its lease.
        keep_sketches: Of how many of its newest snapshots a table keeps the sketches; 0 means all
            (`store.catalog.sketch_retention`).
        keep_sketch_days: For how many days one snapshot a day keeps its sketches; after them one a week.
        replica_keep: Seconds for which generations of a replica stay restorable.
        server: Address that clients and workers connect to.
        token: Bearer token of clients and workers.
        of_parts: Values of the settings that parts declare, by name (`process.settings`).
    """

    store: Annotated[str, as_text] = field(default="duckdb", repr=False)
    store_lag_ms: Annotated[int, as_whole(1, 3_600_000)] = 1000
    store_uri: Annotated[str | None, as_text] = field(default=None, repr=False)
    db: Annotated[Path, as_path] = Path("statflight.duckdb")
    segments: Annotated[str | None, as_path_or_url] = None
    segment_cells: Annotated[int, as_whole(0)] = 1_000_000
    host: Annotated[str, as_text] = "127.0.0.1"
    port: Annotated[int, as_whole(0, 65_535)] = DEFAULT_PORT
    workers: Annotated[int, as_whole(0, 1024)] = 1
    tls_cert: Annotated[Path | None, as_path] = None
    tls_key: Annotated[Path | None, as_path] = None
    tls_client_ca: Annotated[Path | None, as_path] = None
    auth: Annotated[Path | None, as_path] = None
    insecure: Annotated[bool, as_truth] = False
    metrics_port: Annotated[int | None, as_whole(0, 65_535)] = None
    health_port: Annotated[int | None, as_whole(0, 65_535)] = None
    log_level: Annotated[str, as_word("debug", "info", "warning", "error")] = "info"
    log_format: Annotated[str, as_word("text", "json")] = "text"
    watch_seconds: Annotated[float, as_seconds_or_never] = 60.0
    http_port: Annotated[int | None, as_whole(0, 65_535)] = None
    lease_seconds: Annotated[float, as_seconds] = 120.0
    sync_enabled: Annotated[bool, as_truth] = True
    sync_budget_ms: Annotated[int, as_whole(1, 3_600_000)] = 1000
    max_sync_budget_ms: Annotated[int, as_whole(1, 3_600_000)] = 10_000
    require_registered_tables: Annotated[bool, as_truth] = False
    timestamp_no_tz_policy: Annotated[ZonedTimestamps, as_zoned_timestamps] = ZonedTimestamps.REFUSE
    session_timezone: Annotated[str, as_zone] = "UTC"
    engine: Annotated[str | None, as_word("auto", "spark", "local")] = None
    spark_master: Annotated[str | None, as_text] = None
    spark: Annotated[Mapping[str, str], as_spark] = field(default_factory=dict)
    inline_max_cells: Annotated[int | None, as_whole(0)] = None
    file_sketches: Annotated[str, as_word("auto", "full", "none")] = "auto"
    trust_writers: Annotated[str | None, as_patterns] = None
    cache_bytes: Annotated[int, as_whole(0)] = 256 << 20
    arrow_memory_bytes: Annotated[int | None, as_whole(0)] = None
    max_streams: Annotated[int, as_whole(1)] = 128
    max_stream_bytes: Annotated[int, as_whole(1)] = 1 << 30
    stream_seconds: Annotated[float, as_seconds] = 3600.0
    stream_stall_seconds: Annotated[float, as_seconds] = 300.0
    auto_analyze: Annotated[str, as_auto_analyze] = "off"
    auto_analyze_seconds: Annotated[float, as_seconds] = 300.0
    checks: Annotated[Path | None, as_path] = None
    check_late_seconds: Annotated[float, as_seconds] = 900.0
    webhook: Annotated[str | None, as_receivers] = field(default=None, repr=False)
    webhook_digest_seconds: Annotated[float, as_seconds_or_never] = 0.0
    webhook_secret: Annotated[str | None, as_text] = field(default=None, repr=False)
    replicate_to: Annotated[str | None, as_text] = None
    replicate_seconds: Annotated[float, as_seconds] = 1.0
    durability: Annotated[str, as_word("local", "replicated")] = "local"
    follow: Annotated[str | None, as_text] = None
    followers: Annotated[str | None, as_flight_addresses] = None
    standby: Annotated[bool, as_truth] = False
    writer_lease_seconds: Annotated[float, as_seconds] = 10.0
    keep_sketches: Annotated[int, as_whole(0)] = 100
    keep_sketch_days: Annotated[int, as_whole(0, 36_500)] = 90
    replica_keep: Annotated[float, as_seconds] = 7 * 86_400.0
    server: Annotated[str, as_text] = f"grpc://127.0.0.1:{DEFAULT_PORT}"
    token: Annotated[str | None, as_text] = field(default=None, repr=False)
    of_parts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def zone_policy(self) -> ZonePolicy:
        """The treatment of zoned bounds, as the store takes it."""
        from store.model.bounds import ZonePolicy

        return ZonePolicy(self.timestamp_no_tz_policy is ZonedTimestamps.CONVERT, self.session_timezone)

    @property
    def scan_engine(self) -> str:
        """The workers' engine: `engine`, else `spark` if the master is another than `local[…]`, else `auto`."""
        if self.engine is not None:
            return self.engine
        is_local = self.spark_master is None or re.fullmatch(r"local(\[.*\])?", self.spark_master)
        return "auto" if is_local else "spark"

    @property
    def is_loopback(self) -> bool:
        """True when only this machine can reach the host."""
        if self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False

    def check(self) -> None:
        """Refuses settings that contradict each other, and a networked server without tokens.

        A networked server without a certificate makes one (`process.certificates`).

        Raises:
            InvalidArgument: Names the settings and the remedy.
        """
        self._check_certificates()
        self._check_store()
        self._check_replicas()
        if not (self.auth or self.tls_client_ca or self.insecure or self.is_loopback):
            raise InvalidArgument(
                f"a server on {self.host} serves the network: it must have tokens and TLS",
                hint="give --auth FILE (and --tls-cert, --tls-key), or --insecure if that is meant",
            )

    def _check_certificates(self) -> None:
        """Refuses certificates without what they need."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidArgument("tls-cert and tls-key go together")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise InvalidArgument("tls-client-ca needs tls-cert and tls-key")

    @property
    def store_name(self) -> str:
        """The name of the store: `store`, or what an address in its place begins with."""
        return self.store.partition("://")[0]

    @property
    def store_address(self) -> str | None:
        """The path or address of a store other than the database file; None for that one."""
        return self.store if "://" in self.store else self.store_uri

    def _check_store(self) -> None:
        """Refuses an address that does not fit the store."""
        if self.store == "duckdb" and self.store_uri is not None:
            raise InvalidArgument("store-uri is the address of another store than duckdb, whose file db names")
        if self.store != "duckdb" and self.store_address is None:
            raise InvalidArgument(f'store = "{self.store}" needs store-uri, its path or address')
        if "://" in self.store and self.store_uri is not None:
            raise InvalidArgument("store is an address already: store-uri is for a store that is named by a word")

    def _check_replicas(self) -> None:
        """Refuses roles of replication that exclude each other."""
        if self.store_address is not None and (self.follow or self.replicate_to):
            raise InvalidArgument("another store and replicas exclude each other: only the log of DuckDB is shipped")
        if self.replicate_to is None and (self.standby or self.durability == "replicated"):
            raise InvalidArgument(f"{'standby' if self.standby else 'durability = replicated'} needs replicate-to")
        if self.replicate_to is not None and self.follow is not None:
            raise InvalidArgument("follow and replicate-to exclude each other", hint="give one of them")


_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(Settings, include_extras=True).items()
    if name != "of_parts"
}
_NONE_DECLARED: Final[Mapping[str, Setting]] = {}


def _as_it_is(value: Any) -> Any:
    return value


def _masked(_: Any) -> str:
    return "***"


def _without_password(value: Any) -> str:
    from capture.connectors.storage.secrets import mask_uri

    return mask_uri(value)


_SHOWN: Final[Mapping[str, Callable[[Any], Any]]] = {
    "token": _masked,
    "webhook": _masked,
    "webhook_secret": _masked,
    "spark_master": without_token,
    "store": _without_password,
    "store_uri": _without_password,
}
"""How settings that have secrets are shown."""
_GONE: Final = {"hot_bytes": "cache_bytes"}
"""Settings that older files and environments may have, and what to set instead."""


def load(
    config: Path | str | None = None,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    declared: Mapping[str, Setting] = _NONE_DECLARED,
) -> Settings:
    """The settings of this process.

    Args:
        config: The TOML file; None reads `./statflight.toml` if it exists.
        flags: Fields given on the command line; None means not given.
        environ: The environment; that of the process by default.
        declared: Settings that parts declare, by name.

    Raises:
        InvalidArgument: An unknown key, a bad value, or a file that cannot be read.
    """
    given = {name: value for name, (value, _) in _given(config, flags or {}, environ, declared).items()}
    of_parts = {name: given.pop(name, setting.default) for name, setting in declared.items()}
    return Settings(**given, of_parts=of_parts)


def effective(
    config: Path | str | None = None,
    environ: Mapping[str, str] | None = None,
    declared: Mapping[str, Setting] = _NONE_DECLARED,
) -> list[tuple[str, Any, str]]:
    """Every setting with its value and its source: `default`, the file, or a variable; secrets are masked.

    Args:
        config, environ, declared: See `load`.

    Raises:
        InvalidArgument: See `load`.
    """
    given = _given(config, {}, environ, declared)
    defaults = Settings()
    values = {name: getattr(defaults, name) for name in _READERS}
    values |= {name: setting.default for name, setting in declared.items()}
    rows = []
    for name, default in values.items():
        value, source = given.get(name, (default, "default"))
        rows.append((name, value if value is None else _SHOWN.get(name, _as_it_is)(value), source))
    return rows


def _of_file(config: Path | str | None, readers: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    """The settings in the configuration file, and its name."""
    values: dict[str, tuple[Any, str]] = {}
    for key, value in _toml(config).items():
        name = key.replace("-", "_")
        if name in _GONE:
            raise _gone(key, _GONE[name], f"{key} in the configuration file")
        if name not in readers:
            names = [name.replace("_", "-") for name in readers]
            hint = nearest(key.replace("_", "-"), names)
            raise InvalidArgument(f'the configuration file has an unknown key "{key}"', hint=hint)
        values[name] = _read(readers, name, value, f"{key} in the configuration file"), str(config or DEFAULT_FILE)
    return values


def _of_variables(variables: Mapping[str, str], readers: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    """The settings in variables of the environment, and these variables."""
    for name, instead in _GONE.items():
        if variables.get(variable := PREFIX + name.upper()):
            raise _gone(variable, PREFIX + instead.upper(), f"{variable} in the environment")
    values: dict[str, tuple[Any, str]] = {}
    for name in readers:
        variable = PREFIX + name.upper()
        if text := variables.get(variable, "").strip():
            values[name] = _read(readers, name, text, f"{variable} in the environment"), variable
    return values


def _given(
    config: Path | str | None,
    flags: Mapping[str, Any],
    environ: Mapping[str, str] | None,
    declared: Mapping[str, Setting],
) -> dict[str, tuple[Any, str]]:
    """The given settings, each from its strongest source, and the source's name."""
    readers = {name: setting.read for name, setting in declared.items()} | _READERS
    values = _of_file(config, readers) | _of_variables(os.environ if environ is None else environ, readers)
    for name, value in flags.items():
        if name not in readers:
            raise InvalidArgument(f'no setting "{name}"', hint=nearest(name, list(readers)))
        if value is not None:
            flag = f"--{name.replace('_', '-')}"
            values[name] = _read(readers, name, value, flag), flag
    return values


def _gone(name: str, instead: str, where: str) -> InvalidArgument:
    hint = f"set {instead} (bytes of memory; 0 turns the cache off) and remove {name}"
    return InvalidArgument(f"{where} does not exist any more: all caching is in memory now", hint=hint)


def _read(readers: Mapping[str, Callable[[Any], Any]], name: str, value: Any, where: str) -> Any:
    try:
        return readers[name](value)
    except ValueError as error:
        shown = Words("another value") if _SHOWN.get(name) is _masked else value
        raise InvalidField(name, "is not valid", expected=str(error), actual=shown, where=where) from None


def _toml(config: Path | str | None) -> dict[str, Any]:
    path = DEFAULT_FILE if config is None else Path(config)
    if config is None and not path.is_file():
        return {}
    return read_toml(path, "configuration file")


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Reads a TOML file; when it cannot be read, InvalidArgument names it as `what`."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidArgument(f"{what} {path}: {error.strerror or 'cannot be read'}") from None
    except ValueError as error:  # not TOML, or not UTF-8
        reason = "is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else f"is not TOML: {error}"
        raise InvalidArgument(f"{what} {path}: {reason}") from None
