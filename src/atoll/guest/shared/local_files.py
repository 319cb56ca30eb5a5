"""Local file operations by path: used inside a guest, which is jailed already."""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator

READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
"""Do not block on a FIFO."""
MAX_FOLDERS_DEEP = 200


def locate(path: str, roots: tuple[str, ...]) -> tuple[str, str]:
    """Return the root that contains a path, and the path below it; the first root by default.

    `/notes.md` is `notes.md` in the first root: a model may take the root for `/`.
    """
    if "\0" in path:
        raise ValueError("the path contains a zero byte")
    whole = os.path.join(path, "") if path.startswith("/") else ""
    root = next((base for base in roots if whole.startswith(base + "/")), "")
    inner = path[len(root) :].lstrip("/") or "."
    if os.path.normpath(inner).split("/")[0] == "..":
        raise ValueError("the path is outside the working folder")
    return root or roots[0], inner


def check_name(path: str) -> None:
    """Raise ValueError for a path whose last part is not a name: it cannot be moved or deleted."""
    if path.rstrip("/").rpartition("/")[2] in ("", ".", ".."):
        raise ValueError("the working folder itself cannot be moved or deleted")


class LocalFiles:
    """The files of this process: below the roots, or anywhere if there are none."""

    def __init__(self, *roots: str) -> None:
        self._roots = roots

    def open(self, path: str) -> int:
        """Open a file for reading; return the descriptor."""
        return os.open(self._at(path), READ)

    def is_link(self, path: str) -> bool:
        """Return whether the path is a symbolic link."""
        return os.path.islink(self._at(path))

    def entries(self, path: str) -> list[tuple[str, os.stat_result]]:
        """Return names and stats of a folder's entries; links are not followed."""
        with os.scandir(self._at(path)) as result:
            return [(entry.name, entry.stat(follow_symlinks=False)) for entry in result]

    def walk(self, path: str) -> Iterator[LocalEntry]:
        """Yield files and folders below a folder; for a file, the file itself."""
        top = self._at(path)
        info = os.stat(top)
        if not stat.S_ISDIR(info.st_mode):
            yield LocalEntry(os.path.basename(top), info, top)
            return
        yield from self._below(top, "", MAX_FOLDERS_DEEP)

    def _below(self, folder: str, prefix: str, deeper: int) -> Iterator[LocalEntry]:
        try:
            entries = sorted(self.entries(folder), key=lambda entry: entry[0])
        except OSError:
            return
        for name, info in entries:
            whole, is_folder = os.path.join(folder, name), stat.S_ISDIR(info.st_mode)
            yield LocalEntry(prefix + name, info, whole, is_folder and not deeper)
            if is_folder and deeper:
                yield from self._below(whole, prefix + name + "/", deeper - 1)

    def store(self, path: str, data: bytes, *, fresh: bool) -> None:
        """Write a file, and make its parent folders."""
        place = self._at(path)
        parent = os.path.dirname(place)
        if parent:
            _make_folders(parent)
        if fresh:
            _create(place, 0o644, data)
            return
        if os.path.isdir(place) and not os.path.islink(place):
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        draft = os.path.join(parent, ".{}.draft".format(os.urandom(8).hex()))
        _create(draft, _mode_of(place), data)
        try:
            os.replace(draft, place)
        except BaseException:
            os.unlink(draft)
            raise

    def stat(self, path: str) -> os.stat_result:
        """Describe a file, folder or link; a link is not followed."""
        return os.lstat(self._at(path))

    def delete(self, path: str, *, recursive: bool) -> None:
        """Delete a file or link, or a folder with all it holds if `recursive`."""
        place = self._own(path)
        if not stat.S_ISDIR(os.lstat(place).st_mode):
            os.unlink(place)
        elif not recursive:
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        else:
            import shutil

            shutil.rmtree(place)

    def move(self, path: str, target: str, *, overwrite: bool) -> None:
        """Rename a file, folder or link, and make the target's parent folders."""
        source, place = self._own(path), self._own(target)
        os.lstat(source)
        if os.path.lexists(place) and not overwrite:
            raise FileExistsError(errno.EEXIST, "it is there already")
        if os.path.dirname(place):
            _make_folders(os.path.dirname(place))
        os.replace(source, place)

    def mkdir(self, path: str) -> None:
        """Make a folder and its parents; it may exist."""
        os.makedirs(self._at(path), exist_ok=True)

    def _own(self, path: str) -> str:
        """Return the path of something that may be moved or deleted: not a root itself."""
        place = self._at(path).rstrip("/")
        check_name(place)
        return place

    def _at(self, path: str) -> str:
        if not self._roots:
            if "\0" in path:
                raise ValueError("the path contains a zero byte")
            return path or "."
        return os.path.join(*locate(path, self._roots))


class LocalEntry:
    """A file or folder that walk() found."""

    def __init__(self, path: str, info: os.stat_result, whole: str, too_deep: bool = False) -> None:
        self.path, self.info, self._whole, self.too_deep = path, info, whole, too_deep

    def open(self) -> int:
        """Open it for reading; return the descriptor."""
        return os.open(self._whole, READ | getattr(os, "O_NOFOLLOW", 0))


def _make_folders(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except FileExistsError:  # which would be said of the file that is to be made there
        raise NotADirectoryError(errno.ENOTDIR, "a file is in the way") from None


def _mode_of(path: str) -> int:
    try:
        return stat.S_IMODE(os.stat(path).st_mode)
    except OSError:
        return 0o644


def _create(path: str, mode: int, data: bytes) -> None:
    """Create a file whole, or not at all."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        fill(fd, data)
    except BaseException:
        os.unlink(path)
        raise


def fill(fd: int, data: bytes) -> None:
    """Write all data and close the descriptor."""
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
    finally:
        os.close(fd)
