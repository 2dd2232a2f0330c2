"""What `_ext.run` puts into a lesson beside its text: plots, what the judge says, notebooks."""
