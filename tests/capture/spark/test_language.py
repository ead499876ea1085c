"""Texts of expressions that are refused before Spark reads them."""

from __future__ import annotations

import pytest

from capture.engines import refused
from capture.engines.compute.engine import ComputeEngine
from capture.spark import language
from capture.spark.language import NotDeterministic, checked, may_vary, read_words
from capture.spi import CaptureRequest, Outcome
from store.model.errors import InvalidArgument
from store.model.targets import Target
from tests.capture.engine_contract import MemorySink
from tests.capture.fake_engine import handle

QUERIES = [
    "(SELECT max(value) FROM text.`/etc/passwd`)",
    "(SELECT(max(value))FROM text.`/etc/passwd`)",
    "(SELECT*FROM parquet.`/lake/sec/t/0.parquet`)",
    "(\n\tfRoM\ttext.`/etc/passwd`)",
    "(from t |> select x)",
    "( TABLE other)",
    "case when true then(table other)end",
    "(VALUES 1)",
    "(with x as (select 1 as y) select y from x)",
    "((select 1))",
    "a in (select q from other)",
    "exists(select 1)",
    "a[(select 1)]",
    "transform(array(a), x -> (select 1))[0]",
    "concat('a', (select 1))",
    "'it''s' || (select 1)",
    r"'\'' || (select 1) || '\''",
    "r'\\' || (select 1) || r'\\'",
    "hash(table(select 1))",
]
CALLS = [
    "java_method('java.lang.System', 'exit', 1)",
    "`reflect` ('java.lang.System', 'exit', 1)",
    "\"try_reflect\"('java.lang.System', 'exit', 1)",
    "read_files('/etc/passwd')",
    "from_xml(w, 'a INT', map('rowValidationXSDPath', '/etc/passwd'))",
    "from_protobuf(b, 'm', '/etc/passwd')",
    "xpath_string(w, 'a')",
    "raise_error('x')",
    "version()",
    "my_function(a)",
    "system.builtin.upper(w)",
    "lake . upper(w)",
    "sum(a)",
    "sum(a) over ()",
    "explode(array(1))",
    "IDENTIFIER('a')",
    "upper\n(my_function (a))",
]
MARKS = ["1; 2", "`a` /* c */", "x -- y", "'`' /* '`' */", "/*`*/ ( /*`*/ 1)", r"r'\' = (/*'*/ 1)", "/*+ hint */ a"]
STARS = ["*", "hash(*)", "hash(a, *)", "t.*"]
OTHERS = [":p", "?", "${a}", "$$x$$", "@a", "a\u00a0+ 1", "'open", "`open", "{fn upper(w)}", "#1", "(" * 99, "a+" * 999]
VARYING = [
    "rand(4)",
    "now()",
    "a + uuid()",
    "current_date()",
    "input_file_name()",
    "current_database()",
    "aes_encrypt(b, 'k')",
    "date'today'",
    "TIMESTAMP ' Now '",
    r"date'\u0074oday'",
]
ALLOWED = [
    "`a;b` + 1",
    "x = 'q;r'",
    "`a--``/*` = \"it''s; --\"",
    "concat('a`', '`;')",
    "`a;b` = '\\n'",
    "'(select 1)' || \"(table t)\"",
    "(`select`) + `values`",
    "abs(values)",
    "regexp_extract(w, '(\\\\d+)', 1)",
    "case when (a) in (1, 2) then (b) else (c) end",
    "cast(a AS decimal(10, 2)) * (2 - 1)",
    "a::varchar(10)",
    "extract(YEAR FROM d)",
    "trim(BOTH 'x' FROM w)",
    "mask(w, upperChar => 'X')",
    "aggregate(array(a), 0, (x, y) -> x + y)",
    "aes_decrypt(b, 'k')",
    "from_json(w, 'a INT').a",
    "place.lat * a",
    "w = 'today'",
    "straße + größe",
]


@pytest.mark.parametrize("text", ALLOWED)
def test_a_function_of_the_row_is_allowed(text):
    assert checked(text.encode()) == text


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (QUERIES, "a subquery is not allowed|the function .* is not allowed"),
        (CALLS, "is not allowed"),
        (MARKS, "comments and semicolons"),
        (STARS, r"\* is not allowed: name the columns"),
        (OTHERS, "is not allowed|nested deeper|more than"),
    ],
)
def test_what_reads_more_than_the_row_is_refused(texts, reason):
    for text in texts:
        with pytest.raises(InvalidArgument, match=reason) as refusal:
            checked(text.encode())
        assert not isinstance(refusal.value, NotDeterministic), text


@pytest.mark.parametrize("text", VARYING)
def test_what_clock_chance_and_session_decide_is_not_deterministic(text):
    with pytest.raises(NotDeterministic, match="is not a function of its row"):
        checked(text.encode())


def test_what_is_refused_is_not_said_to_vary():
    with pytest.raises(InvalidArgument, match="my_function") as refusal:
        checked(b"rand() + my_function()")
    assert not isinstance(refusal.value, NotDeterministic)


def test_bytes_and_long_texts_are_refused():
    for key, reason in ((b"\xff", "UTF-8"), (b"a" * (language.MAX_BYTES + 1), "longer than")):
        with pytest.raises(InvalidArgument, match=reason):
            checked(key)


@pytest.mark.parametrize(
    ("text", "varies"),
    [
        ("current_date", True),
        ("unix_timestamp( )", True),
        ("a > 'tomorrow'", True),
        ("unix_timestamp(a)", False),
        ("`a` > 'current_date'", False),
    ],
)
def test_words_of_the_current_time_are_found_without_a_plan(text, varies):
    assert may_vary(text) is varies


def test_words_are_read_as_spark_reads_them():
    texts = [(token.kind, token.text) for token in read_words("R'\\'`a``b` \"x\\\"y\"->bar'z'::Int")]
    expected = [("text", "R'\\'"), ("name", "a`b"), ("text", '"x\\"y"'), ("mark", "->"), ("word", "bar")]
    assert texts == [*expected, ("text", "'z'"), ("mark", "::"), ("word", "Int")]


@pytest.mark.parametrize("text", [*QUERIES, *CALLS, *VARYING])
def test_no_session_starts_for_a_refused_expression(text):
    target = Target.expression("Spark", text.encode())
    engine, sink = ComputeEngine(), MemorySink()
    (result,) = engine.capture_batch([CaptureRequest.of(handle(), target)], sink)
    outcome, detail = refused(target)
    assert (result.outcome, result.detail) == (outcome, detail) and sink.puts == []
    assert outcome is (Outcome.UNCAPTURABLE if text in VARYING else Outcome.DEGRADED)
    assert not engine.spark.is_warm


def test_targets_of_other_engines_are_left_to_them():
    others = [Target.table(), Target.column(1), Target.expression("abacus", b"(select 1)")]
    assert [refused(target) for target in [*others, Target.expression("spark", b"a + 1")]] == [None] * 4
