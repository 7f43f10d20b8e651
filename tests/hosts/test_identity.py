"""Keys in every form that OpenSSH reads."""

import subprocess
from pathlib import Path

import pytest

from fdl_tasks.hosts.identity import read_key

pytestmark = pytest.mark.subprocess  # ssh-keygen


def new_key(path: Path, *how: str, passphrase: str = "") -> Path:
    subprocess.run(["ssh-keygen", "-q", "-f", path, "-N", passphrase, *how], check=True)
    return path


@pytest.mark.parametrize("form", ["RFC4716", "PEM", "PKCS8"])
@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_a_key_is_read_in_every_form(tmp_path: Path, kind: str, form: str) -> None:
    key = new_key(tmp_path / "id", "-t", kind, "-m", form)
    public = (tmp_path / "id.pub").read_text().split()
    assert read_key(key).get_base64() == public[1]


@pytest.mark.parametrize("form", ["RFC4716", "PEM", "PKCS8"])
def test_an_encrypted_key_is_told_by_its_type_of_error(tmp_path: Path, form: str) -> None:
    with pytest.raises(TypeError):
        read_key(new_key(tmp_path / "id", "-t", "ecdsa", "-m", form, passphrase="secret"))


def test_what_is_no_key_is_a_value_error(tmp_path: Path) -> None:
    (tmp_path / "id").write_bytes(b"\xff\0 no key")
    with pytest.raises(ValueError, match=r"\w"):
        read_key(tmp_path / "id")
