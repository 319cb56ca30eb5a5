"""Environments: resolved once, built once, kept as a whole or not at all, evicted by size."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys

import pytest

import atoll
from atoll.cache import scratch
from atoll.errors import PackageError
from atoll.jail.walls.remove import remove_tree
from atoll.packages import environment, store
from atoll.packages.download import explain
from atoll.packages.environment import ensure

BUILD = """
import json, logging, sys
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
from atoll.launch import interpreter
from atoll.packages.environment import ensure
from atoll.packages.target import for_interpreter
print(ensure(sys.argv[1:], for_interpreter(interpreter.resolve(None))).environment.hash, flush=True)
"""


def build(*names: str) -> subprocess.Popen[str]:
    """Build in another process, which prints the steps."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", BUILD, *names], text=True, **pipes)


def test_a_guest_imports_what_was_named_and_cannot_change_it(cache, index):
    index.wheel("tiny", needs=("needed>=1",), more={"tiny/data.txt": "kept"})
    entry = "[console_scripts]\ntiny-command = needed:main\n"
    index.wheel(
        "needed",
        "1.5",
        init="def main(): print('ran')\n",
        more={"needed-1.5.dist-info/entry_points.txt": entry},
    )
    with atoll.create_sandbox(backend="native", packages=["tiny"]) as box:
        result = box.execute(
            "import importlib.metadata as facts, needed, sys, tiny\n"
            "text = open(tiny.__path__[0] + '/data.txt').read()\n"
            "[tiny.version, text, tiny.__file__, facts.version('needed'), tiny.__cached__[-4:]]"
        )
        assert result.value == [
            "1.0",
            "kept",
            "/opt/atoll/packages/tiny/__init__.py",
            "1.5",
            ".pyc",
        ]
        assert box.shell("tiny-command && python -c 'import tiny'").output == "ran\n"
        for attempt in ("open('/opt/atoll/packages/tiny/new', 'w')", "open(tiny.__file__, 'a')"):
            assert box.execute(attempt).error_type in ("OSError", "PermissionError")


@pytest.mark.long
def test_what_was_resolved_stays_resolved_until_it_is_refreshed(cache, index, target, monkeypatch):
    index.wheel("tiny", "1.0")
    first = ensure(["tiny"], target)
    first.close()
    index.wheel("tiny", "2.0")
    again = ensure(["Tiny"], target)
    again.close()
    assert again.environment == first.environment
    assert store.remove(first.environment.hash)
    rebuilt = ensure(["tiny"], target)  # from the same wheel, which the record names by its hash
    rebuilt.close()
    assert rebuilt.environment.hash == first.environment.hash
    newer = ensure(["tiny"], target, refresh=True)
    newer.close()
    assert [one.version for one in newer.environment.packages] == ["2.0"]


def test_an_environment_in_use_is_found_without_reading_until_it_is_resolved_anew(
    cache, index, target, without_pip, monkeypatch
):
    path = index.wheel("tiny", "1.0")
    first = ensure(["tiny"], target)
    environment.find(["tiny"], target).close()
    with monkeypatch.context() as patch:
        patch.setattr(store, "read_json", None)
        again = environment.find(["tiny"], target)
    assert again.environment == first.environment
    path.unlink()
    index.wheel("tiny", "2.0")
    newer = ensure(["tiny"], target, refresh=True)
    assert environment.find(["tiny"], target).environment == newer.environment != first.environment
    first.close()
    assert not store.remove(first.environment.hash), "it is held once more"
    again.close()
    assert store.remove(first.environment.hash)


def test_a_wheel_that_changed_since_it_was_resolved_is_refused(cache, index, target):
    index.wheel("tiny")
    hold = ensure(["tiny"], target)
    hold.close()
    assert store.remove(hold.environment.hash)
    index.wheel("tiny", init="import evil\n")
    with pytest.raises(PackageError, match="not the one that was resolved before"):
        ensure(["tiny"], target)


@pytest.mark.long
def test_two_processes_that_build_the_same_build_it_once(cache, index):
    index.wheel("tiny")
    both = [build("tiny") for _ in range(2)]
    said = [one.communicate()[0] for one in both]
    assert [one.returncode for one in both] == [0, 0]
    assert sorted("resolving" in text for text in said) == [False, True]
    assert said[0].split()[-1] == said[1].split()[-1]


def test_a_build_that_is_killed_leaves_nothing_that_is_taken_for_whole(
    cache, index, monkeypatch, target
):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.delenv("PIP_NO_INDEX")
        port = silent.getsockname()[1]
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{port}/simple")
        process = build("tiny")
        connection, _ = silent.accept()  # pip asks, and never hears
        with connection:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            connection.settimeout(20)
            while connection.recv(4096):
                pass  # the downloader has died with the process that started it
    assert [name for name in os.listdir(cache / "building") if not name.endswith(".lock")]
    assert store.everything() == []
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    index.wheel("tiny")
    ensure(["tiny"], target).close()
    assert os.listdir(cache / "building") == []


def test_what_was_not_used_for_longest_is_evicted_but_not_what_is_in_use(
    cache, index, target, without_pip
):
    holds = []
    for number, name in enumerate(("one", "two", "three")):
        path = index.wheel(name)
        hold = ensure([name], target)
        path.unlink()
        os.utime(f"{hold.environment.folder}.lock", (number, number))
        holds.append(hold)
    held, old, new = (one.environment.hash for one in holds)
    holds[1].close()
    holds[2].close()
    assert store.evict(0, spare=new) == [old]
    assert {one.hash for one in store.everything()} == {held, new}
    assert not environment.forget(held)
    holds[0].close()
    assert environment.forget(held)
    assert [one.hash for one in store.everything()] == [new]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_removal_holds_its_lock_only_to_rename(cache, index, target, monkeypatch):
    index.wheel("tiny")
    hold = ensure(["tiny"], target)
    hold.close()
    identity, removed = hold.environment.hash, []

    def remove(folder):
        with (cache / f"{identity}.lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError if it is held
        assert store.hold(identity) is None
        removed.append(folder)
        remove_tree(folder)

    monkeypatch.setattr(scratch, "remove_tree", remove)
    assert store.remove(identity)
    assert len(removed) == 1
    assert not os.path.exists(removed[0])


def test_an_environment_that_is_being_removed_is_not_waited_for(cache, index, target):
    """An event loop asks for it: it is built again in a thread instead."""
    index.wheel("tiny")
    hold = ensure(["tiny"], target)
    hold.close()
    with (cache / f"{hold.environment.hash}.lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert environment.find(["tiny"], target) is None
    again = environment.find(["tiny"], target)
    assert again is not None
    again.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root may mount a small disk")
def test_a_full_disk_is_said_in_words(cache, index):
    index.wheel("tiny", init="x = 1\n" + "#" * 3_000_000)
    cache.parent.mkdir()
    mount = f'mount -t tmpfs -o size=1m none {cache.parent} && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", mount, "sh", sys.executable, "-c", BUILD, "tiny"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "PackageError: packages cannot be installed: the disk" in done.stderr, done.stderr
    assert "is full. Free some, type `atoll env list`" in done.stderr


def test_failures_name_the_package_and_the_next_step(cache, index, target, monkeypatch):
    index.wheel("tiny", "1.0", needs=("lost",))
    index.wheel("other", "2.0")
    cases = {
        "other==9": "the package 'other' cannot be installed: no such version. The newest are 2.0.",
        "tiny": "the package 'lost' cannot be installed: no wheel (needed by tiny) in PIP_FIND_LINKS, "
        "and the index is off (offline). Unset PIP_NO_INDEX or UV_OFFLINE to ask the index.",
    }
    for name, text in cases.items():
        with pytest.raises(PackageError) as caught:
            ensure([name], target)
        assert str(caught.value) == text
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://127.0.0.1:{port}/simple")
    with pytest.raises(
        PackageError, match="the package 'lost' cannot be installed: the index cannot be reached"
    ):
        ensure(["lost"], target)


def test_what_pip_says_is_told_in_words(target):
    conflict = (
        "ERROR: Cannot install a==1 and b==2 because these package versions have conflicting "
        "dependencies.\n\nThe conflict is caused by:\n    a 1 depends on c<2\n    b 2 depends on c>3\n"
    )
    told = str(explain(conflict, target, offline=False))
    assert "a==1 and b==2 need versions that contradict: a 1 depends on c<2; b 2" in told
    python = "Ignored the following versions that require a different python version: 1\n"
    python += "ERROR: No matching distribution found for a"
    assert f"no version is for {target.label}" in str(explain(python, target, offline=False))
    refused = "ERROR: HTTP error 403\n403 Client Error: Forbidden for url: http://127.0.0.1/"
    assert "the index refuses: 403 Client Error: Forbidden" in str(
        explain(refused, target, offline=False)
    )
    broken = (
        "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('<x>: "
    )
    broken += "Failed to establish a new connection: [Errno 111] Connection refused')': /simple/a/"
    told = str(explain(broken, target, offline=False))
    assert "the index cannot be reached: [Errno 111] Connection refused. Check the network" in told
    missing = "ERROR: No matching distribution found for a"
    plain = "WARNING: The repository located at index.test is not a trusted or secure host\n"
    told = str(explain(plain + missing, target, offline=False))
    assert (
        "'a' cannot be installed: the index at index.test is plain http, which pip does not" in told
    )
    place = "WARNING: Location 'nonsense/a/' is ignored: it is either a non-existing path or\n"
    told = str(explain(place + missing, target, offline=False))
    assert "there is no index at 'nonsense', which is neither a URL nor a folder" in told
    trust = "SSLError(SSLCertVerificationError: certificate verify failed)"
    assert "certificate is not trusted" in str(explain(trust, target, offline=False))


def test_settings_pass_and_secrets_do_not(monkeypatch):
    from atoll.packages import index_settings

    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    for name, value in {
        "OPENAI_API_KEY": "secret", "PIP_REQUIREMENT": "/etc/passwd", "PIP_TARGET": "/", "UV_OFFLINE": "1",
        "UV_INDEX": "own=http://127.0.0.1:1/simple http://127.0.0.1:2/simple", "UV_FIND_LINKS": "/a,/b",
        "https_proxy": "http://127.0.0.1:3", "SSL_CERT_FILE": "/c",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    found = index_settings.environment()
    assert not {"OPENAI_API_KEY", "PIP_REQUIREMENT", "PIP_TARGET"} & found.keys()
    assert found["PIP_EXTRA_INDEX_URL"] == "http://127.0.0.1:1/simple http://127.0.0.1:2/simple"
    assert found["PIP_FIND_LINKS"] == "/a /b"
    assert found["https_proxy"] == "http://127.0.0.1:3"
    assert index_settings.is_offline(found)
    assert {"/a", "/b", "/c"} <= set(index_settings.readable_paths(found))


def test_a_named_environment_stands_for_its_packages(cache, index, target):
    index.wheel("tiny")
    index.wheel("other")
    environment.set_name("data", ["tiny"])
    assert environment.expand(["@data", "other"]) == ("other", "tiny")
    with pytest.raises(atoll.ConfigError, match="no environment is named 'lost': there are data"):
        ensure(["@lost"], target)
