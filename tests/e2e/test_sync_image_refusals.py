"""What bad input and bad nodes get from ``inv sync-image``, on real engines; every other target is unharmed."""

from __future__ import annotations

import contextlib
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.image_site import ImageSite, image_site
from tests.lab.engine import Store
from tests.lab.lab import Lab
from tests.lab.node import Node
from tests.lab.releases import Release

ROOMY = "#!/bin/sh\nprintf 'F 1024-blocks U A C M\\nx 9 9 99999999 1%% /\\n'\n"
ELF_OF_ANOTHER = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xb7\x00" + bytes(100)


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[ImageSite]:
    with image_site(lab).by("archive") as site:
        yield site


def outcome(report: dict[str, Any]) -> dict[str, str]:
    return {label: node["status"] for label, node in report["nodes"].items()}


def errors(report: dict[str, Any]) -> dict[str, str]:
    return {label: node["error"] for label, node in report["nodes"].items() if node["error"]}


def said(site: ImageSite, code: int, *words: str) -> str:
    """What the command says on stderr, on one line; its exit code is checked."""
    done = site.run("sync-image", *words)
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return " ".join(done.stderr.split())


# -- what was asked for ---------------------------------------------------------------------------


def test_an_image_that_no_node_has_is_an_error_and_not_a_pull(site: ImageSite) -> None:
    site.use("a", "c")
    assert "no node has the image: a does not have the image; c does not have the image" in said(
        site, 1, "--image", "nobody-has:1"
    )


@pytest.mark.parametrize(
    "words, expected",
    [
        (("--image", "tiny:1", "--source", "z"), "the source 'z' is none of the nodes next: nodes: a, b"),
        (("--image", "tiny:1", "--group", "z"), "'z' names no worker and no group"),
        (("--image", "tiny:1", "--host", "z"), "known workers: a, b; groups: pair"),
        (("--recipe", "z"), "no recipe 'z'"),
        (("--recipe", "x", "--image", "tiny:1"), "name the image by --recipe or by --image, one of them"),
        ((), "name the image by --recipe or by --image, one of them"),
    ],
)
def test_a_name_that_is_unknown_is_told_with_the_known_ones(
    site: ImageSite, words: tuple[str, ...], expected: str
) -> None:
    site.use("a", "b", groups={"pair": ["a", "b"]}, recipes={"x": {"image": "tiny:1"}})
    assert expected in said(site, 2, *words)


@pytest.mark.parametrize(
    "name", ["-rm", "--privileged", "a b", "$(touch hell)", "`touch hell`", "a\nb", "a;touch hell", "App:1", "a:1:2"]
)
def test_an_image_name_from_hell_is_refused_before_anything_runs(site: ImageSite, name: str) -> None:
    site.use("a", recipes={"hell": {"image": name}} if name.startswith("-") else {})
    words = ("--recipe", "hell") if name.startswith("-") else (f"--image={name}",)
    site.nodes["a"].stop_sshd()
    try:
        assert "is no image reference" in said(site, 2, *words)
    finally:
        site.nodes["a"].start_sshd()
    assert not (site.project / "hell").exists()


def test_a_named_source_without_the_image_is_refused(site: ImageSite) -> None:
    site.use("a", "b")
    built = site.build("a", "elsewhere:1", [1000])
    assert "the source b does not have the image" in said(site, 1, "--image", "elsewhere:1", "--source", "b")
    assert site.ids("elsewhere:1") == {"a": built, "b": None}


# -- the store ------------------------------------------------------------------------------------


def test_too_little_room_is_told_before_a_byte_is_sent(site: ImageSite) -> None:
    site.make("small", store=Store.GRAPHDRIVER, disk="24m")
    site.use("a", "b", "small")
    built = site.build("a", "roomy:1", [30_000_000])
    looked = site.run("sync-image", "--image", "roomy:1", "--plan")
    planned = looked.stdout
    assert looked.returncode == 1
    assert "1 node to change, 1 can't be" in planned and "no room: the image needs about" in planned
    report = site.json("sync-image", "--image", "roomy:1", code=1)
    assert outcome(report) == {"a": "source", "b": "synced", "small": "failed"}
    assert "no room: the image needs about" in errors(report)["small"] and "are free" in errors(report)["small"]
    assert report["nodes"]["small"]["bytes"] == 0
    assert site.ids("roomy:1") == {"a": built, "b": built, "small": None}


C, G = Store.CONTAINERD, Store.GRAPHDRIVER


@pytest.mark.parametrize(
    "store, release, disk, arrives, healed",
    [
        (C, Release.D26, "24m", False, "synced"),  # not even the archive fits
        (
            C,
            Release.D26,
            "36m",
            True,
            "in-sync",
        ),  # all arrives, the record is made; unpacking fails, and later succeeds
        (C, Release.D28, "36m", True, "in-sync"),  # the same, by a load that ends with 0
        (G, Release.D26, "36m", False, "synced"),  # the archive fits, the layers beside it do not
        (G, Release.D28, "36m", False, "synced"),
    ],
)
def test_a_disk_that_fills_up_is_never_in_sync_and_heals_when_it_has_grown(
    site: ImageSite, store: Store, release: Release, disk: str, arrives: bool, healed: str
) -> None:
    full, image = f"full-{store[0]}{release.name}-{disk}".lower(), f"filling-{store}-{release.name}-{disk}:1".lower()
    site.make(full, store=store, release=release, disk=disk)
    site.nodes[full].stand_in("df", ROOMY)  # so that it is tried
    source, other = ("a", "b") if store == C else ("c", "d")
    site.use(source, other, full)
    built = site.build(source, image, [14_000_000, 9_000_000])
    first = site.json("sync-image", "--image", image, code=1)
    assert outcome(first) == {source: "source", other: "synced", full: "failed"}
    assert "no space left on device" in errors(first)[full]
    assert site.ids(image)[full] == (built if arrives else None) and not site.starts(full, image)
    second = site.json("sync-image", "--image", image, code=1)
    assert outcome(second) == {source: "source", other: "in-sync", full: "failed"}
    site.engines[full].grow("300m")
    last = site.json("sync-image", "--image", image)
    assert outcome(last) == {source: "source", other: "in-sync", full: healed}
    assert site.ids(image) == {source: built, other: built, full: built} and site.starts(full, image)


# -- Docker there ---------------------------------------------------------------------------------


def test_an_engine_that_is_stopped_fails_its_node_alone(site: ImageSite) -> None:
    site.use("a", "b", "c")
    site.build("a", "stopped:1", [1000])
    site.engines["b"].stop()
    try:
        report = site.json("sync-image", "--image", "stopped:1", code=1)
    finally:
        site.engines["b"].start()
    assert outcome(report) == {"a": "source", "b": "failed", "c": "synced"}
    assert "Cannot connect to the Docker daemon" in errors(report)["b"]
    assert site.ids("stopped:1")["b"] is None and site.starts("c", "stopped:1")


def test_who_may_not_use_docker_is_told_the_group_and_sudo_is_a_way(site: ImageSite) -> None:
    logins = {"b": "lab", "c": "lab-sudo", "d": "lab-docker"}
    site.use("a", "b", "c", "d", fields={label: {"ssh": {"user": user}} for label, user in logins.items()})
    site.build("a", "allowed:1", [1000])
    report = site.json("sync-image", "--image", "allowed:1", code=1)
    assert outcome(report) == {"a": "source", "b": "failed", "c": "synced", "d": "synced"}
    assert "put lab in the group docker" in errors(report)["b"]
    assert site.ids("allowed:1")["b"] is None and site.starts("c", "allowed:1") and site.starts("d", "allowed:1")


# -- the image ------------------------------------------------------------------------------------


def test_an_image_without_a_shell_is_synced_with_a_note(site: ImageSite) -> None:
    site.use("a", "b", "c")
    site.engines["a"].build_without_shell("bare:1")
    report = site.json("sync-image", "--image", "bare:1")
    assert outcome(report) == {"a": "source", "b": "synced", "c": "synced"}
    for label in "bc":
        assert ["has no /bin/sh" in note for note in report["nodes"][label]["notes"]] == [True]
        run = site.engines[label].docker("run", "--rm", "--pull=never", "--network=none", "bare:1")
        assert run.stdout == "started\n"


def test_a_digest_comes_back_by_a_tag_or_the_error_says_how_to_name_the_image(site: ImageSite) -> None:
    site.use("a", "b", "c")
    digest = site.build("a", "digested:1", [1000])
    reference = f"digested@{digest}"
    report = site.json("sync-image", "--image", reference, code=1)
    assert outcome(report) == {"a": "source", "b": "synced", "c": "failed"}
    assert "name the image by a tag instead, digested:TAG" in errors(report)["c"]
    kept = f"digested:fdl-{digest[7:19]}"
    assert any(kept in note for note in report["nodes"]["b"]["notes"])
    assert site.ids(reference)["b"] == digest == site.ids(kept)["b"] and site.starts("b", reference)
    assert outcome(site.json("sync-image", "--image", reference, "--host", "a", "--host", "b")) == {
        "a": "source",
        "b": "in-sync",
    }


@pytest.mark.parametrize("target", ["b", "c"])
def test_a_tag_that_meant_another_image_there_is_reported_with_its_id(site: ImageSite, target: str) -> None:
    site.use("a", target)
    name = f"moved-{target}:1"
    old = site.build(target, name, [1000], created=1_600_000_000)
    site.build("a", name, [2000], created=1_700_000_000)
    node = site.json("sync-image", "--image", name)["nodes"][target]
    assert [old in note for note in node["notes"]] == [True], node["notes"]
    layers = site.layers(name)
    assert layers["a"] == layers[target] and site.image(target, old), "what the name meant is kept"


def test_an_image_for_another_machine_is_brought_to_nobody(site: ImageSite, tmp_path: Path) -> None:
    site.use("a", "b", "c")
    with tarfile.open(tmp_path / "root.tar", "w") as tar:
        shell = tarfile.TarInfo("bin/sh")
        shell.size, shell.mode = len(ELF_OF_ANOTHER), 0o755
        tar.addfile(shell, io.BytesIO(ELF_OF_ANOTHER))
    site.engines["a"].docker("import", "--platform=linux/arm64", tmp_path / "root.tar", "foreign:1")
    assert "exec format error" in said(site, 1, "--image", "foreign:1")
    assert [label for label, found in site.ids("foreign:1").items() if found] == ["a"]


# -- unlike nodes ---------------------------------------------------------------------------------


def remove(node: Node, *programs: str) -> None:
    """Nobody finds them there any more: what can't be executed is passed over on the PATH."""
    for program in programs:
        node.exec("mount", "--bind", "/dev/null", f"/usr/bin/{program}")


def both_ways(site: ImageSite, label: str) -> None:
    """That node is a target and a source as any other."""
    site.use("a", "c", label)
    site.build("a", f"to-{label}:1", [1000])
    there = site.json("sync-image", "--image", f"to-{label}:1")
    assert outcome(there) == {"a": "source", "c": "synced", label: "synced"}
    site.build(label, f"from-{label}:1", [1000])
    back = site.json("sync-image", "--image", f"from-{label}:1")
    assert outcome(back) == {"a": "synced", "c": "synced", label: "source"}
    assert site.starts(label, f"to-{label}:1")
    assert site.starts("a", f"from-{label}:1") and site.starts("c", f"from-{label}:1")


def test_fish_as_the_login_shell_is_as_good_as_any(site: ImageSite) -> None:
    site.make("fishy", store=Store.CONTAINERD, shell="/usr/bin/fish")
    both_ways(site, "fishy")


def test_a_node_needs_no_bash_no_python_and_no_gnu_tar_but_some_tar(site: ImageSite) -> None:
    site.make("plain", store=Store.GRAPHDRIVER, shell="/bin/dash")
    remove(site.nodes["plain"], "bash", "python3", "tar")
    site.nodes["plain"].stand_in("tar", '#!/bin/sh\nexec busybox tar "$@"\n')
    both_ways(site, "plain")
    site.nodes["plain"].path("/lab/bin/tar").unlink()
    site.build("plain", "untarred:1", [1000])
    report = site.json("sync-image", "--image", "untarred:1", code=1)
    assert outcome(report) == {"a": "failed", "c": "failed", "plain": "source"}
    assert "the source has neither python3 3.8 nor tar" in errors(report)["a"]


@contextlib.contextmanager
def sshd_of(site: ImageSite, label: str, setting: str, value: str, *, usual: str) -> Iterator[None]:
    """That node's sshd with another setting meanwhile."""
    site.nodes[label].configure(**{setting: value})
    try:
        yield
    finally:
        site.nodes[label].configure(**{setting: usual})


def test_an_sshd_that_takes_two_logins_at_once_is_enough_for_four_targets(site: ImageSite) -> None:
    site.use("a", "c")
    targets = [f"c{number}" for number in range(4)]  # one machine, and all of them ask for it at once
    site.workers = [site.workers[0], *({**site.workers[1], "host": label} for label in targets)]
    site.write()
    site.build("a", "narrow:1", [1000])
    with sshd_of(site, "c", "MaxStartups", "2:100:2", usual="10:30:100"):
        report = site.json("sync-image", "--image", "narrow:1")
    assert outcome(report) == {"a": "source", **dict.fromkeys(targets, "synced")}
    fabric = site.nodes["c"].fabric_address  # a login that was dropped is no reason for the slow network
    assert [report["nodes"][label]["address"] for label in targets] == [fabric] * 4
    assert site.starts("c", "narrow:1")


def test_an_sshd_that_takes_one_session_a_login_is_enough_for_a_source(site: ImageSite) -> None:
    site.use("a", "c")
    site.build("a", "alone:1", [1000])
    with sshd_of(site, "a", "MaxSessions", "1", usual="100"):
        report = site.json("sync-image", "--image", "alone:1")
    assert outcome(report) == {"a": "source", "c": "synced"}
    assert site.starts("c", "alone:1")
