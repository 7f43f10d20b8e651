"""``ok`` beside a worker: the file there is the one just built, and the loader there finds all it needs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.builds.elves import NEWER, library
from tests.e2e.site import Site, eventually
from tests.lab.lab import Lab
from tests.lab.node import Node

CU128, CU126 = "precompiled/cu128", "precompiled/cu126"
SLUG = "precompiled-cu128"
BIN = f"target/cluster/node/{SLUG}/release/ddp-bench"
PLACE = '"$FDL_TARGET_DIR/release"'
REAL_LDD = "exec /usr/bin/ldd"


@pytest.fixture
def node(site: Site) -> Node:
    """The only worker: the project is mounted at /srv/mono, as variant cu128."""
    made = site.add("node", "/srv/mono", CU128)
    site.write()
    return made


def command(site: Site, line: str, **fields: Any) -> None:
    """The command is built by a line of its own, which is quick."""
    site.write(commands={"ddp-bench": {"build": line, "cwd": ".", **fields}})


COMPILED = (
    f"mkdir -p {PLACE} && printf 'int torch_kernels_2_10_0_cu128(void); "
    "int main(int c, char **v) { return torch_kernels_2_10_0_cu128() + c - 1; }' | cc -x c - -o "
    f'{PLACE}/ddp-bench -L"$LIBTORCH_PATH/lib" -ltorch'
)


def outcome(site: Site, *words: str, code: int) -> dict[str, Any]:
    report = site.json("prebuild", "--cmd", "ddp-bench", *words, code=code)
    assert set(report["envelope"]) == {"node"} - ({"node"} if code else set())
    host: dict[str, Any] = report["hosts"]["node"]
    assert (host["bin"] is None) is (code == 1)
    return host


def failure(site: Site, *words: str) -> str:
    """Why the worker failed."""
    host = outcome(site, *words, code=1)
    assert host["status"] == "failed"
    return str(host["error"])


def own_mount(site: Site, node: Node, below: str, stale: Path) -> None:
    """The worker has a mount of its own at this folder of the project: a copy that does not change."""
    (site.project / below).mkdir(parents=True, exist_ok=True)
    stale.mkdir(parents=True, exist_ok=True)
    node.mount(stale, f"/srv/mono/{below}")


def when_built(site: Site, node: Node, deed: str) -> None:
    """Once preflight is over, the worker's first answer in the verification is preceded by a deed there."""
    node.stand_in(
        "uname", f"#!/bin/sh\n[ ! -e /srv/mono/{BIN} ] || {{ {deed}\n}} >/dev/null 2>&1\nexec /bin/uname -m\n"
    )


def test_a_good_binary_is_ok_and_says_so(site: Site, node: Node) -> None:
    command(site, COMPILED)
    done = site.run("prebuild", "--cmd", "ddp-bench")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("ddp-bench: 1 worker built, read back\n")
    assert outcome(site, code=0)["status"] == "ok"
    assert eventually(lambda: node.processes() == [])


def test_libtorch_replaced_in_place_after_the_build(site: Site, node: Node) -> None:
    command(site, COMPILED)
    when_built(site, node, "cp /srv/mono/libtorch/precompiled/cu126/lib/* /srv/mono/libtorch/precompiled/cu128/lib/")
    assert "does not find symbol torch_kernels_2_10_0_cu128" in failure(site)


def test_an_old_binary_after_libtorch_was_replaced_in_place(site: Site, node: Node) -> None:
    command(site, COMPILED)
    assert outcome(site, code=0)["status"] == "ok"
    env = {**os.environ, "LIBTORCH_VERSION": "2.11.0"}
    subprocess.run(
        ["sh", site.project / "make-libtorch.sh", site.project, CU128], check=True, capture_output=True, env=env
    )
    command(site, "true")  # which leaves the old one where it is
    assert "can't be seen" in failure(site)  # emptied with everything that was linked against the old libtorch


def test_the_old_binary_on_the_workers_own_mount(site: Site, node: Node, tmp_path: Path) -> None:
    command(site, COMPILED)
    outcome(site, code=0)
    stale = tmp_path / "stale"
    shutil.copytree(site.project / "target/cluster/node", stale)
    own_mount(site, node, "target/cluster/node", stale)
    command(site, COMPILED.replace("+ c - 1", "+ c + 5"))
    error = failure(site)
    assert f"/srv/mono/{BIN} on the worker is not the file just built" in error
    assert "other content" in error or "bytes, not" in error


def test_a_symbol_that_only_the_other_variant_has(site: Site, node: Node) -> None:
    command(site, COMPILED)
    node.mount(site.project / "libtorch/precompiled/cu126/lib", "/srv/mono/libtorch/precompiled/cu128/lib")
    error = failure(site)
    assert "the loader there does not find symbol torch_kernels_2_10_0_cu128" in error
    assert "libtorch.so" in error


def test_a_loader_that_only_the_controller_has(site: Site, node: Node, tmp_path: Path) -> None:
    loader = tmp_path / "ld.so"
    command(site, f"cp /lib64/ld-linux-x86-64.so.2 {loader} && {COMPILED} -Wl,--dynamic-linker={loader}")
    assert f"its loader {loader} is not there on the worker" in failure(site)


def test_a_directory_to_start_in_that_the_worker_lacks(site: Site, node: Node, tmp_path: Path) -> None:
    for name in ("target", "libtorch"):
        (tmp_path / "part" / name).mkdir(parents=True)
    (site.project / "target").mkdir(exist_ok=True)
    node.mount(tmp_path / "part", "/srv/mono")
    node.mount(site.project / "target", "/srv/mono/target")
    node.mount(site.project / "libtorch", "/srv/mono/libtorch")
    command(site, COMPILED, cwd="ddp-bench")
    assert "the directory to start it in is not there on the worker" in failure(site)


def test_a_library_that_the_worker_lacks(site: Site, node: Node, tmp_path: Path) -> None:
    command(site, COMPILED)
    own_mount(site, node, "libtorch/precompiled/cu128/lib", tmp_path / "empty")
    assert "does not find library libtorch.so" in failure(site)


@pytest.mark.parametrize("words", [[], ["--no-preflight"], ["--no-verify"]])
def test_a_glibc_older_than_the_binary_demands_by_the_workers_banner(site: Site, node: Node, words: list[str]) -> None:
    banner = 'echo "ldd (GNU libc) 2.17"'
    node.stand_in("ldd", f'#!/bin/sh\n[ "$1" != --version ] || {{ {banner}; exit; }}\n{REAL_LDD} "$@"\n')
    command(site, COMPILED)
    error = failure(site, *words)
    assert "ddp-bench demands GLIBC_2." in error
    assert "the worker has glibc 2.17" in error


def newer_libm(site: Site) -> str:
    """A line that links against a libm whose symbol is of a version that no glibc has."""
    libm = library(site.project / "sdk/libm.so.6", "newer", versions=NEWER)
    source = "int newer(void); int main(void) { return newer(); }"
    return f"mkdir -p {PLACE} && echo '{source}' | cc -x c - -x none '{libm}' -o {PLACE}/ddp-bench"


def test_a_binary_that_really_needs_a_newer_glibc(site: Site, node: Node) -> None:
    command(site, newer_libm(site))
    assert "ddp-bench demands GLIBC_2.99, and the worker has glibc" in failure(site)


def test_the_loader_itself_says_so_where_the_banner_is_wrong(site: Site, node: Node) -> None:
    banner = 'echo "ldd (GNU libc) 2.99"'
    node.stand_in("ldd", f'#!/bin/sh\n[ "$1" != --version ] || {{ {banner}; exit; }}\n{REAL_LDD} "$@"\n')
    command(site, newer_libm(site))
    assert "version `GLIBC_2.99' not found" in failure(site)


def test_an_unknown_glibc_is_a_warning_and_the_loader_is_believed(site: Site, node: Node) -> None:
    node.stand_in("ldd", f'#!/bin/sh\n[ "$1" != --version ] || {{ echo strange; exit; }}\n{REAL_LDD} "$@"\n')
    command(site, COMPILED)
    host = outcome(site, code=0)
    assert host["status"] == "ok"
    assert any("the worker's glibc could not be read" in warning for warning in host["warnings"])


def test_a_foreign_cpu_without_preflight(site: Site, node: Node) -> None:
    node.stand_in("uname", "#!/bin/sh\necho aarch64\n")
    command(site, COMPILED)
    assert "the worker is aarch64" in failure(site, "--no-preflight")


@pytest.mark.parametrize(
    ("deed", "says"),
    [
        ("head -c 5000 there >cut && cat cut >there", "is not the file just built (5000 bytes, not"),
        ("chmod 644 there", "may not be executed on the worker"),
        ("rm there", "is not there on the worker"),
    ],
)
def test_the_file_on_the_workers_mount(site: Site, node: Node, tmp_path: Path, deed: str, says: str) -> None:
    command(site, COMPILED)
    outcome(site, code=0)
    stale = tmp_path / "stale"
    shutil.copytree(site.project / "target/cluster/node", stale)
    subprocess.run(["sh", "-ec", deed.replace("there", f"{SLUG}/release/ddp-bench")], cwd=stale, check=True)
    own_mount(site, node, "target/cluster/node", stale)
    error = failure(site)
    assert says in error
    assert f"/srv/mono/{BIN}" in error


def test_a_mount_that_catches_up_after_two_seconds_is_ok(site: Site, node: Node, tmp_path: Path) -> None:
    own_mount(site, node, "target/cluster/node", tmp_path / "late")
    command(site, COMPILED)
    late = "(sleep 2; umount -l /srv/mono/target/cluster/node) </dev/null & echo"
    node.stand_in("uname", f"#!/bin/sh\n[ ! -e /srv/go ] || {{ {late}; }} >/dev/null 2>&1\nexec /bin/uname -m\n")
    node.write("/srv/go", "")
    began = time.monotonic()
    host = outcome(site, "--no-preflight", code=0)
    assert host["status"] == "ok"
    assert 1.5 < time.monotonic() - began < 9


def test_a_worker_lost_between_build_and_verification(site: Site, node: Node) -> None:
    marker = site.project / "building"
    command(site, f"{COMPILED}; : >building; while [ -e building ]; do sleep 0.1; done")
    with start(site) as process:
        assert eventually(marker.exists, 30)
        node.stop_sshd()
        marker.unlink()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "warning: not read back (connect: can't reach" in out
    assert "1 worker built, 1 unverified" in out


def start(site: Site, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        site.argv("prebuild", "--cmd", "ddp-bench", *words),
        cwd=site.project,
        env=site.env(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_an_answer_that_is_cut_off(site: Site, node: Node) -> None:
    command(site, COMPILED)
    node.stand_in("wc", "#!/bin/sh\nkill -KILL 0\n")
    host = outcome(site, code=0)
    assert host["status"] == "unverified"
    assert host["warnings"]


def test_another_host_key_after_the_build(site: Site, node: Node) -> None:
    marker = site.project / "building"
    command(site, f"{COMPILED}; : >building; while [ -e building ]; do sleep 0.1; done")
    with start(site, "--no-preflight") as process:
        assert eventually(marker.exists, 30)
        node.swap_host_key()
        marker.unlink()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "host key changed" in err
    assert "1 failed" in out


def test_the_loader_path_of_the_users_own_variables_wins(site: Site, node: Node) -> None:
    site.workers[0]["env"] = {"LD_LIBRARY_PATH": "/srv/mono/libtorch/precompiled/cu126/lib"}
    command(site, COMPILED)
    assert "symbol torch_kernels_2_10_0_cu128" in failure(site)
    site.workers[0]["env"] = {"LD_LIBRARY_PATH": "/srv/mono/libtorch/precompiled/cu128/lib:/usr/local/lib"}
    command(site, COMPILED)
    assert outcome(site, code=0)["status"] == "ok"


def test_a_check_that_fails_and_one_that_does_not(site: Site, node: Node) -> None:
    said = COMPILED.replace("{ return", '{ if (c > 1) __builtin_printf("no GPU\\\\n"); return')
    command(site, said, check=["--selftest"])
    error = failure(site)
    assert "started with --selftest (check), it ended with exit code 1" in error
    assert "  | no GPU" in error
    command(site, said.replace("+ c - 1", ""), check=["--selftest"])
    assert outcome(site, code=0)["status"] == "ok"


def test_without_hash_tools_the_size_alone_is_no_proof(site: Site, node: Node) -> None:
    for tool in ("sha256sum", "shasum", "openssl"):
        node.stand_in(tool, "#!/bin/sh\nexit 127\n")
    command(site, COMPILED)
    host = outcome(site, code=0)
    assert host["status"] == "unverified"
    assert "nothing that makes a SHA-256" in host["warnings"][0]


def test_what_is_no_program_at_all(site: Site, node: Node) -> None:
    command(site, f"mkdir -p {PLACE} && install -m 755 make-libtorch.sh {PLACE}/ddp-bench")
    assert "ddp-bench is not an ELF file" in failure(site)


def test_no_verify_looks_at_no_worker_and_says_so(site: Site, node: Node) -> None:
    command(site, COMPILED)
    node.stand_in("wc", "#!/bin/sh\ntouch /srv/looked\n")
    done = site.run("prebuild", "--cmd", "ddp-bench", "--no-verify")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("ddp-bench: 1 worker built, 1 unverified\n")
    assert node.exec("test", "-e", "/srv/looked", check=False).returncode == 1


def test_one_that_fails_stops_no_other(site: Site, node: Node, tmp_path: Path) -> None:
    site.add("other", "/srv/mono", CU128)
    own_mount(site, node, "target/cluster/node", tmp_path / "empty")
    command(site, COMPILED)
    report = site.json("prebuild", "--cmd", "ddp-bench", code=1)
    assert {label: host["status"] for label, host in report["hosts"].items()} == {"node": "failed", "other": "ok"}
    assert set(report["envelope"]) == {"other"}
    done = site.run("prebuild", "--cmd", "ddp-bench")
    assert done.stdout.endswith("ddp-bench: 1 worker built, read back, 1 failed\n")
    assert done.stderr.endswith("prebuild ddp-bench: 1 of 2 workers failed: node\n")


def test_a_worker_on_this_machine_is_read_back_too(site: Site) -> None:
    site.workers.append({"host": "node", "transport": "local", "path": str(site.project), "arch": CU128})
    command(site, COMPILED)
    assert outcome(site, code=0)["status"] == "ok"
    site.workers[0]["env"] = {"LD_LIBRARY_PATH": "/nowhere"}
    command(site, COMPILED)
    assert "library libtorch.so" in failure(site)


@pytest.mark.parametrize("tool", ["ldd", "wc", "check"])
def test_ctrl_c_during_verification_ends_within_two_seconds_and_leaves_nothing(
    site: Site, node: Node, tool: str
) -> None:
    hang = "touch /srv/mono/hanging; sleep 7602 & sleep 7602"
    if tool == "check":
        source = f'int main(void) {{ return system("{hang}"); }}'
        command(site, f"mkdir -p {PLACE} && echo '{source}' | cc -w -x c - -o {PLACE}/ddp-bench", check=["-v"])
    else:
        command(site, COMPILED)
        node.stand_in(tool, f'#!/bin/sh\n[ "$1" = --version ] && exec /usr/bin/ldd --version\n{hang}\n')
    with start(site) as process:
        assert eventually((site.project / "hanging").exists, 30)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
        assert time.monotonic() - began < 2
    assert process.returncode == 130
    assert "Traceback" not in err
    assert eventually(lambda: node.processes() == [])


def test_of_two_hundred_workers_each_gets_its_outcome_though_twenty_are_dead(site: Site, lab: Lab) -> None:
    machines = [site.add(f"machine{n}", "/srv/mono", CU128) for n in range(3)]
    dead = lab.node(f"dead{len(lab.nodes)}", share={"/flodl/data": site.data})
    dead.stop_sshd()
    site.workers.clear()
    for number in range(200):
        where = dead if number % 10 == 7 else machines[number % 3]
        site.workers.append({**lab.worker(where, "/srv/mono", arch=CU128), "host": f"w{number:03}"})
    command(site, f"mkdir -p {PLACE} && cp /bin/true {PLACE}/ddp-bench")
    began = time.monotonic()
    report = site.json("prebuild", "--cmd", "ddp-bench", "--no-preflight")
    assert time.monotonic() - began < 60
    found = {label: host["status"] for label, host in report["hosts"].items()}
    assert list(found) == [f"w{number:03}" for number in range(200)]
    assert found == {f"w{n:03}": "unverified" if n % 10 == 7 else "ok" for n in range(200)}
    assert set(report["envelope"]) == set(found)
    assert all(eventually(lambda m=machine: m.processes() == []) for machine in machines)
