"""`atoll ask`: what it prints, where, and with what it exits."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import atoll as library
from atoll.agent.rlm.models.recorded import Recorder
from atoll.agent.rlm.models.scripted import ScriptedModel
from atoll.agent.trajectory import RunEnded
from atoll.agent.trajectory.reader import read
from atoll.extras import install_command

QUESTION = "Where is the key?"
NEEDLE = "Ilse hid the key under the third step."
LOOK = "```python\ngrep('key')\n```"
TWICE = "```python\ntry: {0}\nexcept ValueError: {0}\n```"
"""A quote that is not in the context is refused once, then marked."""
ANSWER = TWICE.format(f"FINAL('under the third step', quotes=['{NEEDLE[:-1]}', 'nowhere'])")
PATIENCE_SECONDS = 90


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch, tmp_path):
    for name in ("ATOLL_MODEL", "ATOLL_BACKEND", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))  # there is no local model in it


@pytest.fixture
def document(tmp_path) -> Path:
    path = tmp_path / "document.txt"
    path.write_text("nothing of note here\n" * 5_000 + NEEDLE + "\n")
    return path


@pytest.fixture
def record(tmp_path, document):
    """The name of a model that says the same again when it is asked the same."""

    def make(*replies, question=QUESTION, context=document, **settings) -> str:
        path = tmp_path / "record.jsonl"
        model = Recorder(ScriptedModel(replies, usd_per_call=0.01), path)
        with library.RLM(model, backend="native", **settings) as rlm:
            rlm.completion(question, context)
        return f"replay/{path}"

    return make


@pytest.fixture
def ask(atoll, document):
    def call(*argv: str):
        return atoll("ask", QUESTION, "--context", str(document), *argv)

    return call


def test_the_answer_is_on_stdout_and_all_else_on_stderr(ask, record, tmp_path):
    trace = tmp_path / "run.jsonl"
    code, out, err = ask("--model", record(LOOK, ANSWER), "--trace", str(trace))
    assert (code, out) == (0, "under the third step\n")
    lines = err.splitlines()
    assert lines[0] == "context  kind a text · length 105,039"
    assert lines[1] == "plan  loop: 105,039 characters are more than 4,000 tokens"
    assert re.fullmatch(r"turn 1  grep\('key'\) +1 call · \$0\.01\d* · .*s", lines[2])
    assert re.fullmatch(r"turn 2  try: FINAL\('under.* +2 calls · \$0\.02\d* · .*s", lines[3])
    assert f"found  “{NEEDLE[:-1]}” at 105,000-105,037, line 5,001" in lines
    assert "not found  “nowhere”" in lines
    assert any(line.startswith("map  ▒▒▒▒▒") and line.endswith("█") for line in lines)
    assert "answered  2 turns · 2 model calls · " in err
    assert f"trace {trace} (" in " ".join(err.split())  # a long path breaks the line
    assert "\x1b" not in err
    assert read(trace).events[-1].outcome == "answered"


def test_quiet_says_the_answer_and_what_is_wrong_with_it(ask, record):
    model = record(LOOK, ANSWER)
    unfound = "atoll: 1 of 2 quotes of the answer are not in the context\n"
    assert ask("--model", model, "--quiet") == (0, "under the third step\n", unfound)


def test_json_is_one_object_with_all_of_it(ask, record):
    code, out, _ = ask("--model", record(LOOK, ANSWER), "--json")
    told = json.loads(out)
    assert code == 0
    assert (told["outcome"], told["answer"]) == ("answered", "under the third step")
    assert [one["line"] for one in told["evidence"]] == [5_001, None]
    assert (told["usd"], told["calls"], told["turns"]) == (0.02, 2, 2)
    assert told["coverage"]["scanned_share"] == 1


def test_json_has_a_form_for_every_value(ask, record):
    odd = "```python\nclass Odd: pass\nfound = {'odd': Odd(), 'n': 3}\nFINAL_VAR('found')\n```"
    told = json.loads(ask("--model", record(odd), "--json", "--quiet")[1])
    assert told["value"] is not None
    assert "3" in told["answer"]


def test_the_model_may_come_from_the_environment(ask, record, monkeypatch):
    monkeypatch.setenv("ATOLL_MODEL", record(LOOK, ANSWER))
    assert ask("--quiet")[0] == 0


NO_HTTPX = f"  - not installed: httpx2. Type: {install_command('llm')}"
NO_KEY_WAYS = """\
Other ways:
  atoll ask --demo           watch a recorded run; needs no model and no network
  atoll model get            download a small local model (1.1 GB), then:
  atoll ask 'QUESTION' --context FILE --model local
"""


@pytest.fixture
def no_extras(monkeypatch):
    """The base installation: neither httpx2 nor xllamacpp can be imported."""
    for name in ("httpx2", "xllamacpp"):
        monkeypatch.setitem(sys.modules, name, None)
    find = importlib.util.find_spec

    def found(name: str, package: str | None = None):
        return None if name in {"httpx2", "xllamacpp"} else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", found)


@pytest.mark.usefixtures("no_extras")
def test_one_message_names_everything_that_is_missing(atoll):
    code, out, err = atoll("ask")
    assert (code, out) == (2, "")
    assert (
        err
        == f"""\
atoll: `atoll ask` cannot start:
  - no question. Type it in quotes: atoll ask 'Who signed it?' --context FILE
  - no model. Add --model openai/NAME or --model anthropic/NAME, or set ATOLL_MODEL
  - no API key. Type: export OPENAI_API_KEY=... or: export ANTHROPIC_API_KEY=...
{NO_HTTPX}
  - no context (optional). Add --context FILE or FOLDER, or - for stdin
{NO_KEY_WAYS}"""
    )


@pytest.mark.usefixtures("no_extras")
def test_what_the_local_model_needs_is_named_at_once(ask):
    code, _, err = ask("--model", "local")
    assert (code, err) == (2, f"""\
atoll: `atoll ask` cannot start:
  - the local model is not downloaded. Type: atoll model get (downloads 1.1 GB)
  - not installed: xllamacpp and httpx2. Type: {install_command("localllm", "llm")}
""")  # fmt: skip


@pytest.mark.usefixtures("no_extras")
def test_a_missing_key_is_named_with_all_else_that_is_missing(atoll):
    argv = ("ask", QUESTION, "--model", "openai/gpt-5", "--context", "/no such file")
    code, _, err = atoll(*argv)
    assert (code, err) == (2, f"""\
atoll: `atoll ask` cannot start:
  - no API key for openai/gpt-5. Type: export OPENAI_API_KEY=...
{NO_HTTPX}
  - cannot read /no such file: there is no such file or folder
{NO_KEY_WAYS}""")  # fmt: skip


def test_a_key_that_is_set_is_not_asked_for(ask, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    assert "API key for" not in ask("--model", "openai/gpt-5", "--context", "/nope")[2]
    assert "no API key" not in ask()[2]


@pytest.mark.parametrize("question", ["", "  ", "\n\t"])
def test_an_empty_question_is_refused_before_anything_is_opened(atoll, tmp_path, question):
    trace, pipe = tmp_path / "run.jsonl", tmp_path / "pipe"
    os.mkfifo(pipe)  # opening it would wait for a writer
    model = f"replay/{tmp_path}/none.jsonl"
    argv = ("ask", question, "--context", str(pipe), "--trace", str(trace), "--model", model)
    code, out, err = atoll(*argv)
    assert (code, out) == (2, "")
    assert "  - the question is empty. Type one in quotes: atoll ask " in err
    assert not trace.exists()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--model", "gpt-5"], "there is no model 'gpt-5'. A name is one of openai/NAME, "),
        (["--model", "local/x"], "local/x has no address. Add its server: --base-url http"),
        (
            ["--budget-usd", "-1"],
            "--budget-usd must be a number of dollars greater than 0, got '-1'",
        ),
        (
            ["--budget-usd", "nan"],
            "--budget-usd must be a number of dollars greater than 0, got 'nan'",
        ),
        (["--temperature", "3"], "--temperature must be a number from 0 to 2, got '3'"),
        (["--max-depth", "-1"], "--max-depth must be a whole number, 0 or greater, got '-1'"),
        (["--context", "no such file"], "cannot read no such file"),
        (["--context", "-", "--context", "-"], "stdin can be read once"),
        (["--window", "100"], "a window must have at least 2,048 tokens, not 100"),
        (["--trace", "/proc/none/x"], "cannot write the record"),
    ],
)
def test_what_is_typed_wrong_is_told_and_nothing_is_asked(ask, tmp_path, argv, said):
    if "--model" not in argv:
        (tmp_path / "empty.jsonl").touch()
        argv = ["--model", f"replay/{tmp_path}/empty.jsonl", *argv]
    code, out, err = ask(*argv)
    assert (code, out) == (2, "")
    assert said in err


def test_a_limit_that_is_reached_exits_with_3_and_says_so(ask, record):
    model = record(LOOK, "it is under a step", budget=library.Budget(iterations=1))
    code, out, err = ask("--model", model, "--max-turns", "1", "--quiet")
    assert (code, out) == (3, "it is under a step\n")
    limit = "a limit was reached (1 turn was made)"
    assert err == f"atoll: {limit}: this is the best answer known by then\n"
    model = record(LOOK, "it is under a step", budget=library.Budget(iterations=1))
    code, out, err = ask("--model", model, "--max-turns", "1", "--json")
    assert (code, json.loads(out)["outcome"]) == (3, "forced")


def test_a_run_without_an_answer_exits_with_5_and_prints_none(ask, record):
    code, out, err = ask("--model", record("", "", ""), "--quiet")
    assert (code, out) == (5, "")
    assert err.startswith("atoll: there is no answer: 3 replies in a row had no code")
    code, out, _ = ask("--model", record("", "", ""), "--json")
    told = json.loads(out)
    assert (code, told["outcome"], told["answer"]) == (5, "unanswered", "")
    assert "empty" in told["reason"]


def test_a_model_that_fails_exits_with_1(ask, tmp_path):
    trace = tmp_path / "run.jsonl"
    with serving(401, {"error": {"message": "no \x1b[2J"}}) as url:
        where = ("--model", "local/x", "--base-url", url)
        code, out, err = ask(*where, "--trace", str(trace), "--quiet", "--json")
    assert code == 1
    where = urlsplit(url).netloc
    said = "The server wants a key: export OPENAI_COMPATIBLE_API_KEY=..."
    assert err == f"atoll: local/x at {where}: status 401: “no \\x1b[2J”. {said}\n"
    assert "\x1b" not in err + out
    assert json.loads(out)["outcome"] == "failed"
    assert read(trace).events[-1].outcome == "failed"


def test_a_server_that_is_not_there_is_named_with_its_port(ask, monkeypatch):
    monkeypatch.setattr("atoll.agent.rlm.models.client._FIRST_WAIT", 0.001)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
    code, out, err = ask("--model", "local/x", "--base-url", url, "--quiet")
    where = urlsplit(url).netloc
    assert (code, out) == (1, "")
    assert err == (
        f"atoll: local/x at {where}: connection refused; asked 5 times. Is the model server "
        f"running? Start it, or give its base_url (--base-url): {url}\n"
    )


@contextlib.contextmanager
def serving(status: int, said: dict):
    """A server that gives everybody the same answer."""

    with _listening(lambda: (status, said)) as url:
        yield url


@contextlib.contextmanager
def model_server(reply):
    """A model server that answers with what `reply()` returns."""

    def answer() -> tuple[int, dict]:
        message = {"role": "assistant", "content": reply()}
        return 200, {"choices": [{"message": message, "finish_reason": "stop"}]}

    with _listening(answer) as url:
        try:
            yield url
        finally:
            reply.end()


@contextlib.contextmanager
def _listening(answer):
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            status, said = answer()
            with contextlib.suppress(OSError):  # a client that was interrupted has gone
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(said).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()


def test_a_small_context_from_stdin_goes_direct(command, record):
    model = record("Three.", context="One. Two. Three.")
    done = subprocess.run(
        [*command, "ask", QUESTION, "--context", "-", "--model", model],
        input="One. Two. Three.", capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "Three.\n"
    assert "plan  direct: about " in done.stderr


def test_a_folder_is_one_context(atoll, record, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.txt").write_text("alpha")
    (folder / "b.bin").write_bytes(b"\0")
    model = record("fine", context=folder)
    code, out, err = atoll("ask", QUESTION, "--context", str(folder), "--model", model)
    assert (code, out) == (0, "fine\n")
    assert "files 1 · skipped 1" in err


def test_a_quote_from_a_folder_is_shown_with_its_file_and_line(atoll, record, tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "a.log").write_text("billing failed\n")
    (folder / "b.log").write_text("filler\n" * 10_000)
    model = record("```python\nFINAL('a', quotes=['billing failed'])\n```", context=folder)
    argv = ("ask", QUESTION, "--context", str(folder), "--model", model)
    assert "found  “billing failed” at a.log:1" in atoll(*argv)[2].splitlines()
    (told,) = json.loads(atoll(*argv, "--json")[1])["evidence"]
    assert (told["path"], told["line"]) == ("a.log", 1)


HOSTILE = TWICE.format("print('\x1b[2J'); FINAL('a\\x1b]0;title\\x07b', quotes=['\\x1b[31m'])")


def test_a_terminal_shows_what_is_under_way_and_is_steered_by_nobody(command, record, document):
    argv = ["ask", QUESTION, "--context", str(document), "--model", record(HOSTILE)]
    seen = on_a_terminal([*command, *argv])
    assert "a\\x1b]0;title\\x07b" in seen
    assert "print('\\x1b[2J')" in seen
    assert "“\\x1b[31m”" in seen
    ours = re.compile(r"\r\x1b\[2K|\x1b\[[\d;]*m")  # one line anew, colours
    assert "\x1b" not in ours.sub("", seen).replace("\r\n", "\n")
    waiting = (
        r"… turn 1: waiting for the model \(prompt of about [\d,]+ tokens\) · [\d.]+ m?s · 0 in"
    )
    assert re.search(waiting, seen)
    stays = [line.rpartition("\x1b[2K")[2] for line in seen.split("\r\n")]
    assert not any("waiting for the model" in line for line in stays)
    assert any(line.startswith("\x1b[32mturn 1\x1b[0m") for line in stays)


def on_a_terminal(argv: list[str]) -> str:
    mine, theirs = pty.openpty()
    parts = []
    with subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs):
        os.close(theirs)
        try:
            while part := os.read(mine, 1 << 16):
                parts.append(part)
        except OSError:  # the other end has been closed
            pass
        os.close(mine)
    return b"".join(parts).decode()


@pytest.fixture
def interrupted(spawn, document, tmp_path):
    """Start `atoll ask`, press Ctrl-C when told to; exit code, stderr, trajectory."""
    trace = tmp_path / "run.jsonl"

    def run(*argv: str, when, context=document):
        process = spawn("ask", QUESTION, "--context", str(context), "--trace", str(trace), *argv)
        when(trace)
        below = descendants(process.pid)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
        end = time.monotonic() + PATIENCE_SECONDS
        while (left := {pid for pid in below if alive(pid)}) and time.monotonic() < end:
            time.sleep(0.02)
        assert not left
        return process.returncode, err, read(trace).events

    return run


@pytest.mark.long
def test_ctrl_c_while_a_model_is_waited_for_ends_it_all(interrupted):
    with contextlib.ExitStack() as opened, socket.create_server(("127.0.0.1", 0)) as server:
        where = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        server.settimeout(PATIENCE_SECONDS)

        def accept(_: Path) -> None:
            opened.enter_context(server.accept()[0])

        code, err, events = interrupted("--model", "local/silent", "--base-url", where, when=accept)
    assert code == 130
    assert_says_what_is_known(err, turns="no turn was finished", calls="0 model calls")
    assert "the reply that was cut off is not counted" in err
    ended = [one.outcome for one in events if isinstance(one, RunEnded)]
    assert ended in ([], ["cancelled"])  # where there was no time to say so, it ended all the same


def test_ctrl_c_while_code_runs_leaves_no_process_behind(interrupted):
    endless = {"role": "assistant", "content": "```python\nwhile True: pass\n```"}
    with serving(200, {"choices": [{"message": endless, "finish_reason": "stop"}]}) as url:
        code, err, _ = interrupted("--model", "local/x", "--base-url", url, when=answered)
    assert code == 130
    assert_says_what_is_known(err, turns="no turn was finished", calls="1 model call")


def test_ctrl_c_shows_the_last_code_and_its_output(interrupted, tmp_path):
    with model_server(look_then_wait(tmp_path / "asked")) as url:
        where = ("--model", "local/x", "--base-url", url)
        code, err, _ = interrupted(*where, when=lambda _: appears(tmp_path / "asked"))
    assert code == 130
    assert_says_what_is_known(err, turns="1 turn done", calls="1 model call")
    assert "last code\n  │ hits = grep('key')\n  │ hits\n" in err
    assert re.search(rf"last output\n  │ 1 found:\n  │ 5001 \[.*\] {re.escape(NEEDLE)}\n", err)


@pytest.mark.long
def test_ctrl_c_with_json_prints_what_is_known_as_one_object(spawn, document, tmp_path):
    with model_server(look_then_wait(tmp_path / "asked")) as url:
        where = ("--model", "local/x", "--base-url", url, "--json", "--quiet")
        process = spawn("ask", QUESTION, "--context", str(document), *where)
        appears(tmp_path / "asked")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    known = json.loads(out)
    assert (process.returncode, err) == (130, "")
    assert (known["outcome"], known["turns"], known["calls"]) == ("interrupted", 1, 1)
    assert NEEDLE in known["observation"]


def assert_says_what_is_known(err: str, *, turns: str, calls: str) -> None:
    assert "Traceback" not in err
    assert re.search(
        r"^atoll: interrupted after .*, before there was an answer\.$", err, re.MULTILINE
    )
    assert f"\nturns  {turns}\n" in err
    assert re.search(rf"^cost  {calls} · [\d,]+ in, [\d,]+ out · \$0\.00", err, re.MULTILINE)
    assert re.search(r"^trace  \S+run\.jsonl \(atoll trace show", err, re.MULTILINE)


def look_then_wait(asked: Path):
    """Reply with code to the first request; do not answer the second one."""
    waits = threading.Event()
    replies = iter(["```python\nhits = grep('key')\nhits\n```"])

    def reply() -> str:
        if (text := next(replies, None)) is not None:
            return text
        asked.touch()
        waits.wait(PATIENCE_SECONDS)
        return ""

    reply.end = waits.set  # type: ignore[attr-defined]
    return reply


def appears(path: Path) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_ctrl_c_while_a_context_is_read_ends_it_all(interrupted, record, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    model = record("x", context="short")
    with contextlib.ExitStack() as opened:

        def hold(_: Path) -> None:
            opened.enter_context(pipe.open("wb"))  # as soon as it is read, and then say nothing

        code, err, _ = interrupted("--model", model, context=pipe, when=hold)
    assert code == 130
    assert_says_what_is_known(err, turns="no turn was finished", calls="0 model calls")


def answered(trace: Path) -> None:
    """Wait until the model's first words are in the trajectory."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not trace.exists() or '"model_answered"' not in trace.read_text():
        assert time.monotonic() < end
        time.sleep(0.02)
    time.sleep(0.1)  # the cell has begun, or nearly so: either has to end


def descendants(pid: int) -> set[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {one for child in map(int, children) for one in (child, *descendants(child))}


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
