"""Rows about container images: pulled and unpacked, by CPU time, and used as roots of guests."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import atoll
from atoll.concurrency.portal import Portal
from atoll.config import SandboxConfig
from atoll.hosting.pool import Pool
from bench.cpu import of_each
from bench.rows import Arms, Goal, UnavailableError, row, timed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.rows import Scale

AT_ONCE = 32
"""Guests whose CPU time is measured together: the kernel counts it in hundredths of a second."""
PROGRAMS = ("docker-registry", "skopeo", "umoci")
COUNTED = """
import ctypes, os, resource, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans are waited for here
code = subprocess.run(["sh", "-ec", sys.argv[1]], stdout=2).returncode
try:
    while True:
        os.wait()
except ChildProcessError:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(used.ru_utime + used.ru_stime)
sys.exit(code)
"""


@row(
    what="pull and unpack an image, CPU of all processes",
    against="skopeo copy + umoci unpack",
    rounds=5,
    goal=Goal(ratio=0.5),
)
def image_pull(_scale: Scale) -> Iterator[Arms]:
    """Pull an image of the standard library's files."""
    if missing := [program for program in PROGRAMS if shutil.which(program) is None]:
        raise UnavailableError(f"not installed: apt-get install {' '.join(missing)}")
    with tempfile.TemporaryDirectory(prefix="atoll-bench-") as name:
        folder = Path(name)
        with _registry(folder) as host:
            _publish(folder, host)
            ours = (
                f"rm -rf {folder}/cache; "
                f"ATOLL_CACHE={folder}/cache {sys.executable} -m atoll image pull {host}/bench:1"
            )
            theirs = (
                f"rm -rf {folder}/pulled {folder}/bundle; "
                f"skopeo copy -q --src-tls-verify=false docker://{host}/bench:1 "
                f"oci:{folder}/pulled:1; umoci unpack --image {folder}/pulled:1 {folder}/bundle"
            )
            yield Arms(ours=lambda: _cpu_seconds(ours), theirs=lambda: _cpu_seconds(theirs))


@row(
    what="CPU of a native start in an image, print('hi'), destroy",
    against="without an image",
    rounds=10,
    unit="CPU-ms",
    goal=Goal(ratio=1.15),
)
def image_start(_scale: Scale) -> Iterator[Arms]:
    """Start cold with the files of this machine as an image."""
    with _own_image() as image:
        _in_sandbox(image=image)
        yield Arms(
            ours=lambda: of_each(lambda: _in_sandbox(image=image)),
            theirs=lambda: of_each(_in_sandbox),
        )


@row(
    what="CPU of a fresh guest of a pool in an image, 1 + 1",
    against="without an image",
    rounds=10,
    unit="CPU-ms",
    goal=Goal(ratio=1.15),
)
def image_pool(_scale: Scale) -> Iterator[Arms]:
    """Take fresh guests of a pool."""
    with _own_image() as image, _pools(image) as (run, _):
        yield Arms(
            ours=lambda: of_each(lambda: run(image), AT_ONCE),
            theirs=lambda: of_each(lambda: run(None), AT_ONCE),
        )


@row(
    what="CPU of a fresh guest that may change its image, 1 + 1",
    against="the image read-only",
    rounds=10,
    unit="CPU-ms",
    goal=Goal(ratio=1.3),
)
def image_writable(_scale: Scale) -> Iterator[Arms]:
    """Take fresh guests of a pool, each with an upper layer of its own."""
    with _own_image() as image, _pools(image) as (run, _):
        yield Arms(
            ours=lambda: of_each(lambda: run(image, writable=True), AT_ONCE),
            theirs=lambda: of_each(lambda: run(image), AT_ONCE),
        )


@row(
    what="fork of a session in an image, and a cell",
    against="without an image",
    rounds=30,
    goal=Goal(ratio=1.15),
)
def image_fork(_scale: Scale) -> Iterator[Arms]:
    """Clone a live session."""
    with _own_image() as image, _pools(image) as (_, fork):
        yield Arms(ours=timed(lambda: fork(image)), theirs=timed(lambda: fork(None)))


@row(
    what="pool: a fresh guest in an image, 1 + 1",
    against="podman run --rm IMAGE python3 -c pass",
    rounds=5,
    goal=Goal(ratio=0.02),
)
def image_podman(_scale: Scale) -> Iterator[Arms]:
    """Take fresh guests of a pool, and start containers of the same image."""
    if shutil.which("podman") is None:
        raise UnavailableError("not installed: apt-get install podman")
    with _own_image() as image, _podman(image) as container, _pools(image) as (run, _):
        yield Arms(ours=timed(lambda: run(image)), theirs=timed(container))


@contextlib.contextmanager
def _own_image() -> Iterator[str]:
    """Yield an image of this machine's own Python and shell, as the tests make it."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    rootfs: Any = import_module("rootfs")

    with tempfile.TemporaryDirectory(prefix="atoll-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "layer").mkdir(mode=0o755)
        rootfs.write_layout(folder / "oci", rootfs.make(folder / "layer"))
        yield f"oci:{folder}/oci"


@contextlib.contextmanager
def _podman(image: str) -> Iterator[Callable[[], None]]:
    """Yield what starts a container of an image and waits for its end."""
    with tempfile.TemporaryDirectory(prefix="atoll-podman-", ignore_cleanup_errors=True) as name:
        own = ["podman", "--root", f"{name}/root", "--runroot", f"{name}/run"]
        own += ["--storage-driver", "vfs", "--cgroup-manager", "cgroupfs"]
        pulled = subprocess.run(
            [*own, "pull", "-q", image], capture_output=True, text=True, check=False
        )
        limits = ["--ulimit=nofile=1000:1000", "--ulimit=nproc=1000:1000"]
        more = ["run", "--rm", "--network=none", *limits, pulled.stdout.strip()]
        tried, words = pulled, own
        for runtime in ([], ["--runtime", "runc"]) if pulled.returncode == 0 else ():
            words = [*own, *runtime, *more, "python3", "-c", "pass"]
            tried = subprocess.run(words, capture_output=True, text=True, check=False)
            if tried.returncode == 0:
                break
        if tried.returncode:
            raise UnavailableError(f"podman cannot run containers here: {tried.stderr[-200:]}")

        def start() -> None:
            subprocess.run(words, check=True)

        yield start
        subprocess.run([*own, "rmi", "-af"], capture_output=True, check=False)


def _in_sandbox(**options: Any) -> None:
    with atoll.create_sandbox(backend="native", **options) as box:
        assert box.execute("print('hi')").stdout == "hi\n"


@contextlib.contextmanager
def _pools(
    image: str,
) -> Iterator[tuple[Callable[..., None], Callable[[str | None], None]]]:
    """Yield what runs a cell in a fresh guest, and what forks a session, in an image or plain."""
    portal, boxes = Portal.shared(), {}
    pool = portal.run(_opened_pool())

    async def run(wanted: str | None, *, writable: bool = False) -> None:
        config = SandboxConfig(image=wanted, writable_root=writable, preload="bare")
        result = await pool.run("1 + 1", config)
        assert (result.value, result.cold_start) == (2, None)

    async def fork(wanted: str | None) -> None:
        if wanted not in boxes:
            boxes[wanted] = await pool.open(SandboxConfig(image=wanted, preload="bare"))
        twin = await boxes[wanted].fork()
        assert (await twin.execute("1 + 1")).value == 2
        await twin.destroy()

    try:
        for wanted in (image, None):
            portal.run(run(wanted))
        yield (
            lambda wanted, **options: portal.run(run(wanted, **options)),
            lambda wanted: portal.run(fork(wanted)),
        )
    finally:
        for box in boxes.values():
            portal.run(box.destroy())
        portal.run(pool.close())


async def _opened_pool() -> Pool:
    return await Pool().__aenter__()


def _cpu_seconds(command: str) -> float:
    """Return the CPU time of a command and of all processes that it leaves."""
    done = subprocess.run(
        [sys.executable, "-c", COUNTED, command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def _publish(folder: Path, host: str) -> None:
    layout, files = f"{folder}/layout", f"{folder}/files"
    skipped = shutil.ignore_patterns("site-packages", "config-*")
    shutil.copytree(sysconfig.get_path("stdlib"), files, ignore=skipped)
    for command in (
        ["umoci", "init", "--layout", layout],
        ["umoci", "new", "--image", f"{layout}:1"],
        ["umoci", "insert", "--image", f"{layout}:1", files, "/usr/lib/python"],
        [
            "skopeo",
            "copy",
            "--dest-tls-verify=false",
            f"oci:{layout}:1",
            f"docker://{host}/bench:1",
        ],
    ):
        subprocess.run(command, check=True, capture_output=True)


@contextlib.contextmanager
def _registry(folder: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = folder / "registry.yml"
    settings.write_text(
        "version: 0.1\n"
        f"storage: {{filesystem: {{rootdirectory: {folder}/data}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}'}}\n"
    )
    process = subprocess.Popen(
        ["docker-registry", "serve", str(settings)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(500):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.02)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
