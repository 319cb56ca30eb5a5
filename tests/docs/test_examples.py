"""The examples in README and docs are run as they stand, in an environment as README says.

Those of a page that need the same extras run in turn in one process, each in a fresh `__main__`.

<!-- needs: search, state -->     above a fence: extras that it needs, beside the library alone
<!-- not run: REASON -->          above a fence: it is compiled only
<!-- run -->                      above a ```sh fence: it is run too, with `--matrix all`
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(
    r"(?:^<!-- *(?P<marker>needs|not run|run)(?:: *(?P<words>[^>]*?))? *-->\n\n?)?"
    r"^```(?P<kind>python|sh)\n(?P<code>.*?)^```",
    re.MULTILINE | re.DOTALL,
)
LINK = re.compile(r"\]\((?!http)([^)#]+)\)")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
GIVEN = ("README.md", "LICENSE", "docs")
"""What an example finds in its folder, as in a clone."""
LARGE = {"data", "deepagents", "mcp", "pyodide", "wasm", "semantic", "localllm"}
"""Extras that take long to install: a clean environment gets them with `--matrix all`."""
IN_TURN = "import runpy, sys\nfor one in sys.argv[1:]: runpy.run_path(one, run_name='__main__')"
SH_IN_TURN = 'for one; do bash -e "$one" || exit; done'
UV = Path(sys.prefix) / "bin" / "uv"
SECONDS = 600
"""What the examples of a page may take: the one of the backend wasm builds it if no test has done so."""


@dataclass(frozen=True)
class Example:
    """A fence and the comment above it."""

    kind: str
    code: str
    marker: str
    words: str

    @property
    def extras(self) -> str:
        names = self.words.split(",") if self.marker == "needs" else []
        return ",".join(sorted(name.strip() for name in names))

    @property
    def is_run(self) -> bool:
        return self.marker != "not run" and (self.kind == "python" or self.marker != "")


def examples_of(text):
    return [
        Example(found["kind"], found["code"], found["marker"] or "", found["words"] or "")
        for found in FENCE.finditer(text)
    ]


EXAMPLES = [
    (page, number, example)
    for page in PAGES
    for number, example in enumerate(examples_of(page.read_text()), 1)
    if example.kind == "python" or example.is_run
]


def groups_of(examples):
    """Return what one process runs: a page's examples of the same kind, by their numbers."""
    groups = defaultdict(dict)
    for page, number, example in examples:
        groups[page.relative_to(ROOT), example.kind, example.extras][number] = example
    return [
        pytest.param(group, id=f"{page}-{'+'.join(map(str, group))}", marks=_marks(page, extras))
        for (page, _, extras), group in groups.items()
    ]


def _marks(page, extras):
    dear = LARGE & set(extras.split(",")) and str(page) != "docs/cookbook.md"
    return [pytest.mark.long] if dear or str(page) == "docs/packages.md" else []


@pytest.fixture(scope="session")
def environments(tmp_path_factory, pytestconfig):
    """Return the Python of an environment with these extras; each is made once in a run."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent

    def find(extras):
        if pytestconfig.getoption("matrix") == "sample" and LARGE & set(extras.split(",")):
            return Path(sys.prefix) / "bin" / "python"
        folder = shared / f"environment-{extras.replace(',', '-') or 'plain'}"
        with open(f"{folder}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "done").exists():
                install(folder, extras)
                (folder / "done").touch()
        return folder / "bin" / "python"

    return find


def install(folder, extras):
    """Do as README says: `pip install .`, or '.[extra]', into a fresh environment.

    uv does the same as pip, sooner, and needs no pip in there.
    """
    chosen, python = f"[{extras}]" if extras else "", folder / "bin" / "python"
    make = [sys.executable, "-m", "venv", "--clear", folder]
    if UV.exists() and (wheel := built_wheel(folder.parent)):
        subprocess.run([*make, "--without-pip"], check=True)
        quick = [UV, "pip", "install", "--quiet", "--python", python, f"{wheel}{chosen}"]
        if subprocess.run(quick, capture_output=True).returncode == 0:
            (folder / "bin" / "uv").symlink_to(UV)  # in the place of the pip that is left out
            return
    subprocess.run(make, check=True)
    slow = [python, "-m", "pip", "install", "--quiet", f"{ROOT}{chosen}"]
    done = subprocess.run(slow, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def built_wheel(folder):
    """Return the wheel of this tree, which is built once in a run; None if uv cannot build it.

    Given a folder, uv may install what it built from it before: it looks at pyproject.toml alone.
    """
    with open(folder / "wheel.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not any(folder.glob("*.whl")):
            build = [UV, "build", "--quiet", "--wheel", "--out-dir", folder, ROOT]
            subprocess.run(build, capture_output=True)
        return next(folder.glob("*.whl"), None)


@pytest.mark.parametrize("group", groups_of(EXAMPLES))
@pytest.mark.timeout(900)  # the first one of an environment installs it
def test_examples_run_as_they_stand(group, environments, tmp_path, monkeypatch, pytestconfig):
    kind, extras = {(one.kind, one.extras) for one in group.values()}.pop()
    downloads = kind == "sh" and pytestconfig.getoption("matrix") == "sample"
    scripts = []
    for number, example in group.items():
        if kind == "python":
            compile(example.code, f"<example {number}>", "exec", dont_inherit=True)
        if example.is_run and not downloads:
            scripts.append(tmp_path / f"example-{number}")
            scripts[-1].write_text(example.code)
    if not scripts:
        return
    python = environments(extras)
    folder = tmp_path / "clone"
    folder.mkdir()
    for name in GIVEN:
        os.symlink(ROOT / name, folder / name)
    monkeypatch.setenv("ATOLL_DAEMON_SOCKET", str(tmp_path / "daemon.sock"))
    monkeypatch.setenv("REPL_WARMUP_TIMEOUT_SECONDS", "60")  # a machine full of tests is slow
    monkeypatch.setenv("ATOLL_EXAMPLE", str(tmp_path))
    monkeypatch.setenv("PATH", path_for(kind, python.parent))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    command = (
        [python, "-W", "error", "-c", IN_TURN]
        if kind == "python"
        else ["sh", "-c", SH_IN_TURN, "-"]
    )
    try:
        done = run([*command, *scripts], folder)
    finally:
        left = processes_of(str(tmp_path))
        end(left)
    assert done.returncode == 0, done.stderr
    assert not left, "processes were left running"


def path_for(kind, programs):
    """Return PATH: commands are typed in an activated environment, a script needs none."""
    others = [one for one in os.get_exec_path() if not os.path.exists(f"{one}/atoll")]
    return os.pathsep.join([str(programs), *others] if kind == "sh" else others)


def run(command, folder):
    """Run it with its output in files: a process that is left must not hold a pipe of ours."""
    with open(folder.parent / "out", "w+") as out, open(folder.parent / "err", "w+") as err:
        done = subprocess.run(command, cwd=folder, stdout=out, stderr=err, timeout=SECONDS)
        err.seek(0)
        done.stderr = err.read()
    return done


def processes_of(value):
    """Return the processes that have inherited an example's environment, once it is over."""
    until = time.monotonic() + 20
    while (found := _find(value)) and time.monotonic() < until:
        time.sleep(0.1)
    return found


def _find(value):
    mark, found = f"ATOLL_EXAMPLE={value}".encode(), []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (place / "environ").read_bytes().split(b"\0"):
                found.append(int(place.name))
    return [pid for pid in found if pid != os.getpid()]


def end(pids):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_process_that_is_left_is_found(tmp_path):
    value = str(tmp_path / "here")
    sleeper = subprocess.Popen(["sleep", "60"], env={**os.environ, "ATOLL_EXAMPLE": value})
    try:
        assert _find(value) == [sleeper.pid]
    finally:
        sleeper.kill()
        sleeper.wait()


def test_markers_are_understood():
    text = (
        "<!-- needs: state, search -->\n```python\na\n```\n"
        "<!-- not run: a key -->\n\n```python\nb\n```\n```sh\nc\n```\n<!-- run -->\n```sh\nd\n```\n"
    )
    found = [(one.code, one.extras, one.is_run) for one in examples_of(text)]
    assert found == [
        ("a\n", "search,state", True),
        ("b\n", "", False),
        ("c\n", "", False),
        ("d\n", "", True),
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.timeout(900)
def test_the_demo_does_its_job_with_the_library_alone(environments):
    done = subprocess.run(
        [environments(""), "-m", "examples.demo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "services with errors: ['billing', 'mail', 'search']" in done.stdout
    assert "isolation jailed" in done.stdout
    assert "wasm     not ready (optional). To use it, type: " in done.stdout
    assert "pip install 'deno" in done.stdout
    assert "TimeoutError: the execution took longer than 2000 ms" in done.stdout


def test_decisions_are_short():
    for page in (ROOT / "docs" / "decisions").glob("*.md"):
        assert len(page.read_text().splitlines()) <= 40, page.name


def test_the_pages_of_the_command_line_are_what_its_help_says():
    done = subprocess.run(
        [sys.executable, "-c", "import cli_doc, json; print(json.dumps(cli_doc.pages()))"],
        cwd=ROOT / "tools",
        capture_output=True,
        text=True,
        check=True,
    )
    docs = ROOT / "docs"
    written = [docs / "cli.md", *(docs / "cli").glob("*.md")]
    shown = {str(page.relative_to(docs)): page.read_text().split() for page in written}
    help_texts = {name: text.split() for name, text in json.loads(done.stdout).items()}
    assert help_texts == shown, "run make docs"
