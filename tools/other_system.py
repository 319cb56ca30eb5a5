"""Run Python code as on macOS or Windows, or check the types of what clients import there.

    python tools/other_system.py darwin|win32 CODE ARGUMENT ...
    python tools/other_system.py check

Modules of the standard library are imported first: what they need, they have there. What is
imported later finds neither `fcntl` nor `os.fork`. The code is executed as `__main__`.
"""

from __future__ import annotations

import asyncio  # noqa: F401 - before names are hidden
import importlib
import ssl  # noqa: F401
import subprocess
import sys
import types
import urllib.request  # noqa: F401
from contextlib import suppress

LINUX_MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "pty", "tty", "syslog")
LINUX_NAMES = {
    "os": (
        "memfd_create MFD_CLOEXEC MFD_ALLOW_SEALING pidfd_open O_PATH O_TMPFILE setns unshare "
        "splice eventfd copy_file_range getrandom sched_getaffinity sched_setaffinity getxattr"
    ),
    "signal": "pidfd_send_signal sigwaitinfo sigtimedwait SIGPWR SIGSTKFLT SIGRTMIN SIGRTMAX",
    "socket": "SO_PEERCRED MSG_CMSG_CLOEXEC SOCK_CLOEXEC SOCK_NONBLOCK AF_NETLINK AF_VSOCK",
    "mmap": "MAP_POPULATE",
    "select": "epoll EPOLLIN EPOLLOUT",
}
"""What macOS lacks."""
POSIX_NAMES = {
    "os": (
        "fork forkpty register_at_fork getuid geteuid getgid getegid getgroups setuid setgid chown "
        "fchown lchown mkfifo mknod pread pwrite preadv pwritev sendfile readv writev killpg "
        "getpgid setsid wait waitid wait3 wait4 WNOHANG WIFEXITED statvfs fstatvfs uname "
        "posix_spawn openpty ttyname getpriority setpriority sysconf confstr getloadavg nice "
        "O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_SYNC set_blocking"
    ),
    "signal": (
        "SIGKILL SIGHUP SIGCHLD SIGUSR1 SIGUSR2 SIGWINCH SIGPIPE SIGALRM SIGSTOP SIGCONT SIGTSTP "
        "SIGXCPU SIGQUIT alarm setitimer pthread_sigmask pthread_kill sigwait siginterrupt"
    ),
    "socket": "AF_UNIX SCM_RIGHTS CMSG_SPACE CMSG_LEN MSG_CTRUNC MSG_DONTWAIT",
    "mmap": "PROT_READ PROT_WRITE PROT_EXEC MAP_SHARED MAP_PRIVATE MAP_ANONYMOUS MAP_ANON",
    "select": "poll",
}
"""What Windows lacks beside it."""
USED = ("httpx2", "h11", "truststore", "anyio._backends._asyncio")
"""Others' packages on the way to a remote sandbox, which run on each system."""
MCP = ("uvicorn", "mcp.server", "mcp.server.stdio")
PLATFORMS = ("darwin", "win32")
CLIENTS = """
import atoll, atoll.aio, atoll.factory, atoll.backends.remote, atoll.integrations.mcp_server
from atoll.cli import main
from atoll.cli.commands import completion, doctor, kernel, mcp, repl, run
print(*modules())
"""
"""What a client on another system imports, and prints its modules."""
NOT_ON_WINDOWS = (
    "atoll.agent.trajectory.reader",
    "atoll.cli.selfcheck.check",
    "atoll.cli.terminal.prompt",
    "atoll.concurrency.piped_child",
    "atoll.search.backtracking",
    "atoll.search.blocks",
)
"""Imported there, but not used: records of runs, attacks, readline, patterns that backtrack."""


def hide(platform: str) -> None:
    """Make this process look like one of `platform` to what it imports from now on."""
    for name in (*USED, *(MCP if "mcp" in "".join(sys.argv) else ())):
        with suppress(ImportError):
            importlib.import_module(name)
    for name in LINUX_MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    lacking = [LINUX_NAMES] if platform == "darwin" else [LINUX_NAMES, POSIX_NAMES]
    for names in lacking:
        for module, listed in names.items():
            whole = importlib.import_module(module)
            sys.modules[module] = without(whole, listed.split())
    # Only macOS has this module, which says which proxies are set.
    proxies = types.SimpleNamespace(_get_proxy_settings=dict, _get_proxies=dict)
    sys.modules["_scproxy"] = proxies  # type: ignore[assignment]
    sys.platform = platform


def without(module: types.ModuleType, names: list[str]) -> types.ModuleType:
    """Return a copy of a module that lacks some names."""
    copy = types.ModuleType(module.__name__, module.__doc__)
    copy.__dict__.update({key: value for key, value in vars(module).items() if key not in names})
    return copy


def modules() -> list[str]:
    """Return the names of Atoll's modules that are imported."""
    return sorted(
        name
        for name, module in sys.modules.items()
        if name.partition(".")[0] == "atoll" and getattr(module, "__file__", None)
    )


def check() -> int:
    """Check the types of what clients of a service import; return mypy's exit code."""
    run = [sys.executable, __file__, "darwin", CLIENTS]
    every = subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()
    options = ["--follow-imports=silent", "--no-warn-unused-ignores"]
    codes = []
    for platform in PLATFORMS:
        names = [name for name in every if platform == "darwin" or name not in NOT_ON_WINDOWS]
        own = [f"--platform={platform}", f"--cache-dir=.mypy_cache/{platform}", *options]
        chosen = [word for name in names for word in ("--module", name)]
        print(f"types of {len(names)} modules on {platform}: ", end="", flush=True)
        mypy = [sys.executable, "-m", "mypy", *own, *chosen]
        codes.append(subprocess.run(mypy, check=False).returncode)
    return max(codes)


if __name__ == "__main__":
    if sys.argv[1:] == ["check"]:
        sys.exit(check())
    _, system, text = sys.argv[:3]
    hide(system)
    sys.argv[:3] = [""]
    exec(compile(text, "<code>", "exec"), {"__name__": "__main__", "modules": modules})  # noqa: S102
