"""Changes of a session as a layer, without a session: what an upper layer means, and where it goes."""

from __future__ import annotations

import contextlib
import os

import pytest
from made_images import file, folder

from atoll.errors import ImageError
from atoll.images import get_image, store
from atoll.images.changes import Changes
from atoll.images.snapshot import commit_changes
from atoll.sandbox.verbs import Commit

LAYER = [folder("etc"), file("etc/a"), folder("srv"), file("srv/old", uid=7, gid=8)]


def commit(base, upper, **fields):
    """Commit the folder `upper` as what a session has changed."""
    fd = os.open(upper, os.O_PATH)
    try:
        changes = Changes(upper=fd, folders={})
        request = Commit(**{"target": "team/new:1", **fields})
        return commit_changes(base.image, changes, request, 1 << 20, contextlib.nullcontext())
    finally:
        os.close(fd)


@pytest.fixture
def base(cache, layout):
    held = get_image(layout.image(LAYER))
    yield held
    held.close()


@pytest.fixture
def upper(tmp_path):
    made = tmp_path / "upper"
    (made / "srv").mkdir(parents=True)
    (made / "srv/old").write_text("changed")
    return made


def test_owners_of_changed_files_stay_and_new_ones_are_roots(base, upper):
    (upper / "srv/new").write_text("new")
    commit(base, upper)
    held = get_image("team/new:1", pull=False)
    owners = held.image.owners()[-1]
    assert (owners["srv/old"].uid, owners["srv/old"].gid) == (7, 8)
    assert "srv/new" not in owners or owners["srv/new"].uid == 0
    held.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device")
def test_whiteouts_delete_and_other_devices_are_left_out(base, upper):
    os.mknod(upper / "etc", 0o20000, 0)
    os.mknod(upper / "srv/null", 0o20666, os.makedev(1, 3))
    os.mknod(upper / "srv/disk", 0o60666, os.makedev(8, 0))
    made = commit(base, upper)
    assert made.left_out == {"devices and sockets": 2}
    held = get_image("team/new:1", pull=False)
    top = held.image.layers[-1]
    assert sorted(os.listdir(top)) == ["etc", "srv"]
    assert os.lstat(top / "etc").st_rdev == 0
    assert os.listdir(top / "srv") == ["old"]
    held.close()


def test_an_image_is_pushed_and_pulled_from_a_registry(base, upper, registry):
    target = f"{registry}/team/new:1"
    made = commit(base, upper, target=target, push=True, compression="zstd")
    store.forget_name(target)
    assert store.remove(made.digest)
    held = get_image(target)
    assert held.image.digest == made.digest
    assert (held.image.layers[-1] / "srv/old").read_text() == "changed"
    held.close()


def test_a_folder_of_other_files_is_not_made_a_layout(base, upper, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    with pytest.raises(ImageError, match="is not an OCI layout"):
        commit(base, upper, target=f"oci:{tmp_path}/full")
    assert os.listdir(tmp_path / "full") == ["file"]


def test_a_commit_that_fails_leaves_nothing(base, upper, cache):
    before = sorted(os.listdir(cache / "images/blobs"))
    with (upper / "srv/hole").open("wb") as made:
        made.truncate(1 << 30)
    with pytest.raises(ImageError, match="holes in files count"):
        commit(base, upper)
    assert sorted(os.listdir(cache / "images/blobs")) == before
    assert os.listdir(cache / "images/building") == []
