"""Objects that another replica told of: what the shared store says is checked before it is used."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atoll.errors import ConfigError
from atoll.service import clock
from atoll.service.access.keys import Keys, Principal
from atoll.service.http.problems import Problem
from atoll.service.ids import new_id
from atoll.service.storage.blobs import FolderBlobs
from atoll.service.storage.database import Database
from atoll.service.storage.objects import Objects
from atoll.service.storage.stored import StoredBytes

OWNER = Principal(key="k", tenant="t")


class PublishedBlobs(FolderBlobs):
    """A folder, and a store that says of every object what a test wants."""

    facts: dict[str, Any]

    async def lookup(self, name: str) -> dict[str, Any] | None:
        return self.facts


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Database]:
    made = Database(tmp_path)
    yield made
    made.close()


def row(ident: str, **changes: Any) -> dict[str, Any]:
    digest = hashlib.sha256(b"content").hexdigest()
    now = clock.now()
    good = {"id": ident, "kind": "file", "tenant": "t", "digest": digest, "size": 7, "facts": "{}",
            "created": now, "expires": now + 1000}  # fmt: skip
    return {**good, **changes}


@pytest.mark.parametrize(
    "change",
    [{"digest": "../../secret"}, {"digest": "/etc/passwd"}, {"digest": ""}, {"digest": None},
     {"digest": "A" * 64}, {"size": "7"}, {"facts": "no"}, {"facts": []}, {"expires": "never"},
     {"created": None}, {"more": 1}, {"tenant": "other"}, {"id": "fil_x"}],
)  # fmt: skip
async def test_a_row_that_a_replica_cannot_have_written_is_not_believed(
    ledger: Database, tmp_path: Path, change: dict[str, Any]
) -> None:
    (tmp_path / "secret").write_text("secret")
    blobs = PublishedBlobs(tmp_path / "a")
    objects, ident = Objects(blobs, ledger, StoredBytes(ledger)), new_id("fil")
    blobs.facts = row(ident, **change)
    with pytest.raises(Problem) as refused:
        await objects.fetch(OWNER, "file", ident)
    assert refused.value.status == 404


async def test_a_row_of_a_replica_is_believed(ledger: Database, tmp_path: Path) -> None:
    blobs = PublishedBlobs(tmp_path / "a")
    objects, ident = Objects(blobs, ledger, StoredBytes(ledger)), new_id("fil")
    blobs.facts = row(ident)
    (tmp_path / "a" / blobs.facts["digest"]).write_bytes(b"content")
    assert (await objects.fetch(OWNER, "file", ident)).read_bytes() == b"content"


@pytest.mark.parametrize("tenant", [".", "..", "...", "", "a/b", "a\n"])
def test_a_tenant_is_a_part_of_a_name_in_the_store(ledger: Database, tenant: str) -> None:
    with pytest.raises(ConfigError, match="a tenant has 1 to 64"):
        Keys(ledger).add(tenant=tenant)
