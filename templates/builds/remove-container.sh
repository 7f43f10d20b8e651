# Removes a container by name and looks again. Prints "gone" or "there"; fails when Docker does not answer.
# More than once: the engine may still be creating it for a client that was killed meanwhile.
{% include "prolog.sh" %}
FDL_CONTAINER={{ container }}
for _ in 1 2 3; do
  docker rm -f "$FDL_CONTAINER" >/dev/null 2>&1
  sleep 0.1
done
FDL_LEFT=$(docker ps -aq --filter "name=^/?$FDL_CONTAINER\$") || exit
[ -n "$FDL_LEFT" ] && echo there || echo gone
