"""The integrations against stand-ins of their frameworks: what each needs of Atoll is still there.

`make test-plugs` runs them with the frameworks themselves.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib
import json
import subprocess
import sys
import types
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

import atoll
from atoll.integrations.agent_tool import LONGEST, MAX_FILE_BYTES, Answer, LiveOutput, PythonTool

FIGURE = "class P:\n def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n'\nP()"
PLUGS = (
    "dspy", "smolagents", "inspect_ai", "rlms", "langchain", "openai_agents", "pydantic_ai",
    "crewai", "autogen", "harbor", "nemo_gym", "openenv",
)  # fmt: skip


@pytest.fixture
def plug(monkeypatch):
    """Import an integration with stand-ins for modules of its framework: attributes by name."""

    def load(name: str, **modules: dict[str, Any]) -> Any:
        for path, attributes in modules.items():
            parts = path.split("__")
            for length in range(1, len(parts) + 1):
                whole = ".".join(parts[:length])
                if whole not in sys.modules or length == len(parts):
                    monkeypatch.setitem(sys.modules, whole, types.ModuleType(whole))
            vars(sys.modules[".".join(parts)]).update(attributes)
        for one in [key for key in sys.modules if key.startswith(f"atoll.integrations.{name}")]:
            monkeypatch.delitem(sys.modules, one)
        return importlib.import_module(f"atoll.integrations.{name}")

    return load


def test_importing_atoll_imports_no_framework():
    code = "import atoll, sys; print([n for n in sys.modules if n.split('.')[0] in {!r}])".format(
        (
            "dspy",
            "smolagents",
            "inspect_ai",
            "rlm",
            "langchain_core",
            "langgraph",
            "agents",
            "pydantic_ai",
            "crewai",
            "autogen_core",
            "mcp",
            "ipykernel",
            "jupyter_client",
            "pydantic",
            "starlette",
        ),
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("name", PLUGS)
def test_a_missing_framework_is_named_with_what_to_type(name, monkeypatch):
    for one in ("dspy", "smolagents", "inspect_ai", "rlm", "langchain_core", "agents", "pydantic_ai",
                "crewai", "autogen_core", "harbor", "openenv"):  # fmt: skip
        for key in [key for key in sys.modules if key.split(".")[0] == one]:
            monkeypatch.delitem(sys.modules, key)
        monkeypatch.setitem(sys.modules, one, None)
    for key in [key for key in sys.modules if key.startswith(f"atoll.integrations.{name}")]:
        monkeypatch.delitem(sys.modules, key)
    with pytest.raises(
        ImportError, match=rf"{name} needs {name.replace('_', '.')}\. Type: .*install"
    ):
        importlib.import_module(f"atoll.integrations.{name}")


class ExecutionError(RuntimeError):
    pass


@dataclass
class Final:
    output: Any


def test_dspy_interpreter_submits_calls_tools_and_keeps_large_texts(plug):
    core = {"CodeExecutionError": ExecutionError, "CodeInterpreterError": RuntimeError,
            "FinalOutput": Final}  # fmt: skip
    values = {"_dump_pydantic": dict, "_make_jsonable": lambda value: value}
    module = plug(
        "dspy",
        dspy__primitives__code_interpreter=core,
        dspy__primitives__python_interpreter=values,
        dspy__utils__callback={"with_callbacks": lambda function: function},
    )
    large = "ä" * 2_000_000
    with module.AtollInterpreter({"double": lambda n: 2 * n}, shared=large) as interpreter:
        given = {"doc": large, "more": large + "x", "rows": [1] * 600_000, "n": 3}
        code = "(len(doc), len(more), len(rows), double(n))"
        assert interpreter.execute(code, given) == [2_000_000, 2_000_001, 600_000, 6]
        assert interpreter.execute("more[-1]", given) == "x"
        assert interpreter.execute("SUBMIT((1, {2}))") == Final({"output": [1, [2]]})
        with pytest.raises(ExecutionError, match=r"KeyError: \['a'\]"):
            interpreter.execute("{}['a']")
        with pytest.raises(RuntimeError, match="interpreter state was lost"):
            interpreter.execute("import os; os._exit(1)")


def test_smolagents_executor_answers_and_calls_tools(plug):
    @dataclass
    class CodeOutput:
        output: Any
        logs: str
        is_final_answer: bool

    class AgentError(Exception):
        def __init__(self, message, logger) -> None:
            super().__init__(message)

    class Tool:
        inputs: ClassVar = {"city": {}, "deep": {"nullable": True}}
        description = "Count people."

        def __call__(self, city, deep=None):
            return [city, deep]

    module = plug(
        "smolagents",
        smolagents__local_python_executor={"CodeOutput": CodeOutput, "PythonExecutor": object},
        smolagents__monitoring={"AgentLogger": object},
        smolagents__utils={"AgentError": AgentError},
        PIL__Image={"Image": type("Image", (), {})},
    )
    sys.modules["PIL"].Image = sys.modules["PIL.Image"]
    with module.AtollExecutor() as executor:
        executor.send_tools({"people": Tool(), "final_answer": lambda answer: ("final", answer)})
        executor.send_variables({"factor": (1, 2)})
        assert executor("print(factor)\npeople('Oslo')").output == ["Oslo", None]
        assert executor("people.__doc__").output == "Count people."
        done = executor("final_answer({'a': factor})")
        assert (done.output, done.is_final_answer) == (("final", {"a": (1, 2)}), True)
        with pytest.raises(AgentError, match="ZeroDivisionError"):
            executor("1 / 0")
        executor.send_tools({})
        with pytest.raises(AgentError, match="no tool"):
            executor("people('Oslo')")


def test_a_tool_for_agents_keeps_state_and_marks_what_it_cuts():
    with atoll.create_sandbox(backend="native") as box:
        tool = PythonTool(box)
        assert tool.isolation == box.isolation
        assert tool.run("x = 6 * 7").text == "(no output)"
        assert tool.run("print('seen')\nx") == Answer(text="seen\n42")
        failed = tool.run("1 / 0")
        assert failed.failed
        assert "ZeroDivisionError" in failed.text
        long = tool.run(f"print('y' * {LONGEST + 1000})")
        assert "[1,000 characters left out]" in long.text
        assert "lost" in tool.run("import os; os._exit(2)").text


def test_a_tool_for_agents_returns_figures_and_files_and_says_what_it_limits():
    heard = []
    with atoll.create_sandbox(backend="native", policy={"memory_bytes": 64 << 20}) as box:
        tool = PythonTool(box, on_answer=heard.append)
        for word in ("`context`", "files", "64 MB of memory", "256 MB of files"):
            assert word in tool.description
        answer = tool.run(FIGURE)
        assert [one.media_type for one in answer.images] == ["image/png"]
        assert "[figures: 1]" in answer.text
        large = MAX_FILE_BYTES + 1
        code = f"open('a.csv', 'w').write('1,2'); open('b', 'wb').write(bytes({large})); 0"
        answer = tool.run(code)
        assert {one.path: one.content for one in answer.files} == {"a.csv": b"1,2", "b": None}
        assert "[wrote a.csv, 3 bytes]" in answer.text
    assert heard[1] == answer


def test_parallel_calls_each_get_their_own_live_output():
    live = LiveOutput()
    heard: dict[str, list[str]] = {"a": [], "b": []}
    with atoll.create_sandbox(backend="native", on_output=live) as box:
        tool = PythonTool(box, live=live)

        def call(name: str) -> str:
            code = f"for n in range(3): print('{name}', n, flush=True)"
            return tool.run(code, lambda _stream, text: heard[name].append(text)).text

        with concurrent.futures.ThreadPoolExecutor() as threads:
            answers = dict(zip("ab", threads.map(call, "ab"), strict=True))
    for name, pieces in heard.items():
        assert "".join(pieces) == answers[name] + "\n" == f"{name} 0\n{name} 1\n{name} 2\n"


async def test_a_stream_of_a_tool_ends_with_the_answer_and_a_closed_one_interrupts_the_code():
    live = LiveOutput()
    with atoll.create_sandbox(backend="native", on_output=live) as box:
        tool = PythonTool(box, live=live)
        pieces = [one async for one in tool.stream("print(1)\n2")]
        assert pieces == [("stdout", "1\n"), Answer(text="1\n2")]
        async with contextlib.aclosing(tool.stream("print(1)\nwhile True: pass")) as endless:
            assert await anext(endless) == ("stdout", "1\n")
        assert (await tool.arun("3")).text == "3"


def test_a_sandbox_that_is_too_weak_is_refused():
    weak = SimpleNamespace(backend="weak", isolation=atoll.Isolation.GUARDED)
    with pytest.raises(atoll.IsolationError, match="jailed was asked for"):
        PythonTool(weak)
    with atoll.create_sandbox(backend="restricted") as box:
        assert PythonTool(box, min_isolation="none").run("1 + 1").text == "2"


async def test_langchain_tool_is_typed_and_runs_in_any_loop():
    from atoll.integrations.langchain import as_tool

    with atoll.create_sandbox(backend="native") as box:
        tool = as_tool(box)
        assert list(tool.args) == ["code"]
        assert await tool.ainvoke({"code": "2 + 2"}) == "4"
        call = {"type": "tool_call", "id": "1", "name": "run_python"}
        figure = await tool.ainvoke({**call, "args": {"code": FIGURE}})
        assert [one["type"] for one in figure.content] == ["text", "image"]
        assert (figure.status, len(figure.artifact.images)) == ("success", 1)
        failed = await tool.ainvoke({**call, "args": {"code": "1 / 0"}})
        assert (failed.status, "ZeroDivisionError" in failed.content) == ("error", True)


async def test_openai_tool_reads_its_arguments(plug):
    @dataclass
    class FunctionTool:
        name: str
        description: str
        params_json_schema: dict[str, Any]
        on_invoke_tool: Any
        strict_json_schema: bool

    kinds = {"ToolOutputText": SimpleNamespace, "ToolOutputImage": SimpleNamespace}
    spans = {"get_current_span": lambda: None}
    module = plug(
        "openai_agents", agents={"FunctionTool": FunctionTool, **kinds}, agents__tracing=spans
    )
    with atoll.create_sandbox(backend="native") as box:
        tool = module.as_tool(box, name="python")
        assert (tool.name, tool.params_json_schema["required"]) == ("python", ["code"])
        assert await tool.on_invoke_tool(None, json.dumps({"code": "1 + 1"})) == "2"
        assert "call it with" in await tool.on_invoke_tool(None, "{}")


def rlms_stand_ins():
    """Return the modules of rlms that its integration imports."""

    @dataclass
    class REPLResult:
        stdout: str
        stderr: str
        locals: dict[str, Any]
        execution_time: float
        rlm_calls: list[Any]
        final_answer: str | None

    class LocalREPL:
        compaction, custom_tools = False, {}

        def __init__(self, **_options: Any) -> None:
            self._context_count = self._history_count = 0
            self.setup()

        def cleanup(self) -> None:
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_exc: object) -> None:
            self.cleanup()

        def _llm_query(self, *_args: Any) -> str:
            return ""

        _llm_query_batched = _rlm_query = _rlm_query_batched = _llm_query

    return {
        "rlm__core__rlm": {},
        "rlm__core__types": {"REPLResult": REPLResult},
        "rlm__environments": {},
        "rlm__environments__base_env": {"extract_tool_value": lambda one: one},
        "rlm__environments__local_repl": {"LocalREPL": LocalREPL},
    }


@pytest.mark.parametrize(
    "again",
    [
        "answer['content'] = 'two'\nanswer['ready'] = True",
        "answer.update(ready=True, content='two')",
        "answer = {'content': 'two', 'ready': True}",
        "answer = dict(ready=1, content='two')",
    ],
)
def test_rlms_is_told_of_every_answer_of_a_persistent_environment(plug, again):
    rlms = plug("rlms", **rlms_stand_ins())
    with rlms.AtollREPL(sandbox={"backend": "native"}) as repl:
        first = repl.execute_code("answer['content'] = 'one'\nanswer['ready'] = True")
        assert first.final_answer == "one"
        assert first.locals["answer"] == {"content": "one", "ready": True}
        assert repl.execute_code("print(answer['content'])").final_answer is None
        for _ in range(2):
            assert repl.execute_code(again).final_answer == "two"
        assert repl.execute_code("answer = 5").final_answer is None
        assert repl.execute_code("answer['ready']").final_answer is None
