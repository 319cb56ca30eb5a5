"""Answer one task with `rlms`, in the working folder: given.json and context.txt to answer.json.

`evals.arms` runs this in a process of its own, as `rlms` runs the model's code where it is.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


def main() -> int:
    """Ask once and write what came of it."""
    from rlm import RLM  # noqa: PLC0415 - not a dependency: pip install rlms

    given = json.loads(Path("given.json").read_text())
    begun = time.monotonic()
    asked = RLM(
        backend="vllm",
        backend_kwargs={
            "model_name": given["model"],
            "base_url": given["base_url"],
            "api_key": "none",
        },
        environment="local",
        max_iterations=given["calls"] - 1,  # the last call is its answer at the limit
        max_timeout=given["seconds"],
        sampling_args=given["sampling"],
        sub_sampling_args=given["sampling"],
    )
    said, ended, reason, tokens, calls = "", "answered", "", 0, 0
    forced = _note_forced(asked)
    try:
        done = asked.completion(Path("context.txt").read_text(), root_prompt=given["question"])
        usage, said = done.usage_summary, str(done.response)
        tokens = usage.total_input_tokens + usage.total_output_tokens
        calls = sum(one.total_calls for one in usage.model_usage_summaries.values())
    except Exception as exc:  # noqa: BLE001 - whatever it raises is its answer
        ended, reason = "unanswered", f"{type(exc).__name__}: {exc}"[:200]
    ended = "forced" if forced and ended == "answered" else ended
    result = {
        "said": said,
        "ended": ended if said.strip() else "unanswered",
        "reason": reason,
        "tokens": tokens,
        "calls": calls,
        "seconds": time.monotonic() - begun,
    }
    Path("answer.json").write_text(json.dumps(result))
    return 0


def _note_forced(asked: Any) -> list[str]:
    """Return a list that gets an entry if the model is asked for its answer at the limit."""
    forced: list[str] = []
    original = asked._default_answer  # noqa: SLF001 - it tells nobody else

    def noted(*arguments: Any) -> Any:
        forced.append("iterations")
        return original(*arguments)

    asked._default_answer = noted  # noqa: SLF001
    return forced


if __name__ == "__main__":
    sys.exit(main())
