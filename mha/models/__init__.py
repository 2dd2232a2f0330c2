"""Knowledge about published models: their configs, families and archives."""
