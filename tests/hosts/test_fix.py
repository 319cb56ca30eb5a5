"""`atoll doctor --fix`: the profile or setting that allows user namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from atoll.cli.selfcheck import fix
from atoll.jail.measure import host_facts

APPARMOR = f"{fix.APPARMOR}=0"


def test_apparmor_gets_a_profile_for_the_file_that_is_executed() -> None:
    [todo] = fix.fixes((APPARMOR,))
    python = os.path.realpath(sys.executable)
    assert todo.path == f"/etc/apparmor.d/atoll{python.replace('/', '.')}"
    assert f'"{python}" flags=(unconfined) {{\n  userns,\n' in todo.text
    assert todo.command == ("apparmor_parser", "--replace", todo.path)


def test_other_settings_get_a_file_that_survives_a_restart() -> None:
    [todo] = fix.fixes(("user.max_user_namespaces=10000",))
    assert (todo.path, todo.text) == (fix.SYSCTL_FILE, "user.max_user_namespaces=10000\n")


def test_a_host_that_forbids_nothing_needs_no_fix(atoll, monkeypatch) -> None:
    monkeypatch.setattr(host_facts, "_sysctls", lambda _root: ())
    assert atoll("doctor", "--fix")[:2] == (
        0,
        "No setting of this kernel forbids user namespaces: there is nothing to fix.\n",
    )


def test_a_user_is_shown_commands_that_a_shell_runs(atoll, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(host_facts, "_sysctls", lambda _root: ("user.max_user_namespaces=10000",))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(fix, "SYSCTL_FILE", f"{tmp_path}/60-atoll.conf")
    code, out, _ = atoll("doctor", "--fix")
    assert code == 1
    assert out.startswith("# Type `sudo atoll doctor --fix`, or run these commands as root:\n")
    done = subprocess.run(["sh", "-n", "-c", out], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_root_installs_the_file_or_is_told_what_failed(tmp_path: Path) -> None:
    path = tmp_path / "60-atoll.conf"
    assert fix.Fix(str(path), "text\n", ("true",)).install() == ""
    assert path.read_text() == "text\n"
    assert fix.Fix(str(path), "", ("sh", "-c", "echo no >&2; exit 1")).install() == "no"
    assert fix.Fix(str(path), "", ("no-such-program",)).install().startswith("no-such-program: ")
    missing = tmp_path / "none/file"
    assert fix.Fix(str(missing), "", ("true",)).install() == f"{missing}: No such file or directory"


def test_the_profile_is_one_that_apparmor_reads(tmp_path: Path) -> None:
    if not shutil.which("apparmor_parser") or not Path("/etc/apparmor.d/abi/4.0").exists():
        pytest.skip("needs AppArmor 4, which knows `userns`")
    profile = tmp_path / "profile"
    profile.write_text(fix.fixes((APPARMOR,))[0].text)
    command = ["apparmor_parser", "--skip-kernel-load", "--skip-cache", str(profile)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
