"""Packs what a session has changed in its image as the tar of a layer.

    upper layer of its root     new and changed files; whiteouts of those that it deleted
    /app, /home/guest           as they are now, in place of what the image has there

SECURITY: the files are the guest's, and so are their names. They are reached by descriptors, no
link is followed, and only regular files are opened. The size of a file is counted before it is
read, as holes take no room in the session but do in an image. Devices and sockets are left out, and
set-id bits, and names that would delete files of the image.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tarfile
from collections import Counter
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Protocol, cast

from atoll.errors import ImageError
from atoll.files.folder import open_beneath
from atoll.images.image import read_owners
from atoll.jail.supervisor.spec import GUEST_HOME, SHOWN_FOLDERS, WORK_FOLDER
from atoll.jail.walls import image_root, root
from atoll.jail.walls.copytree import OPAQUE as OPAQUE_ATTRIBUTE
from atoll.jail.walls.private_folders import BOX, PRIVATE_FOLDERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from atoll.images.image import Image, Owner

MOST_ENTRIES = 500_000
MOST_PATH = 3_800
"""As the unpacker allows."""
KEPT_FOLDERS = (WORK_FOLDER, GUEST_HOME)
"""Private folders that a commit keeps; the others are for what is temporary."""
OPAQUE, WHITEOUT = ".wh..wh..opq", ".wh."
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_COVERED = ("/proc", "/dev", PRIVATE_FOLDERS["tmp"], BOX, *SHOWN_FOLDERS)
"""Where mounts hide what is in the root."""


class Writes(Protocol):
    """What takes the tar."""

    def write(self, data: bytes, /) -> int:
        """Take bytes; return how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Descriptors of a session's folders, and what is mounted in its root."""

    upper: int | None
    """The upper layer; None if the root is read-only."""
    folders: dict[str, int]
    """Private folders by their paths, which replace those of the image."""
    mounted: tuple[str, ...] = ()
    """Further paths in the root that are the host's."""


@dataclass(slots=True, kw_only=True)
class Packed:
    """What was packed, and how much was left out."""

    files: int = 0
    size: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


def pack_changes(changes: Changes, base: Image, out: Writes, most: int) -> Packed:
    """Write the layer as a tar to `out`; ImageError if it has more than `most` bytes."""
    packed = Packed()
    with tarfile.open(
        fileobj=cast("IO[bytes]", out),
        mode="w|",
        format=tarfile.PAX_FORMAT,
        errors="surrogateescape",
    ) as tar:
        writer = _Writer(tar, base, packed, most)
        if changes.upper is not None:
            _UpperTree(changes.upper, writer, changes.mounted).pack()
        for place, fd in changes.folders.items():
            tree = _Tree(fd, writer, place.strip("/"))
            if writer.has(place) or not tree.is_empty():
                writer.replace(place)
                tree.pack()
    return packed


class _Writer:
    """The tar of the layer; counts before it reads."""

    def __init__(self, tar: tarfile.TarFile, base: Image, packed: Packed, most: int) -> None:
        self._tar, self._base, self.packed, self._most = tar, base, packed, most
        self._owners = [read_owners(layer) for layer in reversed(base.layers)]

    def add(self, path: str, info: os.stat_result, kind: bytes, link: str = "") -> tarfile.TarInfo:
        """Return the header of an entry, counted; ImageError if there are too many."""
        if len(os.fsencode(path)) > MOST_PATH:
            raise self.failure(f"a path has more than {MOST_PATH:,} bytes: /{path[:100]!r}...")
        member = tarfile.TarInfo(path)
        member.type, member.linkname = kind, link
        member.mode = 0o777 if kind == tarfile.SYMTYPE else stat.S_IMODE(info.st_mode) & 0o1777
        member.mtime = max(0, int(info.st_mtime))
        if (owner := self._owner(path)) is not None:
            member.uid, member.gid = owner.uid, owner.gid
        member.size = info.st_size if kind == tarfile.REGTYPE else 0
        self.packed.files += 1
        self.packed.size += member.size
        if self.packed.size > self._most:
            reason = f"its changes have more than {self._most:,} bytes; holes in files count, too"
            raise self.failure(reason, "Delete files, or raise disk_bytes and ATOLL_IMAGES_MB.")
        if self.packed.files > MOST_ENTRIES:
            raise self.failure(f"its changes are more than {MOST_ENTRIES:,} files")
        return member

    def write(self, member: tarfile.TarInfo, file: IO[bytes] | None = None) -> None:
        """Write an entry, and forget it."""
        self._tar.addfile(member, file)
        vars(self._tar)["members"].clear()  # or every header stays in memory

    def delete(self, path: str) -> None:
        """Write a whiteout: the image's file of this path is gone."""
        folder, _, name = path.rpartition("/")
        self.write(tarfile.TarInfo(f"{folder}/{WHITEOUT}{name}".lstrip("/")))
        self.packed.files += 1

    def hide_lower(self, path: str) -> None:
        """Write that a folder has nothing of the image's folder of this path."""
        self.write(tarfile.TarInfo(f"{path}/{OPAQUE}"))

    def replace(self, place: str) -> None:
        """Write the folder `place`, empty."""
        member = tarfile.TarInfo(place.strip("/"))
        member.type, member.mode = tarfile.DIRTYPE, 0o755
        self.write(member)
        self.hide_lower(place.strip("/"))

    def has(self, place: str) -> bool:
        """Return whether the image has a folder that is not empty."""
        found = [layer / place[1:] for layer in self._base.layers]
        return any(
            path.is_dir() and not path.is_symlink() and any(path.iterdir()) for path in found
        )

    def is_as_made(self, path: str, text: bytes) -> bool:
        """Return whether a file of users is the image's with the guest's own line."""
        name = os.path.basename(path)
        for layer in reversed(self._base.layers):
            folder = os.open(layer, os.O_PATH | os.O_CLOEXEC)
            try:
                with open(open_beneath(folder, path, _FILE), "rb") as file:
                    return image_root.with_guest(name, file.read(len(text) + 1)) == text
            except OSError:  # not in this layer
                continue
            finally:
                os.close(folder)
        return text == root.FILES[f"/{path}"].encode()

    def failure(self, reason: str, hint: str = "") -> ImageError:
        """Return the error about this image."""
        return ImageError(self._base.reference, f"it cannot be committed: {reason}", hint)

    def _owner(self, path: str) -> Owner | None:
        return next((owners[path] for owners in self._owners if path in owners), None)


class _Tree:
    """A folder of the guest that becomes a folder of the layer."""

    def __init__(self, fd: int, writer: _Writer, place: str) -> None:
        self._root, self._writer, self._place = fd, writer, place
        self._links: dict[tuple[int, int], str] = {}
        """Where files with several names were packed."""
        self._widened: list[tuple[str, int]] = []
        """Folders that were opened for their owner, and the modes that they had."""

    def pack(self) -> None:
        """Pack all that is in it; modes that keep even its owner out are as they were then."""
        try:
            waiting = [""]
            while waiting:
                folder = waiting.pop()
                with self._open_folder(folder) as fd:
                    found = list(self._pack_folder(folder, fd))
                waiting += reversed(found)
        finally:
            for path, mode in reversed(self._widened):
                self._set_mode(path, mode)

    def is_empty(self) -> bool:
        """Return whether nothing is in it."""
        with self._open_folder("") as fd:
            return not os.listdir(fd)

    def _pack_folder(self, folder: str, fd: int) -> Iterator[str]:
        """Pack the contents of a folder; yield the folders in it, to be packed later."""
        for name in sorted(os.listdir(fd)):
            path = f"{folder}/{name}".lstrip("/")
            try:
                info = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:  # a process that could not be frozen has deleted it
                continue
            if name.startswith(WHITEOUT):
                self._writer.packed.left_out["names with .wh."] += 1
            elif self._pack(path, name, fd, info):
                yield path

    def _pack(self, path: str, name: str, fd: int, info: os.stat_result) -> bool:
        """Pack one entry; return whether it is a folder to go into."""
        place = f"{self._place}/{path}".lstrip("/")
        writer, kind = self._writer, stat.S_IFMT(info.st_mode)
        if kind == stat.S_IFDIR:
            writer.write(writer.add(place, info, tarfile.DIRTYPE))
        elif kind == stat.S_IFLNK:
            target = os.readlink(name, dir_fd=fd)
            writer.write(writer.add(place, info, tarfile.SYMTYPE, target))
        elif kind == stat.S_IFREG:
            self._pack_file(path, place, info)
        elif kind == stat.S_IFIFO:
            writer.write(writer.add(place, info, tarfile.FIFOTYPE))
        else:
            writer.packed.left_out["devices and sockets"] += 1
        return kind == stat.S_IFDIR

    def _pack_file(self, path: str, place: str, info: os.stat_result) -> None:
        inode = info.st_dev, info.st_ino
        if inode in self._links:
            member = self._writer.add(place, info, tarfile.LNKTYPE, self._links[inode])
            self._writer.write(member)
            return
        with self._open_file(path) as file:
            now = os.fstat(file.fileno())
            if (now.st_dev, now.st_ino) != inode:
                raise self._writer.failure(f"/{place[:200]} was replaced meanwhile", "Try again.")
            try:
                self._writer.write(self._writer.add(place, now, tarfile.REGTYPE), file)
            except (EOFError, OSError) as exc:
                if "end of data" not in str(exc):
                    raise
                reason = f"/{place[:200]} became shorter meanwhile"
                raise self._writer.failure(reason, "Try again.") from None
        if info.st_nlink > 1:
            self._links[inode] = place

    @contextlib.contextmanager
    def _open_folder(self, path: str) -> Iterator[int]:
        """Open a folder; one that its owner cannot list is widened until all is packed."""
        with self._found(path or ".") as mode:
            if mode & 0o500 != 0o500:
                self._widened.append((path or ".", mode))
                self._set_mode(path or ".", mode | 0o500)
        fd = open_beneath(self._root, path or ".", _FOLDER)
        try:
            yield fd
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _open_file(self, path: str) -> Iterator[IO[bytes]]:
        with self._found(path) as mode:
            if not mode & 0o400:
                self._set_mode(path, mode | 0o400)
            try:
                fd = open_beneath(self._root, path, _FILE)
            finally:
                if not mode & 0o400:
                    self._set_mode(path, mode)
        with open(fd, "rb") as file:
            yield file

    @contextlib.contextmanager
    def _found(self, path: str) -> Iterator[int]:
        """Yield the mode of what a path names; a link is not followed."""
        fd = open_beneath(self._root, path, os.O_PATH | os.O_NOFOLLOW)
        try:
            yield stat.S_IMODE(os.fstat(fd).st_mode)
        finally:
            os.close(fd)

    def _set_mode(self, path: str, mode: int) -> None:
        fd = open_beneath(self._root, path, os.O_PATH | os.O_NOFOLLOW)
        try:
            os.chmod(f"/proc/self/fd/{fd}", mode)  # of this very file, whatever the path is now
        finally:
            os.close(fd)


class _UpperTree(_Tree):
    """The upper layer of an image's root: with whiteouts, and with what is ours in it."""

    def __init__(self, fd: int, writer: _Writer, mounted: Iterable[str]) -> None:
        super().__init__(fd, writer, "")
        self._covered = {path[1:] for path in (*_COVERED, *mounted, *root.LINKS)}
        self._ways = {path[1:] for path in root.FOLDERS}
        self._ways |= {way[1:] for path in (*mounted, *root.LINKS) for way in _ways(path)}

    def _pack(self, path: str, name: str, fd: int, info: os.stat_result) -> bool:
        is_folder = stat.S_ISDIR(info.st_mode)
        if path in self._covered:
            return False
        if path in self._ways and is_folder and not self._is_opaque(path):
            return True
        if stat.S_ISCHR(info.st_mode) and info.st_rdev == 0:
            self._writer.delete(path)
            return False
        if path in ("etc/passwd", "etc/group") and self._is_ours(path, info):
            return False
        packs = super()._pack(path, name, fd, info)
        if is_folder and self._is_opaque(path):
            self._writer.hide_lower(path)
        return packs

    def _is_ours(self, path: str, info: os.stat_result) -> bool:
        if not stat.S_ISREG(info.st_mode) or info.st_size > image_root.MOST_USERS:
            return False
        with self._open_file(path) as file:
            return self._writer.is_as_made(path, file.read(image_root.MOST_USERS))

    def _is_opaque(self, path: str) -> bool:
        with self._open_folder(path) as fd:
            try:
                return os.getxattr(fd, OPAQUE_ATTRIBUTE) == b"y"
            except OSError:  # there is none
                return False


def _ways(path: str) -> list[str]:
    """Return the folders that a path leads through."""
    names = path.split("/")[1:-1]
    return ["/" + "/".join(names[: count + 1]) for count in range(len(names))]
