"""Template strings and lazy imports (Python 3.14, 3.15): a guard sees the code in them."""

from __future__ import annotations

import sys

import pytest

import atoll

BAD = {
    "class": "x = 3\nt'{x.__class__}'",
    "subclasses": "t'{().__class__.__base__.__subclasses__()}'.values[0][:2]",
    "of an interpolation": "t'{1}'.interpolations[0].__class__",
    "in a format": "t'{1:{().__class__}}'",
    "import": "t'{__import__(\"os\")}'.values",
    "lazily": "lazy import os\nos.getcwd()",
    "lazily from": "lazy from os import getcwd\ngetcwd()",
}
OPTIONS = {
    "ast": {"backend": "native", "guard": "ast"},
    "restrictedpython": {"backend": "native", "guard": "restrictedpython"},
    "restricted": {"backend": "restricted"},
}


@pytest.mark.spec("R4.1")
@pytest.mark.skipif(sys.version_info < (3, 14), reason="this Python has no template strings")
@pytest.mark.parametrize("options", OPTIONS)
def test_code_in_template_strings_and_lazy_imports_is_checked(options):
    lazy = sys.version_info >= (3, 15)
    codes = {name: code for name, code in BAD.items() if lazy or "lazy" not in code}
    with atoll.create_sandbox(**OPTIONS[options]) as box:
        kinds = {name: box.execute(code).kind for name, code in codes.items()}
        good = box.execute("name = 'w'\nt'hi {name!r:>5}'.values")
    assert set(kinds.values()) == {"refused"}, kinds
    assert good.value == ("w",), good.error
