"""The SQL subset: one query whose nodes and functions are all on an allowlist. Others are refused by name.

Statements are parsed by sqlglot. The SQL that DuckDB runs is generated from the validated tree, so that no text can
pass validation with one meaning and run with another.
"""

from __future__ import annotations

import binascii
import itertools
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

from sqlglot import Dialect, exp
from sqlglot.errors import SqlglotError
from sqlglot.tokens import Token, TokenType

from flight_server.client.conditions.sql import place_of
from store.model.errors import InvalidArgument, nearest

DIALECT: Final = "duckdb"
_DIALECT: Final = Dialect.get_or_raise(DIALECT)
MAX_BYTES: Final = 64 * 1024  # longest statement
MAX_TOKENS: Final = 10_000
MAX_DEPTH: Final = 128  # deepest tree; chains of AND and OR are one level
MAX_PARAMETERS: Final = 1000
MAX_TABLES: Final = 64  # most table references of a statement
_NODES_PER_TOKEN: Final = 8  # limit for the parser, which needs at most one without backtracking
_BOUNDED_CALLS: Final = 4  # levels of nested calls that are generated without a check of their size
_MAX_WRITTEN: Final = 16 * MAX_BYTES  # most generated text of nested calls
_KIND: Final = "only one SELECT over flights is allowed"

Query: TypeAlias = exp.Select | exp.SetOperation | exp.Subquery
"""A SELECT, several combined by UNION, EXCEPT or INTERSECT, or one of these in parentheses."""

_Change: TypeAlias = tuple[int, int, str]
"""A part of a statement to be replaced: its first and last character, and the SQL in its place."""

logging.getLogger("sqlglot").setLevel(logging.ERROR)  # it logs unknown statements


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NODES: Final = frozenset(
    {
        exp.Select,
        exp.From,
        exp.Join,
        exp.Where,
        exp.Group,
        exp.Having,
        exp.Order,
        exp.Ordered,
        exp.Limit,
        exp.Offset,
        exp.Distinct,
        exp.Subquery,
        exp.With,
        exp.CTE,
        exp.Table,
        exp.TableAlias,
        exp.Alias,
        exp.Column,
        exp.Identifier,
        exp.Star,
        exp.Literal,
        exp.Null,
        exp.Boolean,
        exp.Placeholder,
        exp.Paren,
        exp.Tuple,
        exp.Filter,
        exp.And,
        exp.Or,
        exp.Not,
        exp.EQ,
        exp.NEQ,
        exp.LT,
        exp.LTE,
        exp.GT,
        exp.GTE,
        exp.Is,
        exp.In,
        exp.Between,
        exp.Like,
        exp.ILike,
        exp.Escape,
        exp.NullSafeEQ,
        exp.NullSafeNEQ,
        exp.Exists,
        exp.Add,
        exp.Sub,
        exp.Mul,
        exp.Div,
        exp.IntDiv,
        exp.Mod,
        exp.Neg,
        exp.DPipe,
        exp.Case,
        exp.If,
        exp.Cast,
        exp.TryCast,
        exp.DataType,
        exp.DataTypeParam,
        exp.Interval,
        exp.Var,
        exp.Extract,
        exp.WithinGroup,
        exp.Union,
        exp.Except,
        exp.Intersect,
        exp.Values,
        exp.Qualify,
        exp.Window,
        exp.WindowSpec,
        exp.IgnoreNulls,
        exp.RespectNulls,
    }
)
_AROUND_CALLS: Final = (exp.Window, exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)
_SET: Final = frozenset({"this", "expression", "distinct", "by_name", "order", "limit", "offset", "with_", "with"})
_PARTS: Final[dict[type[exp.Expression], frozenset[str]]] = {
    # allowed parts of these nodes: an unknown option must not be ignored silently
    exp.Select: frozenset(
        {
            "expressions",
            "from_",
            "from",
            "joins",
            "where",
            "group",
            "having",
            "windows",
            "qualify",
            "order",
            "limit",
            "offset",
            "distinct",
            "with_",
            "with",
        }
    ),
    exp.Union: _SET,
    exp.Except: _SET,
    exp.Intersect: _SET,
    exp.Values: frozenset({"expressions", "alias"}),
    exp.Window: frozenset({"this", "partition_by", "order", "spec", "alias", "over"}),
    exp.Table: frozenset({"this", "db", "catalog", "alias"}),
    exp.Subquery: frozenset({"this", "alias", "order", "limit", "offset", "with_", "with"}),
    exp.CTE: frozenset({"this", "alias"}),
    exp.With: frozenset({"expressions"}),
    exp.Join: frozenset({"this", "on", "using", "side", "kind", "method"}),
}
_TYPES: Final = frozenset(
    exp.DataType.Type[name]
    for name in (
        "BOOLEAN",
        "TINYINT",
        "SMALLINT",
        "INT",
        "BIGINT",
        "INT128",
        "UTINYINT",
        "USMALLINT",
        "UINT",
        "UBIGINT",
        "FLOAT",
        "DOUBLE",
        "DECIMAL",
        "VARCHAR",
        "TEXT",
        "CHAR",
        "DATE",
        "TIME",
        "TIMESTAMP",
        "TIMESTAMPTZ",
        "TIMESTAMPNTZ",
        "DATETIME",
        "INTERVAL",
        "VARBINARY",
    )
)

# Names of functions, in DuckDB and in sqlglot: none reads files, settings or the network.
AGGREGATES: Final = _words("""
    any_value approx_count_distinct approx_distinct arg_max arg_min avg bool_and bool_or corr count count_if countif
    covar_pop covar_samp first kurtosis last list listagg array_agg logical_and logical_or max median min mode
    percentile_cont percentile_disc quantile quantile_cont quantile_disc skewness stddev stddev_pop stddev_samp
    string_agg group_concat sum var_pop var_samp variance variance_pop
""")
WINDOWS: Final = _words("""
    cume_dist dense_rank first_value lag last_value lead nth_value ntile percent_rank rank row_number
""")
TEXTS: Final = _words("""
    ascii char_length chr concat concat_ws contains ends_with endswith instr left length len lower ltrim position
    regexp_extract regexp_full_match regexp_like regexp_matches regexp_replace replace reverse right rtrim split_part
    starts_with startswith str_position strlen strpos substr substring trim upper
""")
NUMBERS: Final = _words("""
    abs acos asin atan atan2 cbrt ceil ceiling cos cot degrees exp floor isfinite isinf isnan is_nan is_inf ln log log10
    log2 mod pi pow power radians round sign sin sqrt tan trunc
""")
CHOICES: Final = _words("coalesce greatest if ifnull iff least nullif nvl")
INSTANTS: Final = _words("""
    current_date current_timestamp date date_add date_bin date_diff datediff date_from_parts date_part date_sub
    date_trunc timestamp_trunc day dayname dayofmonth dayofweek day_of_month day_of_week day_of_year dayofyear epoch
    epoch_ms epoch_us hour last_day localtimestamp make_date make_timestamp minute month monthname now quarter second
    strftime strptime str_to_time time_bucket time_to_str time_to_unix timestamp_from_parts today to_days unix_to_time
    week week_of_year weekofyear year
""")
LISTS: Final = _words("array_contains array_length array_size list_contains")
FUNCTIONS: Final = AGGREGATES | WINDOWS | TEXTS | NUMBERS | CHOICES | INSTANTS | LISTS

_MARKS: Final = {TokenType.PLACEHOLDER: "", TokenType.QDCOLON: "::"}
"""Tokens with a parameter → what follows it: sqlglot reads `?::DATE` as an operator of another dialect."""
_ESCAPES: Final = {"d": "DATE", "t": "TIME", "ts": "TIMESTAMP"}
# Words that may precede a parenthesis without being a call.
_NO_CALLS: Final = _words("""
    all and any as between by case cast char decimal distinct else end escape except exists extract filter from group
    having ilike in interval is join like limit not offset on or over select then time timestamp try_cast using
    varchar when where with within order set exclude union intersect over by values qualify partition rows range
    preceding following
""")


def tokens(sql: str) -> list[Token]:
    """The tokens of a statement; raises `SqlglotError` if it has invalid ones."""
    return _DIALECT.tokenize(sql)


def parse(sql: str) -> Query:
    """Parses a statement to a tree with allowed nodes only, its parameters numbered from 1.

    Raises:
        InvalidArgument: The statement is too large, malformed, not one query, or has a part that is not allowed.
    """
    if len(sql) > MAX_BYTES or len(sql.encode("utf-8", "replace")) > MAX_BYTES:
        raise refusal(f"the statement is longer than {MAX_BYTES} bytes")
    try:
        statement = _statement(sql, tokens(sql))
        _check(statement)
        return statement
    except SqlglotError as error:
        raise refusal(_mistake(error)) from None
    except RecursionError:
        raise refusal("the statement is nested too deep") from None


def write(statement: exp.Expression) -> str:
    """Generates the SQL of a statement for DuckDB.

    Raises:
        InvalidArgument: The SQL calls a function that is not allowed, or its calls are nested too deep.
    """
    try:
        _check_size(statement)
        sql = statement.sql(dialect=DIALECT, comments=False, copy=False)
        tokens = _DIALECT.tokenize(sql)
    except RecursionError:
        raise refusal("the statement is nested too deep") from None
    named = Counter(alias.name.lower() for alias in statement.find_all(exp.TableAlias) if alias.args.get("columns"))
    for token, following in itertools.pairwise(tokens):
        called = following.token_type is TokenType.L_PAREN and token.text.isidentifier()
        name = token.text.lower()
        if called and token.token_type is not TokenType.STRING and name not in FUNCTIONS | _NO_CALLS:
            named[name] -= 1  # `t(x, y)` is an alias with column names, as often as in the tree
            if named[name] < 0:
                raise refusal(f'the function "{name[:100]}" is not allowed')
    return sql


def with_literals(sql: str, texts: Sequence[str]) -> str:
    """The SQL of `write` with literals in place of the first of its parameters, the others numbered from 1."""
    changes: list[_Change] = []
    for mark, number in itertools.pairwise(tokens(sql)):
        if mark.token_type is TokenType.PARAMETER:
            place = int(number.text) - 1
            text = texts[place] if place < len(texts) else f"${place + 1 - len(texts)}"
            changes.append((mark.start, number.end, text))
    return _replaced(sql, changes)


def _replaced(sql: str, changes: Sequence[_Change]) -> str:
    """The text with all changes, which are in its order, made."""
    written, at = [], 0
    for start, end, text in changes:
        written += [sql[at:start], text]
        at = end + 1
    return "".join([*written, sql[at:]])


def _check_size(statement: exp.Expression) -> None:
    """Refuses nested calls whose SQL would be huge: some arguments are repeated, up to five times per level.

    Every second level is generated by itself and then replaced by a name of the same length.
    """
    if max((level for _, level in _calls(statement)), default=0) <= _BOUNDED_CALLS:
        return
    written = 0
    for call, level in list(_calls(statement.copy()))[::-1]:
        if level % 2:
            continue
        size = len(call.sql(dialect=DIALECT, comments=False))
        written += size
        if written > _MAX_WRITTEN:
            raise refusal("the statement has calls that are nested too deep")
        call.replace(exp.column("x" * size))


def _calls(root: exp.Expression) -> Iterator[tuple[exp.Expression, int]]:
    """Yields the calls of a tree, outer ones first, each with its nesting level from 1.

    A call and its OVER, FILTER or WITHIN GROUP count as one.
    """
    open_: list[tuple[exp.Expression, int]] = [(root, 0)]
    while open_:
        node, level = open_.pop()
        within = isinstance(node.parent, _AROUND_CALLS) and node.arg_key == "this"
        if not within and isinstance(node, (exp.Func, *_AROUND_CALLS)) and not isinstance(node, exp.Connector):
            level += 1
            yield node, level
        open_ += [(child, level) for child in node.iter_expressions()]


def refusal(message: str, hint: str = "") -> InvalidArgument:
    """The error for a refused statement, with code BAD_SQL."""
    return InvalidArgument(message, code="BAD_SQL", hint=hint)


def _statement(sql: str, tokens: list[Token]) -> Query:
    """Parses a statement to a query, its parameters numbered from 1, whose nodes are not checked yet."""
    _check_tokens(tokens)
    if changes := _changes(tokens):
        sql = _replaced(sql, changes)
        tokens = _DIALECT.tokenize(sql)
    query = _only_query(sql, tokens)
    if any(token.token_type is TokenType.FETCH for token in tokens):
        _replace_fetches(query)
    return query


def _check_tokens(tokens: Sequence[Token]) -> None:
    """Refuses a statement that is empty, too long, or has too many parameters or ones of an unknown form."""
    if not tokens:
        raise refusal("the statement is empty", hint=_KIND)
    if len(tokens) > MAX_TOKENS:
        raise refusal(f"the statement has more than {MAX_TOKENS} words")
    if any(token.token_type is TokenType.PARAMETER for token in tokens):
        raise refusal('parameters must be written as "?"')
    if sum(token.token_type in _MARKS for token in tokens) > MAX_PARAMETERS:
        raise refusal(f"the statement has more than {MAX_PARAMETERS} parameters")


def _changes(tokens: list[Token]) -> list[_Change]:
    """Finds what the parser reads in another form, in the order of the text: parameters, binary literals, escapes."""
    marks = [token for token in tokens if token.token_type in _MARKS]
    # with a blank, since `$1,$` would begin a text quoted by dollars
    changes = [(mark.start, mark.end, f"${number} {_MARKS[mark.token_type]}") for number, mark in enumerate(marks, 1)]
    changes += _blobs(tokens)
    if any(token.token_type is TokenType.L_BRACE for token in tokens):
        changes += _escapes(tokens)
    return sorted(changes)


def _only_query(sql: str, tokens: list[Token]) -> Query:
    """Parses a text that must be one query."""
    # the parser tries some words in two ways, so that the time doubles with each level of nesting
    parser = _DIALECT.parser(max_nodes=_NODES_PER_TOKEN * (len(tokens) + 64))
    parsed = [each for each in parser.parse(tokens, sql) if each is not None]
    if len(parsed) != 1:
        raise refusal(f"{len(parsed)} statements were sent" if parsed else "the statement is empty", hint=_KIND)
    if not isinstance(parsed[0], exp.Select | exp.SetOperation | exp.Subquery):
        raise refusal(f"{tokens[0].text.upper()[:50]} is not allowed", hint=_KIND)
    return parsed[0]


def _replace_fetches(query: Query) -> None:
    """Replaces `FETCH FIRST 5 ROWS ONLY` by LIMIT, whose form in the standard it is."""
    for fetch in list(query.find_all(exp.Fetch)):
        options = fetch.args.get("limit_options")
        if options is None or not (options.args.get("percent") or options.args.get("with_ties")):
            fetch.replace(exp.Limit(expression=fetch.args.get("count") or exp.Literal.number(1)))


def _escapes(tokens: list[Token]) -> Iterator[_Change]:
    """Finds JDBC escapes of dates and times, `{ts '…'}`."""
    for brace, name, text, end in zip(tokens, tokens[1:], tokens[2:], tokens[3:], strict=False):
        word = _ESCAPES.get(name.text.lower()) if brace.token_type is TokenType.L_BRACE else None
        if word and text.token_type is TokenType.STRING and end.token_type is TokenType.R_BRACE:
            yield brace.start, name.end, f" {word}"
            yield end.start, end.end, ""


def _blobs(tokens: list[Token]) -> Iterator[_Change]:
    """Finds binary literals, `x'00ff'`."""
    for mark, text in itertools.pairwise(tokens):
        is_literal = mark.text in ("x", "X") and text.token_type is TokenType.STRING and text.start == mark.end + 1
        if not is_literal or mark.token_type is not TokenType.VAR:
            continue
        try:
            value = binascii.unhexlify(text.text)
        except ValueError:
            raise refusal(f"x'{text.text[:50]}' must have an even number of hexadecimal digits") from None
        escaped = "".join(f"\\x{byte:02X}" for byte in value)
        yield mark.start, text.end, f"CAST('{escaped}' AS BLOB)"


def _check(statement: Query) -> None:
    """Refuses a statement that is nested too deep, or has a node that is not allowed."""
    for node, depth in nodes(statement):
        if depth > MAX_DEPTH:
            raise refusal(f"the statement is nested deeper than {MAX_DEPTH} levels")
        if type(node) not in _NODES and not _is_allowed_function(node):
            raise refusal(f"{_named(node)} is not allowed", hint=_like(node) if isinstance(node, exp.Func) else _KIND)
        _check_parts(node)
        _check_content(node)


def _check_parts(node: exp.Expression) -> None:
    """Refuses clauses and options of a node that are not allowed in it."""
    known = _PARTS.get(type(node))
    if known is None:
        return
    for name, value in node.args.items():
        if value and name not in known:
            raise refusal(f"{name.strip('_').upper()} is not allowed in {_named(node)}", hint=_KIND)


def _check_content(node: exp.Expression) -> None:
    """Refuses an allowed node for what it contains, or for where it is."""
    if isinstance(node, exp.Select) and not node.expressions:
        raise refusal("a SELECT without columns is not allowed")
    if isinstance(node, exp.Table) and not isinstance(node.this, exp.Identifier):
        raise refusal(f"{_named(node.this)} is not allowed as a table", hint=_KIND)
    if isinstance(node, exp.WithinGroup) and node.find_ancestor(exp.WithinGroup):
        raise refusal("WITHIN GROUP is not allowed in WITHIN GROUP")
    if isinstance(node, exp.DataType) and node.this not in _TYPES:
        raise refusal(f"the type {str(node.sql(dialect=DIALECT))[:50]} is not allowed")


def nodes(root: exp.Expression) -> Iterator[tuple[exp.Expression, int]]:
    """Yields the nodes of a tree in the order of its text, each with its depth; a chain of one connector (AND, OR) is
    one level deep. Does not recurse."""
    open_: list[tuple[exp.Expression, int]] = [(root, 0)]
    while open_:
        node, depth = open_.pop()
        yield node, depth
        kind = type(node) if isinstance(node, exp.Connector) else None
        children = [(child, depth if type(child) is kind else depth + 1) for child in node.iter_expressions()]
        open_ += children[::-1]


def _is_allowed_function(node: exp.Expression) -> bool:
    if isinstance(node, exp.Anonymous):
        return isinstance(node.this, str) and node.this.lower() in FUNCTIONS
    return isinstance(node, exp.Func) and any(name.lower() in FUNCTIONS for name in type(node).sql_names())


def _like(node: exp.Func) -> str:
    """A hint with the allowed function whose name is closest; empty if none is close."""
    name = node.this if isinstance(node, exp.Anonymous) else type(node).sql_names()[0]
    return nearest(str(name).lower(), sorted(FUNCTIONS))


def _named(node: Any) -> str:
    if isinstance(node, exp.Anonymous):
        return f'the function "{str(node.this).lower()[:100]}"'
    if isinstance(node, exp.Func):
        return f'the function "{type(node).sql_names()[0].lower()}"'
    return type(node).__name__.upper()


def _mistake(error: SqlglotError) -> str:
    place = place_of(error)
    if place is None:
        return "the statement cannot be read: a quote or parenthesis may be open"
    return f"the statement cannot be read at {place[1]}"
