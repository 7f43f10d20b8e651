"""cluster.yml as pydantic sees it: one strict class a block, in the file's own words.

Nobody above ``cluster.load`` meets these; ``cluster.convert`` makes the plain values of ``cluster.model``.
Keys of the launcher that shares the file are accepted and checked for their type, and nothing more.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from ..errors import UsageError
from . import names
from .image import ImageRef
from .scalars import Whole

_SEGMENT = {"type": "string", "pattern": r"^(?!\.\.?$)[^-\s:/\\][^\s:/\\]*$"}
_VARIANT = {"type": "string", "pattern": r"^(?!(.*/)?\.\.?(/|$))[^-\s:/\\][^\s:/\\]*(/[^-\s:/\\][^\s:/\\]*)*$"}
_PIN = {"type": "string", "pattern": r"^SHA256:[A-Za-z0-9+/]{43}=?$"}
_RESERVED = "|".join((*(f"{name}$" for name in sorted(names.RESERVED_ENV)), names.RESERVED_PREFIX))
_ENV_KEY = {"type": "string", "pattern": rf"^(?!{_RESERVED})[A-Za-z_][A-Za-z0-9_]*$"}
_ABSOLUTE = {"type": "string", "pattern": "^/"}


def _as_text(value: object) -> object:
    """A whole number is taken as it is written (OMP_NUM_THREADS: 4); nothing else is guessed at."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return value.written if isinstance(value, Whole) else str(value)
    raise ValueError("expected text: put the value of a variable in quotes")


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _all_or_list(value: object) -> object:
    if isinstance(value, str) and value != "all":
        raise ValueError("expected `all` or a list of device numbers")
    return [] if value == "all" else value


def _image(value: str) -> str:
    try:
        return str(ImageRef.parse(value))
    except UsageError as error:
        raise ValueError(f"{error.what} ({error.hint})" if error.hint else error.what) from None


Text = Annotated[str, AfterValidator(names.text)]
Filled = Annotated[str, AfterValidator(names.filled)]
Shell = Annotated[str, AfterValidator(names.shell_lines)]
Word = Annotated[str, AfterValidator(names.word)]
Segment = Annotated[str, AfterValidator(names.segment), WithJsonSchema(_SEGMENT)]
Variant = Annotated[str, AfterValidator(names.variant), WithJsonSchema(_VARIANT)]
Inside = Annotated[str, AfterValidator(names.inside)]
Absolute = Annotated[str, AfterValidator(names.absolute), WithJsonSchema(_ABSOLUTE)]
Here = Annotated[str, AfterValidator(names.here)]
SearchPath = Annotated[str, AfterValidator(names.search_path)]
EnvKey = Annotated[str, AfterValidator(names.env_key), WithJsonSchema(_ENV_KEY)]
EnvValue = Annotated[
    str, BeforeValidator(_as_text), AfterValidator(names.text), WithJsonSchema({"type": ["string", "integer"]})
]
Env = dict[EnvKey, EnvValue]
Option = Annotated[str, AfterValidator(names.ssh_option)]
Pin = Annotated[str, AfterValidator(names.pin), WithJsonSchema(_PIN)]
Pins = Annotated[
    list[Pin],
    BeforeValidator(_as_list),
    WithJsonSchema({"anyOf": [_PIN, {"type": "array", "items": _PIN}]}),
]
Endpoint = Annotated[str, AfterValidator(names.endpoint)]
Image = Annotated[str, AfterValidator(_image)]
Port = Annotated[int, Field(ge=1, le=65535)]
Device = Annotated[int, Field(ge=0, le=255)]
Devices = Annotated[
    list[Device],
    BeforeValidator(_all_or_list),
    WithJsonSchema(
        {"anyOf": [{"const": "all"}, {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 255}}]}
    ),
]
Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seconds = Annotated[int, Field(ge=0)]


class Block(BaseModel):
    """What every block of the file is: strict, and closed to keys that it does not know."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", hide_input_in_errors=True)


class SshBlock(Block):
    """How a machine is reached; whatever is left out is OpenSSH's to say."""

    target: Word | None = Field(default=None, description="Host name or ssh alias; without it, the worker's label.")
    port: Port | None = None
    user: Word | None = None
    identity_file: Filled | None = Field(
        default=None, description="Private key. Relative: to the project root (in `join:` to this file); `~` is kept."
    )
    node_identity_file: Filled | None = Field(
        default=None, description="The key on the node itself, for its own hops to other nodes."
    )
    options: list[Option] | None = Field(default=None, description="ssh_config lines as Keyword=value.")
    host_key: Pins | None = Field(default=None, description="The host key's fingerprint, or a list of them.")


class ControllerJoin(Block):
    """The launcher's: how it lets workers join a run. Left alone here."""

    min_rank_start: Annotated[int, Field(ge=2)] | None = None
    join_timeout: Seconds | None = None
    target_ranks: Annotated[int, Field(ge=1)] | None = None
    max_join_timeout: Seconds | None = None
    open_admission: bool | None = None
    discovery: bool | None = None
    token: Text | None = None
    tunnel_only: bool | None = None
    start: Literal["auto", "manual", "hybrid"] | None = None


class ControllerBlock(Block):
    """The machine that builds."""

    host: Word = Field(description="Label or bind address. A worker of this label is the controller itself.")
    path: Here = Field(description="The project root as the controller sees it. Relative: to this file.")
    docker: Segment | None = Field(default=None, description="Compose service that builds; without it, cargo here.")
    docker_deps: bool = Field(default=False, description="Start the service's depends_on too.")
    data_path: Absolute | None = Field(default=None, description="Shared data directory, when it must be there.")
    arch: Variant | None = Field(default=None, description="libtorch variant under <path>/libtorch/.")
    port: Port | None = Field(default=None, description="The launcher's own.")
    join: ControllerJoin | None = Field(default=None, description="The launcher's own.")


class WorkerBlock(Block):
    """A machine that needs its own binary."""

    host: Segment = Field(description="Label, unique; the ssh target unless ssh.target says otherwise.")
    transport: Literal["ssh", "local"] = Field(default="ssh", description="`local`: the worker is this machine.")
    path: Filled = Field(description="The project root as this worker sees it: absolute (local: or relative).")
    arch: Variant | None = Field(default=None, description="libtorch variant under <path>/libtorch/.")
    build: bool = Field(default=True, description="false: prebuild leaves this worker out.")
    data_path: Absolute | None = Field(default=None, description="Shared data directory, when it must be there.")
    fabric_ip: Word | None = Field(default=None, description="Fast address for transfers between nodes.")
    mgmt_ip: Word | None = Field(default=None, description="Address for them when the ssh target can't serve.")
    ssh: SshBlock | None = None
    docker_host: Endpoint | None = Field(default=None, description="This node's Docker endpoint.")
    env: Env = Field(default={}, description="Variables of this worker, over the cluster's.")
    local_devices: Devices | None = Field(default=None, description="The launcher's own.")
    nccl_socket_ifname: Text | None = Field(default=None, description="The launcher's own.")
    tunnel: bool | None = Field(default=None, description="The launcher's own.")
    gpu_ram_share: Share | None = Field(default=None, description="The launcher's own.")
    docker: Text | None = Field(default=None, description="The launcher's own.")

    @field_validator("path")
    @classmethod
    def _rooted(cls, value: str, info: ValidationInfo) -> str:
        """A colon would split the loader path; only a worker on this machine may be relative."""
        if ":" in value:
            raise ValueError(f"{value!r} has ':' in it, which would split the worker's loader path")
        return names.here(value) if info.data.get("transport", "local") == "local" else names.absolute(value)


class CommandBlock(Block):
    """How one command is built."""

    cwd: Inside | None = Field(default=None, description="Directory of the command under the project root.")
    build: Shell | None = Field(default=None, description="Shell line instead of cargo.")
    bin: Inside | None = Field(default=None, description="Artifact of that line, relative to the target directory.")
    profile: Segment = Field(default="release", description="cargo profile.")
    cargo_args: list[Text] = Field(default=[], description="Further arguments for cargo build.")
    check: list[Text] = Field(default=[], description="Arguments with which the binary must start on each worker.")


class RecipeBlock(Block):
    """A named image: one of `image`, `docker_image`, `container`."""

    image: Image | None = None
    docker_image: Image | None = None
    container: Image | None = None
    exec_probe: Annotated[list[Text], Field(min_length=1)] | None = Field(
        default=None, description="Command that must succeed in a container of the image."
    )


class ImagesBlock(Block):
    """How images travel."""

    compress: Literal["none", "zstd"] = "none"


class SourceBlock(Block):
    """Where a box gets the source from."""

    from_: Filled = Field(
        alias="from", description="file:///abs, rsync://[user@]host[:port]/abs, git+https://…#ref or git+ssh://…#ref."
    )
    cwd: Inside | None = Field(default=None, description="Directory to build in. A run's manifest wins.")
    build: Shell | None = Field(default=None, description="Shell line instead of cargo. A run's manifest wins.")
    bin: Inside | None = Field(default=None, description="What it makes, relative to `cwd`. A run's manifest wins.")


class JoinBlock(Block):
    """This box's own recipe for `inv prepare`."""

    controller: Word | None = Field(default=None, description="The launcher's own: whom to dial.")
    ssh: SshBlock | None = Field(default=None, description="Key, options and host key for data and source.")
    token: Text | None = Field(default=None, description="The launcher's own. Masked in all output.")
    bin: Filled | None = Field(default=None, description="A binary that is here already; not together with `source`.")
    source: SourceBlock | None = Field(default=None, description="Where the source comes from, and how it is built.")
    libtorch: Word | None = Field(
        default=None, description="auto, cpu, cu126, cu128, rocm7.0 or rocm7.1; without it, what is active on the box."
    )
    host: Segment | None = Field(default=None, description="The launcher's own: this box's label in the run.")
    devices: list[Device] | None = Field(
        default=None, description="The driver's numbers of the GPUs that this box offers; without it, all."
    )
    persist: bool = Field(default=False, description="The launcher's own.")
    data_path: Filled | None = Field(
        default=None, description="Where the data is, or is mounted (with `data_source`: /flodl/data by default)."
    )
    data_source: Filled | None = Field(default=None, description="sshfs://[user@]host[:port]/abs, mounted read-only.")
    gpu_ram_share: Share | None = Field(default=None, description="The launcher's own.")
    sig_probe: bool = Field(default=True, description="The launcher's own.")
    args: list[Text] = Field(default=[], description="The launcher's own.")


class PublishBlock(Block):
    """The launcher's: how the controller publishes a run. Left alone here."""

    source: Text | None = None
    bin: Text | None = None
    cwd: Text | None = None
    build: Annotated[str, AfterValidator(names.shell_lines)] | None = None
    to: Text | None = None
    identity: Text | None = None
    args: list[Text] = []


class ClusterBlock(Block):
    """A cluster: the machine that builds, its workers, and what they have in common."""

    controller: ControllerBlock | None = None
    workers: list[WorkerBlock] = Field(default=[], description="Machines that need their own binary.")
    ssh: SshBlock | None = Field(default=None, description="Defaults for every worker's ssh block, field by field.")
    env: Env = Field(default={}, description="Variables of every worker.")
    commands: dict[Segment, CommandBlock] = {}
    groups: dict[Segment, list[Segment]] = Field(default={}, description="Names for sets of workers, as for --host.")
    recipes: dict[Segment, RecipeBlock] = {}
    recipe_paths: list[SearchPath] = Field(default=[], description="Folders of recipe files, after recipes/.")
    images: ImagesBlock | None = None
    join: JoinBlock | None = None
    gpu_ram_share: Share | None = Field(default=None, description="The launcher's own.")
    publish: PublishBlock | None = Field(default=None, description="The launcher's own.")


def json_schema() -> dict[str, Any]:
    """The JSON Schema of cluster.yml for editors; a file with a `cluster:` block is judged by that block."""
    schema = ClusterBlock.model_json_schema(ref_template="#/$defs/{model}")
    definitions = schema.pop("$defs") | {"ClusterBlock": schema}
    _close(definitions)
    whole = {"$ref": "#/$defs/ClusterBlock"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "cluster.yml",
        "if": {"type": "object", "required": ["cluster"]},
        "then": {"properties": {"cluster": whole}},
        "else": whole,
        "$defs": dict(sorted(definitions.items())),
    }


def _close(node: object) -> None:
    """A mapping whose keys have a form has no others (pydantic says only what those of the form hold)."""
    if isinstance(node, dict) and "patternProperties" in node:
        node["additionalProperties"] = False
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        _close(child)


def schema_text() -> str:
    """The JSON Schema as it stands in cluster.schema.json."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"
