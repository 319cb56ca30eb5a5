"""`atoll image`: what people type, and what they are told."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from made_images import Layout, file

from atoll.cli.main import main
from atoll.images import find_image, get_image

DIGEST = "sha256:"


@pytest.fixture
def atoll(cache, capfd):
    """Run `atoll` in this process: exit code, stdout, stderr."""

    def call(*argv: str) -> tuple[int, str, str]:
        return main(argv), *capfd.readouterr()

    return call


def test_an_image_is_pulled_listed_shown_and_removed(atoll, layout):
    config = {"Env": ["A=1"], "WorkingDir": "/srv", "User": "7", "Cmd": ["sh", "\x1b[2J"]}
    reference = layout.image([file("a")], [file("b")], config=config)
    code, said, told = atoll("image", "pull", reference, "--tag", "team/env:1")
    digest = said.strip()
    assert (code, digest[:7]) == (0, DIGEST)
    assert told == "atoll: team/env:1 is ready: 0.0 MB, 2 layers\n"
    code, said, _ = atoll("image", "list")
    assert "team/env:1 " in said
    assert digest[7:19] in said
    code, said, _ = atoll("image", "list", "--json")
    (facts,) = json.loads(said)
    assert (facts["digest"], len(facts["layers"])) == (digest, 2)
    assert "team/env:1" in facts["names"]
    code, said, _ = atoll("image", "show", digest[7:15])
    assert 'env         ["A=1"]' in said
    assert "workdir     /srv" in said
    assert "\x1b" not in said
    code, said, _ = atoll("image", "show", "team/env:1", "--json")
    assert json.loads(said)["user"] == "7"
    assert atoll("image", "remove", "team/env:1")[0] == 0
    assert find_image("team/env:1") is None
    assert atoll("image", "remove", digest)[0] == 0
    assert atoll("image", "list")[1:] == (
        "",
        "atoll: no images. Type: atoll image pull python:3.12-slim\n",
    )


def test_an_image_in_use_is_kept(atoll, layout):
    held = get_image(layout.image([file("a")]))
    code, _, told = atoll("image", "remove", held.image.digest)
    assert (code, "is in use: it was not removed" in told) == (1, True)
    assert atoll("image", "prune", "--all")[0] == 0
    assert held.image.layers[0].exists()
    held.close()
    assert atoll("image", "prune", "--all")[0] == 0
    assert not held.image.layers[0].exists()


def test_images_without_a_name_are_pruned(atoll, layout, cache):
    atoll("image", "pull", layout.image([file("a")]))
    atoll("image", "pull", layout.image([file("b")]))  # takes the name of the folder
    assert len(os.listdir(cache / "images" / "layers")) == 2
    assert atoll("image", "prune")[0] == 0
    assert len(os.listdir(cache / "images" / "layers")) == 1


def test_an_image_is_pushed(atoll, layout, registry):
    atoll("image", "pull", layout.image([file("a")]), "--tag", f"{registry}/team/cli:1")
    code, digest, _ = atoll("image", "push", f"{registry}/team/cli:1")
    assert code == 0
    assert atoll("image", "pull", f"{registry}/team/cli@{digest.strip()}")[1] == digest


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("pull", "A B"), "atoll: 'A B' is not an image: write it as python:3.12-slim"),
        (("pull", "oci:/nowhere"), "/nowhere/index.json does not exist. Is it an OCI layout?"),
        (("pull", "oci-archive:/nowhere"), "/nowhere does not exist"),
        (("show", "nope"), "no image 'nope' is stored. Type: atoll image list"),
        (("build", "-t", "x", "/nowhere"), "'/nowhere' is not a folder"),
        (("build", "."), "name the image: --tag team/env:1"),
    ],
)
def test_a_mistake_is_answered_in_one_line(atoll, words, answer):
    code, said, told = atoll("image", *words)
    assert code in (1, 2)
    assert said == ""
    assert answer in told
    assert told.count("\n") == 1


def test_a_dockerfile_without_an_engine_says_what_to_type(atoll, tmp_path, monkeypatch):
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, told = atoll("image", "build", "-t", "x", str(tmp_path))
    assert code != 0
    assert "Type: sudo apt-get install buildah" in told


def test_a_dockerfile_is_built_by_an_engine(atoll, tmp_path):
    if shutil.which("buildah") is None:
        pytest.skip("buildah is not installed: apt-get install buildah")
    (tmp_path / "hello").write_text("hi")
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY hello /srv/hello\nENV A=5\n")
    code, _, told = atoll("image", "build", "-t", "team/built:1", str(tmp_path))
    assert code == 0, told
    held = find_image("team/built:1")
    assert held is not None
    assert "A=5" in held.image.config.env
    assert (held.image.layers[-1] / "srv" / "hello").read_text() == "hi"
    assert json.loads(atoll("image", "list", "--json")[1])[0]["names"] == ["team/built:1"]


def test_zstd_needs_an_extra_and_is_read_with_it(atoll, tmp_path):
    zstandard = pytest.importorskip("zstandard")
    reference = Layout(tmp_path / "z").image([file("a")], pack=zstandard.compress)
    assert atoll("image", "pull", reference)[0] == 0


def test_doctor_says_what_the_store_holds(atoll, layout):
    atoll("image", "pull", layout.image([file("a")]))
    done = subprocess.run(
        [sys.executable, "-m", "atoll", "doctor", "--backend", "native"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "images      1 in 0.0 MB, at most" in done.stdout
