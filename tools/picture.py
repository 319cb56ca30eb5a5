"""Draw docs/assets/*.svg: run the commands below in a terminal and render what they print.

    .venv/bin/python tools/picture.py [NAME]

Nothing in the picture is typed by hand: every line is the output of the command above it, recorded
from a pseudo-terminal. Run this again after a change to the command line's output.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
ASSETS = ROOT / "docs" / "assets"
PROMPT, REPL_PROMPTS = "$ ", (">>> ", "... ")
LOG_LINES = 1_600_000


@dataclass(frozen=True)
class Step:
    """One shell command, and the lines typed into it if it is interactive."""

    command: str
    typed: tuple[str, ...] = ()


PICTURES: dict[str, tuple[Step, ...]] = {
    "terminal": (
        Step('atoll run -c "print(6 * 7)"'),
        Step("atoll run -c \"open('/etc/shadow')\" 2>&1 | tail -1"),
        Step(
            "atoll repl --context server.log --timeout 2",
            (
                "hit = search_context('ERROR.*', window=0)[0]; hit['line'], hit['match']",
                "while True: pass",
                "",
                "hit['line']",
            ),
        ),
        Step("atoll doctor --attack | tail -1"),
    ),
    "ask": (Step("atoll ask --demo"),),
}

WIDTH = 96
FONT, CHARACTER, LINE = 14, 8.43, 20
MARGIN, BAR = 18, 34
COLOURS = {"1": "strong", "2": "faint", "31": "bad", "32": "good", "33": "warn"}
SGR = re.compile(r"\x1b\[([0-9;]*)m")
OVERWRITTEN = re.compile(r"^.*(?:\r|\x1b\[[012]?K)", re.MULTILINE)
"""What a progress line leaves on a line before it is written anew."""
OTHER_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-ln-z]|\][^\x07]*\x07|[=>])|[\r\x07]")
STYLE = """
  text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace;
         fill: #d7dde4; white-space: pre }
  .typed { fill: #ffffff } .prompt { fill: #6fc3df; font-weight: bold }
  .strong { font-weight: bold } .faint { fill: #8b96a3 }
  .good { fill: #8fd19e } .bad { fill: #ff8f80 } .warn { fill: #f2cc60 }
  .line { animation: appear .2s ease-out backwards }
  @keyframes appear { from { opacity: 0 } }
  @media (prefers-reduced-motion: reduce) { .line { animation: none } }
"""


def main() -> None:
    """Record the steps of every picture, or of those that are named, and write them."""
    for name in sys.argv[1:] or PICTURES:
        with tempfile.TemporaryDirectory() as folder:
            _write_log(Path(folder) / "server.log")
            screens = [_record(step, folder) for step in PICTURES[name]]
        picture = ASSETS / f"{name}.svg"
        picture.write_text(render(screens))
        print(f"{picture.relative_to(ROOT)}: {picture.stat().st_size:,} bytes")


def _write_log(path: Path) -> None:
    """Write about 90 MB of log lines, one of which is an error."""
    block = [f"2026-01-01T00:00:{n % 60:02d} INFO web-{n % 9} request served\n" for n in range(800)]
    lines = block * (LOG_LINES // len(block))
    lines[900_000] = "2026-01-01T00:00:00 ERROR billing connection to db-3 refused\n"
    path.write_text("".join(lines))


def _record(step: Step, folder: str) -> list[str]:
    """Run one step in a pseudo-terminal; the lines that a user would see, the command first."""
    master, slave = pty.openpty()
    fcntl.ioctl(
        slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, WIDTH if not step.typed else 200, 0, 0)
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    process = subprocess.Popen(
        ["bash", "-c", step.command],
        stdin=slave, stdout=slave, stderr=slave, cwd=folder,
        env={**os.environ, "PATH": path, "TERM": "dumb", "HOME": folder},
    )  # fmt: skip
    os.close(slave)
    seen = ""
    for line in (*step.typed, "\x04") if step.typed else ():
        seen += _read_until_prompt(master)
        os.write(master, (line if line == "\x04" else line + "\n").encode())
    seen += _read_to_end(master)
    process.wait()
    os.close(master)
    shown = OTHER_ESCAPES.sub("", OVERWRITTEN.sub("", seen.replace("\r\n", "\n")))
    lines = shown.replace(str(ROOT), "~/atoll").rstrip().split("\n")
    while step.typed and lines[-1].strip() in ("", ">>>"):
        lines.pop()
    return [PROMPT + step.command, *lines]


def _read_until_prompt(descriptor: int) -> str:
    seen = ""
    while not seen.endswith(REPL_PROMPTS):
        seen += os.read(descriptor, 65536).decode()
    return seen


def _read_to_end(descriptor: int) -> str:
    chunks = []
    with contextlib.suppress(OSError):  # EIO: the other end is closed
        while chunk := os.read(descriptor, 65536):
            chunks.append(chunk)
    return b"".join(chunks).decode()


def render(screens: list[list[str]]) -> str:
    """The SVG of all steps, one below the other."""
    rows: list[str] = []
    moment, y = 0.0, BAR + MARGIN
    for lines in screens:
        for line in lines:
            typed = line.startswith((PROMPT, *REPL_PROMPTS))
            moment += 0.2 if typed else 0.05
            for part in _wrap(line):
                rows.append(_row(part, y, moment))
                y += LINE
        y += LINE // 2
    width = round(WIDTH * CHARACTER + 2 * MARGIN)
    return _frame(width, y + MARGIN - LINE, rows)


def _wrap(line: str) -> list[str]:
    """A line in pieces of the terminal's width; coloured lines are short."""
    if "\x1b" in line or len(line) <= WIDTH:
        return [line]
    return [line[at : at + WIDTH] for at in range(0, len(line), WIDTH)]


def _row(line: str, y: int, moment: float) -> str:
    style = f'x="{MARGIN}" y="{y}" class="line" style="animation-delay:{moment:.2f}s"'
    return f'<text {style} xml:space="preserve">{_spans(line)}</text>'


def _spans(line: str) -> str:
    """A line as SVG text: prompts and terminal colours become classes."""
    for prompt in (PROMPT, *REPL_PROMPTS):
        if line.startswith(prompt):
            rest = escape(SGR.sub("", line[len(prompt) :]))
            return (
                f'<tspan class="prompt">{escape(prompt)}</tspan><tspan class="typed">{rest}</tspan>'
            )
    pieces, colour = [], ""
    for number, piece in enumerate(SGR.split(line)):
        if number % 2:
            colour = COLOURS.get(piece, "")
        elif piece:
            pieces.append(
                f'<tspan class="{colour}">{escape(piece)}</tspan>' if colour else escape(piece)
            )
    return "".join(pieces)


def _frame(width: int, height: int, rows: list[str]) -> str:
    dots = "".join(
        f'<circle cx="{MARGIN + 6 + 20 * n}" cy="17" r="6" fill="{colour}"/>'
        for n, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            "<title>A terminal with commands of atoll and their output</title>",
            f"<style>{STYLE}</style>",
            f'<rect width="{width}" height="{height}" rx="10" fill="#1b2129" stroke="#3d4754"/>',
            dots,
            *rows,
            "</svg>",
            "",
        )
    )


if __name__ == "__main__":
    main()
