"""Rows about container images: pulled from a registry on this machine and unpacked, by CPU time."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.rows import Arms, Goal, UnavailableError, row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.rows import Scale

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
