"""Who the guest is: an unused high user on the host, or the caller's own; uid 1000 inside.

SECURITY: the guest's user namespace is a child of the one that owns its other namespaces, so
even with every capability in its own it could not touch the mounts, the network or the rest.
"""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path

from atoll.jail.supervisor.spec import GUEST_UID, GuestUser
from atoll.jail.walls import syscalls as sys

FIRST_HOST_UID = 0x70000000
HOST_UIDS = 1 << 24
FIRST_RANGE = FIRST_HOST_UID + HOST_UIDS
RANGE, RANGES = 1 << 16, 1 << 11
_NS_GET_USERNS = 0xB701
_NEEDED_CAPABILITIES = (0, 6, 7, 18, 21)  # CHOWN, SETGID, SETUID, SYS_CHROOT, SYS_ADMIN


def may_switch() -> bool:
    """Whether we are root enough to run guests as other users: rights, and users to choose from."""
    if os.geteuid() != 0:
        return False
    status = Path("/proc/self/status").read_text()
    effective = int(status.split("CapEff:")[1].split()[0], 16)
    ranges = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    last = FIRST_RANGE + RANGE * RANGES
    mapped = any(int(first) + int(size) > last for first, _, size in ranges)
    return mapped and all(effective >> capability & 1 for capability in _NEEDED_CAPABILITIES)


def pick_host_uid() -> int:
    """Return an unused host uid for one sandbox."""
    return FIRST_HOST_UID + _random_below(HOST_UIDS)


def enter_own_user_namespace(seen_as: int = GUEST_UID) -> None:
    """For those who may not switch: a user namespace in which we may make the others.

    Seen as 0, its rights outlast the execution of a program.
    """
    uid, gid = os.geteuid(), os.getegid()
    sys.unshare(sys.CLONE_NEWUSER)
    map_own(uid, gid, seen_as)


def map_own(uid: int, gid: int, seen_as: int = GUEST_UID) -> None:
    """Map the user that this process was before it entered its user namespace."""
    _write_maps(os.open("/proc", os.O_PATH), uid, gid, GuestUser(seen_as, seen_as))


def pick_range() -> int:
    """Return the first of a range of unused host uids for one zygote host."""
    return FIRST_RANGE + RANGE * _random_below(RANGES)


def enter_user_range(first: int, proc_fd: int) -> None:
    """For root: a user namespace with a range of host users, and be root in it."""
    target, (go_read, go_write) = os.getpid(), os.pipe()
    child = os.fork()
    if child == 0:
        os.read(go_read, 1)
        for kind in ("uid_map", "gid_map"):
            _write(os.open(f"{target}/{kind}", os.O_WRONLY, dir_fd=proc_fd), f"0 {first} {RANGE}")
        os._exit(0)
    sys.unshare(sys.CLONE_NEWUSER)
    os.write(go_write, b"x")
    if os.waitpid(child, 0)[1]:
        raise OSError(0, "the user namespace's maps could not be written")
    os.close(go_read)
    os.close(go_write)
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    sys.prctl(sys.PR_SET_DUMPABLE, 1)


def become_guest(host_uid: int | None, proc_fd: int, user: GuestUser) -> None:
    """Turn into the guest's user (None: stay who we are), in a namespace that owns nothing."""
    if host_uid is not None:
        os.setgroups([])
        os.setresgid(host_uid, host_uid, host_uid)
        os.setresuid(host_uid, host_uid, host_uid)
        sys.prctl(sys.PR_SET_DUMPABLE, 1)  # cleared by the change; needed to write our own maps
    uid, gid = os.geteuid(), os.getegid()
    sys.unshare(sys.CLONE_NEWUSER)
    _write_maps(proc_fd, uid, gid, user)


def switch_inside(user: GuestUser) -> None:
    """Turn into the guest's user in its namespace, which this process has joined."""
    os.setresgid(user.gid, user.gid, user.gid)
    os.setresuid(user.uid, user.uid, user.uid)


def enter_owner(namespace: int) -> None:
    """Enter the user namespace that owns another namespace: who has rights there has them here."""
    owner = fcntl.ioctl(namespace, _NS_GET_USERNS)
    if not os.path.samestat(os.fstat(owner), os.stat("/proc/self/ns/user")):
        sys.join(owner)
    os.close(owner)


def idmap_namespace(disk_uid: int, disk_gid: int, host_uid: int) -> int:
    """A user namespace that shows files of one owner as files of `host_uid` (root only)."""
    ready_read, ready_write = os.pipe()
    child = os.fork()
    if child == 0:
        sys.unshare(sys.CLONE_NEWUSER)
        os.write(ready_write, os.readlink("/proc/self").encode())
        signal.pause()
        os._exit(0)
    try:
        seen_as = os.read(ready_read, 32).decode()  # /proc is the host's, our numbers are not
        for kind, disk in (("uid_map", disk_uid), ("gid_map", disk_gid)):
            _write(os.open(f"/proc/{seen_as}/{kind}", os.O_WRONLY), f"{disk} {host_uid} 1")
        return os.open(f"/proc/{seen_as}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready_read)
        os.close(ready_write)


def owned_tree(folder: str, mapped_owner: int | None) -> int:
    """Return a detached mount of a host folder, whose owner is shown as `mapped_owner`."""
    tree = sys.clone_tree(folder)
    if mapped_owner is not None:
        owner = os.stat(folder)
        namespace = idmap_namespace(owner.st_uid, owner.st_gid, mapped_owner)
        try:
            sys.map_mount_ids(tree, namespace)
        except OSError:
            os.close(tree)
            raise
        finally:
            os.close(namespace)
    return tree


def _random_below(size: int) -> int:
    """A number below a power of two; `secrets` would load libcrypto, and every fork map it."""
    return int.from_bytes(os.urandom(8), "little") % size


def _write_maps(proc_fd: int, uid: int, gid: int, user: GuestUser) -> None:
    for file, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user.uid} {uid} 1"),
        ("gid_map", f"{user.gid} {gid} 1"),
    ):
        _write(os.open(f"self/{file}", os.O_WRONLY, dir_fd=proc_fd), text)
    os.close(proc_fd)


def _write(fd: int, text: str) -> None:
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
