"""Runs the example of a page of the documentation, as it stands."""

from __future__ import annotations

import re
from pathlib import Path

PAGES = Path(__file__).resolve().parents[2] / "docs" / "integrations"


def run_example(page: str) -> None:
    """Run the first Python fence of a page."""
    code = re.search(
        r"^```python\n(.*?)^```", (PAGES / f"{page}.md").read_text(), re.MULTILINE | re.DOTALL
    )
    exec(compile(code[1], f"{page}.md", "exec"), {"__name__": "__main__"})
