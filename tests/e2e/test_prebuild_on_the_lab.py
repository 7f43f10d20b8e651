"""``prebuild`` as a user calls it: built here, started there from the envelope alone."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e.site import Site, eventually
from tests.lab.lab import Lab

CU128, CU126, CPU = "precompiled/cu128", "precompiled/cu126", "precompiled/cpu"


def three(site: Site) -> None:
    site.add("blackwell", "/srv/mono", CU128)
    site.add("pascal", "/mnt/nas/my projects/mono", CU126)
    site.add("plain", "/home/größe/mono/", CPU)


def compiler_processes() -> list[str]:
    done = subprocess.run(["pgrep", "-af", "rustc|cargo"], capture_output=True, text=True)
    return [line for line in done.stdout.splitlines() if "pgrep" not in line and "rust-analyzer" not in line]


def test_three_workers_each_start_their_own_binary_from_the_envelope_alone(site: Site) -> None:
    three(site)
    site.write()
    done = site.run("prebuild", "--cmd", "ddp-bench", "--envelope", "envelope.json")
    assert done.returncode == 0, done.stderr
    assert "3 workers built, all read back" in done.stdout
    envelope = json.loads((site.project / "envelope.json").read_text())
    assert list(envelope) == ["blackwell", "pascal", "plain"]
    assert envelope["plain"] == {
        "bin": "target/cluster/plain/precompiled-cpu/release/ddp-bench",
        "ld_library_path": "/home/größe/mono/libtorch/precompiled/cpu/lib",
        "cwd_subpath": "ddp-bench",
    }
    said = {label: site.launch(label, entry).stdout.strip() for label, entry in envelope.items()}
    assert said == {
        "blackwell": "ddp-bench: libtorch cu128 (build 2.10.0+cu128), feature cuda",
        "pascal": "ddp-bench: libtorch cu126 (build 2.10.0+cu126), feature cuda",
        "plain": "ddp-bench: libtorch cpu (build 2.10.0+cpu), feature none",
    }


def test_the_answer_as_json_and_again_when_nothing_changed(site: Site) -> None:
    three(site)
    site.write()
    first = site.json("prebuild", "--cmd", "ddp-bench")
    again = site.json("prebuild", "--cmd", "ddp-bench")
    for report in (first, again):
        assert (report["cmd"], report["ok"]) == ("ddp-bench", True)
        assert {host["status"] for host in report["hosts"].values()} == {"ok"}
        assert set(report["envelope"]) == set(report["hosts"])
    assert list(first["hosts"]["pascal"]) == [
        *("status", "seconds", "arch", "feature", "target_dir", "bin", "shared_with", "warnings", "error")
    ]


def test_one_compile_error_fails_one_worker_and_names_it_the_others_are_built(site: Site) -> None:
    three(site)
    main = site.project / "ddp-bench" / "src" / "main.rs"
    broken = '#[cfg(not(any(feature = "cuda", feature = "rocm")))]\ncompile_error!("no GPU, no bench");\n'
    main.write_text(main.read_text() + broken)
    site.write()
    done = site.run("prebuild", "--cmd", "ddp-bench")
    assert done.returncode == 1
    assert "plain" in done.stderr
    assert "no GPU, no bench" in done.stderr
    report = site.json("prebuild", "--cmd", "ddp-bench", code=1)
    assert {label: host["status"] for label, host in report["hosts"].items()} == {
        "blackwell": "ok",
        "pascal": "ok",
        "plain": "failed",
    }
    assert set(report["envelope"]) == {"blackwell", "pascal"}
    assert "Traceback" not in done.stderr


def test_nothing_is_built_after_an_error_of_preflight(site: Site) -> None:
    three(site)
    site.nodes["pascal"].unmount("/mnt/nas/my projects/mono")
    site.write()
    report = site.json("prebuild", "--cmd", "ddp-bench", code=1)
    assert report["ok"] is False
    assert report["preflight"]["hosts"]["pascal"]["status"] == "error"
    assert "hosts" not in report
    assert not list((site.project / "target").rglob("ddp-bench"))


def test_without_preflight_the_unusable_worker_fails_and_the_rest_is_built(site: Site) -> None:
    three(site)
    shutil.rmtree(site.project / "libtorch" / CU126 / "lib")
    site.write()
    report = site.json("prebuild", "--cmd", "ddp-bench", "--no-preflight", code=1)
    assert {label: host["status"] for label, host in report["hosts"].items()} == {
        "blackwell": "ok",
        "pascal": "failed",
        "plain": "ok",
    }
    assert str(site.project / "libtorch" / CU126) in report["hosts"]["pascal"]["error"]


def test_an_unreachable_worker_is_built_all_the_same_with_a_warning(site: Site) -> None:
    three(site)
    site.nodes["plain"].stop_sshd()
    site.write()
    done = site.run("prebuild", "--cmd", "ddp-bench")
    assert done.returncode == 0, done.stderr
    assert "plain: was not checked" in done.stderr


def test_a_changed_host_key_stops_the_build(site: Site) -> None:
    three(site)
    site.nodes["plain"].swap_host_key()
    site.write()
    done = site.run("prebuild", "--cmd", "ddp-bench")
    assert done.returncode == 1
    assert "host key changed" in done.stdout
    assert not list((site.project / "target").rglob("ddp-bench"))


def test_libtorch_replaced_in_place_is_built_against_anew(site: Site) -> None:
    site.add("blackwell", "/srv/mono", CU128)
    site.write()
    site.json("prebuild", "--cmd", "ddp-bench")
    env = {**os.environ, "LIBTORCH_VERSION": "2.11.0"}
    script = site.project / "make-libtorch.sh"
    subprocess.run(["sh", script, site.project, CU128], check=True, capture_output=True, env=env)
    report = site.json("prebuild", "--cmd", "ddp-bench")
    done = site.launch("blackwell", report["envelope"]["blackwell"])
    assert done.stdout == "ddp-bench: libtorch cu128 (build 2.11.0+cu128), feature cuda\n", done.stderr


def test_only_the_named_hosts_are_built(site: Site) -> None:
    three(site)
    site.write(groups={"gpu": ["blackwell", "pascal"]})
    report = site.json("prebuild", "--cmd", "ddp-bench", "--host", "gpu")
    assert list(report["hosts"]) == ["blackwell", "pascal"]
    done = site.run("prebuild", "--cmd", "ddp-bench", "--host", "nobody")
    assert done.returncode == 2
    assert "nobody" in done.stderr
    assert "blackwell" in done.stderr


def test_a_worker_with_build_false_is_skipped_and_shown(site: Site) -> None:
    three(site)
    site.workers[2]["build"] = False
    site.nodes["plain"].stand_in("uname", "#!/bin/sh\necho aarch64\n")
    site.write()
    report = site.json("prebuild", "--cmd", "ddp-bench")
    assert report["hosts"]["plain"]["status"] == "skipped"
    assert set(report["envelope"]) == {"blackwell", "pascal"}


def test_no_workers_is_nothing_to_do(site: Site) -> None:
    site.write()
    done = site.run("prebuild", "--cmd", "ddp-bench")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ddp-bench: nothing to build: cluster.yml names no worker but the controller\n"


def test_a_full_disk_in_the_target_directory_is_told_as_such(site: Site) -> None:
    site.add("blackwell", "/srv/mono", CU128)
    site.add("pascal", "/srv/mono", CU126)
    site.write()
    with site.lab.small_disk(site.project / "target" / "cluster" / "pascal", "200k"):
        report = site.json("prebuild", "--cmd", "ddp-bench", code=1)
    assert report["hosts"]["blackwell"]["status"] == "ok"
    assert "no space left" in report["hosts"]["pascal"]["error"].lower()
    assert set(report["envelope"]) == {"blackwell"}


def test_dry_run_prints_the_scripts_and_contacts_nobody(site: Site) -> None:
    three(site)
    for node in site.nodes.values():
        node.stop_sshd()
    site.write()
    done = site.run("prebuild", "--cmd", "ddp-bench", "--dry-run")
    assert done.returncode == 0, done.stderr
    for label in site.nodes:
        assert label in done.stdout
    assert "cargo build --release" in done.stdout
    assert not (site.project / "target").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_during_builds_ends_within_two_seconds_and_leaves_nothing(site: Site, number: signal.Signals) -> None:
    three(site)
    build = site.project / "ddp-bench" / "build.rs"
    build.write_text(
        build.read_text().replace("fn main() {", "fn main() { hang(); ", 1)
        + ('fn hang() { std::process::Command::new("sleep").arg("7601").status().unwrap(); }\n')
    )
    site.write()
    with subprocess.Popen(
        site.argv("prebuild", "--cmd", "ddp-bench"),
        cwd=site.project,
        env=site.env(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert eventually(lambda: _running("7601"), 30)
        began = time.monotonic()
        process.send_signal(number)
        _, err = process.communicate(timeout=10)
        assert time.monotonic() - began < 2
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert eventually(lambda: not _running("7601"))


def _running(mark: str) -> bool:
    return subprocess.run(["pgrep", "-f", f"sleep {mark}"], capture_output=True).returncode == 0


def test_a_project_path_from_hell(lab: Lab, example: Path, tmp_path: Path) -> None:
    project = tmp_path / "a 'b' \"c\" $(touch ran) `x` é" / "mono"
    shutil.copytree(example, project, symlinks=True)
    (tmp_path / "data").mkdir()
    site = Site(lab, project, tmp_path / "data")
    site.add("hell", "/srv/$(touch ran) 'x'", CU128)
    site.write()
    report = site.json("prebuild", "--cmd", "ddp-bench")
    done = site.launch("hell", report["envelope"]["hell"])
    assert done.stdout == "ddp-bench: libtorch cu128 (build 2.10.0+cu128), feature cuda\n", done.stderr
    assert not list(tmp_path.rglob("ran"))


def test_lines_of_every_worker_carry_its_name_through_a_pipe(site: Site) -> None:
    three(site)
    site.write()
    done = site.run("prebuild", "--cmd", "ddp-bench", "--no-preflight")
    lines = [line for line in done.stderr.splitlines() if "Compiling" in line or "Finished" in line]
    assert lines
    assert all(line.startswith(("[blackwell] ", "[pascal] ", "[plain] ")) for line in lines)
    assert "\x1b" not in done.stderr + done.stdout
