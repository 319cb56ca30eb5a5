"""Makes the files of an image out of this machine's own: a Python, a shell, and what they load."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

PROGRAMS = ("sh", "ls", "cat", "id", "touch", "rm", "mkdir", "env", "dd", "wc", "grep", "sleep")
_LEFT_OUT = ("test", "tests", "idlelib", "tkinter", "lib2to3", "site-packages", "config-3*")
_RELEASE = 'PRETTY_NAME="Test image"\nID=test\n'
PASSWD = "root:x:0:0:root:/root:/bin/sh\nworker:x:999:999::/srv:/bin/sh\n"


def make(folder: Path) -> Path:
    """Fill the folder with the files of a small image, and return it."""
    python = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
    programs = [
        Path(path) for name in PROGRAMS if (path := shutil.which(name, path="/usr/bin:/bin"))
    ]
    library = Path(sysconfig.get_path("stdlib"))
    for name in ("bin", "lib", "usr/bin", "usr/lib", "etc", "srv", "root", "tmp", "var/data"):
        (folder / name).mkdir(parents=True)
    for program in programs:
        shutil.copy(program, folder / "usr/bin" / program.name)
        (folder / "bin" / program.name).symlink_to(f"/usr/bin/{program.name}")
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    shutil.copy(python, folder / "usr/bin" / version)
    (folder / "usr/bin/python3").symlink_to(version)
    shutil.copytree(
        library, folder / "usr/lib" / version, ignore=shutil.ignore_patterns(*_LEFT_OUT)
    )
    native = (folder / "usr/lib" / version / "lib-dynload").glob("*.so")
    for needed in _libraries([python, *programs, *native]):
        target = folder / needed.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copy(needed, target)
    (folder / "etc/os-release").write_text(_RELEASE)
    (folder / "etc/passwd").write_text(PASSWD)
    (folder / "root").chmod(0o700)
    (folder / "root/secret").write_text("of the image")
    return folder


def _libraries(binaries: list[Path]) -> set[Path]:
    """Return the shared libraries that binaries load, and the loader, by the names they ask for."""
    said = subprocess.run(
        ["ldd", *map(str, binaries)], capture_output=True, text=True, check=False
    ).stdout
    return {Path(path) for path in re.findall(r"(/\S+) \(0x", said) if os.path.exists(path)}


def write_layout(folder: Path, *layers: Path, **config: object) -> Path:
    """Write an OCI layout of layers, the lowest first, and return it; `config` is the image's."""
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True)
    packed = [_pack(layer) for layer in layers]
    facts = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()],
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_digest(tar)}" for tar in packed]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": _put(blobs, json.dumps(facts).encode(), f"{_KIND}.config.v1+json"),
        "layers": [_put(blobs, tar, f"{_KIND}.layer.v1.tar") for tar in packed],
    }
    entry = _put(blobs, json.dumps(manifest).encode(), _MANIFEST)
    index = {"schemaVersion": 2, "manifests": [entry]}
    (folder / "index.json").write_text(json.dumps(index))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


_KIND = "application/vnd.oci.image"
_MANIFEST = f"{_KIND}.manifest.v1+json"


def _pack(layer: Path) -> bytes:
    with io.BytesIO() as packed:
        with tarfile.open(fileobj=packed, mode="w") as tar:
            tar.add(layer, ".")
        return packed.getvalue()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _put(blobs: Path, data: bytes, kind: str) -> dict[str, object]:
    (blobs / _digest(data)).write_bytes(data)
    return {"mediaType": kind, "digest": f"sha256:{_digest(data)}", "size": len(data)}
