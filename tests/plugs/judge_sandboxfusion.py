"""SandboxFusion's dialect judged by its unmodified client, against `atoll serve`."""

from __future__ import annotations

import base64

import pytest
import sandbox_fusion
from pages import run_example
from sandbox_fusion import RunCodeRequest, RunStatus, run_code, run_code_async, run_concurrent
from serving import atoll_serve, new_key


@pytest.fixture(scope="session", autouse=True)
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve")
    with atoll_serve(folder) as url:
        sandbox_fusion.set_endpoint(url.replace("http://", f"http://{new_key(folder)}:@"))
        yield


def test_a_program_reads_its_input_and_prints():
    done = run_code(RunCodeRequest(code="print(int(input()) + 1)", language="python", stdin="41"))
    assert done.status == RunStatus.Success
    assert done.run_result.stdout == "42\n"
    assert done.run_result.return_code == 0
    assert done.run_result.execution_time > 0


def test_a_failure_has_its_exit_code_and_traceback():
    done = run_code(RunCodeRequest(code="raise ValueError('x')", language="python"))
    assert done.status == RunStatus.Failed
    assert done.run_result.return_code == 1
    assert done.run_result.stderr.endswith("ValueError: x\n")


def test_files_go_in_and_come_out():
    given = base64.b64encode(b"in").decode()
    code = "open('out/b', 'w').write(open('in/a').read() * 2)"
    request = RunCodeRequest(
        code="import os; os.mkdir('out')\n" + code,
        language="python",
        files={"in/a": given},
        fetch_files=["out/b", "none"],
    )
    assert run_code(request).files == {"out/b": base64.b64encode(b"inin").decode()}


def test_many_at_once_are_all_right():
    asked = [
        RunCodeRequest(code="print(input())", language="python", stdin=str(n)) for n in range(40)
    ]
    done = run_concurrent(run_code, args=[[one] for one in asked])
    assert [one.run_result.stdout for one in done] == [f"{n}\n" for n in range(40)]


@pytest.mark.asyncio
async def test_the_async_client():
    done = await run_code_async(RunCodeRequest(code="echo hi", language="bash"))
    assert done.run_result.stdout == "hi\n"


def test_the_example_of_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run_example("sandboxfusion")
    assert capsys.readouterr().out == "Success 42\n"
