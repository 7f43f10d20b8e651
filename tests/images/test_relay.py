"""The relay as a process, with stand-ins for the source's docker and the targets' scripts, over real sockets."""

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
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fdl_tasks.images.relay import CURE
from tests.e2e.site import eventually

ROOT = Path(__file__).parents[2]
RELAY = ROOT / "fdl_tasks/images/relay.py"
DOCKER, PULL = (ROOT / f"tests/cases/images/relay/{name}.py" for name in ("docker", "pull"))
LAYERS = [random.Random(n).randbytes(size) for n, size in enumerate([3_000_000, 40_000, 900_000])]
pytestmark = pytest.mark.subprocess


def sha(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def part(data: bytes) -> dict[str, Any]:
    return {"digest": sha(data), "size": len(data)}


def manifest(layers: list[bytes], config: bytes = b'{"a":1}') -> str:
    return json.dumps({"config": part(config), "layers": [part(layer) for layer in layers]})


class Site:
    """A run of the relay in a folder: the source's image, what each target is like, and what came of it."""

    def __init__(self, folder: Path):
        self.folder, self.image, self.targets = folder, dict[str, Any](), dict[str, list[str]]()
        self.job: dict[str, Any] = {"stall": 20.0, "load_stall": 20.0, "lag": 20.0}
        self.python = sys.executable
        self.has(LAYERS)

    def has(self, layers: list[bytes], **odd: Any) -> None:
        """The source has an image of these layers; ``odd``: as the stand-in for docker says."""
        config = b'{"a":1}'
        for blob in [config, *layers]:
            (self.folder / sha(blob)).write_bytes(blob)
        text = manifest(layers, config)
        digests = list(dict.fromkeys(sha(blob) for blob in [config, *layers]))
        self.image = {"manifests": [("latest", text)], "blobs": digests, **odd}
        self.job["vouched"] = [sha(text.encode())]

    def target(self, name: str, **odd: Any) -> None:
        """A target; ``odd``: as the stand-in for its script says."""
        (self.folder / name).mkdir()
        words = [f"{key}={value}" for key, value in odd.items()]
        self.targets[name] = [sys.executable, "-S", str(PULL), str(self.folder / name), "@PORT@", *words]

    def prepared(self) -> str:
        """The job; what the stand-in for docker reads is written."""
        (self.folder / "image.json").write_text(json.dumps(self.image))
        docker = [sys.executable, "-S", str(DOCKER), str(self.folder)]
        return json.dumps({"docker": docker, "image": "app:1", "name": "x/app", "targets": self.targets, **self.job})

    def start(self) -> subprocess.Popen[str]:
        job, pipe, argv = self.prepared(), subprocess.PIPE, [self.python, "-I", "-S", str(RELAY)]
        process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, cwd=self.folder, start_new_session=True)
        assert process.stdin
        process.stdin.write(job)
        process.stdin.close()
        return process

    def run(self) -> dict[str, Any]:
        """The last line of each target by its name, the end's error as ``end``, all as ``lines``, and ``seconds``."""
        began, process = time.monotonic(), self.start()
        assert process.stdout
        lines = [json.loads(line) for line in process.stdout]
        assert process.wait(10) == 0
        assert list(lines[-1]) == ["end", "error", "learnt"]
        ends = {line["target"]: line for line in lines if "said" in line}
        learnt = lines[-1]["learnt"]
        assert set(ends) == (set(self.targets) if learnt else set())
        assert self.log("rmi") == self.log("tag") or not self.log("tag")
        seconds = time.monotonic() - began
        return {**ends, "end": lines[-1]["error"], "learnt": learnt, "lines": lines, "seconds": seconds}

    def log(self, word: str) -> int:
        """How often the stand-in for docker did that."""
        with contextlib.suppress(FileNotFoundError):
            return sum(line.split()[0] == word for line in (self.folder / "log").read_text().splitlines())
        return 0

    def got(self, name: str) -> list[str]:
        """Digests of the blobs that a target has whole."""
        files = [path for path in (self.folder / name).iterdir() if sha(path.read_bytes()) == path.name]
        return sorted(path.name for path in files)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.parametrize("version", [(3, 8), (3, 13)])
def test_it_is_written_in_the_language_of_python_3_8(version: tuple[int, int]) -> None:
    ast.parse(RELAY.read_text(), feature_version=version)


def test_it_needs_nothing_but_the_standard_library_and_none_of_what_is_newer_than_3_8() -> None:
    tree = ast.parse(RELAY.read_text())
    names = {
        alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    names |= {str(node.module).split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names <= set(sys.stdlib_module_names)
    newer = {"removeprefix", "removesuffix", "to_thread", "TaskGroup", "randbytes", "readlink", "timeout", "pairwise"}
    assert not newer & {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def pythons() -> Iterator[str]:
    yield sys.executable
    for name in ("python3.8", "/usr/bin/python3", "python3.13"):
        if (found := shutil.which(name)) and not subprocess.run([found, "-c", ""], capture_output=True).returncode:
            yield found


@pytest.mark.parametrize("python", list(pythons()))
def test_all_targets_get_what_they_lack(python: str, site: Site) -> None:
    site.python = python
    site.target("a")
    site.target("b", has=sha(LAYERS[0]))
    done = site.run()
    config = sha(b'{"a":1}')
    assert done["end"] is None
    assert site.got("a") == sorted([config, *map(sha, LAYERS)])
    assert site.got("b") == sorted([config, *map(sha, LAYERS[1:])])
    for name, layers in {"a": LAYERS, "b": LAYERS[1:]}.items():
        size = 7 + sum(map(len, layers))
        facts = {"code": 0, "error": None, "late": False, "bytes": size, "said": ["__FDL_LOAD__", "__FDL_LOADED__ 0"]}
        assert done[name] == done[name] | facts
        assert [line["total"] for line in done["lines"] if "total" in line and line["target"] == name][-1] == size
    assert done["learnt"] == {"digest": site.job["vouched"][0], "manifests": site.job["vouched"]}
    assert site.log("push") <= 3  # to learn, to send, and on a busy machine again for one that asked late


def test_one_push_serves_all_that_ask_in_time(tmp_path: Path) -> None:
    pushes = list[int]()
    for attempt in range(5):  # in time is a matter of tenths of a second
        (tmp_path / str(attempt)).mkdir()
        site = Site(tmp_path / str(attempt))
        site.target("a")
        site.target("b", has=sha(LAYERS[0]))
        assert site.run()["end"] is None
        pushes.append(site.log("push"))
        if pushes[-1] == 2:  # to learn, to send
            break
    assert pushes[-1] == 2, pushes
    assert site.log("PUT") == 4  # each blob once


def test_what_nobody_lacks_is_not_sent(site: Site) -> None:
    site.target("a", has=",".join(map(sha, LAYERS[:2])))
    site.target("b", has=",".join(map(sha, LAYERS)))
    done = site.run()
    assert done["end"] is None
    assert done["a"]["bytes"] == 7 + len(LAYERS[2])
    assert done["b"]["bytes"] == 7
    assert site.log("PUT") == 2  # the config, the layer
    assert done["seconds"] < 15  # no question of the push was left open


def test_one_that_comes_late_is_served_by_the_same_push(site: Site) -> None:
    site.target("a", has=sha(LAYERS[0]))
    site.target("late", wait=1.5)
    done = site.run()
    assert done["end"] is None
    assert len(site.got("late")) == 4
    assert site.log("push") <= 3


@pytest.mark.parametrize(("source", "target"), [(3, 300), (300, 3), (2, 1), (1, 2)])
def test_a_docker_that_does_a_few_at_a_time_comes_to_its_end(source: int, target: int, site: Site) -> None:
    layers = [random.Random(n).randbytes(20_000 + n) for n in range(9)]
    site.has(layers, at_once=source)
    site.target("a", at_once=target)
    site.target("b", at_once=target, has=sha(layers[4]))
    done = site.run()
    assert done["end"] is None
    assert (len(site.got("a")), len(site.got("b"))) == (10, 9)


def test_an_empty_layer_a_layer_twice_and_two_hundred_of_them(site: Site) -> None:
    layers = [b"", LAYERS[1], LAYERS[1], *[b"%d" % n * 4000 for n in range(200)]]
    site.has(layers)
    site.target("a")
    site.target("b")
    done = site.run()
    assert done["end"] is None
    assert len(site.got("a")) == len(site.got("b")) == 203
    assert done["a"]["bytes"] == 7 + sum(map(len, layers)) - len(LAYERS[1])


def test_one_that_dies_does_not_stop_the_others(site: Site) -> None:
    site.target("a")
    site.target("b", dies=100_000)
    site.target("c", pause=0.01)
    done = site.run()
    assert done["end"] is None
    assert (done["b"]["code"], done["b"]["error"]) == (9, None)
    assert len(site.got("a")) == len(site.got("c")) == 4


def test_one_that_the_others_wait_for_gets_the_rest_after_them(site: Site) -> None:
    site.has([random.Random(1).randbytes(24_000_000)])
    site.job["lag"] = 0.5
    site.target("a")
    site.target("slow", pause=0.02)
    done = site.run()
    assert done["end"] is None
    assert len(site.got("a")) == len(site.got("slow")) == 2
    assert done["a"]["seconds"] < done["slow"]["seconds"] / 2
    [note] = [line for line in done["lines"] if "note" in line]
    assert note == {"targets": ["slow"], "note": "the others waited 0.5 s for it: it gets the rest after them"}


def test_one_that_takes_nothing_is_given_up(site: Site) -> None:
    site.has([random.Random(1).randbytes(24_000_000)])
    site.job["stall"] = 1.0
    site.target("a")
    site.target("deaf", deaf="")
    done = site.run()
    assert done["end"] is None
    assert len(site.got("a")) == 2
    assert done["deaf"]["error"].startswith("it took no byte for 1 s, ")


def test_one_that_holds_all_places_is_left_behind_too(site: Site) -> None:
    layers = [random.Random(n).randbytes(7_000_000) for n in range(5)]
    site.has(layers)
    site.job["lag"] = 0.5
    site.target("slow", pause=0.03, has=sha(layers[4]))
    site.target("a", wait=0.3, has=",".join(map(sha, layers[:4])))
    done = site.run()
    assert done["end"] is None
    assert len(site.got("slow")) == 5
    assert done["a"]["seconds"] < done["slow"]["seconds"] / 2


def test_a_push_that_stands_still_is_the_sources_error(site: Site) -> None:
    site.has(LAYERS, hangs=sha(LAYERS[0]))
    site.job["load_stall"] = 1.0
    site.target("a")
    done = site.run()
    assert done["end"] == "docker push gave nothing for 1 s"
    assert done["a"]["error"] == f"the source failed: {done['end']}"


def test_a_push_that_dies_is_told_beside_a_target_that_takes_nothing(site: Site) -> None:
    site.has([random.Random(1).randbytes(24_000_000)], fails_after=1)
    site.target("deaf", deaf="")
    done = site.run()
    assert done["end"].startswith("docker push ended with "), done
    assert done["deaf"]["error"] == f"the source failed: {done['end']}"  # not that it took no byte for 20 s


def test_one_that_does_nothing_any_more_is_given_up(site: Site) -> None:
    site.job["load_stall"] = 1.0
    site.target("a")
    site.target("stuck", wait=1000)
    done = site.run()
    assert done["end"] is None
    assert done["stuck"]["error"] == "it had 0 bytes, and its pull made no progress for 1 s"
    assert done["seconds"] < 6


@pytest.mark.parametrize(
    ("odd", "error"),
    [
        (
            {"fails": "missing content: sha256:1: not found"},
            f"docker push ended with 1: missing content: sha256:1: not found: {CURE}",
        ),
        ({"named": []}, "the image has no name on the source: give it one (docker tag), or send it by archive"),
        ({"manifests": []}, "docker push ended well, but it gave no manifest"),
    ],
    ids=["push", "nameless", "no-manifest"],
)
def test_a_source_that_cannot_push_its_image_is_told_before_anything_is_sent(
    odd: dict[str, Any], error: str, site: Site
) -> None:
    site.has(LAYERS, **odd)
    site.target("a")
    done = site.run()
    assert (done["end"], done["learnt"]) == (error, None)
    assert "a" not in done


@pytest.mark.parametrize("text", ["{}", "no json", '{"layers": 3}', '{"layers": [{"digest": "md5:1", "size": 1}]}'])
def test_a_manifest_of_another_form_is_refused(text: str, site: Site) -> None:
    site.has(LAYERS, manifests=[("latest", text)])
    site.target("a")
    error = site.run()["end"]
    assert error.startswith("docker push ended with 1: ") and error.endswith("OSError: latest: 400")


@pytest.mark.parametrize("says", ["own", "another", "nothing"])
def test_one_platforms_manifest_is_pulled_only_when_the_source_knows_it(says: str, site: Site) -> None:
    own, index = site.job["vouched"][0], sha(b"index")
    site.image |= {"own": {"platform": own}, "another": {"platform": index}, "nothing": {}}[says]
    site.job["vouched"] = [index]
    site.target("a")
    done = site.run()
    if says == "own":
        assert (done["end"], done["learnt"]["digest"], len(site.got("a"))) == (None, own, 4)
        assert [line["targets"] for line in done["lines"] if "note" in line] == [["a"]]
    else:
        assert done["end"] == f"docker push gave {own}, which the source's own inspect does not know"


def test_an_index_is_pulled_by_its_own_digest(site: Site) -> None:
    own, attests = manifest(LAYERS), manifest([b"proof"], b'{"b":2}')
    index = json.dumps({"manifests": [part(own.encode()), part(attests.encode())]})
    for blob in (b"proof", b'{"b":2}'):
        (site.folder / sha(blob)).write_bytes(blob)
        site.image["blobs"].append(sha(blob))
    site.image["manifests"] = [(sha(text.encode()), text) for text in (own, attests)] + [("latest", index)]
    site.job["vouched"] = [sha(index.encode())]
    site.target("a")
    done = site.run()
    assert (done["end"], len(site.got("a"))) == (None, 4)
    assert done["learnt"]["digest"] == sha(index.encode())
    assert len(done["learnt"]["manifests"]) == 3


@pytest.mark.parametrize("odd", ["flip", "cut"])
def test_what_is_wrong_with_the_source_is_said_of_the_source(odd: str, site: Site) -> None:
    site.has(LAYERS, **{odd: sha(LAYERS[0])})
    site.target("a")
    site.target("b", pause=0.01)
    done = site.run()
    damaged = f"docker push gave {sha(LAYERS[0])} with other content than that: the source's copy is damaged"
    assert done["end"] == (damaged if odd == "flip" else "docker push ended with 1: EOF")
    assert [done[name]["error"] for name in "ab"] == [f"the source failed: {done['end']}"] * 2
    assert all(sha(LAYERS[0]) not in site.got(name) for name in "ab")
    sizes = [(site.folder / name / sha(LAYERS[0])).stat().st_size for name in "ab"]
    assert max(sizes) < len(LAYERS[0])  # no one had all of it


def test_a_learn_step_that_stands_still_is_the_sources_error(site: Site) -> None:
    site.has(LAYERS, sleeps=20)
    site.job["load_stall"] = 1.0
    site.target("a")
    done = site.run()
    assert (done["end"], done["learnt"]) == ("docker push gave nothing for 1 s", None)


def test_a_push_that_fails_when_all_have_everything_harms_nobody(site: Site) -> None:
    site.has(LAYERS, fails_after=1)
    site.target("a", then=1.5)
    done = site.run()
    assert (done["end"], done["a"]["code"], len(site.got("a"))) == (None, 0, 4)


def test_the_mark_of_the_load_is_kept_however_much_a_pull_says(site: Site) -> None:
    site.target("a", says=300)
    said = site.run()["a"]["said"]
    assert (said[0], said[-1], len(said)) == ("__FDL_LOAD__", "__FDL_LOADED__ 0", 41)


def test_a_port_that_is_taken_on_the_target_is_tried_again_with_another(site: Site) -> None:
    site.target("a")
    taken = (
        f'echo @THERE@ >>{site.folder}/ports; echo "Error: remote port forwarding failed for listen port @THERE@" >&2'
    )
    again = f"[ $(wc -l <{site.folder}/ports) -lt 2 ]"
    pull = " ".join(site.targets["a"])
    site.targets["a"] = ["sh", "-c", f"{taken}; {again} && exit 255; exec {pull} 2>&1"]
    site.target("none")
    site.targets["none"] = ["sh", "-c", 'echo "remote port forwarding failed for listen port @THERE@" >&2; exit 255']
    done = site.run()
    ports = (site.folder / "ports").read_text().split()
    assert len(set(ports)) == 2 and all(20000 <= int(port) < 32000 for port in ports)
    assert done["none"]["code"] == 255 and "forwarding failed" in done["none"]["said"][0]
    assert done["a"]["code"] == 0


def test_neither_password_nor_digest_is_in_a_command_line(site: Site) -> None:
    site.target("a", wait=1)
    process = site.start()
    assert eventually(lambda: any("pull.py" in line for line in group(process.pid)), 20)
    lines = "\n".join(group(process.pid))
    config = json.loads((site.folder / "docker/config.json").read_text())
    [auth] = [entry["auth"] for entry in config["auths"].values()]
    assert process.stdout and process.stdout.read() and process.wait(20) == 0
    assert auth not in lines and site.job["vouched"][0] not in lines and "pull.py" in lines
    assert (site.folder / "docker").stat().st_mode & 0o777 == 0o700
    assert (site.folder / "docker/config.json").stat().st_mode & 0o777 == 0o600


def group(leader: int) -> list[str]:
    """The living processes of a process group."""
    found = subprocess.run(["ps", "-wweo", "pgid=,stat=,args="], capture_output=True, text=True).stdout.splitlines()
    words = [line.split(None, 2) for line in found]
    return [args for pgid, stat, args in words if pgid == str(leader) and not stat.startswith("Z")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_leaves_no_child_and_no_name(number: signal.Signals, site: Site) -> None:
    site.target("a", wait=1000)
    process = site.start()
    assert eventually(lambda: any("pull.py" in line for line in group(process.pid)), 20)
    process.send_signal(number)
    assert process.wait(2) == 143
    assert eventually(lambda: group(process.pid) == [], 1)
    assert eventually(lambda: site.log("rmi") == 1, 2)


def test_it_ends_when_nobody_reads_what_it_says(site: Site) -> None:
    site.target("a", wait=1000)
    process = site.start()
    assert process.stdout
    process.stdout.close()
    assert process.wait(5) == 143
    assert eventually(lambda: group(process.pid) == [] and site.log("rmi") == 1, 2)


def test_it_ends_with_its_parent(site: Site) -> None:
    site.target("a", wait=1000)
    (site.folder / "job").write_text(site.prepared())
    script = f"{sys.executable} -I -S {RELAY} <job >out 2>&1 & echo $!; sleep 2; exit"
    parent = subprocess.run(["sh", "-c", script], stdout=subprocess.PIPE, text=True, cwd=site.folder)
    assert eventually(lambda: not Path(f"/proc/{parent.stdout.strip()}").exists(), 3)
    assert eventually(lambda: site.log("rmi") == 1, 2)


def test_memory_is_bounded_whatever_the_size_and_the_number_of_targets(site: Site) -> None:
    site.has([random.Random(n).randbytes(12_000_000) for n in range(4)])
    for name in "abcdefgh":
        site.target(name, pause=0.002)
    process, most = site.start(), 0
    assert process.stdout
    for line in process.stdout:
        last = json.loads(line)
        most = max(most, peak(process.pid))
    assert last["error"] is None
    assert 1 << 20 < most < 80 << 20


def peak(pid: int) -> int:
    """The most memory that a process has had, in bytes."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) << 10
    return 0
