"""Shared by the tests of retrieval: folders of sources, retrievers that are always closed."""

from __future__ import annotations

import pytest

from atoll.agent.retrieval import Retriever
from atoll.agent.retrieval.parsing import Parser, private_folder
from atoll.config import cache_folder


@pytest.fixture(autouse=True)
def grammars_of_the_tests(monkeypatch):
    """Where the parsing process has them too, so that they are unpacked once."""
    folder = private_folder(cache_folder() / "grammars")
    monkeypatch.setenv("SEMBLE_GRAMMARS_CACHE_DIR", str(folder))


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "sources"
    path.mkdir()
    return path


@pytest.fixture
def retriever(folder, tmp_path):
    """Makes retrievers of the folder, whose index is in a folder of the test's own."""
    made = []

    def make(root=folder, **options):
        options = {"cache": tmp_path / "cache", "mode": "fts", "fresh_seconds": 0, **options}
        made.append(Retriever(root, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def parsed(monkeypatch):
    """The paths that were cut into units, in order."""
    paths, units = [], Parser.units

    def counted(self, path, text):
        paths.append(path)
        return units(self, path, text)

    monkeypatch.setattr(Parser, "units", counted)
    return paths
