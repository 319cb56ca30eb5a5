"""Completion in shells and in the REPL: what Tab offers."""

import asyncio
import shutil
import subprocess

import pytest

from atoll import SandboxConfig, aio
from atoll.cli.commands import completion
from atoll.cli.terminal.prompt import INDENT, Completer
from atoll.cli.terminal.streams import GuestOutput

LINES = [
    (["atoll", "d"], {"doctor", "daemon"}),
    (["atoll", "daemon", "st"], {"start", "status", "stop"}),
    (["atoll", "daemon", "start", "--tier", ""], {"bare", "numeric", "full"}),
    (["atoll", "daemon", "start", "--max-l"], {"--max-live"}),
    (["atoll", "run", "--guard", ""], {"ast", "restrictedpython"}),
    (["atoll", "run", "--json", "scr"], {"script.py"}),
    (["atoll", "run", "--context", "scr"], {"script.py"}),
    (["atoll", "run", "--timeout", ""], set()),
    (["atoll", "completion", "z"], {"zsh"}),
]


def run(shell, program, cwd):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run(
        [shell, "-c", program], capture_output=True, text=True, check=True, cwd=cwd, timeout=60
    )
    assert done.stderr == ""
    return done.stdout


@pytest.fixture
def folder(tmp_path):
    """A folder with one file, and the three scripts out of sight."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "script.py").touch()
    for shell in ("bash", "zsh", "fish"):
        (tmp_path / f"atoll.{shell}").write_text(getattr(completion, shell)())
    return tmp_path / "work"


@pytest.mark.parametrize(("words", "offered"), LINES)
def test_bash_completes(folder, words, offered):
    quoted = " ".join(f"'{word}'" for word in words)
    program = (
        f"source ../atoll.bash; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; "
        "_atoll 2>&1; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    assert set(run("bash", program, folder).split()) == offered


@pytest.mark.parametrize(("words", "offered"), LINES)
def test_zsh_completes(folder, words, offered):
    quoted = " ".join(f"'{word}'" for word in words)
    program = (  # compadd and _files work only inside the line editor: these stand for them
        "compdef() { }; compadd() { shift; print -l -- $@ }; _files() { print -l -- * }\n"
        f"source ../atoll.zsh; words=({quoted}); CURRENT={len(words)}; _atoll"
    )
    found = {one for one in run("zsh", program, folder).split() if one.startswith(words[-1])}
    assert found == offered


@pytest.mark.parametrize(("words", "offered"), LINES)
def test_fish_completes(folder, words, offered):
    line = " ".join(words)
    out = run("fish", f"source ../atoll.fish; complete -C '{line}' | cut -f1", folder)
    found = set(out.split())
    assert offered <= found if line.endswith("--timeout ") else found == offered


def test_the_command_prints_the_script(atoll):
    for shell in ("bash", "zsh", "fish"):
        assert atoll("completion", shell) == (0, getattr(completion, shell)(), "")
    assert atoll("completion", "tcsh")[0] == 2


CELL = """
class Box:
    width = 1
    def __init__(self): self.inner = {"a": 1}; self.text = "x"
    def _hidden(self): pass
    @property
    def weight(self): touched.append(1); return "x"
    def __getattr__(self, name): touched.append(1); raise AttributeError(name)
    def __dir__(self): touched.append(1); return ["lie"]
touched = []
box = Box()
import json
"""


@pytest.fixture
def completer():
    output = GuestOutput()
    config = SandboxConfig(backend="native", on_output=output.write)
    with asyncio.Runner() as runner:
        box = runner.run(_open(config))
        runner.run(box.execute(CELL))
        yield Completer(runner, box, output, ["%help", "%vars"])
        runner.run(box.destroy())


async def _open(config):
    return await aio.create_sandbox(config)


@pytest.mark.parametrize(
    ("word", "offered"),
    [
        ("bo", ["bool", "box"]),
        ("box.w", ["box.weight", "box.width"]),
        ("box._h", ["box._hidden"]),
        ("box.inner.ke", ["box.inner.keys"]),
        ("box.weight.up", []),
        ("json.dum", ["json.dump", "json.dumps"]),
        ("json.decoder.JSONDecodeE", ["json.decoder.JSONDecodeError"]),
        ("whil", ["while"]),
        ("batch_l", ["batch_llm_query"]),
        ("nothing.at.all", []),
        ("f(x", []),
        ("", [INDENT]),
        ("%h", ["%help"]),
    ],
)
def test_names_and_attributes_of_the_guest_are_offered(completer, word, offered):
    assert completer.matches(word) == offered


def test_completing_runs_no_code_of_the_objects_and_prints_nothing(completer, capfd):
    for word in ("box.", "box.w", "box.weight.", "box.text."):
        completer.matches(word)
    assert capfd.readouterr() == ("", "")
    box, runner = completer._box, completer._runner
    assert runner.run(box.get_variable("touched")) == []
    names = runner.run(box.execute("[n for n in globals() if 'atoll' in n]")).value
    assert names == []


def test_a_hostile_answer_is_only_names(completer):
    hostile = (
        "for name in 'wx\\x1b[2J', 'wy', 'w' * 300, 'w\\nwz', 'w z', 'w' * 10**6:\n"
        "    globals()[name] = 1"
    )
    completer._runner.run(completer._box.execute(hostile))
    assert completer.matches("w") == ["w", "while", "with", "wz"]
    assert completer.matches("nothing.") == []


def test_a_guest_that_hangs_is_not_waited_for(completer, monkeypatch):
    monkeypatch.setattr("atoll.cli.terminal.prompt.TIMEOUT_MS", 300)
    slow = "import builtins\ndef issubclass(*a):\n    while True: pass\nbuiltins.issubclass = issubclass"
    completer._runner.run(completer._box.execute(slow))
    assert completer.matches("box.w") == []
