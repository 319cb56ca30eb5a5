"""A sandbox that tests share is lent again: were it ended each time, the suite would take far longer."""

from __future__ import annotations

from sharing import SharedBoxes


def test_a_sandbox_is_lent_again_as_new():
    boxes = SharedBoxes()
    try:
        with boxes.lend("native") as first:
            first.execute("import os; x = 1; os.mkdir('/tmp/made'); open('made', 'w').close()")
        with boxes.lend("native") as second:
            assert second is first
            look = "'x' in globals(), os.path.exists('/tmp/made'), os.listdir('/app')"
            assert second.execute(f"import os; {look}").value == (False, False, [])
    finally:
        boxes.close()


def test_a_sandbox_with_processes_left_is_not_lent_again():
    boxes = SharedBoxes()
    try:
        with boxes.lend("native") as first:
            first.execute("import subprocess; subprocess.Popen(['sleep', '60'])")
        with boxes.lend("native") as second:
            assert second is not first
    finally:
        boxes.close()
