"""From a worker and a command to its build: places, variables and command lines (pure).

Conventions: spec/prebuild.md; seeds/000, ``prebuild_one_worker``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from .. import arch as variants
from ..cluster.model import Command, Controller, Worker
from ..errors import BuildError, UsageError

WORKSPACE = PurePosixPath("/workspace")  # where a compose service has the project root
MESSAGES = "--message-format=json-render-diagnostics"  # artifacts as JSON on stdout, diagnostics as text on stderr


@dataclass(frozen=True)
class Site:
    """What the file system says of the project, gathered at the edge.

    ``below`` is the current directory relative to the project root, None when it is outside.
    """

    root: Path
    below: PurePosixPath | None
    own_manifest: bool  # <root>/<command>/Cargo.toml
    root_manifest: bool  # <root>/Cargo.toml


@dataclass(frozen=True)
class Job:
    """One worker's build. ``root`` is the project root on the controller.

    ``service`` is the compose service that builds; None: cargo runs on the controller itself.
    """

    host: str
    command: Command
    arch: str
    root: Path
    cwd_subpath: str
    loader_path: str
    service: str | None = None
    docker_deps: bool = False

    @property
    def feature(self) -> str:
        return variants.feature(self.arch)

    @property
    def target_dir(self) -> str:
        """Relative to the project root; by host and variant, whose caches must never meet."""
        return f"target/cluster/{self.host}/{variants.slug(self.arch)}"

    @property
    def target(self) -> Path:
        return self.root / self.target_dir

    @property
    def log(self) -> Path:
        """The build's whole output, written while it runs."""
        return self.target / "build.log"

    @property
    def libtorch(self) -> Path:
        return libtorch_of(self.root, self.arch)

    @property
    def inside(self) -> PurePosixPath:
        """The project root as the build itself sees it."""
        return WORKSPACE if self.service else PurePosixPath(self.root)

    @property
    def custom_bin(self) -> str:
        """What a custom line has to produce, relative to the project root."""
        return f"{self.target_dir}/{self.command.bin or f'release/{self.command.name}'}"

    @property
    def warnings(self) -> tuple[str, ...]:
        if variants.vendor(self.arch) is not None:
            return ()
        return (
            f"arch: {self.arch!r} follows no naming rule (cu…, sm…, rocm…, gfx…, cpu): built with the feature cuda",
        )


def libtorch_of(root: Path, arch: str) -> Path:
    """Where the controller has a libtorch variant."""
    return root / "libtorch" / arch


def command_directory(command: Command, site: Site) -> str:
    """The command's directory relative to the project root; ``""`` for the root itself.

    Raises:
        UsageError: nothing says where the command is.
    """
    if command.cwd is not None:
        return _relative(PurePosixPath(command.cwd))
    if site.own_manifest:
        return command.name
    if site.below is not None:
        return _relative(site.below)
    if site.root_manifest:
        return ""
    raise UsageError(
        f"no directory for the command {command.name}: {site.root / command.name} has no Cargo.toml, nor has the "
        "current directory or one above it in the project",
        hint=f"mend the name; or set commands.{command.name}.cwd in cluster.yml; or call it from its directory",
    )


def _relative(path: PurePosixPath) -> str:
    return "" if path == PurePosixPath(".") else str(path)


def job(worker: Worker, command: Command, controller: Controller, directory: str, usable: Collection[str]) -> Job:
    """The build of ``command`` for ``worker``; ``usable`` are the variants that have a ``lib/``.

    Raises:
        BuildError: the worker names no variant, or the controller does not have it.
    """
    if not worker.arch:
        raise BuildError(
            f"worker {worker.host} has no arch: the libtorch variant that its binary is linked against",
            hint="set it in cluster.yml, as in `arch: precompiled/cu128` or `arch: builds/sm61-sm120`",
        )
    if worker.arch not in usable:
        raise BuildError(
            f"no libtorch to build against: {libtorch_of(controller.path, worker.arch)} has no lib/ directory",
            hint=f"install the variant {worker.arch} there, or mend arch of {worker.host} in cluster.yml",
        )
    return Job(
        worker.host,
        command,
        worker.arch,
        controller.path,
        directory,
        variants.loader_path(worker.path, worker.arch),
        controller.docker,
        controller.docker_deps,
    )


def usual_bin(job: Job) -> str:
    """Where the binary usually is, relative to the project root; cargo's own word is what counts."""
    folder = {"dev": "debug", "test": "debug", "bench": "release"}.get(job.command.profile, job.command.profile)
    return job.custom_bin if job.command.build else f"{job.target_dir}/{folder}/{job.command.name}"


def cargo_argv(job: Job) -> list[str]:
    """The cargo line."""
    profile = job.command.profile
    return [
        "cargo",
        "build",
        *(["--release"] if profile == "release" else ["--profile", profile]),
        MESSAGES,
        *(["--features", job.feature] if job.feature else []),
        "--bin",
        job.command.name,
        *job.command.cargo_args,
    ]


def build_words(job: Job) -> list[str]:
    """What ``env`` gets where the build runs: variables, then the cargo line or the command's own."""
    target = str(job.inside / job.target_dir)
    # A build directory of the user's would be one for all variants, and outlive a libtorch that was replaced.
    variables = {"CARGO_TARGET_DIR": target, "CARGO_BUILD_BUILD_DIR": target}
    if not job.service:
        variables |= {"LIBTORCH_PATH": str(job.libtorch), **_cuda(job), **_custom(job)}
    line = ["sh", "-c", job.command.build] if job.command.build else cargo_argv(job)
    return [*_assignments(variables), *line]


def compose_words(job: Job, container: str, compilers: int) -> list[str]:
    """What ``env`` gets on the controller to build in a container: all but the script that runs in it."""
    variables = {
        "LIBTORCH_HOST_PATH": str(job.libtorch),
        "LIBTORCH_CPU_PATH": "./libtorch/precompiled/cpu",
        **_cuda(job),
    }
    passed = _assignments({"CARGO_BUILD_JOBS": str(compilers), **_custom(job)})
    deps = [] if job.docker_deps else ["--no-deps"]
    run = ["docker", "compose", "run", "--rm", "-T", *deps, "--name", container]
    return [*_assignments(variables), *run, *(word for pair in passed for word in ("-e", pair)), str(job.service)]


def container_name(nonce: str, host: str) -> str:
    """A name that Docker takes, whatever the label holds; ``nonce`` makes it this run's."""
    return f"fdl-{nonce}-{re.sub('[^a-zA-Z0-9_.-]', '-', host)}"


def _cuda(job: Job) -> dict[str, str]:
    release = variants.cuda(job.arch)
    return {"CUDA_VERSION": release.version, "CUDA_TAG": release.tag} if release else {}


def _custom(job: Job) -> dict[str, str]:
    if not job.command.build:
        return {}
    return {
        "FDL_GPU_FEATURE": job.feature,
        "FDL_TARGET_DIR": str(job.inside / job.target_dir),
        "FDL_CMD": job.command.name,
    }


def _assignments(variables: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in variables.items()]
