"""Writes the entries of one layer into the working folder."""

from __future__ import annotations

import json
import os
import stat
import tarfile

from .merged import Folder, HostileLayerError, join, kind_of, look_below, names_below, split
from .stream import CHUNK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .stream import Stream

BLOCK = 4096
MOST_LINKS = 40
MOST_HEADER = 1 << 20
MOST_NOTED = 256 << 20
"""Bytes of the side file."""
MOST_REMOVED = 10_000
"""Folders that a layer may write and then remove again; others remove none."""
OPAQUE, WHITEOUT = ".wh..wh..opq", ".wh."
LATEST = 1 << 34
_EXTENDED = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_HEADERS = (*_EXTENDED, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_XATTR = "SCHILY.xattr."


class Room:
    """The bytes and entries that may still be written."""

    def __init__(self, most: int, entries: int) -> None:
        self.most, self.taken = most, 0
        self.most_entries, self.entries = entries, 0

    def take(self, size: int) -> None:
        """Count one entry of so many bytes; HostileLayerError if they are too many."""
        self.taken += -(-size // BLOCK) * BLOCK + BLOCK  # an inode takes room too
        self.entries += 1
        if self.taken > self.most:
            raise HostileLayerError(f"it unpacks to more than {self.most:,} bytes")
        if self.entries > self.most_entries:
            raise HostileLayerError(f"it has more than {self.most_entries:,} entries")


class Member(tarfile.TarInfo):
    """A header of a tar; one that is too large to be read into memory is refused."""

    def _proc_member(self, tar: tarfile.TarFile) -> Any:
        if self.size < 0:
            raise HostileLayerError("a size in it is negative")
        if self.type in _HEADERS and self.size > MOST_HEADER:
            raise HostileLayerError(f"a header in it has more than {MOST_HEADER:,} bytes")
        return super()._proc_member(tar)  # type: ignore[misc]


class Layer:
    """One layer as it is written, seen together with those below it.

    All paths are relative to the root, and no component of them is a link.
    """

    def __init__(self, lower: tuple[str, ...], room: Room) -> None:
        self.room = room
        self.owners: dict[str, list[int]] = {}
        self.dropped: dict[str, int] = {}
        self._noted = self._removed = 0
        self._root = Folder("", [f"{folder}/tree" for folder in lower], mine=True)
        self._folders = {"": self._root}
        self._modes: dict[str, tuple[int, float]] = {"": (0o755, 0)}
        """Modes and times of folders, which are set last."""
        self._lower_owners: dict[str, dict[str, list[int]]] = {}

    def fill(self, stream: Stream) -> None:
        """Write all entries of a tar."""
        with tarfile.open(fileobj=stream, mode="r:", tarinfo=Member) as tar:  # type: ignore[call-overload]
            while (member := _next(tar, stream)) is not None:
                self.add(tar, stream, member)
                tar.members.clear()  # or every header stays in memory
        while stream.read(CHUNK):  # to hash it all
            pass
        self._finish()

    def add(self, tar: tarfile.TarFile, stream: Stream, member: tarfile.TarInfo) -> None:
        """Write one entry."""
        self.room.take(member.size if member.isreg() else 0)
        folder, name = self._place_of(member.name)
        if name == OPAQUE:
            self._hide_all(folder)
        elif name.startswith(WHITEOUT):
            name = name[len(WHITEOUT) :]
            if name in ("", ".", "..") or name.startswith(WHITEOUT):
                raise HostileLayerError(f"it deletes a file with the name {name[:100]!r}")
            self._clear(folder, name)
        elif member.isdir():
            self._add_folder(member, folder, name)
        elif not name:
            raise HostileLayerError("its root is not a folder")
        elif member.isreg() or member.issym() or member.isfifo():
            self._clear(folder, name)
            self._enter(folder)
            self._add_file(tar, stream, member, join(folder.path, name))
        elif member.islnk():
            self._add_link(member, folder, name)
        else:
            self._drop("devices")

    def _add_folder(self, member: tarfile.TarInfo, folder: Folder, name: str) -> None:
        inner = self._look(folder, name) if name else folder
        if not isinstance(inner, Folder):
            self._clear(folder, name)
            inner = self._make_folder(folder, name)
        self._enter(inner)
        mode = member.mode & 0o1777 | 0o700
        self._modes[inner.path] = mode, _time(member)
        self._note(inner.path, [member.uid, member.gid, member.mode & 0o7777], mode)

    def _add_file(
        self, tar: tarfile.TarFile, stream: Stream, member: tarfile.TarInfo, path: str
    ) -> None:
        mode = member.mode & 0o1777 | 0o400
        owner = [member.uid, member.gid, member.mode & 0o7777]
        if member.issym():
            os.symlink(member.linkname, path)
            self._note(path, [*owner[:2], 0o777], 0o777)
            return
        if member.isfifo():
            os.mkfifo(path, 0o600)
        else:
            self._write(tar, stream, member, path)
        os.chmod(path, mode)
        os.utime(path, (_time(member), _time(member)))
        self._note(path, owner, mode)

    def _write(
        self, tar: tarfile.TarFile, stream: Stream, member: tarfile.TarInfo, path: str
    ) -> None:
        source: Any = tar.extractfile(member) if member.sparse else stream
        if not member.sparse:
            stream.seek(member.offset_data)
        with open(path, "xb", buffering=0) as file:
            left = member.size
            while left > 0:
                data = source.read(min(CHUNK, left))
                if not data:
                    raise HostileLayerError("it ends within a file")
                file.write(data)
                left -= len(data)
            for key, value in member.pax_headers.items():
                if key.startswith(_XATTR):
                    self._set_attribute(file.fileno(), key[len(_XATTR) :], value)

    def _set_attribute(self, fd: int, name: str, value: str) -> None:
        """Set an attribute of users; a kernel would believe those of an overlay."""
        if not name.startswith("user.") or name.startswith("user.overlay."):
            self._drop("attributes")
            return
        try:
            os.setxattr(fd, name, value.encode("utf-8", "surrogateescape"))
        except (OSError, ValueError):
            self._drop("attributes")

    def _add_link(self, member: tarfile.TarInfo, folder: Folder, name: str) -> None:
        path = join(folder.path, name)
        source = self._link_source(member)
        if source == path:
            return
        self._clear(folder, name)
        self._enter(folder)
        if kind_of(source) is None:
            raise HostileLayerError(f"a hard link in it replaces its own target: {path[:200]!r}")
        os.link(source, path, follow_symlinks=False)
        if source in self.owners:
            self.owners[path] = self.owners[source]

    def _link_source(self, member: tarfile.TarInfo) -> str:
        """Return the path in this layer of the file that a hard link names; copy it if needed."""
        folder, name = self._place_of(member.linkname)
        path = join(folder.path, name)
        target = self._look(folder, name) if name else folder
        if target is None or isinstance(target, Folder):
            what = "nothing" if target is None else "a folder"
            raise HostileLayerError(f"a hard link in it leads to {what}: {member.name[:200]!r}")
        if folder.mine and kind_of(path) is not None:
            return path
        places = [f"{tree}/{name}" for tree in folder.lower]
        self._enter(folder)
        self._copy_up(next(place for place in places if kind_of(place) is not None), path)
        return path

    def _copy_up(self, source: str, path: str) -> None:
        """Copy a file of a lower layer into this one, as an overlay does before it is linked."""
        info = os.lstat(source)
        self.room.take(info.st_size)
        self._copy_owner(path, source)
        if stat.S_ISLNK(info.st_mode):
            os.symlink(os.readlink(source), path)
            return
        if stat.S_ISREG(info.st_mode):
            with open(source, "rb") as file, open(path, "xb") as made:
                while data := file.read(CHUNK):
                    made.write(data)
        else:
            os.mkfifo(path, 0o600)
        os.chmod(path, stat.S_IMODE(info.st_mode))
        os.utime(path, (info.st_mtime, info.st_mtime))

    def _drop(self, what: str) -> None:
        self.dropped[what] = self.dropped.get(what, 0) + 1

    def _note(self, path: str, owner: list[int], mode: int) -> None:
        """Note the owner and mode of an entry if they are not root's, or not those on the disk."""
        self.owners.pop(path, None)
        if owner != [0, 0, mode]:
            self._noted += len(path) + 40
            if self._noted > MOST_NOTED:
                raise HostileLayerError("it has too many files of other owners")
            self.owners[path] = owner

    def _copy_owner(self, path: str, source: str) -> None:
        """Note for a path what the layer of `source`, its place in another tree, says about it."""
        folder = source[: len(source) - len(path) - len("/tree/")]
        if folder not in self._lower_owners:
            with open(f"{folder}/owners.json", "rb") as file:
                self._lower_owners[folder] = json.load(file)
        if (owner := self._lower_owners[folder].get(path)) is not None:
            self._note(path, owner, -1)

    def _place_of(self, name: str) -> tuple[Folder, str]:
        """Return the folder of an entry, and the entry's name in it; none for the root itself."""
        parts = split(name)
        if parts and parts[-1] == "..":
            raise HostileLayerError(f"a path in it ends with ..: {name[:200]!r}")
        return self._resolve(parts[:-1]), parts[-1] if parts else ""

    def _resolve(self, parts: list[str]) -> Folder:
        """Walk to a folder from the root of the merged view; make those that are missing."""
        path = "/".join(parts)
        if path in self._folders and ".." not in parts:
            return self._folders[path]
        stack, left, links = [self._root], parts[::-1], 0
        while left:
            name = left.pop()
            if name == "..":
                del stack[max(len(stack) - 1, 1) :]  # the parent of the root is the root
                continue
            inner = self._look(stack[-1], name)
            if isinstance(inner, str):
                links += 1
                if links > MOST_LINKS:
                    raise HostileLayerError("a path in it leads through too many links")
                if inner.startswith("/"):
                    del stack[1:]
                left += split(inner)[::-1]
            elif inner is False:
                raise HostileLayerError(f"a path in it leads through a file: {path[:200]!r}")
            else:
                made = inner if isinstance(inner, Folder) else self._make_folder(stack[-1], name)
                stack.append(made)
        return stack[-1]

    def _look(self, folder: Folder, name: str) -> Folder | str | bool | None:
        """Return a folder, the target of a link, False for another file, None for nothing."""
        path = join(folder.path, name)
        if path in self._folders:
            return self._folders[path]
        if folder.mine and (kind := kind_of(path)) is not None:
            return os.readlink(path) if stat.S_ISLNK(kind) else False
        beneath = folder.below(name)
        if not isinstance(beneath, list):
            return beneath
        inner = self._folders[path] = Folder(path, beneath, mine=False)
        return inner

    def _make_folder(self, folder: Folder, name: str) -> Folder:
        """Make a folder where there is none in the merged view."""
        self._enter(folder)
        path = join(folder.path, name)
        self.room.take(0)
        os.mkdir(path, 0o700)
        self._modes[path] = 0o755, 0
        beneath = look_below(folder.lower, name)
        lower = beneath if isinstance(beneath, list) else []
        inner = self._folders[path] = Folder(path, lower, mine=True, opaque=True)
        return inner

    def _enter(self, folder: Folder) -> None:
        """Make a folder of a lower layer in this one too, with the same mode and owner."""
        missing = []
        while not folder.mine:
            missing.append(folder)
            folder = self._folders[folder.path.rpartition("/")[0]]
        for inner in reversed(missing):
            self.room.take(0)
            os.mkdir(inner.path, 0o700)
            info = os.lstat(inner.lower[0])
            self._modes[inner.path] = stat.S_IMODE(info.st_mode), info.st_mtime
            self._copy_owner(inner.path, inner.lower[0])
            inner.mine = True

    def _hide_all(self, folder: Folder) -> None:
        """Hide what the layers below have in a folder; what this layer has there stays."""
        self._enter(folder)
        folder.opaque = True
        for path in _inside(self._folders, folder.path):
            if self._folders[path].mine:
                self._folders[path].opaque = True
            else:
                del self._folders[path]

    def _clear(self, folder: Folder, name: str) -> None:
        """Remove an entry from the merged view, if it has one."""
        path = join(folder.path, name)
        if (known := self._folders.get(path)) is not None:
            self._removed += 1
            if self._removed > MOST_REMOVED:
                raise HostileLayerError(f"it removes more than {MOST_REMOVED:,} folders again")
            if known.mine:
                _remove_folder(path)
            for table in (self._folders, self._modes, self.owners):
                for key in [path, *_inside(table, path)]:
                    table.pop(key, None)
        elif folder.mine and kind_of(path) is not None:
            os.unlink(path)
            self.owners.pop(path, None)
        if folder.below(name) is not None:
            self._enter(folder)
            folder.gone.add(name)

    def _finish(self) -> None:
        """Write whiteouts, then modes and times of folders, deepest first."""
        for folder in [folder for folder in self._folders.values() if folder.mine]:
            for name in names_below(folder.lower) if folder.opaque else folder.gone:
                path = join(folder.path, name)
                if kind_of(path) is None:
                    self.room.take(0)
                    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(0, 0))
        for path in sorted(self._modes, key=lambda key: key.count("/"), reverse=True):
            mode, time = self._modes[path]
            os.chmod(path or ".", mode)
            os.utime(path or ".", (time, time))


def _next(tar: tarfile.TarFile, stream: Stream) -> tarfile.TarInfo | None:
    """Return the next header; None at the end, also if the padding after a last file is missing."""
    try:
        return tar.next()
    except tarfile.ReadError:
        if stream.read(1):
            raise
        return None


def _remove_folder(path: str) -> None:
    for folder, folders, files in os.walk(path, topdown=False):
        for name in files:
            os.unlink(f"{folder}/{name}")
        for name in folders:
            inner = f"{folder}/{name}"
            os.unlink(inner) if os.path.islink(inner) else os.rmdir(inner)
    os.rmdir(path)


def _inside(table: dict[str, Any], path: str) -> list[str]:
    inner = path + "/" if path else ""
    return [key for key in table if key.startswith(inner) and key != path]


def _time(member: tarfile.TarInfo) -> float:
    return member.mtime if 0 <= member.mtime < LATEST else 0
