"""The container image: built from Debian's packages without a registry, run as root and rootless.

It downloads 400 MB of packages, and keeps the base image `localhost/atoll-test-base` for next time.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import atoll

ROOT = Path(__file__).resolve().parents[2]
BASE, IMAGE = "localhost/atoll-test-base", "localhost/atoll-test"
PROGRAMS = ("podman", "buildah", "runc", "debootstrap")
PACKAGES = "python3,python3-venv,ca-certificates"
ALLOWED = ("--security-opt", "seccomp=unconfined", "--security-opt", "unmask=ALL")
"""What docs/operations.md gives the container."""
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make the base image"),
    pytest.mark.skipif(not all(map(shutil.which, PROGRAMS)), reason=f"needs {', '.join(PROGRAMS)}"),
]


def run(*command: str | Path) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-1000:]}{done.stderr[-2000:]}"
    return done.stdout.strip()


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the image; return it as an archive that every user can read."""
    if "ATOLL_TEST_IMAGE" in os.environ:  # one that was built before
        return Path(os.environ["ATOLL_TEST_IMAGE"])
    folder = tmp_path_factory.mktemp("image")
    if subprocess.run(["buildah", "inspect", BASE], capture_output=True, check=False).returncode:
        sys.path.insert(0, str(ROOT / "tools"))
        import sid_root

        root = folder / "root"
        options = ("--variant=minbase", f"--include={PACKAGES}", "bookworm")
        run("debootstrap", *options, root, sid_root.mirror())
        container = run("buildah", "from", "scratch")
        run("buildah", "add", "--quiet", container, root, "/")
        run("buildah", "commit", "--quiet", container, BASE)
        run("buildah", "rm", container)
    certificates = ("--volume", "/etc/ssl:/etc/ssl:ro", "--env")
    certificates += ("PIP_CERT=/etc/ssl/certs/ca-certificates.crt",)
    options = ("--isolation", "chroot", "--build-arg", f"BASE={BASE}", "--format", "docker")
    run("buildah", "bud", *options, *certificates, "-t", IMAGE, ROOT)
    path = folder / "image.tar"
    run("podman", "save", "--quiet", "-o", path, IMAGE)
    for one in (*path.parents[:3], path):
        one.chmod(one.stat().st_mode | 0o055)
    run("podman", "rmi", IMAGE)
    return path


def rootless_user() -> str:
    """Return a user with subordinate ids, or skip the test."""
    names = [line.partition(":")[0] for line in Path("/etc/subuid").read_text().splitlines()]
    known = [entry.pw_name for entry in pwd.getpwall() if entry.pw_uid and entry.pw_name in names]
    if not known:
        pytest.skip("no user of this machine has subordinate ids in /etc/subuid")
    return known[-1]


@pytest.fixture(params=["root", "rootless"])
def podman(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Return the start of a command that runs podman with a storage of its own."""
    tmp_path = Path(tempfile.mkdtemp(prefix="ac-", dir="/tmp"))  # podman wants a short path
    own = ["podman", "--root", str(tmp_path / "storage"), "--runroot", str(tmp_path / "run")]
    own += ["--runtime", "runc", "--cgroup-manager", "cgroupfs", "--storage-driver", "vfs"]
    if request.param == "rootless":
        user = pwd.getpwnam(rootless_user())
        os.chown(tmp_path, user.pw_uid, user.pw_gid)
        switch = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--init-groups"]
        switch += [
            "env",
            "-C",
            str(tmp_path),
            f"HOME={tmp_path}",
            f"TMPDIR={tmp_path}",
            f"XDG_RUNTIME_DIR={tmp_path}",
        ]
        own = [*switch, *own]
    yield own
    shutil.rmtree(tmp_path, ignore_errors=True)


def test_the_image_serves_jailed_sandboxes(podman: list[str], archive: Path) -> None:
    run(*podman, "load", "--quiet", "--input", archive)
    options = ["--ulimit=nofile=1024", "--ulimit=nproc=1024"]  # root may be unable to raise its own
    settings = {"PORT": "0", "HOST": "127.0.0.1", "TIER": "bare"}
    options += [f"--env=ATOLL_SERVE_{name}={value}" for name, value in settings.items()]
    container = run(*podman, "run", "--detach", "--net=host", *options, *ALLOWED, IMAGE)
    try:
        url, key = started(podman, container)
        with atoll.create_sandbox(backend="remote", url=url, api_key=key) as box:
            result = box.execute("6 * 7")
        assert (result.value, result.isolation) == (42, atoll.Isolation.JAILED)
    finally:
        run(*podman, "rm", "--force", "--time", "20", container)


def started(podman: list[str], container: str) -> tuple[str, str]:
    """Wait until the service serves; return its address and key."""
    while True:
        said = subprocess.run(
            [*podman, "logs", container], capture_output=True, text=True, check=True
        ).stdout
        if "Ctrl-C" in said:
            return re.search(r"http://[\d.]+:\d+", said)[0], re.search(r"atl_\S+", said)[0]
        running = run(*podman, "inspect", "--format", "{{.State.Running}}", container)
        assert running == "true", said
        time.sleep(0.2)
