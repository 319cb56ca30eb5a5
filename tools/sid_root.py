"""Make a root folder with Debian sid, which has the newest Pythons, and run a command in it.

    ARGS=sid make test-pythons      runs tools/pythons.py there, for each Python of PACKAGES

The root is made once, in the cache folder of the user. A command enters it by pivot_root in a mount
namespace of its own: a process in a plain chroot may make no user namespaces.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
SUITE = "sid"
VERSIONS = ("3.13", "3.14", "3.15")
PACKAGES = (
    *(name for version in VERSIONS for name in (f"python{version}", f"python{version}-venv")),
    "python3",
    "ca-certificates",
    "git",
    "iproute2",
    "procps",
    "strace",
    "g++",
    f"python{VERSIONS[-1]}-dev",
    "libre2-dev",
    "libabsl-dev",
    "pybind11-dev",
    "pkgconf",
)
"""The Pythons, programs that tests start, and what compiles packages that have no wheels yet."""
SHARED = (
    "/etc/hosts",
    "/etc/resolv.conf",
    "/etc/ssl",
    "/etc/pip.conf",
    "~/.config/pip",
    "/opt",
)
"""What pip needs of this machine: names, certificates, its configuration and local packages."""
REPOSITORY, ENVIRONMENTS = "/repository", "/pythons"
"""Where this repository and the environments of tools/pythons.py are, inside the root."""
ENTER = """
root=$1 repository=$2 inside=$3; shift 3
mount --bind "$root" "$root"
cd "$root"
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs -o mode=1777 tmpfs tmp
mkdir -p "./$inside"
mount --bind "$repository" "./$inside"
while [ "$1" != -- ]; do
    if [ -d "$1" ]; then mkdir -p "./$1"; else mkdir -p "./$(dirname "$1")"; touch "./$1"; fi
    mount --rbind -o ro "$1" "./$1"
    shift
done
shift
pivot_root . mnt
umount -l /mnt
cd "$inside"
"$@" || exit $?
exit 0  # as pid 1 of its namespace, the shell has stayed to reap orphans
"""
"""A shell script: root, repository, its path inside, shared paths, `--`, and the command to run."""


class RootError(Exception):
    """The root cannot be made or entered here, and what to do."""


def run(command: list[str], environment: dict[str, str]) -> int:
    """Run a command in the root, at this repository; return its exit code."""
    root = ensure()
    shared = [path for path in map(os.path.expanduser, SHARED) if os.path.exists(path)]
    unshare = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]
    folders = [str(root), str(HERE), REPOSITORY, *shared]
    script = ["sh", "-ec", ENTER, "enter", *folders, "--", *command]
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    variables = {**os.environ, **environment, "PATH": path}
    return subprocess.run([*unshare, *script], env=variables, check=False).returncode


def ensure() -> Path:
    """Return the root; make it if there is none that is complete."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "atoll-pythons"
    root = cache / SUITE
    if os.geteuid() != 0:
        raise RootError(
            "Only root can make and enter a Debian root: sudo make test-pythons ARGS=sid"
        )
    if not (root / ENVIRONMENTS.lstrip("/")).is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        _make(root)
    return root


def _make(root: Path) -> None:
    if shutil.which("debootstrap") is None:
        raise RootError("A Debian root is made by debootstrap: apt-get install debootstrap")
    print(f"Making a root of Debian {SUITE} in {root}: 600 MB, a minute or two", flush=True)
    unfinished = root.with_name(f"{root.name}.unfinished")
    shutil.rmtree(root, ignore_errors=True)
    shutil.rmtree(unfinished, ignore_errors=True)
    include = f"--include={','.join(PACKAGES)}"
    command = ["debootstrap", "--variant=minbase", include, SUITE, str(unfinished), mirror()]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RootError(f"{' '.join(command)}\n{done.stdout[-2000:]}")
    (unfinished / ENVIRONMENTS.lstrip("/")).mkdir()  # says that the root is complete
    unfinished.rename(root)


def mirror() -> str:
    """Return the Debian mirror that apt is configured to use on this machine."""
    command = [
        "apt-get",
        "indextargets",
        "--format",
        "$(REPO_URI) $(ORIGIN)",
        "Created-By: Packages",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line.split() for line in done.stdout.splitlines()]
    uris = [line[0] for line in lines if line[1:] == ["Debian"] and "security" not in line[0]]
    if not uris:
        raise RootError("apt has no Debian mirror here: run `apt-get update` first")
    return uris[0]


if __name__ == "__main__":
    try:
        sys.exit(run(sys.argv[1:], {}))
    except RootError as error:
        sys.exit(str(error))
