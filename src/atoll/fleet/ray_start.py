"""`python -m atoll.fleet.ray_start start ...`: Ray's own command, on the address it is told."""

from __future__ import annotations

import sys

from atoll.fleet import cluster

_OPTION = "--node-ip-address="


def main() -> None:
    """Run Ray's command line."""
    bind = next((one.removeprefix(_OPTION) for one in sys.argv if one.startswith(_OPTION)), "")
    cluster.library(f"{bind}:0")
    from ray.scripts.scripts import main as ray_main  # noqa: PLC0415

    ray_main()


if __name__ == "__main__":
    main()
