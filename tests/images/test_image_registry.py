"""Registries: a real one without and with passwords, and small ones that do odd things."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile

import pytest
from made_images import file, tar_of
from odd_registry import served

from atoll.errors import ConfigError, ImageError
from atoll.images import ConfigChanges, add_layer, find_image, get_image, store
from atoll.images.push import push_image
from atoll.images.reference import parse


def skopeo(*arguments: str) -> str:
    if shutil.which("skopeo") is None:
        pytest.skip("skopeo is not installed: apt-get install skopeo")
    env = {**os.environ, "XDG_RUNTIME_DIR": tempfile.gettempdir()}  # else only root can use it
    argv = ["skopeo", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def log_in(monkeypatch, tmp_path, host: str, **entry: str) -> None:
    folder = tmp_path / "docker"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"auths": {host: entry}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))


AUTH = base64.b64encode(b"team:secret").decode()


@pytest.mark.usefixtures("cache")
def test_an_image_pushed_by_skopeo_is_pulled_once(registry, layout):
    reference = f"{registry}/team/env:1"
    skopeo(
        "copy", "--dest-tls-verify=false", layout.image([file("a", b"hi")]), f"docker://{reference}"
    )
    held = get_image(reference)
    assert (held.image.layers[0] / "a").read_bytes() == b"hi"
    raw = skopeo("inspect", "--tls-verify=false", f"docker://{reference}")
    assert json.loads(raw)["Digest"] == held.image.digest
    by_digest = get_image(f"{registry}/team/env@{held.image.digest}", pull=False)
    again = get_image(reference, pull=False)
    assert again.image.layers == held.image.layers == by_digest.image.layers
    for hold in (held, again, by_digest):
        hold.close()


@pytest.mark.usefixtures("cache")
def test_a_tag_is_resolved_once_and_again_when_asked_to(registry, layout):
    reference = f"{registry}/team/moving:1"
    skopeo("copy", "--dest-tls-verify=false", layout.image([file("a")]), f"docker://{reference}")
    first = get_image(reference)
    skopeo("copy", "--dest-tls-verify=false", layout.image([file("b")]), f"docker://{reference}")
    assert get_image(reference).image.digest == first.image.digest
    fresh = get_image(reference, refresh=True)
    assert fresh.image.digest != first.image.digest
    assert get_image(reference).image.digest == fresh.image.digest


@pytest.mark.usefixtures("cache")
def test_a_private_registry_lets_in_who_has_logged_in(
    private_registry, layout, monkeypatch, tmp_path
):
    reference = f"{private_registry}/team/env:1"
    held = get_image(layout.image([file("a")]))
    with pytest.raises(ImageError, match=r"401 .*docker login 127\.0\.0\.1"):
        push_image(held.image, reference)
    log_in(monkeypatch, tmp_path, private_registry, auth=AUTH)
    assert push_image(held.image, reference) == held.image.digest
    seen = skopeo("inspect", "--tls-verify=false", "--creds=team:secret", f"docker://{reference}")
    assert json.loads(seen)["Digest"] == held.image.digest
    assert get_image(reference).image.digest == held.image.digest


@pytest.mark.usefixtures("cache")
def test_a_credential_helper_is_asked(private_registry, layout, monkeypatch, tmp_path):
    programs = tmp_path / "programs"
    programs.mkdir()
    helper = programs / "docker-credential-mine"
    helper.write_text(
        "#!/bin/sh\nread host\n"
        f'[ "$1 $host" = "get {private_registry}" ] || exit 1\n'
        """echo '{"Username": "team", "Secret": "secret"}'\n"""
    )
    helper.chmod(0o755)
    facts = {"credHelpers": {private_registry: "mine"}}
    (tmp_path / "docker" / "config.json").write_text(json.dumps(facts))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    held = get_image(layout.image([file("a")]))
    assert push_image(held.image, f"{private_registry}/team/helped:1") == held.image.digest


@pytest.mark.usefixtures("cache")
def test_a_layer_on_top_is_pushed_and_skopeo_takes_it(registry, layout, tmp_path):
    base = get_image(layout.image([file("a")], config={"Env": ["A=1", "B=2"]}))
    (tmp_path / "layer.tar").write_bytes(tar_of([file("new"), file(".wh.a")]))
    changes = ConfigChanges(env=("B=3",), workdir="/srv", command=("sh",), labels={"by": "me"})
    made = add_layer(base.image, tmp_path / "layer.tar", changes, "team/env:with-data")
    assert made.image.config.env == ("A=1", "B=3")
    assert (made.image.config.workdir, made.image.config.labels) == ("/srv", {"by": "me"})
    found = find_image("team/env:with-data")
    assert found is not None
    assert found.image.digest == made.image.digest
    push_image(made.image, f"{registry}/team/with-data:1")
    copied = tmp_path / "copied"
    source = f"docker://{registry}/team/with-data:1"
    skopeo("copy", "--src-tls-verify=false", source, f"oci:{copied}:x")
    assert get_image(f"oci:{copied}:x").image.digest == made.image.digest
    base.close()


@pytest.mark.usefixtures("cache")
def test_archives_of_skopeo_are_read(layout, tmp_path):
    plain = layout.image([file("a", b"hi")], [file("b")])
    for kind, tail in (("oci-archive", ""), ("docker-archive", ":team/env:1")):
        path = tmp_path / f"{kind}.tar"
        skopeo("copy", plain, f"{kind}:{path}{tail}")
        held = get_image(f"{kind}:{path}")
        assert (held.image.layers[0] / "a").read_bytes() == b"hi"
        assert len(held.image.layers) == 2


def test_a_token_is_asked_for_and_stays_at_home(odd, monkeypatch, tmp_path):
    with served(odd) as host, served(odd) as elsewhere:
        odd.redirect_to = f"http://{elsewhere}"
        log_in(monkeypatch, tmp_path, host, auth=AUTH)
        assert get_image(f"{host}/team/env:1").image.digest == f"sha256:{odd.manifest}"
        abroad = [headers for at, _, headers in odd.asked if at == elsewhere]
        assert len(abroad) == 2
        assert not [headers for headers in abroad if "Authorization" in headers]
        tokens = [h["Authorization"] for at, path, h in odd.asked if path.startswith("/token")]
        assert set(tokens) == {f"Basic {AUTH}"}


def test_a_redirect_to_plain_http_elsewhere_is_refused(odd):
    with served(odd) as host:
        odd.redirect_to = "http://169.254.169.254"
        with pytest.raises(ImageError, match="which is not https"):
            get_image(f"{host}/team/env:1")


def test_a_broken_download_is_resumed(odd):
    odd.cut = 15_000
    with served(odd) as host:
        held = get_image(f"{host}/team/env:1")
    assert held.image.digest == f"sha256:{odd.manifest}"
    ranges = [headers["Range"] for _, _, headers in odd.asked if "Range" in headers]
    assert ranges == ["bytes=15000-"]


def test_a_blob_of_another_digest_is_not_kept(odd, cache):
    odd.spoil = True
    with served(odd) as host:
        with pytest.raises(ImageError, match="is damaged"):
            get_image(f"{host}/team/env:1")
        assert not list((cache / "images" / "blobs").glob("*.part"))
        odd.spoil = False
        get_image(f"{host}/team/env:1").close()


def test_a_mirror_is_asked_first_and_the_registry_if_it_fails(odd, monkeypatch):
    with served(odd) as host, served(odd) as mirror:
        monkeypatch.setenv("ATOLL_REGISTRY_MIRRORS", f"{host}={mirror}")
        get_image(f"{host}/team/env:1").close()
        assert {at for at, _, _ in odd.asked} == {mirror}
        monkeypatch.setenv("ATOLL_REGISTRY_MIRRORS", f"{host}=127.0.0.1:1")
        get_image(f"{host}/team/env:1", refresh=True).close()
        assert {at for at, _, _ in odd.asked} == {mirror, host}


@pytest.mark.usefixtures("cache")
def test_an_unknown_image_without_pulling_says_what_to_type():
    with pytest.raises(ImageError, match=r"Type: atoll image pull python:3\.12-slim"):
        get_image("python:3.12-slim", pull=False)


def test_references_are_completed():
    digest = "sha256:" + "0" * 64
    assert str(parse("python")) == "docker.io/library/python:latest"
    assert str(parse("python:3.12-slim")) == "docker.io/library/python:3.12-slim"
    assert str(parse("team/env")) == "docker.io/team/env:latest"
    assert str(parse("localhost/env:1")) == "localhost/env:1"
    assert str(parse("host:5000/team/env:tag")) == "host:5000/team/env:tag"
    assert str(parse(f"quay.io/a/b@{digest}")) == f"quay.io/a/b@{digest}"
    assert str(parse(f"a/b:t@{digest}")) == f"docker.io/a/b:t@{digest}"


@pytest.mark.parametrize(
    "text",
    ["", "A", "a b", "../x", "a//b", "a:", "a@sha256:1", "-x", "host:99999999/a", "a\nb", "oci:"],
)
def test_a_malformed_reference_is_refused(text):
    with pytest.raises(ConfigError):
        parse(text)


@pytest.mark.usefixtures("cache")
def test_an_image_in_use_is_not_removed_and_an_unused_one_is_evicted(layout, monkeypatch):
    first = get_image(layout.image([file("a", os.urandom(1 << 20))]))
    assert not store.remove(first.image.digest)
    again = first.again()
    first.close()
    assert not store.remove(first.image.digest)
    again.close()
    monkeypatch.setenv("ATOLL_IMAGES_MB", "3")
    second = get_image(layout.image([file("b", os.urandom(1 << 20))]))
    assert [record.digest for record in store.everything()] == [second.image.digest]
    assert len(os.listdir(store.root() / "layers")) == 1
