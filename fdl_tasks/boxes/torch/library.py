"""libtorch on this box: what is installed below the global root, what is active, and getting what is missing.

``ROOT/libtorch/{precompiled,builds}/NAME`` holds a variant, ``ROOT/libtorch/.active`` names the one in use. A variant
gets to its place in one rename, out of a staging directory beside it: ``/tmp`` is often a tmpfs, too small for it.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...alone import alone
from ...arch import vendor
from ...cluster.discovery import foreign
from ...errors import PermanentError, UsageError
from ...files import is_file, read, write
from ...sizes import human_size
from ..gpu.gpus import Gpu
from ..tools import Note
from . import variants
from .download import Progress, bare, download, silent, steps
from .staging import LOCK, move, staging, writing
from .unpack import refused, unpack
from .variants import Variant

CASE = "FDL_LIBTORCH_CASE"  # =x: .active.x says what is active


@dataclass(frozen=True)
class Settings:
    """Where libtorch comes from; ``sha256`` is that of the zip, where it is pinned."""

    base_url: str = variants.BASE_URL
    release: str = variants.RELEASE
    sha256: str | None = None

    def __post_init__(self) -> None:
        """Raises UsageError where a field can't be right."""
        variants.check_base(self.base_url)
        variants.check_release(self.release)
        variants.check_sha256(self.sha256)


SETTINGS = Settings()


@dataclass(frozen=True)
class Libtorch:
    """A variant that can be used; ``archs`` as its ``.arch`` lists them, if it does."""

    dir: Path
    variant: str
    archs: str | None


@dataclass(frozen=True)
class Installed:
    """A variant below a root; ``usable`` when it has a ``lib/``, ``release`` as its ``build-version`` says."""

    dir: Path
    variant: str
    release: str | None
    archs: str | None
    active: bool
    usable: bool


def acquire(
    token: str,
    root: Path,
    gpus: Sequence[Gpu],
    *,
    settings: Settings = SETTINGS,
    note: Note,
    progress: Progress = silent,
    unpacking: Progress | None = None,
) -> Libtorch:
    """The variant that ``token`` names (``auto``: the one for ``gpus``), installed below ``root`` and active.

    No network when it is there already at the release of ``settings``.

    Args:
        progress: bytes of the download.
        unpacking: bytes of the unpacking; default: as ``progress``.

    Raises:
        TransientError: the download failed.
        PermanentError: no such variant or none for this platform, no room, or not what was downloaded.
    """
    variant = variants.parse_token(token) or variants.choose(gpus)
    _supported(platform.system(), platform.machine())
    place, found = root / "libtorch", root / "libtorch" / variant.name
    with writing(place):
        if not _settled(place, variant, settings):
            found.parent.mkdir(parents=True, exist_ok=True)
            with alone(found.parent / LOCK, "installs a libtorch", note) as alone_here:
                if not _is_there(found, variant, settings):
                    with staging(found.parent, clean=alone_here) as made:
                        new = _bring(variant, settings, made, (steps(progress), steps(unpacking or progress)))
                        move(new, found, aside=made / "old")
                write(found / ".arch", variants.arch_file(variant, settings.release))
                write(place / ".active", f"{variant.name}\n")
    note(f"libtorch: {variant.name} at {found}")
    return Libtorch(found, variant.name, variant.archs)


def _supported(system: str, machine: str) -> None:
    if (system, machine) != ("Linux", "x86_64"):
        raise PermanentError(
            f"there is no libtorch to download for {system} on {machine}",
            hint="build one and put it below builds/ of the libtorch directory, then `inv libtorch.use builds/NAME`",
        )


def _settled(place: Path, variant: Variant, settings: Settings) -> bool:
    """Whether nothing is to do: so that a root that can't be written is fine then."""
    found = place / variant.name
    told = read(found / ".arch") == variants.arch_file(variant, settings.release)
    return told and read(place / ".active").strip() == variant.name and _is_there(found, variant, settings)


def _is_there(found: Path, variant: Variant, settings: Settings) -> bool:
    return (found / "lib").is_dir() and _is_it(read(found / "build-version").strip(), variant, settings)


def _is_it(version: str, variant: Variant, settings: Settings) -> bool:
    """Whether a ``build-version`` is of that release, and of no other kind (``+cpu`` in a directory of ROCm's)."""
    kind = vendor(version.partition("+")[2])
    return variants.is_release(version, settings.release) and kind in (None, vendor(variant.name))


def _bring(variant: Variant, settings: Settings, made: Path, told: tuple[Progress, Progress]) -> Path:
    """The variant, somewhere in the directory ``made``, whole and looked at."""
    address = variants.url(settings.base_url, settings.release, variant)
    archive, into, new = made / "libtorch.zip", made / "zip", made / "zip" / "libtorch"
    download(address, archive, sha256=settings.sha256, progress=told[0], disk=made.parent)
    into.mkdir()
    unpack(archive, into, progress=told[1], origin=bare(address), disk=made.parent)
    version, lib = read(new / "build-version").strip(), (new / "lib").is_dir()
    if not lib or not _is_it(version, variant, settings):
        wanted = f"{settings.release}+{variant.bucket}"
        why = f"its build-version is {version[:80]!r}, not {wanted}" if lib else "it has no libtorch/lib/"
        raise refused(bare(address), f"what was downloaded as {variant.name} is not usable: {why}")
    write(new / ".arch", variants.arch_file(variant, settings.release))
    return new


def amount(done: int, total: int | None) -> str:
    """How far a download is, as a bar and figures: ``[#####-----]  50%  1.2 GiB of 2.4 GiB``."""
    if not total:
        return human_size(done)
    share = min(1.0, done / total)
    bar = "#" * int(20 * share)
    return f"[{bar:-<20}] {share:4.0%}  {human_size(done)} of {human_size(total)}"


def active(start: Path, root: Path | None, note: Note = lambda text: None) -> Libtorch | None:
    """What is active: as the nearest ``libtorch/.active`` from ``start`` upwards says, else that of ``root``.

    FDL_LIBTORCH_CASE=x reads ``.active.x`` in its place; where nothing is named that can be used, none is active.

    Raises:
        PermanentError: the file names something outside of its directory; one above us is another user's.
        UsageError: the variable names something outside, too.
    """
    file = _active_file(os.environ.get(CASE, "").strip())
    start = start.absolute()
    places = [folder / "libtorch" for folder in (start, *start.parents, *([root] if root else []))]
    place = next((place for place in places if is_file(place / file)), None)
    if place is None:
        if file != ".active":
            note(f"libtorch: none, since there is no libtorch/{file} ({CASE}) from {start} upwards")
        return None
    if place.parent != root and any(map(foreign, (place, place / file))):
        raise PermanentError(
            "belongs to another user, and names what the build would be linked against",
            where=str(place / file),
            hint="run this elsewhere, or have it belong to this user (chown), when you trust it",
        )
    return _usable(place, file, note)


def _active_file(case: str) -> str:
    if case and not variants.is_name(f"builds/{case}"):
        raise UsageError(f"{CASE} is no name: {case!r}", hint=f"{CASE}=x reads libtorch/.active.x")
    return f".active.{case}" if case else ".active"


def _usable(place: Path, file: str, note: Note) -> Libtorch | None:
    name = read(place / file).strip()
    if not name:
        note(f"libtorch: none, since {place / file} is empty")
        return None
    if not variants.is_name(name):
        raise PermanentError(
            f"it names no variant: {name[:80]!r}",
            where=str(place / file),
            hint="one line, as precompiled/cu128 or builds/NAME; `inv libtorch.use VARIANT` writes it",
        )
    if not (place / name / "lib").is_dir():
        note(f"libtorch: none, since {place / name}, which {place / file} names, has no lib/")
        return None
    return Libtorch(place / name, name, variants.archs_of(read(place / name / ".arch")))


def installed(root: Path) -> tuple[Installed, ...]:
    """Every variant below ``root``, those that can't be used too."""
    place = root / "libtorch"
    current = read(place / ".active").strip()
    folders = [folder for kind in ("precompiled", "builds") for folder in sorted((place / kind).glob("[!.]*"))]
    return tuple(_seen(folder, f"{folder.parent.name}/{folder.name}", current) for folder in folders if folder.is_dir())


def _seen(folder: Path, name: str, current: str) -> Installed:
    release = read(folder / "build-version").strip() or None
    archs = variants.archs_of(read(folder / ".arch"))
    return Installed(folder, name, release, archs, name == current, (folder / "lib").is_dir())


def use(root: Path, variant: str) -> Libtorch:
    """Make an installed variant the active one: by its name, its last part where that is one's only, or its token.

    Raises:
        UsageError: it is not installed, or has no ``lib/``.
        PermanentError: ``.active`` can't be written.
    """
    there = {one.variant: one for one in installed(root) if one.usable and variants.is_name(one.variant)}
    name = variants.named(variant, there)
    if name is None:
        raise UsageError(
            f"{variant!r} is not the name of one installed variant",
            where=str(root / "libtorch"),
            hint=f"there are: {', '.join(there) or 'none'}; `inv libtorch.get TOKEN` brings one",
        )
    with writing(root / "libtorch"):
        write(root / "libtorch" / ".active", f"{name}\n")
    return Libtorch(there[name].dir, name, there[name].archs)
