"""Who is measured: for each framework, ours and the layers that it ships."""
