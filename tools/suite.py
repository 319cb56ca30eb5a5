"""Run the suite side by side; what failed beside others is tried once more, alone, and named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FEW = 5
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main(jobs: str, arguments: list[str]) -> int:
    """A run on `jobs` workers; up to FEW failures get a second run on an idle machine."""
    LAST_FAILED.unlink(missing_ok=True)
    code = pytest("-n", jobs, "--dist", "worksteal", *arguments)
    failed = sorted(json.loads(LAST_FAILED.read_text())) if LAST_FAILED.exists() else []
    if code != 1 or not 0 < len(failed) <= FEW:
        return code
    print(f"\nOnce more, alone: {len(failed)} that failed beside others", flush=True)
    code = pytest("--last-failed", "--last-failed-no-failures=none", *arguments)
    if code == 0:
        print("PASSED ONLY ALONE (sensitive to load, wants mending):", *failed, sep="\n  ")
    return code


def pytest(*arguments: str) -> int:
    """Pytest's exit code."""
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
