"""Hostile guests and documents against the host's end of an environment: it stays up and honest."""

from __future__ import annotations

import asyncio
import io
import os
import threading
import time
import zipfile

import pytest

import atoll
from atoll.agent.environment import core
from atoll.agent.environment.tools import documents
from atoll.agent.environment.tools.context_tools import CutLists
from atoll.agent.environment.tools.documents import Archives, Documents, passage
from atoll.agent.environment.turns import render
from atoll.types import Outcome, SandboxResult

TEXT = "".join(f"entry {n}: value {n * n}\n" for n in range(3000))


@pytest.fixture
def env():
    with atoll.REPLEnvironment(backend="native", context=TEXT) as found:
        yield found


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outside")
    (folder / "s").write_text("hidden outside")
    return folder


@pytest.fixture(scope="module")
def reader(tmp_path_factory, outside):
    """One environment for all that leaves it as it was; its documents were made by an enemy."""
    folder = tmp_path_factory.mktemp("documents")
    (folder / "notes.md").write_text("some value\n")
    (folder / "theirs").write_text("abcdef")
    (folder / "link").symlink_to(outside / "s")
    (folder / "links").symlink_to(outside)
    os.mkfifo(folder / "fifo")
    with atoll.REPLEnvironment(backend="native", context=TEXT, documents=folder) as found:
        yield found


def last_line(turn):
    return turn.observation.splitlines()[-1]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("grep()", "grep(pattern) in the context, grep(path, pattern) in a file"),
        ("grep('value', 'notes.md')", "The path comes first, as in grep(path, pattern)"),
        ("peek('nothing.txt')", "try list_dir()"),
        ("archive_open('nothing.zip')", "try list_dir()"),
        ("list_dir('notes.md')", "a file is read with peek(path)"),
        (
            "open('own', 'w').write('x'); peek('own', 'x')",
            "peek: n must be int, not str: peek(n, start=0)",
        ),
        ("FINAL()", "FINAL takes the answer: FINAL('...')"),
        ("FINAL('x', quotes=5)", "quotes=['...']"),
        ("call_host('FINAL', 'x' * 5000, 5)", "given by FINAL(answer)"),
        ("web_fetch('http://example.com')", "web_fetch is off here: use the context"),
    ],
)
def test_wrong_use_is_answered_with_what_to_do(reader, code, told):
    assert told in last_line(reader.execute(code))
    assert reader.final is None


def test_an_own_file_is_peeked_from_its_end_as_a_document_is(reader):
    made = reader.execute("open('own', 'w').write('abcdef'); peek('own', start=-3)")
    assert made.result.value == reader.execute("peek('theirs', start=-3)").result.value == "def"


@pytest.mark.parametrize(
    "way", ["../{out}/s", "{whole}/s", "link", "links/s", "fifo", "spill/../link", "no\\0thing"]
)
def test_no_name_leads_out_of_the_documents(reader, outside, way):
    name = way.format(out=outside.name, whole=outside)
    for call in (f"peek('{name}')", f"grep('{name}', 'hidden')", f"archive_open('{name}')"):
        turn = reader.execute(call)
        assert turn.result.kind is Outcome.ERROR, call
        assert "hidden outside" not in turn.observation


@pytest.mark.spec("R4.8")
@pytest.mark.parametrize("call", ["peek(0)", "peek('nothing')", "peek(-1)", "list_dir('nothing')"])
def test_a_call_that_saw_nothing_is_no_exploration(call):
    with atoll.REPLEnvironment(
        backend="native", context=TEXT, require_exploration_before_final=True
    ) as env:
        env.execute(f"for _ in range(3):\n    try: {call}\n    except Exception: pass")
        assert "look before you answer" in last_line(env.execute("FINAL('x')"))
        env.execute("grep('no such text')\nFINAL('searched, and it is not there')")
        assert env.final is not None


def test_only_the_turn_of_the_answer_tells_of_it(env):
    assert env.execute("FINAL('one')").final.text == "one"
    later = env.execute("1")
    assert (later.final, later.observation) == (None, "1")
    assert env.final.text == "one"
    assert env.execute(
        "try:\n    FINAL('two')\nexcept BaseException:\n    FINAL('three')"
    ).final.text
    assert env.final.text == "three", "the last one counts"


def test_an_answer_with_one_quote_or_a_wrong_one_is_taken_or_refused_never_half(env):
    env.execute("answer = {'ready': True, 'content': 'x', 'quotes': 'entry 7: value 49'}")
    assert [one.found for one in env.final.evidence] == [True]
    refused = env.execute("answer = {'ready': True, 'content': 'y', 'quotes': 5}")
    assert "the answer was not taken: quotes must be a list" in refused.observation
    assert refused.final is None


def test_an_answer_that_runs_code_of_its_own_is_not_waited_for(env, monkeypatch):
    monkeypatch.setattr(core, "ANSWER_SECONDS", 0.3)
    turn = env.execute(
        "import time\nclass Slow(dict):\n    def items(self): time.sleep(600)\n"
        "answer = Slow(ready=True, content='x')"
    )
    assert "took too long to read: make it a plain dict" in turn.observation
    assert turn.final is None
    assert env.execute("answer = dict(content='', ready=False); peek(5)").result.value == "entry"


def test_what_no_model_can_be_sent_is_shown_by_its_number(env):
    assert env.execute("'half \\ud800'").observation == "half \\ud800"
    result = SandboxResult(kind=Outcome.OK, stdout="\udcff")
    assert render(result).encode() == b"\\udcff"


def test_after_its_end_an_environment_is_not_begun_again(tmp_path):
    env = atoll.REPLEnvironment(backend="native", documents=tmp_path).start()
    env.close()
    with pytest.raises(atoll.SandboxClosedError, match="make another"):
        env.start()


def test_tools_and_answer_are_there_again_after_the_guest_was_killed(env):
    assert env.execute("import os; os.kill(os.getpid(), 9)").result.state_lost
    told = env.execute("print(answer, context_len, peek(5), len(context))").observation
    assert told == f"{{'content': '', 'ready': False}} {len(TEXT)} entry {len(TEXT)}"


def zipped():
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr("a.txt", "hello\n")
    return made.getvalue()


def test_archives_that_are_opened_again_and_again_are_one(env):
    env.execute("1")  # the counters of a guest are opened with its first cell
    before = len(os.listdir("/proc/self/fd"))
    env.execute(f"data = {zipped()!r}\nfor _ in range(4): archive_open(data)")
    assert env.execute("archive_file('a.txt')").result.value == "hello\n"
    assert len(os.listdir("/proc/self/fd")) - before <= 4, "one process with its pipes"


def test_closing_ends_the_calls_that_wait_and_leaves_no_archive(monkeypatch):
    texts = Documents(None, dict)
    held, opened = Archives(texts, 10, CutLists()), []
    monkeypatch.setattr(documents, "open_archive", lambda *_: opened.append(1))
    failures = []

    def call():
        try:
            held.archive_open("a", b"x")
        except ValueError as exc:
            failures.append(str(exc))

    with held._lock:
        waiting = [threading.Thread(target=call) for _ in range(5)]
        closing = threading.Thread(target=held.close)
        for thread in (*waiting, closing):
            thread.start()
        while not held._closed:
            time.sleep(0.001)
    for thread in (*waiting, closing):
        thread.join()
    assert failures == ["the environment is closed"] * 5
    assert not opened


def test_a_call_does_not_wait_for_ever_behind_others(monkeypatch):
    monkeypatch.setattr(documents, "WAIT_SECONDS", 0.01)
    held = Archives(Documents(None, dict), 10, CutLists())
    with held._lock, pytest.raises(ValueError, match="make one after the other"):
        held.archive_file("a")


def test_the_loop_runs_on_while_an_environment_closes():
    async def work():
        env = await atoll.aio.REPLEnvironment(backend="native").start()
        gate, beats = threading.Event(), 0
        env._tools._parts.callback(gate.wait, 20)
        closing = asyncio.ensure_future(env.close())
        while beats < 50:
            await asyncio.sleep(0.002)
            beats += 1
        assert not closing.done()
        gate.set()
        await closing

    asyncio.run(work())


def test_documents_that_stay_open_are_few_and_not_too_large(tmp_path, monkeypatch):
    for number in range(6):
        (tmp_path / f"{number}").write_text("x" * 1000)
    (tmp_path / "large").write_text("x" * 9000)
    monkeypatch.setattr(documents, "MAX_KEPT", 3500)
    texts = Documents(tmp_path, dict)
    for number in range(6):
        assert texts.find(f"{number}").length == 1000
    assert len(texts._open) == 3
    assert texts.find("large").length == 9000
    assert len(texts._open) == 1
    texts.close()
    assert texts.find("large") is None


def test_a_spilled_file_that_has_gone_is_no_fault_and_shows_no_path(tmp_path):
    texts = Documents(None, lambda: {"spill/turn_1.txt": tmp_path / "gone"})
    assert texts.find("spill/turn_1.txt") is None


def test_a_query_of_thousands_of_words_is_cheap_to_show_hits_for():
    text = "\n".join("abc def ghi" for _ in range(200)) + "\nneedle here"
    looked = []

    class Line(str):
        __slots__ = ()

        def __contains__(self, word):
            looked.append(word)
            return super().__contains__(word)

        def lower(self):
            return self

    class Text(str):
        __slots__ = ()

        def splitlines(self):  # type: ignore[override]
            return [Line(one) for one in super().splitlines()]

    query = "needle " + " ".join(f"w{n}" for n in range(2000))
    assert passage(Text(text), query).startswith("abc def ghi\nneedle")
    assert len(looked) <= 201 * 50


def test_thousands_of_answers_take_one_thread_of_the_hosts(env):
    most, now, lock = [0], [0], threading.Lock()
    answers = env._inner._tools.answers
    check = answers._checked

    def slow(*given):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.01)
        with lock:
            now[0] -= 1
        return check(*given)

    answers._checked = slow
    env.execute(
        "import threading\ndef f():\n    try: FINAL('x', quotes=['entry 5'])\n"
        "    except BaseException: pass\nts = [threading.Thread(target=f) for _ in range(12)]\n"
        "for t in ts: t.start()\nfor t in ts: t.join()"
    )
    assert most[0] == 1
    assert env.final.evidence[0].found


def test_a_batch_of_large_answers_is_refused_before_the_host_holds_them_all():
    made = []
    with atoll.create_sandbox(
        backend="native", tools={"many": lambda: made.append(1) or "x" * 1_000_000}
    ) as box:
        box.execute("import builtins\nraw = llm_query.__self__._batch")
        error = box.execute("raw('many', [{'args': []}] * 2000)").error
    assert "ask for fewer at once" in error
    assert len(made) < 200


@pytest.mark.parametrize("ending", ["SystemExit(3)", "KeyboardInterrupt()", "GeneratorExit()"])
def test_a_tool_that_would_end_the_host_is_an_error_in_the_guest(ending):
    def leave():
        raise eval(ending)

    with atoll.create_sandbox(backend="native", tools={"leave": leave}) as box:
        assert ending.partition("(")[0] in box.execute("leave()", timeout_ms=20_000).error
        assert box.execute("1 + 1").value == 2


def test_answers_that_nobody_reads_are_not_all_made():
    made = []
    code = """
import os
line = lambda n: ('{"jsonrpc":"2.0","id":"g%d","method":"host.call","params":{"name":"many","args":[]}}\\n' % n).encode()
channel = llm_query.__self__._channel
fd = [v for v in vars(channel).values() if isinstance(v, int) and not isinstance(v, bool) and v > 2]
data = b''.join(line(n) for n in range(900))
for one in fd:
    try:
        os.write(one, data)
    except OSError:
        pass
import time
time.sleep(1)
"""
    with atoll.create_sandbox(
        backend="native", tools={"many": lambda: made.append(1) or "x" * 1_000_000}
    ) as box:
        box.execute(code, timeout_ms=5_000)
    assert 0 < len(made) <= 200
