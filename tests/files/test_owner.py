"""A host that is root is a folder's owner towards files, in one thread, and itself again after."""

from __future__ import annotations

import os
import threading

import pytest

from atoll.files import folder as owner

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@pytest.fixture
def folder(tmp_path):
    os.chown(tmp_path, 12345, 12345)
    tmp_path.parent.chmod(0o755)
    fd = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def test_files_of_roots_groups_are_closed_and_new_ones_are_the_owners(folder, tmp_path):
    (secret := tmp_path / "secret").write_text("root's")
    os.chown(secret, 0, 0)
    secret.chmod(0o640)
    made = tmp_path / "made"
    before = os.getgroups()
    seen = []

    def work():
        with owner.acting_as_owner(folder):
            with pytest.raises(PermissionError):
                os.open("secret", os.O_RDONLY, dir_fd=folder)
            os.close(os.open("made", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
            seen.append(os.getgroups())
        seen.append((os.getgroups(), secret.read_text()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert (made.stat().st_uid, made.stat().st_gid) == (12345, 12345)
    assert seen == [[], (before, "root's")]


def test_other_threads_stay_who_they_are(folder, tmp_path):
    act, acted = threading.Event(), threading.Event()

    def work():
        with owner.acting_as_owner(folder):
            acted.set()
            act.wait(10)

    groups = os.getgroups()
    thread = threading.Thread(target=work)
    thread.start()
    acted.wait(10)
    (tmp_path / "ours").touch()
    assert ((tmp_path / "ours").stat().st_uid, os.getgroups()) == (0, groups)
    act.set()
    thread.join()
