"""A plugin of pytest: SandboxFusion's and verl's own tests ask `atoll serve`, with the key in the URL.

SandboxFusion's tests call their server's application in their own process: they find a client of
the service in its place, and the models of the package `sandbox-fusion`. verl's package is not
installed: its folder alone is.
"""

import contextlib
import importlib.util
import os
import sys
import tempfile
import types

from serving import atoll_serve, new_key

QUOTA = ("--quota", "requests_per_second=1000", "--quota", "executions=256")
OPENED = contextlib.ExitStack()


def pytest_configure(config):
    folder = OPENED.enter_context(tempfile.TemporaryDirectory())
    url = OPENED.enter_context(atoll_serve(folder, "--max-running", "64"))
    url = url.replace("http://", f"http://{new_key(folder, *QUOTA)}:@")
    os.environ["SANDBOX_FUSION_URL"] = f"{url}/run_code"
    if importlib.util.find_spec("sandbox_fusion"):
        _substitute(url)
    else:
        _without_its_package()


def pytest_unconfigure(config):
    OPENED.close()


def _substitute(url):
    import httpx2
    from sandbox_fusion import models

    class Client(httpx2.Client):
        __test__ = False

        def __init__(self, app):
            super().__init__(base_url=url, timeout=60, trust_env=False)

    def named_as_in_pydantic_2(model):
        names = {"model_dump": model.dict, "model_dump_json": model.json}
        return type(model.__name__, (model,), names)

    names = ("RunCodeRequest", "RunCodeResponse", "RunJupyterRequest", "RunJupyterResponse")
    api = {name: named_as_in_pydantic_2(getattr(models, name)) for name in names}
    contents = {
        "fastapi": {},
        "fastapi.testclient": {"TestClient": Client},
        "sandbox": {"__path__": []},
        "sandbox.runners": {"CommandRunStatus": models.CommandRunStatus},
        "sandbox.server": {"__path__": []},
        "sandbox.server.server": {"app": None},
        "sandbox.server.sandbox_api": {"RunStatus": models.RunStatus, **api},
    }
    for name, names in contents.items():
        module = sys.modules[name] = types.ModuleType(name)
        vars(module).update(names)


def _without_its_package():
    """Have `import verl` find folders, and not run the package's own start, which needs much."""
    for name in ("verl", "verl.utils", "verl.utils.reward_score"):
        module = sys.modules[name] = types.ModuleType(name)
        module.__path__ = [os.path.join(os.getcwd(), *name.split("."))]
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
