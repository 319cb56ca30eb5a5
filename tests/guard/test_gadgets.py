"""Ways out of an in-process guard, each tried: none prints PWNED, and each would without a guard."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from gadgets import ATTACKS

SECRET = "PWNED-SECRET"
ALONE = """
import contextlib, io, json, numpy, os, sys
found = []
for name, code in json.load(sys.stdin).items():
    if (child := os.fork()) == 0:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            try: exec(code, {"__name__": "__main__"})
            except BaseException: pass
        os._exit("PWNED" in out.getvalue())
    if os.waitpid(child, 0)[1]: found.append(name)
print(json.dumps(found))
"""
CRASHES = {"np-as-strided", "np-resize-uaf", "exc-group-split", "time-settime"}
"""What may end an interpreter that nobody guards, or set the machine's clock."""


@pytest.fixture(scope="module")
def folder() -> Path:
    place = Path(tempfile.mkdtemp())
    (place / "secret.txt").write_text(SECRET + "\n")
    return place


def filled(code: str, folder: Path) -> str:
    code = code.replace("@@CANARY_PATH@@", str(folder / "secret.txt"))
    return code.replace("@@OUTSIDE_DIR@@", str(folder))


@pytest.mark.spec("R4.1")
@pytest.mark.parametrize("name", ATTACKS)
def test_gadget_leads_nowhere(kept, folder, name):
    result = kept.execute(filled(ATTACKS[name], folder))
    assert "PWNED" not in result.stdout + (result.value_repr or ""), result
    assert SECRET not in repr(result)
    assert not (folder / "PWNED").exists()
    assert kept.execute("40 + 2").value == 42


def test_most_gadgets_bite_where_there_is_no_guard(folder):
    codes = {n: filled(c, folder) for n, c in ATTACKS.items() if n not in CRASHES}
    codes = dict(list(codes.items())[::3])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ALONE],
        input=json.dumps(codes),
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
        check=True,
    )
    for file in folder.glob("PWNED*"):
        file.unlink()
    assert len(json.loads(done.stdout.splitlines()[-1])) > len(codes) // 2
