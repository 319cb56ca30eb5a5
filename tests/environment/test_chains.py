"""Tools by name, structured mode, and waves: which calls run, in which order, and what is told."""

from __future__ import annotations

import ast
import threading
import time

import pytest

import atoll
from atoll.agent.environment.chains import waves
from atoll.agent.environment.chains import waves as chain_calls
from atoll.agent.environment.tools.builtin_tools import tools_of
from atoll.agent.environment.tools.registry import Registry
from atoll.agent.environment.tools.work_tools import WorkTools
from atoll.agent.trajectory.events import CodeRan

TEXT = "".join(f"entry {n}: value {n * n}\n" for n in range(500))
SECONDS = 20


class Meeting:
    """A tool that returns only if two calls of it run at the same time."""

    def __init__(self) -> None:
        self.together = threading.Barrier(2, timeout=SECONDS)


@pytest.fixture(scope="module")
def env():
    meeting = Meeting()
    state = {"n": 0}

    @atoll.tool(read_only=True)
    def meet(name: str) -> str:
        """Wait for another call."""
        meeting.together.wait()
        return name.upper()

    @atoll.tool(read_only=True)
    def upper(text: str) -> str:
        """Return the text in capitals."""
        return text.upper()

    @atoll.tool(allowed_callers=("code", "chain"))
    def bump(by: int = 1) -> int:
        """Count."""
        state["n"] += by
        return state["n"]

    @atoll.tool
    def send(text: str) -> str:
        """Send a text away."""
        return "sent " + text

    @atoll.tool(read_only=True)
    def fail(text: str) -> str:
        """Raise an error."""
        raise ValueError(f"no {text}")

    @atoll.tool
    def delegate(task: str) -> str:
        """Hand the task to another agent."""
        return task

    with atoll.REPLEnvironment(
        backend="native",
        context=TEXT,
        tools=[meet, upper, bump, send, fail, delegate],
        worker=lambda prompt: f"worker: {prompt[:20]}",
    ) as found:
        yield found


@pytest.fixture
def dep(env, monkeypatch):
    """Let the environment run chains in waves."""
    monkeypatch.setattr(env._inner._cells, "_mode", "dep")
    return env


@pytest.mark.spec("R4.7")
@pytest.mark.parametrize(
    ("call", "value"),
    [
        ("tool_call('upper', text='a')", "A"),
        ("tool_call('upper', {'text': 'a'})", "A"),
        ("TOOL('upper', text='a')", "A"),
        ("CALL('upper', 'a')", "A"),
        ("CALL('upper', {'text': 'a'})", "A"),
        ("CALL('peek', {'n': 7})", "entry 0"),
        ("CALL('peek', 7)", "entry 0"),
        ("tool_call('grep', {'first': 'entry 7:'})[0]['line']", 8),
        ("llm_call('hello')", "worker: hello"),
        ("TOOL('llm_call', prompt='hello')", "worker: hello"),
    ],
)
def test_a_tool_is_called_by_its_name(env, call, value):
    assert env.execute(call).result.value == value


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("CALL('uper', 'a')", "no tool 'uper': did you mean 'upper'?"),
        ("CALL(upper, 'a')", "a tool is called by its name: CALL('grep', ...), not function"),
        ("tool_call('upper', {'txt': 'a'})", "unexpected keyword argument 'txt'"),
        ("CALL('upper', 5)", "upper: text must be str, not int"),
    ],
)
def test_a_wrong_call_by_name_says_what_to_write(env, call, said):
    assert said in env.execute(call).observation


@pytest.mark.spec("R4.9")
def test_calls_are_found_by_syntax_and_not_in_texts_or_comments():
    code = "x = 'grep(1)'  # grep(2)\ndef f():\n    return grep('a')\nTOOL('send', 1)\nTOOL(x)"
    found = list(chain_calls.find_calls(ast.parse(code), {"grep", "send"}))
    assert [(one.tool, one.line, one.repeated) for one in found] == [
        ("grep", 3, True),
        ("send", 4, False),
        ("?", 5, False),
    ]


@pytest.mark.spec("R4.9")
def test_read_only_calls_of_a_chain_run_side_by_side(env):
    turn = env.execute("a = meet('a')\nb = meet('b')\na + b", structured=True)
    assert turn.result.value == "AB", turn.observation
    assert (turn.chain.mode_used, turn.chain.waves) == ("parallel", ((0, 1),))
    assert turn.chain.tools == ("meet", "meet")


@pytest.mark.spec("R4.9")
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("upper('a')\ndelegate('b')", "line 2: delegate hands the task to another agent and is never part of a chain: call it in a turn of its own"),
        ("upper('a')\nescalate('b')", "escalate hands the task to another agent"),
        ("upper('a')\nsend('b')", "line 2: send changes something and is not for chains"),
        ("for n in range(3):\n    send('b')", "line 2: send changes something"),
        ("upper('a')\nTOOL('send', text='b')", "send changes something"),
        ("upper('a')\nname = 'send'\nTOOL(name, text='b')", "a tool's name is computed"),
    ],
)  # fmt: skip
def test_a_chain_that_may_not_be_is_refused_before_anything_runs(env, code, said):
    before = len(env.invocations)
    turn = env.execute(code, structured=True)
    assert said in turn.observation
    assert "nothing was run" in turn.observation
    assert (turn.chain.refused, turn.result.kind) == (True, atoll.Outcome.REFUSED)
    assert len(env.invocations) == before


def test_one_call_alone_is_no_chain(env):
    turn = env.execute("send('a')", structured=True)
    assert (turn.result.value, turn.chain.chain_id) == ("sent a", None)
    assert turn.calls[0].caller_type == "code"


@pytest.mark.spec("R4.9")
def test_a_call_that_code_hides_is_refused_where_it_is_made(env):
    hidden = "upper('a')\nupper('b')\nimport builtins\ngetattr(builtins, 'se' + 'nd')('x')"
    turn = env.execute(hidden, structured=True)
    assert "PermissionError: send changes something and is not for chains" in turn.observation
    assert turn.calls[-1].outcome == "PermissionError"


@pytest.mark.spec("R4.9")
@pytest.mark.parametrize(
    "hidden",
    [
        "upper('a')\nd = CALL\nd('delegate', 'x')",
        "upper('a')\nimport functools\nfunctools.partial(CALL, 'delegate')('x')",
        "upper('a')\nexec(\"dele\" + \"gate('x')\".strip())",
        "upper('a')\nimport builtins\ngetattr(builtins, 'dele' + 'gate')('x')",
        "upper('a')\nlist(map(vars(__import__('builtins'))['delegate'], ['x']))",
    ],
)
def test_delegate_is_refused_in_a_chain_however_code_hides_it(env, hidden):
    turn = env.execute(hidden, structured=True)
    assert "PermissionError: delegate hands the task to another agent" in turn.observation
    assert (turn.chain.refused, turn.chain.tools) == (True, ("upper", "delegate"))
    assert [(one.tool, one.outcome) for one in turn.calls] == [
        ("upper", "ok"),
        ("delegate", "PermissionError"),
    ]


@pytest.mark.spec("R4.9")
@pytest.mark.parametrize(
    "code", ["d = delegate\nupper('a')\nd('x')", "d = [escalate]\nfor f in d: f('x')\nupper('a')"]
)
def test_another_name_for_delegate_is_found_before_anything_runs(env, code):
    turn = env.execute(code, structured=True)
    assert "nothing was run" in turn.observation
    assert turn.calls == ()


@pytest.mark.spec("R4.9")
@pytest.mark.spec("R4.10")
def test_calls_that_the_source_does_not_show_are_gated_from_the_second_on(env):
    turn = env.execute("s = send\ns('a')\ns('b')", structured=True)
    assert "PermissionError: send changes something and is not for chains" in turn.observation
    assert [
        (one.caller_type, one.chain_id, one.chain_index, one.outcome) for one in turn.calls
    ] == [
        ("chain", turn.chain.chain_id, 0, "ok"),
        ("chain", turn.chain.chain_id, 1, "PermissionError"),
    ]
    follows = env.execute("s, u = send, upper\ns('a')\nu('b')", structured=True)
    assert "upper follows send, which is not for chains" in follows.observation
    once = env.execute("s = send\ns('a')", structured=True)
    assert (once.result.value, once.chain.chain_id) == ("sent a", None)
    free = env.execute("b = bump\nb()\nb()", structured=True)
    assert free.result.success
    assert (free.chain.tools, free.chain.refused) == (("bump", "bump"), False)
    outside = env.execute("s = send\ns('a')\ns('b')")
    assert outside.result.value == "sent b", "a cell outside of structured mode is not gated"


@pytest.mark.spec("R4.27")
def test_delegate_and_escalate_are_routing_primitives_with_a_handler_of_the_host():
    tasks = []

    def on_delegate(task: str, to: str = "worker") -> str:
        tasks.append((task, to))
        return f"done by {to}"

    with atoll.REPLEnvironment(backend="native", on_delegate=on_delegate) as env:
        assert "- delegate(task" in env.tool_list()
        assert "escalate" not in env.tool_list()
        assert env.execute("delegate('sort it')").result.value == "done by worker"
        assert env.execute("TOOL('delegate', {'task': 'x', 'to': 'y'})").result.value == "done by y"
        refused = env.execute("escalate('too hard')")
        assert (
            "PermissionError: escalate is off here: there is no other agent" in refused.observation
        )
        assert "on_escalate=function" in refused.observation
        chained = env.execute("grep\ndelegate('a')\ndelegate('b')", structured=True)
        assert "never part of a chain" in chained.observation
    assert tasks == [("sort it", "worker"), ("x", "y")]


@pytest.mark.spec("R4.10")
def test_every_call_of_a_chain_is_numbered_in_the_log(env):
    turn = env.execute("bump()\nupper('a')\nCALL('bump', 2)", structured=True)
    chain = f"chain-{turn.number}"
    assert turn.chain.chain_id == chain
    assert [(c.tool, c.caller_type, c.chain_id, c.chain_index) for c in turn.calls] == [
        ("bump", "chain", chain, 0),
        ("upper", "chain", chain, 1),
        ("bump", "chain", chain, 2),
    ]
    assert turn.calls[0].to_dict()["chain_id"] == chain
    plain = env.execute("bump()\nupper('a')").calls[0]
    assert (plain.caller_type, plain.chain_id, plain.chain_index) == ("code", None, None)


@pytest.mark.spec("R4.10")
def test_the_calls_of_a_turn_are_in_the_trajectory():
    seen = []
    model = atoll.ScriptedModel(["```python\na = grep('entry 7:')\nb = peek(5)\nFINAL(1)\n```"])
    options = {"backend": "native", "direct_tokens": 1, "structured": True}
    atoll.RLM(model, on_event=seen.append, **options).completion("What?", TEXT)
    ran = [one for one in seen if isinstance(one, CodeRan)]
    calls = ran[0].calls
    assert [one["tool"] for one in calls] == ["grep", "peek", "FINAL"]
    assert {one["caller_type"] for one in calls} == {"chain"}
    assert len({one["chain_id"] for one in calls}) == 1
    assert [one["chain_index"] for one in calls] == [0, 1, 2]


@pytest.mark.spec("R4.26")
def test_structured_code_and_tool_code_are_sanitised(env):
    assert (
        env.execute("a = upper(“x”)\nb = upper(“y”)\na + b", structured=True).result.value == "XY"
    )
    assert env.execute("run_python_code('3 × 4')['value']").result.value == 12


@pytest.mark.spec("R4.11")
def test_dependent_calls_run_in_later_waves(dep):
    code = "a = meet('a')\nb = upper(a)\nc = meet('c')\nd = upper(c)\nn = bump()\nb + d"
    turn = dep.execute(code, structured=True)
    assert turn.result.value == "AC", turn.observation
    assert (turn.chain.mode, turn.chain.mode_used) == ("dep", "dep")
    assert turn.chain.waves == ((0, 2), (1, 3), (4,))
    assert {one.chain_index for one in turn.calls} == set(range(5))
    assert not turn.chain.fallback_to_seq


@pytest.mark.spec("R4.11")
@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("for n in range(2):\n    bump()", "line 2: bump is called inside a larger statement"),
        ("a = upper(upper('a'))", "line 1: upper is called in an argument"),
        ("upper('a')\nt = upper\nupper('b')", "line 2: upper is used without being called"),
        ("upper('a')\nupper = str\nupper('b')", "line 2: the name upper is given a new value"),
        ("a = upper('a') if 1 else upper('b')", "line 1: upper is called inside a larger"),
    ],
)
def test_ambiguous_code_falls_back_and_says_why(dep, code, why):
    turn = dep.execute(code + "\n7", structured=True)
    assert turn.result.value == 7
    assert (turn.chain.mode_used, turn.chain.fallback_to_seq) == ("seq", True)
    assert turn.chain.why.startswith(why)
    dep.execute("try: del upper\nexcept NameError: pass")


@pytest.mark.spec("R4.11")
@pytest.mark.parametrize(
    "options",
    [{"backend": "native", "guard": "ast"}, {"backend": "native", "guard": "restrictedpython"},
     {"backend": "restricted"}],
    ids=["ast", "restrictedpython", "restricted"],
)  # fmt: skip
def test_waves_run_under_a_guard(options):
    meeting = Meeting()

    @atoll.tool(read_only=True)
    def meet(name: str) -> str:
        """Wait for another call."""
        meeting.together.wait()
        return name.upper()

    options |= {"context": TEXT, "tools": [meet], "parallel_tools": False}
    with atoll.REPLEnvironment(structured=True, tool_chain_mode="dep", **options) as env:
        turn = env.execute("x = 'a'\na = meet(x)\nb = meet('b')\nc = grep(a)\na + b")
        assert turn.result.value == "AB", turn.observation
        assert (turn.chain.mode_used, turn.chain.waves) == ("dep", ((0, 1), (2,)))
        refused = env.execute("a = grep('x')\nimport os\nb = grep('y')")
        assert "line 2, module: os must not be imported here" in refused.observation
        assert (refused.chain.mode_used, refused.chain.why) == ("seq", "the guard refuses the cell")
        assert refused.calls == ()


@pytest.mark.spec("R4.11")
def test_a_guest_without_threads_says_so():
    options = {"structured": True, "tool_chain_mode": "dep", "context": TEXT}
    with atoll.REPLEnvironment(backend="wasm", **options) as env:
        turn = env.execute("a = grep('entry 7:')\nb = grep('entry 8:')\nlen(a) + len(b)")
    assert turn.result.value == 2
    assert (turn.chain.mode_used, turn.chain.fallback_to_seq) == ("seq", True)
    assert turn.chain.why == "guests of the backend wasm cannot start threads"


@pytest.mark.spec("R4.11")
def test_the_mode_is_read_from_the_environment(monkeypatch):
    monkeypatch.setenv("ORCHESTRATOR_TOOL_CHAIN_MODE", "dep")
    monkeypatch.setenv("ORCHESTRATOR_TOOL_CHAIN_PARALLEL_MUTATIONS", "1")
    with atoll.REPLEnvironment(backend="native") as env:
        code = "a = run_shell('until [ -e b ]; do sleep 0.01; done', 20)\nb = run_shell('touch b')"
        turn = env.execute(code + "\n(a['exit_code'], b['exit_code'])", structured=True)
    assert turn.result.value == (0, 0), "each waits for the other"
    assert (turn.chain.mode_used, turn.chain.waves) == ("dep", ((0, 1),))
    monkeypatch.setenv("ORCHESTRATOR_TOOL_CHAIN_MODE", "fast")
    with pytest.raises(atoll.ConfigError, match="no tool_chain_mode 'fast': use seq or dep"):
        atoll.REPLEnvironment(backend="native")


def waves_of(code, *, mutations):
    registry = Registry()
    reads = [atoll.tool(lambda x: x, name=name, read_only=True) for name in ("read", "look")]
    registry.add([*(tool for _, tool in tools_of("work", WorkTools(None))), *reads])
    found = waves.plan(ast.parse(code), registry.get, registry, mutations=mutations)
    return found.waves


@pytest.mark.spec("R4.11")
@pytest.mark.parametrize(
    ("code", "sequential", "parallel"),
    [
        ("run_shell('a')\nrun_shell('b')", ((0,), (1,)), ((0, 1),)),
        ("file_write_safe('a', 'x')\nfile_write_safe('b', 'y')", ((0,), (1,)), ((0, 1),)),
        ("file_write_safe('a', 'x')\nfile_write_safe('a', 'y')", ((0,), (1,)), ((0,), (1,))),
        ("file_write_safe(p, 'x')\nfile_write_safe('a', 'y')", ((0,), (1,)), ((0,), (1,))),
        ("file_write_safe('d/a', 'x')\nrun_shell('cat a')", ((0,), (1,)), ((0,), (1,))),
        ("log_append('a')\nlog_append('b')", ((0,), (1,)), ((0,), (1,))),
        ("log_append('a')\nlog_append('b', 'other')", ((0,), (1,)), ((0, 1),)),
        ("run_python_code('a')\nrun_shell('b')", ((0,), (1,)), ((0,), (1,))),
        ("run_shell('a')\nread('b')", ((0,), (1,)), ((0,), (1,))),
        ("a = read(1)\nb = look(a)\nc = read(2)", ((0, 2), (1,)), ((0, 2), (1,))),
        ("a = read(1)\nprint(a)\nb = read(2)", ((0,), (1,)), ((0,), (1,))),
        ("a = read(1)\nx = a[0]\nb = read(2)\nc = look(x)", ((0, 1), (2,)), ((0, 1), (2,))),
        ("a = read(1)\na = read(2)\nb = look(a)", ((0, 1), (2,)), ((0, 1), (2,))),
        ("x = 1\na = read(x)\nx = 2\nb = read(x)", ((0,), (1,)), ((0,), (1,))),
    ],
)
def test_waves_follow_from_definitions_and_uses(code, sequential, parallel):
    assert waves_of(code, mutations=False) == sequential
    assert waves_of(code, mutations=True) == parallel


def test_a_chain_stops_where_it_says(dep):
    code = "a = upper('a')\nb = fail('such thing')\nc = upper(b)"
    turn = dep.execute(code, structured=True)
    assert "ValueError: no such thing" in turn.observation
    assert (
        "(call 2 of 3 of the chain, fail, failed; what comes after it did not run"
        in turn.observation
    )
    assert turn.chain.stopped_at == 1
    assert [one.tool for one in turn.calls].count("upper") == 1
    assert dep.execute("a").result.value == "A", "what was done before is kept"


def test_the_value_of_the_last_call_is_that_of_the_cell(dep):
    assert dep.execute("upper('a')\nupper('b')", structured=True).result.value == "B"


@pytest.mark.spec("R4.21")
def test_the_built_in_tools_work_inside_the_sandbox(env):
    shell = env.execute("run_shell('echo out; echo err >&2; id -un; exit 3')").result.value
    assert shell["exit_code"] == 3
    assert shell["output"].splitlines()[:2] == ["out", "err"]
    late = env.execute("run_shell('sleep 60', timeout=0.2)").result.value
    assert late == {"exit_code": None, "output": "", "timed_out": True}
    many = env.execute("run_shell('yes | head -c 3000000')").result.value
    assert (len(many["output"]), many["truncated"]) == (200_000, True)
    ran = env.execute("run_python_code('print(1)\\nx = 2\\nx + 1')").result.value
    assert ran == {"stdout": "1\n", "value": 3, "error": None}
    assert env.execute("run_python_code('1/0')['error']").result.value.startswith(
        "ZeroDivisionError"
    )
    assert env.execute("file_write_safe('d/f.txt', 'abc')").result.value == {
        "path": "d/f.txt",
        "bytes": 3,
    }
    assert env.execute("open('d/f.txt').read()").result.value == "abc"
    env.execute("log_append({'n': 1})\nlog_append('two')")
    lines = env.execute("import json\n[json.loads(x)['message'] for x in open('logs/log.jsonl')]")
    assert lines.result.value == [{"n": 1}, "two"]
    timed = env.execute("benchmark_run('sum(range(100))', repeat=3)").result.value
    assert len(timed["runs_ms"]) == 3
    assert 0 < timed["min_ms"] <= timed["median_ms"]
    assert env.execute("benchmark_run('exit 4', 2, shell=True)").result.value["exit_code"] == 4


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("file_write_safe('../out', 'x')", "'../out' is outside of the working folder"),
        ("file_write_safe('/etc/x', 'x')", "'/etc/x' is outside of the working folder"),
        ("import os; os.symlink('/tmp', 'l'); file_write_safe('l/x', 'x')", "outside of the working folder"),
        ("file_write_safe('x', 5)", "content must be str or bytes, not int"),
        ("log_append('a', '../x')", "a log's name has letters, digits, _ and -, not '../x'"),
        ("run_shell('')", "command must be a text that is not empty"),
        ("run_shell('a', 0)", "timeout must be 0 to 600 seconds"),
        ("benchmark_run('1', 0)", "repeat must be 1 to 1,000"),
    ],
)  # fmt: skip
def test_a_built_in_tool_says_what_is_wrong(env, call, said):
    assert said in env.execute(call).observation


def test_tool_code_passes_the_guard_of_the_cells():
    with atoll.REPLEnvironment(backend="native", guard="ast") as env:
        refused = env.execute("run_python_code('import os')").result
        assert refused.error_type == "PermissionError"
        assert "os" in refused.error
        assert env.execute("run_python_code('1 + 1')['value']").result.value == 2
        assert "run_shell is off" in env.execute("run_shell('ls')").observation


def test_the_list_for_a_model_has_the_work_tools_if_it_is_asked_for():
    listed = atoll.REPLEnvironment(backend="native", work_tools=True)
    hidden = atoll.REPLEnvironment(backend="native")
    assert "- run_shell(command, timeout=60): a shell command" in listed.tool_list()
    assert "run_shell" not in hidden.tool_list()
    listed.close()
    hidden.close()


def test_a_tool_has_schemas_of_its_arguments_and_of_its_result(env):
    by_name = {one.name: one for one in env.tools}
    assert by_name["upper"].input_schema == {
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
    }
    assert by_name["bump"].input_schema["properties"]["by"] == {"type": "integer", "default": 1}
    assert by_name["upper"].output_schema == {"type": "string"}


def test_an_interrupted_wave_leaves_the_session_usable(dep):
    code = "a = run_shell('sleep 60', 60)\nb = run_shell('sleep 60', 60)"
    begun = time.monotonic()
    turn = dep.execute(code, structured=True, timeout_ms=400)
    assert "TimeoutError" in turn.observation
    assert time.monotonic() - begun < SECONDS
    assert dep.execute("upper('b')\nupper('c')", structured=True).result.value == "C"
