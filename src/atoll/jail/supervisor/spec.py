"""Specifications of jails as plain data: the host sends them to the supervisor."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypedDict

from atoll.jail.supervisor import packets

GUEST_UID = 1000
GUEST_HOME = "/home/guest"
WORK_FOLDER = "/app"
WORK_ALIAS = "/mnt/data"
GUEST_CODE = "/opt/atoll"
PACKAGES = f"{GUEST_CODE}/packages"
"""Where a guest finds packages by name, if it has some."""
SHOWN_FOLDERS = (WORK_FOLDER, "/tmp", GUEST_HOME)
"""Folders of a jail that the host reads and writes too."""
SYSTEM_PATHS = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/alternatives",
    "/etc/fonts",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/os-release",
)
"""What a jail sees of the host's system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """A host path that the guest sees at `target`."""

    source: str
    target: str
    writable: bool = False
    owned: bool = False
    """Whether the guest is shown as the owner also of what it cannot write to."""
    exact: bool = False
    """Whether a link on the way to the source or target fails the start: a program that runs beside
    this one may have put it there. A source that is a link itself is bound as that link."""


class Watch(StrEnum):
    """Calls about files that a host can hear of."""

    NOTHING = "nothing"
    CHANGES = "changes"
    """Those that create, write, move or remove."""
    ALL = "all"
    """Also those that open a file to read it."""


@dataclass(frozen=True, slots=True)
class GuestUser:
    """Who the guest is seen as, by itself; on the host it is one user without any right."""

    uid: int = GUEST_UID
    gid: int = GUEST_UID
    pretends: bool = False
    """Whether changes of owners and users succeed and do nothing, and files may have set-id bits.
    Never with folders of the host that the guest may write to: see `check_pretence`."""


GUEST, ROOT = GuestUser(), GuestUser(0, 0, pretends=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRoot:
    """An image whose files are the root of a jail, in place of the host's system."""

    layers: tuple[str, ...]
    """Host folders of its unpacked layers, the lowest first."""
    writable: bool = False
    """Whether the guest may change its copy of the files; the limit of the disk counts that."""
    own_files: bool = True
    """Whether a guest gets copies of what the image has in /app and at home."""
    user: GuestUser = GUEST


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits that the kernel enforces; None means no limit."""

    memory: int | None
    processes: int | None
    disk: int | None
    file_size: int | None
    open_files: int
    context: int = 0
    """Bytes of the shared context: address space that is not the guest's memory."""
    stack: int = 8 << 20
    reserved: int = 0
    """Address space that the guest's runtime sets aside and hardly touches."""
    folders: tuple[str, ...] = ()
    """Writable folders besides the private ones; the limit of the disk counts them too."""


NO_LIMITS = Limits(memory=None, processes=None, disk=None, file_size=None, open_files=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JailSpec:
    """One jail. Beside it travel the lease, and what the guest gets as descriptors 0 to 3.

    Those are requests, answers, stderr and stdout.
    """

    jailed: bool
    """True: namespaces and a root of its own. False: Landlock, seccomp and rlimits only."""
    argv: tuple[str, ...]
    env: dict[str, str]
    binds: tuple[Bind, ...]
    workspace: str | None
    limits: Limits
    container: str | None = None
    """The OCI configuration, if the program is a container runtime: see jail/walls/container."""
    root: ImageRoot | None = None
    """The image whose files are its root; None: the host's system. It needs `jailed`."""
    must_confine: bool = True
    """False: start the program even where neither Landlock nor seccomp confine it."""
    folder: str | None = None
    """Where the program starts, if that is not the working folder."""
    attended: bool = False
    """Whether a socket follows the descriptors, on which pid 1 waits: see init."""
    terminal: bool = False
    """Whether the program gets a terminal of the jail's own instead of descriptors."""
    unix_sockets: bool = True
    """Whether it may make Unix sockets, and so use those that lie in folders of the host."""
    watch: Watch = Watch.NOTHING
    """The calls that the host hears of before they are made. It needs `attended`."""

    def __post_init__(self) -> None:
        if self.filtered_late and not self.attended:
            raise ValueError("a jail with a filter of its own must be attended")

    @property
    def filtered_late(self) -> bool:
        """Whether pid 1 installs the filter of calls just before it starts the program."""
        return self.watch is not Watch.NOTHING or not self.unix_sockets


def check_pretence(root: ImageRoot | None, workspace: str | None, binds: tuple[Bind, ...]) -> None:
    """Raise ValueError if a guest that pretends could set a set-id bit in a folder of the host."""
    if root is None or not root.user.pretends:
        return
    if not root.writable or workspace is not None or any(bind.writable for bind in binds):
        raise ValueError("pretended owners need a writable image, and no writable host folder")


@dataclass(frozen=True, slots=True, kw_only=True)
class ZygoteHostSpec:
    """A zygote host: a process that keeps one warm zygote alive, off which guests are forked."""

    name: str
    argv: tuple[str, ...]
    """How the zygote is executed."""
    env: dict[str, str]
    binds: tuple[Bind, ...]
    root: ImageRoot | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkSpec:
    """One guest forked off a zygote, in a jail of its own."""

    zygote_host: str
    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """A process beside a jail's guest."""

    argv: tuple[str, ...]
    """The program; an empty name is a shell, which runs the next one."""
    env: dict[str, str]
    folder: str | None = None
    """Where it starts, if that is not the working folder."""
    stdin: bool = True
    """Whether it gets a pipe for its input; else that is empty."""
    terminal: tuple[int, int] | None = None
    """Rows and columns of its terminal, if it gets one instead of pipes."""

    def encoded(self) -> bytes:
        """Return it as JSON."""
        return json.dumps(_as_fields(self)).encode("utf-8", "surrogatepass")


class ForkRequest(TypedDict):
    """The supervisor's request to a zygote; the descriptors come with it."""

    number: int
    root: str
    """Where its root is in the zygote's, if it has one of its own."""
    user: dict[str, Any]
    limits: dict[str, Any]
    groups: int
    """How many of the descriptors are control groups; the others are the guest's own."""


Spec = JailSpec | ZygoteHostSpec | ForkSpec
_KINDS: dict[str, type[Spec]] = {"jail": JailSpec, "zygote_host": ZygoteHostSpec, "fork": ForkSpec}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def limits_from(fields: dict[str, Any]) -> Limits:
    """Return the limits of a request."""
    return Limits(**{**fields, "folders": tuple(fields.get("folders", ()))})


def user_from(fields: dict[str, Any]) -> GuestUser:
    """Return the user of a request."""
    return GuestUser(**fields)


def request(spec: Spec) -> bytes:
    """Return the message that asks the supervisor for this."""
    return _fork_request(spec) if isinstance(spec, ForkSpec) else _encode(spec)


def _encode(spec: Spec) -> bytes:
    return packets.encode(_NAMES[type(spec)], _as_fields(spec))


def _as_fields(value: Any) -> Any:
    """Return a spec as a dict; dataclasses.asdict, which copies all values, takes three times."""
    if isinstance(value, tuple):
        return [_as_fields(item) for item in value]
    names = getattr(value, "__slots__", None)
    return {name: _as_fields(getattr(value, name)) for name in names} if names else value


@functools.lru_cache(maxsize=64)
def _fork_request(spec: ForkSpec) -> bytes:
    """Encode a fork request; cached, since a pool repeats a few of them."""
    return _encode(spec)


def requested(kind: str, fields: dict[str, Any]) -> Spec:
    """Return the spec of a request."""
    if "argv" in fields:
        fields["argv"] = tuple(fields["argv"])
    if "binds" in fields:
        fields["binds"] = tuple(Bind(**bind) for bind in fields["binds"])
    if fields.get("root") is not None:
        own = {"layers": tuple(fields["root"]["layers"]), "user": user_from(fields["root"]["user"])}
        fields["root"] = ImageRoot(**{**fields["root"], **own})
    if "limits" in fields:
        fields["limits"] = limits_from(fields["limits"])
    if "watch" in fields:
        fields["watch"] = Watch(fields["watch"])
    return _KINDS[kind](**fields)
