"""The language of expressions: what a Spark SQL expression of a caller may consist of, judged without a JVM.

An expression is a function of one row: columns, literals, operators and the functions in `FUNCTIONS`. `read_words`
reads its text by the lexical rules of Spark and refuses everything else at once, before a job is queued. The parser of
the session has the last word: `judge.py` walks what it made of the text by the same lists.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from capture.cluster import Uncapturable
from store.model.errors import InvalidArgument, nearest

MAX_BYTES: Final = 16 * 1024
MAX_TOKENS: Final = 1000
MAX_DEPTH: Final = 32  # open parentheses and brackets


def words(text: str) -> frozenset[str]:
    """The words of a text, as a set."""
    return frozenset(text.split())


TEXTS: Final = words("""
    ascii base64 bit_length btrim char char_length character_length chr collate collation concat concat_ws contains
    decode elt encode endswith find_in_set format_number format_string initcap instr is_valid_utf8
    jaro_winkler_similarity lcase left len length levenshtein like locate lower lpad ltrim luhn_check make_valid_utf8
    mask octet_length overlay parse_url position printf quote regexp regexp_count regexp_extract regexp_extract_all
    regexp_instr regexp_like regexp_replace regexp_substr repeat replace reverse right rlike rpad rtrim sentences
    soundex space split split_part startswith str_to_map string substr substring substring_index to_char to_number
    to_varchar translate trim try_parse_url try_to_number try_url_decode try_validate_utf8 ucase unbase64 upper
    url_decode url_encode validate_utf8
""")
BYTES: Final = words("""
    aes_decrypt binary crc32 from_base32 hash hex hmac md5 sha sha1 sha2 to_base32 to_binary try_aes_decrypt
    try_to_binary unhex xxhash64
""")
NUMBERS: Final = words("""
    abs acos acosh asin asinh atan atan2 atanh bigint bin bit_count bit_get boolean bround cbrt ceil ceiling conv cos
    cosh cot csc decimal degrees div double e exp expm1 factorial float floor getbit greatest hypot int isnan least ln
    log log10 log1p log2 mod nanvl negative pi pmod positive pow power radians rint round sec shiftleft shiftright
    shiftrightunsigned sign signum sin sinh smallint sqrt tan tanh tinyint trunc try_add try_divide try_mod
    try_multiply try_subtract width_bucket
""")
CHOICES: Final = words("""
    between coalesce equal_null if ifnull ilike isnotnull isnull nullif nullifzero nvl nvl2 typeof zeroifnull
""")
INSTANTS: Final = words("""
    add_months convert_timezone date date_add date_diff date_format date_from_unix_date date_part date_sub date_trunc
    dateadd datediff datepart day dayname dayofmonth dayofweek dayofyear extract from_unixtime from_utc_timestamp hour
    last_day make_date make_dt_interval make_interval make_time make_timestamp make_timestamp_ltz make_timestamp_ntz
    make_ym_interval minute month monthname months_between next_day quarter second time time_bucket time_diff
    time_from_micros time_from_millis time_from_seconds time_to_micros time_to_millis time_to_seconds time_trunc
    timestamp timestamp_micros timestamp_millis timestamp_nanos timestamp_seconds timestampadd timestampdiff to_date
    to_time to_timestamp to_timestamp_ltz to_timestamp_ntz to_unix_timestamp to_utc_timestamp try_make_interval
    try_make_timestamp try_make_timestamp_ltz try_make_timestamp_ntz try_to_date try_to_time try_to_timestamp unix_date
    unix_micros unix_millis unix_nanos unix_seconds unix_timestamp weekday weekofyear year
""")
NESTED: Final = words("""
    aggregate array array_append array_compact array_contains array_distinct array_except array_insert array_intersect
    array_join array_max array_min array_position array_prepend array_remove array_repeat array_size array_sort
    array_union arrays_overlap arrays_zip cardinality element_at exists filter flatten forall get map map_concat
    map_contains_key map_entries map_filter map_from_arrays map_from_entries map_keys map_values map_zip_with
    named_struct reduce sequence size slice sort_array struct transform transform_keys transform_values try_element_at
    vector_avg vector_cosine_similarity vector_inner_product vector_l2_distance vector_norm vector_normalize vector_sum
    zip_with
""")
DOCUMENTS: Final = words("""
    from_csv from_json get_json_object is_valid_variant is_variant_null json_array_length json_object_keys parse_json
    schema_of_csv schema_of_json schema_of_variant to_csv to_json to_variant_object try_parse_json try_variant_get
    variant_get
""")
SKETCHES: Final = words("""
    bitmap_bit_position bitmap_bucket_number bitmap_count hll_sketch_estimate hll_union theta_difference
    theta_intersection theta_sketch_estimate theta_union
""")
# Functions of the values of one row: none reads files, settings, the catalog, the clock or other rows, none calls Java.
FUNCTIONS: Final = TEXTS | BYTES | NUMBERS | CHOICES | INSTANTS | NESTED | DOCUMENTS | SKETCHES

# Harmless functions whose values are no functions of the row; `aes_encrypt` draws an initialization vector.
VARYING: Final = words("""
    aes_encrypt curdate current_catalog current_database current_date current_path current_schema current_time
    current_timestamp current_timezone current_user input_file_block_length input_file_block_start input_file_name
    localtime localtimestamp monotonically_increasing_id now rand randn random randstr session_user shuffle
    spark_partition_id uniform user uuid
""")
# Of these, the words that mean the same without parentheses, unless the table has a column of the name.
CURRENT: Final = words("""
    curdate current_catalog current_database current_date current_path current_schema current_time current_timestamp
    current_timezone current_user localtime localtimestamp session_user user
""")
SPECIAL_INSTANT: Final = re.compile(r"\s*(now|today|tomorrow|yesterday)\b", re.I)
"""Texts that Spark reads as an instant that depends on the time of the query."""

# Words that may precede a parenthesis without being a call.
_NO_CALLS: Final = words("""
    all and any as between case char character cast dec decimal distinct else end escape for from ilike in is like
    not numeric on or regexp rlike some then time timestamp timestamp_ltz timestamp_ntz try_cast varchar when
""")
_INSTANTS: Final = words("date time timestamp timestamp_ltz timestamp_ntz")
_QUERIES: Final = words("describe desc from map reduce select table values with")
_TOKEN: Final = re.compile(
    r"""
    (?P<space>[ \t\r\n\f\v]+)
  | (?P<comment>--|/\*|\*/|;)
  | (?P<text>[rR]'[^']*'|[rR]"[^"]*"|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
  | (?P<name>`(?:[^`]|``)+`)
  | (?P<word>\w+)
  | (?P<mark>::|->|=>|[-+*/%&|^~<>=!.,()\[\]])
    """,
    re.X | re.S,
)


class NotDeterministic(Uncapturable):
    """An expression whose value is not a function of its row."""

    code = "NOT_DETERMINISTIC"

    def __init__(self, text: str):
        super().__init__(f'the value of "{text}" is not a function of its row: each capture would differ')


class Token(NamedTuple):
    """A token: its kind (text, name, word, mark), and what it says, quotes of names taken off."""

    kind: str
    text: str


def checked(key: bytes) -> str:
    """Decodes a client's expression, and rejects one that reads more than its row.

    Raises:
        InvalidArgument: The text is not valid UTF-8, too large, or contains something that is not allowed.
        NotDeterministic: The value of the expression is not a function of its row.
    """
    try:
        text = key.decode()
    except UnicodeDecodeError:
        raise refusal("is not the UTF-8 text of a Spark SQL expression") from None
    if len(key) > MAX_BYTES:
        raise refusal(f"is longer than {MAX_BYTES} bytes")
    tokens = read_words(text)
    _check_nesting(tokens)
    _check_parts(text, tokens)
    return text


def refusal(reason: str, hint: str = "") -> InvalidArgument:
    """The error for a refused expression."""
    return InvalidArgument(f"engine_expression_key: {reason}", hint=hint)


def read_words(text: str) -> list[Token]:
    """The tokens of an expression by Spark's lexical rules.

    Raises:
        InvalidArgument: It has comments, more than one statement, open quotes, or marks that are not of expressions.
    """
    tokens, at = [], 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            what = "an open quote" if text[at] in "'\"`" else f"{text[at]!r}"
            raise refusal(f"{what} is not allowed (character {at + 1})")
        at, kind = found.end(), str(found.lastgroup)
        if kind == "comment":
            raise refusal("comments and semicolons are not allowed outside of quotes")
        if kind != "space":
            said = found[0][1:-1].replace("``", "`") if kind == "name" else found[0]
            tokens.append(Token(kind, said))
    return tokens


def _check_nesting(tokens: Sequence[Token]) -> None:
    if len(tokens) > MAX_TOKENS:
        raise refusal(f"has more than {MAX_TOKENS} words")
    depth = 0
    for token in tokens:
        if token.kind == "mark":
            depth += (token.text in "([") - (token.text in ")]")
        if depth > MAX_DEPTH:
            raise refusal(f"is nested deeper than {MAX_DEPTH} levels")


def _check_parts(text: str, tokens: Sequence[Token]) -> None:
    """Refuses stars, queries and functions that are not allowed."""
    nothing = Token("mark", "")
    padded = [nothing, *tokens, nothing]
    varies = False
    for before, token, after in zip(padded, padded[1:], padded[2:], strict=False):
        if token == ("mark", "*") and before.kind == "mark" and before.text in ("", "(", ",", "."):
            raise refusal("* is not allowed: name the columns")
        if token.kind == "mark":
            continue
        varies |= _names_clock(before, token)
        if _begins_query(before, token, after):
            raise refusal("a subquery is not allowed", hint="a column of this name is written in backticks")
        if after == ("mark", "("):
            varies |= _check_call(before, token)
    if varies:
        raise NotDeterministic(text)


def _begins_query(before: Token, token: Token, after: Token) -> bool:
    if token.kind != "word" or token.text.lower() not in _QUERIES or before != ("mark", "("):
        return False
    is_call = token.text.lower() in FUNCTIONS and after == ("mark", "(")
    return not is_call and after not in (("mark", ")"), ("mark", ","))


def _names_clock(before: Token, token: Token) -> bool:
    """True if `date'today'` or the like; the text may say so by escapes."""
    if token.kind != "text" or before.kind != "word" or before.text.lower() not in _INSTANTS:
        return False
    return _says_now(token) or "\\" in token.text


def _check_call(before: Token, token: Token) -> bool:
    """Checks what precedes a parenthesis; true if it is a function whose value varies."""
    name = token.text.lower()
    if token.kind == "text" and token.text[0] == '"':  # an identifier, by a setting of Spark
        name = token.text[1:-1].lower()
    elif token.kind == "text":
        return False
    if name == "identifier":
        raise refusal("IDENTIFIER is not allowed: write the name")
    if before == ("mark", ".") or (token.kind == "word" and name in _NO_CALLS):
        if before == ("mark", "."):
            raise refusal(f'the function "{name[:100]}" is not allowed with a qualifier')
        return False
    return check_function(name)


def check_function(name: str) -> bool:
    """Checks the name of a function, in lower case.

    Returns:
        True if its value is not a function of its arguments.

    Raises:
        InvalidArgument: The function is not allowed.
    """
    if name in VARYING:
        return True
    if name not in FUNCTIONS or not name.isascii():
        hint = nearest(name, sorted(FUNCTIONS)) or "Spark's functions of the values of one row are"
        raise refusal(f'the function "{name[:100]}" is not allowed', hint=hint)
    return False


def may_vary(text: str) -> bool:
    """True if the words of an expression may mean the current time or session; surely false otherwise.

    For sessions that do not show what their parser made of a text.
    """
    tokens = read_words(text)
    named = {token.text.lower() for token in tokens if token.kind != "text"}
    return bool(named & CURRENT) or any(_says_now(token) for token in tokens) or _without_arguments(tokens)


def _says_now(token: Token) -> bool:
    return token.kind == "text" and SPECIAL_INSTANT.match(token.text.lstrip("rR")[1:]) is not None


def _without_arguments(tokens: Sequence[Token]) -> bool:
    """True if a function is called that means the current time where it has no arguments."""
    texts = [token.text.lower() for token in tokens]
    calls = zip(texts, texts[1:], texts[2:], strict=False)
    return any(call in (("unix_timestamp", "(", ")"), ("to_unix_timestamp", "(", ")")) for call in calls)
