"""Hooks of mkdocs, named in mkdocs.yml: pages from the repository's root, and nothing from afar.

README, CONTRIBUTING and CHANGELOG stand in the root, where people look for them; mkdocs looks in
docs/ only. They are added to its files here, with their links changed to match, and so are the
pages of reference, which are made anew for each site. The theme's search loads
a script from a CDN when a page is opened as a file; the site has a copy of it instead.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File
from mkdocs.utils import get_relative_url

from atoll.service.http.openapi import document

sys.path.insert(0, str(Path(__file__).parent))
import reference

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
SHIM, LOCAL_SHIM = "https://unpkg.com/iframe-worker/shim", "assets/iframe-worker.js"
LINK = re.compile(r"\]\(([^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root to those of docs/."""
    for source, target in PAGES.items():
        text = LINK.sub(_turn, (ROOT / source).read_text())
        files.append(File.generated(config, target, content=text))
    made = {_file_name(title): reference.python_page(title) for title in reference.PYTHON}
    made |= {"errors.md": reference.ERRORS, "http.md": reference.http_page(document())}
    for name, text in made.items():
        files.append(File.generated(config, f"reference/{name}", content=text))
    return files


def _file_name(title: str) -> str:
    return title.lower().replace(",", "").replace(" ", "-") + ".md"


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:  # noqa: ARG001 - mkdocs' names
    """Load the search's worker from the site itself."""
    return output.replace(SHIM, get_relative_url(LOCAL_SHIM, page.url))


def on_post_template(output: str, template_name: str, config: MkDocsConfig) -> str:  # noqa: ARG001
    """The same for the page that says that there is no such page."""
    return output.replace(SHIM, LOCAL_SHIM)


def _turn(link: re.Match[str]) -> str:
    """Return a link of a page in the root as it is seen from docs/."""
    target = PAGES.get(link[1], link[1].removeprefix("docs/"))
    return f"]({target})"
