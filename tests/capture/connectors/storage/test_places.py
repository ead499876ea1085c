import os
import sys

import pytest
from pyarrow import fs as pafs

from capture.connectors import BUILT_IN, connector_class, known_formats, open_connector
from capture.connectors.spi import ConnectorConfig
from capture.connectors.storage.places import LOOKS, Lake, Place, Unreadable, first_line, open_place, plain_path, reason
from store.errors import InvalidArgument, NotFound, UpstreamError


def lake(uri, **options) -> Lake:
    return Lake("toy", str(uri), options, lambda folder: "mark" in folder.files)


def make(path) -> None:
    path.mkdir(parents=True)
    (path / "mark").touch()


def test_a_table_s_own_directory(tmp_path):
    make(tmp_path / "orders")
    found = lake(tmp_path / "orders")
    assert found.namespaces() == ["default"]
    assert found.names("default") == ["orders"]
    assert found.find("default", "orders").path == str(tmp_path / "orders")
    with pytest.raises(NotFound, match="did you mean"):
        found.find("default", "order")


def test_directories_of_tables(tmp_path):
    for path in ("b", "a", "north/sales/events", "north/other", "_hidden/x", ".hidden/x", "a/inner", "odd name.x/t"):
        make(tmp_path / path)
    (tmp_path / "empty/inside").mkdir(parents=True)
    found = lake(tmp_path)
    assert found.namespaces() == ["default", "north", "north.sales", "odd name.x"]
    assert found.names("default") == ["a", "b"]
    assert found.names("north") == ["other"]
    assert lake(tmp_path).find("north.sales", "events").path == str(tmp_path / "north/sales/events")
    assert lake(tmp_path).find("odd name.x", "t").stem == "t"
    for namespace, name in (
        ("north", "sales"),
        ("default", ".."),
        ("default", "../x"),
        ("default", ""),
        ("..", "a"),
        ("a", "inner"),
    ):
        with pytest.raises(NotFound):
            found.find(namespace, name)


def test_a_new_table_is_seen(tmp_path):
    make(tmp_path / "a")
    found = lake(tmp_path)
    assert found.names("default") == ["a"]
    make(tmp_path / "b")
    assert found.find("default", "b")
    assert found.namespaces() == ["default"]
    assert found.names("default") == ["a", "b"]


def test_a_loop_of_links_ends(tmp_path):
    make(tmp_path / "a")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert "default" in lake(tmp_path).namespaces()


@pytest.mark.parametrize("form", ["{}", "file://{}", "file:{}", "file://localhost{}"])
def test_a_place_that_is_not_there_is_named_as_sent(tmp_path, form):
    uri = form.format(tmp_path / "no where")
    with pytest.raises(NotFound) as refused:
        lake(uri).namespaces()
    assert uri in str(refused.value)


def test_a_directory_without_tables_and_a_file(tmp_path):
    (tmp_path / "x").mkdir()
    with pytest.raises(NotFound, match="holds no toy table"):
        lake(tmp_path / "x").namespaces()
    (tmp_path / "file").touch()
    with pytest.raises(NotFound, match="is no directory"):
        lake(tmp_path / "file").namespaces()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read all")
def test_a_place_that_may_not_be_read(tmp_path):
    (tmp_path / "x").mkdir(mode=0)
    with pytest.raises(Unreadable, match="may not be read"):
        lake(tmp_path / "x").namespaces()


def test_percent_encoding_in_file_uris(tmp_path):
    make(tmp_path / "a b")
    assert open_place(f"file://{tmp_path}/a%20b", {}).path == str(tmp_path / "a b")
    assert open_place(f"{tmp_path}/a%20b", {}).path == f"{tmp_path}/a%20b"
    assert plain_path("file:///a%20b/k=%2525") == "/a b/k=%25"
    assert plain_path("s3://b/k%20") == "s3://b/k "


@pytest.mark.parametrize("uri", ["s3://bucket/a/b?c#d/", "s3a://bucket/a/b?c#d", "S3://bucket/a/b?c#d"])
def test_object_stores(uri):
    options = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "aws_endpoint_url": "http://127.0.0.1:9"}
    place = open_place(uri, options)
    assert isinstance(place.file_system, pafs.S3FileSystem)
    assert place.path == "bucket/a/b?c#d"
    assert place.name == uri.rstrip("/")
    assert not place.is_local
    assert place.below("x").name == f"{uri.rstrip('/')}/x"


def test_other_object_stores():
    assert open_place("gs://bucket/a", {"google_skip_signature": "true"}).path == "bucket/a"
    azure = open_place("abfss://box@account.dfs.core.windows.net/a/b", {"azure_storage_account_key": "a2V5"})
    assert azure.path == "box/a/b"


@pytest.mark.parametrize("uri", ["", "  ", "ftp://host/x", "s3://", "gopher:x"])
def test_wrong_uris(uri):
    with pytest.raises(InvalidArgument, match="uri"):
        open_place(uri, {})


def test_an_object_store_that_cannot_be_reached(monkeypatch):
    found = lake("s3://bucket/x", aws_secret_access_key="correct-horse", aws_access_key_id="x", aws_region="nowhere")

    class Down(pafs.FileSystemHandler):
        def get_file_info_selector(self, selector):
            raise OSError("timeout; key correct-horse refused\nsecond line")

        def __getattr__(self, name):
            raise AttributeError(name)

        def get_type_name(self):
            return "s3"

        get_file_info = normalize_path = create_dir = delete_dir = delete_dir_contents = None
        delete_root_dir_contents = delete_file = move = copy_file = open_input_stream = open_input_file = None
        open_output_stream = open_append_stream = None

    Down.__abstractmethods__ = frozenset()
    object.__setattr__(found.root, "file_system", pafs.PyFileSystem(Down()))
    with pytest.raises(
        UpstreamError, match=r"s3://bucket/x.*cannot be reached \(timeout; key \*\*\*\* refused\)"
    ) as down:
        found.namespaces()
    assert down.value.retryable


def test_reasons_are_short_and_plain():
    assert first_line(ValueError("\n a \n b")) == "a"
    assert len(first_line(ValueError("x" * 1000))) < 310
    assert first_line(ValueError()) == "ValueError"
    assert (
        reason(OSError("no /srv/lake/t/f.parquet, file:///srv/lake/t"), {}, "/srv/lake/t") == "no f.parquet, the table"
    )


# Formats.


def test_formats_are_known():
    assert set(BUILT_IN) <= set(known_formats())
    with pytest.raises(InvalidArgument, match=r'"detla" is unknown; known are .*delta.*did you mean "delta"'):
        open_connector(ConnectorConfig("c", "detla", "/"))


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.delitem(sys.modules, "capture.connectors.delta.connector", raising=False)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(InvalidArgument, match=r"deltalake.*pip install 'statflight\[delta\]'"):
        connector_class("delta")


def far_away(found: Lake) -> Lake:
    """The same lake on a file system that is not called local."""
    root = found.root
    found.root = Place(pafs.SubTreeFileSystem("/", pafs.LocalFileSystem()), root.path, root.name)
    return found


def test_a_lake_far_away_is_walked_alike(tmp_path):
    for number in range(200):
        make(tmp_path / f"n{number % 3}/t{number}")
    near, far = lake(tmp_path), far_away(lake(tmp_path))
    assert (near.tables_at_once, far.tables_at_once) == (1, LOOKS)
    assert far.namespaces() == near.namespaces() == ["n0", "n1", "n2"]
    assert far.names("n1") == near.names("n1")
    assert len(near.names("n1")) == 67


def test_a_table_is_found_without_a_look_at_its_neighbours(tmp_path, monkeypatch):
    for number in range(5):
        make(tmp_path / f"north/t{number}")
    found = lake(tmp_path)
    found.namespaces()
    found.find("north", "t1")
    looked = []
    real = found._look
    monkeypatch.setattr(found, "_look", lambda place: looked.append(place.stem) or real(place))
    assert found.find("north", "t2").stem == "t2"
    assert looked == ["t2"]
    (tmp_path / "north/mark").touch()  # a table now, as the next walk sees
    assert found.namespaces() == ["default"]
    with pytest.raises(NotFound):
        found.find("north", "t2")
