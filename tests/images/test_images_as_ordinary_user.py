"""Images for a user who is not root and has no range of ids: pulled, unpacked, shared, removed."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from made_images import Layout, file, folder, hard, link
from ordinary_user import USER, python_for_user, run_as_user

PROGRAM = """
import os, stat, sys
from atoll.images import get_image, store
held = get_image(sys.argv[1])
top = held.image.layers[-1]
print("owner", os.stat(top / "usr/lib/new").st_uid, stat.S_ISCHR(os.lstat(top / "etc/x").st_mode))
print("copied", (top / "root/copy").read_text(), held.image.owners()[0]["root/secret"].uid)
print("mode", oct(stat.S_IMODE(os.stat(store.root()).st_mode)))
held.close()
print("removed", store.remove(held.image.digest), store.collect() > 0, os.listdir(store.root() / "layers"))
"""

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="all tests run as an ordinary user already"
)
LAYERS = (
    [
        folder("root", mode=0o700),
        file("root/secret", b"text", mode=0o600, uid=7),
        folder("usr/lib"),
        link("lib", "usr/lib"),
        file("etc/x"),
    ],
    [file("lib/new"), file("etc/.wh.x"), hard("root/copy", "root/secret")],
)
SAID = f"""\
owner {USER} True
copied text 7
mode 0o700
removed True True []
"""


def test_an_ordinary_user_unpacks_an_image():
    shared = Path(tempfile.mkdtemp(prefix="atoll-user-"))
    try:
        shared.chmod(0o755)
        (shared / "cache").mkdir()
        os.chown(shared / "cache", USER, USER)
        reference = Layout(shared / "layout").image(*LAYERS)
        command = (python_for_user(), "-c", PROGRAM, reference)
        done = run_as_user(*command, ATOLL_CACHE=str(shared / "cache"), timeout=60)
        assert (done.stdout, done.stderr) == (SAID, "")
    finally:
        shutil.rmtree(shared)
