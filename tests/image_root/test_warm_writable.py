"""Warm guests whose root is an image that they may change, and whose image has files in /app."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import warm_sessions
from ordinary_user import USER, python_for_user, run_as_user

import atoll
from atoll.config import SandboxConfig
from atoll.errors import SandboxStartError
from atoll.hosting.pool import Pool
from atoll.policy import ExecutionPolicy

MIB = 1 << 20
MakeImage = Callable[[Callable[[Path], None]], str]


def _fill(top: Path) -> None:
    (top / "var/data").mkdir(parents=True)
    (top / "var/data/old").write_text("old")


def test_writable_root_of_a_warm_guest_is_forked_and_rolled_back(make_image: MakeImage) -> None:
    asyncio.run(warm_sessions.fork_and_roll_back(make_image(_fill)))


def test_warm_guest_and_its_clone_see_their_root_and_nothing_beside_it(image: str) -> None:
    asyncio.run(warm_sessions.look_around(image))


def test_disk_limit_counts_changes_of_the_root_and_private_folders_together(image: str) -> None:
    asyncio.run(warm_sessions.write_too_much(image))


def test_warm_session_and_its_clone_are_committed_each_with_its_changes(
    make_image: MakeImage, tmp_path: Path
) -> None:
    asyncio.run(warm_sessions.commit(make_image(_fill), f"oci:{tmp_path}/made"))


def _fill_app(top: Path) -> None:
    (top / "app/deep").mkdir(parents=True)
    (top / "app/deep/code.py").write_text("answer = 42")
    (top / "app/link").symlink_to("/etc/shadow")
    (top / "home/guest").mkdir(parents=True)
    (top / "home/guest/.settings").write_text("x")


@pytest.mark.parametrize("writable", [False, True])
def test_files_of_the_image_in_app_are_a_warm_guests_own(
    make_image: MakeImage,
    writable: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    async def look() -> None:
        config = SandboxConfig(image=make_image(_fill_app), writable_root=writable)
        async with Pool() as pool:
            for _ in range(2):
                box = await pool.open(config)
                result = await box.execute("import deep.code; deep.code.answer")
                assert (result.value, result.cold_start) == (42, None)
                assert (await box.execute("open('deep/code.py', 'w').write('x')")).error is None
                look = "import os; os.readlink('link'), os.listdir(os.environ['HOME'])"
                assert (await box.execute(look)).value == ("/etc/shadow", [".settings"])
                hidden = "not os.path.exists('/.image') or os.listdir('/.image') == []"
                assert (await box.execute(hidden)).value is True
                await box.destroy()
            small = SandboxConfig(
                image=config.image,
                writable_root=writable,
                policy=ExecutionPolicy(disk_bytes=4096),
            )
            with pytest.raises(SandboxStartError, match="do not fit into disk_bytes"):
                await pool.run("1", small)

    asyncio.run(look())


def test_large_folder_of_the_image_starts_cold_and_says_why(make_image: MakeImage) -> None:
    def fill(top: Path) -> None:
        (top / "app").mkdir()
        (top / "app/large").write_bytes(b"x" * (17 * MIB))

    async def cold() -> str | None:
        async with Pool() as pool:
            return (await pool.run("1", SandboxConfig(image=make_image(fill)))).cold_start

    assert asyncio.run(cold()) == "its image has more than 16 MiB in /app or at home"


@pytest.mark.parametrize("backend", ["daemon"], indirect=True)
def test_daemon_forks_sessions_with_a_writable_root(image: str, backend: str) -> None:
    with atoll.create_sandbox(backend=backend, image=image, writable_root=True) as box:
        result = box.execute("open('/srv/new', 'w').write('1')")
        assert (result.error, result.cold_start) == (None, None)
        mark = box.checkpoint()
        box.execute("open('/srv/new', 'w').write('2')")
        with box.fork() as twin:
            assert twin.execute("open('/srv/new').read()").value == "2"
        box.rollback(mark)
        assert box.execute("open('/srv/new').read()").value == "1"


def test_writable_root_with_further_folders_starts_cold(image: str) -> None:
    async def cold() -> str | None:
        config = SandboxConfig(
            image=image, writable_root=True, policy=ExecutionPolicy(folders=("/data",))
        )
        async with Pool() as pool:
            return (await pool.run("open('/data/x', 'w')", config)).cold_start

    assert asyncio.run(cold()) == "its root is writable and it has further folders"


@pytest.mark.skipif(os.geteuid() != 0, reason="all tests run as an ordinary user already")
def test_an_ordinary_user_has_warm_sessions_with_a_writable_root(make_image: MakeImage) -> None:
    shared = Path(tempfile.mkdtemp(prefix="atoll-user-"))
    try:
        shared.chmod(0o755)
        for name in ("cache", "made"):
            (shared / name).mkdir()
            os.chown(shared / name, USER, USER)
        shutil.copytree(make_image(_fill).removeprefix("oci:"), shared / "image")
        words = (warm_sessions.__file__, f"oci:{shared}/image", f"oci:{shared}/made/image")
        env = {"ATOLL_CACHE": str(shared / "cache"), "ATOLL_STATE_KEY": "0" * 64}
        done = run_as_user(python_for_user(), *words, timeout=120, **env)
        assert (done.stdout, done.stderr) == ("done\n", "")
    finally:
        shutil.rmtree(shared)
