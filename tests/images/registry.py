"""A registry on loopback that serves one image's archive to who knows its password: what a pull asks of a relay."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"


def digest_of(text: bytes) -> str:
    return f"sha256:{hashlib.sha256(text).hexdigest()}"


class Registry(ThreadingHTTPServer):
    """``blobs`` by digest; ``asked`` are the paths that were answered with one, ``refused`` those without password.

    ``forged``: what is served in place of a digest's content. ``stands_still``: no blob is served while it is set.
    """

    daemon_threads = True

    def __init__(self, archive: Path, password: str):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.auth = "Basic " + base64.b64encode(f"fdl:{password}".encode()).decode()
        self.asked, self.refused = list[str](), list[str]()
        self.forged: dict[str, bytes] = {}
        self.stands_still = threading.Event()
        with tarfile.open(archive) as tar:
            files = {member.name: tar.extractfile(member) for member in tar if member.isfile()}
            texts = {name: file.read() for name, file in files.items() if file}
        self.blobs = {name.replace("blobs/sha256/", "sha256:"): text for name, text in texts.items()}
        self.digest: str = json.loads(texts["index.json"])["manifests"][0]["digest"]

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def replace(self) -> None:
        """Serve another image, of which no engine can have a blob: of what it built and removed it may."""
        layer = os.urandom(1000)
        config = json.dumps({"os": "linux", "rootfs": {"type": "layers", "diff_ids": [digest_of(layer)]}}).encode()
        parts = [{"mediaType": kind, "digest": digest_of(blob), "size": len(blob)}
                 for kind, blob in ((CONFIG, config), (LAYER, layer))]  # fmt: skip
        text = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "config": parts[0], "layers": parts[1:]}).encode()
        self.digest = digest_of(text)
        self.blobs = {digest_of(blob): blob for blob in (layer, config, text)}

    def forge(self) -> None:
        """Serve another manifest than the digest's: as a stranger does who took the port."""
        self.forged[self.digest] = self.blobs[self.digest] + b"\n"


class _Handler(BaseHTTPRequestHandler):
    server: Registry

    def handle(self) -> None:
        if self.rfile.peek(1)[:1] == b"\x16":  # type: ignore[attr-defined] # TLS is tried first
            self.wfile.write(b"HTTP/1.0 400 Bad Request\r\n\r\n")
        else:
            super().handle()

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.headers["Authorization"] != self.server.auth:
            self.server.refused.append(self.path)
            return self._answer(401, b"", {"WWW-Authenticate": 'Basic realm="fdl"'})
        digest = self.path.rpartition("/")[2]
        text = self.server.forged.get(digest) or self.server.blobs.get(digest, b"")
        if self.path != "/v2/":
            self.server.asked.append(self.path)
        while "/blobs/" in self.path and self.server.stands_still.is_set():
            time.sleep(0.05)
        known: dict[str, Any] = {}
        if "/manifests/" in self.path and text:
            kind = INDEX if "manifests" in json.loads(text) else MANIFEST
            known = {"Content-Type": json.loads(text).get("mediaType", kind), "Docker-Content-Digest": digest}
        return self._answer(200 if text or self.path == "/v2/" else 404, text, known)

    def _answer(self, code: int, text: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(text)), "Connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(text)

    def log_message(self, *words: object) -> None:
        """Tests look at what was asked."""


@contextmanager
def registry(archive: Path, password: str = "secret") -> Iterator[Registry]:
    served = Registry(archive, password)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    try:
        yield served
    finally:
        served.shutdown()
        served.server_close()
