"""Sandboxes whose root is a container image, cold, warm and forked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

import atoll
from atoll.config import SandboxConfig
from atoll.errors import BackendUnavailableError, ConfigError, UnsupportedError
from atoll.hosting.pool import Pool

MIB = 1 << 20
MakeImage = Callable[[Callable[[Path], None]], str]
ZYGOTE_TRIES = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
MS_REMOUNT, MS_BIND, MNT_DETACH = 32, 4096, 2

def call(result):
    return 0 if result == 0 else ctypes.get_errno()

TRIED = {}
if os.getuid() == 0 and os.path.isdir("/opt/atoll/atoll"):
    target = b"/opt/atoll/atoll"
    TRIED["remount"] = call(libc.mount(None, target, None, MS_REMOUNT | MS_BIND, None))
    TRIED["unmount"] = call(libc.umount2(target, MNT_DETACH))
    TRIED["proc"] = call(libc.umount2(b"/proc", MNT_DETACH))
    TRIED["bpf"] = call(libc.syscall(321, 0, None, 0))
    TRIED["ptrace"] = call(libc.ptrace(0, 0, 0, 0))
    TRIED["io_uring"] = call(libc.syscall(425, 1, None))
    try:
        open("/opt/atoll/atoll/written", "w").close()
        TRIED["write"] = 0
    except OSError as exc:
        TRIED["write"] = exc.errno
"""


def test_images_python_runs_cells_and_its_programs_run_in_the_shell(image: str) -> None:
    with atoll.create_sandbox(backend="native", image=image) as box:
        result = box.execute("import os; open('/etc/os-release').read().splitlines()[1]")
        assert (result.value, result.error) == ("ID=test", None)
        assert result.image is not None
        assert result.image.startswith("sha256:")
        assert box.shell("cat /etc/os-release; touch made").output.startswith('PRETTY_NAME="Test')
        assert [entry.path for entry in box.files.ls("/app")] == ["made"]


def test_images_variables_are_set_and_its_entry_point_is_not_run(image: str) -> None:
    policy = {"env": {"MORE": "1"}}
    with atoll.create_sandbox(backend="native", image=image, policy=policy) as box:
        names = "[os.environ.get(name) for name in ('GREETING', 'PATH', 'MORE', 'HOME')]"
        value = box.execute(f"import os; {names}").value
    assert value == ["hello", "/opt/tools:/usr/bin:/bin", "1", "/home/guest"]


def test_writable_root_is_the_sessions_own(image: str) -> None:
    for _ in range(2):
        with atoll.create_sandbox(backend="native", image=image, writable_root=True) as box:
            assert box.shell("ls /srv").output.strip() == ""
            assert box.shell("touch /srv/new && rm /etc/os-release").exit_code == 0
            assert box.execute("import os; os.path.exists('/etc/os-release')").value is False


def test_files_of_the_image_in_the_working_folder_are_the_sessions_own(
    make_image: MakeImage,
) -> None:
    def fill(top: Path) -> None:
        (top / "app/deep").mkdir(parents=True)
        (top / "app/deep/code.py").write_text("answer = 42")
        (top / "app/link").symlink_to("/etc/shadow")

    image = make_image(fill)
    with atoll.create_sandbox(backend="native", image=image) as box:
        assert box.execute("import deep.code; deep.code.answer").value == 42
        assert box.execute("open('deep/code.py', 'w').write('changed')").error is None
        assert box.execute("import os; os.readlink('link')").value == "/etc/shadow"
    with atoll.create_sandbox(backend="native", image=image) as box:
        assert box.execute("open('deep/code.py').read()").value == "answer = 42"


def test_files_in_the_working_folder_that_do_not_fit_are_an_error(make_image: MakeImage) -> None:
    def fill(top: Path) -> None:
        (top / "app").mkdir()
        (top / "app/large").write_bytes(b"x" * (4 * MIB))

    policy = {"disk_bytes": 2 * MIB}
    with (
        pytest.raises(atoll.SandboxError, match="do not fit into disk_bytes"),
        atoll.create_sandbox(backend="native", image=make_image(fill), policy=policy),
    ):
        pass


def test_limits_tools_and_context_are_as_in_any_sandbox(image: str) -> None:
    with atoll.create_sandbox(
        backend="native",
        image=image,
        context="the context",
        tools={"double": lambda number: 2 * number},
        policy={"memory_bytes": 128 * MIB, "disk_bytes": 16 * MIB},
    ) as box:
        assert box.execute("double(len(context))").value == 22
        assert box.execute("bytearray(500 << 20)").kind in ("error", "memory")
        assert "No space" in str(box.execute("open('x', 'wb').write(bytes(32 << 20))").error)
        assert "no network" in str(
            box.execute("import urllib.request as u; u.urlopen('http://example.com')").error
        )


def _hide_python(top: Path) -> None:
    (top / "usr/bin").mkdir(parents=True)
    (top / "usr/bin/.wh.python3").touch()


@pytest.mark.parametrize("backend", ["native", "daemon", "gvisor"], indirect=True)
def test_image_without_python_runs_commands_and_cells_say_what_to_do(
    make_image: MakeImage, backend: str
) -> None:
    with atoll.create_sandbox(backend=backend, image=make_image(_hide_python)) as box:
        assert box.shell("id -u; touch made; cat /etc/os-release").output.startswith("1000\nPRETTY")
        assert [entry.path for entry in box.files.ls("/app")] == ["made"]
        with pytest.raises(BackendUnavailableError, match=r"has no Python\. shell.*python='host'"):
            box.execute("1")
        assert box.shell("python3 -c 1").exit_code == 127


@pytest.mark.parametrize("backend", ["native", "daemon", "gvisor"], indirect=True)
def test_image_without_python_runs_cells_by_the_hosts_if_asked(
    make_image: MakeImage, backend: str
) -> None:
    image = make_image(_hide_python)
    with atoll.create_sandbox(backend=backend, image=image, python="host", context="abc") as box:
        code = "import ssl, ctypes, sqlite3, subprocess, sys; len(context), sys.prefix"
        assert box.execute(code).value == (3, "/opt/atoll/python")
        run = "subprocess.run(['cat', '/etc/os-release'], capture_output=True).stdout.decode()[-8:]"
        assert box.execute(run).value == "ID=test\n"
        assert box.execute("open('/opt/atoll/python/new', 'w')").error_type in (
            "OSError",
            "PermissionError",
        )


def test_python_of_an_image_is_chosen_by_its_path_there(image: str) -> None:
    with (
        pytest.raises(BackendUnavailableError, match="has no /opt/none"),
        atoll.create_sandbox(backend="native", image=image, python="/opt/none"),
    ):
        pass
    with atoll.create_sandbox(backend="native", image=image, python="/usr/bin/python3") as box:
        assert box.execute("1 + 1").value == 2


@pytest.mark.parametrize(
    "answer", ["", "[]", '[[3], "x", "/"]', '[[3, 11, 1], "relative", "/"]', "x" * 100_000]
)
def test_lies_of_an_images_python_are_refused(make_image: MakeImage, answer: str) -> None:
    def lie(top: Path) -> None:
        (top / "usr/bin").mkdir(parents=True)
        (top / "usr/bin/python3").write_text(f"#!/bin/sh\ncat <<'E'\n{answer}\nE\n")
        (top / "usr/bin/python3").chmod(0o755)

    with (
        pytest.raises(BackendUnavailableError, match="is not a Python that runs"),
        atoll.create_sandbox(backend="native", image=make_image(lie)),
    ):
        pass


@pytest.mark.parametrize("backend", ["wasm", "pyodide", "restricted"])
def test_backends_without_images_refuse_in_words(backend: str) -> None:
    with (
        pytest.raises(UnsupportedError, match=r"cannot run container images.*native"),
        atoll.create_sandbox(backend=backend, image="python:3.12"),
    ):
        pass


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="name one with image="):
        SandboxConfig(writable_root=True)
    for wrong in ("", 3, "x" * 5000, "a\0b"):
        with pytest.raises(ConfigError, match="image must be a reference"):
            SandboxConfig(image=wrong)  # type: ignore[arg-type]
    assert SandboxConfig(image="oci:x").image == f"oci:{Path('x').absolute()}"


async def _warm(image: str) -> None:
    config = SandboxConfig(image=image)
    async with Pool() as pool:
        box = await pool.open(config)
        result = await box.execute("import os; x = [1]; open('f', 'w').write('1'); os.listdir('/')")
        assert (result.error, result.cold_start) == (None, None)
        assert "srv" in result.value
        assert (await box.shell("grep CapEff /proc/self/status")).output.split()[1] == "0" * 16
        assert (await box.shell("cat /root/secret")).output == "of the image"
        mark = await box.checkpoint()
        await box.execute("x.append(2); open('f', 'w').write('2')")
        twin = await box.fork()
        assert (await twin.execute("x, open('f').read(), open('/srv/n', 'w')")).error is not None
        assert (await twin.execute("x, open('f').read()")).value == ([1, 2], "2")
        await box.rollback(mark)
        assert (await box.execute("x, open('f').read()")).value == ([1], "1")
        assert (await pool.run("open('/etc/os-release').read()", config)).value.endswith("test\n")
        plain = await pool.run("open('/etc/os-release').read()", SandboxConfig())
        assert not plain.value.endswith("ID=test\n")
        await asyncio.gather(box.destroy(), twin.destroy())


def test_warm_guests_of_an_image_fork_check_point_and_roll_back(image: str) -> None:
    asyncio.run(_warm(image))


def test_a_folder_with_the_name_of_a_library_does_not_end_the_zygote(
    make_image: MakeImage,
) -> None:
    def leave_a_folder(top: Path) -> None:  # as an uninstalled package does
        for folder in _site_folders():
            (top / folder / "numpy" / "core").mkdir(parents=True)

    async def look() -> str | None:
        async with Pool() as pool:
            result = await pool.run(
                "import numpy; 1", SandboxConfig(image=make_image(leave_a_folder))
            )
            assert (result.error, result.value) == (None, 1)
            return result.cold_start

    assert asyncio.run(look()) is None


def test_images_code_in_the_zygote_can_change_no_mount(make_image: MakeImage) -> None:
    def attack(top: Path) -> None:
        for folder in ("usr/lib/python3/dist-packages", *_site_folders()):
            (top / folder).mkdir(parents=True, exist_ok=True)
            (top / folder / "sitecustomize.py").write_text(ZYGOTE_TRIES)

    async def look() -> dict[str, int]:
        async with Pool() as pool:
            config = SandboxConfig(image=make_image(attack))
            result = await pool.run("import sitecustomize; sitecustomize.TRIED", config)
            assert (result.error, result.cold_start) == (None, None)
            return dict(result.value)

    tried = asyncio.run(look())
    assert set(tried) == {"remount", "unmount", "proc", "bpf", "ptrace", "io_uring", "write"}
    assert all(tried.values()), tried


def _site_folders() -> list[str]:
    import sys

    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return [f"usr/lib/{version}/site-packages", f"usr/lib/{version}"]
