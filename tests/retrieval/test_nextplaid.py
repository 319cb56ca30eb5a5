"""NextPLAID over HTTP, against a stand-in: a server of the tests that speaks its protocol.

It scores by words in common; that real servers rank by late interaction is not shown here.
"""

from __future__ import annotations

import http.server
import json
import re
import socket
import threading

import pytest
from retrieval_kit import write

from atoll.agent.retrieval import NextPlaid, Retriever, nextplaid
from atoll.errors import ConfigError, RetrievalError

pytestmark = pytest.mark.spec("R4.4")


class StandIn(http.server.BaseHTTPRequestHandler):
    """The endpoints that are used, with the answers that they give."""

    def do_GET(self):
        self.reply(200, {"status": "healthy", "version": "stand-in"})

    def do_POST(self):
        body = self.body()
        if self.path == "/indices":
            known = body["name"] in self.server.indices
            self.server.indices.setdefault(body["name"], [])
            self.reply(409 if known else 200, {"name": body["name"]})
            return
        _, _, index, what = self.path.split("/", 3)
        rows = self.server.indices[index]
        if what == "update_with_encoding":
            rows += zip(body["documents"], body["metadata"], strict=True)
            self.server.updates.append([one["path"] for one in body["metadata"]])
            self.reply(202, "queued")
        elif what == "search_with_encoding":
            self.reply(
                200, self.server.answer or {"results": [search(rows, body)], "num_queries": 1}
            )

    def do_DELETE(self):
        index, body = self.path.split("/")[2], self.body()
        assert body["condition"].count("?") == len(body["parameters"])
        rows = self.server.indices[index]
        rows[:] = [row for row in rows if row[1]["path"] not in body["parameters"]]
        self.reply(202, "queued")

    def body(self):
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def reply(self, status, value):
        status = self.server.status or status
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Location", "http://127.0.0.1:1/")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


def search(rows, body):
    asked = set(body["queries"][0].lower().split())
    scored = [(len(asked & set(re.findall(r"\w+", text.lower()))), meta) for text, meta in rows]
    best = sorted(scored, key=lambda one: -one[0])[: body["params"]["top_k"]]
    best = [one for one in best if one[0]]
    scores, metadata = [one[0] for one in best], [one[1] for one in best]
    return {"query_id": 0, "document_ids": [0] * len(best), "scores": scores, "metadata": metadata}


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), StandIn) as stand_in:
        stand_in.indices, stand_in.updates = {}, []
        stand_in.status = stand_in.answer = None
        stand_in.url = f"http://127.0.0.1:{stand_in.server_port}"
        thread = threading.Thread(target=stand_in.serve_forever, args=(0.01,))
        thread.start()
        yield stand_in
        stand_in.shutdown()
        thread.join()


@pytest.fixture
def plaid(server, retriever):
    return lambda **options: retriever(mode="auto", server=NextPlaid(server.url), **options)


def found(retriever, query):
    hits = retriever.search(query, kind="doc")
    assert (hits.mode_used, hits.warning) == ("nextplaid", "")
    return [hit.path for hit in hits]


def test_the_server_answers_where_there_is_one(server, plaid, folder):
    write(folder, a__md="red apple", b__md="green pear and an apple", c__py="apple = 1\n")
    hits = plaid().search("green apple", kind="doc")
    assert hits.mode_used == "nextplaid"
    assert [(hit.path, hit.score, hit.text) for hit in hits] == [
        ("b.md", 2.0, "green pear and an apple"),
        ("a.md", 1.0, "red apple"),
    ]
    assert len(server.indices) == 2


def test_only_changed_files_are_sent_and_gone_ones_taken_out(server, plaid, folder):
    write(folder, a__md="red apple", b__md="green pear")
    one = plaid()
    assert found(one, "apple") == ["a.md"]
    write(folder, a__md="red plum")
    (folder / "b.md").unlink()
    assert found(one, "plum pear") == ["a.md"]
    assert server.updates == [["a.md", "b.md"], ["a.md"]]
    assert [meta["path"] for rows in server.indices.values() for _, meta in rows] == ["a.md"]


def test_another_retriever_sends_nothing_again(server, plaid, folder):
    write(folder, a__md="red apple")
    assert found(plaid(), "apple") == found(plaid(), "apple") == ["a.md"]
    assert len(server.updates) == 1


def test_a_server_that_forgot_everything_is_given_it_again(server, plaid, folder):
    write(folder, a__md="red apple")
    one = plaid()
    assert found(one, "apple") == ["a.md"]
    server.indices.clear()
    assert found(one, "apple") == ["a.md"]


STALE = {"path": "/etc/passwd", "name": "x", "start": 0, "end": 9}


def test_what_the_server_has_and_the_folder_has_not_is_left_out(server, plaid, folder):
    write(folder, a__md="red apple")
    one = plaid()
    assert found(one, "apple") == ["a.md"]
    (rows,) = (rows for rows in server.indices.values() if rows)
    known = rows[0][1]
    server.answer = {"results": [{"scores": [9, 8], "metadata": [STALE, known]}]}
    assert found(one, "apple") == ["a.md"]


@pytest.mark.parametrize("known", [[], [STALE]], ids=["nothing", "another folder's"])
def test_while_the_server_has_encoded_nothing_the_embedded_index_answers(
    server, plaid, folder, known
):
    """A server takes texts (202) before it has encoded them: until then it finds nothing."""
    write(folder, a__md="red apple")
    server.answer = {"results": [{"scores": [9] * len(known), "metadata": known}]}
    with pytest.warns(RuntimeWarning, match="it may still be encoding"):
        hits = plaid().search("apple", kind="doc")
    assert [hit.path for hit in hits] == ["a.md"]


@pytest.mark.parametrize(("rest", "asked"), [(3600.0, 1), (0.0, 2)])
def test_a_server_that_did_not_answer_in_time_is_left_alone_for_a_while(monkeypatch, rest, asked):
    monkeypatch.setattr(nextplaid, "REST_SECONDS", rest)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = NextPlaid(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_seconds=0.05)
        for _ in range(2):
            with pytest.raises(RetrievalError, match="not answer"):
                server.health()
        silent.setblocking(False)
        for _ in range(asked):
            silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()


BAD_ANSWERS = {
    "no object": b"[]",
    "no json": b"<html>",
    "too deep": b"[" * 100_000,
    "no results": b"{}",
    "two few": b'{"results": [{"scores": [1], "metadata": []}]}',
    "no metadata": b'{"results": [{"scores": [1], "metadata": null}]}',
    "no number": b'{"results": [{"scores": ["x"], "metadata": [{"path": "a", "name": "", "start": 0, "end": 1}]}]}',
    "too large": b'"' + b"x" * (17 << 20) + b'"',
}


@pytest.mark.parametrize("answer", BAD_ANSWERS)
def test_an_answer_that_is_none_is_a_warning_and_the_embedded_index_answers(
    server, plaid, folder, answer
):
    write(folder, a__md="red apple")
    one = plaid()
    assert found(one, "apple") == ["a.md"]
    server.answer = BAD_ANSWERS[answer]
    with pytest.warns(RuntimeWarning, match="the embedded index answers"):
        hits = one.search("apple", kind="doc")
    assert hits.mode_used in ("fts", "maxsim")
    assert [hit.path for hit in hits] == ["a.md"]


@pytest.mark.parametrize("status", [302, 400, 500, 503])
def test_an_error_or_a_redirect_is_not_followed(server, plaid, folder, status):
    write(folder, a__md="red apple")
    server.status = status
    with pytest.warns(RuntimeWarning, match=f"answered {status}: "):
        hits = plaid().search("apple", kind="doc")
    assert hits.mode_used in ("fts", "maxsim")


def test_a_server_that_is_down_is_a_warning_that_names_it():
    server = NextPlaid("http://127.0.0.1:9")
    with (
        Retriever({"a": "red apple"}, server=server) as one,
        pytest.warns(RuntimeWarning, match=r"NextPLAID at http://127\.0\.0\.1:9 does not answer"),
    ):
        hits = one.search("apple", kind="doc")
    assert [hit.path for hit in hits] == ["a"]
    assert "the embedded index answers" in hits.warning


def test_health_is_what_the_server_says(server):
    assert NextPlaid(server.url).health()["status"] == "healthy"
    server.status = 500
    with pytest.raises(RetrievalError, match="answered 500"):
        NextPlaid(server.url).health()


@pytest.mark.parametrize("url", ["127.0.0.1:8088", "file:///etc/passwd", "http://", ""])
def test_what_is_no_url_of_a_server_is_refused(url):
    with pytest.raises(ConfigError, match="not the URL of a server"):
        NextPlaid(url)


@pytest.mark.parametrize("index", ["a/b", "../x", "", "x" * 65, "a b"])
def test_what_is_no_name_of_an_index_is_refused(index):
    with pytest.raises(ConfigError, match="not the name of an index"):
        NextPlaid(index=index)


@pytest.mark.spec("R4.4")
def test_a_server_on_the_usual_port_is_found_and_another_program_there_is_not(server, monkeypatch):
    monkeypatch.setattr(nextplaid, "DEFAULT_URL", server.url)
    assert nextplaid.find_server().url == server.url
    monkeypatch.setattr(NextPlaid, "health", lambda _self: {"status": "a web page"})
    assert nextplaid.find_server() is None
    monkeypatch.undo()
    monkeypatch.setattr(nextplaid, "DEFAULT_URL", "http://127.0.0.1:9")
    assert nextplaid.find_server() is None
