"""Where tools come from: functions, LangChain, an MCP server in a process of its own."""

from __future__ import annotations

import sys

import pytest

import atoll
from atoll.sandbox import schemas
from atoll.sandbox.tools import from_schema

SERVER = '''
from mcp.server import MCPServer

server = MCPServer("test")

@server.tool()
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b

@server.tool(name="get-text")
def get_text(kind: str) -> str:
    """Return a text."""
    if kind == "bad":
        raise ValueError("no such kind")
    return "text of " + kind

@server.tool()
def row(name: str) -> dict[str, int]:
    """Return a row."""
    return {name: 1}

server.run()
'''


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("mcp") / "server.py"
    path.write_text(SERVER)
    with atoll.MCPTools(sys.executable, str(path), read_only=("add",)) as found:
        yield found


def test_the_tools_of_an_mcp_server_are_called_from_guest_code(server):
    with atoll.REPLEnvironment(backend="native", tools=[server]) as env:
        assert env.execute("[add(2), add(2, 3), add(b=1, a=5)]").result.value == [3, 5, 6]
        assert env.execute("get_text('x')").result.value == "text of x"
        assert env.execute("CALL('row', name='n')").result.value == {"n": 1}
        assert "Error executing tool get-text" in env.execute("get_text('bad')").observation
        assert "a must be int" in env.execute("add('x')").observation
        assert "missing a required argument: 'a'" in env.execute("call_host('add')").observation
        assert "- add(a: int, b: int = 1): Add two numbers." in env.tool_list()
        tool = next(one for one in env.tools if one.name == "add")
    assert (tool.read_only, tool.source) == (True, "mcp")
    assert tool.input_schema["properties"]["a"]["type"] == "integer"
    assert tool.output_schema["type"] == "object"


def test_a_server_that_does_not_start_is_told(tmp_path):
    with pytest.raises(atoll.ConfigError, match="the MCP server /no/such cannot be used"):
        atoll.MCPTools("/no/such").atoll_tools()


@pytest.mark.long
def test_a_closed_connection_says_so(tmp_path):
    path = tmp_path / "server.py"
    path.write_text(SERVER)
    with atoll.MCPTools(sys.executable, str(path), prefix="my_") as found:
        add = found.atoll_tools()[0]
    assert add.name == "my_add"
    with pytest.raises(atoll.ConfigError, match="is closed"):
        add(1)
    found.close()


def test_langchain_tools_are_called_from_guest_code():
    from langchain_core.tools import StructuredTool, tool

    @tool
    def double(n: int) -> int:
        """Double a number."""
        return 2 * n

    async def later(name: str) -> str:
        """Say a name."""
        return f"hi {name}"

    given = [
        double,
        StructuredTool.from_function(coroutine=later, name="say-hi", description="Say hi."),
    ]
    with atoll.REPLEnvironment(backend="native", tools=given) as env:
        assert env.execute("[double(4), double(n=5), say_hi('you')]").result.value == [
            8,
            10,
            "hi you",
        ]
        assert "n must be int" in env.execute("double('x')").observation
        assert "- double(n: int): Double a number." in env.tool_list()


def test_what_is_no_tool_is_told():
    with pytest.raises(atoll.ConfigError, match="not a tool: 5"):
        atoll.REPLEnvironment(backend="native", tools=[5])


SCHEMA = {
    "type": "object",
    "properties": {
        "mode": {"enum": ["a", "b"]},
        "n": {"type": "integer", "minimum": 1, "maximum": 5},
        "rows": {"type": "array", "items": {"$ref": "#/$defs/Row"}},
        "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["mode"],
    "$defs": {
        "Row": {
            "type": "object",
            "properties": {"x": {"type": "number"}},
            "required": ["x"],
            "additionalProperties": False,
        }
    },
}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mode": "c"}, "t.mode must be one of ['a', 'b'], not 'c'"),
        ({"mode": "a", "n": 0}, "t.n must be at least 1"),
        ({"mode": "a", "n": 9}, "t.n must be at most 5"),
        ({"mode": "a", "n": True}, "n must be int"),
        ({"mode": "a", "rows": [{"x": 1}, {}]}, "t.rows[1] lacks 'x'"),
        ({"mode": "a", "rows": [{"x": "1"}]}, "t.rows[0].x must be number, not str"),
        ({"mode": "a", "rows": [{"x": 1, "y": 2}]}, "t.rows[0] has no 'y'"),
        ({"mode": "a", "either": 5}, "t.either must be null, not int"),
        ({}, "missing a required argument: 'mode'"),
    ],
)
def test_arguments_are_checked_against_a_schema(given, said):
    tool = from_schema("t", lambda **given: given, SCHEMA)
    with pytest.raises((TypeError, ValueError)) as caught:
        tool.check((), given)
    assert said in str(caught.value)
    assert tool("b", n=2) == {"mode": "b", "n": 2}


def test_the_schema_of_a_function_says_what_it_takes_and_returns():
    def work(
        a: list[int], b: str | None = None, *, c: dict[str, float], d=object
    ) -> tuple[int, ...]:
        pass

    found = schemas.of_function(work)
    assert found["required"] == ["a", "c"]
    assert found["properties"]["a"] == {"type": "array", "items": {"type": "integer"}}
    assert found["properties"]["b"] == {
        "anyOf": [{"type": "string"}, {"type": "null"}],
        "default": None,
    }
    assert found["properties"]["c"] == {
        "type": "object",
        "additionalProperties": {"type": "number"},
    }
    assert schemas.of_result(work) == {"type": "array", "items": {"type": "integer"}}
