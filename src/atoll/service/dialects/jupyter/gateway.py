"""The kernels of all tenants, and who may use them.

SECURITY: a kernel is found by its id under the tenant of the key, as its session is. A key comes
in the header Authorization or, as Jupyter's clients do, as `token` in the query; two different
ones are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from atoll.hosting.pool.tiers import TIERS
from atoll.service.dialects.jupyter.kernel import Kernel
from atoll.service.http import bodies
from atoll.service.http.problems import Problem, not_found

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

    from atoll.service.access.keys import Principal
    from atoll.service.core.service import Service

PREFIX = "/jupyter"
DEFAULT = "python3"
"""The kernel that notebooks name: it has the service's usual libraries."""
_SCHEMES = ("token", "bearer")


class Gateway:
    """Opens, finds and ends kernels."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._kernels: dict[str, Kernel] = {}

    def __contains__(self, ident: str) -> bool:
        return ident in self._kernels

    @property
    def idents(self) -> list[str]:
        """The ids of all kernels."""
        return list(self._kernels)

    async def start(self, principal: Principal, name: str, env: dict[str, str]) -> Kernel:
        """Open a kernel, which is a session."""
        if name not in (DEFAULT, *TIERS):
            known = ", ".join((DEFAULT, *TIERS))
            raise Problem(404, "not_found", f"there is no kernel {name!r:.60}: there are {known}")
        service = self._service
        asked = bodies.NewSession(template=None if name == DEFAULT else name, env=env)
        config, callbacks = await service.configure(principal, asked)
        life = bodies.Life(metadata={"client": "jupyter"})
        hosted = await service.sessions.open(principal, config, callbacks, life)
        hosted.comes_back = False  # a kernel is known by an id of its own
        kernel = Kernel(service, hosted, name)
        self._kernels[kernel.id] = kernel
        await service.announce()
        return kernel

    def get(self, principal: Principal, ident: str) -> Kernel:
        """Return a kernel of the tenant; 404 if it has none of that id."""
        kernel = self._kernels.get(ident)
        if kernel is None or kernel.hosted.tenant != principal.tenant or kernel.hosted.over:
            raise not_found("kernel")
        return kernel

    def of(self, principal: Principal) -> list[Kernel]:
        """Return the tenant's kernels, oldest first."""
        return [
            kernel
            for kernel in self._kernels.values()
            if kernel.hosted.tenant == principal.tenant and not kernel.hosted.over
        ]

    async def end(self, kernel: Kernel) -> None:
        """End a kernel and its session."""
        self._kernels.pop(kernel.id, None)
        await self._service.sessions.end(kernel.hosted)
        await kernel.close()

    async def sweep(self) -> None:
        """Close the sockets of kernels whose sessions have ended."""
        for kernel in [kernel for kernel in self._kernels.values() if kernel.hosted.over]:
            await self.end(kernel)

    def check(self, connection: HTTPConnection) -> Principal:
        """Return whose key a request has; 401 if it has none that is valid, 400 if it has two."""
        query = parse_qs(connection.scope["query_string"].decode("latin-1"))
        given = [*query.get("token", ())]
        for text in connection.headers.getlist("authorization"):
            scheme, _, key = text.strip().partition(" ")
            given.append(key.strip() if scheme.lower() in _SCHEMES else "")
        if len(set(given)) > 1:
            raise Problem(400, "ambiguous", "the request has several credentials: send one")
        if not given or not given[0]:
            detail = "send `Authorization: token KEY` or `?token=KEY`; `atoll keys add` makes a key"
            raise Problem(401, "unauthorized", detail, reason="missing")
        return self._service.keys.of_key(given[0])
