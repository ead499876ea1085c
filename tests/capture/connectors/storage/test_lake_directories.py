import os

import pytest
from pyarrow import fs as pafs

from capture.connectors.storage.lake_directories import LISTED_AT_ONCE, Lake
from capture.connectors.storage.places import Place, Unreadable
from store.model.errors import NotFound, UpstreamError


def lake(uri, **options) -> Lake:
    return Lake("toy", str(uri), options, lambda folder: "mark" in folder.files)


def make(path) -> None:
    path.mkdir(parents=True)
    (path / "mark").touch()


def test_uri_may_be_the_directory_of_a_table(tmp_path):
    make(tmp_path / "orders")
    found = lake(tmp_path / "orders")
    assert found.namespaces() == ["default"]
    assert found.names("default") == ["orders"]
    assert found.find("default", "orders").path == str(tmp_path / "orders")
    with pytest.raises(NotFound, match="did you mean"):
        found.find("default", "order")


def test_nested_directories_are_namespaces(tmp_path):
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


def test_new_table_is_found(tmp_path):
    make(tmp_path / "a")
    found = lake(tmp_path)
    assert found.names("default") == ["a"]
    make(tmp_path / "b")
    assert found.find("default", "b")
    assert found.namespaces() == ["default"]
    assert found.names("default") == ["a", "b"]


def test_links_to_directories_around_them_are_not_followed(tmp_path):
    make(tmp_path / "lake/a")
    make(tmp_path / "b")
    (tmp_path / "lake/self").symlink_to(".")
    (tmp_path / "lake/up").symlink_to(tmp_path)
    (tmp_path / "lake/b").symlink_to(tmp_path / "b")
    found = lake(tmp_path / "lake")
    assert (found.namespaces(), found.names("default")) == (["default"], ["a", "b"])


@pytest.mark.parametrize("form", ["{}", "file://{}", "file:{}", "file://localhost{}"])
def test_missing_location_is_named_as_configured(tmp_path, form):
    uri = form.format(tmp_path / "no where")
    with pytest.raises(NotFound) as refused:
        lake(uri).namespaces()
    assert uri in str(refused.value)


def test_directory_without_tables_and_plain_file_are_not_found(tmp_path):
    (tmp_path / "x").mkdir()
    with pytest.raises(NotFound, match="holds no toy table"):
        lake(tmp_path / "x").namespaces()
    (tmp_path / "file").touch()
    with pytest.raises(NotFound, match="is not a directory"):
        lake(tmp_path / "file").namespaces()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read all")
def test_unreadable_directory_is_an_error(tmp_path):
    (tmp_path / "x").mkdir(mode=0)
    with pytest.raises(Unreadable, match="may not be read"):
        lake(tmp_path / "x").namespaces()


def as_remote(found: Lake) -> Lake:
    """The same lake on a file system that does not count as local."""
    root = found.root
    found.root = Place(pafs.SubTreeFileSystem("/", pafs.LocalFileSystem()), root.path, root.name)
    return found


def test_remote_lake_has_the_same_tables_as_a_local_one(tmp_path):
    for number in range(200):
        make(tmp_path / f"n{number % 3}/t{number}")
    near, far = lake(tmp_path), as_remote(lake(tmp_path))
    assert (near.tables_at_once, far.tables_at_once) == (1, LISTED_AT_ONCE)
    assert far.namespaces() == near.namespaces() == ["n0", "n1", "n2"]
    assert far.names("n1") == near.names("n1")
    assert len(near.names("n1")) == 67


@pytest.mark.parametrize("namespace", ["north", "default", "north.db"])
def test_known_table_is_found_without_listing_its_neighbours(tmp_path, monkeypatch, namespace):
    for number in range(5):
        make(tmp_path / namespace / f"t{number}")
    found = lake(tmp_path)
    found.namespaces()
    found.find(namespace, "t1")
    listed = []
    real = found._list_directory
    monkeypatch.setattr(found, "_list_directory", lambda place: listed.append(place.stem) or real(place))
    assert found.find(namespace, "t2").path == str(tmp_path / namespace / "t2")
    assert listed == ["t2"] * (2 if namespace == "default" else 1)  # of default it may be in the root, too
    (tmp_path / namespace / "mark").touch()  # now a table itself, for the next walk
    assert found.namespaces() == ["default"]
    with pytest.raises(NotFound):
        found.find(namespace, "t2")


def test_error_of_an_unreachable_object_store_is_redacted_and_retryable(monkeypatch):
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


def test_lake_that_is_away_may_return_but_a_missing_table_does_not(tmp_path):
    make(tmp_path / "lake/orders")
    with pytest.raises(NotFound) as gone:
        lake(tmp_path / "lake").find("default", "sales")
    with pytest.raises(NotFound) as away:
        lake(tmp_path / "not mounted").find("default", "orders")
    assert (gone.value.retryable, away.value.retryable) == (False, True)
