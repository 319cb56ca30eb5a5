"""A jail around a container runtime: the steps that differ from those of a guest's own jail.

    /            a small tmpfs, read-only
    /rootfs      the root that any jailed guest has; the runtime gives its container this one
    /run         the runtime's own: the configuration and its state; never seen by the guest
    /proc        of the jail's pid namespace, whole: the runtime mounts one of its own

SECURITY: the runtime builds walls of its own, for which it needs namespaces and ptrace. So it has
no Landlock and no filter here, and all capabilities in a user namespace that owns nothing. What it
sees of the host is what a jailed guest sees: read-only binds, private folders, no network.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from atoll.jail.supervisor.spec import GuestUser
from atoll.jail.walls import root, users
from atoll.jail.walls import syscalls as sys

if TYPE_CHECKING:
    from atoll.jail.walls.steps import Jail

GUEST_ROOT = "/rootfs"
OWN_FOLDER = "/run"
CONFIGURATION = f"{OWN_FOLDER}/config.json"
_HOLDER = "/mnt"
_OPTIONS = "mode=755,size=16m"


def build_root(jail: Jail) -> None:
    """Build the guest's root, with a whole proc."""
    jail.proc_fd = os.open("/proc", os.O_PATH)
    switched = jail.host_uid is not None
    owner = jail.host_uid or os.geteuid()
    jail.upper_fd = root.build(
        jail.binds,
        jail.limits.disk,
        jail.workspace,
        owner,
        switched=switched,
        plain=True,
        image=jail.image,
    )


def enter_holder(jail: Jail) -> None:
    """Move the guest's root below a root that has the runtime's own folder beside it."""
    assert jail.container is not None
    flags = sys.MS_NOSUID | sys.MS_NODEV
    sys.mount("tmpfs", _HOLDER, "tmpfs", flags, _OPTIONS)
    for folder in (GUEST_ROOT, OWN_FOLDER, "/proc", "/dev", "/tmp"):
        os.mkdir(_HOLDER + folder)
    os.close(os.open(f"{_HOLDER}/dev/null", os.O_CREAT | os.O_CLOEXEC, 0o600))
    for path in ("/proc", "/dev/null"):
        sys.mount(path, _HOLDER + path, None, sys.MS_BIND)
    sys.mount("tmpfs", _HOLDER + OWN_FOLDER, "tmpfs", flags, _OPTIONS)
    _write_configuration(jail)
    sys.set_mount_attributes(_HOLDER, sys.ATTR_RDONLY, recursive=False)
    sys.pivot_root(_HOLDER, _HOLDER + GUEST_ROOT)
    os.chdir("/")
    sys.detach(f"{GUEST_ROOT}/proc")


def _write_configuration(jail: Jail) -> None:
    assert jail.container is not None
    path = _HOLDER + CONFIGURATION
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(jail.container)
    owner = os.geteuid() if jail.host_uid is None else jail.host_uid
    for folder in (_HOLDER + OWN_FOLDER, path):
        os.chown(folder, owner, owner)


def become_root_of_nothing(jail: Jail) -> None:
    """Switch to the guest's user, as root of a user namespace that owns nothing else."""
    users.become_guest(jail.host_uid, jail.proc_fd, GuestUser(0, 0))
