"""Judges what the parser and the analyzer of a Spark session make of an expression: a function of one row, or refused.

Expressions come from callers that may see one table only, and the session reads whatever it can reach. So each node
that the parser makes must be on a list, each function too (`language.py`), and nothing that the analyzer puts in place
of them may reach beyond the row: no relation, subquery, variable, function of a user, or call of Java.

A session of Spark Connect does not show what its parser made of a text. There the words of the text are judged
(`language.checked`), and the plan by the number of its operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from capture.spark import language
from capture.spark.language import NotDeterministic, refusal
from store.model.errors import first_line

MAX_NODES: Final = 5000

_ROOT: Final = "org.apache.spark.sql.catalyst."
# Nodes that Spark's parser makes of columns, literals and operators. Functions are `UnresolvedFunction`, except for
# those with a syntax of their own.
_PARSED: Final = language.words("""
    Add Alias And BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CaseWhen Cast Collate Concat CreateNamedStruct
    Divide EqualNullSafe EqualTo GreaterThan GreaterThanOrEqual ILike In IntegralDivide IsNotNull IsNotUnknown
    IsNull IsUnknown LambdaFunction LessThan LessThanOrEqual Like LikeAll LikeAny Literal Lower Multiply
    NamedArgumentExpression Not NotLikeAll NotLikeAny Or Overlay RLike Remainder ShiftLeft ShiftRight
    ShiftRightUnsigned StringLocate StringTrim StringTrimBoth StringTrimLeft StringTrimRight Substring Subtract
    TimestampAdd TimestampDiff UnaryMinus UnaryPositive UnresolvedAttribute UnresolvedCollation
    UnresolvedExtractValue UnresolvedFunction UnresolvedNamedLambdaVariable
""")
_SAID: Final = {
    "UnresolvedStar": "* is not allowed: name the columns",
    "ExpressionWithUnresolvedIdentifier": "IDENTIFIER is not allowed: write the name",
    "WindowExpression": "a window is not allowed",
    "AggregateExpression": "an aggregate is not allowed",
    "NamedParameter": "a parameter is not allowed",
    "PosParameter": "a parameter is not allowed",
} | dict.fromkeys(("ScalarSubquery", "Exists", "InSubquery", "ListQuery"), "a subquery is not allowed")
# Packages of the expressions that Spark itself has; those of others, such as Hive's functions, are elsewhere.
_ANALYZED: Final = f"{_ROOT}expressions"
_FOREIGN: Final = language.words("""
    ApplyFunctionExpression CallMethodViaReflection OuterReference PythonUDAF PythonUDF PythonUDTF
    ScalaAggregator ScalaUDAF ScalaUDF TryReflect UserDefinedExpression V2Aggregator VariableReference
""")
_FROM_ROW: Final = frozenset({"AttributeReference", "NamedLambdaVariable"})
_TEXTS: Final = ("string", "varchar", "char")
_INSTANTS: Final = ("date", "time")  # and their kinds, such as timestamp_ntz


class _Node(NamedTuple):
    """An expression in a tree: the place of the node above it (0 for the root too), its class, and the JVM object."""

    above: int
    kind: str
    package: str
    jvm: Any


def check_parsed(session: Any, text: str) -> None:
    """Judges the tree that the session's own parser makes of an expression, before it is analyzed.

    Raises:
        InvalidArgument: The text cannot be parsed, or a node or function of it is not allowed.
        NotDeterministic: It calls a function whose value is not a function of the row.
    """
    from pyspark.errors import ParseException

    if not hasattr(session, "_jvm"):
        return
    try:
        parsed = session._jsparkSession.sessionState().sqlParser().parseExpression(text)
    except ParseException as error:
        raise refusal(f"Spark says {first_line(error)}") from None
    varies = False
    for node in _nodes(parsed):
        if node.kind not in _PARSED or not node.package.startswith(_ROOT):
            raise refusal(_SAID.get(node.kind, f"{node.kind} is not allowed"))
        if node.kind == "UnresolvedFunction":
            varies |= _function_varies(node.jvm.nameParts())
    if varies:
        raise NotDeterministic(text)


def check_analyzed(session: Any, empty: Any, text: str) -> None:
    """Judges the analyzed plan of a projection of one expression.

    Args:
        empty: A DataFrame with the columns of the expression, one relation.

    Raises:
        InvalidArgument: The plan has another relation, a subquery, or a function that is not Spark's own.
        NotDeterministic: The value depends on more than the row: on chance, the current time, the user or the session.
    """
    from pyspark.sql import functions

    values = empty.select(functions.expr(text).alias("value"))
    if not hasattr(session, "_jvm"):
        _check_explained(empty, values, text)
        return
    plan = values._jdf.queryExecution().analyzed()
    patterns = session._jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    if plan.containsPattern(patterns.PLAN_EXPRESSION()) or plan.collectLeaves().size() != 1:
        raise refusal("a subquery is not allowed")
    value = plan.expressions().head()
    if not value.deterministic() or plan.containsPattern(patterns.CURRENT_LIKE()):
        raise NotDeterministic(text)
    nodes = _nodes(value)
    for node in nodes:
        if node.kind in _FOREIGN or not node.package.startswith(_ANALYZED):
            raise refusal(f"{node.kind} is not allowed")
    if _reads_clock(nodes):
        raise NotDeterministic(text)


def check_collation(type: Any) -> None:
    """Refuses a type whose texts compare otherwise than by their bytes, as bounds and distinct counts do.

    Raises:
        InvalidArgument: The texts have a collation.
    """
    collation = getattr(type, "collation", "UTF8_BINARY")
    if collation != "UTF8_BINARY":
        raise refusal(f"its texts have the collation {collation}", hint="add COLLATE UTF8_BINARY")


def _check_explained(empty: Any, values: Any, text: str) -> None:
    """As `check_analyzed`, by the plan that Spark prints: a line for each operator, those of subqueries included."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions

    explained = str(values._explain_string(extended=True))
    analyzed = explained.partition("== Analyzed Logical Plan ==\n")[2].partition("\n== Optimized Logical Plan ==")[0]
    operators = analyzed.splitlines()[1:]  # after the schema
    if len(operators) != 2 or not operators[0].startswith("Project [") or not operators[1].startswith("+- "):
        raise refusal("a subquery is not allowed: its plan has more than one relation")
    try:  # an aggregate function rejects arguments that are not deterministic
        _ = empty.select(functions.count(functions.expr(text))).schema
    except AnalysisException:
        raise NotDeterministic(text) from None
    if language.may_vary(text):
        raise NotDeterministic(text)


def _function_varies(parts: Any) -> bool:
    """Judges the name of a function, given its parts; true if its value is not a function of its arguments."""
    name = str(parts.last())
    if parts.size() != 1:
        raise refusal(f'the function "{name[:100]}" is not allowed with a qualifier')
    return language.check_function(name.lower())


def _nodes(root: Any) -> list[_Node]:
    """The expressions of a tree, each before those below it.

    Raises:
        InvalidArgument: There are too many.
    """
    found: list[_Node] = []
    open_ = [(0, root)]
    while open_:
        above, jvm = open_.pop()
        package, _, name = str(jvm.getClass().getName()).rpartition(".")
        # Scala adds `$` to the names of objects and of classes without one.
        found.append(_Node(above, name.partition("$")[0], package, jvm))
        if len(found) > MAX_NODES:
            raise refusal(f"has more than {MAX_NODES} parts")
        children = jvm.children()
        open_ += [(len(found) - 1, children.apply(at)) for at in range(children.size())]
    return found


def _reads_clock(nodes: Sequence[_Node]) -> bool:
    """True if a constant text may become an instant by the time of the query, as `cast('today' AS date)` does.

    Args:
        nodes: An analyzed tree, each node before those below it.
    """
    constant, now = [True] * len(nodes), [False] * len(nodes)
    for at in reversed(range(len(nodes))):
        above, kind, _, jvm = nodes[at]
        type = str(jvm.dataType().typeName())
        if kind in _FROM_ROW:
            constant[at] = False
        elif type.startswith(_TEXTS):
            # A text that is made of others may be any.
            now[at] = constant[at] and (kind != "Literal" or _is_special(jvm.value()))
        elif type.startswith(_INSTANTS) and constant[at] and now[at]:
            return True
        constant[above] &= constant[at]
        now[above] |= now[at]
    return False


def _is_special(value: Any) -> bool:
    return value is not None and language.SPECIAL_INSTANT.match(str(value.toString())) is not None
