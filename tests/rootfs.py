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

PROGRAMS = """
awk bash cat chmod cp curl cut dd echo env false find grep head id ln ls mkdir mkfifo mv nohup pgrep pkill printf ps pwd
readlink rm sed seq setsid sh sleep sort stat stty tail tee test timeout touch tr true tty uname wc whoami yes
""".split()
_LEFT_OUT = ("test", "tests", "idlelib", "tkinter", "lib2to3", "site-packages", "config-3*")
_RELEASE = 'PRETTY_NAME="Test image"\nID=test\n'
PASSWD = (
    "root:x:0:0:root:/root:/bin/sh\nworker:x:999:999::/srv:/bin/sh\n"
    "nobody:x:65534:65534::/nonexistent:/bin/false\n"
)
_ETC = {"os-release": _RELEASE, "passwd": PASSWD, "group": "root:x:0:\nnogroup:x:65534:\n"}
LIBRARIES = """
numpy numpy.libs requests urllib3 certifi idna charset_normalizer
httpx httpcore anyio h11 sniffio typing_extensions.py
""".split()


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
    copy_libraries(folder, [python, *programs, *native])
    for name, text in _ETC.items():
        (folder / "etc" / name).write_text(text)
    if os.path.isdir(locale := "/usr/lib/locale/C.utf8"):
        shutil.copytree(locale, folder / locale[1:])
    (folder / "root").chmod(0o700)
    (folder / "root/secret").write_text("of the image")
    return folder


def make_libraries(folder: Path) -> Path:
    """Fill the folder with libraries of the tests' environment, a layer on top; return it."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    target = folder / "usr/lib" / version / "site-packages"
    target.mkdir(parents=True)
    (folder / "usr/bin").mkdir()
    (folder / "usr/bin/python").symlink_to("python3")
    (folder / "usr/lib/python3").mkdir()
    (folder / "usr/lib/python3/dist-packages").symlink_to(f"../{version}/site-packages")  # Debian's
    skipped = shutil.ignore_patterns("tests", "__pycache__", "*.pyi")
    for name in LIBRARIES:
        source = Path(sysconfig.get_path("purelib")) / name
        if source.is_file():
            shutil.copy(source, target)
        elif name.endswith(".libs") or (source / "__init__.py").exists():
            shutil.copytree(source, target / name, ignore=skipped)
    copy_libraries(folder, list(target.rglob("*.so")))
    return folder


def copy_libraries(folder: Path, binaries: list[Path]) -> None:
    """Copy what binaries load, but for what is in the folder already."""
    for needed in _libraries(binaries):
        target = folder / needed.relative_to("/")
        if folder not in needed.parents and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(needed, target)


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
            tar.add(layer, ".", filter=_without_time)
        return packed.getvalue()


def _without_time(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Of the same files, the same tar: a store that has its layers unpacks nothing."""
    entry.mtime = 0
    return entry


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _put(blobs: Path, data: bytes, kind: str) -> dict[str, object]:
    (blobs / _digest(data)).write_bytes(data)
    return {"mediaType": kind, "digest": f"sha256:{_digest(data)}", "size": len(data)}
