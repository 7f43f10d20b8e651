from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fdl_tasks.arch import Vendor
from fdl_tasks.boxes import distribution
from fdl_tasks.boxes.gpu.toolkit import HEADERS, Gap, rocm_root, rocm_runtime, toolkit_gap
from fdl_tasks.boxes.tools import Tools
from fdl_tasks.errors import Cancelled, PermanentError, Stage, TransportError
from fdl_tasks.hosts.base import Completed

NVIDIA, AMD = Vendor.NVIDIA, Vendor.AMD


class Compiler(Tools):
    """This box's tools, with a compiler that finds these headers; without one, or one that fails so."""

    def __init__(self, finds: Sequence[str] = (), raises: Exception | None = None):
        super().__init__("box")
        self.finds, self.raises, self.asked = finds, raises, list[list[str]]()

    def run(self, argv: Sequence[str | Path], **options: Any) -> Completed:
        self.asked.append(list(map(str, argv)))
        if self.raises:
            raise self.raises
        source = Path(argv[-1]).read_text()
        asked = [line.partition("<")[2].rstrip(">)") for line in source.splitlines() if line.startswith("#if")]
        out = [f"found {number}" for number, header in enumerate(asked) if header in self.finds]
        return Completed(0, "\n".join(['# 1 "headers.cpp"', *out, ""]), "", 0.1)


NO_COMPILER = PermanentError("c++ is not installed")


@pytest.fixture(autouse=True)
def _debian(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "_read", lambda: "ID=debian\n")


def put(root: Path, folder: str, *headers: str) -> None:
    for header in headers:
        path = root / folder / header
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")


def test_a_box_without_a_toolkit_lacks_all_of_it(tmp_path: Path) -> None:
    assert toolkit_gap(NVIDIA, Compiler(), {}, tmp_path) == Gap(
        Path("/usr/local/cuda"),
        ("cuda_runtime.h", "crt/host_config.h", "cublas_v2.h", "cusolverDn.h", "cusparse.h", "nccl.h"),
        ("cuda-toolkit", "libnccl-dev"),
        "sudo apt install -y cuda-toolkit libnccl-dev",
    )
    rocm = "hip-dev rccl-dev hipblas-dev hipblas-common-dev hipblaslt-dev hipsolver-dev hipsparse-dev"
    assert toolkit_gap(AMD, Compiler(), {}, tmp_path) == Gap(
        Path("/opt/rocm"), tuple(HEADERS[AMD]), tuple(rocm.split()), f"sudo apt install -y {rocm}"
    )


@pytest.mark.parametrize(
    ("folder", "env"),
    [
        ("usr/local/cuda/include", {}),
        ("usr/local/cuda/include", {"CUDA_HOME": ""}),
        ("srv/cuda-12.8/include", {"CUDA_HOME": "/srv/cuda-12.8"}),
        ("usr/include", {}),
        ("usr/local/include", {}),
        ("usr/include", {"CUDA_HOME": "/srv/cuda-12.8"}),
    ],
)
def test_headers_in_any_of_the_places_are_there(tmp_path: Path, folder: str, env: dict[str, str]) -> None:
    put(tmp_path, folder, *HEADERS[NVIDIA])
    tools = Compiler(raises=NO_COMPILER)
    assert toolkit_gap(NVIDIA, tools, env, tmp_path) is None
    assert tools.asked == []


def test_only_what_is_missing_is_named(tmp_path: Path) -> None:
    put(tmp_path, "usr/local/cuda/include", *list(HEADERS[NVIDIA])[:-1])
    gap = toolkit_gap(NVIDIA, Compiler(), {}, tmp_path)
    assert gap is not None
    assert (gap.headers, gap.packages, gap.install) == (
        ("nccl.h",), ("libnccl-dev",), "sudo apt install -y libnccl-dev"
    )  # fmt: skip


def test_a_directory_is_no_header(tmp_path: Path) -> None:
    put(tmp_path, "usr/include", *list(HEADERS[NVIDIA])[:-1])
    (tmp_path / "usr/include/nccl.h").mkdir()
    gap = toolkit_gap(NVIDIA, Compiler(), {}, tmp_path)
    assert gap is not None
    assert gap.headers == ("nccl.h",)


def test_the_packages_have_the_names_of_this_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "_read", lambda: 'ID="rocky"\n')
    gap = toolkit_gap(AMD, Compiler(list(HEADERS[AMD])[2:]), {}, tmp_path)
    assert gap is not None
    assert gap.install == "sudo dnf install -y hip-devel rccl-devel"


@pytest.mark.parametrize("raises", [NO_COMPILER, TransportError(Stage.DEADLINE, "60 s passed"), OSError(28, "full")])
def test_a_compiler_that_cannot_be_asked_finds_nothing(tmp_path: Path, raises: Exception) -> None:
    gap = toolkit_gap(AMD, Compiler(raises=raises), {}, tmp_path)
    assert gap is not None
    assert len(gap.headers) == 7


def test_a_run_that_is_ended_is_no_missing_header(tmp_path: Path) -> None:
    with pytest.raises(Cancelled):
        toolkit_gap(AMD, Compiler(raises=Cancelled("ended by the user")), {}, tmp_path)


def test_what_only_the_compiler_finds_is_there(tmp_path: Path) -> None:
    assert toolkit_gap(AMD, Compiler(list(HEADERS[AMD])), {}, tmp_path) is None


@pytest.mark.parametrize(
    ("cxx", "begins"),
    [("", ["c++"]), ("clang++", ["clang++"]), ("ccache g++ -m64", ["ccache", "g++", "-m64"]), ("  ", ["c++"])],
)
def test_the_compiler_is_the_one_that_cxx_names(tmp_path: Path, cxx: str, begins: list[str]) -> None:
    tools = Compiler()
    toolkit_gap(AMD, tools, {"CXX": cxx}, tmp_path)
    [argv] = tools.asked
    assert argv[:-1] == [*begins, "-I", str(tmp_path / "opt/rocm/include"), "-E", "-x", "c++"]
    assert not Path(argv[-1]).exists()  # its directory is gone


def test_a_cxx_that_is_no_command_line_finds_nothing(tmp_path: Path) -> None:
    assert toolkit_gap(AMD, Compiler(list(HEADERS[AMD])), {"CXX": "'c++"}, tmp_path) is not None


def test_the_cpu_needs_no_toolkit(tmp_path: Path) -> None:
    assert toolkit_gap(Vendor.CPU, Compiler(), {}, tmp_path) is None


@pytest.mark.parametrize(
    ("runtime", "env", "directory", "place"),
    [
        (None, {}, None, "/opt/rocm"),
        (None, {"ROCM_PATH": "/srv/rocm"}, None, "/srv/rocm"),
        ("opt/rocm/lib", {}, "/opt/rocm/lib", "/opt/rocm"),
        ("opt/rocm/lib64", {"ROCM_PATH": "/srv/rocm"}, "/opt/rocm/lib64", "/opt/rocm"),
        ("srv/rocm/lib", {"HSA_PATH": "/srv/rocm"}, "/srv/rocm/lib", "/srv/rocm"),
        ("usr/lib64", {}, "/usr/lib64", "/opt/rocm"),
        ("usr/lib/x86_64-linux-gnu", {"ROCM_PATH": ""}, "/usr/lib/x86_64-linux-gnu", "/opt/rocm"),
    ],
)
def test_rocm_is_where_its_runtime_is(
    tmp_path: Path, runtime: str | None, env: dict[str, str], directory: str | None, place: str
) -> None:
    if runtime:
        put(tmp_path, runtime, "libhsa-runtime64.so")
    assert rocm_runtime(env, tmp_path) == (Path(directory) if directory else None)
    assert rocm_root(env, tmp_path) == Path(place)


@pytest.mark.parametrize("place", ["x" * 5000, "/proc/version/below", "~", "rocm"])
def test_a_variable_that_is_no_place_is_passed_over(tmp_path: Path, place: str) -> None:
    put(tmp_path, "opt/rocm/lib", "libhsa-runtime64.so")
    assert rocm_runtime({"ROCM_PATH": place}, tmp_path) == Path("/opt/rocm/lib")
    assert toolkit_gap(NVIDIA, Compiler(), {"CUDA_HOME": place}, tmp_path) is not None


@pytest.mark.subprocess
def test_the_real_compiler_finds_headers_where_its_own_variables_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shutil.which("c++"):
        pytest.skip("needs a C++ compiler")
    put(tmp_path, "far away", *list(HEADERS[AMD])[1:])
    put(tmp_path, "far away", "hip/hip_version.h")
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", str(tmp_path / "far away"))
    gap = toolkit_gap(AMD, Tools("box"), {}, tmp_path)
    assert gap is not None
    assert gap.headers == ("hip/hip_runtime.h",)
    put(tmp_path, "far away", "hip/hip_runtime.h")
    (tmp_path / "far away/hip/hip_runtime.h").write_text("#error no platform is chosen\n")  # as the real one says
    assert toolkit_gap(AMD, Tools("box"), {}, tmp_path) is None


@pytest.mark.subprocess
def test_a_box_without_the_compiler_is_no_error(tmp_path: Path) -> None:
    gap = toolkit_gap(AMD, Tools("box"), {"CXX": "fdl-no-such-compiler"}, tmp_path)
    assert gap is not None
    assert len(gap.headers) == 7
