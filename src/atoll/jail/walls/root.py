"""The guest's root: a small tmpfs with read-only binds of the host's system, and private folders.

SECURITY: sources are opened first and bound by descriptor, so nothing has to be reachable for
the guest's user and no path is resolved twice. Everything from the host is read-only, nosuid
and without devices; what is writable is one tmpfs with the disk limit as its size.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import stat
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from atoll.jail.supervisor.spec import (
    GUEST_CODE,
    GUEST_HOME,
    SYSTEM_PATHS,
    WORK_ALIAS,
    WORK_FOLDER,
    Bind,
)
from atoll.jail.walls import image_root, users
from atoll.jail.walls import syscalls as sys
from atoll.jail.walls.binds import (
    NEW_ROOT,
    below_a_bind,
    bind_all,
    make_target,
    open_all,
    write_file,
)
from atoll.jail.walls.private_folders import (
    BOX,
    PRIVATE_FOLDERS,
    box_options,
    copy_own,
    mount_box,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from atoll.jail.supervisor.spec import ImageRoot

IMAGE = "/.image"
"""In a zygote's root: an image's files without what is mounted there, for writable_root."""
JAVA_SETTINGS = "/etc/java-*-openjdk"
"""Settings that Debian's Java does not start without: a link below /usr leads there."""
DEVICES = ("null", "zero", "full", "random", "urandom")
JAIL_DEVICES = (*DEVICES, "tty")
"""By the last one a program finds its own terminal, if it has one; never another's."""
_PRIVATE = tuple(PRIVATE_FOLDERS.values())
_OPEN_WAYS = {"/tmp", "/app", "/usr", "/proc", "/dev/pts", GUEST_HOME, GUEST_CODE}
ZYGOTE_HOST_DISK = 64 << 20
HIDDEN_PROC = (
    "acpi",
    "kallsyms",
    "kcore",
    "key-users",
    "keys",
    "kmsg",
    "modules",
    "scsi",
    "sysrq-trigger",
    "timer_list",
)
PTY_OPTIONS = "newinstance,ptmxmode=0666,mode=0600,max=16"
"""An instance of its own, with few terminals: the kernel's number of them is for all."""
SERVICES = tuple(
    name
    for row in (
        "echo 7, discard 9, daytime 13, qotd 17, chargen 19, ftp-data 20, ftp 21, ssh 22",
        "telnet 23, smtp 25, time 37, domain 53, tftp 69, http 80, pop3 110, ntp 123",
        "imap2 143, snmp 161, ldap 389, https 443, submission 587, ldaps 636, imaps 993",
        "pop3s 995, mysql 3306, postgresql 5432, redis 6379",
    )
    for name in row.split(", ")
)
FOLDERS = (
    "/proc",
    "/dev",
    "/dev/shm",
    "/dev/pts",
    "/mnt",
    "/etc",
    "/tmp",
    "/home",
    GUEST_HOME,
    "/app",
    BOX,
)
"""Of a new root, each after the one that it is in; SYSTEM_PATHS and FILES lie in these."""
LINKS = {
    WORK_ALIAS: WORK_FOLDER,
    "/dev/ptmx": "pts/ptmx",
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2",
}
FILES = {
    "/etc/passwd": (
        "root:x:0:0:root:/root:/bin/sh\n"
        f"guest:x:1000:1000::{GUEST_HOME}:/bin/sh\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    ),
    "/etc/group": "root:x:0:\ntty:x:5:\nguest:x:1000:\nnogroup:x:65534:\n",
    "/etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "/etc/nsswitch.conf": (
        "passwd: files\ngroup: files\nhosts: files\nservices: files\nprotocols: files\n"
    ),
    "/etc/protocols": "ip 0 IP\nicmp 1 ICMP\ntcp 6 TCP\nudp 17 UDP\nipv6-icmp 58 IPv6-ICMP\n",
    "/etc/services": "".join(f"{service}/tcp\n{service}/udp\n" for service in SERVICES),
}


def build(
    binds: tuple[Bind, ...],
    disk: int | None,
    folder: str | None,
    owner: int,
    *,
    switched: bool,
    plain: bool = False,
    image: ImageRoot | None = None,
) -> int | None:
    """Make the root, and go into it; return the upper layer of an image's writable root.

    `folder` is the host's for the working folder, if one is. `owner` is who the private folders
    belong to; `switched`, whether that is another user than the one who runs this, so that a host
    folder's owner has to be translated. `plain`: with the
    whole of proc, which a container runtime needs, and without terminals, which it brings.
    """

    def furnish(workspace: int | None, tmpfs: int | None) -> None:
        if plain:
            _mount_plain_proc()
        else:
            mount_proc(NEW_ROOT)
            mount_terminals(NEW_ROOT)
        fill = None
        if image is not None and image.own_files:
            fill = functools.partial(copy_own, NEW_ROOT, owner=owner)
        mount_box(NEW_ROOT, disk, owner, private_app=workspace is None, tmpfs=tmpfs, fill=fill)
        if workspace is not None:
            _attach_workspace(workspace)

    sys.mount(None, "/", None, sys.MS_REC | sys.MS_PRIVATE)
    mapped_owner = owner if switched else None
    workspace = None if folder is None else users.owned_tree(folder, mapped_owner)
    furnish_with = functools.partial(furnish, workspace)
    if image is None:
        _build_tree(binds, furnish_with, mapped_owner)
        return None
    return _build_image(image, binds, furnish_with, owner, disk, mapped_owner=mapped_owner)


def build_zygote_host(
    binds: tuple[Bind, ...],
    owner: int,
    image: ImageRoot | None = None,
    mapped_owner: int | None = None,
) -> None:
    """The root that all guests of a zygote host share, and go into it.

    Its proc is a plain one: a guest's own can only be mounted where a whole one is in sight.
    `mapped_owner` is shown as the owner of an image's files, if that is another user than we are.
    """
    shows_image = image is not None and (image.writable or image.own_files)

    def furnish(tmpfs: int | None) -> None:
        _mount_plain_proc()
        mount_box(NEW_ROOT, ZYGOTE_HOST_DISK, owner, private_app=True, tmpfs=tmpfs)
        if shows_image:
            _show_image()

    sys.mount(None, "/", None, sys.MS_REC | sys.MS_PRIVATE)
    if image is None:
        _build_tree(binds, furnish)
    else:
        shared, disk = replace(image, writable=False), ZYGOTE_HOST_DISK
        more = {IMAGE: True} if shows_image else {}
        _build_image(shared, binds, furnish, owner, disk, mapped_owner=mapped_owner, points=more)


def _show_image() -> None:
    tree = sys.clone_tree(NEW_ROOT)
    sys.attach_tree(tree, NEW_ROOT + IMAGE)
    os.close(tree)
    sys.set_mount_attributes(NEW_ROOT + IMAGE, sys.ATTR_RDONLY, recursive=False)


def _build_tree(
    binds: tuple[Bind, ...], furnish: Callable[[int | None], None], mapped_owner: int | None = None
) -> None:
    system, links = _open_system()
    extra = open_all(sorted(binds, key=lambda bind: bind.target.count("/")), mapped_owner)
    devices = _open_devices()
    flags = sys.MS_NOSUID | sys.MS_NODEV
    sys.mount("tmpfs", NEW_ROOT, "tmpfs", flags, "mode=755,size=4m")
    _make_skeleton(links)
    bind_all(system)
    _bind_devices(devices)
    furnish(None)
    bind_all(extra, mapped_owner)  # last, as an interpreter may well live below /tmp
    _close_ways(extra)
    _enter()


def _build_image(
    image: ImageRoot,
    binds: tuple[Bind, ...],
    furnish: Callable[[int | None], None],
    owner: int,
    disk: int | None,
    *,
    mapped_owner: int | None,
    points: Mapping[str, bool] = MappingProxyType({}),
) -> int | None:
    """Make the root of an image's layers; return the upper one, if it is writable."""
    extra = open_all(sorted(binds, key=lambda bind: bind.target.count("/")), mapped_owner)
    devices = _open_devices()
    layers = image_root.open_layers(image, mapped_owner)
    tmpfs = image_root.mount(
        layers,
        NEW_ROOT,
        box_options(disk),
        points=_mount_points(extra) | dict(points),
        links=LINKS,
        files=FILES,
        owner=owner if mapped_owner is None else mapped_owner,
    )
    upper = None
    if image.writable:
        flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        upper = os.open(image_root.UPPER, flags, dir_fd=tmpfs)
    _bind_devices(devices)
    furnish(tmpfs)
    bind_all(extra, mapped_owner)
    _enter(writable=image.writable)
    return upper


def _mount_points(extra: list[tuple[Bind, int]]) -> dict[str, bool]:
    """Return where an image's root gets mounts, and whether each is a folder."""
    points = dict.fromkeys(FOLDERS, True) | {f"/dev/{name}": False for name in JAIL_DEVICES}
    for bind, fd in extra:
        if not any(_inside(bind.target, private) for private in _PRIVATE):
            points[bind.target] = stat.S_ISDIR(os.fstat(fd).st_mode)
    return points


def _open_devices() -> list[tuple[str, int]]:
    return [(name, os.open(f"/dev/{name}", os.O_PATH | os.O_CLOEXEC)) for name in JAIL_DEVICES]


def _open_system() -> tuple[list[tuple[Bind, int]], dict[str, str]]:
    """Open those of the host's system paths that are there; of links, return the targets."""
    links: dict[str, str] = {}
    others: list[Bind] = []
    for path in (*SYSTEM_PATHS, *glob.glob(JAVA_SETTINGS)):
        try:
            links[path] = os.readlink(path)
        except FileNotFoundError:
            continue
        except OSError:  # it is not a link
            others.append(Bind(source=path, target=path))
    return open_all(others), links


def _make_skeleton(links: dict[str, str]) -> None:
    for folder in FOLDERS:
        os.mkdir(NEW_ROOT + folder)
    for path, text in FILES.items():
        write_file(NEW_ROOT + path, text.encode())
    for name in JAIL_DEVICES:
        write_file(f"{NEW_ROOT}/dev/{name}")
    for path, target in (links | LINKS).items():
        os.symlink(target, NEW_ROOT + path)


def _covered(binds: tuple[Bind, ...]) -> tuple[Bind, ...]:
    """Those of a root's binds that new private folders will cover: an interpreter below /tmp."""
    return tuple(bind for bind in binds if any(_inside(bind.target, p) for p in _PRIVATE))


@contextlib.contextmanager
def uncovered(binds: tuple[Bind, ...]) -> Iterator[None]:
    """Keep binds that the block covers with new private folders: put them back at its end."""
    with contextlib.ExitStack() as opened:
        lifted: list[tuple[Bind, int]] = []
        for bind in _covered(binds):
            lifted.append((bind, sys.clone_tree(bind.target)))
            opened.callback(os.close, lifted[-1][1])
        yield
        _put_back(lifted)


def _put_back(lifted: list[tuple[Bind, int]]) -> None:
    for bind, tree in lifted:
        if not os.path.exists(bind.target):
            make_target(bind.target, is_folder=stat.S_ISDIR(os.fstat(tree).st_mode))
        sys.attach_tree(tree, bind.target)
    _close_ways(lifted, "")


def _inside(path: str, folder: str) -> bool:
    return path.startswith(folder + "/")


def _close_ways(binds: list[tuple[Bind, int]], root: str = NEW_ROOT) -> None:
    """Folders that are only on the way to something: passed through, but not listed."""
    mounted = {*SYSTEM_PATHS, *PRIVATE_FOLDERS.values(), *(bind.target for bind, _ in binds)}
    for way in {way for bind, _ in binds for way in _ways(bind.target)} - _OPEN_WAYS - mounted:
        if not below_a_bind(way, binds):
            os.chmod(root + way, 0o111)  # noqa: S103 - the least that can be passed through


def _ways(path: str) -> list[str]:
    """Return the folders that a path leads through."""
    names = path.split("/")[1:-1]
    return ["/" + "/".join(names[: count + 1]) for count in range(len(names))]


def _bind_devices(devices: list[tuple[str, int]]) -> None:
    for name, fd in devices:
        target = f"{NEW_ROOT}/dev/{name}"
        sys.mount(f"/proc/self/fd/{fd}", target, None, sys.MS_BIND)
        sys.set_mount_attributes(target, sys.ATTR_NOSUID | sys.ATTR_NOEXEC, recursive=False)
        os.close(fd)


def mount_proc(root: str) -> None:
    """Before the old root goes: a user namespace may mount proc only where one is in sight."""
    target = root + "/proc"
    flags = sys.MS_NOSUID | sys.MS_NODEV | sys.MS_NOEXEC
    sys.mount("proc", target, "proc", flags, "hidepid=2")
    for name, cover in proc_covers().items():
        sys.mount(root + cover, f"{target}/{name}", None, sys.MS_BIND)
    sys.set_mount_attributes(target, sys.ATTR_RDONLY, recursive=True)


def _mount_plain_proc() -> None:
    flags = sys.MS_NOSUID | sys.MS_NODEV | sys.MS_NOEXEC
    sys.mount("proc", NEW_ROOT + "/proc", "proc", flags)


def mount_terminals(root: str) -> None:
    """Mount pseudo-terminals of the jail's own: none of another's can be named there."""
    flags = sys.MS_NOSUID | sys.MS_NOEXEC
    sys.mount("devpts", root + "/dev/pts", "devpts", flags, PTY_OPTIONS)


@functools.cache
def proc_covers() -> dict[str, str]:
    """The hidden paths of this kernel's proc, and their covers: an empty folder, or no file."""
    paths = {name: f"/proc/{name}" for name in HIDDEN_PROC}
    return {
        name: BOX if os.path.isdir(path) else "/dev/null"
        for name, path in paths.items()
        if os.path.exists(path)
    }


def _attach_workspace(tree: int) -> None:
    target = NEW_ROOT + WORK_FOLDER
    sys.attach_tree(tree, target)
    os.close(tree)
    sys.set_mount_attributes(target, sys.ATTR_NOSUID | sys.ATTR_NODEV, recursive=False)


def _enter(*, writable: bool = False) -> None:
    if not writable:
        sys.set_mount_attributes(NEW_ROOT, sys.ATTR_RDONLY, recursive=False)
    os.chdir(NEW_ROOT)
    sys.pivot_root(".", ".")
    sys.detach(".")
    os.chdir("/")
