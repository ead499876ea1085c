"""Creates the file systems of object stores from options, under the names of any library."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow.fs as pafs

from capture.connectors.options import timeout_of


class StorageOptions:
    """Storage options, looked up by the names that different libraries use for an option."""

    def __init__(self, options: Mapping[str, str]):
        self._options = {name.lower().replace("-", "_"): value for name, value in options.items()}
        self.timeout = timeout_of(options)

    def text(self, *names: str) -> str | None:
        """The first of these options that is not empty; None if all are."""
        return next((self._options[name] for name in names if self._options.get(name)), None)

    def flag(self, *names: str) -> bool | None:
        """The same as a boolean: true, 1, yes and on are true, anything else is false."""
        value = self.text(*names)
        return None if value is None else value.strip().lower() in ("true", "1", "yes", "on")


def s3(options: StorageOptions) -> pafs.FileSystem:
    """The file system of S3 or a compatible store."""

    def of(*names: str) -> str | None:
        return options.text(*(p + n for n in names for p in ("aws_", "", "s3.", "s3_", "client.")))

    endpoint = of("endpoint_url", "endpoint", "endpoint_override") or _environment(
        "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"
    )
    # The library makes three attempts.
    settings: dict[str, Any] = {"connect_timeout": min(5.0, options.timeout), "request_timeout": options.timeout / 3}
    if endpoint:
        scheme, separator, host = endpoint.rpartition("://")
        settings |= {"endpoint_override": host.rstrip("/"), "scheme": scheme if separator else "https"}
        if not separator and options.flag("aws_allow_http", "allow_http"):
            settings["scheme"] = "http"
    keys = {
        "access_key": of("access_key_id"),
        "secret_key": of("secret_access_key"),
        "session_token": of("session_token", "token"),
    }
    if keys["access_key"]:
        settings |= {name: value for name, value in keys.items() if value}
    if region := of("region", "default_region") or _environment("AWS_REGION", "AWS_DEFAULT_REGION"):
        settings["region"] = region
    elif endpoint:
        settings["region"] = "us-east-1"
    if options.flag("aws_skip_signature", "skip_signature", "s3.anonymous", "anonymous"):
        settings["anonymous"] = True
    virtual = options.flag("aws_virtual_hosted_style_request", "s3.force_virtual_addressing")
    path_style = options.flag("s3.path_style_access", "aws_path_style_access")
    if virtual or path_style is False:
        settings["force_virtual_addressing"] = True
    return pafs.S3FileSystem(**settings)


def _environment(*names: str) -> str | None:
    """The first of these variables that is not empty, which Arrow's file system does not read by itself."""
    return next((value for name in names if (value := os.environ.get(name))), None)


def gcs(options: StorageOptions) -> pafs.FileSystem:
    """The file system of Google Cloud Storage."""
    from capture.connectors.storage.google_tokens import access_token, parse_key  # loads the client of HTTP

    def of(*names: str) -> str | None:
        return options.text(*(p + n for n in names for p in ("google_", "")))

    settings: dict[str, Any] = {"retry_time_limit": timedelta(seconds=options.timeout)}
    given = of("service_account_key", "service_account", "service_account_path", "application_credentials")
    key = parse_key(given) if given else {}
    anonymous = options.flag("google_skip_signature", "skip_signature", "anonymous", "gcs.anonymous")
    if token := options.text("google_access_token", "gcs.oauth2.token", "token"):
        expires = datetime.now(UTC) + timedelta(hours=1)
        settings |= {"access_token": token, "credential_token_expiration": expires}
    elif anonymous or key.get("disable_oauth"):
        settings["anonymous"] = True
    elif key:
        token, expires = access_token(key, options.timeout)
        settings |= {"access_token": token, "credential_token_expiration": expires}
    endpoint = options.text("google_endpoint", "gcs.app.host", "gcs.endpoint", "endpoint") or key.get("gcs_base_url")
    if endpoint:
        scheme, separator, host = str(endpoint).rpartition("://")
        settings |= {"endpoint_override": host.rstrip("/"), "scheme": scheme if separator else "https"}
    return pafs.GcsFileSystem(**settings)


def azure(options: StorageOptions, account: str) -> pafs.FileSystem:
    """The file system of Azure's Data Lake Storage; `account` is the storage account in the URI."""

    def of(*names: str) -> str | None:
        return options.text(*(p + n for n in names for p in ("azure_storage_", "azure_", "", "adls.")))

    name = of("account_name") or account or _environment("AZURE_STORAGE_ACCOUNT_NAME")
    if not name:
        raise ValueError(
            "no storage account: name it in the address, as abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH, in the"
            " option account_name, or in AZURE_STORAGE_ACCOUNT_NAME"
        )
    settings: dict[str, Any] = {"account_name": name}
    given = {
        "account_key": of("account_key", "access_key"),
        "sas_token": of("sas_token", "sas_key"),
        "tenant_id": of("tenant_id", "authority_id"),
        "client_id": of("client_id"),
        "client_secret": of("client_secret"),
    }
    if not any(given.values()):
        given = {
            "account_key": _environment("AZURE_STORAGE_ACCOUNT_KEY"),
            "sas_token": _environment("AZURE_STORAGE_SAS_TOKEN"),
        }
    settings |= {name: value for name, value in given.items() if value}
    if endpoint := of("endpoint", "account_host"):
        settings |= _azure_hosts(endpoint, settings["account_name"])
    return pafs.AzureFileSystem(**settings)


def missing_credentials(error: BaseException) -> str | None:
    """The message of a store that was asked without credentials; None for any other error."""
    if "DefaultAzureCredential" not in str(error):
        return None
    return (
        "there are no credentials for Azure: give the option account_key or sas_token, or set AZURE_STORAGE_ACCOUNT_KEY"
        " or AZURE_STORAGE_SAS_TOKEN for the process that reads"
    )


def _azure_hosts(endpoint: str, account: str) -> dict[str, str]:
    """Settings for the blob and dfs hosts of an account, without the account's name.

    The file system inserts the name itself: before an authority with a leading dot, else as first part of the path, as
    emulators expect it.
    """
    scheme, separator, host = endpoint.rstrip("/").rpartition("://")
    host = host.removesuffix(f"/{account}")
    host = host[len(account) :] if host.startswith(f"{account}.") else host
    blob, dfs = host.replace(".dfs.", ".blob.", 1), host.replace(".blob.", ".dfs.", 1)
    scheme = scheme if separator else "https"
    return {
        "blob_storage_authority": blob,
        "dfs_storage_authority": dfs,
        "blob_storage_scheme": scheme,
        "dfs_storage_scheme": scheme,
    }
