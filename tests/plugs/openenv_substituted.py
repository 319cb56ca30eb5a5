"""A plugin of pytest: OpenEnv's own tests, with sandboxes in the place of Docker and smolagents.

The image `echo-env` is the checkout's echo_env with this interpreter's packages.
"""

import importlib
import os
import sys

import pytest
from openenv.core.containers import runtime

from atoll.integrations import openenv

CHECKOUT = os.environ["ATOLL_JUDGE_SOURCE"]
sys.path[:0] = [CHECKOUT, os.path.join(CHECKOUT, "envs")]
COMMAND = "python3 -m uvicorn envs.echo_env.server.app:app --host 127.0.0.1 --port 8000".split()


class InsteadOfDocker(openenv.AtollContainerProvider):
    _container_id = _container_name = None

    def __init__(self):
        policy = {"mounts": [(CHECKOUT, "/srv/code")], "env": {"PYTHONPATH": "/srv/code"}}
        super().__init__(command=COMMAND, python=sys.executable, policy=policy, image="host")


def pytest_configure(config):
    runtime.LocalDockerProvider = InsteadOfDocker
    for name, executor in (("coding_env", "PyExecutor"), ("repl_env", "PythonExecutor")):
        for parent in (f"envs.{name}", name):
            try:
                module = importlib.import_module(f"{parent}.server.python_executor")
            except ImportError:
                continue
            _replace(getattr(module, executor), getattr(openenv, executor))


def _replace(theirs, ours):
    """Put a class in the place of another wherever a module has imported it."""
    for module in [*sys.modules.values()]:
        for name, value in [*getattr(module, "__dict__", {}).items()]:
            if value is theirs:
                setattr(module, name, ours)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """Have a test that returns False, as those of the provider do, fail."""
    returned = []
    made = pyfuncitem.obj

    def call(*args, **kwargs):
        returned.append(made(*args, **kwargs))

    if "provider" in pyfuncitem.nodeid:
        pyfuncitem.obj = call
    result = yield
    assert False not in returned, "the test caught its own failure, and returned False"
    return result
