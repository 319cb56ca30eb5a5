"""Installs and removes the kernel spec by which Jupyter finds the kernel."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from atoll.extras import hint

try:
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_core.paths import jupyter_data_dir
except ImportError as exc:
    raise ImportError(
        f"atoll.integrations.kernel_spec needs jupyter-client. {hint('jupyter')}"
    ) from exc

NAME = "atoll"


def install(*, prefix: Path | None = None, name: str = NAME) -> Path:
    """Write the kernel spec for this user, or below `prefix`; return its folder."""
    spec = {
        "argv": [
            sys.executable,
            "-m",
            "atoll.integrations.jupyter_kernel",
            "-f",
            "{connection_file}",
        ],
        "display_name": "Python (Atoll sandbox)",
        "language": "python",
        "interrupt_mode": "message",
    }
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kernel.json").write_text(json.dumps(spec, indent=2), encoding="utf-8")
        manager = KernelSpecManager()
        where = {"user": True} if prefix is None else {"prefix": str(prefix)}
        return Path(manager.install_kernel_spec(folder, name, **where))


def remove(*, prefix: Path | None = None, name: str = NAME) -> bool:
    """Delete the kernel spec; return whether there was one."""
    above = Path(jupyter_data_dir()) if prefix is None else prefix / "share" / "jupyter"
    manager = KernelSpecManager(kernel_dirs=[str(above / "kernels")])
    try:
        manager.remove_kernel_spec(name)
    except KeyError:
        return False
    return True
