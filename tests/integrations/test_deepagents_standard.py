"""The suite that deepagents' makers have for sandboxes, on the rings that have a shell."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from langchain_tests.integration_tests import SandboxIntegrationTests

from atoll.integrations.deepagents import AtollSandbox


class Suite(SandboxIntegrationTests):
    """Its fixture of a class's scope is a method there, which newer pytests warn of."""

    __test__ = False

    @pytest.fixture(scope="class")
    @classmethod
    def sandbox_backend(cls, sandbox):
        return sandbox


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
