"""USER, WORKDIR, ENTRYPOINT and ENV of an image: by choice, cold and warm, and by `atoll exec`."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import rootfs
from ordinary_user import USER, python_for_user, run_as_user

import atoll
from atoll.config import SandboxConfig
from atoll.errors import ConfigError, SandboxStartError, UnsupportedError
from atoll.hosting.pool import Pool

CONFIG: dict[str, object] = {
    "Env": ["GREETING=hello"],
    "User": "worker",
    "WorkingDir": "/srv/code",
    "Entrypoint": ["sh", "-c", 'echo "$0 $1 $GREETING $(id -u)" > /tmp/ran; pwd >> /tmp/ran'],
    "Cmd": ["first", "second"],
}
WHO = "import os; os.getuid(), os.getgid(), os.getcwd()"
AS_USER = """
import sys, atoll
with atoll.create_sandbox(image=sys.argv[1], user="root", writable_root=True) as box:
    print(box.shell("id -u; cd /srv; touch new").output.split())
    print(box.execute("import os; os.chown('/srv/new', 999, 999)").error)
with atoll.create_sandbox(image=sys.argv[1], user="image", workdir="image") as box:
    print(box.shell("id -u; pwd").output.split())
"""


@pytest.fixture(scope="session")
def chosen(layer: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the reference of an image that says who, where and what."""
    folder = tmp_path_factory.mktemp("chosen")
    folder.chmod(0o755)
    (folder / "top/srv/code").mkdir(parents=True)
    (folder / "top/srv/code/answer.py").write_text("value = 42")
    return f"oci:{rootfs.write_layout(folder / 'oci', layer, folder / 'top', **CONFIG)}"


def _warm(config: SandboxConfig, *codes: str) -> list[Any]:
    """Return the values of cells of a session of a pool, and of a clone of it."""

    async def work() -> list[Any]:
        async with Pool() as pool:
            box = await pool.open(config)
            twin = await box.fork()
            found = []
            for one in (box, twin):
                for code in codes:
                    result = await one.execute(code)
                    assert (result.error, result.cold_start) == (None, None)
                    found.append(result.value)
                process = await one.start("(id -u; id -g; pwd) > /tmp/who")
                assert (await process.wait()).exit_code == 0
                found.append((await one.shell("cat /tmp/who")).output.split())
            await asyncio.gather(box.destroy(), twin.destroy())
            return found

    return asyncio.run(work())


@pytest.mark.parametrize(
    ("options", "ids", "folder"),
    [
        ({}, (1000, 1000), "/app"),
        ({"user": "image", "workdir": "image"}, (999, 999), "/srv/code"),
        ({"user": "root"}, (0, 0), "/app"),
        ({"user": "4321:12", "workdir": "/var"}, (4321, 12), "/var"),
        ({"user": "nobody", "writable_root": True}, (65534, 65534), "/app"),
    ],
)
def test_user_and_folder_are_chosen_cold_warm_and_in_a_clone(
    chosen: str, options: dict[str, Any], ids: tuple[int, int], folder: str
) -> None:
    with atoll.create_sandbox(backend="native", image=chosen, **options) as box:
        assert box.execute(WHO).value == (*ids, folder)
        assert box.shell("id -u; id -g; pwd").output.split() == [*map(str, ids), folder]
        assert box.start("(id -u; id -g; pwd) > /tmp/who").wait().exit_code == 0
        assert box.shell("cat /tmp/who").output.split() == [*map(str, ids), folder]
    seen = [(*ids, folder), [*map(str, ids), folder]]
    assert _warm(SandboxConfig(image=chosen, **options), WHO) == seen * 2


def test_modules_of_the_images_folder_are_imported(chosen: str) -> None:
    with atoll.create_sandbox(backend="native", image=chosen, workdir="image") as box:
        assert box.execute("import answer; answer.value").value == 42


CHANGE = """
import os
open('/srv/new', 'w').close()
os.chown('/srv/new', 999, 999); os.setgroups([1, 2]); os.chmod('/srv/new', 0o4755)
os.stat('/srv/new').st_uid, os.stat('/srv/new').st_mode & 0o7777
"""


def test_root_pretends_owners_where_all_it_writes_is_its_own(chosen: str) -> None:
    options = {"image": chosen, "user": "root", "writable_root": True}
    with atoll.create_sandbox(backend="native", **options) as box:
        assert box.execute(CHANGE).value == (0, 0o4755)
    assert _warm(SandboxConfig(**options), CHANGE)[::2] == [(0, 0o4755)] * 2


def test_root_does_not_pretend_with_a_folder_of_the_host(chosen: str, tmp_path: Path) -> None:
    options = {"image": chosen, "user": "root", "writable_root": True, "workspace": tmp_path}
    with atoll.create_sandbox(backend="native", **options) as box:
        assert box.execute(CHANGE).error_type == "PermissionError"
        assert box.execute("open('f', 'w').close(); os.chmod('f', 0o4755)").error_type is not None


def test_capabilities_are_none_for_any_user(chosen: str) -> None:
    options = {"image": chosen, "user": "root", "writable_root": True}
    look = "open('/proc/self/status').read().split('CapEff:')[1].split()[0]"
    assert _warm(SandboxConfig(**options), look)[::2] == ["0" * 16] * 2


@pytest.mark.parametrize("backend", ["native", "daemon"], indirect=True)
def test_entry_point_runs_beside_the_cells(chosen: str, backend: str) -> None:
    options = {"image": chosen, "entrypoint": True, "user": "image", "workdir": "image"}
    with atoll.create_sandbox(backend=backend, **options) as box:
        (process,) = box.processes()
        process.wait()
        assert box.shell("cat /tmp/ran").output == "first second hello 999\n/srv/code\n"


@pytest.mark.parametrize("user", ["no-such", "worker:none", "4294967295", "-1"])
def test_users_that_the_image_does_not_have_are_refused(chosen: str, user: str) -> None:
    with (
        pytest.raises(ConfigError, match="has no user"),
        atoll.create_sandbox(backend="native", image=chosen, user=user),
    ):
        pass


def test_folder_that_the_image_does_not_have_is_refused_or_made(chosen: str) -> None:
    with (
        pytest.raises(SandboxStartError, match="is not a folder of the image"),
        atoll.create_sandbox(backend="native", image=chosen, workdir="/srv/none"),
    ):
        pass
    options = {"image": chosen, "workdir": "/srv/none", "writable_root": True}
    with atoll.create_sandbox(backend="native", **options) as box:
        assert box.execute("import os; os.getcwd()").value == "/srv/none"


def test_options_of_an_image_need_one() -> None:
    for options in ({"user": "root"}, {"workdir": "image"}, {"entrypoint": True}):
        with pytest.raises(ConfigError, match="is about an image: name one with image="):
            SandboxConfig(**options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="absolute path or 'image'"):
        SandboxConfig(image="x", workdir="relative")


def test_a_link_in_an_image_names_no_users_of_the_host(make_image: Any) -> None:
    def fill(top: Path) -> None:
        (top / "etc").mkdir()
        (top / "etc/passwd").symlink_to("/etc/passwd")

    with (
        pytest.raises(ConfigError, match="no 'daemon' in its /etc/passwd"),
        atoll.create_sandbox(backend="native", image=make_image(fill), user="daemon"),
    ):
        pass


def test_exec_uses_what_the_image_says_if_asked(chosen: str, tmp_path: Path) -> None:
    atoll_exec = [sys.executable, "-m", "atoll", "exec", "--image", chosen]

    def run(*words: str) -> str:
        done = subprocess.run(
            [*atoll_exec, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("sh", "-c", "id -u; pwd") == f"1000\n{tmp_path}\n"
    chosen_options = ("--user", "image", "--workdir", "image")
    assert run(*chosen_options, "sh", "-c", "id -u; pwd") == "999\n/srv/code\n"
    assert run("--entrypoint") == ""
    assert run("--user", "0", "id", "-u") == "0\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="all tests run as an ordinary user already")
def test_an_ordinary_user_chooses_too(chosen: str) -> None:
    shared = Path(tempfile.mkdtemp(prefix="atoll-user-"))
    try:
        shared.chmod(0o755)
        (shared / "cache").mkdir()
        os.chown(shared / "cache", USER, USER)
        shutil.copytree(chosen.removeprefix("oci:"), shared / "image")
        command = (python_for_user(), "-c", AS_USER, f"oci:{shared}/image")
        done = run_as_user(*command, ATOLL_CACHE=str(shared / "cache"), timeout=120)
        assert (done.stdout, done.stderr) == ("['0']\nNone\n['999', '/srv/code']\n", "")
    finally:
        shutil.rmtree(shared)


@pytest.mark.parametrize("backend", ["gvisor"], indirect=True)
def test_gvisor_changes_its_own_copy_of_an_image(chosen: str, backend: str) -> None:
    for _ in range(2):
        with atoll.create_sandbox(backend=backend, image=chosen, writable_root=True) as box:
            assert box.execute("import os; os.listdir('/srv')").value == ["code"]
            assert box.shell("touch /srv/new && rm -r /srv/code").exit_code == 0
            assert box.execute("os.listdir('/srv')").value == ["new"]
            box.execute("open('/srv/large', 'wb').write(bytes(300 << 20))")
            assert box.execute("os.path.getsize('/srv/large') < 300 << 20").value is True


@pytest.mark.parametrize("backend", ["gvisor"], indirect=True)
def test_gvisor_starts_in_the_images_folder_and_refuses_its_users(
    chosen: str, backend: str
) -> None:
    with atoll.create_sandbox(backend=backend, image=chosen, workdir="image") as box:
        assert box.execute("import os; os.getcwd()").value == "/srv/code"
        assert box.shell("pwd").output == "/srv/code\n"
    for options in ({"user": "image"}, {"user": "root"}):
        with (
            pytest.raises(UnsupportedError, match=r"'gvisor'.*user"),
            atoll.create_sandbox(backend=backend, image=chosen, **options),
        ):
            pass
