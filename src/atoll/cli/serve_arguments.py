"""The options of `atoll serve` and `atoll keys`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.cli.argument_types import count, port, seconds

if TYPE_CHECKING:
    import argparse

    from atoll.cli.parser import Parser

    Commands = argparse._SubParsersAction[Parser]  # noqa: SLF001 - it has no public name

DURABILITIES = ("none", "periodic", "cell")
SCOPES = ("execute", "sessions", "files", "runs", "metrics", "admin")
_FOLDER = "keys, states and contexts (default: $ATOLL_SERVE_FOLDER or ~/.local/share/atoll)"


def add_serve(serve: Parser, tiers: tuple[str, ...]) -> None:
    """Add the options of `atoll serve`; each has a variable ATOLL_SERVE_NAME too."""
    serve.add_argument(
        "--host", metavar="ADDRESS", help="listen on this address (default 127.0.0.1)"
    )
    serve.add_argument(
        "--port", metavar="N", type=port, help="listen on this port (default 8437; 0: any free one)"
    )
    serve.add_argument("--folder", metavar="DIR", help=_FOLDER)
    serve.add_argument(
        "--tls-certificate", metavar="FILE", help="serve https with this certificate (PEM)"
    )
    serve.add_argument(
        "--tls-key", metavar="FILE", help="the certificate's key, if it is in another file"
    )
    for name, metavar, text in (
        ("--allow-host", "NAME", "a name that clients may use for this server, such as a proxy's"),
        ("--session-package", "PACKAGE", "a package that sessions may ask for, or '*' for all"),
        ("--session-host", "HOST[:PORT]", "a host that sessions may reach by http and https"),
        ("--model", "NAME", "a model that agents may use through POST /runs"),
    ):
        serve.add_argument(
            name, metavar=metavar, action="append", default=[], help=f"{text}; repeatable"
        )
    _add_surroundings(serve)
    serve.add_argument(
        "--tier", choices=tiers, help="libraries that sessions find imported (default full)"
    )
    _add_limits(serve)
    serve.add_argument(
        "--log",
        choices=("text", "json"),
        help="form of the log on stderr; json has a line for each request (default text)",
    )
    serve.add_argument(
        "--traces",
        metavar="URL",
        help="send spans to this OpenTelemetry collector (OTLP over HTTP)",
    )
    serve.add_argument("--debug", action="store_true", help="log every request and its answer")


def _add_limits(serve: Parser) -> None:
    """Add the options that say how much runs and is kept."""
    for name, metavar, kind, text in (
        ("--max-running", "N", count, "executions at once (default 2 per core)"),
        ("--max-queue", "N", count, "executions that may wait for their turn (default 256)"),
        ("--max-sessions", "N", count, "sessions in all (default 1024)"),
        ("--max-live", "N", count, "sessions kept in memory (default 128)"),
        (
            "--idle-seconds",
            "SECONDS",
            seconds,
            "end a session that was unused for this long (default 1800)",
        ),
        (
            "--drain-seconds",
            "SECONDS",
            seconds,
            "how long running cells may go on after SIGTERM (default 30)",
        ),
    ):
        serve.add_argument(name, metavar=metavar, type=kind, help=text)


def _add_surroundings(serve: Parser) -> None:
    """Add the options for LibreChat, and for several services that work together."""
    group = serve.add_argument_group("LibreChat")
    group.add_argument(
        "--jwt-keys",
        metavar="PATH",
        help="public keys that verify its tokens: a JWKS file, or a folder of PEM files",
    )
    group.add_argument(
        "--librechat-key", metavar="ID", help="id of the key to use for requests without a key"
    )
    group.add_argument(
        "--librechat-network",
        metavar="NETWORK",
        action="append",
        default=[],
        help="a network whose requests need no key (default: this machine); repeatable",
    )
    group = serve.add_argument_group("several machines")
    group.add_argument(
        "--fleet", metavar="HOST:PORT", help="open sandboxes on the fleet with this head"
    )
    group.add_argument(
        "--durability",
        choices=DURABILITIES,
        help="what sessions on a fleet keep if their machine is lost (default cell: every cell)",
    )
    group = serve.add_argument_group("several services")
    group.add_argument(
        "--blobs",
        metavar="URL",
        help="keep states and files in s3://BUCKET/PREFIX or file:///FOLDER",
    )
    group.add_argument(
        "--redis", metavar="URL", help="share quotas and sessions through a Redis server"
    )
    group.add_argument("--own-url", metavar="URL", help="where the other services reach this one")


def add_keys(add: Parser, show: Parser, revoke: Parser) -> None:
    """Add the options of `atoll keys add`, `list` and `revoke`."""
    for action in (add, show, revoke):
        action.add_argument("--folder", metavar="DIR", help=_FOLDER)
    add.add_argument("name", nargs="?", default="", metavar="NAME", help="what the key is for")
    add.add_argument(
        "--tenant",
        default="default",
        help="the tenant whose sessions the key sees (default: default)",
    )
    add.add_argument(
        "--scope",
        metavar="SCOPE",
        action="append",
        choices=SCOPES,
        help=f"what the key may do: {', '.join(SCOPES)}; repeatable (default: the first three)",
    )
    add.add_argument(
        "--expires", metavar="SECONDS", type=seconds, help="refuse the key after this many seconds"
    )
    add.add_argument(
        "--quota",
        metavar="NAME=NUMBER",
        action="append",
        default=[],
        help="a limit: requests_per_second, burst, connections, executions, sessions, "
        "stored_bytes, cpu_seconds_per_day, memory_bytes, timeout_ms; repeatable",
    )
    show.add_argument("--json", action="store_true", help="print one JSON object")
    revoke.add_argument("id", metavar="ID", help="the key's id, as `atoll keys list` shows it")
