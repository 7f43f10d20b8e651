"""The example monorepo with the real cargo and cc: each variant gets a binary that no other one starts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
OURS = ("CARGO_", "RUSTFLAGS", "RUST_BACKTRACE", "LIBTORCH_", "LD_LIBRARY_PATH", "FDL_", "FLODL_", "INVOKE_")
# The environment as it was before a fixture moves HOME: rustup finds its toolchains by it.
INHERITED = {name: value for name, value in os.environ.items() if name == "CARGO_HOME" or not name.startswith(OURS)}
CUDA, CPU = "precompiled/cu128", "precompiled/cpu"
FEATURES = {CUDA: ["--features", "cuda"], CPU: []}
OTHER = {CUDA: CPU, CPU: CUDA}
SAYS = {
    CUDA: "ddp-bench: libtorch cu128 (build 2.10.0+cu128), feature cuda\n",
    CPU: "ddp-bench: libtorch cpu (build 2.10.0+cpu), feature none\n",
}
MISSING = [tool for tool in ("cargo", "cc") if shutil.which(tool) is None]

pytestmark = [
    pytest.mark.subprocess,
    pytest.mark.skipif(
        bool(MISSING) and os.environ.get("FDL_REQUIRE_LAB") != "1",
        reason=f"not installed: {', '.join(MISSING)}",
    ),
]


def run(*argv: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        cwd=cwd,
        env={**INHERITED, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def make_libtorch(root: Path, *variants: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run(root / "make-libtorch.sh", root, *variants, cwd=root.parent, **environment)


def build(root: Path, target: Path, features: list[str], libtorch: Path) -> subprocess.CompletedProcess[str]:
    argv = ["cargo", "build", "--release", "--locked", "--offline", *features, "--bin", "ddp-bench"]
    return run(*argv, cwd=root / "ddp-bench", LIBTORCH_PATH=str(libtorch), CARGO_TARGET_DIR=str(target))


def start(root: Path, built: str, loaded: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    libraries = str(root / "libtorch" / loaded / "lib")
    return run(binary(root, built), *arguments, cwd=root, LD_LIBRARY_PATH=libraries)


def binary(root: Path, variant: str) -> Path:
    return root / "target" / variant.replace("/", "-") / "release" / "ddp-bench"


def copy_of_the_example(parent: Path) -> Path:
    """A copy outside of the checkout, without what somebody may have built there."""
    ignored = shutil.ignore_patterns("target", "libtorch", "__pycache__")
    return Path(shutil.copytree(TOP / "examples" / "monorepo", parent / "mono repo", ignore=ignored))


@pytest.fixture(scope="module")
def monorepo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = copy_of_the_example(tmp_path_factory.mktemp("example"))
    assert make_libtorch(root).returncode == 0
    for variant, features in FEATURES.items():
        done = build(root, binary(root, variant).parents[1], features, root / "libtorch" / variant)
        assert done.returncode == 0, done.stderr
    return root


@pytest.mark.parametrize("variant", [CUDA, CPU])
def test_a_binary_says_which_library_it_found(monorepo: Path, variant: str) -> None:
    done = start(monorepo, variant, variant)
    assert (done.returncode, done.stdout, done.stderr) == (0, SAYS[variant], "")


@pytest.mark.parametrize("arguments", [(), ("--version",)], ids=["plain", "version"])
@pytest.mark.parametrize("variant", [CUDA, CPU])
def test_a_binary_does_not_start_with_another_variant(monorepo: Path, variant: str, arguments: tuple[str, ...]) -> None:
    done = start(monorepo, variant, OTHER[variant], *arguments)
    assert done.returncode != 0
    assert done.stdout == ""
    assert f"undefined symbol: torch_kernels_2_10_0_{variant.partition('/')[2]}" in done.stderr


def test_version_is_the_crates(monorepo: Path) -> None:
    assert start(monorepo, CPU, CPU, "--version").stdout == "ddp-bench 0.3.1\n"


def test_an_unknown_argument_is_refused(monorepo: Path) -> None:
    done = start(monorepo, CPU, CPU, "--gpus")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--gpus is unknown" in done.stderr


@pytest.mark.parametrize(
    ("libtorch", "message"),
    [
        ("", "LIBTORCH_PATH is not set"),
        ("bare", "bare, which has no lib/"),
        ("torn", "torn/build-version"),
    ],
)
def test_a_build_without_a_libtorch_says_what_is_wrong(
    monorepo: Path, tmp_path: Path, libtorch: str, message: str
) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "torn" / "lib").mkdir(parents=True)
    environment = {"LIBTORCH_PATH": str(tmp_path / libtorch)} if libtorch else {}
    argv = ["cargo", "check", "--offline", "--locked"]
    done = run(*argv, cwd=monorepo / "ddp-bench", CARGO_TARGET_DIR=str(tmp_path / "target"), **environment)
    assert done.returncode == 101
    assert message in done.stderr


def mtimes(root: Path) -> Mapping[Path, int]:
    return {path: path.stat().st_mtime_ns for path in sorted((root / "libtorch").rglob("*"))}


def test_making_libtorch_again_touches_nothing(monorepo: Path) -> None:
    before = mtimes(monorepo)
    done = make_libtorch(monorepo)
    assert (done.returncode, done.stdout.count("is there")) == (0, 4)
    assert mtimes(monorepo) == before
    assert len([path for path in before if path.name == "libtorch.so"]) == 4


def test_making_libtorch_mends_only_what_is_incomplete(tmp_path: Path) -> None:
    root = copy_of_the_example(tmp_path)
    assert make_libtorch(root, CUDA, CPU).returncode == 0
    (root / "libtorch" / CPU / "lib" / "libtorch.so").unlink()
    done = make_libtorch(root, CUDA, CPU)
    assert (
        done.stdout == "libtorch/precompiled/cu128: 2.10.0+cu128 is there\nlibtorch/precompiled/cpu: 2.10.0+cpu made\n"
    )
    assert sorted(path.name for path in (root / "libtorch" / "precompiled").iterdir()) == ["cpu", "cu128"]


@pytest.mark.parametrize("variant", ["cu128", "precompiled/../x", "/precompiled/cpu", "precompiled/a\nb", "builds/"])
def test_making_libtorch_refuses_what_is_no_variant(tmp_path: Path, variant: str) -> None:
    root = copy_of_the_example(tmp_path)
    done = make_libtorch(root, CPU, variant)
    assert (done.returncode, done.stdout) == (1, "")
    assert "is no variant" in done.stderr
    assert not (root / "libtorch").exists()


def test_a_variant_says_what_it_is_made_for(monorepo: Path) -> None:
    text = (monorepo / "libtorch" / CUDA / ".arch").read_text()
    assert text == "cuda=12.8\ntorch=2.10.0\narchs=7.0 7.5 8.0 8.6 8.9 9.0 12.0\nsource=precompiled\nvariant=cu128\n"


def test_cargo_does_not_notice_a_library_replaced_in_place(tmp_path: Path) -> None:
    """The reason why prebuild stamps libtorch: the example must keep behaving like a real crate here."""
    root = copy_of_the_example(tmp_path)
    libtorch, target = root / "libtorch" / CPU, binary(root, CPU).parents[1]
    assert make_libtorch(root, CPU).returncode == 0
    assert build(root, target, [], libtorch).returncode == 0
    assert make_libtorch(root, CPU, LIBTORCH_VERSION="2.11.0").stdout.endswith("2.11.0+cpu made\n")
    assert "Compiling" not in build(root, target, [], libtorch).stderr
    assert "undefined symbol: torch_kernels_2_10_0_cpu" in start(root, CPU, CPU).stderr


def inv(root: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", "invoke", *arguments, cwd=root, PYTHONPATH=str(TOP), **environment)


def test_train_builds_for_both_workers_and_starts_both_binaries(monorepo: Path) -> None:
    done = inv(monorepo, "train")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"bench-gpu: {SAYS[CUDA]}" in done.stdout
    assert f"bench-cpu: {SAYS[CPU]}" in done.stdout


def envelope_of(monorepo: Path, built: str, loaded: str) -> str:
    """An envelope as prebuild writes it, around what the fixture built."""
    place = binary(monorepo, built).relative_to(monorepo)
    libraries = str(monorepo / "libtorch" / loaded / "lib")
    return json.dumps({"w": {"bin": str(place), "ld_library_path": libraries, "cwd_subpath": "ddp-bench"}})


def test_launch_needs_nothing_but_the_envelope(monorepo: Path, tmp_path: Path) -> None:
    file = tmp_path / "envelope.json"
    file.write_text(envelope_of(monorepo, CUDA, CUDA))
    done = inv(monorepo, "launch", "--envelope", str(file))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"w: {SAYS[CUDA]}", "")


@pytest.mark.parametrize(
    ("envelope", "code", "message"),
    [
        (None, 2, "no envelope"),
        ("{", 2, "FLODL_INTERNAL_PREBUILD_PER_HOST: "),
        ("other", 1, "did not run: w"),
    ],
)
def test_launch_says_why_it_started_nothing(monorepo: Path, envelope: str | None, code: int, message: str) -> None:
    text = envelope_of(monorepo, CUDA, CPU) if envelope == "other" else envelope
    environment = {} if text is None else {"FLODL_INTERNAL_PREBUILD_PER_HOST": text}
    done = inv(monorepo, "launch", **environment)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
