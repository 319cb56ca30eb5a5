"""Figures in the terminal itself: only where one is known to show them, and never steering it."""

from __future__ import annotations

import base64
import re

import pytest

from atoll.cli.commands.cells import FigureFolder
from atoll.cli.terminal import pictures
from atoll.types import Display

PNG = pictures.PNG + b"\x1b]0;title\x07" * 1000


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    for name in ("KITTY_WINDOW_ID", "TERM_PROGRAM", "LC_TERMINAL", "TMUX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def test_a_terminal_that_is_not_known_gets_nothing():
    assert pictures.as_escapes(PNG) == ""


def test_kitty_gets_it_in_pieces(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-kitty")
    shown = pictures.as_escapes(PNG)
    pieces = re.findall(r"\x1b_G([^;]*);([^\x1b]*)\x1b\\", shown)
    assert pieces[0][0].startswith("a=T,f=100")
    assert [head for head, _ in pieces[1:]] == ["m=1"] * (len(pieces) - 2) + ["m=0"]
    assert base64.b64decode("".join(piece for _, piece in pieces)) == PNG
    assert re.sub(r"\x1b_G[^\x1b]*\x1b\\", "", shown) == "\n"


def test_iterm_gets_it_whole(monkeypatch):
    monkeypatch.setenv("TERM_PROGRAM", "iTerm.app")
    head, _, text = pictures.as_escapes(PNG).partition(":")
    assert head == f"\x1b]1337;File=inline=1;size={len(PNG)}"
    assert base64.b64decode(text.removesuffix("\x07\n")) == PNG


def test_other_data_and_a_multiplexer_get_nothing(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-kitty")
    assert pictures.as_escapes(b"<svg/>") == ""
    monkeypatch.setenv("TMUX", "/tmp/tmux")
    assert pictures.as_escapes(PNG) == ""


def test_a_file_gets_no_escapes(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("TERM", "xterm-kitty")
    FigureFolder(str(tmp_path)).save([Display(media_type="image/png", data=PNG)])
    assert capsys.readouterr().out == ""
