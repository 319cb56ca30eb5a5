"""The working folder as part of a saved state: its files, its folders, and links that stay inside.

No link is ever followed. Folders come first and links last, so nothing is written through one.
"""

from __future__ import annotations

import os
import stat

from .blocks import HEADER_BYTES, PIECE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .blocks import Budget, Buffer, Writer

FOLDER, FILE, MORE, LINK = b"D", b"F", b"A", b"L"
TAGS = (FOLDER, FILE, MORE, LINK)
IGNORED = frozenset({"__pycache__"})
_MODE_BITS = 0o777


class Folder:
    """What of a folder is to be saved: found first, so that its size is known, then written."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._folders: list[tuple[str, int]] = []
        self._files: list[tuple[str, int, int]] = []
        self._links: list[tuple[str, str]] = []
        self.left_out: dict[str, str] = {}
        self.sizes: dict[str, int] = {}

    def find(self, budget: Budget) -> None:
        """Look at all that is there, and count it."""
        waiting = [""]
        while waiting:
            parent = waiting.pop()
            try:
                with os.scandir(os.path.join(self._root, parent)) as entries:
                    children = sorted(entries, key=lambda entry: entry.name)
                for entry in children:
                    self._note(os.path.join(parent, entry.name), entry, waiting, budget)
            except OSError as exc:
                self.left_out["folder " + parent] = str(exc.strerror)

    def write(self, writer: Writer) -> None:
        """Everything that was found."""
        for path, mode in self._folders:
            writer.write(FOLDER, _name(mode, path))
        for path, mode, size in self._files:
            try:
                self._write_file(writer, path, mode, size)
            except OSError as exc:
                self.left_out["file " + path] = str(exc.strerror)
        for path, target in self._links:
            writer.write(LINK, _name(0, path), os.fsencode(target))

    def _note(self, path: str, entry: os.DirEntry[str], waiting: list[str], budget: Budget) -> None:
        info = entry.stat(follow_symlinks=False)
        mode, size = info.st_mode & _MODE_BITS, 0
        if stat.S_ISDIR(info.st_mode):
            if entry.name in IGNORED:
                return
            waiting.append(path)
            self._folders.append((path, mode))
        elif stat.S_ISREG(info.st_mode):
            size = self.sizes["file " + path] = info.st_size
            self._files.append((path, mode, size))
        elif stat.S_ISLNK(info.st_mode) and stays_inside(path, os.readlink(entry.path)):
            self._links.append((path, os.readlink(entry.path)))
        else:
            self.left_out["file " + path] = "neither a file nor a link that stays inside"
        pieces = 1 + size // PIECE
        budget.spend(size + pieces * (HEADER_BYTES + len(os.fsencode(path)) + 8))

    def _write_file(self, writer: Writer, path: str, mode: int, size: int) -> None:
        fd = os.open(os.path.join(self._root, path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            tag, left = FILE, size  # what is written to it meanwhile is not ours
            while tag == FILE or left > 0:
                data = os.read(fd, min(left, PIECE))
                if not data and tag == MORE:
                    break
                writer.write(tag, _name(mode, path), data)
                tag, left = MORE, left - len(data)
        finally:
            os.close(fd)


def put(root: str, tag: bytes, name: bytes, data: Buffer, replace: bool = False) -> None:
    """Make what one block says; ValueError if it would be elsewhere.

    `replace`: whether it takes the place of a file that is there, unless something is mounted.
    """
    octal, _, path = os.fsdecode(name).partition(" ")
    if not stays_inside("", path):
        raise ValueError("a file of the state is not in the folder: {!r}".format(path))
    place, mode = os.path.join(root, path), int(octal, 8) & _MODE_BITS
    if replace and tag in (FILE, LINK):
        _remove(place, os.stat(root).st_dev)
    if tag == FOLDER:
        os.makedirs(place, mode | stat.S_IRWXU, exist_ok=True)
    elif tag == LINK:
        target = os.fsdecode(bytes(data))
        if stays_inside(path, target):
            os.symlink(target, place)
    else:
        _put_file(place, mode, data, os.O_CREAT | os.O_EXCL if tag == FILE else os.O_APPEND)


def _remove(place: str, device: int) -> None:
    """Delete a file or link of this file system."""
    try:
        status = os.lstat(place)
    except FileNotFoundError:
        return
    if status.st_dev == device and not stat.S_ISDIR(status.st_mode):
        os.unlink(place)


def stays_inside(path: str, target: str) -> bool:
    """Return whether `target`, relative to `path`, is in the folder, by its name alone."""
    if os.path.isabs(target):
        return False
    end = os.path.normpath(os.path.join(os.path.dirname(path), target))
    return end != ".." and not end.startswith("../")


def _put_file(place: str, mode: int, data: Buffer, flags: int) -> None:
    fd = os.open(place, os.O_WRONLY | os.O_NOFOLLOW | flags, mode | stat.S_IWUSR)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if hasattr(os, "fchmod"):  # not on WASI, where files have no modes
            os.fchmod(fd, mode | stat.S_IWUSR)
    finally:
        os.close(fd)


def _name(mode: int, path: str) -> bytes:
    return os.fsencode("{:o} {}".format(mode, path))
