# Asks `docker compose`, from the project root, which services there are: one a line, profiles or not.
# Exits 3 without docker, 4 without compose, 5 when the engine does not answer, 6 when the file can't be read.
{% include "prolog.sh" %}
ROOT={{ root }}
cd -- "$ROOT" || exit 6
command -v docker >/dev/null 2>&1 || exit 3
docker compose version >/dev/null || exit 4
docker version >/dev/null || exit 5
# a build sets these, and a compose file may insist on them
LIBTORCH_HOST_PATH=${LIBTORCH_HOST_PATH:-/nowhere} LIBTORCH_CPU_PATH=${LIBTORCH_CPU_PATH:-/nowhere}
CUDA_VERSION=${CUDA_VERSION:-12.8.0} CUDA_TAG=${CUDA_TAG:-12.8}
export LIBTORCH_HOST_PATH LIBTORCH_CPU_PATH CUDA_VERSION CUDA_TAG
docker compose --profile '*' config --services || exit 6
