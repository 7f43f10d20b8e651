"""Starts the console script's entry point, installed or not."""

from fdl_tasks.tasks.program import main

if __name__ == "__main__":
    main()
