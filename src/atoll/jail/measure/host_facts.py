"""What may stand in the way of a jail on this host, and what to type about it."""

from __future__ import annotations

import contextlib
import os
import resource
from dataclasses import dataclass
from pathlib import Path

from atoll.jail.measure import kernel_calls

SYSCTLS = (
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ("user.max_user_namespaces", "0", "10000"),
)
"""Settings that forbid user namespaces: name, the value that forbids, the value to set."""
_ULIMITS = (
    (resource.RLIMIT_NOFILE, 64, "-n 1024"),
    (resource.RLIMIT_FSIZE, 1 << 20, "-f unlimited"),
    (resource.RLIMIT_NPROC, 16, "-u 1024"),
)
"""What a jail needs of the limits of the process that asks for it: kind, least, how to set it."""
_FILTERED = {
    "podman": "--security-opt seccomp=unconfined",
    "docker": "--security-opt seccomp=unconfined --security-opt apparmor=unconfined",
    "kubernetes": "securityContext.seccompProfile.type: Unconfined",
}
_MASKED = {
    "podman": "--security-opt unmask=ALL",
    "docker": "--security-opt systempaths=unconfined",
    "kubernetes": "securityContext.procMount: Unmasked",
}
_UNABLE = {
    "podman": "--cap-add SETFCAP",
    "docker": "--cap-add SETFCAP",
    "kubernetes": "securityContext.capabilities.add: [SETFCAP]",
}
_OTHER = "podman"
"""Whose options are shown if it is not known who made the container."""
_SETFCAP = 31
_GVISOR = (
    "this is inside gVisor (runsc), whose kernel has no jails: run Atoll on the host, where "
    "backend='gvisor' uses runsc, or use one that runs elsewhere: backend='remote' (--url)"
)
_CHROOT = (
    "this is a chroot, in which the kernel forbids user namespaces: enter that folder with "
    "`unshare --mount` and `pivot_root`, or in a container, instead of with `chroot`"
)
_FILTER = (
    "a seccomp filter is active for this process: take SystemCallFilter, RestrictNamespaces and "
    "their like out of its systemd unit"
)


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What may stand in the way of namespaces and mounts."""

    container: str
    """Who made the container around this process; empty outside of one."""
    filtered: bool
    """Whether a seccomp filter is active for this process."""
    masked: bool
    """Whether parts of /proc are covered, so that no new /proc can be mounted."""
    sysctls: tuple[str, ...]
    """Kernel settings that forbid user namespaces, as they have to be set."""
    ulimits: tuple[str, ...] = ()
    """Limits of this process that are too low for a jail, as they have to be set."""
    chrooted: bool = False
    """Whether the root is not that of the mount namespace."""
    unable_root: bool = False
    """Whether this is root without CAP_SETFCAP, which may not map itself to a user namespace."""
    gvisor: bool = False
    """Whether the kernel is gVisor's."""
    kernel: str = ""
    """The first Linux that has all system calls that are missing; empty if none is."""

    @property
    def words(self) -> str:
        """The container and its walls, for a report; empty outside of one."""
        if not self.container:
            return ""
        walls = ["a seccomp filter"] * self.filtered + ["a masked /proc"] * self.masked
        return f"{self.container}, with {' and '.join(walls)}" if walls else self.container

    def hint(self) -> str:
        """Return what to do so that jails can be built."""
        text = "; ".join(self._to_do()) or _anything()
        return f"{text[0].upper()}{text[1:]}."

    def _to_do(self) -> list[str]:
        if self.gvisor:
            return [_GVISOR]
        if self.ulimits:
            return [f"this process may use too little: type {' && '.join(self.ulimits)}"]
        if self.chrooted:
            return [_CHROOT]
        if self.kernel and not self.filtered:
            return [f"boot Linux {self.kernel} or newer"]
        return [*self._container_to_do(), *self._sysctls_to_do()]

    def _container_to_do(self) -> list[str]:
        if self.container and (options := self._options()):
            how = "put into the pod" if self.container == "kubernetes" else "start it with"
            return [f"this is a container: {how} {options}"]
        if self.unable_root:
            lacking = "this is root without CAP_SETFCAP, who may not map itself to a user namespace"
            return [f"{lacking}: grant it ({_UNABLE[_OTHER]}), or run as an ordinary user"]
        return [_FILTER] if self.filtered else []

    def _sysctls_to_do(self) -> list[str]:
        if not self.sysctls:
            return []
        command = "type `sudo atoll doctor --fix`, which allows user namespaces"
        return [f"{command}, or set {', '.join(self.sysctls)} with sysctl on the host"]

    def _options(self) -> str:
        known = self.container if self.container in _MASKED else _OTHER
        options = [_FILTERED[known]] * self.filtered + [_MASKED[known]] * self.masked
        options += [_UNABLE[known]] * self.unable_root
        return (", " if known == "kubernetes" else " ").join(options)


def read(root: Path = Path("/")) -> HostFacts:
    """Return the facts of this process and host."""
    mounts = _text(root / "proc/self/mountinfo").splitlines()
    points = [line.split()[4] for line in mounts if len(line.split()) > 4]
    status = _text(root / "proc/self/status")
    needed = kernel_calls.ALWAYS + kernel_calls.WALLS + kernel_calls.JAIL
    lacking = kernel_calls.missing(needed)
    return HostFacts(
        container=_container(root),
        filtered="\nSeccomp:\t2\n" in status,
        masked=any(point.startswith("/proc/") for point in points),
        sysctls=_sysctls(root),
        ulimits=_ulimits(),
        chrooted=bool(points) and ("/" not in points or _is_chrooted()),
        unable_root=os.geteuid() == 0 and not _effective(status) >> _SETFCAP & 1,
        gvisor=kernel_calls.is_gvisor(),
        kernel=kernel_calls.newest(lacking) if lacking else "",
    )


def _anything() -> str:
    names = ", ".join(f"{name}={allows}" for name, _, allows in SYSCTLS)
    return (
        f"allow user namespaces ({names}; in a container: a seccomp profile that allows unshare, "
        "mount and sethostname, and an unmasked /proc)"
    )


def _sysctls(root: Path) -> tuple[str, ...]:
    return tuple(
        f"{name}={allows}"
        for name, forbids, allows in SYSCTLS
        if _text(root / "proc/sys" / name.replace(".", "/")).strip() == forbids
    )


def _ulimits() -> tuple[str, ...]:
    return tuple(
        f"ulimit {option}"
        for kind, least, option in _ULIMITS
        if -1 < resource.getrlimit(kind)[0] < least
    )


def _effective(status: str) -> int:
    """Return the effective capabilities; all of them if the status does not say."""
    return int(status.partition("CapEff:")[2].split("\n")[0].strip() or "ffffffffffffffff", 16)


def _is_chrooted() -> bool:
    """Return whether pid 1 has another root, as far as this user may see that."""
    try:
        theirs, ours = os.stat("/proc/1/root"), os.stat("/")
    except OSError:
        return False
    return (theirs.st_dev, theirs.st_ino) != (ours.st_dev, ours.st_ino)


def _container(root: Path) -> str:
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "kubernetes"
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / ".dockerenv").exists():
        return "docker"
    return os.environ.get("container", "")  # noqa: SIM112 - as systemd and others spell it


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text("utf-8", "replace")
    return ""
