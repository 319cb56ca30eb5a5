"""SandboxFusion's dialect: what trainers send, and exactly what they read back."""

from __future__ import annotations

import base64
import threading
from typing import Any

import httpx2
import pytest
from clients import Api
from own_service import OwnService

from atoll.service.access.keys import Quota
from atoll.service.dialects.sandboxfusion.running import LANGUAGES


def run(api: httpx2.Client, code: str, language: str = "python", **body: Any) -> dict[str, Any]:
    done = api.post("/run_code", json={"code": code, "language": language, **body})
    assert done.status_code == 200, done.text
    return done.json()


def test_a_program_has_every_field_of_the_answer(api: Api) -> None:
    done = run(api, "print(int(input()) + 1)", stdin="41", unknown="is ignored")
    assert done["run_result"].pop("execution_time") > 0
    assert done == {
        "status": "Success",
        "message": "",
        "compile_result": None,
        "run_result": {"status": "Finished", "return_code": 0, "stdout": "42\n", "stderr": ""},
        "executor_pod_name": None,
        "files": {},
    }


@pytest.mark.parametrize(
    ("code", "kind", "code_of", "words"),
    [
        ("int a = 1", "Finished", 1, "SyntaxError: invalid syntax"),
        ("assert 1 == 2", "Finished", 1, "AssertionError"),
        ("import sys; sys.exit(7)", "Finished", 7, ""),
        ("import os; os.kill(os.getpid(), 9)", "Finished", -9, "SIGKILL"),
        ("!ls", "Finished", 1, "SyntaxError"),
        ("await 1", "Finished", 1, "SyntaxError"),
        ("print(np, context)", "Finished", 1, "NameError"),
        ("input()", "Finished", 1, "EOFError: EOF when reading a line\n"),
        ("print('so far', flush=True)\nwhile True: pass", "TimeLimitExceeded", None, ""),
    ],
)
def test_a_program_that_fails_says_how(
    api: Api, code: str, kind: str, code_of: int | None, words: str
) -> None:
    done = run(api, code, run_timeout=1)
    ran = done["run_result"]
    assert (done["status"], ran["status"], ran["return_code"]) == ("Failed", kind, code_of)
    assert words in ran["stderr"]
    assert ran["stdout"] == "so far\n" * ("so far" in code)


def test_a_program_is_a_script_and_ends_as_one(api: Api) -> None:
    code = """
import atexit, subprocess, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
atexit.register(print, "exit")
print(__name__, sys.argv == [__file__], open(__file__).read().count("marker"))
threading.Thread(target=lambda: (time.sleep(0.05), print("thread"))).start()
ThreadPoolExecutor(1).submit(int)
kept = open("kept.txt", "w")
kept.write("flushed")
print(subprocess.run(["cat"], capture_output=True, text=True).stdout)
6 * 7
"""
    done = run(api, code, stdin="of a child", fetch_files=["kept.txt", "none.txt"])
    assert done["run_result"]["stderr"] == ""
    assert done["run_result"]["stdout"] == "__main__ True 1\nof a child\nthread\nexit\n"
    assert done["files"] == {"kept.txt": base64.b64encode(b"flushed").decode()}


def test_files_are_written_before_the_code_runs(api: Api) -> None:
    data = base64.b64encode(b"of the file").decode()
    files = {"a/b/c.txt": data, "none": None, "IGNORE_THIS_FILE.txt": data}
    code = "import os; print(open('a/b/c.txt').read(), sorted(os.listdir()))"
    done = run(api, code, files=files)
    assert done["run_result"]["stdout"] == "of the file ['a', 'main.py']\n"


def test_bash_and_a_compiled_language(api: Api) -> None:
    done = run(api, "read x; echo $x; test 1 -eq 2", "bash", stdin="input")
    assert (done["status"], done["run_result"]["stdout"]) == ("Failed", "input\n")
    good = "#include <iostream>\nint main() { int x; std::cin >> x; std::cout << x * 2; }"
    done = run(api, good, "cpp", stdin="21", compile_timeout=60)
    assert (done["status"], done["run_result"]["stdout"]) == ("Success", "42")
    assert done["compile_result"]["return_code"] == 0
    done = run(api, "a = b", "cpp", compile_timeout=60)
    assert (done["status"], done["run_result"]) == ("Failed", None)
    assert "error" in done["compile_result"]["stderr"]


def test_a_missing_toolchain_is_the_services_fault(api: Api) -> None:
    name = next(name for name in ("racket", "swift", "D_ut") if name in LANGUAGES)
    done = run(api, "x", name)
    assert (done["status"], done["run_result"]) == ("SandboxError", None)
    assert "--language-image" in done["message"]


def test_memory_is_limited_by_the_request_and_the_quota(service: OwnService) -> None:
    with Api(service, service.add_key(quota=Quota(memory_bytes=256 << 20))) as api:
        many = "x = bytearray(200 << 20); print(len(x) >> 20)"
        assert run(api, many, memory_limit_MB=1024)["run_result"]["stdout"] == "200\n"
        done = run(api, many, memory_limit_MB=100)
        assert "MemoryError" in done["run_result"]["stderr"]


def test_cells_of_a_notebook(api: Api) -> None:
    cells = ["a = 'x'", "a", "1 / 0", "import sys; sys.stderr.write('e'); print(a)"]
    done = api.post("/run_jupyter", json={"cells": cells}).json()
    assert (done["status"], done["driver"]["return_code"]) == ("Success", 0)
    first, second, third, last = done["cells"]
    assert first == {"stdout": "", "stderr": "", "display": [], "error": []}
    assert second["display"] == [{"text/plain": "'x'"}]
    assert third["error"][0]["ename"] == "ZeroDivisionError"
    assert third["stderr"] == ""
    assert (last["stdout"], last["stderr"]) == ("x\n", "e")
    late = {"cells": ["while True: pass"], "total_timeout": 0.2}
    done = api.post("/run_jupyter", json=late).json()
    assert (done["status"], done["driver"]["status"]) == ("Failed", "TimeLimitExceeded")
    assert done["cells"] == []


@pytest.mark.parametrize("form", ["{key}:@", "anyone:{key}@"])
def test_the_key_may_be_in_the_url(service: OwnService, form: str) -> None:
    url = service.url.replace("http://", "http://" + form.format(key=service.add_key()))
    with httpx2.Client(base_url=url, trust_env=False, timeout=60) as client:
        assert run(client, "print(1)")["status"] == "Success"
        body = {"code": "print(input(), __import__('os').read(0, 9))", "stdin": "in\n"}
        assert client.post("/api/v1/run", json=body).json()["stdout"] == "in b''\n"
        assert client.get("/api/v1/sessions").status_code == 401
    assert httpx2.get(f"{service.url}/v1/ping", trust_env=False).json() == "pong"
    refused = httpx2.post(f"{service.url}/run_code", json={}, trust_env=False)
    assert (refused.status_code, refused.json()["status"]) == (401, "SandboxError")


def test_more_than_the_key_may_run_wait_and_their_time_does_not_count(service: OwnService) -> None:
    quota = Quota(executions=1, requests_per_second=2, burst=2)
    answers: list[dict[str, Any]] = []
    with Api(service, service.add_key(quota=quota)) as api:

        def ask() -> None:
            code = "import time; time.sleep(0.3); print('done')"
            answers.append(run(api, code, run_timeout=2, compile_timeout=30))

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [one["run_result"]["stdout"] for one in answers] == ["done\n"] * 6


def test_what_gets_no_turn_in_time_is_told_early_to_try_again(service: OwnService) -> None:
    with Api(service, service.add_key(quota=Quota(executions=1))) as api:
        body = {"code": "import time; time.sleep(5)", "language": "python", "run_timeout": 10}
        both: list[httpx2.Response] = []
        threads = [
            threading.Thread(target=lambda: both.append(api.post("/run_code", json=body)))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    refused, done = both
    assert (refused.status_code, done.status_code) == (504, 200)
    assert refused.json()["status"] == "SandboxError"
    assert "try again" in refused.json()["message"]


@pytest.mark.parametrize(
    "body", [{}, {"code": "1", "language": "cobol"}, {"code": 1, "language": "python"}]
)
def test_a_body_of_another_shape_is_refused(api: Api, body: dict[str, Any]) -> None:
    refused = api.post("/run_code", json=body)
    assert (refused.status_code, refused.json()["status"]) == (422, "SandboxError")


def test_standard_input_of_a_run_may_be_bytes(api: Api) -> None:
    data = base64.b64encode(b"\xff\x00").decode()
    code = "import sys; print(sys.stdin.buffer.read())"
    done = api.post("/api/v1/run", json={"code": code, "stdin_b64": data}).json()
    assert done["stdout"] == "b'\\xff\\x00'\n"
    twice = {"code": code, "stdin_b64": data, "stdin": "x", "return_files": True}
    assert api.post("/api/v1/run", json=twice).status_code == 400
    with_files = {"code": code, "stdin": "x", "return_files": True}
    assert api.post("/api/v1/run", json=with_files).json()["stdout"] == "b'x'\n"
