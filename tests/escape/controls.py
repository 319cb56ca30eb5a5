"""Positive controls: which hole lets an attack bite, and the few that cannot be shown to bite.

Most attacks bite in the weakened sandbox as they are. Others need a right that the machine does not
have (a device, a kernel option, a module): for those a hole says yes in place of the kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import canaries
import corpus
import harness

if TYPE_CHECKING:
    from corpus import Attack

HOLES = {
    "every system call works": """
import ctypes as _c
_c.CDLL = lambda *a, **k: type("libc", (), {"__getattr__": lambda s, n: lambda *a: 1})()
""",
    "every file opens": """
import builtins, glob, io, os
_open = os.open
os.open = lambda *a, **k: _open("/dev/null", os.O_RDONLY)
os.stat = lambda *a, **k: os.lstat("/etc/hostname")
builtins.open = lambda path, mode="r", *a, **k: io.BytesIO(b"x") if "b" in mode else io.StringIO("x")
glob.glob = lambda *a, **k: ["/etc/hostname"]
""",
    "every file may be changed": """
import os
_open = os.open
os.open = lambda *a, **k: _open("/dev/null", os.O_RDONLY)
for _n in ("mknod", "unlink", "chmod", "utime", "truncate", "rmdir", "rename", "link"):
    setattr(os, _n, lambda *a, **k: None)
""",
    "every socket connects": """
import glob, socket
socket.getaddrinfo = lambda *a, **k: ["93.184.216.34"]
socket.socket = lambda *a, **k: type("s", (), {"__getattr__": lambda s, n: lambda *a: None})()
glob.glob = lambda *a, **k: ["/run/docker.sock"]
""",
    "every terminal obeys": "import fcntl; fcntl.ioctl = lambda *a: b''",
    "descriptors without number": "import os; os.dup = lambda fd: fd",
    "the outside folder is mounted": """
import ctypes as _c
_c.CDLL(None).mount(b"@@OUTSIDE_DIR@@", b"@@OUTSIDE_DIR@@", b"", _c.c_ulong(0x1000), None)
""",
    "javascript is there": """
import sys
from unittest.mock import MagicMock
for _n in ("js", "pyodide_js", "pyodide", "pyodide.code", "_pyodide", "_pyodide._base"):
    sys.modules[_n] = MagicMock()
call_tool = MagicMock()
import builtins; _real = builtins.open
builtins.open = lambda p, *a, **k: _real(str(p).removeprefix("/h"), *a, **k)
""",
}


def _each(reason: str, *idents: str) -> dict[str, str]:
    return dict.fromkeys(idents, reason)


NEEDS_HOLE = {
    **_each(
        "every system call works",
        "nat-sys-finit_module", "nat-sys-kexec_load", "nat-sys-swapon", "nat-sys-ioperm",
        "nat-sys-fanotify_init", "nat-sys-lookup_dcookie", "extra-sys-syslog_read_all",
        "extra-sys-acct", "extra-sys-init_module", "extra-sys-kexec_file_load", "extra-sys-iopl",
        "extra-sys-x32-abi", "extra-sys-reboot",
    ),
    **_each(
        "every file opens",
        "nat-proc-sysctl-writes", "nat-proc-exe-overwrite", "nat-secret-path-root-ssh-id_rsa",
        "nat-secret-path-var-run-dockersock", "nat-secret-path-var-lib-kubelet-pki",
        "nat-tamper-cgroup-escape", "nat-dev-mem", "nat-dev-port", "nat-dev-vda", "nat-dev-tty",
        "nat-dev-loop-control", "nat-dev-uinput", "extra-proc-kernel-memory",
        "extra-proc-cgroup-release-agent", "extra-dev-kvm", "extra-dev-sda", "extra-dev-nvme0",
        "extra-dev-console", "extra-dev-kmsg", "extra-dev-hpet", "extra-dev-rtc0",
        "extra-dev-vsock", "extra-dev-vhost-net", "extra-dev-snapshot", "extra-dev-btrfs-control",
        "extra-dev-mapper-control", "extra-dev-dri-card0", "extra-dev-shm-..-vda", "nat-dev-fuse",
        "extra-dev-net-tun",
        "nat-file-poison-pyc",
    ),
    **_each(
        "every file may be changed",
        "extra-priv-mknod-device", "extra-file-poison-runtime", "extra-file-links-of-all-kinds",
    ),
    **_each(
        "every socket connects",
        "nat-net-dns-exfil", "nat-net-packet", "nat-net-vsock", "nat-net-af-unix-docker",
    ),
    **_each("every terminal obeys", "extra-dev-ioctl-tiocsti"),
    **_each("descriptors without number", "extra-res-descriptors"),
    **_each("the outside folder is mounted", "nat-proc-mountinfo-leak", "extra-proc-host-paths"),
    **_each(
        "javascript is there",
        "pyo-js-process-env", "pyo-js-dynamic-import", "pyo-private-eval-code",
        "pyo-tool-proxy-constructor", "pyo-pyodide-js-module", "pyo-nodefs-mount",
        "pyo-fetch-loopback",
    ),
}  # fmt: skip
"""Attacks on what this machine may not have; each finds it behind the hole."""

NOT_SHOWN = {
    **_each(
        "fills the machine's memory, disk or process table before it says PWNED",
        "nat-res-fork-bomb", "nat-res-thread-bomb", "nat-res-shm", "nat-res-pipe-buffers",
        "nat-res-disk-fill", "nat-file-grow-while-read", "extra-res-fork-setsid-tree",
        "extra-res-memory-by-many", "extra-res-inodes", "extra-res-all-tmpfs-together",
        "extra-res-memory-hidden-shared", "extra-res-memory-in-sockets",
    ),
    **_each("about a library that no extra installs", "rst-sympy-sympify", "rst-jinja-ssti"),
    "extra-proc-mem-writes-readonly-code": "bites only with a fault of the kernel (Dirty COW)",
    "extra-proc-remote-debugging": "tests/unit/test_remote_debugging.py shows that it would bite",
    "extra-proto-forged-file-list": "only a host that believes the guest's list would be bitten",
    "extra-state-reduce-on-variable": "only a host that pickles a guest's value would be bitten",
}  # fmt: skip
"""Attacks that cannot be seen to bite, and why; how they end is checked like that of all others."""


def to_run() -> list[Attack]:
    """Every attack that has a control; the others are judged by how they end."""
    return [
        attack
        for attack in corpus.load()
        if attack.layer not in corpus.WAITING
        and attack.id not in NOT_SHOWN
        and (claims(attack) or attack.bites in ("hang", "crash"))
        and harness.fits_machine(attack)
    ]


def claims(attack: Attack) -> bool:
    """Whether an attack says PWNED if it gets through, or shows a canary."""
    text = "".join((attack.code, *(step.code for step in attack.then)))
    return any(word in text for word in (canaries.MARK, "CANARY", "@@HOST_PORT@@"))


def cells(attack: Attack) -> list[str]:
    """The code of an attack and its steps, behind the hole that it needs."""
    hole = HOLES[NEEDS_HOLE[attack.id]] if attack.id in NEEDS_HOLE else ""
    codes = (hole, attack.code, *(step.code for step in attack.then))
    return [canaries.planted().fill(code) for code in codes if code]
