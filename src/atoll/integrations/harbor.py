"""Harbor (Terminal-Bench) tasks in sandboxes of Atoll.

    harbor run --path TASK --agent oracle --env atoll.integrations.harbor:AtollEnvironment

A task's `docker_image` or Dockerfile becomes the image of the sandbox; its root can be written.
`--ek image=host` runs a task with this machine's programs instead, `--ek backend=gvisor` in
another backend. Commands of the user root have the rights of the guest.
"""

from __future__ import annotations

import asyncio
import io
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any

from atoll.errors import AtollError, ImageError
from atoll.images import find_image
from atoll.images.dockerfile import build_dockerfile
from atoll.integrations.common import missing
from atoll.integrations.rollouts import MIB, RolloutBox, Wanted

try:
    from harbor.environments.base import BaseEnvironment, ExecResult, SandboxBuildFailedError
    from harbor.environments.capabilities import (
        EnvironmentCapabilities,
        EnvironmentResourceCapabilities,
    )
    from harbor.environments.definition import require_agent_environment_definition
    from harbor.models.task.config import NetworkMode
except ImportError as exc:
    raise ImportError(missing("harbor", "harbor")) from exc

FOLDERS = ("/logs", "/tests", "/solution", "/installed-agent")
"""Where Harbor, its oracle and its agents write."""


class AtollEnvironment(BaseEnvironment):  # type: ignore[misc]
    """The sandbox of one trial."""

    def __init__(
        self, *args: Any, image: str | None = None, backend: str = "auto", **kwargs: Any
    ) -> None:
        self._image, self._backend = image, backend
        self._box: RolloutBox | None = None
        super().__init__(*args, **kwargs)

    @staticmethod
    def type() -> str:
        """Return the name of this kind of environment."""
        return "atoll"

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """Memory is limited; CPUs are shared."""
        return EnvironmentResourceCapabilities(memory_limit=True)

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """The network is a list of hosts from the start, or none."""
        return EnvironmentCapabilities(
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True,
            network_allowlist_ipv4_addresses=True,
            network_allowlist_ipv6_addresses=True,
        )

    def _validate_definition(self) -> None:
        if self._image is None:
            require_agent_environment_definition(
                self.environment_dir, docker_image=self.task_env_config.docker_image
            )
        if (self.environment_dir / "docker-compose.yaml").exists():
            raise ValueError(
                f"{self.environment_name} has a docker-compose.yaml: Atoll runs one sandbox a task"
            )

    async def start(self, force_build: bool) -> None:  # noqa: FBT001 - Harbor's signature
        """Get or build the image, and open the sandbox."""
        image = self._image or await asyncio.to_thread(self._built, force_build)
        memory, disk = self._effective_memory_mb, self._effective_storage_mb
        wanted = Wanted(
            image=image,
            workdir=self.task_env_config.workdir
            or _dockerfile_workdir(self.environment_dir / "Dockerfile"),
            folders=[*FOLDERS, *self._mount_targets(writable_only=True)],
            env=self._startup_env(),
            memory_bytes=memory * MIB if memory else None,
            disk_bytes=disk * MIB if disk else None,
            network=self._hosts(),
            options={"backend": self._backend},
        )
        try:
            self._box = await RolloutBox.open(wanted)
        except ImageError as exc:
            raise SandboxBuildFailedError(str(exc)) from exc
        await self.ensure_dirs(self._mount_targets(writable_only=True))
        await self._upload_environment_dir_after_start()

    async def stop(self, delete: bool) -> None:  # noqa: ARG002, FBT001 - Harbor's signature
        """End the sandbox; nothing of it is kept."""
        box, self._box = self._box, None
        if box is not None:
            await box.close()

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a line of bash; RuntimeError if it takes too long."""
        done = await self._opened.run(
            command,
            cwd=cwd,
            env=self._merge_env(env),
            timeout=timeout_sec,
            user=self._resolve_user(user),
        )
        if done.timed_out:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
        if (callback := self._output_callback()) is not None:
            await callback(done.out, "stdout")
            await callback(done.err, "stderr")
        return ExecResult(stdout=done.out, stderr=done.err, return_code=done.exit_code)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file into the sandbox."""
        data = await asyncio.to_thread(Path(source_path).read_bytes)
        await self._opened.write(target_path, data)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy a folder into the sandbox, with modes and links."""
        packed = await asyncio.to_thread(_pack, Path(source_dir))
        unpack = 'mkdir -p -- "$1" && exec tar -x -f - --no-same-owner -C "$1"'
        done = await self._opened.run(["sh", "-c", unpack, "sh", target_dir], stdin=packed)
        if done.exit_code != 0:
            raise RuntimeError(f"cannot upload {source_dir} to {target_dir}: {done.err}")

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file out of the sandbox."""
        data = await self._opened.read(source_path)
        await asyncio.to_thread(Path(target_path).write_bytes, data)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy the files of a folder out of the sandbox; links and special files are left out."""
        draft = f"/tmp/.atoll-{id(self):x}.tar"  # noqa: S108 - the guest's own
        done = await self._opened.run(["tar", "-c", "-f", draft, "-C", source_dir, "."])
        if done.exit_code != 0:
            raise RuntimeError(f"cannot download {source_dir}: {done.err}")
        try:
            packed = await self._opened.read(draft)
        finally:
            await self._opened.run(["rm", "-f", draft])
        await asyncio.to_thread(_unpack, packed, Path(target_dir))

    @property
    def _opened(self) -> RolloutBox:
        if self._box is None:
            raise RuntimeError("the environment is not started: call start() first")
        return self._box

    def _hosts(self) -> list[str]:
        policy = self.network_policy
        if policy.network_mode == NetworkMode.PUBLIC:
            return ["*"]
        return list(policy.allowed_hosts) if policy.network_mode == NetworkMode.ALLOWLIST else []

    def _built(self, force: bool) -> str:  # noqa: FBT001
        """Return the reference of the task's image, built from its Dockerfile if it has one."""
        dockerfile = self.environment_dir / "Dockerfile"
        named = self.task_env_config.docker_image
        if named and not (force and dockerfile.exists()):
            return str(named)
        name = f"harbor/{self.environment_name.lower().strip('-._')}:{self.environment_id[:12]}"
        held = None if force else find_image(name)
        try:
            held = held or build_dockerfile(str(self.environment_dir), name)
        except AtollError as exc:
            raise SandboxBuildFailedError(f"{self.environment_name}: {exc}") from exc
        held.close()
        return name


def _dockerfile_workdir(path: Path) -> str | None:
    """Return the WORKDIR of a Dockerfile's last stage; Harbor's own reader needs a package more."""
    found: str | None = None
    for line in path.read_text().splitlines() if path.exists() else ():
        name, _, value = line.strip().partition(" ")
        if name.upper() == "FROM":
            found = None
        elif name.upper() == "WORKDIR":
            found = str(PurePosixPath(found or "/") / value.strip())
    return found


def _pack(folder: Path) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        archive.add(folder, arcname=".")
    return made.getvalue()


def _unpack(packed: bytes, target: Path) -> None:
    """Write the files of a guest's archive.

    SECURITY: no link is ever made and no name leads upwards, so nothing is written elsewhere.
    """
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as archive:
        for member in archive:
            name = PurePosixPath(member.name)
            if name.is_absolute() or ".." in name.parts:
                continue
            path = target / name
            if member.isdir():
                path.mkdir(parents=True, exist_ok=True)
            elif member.isfile() and (data := archive.extractfile(member)) is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data.read())
