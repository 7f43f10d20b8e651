"""A box made ready before it joins a run: GPU, data, directories, source, libtorch, build; spec/prepare.md."""
