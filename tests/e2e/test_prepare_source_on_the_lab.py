"""The source of a box over real sshd: rsync, a guarded key, git, host keys, jumps, and how each of them fails."""

from __future__ import annotations

import hashlib
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from fdl_tasks.boxes.source.fetch import fetch
from fdl_tasks.boxes.source.manifest import FILE, SIDECAR, Manifest
from fdl_tasks.boxes.specs import parse_source
from fdl_tasks.boxes.tools import Tools
from fdl_tasks.cluster.model import Ssh
from fdl_tasks.errors import Cancelled, PermanentError, PrepareError, TransientError
from fdl_tasks.hosts.fanout import Cancel
from tests.e2e.site import eventually
from tests.lab.lab import Lab
from tests.lab.node import Node


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """What a controller serves: a tree with its run published."""
    tree = tmp_path / "run" / "tree"
    files = {"Cargo.toml": "[package]\n", "src/main.rs": "fn main() {}\n", "sub/target/made": "x", "target/x": "x"}
    for name, text in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
        os.utime(tree / name, (1_700_000_000, 1_700_000_000))
    publish(tree, run="r1")
    return tree.parent


def publish(tree: Path, run: str) -> None:
    names = sorted(
        path.relative_to(tree).as_posix()
        for path in tree.rglob("*")
        if path.is_file() and "target" not in path.parts and path.name not in (FILE, SIDECAR)
    )
    lines = "".join(f"{hashlib.sha256((tree / name).read_bytes()).hexdigest()}  {name}\n" for name in names)
    (tree / SIDECAR).write_text(lines)
    digest = hashlib.sha256(lines.encode()).hexdigest()
    (tree / FILE).write_text(f"bin: target/release/x\nrun: {run}\nbuilt: true\ndigest: {{sha256: {digest}}}\n")


@pytest.fixture
def node(lab: Lab, run_dir: Path) -> Node:
    return lab.node(f"src{len(lab.nodes)}", share={"/srv/run": run_dir})


class Box:
    """The box that is made ready: its tree, its notes, its own known_hosts."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.tree, self.notes, self.known = folder / "flodl" / "source", list[str](), folder / "known_hosts"
        own = [option for option in lab.ssh_options() if not option.startswith("UserKnownHostsFile")]
        self.options = (*own, f"UserKnownHostsFile={self.known}")
        self.key = str(lab.client_key)

    def fetch(
        self, spec: str, *pins: str, key: str = "", options: tuple[str, ...] = (), cancel: Cancel | None = None
    ) -> Manifest | None:
        ssh = Ssh("", identity_file=key or self.key, options=(*options, *self.options), host_keys=pins)
        return fetch(parse_source(spec), self.tree, ssh, Tools("box", cancel), self.notes.append)

    def fails(self, kind: type[PrepareError], spec: str, *pins: str, **given: object) -> PrepareError:
        with pytest.raises(kind) as caught:
            self.fetch(spec, *pins, **given)  # type: ignore[arg-type]
        return caught.value


@pytest.fixture
def box(lab: Lab, tmp_path: Path) -> Box:
    return Box(lab, tmp_path)


def at(node: Node, path: str = "/srv/run/tree") -> str:
    return f"root@{node.address}:{node.port}{path}"


def times(tree: Path) -> dict[str, int]:
    return {str(p): p.lstat().st_mtime_ns for p in tree.rglob("*") if p.is_file() and ".git" not in p.parts}


def test_a_tree_comes_over_ssh_and_a_second_fetch_touches_nothing(box: Box, node: Node, run_dir: Path) -> None:
    manifest = box.fetch(f"rsync://{at(node)}")
    assert manifest and (manifest.bin, manifest.run) == ("target/release/x", "r1")
    assert (box.tree / "src/main.rs").stat().st_mtime == 1_700_000_000
    assert not (box.tree / "target").exists() and not (box.tree / "sub/target").exists()
    assert "ssh-ed25519" in box.known.read_text()  # a host that nobody knew is noted
    (box.tree / "sub/target").mkdir(parents=True)
    (box.tree / "sub/target/made-here").write_text("kept")
    before = times(box.tree)
    box.fetch(f"rsync://{at(node)}")
    assert times(box.tree) == before

    (run_dir / "tree/src/main.rs").unlink()
    publish(run_dir / "tree", run="r2")
    again = box.fetch(f"rsync://{at(node)}")
    assert again and again.run == "r2"
    assert not (box.tree / "src/main.rs").exists() and (box.tree / "sub/target/made-here").exists()
    assert eventually(lambda: node.processes() == [], 5)


def test_behind_a_guarded_key_the_path_begins_at_the_guards_directory(box: Box, node: Node, lab: Lab) -> None:
    public = lab.stranger_key.with_suffix(".pub").read_text()
    authorized = node.sshd.folder / "authorized_keys"
    authorized.write_text(f'command="rrsync -ro /srv/run",restrict {public}')
    key = str(lab.stranger_key)
    assert box.fetch(f"rsync://{at(node, '/tree')}", key=key)
    failure = box.fails(TransientError, f"rsync://{at(node)}", key=key)
    assert "rrsync" in failure.hint and "/tree" in failure.hint


def test_a_changed_host_key_is_permanent_and_names_the_way_out(box: Box, node: Node) -> None:
    box.fetch(f"rsync://{at(node)}")
    node.swap_host_key()
    try:
        for spec in (f"rsync://{at(node)}", f"git+ssh://{at(node, '/srv/run/r.git')}#main"):
            failure = box.fails(PermanentError, spec)
            assert "host key" in failure.what and "ssh-keygen -R" in failure.hint
    finally:
        node.restore_host_key()


def test_a_pin_lets_only_the_pinned_key_through_whatever_else_is_known(box: Box, lab: Lab, run_dir: Path) -> None:
    kinds = ("ed25519", "rsa", "ecdsa")
    node = lab.node(f"pin{len(lab.nodes)}", share={"/srv/run": run_dir}, host_key_types=kinds)
    for pin in node.host_key_fingerprints:
        assert box.fetch(f"rsync://{at(node)}", pin.rstrip("="), options=("StrictHostKeyChecking=no",))
    assert not box.known.exists()  # the pin alone decides
    wrong, log = "SHA256:" + "A" * 43, node.sshd.folder / "sshd.log"
    logins = log.read_text().count("Accepted")
    failure = box.fails(PermanentError, f"rsync://{at(node)}", wrong, options=("StrictHostKeyChecking=no",))
    assert all(pin.rstrip("=") in failure.what for pin in (*node.host_key_fingerprints, wrong))
    assert "host_key" in failure.hint
    assert log.read_text().count("Accepted") == logins > 0


def test_a_pin_holds_through_a_jump(box: Box, node: Node, lab: Lab) -> None:
    jump = lab.node(f"jump{len(lab.nodes)}")
    words = ["ssh", *lab.ssh_argv(jump)]
    host = words.pop()
    through = "ProxyCommand=" + " ".join([*words, "-W", "[%h]:%p", host])
    assert box.fetch(f"rsync://{at(node)}", node.host_key_fingerprint.rstrip("="), options=(through,))
    impostor = jump.host_key_fingerprint.rstrip("=")
    box.fails(PermanentError, f"rsync://{at(node)}", impostor, options=(through,))
    assert eventually(lambda: jump.processes() == [], 5)


def test_a_key_file_with_blanks_in_its_name_travels(box: Box, node: Node, lab: Lab, tmp_path: Path) -> None:
    key = tmp_path / "a 'key' \"of\" mine"
    key.write_bytes(lab.client_key.read_bytes())
    key.chmod(0o600)
    assert box.fetch(f"rsync://{at(node)}", key=str(key))
    assert "not there" in box.fails(PermanentError, f"rsync://{at(node)}", key=f"{key}x").what


@pytest.mark.parametrize("tool", ["rsync", "git"])
def test_a_far_side_that_is_down_or_refuses_the_key_is_transient(box: Box, node: Node, lab: Lab, tool: str) -> None:
    spec = f"rsync://{at(node)}" if tool == "rsync" else f"git+ssh://{at(node, '/srv/run/r.git')}#main"
    assert "Permission denied" in str(box.fails(TransientError, spec, key=str(lab.stranger_key)))
    node.stop_sshd()
    try:
        assert "refused" in str(box.fails(TransientError, spec))
        box.fails(TransientError, spec, "SHA256:" + "A" * 43)  # whose key is it? nobody was asked
    finally:
        node.start_sshd()


def test_a_far_side_without_rsync_is_transient_for_it_can_be_mended_there(box: Box, node: Node) -> None:
    node.stand_in("rsync", "#!/bin/sh\necho 'sh: 1: rsync: not found' >&2\nexit 127\n")
    failure = box.fails(TransientError, f"rsync://{at(node)}")
    assert "no rsync" in failure.what and "install it there" in failure.hint


def test_a_path_that_is_not_there_is_transient(box: Box, node: Node) -> None:
    failure = box.fails(TransientError, f"rsync://{at(node, '/srv/run/nothing')}")
    assert "No such file" in str(failure) and "is the path there" in failure.hint


def test_a_connection_that_is_lost_is_transient(box: Box, node: Node) -> None:
    node.stand_in("rsync", "#!/bin/sh\nkill -9 $PPID\n")
    box.fails(TransientError, f"rsync://{at(node)}")


def test_a_full_disk_is_permanent_with_the_path_and_what_is_needed(
    box: Box, node: Node, lab: Lab, run_dir: Path
) -> None:
    (run_dir / "tree/large").write_bytes(os.urandom(3 << 20))
    publish(run_dir / "tree", run="r3")
    text = (run_dir / "tree" / FILE).read_text().replace("}", ", bytes: 3145800}")
    (run_dir / "tree" / FILE).write_text(text)
    with lab.small_disk(box.tree, "1m"):
        failure = box.fails(PermanentError, f"rsync://{at(node)}")
        assert failure.where == str(box.tree)
        assert "3.0 MiB needed" in failure.what and "free" in failure.what


def test_a_fetch_that_the_user_ends_leaves_no_process_on_either_side(box: Box, node: Node) -> None:
    node.stand_in("rsync", "#!/bin/sh\nexec cat >/dev/null\n")  # as a server that answers nothing
    cancel = Cancel()
    threading.Timer(1.0, cancel.set).start()
    began = time.monotonic()
    with pytest.raises(Cancelled):
        box.fetch(f"rsync://{at(node)}", cancel=cancel)
    assert time.monotonic() - began < 3
    assert eventually(lambda: node.processes() == [], 5)
    left = subprocess.run(["pgrep", "-f", f"rsync.*{box.tree}"], capture_output=True, text=True, check=False)
    assert left.stdout == ""


@pytest.fixture
def repository(run_dir: Path) -> Path:
    """A bare repository that the node serves, with a branch, a tag, and a commit behind the branch."""
    work, bare = run_dir / "work", run_dir / "r.git"
    work.mkdir()
    git(work, "init", "--quiet", "--initial-branch=main")
    commit(work, {"a": "1", "b": "1"})
    git(work, "tag", "-a", "-m", "x", "v1")
    commit(work, {"a": "2", FILE: "bin: target/release/x\nrun: one\n"})
    commit(work, {"a": "3"})
    git(run_dir, "clone", "--quiet", "--bare", str(work), str(bare))
    return bare


def git(folder: Path, *words: str) -> str:
    env = os.environ | {"GIT_CONFIG_GLOBAL": "/dev/null"}
    argv = ["git", "-c", "user.name=x", "-c", "user.email=x@x", "-c", "safe.directory=*", *words]
    return subprocess.run(argv, cwd=folder, env=env, check=True, capture_output=True, text=True).stdout.strip()


def commit(work: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (work / name).write_text(text)
    git(work, "add", "--all")
    git(work, "commit", "--quiet", "-m", "x")


def test_git_over_ssh_brings_a_branch_a_tag_or_a_commit(box: Box, node: Node, repository: Path) -> None:
    def url(ref: str) -> str:
        return f"git+ssh://root@{node.address}:{node.port}/srv/run/r.git#{ref}"

    assert box.fetch(url("v1")) is None
    assert (box.tree / "a").read_text() == "1"
    found = box.fetch(url("main"), node.host_key_fingerprint.rstrip("="))
    assert found and found.run == "one" and (box.tree / "a").read_text() == "3"
    assert git(box.tree, "rev-list", "--count", "HEAD") == "1"  # shallow
    tip = git(repository, "rev-parse", "main")
    before = times(box.tree)
    assert box.fetch(url(tip)) == found
    assert times(box.tree) == before and tip[:12] in box.notes[-2]

    behind = git(repository, "rev-parse", "main~1")
    failure = box.fails(PermanentError, url(behind))
    assert "uploadpack.allowReachableSHA1InWant" in failure.hint
    git(repository, "config", "uploadpack.allowReachableSHA1InWant", "true")
    box.fetch(url(behind))
    assert (box.tree / "a").read_text() == "2"
    assert "no nothing there" in box.fails(TransientError, url("nothing")).what
    assert eventually(lambda: node.processes() == [], 5)


def test_a_full_disk_ends_git_the_same_way_and_fills_up_no_further(box: Box, lab: Lab, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    git(work, "init", "--quiet", "--initial-branch=main")
    (work / "large").write_bytes(os.urandom(3 << 20))
    commit(work, {"a": "1"})
    with lab.small_disk(box.tree, "2m"):
        for _ in range(2):
            failure = box.fails(PermanentError, f"git+file://{work}#main")
            assert failure.where == str(box.tree) and "no room" in failure.what and "free" in failure.what
        box.fetch(f"git+file://{small_repository(tmp_path)}#main")  # there is room for this one
        assert (box.tree / "a").read_text() == "1"


def small_repository(folder: Path) -> Path:
    small = folder / "small"
    small.mkdir()
    git(small, "init", "--quiet", "--initial-branch=main")
    commit(small, {"a": "1"})
    return small
