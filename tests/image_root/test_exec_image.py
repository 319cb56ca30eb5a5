"""`atoll exec --image`: a program of an image, on a folder of this machine."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ATOLL = [sys.executable, "-m", "atoll", "exec", "--image"]


def test_a_program_of_an_image_works_on_the_current_folder(image: str, tmp_path: Path) -> None:
    script = "cat /etc/os-release; echo $GREETING $HOME; pwd; echo made > new; touch /usr/x; exit 4"
    argv = [*ATOLL, image, "sh", "-c", script]
    done = subprocess.run(
        argv, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 4, done.stderr
    assert "ID=test" in done.stdout
    assert "hello /home/guest" in done.stdout
    assert done.stdout.endswith(f"{tmp_path}\n")
    assert (tmp_path / "new").stat().st_uid == os.getuid()
    assert "Read-only" in done.stderr


def test_no_link_of_an_image_moves_the_terminal(
    make_image: Callable[[Callable[[Path], None]], str], tmp_path: Path
) -> None:
    """An image has a link where /dev/tty will be; nothing is made where it points to."""
    folder, victim = tmp_path / "project", tmp_path / "victim"
    folder.mkdir()

    def fill(top: Path) -> None:
        (top / "dev").mkdir()
        (top / "dev" / "tty").symlink_to(victim)

    image = make_image(fill)
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(folder)
        argv = [*ATOLL, image, "sh", "-c", "echo typed > /dev/tty; exit 6"]
        os.execv(argv[0], argv)
    shown = b""
    try:
        while data := os.read(fd, 65536):
            shown += data
    except OSError:  # the terminal has ended
        pass
    _, status = os.waitpid(pid, 0)
    os.close(fd)
    assert os.waitstatus_to_exitcode(status) == 6, shown
    assert b"typed" in shown
    assert not victim.exists()
