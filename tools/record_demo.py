"""Record the run that `atoll ask --demo` replays, with the real local model.

    python tools/record_demo.py                       starts the model that `atoll model get` got
    python tools/record_demo.py http://127.0.0.1:N/v1  asks a server that runs already

The recording is written over src/atoll/cli/demo_recording.jsonl if the run gave an answer. Set
RECORDED_ON in src/atoll/cli/demo.py afterwards.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from atoll import RLM, Budget
from atoll.cli import demo
from atoll.rlm.models.limits import Limits
from atoll.rlm.models.local import server
from atoll.rlm.models.local.weights import Store
from atoll.rlm.models.recorded import Recorder
from atoll.rlm.models.resolve import resolve

SECONDS = 3_600.0


def main() -> int:
    """Record the run; the exit code is 1 if the model gave no answer of its own."""
    with contextlib.ExitStack() as opened:
        store = Store()
        given = sys.argv[1:]
        url = given[0] if given else opened.enter_context(server.running(store.fetch()))
        folder = opened.enter_context(TemporaryDirectory())
        record = Path(folder) / "recording.jsonl"
        limits = Limits(timeout_seconds=SECONDS)
        model = resolve(f"local/{store.weights.name}", base_url=url, limits=limits)
        settings: dict[str, Any] = dict(demo.SETTINGS)
        budget = Budget(iterations=int(settings.pop("max_turns")), seconds=SECONDS)
        rlm = RLM(Recorder(model, record), budget=budget, on_event=print, **settings)
        with rlm:
            answer = rlm.completion(demo.QUESTION, demo.log_text())
        print(answer.text, answer.evidence, sep="\n")
        if not answer.forced:
            demo.RECORDING.write_bytes(record.read_bytes())
        return int(answer.forced)


if __name__ == "__main__":
    sys.exit(main())
