"""The last look at a node: its scripts in every shell against a stand-in docker, and what is asked in what order."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fdl_tasks.cluster.image import ImageRef
from fdl_tasks.errors import Cancelled, ScriptError
from fdl_tasks.hosts.fanout import Cancel
from fdl_tasks.images.facts import NodeFacts
from fdl_tasks.images.identity import Proof
from fdl_tasks.images.judge import SHELL, Ran
from fdl_tasks.images.verify import Checked, Wish, flawed, tag, verify
from fdl_tasks.images.verify import look as script
from fdl_tasks.scripts import Script, Scripts
from fdl_tasks.testing import Completed, FakeHost
from tests.images.making import make_image, make_node, sha

SHELLS = [["dash"], ["bash"], ["busybox", "sh"]]
SOURCE = make_image("app", "a")
SHOWN = json.dumps({"Id": sha("app"), "RootFS": {"Layers": [sha("a")]}, "Os": "linux", "Architecture": "amd64"})
NO_SHELL = 'docker: OCI runtime create failed: exec: "/bin/sh": stat /bin/sh: no such file or directory: unknown'
ABSENT = "echo 'Error response from daemon: No such image' >&2; exit 1"
GOOD = {"image?inspect*": f"echo WARNING; echo '{SHOWN}'", "create*": "echo abc", "rm*": ":", "run*": ":"}
FAST: dict[str, Any] = {"tries": 3, "pause": 0.01}
RAN_WELL, RAN_WITHOUT_SHELL = Ran(0, ""), Ran(127, NO_SHELL)

pytestmark = pytest.mark.subprocess


class Box:
    """A node on this machine: its docker is a stand-in that answers by its first words and notes its calls."""

    def __init__(self, folder: Path, shell: Sequence[str]):
        self.folder, self._shell = folder, shell
        (folder / "bin").mkdir()
        self.host = FakeHost("node", self._run)

    def answers(self, deeds: dict[str, str], name: str = "docker") -> None:
        cases = "\n".join(f"{words}) {deed} ;;" for words, deed in deeds.items())
        body = f"#!/bin/sh\necho \"{name} $*\" >>'{self.folder}/calls'\ncase $* in\n{cases}\n*) exit 9 ;;\nesac\n"
        (self.folder / "bin" / name).write_text(body)
        (self.folder / "bin" / name).chmod(0o755)

    def env(self) -> dict[str, str]:
        return os.environ | {"PATH": f"{self.folder}/bin:{os.environ['PATH']}"}

    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines() if (self.folder / "calls").exists() else []

    def deeds(self) -> list[str]:
        """The first word of each call but those that only remove."""
        return [word for call in self.calls() if (word := call.split()[1]) != "rm"]

    def start(self, script: Script) -> subprocess.Popen[bytes]:
        argv = [*self._shell, "-c", script.text]
        pipe = subprocess.PIPE
        return subprocess.Popen(argv, env=self.env(), stdout=pipe, stderr=pipe, start_new_session=True)

    def _run(self, script: Script) -> Completed:
        argv = [*self._shell, "-c", script.text]
        done = subprocess.run(argv, capture_output=True, text=True, env=self.env(), stdin=subprocess.DEVNULL)
        assert done.stderr == ""
        return Completed(done.returncode, done.stdout, done.stderr, 0.0)


@pytest.fixture(params=SHELLS, ids=lambda shell: shell[0])
def box(request: pytest.FixtureRequest, tmp_path: Path) -> Box:
    if not shutil.which(request.param[0]):
        pytest.skip(f"{request.param[0]} is not installed")
    return Box(tmp_path, request.param)


def look(box: Box, wish: Wish | None = None, node: NodeFacts | None = None, **more: Any) -> Checked:
    return verify(node or make_node("node"), box.host, wish or wished(), Cancel(), **{**FAST, **more})


def wished(reference: str = "app:1", **fields: Any) -> Wish:
    return Wish(ImageRef.parse(reference), SOURCE, **{"source_ran": RAN_WELL, **fields})


def test_a_good_copy_is_inspected_created_and_started_and_nothing_is_left_or_pulled(box: Box) -> None:
    box.answers(GOOD)
    assert look(box) == Checked("node", Proof.ID, ran=RAN_WELL)
    assert box.deeds() == ["image", "run"] and [script.name for script in box.host.scripts] == ["images/verify.sh"]
    made = box.calls()[1].split()
    assert {"--rm", "--pull=never", "none", "--name"} <= set(made)
    assert made[-6:] == ["/bin/sh", "--", "app:1", "-c", "exit", "0"]


@pytest.mark.parametrize("code", [125, 126, 127])
def test_where_the_program_did_not_start_one_more_container_is_made_and_removed(box: Box, code: int) -> None:
    box.answers(GOOD | {"run*": f"exit {code}"})
    assert look(box).ran == Ran(code, "")
    assert box.deeds() == ["image", "run", "create"]
    made = [call.split() for call in box.calls() if call.split()[1] in ("create", "run")]
    assert all({"--pull=never", "none"} <= set(words) for words in made) and "--rm" not in made[1]
    names = [words[words.index("--name") + 1] for words in made]
    assert len(set(names)) == 2 and {f"docker rm -f {name}" for name in names} <= set(box.calls())


def test_a_program_that_ended_by_itself_had_a_container_and_no_other_is_made(box: Box) -> None:
    box.answers(GOOD | {"run*": "exit 3"})
    look(box)
    assert box.deeds() == ["image", "run"]


def test_the_way_in_is_the_one_that_the_probe_found(box: Box) -> None:
    box.answers({f"--host?tcp://box:1?{words}": deed for words, deed in GOOD.items()})
    assert look(box, node=make_node("n", docker=("docker", "--host", "tcp://box:1"))).error is None
    box.answers({"*": "exit 1"})
    box.answers({f"-n?docker?{words}": deed for words, deed in GOOD.items()}, "sudo")
    assert look(box, node=make_node("n", docker=("sudo", "-n", "docker"))).error is None


def test_a_copy_that_is_not_whole_is_an_error_and_is_not_waited_for(box: Box) -> None:
    lacking = "echo 'content digest sha256:1: not found' >&2; exit"
    box.answers(GOOD | {"run*": f"{lacking} 125", "create*": f"{lacking} 1"})
    found = look(box)
    assert found.error and "not found" in found.error and found.again and found.ran is None and found.hollow
    assert box.deeds().count("run") == 1


def test_a_copy_that_was_found_wanting_is_known_as_such() -> None:
    nodes = {label: make_node(label, SOURCE, "containerd") for label in "abc"} | {"d": make_node("d", SOURCE)}
    lacking, ill = Checked("x", Proof.ID, error="not found", again=True), Checked("x", error="boom", ran=Ran(1, "boom"))
    full = Checked("x", Proof.ID, error="no space left on device")
    found = flawed(nodes, {"a": lacking, "b": ill, "c": full, "d": lacking}, "b")
    assert {label: (one.startable, one.complete, one.flaw) for label, one in found.items()} == {
        "a": (False, False, "not found"),
        "b": (False, True, "boom"),
        "c": (False, True, "no space left on device"),
        "d": (False, True, "not found"),
    }
    others = {"a": ill, "b": Checked("b", Proof.ID, ran=RAN_WELL), "c": Checked("c", error="gone")}
    assert flawed(nodes, others, "b") == {}, "who did not answer, or whose program failed, has a copy all the same"


def test_a_program_that_is_not_unpacked_yet_is_waited_for(box: Box) -> None:
    box.answers(
        GOOD | {"run*": f"[ -e '{box.folder}/up' ] || {{ : >'{box.folder}/up'; echo '{NO_SHELL}'; exit 127; }}"}
    )
    waited: list[str] = []
    assert look(box, tell=waited.append).error is None
    assert waited == ["the program of its exec probe is not there yet (try 1 of 3)"]
    assert box.deeds().count("run") == 2


def test_the_waiting_ends(box: Box) -> None:
    box.answers(GOOD | {"run*": f"echo '{NO_SHELL}'; exit 127"})
    found = look(box)
    assert found.error and found.error.endswith("(tried 3 times)") and found.again
    assert box.deeds().count("run") == 3
    names = [words[words.index("--name") + 1] for call in box.calls() if "run" in (words := call.split())]
    assert len(set(names)) == 3 and {f"docker rm -f {name}" for name in names} <= set(box.calls())


def test_the_waiting_ends_at_once_when_the_user_ends_it(box: Box) -> None:
    box.answers(GOOD | {"run*": f"echo '{NO_SHELL}'; exit 127"})
    cancel = Cancel()
    with pytest.raises(Cancelled):
        verify(make_node("n"), box.host, wished(), cancel, tell=lambda _: cancel.set(), pause=60)


def test_other_failures_are_not_tried_again(box: Box) -> None:
    box.answers(GOOD | {"run*": "echo oops >&2; exit 3"})
    found = look(box)
    assert found.error == "'/bin/sh -c exit 0' in a container ended with 3: oops"
    assert box.deeds().count("run") == 1


@pytest.mark.parametrize("source_ran", [None, RAN_WITHOUT_SHELL])
def test_an_image_without_a_shell_on_the_source_either_is_good_at_once_with_a_note(
    box: Box, source_ran: Ran | None
) -> None:
    box.answers(GOOD | {"run*": f"echo '{NO_SHELL}'; exit 127"})
    found = look(box, wished(source_ran=source_ran))
    assert (found.error, found.proof) == (None, Proof.ID)
    assert len(found.notes) == 1 and "no /bin/sh" in found.notes[0]
    assert box.deeds().count("run") == 1


def test_the_recipes_own_probe_is_run_with_its_words_as_they_are(box: Box) -> None:
    box.answers(GOOD | {"run*": f"for word do printf '[%s]' \"$word\"; done >'{box.folder}/words'"})
    assert look(box, wished(probe=("/opt/my probe", "it's", "$HOME", ""))).error is None
    shown = (box.folder / "words").read_text()
    assert shown.endswith("[--entrypoint][/opt/my probe][--][app:1][it's][$HOME][]")


def test_a_lost_digest_is_given_back_by_a_tag_in_a_containerd_store(box: Box) -> None:
    tagged = f"[ -e '{box.folder}/tagged' ]"
    inspect = f"case $* in *:fdl-*) echo {sha('old')} ;; *) {tagged} && echo '{SHOWN}' || {{ {ABSENT}; }} ;; esac"
    box.answers(GOOD | {"image?inspect*": inspect, "tag*": f": >'{box.folder}/tagged'"})
    found = look(box, wished(f"team/app@{sha('app')}"), make_node("node", store="containerd"))
    assert found.error is None and found.proof is Proof.ID
    name = f"team/app:fdl-{sha('app')[7:19]}"
    assert f"docker tag -- {sha('app')} {name}" in box.calls()
    assert found.notes == (
        f"its digest is found there by the tag {name}, which stays",
        f"{name} meant {sha('old')} there before",
    )
    assert "pull" not in box.deeds()


@pytest.mark.parametrize(("store", "digest"), [("graphdriver", "app"), ("containerd", "other")])
def test_a_digest_that_no_tag_brings_back_is_pulled_once_or_is_an_error_that_says_what_to_do(
    box: Box, store: str, digest: str
) -> None:
    pulled = f"[ -e '{box.folder}/pulled' ]"
    deeds = GOOD | {"image?inspect*": f"{pulled} && echo '{SHOWN}' || {{ {ABSENT}; }}"}
    box.answers(deeds | {"pull*": "echo 'network is unreachable' >&2; exit 1"})
    found = look(box, wished(f"app@{sha(digest)}"), make_node("node", store=store))
    assert found.error and "network is unreachable" in found.error and "app:TAG" in found.error
    assert (found.again, found.hollow, box.deeds()) == (False, False, ["image", "pull"])
    box.answers(deeds | {"pull*": f": >'{box.folder}/pulled'"})
    found = look(box, wished(f"app@{sha(digest)}"), make_node("node", store=store))
    assert found.error is None and "docker pull brought" in found.notes[0]


def test_nothing_is_pulled_for_a_tag_or_an_engine_that_does_not_answer(box: Box) -> None:
    box.answers({"image?inspect*": ABSENT, "*": "exit 9"})
    found = look(box)
    assert found.error and "another engine" in found.error and box.deeds() == ["image"]
    box.answers({"*": "echo 'Cannot connect to the Docker daemon' >&2; exit 1"})
    found = look(box, wished(f"app@{sha('app')}"), make_node("node"))
    assert found.error and "Cannot connect" in found.error
    assert set(box.deeds()) == {"image"}


def test_a_tag_is_given_and_what_it_meant_is_told(box: Box) -> None:
    box.answers({"image?inspect*": f"echo {sha('old')}", "tag*": ":"})
    assert tag(make_node("n"), box.host, sha("app"), "app:1").notes == (f"app:1 meant {sha('old')} there before",)
    box.answers({"image?inspect*": ABSENT, "tag*": ":"})
    assert tag(make_node("n"), box.host, sha("app"), "app:1").notes == ()
    box.answers({"image?inspect*": ABSENT, "tag*": ABSENT})
    assert tag(make_node("n"), box.host, sha("app"), "app:1").error


def test_an_answer_that_was_cut_off_is_an_error() -> None:
    with pytest.raises(ScriptError, match="cut off"):
        verify(make_node("n"), FakeHost("n", Completed(137, "__FDL_IMAGE__ 2 {}\n", "", 0.1)), wished(), Cancel())


# An engine that goes on with what it was asked for when the client that asked is gone.
MAKES = ": >'{0}/asked'; setsid sh -c \"sleep 1.2; : >'{0}/container'; : >'{0}/came'\"; exit 137"


@pytest.mark.parametrize(("deed", "name"), [("run", "fdl-probe-1"), ("create", "fdl-probe-1-made")])
def test_of_an_ended_script_no_container_stays_even_one_that_came_after_its_end(box: Box, deed: str, name: str) -> None:
    folder = box.folder
    box.answers(GOOD | {"run*": "exit 127", f"{deed}*": MAKES.format(folder), "rm*": f"rm '{folder}/container'"})
    process = box.start(script(Scripts(), ("docker",), "app:1", SHELL, "1"))
    wait_for((folder / "asked").exists)
    assert process.stdout and process.stderr
    process.stdout.close()  # as when the connection is lost: nobody reads what the shell says of killed children
    process.stderr.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        os.killpg(process.pid, number)
        time.sleep(0.3)
    assert process.wait(timeout=10) < 0
    wait_for((folder / "came").exists)
    wait_for(lambda: not (folder / "container").exists())
    assert (folder / "came").exists() and not (folder / "container").exists()
    assert box.calls()[-1] == f"docker rm -f {name}"


def wait_for(holds: Callable[[], bool], seconds: float = 10) -> None:
    until = time.monotonic() + seconds
    while not holds() and time.monotonic() < until:
        time.sleep(0.02)
