"""Fail if the built site would load anything from another host: `make docs` runs it.

Links that a reader may click are fine. Scripts, styles, fonts, images and frames must be local.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

SITE = Path(__file__).resolve().parent.parent / "site"
ELSEWHERE = r"""=["']?((?:https?:)?//[^"'\s>]+)"""
LOADED = re.compile(
    rf"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\s(?:src|srcset){ELSEWHERE}"
    r"|<link\b(?=[^>]*\brel=[\"']?(?:stylesheet|preload|preconnect|prefetch|icon))"
    rf"[^>]*?\shref{ELSEWHERE}"
    r"|(?:@import\s*|url\()\s*[\"']?((?:https?:)?//[^\"'\s)]+)",
    re.IGNORECASE,
)


def main() -> int:
    """Print every resource of another host; 1 if there is one."""
    pages = [path for path in SITE.rglob("*") if path.suffix in {".html", ".css", ".svg"}]
    found = [
        f"{page.relative_to(SITE)}: {address}"
        for page in pages
        for address in loaded_from_elsewhere(page.read_text(errors="replace"))
    ]
    print("\n".join(found) or f"site/index.html: {len(pages)} files, nothing from another host")
    return int(bool(found) or not pages)


def loaded_from_elsewhere(text: str) -> list[str]:
    """Return the addresses that a browser would fetch from another host to show this text."""
    return [next(filter(None, match.groups())) for match in LOADED.finditer(text)]


if __name__ == "__main__":
    sys.exit(main())
