"""`atoll env` and `--package`: what people type, and what they are told."""

from __future__ import annotations

import json

import pytest

from atoll.cli.arguments import parse
from atoll.cli.commands import repl_server
from atoll.cli.main import main
from atoll.config import SandboxConfig
from atoll.errors import ConfigError
from atoll.hosting.pool import Pool, PoolSettings
from atoll.packages import environment, store
from atoll.replserver import executor


@pytest.fixture
def atoll(monkeypatch, capfd):
    """Run `atoll` in this process: exit code, stdout, stderr."""
    monkeypatch.setenv("ATOLL_BACKEND", "native")

    def call(*argv: str) -> tuple[int, str, str]:
        return main(argv), *capfd.readouterr()

    return call


def test_an_environment_is_made_listed_shown_used_and_removed(atoll, cache, index, without_pip):
    index.wheel("tiny")
    code, out, err = atoll("env", "create", "data", "--package", "tiny")
    assert code == 0
    assert out.startswith("tiny==1.0  sha256:")
    assert "data is ready: 0.0 MB, Python 3." in err
    code, out, _ = atoll("env", "list")
    assert out.splitlines()[1].split()[0] == "data"
    assert "just now" in out
    assert out.rstrip().endswith("tiny")
    (facts,) = json.loads(atoll("env", "list", "--json")[1])
    assert facts["names"] == ["data"]
    code, out, _ = atoll("env", "show", "data")
    assert f"environment  {facts['hash']}  (data)" in out
    code, out, err = atoll("run", "--package", "@data", "-c", "import tiny; print(tiny.version)")
    assert (code, out, err) == (0, "1.0\n", "")
    (one,) = store.everything()
    hold = store.hold(one.hash)
    assert atoll("env", "remove", one.hash[:8])[0] == 1
    hold.close()
    assert atoll("env", "remove", "data")[0] == 0
    assert (store.everything(), environment.names()) == ([], {})
    assert "no environments" in atoll("env", "list")[2]


def test_mistakes_are_answered_in_one_line(atoll, cache):
    assert (
        atoll("env", "create", "data")[2] == "atoll: name at least one package: --package polars\n"
    )
    code, _, err = atoll("run", "--package=-rfile", "-c", "1")
    assert (code, "options of pip are not taken" in err) == (2, True)
    code, _, err = atoll("run", "--package=./tiny.whl", "-c", "1")
    assert (code, err.startswith("atoll: './tiny.whl' is not a package by name")) == (2, True)
    assert "no environment 'lost': there are none" in atoll("env", "show", "lost")[2]
    assert "no environment is named 'lost'" in atoll("run", "--package", "@lost", "-c", "1")[2]
    assert "cannot name an environment" in atoll("env", "create", "A B", "--package", "x")[2]


def test_ask_gives_packages_and_hosts_to_its_sandboxes(atoll, monkeypatch, tmp_path):
    given = {}

    def stop(_model, **settings):
        given.update(settings)
        raise ConfigError("it was asked for")

    monkeypatch.setattr("atoll.cli.commands.ask.RLM", stop)
    model = f"replay/{tmp_path}/record.jsonl"
    (tmp_path / "record.jsonl").touch()
    named = ("--package", "tiny", "--allow-source", "--allow-host", "api.test:443")
    code, _, err = atoll("ask", "why?", "--context", __file__, "--model", model, *named)
    assert (code, "it was asked for" in err) == (2, True), err
    assert (given["packages"], given["allow_source"]) == (["tiny"], True)
    assert given["network"].allow == ("api.test:443",)


async def test_a_repl_server_builds_packages_at_its_start(cache, index, without_pip):
    index.wheel("tiny")
    config = SandboxConfig(packages=["tiny"], allow_source=True)
    options = executor.arguments(config)
    args = parse(["repl-server", *options])
    assert (args.packages, args.allow_source) == (["tiny"], True)
    async with Pool(PoolSettings(tiers={"bare": ()})) as pool:
        await repl_server._warm_up(pool, config)
        result = await pool.run("import tiny; print(tiny.version)", config)
        assert (result.stdout, result.cold_start) == ("1.0\n", None)
