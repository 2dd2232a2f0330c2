"""What a script measures is not collected: each program imports its framework, which may not be there."""

collect_ignore = ["heldout"]
