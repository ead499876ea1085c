"""The grammar of the statements besides SELECT."""

import contextlib
import time

import pytest

from flight_server.conditions.words import Part
from flight_server.sql import statements
from flight_server.sql.statements import Analyze, Describe, Explain, ShowStats, ShowTables
from store.model.errors import InvalidArgument

A_B_C = (Part("a", False), Part("b", False), Part("c", False))


def column(text: str, quoted: bool = False) -> tuple[Part, ...]:
    return (Part(text, quoted),)


@pytest.mark.parametrize(
    ("sql", "statement"),
    {
        "ANALYZE a.b.c": Analyze(A_B_C, None),
        "/* x */ -- y\n analyze a . b . c ;": Analyze(A_B_C, None),
        "ANALYZE TABLE a.b.c COMPUTE STATISTICS": Analyze(A_B_C, ()),
        "ANALYZE TABLE a.b.c COMPUTE STATISTICS NOSCAN": Analyze(A_B_C, ()),
        "ANALYZE TABLE a.b.c COMPUTE STATISTICS FOR ALL COLUMNS": Analyze(A_B_C, None),
        'ANALYZE TABLE a.b.c COMPUTE STATISTICS FOR COLUMNS x, "Y ""1"""': Analyze(
            A_B_C, (column("x"), column('Y "1"', True))
        ),
        'SHOW STATS FOR `a`.b."c"': ShowStats((Part("a", True), Part("b", False), Part("c", True))),
        "show tables": ShowTables(),
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
        ("ANALYZE", "ANALYZE has its end where the name of a table should be; ANALYZE t, or ANALYZE TABLE"),
        ("ANALYZE a.b.c d", 'has "d" where the end should be'),
        ("ANALYZE TABLE 'x' COMPUTE STATISTICS", 'has "\'" where the name of a table should be'),
        ('ANALYZE TABLE a.b.c "COMPUTE" STATISTICS', 'has "COMPUTE" where COMPUTE should be'),
        ("ANALYZE TABLE a.b.c COMPUTE STATISTICS FOR COLUMNS x,", "has its end where the name of a column should be"),
        ("ANALYZE a.b.c; SELECT 1", 'has "SELECT" where the end should be'),
        ("SHOW COLUMNS FROM a.b.c", 'has "COLUMNS" where STATS should be; SHOW STATS FOR t, or SHOW TABLES'),
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
