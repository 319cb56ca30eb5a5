"""The options of `atoll serve` and `atoll keys`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.cli.argument_types import port
from atoll.cli.option_table import add_options, one_of

if TYPE_CHECKING:
    import argparse

    from atoll.cli.parser import Parser

    Commands = argparse._SubParsersAction[Parser]  # noqa: SLF001 - it has no public name

DURABILITIES = ("none", "periodic", "cell")
SCOPES = ("execute", "sessions", "files", "runs", "metrics", "admin")
_FOLDER = (
    "--folder DIR  keys, states and contexts (default: $ATOLL_SERVE_FOLDER or ~/.local/share/atoll)"
)
_SERVE = f"""
    --host ADDRESS          listen on this address (default 127.0.0.1)
    --port N                listen on this port (default 8437; 0: any free one)
    {_FOLDER}
    --tls-certificate FILE  serve https with this certificate (PEM)
    --tls-key FILE          the certificate's key, if it is in another file
    --allow-host NAME ...   a name that clients may use for this server, such as a proxy's;
        repeatable
    --trusted-proxy NETWORK ...      a reverse proxy whose X-Forwarded-For is believed, such as
        127.0.0.1 or 10.0.0.0/8; repeatable
    --session-package PACKAGE ...    a package that sessions may ask for, or '*' for all; repeatable
    --session-host HOST[:PORT] ...   a host that sessions may reach by http and https; repeatable
    --model NAME ...        a model that agents may use through POST /runs; repeatable
"""
_LIBRECHAT = """
    --jwt-keys PATH     public keys that verify its tokens: a JWKS file, or a folder of PEM files
    --librechat-key ID  id of the key to use for requests without a key
    --librechat-network NETWORK ...  a network whose requests need no key (default: this machine);
        repeatable
"""
_MACHINES = """
    --fleet HOST:PORT  open sandboxes on the fleet with this head
    --durability KEPT  what sessions on a fleet keep if their machine is lost (default cell: every
        cell)
"""
_SERVICES = """
    --blobs URL    keep states and files in s3://BUCKET/PREFIX or file:///FOLDER
    --redis URL    share quotas and sessions through a Redis server
    --own-url URL  where the other services reach this one
"""
_LIMITS = """
    --tier TIER              libraries that sessions find imported (default full)
    --max-running N          executions at once (default 2 per core)
    --max-queue N            executions that may wait for their turn (default 256)
    --max-sessions N         sessions in all (default 1024)
    --max-live N             sessions kept in memory (default 128)
    --idle-seconds SECONDS   end a session that was unused for this long (default 1800)
    --drain-seconds SECONDS  how long running cells may go on after SIGTERM (default 30)
    --log FORM               form of the log on stderr; json has a line for each request (default
        text)
    --traces URL             send spans to this OpenTelemetry collector (OTLP over HTTP)
    --debug                  log every request and its answer
"""
_ADD_KEY = f"""
    [NAME]             what the key is for
    --tenant TENANT =default  the tenant whose sessions the key sees (default: default)
    --scope SCOPE ...  what the key may do: {", ".join(SCOPES)}; repeatable (default: the first
        three)
    --expires SECONDS  refuse the key after this many seconds
    --quota NAME=NUMBER ...  a limit: requests_per_second, burst (requests at once; default: those
        of two seconds), connections, executions, sessions, stored_bytes, cpu_seconds_per_day,
        memory_bytes, disk_bytes (default: as memory_bytes), timeout_ms; repeatable
"""


def add_serve(serve: Parser, tiers: tuple[str, ...]) -> None:
    """Add the options of `atoll serve`; each has a variable ATOLL_SERVE_NAME too."""
    add_options(serve, _SERVE, port={"type": port})
    add_options(serve.add_argument_group("LibreChat"), _LIBRECHAT)
    machines = serve.add_argument_group("several machines")
    add_options(machines, _MACHINES, durability=one_of(DURABILITIES))
    add_options(serve.add_argument_group("several services"), _SERVICES)
    add_options(serve, _LIMITS, tier=one_of(tiers), log=one_of(("text", "json")))


def add_keys(add: Parser, show: Parser, revoke: Parser) -> None:
    """Add the options of `atoll keys add`, `list` and `revoke`."""
    for action in (add, show, revoke):
        add_options(action, _FOLDER)
    scope = {"choices": SCOPES, "default": None}
    add_options(add, _ADD_KEY, name={"default": ""}, tenant={"metavar": None}, scope=scope)
    add_options(show, "--json  print one JSON object")
    add_options(revoke, "ID  the key's id, as `atoll keys list` shows it")
