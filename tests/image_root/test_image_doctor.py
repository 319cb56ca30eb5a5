"""`atoll doctor` with images: the attacks from inside one, and what the store holds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ATOLL = [sys.executable, "-m", "atoll", "doctor", "--backend"]


@pytest.mark.parametrize(
    "backend",
    ["native", pytest.param("daemon", marks=pytest.mark.long)],
    indirect=True,
)
def test_all_attacks_are_held_in_an_image_that_has_private_files_of_its_own(
    image: str, layer: Path, backend: str
) -> None:
    assert (layer / "root/secret").exists()  # the image's, which an attack reads: no secret leaks
    argv = [*ATOLL, backend, "--attack", "--json", "--image", image]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    said = json.loads(done.stdout)
    assert [one for one in said["attacks"] if not one["held"]] == []
    assert (done.returncode, len(said["attacks"]) > 30) == (0, True)
    assert said["images"]["count"] >= 1
    assert said["images"]["bytes"] > 1 << 20


def test_a_secret_of_the_host_is_told_from_the_images_own_files(image: str, tmp_path: Path) -> None:
    """A folder of the host is shown where attacks look: they say so, though there is an image."""
    (tmp_path / "key").write_text("of the host")
    code = (
        "import asyncio, sys, atoll\n"
        "from atoll.cli.selfcheck import check\n"
        "mounts = [atoll.Mount(source=sys.argv[2], target='/srv/host')]\n"
        "config = atoll.SandboxConfig(backend='native', image=sys.argv[1], policy={'mounts': mounts})\n"
        "attack = next(one for one in check.load() if one.name == 'private-files')\n"
        "async def main():\n"
        "    async with check.Canaries(check._image_files(config.image)) as canaries:\n"
        "        print((await check.judge(config, attack, canaries)).note)\n"
        "asyncio.run(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, image, str(tmp_path)], capture_output=True, text=True
    )
    assert done.stdout == "PWNED /srv/host\n", done.stderr
