"""Answer one task with `rlms`, in the working folder: given.json and context.txt to answer.json.

`evals.arms` runs this in a process of its own, as `rlms` runs the model's code where it is.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main() -> int:
    """Ask once and write what came of it."""
    from rlm import RLM  # noqa: PLC0415 - not a dependency: pip install rlms

    given = json.loads(Path("given.json").read_text())
    _note_usage()
    asked = RLM(
        backend="vllm",
        backend_kwargs={
            "model_name": given["model"],
            "base_url": given["base_url"],
            "api_key": "none",
            # As for the other arms, a call may take the time of the task and is made once: by
            # default it is given up after 300 seconds and made again, up to three times.
            "timeout": given["seconds"],
            "max_retries": 0,
        },
        environment="local",
        max_iterations=given["calls"] - 1,  # the last call is its answer at the limit
        max_timeout=given["seconds"],
        sampling_args=given["sampling"],
        sub_sampling_args=given["sampling"],
    )
    said, ended, reason = "", "answered", ""
    forced = _note_forced(asked)
    try:
        done = asked.completion(Path("context.txt").read_text(), root_prompt=given["question"])
        said = str(done.response)
    except Exception as exc:  # noqa: BLE001 - whatever it raises is its answer
        ended, reason = "unanswered", f"{type(exc).__name__}: {exc}"[:200]
    ended = "forced" if forced and ended == "answered" else ended
    result = {"text": said, "ended": ended if said.strip() else "unanswered", "reason": reason}
    Path("answer.json").write_text(json.dumps(result))
    return 0


def _note_usage() -> None:
    """Append the tokens of each call to used.txt, so that they are known if this is killed."""
    from rlm.clients.openai import OpenAIClient  # noqa: PLC0415

    original = OpenAIClient._track_cost  # noqa: SLF001 - it tells only at the end

    def noted(client: Any, response: Any, model: str) -> None:
        original(client, response, model)
        with Path("used.txt").open("a") as file:
            file.write(f"{response.usage.total_tokens}\n")

    OpenAIClient._track_cost = noted  # noqa: SLF001


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
