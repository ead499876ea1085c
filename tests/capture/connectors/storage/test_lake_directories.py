import os

import pytest
from pyarrow import fs as pafs

from capture.connectors.storage.lake_directories import LISTED_AT_ONCE, Lake
from capture.connectors.storage.places import Place, Unreadable
from store.errors import NotFound, UpstreamError


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
    with pytest.raises(NotFound, match="is not a directory"):
        lake(tmp_path / "file").namespaces()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read all")
def test_a_place_that_may_not_be_read(tmp_path):
    (tmp_path / "x").mkdir(mode=0)
    with pytest.raises(Unreadable, match="may not be read"):
        lake(tmp_path / "x").namespaces()


def far_away(found: Lake) -> Lake:
    """The same lake on a file system that is not called local."""
    root = found.root
    found.root = Place(pafs.SubTreeFileSystem("/", pafs.LocalFileSystem()), root.path, root.name)
    return found


def test_a_lake_far_away_is_walked_alike(tmp_path):
    for number in range(200):
        make(tmp_path / f"n{number % 3}/t{number}")
    near, far = lake(tmp_path), far_away(lake(tmp_path))
    assert (near.tables_at_once, far.tables_at_once) == (1, LISTED_AT_ONCE)
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
    real = found._list_directory
    monkeypatch.setattr(found, "_list_directory", lambda place: looked.append(place.stem) or real(place))
    assert found.find("north", "t2").stem == "t2"
    assert looked == ["t2"]
    (tmp_path / "north/mark").touch()  # a table now, as the next walk sees
    assert found.namespaces() == ["default"]
    with pytest.raises(NotFound):
        found.find("north", "t2")


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
