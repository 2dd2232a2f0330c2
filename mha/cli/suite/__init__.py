"""One file per `mha` command. Every import that costs time waits until a command runs."""
