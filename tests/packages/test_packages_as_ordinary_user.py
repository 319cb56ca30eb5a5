"""Packages for a user who is not root: downloaded, built in a jail, kept in a cache of the user's."""

from __future__ import annotations

import os
import shutil
import site
import tempfile
from pathlib import Path

import pytest
from ordinary_user import SOURCE, USER, python_for_user, run_as_user

PROGRAM = """
import asyncio, os, stat
from atoll import create_sandbox
from atoll.config import SandboxConfig
from atoll.packages import store
from atoll.hosting.pool import Pool

with create_sandbox(backend="native", packages=["tiny"]) as box:
    result = box.execute("import tiny; tiny.version")
    print("started", result.value, result.isolation)
    print("changed", box.execute("open(tiny.__file__, 'a')").error_type)

async def main():
    async with Pool() as pool:
        async with await pool.open(SandboxConfig(packages=["tiny"], preload="bare")) as box:
            print("forked", (await box.execute("import tiny; tiny.version")).value)

asyncio.run(main())
(one,) = store.everything()
print("owner", os.stat(one.folder).st_uid, oct(stat.S_IMODE(os.stat(store.root()).st_mode)))
"""

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="all tests run as an ordinary user already"
)


@pytest.fixture
def shared():
    """A folder that the user can read, with a cache that is the user's."""
    folder = Path(tempfile.mkdtemp(prefix="atoll-user-"))
    folder.chmod(0o755)
    (folder / "cache").mkdir()
    os.chown(folder / "cache", USER, USER)
    yield folder
    shutil.rmtree(folder)


def test_an_ordinary_user_has_packages_by_name(index, shared):
    shutil.copy(index.wheel("tiny"), shared)
    settings = {
        "PYTHONPATH": os.pathsep.join([str(SOURCE), *site.getsitepackages()]),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(shared),
        "PIP_CONFIG_FILE": os.devnull,
        "ATOLL_CACHE": str(shared / "cache"),
    }
    done = run_as_user(python_for_user(), "-c", PROGRAM, **settings)
    assert done.stdout.splitlines() == [
        "started 1.0 jailed", "changed PermissionError", "forked 1.0", f"owner {USER} 0o700",
    ], done.stderr  # fmt: skip
