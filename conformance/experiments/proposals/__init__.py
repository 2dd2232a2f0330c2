"""Proposals: candidates for what differs, made of what a probe reads; the search keeps those that give the answers."""
