"""What Python 3.14 and 3.15 have brought, in cells: syntax, and modules of the standard library."""

from __future__ import annotations

import pytest

from atoll import Capability


@pytest.fixture
def newest(box):
    """Return the session if its Python is of the version asked for or newer; else skip the test."""

    def at_least(*version):
        if tuple(box.execute("import sys\ntuple(sys.version_info[:2])").value) < version:
            pytest.skip(f"the guest's Python is older than {version[0]}.{version[1]}")
        return box

    return at_least


TEMPLATES = {
    "as the value of a cell": ("y = 2\nt'{y}; z'.strings", ("", "; z")),
    "after other statements on a line": ("y = 2; t = t'{y!r:>3}'; t.values", (2,)),
    "over lines that look like magics": (
        "y = 1\nt = t'''\n%time y\n!ls\n?{y}\n'''\nt.strings[0]",
        "\n%time y\n!ls\n?",
    ),
    "inside each other": ("t\"{f'{1 + 1}'} {t'{2}'}\".values[0]", "2"),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_string_in_a_cell(newest, name):
    code, value = TEMPLATES[name]
    result = newest(3, 14).execute(code)
    assert result.value == value, result.error


def test_a_lazy_import_in_a_cell(newest):
    box = newest(3, 15)
    code = "lazy import json\nlazy from math import floor\n(json.dumps([1]), floor(1.5))"
    result = box.execute(code)
    assert result.value == ("[1]", 1), result.error
    assert box.execute("lazy import no_such_module_here\n1").value == 1
    assert box.execute("no_such_module_here").error_type in ("ImportError", "ModuleNotFoundError")


@pytest.mark.needs(Capability.SUBPROCESS)
def test_zstandard_and_interpreters_of_the_standard_library(newest):
    box = newest(3, 14)
    code = (
        "from compression import zstd\nzstd.decompress(zstd.compress(b'x' * 1000)) == b'x' * 1000"
    )
    assert box.execute(code).value is True
    code = (
        "from concurrent import interpreters\nfrom concurrent.futures import InterpreterPoolExecutor\n"
        "other = interpreters.create()\nother.exec('print(6 * 7)')\nother.close()\n"
        "with InterpreterPoolExecutor(2) as pool: sizes = list(pool.map(abs, [-1, -2]))\nsizes"
    )
    result = box.execute(code)
    assert (result.stdout, result.value) == ("42\n", [1, 2]), result.error
