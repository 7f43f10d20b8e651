"""``preflight`` as a user calls it, against real nodes with real faults."""

import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.site import Site, eventually

ARCH = "precompiled/cu128"


def found(report: dict[str, Any], label: str) -> dict[str, str]:
    """The verdicts of one host that are not ok: rule -> level."""
    verdicts = report["hosts"][label]["verdicts"]
    return {verdict["rule"]: verdict["level"] for verdict in verdicts if verdict["level"] != "ok"}


def says(report: dict[str, Any], label: str, rule: str) -> str:
    return next(str(v["message"]) for v in report["hosts"][label]["verdicts"] if v["rule"] == rule)


def test_a_healthy_cluster_is_ok_and_every_ok_was_read_back(site: Site) -> None:
    site.add("a", "/srv/mono", ARCH, data_path="/flodl/data")
    site.add("b", "/mnt/a share/mönö", ARCH)
    site.write()
    report = site.json("preflight")
    assert report["ok"]
    assert [host["status"] for host in report["hosts"].values()] == ["ok"] * 3
    assert report["hosts"]["a"]["facts"]["arch"] == "x86_64"
    assert not list((site.project / "target" / "cluster").glob(".fdl-probe*"))
    assert eventually(lambda: all(node.processes() == [] for node in site.nodes.values()))


def test_each_fault_is_told_of_its_own_host_and_the_healthy_stay_ok(site: Site) -> None:
    site.add("good", "/srv/mono", ARCH)
    site.add("stale", "/srv/mono", ARCH, share=False).write("/srv/mono/README", "an old copy\n")
    site.add("unmounted", "/srv/mono", ARCH, share=False)
    site.add("dataless", "/srv/mono", ARCH, data_path="/mnt/nas")
    site.add("musl", "/srv/mono", ARCH).stand_in("ldd", "#!/bin/sh\necho 'musl libc (x86_64)' >&2\nexit 1\n")
    site.add("foreign", "/srv/mono", ARCH).stand_in("uname", "#!/bin/sh\necho aarch64\n")
    site.add("variantless", "/srv/mono", "precompiled/cu999")
    site.add("archless", "/srv/mono", None)
    site.add("down", "/srv/mono", ARCH).stop_sshd()
    impostor = site.add("impostor", "/srv/mono", ARCH)
    impostor.swap_host_key()
    impostor.write("/run/before", "")
    site.write()
    report = site.json("preflight", code=1)
    assert not report["ok"]
    assert {label: found(report, label) for label in report["hosts"]} == {
        "ctrl": {},
        "good": {},
        "stale": {"shared-mount": "error"},
        "unmounted": {"path": "error"},
        "dataless": {"data-path": "error"},
        "musl": {"libc": "error"},
        "foreign": {"cpu": "error"},
        "variantless": {"libtorch": "error"},
        "archless": {"variant": "error"},
        "down": {"reach": "warning"},
        "impostor": {"host-key": "error"},
    }
    assert report["hosts"]["down"]["status"] == "unreachable"
    assert str(site.project) in says(report, "stale", "shared-mount")
    assert "/mnt/nas" in says(report, "dataless", "data-path")
    assert impostor.find("/root", "-newer", "/run/before") == []


def test_the_reasons_stand_in_the_table_and_the_last_line_counts_and_names(site: Site) -> None:
    site.add("fine", "/srv/mono", ARCH)
    site.add("gone", "/srv/mono", ARCH, share=False)
    site.add("bare", "/srv/mono", None)
    site.write()
    done = site.run("preflight")
    assert done.returncode == 1
    assert done.stderr.endswith("preflight failed on 2 of 4 hosts: gone, bare\n")
    assert "gone  error   path     path /srv/mono is not a directory" in done.stdout
    assert "bare  error   variant  its arch is not set" in done.stdout
    assert done.stdout.endswith("4 hosts: 2 ok, 2 failed\n")


def test_a_data_path_that_this_login_may_not_list(site: Site) -> None:
    node = site.add("a", "/srv/mono", ARCH, data_path="/mnt/private")
    site.workers[0]["ssh"]["user"] = "lab"
    node.exec("mkdir", "-m", "700", "/mnt/private")
    site.write()
    report = site.json("preflight", code=1)
    assert found(report, "a") == {"data-path": "error"}
    assert "can't be listed" in says(report, "a", "data-path")


def test_a_mount_that_shows_an_old_file_time(site: Site) -> None:
    node = site.add("a", "/srv/mono", ARCH)
    node.stand_in("stat", "#!/bin/sh\necho $(( $(date +%s) - 60 ))\n")
    site.write()
    report = site.json("preflight")
    assert found(report, "a") == {"file-time": "warning"}


def test_a_mount_that_shows_another_content_under_the_new_name(site: Site, tmp_path: Path) -> None:
    """A directory that gets copies of the names, not of what is in them, as a broken cache does."""
    node = site.add("a", "/srv/mono", ARCH, share=False)
    theirs = tmp_path / "theirs"
    (theirs / "target" / "cluster").mkdir(parents=True)
    node.mount(theirs, "/srv/mono")
    ours, stop = site.project / "target" / "cluster", threading.Event()

    def mirror() -> None:
        while not stop.is_set():
            for file in ours.glob(".fdl-probe-*"):
                (theirs / "target" / "cluster" / file.name).write_text("old\n")
            time.sleep(0.02)

    thread = threading.Thread(target=mirror)
    thread.start()
    site.write()
    report = site.json("preflight", code=1)
    stop.set()
    thread.join()
    assert found(report, "a") == {"shared-mount": "error"}
    assert "an old or another file" in says(report, "a", "shared-mount")


def test_no_shared_check_is_for_clusters_that_deliver_binaries_another_way(site: Site) -> None:
    site.add("copy", "/srv/mono", ARCH, share=False).exec("mkdir", "-p", "/srv/mono")
    site.write()
    assert site.json("preflight", "--no-shared-check")["ok"]
    assert not site.json("preflight", code=1)["ok"]


def test_noise_of_a_login_is_never_a_false_error(site: Site) -> None:
    node = site.add("noisy", "/srv/mono", ARCH)
    node.write("/root/banner", "AUTHORISED USE ONLY\n")
    node.configure(Banner="/root/banner")
    node.write("/root/.bashrc", "set -x; echo __FLODL_DP_DIR__=0; echo welcome; printf 'no newline'\n")
    site.write()
    report = site.json("preflight")
    assert found(report, "noisy") == {}


def test_a_node_lost_in_the_middle_of_the_probe_is_a_warning(site: Site) -> None:
    node = site.add("lost", "/srv/mono", ARCH)
    node.stand_in("df", "#!/bin/sh\nsleep 7501\n")
    site.add("fine", "/srv/mono", ARCH)
    site.write()

    def lose() -> None:
        assert eventually(lambda: "sleep 7501" in node.processes(), 30)
        node.kill_sessions()

    thread = threading.Thread(target=lose)
    thread.start()
    report = site.json("preflight")
    thread.join()
    assert found(report, "lost") == {"reach": "warning"}
    assert "connection lost" in says(report, "lost", "reach")
    assert found(report, "fine") == {}
    assert eventually(lambda: node.processes() == [])


def test_ctrl_c_during_the_probe_ends_within_two_seconds_and_leaves_nothing(site: Site) -> None:
    import signal

    for label in ("a", "b"):
        site.add(label, "/srv/mono", ARCH).stand_in("df", "#!/bin/sh\nsleep 7502\n")
    site.write()
    with subprocess.Popen(
        site.argv("preflight"), cwd=site.project, env=site.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert eventually(lambda: all(any("7502" in p for p in n.processes()) for n in site.nodes.values()), 10)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=10)
        assert time.monotonic() - began < 2
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert out == b""
    assert eventually(lambda: all(node.processes() == [] for node in site.nodes.values()))
    assert not list((site.project / "target" / "cluster").glob(".fdl-probe*"))


def test_a_name_from_hell_does_no_harm(site: Site) -> None:
    path = "/srv/a 'b' \"c\" $(touch ran) `touch ran` *;é"
    node = site.add("hell", path, ARCH, data_path="/mnt/$(touch ran)'\"")
    node.exec("mkdir", "-p", "/mnt/$(touch ran)'\"")
    site.write()
    report = site.json("preflight")
    assert found(report, "hell") == {}
    assert node.find("/root", "-name", "ran") == []


def test_an_alpine_host_can_say_that_it_is_musl(site: Site) -> None:
    node = site.add("alpine", "/srv/mono", ARCH)
    site.workers[0]["ssh"]["user"] = "lab-busybox"
    node.stand_in("ldd", "#!/bin/sh\necho 'musl libc (x86_64)' >&2\necho 'Version 1.2.4' >&2\nexit 1\n")
    node.stand_in("sh", '#!/bin/busybox sh\nexec /bin/busybox sh "$@"\n')
    site.write()
    faults = found(site.json("preflight", code=1), "alpine")
    assert [rule for rule, level in faults.items() if level == "error"] == ["libc"]


@pytest.mark.parametrize("user", ["lab-dash", "lab-zsh", "lab-fish", "lab-tcsh", "lab-busybox"])
def test_the_probe_reads_alike_behind_every_login_shell(site: Site, user: str) -> None:
    site.add("a", "/srv/mono", ARCH)
    site.workers[0]["ssh"]["user"] = user
    site.write()
    report = site.json("preflight")
    facts = report["hosts"]["a"]["facts"]
    assert (facts["arch"], facts["libc"], facts["path"], facts["shared"]) == ("x86_64", "glibc", True, True)
    assert {rule for rule, level in found(report, "a").items() if level == "error"} == set()
