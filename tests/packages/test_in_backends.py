"""Packages by name in every backend that has them, in a pool's zygotes, and over the wire."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import atoll
from atoll.config import SandboxConfig
from atoll.daemon import lifecycle
from atoll.daemon.paths import DaemonPaths
from atoll.errors import PackageError, UnsupportedError
from atoll.hosting.limits import DaemonLimits
from atoll.hosting.pool import Pool
from atoll.hosting.pool import pool as pools
from atoll.jail.walls.remove import remove_tree
from atoll.packages import store

PTH = "import sys; sys.ran_pth = True\n"
SEEN = (
    "import sys; before = 'tiny' in sys.modules; import tiny; [before, tiny.version, sys.ran_pth]"
)

LOADED = """
import sys
import atoll.cli.commands.run, atoll.backends.daemon.sandbox, atoll.backends.native.sandbox
print(*{"atoll.packages.build", "configparser", "tarfile", "tomllib", "zipfile"} & set(sys.modules))
"""


def test_a_sandbox_without_packages_does_not_load_what_builds_them():
    command = [sys.executable, "-c", LOADED]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


async def test_a_pool_has_zygotes_of_its_own_for_an_environment(cache, index, without_pip, target):
    index.wheel("tiny", more={"tiny.pth": PTH})
    async with Pool() as pool:
        for preload, is_imported in (("bare", False), ("packages", True)):
            box = await pool.open(SandboxConfig(packages=["tiny"], preload=preload))
            assert (await box.execute(SEEN)).value == [is_imported, "1.0", True]
            assert box.cold_start is None
            twin = await box.fork()
            await box.destroy()
            assert (await twin.execute("tiny.version")).value == "1.0"
            (kept,) = store.everything()
            assert not store.remove(kept.hash), "it is in use"
            await twin.destroy()
        plain = await pool.open(SandboxConfig(preload="bare"))
        assert (await plain.execute("import tiny")).error_type == "ModuleNotFoundError"
        await plain.destroy()
        with pytest.raises(atoll.ConfigError, match="no tier 'packages' to preload"):
            await pool.open(SandboxConfig(preload="packages"))
    assert store.remove(kept.hash)


async def test_an_environment_that_was_made_again_elsewhere_is_used_from_there(
    cache, index, without_pip, tmp_path, monkeypatch
):
    index.wheel("tiny", more={"tiny.pth": PTH})
    async with Pool() as pool:
        for name, preload in (("first", "bare"), ("second", "packages")):
            monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / name))
            (tmp_path / name).mkdir()
            box = await pool.open(SandboxConfig(packages=["tiny"], preload=preload))
            assert (await box.execute(SEEN)).value == [preload == "packages", "1.0", True]
            await box.destroy()
            remove_tree(str(tmp_path / name))  # folders of environments are read-only


async def test_a_library_that_starts_threads_is_not_preloaded(cache, index, without_pip):
    start = (
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    index.wheel("tiny", init=f"{start}version = '1.0'\n", more={"tiny.pth": PTH})
    async with Pool() as pool:
        box = await pool.open(SandboxConfig(packages=["tiny"], preload="packages"))
        assert (await box.execute(SEEN)).value == [False, "1.0", True]
        await box.destroy()


async def test_few_environments_are_kept_warm(cache, index, without_pip, monkeypatch):
    monkeypatch.setattr(pools, "MAX_ENVIRONMENTS", 1)
    async with Pool() as pool:
        index.wheel("one")
        first = await pool.open(SandboxConfig(packages=["one"], preload="bare"))
        index.wheel("two")
        second = await pool.open(SandboxConfig(packages=["two"], preload="bare"))
        assert len(pool._environments) == 1
        assert (await first.execute("import one; one.version")).value == "1.0"  # its guest lives on
        assert (await second.execute("import two; two.version")).value == "1.0"
        await first.destroy()
        await second.destroy()


@pytest.fixture
def old_python() -> str:
    """An interpreter that is older than any host's."""
    found = sorted(Path.home().glob(".pyenv/versions/3.[89].*/bin/python"))
    if not found:
        pytest.skip("no older interpreter is here")
    return str(found[0])


def test_an_environment_for_an_older_interpreter(cache, index, old_python):
    index.wheel("tiny", needs=('lost; python_version >= "3.10"',))
    with atoll.create_sandbox(backend="native", python=old_python, packages=["tiny"]) as box:
        assert box.execute(
            "import tiny, sys; [tiny.version, sys.version_info < (3, 10)]"
        ).value == ["1.0", True]


def test_a_backend_without_packages_refuses_them():
    with pytest.raises(UnsupportedError, match="backend 'restricted' cannot have packages by name"):
        atoll.create_sandbox(backend="restricted", min_isolation="guarded", packages=["tiny"])


@pytest.mark.long
@pytest.mark.parametrize("backend", ["wasm", "pyodide"])
def test_backends_in_webassembly_have_packages(backend, tmp_path, index, monkeypatch):
    # The cache is the real one, as its images are dear; the store is not.
    monkeypatch.setattr(store, "cache_folder", lambda: tmp_path / "cache")
    index.wheel("tiny", needs=("needed",))
    index.wheel("needed")
    with atoll.create_sandbox(backend=backend, packages=["tiny"]) as box:
        result = box.execute("import tiny, needed; [tiny.version, needed.version]")
        assert result.value == ["1.0", "1.0"], result
    with pytest.raises(PackageError, match=r"building from source is not possible for Python 3.14"):
        index.source("source")
        atoll.create_sandbox(backend=backend, packages=["source"], allow_source=True)


def test_a_daemon_builds_what_its_clients_name(cache, index, tmp_path, monkeypatch):
    index.wheel("tiny", more={"tiny.pth": PTH})
    place = DaemonPaths(tmp_path / "daemon.sock")
    monkeypatch.setenv("ATOLL_DAEMON_SOCKET", str(place.socket))
    lifecycle.start(place, DaemonLimits(), tier="bare")
    try:
        for preload, is_imported in ((None, False), ("packages", True)):
            with atoll.create_sandbox(backend="daemon", packages=["tiny"], preload=preload) as box:
                result = box.execute(SEEN)
                assert (result.value, result.cold_start) == ([is_imported, "1.0", True], None)
        with pytest.raises(PackageError) as caught:
            atoll.create_sandbox(backend="daemon", packages=["lost"])
        assert caught.value.package == "lost"
    finally:
        lifecycle.stop(place)


@pytest.mark.parametrize("kind", ["http_index", "https_index"])
def test_pip_in_a_guest_installs_into_its_session_through_the_proxy(index, kind, request):
    """https is read by the proxy: pip trusts the sandbox's authority by itself."""
    index.wheel("tiny", needs=("needed",))
    index.wheel("needed")
    served = request.getfixturevalue(kind)
    policy = {"allow": [served.place], "inspect_tls": kind == "https_index", "methods": ["GET"]}
    env = {"PIP_INDEX_URL": served.url}
    with atoll.create_sandbox(backend="native", policy={"env": env}, network=policy) as box:
        result = box.execute("%pip install tiny")
        assert "Successfully installed needed-1.0 tiny-1.0" in result.stdout, result
        assert {one.path for one in result.network.requests} == {
            "/simple/tiny/", "/simple/needed/", "/files/tiny-1.0-py3-none-any.whl",
            "/files/needed-1.0-py3-none-any.whl",
        }  # fmt: skip
        where = box.execute("import tiny; tiny.__file__").value
        assert where == "/home/guest/packages/tiny/__init__.py"
        assert box.execute("%conda install tiny").error_type == "UsageError"


def test_pip_in_a_guest_is_refused_in_words_where_the_policy_lacks_the_index(index, http_index):
    index.wheel("tiny")
    env = {"PIP_INDEX_URL": http_index.url, "PIP_RETRIES": "0"}
    with atoll.create_sandbox(
        backend="native", policy={"env": env}, network=["127.0.0.1:1"]
    ) as box:
        result = box.execute("%pip install tiny")
        words = (
            f"NetworkNotAllowed: this sandbox may reach 127.0.0.1:1; asked for {http_index.place}"
        )
        assert words in result.stderr, result
        assert box.execute("import tiny").error_type == "ModuleNotFoundError"
    assert http_index.asked == []
