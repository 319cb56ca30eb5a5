"""Settings for a model that takes few tokens: prompt and reply have to fit into its window."""

from __future__ import annotations

from atoll.errors import ConfigError
from atoll.rlm.asking import MARGIN, MAX_TOKENS
from atoll.rlm.settings import DIRECT_TOKENS, HISTORY_TOKENS

LEAST_WINDOW = 2_048
"""The prompt alone has a thousand."""
OUTPUT_CAP, PREVIEW = 8_192, 1_500


def fitting(window: int | None) -> dict[str, int]:
    """Settings for a window of so many tokens; nothing to set for one that nobody speaks of."""
    if window is None:
        return {}
    if window < LEAST_WINDOW:
        raise ConfigError(f"a window must have at least {LEAST_WINDOW:,} tokens, not {window:,}")
    reply = min(MAX_TOKENS, window // 8)
    room = int((window - reply) / MARGIN)
    cap = min(OUTPUT_CAP, room // 2)  # characters: two observations are never cut
    return {
        "max_tokens": reply,
        "history_tokens": min(HISTORY_TOKENS, room),
        "direct_tokens": min(DIRECT_TOKENS, room // 2),
        "output_cap": cap,
        "max_output_preview": min(PREVIEW, cap),
    }
