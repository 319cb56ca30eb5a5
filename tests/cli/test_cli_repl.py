"""`atoll repl`: cells from a pipe, and from a terminal with all its keys."""

import fcntl
import os
import pty
import select
import subprocess
import termios
import time
from pathlib import Path

import pytest

from atoll.cli.commands import repl
from atoll.cli.terminal import prompt
from atoll.cli.terminal.editor import indent_after, is_whole

CTRL_C, CTRL_D = "\x03", "\x04"
PATIENCE_SECONDS = 30


@pytest.fixture
def feed(spawn):
    """Run cells from a pipe: exit code, stdout, stderr."""

    def run(cells: str, *argv: str) -> tuple[int, str, str]:
        process = spawn("repl", *argv)
        out, err = process.communicate(cells)
        return process.returncode, out, err

    return run


def test_figures_are_saved_cell_by_cell(feed, tmp_path):
    shown = "class Figure:\n    def _repr_png_(self): return b'png'\n\nFigure()\nFigure()\n"
    code, _, err = feed(shown, "--figures", str(tmp_path))
    assert code == 0
    saved = [f"atoll: figure saved: {tmp_path}/figure-{n}.png" for n in (1, 2)]
    assert [line for line in err.splitlines() if "saved" in line] == saved


@pytest.fixture
def terminal(command, tmp_path):
    """A user at a terminal of their own."""
    (tmp_path / "book.txt").write_text("0123456789" * 1000)
    user = Terminal([*command, "repl", "--context", str(tmp_path / "book.txt")])
    yield user
    user.close()


class Terminal:
    """Types, and waits for what is to be seen."""

    def __init__(self, argv: list[str], **env: str) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            argv,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: _take_terminal(slave),  # noqa: PLW1509 - one call of the kernel
            env={**os.environ, "TERM": "dumb", **env},
        )
        os.close(slave)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait(self, text: str) -> str:
        """What was seen up to and including `text`."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while text not in self.seen:
            assert time.monotonic() < deadline, f"{text!r} is not in {self.seen!r}"
            if select.select([self._master], [], [], 0.1)[0]:
                self.seen += os.read(self._master, 65536).decode()
        before, _, self.seen = self.seen.partition(text)
        return before + text

    def interrupt(self) -> None:
        """Press Ctrl-C once the prompt rests: readline notices one that comes before only later."""
        stat = Path(f"/proc/{self.process.pid}/stat")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while stat.read_text().rpartition(") ")[2][0] != "S":
            assert time.monotonic() < deadline, "the prompt does not rest"
            time.sleep(0.01)
        self.type(CTRL_C)

    def ask(self, text: str) -> str:
        """Type a line at a prompt, and what was seen until the next one."""
        self.type(text + "\n")
        self.wait("\n")  # its echo
        return self.wait(">>> ").removesuffix(">>> ").strip()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


def _take_terminal(slave: int) -> None:
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)


@pytest.mark.spec("R0.3")
def test_state_lives_on_from_cell_to_cell(feed):
    assert feed("x = 5\nx * 2\nprint(x)\nNone\n") == (0, "10\n5\n", "")


def test_a_cell_may_have_many_lines(feed):
    cells = (
        "def f(n):\n    return n + 1\n\nf(1)\nfor n in range(2):\n    n\n    print(n)\n\n'''a\nb'''"
    )
    assert feed(cells) == (0, "2\n0\n1\n'a\\nb'\n", "")


def test_a_syntax_error_is_the_guests_to_report(feed):
    code, out, err = feed("1 +\n2\n")
    assert (code, out) == (0, "2\n")
    assert err.endswith("SyntaxError: invalid syntax\n")


@pytest.mark.spec("R0.5")
def test_a_lost_state_is_said_and_the_next_cell_runs(feed):
    code, out, err = feed("x = 1\nimport os\nos._exit(3)\n'x' in globals()\n")
    assert (code, out) == (0, "False\n")
    assert err == (
        "atoll: ProcessExited: the guest's process ended itself with exit code 3\n"
        "atoll: the variables are lost; the next cell starts in a new sandbox\n"
    )


def test_a_cell_that_exits_leaves_with_its_code(feed):
    assert feed("exit(4)\nprint('never')\n") == (4, "", "")


def test_commands(feed, tmp_path):
    (tmp_path / "book.txt").write_text("book")
    cells = "x = 1\n%vars\n%reset\n%vars\ncontext\n%timeout 0.5\n%timeout soon\n%quit\nno"
    code, out, _ = feed(cells, "--context", str(tmp_path / "book.txt"))
    assert code == 0
    assert out.splitlines() == [
        "context          str",
        "x                int",
        "new sandbox, same context",
        "context          str",
        "'book'",
        "a cell may take 0.5 s",
        "the time must be a number of seconds greater than 0, got 'soon'",
    ]


def test_magics_that_are_no_command_of_the_prompt_run_in_the_guest(feed):
    cells = "%time 1 + 1\n%pwd\n%%bash\necho x\necho y\n\n%%time\n3"
    code, out, err = feed(cells, "--backend", "native")
    lines = [line for line in out.splitlines() if "time" not in line.lower()]
    assert (code, lines) == (0, ["2", "'/app'", "x", "y", "3"]), err
    assert out.count("Wall time") == 2


def test_an_unknown_magic_is_refused_by_the_guest_with_those_that_there_are(feed):
    code, out, err = feed("%what 1\n'on'\n", "--backend", "native")
    assert (code, out) == (0, "'on'\n")
    assert "%what" in err
    assert "%timeit" in err


@pytest.mark.spec("R3.1")
def test_a_shell_command_runs_beside_the_cells(feed):
    cells = "x = 6\nopen('a', 'w').write('hi')\n!cat a; echo; echo oops >&2; exit 3\n!\nx * 7\n"
    code, out, err = feed(cells, "--backend", "native")
    assert (code, out) == (0, "2\nhi\noops\n42\n")
    assert err.splitlines() == [
        "atoll: exit code 3",
        "atoll: the command is empty: give one that a shell can run",
    ]


@pytest.mark.long
def test_a_shell_command_ends_at_the_time_limit(feed):
    _, out, err = feed("x = 1\n%timeout 0.3\n!echo begun; sleep 60\n%timeout 20\nx\n")
    assert out.splitlines()[-2:] == ["a cell may take 20 s", "1"]
    assert "took longer than 300 ms" in err


@pytest.mark.long
def test_a_backend_without_a_shell_says_which_have_one(feed):
    _, out, err = feed("!ls\n1\n", "--backend", "wasm")
    assert (out, err) == (
        "1\n",
        "atoll: backend 'wasm' cannot run shell commands. Use backend='native' or 'daemon'.\n",
    )


def test_the_time_limit_holds(feed):
    _, _, err = feed("%timeout 0.2\nwhile True: pass\n\n")
    assert err.endswith("atoll: TimeoutError: the execution took longer than 200 ms\n")


def test_help_names_every_command(feed):
    assert feed("%help\n") == (0, repl.HELP + "\n", "")


def test_a_context_from_stdin_is_refused(atoll):
    code, _, err = atoll("repl", "--context", "-")
    assert code == 2
    assert err.startswith("atoll: cells come from stdin")


def test_a_terminal_gets_a_banner_prompts_values_and_a_way_out(terminal):
    banner = terminal.wait(">>> ")
    assert "backend native, " in banner
    assert "context of 10,000 characters" in banner
    assert terminal.ask("6 * 7") == "42"
    assert terminal.ask("print('no newline', end='')") == "no newline"
    terminal.type(CTRL_D)
    assert terminal.process.wait() == 0


@pytest.mark.spec("R0.14")
def test_ctrl_c_clears_a_line_and_cancels_a_cell(terminal):
    terminal.wait(">>> ")
    terminal.type("nonsense")
    terminal.wait("nonsense")
    terminal.interrupt()
    terminal.wait("\n>>> ")
    assert terminal.ask("x = 1; x") == "1"
    terminal.type("print('g' + 'o'); __import__('time').sleep(60)\n")
    terminal.wait("go\r\n")
    terminal.type(CTRL_C)
    assert "KeyboardInterrupt: the execution was cancelled" in terminal.wait("\n>>> ")
    assert terminal.ask("x") == "1"


def test_ctrl_c_in_a_block_drops_the_block(terminal):
    terminal.wait(">>> ")
    terminal.type("if True:\n")
    terminal.wait("... ")
    terminal.type("    x = 1\n")
    terminal.wait("\n... ")
    terminal.interrupt()
    terminal.wait("\n>>> ")
    assert terminal.ask("'x' in globals()") == "False"


def test_a_guest_cannot_steer_the_terminal(terminal):
    terminal.wait(">>> ")
    code = "R = type('R', (), dict(__repr__=lambda self: chr(27) + ']0;hi' + chr(7)))"
    terminal.ask(f"{code}; print(chr(27) + '[2J'); R()")
    terminal.type("print('done')\n")
    assert "\x1b" not in terminal.wait("\r\ndone").replace("\x1b[?2004", "")


def test_tab_completes_names_and_attributes_of_the_guest(terminal):
    terminal.wait(">>> ")
    terminal.ask("unusual_name = 'abc'")
    terminal.type("unusu\t")
    terminal.wait("unusual_name")
    terminal.type(".startsw\t")
    terminal.wait("startswith")
    assert terminal.ask("('ab')") == "True"
    terminal.type("%ti\t")
    terminal.wait("%timeout")
    assert terminal.ask(" 5") == "a cell may take 5 s"


def test_tab_completes_modules_after_import(terminal):
    terminal.wait(">>> ")
    terminal.type("import colorsy\t")
    terminal.wait("colorsys")
    assert terminal.ask("; colorsys.rgb_to_hsv(0, 0, 0)") == "(0.0, 0.0, 0)"


def test_input_reads_from_the_keyboard(terminal):
    terminal.wait(">>> ")
    terminal.type("name = input('name? ')\n")
    terminal.wait("\r\nname? ")
    terminal.type("Ada\n")
    assert terminal.wait(">>> ") == "Ada\r\n>>> "
    assert terminal.ask("name") == "'Ada'"
    terminal.type("input('again? ')\n")
    terminal.wait("\r\nagain? ")
    terminal.type(CTRL_C)
    terminal.wait("cancelled\r\n>>> ")
    assert terminal.ask("6 * 7") == "42"


BLOCK = "def f(x):\n\n    y = 1\n\n    return x + y\n\nprint('is', f(2))"


@pytest.fixture
def editor(command):
    """A user at a terminal that can show the editor."""
    user = Terminal(
        [*command, "repl", "--backend", "native"],
        TERM="xterm-256color",
        PROMPT_TOOLKIT_NO_CPR="1",  # nothing here answers where the cursor is
    )
    user.wait(">>>")
    yield user
    user.close()


def test_a_pasted_block_with_blank_lines_is_one_cell(editor):
    editor.type(f"\x1b[200~{BLOCK}\x1b[201~")
    editor.wait("print")
    editor.type("\r")
    editor.wait("is 3\r\n")
    editor.wait(">>>")
    editor.type("f(9)\r")
    editor.wait("10\r\n")


def test_the_editor_indents_colours_completes_and_remembers(editor, tmp_path):
    editor.type("def g():\r")
    editor.wait("...")
    editor.type("return 'indented'\r\rg()\r")
    editor.wait("'indented'\r\n")
    editor.wait(">>>")
    editor.type("unusual_name = 'kept'; print('o' + 'k')\r")
    editor.wait("ok\r\n")
    editor.wait(">>>")
    editor.type("unusual_n\t")
    editor.wait("ame")
    editor.type("\r")  # nothing is left to choose: it runs
    editor.wait("'kept'\r\n")
    editor.wait(">>>")
    editor.type(CTRL_D)
    assert editor.process.wait(PATIENCE_SECONDS) == 0
    cells = tmp_path / "state" / "atoll" / "cells"
    assert "+unusual_name" in cells.read_text().splitlines()
    assert cells.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("x = 1", True),
        ("for x in y: pass", True),
        ("def f():", False),
        ("def f():\n    pass", False),
        ("def f():\n    pass\n    ", True),
        (BLOCK, True),
        ("(1,", False),
        ("1 +", True),
        ("%%bash\nls", False),
        ("%%bash\nls\n", True),
        ("!ls", True),
    ],
)
def test_when_enter_runs_a_cell(text, whole):
    assert is_whole(text) is whole


@pytest.mark.parametrize(
    ("line", "spaces"),
    [("if x:", 4), ("    for x in y:  ", 8), ("    return 5", 0), ("    y = 1", 4), ("", 0)],
)
def test_how_far_the_next_line_is_indented(line, spaces):
    assert indent_after(line) == " " * spaces


def test_the_history_is_kept(terminal, tmp_path):
    terminal.wait(">>> ")
    terminal.ask("remembered = 1")
    terminal.type(CTRL_D)
    terminal.process.wait()
    history = tmp_path / "state" / "atoll" / "history"
    assert history.read_text().splitlines() == ["remembered = 1"]
    assert history.stat().st_mode & 0o777 == 0o600


def test_a_history_that_cannot_be_kept_is_no_error(terminal, tmp_path):
    (tmp_path / "state").write_text("in the way")
    terminal.wait(">>> ")
    terminal.type(CTRL_D)
    assert terminal.process.wait() == 0


def test_the_history_is_in_the_state_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME")
    assert prompt.history_path() == tmp_path / ".local/state/atoll/history"
    monkeypatch.setenv("XDG_STATE_HOME", "relative/is/not/allowed")
    assert prompt.history_path() == tmp_path / ".local/state/atoll/history"


@pytest.mark.parametrize(
    ("lines", "complete"),
    [
        (["x = 1"], True),
        (["def f():"], False),
        (["def f():", "    pass"], False),
        (["def f():", "    pass", ""], True),
        (["(1,"], False),
        (["'''"], False),
        (["1 +"], True),
        (["%help"], True),
        (["x = '\\d'"], True),
        (["\0"], True),
    ],
)
def test_when_a_cell_is_complete(lines, complete):
    assert prompt.is_complete(lines) is complete
