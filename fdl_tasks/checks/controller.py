"""What the controller needs before the first build: its toolchain, and each worker's libtorch."""

from __future__ import annotations

from collections.abc import Sequence

from ..cluster.model import Cluster, Command, Controller, Worker
from ..errors import TransportError
from ..hosts.base import Completed, Host
from ..outcome import Verdict
from ..scripts import Script, Scripts
from .verdicts import error, ok, warning

LIMIT = 60.0  # seconds
_COMPOSE_FAULTS = {  # exit codes of checks/compose.sh
    3: "docker is not installed: install it (https://docs.docker.com/engine/install/)",
    4: "`docker compose` is not there: install the compose plugin (https://docs.docker.com/compose/install/)",
    5: "docker's engine does not answer: start it, and check that this user may speak to it",
    6: "`docker compose config` fails: mend the project's compose file",
}


def cargo_due(cluster: Cluster, workers: Sequence[Worker], cmd: Command | None) -> bool:
    """Whether a cargo build of the controller's own comes next.

    Without ``cmd`` nobody knows which: it does unless every command of the file has its ``build`` line.
    """
    if cluster.need_controller().docker or not any(worker.build for worker in workers):
        return False
    commands = [cmd] if cmd else list(cluster.commands.values())
    return not commands or any(command.build is None for command in commands)


def toolchain(scripts: Scripts, controller: Controller, *, cargo: bool) -> Script | None:
    """The script that asks for what builds: compose and its service, or cargo; None when neither is due."""
    if controller.docker:
        return scripts.render("checks/compose.sh", root=controller.path)
    return scripts.render("checks/cargo.sh") if cargo else None


def look(host: Host, script: Script, controller: Controller) -> Verdict:
    """Run ``script`` of ``toolchain`` on the controller and judge its answer."""
    try:
        answer = host.run(script, limit=LIMIT)
    except TransportError as failure:
        return warning("compose" if controller.docker else "cargo", f"{host.label}: not checked ({failure.what})")
    return compose(host.label, controller.docker, answer) if controller.docker else cargo(host.label, answer)


def compose(host: str, service: str, answer: Completed) -> Verdict:
    """Whether ``docker compose`` answers and has the service that builds."""
    last = next((line.strip() for line in reversed(answer.err.splitlines()) if line.strip()), "")
    if answer.code:
        fault = _COMPOSE_FAULTS.get(answer.code, f"asking `docker compose` ended with exit code {answer.code}")
        return error(
            "compose", f"{host}: builds run in the service {service!r}, but {fault}{f' ({last})' if last else ''}"
        )
    services = sorted(line.strip() for line in answer.out.splitlines() if line.strip())
    if service in services:
        return ok("service", f"{host}: `docker compose` answers and has the service {service!r}")
    known = f"it has {', '.join(services)}" if services else "it has no services at all"
    return error(
        "service",
        f"{host}: the project's compose file has no service {service!r} to build in ({known}): "
        "mend controller.docker in cluster.yml",
    )


def cargo(host: str, answer: Completed) -> Verdict:
    """Whether cargo is there."""
    if answer.code == 0:
        return ok("cargo", f"{host}: cargo is {answer.out.strip()}")
    return error(
        "cargo",
        f"{host}: cargo is not on the PATH, and builds run natively: install Rust (https://rustup.rs), "
        "add ~/.cargo/bin to the PATH, or name a compose service in controller.docker of cluster.yml",
    )


def precondition(controller: Controller, worker: Worker) -> Verdict:
    """Whether the controller has what this worker's binary is linked with. Reads the disk."""
    if worker.arch is None:
        return error(
            "variant",
            f"{worker.host}: its arch is not set in cluster.yml: name its libtorch variant under "
            f"{controller.path}/libtorch, such as `arch: precompiled/cu128` or `arch: builds/sm61-sm120`",
        )
    lib = controller.path / "libtorch" / worker.arch / "lib"
    if not lib.is_dir():
        return error(
            "libtorch",
            f"{worker.host}: the controller has no libtorch for arch {worker.arch}, {lib} is not a directory: "
            "unpack it there, or mend arch in cluster.yml",
        )
    return ok("libtorch", f"{worker.host}: the controller has its libtorch, {lib}")
