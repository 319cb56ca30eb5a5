"""Builds images without an engine: each step is a layer, run in a jail and kept by what it does.

base ──step──▶ layer ──step──▶ layer ... ──▶ image under a name
        │
        ├ apt, pip, run: a shell in a jail, as a pretended root; hosts by allow-list
        └ copy: a tar of files of this machine

A step that was built before on the same base is taken from the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shlex
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from atoll.config import images_limit
from atoll.egress.gateway import CA_VARIABLES, Gateway
from atoll.errors import ImageError
from atoll.images import add_layer, get_image, store
from atoll.images.changes import KEPT_FOLDERS, Changes, pack_changes
from atoll.images.obtain import BUILD_CACHE, check_name
from atoll.jail.supervisor import client, packets
from atoll.jail.supervisor.spec import (
    GUEST_CODE,
    GUEST_HOME,
    ROOT,
    SHOWN_FOLDERS,
    Bind,
    ImageRoot,
    JailSpec,
    Limits,
)
from atoll.launch.interpreter import IMAGE_PATH
from atoll.network import NetworkPolicy
from atoll.policy import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from atoll.images.commit import LayerWriter
    from atoll.images.image import HeldImage, Image
    from atoll.programs.build_steps import Step
    from atoll.types import EndReport

STEP_SECONDS = 3600.0
OPEN_FILES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """What all steps of a build have."""

    hosts: tuple[str, ...] | None = None
    """What steps may reach; None: what each step needs by itself."""
    private: tuple[str, ...] = ()
    """Private networks that these hosts may be in: those of a mirror of one's own."""
    memory: int | None = 4096 * MIB
    disk: int = 4096 * MIB
    """What one step may write; it is held in memory."""
    use_cache: bool = True
    say: Callable[[str], object] = lambda text: sys.stderr.write(f"atoll: {text}\n")
    """Takes what the build does, line by line."""


def build_image(base: str, steps: Sequence[Step], name: str, options: BuildOptions) -> HeldImage:
    """Build an image and store it under a name; output of steps goes to stderr. This blocks."""
    asked = check_name(name)
    held = get_image(base)
    try:
        for number, step in enumerate(steps, 1):
            options.say(f"step {number} of {len(steps)}: {step}")
            after = _cached(held, step, options) or _build(held.image, step, options)
            held.close()
            held = after
        with store.disk_errors(name):
            store.set_name(str(asked), held.image.digest)
    except BaseException:
        held.close()
        raise
    store.evict(images_limit(), spare=held.image.digest)
    return held


def _cache_name(base: Image, step: Step) -> str:
    digest = hashlib.sha256(f"{base.digest} {step.key()}".encode()).hexdigest()
    return f"docker.io/{BUILD_CACHE}:{digest[:40]}"


def _cached(held: HeldImage, step: Step, options: BuildOptions) -> HeldImage | None:
    """Return the image that this step made of the same base before."""
    digest = store.named(_cache_name(held.image, step))
    found = store.hold(digest, digest) if digest and options.use_cache else None
    if found is not None:
        options.say("as it was built before")
    return found


def _build(base: Image, step: Step, options: BuildOptions) -> HeldImage:
    changes = replace(step.changes, created_by=str(step))
    script = step.script(base)
    if script is None:
        made = add_layer(base, step.write, changes)
    else:
        with contextlib.ExitStack() as stack:
            fds = asyncio.run(_run(base, step, script, options))
            for fd in fds:
                stack.callback(os.close, fd)
            shown = dict(zip(SHOWN_FOLDERS, fds, strict=False))
            kept = {path: shown[path] for path in KEPT_FOLDERS}
            upper = fds[len(SHOWN_FOLDERS)]
            found = Changes(upper=upper, folders=kept, mounted=(GUEST_CODE,))

            def fill(writer: LayerWriter) -> None:
                pack_changes(found, base, writer, options.disk)

            made = add_layer(base, fill, changes)
    store.set_name(_cache_name(base, step), made.image.digest)
    return made


async def _run(base: Image, step: Step, script: str, options: BuildOptions) -> list[int]:
    """Run a script in a jail on the image; return its folders and the upper layer of its root."""
    hosts = step.hosts(base) if options.hosts is None else options.hosts
    gateway = Gateway(_policy(hosts, options.private)) if hosts else None
    if hosts:
        options.say(f"it may reach {', '.join(hosts)}")
    env, binds = _environment(base), tuple[Bind, ...]()
    if gateway is not None:
        given, binds = _certificates()
        env = {**gateway.environment(env), **given, **env}
    if base.config.workdir:
        workdir = shlex.quote(base.config.workdir)
        script = f"mkdir -p {workdir}; cd {workdir}; {script}"
    spec = JailSpec(
        jailed=True,
        argv=("/bin/sh", "-ec", script),
        env=env,
        binds=binds,
        workspace=None,
        limits=_limits(options),
        root=ImageRoot(layers=tuple(map(str, base.layers)), writable=True, user=ROOT),
        attended=True,
    )
    end, fds = await _run_jail(spec, gateway)
    if end.exit != 0:
        packets.close_all(fds)
        how = "it was out of memory" if end.out_of_memory else str(end)
        raise ImageError(base.reference, f"the step `{step}` failed: {how}", _hint(hosts))
    return fds


async def _run_jail(spec: JailSpec, gateway: Gateway | None) -> tuple[EndReport, list[int]]:
    ours, theirs = packets.pair()
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    with ours:
        with theirs:
            lease = client.request(spec, [null, 2, 2, theirs.fileno()])
        os.close(null)
        fds: list[int] = []
        try:
            await lease.started
            fds = await lease.folders()  # they outlive the jail
            if gateway is not None:
                gateway.listen(await lease.listener())
            packets.send(ours, "go")
            async with asyncio.timeout(STEP_SECONDS):
                return await asyncio.shield(lease.ended), fds
        except BaseException as exc:
            packets.close_all(fds)
            if isinstance(exc, TimeoutError):
                raise ImageError("", f"a step took longer than {STEP_SECONDS:g} s") from None
            raise
        finally:
            await lease.close()
            if gateway is not None:
                await gateway.close()


def _policy(hosts: tuple[str, ...], private: tuple[str, ...]) -> NetworkPolicy:
    return NetworkPolicy(
        hosts, private=private, max_bytes=None, max_requests=None, max_seconds=None
    )


def _certificates() -> tuple[dict[str, str], tuple[Bind, ...]]:
    """Return the authorities that this machine's programs are told to trust, if there are such."""
    named = (os.environ.get(name) for name in CA_VARIABLES)
    path = next((path for path in named if path and os.path.isfile(path)), None)
    if path is None:
        return {}, ()
    bind = Bind(source=os.path.realpath(path), target=f"{GUEST_CODE}/ca.pem")
    return dict.fromkeys(CA_VARIABLES, bind.target), (bind,)


def _environment(base: Image) -> dict[str, str]:
    given = (one.partition("=") for one in base.config.env)
    own = {name: value for name, _, value in given if name}
    return {"PATH": IMAGE_PATH, "LANG": "C.UTF-8", **own, "HOME": GUEST_HOME}


def _limits(options: BuildOptions) -> Limits:
    return Limits(
        memory=options.memory,
        processes=512,
        disk=options.disk,
        file_size=None,
        open_files=OPEN_FILES,
        reserved=1 << 42,
    )


def _hint(hosts: tuple[str, ...]) -> str:
    return "" if hosts else "It had no network: --allow-host HOST gives it one."
