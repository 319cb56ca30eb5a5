"""What a sandbox does not have says so in words: a keyboard, a network."""

from __future__ import annotations

import pytest

from atoll import Capability

IMPORTS = pytest.mark.needs(Capability.IMPORTS)
NO_KEYBOARD = "this sandbox has no keyboard"
NO_NETWORK = "this sandbox has no network"


def test_input_says_that_there_is_no_keyboard_and_what_to_do(box):
    result = box.execute("name = input('Your name? ')")
    assert result.error_type == "EOFError"
    assert (NO_KEYBOARD in result.error, "`context`" in result.error) == (True, True)
    assert result.stdout == "Your name? "
    assert NO_KEYBOARD in result.stderr
    code = "try:\n    input()\nexcept EOFError as exc:\n    print(exc)"
    assert NO_KEYBOARD in box.execute(code).stdout


@IMPORTS
def test_input_reads_what_standard_input_has(box):
    code = "import io, sys\nsys.stdin = io.StringIO('first\\nsecond')\n[input('? '), input()]"
    result = box.execute(code)
    assert (result.value, result.stdout) == (["first", "second"], "? ")
    assert box.execute("import sys\nsys.stdin.read(), sys.stdin.readline()").value == ("", "")


@pytest.mark.needs(Capability.SUBPROCESS)  # WebAssembly has packages of its own, and says so
@pytest.mark.parametrize(("module", "package"), [("no_such", "no_such"), ("cv2", "opencv-python")])
def test_a_missing_package_says_how_a_sandbox_gets_it(box, module, package):
    result = box.execute(f"import {module}.part as part")
    advice = f"create_sandbox(packages=[{package!r}]), or --package on the command line"
    assert result.error_type == "ModuleNotFoundError"
    assert result.error.startswith(f"ModuleNotFoundError: No module named {module!r}. To have it, ")
    assert result.error.endswith(advice)
    assert advice in result.stderr
    assert "packages=" not in box.execute("import json.no_such").error
    assert box.execute("raise ModuleNotFoundError('mine')").error == "ModuleNotFoundError: mine"


@IMPORTS
def test_a_password_cannot_be_asked_for(box):
    result = box.execute(
        "import getpass, warnings\nwarnings.simplefilter('ignore')\ngetpass.getpass()"
    )
    assert result.error_type == "EOFError"
    assert NO_KEYBOARD in result.error


@IMPORTS
@pytest.mark.parametrize(
    "code",
    [
        "import urllib.request\nurllib.request.urlopen('http://example.com/')",
        "import http.client\nhttp.client.HTTPConnection('example.com').request('GET', '/')",
        "import socket\nsocket.create_connection(('example.com', 80))",
        "import socket\nsocket.socket().connect(('192.0.2.1', 80))",
        "import socket\nsocket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))",
        "import asyncio\nasync def f(): await asyncio.open_connection('192.0.2.1', 80)\nawait f()",
    ],
)
def test_a_network_call_says_that_there_is_no_network(box, code):
    if "asyncio" in code and Capability.SUBPROCESS not in box.capabilities:
        pytest.skip("the event loop of this backend has no sockets")
    result = box.execute(code)
    assert NO_NETWORK in result.error
    assert NO_NETWORK in result.stderr
    caught = "\n".join("    " + line for line in code.splitlines())
    result = box.execute(f"try:\n{caught}\nexcept OSError as exc:\n    print(exc)")
    assert NO_NETWORK in result.stdout


@pytest.mark.needs(Capability.SUBPROCESS)
def test_requests_says_so_too(box):
    result = box.execute("import requests\nrequests.get('http://example.com/')")
    if result.error_type == "ModuleNotFoundError":
        pytest.skip("this interpreter has no requests")
    assert NO_NETWORK in result.error


@pytest.mark.needs(Capability.SUBPROCESS)
def test_names_that_are_unknown_stay_errors_of_their_type(box):
    code = (
        "import socket\nfound = []\n"
        "for name in ('example.com', 'no.such.host'):\n"
        "    try: socket.getaddrinfo(name, 80)\n"
        "    except socket.gaierror as exc: found.append(exc.errno == socket.EAI_NONAME)\n"
        "try: socket.getaddrinfo('x', 80, flags=socket.AI_NUMERICHOST)\n"
        "except socket.gaierror as exc: found.append('no network' in str(exc))\n"
        "found"
    )
    assert box.execute(code).value == [True, True, False]


@pytest.mark.needs(Capability.SUBPROCESS, Capability.THREADS)
def test_the_guests_own_loopback_works(box):
    code = (
        "import http.server, threading, urllib.request, urllib.error\n"
        "class Page(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200); self.end_headers(); self.wfile.write(b'page')\n"
        "    def log_message(self, *args): pass\n"
        "server = http.server.HTTPServer(('127.0.0.1', 0), Page)\n"
        "threading.Thread(target=server.serve_forever, daemon=True).start()\n"
        "port = server.server_port\n"
        "page = [urllib.request.urlopen(f'http://{host}:{port}/').read()"
        " for host in ('127.0.0.1', 'localhost')]\n"
        "server.shutdown(); server.server_close()\n"
        "try: urllib.request.urlopen(f'http://127.0.0.1:{port}/')\n"
        "except urllib.error.URLError as exc: page.append(type(exc.reason).__name__)\n"
        "page"
    )
    assert box.execute(code).value == [b"page", b"page", "ConnectionRefusedError"]


@pytest.mark.needs(Capability.SUBPROCESS)
def test_a_command_that_needs_a_network_is_explained(box):
    result = box.execute("!wget -q http://example.com/ || curl -s http://example.com/")
    assert NO_NETWORK in result.stderr


@pytest.mark.parametrize(
    "code",
    [
        "```python\nx = 6\nx * 7\n```",
        "\n    x = 6\n    if x:\n        x *= 7\n    x\n    ",
        "\ufeffx = 42\nx",
        "  ```\n  6 * 7\n  ```\n",
    ],
)
def test_code_runs_as_it_was_pasted(box, code):
    assert box.validate_code(code)
    assert box.execute(code).value == 42


def test_an_error_in_pasted_code_has_its_own_line_and_place(box):
    result = box.execute("```python\nx = 1\n1 / 0\n```")
    assert "line 3" in result.stderr
    assert "    1 / 0\n" in result.stderr
    result = box.execute("x = [1, 2\n3]")
    assert "x = [1, 2\n" in result.stderr
    assert "^" in result.stderr
    assert str(result).count("SyntaxError") == 1
