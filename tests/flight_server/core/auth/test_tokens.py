"""Authentication: token files, table visibility, signed tokens."""

import base64
import hashlib
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from flight_server.core.auth import oidc as signed_tokens
from flight_server.core.auth.principal import ALL_SCOPES, ANONYMOUS, Principal
from flight_server.core.auth.tokens import Authenticator, load_tokens
from store.model.errors import InvalidArgument, Unauthenticated
from tests.http_receiver import receiving


def sha(token):
    return hashlib.sha256(token.encode()).hexdigest()


def write_token_file(path, text):
    path = path / "tokens.toml"
    path.write_text(text)
    return path


GOOD = f"""
[[token]]
name = "reader"
sha256 = "{sha("r")}"
scopes = ["stats.read"]
tables = ["lake.sales.*"]

[[token]]
name = "admin"
sha256 = "{sha("a").upper()}"
scopes = ["stats.read", "stats.write", "capture.run", "admin"]
"""


def test_token_maps_to_its_principal(tmp_path):
    authenticator = load_tokens(write_token_file(tmp_path, GOOD))
    reader = authenticator.authenticate("r")
    assert (reader.name, reader.may("stats.read"), reader.may("stats.write")) == ("reader", True, False)
    assert reader.sees("lake", "sales", "orders") and not reader.sees("lake", "hr", "salaries")
    admin = authenticator.authenticate("Bearer a")
    assert admin.scopes == ALL_SCOPES and admin.sees_all
    for wrong in (None, "", "  ", "Bearer ", "R", "sesame", "a b", "sesame.a.b", "\ud800", "x" * 100_000, sha("r")):
        with pytest.raises(Unauthenticated) as raised:
            authenticator.authenticate(wrong)
        assert "sesame" not in str(raised.value)
    assert "sesame" not in repr(authenticator) and sha("r") not in repr(authenticator)


def test_basic_auth_password_is_the_token(tmp_path):
    authenticator = load_tokens(write_token_file(tmp_path, GOOD))
    for user in ("", "anybody", "ü"):
        credentials = base64.b64encode(f"{user}:r".encode()).decode()
        for header in (
            f"Basic {credentials}",
            f"basic {credentials.rstrip('=')}",
        ):  # Go's driver leaves the padding out
            assert authenticator.authenticate(header).name == "reader"
    for wrong in (
        "Basic",
        "Basic !",
        "Basic " + base64.b64encode(b"r").decode(),
        "Basic " + base64.b64encode(b"\xff").decode(),
    ):
        with pytest.raises(Unauthenticated):
            authenticator.authenticate(wrong)


def test_open_server_authenticates_every_caller_as_anonymous():
    authenticator = Authenticator(is_open=True)
    assert authenticator.authenticate(None) is authenticator.authenticate("anything") is ANONYMOUS
    assert all(ANONYMOUS.may(scope) for scope in ALL_SCOPES) and ANONYMOUS.sees("a", "b", "c")
    assert authenticator.with_internal("w").authenticate("w").name == "internal"


def test_internal_token_is_added_to_those_of_the_file(tmp_path):
    authenticator = load_tokens(write_token_file(tmp_path, GOOD))
    more = authenticator.with_internal("secret")
    assert more.authenticate("secret").scopes == ALL_SCOPES
    assert more.authenticate("r").name == "reader"
    with pytest.raises(Unauthenticated):
        authenticator.authenticate("secret")


SEES = [
    ("*", ("a", "b", "c"), True),
    ("**", ("a", "b", "c"), True),
    ("lake.sales.*", ("lake", "sales", "t"), True),
    ("lake.sales.*", ("lake", "salesx", "t"), False),
    ("lake.sales.*", ("lake", "sales.eu", "t"), True),
    ("lake.sales.*", ("lake.sales", "x", "t"), False),
    ("lake.sales.*", ("Lake", "sales", "t"), False),
    ("lake.sales.*", ("lake", "sales", "two\nlines"), True),
    ("lake.ops.log", ("lake", "ops", "log"), True),
    ("lake.ops.log", ("lake", "ops", "logs"), False),
    ("lake.ops.log", ("lakexops", "log", "log"), False),
    ("*.public.*", ("any", "public", "t"), True),
    ("lake.*.log", ("lake", "a.b", "log"), True),
    ('lake.s."a.b"', ("lake", "s", "a.b"), True),
    ("*a*b*ab", ("a", "b", "ab"), True),
    ("*a*b*ab", ("a", "x", "ab"), False),
    ("lake*lake.s.t", ("lake", "s", "t"), False),
    ("lake.[s].t?", ("lake", "s", "tx"), False),
]


@pytest.mark.parametrize(("pattern", "table", "visible"), SEES)
def test_pattern_matches_full_table_names(pattern, table, visible):
    assert Principal("p", frozenset(), (pattern,)).sees(*table) == visible
    assert Principal("p", frozenset(), ("no.such.table", pattern)).sees(*table) == visible


@pytest.mark.parametrize(
    ("pattern", "every", "of_lake"),
    [
        ("*", True, True),
        ("**", True, True),
        ("*.*", True, True),
        ("*.*.*", True, True),
        ("*.*.*.*", False, False),
        ("lake.*", False, True),
        ("lake.*.*", False, True),
        ("l*.*", False, True),
        ("lake.*.*.*", False, False),
        ("lake.sales.*", False, False),
        ("*.sales.*", False, False),
        ("*s", False, False),
        ("lake", False, False),
    ],
)
def test_pattern_matches_every_possible_table(pattern, every, of_lake):
    principal = Principal("p", frozenset(), (pattern, "no.such.table"))
    assert (principal.sees_all, principal.sees_catalog("lake")) == (every, of_lake)
    assert principal.sees_catalog("other") == every


def test_principal_without_patterns_sees_no_table():
    principal = Principal("p", ALL_SCOPES, ())
    assert not principal.sees("a", "b", "c") and not principal.sees_all


def test_patterns_match_without_backtracking():
    """Backtracking would take centuries on both patterns."""
    Principal("p", frozenset(), ("*a" * 8 + "b",)).sees("a" * 60, "a", "a")
    Principal("p", frozenset(), ("*" * 500 + "b",)).sees("a" * 200, "a", "a")


WRONG = [
    ("[[token", ["TOML"]),
    ("", ["nobody"]),
    ("tokens = 1", ["tokens", '"token"']),
    ("token = 1", ["[[token]]"]),
    ("[token]\nname = 'a'", ["[[token]]"]),
    ('[[token]]\nname = "a"\nscopes = []\ntables = []', ["sha256", "token 1", '"a"']),
    ('[[token]]\nname = "a"\nsha256 = "sesame"\nscopes = []', ["sha256", "64"]),
    (f'[[token]]\nname = "a"\nsha256 = "{"g" * 64}"\nscopes = []', ["sha256"]),
    (f'[[token]]\nname = "a"\nsha256 = "{"0" * 64}"\nscopes = ["fly"]\ntables = []', ["scopes", "fly", "admin"]),
    (f'[[token]]\nname = "a"\nsha256 = "{"0" * 64}"', ["scopes"]),
    (f'[[token]]\nname = "a"\nsha256 = "{"0" * 64}"\nscopes = "admin"', ["scopes"]),
    (f'[[token]]\nname = "a"\nsha256 = "{"0" * 64}"\nscopes = []\ntables = "*"', ["tables"]),
    (f'[[token]]\nname = "a"\nsha256 = "{"0" * 64}"\nscopes = []\ntables = [""]', ["tables"]),
    (f'[[token]]\nname = "a"\nsha256 = "{"0" * 64}"\nscopes = []\nscope = 1', ["scope", '"scopes"']),
    (f'[[token]]\nsha256 = "{"0" * 64}"\nscopes = []', ["name"]),
    (GOOD + f'[[token]]\nname = "b"\nsha256 = "{sha("r")}"\nscopes = []', ["token 3", "token 1"]),
    ("oidc = 1", ["oidc"]),
    ("[oidc]\naudience = 'x'", ["issuer", "jwks"]),
    ("[oidc]\nissuer = 'https://i'", ["audience"]),
    ("[oidc]\nissuer = 'i'\naudience = 'x'", ["issuer"]),
    ("[oidc]\nissuer = 7\naudience = 'x'", ["issuer"]),
    ("[oidc]\njwks = 'nowhere.json'\naudience = 'x'", ["jwks"]),
    ("[oidc]\nissuer = 'https://i'\naudience = 'x'\nscope_claim = 'x'", ["scope_claim", '"scopes_claim"']),
]


@pytest.mark.parametrize(("text", "mentions"), WRONG, ids=lambda part: str(part)[:60])
def test_invalid_token_file_is_rejected(tmp_path, text, mentions):
    with pytest.raises(InvalidArgument) as raised:
        load_tokens(write_token_file(tmp_path, text))
    assert all(word in str(raised.value) for word in mentions), str(raised.value)
    assert "sesame" not in str(raised.value)


def test_missing_token_file_is_rejected(tmp_path):
    with pytest.raises(InvalidArgument, match="token file"):
        load_tokens(tmp_path / "nowhere.toml")


# Signed tokens.

jwt = pytest.importorskip("jwt")


def make_key(kind):
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    if kind == "RS256":
        return rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return ec.generate_private_key(ec.SECP256R1()) if kind == "ES256" else ed25519.Ed25519PrivateKey.generate()


KEYS = {kind: make_key(kind) for kind in signed_tokens.ALGORITHMS}
UNTRUSTED_KEY = make_key("ES256")


def public(kind):
    algorithm = jwt.algorithms.get_default_algorithms()[kind]
    return json.loads(algorithm.to_jwk(KEYS[kind].public_key())) | {"kid": kind, "use": "sig"}


HMAC_KEY = "a shared secret of thirty-two bytes or more"
JWKS = {
    "keys": [
        {"kty": "oct", "kid": "hmac", "k": base64.urlsafe_b64encode(HMAC_KEY.encode()).decode().rstrip("=")},
        *map(public, KEYS),
        7,
        {"kty": "RSA"},
    ]
}


def claims(**others):
    body = {"sub": "eve", "aud": "statflight", "iss": "https://id", "exp": time.time() + 60, "scope": "stats.read fly"}
    return {name: value for name, value in (body | others).items() if value is not None}


def signed(kind="ES256", key=None, kid=None, **others):
    return jwt.encode(claims(**others), key or KEYS[kind], algorithm=kind, headers={"kid": kid or kind})


@pytest.fixture
def oidc(tmp_path):
    def load(extra=""):
        (tmp_path / "jwks.json").write_text(json.dumps(JWKS))
        text = f"[oidc]\nissuer = 'https://id'\njwks = 'jwks.json'\naudience = 'statflight'\n{extra}\n{GOOD}"
        return load_tokens(write_token_file(tmp_path, text))

    return load


@pytest.mark.parametrize("kind", KEYS)
def test_signed_token_maps_to_its_principal(oidc, kind):
    principal = oidc().authenticate(signed(kind))
    assert principal == Principal("eve", frozenset({"stats.read"}), ("*",))
    assert oidc().authenticate("r").name == "reader"


def test_claims_set_scopes_and_tables(oidc):
    authenticator = oidc("scopes_claim = 'roles'\ntables_claim = 'tables'")
    principal = authenticator.authenticate(signed(roles=["admin", "x", 7], tables=["lake.*", "a.b.c"]))
    assert principal.scopes == {"admin"} and principal.sees("lake", "s", "t") and not principal.sees("x", "s", "t")
    principal = authenticator.authenticate(signed(roles=7))
    assert not principal.scopes and not principal.sees("lake", "s", "t")


def unsigned():
    return jwt.encode(claims(), None, algorithm="none", headers={"kid": "ES256"})


def confused():
    """Signed with the public key as if it were a shared secret."""
    secret = base64.urlsafe_b64encode(json.dumps(public("RS256")).encode()).decode()
    return jwt.encode(claims(), secret, algorithm="HS256", headers={"kid": "RS256"})


def tampered():
    head, body, signature = signed().split(".")
    body = base64.urlsafe_b64encode(json.dumps(claims(scope="admin")).encode()).decode().rstrip("=")
    return f"{head}.{body}.{signature}"


def nested():
    deep = base64.urlsafe_b64encode(b'{"alg":"ES256","kid":' + b"[" * 10_000).decode().rstrip("=")
    return f"{deep}.e30.e30"


BAD_TOKENS = {
    "expired": lambda: signed(exp=time.time() - 100),
    "never expires": lambda: signed(exp=None),
    "not yet": lambda: signed(nbf=time.time() + 100),
    "another audience": lambda: signed(aud="other"),
    "no audience": lambda: signed(aud=None),
    "another issuer": lambda: signed(iss="https://evil"),
    "no issuer": lambda: signed(iss=None),
    "another key": lambda: signed(key=UNTRUSTED_KEY),
    "unknown key": lambda: signed(kid="other"),
    "key of another kind": lambda: signed(kid="RS256"),
    "shared secret": lambda: jwt.encode(claims(), HMAC_KEY, algorithm="HS256", headers={"kid": "hmac"}),
    "no kid": lambda: jwt.encode(claims(), KEYS["ES256"], algorithm="ES256"),
    "unsigned": unsigned,
    "confused": confused,
    "tampered": tampered,
    "nested": nested,
    "noise": lambda: "a.b.c",
    "empty": lambda: "..",
    "no utf-8": lambda: "/_8.e30.e30",
}


@pytest.mark.parametrize("make", BAD_TOKENS.values(), ids=BAD_TOKENS)
def test_invalid_signed_token_is_unauthenticated(oidc, make):
    token = make()
    with pytest.raises(Unauthenticated) as raised:
        oidc().authenticate(token)
    assert token not in str(raised.value) and (len(token) < 20 or token[-20:] not in str(raised.value))


def test_jwks_file_without_public_keys_is_rejected(tmp_path):
    for text in ("{", "[]", "{}", '{"keys": []}', json.dumps({"keys": JWKS["keys"][:1]})):
        (tmp_path / "jwks.json").write_text(text)
        with pytest.raises(InvalidArgument, match="jwks"):
            load_tokens(write_token_file(tmp_path, "[oidc]\njwks = 'jwks.json'\naudience = 'x'"))


@pytest.fixture
def provider():
    """An identity provider, which tells its keys."""

    def answer(request):
        body = JWKS if request.path == "/keys" else {"jwks_uri": f"{server.url}/keys"}
        return 200, json.dumps(body).encode()

    with receiving(answer) as server:
        yield server


@pytest.mark.parametrize("named", ["issuer", "jwks"])
def test_provider_keys_are_fetched_once_and_outlive_an_outage(tmp_path, provider, named, monkeypatch):
    url = provider.url
    at = url if named == "issuer" else f"{url}/keys"
    authenticator = load_tokens(write_token_file(tmp_path, f"[oidc]\n{named} = '{at}'\naudience = 'statflight'"))
    assert not provider.requests  # fetched on first use: a provider outage does not prevent startup
    for _ in range(3):
        assert authenticator.authenticate(signed(iss=url)).name == "eve"
        with pytest.raises(Unauthenticated):
            authenticator.authenticate(signed(iss=url, kid="unknown"))
    expected = ["/keys"] if named == "jwks" else ["/.well-known/openid-configuration", "/keys"]
    assert [request.path for request in provider.requests] == expected
    provider.answer = lambda _: (500, b"")
    # expired keys stay in use while the provider is down
    monkeypatch.setattr(signed_tokens, "KEYS_SECONDS", -1.0)
    monkeypatch.setattr(signed_tokens, "COOLDOWN_SECONDS", -1.0)
    assert authenticator.authenticate(signed(iss=url)).name == "eve"
    assert len(provider.requests) > len(expected)


@pytest.mark.parametrize(
    "answer", [b" " * (1 << 20) + b"{}", b"[" * 100_000, b"[1]", b"null", b'{"keys": 1}', b'{"keys": []}']
)
def test_hostile_answers_of_a_provider_are_asked_for_once(tmp_path, provider, answer):
    url = provider.url
    authenticator = load_tokens(write_token_file(tmp_path, f"[oidc]\njwks = '{url}/keys'\naudience = 'statflight'"))
    provider.answer = lambda _: (200, answer)
    for _ in range(2):
        with pytest.raises(Unauthenticated, match="did not answer"):
            authenticator.authenticate(signed(iss=url))
    assert len(provider.requests) == 1


def test_callers_with_known_keys_wait_for_no_fetch_and_an_endless_one_ends(tmp_path, provider, monkeypatch):
    url = provider.url
    authenticator = load_tokens(write_token_file(tmp_path, f"[oidc]\njwks = '{url}/keys'\naudience = 'statflight'"))
    assert authenticator.authenticate(signed(iss=url)).name == "eve"
    monkeypatch.setattr(signed_tokens, "COOLDOWN_SECONDS", -1.0)
    asked, answered = threading.Event(), threading.Event()

    def hang(_):
        asked.set()
        answered.wait(30)
        return 200, b" " * 1000

    provider.answer = hang
    monkeypatch.setattr(signed_tokens, "FETCH_SECONDS", 0.2)
    with ThreadPoolExecutor() as pool:
        unknown = pool.submit(authenticator.authenticate, signed(iss=url, kid="unknown"))
        assert asked.wait(10)
        assert authenticator.authenticate(signed(iss=url)).name == "eve"
        with pytest.raises(Unauthenticated, match="not known"):
            unknown.result()
        answered.set()


def test_unreachable_provider_authenticates_no_token(tmp_path, provider):
    provider.answer = lambda _: (500, b"")
    url = provider.url
    authenticator = load_tokens(write_token_file(tmp_path, f"[oidc]\nissuer = '{url}'\naudience = 'statflight'"))
    for _ in range(3):
        with pytest.raises(Unauthenticated):
            authenticator.authenticate(signed(iss=url))
    assert len(provider.requests) == 1
