"""The program that runs on the source, as a process, with stand-ins for ``docker save`` and the targets' ssh."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.site import eventually
from tests.images.archives import JSON, Archive, contents, entry

SENDER = Path(__file__).parents[2] / "fdl_tasks/images/sender.py"
GOOD = "cat >{out}; echo Loaded"
LAYERS = [random.Random(n).randbytes(3_000_000) for n in range(3)]
pytestmark = pytest.mark.subprocess


class Sending:
    """A run of the sender in a folder: what each target's stand-in does, and what came of it."""

    def __init__(self, folder: Path):
        self.folder, self.limits = folder, {"stall": 30.0, "load_stall": 30.0, "lag": 30.0}
        self.targets, self.groups = dict[str, str](), list[dict[str, Any]]()
        self.content: list[str] = []

    def group(self, *names: str, omit: Sequence[str] = (), base: Sequence[str] | None = None, does: str = GOOD) -> None:
        """Targets whose load is the shell text ``does``; ``{out}`` in it is where the target's bytes belong."""
        self.groups.append({"targets": names, "omit": list(omit), "base": base})
        self.targets |= {name: does.replace("{out}", str(self.folder / name)) for name in names}

    def start(self, save: str, python: str = sys.executable) -> subprocess.Popen[str]:
        job = {
            "save": ["sh", "-c", save],
            "groups": self.groups,
            "targets": {name: [["sh", "-c", does]] for name, does in self.targets.items()},
            "content": self.content,
            "read": [],
            **self.limits,
        }
        (self.folder / "job").write_text(json.dumps(job))
        with (self.folder / "job").open() as stdin:
            return subprocess.Popen(
                [python, "-I", "-S", SENDER],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )

    def run(self, save: str | Path, python: str = sys.executable) -> dict[str, Any]:
        """The last line of each target by its name, that of the end as ``end``, and ``seconds``."""
        began = time.monotonic()
        process = self.start(f"cat '{save}'" if isinstance(save, Path) else save, python)
        out, err = process.communicate(timeout=100)
        assert (process.returncode, err) == (0, "")
        lines = [json.loads(line) for line in out.splitlines()]
        assert list(lines[-1]) == ["end", "error"]
        ends = {line["target"]: line for line in lines if "said" in line}
        assert set(ends) == set(self.targets)
        return {**ends, "end": lines[-1]["error"], "lines": lines, "seconds": time.monotonic() - began}

    def got(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()


@pytest.fixture
def sending(tmp_path: Path) -> Sending:
    return Sending(tmp_path)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Archive().image(LAYERS).write(tmp_path_factory.mktemp("saved") / "image.tar")


def pythons() -> Iterator[str]:
    yield sys.executable
    for name in ("python3.8", "/usr/bin/python3"):
        if (found := shutil.which(name)) and not subprocess.run([found, "-c", ""], capture_output=True).returncode:
            yield found


@pytest.mark.parametrize("version", [(3, 8), (3, 13)])
def test_it_is_written_in_the_language_of_python_3_8(version: tuple[int, int]) -> None:
    ast.parse(SENDER.read_text(), feature_version=version)


def test_every_target_gets_the_archive_byte_for_byte(sending: Sending, archive: Path) -> None:
    for number, python in enumerate(pythons()):
        sending.targets, sending.groups = {}, []
        sending.group(f"a{number}", f"b{number}")
        done = sending.run(archive, python)
        for name in sending.targets:
            assert sending.got(name) == archive.read_bytes()
            facts = {"code": 0, "said": ["Loaded"], "error": None, "late": False}
            assert done[name] == done[name] | facts | {"bytes": archive.stat().st_size}
        assert done["end"] is None


def test_a_stop_in_the_middle_of_a_write_loses_nothing(sending: Sending, archive: Path) -> None:
    """A write that waits for room gives back less than it was given when the machine sleeps meanwhile."""
    sending.group("slow", does="for n in 1 2 3 4 5 6 7 8 9; do head -c 100000; sleep 0.1; done >{out}; cat >>{out}")
    process = sending.start(f"cat '{archive}'")
    for _ in range(50):
        time.sleep(0.02)
        process.send_signal(signal.SIGSTOP)
        process.send_signal(signal.SIGCONT)
    process.communicate(timeout=30)
    assert sending.got("slow") == archive.read_bytes()


def test_a_group_gets_it_without_what_it_has(sending: Sending) -> None:
    image = Archive().image(LAYERS)
    sending.group("all")
    sending.group("delta", omit=image.names[:2])
    sending.run(image.write(sending.folder / "saved"))
    everything = contents(image.bytes())
    assert contents(sending.got("all")) == everything
    kept = [name for name in everything if name not in image.names[:2]]
    assert list(contents(sending.got("delta"))) == kept
    assert contents(sending.got("delta")) == {name: everything[name] for name in kept}
    assert sending.got("delta").endswith(image.bytes()[-20000:])  # the documents and the end, byte for byte


def test_blobs_of_a_base_are_left_out(sending: Sending) -> None:
    base = Archive().image([LAYERS[0], b"other"]).write(sending.folder / "base")
    image = Archive().image(LAYERS)
    sending.group("delta", base=["cat", str(base)])
    done = sending.run(image.write(sending.folder / "saved"))
    assert done["delta"]["code"] == 0
    assert image.names[0] not in contents(sending.got("delta"))
    assert set(image.names[1:]) < set(contents(sending.got("delta")))


@pytest.mark.parametrize(("kept", "left_out"), [("true", True), ("other", False), ("nothing", False)])
def test_a_base_is_read_from_the_store_where_that_can_be(sending: Sending, kept: str, left_out: bool) -> None:
    image, base = Archive().image(LAYERS), Archive().image([LAYERS[0], b"other"])
    store = contents(base.bytes())
    manifest = list(store)[-4]
    index = json.dumps({"manifests": [{"digest": manifest[6:].replace("/", ":")}]}).encode()
    top = f"blobs/sha256/{hashlib.sha256(index).hexdigest()}"
    texts = {"true": {top: index, manifest: store[manifest]}, "other": {top: store[manifest]}, "nothing": {}}[kept]
    for name, text in texts.items():
        (sending.folder / "store" / name).parent.mkdir(parents=True, exist_ok=True)
        (sending.folder / "store" / name).write_bytes(text)
    sending.content = [str(sending.folder / "elsewhere"), str(sending.folder / "store")]
    sending.group("delta", base=["sh", "-c", "exit 1", top[6:].replace("/", ":")])  # a docker save that fails
    done = sending.run(image.write(sending.folder / "saved"))
    assert done["delta"]["code"] == 0
    assert (image.names[0] not in contents(sending.got("delta"))) is left_out
    assert any("note" in line for line in done["lines"]) is not left_out


def test_a_base_that_cannot_be_read_leaves_nothing_out(sending: Sending, archive: Path) -> None:
    sending.group("delta", base=["sh", "-c", "echo no such image >&2; exit 1"])
    done = sending.run(archive)
    assert sending.got("delta") == archive.read_bytes()
    notes = [line["note"] for line in done["lines"] if "note" in line]
    assert notes == [
        "nothing is left out, since the base can't be read: docker save ended with 1 after 0 bytes: no such image"
    ]


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_long_names_are_read_and_kept(form: int, sending: Sending) -> None:
    image = Archive(form)
    names = [f"{'d' * 90}/{'n' * 60}{n}" for n in range(2)]
    for name in names:
        image.add(name, b"x" * 700)
    image.image(LAYERS[:1])
    sending.group("all")
    sending.group("less", omit=names[:1])
    sending.run(image.write(sending.folder / "saved"))
    assert sending.got("all") == image.bytes()
    assert list(contents(sending.got("less"))) == [name for name in contents(image.bytes()) if name != names[0]]


def test_one_that_dies_in_the_middle_does_not_stop_the_others(sending: Sending) -> None:
    saved = Archive().image([bytes(20 << 20), *LAYERS]).write(sending.folder / "saved")
    sending.group("a", "c")
    sending.group("b", does="head -c 1000000 >/dev/null; echo 'no space left on device'; exit 1")
    done = sending.run(saved)
    assert sending.got("a") == sending.got("c") == saved.read_bytes()
    assert (done["b"]["code"], done["b"]["said"], done["b"]["error"]) == (1, ["no space left on device"], None)


def test_one_that_ends_well_without_reading_has_not_loaded(sending: Sending) -> None:
    saved = Archive().image([bytes(20 << 20)]).write(sending.folder / "saved")
    sending.group("a", does="exit 0")
    sending.group("b")
    assert sending.run(saved)["a"]["error"] == "it ended before it had everything"


def test_one_that_never_reads_is_given_up_and_the_others_finish_in_time(sending: Sending) -> None:
    saved = Archive().image([bytes(30 << 20)]).write(sending.folder / "saved")
    sending.limits["stall"] = 2.0
    sending.group("a", "b")
    sending.group("deaf", does="exec sleep 1000")
    done = sending.run(saved)
    assert sending.got("a") == sending.got("b") == saved.read_bytes()
    assert done["deaf"]["error"].startswith("it took no byte for 2 s, ")
    assert done["seconds"] < 8


def test_a_load_that_has_everything_and_makes_no_progress_is_given_up(sending: Sending, archive: Path) -> None:
    sending.limits["load_stall"] = 1.0
    sending.group("a")
    sending.group("stuck", does="cat >/dev/null; exec sleep 1000")
    sending.group("busy", does="cat >/dev/null; for n in 1 2 3 4 5; do sleep 0.5; echo Loading; done")
    done = sending.run(archive)
    size = archive.stat().st_size
    assert done["stuck"]["error"] == f"it had all {size} bytes, and its load made no progress for 1 s"
    assert (done["busy"]["error"], done["busy"]["code"], done["a"]["code"]) == (None, 0, 0)


def test_one_that_the_others_wait_for_gets_a_pass_of_its_own_later(sending: Sending) -> None:
    saved = Archive().image([bytes(40 << 20)]).write(sending.folder / "saved")
    sending.limits["lag"] = 1.0
    slow = "while [ -n \"$(head -c 300000 | tr '\\0' x | head -c 1)\" ]; do sleep 0.5; done"
    sending.targets |= {"slow": slow}
    sending.group("a")
    sending.groups[0]["targets"] = ["a", "slow"]
    done = sending.run(saved)
    assert sending.got("a") == saved.read_bytes()
    assert done["slow"]["late"] and "stood still for it" in done["slow"]["error"]


def test_one_alone_is_never_too_slow(sending: Sending) -> None:
    saved = Archive().image([bytes(12 << 20)]).write(sending.folder / "saved")
    sending.limits["lag"] = 0.2
    sending.group("slow", does="head -c 1000000 >/dev/null; sleep 1; cat >{out}")
    assert sending.run(saved)["slow"]["error"] is None


def broken(image: Archive) -> bytes:
    data = bytearray(image.bytes())
    data[600] ^= 1
    return bytes(data)


FULL = Archive().image(LAYERS).bytes()
SHORT = "docker save ended well, but its archive stops after 2000000 bytes"
OLD = {"manifest.json": json.dumps([{"Config": "c.json", "Layers": ["1/layer.tar"]}]).encode()}


@pytest.mark.parametrize(
    ("saved", "after", "error"),
    [
        (FULL[:2_000_000], "exit 0", SHORT),
        (FULL[:2_000_000], "echo daemon gone >&2; exit 1", "docker save ended with 1 after 2000000 bytes: daemon gone"),
        (FULL[:2_000_000], "kill -KILL $$", "docker save was killed by signal 9 after 2000000 bytes"),
        (FULL, "exit 3", f"docker save ended with 3 after {len(FULL)} bytes"),
        (b"", "exit 0", "docker save ended well, but its archive stops after 0 bytes"),
        (b"Cannot connect" * 100, "exit 0", "docker save gave no tar archive: see byte 512"),
        (
            Archive().image([*LAYERS, b"gone"], lacking=1).bytes(),
            "exit 0",
            "docker save ended well, but its archive lacks "
            f"{Archive().image([b'gone']).names[0]}: the source's copy is incomplete",
        ),
        (
            broken(Archive().image(LAYERS)),
            "exit 0",
            f"docker save gave {Archive().image(LAYERS).names[0]} with other content than that: "
            "the source's copy is damaged",
        ),
    ],
    ids=["cut", "failed", "killed", "failed-at-the-end", "empty", "no-archive", "lacking", "flipped"],
)
def test_what_is_wrong_with_the_source_is_said_of_the_source(
    saved: bytes, after: str, error: str, sending: Sending
) -> None:
    (sending.folder / "saved").write_bytes(saved)
    sending.group("a", "b")
    done = sending.run(f"cat '{sending.folder}/saved'; {after}")
    assert done["end"] == error
    assert [done[name]["error"] for name in "ab"] == [f"the source failed: {error}"] * 2
    with contextlib.suppress(tarfile.TarError):  # what they have is no image: the documents were held back
        assert not {"index.json", "manifest.json"} & set(contents(sending.got("a") + bytes(1024)))


def test_a_save_that_gives_no_byte_any_more_is_the_sources_error_though_it_cannot_be_ended(sending: Sending) -> None:
    sending.limits["load_stall"] = 1.0
    (sending.folder / "saved").write_bytes(FULL[:2_000_000])
    sending.group("a", "b")
    done = sending.run(f"cat '{sending.folder}/saved'; sleep 8; exit 0")  # the sleep outlives the shell that is killed
    assert done["end"] == "docker save gave no byte for 1 s, 2000000 bytes in all"
    assert [done[name]["error"] for name in "ab"] == [f"the source failed: {done['end']}"] * 2
    assert done["seconds"] < 6


def test_a_base_that_gives_no_byte_leaves_nothing_out(sending: Sending, archive: Path) -> None:
    sending.limits["load_stall"] = 1.0
    sending.group("delta", base=["sh", "-c", "exec sleep 8"])
    done = sending.run(archive)
    assert sending.got("delta") == archive.read_bytes()
    [note] = [line["note"] for line in done["lines"] if "note" in line]
    assert note.endswith("since the base can't be read: docker save gave no byte for 1 s, 0 bytes in all")


def below_zero(**fields: str) -> bytes:
    """An archive whose first entry says that it has less than no bytes."""
    info = tarfile.TarInfo("x")
    info.size, info.pax_headers = 0 if fields else -512, fields
    return info.tobuf(tarfile.PAX_FORMAT if fields else tarfile.GNU_FORMAT) + FULL


def odd_header(records: bytes) -> bytes:
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, len(records)
    return info.tobuf(tarfile.USTAR_FORMAT) + records.ljust(512, b"\0") + FULL


@pytest.mark.parametrize(
    "saved", [below_zero(), below_zero(size="-512"), odd_header(b"many path=x\n"), odd_header(b"13 size=many\n")]
)
def test_a_header_that_makes_no_sense_is_the_sources_error(saved: bytes, sending: Sending) -> None:
    (sending.folder / "saved").write_bytes(saved)
    sending.group("a")
    done = sending.run(sending.folder / "saved")
    assert (done["end"] or "").startswith("docker save "), done["end"]
    assert done["a"]["error"] == f"the source failed: {done['end']}"


@pytest.mark.parametrize(
    ("entries", "missing"),
    [
        ({**OLD, "c.json": b"{}", "1/layer.tar": b"x"}, None),
        ({**OLD, "c.json": b"{}"}, "1/layer.tar"),
        ({"c.json": b"{}"}, "manifest.json"),
    ],
    ids=["whole", "a-layer-gone", "no-manifest"],
)
def test_archives_of_the_old_form_are_checked_by_their_manifest(
    entries: dict[str, bytes], missing: str | None, sending: Sending
) -> None:
    image = Archive()
    for name, data in entries.items():
        image.add(name, data)
    sending.group("a")
    error = sending.run(image.write(sending.folder / "saved"))["end"]
    assert error == (
        missing and f"docker save ended well, but its archive lacks {missing}: the source's copy is incomplete"
    )


@pytest.mark.parametrize("text", [b"{}", b"[]", b"no json", b'[{"Layers": null}]', b"3"])
def test_a_manifest_of_another_form_is_an_error(text: bytes, sending: Sending) -> None:
    image = Archive()
    image.add("manifest.json", text)
    sending.group("a")
    error = sending.run(image.write(sending.folder / "saved"))["end"]
    assert error.startswith("docker save gave manifests of another form: ")


@pytest.mark.parametrize(
    ("there", "good"), [({"own", "attests"}, True), ({"own"}, True), ({"attests"}, False), (set(), False)]
)
def test_an_index_needs_one_of_its_images_and_no_attestation(there: set[str], good: bool, sending: Sending) -> None:
    image = Archive()
    config, layer = image.blob(b'{"a":1}'), image.blob(LAYERS[0])
    manifest = json.dumps({"mediaType": JSON, "config": {"digest": config}, "layers": [{"digest": layer}]}).encode()
    attest = json.dumps({"config": {"digest": "sha256:0"}, "layers": [{"digest": "sha256:1"}]}).encode()
    scratch = Archive()
    own = (image if "own" in there else scratch).blob(manifest)
    of = (image if "attests" in there else scratch).blob(attest)
    children = [
        {"digest": f"sha256:{'e' * 64}"},
        {"digest": own},
        {"digest": of, "annotations": {"vnd.docker.reference.type": "attestation-manifest"}},
    ]
    index = image.blob(json.dumps({"manifests": children}).encode())
    sending.group("a")
    done = sending.run(image.end(config, [layer], [{"digest": index}]).write(sending.folder / "saved"))
    lacks = f"docker save ended well, but its archive lacks {entry('sha256:' + 'e' * 64)}: "
    assert done["end"] == (None if good else lacks + "the source's copy is incomplete")


def test_memory_is_bounded_whatever_the_size(sending: Sending) -> None:
    size = 2_000_000_000
    info = tarfile.TarInfo("old/layer.tar")
    info.size = size
    (sending.folder / "head").write_bytes(info.tobuf())
    tail = Archive()
    tail.add("c.json", b"{}")
    tail.add("manifest.json", json.dumps([{"Config": "c.json", "Layers": ["old/layer.tar"]}]).encode())
    (sending.folder / "tail").write_bytes(bytes(-size % 512) + tail.bytes())
    sending.group("a", "b", does="cat >/dev/null")
    sending.group("waits", does="sleep 1; cat >/dev/null")
    here = sending.folder
    process = sending.start(f"cat '{here}/head'; head -c {size} /dev/zero; cat '{here}/tail'")
    most = 0
    while process.poll() is None:
        most = max(most, peak(process.pid))
        time.sleep(0.02)
    lines = [json.loads(line) for line in process.stdout or ()]
    assert lines[-1] == {"end": True, "error": None}
    assert [line["code"] for line in lines if "code" in line] == [0, 0, 0]
    assert 1 << 20 < most < 150 << 20
    said = [line["bytes"] for line in lines if line.get("target") == "a"]
    assert len(said) > 1 and said == sorted(said)


def peak(pid: int) -> int:
    """The most memory that a process has had, in bytes."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) << 10
    return 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_leaves_no_child(number: signal.Signals, sending: Sending) -> None:
    sending.group("a", "deaf", does="exec sleep 1000")
    process = sending.start(f"cat '{Archive().image([bytes(30 << 20)]).write(sending.folder / 'saved')}'; sleep 1000")
    assert eventually(lambda: len(group(process.pid)) >= 4)
    process.send_signal(number)
    assert process.wait(2) == 143
    assert eventually(lambda: group(process.pid) == [], 1)


def group(leader: int) -> list[str]:
    """The living processes of a process group."""
    found = subprocess.run(["ps", "-eo", "pgid=,stat=,args="], capture_output=True, text=True).stdout.splitlines()
    words = [line.split(None, 2) for line in found]
    return [args for pgid, stat, args in words if pgid == str(leader) and not stat.startswith("Z")]


def test_it_ends_when_nobody_reads_what_it_says(sending: Sending) -> None:
    sending.group("a", does="exec sleep 1000")
    process = sending.start("exec sleep 1000")
    assert process.stdout
    process.stdout.close()
    assert process.wait(5) == 143
    assert eventually(lambda: group(process.pid) == [], 1)


def test_a_program_that_is_not_there_is_told(sending: Sending) -> None:
    sending.group("a")
    (sending.folder / "job").write_text("")
    process = subprocess.run(
        [sys.executable, SENDER],
        input=json.dumps({"save": ["/no/docker"], "groups": [], "targets": {}, **sending.limits}),
        capture_output=True,
        text=True,
    )
    assert json.loads(process.stdout)["error"] == "[Errno 2] No such file or directory: '/no/docker'"
