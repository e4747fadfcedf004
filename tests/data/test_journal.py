"""What a repeated, continued or changed run does again, and what not."""

import os
from pathlib import Path

import pytest

from ocr_panoptic.data import DataFaults
from ocr_panoptic.data.journal import Journal, Work


class Copies:
    """Copies files in capitals; a file that holds "fault" is one."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.recipe, self.done = "capitals", []
        for name in ("a", "b", "c"):
            self.write(name, name)

    def write(self, name, text):
        (self.folder / name).write_text(text)

    def output(self, name) -> Path:
        return self.folder / "copies" / name

    def copy(self, name, output):
        self.done.append(name)
        text = (self.folder / name).read_text()
        if "interrupt" in text:
            raise KeyboardInterrupt
        if text == "old":
            self.write(name, "new")  # by somebody else
        if "fault" in text:
            return [f"{name} has a fault"], ""
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text.upper())
        return [], f"result of {text}"

    def run(self, names="abc", finish=True) -> str:
        """One preparation. Returns the names that were copied in it."""
        self.done.clear()
        works = [Work(n, self.recipe, (self.folder / n,), self.output(n)) for n in names]
        journal = Journal(self.folder, "copies")
        journal.do(self.copy, names, works, "copy", workers=1)
        journal.publish()
        texts = [(self.folder / name).read_text() for name in names]
        assert journal.results == [f"result of {text}" for text in texts]
        assert [self.output(name).read_text() for name in names] == [t.upper() for t in texts]
        self.was_finished = journal.is_finished()
        if finish:
            journal.finish()
        return "".join(self.done)


@pytest.fixture
def copies(tmp_path):
    return Copies(tmp_path)


def test_a_repetition_does_nothing(copies, tmp_path):
    assert copies.run() == "abc" and not copies.was_finished
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    assert copies.run() == "" and copies.was_finished
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before
    assert [p.name for p in (tmp_path / ".preparation").iterdir()] == ["copies.jsonl"]


def test_another_content(copies):
    copies.run()
    copies.write("b", "x")  # as long as before
    assert copies.run() == "b"


def test_another_content_while_it_is_read(copies):
    """What was made of the old one is not taken for that of the new one."""
    copies.write("b", "old")
    os.utime(copies.folder / "b", ns=(1, 1))
    with pytest.raises(DataFaults, match="/b: has changed while it was read"):
        copies.run()
    assert copies.run() == "b"


def test_another_content_of_the_same_time_and_another_size(copies, tmp_path):
    copies.run()
    before = (tmp_path / "b").stat()
    copies.write("b", "longer")
    os.utime(tmp_path / "b", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert copies.run() == "b"


def test_another_time_alone(copies, tmp_path):
    copies.run()
    for path in (tmp_path / "b", copies.output("c")):
        os.utime(path, ns=(1, 1))
    assert copies.run() == ""
    assert copies.run() == "" and copies.was_finished


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("?")])
def test_an_output_that_is_not_as_it_was(copies, damage):
    copies.run()
    damage(copies.output("c"))
    assert copies.run() == "c"


def test_another_recipe(copies):
    copies.run()
    copies.recipe = "CAPITALS"
    assert copies.run() == "abc"


def test_more_and_fewer(copies):
    copies.run("ab")
    assert copies.run("abc") == "c" and not copies.was_finished
    assert copies.run("ca") == "" and not copies.was_finished
    assert copies.run("ca") == "" and copies.was_finished


def test_what_was_done_before_an_interruption(copies):
    copies.write("b", "interrupt")
    with pytest.raises(KeyboardInterrupt):
        copies.run()
    assert not copies.output("a").exists(), "nothing is in its place before all is done"
    copies.write("b", "b")
    assert copies.run() == "bc"


def test_what_has_no_fault(copies):
    copies.write("b", "fault")
    with pytest.raises(DataFaults, match="b has a fault"):
        copies.run()
    assert "".join(copies.done) == "abc" and not copies.output("a").exists()
    with pytest.raises(DataFaults, match="b has a fault"):
        copies.run()
    assert copies.done == ["b"], "a fault is looked for again"
    copies.write("b", "b")
    assert copies.run() == "b"


def test_an_end_before_the_last_step(copies):
    """Files made of all results may be old, though each piece of work is done."""
    copies.run()
    copies.write("b", "x")
    assert copies.run(finish=False) == "b"
    assert copies.run() == "" and not copies.was_finished
    assert copies.run() == "" and copies.was_finished


def test_files_made_of_all_results(copies, tmp_path):
    written = [tmp_path / "all"]
    copies.run()
    journal = Journal(tmp_path, "copies")
    works = [Work(n, copies.recipe, (tmp_path / n,), copies.output(n)) for n in "abc"]
    journal.do(copies.copy, "abc", works, "copy")
    for content in ("1", "23"):
        written[0].write_text(content)
        assert not journal.is_finished("list", written)
        journal.finish("list", written)
        journal = Journal(tmp_path, "copies")
        journal.do(copies.copy, "abc", works, "copy")
        assert journal.is_finished("list", written)
        assert not journal.is_finished("other list", written)
    written[0].unlink()
    assert not journal.is_finished("list", written)


@pytest.mark.parametrize("line", ["", "[1, 2]", "0" * 8, "{:.20}", "\x00{}", "{}}}", "{:.9}{{}}"])
def test_a_line_that_cannot_be_used(copies, tmp_path, line):
    copies.run()
    path = tmp_path / ".preparation/copies.jsonl"
    header, former, *others = path.read_text().splitlines()
    path.write_text("\n".join([header, line.format(former), *others]) + "\n")
    assert copies.run() == "a"
    assert copies.run() == ""


def test_a_result_that_is_damaged(copies, tmp_path):
    copies.run()
    path = tmp_path / ".preparation/copies.jsonl"
    path.write_text(path.read_text().replace("result of b", "result of c"))
    assert copies.run() == "b"


def test_names_are_no_patterns(copies, tmp_path):
    """A journal takes no lines of another."""
    copies.write("b", "interrupt")
    with pytest.raises(KeyboardInterrupt):
        copies.run()
    assert Journal(tmp_path, "copies")._known and not Journal(tmp_path, "cop*")._known
