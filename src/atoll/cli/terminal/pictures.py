"""A figure in the terminal itself, where it can show one: kitty's protocol and iTerm's.

SECURITY: a figure is a guest's. It is sent as base64, so no byte of it can steer the terminal.
"""

from __future__ import annotations

import base64
import os

PNG = b"\x89PNG\r\n\x1a\n"
PIECE = 4096
KITTY = {"xterm-kitty", "xterm-ghostty"}
ITERM = {"iTerm.app", "WezTerm"}
MOST = 20 << 20


def as_escapes(data: bytes) -> str:
    """Return what shows a PNG in this terminal; nothing if it cannot, or as it seems."""
    if not data.startswith(PNG) or len(data) > MOST or os.environ.get("TMUX"):
        return ""
    text = base64.b64encode(data).decode()
    if os.environ.get("TERM") in KITTY or os.environ.get("KITTY_WINDOW_ID"):
        pieces = [text[at : at + PIECE] for at in range(0, len(text), PIECE)]
        heads = ["a=T,f=100,q=2,m=1", *["m=1"] * (len(pieces) - 2), "m=0"]
        if len(pieces) == 1:
            heads = ["a=T,f=100,q=2"]
        parts = zip(heads, pieces, strict=True)
        return "".join(f"\x1b_G{head};{piece}\x1b\\" for head, piece in parts) + "\n"
    if os.environ.get("TERM_PROGRAM") in ITERM or os.environ.get("LC_TERMINAL") == "iTerm2":
        return f"\x1b]1337;File=inline=1;size={len(data)}:{text}\x07\n"
    return ""
