"""Real programs under `atoll exec`: what people wrap works as it does without a jail."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Exec = Callable[..., Any]


def _needs(*names: str) -> None:
    for name in names:
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")


@contextlib.contextmanager
def _served(folder: Path) -> Iterator[str]:
    """Serve a folder over http on the loopback; return its address."""
    argv = [sys.executable, "-u", "-m", "http.server", "--bind", "127.0.0.1", "0"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(argv, cwd=folder, text=True, **pipes) as server:
        try:
            assert server.stdout is not None
            yield f"127.0.0.1:{server.stdout.readline().split('port ')[1].split()[0]}"
        finally:
            server.kill()


def _git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=me", "-c", "user.email=me@example.com")
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def test_git_clones_over_http_and_commits(atoll_exec: Exec, project: Path, tmp_path: Path) -> None:
    _needs("git")
    origin = tmp_path / "origin"
    origin.mkdir()
    _git(origin, "init", "-q", ".")
    (origin / "README").write_text("hello\n")
    _git(origin, "add", ".")
    _git(origin, "commit", "-qm", "first")
    _git(tmp_path, "clone", "-q", "--bare", "origin", "origin.git")
    _git(tmp_path / "origin.git", "update-server-info")
    with _served(tmp_path) as place:
        url = f"http://{place}/origin.git"
        done = atoll_exec("--allow-host", place, "git", "clone", "-q", url, "copy")
        assert done.returncode == 0, done.stderr
        refused = atoll_exec("git", "clone", "-q", url, "again")
    assert refused.returncode != 0
    assert (project / "copy" / "README").read_text() == "hello\n"
    script = (
        "cd copy; echo more >> README; git -c user.name=a -c user.email=a@example.com "
        "commit -qam second; git log --oneline | wc -l; git config core.pager evil"
    )
    done = atoll_exec("sh", "-c", script)
    assert done.stdout.strip() == "2", done.stderr
    assert "evil" not in (project / "copy" / ".git" / "config").read_text()


def test_npm_installs_a_package_whose_scripts_stay_inside(
    atoll_exec: Exec, project: Path, machine: Path
) -> None:
    """The package's install script tries to write outside; it is refused, and reported."""
    _needs("npm", "node")
    package = {
        "name": "stranger",
        "version": "1.0.0",
        "scripts": {"install": f"touch {machine}/owned; touch installed"},
    }
    with tarfile.open(project / "stranger.tgz", "w:gz") as archive:
        data = json.dumps(package).encode()
        entry = tarfile.TarInfo("package/package.json")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    (project / "package.json").write_text('{"name": "mine", "version": "1.0.0"}')
    words = ("npm", "install", "--offline", "--no-audit", "--no-fund", "./stranger.tgz")
    done = atoll_exec("--report", "report.json", *words, timeout=240)
    assert done.returncode == 0, done.stderr
    assert (project / "node_modules" / "stranger" / "installed").exists()
    assert not (machine / "owned").exists()
    refused = json.loads((project / "report.json").read_text())["refused_files"]
    assert f"{machine}/owned" in {file["path"] for file in refused}


def test_node_runs_workers_and_children(atoll_exec: Exec) -> None:
    _needs("node")
    script = (
        "const {Worker} = require('worker_threads');"
        "console.log(require('child_process').execSync('echo child').toString().trim());"
        "new Worker('require(\"worker_threads\").parentPort.postMessage(1)', {eval: true})"
        ".on('message', () => console.log('worker'))"
    )
    assert atoll_exec("node", "-e", script).stdout == "child\nworker\n"


def test_make_builds_with_the_compiler(atoll_exec: Exec, project: Path) -> None:
    _needs("make", "cc")
    (project / "main.c").write_text('#include <stdio.h>\nint main(void) { puts("built"); }\n')
    (project / "Makefile").write_text("main: main.c\n\tcc -o main main.c\n")
    assert atoll_exec("make", "-s", timeout=240).returncode == 0
    assert atoll_exec("./main").stdout == "built\n"


def test_rust_compiles_with_tools_below_the_home_folder(atoll_exec: Exec, project: Path) -> None:
    _needs("rustc", "cargo", "cc")
    shown = [folder for name in (".cargo", ".rustup") if (folder := Path.home() / name).is_dir()]
    words = [word for folder in shown for word in ("--read", str(folder))]
    homes = [f"--env={name.upper()[1:]}_HOME={Path.home() / name}" for name in (".rustup",)]
    (project / "Cargo.toml").write_text('[package]\nname = "p"\nversion = "0.1.0"\n')
    (project / "src").mkdir()
    (project / "src" / "main.rs").write_text('fn main() { println!("built"); }\n')
    done = atoll_exec(*words, *homes, "cargo", "run", "-q", "--offline", timeout=400)
    assert done.stdout == "built\n", done.stderr


def test_pytest_runs_the_tests_of_an_installed_package(atoll_exec: Exec, project: Path) -> None:
    """Its interpreter and libraries are shown; nothing is written there."""
    tests = Path(pytest.importorskip("referencing").__file__).parent / "tests"
    words = ("--read", sys.prefix, "--read", sys.base_prefix)
    if not (tests / "test_core.py").exists():
        pytest.skip("the package referencing came without its tests")
    program = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    shutil.copytree(tests, project / "tests")  # pytest looks through all folders above
    done = atoll_exec(*words, *program, "tests/test_core.py", timeout=240)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_a_program_of_an_unknown_interpreter_is_not_found(atoll_exec: Exec, project: Path) -> None:
    script = project / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    done = atoll_exec("./script")
    assert done.returncode == 127
    assert "cannot be started" in done.stderr
    assert os.listdir(project) == ["script"]
