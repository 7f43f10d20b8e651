"""Stands in for the source's docker in tests of the relay: ``docker.py FOLDER command…``.

FOLDER has ``image.json``: ``manifests`` (reference, text), ``blobs`` (digests), and what is odd about it: ``flip`` (a
digest whose content is damaged), ``cut`` (one that breaks off), ``hangs`` (one that stands still), ``fails`` (a push
ends with these words), ``fails_after`` (so many seconds of the second push), ``sleeps`` (seconds before a push begins),
``at_once`` (how many blobs it asks about at the same time), ``platform`` (the Id of its platform's manifest),
``named`` (the image's names). A blob is a file of its digest. It writes what it does to ``log``.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

FOLDER, WORDS = Path(sys.argv[1]), sys.argv[2:]
IMAGE: dict[str, Any] = json.loads((FOLDER / "image.json").read_text())
LOCK = threading.Lock()


def log(*words: object) -> None:
    with LOCK, (FOLDER / "log").open("a") as file:
        file.write(" ".join(map(str, words)) + "\n")


def content(digest: str) -> Iterator[bytes]:
    with (FOLDER / digest).open("rb") as file:
        while piece := file.read(1 << 16):
            if digest == IMAGE.get("flip"):
                piece = bytes([piece[0] ^ 1]) + piece[1:]
            yield piece
            if digest == IMAGE.get("hangs"):
                time.sleep(20)
            if digest == IMAGE.get("cut"):
                sys.stdout.write("EOF\n")
                sys.stdout.flush()
                raise SystemExit(1)


class Push:
    def __init__(self, config: str, name: str):
        host, _, path = name.rpartition(":")[0].partition("/")
        auth = json.loads((Path(config) / "config.json").read_text())["auths"][host]["auth"]
        assert base64.b64decode(auth).startswith(b"fdl:")
        self.host, self.path, self.headers = host, f"/v2/{path}/", {"Authorization": f"Basic {auth}"}

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self.host, timeout=60)
        connection.request(method, path, body=body, headers={**self.headers, **headers})
        answer = connection.getresponse()
        answer.read()
        return answer

    def blob(self, digest: str) -> None:
        there = self.ask("HEAD", f"{self.path}blobs/{digest}").status
        log("HEAD", digest, there)
        if there == 200:
            return
        place = self.ask("POST", f"{self.path}blobs/uploads/").getheader("Location")
        size = (FOLDER / digest).stat().st_size
        done = self.ask("PUT", f"{place}?digest={digest}", content(digest), **{"Content-Length": str(size)}).status
        log("PUT", digest, done)
        if done != 201:
            raise OSError(f"{digest}: {done}")

    def manifest(self, reference: str, text: str) -> None:
        if self.ask("HEAD", f"{self.path}manifests/{reference}").status != 200:
            kind = "application/vnd.oci.image.manifest.v1+json"
            done = self.ask("PUT", f"{self.path}manifests/{reference}", text.encode(), **{"Content-Type": kind}).status
            if done != 201:
                raise OSError(f"{reference}: {done}")


def push(config: str, name: str) -> None:
    log("push")
    time.sleep(IMAGE.get("sleeps", 0))
    if IMAGE.get("fails"):
        sys.exit(IMAGE["fails"])
    one = Push(config, name)
    if "fails_after" in IMAGE and (FOLDER / "log").read_text().count("push\n") > 1:
        threading.Timer(IMAGE["fails_after"], os._exit, [1]).start()
    with ThreadPoolExecutor(IMAGE.get("at_once", 300)) as pool:
        list(pool.map(one.blob, IMAGE["blobs"]))
    for reference, text in IMAGE["manifests"]:
        one.manifest(reference, text)


def main() -> None:
    if WORDS[:2] == ["image", "inspect"]:
        if "--platform" in WORDS:
            print(IMAGE["platform"])
        else:
            print("linux/amd64" if ".Os" in " ".join(WORDS) else "\n".join(IMAGE.get("named", ["app:1"])))
    elif WORDS[0] == "--config":
        push(WORDS[1], WORDS[3])
    else:
        log(*WORDS)


main()
