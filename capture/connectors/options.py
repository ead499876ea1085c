"""Connector options: names, storage options, timeouts, and the path rewrite of moved tables.

Storage options are passed to the format's library under the library's own names.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from capture.connectors.storage.secrets import SECRET_OPTION
from store.model.errors import InvalidArgument, InvalidField, nearest
from store.model.names import join_name, matcher

TIMEOUT_OPTION: Final = "timeout"
EVERYTHING: Final = ("*",)
_ANY: Final = "catalog"
DEFAULT_TIMEOUT: Final = 30.0

HOME_PREFIXES: Final = ("publish.", "statistics_from.")  # publish.HOME.OPTION is an option of publications to HOME
BUDGET: Final = "requests_per_day"
INCLUDE, EXCLUDE, SOURCE_STATISTICS = "include", "exclude", "source_statistics"
COMMON: Final = (
    EXCLUDE,
    INCLUDE,
    "path_rewrite",
    "policy",
    "publish",
    BUDGET,
    SECRET_OPTION,
    SOURCE_STATISTICS,
    "statistics_from",
    TIMEOUT_OPTION,
)
"""Options of every format."""

_STORAGE_PREFIXES = (
    "aws_",
    "aws.",
    "azure_",
    "google_",
    "gcp_",
    "gcs_",
    "gs_",
    "s3_",
    "r2_",
    "hdfs_",
    "fs_",
    "client_",
    "s3.",
    "gcs.",
    "gs.",
    "adls.",
    "abfs.",
    "azure.",
    "hdfs.",
    "client.",
    "fs.",
    "hf.",
)
_STORAGE_NAMES = frozenset(
    {
        "access_key_id",
        "secret_access_key",
        "session_token",
        "token",
        "region",
        "default_region",
        "bucket",
        "bucket_name",
        "endpoint",
        "endpoint_url",
        "anonymous",
        "skip_signature",
        "allow_http",
        "allow_invalid_certificates",
        "virtual_hosted_style_request",
        "conditional_put",
        "copy_if_not_exists",
        "unsigned_payload",
        "checksum_algorithm",
        "metadata_endpoint",
        "imdsv1_fallback",
        "disable_tagging",
        "s3_express",
        "account_name",
        "account_key",
        "access_key",
        "sas_key",
        "sas_token",
        "bearer_token",
        "container",
        "container_name",
        "use_emulator",
        "use_fabric_endpoint",
        "use_azure_cli",
        "authority_id",
        "tenant_id",
        "client_id",
        "client_secret",
        "msi_endpoint",
        "object_id",
        "msi_resource_id",
        "federated_token_file",
        "service_account",
        "service_account_path",
        "service_account_key",
        "application_credentials",
        "timeout",
        "connect_timeout",
        "request_timeout",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_url",
        "proxy_ca_certificate",
        "proxy_excludes",
        "user_agent",
        "http1_only",
        "http2_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "max_retries",
        "retry_timeout",
        "download_retry_count",
        "randomize_addresses",
        "default_content_type",
        "unity_workspace_url",
        "unity_access_token",
        "unity_allow_http_url",
    }
)
_PREFIXED: Final = _STORAGE_NAMES | frozenset(
    {
        "access",
        "access_key_id_dynamodb",
        "access_token",
        "accesskeyid",
        "accesskeysecret",
        "account_host",
        "addressing_style",
        "allow_unsafe_rename",
        "anon",
        "app_host",
        "authority_host",
        "base_url",
        "blob_storage_authority",
        "blob_storage_scheme",
        "cache_timeout",
        "connection_string",
        "consistency",
        "container_authorization_token_file",
        "container_credentials_full_uri",
        "container_credentials_relative_uri",
        "credential",
        "credential_type",
        "default_bucket_location",
        "default_headers",
        "delete_enabled",
        "dfs_storage_authority",
        "dfs_storage_scheme",
        "disable_bulk_delete",
        "encryption_key",
        "endpoint_override",
        "endpoint_url_dynamodb",
        "endpoint_url_s3",
        "endpoint_url_sts",
        "fabric_cluster_identifier",
        "fabric_session_token",
        "fabric_token_service_url",
        "fabric_workload_host",
        "force_virtual_addressing",
        "host",
        "identity_endpoint",
        "identity_header",
        "kerberos_ticket",
        "locking_provider",
        "master_key",
        "oauth2_token",
        "oauth2_token_expires_at",
        "path_style_access",
        "port",
        "profile",
        "profile_name",
        "project_id",
        "proxy_uri",
        "read_timeout",
        "region_dynamodb",
        "remote_signing_enabled",
        "request_payer",
        "requester_pays",
        "resolve_region",
        "retry_strategy_impl",
        "role_arn",
        "role_session_name",
        "root_certificate",
        "secret_access_key_dynamodb",
        "secret_key",
        "securitytoken",
        "server_side_encryption",
        "service_host",
        "session_kwargs",
        "session_token_dynamodb",
        "signer",
        "signer_endpoint",
        "signer_uri",
        "sse_bucket_key_enabled",
        "sse_customer_key_base64",
        "sse_kms_key_id",
        "sts_endpoint",
        "user",
        "version_aware",
        "web_identity_token_file",
    }
)
"""Names of storage options after their prefix, as object_store, delta-rs and pyiceberg have them."""


def is_storage_option(name: str) -> bool:
    """True for options of file system and object store libraries."""
    lowered = name.lower()
    return lowered.startswith(_STORAGE_PREFIXES) or lowered in _STORAGE_NAMES


def check_spelling(format: str, name: str) -> None:
    """Rejects a storage option that is nearly one of those known; an unknown one may be of a newer library.

    Raises:
        InvalidArgument: Names the option that was meant.
    """
    lowered = name.lower()
    prefix = next((prefix for prefix in _STORAGE_PREFIXES if lowered.startswith(prefix)), "")
    if lowered in _STORAGE_NAMES or not prefix or prefix.startswith(("fs", "hdfs")):  # Hadoop's are too many
        return
    rest = re.sub(r"[-.]", "_", lowered.removeprefix(prefix)).removeprefix("storage_")
    near = [] if {rest, rest.removeprefix("s3_")} & _PREFIXED else get_close_matches(rest, sorted(_PREFIXED), 1, 0.8)
    if near:
        meant = prefix + (near[0].replace("_", "-") if prefix.endswith(".") else near[0])
        raise InvalidArgument(
            f'options: format {format} has no option "{name}"',
            hint=f'did you mean "{meant}"?',
            params={"field": "options", "option": name},
        )


def storage_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options for the file system, names unchanged."""
    chosen = {name: str(value) for name, value in options.items() if is_storage_option(name)}
    if TIMEOUT_OPTION in chosen:
        chosen[TIMEOUT_OPTION] = f"{timeout_of(options):g}s"
    return chosen


def timeout_of(options: Mapping[str, str]) -> float:
    """Seconds to wait for one response of a catalog or store: option `timeout`, a number with optional `s` or `ms`.

    Raises:
        InvalidArgument: The value is not such a number, or is over an hour.
    """
    text = options.get(TIMEOUT_OPTION)
    if text is None:
        return DEFAULT_TIMEOUT
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?) ?(s|ms)?", str(text).strip())
    seconds = float(match[1]) / (1000 if match[2] == "ms" else 1) if match else 0.0
    if not 0 < seconds <= 3600:
        expected = "seconds up to 3600, such as 30 or 2.5s"
        raise InvalidField(f"options.{TIMEOUT_OPTION}", "must be seconds", expected=expected, actual=str(text))
    return seconds


def patient(storage: Mapping[str, str], options: Mapping[str, str]) -> dict[str, str]:
    """Storage options with limited retries, for the libraries of Delta and Lance, which retry for three minutes."""
    seconds = timeout_of(options)
    limits = {
        TIMEOUT_OPTION: f"{seconds:g}s",
        "max_retries": "3",
        "retry_timeout": f"{seconds:g}s",
        "client_max_retries": "3",
        "client_retry_timeout": str(max(1, round(seconds))),
    }
    return limits | dict(storage)


def check_options(
    format: str, options: Mapping[str, str], own: Collection[str] = (), prefixes: Collection[str] = ()
) -> None:
    """Rejects options that are not of the format, of every format, or of a storage library.

    Args:
        own: Names of the format's options.
        prefixes: First parts of dotted names of the format's options.

    Raises:
        InvalidArgument: Names the unknown option and lists the allowed ones; never shows its value.
    """
    allowed = [*own, *COMMON]
    for name in options:
        if name in allowed:
            continue
        check_spelling(format, name)
        is_known = name.startswith(HOME_PREFIXES) or name.partition(".")[0] in prefixes
        if not is_known and not is_storage_option(name):
            raise InvalidArgument(
                f'options: format {format} has no option "{name}"; it takes {", ".join(sorted(allowed))}'
                " and storage options such as aws_region or s3.endpoint",
                hint=nearest(name, [*allowed, *_STORAGE_NAMES]),
                params={"field": "options", "option": name},
            )
    PathRewrite.of(options)
    timeout_of(options)
    TableFilter.of(options)
    takes_source_statistics(options)


def takes_source_statistics(options: Mapping[str, str]) -> bool:
    """Option `source_statistics`: whether captures take what a source says of its own distribution.

    Raises:
        InvalidArgument: The value is neither true nor false.
    """
    return check_choice(options, SOURCE_STATISTICS, ("true", "false")) == "true"


def _patterns(name: str, text: object) -> tuple[str, ...]:
    """The patterns of an option.

    Raises:
        InvalidArgument: It has none, or one that is not of `schema.table`.
    """
    patterns = tuple(pattern.strip() for pattern in str(text).split(",") if pattern.strip())
    wrong = next((pattern for pattern in patterns if "." not in pattern and "*" not in pattern), None)
    if wrong is not None or not patterns:
        expected = "patterns of schema.table such as sales.*"
        raise InvalidField(f"options.{name}", "must be patterns", expected=expected, actual=wrong or str(text))
    return patterns


@dataclass(frozen=True, slots=True)
class TableFilter:
    """Options `include` and `exclude`: patterns of `schema.table`, separated by commas."""

    include: tuple[str, ...] = EVERYTHING
    exclude: tuple[str, ...] = ()

    @classmethod
    def of(cls, options: Mapping[str, str]) -> TableFilter:
        """The filter in the options.

        Raises:
            InvalidArgument: An option has no pattern, or one that is not of `schema.table`.
        """
        patterns = {
            name: _patterns(name, options[name]) for name in (INCLUDE, EXCLUDE) if options.get(name) is not None
        }
        return cls(patterns.get(INCLUDE, EVERYTHING), patterns.get(EXCLUDE, ()))

    def has(self, namespace: str, name: str) -> bool:
        """True for a table that is part of the lake."""
        return self._matches(join_name(_ANY, namespace, name).removeprefix(f"{_ANY}."))

    def unmatched(self, names: Collection[tuple[str, str]]) -> list[str]:
        """The patterns that match none of these tables (namespace, name)."""
        texts = [join_name(_ANY, *name).removeprefix(f"{_ANY}.") for name in names]
        patterns = [*(self.include if self.include != EVERYTHING else ()), *self.exclude]
        return [pattern for pattern in patterns if not any(map(matcher((pattern,)).fullmatch, texts))]

    def has_namespace(self, namespace: str) -> bool:
        """True for a namespace of which any table could be part of the lake, whatever its name."""
        return self._matches(f"{namespace}.")

    def _matches(self, text: str) -> bool:
        return bool(matcher(self.include).fullmatch(text)) and not matcher(self.exclude).fullmatch(text)


def requests_per_day(options: Mapping[str, str]) -> int | None:
    """The budget of a lake: how many requests a day the watch may make; None for any number.

    Raises:
        InvalidField: The option is not an integer of at least 0.
    """
    if (value := options.get(BUDGET)) is None:
        return None
    if not re.fullmatch(r"[0-9]{1,15}", text := str(value).strip()):
        raise InvalidField(f"options.{BUDGET}", "must be an integer ≥ 0", expected="requests a day", actual=value)
    return int(text)


def check_choice(options: Mapping[str, str], name: str, choices: Collection[str]) -> str:
    """The value of an option with fixed choices; the first choice is the default."""
    value = str(options.get(name, next(iter(choices)))).strip().lower()
    if value not in choices:
        reason = f"must be {' or '.join(choices)}"
        raise InvalidField(f"options.{name}", reason, expected=" | ".join(choices), actual=value)
    return value


@dataclass(frozen=True, slots=True)
class PathRewrite:
    """Option `path_rewrite=FROM=TO`: replaces a prefix of the paths in the metadata of a moved table."""

    was: str = ""
    now: str = ""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> PathRewrite:
        """The rewrite in the options; without one, a rewrite that changes nothing."""
        text = options.get("path_rewrite")
        if text is None:
            return cls()
        # split at the first `=`, so FROM cannot contain one
        was, equals, now = str(text).partition("=")
        if not was or not equals or not now:
            reason = "must be two prefixes of paths"
            raise InvalidField("options.path_rewrite", reason, expected="FROM=TO", actual=text)
        return cls(was, now)

    def __bool__(self) -> bool:
        return bool(self.was)

    def __call__(self, path: str) -> str:
        """The path with its prefix replaced; also matches after a `file:` scheme."""
        if not self.was:
            return path
        for prefix in (self.was, f"file://{self.was}", f"file:{self.was}"):
            if path.startswith(prefix):
                return self.now + path[len(prefix) :]
        return path
