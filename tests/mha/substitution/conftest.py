"""What a script measures is not collected: each port imports its framework, which may not be there."""

collect_ignore = ["minilm", "decoder", "from_keras", "heldout"]
