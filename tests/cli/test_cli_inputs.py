"""`atoll run`: arguments, standard input, mounts, variables and memory of the program."""

import os
import subprocess

import pytest

SHOW_ARGUMENTS = "import sys; print(sys.argv)"


@pytest.mark.parametrize("backend", ["native", "restricted"])
def test_arguments_are_in_sys_argv(atoll, tmp_path, backend):
    script = tmp_path / "show.py"
    script.write_text(SHOW_ARGUMENTS)
    argv = ["run", "--backend", backend]
    assert atoll(*argv, str(script), "a", "b c")[1] == f"['{script}', 'a', 'b c']\n"
    assert atoll(*argv, str(script), "--", "-v", "--")[1] == f"['{script}', '-v', '--']\n"
    assert atoll(*argv, "-c", SHOW_ARGUMENTS, "a")[1] == "['-c', 'a']\n"
    assert atoll(*argv, str(script))[1] == f"['{script}']\n"


@pytest.mark.parametrize("backend", ["native", "restricted"])
def test_a_pipe_is_the_programs_stdin(spawn, backend):
    code = "import sys\nfor line in sys.stdin: print(line.strip().upper())"
    process = spawn("run", "--backend", backend, "-c", code)
    assert process.communicate("one\ntwo") == ("ONE\nTWO\n", "")
    assert process.returncode == 0


def test_input_reads_lines_as_they_come(spawn):
    process = spawn("run", "--backend", "native", "-c", "print(input()); print(input())")
    process.stdin.write("first\n")
    process.stdin.flush()
    assert process.stdout.readline() == "first\n"
    assert process.communicate("second\n")[0] == "second\n"


def test_bytes_arrive_as_they_are(command):
    code = "import sys, hashlib; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"
    data = bytes(range(256)) * 20_000
    argv = [*command, "run", "--backend", "native", "-c", code]
    done = subprocess.run(argv, input=data, capture_output=True, check=True)
    import hashlib

    assert done.stdout.decode().strip() == hashlib.sha256(data).hexdigest()


def test_input_at_the_end_of_a_pipe_says_so_as_python_does(spawn):
    process = spawn("run", "--backend", "native", "-c", "input(); input()")
    error = process.communicate("only one\n")[1]
    assert error.endswith("EOFError: EOF when reading a line\n")


def test_a_file_is_the_programs_stdin(command, tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("from a file\n")
    with path.open() as file:
        argv = [*command, "run", "--backend", "native", "-c", "print(input())"]
        done = subprocess.run(argv, stdin=file, capture_output=True, text=True, check=True)
    assert done.stdout == "from a file\n"


@pytest.mark.long
def test_endless_stdin_is_read_only_as_far_as_the_program_reads(command):
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as endless:
        argv = [*command, "run", "--backend", "native", "-c", "print(input(), input())"]
        done = subprocess.run(
            argv, stdin=endless.stdout, capture_output=True, text=True, timeout=60, check=True
        )
        endless.kill()
    assert done.stdout == "y y\n"


@pytest.mark.long
def test_a_program_that_waits_for_stdin_is_stopped_at_its_timeout(spawn):
    process = spawn("run", "--backend", "native", "--timeout", "0.5", "-c", "input()")
    assert process.wait(60) == 124


@pytest.mark.parametrize("backend", ["native", "restricted"])
def test_without_stdin_there_is_nothing_to_read(command, backend):
    argv = [*command, "run", "--backend", backend, "-c", "import sys; print([sys.stdin.read()])"]
    done = subprocess.run(
        argv, capture_output=True, text=True, check=True, preexec_fn=lambda: os.close(0)
    )
    assert (done.stdout, done.stderr) == ("['']\n", "")


def test_code_from_stdin_leaves_none_for_the_program(spawn):
    process = spawn("run", "-")
    assert process.communicate("import sys; print([sys.stdin.read()])") == ("['']\n", "")


@pytest.mark.spec("R1.7")
def test_a_module_beside_the_program_is_found_in_its_folder(atoll, tmp_path):
    (tmp_path / "helper.py").write_text("x = 42")
    program = tmp_path / "program.py"
    program.write_text("import helper\nprint(__file__, helper.x)")
    code, _, err = atoll("run", str(program))
    assert code == 1
    assert err.endswith(f": add --files {tmp_path} (the program may write to it)\n")
    folder = ("--files", str(tmp_path))
    assert atoll("run", *folder, str(program)) == (0, "/app/program.py 42\n", "")


def test_mounts_are_read_only_unless_asked_for(atoll, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.txt").write_text("seen")
    (tmp_path / "one.txt").write_text("one")
    mounts = ["--mount", f"{tmp_path}/a:/data", "--mount", f"{tmp_path}/one.txt:/data2/one.txt"]
    code = "print(open('/data/x.txt').read(), open('/data2/one.txt').read())\nopen('/data/y', 'w')"
    status, out, err = atoll("run", *mounts, "-c", code)
    assert (status, out) == (1, "seen one\n")
    assert "Read-only file system" in err
    rw = ["--mount", f"{tmp_path}/a:/data:rw"]
    (tmp_path / "a").chmod(0o777)
    assert atoll("run", *rw, "-c", "print(2, file=open('/data/y', 'w'))") == (0, "", "")
    assert (tmp_path / "a" / "y").read_text() == "2\n"


@pytest.mark.parametrize(
    ("mount", "message"),
    [
        ("/no/such:/data", "atoll: --mount: cannot use /no/such: No such file or directory\n"),
        ("/dev/null:/data", "atoll: --mount: /dev/null is neither a file nor a folder\n"),
        ("/etc:/proc/x", "atoll: a mount cannot be in /proc: '/proc/x'\n"),
        ("/etc:/", "atoll: a mount's target must be an absolute path below /, without `..` and "),
    ],
)
def test_a_mount_that_cannot_be_made_is_one_line_and_2(atoll, mount, message):
    code, out, err = atoll("run", "--mount", mount, "-c", "1")
    assert (code, out) == (2, "")
    assert err.startswith(message)


def test_a_backend_without_mounts_says_so(atoll, tmp_path):
    mount = ["--mount", f"{tmp_path}:/data"]
    code, _, err = atoll("run", "--backend", "restricted", *mount, "-c", "1")
    assert code == 2
    assert err.startswith("atoll: backend 'restricted' cannot ")


def test_variables_are_set_or_passed_on(atoll, monkeypatch):
    monkeypatch.setenv("MINE", "of the host")
    monkeypatch.setenv("SECRET", "stays outside")
    code = "import os; print(os.environ['A'], os.environ['MINE'], os.environ.get('SECRET'))"
    argv = ["run", "--env", "A=1=2", "--env", "MINE", "-c", code]
    assert atoll(*argv) == (0, "1=2 of the host None\n", "")
    code, _, err = atoll("run", "--env", "NOT_SET_HERE", "-c", "1")
    assert (code, err) == (
        2,
        "atoll: --env NOT_SET_HERE: the variable is not set here. Use --env NOT_SET_HERE=VALUE\n",
    )


def test_memory_below_what_the_interpreter_needs_is_said(atoll):
    code, out, err = atoll("run", "--backend", "native", "--memory", "1M", "-c", "print(1)")
    assert (code, out) == (0, "1\n")
    assert err == (
        "atoll: note: --memory is 1,048,576 bytes. The interpreter of backend 'native' takes up to "
        "32M itself, so the limit in effect is 33M\n"
    )
    assert atoll("run", "--backend", "native", "--memory", "64M", "-c", "1") == (0, "", "")


def test_the_guards_refusal_exits_with_2(atoll):
    code, out, err = atoll("run", "--guard", "ast", "-c", "print(1); import os")
    assert (code, out) == (2, "")
    assert "refused" in err
    assert atoll("run", "--json", "--guard", "ast", "-c", "import os")[0] == 2


def make_python(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "there is no Python interpreter '{}'. Give the path of a Python 3.8"),
        (lambda path: path.mkdir(), "'{}' is a folder. Give"),
        (lambda path: path.touch(), "'{}' is not executable. Give"),
        (lambda path: make_python(path, "echo ls 9.1"), "{} is not a Python: `--version` prints"),
        (lambda path: make_python(path, "echo Python 2.7.18"), "{} is Python 2.7.18, which is too"),
        (lambda path: make_python(path, "exit 1"), "`{} --version` fails: "),
    ],
)
def test_a_python_that_cannot_be_used_is_said(atoll, tmp_path, make, message):
    path = tmp_path / "python"
    make(path)
    code, out, err = atoll("run", "--python", str(path), "-c", "1")
    assert (code, out) == (2, "")
    assert err.startswith("atoll: --python: " + message.format(path))
    assert err.count("\n") == 1
