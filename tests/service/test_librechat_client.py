"""The published `@librechat/agents` package, unmodified, against this service, under node."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from own_service import OwnService

from atoll.config import cache_folder

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
PACKAGES = ("@librechat/agents@3.9.2", "node-fetch@2.7.0")
"""LibreChat itself brings node-fetch 2, which the package imports without naming it."""
CLIENT = Path(__file__).parent / "librechat_client" / "client.mjs"


@pytest.fixture(scope="module")
def package() -> Path:
    """Where the package is installed; fetched once, by name, into the cache."""
    if not shutil.which("npm") or not shutil.which("node"):
        pytest.skip("node and npm are needed to run LibreChat's own client")
    folder = cache_folder() / "librechat-agents-3.9.2"
    if not (folder / "done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        options = ["--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]
        done = subprocess.run(["npm", "install", *options, str(folder), *PACKAGES], check=False,
                              capture_output=True, text=True, timeout=800)  # fmt: skip
        if done.returncode:
            pytest.skip(f"npm cannot fetch @librechat/agents: {done.stderr[-300:]}")
        (folder / "done").touch()
    return folder


@pytest.fixture(scope="module")
def signer() -> ed25519.Ed25519PrivateKey:
    return ed25519.Ed25519PrivateKey.generate()


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory, signer: ed25519.Ed25519PrivateKey
) -> Iterator[OwnService]:
    folder = tmp_path_factory.mktemp("librechat")
    (folder / "keys").mkdir()
    pem = signer.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    (folder / "keys" / "lc-codeapi-2026-05.pem").write_bytes(pem)
    found = OwnService(folder / "service", jwt_keys=str(folder / "keys"))
    found.start()
    yield found
    found.stop()


def headers(way: str, service: OwnService, signer: ed25519.Ed25519PrivateKey) -> dict[str, str]:
    if way == "x-api-key":
        return {"x-api-key": service.key}
    if way == "bearer":
        return {"Authorization": f"Bearer {service.key}"}
    if way == "basic":
        text = base64.b64encode(f"{service.key}:".encode()).decode()
        return {"Authorization": f"Basic {text}"}
    if way == "none":
        service.service.librechat.credentials._open = service.key.split("_")[1]
        return {}
    now = int(time.time())
    claims = {
        "iss": "librechat", "aud": "codeapi", "sub": "u1", "iat": now, "nbf": now,
        "exp": now + 300, "jti": "1", "tenant_id": "legacy",
    }  # fmt: skip
    token = jwt.encode(claims, signer, "EdDSA", headers={"kid": "lc-codeapi-2026-05"})
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize("way", ["x-api-key", "bearer", "basic", "jwt", "none"])
def test_the_published_client_runs_code_files_and_tools(
    package: Path, service: OwnService, signer: ed25519.Ed25519PrivateKey, way: str
) -> None:
    sent = json.dumps(headers(way, service, signer))
    env = {name: text for name, text in os.environ.items() if "proxy" not in name.lower()}
    done = subprocess.run(
        ["node", CLIENT, package, f"{service.url}/v1"], env={**env, "ATOLL_HEADERS": sent},
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert said["run"]["content"].startswith("stdout:\n42\n")
    assert [one["name"] for one in said["run"]["artifact"]["files"]] == ["out.txt"]
    assert said["again"]["content"].startswith("stdout:\nkept")
    assert "ZeroDivisionError" in said["fails"]["content"]
    assert "was rejected" in said["language"]["error"]
    assert [one["name"] for one in said["files"]] == ["out.txt"]
    assert said["tools"]["content"].startswith("stdout:\n[3, 7]\ncaught not today\nx\n")
    assert said["no_tools"]["content"].startswith("stdout:\nplain")
    assert "exceeded the time limit" in said["late"]["error"]
    assert said["bash"]["content"] == "stdout:\n42"
    assert said["calls"] == [[1, 2], [3, 4], [1, 1], [20, 22]], "each tool ran once"
