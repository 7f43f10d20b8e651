"""git+https against git's own http-backend on the loopback: it comes, and a server that asks who we are ends it."""

from __future__ import annotations

import datetime
import http.server
import ipaddress
import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fdl_tasks.boxes.source.fetch import fetch
from fdl_tasks.boxes.specs import parse_source
from fdl_tasks.boxes.tools import Tools
from fdl_tasks.errors import TransientError

pytestmark = pytest.mark.subprocess


def certificate(folder: Path) -> tuple[Path, Path]:
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), True)
    )
    cert = built.sign(key, hashes.SHA256())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "key.pem").write_bytes(private)
    (folder / "cert.pem").write_bytes(cert.public_bytes(serialization.Encoding.PEM))
    return folder / "cert.pem", folder / "key.pem"


class Backend(http.server.BaseHTTPRequestHandler):
    """git http-backend as a CGI program; asks for a login where the path begins with /private."""

    root: Path

    def do_GET(self) -> None:
        self.answer(b"")

    def do_POST(self) -> None:
        self.answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def answer(self, body: bytes) -> None:
        path, _, query = self.path.partition("?")
        if path.startswith("/private"):
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
            self.end_headers()
            return
        env = os.environ | {
            "GIT_PROJECT_ROOT": str(self.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
        }
        raw = subprocess.run(["git", "http-backend"], input=body, env=env, capture_output=True, check=True).stdout
        head, _, rest = raw.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self.send_response(int(headers.pop("Status", "200").split()[0]))
        for name, value in (*headers.items(), ("Content-Length", str(len(rest)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(rest)

    def log_message(self, *args: Any) -> None:
        """Nothing: the test's output is pytest's."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    work = tmp_path / "served" / "r"
    work.mkdir(parents=True)
    (work / "a").write_text("1")
    for words in (["init", "-q", "-b", "main"], ["add", "a"], ["commit", "-q", "-m", "x"]):
        subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x@x", *words], cwd=work, check=True)
    cert, key = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Backend,), {"root": tmp_path / "served"}))
    listener.socket = context.wrap_socket(listener.socket, server_side=True)
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    monkeypatch.setenv("GIT_SSL_CAINFO", str(cert))  # of the caller's variables, one that counts
    yield f"127.0.0.1:{listener.server_address[1]}"
    listener.shutdown()
    listener.server_close()


def get(spec: str, tree: Path) -> None:
    fetch(parse_source(spec), tree, None, Tools("box"), lambda text: None)


def test_a_commit_comes_over_https(server: str, tmp_path: Path) -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=tmp_path / "served/r", capture_output=True, text=True, check=True
    ).stdout.strip()
    for ref in ("main", commit):
        get(f"git+https://{server}/r#{ref}", tmp_path / "source")
    assert (tmp_path / "source/a").read_text() == "1"


def test_a_server_that_asks_for_a_login_gets_none_and_nobody_is_prompted(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tmp_path / "asked"
    ask = tmp_path / "ask"
    ask.write_text(f"#!/bin/sh\ntouch {asked}\necho x\n")
    ask.chmod(0o755)
    monkeypatch.setenv("SSH_ASKPASS", str(ask))
    monkeypatch.setenv("DISPLAY", ":0")
    with pytest.raises(TransientError) as caught:
        get(f"git+https://me:s3cret@{server}/private/r#main", tmp_path / "source")
    assert "s3cret" not in str(caught.value)
    with pytest.raises(TransientError, match="terminal prompts disabled"):
        get(f"git+https://{server}/private/r#main", tmp_path / "source")
    assert not asked.exists()


def test_a_server_that_nobody_vouches_for_is_not_spoken_to(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GIT_SSL_CAINFO")
    with pytest.raises(TransientError, match="certificate"):
        get(f"git+https://{server}/r#main", tmp_path / "source")
