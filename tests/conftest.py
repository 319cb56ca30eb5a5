"""Shared by all tests: backends, sandboxes that are always destroyed, capabilities asked for."""

from __future__ import annotations

import dataclasses
import fcntl
import gc
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matrix
import pytest
import usable
import variants
from sharing import SHARED, TIMEOUT_MS, shared_boxes

import atoll
from atoll.backends import registry
from atoll.backends.gvisor import sandbox as gvisor
from atoll.backends.pyodide import deno, distribution, image
from atoll.backends.pyodide.launch import parked
from atoll.backends.wasm import build
from atoll.daemon import lifecycle
from atoll.daemon.paths import DaemonPaths
from atoll.hosting.limits import DaemonLimits
from atoll.jail.measure import cgroup
from atoll.jail.supervisor.client import supervisor
from atoll.packages.progress import Progress

if TYPE_CHECKING:
    from own_service import OwnService

Open = Callable[..., atoll.SyncSandbox]
OWN_TARGET = ("ray",)
"""Backends with a make target of their own: what they need is large, or takes long to start."""
USUAL = [name for name in registry.names() if name not in OWN_TARGET]
BACKENDS = tuple(os.environ.get("ATOLL_TEST_BACKENDS", ",".join(USUAL)).split(","))
"""The backends to test: the usual ones, unless the environment names some (make test-fleet)."""
CASES = (*BACKENDS, *(case for case in variants.IN_IMAGE if variants.backend_of(case) in BACKENDS))
IMAGE_FOLDERS = ("contract", "escape")
"""The tests that run with an image as root too; others open sandboxes in ways of their own."""
ROOT = Path(__file__).resolve().parents[1]
TOOLS_LEAVE = {".pytest_cache", ".mypy_cache", ".ruff_cache", "__pycache__"}
"""What pytest, and checks that run beside it, put at the root of the repository."""
PATIENCE_SECONDS = 30
"""What the end of a process may take on a machine full of tests."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--matrix",
        choices=("sample", "all"),
        default="sample",
        help="of what is tested in several places (backends, users), the same sample each time "
        "in all but the first of them (the default), or all of it everywhere",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*capabilities): what a backend must be able to do")
    os.environ.setdefault("ATOLL_CACHE", os.path.join(sys.prefix, "cache"))
    _pass_on_no_ignored_signals()
    if not hasattr(config, "workerinput"):  # once, before any test: it takes a minute
        with ThreadPoolExecutor() as threads:
            wanted = {name: make for name, make in _BUILDS.items() if name in BACKENDS}
            made = {name: threads.submit(make) for name, make in wanted.items()}
        for name, one in made.items():
            if isinstance(failure := one.exception(), Exception):
                os.environ[usable.BROKEN + name] = f"{type(failure).__name__}: {failure}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test at once whose backend could not be built or downloaded."""
    folder = item.path.parent.name
    name = matrix.backend_of(item) or (folder if folder in _BUILDS else "")
    if name and usable.BROKEN + name in os.environ:
        reason = "it could not be built or downloaded; the end of the report says why"
        pytest.fail(f"no backend {name}: {reason}", pytrace=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say once why a backend could not be built or downloaded."""
    for name in _BUILDS:
        if reason := os.environ.get(usable.BROKEN + name):
            terminalreporter.section(f"the backend {name} could not be built or downloaded")
            terminalreporter.write_line(reason)


@pytest.hookimpl(optionalhook=True)  # there is none in a run without xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadgroup`, hand out the groups of matrix.group_of in the order of FIRST."""
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return matrix.group_of(nodeid)

    config.option.loadscopereorder = False
    return Groups(config, log)


def _build_component() -> None:
    build.ensure(None, Progress("the backend wasm"))


def _make_image() -> None:
    image.find(distribution.setup(), deno.find())


_BUILDS = {"wasm": _build_component, "pyodide": _make_image}


def _pass_on_no_ignored_signals() -> None:
    """A test run in the background ignores Ctrl-C, one by nohup SIGHUP, and so would what it starts.

    What a process handles, the programs that it starts do not.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[object]:
    """Have one test process rewrite the assertions of a file: the others wait, and read what it wrote."""
    with ExitStack() as stack:
        if isinstance(collector, pytest.Module) and hasattr(collector.config, "workerinput"):
            file = stack.enter_context(collector.path.open("rb"))
            fcntl.flock(file, fcntl.LOCK_EX)
            stack.callback(fcntl.flock, file, fcntl.LOCK_UN)
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Spare the garbage collector thousands of tests: none of them is ever garbage."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what a backend cannot do and what a sample does not need; long tests come first."""
    chosen = [item for item in items if _is_able(item)]
    if config.getoption("matrix") == "sample":
        chosen = matrix.sample(chosen)
    kept = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = sorted(chosen, key=matrix.order)


def _is_able(item: pytest.Item) -> bool:
    """Whether its backend declares what the test needs; test_capabilities pins who declares what."""
    if matrix.backend_of(item) in variants.IN_IMAGE and item.path.parent.name not in IMAGE_FOLDERS:
        return False
    needed = matrix.capabilities_of(item)
    backend = variants.backend_of(
        matrix.backend_of(item)
    )  # none for a test that starts none: it needs nothing
    return not needed or not backend or needed <= registry.load(backend).capabilities


@pytest.fixture(autouse=True, scope="session")
def own_temporary_folder() -> Iterator[None]:
    """Temporary files of this test process, and of its daemon, lie apart from those of others."""
    with tempfile.TemporaryDirectory(prefix="atoll-test-") as folder:
        os.chmod(folder, 0o755)  # tests that act as another user look in
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TMPDIR", folder)
            patch.setattr(tempfile, "tempdir", folder)
            yield


@pytest.fixture(autouse=True, scope="session")
def nothing_is_left_in_the_repository() -> Iterator[None]:
    """Tests write to folders of their own: nothing new lies at the root of the repository."""
    before = set(os.listdir(ROOT))
    yield
    left = set(os.listdir(ROOT)) - before - TOOLS_LEAVE
    assert not left, f"left at the root of the repository: {sorted(left)}"


@pytest.fixture(autouse=True, scope="session")
def key_of_the_tests() -> Iterator[None]:
    """States are signed with a key of the tests' own: nothing is put into anybody's home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATOLL_STATE_KEY", "a key for the tests alone")
        yield


@pytest.fixture(autouse=True, scope="session")
def no_deno_is_left() -> Iterator[None]:
    """The one that tests share and the one that waits end before the test process does."""
    with pytest.MonkeyPatch.context() as patch:  # its own tests let a container wait
        patch.setattr(gvisor.parked, "most", 0)
        yield
    shared_boxes.close()
    parked.close()


class OwnDaemon:
    """A daemon of this test process alone, started when the first test needs it."""

    def __init__(self, folder: str) -> None:
        self.place = DaemonPaths(Path(folder) / "own.sock")
        self.pid: int | None = None
        self.before: tuple[set[str], int] | None = None
        """Its jails and guests when the running test began to use it; None if it does not.

        To ask a daemon costs more than most tests: it is asked for those that use it."""

    def start(self) -> Path:
        if self.pid is None:
            self.pid = lifecycle.start(self.place, DaemonLimits())
        if self.before is None:
            self.before = self.jails(), _in_use(self)
        return self.place.socket

    def jails(self) -> set[str]:
        return _jails({jail for one in _children(self.pid) for jail in _children(one)})

    def stop(self) -> None:
        lifecycle.stop(self.place)


@pytest.fixture(scope="session")
def own_daemon() -> Iterator[OwnDaemon]:
    """The daemon that the `daemon` backend is tested with; nothing of it is left at the end."""
    with tempfile.TemporaryDirectory(prefix="atoll-test-") as folder:
        daemon = OwnDaemon(folder)
        yield daemon
        daemon.stop()


@pytest.fixture(scope="session")
def own_service() -> Iterator[OwnService]:
    """The service that the `remote` backend is tested with, started when a test needs it."""
    from own_service import OwnService  # its server takes long to import

    with tempfile.TemporaryDirectory(prefix="atoll-test-") as folder:
        service = OwnService(Path(folder))
        yield service
        service.stop()


@pytest.fixture(scope="session")
def own_fleet() -> dict[str, str]:
    """What leads to the fleet that all processes of `make test-fleet` share."""
    found = {name: os.environ.get(name, "") for name in ("ATOLL_FLEET", "ATOLL_FLEET_FOLDER")}
    if not all(found.values()):
        pytest.skip("no fleet runs for the tests: type make test-fleet")
    return found


@pytest.fixture(autouse=True)
def no_foreign_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test meets the daemon or the service of whoever runs it, nor starts one of its own."""
    monkeypatch.setenv("ATOLL_DAEMON_SOCKET", "/proc/none/daemon.sock")
    for name in ("ATOLL_BACKEND", "ATOLL_URL", "ATOLL_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def nothing_is_left(own_daemon: OwnDaemon) -> Iterator[None]:
    """After every test, no jail of ours is left: whoever opens a sandbox destroys it."""
    own_daemon.before = None
    before = _children(supervisor.pid)
    shared = shared_boxes.count("native")
    yield
    end = time.monotonic() + PATIENCE_SECONDS
    shared = max(0, shared_boxes.count("native") - shared)
    if not _children(supervisor.pid) <= before:  # else nothing is new: most tests start nothing
        _require_ended(before, shared, end)
    if own_daemon.before is not None:
        _require_settled(own_daemon, *own_daemon.before, end)


def _require_ended(before: set[str], shared: int, end: float) -> None:
    """Wait until of this process no more is left than tests share, until `end` at the latest."""
    while len(left := _jails(_children(supervisor.pid)) - before) > shared:
        if time.monotonic() > end:
            break
        time.sleep(0.02)
    assert len(left) <= shared, f"jails left behind: {left}"
    while (left_denos := _denos_left()) > 0 and time.monotonic() < end:
        time.sleep(0.02)
    assert left_denos <= 0, f"{left_denos} processes of Deno left behind"
    while (containers := _containers_left()) > 0 and time.monotonic() < end:
        time.sleep(0.02)
    assert containers <= 0, f"{containers} containers of gVisor left behind"


def _require_settled(daemon: OwnDaemon, before: set[str], in_use: int, end: float) -> None:
    """Wait until nothing of a test is left in the daemon, until `end` at the latest."""
    while (left := daemon.jails() - before) and time.monotonic() < end:
        time.sleep(0.02)
    assert not left, f"jails of the daemon left behind: {left}"
    while (now := _in_use(daemon)) > in_use and time.monotonic() < end:
        time.sleep(0.05)
    assert now <= in_use, f"{now - in_use} guests of the daemon's pool left behind"


def _jails(children: set[str]) -> set[str]:
    """Those of a supervisor's children that are jails, not zygote hosts, Deno or gVisor."""
    others = _zygote_hosts(children) | _denos(children) | _containers(children)
    return children - others - _network_helpers(children)


def _network_helpers(pids: set[str]) -> set[str]:
    """Those that serve the ports of a sandbox: in its network, and in no other namespace of it."""
    return {pid for pid in pids if _spaces(pid, "net", "pid") == [False, True]}


def _spaces(pid: str, *kinds: str) -> list[bool | None]:
    """Whether a process is in the same namespaces as this one; None if it is gone."""
    try:
        return [
            os.readlink(f"/proc/{pid}/ns/{kind}") == os.readlink(f"/proc/self/ns/{kind}")
            for kind in kinds
        ]
    except OSError:
        return [None]


def _in_use(daemon: OwnDaemon) -> int:
    """The guests of the daemon's zygotes that do not just wait."""
    if daemon.pid is None:
        return 0
    supervisors = _children(daemon.pid)
    zygote_hosts = _zygote_hosts({jail for one in supervisors for jail in _children(one)})
    below = {child for zygote_host in zygote_hosts for child in _children(zygote_host)}
    guests = sum(len(_children(pid)) for pid in below if _runs(pid, b"atoll.jail.zygote.main"))
    try:
        facts = lifecycle.status(daemon.place)
    except atoll.AtollError:  # a test pretends to be somebody else
        return 0
    return guests - sum(tier["parked"] for tier in facts["pool"].values()) if facts else 0


def _denos_left() -> int:
    """How many run besides the one that waits and those that tests share; one may be coming up.

    They are counted from nothing, not from what ran before the test: one that was coming up then
    would be taken for one that the test has left."""
    found = len(_denos(_children(supervisor.pid)))
    return found - parked.count - shared_boxes.count("pyodide")


def _containers_left() -> int:
    """How many containers of gVisor run besides the one that waits and those that tests share."""
    found = len(_containers(_children(supervisor.pid)))
    return found - gvisor.parked.count - shared_boxes.count("gvisor")


def _containers(pids: set[str]) -> set[str]:
    return {pid for pid in pids if any(_runs(one, b"/runsc\0") for one in {pid, *_children(pid)})}


def _denos(pids: set[str]) -> set[str]:
    return {pid for pid in pids if any(_runs(one, b"driver.mjs") for one in {pid, *_children(pid)})}


def _zygote_hosts(pids: set[str]) -> set[str]:
    return {
        pid
        for pid in pids
        if any(_runs(child, b"atoll.jail.zygote.main") for child in _children(pid))
    }


def _runs(pid: str, name: bytes) -> bool:
    try:
        return name in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _children(pid: str | int | None) -> set[str]:
    try:
        return set(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    except OSError:
        return set()


@pytest.fixture(params=CASES)
def backend(
    request: pytest.FixtureRequest, own_daemon: OwnDaemon, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Every registered backend in turn, but for those that lack what a test needs."""
    name = variants.backend_of(request.param)
    if name == "daemon":
        monkeypatch.setenv("ATOLL_DAEMON_SOCKET", str(own_daemon.start()))
    if name == "remote":
        url, key = request.getfixturevalue("own_service").start()
        monkeypatch.setenv("ATOLL_URL", url)
        monkeypatch.setenv("ATOLL_API_KEY", key)
    if name == "ray":
        for variable, value in request.getfixturevalue("own_fleet").items():
            monkeypatch.setenv(variable, value)
    usable.require(name)
    with variants.opened_in_image(request.param):
        yield name


@pytest.fixture
def counted_cpu(backend: str) -> None:
    """For tests of a CPU limit: a jail without control groups refuses one (unit/test_registry)."""
    if backend in ("native", "gvisor", "daemon", "remote", "ray") and cgroup.find() is None:
        pytest.skip("no control group counts CPU time here, so such a limit is refused")


@pytest.fixture
def open_box(backend: str) -> Iterator[Open]:
    """Opens sandboxes of the backend, and destroys them at the test's end."""
    opened: list[atoll.SyncSandbox] = []

    def open_one(**options: Any) -> atoll.SyncSandbox:
        options.setdefault("timeout_ms", TIMEOUT_MS)
        if backend == "wasm":  # here time is limited; what fuel does is shown elsewhere
            policy = options.get("policy", atoll.ExecutionPolicy())
            options["policy"] = dataclasses.replace(policy, fuel_budget=None)
        box = atoll.create_sandbox(backend=backend, **options)
        opened.append(box)
        return box

    yield open_one
    for box in opened:
        box.destroy()


@pytest.fixture
def box(backend: str, open_box: Open) -> Iterator[atoll.SyncSandbox]:
    """One sandbox of the backend, with defaults; where starts are slow, one that tests share."""
    if backend not in SHARED:
        yield open_box()
        return
    with shared_boxes.lend(backend) as shared:
        yield shared
