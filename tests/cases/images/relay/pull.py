"""Stands in for a target's script in tests of the relay: ``pull.py FOLDER PORT key=value…`` pulls as Docker does.

What it gets goes to files of FOLDER. Keys: ``has`` (digests that it does not ask for), ``wait`` (seconds before it
begins), ``pause`` (seconds after each 64 KiB), ``at_once`` (blobs at the same time), ``dies`` (bytes until it is gone),
``deaf`` (it reads no layer), ``then`` (seconds that it takes when it has all), ``says`` (lines).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDER, PORT = Path(sys.argv[1]), sys.argv[2]
ODD = dict(word.split("=", 1) for word in sys.argv[3:])
PASSWORD, REFERENCE = sys.stdin.readline().strip(), sys.stdin.readline().strip()
PLACE, _, DIGEST = REFERENCE.partition("@")
NAME = PLACE.partition("/")[2]
AUTH = base64.b64encode(f"any:{PASSWORD}".encode()).decode()
GOT = [0]


def ask(path: str, first: int = 0) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", int(PORT), timeout=60)
    span = {"Range": f"bytes={first}-"} if first else {}
    connection.request("GET", f"/v2/{NAME}/{path}", headers={"Authorization": f"Basic {AUTH}", **span})
    return connection.getresponse()


def blob(digest: str) -> None:
    path, tries = FOLDER / digest, 0
    path.write_bytes(b"")
    while True:
        answer = ask(f"blobs/{digest}", path.stat().st_size)
        assert answer.status in (200, 206), answer.status
        while "deaf" in ODD and (answer.length or 0) > 1000:
            time.sleep(1)
        with path.open("ab") as file, contextlib.suppress(OSError, http.client.HTTPException):
            while piece := answer.read(1 << 16):
                file.write(piece)
                GOT[0] += len(piece)
                if GOT[0] > int(ODD.get("dies", 1 << 60)):
                    os._exit(9)
                time.sleep(float(ODD.get("pause", 0)))
        if f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}" == digest:
            return
        tries += 1
        if tries > 5:
            print(f"{digest} is not whole", flush=True)
            os._exit(1)


def main() -> None:
    time.sleep(float(ODD.get("wait", 0)))
    print("__FDL_LOAD__", flush=True)
    text = ask(f"manifests/{DIGEST}").read()
    assert f"sha256:{hashlib.sha256(text).hexdigest()}" == DIGEST
    found = json.loads(text)
    if "manifests" in found:
        found = json.loads(ask(f"manifests/{found['manifests'][0]['digest']}").read())
    blob(found["config"]["digest"])
    wanted = dict.fromkeys(part["digest"] for part in found["layers"] if part["digest"] not in ODD.get("has", ""))
    with ThreadPoolExecutor(int(ODD.get("at_once", 300))) as pool:
        list(pool.map(blob, wanted))
    time.sleep(float(ODD.get("then", 0)))
    for number in range(int(ODD.get("says", 0))):
        print(f"{number}: Pull complete", flush=True)
    print("__FDL_LOADED__ 0", flush=True)


main()
