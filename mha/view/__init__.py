"""View: the heads of recorded attention layers as one HTML page, beside how near it is to what the layers used."""
