"""Where the data is on this box, and the directories that a run writes to."""
