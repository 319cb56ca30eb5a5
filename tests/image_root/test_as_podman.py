"""Ten programs in one image, by podman and by Atoll: the same output, exit code and environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAMS = {
    "output": "echo out; echo err >&2",
    "exit": "echo before; exit 37",
    "signal": "sh -c 'kill -9 $$'; echo $?",
    "files": "ls -l /srv /etc/os-release | cut -c1-10; cat /etc/os-release",
    "variables": "env | grep -E '^(GREETING|PATH|MORE)=' | sort",
    "folder": "cd /srv && pwd && cd / && ls -d usr etc srv",
    "pipes": "seq 1000 | wc -l; cat /dev/null | wc -c; grep -c processor /nonexistent; true",
    "python": "python3 -c 'import sys, json; print(json.dumps(sorted(sys.path))); sys.exit(3)'",
    "links": "readlink /usr/bin/python3; test -e /proc/self/exe && echo proc; wc -c < /etc/passwd",
    "arguments": "printf '%s|' 'a b' \"$0\" '*' 'ünï'; echo",
}
KNOWN_DIFFERENCES = {
    "links": "/etc/passwd has a line for the sandbox's user, of the id 1000",
}
"""What differs on purpose, and why; the rest of the program must be the same."""
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not shutil.which("podman"), reason="podman is not installed: apt-get install podman"
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="podman is tried as root, without a login"),
]


@pytest.fixture(scope="module")
def podman(image: str) -> Iterator[list[str]]:
    """Return podman's command for the image, with a store of its own."""
    folder = Path(f"/tmp/atollpodman{os.getpid()}")  # podman makes a name of the image's path
    folder.mkdir()
    shutil.copytree(image.removeprefix("oci:"), folder / "oci")
    own = [*("podman", "--root", f"{folder}/root", "--runroot", f"{folder}/run")]
    own += ["--storage-driver", "vfs", "--cgroup-manager", "cgroupfs"]
    loaded = subprocess.run(
        [*own, "pull", "-q", f"oci:{folder}/oci"], capture_output=True, text=True
    )
    if loaded.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"podman cannot load an image here: {loaded.stderr[-200:]}")
    limits = ["--ulimit=nofile=1000:1000", "--ulimit=nproc=1000:1000"]
    more = ["run", "--rm", "--network=none", *limits, "--entrypoint", "", loaded.stdout.strip()]
    for runtime in ([], ["--runtime", "runc"]):  # crun does not run with cgroups of both versions
        run = [*own, *runtime, *more]
        tried = subprocess.run(
            [*run, "/bin/sh", "-c", "true"], capture_output=True, text=True, check=False
        )
        if tried.returncode == 0:
            break
    else:
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"podman cannot run a container here: {tried.stderr[-200:]}")
    yield run
    subprocess.run([*own, "rmi", "-af"], capture_output=True, check=False)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_of_an_image_does_what_it_does_under_podman(
    image: str, podman: list[str], name: str, tmp_path: Path
) -> None:
    words = ["/bin/sh", "-c", PROGRAMS[name]]
    theirs = subprocess.run([*podman, *words], capture_output=True, text=True, check=False)
    command = [sys.executable, "-m", "atoll", "exec", "--image", image, "--", *words]
    ours = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    seen = [
        (done.stdout.splitlines(), done.returncode, done.stderr.splitlines())
        for done in (ours, theirs)
    ]
    if name in KNOWN_DIFFERENCES:
        seen = [(lines[:-1], code, errors) for lines, code, errors in seen]
    assert seen[0] == seen[1]


def test_user_folder_and_home_differ_as_the_docs_say(
    image: str, podman: list[str], tmp_path: Path
) -> None:
    words = ["/bin/sh", "-c", "id -u; pwd; echo $HOME"]
    theirs = subprocess.run([*podman, *words], capture_output=True, text=True, check=False)
    command = [sys.executable, "-m", "atoll", "exec", "--image", image, "--", *words]
    ours = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert theirs.stdout.split() == ["0", "/", "/root"]
    assert ours.stdout.split() == ["1000", str(tmp_path), "/home/guest"]
