"""Which bugs and settings recorded calls could not have shown."""
