"""Record the run that `atoll ask --demo` replays, with the real local model.

    python tools/record_demo.py                       starts the model that `atoll model get` got
    python tools/record_demo.py http://127.0.0.1:N/v1  asks a server that runs already
    python tools/record_demo.py --rebind              keeps the replies, writes today's requests

The recording is written over cli/commands/demo_recording.jsonl if the run gave an answer. Set
RECORDED_ON in src/atoll/cli/commands/demo.py afterwards.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from atoll import RLM, Budget
from atoll.agent.rlm.models import local
from atoll.agent.rlm.models.client import Limits
from atoll.agent.rlm.models.local import Store
from atoll.agent.rlm.models.recorded import Recorder
from atoll.agent.rlm.models.resolve import resolve
from atoll.cli.commands import demo

if TYPE_CHECKING:
    from atoll.agent.rlm.models.types import Model

SECONDS = 3_600.0


def main() -> int:
    """Record the run; the exit code is 1 if the model gave no answer of its own."""
    given = sys.argv[1:]
    with contextlib.ExitStack() as opened:
        folder = opened.enter_context(TemporaryDirectory())
        record = Path(folder) / "recording.jsonl"
        model = demo.recorded() if given == ["--rebind"] else _real(given, opened)
        settings: dict[str, Any] = dict(demo.SETTINGS)
        budget = Budget(iterations=int(settings.pop("max_turns")), seconds=SECONDS)
        rlm = RLM(Recorder(model, record), budget=budget, on_event=print, **settings)
        with rlm:
            answer = rlm.completion(demo.QUESTION, demo.log_text())
        print(answer.text, answer.evidence, sep="\n")
        if answer.ended == "answered":
            demo.RECORDING.write_bytes(record.read_bytes())
        return int(answer.ended != "answered")


def _real(given: list[str], opened: contextlib.ExitStack) -> Model:
    store = Store()
    url = given[0] if given else opened.enter_context(local.running(store.fetch())).url
    limits = Limits(timeout_seconds=SECONDS)
    return resolve(f"local/{store.weights.name}", base_url=url, limits=limits)


if __name__ == "__main__":
    sys.exit(main())
