"""A server with failing lakes: errors name their table, other tables are captured, and no secret leaks."""

from __future__ import annotations

import json
import stat
from typing import Any

import pyarrow as pa
import pytest

from tests.capture.connectors.iceberg_tables import make_catalog
from tests.flight_server.live_server import Client, serving
from tests.integration.aws_server import SECRET, process
from tests.integration.test_catalogs import _REST, Rest
from tests.integration.test_object_stores import ROWS

OLD_TOKEN, NEW_TOKEN = "the-first-hush-hush-token", "the-second-hush-hush-token"


@pytest.fixture(scope="module")
def rest_server(tmp_path_factory):
    """A REST catalog of three tables."""
    folder = tmp_path_factory.mktemp("rest")
    with process(_REST, str(folder)) as port:
        server = Rest(folder, port)
        catalog = server.client()
        catalog.create_namespace("sales")
        for name in ("one", "slow", "two"):
            catalog.create_table(("sales", name), ROWS.schema).append(ROWS)
        yield server


@pytest.fixture
def rest(rest_server):
    yield rest_server
    for name in ("fault", "token"):
        (rest_server.folder / name).unlink(missing_ok=True)


def connect(client: Client, catalog: str, format: str, uri: object, **options: str) -> dict[str, dict[str, Any]]:
    """Registers and discovers a lake; its tables by name."""
    client.act("register_connector", {"catalog": catalog, "format": format, "uri": str(uri), "options": options})
    return {found["table"].rpartition(".")[2]: found for found in client.act("discover", {"catalog": catalog})}


def captured(client: Client, *tables: str) -> dict[str, dict[str, Any]]:
    """Captures the first column of each table; the outcomes by name."""
    requests = [{"table": table, "target": {"kind": "COLUMN", "column_id": 1}, "kinds": ["NDV"]} for table in tables]
    outcomes = client.act("capture", {"requests": requests})
    return dict(zip((table.rpartition(".")[2] for table in tables), outcomes, strict=True))


def test_damaged_tables_are_degraded_with_the_reason(client, tmp_path):
    catalog = make_catalog(tmp_path / "lake")
    catalog.create_namespace("sales")
    broken = {"no_data": "data/*.parquet", "bad_manifest": "metadata/*-m0.avro", "no_list": "metadata/snap-*.avro"}
    for name in (*broken, "sound"):
        catalog.create_table(("sales", name), ROWS.schema).append(ROWS)
    catalog.close()
    lake = tmp_path / "lake/warehouse"
    found = connect(client, "lake", "iceberg", lake)
    assert set(found) == {*broken, "sound"} and not any("error" in result for result in found.values())
    for name, pattern in broken.items():
        for file in (lake / "sales" / name).glob(pattern):
            file.unlink() if name.startswith("no_") else file.write_bytes(b"Obj\x01 no more")
    outcomes = captured(client, *(f"lake.sales.{name}" for name in found))
    assert {name for name, result in outcomes.items() if result["outcome"] == "CAPTURED"} == {"sound"}
    for name in broken:
        detail = outcomes[name]["detail"]
        assert outcomes[name]["outcome"] == "DEGRADED"
        assert any(word in detail for word in ("missing", "no such file", "cannot be read"))
        assert str(tmp_path) not in detail.replace(f'file "{lake}', "")
    for file in (lake / "sales/no_data/metadata").glob("*.metadata.json"):
        file.write_text("{")
    again = connect(client, "again", "iceberg", lake)
    assert [name for name, result in again.items() if "error" in result] == ["no_data"]
    assert client.get({"table": "stats.columns"})["table_name"].to_pylist() == ["sound"]


@pytest.mark.parametrize("fault", [{"seconds": 20}, {"status": 503}])
def test_table_that_the_catalog_fails_to_load_is_degraded_alone(client, rest, fault):
    found = connect(client, "lake", "iceberg", rest.uri, timeout="2")
    assert sorted(found) == ["one", "slow", "two"]
    rest.fault(**fault, times=99, about="/tables/slow")
    outcomes = captured(client, *(f"lake.sales.{name}" for name in found))
    assert {name: result["outcome"] for name, result in outcomes.items()} == {
        "one": "CAPTURED",
        "two": "CAPTURED",
        "slow": "DEGRADED",
    }
    assert 'table "sales.slow"' in outcomes["slow"]["detail"]
    again = {t["table"].rpartition(".")[2]: t for t in client.act("discover", {"catalog": "lake"})}
    assert [name for name, result in again.items() if "error" in result] == ["slow"]
    (rest.folder / "fault").unlink()
    assert captured(client, "lake.sales.slow")["slow"]["outcome"] == "CAPTURED"


def test_secrets_are_in_the_vault_and_nowhere_else(tmp_path, rest):
    secrets = tmp_path / "secrets.toml"
    renewed = tmp_path / "token"
    renewed.write_text(OLD_TOKEN)
    secrets.write_text(f'[lake]\ntoken = {{ file = "{renewed}" }}\n')
    rest.protect(OLD_TOKEN)
    responses: list[Any] = []
    home = tmp_path / "home"
    home.mkdir()
    with (
        serving(home, "--workers", 1, env={"STATFLIGHT_SECRETS_FILE": str(secrets)}) as server,
        server.connect() as client,
    ):

        def connect_rejected(catalog: str, format: str, uri: str, **options: str) -> None:
            with pytest.raises(pa.ArrowException) as error:
                connect(client, catalog, format, uri, **options)
            responses.append(str(error.value))

        responses.append(connect(client, "given", "iceberg", rest.uri, token=OLD_TOKEN))
        responses.append(connect(client, "named", "iceberg", rest.uri, secret="lake"))
        responses.append(captured(client, "given.sales.one", "named.sales.two"))
        connect_rejected("wrong", "iceberg", rest.uri, token=SECRET)
        connect_rejected("wrong", "delta", f"uc://{rest.uri[7:]}/main", token=SECRET, unity_allow_http_url="true")
        connect_rejected(
            "wrong",
            "parquet",
            "s3://bucket/x",
            aws_endpoint="http://127.0.0.1:9",
            aws_access_key_id="k",
            aws_secret_access_key=SECRET,
            timeout="1",
        )
        connect_rejected("wrong", "iceberg", f"postgresql://me:{SECRET}@127.0.0.1:9/x", type="sql")
        connect_rejected("wrong", "iceberg", rest.uri, token=SECRET, colour=SECRET)
        rest.protect(NEW_TOKEN)
        for request in ({"catalog": "given"}, {"catalog": "named"}):  # neither has the new token yet
            with pytest.raises(pa.ArrowException) as error:
                client.act("discover", request)
            responses.append(str(error.value))
        renewed.write_text(NEW_TOKEN)
        assert len(client.act("discover", {"catalog": "named"})) == 3  # no restart
        responses.append(captured(client, "named.sales.one", "given.sales.one"))
        responses += [client.get({"table": name}).to_pylist() for name in _flights(client)]
        (connector,) = [c for c in client.get({"table": "sys.connectors"}).to_pylist() if c["catalog"] == "given"]
        assert json.loads(connector["options"])["token"] == "****"
    vault = home / "stats.duckdb.secrets"
    assert OLD_TOKEN in vault.read_text()  # the only file with it
    assert stat.S_IMODE(vault.stat().st_mode) == 0o600
    for secret in (OLD_TOKEN, NEW_TOKEN, SECRET):
        assert secret not in repr(responses)
        for file in home.rglob("*"):
            assert file == vault or file.is_dir() or secret.encode() not in file.read_bytes(), file


def _flights(client: Client) -> list[str]:
    listed = client.flight.list_flights(options=client.options())
    return [
        json.loads(info.descriptor.command)["table"]
        if info.descriptor.command
        else ".".join(part.decode() for part in info.descriptor.path)
        for info in listed
    ]
