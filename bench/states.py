"""Rows about a saved state: a frame of 10 MB out of one sandbox and into another."""

from __future__ import annotations

import base64
import dataclasses
from typing import TYPE_CHECKING

from bench import warm
from bench.rows import Arms, Goal, needs, row, timed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.config import SandboxConfig
    from atoll.hosting.pool import PooledSandbox
    from bench.rows import Probe, Scale

SEED_SECONDS = 0.190
FRAME = """
import numpy as np
import pandas as pd
count = 10_000_000 // 40
dice = np.random.default_rng(1)
frame = pd.DataFrame(dice.standard_normal((count, 4)), columns=list("abcd"))
frame["kind"] = dice.integers(0, 100, count)
del count, dice
"""


@row(
    what="a 10 MB frame: save(), and into a new sandbox",
    against="cloudpickle + lz4 + base64, there and back",
    rounds=20,
    goal=Goal(value=SEED_SECONDS),
)
def state_frame(_scale: Scale) -> Iterator[Arms]:
    theirs, pool = _plainly(), warm.shared()
    config = pool.config("numeric")
    with pool.session(config) as box:
        result = pool.run(box.execute(FRAME))
        assert result.success, result
        yield Arms(ours=timed(lambda: pool.run(_there_and_back(pool, config, box))), theirs=theirs)


async def _there_and_back(pool: warm.Warm, config: SandboxConfig, box: PooledSandbox) -> None:
    saved = await box.save()
    async with await pool.open(dataclasses.replace(config, state=saved)):
        pass


def _plainly() -> Probe:
    """Pickle and unpickle in this process: no sandbox, no signature, no files."""
    needs("numpy", "pandas", "cloudpickle", "lz4", extra="data,state")
    import cloudpickle  # noqa: PLC0415 - an extra
    import lz4.frame  # noqa: PLC0415 - an extra

    names: dict[str, object] = {}
    exec(FRAME, names)
    frame = names["frame"]

    def there_and_back() -> None:
        text = base64.b64encode(lz4.frame.compress(cloudpickle.dumps(frame))).decode()
        cloudpickle.loads(lz4.frame.decompress(base64.b64decode(text)))

    return timed(there_and_back)
