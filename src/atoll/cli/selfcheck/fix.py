"""`atoll doctor --fix`: what an administrator installs so that this Python may build jails.

Ubuntu 24.04 and newer forbid user namespaces to programs without an AppArmor profile: the fix is a
profile for the interpreter alone. Other settings that forbid them are settings of the kernel.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from atoll.jail.measure import host_facts

APPARMOR = "kernel.apparmor_restrict_unprivileged_userns"
SYSCTL_FILE = "/etc/sysctl.d/60-atoll.conf"
PROFILE = """\
# Allows programs of this Python to make user namespaces, in which Atoll builds jails.
# It applies to everything that runs with this interpreter. Written by `atoll doctor --fix`.
abi <abi/4.0>,
include <tunables/global>

profile {name} "{python}" flags=(unconfined) {{
  userns,
  include if exists <local/{name}>
}}
"""


@dataclass(frozen=True, slots=True)
class Fix:
    """A file to write, and the command that makes it count."""

    path: str
    text: str
    command: tuple[str, ...]

    def as_shell(self) -> str:
        """Return it as lines that an administrator can run."""
        return f"cat > {self.path} <<'EOF'\n{self.text}EOF\n{shlex.join(self.command)}"

    def install(self) -> str:
        """Write the file and run the command; return what went wrong, or nothing."""
        try:
            Path(self.path).write_text(self.text)
            done = subprocess.run(self.command, capture_output=True, text=True, check=False)
        except OSError as exc:
            return f"{exc.filename or self.command[0]}: {exc.strerror}"
        return done.stderr.strip() or "it failed" if done.returncode else ""


def fixes(sysctls: tuple[str, ...], python: str = sys.executable) -> list[Fix]:
    """Return what to install for settings that forbid user namespaces."""
    wanted = [setting for setting in sysctls if not setting.startswith(APPARMOR)]
    result = [_profile(os.path.realpath(python))] if len(wanted) < len(sysctls) else []
    if wanted:
        text = "".join(f"{setting}\n" for setting in wanted)
        result.append(Fix(SYSCTL_FILE, text, ("sysctl", "--load", SYSCTL_FILE)))
    return result


def run() -> int:
    """Install the fixes if this is root, else print them; return the exit code."""
    facts = host_facts.read()
    todo = fixes(facts.sysctls)
    if not todo:
        print("No setting of this kernel forbids user namespaces: there is nothing to fix.")
        return 0
    if os.geteuid() != 0:
        print("# Type `sudo atoll doctor --fix`, or run these commands as root:")
        print("\n".join(fix.as_shell() for fix in todo))
        return 1
    return max([_install(fix) for fix in todo])


def _install(fix: Fix) -> int:
    problem = fix.install()
    if not problem:
        print(f"installed {fix.path}")
        return 0
    print(f"{fix.path} could not be installed: {problem}. On the host, run as root:")
    print(fix.as_shell())
    return 1


def _profile(python: str) -> Fix:
    """Return an AppArmor profile for the file that is executed; the kernel has followed links."""
    name = "atoll" + python.replace("/", ".")
    path = f"/etc/apparmor.d/{name}"
    text = PROFILE.format(name=name, python=python)
    return Fix(path, text, ("apparmor_parser", "--replace", path))
