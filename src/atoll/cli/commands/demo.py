"""`atoll ask --demo`: a recorded run over a generated log, or the same question asked live.

The recording holds the replies of a real model, made by tools/record_demo.py. Only the replies
are replayed: the code in them runs in a sandbox, over the log that this module generates.

SECURITY: code and output are a model's or a guest's. The Canvas makes all of it harmless.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from atoll.agent.rlm.models.recorded import Replay
from atoll.agent.rlm.replies import parse
from atoll.agent.trajectory import events, words
from atoll.agent.trajectory.show import Canvas
from atoll.agent.trajectory.terminal_text import Colours
from atoll.cli.terminal.progress import Progress, width_of
from atoll.errors import ConfigError

if TYPE_CHECKING:
    from argparse import Namespace

    from atoll.agent.trajectory.events import Event

RECORDING = Path(__file__).with_name("demo_recording.jsonl")
RECORDED_FROM, RECORDED_ON = "Qwen2.5-Coder-1.5B-Instruct", "2026-11-16"
QUESTION = "Why was order 7312 delivered late?"
SETTINGS = {
    "window": 8_192,
    "max_tokens": 400,
    "temperature": 0.0,
    "max_turns": 6,
    "strategy": "explore",
}
"""The options that the recording was made with."""
LINES, MINUTES = 6_000, 7
STEPS = ("picked", "packed", "labelled", "loaded", "delivered")
STORY = {
    2204: "order 7312 loaded on van 9, promised for 17:15",
    2206: "order 7312 late because van 9 broke down on the Elm Street bridge",
    2209: "order 7312 moved to van 4 and delivered",
}
SHOWN_LINES = 12
RECORDING_TEXT = """\
This is a recording: the replies of the model were recorded on {on} from {model}, \
a small model on a busy machine with two cores, and are replayed here. Nothing is sent over \
a network. The code that the model wrote is not replayed: it runs now, in a sandbox on \
this machine."""
LIVE_TEXT = """\
This is live: {model} runs on this machine now and answers on its own. It is small and slow \
(about 9 tokens a second on two idle cores; the first reply takes longest, as the model reads \
the instructions), and it may answer wrongly. Ctrl-C stops it and says what is known by then."""
LEGEND = """
`found`: the quote is in the log, word for word, at that place; the host checked it.
`map`: the log from start to end; █ was shown to the model, ▒ was only searched by its code."""
ASK_YOURS = """\
  atoll ask 'QUESTION' --context FILE --model openai/NAME    your question, with a large model"""
NEXT = {
    False: """
Next:
  atoll model get && atoll ask --demo --local                this question live, on this machine""",
    True: """
Next:
  atoll ask 'QUESTION' --context FILE --model local          your question, with this model""",
}


def set_up(args: Namespace) -> None:
    """Set the question and the options of the demo."""
    if args.question is not None or args.context:
        raise ConfigError(
            "--demo has its own question and context: leave out QUESTION and --context, "
            "or leave out --demo to ask your own question"
        )
    if args.model not in {None, "local"}:
        raise ConfigError("--demo runs a recording, or with --local the local model: no --model")
    args.question, args.local = QUESTION, args.local or args.model == "local"
    args.model = None if args.local else f"replay/{RECORDING}"
    for name, value in SETTINGS.items():
        if getattr(args, name) is None:
            setattr(args, name, value)


def recorded() -> Replay:
    """Return the recorded model. Its replies come in order, also if a prompt has changed since."""
    return Replay(RECORDING, in_order=True)


def log_text() -> str:
    """Return the log of a warehouse: 6,000 lines, three of them about the order in question."""
    dice = random.Random(7312)  # noqa: S311 - the same log on every machine
    lines = []
    for number in range(LINES):
        day, minute = divmod(number * MINUTES, 24 * 60)
        other = (
            f"order {dice.randint(7400, 9999)} {dice.choice(STEPS)} at station "
            f"{dice.randint(1, 9)}, weight {dice.randint(1, 300) / 10} kg"
        )
        when = f"2026-03-{day + 1:02} {minute // 60:02}:{minute % 60:02}"
        lines.append(f"{when} {STORY.get(number, other)}")
    return "\n".join(lines) + "\n"


def print_next(*, live: bool) -> None:
    """Explain the demo and say what to try next, on stderr."""
    print(f"{LEGEND}\n{NEXT[live]}\n{ASK_YOURS}", file=sys.stderr)


class Story(Progress):
    """Shows every step of the demo: the code, what it printed, and the sub-questions."""

    def __init__(self, stream: TextIO, *, live: bool) -> None:
        super().__init__(stream)
        self._is_live = live
        self._canvas = Canvas(width=width_of(stream), brush=Colours.of(stream), full=False)

    def _tell(self, event: Event) -> None:
        match event:
            case events.RunStarted():
                self._introduce(event)
            case events.Planned():
                self._say("plan", "search the log by code: it is too long for one prompt")
            case events.ModelAnswered():
                super()._tell(event)
                when = "" if self._is_live else ", when it was recorded"
                took = f"the model wrote in {words.duration(event.duration_ms)}{when}:"
                self._print("")
                self._say(f"turn {self._turn}", took)
                self._quote("\n".join(parse(event.text).cells) or event.text)
            case events.SubcallStarted():
                self._say("sub-question", event.prompt.partition("\n")[0], level=1)
            case events.SubcallEnded():
                self._say("sub-answer", event.answer or event.error or "", level=1)
            case events.CodeRan():
                ran = f"ran the code in {words.duration(event.duration_ms)} ({event.isolation}):"
                self._say("sandbox", ran, level=1)
                self._quote(event.observation)
            case events.FinalGiven():
                self._print("")
                self._say("answer", "")
            case _:
                super()._tell(event)

    def _introduce(self, event: events.RunStarted) -> None:
        text = LIVE_TEXT if self._is_live else RECORDING_TEXT
        self._say("demo", text.format(on=RECORDED_ON, model=RECORDED_FROM))
        self._print("")
        self._say("question", event.question)
        size = event.context.get("length", 0)
        self._say("context", f"the log of a warehouse: {LINES:,} lines, {size:,} characters")

    def _say(self, head: str, text: str, level: int = 0) -> None:
        for line in self._canvas.say(level, head, text, self._paint.strong):
            self._print(line)

    def _quote(self, text: str) -> None:
        for line in self._canvas.quote(1, "│", text, SHOWN_LINES, str, wrap=True):
            self._print(line)

    def _print(self, line: str) -> None:
        self._erase()
        self._stream.write(f"{line}\n")
        self._stream.flush()
