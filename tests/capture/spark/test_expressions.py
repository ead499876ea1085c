"""Texts of expressions that are refused before Spark reads them."""

from __future__ import annotations

import pytest

from capture.spark.expressions import checked
from store.model.errors import InvalidArgument


@pytest.mark.parametrize("text", ["`a;b` + 1", "x = 'q;r'", "`a--``/*` = \"it''s; --\"", "concat('a`', '`;')"])
def test_marks_of_comments_and_statements_are_allowed_in_quotes(text):
    assert checked(text.encode()) == text


@pytest.mark.parametrize(
    "text",
    [
        "1; 2",
        "`a` /* c */",
        "x -- y",
        "'`' /* '`' */",
        "/*`*/ ( /*`*/ 1)",
        "`a;b` = '\\n'",
        r"r'\' = (/*'*/ 1)",  # a raw string ends at the quote after its backslash
    ],
)
def test_comments_and_semicolons_outside_of_quotes_are_refused(text):
    with pytest.raises(InvalidArgument, match="comments and semicolons"):
        checked(text.encode())
