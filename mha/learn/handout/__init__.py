"""What a learner is given: the files, with an example in numbers, and the page that lists them."""
