"""Programs that people run, beside the cells of a session: an editor, a monitor."""

from __future__ import annotations

import contextlib
import re
import time

import pytest

import atoll
from atoll import Capability

pytestmark = pytest.mark.needs(Capability.PROCESSES)
SECONDS = 60
_CONTROL = re.compile(rb"\x1b\[[0-9;?>!]*[ -/]*[@-~]|\x1b[()][0AB]|\x1b[=>78M]|[\x0e\x0f]")
"""What moves the cursor or sets a colour; a terminal shows none of it."""


def needs(box: atoll.SyncSandbox, program: str) -> None:
    """Skip the test where the sandbox, which may be of an image, has no such program."""
    if box.start(["sh", "-c", f"command -v {program}"]).wait().exit_code:
        pytest.skip(f"{program} is not installed")


class Screen:
    """A program in a terminal: keys are sent, and words expected in what it shows."""

    def __init__(self, process: atoll.SyncProcess) -> None:
        self.process, self._shown = process, b""

    def expect(self, words: str) -> str:
        """Return what was shown up to the words; the next call looks behind them."""
        end = time.monotonic() + SECONDS
        while words.encode() not in (text := _CONTROL.sub(b"", self._shown)):
            assert time.monotonic() < end, f"no {words!r} in {text!r}"
            with contextlib.suppress(TimeoutError):
                data = self.process.read(timeout_ms=1000)
                assert data, f"it ended without {words!r}: {text!r}"
                self._shown += data
        before, _, self._shown = text.partition(words.encode())
        return before.decode("utf-8", "replace")

    def keys(self, text: str) -> None:
        self.process.write(text)


def test_vim_edits_a_file_and_follows_the_size_of_its_terminal(box):
    needs(box, "vim")
    box.execute("open('notes.txt', 'w').write('first line\\nsecond line\\n')")
    editor = box.start(["vim", "-u", "NONE", "-i", "NONE", "notes.txt"], pty=(24, 80), cwd="/app")
    screen = Screen(editor)
    screen.expect("second line")
    screen.keys(":echo &lines . ' by ' . &columns\r")
    screen.expect("24 by 80")
    if box.backend != "gvisor":  # whose terminal sends no SIGWINCH with Debian 12's runsc
        editor.resize(30, 100)
        screen.expect("~")  # it draws anew
        screen.keys(":echo &lines . ' by ' . &columns\r")
        screen.expect("30 by 100")
    screen.keys("Gothird line\x1b:%s/line/verse/\r:wq\r")
    assert editor.wait(timeout_ms=SECONDS * 1000).exit_code == 0
    text = box.execute("open('notes.txt').read()").value
    assert text == "first verse\nsecond verse\nthird verse\n"


def test_htop_shows_what_its_own_shell_runs_and_nothing_else(box):
    needs(box, "htop")
    other = box.start(["sleep", "12321"])
    shell = box.start("sleep 98765 & exec htop --no-color", pty=(40, 120))
    screen = Screen(shell)
    screen.expect("Load average")
    before = screen.expect("sleep 98765")
    assert "12321" not in before or box.backend == "gvisor"  # where a session is one container
    screen.keys("q")
    assert shell.wait(timeout_ms=SECONDS * 1000).exit_code == 0
    other.kill()
