"""Who may ask: every credential that is not exactly one valid one is refused."""

from __future__ import annotations

import base64
import hmac
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from starlette.requests import Request

from atoll.errors import ConfigError
from atoll.service.access.keys import Keys
from atoll.service.dialects.librechat.credentials import Credentials
from atoll.service.http.problems import Problem
from atoll.service.http.proxies import Proxies
from atoll.service.settings import ServiceSettings
from atoll.service.storage.database import Database

KID = "lc-codeapi-2026-05"
OWN = ed25519.Ed25519PrivateKey.generate()
FOREIGN = ed25519.Ed25519PrivateKey.generate()
RSA = rsa.generate_private_key(65537, 2048)


@pytest.fixture
def keys(tmp_path: Path) -> Iterator[Keys]:
    ledger = Database(tmp_path)
    yield Keys(ledger)
    ledger.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "public"
    made.mkdir()
    for name, key in ((KID, OWN), ("rsa", RSA)):
        pem = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        (made / f"{name}.pem").write_bytes(pem)
    return made


def credentials(keys: Keys, tmp_path: Path, **settings: Any) -> Credentials:
    return Credentials(ServiceSettings(folder=tmp_path, **settings), keys)


def asked(*headers: tuple[str, str], client: str = "203.0.113.9") -> Request:
    raw = [(name.encode(), text.encode()) for name, text in headers]
    return Request({"type": "http", "headers": raw, "client": (client, 1)})


def claims(**changes: Any) -> dict[str, Any]:
    now = int(time.time())
    found = {
        "iss": "librechat", "aud": "codeapi", "sub": "user-1", "iat": now, "nbf": now,
        "exp": now + 300, "jti": "j1", "tenant_id": "acme", "role": "USER",
        "principal_source": "librechat_jwt",
    }  # fmt: skip
    found.update(changes)
    return {name: one for name, one in found.items() if one is not None}


def signed(key: Any = OWN, algorithm: str = "EdDSA", kid: Any = KID, **changes: Any) -> str:
    return jwt.encode(claims(**changes), key, algorithm, headers={"kid": kid} if kid else {})


def forged(header: dict[str, Any], **changes: Any) -> str:
    parts = [json.dumps(one).encode() for one in (header, claims(**changes))]
    return ".".join(base64.urlsafe_b64encode(one).decode().rstrip("=") for one in parts) + "."


def by_public_key() -> str:
    """A token signed with the public key as if it were a shared secret."""
    text = forged({"alg": "HS256", "kid": "rsa"})
    mac = hmac.new(PUBLIC, text[:-1].encode(), "sha256").digest()
    return text + base64.urlsafe_b64encode(mac).decode().rstrip("=")


def refusal(found: Credentials, request: Request) -> tuple[int, str]:
    with pytest.raises(Problem) as caught:
        found.check(request)
    return caught.value.status, caught.value.detail


@pytest.mark.parametrize("kind", ["EdDSA", "RS256"])
def test_a_signed_token_names_tenant_and_user(
    keys: Keys, tmp_path: Path, folder: Path, kind: str
) -> None:
    found = credentials(keys, tmp_path, jwt_keys=str(folder))
    token = signed() if kind == "EdDSA" else signed(RSA, "RS256", "rsa")
    who = found.check(asked(("authorization", f"Bearer {token}")))
    assert (who.tenant, who.user) == ("jwt.acme", "user-1")
    assert "admin" not in who.scopes
    legacy = found.check(asked(("authorization", f"Bearer {signed(tenant_id=None)}")))
    assert legacy.tenant == "jwt.legacy"


def test_keys_may_come_as_a_jwks_file(keys: Keys, tmp_path: Path) -> None:
    jwk = json.loads(jwt.algorithms.OKPAlgorithm.to_jwk(OWN.public_key()))
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": [{**jwk, "kid": KID}]}))
    found = credentials(keys, tmp_path, jwt_keys=str(path))
    assert found.check(asked(("authorization", f"Bearer {signed()}"))).user == "user-1"


PUBLIC = RSA.public_key().public_bytes(
    serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
)
BAD_TOKENS = {
    "expired": lambda: signed(exp=int(time.time()) - 31, iat=int(time.time()) - 200),
    "not yet valid": lambda: signed(nbf=int(time.time()) + 60),
    "issued in the future": lambda: signed(iat=int(time.time()) + 60, exp=int(time.time()) + 90),
    "lives too long": lambda: signed(exp=int(time.time()) + 3600),
    "wrong audience": lambda: signed(aud="another"),
    "no audience": lambda: signed(aud=None),
    "wrong issuer": lambda: signed(iss="another"),
    "no subject": lambda: signed(sub=None),
    "no jti": lambda: signed(jti=None),
    "no expiry": lambda: signed(exp=None),
    "foreign key": lambda: signed(FOREIGN),
    "foreign kid": lambda: signed(kid="another"),
    "kid of another key": lambda: signed(kid="rsa"),
    "no kid": lambda: signed(kid=None),
    "kid that is a path": lambda: signed(kid=f"../public/{KID}"),
    "alg none": lambda: forged({"alg": "none", "typ": "JWT", "kid": KID}),
    "alg None": lambda: forged({"alg": "None", "kid": KID}),
    "public key as secret": by_public_key,
    "tenant that is a path": lambda: signed(tenant_id="../a"),
    "unknown source": lambda: signed(principal_source="self"),
    "three dots": lambda: "a.b.c",
}


@pytest.mark.parametrize("name", BAD_TOKENS)
def test_a_token_that_is_not_valid_is_refused(
    keys: Keys, tmp_path: Path, folder: Path, name: str
) -> None:
    found = credentials(keys, tmp_path, jwt_keys=str(folder))
    token = BAD_TOKENS[name]()
    assert refusal(found, asked(("authorization", f"Bearer {token}"))) == (
        401, "Invalid bearer token",
    )  # fmt: skip


def test_keys_are_refused_unless_valid_and_alone(keys: Keys, tmp_path: Path) -> None:
    found = credentials(keys, tmp_path)
    good, revoked, expired = keys.add(), keys.add(), keys.add(seconds=1e-6)
    keys.revoke(revoked.split("_")[1])
    assert found.check(asked(("x-api-key", good))).user == "shared"
    same = asked(("x-api-key", good), ("authorization", f"Bearer {good}"))
    assert found.check(same).user == "shared", "the same key twice is one credential"
    wrong = good[:-1] + ("A" if good[-1] != "A" else "B")
    nul = base64.b64encode(b"\xff").decode()
    for headers in (
        (), (("x-api-key", wrong),), (("x-api-key", revoked),), (("x-api-key", expired),),
        (("x-api-key", ""),), (("authorization", ""),), (("authorization", "Bearer "),),
        (("authorization", f"Digest {good}"),), (("authorization", "Basic ?"),),
        (("authorization", f"Basic {nul}"),), (("authorization", "Basic Og=="),),
        (("authorization", f"Bearer {signed()}"),),
    ):  # fmt: skip
        assert refusal(found, asked(*headers))[0] == 401, headers
    for headers in (
        (("x-api-key", good), ("x-api-key", wrong)),
        (("x-api-key", good), ("authorization", f"Bearer {wrong}")),
        (("authorization", f"Bearer {good}"), ("authorization", f"Bearer {signed()}")),
    ):
        assert refusal(found, asked(*headers))[0] == 400, headers


def test_without_a_credential_only_near_clients_act_by_the_named_key(
    keys: Keys, tmp_path: Path
) -> None:
    ident = keys.add(tenant="chat").split("_")[1]
    found = credentials(keys, tmp_path, librechat_key=ident, librechat_networks=("10.0.0.0/8",))
    assert found.check(asked(client="10.2.3.4")).tenant == "chat"
    for far in ("203.0.113.9", "127.0.0.1", "", "::ffff:10.2.3.4"):
        assert refusal(found, asked(client=far))[0] == 401
    assert refusal(found, asked(("x-api-key", "wrong"), client="10.2.3.4"))[0] == 401
    keys.revoke(ident)
    assert refusal(found, asked(client="10.2.3.4"))[0] == 401


@pytest.mark.parametrize(
    ("peer", "headers", "trusted", "let_in"),
    [
        ("10.2.3.4", {}, (), True),
        ("203.0.113.9", {"x-forwarded-for": "10.2.3.4"}, (), False),
        ("127.0.0.1", {"x-forwarded-for": "10.2.3.4"}, (), False),
        ("10.2.3.4", {"x-forwarded-for": "203.0.113.9"}, (), False),  # a proxy that is not named
        ("10.2.3.4", {"forwarded": "for=203.0.113.9"}, (), False),
        ("10.2.3.4", {"via": "1.1 proxy"}, (), False),
        ("10.0.0.1", {"x-forwarded-for": "10.2.3.4"}, ("10.0.0.1",), True),
        ("10.0.0.1", {"x-forwarded-for": "203.0.113.9"}, ("10.0.0.1",), False),
        ("10.0.0.1", {"x-forwarded-for": "10.2.3.4, 203.0.113.9"}, ("10.0.0.1",), False),
        ("10.0.0.1", {"x-forwarded-for": "203.0.113.9, 10.2.3.4"}, ("10.0.0.1",), True),
        ("10.0.0.1", {"x-forwarded-for": "10.2.3.4, 10.0.0.1"}, ("10.0.0.1",), True),
        ("10.0.0.1", {"x-forwarded-for": "203.0.113.9, 10.0.0.1"}, ("10.0.0.0/31",), False),
        ("10.0.0.1", {"x-forwarded-for": "10.0.0.1"}, ("10.0.0.1",), False),
        ("10.0.0.1", {"x-forwarded-for": "garbage"}, ("10.0.0.1",), False),
        ("10.0.0.1", {"x-forwarded-for": ""}, ("10.0.0.1",), False),
        ("10.0.0.1", {}, ("10.0.0.1",), False),  # a proxy that does not say for whom
        ("203.0.113.9", {"x-forwarded-for": "10.2.3.4"}, ("10.0.0.1",), False),
    ],
)
def test_only_a_trusted_proxy_says_where_a_client_is(
    keys: Keys, tmp_path: Path, peer: str, headers: dict[str, str], trusted: tuple[str, ...],
    *, let_in: bool,
) -> None:  # fmt: skip
    ident = keys.add(tenant="chat").split("_")[1]
    networks = {"librechat_networks": ("10.0.0.0/8",)}
    found = credentials(keys, tmp_path, librechat_key=ident, **networks)
    request = asked(*headers.items(), client=peer)
    Proxies(trusted).apply(request.scope)
    again = Request(request.scope)
    if let_in:
        assert found.check(again).tenant == "chat"
    else:
        assert refusal(found, again)[0] == 401


@pytest.mark.parametrize("scheme", ["https", "http", "HTTPS", "https, http", "javascript"])
def test_a_scheme_is_taken_from_a_proxy_on_this_machine(scheme: str) -> None:
    for client, trusted, believed in (
        ("127.0.0.1", (), True),
        ("203.0.113.9", (), False),
        ("203.0.113.9", ("203.0.113.0/24",), True),
    ):
        request = asked(("x-forwarded-proto", scheme), client=client)
        request.scope["scheme"] = "http"
        Proxies(trusted).apply(request.scope)
        assert (request.scope["scheme"] == "https") is (believed and scheme == "https")


def test_a_network_that_is_none_stops_the_start(tmp_path: Path) -> None:
    for name in ("trusted_proxies", "librechat_networks"):
        with pytest.raises(ConfigError, match=f"{name} must be networks"):
            ServiceSettings(folder=tmp_path, **{name: ("10.0.0.1/8",)})


def test_keys_for_tokens_that_cannot_be_used_stop_the_start(keys: Keys, tmp_path: Path) -> None:
    weak = rsa.generate_private_key(65537, 1024).public_key()
    pem = weak.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    empty, bad = tmp_path / "empty", tmp_path / "bad"
    for one in (empty, bad):
        one.mkdir()
    (bad / "k.pem").write_bytes(pem)
    for path in (empty, bad, tmp_path / "missing.json"):
        with pytest.raises(ConfigError, match="public key"):
            credentials(keys, tmp_path, jwt_keys=str(path))
