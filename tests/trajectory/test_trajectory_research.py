"""The research graph of a trajectory: a tree in the terminal, a graph in the page, no trust."""

from __future__ import annotations

import pytest
from browser import Browser, found

from atoll.agent.trajectory import Explored, FinalGiven, RunStarted, Trajectory, from_dict, to_dict
from atoll.agent.trajectory.html import page
from atoll.agent.trajectory.show import DEEPEST, graph_rows, show, summary


def node(name, parent=None, *, status="pending", refs=(), similar=(), call="", found=""):
    return {
        "id": name, "call": call or f"call of {name}", "found": found or f"result of {name}",
        "parent": parent, "references": list(refs), "similar": list(similar), "status": status,
    }  # fmt: skip


NODES = (
    node("G1", status="analyzed"),
    node("P1", "G1", refs=["G1"]),
    node("L1", "P1", status="stale", similar=["G1"]),
    node("DS1", "G1"),
)
EVIL = "</text></svg><script>alert(1)</script>\x1b[2J\u202e"


def run_of(*nodes, **values):
    event = Explored(run="r", strategy="search", calls={"grep": 2}, nodes=nodes, **values)
    started = RunStarted(run="r", question="Which?", model="m")
    return Trajectory(events=(started, event, FinalGiven(run="r", how="FINAL", text="That.")))


def explored(*nodes):
    return Explored(strategy="search", nodes=nodes)


def test_rows_stand_below_their_parents_and_know_their_places():
    found = graph_rows(explored(*NODES))
    assert [(one.id, one.level, one.parent) for one in found] == [
        ("G1", 0, None), ("P1", 1, 0), ("L1", 2, 1), ("DS1", 1, 0),
    ]  # fmt: skip
    assert (found[1].references, found[2].similar, found[2].mark) == ((0,), (0,), "[~]")


def test_forged_nodes_make_no_cycle_and_no_strange_id():
    loop = [node("G1", "G2"), node("G2", "G1"), node("G2", "G2"), node("x' onload='", None)]
    odd = [{"id": 5}, {}, {"id": "G3", "parent": 7, "references": 3, "status": ["x"], "call": 9}]
    found = graph_rows(explored(*loop, *odd))
    assert [(one.id, one.parent, one.status) for one in found] == [
        ("G1", None, "pending"), ("G2", 0, "pending"), ("G3", None, "pending"),
    ]  # fmt: skip
    chain = [node(f"P{at}", f"P{at - 1}") for at in range(1, 400)]
    deep = graph_rows(explored(*chain))
    assert len(deep) <= 200
    assert max(one.level for one in deep) == DEEPEST


def test_an_event_is_the_same_after_a_file():
    event = run_of(*NODES, token_efficiency=0.25, left_out=3).events[1]
    assert from_dict(to_dict(event)) == event
    assert summary(event) == "search · grep 2 · token efficiency 0.25 · 3 earlier calls left out"


@pytest.mark.spec("R4.16")
def test_the_terminal_shows_a_tree():
    told = "\n".join(show(run_of(*NODES, token_efficiency=0.25), width=80))
    assert "explored  search · grep 2 · token efficiency 0.25" in told
    assert (
        """\
  [+] G1  call of G1 → result of G1
    [?] P1 (refs G1)  call of P1 → result of P1
      [~] L1 (refs ~G1)  call of L1 → result of L1
    [?] DS1  call of DS1 → result of DS1
"""
        in told
    )
    many = [node(f"P{at}") for at in range(1, 50)]
    assert "… 19 more" in "\n".join(show(run_of(*many)))
    assert "P49" in "\n".join(show(run_of(*many), full=True))


def test_the_page_has_a_graph_and_texts_stay_texts():
    text = "".join(page(run_of(*NODES, node("G2", "DS1", call=EVIL, found=EVIL))))
    assert text.count("<g><title>") == 5
    assert text.count('class="refers"') == text.count('class="similar"') == 1
    assert "<script" not in text
    assert "\x1b" not in text
    assert "&lt;script&gt;" in text
    assert "<h2>Research</h2>" not in "".join(page(run_of()))


def test_the_terminal_is_not_moved_by_a_node():
    told = "\n".join(show(run_of(node("G1", call=EVIL, found=EVIL))))
    assert not {"\x1b", "\u202e"} & set(told)


@pytest.mark.skipif(found() is None, reason="no browser: apt-get install chromium")
def test_a_browser_draws_the_graph_within_the_page(tmp_path):
    target = tmp_path / "page.html"
    target.write_text("".join(page(run_of(*NODES, node("G2", "DS1", call=EVIL)))), "utf-8")
    with Browser(str(tmp_path / "profile")) as browser:
        browser.open(target.as_uri())
        assert browser.js("document.querySelectorAll('svg.graph g').length") == 5
        assert browser.js("document.scripts.length") == 0
        box = "document.querySelector('svg.graph rect').getBoundingClientRect()"
        assert browser.js(f"{box}.width > 20 && {box}.height > 10")
        stroke = "getComputedStyle(document.querySelector('.graph .{}')).{}"
        assert browser.js(stroke.format("refers", "stroke")) != browser.js(
            stroke.format("line", "stroke")
        )
        assert browser.js(stroke.format("similar", "strokeDasharray")) != "none"
        assert browser.js(
            "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        )
