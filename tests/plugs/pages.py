"""Runs the example of a page of the documentation, as it stands."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

PAGES = Path(__file__).resolve().parents[2] / "docs" / "integrations"
FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def run_example(page: str) -> None:
    """Run the first Python fence of a page as a file of the current folder."""
    Path("example.py").write_text(FENCE.search((PAGES / f"{page}.md").read_text())[1])
    runpy.run_path("example.py", run_name="__main__")
