"""Commands that would install packages: answered in words, as a sandbox has no network."""

from __future__ import annotations

import re
import sys

from .usage import UsageError

_INSTALL = re.compile(
    r"\s*(?:sudo\s+)?(?:\S*python[\d.]*\s+-m\s+)?(?:uv\s+)?"
    r"(?P<tool>pip[\d.]*|conda|mamba|micromamba|apt|apt-get|npm|uv)\s+(?:-\S+\s+)*"
    r"(?:install|download|add|update|upgrade|create|sync|wheel)\b(?P<rest>.*)",
    re.DOTALL,
)
_NETWORK = re.compile(r"(?:^|[;&|(]\s*)\s*(?:curl|wget|git\s+clone|ssh|scp|ping|nslookup)\b")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][\w.-]*")
_TAKES_VALUE = frozenset({"-r", "-c", "-i", "-t", "-f", "-e", "--index-url", "--target"})
_IMPORTED_AS = {
    "scikit-learn": "sklearn",
    "pillow": "PIL",
    "beautifulsoup4": "bs4",
    "pyyaml": "yaml",
    "opencv-python": "cv2",
    "python-dateutil": "dateutil",
}
ADVICE = {
    "wasi": "`atoll wasm install {0}` on the host adds packages that are pure Python",
    "emscripten": "use a backend whose interpreter has them: "
    'create_sandbox(backend="native", python="/path/to/venv/bin/python")',
}
ELSEWHERE = (
    "packages come with the interpreter: install them into a venv on the host and pass "
    'create_sandbox(python="/path/to/venv/bin/python")'
)


def refuse_or_settle(text: str) -> bool:
    """Return whether a command installs only what is there; UsageError if it needs a network."""
    found = [match for match in map(_INSTALL.match, re.split(r"&&|\|\||;|\n", text)) if match]
    for match in found:
        names = _requirements(match["rest"])
        missing = [name for name in names if not _is_there(name)]
        if missing or not names or not match["tool"].startswith("pip"):
            raise UsageError(_refusal(match["tool"], missing or names))
        print("Requirement already satisfied: {}".format(", ".join(names)))
    return bool(found) and not re.search(r"&&|\|\||;|\n", text.strip())


def uses_network(text: str) -> bool:
    """Return whether a command is one that needs a network."""
    return bool(_NETWORK.search(text))


def _refusal(tool: str, names: list[str]) -> str:
    what = "{} cannot install {}".format(tool, ", ".join(names) or "anything")
    advice = ADVICE.get(sys.platform, ELSEWHERE).format(" ".join(names) or "PACKAGE")
    return "{}: this sandbox has no network. {}".format(what, advice[:1].upper() + advice[1:])


def _requirements(rest: str) -> list[str]:
    """Return the names of packages in the arguments of an installer."""
    names, skip = [], False
    for given in rest.partition(" #")[0].split():
        word = given.strip("'\"")
        if skip or word.startswith("-"):
            skip = word in _TAKES_VALUE and not skip
            continue
        match = _REQUIREMENT.match(word)
        if match:
            names.append(match[0])
    return names[:20]


def _is_there(name: str) -> bool:
    import importlib.util

    module = _IMPORTED_AS.get(name.lower(), name.replace("-", "_"))
    for one in (module, module.lower()):
        try:
            if importlib.util.find_spec(one) is not None:
                return True
        except (ImportError, ValueError, AttributeError):
            continue
    return False
