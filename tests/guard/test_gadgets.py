"""Ways out of an in-process guard, each tried: none prints PWNED, and each would without a guard."""

from __future__ import annotations

from pathlib import Path

import pytest
import weakened
from gadgets import ATTACKS

import atoll

SECRET = "PWNED-SECRET"
REFUSED_BY_PYTHON = frozenset(
    {
        "dataclass-annotation-injection", "dataclass-annotations-name",
        "dataclass-field-rename", "make-dataclass-injection", "format-nested-spec",
        "str-subclass-name", "known-cache-poison", "fake-traceback-file", "np-load",
        "partial-func", "decorator-getattr", "mangled", "wrapped-lib", "unicode-getattr",
        "relative-import", "json-hook", "namedtuple-injection", "set-builtins-fn",
        "getattr-hook-assign", "time-settime", "thread-via-decimal", "annotations-mutate",
        "init-subclass-annotations", "annotations-name", "cache-wrapped", "getattr-bytes",
        "setattr-builtin", "exec-via-type-call", "string-template-braces", "bytes-format",
        "numpy-object-array-attr", "numpy-sys", "numpy-linalg-mod", "numpy-globals",
        "ast-literal", "stringio-raw", "time-module-io", "collections-abc-sys",
        "urllib-attr", "class-dict-update", "for-getattr", "with-as-getattr",
        "tuple-getattr", "decorated-getattr", "import-hook-name", "enum-members-proxy-or",
        "nonlocal-match-args", "match-dataclass-obj",
    }
)  # fmt: skip
"""Plain CPython refuses these too. The guard must not be the hole that lets them through."""
OF_THE_BACKEND = frozenset(
    {
        "globals-write", "walrus-dunder", "global-dunder", "import-as-dunder", "for-dunder",
        "stdout-buffer-raw", "stdout-type", "helper-self", "helper-globals", "standin-slot",
        "standin-init", "failedquery-format", "dataclass-init-builtins",
        "warnings-showwarning", "sys-stdout-assign",
    }
)  # fmt: skip
"""About what only the backend has (its built-ins, streams, helpers and stand-ins)."""
CRASHES = frozenset({"exc-group-split"})
"""Ends an interpreter that nobody guards; newer ones raise TypeError."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that anybody may write to, with a secret."""
    for path in (tmp_path, *tmp_path.parents):
        if path.owner() == tmp_path.owner() and not path.stat().st_mode & 0o001:
            path.chmod(0o755)
    tmp_path.chmod(0o777)
    (tmp_path / "secret.txt").write_text(SECRET + "\n")
    (tmp_path / "secret.txt").chmod(0o666)
    return tmp_path


def filled(code: str, folder: Path) -> str:
    code = code.replace("@@CANARY_PATH@@", str(folder / "secret.txt"))
    return code.replace("@@OUTSIDE_DIR@@", str(folder))


@pytest.mark.spec("R4.1")
def test_no_gadget_leads_anywhere(kept: atoll.SyncSandbox, folder: Path) -> None:
    through = {name: why for name in ATTACKS if (why := _what_got_through(kept, name, folder))}
    assert through == {}
    assert len(ATTACKS) >= 258


def _what_got_through(box: atoll.SyncSandbox, name: str, folder: Path) -> str:
    result = box.execute(filled(ATTACKS[name], folder))
    if "PWNED" in result.stdout + (result.value_repr or "") or SECRET in repr(result):
        return repr(result)
    if (folder / "PWNED").exists():
        (folder / "PWNED").unlink()
        return "a file was written"
    return "" if box.execute("40 + 2").value == 42 else "the next execution does not work"


@pytest.mark.timeout(900)
def test_every_gadget_bites_where_there_is_no_guard(
    folder: Path, pytestconfig: pytest.Config
) -> None:
    one_of = 8 if pytestconfig.getoption("matrix") == "sample" else 1
    chosen = {*list(ATTACKS)[::one_of], *CRASHES}
    cells = {name: [filled(ATTACKS[name], folder)] for name in chosen}
    endings = weakened.run(cells, sharing=cells, preload=["numpy"])
    silent = {name: ending for name, ending in endings.items() if not ending.bit}
    listed = REFUSED_BY_PYTHON | OF_THE_BACKEND | CRASHES
    assert {name: ending for name, ending in silent.items() if name not in listed} == {}
    assert listed <= set(ATTACKS)
    assert all(endings[name].signal or endings[name].error == "TypeError" for name in CRASHES)
