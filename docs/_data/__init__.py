"""What pages show that a build can't compute, since it takes frameworks or time; and what measures it."""
