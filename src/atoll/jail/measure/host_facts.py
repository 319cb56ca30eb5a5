"""Why this host, or the container around this process, does not allow a jail, and what to type.

Every fact is read from /proc and /run: nothing is tried out here, that is the probe's work.
"""

from __future__ import annotations

import contextlib
import os
import resource
from dataclasses import dataclass
from pathlib import Path

_SYSCTLS = (
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ("user.max_user_namespaces", "0", "10000"),
)
"""Settings that forbid user namespaces: name, the value that forbids, the value to set."""
_ULIMITS = (
    (resource.RLIMIT_NOFILE, 64, "-n 1024"),
    (resource.RLIMIT_FSIZE, 1 << 20, "-f unlimited"),
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
_OTHER = "podman"
"""Whose options are shown if it is not known who made the container."""


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

    @property
    def words(self) -> str:
        """The container and its walls, for a report; empty outside of one."""
        if not self.container:
            return ""
        walls = ["a seccomp filter"] * self.filtered + ["a masked /proc"] * self.masked
        return f"{self.container}, with {' and '.join(walls)}" if walls else self.container

    def hint(self) -> str:
        """Return what to do so that jails can be built."""
        todo = [f"set {', '.join(self.sysctls)} with sysctl on the host"] * bool(self.sysctls)
        if self.container and (options := self._options()):
            how = "put into the pod" if self.container == "kubernetes" else "start it with"
            todo.insert(0, f"this is a container: {how} {options}")
        elif self.filtered:
            todo.insert(0, "a seccomp filter is active for this process: take SystemCallFilter, "
                        "RestrictNamespaces and their like out of its systemd unit")  # fmt: skip
        if self.ulimits:
            todo = [f"this process may use too little: type {' && '.join(self.ulimits)}"]
        if not todo:
            names = ", ".join(f"{name}={allows}" for name, _, allows in _SYSCTLS)
            todo.append(
                f"allow user namespaces ({names}; in a container: a seccomp profile that "
                "allows unshare, mount and sethostname, and an unmasked /proc)"
            )
        text = "; ".join(todo)
        return (
            f"{text[0].upper()}{text[1:]}. Or pass min_isolation='confined' "
            "(--min-isolation confined)."
        )

    def _options(self) -> str:
        known = self.container if self.container in _MASKED else _OTHER
        found = [_FILTERED[known]] * self.filtered + [_MASKED[known]] * self.masked
        return (", " if known == "kubernetes" else " ").join(found)


def read(root: Path = Path("/")) -> HostFacts:
    """Return the facts of this process and host."""
    mounts = _text(root / "proc/self/mountinfo").splitlines()
    points = [line.split()[4] for line in mounts if len(line.split()) > 4]
    return HostFacts(
        container=_container(root),
        filtered="\nSeccomp:\t2\n" in _text(root / "proc/self/status"),
        masked=any(point.startswith("/proc/") for point in points),
        sysctls=tuple(
            f"{name}={allows}"
            for name, forbids, allows in _SYSCTLS
            if _text(root / "proc/sys" / name.replace(".", "/")).strip() == forbids
        ),
        ulimits=tuple(
            f"ulimit {option}"
            for kind, least, option in _ULIMITS
            if -1 < resource.getrlimit(kind)[0] < least
        ),
    )


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
