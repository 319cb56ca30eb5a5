"""Where Pyodide comes from: index_url, with a loopback server in place of the CDN."""

from __future__ import annotations

import functools
import http.server
import threading
from pathlib import Path

import pytest

import atoll
from atoll.backends.pyodide import distribution, index

pytestmark = pytest.mark.spec("R0.15")


class Server:
    """Serves a folder over loopback, and remembers what it was asked for."""

    def __init__(self, folder):
        asked = self.asked = []

        class Handler(http.server.SimpleHTTPRequestHandler):
            def log_message(self, *_):
                asked.append(self.path)

        handler = functools.partial(Handler, directory=str(folder))
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def serve():
    opened = []

    def make(folder):
        opened.append(Server(folder))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.fixture
def package():
    """The folder of a real distribution."""
    return distribution.setup().folder


@pytest.fixture
def empty_cache(package, tmp_path, monkeypatch):
    """A cache in which nothing is installed."""
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.long
def test_a_sandbox_runs_what_a_url_gives(serve, package, empty_cache):
    server = serve(package)
    with atoll.create_sandbox(backend="pyodide", index_url=server.url) as box:
        assert box.execute("import sys; sys.platform").value == "emscripten"
    assert sorted(server.asked) == sorted(f"/{name}" for name in distribution.FILES)


def test_a_string_is_used_as_is_and_fetched_once(serve, package, empty_cache):
    server = serve(package)
    first = index.find(server.url)
    asked = len(server.asked)
    assert index.find(server.url) == first
    assert len(server.asked) == asked == len(distribution.FILES)
    assert Path(first.folder).is_relative_to(empty_cache)


def test_a_string_that_fails_is_not_replaced_by_anything(serve, tmp_path, empty_cache):
    (tmp_path / "nothing").mkdir()
    server = serve(tmp_path / "nothing")
    with pytest.raises(atoll.BackendUnavailableError, match="404"):
        atoll.create_sandbox(backend="pyodide", index_url=server.url)


def test_of_a_list_only_the_first_is_asked_while_it_works(serve, package, empty_cache):
    first, second = serve(package), serve(package)
    index.find((first.url, second.url))
    assert first.asked
    assert not second.asked


def test_the_next_of_a_list_is_asked_when_one_fails(serve, package, tmp_path, empty_cache):
    (tmp_path / "nothing").mkdir()
    broken, good = serve(tmp_path / "nothing"), serve(package)
    found = index.find(["http://127.0.0.1:1/", broken.url, good.url])
    assert broken.asked
    assert (found.folder / "pyodide.asm.wasm").read_bytes() == (
        package / "pyodide.asm.wasm"
    ).read_bytes()


def test_half_a_download_is_never_kept(serve, package, tmp_path, empty_cache):
    half = tmp_path / "half"
    half.mkdir()
    (half / "pyodide.mjs").write_bytes((package / "pyodide.mjs").read_bytes())
    with pytest.raises(atoll.BackendUnavailableError):
        index.find(serve(half).url)
    left = [path.name for path in (empty_cache / "pyodide").iterdir()]
    assert not [name for name in left if not name.endswith(".lock")]


def test_unset_means_what_is_installed(serve, package, tmp_path, monkeypatch):
    server = serve(tmp_path)
    monkeypatch.setattr(index, "CDN_URL", server.url)
    assert index.find(None).folder == package
    assert not server.asked


def test_unset_and_nothing_installed_means_the_cdn(serve, package, empty_cache, monkeypatch):
    assert index.CDN_URL.startswith("https://cdn.jsdelivr.net/")
    server = serve(package)
    monkeypatch.setattr(index, "CDN_URL", server.url)
    monkeypatch.setattr(distribution, "setup", lambda: pytest.fail("it was to be the CDN"))
    found = index.find(None)
    assert len(server.asked) == len(distribution.FILES)
    assert found.folder.parent == empty_cache / "pyodide"
    assert index.find(None) == found
    assert len(server.asked) == len(distribution.FILES), "now it is installed"


def test_other_bytes_than_the_pinned_ones_are_not_taken_from_the_cdn(
    serve, package, tmp_path, empty_cache, monkeypatch
):
    forged = tmp_path / "forged"
    forged.mkdir()
    for name in distribution.FILES:
        (forged / name).write_bytes((package / name).read_bytes() + b" ")
    monkeypatch.setattr(index, "CDN_URL", serve(forged).url)
    fallback = distribution.Distribution(package, "npm")
    monkeypatch.setattr(distribution, "setup", lambda: fallback)
    assert index.find(None) is fallback
    assert distribution.installed() is None


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_a_folder_will_do_too(package, prefix):
    assert index.find(f"{prefix}{package}").folder == package


@pytest.mark.parametrize("bad", ["", [], [""], [5], 7, ("a", None)])
def test_what_is_no_url_is_refused(bad):
    with pytest.raises((atoll.ConfigError, TypeError)):
        atoll.SandboxConfig(index_url=bad)


def test_another_scheme_is_refused():
    with pytest.raises(atoll.BackendUnavailableError, match="an address that begins with ftp:"):
        index.find("ftp://127.0.0.1/")


def test_a_hostile_pyodide_is_imaged_in_a_jail_without_any_permission(package, tmp_path):
    """It is run to be imaged before any guest is: there, too, it must find nothing of the host."""
    tmp_path.chmod(0o755)
    for name in distribution.FILES:
        (tmp_path / name).write_bytes((package / name).read_bytes())
    own = [f"file://{tmp_path}/pyodide.mjs", "file:///opt/atoll/pyodide/pyodide.mjs"]
    (tmp_path / "pyodide.mjs").write_text(
        f"const seen = {own}.map((url) => fetch(url).then((one) => one.status, (no) => no.name));\n"
        "const said = await Promise.all(seen);\n"
        "export function loadPyodide() { throw new Error(`seen ${said}`); }\n"
    )
    with pytest.raises(atoll.BackendUnavailableError) as caught:
        atoll.create_sandbox(backend="pyodide", index_url=str(tmp_path))
    assert "seen NotCapable,NotCapable" in str(caught.value)
    assert "file:///opt/atoll/js/python.mjs" in str(caught.value)
