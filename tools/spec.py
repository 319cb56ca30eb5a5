"""Prints every requirement with the tests that show it; fails while one has none. `make spec`.

python tools/spec.py            all of docs/requirements.md
python tools/spec.py R0 R1.6    only ids that begin so
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROW = re.compile(r"^\| (R\d+\.\d+) \| (.*) \|$", re.MULTILINE)
WIDTH = 76


class Collector:
    """A pytest plugin that notes which test shows which requirement, and runs nothing."""

    def __init__(self) -> None:
        self.shown: dict[str, set[str]] = defaultdict(set)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Take the ids off each test; parametrised tests count once."""
        for item in items:
            for marker in item.iter_markers("spec"):
                for ident in marker.args:
                    self.shown[ident].add(item.nodeid.split("[")[0])


def main(wanted: list[str]) -> int:
    """Print the table; the exit status tells whether every row is shown."""
    rows = ROW.findall((ROOT / "docs" / "requirements.md").read_text())
    shown = collect()
    known = {ident for ident, _ in rows}
    if unknown := sorted(set(shown) - known):
        print(f"tests name requirements that do not exist: {', '.join(unknown)}")
        return 1
    chosen = [row for row in rows if not wanted or any(matches(row[0], w) for w in wanted)]
    for ident, text in chosen:
        print_row(ident, text, sorted(shown.get(ident, ())))
    missing = [ident for ident, _ in chosen if ident not in shown]
    print(f"\n{len(chosen) - len(missing)} of {len(chosen)} requirements are shown by tests")
    if missing:
        print(f"none for: {' '.join(missing)}")
    return 1 if missing else 0


def collect() -> dict[str, set[str]]:
    """Which tests show which requirement."""
    collector = Collector()
    sys.path.insert(0, str(ROOT))  # as `python -m pytest` does: tests import bench and evals
    arguments = ["--collect-only", "-qqq", "-p", "no:xdist", "--matrix", "all", str(ROOT / "tests")]
    with contextlib.redirect_stdout(io.StringIO()):
        status = pytest.main(arguments, plugins=[collector])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit(f"the tests could not be collected: {status!r}; run make test")
    return collector.shown


def matches(ident: str, prefix: str) -> bool:
    """R0 takes all of R0.x; R0.1 takes itself alone."""
    return ident == prefix or ident.startswith(prefix + ".")


def print_row(ident: str, text: str, tests: list[str]) -> None:
    """One requirement and its tests."""
    mark = "ok  " if tests else "NONE"
    short = text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"
    print(f"{mark} {ident:6} {short}")
    for test in tests:
        print(f"            {test}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
