"""Which GPUs this box has, whether they can be used, and what a build for them needs."""
