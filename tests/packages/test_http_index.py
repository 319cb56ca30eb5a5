"""An index behind HTTP: what is asked of it, what a hash protects, and failures in words."""

from __future__ import annotations

import os
import re

import pytest

from atoll.errors import PackageError
from atoll.packages import store
from atoll.packages.environment import ensure


def test_packages_come_from_the_index_of_the_settings_once(cache, index, http_index, target):
    index.wheel("tiny", needs=("needed",))
    index.wheel("needed")
    ensure(["tiny"], target).close()
    asked = list(http_index.asked)
    assert {"/simple/tiny/", "/files/needed-1.0-py3-none-any.whl"} <= set(asked)
    ensure(["tiny"], target).close()
    assert http_index.asked == asked, "what was resolved is not asked for again"


def test_an_offline_machine_uses_what_it_has_and_says_what_it_lacks(
    cache, index, http_index, target, monkeypatch
):
    index.wheel("tiny")
    ensure(["tiny"], target).close()
    asked = list(http_index.asked)
    monkeypatch.setenv("UV_OFFLINE", "1")
    ensure(["tiny"], target).close()
    with pytest.raises(PackageError) as caught:
        ensure(["other"], target)
    assert str(caught.value) == (
        "the package 'other' cannot be installed: no wheel in PIP_FIND_LINKS, and the index is off "
        "(offline). Unset PIP_NO_INDEX or UV_OFFLINE to ask the index."
    )
    assert http_index.asked == asked


def test_a_file_that_is_not_the_one_of_the_index_is_refused(cache, index, http_index, target):
    index.wheel("tiny")
    http_index.wrong_hashes = True
    with pytest.raises(PackageError, match="'tiny' cannot be installed: its file has changed"):
        ensure(["tiny"], target)
    assert store.everything() == []


REFUSALS = {
    "/simple/tiny/": {
        404: "the package 'tiny' cannot be installed: no wheel for Python 3",
        403: "the package 'tiny' cannot be installed: the index refuses: 403 Client Error: Forbidden",
    },
    "/files/tiny-1.0-py3-none-any.whl": {
        404: "'tiny' cannot be installed: the index names a file that it does not give: HTTP 404",
    },
    "/simple/needed/": {404: "'needed' cannot be installed: no wheel (needed by tiny)"},
}


@pytest.mark.parametrize("path", REFUSALS)
def test_what_an_index_refuses_names_the_package_and_the_reason(
    cache, index, http_index, target, path
):
    index.wheel("tiny", needs=("needed",))
    for status, words in REFUSALS[path].items():
        http_index.refusals[path] = status
        with pytest.raises(PackageError, match=re.escape(words)):
            ensure(["tiny"], target)


@pytest.mark.long
def test_an_https_index_that_is_not_trusted_is_said_in_words(
    cache, index, https_index, target, monkeypatch
):
    index.wheel("tiny")
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", https_index.url)
    ensure(["tiny"], target).close()  # SSL_CERT_FILE has its authority
    monkeypatch.setenv("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt")
    monkeypatch.setenv("ATOLL_CACHE", os.environ["ATOLL_CACHE"] + "-other")
    with pytest.raises(
        PackageError, match="'tiny' cannot be installed: the server's certificate is not"
    ):
        ensure(["tiny"], target)
