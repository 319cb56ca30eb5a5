"""The suite that deepagents' makers have for sandboxes, on the backends that have a shell."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from deepagents.backends.protocol import ExecuteResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox
from langchain_tests.integration_tests import SandboxIntegrationTests

from atoll.integrations.deepagents import AtollSandbox

OVERWRITES = "since deepagents 0.7 write() overwrites; the suite wants an error"
ABSOLUTE = "since deepagents 0.7 glob() gives absolute paths; the suite wants relative ones"
FILES_ONLY = "since deepagents 0.7 glob() gives files alone; the suite wants folders too"
DISAGREEMENTS = {
    "test_write_existing_file_fails": OVERWRITES,
    "test_glob": ABSOLUTE,
    "test_glob_basic_pattern": ABSOLUTE,
    "test_glob_hidden_files_explicitly": ABSOLUTE,
    "test_glob_with_character_class": ABSOLUTE,
    "test_glob_with_question_mark": ABSOLUTE,
    "test_glob_with_directories": FILES_ONLY,
}
"""Tests of the suite that deepagents itself fails: none of them is about a sandbox."""
IS_NEWER = tuple(int(part) for part in version("deepagents").split(".")[:2]) >= (0, 7)


class Suite(SandboxIntegrationTests):
    """As it is, but for a fixture of a class's scope that pytest would not have as a method."""

    __test__ = False

    @pytest.fixture(scope="class")
    @classmethod
    def sandbox_backend(cls, sandbox):
        return sandbox

    @pytest.fixture(autouse=True)
    def disagreement(self, request):
        """A suite that agrees again is noticed: these must fail."""
        if IS_NEWER and (reason := DISAGREEMENTS.get(request.node.name)):
            mark = pytest.mark.xfail(strict=True, raises=AssertionError, reason=reason)
            request.applymarker(mark)


class TestNative(Suite):
    __test__ = True

    @pytest.fixture(scope="class")
    @classmethod
    def sandbox(cls) -> Iterator[AtollSandbox]:
        with AtollSandbox(backend="native") as sandbox:
            yield sandbox


class TestDaemon(Suite):
    __test__ = True

    @pytest.fixture(scope="class")
    @classmethod
    def sandbox(cls, own_daemon) -> Iterator[AtollSandbox]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ATOLL_DAEMON_SOCKET", str(own_daemon.start()))
            sandbox = AtollSandbox(backend="daemon")
        with sandbox:
            yield sandbox


class Bare(BaseSandbox):
    """deepagents' own base class on this machine's shell: nothing of Atoll's is in it."""

    id = "bare"

    def execute(self, command, *, timeout=None):
        path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
        done = subprocess.run(
            ["sh", "-c", command], capture_output=True, text=True, env={"PATH": path}
        )
        return ExecuteResponse(output=done.stdout + done.stderr, exit_code=done.returncode)

    def upload_files(self, files):
        for path, data in files:
            Path(path).write_bytes(data)
        return [FileUploadResponse(path=path) for path, _ in files]

    def download_files(self, paths):
        raise NotImplementedError


@pytest.mark.parametrize("name", sorted(DISAGREEMENTS))
def test_where_the_suite_disagrees_it_is_with_deepagents_itself(name, tmp_path):
    run = getattr(Suite(), name)
    if not IS_NEWER:
        run(Bare(), str(tmp_path))
        return
    with pytest.raises(AssertionError):
        run(Bare(), str(tmp_path))


def test_without_a_disagreement_the_bare_sandbox_passes(tmp_path):
    Suite().test_grep_basic_search(Bare(), str(tmp_path))
