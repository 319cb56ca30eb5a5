"""What a program was refused is said at the end, with what to type, and in the report."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from atoll.programs.refusals import Judge
from atoll.programs.rules import Access, PathRule, ProgramRules

Exec = Callable[..., Any]


def _report(project: Path) -> dict[str, Any]:
    return json.loads((project / "report.json").read_text())


def test_refused_changes_name_the_rule_and_what_to_type(
    atoll_exec: Exec, project: Path, machine: Path
) -> None:
    (project / ".git" / "hooks").mkdir(parents=True)
    (machine / "beside").mkdir()
    script = (
        f"echo x > {machine}/beside/f; echo x > .git/hooks/h; mkdir kept/d; rm kept/f;"
        "cd .git; mv index ../kept/index; echo x > hooks/i; touch /usr/bin/x; touch /tmp/ok ~/ok ok"
    )
    (project / "kept").mkdir()
    words = ("--deny-write", "kept", "--report", "report.json", "sh", "-c", script)
    done = atoll_exec(*words)
    lines = [line for line in done.stderr.splitlines() if line.startswith("atoll: ")]
    hooks = project / ".git" / "hooks"
    beside, kept = machine / "beside", project / "kept"
    refused = [line.removeprefix("atoll: it was refused to write ") for line in lines]
    assert refused == [
        f"{beside}/f (it is not shown): add --write {beside}",
        f"{hooks}/h and 1 more (other programs run it or obey it): add --write {hooks}",
        f"{kept}/d and 2 more (--deny-write)",
    ]
    files = _report(project)["refused_files"]
    assert {file["path"] for file in files} == {
        f"{machine}/beside/f",
        f"{hooks}/h",
        f"{hooks}/i",
        *(f"{project}/kept/{name}" for name in ("d", "f", "index")),
        "/usr/bin/x",
    }
    assert all(file["access"] == "write" for file in files)


def test_what_a_report_says_to_type_works(atoll_exec: Exec, project: Path, machine: Path) -> None:
    (machine / "out").mkdir()
    program = ("--report", "report.json", "sh", "-c", f"echo x > {machine}/out/f")
    assert atoll_exec(*program).returncode != 0
    (refused,) = _report(project)["refused_files"]
    assert atoll_exec(*refused["add"].split(), *program).returncode == 0
    assert _report(project)["refused_files"] == []
    assert (machine / "out" / "f").exists()


def test_refused_reads_are_reported_on_request(
    atoll_exec: Exec, project: Path, machine: Path
) -> None:
    (machine / "beside").write_text("s3cret")
    (project / ".env").write_text("s3cret")
    script = f"cat {machine}/beside .env {machine}/missing; cd /; cat tmp/x; head -c1 /etc/passwd"
    words = ("--deny-read", ".env", "--report", "report.json")
    assert atoll_exec(*words, "--watch", "all", "sh", "-c", script).stdout == "r"
    found = {file["path"]: file for file in _report(project)["refused_files"]}
    assert found[f"{machine}/beside"]["add"] == f"--read {machine}/beside"
    assert found[f"{project}/.env"] == {
        "path": f"{project}/.env",
        "access": "read",
        "rule": "--deny-read",
        "add": "",
    }
    assert f"{machine}/missing" not in found, "it is missing outside too"
    atoll_exec(*words, "sh", "-c", script)
    assert _report(project)["refused_files"] == [], "reads cost time: only on request"
    atoll_exec(*words, "--watch", "nothing", "sh", "-c", f"touch {machine}/x")
    assert _report(project)["refused_files"] == []


def test_a_flood_of_refusals_is_bounded_and_its_text_harmless(
    atoll_exec: Exec, project: Path, machine: Path
) -> None:
    code = (
        "import os\n"
        f"for n in range(1000):\n"
        f"    try: open(f'{machine}/{{n}}\\x1b[31m', 'w')\n"
        "    except OSError: pass\n"
        "for wrong in (b'', b'x' * 5000):\n"
        "    try: os.open(wrong, os.O_WRONLY)\n"
        "    except OSError: pass\n"
        "import ctypes\n"
        "print(ctypes.CDLL(None).open(1, 1), ctypes.CDLL(None).mkdir(0, 0))\n"
    )
    done = atoll_exec("--report", "report.json", "/usr/bin/python3", "-c", code)
    assert done.stdout == "-1 -1\n", done.stderr
    assert "\x1b" not in done.stderr
    assert len(done.stderr.splitlines()) < 10
    assert len(_report(project)["refused_files"]) == 200


def test_threads_and_children_are_heard_and_a_killed_one_stops_nothing(
    atoll_exec: Exec, project: Path, machine: Path
) -> None:
    code = (
        "import os, signal, subprocess, threading\n"
        "def attempt(name):\n"
        f"    try: open('{machine}/' + name, 'w')\n"
        "    except OSError: pass\n"
        "threads = [threading.Thread(target=attempt, args=(f't{n}',)) for n in range(8)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        f"subprocess.run(['touch', '{machine}/child'], stderr=subprocess.DEVNULL)\n"
        "for n in range(20):\n"
        "    pid = os.fork()\n"
        "    if not pid:\n"
        "        while True: open('busy', 'w').close()\n"
        "    os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0)\n"
        "print('done')"
    )
    done = atoll_exec("--report", "report.json", "/usr/bin/python3", "-c", code)
    assert done.stdout == "done\n", done.stderr
    names = {os.path.basename(file["path"]) for file in _report(project)["refused_files"]}
    assert names == {"child", *(f"t{n}" for n in range(8))}


def test_the_remedy_never_opens_a_whole_home(tmp_path: Path) -> None:
    rules = ProgramRules(folder=tmp_path, paths=(PathRule(tmp_path, Access.WRITE, "it"),))
    judge = Judge(rules)
    home = Path.home()
    refused = judge.refusal(f"{home}/.made-up/cache/f", Access.WRITE)
    assert refused is not None
    assert refused.add == f"--write {home}/.made-up"
    assert judge.refusal(f"{tmp_path}/new", Access.WRITE) is None
    assert judge.refusal("/tmp/f", Access.WRITE) is None
    assert judge.refusal("/dev/tty", Access.WRITE) is None
