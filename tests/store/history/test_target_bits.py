import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from store.history.target_bits import TargetBits

IDS = st.integers(0, 200) | st.sampled_from([-1, 2**62])
PIECES = st.lists(st.lists(st.tuples(st.sampled_from(["a", "b", "ä", ""]), IDS), max_size=80), max_size=5)


@given(PIECES)
def test_it_is_a_set_of_targets(pieces):
    bits, targets = TargetBits("stats.file_columns"), set()
    for piece in pieces:
        files = pa.array([file for file, _ in piece], pa.string())
        rows = pa.table({"file_path": files, "column_id": pa.array([id for _, id in piece], pa.int64())})
        places = bits.places(rows)
        assert bits.has(places).tolist() == [target in targets for target in piece]
        bits.add(places)
        targets |= set(piece)
        assert all(target in bits for target in targets)
    assert bits.files().to_pylist() == list(dict.fromkeys(file for piece in pieces for file, _ in piece))
    assert not any(target in bits for target in [("c", 1), ("a", 201), ("", 500)])


def test_a_family_may_have_files_only_or_several_columns_with_nulls():
    files = TargetBits("stats.files")
    files.add(files.places(pa.table({"file_path": ["a", "b"]})))
    assert ("b",) in files
    assert ("c",) not in files

    sketches = TargetBits("file_sketches")
    rows = pa.table({"storage_id": ["x", "x"], "column_id": pa.array([None, 3], pa.int64()), "role": ["ndv", "ndv"]})
    sketches.add(sketches.places(rows))
    assert ("x", None, "ndv") in sketches
    assert ("x", 4, "ndv") not in sketches


@given(PIECES)
def test_sets_share_numbers_of_files_alone(pieces):
    shared: dict[str, int] = {}
    of_columns, of_files = TargetBits("stats.file_columns", shared), TargetBits("stats.files", shared)
    columns, files = set(), set()
    for number, piece in enumerate(pieces):
        paths = pa.array([file for file, _ in piece], pa.string())
        rows = pa.table({"file_path": paths, "column_id": pa.array([id for _, id in piece], pa.int64())})
        assert of_columns.has(of_columns.places(rows)).tolist() == [target in columns for target in piece]
        assert of_files.has(of_files.places(rows)).tolist() == [file in files for file, _ in piece]
        if number % 2:
            of_columns.add(of_columns.places(rows))
            columns |= set(piece)
        else:
            of_files.add(of_files.places(rows))
            files |= {file for file, _ in piece}
