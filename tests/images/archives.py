"""Archives as ``docker save`` writes them, for tests of what is sent."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

JSON = "application/vnd.oci.image.manifest.v1+json"


class Archive:
    """A tar archive that is put together piece by piece; ``names`` are its layers' entries."""

    def __init__(self, form: int = tarfile.PAX_FORMAT):
        self.names: list[str] = []
        self._entries: list[tuple[str, bytes]] = []
        self._form = form

    def add(self, name: str, data: bytes) -> str:
        self._entries.append((name, data))
        return name

    def blob(self, data: bytes) -> str:
        """Gives its digest."""
        found = hashlib.sha256(data).hexdigest()
        self.add(f"blobs/sha256/{found}", data)
        return f"sha256:{found}"

    def image(self, layers: Sequence[bytes], *, lacking: int = 0, **index: object) -> Archive:
        """An image of Docker 25 and newer; the last ``lacking`` layers are named and not there."""
        digests = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
        self.names = [entry(digest) for digest in digests]
        for layer in layers[: len(layers) - lacking]:
            self.blob(layer)
        config = self.blob(b'{"architecture":"amd64"}')
        manifest = {"config": {"digest": config}, "layers": [{"digest": digest} for digest in digests]}
        top = self.blob(json.dumps(manifest).encode())
        return self.end(config, digests, [{"digest": top}])

    def end(self, config: str, layers: Sequence[str], tops: Sequence[object]) -> Archive:
        """The documents at the end."""
        named = [{"Config": entry(config), "Layers": [entry(layer) for layer in layers]}]
        self.add("index.json", json.dumps({"manifests": tops}).encode())
        self.add("manifest.json", json.dumps(named).encode())
        self.add("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        return self

    def bytes(self) -> bytes:
        found = io.BytesIO()
        with tarfile.open(fileobj=found, mode="w", format=self._form) as tar:
            for name, data in self._entries:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        return found.getvalue()

    def write(self, path: Path) -> Path:
        path.write_bytes(self.bytes())
        return path


def entry(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def contents(data: bytes) -> dict[str, bytes]:
    """What ``tarfile`` sees in an archive, in its order."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {info.name: tar.extractfile(info).read() for info in tar if info.isfile()}  # type: ignore[union-attr]
