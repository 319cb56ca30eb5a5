"""Images built without an engine: steps in jails, as a pretended root, each kept for the next build."""

from __future__ import annotations

import functools
import hashlib
import http.server
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import rootfs
from ordinary_user import USER, python_for_user, run_as_user

import atoll
from atoll.errors import ConfigError, ImageError
from atoll.images import get_image, store
from atoll.jail.supervisor.spec import ROOT, Bind, ImageRoot, check_pretence
from atoll.programs.build import BuildOptions, build_image
from atoll.programs.build_steps import Apt, Configure, Copy, Pip, Run, Step

PRETENCE = """
import ctypes, os
os.chown('/srv', 33, 44); os.setgroups([1]); os.setresuid(33, 33, 33)
open('/srv/tool', 'w').close(); os.chmod('/srv/tool', 0o4755)
print(os.getuid(), os.stat('/srv').st_uid, open('/proc/self/status').read().split('CapEff:')[1].split()[0])
libc = ctypes.CDLL(None, use_errno=True)
print([libc.mount(b'x', b'/srv', b'tmpfs', 0, None), libc.unshare(0x10000000), libc.chroot(b'/srv')])
"""


def build(base: str, *steps: Step, name: str = "team/built:1", **options: object) -> list[str]:
    """Build an image; return what was said."""
    said: list[str] = []
    build_image(base, steps, name, BuildOptions(say=said.append, **options)).close()  # type: ignore[arg-type]
    return said


def test_steps_are_layers_that_the_next_build_takes_from_the_store(
    image: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "src/inner").mkdir(parents=True)
    (tmp_path / "src/inner/code.py").write_text("answer = 42")
    (tmp_path / "src/link").symlink_to("inner/code.py")

    def steps() -> list[Step]:
        return [
            Configure((f"BUILT={tmp_path}",), "/code"),
            Copy.of(f"{tmp_path}/src:/code"),
            Run("cat inner/code.py > /srv/made; id -u; echo $BUILT > env"),
        ]

    assert "as it was built before" not in build(image, *steps())
    assert "\n0\n" in f"\n{capfd.readouterr().err}"
    first = store.named("docker.io/team/built:1")
    assert build(image, *steps()).count("as it was built before") == 3
    assert store.named("docker.io/team/built:1") == first
    with atoll.create_sandbox(backend="native", image="team/built:1") as box:
        look = "import os; open('/srv/made').read(), open('/code/env').read(), os.environ['BUILT']"
        assert box.execute(look).value == ("answer = 42", f"{tmp_path}\n", str(tmp_path))
        assert box.execute("os.readlink('/code/link')").value == "inner/code.py"
    (tmp_path / "src/inner/code.py").write_text("answer = 43")
    assert build(image, *steps()).count("as it was built before") == 1


def test_a_step_that_fails_names_nothing_and_says_that_it_had_no_network(image: str) -> None:
    with pytest.raises(
        ImageError, match=r"the step `run exit 3` failed: exit code 3.*--allow-host"
    ):
        build(image, Run("exit 3"), name="team/failed:1")
    assert store.named("docker.io/team/failed:1") is None


def test_a_pretended_root_has_no_rights_and_its_bits_are_not_kept(
    image: str, capfd: pytest.CaptureFixture[str]
) -> None:
    build(image, Run(f'python3 -c "{PRETENCE}"'), name="team/pretence:1", use_cache=False)
    lines = capfd.readouterr().err.splitlines()
    assert lines == ["0 0 0000000000000000", "[-1, -1, -1]"]
    held = get_image("team/pretence:1", pull=False)
    assert (held.image.layers[-1] / "srv/tool").stat().st_mode & 0o7777 == 0o755
    held.close()


@pytest.mark.parametrize(
    ("root", "workspace", "binds"),
    [
        (ImageRoot(layers=(), user=ROOT), None, ()),
        (ImageRoot(layers=(), writable=True, user=ROOT), "/x", ()),
        (
            ImageRoot(layers=(), writable=True, user=ROOT),
            None,
            (Bind(source="/x", target="/x", writable=True),),
        ),
    ],
)
def test_a_pretended_root_never_meets_a_writable_folder_of_the_host(
    root: ImageRoot, workspace: str | None, binds: tuple[Bind, ...]
) -> None:
    with pytest.raises(ValueError, match="pretended owners need"):
        check_pretence(root, workspace, binds)


def test_what_is_malformed_is_refused(tmp_path: Path) -> None:
    for wrong in ("a b", "$(id)", "-o=x", ""):
        with pytest.raises(ConfigError, match="not a Debian package"):
            Apt((wrong,))
    for copy in ("x", f"{tmp_path}:relative", "/nonexistent:/x", f"{tmp_path}:/a/../../b"):
        with pytest.raises(ConfigError, match="--copy"):
            Copy.of(copy)
    with pytest.raises(ConfigError, match="no requirements file"):
        Pip.of("missing.txt")
    with pytest.raises(ConfigError, match="NAME=VALUE"):
        Configure(("wrong",))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A web server on loopback; yield HOST:PORT and its folder."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_args: object) -> None:
            """Say nothing."""

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}", folder
        server.shutdown()
        thread.join()


def test_a_step_reaches_the_hosts_that_are_allowed_and_no_other(
    image: str, server: tuple[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    host, folder = server
    (folder / "file").write_text("served")
    code = f"import urllib.request as u; print(u.urlopen('http://{host}/file').read())"
    step = Run(f'python3 -c "{code}"')
    with pytest.raises(ImageError, match="had no network"):
        build(image, step, name="team/net:1", use_cache=False)
    capfd.readouterr()
    build(image, step, name="team/net:1", hosts=(host,), use_cache=False)
    assert "b'served'" in capfd.readouterr().err
    with pytest.raises(ImageError):
        build(image, step, name="team/net:1", hosts=("example.com",), use_cache=False)
    assert "Connection refused" in capfd.readouterr().err


APT_PROGRAMS = (
    *("apt-get", "dpkg", "dpkg-deb", "dpkg-query", "dpkg-split", "tar", "diff", "sed", "mv"),
    *("chown", "chmod", "ln", "find", "gzip", "xz"),
)
APT_PARTS = ("/usr/lib/apt", "/usr/share/dpkg")


def apt_layer(top: Path) -> None:
    """Fill a layer with this machine's apt, and a list that names a repository in the image."""
    programs = [Path(found) for name in APT_PROGRAMS if (found := shutil.which(name))]
    for path in programs:
        target = top / "usr/bin" / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    for name in ("ldconfig", "start-stop-daemon"):  # dpkg wants to see them
        (top / "usr/bin" / name).write_text("#!/bin/sh\nexit 0\n")
        (top / "usr/bin" / name).chmod(0o755)
    for part in APT_PARTS:
        shutil.copytree(part, top / part[1:], symlinks=True)
    methods = [path for path in (top / "usr/lib/apt").rglob("*") if os.access(path, os.X_OK)]
    for needed in rootfs._libraries([*programs, *(one for one in methods if one.is_file())]):
        target = top / needed.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(needed, target)
    for folder in ("etc/apt/apt.conf.d", "etc/apt/preferences.d", "var/cache/apt/archives/partial"):
        (top / folder).mkdir(parents=True)
    for folder in ("var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/apt/lists/partial"):
        (top / folder).mkdir(parents=True)
    (top / "var/lib/dpkg/status").touch()
    (top / "var/log/apt").mkdir(parents=True)
    (top / "etc/apt/sources.list").write_text("deb [trusted=yes] file:/repository ./\n")


def make_repository(folder: Path, made: Path) -> None:
    """Make a repository of one package, whose files and script need root's rights."""
    (made / "DEBIAN").mkdir(parents=True)
    (made / "usr/bin").mkdir(parents=True)
    (made / "usr/bin/hello").write_text("#!/bin/sh\necho hello\n")
    (made / "usr/bin/hello").chmod(0o4755)
    control = "Package: hello\nVersion: 1\nArchitecture: all\nMaintainer: x <x@x>\nDescription: x\n"
    (made / "DEBIAN/control").write_text(control)
    script = made / "DEBIAN/postinst"
    script.write_text("#!/bin/sh\nset -e\nchown 33:44 /usr/bin/hello\ntouch /srv/configured\n")
    script.chmod(0o755)
    command = ["dpkg-deb", "--root-owner-group", "-b", str(made), str(folder / "hello.deb")]
    subprocess.run(command, check=True, capture_output=True)
    data = (folder / "hello.deb").read_bytes()
    more = f"Filename: ./hello.deb\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"
    (folder / "Packages").write_text(control + more)


needs_apt = pytest.mark.skipif(
    not shutil.which("apt-get") or not shutil.which("dpkg-deb"),
    reason="apt is of Debian and Ubuntu, and this machine is another",
)


@needs_apt
@pytest.mark.parametrize("user", ["this", "ordinary"])
def test_apt_installs_a_package(layer: Path, user: str) -> None:
    if user == "ordinary" and os.geteuid() != 0:
        pytest.skip("all tests run as an ordinary user already")
    shared = Path(tempfile.mkdtemp(prefix="atoll-apt-"))
    try:
        shared.chmod(0o755)
        (shared / "top").mkdir(mode=0o755)
        (shared / "cache").mkdir()
        apt_layer(shared / "top")
        (shared / "top/repository").mkdir()
        make_repository(shared / "top/repository", shared / "package")
        rootfs.write_layout(shared / "oci", layer, shared / "top")
        command = (sys.executable, "-c", BUILD_BY_APT, f"oci:{shared}/oci")
        env = {**os.environ, "ATOLL_CACHE": str(shared / "cache")}
        if user == "ordinary":
            os.chown(shared / "cache", USER, USER)
            command = (python_for_user(), *command[1:])
            done = run_as_user(*command, ATOLL_CACHE=env["ATOLL_CACHE"], timeout=240)
        else:
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.stdout == "hello\n True 0o755\n", done.stderr[-3000:]
    finally:
        shutil.rmtree(shared)


BUILD_BY_APT = """
import sys
import atoll
from atoll.programs.build import BuildOptions, build_image
from atoll.programs.build_steps import Apt
build_image(sys.argv[1], [Apt(("hello",))], "team/apt:1", BuildOptions()).close()
with atoll.create_sandbox(backend="native", image="team/apt:1") as box:
    look = "import os; os.path.exists('/srv/configured'), oct(os.stat('/usr/bin/hello').st_mode & 0o7777)"
    print(box.shell("hello").output, *box.execute(look).value)
"""


@needs_apt
def test_apt_reaches_the_sources_of_its_image_by_name_alone(tmp_path: Path, layer: Path) -> None:
    lists = tmp_path / "top/etc/apt"
    (lists / "sources.list.d").mkdir(parents=True)
    (lists / "sources.list").write_text("deb http://mirror.example.com:8080/debian stable main\n")
    (lists / "sources.list.d/x.sources").write_text(
        "# http://old.example.com\nURIs: https://a.example.com/x http://10.0.0.1/ http://localhost/\n"
    )
    (lists / "sources.list.d/link.list").symlink_to("/etc/hostname")
    rootfs.write_layout(tmp_path / "oci", layer, tmp_path / "top")
    held = get_image(f"oci:{tmp_path}/oci")
    assert Apt(("git",)).hosts(held.image) == ("a.example.com", "mirror.example.com:8080")
    held.close()
