"""Files that anyone may hand over: limits, damage, and writing that leaves no half."""

import gzip
import os
import stat
import subprocess
import sys
import time
import tracemalloc

import pytest

from cli_run import refusal, run_here
from commtax import files
from each import each
from tables import tables

DATA = tables(__file__)


def test_gzip_is_unpacked_within_limits(tmp_path):
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(b"ab") + gzip.compress(b"cd"))
    assert files.read_text(path) == "abcd"
    path.write_bytes(gzip.compress(bytes(300_000)))
    with pytest.raises(ValueError, match=r"trace '.*x.gz': larger than 0.191 MiB unpacked.*split it"):
        files.read_bytes(path, "trace", most=200_000)
    path = tmp_path / "bomb.gz"
    piece = gzip.compress(bytes(64 * 2**20))
    path.write_bytes(piece * 20)  # 1.25 GiB of zeros
    code = (
        "import resource, sys; from commtax import files\n"
        "resource.setrlimit(resource.RLIMIT_AS, (600 * 2**20, 600 * 2**20))\n"  # Python's own included
        "try: files.read_bytes(sys.argv[1], most=files.PIPE_BYTES)\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert "larger than 1 GiB unpacked" in done.stdout


@pytest.mark.parametrize("damage", [lambda raw: raw[:-9], lambda raw: raw[:20] + b"\xff" + raw[21:], lambda raw: raw[:2] + b"??"])
def test_damaged_gzip_names_the_file(tmp_path, damage):
    path = tmp_path / "x.gz"
    path.write_bytes(damage(gzip.compress(os.urandom(5000))))
    with pytest.raises(ValueError, match=r"log '.*x.gz': the gzip file is damaged or cut off"):
        files.read_bytes(path, "log")


def test_only_regular_files_of_a_bounded_size_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, told in ((tmp_path, "a folder"), (tmp_path / "pipe", "a pipe"), ("/dev/zero", "a device")):
        with pytest.raises(ValueError, match=f"topo '.*': is {told}; a regular file is needed"):
            files.read_text(path, "topo")
    with pytest.raises(ValueError, match="no such file"):
        files.read_text(tmp_path / "none", "topo")
    with pytest.raises(ValueError, match="cannot be read"):
        files.read_text("a\0b", "topo")
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(2**42)
    with pytest.raises(ValueError, match="larger than 16 MiB"):
        files.read_bytes(path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[" * 100_000, "nested deeper than"),
        ("[" * 70 + "]" * 70, "nested deeper than 64"),
        ('{"a":' * 70 + "1" + "}" * 70, "nested deeper than 64"),
        ("1" * 5000, "4,300 digits"),
        ('{"a": ', "not valid JSON"),
        ("[" + "[]," * 5_000_000, "might take more than 800 MiB"),
        ("", "not valid JSON"),
    ],
    ids=["open", "deep list", "deep object", "long number", "cut off", "many", "empty"],
)
def test_json_is_refused_in_one_line(text, told):
    for form in (text, text.encode()):
        with pytest.raises(ValueError, match=f"config 'x': .*{told}"):
            files.parse_json(form, "config 'x'")


def test_deep_json_is_read_and_many_keys_are_judged():
    assert files.parse_json("[" * 64 + "]" * 64, "x")
    text = "{" + ",".join(f'"{n:x}":{n}' for n in range(50_000)) + "}"
    tracemalloc.start()
    files.parse_json(text, "x", depth=None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < files.memory_of(text) + 2_000_000  # a table of keys grows by doubling


@each("unit", ["[],", "{},", "1.5,", '"é",', '{"a":1},', "[1],", '{"a":[]},', '{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6},'])
def test_objects_never_take_more_than_was_judged(unit):
    text = "[" + unit * 50_000 + "1]"
    tracemalloc.start()
    files.parse_json(text, "x", depth=None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < files.memory_of(text) + 200_000


def test_outputs_replace_whole_files_and_no_inputs(tmp_path):
    path = tmp_path / "out.json"
    files.write_text(path, "one")
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~_umask()
    path.chmod(0o640)
    files.write_text(path, "two")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode), os.listdir(tmp_path)) == ("two", 0o640, ["out.json"])
    (tmp_path / "a").write_text("x")
    (tmp_path / "b").symlink_to("a")
    os.link(tmp_path / "a", tmp_path / "c")
    for name in "abc":
        with pytest.raises(ValueError, match="is also an input"):
            files.refuse_overwriting(tmp_path / name, [tmp_path / "none", tmp_path / "a"])
    files.refuse_overwriting(tmp_path / "new", [tmp_path / "a"])
    path = tmp_path / "a.txt"
    path.write_text("# all_reduce_perf\n# Rank 0\n# Rank 1\n1048576 262144 float sum -1 25.41 41.26 41.26 0 25.2 41.6 41.6 0\n")
    assert "is also an input" in refusal(run_here("calibrate", path, "-c", "2xh100-sxm", "-o", path))
    assert path.read_text().startswith("# all_reduce_perf")


@pytest.mark.parametrize("fault", [KeyboardInterrupt, ValueError, OSError])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, fault):
    path = tmp_path / "out.svg"
    path.write_text("old")

    def fail():
        with files.replace_when_written(path) as part:
            assert part.suffix == ".svg"
            part.write_text("half")
            raise fault

    with pytest.raises((KeyboardInterrupt, ValueError)):
        fail()
    assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["out.svg"])


def test_an_interrupt_at_any_line_leaves_nothing_beside_the_file(tmp_path):
    """Law: whichever line of the writing an interrupt meets, the old text or the new one is there, and no other file."""
    path = tmp_path / "out.json"

    def interrupted_at(line: int) -> bool:
        seen = 0

        def watch(frame, event, _):
            nonlocal seen
            if frame.f_code.co_filename != files.__file__:
                return None
            seen += event == "line"
            if event == "line" and seen == line:
                raise KeyboardInterrupt
            return watch

        sys.settrace(watch)
        try:
            files.write_text(path, "new")
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)
        return False

    path.write_text("old")
    line = 1
    while interrupted_at(line):
        assert path.read_text() in ("old", "new")
        assert os.listdir(tmp_path) == ["out.json"], f"line {line} of the writing"
        path.write_text("old")
        line += 1
    assert path.read_text() == "new"
    assert line > 15


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_is_not_followed(tmp_path, exists):
    """… nor replaced, whether it leads anywhere or not; a folder behind a link is a folder."""
    (tmp_path / "real").write_text("old") if exists else None
    (tmp_path / "link").symlink_to("real")
    for write in (lambda path: files.write_text(path, "new", "html"), lambda path: files.check_writable(path, "html")):
        with pytest.raises(ValueError, match=r"html '.*link': is a symbolic link"):
            write(tmp_path / "link")
    assert ((tmp_path / "real").exists(), (tmp_path / "link").is_symlink()) == (exists, True)
    assert not exists or (tmp_path / "real").read_text() == "old"
    (tmp_path / "folder").mkdir()
    (tmp_path / "beside").symlink_to("folder")
    files.write_text(tmp_path / "beside" / "x", "new")
    assert (tmp_path / "folder" / "x").read_text() == "new"


@pytest.mark.parametrize("words", DATA["no_verb_writes_through_a_link"])
def test_no_verb_writes_through_a_link(tmp_path, words):
    (tmp_path / "kept.txt").write_text("mine")
    link = tmp_path / "out.svg"
    link.symlink_to("kept.txt")
    done = run_here(*words, link)
    assert (done.returncode, (tmp_path / "kept.txt").read_text()) == (2, "mine")
    assert "symbolic link" in done.stderr


def test_streams_and_places_are_tried_before_the_work(tmp_path):
    files.check_writable(tmp_path / "x.json")
    files.check_writable("/dev/null")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match=r"output '.*': cannot be written"):
        files.check_writable(tmp_path / "no" / "x.json", "output")
    code = "from commtax import files; files.write_text('/dev/stdout', 'answer'); files.write_text('/dev/null', 'x')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "answer"
    for path, told in ((tmp_path / "no" / "x", "no such folder"), (tmp_path, "folder|directory"), ("/dev/full", "space")):
        with pytest.raises(ValueError, match=rf"out '.*': cannot be written \(.*({told})"):
            files.write_text(path, "x")
    # ``… | commtax audit /dev/stdin``; a named pipe without a writer is refused, as ever.
    code = "from commtax import files; print(files.read_text('/dev/stdin', most=1000))"
    words = {"capture_output": True, "text": True, "check": False}
    assert subprocess.run([sys.executable, "-c", code], input="tp 8", **words).stdout == "tp 8\n"
    assert "larger than" in subprocess.run([sys.executable, "-c", code], input="x" * 5000, **words).stderr
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="is a pipe"):
        files.read_text(tmp_path / "pipe")


def _umask():
    now = os.umask(0)
    os.umask(now)
    return now


HOSTILE = {
    "deep": b"[" * 100_000, "damaged gzip": b"\x1f\x8b\x08\x00" + b"x" * 500, "cut gzip": gzip.compress(os.urandom(5000))[:-200],
    "long number": b'{"traceEvents": [' + b"1" * 5000 + b"]}", "binary": bytes(range(256)) * 40, "empty": b"",
}  # fmt: skip


@pytest.mark.parametrize("words", DATA["reading"], ids=lambda w: " ".join(w[:1]) + " " + w[-2])
def test_no_command_stumbles_over_a_file(tmp_path, words):
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "pipe")
    for name, content in HOSTILE.items():
        (tmp_path / name.replace(" ", "-")).write_bytes(content)
    for path in (
        *(p for p in tmp_path.iterdir() if p.is_file()),
        tmp_path / "pipe" / "pipe",
        "/dev/zero",
        tmp_path,
        "no-such-file",
    ):
        done = run_here(*(word.format(path) for word in words))
        assert done.returncode == 2, path
        assert done.stderr.startswith("error:"), path
        assert done.stderr.count("\n") == 1, path
        assert "internal" not in done.stderr, path


@pytest.mark.parametrize("kind", ["svg", "pdf"])
def test_pictures_are_the_same_to_the_byte(tmp_path, kind):
    """The second is drawn a second later: a date inside would differ."""
    words = ("compare", "llama-3.2-1b", "-c", "2xh100-sxm", "--over", "tp=1,2", "--plot")
    assert run_here(*words, tmp_path / f"a.{kind}").returncode == 0
    time.sleep(1.1)
    assert run_here(*words, tmp_path / f"b.{kind}").returncode == 0
    assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()


@pytest.mark.parametrize("words", DATA["what_cannot_be_written_is_one_line"], ids=lambda w: w[-2])
def test_what_cannot_be_written_is_one_line(words):
    assert "cannot be written (no such folder)" in refusal(run_here(*words))


def test_a_protected_file_is_not_replaced(tmp_path, monkeypatch):
    """Renaming over a file asks the folder alone; its own protection is asked too."""
    path = tmp_path / "my-box.json"
    path.write_text("kept")
    path.chmod(0o444)
    if os.access(path, os.W_OK):  # root may write anything: asked as somebody else
        monkeypatch.setattr(os, "access", lambda where, mode: bool(os.stat(where).st_mode & 0o222) or mode != os.W_OK)
    with pytest.raises(ValueError, match="write-protected"):
        files.write_text(path, "lost")
    assert path.read_text() == "kept"


@pytest.mark.skipif(not hasattr(os, "set_blocking"), reason="POSIX")
def test_nothing_to_read_yet_is_an_empty_file():
    """As /proc/kmsg is: a regular file that would let a reader wait."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    with open(reader, "rb") as file, open(writer, "wb"):
        assert file.read(2) is None
        assert next(files.FileStream(Seekable(file), "kmsg", "file").pieces(), b"") == b""


class Seekable:
    """A file of the kernel's: it can be asked to begin again, and has nothing to read."""

    def __init__(self, file):
        self.read, self.fileno = file.read, file.fileno

    def seek(self, at):
        assert at == 0

    def tell(self):
        return 0
