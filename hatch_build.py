"""Hatch's build hook: brings the console's editor and terminal, if npm can fetch them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ConsoleEditor(BuildHookInterface[Any]):
    """Fetches the packages of tools/console_packages.json; a build without them is a good build."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Run before files are collected."""
        del version, build_data
        path = Path(self.root) / "tools/vendor_console.py"
        spec = importlib.util.spec_from_file_location("vendor_console", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        module.main()
