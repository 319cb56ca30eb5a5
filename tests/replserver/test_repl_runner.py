"""One request, one sandbox: shapes of errors, independence, deadlines, state."""

from __future__ import annotations

import asyncio
import base64

import pytest

from atoll import (
    BaseSandbox,
    Capability,
    SandboxConfig,
    SandboxResult,
    StateError,
)
from atoll.hosting.pool import Pool
from atoll.replserver.messages import REPLRequest
from atoll.replserver.runner import Runner
from atoll.types import Outcome


async def run(code, *, config=None, **fields):
    return await Runner(config).run(REPLRequest(code=code, **fields))


@pytest.mark.spec("R2.3")
async def test_the_fields_of_a_response():
    response = await run(
        "import sys\nprint('o')\nprint('e', file=sys.stderr)\nopen('f.txt', 'w').write('x')"
    )
    assert (response.stdout, response.stderr, response.exit_code) == ("o\n", "e\n", 0)
    assert (response.files, response.error, response.state) == (("f.txt",), None, None)
    assert response.kind == "ok"
    assert response.duration_ms > 0


@pytest.mark.spec("R2.12")
async def test_a_syntax_error():
    response = await run("x = = 1")
    assert (response.stdout, response.exit_code) == ("", 1)
    assert response.stderr == "SyntaxError: invalid syntax (line 1)"
    assert response.error == "SyntaxError: invalid syntax"


@pytest.mark.spec("R2.12")
async def test_a_runtime_error():
    response = await run("def f():\n  1 / 0\nf()")
    assert response.stderr.startswith(
        'Traceback (most recent call last):\n  File "<string>", line 3, in <module>\n'
    )
    assert '  File "<string>", line 2, in f\n' in response.stderr
    assert response.stderr.endswith("\nZeroDivisionError: division by zero\n")
    assert (response.error, response.exit_code) == ("ZeroDivisionError: division by zero", 1)


@pytest.mark.spec("R2.12")
async def test_a_syntax_error_of_code_that_the_code_compiles_keeps_its_traceback():
    response = await run("print('before')\nexec('x = = 1')")
    assert response.stdout == "before\n"
    assert response.stderr.startswith("Traceback (most recent call last):\n")


async def test_exit_and_displays():
    response = await run("import sys; sys.exit(7)")
    assert (response.kind, response.exit_code) == ("exited", 7)
    response = await run("class Rich:\n  def _repr_html_(self): return '<b>'\nRich()")
    assert [one.data for one in response.displays] == [b"<b>"]


@pytest.mark.long
@pytest.mark.spec("R2.10")
@pytest.mark.parametrize("pooled", [True, False])
async def test_fifty_requests_in_a_row_know_nothing_of_each_other(pooled):
    code = (
        "import sys, os, builtins\n"
        "seen = [name for name in ('mark', 'pi') if name in globals()]\n"
        "seen += os.listdir('.') + os.listdir('/dev/shm')\n"
        "seen += [n for n in os.listdir('/tmp') if not sys.prefix.startswith('/tmp/' + n)]\n"
        "seen += [name for name in ('decimal', 'mark') if name in sys.modules]\n"
        "seen += [name for name in os.environ if 'MARK' in name] + [hasattr(builtins, 'mark')]\n"
        "print(seen)\n"
        "import decimal\n"
        "mark = sys.modules['mark'] = builtins.mark = os\n"
        "os.environ['MARK'] = '1'\n"
        "for folder in ('.', '/tmp', '/dev/shm'): open(folder + '/mark', 'w').close()\n"
        "os.chdir('/tmp')"
    )
    async with Pool() as pool:
        runner = Runner(pool=pool if pooled else None)
        for _ in range(50):
            response = await runner.run(REPLRequest(code=code))
            assert (response.stdout, response.error) == ("[False]\n", None)


@pytest.mark.spec("R2.11")
async def test_a_timeout_is_told_with_what_was_printed():
    response = await run("print('partial')\nwhile True: pass", timeout=0.3)
    assert (response.kind, response.exit_code, response.stdout) == ("timeout", 124, "partial\n")
    assert response.error == "TimeoutError: the execution took longer than 300 ms"


async def test_the_configured_timeout_holds_without_one_in_the_request():
    response = await run("while True: pass", config=SandboxConfig(timeout_ms=300))
    assert response.kind == "timeout"


async def test_no_sandbox_to_be_had_is_told():
    response = await run("1", config=SandboxConfig(python="/no/such/python"))
    assert (response.kind, response.exit_code) == ("failed", 1)
    assert "no Python interpreter" in response.error


async def test_a_cancelled_request_leaves_nothing():
    task = asyncio.ensure_future(run("while True: pass"))
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task  # the autouse fixture looks for jails that are left


class Keeper(BaseSandbox):
    """A backend of the test's own, whose states are what the test says."""

    saved: bytes | Exception = b""
    result = SandboxResult(kind=Outcome.OK, stdout="ran\n")

    async def execute(self, code, *, timeout_ms=None, key=None):
        return self.result

    async def validate_code(self, code):
        return True

    async def save(self):
        if isinstance(self.saved, Exception):
            raise self.saved
        return self.saved


async def keep(saved, result=Keeper.result, **options):
    box = Keeper()
    box.saved, box.result = saved, result

    async def opener(config, _code):
        return box

    runner = Runner(opener=opener, **options)
    return await runner.run(REPLRequest(code="x", capture_state=True))


@pytest.mark.spec("R2.3", "R2.5")
async def test_a_state_that_cannot_be_made_is_told_and_the_code_has_succeeded():
    response = await keep(StateError("cannot pickle 'generator' object"))
    assert (response.exit_code, response.state, response.stdout) == (0, None, "ran\n")
    assert response.error == "State serialization failed: cannot pickle 'generator' object"
    assert response.state_error == response.error


@pytest.mark.spec("R2.7")
async def test_a_state_over_the_cap_is_not_saved_and_the_response_says_so():
    response = await keep(b"x" * 101, max_state_bytes=100)
    assert (response.exit_code, response.state) == (0, None)
    assert "the state has 101 bytes; the limit is 100" in response.error


async def test_the_codes_own_error_is_not_hidden_by_the_states():
    failed = SandboxResult(kind=Outcome.ERROR, error="ValueError: x", exit_code=1)
    response = await keep(StateError("no"), failed)
    assert response.error == "ValueError: x"
    assert response.state_error == "State serialization failed: no"


async def test_no_state_is_taken_of_a_sandbox_that_was_stopped():
    stopped = SandboxResult(kind=Outcome.TIMEOUT, error="TimeoutError: x", exit_code=124)
    response = await keep(b"state", stopped)
    assert response.state is None
    assert "did not outlive" in response.state_error


@pytest.mark.spec("R2.3", "R2.6")
@pytest.mark.needs(Capability.SAVE)
async def test_state_lives_on_from_request_to_request(backend):
    config = SandboxConfig(backend=backend)
    first = await run("x = [1]\ndef f(): return x", config=config, capture_state=True)
    assert first.state_error is None
    second = await run("x.append(2); print(f())", config=config, state=first.state)
    assert (second.stdout, second.state) == ("[1, 2]\n", None)
    assert (await run("print(x)", config=config, state=first.state)).stdout == "[1]\n"


@pytest.mark.spec("R2.5")
@pytest.mark.needs(Capability.SAVE)
async def test_what_the_state_has_not_is_named(backend):
    code = "x = 1\nnumbers = (n for n in [1])"
    response = await run(code, config=SandboxConfig(backend=backend), capture_state=True)
    assert "numbers" in response.left_out
    again = await run("print(x)", config=SandboxConfig(backend=backend), state=response.state)
    assert again.stdout == "1\n"


@pytest.mark.needs(Capability.SAVE)
@pytest.mark.parametrize("state", [b"no state at all", base64.b64decode("gASVAAAA")])
async def test_a_state_that_cannot_be_restored_is_told_and_nothing_runs(backend, state):
    response = await run("print(1)", config=SandboxConfig(backend=backend), state=state)
    assert (response.kind, response.exit_code, response.stdout) == ("bad-state", 1, "")
    assert response.error.startswith("State restoration failed: ")
