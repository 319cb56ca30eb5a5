"""The REST routes of the Jupyter gateway, and how it writes errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct
from starlette.responses import Response

from atoll import __version__
from atoll.hosting.pool.tiers import TIERS
from atoll.service.dialects.jupyter.gateway import DEFAULT, PREFIX
from atoll.service.http.problems import encode, not_found
from atoll.service.http.requests import as_json, nothing

if TYPE_CHECKING:
    from starlette.requests import Request

    from atoll.service.access.keys import Principal
    from atoll.service.core.service import Service
    from atoll.service.dialects.jupyter.kernel import Kernel
    from atoll.service.http.problems import Problem
    from atoll.service.http.requests import Call


class NewKernel(Struct, kw_only=True):
    """POST /api/kernels; fields that are not known are passed over."""

    name: str | None = None
    env: dict[str, str] | None = None


async def version(_call: Call) -> Response:
    """Say which service this is."""
    return as_json({"version": __version__, "name": "atoll"})


async def list_specs(_call: Call) -> Response:
    """List the kinds of kernels: the usual one, and one for each set of libraries."""
    found = {name: _spec(name) for name in (DEFAULT, *TIERS)}
    return as_json({"default": DEFAULT, "kernelspecs": found})


async def show_spec(call: Call) -> Response:
    """Return one kind of kernel."""
    name = call.path["name"]
    if name not in (DEFAULT, *TIERS):
        raise not_found("kernel spec")
    return as_json(_spec(name))


async def list_kernels(call: Call) -> Response:
    """List the tenant's kernels."""
    return as_json([one.describe() for one in call.service.gateway.of(call.principal)])


async def start(call: Call) -> Response:
    """Start a kernel."""
    given = await call.json(NewKernel)
    # Gateway clients send variables named KERNEL_*, which are about their own machine.
    env = {k: v for k, v in (given.env or {}).items() if not k.startswith("KERNEL_")}
    kernel = await call.service.gateway.start(call.principal, given.name or DEFAULT, env)
    response = as_json(kernel.describe(), 201)
    response.headers["location"] = f"{PREFIX}/api/kernels/{kernel.id}"
    return response


async def show(call: Call) -> Response:
    """Return what is known of a kernel."""
    return as_json(_kernel(call).describe())


async def end(call: Call) -> Response:
    """End a kernel."""
    await call.service.gateway.end(_kernel(call))
    return nothing()


async def interrupt(call: Call) -> Response:
    """Interrupt the cell that runs."""
    await _kernel(call).interrupt()
    return nothing()


async def restart(call: Call) -> Response:
    """Start a kernel afresh."""
    kernel = _kernel(call)
    await kernel.restart()
    return as_json(kernel.describe())


def facts() -> list[dict[str, Any]]:
    """Return the fields of every route of the gateway."""
    one = "/api/kernels/{kernel}"
    rows = (
        ("GET", "/api", version, ""),
        ("GET", "/api/kernelspecs", list_specs, "sessions"),
        ("GET", "/api/kernelspecs/{name}", show_spec, "sessions"),
        ("GET", "/api/kernels", list_kernels, "sessions"),
        ("POST", "/api/kernels", start, "sessions"),
        ("GET", one, show, "sessions"),
        ("DELETE", one, end, "sessions"),
        ("POST", f"{one}/interrupt", interrupt, "execute"),
        ("POST", f"{one}/restart", restart, "sessions"),
    )
    return [
        {
            "method": method, "path": PREFIX + path, "handler": handler, "scope": scope,
            "new_work": handler in (start, restart), "who": by_token, "refuse": refuse,
            "security": "jupyter",
        }
        for method, path, handler, scope in rows
    ]  # fmt: skip


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


def _kernel(call: Call) -> Kernel:
    return call.service.gateway.get(call.principal, call.path["kernel"])


def _spec(name: str) -> dict[str, Any]:
    libraries = "" if name == DEFAULT else f", {name}"
    spec = {
        "argv": [],
        "env": {},
        "display_name": f"Python (Atoll sandbox{libraries})",
        "language": "python",
        "interrupt_mode": "message",
        "metadata": {},
    }
    return {"name": name, "spec": spec, "resources": {}}
