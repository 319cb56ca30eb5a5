"""A store of the tests' own, layouts, and a real registry on this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time

import pytest
from made_images import Layout, file
from odd_registry import OddRegistry

from atoll.jail.walls.remove import remove_tree


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty store; what the test has left in it is removed, however deep it is."""
    folder = tmp_path / "cache"
    folder.mkdir()
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "config.json").write_text("{}")
    monkeypatch.setenv("ATOLL_CACHE", str(folder))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.delenv("REGISTRY_AUTH_FILE", raising=False)
    yield folder
    remove_tree(str(folder))


@pytest.fixture
def layout(tmp_path):
    return Layout(tmp_path / "layout")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def serve_registry(folder, extra=""):
    """Run docker-registry on a free port; yield HOST:PORT."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("docker-registry is not installed: apt-get install docker-registry")
    host = f"127.0.0.1:{free_port()}"
    settings = folder / "registry.yml"
    settings.write_text(
        "version: 0.1\n"
        f"storage: {{filesystem: {{rootdirectory: {folder}/data}}}}\n"
        f"http: {{addr: '{host}'{extra}\n"
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve", str(settings)], stdout=log, stderr=log)
    try:
        name, port = host.split(":")
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError), socket.create_connection((name, int(port)), 1):
                break
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield host
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """A registry without authentication."""
    with serve_registry(tmp_path_factory.mktemp("registry"), "}") as host:
        yield host


@pytest.fixture(scope="module")
def private_registry(tmp_path_factory):
    """A registry that lets in team:secret only."""
    if shutil.which("htpasswd") is None:
        pytest.skip("htpasswd is not installed: apt-get install apache2-utils")
    folder = tmp_path_factory.mktemp("private")
    made = subprocess.run(
        ["htpasswd", "-Bbn", "team", "secret"], capture_output=True, text=True, check=True
    )
    (folder / "users").write_text(made.stdout)
    access = f"}}\nauth: {{htpasswd: {{realm: here, path: {folder}/users}}}}"
    with serve_registry(folder, access) as host:
        yield host


@pytest.fixture
def odd(cache, layout):
    layout.image([file("a", os.urandom(20_000))])
    return OddRegistry(layout)
