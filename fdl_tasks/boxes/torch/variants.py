"""The libtorch variants that can be downloaded: tokens, addresses, and which one suits a box (pure).

The table: facts/upstream.md, section 4; the tokens: seeds/001, ``parse_libtorch_token``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from ...arch import Vendor
from ...errors import PermanentError, UsageError
from ..gpu.coverage import covered
from ..gpu.gpus import Gpu

BASE_URL = "https://download.pytorch.org/libtorch"
RELEASE = "2.10.0"
AUTO = "auto"
CU128_MAJOR = 7  # the lowest compute capability that cu128 has kernels for


@dataclass(frozen=True)
class Variant:
    """One build of libtorch; ``name`` as in ``.active``, ``bucket`` as in its address, ``cuda`` and ``archs`` as in
    ``.arch``."""

    name: str
    bucket: str
    archs: str
    cuda: str


_ROCM = "gfx908 gfx90a gfx942 gfx950 gfx1030 gfx1100 gfx1101 gfx1102 gfx1150 gfx1151 gfx1200 gfx1201"
CPU = Variant("precompiled/cpu", "cpu", "cpu", "none")
CU126 = Variant("precompiled/cu126", "cu126", "5.0 5.2 6.0 6.1 7.0 7.5 8.0 8.6 8.9 9.0", "12.6")
CU128 = Variant("precompiled/cu128", "cu128", "7.0 7.5 8.0 8.6 8.9 9.0 12.0", "12.8")
ROCM70 = Variant("precompiled/rocm70", "rocm7.0", _ROCM, "none")
ROCM71 = Variant("precompiled/rocm71", "rocm7.1", _ROCM, "none")

_TOKENS = {"cpu": CPU, "cu126": CU126, "12.6": CU126, "cu128": CU128, "12.8": CU128}
_TOKENS |= {"rocm7.0": ROCM70, "rocm70": ROCM70, "7.0": ROCM70, "rocm7.1": ROCM71, "rocm71": ROCM71, "7.1": ROCM71}


def parse_token(token: str) -> Variant | None:
    """The variant that ``--libtorch`` or ``join.libtorch`` names; None for ``auto``.

    Raises:
        PermanentError: it names none.
    """
    word = token.strip()
    if word == AUTO:
        return None
    if word not in _TOKENS:
        raise PermanentError(
            f"libtorch: no variant is called {token!r}",
            hint="auto (chosen by the devices of the box), cpu, cu126, cu128, rocm7.0 or rocm7.1",
        )
    return _TOKENS[word]


def choose(gpus: Sequence[Gpu]) -> Variant:
    """What ``auto`` means on a box that offers ``gpus``: after the masks, and after ``--devices``."""
    if nvidia := [gpu for gpu in gpus if gpu.vendor is Vendor.NVIDIA]:
        return CU128 if all(map(_new, nvidia)) else CU126
    return ROCM70 if any(covered(_ROCM, gpu) for gpu in gpus) else CPU


def _new(gpu: Gpu) -> bool:
    """Whether cu128 is for it, by its compute major alone: cards newer than the table run from PTX."""
    found = re.fullmatch(r"(?:sm_?)?([0-9]+?)\.?[0-9](?:[af]|\+PTX)?", gpu.arch)
    return found is None or int(found[1]) >= CU128_MAJOR


def url(base: str, release: str, variant: Variant) -> str:
    """Where the archive of a variant is."""
    archive = f"libtorch-shared-with-deps-{quote(release, safe='')}%2B{variant.bucket}.zip"
    return f"{base.rstrip('/')}/{variant.bucket}/{archive}"


def check_base(base: str) -> None:
    """Raise UsageError when ``base`` is no address that a download can begin with."""
    try:
        parts = urlsplit(base)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine or not base.isprintable() or {" ", "?", "#", "\\"} & set(base):
        raise UsageError(
            f"fdl.libtorch.base_url is no address of a mirror: {base!r}",
            hint="as http://mirror.example/libtorch; below it everything is named as below the default",
        )


def check_release(release: str) -> None:
    """Raise UsageError when ``release`` is no version of libtorch."""
    if not re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+[0-9A-Za-z.]*", release):
        raise UsageError(
            f"fdl.libtorch.version is no release of libtorch: {release!r}", hint=f'whole and in quotes, as "{RELEASE}"'
        )


def check_sha256(digest: str | None) -> None:
    """Raise UsageError when ``digest`` is neither a SHA-256 nor None."""
    if digest is not None and not re.fullmatch("[0-9a-fA-F]{64}", digest):
        raise UsageError(f"{digest!r} is no SHA-256", hint="64 hexadecimal digits, as sha256sum prints for the zip")


def arch_file(variant: Variant, release: str) -> str:
    """The text of ``.arch``, which the coverage check and other tools read."""
    told = {"cuda": variant.cuda, "torch": release, "archs": variant.archs, "source": "precompiled"}
    return "".join(f"{key}={value}\n" for key, value in {**told, "variant": variant.bucket}.items())


def archs_of(arch_file: str) -> str | None:
    """What the text of an ``.arch`` lists as ``archs``; None when it lists nothing."""
    return next((line[6:].strip() for line in arch_file.splitlines() if line.startswith("archs=")), None) or None


def is_release(build_version: str, release: str) -> bool:
    """Whether the text of a variant's ``build-version`` says that it is of ``release``: ``2.10.0`` or ``2.10.0+…``."""
    return build_version.strip() == release or build_version.startswith(f"{release}+")


def is_name(variant: str) -> bool:
    """Whether it can stand in ``.active``: ``precompiled/x`` or ``builds/x``, nothing that leads elsewhere."""
    return re.fullmatch(r"(?:precompiled|builds)/[A-Za-z0-9_][A-Za-z0-9_.+-]*", variant) is not None


def named(variant: str, names: Iterable[str]) -> str | None:
    """The one of ``names`` that ``variant`` means: itself, a token (``rocm7.0``), or its last part where one has it."""
    names = list(names)
    token = _TOKENS.get(variant)
    for wanted in (variant, token.name if token else ""):
        if wanted in names:
            return wanted
    same = [name for name in names if name.rpartition("/")[2] == variant]
    return same[0] if len(same) == 1 else None
