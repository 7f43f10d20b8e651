"""Whole commands, as a user calls them: what is on stdout, what is on stderr, and the exit code."""

from __future__ import annotations

import ast
import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from fdl_tasks.report.masking import clean
from tests.tasks.project import CLUSTER, Project, steady

pytestmark = pytest.mark.subprocess

NEW = "target/cluster/new/precompiled-cu128/release"
OLD = "target/cluster/old/precompiled-cu126/release"


def envelope(
    project: Project, cmd: str = "train", hosts: tuple[str, ...] = ("new", "old")
) -> dict[str, dict[str, str]]:
    whole = {
        "new": {"bin": f"{NEW}/{cmd}", "ld_library_path": project.loader_path("cu128")},
        "old": {"bin": f"{OLD}/{cmd}", "ld_library_path": project.loader_path("cu126")},
    }
    return {host: whole[host] for host in hosts}


def test_prebuild_builds_for_every_worker_and_says_what_was_read_back(project: Project) -> None:
    done = project.inv("fdl.prebuild", "--cmd", "train")
    assert done.returncode == 0, done.stderr
    assert steady(done.stdout) == (
        "worker  status  seconds  arch               artifact\n"
        f"new     ok          N.N  precompiled/cu128  {NEW}/train\n"
        f"old     ok          N.N  precompiled/cu126  {OLD}/train\n"
        "\n"
        "train: 2 workers built, all read back\n"
    )
    assert all(line.startswith(("[ctrl] ", "[new] ", "[old] ")) for line in done.stderr.splitlines())
    assert "[new] using token ***" in done.stderr
    said = [subprocess.run([project.target(*w)], capture_output=True, text=True).stdout for w in
            (("new", "precompiled-cu128"), ("old", "precompiled-cu126"))]  # fmt: skip
    assert said == ["train for cu128\n", "train for cu126\n"]


def test_prebuild_prints_one_json_object_and_nothing_else(project: Project) -> None:
    done = project.inv("fdl.prebuild", "--cmd", "train", "--json")
    assert done.stdout.count("\n") == 1
    report = json.loads(done.stdout)
    assert (report["cmd"], report["ok"], report["envelope"]) == ("train", True, envelope(project))
    assert {host: found["status"] for host, found in report["hosts"].items()} == {"new": "ok", "old": "ok"}


def test_several_commands_are_built_one_after_another_and_the_envelope_is_of_the_last(project: Project) -> None:
    done = project.inv("fdl.prebuild", "--cmd", "train", "--cmd", "other", "--json", "show")
    [line, *shown] = done.stdout.splitlines()
    report = json.loads(line)
    assert [one["cmd"] for one in report["cmds"]] == ["train", "other"]
    assert (report["ok"], report["envelope"]) == (True, envelope(project, "other"))
    text = json.dumps(envelope(project, "other"), separators=(",", ":"))
    assert shown == [f"show sees {text}", text]


def test_a_failed_worker_stops_no_other_and_is_told_last(project: Project) -> None:
    done = project.inv("fdl.prebuild", "--cmd", "train", "show", FAIL_ON="cu126")
    assert done.returncode == 1
    table = steady(done.stdout).splitlines()
    assert table[1].split()[:2] == ["new", "ok"]
    assert table[2].split()[:2] == ["old", "failed"]
    assert table[-1] == "train: 1 worker built, read back, 1 failed"
    assert "show sees" not in done.stdout
    told = done.stderr[done.stderr.index("\nold: ") :]
    assert "error: no kernel for train, token ***" in told
    assert f"{project.target('old', 'precompiled-cu126').parents[1]}/build.log" in told
    assert told.endswith("prebuild train: 1 of 2 workers failed: old\n")


def test_a_secret_or_an_escape_sequence_is_shown_nowhere(project: Project) -> None:
    table = project.inv("fdl.prebuild", "--cmd", "train", FAIL_ON="cu126")
    as_json = project.inv("fdl.prebuild", "--cmd", "train", "--json", FAIL_ON="cu126")
    show = project.inv("fdl.cluster.show")
    dry = project.inv("fdl.prebuild", "--cmd", "train", "--dry-run")
    assert "SECRET_TOKEN=***" in dry.stdout  # a variable that the binary is verified with
    for text in (table.stdout, table.stderr, as_json.stdout, as_json.stderr, show.stdout, dry.stdout):
        assert "hunter2" not in text
        assert "\x1b" not in text
    assert "\\u001b" not in as_json.stdout
    assert "env.SECRET_TOKEN  ***" in show.stdout


def test_preflight_stops_a_build_and_both_shapes_say_why(project: Project) -> None:
    (project.root / "cluster.yml").write_text(CLUSTER.replace("cu126, data_path: /tmp", "cu126, data_path: /nowhere"))
    done = project.inv("fdl.prebuild", "--cmd", "train")
    assert done.returncode == 1
    assert "old   error   data-path  data path" in done.stdout
    assert done.stdout.endswith("\n3 hosts: 2 ok, 1 failed\n")
    assert done.stderr.endswith("preflight failed on 1 of 3 hosts: old\ntrain: nothing was built\n")
    report = json.loads(project.inv("fdl.prebuild", "--cmd", "train", "--json").stdout)
    assert (report["ok"], report["preflight"]["hosts"]["old"]["status"]) == (False, "error")
    assert not project.target("new", "precompiled-cu128").exists()


def test_preflight_alone(project: Project) -> None:
    done = project.inv("fdl.preflight", "--host", "both", "--mounts-only")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "3 hosts: 3 ok")
    report = json.loads(project.inv("fdl.preflight", "--host", "old", "--json").stdout)
    assert report["ok"] is True
    assert list(report["hosts"]) == ["ctrl", "old"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fdl.prebuild"], "prebuild builds a command, and --cmd names none\n  next: inv prebuild --cmd ddp-bench"),
        (["fdl.prebuild", "--cmd", ""], "--cmd names none"),
        (["fdl.prebuild", "--cmd", "train", "--host", "nobody"], "'nobody' names no worker"),
        (["fdl.prebuild", "--cmd", "train", "--jobs", "x"], "--jobs takes a whole number of at least 1, not 'x'"),
        (["fdl.prebuild", "--cmd", "train", "--jobs", "0"], "--jobs takes"),
        (["fdl.prebuild", "--cmd", "train", "--width", "-1"], "--width (fdl.width) takes"),
        (["fdl.prebuild", "--cmd", "../x"], "no name for a command"),
        (["fdl.prebuild", "--cmd", "train", "--cluster", "none.yml"], "none.yml: can't be read"),
        (["fdl.prebuild", "--cmd", "train", "--envelope", "tasks.py"], "tasks.py: --envelope: is there already"),
        (["fdl.preflight", "--host", "nobody"], "known workers: new, old; groups: both"),
    ],
)
def test_a_wrong_call_is_told_and_does_nothing(project: Project, arguments: list[str], message: str) -> None:
    done = project.inv(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (project.root / "target").exists()


def test_faults_of_cluster_yml_are_all_told_with_exit_code_2(project: Project) -> None:
    (project.root / "cluster.yml").write_text("controler: {}\nworkers: [{host: a, path: /x, archh: y}]\n")
    done = project.inv("fdl.preflight", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "cluster.yml:1:" in done.stderr
    assert "cluster.yml:2:" in done.stderr


@pytest.mark.parametrize("workers", ["[]", "[{host: ctrl, path: .}]"])
def test_no_worker_is_no_failure_and_said(project: Project, workers: str) -> None:
    text = f"controller: {{host: ctrl, path: .}}\nworkers: {workers}\ncommands: {{train: {{cwd: .}}}}\n"
    (project.root / "cluster.yml").write_text(text.replace("path: .}]", f"path: {json.dumps(str(project.root))}}}]"))
    done = project.inv("fdl.prebuild", "--cmd", "train")
    assert done.returncode == 0, done.stderr
    assert "nothing" in done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "scripts"),
    [
        ([], ["checks/probe.sh", "builds/build.sh", "builds/verify.sh"]),
        (["--no-preflight"], ["builds/build.sh", "builds/verify.sh"]),
        (["--no-preflight", "--no-verify"], ["builds/build.sh"]),
    ],
)
def test_dry_run_prints_the_scripts_and_touches_nothing(
    project: Project, arguments: list[str], scripts: list[str]
) -> None:
    done = project.inv("fdl.prebuild", "--cmd", "train", "--dry-run", *arguments)
    assert done.returncode == 0, done.stderr
    heads = [line for line in done.stdout.splitlines() if line.startswith("# --- ")]
    assert heads == [f"# --- {host}: {script}" for script in scripts for host in ("new", "old")]
    assert f"{project.loader_path('cu128').removesuffix('/lib')}" in done.stdout
    assert not (project.root / "target").exists()


def test_the_file_of_the_envelope_is_written_when_all_succeeded_and_gone_otherwise(project: Project) -> None:
    file = project.root / "envelope.json"
    assert project.inv("fdl.prebuild", "--cmd", "train", "--envelope", "envelope.json").returncode == 0
    assert file.read_text() == json.dumps(envelope(project), separators=(",", ":")) + "\n"
    done = project.inv("fdl.prebuild", "--cmd", "train", "--envelope", "envelope.json", FAIL_ON="cu128")
    assert (done.returncode, file.exists()) == (1, False)


@pytest.mark.parametrize(
    ("argv", "kept"),
    [
        (["--cmd", "train", "--cluster", "lost.yml"], False),
        (["--cmd", "train", "--host", "nobody"], False),
        (["--cmd", "train", "--jobs", "0"], False),
        ([], False),
        (["--cmd", "train", "--dry-run"], True),
    ],
)
def test_an_earlier_envelope_does_not_outlive_a_call_that_fails(project: Project, argv: list[str], kept: bool) -> None:
    (project.root / "envelope.json").write_text('{"old":{"bin":"x","ld_library_path":"/l"}}')
    done = project.inv("fdl.prebuild", "--envelope", "envelope.json", *argv)
    assert (done.returncode, (project.root / "envelope.json").exists()) == (0 if kept else 2, kept)


@pytest.mark.parametrize("module", ["inv", "program"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_a_build_within_two_seconds(project: Project, module: str, number: signal.Signals) -> None:
    start = ["invoke", "fdl.prebuild"] if module == "inv" else ["tests.tasks.as_program", "prebuild"]
    process = subprocess.Popen(
        [sys.executable, "-m", *start, "--cmd", "train"],
        cwd=project.root,
        env=project.environment(SLEEP="31.7"),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stderr and process.stdout
    while "building" not in (line := process.stderr.readline()):
        assert line, "it ended before it built"
    time.sleep(0.3)
    began = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert time.monotonic() - began < 2.5
    assert (out, err.splitlines()[-1]) == ("", "ended by Ctrl-C or a signal")
    assert not running("31.7")


def running(argument: str) -> list[str]:
    """Processes that have this argument."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = place.read_bytes().split(b"\0")
        except OSError:
            continue
        if argument.encode() in words:
            found.append(place.parent.name)
    return found


def test_a_reader_that_goes_away_stops_no_task(project: Project) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "invoke", "fdl.preflight", "show"],
        cwd=project.root, env=project.environment(), stdout=writer, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(writer)
    assert done.returncode == 0
    assert "Broken" not in done.stderr
    assert "Traceback" not in done.stderr


def on_terminal(project: Project, *argv: str) -> tuple[int, str]:
    """A command on a terminal of 80 columns: its exit code, and all that the terminal got."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = project.environment(TERM="xterm", SLEEP="0.3")
    command = [sys.executable, "-m", "invoke", *argv]
    process = subprocess.Popen(
        command, cwd=project.root, env=environment, stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    seen = b""
    with contextlib.suppress(OSError), open(controller, "rb", buffering=0) as screen:  # EIO: the command ended
        while data := screen.read(65536):
            seen += data
    return process.wait(20), seen.decode()


def test_a_terminal_gets_live_rows_that_make_room_for_the_table(project: Project) -> None:
    code, screen = on_terminal(project, "fdl.prebuild", "--cmd", "train")
    assert code == 0, screen
    live, _, table = screen.rpartition("\x1b[?25h")  # the cursor is shown again
    assert "waiting for" in live
    assert "[new] " not in live
    lines = [line for line in map(clean, table.splitlines()) if line]
    assert lines[0].split() == ["worker", "status", "seconds", "arch", "artifact"]
    assert max(map(len, lines)) <= 80
    assert "".join(line[44:].strip() for line in lines[1:3]) == f"{NEW}/train"


def test_help_tells_every_flag_in_words(project: Project) -> None:
    text = project.inv("--help", "fdl.prebuild").stdout
    flags = [line.split()[0].split("=")[0] for line in text[text.index("Options:") :].splitlines() if " --" in line]
    assert flags == [
        "--cluster", "--cmd", "--[no-]dedupe", "--dry-run", "--envelope", "--host", "--jobs", "--json",
        "--[no-]preflight", "--[no-]shared-check", "--[no-]verify", "--width",
    ]  # fmt: skip
    assert "inv prebuild --cmd ddp-bench" in text


def test_minus_h_is_help_and_starts_nothing(project: Project) -> None:
    done = project.inv("fdl.prebuild", "--cmd", "train", "-h")
    assert "Usage:" in done.stdout
    assert not (project.root / "target").exists()


def test_listing_tasks_imports_nothing_heavy(project: Project) -> None:
    code = (
        "import sys; from invoke.main import program\n"
        "program.run(['inv', '--list'], exit=False)\n"
        "print(sorted({m.split('.')[0] for m in sys.modules} & set(sys.argv[1].split())))"
    )
    heavy = "jinja2 yaml pydantic fabric paramiko rich requests psutil elftools filelock pynvml"

    def listing() -> list[str]:
        argv = [sys.executable, "-c", code, heavy]
        run = subprocess.run(argv, cwd=project.root, env=project.environment(), capture_output=True, text=True)
        return run.stdout.splitlines()

    with_the_library = listing()
    (project.root / "tasks.py").write_text("from invoke import task\n\n\n@task\ndef mine(c): pass\n")
    without = listing()
    listed = [line.split()[0] for line in with_the_library if line.startswith("  fdl.")]
    tasks = ["ensure-image", "gpus", "images", "prebuild", "prebuild-clean", "preflight", "prepare", "sync-image"]
    inner = ["cluster.schema", "cluster.show", "libtorch.get", "libtorch.list", "libtorch.use"]
    assert listed == [f"fdl.{name}" for name in (*tasks, *inner)]
    assert "  mine" in without
    assert with_the_library[-1] == without[-1]
    assert set(ast.literal_eval(without[-1])) <= {"yaml"}, "Invoke itself may read YAML, and nothing more"


def test_cluster_show_and_schema(project: Project) -> None:
    rows = json.loads(project.inv("fdl.cluster.show", "--json").stdout)["settings"]
    assert {"of": "worker new", "key": "arch", "value": "precompiled/cu128", "origin": "worker"} in rows
    schema = project.inv("fdl.cluster.schema")
    assert json.loads(schema.stdout)["title"] == "cluster.yml"


@pytest.mark.parametrize(
    ("arguments", "code", "where", "text"),
    [
        (["--bogus"], 2, "stderr", "No idea what '--bogus' is!"),
        (["prebuild", "--bogus"], 2, "stderr", "No idea what '--bogus' is!"),
        (["prebuild", "--cmd"], 2, "stderr", "--cmd names none"),
        (["nothing"], 2, "stderr", "No idea what 'nothing' is!"),
        (["prebuild"], 2, "stderr", "--cmd names none"),
        (["--list"], 0, "stdout", "cluster.show"),
        (["--version"], 0, "stdout", "fdl-tasks"),
        (["preflight"], 0, "stdout", "3 hosts: 3 ok"),
    ],
)
def test_the_console_script(project: Project, arguments: list[str], code: int, where: str, text: str) -> None:
    done = project.program(*arguments)
    assert done.returncode == code, done.stderr
    assert text in (done.stdout if where == "stdout" else done.stderr)
    assert "Traceback" not in done.stderr
