"""The grammar of the statements besides SELECT."""

import contextlib
import time

import pytest

from flight_server.client.conditions.words import Part
from flight_server.faces.sql import statements
from flight_server.faces.sql.statements import Analyze, AnalyzeTables, Columns, Describe, Explain, ShowStats, ShowTables
from store.model.errors import InvalidArgument

A_B_C = (Part("a", False), Part("b", False), Part("c", False))


def column(text: str, quoted: bool = False) -> tuple[Part, ...]:
    return (Part(text, quoted),)


@pytest.mark.parametrize(
    ("sql", "statement"),
    {
        "ANALYZE a.b.c": Analyze(A_B_C, Columns.ALL),
        "/* x */ -- y\n analyze a . b . c ;": Analyze(A_B_C, Columns.ALL),
        "ANALYZE TABLE a.b.c COMPUTE STATISTICS": Analyze(A_B_C, Columns.AS_USUAL),
        "ANALYZE TABLE a.b.c COMPUTE STATISTICS NOSCAN": Analyze(A_B_C, Columns.NONE),
        "ANALYZE TABLE a.b.c COMPUTE STATISTICS FOR ALL COLUMNS": Analyze(A_B_C, Columns.ALL),
        "ANALYZE TABLE a.b.c COMPUTE STATISTICS FOR COLUMNS;": Analyze(A_B_C, Columns.ALL),
        "ANALYZE TABLE a.b.c PARTITION (d = ')', f(x) = 2) COMPUTE STATISTICS FOR COLUMNS x": Analyze(
            A_B_C,
            (column("x"),),
            "PARTITION (d = ')', f(x) = 2) is ignored: statistics of columns are of the whole table",
        ),
        "ANALYZE TABLES COMPUTE STATISTICS": AnalyzeTables(None),
        "ANALYZE TABLES FROM a.b COMPUTE STATISTICS NOSCAN": AnalyzeTables(A_B_C[:2]),
        'ANALYZE TABLE a.b.c COMPUTE STATISTICS FOR COLUMNS x, "Y ""1"""': Analyze(
            A_B_C, (column("x"), column('Y "1"', True))
        ),
        'SHOW STATS FOR `a`.b."c"': ShowStats((Part("a", True), Part("b", False), Part("c", True))),
        "show tables": ShowTables(),
        "SHOW TABLES IN a": ShowTables(A_B_C[:1]),
        "SHOW COLUMNS FROM a.b.c": Describe(A_B_C),
        "SHOW COLUMNS IN a.b.c": Describe(A_B_C),
        "DESCRIBE TABLE a.b.c": Describe(A_B_C),
        "DESCRIBE a.b.c": Describe(A_B_C),
        "desc a.b.c": Describe(A_B_C),
        "EXPLAIN SELECT 1": Explain(" SELECT 1"),
        "SELECT 1": None,
        "ANALYZED": None,
        "": None,
    }.items(),
)
def test_parse(sql, statement):
    assert statements.parse(sql) == statement


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("ANALYZE", "ANALYZE has its end where the name of a table should be; ANALYZE t, ANALYZE TABLE"),
        ("ANALYZE a.b.c d", 'has "d" where the end should be'),
        ("ANALYZE TABLE 'x' COMPUTE STATISTICS", "has \"'x'\" where the name of a table should be"),
        ('ANALYZE TABLE a.b.c "COMPUTE" STATISTICS', 'has "COMPUTE" where COMPUTE should be'),
        ("ANALYZE TABLE a.b.c COMPUTE STATISTICS FOR COLUMNS x,", "has its end where the name of a column should be"),
        ("ANALYZE a.b.c; SELECT 1", 'has "SELECT" where the end should be'),
        ("SHOW COLUMNS OF a.b.c", 'has "OF" where IN should be; SHOW STATS FOR t, SHOW TABLES [IN s], or SHOW COLUMNS'),
        ("SHOW VIEWS", 'has "VIEWS" where STATS should be'),
        ("ANALYZE TABLE a.b.c PARTITION (d = 1 COMPUTE STATISTICS", 'has its end where ")" should be'),
        ("ANALYZE TABLE a.b.c PARTITION (d = 1) COMPUTE STATISTICS NOSCAN", "statistics of a part of a table"),
        ("EXPLAIN", "EXPLAIN of nothing is not allowed"),
        ("EXPLAIN ANALYZE SELECT 1", "EXPLAIN ANALYZE is not allowed"),
    ],
)
def test_malformed_statements_name_the_part(sql, said):
    with pytest.raises(InvalidArgument) as refusal:
        statements.parse(sql)
    assert refusal.value.code == "BAD_SQL" and said in str(refusal.value)


@pytest.mark.parametrize("text", ["/**/", "/*", '"', '""', "`", "--", " /* */"])
def test_long_statements_are_parsed_in_linear_time(text):
    start = time.perf_counter()
    for sql in (text * 16_000, f"ANALYZE {text * 15_000}"):
        with contextlib.suppress(InvalidArgument):
            statements.parse(sql)
    assert time.perf_counter() - start < 2
