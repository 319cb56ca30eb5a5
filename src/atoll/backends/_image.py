"""The image that a sandbox runs: held while it is in use, and asked, in a jail, for its Python.

SECURITY: an image is guest code. Its programs run in a jail only, and what they print is checked.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from atoll.errors import BackendUnavailableError, ConfigError, SandboxStartError
from atoll.jail.supervisor import packets
from atoll.jail.supervisor.spec import (
    GUEST,
    GUEST_HOME,
    ROOT,
    WORK_FOLDER,
    ImageRoot,
    JailSpec,
    Limits,
)
from atoll.launch import host_python, interpreter
from atoll.launch.guest_handle import request_guest
from atoll.launch.interpreter import Interpreter, RootImage
from atoll.packages.jailed import read_output
from atoll.packages.target import Target
from atoll.policy import MIB

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.config import SandboxConfig
    from atoll.images import HeldImage, Image
    from atoll.jail.supervisor.spec import GuestUser
    from atoll.launch.guest_handle import StartingGuest

K = TypeVar("K")
V = TypeVar("V")
NAMES = ("python3", "python")
ASK_SECONDS = 60.0
MOST_ANSWER = 1 << 16
MOST_PATH = 4096
MAX_KNOWN = 256
LIMITS = Limits(memory=512 * MIB, processes=16, disk=16 * MIB, file_size=MIB, open_files=256)
_ASK = (
    "import sys, json; print(json.dumps([list(sys.version_info[:3]), sys.executable, sys.prefix]))"
)
_ADD = (
    "Add one, for instance `RUN apt-get install -y python3`, or name its path in the image with "
    "python='/path/in/the/image'."
)
_NO_PYTHON = (
    "shell() and files work; python='host' (--python host) runs cells by this machine's Python. Or "
    "add one to the image: `atoll image build --from IMAGE --apt python3`."
)
MOST_COPIED = 16 * MIB
"""Bytes of an image in /app and at home that a pool copies for guests before they are needed."""
_ENTRY = 4096
"""What a file takes at least."""
_known: OrderedDict[tuple[str, str | None], Interpreter] = OrderedDict()
"""Interpreters of images, by digest and the name that was asked for. What a digest names never
changes."""
_own_bytes: OrderedDict[str, int] = OrderedDict()
"""Bytes of images in /app and at home, by digest; not counted on beyond MOST_COPIED."""


@dataclass(slots=True)
class HeldRoot:
    """The image of a configuration, until it is closed."""

    held: HeldImage | None = None

    def find(self, backend: str, config: SandboxConfig) -> Interpreter:
        """Return the interpreter of the image that the configuration names. This blocks."""
        if self.held is None:
            from atoll.images import get_image  # noqa: PLC0415 - most sandboxes have no image

            assert config.image is not None
            self.held = get_image(config.image)
        image = self._root(config)
        key = image.digest, config.python
        if key not in _known:
            _remember(_known, key, _find_python(backend, image, config.python))
        return _known[key].in_image(image)

    def find_at_once(self, config: SandboxConfig) -> Interpreter | None:
        """Return the same, without waiting, if this process uses the image already."""
        if self.held is None:
            from atoll.images import in_use  # noqa: PLC0415 - most sandboxes have no image

            assert config.image is not None
            self.held = in_use.find(config.image)
        if self.held is None or (self.held.image.digest, config.python) not in _known:
            return None
        return self.find("", config)

    def _root(self, config: SandboxConfig) -> RootImage:
        assert self.held is not None
        image = self.held.image
        if image.digest not in _own_bytes:
            _remember(_own_bytes, image.digest, _count_own(image.layers))
        own = _own_bytes[image.digest]
        return RootImage(
            digest=image.digest,
            reference=image.reference,
            root=ImageRoot(
                layers=tuple(map(str, image.layers)),
                writable=config.writable_root,
                own_files=own > 0,
                user=_user(image, config),
            ),
            env=tuple(variable for variable in image.config.env if _is_variable(variable)),
            workdir=(image.config.workdir or "/") if config.workdir == "image" else config.workdir,
            entrypoint=_program(image) if config.entrypoint else (),
            many_files=own > MOST_COPIED,
        )

    def again(self) -> HeldRoot:
        """Return another hold on the same image."""
        return HeldRoot(self.held_again())

    def held_again(self) -> HeldImage | None:
        """Return one more hold on the image; None without one."""
        return None if self.held is None else self.held.again()

    def close(self) -> None:
        """Let the image go."""
        if self.held is not None:
            self.held.close()
            self.held = None


def _remember(memory: OrderedDict[K, V], key: K, value: V) -> None:
    memory[key] = value
    while len(memory) > MAX_KNOWN:
        memory.popitem(last=False)


def _count_own(layers: tuple[Path, ...]) -> int:
    """Count the bytes of an image in the working folder and at home, up to MOST_COPIED."""
    waiting = [layer / place[1:] for layer in layers for place in (WORK_FOLDER, GUEST_HOME)]
    found = 0
    while waiting and found <= MOST_COPIED:
        folder = waiting.pop()
        if folder.is_symlink() or not folder.is_dir():
            continue
        for entry in os.scandir(folder):
            found += _ENTRY
            if entry.is_dir(follow_symlinks=False):
                waiting.append(folder / entry.name)
            else:
                found += entry.stat(follow_symlinks=False).st_size
    return found


def _user(image: Image, config: SandboxConfig) -> GuestUser:
    """Return who the guest is seen as; root pretends where that can do no harm."""
    if config.user is None:
        return GUEST
    from atoll.images.users import find_user  # noqa: PLC0415 - most sandboxes have no image

    user = find_user(image, config.user)
    host_writable = config.workspace is not None or any(m.writable for m in config.policy.mounts)
    return ROOT if user.uid == 0 and config.writable_root and not host_writable else user


def _program(image: Image) -> tuple[str, ...]:
    words = (*image.config.entrypoint, *image.config.command)
    if not words:
        text = f"the image {image.reference} has neither an ENTRYPOINT nor a CMD"
        raise ConfigError(f"{text}: leave entrypoint out")
    return words


def _is_variable(text: str) -> bool:
    """Return whether an image's variable can be one of a process."""
    name, equals, _ = text.partition("=")
    return bool(name and equals) and "\0" not in text


def _find_python(backend: str, image: RootImage, python: str | None) -> Interpreter:
    """Return the image's Python; this machine's if that is asked for, or if the image has none."""
    if python == host_python.NAME:
        return host_python.in_image(image, cells=True)
    for name in NAMES if python is None else (python,):
        with contextlib.suppress(FileNotFoundError):
            return _ask(backend, image, name)
    if python is None:
        return host_python.in_image(image, cells=False)
    raise BackendUnavailableError(backend, f"the image {image.reference} has no {python}", _ADD)


def no_cells(backend: str, image: RootImage) -> BackendUnavailableError:
    """Return the error of a cell in an image without Python."""
    return BackendUnavailableError(
        backend, f"the image {image.reference} has no Python", _NO_PYTHON
    )


def _ask(backend: str, image: RootImage, name: str) -> Interpreter:
    """Run the image's Python in a jail; FileNotFoundError if none has this name."""
    spec = JailSpec(
        jailed=True,
        argv=(name, "-I", "-B", "-S", "-c", _ASK),
        env=interpreter.image_environment(image),
        binds=(),
        workspace=None,
        limits=LIMITS,
        root=ImageRoot(layers=image.root.layers, own_files=False),
    )
    process = request_guest(spec)
    try:
        answer, errors = read_output(process, ASK_SECONDS, MOST_ANSWER)
        if not answer and (reason := _failure(process)):
            if reason.startswith("execute "):
                raise FileNotFoundError(reason)
            raise SandboxStartError(*_step(reason))
    except TimeoutError:
        reason = f"{name} of the image {image.reference} does not answer"
        raise BackendUnavailableError(backend, reason, "Does it start in a container?") from None
    finally:
        process.close()
    try:
        return _checked(json.loads(answer))
    except (ValueError, TypeError):
        words = errors.decode(errors="replace").strip()[-200:]
        reason = f"{name} of the image {image.reference} is not a Python that runs: {words!r}"
        raise BackendUnavailableError(backend, reason, _ADD) from None


def _checked(answer: Any) -> Interpreter:
    """Return what an image's Python said of itself; ValueError if it is not what a Python says."""
    version, path, prefix = answer
    if not (isinstance(version, list) and len(version) == 3):
        raise ValueError
    if not all(type(number) is int and 0 <= number < 1000 for number in version):
        raise ValueError
    for text in (path, prefix):
        if not isinstance(text, str) or not os.path.isabs(text) or len(text) > MOST_PATH:
            raise ValueError
        if "\0" in text:
            raise ValueError
    numbers = (version[0], version[1], version[2])
    if numbers < interpreter.OLDEST:
        said = ".".join(map(str, numbers))
        reason = f"its Python is {said}, which is too old"
        raise BackendUnavailableError("native", reason, "Python 3.8 or newer is needed.")
    return Interpreter(path, numbers, (), (), path, prefix)


def _failure(process: StartingGuest) -> str | None:
    """Return why the supervisor could not start the program."""
    process.lease.settimeout(1)
    with contextlib.suppress(OSError, ValueError):
        while message := packets.receive(process.lease):
            if message.kind == "failed":
                return str(message.fields["reason"])
    return None


def _step(reason: str) -> tuple[str, str]:
    step, _, words = reason.partition(": ")
    return step, words or reason


def target_of(python: Interpreter) -> Target:
    """Return the target of packages by name for an image's Python: wheels, by the host's pip."""
    version = ".".join(map(str, python.version[:2]))
    machine = platform.machine()
    names = [f"manylinux_2_{minor}_{machine}" for minor in (28, 17)]
    flags = ["--python-version", version, "--implementation", "cp"]
    flags += [word for name in names for word in ("--platform", name)]
    return Target(
        key=f"{version}-image-{machine}",
        label=f"Python {version} in an image",
        interpreter=interpreter.resolve(None),
        flags=tuple(flags),
        compiled=False,
    )
