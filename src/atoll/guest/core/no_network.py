"""A call to the network fails with "this sandbox has no network" instead of a DNS error.

`socket` is changed when guest code imports it: a start does not pay for it. The exceptions keep
their types and numbers, calls that succeed (the guest's own loopback) are not touched.
"""

from __future__ import annotations

import sys

from .imports import when_loaded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

NO_NETWORK = (
    "this sandbox has no network: pass the data in as files or `context`, offer a tool that "
    "fetches it, or allow the host: create_sandbox(network=[...]), or --allow-host on the command "
    "line"
)
_words = [NO_NETWORK]
"""What an error says. A guest that was forked off a zygote has `socket` changed already."""
_OWN_LOOPBACK = "nothing listens on {} here: this sandbox has a loopback of its own. {}"
LOOKUPS = ("getaddrinfo", "gethostbyname", "gethostbyname_ex")
_UNREACHABLE = ("ENETUNREACH", "EHOSTUNREACH", "ENETDOWN", "EHOSTDOWN")
_UNKNOWN_NAME = ("EAI_NONAME", "EAI_AGAIN", "EAI_FAIL", "EAI_NODATA")
_NUMERIC_FLAGS = (
    4  # where getaddrinfo() has its flags, by position: host, port, family, type, proto
)
_HAS_SOCKETS = sys.platform != "wasi"
CONNECTS = ("connect", "sendto") if _HAS_SOCKETS else ("__init__", "connect", "sendto")


def install(network: dict[str, str] | None = None) -> None:
    """Change `socket`: now if it is loaded, else when it is.

    `network`: what may be reached, in words, and whose certificates to trust.
    """
    if network is not None:
        _words[:] = [network["words"]]
    if network is not None and "ca" in network:
        with open(network["ca_file"], "w", encoding="ascii") as file:
            file.write(network["ca"])
    when_loaded("socket", _change)


def _change(module: Any) -> None:
    if vars(module).get("__no_network__"):
        return
    module.__no_network__ = True
    unknown = {getattr(module, name, None) for name in _UNKNOWN_NAME}
    for name in LOOKUPS:
        if hasattr(module, name):
            setattr(module, name, _looking_up(module, getattr(module, name), unknown))
    for name in CONNECTS:
        if hasattr(module.socket, name):
            setattr(module.socket, name, _connecting(getattr(module.socket, name)))


def _looking_up(module: Any, real: Callable[..., Any], unknown: set[Any]) -> Callable[..., Any]:
    failure = module.gaierror
    numeric = getattr(module, "AI_NUMERICHOST", 0)

    def look_up(host: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return real(host, *args, **kwargs)
        except failure as exc:
            flags = kwargs.get("flags", args[_NUMERIC_FLAGS] if len(args) > _NUMERIC_FLAGS else 0)
            if exc.errno not in unknown or flags & numeric:
                raise
            raise failure(exc.errno, _words[0]) from None

    _name_as(real, look_up)
    return look_up


def _connecting(real: Callable[..., Any]) -> Callable[..., Any]:
    import errno

    numbers = {getattr(errno, name, None) for name in _UNREACHABLE}

    def connect(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return real(self, *args, **kwargs)
        except OSError as exc:
            if exc.errno == errno.ECONNREFUSED and args and _has_policy(args[0]):
                where = "{}:{}".format(*args[0][:2])
                raise type(exc)(exc.errno, _OWN_LOOPBACK.format(where, _words[0])) from None
            if _HAS_SOCKETS and exc.errno not in numbers:
                raise
            raise type(exc)(exc.errno, _words[0]) from None

    _name_as(real, connect)
    return connect


def _has_policy(address: Any) -> bool:
    """Return whether a client of an Internet address may have meant the host's loopback."""
    return isinstance(address, tuple) and _words[0] != NO_NETWORK


def _name_as(real: Any, wrapper: Any) -> None:
    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        try:
            setattr(wrapper, name, getattr(real, name))
        except AttributeError:
            pass
    wrapper.__wrapped__ = real
