"""The deterministic tools: right results, schemas, and bounds on hostile arguments."""

from __future__ import annotations

import difflib
import random

import pytest

import atoll
from atoll.agent.environment.toolbox import (
    calculate,
    convert_units,
    csv_query,
    date_add,
    date_diff,
    deterministic_tools,
    json_query,
    math_simplify,
    regex_test,
    text_diff,
)
from atoll.errors import ConfigError

pytestmark = pytest.mark.spec("R4.27")


@pytest.fixture(scope="module")
def env():
    with atoll.REPLEnvironment(backend="native") as found:
        yield found


@pytest.mark.spec("R4.7")
def test_the_example_of_the_specification(env):
    turn = env.execute('tool_call("math_simplify", {"expression": "x^2 + 2x + 1"})')
    assert turn.result.value == {
        "simplified": "(x+1)^2",
        "steps": ["collect terms: x^2+2x+1", "factor: (x+1)^2"],
    }
    assert turn.calls[0].tool == "math_simplify"


def test_every_tool_has_a_schema_and_is_fit_for_chains():
    tools = list(deterministic_tools())
    assert len(tools) == 9
    for one in tools:
        assert one.input_schema["type"] == "object"
        assert one.input_schema["required"]
        assert one.description
        assert one.read_only
        assert "chain" in one.allowed_callers
        assert one.cost == "free"


def test_they_are_listed_for_a_model_if_asked_for_and_give_way_to_a_tool_of_the_caller():
    def calculate(expression: str) -> str:
        return "mine: " + expression

    hidden = atoll.REPLEnvironment(backend="native")
    listed = atoll.REPLEnvironment(backend="native", toolbox=True, tools=[calculate])
    assert "math_simplify" not in hidden.tool_list()
    assert "- math_simplify(expression): Simplify a polynomial" in listed.tool_list()
    assert listed.tool_list().count("calculate(") == 1
    with listed:
        assert listed.execute("calculate('1 + 1')").result.value == "mine: 1 + 1"
    hidden.close()


@pytest.mark.parametrize(
    ("given", "simple"),
    [
        ("2x + 3x", "5x"),
        ("(x+1)^2 - (x^2 + 2x + 1)", "0"),
        ("(x^2-1)/(x-1)", "x+1"),
        ("x^2+2xy+y^2", "(x+y)^2"),
        ("2(x+1)(x-1)", "2x^2-2"),
        ("x/2 + x/3", "5x/6"),
        ("1/x + 1/x^2", "(x+1)/x^2"),
        ("x**3 - 3x**2 + 3x - 1", "(x-1)^3"),
        ("2/(4x)", "1/(2x)"),
        ("(2x-6)/(x^2-9)", "2/(x+3)"),
        ("-(x+1)^2", "-(x+1)^2"),
        ("3/4 + 1/4", "1"),
        ("(x+y)/(2x+2y)", "1/2"),
        ("a*b - b*a", "0"),
    ],
)
def test_math_simplify_finds_the_shortest_form(given, simple):
    assert math_simplify(given)["simplified"] == simple


@pytest.mark.parametrize("seed", range(20))
def test_math_simplify_keeps_the_value(seed):
    chance = random.Random(seed)
    parts = [f"({chance.randint(-9, 9)}x{chance.randint(-9, 9):+d})" for _ in range(4)]
    formula = f"{parts[0]}*{parts[1]}+{parts[2]}^3-{parts[3]}"
    simple = math_simplify(formula)["simplified"]
    for x in ("2", "-3", "1/7"):
        values = [calculate(one.replace("x", f"*({x})"))["exact"] for one in (formula,)]
        again = calculate(simple.replace("(x", "(1x").replace("x", f"*({x})").replace("-*", "-1*"))
        assert again["exact"] == values[0], (formula, simple)


@pytest.mark.parametrize(
    ("given", "value", "exact"),
    [
        ("(1/3 + 1/6) * 4", 2, "2"),
        ("2^10", 1024, "1024"),
        ("2^-2", 0.25, "1/4"),
        ("-2^2", -4, "-4"),
        ("0.1 + 0.2", 0.3, "3/10"),
        ("sqrt(16) + 7 // 2 + 7 % 4", 10, "10"),
        ("factorial(5)", 120, "120"),
        ("(-1)^999999999999", -1, "-1"),
        ("2(3 + 4)", 14, "14"),
        ("max(1, 2.5)", 2.5, "5/2"),
        ("log(100, 10)", 2.0, None),
    ],
)
def test_calculate(given, value, exact):
    assert calculate(given) == {"value": value, "exact": exact}


def test_dates():
    assert date_add("2026-01-31", months=1) == {"date": "2026-02-28", "weekday": "Saturday"}
    assert date_add("2026-01-31T10:00", hours=20)["date"] == "2026-02-01T06:00:00"
    assert date_add("2026-03-01", days=-1)["date"] == "2026-02-28"
    assert date_diff("2024-02-28", "2026-03-01") == {
        "days": 732,
        "seconds": 732 * 86_400,
        "calendar": "2 years, 0 months, 1 days",
    }
    assert date_diff("2026-01-31T10:00", "2026-01-31T22:00")["days"] == 0.5


@pytest.mark.parametrize(
    ("value", "source", "target", "found"),
    [
        (26.2, "miles", "km", 42.1648128),
        (100, "celsius", "°F", 212),
        (-40, "F", "C", -40),
        (1, "GiB", "MiB", 1024),
        (90, "km/h", "m/s", 25),
        (5, "feet", "inches", 60),
    ],
)
def test_units(value, source, target, found):
    assert convert_units(value, source, target)["value"] == pytest.approx(found)


def test_queries_of_json_and_csv():
    orders = '{"orders": [{"lines": [{"price": 5, "n": "a"}, {"price": 12, "n": "b"}]}]}'
    assert json_query(orders, "orders[0].lines[?price > 10].n") == {"values": ["b"], "total": 1}
    assert json_query(orders, "$.orders[*].lines[?(@.n=='a')].price")["values"] == [5]
    assert json_query({"a": [1, 2, 3]}, "a[-1]")["values"] == [3]
    assert json_query({"a b": 1}, "['a b']")["values"] == [1]
    table = "city,price\nRome,12\nOslo,9\nRome,3\n"
    found = csv_query(table, "price > 5 and city = Rome", columns=["price"])
    assert found == {"rows": [{"price": 12}], "total": 1}
    ordered = csv_query(table, "city ~ o", order_by="price", descending=True, limit=2)
    assert [row["price"] for row in ordered["rows"]] == [12, 9]
    assert ordered["total"] == 3


def test_text_diff_is_a_diff():
    found = text_diff("a\nb\nc\nd\ne\nf\ng", "a\nb\nX\nd\ne\nf\ng\nh", context=1)
    assert (found["added"], found["removed"], found["equal"]) == (2, 1, False)
    assert found["diff"] == "@@ -2,3 +2,3 @@\n b\n-c\n+X\n d\n@@ -7,1 +7,2 @@\n g\n+h"
    assert text_diff("a\n", "a") == {"equal": True, "added": 0, "removed": 0, "diff": ""}
    chance = random.Random(7)
    for _ in range(200):
        old, new = ([chance.choice("abcd") for _ in range(chance.randint(0, 12))] for _ in "ab")
        found = text_diff("\n".join(old), "\n".join(new), context=100)
        lines = found["diff"].split("\n")[1:] if found["diff"] else [" " + one for one in old]
        assert [line[1:] for line in lines if line[0] != "+"] == old
        assert [line[1:] for line in lines if line[0] != "-"] == new
        least = sum(one[0] in "+-" for one in difflib.ndiff(old, new))
        assert found["added"] + found["removed"] <= least


def test_regex_test_gives_places_in_characters():
    found = regex_test(r"\d+é?", "a1é b22 ü3é")
    assert found["matches"] == [
        {"start": 1, "end": 3, "text": "1é"},
        {"start": 5, "end": 7, "text": "22"},
        {"start": 9, "end": 11, "text": "3é"},
    ]
    assert regex_test("a", "a" * 500)["more"]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: math_simplify("((x+1)^40)^40"), "the degree is over 40"),
        (lambda: math_simplify("(a+b+c+d+e+f+g+h)^30"), "more than 400 terms"),
        (lambda: math_simplify("9^9^9^9"), "exponent must be at most"),
        (lambda: math_simplify("(" * 100 + "x" + ")" * 100), "nested more than 60 deep"),
        (lambda: math_simplify("-" * 1500 + "x"), "nested more than 60 deep"),
        (lambda: math_simplify("x" * 3000), "has 3,000 characters"),
        (lambda: math_simplify("__import__('os')"), "is not part of a formula"),
        (lambda: math_simplify("sin(x)"), "sin is not known to math_simplify"),
        (lambda: math_simplify("x^x"), "an exponent must be a whole number"),
        (lambda: math_simplify("x/0"), "divides by zero"),
        (lambda: math_simplify("abcdefghi"), "more than 8 variables"),
        (lambda: math_simplify("1e999999999"), "too many digits"),
        (lambda: math_simplify("1e999^99"), "more than 4,096 bits"),
        (lambda: calculate("9^9^9"), "more than 8,192 bits"),
        (lambda: calculate("10^999999999999999999"), "more than 8,192 bits"),
        (lambda: calculate("factorial(10^9)"), "factorial takes a whole number from 0 to 800"),
        (lambda: calculate("*".join(["factorial(700)"] * 20)), "more than 8,192 bits"),
        (lambda: calculate("exp(1000)"), "too large for a float"),
        (lambda: calculate("1/0"), "divides by zero"),
        (lambda: calculate("0^-1"), "divides by zero"),
        (lambda: calculate("(-8)^0.5"), "not a real number"),
        (lambda: calculate("ln(-1)"), "ln(-1) is not defined"),
        (lambda: calculate("os.system"), "'.' is not part of a formula"),
        (lambda: calculate("5 5"), "'5' is not expected"),
        (lambda: calculate("min()"), "')' is not expected"),
        (lambda: calculate("mod(1)"), "a function does not take 1 numbers"),
        (lambda: date_add("2026-01-31", days=10**9), "days must be from -10,000,000"),
        (lambda: date_add("2026-01-31", years=9000), "not in the years 1 to 9999"),
        (lambda: date_add("tomorrow"), "must be like 2026-01-31"),
        (lambda: date_diff("2026-01-31T00:00+01:00", "2026-01-31"), "both dates with an offset"),
        (lambda: convert_units(1, "kg", "m"), "kg is a unit of mass and m of length"),
        (lambda: convert_units(1, "metrs", "m"), "there is no unit 'metrs': did you mean"),
        (lambda: convert_units(float("nan"), "m", "km"), "must be a finite number"),
        (lambda: convert_units(-300, "C", "F"), "below absolute zero"),
        (lambda: json_query("[" * 100_000, "a"), "nested too deeply"),
        (lambda: json_query("{", "a"), "data is not JSON"),
        (lambda: json_query([[1] * 1000] * 1000, "[*][*]"), "over 200,000 values"),
        (lambda: json_query({}, "a" * 600), "the most is 500"),
        (lambda: json_query({}, "a[[0]"), "path is not clear at '[[0]'"),
        (lambda: csv_query("a\n1\n", "a" + " " * 100_000 + "b"), "where has 100,002 characters"),
        (lambda: csv_query("a\n1\n", "b = 1"), "there is no column 'b'; there are a"),
        (lambda: csv_query("a\n1\n", "a"), "no condition"),
        (lambda: csv_query("", ""), "no header line"),
        (lambda: csv_query("a\n" + '"' + "x" * 200_000), "is not CSV"),
        (lambda: text_diff("a\n" * 30_000, ""), "has 30,000 lines"),
        (lambda: regex_test("a" * 2000, "a"), "pattern has 2,000 characters"),
        (lambda: regex_test("", "a"), "pattern is empty"),
        (lambda: regex_test("(", "a"), "not a regular expression"),
    ],
)  # fmt: skip
def test_what_is_wrong_or_too_large_is_refused_in_words(call, said):
    with pytest.raises((ValueError, ConfigError)) as caught:
        call()
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda: text_diff("\n".join(map(str, range(20_000))), "\n".join(map(str, range(30, 20_030)))),
        lambda: text_diff("a\n" * 20_000, "a\nb\n" * 10_000),
        lambda: text_diff("\n".join(f"x{n}" for n in range(9_999)), "\n".join("y" * 9_999)),
        lambda: regex_test("(a+)+$", "a" * 500_000 + "b"),
        lambda: regex_test("(x+x+)+y", "x" * 100_000),
        lambda: regex_test("a*", "b" * 500_000),
        lambda: math_simplify("+".join(f"{n**9}x^{n % 40}" for n in range(1, 80))),
        lambda: math_simplify("(" + "+".join(f"{7**n}x^{n}" for n in range(20)) + ")^2"),
        lambda: math_simplify("1/" * 700 + "x"),
        lambda: calculate("+".join(["1/" + str(n) for n in range(1, 300)])),
        lambda: csv_query("a,b\n" + "1,2\n" * 150_000, "a = 1", order_by="b"),
    ],
)  # fmt: skip
def test_hostile_arguments_end(call):
    """Without bounds, each of them would run into the timeout of the test."""
    assert call()
