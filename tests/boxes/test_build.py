"""A recipe run for real in a fetched tree: what becomes of each way that it can end."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fdl_tasks.boxes import build as building
from fdl_tasks.boxes.build import Binary, build, environment
from fdl_tasks.boxes.gpu.toolkit import Gap
from fdl_tasks.boxes.recipe import Recipe
from fdl_tasks.boxes.tools import Tools
from fdl_tasks.boxes.torch.library import Libtorch
from fdl_tasks.errors import PermanentError, TransientError

MAKE = "printf '#!/bin/sh\\necho hello\\n' >x && chmod +x x"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "source"
    (tree / "bench").mkdir(parents=True)
    return tree


@pytest.fixture
def libtorch(tmp_path: Path) -> Libtorch:
    place = tmp_path / "libtorch/precompiled/cu128"
    (place / "lib").mkdir(parents=True)
    (place / "build-version").write_text("2.10.0")
    return Libtorch(place, "precompiled/cu128", "8.6")


def made(tree: Path, line: str, binary: str = "x", cwd: str = ".", libtorch: Libtorch | None = None) -> Binary:
    notes: list[str] = []
    return build(Recipe(cwd, line, binary), tree, libtorch, Tools("box"), notes.append, env={})


@pytest.mark.subprocess
def test_a_build_gives_the_binary_and_its_directory(tree: Path) -> None:
    assert made(tree, MAKE, cwd="bench") == Binary(tree / "bench/x", tree / "bench")


@pytest.mark.subprocess
def test_the_recipe_sees_this_boxs_libtorch(tree: Path, libtorch: Libtorch) -> None:
    show = "echo $FDL_GPU_FEATURE $LIBTORCH_PATH $LD_LIBRARY_PATH >seen"
    made(tree, f"{MAKE} && {show}", libtorch=libtorch)
    assert (tree / "seen").read_text() == f"cuda {libtorch.dir} {libtorch.dir}/lib\n"


@pytest.mark.subprocess
def test_without_a_libtorch_nothing_is_set_and_a_note_says_so(tree: Path) -> None:
    notes: list[str] = []
    recipe = Recipe(".", f"{MAKE} && echo ${{LIBTORCH_PATH-unset}} >seen", "x")
    build(recipe, tree, None, Tools("box"), notes.append, env={})
    assert (tree / "seen").read_text() == "unset\n"
    assert [note for note in notes if "LIBTORCH_PATH" in note and "--libtorch auto" in note]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("exit 3", "ended with 3"),
        ("echo 'error: mismatched types' >&2; exit 101", "mismatched types"),
        ("kill -KILL $$", "ended by signal 9"),
        ("kill -TERM $$", "ended by signal 15"),
        ("read answer && echo $answer", "ended with 1"),  # it asks, and gets the end of the file
        ("read answer </dev/tty", "ended with"),  # no terminal either
    ],
)
@pytest.mark.subprocess
def test_a_build_that_fails_may_do_better_next_time(tree: Path, line: str, what: str) -> None:
    with pytest.raises(TransientError, match=what) as caught:
        made(tree, line)
    assert "mend it at the source" in str(caught.value)


@pytest.mark.parametrize("line", ["exit 3", "kill -KILL $$"])
@pytest.mark.subprocess
def test_a_failed_build_is_permanent_where_the_toolkit_is_missing(
    tree: Path, libtorch: Libtorch, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gap = Gap(Path("/usr/local/cuda"), ("nccl.h",), ("libnccl-dev",), "sudo apt install -y libnccl-dev")
    monkeypatch.setattr(building, "toolkit_gap", lambda *_: gap)
    with pytest.raises(PermanentError) as caught:
        made(tree, line, libtorch=libtorch)
    for word in ("nccl.h", "/usr/local/cuda", "--features cuda", "sudo apt install -y libnccl-dev"):
        assert word in str(caught.value)


@pytest.mark.subprocess
def test_a_cpu_variant_wants_no_toolkit(tree: Path, libtorch: Libtorch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "toolkit_gap", lambda *_: pytest.fail("nobody asks for it"))
    with pytest.raises(TransientError):
        made(tree, "exit 1", libtorch=Libtorch(libtorch.dir, "precompiled/cpu", "cpu"))


@pytest.mark.parametrize(
    "said", ["cc: error: x.o: No space left on device", "error: failed to write: Os { code: 28 } (os error 28)"]
)
@pytest.mark.subprocess
def test_a_full_disk_is_permanent_with_path_and_room(tree: Path, said: str) -> None:
    with pytest.raises(PermanentError, match="no room") as caught:
        made(tree, f"echo '{said}' >&2; exit 1")
    assert str(tree) in str(caught.value) and "free" in str(caught.value)


@pytest.mark.subprocess
def test_a_truly_full_disk_is_found_in_what_the_shell_says(lab, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    tree = tmp_path / "small/source"
    (tmp_path / "small").mkdir()
    with lab.small_disk(tmp_path / "small", "1m"):
        tree.mkdir()
        with pytest.raises(PermanentError, match="no room"):
            made(tree, "head -c 5000000 /dev/zero >big")


@pytest.mark.subprocess
def test_built_without_the_artifact_is_permanent(tree: Path) -> None:
    with pytest.raises(PermanentError, match="made no such file"):
        made(tree, "true")


@pytest.mark.subprocess
def test_an_artifact_that_nobody_may_execute_is_permanent(tree: Path) -> None:
    with pytest.raises(PermanentError, match="can't be executed"):
        made(tree, "echo text >x && chmod a-x x")


@pytest.mark.subprocess
def test_a_directory_that_is_not_there_is_permanent(tree: Path) -> None:
    with pytest.raises(PermanentError, match="no such directory"):
        made(tree, MAKE, cwd="nowhere")
    (tree / "file").touch()
    with pytest.raises(PermanentError, match="no such directory"):
        made(tree, MAKE, cwd="file")


@pytest.mark.subprocess
def test_no_link_leads_out_of_the_tree(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tree / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermanentError, match="cwd leaves the source tree"):
        made(tree, MAKE, cwd="link")
    with pytest.raises(PermanentError, match="bin leaves the source tree"):
        made(tree, "ln -s /bin/true y", binary="y")


@pytest.mark.subprocess
def test_cargo_is_needed_only_for_the_default(tree: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    for tool in ("sh", "env", "chmod", "head"):
        (bare / tool).symlink_to(str(shutil.which(tool)))
    monkeypatch.setenv("PATH", str(bare))
    made(tree, MAKE)
    with pytest.raises(PermanentError, match="cargo is not installed") as caught:
        made(tree, "cargo build --release")
    assert "rustup.rs" in str(caught.value)


@pytest.mark.subprocess
def test_a_binary_whose_libraries_are_not_there_is_not_ready(tree: Path) -> None:
    (tree / "a.c").write_text("int a(void) { return 1; }")
    (tree / "m.c").write_text("int a(void); int main(void) { return a(); }")
    line = "cc -shared -fPIC -o liblost.so a.c && cc -o x m.c -L. -llost && rm liblost.so"
    with pytest.raises(PermanentError, match=r"can't start here: liblost\.so not found"):
        made(tree, line)


@pytest.mark.subprocess
def test_a_binary_that_wants_a_newer_system_is_not_ready(tree: Path) -> None:
    """As libtorch for ROCm 7 on RHEL 9: GLIBC_2.35 (facts/upstream.md, 9.47)."""
    (tree / "a.c").write_text("int a(void) { return 1; }")
    (tree / "m.c").write_text("int a(void); int main(void) { return a(); }")
    for version in ("OLD_1", "NEW_2"):
        (tree / version).write_text(f"{version} {{ global: a; }};")
    library = "cc -shared -fPIC -o liba.so a.c -Wl,--version-script="
    with pytest.raises(PermanentError, match=r"can't start here: NEW_2 not found"):
        made(tree, f"{library}NEW_2 && cc -o x m.c -L. -la -Wl,-rpath,. && {library}OLD_1")


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ("\tlibc.so.6 => /lib64/libc.so.6 (0x00007f)\n\tstatically linked\n", []),
        ("\tlibtorch.so => not found\n\tlibc10.so => not found\n", ["libtorch.so", "libc10.so"]),
        ("./x: /lib64/libc.so.6: version `GLIBC_2.35' not found (required by ./x)\n" * 2, ["GLIBC_2.35"]),
        ("./x: /lib64/libm.so.6: weak version `GLIBC_2.35' not found (required by ./x)\n", []),  # the loader goes on
    ],
)
def test_what_ldd_does_not_find(said: str, names: list[str]) -> None:
    assert building.not_found(said) == names


@pytest.mark.subprocess
def test_another_libtorch_in_the_same_place_means_building_anew(tree: Path, libtorch: Libtorch) -> None:
    """cargo says "Finished" then, and the binary dies with an undefined symbol (facts/bootstrap.md)."""
    targets = [tree / "target", tree / "bench/target"]
    for target in targets:
        target.mkdir()
        (target / "CACHEDIR.TAG").write_text("Signature: 8a477f597d28d172789f06886806bc55")
    (tree / "src/target").mkdir(parents=True)  # somebody's own module
    made(tree, MAKE, libtorch=libtorch)
    assert all(target.exists() for target in targets)
    (libtorch.dir / "build-version").write_text("2.11.0")
    made(tree, MAKE, libtorch=libtorch)
    assert not any(target.exists() for target in targets) and (tree / "src/target").exists()


INTERRUPTED = """
import sys
from pathlib import Path
from fdl_tasks.boxes.build import build
from fdl_tasks.boxes.recipe import Recipe
from fdl_tasks.boxes.tools import Tools
build(Recipe(".", "echo $$ >pid; sleep 1000 & sleep 1000", "x"), Path(sys.argv[1]), None, Tools("b"), print, env={})
"""


@pytest.mark.subprocess
def test_ctrl_c_leaves_no_process_of_the_build(tree: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", INTERRUPTED, tree], stderr=subprocess.DEVNULL)
    while not (tree / "pid").is_file() or not (tree / "pid").read_text().strip():
        time.sleep(0.02)
    group = os.getpgid(int((tree / "pid").read_text()))
    process.send_signal(signal.SIGINT)
    assert process.wait(10) != 0
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("something of the build is still running")


@pytest.mark.parametrize(
    ("variant", "feature", "path"),
    [
        ("precompiled/cu128", "cuda", "{0}/lib"),
        ("precompiled/cpu", "", "{0}/lib"),
        ("precompiled/rocm70", "rocm", "/opt/rocm/lib:{0}/lib"),
    ],
)
def test_the_environment_of_each_vendor(tmp_path: Path, variant: str, feature: str, path: str) -> None:
    found = environment(Libtorch(tmp_path, variant, None), {})
    expected = {"LIBTORCH_PATH": str(tmp_path), "FDL_GPU_FEATURE": feature, "LD_LIBRARY_PATH": path.format(tmp_path)}
    assert found == expected
