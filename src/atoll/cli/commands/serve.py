"""`atoll serve`: sandboxes over HTTP, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from shlex import quote
from typing import TYPE_CHECKING, Any

from atoll.cli.commands import daemon
from atoll.config import expand_home
from atoll.errors import ConfigError
from atoll.extras import hint

if TYPE_CHECKING:
    from argparse import Namespace

    from atoll.service.access.keys import KeyInfo
    from atoll.service.core.service import Service


def command(args: Namespace) -> int:
    """Serve; return the exit code."""
    serving, settings = load("http.serving"), load("settings")
    names = [field.name for field in dataclasses.fields(settings.ServiceSettings)]
    given = {name: getattr(args, name) for name in names if hasattr(args, name)}
    given["hosts"] = tuple(args.allow_host) or None
    given["trusted_proxies"] = tuple(args.trusted_proxy) or None
    given["models"] = tuple(args.model) or None
    given["librechat_networks"] = tuple(args.librechat_network) or None
    given["session_packages"] = tuple(args.session_package) or None
    given["session_images"] = tuple(args.session_image) or None
    given["commit_images"] = tuple(args.commit_image) or None
    given["language_images"] = tuple(args.language_image) or None
    given["session_hosts"] = tuple(args.session_host) or None
    given["folder"] = expand_home(args.folder).absolute() if args.folder else None
    chosen = settings.ServiceSettings.from_environment(**given)
    load("telemetry.logs").set_up(chosen.log, debug=args.debug)
    asyncio.run(serving.serve(chosen, _say, _ready))
    return 0


def load(name: str) -> Any:
    """Return a module of the service; what to install if its extra is missing."""
    from importlib import import_module  # noqa: PLC0415 - as it is used once

    try:
        return import_module(f"atoll.service.{name}")
    except ImportError:
        needs = "`atoll serve` and `atoll keys` need the extra `server`"
        raise ConfigError(f"{needs}. {hint('server')}") from None


def _ready(service: Service, url: str) -> None:
    """Print where it serves, and a key at the first start: it cannot be shown again."""
    for line in daemon.missing_libraries(service.pool_stats()):
        _say(line)
    if service.isolation is None:
        _say(f"no sandbox can be opened: {service.why_not}")
    key, known = "", service.keys.list()
    if not known:
        key = service.keys.add("first key", scopes=load("access.keys").SCOPES)
        known = service.keys.list()
    print(f"Atoll serves at {url}  ({service.isolation or 'NO'} sandboxes)")
    print(f"  console  {_console(service, url, known, first=bool(key))}")
    print(f"  folder   {service.settings.folder}")
    print(_about_keys(service, key))
    shown = key or "KEY"
    print("\nTry it from another terminal:\n")
    print(f"  export ATOLL_URL={url} ATOLL_API_KEY={shown}")
    print("  atoll run -c 'print(6 * 7)'")
    print('  curl $ATOLL_URL/api/v1/run -H "Authorization: Bearer $ATOLL_API_KEY" \\')
    print('       -d \'{"code": "print(6 * 7)"}\'\n')
    print("Ctrl-C stops it, after what runs has ended.", flush=True)


def _about_keys(service: Service, key: str) -> str:
    """Return the line of the first key; later, as only hashes are kept, how to add another."""
    if key:
        return f"  key      {key}\n           Keep it: it is not shown again."
    folder = service.settings.folder
    at = "" if folder == load("settings").default_folder() else f" --folder {quote(str(folder))}"
    return f"  keys     those you have are valid; to add one: atoll keys add NAME{at}"


def _console(service: Service, url: str, known: list[KeyInfo], *, first: bool) -> str:
    """Return the console's address; for a person at a terminal one that signs in, once.

    The secret stands behind the #, which browsers keep to themselves. It is left out where the
    output may be a log that others read, unless the first key itself is printed.
    """
    usable = [key for key in known if "admin" in key.scopes and key.revoked is None]
    usable = [key for key in usable if key.expires is None]
    if not usable or not (first or sys.stdout.isatty()):
        return f"{url}/console   (sign in with a key)"
    secret = service.signins.secret(usable[0].id)
    return f"{url}/console#login={secret}\n           This link signs in once, within 10 minutes."


def _say(text: str) -> None:
    print(f"atoll serve: {text}", file=sys.stderr, flush=True)
