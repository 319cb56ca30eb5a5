"""A real language model on loopback, for tests: downloads its weights once, then serves them.

    python tools/llm_server.py            prints http://127.0.0.1:PORT and serves until it is ended
    python tools/llm_server.py --fetch    only downloads the weights

The work is done by atoll.agent.rlm.models.local, which `atoll model` uses too.
"""

from __future__ import annotations

import argparse
import sys

from atoll.agent.rlm.models import local
from atoll.agent.rlm.models.local import Store
from atoll.errors import AtollError
from atoll.text.amounts import size_text


def main() -> int:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description="A real language model on loopback.")
    parser.add_argument("--fetch", action="store_true", help="only download the weights")
    local.add_options(parser)
    args = parser.parse_args()
    try:
        weights = Store().fetch(_show)
    except AtollError as exc:
        raise SystemExit(str(exc)) from None
    if args.fetch:
        print(weights)
    else:
        local.serve(weights, args.port, args.threads, args.window)
    return 0


def _show(size: int) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[2Kweights: {size_text(size)}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
