"""The REST routes of the Jupyter gateway, and how it writes errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from starlette.responses import Response

from atoll import __version__
from atoll.hosting.pool.tiers import TIERS
from atoll.service.dialects.jupyter import terminals
from atoll.service.dialects.jupyter.gateway import DEFAULT, PREFIX
from atoll.service.dialects.jupyter.kernel import KernelInfo
from atoll.service.http.problems import encode, not_found
from atoll.service.http.requests import Json
from atoll.service.http.route import Route

if TYPE_CHECKING:
    from starlette.requests import Request

    from atoll.service.access.keys import Principal
    from atoll.service.core.service import Service
    from atoll.service.dialects.jupyter.kernel import Kernel
    from atoll.service.http.problems import Problem
    from atoll.service.http.requests import ApiRequest
    from atoll.service.http.route import Handler


class NewKernel(Struct, kw_only=True):
    """POST /api/kernels; fields that are not known are passed over."""

    name: str | None = None
    env: dict[str, str] | None = None


class VersionInfo(Struct):
    """Which service this is."""

    version: str = __version__
    name: str = "atoll"


class KernelSpec(Struct, kw_only=True):
    """How a kernel is started and shown."""

    argv: list[str] = []
    env: dict[str, str] = {}
    display_name: str
    language: str = "python"
    interrupt_mode: str = "message"
    metadata: dict[str, str] = {}


class NamedSpec(Struct):
    """A kind of kernel."""

    name: str
    spec: KernelSpec
    resources: dict[str, str] = {}


class KernelSpecs(Struct):
    """The kinds of kernels."""

    default: str
    kernelspecs: dict[str, NamedSpec]


async def version(_call: ApiRequest) -> VersionInfo:
    """Say which service this is."""
    return VersionInfo()


async def list_specs(_call: ApiRequest) -> KernelSpecs:
    """List the kinds of kernels: the usual one, and one for each set of libraries."""
    return KernelSpecs(DEFAULT, {name: _spec(name) for name in (DEFAULT, *TIERS)})


async def show_spec(call: ApiRequest) -> NamedSpec:
    """Return one kind of kernel."""
    name = call.path["name"]
    if name not in (DEFAULT, *TIERS):
        raise not_found("kernel spec")
    return _spec(name)


async def list_kernels(call: ApiRequest) -> list[KernelInfo]:
    """List the tenant's kernels."""
    return [kernel.describe() for kernel in call.service.gateway.of(call.principal)]


async def start(call: ApiRequest) -> Json[KernelInfo]:
    """Start a kernel."""
    given = await call.json(NewKernel)
    # Gateway clients send variables named KERNEL_*, which are about their own machine.
    env = {k: v for k, v in (given.env or {}).items() if not k.startswith("KERNEL_")}
    kernel = await call.service.gateway.start(call.principal, given.name or DEFAULT, env)
    return Json(kernel.describe(), 201, {"location": f"{PREFIX}/api/kernels/{kernel.id}"})


async def show(call: ApiRequest) -> KernelInfo:
    """Describe a kernel."""
    return _kernel(call).describe()


async def end(call: ApiRequest) -> None:
    """End a kernel."""
    await call.service.gateway.end(_kernel(call))


async def interrupt(call: ApiRequest) -> None:
    """Interrupt the cell that runs."""
    await _kernel(call).interrupt()


async def restart(call: ApiRequest) -> KernelInfo:
    """Start a kernel afresh."""
    kernel = _kernel(call)
    await kernel.restart()
    return kernel.describe()


def routes() -> list[Route]:
    """Return every route of the gateway."""
    kernel, terminal = "/api/kernels/{kernel}", f"/api/terminals/{terminals.NAME}"
    rows: tuple[tuple[str, str, Handler, str], ...] = (
        ("GET", "/api", version, ""),
        ("GET", "/api/kernelspecs", list_specs, "sessions"),
        ("GET", "/api/kernelspecs/{name}", show_spec, "sessions"),
        ("GET", "/api/kernels", list_kernels, "sessions"),
        ("POST", "/api/kernels", start, "sessions"),
        ("GET", kernel, show, "sessions"),
        ("DELETE", kernel, end, "sessions"),
        ("POST", f"{kernel}/interrupt", interrupt, "execute"),
        ("POST", f"{kernel}/restart", restart, "sessions"),
        ("GET", "/api/terminals", terminals.list_terminals, "execute"),
        ("POST", "/api/terminals", terminals.start, "execute"),
        ("GET", terminal, terminals.show, "execute"),
        ("DELETE", terminal, terminals.end, "execute"),
    )
    return [
        Route(
            method,
            PREFIX + path,
            handler,
            scope,
            status=201 if handler in (start, terminals.start) else 200,
            new_work=handler in (start, restart, terminals.start),
            who=by_token,
            refuse=refuse,
            security="jupyter",
        )
        for method, path, handler, scope in rows
    ]


def by_token(service: Service, request: Request) -> Principal:
    """Return who asks, by a key as Jupyter's clients send it."""
    return service.gateway.check(request)


def refuse(problem: Problem, _request_id: str) -> Response:
    """Return an error as Jupyter's clients read it."""
    headers = {}
    if problem.retry_after is not None:
        headers["retry-after"] = str(max(1, round(problem.retry_after)))
    body = encode({"reason": problem.code, "message": problem.detail})
    return Response(body, problem.status, headers, "application/json")


def _kernel(call: ApiRequest) -> Kernel:
    return call.service.gateway.get(call.principal, call.path["kernel"])


def _spec(name: str) -> NamedSpec:
    libraries = "" if name == DEFAULT else f", {name}"
    return NamedSpec(name, KernelSpec(display_name=f"Python (Atoll sandbox{libraries})"))
