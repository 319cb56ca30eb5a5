"""The languages of `POST /run_code`: the file a program is written to, and its two steps.

A step is a line of bash, run in the working folder. The first word of the first step is the
program that has to be there: on this machine, or in the image that the operator names.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """How programs of a language are compiled and run."""

    file: str
    run: str
    compile: str = ""
    """Unset: there is nothing to compile."""
    beside: dict[str, str] = field(default_factory=dict)
    """Files that the steps need beside the program."""

    @property
    def toolchain(self) -> str:
        """The program that has to be there."""
        return (self.compile or self.run).split()[0]


PYTHON = ("python", "python_gpu")
"""These run in a warm interpreter: no step starts one."""
_CSPROJ = (
    '<Project Sdk="Microsoft.NET.Sdk"><PropertyGroup><OutputType>Exe</OutputType>'
    "<TargetFramework>net8.0</TargetFramework></PropertyGroup></Project>"
)
LANGUAGES = {
    "python": Language(file="main.py", run="python3 main.py"),
    "python_gpu": Language(file="main.py", run="python3 main.py"),
    "pytest": Language(file="main.py", run="pytest main.py"),
    "bash": Language(file="main.sh", run="bash main.sh"),
    "cpp": Language(
        file="main.cpp", compile="g++ -std=c++17 main.cpp -o main -lpthread", run="./main"
    ),
    "cuda": Language(file="main.cu", compile="nvcc main.cu -o main", run="./main"),
    "nodejs": Language(file="main.js", run="node main.js"),
    "typescript": Language(file="main.ts", run="tsx main.ts"),
    "go": Language(file="main.go", compile="go build -o main main.go", run="./main"),
    "go_test": Language(file="main_test.go", run="go test main_test.go"),
    "java": Language(
        file="Main.java", compile="javac -cp '.:*' Main.java", run="java -cp '.:*' -ea Main"
    ),
    "csharp": Language(
        file="Program.cs", run="dotnet run --project .", beside={"main.csproj": _CSPROJ}
    ),
    "php": Language(file="main.php", run="php -f main.php"),
    "rust": Language(file="main.rs", compile="rustc main.rs -o main", run="./main"),
    "lua": Language(file="main.lua", run="lua main.lua"),
    "R": Language(file="main.R", run="Rscript main.R"),
    "perl": Language(file="main.pl", run="perl main.pl"),
    "D_ut": Language(file="main.d", compile="dmd main.d -unittest -of=main", run="./main"),
    "ruby": Language(file="main.rb", run="ruby main.rb"),
    "scala": Language(file="main.scala", run="scala main.scala"),
    "julia": Language(file="main.jl", run="julia main.jl"),
    "kotlin_script": Language(file="main.kts", run="kotlin main.kts"),
    "verilog": Language(file="main.sv", compile="iverilog -g2012 -o main main.sv", run="vvp main"),
    "swift": Language(file="main.swift", compile="swiftc main.swift -o main", run="./main"),
    "racket": Language(file="main.rkt", run="racket main.rkt"),
}
