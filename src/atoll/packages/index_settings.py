"""The package index settings of pip and uv, as the environment of the downloader.

It takes the variables of both tools; pip reads its own files (pip.conf) itself. No other variable
of the caller is passed on: a downloader needs no API keys or tokens.
"""

from __future__ import annotations

import configparser
import os
import re
import urllib.parse

from atoll.egress import certificates
from atoll.text.tables import names_in

_PIP = names_in("""
    PIP_CERT PIP_CLIENT_CERT PIP_CONFIG_FILE PIP_CONSTRAINT PIP_DEFAULT_TIMEOUT PIP_EXTRA_INDEX_URL
    PIP_FIND_LINKS PIP_INDEX_URL PIP_KEYRING_PROVIDER PIP_NO_INDEX PIP_PRE PIP_PROXY PIP_RETRIES
    PIP_TIMEOUT PIP_TRUSTED_HOST
""")
"""Without PIP_TARGET, PIP_REQUIREMENT and the like, which would change what pip does."""
_ALSO = names_in("""
    PATH HOME LANG LC_ALL LD_LIBRARY_PATH NETRC XDG_CONFIG_HOME XDG_CONFIG_DIRS
    SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE
    HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY
    UV_SYSTEM_CERTS UV_INDEX_URL UV_DEFAULT_INDEX UV_OFFLINE ATOLL_UNCONFINED_PIP
""")
_FROM_UV = {
    "PIP_INDEX_URL": ("UV_DEFAULT_INDEX", "UV_INDEX_URL"),
    "PIP_EXTRA_INDEX_URL": ("UV_INDEX", "UV_EXTRA_INDEX_URL"),
    "PIP_FIND_LINKS": ("UV_FIND_LINKS",),
}
_TRUE = ("1", "true", "yes", "on")
_PATHS = names_in("""
    PIP_CERT PIP_CLIENT_CERT PIP_CONFIG_FILE PIP_CONSTRAINT PIP_FIND_LINKS PIP_INDEX_URL
    PIP_EXTRA_INDEX_URL SSL_CERT_FILE SSL_CERT_DIR NETRC REQUESTS_CA_BUNDLE CURL_CA_BUNDLE
""")


def environment() -> dict[str, str]:
    """Return the environment variables for pip."""
    given = certificates.download_environment()
    kept = {name: value for name, value in given.items() if name in _PIP or name.upper() in _ALSO}
    for name, others in _FROM_UV.items():
        found = next((given[other] for other in others if given.get(other)), None)
        if found and not kept.get(name):
            kept[name] = " ".join(_without_name(url) for url in re.split(r"[\s,]+", found) if url)
    if any(given.get(name, "").lower() in _TRUE for name in ("UV_OFFLINE", "UV_NO_INDEX")):
        kept["PIP_NO_INDEX"] = "1"
    kept.setdefault("PIP_RETRIES", "2")
    return kept


def is_offline(variables: dict[str, str]) -> bool:
    """Return whether these variables forbid asking an index."""
    return variables.get("PIP_NO_INDEX", "").lower() in _TRUE


def is_folder(index: str) -> bool:
    """Return whether an index is a folder that exists."""
    return any(map(os.path.isdir, _paths(index)[:1]))


def readable_paths(variables: dict[str, str]) -> list[str]:
    """Return the files and folders that the settings name, and the settings' own files."""
    files = _config_files(variables)
    named = [variables[name] for name in sorted(_PATHS) if name in variables]
    named += [value for file in files for value in _values(file)]
    paths = [path for text in named for word in text.split() for path in _paths(word)]
    home = os.path.expanduser("~")
    beside = [os.path.realpath(path) for path in paths]
    return [*files, *paths, *beside, os.path.join(home, ".netrc")]


def _config_files(variables: dict[str, str]) -> list[str]:
    """Return the paths of pip's settings on Linux."""
    home = os.path.expanduser("~")
    own = variables.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    shared = (variables.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
    return [
        "/etc/pip.conf",
        *(os.path.join(folder, "pip", "pip.conf") for folder in (*shared, own)),
        os.path.join(home, ".pip", "pip.conf"),
        *([variables["PIP_CONFIG_FILE"]] if "PIP_CONFIG_FILE" in variables else []),
    ]


def _values(file: str) -> list[str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(file, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError, OSError):
        return []
    return [value for section in parser.sections() for _, value in parser.items(section)]


def _paths(word: str) -> list[str]:
    """Return the paths in a word; for a local index also its parent folder, which has the files."""
    if word.startswith("file:"):
        path = urllib.parse.unquote(urllib.parse.urlsplit(word).path).rstrip("/")
        return [path, os.path.dirname(path)] if path.count("/") > 1 else [path or "/"]
    expanded = os.path.expanduser(word)
    return [expanded] if os.path.isabs(expanded) else []


def _without_name(index: str) -> str:
    """Return the URL of uv's NAME=URL."""
    return re.sub(r"\A[\w-]+=(?=[a-z]+://|/)", "", index)
