"""What is known of published models: their configs, families and archives."""
