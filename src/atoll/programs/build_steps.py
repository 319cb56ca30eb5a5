"""The steps of a build: what each runs or copies, what it may reach, and what it is known by."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from atoll.errors import ConfigError
from atoll.files.folder import open_beneath
from atoll.images import ConfigChanges
from atoll.network import HostRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.images.commit import LayerWriter
    from atoll.images.image import Image

_APT = "apt-get -o APT::Sandbox::User=root -o Dpkg::Use-Pty=0 -o Dpkg::Progress-Fancy=0 -q"
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.:=~-]*\Z")
_HOST = re.compile(r"\bhttps?://([A-Za-z0-9.-]+)(?::(\d+))?")
_MOST_SOURCES = 1 << 20
_ASK_PIP = (
    "from pip._internal.models.index import PyPI; print(PyPI.netloc, PyPI.file_storage_domain)"
)
_INDEXES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")


class Step(ABC):
    """One layer of a build."""

    __slots__ = ()

    @property
    def changes(self) -> ConfigChanges:
        """What it changes in the image's configuration."""
        return ConfigChanges()

    @abstractmethod
    def key(self) -> str:
        """Return what tells this step from others; the same on the same base is built once."""

    def script(self, base: Image) -> str | None:  # noqa: ARG002
        """Return the shell script to run on the base; None if files are written instead."""
        return None

    def hosts(self, base: Image) -> tuple[str, ...]:  # noqa: ARG002
        """Return the hosts that it needs, if the user names none."""
        return ()

    def write(self, writer: LayerWriter) -> None:
        """Write the layer of a step without a script."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Configure(Step):
    """Sets variables and the working folder, for the steps after it and in the image."""

    env: tuple[str, ...]
    workdir: str | None = None

    def __post_init__(self) -> None:
        for text in self.env:
            if not text.partition("=")[0] or "=" not in text or "\0" in text:
                raise ConfigError(f"--env is NAME=VALUE, not {text!r:.100}")
        if self.workdir is not None and not self.workdir.startswith("/"):
            raise ConfigError(f"--workdir is a path that begins with /, not {self.workdir!r:.100}")

    @property
    def changes(self) -> ConfigChanges:
        """What it changes in the image's configuration."""
        return ConfigChanges(env=self.env, workdir=self.workdir)

    def key(self) -> str:
        """Return the settings."""
        return json.dumps(["configure", self.env, self.workdir])

    def write(self, writer: LayerWriter) -> None:
        """Write an empty tar: two blocks of zeros."""
        writer.write(bytes(1024))

    def __str__(self) -> str:
        return f"configure {' '.join(self.env)} {self.workdir or ''}".rstrip()


@dataclass(frozen=True, slots=True)
class Apt(Step):
    """Installs packages of the image's own Debian or Ubuntu."""

    packages: tuple[str, ...]

    def __post_init__(self) -> None:
        for package in self.packages:
            if not _PACKAGE.match(package):
                raise ConfigError(f"not a Debian package: {package!r:.100}")

    def key(self) -> str:
        """Return the packages."""
        return json.dumps(["apt", *self.packages])

    def script(self, base: Image) -> str:  # noqa: ARG002
        """Return the commands: update, install, and delete what was downloaded."""
        names = " ".join(self.packages)
        return (
            f"export DEBIAN_FRONTEND=noninteractive; {_APT} update; "
            f"{_APT} install -y --no-install-recommends {names}; "
            f"{_APT} clean; rm -rf /var/lib/apt/lists/*"
        )

    def hosts(self, base: Image) -> tuple[str, ...]:
        """Return the hosts in the image's list of sources: by name, as addresses may be private."""
        return _public(_HOST.findall("\n".join(_sources(base))))

    def __str__(self) -> str:
        return f"apt {','.join(self.packages)}"


@dataclass(frozen=True, slots=True)
class Pip(Step):
    """Installs Python packages with the image's pip."""

    requirements: str
    """The text of a requirements file, or packages by name."""
    shown: str

    @classmethod
    def of(cls, text: str) -> Pip:
        """Return the step for a requirements file, or for packages with commas between them."""
        if os.path.isfile(text):
            return cls(Path(text).read_text(encoding="utf-8"), text)
        if text.endswith(".txt"):
            raise ConfigError(f"there is no requirements file {text}")
        return cls("\n".join(text.split(",")) + "\n", text)

    def key(self) -> str:
        """Return the requirements."""
        return json.dumps(["pip", self.requirements])

    def script(self, base: Image) -> str:  # noqa: ARG002
        """Return the command; the requirements are in it, as there is no folder of the host."""
        return (
            f"printf %s {shlex.quote(self.requirements)} > /tmp/requirements.txt; "
            "PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore python3 -m pip install "
            "--no-cache-dir --disable-pip-version-check -r /tmp/requirements.txt"
        )

    def hosts(self, base: Image) -> tuple[str, ...]:  # noqa: ARG002
        """Return the hosts of this machine's index, which pip here knows."""
        named = " ".join(os.environ.get(name, "") for name in _INDEXES)
        return _public(_HOST.findall(named)) or _default_index()

    def __str__(self) -> str:
        return f"pip {self.shown}"


@dataclass(frozen=True, slots=True)
class Run(Step):
    """Runs a command of the image's shell."""

    command: str

    def key(self) -> str:
        """Return the command."""
        return json.dumps(["run", self.command])

    def script(self, base: Image) -> str:  # noqa: ARG002
        """Return the command."""
        return self.command

    def __str__(self) -> str:
        return f"run {self.command}"


@dataclass(frozen=True, slots=True)
class Copy(Step):
    """Copies a file or folder of this machine into the image, as root's."""

    source: str
    target: str

    @classmethod
    def of(cls, text: str) -> Copy:
        """Return the step for SOURCE:TARGET."""
        source, colon, target = text.rpartition(":")
        if not colon or not target.startswith("/"):
            raise ConfigError(f"--copy is SOURCE:/TARGET, not {text!r:.200}")
        if not os.path.lexists(source):
            raise ConfigError(f"--copy {text}: there is no {source}")
        if ".." in target.split("/"):
            raise ConfigError(f"--copy {text}: the target may have no '..'")
        if target.endswith("/") and not os.path.isdir(source):
            target += os.path.basename(source)
        return cls(source, target.strip("/"))

    def key(self) -> str:
        """Return a digest of names, modes and contents, and the target."""
        whole = hashlib.sha256()
        for path, place in self._files():
            info = os.lstat(path)
            link = os.readlink(path) if os.path.islink(path) else ""
            whole.update(json.dumps([place, info.st_mode, link]).encode())
            if not link and os.path.isfile(path):
                with open(path, "rb") as file:
                    whole.update(hashlib.file_digest(file, "sha256").digest())
        return json.dumps(["copy", self.target, whole.hexdigest()])

    def write(self, writer: LayerWriter) -> None:
        """Write the files as a tar; a link stays a link."""
        with tarfile.open(
            fileobj=cast("IO[bytes]", writer), mode="w|", format=tarfile.PAX_FORMAT
        ) as tar:
            for path, place in self._files():
                tar.add(path, place or ".", recursive=False, filter=_as_root)

    def _files(self) -> Iterator[tuple[str, str]]:
        """Yield the files, each with its place in the image; a folder before what is in it."""
        yield self.source, self.target
        if os.path.isdir(self.source) and not os.path.islink(self.source):
            for folder, folders, files in os.walk(self.source):
                folders.sort()
                inner = os.path.relpath(folder, self.source)
                for name in sorted([*folders, *files]):
                    place = os.path.normpath(os.path.join(self.target, inner, name))
                    yield os.path.join(folder, name), place

    def __str__(self) -> str:
        return f"copy {self.source} /{self.target}"


def _as_root(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _sources(base: Image) -> Iterator[str]:
    """Yield apt's lists of sources in an image. SECURITY: no link leads out of a layer."""
    for layer in base.layers:
        folder = os.open(layer, os.O_PATH | os.O_CLOEXEC)
        try:
            names = ["etc/apt/sources.list"]
            with contextlib.suppress(OSError):
                listed = open_beneath(folder, "etc/apt/sources.list.d", os.O_RDONLY)
                names += [f"etc/apt/sources.list.d/{name}" for name in sorted(os.listdir(listed))]
                os.close(listed)
            for name in names:
                with contextlib.suppress(OSError):
                    fd = open_beneath(folder, name, os.O_RDONLY | os.O_NONBLOCK)
                    with open(fd, encoding="utf-8", errors="replace") as file:
                        lines = file.read(_MOST_SOURCES).splitlines()
                    yield "\n".join(line for line in lines if not line.lstrip().startswith("#"))
        finally:
            os.close(folder)


def _public(found: list[tuple[str, str]]) -> tuple[str, ...]:
    """Return hosts by name; an address, or this machine, only the user may allow."""
    hosts = {f"{host}:{port}" if port else host for host, port in found}
    rules = {host: HostRule.parse(host) for host in sorted(hosts)}
    return tuple(
        host for host, rule in rules.items() if rule.address is None and rule.host != "localhost"
    )


@functools.cache
def _default_index() -> tuple[str, ...]:
    """Return the hosts that pip of this machine uses by default; none without a pip."""
    done = subprocess.run(
        [sys.executable, "-c", _ASK_PIP], capture_output=True, text=True, check=False
    )
    return tuple(done.stdout.split())
