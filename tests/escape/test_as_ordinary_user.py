"""Attacks again, as a user who is not root: other walls stand there than with root's rights.

A sample of them; all with `--matrix all`, or if an ordinary user runs the tests (test_attacks.py).
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from importlib.metadata import distribution as distribution_of
from pathlib import Path

import cloudpickle
import corpus
import pytest
import usable
import variants
from ordinary_user import SOURCE, USER, python_for_user, run_as_user

from atoll.backends import registry
from atoll.backends.pyodide import deno, distribution, image
from atoll.backends.wasm import build

PARTS = {"native": 12, "gvisor": 24, "daemon": 12, "wasm": 2, "pyodide": 2, "restricted": 3}
PARTS |= {"native-image": 12, "daemon-image": 12}
"""How many processes run all the attacks on a backend."""
SAMPLE = {"native": "1/1", "wasm": "1/1", "restricted": "1/1"}
"""The part of the sample that is run. tests/gvisor starts gVisor as an ordinary user, and tests/pool
the zygotes that the daemon's guests come from; a start of Deno costs more than all of `native`, whose jail
it is in."""
HARNESS = corpus.HERE / "harness.py"

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="all tests run as an ordinary user already"
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    whole = metafunc.config.getoption("matrix") == "all"
    cases = list(_parts()) if whole else list(SAMPLE.items())
    wanted = os.environ.get("ATOLL_TEST_BACKENDS")
    cases = [
        case
        for case in cases
        if wanted is None or variants.backend_of(case[0]) in wanted.split(",")
    ]
    metafunc.parametrize(("backend", "part"), cases)


def _parts() -> Iterator[tuple[str, str]]:
    for backend in (*filter(corpus.LAYERS.get, registry.names()), *variants.IN_IMAGE):
        for part in range(1, PARTS[backend] + 1):
            yield backend, f"{part}/{PARTS[backend]}"


def test_attacks_do_not_get_through_as_ordinary_user(
    backend: str, part: str, pytestconfig: pytest.Config
) -> None:
    usable.skip_if_missing(variants.backend_of(backend))
    whole = pytestconfig.getoption("matrix") == "all"
    arguments = [str(HARNESS), "--backend", backend, "--json", "--part", part]
    own = {"pyodide": _pyodide, "wasm": _wasm} | dict.fromkeys(variants.IN_IMAGE, _image_store)
    more = {**_plain(), **own.get(backend, dict)()}
    done = run_as_user(python_for_user(), *arguments, *([] if whole else ["--sample"]), **more)
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    through = [f"{one['id']}: {one['failures']}" for one in verdicts if one["failures"]]
    assert not through, "\n".join(through)
    assert len(verdicts) == _expected(backend, part, whole=whole), done.stderr[-2000:]


@functools.cache
def _plain() -> dict[str, str]:
    """cloudpickle in a place that the user may read: states are saved and restored too."""
    folder = Path(tempfile.mkdtemp(prefix="atoll-libraries-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)
    shutil.copytree(Path(cloudpickle.__file__).parent, folder / "cloudpickle")
    return {
        "PYTHONPATH": f"{SOURCE}:{folder}",
        "ATOLL_STATE_KEY": "a key for the attacks alone",
    }


@functools.cache
def _image_store() -> dict[str, str]:
    """A folder of the user's for the image that the harness makes."""
    folder = tempfile.mkdtemp(prefix="atoll-images-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.chown(folder, USER, USER)
    return {"ATOLL_CACHE": folder}


@functools.cache
def _pyodide() -> dict[str, str]:
    """Deno, Pyodide and its image in places that are the user's."""
    folder = Path(tempfile.mkdtemp(prefix="atoll-pyodide-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shutil.copy(deno.find().path, folder / "deno")
    cache = folder / "cache" / "pyodide"
    shutil.copytree(distribution.setup().folder, cache / distribution.VERSION)
    shutil.copy(image.find(distribution.setup(), deno.find()), cache)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, USER, USER)
    return {"PATH": f"{folder}:/usr/bin:/bin", "ATOLL_CACHE": str(folder / "cache")}


@functools.cache
def _wasm() -> dict[str, str]:
    """wasmtime and the compiled component in places that are the user's."""
    folder = Path(tempfile.mkdtemp(prefix="atoll-wasm-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in ("wasmtime", "componentize-py", "cloudpickle"):
        for file in distribution_of(name).files or ():
            if ".." not in file.parts and file.parts[0] != "componentize_py":
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file.locate(), folder / file)
    built = build.find()
    assert built is not None
    shutil.copytree(built.folder, folder / "cache" / "wasm" / built.folder.name)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, USER, USER)
    return {"PYTHONPATH": f"{SOURCE}:{folder}", "ATOLL_CACHE": str(folder / "cache")}


def _expected(backend: str, part: str, *, whole: bool) -> int:
    """How many entries a part has: none may be lost without a verdict."""
    found = corpus.for_backend(variants.backend_of(backend))
    number, of = map(int, part.split("/"))
    return len((found if whole else corpus.sample(found))[number - 1 :: of])
