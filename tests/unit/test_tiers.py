"""Which tier a piece of code wants: the smallest that has what it uses."""

from __future__ import annotations

import pytest

from atoll.config import PRELOADS
from atoll.errors import ConfigError
from atoll.hosting.pool import tiers

CHOICES = {
    "": "bare",
    "print(1)": "bare",
    "import json; json.dumps(1)": "bare",
    "import requests": "bare",
    "import numpy": "numeric",
    "import numpy.linalg": "numeric",
    "from numpy import array": "numeric",
    "np.zeros(3)": "numeric",
    "x = pd.DataFrame()": "numeric",
    "def f():\n    import pandas as p\n    return p": "numeric",
    "if 0:\n    import scipy": "full",
    "from sklearn.linear_model import Ridge": "full",
    "plt.plot([1])": "full",
    "import seaborn as whatever": "full",
    "lambda: stats.norm": "full",
    "try:\n    import statsmodels.api\nexcept ImportError: pass": "full",
    "np": "numeric",
    "np = 5": "numeric",
    "'import numpy'": "bare",
    "# import numpy": "bare",
    "x.np": "bare",
    "from . import numpy": "bare",
}
ODD = ("def", "\0", "(" * 5000 + ")" * 5000, "import", "import numpy\nx = (", "\ud800")


@pytest.mark.spec("R2.4")
@pytest.mark.parametrize(("code", "tier"), CHOICES.items(), ids=repr)
def test_the_smallest_tier_that_has_it(code, tier):
    assert tiers.choose(code) == tier


@pytest.mark.parametrize("code", ODD, ids=lambda code: repr(code[:12]))
def test_code_that_does_not_parse_wants_nothing(code):
    assert tiers.choose(code) == "bare"


def test_each_tier_holds_all_that_the_one_before_it_does():
    names = [
        {word for line in lines for word in tiers.offers(line)} for lines in tiers.TIERS.values()
    ]
    assert names[0] < names[1] < names[2]
    assert tiers.largest(tiers.TIERS) == "full"


@pytest.mark.spec("R2.4")
def test_the_named_libraries_are_in_the_largest_tier():
    offered = {word for line in tiers.TIERS["full"] for word in tiers.offers(line)}
    assert offered >= {
        "numpy", "np", "pandas", "pd", "scipy", "stats", "optimize", "interpolate", "sklearn",
        "statsmodels", "sm", "matplotlib", "plt", "seaborn", "sns", "json", "csv", "re", "math",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("import a.b.c", {"a", "a.b.c"}),
        ("import a.b as c", {"a", "c"}),
        ("from a.b import c, d as e", {"a", "c", "e"}),
        ("import a, b as c", {"a", "b", "c"}),
    ],
)
def test_what_an_import_offers(line, names):
    assert tiers.offers(line) == names


@pytest.mark.parametrize("line", ["", "x = 1", "import a\nimport b", "from . import a", "import"])
def test_nothing_else_may_be_preloaded(line):
    with pytest.raises(ConfigError, match="not an import statement"):
        tiers.offers(line)


def test_tiers_of_ones_own():
    own = {"small": ("import json",), "large": ("import json", "import torch as t")}
    assert tiers.choose("t.zeros(1)", own) == "large"
    assert tiers.choose("import numpy", own) == "small"


def test_the_names_that_a_sandbox_may_ask_for_are_those_of_the_tiers():
    assert (*tiers.TIERS, tiers.PACKAGES) == PRELOADS


def test_a_choice_reads_neither_the_tiers_nor_the_same_code_again(monkeypatch):
    code = "import numpy  # of this test alone"
    tiers.choose(code)
    monkeypatch.setattr(tiers.ast, "parse", lambda *_: pytest.fail("parsed again"))
    assert tiers.choose(code) == "numeric"
    assert not tiers.makes_code(code)


def test_code_that_is_too_long_to_be_read_may_make_code(monkeypatch):
    monkeypatch.setattr(tiers.ast, "parse", lambda *_: pytest.fail("parsed"))
    assert tiers.makes_code("1\n" * tiers.MAX_READ)
