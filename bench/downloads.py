"""A large file from the loopback, as libtorch is downloaded, beside ``curl``."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from .measure import ROOT, BenchError, LeftOut, Program, Ran, alternate, run, usual_env
from .rows import Group, Judged, Row

SIZE = 1_000_000_000  # bytes
MB = 1e6
RATE, MEMORY = 1 / 0.8, 100.0  # at least 0.8 of curl's rate; MB
OURS = """\
import sys, time
from pathlib import Path
from fdl_tasks.boxes.torch.download import download
began = time.perf_counter()
download(sys.argv[1], Path(sys.argv[2]), sha256=sys.argv[3] or None)
print(time.perf_counter() - began)
"""
SERVER = """\
import http.server, os, sys

class File(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with open(sys.argv[1], "rb") as file:
            size, sent = os.fstat(file.fileno()).st_size, 0
            self.send_response(200)
            self.send_header("Content-Length", str(size))
            self.end_headers()
            self.wfile.flush()
            while sent < size:
                sent += os.sendfile(self.connection.fileno(), file.fileno(), sent, size - sent)

    def log_message(self, *args):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), File)
print(server.server_port, flush=True)
server.serve_forever()
"""


def measure(folder: Path, rounds: int) -> Group:
    if not shutil.which("curl"):
        raise LeftOut("curl is not installed")
    digest = _file(folder / "file")
    with _served(folder / "file") as url:
        ours, pinned = _Download(folder, url, ""), _Download(folder, url, digest)
        peer = _Curl(folder, url)
        done = alternate("download", rounds, ours, peer, pinned)
    plain, curl, hashed = ([float(ran.out[0]) for ran in way] for way in zip(*done, strict=True))
    memory = [[ran.memory / MB for ran in way] for way in zip(*done, strict=True)]
    return Group(
        f"A download of {SIZE / MB:.0f} MB from this machine",
        "what `prepare` and `libtorch.get` download with, less the start-up of Python; with a pinned SHA-256 too",
        "`curl -o`, as it counts its time itself",
        (
            Row("seconds", "s", plain, curl, Judged.RATIO, RATE),
            Row("seconds, SHA-256 pinned", "s", hashed, curl, Judged.RATIO),
            Row("memory", "MB", memory[0], memory[1], Judged.ITSELF, MEMORY),
        ),
        "the server sends the file with sendfile(2) and shares the cores with who downloads; 0.8 of the rate is 1.25 "
        "of the time",
    )


def _file(path: Path) -> str:
    import hashlib

    digest = hashlib.sha256()
    with path.open("wb") as out:
        for _ in range(SIZE // 1_000_000):
            out.write(block := os.urandom(1_000_000))
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def _served(file: Path) -> Iterator[str]:
    argv = [sys.executable, "-c", SERVER, str(file)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=usual_env(), cwd=ROOT) as server:
        try:
            assert server.stdout
            yield f"http://127.0.0.1:{int(server.stdout.readline())}/"
        finally:
            server.terminate()


class _Download:
    def __init__(self, folder: Path, url: str, sha256: str):
        self._to = folder / "ours"
        self._program = Program([sys.executable, "-c", OURS, url, self._to, sha256], ROOT, {"no_proxy": "127.0.0.1"})

    def __call__(self) -> Ran:
        return _whole(self._program, self._to)


class _Curl:
    def __init__(self, folder: Path, url: str):
        self._to = folder / "peer"
        argv = ["curl", "--silent", "--show-error", "--fail", "--noproxy", "*", "--write-out", "%{time_total}"]
        self._program = Program([*argv, "--output", self._to, url], folder)

    def __call__(self) -> Ran:
        return _whole(self._program, self._to)


def _whole(program: Program, file: Path) -> Ran:
    """Run it into a place where nothing is; every byte must be there. Its own count of seconds is the time."""
    file.unlink(missing_ok=True)
    ran = run(program)
    if file.stat().st_size != SIZE:
        raise BenchError(f"{file} has {file.stat().st_size} bytes of {SIZE}")
    file.unlink()
    return replace(ran, wall=float(ran.out[0]))
