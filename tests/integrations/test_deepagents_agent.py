"""An agent of deepagents, whose model follows a script: what its tools say comes from the jail."""

from __future__ import annotations

import pytest
from deepagents import create_deep_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage

from atoll.integrations.deepagents import AtollSandbox

SCRIPT = [
    ("write_file", {"file_path": "/app/who.py", "content": "import os\nprint(os.getuid(), 41)\n"}),
    ("execute", {"command": "python3 who.py; hostname; pwd"}),
    ("edit_file", {"file_path": "/app/who.py", "old_string": "41", "new_string": "42"}),
    ("read_file", {"file_path": "/app/who.py"}),
    ("grep", {"pattern": "getuid", "path": "/app", "output_mode": "content"}),
    ("ls", {"path": "/app"}),
    ("glob", {"pattern": "*.py", "path": "/app"}),
    ("execute", {"command": "python3 who.py; cat /etc/shadow; exit 7"}),
]


class Scripted(GenericFakeChatModel):
    """Says what it was given to say, whatever the tools."""

    def bind_tools(self, tools, **_):
        return self


@pytest.fixture
def agent_in():
    """An agent that goes through the script in a sandbox."""
    calls = [
        AIMessage(content="", tool_calls=[{"name": name, "args": args, "id": f"call-{number}"}])
        for number, (name, args) in enumerate(SCRIPT)
    ]
    model = Scripted(messages=iter([*calls, AIMessage(content="done")]))
    return lambda sandbox: create_deep_agent(model=model, backend=sandbox)


def check(state):
    said = [message.text for message in state["messages"] if isinstance(message, ToolMessage)]
    assert len(said) == len(SCRIPT)
    _, ran, edited, read, found, listed, globbed, again = said
    assert ran.startswith("1000 41\natoll\n/app\n")
    assert "exit code 0" in ran
    assert "replaced 1 instance" in edited
    assert "print(os.getuid(), 42)" in read
    assert "/app/who.py" in found
    assert "2: print(os.getuid(), 42)" in found
    assert listed == "['/app/who.py']"
    assert "who.py" in globbed
    assert again.startswith("1000 42\ncat: /etc/shadow: No such file")
    assert "exit code 7" in again
    assert state["messages"][-1].text == "done"


def test_an_agent_works_in_the_jail(agent_in):
    with AtollSandbox(backend="native") as sandbox:
        check(agent_in(sandbox).invoke({"messages": [("user", "go")]}))
        assert sandbox.download_files(["/app/who.py"])[0].content.endswith(b"42)\n")


async def test_an_async_agent_works_in_the_jail(agent_in):
    async with AtollSandbox(backend="native") as sandbox:
        check(await agent_in(sandbox).ainvoke({"messages": [("user", "go")]}))
