"""What is taught, as code that runs: `plain` is the whole layer on one screen, in five dialects."""
