"""A jail whose root is an image's layers: what it shows, what it keeps from an image."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.jail.supervisor.spec import Bind, ImageRoot, JailSpec, Limits
from atoll.launch.guest_handle import request_guest
from atoll.packages.jailed import read_output

MIB = 1 << 20
LIMITS = Limits(memory=512 * MIB, processes=32, disk=32 * MIB, file_size=None, open_files=256)
ENV = {"PATH": "/usr/bin:/bin", "HOME": "/home/guest"}
LINKED = ("proc", "dev", "tmp", "app", "home", "mnt", "opt", ".box")
"""Names at the top of a root where a jail mounts something."""


def run(code: str, *layers: Path, writable: bool = False, binds: tuple[Bind, ...] = ()) -> str:
    """Run Python code in a jail; return what it printed, or its error."""
    root = ImageRoot(layers=tuple(map(str, layers)), writable=writable)
    argv = ("python3", "-I", "-B", "-c", code)
    spec = JailSpec(
        jailed=True, argv=argv, env=ENV, binds=binds, workspace=None, limits=LIMITS, root=root
    )
    process = request_guest(spec)
    try:
        output, errors = read_output(process, 60, MIB)
    finally:
        process.close()
    return (output + errors).decode().strip()


@pytest.fixture
def top(tmp_path: Path) -> Iterator[Path]:
    """Return an empty layer to put on top of an image."""
    folder = tmp_path / "top"
    folder.mkdir(mode=0o755)
    return folder


def test_image_files_are_the_root_and_the_hosts_are_not(layer: Path) -> None:
    code = "import os; print(open('/etc/os-release').read().splitlines()[1], os.path.exists('/usr/sbin'))"
    assert run(code, layer) == "ID=test False"


def test_guest_owns_files_that_only_an_images_root_may_read(layer: Path) -> None:
    assert run("print(open('/root/secret').read())", layer) == "of the image"


def test_root_is_read_only_unless_it_is_to_be_writable(layer: Path) -> None:
    code = "open('/usr/new', 'w').write('x'); print(open('/usr/new').read())"
    assert "Read-only file system" in run(code, layer)
    assert run(code, layer, writable=True) == "x"
    assert not (layer / "usr/new").exists()


def test_changes_of_a_writable_root_count_as_disk(layer: Path) -> None:
    code = (
        "import os\n"
        "os.remove('/etc/os-release'); print(os.path.exists('/etc/os-release'))\n"
        "open('/var/data/big', 'wb').write(bytes(64 << 20))"
    )
    said = run(code, layer, writable=True)
    assert said.startswith("False")
    assert "No space left on device" in said
    assert (layer / "etc/os-release").exists()


def test_upper_layers_hide_lower_ones(layer: Path, top: Path) -> None:
    (top / "etc").mkdir()
    (top / "etc/os-release").write_text("of the upper layer")
    assert run("print(open('/etc/os-release').read())", layer, top) == "of the upper layer"


def test_guest_has_a_name_beside_the_images_users(layer: Path) -> None:
    code = "import pwd, os; print(pwd.getpwuid(os.getuid()).pw_name, pwd.getpwnam('worker').pw_uid)"
    assert run(code, layer) == "guest 999"


@pytest.mark.parametrize("name", LINKED)
def test_link_at_a_mount_point_leads_nowhere(
    layer: Path, top: Path, tmp_path: Path, name: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o777)
    outside.chmod(0o777)
    (top / name).symlink_to(outside)
    source = tmp_path / "source"
    source.mkdir()
    (source / "seen").write_text("seen")
    bind = Bind(source=str(source), target="/opt/deep/folder")
    code = (
        "import os; print(open('/opt/deep/folder/seen').read(), os.path.isdir('/proc/self'),"
        f" os.path.islink('/' + {name!r}))"
    )
    assert run(code, layer, top, binds=(bind,)) == "seen True False"
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("inside", ["etc", "dev/null", "etc/passwd", "etc/group", "opt/deep"])
def test_link_on_the_way_to_a_mount_point_leads_nowhere(
    layer: Path, top: Path, tmp_path: Path, inside: str
) -> None:
    outside = tmp_path / "outside"
    if "/" in inside and "deep" not in inside:
        outside.write_text("root:x:0:0::/:/bin/sh\n")
    else:
        outside.mkdir(mode=0o777)
    before = outside.stat()
    (top / inside).parent.mkdir(parents=True, exist_ok=True)
    (top / inside).symlink_to(outside)
    bind = Bind(source=str(layer), target="/opt/deep/folder")
    assert run("print(len(open('/dev/null').read()))", layer, top, binds=(bind,)) == "0"
    after = outside.stat()
    assert (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size)
    assert stat.S_ISREG(after.st_mode) or list(outside.iterdir()) == []


def test_users_in_a_pipe_or_a_huge_file_are_left_alone(layer: Path, top: Path) -> None:
    (top / "etc").mkdir()
    os.mkfifo(top / "etc/passwd")
    with open(top / "etc/group", "wb") as file:
        file.truncate(1 << 30)
    assert run("print('started')", layer, top) == "started"


def test_set_user_bits_and_devices_of_an_image_have_no_effect(layer: Path, top: Path) -> None:
    (top / "srv").mkdir()
    (top / "srv/program").write_text("#!/bin/sh\nid -u")
    (top / "srv/program").chmod(0o4755)
    checks = ["import os, subprocess; print(subprocess.check_output('/srv/program').strip())"]
    if os.geteuid() == 0:
        os.mknod(top / "srv/zero", 0o666 | stat.S_IFCHR, os.makedev(1, 5))
        checks.append("open('/srv/zero', 'rb').read(1)")
    said = run("\n".join(checks), layer, top)
    assert said.startswith("b'1000'")
    assert len(checks) == 1 or "Permission denied" in said


def test_program_that_the_image_lacks_is_named(layer: Path) -> None:
    root = ImageRoot(layers=(str(layer),))
    spec = JailSpec(
        jailed=True, argv=("perl",), env=ENV, binds=(), workspace=None, limits=LIMITS, root=root
    )
    process = request_guest(spec)
    try:
        assert read_output(process, 60, MIB) == (b"", b"")
    finally:
        process.close()
