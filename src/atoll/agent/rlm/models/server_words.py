"""What a model server says of an error, as it can be shown: one line, without keys and prompts.

SECURITY: a server may repeat what it was sent. The key, texts shaped like secrets, and runs of the
prompt are replaced before the text is cut, so that no part of them is left at the cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.agent.trajectory import terminal_text
from atoll.text.redact import SHORTEST_KNOWN, Redactor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from atoll.agent.rlm.models.types import Message

LONGEST = 300
RUN = 16
"""Least characters that the server's words and a prompt have in common if one quotes the other."""
_READ = 1 << 16
_SHOWN_RANGE = 2 * LONGEST
_PROMPT = "[prompt]"


def shown(told: str, keys: Mapping[str, str | None], messages: Sequence[Message]) -> str:
    """Return the server's words in quotation marks; "" if it said nothing, or sent HTML."""
    if not told.strip() or told.lstrip().startswith("<"):
        return ""
    known = {name: key for name, key in keys.items() if key and len(key) >= SHORTEST_KNOWN}
    line = " ".join(Redactor(known).redact(told[:_READ]).split())
    line = _without_prompt(line[:_SHOWN_RANGE], messages)
    return f"“{terminal_text.clip(terminal_text.line(line), LONGEST)}”"


def _without_prompt(line: str, messages: Sequence[Message]) -> str:
    """Replace what the line has in common with a message: RUN characters, or a short message."""
    prompts = [" ".join(one.content.split()) for one in messages]
    quoted = bytearray(len(line))
    for prompt in prompts:
        run = min(RUN, max(len(prompt), SHORTEST_KNOWN))
        for at in range(len(line) - run + 1):
            if line[at : at + run] in prompt:
                quoted[at : at + run] = b"\1" * run
    parts = [
        _PROMPT * (at == 0 or not quoted[at - 1]) if quoted[at] else char
        for at, char in enumerate(line)
    ]
    return "".join(parts)
