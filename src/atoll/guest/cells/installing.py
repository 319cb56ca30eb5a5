"""Commands that install packages: pip's work where a network is allowed, else they are refused.

A sandbox that may reach some hosts has a proxy in its environment. pip then asks the index through
it and installs into a folder of the session; what the policy forbids, pip reports as its error.
"""

from __future__ import annotations

import os
import re
import sys


class UsageError(Exception):
    """A magic is unknown, wrongly used, or not possible in this sandbox; it says what to do."""


UsageError.__module__ = "builtins"
_INSTALL = re.compile(
    r"\s*(?:sudo\s+)?(?:\S*python[\d.]*\s+-m\s+)?(?:uv\s+)?"
    r"(?P<tool>pip[\d.]*|conda|mamba|micromamba|apt|apt-get|npm|uv)\s+(?:-\S+\s+)*"
    r"(?:install|download|add|update|upgrade|create|sync|wheel)\b(?P<rest>.*)",
    re.DOTALL,
)
_NETWORK = re.compile(r"(?:^|[;&|(]\s*)\s*(?:curl|wget|git\s+clone|ssh|scp|ping|nslookup)\b")
_REQUIREMENT = re.compile(r"\d*[A-Za-z][\w.-]*")
_TAKES_VALUE = frozenset({"-r", "-c", "-i", "-t", "-f", "-e", "--index-url", "--target"})
_IMPORTED_AS = {
    "scikit-learn": "sklearn",
    "pillow": "PIL",
    "beautifulsoup4": "bs4",
    "pyyaml": "yaml",
    "opencv-python": "cv2",
    "python-dateutil": "dateutil",
}
ADVICE = (
    "name packages when the sandbox is made: create_sandbox(packages={0!r}), "
    "or --package on the command line"
)
INSTALL_FOLDER = "~/packages"
_PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy")


def package_of(module: str) -> str:
    """Return the package that a module is most likely installed by."""
    return next((name for name, imported in _IMPORTED_AS.items() if imported == module), module)


def refuse_or_settle(text: str) -> bool:
    """Return whether all packages of a command are present; UsageError if it needs a network."""
    result = [match for match in map(_INSTALL.match, re.split(r"&&|\|\||;|\n", text)) if match]
    if result and has_network() and all(match["tool"].startswith("pip") for match in result):
        _install_into_session()
        return False
    for match in result:
        reason = _refusal(match)
        if reason:
            raise UsageError(reason)
        names = _requirements(match["rest"])
        print("Requirement already satisfied: {}".format(", ".join(names)))
    return bool(result) and not re.search(r"&&|\|\||;|\n", text.strip())


def why_it_failed(command: list[str]) -> str:
    """Return why a program that was to install packages has failed; empty if that is not known."""
    match = _INSTALL.match(" ".join(command))
    return "" if match is None or has_network() else _refusal(match)


def has_network() -> bool:
    """Return whether the sandbox may reach hosts, through a proxy; see docs/security.md."""
    return any(os.environ.get(name) for name in _PROXIES)


def _install_into_session() -> None:
    """Have pip install into a folder of the session, and Python import from it."""
    import importlib

    folder = os.path.expanduser(INSTALL_FOLDER)
    if folder not in sys.path:
        os.makedirs(folder, exist_ok=True)
        sys.path.insert(0, folder)
        known = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([folder] + ([known] if known else []))
    os.environ["PIP_TARGET"] = folder
    os.environ["PIP_DISABLE_PIP_VERSION_CHECK"] = os.environ["PIP_NO_CACHE_DIR"] = "1"
    importlib.invalidate_caches()


def uses_network(text: str) -> bool:
    """Return whether a command needs a network."""
    return bool(_NETWORK.search(text))


def _refusal(match: re.Match[str]) -> str:
    """Return why a command is refused; empty if it installs only packages that are present."""
    tool, wanted = match["tool"], _requirements(match["rest"])
    missing = [name for name in wanted if not _is_there(name)]
    if wanted and not missing and tool.startswith("pip"):
        return ""
    names = missing or wanted
    what = "{} cannot install {}".format(tool, ", ".join(names) or "anything")
    advice = ADVICE.format(names or ["PACKAGE"])
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
    for candidate in (module, module.lower()):
        try:
            if importlib.util.find_spec(candidate) is not None:
                return True
        except (ImportError, ValueError, AttributeError):
            continue
    return False
