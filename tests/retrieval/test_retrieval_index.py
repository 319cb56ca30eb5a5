"""The index: only what changed is parsed, links lead nowhere, damage and a full disk are borne."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import threading

import pytest
from retrieval_kit import write

from atoll.agent.retrieval import Bounds, Retriever, retriever
from atoll.agent.retrieval.retriever import index_folder
from atoll.errors import ConfigError, RetrievalError

pytestmark = pytest.mark.spec("R4.4")


def paths(retriever, query, kind="doc"):
    return {hit.path for hit in retriever.search(query, kind=kind)}


def counts(refreshed):
    return refreshed.changed, refreshed.removed, refreshed.unchanged


def test_code_and_documents_are_found_apart(folder, retriever):
    write(folder, a__py='def tower():\n    """Builds a tower."""\n', b__md="# Towers\nOf stone.\n")
    one = retriever()
    (hit,) = one.search("tower")
    assert (hit.path, hit.name, hit.kind, hit.signature) == (
        "a.py",
        "tower",
        "function",
        "def tower()",
    )
    assert (hit.start_line, hit.end_line, hit.text) == (1, 2, (folder / "a.py").read_text())
    assert hit.score > 0
    assert [hit.name for hit in one.search("tower", kind="doc")] == ["Towers"]


def test_only_the_changed_file_is_parsed(folder, retriever, parsed):
    write(folder, a__md="one apple", b__md="two pears", c__md="three plums")
    one = retriever()
    assert counts(one.refresh()) == (3, 0, 0)
    write(folder, b__md="two cherries")
    assert counts(one.refresh()) == (1, 0, 2)
    assert parsed == ["a.md", "b.md", "c.md", "b.md"]
    assert paths(one, "cherries") == {"b.md"}
    assert paths(one, "pears") == set()


def test_a_file_that_is_only_touched_is_not_parsed(folder, retriever, parsed):
    write(folder, a__md="one apple")
    one = retriever()
    one.refresh()
    os.utime(folder / "a.md", (1, 1))
    assert counts(one.refresh()) == (0, 0, 1)
    assert parsed == ["a.md"]


def test_a_change_that_keeps_size_and_time_is_seen(folder, retriever):
    write(folder, a__md="apple")
    info = (folder / "a.md").stat()
    one = retriever()
    one.refresh()
    write(folder, a__md="peach")
    os.utime(folder / "a.md", ns=(info.st_atime_ns, info.st_mtime_ns))
    assert one.refresh().changed == 1
    assert paths(one, "peach") == {"a.md"}


def test_a_file_that_is_gone_is_not_found(folder, retriever):
    write(folder, a__md="one apple", b__md="an apple")
    one = retriever()
    one.refresh()
    (folder / "a.md").unlink()
    assert counts(one.refresh()) == (0, 1, 1)
    assert paths(one, "apple") == {"b.md"}


def test_another_retriever_finds_the_index_made(folder, retriever, parsed):
    write(folder, a__md="one apple")
    retriever().refresh()
    assert counts(retriever().refresh()) == (0, 0, 1)
    assert parsed == ["a.md"]


def test_a_search_looks_for_changes_first_only_if_the_last_look_is_old(folder, retriever):
    write(folder, a__md="one apple")
    eager, lazy = retriever(), retriever(cache=":memory:", fresh_seconds=1e6)
    assert paths(eager, "apple") == paths(lazy, "apple") == {"a.md"}
    write(folder, a__md="one peach")
    assert (paths(eager, "peach"), paths(lazy, "peach")) == ({"a.md"}, set())


def test_progress_is_told_file_by_file(folder, retriever):
    write(folder, a__md="a", b__md="b")
    told = []
    retriever().refresh(progress=lambda *numbers: told.append(numbers))
    assert told == [(0, 2), (1, 2), (2, 2)]


def test_links_binary_files_and_ignored_folders_are_left_out(folder, retriever, tmp_path):
    write(tmp_path, secret__md="apple secret")
    (tmp_path / "outside").mkdir()
    write(tmp_path / "outside", secret__md="apple secret")
    (folder / "link.md").symlink_to(tmp_path / "secret.md")
    (folder / "way").symlink_to(tmp_path / "outside")
    for name in (".git", "node_modules", "__pycache__", ".venv", "kept"):
        (folder / name).mkdir()
        write(folder / name, a__md="apple")
    (folder / "binary.md").write_bytes(b"apple\0")
    os.mkfifo(folder / "pipe.md")
    one = retriever()
    refreshed = one.refresh()
    assert (refreshed.units, refreshed.skipped) == (1, 1)
    assert paths(one, "apple") == {"kept/a.md"}
    assert one.refresh().skipped == 1


def test_a_file_that_becomes_a_link_while_it_is_read_is_not_followed(folder, retriever, tmp_path):
    write(tmp_path, secret__md="apple secret")
    write(folder, a__md="apple")
    one = retriever()
    entries = one._source.entries

    def swapped():
        found = list(entries())
        (folder / "a.md").unlink()
        (folder / "a.md").symlink_to(tmp_path / "secret.md")
        yield from found

    one._source.entries = swapped
    assert one.refresh().units == 0


def test_a_walk_that_was_ended_early_leaves_no_descriptor(folder, retriever):
    for name in "abc":
        (folder / name / "deep").mkdir(parents=True)
        write(folder / name / "deep", a__md="apple")
    one = retriever(bounds=Bounds(files=1))
    before = len(os.listdir("/proc/self/fd"))
    assert one.refresh().skipped == 1
    assert len(os.listdir("/proc/self/fd")) == before


def test_names_that_are_no_text_are_left_out(folder, retriever):
    with open(os.fsencode(folder) + b"/\xff.md", "w") as file:
        file.write("apple")
    assert retriever().refresh().units == 0


def test_bounds_are_kept_and_told(folder, retriever):
    write(folder, a__md="# A\nx\n# B\ny\n", b__md="z" * 2_000, c__md="c", d__md="d")
    few = Bounds(file_bytes=1_000, units_per_file=1, files=3)
    refreshed = retriever(bounds=few).refresh()
    assert (refreshed.changed, refreshed.units, refreshed.skipped) == (2, 2, 2)
    assert refreshed.note.startswith("not all is indexed: at most 3 files and 500,000 units")
    refreshed = retriever(cache=":memory:", bounds=Bounds(units=2)).refresh()
    assert (refreshed.units, refreshed.skipped) == (2, 1)


@pytest.mark.parametrize("name", Bounds.__slots__)
def test_bounds_must_be_positive(name):
    with pytest.raises(ConfigError):
        Bounds(**{name: 0})


def test_a_full_disk_is_told_and_what_there_is_still_answers(folder, retriever):
    write(folder, a__md="one apple")
    one = retriever(bounds=Bounds(index_bytes=300_000))
    one.refresh()
    write(folder, b__md="\n\n".join(f"word{n} apple" for n in range(50_000)))
    with pytest.raises(RetrievalError, match="database or disk is full: make room on the disk"):
        one.refresh()
    hits = one.search("apple", kind="doc")
    assert [hit.path for hit in hits] == ["a.md"]
    assert hits.warning.startswith("the index is not up to date: ")


def test_the_index_is_for_its_user_alone(folder, retriever, tmp_path):
    (tmp_path / "cache").mkdir(mode=0o755)
    retriever().refresh()
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700
    assert all(not one.stat().st_mode & 0o077 for one in (tmp_path / "cache").iterdir())


def test_without_a_cache_each_root_has_a_folder_of_its_own(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "all"))
    write(folder, a__md="apple")
    with Retriever(folder, mode="fts") as one:
        assert paths(one, "apple") == {"a.md"}
    assert (index_folder(folder) / "index.db").exists()
    assert index_folder(folder) != index_folder(tmp_path)


def test_an_index_that_nobody_used_for_a_month_is_removed(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "all"))
    for root in (folder, tmp_path):
        with Retriever(root, mode="fts"):
            pass
    old = index_folder(folder)
    os.utime(old / "lock", (1, 1))
    with Retriever(tmp_path, mode="fts"):
        pass
    assert not old.exists()
    assert index_folder(tmp_path).exists()


def damaged_head(path):
    path.write_bytes(b"this is no database" * 1_000)


def damaged_middle(path):
    data = bytearray(path.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    path.write_bytes(data)


def older(path):
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 0")
    db.close()


def lacking(path):
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE units")
    db.close()


@pytest.mark.parametrize("damage", [damaged_head, damaged_middle, older, lacking])
def test_a_damaged_or_older_index_is_made_anew(folder, retriever, tmp_path, damage):
    write(folder, a__md="one apple")
    first = retriever()
    first.refresh()
    first.close()
    damage(tmp_path / "cache" / "index.db")
    one = retriever()
    assert paths(one, "apple") == {"a.md"}
    assert one.refresh().unchanged == 1


def test_damage_while_in_use_is_mended(folder, retriever, tmp_path):
    for number in range(300):
        (folder / f"{number}.md").write_text(f"apple number{number} " * 50)
    one = retriever(fresh_seconds=1e6)
    one.refresh()
    one._store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    damaged_middle(tmp_path / "cache" / "index.db")
    one._store._db.execute("PRAGMA cache_size = 0")
    assert paths(one, "number7") == {"7.md"}


def test_two_processes_may_index_at_once(folder, tmp_path, retriever):
    for number in range(60):
        (folder / f"{number}.md").write_text(
            "".join(f"# S{n}\napple {number}\n" for n in range(30))
        )
    code = (
        "import sys; from atoll.agent.retrieval import Retriever\n"
        "with Retriever(sys.argv[1], cache=sys.argv[2], mode='fts') as one:\n"
        "    print(one.refresh().units)\n"
    )
    command = [sys.executable, "-c", code, str(folder), str(tmp_path / "cache")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate()[0] for process in both] == ["1800\n"] * 2
    one = retriever()
    assert counts(one.refresh())[:2] == (0, 0)
    one._store.check()
    words = one._store._db
    for table in ("words_code", "words_doc"):
        words.execute(f"INSERT INTO {table} ({table}) VALUES ('integrity-check')")


def test_many_threads_may_search_and_refresh(folder, retriever):
    write(folder, a__md="apple", b__md="apple pear")
    one, wrong = retriever(), []

    def work(number):
        for turn in range(10):
            write(folder, **{f"own{number}__md": f"apple {turn}"})
            if not {"a.md", "b.md"} <= paths(one, "apple"):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert wrong == []
    one._store.check()


def test_a_closed_retriever_says_so_and_leaks_nothing(folder, tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    one = Retriever(folder, cache=tmp_path / "cache", mode="fts")
    one.search("x")
    one.close()
    one.close()
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(RetrievalError, match="the retriever is closed"):
        one.search("x")


def test_texts_are_found_by_character_offsets():
    text = "intro é\n\n# One\napples\n\n# Two\npears \ud800\n"
    with Retriever({"context": text}, mode="fts") as one:
        (hit,) = one.search("pears", kind="doc")
    assert text[hit.start : hit.end].startswith("# Two\npears")


def test_a_root_that_is_no_folder_is_refused(tmp_path):
    with pytest.raises(RetrievalError, match=r"cannot search the folder .*No such file"):
        Retriever(tmp_path / "nowhere", cache=":memory:")


def test_a_cache_of_somebody_else_is_refused(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(retriever.os, "geteuid", lambda: 12345)
    with pytest.raises(RetrievalError, match="belongs to another user: set ATOLL_CACHE"):
        Retriever(folder, cache=tmp_path / "cache")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "magic"}, "unknown mode 'magic': use one of auto, fts, fused, maxsim, nextplaid"),
        ({"mode": "nextplaid"}, "mode 'nextplaid' needs a server: give server=NextPlaid(url)"),
    ],
)
def test_a_wrong_mode_is_told(options, message):
    with pytest.raises(ConfigError) as caught:
        Retriever({}, **options)
    assert str(caught.value) == message
