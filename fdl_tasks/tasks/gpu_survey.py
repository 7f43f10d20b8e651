"""``inv gpus``: what this box has to offer to a run, and why something is not usable."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from invoke.context import Context
from invoke.tasks import task

from ..errors import PermanentError
from . import flags
from .edge import edge

if TYPE_CHECKING:
    from ..boxes.gpu.gpus import Gpu

HELP = {"devices": "`all`, or the driver's numbers as 0,1: what this box would offer", "json": flags.JSON}


@task(auto_shortflags=False, help=HELP)
def gpus(c: Context, devices: str | None = None, json: bool = False) -> tuple[Gpu, ...]:
    """Show the GPUs of this box, and what keeps others from being used.

    NVIDIA's by their driver, AMD's by the kernel's files; what CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES and
    ROCR_VISIBLE_DEVICES hide is shown as masked.

        inv gpus
        inv gpus --devices 0,1 --json

    Exit code: 0 there is a usable one, 2 none is, or one of --devices is not; 130 Ctrl-C.
    """
    with edge(c) as run:
        from ..boxes.gpu.gpus import masked, parse_devices, usable
        from ..boxes.gpu.survey import survey
        from ..boxes.tools import Tools
        from ..report.boxes import gpu_json, gpu_table
        from ..report.stdout import emit, emit_json

        wanted = parse_devices(devices)
        seen = survey(Tools("this box", scripts=run.scripts()), os.environ)
        visible = masked(seen, os.environ)
        offered: tuple[Gpu, ...] = ()
        refusal = None
        try:
            offered = usable(visible, wanted)
        except PermanentError as error:
            refusal = error
        if json:
            emit_json(run.mask.values(gpu_json(seen, visible, offered)))
        else:
            emit(gpu_table(seen, visible, offered, run.mask, sys.stdout))
        if refusal:
            raise refusal
        return offered
