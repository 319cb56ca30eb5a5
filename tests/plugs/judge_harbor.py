"""`harbor run` with its oracle agent: tasks of our own, and the one that its wheel has."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import harbor
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
TASK = """\
schema_version = "1.0"
[task]
name = "atoll/greeting"
[metadata]
[verifier]
timeout_sec = 60.0
[agent]
timeout_sec = 60.0
[environment]
build_timeout_sec = 60.0
"""
SOLVE = "#!/bin/bash\nmkdir -p /opt/found 2>/dev/null; pwd > greeting.txt; exit 3\n"
TEST = "#!/bin/bash\n[ $(cat greeting.txt) = /srv/task ] && grep -q Linux <(uname); echo $((1 - $?)) > /logs/verifier/reward.txt\n"


def task_of_our_own(folder: Path, more: str = "") -> Path:
    for name, text in {
        "task.toml": TASK + more,
        "instruction.md": "Write the working folder into greeting.txt.",
        "environment/Dockerfile": "FROM scratch\nWORKDIR /srv/task\n",
        "solution/solve.sh": SOLVE,
        "tests/test.sh": TEST,
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def run(task: Path, jobs: Path, *options: str) -> dict:
    """Return the result of the only trial."""
    command = [sys.executable, "-m", "harbor.cli.main", "run", "--path", str(task), *options]
    command += ["--agent", "oracle", "--env", "atoll.integrations.harbor:AtollEnvironment"]
    env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "true"}
    command += ["--jobs-dir", str(jobs)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    found = list(jobs.glob("*/*/result.json"))
    assert len(found) == 1, done.stdout + done.stderr
    return json.loads(found[0].read_text())


def reward(result: dict) -> float:
    assert result["exception_info"] is None, result["exception_info"]
    return result["verifier_result"]["rewards"]["reward"]


def test_the_oracle_solves_a_task_with_this_machines_programs(tmp_path):
    task = task_of_our_own(tmp_path / "task")
    assert reward(run(task, tmp_path / "jobs", "--ek", "image=host")) == 1


def test_a_wrong_answer_has_no_reward(tmp_path):
    task = task_of_our_own(tmp_path / "task")
    (task / "solution" / "solve.sh").write_text("#!/bin/bash\necho wrong > greeting.txt\n")
    assert reward(run(task, tmp_path / "jobs", "--ek", "image=host")) == 0


def test_the_oracle_solves_a_task_in_an_image_without_a_network(tmp_path):
    import rootfs

    rootfs.PROGRAMS = tuple({*rootfs.PROGRAMS, "bash", "chmod", "find", "tar", "uname"})
    (tmp_path / "layer").mkdir(mode=0o755)
    rootfs.write_layout(tmp_path / "oci", rootfs.make(tmp_path / "layer"), WorkingDir="/srv/task")
    more = f'docker_image = "oci:{tmp_path}/oci"\nallow_internet = false\n'
    task = task_of_our_own(tmp_path / "task", more)
    (task / "environment" / "Dockerfile").unlink()
    assert reward(run(task, tmp_path / "jobs")) == 1


def test_the_oracle_solves_the_task_of_the_wheel(tmp_path):
    made = Path(harbor.__file__).parent / "cli" / "template-adapter" / "task-template"
    task = shutil.copytree(made, tmp_path / "task")
    told = (task / "task.toml").read_text()
    (task / "task.toml").write_text(told.replace("TODO_ORG/{{ADAPTER_ID}}__{task_id}", "us/one"))
    assert reward(run(task, tmp_path / "jobs", "--ek", "image=host")) == 1


def test_a_command_that_takes_too_long_is_the_tasks_fault(tmp_path):
    task = task_of_our_own(tmp_path / "task")
    (task / "solution" / "solve.sh").write_text("#!/bin/bash\nsleep 60\n")
    text = (task / "task.toml").read_text()
    (task / "task.toml").write_text(
        text.replace("[agent]\ntimeout_sec = 60.0", "[agent]\ntimeout_sec = 1.0")
    )
    result = run(task, tmp_path / "jobs", "--ek", "image=host")
    assert result["exception_info"]["exception_type"] == "AgentTimeoutError"


def test_a_task_of_several_containers_is_refused_before_it_starts(tmp_path):
    task = task_of_our_own(tmp_path / "task")
    (task / "environment" / "docker-compose.yaml").write_text("services: {}\n")
    command = [sys.executable, "-m", "harbor.cli.main", "run", "--path", str(task)]
    command += ["--agent", "oracle", "--env", "atoll.integrations.harbor:AtollEnvironment"]
    command += ["--jobs-dir", str(tmp_path / "jobs")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert "one sandbox a task" in done.stdout + done.stderr


@pytest.mark.parametrize("name", ["/etc/passwd", "../up", "a/../../up"])
def test_a_folder_of_a_guest_is_written_below_its_target_alone(tmp_path, name):
    import io
    import tarfile

    from atoll.integrations.harbor import _unpack

    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for member, kind in (
            (name, tarfile.REGTYPE),
            ("link", tarfile.SYMTYPE),
            ("ok", tarfile.REGTYPE),
        ):
            entry = tarfile.TarInfo(member)
            entry.type, entry.linkname = kind, str(tmp_path)
            archive.addfile(entry, io.BytesIO(b""))
    _unpack(made.getvalue(), tmp_path / "in")
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["ok"]
    assert not (tmp_path / "up").exists()
