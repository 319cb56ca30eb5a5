"""A live clone of this process: forked, then moved into namespaces and folders of its own.

What needs rights is done by the host's side, which has to allow each of the few calls made here;
after the last of them the clone holds no more rights than the guest it came from.
"""

from __future__ import annotations

import os
import sys

from ..core import rights

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

_NEW_MOUNTS, _NEW_GROUPS = 0x00020000, 0x02000000
_CLONING = (1 << 18) | (1 << 21)  # CAP_SYS_CHROOT, CAP_SYS_ADMIN over its own user namespace
_CAPABILITY_VERSION_3 = 0x20080522
FD_BYTES = 4


def enter(status_fd: int, folder: str) -> None:
    """Become apart from the guest that this process was forked from; OSError if refused."""
    import _socket

    here = _current_folder(folder)
    status = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, status_fd)
    status.send(b"here")
    _set_capabilities(_CLONING)
    mounts, place = receive_fds(status_fd, 2)
    _call("setns", mounts, _NEW_MOUNTS)
    # Below the root of the other no mount is listed; the clone's own group is the root of groups.
    _call("unshare", _NEW_MOUNTS | _NEW_GROUPS)
    os.fchdir(place)
    os.chroot(".")
    _set_capabilities(0)
    for fd in (mounts, place):
        os.close(fd)
    try:
        os.chdir(here)
    except OSError:
        os.chdir(folder)
    status.send(b"entered")
    status.close()


def keep_random() -> Callable[[], None]:
    """Return what sets `random` to its present state, for a clone to call after the fork.

    CPython reseeds `random` in every forked child. A clone goes on with the session's numbers.
    Guest code may have replaced the module: whatever it raises is ignored.
    """
    module = sys.modules.get("random")
    try:
        state, restore = module.getstate(), module.setstate  # type: ignore[union-attr]
    except BaseException:
        return lambda: None

    def put_back() -> None:
        try:
            restore(state)
        except BaseException:
            pass

    return put_back


def fork() -> int:
    """Fork as os.fork() does, without its warning about threads, which clones do not have.

    If guest code made warnings errors, Python 3.15 would raise it in the parent, whose child is
    there already. Guest code may have replaced the module: whatever it raises is ignored.
    """
    quiet: Any = None
    try:
        import warnings

        quiet = warnings.catch_warnings()
        quiet.__enter__()
        warnings.simplefilter("ignore")
    except BaseException:
        quiet = None
    try:
        return os.fork()
    finally:
        try:
            quiet.__exit__(None, None, None)
        except BaseException:
            pass


def _current_folder(folder: str) -> str:
    try:
        return os.getcwd()
    except OSError:
        return folder


def receive_fds(status_fd: int, count: int) -> list[int]:
    """Return the descriptors of the next packet: first channel and streams, then the way in.

    The way in is the clone's mount namespace and its root.
    """
    import _socket

    status = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, status_fd)
    try:
        data, ancillary, _, _ = status.recvmsg(
            64, _socket.CMSG_SPACE(count * FD_BYTES), _socket.MSG_CMSG_CLOEXEC
        )
    finally:
        status.detach()
    raw = ancillary[0][2] if data and ancillary else b""
    if len(raw) < count * FD_BYTES:
        raise OSError("no folders could be made for the clone")
    starts = range(0, count * FD_BYTES, FD_BYTES)
    return [int.from_bytes(raw[at : at + FD_BYTES], sys.byteorder) for at in starts]


def _set_capabilities(effective: int) -> None:
    import ctypes

    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)(effective, _CLONING, 0, 0, 0, 0)
    _call("capset", ctypes.byref(header), sets)


def _call(name: str, *args: Any) -> None:
    import ctypes

    if getattr(rights.c_library(), name)(*args) < 0:
        code = ctypes.get_errno()
        raise OSError(code, "{}: {}".format(name, os.strerror(code)))
